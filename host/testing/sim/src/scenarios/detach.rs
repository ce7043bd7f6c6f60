//! Scenarios of the attach-detach controller together with the attacher: volumes in `volumesInUse`, and
//! failed API writes.

use std::time::Duration;

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use super::{
    attach_detach::{
        ATTACHMENT, ATTACHMENT_STATUS, FAILED_FIRST, NODE, POD_FORCE_DELETE, after_setup, attached, base,
        detached, moved, node_not_ready, pod_running, second_pod, set_volumes_in_use, setup, shared_volume,
    },
    volume_attachment::FAILED_ATTACH,
};
use crate::{
    ApiFault, DriverFault, EnvironmentKind,
    FaultKind::{self, Delayed, Forbidden, LostRequest, LostRequestAlways, LostResponse},
    PublishingBehavior,
    UserAction::{self, Create, Delete, Patch, Repair, Settle, Until, Wait},
    WaitFor::{CallsCompleted, Event, FaultsApplied},
    objects::{CLAIM, pod, ready_node, volume, with},
    scenario::{Scenario, in_real_time},
};

const VOLUME_ATTACHMENTS_PATH: &str = "/apis/storage.k8s.io/v1/volumeattachments";

/// Reason to skip the row in which a user sets `status.attached` of a VolumeAttachment.
const STATUS_SET_LATE: &[(EnvironmentKind, &str)] = &in_real_time(
    "the attacher sets attachError for the missing PersistentVolume before the user sets status.attached",
);

/// Reason to skip rows in which a request takes effect late.
const LATE_REQUEST: &[(EnvironmentKind, &str)] =
    &in_real_time("the request would take effect after the shorter request timeout of real time");

/// Events of the VolumeAttachment of `v` on the first node.
const DETACH_CONFIRMED: &str =
    "csi-66dbd8cd56ad77d9c8e6c999c6c94bc28596efa87aec4df9bd12a385a89bec32 Warning DetachConfirmed";
const DETACH_NOT_CONFIRMED: &str =
    "csi-66dbd8cd56ad77d9c8e6c999c6c94bc28596efa87aec4df9bd12a385a89bec32 Warning DetachNotConfirmed";
const DETACH_OBSERVED: &str =
    "csi-66dbd8cd56ad77d9c8e6c999c6c94bc28596efa87aec4df9bd12a385a89bec32 Warning DetachObserved";

/// Adds the out-of-service taint to the first node.
fn out_of_service_taint() -> UserAction {
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
    Patch(NODE, json!({"spec": {"taints": [taint]}}))
}

/// The first unpublish call takes effect without a response, and all later ones fail, as for a node whose
/// machine was removed.
fn never_unpublishes() -> PublishingBehavior {
    let refused = vec![DriverFault::Refuse(ErrorKind::Internal); 100];
    PublishingBehavior {
        unpublish_faults: [DriverFault::LostResponse].into_iter().chain(refused).collect(),
        ..PublishingBehavior::default()
    }
}

/// Moves the pod from the first node to the second, and waits until the driver has failed to detach the
/// volume. Then an operator confirms that the volume is detached.
fn confirmed_move() -> [UserAction; 5] {
    let reason = json!({"cofferdam.dev/confirm-detached": "the machine is unplugged"});
    [
        second_pod(),
        Until(Event("q Warning FailedAttachVolume")),
        Delete(POD_FORCE_DELETE),
        Until(CallsCompleted(2)),
        Patch(ATTACHMENT, json!({"metadata": {"annotations": reason}})),
    ]
}

/// Makes the first node NotReady, and adds the out-of-service taint more than six minutes later.
fn node_out_of_service() -> [UserAction; 3] {
    [node_not_ready(), Wait(Duration::from_secs(400)), out_of_service_taint()]
}

/// A VolumeAttachment for the given PersistentVolume, with the name that the attach-detach controller uses
/// for `v` on the first node.
fn volume_attachment_of(volume: &str, finalizers: &[&str]) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": ATTACHMENT.rsplit('/').next(), "finalizers": finalizers},
        "spec": {
            "attacher": "sim.cofferdam.dev", "nodeName": "node-1", "source": {"persistentVolumeName": volume},
        },
    })
}

/// Creates a VolumeAttachment of an inline volume, with the name that the attach-detach controller uses for
/// `v` on the first node.
fn inline_attachment(attacher: &str) -> UserAction {
    Create(with(
        volume_attachment_of("v", &[]),
        &json!({"spec": {"attacher": attacher, "source": {
            "persistentVolumeName": null,
            "inlineVolumeSpec": {
                "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": attacher, "volumeHandle": "static-v"},
            },
        }}}),
    ))
}

/// A fault of one API write.
fn write_fault(method: &'static str, path: &'static str, kind: FaultKind) -> Vec<ApiFault> {
    vec![ApiFault { method, path_prefix: path, body_contains: "", kind }]
}

/// A fault of the status update of the first node.
fn node_status_fault(kind: FaultKind) -> Vec<ApiFault> {
    write_fault("PATCH", "/api/v1/nodes/node-1/status", kind)
}

fn attach_fault(kind: FaultKind) -> Vec<ApiFault> {
    write_fault("POST", VOLUME_ATTACHMENTS_PATH, kind)
}

/// Creates the pod `p`, and performs further actions as soon as its volume is attached and the update of the
/// Node's status had its fault.
fn short_lived_pod(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    let attached = [Until(Event("p Normal SuccessfulAttachVolume")), Until(FaultsApplied(1))];
    after_setup([Create(pod("p", "a"))].into_iter().chain(attached).chain(actions))
}

/// Creates a pod on the first node, deletes it after the fault of the request that attaches its volume, and
/// creates a pod on the second node.
fn pod_moved_at_once() -> Vec<UserAction> {
    let failed = Until(FaultsApplied(1));
    after_setup([Create(pod("p", "a")), failed, Delete(POD_FORCE_DELETE), second_pod()])
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = volumes_in_use();
    all.extend(failed_writes());
    all.extend(undetachable());
    all
}

/// Scenarios of a driver that cannot detach a volume from the first node.
fn undetachable() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "driver cannot detach, operator confirms for an out-of-service node: \
                  the volume is attached to the second node",
            actions: pod_running([out_of_service_taint()].into_iter().chain(confirmed_move())),
            publishing: never_unpublishes(),
            events: &[
                DETACH_CONFIRMED,
                "p Normal SuccessfulAttachVolume",
                "q Normal SuccessfulAttachVolume",
                "q Warning FailedAttachVolume",
                "v Warning DetachConfirmed",
            ],
            calls: &[
                "publish static-v id-1",
                "unpublish static-v id-1",
                "unpublish static-v id-1",
                "publish static-v id-2",
            ],
            repeats_calls: true,
            ..moved()
        },
        Scenario {
            name: "driver cannot detach, operator confirms for a deleted Node: \
                  the volume is attached to the second node",
            actions: pod_running([Delete(NODE)].into_iter().chain(confirmed_move())),
            publishing: never_unpublishes(),
            events: &[
                DETACH_CONFIRMED,
                "p Normal SuccessfulAttachVolume",
                "q Normal SuccessfulAttachVolume",
                "q Warning FailedAttachVolume",
                "v Warning DetachConfirmed",
            ],
            calls: &[
                "publish static-v id-1",
                "unpublish static-v id-1",
                "unpublish static-v id-1",
                "publish static-v id-2",
            ],
            repeats_calls: true,
            // Of a deleted Node, a new process does not know whether the volume is in use: after a crash, the
            // volume is detached by force.
            elapses_timeouts: true,
            ..moved()
        },
        Scenario {
            name: "driver cannot detach, operator confirms for a node in service: \
                  the confirmation has no effect, and the detach is retried",
            actions: pod_running(
                confirmed_move().into_iter().chain([Until(Event(DETACH_NOT_CONFIRMED)), Repair]),
            ),
            publishing: PublishingBehavior {
                unpublish_faults: vec![DriverFault::Refuse(ErrorKind::Internal); 100],
                ..PublishingBehavior::default()
            },
            events: &[
                DETACH_NOT_CONFIRMED,
                "p Normal SuccessfulAttachVolume",
                "q Normal SuccessfulAttachVolume",
                "q Warning FailedAttachVolume",
            ],
            calls: &[
                "publish static-v id-1",
                "unpublish static-v id-1",
                "unpublish static-v id-1",
                "unpublish static-v id-1",
                "publish static-v id-2",
            ],
            repeats_calls: true,
            ..moved()
        },
        Scenario {
            name: "driver cannot detach, but ListVolumes shows that it has: \
                  the volume is attached to the second node",
            actions: pod_running([
                second_pod(),
                Until(Event("q Warning FailedAttachVolume")),
                Delete(POD_FORCE_DELETE),
            ]),
            publishing: never_unpublishes(),
            lists_published_nodes: true,
            events: &[
                DETACH_OBSERVED,
                "p Normal SuccessfulAttachVolume",
                "q Normal SuccessfulAttachVolume",
                "q Warning FailedAttachVolume",
                "v Warning DetachObserved",
            ],
            calls: &[
                "publish static-v id-1",
                "unpublish static-v id-1",
                "unpublish static-v id-1",
                "unpublish static-v id-1",
                "unpublish static-v id-1",
                "unpublish static-v id-1",
                "unpublish static-v id-1",
                "unpublish static-v id-1",
                "unpublish static-v id-1",
                "publish static-v id-2",
            ],
            repeats_calls: true,
            ..moved()
        },
    ]
}

/// Scenarios with volumes in `volumesInUse`, and with VolumeAttachments of a deleted PersistentVolume.
fn volumes_in_use() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "Node deleted while the volume is in use: \
                  it is not detached before the force-detach timeout",
            actions: pod_running([
                set_volumes_in_use(true),
                Delete(NODE),
                Delete(POD_FORCE_DELETE),
                Wait(Duration::from_secs(359)),
                // Watches of different kinds are not ordered: the Node, which does not report the volume in
                // use, might be seen before the pod.
                Create(pod("p", "a")),
                Settle,
                Create(ready_node("node-1")),
            ]),
            ..attached()
        },
        Scenario {
            name: "Node and pod deleted while the volume is in use: \
                  it is detached after the force-detach timeout",
            actions: pod_running([set_volumes_in_use(true), Delete(NODE), Delete(POD_FORCE_DELETE)]),
            elapses_timeouts: true,
            ..detached()
        },
        Scenario {
            name: "pod on an out-of-service node: its volume stays attached",
            actions: pod_running([set_volumes_in_use(true)].into_iter().chain(node_out_of_service())),
            elapses_timeouts: true,
            ..attached()
        },
        Scenario {
            name: "pod of a deleted claim on an out-of-service node: its volume stays attached",
            actions: pod_running(
                [
                    set_volumes_in_use(true),
                    Delete(CLAIM),
                    Patch(CLAIM, json!({"metadata": {"finalizers": null}})),
                ]
                .into_iter()
                .chain(node_out_of_service()),
            ),
            claims: &[],
            volumes: &["v Released a"],
            events: FAILED_FIRST,
            elapses_timeouts: true,
            ..attached()
        },
        Scenario {
            name: "pod with an in-tree volume on an out-of-service node: the VolumeAttachment stays",
            actions: setup(with(
                volume("v", "none", "1Gi"),
                &json!({"spec": {
                    "csi": null, "iscsi": {
                        "targetPortal": "10.0.0.1:3260", "iqn": "iqn.2026-01.dev.cofferdam:a", "lun": 0,
                    },
                }}),
            ))
            .into_iter()
            .chain([
                Create(volume_attachment_of("v", &[])),
                Create(pod("p", "a")),
                set_volumes_in_use(true),
                Settle,
            ])
            .chain(node_out_of_service())
            .collect(),
            attachments: &["v on node-1 detached attachError"],
            events: &["p Warning FailedAttachVolume"],
            elapses_timeouts: true,
            unsettled: FAILED_ATTACH,
            ..base()
        },
        Scenario {
            name: "pod whose VolumeAttachment names a deleted PersistentVolume: the VolumeAttachment stays",
            actions: after_setup(
                [
                    set_volumes_in_use(true),
                    Create(volume_attachment_of("former", &[])),
                    Patch(ATTACHMENT_STATUS, json!({"status": {"attached": true}})),
                    Create(pod("p", "a")),
                    Settle,
                ]
                .into_iter()
                .chain(node_out_of_service()),
            ),
            attachments: &["former on node-1 attached"],
            skipped_on: STATUS_SET_LATE,
            ..base()
        },
        Scenario {
            name: "VolumeAttachment of a deleted PersistentVolume: \
                  the volume is not attached elsewhere until it is removed",
            actions: after_setup([
                Create(volume_attachment_of("former", &["example.com/x"])),
                // Watches of different kinds are not ordered: the pod might be seen first.
                Settle,
                second_pod(),
                Settle,
                Patch(ATTACHMENT, json!({"metadata": {"finalizers": null}})),
            ]),
            events: &["q Normal SuccessfulAttachVolume", "q Warning FailedAttachVolume"],
            calls: &["publish static-v id-2"],
            ..moved()
        },
    ]
}

/// Scenarios with failed API writes.
fn failed_writes() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "node status update lost, pod deleted before the retry: the volume is detached",
            actions: short_lived_pod([Delete(POD_FORCE_DELETE)]),
            api_faults: node_status_fault(LostRequest),
            elapses_timeouts: true,
            ..detached()
        },
        Scenario {
            name: "node status update response lost, pod deleted: the volume is detached",
            actions: short_lived_pod([Delete(POD_FORCE_DELETE)]),
            api_faults: node_status_fault(LostResponse),
            elapses_timeouts: true,
            ..detached()
        },
        Scenario {
            name: "node status update applied after the pod was deleted: the volume is detached",
            actions: short_lived_pod([Delete(POD_FORCE_DELETE)]),
            api_faults: node_status_fault(Delayed(Duration::from_secs(20))),
            skipped_on: LATE_REQUEST,
            ..detached()
        },
        Scenario {
            name: "node status update lost, Node and pod deleted: the volume is detached",
            actions: short_lived_pod([Delete(NODE), Delete(POD_FORCE_DELETE)]),
            api_faults: node_status_fault(LostRequest),
            elapses_timeouts: true,
            ..detached()
        },
        Scenario {
            name: "VolumeAttachment create request lost: it is retried",
            actions: after_setup([Create(pod("p", "a"))]),
            api_faults: attach_fault(LostRequest),
            ..attached()
        },
        Scenario {
            name: "VolumeAttachment create response lost: the volume is attached once",
            actions: after_setup([Create(pod("p", "a"))]),
            api_faults: attach_fault(LostResponse),
            ..attached()
        },
        Scenario {
            name: "VolumeAttachment created after the pod moved: \
                  it is detached, then attached to the new node",
            actions: pod_moved_at_once(),
            api_faults: attach_fault(Delayed(Duration::from_secs(40))),
            events: &["q Normal SuccessfulAttachVolume", "q Warning FailedAttachVolume"],
            skipped_on: LATE_REQUEST,
            ..moved()
        },
        Scenario {
            name: "pod moved before its VolumeAttachment was created: only the new node is attached",
            actions: pod_moved_at_once(),
            api_faults: vec![ApiFault {
                method: "POST",
                path_prefix: VOLUME_ATTACHMENTS_PATH,
                body_contains: "node-1",
                kind: LostRequestAlways,
            }],
            events: &["q Normal SuccessfulAttachVolume"],
            calls: &["publish static-v id-2"],
            elapses_timeouts: true,
            ..moved()
        },
        Scenario {
            name: "VolumeAttachment name taken by an inline volume: FailedAttachVolume is emitted on the pod",
            actions: after_setup([inline_attachment("sim.cofferdam.dev"), Settle, Create(pod("p", "a"))]),
            attachments: &[" on node-1 detached attachError"],
            events: &["p Warning FailedAttachVolume"],
            unsettled: FAILED_ATTACH,
            ..base()
        },
        Scenario {
            name: "VolumeAttachment name taken for another attacher: \
                  FailedAttachVolume is emitted on the pod",
            actions: after_setup([inline_attachment("other.example.com"), Settle, Create(pod("p", "a"))]),
            attachments: &[" on node-1 detached"],
            events: &["p Warning FailedAttachVolume"],
            ..base()
        },
        Scenario {
            name: "VolumeAttachment name taken for another attacher, then deleted: the volume is attached",
            actions: after_setup([
                inline_attachment("other.example.com"),
                Settle,
                Create(pod("p", "a")),
                Until(Event("p Warning FailedAttachVolume")),
                Delete(ATTACHMENT),
            ]),
            events: FAILED_FIRST,
            ..attached()
        },
        Scenario {
            name: "ReadWriteMany volume, create forbidden for one node: \
                  the other node is attached without delay",
            actions: setup(shared_volume())
                .into_iter()
                .chain([Create(pod("p", "a")), second_pod()])
                .collect(),
            api_faults: vec![
                ApiFault {
                    method: "POST",
                    path_prefix: VOLUME_ATTACHMENTS_PATH,
                    body_contains: "node-1",
                    kind: Forbidden
                };
                4
            ],
            attachments: &["v on node-1 attached directory", "v on node-2 attached directory"],
            volumes_attached: &["static-v on node-1", "static-v on node-2"],
            published: &["static-v id-1", "static-v id-2"],
            events: &[
                "p Normal SuccessfulAttachVolume",
                "p Warning FailedAttachVolume",
                "q Normal SuccessfulAttachVolume",
            ],
            calls: &["publish static-v id-2", "publish static-v id-1"],
            ..base()
        },
        Scenario {
            name: "VolumeAttachment delete response lost: the volume is detached once",
            actions: pod_running([Delete(POD_FORCE_DELETE)]),
            api_faults: write_fault("DELETE", VOLUME_ATTACHMENTS_PATH, LostResponse),
            ..detached()
        },
        Scenario {
            name: "VolumeAttachment delete request lost, pod recreated: \
                  the volume is detached and attached again",
            actions: pod_running([Delete(POD_FORCE_DELETE), Until(FaultsApplied(1)), Create(pod("p", "a"))]),
            api_faults: write_fault("DELETE", VOLUME_ATTACHMENTS_PATH, LostRequest),
            calls: &["publish static-v id-1", "unpublish static-v id-1", "publish static-v id-1"],
            elapses_timeouts: true,
            ..attached()
        },
    ]
}
