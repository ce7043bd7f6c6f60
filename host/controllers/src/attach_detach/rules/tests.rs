//! Tests of the attach and detach rules, and of the input and the desired state that they get from the cache.

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{Cache, Kind, decode};
use cofferdam_domain::{Claim, Node, ResourceVersion, VolumeAttachment, names};
use cofferdam_sim::objects::with;
use serde_json::{Value, json};

use super::*;
use crate::attach_detach::{
    desired_state,
    input::{InputSources, ReconcileState},
    state::{AttachState, Key, REQUEST_MAY_APPLY},
};

fn read<K: Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

/// A volume `v` with its bound claim, and pods and nodes as needed.
struct AttachDetachFixture {
    cache: Cache,
    state: AttachState,
    version: u64,
}

impl AttachDetachFixture {
    fn new(modes: &[&str]) -> Self {
        let fixture =
            Self { cache: Cache::default(), state: AttachState::new(REQUEST_MAY_APPLY), version: 1 };
        let meta = json!({"name": "v", "uid": "v-uid", "resourceVersion": "1"});
        let claim = json!({"namespace": "ns", "name": "c", "uid": "c-uid"});
        let spec =
            json!({"accessModes": modes, "claimRef": claim, "csi": {"driver": "d", "volumeHandle": "h"}});
        fixture.cache.volumes.apply(Ok(read::<Volume>(&json!({"metadata": meta, "spec": spec}))));
        let meta = with(claim, &json!({"resourceVersion": "1"}));
        let claim = json!({"metadata": meta, "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
        fixture.cache.claims.apply(Ok(read::<Claim>(&claim)));
        fixture
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn node(&mut self, name: &str, change: Value) {
        let node = json!({
            "metadata": {
                "name": name, "uid": name, "resourceVersion": self.next_version(),
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            },
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        self.cache.nodes.apply(Ok(read::<Node>(&with(node, &change))));
    }

    fn pod(&mut self, namespace: &str, name: &str, node: &str) {
        let meta = json!({
            "namespace": namespace, "name": name, "uid": name, "resourceVersion": self.next_version(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        });
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
        let pod = json!({"metadata": meta, "spec": {"nodeName": node, "volumes": volumes}});
        self.cache.pods.apply(Ok(read::<Pod>(&pod)));
    }

    fn attachment(&mut self, node: &str, change: Value) {
        let name = names::volume_attachment_name(&"d".into(), &"h".into(), &node.into());
        let meta = json!({"name": name, "uid": "a", "resourceVersion": self.next_version()});
        let spec = json!({"attacher": "d", "nodeName": node, "source": {"persistentVolumeName": "v"}});
        let attachment = with(json!({"metadata": meta, "spec": spec, "status": {"attached": true}}), &change);
        self.cache.attachments.apply(Ok(read::<VolumeAttachment>(&attachment)));
    }

    fn input(&self) -> ReconcileInput {
        let sources =
            InputSources { cache: &self.cache, state: &self.state, force_after: Some(MAX_WAIT_FOR_UNMOUNT) };
        let key = Key::Volume("kubernetes.io/csi/d^h".into());
        sources.reconcile_input(&key, &ReconcileState::default()).unwrap()
    }

    /// The next effect and its nodes.
    fn next(&self) -> String {
        match self.input().next_step() {
            AttachDetachStep::UpdateNodes(_) => "no action".to_owned(),
            AttachDetachStep::StartDetach(actual_attachment) => format!("start {}", actual_attachment.node),
            AttachDetachStep::CancelDetach(actual_attachment) => format!("cancel {}", actual_attachment.node),
            AttachDetachStep::RefreshBeforeDetach(actual_attachment) => {
                format!("refresh {}", actual_attachment.node)
            }
            AttachDetachStep::Detach(actual_attachment, force) => {
                format!("detach {} {force:?}", actual_attachment.node)
            }
            AttachDetachStep::Attach(desired_attachments) => {
                format!(
                    "attach {}",
                    desired_attachments
                        .iter()
                        .map(|desired| desired.node.as_str())
                        .collect::<Vec<_>>()
                        .join(" ")
                )
            }
        }
    }

    fn failures(&self) -> Vec<String> {
        let failures = self.input().failures();
        failures.into_iter().map(|(pod, event)| format!("{}: {}", pod.key.name, event.text)).collect()
    }
}

fn actual_attachment() -> ActualAttachment {
    ActualAttachment {
        name: "a".into(),
        uid: "a".into(),
        node: "n".into(),
        node_state: NodeState::Managed { ready: true, out_of_service: false },
        purpose: AttachmentPurpose::Pod,
        attached: true,
        deleting: false,
        attach_error: None,
        detach_error: None,
        needed_by_pod: false,
        unneeded_for: Duration::ZERO,
        attaching_for: Duration::ZERO,
        deleting_for: Duration::ZERO,
        in_volumes_attached: false,
        in_use: false,
        detach_state: None,
        node_refreshed: false,
    }
}

#[test]
fn detach_decisions_follow_pods_nodes_and_timeouts() {
    use DetachDecision::{Detach, Keep, Wait};
    let down = |out_of_service| NodeState::Managed { ready: false, out_of_service };
    let used = ActualAttachment { in_use: true, ..actual_attachment() };
    let deleted = |seconds| ActualAttachment {
        unneeded_for: Duration::from_secs(seconds),
        node_state: NodeState::Deleted,
        ..used.clone()
    };
    let late = |seconds| ActualAttachment {
        unneeded_for: Duration::from_secs(seconds),
        node_state: down(false),
        ..used.clone()
    };
    let volume_deleted =
        |volume| ActualAttachment { purpose: AttachmentPurpose::PodOfDeletedVolume, ..volume };
    let needed = |volume| ActualAttachment { needed_by_pod: true, ..volume };
    let on = |node_state, volume| ActualAttachment { node_state, ..volume };
    let other = ActualAttachment { purpose: AttachmentPurpose::Other, ..actual_attachment() };
    let requested = ActualAttachment { detach_state: Some(DetachState::Requested), ..actual_attachment() };
    let in_use_for_long = ActualAttachment { unneeded_for: MAX_WAIT_FOR_UNMOUNT * 9, ..used.clone() };
    let [timeout, out_of_service, node_gone] =
        [ForceDetachReason::Timeout, ForceDetachReason::OutOfService, ForceDetachReason::NodeGone]
            .map(|reason| Detach(Some(reason)));
    let (all, one_second) = (Wait(Some(MAX_WAIT_FOR_UNMOUNT)), Wait(Some(Duration::from_secs(1))));
    #[rustfmt::skip] // one row per case
    let table = [
        ("no pod uses the volume", actual_attachment(), true, Detach(None)),
        ("a pod uses the volume", needed(actual_attachment()), true, Keep),
        ("being deleted", ActualAttachment { deleting: true, ..actual_attachment() }, true, Keep),
        ("of another client", other, true, Keep),
        ("kubelet attaches volumes", on(NodeState::Unmanaged, actual_attachment()), true, Keep),
        ("undecodable node", on(NodeState::Undecodable, actual_attachment()), true, Keep),
        ("deleted node, not in use", on(NodeState::Deleted, actual_attachment()), true, Detach(None)),
        ("deleted node, in use", deleted(0), true, all),
        ("deleted node, 359 s", deleted(359), true, one_second),
        ("deleted node, 360 s", deleted(360), true, node_gone),
        ("deleted node, 360 s, no force", deleted(360), false, Wait(None)),
        ("deleted node, needed", needed(deleted(360)), true, Keep),
        ("in use", used.clone(), true, Wait(None)),
        ("in use for long, node ready", in_use_for_long, true, Wait(None)),
        ("in use, node not ready", late(0), true, all),
        ("in use, node not ready, 359 s", late(359), true, one_second),
        ("in use, node not ready, 360 s", late(360), true, timeout),
        ("360 s, no force", late(360), false, Wait(None)),
        ("not in use, node not ready", on(down(false), actual_attachment()), true, Detach(None)),
        ("out of service", on(down(true), used.clone()), false, out_of_service),
        ("out of service, needed", needed(on(down(true), used.clone())), true, Keep),
        ("deleted volume, needed", volume_deleted(needed(late(360))), true, Wait(None)),
        ("deleted volume, out of service", volume_deleted(needed(on(down(true), used.clone()))), true,
            Wait(None)),
        ("deleted volume, deleted node", volume_deleted(needed(deleted(360))), true, Wait(None)),
        ("deleted volume, not in use", volume_deleted(needed(actual_attachment())), true, Detach(None)),
        ("deleted volume, not needed", volume_deleted(late(360)), true, timeout),
        ("deletion requested, needed again", needed(requested), true, Detach(None)),
    ];
    let one_second_only = Some(Duration::from_secs(1));
    assert_eq!(decide_detach(&late(0), one_second_only), one_second, "another timeout");
    assert_eq!(decide_detach(&late(1), one_second_only), timeout, "another timeout");
    for (name, actual_attachment, force, expected) in table {
        let force_after = force.then_some(MAX_WAIT_FOR_UNMOUNT);
        assert_eq!(decide_detach(&actual_attachment, force_after), expected, "{name}");
        let reported = belongs_in_volumes_attached(&actual_attachment, force_after);
        let stays = !matches!(expected, Detach(_))
            && actual_attachment.purpose.is_for_pod()
            && !actual_attachment.deleting;
        assert_eq!(reported, stays, "{name}");
    }
    assert!(!belongs_in_volumes_attached(
        &ActualAttachment { needed_by_pod: true, attached: false, ..actual_attachment() },
        Some(MAX_WAIT_FOR_UNMOUNT)
    ));
    assert!(!belongs_in_volumes_attached(
        &ActualAttachment {
            needed_by_pod: true,
            detach_state: Some(DetachState::Started),
            ..actual_attachment()
        },
        Some(MAX_WAIT_FOR_UNMOUNT)
    ));
}

#[test]
fn access_modes_decide_whether_multi_attach_is_forbidden() {
    for (modes, expected) in [
        (&["ReadWriteOnce"][..], true),
        (&["ReadWriteOncePod"], true),
        (&["ReadWriteMany"], false),
        (&["ReadOnlyMany"], false),
        (&["ReadWriteOnce", "ReadWriteMany"], false),
        (&[], false),
    ] {
        let volume = AttachDetachFixture::new(modes).cache.volumes.get(&"v".into()).into_object().unwrap();
        assert_eq!(is_exclusive(&volume), expected, "{modes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_attached_to_the_node_of_its_pod() {
    let mut fixture = AttachDetachFixture::new(&["ReadWriteOnce"]);
    assert_eq!(fixture.next(), "no action", "no pod uses the volume");
    fixture.pod("ns", "p", "n");
    assert_eq!(fixture.next(), "no action", "the Node does not exist");
    fixture.node("n", json!({"metadata": {"annotations": null}}));
    assert_eq!(fixture.next(), "no action", "kubelet attaches volumes");
    fixture.node("n", json!({}));
    assert_eq!(fixture.next(), "attach n");
    fixture.attachment("n", json!({"status": {"attached": false}}));
    assert_eq!(fixture.next(), "no action", "the attach is in progress");
    assert_eq!(fixture.input().recheck_after(), Some(ATTACH_TIMEOUT));
    fixture.attachment("n", json!({}));
    assert_eq!((fixture.next().as_str(), fixture.input().recheck_after()), ("no action", None));
    let input = fixture.input();
    assert_eq!(input.nodes_to_update().collect::<Vec<_>>(), [&"n".into()]);
}

#[test]
fn the_oldest_pod_gets_the_volume_and_the_other_a_multi_attach_error() {
    let mut fixture = AttachDetachFixture::new(&["ReadWriteOnce"]);
    for node in ["m", "n"] {
        fixture.node(node, json!({}));
    }
    fixture.pod("ns", "p", "n");
    fixture.pod("ns", "q", "m");
    let younger_pod = json!({
        "metadata": {
            "namespace": "ns", "name": "q", "uid": "q", "resourceVersion": "90",
            "creationTimestamp": "2026-01-01T00:00:09Z",
        },
        "spec": {"nodeName": "m", "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]},
    });
    fixture.cache.pods.apply(Ok(read::<Pod>(&younger_pod)));
    assert_eq!(fixture.next(), "attach n");
    let refused = ReconcileInput { refused_nodes: ["n".into()].into(), ..fixture.input() };
    assert!(
        matches!(refused.next_step(), AttachDetachStep::UpdateNodes(_)),
        "an exclusive volume is not attached to a second node instead"
    );
    fixture.attachment("n", json!({"status": {"attached": false}}));
    assert_eq!(fixture.next(), "no action", "an attach in progress blocks other nodes");
    let text = "Multi-Attach error for volume \"v\" Volume is already used by pod(s) p";
    assert_eq!(fixture.failures(), [format!("q: {text}")]);
    let shared = AttachDetachFixture { cache: fixture.cache, ..AttachDetachFixture::new(&[]) };
    let meta = json!({"name": "v", "uid": "v-uid", "resourceVersion": "9"});
    let claim = json!({"namespace": "ns", "name": "c", "uid": "c-uid"});
    let spec = json!({
        "accessModes": ["ReadWriteMany"], "claimRef": claim, "csi": {"driver": "d", "volumeHandle": "h"},
    });
    shared.cache.volumes.apply(Ok(read::<Volume>(&json!({"metadata": meta, "spec": spec}))));
    assert_eq!((shared.next().as_str(), shared.failures().len()), ("attach m", 0));
}

#[test]
fn a_multi_node_volume_is_attached_to_all_nodes_in_one_step() {
    const MANY: usize = 1000;
    let mut fixture = AttachDetachFixture::new(&["ReadWriteMany"]);
    for number in 0..MANY {
        let node = format!("n{number:03}");
        fixture.node(&node, json!({}));
        fixture.pod("ns", &node, &node);
    }
    fixture.attachment("n500", json!({}));
    let AttachDetachStep::Attach(desired_attachments) = fixture.input().next_step() else {
        panic!("{}", fixture.next())
    };
    assert_eq!((desired_attachments.len(), desired_attachments[0].node.as_str()), (MANY - 1, "n000"));
    let refused = ReconcileInput { refused_nodes: ["n000".into()].into(), ..fixture.input() };
    let AttachDetachStep::Attach(desired_attachments) = refused.next_step() else {
        panic!("{}", fixture.next())
    };
    assert_eq!(
        (desired_attachments.len(), desired_attachments[0].node.as_str()),
        (MANY - 2, "n001"),
        "other nodes continue"
    );
    assert_eq!(fixture.failures().len(), 0);
}

#[test]
fn multi_attach_errors_name_only_pods_of_the_same_namespace() {
    let other = |namespace: &str, name: &str| Arc::new(pod_of(namespace, name));
    let desired_attachment = |node: &str, pods: Vec<Arc<Pod>>, volume: &Arc<Volume>| DesiredAttachment {
        node: node.into(),
        node_state: NodeState::Managed { ready: true, out_of_service: false },
        volume: Arc::clone(volume),
        pods,
    };
    let volume =
        AttachDetachFixture::new(&["ReadWriteOnce"]).cache.volumes.get(&"v".into()).into_object().unwrap();
    #[rustfmt::skip]
    let table = [
        (vec![], "Volume is already exclusively attached to one node and can't be attached to another"),
        (vec![other("ns", "a"), other("ns", "b")], "Volume is already used by pod(s) a, b"),
        (vec![other("x", "a")], "Volume is already used by 1 pod(s) in different namespaces"),
        (vec![other("ns", "a"), other("x", "b")],
            "Volume is already used by pod(s) a and 1 pod(s) in different namespaces"),
    ];
    for (pods, expected) in table {
        let mut desired = vec![desired_attachment("m", vec![other("ns", "q")], &volume)];
        if !pods.is_empty() {
            desired.push(desired_attachment("n", pods, &volume));
        }
        let input = ReconcileInput {
            driver: "d".into(),
            handle: Some("h".into()),
            uncertain: None,
            desired,
            actual: vec![actual_attachment()],
            unregistered: Vec::new(),
            refused_nodes: BTreeSet::new(),
            force_after: Some(MAX_WAIT_FOR_UNMOUNT),
        };
        let failures = input.failures();
        let texts: Vec<&str> = failures
            .iter()
            .filter(|(pod, _)| &*pod.key.name == "q")
            .map(|(_, event)| event.text.as_str())
            .collect();
        assert_eq!(texts, [format!("Multi-Attach error for volume \"v\" {expected}")]);
    }
}

fn pod_of(namespace: &str, name: &str) -> Pod {
    let meta = json!({"namespace": namespace, "name": name, "uid": name, "resourceVersion": "1"});
    read(&json!({"metadata": meta, "spec": {"nodeName": "n"}}))
}

#[test]
fn a_volume_is_detached_only_after_it_left_volumes_attached() {
    let mut fixture = AttachDetachFixture::new(&["ReadWriteOnce"]);
    let volumes_attached =
        json!({"status": {"volumesAttached": [{"name": "kubernetes.io/csi/d^h", "devicePath": ""}]}});
    fixture.node("n", volumes_attached.clone());
    fixture.attachment("n", json!({}));
    assert_eq!(fixture.next(), "no action", "volumesAttached is updated first");
    assert_eq!(fixture.input().nodes_to_update().count(), 1);
    fixture.node("n", json!({}));
    assert_eq!(fixture.next(), "start n");
    let name = names::volume_attachment_name(&"d".into(), &"h".into(), &"n".into());
    assert!(fixture.state.start_detach(&"n".into(), &name, || (ResourceVersion(9), false)));
    assert_eq!(fixture.next(), "refresh n");
    fixture.node("n", json!({"status": {"volumesInUse": ["kubernetes.io/csi/d^h"]}}));
    assert_eq!(fixture.next(), "cancel n", "the live Node reports the volume in use");
    fixture.node("n", volumes_attached);
    assert_eq!(fixture.next(), "cancel n", "another client has updated volumesAttached");
    fixture.node("n", json!({}));
    fixture.pod("ns", "p", "n");
    assert_eq!(fixture.next(), "cancel n", "a pod uses the volume again");
    fixture.state.request_detach(&name, &"d".into());
    let sources = InputSources {
        cache: &fixture.cache,
        state: &fixture.state,
        force_after: Some(MAX_WAIT_FOR_UNMOUNT),
    };
    let reconcile_state = ReconcileState { refreshed: [name].into(), ..ReconcileState::default() };
    let input =
        sources.reconcile_input(&Key::Volume("kubernetes.io/csi/d^h".into()), &reconcile_state).unwrap();
    assert!(matches!(input.next_step(), AttachDetachStep::Detach(..)), "a requested detach is completed");
}

#[test]
fn an_attachment_without_its_volume_blocks_multi_attach() {
    let mut fixture = AttachDetachFixture::new(&["ReadWriteOnce"]);
    let name = names::volume_attachment_name(&"d".into(), &"h".into(), &"m".into());
    fixture.node("m", json!({"status": {"volumesInUse": ["kubernetes.io/csi/d^h"]}}));
    fixture.node("n", json!({}));
    fixture.pod("ns", "p", "n");
    fixture.attachment("m", json!({"spec": {"source": {"persistentVolumeName": "former"}}}));
    fixture
        .state
        .set_unresolved_attachment(&fixture.cache.attachments.get(&name).into_object().unwrap(), true);
    assert_eq!(fixture.next(), "no action");
    assert_eq!(fixture.failures().len(), 1);
    fixture.node("m", json!({}));
    assert_eq!(fixture.next(), "start m");
}

#[test]
fn a_missing_attachment_reports_its_reason() {
    let mut fixture = AttachDetachFixture::new(&["ReadWriteOnce"]);
    fixture.node("n", json!({}));
    fixture.pod("ns", "p", "n");
    fixture
        .attachment("n", json!({"status": {"attached": false, "attachError": {"message": "no capacity"}}}));
    let failed = |reason: &str| vec![format!("p: AttachVolume.Attach failed for volume \"v\" : {reason}")];
    assert_eq!(fixture.failures(), failed("no capacity"));
    let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    fixture.attachment("n", json!({"metadata": deleting}));
    assert_eq!(fixture.failures(), [""; 0], "the detach is in progress");
    fixture.attachment("n", json!({"metadata": deleting, "status": {"detachError": {"message": "busy"}}}));
    let cannot_detach = format!(
        "volume attachment is being deleted: VolumeAttachment {} cannot be detached from node n: busy",
        attachment_on("n")
    );
    assert_eq!(fixture.failures(), failed(&cannot_detach));
    fixture.attachment("n", json!({"status": {"attached": false}}));
    let mut input = fixture.input();
    assert!(input.failures().is_empty());
    input.actual[0].attaching_for = ATTACH_TIMEOUT;
    let timed_out = "AttachVolume.Attach failed for volume \"v\" : timed out waiting for external-attacher \
                     of d CSI driver to attach volume h; the driver is not registered in CSINode n";
    assert_eq!(input.failures()[0].1.text, timed_out);
}

fn attachment_on(node: &str) -> VolumeAttachmentName {
    names::volume_attachment_name(&"d".into(), &"h".into(), &node.into())
}

/// Upstream marks such an attachment as uncertain and attaches the volume to the other node.
#[tokio::test(start_paused = true)]
async fn a_multi_attach_error_names_the_attachment_that_cannot_be_detached() {
    let mut fixture = AttachDetachFixture::new(&["ReadWriteOnce"]);
    fixture.node("n", json!({}));
    fixture.pod("ns", "p", "n");
    let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    fixture.attachment("m", json!({"metadata": deleting}));
    let multi_attach = "p: Multi-Attach error for volume \"v\" \
                        Volume is already exclusively attached to one node and can't be attached to another";
    assert_eq!(fixture.failures(), [multi_attach], "the detach is in progress");
    assert_eq!(fixture.input().recheck_after(), Some(ATTACH_TIMEOUT));
    tokio::time::advance(ATTACH_TIMEOUT).await;
    let timed_out = format!(
        "{multi_attach}; timed out waiting for external-attacher of d CSI driver to detach \
         VolumeAttachment {} from node m",
        attachment_on("m")
    );
    assert_eq!(fixture.failures(), [timed_out]);
    assert_eq!(fixture.input().recheck_after(), None);
    let failed = json!({"metadata": deleting, "status": {"detachError": {"message": "no such instance"}}});
    fixture.attachment("m", failed);
    let failed = format!(
        "{multi_attach}; VolumeAttachment {} cannot be detached from node m: no such instance",
        attachment_on("m")
    );
    assert_eq!(fixture.failures(), [failed]);
}

#[test]
fn claims_without_an_attachable_volume_report_the_reason() {
    let fixture = AttachDetachFixture::new(&[]);
    let key = cofferdam_domain::ClaimKey::new("ns", "c");
    let unusable = || {
        let bound = desired_state::bound_claim_and_volume(&fixture.cache, &key);
        bound.err().map(|error| error.to_string())
    };
    assert_eq!(unusable(), None);
    let volume = |change: &Value| {
        let claim = json!({"namespace": "ns", "name": "c", "uid": "c-uid"});
        let volume = json!({
            "metadata": {"name": "v", "uid": "v-uid", "resourceVersion": "2"},
            "spec": {"claimRef": claim, "csi": {"driver": "d", "volumeHandle": "h"}},
        });
        fixture.cache.volumes.apply(Ok(read::<Volume>(&with(volume, change))));
        unusable()
    };
    let error = |text: &str| Some(text.to_owned());
    assert_eq!(
        volume(&json!({"spec": {"claimRef": {"uid": "other"}}})),
        error("PersistentVolume v is not bound to claim ns/c; expected spec.claimRef.uid \"c-uid\"")
    );
    assert_eq!(
        volume(&json!({"spec": {"csi": null, "iscsi": {}}})),
        error(
            "PersistentVolume v has the in-tree source iscsi; \
             expected spec.csi: only CSI volumes are attached"
        )
    );
    assert_eq!(volume(&json!({"spec": {"csi": null, "nfs": {}}})), None, "an NFS volume is not attached");
    fixture.cache.volumes.delete(&"v".into(), &"v-uid".into(), ResourceVersion(9));
    assert_eq!(unusable(), error("PersistentVolume v of claim ns/c does not exist"));
    let pending =
        json!({"metadata": {"namespace": "ns", "name": "c", "uid": "c-uid", "resourceVersion": "2"}});
    fixture.cache.claims.apply(Ok(read::<Claim>(&pending)));
    assert_eq!(unusable(), error("PersistentVolumeClaim ns/c is Pending; expected Bound"));
    fixture.cache.claims.delete(&key, &"c-uid".into(), ResourceVersion(9));
    assert_eq!(unusable(), error("PersistentVolumeClaim ns/c does not exist"));
}

#[test]
fn a_generic_ephemeral_volume_uses_only_the_claim_its_pod_owns() {
    let pod = |change: Value| -> Pod {
        let pod = json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "p-uid", "resourceVersion": "1"},
            "spec": {"nodeName": "n", "volumes": [{"name": "data", "ephemeral": {}}]},
        });
        read(&with(pod, &change))
    };
    let claim = |owner: &str| -> Claim {
        let owners = json!([{"uid": "x"}, {"uid": owner, "controller": true}]);
        read(&json!({"metadata": {
            "namespace": "ns", "name": "p-data", "resourceVersion": "1", "ownerReferences": owners,
        }}))
    };
    assert_eq!(desired_state::is_using_claim(&pod(json!({})), &claim("p-uid")), Ok(true));
    assert!(desired_state::is_using_claim(&pod(json!({})), &claim("other")).is_err());
    assert_eq!(
        desired_state::is_using_claim(&pod(json!({"status": {"phase": "Failed"}})), &claim("p-uid")),
        Ok(false)
    );
    assert_eq!(
        desired_state::is_using_claim(&pod(json!({"spec": {"nodeName": null}})), &claim("p-uid")),
        Ok(false)
    );
}
