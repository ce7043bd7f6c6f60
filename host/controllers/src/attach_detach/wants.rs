//! From a volume to the pods that use it, and back: every step goes through an index of the cache.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cofferdam_cluster::{Cache, Seen, cache::PodIndex};
use cofferdam_domain::{
    Attachment, Claim, ClaimKey, ClaimPhase, ClaimRef, DriverName, NodeName, Pod, UniqueVolume, Volume,
    VolumeHandle, names,
};

use super::rules::{Machine, Want};

/// The name under which nodes know a volume; absent where no CSI driver has it.
pub(super) fn unique(volume: &Volume) -> Option<UniqueVolume> {
    volume.csi.as_ref().map(|csi| UniqueVolume::of_csi(&csi.driver, &csi.handle))
}

/// The volume that an attachment names, by the name under which nodes know it; absent where nobody knows it any more, or where
/// the attachment was made for another one.
pub(super) fn unique_of(cache: &Cache, attachment: &Attachment) -> Option<UniqueVolume> {
    let volume = cache.volumes.get(attachment.volume()?).known()?;
    let csi = volume.csi.as_ref().filter(|csi| csi.driver == attachment.attacher)?;
    let named = names::attachment(&csi.driver, &csi.handle, &attachment.node);
    (named == attachment.name).then(|| UniqueVolume::of_csi(&csi.driver, &csi.handle))
}

/// The claim and the volume that belong to each other.
///
/// # Errors
/// What is missing, a sentence for people.
pub(super) fn bound(cache: &Cache, key: &ClaimKey) -> Result<(Arc<Claim>, Arc<Volume>), String> {
    let claim = match cache.claims.get(key) {
        Seen::Known(claim) => claim,
        Seen::Opaque(_) => return Err(format!("PersistentVolumeClaim {key} cannot be read")),
        Seen::Absent => return Err(format!("PersistentVolumeClaim {key} does not exist")),
    };
    let Some(name) = claim.volume.as_ref().filter(|_| claim.phase == ClaimPhase::Bound) else {
        return Err(format!("PersistentVolumeClaim {key} is {}: expected Bound", claim.phase.as_str()));
    };
    let volume = match cache.volumes.get(name) {
        Seen::Known(volume) => volume,
        Seen::Opaque(_) => return Err(format!("PersistentVolume {name} cannot be read")),
        Seen::Absent => return Err(format!("PersistentVolume {name} of claim {key} does not exist")),
    };
    let uid = volume.claim_ref.as_ref().and_then(|reference| reference.uid.as_ref());
    if uid != Some(&claim.meta.uid) {
        return Err(format!(
            "PersistentVolume {name} is not bound to claim {key}: expected spec.claimRef.uid {:?}",
            claim.meta.uid
        ));
    }
    if volume.csi.is_none()
        && let Some(source) = volume.in_tree
    {
        return Err(format!(
            "PersistentVolume {name} has the in-tree source {source}: expected spec.csi, for attach-detach attaches CSI volumes only"
        ));
    }
    Ok((claim, volume))
}

/// Whether a pod that is on a node and not over uses a claim.
///
/// # Errors
/// That the claim has the name of its generic ephemeral volume, and is not that.
pub(super) fn uses(pod: &Pod, claim: &Claim) -> Result<bool, String> {
    if pod.node.is_none() || pod.terminated {
        return Ok(false);
    }
    if pod.claims.contains(&claim.key.name) || !pod.ephemeral_claims.contains(&claim.key.name) {
        return Ok(pod.claims.contains(&claim.key.name));
    }
    match claim.controller.as_ref() == Some(&pod.meta.uid) {
        true => Ok(true),
        false => Err(format!(
            "PersistentVolumeClaim {} was not made for the pod's generic ephemeral volume: expected the pod as its owner",
            claim.key
        )),
    }
}

/// Whether volumes of a driver have to be attached. One that has no CSIDriver may need it.
pub(super) fn is_attached(cache: &Cache, driver: &DriverName) -> bool {
    cache.csi_drivers.get(driver).known().is_none_or(|driver| driver.attach_required)
}

/// The nodes whose pods use a volume that has to be attached, by name.
pub(super) fn wants(cache: &Cache, driver: &DriverName, handle: &VolumeHandle) -> Vec<Want> {
    let mut wants: BTreeMap<NodeName, Want> = BTreeMap::new();
    for volume in cache.volumes_with_handle(driver, handle) {
        let Some(reference) = &volume.claim_ref else { continue };
        let Ok((claim, bound)) = bound(cache, &reference.key) else { continue };
        if bound.name != volume.name {
            continue;
        }
        for pod in cache.pods_using(&reference.key) {
            let Some(node) = pod.node.clone().filter(|_| uses(&pod, &claim) == Ok(true)) else { continue };
            let want = wants.entry(node.clone()).or_insert_with(|| Want {
                machine: machine(cache, &node),
                node,
                volume: Arc::clone(&volume),
                pods: Vec::new(),
            });
            want.pods.push(pod);
        }
    }
    wants.into_values().collect()
}

/// The nodes that keep a volume: a pod there names the claim that the volume is of, whatever has become of the claim. What wants a
/// volume needs more, see [`wants`].
pub(super) fn keepers(cache: &Cache, driver: &DriverName, handle: &VolumeHandle) -> BTreeSet<NodeName> {
    let volumes = cache.volumes_with_handle(driver, handle);
    let references = volumes.iter().filter_map(|volume| volume.claim_ref.as_ref());
    let pods = references.flat_map(|reference| {
        let pods = cache.pods_using(&reference.key).into_iter();
        pods.filter(|pod| names_claim(cache, pod, reference))
    });
    pods.filter_map(|pod| pod.node.clone()).collect()
}

/// Whether a pod on the node of an attachment may use its volume, though nobody knows any more which one that was: another object may
/// stand for it, and a claim that is gone may have been its.
pub(super) fn is_kept(cache: &Cache, attachment: &Attachment) -> bool {
    let Attachment { name, node, attacher, .. } = attachment;
    let is_it = |volume: &Volume| {
        let mine = volume.csi.as_ref().filter(|csi| csi.driver == *attacher);
        mine.is_some_and(|csi| names::attachment(attacher, &csi.handle, node) == *name)
    };
    let keeps = |pod: &Pod, key: ClaimKey| match cache.claims.get(&key) {
        // It may have been the volume's.
        Seen::Absent | Seen::Opaque(_) => true,
        Seen::Known(claim) if claim.volume.as_ref() == attachment.volume() => uses(pod, &claim) == Ok(true),
        Seen::Known(_) => {
            let volumes = cache.volumes_of_claim(&key).into_iter().filter(|volume| is_it(volume));
            let mut references = volumes.filter_map(|volume| volume.claim_ref.clone());
            references.any(|reference| names_claim(cache, pod, &reference))
        }
    };
    let pods = cache.pods_on(node);
    pods.iter().filter(|pod| !pod.terminated).any(|pod| PodIndex::claims_of(pod).any(|key| keeps(pod, key)))
}

/// Whether a pod that is on a node and not over names the claim of a reference, and may mean it. Of a claim that came later under the
/// same name, only the pods that are younger are.
fn names_claim(cache: &Cache, pod: &Pod, reference: &ClaimRef) -> bool {
    if pod.node.is_none() || pod.terminated {
        return false;
    }
    let Some(claim) = cache.claims.get(&reference.key).known() else { return true };
    if reference.uid.as_ref().is_some_and(|uid| *uid != claim.meta.uid) {
        return pod.meta.created_ms <= claim.meta.created_ms;
    }
    uses(pod, &claim) == Ok(true)
}

/// What is known of a node.
pub(super) fn machine(cache: &Cache, node: &NodeName) -> Machine {
    match cache.nodes.get(node) {
        Seen::Absent => Machine::Gone,
        Seen::Opaque(_) => Machine::Unreadable,
        Seen::Known(node) if !node.managed => Machine::Unmanaged,
        Seen::Known(node) => Machine::There { ready: node.ready, out_of_service: node.out_of_service },
    }
}
