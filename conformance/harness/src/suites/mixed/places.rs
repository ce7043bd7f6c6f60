//! Who provisions, attaches and resizes, over one socket; and who says what is to be attached.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::{
    account::Account,
    cofferdam,
    control_plane::{ControlPlane, User},
    process::Process,
    run::Run,
    sidecar,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Provisioner,
    Attacher,
    Resizer,
    AttachDetach,
}

impl Place {
    pub(super) const ALL: [Self; 4] = [Self::Provisioner, Self::Attacher, Self::Resizer, Self::AttachDetach];

    /// Our role.
    const fn role(self) -> &'static str {
        match self {
            Self::Provisioner => "provisioner",
            Self::Attacher => "attacher",
            Self::Resizer => "resizer",
            Self::AttachDetach => "attach-detach",
        }
    }

    /// The program of theirs; none where it is a loop of kube-controller-manager.
    const fn sidecar(self) -> Option<&'static str> {
        match self {
            Self::Provisioner => Some("csi-provisioner"),
            Self::Attacher => Some("csi-attacher"),
            Self::Resizer => Some("csi-resizer"),
            Self::AttachDetach => None,
        }
    }

    /// What whoever has it calls.
    pub(super) const fn methods(self) -> &'static [&'static str] {
        match self {
            Self::Provisioner => &["CreateVolume", "DeleteVolume"],
            Self::Attacher => &["ControllerPublishVolume", "ControllerUnpublishVolume"],
            Self::Resizer => &["ControllerExpandVolume"],
            Self::AttachDetach => &[],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Ours,
    Theirs,
}

impl Whose {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Ours => Self::Theirs,
            Self::Theirs => Self::Ours,
        }
    }

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Theirs => "theirs",
        }
    }
}

/// Each place with who has it.
pub(super) struct Places<'a> {
    run: &'a Run,
    plane: &'a mut ControlPlane,
    kubeconfig: PathBuf,
    socket: PathBuf,
    accounts: Vec<(Place, Account)>,
    /// Who has a place by a process of its own.
    taken: Vec<(Place, Process)>,
}

/// The loops of kube-controller-manager, none of which is ours here; and the one that is for a while.
const CONTROLLERS: &str = "persistentvolume-binder-controller,persistentvolume-protection-controller,\
                           persistentvolumeclaim-protection-controller,node-lifecycle-controller,namespace-controller";
const ATTACHES: &str = "persistentvolume-attach-detach-controller";

impl<'a> Places<'a> {
    pub(super) async fn new(
        run: &'a Run,
        plane: &'a mut ControlPlane,
        socket: &Path,
        whose: Whose,
    ) -> Result<Self> {
        let mut accounts = Vec::new();
        for place in Place::ALL {
            accounts.push((place, Account::new(run, plane, &[place.role()]).await?));
        }
        let (kubeconfig, taken) = (plane.kubeconfig(User::Admin)?, Vec::new());
        let mut places = Self { run, plane, kubeconfig, socket: socket.to_owned(), accounts, taken };
        // Where the place is theirs, it is taken a second time.
        places.vacate(Place::AttachDetach).await?;
        for place in Place::ALL {
            places.take(place, whose).await?;
        }
        Ok(places)
    }

    /// Kills who has the place.
    pub(super) async fn vacate(&mut self, place: Place) -> Result<()> {
        for (_, mut process) in self.taken.extract_if(.., |(taken, _)| *taken == place) {
            process.kill().await?;
        }
        if place == Place::AttachDetach {
            self.plane.replace_controller_manager(self.run, CONTROLLERS).await?;
        }
        Ok(())
    }

    /// Gives a vacant place to somebody.
    pub(super) async fn take(&mut self, place: Place, whose: Whose) -> Result<()> {
        let account = self.accounts.iter().find(|(of, _)| *of == place).map(|(_, account)| account);
        let account = account.context("a place without an account")?;
        let process = match (whose, place.sidecar()) {
            (Whose::Ours, Some(_)) => cofferdam::start_before(self.run, account, &self.socket).await?,
            (Whose::Ours, None) => cofferdam::start_alone(self.run, account).await?,
            (Whose::Theirs, Some(name)) => {
                sidecar::start(self.run, name, &self.kubeconfig, &self.socket, &[]).await?
            }
            (Whose::Theirs, None) => {
                let all = format!("{CONTROLLERS},{ATTACHES}");
                return self.plane.replace_controller_manager(self.run, &all).await;
            }
        };
        self.taken.push((place, process));
        Ok(())
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        for (_, process) in &mut self.taken {
            process.stop().await?;
        }
        Ok(())
    }
}
