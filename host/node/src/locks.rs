//! Locks by key.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

/// One lock for each key in use.
#[derive(Debug, Default)]
pub(crate) struct KeyLocks(Mutex<BTreeMap<String, Arc<Mutex<()>>>>);

impl KeyLocks {
    /// Runs an operation while no other one with the same key runs.
    pub(crate) fn run<R>(&self, key: &str, operation: impl FnOnce() -> R) -> R {
        let lock = Arc::clone(self.0.lock().entry(key.to_owned()).or_default());
        let result = {
            let _guard = lock.lock();
            operation()
        };
        drop(lock);
        self.0.lock().retain(|_, lock| Arc::strong_count(lock) > 1);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    #[test]
    fn one_operation_of_a_key_runs_at_a_time() {
        let locks = KeyLocks::default();
        let (started, starts) = mpsc::channel();
        thread::scope(|scope| {
            locks.run("a", || {
                let started = started.clone();
                scope.spawn(|| {
                    locks.run("a", move || started.send("a").unwrap());
                });
                locks.run("b", || {});
                assert!(starts.recv_timeout(Duration::from_millis(20)).is_err());
            });
            assert_eq!(starts.recv(), Ok("a"));
        });
        assert!(locks.0.lock().is_empty());
    }
}
