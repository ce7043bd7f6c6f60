//! Each call as the driver hears it, and its answer as the caller does.

use std::collections::BTreeMap;

use cofferdam_backend::{Backend, Call};
use cofferdam_csi::{CsiConfig, v1};
use cofferdam_domain::storage::{
    Ability, Capacity, CapacityQuery, CapacityRange, ConnectionInfo, CreateGroupSnapshot, CreateSnapshot,
    CsiAccessMode, ErrorKind, ExpandVolume, Finality, PageRequest, PublishVolume, Secret,
    TopologyRequirement, ValidateVolume, Validation, VolumeCapability,
};
use prost_types::Timestamp;
use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};

use crate::fake::{
    CREATE, DELETE, Fake, Reply, call, capability, connect, created, creation, message, volume,
};

const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";
const LIST_SNAPSHOTS: &str = "/csi.v1.Controller/ListSnapshots";

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn a_volume_is_created_as_it_was_asked_for() {
    let fake = Fake::start();
    let own = [("ca".to_owned(), Secret::new("of the operator"))].into_iter().collect();
    let backend = connect(CsiConfig { secrets: own, ..fake.config() }).await.unwrap();
    let place = |zone: &str| map(&[("zone", zone)]);
    let mut answer = volume("v-1");
    answer.accessible_topology = vec![
        v1::Topology { segments: place("b") },
        // Says nothing.
        v1::Topology::default(),
    ];
    fake.once(CREATE, created(answer));
    let mut request = creation("pvc-1");
    request.capacity.limit = Some(2 << 30);
    request.mutable_parameters = map(&[("iops", "7")]);
    request.topology =
        Some(TopologyRequirement { requisite: vec![place("a"), place("b")], preferred: vec![place("b")] });
    let found = backend.create_volume(call(), request).await.unwrap();
    assert_eq!((found.handle.as_str(), found.capacity), ("v-1", Some(1 << 30)));
    assert_eq!(found.context, map(&[("a", "b")]));
    assert_eq!((found.topology, found.connection_info), (vec![place("b")], None));

    let heard: v1::CreateVolumeRequest = fake.heard(CREATE)[0].message();
    assert_eq!(heard.name, "pvc-1");
    assert_eq!(
        heard.capacity_range,
        Some(v1::CapacityRange { required_bytes: 1 << 30, limit_bytes: 2 << 30 })
    );
    assert_eq!(heard.parameters, map(&[("tier", "fast")]));
    assert_eq!(heard.mutable_parameters, map(&[("iops", "7")]));
    assert_eq!(heard.secrets, map(&[("ca", "of the operator"), ("password", "hunter2hunter2")]));
    let requirement = heard.accessibility_requirements.as_ref().unwrap();
    assert_eq!((requirement.requisite.len(), requirement.preferred.len()), (2, 1));
    let sent = &heard.volume_capabilities[0];
    assert_eq!(sent.access_mode.unwrap().mode, 1);
    let Some(v1::volume_capability::AccessType::Mount(mount)) = &sent.access_type else { panic!("{sent:?}") };
    assert_eq!((mount.fs_type.as_str(), &mount.mount_flags[..]), ("ext4", &["noatime".to_owned()][..]));
    assert_eq!(heard.volume_content_source, None);
    let shown = format!("{heard:?}");
    assert!(shown.contains("secrets: ***stripped***") && shown.contains("pvc-1"), "{shown}");
    assert!(!shown.contains("hunter2") && !shown.contains("operator"), "{shown}");
}

#[tokio::test]
async fn what_a_driver_cannot_do_is_not_asked() {
    let fake = Fake::start();
    fake.plugin(&[1], &[]);
    fake.controller(&[1]);
    let backend = fake.connect().await;
    let refused = |error: cofferdam_domain::storage::StorageError, kind| {
        assert_eq!((error.kind, error.finality), (kind, Finality::Final), "{error}");
    };
    // An earlier process may have created it, when the driver could do more.
    let left_open = |error: cofferdam_domain::storage::StorageError, kind| {
        assert_eq!((error.kind, error.finality), (kind, Finality::Unknown), "{error}");
    };
    let mut request = creation("a");
    request.topology = Some(TopologyRequirement::default());
    let error = backend.create_volume(call(), request).await.unwrap_err();
    left_open(error, ErrorKind::InvalidArgument);
    let mut request = creation("a");
    request.mutable_parameters = map(&[("iops", "7")]);
    let error = backend.create_volume(call(), request).await.unwrap_err();
    left_open(error, ErrorKind::InvalidArgument);
    let mut request = creation("a");
    request.capacity.required = Some(u64::MAX);
    let error = backend.create_volume(call(), request).await.unwrap_err();
    refused(error, ErrorKind::InvalidArgument);
    let unable = ErrorKind::Unimplemented;
    left_open(backend.clone_volume(call(), creation("a"), "v".into()).await.unwrap_err(), unable);
    left_open(backend.restore_snapshot(call(), creation("a"), "s".into()).await.unwrap_err(), unable);
    let cut = CreateSnapshot { name: "n".to_owned(), source: "v".into(), parameters: map(&[]), owner: None };
    left_open(backend.create_snapshot(call(), cut).await.unwrap_err(), unable);
    let cut = CreateGroupSnapshot {
        name: "n".to_owned(),
        sources: ["v".into()].into(),
        parameters: map(&[]),
        owner: None,
    };
    left_open(backend.create_group_snapshot(call(), cut).await.unwrap_err(), unable);
    refused(backend.unpublish_volume(call(), "v".into(), None).await.unwrap_err(), unable);
    refused(backend.modify_volume(call(), "v".into(), map(&[])).await.unwrap_err(), unable);
    refused(backend.delete_snapshot(call(), "s".into()).await.unwrap_err(), unable);
    refused(backend.get_snapshot(call(), "s".into()).await.unwrap_err(), unable);
    let page = PageRequest::default();
    refused(backend.list_snapshots(call(), None, page.clone()).await.unwrap_err(), unable);
    refused(backend.get_group_snapshot(call(), "g".into(), [].into()).await.unwrap_err(), unable);
    refused(backend.list_volumes(call(), page).await.unwrap_err(), unable);
    refused(backend.get_volume(call(), "v".into()).await.unwrap_err(), unable);
    refused(backend.get_capacity(call(), CapacityQuery::default()).await.unwrap_err(), unable);
    assert_eq!(fake.heard(CREATE).len(), 0);
    fake.controller(&[]);
    let backend = fake.connect().await;
    left_open(backend.create_volume(call(), creation("a")).await.unwrap_err(), unable);
    assert_eq!(fake.heard(CREATE).len(), 0);
}

#[tokio::test]
async fn what_grows_on_its_node_grows_without_the_controller() {
    use v1::node_service_capability::{Rpc, Type};
    const NODE: &str = "/csi.v1.Node/NodeGetCapabilities";
    const EXPAND: &str = "/csi.v1.Controller/ControllerExpandVolume";
    let node = |numbers: &[i32]| {
        let capability =
            |r#type: &i32| v1::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: *r#type })) };
        message(&v1::NodeGetCapabilitiesResponse { capabilities: numbers.iter().map(capability).collect() })
    };
    let fake = Fake::start();
    let (create, expand) = (1, 9);
    #[rustfmt::skip] // one row a driver
    let table = [
        // controller          node's answer                        expands  asked of the node
        (vec![create, expand], node(&[1, 2, 3]),                    true,    0),
        (vec![create],         node(&[1, 2, 3]),                    true,    1),
        (vec![create],         node(&[1, 2]),                       false,   1),
        (vec![create],         Reply::Status(12, "no node here"),   false,   1),
        (vec![create],         Reply::Status(13, "how odd"),        false,   1),
    ];
    for (controller, answer, expands, asked) in table {
        let before = fake.heard(NODE).len();
        fake.controller(&controller);
        fake.always(NODE, answer);
        let backend = fake.connect().await;
        assert_eq!(backend.abilities().contains(&Ability::Expansion), expands, "{controller:?}");
        assert_eq!(fake.heard(NODE).len() - before, asked, "{controller:?}");
    }
    fake.always(NODE, node(&[3]));
    fake.once(NODE, Reply::Status(14, "not now"));
    let before = fake.heard(NODE).len();
    let backend = fake.connect().await;
    assert_eq!(fake.heard(NODE).len() - before, 2, "it was asked again");
    let capacity = CapacityRange { required: Some(2 << 30), limit: None };
    let request = ExpandVolume { handle: "v".into(), capacity, capability: None };
    let grown = backend.expand_volume(call(), request).await.unwrap();
    assert_eq!((grown.capacity, grown.node_expansion_required), (2 << 30, true));
    assert_eq!(fake.heard(EXPAND).len(), 0);
}

#[tokio::test]
async fn what_a_volume_was_made_of_is_not_the_drivers_to_say() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let context = [("cofferdam.dev/content-source", "snapshot"), ("tier", "gold")];
    let volume_context = context.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    fake.once(CREATE, created(v1::Volume { volume_context, ..volume("v") }));
    let made = backend.create_volume(call(), creation("a")).await.unwrap();
    assert_eq!(made.context, [("tier".to_owned(), "gold".to_owned())].into());
}

#[tokio::test]
async fn a_volume_of_a_source() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let of_volume = Type::Volume(VolumeSource { volume_id: "v".to_owned() });
    let of_snapshot = Type::Snapshot(SnapshotSource { snapshot_id: "s".to_owned() });
    let from = |r#type: &Type| {
        let content_source = Some(v1::VolumeContentSource { r#type: Some(r#type.clone()) });
        created(v1::Volume { content_source, ..volume("new") })
    };
    fake.once(CREATE, from(&of_volume));
    backend.clone_volume(call(), creation("a"), "v".into()).await.unwrap();
    fake.once(CREATE, from(&of_snapshot));
    backend.restore_snapshot(call(), creation("b"), "s".into()).await.unwrap();
    let heard: Vec<v1::CreateVolumeRequest> =
        fake.heard(CREATE).iter().map(crate::fake::Heard::message).collect();
    let sources: Vec<_> =
        heard.into_iter().map(|heard| heard.volume_content_source.unwrap().r#type.unwrap()).collect();
    assert_eq!(sources, [of_volume, of_snapshot.clone()]);

    // A driver that forgets the source has made an empty volume, which must not live.
    for answer in [created(volume("empty")), from(&of_snapshot)] {
        let deleted = fake.heard(DELETE).len();
        fake.once(CREATE, answer);
        fake.once(DELETE, Reply::Status(14, "busy"));
        fake.once(DELETE, message(&v1::DeleteVolumeResponse {}));
        let error = backend.clone_volume(call(), creation("c"), "v".into()).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Unknown), "{error}");
        assert!(error.message.contains("it was deleted again"), "{error}");
        assert_eq!(fake.heard(DELETE).len(), deleted + 2);
    }
}

#[tokio::test]
async fn a_volume_of_a_source_that_could_not_be_deleted_again_does_not_block_its_name() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let filled = || {
        let r#type = Some(Type::Volume(VolumeSource { volume_id: "v".to_owned() }));
        created(v1::Volume { content_source: Some(v1::VolumeContentSource { r#type }), ..volume("new") })
    };
    let clone = || backend.clone_volume(call(), creation("a"), "v".into());
    fake.always(DELETE, Reply::Status(14, "busy"));
    // What may be deleted at any time is not handed out either, although the driver has filled it by now.
    for (answer, expected) in [
        (created(volume("new")), "the content of its source"),
        (created(volume("new")), "the content of its source"),
        (filled(), "it was to be deleted"),
    ] {
        fake.once(CREATE, answer);
        let error = clone().await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Unknown), "{error}");
        assert!(error.message.contains(expected) && error.message.contains("not deleted: "), "{error}");
    }
    fake.always(DELETE, message(&v1::DeleteVolumeResponse {}));
    fake.once(CREATE, filled());
    assert!(clone().await.unwrap_err().message.contains("deleted again"));
    fake.once(CREATE, filled());
    assert_eq!(clone().await.unwrap().handle.as_str(), "new");
    // And now the name and the handle are one volume.
    fake.once(CREATE, Reply::Status(14, "busy"));
    assert_eq!(clone().await.unwrap_err().kind, ErrorKind::Unavailable);
    let error = backend.modify_volume(call(), "new".into(), map(&[])).await.unwrap_err();
    assert_eq!(error.finality, Finality::InProgress, "{error}");
}

#[tokio::test]
async fn a_handle_that_is_a_secret_is_not_told() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    fake.once(CREATE, created(volume("login-hunter2hunter2")));
    fake.once(DELETE, message(&v1::DeleteVolumeResponse {}));
    let error = backend.clone_volume(call(), creation("a"), "v".into()).await.unwrap_err();
    assert!(error.message.contains("volume login-[secret] "), "{error}");
}

fn publication(read_only: bool) -> PublishVolume {
    PublishVolume {
        handle: "v".into(),
        node_id: "n".into(),
        node_identities: BTreeMap::new(),
        capability: VolumeCapability { access_mode: CsiAccessMode::SingleNodeMultiWriter, ..capability() },
        read_only,
        context: map(&[("a", "b")]),
    }
}

#[tokio::test]
async fn a_volume_is_published() {
    let fake = Fake::start();
    let publish_context = map(&[("lun", "3")]);
    fake.always(PUBLISH, message(&v1::ControllerPublishVolumeResponse { publish_context }));
    let expected = ConnectionInfo { kind: "csi".to_owned(), version: 1, fields: map(&[("lun", "3")]) };
    let (all, few): (Vec<i32>, _) = ((1..=15).collect(), vec![1, 2]);
    // Without PUBLISH_READONLY nothing is for reading only, without SINGLE_NODE_MULTI_WRITER no mode tells
    // writers apart.
    for (capabilities, readonly, mode) in [(all, true, 7), (few, false, 1)] {
        fake.controller(&capabilities);
        let backend = fake.connect().await;
        assert_eq!(backend.publish_volume(call(), publication(true)).await.as_ref(), Ok(&expected));
        let heard: v1::ControllerPublishVolumeRequest = fake.heard(PUBLISH).last().unwrap().message();
        assert_eq!((heard.volume_id.as_str(), heard.node_id.as_str()), ("v", "n"));
        assert_eq!((heard.readonly, heard.volume_context), (readonly, map(&[("a", "b")])));
        assert_eq!(heard.volume_capability.unwrap().access_mode.unwrap().mode, mode);
        assert_eq!(heard.secrets, map(&[("password", "hunter2hunter2")]));
    }
}

#[tokio::test]
async fn a_volume_is_unpublished_from_one_node_or_all() {
    let fake = Fake::start();
    let path = "/csi.v1.Controller/ControllerUnpublishVolume";
    fake.always(path, message(&v1::ControllerUnpublishVolumeResponse {}));
    let backend = fake.connect().await;
    backend.unpublish_volume(call(), "v".into(), Some("n".into())).await.unwrap();
    backend.unpublish_volume(call(), "v".into(), None).await.unwrap();
    let nodes: Vec<_> = fake
        .heard(path)
        .iter()
        .map(|heard| heard.message::<v1::ControllerUnpublishVolumeRequest>().node_id)
        .collect();
    assert_eq!(nodes, ["n", ""]);
}

#[tokio::test]
async fn capabilities_are_validated() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let request = || ValidateVolume {
        handle: "v".into(),
        context: BTreeMap::new(),
        capabilities: vec![capability()],
        parameters: BTreeMap::new(),
        mutable_parameters: BTreeMap::new(),
    };
    let path = "/csi.v1.Controller/ValidateVolumeCapabilities";
    let answer = |confirmed: Option<Vec<v1::VolumeCapability>>, text: &str| {
        let confirmed = confirmed.map(|volume_capabilities| {
            v1::validate_volume_capabilities_response::Confirmed { volume_capabilities, ..Default::default() }
        });
        message(&v1::ValidateVolumeCapabilitiesResponse { confirmed, message: text.to_owned() })
    };
    fake.once(path, answer(None, "not\nblock"));
    let found = backend.validate_volume(call(), request()).await.unwrap();
    assert_eq!(found, Validation::Refused("not block".to_owned()));
    let heard: v1::ValidateVolumeCapabilitiesRequest = fake.heard(path)[0].message();
    fake.once(path, answer(Some(heard.volume_capabilities), ""));
    assert_eq!(backend.validate_volume(call(), request()).await.unwrap(), Validation::Confirmed);
    fake.once(path, answer(Some(Vec::new()), ""));
    let found = backend.validate_volume(call(), request()).await.unwrap();
    assert!(matches!(found, Validation::Refused(_)), "a confirmation of something else");
}

fn snapshot(handle: &str) -> v1::Snapshot {
    v1::Snapshot {
        size_bytes: 0,
        snapshot_id: handle.to_owned(),
        source_volume_id: "v".to_owned(),
        creation_time: Some(Timestamp { seconds: 2, nanos: 500_000_000 }),
        ready_to_use: false,
        group_snapshot_id: String::new(),
    }
}

#[tokio::test]
async fn a_snapshot_is_cut_and_found() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let path = "/csi.v1.Controller/CreateSnapshot";
    fake.once(path, message(&v1::CreateSnapshotResponse { snapshot: Some(snapshot("s")) }));
    let request =
        CreateSnapshot { name: "n".to_owned(), source: "v".into(), parameters: map(&[]), owner: None };
    let found = backend.create_snapshot(call(), request).await.unwrap();
    assert_eq!((found.handle.as_str(), found.size, found.created_at_ms), ("s", None, 2_500));
    assert!(!found.ready && found.group.is_none());

    // A driver without GET_SNAPSHOT is asked for a listing of one.
    fake.controller(&[1, 5, 6]);
    let backend = fake.connect().await;
    let listed = |snapshots: Vec<v1::Snapshot>| {
        let entries =
            snapshots.into_iter().map(|one| v1::list_snapshots_response::Entry { snapshot: Some(one) });
        message(&v1::ListSnapshotsResponse { entries: entries.collect(), next_token: String::new() })
    };
    fake.once(LIST_SNAPSHOTS, listed(vec![snapshot("s")]));
    assert_eq!(backend.get_snapshot(call(), "s".into()).await.unwrap().handle.as_str(), "s");
    let heard: v1::ListSnapshotsRequest = fake.heard(LIST_SNAPSHOTS)[0].message();
    assert_eq!(heard.snapshot_id, "s");
    fake.once(LIST_SNAPSHOTS, listed(Vec::new()));
    let error = backend.get_snapshot(call(), "s".into()).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::NotFound, Finality::Final));
    fake.once(LIST_SNAPSHOTS, listed(vec![snapshot("other")]));
    assert_eq!(backend.get_snapshot(call(), "s".into()).await.unwrap_err().kind, ErrorKind::Internal);
}

#[tokio::test]
async fn volumes_are_listed_in_pages() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let status = v1::list_volumes_response::VolumeStatus {
        published_node_ids: vec!["n".to_owned()],
        volume_condition: Some(v1::VolumeCondition { abnormal: true, message: "one\ntwo".to_owned() }),
    };
    let entry = v1::list_volumes_response::Entry { volume: Some(volume("v")), status: Some(status) };
    let answer = v1::ListVolumesResponse { entries: vec![entry], next_token: "more".to_owned() };
    let path = "/csi.v1.Controller/ListVolumes";
    fake.once(path, message(&answer));
    let asked = PageRequest { starting_token: Some("from".to_owned()), max_entries: Some(5) };
    let page = backend.list_volumes(call(), asked).await.unwrap();
    assert_eq!(page.next_token.as_deref(), Some("more"));
    let found = &page.volumes[0];
    assert_eq!(found.published_node_ids, ["n".into()]);
    let condition = found.condition.as_ref().unwrap();
    assert_eq!((condition.abnormal, condition.message.as_str()), (true, "one two"));
    let heard: v1::ListVolumesRequest = fake.heard(path)[0].message();
    assert_eq!((heard.max_entries, heard.starting_token.as_str()), (5, "from"));
    fake.once(path, Reply::Status(10, "bad token"));
    let error = backend.list_volumes(call(), PageRequest::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Aborted);
}

#[tokio::test]
async fn the_room_is_told() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let path = "/csi.v1.Controller/GetCapacity";
    let answer = v1::GetCapacityResponse {
        available_capacity: 9,
        maximum_volume_size: Some(8),
        minimum_volume_size: None,
    };
    fake.once(path, message(&answer));
    let query = CapacityQuery { topology: Some(map(&[("zone", "a")])), ..CapacityQuery::default() };
    let found = backend.get_capacity(Call { ..call() }, query).await.unwrap();
    assert_eq!(found, Capacity { available: 9, maximum_volume_size: Some(8), minimum_volume_size: None });
    let heard: v1::GetCapacityRequest = fake.heard(path)[0].message();
    assert_eq!(heard.accessible_topology.unwrap().segments, map(&[("zone", "a")]));
}
