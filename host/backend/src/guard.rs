//! One call at a time for a volume or snapshot, and only the right one after a call whose outcome nobody knows.
//!
//! After `unknown` or `in-progress` only the same call with the same arguments may follow, until it is final, or the call that
//! undoes it (contract, rule 4). A guard is shared: what a call has begun outside of the sandbox, an HTTP exchange or a copy
//! in the pool, holds it until that has ended, also when the call itself is long over.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cofferdam_domain::{
    GroupSnapshotHandle, SnapshotHandle, VolumeHandle,
    storage::{Finality, StorageError},
};

/// Most subjects that are remembered with an open outcome, and most names with their handles. Ten times what one backend has
/// under way at once; the oldest is forgotten first, and then only the caller's own discipline is left.
const REMEMBERED: usize = 10_240;

/// What a call is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
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

/// What a call wants with its subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Intent {
    subject: Subject,
    method: &'static str,
    arguments: u64,
    undoes: bool,
}

impl Intent {
    /// A call with its arguments.
    pub(crate) fn new(subject: Subject, method: &'static str, arguments: &impl Hash) -> Self {
        // Only compared with itself within this process, where the hasher's keys are fixed.
        let mut hasher = DefaultHasher::new();
        arguments.hash(&mut hasher);
        Self { subject, method, arguments: hasher.finish(), undoes: false }
    }

    /// A call that undoes what others do: it is always allowed.
    pub(crate) fn undoing(subject: Subject, method: &'static str, arguments: &impl Hash) -> Self {
        Self { undoes: true, ..Self::new(subject, method, arguments) }
    }
}

/// Why a call has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Another call is running, or something that it began.
    Busy,
    /// The outcome of this other call is open.
    Unsettled(&'static str),
}

/// The subjects of one backend.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guards(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    running: HashSet<Subject>,
    unsettled: HashMap<Subject, Unsettled>,
    /// The unsettled by age.
    ages: BTreeMap<u64, Subject>,
    age: u64,
    /// The names of volumes that were created here, so that a deletion and a repeated creation meet.
    names: HashMap<VolumeHandle, Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unsettled {
    method: &'static str,
    arguments: u64,
    age: u64,
}

/// Keeps a subject to one call until the last clone is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    guards: Guards,
    intent: Intent,
    subjects: Vec<Subject>,
}

impl Guards {
    /// Takes a subject for a call.
    pub(crate) fn take(&self, intent: Intent) -> Result<Arc<Guard>, Refusal> {
        let mut inner = self.lock();
        let mut subjects = vec![intent.subject.clone()];
        if let Subject::Volume(handle) = &intent.subject
            && let Some(name) = inner.names.get(handle)
        {
            subjects.push(Subject::Name(name.clone()));
        }
        if subjects.iter().any(|subject| inner.running.contains(subject)) {
            return Err(Refusal::Busy);
        }
        if let Some(open) = inner.unsettled.get(&intent.subject)
            && !intent.undoes
            && (open.method, open.arguments) != (intent.method, intent.arguments)
        {
            return Err(Refusal::Unsettled(open.method));
        }
        inner.running.extend(subjects.iter().cloned());
        Ok(Arc::new(Guard { guards: self.clone(), intent, subjects }))
    }

    /// How many subjects have an open outcome.
    pub(crate) fn unsettled(&self) -> usize {
        self.lock().unsettled.len()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guard {
    /// Remembers how the call ended, if it reached the guest.
    pub(crate) fn settle(&self, error: Option<&StorageError>) {
        let mut inner = self.guards.lock();
        inner.forget(&self.intent.subject);
        match error.map(|error| error.finality) {
            Some(Finality::Unknown | Finality::InProgress) => inner.remember(&self.intent),
            Some(Finality::Final) => {}
            // What was undone leaves nothing open of the creation either.
            None if self.intent.undoes => {
                for subject in &self.subjects {
                    inner.forget(subject);
                }
            }
            None => {}
        }
    }

    /// Remembers the handle of a created volume.
    pub(crate) fn created(&self, handle: &VolumeHandle) {
        if let Subject::Name(name) = &self.intent.subject {
            let mut inner = self.guards.lock();
            if inner.names.len() >= REMEMBERED {
                // Which one is of no matter: the alias only makes a rare race of two callers impossible.
                let some = inner.names.keys().next().cloned();
                some.map(|handle| inner.names.remove(&handle));
            }
            inner.names.insert(handle.clone(), name.clone());
        }
    }

    /// Forgets the name of a deleted volume.
    pub(crate) fn deleted(&self) {
        if let Subject::Volume(handle) = &self.intent.subject {
            self.guards.lock().names.remove(handle);
        }
    }
}

impl Inner {
    fn forget(&mut self, subject: &Subject) {
        if let Some(open) = self.unsettled.remove(subject) {
            self.ages.remove(&open.age);
        }
    }

    fn remember(&mut self, intent: &Intent) {
        if self.unsettled.len() >= REMEMBERED
            && let Some((_, oldest)) = self.ages.pop_first()
        {
            self.unsettled.remove(&oldest);
        }
        self.age = self.age.saturating_add(1);
        let open = Unsettled { method: intent.method, arguments: intent.arguments, age: self.age };
        self.unsettled.insert(intent.subject.clone(), open);
        self.ages.insert(self.age, intent.subject.clone());
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut inner = self.guards.lock();
        for subject in &self.subjects {
            inner.running.remove(subject);
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::storage::ErrorKind;

    use super::*;

    fn name(arguments: u32) -> Intent {
        Intent::new(Subject::Name("v".into()), "create", &arguments)
    }

    fn volume(method: &'static str) -> Intent {
        Intent::new(Subject::Volume("h".into()), method, &0)
    }

    fn delete() -> Intent {
        Intent::undoing(Subject::Volume("h".into()), "delete", &0)
    }

    fn open() -> StorageError {
        StorageError::unknown(ErrorKind::DeadlineExceeded, "?")
    }

    #[test]
    fn a_volume_has_one_call() {
        let guards = Guards::default();
        let first = guards.take(name(1)).unwrap();
        assert_eq!(guards.take(name(1)).unwrap_err(), Refusal::Busy);
        assert!(guards.take(volume("expand")).is_ok());
        let exchange = Arc::clone(&first);
        drop(first);
        assert_eq!(guards.take(name(1)).unwrap_err(), Refusal::Busy, "what it began still runs");
        drop(exchange);
        assert!(guards.take(name(1)).is_ok());
    }

    #[test]
    fn a_name_and_its_handle_are_one_volume() {
        let guards = Guards::default();
        let create = guards.take(name(1)).unwrap();
        create.created(&"h".into());
        drop(create);
        let repeated = guards.take(name(1)).unwrap();
        assert_eq!(guards.take(delete()).unwrap_err(), Refusal::Busy);
        drop(repeated);
        let deletion = guards.take(delete()).unwrap();
        assert_eq!(guards.take(name(1)).unwrap_err(), Refusal::Busy);
        deletion.deleted();
        drop(deletion);
        let _create = guards.take(name(1)).unwrap();
        assert!(guards.take(delete()).is_ok(), "forgotten");
    }

    #[test]
    fn after_an_open_outcome_only_the_same_call_follows() {
        let guards = Guards::default();
        guards.take(name(1)).unwrap().settle(Some(&open()));
        assert_eq!(guards.take(name(2)).unwrap_err(), Refusal::Unsettled("create"));
        let again = guards.take(name(1)).unwrap();
        again.settle(Some(&StorageError::last(ErrorKind::OutOfRange, "no")));
        drop(again);
        assert!(guards.take(name(2)).is_ok());
        assert_eq!(guards.unsettled(), 0);
    }

    #[test]
    fn the_undoing_call_is_always_allowed_and_settles() {
        let guards = Guards::default();
        guards.take(volume("expand")).unwrap().settle(Some(&open()));
        assert_eq!(guards.take(volume("modify")).unwrap_err(), Refusal::Unsettled("expand"));
        guards.take(delete()).unwrap().settle(Some(&open()));
        assert_eq!(guards.take(volume("expand")).unwrap_err(), Refusal::Unsettled("delete"));
        guards.take(delete()).unwrap().settle(None);
        assert!(guards.take(volume("expand")).is_ok());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let guards = Guards::default();
        let numbered = |number: usize, arguments: u32| {
            Intent::new(Subject::Name(number.to_string().into()), "create", &arguments)
        };
        for number in 0..=REMEMBERED {
            guards.take(numbered(number, 1)).unwrap().settle(Some(&open()));
        }
        assert_eq!(guards.unsettled(), REMEMBERED);
        assert!(guards.take(numbered(0, 2)).is_ok(), "the oldest is forgotten");
        assert!(guards.take(numbered(1, 2)).is_err());
    }
}
