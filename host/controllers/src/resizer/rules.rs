//! What growing decides. Source: external-resizer's expansion with recovery from failure. What is asked of a
//! driver stands in the claim's status before, so that whoever comes next asks the same again as long as
//! nobody knows how it has ended.

use std::sync::Arc;

use cofferdam_cluster::{Cache, Lookup};
use cofferdam_domain::{
    Claim, ClaimConditionType, ClaimPhase, Quantity, ResizeState, Uid, Volume, names,
    storage::{CapacityRange, ErrorKind, ExpandVolume, ExpandedVolume, Finality, StorageError},
    volume::CsiVolumeSource,
};

use crate::attacher::rules::capability;

/// What a driver can do, as far as decisions depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResizerAbilities {
    /// Volumes can grow.
    pub expands: bool,
    /// Volumes can be modified.
    pub modifies: bool,
    /// It tells one writer on a node from many (CSI `SINGLE_NODE_MULTI_WRITER`).
    pub single_node_multi_writer: bool,
}

/// What this process remembers of a claim's growth. A new process remembers nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastExpansion {
    /// The driver's last answer: whether something may still come of what it was asked for.
    pub finality: Option<Finality>,
    /// The driver has said that it does not grow the volume while it is in use.
    pub in_use: bool,
    /// The size was found impossible a short while ago.
    pub infeasible: bool,
}

/// What a driver has answered in this run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpansionResult {
    /// The claim that it was asked for: a successor of its name has another volume.
    pub claim: Uid,
    /// What it was asked for.
    pub target: Quantity,
    /// What it has answered.
    pub volume: ExpandedVolume,
}

/// The world that a decision about a claim is about.
#[derive(Clone, Copy, Debug)]
pub struct ExpansionInput<'a> {
    /// The cached objects.
    pub cache: &'a Cache,
    /// What the claim's driver can do.
    pub abilities: ResizerAbilities,
    /// What is remembered.
    pub last_expansion: LastExpansion,
    /// What the driver has answered in this run.
    pub result: Option<&'a ExpansionResult>,
}

/// The next effect for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ExpansionVerdict {
    /// Nothing; the text says why, for people.
    NoAction(&'static str),
    /// Take the mark of a growth that has come to its end off the volume's object.
    RemovePreResizeCapacity(Arc<Volume>),
    /// Nothing before the time of the next slow try.
    WaitForRetry,
    /// It cannot be done now: tell, and try again.
    Retry(String),
    /// It cannot be done before something changes: tell, and wait.
    Reject(String),
    /// Write down what the driver is asked for.
    MarkInProgress(InProgressUpdate),
    /// Ask the driver.
    Expand(Box<ExpandCall>),
    /// Write the volume's new size on its object.
    UpdateVolumeCapacity(CapacityUpdate),
    /// Hand the claim over to the node.
    MarkNodePending,
    /// Say that the claim has this size.
    MarkFinished(Quantity),
}

/// What is written down before a driver is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InProgressUpdate {
    /// The size.
    pub target: Quantity,
    /// Whether this is another growth than the one that the status tells of.
    pub is_new: bool,
}

/// What a driver is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpandCall {
    /// The volume's object.
    pub volume: Arc<Volume>,
    /// The size.
    pub target: Quantity,
    /// The call.
    pub request: ExpandVolume,
}

/// What becomes of the volume's object.
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityUpdate {
    /// The object.
    pub volume: Arc<Volume>,
    /// Its new size, where it is larger than before.
    pub size: Option<Quantity>,
    /// The claim's size before, which is noted until the node has done its part.
    pub pre_resize_capacity: Option<Quantity>,
}

/// Decides the next step of a claim's growth.
pub fn decide_expansion(input: ExpansionInput<'_>, claim: &Claim) -> ExpansionVerdict {
    let (volume, csi) = match volume_of(input.cache, claim) {
        Ok(found) => found,
        Err(reason) => return ExpansionVerdict::NoAction(reason),
    };
    let size = claim.status_capacity.unwrap_or_default();
    if volume.meta.has_annotation(names::PRE_RESIZE_CAPACITY)
        && volume.capacity.is_some_and(|capacity| size >= capacity)
    {
        return ExpansionVerdict::RemovePreResizeCapacity(volume);
    }
    let request = match &claim.request {
        Ok(request) if *request <= size => {
            return ExpansionVerdict::NoAction("it has the size that it asks for");
        }
        Ok(request) => *request,
        Err(error) => return ExpansionVerdict::Reject(format!("spec.resources.requests.storage: {error}")),
    };
    if !input.abilities.expands {
        return ExpansionVerdict::Reject(format!("driver {} does not expand volumes", csi.driver));
    }
    let Some(target) = target_size(claim, &volume, request, input.last_expansion) else {
        return ExpansionVerdict::NoAction("the node has to do its part");
    };
    let progress = claim.progress();
    let allocated = progress.allocated_resources == Some(target);
    let is_for_claim = |result: &&ExpansionResult| result.claim == claim.meta.uid && result.target == target;
    if let Some(result) = input.result.filter(is_for_claim).filter(|_| allocated) {
        return decide_after_expand(claim, volume, result.volume);
    }
    if allocated && input.last_expansion.infeasible {
        return ExpansionVerdict::WaitForRetry;
    }
    let Some(bytes) = target.to_csi_bytes() else {
        return ExpansionVerdict::Reject(format!(
            "spec.resources.requests.storage is {target}: expected at most {} bytes",
            i64::MAX
        ));
    };
    let capability = match capability(&volume, &csi, input.abilities.single_node_multi_writer, None) {
        Ok(capability) => capability,
        Err(problem) => return ExpansionVerdict::Retry(problem),
    };
    let is_new = !allocated || progress.resize.is_none();
    let is_marked = progress.is_condition_true(ClaimConditionType::Resizing)
        && !claim.meta.has_annotation(names::NODE_EXPANSION_NOT_REQUIRED);
    if is_new || !is_marked {
        return ExpansionVerdict::MarkInProgress(InProgressUpdate { target, is_new });
    }
    if input.last_expansion.in_use
        && let Some(pod) = pod_in_use(input.cache, claim)
    {
        return ExpansionVerdict::Retry(format!(
            "driver {} does not expand a volume that is in use, and pod {pod} uses it",
            csi.driver
        ));
    }
    let request = ExpandVolume {
        handle: csi.handle,
        capacity: CapacityRange { required: Some(bytes), limit: None },
        capability: Some(capability),
    };
    ExpansionVerdict::Expand(Box::new(ExpandCall { volume, target, request }))
}

/// What is written after the driver's answer: the volume first, for the claim's status tells that all is
/// done.
fn decide_after_expand(claim: &Claim, volume: Arc<Volume>, answer: ExpandedVolume) -> ExpansionVerdict {
    let size = Quantity::from_bytes(answer.capacity);
    let larger = volume.capacity.is_none_or(|capacity| capacity < size);
    let is_recorded = volume.meta.has_annotation(names::PRE_RESIZE_CAPACITY);
    let pre_resize_capacity =
        claim.status_capacity.filter(|_| answer.node_expansion_required && !is_recorded);
    if larger || pre_resize_capacity.is_some() {
        return ExpansionVerdict::UpdateVolumeCapacity(CapacityUpdate {
            volume,
            size: larger.then_some(size),
            pre_resize_capacity,
        });
    }
    if answer.node_expansion_required {
        ExpansionVerdict::MarkNodePending
    } else {
        ExpansionVerdict::MarkFinished(size)
    }
}

/// The size that the driver is to be asked for; none where it is the node's turn.
fn target_size(
    claim: &Claim,
    volume: &Volume,
    request: Quantity,
    last_expansion: LastExpansion,
) -> Option<Quantity> {
    let progress = claim.progress();
    // A size that the claim has already is of an earlier growth.
    let allocated = progress.allocated_resources.filter(|allocated| Some(*allocated) > claim.status_capacity);
    let previous_target = allocated.unwrap_or(request);
    let capacity = volume.capacity.unwrap_or_default();
    let smaller = capacity < request;
    match progress.resize {
        Some(ResizeState::NodePending | ResizeState::NodeInProgress)
            if smaller && capacity < previous_target =>
        {
            Some(previous_target)
        }
        Some(ResizeState::NodePending | ResizeState::NodeInProgress) => None,
        Some(ResizeState::NodeInfeasible) => Some(previous_target),
        // Nobody knows how it has ended, or will: what was asked for comes first.
        Some(ResizeState::ControllerInProgress)
            if smaller && last_expansion.finality == Some(Finality::Final) =>
        {
            Some(request)
        }
        Some(ResizeState::ControllerInProgress) => Some(previous_target),
        Some(ResizeState::ControllerInfeasible) if smaller && !last_expansion.is_in_doubt() => Some(request),
        Some(ResizeState::ControllerInfeasible) => Some(previous_target),
        None if smaller => Some(request),
        None if allocated.is_none()
            && progress.is_condition_true(ClaimConditionType::FileSystemResizePending) =>
        {
            None
        }
        None => Some(previous_target),
    }
}

impl LastExpansion {
    /// Whether something may still come of the last call of this process.
    fn is_in_doubt(self) -> bool {
        matches!(self.finality, Some(Finality::InProgress | Finality::Unknown))
    }
}

/// The claim's volume, of a CSI driver, where both are bound to each other.
///
/// # Errors
/// Why there is none, for people.
pub fn volume_of(cache: &Cache, claim: &Claim) -> Result<(Arc<Volume>, CsiVolumeSource), &'static str> {
    let name = match (&claim.volume, claim.phase) {
        (Some(name), ClaimPhase::Bound) => name,
        (_, ClaimPhase::Bound | ClaimPhase::Pending | ClaimPhase::Lost) => return Err("it is not bound"),
    };
    let volume = match cache.volumes.get(name) {
        Lookup::Found(volume) => volume,
        Lookup::Undecodable(_) => return Err("its volume cannot be read"),
        Lookup::Missing => return Err("its volume is not there"),
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
fn pod_in_use(cache: &Cache, claim: &Claim) -> Option<String> {
    let pods = cache.pods_using_claim(&claim.key);
    pods.iter().find(|pod| !pod.terminated).map(|pod| pod.key.to_string())
}

/// How a growth fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeFailure {
    /// Something may still come of it: the same is asked again.
    InDoubt,
    /// Nothing came of it, and another size may be asked for.
    Final,
    /// This size is impossible.
    Infeasible,
}

/// What a failed call means.
pub fn classify_failure(error: &StorageError) -> ResizeFailure {
    match (error.finality, error.kind) {
        (Finality::InProgress | Finality::Unknown, _) => ResizeFailure::InDoubt,
        (Finality::Final, ErrorKind::InvalidArgument | ErrorKind::OutOfRange | ErrorKind::NotFound) => {
            ResizeFailure::Infeasible
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
        ) => ResizeFailure::Final,
    }
}

/// Whether a volume's answer is at least what was asked for. One that is smaller would be written down as the
/// volume's size.
///
/// # Errors
/// A sentence for people.
pub fn check_capacity(target: Quantity, answer: ExpandedVolume) -> Result<(), String> {
    let size = Quantity::from_bytes(answer.capacity);
    match size < target {
        true => Err(format!("the driver has made the volume {size} large: expected at least {target}")),
        false => Ok(()),
    }
}

/// Whether a change of a claim is a reason to look at its growth. What we write ourselves is none: else the
/// back-off after a failure would end with the writing of that failure.
pub fn is_relevant_change(old: Option<&Claim>, new: &Claim) -> bool {
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
