//! The lines that another process appends to a file.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    mem,
    path::PathBuf,
};

use anyhow::{Context as _, Result, ensure};

/// A file, and how far it was read.
#[derive(Debug)]
pub(crate) struct LineTail {
    path: PathBuf,
    /// Offset of the first byte that was not read.
    offset: u64,
    /// True if the bytes to the next line break belong to an earlier line.
    is_in_line: bool,
}

impl LineTail {
    /// Starts with the first line.
    pub(crate) const fn from_start(path: PathBuf) -> Self {
        Self { path, offset: 0, is_in_line: false }
    }

    /// Starts after the lines that have begun.
    ///
    /// # Errors
    /// If the file does not exist.
    pub(crate) fn from_end(path: PathBuf) -> Result<Self> {
        let length = fs::metadata(&path).with_context(|| path.display().to_string())?.len();
        // The last byte is a line break unless a line is being written.
        Ok(Self { path, offset: length.saturating_sub(1), is_in_line: length > 0 })
    }

    /// The complete lines since the last call.
    ///
    /// # Errors
    /// If the file cannot be read or has shrunk, or the lines are not UTF-8.
    pub(crate) fn read(&mut self) -> Result<String> {
        let mut file = File::open(&self.path).with_context(|| self.path.display().to_string())?;
        ensure!(file.metadata()?.len() >= self.offset, "{} has shrunk", self.path.display());
        file.seek(SeekFrom::Start(self.offset))?;
        let mut new = Vec::new();
        file.read_to_end(&mut new)?;
        let Some(end) = new.iter().rposition(|byte| *byte == b'\n') else { return Ok(String::new()) };
        new.truncate(end + 1);
        self.offset += u64::try_from(new.len())?;
        if mem::take(&mut self.is_in_line) {
            let rest = new.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            new.drain(..rest);
        }
        String::from_utf8(new).with_context(|| self.path.display().to_string())
    }
}
