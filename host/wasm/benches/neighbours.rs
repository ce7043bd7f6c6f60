//! Isolation of backends: calls of one backend alone, and beside others that loop, exhaust memory and flood
//! the log at their maximum concurrency. Prints a table. Argument: number of measured calls for each row.

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::{
    VolumeHandle,
    storage::{Parameters, ValidateVolume},
};
use cofferdam_wasm::{
    BackendConfig, CompiledCache, ComponentSource, Engine, EngineOptions, Limits, WasmBackend,
};

use common::{BenchError, create, percentile};

async fn load(engine: &Engine, name: &str, bytes: &'static [u8]) -> Result<Arc<WasmBackend>, BenchError> {
    // A breaker that never opens: the neighbours shall go on for as long as they are measured.
    let limits = Limits { breaker_failures: u32::MAX, ..Limits::default() };
    let source = ComponentSource::Bytes { name: name.to_owned(), bytes };
    Ok(engine.load(source, BackendConfig { limits, ..BackendConfig::default() }).await?)
}

/// Runs calls one after the other. Returns their durations, sorted.
async fn measure(backend: &WasmBackend, row: usize, calls: usize) -> Result<Vec<Duration>, BenchError> {
    let mut times = Vec::with_capacity(calls);
    for number in 0..calls {
        let begun = Instant::now();
        create(backend, format!("{row}-{number}")).await?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

/// Keeps a backend as busy as its limits allow until `stop` is set.
fn spawn_load(backend: &Arc<WasmBackend>, misbehavior: &'static str, stop: &Arc<AtomicBool>) {
    for _ in 0..Limits::default().concurrent_calls {
        let (backend, stop) = (Arc::clone(backend), Arc::clone(stop));
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                // ValidateVolume changes nothing, so concurrent calls for one volume are admitted.
                let request = ValidateVolume {
                    handle: VolumeHandle::new("v"),
                    context: Parameters::new(),
                    capabilities: Vec::new(),
                    parameters: [("misbehavior".to_owned(), misbehavior.to_owned())].into(),
                    mutable_parameters: Parameters::new(),
                };
                // The result does not matter either.
                drop(backend.validate_volume(Call::with_deadline(Duration::from_secs(60)), request).await);
            }
        });
    }
}

#[expect(clippy::print_stdout, reason = "a table is what this program is for")]
fn print_row(name: &str, times: &[Duration], alone: Duration) {
    let (middle, tail, worst) = (percentile(times, 50), percentile(times, 99), percentile(times, 100));
    let ratio = tail.as_secs_f64() / alone.as_secs_f64();
    println!("{name:<44} {middle:>10.1?} {tail:>10.1?} {worst:>10.1?} {ratio:>14.2}");
}

#[expect(clippy::print_stdout, reason = "a table is what this program is for")]
async fn run(calls: usize) -> Result<(), BenchError> {
    println!("{:<44} {:>10} {:>10} {:>10} {:>14}", "quiet backend", "p50", "p99", "worst", "p99 / alone");
    let mut alone = Duration::ZERO;
    for (row, (name, misbehavior)) in [
        ("warming up", ""),
        ("alone", ""),
        ("beside 64 endless loops", "loop"),
        ("beside 64 memory hogs", "exhaust-memory"),
        ("beside 64 log floods", "flood"),
    ]
    .into_iter()
    .enumerate()
    {
        // A new engine for each row: calls that an earlier row left running do not disturb later rows.
        let engine = Engine::new(EngineOptions { cache: CompiledCache::Off, ..EngineOptions::default() })?;
        let quiet = load(&engine, "memory", cofferdam_carried::MEMORY).await?;
        let noisy = load(&engine, "hostile", cofferdam_test_guests::HOSTILE).await?;
        let stop = Arc::new(AtomicBool::new(false));
        if !misbehavior.is_empty() {
            spawn_load(&noisy, misbehavior, &stop);
            // Gives the neighbours time to start.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let times = measure(&quiet, row, calls).await?;
        stop.store(true, Ordering::Relaxed);
        if misbehavior.is_empty() {
            alone = percentile(&times, 99);
        }
        if row > 0 {
            print_row(name, &times, alone);
        }
    }
    Ok(())
}

fn main() -> Result<(), BenchError> {
    let calls = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(10_000);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(run(calls));
    runtime.shutdown_background();
    result
}
