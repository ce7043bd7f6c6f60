//! Limits the blocking threads that a backend uses for disk access.

use std::sync::Arc;

use tokio::{sync::Semaphore, task::JoinError};

use cofferdam_backend::in_flight::OperationPermit;

/// Maximum blocking threads of one state file or pool. Work that has started outlives its call, so the limit
/// of concurrent calls does not bound it; and all backends share the runtime's 512 blocking threads.
const MAX_WORKERS: usize = 8;

/// Permits for the blocking threads of one state file or pool.
#[derive(Clone, Debug)]
pub(crate) struct Workers(Arc<Semaphore>);

impl Default for Workers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_WORKERS)))
    }
}

impl Workers {
    /// Waits for a permit and runs the work on a blocking thread. Work that has a permit runs to its end,
    /// also after its call has ended. It holds `operation_permit` until then, so that calls that conflict
    /// with its call on a volume or snapshot are rejected. Work that still waits for a permit is dropped with
    /// its call.
    ///
    /// # Errors
    /// The work panicked, or did not start because the runtime is shutting down.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        operation_permit: Option<Arc<OperationPermit>>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        // The semaphore is never closed. Without a permit the work would run unbounded, and still return a
        // result.
        let permit = Arc::clone(&self.0).acquire_owned().await.ok();
        let task = tokio::task::spawn_blocking(move || {
            let answer = work();
            drop((operation_permit, permit));
            answer
        });
        task.await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn abandoned_work_counts_against_the_worker_limit() {
        let workers = Workers::default();
        let (begun, count) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let gate = Arc::new(std::sync::Mutex::new(gate));
        for _ in 0..3 * MAX_WORKERS {
            let (begun, gate) = (begun.clone(), Arc::clone(&gate));
            let work = workers.run(None, move || {
                begun.send(()).unwrap();
                // Woken when the other end is dropped.
                gate.lock().unwrap().recv().unwrap_err();
            });
            // A call whose deadline has passed.
            assert!(tokio::time::timeout(std::time::Duration::ZERO, work).await.is_err());
        }
        drop(go);
        // New work waits for the abandoned work, and runs.
        workers.run(None, || ()).await.unwrap();
        drop(begun);
        assert!(count.iter().count() <= MAX_WORKERS, "only what had a thread began");
    }
}
