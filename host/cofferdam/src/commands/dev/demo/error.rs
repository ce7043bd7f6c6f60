//! Errors of the demo.

use std::{io, path::PathBuf};

use cofferdam_domain::storage::StorageError;

use crate::{error::CommandError, wait::WaitTimeout};

/// The first step of the demo that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("the demo failed: {action}: {source}")]
    Request { action: &'static str, source: kube::Error },
    #[error("the demo failed: cannot create its {kind}: {source}")]
    Manifest { kind: &'static str, source: serde_json::Error },
    #[error("the demo failed: {0}")]
    WaitTimeout(#[from] WaitTimeout),
    #[error("the demo failed: {subject} is {found}: expected {expected}")]
    Mismatch { subject: &'static str, found: String, expected: String },
    #[error("the demo failed: the driver's {call}: {source}")]
    Driver { call: &'static str, source: StorageError },
    #[error("the demo failed: cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
}

impl From<DemoError> for CommandError {
    fn from(error: DemoError) -> Self {
        Self::Other(Box::new(error))
    }
}
