//! Scheduling of a pod and its volumes: the rules of kube-scheduler's plugins for volumes, cordoned nodes,
//! taints, node selectors and node affinity, as one decision over plain data. Other rules, such as resource
//! requests and affinity between pods, do not apply. The decision is repeated after every effect and every
//! change; the only state is the assumed node.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use cofferdam_domain::{AccessMode, BindingMode, Claim, ClaimKey, ClaimPhase, NodeName, VolumeName};

use super::{
    input::{AssumedNode, PodClaim, SchedulerInput},
    reason::{ClaimError, NodeRejection},
    selectors, volume_binding, volume_limits,
};
use crate::kinds::{FullNode, FullPod};

/// Name of the simulated scheduler: the default of `spec.schedulerName`.
pub const SCHEDULER_NAME: &str = "default-scheduler";

/// The scheduler's next step for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulingDecision {
    /// No effect: [`is_responsible_for`] returns false.
    NoAction,
    /// A claim is not ready or no node is suitable; the text is the reason.
    Unschedulable(String),
    /// Assume that the pod will run on this node, as kube-scheduler does before it binds the pod's volumes.
    AssumeNode(NodeName),
    /// Reserve this volume for this claim.
    ReserveVolume(VolumeName, ClaimKey),
    /// Set the selected-node annotation of this claim.
    SetSelectedNode(ClaimKey),
    /// Wait until the claims in the text are bound.
    WaitForBinding(String),
    /// Forget the assumed node, for the reason in the text, and select a node again.
    ForgetNode(String),
    /// Bind the pod to the assumed node.
    Bind(NodeName),
}

/// Returns true if this scheduler has to schedule the pod: it has no node, scheduling gate or other
/// scheduler, has not terminated and is not being deleted.
pub fn is_responsible_for(pod: &FullPod) -> bool {
    let (spec, slim) = (pod.spec(), &pod.slim);
    let scheduler_name = spec.scheduler_name.as_deref().unwrap_or(SCHEDULER_NAME);
    let is_gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    slim.node.is_none()
        && !slim.meta.deleting
        && !slim.terminated
        && !is_gated
        && scheduler_name == SCHEDULER_NAME
}

/// Decides the next step of a pod.
pub fn decide(pod: &FullPod, input: &SchedulerInput) -> SchedulingDecision {
    if !is_responsible_for(pod) {
        return SchedulingDecision::NoAction;
    }
    let claims = match pod_claims(pod, input) {
        Ok(claims) => claims,
        Err(error) => return reject(input, error.to_string()),
    };
    match &input.assumed {
        Some(assumed) => continue_binding(assumed, &claims, input),
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

/// The claims of a pod: bound ones first, the others by requested size (PreFilter of VolumeBinding). The
/// error is that of the first claim that keeps the pod from being scheduled.
fn pod_claims(pod: &FullPod, input: &SchedulerInput) -> Result<Vec<PodClaim>, ClaimError> {
    let mut claims = Vec::new();
    for volume in pod.volumes() {
        let Some(name) = pod.claim_name(volume) else { continue };
        let key = ClaimKey::new(pod.slim.key.namespace.clone(), name.as_str());
        let ephemeral = volume.ephemeral.is_some();
        let Some(claim) = input.claims.get(&key) else {
            return Err(match ephemeral {
                true => ClaimError::EphemeralNotFound(name),
                false => ClaimError::NotFound(name),
            });
        };
        if claim.phase == ClaimPhase::Lost {
            let volume = claim.volume.as_ref().map(VolumeName::as_str).unwrap_or_default();
            return Err(ClaimError::Lost { claim: name, volume: volume.to_owned() });
        }
        if claim.meta.deleting {
            return Err(ClaimError::Deleting(name));
        }
        if ephemeral && claim.controller_uid.as_ref() != Some(&pod.slim.meta.uid) {
            return Err(ClaimError::NotOwner { claim: key, pod: pod.slim.key.clone() });
        }
        claims.push(classify_claim(claim, input)?);
    }
    // Smallest claims first, so that large volumes remain for large claims.
    claims.sort_by_key(|pod_claim| match pod_claim {
        PodClaim::Bound(..) => None,
        PodClaim::DelayedBinding(claim, _) => claim.request.as_ref().ok().copied(),
    });
    Ok(claims)
}

fn classify_claim(claim: &Arc<Claim>, input: &SchedulerInput) -> Result<PodClaim, ClaimError> {
    if let Some(volume) = claim.volume.clone().filter(|_| claim.is_bind_completed()) {
        return Ok(PodClaim::Bound(Arc::clone(claim), volume));
    }
    match input.classes.get(claim.class_name()) {
        Some(class)
            if class.binding_mode == Some(BindingMode::WaitForFirstConsumer) && claim.volume.is_none() =>
        {
            Ok(PodClaim::DelayedBinding(Arc::clone(claim), Arc::clone(class)))
        }
        // The volume binder is about to complete the binding to the assumed node.
        Some(class)
            if class.binding_mode == Some(BindingMode::WaitForFirstConsumer) && input.assumed.is_some() =>
        {
            Ok(PodClaim::DelayedBinding(Arc::clone(claim), Arc::clone(class)))
        }
        Some(_) | None => Err(ClaimError::UnboundImmediate),
    }
}

/// Selects a node (Filter and Score).
fn select_node(pod: &FullPod, claims: &[PodClaim], input: &SchedulerInput) -> SchedulingDecision {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut best: Option<((usize, usize), &NodeName)> = None;
    for (name, node) in &input.nodes {
        match filter_node(pod, claims, node, input) {
            Ok(()) => {
                // Prefer nodes with the required drivers, then the node with the fewest pods.
                // kube-scheduler's scores have the same result for equal nodes.
                let load = input.assigned_pods.iter().filter(|(at, _)| at == name).count();
                let load = (missing_drivers(claims, name, input), load);
                if best.is_none_or(|(min_load, _)| load < min_load) {
                    best = Some((load, name));
                }
            }
            Err(reason) => *reasons.entry(reason.to_string()).or_default() += 1,
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

/// Number of claims whose driver is not registered on a node.
fn missing_drivers(claims: &[PodClaim], node: &NodeName, input: &SchedulerInput) -> usize {
    let entry = input.csi_nodes.get(node);
    let has = |name: &str| entry.is_some_and(|one| one.full.spec.drivers.iter().any(|own| own.name == name));
    let is_missing = |pod_claim: &&PodClaim| match pod_claim {
        PodClaim::Bound(_, volume) => {
            let csi = input.volumes.get(volume).and_then(|volume| volume.slim.csi.as_ref());
            csi.is_some_and(|csi| !has(csi.driver.as_str()))
        }
        PodClaim::DelayedBinding(_, class) => !has(class.provisioner.as_str()),
    };
    claims.iter().filter(is_missing).count()
}

/// Checks whether a pod can run on a node. Returns the first reason against it, in the order of the plugins.
fn filter_node(
    pod: &FullPod,
    claims: &[PodClaim],
    node: &FullNode,
    input: &SchedulerInput,
) -> Result<(), NodeRejection> {
    let spec = pod.spec();
    let node_spec = node.full.spec.as_ref();
    let taints = node_spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    if node_spec.and_then(|spec| spec.unschedulable) == Some(true) {
        return Err(NodeRejection::Unschedulable);
    }
    if !selectors::has_tolerations_for(spec, taints) {
        return Err(NodeRejection::UntoleratedTaint);
    }
    if !selectors::is_allowed_by_affinity(spec, node) {
        return Err(NodeRejection::PodAffinity);
    }
    if claims.iter().any(|pod_claim| is_exclusively_used(pod_claim, input)) {
        return Err(NodeRejection::ReadWriteOncePod);
    }
    if volume_limits::is_limit_exceeded(pod, claims, node, input) {
        return Err(NodeRejection::VolumeLimit);
    }
    volume_binding::find_pod_volumes(claims, node, input).map(drop)
}

/// Returns true if the claim is ReadWriteOncePod and another pod that uses it is bound to or assumed on a
/// node.
fn is_exclusively_used(pod_claim: &PodClaim, input: &SchedulerInput) -> bool {
    let (PodClaim::Bound(claim, _) | PodClaim::DelayedBinding(claim, _)) = pod_claim;
    let is_read_write_once_pod = claim.access_modes.iter().eq([AccessMode::ReadWriteOncePod]);
    is_read_write_once_pod && input.assigned_pods.iter().any(|(_, pod)| has_claim(pod, &claim.key))
}

/// Returns true if a pod uses a claim.
pub(crate) fn has_claim(pod: &FullPod, claim: &ClaimKey) -> bool {
    let mut names = pod.volumes().iter().filter_map(|volume| pod.claim_name(volume));
    pod.slim.key.namespace == claim.namespace && names.any(|name| *name == *claim.name)
}

/// Continues with the assumed node (PreBind): writes the bindings, then waits for the volume binder.
fn continue_binding(
    assumed: &AssumedNode,
    claims: &[PodClaim],
    input: &SchedulerInput,
) -> SchedulingDecision {
    let Some(node) = input.nodes.get(&assumed.node) else {
        return SchedulingDecision::ForgetNode(format!("node {} not found", assumed.node));
    };
    if let Some(reason) = claims.iter().find_map(|pod_claim| lost_selection(pod_claim, assumed)) {
        return SchedulingDecision::ForgetNode(reason);
    }
    let unwritten: Vec<PodClaim> = claims
        .iter()
        .filter(|pod_claim| !is_binding_in_progress(pod_claim, assumed, input))
        .cloned()
        .collect();
    let pod_volumes = match volume_binding::find_pod_volumes(&unwritten, node, input) {
        Ok(pod_volumes) => pod_volumes,
        Err(reason) => return SchedulingDecision::ForgetNode(reason.to_string()),
    };
    if let Some((volume, claim)) = pod_volumes.static_bindings.first() {
        return SchedulingDecision::ReserveVolume(volume.clone(), claim.clone());
    }
    if let Some(claim) = pod_volumes.dynamic_provisions.first() {
        return SchedulingDecision::SetSelectedNode(claim.clone());
    }
    let unbound: HashSet<&str> = claims
        .iter()
        .filter_map(|pod_claim| match pod_claim {
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
        "waiting for {} to be bound on {}",
        names.join(", "),
        assumed.node
    ))
}

/// The reason to forget the node if a selected-node annotation that the scheduler set was removed or changed
/// before the claim was bound.
fn lost_selection(pod_claim: &PodClaim, assumed: &AssumedNode) -> Option<String> {
    let PodClaim::DelayedBinding(claim, _) = pod_claim else { return None };
    let is_annotated = assumed.annotated_claims.contains(&claim.meta.uid);
    let is_still_selected = claim.volume.is_some() || claim.selected_node() == Some(assumed.node.as_str());
    (is_annotated && !is_still_selected)
        .then(|| format!("provisioning failed for PVC {:?}", &*claim.key.name))
}

/// Returns true if the scheduler has nothing left to write for a claim, and the claim is not bound yet.
fn is_binding_in_progress(pod_claim: &PodClaim, assumed: &AssumedNode, input: &SchedulerInput) -> bool {
    let PodClaim::DelayedBinding(claim, _) = pod_claim else { return false };
    claim.volume.is_some()
        || assumed.annotated_claims.contains(&claim.meta.uid)
        || input.volumes.values().any(|volume| {
            volume.slim.claim_ref.is_some() && volume.slim.is_bound_to(&claim.key, &claim.meta.uid)
        })
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
