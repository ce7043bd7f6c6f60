//! Recovery from crashes at every step, by a retry or by the inverse operation; failed creates, validation of
//! requests, and listings.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
};

use cofferdam_guest::{
    AccessMode, AccessType, CapacityRange, ErrorKind, FilesystemAccess, Finality, StorageError,
    VolumeCapability,
    pool::{Bound, CopyMode, Item, ItemKind, Page as PoolPage, Pool as _, PoolError, Space},
    state::{self, Change, Entry, Page, Precondition, Put, Remove, ScanEntry, StateError, Store, Version},
};

use super::*;
use crate::items::{RecordPhase, StoredRecord};

#[path = "overlapping_calls.rs"]
mod overlapping_calls;
#[path = "rule_tests.rs"]
mod rule_tests;

type Items = BTreeMap<String, (ItemKind, Option<u64>, String)>;

/// A store and a pool that fail together after `calls_left` calls (never if `None`). With `response_lost`,
/// the last of these calls takes effect and has no response.
#[derive(Default)]
struct FakeStorage {
    entries: RefCell<BTreeMap<String, (Vec<u8>, Version)>>,
    items: RefCell<Items>,
    version: Cell<Version>,
    calls_left: Cell<Option<u32>>,
    response_lost: Cell<bool>,
    max_image_bytes: Cell<Option<u64>>,
    busy: Cell<bool>,
    /// The pool applies changes and returns [`PoolError::Unknown`].
    unknown_results: Cell<bool>,
    /// The error returned instead of creating the next item.
    next_error: RefCell<Option<PoolError>>,
    fail_measure: Cell<bool>,
    /// True if the pool can make crash-consistent copies of images.
    shares_blocks: Cell<bool>,
    now_ms: Cell<u64>,
    random: Cell<u64>,
}

impl FakeStorage {
    /// Returns whether this call takes effect, and whether its response is delivered.
    fn consume_call(&self) -> (bool, bool) {
        match self.calls_left.get() {
            None => (true, true),
            Some(0) => (false, false),
            Some(left) => {
                self.calls_left.set(Some(left - 1));
                (true, left > 1 || !self.response_lost.get())
            }
        }
    }

    fn run_state_call<T>(
        &self,
        call: impl FnOnce() -> std::result::Result<T, StateError>,
    ) -> std::result::Result<T, StateError> {
        let (has_effect, answered) = self.consume_call();
        let answer = if has_effect { Some(call()) } else { None };
        answer.filter(|_| answered).unwrap_or_else(|| Err(StateError::Unavailable("it died".to_owned())))
    }

    fn run_pool_call<T>(
        &self,
        call: impl FnOnce() -> std::result::Result<T, PoolError>,
    ) -> std::result::Result<T, PoolError> {
        let (has_effect, answered) = self.consume_call();
        let answer = if has_effect { Some(call()) } else { None };
        let answer = if self.unknown_results.get() && matches!(answer, Some(Ok(_))) {
            Some(Err(PoolError::Unknown("it may not last".to_owned())))
        } else {
            answer
        };
        answer.filter(|_| answered).unwrap_or_else(|| Err(PoolError::Failed("it died".to_owned())))
    }

    fn add_item(
        &self,
        name: &str,
        item: (ItemKind, Option<u64>, String),
    ) -> std::result::Result<(), PoolError> {
        if self.busy.get() {
            return Err(PoolError::Busy(name.to_owned()));
        }
        if let Some(error) = self.next_error.take() {
            return Err(error);
        }
        if self.items.borrow().contains_key(name) {
            return Err(PoolError::Exists(name.to_owned()));
        }
        if let (Some(limit), Some(given)) = (self.max_image_bytes.get(), item.1)
            && given > limit
        {
            return Err(PoolError::NoSpace(Bound { limit, given }));
        }
        self.items.borrow_mut().insert(name.to_owned(), item);
        Ok(())
    }

    fn new() -> Self {
        Self { shares_blocks: Cell::new(true), now_ms: Cell::new(7), ..Self::default() }
    }

    fn storage(&self) -> NodeStorage<'_, Self, Self> {
        self.random.set(self.random.get() + 1);
        NodeStorage { store: self, pool: self, now_ms: self.now_ms.get(), random: self.random.get() }
    }

    /// The name of the item of a handle.
    fn item_of(&self, handle: &str) -> Option<String> {
        let items = self.items.borrow();
        items.keys().find(|name| name.rsplit_once('.').is_some_and(|(of, _)| of == handle)).cloned()
    }

    fn content_of(&self, handle: &str) -> Option<String> {
        self.item_of(handle).map(|item| self.items.borrow().get(&item).unwrap().2.clone())
    }

    fn set_content(&self, handle: &str, content: &str) {
        let item = self.item_of(handle).unwrap();
        content.clone_into(&mut self.items.borrow_mut().get_mut(&item).unwrap().2);
    }

    fn image_size(&self, handle: &str) -> Option<u64> {
        self.items.borrow().get(&self.item_of(handle).unwrap()).unwrap().1
    }

    fn record(&self, key: &str) -> StoredRecord {
        state::read::<StoredRecord>(self, key).unwrap().unwrap().value
    }

    /// The handles of all records. Panics if the pool contains other items than theirs.
    fn record_names(&self) -> Vec<String> {
        let keys: Vec<_> = self.entries.borrow().keys().cloned().collect();
        let mut items: Vec<_> = keys.iter().map(|key| self.record(key).item).collect();
        items.sort();
        assert_eq!(items, self.items.borrow().keys().cloned().collect::<Vec<_>>());
        keys.iter().map(|key| key.split('/').next_back().unwrap().to_owned()).collect()
    }
}

impl Store for FakeStorage {
    fn get(&self, key: &str) -> std::result::Result<Option<Entry>, StateError> {
        self.run_state_call(|| {
            let entries = self.entries.borrow();
            Ok(entries.get(key).map(|(value, version)| Entry { value: value.clone(), version: *version }))
        })
    }

    fn commit(&self, changes: &[Change]) -> std::result::Result<Version, StateError> {
        self.run_state_call(|| {
            let version = self.version.get() + 1;
            self.version.set(version);
            let mut entries = self.entries.borrow_mut();
            for change in changes {
                let (Change::Put(Put { key, .. }) | Change::Remove(Remove { key, .. })) = change;
                let found = entries.get(key).map(|(_, version)| *version);
                let expected = match change {
                    Change::Put(Put { precondition: Precondition::Absent, .. }) => None,
                    Change::Put(Put { precondition: Precondition::At(version), .. })
                    | Change::Remove(Remove { version, .. }) => Some(*version),
                };
                if found != expected {
                    return Err(StateError::Conflict(key.clone()));
                }
                match change {
                    Change::Put(Put { value, .. }) => entries.insert(key.clone(), (value.clone(), version)),
                    Change::Remove(_) => entries.remove(key),
                };
            }
            Ok(version)
        })
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> std::result::Result<Page, StateError> {
        self.run_state_call(|| {
            let entries = self.entries.borrow();
            let start = Excluded(after.unwrap_or(prefix).to_owned());
            let mut found = entries.range((start, Unbounded)).filter(|(key, _)| key.starts_with(prefix));
            let taken = found.by_ref().take(limit.try_into().unwrap());
            let page = taken.map(|(key, (value, version))| ScanEntry {
                key: key.clone(),
                value: value.clone(),
                version: *version,
            });
            Ok(Page { entries: page.collect(), more: found.next().is_some() })
        })
    }
}

impl pool::Pool for FakeStorage {
    fn create_directory(&self, name: &str) -> std::result::Result<(), PoolError> {
        self.run_pool_call(|| self.add_item(name, (ItemKind::Directory, None, String::new())))
    }

    fn create_image(&self, name: &str, size: u64) -> std::result::Result<(), PoolError> {
        self.run_pool_call(|| self.add_item(name, (ItemKind::Image, Some(size), String::new())))
    }

    fn remove(&self, name: &str) -> std::result::Result<(), PoolError> {
        self.run_pool_call(|| {
            let removed = self.items.borrow_mut().remove(name);
            removed.map(drop).ok_or_else(|| PoolError::Missing(name.to_owned()))
        })
    }

    fn grow(&self, name: &str, size: u64) -> std::result::Result<(), PoolError> {
        self.run_pool_call(|| {
            let mut items = self.items.borrow_mut();
            let item = items.get_mut(name).ok_or_else(|| PoolError::Missing(name.to_owned()))?;
            item.1 = Some(size.max(item.1.unwrap()));
            Ok(())
        })
    }

    fn copy(
        &self,
        source: &str,
        name: &str,
        size: Option<u64>,
        mode: CopyMode,
    ) -> std::result::Result<(), PoolError> {
        self.run_pool_call(|| {
            let found = self.items.borrow().get(source).cloned();
            let (kind, has, content) = found.ok_or_else(|| PoolError::Missing(source.to_owned()))?;
            if size < has {
                return Err(PoolError::InvalidSize(format!("{size:?} bytes; the source has {has:?}")));
            }
            if mode == CopyMode::PointInTime && !(kind == ItemKind::Image && self.shares_blocks.get()) {
                return Err(PoolError::Unsupported("no copy is of one moment".to_owned()));
            }
            self.add_item(name, (kind, size, content))
        })
    }

    fn measure(&self, name: &str) -> std::result::Result<Item, PoolError> {
        self.run_pool_call(|| {
            if self.busy.get() {
                return Err(PoolError::Busy(name.to_owned()));
            }
            if self.fail_measure.get() {
                return Err(PoolError::Failed("a bad sector".to_owned()));
            }
            let items = self.items.borrow();
            let (kind, size_bytes, _) = items.get(name).ok_or_else(|| PoolError::Missing(name.to_owned()))?;
            Ok(Item { name: name.to_owned(), kind: *kind, size_bytes: *size_bytes, used_bytes: 0 })
        })
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> std::result::Result<PoolPage, PoolError> {
        if self.unknown_results.get() {
            return Ok(PoolPage { items: Vec::new(), more: false });
        }
        self.run_pool_call(|| {
            let items = self.items.borrow();
            let mut found = items
                .iter()
                .filter(|(name, _)| {
                    name.starts_with(prefix) && after.is_none_or(|after| name.as_str() > after)
                })
                .map(|(name, (kind, ..))| (name.clone(), *kind));
            // At most two per page, so that tests cover paging.
            let items = found.by_ref().take(limit.min(2).try_into().unwrap()).collect();
            Ok(PoolPage { items, more: found.next().is_some() })
        })
    }

    fn usage(&self) -> std::result::Result<Space, PoolError> {
        self.run_pool_call(|| Ok(Space { total_bytes: 100, available_bytes: 60 }))
    }
}

fn block() -> VolumeCapability {
    VolumeCapability { mode: AccessMode::SingleNodeWriter, access: AccessType::Block }
}

fn filesystem() -> VolumeCapability {
    let access = FilesystemAccess { fs_type: None, mount_flags: Vec::new(), mount_group: None };
    VolumeCapability { mode: AccessMode::SingleNodeWriter, access: AccessType::Filesystem(access) }
}

fn request(name: &str, bytes: u64, capability: VolumeCapability) -> CreateRequest {
    CreateRequest {
        name: name.to_owned(),
        capacity: CapacityRange { required_bytes: Some(bytes), limit_bytes: None },
        capabilities: vec![capability],
        parameters: Vec::new(),
        mutable_parameters: Vec::new(),
        topology: None,
        owner: None,
    }
}

fn settings() -> PoolSettings {
    PoolSettings { node: "n1".to_owned() }
}

fn create_volume(
    fake: &FakeStorage,
    request: &CreateRequest,
    source: Option<(RecordKind, &str)>,
) -> Result<Volume> {
    volumes::create(&fake.storage(), &settings(), request, source)
}

fn create_snapshot(fake: &FakeStorage, name: &str, source: &str) -> Result<Snapshot> {
    let request = SnapshotRequest {
        name: name.to_owned(),
        source: source.to_owned(),
        parameters: Vec::new(),
        owner: None,
    };
    snapshots::create(&fake.storage(), request)
}

/// More calls of the state and the pool than any tested function makes.
const MAX_CALLS: u32 = 14;

/// Lets a call die at every step, once before and once after the step takes effect. Returns the number of
/// crashes.
fn crash_at_every_call(
    prepare: impl Fn(&FakeStorage),
    call: impl Fn(&FakeStorage) -> Result<()>,
    check: impl Fn(&FakeStorage, &str),
) -> usize {
    let mut failures = 0;
    for (calls, response_lost) in (0..MAX_CALLS).flat_map(|calls| [(calls, false), (calls, true)]) {
        let fake = FakeStorage::new();
        prepare(&fake);
        fake.calls_left.set(Some(calls));
        fake.response_lost.set(response_lost);
        let first = call(&fake);
        fake.calls_left.set(None);
        failures += usize::from(first.is_err());
        check(&fake, &format!("after {calls} calls, the last answer lost: {response_lost}: {first:?}"));
    }
    failures
}

#[test]
fn a_crashed_create_is_completed_by_a_retry_or_undone_by_delete() {
    for capability in [block(), filesystem()] {
        let create_request = request("v", 8_192, capability);
        let call = |fake: &FakeStorage| create_volume(fake, &create_request, None).map(drop);
        let failures = crash_at_every_call(
            |_| {},
            call,
            |fake, when| {
                call(fake).unwrap();
                assert_eq!(fake.record_names(), ["vol-v"], "{when}");
            },
        );
        assert!(failures >= 8, "{failures}");
        crash_at_every_call(
            |_| {},
            call,
            |fake, when| {
                volumes::delete(&fake.storage(), "vol-v").unwrap();
                assert_eq!(fake.record_names(), [""; 0], "{when}");
            },
        );
    }
}

#[test]
fn a_crashed_copy_is_completed_and_a_snapshot_outlives_its_volume() {
    let prepare = |fake: &FakeStorage| {
        create_volume(fake, &request("v", 8_192, block()), None).unwrap();
        fake.set_content("vol-v", "content");
    };
    let clone = |fake: &FakeStorage| {
        create_volume(fake, &request("c", 12_288, block()), Some((RecordKind::Volume, "vol-v"))).map(drop)
    };
    crash_at_every_call(prepare, clone, |fake, when| {
        // The source changes and is removed while the result of the copy is unknown.
        let copied = fake.content_of("vol-c").is_some();
        volumes::delete(&fake.storage(), "vol-v").unwrap();
        match clone(fake) {
            Ok(()) => assert!(copied, "{when}"),
            Err(error) => assert_eq!((copied, error.kind), (false, ErrorKind::NotFound), "{when}"),
        }
        assert_eq!(fake.content_of("vol-c"), copied.then(|| "content".to_owned()), "{when}");
        fake.record_names();
    });
    let snapshot = |fake: &FakeStorage| create_snapshot(fake, "s", "vol-v").map(drop);
    crash_at_every_call(prepare, snapshot, |fake, when| {
        snapshot(fake).unwrap();
        volumes::delete(&fake.storage(), "vol-v").unwrap();
        let restored =
            create_volume(fake, &request("r", 8_192, block()), Some((RecordKind::Snapshot, "snap-s")))
                .unwrap();
        assert_eq!(fake.content_of(&restored.handle).as_deref(), Some("content"), "{when}");
    });
}

#[test]
fn a_crashed_delete_is_completed_and_the_name_can_be_reused() {
    let prepare = |fake: &FakeStorage| {
        create_volume(fake, &request("v", 8_192, block()), None).unwrap();
        create_snapshot(fake, "s", "vol-v").unwrap();
        fake.set_content("vol-v", "old");
    };
    let delete = |fake: &FakeStorage| volumes::delete(&fake.storage(), "vol-v");
    crash_at_every_call(prepare, delete, |fake, when| {
        delete(fake).unwrap();
        assert_eq!(fake.record_names(), ["snap-s"], "{when}");
    });
    crash_at_every_call(prepare, delete, |fake, when| {
        let record = fake.storage().read_record(RecordKind::Volume, "vol-v").ok().flatten();
        let removing = record.is_some_and(|found| found.value.phase == RecordPhase::Deleting);
        create_volume(fake, &request("v", 8_192, block()), None).unwrap();
        if removing {
            assert_eq!(fake.content_of("vol-v").as_deref(), Some(""), "{when}: a new volume is empty");
        }
        assert_eq!(fake.record_names(), ["snap-s", "vol-v"], "{when}");
    });
    let delete = |fake: &FakeStorage| snapshots::delete(&fake.storage(), "snap-s");
    crash_at_every_call(prepare, delete, |fake, when| {
        delete(fake).unwrap();
        assert_eq!(fake.record_names(), ["vol-v"], "{when}");
    });
}

#[test]
fn a_crashed_expand_is_completed_by_a_retry() {
    let grow = |fake: &FakeStorage| {
        let capacity = CapacityRange { required_bytes: Some(9_000), limit_bytes: None };
        let request = ExpandRequest { handle: "vol-v".to_owned(), capacity, capability: None };
        volumes::expand(&fake.storage(), &request)
    };
    crash_at_every_call(
        |fake| drop(create_volume(fake, &request("v", 8_192, block()), None).unwrap()),
        |fake| grow(fake).map(drop),
        |fake, when| {
            assert_eq!(grow(fake).unwrap().capacity_bytes, 12_288, "{when}");
            assert_eq!(fake.image_size("vol-v"), Some(12_288));
            assert_eq!(fake.record("volume/vol-v").size, 12_288);
        },
    );
}

#[test]
fn a_failed_create_leaves_no_record_and_no_item() {
    let fake = FakeStorage::new();
    fake.max_image_bytes.set(Some(4_096));
    let error = create_volume(&fake, &request("v", 8_192, block()), None).unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::ResourceExhausted, Finality::Final));
    assert_eq!(fake.record_names(), [""; 0]);
    fake.busy.set(true);
    let error = create_volume(&fake, &request("v", 4_096, block()), None).unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Aborted, Finality::InProgress));
    fake.busy.set(false);
    create_volume(&fake, &request("v", 4_096, block()), None).unwrap();
    // Items with a similar prefix, followed by an item without a record.
    for item in ["vol-w.0", "vol-w.b.000000000000000a", "vol-w.zzzzzzzzzzzzzzzz", "vol-w.zzzzzzzzzzzzzzzzz"] {
        fake.items.borrow_mut().insert(item.to_owned(), (ItemKind::Directory, None, String::new()));
    }
    create_volume(&fake, &request("w", 4_096, filesystem()), None).unwrap();
    volumes::delete(&fake.storage(), "vol-w").unwrap();
    let unknown_item = "vol-w.ffffffffffffffff".to_owned();
    fake.items.borrow_mut().insert(unknown_item, (ItemKind::Directory, None, "foreign".to_owned()));
    let error = create_volume(&fake, &request("w", 4_096, filesystem()), None).unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::FailedPrecondition, Finality::Final), "{error:?}");
    assert_eq!(fake.items.borrow().get("vol-w.ffffffffffffffff").unwrap().2, "foreign");
}

#[test]
fn invalid_requests_are_rejected() {
    let fake = FakeStorage::new();
    let base = request("v", 8_192, filesystem());
    create_volume(&fake, &base, None).unwrap();
    create_volume(&fake, &request("i", 5_000, block()), None).unwrap();
    let with = |pairs: &[(&str, &str)]| CreateRequest {
        name: "x".to_owned(),
        parameters: pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..base.clone()
    };
    let many = VolumeCapability { mode: AccessMode::MultiNodeMultiWriter, ..filesystem() };
    let elsewhere = cofferdam_guest::TopologyRequirement {
        requisite: vec![vec![(volumes::NODE_KEY.to_owned(), "n2".to_owned())]],
        preferred: Vec::new(),
    };
    let of = |handle: &'static str| Some((RecordKind::Volume, handle));
    use ErrorKind as E;
    let exactly = |bytes| CapacityRange { required_bytes: Some(bytes), limit_bytes: Some(bytes) };
    let unaligned = CreateRequest { capacity: exactly(5_000), ..request("x", 1, block()) };
    let block_directory = CreateRequest { capabilities: vec![block()], ..with(&[("kind", "directory")]) };
    #[rustfmt::skip] // one row a case
    let table = [
        (request("v", 9_000, filesystem()), None, E::AlreadyExists),
        (request("v", 8_192, block()), None, E::AlreadyExists),
        (base.clone(), of("vol-i"), E::AlreadyExists),
        (with(&[("kind", "tape")]), None, E::InvalidArgument),
        (with(&[("size", "1")]), None, E::InvalidArgument),
        (block_directory, None, E::InvalidArgument),
        (CreateRequest { capabilities: vec![many], ..with(&[]) }, None, E::InvalidArgument),
        (CreateRequest { capabilities: Vec::new(), ..with(&[]) }, None, E::InvalidArgument),
        (CreateRequest { topology: Some(elsewhere), ..with(&[]) }, None, E::ResourceExhausted),
        (request("", 1, filesystem()), None, E::InvalidArgument),
        (request("x", 0, filesystem()), None, E::OutOfRange),
        (request("x", (1 << 50) + 1, filesystem()), None, E::OutOfRange),
        (unaligned, None, E::OutOfRange),
        (request("x", 8_192, filesystem()), of("vol-none"), E::NotFound),
        (request("x", 8_192, block()), of("vol-v"), E::InvalidArgument),
        (request("x", 4_096, block()), of("vol-i"), E::OutOfRange),
    ];
    for (request, source, expected) in table {
        let error = create_volume(&fake, &request, source).unwrap_err();
        assert_eq!((error.kind, error.finality), (expected, Finality::Final), "{request:?}: {error:?}");
    }
    assert_eq!(fake.record_names(), ["vol-i", "vol-v"]);
    let image = create_volume(&fake, &with(&[("kind", "image")]), None).unwrap();
    assert_eq!(image.connection_info.unwrap().kind, "image");
    assert_eq!(image.topology, [[("topology.cofferdam.dev/node".to_owned(), "n1".to_owned())]]);
    create_snapshot(&fake, "s", "vol-v").unwrap();
    assert_eq!(create_snapshot(&fake, "s", "vol-i").unwrap_err().kind, E::AlreadyExists);
    assert_eq!(create_snapshot(&fake, "t", "vol-none").unwrap_err().kind, E::NotFound);
}

#[test]
fn listings_are_paged_and_report_abnormal_volumes() {
    let fake = FakeStorage::new();
    for name in ["a", "b", "c", "d", "e"] {
        create_volume(&fake, &request(name, 8_192, filesystem()), None).unwrap();
    }
    let removed_item = fake.item_of("vol-b").unwrap();
    fake.items.borrow_mut().remove(&removed_item);
    let part = |after: Option<&str>| volumes::list(&fake.storage(), &settings(), after, Some(2)).unwrap();
    let mut parts = vec![part(None)];
    while let Some(next) = parts.last().unwrap().next.clone() {
        parts.push(part(Some(&next)));
    }
    let abnormal: Vec<_> = parts
        .iter()
        .map(|part| {
            part.volumes
                .iter()
                .map(|status| (&*status.volume.handle, status.condition.as_ref().unwrap().abnormal))
        })
        .map(Iterator::collect::<Vec<_>>)
        .collect();
    assert_eq!(
        abnormal,
        [
            vec![("vol-a", false), ("vol-b", true)],
            vec![("vol-c", false), ("vol-d", false)],
            vec![("vol-e", false)]
        ]
    );
    let error: StorageError =
        volumes::list(&fake.storage(), &settings(), Some("invalid-token"), None).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Aborted);
    create_snapshot(&fake, "s", "vol-a").unwrap();
    create_snapshot(&fake, "t", "vol-c").unwrap();
    let of = |source| snapshots::list(&fake.storage(), source, None, None).unwrap().snapshots.len();
    assert_eq!([of(None), of(Some("vol-c")), of(Some("nobody"))], [2, 1, 0]);
    let record: StoredRecord = fake.storage().read_ready(RecordKind::Snapshot, "snap-s").unwrap().value;
    assert_eq!(record.changed_ms, 7);
    assert!(fake.measure(&fake.item_of("vol-a").unwrap()).is_ok());
}
