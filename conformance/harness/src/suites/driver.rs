//! The driver that controllers are compared on is a driver: csi-sanity finds nothing wrong with it, and its faults come as told.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    driver::Driver,
    process::{Process, Spec},
    run::Run,
};

const DRIVER: &str = "peer.conformance.cofferdam.dev";
const LONG: Duration = Duration::from_secs(240);

pub(super) async fn run(run: &Run) -> Result<()> {
    let volumes = run.scratch().join("volumes");
    let mut driver = Driver::start(run, DRIVER, &[&format!("--directory={}", volumes.display())]).await?;
    ensure!(
        sanity(run, &driver, "sane").await?,
        "csi-sanity finds something: its log is {}",
        run.log("sane").display()
    );
    ensure!(driver.volumes().await?.is_empty(), "csi-sanity has left volumes");
    // One creation fails, which csi-sanity tells: it does look.
    driver.fail("CreateVolume", "UNAVAILABLE", 1).await?;
    ensure!(
        !sanity(run, &driver, "faulty").await?,
        "csi-sanity finds nothing although a call failed on purpose"
    );
    let calls: BTreeMap<String, u64> = driver.calls().await?;
    for method in ["CreateVolume", "ControllerPublishVolume", "CreateSnapshot", "NodePublishVolume"] {
        ensure!(calls.contains_key(method), "csi-sanity did not call {method}");
    }
    driver.process.stop().await
}

/// Runs csi-sanity, and tells whether it found nothing.
async fn sanity(run: &Run, driver: &Driver, log: &str) -> Result<bool> {
    let directory = run.scratch().join(log);
    let spec = Spec::new(log, run.peers().program("csi-sanity")?)
        .arg(format_args!("--csi.endpoint=unix://{}", driver.socket().display()))
        .arg(format_args!("--csi.mountdir={}", directory.join("target").display()))
        .arg(format_args!("--csi.stagingdir={}", directory.join("staging").display()))
        .arg("--ginkgo.no-color");
    std::fs::create_dir_all(&directory)?;
    Ok(Process::start(run, spec)?.ended(LONG).await?.success())
}
