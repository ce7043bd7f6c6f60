//! What stands in the ConfigMap: the report, a request to delete one volume, and the answer to it.

use std::{collections::BTreeMap, fmt, time::Duration};

use cofferdam_cluster::{OrphanReport, orphans};
use cofferdam_domain::{DriverName, Uid, VolumeHandle, VolumeName};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Key of the [`Report`].
pub const REPORT: &str = "report";
/// Key of the [`Request`]; it stays until it is answered.
pub const DELETE: &str = "delete";
/// Key of the [`Request`] that is being carried out: written before the driver is asked, so that a process that takes over
/// knows that it may have been asked.
pub const DELETING: &str = "deleting";
/// Key of the [`Answer`] to the last request.
pub const ANSWER: &str = "answer";

/// Orphans that a report lists, and as many young volumes; more are only counted.
pub const MAX_LISTED: usize = 500;
/// Bytes of everything that is listed: less than half of the API's limit of 1 MiB for a ConfigMap.
const MAX_BYTES: usize = 448 << 10;
/// A report that says nothing new is written again after this time, so that its age tells whether anybody still looks.
const REFRESH: Duration = Duration::from_secs(3600);
/// Longest request that is read, in bytes: a handle has at most 128.
const MAX_REQUEST: usize = 4 << 10;

/// How leaks of a driver are found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum LeakDetection {
    /// By the owners that the driver has kept.
    Owner,
    /// Not at all.
    None {
        /// Why, for people.
        why: String,
    },
}

impl fmt::Display for LeakDetection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner => f.write_str("by owner"),
            Self::None { why } => write!(f, "none: {why}"),
        }
    }
}

/// Volumes by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Counts {
    /// An object, a claim or an intent speaks for them.
    pub known: u64,
    /// Nothing does, for a day.
    pub orphan: u64,
    /// Nothing does, but not for a day yet.
    pub young: u64,
    /// No object stands for them, and the driver has kept no owner.
    pub no_owner: u64,
    /// No object stands for them, and they were made for another cluster.
    pub other_cluster: u64,
    /// No object stands for them, and their reclaim policy was not Delete.
    pub kept: u64,
}

impl Counts {
    /// Volumes without an object that may not be ours to judge.
    pub fn unknown(&self) -> u64 {
        self.no_owner + self.other_cluster + self.kept
    }

    /// Every volume that the driver lists.
    pub fn total(&self) -> u64 {
        self.known + self.orphan + self.young + self.unknown()
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
    /// A digest of how it was then, where the driver does not tell when it changed: with it the next process goes on counting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// A scan that came to no end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// When.
    pub time: Timestamp,
    /// Why, for people.
    pub message: String,
}

/// What a driver holds, as the last complete scan found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The driver.
    pub driver: DriverName,
    /// End of the last complete scan; absent before the first.
    pub time: Option<Timestamp>,
    /// How leaks are found.
    pub leak_detection: LeakDetection,
    /// Whether nothing may be deleted because the cluster was restored from a backup.
    pub held: bool,
    /// Every volume that the driver lists.
    pub counts: Counts,
    /// Sizes of all orphans together, as far as the driver knows them.
    pub orphaned_bytes: u64,
    /// Orphans by handle, at most [`MAX_LISTED`].
    pub orphans: Vec<Orphan>,
    /// How many orphans are not listed.
    pub more: u64,
    /// Volumes that become orphans when a day has passed, by handle, at most [`MAX_LISTED`].
    #[serde(default)]
    pub young: Vec<Orphan>,
    /// How many of those are not listed.
    #[serde(default)]
    pub more_young: u64,
    /// The last scan, where it came to no end: everything else is from the one before.
    pub failure: Option<Failure>,
}

impl Report {
    /// A report of a driver that was never scanned.
    pub fn new(driver: DriverName, leak_detection: LeakDetection) -> Self {
        Self {
            driver,
            time: None,
            leak_detection,
            held: false,
            counts: Counts::default(),
            orphaned_bytes: 0,
            orphans: Vec::new(),
            more: 0,
            young: Vec::new(),
            more_young: 0,
            failure: None,
        }
    }

    /// The report in a ConfigMap; absent where there is none that this build can read.
    pub fn read(map: &OrphanReport) -> Option<Self> {
        serde_json::from_str(map.text(REPORT)?).ok()
    }

    /// Lists orphans, then young volumes, as far as they fit; all of them are counted already.
    pub fn list(&mut self, orphans: BTreeMap<VolumeHandle, Orphan>, young: BTreeMap<VolumeHandle, Orphan>) {
        let mut bytes = 0;
        let mut fits = |orphan: &Orphan| {
            bytes += serde_json::to_string(orphan).map_or(MAX_BYTES, |json| json.len() + 1);
            bytes <= MAX_BYTES
        };
        self.orphans = orphans.into_values().take(MAX_LISTED).take_while(&mut fits).collect();
        self.young = young.into_values().take(MAX_LISTED).take_while(&mut fits).collect();
        let missing = |count: u64, listed: &[Orphan]| {
            count.saturating_sub(u64::try_from(listed.len()).unwrap_or(u64::MAX))
        };
        self.more = missing(self.counts.orphan, &self.orphans);
        self.more_young = missing(self.counts.young, &self.young);
    }

    /// Takes out an orphan that is gone.
    pub fn remove(&mut self, handle: &VolumeHandle) {
        let Some(at) = self.orphans.iter().position(|orphan| orphan.handle == *handle) else { return };
        let gone = self.orphans.remove(at);
        self.counts.orphan = self.counts.orphan.saturating_sub(1);
        self.orphaned_bytes = self.orphaned_bytes.saturating_sub(gone.bytes.unwrap_or_default());
    }

    /// The orphan of this handle, where it is listed.
    pub fn orphan(&self, handle: &VolumeHandle) -> Option<&Orphan> {
        self.orphans.iter().find(|orphan| orphan.handle == *handle)
    }

    /// Whether this report has to be written where `before` stands: it says something new, or `before` is an hour old.
    pub fn replaces(&self, before: &Self) -> bool {
        let mut same = Self { time: before.time, failure: self.failure.clone(), ..self.clone() };
        if let (Some(now), Some(then)) = (&mut same.failure, &before.failure) {
            now.time = then.time;
        }
        same != *before
            || self.stamp() >= before.stamp() + jiff::SignedDuration::try_from(REFRESH).unwrap_or_default()
    }

    /// Orphans that `before` did not have. Where it did not list all of its own, only a larger number tells.
    pub fn grown(&self, before: Option<&Self>) -> Vec<&VolumeHandle> {
        let new = |orphan: &&Orphan| before.is_none_or(|before| before.orphan(&orphan.handle).is_none());
        let doubtful =
            before.is_some_and(|before| before.more > 0 && before.counts.orphan >= self.counts.orphan);
        if doubtful {
            return Vec::new();
        }
        self.orphans.iter().filter(new).map(|orphan| &orphan.handle).collect()
    }

    /// When somebody looked last, with or without success.
    fn stamp(&self) -> Timestamp {
        let failed = self.failure.as_ref().map(|failure| failure.time);
        self.time.max(failed).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// A wish to delete one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The volume.
    pub handle: VolumeHandle,
    /// When it was asked for.
    pub requested_at: Timestamp,
    /// Who asks, for people.
    pub by: String,
}

impl Request {
    /// Reads what stands in a ConfigMap.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_REQUEST {
            return Err(format!("the request has {} bytes; expected at most {MAX_REQUEST}", text.len()));
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
pub enum Verdict {
    /// The volume is gone.
    Deleted,
    /// The volume was left alone.
    Refused,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The request; absent where it could not be read.
    pub request: Option<Request>,
    /// What became of it.
    pub verdict: Verdict,
    /// Why, for people.
    pub message: String,
    /// When.
    pub answered_at: Timestamp,
}

impl Answer {
    /// The answer in a ConfigMap; absent where there is none that this build can read.
    pub fn read(map: &OrphanReport) -> Option<Self> {
        serde_json::from_str(map.text(ANSWER)?).ok()
    }
}

/// Labels of the ConfigMap.
pub(crate) fn labels() -> Value {
    json!({"app.kubernetes.io/managed-by": "cofferdam", orphans::LABEL: orphans::LABEL_VALUE})
}

#[cfg(test)]
mod tests;
