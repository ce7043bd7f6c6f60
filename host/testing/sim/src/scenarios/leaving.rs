//! What keeps a volume on its node, and writes of attaching and detaching that go wrong.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    CLAIM, Scenario,
    moving::{
        ATTACHMENT, ATTACHMENT_STATUS, FAILED_FIRST, NODE, POD_GONE, SIX_MINUTES, after_ground, attached,
        base, detached, ground, moved, running, second, shared, silent, uses,
    },
};
use crate::{
    ApiFault,
    Mishap::{self, Forbidden, Late, LostAnswer, LostRequest},
    Place,
    Sign::Called,
    UserAction::{self, Create, Delete, Patch, Settle, Until, Wait},
    objects::{machine, pod, volume, with},
};

const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";

const SOONER: &[(Place, &str)] = &[
    (Place::Http, "on real time the pod may be gone before its volume is attached"),
    (Place::Kubernetes, "on real time the pod may be gone before its volume is attached"),
];

const MINUTE: &[(Place, &str)] =
    &[(Place::Http, "a minute of real time"), (Place::Kubernetes, "a minute of real time")];

/// Six minutes without a word from the node, and then somebody says that it is down for good.
fn lost() -> [UserAction; 3] {
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
    [silent(), Wait(Duration::from_secs(400)), Patch(NODE, json!({"spec": {"taints": [taint]}}))]
}

/// An attachment of the name that pods of the volume on the first node get, by way of this object.
fn by_way_of(volume: &str, finalizers: &[&str]) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": ATTACHMENT.rsplit('/').next(), "finalizers": finalizers},
        "spec": {"attacher": "sim.cofferdam.dev", "nodeName": "node-1", "source": {"persistentVolumeName": volume}},
    })
}

/// A write that goes wrong.
fn wrong(method: &'static str, path: &'static str, how: Mishap) -> Vec<ApiFault> {
    vec![ApiFault { method, path, saying: "", how }]
}

/// What the first node is told goes wrong.
fn telling(how: Mishap) -> Vec<ApiFault> {
    wrong("PATCH", "/api/v1/nodes/node-1/status", how)
}

fn making(how: Mishap) -> Vec<ApiFault> {
    wrong("POST", ATTACHMENTS, how)
}

/// A pod that goes as soon as its volume is attached.
fn short(more: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    after_ground([Create(pod("p", "a")), Until(Called(1))].into_iter().chain(more))
}

/// A pod that goes before anybody has tried again, and one on the second node.
fn turned() -> Vec<UserAction> {
    let soon = Wait(Duration::from_millis(100));
    after_ground([Create(pod("p", "a")), soon, Delete(POD_GONE), second()])
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = kept();
    all.extend(misheard());
    all
}

/// What keeps a volume.
fn kept() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "a node is deleted while it uses the volume: nothing leaves before the time is over",
            user: running([
                uses(true),
                Delete(NODE),
                Delete(POD_GONE),
                Wait(Duration::from_secs(359)),
                Create(machine("node-1")),
                Create(pod("p", "a")),
            ]),
            not_on: SIX_MINUTES,
            ..attached()
        },
        Scenario {
            name: "and then it does",
            user: running([uses(true), Delete(NODE), Delete(POD_GONE)]),
            not_on: SIX_MINUTES,
            ..detached()
        },
        Scenario {
            name: "a pod keeps its volume whatever becomes of its node",
            user: running([uses(true)].into_iter().chain(lost())),
            not_on: SIX_MINUTES,
            ..attached()
        },
        Scenario {
            name: "and whatever becomes of its claim",
            user: running(
                [
                    uses(true),
                    Delete(CLAIM),
                    Patch(CLAIM, json!({"metadata": {"finalizers": null}})),
                ]
                .into_iter()
                .chain(lost()),
            ),
            claims: &[],
            volumes: &["v Released a"],
            events: FAILED_FIRST,
            not_on: SIX_MINUTES,
            ..attached()
        },
        Scenario {
            name: "and what a driver took over from an in-tree plugin",
            user: ground(with(
                volume("v", "none", "1Gi"),
                &json!({"spec": {
                    "csi": null, "iscsi": {"targetPortal": "10.0.0.1:3260", "iqn": "iqn.2026-01.dev.cofferdam:a", "lun": 0},
                }}),
            ))
            .into_iter()
            .chain([Create(by_way_of("v", &[])), Create(pod("p", "a")), uses(true), Settle])
            .chain(lost())
            .collect(),
            attachments: &["v on node-1 detached attachError"],
            events: &["p Warning FailedAttachVolume"],
            not_on: SIX_MINUTES,
            ..base()
        },
        Scenario {
            name: "and what was attached by way of an object that is no more",
            user: after_ground(
                [
                    uses(true),
                    Create(by_way_of("former", &[])),
                    Patch(ATTACHMENT_STATUS, json!({"status": {"attached": true}})),
                    Create(pod("p", "a")),
                    Settle,
                ]
                .into_iter()
                .chain(lost()),
            ),
            attachments: &["former on node-1 attached"],
            not_on: SIX_MINUTES,
            ..base()
        },
        Scenario {
            name: "what is left of another object holds the volume until it is gone",
            user: after_ground([
                Create(by_way_of("former", &["example.com/x"])),
                // Watches of two kinds have no order: the pod might be seen first.
                Settle,
                second(),
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
fn misheard() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "a node is not told of a volume, and the pod goes before it is tried again",
            user: short([Delete(POD_GONE)]),
            api_faults: telling(LostRequest),
            not_on: MINUTE,
            ..detached()
        },
        Scenario {
            name: "a node may have been told of a volume, and the pod goes",
            user: short([Delete(POD_GONE)]),
            api_faults: telling(LostAnswer),
            not_on: SOONER,
            ..detached()
        },
        Scenario {
            name: "a node is told of a volume when the pod has gone already",
            user: short([Delete(POD_GONE)]),
            api_faults: telling(Late(Duration::from_secs(20))),
            not_on: MINUTE,
            ..detached()
        },
        Scenario {
            name: "a node is not told of a volume, and goes",
            user: short([Delete(NODE), Delete(POD_GONE)]),
            api_faults: telling(LostRequest),
            not_on: MINUTE,
            ..detached()
        },
        Scenario {
            name: "an attachment is not made, and is tried again",
            user: after_ground([Create(pod("p", "a"))]),
            api_faults: making(LostRequest),
            ..attached()
        },
        Scenario {
            name: "an attachment is made, and nobody hears of it",
            user: after_ground([Create(pod("p", "a"))]),
            api_faults: making(LostAnswer),
            ..attached()
        },
        Scenario {
            name: "an attachment is made when the pod has moved on",
            user: turned(),
            api_faults: making(Late(Duration::from_secs(40))),
            events: &["q Normal SuccessfulAttachVolume", "q Warning FailedAttachVolume"],
            not_on: MINUTE,
            ..moved()
        },
        Scenario {
            name: "an attachment is never made, and the pod has moved on",
            user: turned(),
            api_faults: making(LostRequest),
            events: &["q Normal SuccessfulAttachVolume"],
            calls: &["publish static-v id-2"],
            not_on: MINUTE,
            ..moved()
        },
        Scenario {
            name: "an attachment of that name that is for something else: the pod is told",
            user: after_ground([
                Create(with(
                    by_way_of("v", &[]),
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
            user: ground(shared()).into_iter().chain([Create(pod("p", "a")), second()]).collect(),
            api_faults: vec![
                ApiFault { method: "POST", path: ATTACHMENTS, saying: "node-1", how: Forbidden };
                4
            ],
            attachments: &["v on node-1 attached directory", "v on node-2 attached directory"],
            told_nodes: &["static-v on node-1", "static-v on node-2"],
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
            user: running([Delete(POD_GONE)]),
            api_faults: wrong("DELETE", ATTACHMENTS, LostAnswer),
            ..detached()
        },
        Scenario {
            name: "a detachment is lost, and the pod comes back",
            user: running([Delete(POD_GONE), Wait(Duration::from_millis(100)), Create(pod("p", "a"))]),
            api_faults: wrong("DELETE", ATTACHMENTS, LostRequest),
            calls: &["publish static-v id-1", "unpublish static-v id-1", "publish static-v id-1"],
            not_on: MINUTE,
            ..attached()
        },
    ]
}
