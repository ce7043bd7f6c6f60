//! Tests of the driver with the fake array on the mock host, without sockets and WebAssembly.

use std::{cell::RefCell, rc::Rc};

use cofferdam_fake_array::{Array, ArrayCredentials, ArrayRequest, ArrayResponse};
use cofferdam_guest::{
    AccessMode, AccessType, CapacityRange, ErrorKind, FilesystemAccess, Finality, Owner, ReclaimPolicy,
    StorageError, VolumeCapability,
    http::{Failure, HttpError, Method, Response},
    mock::{InstalledHost, MockHost, ReceivedRequest},
};

use super::*;

const GIB: u64 = 1 << 30;

type Shared = Rc<RefCell<Array>>;

fn send_to_array(array: &mut Array, request: &ReceivedRequest) -> Response {
    let credentials = match (request.basic(), request.bearer()) {
        (Some((user, password)), _) => ArrayCredentials::Basic(user, password),
        (None, Some(token)) => ArrayCredentials::Bearer(token),
        (None, None) => ArrayCredentials::None,
    };
    let method = request.method_name();
    let path = request.url.strip_prefix("http://array").unwrap_or_default();
    let ArrayResponse { status, body } =
        array.handle(&ArrayRequest { method, path, credentials, body: &request.body }, 0);
    Response::new(status).with_body(body)
}

fn mock_host(array: &Shared) -> MockHost {
    let host =
        MockHost::new().setting("url", "http://array").secret("user", "admin").secret("password", "secret");
    [Method::Get, Method::Post, Method::Put, Method::Patch, Method::Delete].into_iter().fold(
        host,
        |host, method| {
            let array = Rc::clone(array);
            host.on(method, "http://array/", move |request| {
                Ok(send_to_array(&mut array.borrow_mut(), request))
            })
        },
    )
}

fn start() -> (InstalledHost, Shared) {
    let array = Rc::new(RefCell::new(Array::new("admin", "secret")));
    (mock_host(&array).install(), array)
}

fn block(mode: AccessMode) -> VolumeCapability {
    VolumeCapability { mode, access: AccessType::Block }
}

fn bytes(required: u64) -> CapacityRange {
    CapacityRange { required_bytes: Some(required), limit_bytes: None }
}

fn create_request(name: &str, required: u64) -> CreateRequest {
    CreateRequest {
        name: name.to_owned(),
        capacity: bytes(required),
        capabilities: vec![block(AccessMode::SingleNodeWriter)],
        parameters: Vec::new(),
        mutable_parameters: Vec::new(),
        topology: None,
        owner: None,
    }
}

fn create(name: &str, required: u64) -> Volume {
    <ArrayDriver as Backend>::create_volume(create_request(name, required)).unwrap()
}

fn create_snapshot(name: &str, source: &str) -> Result<Snapshot> {
    let (name, source) = (name.to_owned(), source.to_owned());
    <ArrayDriver as Snapshots>::create_snapshot(SnapshotRequest {
        name,
        source,
        parameters: Vec::new(),
        owner: None,
    })
}

fn publish_request(handle: &str, node: &str, mode: AccessMode) -> PublishRequest {
    PublishRequest {
        handle: handle.to_owned(),
        node_identities: Vec::new(),
        node: node.to_owned(),
        capability: block(mode),
        read_only: false,
        context: Vec::new(),
    }
}

fn error_of<T: std::fmt::Debug>(result: Result<T>) -> (ErrorKind, Finality) {
    let StorageError { kind, finality, .. } = result.unwrap_err();
    (kind, finality)
}

#[test]
fn one_login_is_reused_and_the_password_is_never_revealed() {
    let (host, array) = start();
    let volume = create("a", GIB);
    assert_eq!(create("a", GIB), volume);
    assert_eq!((volume.handle.as_str(), volume.capacity_bytes), ("vol-a", Some(GIB)));
    create("b", GIB);
    assert_eq!((array.borrow().content().volumes.len(), array.borrow().counters().logins), (2, 1));
    assert_eq!(host.revealed(), [""; 0]);
    let (login, rest) =
        host.requests().split_first().map(|(first, rest)| (first.clone(), rest.to_vec())).unwrap();
    assert_eq!(login.secrets, ["user", "password"]);
    assert!(rest.iter().all(|request| request.secrets.is_empty()));
}

#[test]
fn a_lost_response_creates_one_volume() {
    let (_host, array) = start();
    let shared_array = Rc::clone(&array);
    let host = mock_host(&array)
        .on(Method::Put, "http://array/volumes/", move |request| {
            send_to_array(&mut shared_array.borrow_mut(), request);
            Err(HttpError::lost(Failure::Broken, "reset"))
        })
        .install();
    let lost = error_of(<ArrayDriver as Backend>::create_volume(create_request("a", GIB)));
    assert_eq!(lost, (ErrorKind::Unavailable, Finality::Unknown));
    drop(host);
    assert_eq!(create("a", GIB).handle, "vol-a");
    assert_eq!(array.borrow().content().volumes.len(), 1);
}

#[test]
fn a_create_that_fails_at_any_request_is_completed_by_a_retry() {
    let mut failures = 0;
    for requests in 0..5 {
        let (host, array) = start();
        host.fail_after(requests);
        failures += u32::from(
            host.call(|| <ArrayDriver as Backend>::create_volume(create_request("a", GIB))).is_err(),
        );
        host.stop_failing();
        assert_eq!(host.locked_session_key(), None, "after {requests} requests");
        host.call(|| create("a", GIB));
        assert_eq!(array.borrow().content().volumes.len(), 1, "after {requests} requests");
    }
    assert_eq!(failures, 3, "a create is a login, a look and a request");
}

#[test]
fn a_login_unknown_to_the_array_is_renewed_once() {
    let (_host, array) = start();
    create("a", GIB);
    array.borrow_mut().end_sessions();
    create("b", GIB);
    assert_eq!(array.borrow().counters().logins, 2);
    array.borrow_mut().end_sessions();
    array.borrow_mut().set_password("other");
    let refused = error_of(<ArrayDriver as Inspection>::get_volume("vol-a".to_owned()));
    assert_eq!(refused, (ErrorKind::Unauthenticated, Finality::Final));
    array.borrow_mut().set_password("secret");
    array.borrow_mut().set_session_limit(0);
    let session_limit_error = error_of(<ArrayDriver as Inspection>::get_volume("vol-a".to_owned()));
    assert_eq!(session_limit_error, (ErrorKind::Unavailable, Finality::Final), "a login changes nothing");
}

#[test]
fn a_name_with_other_arguments_is_refused_with_the_difference() {
    let (_host, _array) = start();
    create("a", GIB);
    create("b", GIB);
    let differs = |result: Result<Volume>| {
        let error = result.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::AlreadyExists, Finality::Final));
        error.message
    };
    let size = differs(<ArrayDriver as Backend>::create_volume(create_request("a", 2 * GIB)));
    assert_eq!(size, r#"the volume "a" exists: its size is 1073741824 bytes, not at least 2147483648 bytes"#);
    let fast = vec![("tier".to_owned(), "fast".to_owned())];
    let tier = differs(<ArrayDriver as Backend>::create_volume(CreateRequest {
        parameters: fast,
        ..create_request("a", GIB)
    }));
    assert_eq!(tier, r#"the volume "a" exists: its tier is "cheap", not "fast""#);
    let source = differs(ArrayDriver::create_from_volume(create_request("a", GIB), "vol-b".to_owned()));
    assert_eq!(source, r#"the volume "a" exists: its source is None, not Some(Volume("vol-b"))"#);
}

#[test]
fn http_status_codes_map_to_error_kind_and_finality() {
    #[rustfmt::skip] // one row a case
    let table = [
        (400, ErrorKind::InvalidArgument,   Finality::Final),
        (403, ErrorKind::PermissionDenied,  Finality::Final),
        (422, ErrorKind::OutOfRange,        Finality::Final),
        (423, ErrorKind::Aborted,           Finality::InProgress),
        (429, ErrorKind::Unavailable,       Finality::Final),
        (500, ErrorKind::Internal,          Finality::Unknown),
        (503, ErrorKind::Unavailable,       Finality::Unknown),
        (504, ErrorKind::DeadlineExceeded,  Finality::Unknown),
        (507, ErrorKind::ResourceExhausted, Finality::Final),
    ];
    for (status, expected, finality) in table {
        let array = Rc::new(RefCell::new(Array::new("admin", "secret")));
        let host = mock_host(&array).on(Method::Put, "http://array/", move |_| Ok(Response::new(status)));
        let host = host.install();
        let found = host.call(|| error_of(<ArrayDriver as Backend>::create_volume(create_request("a", GIB))));
        assert_eq!(found, (expected, finality), "{status}");
    }
}

#[test]
fn copies_are_as_large_as_their_source() {
    let (_host, _array) = start();
    create("a", 3 * GIB);
    let snapshot = create_snapshot("s", "vol-a").unwrap();
    assert_eq!(create_snapshot("s", "vol-a").unwrap(), snapshot);
    assert_eq!(
        (snapshot.handle.as_str(), snapshot.size_bytes, snapshot.ready),
        ("snap-s", Some(3 * GIB), true)
    );
    let open = |name| CreateRequest {
        capacity: CapacityRange { required_bytes: None, limit_bytes: None },
        ..create_request(name, 0)
    };
    let clone = ArrayDriver::create_from_volume(open("c"), "vol-a".to_owned()).unwrap();
    let restored = ArrayDriver::create_from_snapshot(open("r"), "snap-s".to_owned()).unwrap();
    assert_eq!((clone.capacity_bytes, restored.capacity_bytes), (Some(3 * GIB), Some(3 * GIB)));
    let small = error_of(ArrayDriver::create_from_snapshot(create_request("x", GIB), "snap-s".to_owned()));
    assert_eq!(small, (ErrorKind::OutOfRange, Finality::Final));
    let gone = error_of(ArrayDriver::create_from_volume(create_request("x", GIB), "vol-none".to_owned()));
    assert_eq!(gone, (ErrorKind::NotFound, Finality::Final));
    assert_eq!(error_of(create_snapshot("t", "vol-none")), (ErrorKind::NotFound, Finality::Final));
    assert_eq!(error_of(create_snapshot("s", "vol-c")), (ErrorKind::AlreadyExists, Finality::Final));
    let get = <ArrayDriver as Snapshots>::get_snapshot;
    <ArrayDriver as Snapshots>::delete_snapshot(snapshot.handle.clone()).unwrap();
    <ArrayDriver as Snapshots>::delete_snapshot(snapshot.handle.clone()).unwrap();
    assert_eq!(error_of(get(snapshot.handle)).0, ErrorKind::NotFound);
}

#[test]
fn a_single_node_volume_is_published_to_one_node() {
    let (_host, _array) = start();
    let handle = create("a", GIB).handle;
    let publish = |node, mode| ArrayDriver::publish(publish_request(&handle, node, mode));
    let info = publish("n1", AccessMode::SingleNodeWriter).unwrap();
    assert_eq!(info.kind, "local-device");
    assert_eq!(publish("n1", AccessMode::SingleNodeWriter).unwrap(), info);
    let other_way = error_of(publish("n1", AccessMode::MultiNodeMultiWriter));
    assert_eq!(other_way, (ErrorKind::AlreadyExists, Finality::Final));
    let elsewhere = error_of(publish("n2", AccessMode::SingleNodeWriter));
    assert_eq!(elsewhere, (ErrorKind::FailedPrecondition, Finality::Final));
    let status = <ArrayDriver as Inspection>::get_volume(handle.clone()).unwrap();
    assert_eq!(status.published_nodes, ["n1"]);
    let in_use = error_of(<ArrayDriver as Backend>::delete_volume(handle.clone()));
    assert_eq!(in_use, (ErrorKind::FailedPrecondition, Finality::Final));
    for _ in 0..2 {
        ArrayDriver::unpublish(handle.clone(), Some("n1".to_owned())).unwrap();
    }
    publish("n1", AccessMode::MultiNodeMultiWriter).unwrap();
    publish("n2", AccessMode::MultiNodeMultiWriter).unwrap();
    ArrayDriver::unpublish(handle.clone(), None).unwrap();
    for _ in 0..2 {
        <ArrayDriver as Backend>::delete_volume(handle.clone()).unwrap();
    }
    assert_eq!(error_of(publish("n1", AccessMode::SingleNodeWriter)).0, ErrorKind::NotFound);
    ArrayDriver::unpublish(handle.clone(), None).unwrap();
}

#[test]
fn a_volume_is_expanded_and_never_shrunk() {
    let (_host, _array) = start();
    let handle = create("a", GIB).handle;
    let expand = |required, capability| {
        ArrayDriver::expand(ExpandRequest { handle: handle.clone(), capacity: bytes(required), capability })
    };
    let expanded = expand(2 * GIB, None).unwrap();
    assert_eq!((expanded.capacity_bytes, expanded.node_expansion), (2 * GIB, true));
    let unchanged = expand(GIB, Some(block(AccessMode::SingleNodeWriter))).unwrap();
    assert_eq!((unchanged.capacity_bytes, unchanged.node_expansion), (2 * GIB, false));
    assert_eq!(error_of(expand(1 << 45, None)), (ErrorKind::OutOfRange, Finality::Final));
    assert_eq!(error_of(expand(2 << 40, None)), (ErrorKind::ResourceExhausted, Finality::Final));
}

#[test]
fn listings_are_paged_and_return_owners() {
    let (_host, _array) = start();
    let owner = Owner {
        cluster_id: "c".to_owned(),
        claim_uid: "u".to_owned(),
        pv_name: "pv".to_owned(),
        reclaim_policy: ReclaimPolicy::Delete,
    };
    for name in ["a", "b", "c"] {
        let request = CreateRequest { owner: Some(owner.clone()), ..create_request(name, GIB) };
        <ArrayDriver as Backend>::create_volume(request).unwrap();
    }
    for (name, source) in [("a", "vol-b"), ("b", "vol-b"), ("c", "vol-a")] {
        create_snapshot(name, source).unwrap();
    }
    let list = <ArrayDriver as Listing>::list_volumes;
    let first = list(None, Some(2)).unwrap();
    assert_eq!((first.volumes.len(), first.volumes[0].owner.as_ref()), (2, Some(&owner)));
    <ArrayDriver as Backend>::delete_volume("vol-b".to_owned()).unwrap();
    let last = list(first.next, Some(2)).unwrap();
    assert_eq!((last.volumes[0].volume.handle.as_str(), last.next), ("vol-c", None));
    assert_eq!(error_of(list(Some("made-up".to_owned()), None)), (ErrorKind::Aborted, Finality::Final));
    let snapshots = <ArrayDriver as Snapshots>::list_snapshots;
    let of_b = snapshots(Some("vol-b".to_owned()), None, Some(1)).unwrap();
    assert_eq!(of_b.snapshots.len(), 1);
    assert_eq!(snapshots(Some("vol-b".to_owned()), of_b.next, Some(1)).unwrap().next, None);
    assert_eq!(snapshots(None, None, None).unwrap().snapshots.len(), 3);
    assert_eq!(snapshots(Some("vol-none".to_owned()), None, None).unwrap().snapshots, []);
}

#[test]
fn a_handle_that_is_no_array_name_is_not_found() {
    let (host, _array) = start();
    for handle in ["..", ".", "a/../../pool", "vol-a?x", "ä"] {
        <ArrayDriver as Backend>::delete_volume(handle.to_owned()).unwrap();
        assert_eq!(
            error_of(<ArrayDriver as Inspection>::get_volume(handle.to_owned())).0,
            ErrorKind::NotFound
        );
    }
    assert_eq!(host.requests(), []);
}

#[test]
fn unsupported_requests_are_rejected_without_a_call() {
    let (host, _array) = start();
    let shared = VolumeCapability {
        mode: AccessMode::MultiNodeMultiWriter,
        access: AccessType::Filesystem(FilesystemAccess {
            fs_type: None,
            mount_flags: Vec::new(),
            mount_group: None,
        }),
    };
    let request = CreateRequest { capabilities: vec![shared.clone()], ..create_request("a", GIB) };
    let refused = error_of(<ArrayDriver as Backend>::create_volume(request));
    assert_eq!(refused, (ErrorKind::InvalidArgument, Finality::Final));
    let unknown = CreateRequest { parameters: vec![("x".into(), "y".into())], ..create_request("a", GIB) };
    assert_eq!(error_of(<ArrayDriver as Backend>::create_volume(unknown)).0, ErrorKind::InvalidArgument);
    assert_eq!(host.requests(), []);
    let handle = create("a", GIB).handle;
    let validate = |capabilities| {
        ArrayDriver::validate(ValidateRequest {
            handle: handle.clone(),
            context: Vec::new(),
            capabilities,
            parameters: Vec::new(),
            mutable_parameters: Vec::new(),
        })
    };
    assert!(matches!(validate(vec![shared]), Ok(Validation::Refused(_))));
    let supported = vec![block(AccessMode::SingleNodeWriter)];
    assert_eq!(validate(supported), Ok(Validation::Confirmed));
    let capacity_request =
        CapacityRequest { capabilities: Vec::new(), parameters: Vec::new(), topology: None };
    assert_eq!(ArrayDriver::available(capacity_request).unwrap().available_bytes, (1 << 40) - GIB);
}

#[test]
fn probe_reports_a_missing_setting() {
    let _host = MockHost::new().install();
    let missing = Readiness::NotReady(r#"the setting "url" is missing"#.to_owned());
    assert_eq!(ArrayDriver::probe(), Ok(missing));
    let _host = MockHost::new().setting("url", "http://array").install();
    assert_eq!(ArrayDriver::probe(), Ok(Readiness::Ready));
}

#[test]
fn node_ids_with_dot_segments_are_rejected() {
    let (host, array) = start();
    create("a", GIB);
    let publish = |node: &str| {
        <ArrayDriver as Publishing>::publish(publish_request("vol-a", node, AccessMode::MultiNodeMultiWriter))
    };
    publish("node-1").unwrap();
    host.clear_requests();
    let refused = (ErrorKind::InvalidArgument, Finality::Final);
    for node in ["..", ".", ""] {
        let unpublish = <ArrayDriver as Publishing>::unpublish("vol-a".to_owned(), Some(node.to_owned()));
        assert_eq!((error_of(unpublish), error_of(publish(node))), (refused, refused), "{node:?}");
    }
    assert!(host.requests().is_empty(), "{:?}", host.requests());
    assert_eq!(array.borrow().content().volumes["vol-a"].exports.len(), 1);
}

#[test]
fn a_volume_of_another_cluster_already_exists() {
    let (_host, array) = start();
    let of = |cluster: &str| {
        let owner = Owner {
            cluster_id: cluster.to_owned(),
            claim_uid: "u".to_owned(),
            pv_name: "pvc-u".to_owned(),
            reclaim_policy: ReclaimPolicy::Delete,
        };
        <ArrayDriver as Backend>::create_volume(CreateRequest {
            owner: Some(owner),
            ..create_request("a", GIB)
        })
    };
    let volume = of("one").unwrap();
    assert_eq!(of("one").unwrap(), volume);
    assert_eq!(create("a", GIB), volume, "who does not say is not compared");
    let error = of("two").unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::AlreadyExists, Finality::Final));
    assert!(error.message.contains(r#"its cluster is "one", not "two""#), "{}", error.message);
    assert_eq!(array.borrow().content().volumes.len(), 1);
}

#[test]
fn a_mount_flag_cannot_pass_for_a_capability() {
    let (_host, _array) = start();
    let mounted = VolumeCapability {
        mode: AccessMode::SingleNodeWriter,
        access: AccessType::Filesystem(FilesystemAccess {
            fs_type: None,
            mount_flags: vec![
                "a\nmulti-node-multi-writer block\nb; multi-node-multi-writer block; c".to_owned(),
            ],
            mount_group: None,
        }),
    };
    let made = <ArrayDriver as Backend>::create_volume(CreateRequest {
        capabilities: vec![mounted.clone()],
        ..create_request("a", GIB)
    });
    let validate = |capability, mutable_parameters| {
        ArrayDriver::validate(ValidateRequest {
            handle: made.clone().unwrap().handle,
            context: Vec::new(),
            capabilities: vec![capability],
            parameters: Vec::new(),
            mutable_parameters,
        })
    };
    assert_eq!(validate(mounted.clone(), Vec::new()), Ok(Validation::Confirmed));
    let refused = validate(block(AccessMode::MultiNodeMultiWriter), Vec::new()).unwrap();
    assert!(
        matches!(&refused, Validation::Refused(why) if why.contains("not for multi-node-multi-writer block"))
    );
    let tier = vec![("tier".to_owned(), "fast".to_owned())];
    assert!(matches!(validate(mounted, tier), Ok(Validation::Refused(_))), "no tier changes");
}
