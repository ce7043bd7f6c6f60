//! Scenarios of the attach-detach controller together with the attacher: pods whose volumes are attached and
//! detached.

use std::time::Duration;

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use crate::{
    DriverFault, PublishingBehavior,
    UserAction::{self, AwaitPublished, Create, Delete, Patch, Settle, Until, Wait},
    WaitFor::Event,
    objects::{
        CLAIM, claim, csi_driver, csi_node, pod, ready_condition, ready_node, unique_volume_name, volume,
        with,
    },
    scenario::Scenario,
};

const POD: &str = "/api/v1/namespaces/default/pods/p";
pub(super) const POD_FORCE_DELETE: &str = "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0";
const POD_STATUS: &str = "/api/v1/namespaces/default/pods/p/status";
pub(super) const NODE: &str = "/api/v1/nodes/node-1";
const NODE_STATUS: &str = "/api/v1/nodes/node-1/status";
const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/node-1";
const DRIVER: &str = "/apis/storage.k8s.io/v1/csidrivers/sim.cofferdam.dev";
pub(super) const VOLUME: &str = "/api/v1/persistentvolumes/v";
/// The VolumeAttachment of `v` on `node-1`. Its name has the SHA-256 of `static-v`, the driver's name and
/// `node-1`.
pub(super) const ATTACHMENT: &str = concat!(
    "/apis/storage.k8s.io/v1/volumeattachments/",
    "csi-66dbd8cd56ad77d9c8e6c999c6c94bc28596efa87aec4df9bd12a385a89bec32"
);
pub(super) const ATTACHMENT_STATUS: &str = concat!(
    "/apis/storage.k8s.io/v1/volumeattachments/",
    "csi-66dbd8cd56ad77d9c8e6c999c6c94bc28596efa87aec4df9bd12a385a89bec32/status"
);

pub(super) const ATTACHED_TO_NODE_1: &[&str] = &["v on node-1 attached directory"];
pub(super) const ATTACHED_TO_NODE_2: &[&str] = &["v on node-2 attached directory"];
pub(super) const SUCCEEDED: &[&str] = &["p Normal SuccessfulAttachVolume"];
const ATTACHED_AFTER_WAITING: &[&str] =
    &["p Normal SuccessfulAttachVolume", "q Normal SuccessfulAttachVolume", "q Warning FailedAttachVolume"];
pub(super) const FAILED_FIRST: &[&str] = &["p Normal SuccessfulAttachVolume", "p Warning FailedAttachVolume"];

/// Creates two Nodes with their CSINodes, the PersistentVolume `volume`, and the claim `a`, which is bound to
/// it.
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

/// Creates the pod `p` on the first node and waits until its volume is attached, then performs further
/// actions.
pub(super) fn pod_running(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    after_setup([Create(pod("p", "a")), Settle].into_iter().chain(actions))
}

/// Creates the pod `q`, which uses the claim `a`, on the second node.
pub(super) fn second_pod() -> UserAction {
    Create(with(pod("q", "a"), &json!({"spec": {"nodeName": "node-2"}})))
}

/// Sets the first node's `volumesInUse` to the volume `v`, or to an empty list.
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

/// Expects the claim `a` bound to the volume `v`, and nothing else.
pub(super) fn base() -> Scenario {
    Scenario { claims: &["a Bound v"], volumes: &["v Bound a"], ..Scenario::default() }
}

/// Expects that the volume is attached to the first node.
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

/// Expects that the volume was attached to the first node and then detached.
pub(super) fn detached() -> Scenario {
    Scenario { events: SUCCEEDED, calls: &["publish static-v id-1", "unpublish static-v id-1"], ..base() }
}

/// Expects that the volume was detached from the first node and then attached to the second.
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
        Scenario {
            name: "pod scheduled: its volume is attached to the node",
            actions: pod_running([]),
            ..attached()
        },
        Scenario {
            name: "pod deleted and volume unmounted: the volume is detached",
            actions: pod_running([set_volumes_in_use(true), set_volumes_in_use(false), Delete(POD)]),
            ..detached()
        },
        Scenario {
            name: "pod Succeeded: its volume is detached",
            actions: pod_running([Patch(POD_STATUS, json!({"status": {"phase": "Succeeded"}}))]),
            ..detached()
        },
        Scenario {
            name: "terminating pod with a running container: its volume stays attached",
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
            name: "pod deleted, volume still in volumesInUse: it stays attached",
            actions: pod_running([set_volumes_in_use(true), Delete(POD), Settle]),
            ..attached()
        },
        Scenario {
            name: "volume removed from volumesInUse: it is detached",
            actions: pod_running([set_volumes_in_use(true), Delete(POD), Settle, set_volumes_in_use(false)]),
            ..detached()
        },
        Scenario {
            name: "NotReady node: a volume in use is detached six minutes after the pod was deleted",
            actions: pod_running([
                set_volumes_in_use(true),
                node_not_ready(),
                Delete(POD),
                Wait(Duration::from_secs(359)),
            ]),
            elapses_timeouts: true,
            ..detached()
        },
        Scenario {
            name: "node with the out-of-service taint: the volume is detached at once",
            actions: pod_running([
                set_volumes_in_use(true),
                node_not_ready(),
                Delete(POD_FORCE_DELETE),
                Settle,
                Patch(
                    NODE,
                    json!({"spec": {"taints": [
                        {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"},
                    ]}}),
                ),
            ]),
            ..detached()
        },
        Scenario {
            name: "Node deleted, volume not in use: it is detached at once",
            actions: pod_running([Delete(NODE), Settle, Delete(POD_FORCE_DELETE)]),
            ..detached()
        },
        Scenario {
            name: "Node recreated: volumesAttached is set again",
            actions: pod_running([Delete(NODE), Settle, Create(ready_node("node-1"))]),
            ..attached()
        },
        Scenario {
            name: "node without controller-managed attach: it is ignored",
            actions: after_setup([
                Patch(
                    NODE,
                    json!({"metadata": {"annotations": {
                        "volumes.kubernetes.io/controller-managed-attach-detach": null,
                    }}}),
                ),
                // Watches of different kinds are not ordered.
                Settle,
                Create(pod("p", "a")),
            ]),
            ..not_attached()
        },
        Scenario {
            name: "ReadWriteOnce volume: \
                  it is detached from the first node before it is attached to the second",
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
            name: "two pods of a ReadWriteOnce claim on two nodes: the second gets FailedAttachVolume",
            actions: pod_running([second_pod()]),
            events: &["p Normal SuccessfulAttachVolume", "q Warning FailedAttachVolume"],
            ..attached()
        },
        Scenario {
            name: "ReadWriteMany volume: it is attached to both nodes and detached from one",
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
            name: "two pods on one node: the volume stays attached for the second",
            actions: pod_running([Create(pod("q", "a")), Settle, Delete(POD_FORCE_DELETE)]),
            ..attached()
        },
        Scenario {
            name: "CSIDriver with attachRequired false: no VolumeAttachment is created",
            actions: [Create(csi_driver(false))].into_iter().chain(pod_running([])).collect(),
            ..not_attached()
        },
        Scenario {
            name: "CSIDriver with attachRequired false recreated: no VolumeAttachment is created",
            actions: [Create(csi_driver(false))]
                .into_iter()
                .chain(pod_running([Delete(DRIVER), Wait(Duration::from_secs(1)), Create(csi_driver(false))]))
                .collect(),
            ..not_attached()
        },
        Scenario {
            name: "CSIDriver with attachRequired false deleted: the volume is attached",
            actions: [Create(csi_driver(false))]
                .into_iter()
                .chain(pod_running([Delete(DRIVER), AwaitPublished("static-v id-1")]))
                .collect(),
            ..attached()
        },
        Scenario {
            name: "attachRequired changed to false: the volume is detached",
            actions: [Create(csi_driver(true))]
                .into_iter()
                .chain(pod_running([Delete(DRIVER), Create(csi_driver(false))]))
                .collect(),
            ..detached()
        },
        Scenario {
            name: "claim created after its pod: the volume is attached",
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
            name: "node without a CSINode: FailedAttachVolume until it is created",
            actions: [Create(ready_node("node-1")), Create(volume("v", "none", "1Gi")), Settle]
                .into_iter()
                .chain([Create(claim("a", "none")), Settle, Create(pod("p", "a"))])
                .chain([Until(Event("p Warning FailedAttachVolume")), Create(csi_node("node-1", "id-1"))])
                .collect(),
            events: FAILED_FIRST,
            ..attached()
        },
        Scenario {
            name: "driver removed from the CSINode: the volume stays attached and can be detached",
            actions: pod_running([Patch(CSI_NODE, json!({"spec": {"drivers": []}})), Settle, Delete(POD)]),
            ..detached()
        },
        Scenario {
            name: "Node created after its pod: the volume is attached",
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
            name: "volume of an in-tree plugin: FailedAttachVolume is emitted on the pod",
            actions: setup(with(
                volume("v", "none", "1Gi"),
                &json!({"spec": {
                    "csi": null, "iscsi": {
                        "targetPortal": "10.0.0.1:3260", "iqn": "iqn.2026-01.dev.cofferdam:a", "lun": 0,
                    },
                }}),
            ))
            .into_iter()
            .chain([Create(pod("p", "a"))])
            .collect(),
            events: &["p Warning FailedAttachVolume"],
            ..base()
        },
        Scenario {
            name: "generic ephemeral volume whose claim has another owner: \
                  FailedAttachVolume is emitted on the pod",
            actions: after_setup([
                Create(with(
                    pod("a", "a"),
                    &json!({"metadata": {"name": "a"}, "spec": {"volumes": [{"name": "data", "ephemeral": {
                        "volumeClaimTemplate": {"spec": {
                            "storageClassName": "none", "accessModes": ["ReadWriteOnce"],
                            "resources": {"requests": {"storage": "1Gi"}},
                        }},
                    }}]}}),
                )),
                Create(claim("a-data", "none")),
                Until(Event("a-data Warning ProvisioningFailed")),
                Create(volume("w", "none", "1Gi")),
            ]),
            claims: &["a Bound v", "a-data Bound w"],
            volumes: &["v Bound a", "w Bound a-data"],
            events: &["a Warning FailedAttachVolume", "a-data Warning ProvisioningFailed"],
            ..base()
        },
        Scenario {
            name: "inline CSI volume: it is not attached",
            actions: after_setup([Create(with(
                pod("p", "a"),
                &json!({"spec": {"volumes": [{"name": "data", "csi": {"driver": "sim.cofferdam.dev"}}]}}),
            ))]),
            ..not_attached()
        },
        Scenario {
            name: "VolumeAttachment whose PersistentVolume and pod do not exist: it is deleted",
            actions: vec![
                Create(csi_node("node-1", "id-1")),
                Create(ready_node("node-1")),
                Create(json!({
                    "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
                    "metadata": {"name": ATTACHMENT.rsplit('/').next()},
                    "spec": {
                        "attacher": "sim.cofferdam.dev", "nodeName": "node-1",
                        "source": {"persistentVolumeName": "v"},
                    },
                })),
            ],
            ..Scenario::default()
        },
        Scenario {
            name: "VolumeAttachment left without a pod: it is detached when the volume is not in use",
            // The volume stays in use until the attacher has attached it.
            actions: after_setup([
                set_volumes_in_use(true),
                Create(json!({
                    "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
                    "metadata": {"name": ATTACHMENT.rsplit('/').next(), "finalizers": ["example.com/x"]},
                    "spec": {
                        "attacher": "sim.cofferdam.dev", "nodeName": "node-1",
                        "source": {"persistentVolumeName": "v"},
                    },
                })),
                Settle,
                set_volumes_in_use(false),
                Settle,
                Patch(ATTACHMENT, json!({"metadata": {"finalizers": null}})),
            ]),
            calls: &["publish static-v id-1", "unpublish static-v id-1"],
            ..not_attached()
        },
        Scenario {
            name: "VolumeAttachment deleted by a user: it is created again",
            actions: pod_running([Delete(ATTACHMENT)]),
            calls: &["publish static-v id-1", "unpublish static-v id-1", "publish static-v id-1"],
            ..attached()
        },
        Scenario {
            name: "VolumeAttachment set to attached false by a user: the volume is published again",
            actions: pod_running([Patch(ATTACHMENT_STATUS, json!({"status": {"attached": false}}))]),
            calls: &["publish static-v id-1", "publish static-v id-1"],
            ..attached()
        },
        Scenario {
            name: "ControllerPublishVolume fails with ResourceExhausted: FailedAttachVolume, then attached",
            actions: pod_running([]),
            publishing: publish_faults(vec![DriverFault::Refuse(ErrorKind::ResourceExhausted)]),
            events: FAILED_FIRST,
            calls: &["publish static-v id-1", "publish static-v id-1"],
            ..attached()
        },
        Scenario {
            name: "pod deleted during ControllerPublishVolume: the volume is detached",
            actions: after_setup([Create(pod("p", "a"))]),
            publishing: publish_faults(vec![DriverFault::ConcurrentAction(Delete(POD_FORCE_DELETE))]),
            events: &[],
            ..detached()
        },
        Scenario {
            name: "ControllerUnpublishVolume fails: \
                  the volume is attached to the second node after it succeeds",
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
            name: "PersistentVolume deleted while its pod runs: it is detached after the pod, then deleted",
            actions: pod_running([
                set_volumes_in_use(true),
                Delete(VOLUME),
                Settle,
                Delete(CLAIM),
                Delete(POD_FORCE_DELETE),
                set_volumes_in_use(false),
            ]),
            claims: &[],
            volumes: &[],
            ..detached()
        },
    ]
}
