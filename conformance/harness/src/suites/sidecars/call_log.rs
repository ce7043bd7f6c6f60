//! The file to which a driver appends the calls that it receives.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::line_tail::LineTail;

/// A line of the file: the start or the end of a call. The Go driver writes all fields. Other drivers may
/// write `method` only, at the start.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// Number of the call in the order of the starts.
    #[serde(default)]
    pub(super) number: usize,
    #[serde(default)]
    pub(super) is_end: bool,
    /// The socket that received the call.
    #[serde(default)]
    pub(super) socket: String,
    /// The method without its service.
    pub(super) method: String,
    /// The volume, by name in CreateVolume and by id in other methods.
    #[serde(default)]
    pub(super) volume: String,
    /// Nanoseconds since 1970.
    #[serde(default)]
    pub(super) at: i128,
}

/// The file, and how far it was read.
#[derive(Debug)]
pub(super) struct RecordReader(LineTail);

impl RecordReader {
    /// Starts with the first line.
    pub(super) const fn new(path: PathBuf) -> Self {
        Self(LineTail::from_start(path))
    }

    /// The records of the complete lines since the last call.
    ///
    /// # Errors
    /// If the file cannot be read, or a line is not a record.
    pub(super) fn read(&mut self) -> Result<Vec<Record>> {
        parse(&self.0.read().context("call log")?)
    }
}

/// The records of complete lines.
///
/// # Errors
/// If a line is not a record.
pub(super) fn parse(text: &str) -> Result<Vec<Record>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| format!("call log: {line}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_the_go_driver_and_of_others_are_read() {
        let text = "{\"number\":7,\"isEnd\":true,\"socket\":\"s\",\"method\":\"Probe\",\"volume\":\"v\",\"at\":2}\n\
                    {\"method\":\"CreateVolume\",\"more\":1}\n";
        let full = Record {
            number: 7,
            is_end: true,
            socket: "s".to_owned(),
            method: "Probe".to_owned(),
            volume: "v".to_owned(),
            at: 2,
        };
        let short = Record {
            number: 0,
            is_end: false,
            socket: String::new(),
            method: "CreateVolume".to_owned(),
            volume: String::new(),
            at: 0,
        };
        assert_eq!(parse(text).unwrap(), [full, short]);
        parse("{}\n").unwrap_err();
    }
}
