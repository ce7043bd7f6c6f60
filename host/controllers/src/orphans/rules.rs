//! What a volume of a driver is, and whether it may be deleted.

use std::{fmt, time::Duration};

use cofferdam_cluster::{Cache, Seen, hold};
use cofferdam_domain::{
    ClaimKey, ClusterId, DriverName, ReclaimPolicy, VolumeHandle, VolumeName,
    storage::{Owner, VolumeStatus},
};
use jiff::{SignedDuration, Timestamp};

use super::report::Request;

/// How long a volume must not have changed: far longer than every time-out and back-off on the way from a driver's answer to an
/// object, and time enough for a person to notice that an object is missing.
pub const MIN_AGE: Duration = Duration::from_secs(24 * 3600);
/// A request that is older is refused: whoever asked waits no longer, and may have thought better of it.
pub const MAX_REQUEST_AGE: Duration = Duration::from_secs(3600);

/// What a verdict rests on.
pub struct View<'a> {
    /// The cluster's objects.
    pub cache: &'a Cache,
    /// The driver.
    pub driver: &'a DriverName,
    /// This cluster.
    pub cluster: &'a ClusterId,
    /// Whether the journal has an intent for an owner's claim or volume.
    pub intent: &'a dyn Fn(&Owner) -> bool,
    /// The volume that is being deleted at a person's request.
    pub deleting: Option<&'a VolumeHandle>,
    /// Now.
    pub now: Timestamp,
}

/// Since when this process has seen a volume without a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// On the wall clock.
    pub since: Timestamp,
    /// On a clock that nobody sets.
    pub age: Duration,
}

/// What a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Something in the cluster speaks for it.
    Known(Known),
    /// Nothing does, and it has not changed for a day.
    Orphan {
        /// Since when it has not changed.
        since: Timestamp,
    },
    /// Nothing does, but it changed less than a day ago.
    Young {
        /// Since when it has not changed.
        since: Timestamp,
    },
    /// No object stands for it, and it may not be ours to judge.
    Unknown(Stranger),
}

/// What speaks for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// A PersistentVolume with its handle.
    Volume(VolumeName),
    /// A PersistentVolume of the owner's name, which this build cannot read.
    Unreadable(VolumeName),
    /// An intent for its claim or its name.
    Intent,
    /// Its claim exists, and names no other volume.
    Claim(ClaimKey),
    /// It is being deleted at a person's request.
    Deletion,
}

/// Why a volume without an object may not be ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// The driver has kept no owner.
    NoOwner,
    /// It was made for another cluster.
    OtherCluster,
    /// It was made to stay.
    Kept(ReclaimPolicy),
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(name) => write!(f, "PersistentVolume {name} stands for it"),
            Self::Unreadable(name) => {
                write!(f, "PersistentVolume {name} cannot be read and may stand for it")
            }
            Self::Intent => f.write_str("the intent journal has an entry for it"),
            Self::Claim(key) => write!(f, "its claim {key} exists"),
            Self::Deletion => f.write_str("it is being deleted"),
        }
    }
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoOwner => f.write_str("the driver has kept no owner of it"),
            Self::OtherCluster => f.write_str("it was made for another cluster"),
            Self::Kept(policy) => {
                write!(f, "its reclaim policy is {}: expected Delete", policy.as_str())
            }
        }
    }
}

/// Judges a volume that the driver lists. `observed` counts only where the driver does not tell when it changed.
pub fn judge(view: &View<'_>, status: &VolumeStatus, observed: Option<Observed>) -> Verdict {
    if let Some(name) = view.cache.volume_with_handle(view.driver, &status.volume.handle) {
        return Verdict::Known(Known::Volume(name));
    }
    if view.deleting == Some(&status.volume.handle) {
        return Verdict::Known(Known::Deletion);
    }
    let Some(owner) = &status.owner else { return Verdict::Unknown(Stranger::NoOwner) };
    if owner.cluster != *view.cluster {
        return Verdict::Unknown(Stranger::OtherCluster);
    }
    if owner.reclaim_policy != ReclaimPolicy::Delete {
        return Verdict::Unknown(Stranger::Kept(owner.reclaim_policy.clone()));
    }
    if let Some(known) = spoken_for(view, owner) {
        return Verdict::Known(known);
    }
    let Observed { since, age } = match status.changed_at_ms {
        Some(at) => changed(at, view.now),
        None => observed.unwrap_or(Observed { since: view.now, age: Duration::ZERO }),
    };
    if age >= MIN_AGE { Verdict::Orphan { since } } else { Verdict::Young { since } }
}

/// What speaks for a volume of this owner, beside an object with its handle.
fn spoken_for(view: &View<'_>, owner: &Owner) -> Option<Known> {
    if matches!(view.cache.volumes.get(&owner.volume), Seen::Opaque(_)) {
        return Some(Known::Unreadable(owner.volume.clone()));
    }
    if (view.intent)(owner) {
        return Some(Known::Intent);
    }
    // The provisioner may ask for the same volume again, or a person may write the object that was lost. A claim that has
    // another volume does not miss this one.
    let claim = view.cache.claim_by_uid(&owner.claim)?;
    let wants = claim.volume.as_ref().is_none_or(|name| *name == owner.volume);
    wants.then(|| Known::Claim(claim.key.clone()))
}

/// The driver's own word. A time that has not come yet, or that nobody can read, makes the volume young.
fn changed(at_ms: u64, now: Timestamp) -> Observed {
    let at = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let since = at.unwrap_or(now).min(now);
    Observed { since, age: now.duration_since(since).unsigned_abs() }
}

/// What a deletion rests on, all of it read for this request.
#[derive(Clone, Debug)]
pub struct Live<'a> {
    /// The volume as the driver lists it, and what it is; absent where the driver does not list it.
    pub volume: Option<(&'a VolumeStatus, Verdict)>,
    /// A PersistentVolume of any name that cannot be read: it may stand for the volume.
    pub unreadable: Option<VolumeName>,
    /// Whether the driver may have been asked to delete it before.
    pub begun: bool,
}

/// What to do about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Delete the volume.
    Delete,
    /// Say that it is gone.
    Gone,
    /// Leave it alone and say why.
    Refuse(String),
}

/// Why nothing is deleted while the mark of a restored cluster stands in this namespace.
pub fn locked(namespace: &str) -> String {
    format!(
        "the cluster was restored from a backup, and what looks abandoned may be in use: nothing is deleted while ConfigMap \
         {namespace}/{} exists. Look whether the volumes whose claims are missing may go, then delete that ConfigMap and ask \
         again",
        hold::MARK
    )
}

/// Why a request is not begun, whatever its volume is.
pub fn expired(request: &Request, now: Timestamp) -> Option<String> {
    let age = now.duration_since(request.requested_at);
    (age > SignedDuration::try_from(MAX_REQUEST_AGE).unwrap_or(SignedDuration::ZERO))
        .then(|| format!("the request of {} is older than an hour: ask again", request.requested_at))
}

/// Decides on a request that has not expired, in a cluster that is not locked.
pub fn decide(live: &Live<'_>) -> Decision {
    let refuse = |why: String| match live.begun {
        false => Decision::Refuse(why),
        true => Decision::Refuse(format!("{why}; the driver was asked before, and may have deleted it")),
    };
    let Some((status, verdict)) = &live.volume else {
        // Whoever mistypes a handle shall not read that something was deleted.
        return if live.begun {
            Decision::Gone
        } else {
            Decision::Refuse("the driver lists no such volume".to_owned())
        };
    };
    match verdict {
        Verdict::Known(known) => return refuse(known.to_string()),
        Verdict::Unknown(stranger) => return refuse(stranger.to_string()),
        Verdict::Young { since } => {
            return refuse(format!("it has changed less than 24 hours ago, at {since}"));
        }
        Verdict::Orphan { .. } => {}
    }
    if let Some(name) = &live.unreadable {
        return refuse(Known::Unreadable(name.clone()).to_string());
    }
    match status.published_nodes.first() {
        Some(node) => refuse(format!("it is published to node {node}")),
        None => Decision::Delete,
    }
}

#[cfg(test)]
mod tests;
