//! csi-sanity finds nothing wrong with our drivers, as our `csi-server` and our `node` serve them: two processes, of which only
//! the first has the driver.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use http::Request;

use crate::{
    chain::Backend,
    process::{Process, Spec},
    run::Run,
};

const NODE: &str = "node-1";
const LONG: Duration = Duration::from_secs(240);
/// Bytes of a volume: an image of it is formatted for real.
const SIZE: u64 = 64 << 20;
/// Why csi-sanity skips tests of CSI 1.13, which has methods that 1.12 does not have.
const LATER: [&str; 5] = [
    "ControllerGetVolumeHealth not supported",
    "ControllerListVolumeHealth not supported",
    "NodeGetStorageHealth not supported",
    "NodeGetVolumeHealth not supported",
    "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported",
];

/// Likewise for what the driver `pool` does not export: modifying, groups, and publishing, which storage of a node does not need.
const POOL: &[&str] = &[
    "Controller Publish, UnpublishVolume not supported",
    "ControllerModifyVolume not supported",
    "ControllerPublishVolume not supported",
    "ControllerUnpublishVolume not supported",
    "GroupControllerService not supported",
    "Modify Volume not supported",
    "Modify volume not supported",
];

/// What csi-sanity 5.6 has to say of a driver: it has 102 tests for two sockets.
struct Row {
    /// The name of its log.
    name: &'static str,
    backend: fn(&Run, &str) -> Result<Backend>,
    /// `mount` or `block`.
    access: &'static str,
    /// Parameters of its volumes and snapshots, as YAML.
    volumes: &'static str,
    snapshots: &'static str,
    said: Said,
    /// Why it skips tests, beside those of a later CSI: what the driver does not export.
    lacks: &'static [&'static str],
    /// Methods that have to have been called.
    called: &'static [&'static str],
}

/// How tests ended.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    passed: u32,
    failed: u32,
    skipped: u32,
}

const ROWS: [Row; 4] = [
    Row {
        name: "memory",
        backend: Backend::memory,
        access: "mount",
        volumes: "",
        snapshots: "",
        said: Said { passed: 95, failed: 0, skipped: 7 },
        lacks: &[],
        called: &["CreateVolume", "ControllerPublishVolume", "CreateSnapshot", "ControllerModifyVolume"],
    },
    Row {
        name: "directory",
        backend: Backend::pool,
        access: "mount",
        volumes: "kind: directory\n",
        snapshots: "",
        said: Said { passed: 71, failed: 0, skipped: 31 },
        lacks: POOL,
        called: &["CreateVolume", "CreateSnapshot"],
    },
    Row {
        name: "image",
        backend: Backend::pool,
        access: "mount",
        // The filesystem beneath cannot share blocks, which a copy of one moment takes.
        volumes: "kind: image\nconsistency: none\n",
        snapshots: "consistency: none\n",
        said: Said { passed: 71, failed: 0, skipped: 31 },
        lacks: POOL,
        called: &["CreateVolume", "CreateSnapshot", "ControllerExpandVolume"],
    },
    Row {
        name: "block",
        backend: Backend::pool,
        access: "block",
        volumes: "consistency: none\n",
        snapshots: "consistency: none\n",
        said: Said { passed: 71, failed: 0, skipped: 31 },
        lacks: POOL,
        called: &["CreateVolume", "CreateSnapshot", "ControllerExpandVolume"],
    },
];

pub(super) async fn run(run: &Run) -> Result<()> {
    for row in &ROWS {
        play(run, row).await.with_context(|| row.name)?;
    }
    Ok(())
}

async fn play(run: &Run, row: &Row) -> Result<()> {
    let root = run.scratch().join("kubelet");
    let backend = (row.backend)(run, NODE)?;
    let (mut ours, socket, client) = backend.serve(run).await?;
    let mut node = backend.node(run, NODE, &root).await?;
    let (said, reasons) = sanity(run, row, &root, &node.socket, &socket).await?;
    let (path, expected) = (log(run, row), &row.said);
    ensure!(
        said == *expected,
        "csi-sanity says {said:?}: expected {expected:?}; its log is {}",
        path.display()
    );
    let lacks: BTreeSet<String> = LATER.iter().chain(row.lacks).map(|text| (*text).to_owned()).collect();
    ensure!(
        reasons == lacks,
        "csi-sanity skips for {reasons:?}: expected {lacks:?}; its log is {}",
        path.display()
    );
    let metrics = client.request_text(Request::get("/metrics").body(Vec::new())?).await?;
    for method in row.called {
        ensure!(
            metrics.contains(&format!("/csi.v1.Controller/{method}\"")),
            "csi-sanity did not call {method}"
        );
    }
    ensure!(!metrics.contains("grpc_status_code=\"Internal\""), "a call ended in a defect: {metrics}");
    node.process.stop().await?;
    ours.stop().await?;
    for left in [&socket, &node.socket, &node.registration] {
        ensure!(!left.exists(), "{} is left", left.display());
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let left = mounts.lines().find(|line| line.contains(&root.display().to_string()));
    ensure!(left.is_none(), "mounted: {}", left.unwrap_or_default());
    let records = node.records()?;
    ensure!(records.is_empty(), "the node has records of {records:?}");
    run.tell(&format!("csi-sanity with {}: {} passed, {} skipped", row.name, said.passed, said.skipped))
}

fn log(run: &Run, row: &Row) -> PathBuf {
    run.log(&format!("csi-sanity-{}", row.name))
}

/// Runs csi-sanity to its end.
async fn sanity(
    run: &Run,
    row: &Row,
    root: &Path,
    node: &Path,
    controller: &Path,
) -> Result<(Said, BTreeSet<String>)> {
    let directory = run.scratch().join(row.name);
    fs::create_dir_all(&directory)?;
    let write = |name: &str, text: &str| -> Result<PathBuf> {
        let path = directory.join(name);
        fs::write(&path, text)?;
        Ok(path)
    };
    let (volumes, snapshots) = (write("volumes.yaml", row.volumes)?, write("snapshots.yaml", row.snapshots)?);
    let spec = Spec::new(format!("csi-sanity-{}", row.name), run.peers().program("csi-sanity")?)
        .arg(format_args!("--csi.endpoint=unix://{}", node.display()))
        .arg(format_args!("--csi.controllerendpoint=unix://{}", controller.display()))
        .arg(format_args!("--csi.mountdir={}", root.join("target").display()))
        .arg(format_args!("--csi.stagingdir={}", root.join("staging").display()))
        .arg(format_args!("--csi.testvolumeaccesstype={}", row.access))
        .arg(format_args!("--csi.testvolumesize={SIZE}"))
        .arg(format_args!("--csi.testvolumeexpandsize={}", 2 * SIZE))
        .arg(format_args!("--csi.testvolumeparameters={}", volumes.display()))
        .arg(format_args!("--csi.testsnapshotparameters={}", snapshots.display()))
        .args(["--csi.testnodevolumeattachlimit", "--ginkgo.no-color", "--ginkgo.v"]);
    Process::start(run, spec)?.ended(LONG).await?;
    let path = log(run, row);
    let text = fs::read_to_string(&path)?;
    let line = text.lines().rev().find(|line| line.contains(" Passed | "));
    let line = line.with_context(|| format!("csi-sanity has no last word: its log is {}", path.display()))?;
    let said = Said {
        passed: number(line, "Passed")?,
        failed: number(line, "Failed")?,
        skipped: number(line, "Skipped")?,
    };
    Ok((said, reasons(&text)))
}

/// Why tests were skipped: what stands behind the mark, but for the line that says where.
fn reasons(log: &str) -> BTreeSet<String> {
    let marked = log.lines().filter_map(|line| line.trim().strip_prefix("[SKIPPED] "));
    marked.filter(|reason| !reason.starts_with("in [")).map(str::to_owned).collect()
}

/// The number before a word.
fn number(line: &str, word: &str) -> Result<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let before = words.windows(2).find_map(|pair| match pair {
        [number, found] if *found == word => number.parse().ok(),
        _ => None,
    });
    before.with_context(|| format!("no number of {word} in {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_ginkgo_is_read() {
        let line = "FAIL! -- 60 Passed | 2 Failed | 1 Pending | 33 Skipped";
        let read = ["Passed", "Failed", "Skipped"].map(|word| number(line, word).unwrap());
        assert_eq!(read, [60, 2, 33]);
        assert!(number(line, "Lost").is_err());
    }
}
