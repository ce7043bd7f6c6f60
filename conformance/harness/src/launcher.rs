//! Starts a suite in Linux namespaces of its own, stops it, and checks that nothing of it is left after the
//! clean-up by process 1 of the namespaces.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader},
    process::Command,
    signal::unix::{SignalKind, signal},
};

use crate::{leftovers, peers::PeerPrograms, print_status, run};

/// Result of a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuiteOutcome {
    /// The suite passed.
    Passed,
    /// The process of the suite exited with an error, panicked or was killed. Or `unshare` could not create
    /// the namespaces. Or process 1 of the namespaces was killed, could not set up the mounts or start the
    /// suite, or could not clean up.
    Failed,
    /// The suite exceeded its time limit.
    TimedOut,
    /// The harness received SIGINT or SIGTERM.
    Interrupted,
}

/// Output of a suite on the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuiteOutput {
    /// As the suite prints it.
    Unchanged,
    /// Each line starts with the suite's name, because another suite runs at the same time.
    Prefixed,
}

/// Checks that the user is root, and that a run's mounts do not hide `directory`, which gets the run's logs.
/// Does not check other requirements, such as installed programs.
///
/// # Errors
/// If the user is not root, or `directory` is below one that a run mounts over.
pub fn check_requirements(directory: &Path) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "not root: kubelet, mounts and namespaces require it");
    for hidden in ["/run", "/var/run", "/var/lib", "/var/log"] {
        ensure!(
            !directory.starts_with(hidden),
            "{} is below {hidden}, which a run mounts over: expected another TMPDIR",
            directory.display()
        );
    }
    Ok(())
}

/// Locks a directory of runs until the returned file is closed, at the latest when the harness exits. Two
/// harnesses at the same time would disturb each other: pods of both have the same addresses, and the suite
/// `cleanup` removes the loop devices and cgroups of other runs.
///
/// # Errors
/// If another harness has locked it, or the lock file cannot be created or locked.
pub fn lock(directory: &Path) -> Result<File> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let path = directory.join("lock");
    let file = File::options().create(true).append(true).open(&path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("another harness runs: it has locked {}", path.display())
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// Runs one suite in namespaces of its own, with logs in `directory`. After `limit` the suite is terminated.
/// `lane` is the number of the lane that runs it: suites of different lanes may run at the same time.
///
/// # Errors
/// If `directory` cannot be created, `unshare` cannot be started, or a loop device, cgroup or mount of the
/// suite is left after the clean-up by process 1 of the namespaces.
pub async fn run(
    suite: &str,
    directory: &Path,
    peers: &PeerPrograms,
    limit: Duration,
    lane: u16,
    output: SuiteOutput,
) -> Result<SuiteOutcome> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let harness = std::process::id();
    let name = leftovers::run_name(harness, suite);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stream = || match output {
        SuiteOutput::Unchanged => Stdio::inherit(),
        SuiteOutput::Prefixed => Stdio::piped(),
    };
    let mut child = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(std::env::current_exe()?)
        .args(["init", suite, "--scratch"])
        .arg(Path::new("/run").join(&name))
        .arg("--directory")
        .arg(directory)
        .arg("--peers")
        .arg(peers.directory())
        .arg("--first-port")
        .arg(run::first_port(harness, lane).to_string())
        // Process 1 of the namespace terminates when its standard input is closed, also if the harness is
        // killed.
        .stdin(Stdio::piped())
        .stdout(stream())
        .stderr(stream())
        .spawn()
        .context("cannot start unshare of util-linux")?;
    let stdin = child.stdin.take();
    let copies = [
        child.stdout.take().map(|stdout| tokio::spawn(print_prefixed(suite.to_owned(), stdout))),
        child.stderr.take().map(|stderr| tokio::spawn(print_prefixed(suite.to_owned(), stderr))),
    ];
    let outcome = tokio::select! {
        status = child.wait() => suite_outcome(status?),
        () = tokio::time::sleep(limit) => SuiteOutcome::TimedOut,
        _ = terminate.recv() => SuiteOutcome::Interrupted,
        _ = interrupt.recv() => SuiteOutcome::Interrupted,
    };
    drop(stdin);
    child.wait().await?;
    // The streams end with the last process of the namespace.
    for copy in copies.into_iter().flatten() {
        copy.await?;
    }
    leftovers::check(&name)?;
    Ok(outcome)
}

/// Prints each line of a suite's output after the suite's name.
async fn print_prefixed(suite: String, stream: impl AsyncRead + Unpin) {
    let mut lines = BufReader::new(stream).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        print_status(format_args!("{suite}: {}", line.trim_start()));
    }
}

fn suite_outcome(status: ExitStatus) -> SuiteOutcome {
    if status.success() { SuiteOutcome::Passed } else { SuiteOutcome::Failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_harness_is_rejected_until_the_first_one_ends() {
        let directory = tempfile::tempdir().unwrap();
        let first = lock(directory.path()).unwrap();
        let error = format!("{:#}", lock(directory.path()).unwrap_err());
        assert!(error.starts_with("another harness runs: "), "{error}");
        drop(first);
        lock(directory.path()).unwrap();
    }
}
