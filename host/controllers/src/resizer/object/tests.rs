//! The patches, as external-resizer's would leave the objects.

use cofferdam_cluster::decode;
use cofferdam_domain::storage::ErrorKind;

use super::*;

fn claim(status: Value) -> Claim {
    let json = json!({
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"}, "spec": {}, "status": status,
    });
    decode::object(&json.to_string()).unwrap().unwrap()
}

fn now() -> jiff::Timestamp {
    "2026-01-01T00:00:00.5Z".parse().unwrap()
}

fn holds(kind: &str, reason: Value, message: Value) -> Value {
    json!({
        "type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "lastProbeTime": null,
        "reason": reason, "message": message,
    })
}

fn gone(kind: &str) -> Value {
    json!({"type": kind, "$patch": "delete"})
}

#[test]
fn a_growth() {
    let before = claim(json!({"conditions": [
        {"type": "ControllerResizeError", "status": "True"}, {"type": "example.com/Mine", "status": "True"},
    ]}));
    let begin = |anew| Begin { target: Quantity::from_bytes(2 << 30), anew };
    let annotations =
        |value: Value| json!({"annotations": {"volume.kubernetes.io/node-expansion-not-required": value}});
    let resizing = holds("Resizing", Value::Null, Value::Null);
    assert_eq!(
        begun(&before, now(), begin(true)),
        json!({"metadata": annotations(Value::Null), "status": {
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
            "conditions": [resizing, gone("ControllerResizeError")],
        }})
    );
    assert_eq!(
        begun(&before, now(), begin(false)),
        json!({"metadata": annotations(Value::Null), "status": {
            "allocatedResources": {"storage": "2Gi"}, "conditions": [resizing],
        }})
    );
    let growing = claim(json!({"conditions": [
        {"type": "Resizing", "status": "True"}, {"type": "ControllerResizeError", "status": "True"},
    ]}));
    assert_eq!(
        handed_over(&growing, now()),
        json!({"metadata": annotations(Value::Null), "status": {
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "conditions": [
                holds("FileSystemResizePending", Value::Null, json!(
                    "Waiting for user to (re-)start a pod to finish file system resize of volume on node."
                )),
            ],
        }})
    );
    assert_eq!(
        finished(&growing, now(), Quantity::from_bytes(2 << 30)),
        json!({"metadata": annotations(json!("true")), "status": {
            "capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": null},
            "conditions": [gone("Resizing"), gone("ControllerResizeError")],
        }})
    );
}

#[test]
fn a_failure_is_written_once() {
    let first = claim(json!({}));
    let no = StorageError::last(ErrorKind::OutOfRange, "no");
    let message = format!("failed to expand pvc with {no}");
    let error = holds("ControllerResizeError", Value::Null, json!(message));
    assert_eq!(failed(&first, now(), &no, false), Some(json!({"status": {"conditions": [error]}})));
    let said =
        json!({"conditions": [{"type": "ControllerResizeError", "status": "True", "message": message}]});
    assert_eq!(failed(&claim(said.clone()), now(), &no, false), None);
    let infeasible = json!({"status": {
        "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"}, "conditions": [error],
    }});
    assert_eq!(failed(&claim(said), now(), &no, true), Some(infeasible));
    let long = StorageError::last(ErrorKind::Internal, "ä".repeat(2000));
    let long = failed(&first, now(), &long, false).unwrap();
    assert!(long.pointer("/status/conditions/0/message").unwrap().as_str().unwrap().len() <= MAX_MESSAGE);
}

/// A condition of a modification: when it was looked at, and, where it has changed, since when it is so.
fn has(kind: &str, reason: Value, message: &str, changed: bool) -> Value {
    let mut condition = holds(kind, reason, json!(message));
    let members = condition.as_object_mut().unwrap();
    let now = members.remove("lastTransitionTime").unwrap();
    members.insert("lastProbeTime".to_owned(), now.clone());
    if changed {
        members.insert("lastTransitionTime".to_owned(), now);
    }
    condition
}

#[test]
fn a_modification() {
    let is = |message: &str| format!("Modifying volume to \"fast\" {message}");
    let status = |state: &str| json!({"targetVolumeAttributesClassName": "fast", "status": state});
    let begun_with =
        |conditions: Value| modification_begun(&claim(json!({"conditions": conditions})), now(), "fast");
    let begun = |changed| {
        let condition = has("ModifyingVolume", Value::Null, &is("is in progress."), changed);
        json!({"status": {"modifyVolumeStatus": status("InProgress"), "conditions": [condition]}})
    };
    assert_eq!(begun_with(json!([])), begun(true));
    let again = json!([{"type": "ModifyingVolume", "status": "True", "message": "x"}, {"type": "ModifyVolumeError", "status": "True"}]);
    assert_eq!(begun_with(again), begun(false), "what went wrong before stays until it is modified");
    assert_eq!(pending(), json!({"status": {"modifyVolumeStatus": {"status": "Pending"}}}));
    let running = claim(json!({
        "modifyVolumeStatus": status("InProgress"),
        "conditions": [{"type": "ModifyingVolume", "status": "True", "message": is("is in progress.")}],
    }));
    let failed = |claim: &Claim, code: &str, state: ModifyState, open| {
        modification_failed(claim, now(), (code, "no"), ("fast", state, open))
    };
    let wrote = |state: &str, code: &str, message: &str, changed| {
        json!({"status": {"modifyVolumeStatus": status(state), "conditions": [
            has("ModifyingVolume", Value::Null, &is(message), false),
            has("ModifyVolumeError", json!(code), "no", changed),
        ]}})
    };
    let infeasible = |claim: &Claim| failed(claim, "InvalidArgument", ModifyState::Infeasible, false);
    let waits = "failed. Waiting for retry.";
    assert_eq!(infeasible(&running), Some(wrote("Infeasible", "InvalidArgument", waits, true)));
    assert_eq!(
        failed(&running, "Unavailable", ModifyState::InProgress, true),
        Some(wrote("InProgress", "Unavailable", "is still in progress.", true))
    );
    let said = |message: &str| {
        claim(json!({
            "modifyVolumeStatus": status("Infeasible"),
            "conditions": [
                {"type": "ModifyingVolume", "status": "True", "message": is(waits)},
                {"type": "ModifyVolumeError", "status": "True", "reason": "InvalidArgument", "message": message},
            ],
        }))
    };
    assert_eq!(infeasible(&said("no")), None);
    assert_eq!(infeasible(&said("other")), Some(wrote("Infeasible", "InvalidArgument", waits, false)));
    assert_eq!(
        modified(&said("no"), now(), "fast"),
        json!({"status": {
            "currentVolumeAttributesClassName": "fast", "modifyVolumeStatus": null,
            "conditions": [gone("ModifyingVolume"), gone("ModifyVolumeError")],
        }})
    );
    assert_eq!(cancelled(&said("no"), now()), json!({"status": {"conditions": [gone("ModifyingVolume")]}}));
}
