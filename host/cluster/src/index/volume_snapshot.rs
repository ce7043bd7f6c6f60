//! Indexes of VolumeSnapshots and VolumeSnapshotContents.

use std::sync::Arc;

use cofferdam_domain::{
    DriverName, SnapshotHandle, VolumeSnapshot, VolumeSnapshotContent, volume_snapshot::VolumeSnapshotSource,
};

use super::{
    Index, Indexed,
    secondary_index::{SecondaryIndex, secondary_key},
};

impl Indexed for VolumeSnapshot {
    type Index = VolumeSnapshotIndex;
}

impl Indexed for VolumeSnapshotContent {
    type Index = VolumeSnapshotContentIndex;
}

secondary_key! {
    /// Namespace and name of the source claim.
    SnapshotClaim(snapshot: VolumeSnapshot) -> (&'a str, &'a str) {
        match &snapshot.source {
            VolumeSnapshotSource::Claim(name) => Some((&*snapshot.key.namespace, &**name)),
            VolumeSnapshotSource::Content(_) | VolumeSnapshotSource::Invalid(_) => None,
        }
    }
}
secondary_key! {
    /// `spec.driver` and the handle.
    ContentDriverHandle(content: VolumeSnapshotContent) -> (&'a DriverName, &'a SnapshotHandle) {
        content.handle().map(|handle| (&content.driver, handle))
    }
}

/// VolumeSnapshots by source claim, if they have one.
#[derive(Debug, Default)]
pub struct VolumeSnapshotIndex {
    pub(crate) by_claim: SecondaryIndex<SnapshotClaim>,
}

/// VolumeSnapshotContents by driver and handle.
#[derive(Debug, Default)]
pub struct VolumeSnapshotContentIndex {
    pub(crate) by_handle: SecondaryIndex<ContentDriverHandle>,
}

impl Index<VolumeSnapshot> for VolumeSnapshotIndex {
    fn insert(&mut self, snapshot: &Arc<VolumeSnapshot>) {
        self.by_claim.insert(snapshot);
    }

    fn remove(&mut self, snapshot: &Arc<VolumeSnapshot>) {
        self.by_claim.remove(snapshot);
    }
}

impl Index<VolumeSnapshotContent> for VolumeSnapshotContentIndex {
    fn insert(&mut self, content: &Arc<VolumeSnapshotContent>) {
        self.by_handle.insert(content);
    }

    fn remove(&mut self, content: &Arc<VolumeSnapshotContent>) {
        self.by_handle.remove(content);
    }
}
