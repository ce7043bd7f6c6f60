//! `make bench-peers`: the same loads on the upstream controllers, on Cofferdam, and on the API server only.
//! On the API server only, no controller runs: clients make all writes, and the measured throughput is the
//! upper bound for controllers. The pod load and idle memory are measured on the first two only.
//!
//! The loads `full`, `far` and `chains` compare the stacks in a cluster with many volumes, and at a distance from
//! the API server.
//!
//! Each configuration has a fresh control plane. The measurements of idle memory of both implementations use
//! one control plane. Everything runs on one machine, so only the ratios within a run are meaningful.

mod attachments;
mod chain_report;
mod chains;
mod chart;
mod claims;
mod configurations;
mod existing_snapshots;
mod existing_volumes;
mod far;
mod format;
mod full;
mod iterations;
mod load;
mod measure;
mod memory;
mod pods;
mod recorder;
mod report;
mod results;
mod scale_report;
mod scheduling;
mod snapshots;
mod stacks;
mod subjects;
mod targets;
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
    existing_volumes::ExistingVolumes,
    report::BenchmarkFiles,
    results::{
        BenchmarkEnvironment, BenchmarkReport, BenchmarkResults, ChainReport, ScaleReport, ScaleResults,
    },
    subjects::BenchmarkTask,
};
use crate::{implementation::Implementation, run::SuiteRun};

/// Default of the environment variable `CLAIMS`: the number of claims of the claim load. The numbers of
/// objects of the other loads are derived from it.
const DEFAULT_CLAIMS: usize = 2000;
/// Number of VolumeSnapshots of [`existing_snapshots`].
const EXISTING_SNAPSHOTS: usize = 15_000;
/// Default of the environment variable `VOLUMES`: the number of volumes of the largest cluster of the load
/// `full`.
const DEFAULT_VOLUMES: usize = 20_000;
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
    Full,
    Far,
    Chains,
}

/// A part of the results, which may be measured without the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportPart {
    /// Loads on a cluster without other objects, and idle memory.
    EmptyCluster,
    /// The loads `full` and `far`.
    Scale,
    /// The load `chains`.
    Chains,
}

const REPORT_PARTS: [ReportPart; 3] = [ReportPart::EmptyCluster, ReportPart::Scale, ReportPart::Chains];

impl LoadGroup {
    const fn part(self) -> ReportPart {
        match self {
            Self::Full | Self::Far => ReportPart::Scale,
            Self::Chains => ReportPart::Chains,
            Self::Claims
            | Self::Attachments
            | Self::Expansion
            | Self::Snapshots
            | Self::ExistingSnapshots
            | Self::Scheduling
            | Self::Pods
            | Self::Memory => ReportPart::EmptyCluster,
        }
    }
}

/// Groups by their names in the environment variable `LOADS`.
const LOAD_GROUPS: [(&str, LoadGroup); 11] = [
    ("claims", LoadGroup::Claims),
    ("attachments", LoadGroup::Attachments),
    ("expansion", LoadGroup::Expansion),
    ("snapshots", LoadGroup::Snapshots),
    ("existing-snapshots", LoadGroup::ExistingSnapshots),
    ("scheduling", LoadGroup::Scheduling),
    ("pods", LoadGroup::Pods),
    ("memory", LoadGroup::Memory),
    ("full", LoadGroup::Full),
    ("far", LoadGroup::Far),
    ("chains", LoadGroup::Chains),
];

/// The groups to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Selection(Vec<LoadGroup>);

impl Selection {
    fn contains(&self, group: LoadGroup) -> bool {
        self.0.contains(&group)
    }

    /// True if the results replace those of earlier runs: the selection has all groups of each part of which
    /// it has one.
    fn is_publishable(&self) -> bool {
        LOAD_GROUPS.iter().all(|(_, group)| !self.has_part(group.part()) || self.contains(*group))
    }

    /// True if the selection has groups of this part.
    fn has_part(&self, part: ReportPart) -> bool {
        self.0.iter().any(|group| group.part() == part)
    }
}

/// The groups in the value of the environment variable `LOADS`, a comma-separated list. An empty value
/// selects all groups.
fn selected_groups(text: &str) -> Result<Selection> {
    if text.is_empty() {
        return Ok(Selection(LOAD_GROUPS.map(|(_, group)| group).to_vec()));
    }
    let group = |name: &str| {
        let found = LOAD_GROUPS.iter().find(|(known, _)| *known == name).map(|(_, group)| *group);
        found.with_context(|| {
            format!("LOADS={text}: {name:?} is none of {}", LOAD_GROUPS.map(|(name, _)| name).join(", "))
        })
    };
    text.split(',').map(group).collect::<Result<_>>().map(Selection)
}

/// Measures everything, or the groups in the environment variable `LOADS`, and prints the report at the end.
/// Writes the results to the directory in the environment variable `OUTPUT`; to the run's directory if
/// `OUTPUT` is not set, or `LOADS` selects some groups of a part of the results only: `full,far` are one
/// part, `chains` is another one, and all other groups are the third.
///
/// # Errors
/// If something does not run, or a load does not finish.
pub(crate) async fn run(run: &SuiteRun) -> Result<()> {
    ensure!(!cfg!(debug_assertions), "this build is not optimised: expected `make bench-peers`");
    let claims = env_number("CLAIMS", DEFAULT_CLAIMS)?;
    let selection = selected_groups(&env::var("LOADS").unwrap_or_default())?;
    let output = env::var_os("OUTPUT").filter(|_| selection.is_publishable());
    let files =
        BenchmarkFiles::in_directory(&output.map_or_else(|| run.directory().to_owned(), PathBuf::from));
    let iteration_count = env_number("ITERATIONS", DEFAULT_ITERATIONS)?;
    let [has_empty_cluster, has_scale, has_chains] = REPORT_PARTS.map(|part| selection.has_part(part));
    // A part that is not measured keeps its results.
    let mut report = match has_empty_cluster && has_scale && has_chains {
        true => BenchmarkReport::default(),
        false => files.read()?.unwrap_or_default(),
    };
    // Idle memory does not vary as speed does: one measurement is enough.
    let memory = match selection.contains(LoadGroup::Memory) {
        true => Some(memory::measure(run, claims * 5).await?),
        false => None,
    };
    let existing_snapshots = match selection.contains(LoadGroup::ExistingSnapshots) {
        true => Some(existing_snapshots::measure(run, EXISTING_SNAPSHOTS).await?),
        false => None,
    };
    let clusters = match selection.contains(LoadGroup::Full) {
        true => {
            existing_volumes::create(run, &cluster_sizes(env_number("VOLUMES", DEFAULT_VOLUMES)?)).await?
        }
        false => Vec::new(),
    };
    let environment = environment(claims);
    if has_empty_cluster {
        report.environment = environment.clone();
    }
    let unfinished = BenchmarkFiles::in_directory(run.directory());
    let (mut iterations, mut scale_iterations, mut chain_iterations) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..=iteration_count {
        // Progress: an iteration takes minutes.
        let _ = writeln!(io::stderr(), "iteration {number} of {iteration_count}");
        if has_empty_cluster {
            iterations.push(run_iteration(run, claims, &selection).await?);
            report.iterations.clone_from(&iterations);
            report.medians = BenchmarkResults {
                memory: memory.clone(),
                existing_snapshots: existing_snapshots.clone(),
                ..iterations::medians(&iterations)
            };
        }
        if has_scale {
            scale_iterations.push(run_scale_iteration(run, &clusters, &selection).await?);
            report.scale = Some(ScaleReport {
                environment: environment.clone(),
                medians: iterations::scale_medians(&scale_iterations),
                iterations: scale_iterations.clone(),
            });
        }
        if has_chains {
            chain_iterations.push(chains::measure(run).await?);
            let slices: Vec<_> = chain_iterations.iter().map(Vec::as_slice).collect();
            report.chains = Some(ChainReport {
                environment: environment.clone(),
                medians: iterations::median_configurations(&slices),
                iterations: chain_iterations.clone(),
            });
        }
        // In case the run is interrupted.
        unfinished.write(&report)?;
    }
    files.write(&report)?;
    files.print_markdown()
}

/// Numbers of existing volumes of the load `full`.
fn cluster_sizes(most: usize) -> [usize; 3] {
    [0, most / 4, most]
}

/// Writes benchmarks.md and its charts from benchmarks.json, all in this directory, and the part of the
/// README of its parent that has the figures.
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
async fn run_iteration(run: &SuiteRun, claims: usize, selection: &Selection) -> Result<BenchmarkResults> {
    let is_selected = |group| selection.contains(group);
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

/// Measures the selected loads `full` and `far` once.
async fn run_scale_iteration(
    run: &SuiteRun,
    clusters: &[ExistingVolumes],
    selection: &Selection,
) -> Result<ScaleResults> {
    let mut results = ScaleResults::default();
    if selection.contains(LoadGroup::Full) {
        results.full = full::measure(run, clusters).await?;
    }
    if selection.contains(LoadGroup::Far) {
        results.far = far::measure(run).await?;
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_results_replace_others() {
        let others = "claims,attachments,expansion,snapshots,existing-snapshots,scheduling,pods,memory";
        for (loads, is_publishable) in [
            ("", true),
            ("full,far", true),
            ("chains", true),
            ("full,far,chains", true),
            (others, true),
            (&format!("{others},far"), false),
            ("full", false),
            ("claims,full,far", false),
            ("claims", false),
        ] {
            assert_eq!(selected_groups(loads).unwrap().is_publishable(), is_publishable, "{loads}");
        }
        let error = selected_groups("fall").unwrap_err().to_string();
        assert!(error.starts_with("LOADS=fall: \"fall\" is none of claims, "), "{error}");
    }
}
