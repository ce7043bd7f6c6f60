//! Who answers the load.

use anyhow::{Context as _, Result};
use futures::future::LocalBoxFuture;

use crate::{
    account::Account,
    cofferdam::{self, MemoryDriver},
    control_plane::{ControlPlane, User},
    driver::Driver,
    process::Process,
    run::Run,
    sidecar,
};

/// The driver that all stacks have.
pub(super) const DRIVER: &str = "bench.conformance.cofferdam.dev";
/// The loops of kube-controller-manager that do what our roles do.
const LOOPS: &str = "persistentvolume-binder-controller,persistentvolume-protection-controller,\
                     persistentvolumeclaim-protection-controller";
const ROLES: [&str; 3] = ["provisioner", "pv-controller", "protection"];

/// Whose stack it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// That of Kubernetes and its sidecars: what ours are compared with.
    Theirs,
    /// One of ours.
    Ours,
}

/// A stack of controllers.
pub(super) struct Stack {
    /// Its name in the tables.
    pub(super) name: &'static str,
    /// What it is made of.
    pub(super) about: &'static str,
    /// Whose it is.
    pub(super) whose: Whose,
    start: for<'a> fn(&'a Run, &'a mut ControlPlane) -> LocalBoxFuture<'a, Result<Controllers>>,
}

/// The stacks in the order in which they are measured, each on a control plane of its own.
pub(super) const STACKS: &[Stack] = &[
    Stack {
        name: "Go",
        about: "kube-controller-manager (binder and protection) and csi-provisioner, client rates unlimited, 100 workers, \
                the Go driver on a unix socket",
        whose: Whose::Theirs,
        start: |run, plane| Box::pin(go(run, plane)),
    },
    Stack {
        name: "Cofferdam",
        about: "`cofferdam run` with provisioner, pv-controller and protection, the Go driver on a unix socket",
        whose: Whose::Ours,
        start: |run, plane| Box::pin(before_driver(run, plane)),
    },
    Stack {
        name: "Cofferdam, component",
        about: "the same with the memory driver as a WebAssembly component in its process",
        whose: Whose::Ours,
        start: |run, plane| Box::pin(component(run, plane)),
    },
];

/// A stack that runs.
pub(super) struct Controllers {
    /// The driver that classes name.
    pub(super) driver: &'static str,
    /// What controls: it is measured and compared.
    pub(super) controllers: Vec<Process>,
    /// What stores: it is measured.
    pub(super) storage: Vec<Process>,
}

impl Stack {
    /// Starts it on a control plane.
    ///
    /// # Errors
    /// When a part of it is not ready.
    pub(super) async fn start(&self, run: &Run, plane: &mut ControlPlane) -> Result<Controllers> {
        (self.start)(run, plane).await
    }
}

impl Controllers {
    /// All its processes.
    pub(super) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.controllers.iter().chain(&self.storage)
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
        for process in self.controllers.iter_mut().chain(&mut self.storage) {
            process.stop().await?;
        }
        Ok(())
    }
}

async fn go(run: &Run, plane: &mut ControlPlane) -> Result<Controllers> {
    plane.start_controller_manager(run, LOOPS).await?;
    let manager = plane.controller_manager.take().context("kube-controller-manager does not run")?;
    let driver = Driver::start(run, DRIVER, &["--attach=false"]).await?;
    let kubeconfig = plane.kubeconfig(User::Admin)?;
    let workers = ["--worker-threads=100"];
    let provisioner = sidecar::start(run, "csi-provisioner", &kubeconfig, driver.socket(), &workers).await?;
    Ok(Controllers { driver: DRIVER, controllers: vec![manager, provisioner], storage: vec![driver.process] })
}

async fn before_driver(run: &Run, plane: &mut ControlPlane) -> Result<Controllers> {
    let driver = Driver::start(run, DRIVER, &["--attach=false"]).await?;
    let account = Account::new(run, plane, &ROLES).await?;
    let ours = cofferdam::start_before(run, &account, driver.socket()).await?;
    Ok(Controllers { driver: DRIVER, controllers: vec![ours], storage: vec![driver.process] })
}

async fn component(run: &Run, plane: &mut ControlPlane) -> Result<Controllers> {
    let driver = MemoryDriver::in_memory(run, DRIVER)?;
    let account = Account::new(run, plane, &ROLES).await?;
    let ours = cofferdam::start(run, &account, &driver).await?;
    Ok(Controllers { driver: DRIVER, controllers: vec![ours], storage: Vec::new() })
}
