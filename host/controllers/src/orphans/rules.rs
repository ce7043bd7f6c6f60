//! Rules for orphans: the classification of a driver's volumes, and decisions on deletion requests. They have
//! no upstream source.

use std::{fmt, time::Duration};

use cofferdam_cluster::{Cache, Lookup, deletion_freeze};
use cofferdam_domain::{
    ClaimKey, ClusterId, DriverName, ReclaimPolicy, VolumeHandle, VolumeName,
    storage::{VolumeOwner, VolumeStatus},
};
use jiff::{SignedDuration, Timestamp};

use super::report::DeletionRequest;

/// Minimum time without a change before an unreferenced volume is an orphan. It exceeds every default timeout
/// and back-off between a driver's response and the PersistentVolume, and lets an operator notice a missing
/// object.
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
    /// Returns true if the intent journal has an intent for the claim or the PersistentVolume that a
    /// `VolumeOwner` names.
    pub has_intent: &'a dyn Fn(&VolumeOwner) -> bool,
    /// The volume of a deletion that has started. `None` if there is none, and for the decision on the
    /// deletion itself.
    pub deleting: Option<&'a VolumeHandle>,
    /// Current time.
    pub now: Timestamp,
}

/// Time of a volume's last change, as reported by the driver, or as observed by this process or an earlier
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastChange {
    /// Wall-clock time of the last change.
    pub since: Timestamp,
    /// Time since the last change. Of a change that this process observed, it is measured with a monotonic
    /// clock; otherwise it comes from the time that the driver or an earlier process recorded.
    pub age: Duration,
}

/// Classification of a volume that a driver lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Classification {
    /// An object, an intent or a started deletion references the volume.
    Referenced(VolumeReference),
    /// The volume was created for this cluster with the reclaim policy Delete, is unreferenced and has not
    /// changed for [`GRACE_PERIOD`].
    Orphan {
        /// Time of the last change.
        since: Timestamp,
    },
    /// As `Orphan`, but the volume changed less than [`GRACE_PERIOD`] ago, or this process does not know
    /// when.
    WithinGracePeriod {
        /// Time of the last change.
        since: Timestamp,
    },
    /// The volume has no PersistentVolume, but may belong to another cluster, or was created with a reclaim
    /// policy other than Delete.
    Unmanaged(Unmanaged),
}

/// The object, intent or deletion that references a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeReference {
    /// A PersistentVolume with the volume's driver and handle.
    Volume(VolumeName),
    /// A PersistentVolume that cannot be decoded and may reference the volume.
    UnreadableVolume(VolumeName),
    /// A claim that cannot be decoded and may be the one that the volume was created for.
    UnreadableClaim(ClaimKey),
    /// An intent in the journal for the claim or the PersistentVolume that the volume was created for.
    Intent,
    /// The claim that the volume was created for. It is unbound, or bound to the PersistentVolume that was
    /// planned for the volume.
    Claim(ClaimKey),
    /// A deletion that was requested and has started.
    Deletion,
}

/// The reason why a volume without a PersistentVolume is never an orphan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmanaged {
    /// The driver reports no owner.
    NoOwner,
    /// The volume was created for another cluster.
    OtherCluster,
    /// The volume was created with a reclaim policy other than Delete.
    Retained(ReclaimPolicy),
}

impl fmt::Display for VolumeReference {
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
        }
    }
}

/// Classifies a volume that the driver lists. `last_change` is used only if the driver reports no change
/// time.
///
/// The first match decides:
/// 1. A PersistentVolume with the handle, or a started deletion: `Referenced`.
/// 2. No owner, another cluster, or a reclaim policy other than Delete: `Unmanaged`.
/// 3. An undecodable PersistentVolume of the name that `VolumeOwner` has, an intent, or the claim that
///    `VolumeOwner` names, unless the claim is bound to another PersistentVolume: `Referenced`.
/// 4. Otherwise the age decides between `Orphan` and `WithinGracePeriod`.
pub fn classify(
    input: &ClassificationInput<'_>,
    status: &VolumeStatus,
    last_change: Option<LastChange>,
) -> Classification {
    if let Some(name) = input.cache.volume_with_handle(input.driver, &status.volume.handle) {
        return Classification::Referenced(VolumeReference::Volume(name));
    }
    if input.deleting == Some(&status.volume.handle) {
        return Classification::Referenced(VolumeReference::Deletion);
    }
    let Some(owner) = &status.owner else { return Classification::Unmanaged(Unmanaged::NoOwner) };
    if owner.cluster_id != *input.cluster {
        return Classification::Unmanaged(Unmanaged::OtherCluster);
    }
    if owner.reclaim_policy != ReclaimPolicy::Delete {
        return Classification::Unmanaged(Unmanaged::Retained(owner.reclaim_policy.clone()));
    }
    if let Some(reference) = find_reference(input, owner) {
        return Classification::Referenced(reference);
    }
    let LastChange { since, age } = match status.changed_at_ms {
        Some(at) => driver_last_change(at, input.now),
        None => last_change.unwrap_or(LastChange { since: input.now, age: Duration::ZERO }),
    };
    if age >= GRACE_PERIOD {
        Classification::Orphan { since }
    } else {
        Classification::WithinGracePeriod { since }
    }
}

/// Returns the reference to a volume whose handle no PersistentVolume has; `None` if there is no reference.
/// `owner` names the claim and the PersistentVolume that the volume was created for.
fn find_reference(input: &ClassificationInput<'_>, owner: &VolumeOwner) -> Option<VolumeReference> {
    if matches!(input.cache.volumes.get(&owner.pv_name), Lookup::Undecodable(_)) {
        return Some(VolumeReference::UnreadableVolume(owner.pv_name.clone()));
    }
    if (input.has_intent)(owner) {
        return Some(VolumeReference::Intent);
    }
    // The provisioner may request the same volume again, or an operator may restore the lost
    // PersistentVolume. A claim bound to another PersistentVolume does not need this volume.
    let claim = input.cache.claim_by_uid(&owner.claim_uid)?;
    let is_claimed = claim.volume.as_ref().is_none_or(|name| *name == owner.pv_name);
    is_claimed.then(|| VolumeReference::Claim(claim.key.clone()))
}

/// The last change reported by the driver. A future or invalid time counts as now.
fn driver_last_change(at_ms: u64, now: Timestamp) -> LastChange {
    let at = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let since = at.unwrap_or(now).min(now);
    LastChange { since, age: now.duration_since(since).unsigned_abs() }
}

/// Input of [`decide_deletion`]. The API server and the driver are read for each decision on a request. Only
/// the claim that the classification considers is that of the cache.
#[derive(Clone, Debug)]
pub struct DeletionInput<'a> {
    /// The volume as the driver lists it, and its classification. `None` if the driver does not list it.
    pub volume: Option<(&'a VolumeStatus, Classification)>,
    /// A PersistentVolume that cannot be decoded, if there is one: it may reference the volume.
    pub unreadable: Option<VolumeName>,
    /// A cached claim that cannot be decoded, if there is one: it may need the volume.
    pub unreadable_claim: Option<ClaimKey>,
    /// True if `DeleteVolume` may have been called before.
    pub is_started: bool,
}

/// Decision on a deletion request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionVerdict {
    /// Delete the volume.
    Delete,
    /// Respond that the volume is deleted already.
    AlreadyDeleted,
    /// Refuse the request for this reason.
    Refuse(String),
}

/// The reason for refusing deletions while they are frozen after a restore of the cluster. `namespace` is
/// the namespace of the restore marker: the ConfigMap whose existence freezes deletions.
pub fn frozen_message(namespace: &str) -> String {
    format!(
        "the cluster was restored from a backup, and volumes without a claim may be in use: \
         deletions are frozen while ConfigMap {namespace}/{} exists. Check which of these volumes may be \
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
/// Only a listed orphan that is not published to a node is deleted, and only if every PersistentVolume and
/// every claim can be decoded.
pub fn decide_deletion(input: &DeletionInput<'_>) -> DeletionVerdict {
    let refuse = |reason: String| match input.is_started {
        false => DeletionVerdict::Refuse(reason),
        true => {
            DeletionVerdict::Refuse(format!("{reason}; the driver was called before and may have deleted it"))
        }
    };
    let Some((status, classification)) = &input.volume else {
        // A mistyped handle must not be reported as deleted.
        return if input.is_started {
            DeletionVerdict::AlreadyDeleted
        } else {
            DeletionVerdict::Refuse("the driver lists no such volume".to_owned())
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
    if let Some(name) = &input.unreadable {
        return refuse(VolumeReference::UnreadableVolume(name.clone()).to_string());
    }
    if let Some(key) = &input.unreadable_claim {
        return refuse(VolumeReference::UnreadableClaim(key.clone()).to_string());
    }
    match status.published_node_ids.first() {
        Some(node) => refuse(format!("it is published to node {node}")),
        None => DeletionVerdict::Delete,
    }
}

#[cfg(test)]
mod tests;
