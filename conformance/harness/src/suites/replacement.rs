//! Cofferdam and the upstream controllers replace each other under load. No claim is lost, and no volume
//! leaks.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    account::Account,
    claims::{ClaimLoad, Claims},
    cofferdam::{self, MemoryDriver},
    control_plane::{ApiUser, ControlPlane, ControlPlaneOptions},
    driver::CsiDriverProcess,
    run::SuiteRun,
    sidecar,
};

/// Minimum claims. More are created until the last replacement, so that each has pending claims.
const CLAIMS: usize = 300;
/// Concurrent requests of the users.
const CONCURRENT_REQUESTS: usize = 50;
/// Claims that are deleted after the replacement, so that it has pending deletions.
const DELETED_LATER: usize = 60;
/// Bound claims at the first and the second replacement.
const BOUND_AT_FIRST_SWAP: usize = 40;
const BOUND_AT_SECOND_SWAP: usize = 140;
const TIMEOUT: Duration = Duration::from_secs(300);
const DRIVER: &str = "peer.conformance.cofferdam.dev";
/// Controllers of kube-controller-manager that remove finalizers. They always run.
const PROTECTION_CONTROLLERS: &str =
    "persistentvolume-protection-controller,persistentvolumeclaim-protection-controller";
const BINDER_CONTROLLERS: &str = "persistentvolume-binder-controller,persistentvolume-protection-controller,\
                      persistentvolumeclaim-protection-controller";

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let options = ControlPlaneOptions { is_unlimited: true, ..ControlPlaneOptions::default() };
    let mut plane = ControlPlane::start(run, options).await?;
    replace_binder_of_cofferdam(run, &mut plane).await?;
    replace_binder_of_csi_provisioner(run, &mut plane).await?;
    replace_provisioner(run, &mut plane).await?;
    plane.stop().await
}

/// Cofferdam's provisioner with the upstream, Cofferdam's and again the upstream binder.
async fn replace_binder_of_cofferdam(run: &SuiteRun, plane: &mut ControlPlane) -> Result<()> {
    let driver = MemoryDriver::new(run, DRIVER)?;
    let claims = Claims::new(plane.client(), "our-provisioner", DRIVER).await?;
    let provisioner_account = Account::new(run, plane, &["provisioner"]).await?;
    let both_account = Account::new(run, plane, &["provisioner", "pv-controller"]).await?;

    plane.start_controller_manager(run, BINDER_CONTROLLERS).await?;
    let mut cofferdam = cofferdam::start(run, &provisioner_account, &driver).await?;
    let load = ClaimLoad::new(CLAIMS, CONCURRENT_REQUESTS);
    let swaps = async {
        claims.wait_bound(BOUND_AT_FIRST_SWAP, TIMEOUT).await?;
        plane.replace_controller_manager(run, PROTECTION_CONTROLLERS).await?;
        cofferdam.kill().await?;
        claims.wait_unfinished(TIMEOUT).await?;
        cofferdam = cofferdam::start(run, &both_account, &driver).await?;
        claims.wait_bound(BOUND_AT_SECOND_SWAP, TIMEOUT).await?;
        cofferdam.kill().await?;
        claims.wait_unfinished(TIMEOUT).await?;
        cofferdam = cofferdam::start(run, &provisioner_account, &driver).await?;
        plane.replace_controller_manager(run, BINDER_CONTROLLERS).await?;
        let count = load.finish();
        claims.wait_bound(count, TIMEOUT).await?;
        anyhow::Ok(count)
    };
    let (_, count) = tokio::try_join!(claims.create_continuously(&load), swaps)?;
    cofferdam.stop().await?;
    claims.ensure_consistent(count, &driver.volumes(run).await?).await?;

    // Deletion, with a replacement during it.
    cofferdam.restart()?;
    let swap = async {
        claims.wait_remaining(count - BOUND_AT_FIRST_SWAP, TIMEOUT).await?;
        plane.replace_controller_manager(run, PROTECTION_CONTROLLERS).await?;
        cofferdam.kill().await?;
        claims.delete(count - DELETED_LATER..count).await?;
        claims.wait_unfinished(TIMEOUT).await?;
        cofferdam = cofferdam::start(run, &both_account, &driver).await?;
        claims.wait_remaining(0, TIMEOUT).await
    };
    tokio::try_join!(claims.delete(0..count - DELETED_LATER), swap)?;
    cofferdam.stop().await?;
    ensure_empty(&driver.volumes(run).await?)
}

/// csi-provisioner with Cofferdam's, the upstream and again Cofferdam's binder.
async fn replace_binder_of_csi_provisioner(run: &SuiteRun, plane: &mut ControlPlane) -> Result<()> {
    let mut driver = CsiDriverProcess::start(run, DRIVER, &["--attach=false"]).await?;
    let memory = MemoryDriver::new(run, "unused.conformance.cofferdam.dev")?;
    let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
    let claims = Claims::new(plane.client(), "our-binder", DRIVER).await?;
    let mut csi_provisioner =
        sidecar::start(run, "csi-provisioner", &kubeconfig, driver.socket(), &[]).await?;
    let account = Account::new(run, plane, &["pv-controller"]).await?;
    let binder = async || cofferdam::start(run, &account, &memory).await;

    plane.replace_controller_manager(run, PROTECTION_CONTROLLERS).await?;
    let mut cofferdam = binder().await?;
    let load = ClaimLoad::new(CLAIMS, CONCURRENT_REQUESTS);
    let swaps = async {
        claims.wait_bound(BOUND_AT_FIRST_SWAP, TIMEOUT).await?;
        cofferdam.kill().await?;
        claims.wait_unfinished(TIMEOUT).await?;
        plane.replace_controller_manager(run, BINDER_CONTROLLERS).await?;
        claims.wait_bound(BOUND_AT_SECOND_SWAP, TIMEOUT).await?;
        plane.replace_controller_manager(run, PROTECTION_CONTROLLERS).await?;
        claims.wait_unfinished(TIMEOUT).await?;
        cofferdam = binder().await?;
        let count = load.finish();
        claims.wait_bound(count, TIMEOUT).await?;
        anyhow::Ok(count)
    };
    let (_, count) = tokio::try_join!(claims.create_continuously(&load), swaps)?;
    claims.ensure_consistent(count, &driver.volumes().await?).await?;

    let swap = async {
        claims.wait_remaining(count - BOUND_AT_FIRST_SWAP, TIMEOUT).await?;
        cofferdam.kill().await?;
        claims.delete(count - DELETED_LATER..count).await?;
        claims.wait_unfinished(TIMEOUT).await?;
        plane.replace_controller_manager(run, BINDER_CONTROLLERS).await?;
        claims.wait_remaining(0, TIMEOUT).await
    };
    tokio::try_join!(claims.delete(0..count - DELETED_LATER), swap)?;
    ensure_empty(&driver.volumes().await?)?;
    csi_provisioner.stop().await?;
    driver.process.stop().await
}

/// The upstream binder and one driver with csi-provisioner, Cofferdam's provisioner, csi-provisioner, and
/// Cofferdam's during deletion.
async fn replace_provisioner(run: &SuiteRun, plane: &mut ControlPlane) -> Result<()> {
    let mut driver = CsiDriverProcess::start(run, DRIVER, &["--attach=false"]).await?;
    let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
    let claims = Claims::new(plane.client(), "provisioners", DRIVER).await?;
    let account = Account::new(run, plane, &["provisioner"]).await?;
    let start_csi_provisioner =
        async || sidecar::start(run, "csi-provisioner", &kubeconfig, driver.socket(), &[]).await;
    let start_cofferdam = async || cofferdam::start_with_csi_driver(run, &account, driver.socket()).await;

    plane.replace_controller_manager(run, BINDER_CONTROLLERS).await?;
    let mut provisioner = start_csi_provisioner().await?;
    let load = ClaimLoad::new(CLAIMS, CONCURRENT_REQUESTS);
    let swaps = async {
        claims.wait_bound(BOUND_AT_FIRST_SWAP, TIMEOUT).await?;
        provisioner.kill().await?;
        claims.wait_unfinished(TIMEOUT).await?;
        provisioner = start_cofferdam().await?;
        claims.wait_bound(BOUND_AT_SECOND_SWAP, TIMEOUT).await?;
        provisioner.kill().await?;
        claims.wait_unfinished(TIMEOUT).await?;
        provisioner = start_csi_provisioner().await?;
        let count = load.finish();
        claims.wait_bound(count, TIMEOUT).await?;
        anyhow::Ok(count)
    };
    let (_, count) = tokio::try_join!(claims.create_continuously(&load), swaps)?;
    claims.ensure_consistent(count, &driver.volumes().await?).await?;

    let swap = async {
        claims.wait_remaining(count - BOUND_AT_FIRST_SWAP, TIMEOUT).await?;
        provisioner.kill().await?;
        claims.delete(count - DELETED_LATER..count).await?;
        claims.wait_unfinished(TIMEOUT).await?;
        provisioner = start_cofferdam().await?;
        claims.wait_remaining(0, TIMEOUT).await
    };
    tokio::try_join!(claims.delete(0..count - DELETED_LATER), swap)?;
    ensure_empty(&driver.volumes().await?)?;
    provisioner.stop().await?;
    driver.process.stop().await
}

fn ensure_empty(stored: &BTreeMap<String, String>) -> Result<()> {
    ensure!(stored.is_empty(), "{} volumes are left at the storage: {stored:?}", stored.len());
    Ok(())
}
