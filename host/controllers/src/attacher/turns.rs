//! One call at a time for a volume, in the order in which attachments asked.
//!
//! A volume for many nodes has many attachments, and drivers are given one call for a volume at a time. Whoever comes while
//! another's call runs is put aside without holding a worker, and woken when it is its turn.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{Mutex, MutexGuard, PoisonError},
};

use cofferdam_domain::{AttachmentName, DriverName, VolumeHandle};

/// A driver's volume.
pub(super) type Key = (DriverName, VolumeHandle);

struct Turn {
    of: AttachmentName,
    /// Whether it has been taken; else it is kept for who was woken.
    taken: bool,
    waiting: VecDeque<AttachmentName>,
}

/// Whose turn it is at which volume.
#[derive(Default)]
pub(super) struct Turns(Mutex<State>);

#[derive(Default)]
struct State {
    turns: HashMap<Key, Turn>,
    /// Turns that are kept for who was woken.
    kept: HashMap<AttachmentName, Key>,
}

impl Turns {
    /// Takes the turn; otherwise who asks waits, and [`end`](Self::end) names it when it is its turn.
    pub(super) fn take(&self, key: &Key, name: &AttachmentName) -> bool {
        let mut state = self.lock();
        match state.turns.entry(key.clone()) {
            Entry::Vacant(free) => {
                free.insert(Turn { of: name.clone(), taken: true, waiting: VecDeque::new() });
            }
            Entry::Occupied(turn) => {
                let turn = turn.into_mut();
                if turn.taken || turn.of != *name {
                    if !turn.waiting.contains(name) {
                        turn.waiting.push_back(name.clone());
                    }
                    return false;
                }
                turn.taken = true;
            }
        }
        state.kept.remove(name);
        true
    }

    /// Ends a turn. Returns whose it is now: that one must be woken.
    pub(super) fn end(&self, key: &Key) -> Option<AttachmentName> {
        end(&mut self.lock(), key)
    }

    /// Gives up a turn that was kept for somebody who does not need it any more. Returns whose it is now.
    pub(super) fn pass(&self, name: &AttachmentName) -> Option<AttachmentName> {
        let mut state = self.lock();
        let key = state.kept.remove(name)?;
        end(&mut state, &key)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(state: &mut State, key: &Key) -> Option<AttachmentName> {
    let turn = state.turns.get_mut(key)?;
    let Some(next) = turn.waiting.pop_front() else {
        state.turns.remove(key);
        return None;
    };
    (turn.of, turn.taken) = (next.clone(), false);
    state.kept.insert(next.clone(), key.clone());
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_the_order_of_asking_and_none_is_lost() {
        let turns = Turns::default();
        let key = (DriverName::from("d"), VolumeHandle::from("h"));
        let other = (DriverName::from("e"), VolumeHandle::from("h"));
        let [a, b, c] = ["a", "b", "c"].map(AttachmentName::from);
        assert!(turns.take(&key, &a) && turns.take(&other, &b));
        assert!(!turns.take(&key, &c) && !turns.take(&key, &b) && !turns.take(&key, &c));
        // Its own, in the other lane.
        assert!(!turns.take(&key, &a));
        assert_eq!(turns.end(&key), Some(c.clone()));
        assert!(!turns.take(&key, &b), "it is kept for who was woken");
        assert_eq!(turns.pass(&c), Some(b.clone()), "who does not need it");
        assert_eq!(turns.pass(&c), None);
        assert!(turns.take(&key, &b));
        assert_eq!(turns.pass(&b), None, "it is taken");
        assert_eq!(turns.end(&key), Some(a.clone()));
        assert!(turns.take(&key, &a));
        assert_eq!(turns.end(&key), None);
        assert_eq!(turns.end(&key), None);
        assert!(turns.take(&key, &c));
    }
}
