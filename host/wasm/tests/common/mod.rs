//! Helpers of the test suites.
#![allow(dead_code, reason = "each suite uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::storage::{
    AccessType, CapacityRange, CreateVolume, CreatedVolume, CsiAccessMode, Parameters, StorageError,
    VolumeCapability,
};
use cofferdam_wasm::{
    BackendConfig, CompiledCache, ComponentSource, Engine, EngineOptions, Limits, LoadError, WasmBackend,
};

/// A call with the default deadline of a backend.
pub(crate) fn call() -> Call {
    Call::with_deadline(Duration::from_secs(60))
}

/// An engine that caches compiled code in the build directory, so that repeated runs of a suite do not
/// compile again.
pub(crate) fn engine() -> Engine {
    let cache = CompiledCache::Directory(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"));
    Engine::new(EngineOptions { cache, ..EngineOptions::default() }).unwrap()
}

pub(crate) fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(crate) async fn load(
    engine: &Engine,
    bytes: &'static [u8],
    pairs: &[(&str, &str)],
    limits: Limits,
) -> Result<Arc<WasmBackend>, LoadError> {
    let source = ComponentSource::Bytes { name: "guest.wasm".to_owned(), bytes };
    let settings = settings(pairs);
    let config = BackendConfig { settings, limits, class_secrets: true, ..BackendConfig::default() };
    engine.load(source, config).await
}

pub(crate) async fn load_memory_backend(engine: &Engine, pairs: &[(&str, &str)]) -> Arc<WasmBackend> {
    load(engine, cofferdam_carried::MEMORY, pairs, Limits::default()).await.unwrap()
}

pub(crate) fn request(name: &str, bytes: u64) -> CreateVolume {
    CreateVolume {
        name: name.to_owned(),
        capacity: CapacityRange { required: Some(bytes), limit: None },
        capabilities: vec![VolumeCapability {
            access_mode: CsiAccessMode::SingleNodeWriter,
            access_type: AccessType::Filesystem { fs_type: None, mount_flags: Vec::new(), mount_group: None },
        }],
        parameters: Parameters::new(),
        mutable_parameters: Parameters::new(),
        topology: None,
        owner: None,
        source: None,
    }
}

pub(crate) async fn create(
    backend: &WasmBackend,
    name: &str,
    bytes: u64,
) -> Result<CreatedVolume, StorageError> {
    backend.create_volume(call(), request(name, bytes)).await
}
