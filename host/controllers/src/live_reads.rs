//! Looks past the cache that several who need one share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Reads by what is read, a namespace's list or an object, one of each at a time. Who asks gets the answer of
/// a read that began after the question: what was seen before does not count.
#[derive(Debug, Default)]
pub(crate) struct SingleFlightReads(Mutex<HashMap<Box<str>, Arc<SingleFlightRead>>>);

#[derive(Debug, Default)]
struct SingleFlightRead {
    /// Reads that have begun.
    started: Mutex<u64>,
    /// The last read that has succeeded; held by who reads.
    last_completed: tokio::sync::Mutex<u64>,
}

impl SingleFlightReads {
    /// Reads what has this name, or waits for somebody else who does.
    ///
    /// # Errors
    /// That of the own read; after a failure of another's the next one reads itself.
    pub(crate) async fn read_live<E, F: Future<Output = Result<(), E>>>(
        &self,
        name: &str,
        read: impl FnOnce(String) -> F,
    ) -> Result<(), E> {
        let lookup = Arc::clone(self.lock().entry(name.into()).or_default());
        let needed = *lookup.lock_started() + 1;
        let looked = {
            let mut last = lookup.last_completed.lock().await;
            if *last >= needed {
                Ok(())
            } else {
                let number = {
                    let mut begun = lookup.lock_started();
                    *begun += 1;
                    *begun
                };
                read(name.to_owned()).await.map(|()| *last = number)
            }
        };
        let mut all = self.lock();
        drop(lookup);
        // The map's own is the last: nobody else asks.
        if all.get(name).is_some_and(|lookup| Arc::strong_count(lookup) == 1) {
            all.remove(name);
        }
        looked
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<SingleFlightRead>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SingleFlightRead {
    fn lock_started(&self) -> MutexGuard<'_, u64> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
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
            "one for the first, one for who asked meanwhile, one for the other namespace"
        );
        assert!(reads.lock().is_empty());

        fail.set(true);
        let (first, second) = tokio::join!(read_live(0, "a"), read_live(1, "a"));
        assert_eq!((first, second), (Err("refused"), Ok(())), "a failure is the lister's own");
        assert_eq!(lists.get(), 5);
    }
}
