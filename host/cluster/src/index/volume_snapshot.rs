//! Indexes of VolumeSnapshots and VolumeSnapshotContents.

use std::{collections::HashMap, sync::Arc};

use cofferdam_domain::{
    ClaimKey, DriverName, SnapshotHandle, VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotContentName,
    VolumeSnapshotKey, volume_snapshot::VolumeSnapshotSource,
};

use super::{
    Index, Indexed,
    key_set::{KeySet as _, remove_member},
    small_set::SmallSet,
};

impl Indexed for VolumeSnapshot {
    type Index = VolumeSnapshotIndex;
}

impl Indexed for VolumeSnapshotContent {
    type Index = VolumeSnapshotContentIndex;
}

/// VolumeSnapshots by source claim, if they have one.
#[derive(Debug, Default)]
pub struct VolumeSnapshotIndex {
    pub(crate) by_claim: HashMap<ClaimKey, SmallSet<VolumeSnapshotKey>>,
}

/// VolumeSnapshotContents by driver and handle.
#[derive(Debug, Default)]
pub struct VolumeSnapshotContentIndex {
    pub(crate) by_handle: HashMap<(DriverName, SnapshotHandle), SmallSet<VolumeSnapshotContentName>>,
}

fn source_claim(snapshot: &VolumeSnapshot) -> Option<ClaimKey> {
    match &snapshot.source {
        VolumeSnapshotSource::Claim(name) => {
            Some(ClaimKey::new(Arc::clone(&snapshot.key.namespace), Arc::clone(name)))
        }
        VolumeSnapshotSource::Content(_) | VolumeSnapshotSource::Invalid(_) => None,
    }
}

fn handle_of(content: &VolumeSnapshotContent) -> Option<(DriverName, SnapshotHandle)> {
    Some((content.driver.clone(), content.handle()?.clone()))
}

impl Index<VolumeSnapshot> for VolumeSnapshotIndex {
    fn insert(&mut self, snapshot: &VolumeSnapshot) {
        if let Some(claim) = source_claim(snapshot) {
            self.by_claim.entry(claim).or_default().insert_member(snapshot.key.clone());
        }
    }

    fn remove(&mut self, snapshot: &VolumeSnapshot) {
        if let Some(claim) = source_claim(snapshot) {
            remove_member(&mut self.by_claim, &claim, &snapshot.key);
        }
    }
}

impl Index<VolumeSnapshotContent> for VolumeSnapshotContentIndex {
    fn insert(&mut self, content: &VolumeSnapshotContent) {
        if let Some(handle) = handle_of(content) {
            self.by_handle.entry(handle).or_default().insert_member(content.name.clone());
        }
    }

    fn remove(&mut self, content: &VolumeSnapshotContent) {
        if let Some(handle) = handle_of(content) {
            remove_member(&mut self.by_handle, &handle, &content.name);
        }
    }
}
