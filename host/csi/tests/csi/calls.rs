//! Tests of [`CsiBackend`](cofferdam_csi::CsiBackend)'s calls: the requests that the driver receives, the
//! results, the calls that are not sent because the driver lacks the capability, and the deletion of new
//! volumes whose content source the driver does not confirm.

use std::collections::BTreeMap;

use cofferdam_backend::{Backend, Call};
use cofferdam_csi::{CsiConfig, v1};
use cofferdam_domain::storage::{
    Ability, Capacity, CapacityQuery, CapacityRange, ConnectionInfo, ContentSource, CreateGroupSnapshot,
    CreateSnapshot, CreateVolume, CsiAccessMode, ErrorKind, ExpandVolume, Finality, PageRequest,
    PublishVolume, Secret, TopologyRequirement, ValidateVolume, Validation, VolumeCapability,
};
use prost_types::Timestamp;
use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};

use crate::fake_driver::{
    CREATE, DELETE, FakeCsiDriver, ScriptedReply, call, capability, connect, create_request, created_reply,
    message_reply, volume,
};

const PUBLISH_METHOD: &str = "/csi.v1.Controller/ControllerPublishVolume";
const LIST_SNAPSHOTS_METHOD: &str = "/csi.v1.Controller/ListSnapshots";

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn create_volume_sends_the_full_request() {
    let driver = FakeCsiDriver::start();
    let operator_secrets = [("ca".to_owned(), Secret::new("of the operator"))].into_iter().collect();
    let backend = connect(CsiConfig { secrets: operator_secrets, ..driver.config() }).await.unwrap();
    let segments = |zone: &str| map(&[("zone", zone)]);
    let mut response = volume("v-1");
    response.accessible_topology = vec![
        v1::Topology { segments: segments("b") },
        // An empty topology.
        v1::Topology::default(),
    ];
    driver.queue_reply(CREATE, created_reply(response));
    let mut request = create_request("pvc-1");
    request.capacity.limit = Some(2 << 30);
    request.mutable_parameters = map(&[("iops", "7")]);
    request.topology = Some(TopologyRequirement {
        requisite: vec![segments("a"), segments("b")],
        preferred: vec![segments("b")],
    });
    let created_volume = backend.create_volume(call(), request).await.unwrap();
    assert_eq!((created_volume.handle.as_str(), created_volume.capacity), ("v-1", Some(1 << 30)));
    assert_eq!(created_volume.context, map(&[("a", "b")]));
    assert_eq!((created_volume.topology, created_volume.connection_info), (vec![segments("b")], None));

    let received: v1::CreateVolumeRequest = driver.received(CREATE)[0].message();
    assert_eq!(received.name, "pvc-1");
    assert_eq!(
        received.capacity_range,
        Some(v1::CapacityRange { required_bytes: 1 << 30, limit_bytes: 2 << 30 })
    );
    assert_eq!(received.parameters, map(&[("tier", "fast")]));
    assert_eq!(received.mutable_parameters, map(&[("iops", "7")]));
    assert_eq!(received.secrets, map(&[("ca", "of the operator"), ("password", "hunter2hunter2")]));
    let requirement = received.accessibility_requirements.as_ref().unwrap();
    assert_eq!((requirement.requisite.len(), requirement.preferred.len()), (2, 1));
    let sent = &received.volume_capabilities[0];
    assert_eq!(sent.access_mode.unwrap().mode, 1);
    let Some(v1::volume_capability::AccessType::Mount(mount)) = &sent.access_type else { panic!("{sent:?}") };
    assert_eq!((mount.fs_type.as_str(), &mount.mount_flags[..]), ("ext4", &["noatime".to_owned()][..]));
    assert_eq!(received.volume_content_source, None);
    let debug_text = format!("{received:?}");
    assert!(debug_text.contains("secrets: ***stripped***") && debug_text.contains("pvc-1"), "{debug_text}");
    assert!(!debug_text.contains("hunter2") && !debug_text.contains("operator"), "{debug_text}");
}

#[tokio::test]
async fn topology_of_a_driver_without_the_capability_is_dropped() {
    const LIST: &str = "/csi.v1.Controller/ListVolumes";
    const GET: &str = "/csi.v1.Controller/ControllerGetVolume";
    let driver = FakeCsiDriver::start();
    let with_zone = || v1::Volume {
        accessible_topology: vec![v1::Topology { segments: map(&[("zone", "a")]) }],
        ..volume("v")
    };
    let entry = v1::list_volumes_response::Entry { volume: Some(with_zone()), status: None };
    driver.set_reply(CREATE, created_reply(with_zone()));
    driver.set_reply(
        LIST,
        message_reply(&v1::ListVolumesResponse { entries: vec![entry], next_token: String::new() }),
    );
    driver.set_reply(
        GET,
        message_reply(&v1::ControllerGetVolumeResponse { volume: Some(with_zone()), status: None }),
    );
    // The services CONTROLLER_SERVICE (1) and VOLUME_ACCESSIBILITY_CONSTRAINTS (2).
    for (services, expected) in [(&[1][..], vec![]), (&[1, 2][..], vec![map(&[("zone", "a")])])] {
        driver.set_plugin_capabilities(services, &[]);
        let backend = driver.connect().await;
        let created_volume = backend.create_volume(call(), create_request("a")).await.unwrap();
        assert_eq!(created_volume.topology, expected, "CreateVolume, services {services:?}");
        let page = backend.list_volumes(call(), PageRequest::default()).await.unwrap();
        assert_eq!(page.volumes[0].volume.topology, expected, "ListVolumes, services {services:?}");
        let status = backend.get_volume(call(), "v".into()).await.unwrap();
        assert_eq!(status.volume.topology, expected, "ControllerGetVolume, services {services:?}");
    }
}

#[tokio::test]
async fn unsupported_calls_are_not_sent_to_the_driver() {
    let driver = FakeCsiDriver::start();
    driver.set_plugin_capabilities(&[1], &[]);
    driver.set_controller_capabilities(&[1]);
    let backend = driver.connect().await;
    let assert_final = |error: cofferdam_domain::storage::StorageError, kind| {
        assert_eq!((error.kind, error.finality), (kind, Finality::Final), "{error}");
    };
    // An earlier process may have created the volume while the driver had more capabilities.
    let assert_in_doubt = |error: cofferdam_domain::storage::StorageError, kind| {
        assert_eq!((error.kind, error.finality), (kind, Finality::Unknown), "{error}");
    };
    let mut request = create_request("a");
    request.topology = Some(TopologyRequirement::default());
    let error = backend.create_volume(call(), request).await.unwrap_err();
    assert_in_doubt(error, ErrorKind::InvalidArgument);
    let mut request = create_request("a");
    request.mutable_parameters = map(&[("iops", "7")]);
    let error = backend.create_volume(call(), request).await.unwrap_err();
    assert_in_doubt(error, ErrorKind::InvalidArgument);
    let mut request = create_request("a");
    request.capacity.required = Some(u64::MAX);
    let error = backend.create_volume(call(), request).await.unwrap_err();
    assert_final(error, ErrorKind::InvalidArgument);
    let unimplemented = ErrorKind::Unimplemented;
    assert_in_doubt(
        backend
            .create_volume(
                call(),
                CreateVolume { source: Some(ContentSource::Volume("v".into())), ..create_request("a") },
            )
            .await
            .unwrap_err(),
        unimplemented,
    );
    assert_in_doubt(
        backend
            .create_volume(
                call(),
                CreateVolume { source: Some(ContentSource::Snapshot("s".into())), ..create_request("a") },
            )
            .await
            .unwrap_err(),
        unimplemented,
    );
    let snapshot_request =
        CreateSnapshot { name: "n".to_owned(), source: "v".into(), parameters: map(&[]), owner: None };
    assert_in_doubt(backend.create_snapshot(call(), snapshot_request).await.unwrap_err(), unimplemented);
    let snapshot_request = CreateGroupSnapshot {
        name: "n".to_owned(),
        sources: ["v".into()].into(),
        parameters: map(&[]),
        owner: None,
    };
    assert_in_doubt(
        backend.create_group_snapshot(call(), snapshot_request).await.unwrap_err(),
        unimplemented,
    );
    assert_final(backend.unpublish_volume(call(), "v".into(), None).await.unwrap_err(), unimplemented);
    assert_final(backend.modify_volume(call(), "v".into(), map(&[])).await.unwrap_err(), unimplemented);
    assert_final(backend.delete_snapshot(call(), "s".into()).await.unwrap_err(), unimplemented);
    assert_final(backend.get_snapshot(call(), "s".into()).await.unwrap_err(), unimplemented);
    let page = PageRequest::default();
    assert_final(backend.list_snapshots(call(), None, page.clone()).await.unwrap_err(), unimplemented);
    assert_final(backend.get_group_snapshot(call(), "g".into(), [].into()).await.unwrap_err(), unimplemented);
    assert_final(backend.list_volumes(call(), page).await.unwrap_err(), unimplemented);
    assert_final(backend.get_volume(call(), "v".into()).await.unwrap_err(), unimplemented);
    assert_final(backend.get_capacity(call(), CapacityQuery::default()).await.unwrap_err(), unimplemented);
    assert_eq!(driver.received(CREATE).len(), 0);
    assert!(backend.creates_volumes());
    driver.set_controller_capabilities(&[]);
    let backend = driver.connect().await;
    assert!(!backend.creates_volumes());
    assert_final(backend.delete_volume(call(), "v".into()).await.unwrap_err(), unimplemented);
    assert_in_doubt(backend.create_volume(call(), create_request("a")).await.unwrap_err(), unimplemented);
    assert_eq!((driver.received(CREATE).len(), driver.received(DELETE).len()), (0, 0));
}

#[tokio::test]
async fn node_only_expansion_skips_controller_expand_volume() {
    use v1::node_service_capability::{Rpc, Type};
    const NODE: &str = "/csi.v1.Node/NodeGetCapabilities";
    const EXPAND: &str = "/csi.v1.Controller/ControllerExpandVolume";
    let node_capabilities = |numbers: &[i32]| {
        let capability =
            |r#type: &i32| v1::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: *r#type })) };
        message_reply(&v1::NodeGetCapabilitiesResponse {
            capabilities: numbers.iter().map(capability).collect(),
        })
    };
    let driver = FakeCsiDriver::start();
    let (create, expand) = (1, 9);
    #[rustfmt::skip] // one row a driver
    let table = [
        // controller          node's response                      expands  calls to the node
        (vec![create, expand], node_capabilities(&[1, 2, 3]),                    true,    0),
        (vec![create],         node_capabilities(&[1, 2, 3]),                    true,    1),
        (vec![create],         node_capabilities(&[1, 2]),                       false,   1),
        (vec![create],         ScriptedReply::Status(12, "no node here"),   false,   1),
        (vec![create],         ScriptedReply::Status(13, "how odd"),        false,   1),
    ];
    for (controller, reply, can_expand, calls) in table {
        let before = driver.received(NODE).len();
        driver.set_controller_capabilities(&controller);
        driver.set_reply(NODE, reply);
        let backend = driver.connect().await;
        assert_eq!(backend.abilities().contains(&Ability::Expansion), can_expand, "{controller:?}");
        assert_eq!(driver.received(NODE).len() - before, calls, "{controller:?}");
    }
    driver.set_reply(NODE, node_capabilities(&[3]));
    driver.queue_reply(NODE, ScriptedReply::Status(14, "not now"));
    let before = driver.received(NODE).len();
    let backend = driver.connect().await;
    assert_eq!(driver.received(NODE).len() - before, 2, "the call was repeated");
    let capacity = CapacityRange { required: Some(2 << 30), limit: None };
    let request = ExpandVolume { handle: "v".into(), capacity, capability: None };
    let expanded = backend.expand_volume(call(), request).await.unwrap();
    assert_eq!((expanded.capacity, expanded.node_expansion_required), (2 << 30, true));
    assert_eq!(driver.received(EXPAND).len(), 0);
}

#[tokio::test]
async fn content_source_in_the_drivers_volume_context_is_dropped() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let context = [("cofferdam.dev/content-source", "snapshot"), ("tier", "gold")];
    let volume_context = context.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    driver.queue_reply(CREATE, created_reply(v1::Volume { volume_context, ..volume("v") }));
    let created_volume = backend.create_volume(call(), create_request("a")).await.unwrap();
    assert_eq!(created_volume.context, [("tier".to_owned(), "gold".to_owned())].into());
}

#[tokio::test]
async fn unconfirmed_content_source_deletes_the_new_volume() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let volume_source = Type::Volume(VolumeSource { volume_id: "v".to_owned() });
    let snapshot_source = Type::Snapshot(SnapshotSource { snapshot_id: "s".to_owned() });
    let created_from = |r#type: &Type| {
        let content_source = Some(v1::VolumeContentSource { r#type: Some(r#type.clone()) });
        created_reply(v1::Volume { content_source, ..volume("new") })
    };
    driver.queue_reply(CREATE, created_from(&volume_source));
    backend
        .create_volume(
            call(),
            CreateVolume { source: Some(ContentSource::Volume("v".into())), ..create_request("a") },
        )
        .await
        .unwrap();
    driver.queue_reply(CREATE, created_from(&snapshot_source));
    backend
        .create_volume(
            call(),
            CreateVolume { source: Some(ContentSource::Snapshot("s".into())), ..create_request("b") },
        )
        .await
        .unwrap();
    let received: Vec<v1::CreateVolumeRequest> =
        driver.received(CREATE).iter().map(crate::fake_driver::ReceivedCall::message).collect();
    let sources: Vec<_> = received
        .into_iter()
        .map(|received| received.volume_content_source.unwrap().r#type.unwrap())
        .collect();
    assert_eq!(sources, [volume_source, snapshot_source.clone()]);

    // A driver that ignored the source has created an empty volume, which must be deleted.
    for answer in [created_reply(volume("empty")), created_from(&snapshot_source)] {
        let deleted = driver.received(DELETE).len();
        driver.queue_reply(CREATE, answer);
        driver.queue_reply(DELETE, ScriptedReply::Status(14, "busy"));
        driver.queue_reply(DELETE, message_reply(&v1::DeleteVolumeResponse {}));
        let error = backend
            .create_volume(
                call(),
                CreateVolume { source: Some(ContentSource::Volume("v".into())), ..create_request("c") },
            )
            .await
            .unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Unknown), "{error}");
        assert!(error.message.contains("it was deleted again"), "{error}");
        assert_eq!(driver.received(DELETE).len(), deleted + 2);
    }
}

#[tokio::test]
async fn failed_cleanup_of_a_clone_does_not_block_its_name() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let created_from_source = || {
        let r#type = Some(Type::Volume(VolumeSource { volume_id: "v".to_owned() }));
        created_reply(v1::Volume {
            content_source: Some(v1::VolumeContentSource { r#type }),
            ..volume("new")
        })
    };
    let clone = || {
        backend.create_volume(
            call(),
            CreateVolume { source: Some(ContentSource::Volume("v".into())), ..create_request("a") },
        )
    };
    driver.set_reply(DELETE, ScriptedReply::Status(14, "busy"));
    // A volume whose deletion is pending is not returned either, even if its content is correct now.
    for (answer, expected) in [
        (created_reply(volume("new")), "does not confirm its content source"),
        (created_reply(volume("new")), "does not confirm its content source"),
        (created_from_source(), "an earlier deletion of it has not finished"),
    ] {
        driver.queue_reply(CREATE, answer);
        let error = clone().await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Unknown), "{error}");
        assert!(error.message.contains(expected) && error.message.contains("not deleted: "), "{error}");
    }
    driver.set_reply(DELETE, message_reply(&v1::DeleteVolumeResponse {}));
    driver.queue_reply(CREATE, created_from_source());
    assert!(clone().await.unwrap_err().message.contains("deleted again"));
    driver.queue_reply(CREATE, created_from_source());
    assert_eq!(clone().await.unwrap().handle.as_str(), "new");
    // From now on, the name and the handle identify the same volume.
    driver.queue_reply(CREATE, ScriptedReply::Status(14, "busy"));
    assert_eq!(clone().await.unwrap_err().kind, ErrorKind::Unavailable);
    let error = backend.modify_volume(call(), "new".into(), map(&[])).await.unwrap_err();
    assert_eq!(error.finality, Finality::InProgress, "{error}");
}

#[tokio::test]
async fn secret_in_a_volume_handle_is_redacted_in_the_error() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    driver.queue_reply(CREATE, created_reply(volume("login-hunter2hunter2")));
    driver.queue_reply(DELETE, message_reply(&v1::DeleteVolumeResponse {}));
    let error = backend
        .create_volume(
            call(),
            CreateVolume { source: Some(ContentSource::Volume("v".into())), ..create_request("a") },
        )
        .await
        .unwrap_err();
    assert!(error.message.contains("volume login-[secret] "), "{error}");
}

fn publish_request(read_only: bool) -> PublishVolume {
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
async fn publish_respects_readonly_and_multi_writer_capabilities() {
    let driver = FakeCsiDriver::start();
    let publish_context = map(&[("lun", "3")]);
    driver.set_reply(PUBLISH_METHOD, message_reply(&v1::ControllerPublishVolumeResponse { publish_context }));
    let expected = ConnectionInfo { kind: "csi".to_owned(), version: 1, fields: map(&[("lun", "3")]) };
    let (all_capabilities, two_capabilities): (Vec<i32>, _) = ((1..=15).collect(), vec![1, 2]);
    // Without PUBLISH_READONLY, `readonly` is not sent; without SINGLE_NODE_MULTI_WRITER, the single-node
    // writer modes are not distinguished.
    for (capabilities, readonly, mode) in [(all_capabilities, true, 7), (two_capabilities, false, 1)] {
        driver.set_controller_capabilities(&capabilities);
        let backend = driver.connect().await;
        assert_eq!(backend.publish_volume(call(), publish_request(true)).await.as_ref(), Ok(&expected));
        let received: v1::ControllerPublishVolumeRequest =
            driver.received(PUBLISH_METHOD).last().unwrap().message();
        assert_eq!((received.volume_id.as_str(), received.node_id.as_str()), ("v", "n"));
        assert_eq!((received.readonly, received.volume_context), (readonly, map(&[("a", "b")])));
        assert_eq!(received.volume_capability.unwrap().access_mode.unwrap().mode, mode);
        assert_eq!(received.secrets, map(&[("password", "hunter2hunter2")]));
    }
}

#[tokio::test]
async fn unpublish_works_for_one_node_or_all() {
    let driver = FakeCsiDriver::start();
    let path = "/csi.v1.Controller/ControllerUnpublishVolume";
    driver.set_reply(path, message_reply(&v1::ControllerUnpublishVolumeResponse {}));
    let backend = driver.connect().await;
    backend.unpublish_volume(call(), "v".into(), Some("n".into())).await.unwrap();
    backend.unpublish_volume(call(), "v".into(), None).await.unwrap();
    let nodes: Vec<_> = driver
        .received(path)
        .iter()
        .map(|received| received.message::<v1::ControllerUnpublishVolumeRequest>().node_id)
        .collect();
    assert_eq!(nodes, ["n", ""]);
}

#[tokio::test]
async fn validate_confirms_only_the_requested_capabilities() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let request = || ValidateVolume {
        handle: "v".into(),
        context: BTreeMap::new(),
        capabilities: vec![capability()],
        parameters: BTreeMap::new(),
        mutable_parameters: BTreeMap::new(),
    };
    let path = "/csi.v1.Controller/ValidateVolumeCapabilities";
    let reply = |confirmed: Option<Vec<v1::VolumeCapability>>, text: &str| {
        let confirmed = confirmed.map(|volume_capabilities| {
            v1::validate_volume_capabilities_response::Confirmed { volume_capabilities, ..Default::default() }
        });
        message_reply(&v1::ValidateVolumeCapabilitiesResponse { confirmed, message: text.to_owned() })
    };
    driver.queue_reply(path, reply(None, "not\nblock"));
    let found = backend.validate_volume(call(), request()).await.unwrap();
    assert_eq!(found, Validation::Refused("not block".to_owned()));
    let received: v1::ValidateVolumeCapabilitiesRequest = driver.received(path)[0].message();
    driver.queue_reply(path, reply(Some(received.volume_capabilities), ""));
    assert_eq!(backend.validate_volume(call(), request()).await.unwrap(), Validation::Confirmed);
    driver.queue_reply(path, reply(Some(Vec::new()), ""));
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
async fn snapshot_is_created_and_found_without_get_snapshot() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let path = "/csi.v1.Controller/CreateSnapshot";
    driver.queue_reply(path, message_reply(&v1::CreateSnapshotResponse { snapshot: Some(snapshot("s")) }));
    let request =
        CreateSnapshot { name: "n".to_owned(), source: "v".into(), parameters: map(&[]), owner: None };
    let found = backend.create_snapshot(call(), request).await.unwrap();
    assert_eq!((found.handle.as_str(), found.size, found.created_at_ms), ("s", None, 2_500));
    assert!(!found.ready && found.group.is_none());
    // csi-powerstore gets `v/array/protocol` as the source, and returns `v`.
    driver.queue_reply(path, message_reply(&v1::CreateSnapshotResponse { snapshot: Some(snapshot("t")) }));
    let request = CreateSnapshot {
        name: "m".to_owned(),
        source: "v/array/iscsi".into(),
        parameters: map(&[]),
        owner: None,
    };
    let found = backend.create_snapshot(call(), request).await.unwrap();
    assert_eq!((found.handle.as_str(), found.source.as_str()), ("t", "v/array/iscsi"));

    // A driver without GET_SNAPSHOT gets a ListSnapshots with the id.
    driver.set_controller_capabilities(&[1, 5, 6]);
    let backend = driver.connect().await;
    let listed = |snapshots: Vec<v1::Snapshot>| {
        let entries = snapshots
            .into_iter()
            .map(|entry_snapshot| v1::list_snapshots_response::Entry { snapshot: Some(entry_snapshot) });
        message_reply(&v1::ListSnapshotsResponse { entries: entries.collect(), next_token: String::new() })
    };
    driver.queue_reply(LIST_SNAPSHOTS_METHOD, listed(vec![snapshot("s")]));
    assert_eq!(backend.get_snapshot(call(), "s".into()).await.unwrap().handle.as_str(), "s");
    let received: v1::ListSnapshotsRequest = driver.received(LIST_SNAPSHOTS_METHOD)[0].message();
    assert_eq!(received.snapshot_id, "s");
    driver.queue_reply(LIST_SNAPSHOTS_METHOD, listed(Vec::new()));
    let error = backend.get_snapshot(call(), "s".into()).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::NotFound, Finality::Final));
    // One snapshot is the requested one, also if the driver returns a short form of its id.
    driver.queue_reply(LIST_SNAPSHOTS_METHOD, listed(vec![snapshot("s")]));
    let found = backend.get_snapshot(call(), "s/array/iscsi".into()).await.unwrap();
    assert_eq!(found.handle.as_str(), "s/array/iscsi");
    // A driver that ignores the id lists all.
    driver.queue_reply(LIST_SNAPSHOTS_METHOD, listed(vec![snapshot("other"), snapshot("s")]));
    assert_eq!(backend.get_snapshot(call(), "s".into()).await.unwrap().handle.as_str(), "s");
    driver.queue_reply(LIST_SNAPSHOTS_METHOD, listed(vec![snapshot("other"), snapshot("another")]));
    assert_eq!(backend.get_snapshot(call(), "s".into()).await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn list_volumes_passes_token_limit_and_status() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let status = v1::list_volumes_response::VolumeStatus {
        // csi-driver-host-path reports an empty node id for a volume that is published to no node.
        published_node_ids: vec![String::new(), "n".to_owned()],
        volume_condition: Some(v1::VolumeCondition { abnormal: true, message: "one\ntwo".to_owned() }),
    };
    let entry = v1::list_volumes_response::Entry { volume: Some(volume("v")), status: Some(status) };
    let response = v1::ListVolumesResponse { entries: vec![entry], next_token: "more".to_owned() };
    let path = "/csi.v1.Controller/ListVolumes";
    driver.queue_reply(path, message_reply(&response));
    let page_request = PageRequest { starting_token: Some("from".to_owned()), max_entries: Some(5) };
    let page = backend.list_volumes(call(), page_request).await.unwrap();
    assert_eq!(page.next_token.as_deref(), Some("more"));
    let found = &page.volumes[0];
    assert_eq!(found.published_node_ids, ["n".into()]);
    let condition = found.condition.as_ref().unwrap();
    assert_eq!((condition.abnormal, condition.message.as_str()), (true, "one two"));
    let received: v1::ListVolumesRequest = driver.received(path)[0].message();
    assert_eq!((received.max_entries, received.starting_token.as_str()), (5, "from"));
    driver.queue_reply(path, ScriptedReply::Status(10, "bad token"));
    let error = backend.list_volumes(call(), PageRequest::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Aborted);
}

#[tokio::test]
async fn get_capacity_returns_available_and_maximum_size() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let path = "/csi.v1.Controller/GetCapacity";
    let response = v1::GetCapacityResponse {
        available_capacity: 9,
        maximum_volume_size: Some(8),
        minimum_volume_size: None,
    };
    driver.queue_reply(path, message_reply(&response));
    let query = CapacityQuery { topology: Some(map(&[("zone", "a")])), ..CapacityQuery::default() };
    let found = backend.get_capacity(Call { ..call() }, query).await.unwrap();
    assert_eq!(found, Capacity { available: 9, maximum_volume_size: Some(8), minimum_volume_size: None });
    let received: v1::GetCapacityRequest = driver.received(path)[0].message();
    assert_eq!(received.accessible_topology.unwrap().segments, map(&[("zone", "a")]));
}
