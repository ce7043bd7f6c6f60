//! The status of a claim, and what stands on its volume, as external-resizer writes them.

use cofferdam_domain::{
    Claim, ConditionKind, ModifyState, Quantity, ResizeState, names, storage::StorageError,
};
use serde_json::{Map, Value, json};

use super::rules::{Begin, Enlarge};

/// external-resizer's words, which kubectl shows.
const NODE_PENDING: &str =
    "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
const EXPANSION_FAILED: &str = "failed to expand pvc with ";

/// The API's limit for a message is far above; what a driver says shall not fill claims.
const MAX_MESSAGE: usize = 1024;
const CUT: &str = "…";

/// A strategic merge patch on a claim's status, piece by piece.
struct Patch<'a> {
    claim: &'a Claim,
    now: jiff::Timestamp,
    status: Map<String, Value>,
    conditions: Vec<Value>,
}

impl<'a> Patch<'a> {
    fn new(claim: &'a Claim, now: jiff::Timestamp) -> Self {
        Self { claim, now, status: Map::new(), conditions: Vec::new() }
    }

    fn set(mut self, member: &str, value: Value) -> Self {
        self.status.insert(member.to_owned(), value);
        self
    }

    fn resize(self, state: Option<ResizeState>) -> Self {
        self.set("allocatedResourceStatuses", json!({"storage": state.map(ResizeState::as_str)}))
    }

    /// Sets a condition.
    fn holds(mut self, kind: ConditionKind, reason: &str, message: &str) -> Self {
        // Kubernetes' times of objects are whole seconds.
        let time = jiff::Timestamp::from_second(self.now.as_second()).unwrap_or(self.now);
        let filled = |text: &str| (!text.is_empty()).then(|| bounded(text));
        self.conditions.push(json!({
            "type": kind.as_str(), "status": "True", "lastTransitionTime": time.to_string(), "lastProbeTime": null,
            "reason": filled(reason), "message": filled(message),
        }));
        self
    }

    /// Sets a condition of a modification: its time is since when it is so, whatever it says now.
    fn has(mut self, kind: ConditionKind, reason: &str, message: &str) -> Self {
        let there =
            self.claim.progress().condition(kind).is_some_and(|one| one.holds && *one.reason == *reason);
        self = self.holds(kind, reason, message);
        if let Some(condition) = self.conditions.last_mut().and_then(Value::as_object_mut)
            && let Some(now) = condition.remove("lastTransitionTime")
        {
            condition.insert("lastProbeTime".to_owned(), now.clone());
            if !there {
                condition.insert("lastTransitionTime".to_owned(), now);
            }
        }
        self
    }

    /// Takes conditions away, those of these that are there.
    fn without(mut self, kinds: impl IntoIterator<Item = ConditionKind>) -> Self {
        let progress = self.claim.progress();
        let there = kinds.into_iter().filter(|kind| progress.condition(*kind).is_some());
        self.conditions.extend(there.map(|kind| json!({"type": kind.as_str(), "$patch": "delete"})));
        self
    }

    fn done(mut self) -> Value {
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

/// That the driver is about to be asked.
pub(super) fn begun(claim: &Claim, now: jiff::Timestamp, begin: Begin) -> Value {
    let patch = Patch::new(claim, now)
        .set("allocatedResources", json!({"storage": begin.target.to_string()}))
        .holds(ConditionKind::Resizing, "", "");
    let patch = match begin.anew {
        true => patch
            .resize(Some(ResizeState::ControllerInProgress))
            .without(ConditionKind::OF_GROWTH.into_iter().filter(|kind| *kind != ConditionKind::Resizing)),
        false => patch,
    };
    with_annotation(patch.done(), &Value::Null)
}

/// That the driver could not; absent where the status says so already.
pub(super) fn failed(
    claim: &Claim,
    now: jiff::Timestamp,
    error: &StorageError,
    infeasible: bool,
) -> Option<Value> {
    let progress = claim.progress();
    let message = format!("{EXPANSION_FAILED}{error}");
    let message = message.as_str();
    let condition = progress.condition(ConditionKind::ControllerResizeError);
    let said = condition.is_some_and(|there| there.holds && *there.message == *bounded(message));
    let known = !infeasible || progress.resize == Some(ResizeState::ControllerInfeasible);
    if said && known {
        return None;
    }
    let patch = Patch::new(claim, now).holds(ConditionKind::ControllerResizeError, "", message);
    Some(if infeasible { patch.resize(Some(ResizeState::ControllerInfeasible)) } else { patch }.done())
}

/// That the driver is done and the node is not. What stands there of the growth stays until its end.
pub(super) fn handed_over(claim: &Claim, now: jiff::Timestamp) -> Value {
    let pending = ConditionKind::FileSystemResizePending;
    let patch =
        Patch::new(claim, now).resize(Some(ResizeState::NodePending)).holds(pending, "", NODE_PENDING);
    with_annotation(patch.done(), &Value::Null)
}

/// That all is done, and the node has no part in it.
pub(super) fn finished(claim: &Claim, now: jiff::Timestamp, size: Quantity) -> Value {
    let patch = Patch::new(claim, now)
        .set("capacity", json!({"storage": size.to_string()}))
        .resize(None)
        .without(ConditionKind::OF_GROWTH);
    with_annotation(patch.done(), &json!("true"))
}

/// The volume's new size, and the claim's former one.
pub(super) fn enlarged(enlarge: &Enlarge) -> Value {
    let mut patch = Map::new();
    if let Some(size) = enlarge.size {
        patch.insert("spec".to_owned(), json!({"capacity": {"storage": size.to_string()}}));
    }
    if let Some(before) = enlarge.before {
        let annotations = json!({names::PRE_RESIZE_CAPACITY: before.to_string()});
        patch.insert("metadata".to_owned(), json!({"annotations": annotations}));
    }
    Value::Object(patch)
}

/// That the growth has come to its end.
pub(super) fn forgotten() -> Value {
    json!({"metadata": {"annotations": {names::PRE_RESIZE_CAPACITY: null}}})
}

/// That a class is waited for. The one that the volume may have in part stays: who has a right to it in a quota is asked by that.
pub(super) fn pending() -> Value {
    json!({"status": {"modifyVolumeStatus": {"status": ModifyState::Pending.as_str()}}})
}

/// That the driver is about to be asked for a class.
pub(super) fn modification_begun(claim: &Claim, now: jiff::Timestamp, target: &str) -> Value {
    Patch::new(claim, now)
        .set("modifyVolumeStatus", modifying(target, ModifyState::InProgress))
        .has(ConditionKind::ModifyingVolume, "", &format!("Modifying volume to {target:?} is in progress."))
        .done()
}

/// That the driver could not; absent where the status says so already.
pub(super) fn modification_failed(
    claim: &Claim,
    now: jiff::Timestamp,
    (code, message): (&str, &str),
    failed: (&str, ModifyState, bool),
) -> Option<Value> {
    let (target, state, open) = failed;
    let progress = claim.progress();
    let says = |kind, reason: &str, message: &str| {
        let there = progress.condition(kind);
        there.is_some_and(|c| c.holds && &*c.reason == reason && *c.message == *bounded(message))
    };
    let still = match open {
        true => format!("Modifying volume to {target:?} is still in progress."),
        false => format!("Modifying volume to {target:?} failed. Waiting for retry."),
    };
    let status = progress.modification.as_ref();
    if status.is_some_and(|status| status.state == state && &*status.target == target)
        && says(ConditionKind::ModifyVolumeError, code, message)
        && says(ConditionKind::ModifyingVolume, "", &still)
    {
        return None;
    }
    let patch = Patch::new(claim, now)
        .set("modifyVolumeStatus", modifying(target, state))
        .has(ConditionKind::ModifyingVolume, "", &still)
        .has(ConditionKind::ModifyVolumeError, code, message);
    Some(patch.done())
}

/// That the claim has its class.
pub(super) fn modified(claim: &Claim, now: jiff::Timestamp, target: &str) -> Value {
    Patch::new(claim, now)
        .set("currentVolumeAttributesClassName", json!(target))
        .set("modifyVolumeStatus", Value::Null)
        .without(ConditionKind::OF_MODIFICATION)
        .done()
}

/// That nobody asks for another class any more. The last error stays, for the volume may have that class in part.
pub(super) fn cancelled(claim: &Claim, now: jiff::Timestamp) -> Value {
    Patch::new(claim, now).without([ConditionKind::ModifyingVolume]).done()
}

/// The volume's class.
pub(super) fn classed(target: &str) -> Value {
    json!({"spec": {"volumeAttributesClassName": target}})
}

fn modifying(target: &str, state: ModifyState) -> Value {
    json!({"targetVolumeAttributesClassName": target, "status": state.as_str()})
}

/// The message, cut.
fn bounded(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let end = (0..=MAX_MESSAGE - CUT.len()).rev().find(|end| message.is_char_boundary(*end));
    format!("{}{CUT}", message.get(..end.unwrap_or_default()).unwrap_or_default())
}

#[cfg(test)]
mod tests;
