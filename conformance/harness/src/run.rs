//! One run of one suite: its directory, its room for what does not outlive it, its ports.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result, bail};

use crate::{peers::PeerPrograms, print_status};

/// How often a port that was given before may come again before we give up.
const PORT_ATTEMPTS: usize = 100;

/// Where a run keeps what its suite tells.
pub(crate) fn notes_file(directory: &Path) -> PathBuf {
    directory.join("told.txt")
}

/// Where a run keeps why its suite failed.
pub(crate) fn failure_file(directory: &Path) -> PathBuf {
    directory.join("failure.txt")
}

/// What every part of a suite is started with.
#[derive(Debug)]
pub struct SuiteRun {
    directory: PathBuf,
    scratch: PathBuf,
    peers: PeerPrograms,
    program: PathBuf,
    ports: Arc<Mutex<BTreeSet<u16>>>,
}

impl SuiteRun {
    /// A run that keeps its logs in `directory`, and in `scratch` what only [`crate::inside`]'s namespaces
    /// see.
    ///
    /// # Errors
    /// When the program `cofferdam` has not been built beside this one.
    pub fn new(directory: PathBuf, scratch: PathBuf, peers: PeerPrograms) -> Result<Self> {
        fs::create_dir_all(directory.join("logs"))?;
        fs::create_dir_all(&scratch)?;
        let program = std::env::current_exe()?.with_file_name("cofferdam");
        if !program.exists() {
            bail!("cofferdam has not been built: expected {}; run `cargo build`", program.display());
        }
        Ok(Self { directory, scratch, peers, program, ports: Arc::default() })
    }

    /// A part of it, with logs and files of its own: for a suite that has the same program more than once.
    ///
    /// # Errors
    /// When its directories cannot be made.
    pub fn subdirectory(&self, name: &str) -> Result<Self> {
        let (directory, scratch) = (self.directory.join(name), self.scratch.join(name));
        fs::create_dir_all(directory.join("logs"))?;
        fs::create_dir_all(&scratch)?;
        let (peers, program) = (self.peers.clone(), self.program.clone());
        Ok(Self { directory, scratch, peers, program, ports: Arc::clone(&self.ports) })
    }

    /// Where what is kept goes: logs, kubeconfigs.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where what is not kept goes: in memory, and gone with the run.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// The log of a program.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.directory.join("logs").join(format!("{name}.log"))
    }

    /// Says what was seen or measured: it becomes a part of the results.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn add_note(&self, line: &str) -> Result<()> {
        print_status(format_args!("  {line}"));
        let mut notes = fs::OpenOptions::new().append(true).create(true).open(notes_file(&self.directory))?;
        Ok(writeln!(notes, "{line}")?)
    }

    /// The programs of others.
    #[must_use]
    pub const fn peers(&self) -> &PeerPrograms {
        &self.peers
    }

    /// Our program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A port of loopback that nobody has, and that this run has not given before.
    ///
    /// # Errors
    /// When there is none.
    pub fn free_port(&self) -> Result<u16> {
        for _ in 0..PORT_ATTEMPTS {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
            let port = listener.local_addr()?.port();
            if self.ports.lock().unwrap_or_else(PoisonError::into_inner).insert(port) {
                return Ok(port);
            }
        }
        bail!("no port of loopback that was not given before")
    }
}
