//! Observes changes of volumes whose driver reports no change times.

use std::{
    collections::{HashMap, HashSet, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    time::Duration,
};

use cofferdam_domain::{VolumeHandle, storage::VolumeStatus};
use jiff::Timestamp;
use tokio::time::Instant;

use super::{report::ScanReport, rules::LastChange};

/// Maximum observed volumes per driver. Further volumes stay within the grace period.
const MAX_OBSERVATIONS: usize = 50_000;

struct Observation {
    state: String,
    since: Timestamp,
    /// Time since the last change, at `observed_at`.
    age: Duration,
    observed_at: Instant,
}

/// Last changes of a driver's volumes, observed by this process and, through the report, by earlier ones.
#[derive(Default)]
pub(super) struct ObservationHistory(HashMap<VolumeHandle, Observation>);

impl ObservationHistory {
    /// Restores the observations of earlier processes from their report.
    pub(super) fn restore(&mut self, report: &ScanReport, now: Timestamp) {
        for orphan in report.orphans.iter().chain(&report.within_grace_period) {
            let Some(state) = orphan.state.clone() else { continue };
            let age = Duration::try_from(now.duration_since(orphan.since)).unwrap_or_default();
            let observation =
                Observation { state, since: orphan.since.min(now), age, observed_at: Instant::now() };
            self.0.insert(orphan.handle.clone(), observation);
        }
    }

    /// Returns the volume's last change. A new or changed volume gets the time `now`.
    pub(super) fn observe(&mut self, status: &VolumeStatus, now: Timestamp) -> LastChange {
        let state = state_digest(status);
        let handle = &status.volume.handle;
        if let Some(observation) = self.0.get(handle).filter(|observation| observation.state == state) {
            return LastChange {
                since: observation.since,
                age: observation.age + observation.observed_at.elapsed(),
            };
        }
        if self.0.len() < MAX_OBSERVATIONS || self.0.contains_key(handle) {
            let observation =
                Observation { state, since: now, age: Duration::ZERO, observed_at: Instant::now() };
            self.0.insert(handle.clone(), observation);
        }
        LastChange { since: now, age: Duration::ZERO }
    }

    /// Removes volumes that are not in `listed`: the volumes of a complete listing for which the driver
    /// reports no change time and that are orphans or within the grace period.
    pub(super) fn retain(&mut self, listed: &HashSet<VolumeHandle>) {
        self.0.retain(|handle, _| listed.contains(handle));
    }
}

/// Digest of the fields of a volume that change with its use. The volume condition is not part of it.
pub(super) fn state_digest(status: &VolumeStatus) -> String {
    // Another build may compute another hash. Its volumes then restart their grace period, which is safe.
    let mut hasher = DefaultHasher::new();
    (&status.volume, &status.owner, &status.published_node_ids).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
