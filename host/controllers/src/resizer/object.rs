//! Patches of claims and PersistentVolumes, in external-resizer's format.

use cofferdam_domain::{
    Claim, ClaimConditionType, ModifyState, Quantity, ResizeState, names, storage::StorageError,
};
use serde_json::{Map, Value, json};

use super::rules::{CapacityUpdate, InProgressUpdate};

/// Message of the condition `FileSystemResizePending`: external-resizer's text.
const NODE_PENDING: &str =
    "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
const EXPANSION_FAILED: &str = "failed to expand pvc with ";

/// Maximum length of the reason and of the message of a condition, in bytes. The API server accepts longer
/// ones.
const MAX_MESSAGE: usize = 1024;
const ELLIPSIS: &str = "…";

/// Builder of a strategic merge patch of a claim's status.
struct StatusPatch<'a> {
    claim: &'a Claim,
    now: jiff::Timestamp,
    status: Map<String, Value>,
    conditions: Vec<Value>,
}

impl<'a> StatusPatch<'a> {
    fn new(claim: &'a Claim, now: jiff::Timestamp) -> Self {
        Self { claim, now, status: Map::new(), conditions: Vec::new() }
    }

    fn set(mut self, member: &str, value: Value) -> Self {
        self.status.insert(member.to_owned(), value);
        self
    }

    fn set_resize_status(self, state: Option<ResizeState>) -> Self {
        self.set("allocatedResourceStatuses", json!({"storage": state.map(ResizeState::as_str)}))
    }

    /// Sets a condition to true.
    fn set_condition(mut self, kind: ClaimConditionType, reason: &str, message: &str) -> Self {
        // `metav1.Time` has a resolution of one second.
        let time = jiff::Timestamp::from_second(self.now.as_second()).unwrap_or(self.now);
        let non_empty = |text: &str| (!text.is_empty()).then(|| truncate_message(text));
        self.conditions.push(json!({
            "type": kind.as_str(), "status": "True",
            "lastTransitionTime": time.to_string(), "lastProbeTime": null,
            "reason": non_empty(reason), "message": non_empty(message),
        }));
        self
    }

    /// Sets a condition of a modification to true. Its probe time is always set; its transition time changes
    /// only if the claim lacks the condition, or has it as not true or with another reason.
    fn set_modify_condition(mut self, kind: ClaimConditionType, reason: &str, message: &str) -> Self {
        let is_unchanged = self
            .claim
            .progress()
            .condition(kind)
            .is_some_and(|existing| existing.is_true && *existing.reason == *reason);
        self = self.set_condition(kind, reason, message);
        if let Some(condition) = self.conditions.last_mut().and_then(Value::as_object_mut)
            && let Some(now) = condition.remove("lastTransitionTime")
        {
            condition.insert("lastProbeTime".to_owned(), now.clone());
            if !is_unchanged {
                condition.insert("lastTransitionTime".to_owned(), now);
            }
        }
        self
    }

    /// Removes the given conditions that the claim has.
    fn remove_conditions(mut self, kinds: impl IntoIterator<Item = ClaimConditionType>) -> Self {
        let progress = self.claim.progress();
        let present = kinds.into_iter().filter(|kind| progress.condition(*kind).is_some());
        self.conditions.extend(present.map(|kind| json!({"type": kind.as_str(), "$patch": "delete"})));
        self
    }

    fn build(mut self) -> Value {
        if !self.conditions.is_empty() {
            self.status.insert("conditions".to_owned(), Value::Array(self.conditions));
        }
        json!({"status": self.status})
    }
}

fn with_annotation(mut patch: Value, value: &Value) -> Value {
    if let Some(patch) = patch.as_object_mut() {
        let annotations = json!({names::NODE_EXPANSION_NOT_REQUIRED: value});
        patch.insert("metadata".to_owned(), json!({"annotations": annotations}));
    }
    patch
}

/// Patch of the claim before `ControllerExpandVolume`: sets the target size and the condition `Resizing`, and
/// removes the annotation that the node has nothing to expand. For a new expansion, also sets the state
/// `ControllerResizeInProgress` and removes the other conditions of the earlier expansion.
pub(super) fn in_progress_patch(claim: &Claim, now: jiff::Timestamp, update: InProgressUpdate) -> Value {
    let patch = StatusPatch::new(claim, now)
        .set("allocatedResources", json!({"storage": update.target.to_string()}))
        .set_condition(ClaimConditionType::Resizing, "", "");
    let patch = match update.is_new {
        true => patch.set_resize_status(Some(ResizeState::ControllerInProgress)).remove_conditions(
            ClaimConditionType::RESIZE_TYPES.into_iter().filter(|kind| *kind != ClaimConditionType::Resizing),
        ),
        false => patch,
    };
    with_annotation(patch.build(), &Value::Null)
}

/// Patch after a failed expansion. `None` if the status already reports the failure.
pub(super) fn failed_patch(
    claim: &Claim,
    now: jiff::Timestamp,
    error: &StorageError,
    infeasible: bool,
) -> Option<Value> {
    let progress = claim.progress();
    let message = format!("{EXPANSION_FAILED}{error}");
    let message = message.as_str();
    let condition = progress.condition(ClaimConditionType::ControllerResizeError);
    let is_reported =
        condition.is_some_and(|existing| existing.is_true && *existing.message == *truncate_message(message));
    let is_state_recorded = !infeasible || progress.resize == Some(ResizeState::ControllerInfeasible);
    if is_reported && is_state_recorded {
        return None;
    }
    let patch =
        StatusPatch::new(claim, now).set_condition(ClaimConditionType::ControllerResizeError, "", message);
    Some(
        if infeasible { patch.set_resize_status(Some(ResizeState::ControllerInfeasible)) } else { patch }
            .build(),
    )
}

/// Patch after `ControllerExpandVolume` if the node has to expand, too. The allocated size and the other
/// conditions of the expansion remain.
pub(super) fn node_pending_patch(claim: &Claim, now: jiff::Timestamp) -> Value {
    let pending = ClaimConditionType::FileSystemResizePending;
    let patch = StatusPatch::new(claim, now).set_resize_status(Some(ResizeState::NodePending)).set_condition(
        pending,
        "",
        NODE_PENDING,
    );
    with_annotation(patch.build(), &Value::Null)
}

/// Patch of the claim at the end of an expansion without a node expansion: sets `status.capacity` and the
/// annotation that the node has nothing to expand, and removes the state and the conditions of the expansion.
pub(super) fn finished_patch(claim: &Claim, now: jiff::Timestamp, size: Quantity) -> Value {
    let patch = StatusPatch::new(claim, now)
        .set("capacity", json!({"storage": size.to_string()}))
        .set_resize_status(None)
        .remove_conditions(ClaimConditionType::RESIZE_TYPES);
    with_annotation(patch.build(), &json!("true"))
}

/// Patch of the PersistentVolume: its new size and the claim's size before the expansion, each if it is set.
pub(super) fn capacity_patch(update: &CapacityUpdate) -> Value {
    let mut patch = Map::new();
    if let Some(size) = update.size {
        patch.insert("spec".to_owned(), json!({"capacity": {"storage": size.to_string()}}));
    }
    if let Some(before) = update.pre_resize_capacity {
        let annotations = json!({names::PRE_RESIZE_CAPACITY: before.to_string()});
        patch.insert("metadata".to_owned(), json!({"annotations": annotations}));
    }
    Value::Object(patch)
}

/// Patch of the PersistentVolume at the end of an expansion: removes the annotation with the claim's size
/// before the expansion.
pub(super) fn remove_pre_resize_capacity_patch() -> Value {
    json!({"metadata": {"annotations": {names::PRE_RESIZE_CAPACITY: null}}})
}

/// Patch for a class that is missing, cannot be decoded or belongs to another driver. The target class of an
/// earlier modification remains: the volume may have it in part, and quotas count it.
pub(super) fn modification_pending_patch() -> Value {
    json!({"status": {"modifyVolumeStatus": {"status": ModifyState::Pending.as_str()}}})
}

/// Patch of the claim before `ControllerModifyVolume`: sets the target class, the state `InProgress` and the
/// condition `ModifyingVolume`.
pub(super) fn modification_in_progress_patch(claim: &Claim, now: jiff::Timestamp, target: &str) -> Value {
    StatusPatch::new(claim, now)
        .set("modifyVolumeStatus", modify_volume_status(target, ModifyState::InProgress))
        .set_modify_condition(
            ClaimConditionType::ModifyingVolume,
            "",
            &format!("Modifying volume to {target:?} is in progress."),
        )
        .build()
}

/// Patch after a failed modification. `code` and `message` are those of the driver's error. `failed` has the
/// target class, the new state, and true if the call may still take effect. `None` if the status already
/// reports the failure.
pub(super) fn modification_failed_patch(
    claim: &Claim,
    now: jiff::Timestamp,
    (code, message): (&str, &str),
    failed: (&str, ModifyState, bool),
) -> Option<Value> {
    let (target, state, in_doubt) = failed;
    let progress = claim.progress();
    let has_condition = |kind, reason: &str, message: &str| {
        let existing = progress.condition(kind);
        existing
            .is_some_and(|c| c.is_true && &*c.reason == reason && *c.message == *truncate_message(message))
    };
    let progress_message = match in_doubt {
        true => format!("Modifying volume to {target:?} is still in progress."),
        false => format!("Modifying volume to {target:?} failed. Waiting for retry."),
    };
    let status = progress.modification.as_ref();
    if status.is_some_and(|status| status.state == state && &*status.target_class == target)
        && has_condition(ClaimConditionType::ModifyVolumeError, code, message)
        && has_condition(ClaimConditionType::ModifyingVolume, "", &progress_message)
    {
        return None;
    }
    let patch = StatusPatch::new(claim, now)
        .set("modifyVolumeStatus", modify_volume_status(target, state))
        .set_modify_condition(ClaimConditionType::ModifyingVolume, "", &progress_message)
        .set_modify_condition(ClaimConditionType::ModifyVolumeError, code, message);
    Some(patch.build())
}

/// Patch of the claim at the end of a modification: sets the current class, and removes
/// `status.modifyVolumeStatus` and the conditions of the modification.
pub(super) fn modification_finished_patch(claim: &Claim, now: jiff::Timestamp, target: &str) -> Value {
    StatusPatch::new(claim, now)
        .set("currentVolumeAttributesClassName", json!(target))
        .set("modifyVolumeStatus", Value::Null)
        .remove_conditions(ClaimConditionType::MODIFY_TYPES)
        .build()
}

/// Patch for a withdrawn modification. The last error remains, because the volume may have the target class
/// in part.
pub(super) fn modification_cancelled_patch(claim: &Claim, now: jiff::Timestamp) -> Value {
    StatusPatch::new(claim, now).remove_conditions([ClaimConditionType::ModifyingVolume]).build()
}

/// Patch of the PersistentVolume after a modification: sets `spec.volumeAttributesClassName`.
pub(super) fn attributes_class_patch(target: &str) -> Value {
    json!({"spec": {"volumeAttributesClassName": target}})
}

fn modify_volume_status(target: &str, state: ModifyState) -> Value {
    json!({"targetVolumeAttributesClassName": target, "status": state.as_str()})
}

/// Truncates a message to [`MAX_MESSAGE`] bytes.
fn truncate_message(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let end = (0..=MAX_MESSAGE - ELLIPSIS.len()).rev().find(|end| message.is_char_boundary(*end));
    format!("{}{ELLIPSIS}", message.get(..end.unwrap_or_default()).unwrap_or_default())
}

#[cfg(test)]
mod tests;
