//! Our `provisioner` and `pv-controller` do the whole way of a claim on a real API, without any of Kubernetes' own loops.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    account::Account,
    claims::Claims,
    cofferdam::{self, MemoryDriver},
    control_plane::{ControlPlane, Options},
    run::Run,
};

const CLAIMS: usize = 50;
const SOON: Duration = Duration::from_secs(240);
const DRIVER: &str = "memory.conformance.cofferdam.dev";

pub(super) async fn run(run: &Run) -> Result<()> {
    // The finalizers of claims and volumes are taken off by loops that our role `protection` takes the place of.
    let plane = ControlPlane::start(run, Options::default()).await?;
    let driver = MemoryDriver::new(run, DRIVER)?;
    let account = Account::new(run, &plane, &["provisioner", "pv-controller", "protection"]).await?;
    let mut ours = cofferdam::start(run, &account, &driver).await?;

    let claims = Claims::new(plane.client(), "provision", DRIVER).await?;
    claims.create(0..CLAIMS).await?;
    claims.bound(CLAIMS, SOON).await?;
    ours.stop().await?;
    claims.sound(CLAIMS, &driver.volumes(run).await?).await?;

    ours.again()?;
    claims.delete(0..CLAIMS).await?;
    claims.left(0, SOON).await?;
    ours.stop().await?;
    let left = driver.volumes(run).await?;
    ensure!(left.is_empty(), "{} volumes are left at the storage: {left:?}", left.len());
    drop(claims);
    plane.stop().await
}
