//! Observes changes of volumes and snapshots of which the driver reports no change times.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use cofferdam_domain::ResourceHandle;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::{
    report::ScanReport,
    resource::Resource,
    rules::{GRACE_PERIOD, LastChange},
};

/// Maximum observed volumes of a driver, or snapshots. Further ones stay within the grace period.
const MAX_OBSERVATIONS: usize = 50_000;

struct Observation {
    state: String,
    since: Timestamp,
    /// Time since the last change, at `observed_at`.
    age: Duration,
    observed_at: Instant,
}

/// Last changes of a driver's volumes or snapshots, observed by this process and, through the report, by
/// earlier ones.
#[derive(Default)]
pub(super) struct ObservationHistory(HashMap<ResourceHandle, Observation>);

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

    /// Adds the volume or snapshot of a deletion that has started, unless it is known. It was an orphan when
    /// the deletion started, and later reports, from which this process restores its observations, do not
    /// list it.
    pub(super) fn restore_started(&mut self, resource: &Resource, now: Timestamp) {
        let since = now - SignedDuration::try_from(GRACE_PERIOD).unwrap_or(SignedDuration::ZERO);
        self.0.entry(resource.handle()).or_insert_with(|| Observation {
            state: resource.state_digest(),
            since,
            age: GRACE_PERIOD,
            observed_at: Instant::now(),
        });
    }

    /// Returns the last change of a volume or snapshot. A new or changed one gets the time `now`.
    pub(super) fn observe(&mut self, resource: &Resource, now: Timestamp) -> LastChange {
        let (state, handle) = (resource.state_digest(), resource.handle());
        if let Some(observation) = self.0.get(&handle).filter(|observation| observation.state == state) {
            return LastChange {
                since: observation.since,
                age: observation.age + observation.observed_at.elapsed(),
            };
        }
        if self.0.len() < MAX_OBSERVATIONS || self.0.contains_key(&handle) {
            let observation =
                Observation { state, since: now, age: Duration::ZERO, observed_at: Instant::now() };
            self.0.insert(handle, observation);
        }
        LastChange { since: now, age: Duration::ZERO }
    }

    /// Removes those that are not in `listed`: the volumes or snapshots of a complete listing for which the
    /// driver reports no change time and that are orphans or within the grace period.
    pub(super) fn retain(&mut self, listed: &HashSet<ResourceHandle>) {
        self.0.retain(|handle, _| listed.contains(handle));
    }
}
