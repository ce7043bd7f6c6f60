//! Loads the drivers that the configuration names.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use cofferdam_backend::{
    Backend as _, BackendConfig, BackendMetrics, CompiledCache, Engine, EngineOptions, Source, WasmBackend,
};
use cofferdam_domain::storage::{Placement, Secret};
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
    pub(crate) backend: Arc<WasmBackend>,
}

/// The engine as the configuration wants it.
///
/// # Errors
/// [`Failure::Engine`]
pub(crate) fn engine(configuration: &Configuration, registry: &mut Registry) -> Result<Engine, Failure> {
    let cache = match &configuration.compilation_cache {
        CompilationCache::User => CompiledCache::User,
        CompilationCache::Off => CompiledCache::Off,
        CompilationCache::Directory(path) => CompiledCache::Directory(path.clone()),
    };
    let options = EngineOptions { cache, metrics: BackendMetrics::register(registry) };
    Engine::new(options).map_err(Failure::Engine)
}

/// Loads every driver of the configuration, one after the other, so that errors come in the order of the names.
///
/// # Errors
/// [`Failure::Backend`], which names the driver and its file.
pub(crate) async fn load_all(engine: &Engine, configuration: &Configuration) -> Result<Vec<Driver>, Failure> {
    let mut drivers = Vec::with_capacity(configuration.backend.len());
    for (name, section) in &configuration.backend {
        drivers.push(load(engine, name, section).await?);
    }
    Ok(drivers)
}

/// Refuses drivers of one node's storage. Their volumes are reachable from that node only, and volumes are not yet created where
/// the pod will be: a claim would be bound to a volume that no pod can use.
///
/// # Errors
/// [`Failure::Placement`]
pub(crate) fn all_central(drivers: &[Driver]) -> Result<(), Failure> {
    let of_a_node = |driver: &&Driver| driver.backend.description().placement == Placement::Node;
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
    let secret = |(secret, file): (&String, &PathBuf)| match read_secret(file) {
        Ok(text) => Ok((secret.clone(), Secret::new(text))),
        Err(problem) => Err(Failure::Secret { backend: name.to_owned(), secret: secret.clone(), problem }),
    };
    let secrets = section.secrets.iter().map(secret).collect::<Result<_, _>>()?;
    let mut config = BackendConfig {
        sha256: section.sha256,
        settings: section.settings.iter().map(|(key, value)| (key.clone(), value.0.clone())).collect(),
        secrets,
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

async fn load(engine: &Engine, name: &str, section: &BackendSection) -> Result<Driver, Failure> {
    let source = match &section.file {
        Some(file) => Source::File(file.clone()),
        // The configuration was refused if there is neither.
        None => Source::Bytes { name: name.to_owned(), bytes: carried(name).unwrap_or_default() },
    };
    let loaded = engine.load(source, config(name, section)?).await;
    let backend = loaded.map_err(|source| Failure::Backend { name: name.to_owned(), source })?;
    Ok(Driver { name: name.to_owned(), backend })
}
