//! Lists, read page by page.

use std::time::Duration;

use cofferdam_domain::ids::{InvalidResourceVersion, ResourceVersion};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ApiClient, ApiError, ApiResource, Scope};

/// Maximum number of objects of a page, as in client-go.
const MAX_PAGE_OBJECTS: u32 = 500;
/// A page of at most this fraction of the maximum size lets the next page have twice as many objects.
const GROWTH_DIVISOR: usize = 4;

/// The requests of one list. A page that exceeds [`ApiClient::max_page_bytes`] is requested again with half
/// as many objects, so that the size of a list's objects can neither fail the list nor take much memory.
pub(crate) struct PageRequests<'a> {
    api: &'a ApiClient,
    resource: ApiResource,
    scope: &'a Scope,
    /// Names the collection in errors.
    target: &'a str,
    /// Timeout of one page.
    timeout: Duration,
    /// Maximum number of objects of the next page.
    page_objects: u32,
    /// Token of the next page; `None` for the first page.
    continue_token: Option<String>,
}

impl<'a> PageRequests<'a> {
    pub(crate) const fn new(
        api: &'a ApiClient,
        resource: ApiResource,
        scope: &'a Scope,
        target: &'a str,
        timeout: Duration,
    ) -> Self {
        let page_objects = MAX_PAGE_OBJECTS;
        Self { api, resource, scope, target, timeout, page_objects, continue_token: None }
    }

    /// Reads the body of the next page.
    ///
    /// # Errors
    /// [`ApiError`]; [`ApiError::InvalidResponse`] if a single object exceeds the maximum size of a page.
    pub(crate) async fn read_next(&mut self) -> Result<Vec<u8>, ApiError> {
        let kind = self.resource.kind;
        let max_bytes = self.api.max_page_bytes();
        loop {
            let limit = self.page_objects.to_string();
            let token = self.continue_token.as_deref().map(|token| ("continue", token));
            let path = self.scope.path(self.resource, [("limit", limit.as_str())].into_iter().chain(token));
            if let Some(body) = self.api.read_page(&path, self.target, self.timeout).await? {
                if body.len() <= max_bytes / GROWTH_DIVISOR {
                    self.page_objects = self.page_objects.saturating_mul(2).min(MAX_PAGE_OBJECTS);
                }
                return Ok(body);
            }
            if self.page_objects <= 1 {
                let message = format!("a {kind} has more than {max_bytes} bytes, the maximum of a list page");
                return Err(ApiError::invalid_response(self.target, message));
            }
            self.page_objects /= 2;
            tracing::debug!(
                kind,
                "a list page has more than {max_bytes} bytes; requesting {} objects",
                self.page_objects
            );
        }
    }

    /// Decodes a page, and remembers the token of the page after it.
    ///
    /// # Errors
    /// [`ApiError::InvalidResponse`]
    pub(crate) fn decode<'b>(&mut self, body: &'b [u8]) -> Result<ListPage<'b>, ApiError> {
        let mut page: ListPage<'b> =
            serde_json::from_slice(body).map_err(|error| ApiError::invalid_response(self.target, error))?;
        self.continue_token = page.take_continue_token();
        Ok(page)
    }

    /// Returns `true` after a page that is not the last one.
    pub(crate) const fn has_next(&self) -> bool {
        self.continue_token.is_some()
    }

    /// Starts again with the first page.
    pub(crate) fn restart(&mut self) {
        self.continue_token = None;
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

/// One page of a list. A bookmark object decodes as a page without items.
#[derive(Deserialize)]
pub(crate) struct ListPage<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

impl<'a> ListPage<'a> {
    /// `metadata.resourceVersion`
    ///
    /// # Errors
    /// [`InvalidResourceVersion`] unless it is a decimal number.
    pub(crate) fn version(&self) -> Result<ResourceVersion, InvalidResourceVersion> {
        self.metadata.resource_version.parse()
    }

    /// Token of the next page; `None` on the last page.
    fn take_continue_token(&mut self) -> Option<String> {
        self.metadata.continue_token.take().filter(|token| !token.is_empty())
    }

    /// The objects of this page.
    pub(crate) fn items(self) -> impl Iterator<Item = &'a RawValue> {
        self.items.into_iter().flatten()
    }
}
