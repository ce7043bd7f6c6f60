//! Sessions: separate for each set of secrets, with expiry by the mock's clock and one lock per call. Unlike
//! in the host, a full store drops no session, and no call waits for another call's lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use super::state::bound;
use crate::bindings::cofferdam::storage::session::{Acquired, Entry, Generation, SessionError};

const MAX_KEY: usize = 128;
const MAX_VALUE: usize = 8 << 10;

/// The secrets of a call, by name.
pub(super) type SecretSet = BTreeMap<String, Rc<str>>;

/// The sessions, and the lock held by the running call.
#[derive(Debug, Default)]
pub(super) struct MockSessionStore {
    /// By the secrets of the calls that share a session, and its key.
    entries: BTreeMap<(SecretSet, String), MockSessionEntry>,
    generation: Generation,
    locked_key: Option<String>,
    limit: Option<usize>,
}

#[derive(Debug)]
struct MockSessionEntry {
    value: Vec<u8>,
    generation: Generation,
    expires_at_ms: u64,
}

impl MockSessionStore {
    pub(super) fn set_limit(&mut self, keys: usize) {
        self.limit = Some(keys);
    }

    pub(super) fn acquire(
        &mut self,
        secrets: &SecretSet,
        key: &str,
        now_ms: u64,
    ) -> Result<Acquired, SessionError> {
        check_key(key)?;
        if let Some(locked_key) = self.locked_key.as_deref().filter(|locked_key| *locked_key != key) {
            return Err(SessionError::LockHeld(locked_key.to_owned()));
        }
        self.expire(now_ms);
        if let Some(entry) = self.entries.get(&session_key(secrets, key)) {
            return Ok(Acquired::Found(Entry { value: entry.value.clone(), generation: entry.generation }));
        }
        if let Some(limit) = self.limit.filter(|limit| self.entries.len() >= *limit) {
            return Err(SessionError::Full(bound(limit, self.entries.len().saturating_add(1))));
        }
        self.locked_key = Some(key.to_owned());
        Ok(Acquired::Locked)
    }

    pub(super) fn put(
        &mut self,
        secrets: &SecretSet,
        key: &str,
        value: &[u8],
        ttl_ms: u64,
        now_ms: u64,
    ) -> Result<Generation, SessionError> {
        check_key(key)?;
        if value.len() > MAX_VALUE {
            return Err(SessionError::ValueSize(bound(MAX_VALUE, value.len())));
        }
        self.expire(now_ms);
        let session = session_key(secrets, key);
        let new = !self.entries.contains_key(&session);
        if let Some(limit) = self.limit.filter(|limit| new && self.entries.len() >= *limit) {
            return Err(SessionError::Full(bound(limit, self.entries.len().saturating_add(1))));
        }
        self.generation = self.generation.saturating_add(1);
        let entry = MockSessionEntry {
            value: value.to_vec(),
            generation: self.generation,
            expires_at_ms: now_ms.saturating_add(ttl_ms),
        };
        self.entries.insert(session, entry);
        self.release(key);
        Ok(self.generation)
    }

    pub(super) fn release(&mut self, key: &str) {
        if self.locked_key.as_deref() == Some(key) {
            self.locked_key = None;
        }
    }

    pub(super) fn invalidate(&mut self, secrets: &SecretSet, key: &str, generation: Generation) {
        let session = session_key(secrets, key);
        if self.entries.get(&session).is_some_and(|entry| entry.generation == generation) {
            self.entries.remove(&session);
        }
    }

    /// Releases the lock of the call.
    pub(super) fn end_call(&mut self) {
        self.locked_key = None;
    }

    pub(super) fn locked_key(&self) -> Option<String> {
        self.locked_key.clone()
    }

    pub(super) fn keys(&mut self, now_ms: u64) -> Vec<String> {
        self.expire(now_ms);
        let keys: BTreeSet<_> = self.entries.keys().map(|(_, key)| key.clone()).collect();
        keys.into_iter().collect()
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    fn expire(&mut self, now_ms: u64) {
        self.entries.retain(|_, entry| entry.expires_at_ms > now_ms);
    }
}

fn session_key(secrets: &SecretSet, key: &str) -> (SecretSet, String) {
    (secrets.clone(), key.to_owned())
}

fn check_key(key: &str) -> Result<(), SessionError> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(SessionError::KeySize(bound(MAX_KEY, key.len())));
    }
    Ok(())
}
