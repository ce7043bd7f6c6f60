//! Rules for orphans: the classification of a driver's volumes and snapshots, and decisions on deletion
//! requests. They have no upstream source.

use std::{fmt, time::Duration};

use cofferdam_cluster::{Cache, Lookup, deletion_freeze, orphan_report::OrphanKind};
use cofferdam_domain::{
    ClaimKey, ClusterId, DriverName, GroupSnapshotHandle, ReclaimPolicy, ResourceHandle, VolumeName,
    VolumeSnapshotContentName, VolumeSnapshotKey, names,
    storage::{Snapshot, SnapshotOwner, VolumeOwner, VolumeStatus},
};
use jiff::{SignedDuration, Timestamp};

use super::{report::DeletionRequest, resource::Resource};

/// Minimum time without a change before an unreferenced volume or snapshot is an orphan. It exceeds every
/// default timeout and back-off between a driver's response and the object, and lets an operator notice a
/// missing object.
pub const GRACE_PERIOD: Duration = Duration::from_secs(24 * 3600);
/// Maximum age of a deletion request when its deletion starts. The requester of an older request no longer
/// waits for the response.
pub const MAX_REQUEST_AGE: Duration = Duration::from_secs(3600);

/// Input of [`classify`].
pub struct ClassificationInput<'a> {
    /// The cached objects.
    pub cache: &'a Cache,
    /// The driver.
    pub driver: &'a DriverName,
    /// ID of this cluster: the UID of the namespace `kube-system`.
    pub cluster: &'a ClusterId,
    /// Returns true if the intent journal has an intent for the claim or the PersistentVolume that the owner
    /// of a volume names, or an intent whose volume is created from a snapshot.
    pub has_intent: &'a dyn Fn(&Resource) -> bool,
    /// Handle of a deletion that has started. `None` if there is none, and for the decision on the deletion
    /// itself.
    pub deleting: Option<&'a ResourceHandle>,
    /// Current time.
    pub now: Timestamp,
}

/// Time of the last change of a volume or snapshot, as reported by the driver, or as observed by this process
/// or an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastChange {
    /// Wall-clock time of the last change.
    pub since: Timestamp,
    /// Time since the last change. Of a change that this process observed, it is measured with a monotonic
    /// clock; otherwise it comes from the time that the driver or an earlier process recorded.
    pub age: Duration,
}

/// Classification of a volume or snapshot that a driver lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Classification {
    /// An object, an intent or a started deletion references it.
    Referenced(Reference),
    /// It was created for this cluster with the policy Delete, is unreferenced and has not changed for
    /// [`GRACE_PERIOD`].
    Orphan {
        /// Time of the last change.
        since: Timestamp,
    },
    /// As `Orphan`, but it changed less than [`GRACE_PERIOD`] ago, or this process does not know when.
    WithinGracePeriod {
        /// Time of the last change.
        since: Timestamp,
    },
    /// It has no object, but may belong to another cluster, was created with a policy other than Delete, or
    /// is a member of a group.
    Unmanaged(Unmanaged),
}

/// The object, intent or deletion that references a volume or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A PersistentVolume with the volume's driver and handle.
    Volume(VolumeName),
    /// A PersistentVolume that cannot be decoded and may reference the volume.
    UnreadableVolume(VolumeName),
    /// A claim that cannot be decoded and may be the one that the volume was created for.
    UnreadableClaim(ClaimKey),
    /// An intent in the journal for the claim or the PersistentVolume that the volume was created for, or for
    /// a volume that is created from the snapshot.
    Intent,
    /// The claim that the volume was created for. It is unbound, or bound to the PersistentVolume that was
    /// planned for the volume.
    Claim(ClaimKey),
    /// A VolumeSnapshotContent with the snapshot's driver and handle.
    Content(VolumeSnapshotContentName),
    /// The VolumeSnapshotContent that the snapshot was created for. Its handle is not known yet, or
    /// CreateSnapshot may still be called for it.
    ContentInCreation(VolumeSnapshotContentName),
    /// A VolumeSnapshotContent that cannot be decoded and may reference the snapshot.
    UnreadableContent(VolumeSnapshotContentName),
    /// The VolumeSnapshot that the snapshot was created for. It is unbound, or bound to the content that was
    /// planned for the snapshot.
    Snapshot(VolumeSnapshotKey),
    /// A VolumeSnapshot that cannot be decoded and may be the one that the snapshot was created for.
    UnreadableSnapshot(VolumeSnapshotKey),
    /// A deletion that was requested and has started.
    Deletion,
}

/// The reason why a volume or snapshot without an object is never an orphan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmanaged {
    /// The driver reports no owner.
    NoOwner,
    /// It was created for another cluster.
    OtherCluster,
    /// It was created with a policy other than Delete.
    Retained(ReclaimPolicy),
    /// The snapshot is a member of a group, which is deleted as a whole.
    GroupMember(GroupSnapshotHandle),
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(name) => write!(f, "PersistentVolume {name} references it"),
            Self::UnreadableVolume(name) => {
                write!(f, "PersistentVolume {name} cannot be decoded and may reference it")
            }
            Self::UnreadableClaim(key) => {
                write!(f, "PersistentVolumeClaim {key} cannot be decoded and may need it")
            }
            Self::Intent => f.write_str("the journal has an intent for it"),
            Self::Claim(key) => write!(f, "its PersistentVolumeClaim {key} exists"),
            Self::Content(name) => write!(f, "VolumeSnapshotContent {name} references it"),
            Self::ContentInCreation(name) => {
                write!(f, "its VolumeSnapshotContent {name} exists and may have no handle yet")
            }
            Self::UnreadableContent(name) => {
                write!(f, "VolumeSnapshotContent {name} cannot be decoded and may reference it")
            }
            Self::Snapshot(key) => write!(f, "its VolumeSnapshot {key} exists"),
            Self::UnreadableSnapshot(key) => {
                write!(f, "VolumeSnapshot {key} cannot be decoded and may need it")
            }
            Self::Deletion => f.write_str("its deletion has started"),
        }
    }
}

impl fmt::Display for Unmanaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoOwner => f.write_str("the driver reports no owner for it"),
            Self::OtherCluster => f.write_str("it was created for another cluster"),
            Self::Retained(policy) => {
                write!(f, "its reclaim policy is {}; expected Delete", policy.as_str())
            }
            Self::GroupMember(group) => write!(f, "it is a member of group {group}; expected none"),
        }
    }
}

/// Classifies a volume or snapshot that a driver lists. `last_change` is used only if the driver reports no
/// change time.
///
/// The first match decides:
/// 1. An object with the handle, or a started deletion: `Referenced`.
/// 2. No owner, another cluster, a policy other than Delete, or a group: `Unmanaged`.
/// 3. An intent, or an object that the owner names and that may need it: `Referenced`. See
///    `find_volume_reference` and `find_snapshot_reference`.
/// 4. Otherwise the age decides between `Orphan` and `WithinGracePeriod`.
pub fn classify(
    input: &ClassificationInput<'_>,
    resource: &Resource,
    last_change: Option<LastChange>,
) -> Classification {
    if let Some(reference) = find_object(input, resource) {
        return Classification::Referenced(reference);
    }
    if input.deleting == Some(&resource.handle()) {
        return Classification::Referenced(Reference::Deletion);
    }
    let needed_by = match resource {
        Resource::Volume(status) => {
            check_volume_owner(input, status).map(|owner| find_volume_reference(input, resource, owner))
        }
        Resource::Snapshot(snapshot) => {
            check_snapshot_owner(input, snapshot).map(|owner| find_snapshot_reference(input, resource, owner))
        }
    };
    match needed_by {
        Err(unmanaged) => return Classification::Unmanaged(unmanaged),
        Ok(Some(reference)) => return Classification::Referenced(reference),
        Ok(None) => {}
    }
    let LastChange { since, age } = match resource.changed_at_ms() {
        Some(at) => driver_last_change(at, input.now),
        None => last_change.unwrap_or(LastChange { since: input.now, age: Duration::ZERO }),
    };
    if age >= GRACE_PERIOD {
        Classification::Orphan { since }
    } else {
        Classification::WithinGracePeriod { since }
    }
}

/// The object with the driver and the handle of a volume or snapshot.
fn find_object(input: &ClassificationInput<'_>, resource: &Resource) -> Option<Reference> {
    let (cache, driver) = (input.cache, input.driver);
    match resource {
        Resource::Volume(status) => {
            cache.volume_with_handle(driver, &status.volume.handle).map(Reference::Volume)
        }
        Resource::Snapshot(snapshot) => {
            let contents = cache.contents_with_handle(driver, &snapshot.handle);
            contents.first().map(|content| Reference::Content(content.name.clone()))
        }
    }
}

/// The owner of a volume of this cluster with the reclaim policy Delete.
///
/// # Errors
/// [`Unmanaged`]
fn check_volume_owner<'a>(
    input: &ClassificationInput<'_>,
    status: &'a VolumeStatus,
) -> Result<&'a VolumeOwner, Unmanaged> {
    let owner = status.owner.as_ref().ok_or(Unmanaged::NoOwner)?;
    if owner.cluster_id != *input.cluster {
        return Err(Unmanaged::OtherCluster);
    }
    if owner.reclaim_policy != ReclaimPolicy::Delete {
        return Err(Unmanaged::Retained(owner.reclaim_policy.clone()));
    }
    Ok(owner)
}

/// The owner of a snapshot of this cluster with the deletion policy Delete, and in no group.
///
/// # Errors
/// [`Unmanaged`]
fn check_snapshot_owner<'a>(
    input: &ClassificationInput<'_>,
    snapshot: &'a Snapshot,
) -> Result<&'a SnapshotOwner, Unmanaged> {
    let owner = snapshot.owner.as_ref().ok_or(Unmanaged::NoOwner)?;
    if owner.cluster_id != *input.cluster {
        return Err(Unmanaged::OtherCluster);
    }
    if owner.retain {
        return Err(Unmanaged::Retained(ReclaimPolicy::Retain));
    }
    // The VolumeGroupSnapshotContents are not watched.
    match &snapshot.group {
        Some(group) => Err(Unmanaged::GroupMember(group.clone())),
        None => Ok(owner),
    }
}

/// Returns the reference to a volume whose handle no PersistentVolume has; `None` if there is no reference.
/// `owner` names the claim and the PersistentVolume that the volume was created for.
fn find_volume_reference(
    input: &ClassificationInput<'_>,
    volume: &Resource,
    owner: &VolumeOwner,
) -> Option<Reference> {
    if matches!(input.cache.volumes.get(&owner.pv_name), Lookup::Undecodable(_)) {
        return Some(Reference::UnreadableVolume(owner.pv_name.clone()));
    }
    if (input.has_intent)(volume) {
        return Some(Reference::Intent);
    }
    // The provisioner may request the same volume again, or an operator may restore the lost
    // PersistentVolume. A claim bound to another PersistentVolume does not need this volume.
    let claim = input.cache.claim_by_uid(&owner.claim_uid)?;
    let is_claimed = claim.volume.as_ref().is_none_or(|name| *name == owner.pv_name);
    is_claimed.then(|| Reference::Claim(claim.key.clone()))
}

/// Returns the reference to a snapshot whose handle no VolumeSnapshotContent has; `None` if there is no
/// reference. `owner` names the VolumeSnapshot and the VolumeSnapshotContent that the snapshot was created
/// for.
///
/// The first match decides:
/// 1. An intent for a volume from the snapshot.
/// 2. A VolumeSnapshotContent or a VolumeSnapshot that cannot be decoded, whatever its name: both may be of an
///    administrator.
/// 3. The content, if its handle is not known or its CreateSnapshot call may still be repeated. A content with
///    another handle and without such a call does not need this snapshot, and nor does its VolumeSnapshot.
/// 4. The VolumeSnapshot, unless it is bound to another content.
fn find_snapshot_reference(
    input: &ClassificationInput<'_>,
    snapshot: &Resource,
    owner: &SnapshotOwner,
) -> Option<Reference> {
    if (input.has_intent)(snapshot) {
        return Some(Reference::Intent);
    }
    if let Some(reference) = find_unreadable_snapshot(input.cache) {
        return Some(reference);
    }
    let name = VolumeSnapshotContentName::from(owner.content_name.as_str());
    let content = input.cache.snapshot_contents.get(&name).into_object();
    if let Some(content) = content.filter(|content| content.driver == *input.driver) {
        let is_in_creation =
            content.handle().is_none() || content.meta.has_annotation(names::SNAPSHOT_BEING_CREATED);
        return is_in_creation.then_some(Reference::ContentInCreation(name));
    }
    // The snapshot controller may create the content again, and the snapshotter then requests the same
    // snapshot again.
    let snapshot = input.cache.snapshot_by_uid(&owner.snapshot_uid)?;
    let is_needed = snapshot.bound_content().is_none_or(|bound| *bound == name);
    is_needed.then(|| Reference::Snapshot(snapshot.key.clone()))
}

/// A cached VolumeSnapshotContent or VolumeSnapshot that cannot be decoded; `None` if there is none.
fn find_unreadable_snapshot(cache: &Cache) -> Option<Reference> {
    let content = cache.snapshot_contents.undecodable_key().map(Reference::UnreadableContent);
    content.or_else(|| cache.snapshots.undecodable_key().map(Reference::UnreadableSnapshot))
}

/// The last change reported by the driver. A future or invalid time counts as now.
fn driver_last_change(at_ms: u64, now: Timestamp) -> LastChange {
    let at = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let since = at.unwrap_or(now).min(now);
    LastChange { since, age: now.duration_since(since).unsigned_abs() }
}

/// Input of [`decide_deletion`]. The API server and the driver are read for each decision on a request. Only
/// the claim that the classification of a volume considers is that of the cache.
#[derive(Clone, Debug)]
pub struct DeletionInput<'a> {
    /// Kind of what is to be deleted.
    pub kind: OrphanKind,
    /// The volume or snapshot as the driver lists it, and its classification. `None` if the driver does not
    /// list it.
    pub listed: Option<(&'a Resource, Classification)>,
    /// An object that cannot be decoded, if there is one: it may need the volume or snapshot.
    pub unreadable: Option<Reference>,
    /// True if the driver may have been called before.
    pub is_started: bool,
}

/// Decision on a deletion request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionVerdict {
    /// Delete it.
    Delete,
    /// Respond that it is deleted already.
    AlreadyDeleted,
    /// Refuse the request for this reason.
    Refuse(String),
}

/// The reason for refusing deletions while they are frozen after a restore of the cluster. `namespace` is
/// the namespace of the restore marker: the ConfigMap whose existence freezes deletions.
pub fn frozen_message(kind: OrphanKind, namespace: &str) -> String {
    let object = match kind {
        OrphanKind::Volume => "claim",
        OrphanKind::Snapshot => "VolumeSnapshot",
    };
    format!(
        "the cluster was restored from a backup, and {kind}s without a {object} may be in use: \
         deletions are frozen while ConfigMap {namespace}/{} exists. Check which of these {kind}s may be \
         deleted, delete that ConfigMap, then request the deletion again",
        deletion_freeze::RESTORE_MARKER_NAME
    )
}

/// The reason for refusing a request that has expired before its start. `None` if it has not expired.
pub fn expired_message(request: &DeletionRequest, now: Timestamp) -> Option<String> {
    let age = now.duration_since(request.requested_at);
    (age > SignedDuration::try_from(MAX_REQUEST_AGE).unwrap_or(SignedDuration::ZERO)).then(|| {
        format!("the request from {} is older than 1 hour; request the deletion again", request.requested_at)
    })
}

/// Decides on a request that has not expired or whose deletion has started, while deletions are not frozen.
///
/// Only a listed orphan that is not published to a node is deleted, and only if every object of the kinds
/// that may need it can be decoded.
pub fn decide_deletion(input: &DeletionInput<'_>) -> DeletionVerdict {
    let refuse = |reason: String| match input.is_started {
        false => DeletionVerdict::Refuse(reason),
        true => {
            DeletionVerdict::Refuse(format!("{reason}; the driver was called before and may have deleted it"))
        }
    };
    let Some((resource, classification)) = &input.listed else {
        // A mistyped handle must not be reported as deleted.
        return if input.is_started {
            DeletionVerdict::AlreadyDeleted
        } else {
            DeletionVerdict::Refuse(format!("the driver lists no such {}", input.kind))
        };
    };
    match classification {
        Classification::Referenced(reference) => return refuse(reference.to_string()),
        Classification::Unmanaged(unmanaged) => return refuse(unmanaged.to_string()),
        Classification::WithinGracePeriod { since } => {
            return refuse(format!("it changed less than 24 hours ago, at {since}"));
        }
        Classification::Orphan { .. } => {}
    }
    if let Some(unreadable) = &input.unreadable {
        return refuse(unreadable.to_string());
    }
    let node = match resource {
        Resource::Volume(status) => status.published_node_ids.first(),
        Resource::Snapshot(_) => None,
    };
    match node {
        Some(node) => refuse(format!("it is published to node {node}")),
        None => DeletionVerdict::Delete,
    }
}

#[cfg(test)]
mod tests;
