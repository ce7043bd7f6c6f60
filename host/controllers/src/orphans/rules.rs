//! What a volume of a driver is, and whether it may be deleted.

use std::{fmt, time::Duration};

use cofferdam_cluster::{Cache, Lookup, deletion_freeze};
use cofferdam_domain::{
    ClaimKey, ClusterId, DriverName, ReclaimPolicy, VolumeHandle, VolumeName,
    storage::{VolumeOwner, VolumeStatus},
};
use jiff::{SignedDuration, Timestamp};

use super::report::DeletionRequest;

/// How long a volume must not have changed: far longer than every time-out and back-off on the way from a
/// driver's answer to an object, and time enough for a person to notice that an object is missing.
pub const GRACE_PERIOD: Duration = Duration::from_secs(24 * 3600);
/// A request that is older is refused: whoever asked waits no longer, and may have thought better of it.
pub const MAX_REQUEST_AGE: Duration = Duration::from_secs(3600);

/// What a verdict rests on.
pub struct ClassificationInput<'a> {
    /// The cluster's objects.
    pub cache: &'a Cache,
    /// The driver.
    pub driver: &'a DriverName,
    /// This cluster.
    pub cluster: &'a ClusterId,
    /// Whether the journal has an intent for an owner's claim or volume.
    pub has_intent: &'a dyn Fn(&VolumeOwner) -> bool,
    /// The volume that is being deleted at a person's request.
    pub deleting: Option<&'a VolumeHandle>,
    /// Now.
    pub now: Timestamp,
}

/// Since when this process has seen a volume without a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastChange {
    /// On the wall clock.
    pub since: Timestamp,
    /// On a clock that nobody sets.
    pub age: Duration,
}

/// What a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Classification {
    /// Something in the cluster speaks for it.
    Referenced(VolumeReference),
    /// Nothing does, and it has not changed for a day.
    Orphan {
        /// Since when it has not changed.
        since: Timestamp,
    },
    /// Nothing does, but it changed less than a day ago.
    WithinGracePeriod {
        /// Since when it has not changed.
        since: Timestamp,
    },
    /// No object stands for it, and it may not be ours to judge.
    Unmanaged(Unmanaged),
}

/// What speaks for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeReference {
    /// A PersistentVolume with its handle.
    Volume(VolumeName),
    /// A PersistentVolume of the owner's name, which this build cannot read.
    UnreadableVolume(VolumeName),
    /// An intent for its claim or its name.
    Intent,
    /// Its claim exists, and names no other volume.
    Claim(ClaimKey),
    /// It is being deleted at a person's request.
    Deletion,
}

/// Why a volume without an object may not be ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmanaged {
    /// The driver has kept no owner.
    NoOwner,
    /// It was made for another cluster.
    OtherCluster,
    /// It was made to stay.
    Retained(ReclaimPolicy),
}

impl fmt::Display for VolumeReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(name) => write!(f, "PersistentVolume {name} stands for it"),
            Self::UnreadableVolume(name) => {
                write!(f, "PersistentVolume {name} cannot be read and may stand for it")
            }
            Self::Intent => f.write_str("the intent journal has an entry for it"),
            Self::Claim(key) => write!(f, "its claim {key} exists"),
            Self::Deletion => f.write_str("it is being deleted"),
        }
    }
}

impl fmt::Display for Unmanaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoOwner => f.write_str("the driver has kept no owner of it"),
            Self::OtherCluster => f.write_str("it was made for another cluster"),
            Self::Retained(policy) => {
                write!(f, "its reclaim policy is {}: expected Delete", policy.as_str())
            }
        }
    }
}

/// Judges a volume that the driver lists. `observed` counts only where the driver does not tell when it
/// changed.
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

/// What speaks for a volume of this owner, beside an object with its handle.
fn find_reference(input: &ClassificationInput<'_>, owner: &VolumeOwner) -> Option<VolumeReference> {
    if matches!(input.cache.volumes.get(&owner.pv_name), Lookup::Undecodable(_)) {
        return Some(VolumeReference::UnreadableVolume(owner.pv_name.clone()));
    }
    if (input.has_intent)(owner) {
        return Some(VolumeReference::Intent);
    }
    // The provisioner may ask for the same volume again, or a person may write the object that was lost. A
    // claim that has another volume does not miss this one.
    let claim = input.cache.claim_by_uid(&owner.claim_uid)?;
    let is_claimed = claim.volume.as_ref().is_none_or(|name| *name == owner.pv_name);
    is_claimed.then(|| VolumeReference::Claim(claim.key.clone()))
}

/// The driver's own word. A time that has not come yet, or that nobody can read, makes the volume young.
fn driver_last_change(at_ms: u64, now: Timestamp) -> LastChange {
    let at = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let since = at.unwrap_or(now).min(now);
    LastChange { since, age: now.duration_since(since).unsigned_abs() }
}

/// What a deletion rests on, all of it read for this request.
#[derive(Clone, Debug)]
pub struct DeletionInput<'a> {
    /// The volume as the driver lists it, and what it is; absent where the driver does not list it.
    pub volume: Option<(&'a VolumeStatus, Classification)>,
    /// A PersistentVolume of any name that cannot be read: it may stand for the volume.
    pub unreadable: Option<VolumeName>,
    /// Whether the driver may have been asked to delete it before.
    pub is_started: bool,
}

/// What to do about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionVerdict {
    /// Delete the volume.
    Delete,
    /// Say that it is gone.
    AlreadyDeleted,
    /// Leave it alone and say why.
    Refuse(String),
}

/// Why nothing is deleted while the mark of a restored cluster stands in this namespace.
pub fn frozen_message(namespace: &str) -> String {
    format!(
        "the cluster was restored from a backup, and what looks abandoned may be in use: nothing is deleted while ConfigMap \
         {namespace}/{} exists. Look whether the volumes whose claims are missing may go, then delete that ConfigMap and ask \
         again",
        deletion_freeze::RESTORE_MARKER_NAME
    )
}

/// Why a request is not begun, whatever its volume is.
pub fn expired_message(request: &DeletionRequest, now: Timestamp) -> Option<String> {
    let age = now.duration_since(request.requested_at);
    (age > SignedDuration::try_from(MAX_REQUEST_AGE).unwrap_or(SignedDuration::ZERO))
        .then(|| format!("the request of {} is older than an hour: ask again", request.requested_at))
}

/// Decides on a request that has not expired, in a cluster that is not locked.
pub fn decide_deletion(input: &DeletionInput<'_>) -> DeletionVerdict {
    let refuse = |reason: String| match input.is_started {
        false => DeletionVerdict::Refuse(reason),
        true => {
            DeletionVerdict::Refuse(format!("{reason}; the driver was asked before, and may have deleted it"))
        }
    };
    let Some((status, classification)) = &input.volume else {
        // Whoever mistypes a handle shall not read that something was deleted.
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
            return refuse(format!("it has changed less than 24 hours ago, at {since}"));
        }
        Classification::Orphan { .. } => {}
    }
    if let Some(name) = &input.unreadable {
        return refuse(VolumeReference::UnreadableVolume(name.clone()).to_string());
    }
    match status.published_node_ids.first() {
        Some(node) => refuse(format!("it is published to node {node}")),
        None => DeletionVerdict::Delete,
    }
}

#[cfg(test)]
mod tests;
