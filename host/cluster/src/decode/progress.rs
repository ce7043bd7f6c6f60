//! What the status of a claim says of growing and modifying.

use cofferdam_domain::{ClaimCondition, ConditionKind, Modification, ModifyState, Progress, ResizeState};
use serde::Deserialize;

use super::Amounts;

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Statuses {
    storage: Option<Box<str>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Modifying {
    target_volume_attributes_class_name: Option<Box<str>>,
    status: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    kind: Box<str>,
    status: Box<str>,
    reason: Option<Box<str>>,
    message: Option<Box<str>>,
}

impl Condition {
    fn into_domain(self) -> Option<ClaimCondition> {
        Some(ClaimCondition {
            kind: ConditionKind::parse(&self.kind)?,
            holds: &*self.status == "True",
            reason: self.reason.unwrap_or_default(),
            message: self.message.unwrap_or_default(),
        })
    }
}

/// Nothing, where the status says nothing.
pub(super) fn progress(
    allocated: Option<Amounts>,
    statuses: Option<Statuses>,
    modifying: Option<Modifying>,
    conditions: Option<Vec<Condition>>,
) -> Option<Box<Progress>> {
    let modifying = modifying.filter(|status| !status.status.is_empty());
    let progress = Progress {
        allocated: allocated.and_then(|amounts| amounts.storage).and_then(|amount| amount.parse().ok()),
        resize: statuses.and_then(|statuses| statuses.storage).and_then(|state| ResizeState::parse(&state)),
        modification: modifying.map(|status| Modification {
            state: ModifyState::parse(&status.status),
            target: status.target_volume_attributes_class_name.unwrap_or_default(),
        }),
        conditions: conditions.into_iter().flatten().filter_map(Condition::into_domain).collect(),
    };
    (progress != Progress::default()).then(|| Box::new(progress))
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::{Claim, Quantity};
    use serde_json::json;

    use super::*;
    use crate::decode::object;

    fn claim(status: &serde_json::Value) -> Claim {
        let json = json!({
            "metadata": {"name": "a", "namespace": "n", "resourceVersion": "1"}, "spec": {}, "status": status,
        });
        object::<Claim>(&json.to_string()).unwrap().unwrap()
    }

    #[test]
    fn most_claims_have_none() {
        let status = json!({
            "phase": "Bound", "conditions": [{"type": "example.com/Mine", "status": "True"}],
            "allocatedResourceStatuses": {"example.com/iops": "x"}, "allocatedResources": {},
        });
        assert_eq!(claim(&status).progress, None);
        assert_eq!(*claim(&status).progress(), Progress::default());
    }

    #[test]
    fn a_growth_and_a_modification() {
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
        assert_eq!(progress.allocated, Some(Quantity::from_bytes(2 << 30)));
        assert_eq!(progress.resize, Some(ResizeState::NodePending));
        let modification = Modification { state: ModifyState::Infeasible, target: "fast".into() };
        assert_eq!(progress.modification, Some(modification));
        assert!(progress.holds(ConditionKind::Resizing) && !progress.holds(ConditionKind::ModifyVolumeError));
        let error = progress.condition(ConditionKind::ModifyVolumeError).unwrap();
        assert_eq!((&*error.reason, &*error.message), ("r", "m"));
    }

    #[test]
    fn what_a_newer_kubernetes_says_is_no_state_of_ours() {
        let found = claim(&json!({"allocatedResourceStatuses": {"storage": "Teleported"}}));
        assert_eq!(found.progress().resize, None);
    }
}
