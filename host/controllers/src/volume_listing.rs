//! Lists a driver's volumes page by page.

use std::time::Duration;

use cofferdam_backend::{Backend, Call};
use cofferdam_domain::storage::{PageRequest, StorageError, VolumeStatus};
use tokio::time::Instant;

/// Default maximum number of volumes per page. At 1 KiB each, a page is far below the size limit of a
/// response.
const PAGE: u32 = 500;
/// Maximum pages of one listing: one million volumes with [`PAGE`] volumes each. It ends a listing whose
/// driver always returns a next token.
const MAX_PAGES: usize = 2_000;
/// Maximum duration of one listing, over all its pages: half of the default interval of the orphan scan.
const MAX_LISTING_TIME: Duration = Duration::from_secs(1_800);

/// The reason why a listing of volumes failed.
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
    call: Call,
    deadline: Instant,
    next_token: Option<String>,
    limit: Option<u32>,
    pages: usize,
    ended: bool,
}

impl<'a> VolumePages<'a> {
    /// Starts at the first page. Each call has the options of `call`.
    pub(crate) fn new(backend: &'a dyn Backend, call: Call) -> Self {
        Self {
            backend,
            call,
            deadline: Instant::now() + MAX_LISTING_TIME,
            next_token: None,
            limit: Some(PAGE),
            pages: 0,
            ended: false,
        }
    }

    /// Sets the maximum number of volumes per page. With `None` the driver chooses it.
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
        let call = self.backend.list_volumes(self.call.clone(), request);
        let page =
            tokio::time::timeout_at(self.deadline, call).await.map_err(|_| ListingError::Timeout)??;
        self.ended = page.next_token.is_none();
        self.next_token = page.next_token;
        Ok(Some(page.volumes))
    }
}
