//! What stands in the ConfigMap: the report, a request to delete one volume, and the answer to it.

use std::{collections::BTreeMap, fmt, time::Duration};

use cofferdam_cluster::{OrphanReport, orphan_report};
use cofferdam_domain::{DriverName, Uid, VolumeHandle, VolumeName};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Key of the [`Report`].
pub const REPORT: &str = "report";
/// Key of the [`Request`]; it stays until it is answered.
pub const DELETE: &str = "delete";
/// Key of the [`Request`] that is being carried out: written before the driver is asked, so that a process
/// that takes over knows that it may have been asked.
pub const DELETING: &str = "deleting";
/// Key of the [`Answer`] to the last request.
pub const RESPONSE: &str = "answer";

/// Orphans that a report lists, and as many young volumes; more are only counted.
pub const MAX_LISTED: usize = 500;
/// Bytes of everything that is listed: less than half of the API's limit of 1 MiB for a ConfigMap.
const MAX_BYTES: usize = 448 << 10;
/// A report that says nothing new is written again after this time, so that its age tells whether anybody
/// still looks.
const REFRESH_INTERVAL: Duration = Duration::from_secs(3600);
/// Longest request that is read, in bytes: a handle has at most 128.
const MAX_REQUEST_BYTES: usize = 4 << 10;

/// How leaks of a driver are found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum LeakDetection {
    /// By the owners that the driver has kept.
    Owner,
    /// Not at all.
    None {
        /// Why, for people.
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

/// Volumes by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeCounts {
    /// An object, a claim or an intent speaks for them.
    pub referenced: u64,
    /// Nothing does, for a day.
    pub orphan: u64,
    /// Nothing does, but not for a day yet.
    pub within_grace_period: u64,
    /// No object stands for them, and the driver has kept no owner.
    pub no_owner: u64,
    /// No object stands for them, and they were made for another cluster.
    pub other_cluster: u64,
    /// No object stands for them, and their reclaim policy was not Delete.
    pub retained: u64,
}

impl VolumeCounts {
    /// Volumes without an object that may not be ours to judge.
    pub fn unmanaged(&self) -> u64 {
        self.no_owner + self.other_cluster + self.retained
    }

    /// Every volume that the driver lists.
    pub fn total(&self) -> u64 {
        self.referenced + self.orphan + self.within_grace_period + self.unmanaged()
    }
}

/// A volume that nothing speaks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// The driver's id.
    pub handle: VolumeHandle,
    /// Its size, when the driver knows it.
    pub bytes: Option<u64>,
    /// `metadata.uid` of the claim that it was made for.
    pub claim: Uid,
    /// Name of the PersistentVolume that it was made for.
    pub volume: VolumeName,
    /// Since when it has not changed.
    pub since: Timestamp,
    /// A digest of how it was then, where the driver does not tell when it changed: with it the next process
    /// goes on counting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// A scan that came to no end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanFailure {
    /// When.
    pub time: Timestamp,
    /// Why, for people.
    pub message: String,
}

/// What a driver holds, as the last complete scan found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScanReport {
    /// The driver.
    pub driver: DriverName,
    /// End of the last complete scan; absent before the first.
    pub time: Option<Timestamp>,
    /// How leaks are found.
    pub leak_detection: LeakDetection,
    /// Whether nothing may be deleted because the cluster was restored from a backup.
    pub deletions_frozen: bool,
    /// Every volume that the driver lists.
    pub counts: VolumeCounts,
    /// Sizes of all orphans together, as far as the driver knows them.
    pub orphaned_bytes: u64,
    /// Orphans by handle, at most [`MAX_LISTED`].
    pub orphans: Vec<Orphan>,
    /// How many orphans are not listed.
    pub unlisted_orphans: u64,
    /// Volumes that become orphans when a day has passed, by handle, at most [`MAX_LISTED`].
    #[serde(default)]
    pub within_grace_period: Vec<Orphan>,
    /// How many of those are not listed.
    #[serde(default)]
    pub unlisted_within_grace_period: u64,
    /// The last scan, where it came to no end: everything else is from the one before.
    pub failure: Option<ScanFailure>,
}

impl ScanReport {
    /// A report of a driver that was never scanned.
    pub fn new(driver: DriverName, leak_detection: LeakDetection) -> Self {
        Self {
            driver,
            time: None,
            leak_detection,
            deletions_frozen: false,
            counts: VolumeCounts::default(),
            orphaned_bytes: 0,
            orphans: Vec::new(),
            unlisted_orphans: 0,
            within_grace_period: Vec::new(),
            unlisted_within_grace_period: 0,
            failure: None,
        }
    }

    /// The report in a ConfigMap; absent where there is none that this build can read.
    pub fn read(map: &OrphanReport) -> Option<Self> {
        serde_json::from_str(map.data_value(REPORT)?).ok()
    }

    /// Lists orphans, then young volumes, as far as they fit; all of them are counted already.
    pub fn set_listed(
        &mut self,
        orphans: BTreeMap<VolumeHandle, Orphan>,
        within_grace_period: BTreeMap<VolumeHandle, Orphan>,
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

    /// Takes out an orphan that is gone.
    pub fn remove(&mut self, handle: &VolumeHandle) {
        let Some(at) = self.orphans.iter().position(|orphan| orphan.handle == *handle) else { return };
        let removed = self.orphans.remove(at);
        self.counts.orphan = self.counts.orphan.saturating_sub(1);
        self.orphaned_bytes = self.orphaned_bytes.saturating_sub(removed.bytes.unwrap_or_default());
    }

    /// The orphan of this handle, where it is listed.
    pub fn orphan(&self, handle: &VolumeHandle) -> Option<&Orphan> {
        self.orphans.iter().find(|orphan| orphan.handle == *handle)
    }

    /// Whether this report has to be written where `before` stands: it says something new, or `before` is an
    /// hour old.
    pub fn is_update_of(&self, before: &Self) -> bool {
        let mut same = Self { time: before.time, failure: self.failure.clone(), ..self.clone() };
        if let (Some(now), Some(previous)) = (&mut same.failure, &before.failure) {
            now.time = previous.time;
        }
        same != *before
            || self.last_attempt()
                >= before.last_attempt()
                    + jiff::SignedDuration::try_from(REFRESH_INTERVAL).unwrap_or_default()
    }

    /// Orphans that `before` did not have. Where it did not list all of its own, only a larger number tells.
    pub fn new_orphans(&self, before: Option<&Self>) -> Vec<&VolumeHandle> {
        let new = |orphan: &&Orphan| before.is_none_or(|before| before.orphan(&orphan.handle).is_none());
        let is_uncertain = before
            .is_some_and(|before| before.unlisted_orphans > 0 && before.counts.orphan >= self.counts.orphan);
        if is_uncertain {
            return Vec::new();
        }
        self.orphans.iter().filter(new).map(|orphan| &orphan.handle).collect()
    }

    /// When somebody looked last, with or without success.
    fn last_attempt(&self) -> Timestamp {
        let failed = self.failure.as_ref().map(|failure| failure.time);
        self.time.max(failed).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// A wish to delete one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletionRequest {
    /// The volume.
    pub handle: VolumeHandle,
    /// When it was asked for.
    pub requested_at: Timestamp,
    /// Who asks, for people.
    pub requested_by: String,
}

impl DeletionRequest {
    /// Reads what stands in a ConfigMap.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_REQUEST_BYTES {
            return Err(format!(
                "the request has {} bytes; expected at most {MAX_REQUEST_BYTES}",
                text.len()
            ));
        }
        serde_json::from_str(text).map_err(|error| format!("the request cannot be read: {error}"))
    }

    /// The merge patch that asks.
    pub fn patch(&self) -> Value {
        json!({"data": {DELETE: json!(self).to_string()}})
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeletionResult {
    /// The volume is gone.
    Deleted,
    /// The volume was left alone.
    Refused,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletionResponse {
    /// The request; absent where it could not be read.
    pub request: Option<DeletionRequest>,
    /// What became of it.
    pub result: DeletionResult,
    /// Why, for people.
    pub message: String,
    /// When.
    pub answered_at: Timestamp,
}

impl DeletionResponse {
    /// The answer in a ConfigMap; absent where there is none that this build can read.
    pub fn read(map: &OrphanReport) -> Option<Self> {
        serde_json::from_str(map.data_value(RESPONSE)?).ok()
    }
}

/// Labels of the ConfigMap.
pub(crate) fn labels() -> Value {
    json!({"app.kubernetes.io/managed-by": "cofferdam", orphan_report::REPORT_LABEL: orphan_report::REPORT_LABEL_VALUE})
}

#[cfg(test)]
mod tests;
