//! The stacks that the loads `full`, `far` and `chains` compare, with the Go driver.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use futures::future::try_join_all;

use super::{
    configurations::{DRIVER, ROLES, RunningConfiguration},
    format::join,
    results::{ConfigurationResults, LoadMeasurement},
};
use crate::{
    account::Account,
    cofferdam,
    control_plane::{ApiUser, BINDER_CONTROLLERS, ClientRates, ControlPlane},
    driver::CsiDriverProcess,
    implementation::Implementation,
    network_link::NetworkLink,
    run::SuiteRun,
    sidecar,
};

/// The tasks of a stack.
pub(super) struct Scope {
    /// Cofferdam's roles.
    roles: &'static [&'static str],
    /// The sidecars that run beside kube-controller-manager (binder and protection), with a flag for their workers.
    sidecars: &'static [(&'static str, &'static str)],
    /// Flags of the driver.
    driver_flags: &'static [&'static str],
}

impl Scope {
    /// Provision, bind and protect volumes.
    pub(super) const BINDING: Self = Self {
        roles: &ROLES,
        sidecars: &[("csi-provisioner", "--worker-threads=100")],
        driver_flags: &["--attach=false"],
    };
    /// The same, and attach and expand volumes.
    pub(super) const VOLUME_LIFE: Self = Self {
        roles: &["provisioner", "pv-controller", "protection", "attacher", "resizer"],
        sidecars: &[
            ("csi-provisioner", "--worker-threads=100"),
            ("csi-attacher", "--worker-threads=100"),
            ("csi-resizer", "--workers=100"),
        ],
        driver_flags: &["--any-node"],
    };

    fn sidecar_names(&self) -> String {
        join(self.sidecars.iter().map(|(name, _)| (*name).to_owned()))
    }
}

/// A stack of controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// kube-controller-manager and the sidecars with unlimited client rates.
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

    /// Description in benchmarks.json.
    fn description(self, scope: &Scope) -> String {
        match self {
            Self::Upstream => format!(
                "kube-controller-manager (binder and protection) and {}, client rates unlimited, 100 workers, \
                 the Go driver on a unix socket",
                scope.sidecar_names()
            ),
            Self::UpstreamWithDefaults => {
                "the same with the default client rates: 20 requests per second and 5 requests per second"
                    .to_owned()
            }
            Self::Cofferdam => format!(
                "`cofferdam run` with {}, the Go driver on a unix socket",
                join(scope.roles.iter().map(|role| (*role).to_owned()))
            ),
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
    pub(super) async fn prepare(
        self,
        run: &SuiteRun,
        plane: &ControlPlane,
        scope: &'static Scope,
    ) -> Result<PreparedStack> {
        let access = match self {
            Self::Upstream | Self::UpstreamWithDefaults => Access::Upstream {
                manager: plane.kubeconfig(ApiUser::ControllerManager)?,
                sidecars: vec![plane.kubeconfig(ApiUser::Admin)?; scope.sidecars.len()],
            },
            Self::Cofferdam => Access::Cofferdam(Account::new(run, plane, scope.roles).await?),
        };
        let driver = CsiDriverProcess::start(run, DRIVER, scope.driver_flags).await?;
        Ok(PreparedStack { stack: self, scope, driver, access, links: Vec::new() })
    }

    /// As [`prepare`](Self::prepare), with a link between each controller and the API server.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare), or if a link cannot listen.
    pub(super) async fn prepare_with_links(
        self,
        run: &SuiteRun,
        plane: &ControlPlane,
        scope: &'static Scope,
    ) -> Result<PreparedStack> {
        let PreparedStack { driver, access, mut links, .. } = self.prepare(run, plane, scope).await?;
        let mut linked = async |kubeconfig: &Path| {
            let link = NetworkLink::start(kubeconfig).await?;
            let path = link.kubeconfig().to_owned();
            links.push(link);
            anyhow::Ok(path)
        };
        let access = match access {
            Access::Upstream { manager, sidecars } => {
                let manager = linked(&manager).await?;
                let mut own = Vec::new();
                for kubeconfig in &sidecars {
                    own.push(linked(kubeconfig).await?);
                }
                Access::Upstream { manager, sidecars: own }
            }
            Access::Cofferdam(account) => {
                let kubeconfig = linked(account.kubeconfig()).await?;
                Access::Cofferdam(account.with_kubeconfig(&kubeconfig))
            }
        };
        Ok(PreparedStack { stack: self, scope, driver, access, links })
    }
}

/// Credentials of the controllers of a stack.
enum Access {
    /// Kubeconfigs of kube-controller-manager, and of each sidecar in the order of the scope.
    Upstream {
        manager: PathBuf,
        sidecars: Vec<PathBuf>,
    },
    Cofferdam(Account),
}

/// A stack whose controllers have not been started.
pub(super) struct PreparedStack {
    stack: Stack,
    scope: &'static Scope,
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
        let Self { stack, scope, driver, access, links } = self;
        let controllers = match &access {
            Access::Upstream { manager, sidecars } => {
                let sidecars =
                    scope.sidecars.iter().zip(sidecars).map(async |((name, workers), kubeconfig)| {
                        let spec = sidecar::upstream_command(run, name)?.args(stack.rates().flags());
                        let socket = Some(driver.socket());
                        sidecar::start_with_default_rates(run, spec, kubeconfig, socket, &[workers]).await
                    });
                let (manager, sidecars) = tokio::try_join!(
                    plane.controller_manager_with_rates(run, manager, BINDER_CONTROLLERS, stack.rates()),
                    try_join_all(sidecars),
                )?;
                std::iter::once(manager).chain(sidecars).collect()
            }
            Access::Cofferdam(account) => {
                vec![cofferdam::start_with_csi_driver(run, account, driver.socket()).await?]
            }
        };
        let configuration =
            RunningConfiguration { driver_name: DRIVER, controllers, drivers: vec![driver.process] };
        Ok(RunningStack { stack, scope, configuration, links })
    }
}

/// A stack whose controllers run.
pub(super) struct RunningStack {
    stack: Stack,
    scope: &'static Scope,
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

    /// The results of the stack.
    pub(super) fn results(&self, loads: Vec<LoadMeasurement>) -> ConfigurationResults {
        ConfigurationResults {
            name: self.stack.name().to_owned(),
            description: self.stack.description(self.scope),
            implementation: Some(self.stack.implementation()),
            controllers: self.configuration.names(),
            loads,
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
