//! Volumes from VolumeSnapshots. Source: external-provisioner's `getSnapshotSource`, and the removal of its
//! finalizer `volumesnapshot-as-source-protection`.
//!
//! VolumeSnapshot and VolumeSnapshotContent are read from the API server before each new request, as
//! external-provisioner does. The VolumeSnapshot gets the finalizer before the intent is written. The
//! finalizer is removed once no claim without a volume names the VolumeSnapshot as its source.

use std::sync::Arc;

use cofferdam_cluster::Cache;
use cofferdam_domain::{
    Claim, DriverName, Quantity, SourceKey, StorageClass, Uid, VolumeSnapshot, VolumeSnapshotContent,
    VolumeSnapshotContentName, names, storage::ContentSource,
};

use super::{FoundSource, SourceObject, SourceProtectionVerdict, find_dependent};

/// The objects of a source, as a live read returned them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveSnapshot {
    /// The VolumeSnapshot; `None` if it does not exist.
    pub snapshot: Option<Arc<VolumeSnapshot>>,
    /// The VolumeSnapshotContent that the status of the VolumeSnapshot names; `None` if it names none, or if
    /// the content does not exist.
    pub content: Option<Arc<VolumeSnapshotContent>>,
}

impl LiveSnapshot {
    /// The node that the label of the content names, if the content is of this driver and bound to the
    /// VolumeSnapshot.
    pub(in crate::provisioner) fn node_of(&self, driver: &DriverName) -> Option<&str> {
        let (snapshot, content) = (self.snapshot.as_ref()?, self.content.as_ref()?);
        let is_source = content.is_bound_to(snapshot) && content.driver == *driver;
        content.managing_node().filter(|_| is_source)
    }
}

/// The reason why no volume can be created from a VolumeSnapshot now.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(in crate::provisioner) enum SnapshotSourceError {
    #[error("it does not exist")]
    Missing,
    #[error(
        "the API server does not serve VolumeSnapshots; expected the CustomResourceDefinitions of \
         snapshot.storage.k8s.io"
    )]
    NotServed,
    #[error("it is being deleted")]
    Deleting,
    #[error("it is not bound to a VolumeSnapshotContent")]
    NotBound,
    #[error("its VolumeSnapshotContent {0} does not exist")]
    ContentMissing(VolumeSnapshotContentName),
    #[error("its VolumeSnapshotContent {0} is not bound to it")]
    ContentOfOther(VolumeSnapshotContentName),
    #[error("its driver is {found}; expected {driver}")]
    OtherDriver { found: DriverName, driver: DriverName },
    #[error("it is not ready to use")]
    NotReady,
    #[error("its VolumeSnapshotContent {0} has no snapshotHandle")]
    NoHandle(VolumeSnapshotContentName),
    #[error("its restoreSize is {restore_size}, more than the {size} of the claim; expected at most as much")]
    Larger { restore_size: Quantity, size: Quantity },
    #[error(
        "its sourceVolumeMode is {found}; expected {expected}, the volumeMode of the claim, or the annotation \
         {} on VolumeSnapshotContent {content}",
        names::ALLOW_VOLUME_MODE_CHANGE
    )]
    OtherMode { found: &'static str, expected: &'static str, content: VolumeSnapshotContentName },
}

/// Checks that a volume for `claim`, whose class is `class`, can be created from its VolumeSnapshot.
/// `prevents_mode_conversion` is `--prevent-volume-mode-conversion`.
///
/// # Errors
/// The first check that fails. All can succeed after a change of the source.
pub(in crate::provisioner) fn check_snapshot(
    cache: &Cache,
    claim: &Claim,
    class: &StorageClass,
    live: &LiveSnapshot,
    prevents_mode_conversion: bool,
) -> Result<FoundSource, SnapshotSourceError> {
    let Some(snapshot) = &live.snapshot else {
        let is_missing_kind = cache.snapshots.is_synced() && !cache.snapshots.is_served();
        let missing = SnapshotSourceError::Missing;
        return Err(if is_missing_kind { SnapshotSourceError::NotServed } else { missing });
    };
    let is_protected = snapshot.meta.finalizer_index(names::RESTORE_PROTECTION).is_some();
    // With the finalizer, a request was built before the deletion.
    if snapshot.meta.deleting && !is_protected {
        return Err(SnapshotSourceError::Deleting);
    }
    let name = snapshot.bound_content().ok_or(SnapshotSourceError::NotBound)?.clone();
    let Some(content) = &live.content else { return Err(SnapshotSourceError::ContentMissing(name)) };
    if !content.is_bound_to(snapshot) {
        return Err(SnapshotSourceError::ContentOfOther(name));
    }
    let driver = &class.provisioner;
    if content.driver != *driver {
        let (found, driver) = (content.driver.clone(), driver.clone());
        return Err(SnapshotSourceError::OtherDriver { found, driver });
    }
    if !snapshot.is_ready() {
        return Err(SnapshotSourceError::NotReady);
    }
    let status_handle = content.status.as_ref().and_then(|status| status.handle.clone());
    let Some(handle) = status_handle else { return Err(SnapshotSourceError::NoHandle(name)) };
    let restore_size = snapshot.status.as_ref().and_then(|status| status.restore_size);
    if let (Some(restore_size), Ok(size)) = (restore_size, &claim.request)
        && restore_size > *size
    {
        return Err(SnapshotSourceError::Larger { restore_size, size: *size });
    }
    if prevents_mode_conversion
        && let Some(mode) = content.source_volume_mode.filter(|mode| *mode != claim.mode)
        && !content.allows_mode_change()
    {
        let (found, expected) = (mode.as_str(), claim.mode.as_str());
        return Err(SnapshotSourceError::OtherMode { found, expected, content: name });
    }
    Ok(FoundSource {
        content: ContentSource::Snapshot(handle),
        unprotected: (!is_protected).then(|| SourceObject::Snapshot(Arc::clone(snapshot))),
    })
}

/// Decides the next effect for the finalizer of a VolumeSnapshot.
///
/// The finalizer stays while a claim without a volume names the VolumeSnapshot as its source, as in
/// external-provisioner. Once the VolumeSnapshot is being deleted, a claim whose driver is in
/// `is_managed_driver` counts only if it has an intent, according to `has_intent`: no other claim of these
/// drivers can get a volume from it.
pub(in crate::provisioner) fn decide_snapshot_protection(
    cache: &Cache,
    snapshot: &VolumeSnapshot,
    is_managed_driver: &dyn Fn(&DriverName) -> bool,
    has_intent: &dyn Fn(&Uid) -> bool,
) -> SourceProtectionVerdict {
    let Some(index) = snapshot.meta.finalizer_index(names::RESTORE_PROTECTION) else {
        return SourceProtectionVerdict::NoAction;
    };
    let key = SourceKey::Snapshot(snapshot.key.clone());
    match find_dependent(cache, &key, snapshot.meta.deleting, is_managed_driver, has_intent) {
        None => SourceProtectionVerdict::Remove(index),
        // A change of the claim enqueues the VolumeSnapshot.
        Some(_) if !snapshot.meta.deleting => SourceProtectionVerdict::NoAction,
        Some(claim) => SourceProtectionVerdict::Wait(claim),
    }
}

#[cfg(test)]
mod tests;
