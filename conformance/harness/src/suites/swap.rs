//! Ours and Kubernetes' controllers speak the same language: each takes the other's place in the middle of a run, and gives it
//! back, with nothing lost and nothing left over.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    account::Account,
    claims::Claims,
    cofferdam::{self, MemoryDriver},
    control_plane::{ControlPlane, Options, User},
    driver::Driver,
    run::Run,
    sidecar,
};

const CLAIMS: usize = 300;
/// How many claims are done when the first swap begins, and when the second does.
const FIRST: usize = 40;
const SECOND: usize = 140;
const LONG: Duration = Duration::from_secs(300);
const DRIVER: &str = "peer.conformance.cofferdam.dev";
/// The loops of kube-controller-manager that take finalizers off: they run throughout.
const PROTECTION: &str = "persistentvolume-protection-controller,persistentvolumeclaim-protection-controller";
const BINDER: &str = "persistentvolume-binder-controller,persistentvolume-protection-controller,\
                      persistentvolumeclaim-protection-controller";

pub(super) async fn run(run: &Run) -> Result<()> {
    let options = Options { unlimited: true, ..Options::default() };
    let mut plane = ControlPlane::start(run, options).await?;
    our_provisioner(run, &mut plane).await?;
    our_binder(run, &mut plane).await?;
    one_provisioner_for_the_other(run, &mut plane).await?;
    plane.stop().await
}

/// Our provisioner throughout; the binder is Kubernetes', then ours, then Kubernetes'.
async fn our_provisioner(run: &Run, plane: &mut ControlPlane) -> Result<()> {
    let driver = MemoryDriver::new(run, DRIVER)?;
    let claims = Claims::new(plane.client(), "our-provisioner", DRIVER).await?;
    let alone = Account::new(run, plane, &["provisioner"]).await?;
    let both = Account::new(run, plane, &["provisioner", "pv-controller"]).await?;

    plane.start_controller_manager(run, BINDER).await?;
    let mut ours = cofferdam::start(run, &alone, &driver).await?;
    let swaps = async {
        claims.bound(FIRST, LONG).await?;
        plane.replace_controller_manager(run, PROTECTION).await?;
        ours.kill().await?;
        claims.in_the_middle().await?;
        ours = cofferdam::start(run, &both, &driver).await?;
        claims.bound(SECOND, LONG).await?;
        ours.kill().await?;
        claims.in_the_middle().await?;
        ours = cofferdam::start(run, &alone, &driver).await?;
        plane.replace_controller_manager(run, BINDER).await?;
        claims.bound(CLAIMS, LONG).await
    };
    tokio::try_join!(claims.create(0..CLAIMS), swaps)?;
    ours.stop().await?;
    claims.sound(CLAIMS, &driver.volumes(run).await?).await?;

    // The way back, with a swap in its middle too.
    ours.again()?;
    let swap = async {
        claims.left(CLAIMS - FIRST, LONG).await?;
        plane.replace_controller_manager(run, PROTECTION).await?;
        ours.kill().await?;
        claims.in_the_middle().await?;
        ours = cofferdam::start(run, &both, &driver).await?;
        claims.left(0, LONG).await
    };
    tokio::try_join!(claims.delete(0..CLAIMS), swap)?;
    ours.stop().await?;
    empty(&driver.volumes(run).await?)
}

/// csi-provisioner throughout; the binder is ours, then Kubernetes', then ours.
async fn our_binder(run: &Run, plane: &mut ControlPlane) -> Result<()> {
    let mut driver = Driver::start(run, DRIVER, &["--attach=false"]).await?;
    let memory = MemoryDriver::new(run, "unused.conformance.cofferdam.dev")?;
    let kubeconfig = plane.kubeconfig(User::Admin)?;
    let claims = Claims::new(plane.client(), "our-binder", DRIVER).await?;
    let mut theirs = sidecar::start(run, "csi-provisioner", &kubeconfig, driver.socket(), &[]).await?;
    let account = Account::new(run, plane, &["pv-controller"]).await?;
    let binder = async || cofferdam::start(run, &account, &memory).await;

    plane.replace_controller_manager(run, PROTECTION).await?;
    let mut ours = binder().await?;
    let swaps = async {
        claims.bound(FIRST, LONG).await?;
        ours.kill().await?;
        claims.in_the_middle().await?;
        plane.replace_controller_manager(run, BINDER).await?;
        claims.bound(SECOND, LONG).await?;
        plane.replace_controller_manager(run, PROTECTION).await?;
        claims.in_the_middle().await?;
        ours = binder().await?;
        claims.bound(CLAIMS, LONG).await
    };
    tokio::try_join!(claims.create(0..CLAIMS), swaps)?;
    claims.sound(CLAIMS, &driver.volumes().await?).await?;

    let swap = async {
        claims.left(CLAIMS - FIRST, LONG).await?;
        ours.kill().await?;
        claims.in_the_middle().await?;
        plane.replace_controller_manager(run, BINDER).await?;
        claims.left(0, LONG).await
    };
    tokio::try_join!(claims.delete(0..CLAIMS), swap)?;
    empty(&driver.volumes().await?)?;
    theirs.stop().await?;
    driver.process.stop().await
}

/// Kubernetes' binder throughout, and one driver; the provisioner is csi-provisioner, then ours, then csi-provisioner, and ours
/// again while the claims go.
async fn one_provisioner_for_the_other(run: &Run, plane: &mut ControlPlane) -> Result<()> {
    let mut driver = Driver::start(run, DRIVER, &["--attach=false"]).await?;
    let kubeconfig = plane.kubeconfig(User::Admin)?;
    let claims = Claims::new(plane.client(), "provisioners", DRIVER).await?;
    let account = Account::new(run, plane, &["provisioner"]).await?;
    let theirs = async || sidecar::start(run, "csi-provisioner", &kubeconfig, driver.socket(), &[]).await;
    let ours = async || cofferdam::start_before(run, &account, driver.socket()).await;

    plane.replace_controller_manager(run, BINDER).await?;
    let mut provisioner = theirs().await?;
    let swaps = async {
        claims.bound(FIRST, LONG).await?;
        provisioner.kill().await?;
        claims.in_the_middle().await?;
        provisioner = ours().await?;
        claims.bound(SECOND, LONG).await?;
        provisioner.kill().await?;
        claims.in_the_middle().await?;
        provisioner = theirs().await?;
        claims.bound(CLAIMS, LONG).await
    };
    tokio::try_join!(claims.create(0..CLAIMS), swaps)?;
    claims.sound(CLAIMS, &driver.volumes().await?).await?;

    let swap = async {
        claims.left(CLAIMS - FIRST, LONG).await?;
        provisioner.kill().await?;
        claims.in_the_middle().await?;
        provisioner = ours().await?;
        claims.left(0, LONG).await
    };
    tokio::try_join!(claims.delete(0..CLAIMS), swap)?;
    empty(&driver.volumes().await?)?;
    provisioner.stop().await?;
    driver.process.stop().await
}

fn empty(stored: &BTreeMap<String, String>) -> Result<()> {
    ensure!(stored.is_empty(), "{} volumes are left at the storage: {stored:?}", stored.len());
    Ok(())
}
