//! Tests of the usage sums, the choice of a segment, error kinds, capability strings and the reported
//! capacity. The sums are correct whenever a call dies, even with concurrent writers. A retry of the call has
//! the same result as an undisturbed call.

use std::collections::BTreeMap;

use cofferdam_guest::{
    AccessMode, AccessType, CapacityRange, CreateRequest, ErrorKind, FilesystemAccess, Finality, Result,
    StorageError, TopologyRequirement, VolumeCapability,
    abilities::{CapacityRequest, ExpandRequest, GroupRequest, PublishRequest, SnapshotRequest},
    mock,
    state::{self, Bound, StateError, Store as _},
};

use crate::{
    capacity, expansion,
    fake::FakeStore,
    groups, modification, publishing,
    records::{MemoryCall, MemorySource, StorageUsage},
    settings::{MAX_TOTAL, MemorySettings},
    snapshots, volumes,
};

type Operation = fn(&MemoryCall<'_, FakeStore>) -> Result<()>;

fn settings(pairs: &[(&str, &str)]) -> MemorySettings {
    MemorySettings::parse(
        &pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    )
    .unwrap()
}

fn call_context<'a>(store: &'a FakeStore, settings: &'a MemorySettings) -> MemoryCall<'a, FakeStore> {
    MemoryCall { store, settings, now_ms: 7 }
}

fn shared() -> VolumeCapability {
    VolumeCapability { mode: AccessMode::MultiNodeMultiWriter, access: AccessType::Block }
}

fn range(bytes: u64) -> CapacityRange {
    CapacityRange { required_bytes: Some(bytes), limit_bytes: None }
}

fn request(name: &str, bytes: u64) -> CreateRequest {
    CreateRequest {
        name: name.to_owned(),
        capacity: range(bytes),
        capabilities: vec![shared()],
        parameters: Vec::new(),
        mutable_parameters: Vec::new(),
        topology: None,
        owner: None,
    }
}

fn create(
    call: &MemoryCall<'_, FakeStore>,
    name: &str,
    bytes: u64,
    source: Option<MemorySource>,
) -> Result<()> {
    volumes::create(call, &request(name, bytes), source).map(drop)
}

fn publish(call: &MemoryCall<'_, FakeStore>, handle: &str, node: &str) -> Result<()> {
    let request = PublishRequest {
        handle: handle.to_owned(),
        node_identities: Vec::new(),
        node: node.to_owned(),
        capability: shared(),
        read_only: false,
        context: Vec::new(),
    };
    publishing::publish(call, &request).map(drop)
}

fn create_snapshot(call: &MemoryCall<'_, FakeStore>, name: &str) -> Result<()> {
    let request = SnapshotRequest {
        name: name.to_owned(),
        source: "mem-old".to_owned(),
        parameters: Vec::new(),
        owner: None,
    };
    snapshots::create(call, &request).map(drop)
}

fn create_group(call: &MemoryCall<'_, FakeStore>, name: &str) -> Result<Vec<String>> {
    let sources = vec!["mem-old".to_owned(), "mem-other".to_owned()];
    let request = GroupRequest { name: name.to_owned(), sources, parameters: Vec::new(), owner: None };
    let group = groups::create(call, &request)?;
    Ok(group.snapshots.into_iter().map(|member| member.handle).collect())
}

/// All kinds of calls that change the store, except those that only count a request for a snapshot or group.
const OPERATIONS: [(&str, Operation); 13] = [
    ("create", |call| create(call, "new", 20, None)),
    ("clone", |call| create(call, "new", 35, Some(MemorySource::Volume("mem-old".to_owned())))),
    ("restore", |call| create(call, "new", 30, Some(MemorySource::Snapshot("snap-s".to_owned())))),
    ("delete", |call| volumes::delete(call, "mem-gone")),
    ("publish", |call| publish(call, "mem-other", "n1")),
    ("unpublish", |call| publishing::unpublish(call, "mem-old", Some("n2"))),
    ("unpublish from all", |call| publishing::unpublish(call, "mem-old", None)),
    ("expand", |call| {
        let handle = "mem-old".to_owned();
        expansion::expand(call, &ExpandRequest { handle, capacity: range(45), capability: None }).map(drop)
    }),
    ("modify", |call| modification::modify(call, "mem-old", &vec![("iops".to_owned(), "9".to_owned())])),
    ("snapshot", |call| create_snapshot(call, "new")),
    ("delete the snapshot", |call| snapshots::delete(call, "snap-s")),
    ("group", |call| create_group(call, "new").map(drop)),
    ("delete the group", |call| {
        let group = call.store.all::<crate::records::MemoryGroup>("group/group-g");
        let members =
            group.into_iter().flat_map(|(_, group)| group.members.into_values()).collect::<Vec<_>>();
        groups::delete(call, "group-g", &members)
    }),
];

/// A store with objects of every kind. One volume is published to 20 nodes, more than one commit can remove.
fn store_with_objects(settings: &MemorySettings) -> FakeStore {
    let store = FakeStore::default();
    let call = call_context(&store, settings);
    create(&call, "old", 30, None).unwrap();
    create(&call, "other", 10, None).unwrap();
    create(&call, "gone", 5, None).unwrap();
    create_snapshot(&call, "s").unwrap();
    create_group(&call, "g").unwrap();
    for node in 0..20 {
        publish(&call, "mem-old", &format!("n{node}")).unwrap();
    }
    publish(&call, "mem-other", "n2").unwrap();
    store.check_consistency("furnished");
    store
}

fn store_values(store: &FakeStore) -> BTreeMap<String, Vec<u8>> {
    store.entries.borrow().iter().map(|(key, (value, _))| (key.clone(), value.clone())).collect()
}

fn topology_settings() -> MemorySettings {
    settings(&[("topology", "zone=a,b"), ("capacity", "a=60,b=100"), ("max-snapshots", "10")])
}

#[test]
fn usage_totals_are_correct_after_a_crash_at_any_call() {
    for settings in [settings(&[("capacity", "200")]), topology_settings()] {
        for (name, operation) in OPERATIONS {
            let reference = store_with_objects(&settings);
            operation(&call_context(&reference, &settings)).unwrap();
            reference.check_consistency(name);
            let expected = store_values(&reference);
            operation(&call_context(&reference, &settings)).unwrap();
            assert_eq!(store_values(&reference), expected, "{name}, again");
            let mut calls = 0;
            loop {
                let store = store_with_objects(&settings);
                assert_ne!(store_values(&store), expected, "{name} changes something");
                store.calls_left.set(Some(calls));
                let answer = operation(&call_context(&store, &settings));
                store.calls_left.set(None);
                store.check_consistency(&format!("{name}, dead after {calls} calls"));
                operation(&call_context(&store, &settings)).unwrap();
                store.check_consistency(&format!("{name}, again after {calls} calls"));
                assert_eq!(store_values(&store), expected, "{name}, again after {calls} calls");
                if answer.is_ok() {
                    break;
                }
                calls += 1;
            }
            assert!(calls > 1, "{name} has calls to die at");
        }
    }
}

#[test]
fn conflicts_are_retried_a_bounded_number_of_times() {
    let settings = settings(&[]);
    for (name, operation) in OPERATIONS {
        let store = store_with_objects(&settings);
        store.conflicts_left.set(3);
        operation(&call_context(&store, &settings)).unwrap();
        store.check_consistency(name);
        let store = store_with_objects(&settings);
        store.conflicts_left.set(u32::MAX);
        let error = operation(&call_context(&store, &settings)).unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Aborted, Finality::Final), "{name}");
        store.check_consistency(name);
    }
}

#[test]
fn deleting_everything_leaves_an_empty_store() {
    let settings = topology_settings();
    let store = store_with_objects(&settings);
    let call = call_context(&store, &settings);
    publishing::unpublish(&call, "mem-other", None).unwrap();
    publishing::unpublish(&call, "mem-old", None).unwrap();
    for handle in ["mem-old", "mem-other", "mem-gone"] {
        volumes::delete(&call, handle).unwrap();
    }
    assert_eq!(
        store.usage(),
        StorageUsage { snapshots: 3, ..StorageUsage::default() },
        "snapshots outlive their volumes"
    );
    snapshots::delete(&call, "snap-s").unwrap();
    OPERATIONS[12].1(&call).unwrap();
    assert_eq!(store_values(&store), BTreeMap::new());
}

/// Creates a volume and returns its zone.
fn zone_of(
    call: &MemoryCall<'_, FakeStore>,
    name: &str,
    bytes: u64,
    requisite: &[&str],
    preferred: &[&str],
) -> Result<String> {
    let zones =
        |zones: &[&str]| zones.iter().map(|zone| vec![("zone".to_owned(), (*zone).to_owned())]).collect();
    let topology = TopologyRequirement { requisite: zones(requisite), preferred: zones(preferred) };
    let request = CreateRequest { topology: Some(topology), ..request(name, bytes) };
    Ok(volumes::create(call, &request, None)?.topology[0][0].1.clone())
}

fn error_kind<T>(answer: Result<T>) -> Option<ErrorKind> {
    answer.err().map(|error| error.kind)
}

#[test]
fn a_volume_is_created_in_the_first_segment_with_capacity() {
    let settings = settings(&[("topology", "zone=a,b,c"), ("capacity", "a=10,b=20,c=30")]);
    let store = FakeStore::default();
    let call = call_context(&store, &settings);
    let free = |zone: Option<&str>| {
        let topology = zone.map(|zone| vec![("zone".to_owned(), zone.to_owned())]);
        let report = capacity::available(
            &call,
            &CapacityRequest { capabilities: Vec::new(), parameters: Vec::new(), topology },
        );
        report.map(|report| (report.available_bytes, report.maximum_volume_bytes.unwrap()))
    };
    assert_eq!(free(None), Ok((60, 30)));
    let zone = |name, bytes, requisite: &[&str], preferred: &[&str]| {
        zone_of(&call, name, bytes, requisite, preferred)
    };
    assert_eq!(zone("1", 10, &["a", "b", "c"], &["b"]).unwrap(), "b", "preferred first");
    assert_eq!(zone("1", 10, &["b", "c"], &["c"]).unwrap(), "b", "it is there already");
    assert_eq!(error_kind(zone("1", 10, &["a"], &[])), Some(ErrorKind::AlreadyExists), "it is elsewhere");
    assert_eq!(zone("2", 10, &["a", "b"], &["b"]).unwrap(), "b");
    assert_eq!(zone("3", 10, &["a", "b"], &["b"]).unwrap(), "a", "the preferred one is full");
    assert_eq!(zone("4", 10, &[], &["a"]).unwrap(), "c", "without a requisite, any will do");
    let full = zone("5", 1, &["a", "b"], &[]).unwrap_err();
    assert_eq!(full.kind, ErrorKind::ResourceExhausted);
    assert!(full.message.contains("a: 10 of 10 bytes are in use; b: 20 of 20"), "{}", full.message);
    assert_eq!(error_kind(zone("5", 1, &["d"], &[])), Some(ErrorKind::ResourceExhausted), "no such place");
    assert_eq!([free(None), free(Some("c")), free(Some("d"))], [Ok((20, 20)), Ok((20, 20)), Ok((0, 0))]);
    let grown = ExpandRequest { handle: "mem-4".to_owned(), capacity: range(31), capability: None };
    assert_eq!(error_kind(expansion::expand(&call, &grown)), Some(ErrorKind::ResourceExhausted));
    expansion::expand(&call, &ExpandRequest { capacity: range(30), ..grown }).unwrap();
    store.check_consistency("grown to the brim");
    assert_eq!(
        error_kind(zone_of(&call_context(&store, &MemorySettings::default()), "6", 1, &["a"], &[])),
        Some(ErrorKind::InvalidArgument)
    );
}

#[test]
fn a_full_state_is_resource_exhausted() {
    let full = StorageError::from(StateError::Full(Bound { limit: 1, given: 2 }));
    assert_eq!((full.kind, full.finality), (ErrorKind::ResourceExhausted, Finality::Final));
}

#[test]
fn unpublish_from_many_nodes_is_not_final_after_the_first_commit() {
    let settings = settings(&[]);
    let host = mock::MockHost::new().install();
    let call = MemoryCall { store: &state::HostStore, settings: &settings, now_ms: 7 };
    volumes::create(&call, &request("v", 1), None).unwrap();
    for node in 0..20 {
        let request = PublishRequest {
            handle: "mem-v".to_owned(),
            node: format!("n{node}"),
            capability: shared(),
            read_only: false,
            context: Vec::new(),
            node_identities: Vec::new(),
        };
        publishing::publish(&call, &request).unwrap();
    }
    let conflict_after = |after: u32| {
        let mut commits = 0;
        host.before_each_commit(move |host| {
            commits += 1;
            if commits > after {
                let value = host.get("volume/mem-v").unwrap().unwrap().value;
                host.write_state("volume/mem-v", &value);
            }
        });
        let error = host.call(|| publishing::unpublish(&call, "mem-v", None)).unwrap_err();
        (error.kind, error.finality)
    };
    assert_eq!(conflict_after(0), (ErrorKind::Aborted, Finality::Final), "all are published still");
    assert_eq!(conflict_after(1), (ErrorKind::Aborted, Finality::Unknown), "15 are not");
    host.clear_before_each_commit();
    publishing::unpublish(&call, "mem-v", None).unwrap();
}

#[test]
fn a_mount_flag_cannot_pass_for_a_capability() {
    let settings = settings(&[]);
    let store = FakeStore::default();
    let call = call_context(&store, &settings);
    let mounted = |flag: &str| VolumeCapability {
        mode: AccessMode::SingleNodeWriter,
        access: AccessType::Filesystem(FilesystemAccess {
            fs_type: None,
            mount_flags: vec![flag.to_owned()],
            mount_group: None,
        }),
    };
    let capabilities = vec![mounted("a block b filesystem")];
    volumes::create(&call, &CreateRequest { capabilities, ..request("v", 1) }, None).unwrap();
    let published = |capability: VolumeCapability| {
        let request = PublishRequest {
            handle: "mem-v".to_owned(),
            node: "n".to_owned(),
            capability,
            read_only: false,
            context: Vec::new(),
            node_identities: Vec::new(),
        };
        publishing::publish(&call, &request)
    };
    let block = VolumeCapability { mode: AccessMode::SingleNodeWriter, access: AccessType::Block };
    assert_eq!(error_kind(published(block)), Some(ErrorKind::InvalidArgument));
    published(mounted("other")).unwrap();
}

#[test]
fn without_a_capacity_setting_the_total_limit_is_reported() {
    let settings = settings(&[]);
    let store = FakeStore::default();
    let call = call_context(&store, &settings);
    let free = || {
        let all = CapacityRequest { capabilities: Vec::new(), parameters: Vec::new(), topology: None };
        let report = capacity::available(&call, &all).unwrap();
        (report.available_bytes, report.maximum_volume_bytes)
    };
    assert_eq!(free(), (MAX_TOTAL, Some(1 << 50)));
    create(&call, "a", 1 << 50, None).unwrap();
    assert_eq!(free().0, MAX_TOTAL - (1 << 50), "what is reported is what is left");
    let almost = StorageUsage { bytes: MAX_TOTAL - 10, ..StorageUsage::default() };
    store.put_usage(&almost);
    assert_eq!(free(), (10, Some(10)));
    assert_eq!(error_kind(create(&call, "b", 11, None)), Some(ErrorKind::ResourceExhausted));
    create(&call, "b", 10, None).unwrap();
    assert_eq!(free().0, 0);
}
