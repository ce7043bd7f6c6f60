//! csi-sanity passes on the Go driver of the other suites, and fails once the driver injects a failure.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    driver::CsiDriverProcess,
    process::{CommandSpec, ManagedProcess},
    run::SuiteRun,
};

const DRIVER: &str = "peer.conformance.cofferdam.dev";
const SANITY_TIMEOUT: Duration = Duration::from_secs(240);

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let volumes = run.scratch().join("volumes");
    let mut driver =
        CsiDriverProcess::start(run, DRIVER, &[&format!("--directory={}", volumes.display())]).await?;
    ensure!(
        run_csi_sanity(run, &driver, "sane").await?,
        "csi-sanity finds something: its log is {}",
        run.log("sane").display()
    );
    ensure!(driver.volumes().await?.is_empty(), "csi-sanity has left volumes");
    // An injected failure has to fail csi-sanity.
    driver.inject_failures("CreateVolume", "UNAVAILABLE", 1).await?;
    ensure!(
        !run_csi_sanity(run, &driver, "faulty").await?,
        "csi-sanity finds nothing although a call failed on purpose"
    );
    let calls: BTreeMap<String, u64> = driver.call_counts().await?;
    for method in ["CreateVolume", "ControllerPublishVolume", "CreateSnapshot", "NodePublishVolume"] {
        ensure!(calls.contains_key(method), "csi-sanity did not call {method}");
    }
    driver.process.stop().await
}

/// Runs csi-sanity. Returns true if it passed.
async fn run_csi_sanity(run: &SuiteRun, driver: &CsiDriverProcess, log: &str) -> Result<bool> {
    let directory = run.scratch().join(log);
    let spec = CommandSpec::new(log, run.peers().program("csi-sanity")?)
        .arg(format_args!("--csi.endpoint=unix://{}", driver.socket().display()))
        .arg(format_args!("--csi.mountdir={}", directory.join("target").display()))
        .arg(format_args!("--csi.stagingdir={}", directory.join("staging").display()))
        .arg("--ginkgo.no-color");
    std::fs::create_dir_all(&directory)?;
    Ok(ManagedProcess::start(run, spec)?.wait_exit(SANITY_TIMEOUT).await?.success())
}
