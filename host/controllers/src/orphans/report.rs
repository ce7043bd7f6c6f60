//! Content of a report ConfigMap, which is about the volumes or the snapshots of a driver: the report, a
//! pending and a started deletion request, and the response to the last request.

use std::{collections::BTreeMap, fmt, time::Duration};

use cofferdam_cluster::{
    OrphanReport,
    orphan_report::{self, OrphanKind},
};
use cofferdam_domain::{DriverName, ResourceHandle, Uid, VolumeName, VolumeSnapshotContentName};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Key of the driver's name.
pub const DRIVER: &str = "driver";
/// Key of the [`OrphanKind`]. Without it, the kind is [`OrphanKind::Volume`].
pub const KIND: &str = "kind";
/// Key of the [`ScanReport`].
pub const REPORT: &str = "report";
/// Key of the pending [`DeletionRequest`]. It is removed when the response is written, unless another request
/// has replaced it meanwhile.
pub const DELETE: &str = "delete";
/// Key of the started [`DeletionRequest`]. It is written before the driver is called, so that the next
/// process knows that the volume or snapshot may have been deleted.
pub const DELETING: &str = "deleting";
/// Key of the [`DeletionResponse`] to the last request.
pub const RESPONSE: &str = "response";

/// Maximum orphans that a report lists. The same limit applies separately to those within the grace period.
pub const MAX_LISTED: usize = 500;
/// Maximum size of all listed orphans in the report's JSON, in bytes: less than half of the API's limit of 1
/// MiB for a ConfigMap.
const MAX_BYTES: usize = 448 << 10;
/// An unchanged report is rewritten after this time, so that its age shows whether the scans still run.
const REFRESH_INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum length of a request in bytes. CSI limits handles to 128 bytes.
const MAX_REQUEST_BYTES: usize = 4 << 10;

/// Method of detecting leaked volumes or snapshots of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum LeakDetection {
    /// By the owners that the driver reports.
    Owner,
    /// Leaks cannot be detected, or no scan has completed yet.
    None {
        /// The reason.
        message: String,
    },
}

impl fmt::Display for LeakDetection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner => f.write_str("by owner"),
            Self::None { message } => write!(f, "none: {message}"),
        }
    }
}

/// Number of volumes or of snapshots by classification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListedCounts {
    /// Those that a Kubernetes object, an intent in the journal or a started deletion references.
    pub referenced: u64,
    /// Unreferenced ones of this cluster with the policy Delete, unchanged for 24 hours.
    pub orphan: u64,
    /// Unreferenced ones of this cluster with the policy Delete, changed within 24 hours.
    pub within_grace_period: u64,
    /// Those without an object for which the driver reports no owner.
    pub no_owner: u64,
    /// Those without an object that were created for another cluster.
    pub other_cluster: u64,
    /// Those without an object that were created with a policy other than Delete.
    pub retained: u64,
    /// Snapshots without an object that are members of a group. No volume is.
    pub group_member: u64,
}

impl ListedCounts {
    /// Those without an object that are never orphans: without an owner, of another cluster, with a policy
    /// other than Delete, or members of a group.
    pub fn unmanaged(&self) -> u64 {
        let unknown = self.no_owner.saturating_add(self.other_cluster);
        unknown.saturating_add(self.retained).saturating_add(self.group_member)
    }

    /// All volumes or snapshots that the driver lists.
    pub fn total(&self) -> u64 {
        let listed = self.referenced.saturating_add(self.orphan).saturating_add(self.within_grace_period);
        listed.saturating_add(self.unmanaged())
    }
}

/// The objects that a volume or a snapshot was created for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CreatedFor {
    /// Of a volume.
    Claim {
        /// `metadata.uid` of the PersistentVolumeClaim.
        claim: Uid,
        /// Name of the PersistentVolume.
        volume: VolumeName,
    },
    /// Of a snapshot.
    Snapshot {
        /// `metadata.uid` of the VolumeSnapshot.
        snapshot: Uid,
        /// Name of the VolumeSnapshotContent.
        content: VolumeSnapshotContentName,
    },
}

/// A volume or snapshot that is an orphan or within the grace period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// The driver's id.
    pub handle: ResourceHandle,
    /// Size in bytes, if the driver reports it.
    pub bytes: Option<u64>,
    /// The objects that it was created for.
    #[serde(flatten)]
    pub created_for: CreatedFor,
    /// Time of the last change.
    pub since: Timestamp,
    /// Digest of the state, if the driver reports no change times. After a restart, the next process
    /// continues the age if the digest is unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// A failed scan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanFailure {
    /// Time of the failure.
    pub time: Timestamp,
    /// Error message.
    pub message: String,
}

/// Result of the last complete scan of a driver, without the orphans that were deleted on request since then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScanReport {
    /// The driver.
    pub driver: DriverName,
    /// The kind of what was scanned.
    #[serde(default)]
    pub kind: OrphanKind,
    /// End of the last complete scan; `None` before the first. The ConfigMap may have an earlier one: see
    /// [`ScanReport::is_update_of`].
    pub time: Option<Timestamp>,
    /// Method of detecting leaks.
    pub leak_detection: LeakDetection,
    /// True while deletions are frozen after a restore of the cluster.
    pub deletions_frozen: bool,
    /// All volumes or snapshots that the driver lists, by classification.
    pub counts: ListedCounts,
    /// Total size of all orphans whose size is known.
    pub orphaned_bytes: u64,
    /// Orphans by handle, at most [`MAX_LISTED`]; for the limit in bytes, see [`ScanReport::set_listed`].
    pub orphans: Vec<Orphan>,
    /// Number of orphans that are not listed.
    pub unlisted_orphans: u64,
    /// Those within the grace period by handle, with the same limits as `orphans`.
    #[serde(default)]
    pub within_grace_period: Vec<Orphan>,
    /// Number of those within the grace period that are missing from `within_grace_period`.
    #[serde(default)]
    pub unlisted_within_grace_period: u64,
    /// The last scan if it failed. All other fields except `deletions_frozen` are then from the last complete
    /// scan, if there was one.
    pub failure: Option<ScanFailure>,
}

impl ScanReport {
    /// Returns a report without orphans and without a scan.
    pub fn new(driver: DriverName, kind: OrphanKind, leak_detection: LeakDetection) -> Self {
        Self {
            driver,
            kind,
            time: None,
            leak_detection,
            deletions_frozen: false,
            counts: ListedCounts::default(),
            orphaned_bytes: 0,
            orphans: Vec::new(),
            unlisted_orphans: 0,
            within_grace_period: Vec::new(),
            unlisted_within_grace_period: 0,
            failure: None,
        }
    }

    /// Reads the report of a ConfigMap. `None` if it is missing or cannot be decoded.
    pub fn read(map: &OrphanReport) -> Option<Self> {
        serde_json::from_str(map.data_value(REPORT)?).ok()
    }

    /// Lists orphans, then those within the grace period, up to [`MAX_LISTED`] and `MAX_BYTES`. `counts`
    /// must be set.
    pub fn set_listed(
        &mut self,
        orphans: BTreeMap<ResourceHandle, Orphan>,
        within_grace_period: BTreeMap<ResourceHandle, Orphan>,
    ) {
        let mut bytes = 0;
        let mut fits = |orphan: &Orphan| {
            bytes += serde_json::to_string(orphan).map_or(MAX_BYTES, |json| json.len() + 1);
            bytes <= MAX_BYTES
        };
        self.orphans = orphans.into_values().take(MAX_LISTED).take_while(&mut fits).collect();
        self.within_grace_period =
            within_grace_period.into_values().take(MAX_LISTED).take_while(&mut fits).collect();
        let unlisted = |count: u64, listed: &[Orphan]| {
            count.saturating_sub(u64::try_from(listed.len()).unwrap_or(u64::MAX))
        };
        self.unlisted_orphans = unlisted(self.counts.orphan, &self.orphans);
        self.unlisted_within_grace_period =
            unlisted(self.counts.within_grace_period, &self.within_grace_period);
    }

    /// Removes a deleted orphan, if it is listed.
    pub fn remove(&mut self, handle: &ResourceHandle) {
        let Some(index) = self.orphans.iter().position(|orphan| orphan.handle == *handle) else { return };
        let removed = self.orphans.remove(index);
        self.counts.orphan = self.counts.orphan.saturating_sub(1);
        self.orphaned_bytes = self.orphaned_bytes.saturating_sub(removed.bytes.unwrap_or_default());
    }

    /// Returns the listed orphan with this handle.
    pub fn orphan(&self, handle: &ResourceHandle) -> Option<&Orphan> {
        self.orphans.iter().find(|orphan| orphan.handle == *handle)
    }

    /// Returns true if this report must replace `before` in the ConfigMap: it differs in more than the times
    /// of scans, or its scan was at least one hour later.
    pub fn is_update_of(&self, before: &Self) -> bool {
        let mut current = Self { time: before.time, failure: self.failure.clone(), ..self.clone() };
        if let (Some(now), Some(previous)) = (&mut current.failure, &before.failure) {
            now.time = previous.time;
        }
        current != *before
            || self.last_attempt()
                >= before.last_attempt()
                    + jiff::SignedDuration::try_from(REFRESH_INTERVAL).unwrap_or_default()
    }

    /// Returns the listed orphans that `before` does not list. If `before` did not list all of its orphans,
    /// returns none unless the number of orphans has grown.
    pub fn new_orphans(&self, before: Option<&Self>) -> Vec<&ResourceHandle> {
        let new = |orphan: &&Orphan| before.is_none_or(|before| before.orphan(&orphan.handle).is_none());
        let is_uncertain = before
            .is_some_and(|before| before.unlisted_orphans > 0 && before.counts.orphan >= self.counts.orphan);
        if is_uncertain {
            return Vec::new();
        }
        self.orphans.iter().filter(new).map(|orphan| &orphan.handle).collect()
    }

    /// Time of the last scan, complete or failed.
    fn last_attempt(&self) -> Timestamp {
        let failed = self.failure.as_ref().map(|failure| failure.time);
        self.time.max(failed).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// A deletion request that cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DeletionRequestError {
    /// The length in bytes exceeds the limit.
    #[error("the request has {0} bytes; expected at most {MAX_REQUEST_BYTES}")]
    TooLong(usize),
    /// The request is not valid JSON of a [`DeletionRequest`].
    #[error("the request cannot be decoded: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// A request to delete one volume or snapshot, of the kind that the ConfigMap is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletionRequest {
    /// The driver's id of it.
    pub handle: ResourceHandle,
    /// Time of the request.
    pub requested_at: Timestamp,
    /// The requester, for display.
    pub requested_by: String,
}

impl DeletionRequest {
    /// Decodes the request in a ConfigMap.
    ///
    /// # Errors
    /// The request is too long or malformed.
    pub fn parse(text: &str) -> Result<Self, DeletionRequestError> {
        if text.len() > MAX_REQUEST_BYTES {
            return Err(DeletionRequestError::TooLong(text.len()));
        }
        Ok(serde_json::from_str(text)?)
    }

    /// Returns the merge patch that writes the request.
    pub fn patch(&self) -> Value {
        json!({"data": {DELETE: json!(self).to_string()}})
    }
}

/// Result of a deletion request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeletionResult {
    /// The driver has deleted it, or no longer has it after the deletion was started.
    Deleted,
    /// The request was refused or failed; the message is the reason.
    Refused,
}

/// Response to a deletion request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletionResponse {
    /// The request. `None` if it could not be decoded.
    pub request: Option<DeletionRequest>,
    /// Result of the request.
    pub result: DeletionResult,
    /// Explanation of the result: for `Refused` the reason, for `Deleted` what the driver has reported.
    pub message: String,
    /// Time of the response.
    pub answered_at: Timestamp,
}

impl DeletionResponse {
    /// Reads the response in a ConfigMap. `None` if it is missing or cannot be decoded.
    pub fn read(map: &OrphanReport) -> Option<Self> {
        serde_json::from_str(map.data_value(RESPONSE)?).ok()
    }
}

/// Labels of the ConfigMap.
pub(crate) fn labels() -> Value {
    json!({
        "app.kubernetes.io/managed-by": "cofferdam",
        orphan_report::REPORT_LABEL: orphan_report::REPORT_LABEL_VALUE,
    })
}

#[cfg(test)]
mod tests;
