//! `session`: logins that outlive a call, in memory, apart for every set of secrets, with one call at a time that makes one.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, OwnedMutexGuard},
    time::Instant,
};
use zeroize::Zeroizing;

use super::{Capabilities, secrets::Tenant};
use crate::{
    bindings::cofferdam::storage::session::{Acquired, Bound, Entry, Host, SessionError},
    limits::Limits,
    metrics::SessionMetrics,
};

/// Longest key in bytes, as the contract says.
const MAX_KEY: usize = 128;
/// Largest value in bytes, as the contract says.
const MAX_VALUE: usize = 8 << 10;

/// The logins of one backend.
#[derive(Debug)]
pub(crate) struct Store {
    keys: usize,
    longest: Duration,
    content: Mutex<Content>,
    metrics: OnceLock<SessionMetrics>,
}

#[derive(Debug, Default)]
struct Content {
    slots: HashMap<Name, Slot>,
    generation: u64,
}

/// A key together with those whom it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name {
    tenant: Tenant,
    key: String,
}

/// A key's value and the turn to make it.
#[derive(Debug, Default)]
struct Slot {
    value: Option<Value>,
    /// Locked by the call that has the turn. Its queue is fair and forgets those who no longer wait.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Tells those who wait for the turn that a value is there already.
    made: Arc<Notify>,
}

struct Value {
    content: Zeroizing<Vec<u8>>,
    generation: u64,
    expires: Instant,
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Slot {
    /// The value, if it has not expired.
    fn live(&self) -> Option<&Value> {
        self.value.as_ref().filter(|value| value.expires > Instant::now())
    }

    /// Whether somebody has the turn or waits for it.
    fn wanted(&self) -> bool {
        Arc::strong_count(&self.turn) > 1
    }
}

/// The turn of a key: it goes to the next call when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    key: String,
    _lock: OwnedMutexGuard<()>,
}

/// What a look at a key found.
enum Look {
    Held(Entry),
    /// Nothing, and where to wait for the turn.
    Empty(Arc<tokio::sync::Mutex<()>>, Arc<Notify>),
}

impl Store {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            keys: limits.session_keys,
            longest: Duration::from_millis(limits.session_ttl_ms),
            content: Mutex::default(),
            metrics: OnceLock::new(),
        }
    }

    /// Says where to count, once the driver's name is known. What happens before is not counted.
    pub(crate) fn count(&self, metrics: SessionMetrics) {
        // A second name would be a second load, which has a store of its own.
        let _ = self.metrics.set(metrics);
    }

    /// Finds a value or the turn to make it. Waits while another call has the turn; a call that stops waiting loses its place
    /// and nothing else.
    async fn acquire(&self, tenant: Tenant, key: &str) -> Result<Result<Entry, Turn>, SessionError> {
        check_key(key)?;
        let name = Name { tenant, key: key.to_owned() };
        loop {
            let (turn, made) = match self.look(&name)? {
                Look::Held(entry) => {
                    self.measure(SessionMetrics::hit);
                    return Ok(Ok(entry));
                }
                Look::Empty(turn, made) => (turn, made),
            };
            let made = made.notified();
            tokio::pin!(made);
            made.as_mut().enable();
            // Whoever put a value between the look and here has told nobody.
            if self.has(&name) {
                continue;
            }
            tokio::select! {
                biased;
                () = &mut made => {}
                lock = turn.lock_owned() => {
                    if !self.has(&name) {
                        self.measure(SessionMetrics::miss);
                        return Ok(Err(Turn { key: name.key, _lock: lock }));
                    }
                }
            }
        }
    }

    fn look(&self, name: &Name) -> Result<Look, SessionError> {
        let mut content = self.lock();
        let slot = content.slot(name, self.keys)?;
        Ok(match slot.live() {
            Some(value) => Look::Held(Entry { value: value.content.to_vec(), generation: value.generation }),
            None => Look::Empty(Arc::clone(&slot.turn), Arc::clone(&slot.made)),
        })
    }

    fn has(&self, name: &Name) -> bool {
        self.lock().slots.get(name).is_some_and(|slot| slot.live().is_some())
    }

    fn put(&self, tenant: Tenant, key: &str, value: Vec<u8>, ttl: Duration) -> Result<u64, SessionError> {
        let value = Zeroizing::new(value);
        check_key(key)?;
        if value.len() > MAX_VALUE {
            return Err(SessionError::ValueSize(bound(MAX_VALUE, value.len())));
        }
        let name = Name { tenant, key: key.to_owned() };
        let mut content = self.lock();
        let generation = content.generation.saturating_add(1);
        let slot = content.slot(&name, self.keys)?;
        let expires = Instant::now() + ttl.min(self.longest);
        slot.value = Some(Value { content: value, generation, expires });
        slot.made.notify_waiters();
        content.generation = generation;
        content.sweep();
        self.measure(SessionMetrics::put);
        self.show(&content);
        Ok(generation)
    }

    fn invalidate(&self, tenant: Tenant, key: &str, generation: u64) {
        let name = Name { tenant, key: key.to_owned() };
        let mut content = self.lock();
        if let Some(slot) = content.slots.get_mut(&name)
            && slot.live().is_some_and(|value| value.generation == generation)
        {
            slot.value = None;
            self.measure(SessionMetrics::invalidated);
        }
        content.sweep();
        self.show(&content);
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn measure(&self, what: impl FnOnce(&SessionMetrics)) {
        self.metrics.get().map(what);
    }

    fn show(&self, content: &Content) {
        let held = content.slots.values().filter(|slot| slot.value.is_some()).count();
        self.measure(|metrics| metrics.held(held));
    }
}

impl Content {
    /// The slot of a key, made if there is room.
    fn slot(&mut self, name: &Name, most: usize) -> Result<&mut Slot, SessionError> {
        if !self.slots.contains_key(name) && self.slots.len() >= most {
            self.sweep();
            if self.slots.len() >= most {
                self.give_up_one();
            }
            if self.slots.len() >= most {
                return Err(SessionError::Full(bound(most, most.saturating_add(1))));
            }
        }
        Ok(self.slots.entry(name.clone()).or_default())
    }

    /// Drops the value that would expire first among those that nobody is about to make or wait for: whoever has many sets of
    /// secrets must not keep all others from logging in.
    fn give_up_one(&mut self) {
        let idle = self.slots.iter().filter(|(_, slot)| !slot.wanted());
        let expiry = |slot: &Slot| slot.value.as_ref().map(|value| value.expires);
        let first = idle.min_by_key(|(_, slot)| expiry(slot)).map(|(name, _)| name.clone());
        first.map(|first| self.slots.remove(&first));
    }

    /// Drops what has expired, and the keys that nobody has or wants a value of.
    fn sweep(&mut self) {
        self.slots.retain(|_, slot| {
            if slot.live().is_none() {
                slot.value = None;
            }
            slot.value.is_some() || slot.wanted()
        });
    }
}

fn bound(limit: usize, given: usize) -> Bound {
    Bound { limit: limit.try_into().unwrap_or(u64::MAX), given: given.try_into().unwrap_or(u64::MAX) }
}

fn check_key(key: &str) -> Result<(), SessionError> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(SessionError::KeySize(bound(MAX_KEY, key.len())));
    }
    Ok(())
}

/// One call's view of the logins.
#[derive(Debug)]
pub(crate) struct Session {
    store: Arc<Store>,
    turn: Option<Turn>,
}

impl Session {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store, turn: None }
    }

    fn release(&mut self, key: &str) {
        self.turn.take_if(|turn| turn.key == key);
    }

    async fn acquire(&mut self, tenant: Tenant, key: &str) -> Result<Acquired, SessionError> {
        check_key(key)?;
        match &self.turn {
            Some(turn) if turn.key != key => return Err(SessionError::TurnHeld(turn.key.clone())),
            Some(_) => {
                // Another call may have put a value without the turn; then there is nothing left to make.
                let name = Name { tenant, key: key.to_owned() };
                if !self.store.has(&name) {
                    return Ok(Acquired::Vacant);
                }
                self.release(key);
            }
            None => {}
        }
        Ok(match self.store.acquire(tenant, key).await? {
            Ok(entry) => Acquired::Held(entry),
            Err(turn) => {
                self.turn = Some(turn);
                Acquired::Vacant
            }
        })
    }

    fn put(&mut self, tenant: Tenant, key: &str, value: Vec<u8>, ttl: Duration) -> Result<u64, SessionError> {
        let generation = self.store.put(tenant, key, value, ttl)?;
        self.release(key);
        Ok(generation)
    }
}

impl Host for Capabilities {
    async fn acquire(&mut self, key: String) -> wasmtime::Result<Result<Acquired, SessionError>> {
        let tenant = self.tenant();
        Ok(self.session.acquire(tenant, &key).await)
    }

    fn put(
        &mut self,
        key: String,
        value: Vec<u8>,
        ttl_ms: u64,
    ) -> wasmtime::Result<Result<u64, SessionError>> {
        let tenant = self.tenant();
        Ok(self.session.put(tenant, &key, value, Duration::from_millis(ttl_ms)))
    }

    fn release(&mut self, key: String) -> wasmtime::Result<()> {
        self.session.release(&key);
        Ok(())
    }

    fn invalidate(&mut self, key: String, generation: u64) -> wasmtime::Result<()> {
        let tenant = self.tenant();
        self.session.store.invalidate(tenant, &key, generation);
        Ok(())
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
