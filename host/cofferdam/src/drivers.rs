//! Loads the drivers that the configuration names.

use std::sync::Arc;

use cofferdam_backend::{
    BackendConfig, BackendMetrics, CompiledCache, Engine, EngineOptions, Source, WasmBackend,
};
use prometheus_client::registry::Registry;

use crate::{
    config::{BackendSection, CompilationCache, Configuration, MEMORY},
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

/// What a section gives its component.
pub(crate) fn config(section: &BackendSection) -> BackendConfig {
    let mut config = BackendConfig {
        settings: section.settings.iter().map(|(key, value)| (key.clone(), value.0.clone())).collect(),
        limits: section.limits.clone(),
        http: section.http.clone(),
        state: section.state.clone(),
        pool: section.pool.clone(),
        ..BackendConfig::default()
    };
    if let Some(grants) = &section.grants {
        config.grants = grants.clone();
    }
    config
}

async fn load(engine: &Engine, name: &str, section: &BackendSection) -> Result<Driver, Failure> {
    let source = match &section.file {
        Some(file) => Source::File(file.clone()),
        None => Source::Bytes { name: MEMORY.to_owned(), bytes: cofferdam_guests::MEMORY },
    };
    let loaded = engine.load(source, config(section)).await;
    let backend = loaded.map_err(|source| Failure::Backend { name: name.to_owned(), source })?;
    Ok(Driver { name: name.to_owned(), backend })
}
