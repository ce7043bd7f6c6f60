//! Locks that allow one operation at a time per volume, snapshot or group snapshot, and one creation at a
//! time per name of such an object.

use std::{collections::HashSet, sync::Arc};

use cofferdam_backend::in_flight::OperationKey;
use parking_lot::Mutex;
use tonic::Status;

/// The locks of one server. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct OperationLocks(Arc<Mutex<HashSet<OperationKey>>>);

/// A lock of one object, released on drop. It can be moved into the task that runs the operation.
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub struct OperationLock {
    locks: OperationLocks,
    key: OperationKey,
}

impl OperationLocks {
    /// Locks an object.
    ///
    /// # Errors
    /// `ABORTED` while another operation on the object runs, as CSI recommends.
    pub fn try_acquire(&self, key: OperationKey) -> Result<OperationLock, Status> {
        if self.0.lock().insert(key.clone()) {
            Ok(OperationLock { locks: self.clone(), key })
        } else {
            Err(Status::aborted(format!("another operation for this {} is running", key_description(&key))))
        }
    }
}

impl Drop for OperationLock {
    fn drop(&mut self) {
        self.locks.0.lock().remove(&self.key);
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
        let _name =
            locks.try_acquire(OperationKey::VolumeName("v".into())).expect("names and ids do not conflict");
        let _other = locks.try_acquire(OperationKey::Volume("w".into())).expect("volumes do not conflict");
        drop(first);
        let _again = locks.try_acquire(volume()).expect("the first lock is released");
    }

    #[test]
    fn panic_releases_the_operation_lock() {
        let locks = OperationLocks::default();
        let inner = locks.clone();
        let result = std::thread::spawn(move || {
            let _lock = inner.try_acquire(OperationKey::Volume("v".into())).unwrap();
            panic!("on purpose");
        })
        .join();
        assert!(result.is_err());
        let _again = locks.try_acquire(OperationKey::Volume("v".into())).expect("the first lock is released");
    }
}
