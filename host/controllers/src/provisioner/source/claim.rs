//! Clones of the volumes of claims. Source: external-provisioner's `getPVCSource` and
//! `CloningProtectionController`.
//!
//! A source claim of a driver that is not node-local gets the finalizer before the intent is written. The
//! finalizer is removed once the source claim is being deleted and no clone of it is in progress. The
//! provisioner of a node-local driver has no permission to write the finalizer. It needs none: a volume that
//! an intent names as its source is not deleted, see `super::super::reclaim`.

use std::sync::Arc;

use cofferdam_cluster::{Cache, Lookup};
use cofferdam_domain::{
    Claim, ClaimKey, ClaimPhase, DriverName, Quantity, SourceKey, StorageClass, Uid, Volume, VolumeHandle,
    VolumeName, VolumePhase, names,
};

use super::{SourceProtectionVerdict, find_dependent};

/// The claim and the volume that a new volume is cloned from.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::provisioner) struct SourceVolume {
    /// The source claim.
    pub(in crate::provisioner) claim: Arc<Claim>,
    /// The PersistentVolume of the source claim.
    pub(in crate::provisioner) volume: Arc<Volume>,
    /// The volume's handle.
    pub(in crate::provisioner) handle: VolumeHandle,
}

/// The reason why the volume of a source claim cannot be cloned now.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(in crate::provisioner) enum SourceError {
    #[error("it does not exist")]
    ClaimMissing,
    #[error("it cannot be decoded")]
    ClaimUndecodable,
    #[error("its phase is {0}; expected Bound")]
    NotBound(&'static str),
    #[error("it is being deleted")]
    Deleting,
    #[error("it has no StorageClass; expected the name of one")]
    NoClass,
    #[error("it requests {source_size}, more than the {size} of the new claim; expected at most as much")]
    Larger { source_size: Quantity, size: Quantity },
    #[error("its PersistentVolume {0} does not exist")]
    VolumeMissing(VolumeName),
    #[error("its PersistentVolume {0} cannot be decoded")]
    VolumeUndecodable(VolumeName),
    #[error("its PersistentVolume {volume} is not bound to it")]
    VolumeOfOther { volume: VolumeName },
    #[error("its PersistentVolume {volume} has no CSI driver; expected {driver}")]
    NotCsi { volume: VolumeName, driver: DriverName },
    #[error("its PersistentVolume {volume} has the driver {found}; expected {driver}")]
    OtherDriver { volume: VolumeName, found: DriverName, driver: DriverName },
    #[error("its volumeMode is {found}; expected {expected}, the volumeMode of the new claim")]
    OtherMode { found: &'static str, expected: &'static str },
}

/// Finds the volume of a source claim, and checks that it can be cloned for `claim`, whose class is `class`.
///
/// # Errors
/// The first check that fails. All can succeed after a change of the source claim or of its volume.
pub(in crate::provisioner) fn find_source_volume(
    cache: &Cache,
    claim: &Claim,
    source: &ClaimKey,
    class: &StorageClass,
) -> Result<SourceVolume, SourceError> {
    let source = match cache.claims.get(source) {
        Lookup::Found(source) => source,
        Lookup::Undecodable(_) => return Err(SourceError::ClaimUndecodable),
        Lookup::Missing => return Err(SourceError::ClaimMissing),
    };
    match source.phase {
        ClaimPhase::Bound => {}
        ClaimPhase::Pending => return Err(SourceError::NotBound("Pending")),
        ClaimPhase::Lost => return Err(SourceError::NotBound("Lost")),
    }
    if source.meta.deleting {
        return Err(SourceError::Deleting);
    }
    if source.class_name().is_empty() {
        return Err(SourceError::NoClass);
    }
    // The requests are compared, not the capacities: an expansion of the source may be in progress.
    if let (Ok(source_size), Ok(size)) = (&source.request, &claim.request)
        && source_size > size
    {
        return Err(SourceError::Larger { source_size: *source_size, size: *size });
    }
    let Some(name) = source.volume.clone() else { return Err(SourceError::NotBound("Pending")) };
    let volume = match cache.volumes.get(&name) {
        Lookup::Found(volume) => volume,
        Lookup::Undecodable(_) => return Err(SourceError::VolumeUndecodable(name)),
        Lookup::Missing => return Err(SourceError::VolumeMissing(name)),
    };
    let driver = &class.provisioner;
    let Some(csi) = &volume.csi else {
        return Err(SourceError::NotCsi { volume: name, driver: driver.clone() });
    };
    if csi.driver != *driver {
        let (found, driver) = (csi.driver.clone(), driver.clone());
        return Err(SourceError::OtherDriver { volume: name, found, driver });
    }
    let has_uid = volume.claim_ref.as_ref().is_some_and(|claim_ref| claim_ref.uid.is_some());
    if !has_uid || !volume.is_bound_to(&source.key, &source.meta.uid) || volume.phase != VolumePhase::Bound {
        return Err(SourceError::VolumeOfOther { volume: name });
    }
    if volume.mode != claim.mode {
        let (found, expected) = (volume.mode.as_str(), claim.mode.as_str());
        return Err(SourceError::OtherMode { found, expected });
    }
    let handle = csi.handle.clone();
    Ok(SourceVolume { claim: source, volume, handle })
}

/// Returns true if a claim has changed in a field that [`find_source_volume`] reads. `None` is a claim that
/// does not exist.
pub(in crate::provisioner) fn is_source_change(old: Option<&Claim>, new: Option<&Claim>) -> bool {
    let (Some(old), Some(new)) = (old, new) else { return old.is_some() != new.is_some() };
    (&old.meta.uid, old.meta.deleting, old.phase) != (&new.meta.uid, new.meta.deleting, new.phase)
        || (&old.volume, old.class_name()) != (&new.volume, new.class_name())
        || old.request.as_ref().ok() != new.request.as_ref().ok()
}

/// Decides the next effect for the finalizer of a source claim.
///
/// A clone is in progress if the claim with this source has an intent, according to `has_intent`. Clones of
/// other processes, whose drivers are not in `is_managed_driver`, are in progress while the claim is Pending:
/// external-provisioner's rule for all claims. With it, the deletion of a source claim waits for a clone that
/// does not begin because the source claim is being deleted.
pub(in crate::provisioner) fn decide_source_protection(
    cache: &Cache,
    source: &Claim,
    is_managed_driver: &dyn Fn(&DriverName) -> bool,
    has_intent: &dyn Fn(&Uid) -> bool,
) -> SourceProtectionVerdict {
    let Some(index) = source.meta.finalizer_index(names::CLONING_PROTECTION) else {
        return SourceProtectionVerdict::NoAction;
    };
    if !source.meta.deleting {
        return SourceProtectionVerdict::NoAction;
    }
    let key = SourceKey::Claim(source.key.clone());
    match find_dependent(cache, &key, source.meta.deleting, is_managed_driver, has_intent) {
        None => SourceProtectionVerdict::Remove(index),
        Some(clone) => SourceProtectionVerdict::Wait(clone),
    }
}

#[cfg(test)]
mod tests;
