//! The calls that a driver has received, from a file that it writes.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// The path of a file of JSON lines. A call has one line at least.
pub(super) struct CallLog(PathBuf);

#[derive(Deserialize)]
struct CallRecord {
    method: String,
}

impl CallLog {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The methods of all lines so far, without their service.
    ///
    /// # Errors
    /// If the file cannot be read, or a complete line is not the JSON object of a call.
    pub(super) fn methods(&self) -> Result<Vec<String>> {
        let path = self.0.display();
        let text = fs::read_to_string(&self.0).with_context(|| format!("no calls in {path}"))?;
        // The driver may be writing the last line.
        let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
        let records = complete.lines().map(|line| {
            let CallRecord { method } =
                serde_json::from_str(line).with_context(|| format!("{path}: {line}"))?;
            Ok(method)
        });
        records.collect()
    }
}
