//! Looks past the cache that several who need one share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Reads by what is read, a namespace's list or an object, one of each at a time. Who asks gets the answer of a read that began
/// after the question: what was seen before does not count.
#[derive(Debug, Default)]
pub(crate) struct Lookups(Mutex<HashMap<Box<str>, Arc<Lookup>>>);

#[derive(Debug, Default)]
struct Lookup {
    /// Reads that have begun.
    begun: Mutex<u64>,
    /// The last read that has succeeded; held by who reads.
    last: tokio::sync::Mutex<u64>,
}

impl Lookups {
    /// Reads what has this name, or waits for somebody else who does.
    ///
    /// # Errors
    /// That of the own read; after a failure of another's the next one reads itself.
    pub(crate) async fn look<E, F: Future<Output = Result<(), E>>>(
        &self,
        name: &str,
        read: impl FnOnce(String) -> F,
    ) -> Result<(), E> {
        let lookup = Arc::clone(self.all().entry(name.into()).or_default());
        let needed = *lookup.begun() + 1;
        let looked = {
            let mut last = lookup.last.lock().await;
            if *last >= needed {
                Ok(())
            } else {
                let mine = {
                    let mut begun = lookup.begun();
                    *begun += 1;
                    *begun
                };
                read(name.to_owned()).await.map(|()| *last = mine)
            }
        };
        let mut all = self.all();
        drop(lookup);
        // The map's own is the last: nobody else asks.
        if all.get(name).is_some_and(|lookup| Arc::strong_count(lookup) == 1) {
            all.remove(name);
        }
        looked
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<Lookup>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lookup {
    fn begun(&self) -> MutexGuard<'_, u64> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::Duration};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_asks_during_a_list_shares_the_next_one() {
        let lookups = Lookups::default();
        let (lists, fail) = (Cell::new(0), Cell::new(false));
        let look = |after: u64, namespace: &'static str| {
            let (lookups, lists, fail) = (&lookups, &lists, &fail);
            async move {
                tokio::time::sleep(Duration::from_millis(after)).await;
                lookups
                    .look(namespace, |_| async move {
                        lists.set(lists.get() + 1);
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        if fail.take() { Err("refused") } else { Ok(()) }
                    })
                    .await
            }
        };
        let (first, second, third, other) =
            tokio::join!(look(0, "a"), look(1, "a"), look(9, "a"), look(1, "b"));
        assert_eq!((first, second, third, other), (Ok(()), Ok(()), Ok(()), Ok(())));
        assert_eq!(
            lists.get(),
            3,
            "one for the first, one for who asked meanwhile, one for the other namespace"
        );
        assert!(lookups.all().is_empty());

        fail.set(true);
        let (first, second) = tokio::join!(look(0, "a"), look(1, "a"));
        assert_eq!((first, second), (Err("refused"), Ok(())), "a failure is the lister's own");
        assert_eq!(lists.get(), 5);
    }
}
