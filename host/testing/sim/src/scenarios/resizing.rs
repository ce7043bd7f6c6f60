//! Growing and modifying.

use std::time::Duration;

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use super::{BOUND, CLAIM, CLASS, SUCCEEDED, Scenario, VOLUME};
use crate::{
    Fault, Resizing,
    Sign::{Called, Event, Gone},
    UserAction::{self, Create, Delete, Patch, Settle, Until, Wait},
    objects::{attributes_class, claim, class, pod, volume, with},
};

const STATUS: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a/status";
const POD: &str = "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0";

const GROWN: &[&str] = &["a 2Gi/2Gi allocated=2Gi no-node"];
const GREW: &[&str] =
    &["a Normal ProvisioningSucceeded", "a Normal Resizing", "a Normal VolumeResizeSuccessful"];
const FAILED_THEN_GREW: &[&str] = &[
    "a Normal ProvisioningSucceeded",
    "a Normal Resizing",
    "a Normal VolumeResizeSuccessful",
    "a Warning VolumeResizeFailed",
];
const HANDED: &[&str] =
    &["a 1Gi/2Gi allocated=2Gi NodeResizePending FileSystemResizePending Resizing was=1Gi"];
const HANDED_OVER: &[&str] =
    &["a Normal FileSystemResizeRequired", "a Normal ProvisioningSucceeded", "a Normal Resizing"];
const FAST: &str = "/apis/storage.k8s.io/v1/volumeattributesclasses/fast";
const MODIFIED: &[&str] = &["a 1Gi/1Gi class=fast/fast"];
const CHANGED: &[&str] =
    &["a Normal ProvisioningSucceeded", "a Normal VolumeModify", "a Normal VolumeModifySuccessful"];
const FAILED_THEN_CHANGED: &[&str] = &[
    "a Normal ProvisioningSucceeded",
    "a Normal VolumeModify",
    "a Normal VolumeModifySuccessful",
    "a Warning VolumeModifyFailed",
];

fn growing_class(name: &str) -> Value {
    with(class(name), &json!({"allowVolumeExpansion": true}))
}

/// A bound claim of 1 GiB that may grow.
fn ground(more: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    let first = [Create(growing_class("gold")), Create(claim("a", "gold")), Settle];
    first.into_iter().chain(more).collect()
}

fn grow(size: &str) -> UserAction {
    Patch(CLAIM, json!({"spec": {"resources": {"requests": {"storage": size}}}}))
}

fn give(class: &str) -> UserAction {
    Patch(CLAIM, json!({"spec": {"volumeAttributesClassName": class}}))
}

/// The claim, as a user makes it who wants a class at once.
fn with_class(name: &str) -> UserAction {
    Create(with(claim("a", "gold"), &json!({"spec": {"volumeAttributesClassName": name}})))
}

/// What kubelet writes when the node has done its part.
fn node_is_done() -> UserAction {
    Patch(
        STATUS,
        json!({"status": {"capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": null, "conditions": null}}),
    )
}

/// The user does this while the driver is at work, and then it fails.
fn then(action: UserAction, fault: Fault) -> Fault {
    Fault::MeanwhileThen(action, Box::new(fault))
}

fn faults(faults: Vec<Fault>) -> Resizing {
    Resizing { faults, ..Resizing::default() }
}

fn modify_faults(modify_faults: Vec<Fault>) -> Resizing {
    Resizing { modify_faults, ..Resizing::default() }
}

/// The rows.
pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = growing();
    all.extend(failing());
    all.extend(modifying());
    all
}

fn bound() -> Scenario {
    Scenario { claims: BOUND, volumes: VOLUME, array: &["a"], ..Scenario::default() }
}

fn grown() -> Scenario {
    Scenario { resizes: GROWN, events: GREW, calls: &["create a", "expand a 2Gi"], ..bound() }
}

fn growing() -> Vec<Scenario> {
    let on_node = || Resizing { on_node: true, ..Resizing::default() };
    vec![
        Scenario { name: "a claim grows", user: ground([grow("2Gi")]), ..grown() },
        Scenario {
            name: "a claim grows twice",
            user: ground([grow("2Gi"), Settle, grow("3Gi")]),
            resizes: &["a 3Gi/3Gi allocated=3Gi no-node"],
            calls: &["create a", "expand a 2Gi", "expand a 3Gi"],
            ..grown()
        },
        Scenario {
            name: "it grows further while the driver is at it",
            user: ground([grow("2Gi")]),
            resizing: faults(vec![Fault::Meanwhile(grow("3Gi"))]),
            resizes: &["a 3Gi/3Gi allocated=3Gi no-node"],
            calls: &["create a", "expand a 2Gi", "expand a 3Gi"],
            ..grown()
        },
        Scenario {
            name: "the node has a part in it",
            user: ground([grow("2Gi")]),
            resizing: on_node(),
            resizes: HANDED,
            events: HANDED_OVER,
            ..grown()
        },
        Scenario {
            name: "and does it",
            user: ground([grow("2Gi"), Settle, node_is_done()]),
            resizing: on_node(),
            resizes: &["a 2Gi/2Gi allocated=2Gi"],
            events: HANDED_OVER,
            ..grown()
        },
        Scenario {
            name: "the node cannot do it: it is handed back to it",
            user: ground([
                grow("2Gi"),
                Settle,
                Patch(
                    STATUS,
                    json!({"status": {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}}),
                ),
            ]),
            resizing: on_node(),
            resizes: HANDED,
            events: HANDED_OVER,
            calls: &["create a", "expand a 2Gi", "expand a 2Gi"],
            ..grown()
        },
        Scenario {
            name: "it grows once more while the node is at it",
            user: ground([grow("2Gi"), Settle, grow("3Gi"), Settle, node_is_done()]),
            resizing: on_node(),
            resizes: &["a 2Gi/3Gi allocated=3Gi NodeResizePending FileSystemResizePending Resizing was=2Gi"],
            events: HANDED_OVER,
            calls: &["create a", "expand a 2Gi", "expand a 3Gi"],
            ..grown()
        },
        Scenario {
            name: "the claim is deleted while the driver grows it",
            user: ground([grow("2Gi")]),
            resizing: faults(vec![Fault::Meanwhile(Delete(CLAIM))]),
            events: &["a Normal ProvisioningSucceeded", "a Normal Resizing"],
            calls: &["create gone", "expand gone 2Gi", "delete gone"],
            ..Scenario::default()
        },
        Scenario {
            name: "the class vanishes while the answer is out",
            user: ground([grow("2Gi"), Until(Called(2)), Delete(CLASS)]),
            resizing: faults(vec![Fault::LostAnswer]),
            events: FAILED_THEN_GREW,
            calls: &["create a", "expand a 2Gi", "expand a 2Gi"],
            ..grown()
        },
        Scenario {
            name: "a claim that shrinks, or whose class does not let it grow, is refused by the API",
            user: vec![Create(class("gold")), Create(claim("a", "gold")), Settle, grow("2Gi"), grow("512Mi")],
            events: SUCCEEDED,
            calls: &["create a"],
            ..bound()
        },
        Scenario {
            name: "the Secret that a volume names comes late",
            user: vec![
                Create(growing_class("none")),
                Create(with(
                    volume("v", "none", "1Gi"),
                    &json!({"spec": {"csi": {"controllerExpandSecretRef": {"namespace": "default", "name": "s"}}}}),
                )),
                Settle,
                Create(claim("a", "none")),
                Settle,
                grow("2Gi"),
                Until(Event("a Warning VolumeResizeFailed")),
                Create(json!({
                    "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "default", "name": "s"},
                    "data": {"password": "aHVudGVyMg=="},
                })),
                Settle,
                Delete("/api/v1/namespaces/default/secrets/s"),
            ],
            claims: &["a Bound v"],
            volumes: &["v Bound a"],
            array: &[],
            events: &["a Normal Resizing", "a Normal VolumeResizeSuccessful", "a Warning VolumeResizeFailed"],
            calls: &["expand static-v 2Gi with password"],
            ..grown()
        },
    ]
}

#[expect(clippy::too_many_lines, reason = "one table")]
fn failing() -> Vec<Scenario> {
    let refuse = Fault::Refuse;
    let failed = || Scenario { events: FAILED_THEN_GREW, ..grown() };
    let twice = || Scenario { calls: &["create a", "expand a 2Gi", "expand a 2Gi"], ..failed() };
    vec![
        Scenario {
            name: "the answer of expand is lost",
            user: ground([grow("2Gi")]),
            resizing: faults(vec![Fault::LostAnswer]),
            ..twice()
        },
        Scenario {
            name: "the driver fails for good, and then does not",
            user: ground([grow("2Gi")]),
            resizing: faults(vec![refuse(ErrorKind::Internal)]),
            ..twice()
        },
        Scenario {
            name: "a size that is impossible is tried again after a while",
            user: ground([grow("2Gi")]),
            resizing: faults(vec![refuse(ErrorKind::OutOfRange)]),
            ..twice()
        },
        Scenario {
            name: "a size that stays impossible: the claim says so",
            user: ground([grow("2Gi")]),
            resizing: faults(vec![refuse(ErrorKind::OutOfRange); 100]),
            resizes: &["a 1Gi/1Gi allocated=2Gi ControllerResizeInfeasible ControllerResizeError Resizing"],
            events: &["a Normal ProvisioningSucceeded", "a Normal Resizing", "a Warning VolumeResizeFailed"],
            // Once in five minutes of the hour in which everything settles.
            calls: &[
                "create a",
                "expand a 2Gi",
                "expand a 2Gi",
                "expand a 2Gi",
                "expand a 2Gi",
                "expand a 2Gi",
                "expand a 2Gi",
                "expand a 2Gi",
                "expand a 2Gi",
                "expand a 2Gi",
                "expand a 2Gi",
                "expand a 2Gi",
                "expand a 2Gi",
            ],
            not_on: super::PAUSES,
            ..bound()
        },
        Scenario {
            name: "a size that is impossible, and a smaller one that is not",
            user: ground([grow("9Gi")]),
            // Twice, so that a process which takes another's place does not succeed with the former size.
            resizing: faults(vec![
                then(grow("2Gi"), refuse(ErrorKind::OutOfRange)),
                refuse(ErrorKind::OutOfRange),
            ]),
            calls: &["create a", "expand a 9Gi", "expand a 2Gi", "expand a 2Gi"],
            ..failed()
        },
        Scenario {
            name: "nobody knows whether it has grown: what was asked for comes first, also for who wants less",
            user: ground([grow("9Gi")]),
            resizing: faults(vec![then(grow("2Gi"), Fault::LostRequest)]),
            resizes: &["a 9Gi/9Gi allocated=9Gi no-node"],
            calls: &["create a", "expand a 9Gi", "expand a 9Gi"],
            ..failed()
        },
        Scenario {
            name: "a driver that grows no volume in use waits for the pod",
            user: ground([
                Create(pod("p", "a")),
                Settle,
                grow("2Gi"),
                Until(Event("a Warning VolumeResizeFailed")),
                Wait(Duration::from_secs(5)),
                Delete(POD),
            ]),
            resizing: faults(vec![refuse(ErrorKind::FailedPrecondition)]),
            ..twice()
        },
        Scenario {
            name: "and is asked again though another pod has come, when nobody knows how that has ended",
            user: ground([
                Create(pod("p", "a")),
                Settle,
                grow("2Gi"),
                Until(Event("a Warning VolumeResizeFailed")),
                Delete(POD),
            ]),
            resizing: faults(vec![
                refuse(ErrorKind::FailedPrecondition),
                then(Create(pod("q", "a")), Fault::LostRequest),
            ]),
            calls: &["create a", "expand a 2Gi", "expand a 2Gi", "expand a 2Gi"],
            ..failed()
        },
        Scenario {
            name: "a driver that answers with a smaller size",
            user: ground([grow("2Gi")]),
            resizing: faults(vec![Fault::Size(1 << 20)]),
            ..twice()
        },
        Scenario {
            name: "a driver that answers with a larger size",
            user: ground([grow("2Gi")]),
            resizing: faults(vec![Fault::Size(4 << 30)]),
            resizes: &["a 4Gi/4Gi allocated=2Gi no-node"],
            ..grown()
        },
        Scenario {
            name: "a driver whose volumes do not grow: the claim is told",
            user: ground([grow("2Gi")]),
            resizing: Resizing { none: true, ..Resizing::default() },
            resizes: &[],
            events: &["a Normal ProvisioningSucceeded", "a Warning VolumeResizeFailed"],
            calls: &["create a"],
            ..bound()
        },
        Scenario {
            name: "a size that nobody can express, and then one that can be",
            user: ground([grow("10E"), Until(Event("a Warning VolumeResizeFailed")), grow("2Gi")]),
            ..failed()
        },
    ]
}

#[expect(clippy::too_many_lines, reason = "one table")]
fn modifying() -> Vec<Scenario> {
    let refuse = Fault::Refuse;
    let modified = || Scenario {
        resizes: MODIFIED,
        events: CHANGED,
        calls: &["create a", "modify a speed=9"],
        ..bound()
    };
    let failed = || Scenario { events: FAILED_THEN_CHANGED, ..modified() };
    let fast = || Create(attributes_class("fast", "9"));
    let slow = || Create(attributes_class("slow", "1"));
    vec![
        Scenario { name: "a claim gets a class", user: ground([fast(), give("fast")]), ..modified() },
        Scenario {
            name: "and another one",
            user: ground([fast(), slow(), give("slow"), Settle, give("fast")]),
            calls: &["create a", "modify a speed=1", "modify a speed=9"],
            ..modified()
        },
        Scenario {
            name: "a class that somebody has stays until nobody does",
            user: ground([
                fast(),
                slow(),
                give("fast"),
                Settle,
                Delete(FAST),
                give("slow"),
                Until(Gone(FAST)),
                Create(attributes_class("fast", "3")),
                give("fast"),
            ]),
            calls: &["create a", "modify a speed=9", "modify a speed=1", "modify a speed=3"],
            ..modified()
        },
        Scenario {
            name: "a class of attributes that comes late",
            user: ground([give("fast"), Settle, fast()]),
            ..failed()
        },
        Scenario {
            name: "a claim that names a class from the beginning",
            user: vec![fast(), Create(growing_class("gold")), with_class("fast")],
            resizes: &["a 1Gi/1Gi class=fast/fast"],
            events: &["a Normal ProvisioningSucceeded"],
            calls: &["create a with speed=9"],
            ..bound()
        },
        Scenario {
            name: "a claim that names a class which comes late",
            user: vec![Create(growing_class("gold")), with_class("fast"), Settle, fast()],
            resizes: &["a 1Gi/1Gi class=fast/fast"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create a with speed=9"],
            ..bound()
        },
        Scenario {
            name: "a class that never comes: the claim says so",
            user: ground([give("fast")]),
            resizes: &["a 1Gi/1Gi Pending"],
            events: &["a Normal ProvisioningSucceeded", "a Warning VolumeModifyFailed"],
            calls: &["create a"],
            ..bound()
        },
        Scenario {
            name: "a volume that may have a class in part, and one that never comes",
            user: ground([fast(), give("fast")]),
            // Twice, so that a process which takes another's place does not succeed with the former class.
            resizing: modify_faults(vec![
                then(give("gone"), refuse(ErrorKind::Internal)),
                refuse(ErrorKind::Internal),
            ]),
            resizes: &["a 1Gi/1Gi ModifyVolumeError ModifyingVolume target=fast Pending"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Normal VolumeModify",
                "a Warning VolumeModifyFailed",
            ],
            calls: &["create a", "modify a speed=9"],
            ..bound()
        },
        Scenario {
            name: "a class of another driver",
            user: ground([
                Create(with(attributes_class("fast", "9"), &json!({"driverName": "other.example.com"}))),
                give("fast"),
            ]),
            resizes: &["a 1Gi/1Gi Pending"],
            events: &["a Normal ProvisioningSucceeded", "a Warning VolumeModifyFailed"],
            calls: &["create a"],
            ..bound()
        },
        Scenario {
            name: "the answer of modify is lost",
            user: ground([fast(), give("fast")]),
            resizing: modify_faults(vec![Fault::LostAnswer]),
            calls: &["create a", "modify a speed=9", "modify a speed=9"],
            ..failed()
        },
        Scenario {
            name: "parameters that are impossible, and a class with others",
            user: ground([fast(), slow(), give("slow")]),
            resizing: modify_faults(vec![
                then(give("fast"), refuse(ErrorKind::InvalidArgument)),
                refuse(ErrorKind::InvalidArgument),
            ]),
            calls: &["create a", "modify a speed=1", "modify a speed=9", "modify a speed=9"],
            ..failed()
        },
        Scenario {
            name: "parameters that stay impossible: the claim says so",
            user: ground([fast(), give("fast")]),
            resizing: modify_faults(vec![refuse(ErrorKind::InvalidArgument); 100]),
            resizes: &["a 1Gi/1Gi ModifyVolumeError ModifyingVolume target=fast Infeasible"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Normal VolumeModify",
                "a Warning VolumeModifyFailed",
            ],
            calls: &[
                "create a",
                "modify a speed=9",
                "modify a speed=9",
                "modify a speed=9",
                "modify a speed=9",
                "modify a speed=9",
                "modify a speed=9",
                "modify a speed=9",
                "modify a speed=9",
                "modify a speed=9",
                "modify a speed=9",
                "modify a speed=9",
                "modify a speed=9",
            ],
            not_on: super::PAUSES,
            ..bound()
        },
        Scenario {
            name: "nobody knows whether it is modified: what was asked for comes first",
            user: ground([fast(), slow(), give("slow")]),
            resizing: modify_faults(vec![then(give("fast"), Fault::LostRequest)]),
            calls: &["create a", "modify a speed=1", "modify a speed=1", "modify a speed=9"],
            ..failed()
        },
        Scenario {
            name: "a driver whose volumes cannot be modified: the claim is told",
            user: ground([fast(), give("fast")]),
            resizing: Resizing { none: true, ..Resizing::default() },
            resizes: &[],
            events: &["a Normal ProvisioningSucceeded", "a Warning VolumeModifyFailed"],
            calls: &["create a"],
            ..bound()
        },
        Scenario {
            name: "a claim grows and gets a class at once: one call after the other",
            user: ground([
                fast(),
                Patch(
                    CLAIM,
                    json!({"spec": {
                        "volumeAttributesClassName": "fast", "resources": {"requests": {"storage": "2Gi"}},
                    }}),
                ),
            ]),
            resizing: Resizing {
                faults: vec![Fault::Slow(Duration::from_secs(2))],
                modify_faults: vec![Fault::Slow(Duration::from_secs(2))],
                ..Resizing::default()
            },
            resizes: &["a 2Gi/2Gi allocated=2Gi no-node class=fast/fast"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Normal Resizing",
                "a Normal VolumeModify",
                "a Normal VolumeModifySuccessful",
                "a Normal VolumeResizeSuccessful",
            ],
            calls: &["create a", "expand a 2Gi", "modify a speed=9"],
            not_on: super::EITHER_PART,
            ..bound()
        },
    ]
}
