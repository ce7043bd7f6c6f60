//! One call at a time for a volume or snapshot, and only the right one after a call whose outcome nobody knows.
//!
//! After `unknown` or `in-progress` only the same call with the same arguments may follow, until it is final, or the call that
//! undoes it (contract, rule 4). What is open at one node concerns that node's calls alone: whoever knew of it may never come back,
//! as an attachment that was removed by force, and other nodes' would wait for ever. A guard is shared: what a call has begun outside of the sandbox, an HTTP exchange or a copy
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

/// Most open outcomes that are remembered, and most names with their handles. Ten times what one backend has under way at
/// once; the oldest is forgotten first, and then only the caller's own discipline is left.
const REMEMBERED: usize = 10_240;

/// What a call is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A volume that is being created.
    Name(Box<str>),
    /// A volume that exists.
    Volume(VolumeHandle),
    /// A snapshot that is being cut.
    SnapshotName(Box<str>),
    /// A snapshot that exists.
    Snapshot(SnapshotHandle),
    /// A group snapshot that is being cut.
    GroupName(Box<str>),
    /// A group snapshot that exists.
    Group(GroupSnapshotHandle),
}

/// A call, as far as it can be told from others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Act {
    method: &'static str,
    arguments: u64,
    /// The node that it is about, for those that are about one.
    node: Option<NodeId>,
}

/// What a success leaves nothing open of, beside the call itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undoes {
    Nothing,
    /// The calls of this method for its node, or for all nodes when it names none.
    OfNode(&'static str),
    Everything,
}

/// What a call wants with its subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    subject: Subject,
    /// What it uses and does not change: others may use it too, and nobody may change it meanwhile.
    sources: Vec<Subject>,
    act: Act,
    undoes: Undoes,
}

impl Intent {
    /// A call with its arguments.
    pub fn new(subject: Subject, method: &'static str, arguments: &impl Hash) -> Self {
        // Only compared with itself within this process, where the hasher's keys are fixed.
        let mut hasher = DefaultHasher::new();
        arguments.hash(&mut hasher);
        let act = Act { method, arguments: hasher.finish(), node: None };
        Self { subject, sources: Vec::new(), act, undoes: Undoes::Nothing }
    }

    /// A deletion: always allowed, and after a success nothing is open.
    pub fn deleting(subject: Subject, method: &'static str, arguments: &impl Hash) -> Self {
        Self { undoes: Undoes::Everything, ..Self::new(subject, method, arguments) }
    }

    /// A call that undoes another one for the same node, or for every node without one: always allowed.
    pub fn undoing(self, method: &'static str, node: Option<NodeId>) -> Self {
        Self { undoes: Undoes::OfNode(method), ..self.of_node(node) }
    }

    /// The same for a node.
    pub fn of_node(mut self, node: Option<NodeId>) -> Self {
        self.act.node = node;
        self
    }

    /// The same with what it reads from.
    pub fn from(self, sources: impl IntoIterator<Item = Subject>) -> Self {
        Self { sources: sources.into_iter().collect(), ..self }
    }
}

/// Why a call has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another call is running, or something that it began.
    Busy,
    /// The outcome of this other call is open.
    Unsettled(&'static str),
}

impl Refusal {
    /// What the caller hears: the call has not begun, and what it waits for may still have an effect.
    pub fn into_error(self) -> StorageError {
        let message = match self {
            Self::Busy => "another call for this volume is running".to_owned(),
            Self::Unsettled(method) => format!(
                "the outcome of `{method}` for this volume is open: only the same call, or the one that undoes it, may follow"
            ),
        };
        StorageError { finality: Finality::InProgress, ..StorageError::unknown(ErrorKind::Aborted, message) }
    }

    /// Name in metrics and logs.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Unsettled(_) => "unsettled",
        }
    }
}

/// The subjects of one backend.
#[derive(Clone, Debug, Default)]
pub struct Guards(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    running: HashSet<Subject>,
    /// How many calls read from a subject.
    read: HashMap<Subject, usize>,
    open: HashMap<Subject, Vec<Open>>,
    /// The open outcomes by age.
    ages: BTreeMap<u64, Subject>,
    age: u64,
    /// What was created here: its name by its handle and its handle by its name, so that both meet.
    aliases: HashMap<Subject, Subject>,
}

/// A call whose outcome nobody knows.
#[derive(Clone, Debug)]
struct Open {
    act: Act,
    age: u64,
}

/// Keeps a subject to one call until the last clone is dropped.
#[derive(Debug)]
pub struct Guard {
    guards: Guards,
    intent: Intent,
    /// The subject with its other name.
    subjects: Vec<Subject>,
    /// Whether the outcome of the same call was open before.
    repeats: bool,
    /// Whether the guest may have been asked and nobody has told yet how that ended.
    owing: AtomicBool,
}

impl Guards {
    /// Takes a subject for a call.
    ///
    /// # Errors
    /// [`Refusal`], when the call has to wait.
    pub fn take(&self, intent: Intent) -> Result<Arc<Guard>, Refusal> {
        let mut inner = self.lock();
        let subjects: Vec<_> = [Some(intent.subject.clone()), inner.aliases.get(&intent.subject).cloned()]
            .into_iter()
            .flatten()
            .collect();
        if subjects.iter().any(|subject| inner.running.contains(subject) || inner.read.contains_key(subject))
            || intent.sources.iter().any(|source| inner.running.contains(source))
        {
            return Err(Refusal::Busy);
        }
        let open: Vec<_> = subjects.iter().filter_map(|subject| inner.open.get(subject)).flatten().collect();
        let repeats = open.iter().any(|open| open.act == intent.act);
        let here = |open: &&&Open| open.act.node.is_none() || open.act.node == intent.act.node;
        if let Some(other) = open.iter().find(here)
            && intent.undoes == Undoes::Nothing
            && !repeats
        {
            return Err(Refusal::Unsettled(other.act.method));
        }
        inner.running.extend(subjects.iter().cloned());
        for source in &intent.sources {
            let readers = inner.read.entry(source.clone()).or_default();
            *readers = readers.saturating_add(1);
        }
        Ok(Arc::new(Guard { guards: self.clone(), intent, subjects, repeats, owing: AtomicBool::new(false) }))
    }

    /// How many outcomes are open.
    pub fn unsettled(&self) -> usize {
        self.lock().ages.len()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guard {
    /// Keeps an outcome open that a failure does not settle: when the same call has been made before, a try that did nothing
    /// says nothing about that one.
    pub fn doubt(&self, mut error: StorageError) -> StorageError {
        if self.repeats && error.finality == Finality::Final && error.kind.tells_of_the_try() {
            error.finality = Finality::Unknown;
        }
        error
    }

    /// Says that the guest is about to be asked: from here on the outcome is open until it is settled.
    pub fn reach(&self) {
        self.owing.store(true, Ordering::Release);
    }

    /// Remembers how the call ended, if it reached the guest.
    pub fn settle(&self, error: Option<&StorageError>) {
        if !self.owing.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut inner = self.guards.lock();
        let Intent { subject, act, undoes, .. } = &self.intent;
        let gone =
            error.is_some_and(|error| error.finality == Finality::Final && error.kind == ErrorKind::NotFound);
        let settled = |open: &Act| match (error, undoes) {
            (None, Undoes::Everything) => true,
            // What is not there is not published there.
            (_, Undoes::OfNode(method)) if error.is_none() || gone => {
                open == act || (open.method == *method && (act.node.is_none() || open.node == act.node))
            }
            (None, Undoes::Nothing | Undoes::OfNode(_)) | (Some(_), _) => open == act,
        };
        for subject in &self.subjects {
            inner.forget(subject, settled);
        }
        match error.map(|error| error.finality) {
            Some(Finality::Unknown | Finality::InProgress) => inner.remember(subject, act),
            Some(Finality::Final) | None => {}
        }
    }

    /// Remembers the handle of what was created.
    pub fn created(&self, handle: Subject) {
        let mut inner = self.guards.lock();
        if inner.aliases.len() >= 2 * REMEMBERED {
            // Which one is of no matter: the alias only makes a rare race of two callers impossible.
            if let Some(some) = inner.aliases.keys().next().cloned() {
                inner.part(&some);
            }
        }
        inner.part(&handle);
        inner.part(&self.intent.subject);
        inner.aliases.insert(handle.clone(), self.intent.subject.clone());
        inner.aliases.insert(self.intent.subject.clone(), handle);
    }

    /// Forgets the name of what was deleted.
    pub fn deleted(&self) {
        self.guards.lock().part(&self.intent.subject);
    }
}

impl Inner {
    /// Forgets that two subjects are one.
    fn part(&mut self, subject: &Subject) {
        if let Some(other) = self.aliases.remove(subject) {
            self.aliases.remove(&other);
        }
    }

    fn forget(&mut self, subject: &Subject, settled: impl Fn(&Act) -> bool) {
        let Some(open) = self.open.get_mut(subject) else { return };
        let ages = &mut self.ages;
        open.retain(|open| {
            let forgotten = settled(&open.act);
            if forgotten {
                ages.remove(&open.age);
            }
            !forgotten
        });
        if open.is_empty() {
            self.open.remove(subject);
        }
    }

    fn remember(&mut self, subject: &Subject, act: &Act) {
        if self.ages.len() >= REMEMBERED
            && let Some((oldest, of)) = self.ages.pop_first()
            && let Some(open) = self.open.get_mut(&of)
        {
            open.retain(|open| open.age != oldest);
            if open.is_empty() {
                self.open.remove(&of);
            }
        }
        self.age = self.age.saturating_add(1);
        let open = Open { act: act.clone(), age: self.age };
        self.open.entry(subject.clone()).or_default().push(open);
        self.ages.insert(self.age, subject.clone());
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut inner = self.guards.lock();
        if *self.owing.get_mut() {
            // The host failed between the guest and here: nobody knows what happened.
            inner.remember(&self.intent.subject, &self.intent.act);
        }
        for subject in &self.subjects {
            inner.running.remove(subject);
        }
        for source in &self.intent.sources {
            if let Some(readers) = inner.read.get_mut(source) {
                *readers = readers.saturating_sub(1);
                if *readers == 0 {
                    inner.read.remove(source);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(arguments: u32) -> Intent {
        Intent::new(Subject::Name("v".into()), "create", &arguments)
    }

    fn volume(method: &'static str) -> Intent {
        Intent::new(Subject::Volume("h".into()), method, &0)
    }

    fn delete() -> Intent {
        Intent::deleting(Subject::Volume("h".into()), "delete", &0)
    }

    fn publish(node: &str, arguments: u32) -> Intent {
        let intent = Intent::new(Subject::Volume("h".into()), "publish", &(node, arguments));
        intent.of_node(Some(NodeId::new(node)))
    }

    fn unpublish(node: Option<&str>) -> Intent {
        let intent = Intent::new(Subject::Volume("h".into()), "unpublish", &node);
        intent.undoing("publish", node.map(NodeId::new))
    }

    fn open() -> StorageError {
        StorageError::unknown(ErrorKind::DeadlineExceeded, "?")
    }

    fn last() -> StorageError {
        StorageError::last(ErrorKind::OutOfRange, "no")
    }

    /// Lets a call reach its guest and end.
    fn end(guards: &Guards, intent: Intent, error: Option<StorageError>) {
        let guard = guards.take(intent).unwrap();
        guard.reach();
        guard.settle(error.as_ref());
    }

    /// A call that was given its subject, and did nothing with it.
    fn admitted(guards: &Guards, intent: Intent) -> Result<(), Refusal> {
        guards.take(intent).map(drop)
    }

    #[test]
    fn a_volume_has_one_call() {
        let guards = Guards::default();
        let first = guards.take(name(1)).unwrap();
        assert_eq!(admitted(&guards, name(1)), Err(Refusal::Busy));
        assert_eq!(admitted(&guards, volume("expand")), Ok(()));
        let exchange = Arc::clone(&first);
        drop(first);
        assert_eq!(admitted(&guards, name(1)), Err(Refusal::Busy), "what it began still runs");
        drop(exchange);
        assert_eq!(admitted(&guards, name(1)), Ok(()));
    }

    #[test]
    fn what_is_open_at_one_node_holds_up_no_other() {
        // The node died; whoever unpublished from it may have been removed by force.
        let guards = Guards::default();
        end(&guards, unpublish(Some("dead")), Some(open()));
        assert_eq!(admitted(&guards, publish("healthy", 0)), Ok(()));
        assert_eq!(admitted(&guards, volume("expand")), Ok(()));
        assert_eq!(admitted(&guards, publish("dead", 0)), Err(Refusal::Unsettled("unpublish")));
        // What is open for the volume holds up everybody.
        end(&guards, volume("expand"), Some(open()));
        assert_eq!(admitted(&guards, publish("healthy", 0)), Err(Refusal::Unsettled("expand")));
        // The node has another name by now: of the former one nothing is left open.
        let guards = Guards::default();
        end(&guards, publish("former", 0), Some(open()));
        let missing = StorageError::last(ErrorKind::NotFound, "no such node");
        end(&guards, unpublish(Some("former")), Some(missing));
        assert_eq!(guards.unsettled(), 0);
        // Any other failure settles nothing but itself.
        end(&guards, publish("n", 0), Some(open()));
        end(&guards, unpublish(Some("n")), Some(last()));
        assert_eq!(admitted(&guards, publish("n", 1)), Err(Refusal::Unsettled("publish")));
    }

    #[test]
    fn what_is_read_from_is_not_changed_meanwhile() {
        let guards = Guards::default();
        let source = || [Subject::Volume("h".into())];
        let copy =
            |name: &str| Intent::new(Subject::Name(name.into()), "create-from-volume", &0).from(source());
        let first = guards.take(copy("a")).unwrap();
        let second = guards.take(copy("b")).unwrap();
        drop(first);
        assert_eq!(admitted(&guards, delete()), Err(Refusal::Busy));
        drop(second);
        let deletion = guards.take(delete()).unwrap();
        assert_eq!(admitted(&guards, copy("a")), Err(Refusal::Busy));
        drop(deletion);
        assert_eq!(admitted(&guards, copy("a")), Ok(()));
        assert_eq!(admitted(&guards, delete()), Ok(()));
    }

    #[test]
    fn a_name_and_its_handle_are_one_volume() {
        let guards = Guards::default();
        let create = guards.take(name(1)).unwrap();
        create.created(Subject::Volume("h".into()));
        drop(create);
        let repeated = guards.take(name(1)).unwrap();
        assert_eq!(admitted(&guards, delete()), Err(Refusal::Busy));
        drop(repeated);
        // An outcome that is open under one name is open under the other.
        end(&guards, name(1), Some(open()));
        assert_eq!(admitted(&guards, volume("expand")), Err(Refusal::Unsettled("create")));
        end(&guards, delete(), Some(open()));
        assert_eq!(admitted(&guards, name(2)), Err(Refusal::Unsettled("create")));
        let deletion = guards.take(delete()).unwrap();
        assert_eq!(admitted(&guards, name(1)), Err(Refusal::Busy));
        deletion.reach();
        deletion.settle(None);
        deletion.deleted();
        drop(deletion);
        let _create = guards.take(name(2)).unwrap();
        assert_eq!(admitted(&guards, delete()), Ok(()), "forgotten");
        assert_eq!(guards.unsettled(), 0);
    }

    #[test]
    fn after_an_open_outcome_only_the_same_call_follows() {
        let guards = Guards::default();
        end(&guards, name(1), Some(open()));
        assert_eq!(admitted(&guards, name(2)), Err(Refusal::Unsettled("create")));
        end(&guards, name(1), Some(last()));
        assert_eq!(admitted(&guards, name(2)), Ok(()));
        assert_eq!(guards.unsettled(), 0);
        // A call that was refused before it reached the guest leaves everything as it was.
        end(&guards, name(1), Some(open()));
        guards.take(name(1)).unwrap().settle(Some(&last()));
        assert_eq!(admitted(&guards, name(2)), Err(Refusal::Unsettled("create")));
    }

    #[test]
    fn a_try_that_did_nothing_does_not_settle_the_one_before() {
        let guards = Guards::default();
        let refused = |kind| StorageError::last(kind, "no connection");
        let first = guards.take(name(1)).unwrap();
        assert_eq!(first.doubt(refused(ErrorKind::Unavailable)).finality, Finality::Final);
        first.reach();
        first.settle(Some(&open()));
        drop(first);
        let second = guards.take(name(1)).unwrap();
        assert_eq!(second.doubt(refused(ErrorKind::Unavailable)).finality, Finality::Unknown);
        assert_eq!(second.doubt(refused(ErrorKind::OutOfRange)).finality, Finality::Final);
    }

    #[test]
    fn a_deletion_is_always_allowed_and_settles_everything_when_it_succeeds() {
        let guards = Guards::default();
        end(&guards, volume("expand"), Some(open()));
        assert_eq!(admitted(&guards, volume("modify")), Err(Refusal::Unsettled("expand")));
        // One that fails for good has changed nothing: the outcome of the expansion is still open.
        end(&guards, delete(), Some(last()));
        assert_eq!(admitted(&guards, volume("modify")), Err(Refusal::Unsettled("expand")));
        end(&guards, delete(), Some(open()));
        assert_eq!(guards.unsettled(), 2);
        assert_eq!(admitted(&guards, volume("expand")), Ok(()), "the same call as one of the open ones");
        end(&guards, delete(), None);
        assert_eq!(admitted(&guards, volume("modify")), Ok(()));
        assert_eq!(guards.unsettled(), 0);
    }

    #[test]
    fn unpublishing_undoes_the_publishing_of_its_node_and_nothing_else() {
        let guards = Guards::default();
        end(&guards, volume("expand"), Some(open()));
        end(&guards, unpublish(Some("a")), None);
        assert_eq!(admitted(&guards, volume("modify")), Err(Refusal::Unsettled("expand")));
        end(&guards, volume("expand"), None);
        end(&guards, publish("a", 1), Some(open()));
        end(&guards, unpublish(Some("b")), None);
        assert_eq!(admitted(&guards, publish("a", 2)), Err(Refusal::Unsettled("publish")));
        end(&guards, unpublish(Some("a")), Some(last()));
        assert_eq!(admitted(&guards, publish("a", 2)), Err(Refusal::Unsettled("publish")));
        end(&guards, unpublish(Some("a")), None);
        assert_eq!(admitted(&guards, publish("a", 2)), Ok(()));
        end(&guards, publish("a", 1), Some(open()));
        end(&guards, unpublish(None), None);
        assert_eq!(guards.unsettled(), 0);
    }

    #[test]
    fn a_host_that_fails_leaves_an_open_outcome() {
        let guards = Guards::default();
        let guard = guards.take(name(1)).unwrap();
        guard.reach();
        drop(guard);
        assert_eq!(admitted(&guards, name(2)), Err(Refusal::Unsettled("create")));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let guards = Guards::default();
        let numbered = |number: usize, arguments: u32| {
            Intent::new(Subject::Name(number.to_string().into()), "create", &arguments)
        };
        for number in 0..=REMEMBERED {
            end(&guards, numbered(number, 1), Some(open()));
            let guard = guards.take(numbered(number, 1)).unwrap();
            guard.created(Subject::Volume(format!("h{number}").into()));
        }
        assert_eq!(guards.unsettled(), REMEMBERED);
        assert_eq!(admitted(&guards, numbered(0, 2)), Ok(()), "the oldest is forgotten");
        assert!(admitted(&guards, numbered(1, 2)).is_err());
        let inner = guards.lock();
        assert!(inner.aliases.len() <= 2 * REMEMBERED && inner.open.len() == REMEMBERED);
        assert!(inner.running.is_empty() && inner.read.is_empty());
    }
}
