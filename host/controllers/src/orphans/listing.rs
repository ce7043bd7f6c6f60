//! A driver's volumes, page by page, and what is remembered of those whose driver does not tell when they
//! changed.

use std::{
    collections::{HashMap, HashSet, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    time::Duration,
};

use cofferdam_backend::{Backend, Call};
use cofferdam_domain::{
    VolumeHandle,
    storage::{PageRequest, VolumeStatus},
};
use jiff::Timestamp;
use tokio::time::Instant;

use super::{report::ScanReport, rules::LastChange};

/// Volumes per page: at a KiB each, far below what one call may return.
const PAGE: u32 = 500;
/// Pages of one listing: a million volumes. A driver that goes on after that does not know its end.
const MAX_PAGES: usize = 2_000;
/// How long one listing may take: half of the time to the next by default.
const MAX_LISTING_TIME: Duration = Duration::from_secs(1_800);
/// Volumes that are remembered with the time since when they have not changed; others stay young.
const MAX_OBSERVATIONS: usize = 50_000;

/// A listing under way.
pub(crate) struct VolumePages<'a> {
    backend: &'a dyn Backend,
    timeout: Duration,
    deadline: Instant,
    next_token: Option<String>,
    limit: Option<u32>,
    pages: usize,
    ended: bool,
}

impl<'a> VolumePages<'a> {
    /// From the beginning; one call takes at most `timeout`.
    pub(crate) fn new(backend: &'a dyn Backend, timeout: Duration) -> Self {
        let until = Instant::now() + MAX_LISTING_TIME;
        Self {
            backend,
            timeout,
            deadline: until,
            next_token: None,
            limit: Some(PAGE),
            pages: 0,
            ended: false,
        }
    }

    /// The same in pages of so many volumes; absent leaves it to the driver.
    pub(crate) fn with_limit(self, limit: Option<u32>) -> Self {
        Self { limit, ..self }
    }

    /// The next page; absent at the end.
    ///
    /// # Errors
    /// A sentence for people: the driver's own error, or that the listing does not end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<VolumeStatus>>, String> {
        if self.ended {
            return Ok(None);
        }
        if self.pages == MAX_PAGES {
            return Err(format!("the listing has not ended after {MAX_PAGES} pages"));
        }
        self.pages += 1;
        let request = PageRequest { starting_token: self.next_token.take(), max_entries: self.limit };
        let call = self.backend.list_volumes(Call::with_deadline(self.timeout), request);
        let page = tokio::time::timeout_at(self.deadline, call)
            .await
            .map_err(|_| format!("the listing has not ended within {MAX_LISTING_TIME:?}"))?
            .map_err(|error| error.to_string())?;
        self.ended = page.next_token.is_none();
        self.next_token = page.next_token;
        Ok(Some(page.volumes))
    }
}

struct Observation {
    state: String,
    since: Timestamp,
    /// How long the volume had not changed at `at`.
    age: Duration,
    observed_at: Instant,
}

/// Since when volumes have not changed, by the eyes of this process and of those before it.
#[derive(Default)]
pub(super) struct ObservationHistory(HashMap<VolumeHandle, Observation>);

impl ObservationHistory {
    /// What the processes before this one have seen.
    pub(super) fn restore(&mut self, report: &ScanReport, now: Timestamp) {
        for orphan in report.orphans.iter().chain(&report.within_grace_period) {
            let Some(state) = orphan.state.clone() else { continue };
            let age = Duration::try_from(now.duration_since(orphan.since)).unwrap_or_default();
            let observation =
                Observation { state, since: orphan.since.min(now), age, observed_at: Instant::now() };
            self.0.insert(orphan.handle.clone(), observation);
        }
    }

    /// Since when the volume is as it is; from now on, where it is seen first or has changed.
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

    /// Forgets all others: a complete listing did not show them.
    pub(super) fn retain(&mut self, listed: &HashSet<VolumeHandle>) {
        self.0.retain(|handle, _| listed.contains(handle));
    }
}

/// A digest of everything about a volume that changes with its use; its health does not.
pub(super) fn state_digest(status: &VolumeStatus) -> String {
    // Another build may hash otherwise: then its volumes are young once more, which costs a day and no data.
    let mut hasher = DefaultHasher::new();
    (&status.volume, &status.owner, &status.published_node_ids).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
