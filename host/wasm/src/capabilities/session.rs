//! `session`: values that outlive a call, such as the token of a login. They are in memory, and separate for
//! each set of secrets. `acquire` locks a key without a value: one call at a time creates the value, and
//! other calls that acquire the key wait for it. `put` also works without the lock.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use cofferdam_backend::{MAX_DERIVED_SECRETS, Redactor};
use cofferdam_domain::storage::Secrets;
use tokio::{
    sync::{Notify, OwnedMutexGuard},
    time::Instant,
};
use wasmtime::component::HasData;
use zeroize::Zeroizing;

use super::secrets::Tenant;
use crate::{
    bindings::cofferdam::storage::session::{Acquired, Bound, Entry, Host, SessionError},
    limits::Limits,
    metrics::SessionMetrics,
};

/// Longest key in bytes, by contract.
const MAX_KEY: usize = 128;
/// Largest value in bytes, by contract.
const MAX_VALUE: usize = 8 << 10;

/// The keys and values of one backend.
#[derive(Debug)]
pub(crate) struct SessionStore {
    max_keys: usize,
    max_ttl: Duration,
    content: Mutex<SessionSlots>,
    metrics: OnceLock<SessionMetrics>,
}

#[derive(Debug, Default)]
struct SessionSlots {
    slots: HashMap<SessionKey, SessionSlot>,
    generation: u64,
}

/// A key with the digest of the secrets that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SessionKey {
    tenant: Tenant,
    key: String,
}

/// A key's value, and the lock for creating it.
#[derive(Debug, Default)]
struct SessionSlot {
    value: Option<SessionValue>,
    /// Held by the call that creates the value. Its queue is fair and drops cancelled calls.
    lock: Arc<tokio::sync::Mutex<()>>,
    /// Notifies waiting calls that there is a value.
    value_ready: Arc<Notify>,
}

struct SessionValue {
    bytes: Zeroizing<Vec<u8>>,
    generation: u64,
    expires: Instant,
}

impl fmt::Debug for SessionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl SessionSlot {
    /// The value, if it has not expired.
    fn live_value(&self) -> Option<&SessionValue> {
        self.value.as_ref().filter(|value| value.expires > Instant::now())
    }

    /// True if a call holds the lock or waits for it.
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.lock) > 1
    }
}

/// The lock of a key. The next call acquires it when this is dropped.
#[derive(Debug)]
pub(crate) struct SessionLock {
    key: String,
    _guard: OwnedMutexGuard<()>,
}

/// Result of a lookup of a key.
enum SessionLookup {
    Found(Entry),
    /// No value; the lock of the key, and the notification of a value.
    Missing(Arc<tokio::sync::Mutex<()>>, Arc<Notify>),
}

impl SessionStore {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            max_keys: limits.session_keys,
            max_ttl: Duration::from_millis(limits.session_ttl_ms),
            content: Mutex::default(),
            metrics: OnceLock::new(),
        }
    }

    /// Sets the metrics, once the driver's name is known. Earlier uses are not counted.
    pub(crate) fn set_metrics(&self, metrics: SessionMetrics) {
        // Set once: a component that replaces a running one keeps its store.
        let _ = self.metrics.set(metrics);
    }

    /// Returns a value, or the lock for creating it. Waits while another call has the lock. Cancelling the
    /// wait has no other effect.
    async fn acquire(&self, tenant: Tenant, key: &str) -> Result<Result<Entry, SessionLock>, SessionError> {
        check_key(key)?;
        let name = SessionKey { tenant, key: key.to_owned() };
        loop {
            let (session_lock, value_ready) = match self.lookup(&name)? {
                SessionLookup::Found(entry) => {
                    self.record(SessionMetrics::count_hit);
                    return Ok(Ok(entry));
                }
                SessionLookup::Missing(session_lock, value_ready) => (session_lock, value_ready),
            };
            let value_ready = value_ready.notified();
            tokio::pin!(value_ready);
            value_ready.as_mut().enable();
            // Another call may have stored a value after the lookup: there was no notification.
            if self.has_value(&name) {
                continue;
            }
            tokio::select! {
                biased;
                () = &mut value_ready => {}
                lock = session_lock.lock_owned() => {
                    if !self.has_value(&name) {
                        self.record(SessionMetrics::count_miss);
                        return Ok(Err(SessionLock { key: name.key, _guard: lock }));
                    }
                }
            }
        }
    }

    fn lookup(&self, name: &SessionKey) -> Result<SessionLookup, SessionError> {
        let mut content = self.lock();
        let slot = content.slot(name, self.max_keys)?;
        Ok(match slot.live_value() {
            Some(value) => {
                SessionLookup::Found(Entry { value: value.bytes.to_vec(), generation: value.generation })
            }
            None => SessionLookup::Missing(Arc::clone(&slot.lock), Arc::clone(&slot.value_ready)),
        })
    }

    fn has_value(&self, name: &SessionKey) -> bool {
        self.lock().slots.get(name).is_some_and(|slot| slot.live_value().is_some())
    }

    fn put(&self, tenant: Tenant, key: &str, value: Vec<u8>, ttl: Duration) -> Result<u64, SessionError> {
        let value = Zeroizing::new(value);
        check_key(key)?;
        if value.len() > MAX_VALUE {
            return Err(SessionError::ValueSize(bound(MAX_VALUE, value.len())));
        }
        let name = SessionKey { tenant, key: key.to_owned() };
        let mut content = self.lock();
        let generation = content.generation.saturating_add(1);
        let slot = content.slot(&name, self.max_keys)?;
        let expires = Instant::now() + ttl.min(self.max_ttl);
        slot.value = Some(SessionValue { bytes: value, generation, expires });
        slot.value_ready.notify_waiters();
        content.generation = generation;
        content.remove_expired();
        self.record(SessionMetrics::count_put);
        self.update_gauge(&content);
        Ok(generation)
    }

    fn invalidate(&self, tenant: Tenant, key: &str, generation: u64) {
        let name = SessionKey { tenant, key: key.to_owned() };
        let mut content = self.lock();
        if let Some(slot) = content.slots.get_mut(&name)
            && slot.live_value().is_some_and(|value| value.generation == generation)
        {
            slot.value = None;
            self.record(SessionMetrics::count_invalidation);
        }
        content.remove_expired();
        self.update_gauge(&content);
    }

    fn lock(&self) -> MutexGuard<'_, SessionSlots> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, update: impl FnOnce(&SessionMetrics)) {
        self.metrics.get().map(update);
    }

    fn update_gauge(&self, content: &SessionSlots) {
        let entries = content.slots.values().filter(|slot| slot.value.is_some()).count();
        self.record(|metrics| metrics.set_entries(entries));
    }
}

impl SessionSlots {
    /// The slot of a key. A new slot may evict an idle one; fails with `Full` if all slots are in use.
    fn slot(&mut self, name: &SessionKey, max_keys: usize) -> Result<&mut SessionSlot, SessionError> {
        if !self.slots.contains_key(name) && self.slots.len() >= max_keys {
            self.remove_expired();
            if self.slots.len() >= max_keys {
                self.evict_one();
            }
            if self.slots.len() >= max_keys {
                return Err(SessionError::Full(bound(max_keys, max_keys.saturating_add(1))));
            }
        }
        Ok(self.slots.entry(name.clone()).or_default())
    }

    /// Drops one key that no call has locked or waits for: a key without a value, else the one whose value
    /// expires first. Calls with many sets of secrets must not prevent all others from storing a value.
    fn evict_one(&mut self) {
        let idle = self.slots.iter().filter(|(_, slot)| !slot.is_in_use());
        let expiry = |slot: &SessionSlot| slot.value.as_ref().map(|value| value.expires);
        let first = idle.min_by_key(|(_, slot)| expiry(slot)).map(|(name, _)| name.clone());
        first.map(|first| self.slots.remove(&first));
    }

    /// Drops expired values, and keys without a value, lock or waiting call.
    fn remove_expired(&mut self) {
        self.slots.retain(|_, slot| {
            if slot.live_value().is_none() {
                slot.value = None;
            }
            slot.value.is_some() || slot.is_in_use()
        });
    }
}

fn bound(limit: usize, actual: usize) -> Bound {
    Bound { limit: limit.try_into().unwrap_or(u64::MAX), given: actual.try_into().unwrap_or(u64::MAX) }
}

fn check_key(key: &str) -> Result<(), SessionError> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(SessionError::KeySize(bound(MAX_KEY, key.len())));
    }
    Ok(())
}

/// The store as one call uses it, with the lock that the call holds, if any.
#[derive(Debug)]
pub(crate) struct Session {
    store: Arc<SessionStore>,
    lock: Option<SessionLock>,
}

impl Session {
    pub(crate) fn new(store: Arc<SessionStore>) -> Self {
        Self { store, lock: None }
    }

    fn release(&mut self, key: &str) {
        self.lock.take_if(|turn| turn.key == key);
    }

    async fn acquire(&mut self, tenant: Tenant, key: &str) -> Result<Acquired, SessionError> {
        check_key(key)?;
        match &self.lock {
            Some(turn) if turn.key != key => return Err(SessionError::LockHeld(turn.key.clone())),
            Some(_) => {
                // Another call may have stored a value without the lock.
                let name = SessionKey { tenant, key: key.to_owned() };
                if !self.store.has_value(&name) {
                    return Ok(Acquired::Locked);
                }
                self.release(key);
            }
            None => {}
        }
        Ok(match self.store.acquire(tenant, key).await? {
            Ok(entry) => Acquired::Found(entry),
            Err(turn) => {
                self.lock = Some(turn);
                Acquired::Locked
            }
        })
    }

    fn put(&mut self, tenant: Tenant, key: &str, value: Vec<u8>, ttl: Duration) -> Result<u64, SessionError> {
        let generation = self.store.put(tenant, key, value, ttl)?;
        self.release(key);
        Ok(generation)
    }
}

/// The `session` import of one call.
pub(crate) struct SessionView<'a> {
    pub(crate) session: &'a mut Session,
    pub(crate) secrets: &'a Secrets,
    pub(crate) redactor: &'a Redactor,
}

impl HasData for SessionView<'static> {
    type Data<'a> = SessionView<'a>;
}

impl SessionView<'_> {
    /// Adds a value to the texts that are redacted: it is a login token. A value that is not text cannot
    /// occur in one. The error is that the call has too many tokens.
    fn add_token(&self, value: &[u8]) -> Result<(), SessionError> {
        let token = std::str::from_utf8(value).unwrap_or_default().trim();
        if self.redactor.add_token(token) {
            return Ok(());
        }
        Err(SessionError::Full(bound(MAX_DERIVED_SECRETS, MAX_DERIVED_SECRETS.saturating_add(1))))
    }
}

impl Host for SessionView<'_> {
    async fn acquire(&mut self, key: String) -> wasmtime::Result<Result<Acquired, SessionError>> {
        let tenant = Tenant::from_secrets(self.secrets);
        let acquired = self.session.acquire(tenant, &key).await;
        Ok(acquired.and_then(|acquired| {
            if let Acquired::Found(entry) = &acquired {
                self.add_token(&entry.value)?;
            }
            Ok(acquired)
        }))
    }

    fn put(
        &mut self,
        key: String,
        value: Vec<u8>,
        ttl_ms: u64,
    ) -> wasmtime::Result<Result<u64, SessionError>> {
        let tenant = Tenant::from_secrets(self.secrets);
        let added = self.add_token(&value);
        Ok(added.and_then(|()| self.session.put(tenant, &key, value, Duration::from_millis(ttl_ms))))
    }

    fn release(&mut self, key: String) -> wasmtime::Result<()> {
        self.session.release(&key);
        Ok(())
    }

    fn invalidate(&mut self, key: String, generation: u64) -> wasmtime::Result<()> {
        let tenant = Tenant::from_secrets(self.secrets);
        self.session.store.invalidate(tenant, &key, generation);
        Ok(())
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
