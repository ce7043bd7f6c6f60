//! One run of one suite: its directories, programs and ports.

use std::{
    fs,
    io::Write as _,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use anyhow::{Result, bail};

use crate::{peers::PeerPrograms, print_status};

/// The lowest port of all runs. All ports of runs are below 30000, and so outside of the range from which
/// Linux takes the local ports of outgoing connections (32768 to 60999 by default). A connection may take a
/// port of that range between the choice of the port and the start, or restart, of the server on this port.
const FIRST_PORT: u16 = 10_000;
/// Number of ports of one suite.
const PORTS_PER_SUITE: u16 = 2_000;
/// Maximum suites that one harness runs at the same time.
pub(crate) const MAX_PARALLEL_SUITES: u16 = 2;
/// Number of port ranges for harnesses, which are processes of the program `conformance`. A harness uses the
/// range with the number "process ID modulo this constant". Two harnesses may use the same range, so each
/// port is also checked to be free.
const HARNESSES: u32 = 5;

/// The first port of a suite. `harness` is the process ID of the harness that starts the suite, and `lane` is
/// the number of the suite's lane, from 0.
pub(crate) fn first_port(harness: u32, lane: u16) -> u16 {
    let harness = u16::try_from(harness % HARNESSES).unwrap_or_default();
    FIRST_PORT + (harness * MAX_PARALLEL_SUITES + lane % MAX_PARALLEL_SUITES) * PORTS_PER_SUITE
}

/// File of the notes that a suite adds to the results.
pub(crate) fn notes_file(directory: &Path) -> PathBuf {
    directory.join("notes.txt")
}

/// File of the reason why a suite failed, in the suite's directory. Missing if the suite passed, could not be
/// set up, panicked or was killed.
pub(crate) fn failure_file(directory: &Path) -> PathBuf {
    directory.join("failure.txt")
}

/// File of the log of a program in the suite's directory.
pub(crate) fn log_file(directory: &Path, name: &str) -> PathBuf {
    directory.join("logs").join(format!("{name}.log"))
}

/// Environment of a running suite: directories, programs and ports.
#[derive(Debug)]
pub struct SuiteRun {
    directory: PathBuf,
    scratch: PathBuf,
    peers: PeerPrograms,
    program: PathBuf,
    /// The first port of the range, and the number of ports tried so far.
    ports: (u16, Arc<AtomicU16>),
}

impl SuiteRun {
    /// A run with its logs in `directory` and its temporary files in `scratch`, which only processes of the
    /// run's namespaces see. Its ports start at `first_port`.
    ///
    /// # Errors
    /// If a directory cannot be created, or the program `cofferdam` has not been built next to this program.
    pub fn new(directory: PathBuf, scratch: PathBuf, peers: PeerPrograms, first_port: u16) -> Result<Self> {
        fs::create_dir_all(directory.join("logs"))?;
        fs::create_dir_all(&scratch)?;
        let program = std::env::current_exe()?.with_file_name("cofferdam");
        if !program.exists() {
            bail!("cofferdam has not been built: expected {}; run `cargo build`", program.display());
        }
        Ok(Self { directory, scratch, peers, program, ports: (first_port, Arc::default()) })
    }

    /// The same run with subdirectories for logs and files, for a suite that starts a program more than once.
    /// The returned run shares its range of ports with this one. Notes that are added to the returned run are
    /// printed, but are not part of the results.
    ///
    /// # Errors
    /// If the directories cannot be created.
    pub fn subdirectory(&self, name: &str) -> Result<Self> {
        let (directory, scratch) = (self.directory.join(name), self.scratch.join(name));
        fs::create_dir_all(directory.join("logs"))?;
        fs::create_dir_all(&scratch)?;
        let (peers, program) = (self.peers.clone(), self.program.clone());
        Ok(Self { directory, scratch, peers, program, ports: (self.ports.0, Arc::clone(&self.ports.1)) })
    }

    /// The directory of logs, notes and the administrator's kubeconfig. It is kept after the run.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directory of temporary files, in memory. It is removed with the run.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// The log file of a program, or the API server's `audit` log.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        log_file(&self.directory, name)
    }

    /// Prints a measurement or observation and adds it to the results, except on a
    /// [`subdirectory`](Self::subdirectory).
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add_note(&self, line: &str) -> Result<()> {
        print_status(format_args!("  {line}"));
        let mut notes = fs::OpenOptions::new().append(true).create(true).open(notes_file(&self.directory))?;
        Ok(writeln!(notes, "{line}")?)
    }

    /// The upstream programs.
    #[must_use]
    pub const fn peers(&self) -> &PeerPrograms {
        &self.peers
    }

    /// The program `cofferdam`.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A free port that neither this run nor one of its subdirectories has returned before.
    ///
    /// # Errors
    /// If no port of the run's range is left.
    pub fn free_port(&self) -> Result<u16> {
        let (first, used) = &self.ports;
        loop {
            let number = used.fetch_add(1, Ordering::Relaxed);
            if number >= PORTS_PER_SUITE {
                bail!("no free port from {first} to {}", first + PORTS_PER_SUITE - 1);
            }
            let port = first + number;
            // kubelet listens on every address.
            if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
                return Ok(port);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_that_run_at_the_same_time_have_different_ports() {
        let mut first_ports: Vec<u16> = (0..HARNESSES)
            .flat_map(|harness| (0..MAX_PARALLEL_SUITES).map(move |lane| first_port(harness, lane)))
            .collect();
        first_ports.sort_unstable();
        assert!(first_ports.windows(2).all(|pair| pair[1] - pair[0] >= PORTS_PER_SUITE), "{first_ports:?}");
        assert_eq!(first_ports.first(), Some(&FIRST_PORT));
        assert!(first_ports.last().is_some_and(|last| last + PORTS_PER_SUITE <= 30_000), "{first_ports:?}");
    }
}
