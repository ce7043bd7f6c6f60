//! Loop devices and cgroups that a suite leaves behind.
//!
//! They belong to no namespace, so the kernel does not remove them with the namespaces of the suite. They are
//! found by the run's name, which is the name of a cgroup and a part of the path of a loop device's backing
//! file.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

/// Prefix of run names. Short, because the paths of unix sockets contain the run's name and are limited to
/// 107 bytes.
const RUN_PREFIX: &str = "cofferdam-";
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// The name of a suite's run: the process ID of its harness, which is the process of the program
/// `conformance` that starts the suite, and the suite's name.
#[must_use]
pub fn run_name(harness: u32, suite: &str) -> String {
    format!("{RUN_PREFIX}{harness}-{suite}")
}

/// The harness' process ID in the name of a run, or `None` if the name is not that of a run.
fn harness_of(name: &str) -> Option<u32> {
    name.strip_prefix(RUN_PREFIX)?.split_once('-')?.0.parse().ok()
}

/// Paths of the loop devices and cgroups of a run.
///
/// # Errors
/// If they cannot be listed.
pub fn list(run: &str) -> Result<Vec<PathBuf>> {
    let devices = loop_devices()?.into_iter().filter(|(_, owner)| owner == run).map(|(device, _)| device);
    Ok(devices.chain(cgroups()?.into_iter().filter(|group| group.ends_with(run))).collect())
}

/// Removes the loop devices and cgroups of a run, and returns their paths.
///
/// # Errors
/// If one cannot be removed.
pub fn remove(run: &str) -> Result<Vec<PathBuf>> {
    let leftovers = list(run)?;
    for leftover in &leftovers {
        if leftover.starts_with(CGROUP_ROOT) {
            remove_cgroup(leftover)
                .with_context(|| format!("cannot remove the cgroup {}", leftover.display()))?;
            continue;
        }
        let status =
            Command::new("losetup").arg("--detach").arg(leftover).status().context("cannot start losetup")?;
        ensure!(status.success(), "losetup cannot detach {}: {status}", leftover.display());
    }
    Ok(leftovers)
}

/// Removes the loop devices and cgroups of runs whose harness process has ended, and returns their paths.
///
/// A harness is looked up by its process ID in `/proc`. Do not call this function inside a PID namespace
/// while suites run outside that namespace: their harnesses would seem to have ended, and their loop devices
/// and cgroups would be removed.
///
/// # Errors
/// If a leftover cannot be removed.
pub fn remove_stale() -> Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    let devices = loop_devices()?.into_iter().map(|(_, owner)| owner);
    let groups = cgroups()?.into_iter().filter_map(|group| Some(group.file_name()?.to_str()?.to_owned()));
    for run in devices.chain(groups).filter(|run| is_stale(run)).collect::<std::collections::BTreeSet<_>>() {
        removed.extend(remove(&run)?);
    }
    Ok(removed)
}

/// Checks that a run left no loop device, cgroup or mount behind, and removes left loop devices and cgroups.
///
/// # Errors
/// If there are leftovers, or one cannot be removed. The error lists the removed loop devices and cgroups; if
/// there were none, it contains the first mount.
pub fn check(run: &str) -> Result<()> {
    let removed = remove(run)?;
    ensure!(removed.is_empty(), "leftovers, removed now: {removed:?}");
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    if let Some(line) = mounts.lines().find(|line| line.contains(run)) {
        bail!("leftover mount: {line}");
    }
    Ok(())
}

fn is_stale(run: &str) -> bool {
    harness_of(run).is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists())
}

/// Loop devices of all runs, each with its run's name. The whole path of the backing file is searched for the
/// name, because the kernel shows that path relative to a file system that may be unmounted.
fn loop_devices() -> Result<Vec<(PathBuf, String)>> {
    let mut devices = Vec::new();
    let Ok(entries) = fs::read_dir("/sys/block") else { return Ok(devices) };
    for entry in entries {
        let name = entry?.file_name();
        let file = Path::new("/sys/block").join(&name).join("loop/backing_file");
        let Ok(backing) = fs::read_to_string(file) else { continue };
        let mut parts = Path::new(backing.trim()).components().filter_map(|part| part.as_os_str().to_str());
        if let Some(run) = parts.find(|part| harness_of(part).is_some()) {
            devices.push((Path::new("/dev").join(&name), run.to_owned()));
        }
    }
    Ok(devices)
}

/// Cgroups of all runs: at the root of the unified hierarchy, or of each legacy hierarchy.
fn cgroups() -> Result<Vec<PathBuf>> {
    let mut groups = Vec::new();
    let top = Path::new(CGROUP_ROOT);
    let hierarchies = directories(top).unwrap_or_default();
    for parent in std::iter::once(top.to_owned()).chain(hierarchies) {
        groups.extend(directories(&parent).unwrap_or_default().into_iter().filter(|group| {
            group.file_name().and_then(|name| name.to_str()).is_some_and(|name| harness_of(name).is_some())
        }));
    }
    Ok(groups)
}

fn directories(parent: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Removes a cgroup after its children. Its files are removed with it.
fn remove_cgroup(group: &Path) -> io::Result<()> {
    for child in directories(group)? {
        remove_cgroup(&child)?;
    }
    fs::remove_dir(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runs_of_dead_harnesses_are_stale() {
        let running = run_name(std::process::id(), "node-shutdown");
        // Above the kernel's limit of process ids.
        let dead = run_name(4_194_305, "pods");
        let others = ["someone-1", "cofferdam-test-4194305", "cofferdam-4194305"];
        assert_eq!([running.as_str(), &dead].map(is_stale), [false, true]);
        assert_eq!(others.map(is_stale), [false; 3]);
    }
}
