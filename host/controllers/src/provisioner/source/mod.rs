//! Content sources of new volumes: the checks of a claim's `spec.dataSource` and `spec.dataSourceRef`, and the
//! finalizers that protect a source while volumes are created from it.

pub(super) mod claim;
pub(super) mod snapshot;

use std::{fmt, sync::Arc};

use cofferdam_domain::{Claim, ClaimKey, VolumeSnapshot, VolumeSnapshotKey, storage::ContentSource};

/// Namespace and name of a source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SourceKey {
    /// A PersistentVolumeClaim, whose volume is cloned.
    Claim(ClaimKey),
    /// A VolumeSnapshot, which is restored.
    Snapshot(VolumeSnapshotKey),
}

impl SourceKey {
    /// The source of a claim's volume. `None` if the claim has no source, or a source of another kind or
    /// namespace.
    pub fn of(claim: &Claim) -> Option<Self> {
        claim.source_claim().map(Self::Claim).or_else(|| claim.source_snapshot().map(Self::Snapshot))
    }
}

impl fmt::Display for SourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(key) => write!(f, "claim {key}"),
            Self::Snapshot(key) => write!(f, "VolumeSnapshot {key}"),
        }
    }
}

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
