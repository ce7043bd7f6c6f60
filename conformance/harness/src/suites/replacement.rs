//! Cofferdam and upstream replace each other as binder of claims (the role `pv-controller`, or
//! `persistentvolume-binder-controller` of kube-controller-manager) and as provisioner, twice while claims
//! are created and once while they are deleted. Each replacement kills the running process, and starts the
//! other one when work is pending. Every claim becomes Bound to a volume of its own, and no volume is left at
//! the storage after the deletion. At the end, csi-provisioner replaces Cofferdam as the documentation
//! describes a rollback: after the intent journal is empty.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    account::Account,
    claims::{Claims, ContinuousClaimLoad},
    class_secret::{self, ClassSecret},
    cofferdam::{self, MemoryDriver},
    control_plane::{ApiUser, BINDER_CONTROLLERS, ControlPlane, ControlPlaneOptions},
    driver::CsiDriverProcess,
    implementation::Implementation,
    journal,
    metric_names::{self, UpstreamProgram},
    process::ManagedProcess,
    run::SuiteRun,
    sidecar, stopped_role, wait,
};

/// Minimum number of claims of each load. More are created until the second replacement is done, so that
/// claims are pending at the first two replacements.
const CLAIMS: usize = 300;
/// Maximum concurrent creations of claims.
const CONCURRENT_REQUESTS: usize = 50;
/// Number of claims whose deletion is requested while neither implementation runs: between the kill and the
/// start of the third replacement. They are pending deletions for the new process.
const DELETED_LATER: usize = 60;
/// Minimum number of Bound claims at the first replacement. The third replacement, during deletion, starts
/// when at least as many claims, and as many volumes, are removed.
const BOUND_AT_FIRST_SWAP: usize = 40;
/// Minimum number of Bound claims at the second replacement.
const BOUND_AT_SECOND_SWAP: usize = 140;
const TIMEOUT: Duration = Duration::from_secs(300);
/// Duration of a driver call that is open while its claim is deleted.
const OPEN_CALL: Duration = Duration::from_secs(10);
/// Maximum number of claims until one of two binders stops.
const MAX_CLAIMS_OF_TWO_BINDERS: usize = 1000;
/// Namespace of the claims while the provisioner is replaced.
const PROVISIONERS: &str = "provisioners";
/// The provisioner calls the driver with the Secret of the class, which it may read in this namespace only.
const SECRET_NAMESPACES: &str = "--secret-namespaces=provisioners";
const DRIVER: &str = "peer.conformance.cofferdam.dev";
/// Controllers of kube-controller-manager that add and remove the protection finalizers of claims and
/// volumes. They are not replaced: kube-controller-manager runs them beside either implementation.
const PROTECTION_CONTROLLERS: &str =
    "persistentvolume-protection-controller,persistentvolumeclaim-protection-controller";

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let options = ControlPlaneOptions {
        is_unlimited: true,
        has_audited_bodies: true,
        ..ControlPlaneOptions::default()
    };
    let mut plane = ControlPlane::start(run, options).await?;
    replace_binder_of_cofferdam(run, &mut plane).await?;
    replace_binder_of_csi_provisioner(run, &mut plane).await?;
    let secret = replace_provisioner(run, &mut plane).await?;
    recognise_binder(run, &mut plane).await?;
    plane.stop().await?;
    let prefixes = &["process_", "pv_collector_", "rest_client_", "retroactive_", "volume_", "workqueue_"];
    let (name, replacement) = ("kube-controller-manager", metric_names::COFFERDAM);
    metric_names::compare(run, &[UpstreamProgram { name, replacement, prefixes }])?;
    secret.ensure_not_in_files(run.directory())
}

/// A controller with two implementations, of which at most one runs.
trait ReplacedController {
    /// Starts an implementation, and waits until it is ready. [`BinderOfCofferdam`] also starts Cofferdam's
    /// provisioner.
    async fn start(&mut self, implementation: Implementation) -> Result<()>;
    /// Stops the running implementation, which the argument names. Cofferdam and csi-provisioner are killed.
    /// kube-controller-manager is killed, and started again without the controller. [`BinderOfCofferdam`]
    /// kills Cofferdam's provisioner, too, for either implementation.
    async fn kill(&mut self, implementation: Implementation) -> Result<()>;
    /// The volumes of the driver: name by handle. [`BinderOfCofferdam`] restarts Cofferdam's process, and
    /// does not wait until it is ready.
    async fn stored_volumes(&mut self) -> Result<BTreeMap<String, String>>;
}

/// Replaces the controller [while claims are created](replace_during_creation), and once more
/// [while they are deleted](replace_during_deletion).
async fn replace_under_load(
    claims: &Claims,
    initial: Implementation,
    controller: &mut impl ReplacedController,
) -> Result<()> {
    let count = replace_during_creation(claims, initial, controller).await?;
    replace_during_deletion(claims, count, initial, controller).await
}

/// Replaces the controller by the other implementation and back while claims are created. Checks claims,
/// volumes and storage. Returns the number of claims.
async fn replace_during_creation(
    claims: &Claims,
    initial: Implementation,
    controller: &mut impl ReplacedController,
) -> Result<usize> {
    controller.start(initial).await?;
    let load = ContinuousClaimLoad::new(CLAIMS, CONCURRENT_REQUESTS);
    let swaps = async {
        for (bound, next) in [(BOUND_AT_FIRST_SWAP, initial.other()), (BOUND_AT_SECOND_SWAP, initial)] {
            claims.wait_bound(bound, TIMEOUT).await?;
            controller.kill(next.other()).await?;
            claims.wait_unfinished(TIMEOUT).await?;
            controller.start(next).await?;
        }
        let count = load.finish();
        claims.wait_bound(count, TIMEOUT).await?;
        anyhow::Ok(count)
    };
    let (_, count) = tokio::try_join!(claims.create_continuously(&load), swaps)?;
    claims.ensure_consistent(count, &controller.stored_volumes().await?).await?;
    Ok(count)
}

/// Replaces the controller by the other implementation while claims are deleted. Checks that the storage is
/// empty.
async fn replace_during_deletion(
    claims: &Claims,
    count: usize,
    initial: Implementation,
    controller: &mut impl ReplacedController,
) -> Result<()> {
    let swap = async {
        claims.wait_remaining(count - BOUND_AT_FIRST_SWAP, TIMEOUT).await?;
        controller.kill(initial).await?;
        claims.delete(count - DELETED_LATER..count).await?;
        claims.wait_unfinished(TIMEOUT).await?;
        controller.start(initial.other()).await?;
        claims.wait_remaining(0, TIMEOUT).await
    };
    tokio::try_join!(claims.delete(0..count - DELETED_LATER), swap)?;
    let stored = controller.stored_volumes().await?;
    ensure!(stored.is_empty(), "{} volumes are left at the storage: {stored:?}", stored.len());
    Ok(())
}

/// The binder of claims that runs beside Cofferdam's provisioner. Cofferdam's binder runs in the
/// provisioner's process, which is therefore killed and started at each replacement.
struct BinderOfCofferdam<'a> {
    run: &'a SuiteRun,
    plane: &'a mut ControlPlane,
    driver: MemoryDriver,
    provisioner_account: Account,
    both_account: Account,
    cofferdam: Option<ManagedProcess>,
}

impl ReplacedController for BinderOfCofferdam<'_> {
    async fn start(&mut self, implementation: Implementation) -> Result<()> {
        let account = match implementation {
            Implementation::Upstream => &self.provisioner_account,
            Implementation::Cofferdam => &self.both_account,
        };
        self.cofferdam = Some(cofferdam::start(self.run, account, &self.driver).await?);
        if implementation == Implementation::Upstream {
            self.plane.replace_controller_manager(self.run, BINDER_CONTROLLERS).await?;
        }
        Ok(())
    }

    async fn kill(&mut self, implementation: Implementation) -> Result<()> {
        if implementation == Implementation::Upstream {
            self.plane.replace_controller_manager(self.run, PROTECTION_CONTROLLERS).await?;
        }
        self.cofferdam.as_mut().context("cofferdam does not run")?.kill().await
    }

    /// `cofferdam` is stopped meanwhile: only one process can open the driver's state file.
    async fn stored_volumes(&mut self) -> Result<BTreeMap<String, String>> {
        let cofferdam = self.cofferdam.as_mut().context("cofferdam does not run")?;
        cofferdam.stop().await?;
        let volumes = self.driver.volumes(self.run).await?;
        cofferdam.restart()?;
        Ok(volumes)
    }
}

/// Replaces the binder beside Cofferdam's provisioner: upstream, Cofferdam's, upstream again, and Cofferdam's
/// during deletion.
async fn replace_binder_of_cofferdam(run: &SuiteRun, plane: &mut ControlPlane) -> Result<()> {
    let claims = Claims::new(plane.client(), "our-provisioner", DRIVER).await?;
    let mut binder = BinderOfCofferdam {
        driver: MemoryDriver::new(run, DRIVER)?,
        provisioner_account: Account::new(run, plane, &["provisioner"]).await?,
        both_account: Account::new(run, plane, &["provisioner", "pv-controller"]).await?,
        cofferdam: None,
        run,
        plane,
    };
    replace_under_load(&claims, Implementation::Upstream, &mut binder).await?;
    binder.cofferdam.context("cofferdam does not run")?.stop().await
}

/// The binder of claims that runs beside csi-provisioner.
struct BinderOfCsiProvisioner<'a> {
    run: &'a SuiteRun,
    plane: &'a mut ControlPlane,
    driver: CsiDriverProcess,
    account: Account,
    /// A driver for Cofferdam's process, because [`cofferdam::start`] requires one. The binder does not call
    /// it.
    unused: MemoryDriver,
    cofferdam: Option<ManagedProcess>,
}

impl ReplacedController for BinderOfCsiProvisioner<'_> {
    async fn start(&mut self, implementation: Implementation) -> Result<()> {
        match implementation {
            Implementation::Upstream => {
                self.plane.replace_controller_manager(self.run, BINDER_CONTROLLERS).await
            }
            Implementation::Cofferdam => {
                self.cofferdam = Some(cofferdam::start(self.run, &self.account, &self.unused).await?);
                Ok(())
            }
        }
    }

    async fn kill(&mut self, implementation: Implementation) -> Result<()> {
        match implementation {
            Implementation::Upstream => {
                self.plane.replace_controller_manager(self.run, PROTECTION_CONTROLLERS).await
            }
            Implementation::Cofferdam => {
                self.cofferdam.as_mut().context("cofferdam does not run")?.kill().await
            }
        }
    }

    async fn stored_volumes(&mut self) -> Result<BTreeMap<String, String>> {
        self.driver.volumes().await
    }
}

/// Replaces the binder beside csi-provisioner: Cofferdam's, upstream, Cofferdam's again, and upstream during
/// deletion.
async fn replace_binder_of_csi_provisioner(run: &SuiteRun, plane: &mut ControlPlane) -> Result<()> {
    let driver = CsiDriverProcess::start(run, DRIVER, &["--attach=false"]).await?;
    let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
    let claims = Claims::new(plane.client(), "our-binder", DRIVER).await?;
    let mut csi_provisioner =
        sidecar::start(run, "csi-provisioner", &kubeconfig, driver.socket(), &[]).await?;
    plane.replace_controller_manager(run, PROTECTION_CONTROLLERS).await?;
    let mut binder = BinderOfCsiProvisioner {
        driver,
        account: Account::new(run, plane, &["pv-controller"]).await?,
        unused: MemoryDriver::new(run, "unused.conformance.cofferdam.dev")?,
        cofferdam: None,
        run,
        plane,
    };
    replace_under_load(&claims, Implementation::Cofferdam, &mut binder).await?;
    csi_provisioner.stop().await?;
    binder.driver.process.stop().await
}

/// Two binders run at once, as in a cluster whose kube-controller-manager cannot be configured. The role
/// `pv-controller` recognises the other one by its writes and stops. Its process continues to provision, and
/// every claim is bound.
async fn recognise_binder(run: &SuiteRun, plane: &mut ControlPlane) -> Result<()> {
    let claims = Claims::new(plane.client(), "two-binders", DRIVER).await?;
    let account = Account::new(run, plane, &["provisioner", "pv-controller"]).await?;
    let mut cofferdam = cofferdam::start(run, &account, &MemoryDriver::new(run, DRIVER)?).await?;
    plane.replace_controller_manager(run, BINDER_CONTROLLERS).await?;
    let mut created = 0;
    while !stopped_role::is_stopped(&cofferdam, "pv-controller").await? {
        ensure!(created < MAX_CLAIMS_OF_TWO_BINDERS, "after {created} claims, the role has not stopped");
        claims.create(created..created + CONCURRENT_REQUESTS).await?;
        created += CONCURRENT_REQUESTS;
        claims.wait_bound(created, TIMEOUT).await?;
    }
    stopped_role::ensure_reported(plane.client(), &cofferdam, "pv-controller").await?;
    run.add_note(&format!("two binders: Cofferdam's has stopped within {created} claims"))?;
    claims.delete(0..created).await?;
    claims.wait_remaining(0, TIMEOUT).await?;
    cofferdam.stop().await
}

/// The provisioner of the Go driver, beside the upstream binder.
struct Provisioner<'a> {
    run: &'a SuiteRun,
    driver: CsiDriverProcess,
    kubeconfig: PathBuf,
    account: Account,
    process: Option<ManagedProcess>,
}

impl Provisioner<'_> {
    /// The processes of the provisioner and of the driver.
    fn processes(&self) -> impl Iterator<Item = &ManagedProcess> {
        self.process.iter().chain([&self.driver.process])
    }
}

impl ReplacedController for Provisioner<'_> {
    async fn start(&mut self, implementation: Implementation) -> Result<()> {
        let socket = self.driver.socket();
        let leader_election = sidecar::leader_election();
        let mut flags: Vec<&str> = leader_election.iter().map(String::as_str).collect();
        self.process = Some(match implementation {
            Implementation::Upstream => {
                sidecar::start(self.run, "csi-provisioner", &self.kubeconfig, socket, &flags).await?
            }
            Implementation::Cofferdam => {
                flags.push(SECRET_NAMESPACES);
                cofferdam::start_with_csi_driver_and_flags(self.run, &self.account, socket, &flags).await?
            }
        });
        Ok(())
    }

    async fn kill(&mut self, _implementation: Implementation) -> Result<()> {
        self.process.as_mut().context("no provisioner runs")?.kill().await
    }

    async fn stored_volumes(&mut self) -> Result<BTreeMap<String, String>> {
        self.driver.volumes().await
    }
}

/// Replaces the provisioner of one driver beside the upstream binder: csi-provisioner, Cofferdam's,
/// csi-provisioner again, and Cofferdam's during deletion. Both use the sidecar's Lease, and the driver
/// requires the Secret of the class. Searches for the Secret's value while the claims and volumes exist, and
/// after their deletion. Returns the Secret.
async fn replace_provisioner(run: &SuiteRun, plane: &mut ControlPlane) -> Result<ClassSecret> {
    let secret = ClassSecret::random(PROVISIONERS)?;
    let mut flags = secret.driver_flags(&class_secret::CONTROLLER_METHODS);
    flags.push("--attach=false".to_owned());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let parameters = ClassSecret::class_parameters();
    let claims = Claims::with_parameters(plane.client(), PROVISIONERS, DRIVER, parameters).await?;
    secret.write(plane.client()).await?;
    let mut provisioner = Provisioner {
        run,
        driver: CsiDriverProcess::start(run, DRIVER, &flags).await?,
        kubeconfig: plane.kubeconfig(ApiUser::Admin)?,
        account: Account::with_flags(run, plane, &["provisioner"], &[SECRET_NAMESPACES]).await?,
        process: None,
    };
    plane.replace_controller_manager(run, BINDER_CONTROLLERS).await?;
    let count = replace_during_creation(&claims, Implementation::Upstream, &mut provisioner).await?;
    let hits = secret.search(plane.client(), run.directory(), provisioner.processes()).await?;
    run.add_note(&format!("before the deletion of {count} claims: {hits}"))?;
    replace_during_deletion(&claims, count, Implementation::Upstream, &mut provisioner).await?;
    roll_back_with_open_call(&claims, plane, &mut provisioner).await?;
    run.add_note(&secret.search(plane.client(), run.directory(), provisioner.processes()).await?)?;
    provisioner.process.context("no provisioner runs")?.stop().await?;
    provisioner.driver.process.stop().await?;
    Ok(secret)
}

/// Replaces Cofferdam's provisioner by csi-provisioner after a claim was deleted during its CreateVolume
/// call, once the intent journal is empty. No volume is left at the storage.
async fn roll_back_with_open_call(
    claims: &Claims,
    plane: &ControlPlane,
    provisioner: &mut Provisioner<'_>,
) -> Result<()> {
    let client = plane.client();
    provisioner.driver.set_latency(OPEN_CALL).await?;
    claims.create(0..1).await?;
    wait::until("an intent for the claim", TIMEOUT, async || journal::ensure_intents(client, 1).await)
        .await?;
    claims.delete(0..1).await?;
    wait::until("an empty journal", TIMEOUT, async || journal::ensure_intents(client, 0).await).await?;
    provisioner.driver.set_latency(Duration::ZERO).await?;
    provisioner.kill(Implementation::Cofferdam).await?;
    provisioner.start(Implementation::Upstream).await?;
    let stored = provisioner.stored_volumes().await?;
    ensure!(stored.is_empty(), "{} volumes are left at the storage: {stored:?}", stored.len());
    Ok(())
}
