//! The operation table: at most one operation at a time changes an object, and some operations are in doubt.
//!
//! An operation is in doubt if its call reached the driver and failed with [`Finality::Unknown`] or
//! [`Finality::InProgress`], or ended without a result. Until a later result resolves it, the object admits
//! only a retry with the same arguments, a deletion, and ControllerUnpublishVolume (ADR 0012). An operation
//! in doubt for one node blocks only operations for that node: after a forced detach its caller never retries
//! it, and other nodes must not wait.
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

/// Identifies an operation: method, argument hash and node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Operation {
    method: &'static str,
    arguments_hash: u64,
    /// The node, for operations on one node; `None` for others.
    node: Option<NodeId>,
}

/// The operations in doubt that the success of an operation resolves, beside the operation itself. A final
/// `NotFound` resolves those of `MethodOnNode`, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InverseOf {
    Nothing,
    /// Operations of this method for the same node; for all nodes if the operation has no node.
    MethodOnNode(&'static str),
    AllOperations,
}

/// An operation before it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationRequest {
    key: OperationKey,
    /// Objects that the operation reads. Other operations may read them too; none may change them meanwhile.
    sources: Vec<OperationKey>,
    operation: Operation,
    inverse_of: InverseOf,
}

impl OperationRequest {
    /// An operation with its arguments.
    pub fn new(key: OperationKey, method: &'static str, arguments: &impl Hash) -> Self {
        // Hashes are compared within this process only.
        let mut hasher = DefaultHasher::new();
        arguments.hash(&mut hasher);
        let operation = Operation { method, arguments_hash: hasher.finish(), node: None };
        Self { key, sources: Vec::new(), operation, inverse_of: InverseOf::Nothing }
    }

    /// A deletion. Operations in doubt do not block it, and its success resolves all operations in doubt of
    /// the object.
    pub fn deletion(key: OperationKey, method: &'static str, arguments: &impl Hash) -> Self {
        Self { inverse_of: InverseOf::AllOperations, ..Self::new(key, method, arguments) }
    }

    /// Makes the operation the inverse of a method for a node, or for all nodes if `node` is `None`.
    /// Operations in doubt do not block it. Its success or a final `NotFound` resolves the operations in
    /// doubt of `method` for these nodes.
    pub fn inverse(self, method: &'static str, node: Option<NodeId>) -> Self {
        Self { inverse_of: InverseOf::MethodOnNode(method), ..self.on_node(node) }
    }

    /// Sets the node of the operation; `None` for an operation that is not on one node.
    pub fn on_node(mut self, node: Option<NodeId>) -> Self {
        self.operation.node = node;
        self
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
    /// An operation on the object is in doubt, and the new one is neither its retry nor a deletion or
    /// unpublish. The text is the method of the operation in doubt, such as `publish`.
    PendingOperation(&'static str),
}

impl OperationConflict {
    /// The error that the caller receives: `Aborted`, with [`Finality::InProgress`]. The call has not
    /// started, and the operation that blocks it may still have an effect.
    pub fn into_error(self) -> StorageError {
        let message = match self {
            Self::Busy => "another call for this volume is running".to_owned(),
            Self::PendingOperation(method) => format!(
                "the result of an earlier `{method}` for this volume is unknown: only a retry with the same \
                 arguments, or the inverse call, may follow"
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
        let is_same_node = |in_doubt: &&&InDoubtOperation| {
            in_doubt.operation.node.is_none() || in_doubt.operation.node == request.operation.node
        };
        if let Some(other) = in_doubt.iter().find(is_same_node)
            && request.inverse_of == InverseOf::Nothing
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
    /// Returns the error. A final error of an [inconclusive](ErrorKind::is_inconclusive) kind gets the
    /// finality `Unknown` if an earlier attempt of the operation was in doubt when this attempt started: the
    /// error says nothing about the earlier attempt.
    pub fn keep_in_doubt(&self, mut error: StorageError) -> StorageError {
        if self.is_repeat && error.finality == Finality::Final && error.kind.is_inconclusive() {
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
        let OperationRequest { key, operation, inverse_of, .. } = &self.request;
        let is_not_found =
            error.is_some_and(|error| error.finality == Finality::Final && error.kind == ErrorKind::NotFound);
        let is_resolved = |in_doubt: &Operation| match (error, inverse_of) {
            (None, InverseOf::AllOperations) => true,
            // A volume that does not exist is not published either.
            (_, InverseOf::MethodOnNode(method)) if error.is_none() || is_not_found => {
                in_doubt == operation
                    || (in_doubt.method == *method
                        && (operation.node.is_none() || in_doubt.node == operation.node))
            }
            (None, InverseOf::Nothing | InverseOf::MethodOnNode(_)) | (Some(_), _) => in_doubt == operation,
        };
        for key in &self.keys {
            inner.remove_in_doubt(key, is_resolved);
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
        OperationRequest::new(OperationKey::VolumeName("v".into()), "create", &arguments)
    }

    fn volume(method: &'static str) -> OperationRequest {
        OperationRequest::new(OperationKey::Volume("h".into()), method, &0)
    }

    fn delete() -> OperationRequest {
        OperationRequest::deletion(OperationKey::Volume("h".into()), "delete", &0)
    }

    fn publish(node: &str, arguments: u32) -> OperationRequest {
        let request = OperationRequest::new(OperationKey::Volume("h".into()), "publish", &(node, arguments));
        request.on_node(Some(NodeId::new(node)))
    }

    fn unpublish(node: Option<&str>) -> OperationRequest {
        let request = OperationRequest::new(OperationKey::Volume("h".into()), "unpublish", &node);
        request.inverse("publish", node.map(NodeId::new))
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
        assert_eq!(try_acquire(&table, volume("expand")), Ok(()));
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
    fn unpublish_in_doubt_on_a_node_does_not_block_other_nodes() {
        // The node died, and its VolumeAttachment was deleted by force.
        let table = InFlightTable::default();
        run_to_end(&table, unpublish(Some("dead")), Some(in_doubt_error()));
        assert_eq!(try_acquire(&table, publish("healthy", 0)), Ok(()));
        assert_eq!(try_acquire(&table, volume("expand")), Ok(()));
        assert_eq!(
            try_acquire(&table, publish("dead", 0)),
            Err(OperationConflict::PendingOperation("unpublish"))
        );
        // An operation in doubt without a node blocks every node.
        run_to_end(&table, volume("expand"), Some(in_doubt_error()));
        assert_eq!(
            try_acquire(&table, publish("healthy", 0)),
            Err(OperationConflict::PendingOperation("expand"))
        );
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
    fn clone_source_cannot_be_deleted_while_it_is_read() {
        let table = InFlightTable::default();
        let source = || [OperationKey::Volume("h".into())];
        let copy = |name: &str| {
            OperationRequest::new(OperationKey::VolumeName(name.into()), "create-from-volume", &0)
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
        assert_eq!(try_acquire(&table, volume("expand")), Err(OperationConflict::PendingOperation("create")));
        run_to_end(&table, delete(), Some(in_doubt_error()));
        assert_eq!(try_acquire(&table, create(2)), Err(OperationConflict::PendingOperation("create")));
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
        run_to_end(&table, create(1), Some(in_doubt_error()));
        assert_eq!(try_acquire(&table, create(2)), Err(OperationConflict::PendingOperation("create")));
        run_to_end(&table, create(1), Some(final_error()));
        assert_eq!(try_acquire(&table, create(2)), Ok(()));
        assert_eq!(table.in_doubt_count(), 0);
        // A call that fails before it reaches the driver does not resolve the operation in doubt.
        run_to_end(&table, create(1), Some(in_doubt_error()));
        table.acquire(create(1)).unwrap().finish(Some(&final_error()));
        assert_eq!(try_acquire(&table, create(2)), Err(OperationConflict::PendingOperation("create")));
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
        run_to_end(&table, volume("expand"), Some(in_doubt_error()));
        assert_eq!(try_acquire(&table, volume("modify")), Err(OperationConflict::PendingOperation("expand")));
        // A delete with a final error changed nothing: the expansion is still in doubt.
        run_to_end(&table, delete(), Some(final_error()));
        assert_eq!(try_acquire(&table, volume("modify")), Err(OperationConflict::PendingOperation("expand")));
        run_to_end(&table, delete(), Some(in_doubt_error()));
        assert_eq!(table.in_doubt_count(), 2);
        assert_eq!(try_acquire(&table, volume("expand")), Ok(()), "the same call as one of the open ones");
        run_to_end(&table, delete(), None);
        assert_eq!(try_acquire(&table, volume("modify")), Ok(()));
        assert_eq!(table.in_doubt_count(), 0);
    }

    #[test]
    fn unpublish_resolves_only_publish_on_the_same_node() {
        let table = InFlightTable::default();
        run_to_end(&table, volume("expand"), Some(in_doubt_error()));
        run_to_end(&table, unpublish(Some("a")), None);
        assert_eq!(try_acquire(&table, volume("modify")), Err(OperationConflict::PendingOperation("expand")));
        run_to_end(&table, volume("expand"), None);
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
        assert_eq!(try_acquire(&table, create(2)), Err(OperationConflict::PendingOperation("create")));
    }

    #[test]
    fn operations_in_doubt_are_bounded() {
        let table = InFlightTable::default();
        let numbered = |number: usize, arguments: u32| {
            OperationRequest::new(OperationKey::VolumeName(number.to_string().into()), "create", &arguments)
        };
        for number in 0..=MAX_IN_DOUBT {
            run_to_end(&table, numbered(number, 1), Some(in_doubt_error()));
            let permit = table.acquire(numbered(number, 1)).unwrap();
            permit.add_alias(OperationKey::Volume(format!("h{number}").into()));
        }
        assert_eq!(table.in_doubt_count(), MAX_IN_DOUBT);
        assert_eq!(try_acquire(&table, numbered(0, 2)), Ok(()), "the oldest is dropped");
        assert!(try_acquire(&table, numbered(1, 2)).is_err());
        let inner = table.0.lock();
        assert!(inner.aliases.len() <= 2 * MAX_IN_DOUBT && inner.in_doubt.len() == MAX_IN_DOUBT);
        assert!(inner.running.is_empty() && inner.readers.is_empty());
    }
}
