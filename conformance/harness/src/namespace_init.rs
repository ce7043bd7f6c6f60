//! The inner side of a run: process 1 of namespaces of its own.
//!
//! The kernel is what cleans up. When process 1 of a PID namespace ends, for whatever reason, everything in
//! it is killed; and when the last process of a mount namespace has gone, its mounts go too: overlays of
//! containers, network namespaces, what kubelet and drivers have mounted. Loop devices and cgroups belong to
//! no namespace: [`leftovers`] knows them. What a run writes outside of its own directory, it writes into
//! memory that only its namespace sees.
//!
//! Process 1 ends when the suite has ended, or when its standard input is closed: that is how a harness that
//! is interrupted, or killed with -9, takes everything with it.

use std::{
    ffi::CString,
    fs, io,
    io::Read as _,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Command, ExitStatus},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{Pid, Signal, WaitOptions, kill_process, wait},
};

use crate::leftovers;

/// How long a suite has to end after it was told to, before it is killed.
const TERMINATION_GRACE: Duration = Duration::from_secs(20);
/// Directories that kubelet, containerd and CNI write to without asking anybody.
const OVERLAY_DIRECTORIES: [&str; 2] = ["/var/lib", "/var/log"];

/// Runs `worker` as process 2, and ends with its exit code.
///
/// # Errors
/// If this is not process 1, or the namespaces cannot be furnished.
pub fn init(scratch: &Path, worker: &mut Command) -> Result<u8> {
    ensure!(
        std::process::id() == 1,
        "this command is for process 1 of a namespace: run `conformance` without it"
    );
    set_up_mounts(scratch)?;
    let child = worker.spawn().context("cannot start the suite")?;
    let id = Pid::from_raw(child.id().cast_signed()).context("a process without an id")?;
    thread::spawn(move || {
        // Nobody writes: the end of it, or an error, is the word.
        let _ = io::copy(&mut io::stdin().lock().take(u64::MAX), &mut io::sink());
        let _ = kill_process(id, Signal::TERM);
        thread::sleep(TERMINATION_GRACE);
        let _ = kill_process(id, Signal::KILL);
    });
    let status = reap(id)?;
    let name = scratch.file_name().unwrap_or_default().to_string_lossy();
    kill_all()?;
    leftovers::remove(&name)?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

/// A namespace that looks like a machine: what is mounted below is seen by containers, and no write reaches
/// the real one.
fn set_up_mounts(scratch: &Path) -> Result<()> {
    mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC)
        .context("cannot share mounts within the namespace")?;
    let tmpfs_options = CString::new("mode=0755")?;
    mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), tmpfs_options.as_c_str())
        .context("cannot mount /run")?;
    for lower in OVERLAY_DIRECTORIES {
        let overlay = scratch.join("overlay").join(lower.trim_start_matches('/').replace('/', "-"));
        let (upper, work) = (overlay.join("upper"), overlay.join("work"));
        fs::create_dir_all(&upper)?;
        fs::create_dir_all(&work)?;
        let options = format!("lowerdir={lower},upperdir={},workdir={}", upper.display(), work.display());
        mount("overlay", lower, "overlay", MountFlags::empty(), CString::new(options)?.as_c_str())
            .with_context(|| format!("cannot lay memory over {lower}"))?;
    }
    Ok(())
}

/// Reaps whatever ends until the suite has.
fn reap(suite: Pid) -> Result<ExitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((id, status))) if id == suite => return Ok(ExitStatus::from_raw(status.as_raw())),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the suite"),
        }
    }
}

/// Kills what the suite has left, so that nothing holds its files any more.
fn kill_all() -> Result<()> {
    loop {
        for id in process_ids()? {
            // One that has ended meanwhile is what we want.
            let _ = kill_process(id, Signal::KILL);
        }
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error).context("cannot wait for what is left"),
        }
    }
}

fn process_ids() -> Result<Vec<Pid>> {
    let ids =
        fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    Ok(ids.filter(|id| *id != 1).filter_map(Pid::from_raw).collect())
}
