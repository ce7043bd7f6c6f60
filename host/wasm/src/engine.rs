//! The one WebAssembly engine of a process.

use std::{
    collections::HashMap,
    fs::DirBuilder,
    num::NonZeroUsize,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, Weak},
    thread,
    time::Duration,
};

use tokio::runtime::{Builder, Handle, Runtime};
use wasmtime::{
    Cache, CacheConfig, Config, InstanceAllocationStrategy, WasmBacktraceDetails, component::Linker,
};

use crate::{
    component::CompiledComponent,
    cpu_scheduler::CpuScheduler,
    digest::Digest,
    error::LoadError,
    instance::{self, StoreData},
    instance_pool::{self, InstancePool},
    limits::EPOCH_TICK,
    metrics::WasmMetrics,
};

/// Maximum frames of a guest's backtrace in a log line.
const BACKTRACE_FRAMES: usize = 16;
/// Niceness of the threads for CPU-bound calls. A normal thread that wakes up preempts them. With a smaller
/// difference the kernel would let it wait for the rest of a time slice, which is as long as many short
/// calls. With niceness 19 the CPU-bound threads would get about 1 % of a busy processor, and calls would
/// miss their deadlines.
const CPU_BOUND_NICENESS: i32 = 10;
/// Soft limit of compiled code on the disk, in bytes: some twenty components of the largest languages.
const MAX_CACHE_BYTES: u64 = 1 << 30;

/// Cache of compiled code, so that a restart does not compile again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CompiledCache {
    /// In the user's cache directory. The cache is disabled, with a warning, if there is none, if it cannot
    /// be created, if neither root nor this process' user owns it, or if other users can write to it.
    #[default]
    User,
    /// In this directory. The cached code is run, so the cache is disabled, with a warning, if neither root
    /// nor this process' user owns the directory, if other users can write to it, or if it cannot be created.
    Directory(PathBuf),
    /// Disabled.
    Off,
}

/// Options of an engine.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Cache of compiled code.
    pub cache: CompiledCache,
    /// Metrics of the engine's backends.
    pub metrics: WasmMetrics,
}

/// Compiles and runs components. A process has one; clones are the same engine.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) inner: Arc<EngineInner>,
}

pub(crate) struct EngineInner {
    pub(crate) wasm: wasmtime::Engine,
    pub(crate) metrics: WasmMetrics,
    /// One component is compiled at a time: a compilation uses a whole CPU and, for some languages, hundreds
    /// of megabytes.
    pub(crate) compile_lock: tokio::sync::Mutex<()>,
    /// Compiled and linked components: a component that several backends use is in memory once.
    pub(crate) component_cache: Mutex<HashMap<Digest, Weak<CompiledComponent>>>,
    /// Imports of components, the same for all of them.
    pub(crate) linker: Linker<StoreData>,
    /// Free instance slots, which the backends share.
    pub(crate) instance_pool: Arc<InstancePool>,
    guest_threads: WorkerThreads,
    /// Threads with a lower priority, for CPU-bound calls.
    cpu_bound_threads: WorkerThreads,
}

impl std::fmt::Debug for EngineInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts an engine: its clock and the threads that run guests.
    ///
    /// # Errors
    ///
    /// The processor or the system does not support compiled code, or threads cannot be started.
    pub fn new(options: EngineOptions) -> Result<Self, LoadError> {
        let wasm = new_engine(open_cache(&options.cache)).map_err(LoadError::Engine)?;
        let linker = instance::new_linker(&wasm).map_err(LoadError::Engine)?;
        start_epoch_ticker(&wasm)?;
        let processors = thread::available_parallelism().map_or(2, NonZeroUsize::get);
        // Guests run on separate threads from watches, leases and health checks, so that no guest can starve
        // those.
        let guests = WorkerThreads::start("guest", processors, || ())?;
        let long = WorkerThreads::start("guest-cpu", processors.div_ceil(2), lower_thread_priority)?;
        Ok(Self {
            inner: Arc::new(EngineInner {
                wasm,
                metrics: options.metrics,
                compile_lock: tokio::sync::Mutex::new(()),
                component_cache: Mutex::default(),
                linker,
                instance_pool: Arc::default(),
                guest_threads: guests,
                cpu_bound_threads: long,
            }),
        })
    }
}

impl EngineInner {
    /// The threads that run guests.
    pub(crate) fn guest_runtime(&self) -> &Handle {
        &self.guest_threads.handle
    }

    /// Creates the CPU scheduling of one backend.
    pub(crate) fn new_cpu_scheduler(&self) -> CpuScheduler {
        CpuScheduler::new(self.cpu_bound_threads.handle.clone())
    }
}

/// Threads that run tasks; they end when this is dropped.
struct WorkerThreads {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl WorkerThreads {
    fn start(name: &str, count: usize, on_start: fn()) -> Result<Self, LoadError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(count)
            .thread_name(name)
            .on_thread_start(on_start)
            .enable_time()
            .enable_io()
            .build()
            .map_err(LoadError::Threads)?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }
}

impl Drop for WorkerThreads {
    fn drop(&mut self) {
        // The last owner may be a task, and a task must not wait for threads.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Lowers the priority of the calling thread. Only Linux has a niceness per thread.
fn lower_thread_priority() {
    if cfg!(target_os = "linux")
        && let Err(error) = rustix::process::setpriority_process(None, CPU_BOUND_NICENESS)
    {
        tracing::debug!(%error, "the threads for long calls have the priority of all others");
    }
}

/// Creates the engine with pooled instance slots. If their address space cannot be reserved, such as under
/// `ulimit -v`, each instance is allocated on demand, which is slower and equally safe.
fn new_engine(cache: Option<Cache>) -> wasmtime::Result<wasmtime::Engine> {
    let mut config = engine_config();
    config.cache(cache);
    let mut pooling = config.clone();
    instance_pool::configure_pooling(&mut pooling);
    wasmtime::Engine::new(&pooling).or_else(|error| {
        tracing::warn!(
            error = format!("{error:#}"),
            "no slots can be reserved for guests: every call maps its own memory"
        );
        config.allocation_strategy(InstanceAllocationStrategy::OnDemand);
        wasmtime::Engine::new(&config)
    })
}

/// Enables the component model and the interruption of guests. Of the WebAssembly proposals, wasmtime's
/// defaults are enabled, except those that need a cargo feature that this crate does not enable: garbage
/// collection, exceptions, threads and component-model async.
fn engine_config() -> Config {
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        .concurrency_support(false)
        .epoch_interruption(true)
        .memory_init_cow(true)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .wasm_backtrace_max_frames(NonZeroUsize::new(BACKTRACE_FRAMES));
    config
}

/// Starts the clock that interrupts guests. It has a thread of its own, because a task could starve behind
/// the guests that it has to interrupt. It ends with the engine.
fn start_epoch_ticker(engine: &wasmtime::Engine) -> Result<(), LoadError> {
    let engine = engine.weak();
    let tick = move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            thread::sleep(EPOCH_TICK);
        }
    };
    thread::Builder::new().name("guest-epoch".to_owned()).spawn(tick).map(drop).map_err(LoadError::Threads)
}

fn open_cache(cache: &CompiledCache) -> Option<Cache> {
    let directory = match cache {
        CompiledCache::Off => return None,
        CompiledCache::User => None,
        CompiledCache::Directory(directory) => Some(directory.as_path()),
    };
    match new_cache(directory) {
        Ok(cache) => Some(cache),
        Err(error) => {
            let directory = directory.unwrap_or(Path::new("the user's cache directory"));
            tracing::warn!(
                directory = %directory.display(),
                error = format!("{error:#}"),
                "compiled components are not cached: every start compiles them anew"
            );
            None
        }
    }
}

fn new_cache(directory: Option<&Path>) -> wasmtime::Result<Cache> {
    let mut config = CacheConfig::new();
    config.with_files_total_size_soft_limit(MAX_CACHE_BYTES).with_cleanup_interval(Duration::from_secs(3600));
    if let Some(directory) = directory {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        // wasmtime requires an absolute path.
        config.with_directory(std::path::absolute(directory)?);
    }
    let cache = Cache::new(config)?;
    check_cache_permissions(cache.directory())?;
    Ok(cache)
}

/// Rejects a cache directory that neither root nor this process' user owns, or that others can write to:
/// whoever writes compiled code into the cache can run it in this process, outside of every sandbox.
fn check_cache_permissions(directory: &Path) -> wasmtime::Result<()> {
    let found = std::fs::metadata(directory)?;
    let (owner, uid) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != uid && owner != 0 {
        wasmtime::bail!("{} belongs to user {owner}, and this process is user {uid}", directory.display());
    }
    if found.mode() & 0o022 != 0 {
        let mode = found.mode() & 0o7777;
        wasmtime::bail!(
            "others can write to {}: its mode is {mode:04o}, expected 0755 or less (chmod go-w)",
            directory.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn cache_writable_by_others_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let cache = CompiledCache::Directory(directory.path().join("cache"));
        assert!(open_cache(&cache).is_some());
        for (mode, used) in [(0o755, true), (0o775, false), (0o757, false), (0o1777, false), (0o700, true)] {
            fs::set_permissions(directory.path().join("cache"), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(open_cache(&cache).is_some(), used, "{mode:o}");
        }
        assert!(open_cache(&CompiledCache::Off).is_none());
    }

    #[test]
    fn unused_wasm_proposals_are_disabled() {
        let engine = wasmtime::Engine::new(&engine_config()).unwrap();
        assert!(engine.get_epoch_interruption());
        assert!(!engine.get_concurrency_support(), "component-model async came back through a dependency");
        assert!(engine.get_memory_init_cow());
        assert_eq!(engine.get_wasm_backtrace_max_frames(), BACKTRACE_FRAMES);
        for (proposal, text) in [
            ("garbage collection", "(module (type (struct)))"),
            ("exceptions", "(module (tag))"),
            ("threads", "(module (memory 1 1 shared))"),
        ] {
            let bytes = wat::parse_str(text).unwrap();
            assert!(wasmtime::Module::validate(&engine, &bytes).is_err(), "{proposal} is on");
        }
    }
}
