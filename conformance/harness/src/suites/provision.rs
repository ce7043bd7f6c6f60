//! The roles `provisioner`, `pv-controller` and `protection` provision, bind and delete claims and their
//! volumes on kube-apiserver, without upstream controllers.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    account::Account,
    claims::Claims,
    cofferdam::{self, MemoryDriver},
    control_plane::{ControlPlane, ControlPlaneOptions},
    run::SuiteRun,
};

const CLAIMS: usize = 50;
const TIMEOUT: Duration = Duration::from_secs(240);
const DRIVER: &str = "memory.conformance.cofferdam.dev";

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    // The role `protection` removes the finalizers of claims and volumes, because no upstream controller
    // runs.
    let plane = ControlPlane::start(run, ControlPlaneOptions::default()).await?;
    let driver = MemoryDriver::new(run, DRIVER)?;
    let account = Account::new(run, &plane, &["provisioner", "pv-controller", "protection"]).await?;
    let mut cofferdam = cofferdam::start(run, &account, &driver).await?;

    let claims = Claims::new(plane.client(), "provision", DRIVER).await?;
    claims.create(0..CLAIMS).await?;
    claims.wait_bound(CLAIMS, TIMEOUT).await?;
    cofferdam.stop().await?;
    claims.ensure_consistent(CLAIMS, &driver.volumes(run).await?).await?;

    cofferdam.restart()?;
    claims.delete(0..CLAIMS).await?;
    claims.wait_remaining(0, TIMEOUT).await?;
    cofferdam.stop().await?;
    let remaining = driver.volumes(run).await?;
    ensure!(remaining.is_empty(), "{} volumes are left at the storage: {remaining:?}", remaining.len());
    drop(claims);
    plane.stop().await
}
