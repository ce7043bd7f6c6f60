//! Volumes and snapshots as a driver lists them, with the properties that the scan uses of both.

use std::{
    collections::{HashSet, VecDeque, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
};

use cofferdam_cluster::orphan_report::OrphanKind;
use cofferdam_domain::{
    ResourceHandle,
    storage::{Snapshot, VolumeStatus},
};

use super::report::CreatedFor;
use crate::listing::{ListingError, SnapshotPages, VolumePages};

/// A volume or a snapshot that a driver lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A volume.
    Volume(VolumeStatus),
    /// A snapshot.
    Snapshot(Snapshot),
}

impl Resource {
    /// The kind.
    pub const fn kind(&self) -> OrphanKind {
        match self {
            Self::Volume(_) => OrphanKind::Volume,
            Self::Snapshot(_) => OrphanKind::Snapshot,
        }
    }

    /// The driver's id.
    pub fn handle(&self) -> ResourceHandle {
        match self {
            Self::Volume(status) => status.volume.handle.clone().into(),
            Self::Snapshot(snapshot) => snapshot.handle.clone().into(),
        }
    }

    /// Size in bytes, if the driver reports it. Of a snapshot, it is the minimum size of a volume from it.
    pub const fn bytes(&self) -> Option<u64> {
        match self {
            Self::Volume(status) => status.volume.capacity,
            Self::Snapshot(snapshot) => snapshot.size,
        }
    }

    /// The objects that it was created for; `None` if the driver reports no owner.
    pub(super) fn created_for(&self) -> Option<CreatedFor> {
        match self {
            Self::Volume(status) => status.owner.as_ref().map(|owner| CreatedFor::Claim {
                claim: owner.claim_uid.clone(),
                volume: owner.pv_name.clone(),
            }),
            Self::Snapshot(snapshot) => snapshot.owner.as_ref().map(|owner| CreatedFor::Snapshot {
                snapshot: owner.snapshot_uid.clone(),
                content: owner.content_name.as_str().into(),
            }),
        }
    }

    /// Time of the last change in milliseconds since the Unix epoch, if the driver reports it. It reports
    /// none of a snapshot: an old snapshot may have lost its objects a moment ago.
    pub(super) const fn changed_at_ms(&self) -> Option<u64> {
        match self {
            Self::Volume(status) => status.changed_at_ms,
            Self::Snapshot(_) => None,
        }
    }

    /// Digest of the fields that change with the use. The volume condition is not part of it.
    pub(super) fn state_digest(&self) -> String {
        // Another build may compute another hash. The grace period then starts again, which is safe.
        let mut hasher = DefaultHasher::new();
        match self {
            Self::Volume(VolumeStatus { volume, owner, published_node_ids, .. }) => {
                (volume, owner, published_node_ids).hash(&mut hasher);
            }
            Self::Snapshot(Snapshot { handle, source, size, created_at_ms, ready, group, owner }) => {
                (handle, source, size, created_at_ms, ready, group, owner).hash(&mut hasher);
            }
        }
        format!("{:016x}", hasher.finish())
    }
}

/// The pages of all volumes or all snapshots of a driver.
pub(super) enum ResourcePages<'a> {
    /// One listing.
    Volumes(VolumePages<'a>),
    /// A listing for each list Secret.
    Snapshots {
        /// The listings that have not ended.
        listings: VecDeque<SnapshotPages<'a>>,
        /// The snapshots of earlier pages, if there are several listings.
        seen: Option<HashSet<ResourceHandle>>,
    },
}

impl<'a> ResourcePages<'a> {
    /// The snapshots of these listings, each once.
    pub(super) fn of_snapshots(listings: impl Iterator<Item = SnapshotPages<'a>>) -> Self {
        let listings: VecDeque<_> = listings.collect();
        let seen = (listings.len() > 1).then(HashSet::new);
        Self::Snapshots { listings, seen }
    }

    /// Returns the next page, or `None` at the end.
    ///
    /// # Errors
    /// [`ListingError`]
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Resource>>, ListingError> {
        match self {
            Self::Volumes(pages) => {
                let page = pages.next().await?;
                Ok(page.map(|page| page.into_iter().map(Resource::Volume).collect()))
            }
            Self::Snapshots { listings, seen } => {
                while let Some(pages) = listings.front_mut() {
                    let Some(page) = pages.next().await? else {
                        listings.pop_front();
                        continue;
                    };
                    let page = page.into_iter().map(Resource::Snapshot);
                    return Ok(Some(match seen {
                        None => page.collect(),
                        Some(seen) => page.filter(|found| seen.insert(found.handle())).collect(),
                    }));
                }
                Ok(None)
            }
        }
    }
}
