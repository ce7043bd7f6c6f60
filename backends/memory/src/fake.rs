//! A store for tests.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
};

use cofferdam_guest::state::{
    self, Change, Entry, Page, Precondition, Put, Remove, ScanEntry, StateError, Store, Version,
};
use serde::de::DeserializeOwned;

use crate::records::{
    self, MemoryGroup, MemoryNode, MemorySnapshot, MemoryVolume, SNAPSHOT_PREFIX, StorageUsage, USAGE_KEY,
    VOLUME_PREFIX,
};

/// A store whose `get` and `commit` fail after `calls_left` calls (never if `None`), and whose next
/// `conflicts_left` commits conflict.
#[derive(Default, Debug)]
pub(crate) struct FakeStore {
    pub(crate) entries: RefCell<BTreeMap<String, (Vec<u8>, Version)>>,
    version: Cell<Version>,
    pub(crate) calls_left: Cell<Option<u32>>,
    pub(crate) conflicts_left: Cell<u32>,
}

impl FakeStore {
    fn consume_call(&self) -> std::result::Result<(), StateError> {
        match self.calls_left.get() {
            Some(0) => Err(StateError::Unavailable("the instance died".to_owned())),
            left => {
                self.calls_left.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }

    /// Sets the usage entry.
    pub(crate) fn put_usage(&self, usage: &StorageUsage) {
        let version = state::read::<StorageUsage>(self, USAGE_KEY).unwrap().map(|read| read.version);
        self.commit(&[state::put(USAGE_KEY, usage, version).unwrap()]).unwrap();
    }

    /// The stored usage entry.
    pub(crate) fn usage(&self) -> StorageUsage {
        state::read(self, USAGE_KEY).unwrap().map(|read| read.value).unwrap_or_default()
    }

    /// All entries with a key prefix, by key.
    pub(crate) fn all<T: DeserializeOwned>(&self, prefix: &str) -> Vec<(String, T)> {
        let page = self.scan(prefix, None, u32::MAX).unwrap();
        page.entries.iter().map(|found| (found.key.clone(), records::decode_entry(found).unwrap())).collect()
    }

    /// The usage entry and the number of volumes per node, computed from the stored volumes and snapshots.
    pub(crate) fn expected_usage(&self) -> (StorageUsage, BTreeMap<String, u64>) {
        let (mut usage, mut nodes) = (StorageUsage::default(), BTreeMap::new());
        for (_, volume) in self.all::<MemoryVolume>(VOLUME_PREFIX) {
            usage.add_bytes(volume.segment.as_ref(), volume.size);
            usage.volumes += 1;
            for node in volume.nodes.keys() {
                *nodes.entry(node.clone()).or_default() += 1;
            }
        }
        let snapshots = self.all::<MemorySnapshot>(SNAPSHOT_PREFIX);
        usage.snapshots = u64::try_from(snapshots.len()).unwrap();
        (usage, nodes)
    }

    /// Panics unless the usage and node entries match the volumes and snapshots, and the group entries match
    /// the snapshots that are members of a group.
    pub(crate) fn check_consistency(&self, when: &str) {
        let nodes = self
            .all::<MemoryNode>("node/")
            .into_iter()
            .map(|(key, node)| (key["node/".len()..].to_owned(), node.volumes));
        assert_eq!((self.usage(), nodes.collect()), self.expected_usage(), "{when}");
        let groups = self.all::<MemoryGroup>("group/");
        let members: BTreeSet<_> =
            groups.iter().flat_map(|(_, group)| group.members.values().cloned()).collect();
        let group_members = self
            .all::<MemorySnapshot>(SNAPSHOT_PREFIX)
            .into_iter()
            .filter(|(_, snapshot)| snapshot.group.is_some());
        assert_eq!(
            group_members.map(|(key, _)| key[SNAPSHOT_PREFIX.len()..].to_owned()).collect::<BTreeSet<_>>(),
            members,
            "{when}"
        );
    }
}

impl Store for FakeStore {
    fn get(&self, key: &str) -> std::result::Result<Option<Entry>, StateError> {
        self.consume_call()?;
        let entries = self.entries.borrow();
        Ok(entries.get(key).map(|(value, version)| Entry { value: value.clone(), version: *version }))
    }

    fn commit(&self, changes: &[Change]) -> std::result::Result<Version, StateError> {
        self.consume_call()?;
        if self.conflicts_left.get() > 0 {
            self.conflicts_left.set(self.conflicts_left.get() - 1);
            return Err(StateError::Conflict(USAGE_KEY.to_owned()));
        }
        let mut entries = self.entries.borrow_mut();
        for change in changes {
            let (key, met) = match change {
                Change::Put(Put { key, precondition: Precondition::Absent, .. }) => {
                    (key, !entries.contains_key(key))
                }
                Change::Put(Put { key, precondition: Precondition::At(version), .. })
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
        let entry = |(key, (value, version)): (&String, &(Vec<u8>, Version))| ScanEntry {
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
