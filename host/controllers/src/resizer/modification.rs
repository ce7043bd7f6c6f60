//! What modifying decides: a claim names a VolumeAttributesClass, and its volume gets that class' parameters.
//! Source: external-resizer's modification of volumes.

use std::sync::Arc;

use cofferdam_cluster::Lookup;
use cofferdam_domain::{
    Claim, ClaimConditionType, ModifyState, ModifyVolumeStatus, Uid, Volume, VolumeAttributesClass,
    VolumeHandle,
    storage::{ErrorKind, Finality, Parameters, StorageError},
};

use super::rules::{ResizeFailure, ResizerAbilities, volume_of};

/// The world that a decision about a claim is about.
#[derive(Clone, Copy, Debug)]
pub struct ModificationInput<'a> {
    /// The cached objects.
    pub cache: &'a cofferdam_cluster::Cache,
    /// What the claim's driver can do.
    pub abilities: ResizerAbilities,
    /// Whether this process knows that nothing can come any more of the last call.
    pub is_last_call_final: bool,
    /// The class that was found impossible a short while ago.
    pub infeasible: Option<&'a str>,
    /// The class that is known to be waited for, to whoever looks at the claim's events.
    pub pending_reported: Option<&'a str>,
    /// The claim for which the driver has changed the volume in this run, and the class: a successor of the
    /// claim's name has another volume.
    pub completed: Option<(&'a Uid, &'a str)>,
}

/// The next effect for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ModificationVerdict {
    /// Nothing; the text says why, for people.
    NoAction(&'static str),
    /// Nothing before the time of the next slow try.
    WaitForRetry,
    /// Nobody asks for it any more: take the conditions away.
    Cancel,
    /// The class is not there, or of another driver: write down that it is waited for.
    MarkPending(Box<str>, String),
    /// It cannot be done now: tell, and try again.
    Retry(String),
    /// It cannot be done before something changes: tell, and wait.
    Reject(String),
    /// Write down which class the volume is to get.
    MarkInProgress(Box<str>),
    /// Ask the driver.
    Modify(Box<ModifyCall>),
    /// Write the volume's class on its object.
    UpdateVolumeClass(Arc<Volume>, Box<str>),
    /// Say that the claim has this class.
    MarkFinished(Box<str>),
}

/// What a driver is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct ModifyCall {
    /// The volume's object.
    pub volume: Arc<Volume>,
    /// The class.
    pub target: Box<str>,
    /// The volume.
    pub handle: VolumeHandle,
    /// The class' parameters.
    pub parameters: Parameters,
}

/// Decides the next step of a claim's modification.
pub fn decide_modification(input: ModificationInput<'_>, claim: &Claim) -> ModificationVerdict {
    let (volume, csi) = match volume_of(input.cache, claim) {
        Ok(found) => found,
        Err(reason) => return ModificationVerdict::NoAction(reason),
    };
    let requested = &*claim.attributes_class;
    let progress = claim.progress();
    let status = progress.modification.as_ref();
    if status.is_none() && requested == claim.status_attributes_class.as_deref().unwrap_or_default() {
        return ModificationVerdict::NoAction("it has the class that it asks for");
    }
    let in_progress =
        status.filter(|status| status.state == ModifyState::InProgress && !status.target_class.is_empty());
    if requested.is_empty() && in_progress.is_none() {
        return match progress.condition(ClaimConditionType::ModifyingVolume) {
            Some(_) => ModificationVerdict::Cancel,
            None => ModificationVerdict::NoAction("it asks for no class any more"),
        };
    }
    let target = match in_progress {
        // Nobody knows how it has ended, or will: what was asked for comes first.
        Some(in_progress) if !input.is_last_call_final || requested.is_empty() => &*in_progress.target_class,
        Some(_) | None => requested,
    };
    if input.infeasible == Some(target) {
        return ModificationVerdict::WaitForRetry;
    }
    if !input.abilities.modifies {
        return ModificationVerdict::Reject(format!("driver {} does not modify volumes", csi.driver));
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
        Err(problem) if in_progress.is_some() => return ModificationVerdict::Retry(problem),
        Err(_) if input.pending_reported == Some(target) && status.is_some_and(is_pending) => {
            return ModificationVerdict::NoAction("it waits for its class");
        }
        Err(problem) => return ModificationVerdict::MarkPending(target.into(), problem),
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

/// Whether a class is waited for. Its name does not stand in the status: there stands the one that the volume
/// may have in part.
pub(super) fn is_pending(status: &ModifyVolumeStatus) -> bool {
    status.state == ModifyState::Pending
}

fn find_class(
    input: ModificationInput<'_>,
    name: &str,
    driver: &cofferdam_domain::DriverName,
) -> Result<Arc<VolumeAttributesClass>, String> {
    match input.cache.attributes_classes.get(&name.into()) {
        Lookup::Found(class) if class.driver == *driver => Ok(class),
        Lookup::Found(class) => Err(format!("VAC {name:?} is of driver {}: expected {driver}", class.driver)),
        Lookup::Undecodable(_) => Err(format!("VAC {name:?} cannot be read.")),
        // external-resizer's words.
        Lookup::Missing => Err(format!("VAC {name:?} does not exist.")),
    }
}

/// What a failed call means.
pub fn classify_failure(error: &StorageError) -> ResizeFailure {
    match (error.finality, error.kind == ErrorKind::InvalidArgument) {
        (Finality::InProgress | Finality::Unknown, _) => ResizeFailure::InDoubt,
        (Finality::Final, true) => ResizeFailure::Infeasible,
        (Finality::Final, false) => ResizeFailure::Final,
    }
}

/// Whether a change of a claim is a reason to look at its class.
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
