//! A process that a test starts.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read},
    path::PathBuf,
    process::{Child, ChildStderr, ChildStdout, Command, ExitStatus},
    time::{Duration, Instant},
};

/// Time for a process to end.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A process that is killed on drop.
pub(crate) struct Process {
    child: Child,
    /// The file that gets the process's stderr, if it was started with one.
    log: Option<PathBuf>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self { child: command.spawn().unwrap(), log: None }
    }

    /// Starts the process with its stderr in a new file.
    pub(crate) fn start_with_log(command: &mut Command, log: PathBuf) -> Self {
        let stderr = File::create(&log).unwrap();
        Self { child: command.stderr(stderr).spawn().unwrap(), log: Some(log) }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The text that the process has written to its log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log.as_ref().unwrap()).unwrap()
    }

    /// The piped stdout. Closed when the result is dropped.
    pub(crate) fn take_stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().unwrap()
    }

    /// The piped stderr. Closed when the result is dropped.
    pub(crate) fn take_stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().unwrap()
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Sends a signal, and waits for the end of the process.
    pub(crate) async fn end_with(&mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        self.wait().await
    }

    /// Waits for the end of the process. Tasks of the test, such as its API server, run meanwhile.
    pub(crate) async fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < TIMEOUT, "process {} still runs after {TIMEOUT:?}", self.id());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// As [`Process::wait`], in a test without tasks.
    pub(crate) fn wait_blocking(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a process's output, as they arrive.
pub(crate) fn lines(output: impl Read) -> impl Iterator<Item = String> {
    BufReader::new(output).lines().map(Result::unwrap)
}
