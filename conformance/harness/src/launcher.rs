//! The outer side of a run: starts the namespaces, tells them to end, and looks that nothing is left.

use std::{
    fs,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    process::Command,
    signal::unix::{SignalKind, signal},
};

use crate::{leftovers, peers::PeerPrograms};

/// How a suite ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuiteOutcome {
    /// As it should.
    Passed,
    /// With a failure, which it has printed.
    Failed,
    /// It took longer than it may.
    TimedOut,
    /// Somebody wanted it to end.
    Interrupted,
}

/// Fails where a run is not possible, and says what it needs.
///
/// # Errors
/// When this is not root, or run directories would lie where a run hides the machine's files.
pub fn check_requirements(directory: &Path) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "not root: kubelet, mounts and namespaces need it");
    for hidden in ["/run", "/var/run", "/var/lib", "/var/log"] {
        ensure!(
            !directory.starts_with(hidden),
            "{} is below {hidden}, which a run hides: expected TMPDIR elsewhere",
            directory.display()
        );
    }
    Ok(())
}

/// Runs one suite in namespaces of its own, for at most `limit`.
///
/// # Errors
/// When it cannot be started, or leaves something behind.
pub async fn run(
    suite: &str,
    directory: &Path,
    peers: &PeerPrograms,
    limit: Duration,
) -> Result<SuiteOutcome> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let name = leftovers::run_name();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut child = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(std::env::current_exe()?)
        .args(["inside", suite, "--scratch"])
        .arg(Path::new("/run").join(&name))
        .arg("--directory")
        .arg(directory)
        .arg("--peers")
        .arg(peers.directory())
        // Its end is how the other side learns that we want it to end, or that we are no more.
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot start unshare of util-linux")?;
    let stdin = child.stdin.take();
    let outcome = tokio::select! {
        status = child.wait() => suite_outcome(status?),
        () = tokio::time::sleep(limit) => SuiteOutcome::TimedOut,
        _ = terminate.recv() => SuiteOutcome::Interrupted,
        _ = interrupt.recv() => SuiteOutcome::Interrupted,
    };
    drop(stdin);
    child.wait().await?;
    leftovers::check(&name)?;
    Ok(outcome)
}

fn suite_outcome(status: ExitStatus) -> SuiteOutcome {
    if status.success() { SuiteOutcome::Passed } else { SuiteOutcome::Failed }
}
