//! `make bench-peers`: one load on the upstream controllers, on Cofferdam, and on the API server only.
//!
//! Each configuration has a fresh control plane. Everything runs on one machine, so only the ratios within a
//! run are meaningful.

mod attachments;
mod configurations;
mod iterations;
mod load;
mod measure;
mod memory;
mod pods;
mod report;
mod scheduling;
mod subjects;
mod upper_bound;

use std::{
    env, fs,
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use serde::Serialize;

use self::{
    configurations::{BenchmarkConfiguration, CONFIGURATIONS, Implementation},
    load::{ClaimLoad, LoadTiming},
    measure::{Cost, UsageReading},
    memory::ResidentMemory,
    pods::NodeRoleUsage,
    subjects::BenchmarkTask,
    upper_bound::ProvisioningMode,
};
use crate::{
    control_plane::{ControlPlane, ControlPlaneOptions},
    process::ManagedProcess,
    run::SuiteRun,
};

/// Default of `CLAIMS`, the claims of a load.
const DEFAULT_CLAIMS: usize = 2000;
/// Default of `ITERATIONS`.
const DEFAULT_ITERATIONS: usize = 3;
/// Claims of the sequential load.
const SEQUENTIAL_CLAIMS: usize = 50;
/// Configuration name of the upper bound: the API server without controllers.
const API_ONLY: &str = "API only";

/// Kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum LoadKind {
    /// Create claims one after the other; each is Bound to a new volume.
    BindSequentially,
    /// Create claims concurrently; each is Bound to a new volume.
    BindDynamic,
    /// Delete claims and their volumes.
    DeleteClaims,
    /// Bind claims to static volumes.
    BindStatic,
    /// Attach volumes to nodes.
    Attach,
    /// Detach volumes.
    Detach,
    /// Expand claims.
    Expand,
    /// Schedule pods to nodes and attach their volumes.
    SchedulePods,
    /// Delete pods and detach their volumes.
    DeletePods,
    /// Run pods with new volumes.
    RunPods,
}

/// Measurement of one load.
#[derive(Clone, Debug, Serialize)]
struct LoadMeasurement {
    kind: LoadKind,
    objects: usize,
    /// Seconds from the first request to the last result.
    seconds: f64,
    per_second: f64,
    /// Milliseconds from a request to its result.
    p50: f64,
    p99: f64,
    cost: Cost,
}

/// All loads on one configuration.
#[derive(Clone, Debug, Serialize)]
struct ConfigurationResults {
    name: String,
    description: String,
    /// Implementation; none for the API server only.
    #[serde(skip)]
    implementation: Option<Implementation>,
    /// The compared processes.
    controllers: Vec<String>,
    loads: Vec<LoadMeasurement>,
}

impl ConfigurationResults {
    fn load(&self, kind: LoadKind) -> Option<&LoadMeasurement> {
        self.loads.iter().find(|measurement| measurement.kind == kind)
    }
}

/// Measurements of all configurations.
#[derive(Clone, Debug, Default, Serialize)]
struct BenchmarkResults {
    claims: Vec<ConfigurationResults>,
    attachments: Vec<ConfigurationResults>,
    expansion: Vec<ConfigurationResults>,
    scheduling: Vec<ConfigurationResults>,
    pods: Vec<ConfigurationResults>,
    node: Option<NodeRoleUsage>,
    memory: Option<ResidentMemory>,
}

/// Value of an environment variable. make passes an empty one if it is not set.
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

/// A group of loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadGroup {
    Claims,
    Attachments,
    Expansion,
    Scheduling,
    Pods,
    Memory,
}

/// Groups by their names in `LOADS`.
const LOAD_GROUPS: [(&str, LoadGroup); 6] = [
    ("claims", LoadGroup::Claims),
    ("attachments", LoadGroup::Attachments),
    ("expansion", LoadGroup::Expansion),
    ("scheduling", LoadGroup::Scheduling),
    ("pods", LoadGroup::Pods),
    ("memory", LoadGroup::Memory),
];

/// The groups of `LOADS`, separated by commas; none if it is empty.
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

/// Measures everything, or the groups of `LOADS`, and writes the results. Partial results are written to the
/// run's directory.
///
/// # Errors
/// If something does not run, or a claim is not answered.
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
    let mut iterations = Vec::new();
    let mut report = String::new();
    for number in 1..=iteration_count {
        // Progress: an iteration takes minutes.
        let _ = writeln!(io::stderr(), "iteration {number} of {iteration_count}");
        iterations.push(run_iteration(run, claims, is_selected).await?);
        let medians = BenchmarkResults { memory: memory.clone(), ..iterations::medians(&iterations) };
        let json = serde_json::json!({ "medians": &medians, "iterations": &iterations });
        // Written after every iteration, in case the run is interrupted.
        fs::write(output.join("benchmarks.json"), serde_json::to_string_pretty(&json)? + "\n")?;
        report = report::markdown(&medians, claims, number);
        fs::write(output.join("benchmarks.md"), &report)?;
    }
    report::print(&report)
}

/// Runs every selected load on every configuration once.
async fn run_iteration(
    run: &SuiteRun,
    claims: usize,
    is_selected: impl Fn(LoadGroup) -> bool,
) -> Result<BenchmarkResults> {
    let mut results = BenchmarkResults::default();
    if is_selected(LoadGroup::Claims) {
        for stack in CONFIGURATIONS {
            results.claims.push(measure_configuration(run, stack, claims).await?);
        }
        results.claims.push(measure_upper_bound(run, claims).await?);
    }
    if is_selected(LoadGroup::Attachments) {
        results.attachments = subjects::measure(run, BenchmarkTask::Attach, claims / 2).await?;
    }
    if is_selected(LoadGroup::Expansion) {
        results.expansion = subjects::measure(run, BenchmarkTask::Expand, claims / 2).await?;
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

/// Records the loads of one control plane.
struct LoadRecorder<'a> {
    name: &'static str,
    client: Client,
    processes: Vec<&'a ManagedProcess>,
    loads: Vec<LoadMeasurement>,
    last_reading: UsageReading,
    /// Watches of the control plane without controllers.
    idle_watches: f64,
}

impl<'a> LoadRecorder<'a> {
    async fn new(
        name: &'static str,
        plane: &'a ControlPlane,
        others: impl Iterator<Item = &'a ManagedProcess>,
        watches: f64,
    ) -> Result<Self> {
        let processes: Vec<&ManagedProcess> = [&plane.api, &plane.etcd].into_iter().chain(others).collect();
        let client = plane.client().clone();
        let last = UsageReading::when_idle(&client, &processes).await?;
        Ok(Self { name, client, processes, loads: Vec::new(), last_reading: last, idle_watches: watches })
    }

    /// The measurements. Closes the connections to the API server, so that it can stop.
    fn into_measurements(self) -> Vec<LoadMeasurement> {
        self.loads
    }

    /// Starts the next load.
    async fn begin_load(&mut self) -> Result<()> {
        self.last_reading = UsageReading::when_idle(&self.client, &self.processes).await?;
        Ok(())
    }

    async fn end_load(&mut self, kind: LoadKind, timing: &LoadTiming) -> Result<()> {
        let objects = timing.latencies.len();
        let now = UsageReading::when_idle(&self.client, &self.processes).await?;
        let mut cost = now.cost_since(&self.last_reading, objects, &self.processes)?;
        cost.watches -= self.idle_watches;
        let seconds = timing.elapsed.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a load has fewer objects than a float has digits")]
        let per_second = objects as f64 / seconds;
        let milliseconds = |percent| timing.quantile(percent).as_secs_f64() * 1000.0;
        let (p50, p99) = (milliseconds(50), milliseconds(99));
        // Progress: a run takes minutes.
        let _ = writeln!(
            io::stderr(),
            "  {}: {kind:?}, {objects} at {per_second:.1} /s, p50 {p50:.1} ms, p99 {p99:.1} ms",
            self.name
        );
        self.loads.push(LoadMeasurement { kind, objects, seconds, per_second, p50, p99, cost });
        self.last_reading = now;
        Ok(())
    }
}

async fn start_control_plane(run: &SuiteRun) -> Result<ControlPlane> {
    ControlPlane::start(
        run,
        ControlPlaneOptions { is_unlimited: true, is_unaudited: true, ..ControlPlaneOptions::default() },
    )
    .await
}

/// Runs all loads on one configuration.
async fn measure_configuration(
    run: &SuiteRun,
    configuration: &BenchmarkConfiguration,
    claims: usize,
) -> Result<ConfigurationResults> {
    let mut plane = start_control_plane(run).await?;
    let watches = UsageReading::when_idle(plane.client(), &[]).await?.watches();
    let controllers = configuration.start(run, &mut plane).await?;
    let client = plane.client().clone();
    let mut recorder =
        LoadRecorder::new(configuration.name, &plane, controllers.processes(), watches).await?;

    let sequential = ClaimLoad::new(&client, "sequential", Some(controllers.driver_name)).await?;
    recorder.begin_load().await?;
    let timing = sequential.bind_sequentially(SEQUENTIAL_CLAIMS).await?;
    recorder.end_load(LoadKind::BindSequentially, &timing).await?;

    let load = ClaimLoad::new(&client, "load", Some(controllers.driver_name)).await?;
    recorder.begin_load().await?;
    let (timing, volumes) = load.bind_all(claims).await?;
    recorder.end_load(LoadKind::BindDynamic, &timing).await?;
    let timing = load.delete_all(&volumes).await?;
    recorder.end_load(LoadKind::DeleteClaims, &timing).await?;

    let load = ClaimLoad::new(&client, "static", None).await?;
    load.create_volumes(claims).await?;
    load.wait_for_available(claims).await?;
    recorder.begin_load().await?;
    let (timing, _) = load.bind_all(claims).await?;
    recorder.end_load(LoadKind::BindStatic, &timing).await?;

    let results = ConfigurationResults {
        name: configuration.name.to_owned(),
        description: configuration.description.to_owned(),
        implementation: Some(configuration.implementation),
        controllers: controllers.names(),
        loads: recorder.into_measurements(),
    };
    controllers.stop().await?;
    drop((sequential, load, client));
    plane.stop().await?;
    Ok(results)
}

/// Makes the same writes as a client, without controllers.
async fn measure_upper_bound(run: &SuiteRun, claims: usize) -> Result<ConfigurationResults> {
    let plane = start_control_plane(run).await?;
    let client = plane.client().clone();
    let watches = UsageReading::when_idle(&client, &[]).await?.watches();
    let mut recorder = LoadRecorder::new(API_ONLY, &plane, std::iter::empty(), watches).await?;

    let sequential = ClaimLoad::new(&client, "sequential", None).await?;
    recorder.begin_load().await?;
    let timing = upper_bound::bind_sequentially(&sequential, SEQUENTIAL_CLAIMS).await?;
    recorder.end_load(LoadKind::BindSequentially, &timing).await?;

    let load = ClaimLoad::new(&client, "load", None).await?;
    recorder.begin_load().await?;
    let timing = upper_bound::bind_all(&load, claims, ProvisioningMode::Dynamic).await?;
    recorder.end_load(LoadKind::BindDynamic, &timing).await?;
    let timing = upper_bound::delete_all(&load, claims).await?;
    recorder.end_load(LoadKind::DeleteClaims, &timing).await?;

    let load = ClaimLoad::new(&client, "static", None).await?;
    load.create_volumes(claims).await?;
    recorder.begin_load().await?;
    let timing = upper_bound::bind_all(&load, claims, ProvisioningMode::Static).await?;
    recorder.end_load(LoadKind::BindStatic, &timing).await?;

    let loads = recorder.into_measurements();
    drop((sequential, load, client));
    plane.stop().await?;
    Ok(ConfigurationResults {
        name: API_ONLY.to_owned(),
        description: "five writes per claim, made by the clients; no controllers, no watches".to_owned(),
        implementation: None,
        controllers: Vec::new(),
        loads,
    })
}
