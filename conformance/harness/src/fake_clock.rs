//! The wall clock of one process, shifted by libfaketime (Debian's `faketime`). CLOCK_MONOTONIC is not
//! shifted, as on a machine whose clock is set. Programs that do not read the clock through libc, such as
//! those of Go, see the real time.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::run::SuiteRun;

const LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];

/// The clock of the processes that are started with its [variables](Self::variables).
pub(crate) struct FakeClock {
    library: &'static str,
    file: PathBuf,
}

impl FakeClock {
    /// A clock that shows the real time. `name` is the name of its file in the run's scratch directory.
    ///
    /// # Errors
    /// If libfaketime is not installed, or the file cannot be written.
    pub(crate) fn new(run: &SuiteRun, name: &str) -> Result<Self> {
        let library = LIBRARIES
            .into_iter()
            .find(|library| Path::new(library).exists())
            .context("no libfaketime: expected Debian's package `faketime`, as `make peers` installs it")?;
        let clock = Self { library, file: run.scratch().join(name) };
        clock.set("+0")?;
        Ok(clock)
    }

    /// Environment variables of a process with this clock.
    pub(crate) fn variables(&self) -> [(&'static str, String); 4] {
        [
            ("LD_PRELOAD", self.library.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// Sets the offset from the real time in libfaketime's format, such as `+3d`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn set(&self, offset: &str) -> Result<()> {
        // The process reads the file at any time, and must not see it empty.
        let new = self.file.with_extension("new");
        fs::write(&new, offset)?;
        Ok(fs::rename(new, &self.file)?)
    }
}
