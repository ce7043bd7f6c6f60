//! One call at a time for a volume.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use cofferdam_domain::VolumeHandle;

/// What a call is about: a volume that has no handle yet, or one that has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// A volume that is being created.
    Name(Box<str>),
    /// A volume that exists.
    Handle(VolumeHandle),
}

/// The volumes that calls are running for. Bounded by the number of calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guards(Arc<Mutex<HashSet<Subject>>>);

/// Keeps a volume to one call until it is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    guards: Guards,
    subject: Subject,
}

impl Guards {
    /// Takes a volume; `None` when another call has it.
    pub(crate) fn take(&self, subject: Subject) -> Option<Guard> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.insert(subject.clone()).then(|| Guard { guards: self.clone(), subject })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.guards.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.subject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_one_call() {
        let guards = Guards::default();
        let name = || Subject::Name("v".into());
        let first = guards.take(name());
        assert!(first.is_some() && guards.take(name()).is_none());
        assert!(guards.take(Subject::Handle("v".into())).is_some());
        drop(first);
        assert!(guards.take(name()).is_some());
    }
}
