//! Scenarios of the resizer: expansion and modification of volumes.

use std::time::Duration;

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use super::{
    attach_detach,
    provisioning::{BOUND, CLASS, SUCCEEDED, VOLUME},
};
use crate::{
    DriverFault, ResizingBehavior,
    UserAction::{self, Create, Delete, Patch, Settle, Until, Wait},
    WaitFor::{CallsCompleted, Deleted, Event},
    WorkKind,
    objects::{CLAIM, attributes_class, claim, class, pod, volume, with},
    scenario::Scenario,
};

const CLAIM_STATUS: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a/status";
const POD: &str = "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0";

const EXPANDED: &[&str] = &["a 2Gi/2Gi allocated=2Gi no-node"];
const EXPAND_SUCCEEDED: &[&str] =
    &["a Normal ProvisioningSucceeded", "a Normal Resizing", "a Normal VolumeResizeSuccessful"];
const FAILED_THEN_EXPANDED: &[&str] = &[
    "a Normal ProvisioningSucceeded",
    "a Normal Resizing",
    "a Normal VolumeResizeSuccessful",
    "a Warning VolumeResizeFailed",
];
const NODE_EXPANSION_PENDING: &[&str] =
    &["a 1Gi/2Gi allocated=2Gi NodeResizePending FileSystemResizePending Resizing was=1Gi"];
const NODE_EXPANSION_EVENTS: &[&str] =
    &["a Normal FileSystemResizeRequired", "a Normal ProvisioningSucceeded", "a Normal Resizing"];
const FAST: &str = "/apis/storage.k8s.io/v1/volumeattributesclasses/fast";
const MODIFIED: &[&str] = &["a 1Gi/1Gi class=fast/fast"];
const MODIFY_SUCCEEDED: &[&str] =
    &["a Normal ProvisioningSucceeded", "a Normal VolumeModify", "a Normal VolumeModifySuccessful"];
const FAILED_THEN_MODIFIED: &[&str] = &[
    "a Normal ProvisioningSucceeded",
    "a Normal VolumeModify",
    "a Normal VolumeModifySuccessful",
    "a Warning VolumeModifyFailed",
];

const INFEASIBLE_SIZE: &[(WorkKind, &str)] = &[
    (WorkKind::Call, "the driver rejects every call, which is repeated each five minutes"),
    (WorkKind::Retry, "each call fails"),
];
const INFEASIBLE_CLASS: &[(WorkKind, &str)] = &[
    (WorkKind::Write, "as in external-resizer, the status is InProgress during each call"),
    (WorkKind::Call, "the driver rejects every call, which is repeated each five minutes"),
    (WorkKind::Retry, "each call fails"),
];

fn expandable_class(name: &str) -> Value {
    with(class(name), &json!({"allowVolumeExpansion": true}))
}

/// Creates the claim `a` of 1 GiB, whose class allows expansion, and waits until it is bound; then performs
/// further actions.
fn bound_claim(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    let setup = [Create(expandable_class("gold")), Create(claim("a", "gold")), Settle];
    setup.into_iter().chain(actions).collect()
}

fn request_size(size: &str) -> UserAction {
    Patch(CLAIM, json!({"spec": {"resources": {"requests": {"storage": size}}}}))
}

fn set_attributes_class(class: &str) -> UserAction {
    Patch(CLAIM, json!({"spec": {"volumeAttributesClassName": class}}))
}

/// A claim that is created with a VolumeAttributesClass.
fn claim_with_attributes_class(name: &str) -> UserAction {
    Create(with(claim("a", "gold"), &json!({"spec": {"volumeAttributesClassName": name}})))
}

/// The status that kubelet writes after node expansion.
fn node_expansion_done() -> UserAction {
    Patch(
        CLAIM_STATUS,
        json!({"status": {
            "capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": null, "conditions": null,
        }}),
    )
}

/// A fault: the user acts during the call, then `fault` applies to the call.
fn concurrent_action_then(action: UserAction, fault: DriverFault) -> DriverFault {
    DriverFault::ConcurrentActionThen(action, Box::new(fault))
}

fn expand_faults(expand_faults: Vec<DriverFault>) -> ResizingBehavior {
    ResizingBehavior { expand_faults, ..ResizingBehavior::default() }
}

fn modify_faults(modify_faults: Vec<DriverFault>) -> ResizingBehavior {
    ResizingBehavior { modify_faults, ..ResizingBehavior::default() }
}

/// The scenarios of this module.
pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = expansion();
    all.extend(expansion_failures());
    all.extend(changes_in_doubt());
    all.extend(modification());
    all
}

fn bound_scenario() -> Scenario {
    Scenario { claims: BOUND, volumes: VOLUME, array_owners: &["a"], ..Scenario::default() }
}

fn expanded_scenario() -> Scenario {
    Scenario {
        resizes: EXPANDED,
        events: EXPAND_SUCCEEDED,
        calls: &["create a", "expand a 2Gi"],
        ..bound_scenario()
    }
}

fn expansion() -> Vec<Scenario> {
    let on_node = || ResizingBehavior { node_expansion_required: true, ..ResizingBehavior::default() };
    vec![
        Scenario {
            name: "claim expanded: the volume is expanded",
            actions: bound_claim([request_size("2Gi")]),
            ..expanded_scenario()
        },
        Scenario {
            name: "claim expanded twice: the volume is expanded twice",
            actions: bound_claim([request_size("2Gi"), Settle, request_size("3Gi")]),
            resizes: &["a 3Gi/3Gi allocated=3Gi no-node"],
            calls: &["create a", "expand a 2Gi", "expand a 3Gi"],
            ..expanded_scenario()
        },
        Scenario {
            name: "claim expanded again during ControllerExpandVolume: the second size follows the first",
            actions: bound_claim([request_size("2Gi")]),
            resizing: expand_faults(vec![DriverFault::ConcurrentAction(request_size("3Gi"))]),
            resizes: &["a 3Gi/3Gi allocated=3Gi no-node"],
            calls: &["create a", "expand a 2Gi", "expand a 3Gi"],
            ..expanded_scenario()
        },
        Scenario {
            name: "node expansion required: FileSystemResizePending is set",
            actions: bound_claim([request_size("2Gi")]),
            resizing: on_node(),
            resizes: NODE_EXPANSION_PENDING,
            events: NODE_EXPANSION_EVENTS,
            ..expanded_scenario()
        },
        Scenario {
            name: "node expansion done: the resize conditions are removed",
            actions: bound_claim([request_size("2Gi"), Settle, node_expansion_done()]),
            resizing: on_node(),
            resizes: &["a 2Gi/2Gi allocated=2Gi"],
            events: NODE_EXPANSION_EVENTS,
            ..expanded_scenario()
        },
        Scenario {
            name: "NodeResizeInfeasible: ControllerExpandVolume is repeated and NodeResizePending is set",
            actions: bound_claim([
                request_size("2Gi"),
                Settle,
                Patch(
                    CLAIM_STATUS,
                    json!({"status": {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}}),
                ),
            ]),
            resizing: on_node(),
            resizes: NODE_EXPANSION_PENDING,
            events: NODE_EXPANSION_EVENTS,
            calls: &["create a", "expand a 2Gi", "expand a 2Gi"],
            ..expanded_scenario()
        },
        Scenario {
            name: "claim expanded again while node expansion is pending: \
                  the second size is pending after the first",
            actions: bound_claim([
                request_size("2Gi"),
                Settle,
                request_size("3Gi"),
                Settle,
                node_expansion_done(),
            ]),
            resizing: on_node(),
            resizes: &["a 2Gi/3Gi allocated=3Gi NodeResizePending FileSystemResizePending Resizing was=2Gi"],
            events: NODE_EXPANSION_EVENTS,
            calls: &["create a", "expand a 2Gi", "expand a 3Gi"],
            ..expanded_scenario()
        },
        Scenario {
            name: "claim deleted during ControllerExpandVolume: the volume is deleted",
            actions: bound_claim([request_size("2Gi")]),
            resizing: expand_faults(vec![DriverFault::ConcurrentAction(Delete(CLAIM))]),
            // The deletion waits for the end of the expansion.
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Normal Resizing",
                "volume Warning VolumeFailedDelete",
            ],
            calls: &["create gone", "expand gone 2Gi", "delete gone"],
            ..Scenario::default()
        },
        Scenario {
            name: "StorageClass deleted while the expand result is unknown: the call is repeated",
            actions: bound_claim([request_size("2Gi"), Until(CallsCompleted(2)), Delete(CLASS)]),
            resizing: expand_faults(vec![DriverFault::LostResponse]),
            events: FAILED_THEN_EXPANDED,
            calls: &["create a", "expand a 2Gi", "expand a 2Gi"],
            ..expanded_scenario()
        },
        Scenario {
            name: "claim shrunk, or its class without allowVolumeExpansion: \
                  the API server rejects the update",
            actions: vec![
                Create(class("gold")),
                Create(claim("a", "gold")),
                Settle,
                request_size("2Gi"),
                request_size("512Mi"),
            ],
            events: SUCCEEDED,
            calls: &["create a"],
            ..bound_scenario()
        },
        Scenario {
            name: "expand Secret created late: the expansion waits for it",
            actions: vec![
                Create(expandable_class("none")),
                Create(with(
                    volume("v", "none", "1Gi"),
                    &json!({"spec": {"csi": {
                        "controllerExpandSecretRef": {"namespace": "default", "name": "s"},
                    }}}),
                )),
                Settle,
                Create(claim("a", "none")),
                Settle,
                request_size("2Gi"),
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
            array_owners: &[],
            events: &["a Normal Resizing", "a Normal VolumeResizeSuccessful", "a Warning VolumeResizeFailed"],
            calls: &["expand static-v 2Gi with password=hunter2"],
            ..expanded_scenario()
        },
    ]
}

#[expect(clippy::too_many_lines, reason = "one table")]
fn expansion_failures() -> Vec<Scenario> {
    let refuse = DriverFault::Refuse;
    let failed = || Scenario { events: FAILED_THEN_EXPANDED, ..expanded_scenario() };
    let twice = || Scenario { calls: &["create a", "expand a 2Gi", "expand a 2Gi"], ..failed() };
    vec![
        Scenario {
            name: "ControllerExpandVolume response lost: the call is repeated",
            actions: bound_claim([request_size("2Gi")]),
            resizing: expand_faults(vec![DriverFault::LostResponse]),
            ..twice()
        },
        Scenario {
            name: "ControllerExpandVolume fails once with Internal: it is retried",
            actions: bound_claim([request_size("2Gi")]),
            resizing: expand_faults(vec![refuse(ErrorKind::Internal)]),
            ..twice()
        },
        Scenario {
            name: "ControllerExpandVolume fails once with OutOfRange: it is retried after a longer delay",
            actions: bound_claim([request_size("2Gi")]),
            resizing: expand_faults(vec![refuse(ErrorKind::OutOfRange)]),
            ..twice()
        },
        Scenario {
            name: "ControllerExpandVolume always fails with OutOfRange: ControllerResizeInfeasible is set",
            actions: bound_claim([request_size("2Gi")]),
            resizing: expand_faults(vec![refuse(ErrorKind::OutOfRange); 100]),
            resizes: &["a 1Gi/1Gi allocated=2Gi ControllerResizeInfeasible ControllerResizeError Resizing"],
            events: &["a Normal ProvisioningSucceeded", "a Normal Resizing", "a Warning VolumeResizeFailed"],
            // One call in five minutes during the hour of [`Settle`].
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
            repeats_calls: true,
            retries_slowly: true,
            unsettled: INFEASIBLE_SIZE,
            ..bound_scenario()
        },
        Scenario {
            name: "infeasible size reduced by the user: the volume is expanded to the smaller size",
            actions: bound_claim([request_size("9Gi")]),
            // Two faults, so that the replacement of a crashed process does not succeed with the former size.
            resizing: expand_faults(vec![
                concurrent_action_then(request_size("2Gi"), refuse(ErrorKind::OutOfRange)),
                refuse(ErrorKind::OutOfRange),
            ]),
            calls: &["create a", "expand a 9Gi", "expand a 2Gi", "expand a 2Gi"],
            ..failed()
        },
        Scenario {
            name: "size reduced while the expand result is unknown: the recorded size is expanded first",
            actions: bound_claim([request_size("9Gi")]),
            resizing: expand_faults(vec![concurrent_action_then(
                request_size("2Gi"),
                DriverFault::LostRequest,
            )]),
            resizes: &["a 9Gi/9Gi allocated=9Gi no-node"],
            calls: &["create a", "expand a 9Gi", "expand a 9Gi"],
            ..failed()
        },
        Scenario {
            name: "FailedPrecondition while the volume is in use: expansion waits until the pod is deleted",
            actions: bound_claim([
                Create(pod("p", "a")),
                Settle,
                request_size("2Gi"),
                Until(Event("a Warning VolumeResizeFailed")),
                Wait(Duration::from_secs(5)),
                Delete(POD),
            ]),
            resizing: expand_faults(vec![refuse(ErrorKind::FailedPrecondition)]),
            ..twice()
        },
        Scenario {
            name: "volume in use again while the expand result is unknown: the call is repeated",
            actions: bound_claim([
                Create(pod("p", "a")),
                Settle,
                request_size("2Gi"),
                Until(Event("a Warning VolumeResizeFailed")),
                Delete(POD),
            ]),
            resizing: expand_faults(vec![
                refuse(ErrorKind::FailedPrecondition),
                concurrent_action_then(Create(pod("q", "a")), DriverFault::LostRequest),
            ]),
            calls: &["create a", "expand a 2Gi", "expand a 2Gi", "expand a 2Gi"],
            ..failed()
        },
        Scenario {
            name: "ControllerExpandVolume returns a smaller size than requested: the call is repeated",
            actions: bound_claim([request_size("2Gi")]),
            resizing: expand_faults(vec![DriverFault::WrongSize(1 << 20)]),
            ..twice()
        },
        Scenario {
            name: "ControllerExpandVolume returns a larger size than requested: the larger size is set",
            actions: bound_claim([request_size("2Gi")]),
            resizing: expand_faults(vec![DriverFault::WrongSize(4 << 30)]),
            resizes: &["a 4Gi/4Gi allocated=2Gi no-node"],
            ..expanded_scenario()
        },
        Scenario {
            name: "driver without EXPAND_VOLUME: VolumeResizeFailed is emitted",
            actions: bound_claim([request_size("2Gi")]),
            resizing: ResizingBehavior { unsupported: true, ..ResizingBehavior::default() },
            resizes: &[],
            events: &["a Normal ProvisioningSucceeded", "a Warning VolumeResizeFailed"],
            calls: &["create a"],
            ..bound_scenario()
        },
        Scenario {
            name: "size too large for CSI, then reduced: the volume is expanded to the smaller size",
            actions: bound_claim([
                request_size("10E"),
                Until(Event("a Warning VolumeResizeFailed")),
                request_size("2Gi"),
            ]),
            ..failed()
        },
    ]
}

/// Creates a class that allows expansion, two nodes and the claim `a`, which is bound to the
/// PersistentVolume `v`; then performs further actions.
fn static_claim(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    let class = [Create(expandable_class("none"))];
    class.into_iter().chain(attach_detach::after_setup(actions)).collect()
}

/// After an expand or modify call was lost and its retries have failed for a minute, moves the pod of the
/// claim `a` from the first node to the second.
fn pod_moves_after(change: impl IntoIterator<Item = UserAction>, event: &'static str) -> Vec<UserAction> {
    let start = [Create(pod("p", "a")), Settle].into_iter().chain(change);
    let end = [Until(Event(event)), Wait(Duration::from_secs(60)), Delete(POD), attach_detach::second_pod()];
    static_claim(start.chain(end))
}

/// One call is lost, and all others fail with `Internal`, as with cinder-csi-plugin after an expansion that
/// timed out.
fn lost_then_internal() -> Vec<DriverFault> {
    let internal = vec![DriverFault::Refuse(ErrorKind::Internal); 200];
    [DriverFault::LostRequest].into_iter().chain(internal).collect()
}

/// The calls of [`pod_moves_after`]: six of the change in the minute before the pod moves, and 14 in the hour
/// of [`Settle`].
const fn calls_while_pod_moves(change: &'static str) -> [&'static str; 23] {
    let mut calls = [change; 23];
    calls[0] = "publish static-v id-1";
    calls[7] = "unpublish static-v id-1";
    calls[8] = "publish static-v id-2";
    calls
}

/// Scenarios of drivers that never report the result of an expand or modify call.
fn changes_in_doubt() -> Vec<Scenario> {
    let moved = || Scenario {
        unsettled: &[
            (WorkKind::Call, "the driver always fails"),
            (WorkKind::Retry, "the driver always fails"),
        ],
        // In real time the volume may be detached before the pod on the second node is found.
        delayed_events: &["q Warning FailedAttachVolume"],
        repeats_calls: true,
        retries_slowly: true,
        ..attach_detach::moved()
    };
    vec![
        Scenario {
            name: "expand result unknown, then Internal on every retry: the pod can move to another node",
            actions: pod_moves_after([request_size("2Gi")], "a Warning VolumeResizeFailed"),
            resizing: expand_faults(lost_then_internal()),
            resizes: &["a 1Gi/1Gi allocated=2Gi ControllerResizeInProgress ControllerResizeError Resizing"],
            events: &[
                "a Normal Resizing",
                "a Warning VolumeResizeFailed",
                "p Normal SuccessfulAttachVolume",
                "q Normal SuccessfulAttachVolume",
                "q Warning FailedAttachVolume",
            ],
            calls: &const { calls_while_pod_moves("expand static-v 2Gi") },
            ..moved()
        },
        Scenario {
            name: "modify result unknown, then Internal on every retry: the pod can move to another node",
            actions: pod_moves_after(
                [Create(attributes_class("fast", "9")), set_attributes_class("fast")],
                "a Warning VolumeModifyFailed",
            ),
            resizing: modify_faults(lost_then_internal()),
            resizes: &["a 1Gi/1Gi ModifyVolumeError ModifyingVolume target=fast InProgress"],
            events: &[
                "a Normal VolumeModify",
                "a Warning VolumeModifyFailed",
                "p Normal SuccessfulAttachVolume",
                "q Normal SuccessfulAttachVolume",
                "q Warning FailedAttachVolume",
            ],
            calls: &const { calls_while_pod_moves("modify static-v speed=9") },
            ..moved()
        },
        Scenario {
            name: "mountOptions changed while the expand result is unknown: the call is repeated",
            actions: static_claim([request_size("2Gi")]),
            resizing: expand_faults(vec![concurrent_action_then(
                Patch(attach_detach::VOLUME, json!({"spec": {"mountOptions": ["noatime"]}})),
                DriverFault::LostRequest,
            )]),
            resizes: EXPANDED,
            events: &["a Normal Resizing", "a Normal VolumeResizeSuccessful", "a Warning VolumeResizeFailed"],
            calls: &["expand static-v 2Gi", "expand static-v 2Gi"],
            ..attach_detach::base()
        },
        Scenario {
            name: "driver that expands published volumes only, expand result unknown: \
                  the volume is attached, then expanded",
            actions: static_claim([request_size("2Gi")]),
            resizing: ResizingBehavior {
                expands_published_only: true,
                ..expand_faults(vec![concurrent_action_then(Create(pod("p", "a")), DriverFault::LostRequest)])
            },
            resizes: EXPANDED,
            events: &[
                "a Normal Resizing",
                "a Normal VolumeResizeSuccessful",
                "a Warning VolumeResizeFailed",
                "p Normal SuccessfulAttachVolume",
                "p Warning FailedAttachVolume",
            ],
            calls: &["expand static-v 2Gi", "publish static-v id-1", "expand static-v 2Gi"],
            // In real time the expansion may be retried before the volume is attached.
            delayed_events: &["p Warning FailedAttachVolume"],
            repeats_calls: true,
            ..attach_detach::attached()
        },
    ]
}

#[expect(clippy::too_many_lines, reason = "one table")]
fn modification() -> Vec<Scenario> {
    let refuse = DriverFault::Refuse;
    let modified = || Scenario {
        resizes: MODIFIED,
        events: MODIFY_SUCCEEDED,
        calls: &["create a", "modify a speed=9"],
        ..bound_scenario()
    };
    let failed = || Scenario { events: FAILED_THEN_MODIFIED, ..modified() };
    let fast = || Create(attributes_class("fast", "9"));
    let slow = || Create(attributes_class("slow", "1"));
    vec![
        Scenario {
            name: "VolumeAttributesClass set: ControllerModifyVolume is called",
            actions: bound_claim([fast(), set_attributes_class("fast")]),
            ..modified()
        },
        Scenario {
            name: "VolumeAttributesClass changed: ControllerModifyVolume is called again",
            actions: bound_claim([
                fast(),
                slow(),
                set_attributes_class("slow"),
                Settle,
                set_attributes_class("fast"),
            ]),
            calls: &["create a", "modify a speed=1", "modify a speed=9"],
            ..modified()
        },
        Scenario {
            name: "a VolumeAttributesClass in use keeps its finalizer until the last claim releases it",
            actions: bound_claim([
                fast(),
                slow(),
                set_attributes_class("fast"),
                Settle,
                Delete(FAST),
                set_attributes_class("slow"),
                Until(Deleted(FAST)),
                Create(attributes_class("fast", "3")),
                set_attributes_class("fast"),
            ]),
            calls: &["create a", "modify a speed=9", "modify a speed=1", "modify a speed=3"],
            ..modified()
        },
        Scenario {
            name: "VolumeAttributesClass created after it was set: the volume is modified",
            actions: bound_claim([set_attributes_class("fast"), Settle, fast()]),
            ..failed()
        },
        Scenario {
            name: "claim created with a VolumeAttributesClass: its parameters are passed to CreateVolume",
            actions: vec![fast(), Create(expandable_class("gold")), claim_with_attributes_class("fast")],
            resizes: &["a 1Gi/1Gi class=fast/fast"],
            events: &["a Normal ProvisioningSucceeded"],
            calls: &["create a with speed=9"],
            ..bound_scenario()
        },
        Scenario {
            name: "claim created before its VolumeAttributesClass: provisioning waits for the class",
            actions: vec![
                Create(expandable_class("gold")),
                claim_with_attributes_class("fast"),
                Settle,
                fast(),
            ],
            resizes: &["a 1Gi/1Gi class=fast/fast"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create a with speed=9"],
            ..bound_scenario()
        },
        Scenario {
            name: "VolumeAttributesClass does not exist: modifyVolumeStatus stays Pending",
            actions: bound_claim([set_attributes_class("fast")]),
            resizes: &["a 1Gi/1Gi Pending"],
            events: &["a Normal ProvisioningSucceeded", "a Warning VolumeModifyFailed"],
            calls: &["create a"],
            ..bound_scenario()
        },
        Scenario {
            name: "ControllerModifyVolume failed, then a missing class set: modifyVolumeStatus stays Pending",
            actions: bound_claim([fast(), set_attributes_class("fast")]),
            // Two faults, so that the replacement of a crashed process does not succeed with the former
            // class.
            resizing: modify_faults(vec![
                concurrent_action_then(set_attributes_class("gone"), refuse(ErrorKind::Internal)),
                refuse(ErrorKind::Internal),
            ]),
            resizes: &["a 1Gi/1Gi ModifyVolumeError ModifyingVolume target=fast Pending"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Normal VolumeModify",
                "a Warning VolumeModifyFailed",
            ],
            calls: &["create a", "modify a speed=9"],
            ..bound_scenario()
        },
        Scenario {
            name: "VolumeAttributesClass of another driver: modifyVolumeStatus stays Pending",
            actions: bound_claim([
                Create(with(attributes_class("fast", "9"), &json!({"driverName": "other.example.com"}))),
                set_attributes_class("fast"),
            ]),
            resizes: &["a 1Gi/1Gi Pending"],
            events: &["a Normal ProvisioningSucceeded", "a Warning VolumeModifyFailed"],
            calls: &["create a"],
            ..bound_scenario()
        },
        Scenario {
            name: "ControllerModifyVolume response lost: the call is repeated",
            actions: bound_claim([fast(), set_attributes_class("fast")]),
            resizing: modify_faults(vec![DriverFault::LostResponse]),
            calls: &["create a", "modify a speed=9", "modify a speed=9"],
            ..failed()
        },
        Scenario {
            name: "ControllerModifyVolume fails with InvalidArgument, another class set: \
                  the volume is modified to it",
            actions: bound_claim([fast(), slow(), set_attributes_class("slow")]),
            resizing: modify_faults(vec![
                concurrent_action_then(set_attributes_class("fast"), refuse(ErrorKind::InvalidArgument)),
                refuse(ErrorKind::InvalidArgument),
            ]),
            calls: &["create a", "modify a speed=1", "modify a speed=9", "modify a speed=9"],
            ..failed()
        },
        Scenario {
            name: "ControllerModifyVolume always fails with InvalidArgument: \
                  modifyVolumeStatus is Infeasible",
            actions: bound_claim([fast(), set_attributes_class("fast")]),
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
            repeats_calls: true,
            retries_slowly: true,
            unsettled: INFEASIBLE_CLASS,
            ..bound_scenario()
        },
        Scenario {
            name: "class changed while the modify result is unknown: the recorded class is applied first",
            actions: bound_claim([fast(), slow(), set_attributes_class("slow")]),
            resizing: modify_faults(vec![concurrent_action_then(
                set_attributes_class("fast"),
                DriverFault::LostRequest,
            )]),
            calls: &["create a", "modify a speed=1", "modify a speed=1", "modify a speed=9"],
            ..failed()
        },
        Scenario {
            name: "driver without MODIFY_VOLUME: VolumeModifyFailed is emitted",
            actions: bound_claim([fast(), set_attributes_class("fast")]),
            resizing: ResizingBehavior { unsupported: true, ..ResizingBehavior::default() },
            resizes: &[],
            events: &["a Normal ProvisioningSucceeded", "a Warning VolumeModifyFailed"],
            calls: &["create a"],
            ..bound_scenario()
        },
        Scenario {
            name: "claim expanded and modified at once: the driver calls are made one after the other",
            actions: bound_claim([
                fast(),
                Patch(
                    CLAIM,
                    json!({"spec": {
                        "volumeAttributesClassName": "fast", "resources": {"requests": {"storage": "2Gi"}},
                    }}),
                ),
            ]),
            resizing: ResizingBehavior {
                expand_faults: vec![DriverFault::Slow(Duration::from_secs(2))],
                modify_faults: vec![DriverFault::Slow(Duration::from_secs(2))],
                ..ResizingBehavior::default()
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
            // The resizer makes one call at a time for a volume.
            races_calls: true,
            ..bound_scenario()
        },
    ]
}
