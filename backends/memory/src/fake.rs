//! A store for tests.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
};

use cofferdam_guest::state::{
    self, Change, Entry, Expected, Found, Page, Put, Remove, StateError, Store, Version,
};
use serde::de::DeserializeOwned;

use crate::records::{self, Group, LEDGER, Ledger, Node, SNAPSHOTS, Snapshot, VOLUMES, Volume};

/// A store that dies after some calls, and into which a stranger can write before a commit.
#[derive(Default, Debug)]
pub(crate) struct Fake {
    pub(crate) entries: RefCell<BTreeMap<String, (Vec<u8>, Version)>>,
    version: Cell<Version>,
    pub(crate) calls_left: Cell<Option<u32>>,
    pub(crate) conflicts_left: Cell<u32>,
}

impl Fake {
    fn step(&self) -> std::result::Result<(), StateError> {
        match self.calls_left.get() {
            Some(0) => Err(StateError::Unavailable("the instance died".to_owned())),
            left => {
                self.calls_left.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }

    /// Sets the ledger.
    pub(crate) fn put_ledger(&self, ledger: &Ledger) {
        let version = state::read::<Ledger>(self, LEDGER).unwrap().map(|read| read.version);
        self.commit(&[state::put(LEDGER, ledger, version).unwrap()]).unwrap();
    }

    /// The ledger as it stands.
    pub(crate) fn ledger(&self) -> Ledger {
        state::read(self, LEDGER).unwrap().map(|read| read.value).unwrap_or_default()
    }

    /// Everything of a kind, by its key.
    pub(crate) fn all<T: DeserializeOwned>(&self, prefix: &str) -> Vec<(String, T)> {
        let page = self.scan(prefix, None, u32::MAX).unwrap();
        page.entries.iter().map(|found| (found.key.clone(), records::decode(found).unwrap())).collect()
    }

    /// What the ledger has to say, and what each node has to.
    pub(crate) fn sum(&self) -> (Ledger, BTreeMap<String, u64>) {
        let (mut ledger, mut nodes) = (Ledger::default(), BTreeMap::new());
        for (_, volume) in self.all::<Volume>(VOLUMES) {
            ledger.charge(volume.place.as_ref(), volume.size);
            ledger.volumes += 1;
            for node in volume.nodes.keys() {
                *nodes.entry(node.clone()).or_default() += 1;
            }
        }
        let snapshots = self.all::<Snapshot>(SNAPSHOTS);
        ledger.snapshots = u64::try_from(snapshots.len()).unwrap();
        (ledger, nodes)
    }

    /// Fails unless everything that is kept agrees with everything else.
    pub(crate) fn check(&self, when: &str) {
        let nodes = self
            .all::<Node>("node/")
            .into_iter()
            .map(|(key, node)| (key["node/".len()..].to_owned(), node.volumes));
        assert_eq!((self.ledger(), nodes.collect()), self.sum(), "{when}");
        let groups = self.all::<Group>("group/");
        let members: BTreeSet<_> =
            groups.iter().flat_map(|(_, group)| group.members.values().cloned()).collect();
        let kept =
            self.all::<Snapshot>(SNAPSHOTS).into_iter().filter(|(_, snapshot)| snapshot.group.is_some());
        assert_eq!(
            kept.map(|(key, _)| key[SNAPSHOTS.len()..].to_owned()).collect::<BTreeSet<_>>(),
            members,
            "{when}"
        );
    }
}

impl Store for Fake {
    fn get(&self, key: &str) -> std::result::Result<Option<Entry>, StateError> {
        self.step()?;
        let entries = self.entries.borrow();
        Ok(entries.get(key).map(|(value, version)| Entry { value: value.clone(), version: *version }))
    }

    fn commit(&self, changes: &[Change]) -> std::result::Result<Version, StateError> {
        self.step()?;
        if self.conflicts_left.get() > 0 {
            self.conflicts_left.set(self.conflicts_left.get() - 1);
            return Err(StateError::Conflict(LEDGER.to_owned()));
        }
        let mut entries = self.entries.borrow_mut();
        for change in changes {
            let (key, met) = match change {
                Change::Put(Put { key, expected: Expected::Absent, .. }) => (key, !entries.contains_key(key)),
                Change::Put(Put { key, expected: Expected::At(version), .. })
                | Change::Remove(Remove { key, version }) => {
                    (key, entries.get(key).is_some_and(|(_, found)| found == version))
                }
            };
            if !met {
                return Err(StateError::Conflict(key.clone()));
            }
        }
        let version = self.version.get() + 1;
        self.version.set(version);
        for change in changes {
            match change {
                Change::Put(Put { key, value, .. }) => entries.insert(key.clone(), (value.clone(), version)),
                Change::Remove(Remove { key, .. }) => entries.remove(key),
            };
        }
        Ok(version)
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> std::result::Result<Page, StateError> {
        let entries = self.entries.borrow();
        let start = Excluded(after.unwrap_or("").to_owned());
        let found = entries.range((start, Unbounded)).filter(|(key, _)| key.starts_with(prefix));
        let entry = |(key, (value, version)): (&String, &(Vec<u8>, Version))| Found {
            key: key.clone(),
            value: value.clone(),
            version: *version,
        };
        let limit = usize::try_from(limit).unwrap();
        let mut entries: Vec<_> = found.map(entry).take(limit.saturating_add(1)).collect();
        let more = entries.len() > limit;
        entries.truncate(limit);
        Ok(Page { entries, more })
    }
}
