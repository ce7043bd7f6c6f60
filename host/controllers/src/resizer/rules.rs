//! What growing decides. Source: external-resizer's expansion with recovery from failure. What is asked of a driver stands in the
//! claim's status before, so that whoever comes next asks the same again as long as nobody knows how it has ended.

use std::sync::Arc;

use cofferdam_cluster::{Cache, Seen};
use cofferdam_domain::{
    Claim, ClaimPhase, ConditionKind, Quantity, ResizeState, Uid, Volume, names,
    storage::{CapacityRange, ErrorKind, ExpandVolume, ExpandedVolume, Finality, StorageError},
    volume::CsiSource,
};

use crate::attacher::rules::capability;

/// What a driver can do, as far as decisions depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Able {
    /// Volumes can grow.
    pub expands: bool,
    /// Volumes can be modified.
    pub modifies: bool,
    /// It tells one writer on a node from many (CSI `SINGLE_NODE_MULTI_WRITER`).
    pub tells_writers: bool,
}

/// What this process remembers of a claim's growth. A new process remembers nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The driver's last answer: whether something may still come of what it was asked for.
    pub last: Option<Finality>,
    /// The driver has said that it does not grow the volume while it is in use.
    pub in_use: bool,
    /// The size was found impossible a short while ago.
    pub slow: bool,
}

/// What a driver has answered in this run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grown {
    /// The claim that it was asked for: a successor of its name has another volume.
    pub claim: Uid,
    /// What it was asked for.
    pub target: Quantity,
    /// What it has answered.
    pub volume: ExpandedVolume,
}

/// The world that a decision about a claim is about.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The cached objects.
    pub cache: &'a Cache,
    /// What the claim's driver can do.
    pub able: Able,
    /// What is remembered.
    pub known: Known,
    /// What the driver has answered in this run.
    pub grown: Option<&'a Grown>,
}

/// The next effect for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Nothing; the text says why, for people.
    Settled(&'static str),
    /// Take the mark of a growth that has come to its end off the volume's object.
    Forget(Arc<Volume>),
    /// Nothing before the time of the next slow try.
    Slow,
    /// It cannot be done now: tell, and try again.
    Refuse(String),
    /// It cannot be done before something changes: tell, and wait.
    Hopeless(String),
    /// Write down what the driver is asked for.
    Begin(Begin),
    /// Ask the driver.
    Expand(Box<Expand>),
    /// Write the volume's new size on its object.
    Enlarge(Enlarge),
    /// Hand the claim over to the node.
    HandOver,
    /// Say that the claim has this size.
    Finish(Quantity),
}

/// What is written down before a driver is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The size.
    pub target: Quantity,
    /// Whether this is another growth than the one that the status tells of.
    pub anew: bool,
}

/// What a driver is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Expand {
    /// The volume's object.
    pub volume: Arc<Volume>,
    /// The size.
    pub target: Quantity,
    /// The call.
    pub request: ExpandVolume,
}

/// What becomes of the volume's object.
#[derive(Clone, Debug, PartialEq)]
pub struct Enlarge {
    /// The object.
    pub volume: Arc<Volume>,
    /// Its new size, where it is larger than before.
    pub size: Option<Quantity>,
    /// The claim's size before, which is noted until the node has done its part.
    pub before: Option<Quantity>,
}

/// Decides the next step of a claim's growth.
pub fn growth(view: View<'_>, claim: &Claim) -> Verdict {
    let (volume, csi) = match volume_of(view.cache, claim) {
        Ok(found) => found,
        Err(why) => return Verdict::Settled(why),
    };
    let size = claim.status_capacity.unwrap_or_default();
    if volume.meta.has_annotation(names::PRE_RESIZE_CAPACITY)
        && volume.capacity.is_some_and(|had| size >= had)
    {
        return Verdict::Forget(volume);
    }
    let request = match &claim.request {
        Ok(request) if *request <= size => return Verdict::Settled("it has the size that it asks for"),
        Ok(request) => *request,
        Err(error) => return Verdict::Hopeless(format!("spec.resources.requests.storage: {error}")),
    };
    if !view.able.expands {
        return Verdict::Hopeless(format!("driver {} does not expand volumes", csi.driver));
    }
    let Some(target) = target(claim, &volume, request, view.known) else {
        return Verdict::Settled("the node has to do its part");
    };
    let progress = claim.progress();
    let allocated = progress.allocated == Some(target);
    let ours = |grown: &&Grown| grown.claim == claim.meta.uid && grown.target == target;
    if let Some(grown) = view.grown.filter(ours).filter(|_| allocated) {
        return recorded(claim, volume, grown.volume);
    }
    if allocated && view.known.slow {
        return Verdict::Slow;
    }
    let Some(bytes) = target.to_csi_bytes() else {
        return Verdict::Hopeless(format!(
            "spec.resources.requests.storage is {target}: expected at most {} bytes",
            i64::MAX
        ));
    };
    let capability = match capability(&volume, &csi, view.able.tells_writers, None) {
        Ok(capability) => capability,
        Err(problem) => return Verdict::Refuse(problem),
    };
    let anew = !allocated || progress.resize.is_none();
    let marked = progress.holds(ConditionKind::Resizing)
        && !claim.meta.has_annotation(names::NODE_EXPANSION_NOT_REQUIRED);
    if anew || !marked {
        return Verdict::Begin(Begin { target, anew });
    }
    if view.known.in_use
        && let Some(user) = user(view.cache, claim)
    {
        return Verdict::Refuse(format!(
            "driver {} does not expand a volume that is in use, and pod {user} uses it",
            csi.driver
        ));
    }
    let request = ExpandVolume {
        handle: csi.handle,
        capacity: CapacityRange { required: Some(bytes), limit: None },
        capability: Some(capability),
    };
    Verdict::Expand(Box::new(Expand { volume, target, request }))
}

/// What is written after the driver's answer: the volume first, for the claim's status tells that all is done.
fn recorded(claim: &Claim, volume: Arc<Volume>, answer: ExpandedVolume) -> Verdict {
    let size = Quantity::from_bytes(answer.capacity);
    let larger = volume.capacity.is_none_or(|had| had < size);
    let noted = volume.meta.has_annotation(names::PRE_RESIZE_CAPACITY);
    let before = claim.status_capacity.filter(|_| answer.node_expansion && !noted);
    if larger || before.is_some() {
        return Verdict::Enlarge(Enlarge { volume, size: larger.then_some(size), before });
    }
    if answer.node_expansion { Verdict::HandOver } else { Verdict::Finish(size) }
}

/// The size that the driver is to be asked for; none where it is the node's turn.
fn target(claim: &Claim, volume: &Volume, request: Quantity, known: Known) -> Option<Quantity> {
    let progress = claim.progress();
    // A size that the claim has already is of an earlier growth.
    let allocated = progress.allocated.filter(|allocated| Some(*allocated) > claim.status_capacity);
    let earlier = allocated.unwrap_or(request);
    let capacity = volume.capacity.unwrap_or_default();
    let smaller = capacity < request;
    match progress.resize {
        Some(ResizeState::NodePending | ResizeState::NodeInProgress) if smaller && capacity < earlier => {
            Some(earlier)
        }
        Some(ResizeState::NodePending | ResizeState::NodeInProgress) => None,
        Some(ResizeState::NodeInfeasible) => Some(earlier),
        // Nobody knows how it has ended, or will: what was asked for comes first.
        Some(ResizeState::ControllerInProgress) if smaller && known.last == Some(Finality::Final) => {
            Some(request)
        }
        Some(ResizeState::ControllerInProgress) => Some(earlier),
        Some(ResizeState::ControllerInfeasible) if smaller && !known.is_open() => Some(request),
        Some(ResizeState::ControllerInfeasible) => Some(earlier),
        None if smaller => Some(request),
        None if allocated.is_none() && progress.holds(ConditionKind::FileSystemResizePending) => None,
        None => Some(earlier),
    }
}

impl Known {
    /// Whether something may still come of the last call of this process.
    fn is_open(self) -> bool {
        matches!(self.last, Some(Finality::InProgress | Finality::Unknown))
    }
}

/// The claim's volume, of a CSI driver, where both are bound to each other.
///
/// # Errors
/// Why there is none, for people.
pub fn volume_of(cache: &Cache, claim: &Claim) -> Result<(Arc<Volume>, CsiSource), &'static str> {
    let name = match (&claim.volume, claim.phase) {
        (Some(name), ClaimPhase::Bound) => name,
        (_, ClaimPhase::Bound | ClaimPhase::Pending | ClaimPhase::Lost) => return Err("it is not bound"),
    };
    let volume = match cache.volumes.get(name) {
        Seen::Known(volume) => volume,
        Seen::Opaque(_) => return Err("its volume cannot be read"),
        Seen::Absent => return Err("its volume is not there"),
    };
    let reference = volume.claim_ref.as_ref();
    if !reference.is_some_and(|r| r.key == claim.key && r.uid.as_ref() == Some(&claim.meta.uid)) {
        return Err("its volume is not bound to it");
    }
    match volume.csi.clone() {
        Some(csi) => Ok((volume, csi)),
        None => Err("its volume is of no CSI driver"),
    }
}

/// A pod that uses the claim and has not ended.
fn user(cache: &Cache, claim: &Claim) -> Option<String> {
    let pods = cache.pods_using(&claim.key);
    pods.iter().find(|pod| !pod.terminated).map(|pod| pod.key.to_string())
}

/// How a growth fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Something may still come of it: the same is asked again.
    Open,
    /// Nothing came of it, and another size may be asked for.
    Closed,
    /// This size is impossible.
    Infeasible,
}

/// What a failed call means.
pub fn failure(error: &StorageError) -> Failure {
    match (error.finality, error.kind) {
        (Finality::InProgress | Finality::Unknown, _) => Failure::Open,
        (Finality::Final, ErrorKind::InvalidArgument | ErrorKind::OutOfRange | ErrorKind::NotFound) => {
            Failure::Infeasible
        }
        (
            Finality::Final,
            ErrorKind::AlreadyExists
            | ErrorKind::PermissionDenied
            | ErrorKind::Unauthenticated
            | ErrorKind::ResourceExhausted
            | ErrorKind::FailedPrecondition
            | ErrorKind::Aborted
            | ErrorKind::Unimplemented
            | ErrorKind::Internal
            | ErrorKind::Unavailable
            | ErrorKind::DeadlineExceeded
            | ErrorKind::Cancelled
            | ErrorKind::DataLoss
            | ErrorKind::Unknown,
        ) => Failure::Closed,
    }
}

/// Whether a volume's answer is at least what was asked for. One that is smaller would be written down as the volume's size.
///
/// # Errors
/// A sentence for people.
pub fn large_enough(target: Quantity, answer: ExpandedVolume) -> Result<(), String> {
    let size = Quantity::from_bytes(answer.capacity);
    match size < target {
        true => Err(format!("the driver has made the volume {size} large: expected at least {target}")),
        false => Ok(()),
    }
}

/// Whether a change of a claim is a reason to look at its growth. What we write ourselves is none: else the back-off after a failure
/// would end with the writing of that failure.
pub fn matters(old: Option<&Claim>, new: &Claim) -> bool {
    old.is_none_or(|old| {
        let resize = new.progress().resize;
        old.meta.uid != new.meta.uid
            || (old.phase, &old.volume, &old.request) != (new.phase, &new.volume, &new.request)
            || old.status_capacity != new.status_capacity
            || (old.progress().resize != resize && matches!(resize, None | Some(ResizeState::NodeInfeasible)))
    })
}

#[cfg(test)]
mod tests;
