//! csi-sanity on Cofferdam's drivers behind the roles `csi-server` and `node`: two processes, of which only
//! that of `csi-server` loads the driver.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    backend::BackendFixture,
    process::{self, CommandSpec, ManagedProcess},
    run::SuiteRun,
};

const NODE: &str = "node-1";
const SANITY_TIMEOUT: Duration = Duration::from_secs(240);
/// Size of a volume in bytes before its expansion to twice this size. Large enough for a filesystem in an
/// image.
const SIZE: u64 = 64 << 20;
/// Reasons with which csi-sanity skips tests for methods and capabilities of CSI 1.13, which neither `memory`
/// nor `pool` has.
const UNSUPPORTED_CSI_1_13: [&str; 5] = [
    "ControllerGetVolumeHealth not supported",
    "ControllerListVolumeHealth not supported",
    "NodeGetStorageHealth not supported",
    "NodeGetVolumeHealth not supported",
    "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported",
];

/// Reasons with which csi-sanity skips tests of interfaces that `pool` does not export: modification, group
/// snapshots, and publishing.
const UNSUPPORTED_BY_POOL: &[&str] = &[
    "Controller Publish, UnpublishVolume not supported",
    "ControllerModifyVolume not supported",
    "ControllerPublishVolume not supported",
    "ControllerUnpublishVolume not supported",
    "GroupControllerService not supported",
    "Modify Volume not supported",
    "Modify volume not supported",
];

/// A run of csi-sanity 5.6, and its expected result. csi-sanity has 102 tests for a driver with separate
/// sockets for the controller service and the node service.
struct SanityRun {
    /// The name of the run, which ends the name of its log.
    name: &'static str,
    backend: fn(&SuiteRun, &str) -> Result<BackendFixture>,
    /// `mount` or `block`.
    access_type: &'static str,
    /// Parameters of volumes as YAML.
    volume_parameters: &'static str,
    /// Parameters of snapshots as YAML.
    snapshot_parameters: &'static str,
    expected: SanityCounts,
    /// Expected skip reasons besides [`UNSUPPORTED_CSI_1_13`].
    skip_reasons: &'static [&'static str],
    /// Controller methods that csi-sanity has to call.
    called_methods: &'static [&'static str],
}

/// Numbers of tests by result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SanityCounts {
    pub(super) passed: u32,
    pub(super) failed: u32,
    pub(super) skipped: u32,
}

impl SanityCounts {
    /// Reads the summary at the end of csi-sanity's output.
    pub(super) fn parse(output: &str) -> Result<Self> {
        let line = output.lines().rev().find(|line| line.contains(" Passed | "));
        let line = line.context("csi-sanity has no last word")?;
        Ok(Self {
            passed: number_before(line, "Passed")?,
            failed: number_before(line, "Failed")?,
            skipped: number_before(line, "Skipped")?,
        })
    }
}

const ROWS: [SanityRun; 4] = [
    SanityRun {
        name: "memory",
        backend: BackendFixture::memory,
        access_type: "mount",
        volume_parameters: "",
        snapshot_parameters: "",
        expected: SanityCounts { passed: 95, failed: 0, skipped: 7 },
        skip_reasons: &[],
        called_methods: &[
            "CreateVolume",
            "ControllerPublishVolume",
            "CreateSnapshot",
            "ControllerModifyVolume",
        ],
    },
    SanityRun {
        name: "directory",
        backend: BackendFixture::pool,
        access_type: "mount",
        volume_parameters: "kind: directory\n",
        snapshot_parameters: "",
        expected: SanityCounts { passed: 71, failed: 0, skipped: 31 },
        skip_reasons: UNSUPPORTED_BY_POOL,
        called_methods: &["CreateVolume", "CreateSnapshot"],
    },
    SanityRun {
        name: "image",
        backend: BackendFixture::pool,
        access_type: "mount",
        // Crash-consistent copies, the default for images, require reflinks, which this filesystem does not
        // support.
        volume_parameters: "kind: image\nconsistency: none\n",
        snapshot_parameters: "consistency: none\n",
        expected: SanityCounts { passed: 71, failed: 0, skipped: 31 },
        skip_reasons: UNSUPPORTED_BY_POOL,
        called_methods: &["CreateVolume", "CreateSnapshot", "ControllerExpandVolume"],
    },
    SanityRun {
        name: "block",
        backend: BackendFixture::pool,
        access_type: "block",
        volume_parameters: "consistency: none\n",
        snapshot_parameters: "consistency: none\n",
        expected: SanityCounts { passed: 71, failed: 0, skipped: 31 },
        skip_reasons: UNSUPPORTED_BY_POOL,
        called_methods: &["CreateVolume", "CreateSnapshot", "ControllerExpandVolume"],
    },
];

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    for row in &ROWS {
        run_one(run, row).await.with_context(|| row.name)?;
    }
    Ok(())
}

async fn run_one(run: &SuiteRun, row: &SanityRun) -> Result<()> {
    let root = run.scratch().join("kubelet");
    let backend = (row.backend)(run, NODE)?;
    let (mut csi_server, socket, client) = backend.start_csi_server(run).await?;
    let mut node = backend.start_node_roles(run, NODE, &root).await?;
    let (counts, reasons) = run_csi_sanity(run, row, &root, &node.socket, &socket).await?;
    let (path, expected) = (log_path(run, row), &row.expected);
    ensure!(
        counts == *expected,
        "csi-sanity says {counts:?}: expected {expected:?}; its log is {}",
        path.display()
    );
    let expected_reasons: BTreeSet<String> =
        UNSUPPORTED_CSI_1_13.iter().chain(row.skip_reasons).map(|text| (*text).to_owned()).collect();
    ensure!(
        reasons == expected_reasons,
        "csi-sanity skips for {reasons:?}: expected {expected_reasons:?}; its log is {}",
        path.display()
    );
    let metrics = process::metrics_page(&client).await?;
    for method in row.called_methods {
        ensure!(
            metrics.contains(&format!("/csi.v1.Controller/{method}\"")),
            "csi-sanity did not call {method}"
        );
    }
    ensure!(!metrics.contains("grpc_status_code=\"Internal\""), "a call ended in a defect: {metrics}");
    node.process.stop().await?;
    csi_server.stop().await?;
    for path_left in [&socket, &node.socket, &node.registration] {
        ensure!(!path_left.exists(), "{} is left", path_left.display());
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let path_left = mounts.lines().find(|line| line.contains(&root.display().to_string()));
    ensure!(path_left.is_none(), "mounted: {}", path_left.unwrap_or_default());
    let records = node.volume_records()?;
    ensure!(records.is_empty(), "the node has records of {records:?}");
    run.add_note(&format!(
        "csi-sanity with {}: {} passed, {} skipped",
        row.name, counts.passed, counts.skipped
    ))
}

fn log_path(run: &SuiteRun, row: &SanityRun) -> PathBuf {
    run.log(&format!("csi-sanity-{}", row.name))
}

/// Runs csi-sanity to its end; returns the counts of its summary and the reasons of skipped tests.
async fn run_csi_sanity(
    run: &SuiteRun,
    row: &SanityRun,
    root: &Path,
    node: &Path,
    controller: &Path,
) -> Result<(SanityCounts, BTreeSet<String>)> {
    let directory = run.scratch().join(row.name);
    fs::create_dir_all(&directory)?;
    let write = |name: &str, text: &str| -> Result<PathBuf> {
        let path = directory.join(name);
        fs::write(&path, text)?;
        Ok(path)
    };
    let (volumes, snapshots) =
        (write("volumes.yaml", row.volume_parameters)?, write("snapshots.yaml", row.snapshot_parameters)?);
    let spec = CommandSpec::new(format!("csi-sanity-{}", row.name), run.peers().program("csi-sanity")?)
        .arg(format_args!("--csi.endpoint=unix://{}", node.display()))
        .arg(format_args!("--csi.controllerendpoint=unix://{}", controller.display()))
        .arg(format_args!("--csi.mountdir={}", root.join("target").display()))
        .arg(format_args!("--csi.stagingdir={}", root.join("staging").display()))
        .arg(format_args!("--csi.testvolumeaccesstype={}", row.access_type))
        .arg(format_args!("--csi.testvolumesize={SIZE}"))
        .arg(format_args!("--csi.testvolumeexpandsize={}", 2 * SIZE))
        .arg(format_args!("--csi.testvolumeparameters={}", volumes.display()))
        .arg(format_args!("--csi.testsnapshotparameters={}", snapshots.display()))
        .args(["--csi.testnodevolumeattachlimit", "--ginkgo.no-color", "--ginkgo.v"]);
    ManagedProcess::start(run, spec)?.wait_exit(SANITY_TIMEOUT).await?;
    let path = log_path(run, row);
    let text = fs::read_to_string(&path)?;
    let counts = SanityCounts::parse(&text).with_context(|| format!("its log is {}", path.display()))?;
    Ok((counts, skip_reasons(&text)))
}

/// Skip reasons in the output, without locations.
fn skip_reasons(log: &str) -> BTreeSet<String> {
    let marked = log.lines().filter_map(|line| line.trim().strip_prefix("[SKIPPED] "));
    marked.filter(|reason| !reason.starts_with("in [")).map(str::to_owned).collect()
}

/// The number before a word.
fn number_before(line: &str, word: &str) -> Result<u32> {
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
    fn ginkgo_summary_line_is_parsed() {
        let line = "FAIL! -- 60 Passed | 2 Failed | 1 Pending | 33 Skipped";
        let read = ["Passed", "Failed", "Skipped"].map(|word| number_before(line, word).unwrap());
        assert_eq!(read, [60, 2, 33]);
        assert!(number_before(line, "Lost").is_err());
    }
}
