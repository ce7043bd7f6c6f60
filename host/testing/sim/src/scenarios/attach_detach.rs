//! Pods that bring their volumes to nodes and take them along: attach-detach together with the attacher.

use std::time::Duration;

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use super::{CLAIM, Scenario};
use crate::{
    DriverFault, EnvironmentKind, PublishingBehavior,
    UserAction::{self, Create, Delete, Patch, Settle, Until, Wait},
    WaitFor::Event,
    objects::{
        claim, csi_driver, csi_node, pod, ready_condition, ready_node, unique_volume_name, volume, with,
    },
};

const POD: &str = "/api/v1/namespaces/default/pods/p";
pub(super) const POD_FORCE_DELETE: &str = "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0";
const POD_STATUS: &str = "/api/v1/namespaces/default/pods/p/status";
pub(super) const NODE: &str = "/api/v1/nodes/node-1";
const NODE_STATUS: &str = "/api/v1/nodes/node-1/status";
const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/node-1";
const DRIVER: &str = "/apis/storage.k8s.io/v1/csidrivers/sim.cofferdam.dev";
pub(super) const VOLUME: &str = "/api/v1/persistentvolumes/v";
/// SHA-256 of `static-v`, the driver and `node-1`.
pub(super) const ATTACHMENT: &str = "/apis/storage.k8s.io/v1/volumeattachments/csi-66dbd8cd56ad77d9c8e6c999c6c94bc28596efa87aec4df9bd12a385a89bec32";
pub(super) const ATTACHMENT_STATUS: &str = "/apis/storage.k8s.io/v1/volumeattachments/csi-66dbd8cd56ad77d9c8e6c999c6c94bc28596efa87aec4df9bd12a385a89bec32/status";

pub(super) const ATTACHED_TO_NODE_1: &[&str] = &["v on node-1 attached directory"];
pub(super) const ATTACHED_TO_NODE_2: &[&str] = &["v on node-2 attached directory"];
pub(super) const SUCCEEDED: &[&str] = &["p Normal SuccessfulAttachVolume"];
const ATTACHED_AFTER_WAITING: &[&str] =
    &["p Normal SuccessfulAttachVolume", "q Normal SuccessfulAttachVolume", "q Warning FailedAttachVolume"];
pub(super) const FAILED_FIRST: &[&str] = &["p Normal SuccessfulAttachVolume", "p Warning FailedAttachVolume"];

pub(super) const SIX_MINUTES: &[(EnvironmentKind, &str)] = &[
    (EnvironmentKind::Http, "six minutes of real time"),
    (EnvironmentKind::Kubernetes, "six minutes of real time"),
];

const TEN_SECONDS: &[(EnvironmentKind, &str)] = &[
    (EnvironmentKind::Http, "ten seconds of real time"),
    (EnvironmentKind::Kubernetes, "ten seconds of real time"),
];

/// Two nodes, and a claim with its volume.
pub(super) fn setup(volume: Value) -> Vec<UserAction> {
    vec![
        Create(csi_node("node-1", "id-1")),
        Create(csi_node("node-2", "id-2")),
        Create(ready_node("node-1")),
        Create(ready_node("node-2")),
        Create(volume),
        Settle,
        Create(claim("a", "none")),
        Settle,
    ]
}

pub(super) fn after_setup(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    setup(volume("v", "none", "1Gi")).into_iter().chain(actions).collect()
}

/// A pod on the first node, and its volume there.
pub(super) fn pod_running(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    after_setup([Create(pod("p", "a")), Settle].into_iter().chain(actions))
}

/// A pod on the second node.
pub(super) fn second_pod() -> UserAction {
    Create(with(pod("q", "a"), &json!({"spec": {"nodeName": "node-2"}})))
}

/// The first node says that it uses the volume, or no longer.
pub(super) fn set_volumes_in_use(in_use: bool) -> UserAction {
    let volumes = if in_use { vec![unique_volume_name("static-v")] } else { Vec::new() };
    Patch(NODE_STATUS, json!({"status": {"volumesInUse": volumes}}))
}

pub(super) fn node_not_ready() -> UserAction {
    Patch(NODE_STATUS, json!({"status": {"conditions": [ready_condition(false)]}}))
}

pub(super) fn shared_volume() -> Value {
    with(volume("v", "none", "1Gi"), &json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}}))
}

fn publish_faults(publish_faults: Vec<DriverFault>) -> PublishingBehavior {
    PublishingBehavior { publish_faults, ..PublishingBehavior::default() }
}

/// A claim with its volume.
pub(super) fn base() -> Scenario {
    Scenario { claims: &["a Bound v"], volumes: &["v Bound a"], ..Scenario::default() }
}

/// The volume is on the first node.
pub(super) fn attached() -> Scenario {
    Scenario {
        attachments: ATTACHED_TO_NODE_1,
        volumes_attached: &["static-v on node-1"],
        published: &["static-v id-1"],
        events: SUCCEEDED,
        calls: &["publish static-v id-1"],
        ..base()
    }
}

/// It has been there.
pub(super) fn detached() -> Scenario {
    Scenario { events: SUCCEEDED, calls: &["publish static-v id-1", "unpublish static-v id-1"], ..base() }
}

/// It is on the second node, and has been on the first.
pub(super) fn moved() -> Scenario {
    Scenario {
        attachments: ATTACHED_TO_NODE_2,
        volumes_attached: &["static-v on node-2"],
        published: &["static-v id-2"],
        events: ATTACHED_AFTER_WAITING,
        calls: &["publish static-v id-1", "unpublish static-v id-1", "publish static-v id-2"],
        ..base()
    }
}

#[expect(clippy::too_many_lines, reason = "one table")]
pub(super) fn scenarios() -> Vec<Scenario> {
    let not_attached = || Scenario { events: &[], ..base() };
    vec![
        Scenario { name: "a pod brings its volume to its node", actions: pod_running([]), ..attached() },
        Scenario { name: "and takes it along", actions: pod_running([set_volumes_in_use(true), set_volumes_in_use(false), Delete(POD)]), ..detached() },
        Scenario {
            name: "a pod that is done needs its volume no more",
            actions: pod_running([Patch(POD_STATUS, json!({"status": {"phase": "Succeeded"}}))]),
            ..detached()
        },
        Scenario {
            name: "a pod that goes while its container runs keeps its volume",
            actions: pod_running([
                Patch(
                    POD_STATUS,
                    json!({"status": {"containerStatuses": [{
                        "name": "main", "image": "busybox", "imageID": "i", "ready": true, "restartCount": 0,
                        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                    }]}}),
                ),
                Delete(POD),
            ]),
            ..attached()
        },
        Scenario {
            name: "a node that uses a volume keeps it",
            actions: pod_running([set_volumes_in_use(true), Delete(POD), Settle]),
            ..attached()
        },
        Scenario {
            name: "until it has unmounted it",
            actions: pod_running([set_volumes_in_use(true), Delete(POD), Settle, set_volumes_in_use(false)]),
            ..detached()
        },
        Scenario {
            name: "a node that is not heard any more keeps it for six minutes",
            actions: pod_running([set_volumes_in_use(true), node_not_ready(), Delete(POD), Wait(Duration::from_secs(359))]),
            skipped_on: SIX_MINUTES,
            ..detached()
        },
        Scenario {
            name: "a node that is out of service loses it at once",
            actions: pod_running([
                set_volumes_in_use(true),
                node_not_ready(),
                Delete(POD_FORCE_DELETE),
                Settle,
                Patch(
                    NODE,
                    json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}}),
                ),
            ]),
            ..detached()
        },
        Scenario {
            name: "a node that is gone loses at once what it did not use",
            actions: pod_running([Delete(NODE), Settle, Delete(POD_FORCE_DELETE)]),
            ..detached()
        },
        Scenario {
            name: "a node that comes again is told again",
            actions: pod_running([Delete(NODE), Settle, Create(ready_node("node-1"))]),
            ..attached()
        },
        Scenario {
            name: "a node whose kubelet attaches by itself is left alone",
            actions: after_setup([
                Patch(
                    NODE,
                    json!({"metadata": {"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": null}}}),
                ),
                // Watches of two kinds have no order.
                Settle,
                Create(pod("p", "a")),
            ]),
            ..not_attached()
        },
        Scenario {
            name: "a volume for one node follows its pod, detached first",
            actions: pod_running([
                set_volumes_in_use(true),
                second_pod(),
                Until(Event("q Warning FailedAttachVolume")),
                Delete(POD_FORCE_DELETE),
                Settle,
                set_volumes_in_use(false),
            ]),
            ..moved()
        },
        Scenario {
            name: "two pods of one claim on two nodes: the second waits",
            actions: pod_running([second_pod()]),
            events: &["p Normal SuccessfulAttachVolume", "q Warning FailedAttachVolume"],
            ..attached()
        },
        Scenario {
            name: "a volume for many nodes",
            actions: setup(shared_volume())
                .into_iter()
                .chain([Create(pod("p", "a")), Settle, second_pod(), Settle, Delete(POD_FORCE_DELETE)])
                .collect(),
            attachments: ATTACHED_TO_NODE_2,
            volumes_attached: &["static-v on node-2"],
            published: &["static-v id-2"],
            events: &["p Normal SuccessfulAttachVolume", "q Normal SuccessfulAttachVolume"],
            calls: &["publish static-v id-1", "publish static-v id-2", "unpublish static-v id-1"],
            ..base()
        },
        Scenario {
            name: "two pods on one node: the volume stays for the second",
            actions: pod_running([Create(pod("q", "a")), Settle, Delete(POD_FORCE_DELETE)]),
            ..attached()
        },
        Scenario {
            name: "a driver that needs no attaching",
            actions: [Create(csi_driver(false))].into_iter().chain(pod_running([])).collect(),
            ..not_attached()
        },
        Scenario {
            name: "and whose CSIDriver is replaced",
            actions: [Create(csi_driver(false))]
                .into_iter()
                .chain(pod_running([Delete(DRIVER), Wait(Duration::from_secs(1)), Create(csi_driver(false))]))
                .collect(),
            ..not_attached()
        },
        Scenario {
            name: "and whose CSIDriver is gone: it may need it",
            actions: [Create(csi_driver(false))].into_iter().chain(pod_running([Delete(DRIVER)])).collect(),
            skipped_on: TEN_SECONDS,
            ..attached()
        },
        Scenario {
            name: "a driver that needs it no more",
            actions: [Create(csi_driver(true))]
                .into_iter()
                .chain(pod_running([
                    Delete(DRIVER),
                    Create(csi_driver(false)),
                ]))
                .collect(),
            ..detached()
        },
        Scenario {
            name: "a claim that comes late",
            actions: vec![
                Create(csi_node("node-1", "id-1")),
                Create(ready_node("node-1")),
                Create(volume("v", "none", "1Gi")),
                Create(pod("p", "a")),
                Until(Event("p Warning FailedAttachVolume")),
                Create(claim("a", "none")),
            ],
            events: FAILED_FIRST,
            ..attached()
        },
        Scenario {
            name: "a volume whose node has no CSINode: the pod is told",
            actions: [Create(ready_node("node-1")), Create(volume("v", "none", "1Gi")), Settle]
                .into_iter()
                .chain([Create(claim("a", "none")), Settle, Create(pod("p", "a"))])
                .chain([Until(Event("p Warning FailedAttachVolume")), Create(csi_node("node-1", "id-1"))])
                .collect(),
            events: FAILED_FIRST,
            ..attached()
        },
        Scenario {
            name: "a CSINode that loses its driver: what is attached stays, and is detached",
            actions: pod_running([Patch(CSI_NODE, json!({"spec": {"drivers": []}})), Settle, Delete(POD)]),
            ..detached()
        },
        Scenario {
            name: "a node that comes late",
            actions: vec![
                Create(csi_node("node-1", "id-1")),
                Create(volume("v", "none", "1Gi")),
                Settle,
                Create(claim("a", "none")),
                Create(pod("p", "a")),
                Settle,
                Create(ready_node("node-1")),
            ],
            ..attached()
        },
        Scenario {
            name: "a volume of an in-tree plugin: the pod is told",
            actions: setup(with(
                volume("v", "none", "1Gi"),
                &json!({"spec": {
                    "csi": null, "iscsi": {"targetPortal": "10.0.0.1:3260", "iqn": "iqn.2026-01.dev.cofferdam:a", "lun": 0},
                }}),
            ))
            .into_iter()
            .chain([Create(pod("p", "a"))])
            .collect(),
            events: &["p Warning FailedAttachVolume"],
            ..base()
        },
        Scenario {
            name: "a claim of the name of a generic ephemeral volume that is somebody else's",
            actions: after_setup([Create(with(
                pod("a", "a"),
                &json!({"metadata": {"name": "a"}, "spec": {"volumes": [{"name": "data", "ephemeral": {
                    "volumeClaimTemplate": {"spec": {
                        "storageClassName": "none", "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "1Gi"}},
                    }},
                }}]}}),
            )), Create(claim("a-data", "none")), Until(Event("a-data Warning ProvisioningFailed")), Create(volume("w", "none", "1Gi"))]),
            claims: &["a Bound v", "a-data Bound w"],
            volumes: &["v Bound a", "w Bound a-data"],
            events: &["a Warning FailedAttachVolume", "a-data Warning ProvisioningFailed"],
            ..base()
        },
        Scenario {
            name: "inline CSI volumes are not attached",
            actions: after_setup([Create(with(
                pod("p", "a"),
                &json!({"spec": {"volumes": [{"name": "data", "csi": {"driver": "sim.cofferdam.dev"}}]}}),
            ))]),
            ..not_attached()
        },
        Scenario {
            name: "an attachment for a pod whose volume is no more",
            actions: vec![Create(csi_node("node-1", "id-1")), Create(ready_node("node-1")), Create(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
                "metadata": {"name": ATTACHMENT.rsplit('/').next()},
                "spec": {
                    "attacher": "sim.cofferdam.dev", "nodeName": "node-1", "source": {"persistentVolumeName": "v"},
                },
            }))],
            ..Scenario::default()
        },
        Scenario {
            name: "and one that was left behind",
            // As long as the node uses the volume, the attacher cannot come too late.
            actions: after_setup([set_volumes_in_use(true), Create(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
                "metadata": {"name": ATTACHMENT.rsplit('/').next(), "finalizers": ["example.com/x"]},
                "spec": {
                    "attacher": "sim.cofferdam.dev", "nodeName": "node-1", "source": {"persistentVolumeName": "v"},
                },
            })), Settle, set_volumes_in_use(false), Settle, Patch(ATTACHMENT, json!({"metadata": {"finalizers": null}}))]),
            calls: &["publish static-v id-1", "unpublish static-v id-1"],
            ..not_attached()
        },
        Scenario {
            name: "an attachment that somebody deletes is made again",
            actions: pod_running([Delete(ATTACHMENT)]),
            calls: &["publish static-v id-1", "unpublish static-v id-1", "publish static-v id-1"],
            ..attached()
        },
        Scenario {
            name: "an attachment that is said not to be attached",
            actions: pod_running([Patch(ATTACHMENT_STATUS, json!({"status": {"attached": false}}))]),
            calls: &["publish static-v id-1", "publish static-v id-1"],
            ..attached()
        },
        Scenario {
            name: "the node has no room, and then has: the pod is told",
            actions: pod_running([]),
            publishing: publish_faults(vec![DriverFault::Refuse(ErrorKind::ResourceExhausted)]),
            events: FAILED_FIRST,
            calls: &["publish static-v id-1", "publish static-v id-1"],
            ..attached()
        },
        Scenario {
            name: "the pod goes while the driver publishes",
            actions: after_setup([Create(pod("p", "a"))]),
            publishing: publish_faults(vec![DriverFault::ConcurrentAction(Delete(POD_FORCE_DELETE))]),
            events: &[],
            ..detached()
        },
        Scenario {
            name: "the pod moves while it cannot be detached",
            actions: pod_running([Delete(POD_FORCE_DELETE), second_pod()]),
            publishing: PublishingBehavior {
                unpublish_faults: vec![DriverFault::Refuse(ErrorKind::Internal), DriverFault::LostResponse],
                ..PublishingBehavior::default()
            },
            calls: &[
                "publish static-v id-1",
                "unpublish static-v id-1",
                "unpublish static-v id-1",
                "unpublish static-v id-1",
                "publish static-v id-2",
            ],
            ..moved()
        },
        Scenario {
            name: "the volume's object is deleted under its pod",
            actions: pod_running([set_volumes_in_use(true), Delete(VOLUME), Settle, Delete(CLAIM), Delete(POD_FORCE_DELETE), set_volumes_in_use(false)]),
            claims: &[],
            volumes: &[],
            ..detached()
        },
    ]
}
