//! Rules of the protection finalizers. Source: kube-controller-manager's pv-protection, pvc-protection and
//! vac-protection controllers.
//!
//! - A PersistentVolume is in use while its phase is Bound.
//! - A claim is in use while a scheduled pod refers to it, terminated or not. The pod of a generic ephemeral
//!   volume no longer counts once its `deletionGracePeriodSeconds` is 0.
//! - A VolumeAttributesClass is in use while a claim or a PersistentVolume names it. A claim names its
//!   requested, current and target class.

use cofferdam_cluster::Cache;
use cofferdam_domain::{Claim, ObjectMeta, ReclaimPolicy, Volume, VolumeAttributesClass, VolumePhase, names};

/// The next effect for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalizerVerdict {
    /// No effect; the text is the reason.
    NoAction(&'static str),
    /// Add the finalizer.
    Add,
    /// For a claim: list the pods of its namespace live, then decide again. After the removal of the
    /// finalizer the claim disappears, and the volume may be deleted with its data.
    RefreshPods,
    /// Remove the finalizer, which has this index in the list.
    Remove(usize),
}

/// Decides for a PersistentVolume. `is_provisioned_here` is true if the provisioner of the volume's driver
/// runs in this process and the driver is not node-local. In this case, a Released PersistentVolume keeps
/// the protection finalizer as long as it has the provisioner's finalizer. The provisioner removes both in
/// one write: two writers of one list would conflict. This write may precede the deletion of the
/// PersistentVolume, so the finalizer is not added again to a Released one with the reclaim policy Delete.
pub fn decide_volume(volume: &Volume, is_provisioned_here: bool) -> FinalizerVerdict {
    let verdict = decide(&volume.meta, names::PV_PROTECTION, volume.phase == VolumePhase::Bound);
    let is_reclaimed_here = is_provisioned_here && volume.phase == VolumePhase::Released;
    let has_provisioner_finalizer = volume.meta.finalizer_index(names::PROVISIONER_FINALIZER).is_some();
    if matches!(verdict, FinalizerVerdict::Remove(_)) && is_reclaimed_here && has_provisioner_finalizer {
        return FinalizerVerdict::NoAction("waiting for the provisioner's finalizer");
    }
    let is_deleted_here = is_reclaimed_here && volume.reclaim_policy == ReclaimPolicy::Delete;
    if verdict == FinalizerVerdict::Add && is_deleted_here {
        return FinalizerVerdict::NoAction("the provisioner deletes the volume");
    }
    verdict
}

/// Returns the index of the protection finalizer in the list of a PersistentVolume that is being deleted, or
/// that the caller deletes at the same time. Returns `None` without the finalizer, and while the
/// PersistentVolume is in use.
pub fn removable_volume_finalizer(volume: &Volume) -> Option<usize> {
    let index = volume.meta.finalizer_index(names::PV_PROTECTION);
    index.filter(|_| volume.phase != VolumePhase::Bound)
}

/// Decides for a claim. `pods_refreshed` is true if the namespace's pods were listed live in this reconcile.
pub fn decide_claim(cache: &Cache, claim: &Claim, pods_refreshed: bool) -> FinalizerVerdict {
    // A pod without a node cannot start with a claim that is being deleted, and does not count.
    let used = claim.meta.deleting
        && cache.pods_using_claim(&claim.key).iter().filter(|pod| pod.node.is_some()).any(|pod| {
            pod.claims.contains(&claim.key.name)
                || (pod.ephemeral_claims.contains(&claim.key.name) && !pod.zero_grace_period)
        });
    let verdict = decide(&claim.meta, names::PVC_PROTECTION, used);
    if matches!(verdict, FinalizerVerdict::Remove(_)) && !pods_refreshed {
        FinalizerVerdict::RefreshPods
    } else {
        verdict
    }
}

/// Decides for a VolumeAttributesClass from the cache only, as upstream does: no data depends on it, and a
/// claim that names a deleted class waits until it exists again.
pub fn decide_attributes_class(cache: &Cache, class: &VolumeAttributesClass) -> FinalizerVerdict {
    let used = class.meta.deleting && cache.is_attributes_class_in_use(&class.name);
    let verdict = decide(&class.meta, names::VAC_PROTECTION, used);
    if matches!(verdict, FinalizerVerdict::Remove(_))
        && (cache.claims.has_undecodable() || cache.volumes.has_undecodable())
    {
        return FinalizerVerdict::NoAction("an undecodable claim or volume may name the class");
    }
    verdict
}

fn decide(meta: &ObjectMeta, finalizer: &str, used: bool) -> FinalizerVerdict {
    match (meta.deleting, meta.finalizer_index(finalizer)) {
        (true, Some(_)) if used => FinalizerVerdict::NoAction("the object is in use"),
        (true, Some(at)) => FinalizerVerdict::Remove(at),
        (true, None) => FinalizerVerdict::NoAction("the object is being deleted"),
        (false, None) => FinalizerVerdict::Add,
        (false, Some(_)) => FinalizerVerdict::NoAction("the object is protected"),
    }
}

#[cfg(test)]
mod tests;
