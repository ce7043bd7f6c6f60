//! Who answers the load.

use anyhow::{Context as _, Result};
use futures::future::LocalBoxFuture;

use crate::{
    account::Account,
    cofferdam::{self, MemoryDriver},
    control_plane::{ApiUser, ControlPlane},
    driver::CsiDriverProcess,
    process::ManagedProcess,
    run::SuiteRun,
    sidecar,
};

/// The driver that all stacks have.
pub(super) const DRIVER: &str = "bench.conformance.cofferdam.dev";
/// The loops of kube-controller-manager that do what our roles do.
const UPSTREAM_CONTROLLERS: &str = "persistentvolume-binder-controller,persistentvolume-protection-controller,\
                     persistentvolumeclaim-protection-controller";
const ROLES: [&str; 3] = ["provisioner", "pv-controller", "protection"];

/// Whose stack it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Implementation {
    /// That of Kubernetes and its sidecars: what ours are compared with.
    Upstream,
    /// One of ours.
    Cofferdam,
}

/// A stack of controllers.
pub(super) struct BenchmarkConfiguration {
    /// Its name in the tables.
    pub(super) name: &'static str,
    /// What it is made of.
    pub(super) description: &'static str,
    /// Whose it is.
    pub(super) implementation: Implementation,
    start: for<'a> fn(&'a SuiteRun, &'a mut ControlPlane) -> LocalBoxFuture<'a, Result<RunningConfiguration>>,
}

/// The stacks in the order in which they are measured, each on a control plane of its own.
pub(super) const CONFIGURATIONS: &[BenchmarkConfiguration] = &[
    BenchmarkConfiguration {
        name: "Upstream",
        description: "kube-controller-manager (binder and protection) and csi-provisioner, client rates unlimited, 100 workers, \
                the Go driver on a unix socket",
        implementation: Implementation::Upstream,
        start: |run, plane| Box::pin(start_upstream(run, plane)),
    },
    BenchmarkConfiguration {
        name: "Cofferdam",
        description: "`cofferdam run` with provisioner, pv-controller and protection, the Go driver on a unix socket",
        implementation: Implementation::Cofferdam,
        start: |run, plane| Box::pin(start_with_csi_driver(run, plane)),
    },
    BenchmarkConfiguration {
        name: "Cofferdam, component",
        description: "the same with the memory driver as a WebAssembly component in the same process",
        implementation: Implementation::Cofferdam,
        start: |run, plane| Box::pin(start_with_component(run, plane)),
    },
];

/// A stack that runs.
pub(super) struct RunningConfiguration {
    /// The driver that classes name.
    pub(super) driver_name: &'static str,
    /// What controls: it is measured and compared.
    pub(super) controllers: Vec<ManagedProcess>,
    /// What stores: it is measured.
    pub(super) drivers: Vec<ManagedProcess>,
}

impl BenchmarkConfiguration {
    /// Starts it on a control plane.
    ///
    /// # Errors
    /// When a part of it is not ready.
    pub(super) async fn start(
        &self,
        run: &SuiteRun,
        plane: &mut ControlPlane,
    ) -> Result<RunningConfiguration> {
        (self.start)(run, plane).await
    }
}

impl RunningConfiguration {
    /// All its processes.
    pub(super) fn processes(&self) -> impl Iterator<Item = &ManagedProcess> {
        self.controllers.iter().chain(&self.drivers)
    }

    /// The names of those whose work is compared.
    pub(super) fn names(&self) -> Vec<String> {
        self.controllers.iter().map(|process| process.name().to_owned()).collect()
    }

    /// Ends them.
    ///
    /// # Errors
    /// When one has ended by itself.
    pub(super) async fn stop(mut self) -> Result<()> {
        for process in self.controllers.iter_mut().chain(&mut self.drivers) {
            process.stop().await?;
        }
        Ok(())
    }
}

async fn start_upstream(run: &SuiteRun, plane: &mut ControlPlane) -> Result<RunningConfiguration> {
    plane.start_controller_manager(run, UPSTREAM_CONTROLLERS).await?;
    let manager = plane.controller_manager.take().context("kube-controller-manager does not run")?;
    let driver = CsiDriverProcess::start(run, DRIVER, &["--attach=false"]).await?;
    let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
    let workers = ["--worker-threads=100"];
    let provisioner = sidecar::start(run, "csi-provisioner", &kubeconfig, driver.socket(), &workers).await?;
    Ok(RunningConfiguration {
        driver_name: DRIVER,
        controllers: vec![manager, provisioner],
        drivers: vec![driver.process],
    })
}

async fn start_with_csi_driver(run: &SuiteRun, plane: &mut ControlPlane) -> Result<RunningConfiguration> {
    let driver = CsiDriverProcess::start(run, DRIVER, &["--attach=false"]).await?;
    let account = Account::new(run, plane, &ROLES).await?;
    let cofferdam = cofferdam::start_with_csi_driver(run, &account, driver.socket()).await?;
    Ok(RunningConfiguration {
        driver_name: DRIVER,
        controllers: vec![cofferdam],
        drivers: vec![driver.process],
    })
}

async fn start_with_component(run: &SuiteRun, plane: &mut ControlPlane) -> Result<RunningConfiguration> {
    let driver = MemoryDriver::in_memory(run, DRIVER)?;
    let account = Account::new(run, plane, &ROLES).await?;
    let cofferdam = cofferdam::start(run, &account, &driver).await?;
    Ok(RunningConfiguration { driver_name: DRIVER, controllers: vec![cofferdam], drivers: Vec::new() })
}
