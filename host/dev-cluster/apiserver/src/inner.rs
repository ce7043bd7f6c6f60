//! State of the API server.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::random::Random;
use crate::store::Store;

/// State that all requests to one API server share.
pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub(crate) bookmark_interval: Duration,
    pub(crate) body_limit: usize,
    pub(crate) random: Random,
}

impl Inner {
    pub(crate) fn uid(&self) -> String {
        self.random.uid()
    }

    pub(crate) fn name_suffix(&self) -> String {
        self.random.name_suffix()
    }
}
