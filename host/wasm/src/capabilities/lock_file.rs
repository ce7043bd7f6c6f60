//! One owner: what a backend keeps on the disk belongs to one process at a time, and to one backend of it.

use std::{
    fs::{File, TryLockError},
    io::{Read as _, Seek as _, Write as _},
};

/// A lock file in the hands of this process. The system takes it back when the process ends, in whatever way.
#[derive(Debug)]
pub(crate) struct LockFile {
    _lock: File,
}

impl LockFile {
    /// Takes an open lock file and writes this process into it.
    ///
    /// # Errors
    /// Who has it, or what the system said.
    pub(crate) fn acquire(mut lock: File) -> Result<Self, String> {
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(format!("is in use by {}", describe_owner(&mut lock)));
            }
            Err(TryLockError::Error(error)) => return Err(format!("cannot be locked: {error}")),
        }
        let write = |lock: &mut File| {
            lock.set_len(0)?;
            lock.rewind()?;
            writeln!(lock, "{}", std::process::id())
        };
        write(&mut lock).map_err(|error| format!("has a lock file that cannot be written: {error}"))?;
        Ok(Self { _lock: lock })
    }
}

/// The owner of a lock according to the lock file.
fn describe_owner(lock: &mut File) -> String {
    /// More digits than any process id has.
    const MAX_PID_BYTES: u64 = 16;
    let mut text = String::new();
    let read = lock.take(MAX_PID_BYTES).read_to_string(&mut text);
    match read.ok().and_then(|_| text.trim().parse::<u32>().ok()) {
        Some(pid) if pid == std::process::id() => "another backend of this process".to_owned(),
        Some(pid) => format!("the process {pid}; expected to be its only user"),
        None => "another process; expected to be its only user".to_owned(),
    }
}
