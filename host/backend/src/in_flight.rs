//! The operation table: at most one operation at a time changes an object, and some operations are in doubt.
//!
//! An operation is in doubt if its call reached the driver and failed with [`Finality::Unknown`] or
//! [`Finality::InProgress`], or ended without a result. Until a later result resolves it, it blocks other
//! operations on the object (ADR 0020):
//!
//! | in doubt | blocks |
//! |---|---|
//! | creation | changes of the volume |
//! | deletion | every operation but its retry and ControllerUnpublishVolume |
//! | change of the volume: expand, modify | other changes, and creations of the name |
//! | ControllerPublishVolume | ControllerPublishVolume to the same node with other arguments |
//! | ControllerUnpublishVolume | nothing |
//!
//! Only a deletion in doubt keeps a volume from its nodes. The caller may never retry another operation, for
//! example after a forced detach, and the driver may never report its result.
//!
//! A creation with other arguments may follow a creation in doubt: the caller has mended its request. A
//! driver returns `AlreadyExists` for it if the first creation has had an effect (ADR 0021). The caller has
//! to repeat both until one returns the volume.
//!
//! The permit of a running operation is shared. Work that outlives its call, such as an HTTP exchange or the
//! copy of a pool volume, keeps the operation in flight until the work has ended.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use cofferdam_domain::{
    GroupSnapshotHandle, NodeId, SnapshotHandle, VolumeHandle,
    storage::{ErrorKind, Finality, StorageError},
};
use parking_lot::Mutex;

/// Maximum operations in doubt of a driver. If there are more, the oldest is dropped: the table then accepts
/// calls that conflict with it. Also the maximum objects whose name and handle the table knows as aliases of
/// each other.
const MAX_IN_DOUBT: usize = 10_240;

/// The object of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OperationKey {
    /// A volume by name, during its creation.
    VolumeName(Box<str>),
    /// A volume by handle.
    Volume(VolumeHandle),
    /// A snapshot by name, during its creation.
    SnapshotName(Box<str>),
    /// A snapshot by handle.
    Snapshot(SnapshotHandle),
    /// A group snapshot by name, during its creation.
    GroupSnapshotName(Box<str>),
    /// A group snapshot by handle.
    GroupSnapshot(GroupSnapshotHandle),
}

/// The effect of an operation on its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OperationKind {
    /// Creates the object.
    Create,
    /// Deletes the object.
    Delete,
    /// Changes the volume itself: its size or its parameters.
    Change,
    /// Makes the volume reachable from a node.
    Publish,
    /// Makes the volume unreachable from a node, or from all nodes.
    Unpublish,
}

/// Identifies an operation: two calls with the same fields are attempts of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Operation {
    kind: OperationKind,
    method: &'static str,
    /// Hash of the arguments that identify the operation.
    arguments_hash: u64,
    /// The node of a publish call, and of an unpublish call for one node; `None` for other operations.
    node: Option<NodeId>,
}

impl Operation {
    fn new(kind: OperationKind, method: &'static str, arguments: &impl Hash, node: Option<NodeId>) -> Self {
        // Hashes are compared within this process only.
        let mut hasher = DefaultHasher::new();
        arguments.hash(&mut hasher);
        Self { kind, method, arguments_hash: hasher.finish(), node }
    }

    /// Returns true if the operation may start while `in_doubt`, which is not the same operation, is in
    /// doubt.
    fn may_follow(&self, in_doubt: &Self) -> bool {
        use OperationKind::{Change, Create, Delete, Publish, Unpublish};
        match (self.kind, in_doubt.kind) {
            // They undo what the operation in doubt may have done.
            (Delete | Unpublish, _) => true,
            // The volume may disappear.
            (Create | Change | Publish, Delete) => false,
            // The name identifies the volume: a driver creates at most one, whatever the arguments.
            (Create, Create) => true,
            (Create, Change) | (Change, Create | Change) => false,
            // A caller that has the handle has the volume: a repeated creation does nothing to it. A change
            // of the volume must not keep it from its nodes. A publish call undoes an unpublish call that its
            // caller has given up.
            (Publish, Create | Change | Unpublish) => true,
            (Publish, Publish) => self.node != in_doubt.node,
            (Create | Change, Publish | Unpublish) => true,
        }
    }

    /// Returns true if the result of the operation resolves `in_doubt`. `error` is `None` after success.
    fn resolves(&self, in_doubt: &Self, error: Option<&StorageError>) -> bool {
        let is_not_found =
            error.is_some_and(|error| error.finality == Finality::Final && error.kind == ErrorKind::NotFound);
        let is_of_node = self.node.is_none() || in_doubt.node == self.node;
        self == in_doubt
            || match self.kind {
                OperationKind::Delete => error.is_none(),
                // A volume that does not exist is not published either.
                OperationKind::Unpublish => {
                    let concerns_nodes =
                        matches!(in_doubt.kind, OperationKind::Publish | OperationKind::Unpublish);
                    (error.is_none() || is_not_found) && concerns_nodes && is_of_node
                }
                OperationKind::Publish => {
                    error.is_none() && in_doubt.kind == OperationKind::Unpublish && is_of_node
                }
                // The volume of this name is known.
                OperationKind::Create => error.is_none() && in_doubt.kind == OperationKind::Create,
                OperationKind::Change => false,
            }
    }
}

/// An operation before it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationRequest {
    key: OperationKey,
    /// Objects that the operation reads. Other operations may read them too; none may change them meanwhile.
    sources: Vec<OperationKey>,
    operation: Operation,
}

/// Constructors. `arguments` are those that identify the operation: a call with others is another operation.
impl OperationRequest {
    /// A creation. Its success resolves all creations in doubt of the object.
    pub fn creation(key: OperationKey, method: &'static str, arguments: &impl Hash) -> Self {
        Self::new(key, Operation::new(OperationKind::Create, method, arguments, None))
    }

    /// A deletion. Its success resolves all operations in doubt of the object.
    pub fn deletion(key: OperationKey, method: &'static str, arguments: &impl Hash) -> Self {
        Self::new(key, Operation::new(OperationKind::Delete, method, arguments, None))
    }

    /// A change of a volume itself.
    pub fn change(volume: VolumeHandle, method: &'static str, arguments: &impl Hash) -> Self {
        let operation = Operation::new(OperationKind::Change, method, arguments, None);
        Self::new(OperationKey::Volume(volume), operation)
    }

    /// ControllerPublishVolume. Its success resolves ControllerUnpublishVolume in doubt for the node.
    pub fn publish(volume: VolumeHandle, node: NodeId, arguments: &impl Hash) -> Self {
        let operation = Operation::new(OperationKind::Publish, "publish", arguments, Some(node));
        Self::new(OperationKey::Volume(volume), operation)
    }

    /// ControllerUnpublishVolume for a node, or for all nodes if `node` is `None`. Its success or a final
    /// `NotFound` resolves publish and unpublish calls in doubt for these nodes.
    pub fn unpublish(volume: VolumeHandle, node: Option<NodeId>) -> Self {
        let operation = Operation::new(OperationKind::Unpublish, "unpublish", &(), node);
        Self::new(OperationKey::Volume(volume), operation)
    }

    const fn new(key: OperationKey, operation: Operation) -> Self {
        Self { key, sources: Vec::new(), operation }
    }

    /// The object of the operation.
    pub const fn key(&self) -> &OperationKey {
        &self.key
    }

    /// The same operation with the objects that it reads.
    pub fn with_sources(self, sources: impl IntoIterator<Item = OperationKey>) -> Self {
        Self { sources: sources.into_iter().collect(), ..self }
    }
}

/// Reason an operation cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationConflict {
    /// Another operation, or work that outlived its call, changes or reads the object, or changes a source of
    /// this operation.
    Busy,
    /// An operation in doubt on the object blocks the new one; see the [module](self). The text is the method
    /// of the operation in doubt, such as `expand`.
    PendingOperation(&'static str),
}

impl OperationConflict {
    /// The error that the caller receives: `Aborted`, with [`Finality::InProgress`]. The call has not
    /// started, and the operation that blocks it may still have an effect.
    pub fn into_error(self) -> StorageError {
        let message = match self {
            Self::Busy => "another call for this volume is running".to_owned(),
            Self::PendingOperation(method) => format!(
                "the result of an earlier `{method}` for this volume is unknown: this call may follow once a \
                 retry with the same arguments, or the inverse call, has a result"
            ),
        };
        StorageError {
            finality: Finality::InProgress,
            ..StorageError::with_unknown_effect(ErrorKind::Aborted, message)
        }
    }

    /// Name in metrics and logs.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::PendingOperation(_) => "pending-operation",
        }
    }
}

/// Operations of one driver that are running or in doubt.
#[derive(Clone, Debug, Default)]
pub struct InFlightTable(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    running: HashSet<OperationKey>,
    /// Number of operations that read each object.
    readers: HashMap<OperationKey, usize>,
    in_doubt: HashMap<OperationKey, Vec<InDoubtOperation>>,
    /// Object of each operation in doubt, by age. A smaller number is older.
    in_doubt_by_age: BTreeMap<u64, OperationKey>,
    next_age: u64,
    /// Name and handle of objects that this process created, in both directions: both are the same object.
    aliases: HashMap<OperationKey, OperationKey>,
}

/// An operation in doubt.
#[derive(Clone, Debug)]
struct InDoubtOperation {
    operation: Operation,
    age: u64,
}

/// Permit of a running operation. The operation ends when the last clone of its `Arc` is dropped.
#[derive(Debug)]
pub struct OperationPermit {
    table: InFlightTable,
    request: OperationRequest,
    /// The object's key, and its alias if it has one.
    keys: Vec<OperationKey>,
    /// True if the same operation was already in doubt.
    is_repeat: bool,
    /// True from the moment the driver may see the request until its result is known.
    is_unresolved: AtomicBool,
}

impl InFlightTable {
    /// Registers an operation.
    ///
    /// # Errors
    /// [`OperationConflict`], if the operation cannot start.
    pub fn acquire(&self, request: OperationRequest) -> Result<Arc<OperationPermit>, OperationConflict> {
        let mut inner = self.0.lock();
        let keys: Vec<_> = [Some(request.key.clone()), inner.aliases.get(&request.key).cloned()]
            .into_iter()
            .flatten()
            .collect();
        if keys.iter().any(|key| inner.running.contains(key) || inner.readers.contains_key(key))
            || request.sources.iter().any(|source| inner.running.contains(source))
        {
            return Err(OperationConflict::Busy);
        }
        let in_doubt: Vec<_> = keys.iter().filter_map(|key| inner.in_doubt.get(key)).flatten().collect();
        let is_repeat = in_doubt.iter().any(|in_doubt| in_doubt.operation == request.operation);
        if let Some(other) =
            in_doubt.iter().find(|in_doubt| !request.operation.may_follow(&in_doubt.operation))
            && !is_repeat
        {
            return Err(OperationConflict::PendingOperation(other.operation.method));
        }
        inner.running.extend(keys.iter().cloned());
        for source in &request.sources {
            let readers = inner.readers.entry(source.clone()).or_default();
            *readers = readers.saturating_add(1);
        }
        Ok(Arc::new(OperationPermit {
            table: self.clone(),
            request,
            keys,
            is_repeat,
            is_unresolved: AtomicBool::new(false),
        }))
    }

    /// Number of operations in doubt.
    pub fn in_doubt_count(&self) -> usize {
        self.0.lock().in_doubt_by_age.len()
    }
}

impl OperationPermit {
    /// Returns the error. For a creation or a deletion, a final error of an
    /// [inconclusive](ErrorKind::is_inconclusive) kind gets the finality `Unknown` if an earlier attempt was
    /// in doubt when this attempt started: the error says nothing about the earlier attempt, which may have
    /// created or deleted the object. Any final error of another operation resolves it, as in
    /// external-resizer: some drivers repeat `Internal` forever after a timeout.
    pub fn keep_in_doubt(&self, mut error: StorageError) -> StorageError {
        let is_kept = matches!(self.request.operation.kind, OperationKind::Create | OperationKind::Delete);
        if is_kept && self.is_repeat && error.finality == Finality::Final && error.kind.is_inconclusive() {
            error.finality = Finality::Unknown;
        }
        error
    }

    /// Records that the driver is about to see the request. If the permit is dropped before
    /// [`finish`](Self::finish), the operation is in doubt.
    pub fn reached(&self) {
        self.is_unresolved.store(true, Ordering::Release);
    }

    /// Records the result, with `None` for success. Without effect if the driver was not reached.
    pub fn finish(&self, error: Option<&StorageError>) {
        if !self.is_unresolved.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut inner = self.table.0.lock();
        let OperationRequest { key, operation, .. } = &self.request;
        for key in &self.keys {
            inner.remove_in_doubt(key, |in_doubt| operation.resolves(in_doubt, error));
        }
        match error.map(|error| error.finality) {
            Some(Finality::Unknown | Finality::InProgress) => inner.add_in_doubt(key, operation),
            Some(Finality::Final) | None => {}
        }
    }

    /// Records the handle of a created object as an alias of its name.
    pub fn add_alias(&self, handle: OperationKey) {
        let mut inner = self.table.0.lock();
        if inner.aliases.len() >= 2 * MAX_IN_DOUBT {
            // An arbitrary alias is dropped. Without it, calls by name and calls by handle do not exclude
            // each other.
            if let Some(any_key) = inner.aliases.keys().next().cloned() {
                inner.remove_alias(&any_key);
            }
        }
        inner.remove_alias(&handle);
        inner.remove_alias(&self.request.key);
        inner.aliases.insert(handle.clone(), self.request.key.clone());
        inner.aliases.insert(self.request.key.clone(), handle);
    }

    /// Removes the alias of a deleted object.
    pub fn remove_alias(&self) {
        self.table.0.lock().remove_alias(&self.request.key);
    }
}

impl Inner {
    /// Removes an alias in both directions.
    fn remove_alias(&mut self, key: &OperationKey) {
        if let Some(alias) = self.aliases.remove(key) {
            self.aliases.remove(&alias);
        }
    }

    fn remove_in_doubt(&mut self, key: &OperationKey, is_resolved: impl Fn(&Operation) -> bool) {
        let Some(operations) = self.in_doubt.get_mut(key) else { return };
        let ages = &mut self.in_doubt_by_age;
        operations.retain(|operations| {
            let is_removed = is_resolved(&operations.operation);
            if is_removed {
                ages.remove(&operations.age);
            }
            !is_removed
        });
        if operations.is_empty() {
            self.in_doubt.remove(key);
        }
    }

    fn add_in_doubt(&mut self, key: &OperationKey, operation: &Operation) {
        if self.in_doubt_by_age.len() >= MAX_IN_DOUBT
            && let Some((oldest, oldest_key)) = self.in_doubt_by_age.pop_first()
            && let Some(open) = self.in_doubt.get_mut(&oldest_key)
        {
            open.retain(|open| open.age != oldest);
            if open.is_empty() {
                self.in_doubt.remove(&oldest_key);
            }
        }
        self.next_age = self.next_age.saturating_add(1);
        let open = InDoubtOperation { operation: operation.clone(), age: self.next_age };
        self.in_doubt.entry(key.clone()).or_default().push(open);
        self.in_doubt_by_age.insert(self.next_age, key.clone());
    }
}

impl Drop for OperationPermit {
    fn drop(&mut self) {
        let mut inner = self.table.0.lock();
        if *self.is_unresolved.get_mut() {
            // The call was cancelled, or the host panicked: the result is unknown.
            inner.add_in_doubt(&self.request.key, &self.request.operation);
        }
        for key in &self.keys {
            inner.running.remove(key);
        }
        for source in &self.request.sources {
            if let Some(readers) = inner.readers.get_mut(source) {
                *readers = readers.saturating_sub(1);
                if *readers == 0 {
                    inner.readers.remove(source);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(arguments: u32) -> OperationRequest {
        OperationRequest::creation(OperationKey::VolumeName("v".into()), "create", &arguments)
    }

    fn change(method: &'static str) -> OperationRequest {
        OperationRequest::change("h".into(), method, &0)
    }

    fn delete() -> OperationRequest {
        OperationRequest::deletion(OperationKey::Volume("h".into()), "delete", &0)
    }

    fn publish(node: &str, arguments: u32) -> OperationRequest {
        OperationRequest::publish("h".into(), NodeId::new(node), &arguments)
    }

    fn unpublish(node: Option<&str>) -> OperationRequest {
        OperationRequest::unpublish("h".into(), node.map(NodeId::new))
    }

    fn in_doubt_error() -> StorageError {
        StorageError::with_unknown_effect(ErrorKind::DeadlineExceeded, "?")
    }

    fn final_error() -> StorageError {
        StorageError::with_known_effect(ErrorKind::OutOfRange, "no")
    }

    /// Runs an operation to its end.
    fn run_to_end(table: &InFlightTable, request: OperationRequest, error: Option<StorageError>) {
        let permit = table.acquire(request).unwrap();
        permit.reached();
        permit.finish(error.as_ref());
    }

    /// Registers an operation and drops its permit.
    fn try_acquire(table: &InFlightTable, request: OperationRequest) -> Result<(), OperationConflict> {
        table.acquire(request).map(drop)
    }

    #[test]
    fn concurrent_operation_on_a_volume_is_rejected() {
        let table = InFlightTable::default();
        let first = table.acquire(create(1)).unwrap();
        assert_eq!(try_acquire(&table, create(1)), Err(OperationConflict::Busy));
        assert_eq!(try_acquire(&table, change("expand")), Ok(()));
        let exchange = Arc::clone(&first);
        drop(first);
        assert_eq!(
            try_acquire(&table, create(1)),
            Err(OperationConflict::Busy),
            "work of the call still runs"
        );
        drop(exchange);
        assert_eq!(try_acquire(&table, create(1)), Ok(()));
    }

    #[test]
    fn unpublish_in_doubt_keeps_the_volume_from_no_node() {
        // The node died, and its VolumeAttachment was deleted by force: the call is never repeated.
        let table = InFlightTable::default();
        run_to_end(&table, unpublish(Some("dead")), Some(in_doubt_error()));
        assert_eq!(try_acquire(&table, publish("healthy", 0)), Ok(()));
        assert_eq!(try_acquire(&table, change("expand")), Ok(()));
        run_to_end(&table, publish("dead", 0), Some(in_doubt_error()));
        assert_eq!(table.in_doubt_count(), 2);
        run_to_end(&table, publish("dead", 0), None);
        assert_eq!(table.in_doubt_count(), 0, "the node is back");
        // The node was renamed. NotFound for its former id resolves the publish to it.
        let table = InFlightTable::default();
        run_to_end(&table, publish("former", 0), Some(in_doubt_error()));
        let missing = StorageError::with_known_effect(ErrorKind::NotFound, "no such node");
        run_to_end(&table, unpublish(Some("former")), Some(missing));
        assert_eq!(table.in_doubt_count(), 0);
        // Another final error resolves only the failed operation itself.
        run_to_end(&table, publish("n", 0), Some(in_doubt_error()));
        run_to_end(&table, unpublish(Some("n")), Some(final_error()));
        assert_eq!(try_acquire(&table, publish("n", 1)), Err(OperationConflict::PendingOperation("publish")));
    }

    #[test]
    fn change_in_doubt_keeps_the_volume_from_no_node() {
        let table = InFlightTable::default();
        run_to_end(&table, change("expand"), Some(in_doubt_error()));
        assert_eq!(try_acquire(&table, publish("a", 0)), Ok(()));
        assert_eq!(try_acquire(&table, unpublish(Some("a"))), Ok(()));
        assert_eq!(try_acquire(&table, change("modify")), Err(OperationConflict::PendingOperation("expand")));
        // A volume that may be deleted is not published.
        run_to_end(&table, delete(), Some(in_doubt_error()));
        assert_eq!(try_acquire(&table, publish("a", 0)), Err(OperationConflict::PendingOperation("delete")));
        assert_eq!(try_acquire(&table, unpublish(Some("a"))), Ok(()));
    }

    #[test]
    fn final_error_resolves_a_change_or_a_publish_call_in_doubt() {
        let internal = || StorageError::with_known_effect(ErrorKind::Internal, "new size must be greater");
        for request in [change("expand"), change("modify"), publish("a", 0), unpublish(Some("a"))] {
            let table = InFlightTable::default();
            run_to_end(&table, request.clone(), Some(in_doubt_error()));
            run_to_end(&table, request.clone(), Some(in_doubt_error()));
            assert_eq!(table.in_doubt_count(), 1, "{request:?}");
            let retry = table.acquire(request.clone()).unwrap();
            assert_eq!(retry.keep_in_doubt(internal()).finality, Finality::Final, "{request:?}");
            retry.reached();
            retry.finish(Some(&internal()));
            assert_eq!(table.in_doubt_count(), 0, "{request:?}");
        }
    }

    #[test]
    fn clone_source_cannot_be_deleted_while_it_is_read() {
        let table = InFlightTable::default();
        let source = || [OperationKey::Volume("h".into())];
        let copy = |name: &str| {
            OperationRequest::creation(OperationKey::VolumeName(name.into()), "create-from-volume", &0)
                .with_sources(source())
        };
        let first = table.acquire(copy("a")).unwrap();
        let second = table.acquire(copy("b")).unwrap();
        drop(first);
        assert_eq!(try_acquire(&table, delete()), Err(OperationConflict::Busy));
        drop(second);
        let deletion = table.acquire(delete()).unwrap();
        assert_eq!(try_acquire(&table, copy("a")), Err(OperationConflict::Busy));
        drop(deletion);
        assert_eq!(try_acquire(&table, copy("a")), Ok(()));
        assert_eq!(try_acquire(&table, delete()), Ok(()));
    }

    #[test]
    fn volume_name_and_handle_share_one_permit() {
        let table = InFlightTable::default();
        let creation = table.acquire(create(1)).unwrap();
        creation.add_alias(OperationKey::Volume("h".into()));
        drop(creation);
        let repeated = table.acquire(create(1)).unwrap();
        assert_eq!(try_acquire(&table, delete()), Err(OperationConflict::Busy));
        drop(repeated);
        // An operation in doubt under the name is also in doubt under the handle, and vice versa.
        run_to_end(&table, create(1), Some(in_doubt_error()));
        assert_eq!(try_acquire(&table, change("expand")), Err(OperationConflict::PendingOperation("create")));
        assert_eq!(try_acquire(&table, publish("n", 0)), Ok(()), "the volume exists");
        run_to_end(&table, delete(), Some(in_doubt_error()));
        assert_eq!(try_acquire(&table, create(2)), Err(OperationConflict::PendingOperation("delete")));
        let deletion = table.acquire(delete()).unwrap();
        assert_eq!(try_acquire(&table, create(1)), Err(OperationConflict::Busy));
        deletion.reached();
        deletion.finish(None);
        deletion.remove_alias();
        drop(deletion);
        let _create = table.acquire(create(2)).unwrap();
        assert_eq!(try_acquire(&table, delete()), Ok(()), "forgotten");
        assert_eq!(table.in_doubt_count(), 0);
    }

    #[test]
    fn only_the_same_operation_follows_one_in_doubt() {
        let table = InFlightTable::default();
        run_to_end(&table, change("expand"), Some(in_doubt_error()));
        let pending = Err(OperationConflict::PendingOperation("expand"));
        assert_eq!(try_acquire(&table, change("modify")), pending);
        run_to_end(&table, change("expand"), Some(final_error()));
        assert_eq!(try_acquire(&table, change("modify")), Ok(()));
        assert_eq!(table.in_doubt_count(), 0);
        // A call that fails before it reaches the driver does not resolve the operation in doubt.
        run_to_end(&table, change("expand"), Some(in_doubt_error()));
        table.acquire(change("expand")).unwrap().finish(Some(&final_error()));
        assert_eq!(try_acquire(&table, change("modify")), pending);
    }

    #[test]
    fn mended_creation_follows_a_creation_in_doubt() {
        let table = InFlightTable::default();
        run_to_end(&table, create(1), Some(in_doubt_error()));
        let exists = StorageError::with_known_effect(ErrorKind::AlreadyExists, "other arguments");
        run_to_end(&table, create(2), Some(exists));
        assert_eq!(table.in_doubt_count(), 1, "the result of the first creation is still unknown");
        // An error about the attempt resolves a creation only if no earlier attempt of it is in doubt.
        let internal = || StorageError::with_known_effect(ErrorKind::Internal, "no");
        let finality =
            |arguments| table.acquire(create(arguments)).unwrap().keep_in_doubt(internal()).finality;
        assert_eq!((finality(1), finality(2)), (Finality::Unknown, Finality::Final));
        run_to_end(&table, create(2), Some(in_doubt_error()));
        assert_eq!(table.in_doubt_count(), 2);
        assert_eq!(finality(2), Finality::Unknown);
        // Either returns the volume of the name.
        run_to_end(&table, create(1), None);
        assert_eq!(table.in_doubt_count(), 0);
    }

    #[test]
    fn failed_retry_does_not_resolve_an_earlier_attempt() {
        let table = InFlightTable::default();
        let refused = |kind| StorageError::with_known_effect(kind, "no connection");
        let first = table.acquire(create(1)).unwrap();
        assert_eq!(first.keep_in_doubt(refused(ErrorKind::Unavailable)).finality, Finality::Final);
        first.reached();
        first.finish(Some(&in_doubt_error()));
        drop(first);
        let second = table.acquire(create(1)).unwrap();
        assert_eq!(second.keep_in_doubt(refused(ErrorKind::Unavailable)).finality, Finality::Unknown);
        assert_eq!(second.keep_in_doubt(refused(ErrorKind::OutOfRange)).finality, Finality::Final);
    }

    #[test]
    fn successful_delete_resolves_all_operations_in_doubt() {
        let table = InFlightTable::default();
        run_to_end(&table, change("expand"), Some(in_doubt_error()));
        assert_eq!(try_acquire(&table, change("modify")), Err(OperationConflict::PendingOperation("expand")));
        // A delete with a final error changed nothing: the expansion is still in doubt.
        run_to_end(&table, delete(), Some(final_error()));
        assert_eq!(try_acquire(&table, change("modify")), Err(OperationConflict::PendingOperation("expand")));
        run_to_end(&table, delete(), Some(in_doubt_error()));
        assert_eq!(table.in_doubt_count(), 2);
        assert_eq!(try_acquire(&table, change("expand")), Ok(()), "the same call as one of the open ones");
        run_to_end(&table, delete(), None);
        assert_eq!(try_acquire(&table, change("modify")), Ok(()));
        assert_eq!(table.in_doubt_count(), 0);
    }

    #[test]
    fn unpublish_resolves_only_publish_on_the_same_node() {
        let table = InFlightTable::default();
        run_to_end(&table, change("expand"), Some(in_doubt_error()));
        run_to_end(&table, unpublish(Some("a")), None);
        assert_eq!(try_acquire(&table, change("modify")), Err(OperationConflict::PendingOperation("expand")));
        run_to_end(&table, change("expand"), None);
        run_to_end(&table, publish("a", 1), Some(in_doubt_error()));
        run_to_end(&table, unpublish(Some("b")), None);
        assert_eq!(try_acquire(&table, publish("a", 2)), Err(OperationConflict::PendingOperation("publish")));
        run_to_end(&table, unpublish(Some("a")), Some(final_error()));
        assert_eq!(try_acquire(&table, publish("a", 2)), Err(OperationConflict::PendingOperation("publish")));
        run_to_end(&table, unpublish(Some("a")), None);
        assert_eq!(try_acquire(&table, publish("a", 2)), Ok(()));
        run_to_end(&table, publish("a", 1), Some(in_doubt_error()));
        run_to_end(&table, unpublish(None), None);
        assert_eq!(table.in_doubt_count(), 0);
    }

    #[test]
    fn dropped_permit_leaves_the_operation_in_doubt() {
        let table = InFlightTable::default();
        let permit = table.acquire(create(1)).unwrap();
        permit.reached();
        drop(permit);
        assert_eq!(table.in_doubt_count(), 1);
    }

    #[test]
    fn operations_in_doubt_are_bounded() {
        let table = InFlightTable::default();
        let key = |number: usize| OperationKey::VolumeName(number.to_string().into());
        let deletion = |number| OperationRequest::deletion(key(number), "delete", &0);
        let creation = |number| OperationRequest::creation(key(number), "create", &0);
        for number in 0..=MAX_IN_DOUBT {
            run_to_end(&table, deletion(number), Some(in_doubt_error()));
            let permit = table.acquire(deletion(number)).unwrap();
            permit.add_alias(OperationKey::Volume(format!("h{number}").into()));
        }
        assert_eq!(table.in_doubt_count(), MAX_IN_DOUBT);
        assert_eq!(try_acquire(&table, creation(0)), Ok(()), "the oldest is dropped");
        assert!(try_acquire(&table, creation(1)).is_err());
        let inner = table.0.lock();
        assert!(inner.aliases.len() <= 2 * MAX_IN_DOUBT && inner.in_doubt.len() == MAX_IN_DOUBT);
        assert!(inner.running.is_empty() && inner.readers.is_empty());
    }
}
