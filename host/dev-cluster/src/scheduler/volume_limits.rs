//! Volume limits of a node (kube-scheduler's NodeVolumeLimits).

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_domain::{ClaimKey, VolumeName};

use super::input::{PodClaim, SchedulerInput};
use crate::kinds::{FullNode, FullPod};

/// Volume handles by driver. A claim that is not provisioned yet counts as a volume: its namespace and name
/// take the place of the handle.
type VolumesByDriver = BTreeMap<String, BTreeSet<String>>;

/// Returns true if the pod would exceed a driver's volume limit on the node. A node without a CSINode has no
/// limits.
pub(crate) fn is_limit_exceeded(
    pod: &FullPod,
    claims: &[PodClaim],
    node: &FullNode,
    input: &SchedulerInput,
) -> bool {
    let name = &node.slim.name;
    let Some(csi_node) = input.csi_nodes.get(name) else { return false };
    let mut new_volumes = VolumesByDriver::new();
    for pod_claim in claims {
        match pod_claim {
            PodClaim::Bound(_, volume) => add_persistent_volume(&mut new_volumes, volume, input),
            PodClaim::DelayedBinding(claim, class) => {
                add_volume(&mut new_volumes, class.provisioner.as_str(), claim.key.to_string())
            }
        }
    }
    let mut attached_volumes = VolumesByDriver::new();
    for (_, other) in
        input.assigned_pods.iter().filter(|(at, other)| at == name && other.slim.key != pod.slim.key)
    {
        for volume in other.volumes() {
            let Some(claim) = other.claim_name(volume) else { continue };
            add_claim(&mut attached_volumes, &ClaimKey::new(other.slim.key.namespace.clone(), claim), input);
        }
    }
    for attachment in input.volume_attachments.iter().filter(|attachment| attachment.node == *name) {
        if let Some(volume) = attachment.volume() {
            add_persistent_volume(&mut attached_volumes, volume, input);
        }
    }
    new_volumes.iter().any(|(driver, volumes)| {
        let Some(limit) = csi_node.volume_limit(driver) else { return false };
        let attached_volumes = attached_volumes.get(driver);
        let more = volumes
            .iter()
            .filter(|volume| {
                attached_volumes.is_none_or(|attached_volumes| !attached_volumes.contains(*volume))
            })
            .count();
        more > 0 && attached_volumes.map_or(0, BTreeSet::len) + more > limit
    })
}

fn add_volume(volumes: &mut VolumesByDriver, driver: &str, volume: String) {
    volumes.entry(driver.to_owned()).or_default().insert(volume);
}

fn add_persistent_volume(volumes: &mut VolumesByDriver, volume: &VolumeName, input: &SchedulerInput) {
    if let Some(csi) = input.volumes.get(volume).and_then(|volume| volume.slim.csi.as_ref()) {
        add_volume(volumes, csi.driver.as_str(), csi.handle.to_string());
    }
}

fn add_claim(volumes: &mut VolumesByDriver, key: &ClaimKey, input: &SchedulerInput) {
    let Some(claim) = input.claims.get(key) else { return };
    match &claim.volume {
        Some(volume) => add_persistent_volume(volumes, volume, input),
        None => {
            if let Some(class) = input.classes.get(claim.class_name()) {
                add_volume(volumes, class.provisioner.as_str(), key.to_string());
            }
        }
    }
}
