//! The cache of all kinds, with queries over their indexes.

use std::{collections::HashSet, sync::Arc};

use cofferdam_domain::{
    AccessModes, Claim, ClaimKey, CsiDriver, CsiNode, DriverName, Node, NodeName, Pod, Quantity,
    SnapshotHandle, SourceKey, StorageClass, Uid, Volume, VolumeAttachment, VolumeAttributesClass,
    VolumeAttributesClassName, VolumeHandle, VolumeMode, VolumeName, VolumeSnapshot, VolumeSnapshotClass,
    VolumeSnapshotContent,
};

use super::{Lookup, ObjectStore, RestoreDetector};
pub use crate::index::PodIndex;
use crate::{
    index::Indexed,
    objects::{orphan_report::OrphanReport, restore_marker::RestoreMarker},
};

/// The cached objects of all kinds.
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
    /// VolumeSnapshots
    pub snapshots: ObjectStore<VolumeSnapshot>,
    /// VolumeSnapshotContents
    pub snapshot_contents: ObjectStore<VolumeSnapshotContent>,
    /// VolumeSnapshotClasses
    pub snapshot_classes: ObjectStore<VolumeSnapshotClass>,
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
    /// The ConfigMap that marks a restored cluster, if it exists.
    pub restore_markers: ObjectStore<RestoreMarker>,
    /// ConfigMaps with the orphan reports: for each driver one about volumes and one about snapshots.
    pub orphan_reports: ObjectStore<OrphanReport>,
    /// Keeps the first restore of the cluster from a backup that a version in a response revealed.
    pub restore_detector: RestoreDetector,
}

impl Cache {
    /// The claim with this uid.
    pub fn claim_by_uid(&self, uid: &Uid) -> Option<Arc<Claim>> {
        self.claims.query(|index, _| index.by_uid.get(uid).next().cloned())
    }

    /// The class of this name. The empty name means no class: [`Lookup::Missing`].
    pub fn class(&self, name: &str) -> Lookup<StorageClass> {
        if name.is_empty() { Lookup::Missing } else { self.classes.get(&name.into()) }
    }

    /// Returns `true` if a claim or a volume references this VolumeAttributesClass. Undecodable objects are
    /// not considered.
    pub fn is_attributes_class_in_use(&self, name: &VolumeAttributesClassName) -> bool {
        self.claims.query(|index, _| index.attributes_class_refs.contains(name.as_str()))
            || self.volumes.query(|index, _| index.attributes_class_refs.contains(name.as_str()))
    }

    /// Claims of this class without `spec.volumeName`.
    pub fn unbound_claims_of_class(&self, class: &str) -> Vec<ClaimKey> {
        self.claims.query(|index, _| {
            let claims = index.unbound_by_class.get(class).into_iter().flatten();
            claims.map(|claim| claim.0.key.clone()).collect()
        })
    }

    /// Claims with this `spec.volumeName`, sorted by name.
    pub fn claims_referencing_volume(&self, volume: &VolumeName) -> Vec<ClaimKey> {
        let claims = self.claims.query(|index, _| index.by_volume.sorted(volume));
        claims.iter().map(|claim| claim.key.clone()).collect()
    }

    /// Claims whose volume has this source, sorted by name.
    pub fn claims_with_source(&self, source: &SourceKey) -> Vec<Arc<Claim>> {
        self.claims.query(|index, claims| {
            let keys = index.by_source.get(source).into_iter().flatten();
            keys.filter_map(|key| claims.get(key).cloned()).collect()
        })
    }

    /// Volumes with a `spec.claimRef` of this namespace and name, sorted by name.
    pub fn volumes_of_claim(&self, claim: &ClaimKey) -> Vec<Arc<Volume>> {
        self.volumes.query(|index, _| index.by_claim.sorted(claim))
    }

    /// A PersistentVolume other than `name` with this driver and handle that satisfies `is_candidate`. `None`
    /// if there is none.
    pub fn other_volume_with_handle(
        &self,
        driver: &DriverName,
        handle: &VolumeHandle,
        name: &VolumeName,
        is_candidate: impl Fn(&Volume) -> bool,
    ) -> Option<VolumeName> {
        let volumes = self.volumes_with_handle(driver, handle);
        let other = volumes.iter().find(|other| other.name != *name && is_candidate(other))?;
        Some(other.name.clone())
    }

    /// The first PersistentVolume by name with this driver and handle; `None` if there is none.
    pub fn volume_with_handle(&self, driver: &DriverName, handle: &VolumeHandle) -> Option<VolumeName> {
        self.volumes_with_handle(driver, handle).first().map(|volume| volume.name.clone())
    }

    /// The PersistentVolumes with this driver and handle, sorted by name.
    pub fn volumes_with_handle(&self, driver: &DriverName, handle: &VolumeHandle) -> Vec<Arc<Volume>> {
        self.volumes.query(|index, _| index.by_handle.sorted((driver, handle)))
    }

    /// The handles of a driver's PersistentVolumes, each once. The cost grows with the PersistentVolumes of
    /// all drivers.
    pub fn handles_of_driver(&self, driver: &DriverName) -> Vec<VolumeHandle> {
        let handles: HashSet<VolumeHandle> = self.volumes.query(|_, volumes| {
            let csi = volumes.values().filter_map(|volume| volume.csi.as_ref());
            csi.filter(|csi| csi.driver == *driver).map(|csi| csi.handle.clone()).collect()
        });
        handles.into_iter().collect()
    }

    /// The first free volume that satisfies `is_match`, in this order: fewest access modes, then the set of
    /// access modes, then smallest capacity, then name. kube-controller-manager also prefers fewer access
    /// modes, and the smallest capacity among volumes with the same ones; the rest is arbitrary there. A
    /// volume is free if its phase is Available, it has a capacity and no `spec.claimRef`, and it is not
    /// being deleted. Candidates have the class, volume mode and VolumeAttributesClass, every access mode of
    /// `modes`, and at least the capacity `request`.
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

    /// Pods with a volume of this claim, including generic ephemeral volumes and Pods that have terminated,
    /// sorted by name.
    pub fn pods_using_claim(&self, claim: &ClaimKey) -> Vec<Arc<Pod>> {
        self.pods.query(|index, _| index.by_claim.sorted((&claim.namespace, &claim.name)))
    }

    /// VolumeSnapshots of the volume of this claim, sorted by name.
    pub fn snapshots_of_claim(&self, claim: &ClaimKey) -> Vec<Arc<VolumeSnapshot>> {
        self.snapshots.query(|index, _| index.by_claim.sorted((&claim.namespace, &claim.name)))
    }

    /// The VolumeSnapshot with this uid. The cost grows with the number of VolumeSnapshots.
    pub fn snapshot_by_uid(&self, uid: &Uid) -> Option<Arc<VolumeSnapshot>> {
        self.snapshots
            .query(|_, snapshots| snapshots.values().find(|snapshot| snapshot.meta.uid == *uid).cloned())
    }

    /// VolumeSnapshotContents with this driver and handle, sorted by name.
    pub fn contents_with_handle(
        &self,
        driver: &DriverName,
        handle: &SnapshotHandle,
    ) -> Vec<Arc<VolumeSnapshotContent>> {
        self.snapshot_contents.query(|index, _| index.by_handle.sorted((driver, handle)))
    }

    /// Pods with claims on this node.
    pub fn pods_on_node(&self, node: &NodeName) -> Vec<Arc<Pod>> {
        self.pods.query(|index, _| {
            index.by_node.get(node).into_iter().flatten().map(|pod| Arc::clone(&pod.0)).collect()
        })
    }

    /// Nodes with pods that have claims.
    pub fn nodes_with_pods(&self) -> Vec<NodeName> {
        self.pods.query(|index, _| index.by_node.keys().cloned().collect())
    }

    /// VolumeAttachments of this volume on all nodes, whatever their attacher is, sorted by name.
    pub fn attachments_of_volume(&self, volume: &VolumeName) -> Vec<Arc<VolumeAttachment>> {
        self.attachments.query(|index, _| index.by_volume.sorted(volume))
    }

    /// VolumeAttachments on this node, whatever their attacher is, sorted by name.
    pub fn attachments_of_node(&self, node: &NodeName) -> Vec<Arc<VolumeAttachment>> {
        self.attachments.query(|index, _| {
            let attachments = index.by_node.get(node).into_iter().flatten();
            attachments.map(|attachment| Arc::clone(&attachment.0)).collect()
        })
    }
}

/// A kind with a store in the [`Cache`].
pub trait CachedKind: Indexed {
    /// The store of the kind.
    fn store(cache: &Cache) -> &ObjectStore<Self>;
}

macro_rules! cached {
    ($($kind:ty => $field:ident),+ $(,)?) => {$(
        impl CachedKind for $kind {
            fn store(cache: &Cache) -> &ObjectStore<Self> {
                &cache.$field
            }
        }
    )+};
}
cached!(
    Claim => claims,
    Volume => volumes,
    StorageClass => classes,
    VolumeAttributesClass => attributes_classes,
    VolumeSnapshot => snapshots,
    VolumeSnapshotContent => snapshot_contents,
    VolumeSnapshotClass => snapshot_classes,
    Pod => pods,
    VolumeAttachment => attachments,
    CsiNode => csi_nodes,
    CsiDriver => csi_drivers,
    Node => nodes,
    RestoreMarker => restore_markers,
    OrphanReport => orphan_reports,
);
