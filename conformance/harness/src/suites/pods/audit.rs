//! Audit of the node: its mounts, loop devices and files of volumes are the same before the first pod and
//! after the last.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Result, ensure};

use super::fixture::{PodFixture, TIMEOUT, pool_directory};
use crate::{process, wait::until};

/// kubelet's directory of CSI volumes, below its root. It has a subdirectory for each driver, and one for all
/// block volumes.
const KUBELET_CSI_DIRECTORY: &str = "plugins/kubernetes.io/csi";
/// Subdirectories of [`KUBELET_CSI_DIRECTORY`] for block volumes.
const BLOCK_DEVICE_DIRECTORIES: [&str; 2] = ["volumeDevices/publish", "volumeDevices/staging"];

/// Mounts of the run's mount namespace, loop devices of the run, and the files and directories below the pool
/// and below `plugins`, `plugins_registry` and `pods` of kubelet's root, except those that `collect_files`
/// leaves out.
#[derive(Debug)]
pub(super) struct NodeAudit(BTreeSet<String>);

impl NodeAudit {
    /// Reads the state of the node.
    pub(super) async fn read(fixture: &PodFixture<'_>) -> Result<Self> {
        let mut found = BTreeSet::new();
        for line in fs::read_to_string("/proc/self/mountinfo")?.lines() {
            // Skip the mount id and the parent's id, which the kernel assigns.
            let words: Vec<&str> = line.split(' ').skip(2).collect();
            found.insert(format!("mount {}", words.join(" ")));
        }
        let devices =
            process::run_to_completion("losetup", &["--list", "--noheadings", "--output", "NAME,BACK-FILE"])
                .await?;
        let own = fixture.run.scratch().display().to_string();
        found.extend(devices.lines().filter(|line| line.contains(&own)).map(|line| format!("loop {line}")));
        let root = fixture.node.root();
        for directory in ["plugins", "plugins_registry", "pods"] {
            collect_files(root, &root.join(directory), &mut found)?;
        }
        let pool = pool_directory(fixture.run);
        collect_files(&pool, &pool, &mut found)?;
        Ok(Self(found))
    }

    /// Waits until the state of the node is that of this audit.
    pub(super) async fn wait_unchanged(&self, fixture: &PodFixture<'_>) -> Result<()> {
        until("the node is as it was", TIMEOUT, async || {
            let now = Self::read(fixture).await?;
            let added: Vec<_> = now.0.difference(&self.0).collect();
            let removed: Vec<_> = self.0.difference(&now.0).collect();
            ensure!(added.is_empty() && removed.is_empty(), "more: {added:?}, less: {removed:?}");
            Ok(())
        })
        .await
    }
}

/// Adds the files and directories below a directory, with their types and their paths relative to `root`.
/// Leaves out the directories that kubelet keeps for drivers and block volumes, but not what they contain.
/// Adds nothing if the directory does not exist.
fn collect_files(root: &Path, directory: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let name = path.strip_prefix(root)?.display().to_string();
        if kind.is_dir() {
            collect_files(root, &path, found)?;
            let own = root.join(KUBELET_CSI_DIRECTORY);
            let of_devices = BLOCK_DEVICE_DIRECTORIES.iter().any(|devices| path == own.join(devices));
            if !(own.starts_with(&path) || path.parent() == Some(&own) || of_devices) {
                found.insert(format!("directory {name}"));
            }
        } else {
            found.insert(format!("file {name} {kind:?}"));
        }
    }
    Ok(())
}
