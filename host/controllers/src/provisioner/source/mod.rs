//! Content sources of new volumes: the checks of a claim's `spec.dataSource` and `spec.dataSourceRef`, and
//! the finalizers that protect a source while volumes are created from it.

pub(super) mod claim;
pub(super) mod snapshot;

use std::sync::Arc;

use cofferdam_cluster::Cache;
use cofferdam_domain::{
    Claim, ClaimKey, ClaimPhase, DriverName, SourceKey, Uid, VolumeSnapshot, storage::ContentSource,
};

/// The object of a source.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceObject {
    /// A PersistentVolumeClaim.
    Claim(Arc<Claim>),
    /// A VolumeSnapshot.
    Snapshot(Arc<VolumeSnapshot>),
}

/// A source that passed all checks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FoundSource {
    /// The source in the `CreateVolume` request.
    pub(super) content: ContentSource,
    /// The object that gets the finalizer. `None` if it has it, or if it gets none.
    pub(super) unprotected: Option<SourceObject>,
}

/// The next effect for the finalizer of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SourceProtectionVerdict {
    /// No effect: the source has no finalizer, or is to keep it.
    NoAction,
    /// Wait for this claim, whose volume is being created from the source.
    Wait(ClaimKey),
    /// Remove the finalizer, which has this index in the list.
    Remove(usize),
}

/// Finds a claim without a volume that keeps the finalizer of this source. If the source is being deleted, a
/// claim whose driver is in `is_managed_driver` counts only if it has an intent, according to `has_intent`:
/// no other claim of these drivers can get a volume from it.
fn find_dependent(
    cache: &Cache,
    source: &SourceKey,
    is_deleting: bool,
    is_managed_driver: &dyn Fn(&DriverName) -> bool,
    has_intent: &dyn Fn(&Uid) -> bool,
) -> Option<ClaimKey> {
    let is_managed = |claim: &Claim| {
        let class = cache.class(claim.class_name()).into_object();
        class.is_some_and(|class| is_managed_driver(&class.provisioner))
    };
    let claims = cache.claims_with_source(source);
    let dependent = claims.iter().find(|claim| {
        claim.phase == ClaimPhase::Pending
            && (!is_deleting || has_intent(&claim.meta.uid) || !is_managed(claim))
    });
    dependent.map(|claim| claim.key.clone())
}
