//! Checks a pod's claims against a node (Filter of kube-scheduler's VolumeBinding and VolumeZone).

use std::collections::HashSet;

use cofferdam_domain::{Claim, ClaimKey, StorageClass, StringMap, VolumeName, VolumePhase};

use super::{
    input::{PodClaim, SchedulerInput},
    reason::NodeRejection,
    selectors,
};
use crate::kinds::{FullNode, FullVolume};

/// Provisioner of classes without dynamic provisioning.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// Zone and region labels of a volume; several values are joined by `__`.
const ZONE_LABELS: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// The bindings of a pod's unbound claims that the scheduler has to write if the pod runs on the checked
/// node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodVolumes {
    /// Existing volumes and the claims to reserve them for.
    pub(crate) static_bindings: Vec<(VolumeName, ClaimKey)>,
    /// Claims to be provisioned for the node.
    pub(crate) dynamic_provisions: Vec<ClaimKey>,
}

/// Checks bound volumes against a node, and selects an existing volume or provisioning for each unbound
/// claim. The error is the reason against the node.
pub(super) fn find_pod_volumes(
    claims: &[PodClaim],
    node: &FullNode,
    input: &SchedulerInput,
) -> Result<PodVolumes, NodeRejection> {
    let mut pod_volumes = PodVolumes::default();
    let mut reserved = HashSet::new();
    for pod_claim in claims {
        match pod_claim {
            PodClaim::Bound(_, name) => {
                let volume = input.volumes.get(name).ok_or(NodeRejection::VolumeNotFound)?;
                if !is_reachable_from(volume, node) {
                    return Err(NodeRejection::VolumeAffinity);
                }
                if !is_in_zone(volume, node) {
                    return Err(NodeRejection::ZoneConflict);
                }
            }
            PodClaim::DelayedBinding(claim, class) => {
                let selected = claim.selected_node();
                if selected.is_some_and(|selected| selected != node.slim.name.as_str()) {
                    return Err(NodeRejection::BindConflict);
                }
                let existing = if selected.is_some() {
                    None
                } else {
                    find_matching_volume(claim, node, input, &reserved)
                };
                match existing {
                    Some(volume) => {
                        reserved.insert(volume.slim.name.clone());
                        pod_volumes.static_bindings.push((volume.slim.name.clone(), claim.key.clone()));
                    }
                    None => {
                        check_provisioning(claim, class, node, input)?;
                        pod_volumes.dynamic_provisions.push(claim.key.clone());
                    }
                }
            }
        }
    }
    Ok(pod_volumes)
}

/// Returns true if the volume's node affinity matches the node.
pub(crate) fn is_reachable_from(volume: &FullVolume, node: &FullNode) -> bool {
    let affinity = volume.spec().node_affinity.as_ref();
    affinity
        .and_then(|affinity| affinity.required.as_ref())
        .is_none_or(|required| selectors::has_matching_term(required, node))
}

fn is_in_zone(volume: &FullVolume, node: &FullNode) -> bool {
    ZONE_LABELS.iter().all(|key| {
        let (Some(volume_zones), Some(node_zone)) =
            (volume.slim.meta.labels.get(key), node.slim.labels.get(*key))
        else {
            return true;
        };
        volume_zones.split("__").any(|zone| zone == node_zone)
    })
}

/// The existing volume to bind to a claim: the one whose `claimRef` names the claim, else the smallest that
/// matches. None if there is no such volume, or if the node affinity of the one with the `claimRef` does not
/// match the node. `excluded` volumes are not considered: they are selected for other claims of the pod.
fn find_matching_volume<'f>(
    claim: &Claim,
    node: &FullNode,
    input: &'f SchedulerInput,
    excluded: &HashSet<VolumeName>,
) -> Option<&'f FullVolume> {
    let request = *claim.request.as_ref().ok()?;
    let mut best: Option<&FullVolume> = None;
    for volume in input.volumes.values() {
        let slim = &volume.slim;
        let reserved = slim.claim_ref.is_some();
        let usable = !excluded.contains(&slim.name)
            && (!reserved || slim.is_bound_to(&claim.key, &claim.meta.uid))
            && slim.capacity.is_some_and(|capacity| capacity >= request)
            && slim.mode == claim.mode
            && slim.attributes_class == claim.attributes_class
            && !slim.meta.deleting;
        if !usable {
            continue;
        }
        if reserved {
            return is_reachable_from(volume, node).then_some(volume);
        }
        let fits = slim.phase == VolumePhase::Available
            && is_selected_by_claim(claim, &slim.meta.labels)
            && *slim.class == *claim.class_name()
            && is_reachable_from(volume, node)
            && slim.access_modes.contains(claim.access_modes);
        if fits && best.is_none_or(|best| slim.capacity < best.slim.capacity) {
            best = Some(volume);
        }
    }
    best
}

fn is_selected_by_claim(claim: &Claim, labels: &StringMap) -> bool {
    match claim.selector.as_deref() {
        None => true,
        Some(Ok(selector)) => selector.matches(labels),
        Some(Err(_)) => false,
    }
}

fn check_provisioning(
    claim: &Claim,
    class: &StorageClass,
    node: &FullNode,
    input: &SchedulerInput,
) -> Result<(), NodeRejection> {
    let provisioner = class.provisioner.as_str();
    if provisioner.is_empty() || provisioner == NO_PROVISIONER {
        return Err(NodeRejection::BindConflict);
    }
    let allowed = |term: &Vec<(String, Vec<String>)>| {
        term.iter().all(|(key, values)| node.slim.labels.get(key).is_some_and(|value| values.contains(value)))
    };
    if !class.allowed_topologies.is_empty() && !class.allowed_topologies.iter().any(allowed) {
        return Err(NodeRejection::BindConflict);
    }
    if has_enough_capacity(claim, class, node, input) { Ok(()) } else { Err(NodeRejection::NotEnoughSpace) }
}

/// Returns true if a CSIStorageCapacity that includes the node is large enough for the claim. Also returns
/// true if the driver has no CSIDriver with `storageCapacity`, or if the claim's request is not valid.
fn has_enough_capacity(claim: &Claim, class: &StorageClass, node: &FullNode, input: &SchedulerInput) -> bool {
    let Ok(request) = &claim.request else { return true };
    let driver = input.csi_drivers.get(class.provisioner.as_str());
    if driver.and_then(|driver| driver.full.spec.storage_capacity) != Some(true) {
        return true;
    }
    input.capacities.iter().any(|capacity| {
        capacity.storage_class == class.name.as_str()
            && capacity.maximum_volume_size.is_some_and(|largest| largest >= *request)
            && capacity
                .node_topology
                .as_ref()
                .is_some_and(|nodes| selectors::is_matched_by_labels(nodes, &node.slim.labels))
    })
}
