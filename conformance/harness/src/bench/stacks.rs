//! The stacks that the loads `full` and `far` compare: controllers that provision, bind and protect volumes,
//! with the Go driver.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;

use super::{
    configurations::{DRIVER, ROLES, RunningConfiguration},
    results::{ConfigurationResults, LoadMeasurement},
};
use crate::{
    account::Account,
    cofferdam,
    control_plane::{ApiUser, BINDER_CONTROLLERS, ClientRates, ControlPlane},
    driver::CsiDriverProcess,
    implementation::Implementation,
    network_link::NetworkLink,
    process::ManagedProcess,
    run::SuiteRun,
    sidecar,
};

/// A stack of controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// kube-controller-manager and csi-provisioner with unlimited client rates.
    Upstream,
    /// The same with their default client rates.
    UpstreamWithDefaults,
    /// The roles of Cofferdam in one process.
    Cofferdam,
}

impl Stack {
    /// Name in the tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Upstream => "Upstream",
            Self::UpstreamWithDefaults => "Upstream, default rates",
            Self::Cofferdam => "Cofferdam",
        }
    }

    /// Description in the tables.
    const fn description(self) -> &'static str {
        match self {
            Self::Upstream => {
                "kube-controller-manager (binder and protection) and csi-provisioner, client rates \
                 unlimited, 100 workers, the Go driver on a unix socket"
            }
            Self::UpstreamWithDefaults => {
                "the same with the default client rates: 20 requests per second and 5 requests per second"
            }
            Self::Cofferdam => {
                "`cofferdam run` with provisioner, pv-controller and protection, the Go driver on a unix \
                 socket"
            }
        }
    }

    /// The results of this stack.
    pub(super) fn results(
        self,
        configuration: &RunningConfiguration,
        loads: Vec<LoadMeasurement>,
    ) -> ConfigurationResults {
        ConfigurationResults {
            name: self.name().to_owned(),
            description: self.description().to_owned(),
            implementation: Some(self.implementation()),
            controllers: configuration.names(),
            loads,
        }
    }

    const fn implementation(self) -> Implementation {
        match self {
            Self::Upstream | Self::UpstreamWithDefaults => Implementation::Upstream,
            Self::Cofferdam => Implementation::Cofferdam,
        }
    }

    const fn rates(self) -> ClientRates {
        match self {
            Self::UpstreamWithDefaults => ClientRates::Default,
            Self::Upstream | Self::Cofferdam => ClientRates::Unlimited,
        }
    }

    /// Starts the driver, and creates the credentials of the controllers. The controllers connect directly to
    /// the API server.
    ///
    /// # Errors
    /// If the driver does not become ready, or the API rejects the credentials.
    pub(super) async fn prepare(self, run: &SuiteRun, plane: &ControlPlane) -> Result<PreparedStack> {
        let access = match self {
            Self::Upstream | Self::UpstreamWithDefaults => Access::Upstream {
                manager: plane.kubeconfig(ApiUser::ControllerManager)?,
                provisioner: plane.kubeconfig(ApiUser::Admin)?,
            },
            Self::Cofferdam => Access::Cofferdam(Account::new(run, plane, &ROLES).await?),
        };
        let driver = CsiDriverProcess::start(run, DRIVER, &["--attach=false"]).await?;
        Ok(PreparedStack { stack: self, driver, access, links: Vec::new() })
    }

    /// As [`prepare`](Self::prepare), with a link between each controller and the API server.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare), or if a link cannot listen.
    pub(super) async fn prepare_with_links(
        self,
        run: &SuiteRun,
        plane: &ControlPlane,
    ) -> Result<PreparedStack> {
        let PreparedStack { stack, driver, access, mut links } = self.prepare(run, plane).await?;
        let mut linked = async |kubeconfig: &Path| {
            let link = NetworkLink::start(kubeconfig).await?;
            let path = link.kubeconfig().to_owned();
            links.push(link);
            anyhow::Ok(path)
        };
        let access = match access {
            Access::Upstream { manager, provisioner } => Access::Upstream {
                manager: linked(&manager).await?,
                provisioner: linked(&provisioner).await?,
            },
            Access::Cofferdam(account) => {
                let kubeconfig = linked(account.kubeconfig()).await?;
                Access::Cofferdam(account.with_kubeconfig(&kubeconfig))
            }
        };
        Ok(PreparedStack { stack, driver, access, links })
    }
}

/// Credentials of the controllers of a stack.
enum Access {
    /// Kubeconfigs of kube-controller-manager and csi-provisioner.
    Upstream {
        manager: PathBuf,
        provisioner: PathBuf,
    },
    Cofferdam(Account),
}

/// A stack whose controllers have not been started.
pub(super) struct PreparedStack {
    stack: Stack,
    driver: CsiDriverProcess,
    access: Access,
    links: Vec<NetworkLink>,
}

impl PreparedStack {
    /// Starts the controllers, and waits until they answer. Only Cofferdam answers when its caches are
    /// complete.
    ///
    /// # Errors
    /// If a controller does not answer in time.
    pub(super) async fn start(self, run: &SuiteRun, plane: &ControlPlane) -> Result<RunningStack> {
        let Self { stack, driver, access, links } = self;
        let controllers = match &access {
            Access::Upstream { manager, provisioner } => {
                let (manager, provisioner) = tokio::try_join!(
                    plane.controller_manager_with_rates(run, manager, BINDER_CONTROLLERS, stack.rates()),
                    start_provisioner(run, provisioner, &driver, stack.rates()),
                )?;
                vec![manager, provisioner]
            }
            Access::Cofferdam(account) => {
                vec![cofferdam::start_with_csi_driver(run, account, driver.socket()).await?]
            }
        };
        let configuration =
            RunningConfiguration { driver_name: DRIVER, controllers, drivers: vec![driver.process] };
        Ok(RunningStack { configuration, links })
    }
}

async fn start_provisioner(
    run: &SuiteRun,
    kubeconfig: &Path,
    driver: &CsiDriverProcess,
    rates: ClientRates,
) -> Result<ManagedProcess> {
    let spec = sidecar::upstream_command(run, "csi-provisioner")?.args(rates.flags());
    let workers = ["--worker-threads=100"];
    sidecar::start_with_default_rates(run, spec, kubeconfig, Some(driver.socket()), &workers).await
}

/// A stack whose controllers run.
pub(super) struct RunningStack {
    pub(super) configuration: RunningConfiguration,
    links: Vec<NetworkLink>,
}

impl RunningStack {
    /// Sets the distance of the API server from the controllers, as the time of a round trip.
    pub(super) fn set_round_trip(&self, round_trip: Duration) {
        for link in &self.links {
            link.set_round_trip(round_trip);
        }
    }

    /// Stops all processes.
    ///
    /// # Errors
    /// If one has already exited, or had to be killed.
    pub(super) async fn stop(self) -> Result<()> {
        // The controllers need no distance to stop.
        self.set_round_trip(Duration::ZERO);
        self.configuration.stop().await
    }
}
