//! Start time and memory of `cofferdam dev`, measured on several processes of the built program.
//!
//! The first start compiles the driver into an empty cache; the others use it.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::panic,
    reason = "a measurement that cannot be made ends here, and its result is for a terminal"
)]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Number of starts with a warm cache.
const STARTS: usize = 5;
/// Target of the start time with a warm cache, printed beside the measurement.
const START_TARGET_MS: u128 = 300;
/// Target of the memory of an idle process, printed beside the measurement.
const RESIDENT_TARGET_KIB: u64 = 40 * 1024;
/// Time until the allocator and the caches are idle.
const SETTLE_TIME: Duration = Duration::from_secs(2);

struct StartedProcess {
    child: Child,
    duration: Duration,
}

fn start(cache: &str) -> StartedProcess {
    let started = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_cofferdam"))
        .args(["dev", "--compilation-cache", cache])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("cofferdam dev starts");
    let lines = BufReader::new(child.stdout.as_mut().expect("a pipe")).lines();
    let ready = lines.map_while(Result::ok).any(|line| line.contains("ready in"));
    assert!(ready, "cofferdam dev says when it is ready");
    StartedProcess { child, duration: started.elapsed() }
}

/// `VmRSS`, the resident memory of the process, in KiB.
fn resident_kib(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("a Linux kernel");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

fn stop(mut started: StartedProcess) {
    let sent = Command::new("kill").args(["-TERM", &started.child.id().to_string()]).status().expect("kill");
    assert!(sent.success(), "the process is there");
    let ended = started.child.wait().expect("its end");
    assert!(ended.success(), "cofferdam dev ends in order: {ended}");
}

fn main() {
    let cache = std::env::temp_dir().join(format!("cofferdam-bench-{}", std::process::id()));
    let directory = cache.display().to_string();
    let cold = start(&directory);
    println!("{:<34} {:>10}   aim", "cofferdam dev", "measured");
    println!("{:<34} {:>7} ms", "start to ready, cold cache", cold.duration.as_millis());
    stop(cold);
    let mut starts: Vec<u128> = Vec::new();
    for _ in 0..STARTS {
        let warm = start(&directory);
        starts.push(warm.duration.as_millis());
        stop(warm);
    }
    starts.sort_unstable();
    println!("{:<34} {:>7} ms   {START_TARGET_MS} ms", "start to ready, median", starts[STARTS / 2]);
    let idle = start(&directory);
    std::thread::sleep(SETTLE_TIME);
    let resident = resident_kib(&idle.child);
    println!(
        "{:<34} {:>6.1} MiB   {} MiB",
        "resident when idle",
        resident as f64 / 1024.0,
        RESIDENT_TARGET_KIB / 1024
    );
    stop(idle);
    fs::remove_dir_all(&cache).expect("the cache of this bench");
}
