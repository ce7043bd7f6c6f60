//! What a component costs whatever language it comes from: its size, the time to load it, the least memory that a call runs
//! with, and one CreateVolume in a fresh instance. Takes component files; prints a table.

mod common;

use std::{path::Path, sync::Arc, time::Instant};

use cofferdam_wasm::{BackendConfig, CompiledCache, Engine, EngineOptions, Limits, Source, WasmBackend};

use common::{Failure, create, percentile};

const CALLS: usize = 1_000;
/// What memory is given out in.
const PAGE: usize = 64 << 10;

async fn load(engine: &Engine, source: &Source, limits: Limits) -> Result<Arc<WasmBackend>, Failure> {
    Ok(engine.load(source.clone(), BackendConfig { limits, ..BackendConfig::default() }).await?)
}

async fn runs_within(engine: &Engine, source: &Source, pages: usize) -> bool {
    let limits = Limits { memory_bytes: pages * PAGE, ..Limits::default() };
    match load(engine, source, limits).await {
        Ok(backend) => create(&backend, "least".to_owned()).await.is_ok(),
        Err(_) => false,
    }
}

/// The fewest pages with which the component loads and creates a volume.
async fn least_pages(engine: &Engine, source: &Source) -> usize {
    let (mut short, mut enough) = (0, Limits::default().memory_bytes / PAGE);
    while short + 1 < enough {
        let middle = short.midpoint(enough);
        if runs_within(engine, source, middle).await {
            enough = middle;
        } else {
            short = middle;
        }
    }
    enough
}

#[expect(clippy::print_stdout, reason = "a table is what this program is for")]
async fn measure(cache: &Path, name: &str, bytes: u64, source: Source) -> Result<(), Failure> {
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
    let least = least_pages(&engine, &source).await * PAGE / 1024;
    println!(
        "{name:<20} {:>9} kB {compiled:>12.1?} {cached:>12.1?} {least:>8} KiB {middle:>10.1?} {tail:>10.1?}",
        bytes / 1000
    );
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a table is what this program is for")]
async fn measure_all(files: Vec<String>) -> Result<(), Failure> {
    let cache = std::env::temp_dir().join(format!("cofferdam-components-{}", std::process::id()));
    std::fs::create_dir_all(&cache)?;
    println!(
        "{:<20} {:>12} {:>12} {:>12} {:>12} {:>10} {:>10}",
        "component", "size", "first load", "next load", "memory", "p50", "p99"
    );
    let memory = Source::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
    measure(&cache, "backends/memory", cofferdam_carried::MEMORY.len().try_into()?, memory).await?;
    for file in files {
        let bytes = std::fs::metadata(&file)?.len();
        let name = Path::new(&file).file_name().unwrap_or_default().to_string_lossy().into_owned();
        measure(&cache, &name, bytes, Source::File(file.into())).await?;
    }
    std::fs::remove_dir_all(&cache)?;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let files = std::env::args().skip(1).filter(|argument| argument.ends_with(".wasm")).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure_all(files))
}
