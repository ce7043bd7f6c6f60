//! Expansion and modification status of a claim.

use cofferdam_domain::{
    ClaimCondition, ClaimConditionType, ModifyState, ModifyVolumeStatus, Progress, ResizeState,
};
use serde::Deserialize;

use super::fields::ResourceList;

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ResourceStatuses {
    storage: Option<Box<str>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireModifyVolumeStatus {
    target_volume_attributes_class_name: Option<Box<str>>,
    status: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct WireCondition {
    #[serde(rename = "type")]
    kind: Box<str>,
    status: Box<str>,
    reason: Option<Box<str>>,
    message: Option<Box<str>>,
}

impl WireCondition {
    fn into_domain(self) -> Option<ClaimCondition> {
        Some(ClaimCondition {
            condition_type: ClaimConditionType::parse(&self.kind)?,
            is_true: &*self.status == "True",
            reason: self.reason.unwrap_or_default(),
            message: self.message.unwrap_or_default(),
        })
    }
}

/// The progress; `None` if no field of it is set to a known value.
pub(super) fn progress(
    allocated: Option<ResourceList>,
    statuses: Option<ResourceStatuses>,
    modify_volume_status: Option<WireModifyVolumeStatus>,
    conditions: Option<Vec<WireCondition>>,
) -> Option<Box<Progress>> {
    let modify_volume_status = modify_volume_status.filter(|status| !status.status.is_empty());
    let progress = Progress {
        allocated_resources: allocated
            .and_then(|amounts| amounts.storage)
            .and_then(|amount| amount.parse().ok()),
        resize: statuses.and_then(|statuses| statuses.storage).and_then(|state| ResizeState::parse(&state)),
        modification: modify_volume_status.map(|status| ModifyVolumeStatus {
            state: ModifyState::parse(&status.status),
            target_class: status.target_volume_attributes_class_name.unwrap_or_default(),
        }),
        conditions: conditions.into_iter().flatten().filter_map(WireCondition::into_domain).collect(),
    };
    (progress != Progress::default()).then(|| Box::new(progress))
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::{Claim, Quantity};
    use serde_json::json;

    use super::*;
    use crate::objects::decode::object;

    fn claim(status: &serde_json::Value) -> Claim {
        let json = json!({
            "metadata": {"name": "a", "namespace": "n", "resourceVersion": "1"}, "spec": {}, "status": status,
        });
        object::<Claim>(&json.to_string()).unwrap().unwrap()
    }

    #[test]
    fn claim_without_resize_status_has_no_progress() {
        let status = json!({
            "phase": "Bound", "conditions": [{"type": "example.com/Mine", "status": "True"}],
            "allocatedResourceStatuses": {"example.com/iops": "x"}, "allocatedResources": {},
        });
        assert_eq!(claim(&status).progress, None);
        assert_eq!(*claim(&status).progress(), Progress::default());
    }

    #[test]
    fn resize_and_modify_status_are_decoded() {
        let found = claim(&json!({
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "modifyVolumeStatus": {"targetVolumeAttributesClassName": "fast", "status": "Infeasible"},
            "conditions": [
                {"type": "Resizing", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "ModifyVolumeError", "status": "False", "reason": "r", "message": "m"},
            ],
        }));
        let progress = found.progress();
        assert_eq!(progress.allocated_resources, Some(Quantity::from_bytes(2 << 30)));
        assert_eq!(progress.resize, Some(ResizeState::NodePending));
        let modification = ModifyVolumeStatus { state: ModifyState::Infeasible, target_class: "fast".into() };
        assert_eq!(progress.modification, Some(modification));
        assert!(
            progress.is_condition_true(ClaimConditionType::Resizing)
                && !progress.is_condition_true(ClaimConditionType::ModifyVolumeError)
        );
        let error = progress.condition(ClaimConditionType::ModifyVolumeError).unwrap();
        assert_eq!((&*error.reason, &*error.message), ("r", "m"));
    }

    #[test]
    fn unknown_resize_status_is_ignored() {
        let found = claim(&json!({"allocatedResourceStatuses": {"storage": "Teleported"}}));
        assert_eq!(found.progress().resize, None);
    }
}
