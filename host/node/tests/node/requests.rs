//! Requests and responses: one row for each CSI rule of a request, and for each attack through values that
//! kubelet passes on.

use std::collections::BTreeMap;

use cofferdam_csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest,
    NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, ProbeRequest, VolumeCapability,
    identity_server::Identity as _,
    node_server::Node as _,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume},
};
use cofferdam_domain::{names, storage::connection_info::encode};
use cofferdam_node::{DriverManifest, NodeIdentity, NodeService};
use tonic::{Code, Request};

use crate::{
    fault_injection::FaultyMounter,
    support::{MIB, connection_info, staging_path, target_path, test_node},
};

type Service = NodeService<FaultyMounter>;

pub(crate) fn service(abilities: &str) -> Service {
    let text = format!(
        r#"{{"manifestVersion":1,"driver":"pool.example.com","version":"1","topologyKeys":["zone"],
            "volumesPerNode":9,"features":["volume-mount-group"],"abilities":[{abilities}]}}"#
    );
    let segments = [("zone".to_owned(), "a".to_owned())].into();
    let identity = NodeIdentity { node_id: "n1".to_owned(), topology_segments: segments };
    let node = test_node();
    node.mounter().host().create_directories(&staging_path("v")).unwrap();
    NodeService::new(node, DriverManifest::parse(text).unwrap(), identity)
}

fn mount_capability() -> Option<VolumeCapability> {
    Some(VolumeCapability {
        access_mode: Some(AccessMode { mode: 1 }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    })
}

fn volume_context(kind: &str, fields: &[(&str, &str)]) -> BTreeMap<String, String> {
    [(names::CONNECTION_INFO.to_owned(), encode(&connection_info(kind, fields)))].into()
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(crate) fn stage_message() -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: "v".to_owned(),
        staging_target_path: staging_path("v"),
        volume_capability: mount_capability(),
        volume_context: volume_context("directory", &[("path", "one")]),
        ..NodeStageVolumeRequest::default()
    }
}

pub(crate) fn publish_message() -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: "v".to_owned(),
        staging_target_path: staging_path("v"),
        target_path: target_path("p"),
        volume_capability: mount_capability(),
        volume_context: volume_context("directory", &[("path", "one")]),
        ..NodePublishVolumeRequest::default()
    }
}

pub(crate) fn inline_message() -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: format!("csi-{}", "0".repeat(64)),
        target_path: target_path("inline"),
        volume_capability: mount_capability(),
        volume_context: pairs(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "64Ki")]),
        ..NodePublishVolumeRequest::default()
    }
}

/// Applies a change to a valid request.
fn changed<Q>(mut request: Q, change: impl FnOnce(&mut Q)) -> Q {
    change(&mut request);
    request
}

fn stage_with(change: impl FnOnce(&mut NodeStageVolumeRequest)) -> NodeStageVolumeRequest {
    changed(stage_message(), change)
}

fn publish_with(change: impl FnOnce(&mut NodePublishVolumeRequest)) -> NodePublishVolumeRequest {
    changed(publish_message(), change)
}

fn inline_with(change: impl FnOnce(&mut NodePublishVolumeRequest)) -> NodePublishVolumeRequest {
    changed(inline_message(), change)
}

/// A volume context with this text as the encoded connection info.
fn encoded(json: &str) -> BTreeMap<String, String> {
    pairs(&[(names::CONNECTION_INFO, json)])
}

fn with_mode(mode: i32) -> Option<VolumeCapability> {
    mount_capability()
        .map(|capability| VolumeCapability { access_mode: Some(AccessMode { mode }), ..capability })
}

fn without_type() -> Option<VolumeCapability> {
    mount_capability().map(|capability| VolumeCapability { access_type: None, ..capability })
}

fn without_mode() -> Option<VolumeCapability> {
    mount_capability().map(|capability| VolumeCapability { access_mode: None, ..capability })
}

fn block_capability() -> Option<VolumeCapability> {
    mount_capability().map(|capability| VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..capability
    })
}

#[tokio::test]
async fn node_stage_volume_checks_every_field() -> Result<(), tonic::Status> {
    use Code::{FailedPrecondition, InvalidArgument, NotFound, PermissionDenied};
    let long = "x".repeat(129);
    let table: Vec<(&str, NodeStageVolumeRequest, Code)> = vec![
        ("no volume", stage_with(|message| message.volume_id.clear()), InvalidArgument),
        ("a long handle", stage_with(|message| message.volume_id = long.clone()), InvalidArgument),
        ("a control character", stage_with(|message| message.volume_id = "a\nb".to_owned()), InvalidArgument),
        (
            "kubelet's handle",
            stage_with(|message| message.volume_id = inline_message().volume_id),
            InvalidArgument,
        ),
        ("no staging path", stage_with(|message| message.staging_target_path.clear()), InvalidArgument),
        (
            "a path outside of kubelet's roots",
            stage_with(|message| message.staging_target_path = "/etc".to_owned()),
            InvalidArgument,
        ),
        (
            "no such directory",
            stage_with(|message| message.staging_target_path = staging_path("w")),
            FailedPrecondition,
        ),
        ("no capability", stage_with(|message| message.volume_capability = None), InvalidArgument),
        ("no mode", stage_with(|message| message.volume_capability = without_mode()), InvalidArgument),
        ("an unknown mode", stage_with(|message| message.volume_capability = with_mode(0)), InvalidArgument),
        ("a newer mode", stage_with(|message| message.volume_capability = with_mode(99)), InvalidArgument),
        (
            "no type of access",
            stage_with(|message| message.volume_capability = without_type()),
            InvalidArgument,
        ),
        (
            "block access of a directory",
            stage_with(|message| message.volume_capability = block_capability()),
            InvalidArgument,
        ),
        ("no connection info", stage_with(|message| message.volume_context.clear()), InvalidArgument),
        (
            "in the wrong context",
            stage_with(|message| std::mem::swap(&mut message.volume_context, &mut message.publish_context)),
            InvalidArgument,
        ),
        (
            "in both contexts",
            stage_with(|message| message.publish_context = message.volume_context.clone()),
            InvalidArgument,
        ),
        (
            "malformed connection info",
            stage_with(|message| message.volume_context = encoded("{}")),
            InvalidArgument,
        ),
        (
            "a path outside of the root",
            stage_with(|message| message.volume_context = volume_context("directory", &[("path", "../etc")])),
            InvalidArgument,
        ),
        (
            "a missing directory",
            stage_with(|message| message.volume_context = volume_context("directory", &[("path", "x")])),
            NotFound,
        ),
        (
            "a device not allowed",
            stage_with(|message| {
                message.volume_context = volume_context("local-device", &[("stable-id", "sda")])
            }),
            PermissionDenied,
        ),
        (
            "a field twice",
            stage_with(|message| {
                message.volume_context = encoded(
                    r#"{"version":1,"kind":"directory","kindVersion":1,"fields":{"path":"x","path":"one"}}"#,
                )
            }),
            InvalidArgument,
        ),
        (
            "an unknown member",
            stage_with(|message| {
                message.volume_context = encoded(
                    r#"{"version":1,"kind":"directory","kindVersion":1,"fields":{"path":"one"},"x":1}"#,
                )
            }),
            InvalidArgument,
        ),
        (
            "no format version",
            stage_with(|message| {
                message.volume_context =
                    encoded(r#"{"kind":"directory","version":1,"fields":{"path":"one"}}"#)
            }),
            InvalidArgument,
        ),
        (
            "as the provisioner writes it",
            stage_with(|message| {
                message.volume_context =
                    encoded(r#"{"version":1,"kind":"directory","kindVersion":1,"fields":{"path":"one"}}"#)
            }),
            Code::Ok,
        ),
        ("a valid request", stage_message(), Code::Ok),
    ];
    for (case, request, expected) in table {
        let response = service("").node_stage_volume(Request::new(request)).await;
        assert_eq!(
            response.as_ref().map_or_else(|status| status.code(), |_| Code::Ok),
            expected,
            "{case}: {response:?}"
        );
    }
    // With a publish step, connection info is only accepted in the publish context, not in an edited volume
    // context.
    let publishing_service = || service(r#""publishing""#);
    let error = publishing_service().node_stage_volume(Request::new(stage_message())).await.unwrap_err();
    assert_eq!(error.code(), InvalidArgument);
    let in_publish_context =
        stage_with(|message| std::mem::swap(&mut message.volume_context, &mut message.publish_context));
    publishing_service().node_stage_volume(Request::new(in_publish_context)).await?;
    // A volume with a content source is not formatted.
    let from_snapshot = stage_with(|message| {
        message.volume_context = volume_context("image", &[("path", "blank")]);
        message.volume_context.insert("cofferdam.dev/content-source".to_owned(), "snapshot".to_owned());
    });
    let error = service("").node_stage_volume(Request::new(from_snapshot)).await.unwrap_err();
    assert_eq!(error.code(), FailedPrecondition);
    Ok(())
}

#[tokio::test]
async fn node_publish_volume_checks_every_field() {
    use Code::{AlreadyExists, FailedPrecondition, InvalidArgument, PermissionDenied};
    let table: Vec<(&str, NodePublishVolumeRequest, Code)> = vec![
        ("no volume", publish_with(|message| message.volume_id.clear()), InvalidArgument),
        ("no target", publish_with(|message| message.target_path.clear()), InvalidArgument),
        ("no capability", publish_with(|message| message.volume_capability = None), InvalidArgument),
        (
            "no type of access",
            publish_with(|message| message.volume_capability = without_type()),
            InvalidArgument,
        ),
        ("no staging path", publish_with(|message| message.staging_target_path.clear()), FailedPrecondition),
        (
            "another staging path",
            publish_with(|message| message.staging_target_path = staging_path("w")),
            FailedPrecondition,
        ),
        ("another volume", publish_with(|message| message.volume_id = "w".to_owned()), FailedPrecondition),
        (
            "a target outside of kubelet's roots",
            publish_with(|message| message.target_path = "/etc/x".to_owned()),
            InvalidArgument,
        ),
        (
            "the other type",
            publish_with(|message| message.volume_capability = block_capability()),
            AlreadyExists,
        ),
        (
            "ephemeral, but not inline",
            publish_with(|message| {
                message.volume_context.insert("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned());
            }),
            InvalidArgument,
        ),
        (
            "edited connection info has no effect",
            publish_with(|message| {
                message.volume_context = volume_context("directory", &[("path", "../etc")])
            }),
            Code::Ok,
        ),
        ("inline", inline_message(), Code::Ok),
        (
            "inline with connection info",
            inline_with(|message| {
                message.volume_context.extend(volume_context("directory", &[("path", "one")]))
            }),
            InvalidArgument,
        ),
        (
            "inline with a publish context",
            inline_with(|message| message.publish_context = volume_context("none", &[])),
            InvalidArgument,
        ),
        (
            "inline with an unknown attribute",
            inline_with(|message| {
                message.volume_context.insert("mode".to_owned(), "7777".to_owned());
            }),
            InvalidArgument,
        ),
        (
            "inline, but not ephemeral",
            inline_with(|message| {
                message.volume_context.insert("csi.storage.k8s.io/ephemeral".to_owned(), "false".to_owned());
            }),
            InvalidArgument,
        ),
        (
            "inline with an invalid size",
            inline_with(|message| {
                message.volume_context.insert("size".to_owned(), "1,mode=7777".to_owned());
            }),
            InvalidArgument,
        ),
        (
            "inline, too large",
            inline_with(|message| {
                message.volume_context.insert("size".to_owned(), "1Ti".to_owned());
            }),
            PermissionDenied,
        ),
        (
            "inline device",
            inline_with(|message| message.volume_capability = block_capability()),
            InvalidArgument,
        ),
    ];
    for (case, request, expected) in table {
        let service = service("");
        service.node_stage_volume(Request::new(stage_message())).await.unwrap();
        let response = service.node_publish_volume(Request::new(request)).await;
        let code = response.as_ref().map_or_else(|status| status.code(), |_| Code::Ok);
        assert_eq!(code, expected, "{case}: {response:?}");
    }
}

#[tokio::test]
async fn stats_expand_unpublish_and_unstage_check_every_field() {
    use Code::{InvalidArgument, NotFound, OutOfRange};
    let service = service("");
    service.node_stage_volume(Request::new(stage_message())).await.unwrap();
    service.node_publish_volume(Request::new(publish_message())).await.unwrap();
    let path = || target_path("p");
    #[rustfmt::skip] // one row a rule
    let statistics = [
        ("",      path(),               InvalidArgument),
        ("v",     String::new(),        InvalidArgument),
        ("other", path(),               NotFound),
        ("v",     "/elsewhere".to_owned(), NotFound),
        ("v",     target_path("q"),          NotFound),
        ("v",     path(),               Code::Ok),
    ];
    for (volume, path, expected) in statistics {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: path.clone(),
            ..Default::default()
        };
        let response = service.node_get_volume_stats(Request::new(request)).await;
        assert_eq!(
            response.as_ref().map_or_else(|status| status.code(), |_| Code::Ok),
            expected,
            "{volume} {path}"
        );
        if let Ok(response) = response {
            assert_eq!(response.get_ref().usage.len(), 2);
            assert!(!response.get_ref().volume_condition.as_ref().unwrap().abnormal);
        }
    }
    let range = |required_bytes, limit_bytes| Some(CapacityRange { required_bytes, limit_bytes });
    #[rustfmt::skip] // one row a rule
    let expansions = [
        ("",      path(),        None,           InvalidArgument),
        ("v",     String::new(), None,           InvalidArgument),
        ("other", path(),        None,           NotFound),
        ("v",     target_path("q"),   None,           NotFound),
        ("v",     path(),        range(-1, 0),   InvalidArgument),
        ("v",     path(),        range(2, 1),    InvalidArgument),
        ("v",     path(),        range(1 << 40, 0), Code::Ok),
        ("v",     path(),        None,           Code::Ok),
    ];
    for (volume, path, capacity_range, expected) in expansions {
        let request = NodeExpandVolumeRequest {
            volume_id: volume.to_owned(),
            volume_path: path.clone(),
            capacity_range,
            ..Default::default()
        };
        let response = service.node_expand_volume(Request::new(request)).await;
        assert_eq!(
            response.as_ref().map_or_else(|status| status.code(), |_| Code::Ok),
            expected,
            "{volume} {path}"
        );
    }
    // A tmpfs expands up to the policy's limit, if ControllerPublishVolume returns its size.
    for (has_publishing, expected) in [(false, Code::FailedPrecondition), (true, OutOfRange)] {
        let service = crate::requests::service(if has_publishing { r#""publishing""# } else { "" });
        let memory = stage_with(|message| {
            message.volume_context.clear();
            let context = volume_context("tmpfs", &[("size", "1048576")]);
            if has_publishing { message.publish_context = context } else { message.volume_context = context }
        });
        service.node_stage_volume(Request::new(memory)).await.unwrap();
        let request = NodeExpandVolumeRequest {
            volume_id: "v".to_owned(),
            volume_path: staging_path("v"),
            capacity_range: range(i64::try_from(65 * MIB).unwrap(), 0),
            ..Default::default()
        };
        let status = service.node_expand_volume(Request::new(request)).await.unwrap_err();
        assert_eq!(status.code(), expected, "{status}");
    }

    for (volume, path, expected) in [
        ("", path(), InvalidArgument),
        ("v", String::new(), InvalidArgument),
        ("v", path(), Code::Ok),
        ("v", path(), Code::Ok),
    ] {
        let request = NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path: path };
        let response = service.node_unpublish_volume(Request::new(request)).await;
        assert_eq!(response.map_or_else(|status| status.code(), |_| Code::Ok), expected);
    }
    let staging = || staging_path("v");
    for (volume, path, expected) in [
        ("", staging(), InvalidArgument),
        ("v", String::new(), InvalidArgument),
        ("v", staging(), Code::Ok),
        ("v", staging(), Code::Ok),
    ] {
        let request = NodeUnstageVolumeRequest { volume_id: volume.to_owned(), staging_target_path: path };
        let response = service.node_unstage_volume(Request::new(request)).await;
        assert_eq!(response.map_or_else(|status| status.code(), |_| Code::Ok), expected);
    }
}

#[tokio::test]
async fn node_get_info_capabilities_and_probe() {
    let service = service("");
    let info = service.node_get_info(Request::new(NodeGetInfoRequest {})).await.unwrap().into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("n1", 9));
    assert_eq!(info.accessible_topology.unwrap().segments, pairs(&[("zone", "a")]));
    let capabilities =
        service.node_get_capabilities(Request::new(NodeGetCapabilitiesRequest {})).await.unwrap();
    assert_eq!(capabilities.get_ref().capabilities.len(), 6);
    let probe = service.probe(Request::new(ProbeRequest {})).await.unwrap();
    assert_eq!(probe.get_ref().ready, Some(true));
}

#[test]
fn concurrent_stage_of_one_volume_is_aborted() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let service = service("");
    // Every query waits for this lock.
    let state_lock = service.node().mounter().faults();
    let first = runtime.spawn({
        let service = service.clone();
        async move { service.node_stage_volume(Request::new(stage_message())).await }
    });
    runtime.block_on(async {
        tokio::task::yield_now().await;
        let second = service.node_stage_volume(Request::new(stage_message())).await.unwrap_err();
        assert_eq!(second.code(), Code::Aborted);
    });
    drop(state_lock);
    runtime.block_on(first).unwrap().unwrap();
    runtime.block_on(service.node_stage_volume(Request::new(stage_message()))).unwrap();
}
