//! Rules of both stores, in memory and in a file: commits are atomic, a change fails unless its precondition
//! holds (the entry is absent, or has the version that the change names), and all sizes are bounded.

use cofferdam_domain::storage::Secrets;
use tempfile::TempDir;
use tokio::time::Instant;

use super::{full_disk::IS_DISK_FULL, rules::*, *};
use crate::bindings::cofferdam::storage::state::{Bound, Precondition, Put, Remove};

/// An empty store of each kind, with its name for messages and the directory of its file.
fn stores(limit: usize) -> Vec<(&'static str, StateStore, Option<TempDir>)> {
    let directory = tempfile::tempdir().unwrap();
    let config = StateConfig { file: Some(directory.path().join("state.redb")) };
    let file = StateStore::open(&config, limit).unwrap();
    let memory = StateStore::open(&StateConfig::default(), limit).unwrap();
    vec![("memory", memory, None), ("file", file, Some(directory))]
}

fn put(key: &str, value: &[u8], precondition: Precondition) -> Change {
    Change::Put(Put { key: key.to_owned(), value: value.to_vec(), precondition })
}

fn remove(key: &str, version: u64) -> Change {
    Change::Remove(Remove { key: key.to_owned(), version })
}

fn read(store: &StateStore, key: &str) -> Option<(Vec<u8>, u64)> {
    store.get(key).unwrap().map(|entry| (entry.value, entry.version))
}

fn commit(store: &StateStore, changes: Vec<Change>) -> Result<u64, StateError> {
    store.commit(changes).map_err(|failed| match failed {
        StateCommitError::Rejected(error) => error,
        StateCommitError::Unknown(reason) => panic!("{reason}"),
    })
}

#[test]
fn commit_with_a_stale_version_conflicts() {
    for (name, store, _directory) in stores(1 << 20) {
        let first = commit(&store, vec![put("a", b"1", Precondition::Absent)]).unwrap();
        for change in [
            put("a", b"2", Precondition::Absent),
            put("a", b"2", Precondition::At(first + 1)),
            remove("a", first + 1),
        ] {
            let refused = commit(&store, vec![change]);
            assert!(matches!(refused, Err(StateError::Conflict(key)) if key == "a"), "{name}");
        }
        let second = commit(&store, vec![put("a", b"2", Precondition::At(first))]).unwrap();
        assert_eq!(read(&store, "a"), Some((b"2".to_vec(), second)), "{name}");
        commit(&store, vec![remove("a", second)]).unwrap();
        assert_eq!(read(&store, "a"), None, "{name}");
        assert!(matches!(commit(&store, vec![remove("a", second)]), Err(StateError::Conflict(_))), "{name}");
        let third = commit(&store, vec![put("a", b"3", Precondition::Absent)]).unwrap();
        assert!(third > second, "{name}: a version never returns");
    }
}

#[test]
fn batch_is_atomic() {
    for (name, store, _directory) in stores(1 << 20) {
        commit(&store, vec![put("a", b"1", Precondition::Absent)]).unwrap();
        let before = store.usage();
        let batch = vec![put("b", b"1", Precondition::Absent), put("a", b"2", Precondition::Absent)];
        assert!(matches!(commit(&store, batch), Err(StateError::Conflict(key)) if key == "a"), "{name}");
        assert_eq!((store.usage(), read(&store, "b")), (before, None), "{name}");
    }
}

#[test]
fn keys_values_batches_and_total_size_are_bounded() {
    for (name, store, _directory) in stores(500) {
        let put_one =
            |key: &str, bytes: usize| commit(&store, vec![put(key, &vec![0; bytes], Precondition::Absent)]);
        assert!(matches!(put_one("", 1), Err(StateError::KeySize(Bound { limit: 512, given: 0 }))));
        assert!(matches!(put_one(&"k".repeat(513), 1), Err(StateError::KeySize(Bound { given: 513, .. }))));
        assert!(matches!(put_one("k", (64 << 10) + 1), Err(StateError::ValueSize(_))));
        let empty = commit(&store, Vec::new());
        assert!(matches!(empty, Err(StateError::BatchSize(Bound { limit: 16, given: 0 }))));
        let twice = vec![put("k", b"", Precondition::Absent), put("k", b"", Precondition::Absent)];
        assert!(matches!(commit(&store, twice), Err(StateError::RepeatedKey(_))));
        let version = put_one("a", 200).unwrap();
        assert_eq!(store.usage(), (1, 1 + 200 + ENTRY_OVERHEAD), "{name}");
        assert!(matches!(put_one("b", 200), Err(StateError::Full(Bound { limit: 500, .. }))), "{name}");
        commit(&store, vec![remove("a", version)]).unwrap();
        assert_eq!(store.usage(), (0, 0), "{name}");
        put_one("b", 200).unwrap();
    }
}

#[test]
fn scan_returns_consecutive_pages() {
    for (name, store, _directory) in stores(16 << 20) {
        for key in ["a/1", "b/1", "b/2", "b/3", "c"] {
            commit(&store, vec![put(key, key.as_bytes(), Precondition::Absent)]).unwrap();
        }
        let scan = |prefix: &str, after: Option<&str>, limit: u32| {
            let page = store.scan(prefix, after, limit).unwrap();
            (page.entries.into_iter().map(|found| found.key).collect::<Vec<_>>(), page.more)
        };
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        assert_eq!(scan("b/", None, 2), (keys(&["b/1", "b/2"]), true), "{name}");
        assert_eq!(scan("b/", Some("b/2"), 2), (keys(&["b/3"]), false), "{name}");
        assert_eq!(scan("b/", Some("c"), 2), (Vec::new(), false), "{name}");
        assert_eq!(scan("b/", Some("a"), 1), (keys(&["b/1"]), true), "{name}");
        assert_eq!(scan("", None, 9), (keys(&["a/1", "b/1", "b/2", "b/3", "c"]), false), "{name}");
        assert_eq!(store.keys(), keys(&["a/1", "b/1", "b/2", "b/3", "c"]), "{name}");
        let big =
            (0..40).map(|number| put(&format!("big/{number:02}"), &[0; 60 << 10], Precondition::Absent));
        for change in big {
            commit(&store, vec![change]).unwrap();
        }
        let page = store.scan("big/", None, u32::MAX).unwrap();
        assert!(page.more && page.entries.len() < 20, "{name}");
    }
}

/// redb rejects every access after a failed write.
#[test]
fn a_file_is_used_again_when_the_disk_has_space() {
    let directory = tempfile::tempdir().unwrap();
    let config = StateConfig { file: Some(directory.path().join("state.redb")) };
    let store = StateStore::open(&config, 1 << 20).unwrap();
    let first = commit(&store, vec![put("a", b"1", Precondition::Absent)]).unwrap();
    let usage = store.usage();
    IS_DISK_FULL.set(true);
    for _ in 0..2 {
        let error = store.commit(vec![put("b", &[0; 60_000], Precondition::Absent)]).unwrap_err();
        let text = match error {
            StateCommitError::Unknown(text) | StateCommitError::Rejected(StateError::Unavailable(text)) => {
                text
            }
            StateCommitError::Rejected(other) => panic!("{other:?}"),
        };
        assert!(!text.is_empty());
    }
    IS_DISK_FULL.set(false);
    assert_eq!(read(&store, "a"), Some((b"1".to_vec(), first)));
    assert_eq!(store.usage(), usage);
    let second = commit(&store, vec![put("b", b"2", Precondition::Absent)]).unwrap();
    assert_eq!(read(&store, "b"), Some((b"2".to_vec(), second)));
}

/// The imports of one call.
struct StateCall {
    context: CallContext,
    store: Arc<StateStore>,
    retry_lock: RetryLock,
    faults: FaultPlan,
}

impl StateCall {
    fn new(store: &Arc<StateStore>) -> Self {
        Self::with_deadline(store, Duration::from_secs(60))
    }

    fn with_deadline(store: &Arc<StateStore>, remaining: Duration) -> Self {
        Self {
            context: CallContext::new(Instant::now() + remaining, Secrets::default()),
            store: Arc::clone(store),
            retry_lock: RetryLock::default(),
            faults: FaultPlan::default(),
        }
    }

    fn view(&mut self) -> StateView<'_> {
        StateView {
            context: &self.context,
            store: &self.store,
            retry_lock: &mut self.retry_lock,
            faults: &self.faults,
        }
    }

    async fn read(&mut self, key: &str) -> Option<Entry> {
        self.view().get(key.to_owned()).await.unwrap().unwrap()
    }

    async fn commit(&mut self, change: Change) -> Result<u64, StateError> {
        self.view().commit(vec![change]).await.unwrap()
    }

    /// Commits a change that conflicts with the entry `a`.
    async fn conflict(&mut self) {
        let refused = self.commit(put("a", b"", Precondition::Absent)).await;
        assert!(matches!(refused, Err(StateError::Conflict(_))), "{refused:?}");
    }

    /// Reads a counter and commits the next value once.
    async fn increment(&mut self) -> Result<u64, StateError> {
        let entry = self.read("counter").await;
        let (count, precondition) = entry
            .map_or((0, Precondition::Absent), |entry| (entry.value[0], Precondition::At(entry.version)));
        // The calls of the store in memory would not interleave otherwise.
        tokio::task::yield_now().await;
        self.commit(put("counter", &[count + 1], precondition)).await
    }
}

/// Stores with the entry `a`.
fn stores_with_entry() -> Vec<(&'static str, Arc<StateStore>, Option<TempDir>)> {
    let with_entry = |(name, store, directory): (&'static str, StateStore, Option<TempDir>)| {
        commit(&store, vec![put("a", b"", Precondition::Absent)]).unwrap();
        (name, Arc::new(store), directory)
    };
    stores(1 << 20).into_iter().map(with_entry).collect()
}

#[tokio::test(start_paused = true)]
async fn conflicting_calls_commit_one_after_the_other() {
    const CALLS: u8 = 64;
    for (name, store, _directory) in stores_with_entry() {
        let attempts = futures::future::join_all((0..CALLS).map(|_| async {
            let mut call = StateCall::new(&store);
            let mut attempts = 1;
            while call.increment().await.is_err() {
                attempts += 1;
            }
            attempts
        }));
        let attempts: Vec<usize> = attempts.await;
        assert_eq!(read(&store, "counter").unwrap().0, [CALLS], "{name}");
        // A call has its first attempt without the lock, and causes at most one conflict of the call that has
        // it.
        let total: usize = attempts.iter().sum();
        let calls = usize::from(CALLS);
        assert!(total > calls && total <= 3 * calls, "{name}: {attempts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_does_not_commit_again_keeps_the_lock_for_a_limited_time() {
    for (name, store, _directory) in stores_with_entry() {
        let (mut first, mut second, mut third) =
            (StateCall::new(&store), StateCall::new(&store), StateCall::new(&store));
        for call in [&mut first, &mut second, &mut third] {
            call.conflict().await;
        }
        let started = Instant::now();
        first.read("a").await;
        assert_eq!(started.elapsed(), Duration::ZERO, "{name}");
        second.read("a").await;
        assert_eq!(started.elapsed(), MAX_RETRY_LOCK_HOLD, "{name}");
        drop(second);
        third.read("a").await;
        assert_eq!(started.elapsed(), MAX_RETRY_LOCK_HOLD, "{name}: the call has ended");
        // The time of the first call is over: it waits again after another conflict.
        first.conflict().await;
        first.read("a").await;
        assert_eq!(started.elapsed(), 2 * MAX_RETRY_LOCK_HOLD, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_without_conflict_releases_the_lock() {
    for (name, store, _directory) in stores_with_entry() {
        let key = "k".repeat(MAX_KEY + 1);
        for (key, is_committed) in [("b", true), (key.as_str(), false)] {
            let (mut first, mut second) = (StateCall::new(&store), StateCall::new(&store));
            first.conflict().await;
            second.conflict().await;
            first.read("a").await;
            let started = Instant::now();
            let committed = first.commit(put(key, b"", Precondition::Absent)).await;
            assert_eq!(committed.is_ok(), is_committed, "{name}: {committed:?}");
            second.read("a").await;
            assert_eq!(started.elapsed(), Duration::ZERO, "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_the_lock_ends_before_the_deadline() {
    for (name, store, _directory) in stores_with_entry() {
        let wait = MAX_RETRY_LOCK_HOLD / 2;
        let mut first = StateCall::new(&store);
        let mut second = StateCall::with_deadline(&store, RETRY_LOCK_MARGIN + wait);
        first.conflict().await;
        second.conflict().await;
        first.read("a").await;
        let started = Instant::now();
        second.read("a").await;
        assert_eq!(started.elapsed(), wait, "{name}");
    }
}
