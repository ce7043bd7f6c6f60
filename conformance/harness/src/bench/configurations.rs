//! The configurations of the claim load, and what all configurations share.

use std::path::Path;

use anyhow::{Context as _, Result};
use futures::future::LocalBoxFuture;

use crate::{
    account::Account,
    cofferdam::{self, MemoryDriver},
    control_plane::{ApiUser, BINDER_CONTROLLERS, ControlPlane, ControlPlaneOptions},
    driver::CsiDriverProcess,
    implementation::Implementation,
    process::ManagedProcess,
    run::SuiteRun,
    sidecar,
};

/// Driver name of all configurations, except those of the pod load and of idle memory.
pub(super) const DRIVER: &str = "bench.conformance.cofferdam.dev";
pub(super) const ROLES: [&str; 3] = ["provisioner", "pv-controller", "protection"];

/// A configuration for the claim load: the controllers, and the driver that they call.
pub(super) struct BenchmarkConfiguration {
    /// Name in the tables.
    pub(super) name: &'static str,
    /// Description in the tables.
    pub(super) description: &'static str,
    /// The implementation that the controllers belong to.
    pub(super) implementation: Implementation,
    start: for<'a> fn(&'a SuiteRun, &'a mut ControlPlane) -> LocalBoxFuture<'a, Result<RunningConfiguration>>,
}

/// The configurations of the claim load in the order of measurement. Each has a control plane of its own.
pub(super) const CONFIGURATIONS: &[BenchmarkConfiguration] = &[
    BenchmarkConfiguration {
        name: "Upstream",
        description: "kube-controller-manager (binder and protection) and csi-provisioner, client rates \
             unlimited, 100 workers, the Go driver on a unix socket",
        implementation: Implementation::Upstream,
        start: |run, plane| Box::pin(start_upstream(run, plane)),
    },
    BenchmarkConfiguration {
        name: "Cofferdam",
        description: "`cofferdam run` with provisioner, pv-controller and protection, the Go driver on a \
             unix socket",
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

/// A running configuration.
pub(super) struct RunningConfiguration {
    /// Driver name in StorageClasses.
    pub(super) driver_name: &'static str,
    /// Controllers, whose usage is measured and compared.
    pub(super) controllers: Vec<ManagedProcess>,
    /// Drivers and other processes, whose usage is measured but not compared.
    pub(super) drivers: Vec<ManagedProcess>,
}

impl BenchmarkConfiguration {
    /// Starts the configuration on a control plane.
    ///
    /// # Errors
    /// If a process of the configuration does not become ready.
    pub(super) async fn start(
        &self,
        run: &SuiteRun,
        plane: &mut ControlPlane,
    ) -> Result<RunningConfiguration> {
        (self.start)(run, plane).await
    }
}

impl RunningConfiguration {
    /// All processes.
    pub(super) fn processes(&self) -> impl Iterator<Item = &ManagedProcess> {
        self.controllers.iter().chain(&self.drivers)
    }

    /// Names of the controllers.
    pub(super) fn names(&self) -> Vec<String> {
        self.controllers.iter().map(|process| process.name().to_owned()).collect()
    }

    /// Stops all processes.
    ///
    /// # Errors
    /// If one has already exited, or had to be killed.
    pub(super) async fn stop(mut self) -> Result<()> {
        for process in self.controllers.iter_mut().chain(&mut self.drivers) {
            process.stop().await?;
        }
        Ok(())
    }
}

/// Starts a control plane for a load: etcd and kube-apiserver only, with raised request limits, and without
/// priority and fairness and audit log.
///
/// # Errors
/// If a component does not become ready.
pub(super) async fn start_control_plane(run: &SuiteRun) -> Result<ControlPlane> {
    start_control_plane_with(run, None).await
}

/// As [`start_control_plane`], with a copy of etcd's data.
///
/// # Errors
/// If a component does not become ready.
pub(super) async fn start_control_plane_with(
    run: &SuiteRun,
    etcd_data: Option<&Path>,
) -> Result<ControlPlane> {
    let options = ControlPlaneOptions {
        is_unlimited: true,
        is_unaudited: true,
        etcd_data: etcd_data.map(Path::to_owned),
        ..ControlPlaneOptions::default()
    };
    ControlPlane::start(run, options).await
}

async fn start_upstream(run: &SuiteRun, plane: &mut ControlPlane) -> Result<RunningConfiguration> {
    plane.start_controller_manager(run, BINDER_CONTROLLERS).await?;
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
