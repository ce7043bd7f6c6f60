//! What a scan counts on its way through a driver's volumes.

use std::collections::{BTreeMap, HashSet};

use cofferdam_domain::{DriverName, VolumeHandle, storage::VolumeStatus};
use jiff::Timestamp;

use super::{
    listing,
    report::{Counts, LeakDetection, MAX_LISTED, Orphan, Report},
    rules::{Stranger, Verdict},
};

/// Handles that an event names; the report has the others.
const NAMED: usize = 3;

/// Volumes by verdict, and those that the report lists.
#[derive(Default)]
pub(super) struct Tally {
    counts: Counts,
    bytes: u64,
    /// The first orphans by handle.
    orphans: BTreeMap<VolumeHandle, Orphan>,
    /// The first young volumes by handle.
    young: BTreeMap<VolumeHandle, Orphan>,
    owners: bool,
    /// Volumes of which only our own eyes tell when they changed.
    pub(super) watched: HashSet<VolumeHandle>,
}

impl Tally {
    /// Counts a volume.
    pub(super) fn take_in(&mut self, status: VolumeStatus, verdict: Verdict) {
        self.owners |= status.owner.is_some();
        match verdict {
            Verdict::Known(_) => self.counts.known += 1,
            Verdict::Unknown(Stranger::NoOwner) => self.counts.no_owner += 1,
            Verdict::Unknown(Stranger::OtherCluster) => self.counts.other_cluster += 1,
            Verdict::Unknown(Stranger::Kept(_)) => self.counts.kept += 1,
            Verdict::Young { since } => {
                let Some(young) = self.entry(status, since) else { return };
                if insert(&mut self.young, young) {
                    self.counts.young += 1;
                }
            }
            Verdict::Orphan { since } => {
                let Some(orphan) = self.entry(status, since) else { return };
                let bytes = orphan.bytes.unwrap_or_default();
                if insert(&mut self.orphans, orphan) {
                    self.counts.orphan += 1;
                    self.bytes = self.bytes.saturating_add(bytes);
                }
            }
        }
    }

    fn entry(&mut self, status: VolumeStatus, since: Timestamp) -> Option<Orphan> {
        let state = status.changed_at_ms.is_none().then(|| listing::state(&status));
        let (handle, bytes) = (status.volume.handle, status.volume.capacity);
        if state.is_some() {
            self.watched.insert(handle.clone());
        }
        let owner = status.owner?;
        Some(Orphan { handle, bytes, claim: owner.claim, volume: owner.volume, since, state })
    }

    /// What was counted.
    pub(super) fn report(self, driver: DriverName) -> Report {
        let leak_detection = if self.owners || self.counts.total() == 0 {
            LeakDetection::Owner
        } else {
            LeakDetection::None { why: "the driver keeps no owners".to_owned() }
        };
        let mut report = Report::new(driver, leak_detection);
        report.counts = self.counts;
        report.orphaned_bytes = self.bytes;
        report.list(self.orphans, self.young);
        report
    }
}

/// Whether it is new: a listing that moves under our feet may show a volume twice.
fn insert(listed: &mut BTreeMap<VolumeHandle, Orphan>, orphan: Orphan) -> bool {
    let new = listed.insert(orphan.handle.clone(), orphan).is_none();
    if listed.len() > MAX_LISTED {
        listed.pop_last();
    }
    new
}

/// What the event about new orphans says.
pub(super) fn describe(report: &Report, grown: &[&VolumeHandle]) -> String {
    let named: Vec<&str> = grown.iter().take(NAMED).map(|handle| handle.as_str()).collect();
    let more = if grown.len() > NAMED { ", …" } else { "" };
    let (count, driver) = (report.counts.orphan, &report.driver);
    let belong = if count == 1 { "1 volume belongs" } else { &format!("{count} volumes belong") };
    format!(
        "{belong} to nothing in this cluster any more, new: {}{more}. See `cofferdam orphans --driver {driver}`",
        named.join(", ")
    )
}
