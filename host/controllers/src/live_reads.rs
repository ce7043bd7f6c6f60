//! Live reads (reads from the API server, not from the cache) that concurrent callers share.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

/// Live reads by name (a namespace, an object), at most one per name at a time. A caller that gets `Ok` can
/// rely on a successful read that started after its call, by itself or by another caller.
#[derive(Debug, Default)]
pub(crate) struct SingleFlightReads<T = ()>(Mutex<HashMap<Box<str>, Arc<SingleFlightRead<T>>>>);

#[derive(Debug, Default)]
struct SingleFlightRead<T> {
    /// Number of started reads.
    started: Mutex<u64>,
    /// Number of the last successful read, as counted by `started`, and its result; 0 before the first.
    /// Locked during a read.
    last_completed: tokio::sync::Mutex<(u64, T)>,
}

impl<T: Clone + Default> SingleFlightReads<T> {
    /// Performs the read of this name, or waits for one that another caller starts, and returns the result.
    ///
    /// # Errors
    /// The error of the caller's own read. After a failed read of another caller, the next waiting caller
    /// reads.
    pub(crate) async fn read_live<E, F: Future<Output = Result<T, E>>>(
        &self,
        name: &str,
        read: impl FnOnce(String) -> F,
    ) -> Result<T, E> {
        let lookup = Arc::clone(self.0.lock().entry(name.into()).or_default());
        let needed = *lookup.started.lock() + 1;
        let result = {
            let mut last = lookup.last_completed.lock().await;
            if last.0 >= needed {
                Ok(last.1.clone())
            } else {
                let number = {
                    let mut started = lookup.started.lock();
                    *started += 1;
                    *started
                };
                read(name.to_owned()).await.inspect(|result| *last = (number, result.clone()))
            }
        };
        let mut all = self.0.lock();
        drop(lookup);
        // The map has the last reference: no other caller waits.
        if all.get(name).is_some_and(|lookup| Arc::strong_count(lookup) == 1) {
            all.remove(name);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::Duration};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn concurrent_readers_share_the_next_live_list() {
        let reads = SingleFlightReads::default();
        let (lists, fail) = (Cell::new(0), Cell::new(false));
        let read_live = |after: u64, namespace: &'static str| {
            let (reads, lists, fail) = (&reads, &lists, &fail);
            async move {
                tokio::time::sleep(Duration::from_millis(after)).await;
                reads
                    .read_live(namespace, |_| async move {
                        lists.set(lists.get() + 1);
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        if fail.take() { Err("refused") } else { Ok(()) }
                    })
                    .await
            }
        };
        let (first, second, third, other) =
            tokio::join!(read_live(0, "a"), read_live(1, "a"), read_live(9, "a"), read_live(1, "b"));
        assert_eq!((first, second, third, other), (Ok(()), Ok(()), Ok(()), Ok(())));
        assert_eq!(
            lists.get(),
            3,
            "one for the first caller, one for later callers, one for the other namespace"
        );
        assert!(reads.0.lock().is_empty());

        fail.set(true);
        let (first, second) = tokio::join!(read_live(0, "a"), read_live(1, "a"));
        assert_eq!((first, second), (Err("refused"), Ok(())), "a failed read is repeated by the next caller");
        assert_eq!(lists.get(), 5);
    }
}
