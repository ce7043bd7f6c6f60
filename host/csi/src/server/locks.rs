//! One operation at a time for a volume, a snapshot or a name.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cofferdam_backend::in_flight::OperationKey;
use tonic::Status;

/// The operations of one server. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Locks(Arc<Mutex<HashSet<OperationKey>>>);

/// Keeps what an operation is about until it is dropped. It can be moved into the task that does the work.
#[derive(Debug)]
#[must_use = "the operation ends with it"]
pub struct Lock {
    locks: Locks,
    subject: OperationKey,
}

impl Locks {
    /// Begins an operation.
    ///
    /// # Errors
    /// `ABORTED` while another operation on the same subject runs, as CSI wants it.
    pub fn take(&self, subject: OperationKey) -> Result<Lock, Status> {
        if self.lock().insert(subject.clone()) {
            Ok(Lock { locks: self.clone(), subject })
        } else {
            Err(Status::aborted(format!("another operation for this {} is running", what(&subject))))
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<OperationKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.locks.lock().remove(&self.subject);
    }
}

const fn what(subject: &OperationKey) -> &'static str {
    match subject {
        OperationKey::VolumeName(_) => "volume name",
        OperationKey::Volume(_) => "volume",
        OperationKey::SnapshotName(_) => "snapshot name",
        OperationKey::Snapshot(_) => "snapshot",
        OperationKey::GroupSnapshotName(_) => "group snapshot name",
        OperationKey::GroupSnapshot(_) => "group snapshot",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_operation_is_aborted() {
        let locks = Locks::default();
        let volume = || OperationKey::Volume("v".into());
        let held = locks.take(volume()).unwrap();
        let refused = locks.clone().take(volume()).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Aborted);
        assert_eq!(refused.message(), "another operation for this volume is running");
        let _name = locks.take(OperationKey::VolumeName("v".into())).expect("a name is not an id");
        let _other = locks.take(OperationKey::Volume("w".into())).expect("another volume");
        drop(held);
        let _again = locks.take(volume()).expect("the first one has ended");
    }

    #[test]
    fn a_panic_lets_go() {
        let locks = Locks::default();
        let inner = locks.clone();
        let ended = std::thread::spawn(move || {
            let _held = inner.take(OperationKey::Volume("v".into())).unwrap();
            panic!("on purpose");
        })
        .join();
        assert!(ended.is_err());
        let _again = locks.take(OperationKey::Volume("v".into())).expect("the first one has ended");
    }
}
