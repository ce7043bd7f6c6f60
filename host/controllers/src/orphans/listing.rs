//! Lists a driver's volumes page by page, and observes changes of volumes whose driver reports no change
//! times.

use std::{
    collections::{HashMap, HashSet, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    time::Duration,
};

use cofferdam_backend::{Backend, Call};
use cofferdam_domain::{
    VolumeHandle,
    storage::{PageRequest, StorageError, VolumeStatus},
};
use jiff::Timestamp;
use tokio::time::Instant;

use super::{report::ScanReport, rules::LastChange};

/// Volumes per page. At 1 KiB each, a page is far below the size limit of a response.
const PAGE: u32 = 500;
/// Maximum pages of one listing: one million volumes. It ends a listing whose driver always returns a next
/// token.
const MAX_PAGES: usize = 2_000;
/// Maximum duration of one listing: half of the default scan interval.
const MAX_LISTING_TIME: Duration = Duration::from_secs(1_800);
/// Maximum observed volumes. Further volumes stay within the grace period.
const MAX_OBSERVATIONS: usize = 50_000;

/// A listing of volumes that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListingError {
    #[error("the listing has not ended after {MAX_PAGES} pages")]
    TooManyPages,
    #[error("the listing has not ended within {MAX_LISTING_TIME:?}")]
    Timeout,
    #[error(transparent)]
    Driver(#[from] StorageError),
}

/// A sequence of `ListVolumes` calls.
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
    /// Starts at the first page. Each call has the deadline `timeout`.
    pub(crate) fn new(backend: &'a dyn Backend, timeout: Duration) -> Self {
        Self {
            backend,
            timeout,
            deadline: Instant::now() + MAX_LISTING_TIME,
            next_token: None,
            limit: Some(PAGE),
            pages: 0,
            ended: false,
        }
    }

    /// Sets the page size. Without a size the driver chooses it.
    pub(crate) fn with_limit(self, limit: Option<u32>) -> Self {
        Self { limit, ..self }
    }

    /// Returns the next page, or `None` at the end.
    ///
    /// # Errors
    /// The driver failed, or the listing exceeded [`MAX_PAGES`] or [`MAX_LISTING_TIME`].
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<VolumeStatus>>, ListingError> {
        if self.ended {
            return Ok(None);
        }
        if self.pages == MAX_PAGES {
            return Err(ListingError::TooManyPages);
        }
        self.pages += 1;
        let request = PageRequest { starting_token: self.next_token.take(), max_entries: self.limit };
        let call = self.backend.list_volumes(Call::with_deadline(self.timeout), request);
        let page =
            tokio::time::timeout_at(self.deadline, call).await.map_err(|_| ListingError::Timeout)??;
        self.ended = page.next_token.is_none();
        self.next_token = page.next_token;
        Ok(Some(page.volumes))
    }
}

struct Observation {
    state: String,
    since: Timestamp,
    /// Time since the last change, at `observed_at`.
    age: Duration,
    observed_at: Instant,
}

/// Last changes of volumes, observed by this process and, through the report, by earlier ones.
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

    /// Removes volumes that a complete listing did not contain.
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
