//! Rules of volume expansion. Source: external-resizer 2.2, `pkg/controller/expand_and_recover.go`.
//!
//! The target size is written to the claim's status before the driver is called. After an unknown result, or
//! after a crash, the same call is therefore repeated, also by the next process.

use std::sync::Arc;

use cofferdam_cluster::{Cache, Lookup};
use cofferdam_domain::{
    Claim, ClaimConditionType, ClaimPhase, DriverName, Quantity, ResizeState, Uid, Volume, names,
    storage::{CapacityRange, ErrorKind, ExpandVolume, ExpandedVolume, Finality, StorageError},
    volume::CsiVolumeSource,
};

use crate::attacher::rules::capability;

/// Capabilities of a driver that the decisions depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResizerAbilities {
    /// The driver expands volumes (`EXPAND_VOLUME`).
    pub expands: bool,
    /// The driver modifies volumes (`MODIFY_VOLUME`).
    pub modifies: bool,
    /// The driver distinguishes one writer per node from several (`SINGLE_NODE_MULTI_WRITER`).
    pub single_node_multi_writer: bool,
}

/// State of a claim's expansion in this process. It is empty after a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastExpansion {
    /// The effect that this process's last `ControllerExpandVolume` call for the claim may still have:
    /// `Unknown` from the start of a call, then the finality of its error. `None` before the first call, and
    /// once the claim's status shows that the controller's part of the expansion is complete.
    pub finality: Option<Finality>,
    /// The last call failed with FailedPrecondition, the driver expands only volumes that are not in use, and
    /// this process watches Pods for the driver (`--handle-volume-inuse-error`).
    pub in_use: bool,
    /// The driver or the node found the claim's allocated size infeasible, and its retry after
    /// `--retry-interval-max` is not due.
    pub infeasible: bool,
}

/// A successful `ControllerExpandVolume` call in this reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpansionResult {
    /// The claim of the call. A new claim of the same name has another volume.
    pub claim: Uid,
    /// The requested size.
    pub target: Quantity,
    /// The response.
    pub volume: ExpandedVolume,
}

/// Input of [`decide_expansion`].
#[derive(Clone, Copy, Debug)]
pub struct ExpansionInput<'a> {
    /// The cached objects.
    pub cache: &'a Cache,
    /// Capabilities of the claim's driver.
    pub abilities: ResizerAbilities,
    /// Record the claim's size before the expansion in the PersistentVolume (feature gate
    /// `AnnotateFsResize`).
    pub annotates_size: bool,
    /// State of the claim's expansion in this process.
    pub last_expansion: LastExpansion,
    /// The last successful call in this reconcile; `None` before it.
    pub result: Option<&'a ExpansionResult>,
}

/// The next effect for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ExpansionVerdict {
    /// No effect; the text is the reason.
    NoAction(&'static str),
    /// Remove the annotation of a completed expansion, `pre-resize-capacity`, from the PersistentVolume.
    RemovePreResizeCapacity(Arc<Volume>),
    /// No effect: the size was infeasible, and its retry after `--retry-interval-max` is not due.
    WaitForRetry,
    /// The access modes have no CSI equivalent, or a pod uses a volume that the driver expands only while it
    /// is not in use: emit the event and retry with back-off. The text is the event message.
    Retry(String),
    /// The requested size is invalid, or the driver expands no volumes: emit the event and wait for a change
    /// of the objects. The text is the event message.
    Reject(String),
    /// Write the target size, the condition `Resizing` and, for a new expansion, the state
    /// `ControllerResizeInProgress` to the claim's status.
    MarkInProgress(InProgressUpdate),
    /// Call `ControllerExpandVolume`.
    Expand(Box<ExpandCall>),
    /// Write the new size, the claim's size before the expansion, or both to the PersistentVolume.
    UpdateVolumeCapacity(CapacityUpdate),
    /// Set the state `NodeResizePending` in the claim's status: kubelet then expands the volume on the node.
    MarkNodePending,
    /// Write this capacity to the claim's status, and end the expansion: the node has nothing to expand.
    MarkFinished(Quantity),
}

/// Update of the claim's status before `ControllerExpandVolume`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InProgressUpdate {
    /// The target size.
    pub target: Quantity,
    /// True for a new expansion; false if the status already describes this one.
    pub is_new: bool,
}

/// A `ControllerExpandVolume` call.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpandCall {
    /// The PersistentVolume.
    pub volume: Arc<Volume>,
    /// The target size.
    pub target: Quantity,
    /// The request.
    pub request: ExpandVolume,
}

/// Update of the PersistentVolume after `ControllerExpandVolume`.
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityUpdate {
    /// The PersistentVolume.
    pub volume: Arc<Volume>,
    /// The new size, if it is larger than the current one.
    pub size: Option<Quantity>,
    /// The claim's current size, which the PersistentVolume records until the node expansion is complete.
    /// `None` if no node expansion is required, if the PersistentVolume records a size already, if the
    /// claim's status has no size, or without the feature gate `AnnotateFsResize`.
    pub pre_resize_capacity: Option<Quantity>,
}

/// Decides the next effect of a claim's expansion. Source: external-resizer's `expandAndRecover` and
/// `markControllerResizeInProgress`.
pub fn decide_expansion(input: ExpansionInput<'_>, claim: &Claim) -> ExpansionVerdict {
    let (volume, csi) = match volume_of(input.cache, claim) {
        Ok(found) => found,
        Err(reason) => {
            let is_larger = |size: &Quantity| *size > claim.status_capacity.unwrap_or_default();
            let problem = in_tree_problem(input.cache, claim, "expand");
            return match problem.filter(|_| claim.request.as_ref().is_ok_and(is_larger)) {
                Some(problem) => ExpansionVerdict::Reject(problem),
                None => ExpansionVerdict::NoAction(reason),
            };
        }
    };
    let size = claim.status_capacity.unwrap_or_default();
    if volume.meta.has_annotation(names::PRE_RESIZE_CAPACITY)
        && volume.capacity.is_some_and(|capacity| size >= capacity)
    {
        return ExpansionVerdict::RemovePreResizeCapacity(volume);
    }
    let request = match &claim.request {
        Ok(request) if *request <= size => {
            return ExpansionVerdict::NoAction("the claim has the requested size");
        }
        Ok(request) => *request,
        Err(error) => return ExpansionVerdict::Reject(format!("spec.resources.requests.storage: {error}")),
    };
    if !input.abilities.expands {
        return ExpansionVerdict::Reject(format!("driver {} does not support expansion", csi.driver));
    }
    let Some(target) = target_size(claim, &volume, request, input.last_expansion) else {
        return ExpansionVerdict::NoAction("waiting for the node to expand the volume");
    };
    let progress = claim.progress();
    let allocated = progress.allocated_resources == Some(target);
    let is_for_claim = |result: &&ExpansionResult| result.claim == claim.meta.uid && result.target == target;
    if let Some(result) = input.result.filter(is_for_claim).filter(|_| allocated) {
        return decide_after_expand(claim, volume, result.volume, input.annotates_size);
    }
    if allocated && input.last_expansion.infeasible {
        return ExpansionVerdict::WaitForRetry;
    }
    let Some(bytes) = target.bytes_within_int64() else {
        return ExpansionVerdict::Reject(format!(
            "spec.resources.requests.storage is {target}; expected at most {} bytes",
            i64::MAX
        ));
    };
    let capability = match capability(&volume, &csi, input.abilities.single_node_multi_writer, None) {
        Ok(capability) => capability,
        Err(error) => return ExpansionVerdict::Retry(error.to_string()),
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
            "driver {} does not expand a volume in use: pod {pod} uses it",
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

/// Decides the next effect after a successful call. The PersistentVolume is updated first, because the
/// claim's status then declares the controller's part of the expansion complete.
fn decide_after_expand(
    claim: &Claim,
    volume: Arc<Volume>,
    response: ExpandedVolume,
    annotates_size: bool,
) -> ExpansionVerdict {
    let size = Quantity::from_bytes(response.capacity);
    let larger = volume.capacity.is_none_or(|capacity| capacity < size);
    let is_missing = annotates_size && !volume.meta.has_annotation(names::PRE_RESIZE_CAPACITY);
    let pre_resize_capacity =
        claim.status_capacity.filter(|_| response.node_expansion_required && is_missing);
    if larger || pre_resize_capacity.is_some() {
        return ExpansionVerdict::UpdateVolumeCapacity(CapacityUpdate {
            volume,
            size: larger.then_some(size),
            pre_resize_capacity,
        });
    }
    if response.node_expansion_required {
        ExpansionVerdict::MarkNodePending
    } else {
        ExpansionVerdict::MarkFinished(size)
    }
}

/// Returns the size to request from the driver, or `None` if only the node has to expand. Source:
/// external-resizer's `getNewSize`.
fn target_size(
    claim: &Claim,
    volume: &Volume,
    request: Quantity,
    last_expansion: LastExpansion,
) -> Option<Quantity> {
    let progress = claim.progress();
    // An allocated size that the claim already has belongs to an earlier expansion.
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
        // A size that is smaller than the request is replaced only if the last call has certainly failed.
        // Otherwise the call is repeated with the same size.
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
    /// Returns true if the last call of this process may still take effect.
    fn is_in_doubt(self) -> bool {
        matches!(self.finality, Some(Finality::InProgress | Finality::Unknown))
    }
}

/// Returns the CSI volume of a bound claim.
///
/// # Errors
/// The reason why the claim has none.
pub fn volume_of(cache: &Cache, claim: &Claim) -> Result<(Arc<Volume>, CsiVolumeSource), &'static str> {
    let volume = bound_volume(cache, claim)?;
    match volume.csi.clone() {
        Some(csi) => Ok((volume, csi)),
        None => Err("the PersistentVolume has no spec.csi"),
    }
}

/// Returns the driver of a volume: that of its CSI source, or the one to which its in-tree plugin is
/// migrated. `None` for other volumes.
pub fn driver_of(volume: &Volume) -> Option<DriverName> {
    let csi_driver = volume.csi.as_ref().map(|csi| csi.driver.clone());
    csi_driver.or_else(|| volume.migrated_driver().map(DriverName::from))
}

/// Returns the event message of a claim whose volume has an in-tree source of a plugin that is migrated to a
/// CSI driver. `operation` is the verb of what external-resizer does with such a volume. `None` for other
/// volumes.
pub fn in_tree_problem(cache: &Cache, claim: &Claim, operation: &str) -> Option<String> {
    let volume = bound_volume(cache, claim).ok()?;
    let driver = volume.migrated_driver()?;
    Some(format!(
        "PersistentVolume {} belongs to an in-tree plugin that is migrated to {driver}: this version of \
         Cofferdam does not {operation} such volumes",
        volume.name
    ))
}

/// Returns the PersistentVolume of a bound claim.
///
/// # Errors
/// The reason why the claim has none.
pub fn bound_volume(cache: &Cache, claim: &Claim) -> Result<Arc<Volume>, &'static str> {
    let name = match (&claim.volume, claim.phase) {
        (Some(name), ClaimPhase::Bound) => name,
        (_, ClaimPhase::Bound | ClaimPhase::Pending | ClaimPhase::Lost) => {
            return Err("the claim is not bound");
        }
    };
    let volume = match cache.volumes.get(name) {
        Lookup::Found(volume) => volume,
        Lookup::Undecodable(_) => return Err("the PersistentVolume cannot be decoded"),
        Lookup::Missing => return Err("the PersistentVolume does not exist"),
    };
    let reference = volume.claim_ref.as_ref();
    if !reference.is_some_and(|r| r.key == claim.key && r.uid.as_ref() == Some(&claim.meta.uid)) {
        return Err("the PersistentVolume is not bound to the claim");
    }
    Ok(volume)
}

/// Returns the key of a pod that uses the claim and is not terminated; `None` if there is no such pod.
fn pod_in_use(cache: &Cache, claim: &Claim) -> Option<String> {
    let pods = cache.pods_using_claim(&claim.key);
    pods.iter().find(|pod| !pod.terminated).map(|pod| pod.key.to_string())
}

/// Consequence of a failed call of an expansion or a modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeFailure {
    /// The result is unknown: the same call is repeated.
    InDoubt,
    /// The call has no further effect: another size or VolumeAttributesClass may be requested.
    Final,
    /// The size or VolumeAttributesClass is infeasible, and the call has no further effect: the call is
    /// repeated after `--retry-interval-max`.
    Infeasible,
}

/// Classifies a failed `ControllerExpandVolume` call. Source: csi-lib-utils' final and infeasible error
/// codes.
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

/// An expanded volume that is smaller than requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the driver expanded the volume to {size}; expected at least {target}")]
pub struct VolumeTooSmall {
    size: Quantity,
    target: Quantity,
}

/// Checks that the expanded volume has at least the requested size. Without this check, the smaller size
/// would be written to the PersistentVolume or to the claim.
///
/// # Errors
/// The volume is smaller than `target`.
pub fn check_capacity(target: Quantity, response: ExpandedVolume) -> Result<(), VolumeTooSmall> {
    let size = Quantity::from_bytes(response.capacity);
    if size < target { Err(VolumeTooSmall { size, target }) } else { Ok(()) }
}

/// Returns true if a change of a claim requires a reconcile of its expansion: the claim is new (`old` is
/// `None`) or was created again, its phase, volume, requested size or `status.capacity` has changed, or the
/// state of the expansion was removed or has become `NodeResizeInfeasible`. The resizer's writes of progress
/// and failures require none: otherwise writing a failure would end the back-off that the failure started.
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
