//! Lock files: only one backend of one process at a time uses a state file or a pool's directory.

use std::{
    fs::{File, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
};

/// A lock file that this process cannot lock or write. The message follows the name of what the lock
/// protects.
#[derive(Debug, thiserror::Error)]
pub enum LockFileError {
    /// Another backend of this process has the lock: the file has this process' ID. A process of another PID
    /// namespace with the same ID looks the same.
    #[error("is in use by another backend of this process")]
    OwnProcess,
    /// Another process has the lock; its ID, as the file names it.
    #[error("is in use by the process {0}; expected to be its only user")]
    Process(u32),
    /// Another process has the lock, and the file does not name it.
    #[error("is in use by another process; expected to be its only user")]
    UnknownProcess,
    /// The system cannot lock the file.
    #[error("cannot be locked: {0}")]
    Lock(#[source] io::Error),
    /// The id of this process cannot be written into the file.
    #[error("has a lock file that cannot be written: {0}")]
    Write(#[source] io::Error),
}

/// A lock file that this process has locked. The kernel releases the lock when this is dropped, and when the
/// process ends, also by a crash.
#[derive(Debug)]
pub(crate) struct LockFile {
    _lock: File,
}

impl LockFile {
    /// Locks an open lock file and writes the ID of this process into it.
    ///
    /// # Errors
    /// Another backend or process has the lock, or the file cannot be locked or written.
    pub(crate) fn acquire(mut lock: File) -> Result<Self, LockFileError> {
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(&mut lock)),
            Err(TryLockError::Error(error)) => return Err(LockFileError::Lock(error)),
        }
        let write = |lock: &mut File| {
            lock.set_len(0)?;
            lock.rewind()?;
            writeln!(lock, "{}", std::process::id())
        };
        write(&mut lock).map_err(LockFileError::Write)?;
        Ok(Self { _lock: lock })
    }
}

/// The error for a lock in use. The lock file names the owner, unless the owner has not written its id yet.
fn in_use(lock: &mut File) -> LockFileError {
    /// More digits than any process id has.
    const MAX_PID_BYTES: u64 = 16;
    let mut text = String::new();
    let read = lock.take(MAX_PID_BYTES).read_to_string(&mut text);
    match read.ok().and_then(|_| text.trim().parse::<u32>().ok()) {
        Some(pid) if pid == std::process::id() => LockFileError::OwnProcess,
        Some(pid) => LockFileError::Process(pid),
        None => LockFileError::UnknownProcess,
    }
}
