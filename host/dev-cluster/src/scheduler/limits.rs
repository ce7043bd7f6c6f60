//! How many volumes of a driver a node takes (kube-scheduler's NodeVolumeLimits).

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_domain::{ClaimKey, VolumeName};

use super::rules::{Facts, Need};
use crate::kinds::{NodeObject, PodObject};

/// Volumes by their drivers; what is not provisioned yet counts by its claim.
type Counted = BTreeMap<String, BTreeSet<String>>;

/// Whether the node would have more volumes of a driver than it takes.
pub(crate) fn exceeded(pod: &PodObject, needs: &[Need], node: &NodeObject, facts: &Facts) -> bool {
    let name = &node.slim.name;
    let Some(csi_node) = facts.csi_nodes.get(name) else { return false };
    let mut new = Counted::new();
    for need in needs {
        match need {
            Need::Bound(_, volume) => count_volume(&mut new, volume, facts),
            Need::Delayed(claim, class) => count(&mut new, class.provisioner.as_str(), claim.key.to_string()),
        }
    }
    let mut there = Counted::new();
    for (_, other) in facts.placed.iter().filter(|(at, other)| at == name && other.slim.key != pod.slim.key) {
        for volume in other.volumes() {
            let Some(claim) = other.claim_of(volume) else { continue };
            count_claim(&mut there, &ClaimKey::new(other.slim.key.namespace.clone(), claim), facts);
        }
    }
    for attachment in facts.attachments.iter().filter(|attachment| attachment.node == *name) {
        if let Some(volume) = attachment.volume() {
            count_volume(&mut there, volume, facts);
        }
    }
    new.iter().any(|(driver, volumes)| {
        let Some(limit) = csi_node.limit(driver) else { return false };
        let there = there.get(driver);
        let more = volumes.iter().filter(|volume| there.is_none_or(|there| !there.contains(*volume))).count();
        more > 0 && there.map_or(0, BTreeSet::len) + more > limit
    })
}

fn count(counted: &mut Counted, driver: &str, volume: String) {
    counted.entry(driver.to_owned()).or_default().insert(volume);
}

fn count_volume(counted: &mut Counted, volume: &VolumeName, facts: &Facts) {
    if let Some(csi) = facts.volumes.get(volume).and_then(|volume| volume.slim.csi.as_ref()) {
        count(counted, csi.driver.as_str(), csi.handle.to_string());
    }
}

fn count_claim(counted: &mut Counted, key: &ClaimKey, facts: &Facts) {
    let Some(claim) = facts.claims.get(key) else { return };
    match &claim.volume {
        Some(volume) => count_volume(counted, volume, facts),
        None => {
            if let Some(class) = facts.classes.get(claim.class_name()) {
                count(counted, class.provisioner.as_str(), key.to_string());
            }
        }
    }
}
