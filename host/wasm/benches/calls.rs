//! Cost of a backend: calls per second with many callers, loading from the cache of compiled code, and memory
//! of one more idle backend. Prints a table.

mod common;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cofferdam_wasm::{BackendConfig, CompiledCache, ComponentSource, Engine, EngineOptions, WasmBackend};

use common::{BenchError, create};

const CALLERS: usize = 64;
const IDLE_BACKENDS: u32 = 100;
const LOADS: u32 = 20;

async fn load(engine: &Engine, config: BackendConfig) -> Result<Arc<WasmBackend>, BenchError> {
    let source = ComponentSource::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
    Ok(engine.load(source, config).await?)
}

/// Calls per second with [`CALLERS`] callers at once, each of which makes `calls` calls.
async fn throughput(backend: &Arc<WasmBackend>, calls: usize) -> Result<f64, BenchError> {
    let begun = Instant::now();
    let callers = (0..CALLERS).map(|caller| {
        let backend = Arc::clone(backend);
        tokio::spawn(async move {
            for number in 0..calls {
                create(&backend, format!("{caller}-{number}")).await?;
            }
            Ok::<_, BenchError>(())
        })
    });
    for caller in futures::future::join_all(callers).await {
        caller??;
    }
    Ok(f64::from(u32::try_from(CALLERS * calls)?) / begun.elapsed().as_secs_f64())
}

/// Mean time of loading a component whose compiled code is on the disk, with an engine that has not seen it.
async fn load_time(cache: &CompiledCache) -> Result<Duration, BenchError> {
    let options = || EngineOptions { cache: cache.clone(), ..EngineOptions::default() };
    load(&Engine::new(options())?, BackendConfig::default()).await?;
    let mut sum = Duration::ZERO;
    for _ in 0..LOADS {
        let engine = Engine::new(options())?;
        let begun = Instant::now();
        load(&engine, BackendConfig::default()).await?;
        sum += begun.elapsed();
    }
    Ok(sum / LOADS)
}

/// Resident memory of this process, in KiB.
fn resident_kib() -> Result<i64, BenchError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Memory of one more idle backend in KiB: of the same component, and of another component.
async fn idle_backend_kib(cache: &CompiledCache) -> Result<(i64, i64), BenchError> {
    let engine = Engine::new(EngineOptions { cache: cache.clone(), ..EngineOptions::default() })?;
    let first = load(&engine, BackendConfig::default()).await?;
    let before = resident_kib()?;
    let mut others = Vec::new();
    for number in 0..IDLE_BACKENDS {
        let settings = [("driver-name".to_owned(), format!("memory-{number}.example"))].into();
        others.push(load(&engine, BackendConfig { settings, ..BackendConfig::default() }).await?);
    }
    let same = (resident_kib()? - before) / i64::from(IDLE_BACKENDS);
    let before = resident_kib()?;
    // A custom section makes other bytes of the same component.
    for number in 0..IDLE_BACKENDS {
        let name = format!("{number:03}");
        let mut bytes = cofferdam_carried::MEMORY.to_vec();
        bytes.extend([0, 4, 3]);
        bytes.extend(name.bytes());
        let source = ComponentSource::Bytes { name, bytes: bytes.leak() };
        others.push(engine.load(source, BackendConfig::default()).await?);
    }
    let leaked = i64::try_from(cofferdam_carried::MEMORY.len() / 1024)?;
    let other = (resident_kib()? - before) / i64::from(IDLE_BACKENDS) - leaked;
    drop((first, others));
    Ok((same, other))
}

#[expect(clippy::print_stdout, reason = "a table is what this program is for")]
async fn run(calls: usize) -> Result<(), BenchError> {
    let directory = std::env::temp_dir().join(format!("cofferdam-bench-{}", std::process::id()));
    let cache = CompiledCache::Directory(directory.clone());
    let engine = Engine::new(EngineOptions { cache: cache.clone(), ..EngineOptions::default() })?;
    let backend = load(&engine, BackendConfig::default()).await?;
    throughput(&backend, calls / 10).await?;
    println!(
        "{:<52} {:>12}",
        "CreateVolume, 64 callers, calls per second",
        throughput(&backend, calls).await?.round()
    );
    println!("{:<52} {:>12.1?}", "loading a component, compiled before", load_time(&cache).await?);
    let (same, other) = idle_backend_kib(&cache).await?;
    println!("{:<52} {same:>8} KiB", "one more idle backend of the same component");
    println!("{:<52} {other:>8} KiB", "one more idle backend of another component");
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

fn main() -> Result<(), BenchError> {
    let calls = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(2_000);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(calls))
}
