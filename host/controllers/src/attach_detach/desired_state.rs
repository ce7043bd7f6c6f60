//! From a volume to the pods that use it, and back: every step goes through an index of the cache.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cofferdam_cluster::{Cache, Lookup, cache::PodIndex};
use cofferdam_domain::{
    Claim, ClaimKey, ClaimPhase, ClaimRef, DriverName, NodeName, Pod, UniqueVolumeName, Volume,
    VolumeAttachment, VolumeHandle, names,
};

use super::rules::{DesiredAttachment, NodeState};

/// The name under which nodes know a volume; absent where no CSI driver has it.
pub(super) fn unique_volume(volume: &Volume) -> Option<UniqueVolumeName> {
    volume.csi.as_ref().map(|csi| UniqueVolumeName::from_csi(&csi.driver, &csi.handle))
}

/// The volume that an attachment names, by the name under which nodes know it; absent where nobody knows it
/// any more, or where the attachment was made for another one.
pub(super) fn unique_volume_of_attachment(
    cache: &Cache,
    attachment: &VolumeAttachment,
) -> Option<UniqueVolumeName> {
    let volume = cache.volumes.get(attachment.volume()?).into_object()?;
    let csi = volume.csi.as_ref().filter(|csi| csi.driver == attachment.attacher)?;
    let named = names::volume_attachment_name(&csi.driver, &csi.handle, &attachment.node);
    (named == attachment.name).then(|| UniqueVolumeName::from_csi(&csi.driver, &csi.handle))
}

/// The claim and the volume that belong to each other.
///
/// # Errors
/// What is missing, a sentence for people.
pub(super) fn bound_claim_and_volume(
    cache: &Cache,
    key: &ClaimKey,
) -> Result<(Arc<Claim>, Arc<Volume>), String> {
    let claim = match cache.claims.get(key) {
        Lookup::Found(claim) => claim,
        Lookup::Undecodable(_) => return Err(format!("PersistentVolumeClaim {key} cannot be read")),
        Lookup::Missing => return Err(format!("PersistentVolumeClaim {key} does not exist")),
    };
    let Some(name) = claim.volume.as_ref().filter(|_| claim.phase == ClaimPhase::Bound) else {
        return Err(format!("PersistentVolumeClaim {key} is {}: expected Bound", claim.phase.as_str()));
    };
    let volume = match cache.volumes.get(name) {
        Lookup::Found(volume) => volume,
        Lookup::Undecodable(_) => return Err(format!("PersistentVolume {name} cannot be read")),
        Lookup::Missing => return Err(format!("PersistentVolume {name} of claim {key} does not exist")),
    };
    let uid = volume.claim_ref.as_ref().and_then(|reference| reference.uid.as_ref());
    if uid != Some(&claim.meta.uid) {
        return Err(format!(
            "PersistentVolume {name} is not bound to claim {key}: expected spec.claimRef.uid {:?}",
            claim.meta.uid
        ));
    }
    if volume.csi.is_none()
        && let Some(source) = volume.in_tree_source
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
pub(super) fn is_using_claim(pod: &Pod, claim: &Claim) -> Result<bool, String> {
    if pod.node.is_none() || pod.terminated {
        return Ok(false);
    }
    if pod.claims.contains(&claim.key.name) || !pod.ephemeral_claims.contains(&claim.key.name) {
        return Ok(pod.claims.contains(&claim.key.name));
    }
    match claim.controller_uid.as_ref() == Some(&pod.meta.uid) {
        true => Ok(true),
        false => Err(format!(
            "PersistentVolumeClaim {} was not made for the pod's generic ephemeral volume: expected the pod as its owner",
            claim.key
        )),
    }
}

/// Whether volumes of a driver have to be attached. One that has no CSIDriver may need it.
pub(super) fn is_attach_required(cache: &Cache, driver: &DriverName) -> bool {
    cache.csi_drivers.get(driver).into_object().is_none_or(|driver| driver.attach_required)
}

/// The nodes whose pods use a volume that has to be attached, by name.
pub(super) fn desired_attachments(
    cache: &Cache,
    driver: &DriverName,
    handle: &VolumeHandle,
) -> Vec<DesiredAttachment> {
    let mut desired: BTreeMap<NodeName, DesiredAttachment> = BTreeMap::new();
    for volume in cache.volumes_with_handle(driver, handle) {
        let Some(reference) = &volume.claim_ref else { continue };
        let Ok((claim, bound)) = bound_claim_and_volume(cache, &reference.key) else { continue };
        if bound.name != volume.name {
            continue;
        }
        for pod in cache.pods_using_claim(&reference.key) {
            let Some(node) = pod.node.clone().filter(|_| is_using_claim(&pod, &claim) == Ok(true)) else {
                continue;
            };
            let desired_attachment = desired.entry(node.clone()).or_insert_with(|| DesiredAttachment {
                node_state: node_state(cache, &node),
                node,
                volume: Arc::clone(&volume),
                pods: Vec::new(),
            });
            desired_attachment.pods.push(pod);
        }
    }
    desired.into_values().collect()
}

/// The nodes that keep a volume: a pod there names the claim that the volume is of, whatever has become of
/// the claim. What wants a volume needs more, see [`wants`].
pub(super) fn nodes_in_use(cache: &Cache, driver: &DriverName, handle: &VolumeHandle) -> BTreeSet<NodeName> {
    let volumes = cache.volumes_with_handle(driver, handle);
    let references = volumes.iter().filter_map(|volume| volume.claim_ref.as_ref());
    let pods = references.flat_map(|reference| {
        let pods = cache.pods_using_claim(&reference.key).into_iter();
        pods.filter(|pod| can_refer_to_claim(cache, pod, reference))
    });
    pods.filter_map(|pod| pod.node.clone()).collect()
}

/// Whether a pod on the node of an attachment may use its volume, though nobody knows any more which one that
/// was: another object may stand for it, and a claim that is gone may have been its.
pub(super) fn is_possibly_in_use(cache: &Cache, attachment: &VolumeAttachment) -> bool {
    let VolumeAttachment { name, node, attacher, .. } = attachment;
    let is_attached_volume = |volume: &Volume| {
        let csi_source = volume.csi.as_ref().filter(|csi| csi.driver == *attacher);
        csi_source.is_some_and(|csi| names::volume_attachment_name(attacher, &csi.handle, node) == *name)
    };
    let may_use = |pod: &Pod, key: ClaimKey| match cache.claims.get(&key) {
        // It may have been the volume's.
        Lookup::Missing | Lookup::Undecodable(_) => true,
        Lookup::Found(claim) if claim.volume.as_ref() == attachment.volume() => {
            is_using_claim(pod, &claim) == Ok(true)
        }
        Lookup::Found(_) => {
            let volumes =
                cache.volumes_of_claim(&key).into_iter().filter(|volume| is_attached_volume(volume));
            let mut references = volumes.filter_map(|volume| volume.claim_ref.clone());
            references.any(|reference| can_refer_to_claim(cache, pod, &reference))
        }
    };
    let pods = cache.pods_on_node(node);
    pods.iter().filter(|pod| !pod.terminated).any(|pod| PodIndex::claims_of(pod).any(|key| may_use(pod, key)))
}

/// Whether a pod that is on a node and not over names the claim of a reference, and may mean it. Of a claim
/// that came later under the same name, only the pods that are younger are.
fn can_refer_to_claim(cache: &Cache, pod: &Pod, reference: &ClaimRef) -> bool {
    if pod.node.is_none() || pod.terminated {
        return false;
    }
    let Some(claim) = cache.claims.get(&reference.key).into_object() else { return true };
    if reference.uid.as_ref().is_some_and(|uid| *uid != claim.meta.uid) {
        return pod.meta.created_ms <= claim.meta.created_ms;
    }
    is_using_claim(pod, &claim) == Ok(true)
}

/// What is known of a node.
pub(super) fn node_state(cache: &Cache, node: &NodeName) -> NodeState {
    match cache.nodes.get(node) {
        Lookup::Missing => NodeState::Deleted,
        Lookup::Undecodable(_) => NodeState::Undecodable,
        Lookup::Found(node) if !node.controller_managed => NodeState::Unmanaged,
        Lookup::Found(node) => NodeState::Managed { ready: node.ready, out_of_service: node.out_of_service },
    }
}
