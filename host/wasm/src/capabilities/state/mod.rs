//! `state`: keyed blobs with compare-and-swap, in memory or in a file, bounded in bytes.
//!
//! [`memory`] and [`file`](mod@file) store the entries, by the same [`rules`].

pub(crate) mod file;
#[cfg(test)]
mod full_disk;
mod memory;
mod rules;

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Mutex, oneshot},
    time::{Instant, timeout, timeout_at},
};
use wasmtime::component::HasData;

use self::{
    file::{FileBlobs, StateFileError},
    memory::MemoryBlobs,
    rules::{MAX_KEY, PageBuilder, StateCommitError, bound, check_batch, check_key},
};
use super::workers::Workers;
use crate::{
    bindings::cofferdam::storage::state::{Change, Entry, Host, Page, StateError},
    failure::task_failure,
    fault_injection::FaultPlan,
};
use cofferdam_backend::{CallContext, in_flight::OperationPermit};

/// Storage of the `state` import: `[backend.NAME.state]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct StateConfig {
    /// The state file. It is created if it does not exist; its directory must exist. Without a file the state
    /// is in memory and ends with the process.
    pub file: Option<PathBuf>,
}

/// Maximum time for which a call has the [`RetryLock`].
const MAX_RETRY_LOCK_HOLD: Duration = Duration::from_millis(100);
/// Time before its deadline at which a call continues without the [`RetryLock`].
const RETRY_LOCK_MARGIN: Duration = Duration::from_secs(1);

/// The blobs of one backend.
#[derive(Debug)]
pub(crate) struct StateStore {
    blobs: BlobStore,
    workers: Workers,
    retry_lock: Arc<Mutex<()>>,
}

/// A call's use of the store's lock for calls whose commits conflicted. They read and commit again one after
/// the other: if they did so at the same time, one of them would succeed, and the others would conflict
/// again.
#[derive(Debug, Default)]
pub(crate) enum RetryLock {
    /// No commit of the call has conflicted since the last one that did not.
    #[default]
    NotNeeded,
    /// A commit of the call has conflicted: the next access to the store waits for the lock.
    Needed,
    /// The call has the lock until this sender is dropped, and at most for [`MAX_RETRY_LOCK_HOLD`].
    Held(oneshot::Sender<()>),
}

#[derive(Debug)]
enum BlobStore {
    Memory(MemoryBlobs),
    File(FileBlobs),
}

impl StateStore {
    /// An empty store in memory, of at most `limit` bytes.
    pub(crate) fn in_memory(limit: usize) -> Self {
        Self::new(BlobStore::Memory(MemoryBlobs::new(limit)))
    }

    /// Opens the configured store, of at most `limit` bytes. Blocks on the disk.
    ///
    /// # Errors
    /// The file cannot be used.
    pub(crate) fn open(config: &StateConfig, limit: usize) -> Result<Self, StateFileError> {
        let Some(path) = &config.file else { return Ok(Self::in_memory(limit)) };
        Ok(Self::new(BlobStore::File(FileBlobs::open(path, limit)?)))
    }

    fn new(blobs: BlobStore) -> Self {
        Self { blobs, workers: Workers::default(), retry_lock: Arc::default() }
    }

    /// Number of entries, and their bytes as counted against the limit.
    pub(crate) fn usage(&self) -> (usize, usize) {
        match &self.blobs {
            BlobStore::Memory(memory) => memory.usage(),
            BlobStore::File(file) => file.usage(),
        }
    }

    /// All keys, sorted. Empty, with a warning in the log, if the state file cannot be read.
    pub(crate) fn keys(&self) -> Vec<String> {
        match &self.blobs {
            BlobStore::Memory(memory) => memory.keys(),
            BlobStore::File(file) => file.keys().unwrap_or_else(|error| {
                tracing::warn!(?error, "the state file cannot be read");
                Vec::new()
            }),
        }
    }

    fn get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        check_key(key)?;
        match &self.blobs {
            BlobStore::Memory(memory) => Ok(memory.get(key)),
            BlobStore::File(file) => file.get(key),
        }
    }

    fn commit(&self, changes: Vec<Change>) -> Result<u64, StateCommitError> {
        check_batch(&changes)?;
        match &self.blobs {
            BlobStore::Memory(memory) => Ok(memory.commit(changes)?),
            BlobStore::File(file) => file.commit(&changes),
        }
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, StateError> {
        if prefix.len() > MAX_KEY {
            return Err(StateError::KeySize(bound(MAX_KEY, prefix.len())));
        }
        let after = after.filter(|after| *after >= prefix);
        let pager = PageBuilder::new(limit);
        match &self.blobs {
            BlobStore::Memory(memory) => Ok(memory.scan(prefix, after, pager)),
            BlobStore::File(file) => file.scan(prefix, after, pager),
        }
    }

    /// Accesses the store: in memory directly, in a file on a blocking thread. A file access that has started
    /// runs to its end, also after the guest's call has ended. It holds `operation_permit` until then, so
    /// that calls that conflict with that call on a volume or snapshot are rejected.
    async fn run_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        operation_permit: Option<Arc<OperationPermit>>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> wasmtime::Result<T> {
        if let BlobStore::Memory(_) = self.blobs {
            return Ok(work(self));
        }
        let store = Arc::clone(self);
        let done = self.workers.run(operation_permit, move || work(&store)).await;
        done.map_err(|error| wasmtime::Error::msg(format!("the state file failed: {}", task_failure(&error))))
    }
}

impl RetryLock {
    /// Waits for the lock if the call needs it. The wait ends some time before the deadline, so that the call
    /// ends with the driver's own error if it cannot commit.
    async fn acquire(&mut self, lock: &Arc<Mutex<()>>, deadline: Instant) {
        if !matches!(self, Self::Needed) {
            return;
        }
        let give_up_at = deadline.checked_sub(RETRY_LOCK_MARGIN).unwrap_or(deadline);
        let Ok(guard) = timeout_at(give_up_at, Arc::clone(lock).lock_owned()).await else { return };
        let (held, released) = oneshot::channel();
        // A driver may not commit again, or wait for its storage before it does.
        tokio::spawn(async move {
            let _ = timeout(MAX_RETRY_LOCK_HOLD, released).await;
            drop(guard);
        });
        *self = Self::Held(held);
    }

    /// Updates the use after a commit.
    fn commit_ended(&mut self, is_conflict: bool) {
        let is_held = matches!(self, Self::Held(held) if !held.is_closed());
        if !is_conflict {
            *self = Self::NotNeeded;
        } else if !is_held {
            *self = Self::Needed;
        }
    }
}

/// The `state` import of one call.
pub(crate) struct StateView<'a> {
    pub(crate) context: &'a CallContext,
    pub(crate) store: &'a Arc<StateStore>,
    pub(crate) retry_lock: &'a mut RetryLock,
    pub(crate) faults: &'a FaultPlan,
}

impl HasData for StateView<'static> {
    type Data<'a> = StateView<'a>;
}

impl StateView<'_> {
    /// Runs an operation on the store, as a host call into which a fault can be injected. After a conflict, it
    /// waits for the lock first.
    async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&StateStore) -> T + Send + 'static,
    ) -> wasmtime::Result<T> {
        self.retry_lock.acquire(&self.store.retry_lock, self.context.deadline).await;
        self.faults.wrap(self.store.run_blocking(self.context.operation_permit.clone(), work)).await
    }
}

impl Host for StateView<'_> {
    async fn get(&mut self, key: String) -> wasmtime::Result<Result<Option<Entry>, StateError>> {
        self.run(move |store| store.get(&key)).await
    }

    async fn commit(&mut self, changes: Vec<Change>) -> wasmtime::Result<Result<u64, StateError>> {
        let committed = self.run(move |store| store.commit(changes)).await?;
        let is_conflict = matches!(committed, Err(StateCommitError::Rejected(StateError::Conflict(_))));
        self.retry_lock.commit_ended(is_conflict);
        match committed {
            Ok(version) => Ok(Ok(version)),
            Err(StateCommitError::Rejected(error)) => Ok(Err(error)),
            // All errors of the contract mean that nothing was written. Ending the call leaves its outcome
            // unknown, which is correct.
            Err(StateCommitError::Unknown(reason)) => {
                Err(wasmtime::Error::msg(format!("the state file failed: {reason}")))
            }
        }
    }

    async fn scan(
        &mut self,
        prefix: String,
        after: Option<String>,
        limit: u32,
    ) -> wasmtime::Result<Result<Page, StateError>> {
        self.run(move |store| store.scan(&prefix, after.as_deref(), limit)).await
    }
}

#[cfg(test)]
mod tests;
