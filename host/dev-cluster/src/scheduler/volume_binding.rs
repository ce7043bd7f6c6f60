//! Which volumes a pod's claims get on a node (the Filter of kube-scheduler's VolumeBinding).

use std::collections::HashSet;

use cofferdam_domain::{Claim, ClaimKey, StorageClass, StringMap, VolumeName, VolumePhase};

use super::{
    rules::{PodClaim, SchedulerInput},
    selectors,
};
use crate::kinds::{NodeObject, VolumeObject};

/// The volume is elsewhere.
const REASON_NODE_CONFLICT: &str = "node(s) didn't match PersistentVolume's node affinity";
/// Nothing fits, and nothing can be made.
const REASON_BIND_CONFLICT: &str = "node(s) didn't find available persistent volumes to bind";
/// The driver has too little room there.
const REASON_NOT_ENOUGH_SPACE: &str = "node(s) did not have enough free storage";
/// The volume is gone.
const REASON_PV_NOT_EXIST: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
/// The volume is in another zone.
const REASON_ZONE_CONFLICT: &str = "node(s) had no available volume zone";
/// Provisioner of classes whose volumes people make.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// Labels that say in which zone or region a volume is; several values are joined by `__`.
const ZONE_LABELS: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// What has to be written for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodVolumes {
    /// Volumes that are there, and the claims that they are reserved for.
    pub(crate) static_bindings: Vec<(VolumeName, ClaimKey)>,
    /// Claims that are provisioned there.
    pub(crate) dynamic_provisions: Vec<ClaimKey>,
}

/// Finds a volume on the node for every claim, or how to come by one.
pub(crate) fn find_pod_volumes(
    claims: &[PodClaim],
    node: &NodeObject,
    input: &SchedulerInput,
) -> Result<PodVolumes, &'static str> {
    let mut pod_volumes = PodVolumes::default();
    let mut reserved = HashSet::new();
    for need in claims {
        match need {
            PodClaim::Bound(_, name) => {
                let volume = input.volumes.get(name).ok_or(REASON_PV_NOT_EXIST)?;
                if !is_reachable_from(volume, node) {
                    return Err(REASON_NODE_CONFLICT);
                }
                if !is_in_zone(volume, node) {
                    return Err(REASON_ZONE_CONFLICT);
                }
            }
            PodClaim::DelayedBinding(claim, class) => {
                let selected = claim.selected_node();
                if selected.is_some_and(|selected| selected != node.slim.name.as_str()) {
                    return Err(REASON_BIND_CONFLICT);
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

/// Whether the volume can be reached from the node.
pub(crate) fn is_reachable_from(volume: &VolumeObject, node: &NodeObject) -> bool {
    let affinity = volume.spec().node_affinity.as_ref();
    affinity
        .and_then(|affinity| affinity.required.as_ref())
        .is_none_or(|required| selectors::has_matching_term(required, node))
}

fn is_in_zone(volume: &VolumeObject, node: &NodeObject) -> bool {
    ZONE_LABELS.iter().all(|key| {
        let (Some(at), Some(here)) = (volume.slim.meta.labels.get(key), node.slim.labels.get(*key)) else {
            return true;
        };
        at.split("__").any(|zone| zone == here)
    })
}

/// The volume for a claim: one that is reserved for it, else the smallest that fits.
fn find_matching_volume<'f>(
    claim: &Claim,
    node: &NodeObject,
    input: &'f SchedulerInput,
    excluded: &HashSet<VolumeName>,
) -> Option<&'f VolumeObject> {
    let request = *claim.request.as_ref().ok()?;
    let mut best: Option<&VolumeObject> = None;
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
    node: &NodeObject,
    input: &SchedulerInput,
) -> Result<(), &'static str> {
    let provisioner = class.provisioner.as_str();
    if provisioner.is_empty() || provisioner == NO_PROVISIONER {
        return Err(REASON_BIND_CONFLICT);
    }
    let allowed = |term: &Vec<(String, Vec<String>)>| {
        term.iter().all(|(key, values)| node.slim.labels.get(key).is_some_and(|value| values.contains(value)))
    };
    if !class.allowed_topologies.is_empty() && !class.allowed_topologies.iter().any(allowed) {
        return Err(REASON_BIND_CONFLICT);
    }
    if has_enough_capacity(claim, class, node, input) { Ok(()) } else { Err(REASON_NOT_ENOUGH_SPACE) }
}

/// Whether the driver has said that there is room; one that says nothing of it has enough.
fn has_enough_capacity(
    claim: &Claim,
    class: &StorageClass,
    node: &NodeObject,
    input: &SchedulerInput,
) -> bool {
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
