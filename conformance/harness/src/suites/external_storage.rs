//! Kubernetes' own end-to-end tests of storage ("External Storage") about snapshots, restores and clones, on
//! the Go driver with real pods: once with the sidecars, snapshot-controller and kube-controller-manager, and
//! once with Cofferdam's roles in their place. The same tests pass, and the same tests fail.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

use crate::{
    account::{Account, CLUSTER_ROLES},
    cofferdam,
    control_plane::{ApiUser, ControlPlane, ControlPlaneOptions, UNREPLACED_CONTROLLERS},
    driver::CsiDriverProcess,
    image,
    implementation::Implementation,
    node::{self, KubeletNode},
    pod,
    process::{self, CommandSpec, ManagedProcess},
    run::SuiteRun,
    sidecar, snapshot_crds,
    wait::until,
};

const DRIVER: &str = "external.conformance.cofferdam.dev";
const NODE: &str = "node-1";
/// The program that `make conformance SUITE=external-storage` builds.
const PROGRAM: &str = "e2e.test";
/// The tests about snapshots, restores and clones.
const FOCUS: &str = "External.Storage.*([Ss]napshot|data source|clone)";
/// Group snapshots and the snapshot metadata service are no part of the roles. The tests of any data source
/// need images of a populator from a registry.
const SKIP: &str =
    "VolumeGroupSnapshot|volumegroupsnapshot|snapshot-metadata|any volume data source|Disruptive";
/// Images of the tests of which only the shell and its usual programs are used.
const SHELL_IMAGES: [&str; 2] = ["/busybox:", "/glibc-dns-testing:"];
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of the tests of one implementation.
const TESTS_TIMEOUT: Duration = Duration::from_secs(3600);

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    // All controllers: the tests delete their namespaces, and wait for the objects in them.
    let options = ControlPlaneOptions {
        controllers: Some("*".to_owned()),
        has_scheduler: true,
        is_unaudited: true,
        ..ControlPlaneOptions::default()
    };
    let mut plane = ControlPlane::start(run, options).await?;
    snapshot_crds::install(plane.client()).await?;
    let object: CSIDriver = serde_json::from_value(pod::csi_driver_object(DRIVER))?;
    Api::all(plane.client().clone()).create(&PostParams::default(), &object).await?;
    let node = KubeletNode::start(run, &plane, NODE).await?;
    node.import_images(run, &test_images(run).await?).await?;
    let driver = start_driver(run, &plane, &node).await?;

    let mut results = Vec::new();
    for implementation in [Implementation::Upstream, Implementation::Cofferdam] {
        let mut processes = start_controllers(run, &mut plane, implementation, driver.csi.socket()).await?;
        results.push(run_tests(run, &plane, implementation).await?);
        for process in &mut processes {
            process.stop().await?;
        }
    }
    let [upstream, cofferdam] = results.as_slice() else { anyhow::bail!("two implementations ran") };
    let names = |results: &Results, passed: bool| -> BTreeSet<String> {
        results
            .iter()
            .filter(|(_, has_passed)| **has_passed == passed)
            .map(|(name, _)| name.clone())
            .collect()
    };
    run.add_note(&format!(
        "upstream: {} tests passed, failed: {:?}",
        names(upstream, true).len(),
        names(upstream, false)
    ))?;
    ensure!(
        upstream == cofferdam,
        "the results differ: passed on upstream only: {:?}; passed on Cofferdam only: {:?}",
        names(upstream, true).difference(&names(cofferdam, true)).collect::<Vec<_>>(),
        names(cofferdam, true).difference(&names(upstream, true)).collect::<Vec<_>>()
    );
    ensure!(!names(cofferdam, true).is_empty(), "no test passed");
    let (volumes, snapshots) = (driver.csi.volumes().await?, driver.csi.snapshots().await?);
    run.add_note(&format!(
        "left at the storage by the tests: {} volumes, {} snapshots",
        volumes.len(),
        snapshots.len()
    ))?;
    driver.stop().await?;
    node.stop().await?;
    plane.stop().await
}

/// The results of the tests that ran, by their names: true if the test passed.
type Results = BTreeMap<String, bool>;

/// An archive of the test images that have only a shell, under the names that the tests use.
async fn test_images(run: &SuiteRun) -> Result<PathBuf> {
    let listed = process::run_to_completion(run.peers().program(PROGRAM)?, &["--list-images"]).await?;
    let is_shell = |name: &&str| SHELL_IMAGES.iter().any(|image| name.contains(image));
    let names: Vec<&str> = listed.lines().map(str::trim).filter(is_shell).collect();
    ensure!(!names.is_empty(), "{PROGRAM} --list-images lists none of {SHELL_IMAGES:?}: {listed}");
    image::write_shell_archive(&run.scratch().join("test-images"), &names).await
}

/// The Go driver with its node service, registered with kubelet.
struct Driver {
    csi: CsiDriverProcess,
    registrar: ManagedProcess,
}

impl Driver {
    async fn stop(mut self) -> Result<()> {
        self.registrar.stop().await?;
        self.csi.process.stop().await
    }
}

async fn start_driver(run: &SuiteRun, plane: &ControlPlane, node: &KubeletNode) -> Result<Driver> {
    let volumes = format!("--directory={}", run.scratch().join("volumes").display());
    let csi = CsiDriverProcess::start(run, DRIVER, &[&volumes, &format!("--node={NODE}")]).await?;
    let registry = node.root().join("plugins_registry");
    fs::create_dir_all(&registry)?;
    let spec = CommandSpec::new("go-registrar", run.peers().program("csi-driver")?)
        .arg(format_args!("--name={DRIVER}"))
        .arg(format_args!("--socket={}", csi.socket().display()))
        .arg(format_args!("--register={}", registry.display()));
    let registrar = ManagedProcess::start(run, spec)?;
    until("the CSINode has the driver", REGISTRATION_TIMEOUT, async || {
        node::ensure_registered(plane.client(), NODE, DRIVER).await
    })
    .await?;
    Ok(Driver { csi, registrar })
}

/// Starts the controllers of an implementation, except those in kube-controller-manager, which is replaced.
async fn start_controllers(
    run: &SuiteRun,
    plane: &mut ControlPlane,
    implementation: Implementation,
    socket: &Path,
) -> Result<Vec<ManagedProcess>> {
    match implementation {
        Implementation::Upstream => {
            let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
            let mut processes = Vec::new();
            for name in ["csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter"] {
                processes.push(sidecar::start(run, name, &kubeconfig, socket, &[]).await?);
            }
            let spec = sidecar::upstream_command(run, "snapshot-controller")?;
            processes.push(sidecar::start_program(run, spec, &kubeconfig, None, &[]).await?);
            Ok(processes)
        }
        Implementation::Cofferdam => {
            plane.replace_controller_manager(run, UNREPLACED_CONTROLLERS).await?;
            let roles = [&CLUSTER_ROLES[..], &["snapshot-controller", "snapshotter"]].concat();
            let account = Account::new(run, plane, &roles).await?;
            Ok(vec![cofferdam::start_with_csi_driver(run, &account, socket).await?])
        }
    }
}

/// The description of the driver for the tests.
fn driver_description() -> Value {
    json!({
        "ShortName": "go",
        "StorageClass": { "FromName": true },
        "SnapshotClass": { "FromName": true },
        "DriverInfo": {
            "Name": DRIVER,
            "SupportedSizeRange": { "Min": "1Gi" },
            "Capabilities": {
                "persistence": true,
                "exec": true,
                "multipods": true,
                "RWX": true,
                "capReadOnlyMany": true,
                "controllerExpansion": true,
                "nodeExpansion": true,
                "snapshotDataSource": true,
                "pvcDataSource": true,
                "singleNodeVolume": true,
                // A volume is a directory, which has the size of its filesystem.
                "FSResizeFromSourceNotSupported": true,
            },
            "VolumeSnapshotStressTestOptions": { "NumPods": 2, "NumSnapshots": 3 },
        },
    })
}

/// Runs the tests. Their output and report are among the logs.
async fn run_tests(run: &SuiteRun, plane: &ControlPlane, implementation: Implementation) -> Result<Results> {
    let name = implementation.as_str().to_lowercase();
    let description = run.scratch().join("driver.json");
    fs::write(&description, driver_description().to_string())?;
    let report = run.directory().join(format!("{name}.json"));
    let spec = CommandSpec::new(format!("e2e-{name}"), run.peers().program(PROGRAM)?)
        .arg(format_args!("--kubeconfig={}", plane.kubeconfig(ApiUser::Admin)?.display()))
        .arg(format_args!("--storage.testdriver={}", description.display()))
        .arg(format_args!("--ginkgo.focus={FOCUS}"))
        .arg(format_args!("--ginkgo.skip={SKIP}"))
        .arg(format_args!("--ginkgo.json-report={}", report.display()))
        .args(["--provider=local", "--num-nodes=1", "--ginkgo.no-color", "--disable-log-dump"])
        .arg(format_args!("--kubectl-path={}", run.peers().program("kubectl")?.display()));
    // Fails if a test has failed.
    ManagedProcess::start(run, spec)?.wait_exit(TESTS_TIMEOUT).await?;
    let text = fs::read_to_string(&report).with_context(|| report.display().to_string())?;
    let results = parse_report(&serde_json::from_str(&text)?)?;
    let passed = results.values().filter(|has_passed| **has_passed).count();
    run.add_note(&format!("{}: {passed} of {} tests passed", implementation.as_str(), results.len()))?;
    Ok(results)
}

/// The results of the tests in a report of Ginkgo, without those that were skipped.
///
/// # Errors
/// If the report has another structure, or a set-up failed.
fn parse_report(report: &Value) -> Result<Results> {
    let mut results = Results::new();
    let suites = report.as_array().context("a report that is no list")?;
    for spec in suites.iter().filter_map(|suite| suite.get("SpecReports")?.as_array()).flatten() {
        let field = |name: &str| spec.get(name).and_then(Value::as_str).unwrap_or_default();
        let (state, kind) = (field("State"), field("LeafNodeType"));
        if kind != "It" {
            ensure!(matches!(state, "passed" | "skipped"), "{kind} is {state}");
            continue;
        }
        if !matches!(state, "skipped" | "pending") {
            let containers = spec.get("ContainerHierarchyTexts").and_then(Value::as_array);
            let containers = containers.into_iter().flatten().filter_map(Value::as_str);
            let names: Vec<&str> = containers.chain([field("LeafNodeText")]).collect();
            results.insert(names.join(" "), state == "passed");
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_tests_have_no_result_and_a_failed_set_up_is_an_error() {
        let spec = |kind: &str, text: &str, state: &str| {
            json!({
                "LeafNodeType": kind, "LeafNodeText": text, "State": state,
                "ContainerHierarchyTexts": ["External Storage", "snapshottable"],
            })
        };
        let report = |specs: Vec<Value>| parse_report(&json!([{ "SpecReports": specs }]));
        let results = report(vec![
            spec("SynchronizedBeforeSuite", "", "passed"),
            spec("It", "works", "passed"),
            spec("It", "breaks", "failed"),
            spec("It", "hangs", "timedout"),
            spec("It", "lacks", "skipped"),
        ])
        .unwrap();
        let names: Vec<(&str, bool)> =
            results.iter().map(|(name, passed)| (name.as_str(), *passed)).collect();
        assert_eq!(
            names,
            [
                ("External Storage snapshottable breaks", false),
                ("External Storage snapshottable hangs", false),
                ("External Storage snapshottable works", true)
            ]
        );
        let error = report(vec![spec("SynchronizedBeforeSuite", "", "failed")]).unwrap_err().to_string();
        assert!(error.contains("SynchronizedBeforeSuite"), "{error}");
    }
}
