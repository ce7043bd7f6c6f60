//! Counts and collects a driver's volumes during a scan.

use std::collections::{BTreeMap, HashSet};

use cofferdam_domain::{DriverName, VolumeHandle, storage::VolumeStatus};
use jiff::Timestamp;

use super::{
    history,
    report::{LeakDetection, MAX_LISTED, Orphan, ScanReport, VolumeCounts},
    rules::{Classification, Unmanaged},
};

/// Maximum handles in an event. The report lists more, up to its own limits.
const MAX_NAMED_HANDLES: usize = 3;

/// Volumes by classification, and the volumes for the report.
#[derive(Default)]
pub(super) struct ScanSummary {
    counts: VolumeCounts,
    bytes: u64,
    /// The first [`MAX_LISTED`] orphans by handle.
    orphans: BTreeMap<VolumeHandle, Orphan>,
    /// The first [`MAX_LISTED`] volumes within the grace period, by handle.
    within_grace_period: BTreeMap<VolumeHandle, Orphan>,
    has_owners: bool,
    /// Orphans and volumes within the grace period for which the driver reports no change time.
    pub(super) observed_handles: HashSet<VolumeHandle>,
}

impl ScanSummary {
    /// Counts a volume, and collects it for the report if it is an orphan or within the grace period.
    pub(super) fn add(&mut self, status: VolumeStatus, classification: Classification) {
        self.has_owners |= status.owner.is_some();
        match classification {
            Classification::Referenced(_) => self.counts.referenced += 1,
            Classification::Unmanaged(Unmanaged::NoOwner) => self.counts.no_owner += 1,
            Classification::Unmanaged(Unmanaged::OtherCluster) => self.counts.other_cluster += 1,
            Classification::Unmanaged(Unmanaged::Retained(_)) => self.counts.retained += 1,
            Classification::WithinGracePeriod { since } => {
                let Some(volume) = self.build_orphan(status, since) else { return };
                if insert(&mut self.within_grace_period, volume) {
                    self.counts.within_grace_period += 1;
                }
            }
            Classification::Orphan { since } => {
                let Some(orphan) = self.build_orphan(status, since) else { return };
                let bytes = orphan.bytes.unwrap_or_default();
                if insert(&mut self.orphans, orphan) {
                    self.counts.orphan += 1;
                    self.bytes = self.bytes.saturating_add(bytes);
                }
            }
        }
    }

    fn build_orphan(&mut self, status: VolumeStatus, since: Timestamp) -> Option<Orphan> {
        let state = status.changed_at_ms.is_none().then(|| history::state_digest(&status));
        let (handle, bytes) = (status.volume.handle, status.volume.capacity);
        if state.is_some() {
            self.observed_handles.insert(handle.clone());
        }
        let owner = status.owner?;
        Some(Orphan { handle, bytes, claim: owner.claim_uid, volume: owner.pv_name, since, state })
    }

    /// Converts the counts and the collected volumes into a report.
    pub(super) fn into_report(self, driver: DriverName) -> ScanReport {
        let leak_detection = if self.has_owners || self.counts.total() == 0 {
            LeakDetection::Owner
        } else {
            LeakDetection::None { message: "the driver reports no owners".to_owned() }
        };
        let mut report = ScanReport::new(driver, leak_detection);
        report.counts = self.counts;
        report.orphaned_bytes = self.bytes;
        report.set_listed(self.orphans, self.within_grace_period);
        report
    }
}

/// Inserts a volume. Returns false if it is already listed: a listing that changes between pages may repeat a
/// volume.
fn insert(listed: &mut BTreeMap<VolumeHandle, Orphan>, orphan: Orphan) -> bool {
    let new = listed.insert(orphan.handle.clone(), orphan).is_none();
    if listed.len() > MAX_LISTED {
        listed.pop_last();
    }
    new
}

/// Message of the event `OrphanedVolumes`. `namespace` is that of the report.
pub(super) fn describe(report: &ScanReport, new_orphans: &[&VolumeHandle], namespace: &str) -> String {
    let named: Vec<&str> = new_orphans.iter().take(MAX_NAMED_HANDLES).map(|handle| handle.as_str()).collect();
    let ellipsis = if new_orphans.len() > MAX_NAMED_HANDLES { ", …" } else { "" };
    let (count, driver) = (report.counts.orphan, &report.driver);
    let orphaned = if count == 1 { "1 volume is" } else { &format!("{count} volumes are") };
    format!(
        "{orphaned} orphaned, new: {}{ellipsis}. See `cofferdam orphans --namespace {namespace} --driver \
         {driver}`",
        named.join(", ")
    )
}
