//! The driver against the fake array, on the mock host: no socket, no WebAssembly.

use std::{cell::RefCell, rc::Rc};

use cofferdam_fake_array::{Answer, Array, Ask, Credentials};
use cofferdam_guest::{
    AccessMode, AccessType, CapacityRange, ErrorKind, FilesystemAccess, Finality, Owner, ReclaimPolicy,
    StorageError, VolumeCapability,
    http::{Failure, HttpError, Method, Response},
    mock::{Host, Installed, Received},
};

use super::*;

const GIB: u64 = 1 << 30;

type Shared = Rc<RefCell<Array>>;

fn ask(array: &mut Array, request: &Received) -> Response {
    let credentials = match (request.basic(), request.bearer()) {
        (Some((user, password)), _) => Credentials::Basic(user, password),
        (None, Some(token)) => Credentials::Bearer(token),
        (None, None) => Credentials::None,
    };
    let method = match request.method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Patch => "PATCH",
        Method::Delete => "DELETE",
        Method::Options => "OPTIONS",
    };
    let path = request.url.strip_prefix("http://array").unwrap_or_default();
    let Answer { status, body } = array.answer(&Ask { method, path, credentials, body: &request.body }, 0);
    Response::new(status).with_body(body)
}

fn scripted(array: &Shared) -> Host {
    let host =
        Host::new().setting("url", "http://array").secret("user", "admin").secret("password", "secret");
    [Method::Get, Method::Post, Method::Put, Method::Patch, Method::Delete].into_iter().fold(
        host,
        |host, method| {
            let array = Rc::clone(array);
            host.on(method, "http://array/", move |request| Ok(ask(&mut array.borrow_mut(), request)))
        },
    )
}

fn start() -> (Installed, Shared) {
    let array = Rc::new(RefCell::new(Array::new("admin", "secret")));
    (scripted(&array).install(), array)
}

fn block(mode: AccessMode) -> VolumeCapability {
    VolumeCapability { mode, access: AccessType::Block }
}

fn bytes(required: u64) -> CapacityRange {
    CapacityRange { required_bytes: Some(required), limit_bytes: None }
}

fn wanted(name: &str, required: u64) -> CreateRequest {
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
    <ArrayDriver as Backend>::create(wanted(name, required)).unwrap()
}

fn cut(name: &str, source: &str) -> Result<Snapshot> {
    let (name, source) = (name.to_owned(), source.to_owned());
    <ArrayDriver as Snapshots>::create(SnapshotRequest { name, source, parameters: Vec::new(), owner: None })
}

fn publication(handle: &str, node: &str, mode: AccessMode) -> PublishRequest {
    PublishRequest {
        handle: handle.to_owned(),
        node_identities: Vec::new(),
        node: node.to_owned(),
        capability: block(mode),
        read_only: false,
        context: Vec::new(),
    }
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> (ErrorKind, Finality) {
    let StorageError { kind, finality, .. } = result.unwrap_err();
    (kind, finality)
}

#[test]
fn one_login_serves_many_calls_and_the_password_stays_unseen() {
    let (host, array) = start();
    let made = create("a", GIB);
    assert_eq!(create("a", GIB), made);
    assert_eq!((made.handle.as_str(), made.capacity_bytes), ("vol-a", Some(GIB)));
    create("b", GIB);
    assert_eq!((array.borrow().content().volumes.len(), array.borrow().counters().logins), (2, 1));
    assert_eq!(host.revealed(), [""; 0]);
    let (login, rest) =
        host.requests().split_first().map(|(one, rest)| (one.clone(), rest.to_vec())).unwrap();
    assert_eq!(login.secrets, ["user", "password"]);
    assert!(rest.iter().all(|request| request.secrets.is_empty()));
}

#[test]
fn a_lost_answer_leaves_one_volume() {
    let (_host, array) = start();
    let lossy = Rc::clone(&array);
    let host = scripted(&array)
        .on(Method::Put, "http://array/volumes/", move |request| {
            ask(&mut lossy.borrow_mut(), request);
            Err(HttpError::lost(Failure::Broken, "reset"))
        })
        .install();
    let lost = kind(<ArrayDriver as Backend>::create(wanted("a", GIB)));
    assert_eq!(lost, (ErrorKind::Unavailable, Finality::Unknown));
    drop(host);
    assert_eq!(create("a", GIB).handle, "vol-a");
    assert_eq!(array.borrow().content().volumes.len(), 1);
}

#[test]
fn whenever_a_create_dies_the_same_call_again_completes_it() {
    let mut died = 0;
    for requests in 0..5 {
        let (host, array) = start();
        host.dies_after(requests);
        died += u32::from(host.call(|| <ArrayDriver as Backend>::create(wanted("a", GIB))).is_err());
        host.lives();
        assert_eq!(host.turn(), None, "after {requests} requests");
        host.call(|| create("a", GIB));
        assert_eq!(array.borrow().content().volumes.len(), 1, "after {requests} requests");
    }
    assert_eq!(died, 3, "a create is a login, a look and a request");
}

#[test]
fn a_login_that_the_array_forgot_is_made_anew_once() {
    let (_host, array) = start();
    create("a", GIB);
    array.borrow_mut().end_sessions();
    create("b", GIB);
    assert_eq!(array.borrow().counters().logins, 2);
    array.borrow_mut().end_sessions();
    array.borrow_mut().set_password("other");
    let refused = kind(<ArrayDriver as Inspection>::get("vol-a".to_owned()));
    assert_eq!(refused, (ErrorKind::Unauthenticated, Finality::Final));
    array.borrow_mut().set_password("secret");
    array.borrow_mut().set_session_limit(0);
    let full = kind(<ArrayDriver as Inspection>::get("vol-a".to_owned()));
    assert_eq!(full, (ErrorKind::Unavailable, Finality::Final), "a login changes nothing");
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
    let size = differs(<ArrayDriver as Backend>::create(wanted("a", 2 * GIB)));
    assert_eq!(size, r#"the volume "a" exists: its size is 1073741824 bytes, not at least 2147483648 bytes"#);
    let fast = vec![("tier".to_owned(), "fast".to_owned())];
    let tier =
        differs(<ArrayDriver as Backend>::create(CreateRequest { parameters: fast, ..wanted("a", GIB) }));
    assert_eq!(tier, r#"the volume "a" exists: its tier is "cheap", not "fast""#);
    let source = differs(ArrayDriver::create_from_volume(wanted("a", GIB), "vol-b".to_owned()));
    assert_eq!(source, r#"the volume "a" exists: its source is None, not Some(Volume("vol-b"))"#);
}

#[test]
fn what_a_status_says_of_the_outcome() {
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
        let host = scripted(&array).on(Method::Put, "http://array/", move |_| Ok(Response::new(status)));
        let host = host.install();
        let found = host.call(|| kind(<ArrayDriver as Backend>::create(wanted("a", GIB))));
        assert_eq!(found, (expected, finality), "{status}");
    }
}

#[test]
fn copies_are_as_large_as_their_source() {
    let (_host, _array) = start();
    create("a", 3 * GIB);
    let snapshot = cut("s", "vol-a").unwrap();
    assert_eq!(cut("s", "vol-a").unwrap(), snapshot);
    assert_eq!(
        (snapshot.handle.as_str(), snapshot.size_bytes, snapshot.ready),
        ("snap-s", Some(3 * GIB), true)
    );
    let open = |name| CreateRequest {
        capacity: CapacityRange { required_bytes: None, limit_bytes: None },
        ..wanted(name, 0)
    };
    let clone = ArrayDriver::create_from_volume(open("c"), "vol-a".to_owned()).unwrap();
    let restored = ArrayDriver::create_from_snapshot(open("r"), "snap-s".to_owned()).unwrap();
    assert_eq!((clone.capacity_bytes, restored.capacity_bytes), (Some(3 * GIB), Some(3 * GIB)));
    let small = kind(ArrayDriver::create_from_snapshot(wanted("x", GIB), "snap-s".to_owned()));
    assert_eq!(small, (ErrorKind::OutOfRange, Finality::Final));
    let gone = kind(ArrayDriver::create_from_volume(wanted("x", GIB), "vol-none".to_owned()));
    assert_eq!(gone, (ErrorKind::NotFound, Finality::Final));
    assert_eq!(kind(cut("t", "vol-none")), (ErrorKind::NotFound, Finality::Final));
    assert_eq!(kind(cut("s", "vol-c")), (ErrorKind::AlreadyExists, Finality::Final));
    let get = <ArrayDriver as Snapshots>::get;
    <ArrayDriver as Snapshots>::delete(snapshot.handle.clone()).unwrap();
    <ArrayDriver as Snapshots>::delete(snapshot.handle.clone()).unwrap();
    assert_eq!(kind(get(snapshot.handle)).0, ErrorKind::NotFound);
}

#[test]
fn a_volume_for_one_node_is_reached_from_one_node() {
    let (_host, _array) = start();
    let handle = create("a", GIB).handle;
    let publish = |node, mode| ArrayDriver::publish(publication(&handle, node, mode));
    let attachment = publish("n1", AccessMode::SingleNodeWriter).unwrap();
    assert_eq!(attachment.kind, "local-device");
    assert_eq!(publish("n1", AccessMode::SingleNodeWriter).unwrap(), attachment);
    let other_way = kind(publish("n1", AccessMode::MultiNodeMultiWriter));
    assert_eq!(other_way, (ErrorKind::AlreadyExists, Finality::Final));
    let elsewhere = kind(publish("n2", AccessMode::SingleNodeWriter));
    assert_eq!(elsewhere, (ErrorKind::FailedPrecondition, Finality::Final));
    let status = <ArrayDriver as Inspection>::get(handle.clone()).unwrap();
    assert_eq!(status.published_nodes, ["n1"]);
    let in_use = kind(<ArrayDriver as Backend>::delete(handle.clone()));
    assert_eq!(in_use, (ErrorKind::FailedPrecondition, Finality::Final));
    for _ in 0..2 {
        ArrayDriver::unpublish(handle.clone(), Some("n1".to_owned())).unwrap();
    }
    publish("n1", AccessMode::MultiNodeMultiWriter).unwrap();
    publish("n2", AccessMode::MultiNodeMultiWriter).unwrap();
    ArrayDriver::unpublish(handle.clone(), None).unwrap();
    for _ in 0..2 {
        <ArrayDriver as Backend>::delete(handle.clone()).unwrap();
    }
    assert_eq!(kind(publish("n1", AccessMode::SingleNodeWriter)).0, ErrorKind::NotFound);
    ArrayDriver::unpublish(handle.clone(), None).unwrap();
}

#[test]
fn volumes_grow() {
    let (_host, _array) = start();
    let handle = create("a", GIB).handle;
    let expand = |required, capability| {
        ArrayDriver::expand(ExpandRequest { handle: handle.clone(), capacity: bytes(required), capability })
    };
    let grown = expand(2 * GIB, None).unwrap();
    assert_eq!((grown.capacity_bytes, grown.node_expansion), (2 * GIB, true));
    let enough = expand(GIB, Some(block(AccessMode::SingleNodeWriter))).unwrap();
    assert_eq!((enough.capacity_bytes, enough.node_expansion), (2 * GIB, false));
    assert_eq!(kind(expand(1 << 45, None)), (ErrorKind::OutOfRange, Finality::Final));
    assert_eq!(kind(expand(2 << 40, None)), (ErrorKind::ResourceExhausted, Finality::Final));
}

#[test]
fn lists_come_in_parts_with_their_owners() {
    let (_host, _array) = start();
    let owner = Owner {
        cluster_id: "c".to_owned(),
        claim_uid: "u".to_owned(),
        pv_name: "pv".to_owned(),
        reclaim_policy: ReclaimPolicy::Delete,
    };
    for name in ["a", "b", "c"] {
        let request = CreateRequest { owner: Some(owner.clone()), ..wanted(name, GIB) };
        <ArrayDriver as Backend>::create(request).unwrap();
    }
    for (name, source) in [("a", "vol-b"), ("b", "vol-b"), ("c", "vol-a")] {
        cut(name, source).unwrap();
    }
    let list = <ArrayDriver as Listing>::list;
    let first = list(None, Some(2)).unwrap();
    assert_eq!((first.volumes.len(), first.volumes[0].owner.as_ref()), (2, Some(&owner)));
    <ArrayDriver as Backend>::delete("vol-b".to_owned()).unwrap();
    let last = list(first.next, Some(2)).unwrap();
    assert_eq!((last.volumes[0].volume.handle.as_str(), last.next), ("vol-c", None));
    assert_eq!(kind(list(Some("made-up".to_owned()), None)), (ErrorKind::Aborted, Finality::Final));
    let snapshots = <ArrayDriver as Snapshots>::list;
    let of_b = snapshots(Some("vol-b".to_owned()), None, Some(1)).unwrap();
    assert_eq!(of_b.snapshots.len(), 1);
    assert_eq!(snapshots(Some("vol-b".to_owned()), of_b.next, Some(1)).unwrap().next, None);
    assert_eq!(snapshots(None, None, None).unwrap().snapshots.len(), 3);
    assert_eq!(snapshots(Some("vol-none".to_owned()), None, None).unwrap().snapshots, []);
}

#[test]
fn a_handle_that_leads_elsewhere_is_nobodys() {
    let (host, _array) = start();
    for handle in ["..", ".", "a/../../pool", "vol-a?x", "ä"] {
        <ArrayDriver as Backend>::delete(handle.to_owned()).unwrap();
        assert_eq!(kind(<ArrayDriver as Inspection>::get(handle.to_owned())).0, ErrorKind::NotFound);
    }
    assert_eq!(host.requests(), []);
}

#[test]
fn what_the_array_cannot_do_is_refused_before_it_is_asked() {
    let (host, _array) = start();
    let shared = VolumeCapability {
        mode: AccessMode::MultiNodeMultiWriter,
        access: AccessType::Filesystem(FilesystemAccess {
            fs_type: None,
            mount_flags: Vec::new(),
            mount_group: None,
        }),
    };
    let request = CreateRequest { capabilities: vec![shared.clone()], ..wanted("a", GIB) };
    let refused = kind(<ArrayDriver as Backend>::create(request));
    assert_eq!(refused, (ErrorKind::InvalidArgument, Finality::Final));
    let unknown = CreateRequest { parameters: vec![("x".into(), "y".into())], ..wanted("a", GIB) };
    assert_eq!(kind(<ArrayDriver as Backend>::create(unknown)).0, ErrorKind::InvalidArgument);
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
    let one = vec![block(AccessMode::SingleNodeWriter)];
    assert_eq!(validate(one), Ok(Validation::Confirmed));
    let room = CapacityRequest { capabilities: Vec::new(), parameters: Vec::new(), topology: None };
    assert_eq!(ArrayDriver::available(room).unwrap().available_bytes, (1 << 40) - GIB);
}

#[test]
fn a_probe_names_what_is_missing() {
    let _host = Host::new().install();
    let missing = Readiness::NotReady(r#"the setting "url" is missing"#.to_owned());
    assert_eq!(ArrayDriver::probe(), Ok(missing));
    let _host = Host::new().setting("url", "http://array").install();
    assert_eq!(ArrayDriver::probe(), Ok(Readiness::Ready));
}

#[test]
fn a_node_that_means_another_resource_is_refused() {
    let (host, array) = start();
    create("a", GIB);
    let publish = |node: &str| {
        <ArrayDriver as Publishing>::publish(publication("vol-a", node, AccessMode::MultiNodeMultiWriter))
    };
    publish("node-1").unwrap();
    host.forget_requests();
    let refused = (ErrorKind::InvalidArgument, Finality::Final);
    for node in ["..", ".", ""] {
        let unpublish = <ArrayDriver as Publishing>::unpublish("vol-a".to_owned(), Some(node.to_owned()));
        assert_eq!((kind(unpublish), kind(publish(node))), (refused, refused), "{node:?}");
    }
    assert!(host.requests().is_empty(), "{:?}", host.requests());
    assert_eq!(array.borrow().content().volumes["vol-a"].exports.len(), 1);
}

#[test]
fn a_volume_of_another_cluster_is_not_taken_for_ours() {
    let (_host, array) = start();
    let of = |cluster: &str| {
        let owner = Owner {
            cluster_id: cluster.to_owned(),
            claim_uid: "u".to_owned(),
            pv_name: "pvc-u".to_owned(),
            reclaim_policy: ReclaimPolicy::Delete,
        };
        <ArrayDriver as Backend>::create(CreateRequest { owner: Some(owner), ..wanted("a", GIB) })
    };
    let made = of("one").unwrap();
    assert_eq!(of("one").unwrap(), made);
    assert_eq!(create("a", GIB), made, "who does not say is not compared");
    let error = of("two").unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::AlreadyExists, Finality::Final));
    assert!(error.message.contains(r#"its cluster is "one", not "two""#), "{}", error.message);
    assert_eq!(array.borrow().content().volumes.len(), 1);
}

#[test]
fn a_mount_option_is_no_way_of_use() {
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
    let made = <ArrayDriver as Backend>::create(CreateRequest {
        capabilities: vec![mounted.clone()],
        ..wanted("a", GIB)
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
