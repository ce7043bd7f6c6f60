//! Process 1 of a run's PID namespace. It runs the suite as a child process, and cleans up after it.
//!
//! When the suite has exited, process 1 kills every other process of the PID namespace. It then removes the
//! loop devices and cgroups of the run, which belong to no namespace (see [`leftovers`]), and exits. With the
//! last process of the run's mount namespace, the kernel removes its mounts: root file systems of containers,
//! bind mounts of network namespaces, and mounts of kubelet and drivers.
//!
//! When standard input is closed, which also happens when the harness is killed, process 1 sends SIGTERM to
//! the suite, and SIGKILL after a grace period. If process 1 itself is killed, the kernel kills the other
//! processes of the PID namespace, and the next harness removes the loop devices and cgroups.
//!
//! In the mount namespace, `/run` is a tmpfs, and overlays in this tmpfs cover `/var/lib` and `/var/log`.
//! Writes to other directories reach the machine's file systems, such as logs in the directory of the run.

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

/// Time between SIGTERM and SIGKILL to the suite when standard input is closed.
const TERMINATION_GRACE: Duration = Duration::from_secs(20);
/// Directories to which kubelet, containerd and CNI write regardless of their configuration.
const OVERLAY_DIRECTORIES: [&str; 2] = ["/var/lib", "/var/log"];

/// Sets up the mounts and runs `worker`, the process of the suite. Then kills all remaining processes, and
/// removes the loop devices and cgroups of the run, whose name is that of the directory `scratch`. Returns
/// the exit code of `worker`, or 255 if it was killed by a signal.
///
/// # Errors
/// If this is not process 1, the mounts cannot be set up, the suite cannot be started or waited for, the
/// remaining processes cannot be listed or waited for, or a leftover cannot be removed.
pub fn init(scratch: &Path, worker: &mut Command) -> Result<u8> {
    ensure!(
        std::process::id() == 1,
        "this command is for process 1 of a namespace: run `conformance` without it"
    );
    set_up_mounts(scratch)?;
    let child = worker.spawn().context("cannot start the suite")?;
    let id = Pid::from_raw(child.id().cast_signed()).context("a process without an id")?;
    thread::spawn(move || {
        // The harness writes nothing to standard input: this waits until it is closed.
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

/// Sets up the mount namespace of the run. Mounts propagate to containers, as on a machine. Writes below
/// `/run` and the [`OVERLAY_DIRECTORIES`] stay in a tmpfs.
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

/// Reaps processes until the suite exits.
fn reap(suite: Pid) -> Result<ExitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((id, status))) if id == suite => return Ok(ExitStatus::from_raw(status.as_raw())),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the suite"),
        }
    }
}

/// Kills all processes of the namespace except this one, and reaps them.
fn kill_all() -> Result<()> {
    loop {
        for id in process_ids()? {
            // It may have exited meanwhile.
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
