//! When a protection finalizer goes. Source: kube-controller-manager's pv-protection (a volume is in use while its phase is
//! Bound), pvc-protection (a claim is in use while a scheduled pod refers to it, finished or not) and vac-protection (a
//! VolumeAttributesClass is in use while a claim asks for it, has it or is on the way to it, or a volume has it).

use cofferdam_cluster::Cache;
use cofferdam_domain::{AttributesClass, Claim, ObjectMeta, Volume, VolumePhase, names};

/// The next step for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing; the text says why, for people.
    Settled(&'static str),
    /// Put the finalizer on.
    Add,
    /// Look for users past the cache first: what follows may end in the loss of data.
    LookUpPods,
    /// Take the finalizer, at this place of the list, off.
    Remove(usize),
}

/// Decides for a volume. `provisioner_here`: whether its provisioner runs in this process. Then that one lets go first: the object
/// stays until both have, and two who shorten one list at once would be in each other's way.
pub fn volume(volume: &Volume, provisioner_here: bool) -> Verdict {
    let verdict = decide(&volume.meta, names::PV_PROTECTION, volume.phase == VolumePhase::Bound);
    let lets_go = provisioner_here
        && volume.phase == VolumePhase::Released
        && volume.meta.finalizer(names::PROVISIONER_FINALIZER).is_some();
    if matches!(verdict, Verdict::Remove(_)) && lets_go {
        return Verdict::Settled("its provisioner lets go first");
    }
    verdict
}

/// Decides for a claim. `looked_up`: whether the namespace's pods were read past the cache just now.
pub fn claim(cache: &Cache, claim: &Claim, looked_up: bool) -> Verdict {
    // A pod without a node cannot start with a claim that is being deleted: it does not count.
    let used = claim.meta.deleting
        && cache.pods_using(&claim.key).iter().filter(|pod| pod.node.is_some()).any(|pod| {
            pod.claims.contains(&claim.key.name)
                || (pod.ephemeral_claims.contains(&claim.key.name) && !pod.shut_down)
        });
    let verdict = decide(&claim.meta, names::PVC_PROTECTION, used);
    if matches!(verdict, Verdict::Remove(_)) && !looked_up { Verdict::LookUpPods } else { verdict }
}

/// Decides for a VolumeAttributesClass, from what the cache knows, as Kubernetes does: no data hangs on it, and a claim that names one
/// that is gone waits until it comes.
pub fn attributes_class(cache: &Cache, class: &AttributesClass) -> Verdict {
    let used = class.meta.deleting && cache.names_attributes_class(&class.name);
    let verdict = decide(&class.meta, names::VAC_PROTECTION, used);
    if matches!(verdict, Verdict::Remove(_)) && (cache.claims.has_opaque() || cache.volumes.has_opaque()) {
        return Verdict::Settled("a claim or volume that cannot be read may name it");
    }
    verdict
}

fn decide(meta: &ObjectMeta, finalizer: &str, used: bool) -> Verdict {
    match (meta.deleting, meta.finalizer(finalizer)) {
        (true, Some(_)) if used => Verdict::Settled("it is in use"),
        (true, Some(at)) => Verdict::Remove(at),
        (true, None) => Verdict::Settled("it goes"),
        (false, None) => Verdict::Add,
        (false, Some(_)) => Verdict::Settled("it is protected"),
    }
}

#[cfg(test)]
mod tests;
