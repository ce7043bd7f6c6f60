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
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControllerSlot {
    Provisioner,
    Attacher,
    Resizer,
    AttachDetach,
}

impl ControllerSlot {
    pub(super) const ALL: [Self; 4] = [Self::Provisioner, Self::Attacher, Self::Resizer, Self::AttachDetach];

    /// The role of Cofferdam that implements the controller.
    const fn role(self) -> &'static str {
        match self {
            Self::Provisioner => "provisioner",
            Self::Attacher => "attacher",
            Self::Resizer => "resizer",
            Self::AttachDetach => "attach-detach",
        }
    }

    /// The CSI sidecar that is the upstream controller; `None` for attach-detach, whose upstream controller
    /// runs in kube-controller-manager.
    const fn sidecar(self) -> Option<&'static str> {
        match self {
            Self::Provisioner => Some("csi-provisioner"),
            Self::Attacher => Some("csi-attacher"),
            Self::Resizer => Some("csi-resizer"),
            Self::AttachDetach => None,
        }
    }

    /// CSI methods of the controller that the suite counts. The attach-detach controller calls none.
    pub(super) const fn methods(self) -> &'static [&'static str] {
        match self {
            Self::Provisioner => &["CreateVolume", "DeleteVolume"],
            Self::Attacher => &["ControllerPublishVolume", "ControllerUnpublishVolume"],
            Self::Resizer => &["ControllerExpandVolume"],
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
        implementation: Implementation,
    ) -> Result<Self> {
        let mut accounts = Vec::new();
        for slot in ControllerSlot::ALL {
            accounts.push((slot, Account::new(run, plane, &[slot.role()]).await?));
        }
        let (kubeconfig, processes) = (plane.kubeconfig(ApiUser::Admin)?, Vec::new());
        let mut slots = Self { run, plane, kubeconfig, socket: socket.to_owned(), accounts, processes };
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
        let process = match (implementation, slot.sidecar()) {
            (Implementation::Cofferdam, Some(_)) => {
                cofferdam::start_with_csi_driver(self.run, account, &self.socket).await?
            }
            (Implementation::Cofferdam, None) => cofferdam::start_without_driver(self.run, account).await?,
            (Implementation::Upstream, Some(name)) => {
                sidecar::start(self.run, name, &self.kubeconfig, &self.socket, &[]).await?
            }
            (Implementation::Upstream, None) => {
                let all = format!("{CONTROLLERS},{ATTACH_DETACH_CONTROLLER}");
                return self.plane.replace_controller_manager(self.run, &all).await;
            }
        };
        self.processes.push((slot, process));
        Ok(())
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        for (_, process) in &mut self.processes {
            process.stop().await?;
        }
        Ok(())
    }
}
