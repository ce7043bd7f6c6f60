//! The logins, with the host's rules: times on the mock's clock, one turn for each call.

use std::collections::BTreeMap;

use super::state::bound;
use crate::bindings::cofferdam::storage::session::{Acquired, Entry, Generation, SessionError};

const MAX_KEY: usize = 128;
const MAX_VALUE: usize = 8 << 10;

/// The logins, and the turn that the running call has.
#[derive(Debug, Default)]
pub(super) struct Logins {
    held: BTreeMap<String, Held>,
    generation: Generation,
    turn: Option<String>,
    limit: Option<usize>,
}

#[derive(Debug)]
struct Held {
    value: Vec<u8>,
    generation: Generation,
    until_ms: u64,
}

impl Logins {
    pub(super) fn limit(&mut self, keys: usize) {
        self.limit = Some(keys);
    }

    pub(super) fn acquire(&mut self, key: &str, now_ms: u64) -> Result<Acquired, SessionError> {
        check_key(key)?;
        if let Some(turn) = self.turn.as_deref().filter(|turn| *turn != key) {
            return Err(SessionError::TurnHeld(turn.to_owned()));
        }
        self.expire(now_ms);
        if let Some(held) = self.held.get(key) {
            return Ok(Acquired::Held(Entry { value: held.value.clone(), generation: held.generation }));
        }
        if let Some(limit) = self.limit.filter(|limit| self.held.len() >= *limit) {
            return Err(SessionError::Full(bound(limit, self.held.len().saturating_add(1))));
        }
        self.turn = Some(key.to_owned());
        Ok(Acquired::Vacant)
    }

    pub(super) fn put(
        &mut self,
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
        let new = !self.held.contains_key(key);
        if let Some(limit) = self.limit.filter(|limit| new && self.held.len() >= *limit) {
            return Err(SessionError::Full(bound(limit, self.held.len().saturating_add(1))));
        }
        self.generation = self.generation.saturating_add(1);
        let held = Held {
            value: value.to_vec(),
            generation: self.generation,
            until_ms: now_ms.saturating_add(ttl_ms),
        };
        self.held.insert(key.to_owned(), held);
        self.release(key);
        Ok(self.generation)
    }

    pub(super) fn release(&mut self, key: &str) {
        if self.turn.as_deref() == Some(key) {
            self.turn = None;
        }
    }

    pub(super) fn invalidate(&mut self, key: &str, generation: Generation) {
        if self.held.get(key).is_some_and(|held| held.generation == generation) {
            self.held.remove(key);
        }
    }

    /// Gives back what the call has left behind.
    pub(super) fn end_call(&mut self) {
        self.turn = None;
    }

    pub(super) fn turn(&self) -> Option<String> {
        self.turn.clone()
    }

    pub(super) fn keys(&mut self, now_ms: u64) -> Vec<String> {
        self.expire(now_ms);
        self.held.keys().cloned().collect()
    }

    pub(super) fn clear(&mut self) {
        self.held.clear();
    }

    fn expire(&mut self, now_ms: u64) {
        self.held.retain(|_, held| held.until_ms > now_ms);
    }
}

fn check_key(key: &str) -> Result<(), SessionError> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(SessionError::KeySize(bound(MAX_KEY, key.len())));
    }
    Ok(())
}
