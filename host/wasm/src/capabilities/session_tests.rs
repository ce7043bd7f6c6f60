//! Tests of the `session` import, with a paused clock: lifetime, eviction and sizes of values, their
//! isolation by secrets, and the lock of a key.

use cofferdam_domain::storage::Secret;
use futures::FutureExt as _;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn store(keys: usize) -> Arc<SessionStore> {
    Arc::new(SessionStore::new(&Limits { session_keys: keys, ..Limits::default() }))
}

fn tenant(password: &str) -> Tenant {
    let secrets: Secrets = [("password".to_owned(), Secret::new(password))].into_iter().collect();
    Tenant::from_secrets(&secrets)
}

/// A call of tenant `a`.
struct Caller(Session);

impl Caller {
    fn new(store: &Arc<SessionStore>) -> Self {
        Self(Session::new(Arc::clone(store)))
    }

    async fn acquire(&mut self, key: &str) -> Result<Option<(Vec<u8>, u64)>, SessionError> {
        Ok(match self.0.acquire(tenant("a"), key).await? {
            Acquired::Found(entry) => Some((entry.value, entry.generation)),
            Acquired::Locked => None,
        })
    }

    fn put(&mut self, key: &str, value: &[u8], ttl: Duration) -> Result<u64, SessionError> {
        self.0.put(tenant("a"), key, value.to_vec(), ttl)
    }
}

#[tokio::test(start_paused = true)]
async fn session_value_expires_after_its_ttl_or_the_limit() {
    let store = store(8);
    let mut caller = Caller::new(&store);
    assert_eq!(caller.acquire("k").await.unwrap(), None);
    let generation = caller.put("k", b"v", Duration::from_secs(10)).unwrap();
    tokio::time::advance(Duration::from_millis(9_999)).await;
    assert_eq!(caller.acquire("k").await.unwrap(), Some((b"v".to_vec(), generation)));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(caller.acquire("k").await.unwrap(), None);
    caller.put("k", b"v", 100 * HOUR).unwrap();
    tokio::time::advance(HOUR - Duration::from_millis(1)).await;
    assert!(caller.acquire("k").await.unwrap().is_some());
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(caller.acquire("k").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn session_values_are_isolated_by_secrets() {
    let store = store(8);
    let mut first = Caller::new(&store);
    first.put("k", b"of a", HOUR).unwrap();
    let mut second = Session::new(Arc::clone(&store));
    assert!(matches!(second.acquire(tenant("b"), "k").await.unwrap(), Acquired::Locked));
    let generation = second.put(tenant("b"), "k", b"of b".to_vec(), HOUR).unwrap();
    assert_eq!(first.acquire("k").await.unwrap().unwrap().0, b"of a");
    store.invalidate(tenant("a"), "k", generation);
    assert_eq!(first.acquire("k").await.unwrap().unwrap().0, b"of a");
}

#[tokio::test(start_paused = true)]
async fn put_serves_every_waiting_call() {
    let store = store(8);
    let mut holder = Caller::new(&store);
    assert_eq!(holder.acquire("k").await.unwrap(), None);
    let mut callers = [Caller::new(&store), Caller::new(&store), Caller::new(&store)];
    let mut waiting: Vec<_> = callers.iter_mut().map(|caller| Box::pin(caller.acquire("k"))).collect();
    for waiter in &mut waiting {
        assert!(waiter.as_mut().now_or_never().is_none());
    }
    let generation = holder.put("k", b"v", HOUR).unwrap();
    for waiter in waiting {
        assert_eq!(waiter.await.unwrap(), Some((b"v".to_vec(), generation)));
    }
    assert_eq!(store.lock().slots.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn put_without_the_lock_serves_waiting_calls() {
    let store = store(8);
    let mut holder = Caller::new(&store);
    assert_eq!(holder.acquire("k").await.unwrap(), None);
    let mut waiter = Caller::new(&store);
    let mut waiting = Box::pin(waiter.acquire("k"));
    assert!(waiting.as_mut().now_or_never().is_none());
    let mut other = Caller::new(&store);
    let generation = other.put("k", b"v", HOUR).unwrap();
    assert_eq!(waiting.await.unwrap(), Some((b"v".to_vec(), generation)));
    assert_eq!(holder.acquire("k").await.unwrap(), Some((b"v".to_vec(), generation)));
    assert!(holder.0.lock.is_none(), "there is nothing left to make");
}

#[tokio::test(start_paused = true)]
async fn session_lock_passes_to_exactly_one_waiting_call() {
    for end in ["release", "end of the call"] {
        let store = store(8);
        let mut holder = Caller::new(&store);
        assert_eq!(holder.acquire("k").await.unwrap(), None);
        let (mut second, mut third) = (Caller::new(&store), Caller::new(&store));
        let mut third_waits = {
            let mut second_waits = Box::pin(second.acquire("k"));
            assert!(second_waits.as_mut().now_or_never().is_none());
            let mut third_waits = Box::pin(third.acquire("k"));
            assert!(third_waits.as_mut().now_or_never().is_none());
            if end == "release" {
                holder.0.release("other key");
                assert!(second_waits.as_mut().now_or_never().is_none());
                holder.0.release("k");
            } else {
                drop(holder);
            }
            assert_eq!(second_waits.await.unwrap(), None);
            third_waits
        };
        assert!(third_waits.as_mut().now_or_never().is_none(), "{end}");
        drop(second);
        assert_eq!(third_waits.await.unwrap(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_waiter_does_not_keep_the_session_lock() {
    let store = store(8);
    let mut holder = Caller::new(&store);
    assert_eq!(holder.acquire("k").await.unwrap(), None);
    let (mut second, mut third) = (Caller::new(&store), Caller::new(&store));
    let mut cancelled = Box::pin(second.acquire("k"));
    let mut third_waits = Box::pin(third.acquire("k"));
    assert!(cancelled.as_mut().now_or_never().is_none());
    assert!(third_waits.as_mut().now_or_never().is_none());
    // The second call is cancelled while the lock is handed to it.
    holder.0.release("k");
    drop(cancelled);
    assert_eq!(third_waits.await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn lock_holder_does_not_wait_for_any_session_key() {
    let store = store(8);
    let mut holder = Caller::new(&store);
    assert_eq!(holder.acquire("k").await.unwrap(), None);
    assert_eq!(holder.acquire("k").await.unwrap(), None);
    for key in ["free", "k2"] {
        let Err(SessionError::LockHeld(held)) = holder.acquire(key).await else { panic!("{key}") };
        assert_eq!(held, "k");
    }
    holder.put("k2", b"other", HOUR).unwrap();
    assert!(
        holder.0.lock.as_ref().is_some_and(|turn| turn.key == "k"),
        "a put of another key keeps the turn"
    );
    holder.put("k", b"v", HOUR).unwrap();
    assert!(holder.acquire("k2").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn invalidate_removes_only_the_given_generation() {
    let store = store(8);
    let mut caller = Caller::new(&store);
    let old = caller.put("k", b"old", HOUR).unwrap();
    let new = caller.put("k", b"new", HOUR).unwrap();
    assert!(new > old);
    store.invalidate(tenant("a"), "k", old);
    assert_eq!(caller.acquire("k").await.unwrap(), Some((b"new".to_vec(), new)));
    store.invalidate(tenant("a"), "k", new);
    assert!(store.lock().slots.is_empty());
    assert_eq!(caller.acquire("k").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn full_session_store_evicts_the_first_to_expire() {
    let store = store(2);
    let mut caller = Caller::new(&store);
    caller.put("short", b"", Duration::from_secs(1)).unwrap();
    caller.put("long", b"", HOUR / 2).unwrap();
    // Keys of earlier callers, with any secrets, do not keep new callers out.
    caller.put("third", b"", HOUR).unwrap();
    assert!(caller.acquire("long").await.unwrap().is_some());
    assert!(!store.lock().slots.keys().any(|name| name.key == "short"));
    tokio::time::advance(HOUR / 2).await;
    caller.put("fourth", b"", HOUR).unwrap();
    assert!(caller.acquire("third").await.unwrap().is_some());
    // A key counts as long as a call has its lock.
    let small_store = self::store(1);
    let mut holder = Caller::new(&small_store);
    assert_eq!(holder.acquire("k").await.unwrap(), None);
    let Err(SessionError::Full(full)) = Caller::new(&small_store).acquire("other").await else {
        panic!("not full")
    };
    assert_eq!((full.limit, full.given), (1, 2));
    drop(holder);
    assert_eq!(Caller::new(&small_store).acquire("other").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn sizes_are_bounded_and_values_are_not_printed() {
    let store = store(8);
    let mut caller = Caller::new(&store);
    for key in ["", &"k".repeat(129)] {
        let Err(SessionError::KeySize(size)) = caller.put(key, b"", HOUR) else { panic!("{key}") };
        assert_eq!((size.limit, size.given), (128, key.len() as u64));
        assert!(matches!(caller.acquire(key).await, Err(SessionError::KeySize(_))));
    }
    let Err(SessionError::ValueSize(size)) = caller.put("k", &[0; 8193], HOUR) else { panic!("accepted") };
    assert_eq!((size.limit, size.given), (8192, 8193));
    caller.put(&"k".repeat(128), &[b'x'; 8192], HOUR).unwrap();
    assert!(!format!("{store:?}").contains("120"), "{store:?}");
}
