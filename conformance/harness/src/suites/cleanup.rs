//! However a run ends, it takes its processes, mounts, loop devices and cgroups with it.
//!
//! This suite runs the harness inside of itself, with suites that make a mess on purpose.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    leftovers,
    process::{self, Process, Spec},
    run::Run,
    wait::until,
};

/// A suite that panics.
pub(super) const PANICS: &str = "mess-and-panic";
/// A suite that does not end by itself.
pub(super) const STAYS: &str = "mess-and-stay";
/// Seconds that nobody else sleeps for: how our sleepers are known.
const MARK: &str = "86399.25";
/// The file that says that the mess has been made.
const MADE: &str = "made";
const SOON: Duration = Duration::from_secs(180);

/// A harness inside of this one.
struct Inner {
    process: Process,
    /// The name of its runs.
    name: String,
}

pub(super) async fn run(run: &Run) -> Result<()> {
    let mut inner = start(run, PANICS, "panic")?;
    let status = inner.process.ended(SOON).await?;
    ensure!(status.code() == Some(1), "{status} after a panic: expected 1");
    ensure!(made_by(run, "panic", PANICS, &inner).exists(), "it has not made a mess");
    nothing_left(&inner, "a panic").await?;

    let mut inner = made(run, "interrupt").await?;
    signal(&inner, Signal::INT)?;
    let status = inner.process.ended(SOON).await?;
    ensure!(status.code() == Some(1), "{status} after SIGINT: expected 1");
    nothing_left(&inner, "SIGINT").await?;

    let mut inner = made(run, "kill").await?;
    signal(&inner, Signal::KILL)?;
    inner.process.ended(SOON).await?;
    nothing_left(&inner, "kill -9 of the harness").await?;

    // With process 1 killed too, nobody is left who could clean up what the kernel does not: the next run does.
    let mut inner = made(run, "kill-all").await?;
    inner.process.kill().await?;
    until("its processes are gone", SOON, async || no_sleeper()).await?;
    ensure!(!leftovers::of(&inner.name)?.is_empty(), "nothing is left: expected a loop device and a cgroup");
    leftovers::remove_stale()?;
    nothing_left(&inner, "the next run").await
}

/// Makes a mess, and panics.
#[expect(clippy::panic, reason = "what becomes of a panic is what is looked at")]
pub(super) async fn panics(run: &Run) -> Result<()> {
    mess(run).await?;
    panic!("on purpose");
}

/// Makes a mess, and waits.
pub(super) async fn stays(run: &Run) -> Result<()> {
    mess(run).await?;
    std::future::pending().await
}

/// A daemon in a session of its own, a mount, a loop device, and a cgroup with a child.
async fn mess(run: &Run) -> Result<()> {
    process::output("sh", &["-c", &format!("setsid sleep {MARK} </dev/null >/dev/null 2>&1 &")]).await?;
    let image = run.scratch().join("image");
    File::create(&image)?.set_len(16 << 20)?;
    let image = image.display().to_string();
    process::output("losetup", &["--find", &image]).await?;
    let point = run.scratch().join("mounted");
    fs::create_dir_all(&point)?;
    process::output("mount", &["-t", "tmpfs", "tmpfs", &point.display().to_string()]).await?;
    let group = hierarchy()?.join(run.scratch().file_name().unwrap_or_default());
    fs::create_dir_all(group.join("pod"))?;
    File::create(run.directory().join(MADE))?;
    Ok(())
}

/// A place where a cgroup can be made, of whichever kind the machine has.
fn hierarchy() -> Result<&'static Path> {
    let places = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
    let usable = |place: &&Path| place.join("cgroup.procs").exists();
    places.into_iter().find(usable).context("no cgroups: expected them below /sys/fs/cgroup")
}

/// Starts this program once more, with run directories below ours.
fn start(run: &Run, suite: &str, name: &str) -> Result<Inner> {
    let directory = run.directory().join(name);
    fs::create_dir_all(&directory)?;
    let spec = Spec::new(name, std::env::current_exe()?).arg(suite).env("TMPDIR", directory.display());
    let process = Process::start(run, spec)?;
    let id = process.id().context("it has ended")?;
    Ok(Inner { process, name: format!("{}{id}", leftovers::PREFIX) })
}

/// The same, when it has made its mess.
async fn made(run: &Run, name: &str) -> Result<Inner> {
    let mut inner = start(run, STAYS, name)?;
    let file = made_by(run, name, STAYS, &inner);
    let made = async || {
        ensure!(file.exists(), "{} is not there", file.display());
        Ok(())
    };
    inner.process.ready(SOON, made).await?;
    ensure!(no_sleeper().is_err(), "nobody sleeps: expected a daemon to clean up");
    let there = leftovers::of(&inner.name)?;
    ensure!(there.len() == 2, "{there:?}: expected a loop device and a cgroup to clean up");
    Ok(inner)
}

/// The file by which an inner run says that it has made its mess.
fn made_by(run: &Run, name: &str, suite: &str, inner: &Inner) -> PathBuf {
    let id = inner.name.trim_start_matches(leftovers::PREFIX);
    run.directory().join(name).join("cofferdam-conformance").join(id).join(suite).join(MADE)
}

/// A signal to the harness alone, and not to what it has started.
fn signal(inner: &Inner, which: Signal) -> Result<()> {
    let id = inner.process.id().and_then(|id| Pid::from_raw(id.cast_signed())).context("it has ended")?;
    Ok(kill_process(id, which)?)
}

/// Waits until neither processes nor anything else of an inner run is there. Its mounts are in a namespace of its processes.
async fn nothing_left(inner: &Inner, after: &str) -> Result<()> {
    until(&format!("nothing is left after {after}"), SOON, async || {
        no_sleeper()?;
        let left = leftovers::of(&inner.name)?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await
}

fn no_sleeper() -> Result<()> {
    for entry in fs::read_dir("/proc")? {
        let command = fs::read_to_string(entry?.path().join("cmdline")).unwrap_or_default();
        ensure!(!command.contains(MARK), "a process runs: {}", command.replace('\0', " "));
    }
    Ok(())
}
