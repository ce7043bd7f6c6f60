//! What is on the node before the first pod, and has to be there after the last: no more, and no less.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Result, ensure};

use super::ground::{Ground, SOON};
use crate::{process, wait::until};

/// Where kubelet keeps a directory for each driver that it has met, and what it keeps there for raw block volumes.
const KUBELETS: &str = "plugins/kubernetes.io/csi";
const DEVICES: [&str; 2] = ["volumeDevices/publish", "volumeDevices/staging"];

/// Mounts, loop devices, and the files beneath kubelet's root and the pool's.
#[derive(Debug)]
pub(super) struct Traces(BTreeSet<String>);

impl Traces {
    /// Looks.
    pub(super) async fn of(ground: &Ground<'_>) -> Result<Self> {
        let mut found = BTreeSet::new();
        for line in fs::read_to_string("/proc/self/mountinfo")?.lines() {
            // Where, and what: the numbers before are the kernel's own.
            let words: Vec<&str> = line.split(' ').skip(2).collect();
            found.insert(format!("mount {}", words.join(" ")));
        }
        let devices =
            process::output("losetup", &["--list", "--noheadings", "--output", "NAME,BACK-FILE"]).await?;
        let own = ground.run.scratch().display().to_string();
        found.extend(devices.lines().filter(|line| line.contains(&own)).map(|line| format!("loop {line}")));
        let root = ground.node.root();
        for directory in ["plugins", "plugins_registry", "pods"] {
            files(root, &root.join(directory), &mut found)?;
        }
        let pool = ground.run.scratch().join("pool/volumes");
        files(&pool, &pool, &mut found)?;
        Ok(Self(found))
    }

    /// Waits until all is as it was.
    pub(super) async fn same(&self, ground: &Ground<'_>) -> Result<()> {
        until("the node is as it was", SOON, async || {
            let now = Self::of(ground).await?;
            let more: Vec<_> = now.0.difference(&self.0).collect();
            let less: Vec<_> = self.0.difference(&now.0).collect();
            ensure!(more.is_empty() && less.is_empty(), "more: {more:?}, less: {less:?}");
            Ok(())
        })
        .await
    }
}

/// The names beneath a directory, with what kind of file they are.
fn files(root: &Path, directory: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let name = path.strip_prefix(root)?.display().to_string();
        if kind.is_dir() {
            files(root, &path, found)?;
            let own = root.join(KUBELETS);
            let of_devices = DEVICES.iter().any(|devices| path == own.join(devices));
            if !(own.starts_with(&path) || path.parent() == Some(&own) || of_devices) {
                found.insert(format!("directory {name}"));
            }
        } else {
            found.insert(format!("file {name} {kind:?}"));
        }
    }
    Ok(())
}
