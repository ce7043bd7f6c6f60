//! A disk for tests that can be full.

use std::{cell::Cell, fs::File, io, ops::Bound};

use redb::{BackendError, DatabaseError, StorageBackend, backends::FileBackend};

thread_local! {
    /// True while the disk is full.
    pub(super) static IS_DISK_FULL: Cell<bool> = const { Cell::new(false) };
}

/// A file on a disk that can be full.
#[derive(Debug)]
pub(super) struct FullableFile(FileBackend);

pub(super) fn new_backend(file: File) -> Result<FullableFile, DatabaseError> {
    FileBackend::new(file).map(FullableFile)
}

impl StorageBackend for FullableFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match IS_DISK_FULL.get() {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.0.write(offset, data),
        }
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}
