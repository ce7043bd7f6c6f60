//! The controllers that are replaced: provisioner, attacher and resizer, which call one CSI socket, and the
//! attach-detach controller.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::{
    account::Account,
    cofferdam,
    control_plane::{ApiUser, ControlPlane},
    implementation::Implementation,
    process::ManagedProcess,
    run::SuiteRun,
    sidecar,
    suites::sidecars::slot::{ATTACHER, PROVISIONER, RESIZER, Slot},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControllerSlot {
    Sidecar(Slot),
    /// The attach-detach controller, whose upstream implementation runs in kube-controller-manager.
    AttachDetach,
}

impl ControllerSlot {
    pub(super) const ALL: [Self; 4] =
        [Self::Sidecar(PROVISIONER), Self::Sidecar(ATTACHER), Self::Sidecar(RESIZER), Self::AttachDetach];

    /// The role of Cofferdam that implements the controller.
    pub(super) const fn role(self) -> &'static str {
        match self {
            Self::Sidecar(slot) => slot.role,
            Self::AttachDetach => "attach-detach",
        }
    }

    /// CSI methods of the controller that the suite counts. The attach-detach controller calls none.
    pub(super) const fn methods(self) -> &'static [&'static str] {
        match self {
            Self::Sidecar(slot) => slot.methods,
            Self::AttachDetach => &[],
        }
    }
}

/// The controllers and their current processes.
pub(super) struct ControllerSlots<'a> {
    run: &'a SuiteRun,
    plane: &'a mut ControlPlane,
    kubeconfig: PathBuf,
    socket: PathBuf,
    /// Namespace of the claims and of the Secret of their class.
    claims_namespace: &'static str,
    accounts: Vec<(ControllerSlot, Account)>,
    /// Processes of the controllers that do not run in kube-controller-manager.
    processes: Vec<(ControllerSlot, ManagedProcess)>,
}

/// Controllers of kube-controller-manager that always run.
const CONTROLLERS: &str = "persistentvolume-binder-controller,persistentvolume-protection-controller,\
                           persistentvolumeclaim-protection-controller,node-lifecycle-controller,\
                           namespace-controller";
/// The controller of kube-controller-manager that is replaced.
const ATTACH_DETACH_CONTROLLER: &str = "persistentvolume-attach-detach-controller";

impl<'a> ControllerSlots<'a> {
    pub(super) async fn new(
        run: &'a SuiteRun,
        plane: &'a mut ControlPlane,
        socket: &Path,
        claims_namespace: &'static str,
        implementation: Implementation,
    ) -> Result<Self> {
        let mut accounts = Vec::new();
        for slot in ControllerSlot::ALL {
            let flags: &[&str] = match slot {
                ControllerSlot::Sidecar(_) => &["--secret-namespaces", claims_namespace],
                ControllerSlot::AttachDetach => &[],
            };
            accounts.push((slot, Account::with_flags(run, plane, &[slot.role()], flags).await?));
        }
        let (kubeconfig, processes) = (plane.kubeconfig(ApiUser::Admin)?, Vec::new());
        let socket = socket.to_owned();
        let mut slots = Self { run, plane, kubeconfig, socket, claims_namespace, accounts, processes };
        // Start kube-controller-manager without attach-detach. `start` restarts it if upstream is the initial
        // implementation.
        slots.kill_current(ControllerSlot::AttachDetach).await?;
        for slot in ControllerSlot::ALL {
            slots.start(slot, implementation).await?;
        }
        Ok(slots)
    }

    /// Kills the current process of a controller. For attach-detach, also restarts kube-controller-manager
    /// without it.
    pub(super) async fn kill_current(&mut self, slot: ControllerSlot) -> Result<()> {
        for (_, mut process) in self.processes.extract_if(.., |(other, _)| *other == slot) {
            process.kill().await?;
        }
        if slot == ControllerSlot::AttachDetach {
            self.plane.replace_controller_manager(self.run, CONTROLLERS).await?;
        }
        Ok(())
    }

    /// Starts a controller. The upstream attach-detach controller starts with a new kube-controller-manager.
    pub(super) async fn start(&mut self, slot: ControllerSlot, implementation: Implementation) -> Result<()> {
        let account = self.accounts.iter().find(|(other, _)| *other == slot).map(|(_, account)| account);
        let account = account.context("a controller without an account")?;
        let leader_election = sidecar::leader_election();
        let secrets = format!("--secret-namespaces={}", self.claims_namespace);
        let mut flags: Vec<&str> = leader_election.iter().map(String::as_str).collect();
        let process = match (implementation, slot) {
            (Implementation::Cofferdam, ControllerSlot::Sidecar(_)) => {
                flags.push(&secrets);
                cofferdam::start_with_csi_driver_and_flags(self.run, account, &self.socket, &flags).await?
            }
            (Implementation::Cofferdam, ControllerSlot::AttachDetach) => {
                cofferdam::start_without_driver(self.run, account).await?
            }
            (Implementation::Upstream, ControllerSlot::Sidecar(Slot { name, .. })) => {
                sidecar::start(self.run, name, &self.kubeconfig, &self.socket, &flags).await?
            }
            (Implementation::Upstream, ControllerSlot::AttachDetach) => {
                let all = format!("{CONTROLLERS},{ATTACH_DETACH_CONTROLLER}");
                return self.plane.replace_controller_manager(self.run, &all).await;
            }
        };
        self.processes.push((slot, process));
        Ok(())
    }

    /// The process of a controller.
    pub(super) fn process(&self, slot: ControllerSlot) -> Result<&ManagedProcess> {
        let process = self.processes.iter().find(|(other, _)| *other == slot);
        Ok(&process.context("no process of the controller")?.1)
    }

    /// The processes of Cofferdam and of the sidecars.
    pub(super) fn processes(&self) -> impl Iterator<Item = &ManagedProcess> {
        self.processes.iter().map(|(_, process)| process)
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        for (_, process) in &mut self.processes {
            process.stop().await?;
        }
        Ok(())
    }
}
