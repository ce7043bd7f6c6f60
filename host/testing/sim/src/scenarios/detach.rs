//! What keeps a volume on its node, and writes of attaching and detaching that go wrong.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    CLAIM, Scenario,
    attach_detach::{
        ATTACHMENT, ATTACHMENT_STATUS, FAILED_FIRST, NODE, POD_FORCE_DELETE, SIX_MINUTES, after_setup,
        attached, base, detached, moved, node_not_ready, pod_running, second_pod, set_volumes_in_use, setup,
        shared_volume,
    },
};
use crate::{
    ApiFault, EnvironmentKind,
    FaultKind::{self, Delayed, Forbidden, LostRequest, LostResponse},
    UserAction::{self, Create, Delete, Patch, Settle, Until, Wait},
    WaitFor::CallsCompleted,
    objects::{pod, ready_node, volume, with},
};

const VOLUME_ATTACHMENTS_PATH: &str = "/apis/storage.k8s.io/v1/volumeattachments";

const ATTACH_RACE: &[(EnvironmentKind, &str)] = &[
    (EnvironmentKind::Http, "on real time the pod may be gone before its volume is attached"),
    (EnvironmentKind::Kubernetes, "on real time the pod may be gone before its volume is attached"),
];

const MINUTE_OF_REAL_TIME: &[(EnvironmentKind, &str)] = &[
    (EnvironmentKind::Http, "a minute of real time"),
    (EnvironmentKind::Kubernetes, "a minute of real time"),
];

/// Six minutes without a word from the node, and then somebody says that it is down for good.
fn node_out_of_service() -> [UserAction; 3] {
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
    [node_not_ready(), Wait(Duration::from_secs(400)), Patch(NODE, json!({"spec": {"taints": [taint]}}))]
}

/// An attachment of the name that pods of the volume on the first node get, by way of this object.
fn volume_attachment_of(volume: &str, finalizers: &[&str]) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": ATTACHMENT.rsplit('/').next(), "finalizers": finalizers},
        "spec": {"attacher": "sim.cofferdam.dev", "nodeName": "node-1", "source": {"persistentVolumeName": volume}},
    })
}

/// A write that goes wrong.
fn write_fault(method: &'static str, path: &'static str, kind: FaultKind) -> Vec<ApiFault> {
    vec![ApiFault { method, path_prefix: path, body_contains: "", kind }]
}

/// What the first node is told goes wrong.
fn node_status_fault(kind: FaultKind) -> Vec<ApiFault> {
    write_fault("PATCH", "/api/v1/nodes/node-1/status", kind)
}

fn attach_fault(kind: FaultKind) -> Vec<ApiFault> {
    write_fault("POST", VOLUME_ATTACHMENTS_PATH, kind)
}

/// A pod that goes as soon as its volume is attached.
fn short_lived_pod(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    after_setup([Create(pod("p", "a")), Until(CallsCompleted(1))].into_iter().chain(actions))
}

/// A pod that goes before anybody has tried again, and one on the second node.
fn pod_moved_at_once() -> Vec<UserAction> {
    let short_wait = Wait(Duration::from_millis(100));
    after_setup([Create(pod("p", "a")), short_wait, Delete(POD_FORCE_DELETE), second_pod()])
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = volumes_in_use();
    all.extend(failed_writes());
    all
}

/// What keeps a volume.
fn volumes_in_use() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "a node is deleted while it uses the volume: nothing leaves before the time is over",
            actions: pod_running([
                set_volumes_in_use(true),
                Delete(NODE),
                Delete(POD_FORCE_DELETE),
                Wait(Duration::from_secs(359)),
                Create(ready_node("node-1")),
                Create(pod("p", "a")),
            ]),
            skipped_on: SIX_MINUTES,
            ..attached()
        },
        Scenario {
            name: "and then it does",
            actions: pod_running([set_volumes_in_use(true), Delete(NODE), Delete(POD_FORCE_DELETE)]),
            skipped_on: SIX_MINUTES,
            ..detached()
        },
        Scenario {
            name: "a pod keeps its volume whatever becomes of its node",
            actions: pod_running([set_volumes_in_use(true)].into_iter().chain(node_out_of_service())),
            skipped_on: SIX_MINUTES,
            ..attached()
        },
        Scenario {
            name: "and whatever becomes of its claim",
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
            skipped_on: SIX_MINUTES,
            ..attached()
        },
        Scenario {
            name: "and what a driver took over from an in-tree plugin",
            actions: setup(with(
                volume("v", "none", "1Gi"),
                &json!({"spec": {
                    "csi": null, "iscsi": {"targetPortal": "10.0.0.1:3260", "iqn": "iqn.2026-01.dev.cofferdam:a", "lun": 0},
                }}),
            ))
            .into_iter()
            .chain([Create(volume_attachment_of("v", &[])), Create(pod("p", "a")), set_volumes_in_use(true), Settle])
            .chain(node_out_of_service())
            .collect(),
            attachments: &["v on node-1 detached attachError"],
            events: &["p Warning FailedAttachVolume"],
            skipped_on: SIX_MINUTES,
            ..base()
        },
        Scenario {
            name: "and what was attached by way of an object that is no more",
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
            skipped_on: SIX_MINUTES,
            ..base()
        },
        Scenario {
            name: "what is left of another object holds the volume until it is gone",
            actions: after_setup([
                Create(volume_attachment_of("former", &["example.com/x"])),
                // Watches of two kinds have no order: the pod might be seen first.
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

/// Writes that go wrong.
fn failed_writes() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "a node is not told of a volume, and the pod goes before it is tried again",
            actions: short_lived_pod([Delete(POD_FORCE_DELETE)]),
            api_faults: node_status_fault(LostRequest),
            skipped_on: MINUTE_OF_REAL_TIME,
            ..detached()
        },
        Scenario {
            name: "a node may have been told of a volume, and the pod goes",
            actions: short_lived_pod([Delete(POD_FORCE_DELETE)]),
            api_faults: node_status_fault(LostResponse),
            skipped_on: ATTACH_RACE,
            ..detached()
        },
        Scenario {
            name: "a node is told of a volume when the pod has gone already",
            actions: short_lived_pod([Delete(POD_FORCE_DELETE)]),
            api_faults: node_status_fault(Delayed(Duration::from_secs(20))),
            skipped_on: MINUTE_OF_REAL_TIME,
            ..detached()
        },
        Scenario {
            name: "a node is not told of a volume, and goes",
            actions: short_lived_pod([Delete(NODE), Delete(POD_FORCE_DELETE)]),
            api_faults: node_status_fault(LostRequest),
            skipped_on: MINUTE_OF_REAL_TIME,
            ..detached()
        },
        Scenario {
            name: "an attachment is not made, and is tried again",
            actions: after_setup([Create(pod("p", "a"))]),
            api_faults: attach_fault(LostRequest),
            ..attached()
        },
        Scenario {
            name: "an attachment is made, and nobody hears of it",
            actions: after_setup([Create(pod("p", "a"))]),
            api_faults: attach_fault(LostResponse),
            ..attached()
        },
        Scenario {
            name: "an attachment is made when the pod has moved on",
            actions: pod_moved_at_once(),
            api_faults: attach_fault(Delayed(Duration::from_secs(40))),
            events: &["q Normal SuccessfulAttachVolume", "q Warning FailedAttachVolume"],
            skipped_on: MINUTE_OF_REAL_TIME,
            ..moved()
        },
        Scenario {
            name: "an attachment is never made, and the pod has moved on",
            actions: pod_moved_at_once(),
            api_faults: attach_fault(LostRequest),
            events: &["q Normal SuccessfulAttachVolume"],
            calls: &["publish static-v id-2"],
            skipped_on: MINUTE_OF_REAL_TIME,
            ..moved()
        },
        Scenario {
            name: "an attachment of that name that is for something else: the pod is told",
            actions: after_setup([
                Create(with(
                    volume_attachment_of("v", &[]),
                    &json!({"spec": {"source": {
                        "persistentVolumeName": null,
                        "inlineVolumeSpec": {
                            "accessModes": ["ReadWriteOnce"],
                            "csi": {"driver": "sim.cofferdam.dev", "volumeHandle": "static-v"},
                        },
                    }}}),
                )),
                Settle,
                Create(pod("p", "a")),
            ]),
            attachments: &[" on node-1 detached attachError"],
            events: &["p Warning FailedAttachVolume"],
            ..base()
        },
        Scenario {
            name: "a volume for many nodes: one that is refused keeps no other waiting",
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
            name: "a detachment is asked for, and nobody hears of it",
            actions: pod_running([Delete(POD_FORCE_DELETE)]),
            api_faults: write_fault("DELETE", VOLUME_ATTACHMENTS_PATH, LostResponse),
            ..detached()
        },
        Scenario {
            name: "a detachment is lost, and the pod comes back",
            actions: pod_running([
                Delete(POD_FORCE_DELETE),
                Wait(Duration::from_millis(100)),
                Create(pod("p", "a")),
            ]),
            api_faults: write_fault("DELETE", VOLUME_ATTACHMENTS_PATH, LostRequest),
            calls: &["publish static-v id-1", "unpublish static-v id-1", "publish static-v id-1"],
            skipped_on: MINUTE_OF_REAL_TIME,
            ..attached()
        },
    ]
}
