//! Ours and Kubernetes' controllers speak the same language: each takes the other's place in the middle of a
//! run, and gives it back, with nothing lost and nothing left over.

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

/// Claims at least: they are created until the last swap, so that each swap has pending claims.
const CLAIMS: usize = 300;
/// Requests of the users at the same time.
const CONCURRENT_REQUESTS: usize = 50;
/// Claims that are deleted only after the swap, so that it has pending deletions.
const DELETED_LATER: usize = 60;
/// Bound claims when the first and the second swap start.
const BOUND_AT_FIRST_SWAP: usize = 40;
const BOUND_AT_SECOND_SWAP: usize = 140;
const TIMEOUT: Duration = Duration::from_secs(300);
const DRIVER: &str = "peer.conformance.cofferdam.dev";
/// The loops of kube-controller-manager that take finalizers off: they run throughout.
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

/// Our provisioner throughout; the binder is Kubernetes', then ours, then Kubernetes'.
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

    // The way back, with a swap in its middle too.
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

/// csi-provisioner throughout; the binder is ours, then Kubernetes', then ours.
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

/// Kubernetes' binder throughout, and one driver; the provisioner is csi-provisioner, then ours, then
/// csi-provisioner, and ours again while the claims go.
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
