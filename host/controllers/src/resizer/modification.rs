//! What modifying decides: a claim names a VolumeAttributesClass, and its volume gets that class' parameters. Source:
//! external-resizer's modification of volumes.

use std::sync::Arc;

use cofferdam_cluster::Seen;
use cofferdam_domain::{
    AttributesClass, Claim, ConditionKind, Modification, ModifyState, Uid, Volume, VolumeHandle,
    storage::{ErrorKind, Finality, Parameters, StorageError},
};

use super::rules::{Able, Failure, volume_of};

/// The world that a decision about a claim is about.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The cached objects.
    pub cache: &'a cofferdam_cluster::Cache,
    /// What the claim's driver can do.
    pub able: Able,
    /// Whether this process knows that nothing can come any more of the last call.
    pub closed: bool,
    /// The class that was found impossible a short while ago.
    pub slow: Option<&'a str>,
    /// The class that is known to be waited for, to whoever looks at the claim's events.
    pub told: Option<&'a str>,
    /// The claim for which the driver has changed the volume in this run, and the class: a successor of the claim's name has another
    /// volume.
    pub modified: Option<(&'a Uid, &'a str)>,
}

/// The next effect for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Nothing; the text says why, for people.
    Settled(&'static str),
    /// Nothing before the time of the next slow try.
    Slow,
    /// Nobody asks for it any more: take the conditions away.
    Cancel,
    /// The class is not there, or of another driver: write down that it is waited for.
    Pend(Box<str>, String),
    /// It cannot be done now: tell, and try again.
    Refuse(String),
    /// It cannot be done before something changes: tell, and wait.
    Hopeless(String),
    /// Write down which class the volume is to get.
    Begin(Box<str>),
    /// Ask the driver.
    Modify(Box<Modify>),
    /// Write the volume's class on its object.
    Record(Arc<Volume>, Box<str>),
    /// Say that the claim has this class.
    Finish(Box<str>),
}

/// What a driver is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Modify {
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
pub fn modification(view: View<'_>, claim: &Claim) -> Verdict {
    let (volume, csi) = match volume_of(view.cache, claim) {
        Ok(found) => found,
        Err(why) => return Verdict::Settled(why),
    };
    let wanted = &*claim.attributes_class;
    let progress = claim.progress();
    let status = progress.modification.as_ref();
    if status.is_none() && wanted == claim.status_attributes_class.as_deref().unwrap_or_default() {
        return Verdict::Settled("it has the class that it asks for");
    }
    let running =
        status.filter(|status| status.state == ModifyState::InProgress && !status.target.is_empty());
    if wanted.is_empty() && running.is_none() {
        return match progress.condition(ConditionKind::ModifyingVolume) {
            Some(_) => Verdict::Cancel,
            None => Verdict::Settled("it asks for no class any more"),
        };
    }
    let target = match running {
        // Nobody knows how it has ended, or will: what was asked for comes first.
        Some(running) if !view.closed || wanted.is_empty() => &*running.target,
        Some(_) | None => wanted,
    };
    if view.slow == Some(target) {
        return Verdict::Slow;
    }
    if !view.able.modifies {
        return Verdict::Hopeless(format!("driver {} does not modify volumes", csi.driver));
    }
    let running = running.filter(|running| &*running.target == target);
    if view.modified == Some((&claim.meta.uid, target)) && running.is_some() {
        return match *volume.attributes_class == *target {
            true => Verdict::Finish(target.into()),
            false => Verdict::Record(volume, target.into()),
        };
    }
    let class = match class(view, target, &csi.driver) {
        Ok(class) => class,
        Err(problem) if running.is_some() => return Verdict::Refuse(problem),
        Err(_) if view.told == Some(target) && status.is_some_and(waits) => {
            return Verdict::Settled("it waits for its class");
        }
        Err(problem) => return Verdict::Pend(target.into(), problem),
    };
    if running.is_none() || progress.condition(ConditionKind::ModifyingVolume).is_none() {
        return Verdict::Begin(target.into());
    }
    let parameters = class.parameters.clone();
    Verdict::Modify(Box::new(Modify { volume, target: target.into(), handle: csi.handle, parameters }))
}

/// Whether a class is waited for. Its name does not stand in the status: there stands the one that the volume may have in part.
pub(super) fn waits(status: &Modification) -> bool {
    status.state == ModifyState::Pending
}

fn class(
    view: View<'_>,
    name: &str,
    driver: &cofferdam_domain::DriverName,
) -> Result<Arc<AttributesClass>, String> {
    match view.cache.attributes_classes.get(&name.into()) {
        Seen::Known(class) if class.driver == *driver => Ok(class),
        Seen::Known(class) => Err(format!("VAC {name:?} is of driver {}: expected {driver}", class.driver)),
        Seen::Opaque(_) => Err(format!("VAC {name:?} cannot be read.")),
        // external-resizer's words.
        Seen::Absent => Err(format!("VAC {name:?} does not exist.")),
    }
}

/// What a failed call means.
pub fn failure(error: &StorageError) -> Failure {
    match (error.finality, error.kind == ErrorKind::InvalidArgument) {
        (Finality::InProgress | Finality::Unknown, _) => Failure::Open,
        (Finality::Final, true) => Failure::Infeasible,
        (Finality::Final, false) => Failure::Closed,
    }
}

/// Whether a change of a claim is a reason to look at its class.
pub fn matters(old: Option<&Claim>, new: &Claim) -> bool {
    let gone = |claim: &Claim| claim.progress().modification.is_none();
    old.is_none_or(|old| {
        old.meta.uid != new.meta.uid
            || (old.phase, &old.volume) != (new.phase, &new.volume)
            || old.attributes_class != new.attributes_class
            || old.status_attributes_class != new.status_attributes_class
            || (gone(new) && !gone(old))
    })
}

#[cfg(test)]
mod tests;
