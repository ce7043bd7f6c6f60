//! Which volumes a pod's claims get on a node (the Filter of kube-scheduler's VolumeBinding).

use std::collections::HashSet;

use cofferdam_domain::{Claim, ClaimKey, StorageClass, StringMap, VolumeName, VolumePhase};

use super::{
    rules::{Facts, Need},
    terms,
};
use crate::kinds::{NodeObject, VolumeObject};

/// The volume is elsewhere.
const AFFINITY: &str = "node(s) didn't match PersistentVolume's node affinity";
/// Nothing fits, and nothing can be made.
const NOTHING: &str = "node(s) didn't find available persistent volumes to bind";
/// The driver has too little room there.
const ROOM: &str = "node(s) did not have enough free storage";
/// The volume is gone.
const GONE: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
/// The volume is in another zone.
const ZONE: &str = "node(s) had no available volume zone";
/// Provisioner of classes whose volumes people make.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// Labels that say in which zone or region a volume is; several values are joined by `__`.
const ZONES: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// What has to be written for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Volumes that are there, and the claims that they are reserved for.
    pub(crate) reserved: Vec<(VolumeName, ClaimKey)>,
    /// Claims that are provisioned there.
    pub(crate) provisioned: Vec<ClaimKey>,
}

/// Finds a volume on the node for every claim, or how to come by one.
pub(crate) fn find(needs: &[Need], node: &NodeObject, facts: &Facts) -> Result<Plan, &'static str> {
    let mut plan = Plan::default();
    let mut taken = HashSet::new();
    for need in needs {
        match need {
            Need::Bound(_, name) => {
                let volume = facts.volumes.get(name).ok_or(GONE)?;
                if !reaches(volume, node) {
                    return Err(AFFINITY);
                }
                if !is_in_zone(volume, node) {
                    return Err(ZONE);
                }
            }
            Need::Delayed(claim, class) => {
                let selected = claim.selected_node();
                if selected.is_some_and(|selected| selected != node.slim.name.as_str()) {
                    return Err(NOTHING);
                }
                let there = if selected.is_some() { None } else { matching(claim, node, facts, &taken) };
                match there {
                    Some(volume) => {
                        taken.insert(volume.slim.name.clone());
                        plan.reserved.push((volume.slim.name.clone(), claim.key.clone()));
                    }
                    None => {
                        can_be_provisioned(claim, class, node, facts)?;
                        plan.provisioned.push(claim.key.clone());
                    }
                }
            }
        }
    }
    Ok(plan)
}

/// Whether the volume can be reached from the node.
pub(crate) fn reaches(volume: &VolumeObject, node: &NodeObject) -> bool {
    let affinity = volume.spec().node_affinity.as_ref();
    affinity
        .and_then(|affinity| affinity.required.as_ref())
        .is_none_or(|required| terms::selects(required, node))
}

fn is_in_zone(volume: &VolumeObject, node: &NodeObject) -> bool {
    ZONES.iter().all(|key| {
        let (Some(at), Some(here)) = (volume.slim.meta.labels.get(key), node.slim.labels.get(*key)) else {
            return true;
        };
        at.split("__").any(|zone| zone == here)
    })
}

/// The volume for a claim: one that is reserved for it, else the smallest that fits.
fn matching<'f>(
    claim: &Claim,
    node: &NodeObject,
    facts: &'f Facts,
    taken: &HashSet<VolumeName>,
) -> Option<&'f VolumeObject> {
    let request = *claim.request.as_ref().ok()?;
    let mut best: Option<&VolumeObject> = None;
    for volume in facts.volumes.values() {
        let slim = &volume.slim;
        let reserved = slim.claim_ref.is_some();
        let usable = !taken.contains(&slim.name)
            && (!reserved || slim.is_bound_to(&claim.key, &claim.meta.uid))
            && slim.capacity.is_some_and(|capacity| capacity >= request)
            && slim.mode == claim.mode
            && slim.attributes_class == claim.attributes_class
            && !slim.meta.deleting;
        if !usable {
            continue;
        }
        if reserved {
            return reaches(volume, node).then_some(volume);
        }
        let fits = slim.phase == VolumePhase::Available
            && is_selected(claim, &slim.meta.labels)
            && *slim.class == *claim.class_name()
            && reaches(volume, node)
            && slim.access_modes.contains(claim.access_modes);
        if fits && best.is_none_or(|best| slim.capacity < best.slim.capacity) {
            best = Some(volume);
        }
    }
    best
}

fn is_selected(claim: &Claim, labels: &StringMap) -> bool {
    match claim.selector.as_deref() {
        None => true,
        Some(Ok(selector)) => selector.matches(labels),
        Some(Err(_)) => false,
    }
}

fn can_be_provisioned(
    claim: &Claim,
    class: &StorageClass,
    node: &NodeObject,
    facts: &Facts,
) -> Result<(), &'static str> {
    let provisioner = class.provisioner.as_str();
    if provisioner.is_empty() || provisioner == NO_PROVISIONER {
        return Err(NOTHING);
    }
    let allowed = |term: &Vec<(String, Vec<String>)>| {
        term.iter().all(|(key, values)| node.slim.labels.get(key).is_some_and(|value| values.contains(value)))
    };
    if !class.allowed_topologies.is_empty() && !class.allowed_topologies.iter().any(allowed) {
        return Err(NOTHING);
    }
    if has_room(claim, class, node, facts) { Ok(()) } else { Err(ROOM) }
}

/// Whether the driver has said that there is room; one that says nothing of it has enough.
fn has_room(claim: &Claim, class: &StorageClass, node: &NodeObject, facts: &Facts) -> bool {
    let Ok(request) = &claim.request else { return true };
    let driver = facts.csi_drivers.get(class.provisioner.as_str());
    if driver.and_then(|driver| driver.full.spec.storage_capacity) != Some(true) {
        return true;
    }
    facts.capacities.iter().any(|capacity| {
        capacity.class == class.name.as_str()
            && capacity.largest.is_some_and(|largest| largest >= *request)
            && capacity.nodes.as_ref().is_some_and(|nodes| terms::labelled(nodes, &node.slim.labels))
    })
}
