//! Rules of volume modification: a volume gets the parameters of the VolumeAttributesClass that its claim
//! names. In this module, "class" means VolumeAttributesClass. Source: external-resizer 2.2,
//! `pkg/modifycontroller`.

use std::sync::Arc;

use cofferdam_cluster::Lookup;
use cofferdam_domain::{
    Claim, ClaimConditionType, DriverName, ModifyState, ModifyVolumeStatus, Uid, Volume,
    VolumeAttributesClass, VolumeHandle,
    storage::{ErrorKind, Finality, Parameters, StorageError},
};

use super::rules::{ResizeFailure, ResizerAbilities, in_tree_problem, volume_of};

/// Input of [`decide_modification`].
#[derive(Clone, Copy, Debug)]
pub struct ModificationInput<'a> {
    /// The cached objects.
    pub cache: &'a cofferdam_cluster::Cache,
    /// Capabilities of the claim's driver.
    pub abilities: ResizerAbilities,
    /// True if this process's last `ControllerModifyVolume` call for the claim failed and can no longer take
    /// effect.
    pub is_last_call_final: bool,
    /// The class that was infeasible, until its retry after `--retry-interval-max`.
    pub infeasible: Option<&'a str>,
    /// The missing or unusable class that an event of this process has reported. `None` once the event is to
    /// be repeated.
    pub pending_reported: Option<&'a str>,
    /// Claim and class of a successful call in this reconcile. A new claim of the same name has another
    /// volume.
    pub completed: Option<(&'a Uid, &'a str)>,
}

/// The next effect for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ModificationVerdict {
    /// No effect; the text is the reason.
    NoAction(&'static str),
    /// No effect: the class was infeasible, and its retry after `--retry-interval-max` is not due.
    WaitForRetry,
    /// The claim no longer requests a class: remove the condition `ModifyingVolume`.
    Cancel,
    /// The class is missing, cannot be decoded or belongs to another driver: set the state `Pending`, if it
    /// is not set, and emit the event. The fields are the class and the event message.
    MarkPending(Box<str>, String),
    /// The class of a modification in progress is missing, cannot be decoded or belongs to another driver:
    /// emit the event and retry with back-off. The text is the event message.
    Retry(String),
    /// The driver modifies no volumes: emit the event and wait for a change of the objects. The text is the
    /// event message.
    Reject(String),
    /// Write the target class, the state `InProgress` and the condition `ModifyingVolume` to the claim's
    /// status.
    MarkInProgress(Box<str>),
    /// Call `ControllerModifyVolume`.
    Modify(Box<ModifyCall>),
    /// Write the class to the PersistentVolume.
    UpdateVolumeClass(Arc<Volume>, Box<str>),
    /// Write this class to the claim's status as the current one, and remove `status.modifyVolumeStatus` and
    /// the conditions of the modification.
    MarkFinished(Box<str>),
}

/// A `ControllerModifyVolume` call.
#[derive(Clone, Debug, PartialEq)]
pub struct ModifyCall {
    /// The PersistentVolume.
    pub volume: Arc<Volume>,
    /// Name of the target class.
    pub target: Box<str>,
    /// The volume handle.
    pub handle: VolumeHandle,
    /// Parameters of the class.
    pub parameters: Parameters,
}

/// The reason why a volume cannot get a VolumeAttributesClass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum AttributesClassError {
    // external-resizer's text.
    #[error("VAC {0:?} does not exist.")]
    Missing(Box<str>),
    #[error("VAC {0:?} cannot be decoded.")]
    Undecodable(Box<str>),
    #[error("VAC {name:?} has driver {found}; expected {expected}")]
    OtherDriver { name: Box<str>, found: DriverName, expected: DriverName },
}

/// Decides the next effect of a claim's modification. Source: external-resizer's `modify`.
pub fn decide_modification(input: ModificationInput<'_>, claim: &Claim) -> ModificationVerdict {
    let requested = &*claim.attributes_class;
    let (volume, csi) = match volume_of(input.cache, claim) {
        Ok(found) => found,
        Err(reason) => {
            let is_other = requested != claim.status_attributes_class.as_deref().unwrap_or_default();
            return match in_tree_problem(input.cache, claim, "modify").filter(|_| is_other) {
                Some(problem) => ModificationVerdict::Reject(problem),
                None => ModificationVerdict::NoAction(reason),
            };
        }
    };
    let progress = claim.progress();
    let status = progress.modification.as_ref();
    if status.is_none() && requested == claim.status_attributes_class.as_deref().unwrap_or_default() {
        return ModificationVerdict::NoAction("the claim has the requested class");
    }
    let in_progress =
        status.filter(|status| status.state == ModifyState::InProgress && !status.target_class.is_empty());
    if requested.is_empty() && in_progress.is_none() {
        return match progress.condition(ClaimConditionType::ModifyingVolume) {
            Some(_) => ModificationVerdict::Cancel,
            None => ModificationVerdict::NoAction("the claim requests no class"),
        };
    }
    let target = match in_progress {
        // The last call may still take effect, or the claim no longer requests a class: the call is repeated
        // with the same class.
        Some(in_progress) if !input.is_last_call_final || requested.is_empty() => &*in_progress.target_class,
        Some(_) | None => requested,
    };
    if input.infeasible == Some(target) {
        return ModificationVerdict::WaitForRetry;
    }
    if !input.abilities.modifies {
        return ModificationVerdict::Reject(format!("driver {} does not support modification", csi.driver));
    }
    let in_progress = in_progress.filter(|in_progress| &*in_progress.target_class == target);
    if input.completed == Some((&claim.meta.uid, target)) && in_progress.is_some() {
        return match *volume.attributes_class == *target {
            true => ModificationVerdict::MarkFinished(target.into()),
            false => ModificationVerdict::UpdateVolumeClass(volume, target.into()),
        };
    }
    let class = match find_class(input, target, &csi.driver) {
        Ok(class) => class,
        Err(error) if in_progress.is_some() => return ModificationVerdict::Retry(error.to_string()),
        Err(_) if input.pending_reported == Some(target) && status.is_some_and(is_pending) => {
            return ModificationVerdict::NoAction("waiting for the class");
        }
        Err(error) => return ModificationVerdict::MarkPending(target.into(), error.to_string()),
    };
    if in_progress.is_none() || progress.condition(ClaimConditionType::ModifyingVolume).is_none() {
        return ModificationVerdict::MarkInProgress(target.into());
    }
    let parameters = class.parameters.clone();
    ModificationVerdict::Modify(Box::new(ModifyCall {
        volume,
        target: target.into(),
        handle: csi.handle,
        parameters,
    }))
}

/// Returns true if the claim waits for its class. The status then names no class, or the target class of an
/// earlier modification, which the volume may have in part.
pub(super) fn is_pending(status: &ModifyVolumeStatus) -> bool {
    status.state == ModifyState::Pending
}

fn find_class(
    input: ModificationInput<'_>,
    name: &str,
    driver: &DriverName,
) -> Result<Arc<VolumeAttributesClass>, AttributesClassError> {
    match input.cache.attributes_classes.get(&name.into()) {
        Lookup::Found(class) if class.driver == *driver => Ok(class),
        Lookup::Found(class) => Err(AttributesClassError::OtherDriver {
            name: name.into(),
            found: class.driver.clone(),
            expected: driver.clone(),
        }),
        Lookup::Undecodable(_) => Err(AttributesClassError::Undecodable(name.into())),
        Lookup::Missing => Err(AttributesClassError::Missing(name.into())),
    }
}

/// Classifies a failed `ControllerModifyVolume` call.
pub fn classify_failure(error: &StorageError) -> ResizeFailure {
    match (error.finality, error.kind == ErrorKind::InvalidArgument) {
        (Finality::InProgress | Finality::Unknown, _) => ResizeFailure::InDoubt,
        (Finality::Final, true) => ResizeFailure::Infeasible,
        (Finality::Final, false) => ResizeFailure::Final,
    }
}

/// Returns true if a change of a claim requires a reconcile of its modification: the claim is new (`old` is
/// `None`) or was created again, or its phase, volume, requested class or current class has changed, or
/// `status.modifyVolumeStatus` was removed.
pub fn is_relevant_change(old: Option<&Claim>, new: &Claim) -> bool {
    let has_no_status = |claim: &Claim| claim.progress().modification.is_none();
    old.is_none_or(|old| {
        old.meta.uid != new.meta.uid
            || (old.phase, &old.volume) != (new.phase, &new.volume)
            || old.attributes_class != new.attributes_class
            || old.status_attributes_class != new.status_attributes_class
            || (has_no_status(new) && !has_no_status(old))
    })
}

#[cfg(test)]
mod tests;
