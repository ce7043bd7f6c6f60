//! Where a pod goes, and what has to be written before it does: the steps of kube-scheduler's plug-ins for
//! volumes, as one decision over plain data. It is taken anew after every effect and after every change, so
//! that it needs no memory beside the node that was chosen.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use cofferdam_domain::{
    AccessMode, BindingMode, Claim, ClaimKey, ClaimPhase, NodeName, StorageClass, Uid, VolumeAttachment,
    VolumeName,
};

use super::{selectors, volume_binding, volume_limits};
use crate::kinds::{CsiDriverObject, CsiNodeObject, CsiStorageCapacity, NodeObject, PodObject, VolumeObject};

/// The scheduler that is simulated: pods name it by default.
pub const SCHEDULER_NAME: &str = "default-scheduler";

/// What is decided on: a pod, and the cluster around it.
#[derive(Clone, Debug, Default)]
pub struct SchedulerInput {
    /// Nodes, by name.
    pub nodes: BTreeMap<NodeName, Arc<NodeObject>>,
    /// Claims.
    pub claims: HashMap<ClaimKey, Arc<Claim>>,
    /// PersistentVolumes, by name: of two that fit alike the first one is taken.
    pub volumes: BTreeMap<VolumeName, Arc<VolumeObject>>,
    /// StorageClasses.
    pub classes: HashMap<String, Arc<StorageClass>>,
    /// VolumeAttachments.
    pub volume_attachments: Vec<Arc<VolumeAttachment>>,
    /// CSINodes.
    pub csi_nodes: HashMap<NodeName, Arc<CsiNodeObject>>,
    /// CSIDrivers.
    pub csi_drivers: HashMap<String, Arc<CsiDriverObject>>,
    /// CSIStorageCapacities.
    pub capacities: Vec<Arc<CsiStorageCapacity>>,
    /// Other pods that have a node, or that one was chosen for.
    pub assigned_pods: Vec<(NodeName, Arc<PodObject>)>,
    /// The node that was chosen for this pod, and what was written for it.
    pub assumed: Option<AssumedNode>,
}

/// A node that was chosen for a pod whose volumes are not bound yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssumedNode {
    /// The node.
    pub node: NodeName,
    /// Claims that were told of it.
    pub annotated_claims: BTreeSet<Uid>,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulingDecision {
    /// Nothing: it is not this scheduler's, or has its place.
    Ignore,
    /// There is no node for it now.
    Unschedulable(String),
    /// This node is for it.
    AssumeNode(NodeName),
    /// This volume is reserved for this claim.
    ReserveVolume(VolumeName, ClaimKey),
    /// The provisioner of this claim is told the chosen node.
    SetSelectedNode(ClaimKey),
    /// The claims are not bound yet.
    WaitForBinding(String),
    /// What was chosen does not work; it is chosen anew.
    ForgetNode(String),
    /// The pod goes to the chosen node.
    Bind(NodeName),
}

/// What one volume of a pod needs.
#[derive(Clone, Debug)]
pub(crate) enum PodClaim {
    /// A claim that is bound to this volume.
    Bound(Arc<Claim>, VolumeName),
    /// A claim that waits for its first consumer.
    DelayedBinding(Arc<Claim>, Arc<StorageClass>),
}

/// Whether a pod waits for this scheduler.
pub fn is_responsible_for(pod: &PodObject) -> bool {
    let (spec, slim) = (pod.spec(), &pod.slim);
    let scheduler_name = spec.scheduler_name.as_deref().unwrap_or(SCHEDULER_NAME);
    let is_gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    slim.node.is_none()
        && !slim.meta.deleting
        && !slim.terminated
        && !is_gated
        && scheduler_name == SCHEDULER_NAME
}

/// Decides.
pub fn decide(pod: &PodObject, input: &SchedulerInput) -> SchedulingDecision {
    if !is_responsible_for(pod) {
        return SchedulingDecision::Ignore;
    }
    let claims = match pod_claims(pod, input) {
        Ok(claims) => claims,
        Err(reason) => return reject(input, reason),
    };
    match &input.assumed {
        Some(chosen) => continue_binding(chosen, &claims, input),
        None => select_node(pod, &claims, input),
    }
}

fn reject(input: &SchedulerInput, reason: String) -> SchedulingDecision {
    match input.assumed {
        Some(_) => SchedulingDecision::ForgetNode(reason),
        None => SchedulingDecision::Unschedulable(format!(
            "0/{} nodes are available: {reason}.",
            input.nodes.len()
        )),
    }
}

/// The claims of a pod, sorted by what the scheduler has to do for them (the plug-in's PreFilter).
fn pod_claims(pod: &PodObject, input: &SchedulerInput) -> Result<Vec<PodClaim>, String> {
    let mut claims = Vec::new();
    for volume in pod.volumes() {
        let Some(name) = pod.claim_name(volume) else { continue };
        let key = ClaimKey::new(pod.slim.key.namespace.clone(), name.as_str());
        let ephemeral = volume.ephemeral.is_some();
        let Some(claim) = input.claims.get(&key) else {
            return Err(if ephemeral {
                format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
                )
            } else {
                format!("persistentvolumeclaim {name:?} not found")
            });
        };
        if claim.phase == ClaimPhase::Lost {
            let volume = claim.volume.as_ref().map(VolumeName::as_str).unwrap_or_default();
            return Err(format!(
                "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
            ));
        }
        if claim.meta.deleting {
            return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        if ephemeral && claim.controller_uid.as_ref() != Some(&pod.slim.meta.uid) {
            return Err(format!("PVC {key} was not created for pod {} (pod is not owner)", pod.slim.key));
        }
        claims.push(classify_claim(claim, input)?);
    }
    // The smallest claims first, so that they leave the large volumes to those that need them.
    claims.sort_by_key(|need| match need {
        PodClaim::Bound(..) => None,
        PodClaim::DelayedBinding(claim, _) => claim.request.as_ref().ok().copied(),
    });
    Ok(claims)
}

fn classify_claim(claim: &Arc<Claim>, input: &SchedulerInput) -> Result<PodClaim, String> {
    if let Some(volume) = claim.volume.clone().filter(|_| claim.is_bind_completed()) {
        return Ok(PodClaim::Bound(Arc::clone(claim), volume));
    }
    match input.classes.get(claim.class_name()) {
        Some(class)
            if class.binding_mode == Some(BindingMode::WaitForFirstConsumer) && claim.volume.is_none() =>
        {
            Ok(PodClaim::DelayedBinding(Arc::clone(claim), Arc::clone(class)))
        }
        // The binder is about to complete it, for the node that was chosen.
        Some(class)
            if class.binding_mode == Some(BindingMode::WaitForFirstConsumer) && input.assumed.is_some() =>
        {
            Ok(PodClaim::DelayedBinding(Arc::clone(claim), Arc::clone(class)))
        }
        Some(_) | None => Err("pod has unbound immediate PersistentVolumeClaims".to_owned()),
    }
}

/// Looks for a node (Filter and Score).
fn select_node(pod: &PodObject, claims: &[PodClaim], input: &SchedulerInput) -> SchedulingDecision {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut best: Option<((usize, usize), &NodeName)> = None;
    for (name, node) in &input.nodes {
        match filter_node(pod, claims, node, input) {
            Ok(()) => {
                // One that its volumes can be mounted on, of those the emptiest; kube-scheduler's scores come
                // to that where nodes are alike.
                let load = input.assigned_pods.iter().filter(|(at, _)| at == name).count();
                let load = (missing_drivers(claims, name, input), load);
                if best.is_none_or(|(min_load, _)| load < min_load) {
                    best = Some((load, name));
                }
            }
            Err(reason) => *reasons.entry(reason).or_default() += 1,
        }
    }
    if let Some((_, name)) = best {
        return SchedulingDecision::AssumeNode(name.clone());
    }
    let reason_counts: Vec<String> =
        reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let reason_counts = if reason_counts.is_empty() {
        "no nodes available to schedule pods".to_owned()
    } else {
        reason_counts.join(", ")
    };
    SchedulingDecision::Unschedulable(format!(
        "0/{} nodes are available: {reason_counts}.",
        input.nodes.len()
    ))
}

/// How many volumes of a pod are of drivers that a node does not have.
fn missing_drivers(claims: &[PodClaim], node: &NodeName, input: &SchedulerInput) -> usize {
    let entry = input.csi_nodes.get(node);
    let has = |name: &str| entry.is_some_and(|one| one.full.spec.drivers.iter().any(|own| own.name == name));
    let is_missing = |need: &&PodClaim| match need {
        PodClaim::Bound(_, volume) => {
            let csi = input.volumes.get(volume).and_then(|volume| volume.slim.csi.as_ref());
            csi.is_some_and(|csi| !has(csi.driver.as_str()))
        }
        PodClaim::DelayedBinding(_, class) => !has(class.provisioner.as_str()),
    };
    claims.iter().filter(is_missing).count()
}

/// Whether a pod can be on a node; the first reason against it, in the order of the plug-ins.
fn filter_node(
    pod: &PodObject,
    claims: &[PodClaim],
    node: &NodeObject,
    input: &SchedulerInput,
) -> Result<(), String> {
    let spec = pod.spec();
    let node_spec = node.full.spec.as_ref();
    let refuse = |reason: &str| Err(reason.to_owned());
    let taints = node_spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    if node_spec.and_then(|spec| spec.unschedulable) == Some(true) {
        return refuse("node(s) were unschedulable");
    }
    if !selectors::has_tolerations_for(spec, taints) {
        return refuse("node(s) had untolerated taint(s)");
    }
    if !selectors::is_allowed_by_affinity(spec, node) {
        return refuse("node(s) didn't match Pod's node affinity/selector");
    }
    if claims.iter().any(|need| is_exclusively_used(need, input)) {
        return refuse(
            "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
        );
    }
    if volume_limits::is_limit_exceeded(pod, claims, node, input) {
        return refuse("node(s) exceed max volume count");
    }
    volume_binding::find_pod_volumes(claims, node, input).map(drop).map_err(str::to_owned)
}

/// Whether a claim for one pod alone is used by another one.
fn is_exclusively_used(need: &PodClaim, input: &SchedulerInput) -> bool {
    let (PodClaim::Bound(claim, _) | PodClaim::DelayedBinding(claim, _)) = need;
    let is_read_write_once_pod = claim.access_modes.iter().eq([AccessMode::ReadWriteOncePod]);
    is_read_write_once_pod && input.assigned_pods.iter().any(|(_, pod)| has_claim(pod, &claim.key))
}

/// Whether a pod uses a claim.
pub(crate) fn has_claim(pod: &PodObject, claim: &ClaimKey) -> bool {
    let mut names = pod.volumes().iter().filter_map(|volume| pod.claim_name(volume));
    pod.slim.key.namespace == claim.namespace && names.any(|name| *name == *claim.name)
}

/// Goes on with the node that was chosen (PreBind): writes what is to be written, then waits for the binder.
fn continue_binding(
    assumed: &AssumedNode,
    claims: &[PodClaim],
    input: &SchedulerInput,
) -> SchedulingDecision {
    let Some(node) = input.nodes.get(&assumed.node) else {
        return SchedulingDecision::ForgetNode(format!("node {} not found", assumed.node));
    };
    if let Some(reason) = claims.iter().find_map(|need| lost_selection(need, assumed)) {
        return SchedulingDecision::ForgetNode(reason);
    }
    let unwritten: Vec<PodClaim> =
        claims.iter().filter(|need| !is_binding_in_progress(need, assumed, input)).cloned().collect();
    let pod_volumes = match volume_binding::find_pod_volumes(&unwritten, node, input) {
        Ok(pod_volumes) => pod_volumes,
        Err(reason) => return SchedulingDecision::ForgetNode(reason.to_owned()),
    };
    if let Some((volume, claim)) = pod_volumes.static_bindings.first() {
        return SchedulingDecision::ReserveVolume(volume.clone(), claim.clone());
    }
    if let Some(claim) = pod_volumes.dynamic_provisions.first() {
        return SchedulingDecision::SetSelectedNode(claim.clone());
    }
    let unbound: HashSet<&str> = claims
        .iter()
        .filter_map(|need| match need {
            PodClaim::Bound(..) => None,
            PodClaim::DelayedBinding(claim, _) => Some(&*claim.key.name),
        })
        .collect();
    if unbound.is_empty() {
        return SchedulingDecision::Bind(assumed.node.clone());
    }
    let mut names: Vec<&str> = unbound.into_iter().collect();
    names.sort_unstable();
    SchedulingDecision::WaitForBinding(format!(
        "waits for {} to be bound for {}",
        names.join(", "),
        assumed.node
    ))
}

/// What took back what was written for the chosen node.
fn lost_selection(need: &PodClaim, assumed: &AssumedNode) -> Option<String> {
    let PodClaim::DelayedBinding(claim, _) = need else { return None };
    let is_annotated = assumed.annotated_claims.contains(&claim.meta.uid);
    let is_still_selected = claim.volume.is_some() || claim.selected_node() == Some(assumed.node.as_str());
    (is_annotated && !is_still_selected)
        .then(|| format!("provisioning failed for PVC {:?}", &*claim.key.name))
}

/// Whether nothing is left to write for a claim.
fn is_binding_in_progress(need: &PodClaim, assumed: &AssumedNode, input: &SchedulerInput) -> bool {
    let PodClaim::DelayedBinding(claim, _) = need else { return false };
    claim.volume.is_some()
        || assumed.annotated_claims.contains(&claim.meta.uid)
        || input.volumes.values().any(|volume| {
            volume.slim.claim_ref.is_some() && volume.slim.is_bound_to(&claim.key, &claim.meta.uid)
        })
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
