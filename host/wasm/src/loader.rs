//! Loading of a component: checks the limits, reads the file once, checks its kind and its digest, compiles
//! and links it, checks its grants, reads the TLS files of its HTTP origins, opens its state file and pool,
//! checks the types of its exports, and calls `describe` and `probe`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read as _,
    path::PathBuf,
    sync::{Arc, PoisonError, Weak},
};

use cofferdam_domain::storage::{Description, Readiness, Secrets};
use tokio::time::Instant;
use wasmtime::component::Component;

use crate::{
    backend::WasmBackend,
    bindings::exports::cofferdam::storage::identity,
    call::{self, SharedState},
    capabilities::{
        SharedCapabilities,
        http::{
            client::HttpClient,
            config::HttpConfig,
            connect,
            policy::{self, OriginConfigError, OriginPolicy},
        },
        pool::{config::PoolConfig, store::Pool},
        session,
        state::{self, StateConfig},
        workers::Workers,
    },
    component::CompiledComponent,
    contract::Grant,
    convert,
    digest::Digest,
    engine::{Engine, EngineInner},
    error::LoadError,
    exports::{self, Exports, GuestFunction},
    fault_injection::FaultPlan,
    inspect::ComponentInterfaces,
    instance_pool::{self, InstanceQuota},
    limits::Limits,
};
use cofferdam_backend::{
    CallContext, ContractViolation, Redactor,
    checks::{self, printable},
};

/// Source of a component.
#[derive(Clone, Debug)]
pub enum ComponentSource {
    /// A file.
    File(PathBuf),
    /// Bytes that are embedded in the program.
    Bytes {
        /// The component's name in messages.
        name: String,
        /// The component.
        bytes: &'static [u8],
    },
}

impl ComponentSource {
    /// The component's name in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Bytes { name, .. } => name.clone(),
        }
    }
}

/// Configuration of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendConfig {
    /// The component's expected SHA-256 digest; `None` accepts any component.
    pub sha256: Option<Digest>,
    /// The entries of the backend's `settings` import.
    pub settings: BTreeMap<String, String>,
    /// Secrets of every call of the backend. A caller's secret of the same name takes precedence; see
    /// [`class_secrets`](Self::class_secrets).
    pub secrets: Secrets,
    /// Grants the import `secrets` access to the secrets of a call's caller, such as those that a class
    /// names. Without it, a call with secrets fails.
    pub class_secrets: bool,
    /// The imports that are granted explicitly; see [`effective_grants`](Self::effective_grants).
    pub grants: BTreeSet<Grant>,
    /// Origins that the backend's HTTP requests may go to.
    pub http: HttpConfig,
    /// Limits of the backend and its calls.
    pub limits: Limits,
    /// Storage of the `state` import.
    pub state: StateConfig,
    /// The directory of the backend's `pool` import; `None` without a pool. If present, `pool` is granted.
    pub pool: Option<PoolConfig>,
}

impl BackendConfig {
    /// All imports that the backend is granted: explicitly, or by a section of the configuration. HTTP
    /// origins grant `http`, and a pool directory grants `pool`.
    pub fn effective_grants(&self) -> BTreeSet<Grant> {
        let http = (!self.http.origins.is_empty()).then_some(Grant::Http);
        let pool = self.pool.is_some().then_some(Grant::Pool);
        self.grants.iter().copied().chain(http).chain(pool).collect()
    }
}

impl Default for BackendConfig {
    fn default() -> Self {
        Self {
            sha256: None,
            settings: BTreeMap::new(),
            secrets: Secrets::default(),
            class_secrets: false,
            grants: Grant::DEFAULT.into(),
            http: HttpConfig::default(),
            limits: Limits::default(),
            state: StateConfig::default(),
            pool: None,
        }
    }
}

impl Engine {
    /// Reads a component's imports and exports. None of its code runs.
    ///
    /// # Errors
    ///
    /// The component cannot be read, exceeds the limit `file-bytes`, is invalid, or needs more than the
    /// instance pool permits for one call. It was written for another version of the contract, imports what
    /// the host does not offer, has an import of another type, or lacks a mandatory interface or a function
    /// of an exported interface. The types of exported functions are not checked.
    pub async fn inspect(
        &self,
        source: ComponentSource,
        limits: &Limits,
    ) -> Result<ComponentInfo, LoadError> {
        let compiled = self.compile(source, limits.file_bytes, None).await?;
        Ok(ComponentInfo {
            digest: compiled.digest,
            size: compiled.size,
            interfaces: compiled.interfaces.clone(),
        })
    }

    /// Reads a component's description. All imports are linked, but only the settings are configured: a
    /// description must not depend on the others.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load), except that neither a digest nor grants are checked, `probe` is not called,
    /// and no HTTP origins, state file or pool are opened.
    pub async fn describe(
        &self,
        source: ComponentSource,
        settings: BTreeMap<String, String>,
        limits: Limits,
    ) -> Result<Description, LoadError> {
        let name = source.name();
        validate_limits(&name, &limits)?;
        let compiled = self.compile(source, limits.file_bytes, None).await?;
        let capabilities = SharedCapabilities::unconfigured(settings, &limits);
        let engine = self.inner.wasm.clone();
        let (slots, cpu_scheduler) =
            (InstanceQuota::new(Arc::clone(&self.inner.instance_pool)), self.inner.new_cpu_scheduler());
        let shared_state = Arc::new(SharedState {
            engine,
            compiled,
            capabilities,
            limits,
            secrets: Secrets::default(),
            class_secrets: false,
            state_config: StateConfig::default(),
            pool_config: None,
            instance_quota: Arc::new(slots),
            cpu_scheduler,
        });
        describe(&name, &self.inner, &shared_state).await
    }

    async fn compile(
        &self,
        source: ComponentSource,
        limit: u64,
        expected_digest: Option<Digest>,
    ) -> Result<Arc<CompiledComponent>, LoadError> {
        let name = source.name();
        let _compile_guard = self.inner.compile_lock.lock().await;
        let inner = Arc::clone(&self.inner);
        let work = {
            let name = name.clone();
            move || compile_blocking(&inner, &name, &source, limit, expected_digest)
        };
        tokio::task::spawn_blocking(work).await.map_err(join_error(&name, "compiling"))?
    }

    /// Loads a component as a backend, and calls its `describe` and `probe`.
    ///
    /// A backend that is not ready is loaded too: it may become ready.
    ///
    /// # Errors
    ///
    /// A limit is invalid. The component cannot be read, has another digest, is invalid, does not match the
    /// contract, imports more than its grants or a pool that is not configured, or fails its first calls. The
    /// configured HTTP origins, state file or pool cannot be used. The message is one line with the
    /// component's name.
    pub async fn load(
        &self,
        source: ComponentSource,
        config: BackendConfig,
    ) -> Result<Arc<WasmBackend>, LoadError> {
        self.load_with_faults(source, config, FaultPlan::default()).await
    }

    /// As [`load`](Self::load), with fault injection, for the conformance suite.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub async fn load_with_faults(
        &self,
        source: ComponentSource,
        config: BackendConfig,
        faults: FaultPlan,
    ) -> Result<Arc<WasmBackend>, LoadError> {
        let name = source.name();
        let shared_state = self.shared_state(source, config, faults, None).await?;
        describe_and_probe(&name, Arc::clone(&self.inner), Arc::new(shared_state)).await
    }

    /// Compiles and checks a component, and opens what its imports use. A backend that is loaded again keeps
    /// the stores of `former`.
    pub(crate) async fn shared_state(
        &self,
        source: ComponentSource,
        config: BackendConfig,
        faults: FaultPlan,
        former: Option<&SharedState>,
    ) -> Result<SharedState, LoadError> {
        let grants = config.effective_grants();
        let BackendConfig { sha256, settings, secrets, class_secrets, grants: _, http, limits, state, pool } =
            config;
        let name = source.name();
        validate_limits(&name, &limits)?;
        let compiled = self.compile(source, limits.file_bytes, sha256).await?;
        compiled.interfaces.check_grants(&name, &grants)?;
        if pool.is_none() && compiled.interfaces.grants.contains(&Grant::Pool) {
            return Err(LoadError::NoPool { name });
        }
        if class_secrets && !compiled.interfaces.grants.contains(&Grant::Secrets) {
            tracing::warn!(
                backend = name,
                "`class-secrets` has no effect: the component does not import `secrets`"
            );
        }
        policy::check_secret_names(&http, |secret| class_secrets || secrets.get(secret).is_some())
            .map_err(|error| origin_error(&name, error))?;
        let policy = tokio::task::spawn_blocking(move || OriginPolicy::new(&http)).await;
        let policy = policy
            .map_err(join_error(&name, "reading certificates"))?
            .map_err(|error| origin_error(&name, error))?;
        let kept = former.map(|former| former.capabilities.clone());
        let (session, state_store, pool_store, pool_workers) = match kept {
            Some(SharedCapabilities { session, state, pool, pool_workers, .. }) => {
                (session, state, pool, pool_workers)
            }
            None => (
                Arc::new(session::SessionStore::new(&limits)),
                Arc::new(open_state(&name, state.clone(), limits.state_bytes).await?),
                open_pool(&name, pool.clone()).await?.map(Arc::new),
                Workers::default(),
            ),
        };
        let capabilities = SharedCapabilities {
            session,
            http: Arc::new(HttpClient::new(policy, &limits, Arc::new(connect::SystemResolver))),
            settings: Arc::new(settings),
            state: state_store,
            pool: pool_store,
            pool_workers,
            faults,
        };
        let (instance_quota, cpu_scheduler) = match former {
            Some(former) => (Arc::clone(&former.instance_quota), former.cpu_scheduler.clone()),
            None => (
                Arc::new(InstanceQuota::new(Arc::clone(&self.inner.instance_pool))),
                self.inner.new_cpu_scheduler(),
            ),
        };
        Ok(SharedState {
            engine: self.inner.wasm.clone(),
            compiled,
            capabilities,
            limits,
            secrets,
            class_secrets,
            state_config: state,
            pool_config: pool,
            instance_quota,
            cpu_scheduler,
        })
    }
}

/// Contents of a component, read without running it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentInfo {
    /// SHA-256 of the file.
    pub digest: Digest,
    /// Size of the file in bytes.
    pub size: u64,
    /// Imports and exports.
    pub interfaces: ComponentInterfaces,
}

/// Returns a function that converts the error of a task that panicked or was cancelled. `step` names what the
/// task did.
fn join_error(name: &str, step: &'static str) -> impl FnOnce(tokio::task::JoinError) -> LoadError {
    move |source| LoadError::Internal { name: name.to_owned(), step, source }
}

fn origin_error(name: &str, OriginConfigError { origin, error }: OriginConfigError) -> LoadError {
    LoadError::Http { name: name.to_owned(), origin, source: error }
}

async fn open_state(name: &str, config: StateConfig, limit: usize) -> Result<state::StateStore, LoadError> {
    let file = config.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
    let opened = tokio::task::spawn_blocking(move || state::StateStore::open(&config, limit)).await;
    let opened = opened.map_err(join_error(name, "opening its state"))?;
    opened.map_err(|source| LoadError::StateFile { name: name.to_owned(), file, source: Box::new(source) })
}

async fn open_pool(name: &str, config: Option<PoolConfig>) -> Result<Option<Pool>, LoadError> {
    let Some(config) = config else { return Ok(None) };
    let directory = config.directory.display().to_string();
    let opened = tokio::task::spawn_blocking(move || Pool::open(&config)).await;
    let opened = opened.map_err(join_error(name, "opening its pool"))?;
    opened.map(Some).map_err(|source| LoadError::Pool { name: name.to_owned(), directory, source })
}

/// Rejects `deadline-ms`, `cpu-ms` or `concurrent-calls` of zero, `queued-calls` below `concurrent-calls`,
/// numbers of calls above what a semaphore holds, and limits above what the instance pool permits for one
/// call.
fn validate_limits(name: &str, limits: &Limits) -> Result<(), LoadError> {
    let max_permits = tokio::sync::Semaphore::MAX_PERMITS;
    let checks = [
        ("deadline-ms", limits.deadline_ms, limits.deadline_ms > 0, "at least 1"),
        ("cpu-ms", limits.cpu_ms, limits.cpu_ms > 0, "at least 1"),
        (
            "concurrent-calls",
            to_u64(limits.concurrent_calls),
            (1..=max_permits).contains(&limits.concurrent_calls),
            "at least 1 and not more than a semaphore holds",
        ),
        (
            "queued-calls",
            to_u64(limits.queued_calls),
            (limits.concurrent_calls..=max_permits).contains(&limits.queued_calls),
            "at least `concurrent-calls` and not more than a semaphore holds",
        ),
    ];
    let too_high = instance_pool::limit_maxima(limits).into_iter().find(|(_, value, most)| value > most);
    if let Some((limit, value, most)) = too_high {
        return Err(LoadError::LimitTooHigh { name: name.to_owned(), limit, value, max: most });
    }
    match checks.into_iter().find(|(_, _, valid, _)| !valid) {
        Some((limit, value, _, expected)) => {
            Err(LoadError::InvalidLimit { name: name.to_owned(), limit, value, expected })
        }
        None => Ok(()),
    }
}

fn to_u64(number: usize) -> u64 {
    number.try_into().unwrap_or(u64::MAX)
}

/// Reads, checks, compiles and links a component; the result comes from the cache if a backend has the same
/// component loaded. Blocks its thread. The bytes are read once: the hashed bytes are the compiled ones.
fn compile_blocking(
    inner: &EngineInner,
    name: &str,
    source: &ComponentSource,
    limit: u64,
    expected_digest: Option<Digest>,
) -> Result<Arc<CompiledComponent>, LoadError> {
    let owned = || name.to_owned();
    let bytes = read(name, source, limit)?;
    if let Some(found) = unsupported_file_kind(&bytes) {
        return Err(LoadError::NotAComponent { name: owned(), found });
    }
    let digest = Digest::of(&bytes);
    if let Some(expected) = expected_digest.filter(|expected| *expected != digest) {
        return Err(LoadError::DigestMismatch { name: owned(), found: digest, expected });
    }
    let cache = || inner.component_cache.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(compiled) = cache().get(&digest).and_then(Weak::upgrade) {
        return Ok(compiled);
    }
    let component =
        Component::from_binary(&inner.wasm, &bytes).map_err(|error| compile_error(owned(), &error))?;
    let kind = component.component_type();
    let imports = kind.imports(&inner.wasm).map(|(import, _)| import.to_owned()).collect();
    let exports = kind.exports(&inner.wasm).map(|(export, _)| export.to_owned()).collect();
    let manifest = ComponentInterfaces::from_names(name, imports, exports)?;
    let mismatch =
        |error: wasmtime::Error| LoadError::TypeMismatch { name: owned(), reason: one_line(&error) };
    let slots = instance_pool::required_instances(&component);
    let pre = inner.linker.instantiate_pre(&component).map_err(mismatch)?;
    let exports = Exports::find(&pre, &manifest.abilities).map_err(mismatch)?;
    let compiled = Arc::new(CompiledComponent {
        digest,
        size: to_u64(bytes.len()),
        interfaces: manifest,
        pre,
        exports,
        required_instances: slots,
    });
    let mut cache = cache();
    cache.retain(|_, compiled| compiled.strong_count() > 0);
    cache.insert(digest, Arc::downgrade(&compiled));
    Ok(compiled)
}

fn read(name: &str, source: &ComponentSource, limit: u64) -> Result<Vec<u8>, LoadError> {
    let failed = |source| LoadError::Read { name: name.to_owned(), source };
    let too_large = |bytes| LoadError::TooLarge { name: name.to_owned(), bytes, limit };
    let mut bytes = Vec::new();
    match source {
        ComponentSource::File(path) => {
            // Opening a pipe would wait for its other end.
            if !std::fs::metadata(path).map_err(failed)?.is_file() {
                return Err(failed(std::io::Error::other("it is not a regular file: expected a component")));
            }
            let file = std::fs::File::open(path).map_err(failed)?;
            let size = file.metadata().map_err(failed)?.len();
            if size > limit {
                return Err(too_large(size));
            }
            // The file may grow.
            file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
        }
        ComponentSource::Bytes { bytes: carried, .. } => bytes.extend_from_slice(carried),
    }
    if to_u64(bytes.len()) > limit {
        return Err(too_large(to_u64(bytes.len())));
    }
    Ok(bytes)
}

/// The kind of a file that is no component, by its first bytes; `None` for a possible component.
fn unsupported_file_kind(bytes: &[u8]) -> Option<String> {
    const MAGIC: &[u8] = b"\0asm";
    /// Header of a core module: version 1, layer 0.
    const CORE: &[u8] = &[1, 0, 0, 0];
    /// Header of a component: version 13, layer 1.
    const COMPONENT: &[u8] = &[13, 0, 1, 0];
    if bytes.is_empty() {
        return Some("empty".to_owned());
    }
    match bytes.strip_prefix(MAGIC) {
        Some(rest) if rest.starts_with(COMPONENT) => None,
        Some(rest) if rest.starts_with(CORE) => Some("a core WebAssembly module".to_owned()),
        Some(rest) if rest.len() < CORE.len() => Some(format!("cut off after {} bytes", bytes.len())),
        Some(_) => Some("WebAssembly of an unknown version".to_owned()),
        None if wasmtime::Engine::detect_precompiled(bytes).is_some() => {
            Some("compiled machine code, which is never loaded from a file".to_owned())
        }
        None if bytes.trim_ascii_start().starts_with(b"(") => Some("WebAssembly text".to_owned()),
        None => Some("not WebAssembly".to_owned()),
    }
}

/// Classifies a failed compilation: a component that needs more than the instance pool permits for one call
/// is not invalid.
fn compile_error(name: String, error: &wasmtime::Error) -> LoadError {
    const WASMTIME_POOL: &str = "pooling allocator";
    let reason = one_line(error);
    if reason.contains(WASMTIME_POOL) {
        LoadError::ExceedsInstancePool {
            name,
            reason: reason.replace(WASMTIME_POOL, "slots of this program"),
        }
    } else {
        LoadError::Invalid { name, reason }
    }
}

/// An error with its causes in one line.
fn one_line(error: &wasmtime::Error) -> String {
    printable(&format!("{error:#}"))
}

/// Runs a call while the component is loaded, under the limits of one call. The limits of concurrent and
/// queued calls and the circuit breaker do not apply: they belong to the backend, which does not exist yet.
/// The call has the backend's secrets; returns the redactor for texts of the response, too.
///
/// The call has no term that ends, and neither have the HTTP exchanges of the guest: components are loaded
/// before the process competes for its Leases, and a standby loads changed components, too. `describe` and
/// `probe` change nothing.
async fn initial_call<T: Send + 'static>(
    name: &str,
    inner: &EngineInner,
    shared_state: &Arc<SharedState>,
    function: &'static str,
    work: GuestFunction<T>,
) -> Result<(T, Redactor), LoadError> {
    let deadline = Instant::now() + shared_state.limits.deadline();
    let context = CallContext::new(deadline, shared_state.secrets.clone());
    let redactor = context.redactor.clone();
    let outcome = match shared_state.acquire_instance(deadline).await {
        Ok(_instance_permit) => match context.begin() {
            Ok(permit) => {
                let (runtime, shared_state) = (inner.guest_runtime(), Arc::clone(shared_state));
                call::spawn(permit, runtime, shared_state, context, function, work).await
            }
            Err(ended) => call::CallOutcome::not_started(ended.into()),
        },
        Err(failure) => call::CallOutcome::not_started(failure),
    };
    match outcome.result {
        Ok(response) => Ok((response, redactor)),
        Err(failure) => Err(LoadError::InitialCall {
            name: name.to_owned(),
            function,
            source: failure.into_error(&redactor),
        }),
    }
}

/// Checks the types of a component's exports, calls its `describe`, and checks the description.
pub(crate) async fn describe(
    name: &str,
    inner: &EngineInner,
    shared_state: &Arc<SharedState>,
) -> Result<Description, LoadError> {
    let (types, _) = initial_call(name, inner, shared_state, "instantiation", exports::check_types()).await?;
    types.map_err(|mismatch| LoadError::TypeMismatch {
        name: name.to_owned(),
        reason: printable(&mismatch.to_string()),
    })?;
    let (description, redactor) =
        initial_call(name, inner, shared_state, "identity.describe", exports::describe()).await?;
    checked_description(description, &redactor).map_err(|violation| LoadError::InvalidDescription {
        name: name.to_owned(),
        reason: redactor.printable(&violation.to_string()),
    })
}

/// Converts and checks a description.
pub(crate) fn checked_description(
    description: identity::Description,
    redactor: &Redactor,
) -> Result<Description, ContractViolation> {
    let description = convert::description(description);
    checks::check_no_secret_in_description(&description, redactor)?;
    checks::check_description(&description)?;
    Ok(description)
}

/// Calls a component's `describe` and `probe`, and creates its backend.
async fn describe_and_probe(
    name: &str,
    inner: Arc<EngineInner>,
    shared_state: Arc<SharedState>,
) -> Result<Arc<WasmBackend>, LoadError> {
    let description = describe(name, &inner, &shared_state).await?;
    let readiness = probe(name, &inner, &shared_state, &description).await?;
    log_loaded(&shared_state, &description, &readiness);
    Ok(Arc::new(WasmBackend::new(inner, shared_state, description)))
}

/// Calls a component's `probe`.
pub(crate) async fn probe(
    name: &str,
    inner: &EngineInner,
    shared_state: &Arc<SharedState>,
    description: &Description,
) -> Result<Readiness, LoadError> {
    let metrics = inner.metrics.driver_metrics(&description.name);
    shared_state.capabilities.session.set_metrics(metrics.session_metrics());
    shared_state.capabilities.http.set_metrics(metrics.http_metrics());
    let (readiness, redactor) =
        initial_call(name, inner, shared_state, "identity.probe", exports::probe()).await?;
    Ok(convert::readiness(readiness, &redactor))
}

/// Logs that a component serves calls.
pub(crate) fn log_loaded(shared_state: &SharedState, description: &Description, readiness: &Readiness) {
    let digest = shared_state.compiled.digest;
    let (driver, version) = (&description.name, printable(&description.version));
    match readiness {
        Readiness::Ready => tracing::info!(%driver, version, %digest, "backend loaded"),
        Readiness::NotReady(reason) => {
            tracing::warn!(%driver, %digest, reason, "backend loaded; it reports that it is not ready");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_files_are_named_by_kind() {
        for (bytes, expected) in [
            (&b""[..], Some("empty")),
            (b"\0asm", Some("cut off after 4 bytes")),
            (b"\0asm\x01\0\0\0rest", Some("a core WebAssembly module")),
            (b"\0asm\x0a\0\x01\0", Some("WebAssembly of an unknown version")),
            (b"  (component)", Some("WebAssembly text")),
            (b"#!/bin/sh", Some("not WebAssembly")),
            (b"\0asm\x0d\0\x01\0", None),
        ] {
            assert_eq!(unsupported_file_kind(bytes).as_deref(), expected, "{bytes:?}");
        }
    }

    #[test]
    fn invalid_limits_are_rejected_by_name() {
        let limits = Limits { queued_calls: 3, ..Limits::default() };
        let error = validate_limits("x.wasm", &limits).unwrap_err().to_string();
        assert!(
            error.starts_with("x.wasm: the limit `queued-calls` is 3; expected at least `concurrent-calls`"),
            "{error}"
        );
        let limits = Limits { tables: 257, ..Limits::default() };
        let error = validate_limits("x.wasm", &limits).unwrap_err().to_string();
        assert_eq!(error, "x.wasm: the limit `tables` is 257; expected at most 256");
        assert!(validate_limits("x.wasm", &Limits::default()).is_ok());
    }
}
