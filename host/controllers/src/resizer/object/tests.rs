//! Tests of the patches against those of external-resizer.

use cofferdam_cluster::decode;
use cofferdam_domain::storage::ErrorKind;

use super::*;

fn claim(status: Value) -> Claim {
    let json = json!({
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {}, "status": status,
    });
    decode::object(&json.to_string()).unwrap().unwrap()
}

fn now() -> jiff::Timestamp {
    "2026-01-01T00:00:00.5Z".parse().unwrap()
}

fn condition(kind: &str, reason: Value, message: Value) -> Value {
    json!({
        "type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "lastProbeTime": null,
        "reason": reason, "message": message,
    })
}

fn removed_condition(kind: &str) -> Value {
    json!({"type": kind, "$patch": "delete"})
}

#[test]
fn expansion_patches_match_external_resizer() {
    let before = claim(json!({"conditions": [
        {"type": "ControllerResizeError", "status": "True"}, {"type": "example.com/Mine", "status": "True"},
    ]}));
    let update = |is_new| InProgressUpdate { target: Quantity::from_bytes(2 << 30), is_new };
    let annotations =
        |value: Value| json!({"annotations": {"volume.kubernetes.io/node-expansion-not-required": value}});
    let resizing = condition("Resizing", Value::Null, Value::Null);
    assert_eq!(
        in_progress_patch(&before, now(), update(true)),
        json!({"metadata": annotations(Value::Null), "status": {
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
            "conditions": [resizing, removed_condition("ControllerResizeError")],
        }})
    );
    assert_eq!(
        in_progress_patch(&before, now(), update(false)),
        json!({"metadata": annotations(Value::Null), "status": {
            "allocatedResources": {"storage": "2Gi"}, "conditions": [resizing],
        }})
    );
    let expanding = claim(json!({"conditions": [
        {"type": "Resizing", "status": "True"}, {"type": "ControllerResizeError", "status": "True"},
    ]}));
    assert_eq!(
        node_pending_patch(&expanding, now()),
        json!({"metadata": annotations(Value::Null), "status": {
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "conditions": [
                condition("FileSystemResizePending", Value::Null, json!(
                    "Waiting for user to (re-)start a pod to finish file system resize of volume on node."
                )),
            ],
        }})
    );
    assert_eq!(
        finished_patch(&expanding, now(), Quantity::from_bytes(2 << 30)),
        json!({"metadata": annotations(json!("true")), "status": {
            "capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": null},
            "conditions": [removed_condition("Resizing"), removed_condition("ControllerResizeError")],
        }})
    );
}

#[test]
fn a_failure_already_in_status_is_not_written_again() {
    let first = claim(json!({}));
    let no = StorageError::with_known_effect(ErrorKind::OutOfRange, "no");
    let message = format!("failed to expand pvc with {no}");
    let error = condition("ControllerResizeError", Value::Null, json!(message));
    assert_eq!(failed_patch(&first, now(), &no, false), Some(json!({"status": {"conditions": [error]}})));
    let reported =
        json!({"conditions": [{"type": "ControllerResizeError", "status": "True", "message": message}]});
    assert_eq!(failed_patch(&claim(reported.clone()), now(), &no, false), None);
    let infeasible = json!({"status": {
        "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"}, "conditions": [error],
    }});
    assert_eq!(failed_patch(&claim(reported), now(), &no, true), Some(infeasible));
    let long = StorageError::with_known_effect(ErrorKind::Internal, "ä".repeat(2000));
    let long = failed_patch(&first, now(), &long, false).unwrap();
    assert!(long.pointer("/status/conditions/0/message").unwrap().as_str().unwrap().len() <= MAX_MESSAGE);
}

/// A condition of a modification, with its probe time, and with its transition time if `changed` is true.
fn modify_condition(kind: &str, reason: Value, message: &str, changed: bool) -> Value {
    let mut condition = condition(kind, reason, json!(message));
    let members = condition.as_object_mut().unwrap();
    let now = members.remove("lastTransitionTime").unwrap();
    members.insert("lastProbeTime".to_owned(), now.clone());
    if changed {
        members.insert("lastTransitionTime".to_owned(), now);
    }
    condition
}

#[test]
fn modification_patches_match_external_resizer() {
    let progress_message = |message: &str| format!("Modifying volume to \"fast\" {message}");
    let status = |state: &str| json!({"targetVolumeAttributesClassName": "fast", "status": state});
    let in_progress_with = |conditions: Value| {
        modification_in_progress_patch(&claim(json!({"conditions": conditions})), now(), "fast")
    };
    let in_progress = |changed| {
        let condition =
            modify_condition("ModifyingVolume", Value::Null, &progress_message("is in progress."), changed);
        json!({"status": {"modifyVolumeStatus": status("InProgress"), "conditions": [condition]}})
    };
    assert_eq!(in_progress_with(json!([])), in_progress(true));
    let again = json!([
        {"type": "ModifyingVolume", "status": "True", "message": "x"},
        {"type": "ModifyVolumeError", "status": "True"},
    ]);
    assert_eq!(
        in_progress_with(again),
        in_progress(false),
        "the last error remains until the modification succeeds"
    );
    assert_eq!(
        modification_pending_patch(),
        json!({"status": {"modifyVolumeStatus": {"status": "Pending"}}})
    );
    let in_progress_message = progress_message("is in progress.");
    let running = claim(json!({
        "modifyVolumeStatus": status("InProgress"),
        "conditions": [{"type": "ModifyingVolume", "status": "True", "message": in_progress_message}],
    }));
    let failed = |claim: &Claim, code: &str, state: ModifyState, in_doubt| {
        modification_failed_patch(claim, now(), (code, "no"), ("fast", state, in_doubt))
    };
    let expected_patch = |state: &str, code: &str, message: &str, changed| {
        json!({"status": {"modifyVolumeStatus": status(state), "conditions": [
            modify_condition("ModifyingVolume", Value::Null, &progress_message(message), false),
            modify_condition("ModifyVolumeError", json!(code), "no", changed),
        ]}})
    };
    let infeasible = |claim: &Claim| failed(claim, "InvalidArgument", ModifyState::Infeasible, false);
    let waiting_message = "failed. Waiting for retry.";
    assert_eq!(
        infeasible(&running),
        Some(expected_patch("Infeasible", "InvalidArgument", waiting_message, true))
    );
    assert_eq!(
        failed(&running, "Unavailable", ModifyState::InProgress, true),
        Some(expected_patch("InProgress", "Unavailable", "is still in progress.", true))
    );
    let reported = |message: &str| {
        claim(json!({
            "modifyVolumeStatus": status("Infeasible"),
            "conditions": [
                {"type": "ModifyingVolume", "status": "True", "message": progress_message(waiting_message)},
                {
                    "type": "ModifyVolumeError", "status": "True",
                    "reason": "InvalidArgument", "message": message,
                },
            ],
        }))
    };
    assert_eq!(infeasible(&reported("no")), None);
    assert_eq!(
        infeasible(&reported("other")),
        Some(expected_patch("Infeasible", "InvalidArgument", waiting_message, false))
    );
    assert_eq!(
        modification_finished_patch(&reported("no"), now(), "fast"),
        json!({"status": {
            "currentVolumeAttributesClassName": "fast", "modifyVolumeStatus": null,
            "conditions": [removed_condition("ModifyingVolume"), removed_condition("ModifyVolumeError")],
        }})
    );
    assert_eq!(
        modification_cancelled_patch(&reported("no"), now()),
        json!({"status": {"conditions": [removed_condition("ModifyingVolume")]}})
    );
}
