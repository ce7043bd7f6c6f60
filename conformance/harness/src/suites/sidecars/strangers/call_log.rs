//! The methods of the calls that a driver has received.

use std::{cell::RefCell, path::PathBuf};

use anyhow::Result;

use crate::suites::sidecars::call_log::RecordReader;

/// The methods in the call log of a driver.
pub(super) struct CallLog {
    reader: RefCell<RecordReader>,
    /// Methods of the part of the file that was read.
    methods: RefCell<Vec<String>>,
}

impl CallLog {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { reader: RefCell::new(RecordReader::new(path)), methods: RefCell::new(Vec::new()) }
    }

    /// The methods of all calls that have begun so far, in the order of their starts.
    ///
    /// # Errors
    /// If the file cannot be read, or a complete line is not a record.
    pub(super) fn methods(&self) -> Result<Vec<String>> {
        let starts = self.reader.borrow_mut().read()?.into_iter().filter(|record| !record.is_end);
        let mut methods = self.methods.borrow_mut();
        methods.extend(starts.map(|record| record.method));
        Ok(methods.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_calls_are_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("calls.jsonl");
        let log = CallLog::new(path.clone());
        log.methods().unwrap_err();
        let probe = "{\"method\":\"Probe\"}\n{\"method\":\"Probe\",\"isEnd\":true}\n";
        std::fs::write(&path, format!("{probe}{{\"method\":")).unwrap();
        assert_eq!(log.methods().unwrap(), ["Probe"]);
        std::fs::write(&path, format!("{probe}{{\"method\":\"CreateVolume\"}}\n")).unwrap();
        assert_eq!(log.methods().unwrap(), ["Probe", "CreateVolume"]);
    }
}
