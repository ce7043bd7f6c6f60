//! Takes over changes of the configuration and of the files that it names, without a restart.
//!
//! The sections of drivers change alive: their components, settings, grants, origins, certificates and
//! secrets. So do certificates and credentials for the API server. A change of another setting is logged, and
//! needs a restart.
//!
//! The configuration, each driver and the credentials are checked independently: a component is compiled and
//! probed, and a program may print credentials, for longer than a change of the others may wait.

mod configuration;
mod connection;
mod driver;
mod files;
#[cfg(test)]
mod test_server;

use std::{collections::BTreeMap, time::Duration};

use cofferdam_wasm::Engine;
use futures::future::join_all;
use tokio::{
    sync::watch,
    time::{Instant, Interval, interval_at},
};
use tokio_util::sync::CancellationToken;

use configuration::ConfigurationReloader;
use driver::{ReloadableDriver, section_files};
use files::FileVersions;

use crate::{
    config::{BackendSection, ResolvedConfig},
    drivers::LoadedDriver,
};

pub(crate) use configuration::ConfigSource;
pub(crate) use connection::ConnectionReloader;

/// Interval of the checks. Files in volumes of Secrets and ConfigMaps are replaced through links, which
/// notifications of the file system do not follow.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Takes over changes of a process.
pub(crate) struct Reloader {
    configuration: ConfigurationReloader,
    /// Sections of drivers that are not running yet, and the versions of their files.
    sections: BTreeMap<String, (BackendSection, FileVersions)>,
    drivers: Vec<ReloadableDriver>,
    connection: Option<ConnectionReloader>,
}

impl Reloader {
    /// A reloader for a process that runs no drivers, and has no client of the API server. Create it before
    /// the roles start and the drivers are loaded: it notices all later changes.
    pub(crate) fn new(source: ConfigSource, resolved: &ResolvedConfig) -> Self {
        let sections = resolved.configuration.backend.iter();
        let with_files = |(name, section): (&String, &BackendSection)| {
            (name.clone(), (section.clone(), section_files(section)))
        };
        Self {
            configuration: ConfigurationReloader::new(source, resolved),
            sections: sections.map(with_files).collect(),
            drivers: Vec::new(),
            connection: None,
        }
    }

    /// Also takes over changes of drivers that were loaded from the configuration.
    pub(crate) fn with_drivers(mut self, engine: &Engine, drivers: &[LoadedDriver]) -> Self {
        let reloadable = |driver: &LoadedDriver| {
            let (section, files) = self.sections.remove(&driver.name)?;
            Some(ReloadableDriver::new(engine.clone(), driver, section, files))
        };
        self.drivers = drivers.iter().filter_map(reloadable).collect();
        let names = self.drivers.iter().map(|driver| driver.name.clone());
        self.configuration.drivers = Some(names.collect());
        self
    }

    /// Also takes over changes of the credentials for the API server.
    pub(crate) fn with_connection(self, connection: Option<ConnectionReloader>) -> Self {
        Self { connection, ..self }
    }

    /// Checks for changes until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let Self { mut configuration, sections: _, drivers, connection } = self;
        let (sections, received) = watch::channel(None);
        let configuration = async {
            let mut interval = check_interval();
            loop {
                interval.tick().await;
                sections.send_replace(configuration.check());
            }
        };
        let drivers = drivers.into_iter().map(|driver| driver.run(received.clone()));
        let connection = async {
            let Some(mut connection) = connection else { return };
            let mut interval = check_interval();
            loop {
                interval.tick().await;
                connection.check().await;
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            ((), _, ()) = async { tokio::join!(configuration, join_all(drivers), connection) } => {}
        }
    }
}

fn check_interval() -> Interval {
    interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL)
}

#[cfg(test)]
#[path = "reload_tests.rs"]
mod tests;
