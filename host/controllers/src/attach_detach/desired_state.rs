//! Desired state: the nodes on which pods use a volume. All lookups use indexes of the cache.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cofferdam_cluster::{Cache, Lookup, cache::PodIndex};
use cofferdam_domain::{
    Claim, ClaimKey, ClaimPhase, ClaimRef, DriverName, NodeName, Pod, Uid, UniqueVolumeName, Volume,
    VolumeAttachment, VolumeHandle, VolumeName, names,
};

use super::rules::{DesiredAttachment, NodeState};

/// Returns the unique volume name of a CSI volume; `None` for other volumes.
pub(super) fn unique_volume(volume: &Volume) -> Option<UniqueVolumeName> {
    volume.csi.as_ref().map(|csi| UniqueVolumeName::from_csi(&csi.driver, &csi.handle))
}

/// Returns the unique name of the volume that a VolumeAttachment attaches. Returns `None` if it names no
/// PersistentVolume, if its PersistentVolume is missing, cannot be decoded, has no CSI source or has another
/// driver, or if the VolumeAttachment does not have the name that this controller would give it.
pub(super) fn unique_volume_of_attachment(
    cache: &Cache,
    attachment: &VolumeAttachment,
) -> Option<UniqueVolumeName> {
    let volume = cache.volumes.get(attachment.volume()?).into_object()?;
    let csi = volume.csi.as_ref().filter(|csi| csi.driver == attachment.attacher)?;
    let named = names::volume_attachment_name(&csi.driver, &csi.handle, &attachment.node);
    (named == attachment.name).then(|| UniqueVolumeName::from_csi(&csi.driver, &csi.handle))
}

/// The reason why a pod cannot use the volume of its claim. Its text is part of the event on the pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnusableClaim {
    #[error("PersistentVolumeClaim {0} does not exist")]
    Missing(ClaimKey),
    #[error("PersistentVolumeClaim {0} cannot be decoded")]
    Undecodable(ClaimKey),
    #[error("PersistentVolumeClaim {claim} is {}; expected Bound", phase.as_str())]
    NotBound { claim: ClaimKey, phase: ClaimPhase },
    #[error("PersistentVolume {volume} of claim {claim} does not exist")]
    VolumeMissing { claim: ClaimKey, volume: VolumeName },
    #[error("PersistentVolume {0} cannot be decoded")]
    VolumeUndecodable(VolumeName),
    #[error(
        "PersistentVolume {volume} is not bound to claim {claim}; expected spec.claimRef.uid {expected:?}"
    )]
    BoundToOtherClaim { claim: ClaimKey, volume: VolumeName, expected: Uid },
    #[error(
        "PersistentVolume {volume} has the in-tree source {source_type}; \
         expected spec.csi: only CSI volumes are attached"
    )]
    InTree { volume: VolumeName, source_type: &'static str },
    #[error(
        "PersistentVolumeClaim {0} was not created for the pod's generic ephemeral volume; \
         expected the pod as its owner"
    )]
    NotOwnedByPod(ClaimKey),
}

/// Returns the claim and the volume that is bound to it.
///
/// # Errors
/// The claim or its volume is missing or cannot be decoded, they are not bound to each other, or the volume
/// has an in-tree source that must be attached or is migrated to a CSI driver. Volumes of other types, such
/// as NFS, are returned: they need no attach.
pub(super) fn bound_claim_and_volume(
    cache: &Cache,
    key: &ClaimKey,
) -> Result<(Arc<Claim>, Arc<Volume>), UnusableClaim> {
    let claim = match cache.claims.get(key) {
        Lookup::Found(claim) => claim,
        Lookup::Undecodable(_) => return Err(UnusableClaim::Undecodable(key.clone())),
        Lookup::Missing => return Err(UnusableClaim::Missing(key.clone())),
    };
    let Some(name) = claim.volume.as_ref().filter(|_| claim.phase == ClaimPhase::Bound) else {
        return Err(UnusableClaim::NotBound { claim: key.clone(), phase: claim.phase });
    };
    let volume = match cache.volumes.get(name) {
        Lookup::Found(volume) => volume,
        Lookup::Undecodable(_) => return Err(UnusableClaim::VolumeUndecodable(name.clone())),
        Lookup::Missing => {
            return Err(UnusableClaim::VolumeMissing { claim: key.clone(), volume: name.clone() });
        }
    };
    let uid = volume.claim_ref.as_ref().and_then(|reference| reference.uid.as_ref());
    if uid != Some(&claim.meta.uid) {
        return Err(UnusableClaim::BoundToOtherClaim {
            claim: key.clone(),
            volume: name.clone(),
            expected: claim.meta.uid.clone(),
        });
    }
    if volume.csi.is_none()
        && let Some(source) = volume.attachable_in_tree_source()
    {
        return Err(UnusableClaim::InTree { volume: name.clone(), source_type: source });
    }
    Ok((claim, volume))
}

/// Returns true if a scheduled pod that is not terminated uses a claim.
///
/// # Errors
/// The claim has the name of the claim of one of the pod's generic ephemeral volumes, but the pod is not its
/// controlling owner.
pub(super) fn is_using_claim(pod: &Pod, claim: &Claim) -> Result<bool, UnusableClaim> {
    if pod.node.is_none() || pod.terminated {
        return Ok(false);
    }
    if pod.claims.contains(&claim.key.name) || !pod.ephemeral_claims.contains(&claim.key.name) {
        return Ok(pod.claims.contains(&claim.key.name));
    }
    if claim.controller_uid.as_ref() == Some(&pod.meta.uid) {
        Ok(true)
    } else {
        Err(UnusableClaim::NotOwnedByPod(claim.key.clone()))
    }
}

/// Returns true if volumes of a driver must be attached. Returns false only if the driver's CSIDriver has
/// `attachRequired: false`: if the CSIDriver does not exist, the volumes are attached, as by upstream, and
/// also if it cannot be decoded.
pub(super) fn is_attach_required(cache: &Cache, driver: &DriverName) -> bool {
    cache.csi_drivers.get(driver).into_object().is_none_or(|driver| driver.attach_required)
}

/// Returns the nodes whose pods use a volume, sorted by name. The pods' claims are bound to the volume.
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

/// Returns the nodes on which a pod that is not terminated may use the claim in the volume's `claimRef`,
/// whether or not the claim is bound to the volume (see `can_refer_to_claim`). These nodes keep the volume
/// attached. See [`desired_attachments`] for the conditions of a new attachment.
pub(super) fn nodes_in_use(cache: &Cache, driver: &DriverName, handle: &VolumeHandle) -> BTreeSet<NodeName> {
    let volumes = cache.volumes_with_handle(driver, handle);
    let references = volumes.iter().filter_map(|volume| volume.claim_ref.as_ref());
    let pods = references.flat_map(|reference| {
        let pods = cache.pods_using_claim(&reference.key).into_iter();
        pods.filter(|pod| can_refer_to_claim(cache, pod, reference))
    });
    pods.filter_map(|pod| pod.node.clone()).collect()
}

/// Returns true if a pod on the node may use the volume of a VolumeAttachment whose PersistentVolume is
/// deleted. A pod that is not terminated may use the volume
/// - if one of its claims is deleted or cannot be decoded: the claim may have been bound to the volume,
/// - if one of its claims names the deleted PersistentVolume, or
/// - if the `claimRef` of another PersistentVolume with the same driver and handle names one of the pod's
///   claims, and the pod may use that claim (see `can_refer_to_claim`).
pub(super) fn is_possibly_in_use(cache: &Cache, attachment: &VolumeAttachment) -> bool {
    let VolumeAttachment { name, node, attacher, .. } = attachment;
    let is_attached_volume = |volume: &Volume| {
        let csi_source = volume.csi.as_ref().filter(|csi| csi.driver == *attacher);
        csi_source.is_some_and(|csi| names::volume_attachment_name(attacher, &csi.handle, node) == *name)
    };
    let may_use = |pod: &Pod, key: ClaimKey| match cache.claims.get(&key) {
        // The claim may have been bound to the volume.
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

/// Returns true if a pod is scheduled, is not terminated and may use the claim that `reference`, the
/// `claimRef` of a PersistentVolume, names. A pod may use a claim that is deleted or cannot be decoded. If
/// the claim was created again with another UID, only pods that are not younger than the new claim may use
/// the old claim. In all other cases, [`is_using_claim`] decides.
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

/// Returns the state of a node.
pub(super) fn node_state(cache: &Cache, node: &NodeName) -> NodeState {
    match cache.nodes.get(node) {
        Lookup::Missing => NodeState::Deleted,
        Lookup::Undecodable(_) => NodeState::Undecodable,
        Lookup::Found(node) if !node.controller_managed => NodeState::Unmanaged,
        Lookup::Found(node) => NodeState::Managed { ready: node.ready, out_of_service: node.out_of_service },
    }
}
