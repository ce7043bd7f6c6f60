//! Index of PersistentVolumes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use cofferdam_domain::{
    AccessModes, ClaimKey, DriverName, Quantity, Volume, VolumeHandle, VolumeMode, VolumeName, VolumePhase,
};

use super::{
    Index, Indexed,
    reference_counts::ReferenceCounts,
    secondary_index::{SecondaryIndex, secondary_key},
};

impl Indexed for Volume {
    type Index = VolumeIndex;
}

secondary_key! {
    /// Namespace and name of `spec.claimRef`.
    VolumeClaim(volume: Volume) -> &'a ClaimKey { volume.claim_ref.as_ref().map(|claim| &claim.key) }
}
secondary_key! {
    /// `driver` and `volumeHandle` of `spec.csi`.
    VolumeDriverHandle(volume: Volume) -> (&'a DriverName, &'a VolumeHandle) {
        volume.csi.as_ref().map(|csi| (&csi.driver, &csi.handle))
    }
}

/// StorageClass, volume mode and VolumeAttributesClass, which a claim and a free volume must share.
pub(crate) type FreeVolumeKey = (Arc<str>, VolumeMode, Box<str>);

/// Free volumes of one key, in the order in which they are offered to a claim: number of access modes, access
/// modes, capacity, name.
pub(crate) type FreeVolumes = BTreeSet<(u32, AccessModes, Quantity, VolumeName)>;

/// Volumes by `spec.claimRef` and by driver and handle, free volumes, and reference counts of
/// VolumeAttributesClasses. A volume is free if its phase is Available, it has a capacity and no
/// `spec.claimRef`, and it is not being deleted.
#[derive(Debug, Default)]
pub struct VolumeIndex {
    pub(crate) by_claim: SecondaryIndex<VolumeClaim>,
    pub(crate) by_handle: SecondaryIndex<VolumeDriverHandle>,
    pub(crate) free: HashMap<FreeVolumeKey, FreeVolumes>,
    pub(crate) attributes_class_refs: ReferenceCounts,
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
    fn insert(&mut self, volume: &Arc<Volume>) {
        self.attributes_class_refs.increment(&volume.attributes_class);
        self.by_claim.insert(volume);
        self.by_handle.insert(volume);
        if let Some((key, entry)) = Self::free_index_entry(volume) {
            self.free.entry(key).or_default().insert(entry);
        }
    }

    fn remove(&mut self, volume: &Arc<Volume>) {
        self.attributes_class_refs.decrement(&volume.attributes_class);
        self.by_claim.remove(volume);
        self.by_handle.remove(volume);
        if let Some((key, entry)) = Self::free_index_entry(volume)
            && let Some(free) = self.free.get_mut(&key)
        {
            free.remove(&entry);
            if free.is_empty() {
                self.free.remove(&key);
            }
        }
    }
}
