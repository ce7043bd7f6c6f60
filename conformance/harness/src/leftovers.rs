//! What belongs to no namespace and so does not go with one: loop devices and cgroups. Both bear the name of
//! a run.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

/// How the names of runs begin; the process id of the harness follows.
pub const RUN_PREFIX: &str = "cofferdam-conformance-";
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// The name of the run of this process.
#[must_use]
pub fn run_name() -> String {
    format!("{RUN_PREFIX}{}", std::process::id())
}

/// What a run has left, or has not yet removed.
///
/// # Errors
/// When the machine cannot be looked at.
pub fn list(run: &str) -> Result<Vec<PathBuf>> {
    let devices = loop_devices()?.into_iter().filter(|(_, owner)| owner == run).map(|(device, _)| device);
    Ok(devices.chain(cgroups()?.into_iter().filter(|group| group.ends_with(run))).collect())
}

/// Removes what a run has left, and tells what that was.
///
/// # Errors
/// When something cannot be removed.
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

/// Removes what runs have left whose harness is no more, not even to clean up.
///
/// # Errors
/// When something cannot be removed.
pub fn remove_stale() -> Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    let devices = loop_devices()?.into_iter().map(|(_, owner)| owner);
    let groups = cgroups()?.into_iter().filter_map(|group| Some(group.file_name()?.to_str()?.to_owned()));
    for run in devices.chain(groups).filter(|run| is_stale(run)).collect::<std::collections::BTreeSet<_>>() {
        removed.extend(remove(&run)?);
    }
    Ok(removed)
}

/// Fails when a run has left something, after it has been removed.
///
/// # Errors
/// With what it was.
pub fn check(run: &str) -> Result<()> {
    let removed = remove(run)?;
    ensure!(removed.is_empty(), "left over, and removed now: {removed:?}");
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    if let Some(line) = mounts.lines().find(|line| line.contains(run)) {
        bail!("a mount is left over: {line}");
    }
    Ok(())
}

fn is_stale(run: &str) -> bool {
    run.strip_prefix(RUN_PREFIX).is_some_and(|id| !Path::new("/proc").join(id).exists())
}

/// Loop devices of runs, with the run's name. A file system that nobody has mounted any more has no place, so
/// that the beginning of a file's path is not the same for everybody.
fn loop_devices() -> Result<Vec<(PathBuf, String)>> {
    let mut devices = Vec::new();
    let Ok(entries) = fs::read_dir("/sys/block") else { return Ok(devices) };
    for entry in entries {
        let name = entry?.file_name();
        let file = Path::new("/sys/block").join(&name).join("loop/backing_file");
        let Ok(backing) = fs::read_to_string(file) else { continue };
        let mut parts = Path::new(backing.trim()).components().filter_map(|part| part.as_os_str().to_str());
        if let Some(run) = parts.find(|part| part.starts_with(RUN_PREFIX)) {
            devices.push((Path::new("/dev").join(&name), run.to_owned()));
        }
    }
    Ok(devices)
}

/// Cgroups of runs: at the top of the one hierarchy, or of each of the older ones.
fn cgroups() -> Result<Vec<PathBuf>> {
    let mut groups = Vec::new();
    let top = Path::new(CGROUP_ROOT);
    let hierarchies = directories(top).unwrap_or_default();
    for parent in std::iter::once(top.to_owned()).chain(hierarchies) {
        groups.extend(directories(&parent).unwrap_or_default().into_iter().filter(|group| {
            group.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(RUN_PREFIX))
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

/// A cgroup's files go with it; only other cgroups have to go first.
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
        let running = format!("{RUN_PREFIX}{}", std::process::id());
        // Linux gives out no such id.
        let dead = format!("{RUN_PREFIX}4194305");
        assert_eq!([running.as_str(), &dead, "someone-1"].map(is_stale), [false, true, false]);
    }
}
