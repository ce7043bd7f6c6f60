//! Takes over changes of the configuration and of the files that it names, without a restart.
//!
//! The sections of drivers change alive: their components, settings, grants, origins, certificates and
//! secrets. So do certificates and credentials for the API server. A change of another setting is logged, and
//! needs a restart.

mod connection;
mod files;

use std::{collections::BTreeMap, time::Duration};

use cofferdam_wasm::{Engine, ReloadError};
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;

use files::{FileVersions, file_version};

use crate::{
    config::{BackendSection, ConfigError, Configuration, ResolvedConfig},
    drivers::{DriverKind, DriverLoader, LoadedDriver, backend_config, component_source, read_secrets},
    error::CommandError,
};

pub(crate) use connection::ConnectionReloader;

/// Interval of the checks. Files in volumes of Secrets and ConfigMaps are replaced through links, which
/// notifications of the file system do not follow.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Resolves the configuration from its sources.
pub(crate) type ConfigSource = Box<dyn Fn() -> Result<ResolvedConfig, ConfigError> + Send + Sync>;

/// Versions of the files of each section.
pub(crate) type SectionFiles = BTreeMap<String, FileVersions>;

/// Takes over changes of a process.
pub(crate) struct Reloader {
    engine: Engine,
    source: ConfigSource,
    settings: BTreeMap<&'static str, String>,
    drivers: Vec<ReloadableDriver>,
    connection: Option<ConnectionReloader>,
    /// The last problem that was logged.
    problem: Option<String>,
}

struct ReloadableDriver {
    name: String,
    kind: DriverKind,
    /// The section and its files at the last attempt.
    section: BackendSection,
    files: FileVersions,
    /// The error of the last attempt.
    problem: Option<String>,
}

/// The reason why a driver does not use a changed section.
#[derive(Debug, thiserror::Error)]
enum UpdateError {
    #[error("a change of `{0}` needs a restart")]
    NeedsRestart(&'static str),
    #[error(transparent)]
    Secret(#[from] CommandError),
    #[error(transparent)]
    Reload(#[from] ReloadError),
}

impl Reloader {
    /// A reloader of drivers that were loaded from `resolved`. `files` are the [`section_files`] from before
    /// the load, which can take long.
    pub(crate) fn new(
        loader: DriverLoader,
        source: ConfigSource,
        resolved: &ResolvedConfig,
        mut files: SectionFiles,
        drivers: &[LoadedDriver],
    ) -> Self {
        let mut reloadable = |driver: &LoadedDriver| {
            let section = resolved.configuration.backend.get(&driver.name)?.clone();
            let files = files.remove(&driver.name)?;
            Some(ReloadableDriver {
                name: driver.name.clone(),
                kind: driver.kind.clone(),
                section,
                files,
                problem: None,
            })
        };
        Self {
            engine: loader.engine,
            source,
            settings: resolved.setting_values(),
            drivers: drivers.iter().filter_map(&mut reloadable).collect(),
            connection: None,
            problem: None,
        }
    }

    /// Also takes over changes of the credentials for the API server.
    pub(crate) fn with_connection(self, connection: Option<ConnectionReloader>) -> Self {
        Self { connection, ..self }
    }

    /// Checks for changes until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut interval = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = interval.tick() => {}
            }
            // A compile or a program that prints credentials may take long.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.check() => {}
            }
        }
    }

    /// Takes over all changes since the last check.
    async fn check(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.check().await;
        }
        let mut sections = match (self.source)() {
            Ok(resolved) => {
                self.report(self.unsupported_changes(&resolved));
                resolved.configuration.backend
            }
            Err(error) => {
                self.report(Some(format!("the configuration on disk is not taken over: {error}")));
                // The files of the running sections may have changed.
                let running = self.drivers.iter();
                running.map(|driver| (driver.name.clone(), driver.section.clone())).collect()
            }
        };
        for driver in &mut self.drivers {
            if let Some(section) = sections.remove(&driver.name) {
                driver.update(&self.engine, section).await;
            }
        }
    }

    /// Logs a problem once.
    fn report(&mut self, problem: Option<String>) {
        if let Some(problem) = problem.as_ref().filter(|problem| self.problem.as_ref() != Some(problem)) {
            tracing::warn!("{problem}");
        }
        self.problem = problem;
    }

    /// The changes that need a restart.
    fn unsupported_changes(&self, resolved: &ResolvedConfig) -> Option<String> {
        let settings = resolved.setting_values();
        let names = self.settings.keys().chain(settings.keys());
        let mut changed: Vec<String> = names
            .filter(|name| self.settings.get(*name) != settings.get(*name))
            .map(|name| (*name).to_owned())
            .collect();
        let sections = &resolved.configuration.backend;
        let is_running = |name: &String| self.drivers.iter().any(|driver| driver.name == *name);
        let added = sections.keys().filter(|name| !is_running(name)).cloned();
        let removed = self.drivers.iter().map(|driver| &driver.name);
        let removed = removed.filter(|name| !sections.contains_key(*name)).cloned();
        changed.extend(added.chain(removed).map(|name| format!("backend.{name}")));
        changed.sort_unstable();
        changed.dedup();
        (!changed.is_empty()).then(|| {
            format!(
                "the configuration on disk has changed; this change needs a restart: {}",
                changed.join(", ")
            )
        })
    }
}

impl ReloadableDriver {
    /// Takes over a section, if it or one of its files has changed since the last attempt. A failure is
    /// logged once, and the driver continues with what it has.
    async fn update(&mut self, engine: &Engine, section: BackendSection) {
        let files = file_versions(&section);
        if self.section == section && self.files == files {
            return;
        }
        let updated = self.apply(engine, &section).await;
        let may_succeed_later = matches!(updated, Err(UpdateError::Reload(ReloadError::NotReady { .. })));
        if !may_succeed_later {
            (self.section, self.files) = (section, files);
        }
        let backend = &self.name;
        match &updated {
            Ok(()) => tracing::info!(backend, "the changed configuration and files are in use"),
            Err(error) if self.problem != Some(error.to_string()) => {
                tracing::warn!(backend, "the changed configuration and files are not in use: {error}");
            }
            Err(_) => {}
        }
        self.problem = updated.err().map(|error| error.to_string());
    }

    async fn apply(&self, engine: &Engine, section: &BackendSection) -> Result<(), UpdateError> {
        if section.socket != self.section.socket {
            return Err(UpdateError::NeedsRestart("socket"));
        }
        match &self.kind {
            DriverKind::Csi(backend) => {
                if section.csi != self.section.csi {
                    return Err(UpdateError::NeedsRestart("csi"));
                }
                if section.driver_name != self.section.driver_name {
                    return Err(UpdateError::NeedsRestart("driver-name"));
                }
                backend.replace_secrets(read_secrets(&self.name, section)?);
                Ok(())
            }
            DriverKind::Component(backend) => {
                if section.csi.is_some() {
                    return Err(UpdateError::NeedsRestart("csi"));
                }
                let config = backend_config(&self.name, section)?;
                Ok(engine.reload(backend, component_source(&self.name, section), config).await?)
            }
        }
    }
}

/// The versions of the files of all sections.
pub(crate) fn section_files(configuration: &Configuration) -> SectionFiles {
    let sections = configuration.backend.iter();
    sections.map(|(name, section)| (name.clone(), file_versions(section))).collect()
}

fn file_versions(section: &BackendSection) -> FileVersions {
    section.files().into_iter().map(|path| (path.clone(), file_version(&path))).collect()
}

#[cfg(test)]
#[path = "reload_tests.rs"]
mod tests;
