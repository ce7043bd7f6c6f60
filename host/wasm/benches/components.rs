//! Cost of a component in any language: its size, the time to load it without and with cached code, the least
//! memory with which it loads and creates a volume, and one CreateVolume in a fresh instance. Measures the
//! memory backend and the component files of the arguments; prints a table.

mod common;

use std::{path::Path, sync::Arc, time::Instant};

use cofferdam_wasm::{
    BackendConfig, CompiledCache, ComponentSource, Engine, EngineOptions, Limits, WasmBackend,
};

use common::{BenchError, create, percentile};

const CALLS: usize = 1_000;
/// Page size of WebAssembly memories.
const PAGE_BYTES: usize = 64 << 10;

async fn load(
    engine: &Engine,
    source: &ComponentSource,
    limits: Limits,
) -> Result<Arc<WasmBackend>, BenchError> {
    Ok(engine.load(source.clone(), BackendConfig { limits, ..BackendConfig::default() }).await?)
}

async fn can_run_with_pages(engine: &Engine, source: &ComponentSource, pages: usize) -> bool {
    let limits = Limits { memory_bytes: pages * PAGE_BYTES, ..Limits::default() };
    match load(engine, source, limits).await {
        Ok(backend) => create(&backend, "least".to_owned()).await.is_ok(),
        Err(_) => false,
    }
}

/// The fewest pages with which the component loads and creates a volume.
async fn min_pages(engine: &Engine, source: &ComponentSource) -> usize {
    let (mut too_few, mut sufficient) = (0, Limits::default().memory_bytes / PAGE_BYTES);
    while too_few + 1 < sufficient {
        let middle = too_few.midpoint(sufficient);
        if can_run_with_pages(engine, source, middle).await {
            sufficient = middle;
        } else {
            too_few = middle;
        }
    }
    sufficient
}

#[expect(clippy::print_stdout, reason = "a table is what this program is for")]
async fn measure(cache: &Path, name: &str, bytes: u64, source: ComponentSource) -> Result<(), BenchError> {
    let options =
        || EngineOptions { cache: CompiledCache::Directory(cache.to_path_buf()), ..EngineOptions::default() };
    let begun = Instant::now();
    let engine = Engine::new(options())?;
    let backend = load(&engine, &source, Limits::default()).await?;
    let compiled = begun.elapsed();
    let begun = Instant::now();
    let again = load(&Engine::new(options())?, &source, Limits::default()).await?;
    let cached = begun.elapsed();
    drop(again);
    let mut times = Vec::with_capacity(CALLS);
    for number in 0..CALLS {
        let begun = Instant::now();
        create(&backend, format!("pvc-{number}")).await?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let (middle, tail) = (percentile(&times, 50), percentile(&times, 99));
    let least = min_pages(&engine, &source).await * PAGE_BYTES / 1024;
    println!(
        "{name:<20} {:>9} kB {compiled:>12.1?} {cached:>12.1?} {least:>8} KiB {middle:>10.1?} {tail:>10.1?}",
        bytes / 1000
    );
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a table is what this program is for")]
async fn measure_all(files: Vec<String>) -> Result<(), BenchError> {
    let cache = std::env::temp_dir().join(format!("cofferdam-components-{}", std::process::id()));
    std::fs::create_dir_all(&cache)?;
    println!(
        "{:<20} {:>12} {:>12} {:>12} {:>12} {:>10} {:>10}",
        "component", "size", "first load", "next load", "memory", "p50", "p99"
    );
    let memory = ComponentSource::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
    measure(&cache, "backends/memory", cofferdam_carried::MEMORY.len().try_into()?, memory).await?;
    for file in files {
        let bytes = std::fs::metadata(&file)?.len();
        let name = Path::new(&file).file_name().unwrap_or_default().to_string_lossy().into_owned();
        measure(&cache, &name, bytes, ComponentSource::File(file.into())).await?;
    }
    std::fs::remove_dir_all(&cache)?;
    Ok(())
}

fn main() -> Result<(), BenchError> {
    let files = std::env::args().skip(1).filter(|argument| argument.ends_with(".wasm")).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure_all(files))
}
