//! Changes of a ConfigMap of the journal by a client that is not its owner.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

use cofferdam_domain::Uid;

use super::{
    intent::Intent,
    state::{ShardChange, State},
};

/// Claim uids that the text of a change names, of each kind.
const MAX_NAMED: usize = 3;

/// The claims whose intents differ from those that this process has written or read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ForeignChange {
    added: BTreeSet<Uid>,
    removed: BTreeSet<Uid>,
    replaced: BTreeSet<Uid>,
}

impl ForeignChange {
    /// Compares the data of the ConfigMap `index`, `None` if it does not exist, with the known intents, and
    /// marks those whose removal it finds. Intents whose removal is in `batch` or pending may be there
    /// still. `own_writes` has the claims whose intents this process may have written or removed.
    pub(super) fn find(
        state: &mut State,
        index: usize,
        data: Option<&HashMap<String, String>>,
        batch: &BTreeMap<Uid, ShardChange>,
        own_writes: &BTreeSet<Uid>,
    ) -> Self {
        let mut change = Self::default();
        let known = state
            .intents
            .iter_mut()
            .filter(|(uid, tracked)| tracked.durable && tracked.shard == index && !own_writes.contains(*uid));
        for (uid, tracked) in known {
            match data.and_then(|data| data.get(&uid.to_string())) {
                None if std::mem::replace(&mut tracked.is_removal_reported, true) => continue,
                None => change.removed.insert(uid.clone()),
                Some(json) if is_encoded(&tracked.intent, json) => continue,
                Some(_) => change.replaced.insert(uid.clone()),
            };
        }
        let pending = state.shards.get(index).map(|shard| &shard.pending_changes);
        for (uid, json) in data.into_iter().flatten() {
            let uid = Uid::from(&**uid);
            let is_removal = |changes: &BTreeMap<Uid, ShardChange>| {
                let removed = changes.get(&uid).and_then(ShardChange::removed);
                removed.is_some_and(|removed| is_encoded(removed, json))
            };
            let is_known =
                state.intents.get(&uid).is_some_and(|tracked| tracked.durable && tracked.shard == index)
                    || state.undecodable.contains(&uid)
                    || own_writes.contains(&uid);
            if !is_known && !is_removal(batch) && !pending.is_some_and(is_removal) {
                change.added.insert(uid);
            }
        }
        change
    }

    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.replaced.is_empty()
    }
}

/// Returns `true` if the text is this intent.
fn is_encoded(intent: &Intent, json: &str) -> bool {
    serde_json::from_str::<Intent>(json).is_ok_and(|decoded| decoded == *intent)
}

impl fmt::Display for ForeignChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [("removed", &self.removed), ("replaced", &self.replaced), ("added", &self.added)];
        let mut separator = "";
        for (verb, uids) in kinds.into_iter().filter(|(_, uids)| !uids.is_empty()) {
            let named: Vec<String> = uids.iter().take(MAX_NAMED).map(Uid::to_string).collect();
            write!(f, "{separator}{verb} {} (claim uids {}", uids.len(), named.join(", "))?;
            f.write_str(if uids.len() > MAX_NAMED { ", …)" } else { ")" })?;
            separator = ", ";
        }
        Ok(())
    }
}
