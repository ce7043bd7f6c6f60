//! The Markdown report: targets first, then all measurements.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{
    load::CONCURRENT_USERS,
    results::{
        BenchmarkEnvironment, BenchmarkReport, BenchmarkResults, ConfigurationResults, ExistingSnapshots,
        LoadKind, LoadMeasurement, NodeRoleUsage, ResidentMemory,
    },
};
use crate::implementation::Implementation;

/// The files of the results: benchmarks.json, and benchmarks.md, which is written from it.
pub(super) struct BenchmarkFiles {
    json: PathBuf,
    markdown: PathBuf,
}

impl BenchmarkFiles {
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self { json: directory.join("benchmarks.json"), markdown: directory.join("benchmarks.md") }
    }

    /// Writes both files.
    ///
    /// # Errors
    /// If one cannot be written.
    pub(super) fn write(&self, report: &BenchmarkReport) -> Result<()> {
        // A JSON value sorts the fields by name.
        let json = serde_json::to_string_pretty(&serde_json::to_value(report)?)? + "\n";
        fs::write(&self.json, json).with_context(|| self.json.display().to_string())?;
        self.write_markdown()
    }

    /// Writes benchmarks.md from benchmarks.json.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub(super) fn write_markdown(&self) -> Result<()> {
        fs::write(&self.markdown, self.render()?).with_context(|| self.markdown.display().to_string())
    }

    /// Prints benchmarks.md.
    ///
    /// # Errors
    /// If it cannot be read, or stdout is closed.
    pub(super) fn print_markdown(&self) -> Result<()> {
        Ok(writeln!(io::stdout(), "{}", fs::read_to_string(&self.markdown)?)?)
    }

    /// The text of benchmarks.md.
    fn render(&self) -> Result<String> {
        let context = || self.json.display().to_string();
        let json = fs::read_to_string(&self.json).with_context(context)?;
        Ok(markdown(&serde_json::from_str(&json).with_context(context)?))
    }
}

/// Title of each load's section in the report, in the order of the sections.
const LOAD_TITLES: [(LoadKind, &str); 13] = [
    (LoadKind::BindDynamic, "Claims created → Bound"),
    (LoadKind::DeleteClaims, "Claims deleted → volumes removed"),
    (LoadKind::BindStatic, "Claims created → Bound to static volumes"),
    (LoadKind::BindSequentially, "Sequential claims: created → Bound"),
    (LoadKind::Attach, "VolumeAttachments created → attached"),
    (LoadKind::Detach, "VolumeAttachments deleted → removed"),
    (LoadKind::Expand, "Claims expanded → new capacity in status"),
    (LoadKind::TakeSnapshotBurst, "80 VolumeSnapshots created → ready"),
    (LoadKind::TakeSnapshots, "VolumeSnapshots created → ready"),
    (LoadKind::DeleteSnapshots, "VolumeSnapshots deleted → removed"),
    (LoadKind::SchedulePods, "Pods scheduled to 20 nodes → volumes in `volumesAttached`"),
    (LoadKind::DeletePods, "Pods deleted → VolumeAttachments removed"),
    (
        LoadKind::RunPods,
        "Pods: created with a new claim → Running; 5 clients, each starts over when pod and volume are \
         removed",
    ),
];

/// Header of a table of targets.
const TARGET_TABLE_HEADER: &str =
    "| metric | target | measured | API only | result |\n|---|---:|---:|---:|---|\n";

/// A measured value and its target.
struct PerformanceTarget {
    metric: &'static str,
    target: f64,
    /// True if the target is a minimum, false if it is a maximum.
    is_minimum: bool,
    unit: &'static str,
    measured: f64,
    /// The same metric of the API server without controllers, which is the upper bound for controllers.
    /// `None` if the metric is no throughput relative to upstream, or this load was not measured without
    /// controllers.
    upper_bound: Option<f64>,
}

impl PerformanceTarget {
    const fn at_least(metric: &'static str, target: f64, unit: &'static str, measurement: f64) -> Self {
        Self { metric, target, is_minimum: true, unit, measured: measurement, upper_bound: None }
    }

    const fn at_most(metric: &'static str, target: f64, unit: &'static str, measurement: f64) -> Self {
        Self { metric, target, is_minimum: false, unit, measured: measurement, upper_bound: None }
    }

    /// A target for Cofferdam's throughput divided by upstream's. `api_only` is the load on the API server
    /// without controllers, whose throughput is the upper bound for controllers; `None` if not measured.
    fn throughput_ratio(
        metric: &'static str,
        target: f64,
        [cofferdam, upstream]: [&LoadMeasurement; 2],
        api_only: Option<&LoadMeasurement>,
    ) -> Self {
        let ratio = |measurement: &LoadMeasurement| measurement.per_second / upstream.per_second;
        Self { upper_bound: api_only.map(ratio), ..Self::at_least(metric, target, "×", ratio(cofferdam)) }
    }

    fn is_met(&self) -> bool {
        if self.is_minimum { self.measured >= self.target } else { self.measured <= self.target }
    }
}

/// The whole report as Markdown.
fn markdown(report: &BenchmarkReport) -> String {
    let all = &report.medians;
    let mut text = header(report);
    let of = match report.iterations.len() {
        1 => "one iteration".to_owned(),
        iterations => {
            format!("medians of {iterations} iterations, each of which measures every configuration")
        }
    };
    let _ = write!(text, "\n## Targets\n\nRatios within one run: {of}.\n");
    text.push_str(&targets_section(&all.claims, claim_targets));
    text.push_str(&targets_section(&all.attachments, attach_targets));
    text.push_str(&targets_section(&all.expansion, expansion_targets));
    text.push_str(&targets_section(&all.snapshots, snapshot_targets));
    text.push_str(&targets_section(&all.scheduling, scheduling_targets));
    text.extend(all.node.as_ref().map(node_section));
    text.extend(all.memory.as_ref().map(memory_section));
    text.extend(all.existing_snapshots.as_ref().map(existing_snapshots_section));
    for (kind, title) in LOAD_TITLES {
        text.push_str(&load_section(&all_configurations(all), kind, title));
    }
    text
}

/// All configurations, in the order of measurement.
fn all_configurations(all: &BenchmarkResults) -> Vec<ConfigurationResults> {
    let BenchmarkResults {
        claims,
        attachments,
        expansion: growth,
        snapshots,
        scheduling: placed,
        pods,
        node: _,
        memory: _,
        existing_snapshots: _,
    } = all;
    [claims.as_slice(), attachments, growth, snapshots, placed, pods].concat()
}

/// A function that returns the targets of a load. Its arguments are the results of Cofferdam, upstream and,
/// if measured, the API server only. The result is `None` if a measurement that a target needs is missing.
type TargetsFn = fn(
    &ConfigurationResults,
    &ConfigurationResults,
    Option<&ConfigurationResults>,
) -> Option<Vec<PerformanceTarget>>;

/// Tables of targets, one for each configuration of Cofferdam. A table is empty if `targets` returns `None`
/// or upstream was not measured.
fn targets_section(all: &[ConfigurationResults], targets: TargetsFn) -> String {
    let mut text = String::new();
    let upstream = all.iter().find(|results| results.implementation == Some(Implementation::Upstream));
    let api_only = all.iter().find(|results| results.implementation.is_none());
    for cofferdam in all.iter().filter(|results| results.implementation == Some(Implementation::Cofferdam)) {
        let _ = write!(text, "\n### {}\n\n{TARGET_TABLE_HEADER}", cofferdam.name);
        let targets =
            upstream.and_then(|upstream| targets(cofferdam, upstream, api_only)).unwrap_or_default();
        text.push_str(&target_rows(&targets));
    }
    text
}

/// Converts bytes to megabytes.
fn megabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "fewer bytes than a float has digits")]
    let bytes = bytes as f64;
    bytes / 1_000_000.0
}

/// The section of idle memory: the target for Cofferdam, and the memory of the upstream processes.
fn memory_section(memory: &ResidentMemory) -> String {
    let ResidentMemory { objects, drivers, nodes, cofferdam_bytes: ours, upstream_bytes: theirs } = memory;
    let target = PerformanceTarget::at_most(
        "resident memory of all roles in one process",
        60.0,
        "MB",
        megabytes(*ours),
    );
    let each = join(theirs.iter().map(|(name, bytes)| format!("{name} {:.0}", megabytes(*bytes))));
    format!(
        "\n### All roles when idle\n\n{TARGET_TABLE_HEADER}{}\nWith {objects} each of volumes, claims, \
         VolumeAttachments and pods, {nodes} nodes and {drivers} drivers on \
         sockets.\nThe {} upstream processes take {:.0} MB for the same: {each}.\n",
        target_rows(&[target]),
        1 + 3 * drivers,
        megabytes(theirs.values().sum()),
    )
}

/// The section of a cluster with many VolumeSnapshots, with the targets.
fn existing_snapshots_section(found: &ExistingSnapshots) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a load has fewer objects than a float has digits")]
    let existing = found.existing as f64;
    let kilobytes = 1_000.0 * megabytes(found.bytes.saturating_sub(found.empty_bytes)) / existing;
    let targets = [
        PerformanceTarget::at_most(
            "one more snapshot: created → ready, longest",
            1.0,
            "s",
            found.max_seconds,
        ),
        PerformanceTarget::at_most(
            "resident memory for each snapshot and its content",
            1.024,
            "kB",
            kilobytes,
        ),
    ];
    format!(
        "\n### Many existing VolumeSnapshots\n\n{TARGET_TABLE_HEADER}{}\nWith {} VolumeSnapshots, each with its \
         content. The median of the times is {:.2} s; the process takes {:.0} MB without a VolumeSnapshot.\n",
        target_rows(&targets),
        found.existing,
        found.median_seconds,
        megabytes(found.empty_bytes),
    )
}

/// The section of the roles `node`, `registrar` and `liveness`, with their targets.
fn node_section(node: &NodeRoleUsage) -> String {
    let memory = megabytes(node.resident_bytes);
    let targets = [
        PerformanceTarget::at_most(
            "resident memory of `node`, `registrar` and `liveness` in one process after the load",
            12.0,
            "MB",
            memory,
        ),
        PerformanceTarget::at_most("`NodePublishVolume` of a directory, p50", 2.0, "ms", node.publish_p50),
    ];
    format!("\n### Node roles\n\n{TARGET_TABLE_HEADER}{}", target_rows(&targets))
}

fn target_rows(targets: &[PerformanceTarget]) -> String {
    let mut text = String::new();
    for aim in targets {
        let (sign, verdict) =
            (if aim.is_minimum { "≥" } else { "≤" }, if aim.is_met() { "met" } else { "missed" });
        let PerformanceTarget {
            metric: what,
            target: wanted,
            unit,
            measured: measurement,
            upper_bound: possible,
            ..
        } = aim;
        let possible = possible.map(|possible| format!("{possible:.2} {unit}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "| {what} | {sign} {wanted} {unit} | {measurement:.2} {unit} | {possible} | {verdict} |"
        );
    }
    text
}

fn header(report: &BenchmarkReport) -> String {
    let BenchmarkReport { environment, medians, .. } = report;
    let BenchmarkEnvironment { date, cores, processor, kernel, claims } = environment;
    let mut text = format!(
        "# Cofferdam and upstream side by side\n\n\
         Generated by `make bench-peers CLAIMS={claims}` on {date}; do not edit.\n\
         {cores} cores of {processor}, Linux {kernel}; etcd, kube-apiserver, controllers and clients share \
         them, and etcd writes to memory.\n\
         {claims} claims, or half as many VolumeAttachments or expansions, by {CONCURRENT_USERS} concurrent \
         clients.\n\
         Each configuration has a fresh control plane (API priority and fairness off, unlimited requests).\n\
         All figures: [benchmarks.json](benchmarks.json).\n\n\
         | configuration | description |\n|---|---|\n",
    );
    for results in all_configurations(medians) {
        let _ = writeln!(text, "| {} | {} |", results.name, results.description);
    }
    text
}

/// Targets of the claim load. `None` if a measurement that a target needs is missing.
fn claim_targets(
    cofferdam: &ConfigurationResults,
    upstream: &ConfigurationResults,
    api_only: Option<&ConfigurationResults>,
) -> Option<Vec<PerformanceTarget>> {
    let api_only = api_only?;
    let (bound, deleted, bind_static) = (
        cofferdam.load(LoadKind::BindDynamic)?,
        cofferdam.load(LoadKind::DeleteClaims)?,
        cofferdam.load(LoadKind::BindStatic)?,
    );
    let peer = upstream.load(LoadKind::BindDynamic)?;
    let ratio =
        |cofferdam: &LoadMeasurement, upstream: &LoadMeasurement| cofferdam.per_second / upstream.per_second;
    let memory = |results: &ConfigurationResults, measurement: &LoadMeasurement| {
        #[expect(clippy::cast_precision_loss, reason = "fewer bytes than a float has digits")]
        let bytes =
            measurement.cost.memory.iter().map(|(name, bytes)| (name.clone(), *bytes as f64)).collect();
        controller_sum(results, &bytes)
    };
    Some(vec![
        PerformanceTarget::throughput_ratio(
            "created → Bound, throughput relative to upstream",
            3.0,
            [bound, peer],
            api_only.load(LoadKind::BindDynamic),
        ),
        PerformanceTarget::at_least(
            "created → Bound, throughput relative to API only",
            65.0,
            "%",
            100.0 * ratio(bound, api_only.load(LoadKind::BindDynamic)?),
        ),
        PerformanceTarget::at_most(
            "created → Bound, p99 relative to upstream",
            25.0,
            "%",
            100.0 * bound.p99 / peer.p99,
        ),
        PerformanceTarget::throughput_ratio(
            "deleted → removed, throughput relative to upstream",
            3.0,
            [deleted, upstream.load(LoadKind::DeleteClaims)?],
            api_only.load(LoadKind::DeleteClaims),
        ),
        PerformanceTarget::throughput_ratio(
            "static volume → Bound, throughput relative to upstream",
            5.0,
            [bind_static, upstream.load(LoadKind::BindStatic)?],
            api_only.load(LoadKind::BindStatic),
        ),
        // The create of the claim is the client's.
        PerformanceTarget::at_most(
            "API writes per claim, without the client's own",
            5.5,
            "",
            bound.cost.writes - 1.0,
        ),
        PerformanceTarget::at_most(
            "controller CPU per claim, relative to upstream",
            20.0,
            "%",
            100.0 * controller_cpu(cofferdam, bound) / controller_cpu(upstream, peer),
        ),
        PerformanceTarget::at_most(
            "controller memory after the load, relative to upstream",
            12.5,
            "%",
            100.0 * memory(cofferdam, bound) / memory(upstream, peer),
        ),
        PerformanceTarget::at_most(
            "sequential claims, p50",
            20.0,
            "ms",
            cofferdam.load(LoadKind::BindSequentially)?.p50,
        ),
    ])
}

/// A target for the throughput of a load of this kind, relative to upstream. `None` if Cofferdam or upstream
/// has no measurement of it.
fn throughput_target(
    metric: &'static str,
    target: f64,
    kind: LoadKind,
    [cofferdam, upstream]: [&ConfigurationResults; 2],
    api_only: Option<&ConfigurationResults>,
) -> Option<PerformanceTarget> {
    let api_only = api_only.and_then(|api_only| api_only.load(kind));
    Some(PerformanceTarget::throughput_ratio(
        metric,
        target,
        [cofferdam.load(kind)?, upstream.load(kind)?],
        api_only,
    ))
}

/// Targets of the loads that attach and detach. `None` if a measurement that a target needs is missing.
fn attach_targets(
    cofferdam: &ConfigurationResults,
    upstream: &ConfigurationResults,
    api_only: Option<&ConfigurationResults>,
) -> Option<Vec<PerformanceTarget>> {
    let both = [cofferdam, upstream];
    Some(vec![
        throughput_target(
            "created → attached, throughput relative to upstream",
            2.5,
            LoadKind::Attach,
            both,
            api_only,
        )?,
        throughput_target(
            "deleted → removed, throughput relative to upstream",
            2.5,
            LoadKind::Detach,
            both,
            api_only,
        )?,
    ])
}

/// Targets of the load that expands claims. `None` if a measurement that a target needs is missing.
fn expansion_targets(
    cofferdam: &ConfigurationResults,
    upstream: &ConfigurationResults,
    api_only: Option<&ConfigurationResults>,
) -> Option<Vec<PerformanceTarget>> {
    Some(vec![throughput_target(
        "larger request → capacity, throughput relative to upstream",
        2.5,
        LoadKind::Expand,
        [cofferdam, upstream],
        api_only,
    )?])
}

/// Targets of the snapshot loads. `upstream` is the first configuration, with default rates, for which only
/// the burst is measured. `None` if a measurement that a target needs is missing.
fn snapshot_targets(
    cofferdam: &ConfigurationResults,
    upstream: &ConfigurationResults,
    api_only: Option<&ConfigurationResults>,
) -> Option<Vec<PerformanceTarget>> {
    let (burst, taken) =
        (cofferdam.load(LoadKind::TakeSnapshotBurst)?, cofferdam.load(LoadKind::TakeSnapshots)?);
    let upstream_burst = upstream.load(LoadKind::TakeSnapshotBurst)?;
    let possible = api_only?.load(LoadKind::TakeSnapshots)?;
    Some(vec![
        PerformanceTarget::at_most("80 snapshots at once, until the last is ready", 3.0, "s", burst.seconds),
        PerformanceTarget::at_least(
            "created → ready, throughput relative to API only",
            70.0,
            "%",
            100.0 * taken.per_second / possible.per_second,
        ),
        PerformanceTarget::throughput_ratio(
            "created → ready, throughput relative to upstream's burst at default rates",
            5.0,
            [taken, upstream_burst],
            Some(possible),
        ),
        PerformanceTarget::at_most(
            "controller CPU per snapshot of the burst, relative to upstream at default rates",
            25.0,
            "%",
            100.0 * controller_cpu(cofferdam, burst) / controller_cpu(upstream, upstream_burst),
        ),
    ])
}

/// Targets of the scheduling load. `None` if a measurement that a target needs is missing.
fn scheduling_targets(
    cofferdam: &ConfigurationResults,
    upstream: &ConfigurationResults,
    api_only: Option<&ConfigurationResults>,
) -> Option<Vec<PerformanceTarget>> {
    let share = |flow| {
        Some(
            100.0 * controller_cpu(cofferdam, cofferdam.load(flow)?)
                / controller_cpu(upstream, upstream.load(flow)?),
        )
    };
    let what = "pod scheduled → `volumesAttached`, throughput relative to upstream";
    Some(vec![
        throughput_target(what, 3.0, LoadKind::SchedulePods, [cofferdam, upstream], api_only)?,
        PerformanceTarget::at_most(
            "controller CPU per pod, relative to upstream",
            33.3,
            "%",
            share(LoadKind::SchedulePods)?,
        ),
    ])
}

/// CPU milliseconds per object of the load, summed over the controllers of a configuration.
fn controller_cpu(results: &ConfigurationResults, measurement: &LoadMeasurement) -> f64 {
    controller_sum(results, &measurement.cost.cpu)
}

/// Sum of the values in `by_process` of the controllers of a configuration.
fn controller_sum(results: &ConfigurationResults, by_process: &BTreeMap<String, f64>) -> f64 {
    results.controllers.iter().filter_map(|name| by_process.get(name)).sum()
}

fn load_section(all: &[ConfigurationResults], kind: LoadKind, title: &str) -> String {
    let mut text = format!(
        "\n## {title}\n\n| configuration | per second | p50 | p99 | API writes | watch events | watches | \
         CPU per object, ms | memory after, MB |\n\
         |---|---:|---:|---:|---:|---:|---:|---|---|\n"
    );
    let rows = || all.iter().filter_map(|results| Some((results, results.load(kind)?)));
    if rows().next().is_none() {
        return String::new();
    }
    for (results, measured) in rows() {
        let cost = &measured.cost;
        let cpu = join(cost.cpu.iter().map(|(name, each)| format!("{name} {each:.2}")));
        let memory = join(cost.memory.iter().map(|(name, bytes)| format!("{name} {}", bytes / 1_000_000)));
        let _ = writeln!(
            text,
            "| {} | {:.0} | {} | {} | {:.2} | {:.1} | {:.0} | {cpu} | {memory} |",
            results.name,
            measured.per_second,
            format_milliseconds(measured.p50),
            format_milliseconds(measured.p99),
            cost.writes,
            cost.events,
            cost.watches,
        );
    }
    let measured: Vec<_> = rows().collect();
    text.push_str(&requests_table(&measured));
    text
}

/// Requests per object: a row for each request, a column for each configuration.
fn requests_table(measured: &[(&ConfigurationResults, &LoadMeasurement)]) -> String {
    let mut text = "\nRequests per object, the client's own included:\n\n| request |".to_owned();
    for (results, _) in measured {
        let _ = write!(text, " {} |", results.name);
    }
    let _ = writeln!(text, "\n|---|{}", "---:|".repeat(measured.len()));
    let requests = |measurement: &LoadMeasurement| measurement.cost.requests.clone().into_keys();
    let names: BTreeSet<String> =
        measured.iter().flat_map(|(_, measurement)| requests(measurement)).collect();
    for name in names {
        let each = |measurement: &LoadMeasurement| measurement.cost.requests.get(&name).copied();
        let cells = measured.iter().map(|(_, measurement)| {
            each(measurement).map(|each| format!(" {each:.2}")).unwrap_or_default() + " |"
        });
        let _ = writeln!(text, "| {name} |{}", cells.collect::<String>());
    }
    text
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// Formats milliseconds.
fn format_milliseconds(milliseconds: f64) -> String {
    if milliseconds < 1000.0 {
        format!("{milliseconds:.1} ms")
    } else {
        format!("{:.2} s", milliseconds / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_md_is_the_report_of_benchmarks_json() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let files = BenchmarkFiles::in_directory(&docs);
        let written = fs::read_to_string(&files.markdown).unwrap();
        assert!(written == files.render().unwrap(), "docs/benchmarks.md: run `make bench-report`");
    }

    #[test]
    fn a_target_is_met_at_its_limit() {
        assert!(PerformanceTarget::at_least("", 3.0, "×", 3.0).is_met());
        assert!(!PerformanceTarget::at_least("", 3.0, "×", 2.99).is_met());
        assert!(PerformanceTarget::at_most("", 20.0, "ms", 20.0).is_met());
        assert!(!PerformanceTarget::at_most("", 20.0, "ms", 20.1).is_met());
        assert_eq!(format_milliseconds(999.94), "999.9 ms");
        assert_eq!(format_milliseconds(17_200.0), "17.20 s");
    }
}
