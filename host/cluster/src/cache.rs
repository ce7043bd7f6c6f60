//! The cache: one table per kind that some role reads, with the indexes that keep every look-up away from a
//! scan.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use cofferdam_domain::{
    AccessModes, Claim, ClaimKey, CsiDriver, CsiNode, DriverName, Node, NodeName, Pod, PodKey, Quantity,
    StorageClass, Uid, Volume, VolumeAttachment, VolumeAttachmentName, VolumeAttributesClass,
    VolumeAttributesClassName, VolumeHandle, VolumeMode, VolumeName, VolumePhase,
};

use crate::{
    deletion_freeze::{RestoreDetector, RestoreMarker},
    kind::Index,
    orphan_report::OrphanReport,
    small_set::{KeySet, SmallSet},
    store::{Lookup, ObjectStore},
};

/// Everything that the roles read.
#[derive(Debug, Default)]
pub struct Cache {
    /// PersistentVolumeClaims
    pub claims: ObjectStore<Claim>,
    /// PersistentVolumes
    pub volumes: ObjectStore<Volume>,
    /// StorageClasses
    pub classes: ObjectStore<StorageClass>,
    /// VolumeAttributesClasses
    pub attributes_classes: ObjectStore<VolumeAttributesClass>,
    /// Pods
    pub pods: ObjectStore<Pod>,
    /// VolumeAttachments
    pub attachments: ObjectStore<VolumeAttachment>,
    /// CSINodes
    pub csi_nodes: ObjectStore<CsiNode>,
    /// CSIDrivers
    pub csi_drivers: ObjectStore<CsiDriver>,
    /// Nodes
    pub nodes: ObjectStore<Node>,
    /// The mark of a restored cluster, where it stands.
    pub restore_markers: ObjectStore<RestoreMarker>,
    /// Reports of what drivers hold without an object.
    pub orphan_reports: ObjectStore<OrphanReport>,
    /// Whether all of this was in a cluster that is no more.
    pub restore_detector: RestoreDetector,
}

/// Claims by uid, by class and by the volume that they name.
#[derive(Debug, Default)]
pub struct ClaimIndex {
    by_uid: HashMap<Uid, ClaimKey>,
    unbound_by_class: HashMap<Box<str>, BTreeSet<ClaimKey>>,
    by_volume: HashMap<VolumeName, SmallSet<ClaimKey>>,
    attributes_class_refs: ReferenceCounts,
}

impl Index<Claim> for ClaimIndex {
    fn insert(&mut self, claim: &Claim) {
        self.by_uid.insert(claim.meta.uid.clone(), claim.key.clone());
        claim.attributes_classes().for_each(|class| self.attributes_class_refs.increment(class));
        match &claim.volume {
            Some(volume) => {
                self.by_volume.entry(volume.clone()).or_default().insert_member(claim.key.clone());
            }
            None => {
                self.unbound_by_class
                    .entry(claim.class_name().into())
                    .or_default()
                    .insert_member(claim.key.clone());
            }
        }
    }

    fn remove(&mut self, claim: &Claim) {
        if self.by_uid.get(&claim.meta.uid) == Some(&claim.key) {
            self.by_uid.remove(&claim.meta.uid);
        }
        claim.attributes_classes().for_each(|class| self.attributes_class_refs.decrement(class));
        match &claim.volume {
            Some(volume) => remove_member(&mut self.by_volume, volume, &claim.key),
            None => remove_member(&mut self.unbound_by_class, claim.class_name(), &claim.key),
        }
    }
}

/// How many objects name a VolumeAttributesClass. The empty name means none, and most have none.
#[derive(Debug, Default)]
struct ReferenceCounts(HashMap<Box<str>, usize>);

impl ReferenceCounts {
    fn increment(&mut self, class: &str) {
        if !class.is_empty() {
            *self.0.entry(class.into()).or_default() += 1;
        }
    }

    fn decrement(&mut self, class: &str) {
        let Some(count) = self.0.get_mut(class) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.0.remove(class);
        }
    }
}

/// What a claim and a volume must have in common before sizes are compared.
type FreeVolumeKey = (Arc<str>, VolumeMode, Box<str>);

/// Free volumes of one shelf: by the number of their access modes, the modes, then size and name.
type FreeVolumes = BTreeSet<(u32, AccessModes, Quantity, VolumeName)>;

/// Volumes by the claim that they belong to or are reserved for, and the free ones in the order of the
/// search.
#[derive(Debug, Default)]
pub struct VolumeIndex {
    by_claim: HashMap<ClaimKey, SmallSet<VolumeName>>,
    by_handle: HashMap<(DriverName, VolumeHandle), SmallSet<VolumeName>>,
    free: HashMap<FreeVolumeKey, FreeVolumes>,
    attributes_class_refs: ReferenceCounts,
}

impl VolumeIndex {
    fn free_index_entry(
        volume: &Volume,
    ) -> Option<(FreeVolumeKey, (u32, AccessModes, Quantity, VolumeName))> {
        let is_free =
            volume.claim_ref.is_none() && volume.phase == VolumePhase::Available && !volume.meta.deleting;
        let capacity = volume.capacity.filter(|_| is_free)?;
        let key = (volume.class.clone(), volume.mode, volume.attributes_class.clone());
        Some((key, (volume.access_modes.len(), volume.access_modes, capacity, volume.name.clone())))
    }
}

impl Index<Volume> for VolumeIndex {
    fn insert(&mut self, volume: &Volume) {
        self.attributes_class_refs.increment(&volume.attributes_class);
        if let Some(claim) = &volume.claim_ref {
            self.by_claim.entry(claim.key.clone()).or_default().insert_member(volume.name.clone());
        }
        if let Some(csi) = &volume.csi {
            let handle = (csi.driver.clone(), csi.handle.clone());
            self.by_handle.entry(handle).or_default().insert_member(volume.name.clone());
        }
        if let Some((shelf, place)) = Self::free_index_entry(volume) {
            self.free.entry(shelf).or_default().insert(place);
        }
    }

    fn remove(&mut self, volume: &Volume) {
        self.attributes_class_refs.decrement(&volume.attributes_class);
        if let Some(claim) = &volume.claim_ref {
            remove_member(&mut self.by_claim, &claim.key, &volume.name);
        }
        if let Some(csi) = &volume.csi {
            remove_member(&mut self.by_handle, &(csi.driver.clone(), csi.handle.clone()), &volume.name);
        }
        if let Some((shelf, place)) = Self::free_index_entry(volume)
            && let Some(shelved) = self.free.get_mut(&shelf)
        {
            shelved.remove(&place);
            if shelved.is_empty() {
                self.free.remove(&shelf);
            }
        }
    }
}

/// Pods by the claims that they use; those with claims by their node, too.
#[derive(Debug, Default)]
pub struct PodIndex {
    by_claim: HashMap<ClaimKey, SmallSet<PodKey>>,
    by_node: HashMap<NodeName, BTreeSet<PodKey>>,
}

impl PodIndex {
    /// The claims that a pod uses, directly or through a generic ephemeral volume.
    pub fn claims_of(pod: &Pod) -> impl Iterator<Item = ClaimKey> + '_ {
        let all = pod.claims.iter().chain(&pod.ephemeral_claims);
        all.map(|name| ClaimKey::new(pod.key.namespace.clone(), name.clone()))
    }

    fn node_index_key(pod: &Pod) -> Option<&NodeName> {
        pod.node.as_ref().filter(|_| !pod.claims.is_empty() || !pod.ephemeral_claims.is_empty())
    }
}

impl Index<Pod> for PodIndex {
    fn insert(&mut self, pod: &Pod) {
        for claim in Self::claims_of(pod) {
            self.by_claim.entry(claim).or_default().insert_member(pod.key.clone());
        }
        if let Some(node) = Self::node_index_key(pod) {
            self.by_node.entry(node.clone()).or_default().insert(pod.key.clone());
        }
    }

    fn remove(&mut self, pod: &Pod) {
        for claim in Self::claims_of(pod) {
            remove_member(&mut self.by_claim, &claim, &pod.key);
        }
        if let Some(node) = Self::node_index_key(pod) {
            remove_member(&mut self.by_node, node, &pod.key);
        }
    }
}

/// VolumeAttachments by volume and by node.
#[derive(Debug, Default)]
pub struct VolumeAttachmentIndex {
    by_volume: HashMap<VolumeName, SmallSet<VolumeAttachmentName>>,
    by_node: HashMap<NodeName, BTreeSet<VolumeAttachmentName>>,
}

impl Index<VolumeAttachment> for VolumeAttachmentIndex {
    fn insert(&mut self, attachment: &VolumeAttachment) {
        if let Some(volume) = attachment.volume() {
            self.by_volume.entry(volume.clone()).or_default().insert_member(attachment.name.clone());
        }
        self.by_node.entry(attachment.node.clone()).or_default().insert_member(attachment.name.clone());
    }

    fn remove(&mut self, attachment: &VolumeAttachment) {
        if let Some(volume) = attachment.volume() {
            remove_member(&mut self.by_volume, volume, &attachment.name);
        }
        remove_member(&mut self.by_node, &attachment.node, &attachment.name);
    }
}

fn remove_member<K, Q, V, M>(map: &mut HashMap<K, M>, key: &Q, member: &V)
where
    K: std::borrow::Borrow<Q> + Eq + std::hash::Hash,
    Q: Eq + std::hash::Hash + ?Sized,
    M: KeySet<V>,
{
    if map.get_mut(key).is_some_and(|members| members.remove_member(member)) {
        map.remove(key);
    }
}

impl Cache {
    /// The claim with this uid, wherever it is.
    pub fn claim_by_uid(&self, uid: &Uid) -> Option<Arc<Claim>> {
        self.claims.query(|index, claims| index.by_uid.get(uid).and_then(|key| claims.get(key)).cloned())
    }

    /// The class of that name; [`Seen::Absent`] for the empty name, which means "no class".
    pub fn class(&self, name: &str) -> Lookup<StorageClass> {
        if name.is_empty() { Lookup::Missing } else { self.classes.get(&name.into()) }
    }

    /// Whether a claim or a volume names this VolumeAttributesClass. What cannot be read may name any.
    pub fn is_attributes_class_in_use(&self, name: &VolumeAttributesClassName) -> bool {
        self.claims.query(|index, _| index.attributes_class_refs.0.contains_key(name.as_str()))
            || self.volumes.query(|index, _| index.attributes_class_refs.0.contains_key(name.as_str()))
    }

    /// Claims that name no volume and have this class.
    pub fn unbound_claims_of_class(&self, class: &str) -> Vec<ClaimKey> {
        self.claims.query(|index, _| {
            index.unbound_by_class.get(class).map(|keys| keys.iter().cloned().collect()).unwrap_or_default()
        })
    }

    /// Claims whose `spec.volumeName` is this volume.
    pub fn claims_referencing_volume(&self, volume: &VolumeName) -> Vec<ClaimKey> {
        self.claims.query(|index, _| {
            index.by_volume.get(volume).map(|keys| keys.iter().cloned().collect()).unwrap_or_default()
        })
    }

    /// Volumes whose claimRef has this namespace and name, by name.
    pub fn volumes_of_claim(&self, claim: &ClaimKey) -> Vec<Arc<Volume>> {
        self.volumes.query(|index, volumes| {
            let names = index.by_claim.get(claim).into_iter().flatten();
            names.filter_map(|name| volumes.get(name).cloned()).collect()
        })
    }

    /// Another object that stands for the same volume of a driver; only those that `may` is true for.
    pub fn other_volume_with_handle(
        &self,
        driver: &DriverName,
        handle: &VolumeHandle,
        name: &VolumeName,
        is_candidate: impl Fn(&Volume) -> bool,
    ) -> Option<VolumeName> {
        self.volumes.query(|index, volumes| {
            let names = index.by_handle.get(&(driver.clone(), handle.clone()))?;
            let others = names.iter().filter(|other| *other != name);
            others
                .into_iter()
                .find(|other| volumes.get(*other).is_none_or(|other| is_candidate(other)))
                .cloned()
        })
    }

    /// An object that stands for this volume of a driver; the first by name where there are more.
    pub fn volume_with_handle(&self, driver: &DriverName, handle: &VolumeHandle) -> Option<VolumeName> {
        self.volumes
            .query(|index, _| index.by_handle.get(&(driver.clone(), handle.clone()))?.iter().next().cloned())
    }

    /// The objects that stand for this volume of a driver, by name.
    pub fn volumes_with_handle(&self, driver: &DriverName, handle: &VolumeHandle) -> Vec<Arc<Volume>> {
        self.volumes.query(|index, volumes| {
            let names = index.by_handle.get(&(driver.clone(), handle.clone())).into_iter().flatten();
            names.filter_map(|name| volumes.get(name).cloned()).collect()
        })
    }

    /// The handles of a driver's volumes. It looks at every volume there is.
    pub fn handles_of_driver(&self, driver: &DriverName) -> Vec<VolumeHandle> {
        self.volumes.query(|index, _| {
            let entries = index.by_handle.keys().filter(|(of, _)| of == driver);
            entries.map(|(_, handle)| handle.clone()).collect()
        })
    }

    /// The first free volume on the claim's shelf that `fits`, in Kubernetes' order: fewest access modes,
    /// then smallest, then by name. Only volumes at least as large as `request` with every mode of `modes`
    /// are offered.
    pub fn find_free_volume(
        &self,
        (class, mode, attributes_class): (&str, VolumeMode, &str),
        modes: AccessModes,
        request: Quantity,
        mut is_match: impl FnMut(&Volume) -> bool,
    ) -> Option<Arc<Volume>> {
        self.volumes.query(|index, volumes| {
            let free_volumes = index.free.get(&(class.into(), mode, attributes_class.into()))?;
            let candidates =
                free_volumes.iter().filter(|(_, has, size, _)| has.contains(modes) && *size >= request);
            candidates.filter_map(|(.., name)| volumes.get(name)).find(|volume| is_match(volume)).cloned()
        })
    }

    /// Pods that use the claim.
    pub fn pods_using_claim(&self, claim: &ClaimKey) -> Vec<Arc<Pod>> {
        self.pods.query(|index, pods| {
            index.by_claim.get(claim).into_iter().flatten().filter_map(|key| pods.get(key).cloned()).collect()
        })
    }

    /// Pods with claims that are on a node.
    pub fn pods_on_node(&self, node: &NodeName) -> Vec<Arc<Pod>> {
        self.pods.query(|index, pods| {
            index.by_node.get(node).into_iter().flatten().filter_map(|key| pods.get(key).cloned()).collect()
        })
    }

    /// Nodes that have pods with claims.
    pub fn nodes_with_pods(&self) -> Vec<NodeName> {
        self.pods.query(|index, _| index.by_node.keys().cloned().collect())
    }

    /// VolumeAttachments that name a volume, whoever's they are, by name.
    pub fn attachments_of_volume(&self, volume: &VolumeName) -> Vec<Arc<VolumeAttachment>> {
        self.attachments.query(|index, attachments| {
            let names = index.by_volume.get(volume).into_iter().flatten();
            names.filter_map(|name| attachments.get(name).cloned()).collect()
        })
    }

    /// VolumeAttachments for a node, whoever's they are, by name.
    pub fn attachments_of_node(&self, node: &NodeName) -> Vec<Arc<VolumeAttachment>> {
        self.attachments.query(|index, attachments| {
            let names = index.by_node.get(node).into_iter().flatten();
            names.filter_map(|name| attachments.get(name).cloned()).collect()
        })
    }
}
