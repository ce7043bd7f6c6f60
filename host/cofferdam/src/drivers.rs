//! Loads the drivers that the configuration names.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cofferdam_backend::{Backend, BackendMetrics};
use cofferdam_csi::{ConnectionMetrics, CsiBackend, CsiConfig};
use cofferdam_domain::storage::{Placement, Secret, Secrets};
use cofferdam_wasm::{
    BackendConfig, CompiledCache, ComponentSource, Engine, EngineOptions, WasmBackend, WasmMetrics,
};
use prometheus_client::registry::Registry;

use crate::{
    config::{BackendSection, CompilationCache, Configuration, carried},
    failure::Failure,
};

/// A driver under its name in the configuration.
pub(crate) struct Driver {
    /// That name.
    pub(crate) name: String,
    /// The driver.
    pub(crate) kind: Kind,
}

/// What a driver is.
#[derive(Clone)]
pub(crate) enum Kind {
    /// A component in the sandbox.
    Component(Arc<WasmBackend>),
    /// An existing driver on a socket.
    Csi(Arc<CsiBackend>),
}

impl Driver {
    /// The driver as the roles see it.
    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        match &self.kind {
            Kind::Component(backend) => Arc::clone(backend) as _,
            Kind::Csi(backend) => Arc::clone(backend) as _,
        }
    }

    /// Where it runs, for people.
    pub(crate) fn place(&self) -> String {
        match &self.kind {
            Kind::Component(_) => "in the sandbox".to_owned(),
            Kind::Csi(backend) => format!("at {}", backend.address()),
        }
    }
}

/// How long a driver may take to answer before it is said that it is waited for.
const TELL: Duration = Duration::from_secs(1);

/// Loads and connects drivers.
pub(crate) struct Loader {
    /// Runs components.
    pub(crate) engine: Engine,
    calls: BackendMetrics,
    connections: ConnectionMetrics,
    timeout: Duration,
}

impl Loader {
    /// The engine as the configuration wants it, and the metrics of all drivers.
    ///
    /// # Errors
    /// [`Failure::Engine`]
    pub(crate) fn new(configuration: &Configuration, registry: &mut Registry) -> Result<Self, Failure> {
        let cache = match &configuration.compilation_cache {
            CompilationCache::User => CompiledCache::User,
            CompilationCache::Off => CompiledCache::Off,
            CompilationCache::Directory(path) => CompiledCache::Directory(path.clone()),
        };
        let calls = BackendMetrics::register(registry);
        let options = EngineOptions { cache, metrics: WasmMetrics::register(registry, calls.clone()) };
        Ok(Self {
            engine: Engine::new(options).map_err(Failure::Engine)?,
            calls,
            connections: ConnectionMetrics::register(registry),
            timeout: configuration.timeout.get(),
        })
    }

    /// Loads every driver of the configuration, one after the other, so that errors come in the order of the names.
    ///
    /// # Errors
    /// [`Failure::Backend`] or [`Failure::Csi`], which name the driver and its file or socket.
    pub(crate) async fn load_all(&self, configuration: &Configuration) -> Result<Vec<Driver>, Failure> {
        let mut drivers = Vec::with_capacity(configuration.backend.len());
        for (name, section) in &configuration.backend {
            let kind = match csi_config(name, section, self.timeout)? {
                Some(config) => Kind::Csi(self.connect(name, config).await?),
                None => Kind::Component(self.load(name, section).await?),
            };
            drivers.push(Driver { name: name.clone(), kind });
        }
        Ok(drivers)
    }

    /// Connects to an existing driver.
    ///
    /// # Errors
    /// [`Failure::Csi`]
    pub(crate) async fn connect(&self, name: &str, config: CsiConfig) -> Result<Arc<CsiBackend>, Failure> {
        let address = config.address.clone();
        let connecting = CsiBackend::connect(config, &self.calls, &self.connections);
        let tell = || {
            let there = if address.path().exists() { "" } else { ", which does not exist yet" };
            tracing::warn!("backend {name}: waiting for the CSI driver on the socket {address}{there}");
        };
        let connected = telling(connecting, tell).await;
        connected.map_err(|source| Failure::Csi { name: name.to_owned(), source })
    }

    async fn load(&self, name: &str, section: &BackendSection) -> Result<Arc<WasmBackend>, Failure> {
        let source = match &section.file {
            Some(file) => ComponentSource::File(file.clone()),
            // The configuration was refused if there is neither.
            None => {
                ComponentSource::Bytes { name: name.to_owned(), bytes: carried(name).unwrap_or_default() }
            }
        };
        let loaded = self.engine.load(source, config(name, section)?).await;
        loaded.map_err(|source| Failure::Backend { name: name.to_owned(), source })
    }
}

/// Waits for the work, and tells once that it is waited for.
async fn telling<T>(work: impl Future<Output = T>, tell: impl FnOnce()) -> T {
    tokio::pin!(work);
    if let Ok(done) = tokio::time::timeout(TELL, &mut work).await {
        return done;
    }
    tell();
    work.await
}

/// What an existing driver is connected with; `None` for components.
///
/// # Errors
/// [`Failure::Secret`]
pub(crate) fn csi_config(
    name: &str,
    section: &BackendSection,
    timeout: Duration,
) -> Result<Option<CsiConfig>, Failure> {
    let Some(socket) = &section.csi else { return Ok(None) };
    Ok(Some(CsiConfig {
        driver: section.driver_name.clone(),
        secrets: secrets(name, section)?,
        // The caller's own deadline is the same setting.
        deadline: timeout,
        ..CsiConfig::new(socket.0.clone())
    }))
}

/// The secrets of every call, out of their files.
fn secrets(name: &str, section: &BackendSection) -> Result<Secrets, Failure> {
    let secret = |(secret, file): (&String, &PathBuf)| match read_secret(file) {
        Ok(text) => Ok((secret.clone(), Secret::new(text))),
        Err(problem) => Err(Failure::Secret { backend: name.to_owned(), secret: secret.clone(), problem }),
    };
    section.secrets.iter().map(secret).collect()
}

/// Refuses drivers of one node's storage where nobody says which node this is: processes of several nodes would all provision for one
/// claim, and delete what they do not have.
///
/// # Errors
/// [`Failure::Placement`]
pub(crate) fn all_central(drivers: &[Driver]) -> Result<(), Failure> {
    let of_a_node = |driver: &&Driver| driver.backend().description().placement == Placement::Node;
    match drivers.iter().find(of_a_node) {
        Some(driver) => Err(Failure::Placement(driver.name.clone())),
        None => Ok(()),
    }
}

/// Longest secret, in bytes; Kubernetes' limit for a whole Secret.
const MAX_SECRET: u64 = 1 << 20;

/// A secret in a file. The error names the file and nothing of what was found.
pub(crate) fn read_secret(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > MAX_SECRET {
        return Err(format!("{} has {size} bytes: expected at most {MAX_SECRET}", path.display()));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    // Editors and `echo` end a file with a line break that belongs to no password.
    Ok(text
        .strip_suffix('\n')
        .map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line))
        .to_owned())
}

/// What a section gives its component.
///
/// # Errors
/// [`Failure::Secret`]
pub(crate) fn config(name: &str, section: &BackendSection) -> Result<BackendConfig, Failure> {
    let mut config = BackendConfig {
        sha256: section.sha256,
        settings: section.settings.iter().map(|(key, value)| (key.clone(), value.0.clone())).collect(),
        secrets: secrets(name, section)?,
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
    async fn what_is_waited_for_is_told_once_after_a_second() {
        let told = Cell::new(0);
        let tell = || told.set(told.get() + 1);
        assert_eq!(telling(ready(1), tell).await, 1);
        telling(sleep(TELL / 2), tell).await;
        assert_eq!(told.get(), 0);
        let begun = Instant::now();
        let work = async {
            sleep(TELL * 2).await;
            told.get()
        };
        assert_eq!(telling(work, tell).await, 1, "told while it is waited for");
        assert_eq!(begun.elapsed(), TELL * 2);
    }
}
