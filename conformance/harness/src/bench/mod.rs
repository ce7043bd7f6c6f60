//! `make bench-peers`: the same loads on the upstream controllers, on Cofferdam, and on the API server only.
//! On the API server only, no controller runs: clients make all writes, and the measured throughput is the
//! upper bound for controllers. The pod load and idle memory are measured on the first two only.
//!
//! Each configuration has a fresh control plane. The measurements of idle memory of both implementations use
//! one control plane. Everything runs on one machine, so only the ratios within a run are meaningful.

mod attachments;
mod claims;
mod configurations;
mod existing_snapshots;
mod iterations;
mod load;
mod measure;
mod memory;
mod pods;
mod recorder;
mod report;
mod results;
mod scheduling;
mod snapshots;
mod subjects;
mod upper_bound;

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context as _, Result, ensure};

use self::{
    configurations::CONFIGURATIONS,
    report::BenchmarkFiles,
    results::{BenchmarkEnvironment, BenchmarkReport, BenchmarkResults},
    subjects::BenchmarkTask,
};
use crate::{implementation::Implementation, run::SuiteRun};

/// Default of the environment variable `CLAIMS`: the number of claims of the claim load. The numbers of
/// objects of the other loads are derived from it.
const DEFAULT_CLAIMS: usize = 2000;
/// Number of VolumeSnapshots of [`existing_snapshots`].
const EXISTING_SNAPSHOTS: usize = 15_000;
/// Default of the environment variable `ITERATIONS`: how often each load is measured. The report has the
/// medians of the iterations.
const DEFAULT_ITERATIONS: usize = 3;

/// Value of an environment variable, at least 1, or the default if the variable is empty or not set. `make`
/// passes an empty variable if its user has set none.
fn env_number(variable: &str, default: usize) -> Result<usize> {
    let number = match env::var(variable) {
        Ok(text) if !text.is_empty() => {
            text.parse().with_context(|| format!("{variable}={text}: expected a number"))?
        }
        _ => default,
    };
    ensure!(number > 0, "{variable}=0: expected at least one");
    Ok(number)
}

/// A group of measurements, which the environment variable `LOADS` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadGroup {
    Claims,
    Attachments,
    Expansion,
    Snapshots,
    ExistingSnapshots,
    Scheduling,
    Pods,
    Memory,
}

/// Groups by their names in the environment variable `LOADS`.
const LOAD_GROUPS: [(&str, LoadGroup); 8] = [
    ("claims", LoadGroup::Claims),
    ("attachments", LoadGroup::Attachments),
    ("expansion", LoadGroup::Expansion),
    ("snapshots", LoadGroup::Snapshots),
    ("existing-snapshots", LoadGroup::ExistingSnapshots),
    ("scheduling", LoadGroup::Scheduling),
    ("pods", LoadGroup::Pods),
    ("memory", LoadGroup::Memory),
];

/// The groups in the environment variable `LOADS`, a comma-separated list. `None` if the variable is empty or
/// not set, which selects all groups.
fn selected_groups() -> Result<Option<Vec<LoadGroup>>> {
    let text = env::var("LOADS").unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    let group = |name: &str| {
        let found = LOAD_GROUPS.iter().find(|(known, _)| *known == name).map(|(_, group)| *group);
        found.with_context(|| {
            format!("LOADS={text}: {name:?} is none of {}", LOAD_GROUPS.map(|(name, _)| name).join(", "))
        })
    };
    text.split(',').map(group).collect::<Result<_>>().map(Some)
}

/// Measures everything, or the groups in the environment variable `LOADS`, and prints the report at the end.
/// Writes the results to the directory in the environment variable `OUTPUT`; to the run's directory if
/// `OUTPUT` is not set, or `LOADS` selects groups.
///
/// # Errors
/// If something does not run, or a load does not finish.
pub(crate) async fn run(run: &SuiteRun) -> Result<()> {
    ensure!(!cfg!(debug_assertions), "this build is not optimised: expected `make bench-peers`");
    let claims = env_number("CLAIMS", DEFAULT_CLAIMS)?;
    let selected = selected_groups()?;
    let output = env::var_os("OUTPUT").filter(|_| selected.is_none());
    let output = output.map_or_else(|| run.directory().to_owned(), PathBuf::from);
    let is_selected = |part: LoadGroup| selected.as_ref().is_none_or(|selected| selected.contains(&part));
    let iteration_count = env_number("ITERATIONS", DEFAULT_ITERATIONS)?;
    // Idle memory does not vary as speed does: one measurement is enough.
    let memory = match is_selected(LoadGroup::Memory) {
        true => Some(memory::measure(run, claims * 5).await?),
        false => None,
    };
    let existing_snapshots = match is_selected(LoadGroup::ExistingSnapshots) {
        true => Some(existing_snapshots::measure(run, EXISTING_SNAPSHOTS).await?),
        false => None,
    };
    let environment = environment(claims);
    let (files, mut iterations) = (BenchmarkFiles::in_directory(&output), Vec::new());
    for number in 1..=iteration_count {
        // Progress: an iteration takes minutes.
        let _ = writeln!(io::stderr(), "iteration {number} of {iteration_count}");
        iterations.push(run_iteration(run, claims, is_selected).await?);
        let medians = BenchmarkResults {
            memory: memory.clone(),
            existing_snapshots: existing_snapshots.clone(),
            ..iterations::medians(&iterations)
        };
        let (environment, iterations) = (environment.clone(), iterations.clone());
        // Written after every iteration, in case the run is interrupted.
        files.write(&BenchmarkReport { environment, medians, iterations })?;
    }
    files.print_markdown()
}

/// Writes benchmarks.md from benchmarks.json, both in this directory.
///
/// # Errors
/// If a file cannot be read or written.
pub(crate) fn write_markdown(directory: &Path) -> Result<()> {
    BenchmarkFiles::in_directory(directory).write_markdown()
}

/// Date, machine and number of claims of this run, for the report.
fn environment(claims: usize) -> BenchmarkEnvironment {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("an unknown processor", |(_, name)| name);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    BenchmarkEnvironment {
        date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
        cores: thread::available_parallelism().map_or(0, usize::from),
        processor: processor.to_owned(),
        kernel: kernel.trim().to_owned(),
        claims,
    }
}

/// Runs every selected load on every configuration once. Does not measure idle memory.
async fn run_iteration(
    run: &SuiteRun,
    claims: usize,
    is_selected: impl Fn(LoadGroup) -> bool,
) -> Result<BenchmarkResults> {
    let mut results = BenchmarkResults::default();
    if is_selected(LoadGroup::Claims) {
        for stack in CONFIGURATIONS {
            results.claims.push(claims::measure(run, stack, claims).await?);
        }
        results.claims.push(claims::measure_upper_bound(run, claims).await?);
    }
    if is_selected(LoadGroup::Attachments) {
        results.attachments = subjects::measure(run, BenchmarkTask::Attach, claims / 2).await?;
    }
    if is_selected(LoadGroup::Expansion) {
        results.expansion = subjects::measure(run, BenchmarkTask::Expand, claims / 2).await?;
    }
    if is_selected(LoadGroup::Snapshots) {
        results.snapshots = snapshots::measure(run, claims / 2).await?;
    }
    if is_selected(LoadGroup::Scheduling) {
        for implementation in [Implementation::Upstream, Implementation::Cofferdam] {
            results.scheduling.push(scheduling::measure(run, implementation, claims / 4).await?);
        }
        results.scheduling.push(scheduling::measure_upper_bound(run, claims / 4).await?);
    }
    if is_selected(LoadGroup::Pods) {
        for implementation in [Implementation::Upstream, Implementation::Cofferdam] {
            let (configuration, node) = pods::measure(run, implementation, pods::pod_count(claims)).await?;
            results.pods.push(configuration);
            results.node = results.node.or(node);
        }
    }
    Ok(results)
}
