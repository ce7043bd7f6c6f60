//! The run of a suite leaves no process, mount, loop device or cgroup after a panic of the suite, or after
//! SIGINT or SIGKILL of its harness: the process of the program `conformance` that starts the suite. If
//! process 1 of the run's PID namespace is killed too, a loop device and a cgroup are left. The next harness
//! removes them at its start. For this case, `cleanup` starts no further harness, but calls the function
//! itself.
//!
//! `cleanup` starts nested harnesses with suites that leak resources on purpose.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    leftovers,
    process::{self, CommandSpec, ManagedProcess},
    run::SuiteRun,
    wait::until,
};

/// Name of a suite that leaks resources and panics.
pub(super) const PANIC_SUITE: &str = "leak-and-panic";
/// Name of a suite that leaks resources and does not end by itself.
pub(super) const HANG_SUITE: &str = "leak-and-hang";
/// Argument of `sleep` that identifies the leaked process.
const SLEEP_SECONDS: &str = "86399.25";
/// File that exists once the resources are leaked.
const READY_FILE: &str = "made";
const TIMEOUT: Duration = Duration::from_secs(180);

/// A nested harness: a process of `conformance` that this suite starts.
struct InnerHarness {
    process: ManagedProcess,
    /// The process id of the harness, also after it has ended.
    id: u32,
    /// The name of the run of its suite, with which loop devices and cgroups are found.
    name: String,
}

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let mut inner = start(run, PANIC_SUITE, "panic")?;
    let status = inner.process.wait_exit(TIMEOUT).await?;
    ensure!(status.code() == Some(1), "{status} after a panic: expected 1");
    let file = ready_file(run, "panic", PANIC_SUITE, &inner);
    ensure!(
        file.exists(),
        "{} is missing: expected {PANIC_SUITE} to write it, see panic.log",
        file.display()
    );
    wait_clean(&inner, "a panic").await?;

    let mut inner = start_and_wait(run, "interrupt").await?;
    signal(&inner, Signal::INT)?;
    let status = inner.process.wait_exit(TIMEOUT).await?;
    ensure!(status.code() == Some(1), "{status} after SIGINT: expected 1");
    wait_clean(&inner, "SIGINT").await?;

    let mut inner = start_and_wait(run, "kill").await?;
    signal(&inner, Signal::KILL)?;
    inner.process.wait_exit(TIMEOUT).await?;
    wait_clean(&inner, "kill -9 of the harness").await?;

    // If process 1 is killed too, the next harness removes loop devices and cgroups.
    let mut inner = start_and_wait(run, "kill-all").await?;
    inner.process.kill().await?;
    until("its processes are gone", TIMEOUT, async || ensure_no_sleeper()).await?;
    ensure!(
        !leftovers::list(&inner.name)?.is_empty(),
        "nothing is left: expected a loop device and a cgroup"
    );
    leftovers::remove_stale()?;
    wait_clean(&inner, "the next run").await
}

/// Leaks resources and panics.
#[expect(clippy::panic, reason = "what becomes of a panic is what is looked at")]
pub(super) async fn leak_and_panic(run: &SuiteRun) -> Result<()> {
    leak_resources(run).await?;
    panic!("on purpose");
}

/// Leaks resources and does not end.
pub(super) async fn leak_and_hang(run: &SuiteRun) -> Result<()> {
    leak_resources(run).await?;
    std::future::pending().await
}

/// Leaks a daemon in its own session, a mount, a loop device, and a cgroup with a child. Then creates
/// [`READY_FILE`].
async fn leak_resources(run: &SuiteRun) -> Result<()> {
    process::run_to_completion(
        "sh",
        &["-c", &format!("setsid sleep {SLEEP_SECONDS} </dev/null >/dev/null 2>&1 &")],
    )
    .await?;
    let image = run.scratch().join("image");
    File::create(&image)?.set_len(16 << 20)?;
    let image = image.display().to_string();
    process::run_to_completion("losetup", &["--find", &image]).await?;
    let point = run.scratch().join("mounted");
    fs::create_dir_all(&point)?;
    process::run_to_completion("mount", &["-t", "tmpfs", "tmpfs", &point.display().to_string()]).await?;
    let group = cgroup_directory()?.join(run.scratch().file_name().unwrap_or_default());
    fs::create_dir_all(group.join("pod"))?;
    File::create(run.directory().join(READY_FILE))?;
    Ok(())
}

/// The root of the cgroup v2 hierarchy, or of the memory hierarchy of v1.
fn cgroup_directory() -> Result<&'static Path> {
    let directories = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
    let is_usable = |place: &&Path| place.join("cgroup.procs").exists();
    directories.into_iter().find(is_usable).context("no cgroups: expected them below /sys/fs/cgroup")
}

/// Starts a nested harness, with its directories below this run's.
fn start(run: &SuiteRun, suite: &str, name: &str) -> Result<InnerHarness> {
    let directory = run.directory().join(name);
    fs::create_dir_all(&directory)?;
    let spec = CommandSpec::new(name, std::env::current_exe()?).arg(suite).env("TMPDIR", directory.display());
    let process = ManagedProcess::start(run, spec)?;
    let id = process.id().context("it has ended")?;
    Ok(InnerHarness { process, id, name: leftovers::run_name(id, suite) })
}

/// Starts a nested harness with [`HANG_SUITE`], and waits until the suite has leaked its resources. Checks
/// that the daemon, the loop device and the cgroup exist.
async fn start_and_wait(run: &SuiteRun, name: &str) -> Result<InnerHarness> {
    let mut inner = start(run, HANG_SUITE, name)?;
    let file = ready_file(run, name, HANG_SUITE, &inner);
    let is_ready = async || {
        ensure!(file.exists(), "{} is not there", file.display());
        Ok(())
    };
    inner.process.wait_ready(TIMEOUT, is_ready).await?;
    ensure!(ensure_no_sleeper().is_err(), "nobody sleeps: expected a daemon to clean up");
    let leftovers = leftovers::list(&inner.name)?;
    ensure!(leftovers.len() == 2, "{leftovers:?}: expected a loop device and a cgroup to clean up");
    Ok(inner)
}

/// Path of the nested run's [`READY_FILE`]. `name` is the argument that [`start`] got.
fn ready_file(run: &SuiteRun, name: &str, suite: &str, inner: &InnerHarness) -> PathBuf {
    let id = inner.id.to_string();
    run.directory().join(name).join("cofferdam-conformance").join(id).join(suite).join(READY_FILE)
}

/// Signals the nested harness, but not its children.
fn signal(inner: &InnerHarness, which: Signal) -> Result<()> {
    let id = inner.process.id().and_then(|id| Pid::from_raw(id.cast_signed())).context("it has ended")?;
    Ok(kill_process(id, which)?)
}

/// Waits until no process, loop device or cgroup of a nested run is left. Does not check mounts: they vanish
/// with the mount namespace of the run, when its last process ends.
async fn wait_clean(inner: &InnerHarness, after: &str) -> Result<()> {
    until(&format!("nothing is left after {after}"), TIMEOUT, async || {
        ensure_no_sleeper()?;
        let remaining = leftovers::list(&inner.name)?;
        ensure!(remaining.is_empty(), "{remaining:?}");
        Ok(())
    })
    .await
}

fn ensure_no_sleeper() -> Result<()> {
    for entry in fs::read_dir("/proc")? {
        let command = fs::read_to_string(entry?.path().join("cmdline")).unwrap_or_default();
        ensure!(!command.contains(SLEEP_SECONDS), "a process runs: {}", command.replace('\0', " "));
    }
    Ok(())
}
