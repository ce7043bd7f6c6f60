//! What kubelet sends and what it hears: every rule of CSI for a request is a row, and so is every attacker
//! who can write what kubelet passes on.

use std::collections::BTreeMap;

use cofferdam_csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest,
    NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, ProbeRequest, VolumeCapability,
    identity_server::Identity as _,
    node_server::Node as _,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume},
};
use cofferdam_domain::{names, storage::connection_info as document};
use cofferdam_node::{Manifest, NodeService, Whereabouts};
use tonic::{Code, Request};

use crate::{
    model::Model,
    support::{MIB, attachment, node, staging, target},
};

type Service = NodeService<Model>;

pub(crate) fn service(abilities: &str) -> Service {
    let text = format!(
        r#"{{"manifestVersion":1,"driver":"pool.example.com","version":"1","topologyKeys":["zone"],"volumesPerNode":9,
            "features":["volume-mount-group"],"abilities":[{abilities}]}}"#
    );
    let segments = [("zone".to_owned(), "a".to_owned())].into();
    let whereabouts = Whereabouts { node: "n1".to_owned(), segments };
    let node = node();
    node.machine().directory_at(&staging("v"));
    NodeService::new(node, Manifest::parse(text).unwrap(), whereabouts)
}

fn mounted() -> Option<VolumeCapability> {
    Some(VolumeCapability {
        access_mode: Some(AccessMode { mode: 1 }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    })
}

fn context(kind: &str, fields: &[(&str, &str)]) -> BTreeMap<String, String> {
    [(names::CONNECTION_INFO.to_owned(), document::encode(&attachment(kind, fields)))].into()
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(crate) fn stage() -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: "v".to_owned(),
        staging_target_path: staging("v"),
        volume_capability: mounted(),
        volume_context: context("directory", &[("path", "one")]),
        ..NodeStageVolumeRequest::default()
    }
}

pub(crate) fn publish() -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: "v".to_owned(),
        staging_target_path: staging("v"),
        target_path: target("p"),
        volume_capability: mounted(),
        volume_context: context("directory", &[("path", "one")]),
        ..NodePublishVolumeRequest::default()
    }
}

pub(crate) fn inline() -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: format!("csi-{}", "0".repeat(64)),
        target_path: target("inline"),
        volume_capability: mounted(),
        volume_context: pairs(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "64Ki")]),
        ..NodePublishVolumeRequest::default()
    }
}

/// A request with one thing broken.
fn broken<Q>(mut request: Q, breaks: impl FnOnce(&mut Q)) -> Q {
    breaks(&mut request);
    request
}

fn with_mode(mode: i32) -> Option<VolumeCapability> {
    mounted().map(|capability| VolumeCapability { access_mode: Some(AccessMode { mode }), ..capability })
}

fn without_type() -> Option<VolumeCapability> {
    mounted().map(|capability| VolumeCapability { access_type: None, ..capability })
}

fn without_mode() -> Option<VolumeCapability> {
    mounted().map(|capability| VolumeCapability { access_mode: None, ..capability })
}

fn block() -> Option<VolumeCapability> {
    mounted().map(|capability| VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..capability
    })
}

#[tokio::test]
async fn stagings() -> Result<(), tonic::Status> {
    use Code::{FailedPrecondition, InvalidArgument, NotFound, PermissionDenied};
    let long = "x".repeat(129);
    #[rustfmt::skip] // one row a rule
    let table: Vec<(&str, NodeStageVolumeRequest, Code)> = vec![
        ("no volume",             broken(stage(), |it| it.volume_id.clear()),                             InvalidArgument),
        ("a long handle",         broken(stage(), |it| it.volume_id = long.clone()),                      InvalidArgument),
        ("a control character",   broken(stage(), |it| it.volume_id = "a\nb".to_owned()),                 InvalidArgument),
        ("kubelet's handle",      broken(stage(), |it| it.volume_id = inline().volume_id),                InvalidArgument),
        ("no staging path",       broken(stage(), |it| it.staging_target_path.clear()),                   InvalidArgument),
        ("a path of no kubelet",  broken(stage(), |it| it.staging_target_path = "/etc".to_owned()),       InvalidArgument),
        ("no such directory",     broken(stage(), |it| it.staging_target_path = staging("w")), FailedPrecondition),
        ("no capability",         broken(stage(), |it| it.volume_capability = None),                      InvalidArgument),
        ("no mode",               broken(stage(), |it| it.volume_capability = without_mode()),            InvalidArgument),
        ("an unknown mode",       broken(stage(), |it| it.volume_capability = with_mode(0)),              InvalidArgument),
        ("a newer mode",          broken(stage(), |it| it.volume_capability = with_mode(99)),             InvalidArgument),
        ("no type of access",     broken(stage(), |it| it.volume_capability = without_type()),            InvalidArgument),
        ("a device of none",      broken(stage(), |it| it.volume_capability = block()),                   InvalidArgument),
        ("no attachment",         broken(stage(), |it| it.volume_context.clear()),                        InvalidArgument),
        ("in the wrong context",  broken(stage(), |it| std::mem::swap(&mut it.volume_context, &mut it.publish_context)), InvalidArgument),
        ("in both contexts",      broken(stage(), |it| it.publish_context = it.volume_context.clone()),   InvalidArgument),
        ("no document",           broken(stage(), |it| it.volume_context = pairs(&[(names::CONNECTION_INFO, "{}")])), InvalidArgument),
        ("a way out",             broken(stage(), |it| it.volume_context = context("directory", &[("path", "../etc")])), InvalidArgument),
        ("nothing there",         broken(stage(), |it| it.volume_context = context("directory", &[("path", "x")])), NotFound),
        ("a device not allowed",  broken(stage(), |it| it.volume_context = context("local-device", &[("stable-id", "sda")])), PermissionDenied),
        ("a field twice",         broken(stage(), |it| it.volume_context = pairs(&[(names::CONNECTION_INFO, r#"{"version":1,"kind":"directory","kindVersion":1,"fields":{"path":"x","path":"one"}}"#)])), InvalidArgument),
        ("a member too many",     broken(stage(), |it| it.volume_context = pairs(&[(names::CONNECTION_INFO, r#"{"version":1,"kind":"directory","kindVersion":1,"fields":{"path":"one"},"x":1}"#)])), InvalidArgument),
        ("a record, no document", broken(stage(), |it| it.volume_context = pairs(&[(names::CONNECTION_INFO, r#"{"kind":"directory","version":1,"fields":{"path":"one"}}"#)])), InvalidArgument),
        ("as the provisioner writes it", broken(stage(), |it| it.volume_context = pairs(&[(names::CONNECTION_INFO, r#"{"version":1,"kind":"directory","kindVersion":1,"fields":{"path":"one"}}"#)])), Code::Ok),
        ("as it should be",       stage(),                                                                Code::Ok),
    ];
    for (what, request, expected) in table {
        let answer = service("").node_stage_volume(Request::new(request)).await;
        assert_eq!(
            answer.as_ref().map_or_else(|status| status.code(), |_| Code::Ok),
            expected,
            "{what}: {answer:?}"
        );
    }
    // A driver that publishes says it with each publication, and nobody else does: not an edited volume.
    let publishing = || service(r#""publishing""#);
    let refused = publishing().node_stage_volume(Request::new(stage())).await.unwrap_err();
    assert_eq!(refused.code(), InvalidArgument);
    let moved = broken(stage(), |it| std::mem::swap(&mut it.volume_context, &mut it.publish_context));
    publishing().node_stage_volume(Request::new(moved)).await?;
    // What came from a snapshot is not formatted.
    let restored = broken(stage(), |it| {
        it.volume_context = context("image", &[("path", "blank")]);
        it.volume_context.insert("cofferdam.dev/content-source".to_owned(), "snapshot".to_owned());
    });
    let refused = service("").node_stage_volume(Request::new(restored)).await.unwrap_err();
    assert_eq!(refused.code(), FailedPrecondition);
    Ok(())
}

#[tokio::test]
async fn publications() {
    use Code::{AlreadyExists, FailedPrecondition, InvalidArgument, PermissionDenied};
    #[rustfmt::skip] // one row a rule
    let table: Vec<(&str, NodePublishVolumeRequest, Code)> = vec![
        ("no volume",              broken(publish(), |it| it.volume_id.clear()),                          InvalidArgument),
        ("no target",              broken(publish(), |it| it.target_path.clear()),                        InvalidArgument),
        ("no capability",          broken(publish(), |it| it.volume_capability = None),                   InvalidArgument),
        ("no type of access",      broken(publish(), |it| it.volume_capability = without_type()),         InvalidArgument),
        ("no staging path",        broken(publish(), |it| it.staging_target_path.clear()),                FailedPrecondition),
        ("another staging path",   broken(publish(), |it| it.staging_target_path = staging("w")), FailedPrecondition),
        ("another volume",         broken(publish(), |it| it.volume_id = "w".to_owned()),                 FailedPrecondition),
        ("a target of no kubelet", broken(publish(), |it| it.target_path = "/etc/x".to_owned()),          InvalidArgument),
        ("the other type",         broken(publish(), |it| it.volume_capability = block()),                AlreadyExists),
        ("it says it is inline",   broken(publish(), |it| { it.volume_context.insert("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned()); }), InvalidArgument),
        ("an edited attachment has no effect", broken(publish(), |it| it.volume_context = context("directory", &[("path", "../etc")])), Code::Ok),
        ("inline",                 inline(),                                                              Code::Ok),
        ("inline with a way",      broken(inline(), |it| it.volume_context.extend(context("directory", &[("path", "one")]))), InvalidArgument),
        ("inline with a publication", broken(inline(), |it| it.publish_context = context("none", &[])),   InvalidArgument),
        ("inline with more",       broken(inline(), |it| { it.volume_context.insert("mode".to_owned(), "7777".to_owned()); }), InvalidArgument),
        ("inline and not",         broken(inline(), |it| { it.volume_context.insert("csi.storage.k8s.io/ephemeral".to_owned(), "false".to_owned()); }), InvalidArgument),
        ("inline, no size",        broken(inline(), |it| { it.volume_context.insert("size".to_owned(), "1,mode=7777".to_owned()); }), InvalidArgument),
        ("inline, too large",      broken(inline(), |it| { it.volume_context.insert("size".to_owned(), "1Ti".to_owned()); }), PermissionDenied),
        ("inline device",          broken(inline(), |it| it.volume_capability = block()),                 InvalidArgument),
    ];
    for (what, request, expected) in table {
        let service = service("");
        service.node_stage_volume(Request::new(stage())).await.unwrap();
        let answer = service.node_publish_volume(Request::new(request)).await;
        let code = answer.as_ref().map_or_else(|status| status.code(), |_| Code::Ok);
        assert_eq!(code, expected, "{what}: {answer:?}");
    }
}

#[tokio::test]
async fn everything_else() {
    use Code::{InvalidArgument, NotFound, OutOfRange};
    let service = service("");
    service.node_stage_volume(Request::new(stage())).await.unwrap();
    service.node_publish_volume(Request::new(publish())).await.unwrap();
    let path = || target("p");
    #[rustfmt::skip] // one row a rule
    let statistics = [
        ("",      path(),               InvalidArgument),
        ("v",     String::new(),        InvalidArgument),
        ("other", path(),               NotFound),
        ("v",     "/elsewhere".to_owned(), NotFound),
        ("v",     target("q"),          NotFound),
        ("v",     path(),               Code::Ok),
    ];
    for (volume, path, expected) in statistics {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: path.clone(),
            ..Default::default()
        };
        let answer = service.node_get_volume_stats(Request::new(request)).await;
        assert_eq!(answer.as_ref().map_or_else(|it| it.code(), |_| Code::Ok), expected, "{volume} {path}");
        if let Ok(answer) = answer {
            assert_eq!(answer.get_ref().usage.len(), 2);
            assert!(!answer.get_ref().volume_condition.as_ref().unwrap().abnormal);
        }
    }
    let range = |required_bytes, limit_bytes| Some(CapacityRange { required_bytes, limit_bytes });
    #[rustfmt::skip] // one row a rule
    let expansions = [
        ("",      path(),        None,           InvalidArgument),
        ("v",     String::new(), None,           InvalidArgument),
        ("other", path(),        None,           NotFound),
        ("v",     target("q"),   None,           NotFound),
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
        let answer = service.node_expand_volume(Request::new(request)).await;
        assert_eq!(answer.as_ref().map_or_else(|it| it.code(), |_| Code::Ok), expected, "{volume} {path}");
    }
    // Memory grows as far as the policy allows, if the driver says each time how large it is.
    for (publishes, expected) in [(false, Code::FailedPrecondition), (true, OutOfRange)] {
        let service = crate::requests::service(if publishes { r#""publishing""# } else { "" });
        let memory = broken(stage(), |it| {
            it.volume_context.clear();
            let context = context("tmpfs", &[("size", "1048576")]);
            if publishes { it.publish_context = context } else { it.volume_context = context }
        });
        service.node_stage_volume(Request::new(memory)).await.unwrap();
        let request = NodeExpandVolumeRequest {
            volume_id: "v".to_owned(),
            volume_path: staging("v"),
            capacity_range: range(i64::try_from(65 * MIB).unwrap(), 0),
            ..Default::default()
        };
        let refused = service.node_expand_volume(Request::new(request)).await.unwrap_err();
        assert_eq!(refused.code(), expected, "{refused}");
    }

    for (volume, path, expected) in [
        ("", path(), InvalidArgument),
        ("v", String::new(), InvalidArgument),
        ("v", path(), Code::Ok),
        ("v", path(), Code::Ok),
    ] {
        let request = NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path: path };
        let answer = service.node_unpublish_volume(Request::new(request)).await;
        assert_eq!(answer.map_or_else(|it| it.code(), |_| Code::Ok), expected);
    }
    let staged = || staging("v");
    for (volume, path, expected) in [
        ("", staged(), InvalidArgument),
        ("v", String::new(), InvalidArgument),
        ("v", staged(), Code::Ok),
        ("v", staged(), Code::Ok),
    ] {
        let request = NodeUnstageVolumeRequest { volume_id: volume.to_owned(), staging_target_path: path };
        let answer = service.node_unstage_volume(Request::new(request)).await;
        assert_eq!(answer.map_or_else(|it| it.code(), |_| Code::Ok), expected);
    }
}

#[tokio::test]
async fn what_the_node_says_of_itself() {
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
fn one_call_at_a_time_for_a_volume() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let service = service("");
    // Whatever looks at the machine waits.
    let held = service.node().machine().state();
    let first = runtime.spawn({
        let service = service.clone();
        async move { service.node_stage_volume(Request::new(stage())).await }
    });
    runtime.block_on(async {
        tokio::task::yield_now().await;
        let second = service.node_stage_volume(Request::new(stage())).await.unwrap_err();
        assert_eq!(second.code(), Code::Aborted);
    });
    drop(held);
    runtime.block_on(first).unwrap().unwrap();
    runtime.block_on(service.node_stage_volume(Request::new(stage()))).unwrap();
}
