//! Where a pod goes, and what has to be written before it does: the steps of kube-scheduler's plug-ins for volumes, as one decision
//! over plain data. It is taken anew after every effect and after every change, so that it needs no memory beside the node that
//! was chosen.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use cofferdam_domain::{
    AccessMode, Attachment, BindingMode, Claim, ClaimKey, ClaimPhase, NodeName, StorageClass,
    Uid, VolumeName,
};

use super::{binding, limits, terms};
use crate::kinds::{Capacity, CsiDriverObject, CsiNodeObject, NodeObject, PodObject, VolumeObject};

/// The scheduler that is simulated: pods name it by default.
pub const SCHEDULER: &str = "default-scheduler";

/// What is decided on: a pod, and the cluster around it.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Nodes, by name.
    pub nodes: BTreeMap<NodeName, Arc<NodeObject>>,
    /// Claims.
    pub claims: HashMap<ClaimKey, Arc<Claim>>,
    /// PersistentVolumes, by name: of two that fit alike the first one is taken.
    pub volumes: BTreeMap<VolumeName, Arc<VolumeObject>>,
    /// StorageClasses.
    pub classes: HashMap<String, Arc<StorageClass>>,
    /// VolumeAttachments.
    pub attachments: Vec<Arc<Attachment>>,
    /// CSINodes.
    pub csi_nodes: HashMap<NodeName, Arc<CsiNodeObject>>,
    /// CSIDrivers.
    pub csi_drivers: HashMap<String, Arc<CsiDriverObject>>,
    /// CSIStorageCapacities.
    pub capacities: Vec<Arc<Capacity>>,
    /// Other pods that have a node, or that one was chosen for.
    pub placed: Vec<(NodeName, Arc<PodObject>)>,
    /// The node that was chosen for this pod, and what was written for it.
    pub chosen: Option<Chosen>,
}

/// A node that was chosen for a pod whose volumes are not bound yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The node.
    pub node: NodeName,
    /// Claims that were told of it.
    pub told: BTreeSet<Uid>,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing: it is not this scheduler's, or has its place.
    Leave,
    /// There is no node for it now.
    Unschedulable(String),
    /// This node is for it.
    Choose(NodeName),
    /// This volume is reserved for this claim.
    Reserve(VolumeName, ClaimKey),
    /// The provisioner of this claim is told the chosen node.
    Tell(ClaimKey),
    /// The claims are not bound yet.
    Wait(String),
    /// What was chosen does not work; it is chosen anew.
    GiveUp(String),
    /// The pod goes to the chosen node.
    Bind(NodeName),
}

/// What one volume of a pod needs.
#[derive(Clone, Debug)]
pub(crate) enum Need {
    /// A claim that is bound to this volume.
    Bound(Arc<Claim>, VolumeName),
    /// A claim that waits for its first consumer.
    Delayed(Arc<Claim>, Arc<StorageClass>),
}

/// Whether a pod waits for this scheduler.
pub fn is_ours(pod: &PodObject) -> bool {
    let (spec, slim) = (pod.spec(), &pod.slim);
    let named = spec.scheduler_name.as_deref().unwrap_or(SCHEDULER);
    let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    slim.node.is_none() && !slim.meta.deleting && !slim.terminated && !gated && named == SCHEDULER
}

/// Decides.
pub fn decide(pod: &PodObject, facts: &Facts) -> Decision {
    if !is_ours(pod) {
        return Decision::Leave;
    }
    let needs = match needs(pod, facts) {
        Ok(needs) => needs,
        Err(reason) => return refuse(facts, reason),
    };
    match &facts.chosen {
        Some(chosen) => proceed(chosen, &needs, facts),
        None => choose(pod, &needs, facts),
    }
}

fn refuse(facts: &Facts, reason: String) -> Decision {
    match facts.chosen {
        Some(_) => Decision::GiveUp(reason),
        None => Decision::Unschedulable(format!("0/{} nodes are available: {reason}.", facts.nodes.len())),
    }
}

/// The claims of a pod, sorted by what the scheduler has to do for them (the plug-in's PreFilter).
fn needs(pod: &PodObject, facts: &Facts) -> Result<Vec<Need>, String> {
    let mut needs = Vec::new();
    for volume in pod.volumes() {
        let Some(name) = pod.claim_of(volume) else { continue };
        let key = ClaimKey::new(pod.slim.key.namespace.clone(), name.as_str());
        let ephemeral = volume.ephemeral.is_some();
        let Some(claim) = facts.claims.get(&key) else {
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
        if ephemeral && claim.controller.as_ref() != Some(&pod.slim.meta.uid) {
            return Err(format!("PVC {key} was not created for pod {} (pod is not owner)", pod.slim.key));
        }
        needs.push(need(claim, facts)?);
    }
    // The smallest claims first, so that they leave the large volumes to those that need them.
    needs.sort_by_key(|need| match need {
        Need::Bound(..) => None,
        Need::Delayed(claim, _) => claim.request.as_ref().ok().copied(),
    });
    Ok(needs)
}

fn need(claim: &Arc<Claim>, facts: &Facts) -> Result<Need, String> {
    if let Some(volume) = claim.volume.clone().filter(|_| claim.is_bind_completed()) {
        return Ok(Need::Bound(Arc::clone(claim), volume));
    }
    match facts.classes.get(claim.class_name()) {
        Some(class)
            if class.binding_mode == Some(BindingMode::WaitForFirstConsumer) && claim.volume.is_none() =>
        {
            Ok(Need::Delayed(Arc::clone(claim), Arc::clone(class)))
        }
        // The binder is about to complete it, for the node that was chosen.
        Some(class)
            if class.binding_mode == Some(BindingMode::WaitForFirstConsumer) && facts.chosen.is_some() =>
        {
            Ok(Need::Delayed(Arc::clone(claim), Arc::clone(class)))
        }
        Some(_) | None => Err("pod has unbound immediate PersistentVolumeClaims".to_owned()),
    }
}

/// Looks for a node (Filter and Score).
fn choose(pod: &PodObject, needs: &[Need], facts: &Facts) -> Decision {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut best: Option<((usize, usize), &NodeName)> = None;
    for (name, node) in &facts.nodes {
        match fits(pod, needs, node, facts) {
            Ok(()) => {
                // One that its volumes can be mounted on, of those the emptiest; kube-scheduler's scores come to that where nodes
                // are alike.
                let load = facts.placed.iter().filter(|(at, _)| at == name).count();
                let load = (missing_drivers(needs, name, facts), load);
                if best.is_none_or(|(least, _)| load < least) {
                    best = Some((load, name));
                }
            }
            Err(reason) => *reasons.entry(reason).or_default() += 1,
        }
    }
    if let Some((_, name)) = best {
        return Decision::Choose(name.clone());
    }
    let listed: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let listed =
        if listed.is_empty() { "no nodes available to schedule pods".to_owned() } else { listed.join(", ") };
    Decision::Unschedulable(format!("0/{} nodes are available: {listed}.", facts.nodes.len()))
}

/// How many volumes of a pod are of drivers that a node does not have.
fn missing_drivers(needs: &[Need], node: &NodeName, facts: &Facts) -> usize {
    let entry = facts.csi_nodes.get(node);
    let has = |name: &str| entry.is_some_and(|one| one.full.spec.drivers.iter().any(|own| own.name == name));
    let is_missing = |need: &&Need| match need {
        Need::Bound(_, volume) => {
            let csi = facts.volumes.get(volume).and_then(|volume| volume.slim.csi.as_ref());
            csi.is_some_and(|csi| !has(csi.driver.as_str()))
        }
        Need::Delayed(_, class) => !has(class.provisioner.as_str()),
    };
    needs.iter().filter(is_missing).count()
}

/// Whether a pod can be on a node; the first reason against it, in the order of the plug-ins.
fn fits(pod: &PodObject, needs: &[Need], node: &NodeObject, facts: &Facts) -> Result<(), String> {
    let spec = pod.spec();
    let own = node.full.spec.as_ref();
    let refuse = |reason: &str| Err(reason.to_owned());
    let taints = own.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    if own.and_then(|spec| spec.unschedulable) == Some(true) {
        return refuse("node(s) were unschedulable");
    }
    if !terms::tolerated(spec, taints) {
        return refuse("node(s) had untolerated taint(s)");
    }
    if !terms::wanted(spec, node) {
        return refuse("node(s) didn't match Pod's node affinity/selector");
    }
    if needs.iter().any(|need| is_taken(need, facts)) {
        return refuse(
            "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
        );
    }
    if limits::exceeded(pod, needs, node, facts) {
        return refuse("node(s) exceed max volume count");
    }
    binding::find(needs, node, facts).map(drop).map_err(str::to_owned)
}

/// Whether a claim for one pod alone is used by another one.
fn is_taken(need: &Need, facts: &Facts) -> bool {
    let (Need::Bound(claim, _) | Need::Delayed(claim, _)) = need;
    let alone = claim.access_modes.iter().eq([AccessMode::ReadWriteOncePod]);
    alone && facts.placed.iter().any(|(_, pod)| uses(pod, &claim.key))
}

/// Whether a pod uses a claim.
pub(crate) fn uses(pod: &PodObject, claim: &ClaimKey) -> bool {
    let mut names = pod.volumes().iter().filter_map(|volume| pod.claim_of(volume));
    pod.slim.key.namespace == claim.namespace && names.any(|name| *name == *claim.name)
}

/// Goes on with the node that was chosen (PreBind): writes what is to be written, then waits for the binder.
fn proceed(chosen: &Chosen, needs: &[Need], facts: &Facts) -> Decision {
    let Some(node) = facts.nodes.get(&chosen.node) else {
        return Decision::GiveUp(format!("node {} not found", chosen.node));
    };
    if let Some(lost) = needs.iter().find_map(|need| undone(need, chosen)) {
        return Decision::GiveUp(lost);
    }
    let open: Vec<Need> = needs.iter().filter(|need| !is_under_way(need, chosen, facts)).cloned().collect();
    let plan = match binding::find(&open, node, facts) {
        Ok(plan) => plan,
        Err(reason) => return Decision::GiveUp(reason.to_owned()),
    };
    if let Some((volume, claim)) = plan.reserved.first() {
        return Decision::Reserve(volume.clone(), claim.clone());
    }
    if let Some(claim) = plan.provisioned.first() {
        return Decision::Tell(claim.clone());
    }
    let waiting: HashSet<&str> = needs
        .iter()
        .filter_map(|need| match need {
            Need::Bound(..) => None,
            Need::Delayed(claim, _) => Some(&*claim.key.name),
        })
        .collect();
    if waiting.is_empty() {
        return Decision::Bind(chosen.node.clone());
    }
    let mut names: Vec<&str> = waiting.into_iter().collect();
    names.sort_unstable();
    Decision::Wait(format!("waits for {} to be bound for {}", names.join(", "), chosen.node))
}

/// What took back what was written for the chosen node.
fn undone(need: &Need, chosen: &Chosen) -> Option<String> {
    let Need::Delayed(claim, _) = need else { return None };
    let told = chosen.told.contains(&claim.meta.uid);
    let kept = claim.volume.is_some() || claim.selected_node() == Some(chosen.node.as_str());
    (told && !kept).then(|| format!("provisioning failed for PVC {:?}", &*claim.key.name))
}

/// Whether nothing is left to write for a claim.
fn is_under_way(need: &Need, chosen: &Chosen, facts: &Facts) -> bool {
    let Need::Delayed(claim, _) = need else { return false };
    claim.volume.is_some()
        || chosen.told.contains(&claim.meta.uid)
        || facts.volumes.values().any(|volume| {
            volume.slim.claim_ref.is_some() && volume.slim.is_bound_to(&claim.key, &claim.meta.uid)
        })
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
