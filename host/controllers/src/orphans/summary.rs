//! Counts and collects a driver's volumes or snapshots during a scan.

use std::collections::{BTreeMap, HashSet};

use cofferdam_cluster::orphan_report::OrphanKind;
use cofferdam_domain::{DriverName, ResourceHandle};
use jiff::Timestamp;

use super::{
    report::{LeakDetection, ListedCounts, MAX_LISTED, Orphan, ScanReport},
    resource::Resource,
    rules::{Classification, Unmanaged},
};

/// Maximum handles in an event. The report lists more, up to its own limits.
const MAX_NAMED_HANDLES: usize = 3;

/// Counts by classification, and the orphans for the report.
#[derive(Default)]
pub(super) struct ScanSummary {
    counts: ListedCounts,
    bytes: u64,
    /// The first [`MAX_LISTED`] orphans by handle.
    orphans: BTreeMap<ResourceHandle, Orphan>,
    /// The first [`MAX_LISTED`] volumes or snapshots within the grace period, by handle.
    within_grace_period: BTreeMap<ResourceHandle, Orphan>,
    has_owners: bool,
    /// Handles of orphans, and of those within the grace period, of which the driver reports no change time.
    pub(super) observed_handles: HashSet<ResourceHandle>,
}

impl ScanSummary {
    /// Counts a volume or snapshot, and collects it for the report if it is an orphan or within the grace
    /// period.
    pub(super) fn add(&mut self, resource: &Resource, classification: Classification) {
        self.has_owners |= resource.created_for().is_some();
        match classification {
            Classification::Referenced(_) => self.counts.referenced += 1,
            Classification::Unmanaged(Unmanaged::NoOwner) => self.counts.no_owner += 1,
            Classification::Unmanaged(Unmanaged::OtherCluster) => self.counts.other_cluster += 1,
            Classification::Unmanaged(Unmanaged::Retained(_)) => self.counts.retained += 1,
            Classification::Unmanaged(Unmanaged::GroupMember(_)) => self.counts.group_member += 1,
            Classification::WithinGracePeriod { since } => {
                let Some(recent) = self.build_orphan(resource, since) else { return };
                if insert(&mut self.within_grace_period, recent) {
                    self.counts.within_grace_period += 1;
                }
            }
            Classification::Orphan { since } => {
                let Some(orphan) = self.build_orphan(resource, since) else { return };
                let bytes = orphan.bytes.unwrap_or_default();
                if insert(&mut self.orphans, orphan) {
                    self.counts.orphan += 1;
                    self.bytes = self.bytes.saturating_add(bytes);
                }
            }
        }
    }

    fn build_orphan(&mut self, resource: &Resource, since: Timestamp) -> Option<Orphan> {
        let state = resource.changed_at_ms().is_none().then(|| resource.state_digest());
        let (handle, bytes) = (resource.handle(), resource.bytes());
        if state.is_some() {
            self.observed_handles.insert(handle.clone());
        }
        let created_for = resource.created_for()?;
        Some(Orphan { handle, bytes, created_for, since, state })
    }

    /// Converts the counts and the collected orphans into a report.
    pub(super) fn into_report(self, driver: DriverName, kind: OrphanKind) -> ScanReport {
        let leak_detection = if self.has_owners || self.counts.total() == 0 {
            LeakDetection::Owner
        } else {
            LeakDetection::None { message: "the driver reports no owners".to_owned() }
        };
        let mut report = ScanReport::new(driver, kind, leak_detection);
        report.counts = self.counts;
        report.orphaned_bytes = self.bytes;
        report.set_listed(self.orphans, self.within_grace_period);
        report
    }
}

/// Inserts an orphan. Returns false if it is already listed: a listing that changes between pages may repeat
/// one.
fn insert(listed: &mut BTreeMap<ResourceHandle, Orphan>, orphan: Orphan) -> bool {
    let new = listed.insert(orphan.handle.clone(), orphan).is_none();
    if listed.len() > MAX_LISTED {
        listed.pop_last();
    }
    new
}

/// Message of the events `OrphanedVolumes` and `OrphanedSnapshots`. `namespace` is that of the report.
pub(super) fn describe(report: &ScanReport, new_orphans: &[&ResourceHandle], namespace: &str) -> String {
    let named: Vec<&str> = new_orphans.iter().take(MAX_NAMED_HANDLES).map(|handle| handle.as_str()).collect();
    let ellipsis = if new_orphans.len() > MAX_NAMED_HANDLES { ", …" } else { "" };
    let (count, driver, kind) = (report.counts.orphan, &report.driver, report.kind);
    let orphaned = if count == 1 { format!("1 {kind} is") } else { format!("{count} {kind}s are") };
    format!(
        "{orphaned} orphaned, new: {}{ellipsis}. See `cofferdam orphans --namespace {namespace} --driver \
         {driver}`",
        named.join(", ")
    )
}
