//! When a protection finalizer goes. Source: kube-controller-manager's pv-protection (a volume is in use
//! while its phase is Bound), pvc-protection (a claim is in use while a scheduled pod refers to it, finished
//! or not) and vac-protection (a VolumeAttributesClass is in use while a claim asks for it, has it or is on
//! the way to it, or a volume has it).

use cofferdam_cluster::Cache;
use cofferdam_domain::{Claim, ObjectMeta, Volume, VolumeAttributesClass, VolumePhase, names};

/// The next step for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalizerVerdict {
    /// Nothing; the text says why, for people.
    NoAction(&'static str),
    /// Put the finalizer on.
    Add,
    /// Look for users past the cache first: what follows may end in the loss of data.
    RefreshPods,
    /// Take the finalizer, at this place of the list, off.
    Remove(usize),
}

/// Decides for a volume. `provisioner_here`: whether its provisioner runs in this process. Then that one lets
/// go first: the object stays until both have, and two who shorten one list at once would be in each other's
/// way.
pub fn decide_volume(volume: &Volume, has_local_provisioner: bool) -> FinalizerVerdict {
    let verdict = decide(&volume.meta, names::PV_PROTECTION, volume.phase == VolumePhase::Bound);
    let has_provisioner_finalizer = has_local_provisioner
        && volume.phase == VolumePhase::Released
        && volume.meta.finalizer_index(names::PROVISIONER_FINALIZER).is_some();
    if matches!(verdict, FinalizerVerdict::Remove(_)) && has_provisioner_finalizer {
        return FinalizerVerdict::NoAction("its provisioner lets go first");
    }
    verdict
}

/// Decides for a claim. `looked_up`: whether the namespace's pods were read past the cache just now.
pub fn decide_claim(cache: &Cache, claim: &Claim, pods_refreshed: bool) -> FinalizerVerdict {
    // A pod without a node cannot start with a claim that is being deleted: it does not count.
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

/// Decides for a VolumeAttributesClass, from what the cache knows, as Kubernetes does: no data hangs on it,
/// and a claim that names one that is gone waits until it comes.
pub fn decide_attributes_class(cache: &Cache, class: &VolumeAttributesClass) -> FinalizerVerdict {
    let used = class.meta.deleting && cache.is_attributes_class_in_use(&class.name);
    let verdict = decide(&class.meta, names::VAC_PROTECTION, used);
    if matches!(verdict, FinalizerVerdict::Remove(_))
        && (cache.claims.has_undecodable() || cache.volumes.has_undecodable())
    {
        return FinalizerVerdict::NoAction("a claim or volume that cannot be read may name it");
    }
    verdict
}

fn decide(meta: &ObjectMeta, finalizer: &str, used: bool) -> FinalizerVerdict {
    match (meta.deleting, meta.finalizer_index(finalizer)) {
        (true, Some(_)) if used => FinalizerVerdict::NoAction("it is in use"),
        (true, Some(at)) => FinalizerVerdict::Remove(at),
        (true, None) => FinalizerVerdict::NoAction("it goes"),
        (false, None) => FinalizerVerdict::Add,
        (false, Some(_)) => FinalizerVerdict::NoAction("it is protected"),
    }
}

#[cfg(test)]
mod tests;
