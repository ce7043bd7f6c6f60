//! Tests on the mock host, with a dashboard that answers as that of Ceph 16.2.15 did.

mod fake;

use std::time::Duration;

use cofferdam_guest::{
    AccessMode, AccessType, CapacityRange, ErrorKind, Finality, Owner, ReclaimPolicy, Snapshot,
    VolumeCapability,
    abilities::{
        Capacity, CapacityRequest, ExpandRequest, Expansion, Inspection, Listing, PublishRequest, Publishing,
        SnapshotRequest, Snapshots,
    },
    http::Method,
    mock::InstalledHost,
};

use self::fake::{PASSWORD, start};
use super::*;
use crate::{images::ImageSpec, record::Record};

fn create(name: &str, bytes: u64) -> Result<Volume> {
    <CephDriver as Backend>::create_volume(CreateRequest::new(name, bytes))
}

fn clone(name: &str, source: &str, bytes: u64) -> Result<Volume> {
    CephDriver::create_from_volume(CreateRequest::new(name, bytes), source.to_owned())
}

fn delete(handle: &str) -> Result<()> {
    <CephDriver as Backend>::delete_volume(handle.to_owned())
}

fn snapshot(name: &str, source: &str) -> Result<Snapshot> {
    let (name, source) = (name.to_owned(), source.to_owned());
    CephDriver::create_snapshot(SnapshotRequest { name, source, parameters: Vec::new(), owner: None })
}

fn expand(handle: &str, bytes: u64) -> Result<u64> {
    let capacity = CapacityRange { required_bytes: Some(bytes), limit_bytes: None };
    let request = ExpandRequest { handle: handle.to_owned(), capacity, capability: None };
    CephDriver::expand(request).map(|response| response.capacity_bytes)
}

fn publish(handle: &str, node: &str, mode: AccessMode) -> Result<Vec<(String, String)>> {
    let request = PublishRequest {
        handle: handle.to_owned(),
        node_identities: Vec::new(),
        node: node.to_owned(),
        capability: VolumeCapability { mode, access: AccessType::Block },
        read_only: false,
        context: Vec::new(),
    };
    CephDriver::publish(request).map(|info| info.fields)
}

fn listed() -> Vec<String> {
    let page = CephDriver::list_volumes(None, None).unwrap();
    page.volumes.into_iter().map(|status| status.volume.handle).collect()
}

fn count(host: &InstalledHost, method: Method, part: &str) -> usize {
    let requests = host.requests();
    requests.iter().filter(|request| request.method == method && request.url.contains(part)).count()
}

#[test]
fn an_expired_token_is_replaced_once_and_the_password_is_in_logins_only() {
    let (host, dashboard) = start();
    create("a", MIB).unwrap();
    create("b", MIB).unwrap();
    assert_eq!(dashboard.borrow().logins, 1);
    dashboard.borrow_mut().logins = 7;
    create("c", MIB).unwrap();
    assert_eq!(dashboard.borrow().logins, 8, "one more login");
    for request in host.requests() {
        let has_password = String::from_utf8_lossy(&request.body).contains(PASSWORD);
        assert_eq!(has_password, request.url.ends_with("/api/auth"));
    }
}

#[test]
fn a_wrong_password_is_named_and_not_shown() {
    let (host, _dashboard) = start();
    host.set_secret("password", "a-wrong-password");
    let error = create("a", MIB).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unauthenticated);
    assert_eq!(error.message, r#"the dashboard refuses the user "cofferdam" or the secret `password`"#);
}

#[test]
fn a_repeated_creation_returns_the_volume_and_a_different_one_is_refused() {
    let (_host, dashboard) = start();
    let owner = Owner {
        cluster_id: "c".to_owned(),
        claim_uid: "u".to_owned(),
        pv_name: "pvc-u".to_owned(),
        reclaim_policy: ReclaimPolicy::Delete,
    };
    let request = CreateRequest { owner: Some(owner.clone()), ..CreateRequest::new("pvc-u", MIB + 1) };
    let create = <CephDriver as Backend>::create_volume;
    let volume = create(request.clone()).unwrap();
    assert_eq!((volume.handle.as_str(), volume.capacity_bytes), ("rbd/cofferdam-vol-pvc-u", Some(2 * MIB)));
    assert_eq!(create(request.clone()).unwrap(), volume);
    assert_eq!(CephDriver::get_volume(volume.handle).unwrap().owner, Some(owner.clone()));

    let larger = CreateRequest { capacity: CreateRequest::new("", 9 * MIB).capacity, ..request.clone() };
    let pool = vec![("pool".to_owned(), "fast".to_owned())];
    let elsewhere = CreateRequest { parameters: pool, ..request.clone() };
    let foreign = Owner { cluster_id: "other".to_owned(), ..owner };
    let foreign = CreateRequest { owner: Some(foreign), ..request };
    for (request, difference) in [(larger, "size"), (elsewhere, "pool"), (foreign, "cluster")] {
        let error = create(request).unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::AlreadyExists, Finality::Final));
        assert!(error.message.contains(difference), "{}", error.message);
    }
    assert_eq!(dashboard.borrow().images.len(), 1);
}

#[test]
fn names_and_pools_are_checked_before_a_request() {
    let (host, _dashboard) = start();
    let parameters = vec![("pool".to_owned(), "secret-pool".to_owned())];
    let request = CreateRequest { parameters, ..CreateRequest::new("a", MIB) };
    let error = <CephDriver as Backend>::create_volume(request).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    for handle in ["a", "rbd/", "rbd/..", "rbd/a/b", "other/a", "rbd/a%2Fb", "/a"] {
        delete(handle).unwrap();
    }
    assert!(host.requests().is_empty());
    let handle = create("a/b", MIB).unwrap().handle;
    assert!(handle.starts_with("rbd/cofferdam-vol-sha-"), "{handle}");
}

#[test]
fn an_image_without_its_record_is_completed_by_the_same_call_only() {
    let (_host, dashboard) = start();
    dashboard.borrow_mut().fails_after_create = true;
    let error = create("a", MIB).unwrap_err();
    assert_eq!(error.finality, Finality::Unknown, "the image exists");
    dashboard.borrow_mut().fails_after_create = false;
    assert_eq!(create("a", 2 * MIB).unwrap_err().kind, ErrorKind::AlreadyExists);
    let volume = create("a", MIB).unwrap();
    assert!(dashboard.borrow().images[&volume.handle].record.is_some());
}

#[test]
fn an_expansion_never_sends_a_smaller_size() {
    let (host, _dashboard) = start();
    let handle = create("a", 4 * MIB).unwrap().handle;
    assert_eq!(expand(&handle, 2 * MIB).unwrap(), 4 * MIB);
    assert_eq!(count(&host, Method::Put, ""), 0);
    assert_eq!(expand(&handle, 6 * MIB).unwrap(), 6 * MIB);
}

#[test]
fn two_expansions_of_a_volume_exclude_each_other() {
    let (host, _dashboard) = start();
    let handle = create("a", 2 * MIB).unwrap().handle;
    let ceph = Ceph::new().unwrap();
    let lock = ImageSpec { pool: "rbd".to_owned(), name: handle.replace("rbd/", "cofferdam-expand-") };
    let begin = || ceph.create(&lock, MIB, &Record { bytes: 8 * MIB, ..Record::default() }).unwrap();
    // Another process expands to 8 MiB.
    begin();
    let error = expand(&handle, 4 * MIB).unwrap_err();
    assert_eq!(error.finality, Finality::InProgress, "{error}");
    // The same call again, after an interruption.
    assert_eq!(expand(&handle, 8 * MIB).unwrap(), 8 * MIB);
    assert_eq!(ceph.image(&lock).unwrap().map(drop), None);
    assert_eq!(expand(&handle, 4 * MIB).unwrap(), 8 * MIB);
    // An interruption after the expansion.
    begin();
    assert_eq!(expand(&handle, 8 * MIB).unwrap(), 8 * MIB);
    assert_eq!(ceph.image(&lock).unwrap().map(drop), None);
    // The other process has ended.
    ceph.create(&lock, MIB, &Record { bytes: 16 * MIB, ..Record::default() }).unwrap();
    host.advance(Duration::from_secs(3600 * 24 * 365 * 100));
    expand(&handle, 12 * MIB).unwrap_err();
    assert_eq!(expand(&handle, 12 * MIB).unwrap(), 12 * MIB);
}

#[test]
fn a_volume_with_a_snapshot_is_not_deleted() {
    let (host, dashboard) = start();
    let handle = create("a", MIB).unwrap().handle;
    let taken = snapshot("s", &handle).unwrap();
    assert_eq!((taken.handle.as_str(), &taken.source), ("rbd/cofferdam-snap-s", &handle));
    assert_eq!(snapshot("s", &handle).unwrap(), taken);
    let other = create("b", MIB).unwrap().handle;
    assert_eq!(snapshot("s", &other).unwrap_err().kind, ErrorKind::AlreadyExists);
    assert_eq!(delete(&handle).unwrap_err().kind, ErrorKind::FailedPrecondition);
    assert_eq!(count(&host, Method::Delete, ""), 0);
    let listed = CephDriver::list_snapshots(None, None, None).unwrap().snapshots;
    assert_eq!(listed, std::slice::from_ref(&taken));

    let restored = CephDriver::create_from_snapshot(CreateRequest::new("r", 3 * MIB), taken.handle.clone());
    let restored = restored.unwrap();
    assert_eq!(restored.capacity_bytes, Some(3 * MIB));
    CephDriver::delete_snapshot(taken.handle).unwrap();
    assert!(dashboard.borrow().images[&restored.handle].parent.is_none(), "it has its own data");
    for handle in [handle, other, restored.handle] {
        delete(&handle).unwrap();
    }
    assert!(dashboard.borrow().images.is_empty());
}

#[test]
fn clones_and_sources_are_deleted_in_any_order() {
    let (_host, dashboard) = start();
    let source = create("a", 2 * MIB).unwrap().handle;
    assert_eq!(clone("small", &source, MIB).unwrap().capacity_bytes, Some(2 * MIB));
    let copy = clone("b", &source, 2 * MIB).unwrap().handle;
    assert_eq!(clone("b", &source, 2 * MIB).unwrap().handle, copy);
    assert_eq!(create("b", 2 * MIB).unwrap_err().kind, ErrorKind::AlreadyExists);
    assert_eq!(clone("c", "rbd/none", MIB).unwrap_err().kind, ErrorKind::NotFound);
    delete("rbd/cofferdam-vol-small").unwrap();
    assert_eq!(dashboard.borrow().images[&source].snapshots.len(), 1, "that of the other clone");
    delete(&source).unwrap();
    assert!(dashboard.borrow().images[&copy].parent.is_none());
    delete(&copy).unwrap();
    assert!(dashboard.borrow().images.is_empty());
}

#[test]
fn an_image_in_use_is_not_deleted() {
    let (_host, dashboard) = start();
    let handle = create("a", MIB).unwrap().handle;
    dashboard.borrow_mut().images.get_mut(&handle).unwrap().is_open = true;
    let error = delete(&handle).unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::FailedPrecondition, Finality::Final));
    assert!(error.message.contains(&handle), "{}", error.message);
}

#[test]
fn images_that_the_dashboard_does_not_list_yet_are_listed() {
    let (_host, dashboard) = start();
    let first = create("a", MIB).unwrap().handle;
    dashboard.borrow_mut().listed = Some(vec![first.clone()]);
    let second = create("b", MIB).unwrap().handle;
    let deleted = create("c", MIB).unwrap().handle;
    delete(&deleted).unwrap();
    assert_eq!(listed(), [first, second]);
}

#[test]
fn a_volume_for_one_node_is_published_to_one_node() {
    let (_host, dashboard) = start();
    let handle = create("a", MIB).unwrap().handle;
    let writer = AccessMode::SingleNodeWriter;
    let fields = publish(&handle, "n1", writer).unwrap();
    let text: Vec<_> = fields.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let monitors = "monitors=10.0.0.1:6789,10.0.0.2:6789";
    let image = ["pool=rbd", "image=cofferdam-vol-a", "image-id=1a2b"];
    assert_eq!(text, [&[monitors, "cluster-fsid=f-1"], &image[..]].concat());
    assert_eq!(publish(&handle, "n1", writer).unwrap(), fields);
    for (node, mode, kind) in [
        ("n2", writer, ErrorKind::FailedPrecondition),
        ("n2", AccessMode::MultiNodeReaderOnly, ErrorKind::FailedPrecondition),
        ("n1", AccessMode::SingleNodeReaderOnly, ErrorKind::AlreadyExists),
    ] {
        assert_eq!(publish(&handle, node, mode).unwrap_err().kind, kind);
    }
    assert_eq!(delete(&handle).unwrap_err().kind, ErrorKind::FailedPrecondition);
    CephDriver::unpublish(handle.clone(), Some("n2".to_owned())).unwrap();
    assert!(publish(&handle, "n2", writer).is_err(), "it is still published to n1");
    CephDriver::unpublish(handle.clone(), Some("n1".to_owned())).unwrap();
    for node in ["n1", "n2"] {
        publish(&handle, node, AccessMode::MultiNodeMultiWriter).unwrap();
    }
    assert_eq!(listed(), std::slice::from_ref(&handle), "publications are not listed");
    // A volume that nodes share is not published to one node only, also to one of them.
    for node in ["n1", "n3"] {
        assert_eq!(publish(&handle, node, writer).unwrap_err().kind, ErrorKind::FailedPrecondition, "{node}");
    }
    CephDriver::unpublish(handle.clone(), Some("n1".to_owned())).unwrap();
    assert!(publish(&handle, "n3", writer).is_err(), "it is still shared with n2");
    publish(&handle, "n3", AccessMode::MultiNodeMultiWriter).unwrap();
    CephDriver::unpublish(handle.clone(), None).unwrap();
    publish(&handle, "n3", writer).unwrap();
    assert!(publish(&handle, "n3", AccessMode::MultiNodeMultiWriter).is_err(), "the same node");
    CephDriver::unpublish(handle.clone(), None).unwrap();
    delete(&handle).unwrap();
    assert!(dashboard.borrow().images.is_empty());
}

#[test]
fn a_conflict_leaves_the_record_of_an_earlier_publication() {
    let (_host, dashboard) = start();
    let handle = create("a", MIB).unwrap().handle;
    let writer = AccessMode::SingleNodeWriter;
    publish(&handle, "n2", AccessMode::MultiNodeMultiWriter).unwrap();
    let is_shared = |name: &&String| name.contains("cofferdam-share-");
    let name = dashboard.borrow().images.keys().find(is_shared).unwrap().clone();
    // The shared publication is between its two steps, and later ends without having removed its record.
    let interrupted = dashboard.borrow_mut().images.remove(&name).unwrap();
    let fields = publish(&handle, "n1", writer).unwrap();
    dashboard.borrow_mut().images.insert(name, interrupted);
    assert_eq!(publish(&handle, "n1", writer).unwrap_err().kind, ErrorKind::FailedPrecondition);
    assert!(publish(&handle, "n2", AccessMode::MultiNodeMultiWriter).is_err(), "n1 may use it");
    CephDriver::unpublish(handle.clone(), Some("n2".to_owned())).unwrap();
    assert!(publish(&handle, "n3", writer).is_err(), "n1 may use it");
    assert_eq!(publish(&handle, "n1", writer).unwrap(), fields);
}

#[test]
fn the_capacity_is_that_of_the_pool() {
    let (_host, _dashboard) = start();
    let request = CapacityRequest { capabilities: Vec::new(), parameters: Vec::new(), topology: None };
    assert_eq!(CephDriver::available(request).unwrap().available_bytes, 7);
}
