//! One page of a list response.

use cofferdam_domain::ids::{InvalidResourceVersion, ResourceVersion};
use serde::Deserialize;
use serde_json::value::RawValue;

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
    pub(crate) fn take_continue_token(&mut self) -> Option<String> {
        self.metadata.continue_token.take().filter(|token| !token.is_empty())
    }

    /// The objects of this page.
    pub(crate) fn items(self) -> impl Iterator<Item = &'a RawValue> {
        self.items.into_iter().flatten()
    }
}
