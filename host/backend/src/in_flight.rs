//! One call at a time for a volume or snapshot, and only the right one after a call whose outcome nobody
//! knows.
//!
//! After `unknown` or `in-progress` only the same call with the same arguments may follow, until it is final,
//! or the call that undoes it (contract, rule 4). What is open at one node concerns that node's calls alone:
//! whoever knew of it may never come back, as an attachment that was removed by force, and other nodes' would
//! wait for ever. A guard is shared: what a call has begun outside of the sandbox, an HTTP exchange or a copy
//! in the pool, holds it until that has ended, also when the call itself is long over.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher as _},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use cofferdam_domain::{
    GroupSnapshotHandle, NodeId, SnapshotHandle, VolumeHandle,
    storage::{ErrorKind, Finality, StorageError},
};

/// Most open outcomes that are remembered, and most names with their handles. Ten times what one backend has
/// under way at once; the oldest is forgotten first, and then only the caller's own discipline is left.
const MAX_IN_DOUBT: usize = 10_240;

/// What a call is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OperationKey {
    /// A volume that is being created.
    VolumeName(Box<str>),
    /// A volume that exists.
    Volume(VolumeHandle),
    /// A snapshot that is being cut.
    SnapshotName(Box<str>),
    /// A snapshot that exists.
    Snapshot(SnapshotHandle),
    /// A group snapshot that is being cut.
    GroupSnapshotName(Box<str>),
    /// A group snapshot that exists.
    GroupSnapshot(GroupSnapshotHandle),
}

/// A call, as far as it can be told from others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Operation {
    method: &'static str,
    arguments_hash: u64,
    /// The node that it is about, for those that are about one.
    node: Option<NodeId>,
}

/// What a success leaves nothing open of, beside the call itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InverseOf {
    Nothing,
    /// The calls of this method for its node, or for all nodes when it names none.
    MethodOnNode(&'static str),
    AllOperations,
}

/// What a call wants with its subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationRequest {
    key: OperationKey,
    /// What it uses and does not change: others may use it too, and nobody may change it meanwhile.
    sources: Vec<OperationKey>,
    operation: Operation,
    inverse_of: InverseOf,
}

impl OperationRequest {
    /// A call with its arguments.
    pub fn new(key: OperationKey, method: &'static str, arguments: &impl Hash) -> Self {
        // Only compared with itself within this process, where the hasher's keys are fixed.
        let mut hasher = DefaultHasher::new();
        arguments.hash(&mut hasher);
        let operation = Operation { method, arguments_hash: hasher.finish(), node: None };
        Self { key, sources: Vec::new(), operation, inverse_of: InverseOf::Nothing }
    }

    /// A deletion: always allowed, and after a success nothing is open.
    pub fn deletion(key: OperationKey, method: &'static str, arguments: &impl Hash) -> Self {
        Self { inverse_of: InverseOf::AllOperations, ..Self::new(key, method, arguments) }
    }

    /// A call that undoes another one for the same node, or for every node without one: always allowed.
    pub fn inverse(self, method: &'static str, node: Option<NodeId>) -> Self {
        Self { inverse_of: InverseOf::MethodOnNode(method), ..self.on_node(node) }
    }

    /// The same for a node.
    pub fn on_node(mut self, node: Option<NodeId>) -> Self {
        self.operation.node = node;
        self
    }

    /// The same with what it reads from.
    pub fn with_sources(self, sources: impl IntoIterator<Item = OperationKey>) -> Self {
        Self { sources: sources.into_iter().collect(), ..self }
    }
}

/// Why a call has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationConflict {
    /// Another call is running, or something that it began.
    Busy,
    /// The outcome of this other call is open.
    PendingOperation(&'static str),
}

impl OperationConflict {
    /// What the caller hears: the call has not begun, and what it waits for may still have an effect.
    pub fn into_error(self) -> StorageError {
        let message = match self {
            Self::Busy => "another call for this volume is running".to_owned(),
            Self::PendingOperation(method) => format!(
                "the outcome of `{method}` for this volume is open: only the same call, or the one that undoes it, may follow"
            ),
        };
        StorageError {
            finality: Finality::InProgress,
            ..StorageError::unknown_outcome(ErrorKind::Aborted, message)
        }
    }

    /// Name in metrics and logs.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::PendingOperation(_) => "unsettled",
        }
    }
}

/// The subjects of one backend.
#[derive(Clone, Debug, Default)]
pub struct InFlightTable(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    running: HashSet<OperationKey>,
    /// How many calls read from a subject.
    readers: HashMap<OperationKey, usize>,
    in_doubt: HashMap<OperationKey, Vec<InDoubtOperation>>,
    /// The open outcomes by age.
    in_doubt_by_age: BTreeMap<u64, OperationKey>,
    next_age: u64,
    /// What was created here: its name by its handle and its handle by its name, so that both meet.
    aliases: HashMap<OperationKey, OperationKey>,
}

/// A call whose outcome nobody knows.
#[derive(Clone, Debug)]
struct InDoubtOperation {
    operation: Operation,
    age: u64,
}

/// Keeps a subject to one call until the last clone is dropped.
#[derive(Debug)]
pub struct OperationPermit {
    table: InFlightTable,
    request: OperationRequest,
    /// The subject with its other name.
    keys: Vec<OperationKey>,
    /// Whether the outcome of the same call was open before.
    is_repeat: bool,
    /// Whether the guest may have been asked and nobody has told yet how that ended.
    is_unresolved: AtomicBool,
}

impl InFlightTable {
    /// Takes a subject for a call.
    ///
    /// # Errors
    /// [`Refusal`], when the call has to wait.
    pub fn acquire(&self, request: OperationRequest) -> Result<Arc<OperationPermit>, OperationConflict> {
        let mut inner = self.lock();
        let keys: Vec<_> = [Some(request.key.clone()), inner.aliases.get(&request.key).cloned()]
            .into_iter()
            .flatten()
            .collect();
        if keys.iter().any(|subject| inner.running.contains(subject) || inner.readers.contains_key(subject))
            || request.sources.iter().any(|source| inner.running.contains(source))
        {
            return Err(OperationConflict::Busy);
        }
        let in_doubt: Vec<_> =
            keys.iter().filter_map(|subject| inner.in_doubt.get(subject)).flatten().collect();
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

    /// How many outcomes are open.
    pub fn in_doubt_count(&self) -> usize {
        self.lock().in_doubt_by_age.len()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OperationPermit {
    /// Keeps an outcome open that a failure does not settle: when the same call has been made before, a try
    /// that did nothing says nothing about that one.
    pub fn keep_in_doubt(&self, mut error: StorageError) -> StorageError {
        if self.is_repeat && error.finality == Finality::Final && error.kind.is_inconclusive() {
            error.finality = Finality::Unknown;
        }
        error
    }

    /// Says that the guest is about to be asked: from here on the outcome is open until it is settled.
    pub fn reached(&self) {
        self.is_unresolved.store(true, Ordering::Release);
    }

    /// Remembers how the call ended, if it reached the guest.
    pub fn finish(&self, error: Option<&StorageError>) {
        if !self.is_unresolved.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut inner = self.table.lock();
        let OperationRequest { key: subject, operation: act, inverse_of: undoes, .. } = &self.request;
        let is_not_found =
            error.is_some_and(|error| error.finality == Finality::Final && error.kind == ErrorKind::NotFound);
        let is_resolved = |open: &Operation| match (error, undoes) {
            (None, InverseOf::AllOperations) => true,
            // What is not there is not published there.
            (_, InverseOf::MethodOnNode(method)) if error.is_none() || is_not_found => {
                open == act || (open.method == *method && (act.node.is_none() || open.node == act.node))
            }
            (None, InverseOf::Nothing | InverseOf::MethodOnNode(_)) | (Some(_), _) => open == act,
        };
        for subject in &self.keys {
            inner.remove_in_doubt(subject, is_resolved);
        }
        match error.map(|error| error.finality) {
            Some(Finality::Unknown | Finality::InProgress) => inner.add_in_doubt(subject, act),
            Some(Finality::Final) | None => {}
        }
    }

    /// Remembers the handle of what was created.
    pub fn add_alias(&self, handle: OperationKey) {
        let mut inner = self.table.lock();
        if inner.aliases.len() >= 2 * MAX_IN_DOUBT {
            // Which one is of no matter: the alias only makes a rare race of two callers impossible.
            if let Some(any_key) = inner.aliases.keys().next().cloned() {
                inner.remove_alias(&any_key);
            }
        }
        inner.remove_alias(&handle);
        inner.remove_alias(&self.request.key);
        inner.aliases.insert(handle.clone(), self.request.key.clone());
        inner.aliases.insert(self.request.key.clone(), handle);
    }

    /// Forgets the name of what was deleted.
    pub fn remove_alias(&self) {
        self.table.lock().remove_alias(&self.request.key);
    }
}

impl Inner {
    /// Forgets that two subjects are one.
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
        let mut inner = self.table.lock();
        if *self.is_unresolved.get_mut() {
            // The host failed between the guest and here: nobody knows what happened.
            inner.add_in_doubt(&self.request.key, &self.request.operation);
        }
        for subject in &self.keys {
            inner.running.remove(subject);
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
        let intent = OperationRequest::new(OperationKey::Volume("h".into()), "publish", &(node, arguments));
        intent.on_node(Some(NodeId::new(node)))
    }

    fn unpublish(node: Option<&str>) -> OperationRequest {
        let intent = OperationRequest::new(OperationKey::Volume("h".into()), "unpublish", &node);
        intent.inverse("publish", node.map(NodeId::new))
    }

    fn in_doubt_error() -> StorageError {
        StorageError::unknown_outcome(ErrorKind::DeadlineExceeded, "?")
    }

    fn final_error() -> StorageError {
        StorageError::final_outcome(ErrorKind::OutOfRange, "no")
    }

    /// Lets a call reach its guest and end.
    fn run_to_end(guards: &InFlightTable, intent: OperationRequest, error: Option<StorageError>) {
        let guard = guards.acquire(intent).unwrap();
        guard.reached();
        guard.finish(error.as_ref());
    }

    /// A call that was given its subject, and did nothing with it.
    fn try_acquire(guards: &InFlightTable, intent: OperationRequest) -> Result<(), OperationConflict> {
        guards.acquire(intent).map(drop)
    }

    #[test]
    fn concurrent_operation_on_a_volume_is_rejected() {
        let guards = InFlightTable::default();
        let first = guards.acquire(create(1)).unwrap();
        assert_eq!(try_acquire(&guards, create(1)), Err(OperationConflict::Busy));
        assert_eq!(try_acquire(&guards, volume("expand")), Ok(()));
        let exchange = Arc::clone(&first);
        drop(first);
        assert_eq!(try_acquire(&guards, create(1)), Err(OperationConflict::Busy), "what it began still runs");
        drop(exchange);
        assert_eq!(try_acquire(&guards, create(1)), Ok(()));
    }

    #[test]
    fn unpublish_in_doubt_on_a_node_does_not_block_other_nodes() {
        // The node died; whoever unpublished from it may have been removed by force.
        let guards = InFlightTable::default();
        run_to_end(&guards, unpublish(Some("dead")), Some(in_doubt_error()));
        assert_eq!(try_acquire(&guards, publish("healthy", 0)), Ok(()));
        assert_eq!(try_acquire(&guards, volume("expand")), Ok(()));
        assert_eq!(
            try_acquire(&guards, publish("dead", 0)),
            Err(OperationConflict::PendingOperation("unpublish"))
        );
        // What is open for the volume holds up everybody.
        run_to_end(&guards, volume("expand"), Some(in_doubt_error()));
        assert_eq!(
            try_acquire(&guards, publish("healthy", 0)),
            Err(OperationConflict::PendingOperation("expand"))
        );
        // The node has another name by now: of the former one nothing is left open.
        let guards = InFlightTable::default();
        run_to_end(&guards, publish("former", 0), Some(in_doubt_error()));
        let missing = StorageError::final_outcome(ErrorKind::NotFound, "no such node");
        run_to_end(&guards, unpublish(Some("former")), Some(missing));
        assert_eq!(guards.in_doubt_count(), 0);
        // Any other failure settles nothing but itself.
        run_to_end(&guards, publish("n", 0), Some(in_doubt_error()));
        run_to_end(&guards, unpublish(Some("n")), Some(final_error()));
        assert_eq!(
            try_acquire(&guards, publish("n", 1)),
            Err(OperationConflict::PendingOperation("publish"))
        );
    }

    #[test]
    fn clone_source_cannot_be_deleted_while_it_is_read() {
        let guards = InFlightTable::default();
        let source = || [OperationKey::Volume("h".into())];
        let copy = |name: &str| {
            OperationRequest::new(OperationKey::VolumeName(name.into()), "create-from-volume", &0)
                .with_sources(source())
        };
        let first = guards.acquire(copy("a")).unwrap();
        let second = guards.acquire(copy("b")).unwrap();
        drop(first);
        assert_eq!(try_acquire(&guards, delete()), Err(OperationConflict::Busy));
        drop(second);
        let deletion = guards.acquire(delete()).unwrap();
        assert_eq!(try_acquire(&guards, copy("a")), Err(OperationConflict::Busy));
        drop(deletion);
        assert_eq!(try_acquire(&guards, copy("a")), Ok(()));
        assert_eq!(try_acquire(&guards, delete()), Ok(()));
    }

    #[test]
    fn volume_name_and_handle_share_one_permit() {
        let guards = InFlightTable::default();
        let creation = guards.acquire(create(1)).unwrap();
        creation.add_alias(OperationKey::Volume("h".into()));
        drop(creation);
        let repeated = guards.acquire(create(1)).unwrap();
        assert_eq!(try_acquire(&guards, delete()), Err(OperationConflict::Busy));
        drop(repeated);
        // An outcome that is open under one name is open under the other.
        run_to_end(&guards, create(1), Some(in_doubt_error()));
        assert_eq!(
            try_acquire(&guards, volume("expand")),
            Err(OperationConflict::PendingOperation("create"))
        );
        run_to_end(&guards, delete(), Some(in_doubt_error()));
        assert_eq!(try_acquire(&guards, create(2)), Err(OperationConflict::PendingOperation("create")));
        let deletion = guards.acquire(delete()).unwrap();
        assert_eq!(try_acquire(&guards, create(1)), Err(OperationConflict::Busy));
        deletion.reached();
        deletion.finish(None);
        deletion.remove_alias();
        drop(deletion);
        let _create = guards.acquire(create(2)).unwrap();
        assert_eq!(try_acquire(&guards, delete()), Ok(()), "forgotten");
        assert_eq!(guards.in_doubt_count(), 0);
    }

    #[test]
    fn only_the_same_operation_follows_one_in_doubt() {
        let guards = InFlightTable::default();
        run_to_end(&guards, create(1), Some(in_doubt_error()));
        assert_eq!(try_acquire(&guards, create(2)), Err(OperationConflict::PendingOperation("create")));
        run_to_end(&guards, create(1), Some(final_error()));
        assert_eq!(try_acquire(&guards, create(2)), Ok(()));
        assert_eq!(guards.in_doubt_count(), 0);
        // A call that was refused before it reached the guest leaves everything as it was.
        run_to_end(&guards, create(1), Some(in_doubt_error()));
        guards.acquire(create(1)).unwrap().finish(Some(&final_error()));
        assert_eq!(try_acquire(&guards, create(2)), Err(OperationConflict::PendingOperation("create")));
    }

    #[test]
    fn failed_retry_does_not_resolve_an_earlier_attempt() {
        let guards = InFlightTable::default();
        let refused = |kind| StorageError::final_outcome(kind, "no connection");
        let first = guards.acquire(create(1)).unwrap();
        assert_eq!(first.keep_in_doubt(refused(ErrorKind::Unavailable)).finality, Finality::Final);
        first.reached();
        first.finish(Some(&in_doubt_error()));
        drop(first);
        let second = guards.acquire(create(1)).unwrap();
        assert_eq!(second.keep_in_doubt(refused(ErrorKind::Unavailable)).finality, Finality::Unknown);
        assert_eq!(second.keep_in_doubt(refused(ErrorKind::OutOfRange)).finality, Finality::Final);
    }

    #[test]
    fn successful_delete_resolves_all_operations_in_doubt() {
        let guards = InFlightTable::default();
        run_to_end(&guards, volume("expand"), Some(in_doubt_error()));
        assert_eq!(
            try_acquire(&guards, volume("modify")),
            Err(OperationConflict::PendingOperation("expand"))
        );
        // One that fails for good has changed nothing: the outcome of the expansion is still open.
        run_to_end(&guards, delete(), Some(final_error()));
        assert_eq!(
            try_acquire(&guards, volume("modify")),
            Err(OperationConflict::PendingOperation("expand"))
        );
        run_to_end(&guards, delete(), Some(in_doubt_error()));
        assert_eq!(guards.in_doubt_count(), 2);
        assert_eq!(try_acquire(&guards, volume("expand")), Ok(()), "the same call as one of the open ones");
        run_to_end(&guards, delete(), None);
        assert_eq!(try_acquire(&guards, volume("modify")), Ok(()));
        assert_eq!(guards.in_doubt_count(), 0);
    }

    #[test]
    fn unpublish_resolves_only_publish_on_the_same_node() {
        let guards = InFlightTable::default();
        run_to_end(&guards, volume("expand"), Some(in_doubt_error()));
        run_to_end(&guards, unpublish(Some("a")), None);
        assert_eq!(
            try_acquire(&guards, volume("modify")),
            Err(OperationConflict::PendingOperation("expand"))
        );
        run_to_end(&guards, volume("expand"), None);
        run_to_end(&guards, publish("a", 1), Some(in_doubt_error()));
        run_to_end(&guards, unpublish(Some("b")), None);
        assert_eq!(
            try_acquire(&guards, publish("a", 2)),
            Err(OperationConflict::PendingOperation("publish"))
        );
        run_to_end(&guards, unpublish(Some("a")), Some(final_error()));
        assert_eq!(
            try_acquire(&guards, publish("a", 2)),
            Err(OperationConflict::PendingOperation("publish"))
        );
        run_to_end(&guards, unpublish(Some("a")), None);
        assert_eq!(try_acquire(&guards, publish("a", 2)), Ok(()));
        run_to_end(&guards, publish("a", 1), Some(in_doubt_error()));
        run_to_end(&guards, unpublish(None), None);
        assert_eq!(guards.in_doubt_count(), 0);
    }

    #[test]
    fn dropped_permit_leaves_the_operation_in_doubt() {
        let guards = InFlightTable::default();
        let guard = guards.acquire(create(1)).unwrap();
        guard.reached();
        drop(guard);
        assert_eq!(try_acquire(&guards, create(2)), Err(OperationConflict::PendingOperation("create")));
    }

    #[test]
    fn operations_in_doubt_are_bounded() {
        let guards = InFlightTable::default();
        let numbered = |number: usize, arguments: u32| {
            OperationRequest::new(OperationKey::VolumeName(number.to_string().into()), "create", &arguments)
        };
        for number in 0..=MAX_IN_DOUBT {
            run_to_end(&guards, numbered(number, 1), Some(in_doubt_error()));
            let guard = guards.acquire(numbered(number, 1)).unwrap();
            guard.add_alias(OperationKey::Volume(format!("h{number}").into()));
        }
        assert_eq!(guards.in_doubt_count(), MAX_IN_DOUBT);
        assert_eq!(try_acquire(&guards, numbered(0, 2)), Ok(()), "the oldest is forgotten");
        assert!(try_acquire(&guards, numbered(1, 2)).is_err());
        let inner = guards.lock();
        assert!(inner.aliases.len() <= 2 * MAX_IN_DOUBT && inner.in_doubt.len() == MAX_IN_DOUBT);
        assert!(inner.running.is_empty() && inner.readers.is_empty());
    }
}
