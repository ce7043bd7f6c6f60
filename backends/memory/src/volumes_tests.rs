//! The sum is right whenever a call dies, and whoever writes in between.

use std::{
    cell::{Cell, RefCell},
    ops::Bound::{Excluded, Unbounded},
};

use cofferdam_guest::{
    AccessMode, AccessType, CapacityRange, ErrorKind, Finality, VolumeCapability,
    state::{Bound, Change, Entry, Expected, Found, Page, Put, Remove, Version},
};

use super::*;

/// A store that dies after some calls, and into which a stranger can write before a commit.
#[derive(Default)]
struct Fake {
    entries: RefCell<BTreeMap<String, (Vec<u8>, Version)>>,
    version: Cell<Version>,
    calls_left: Cell<Option<u32>>,
    conflicts_left: Cell<u32>,
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

    fn ledger(&self) -> Ledger {
        state::read(self, LEDGER).unwrap().map(|read| read.value).unwrap_or_default()
    }

    fn sum(&self) -> Ledger {
        let page = self.scan("volume/", None, u32::MAX).unwrap();
        let bytes = page.entries.iter().map(|found| {
            let key = &found.key;
            state::read::<Record>(self, key).unwrap().unwrap().value.size
        });
        Ledger { bytes: bytes.sum(), volumes: u64::try_from(page.entries.len()).unwrap() }
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

    fn scan(&self, prefix: &str, after: Option<&str>, _: u32) -> std::result::Result<Page, StateError> {
        let entries = self.entries.borrow();
        let start = Excluded(after.unwrap_or("").to_owned());
        let found = entries.range((start, Unbounded)).filter(|(key, _)| key.starts_with(prefix));
        let entry = |(key, (value, version)): (&String, &(Vec<u8>, Version))| Found {
            key: key.clone(),
            value: value.clone(),
            version: *version,
        };
        Ok(Page { entries: found.map(entry).collect(), more: false })
    }
}

fn request(name: &str, bytes: u64) -> CreateRequest {
    CreateRequest {
        name: name.to_owned(),
        capacity: CapacityRange { required_bytes: Some(bytes), limit_bytes: None },
        capabilities: vec![VolumeCapability {
            mode: AccessMode::SingleNodeWriter,
            access: AccessType::Block,
        }],
        parameters: Vec::new(),
        mutable_parameters: Vec::new(),
        topology: None,
        owner: None,
    }
}

const SETTINGS: Settings = Settings { capacity: Some(100) };

#[test]
fn the_sum_is_right_whenever_a_call_dies() {
    for dies_after in 0..6 {
        let store = Fake::default();
        create(&store, &SETTINGS, request("old", 30)).unwrap();
        store.calls_left.set(Some(dies_after));
        let first = create(&store, &SETTINGS, request("new", 20));
        store.calls_left.set(None);
        assert_eq!(store.ledger(), store.sum(), "create, dead after {dies_after} calls");
        assert_eq!(first.is_ok(), store.sum().bytes == 50);
        let handle = create(&store, &SETTINGS, request("new", 20)).unwrap().handle;
        assert_eq!(store.ledger(), Ledger { bytes: 50, volumes: 2 });
        store.calls_left.set(Some(dies_after));
        let _ = delete(&store, &handle);
        store.calls_left.set(None);
        assert_eq!(store.ledger(), store.sum(), "delete, dead after {dies_after} calls");
        delete(&store, &handle).unwrap();
        assert_eq!(store.ledger(), Ledger { bytes: 30, volumes: 1 });
    }
}

#[test]
fn a_foreign_write_makes_it_decide_anew_but_not_for_ever() {
    let store = Fake::default();
    store.conflicts_left.set(3);
    create(&store, &SETTINGS, request("v", 20)).unwrap();
    assert_eq!(store.ledger(), store.sum());
    store.conflicts_left.set(u32::MAX);
    let error = create(&store, &SETTINGS, request("w", 20)).unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Aborted, Finality::Final));
}

#[test]
fn a_full_store_of_the_host_is_a_full_driver() {
    let error = StorageError::from(StateError::Full(Bound { limit: 1, given: 2 }));
    assert_eq!((error.kind, error.finality), (ErrorKind::ResourceExhausted, Finality::Final));
}
