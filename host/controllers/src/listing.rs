//! Lists a driver's volumes or snapshots page by page.

use std::time::Duration;

use cofferdam_backend::{Backend, BackendFuture, Call};
use cofferdam_domain::storage::{PageRequest, Snapshot, StorageError, VolumeStatus};
use tokio::time::Instant;

/// Default maximum number of entries per page. At 1 KiB each, a page is far below the size limit of a
/// response.
const PAGE: u32 = 500;
/// Maximum pages of one listing: one million entries with [`PAGE`] entries each. It ends a listing whose
/// driver always returns a next token.
const MAX_PAGES: usize = 2_000;
/// Maximum duration of one listing, over all its pages: half of the default interval of the orphan scan.
const MAX_LISTING_TIME: Duration = Duration::from_secs(1_800);

/// The reason why a listing failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListingError {
    #[error("the listing has not ended after {MAX_PAGES} pages")]
    TooManyPages,
    #[error("the listing has not ended within {MAX_LISTING_TIME:?}")]
    Timeout,
    #[error(transparent)]
    Driver(#[from] StorageError),
}

/// One page of a listing.
pub(crate) struct Page<T> {
    entries: Vec<T>,
    /// Token of the next page; `None` on the last page.
    next_token: Option<String>,
}

/// An entry of a listing.
pub(crate) trait Listed: Sized {
    /// Lists one page.
    fn list(backend: &dyn Backend, call: Call, request: PageRequest) -> BackendFuture<'_, Page<Self>>;
}

impl Listed for VolumeStatus {
    fn list(backend: &dyn Backend, call: Call, request: PageRequest) -> BackendFuture<'_, Page<Self>> {
        let page = backend.list_volumes(call, request);
        Box::pin(async move {
            let page = page.await?;
            Ok(Page { entries: page.volumes, next_token: page.next_token })
        })
    }
}

impl Listed for Snapshot {
    fn list(backend: &dyn Backend, call: Call, request: PageRequest) -> BackendFuture<'_, Page<Self>> {
        let page = backend.list_snapshots(call, None, request);
        Box::pin(async move {
            let page = page.await?;
            Ok(Page { entries: page.snapshots, next_token: page.next_token })
        })
    }
}

/// A sequence of `ListVolumes` calls.
pub(crate) type VolumePages<'a> = Pages<'a, VolumeStatus>;
/// A sequence of `ListSnapshots` calls.
pub(crate) type SnapshotPages<'a> = Pages<'a, Snapshot>;

/// A sequence of calls that list all entries of a kind.
pub(crate) struct Pages<'a, T> {
    backend: &'a dyn Backend,
    call: Call,
    deadline: Instant,
    next_token: Option<String>,
    limit: Option<u32>,
    pages: usize,
    ended: bool,
    entries: std::marker::PhantomData<fn() -> T>,
}

impl<'a, T: Listed> Pages<'a, T> {
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
            entries: std::marker::PhantomData,
        }
    }

    /// Sets the maximum number of entries per page. With `None` the driver chooses it.
    pub(crate) fn with_limit(self, limit: Option<u32>) -> Self {
        Self { limit, ..self }
    }

    /// Returns the next page, or `None` at the end.
    ///
    /// # Errors
    /// The driver failed, or the listing exceeded [`MAX_PAGES`] or [`MAX_LISTING_TIME`].
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<T>>, ListingError> {
        if self.ended {
            return Ok(None);
        }
        if self.pages == MAX_PAGES {
            return Err(ListingError::TooManyPages);
        }
        self.pages += 1;
        let request = PageRequest { starting_token: self.next_token.take(), max_entries: self.limit };
        let call = T::list(self.backend, self.call.clone(), request);
        let page =
            tokio::time::timeout_at(self.deadline, call).await.map_err(|_| ListingError::Timeout)??;
        self.ended = page.next_token.is_none();
        self.next_token = page.next_token;
        Ok(Some(page.entries))
    }
}
