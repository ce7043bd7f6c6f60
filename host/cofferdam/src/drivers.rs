//! Loads the drivers that the configuration names.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use cofferdam_backend::{Backend, BackendMetrics};
use cofferdam_csi::{ConnectionMetrics, CsiBackend, CsiConfig};
use cofferdam_domain::{
    DriverName,
    storage::{Placement, Secret, Secrets},
};
use cofferdam_wasm::{
    BackendConfig, CompiledCache, ComponentSource, Engine, EngineOptions, Grant, WasmBackend, WasmMetrics,
};
use prometheus_client::registry::Registry;

use crate::{
    config::{BackendSection, CompilationCache, Configuration, carried_component},
    error::CommandError,
    secret::read_secret,
};

/// A loaded driver.
pub(crate) struct LoadedDriver {
    /// Name in the configuration.
    pub(crate) name: String,
    /// The driver.
    pub(crate) kind: DriverKind,
}

/// Kind of a driver.
#[derive(Clone)]
pub(crate) enum DriverKind {
    /// A component in the sandbox.
    Component(Arc<WasmBackend>),
    /// An existing CSI driver on a socket.
    Csi(Arc<CsiBackend>),
}

impl LoadedDriver {
    /// The driver as a backend of the roles.
    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        match &self.kind {
            DriverKind::Component(backend) => Arc::clone(backend) as _,
            DriverKind::Csi(backend) => Arc::clone(backend) as _,
        }
    }

    /// Location of the driver, for output.
    pub(crate) fn location_text(&self) -> String {
        match &self.kind {
            DriverKind::Component(_) => "in the sandbox".to_owned(),
            DriverKind::Csi(backend) => format!("at {}", backend.address()),
        }
    }
}

/// Time after which a warning is logged if a CSI driver is not yet connected.
const SLOW_CONNECT_WARNING_DELAY: Duration = Duration::from_secs(1);

/// Loads and connects drivers.
pub(crate) struct DriverLoader {
    /// Runs components.
    pub(crate) engine: Engine,
    /// Metrics of the calls of all drivers.
    pub(crate) call_metrics: BackendMetrics,
    connection_metrics: ConnectionMetrics,
    timeout: Duration,
    /// The longest deadline of a call: that of an operation may be longer than `timeout`.
    max_timeout: Duration,
    /// Secrets of the command line, by the name of the component's section. They precede those of the section.
    flag_secrets: BTreeMap<String, Secrets>,
}

impl DriverLoader {
    /// Creates the configured engine and the metrics of all drivers.
    ///
    /// # Errors
    /// [`CommandError::Engine`]
    pub(crate) fn new(configuration: &Configuration, registry: &mut Registry) -> Result<Self, CommandError> {
        let cache = match &configuration.compilation_cache {
            CompilationCache::User => CompiledCache::User,
            CompilationCache::Off => CompiledCache::Off,
            CompilationCache::Directory(path) => CompiledCache::Directory(path.clone()),
        };
        let calls = BackendMetrics::register(registry);
        let options = EngineOptions { cache, metrics: WasmMetrics::register(registry, calls.clone()) };
        Ok(Self {
            engine: Engine::new(options).map_err(CommandError::Engine)?,
            call_metrics: calls,
            connection_metrics: ConnectionMetrics::register(registry),
            timeout: configuration.timeout.get(),
            max_timeout: [configuration.resize_timeout, configuration.modify_timeout]
                .into_iter()
                .flatten()
                .fold(configuration.timeout, Ord::max)
                .get(),
            flag_secrets: BTreeMap::new(),
        })
    }

    /// Adds secrets of every call of a component.
    #[must_use]
    pub(crate) fn with_secrets(mut self, name: &str, secrets: Secrets) -> Self {
        self.flag_secrets.insert(name.to_owned(), secrets);
        self
    }

    /// Loads the drivers of the configuration one after the other, sorted by name, so that the error is
    /// always that of the same driver.
    ///
    /// # Errors
    /// [`CommandError::Backend`], [`CommandError::Csi`] or [`CommandError::Secret`], with the section's name.
    pub(crate) async fn load_all(
        &self,
        configuration: &Configuration,
    ) -> Result<Vec<LoadedDriver>, CommandError> {
        let mut drivers = Vec::with_capacity(configuration.backend.len());
        for (name, section) in &configuration.backend {
            let timeouts = CsiTimeouts { call: self.max_timeout, identity: self.timeout };
            let kind = match csi_config(name, section, timeouts)? {
                Some(config) => DriverKind::Csi(self.connect(name, config).await?),
                None => DriverKind::Component(self.load(name, section).await?),
            };
            drivers.push(LoadedDriver { name: name.clone(), kind });
        }
        Ok(drivers)
    }

    /// Connects to an existing CSI driver. Logs a warning if that takes longer than a second.
    ///
    /// # Errors
    /// [`CommandError::Csi`]
    pub(crate) async fn connect(
        &self,
        name: &str,
        config: CsiConfig,
    ) -> Result<Arc<CsiBackend>, CommandError> {
        let address = config.address.clone();
        let connecting = CsiBackend::connect(config, &self.call_metrics, &self.connection_metrics);
        let warn = || {
            let missing_note = if address.path().exists() { "" } else { ", which does not exist yet" };
            tracing::warn!(
                "backend {name}: waiting for the CSI driver on the socket {address}{missing_note}"
            );
        };
        let connected = run_with_slow_warning(connecting, warn).await;
        connected.map_err(|source| CommandError::Csi { name: name.to_owned(), source })
    }

    async fn load(&self, name: &str, section: &BackendSection) -> Result<Arc<WasmBackend>, CommandError> {
        let mut config = backend_config(name, section)?;
        if let Some(secrets) = self.flag_secrets.get(name) {
            config.secrets = config.secrets.merged_with(secrets);
        }
        let result = self.engine.load(component_source(name, section), config).await;
        result.map_err(|source| CommandError::Backend { name: name.to_owned(), source: source.into() })
    }
}

/// Location of a section's component.
pub(crate) fn component_source(name: &str, section: &BackendSection) -> ComponentSource {
    match &section.file {
        Some(file) => ComponentSource::File(file.clone()),
        // The configuration rejects a driver without a file and without a built-in component.
        None => ComponentSource::Bytes {
            name: name.to_owned(),
            bytes: carried_component(name).unwrap_or_default(),
        },
    }
}

/// Runs a future; calls `on_slow` once if it takes longer than [`SLOW_CONNECT_WARNING_DELAY`].
async fn run_with_slow_warning<T>(future: impl Future<Output = T>, on_slow: impl FnOnce()) -> T {
    tokio::pin!(future);
    if let Ok(done) = tokio::time::timeout(SLOW_CONNECT_WARNING_DELAY, &mut future).await {
        return done;
    }
    on_slow();
    future.await
}

/// Timeouts of calls to a CSI driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CsiTimeouts {
    /// Longest timeout of a call. A role may have a shorter one.
    pub(crate) call: Duration,
    /// Timeout of each call that the connection itself makes.
    pub(crate) identity: Duration,
}

/// Connection parameters of an existing CSI driver; `None` for components.
///
/// # Errors
/// [`CommandError::Secret`]
pub(crate) fn csi_config(
    name: &str,
    section: &BackendSection,
    timeouts: CsiTimeouts,
) -> Result<Option<CsiConfig>, CommandError> {
    let Some(socket) = &section.csi else { return Ok(None) };
    Ok(Some(CsiConfig {
        expected_driver: section.driver_name.clone(),
        secrets: read_secrets(name, section)?,
        call_timeout: timeouts.call,
        identity_timeout: timeouts.identity,
        ..CsiConfig::new(socket.0.clone())
    }))
}

/// Reads the secrets of every call from their files.
pub(crate) fn read_secrets(name: &str, section: &BackendSection) -> Result<Secrets, CommandError> {
    let secret = |(secret, file): (&String, &PathBuf)| match read_secret(file) {
        Ok(text) => Ok((secret.clone(), Secret::new(text))),
        Err(source) => Err(CommandError::Secret { backend: name.to_owned(), secret: secret.clone(), source }),
    };
    section.secrets.iter().map(secret).collect()
}

/// Rejects node-local drivers. `run` calls it for a process that reconciles a cluster and has no `node-name`:
/// such processes on several nodes would provision for the same claim, and delete volumes that they do not
/// have.
///
/// # Errors
/// [`CommandError::Placement`]
pub(crate) fn check_no_node_local_driver(drivers: &[LoadedDriver]) -> Result<(), CommandError> {
    node_local_driver(drivers).map_or(Ok(()), |driver| Err(CommandError::Placement(driver.name.clone())))
}

/// Rejects node-local drivers of a process with leader election: of the processes on all nodes, one would
/// work.
///
/// # Errors
/// [`CommandError::ElectedNode`]
pub(crate) fn check_elected_drivers(drivers: &[LoadedDriver]) -> Result<(), CommandError> {
    node_local_driver(drivers).map_or(Ok(()), |driver| Err(CommandError::ElectedNode(driver.name.clone())))
}

/// The drivers whose components have the grant `state` or `pool`: their data has one owner. A state without a
/// file is in the memory of the process.
pub(crate) fn with_data_of_this_process(drivers: &[LoadedDriver]) -> BTreeSet<DriverName> {
    let has_data = |driver: &&LoadedDriver| match &driver.kind {
        DriverKind::Component(backend) => {
            let grants = &backend.interfaces().grants;
            grants.contains(&Grant::State) || grants.contains(&Grant::Pool)
        }
        DriverKind::Csi(_) => false,
    };
    let name = |driver: &LoadedDriver| driver.backend().description().name.clone();
    drivers.iter().filter(has_data).map(name).collect()
}

fn node_local_driver(drivers: &[LoadedDriver]) -> Option<&LoadedDriver> {
    drivers.iter().find(|driver| driver.backend().description().placement == Placement::Node)
}

/// Configuration of a section's component.
///
/// # Errors
/// [`CommandError::Secret`]
pub(crate) fn backend_config(name: &str, section: &BackendSection) -> Result<BackendConfig, CommandError> {
    let mut config = BackendConfig {
        sha256: section.sha256,
        settings: section.settings.iter().map(|(key, value)| (key.clone(), value.0.clone())).collect(),
        secrets: read_secrets(name, section)?,
        class_secrets: section.class_secrets,
        limits: section.limits.clone(),
        http: section.http.clone(),
        state: section.state.clone(),
        pool: section.pool.clone(),
        ..BackendConfig::default()
    };
    if let Some(grants) = &section.grants {
        config.grants = grants.clone();
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::ready};

    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_connection_is_warned_about_once_after_a_second() {
        let warnings = Cell::new(0);
        let warn = || warnings.set(warnings.get() + 1);
        assert_eq!(run_with_slow_warning(ready(1), warn).await, 1);
        run_with_slow_warning(sleep(SLOW_CONNECT_WARNING_DELAY / 2), warn).await;
        assert_eq!(warnings.get(), 0);
        let started = Instant::now();
        let future = async {
            sleep(SLOW_CONNECT_WARNING_DELAY * 2).await;
            warnings.get()
        };
        assert_eq!(run_with_slow_warning(future, warn).await, 1, "warned before the future has finished");
        assert_eq!(started.elapsed(), SLOW_CONNECT_WARNING_DELAY * 2);
    }
}
