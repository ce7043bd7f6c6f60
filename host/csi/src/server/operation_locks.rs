//! One operation at a time for a volume, a snapshot or a name.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cofferdam_backend::in_flight::OperationKey;
use tonic::Status;

/// The operations of one server. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct OperationLocks(Arc<Mutex<HashSet<OperationKey>>>);

/// Keeps what an operation is about until it is dropped. It can be moved into the task that does the work.
#[derive(Debug)]
#[must_use = "the operation ends with it"]
pub struct OperationLock {
    locks: OperationLocks,
    key: OperationKey,
}

impl OperationLocks {
    /// Begins an operation.
    ///
    /// # Errors
    /// `ABORTED` while another operation on the same subject runs, as CSI wants it.
    pub fn try_acquire(&self, key: OperationKey) -> Result<OperationLock, Status> {
        if self.lock().insert(key.clone()) {
            Ok(OperationLock { locks: self.clone(), key })
        } else {
            Err(Status::aborted(format!("another operation for this {} is running", key_description(&key))))
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<OperationKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OperationLock {
    fn drop(&mut self) {
        self.locks.lock().remove(&self.key);
    }
}

const fn key_description(key: &OperationKey) -> &'static str {
    match key {
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
    fn second_operation_on_the_same_volume_is_aborted() {
        let locks = OperationLocks::default();
        let volume = || OperationKey::Volume("v".into());
        let first = locks.try_acquire(volume()).unwrap();
        let error = locks.clone().try_acquire(volume()).unwrap_err();
        assert_eq!(error.code(), tonic::Code::Aborted);
        assert_eq!(error.message(), "another operation for this volume is running");
        let _name = locks.try_acquire(OperationKey::VolumeName("v".into())).expect("a name is not an id");
        let _other = locks.try_acquire(OperationKey::Volume("w".into())).expect("another volume");
        drop(first);
        let _again = locks.try_acquire(volume()).expect("the first one has ended");
    }

    #[test]
    fn panic_releases_the_operation_lock() {
        let locks = OperationLocks::default();
        let inner = locks.clone();
        let result = std::thread::spawn(move || {
            let _held = inner.try_acquire(OperationKey::Volume("v".into())).unwrap();
            panic!("on purpose");
        })
        .join();
        assert!(result.is_err());
        let _again = locks.try_acquire(OperationKey::Volume("v".into())).expect("the first one has ended");
    }
}
