//! One operation at a time for a volume, a snapshot or a name.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cofferdam_backend::guard::Subject;
use tonic::Status;

/// The operations of one server. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Locks(Arc<Mutex<HashSet<Subject>>>);

/// Keeps what an operation is about until it is dropped. It can be moved into the task that does the work.
#[derive(Debug)]
#[must_use = "the operation ends with it"]
pub struct Lock {
    locks: Locks,
    subject: Subject,
}

impl Locks {
    /// Begins an operation.
    ///
    /// # Errors
    /// `ABORTED` while another operation on the same subject runs, as CSI wants it.
    pub fn take(&self, subject: Subject) -> Result<Lock, Status> {
        if self.lock().insert(subject.clone()) {
            Ok(Lock { locks: self.clone(), subject })
        } else {
            Err(Status::aborted(format!("another operation for this {} is running", what(&subject))))
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Subject>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.locks.lock().remove(&self.subject);
    }
}

const fn what(subject: &Subject) -> &'static str {
    match subject {
        Subject::Name(_) => "volume name",
        Subject::Volume(_) => "volume",
        Subject::SnapshotName(_) => "snapshot name",
        Subject::Snapshot(_) => "snapshot",
        Subject::GroupName(_) => "group snapshot name",
        Subject::Group(_) => "group snapshot",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_operation_is_aborted() {
        let locks = Locks::default();
        let volume = || Subject::Volume("v".into());
        let held = locks.take(volume()).unwrap();
        let refused = locks.clone().take(volume()).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Aborted);
        assert_eq!(refused.message(), "another operation for this volume is running");
        let _name = locks.take(Subject::Name("v".into())).expect("a name is not an id");
        let _other = locks.take(Subject::Volume("w".into())).expect("another volume");
        drop(held);
        let _again = locks.take(volume()).expect("the first one has ended");
    }

    #[test]
    fn a_panic_lets_go() {
        let locks = Locks::default();
        let inner = locks.clone();
        let ended = std::thread::spawn(move || {
            let _held = inner.take(Subject::Volume("v".into())).unwrap();
            panic!("on purpose");
        })
        .join();
        assert!(ended.is_err());
        let _again = locks.take(Subject::Volume("v".into())).expect("the first one has ended");
    }
}
