//! The report of the loads `full` and `far`: a summary, charts, targets and tables.

use std::fmt::Write as _;

use super::{
    chart::{Chart, Plot, format_value},
    far,
    format::format_milliseconds,
    full,
    iterations::iterations_text,
    load::CONCURRENT_USERS,
    results::{
        BenchmarkEnvironment, ConfigurationResults, FarApi, FullCluster, Lifecycle, LoadKind,
        LoadMeasurement, ScaleReport, ScaleResults,
    },
    stacks::Stack,
    targets::{
        PerformanceTarget, TARGET_TABLE_HEADER, controller_cpu, controller_memory, megabytes_of, target_rows,
    },
    upper_bound::{API_ONLY, BIND_WRITES},
};

/// The distance of the summary and of the targets: milliseconds of a round trip.
const TYPICAL_ROUND_TRIP: u64 = 20;
/// The stacks in the order of the charts' series.
const STACKS: [Stack; 3] = [Stack::Cofferdam, Stack::Upstream, Stack::UpstreamWithDefaults];

/// The measurements of one configuration, in a cluster or at a distance, that the summary and targets use.
struct Measured<'a> {
    results: &'a ConfigurationResults,
    concurrent: &'a LoadMeasurement,
    sequential: &'a LoadMeasurement,
}

impl<'a> Measured<'a> {
    /// `None` if a load was not measured.
    fn new(results: &'a ConfigurationResults) -> Option<Self> {
        let (concurrent, sequential) =
            (results.load(LoadKind::BindDynamic)?, results.load(LoadKind::BindSequentially)?);
        Some(Self { results, concurrent, sequential })
    }

    /// Megabytes of the controllers after the concurrent load.
    fn memory(&self) -> f64 {
        megabytes_of(controller_memory(self.results, self.concurrent))
    }

    /// CPU milliseconds of the controllers for each claim of the concurrent load.
    fn cpu(&self) -> f64 {
        controller_cpu(self.results, self.concurrent)
    }
}

/// Number of volumes of the largest cluster.
fn most_volumes(all: &ScaleResults) -> Option<usize> {
    all.full.iter().map(|cluster| cluster.volumes).max()
}

/// The configuration `name` in the largest cluster.
fn in_largest<'a>(all: &'a ScaleResults, name: &str) -> Option<(Measured<'a>, Option<&'a Lifecycle>)> {
    let most = most_volumes(all)?;
    let cluster = all.full.iter().find(|cluster| cluster.volumes == most && cluster.results.name == name)?;
    Some((Measured::new(&cluster.results)?, cluster.lifecycle.as_ref()))
}

/// The configuration `name` at a distance.
fn at_distance<'a>(all: &'a ScaleResults, name: &str, round_trip_ms: u64) -> Option<Measured<'a>> {
    let is_it = |api: &&FarApi| api.round_trip_ms == round_trip_ms && api.results.name == name;
    Measured::new(&all.far.iter().find(is_it)?.results)
}

/// A list of five lines for people who read no more. `None` if a measurement is missing.
pub(super) fn summary(all: &ScaleResults) -> Option<String> {
    let [cofferdam, upstream, upstream_default] = STACKS.map(Stack::name);
    let ((ours, our_life), (theirs, their_life)) = (in_largest(all, cofferdam)?, in_largest(all, upstream)?);
    let (our_life, their_life) = (our_life?, their_life?);
    let far = |name| at_distance(all, name, TYPICAL_ROUND_TRIP);
    let (ours_far, theirs_far, theirs_limited) = (far(cofferdam)?, far(upstream)?, far(upstream_default)?);
    Some(format!(
        "- In a cluster with {} volumes, {} more claims become Bound at {} per second; with the Go \
         controllers, without their client rate limits, at {} per second.\n\
         - Their p99 from creation to Bound is {}; with the Go controllers {}.\n\
         - The controllers then take {} MB of memory, and {:.2} s of CPU in {} s without work; the Go \
         controllers {} MB and {:.2} s.\n\
         - With the API server {TYPICAL_ROUND_TRIP} ms away from the controllers, claims become Bound at {} \
         per second; with the Go controllers at {} per second, and at {} per second with their default \
         client rate limits.\n\
         - At this distance, a claim that is created while no other one is pending takes {} (p50); with \
         the Go controllers {}.\n",
        format_value(as_float(most_volumes(all)?)),
        ours.concurrent.objects,
        format_value(ours.concurrent.per_second),
        format_value(theirs.concurrent.per_second),
        format_milliseconds(ours.concurrent.p99),
        format_milliseconds(theirs.concurrent.p99),
        format_value(ours.memory()),
        our_life.rest_cpu_seconds,
        full::REST.as_secs(),
        format_value(theirs.memory()),
        their_life.rest_cpu_seconds,
        format_value(ours_far.concurrent.per_second),
        format_value(theirs_far.concurrent.per_second),
        format_value(theirs_limited.concurrent.per_second),
        format_milliseconds(ours_far.sequential.p50),
        format_milliseconds(theirs_far.sequential.p50),
    ))
}

/// The charts by their file names without extension.
pub(super) fn charts(all: &ScaleResults) -> Vec<(&'static str, Chart)> {
    let chart = |title: &str, value: fn(&Measured<'_>) -> f64, has_default_rates: bool| {
        let stacks =
            || STACKS.into_iter().filter(|stack| has_default_rates || *stack != Stack::UpstreamWithDefaults);
        let full_points = |stack: Stack| {
            let clusters = all.full.iter().filter(|cluster| cluster.results.name == stack.name());
            let point = |cluster: &FullCluster| {
                Some((as_float(cluster.volumes), value(&Measured::new(&cluster.results)?)))
            };
            clusters.filter_map(point).collect()
        };
        let far_points = |stack: Stack| {
            let distances = all.far.iter().filter(|api| api.results.name == stack.name());
            #[expect(clippy::cast_precision_loss, reason = "a distance of milliseconds")]
            let point = |api: &FarApi| Some((api.round_trip_ms as f64, value(&Measured::new(&api.results)?)));
            distances.filter_map(point).collect()
        };
        Chart {
            title: title.to_owned(),
            series: stacks().map(|stack| series_name(stack).to_owned()).collect(),
            plots: vec![
                Plot {
                    x_title: format!(
                        "volumes in the cluster ({} claims, API server near)",
                        full::CONCURRENT_CLAIMS
                    ),
                    points: stacks().map(full_points).collect(),
                },
                Plot {
                    x_title: format!(
                        "round trip to the API server in ms ({} claims, no volumes)",
                        far::concurrent_claims(Stack::Cofferdam)
                    ),
                    points: stacks().map(far_points).collect(),
                },
            ],
        }
    };
    vec![
        ("throughput", chart("Claims that become Bound per second", |it| it.concurrent.per_second, true)),
        // With default rates the load has fewer claims, whose latencies are shorter for that reason.
        (
            "p99",
            chart(
                "Claim created → Bound, 99th percentile in seconds",
                |it| it.concurrent.p99 / 1000.0,
                false,
            ),
        ),
        ("memory", chart("Resident memory of the controllers in MB", |it| it.memory(), false)),
    ]
}

const fn series_name(stack: Stack) -> &'static str {
    match stack {
        Stack::Cofferdam => "Cofferdam",
        Stack::Upstream => "Go controllers without client rate limits",
        Stack::UpstreamWithDefaults => "Go controllers with default limits (60 claims)",
    }
}

/// The first sections of benchmarks.md. `directory` is that of the charts.
pub(super) fn section(report: &ScaleReport, directory: &str) -> String {
    let ScaleReport { environment, iterations, medians: all } = report;
    let mut text = String::new();
    text.extend(summary(all).map(|lines| format!("\n{lines}")));
    for (name, chart) in charts(all) {
        let _ = write!(text, "\n![{}]({directory}/{name}.svg)\n", chart.title);
    }
    let BenchmarkEnvironment { date, cores, processor, kernel, .. } = environment;
    let _ = write!(
        text,
        "\nGenerated by `make bench-peers LOADS=full,far` on {date}; do not edit.\n\
         {cores} cores of {processor}, Linux {kernel}; etcd, kube-apiserver, controllers and clients share \
         them, and etcd writes to memory.\n\
         {}.\n\
         A ratio is the median of the iterations' ratios, and differs from the ratio of two medians.\n\
         The Go controllers (Upstream in the tables) are kube-controller-manager (binder and protection) and \
         csi-provisioner with 100 workers; the roles of Cofferdam are `provisioner`, `pv-controller` and \
         `protection`.\n\
         The driver of both stacks is the same Go program.\n\
         Without default rates, `--kube-api-qps` and `--kube-api-burst` of the Go controllers are so high that \
         they do not limit; by default they allow kube-controller-manager 20 requests per second, and \
         csi-provisioner 5.\n\
         In the rows API only no controller runs: the clients themselves make the writes, without events.\n\
         {CONCURRENT_USERS} clients create the claims.\n",
        iterations_text(iterations.len())
    );
    text.push_str(&full_section(all, iterations));
    text.push_str(&far_section(all, iterations));
    text
}

fn full_section(all: &ScaleResults, iterations: &[ScaleResults]) -> String {
    if all.full.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n## Many volumes\n\n\
         Claims that are Bound to volumes exist before the controllers start, restored from a copy of etcd \
         for each stack.\n\
         Then {} claims are created concurrently, and {} one after the other.\n\
         Without controllers, the clients write {BIND_WRITES}, for each claim.\n\n{}",
        full::CONCURRENT_CLAIMS,
        full::SEQUENTIAL_CLAIMS,
        target_table(iterations, full_targets),
    );
    let _ = write!(
        text,
        "| existing volumes | configuration | claims | per second | p50 | p99 | one claim alone, p50 | API \
         writes per claim with its creation | controller CPU per claim, ms | controller memory after, MB |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    );
    for cluster in &all.full {
        text.push_str(&row(&format_value(as_float(cluster.volumes)), &cluster.results));
    }
    let lifecycles: Vec<_> = all.full.iter().filter_map(|it| Some((it, it.lifecycle.as_ref()?))).collect();
    if !lifecycles.is_empty() {
        let _ = write!(
            text,
            "\nIn the largest cluster:\n\n\
             | configuration | processes started → one claim Bound | CPU in {} s without work | API server \
             restarted, etcd compacted: ready → new claim Bound | controller CPU | API server restarted: \
             ready → new claim Bound | controller CPU |\n|---|---:|---:|---:|---:|---:|---:|\n",
            full::REST.as_secs(),
        );
    }
    for (cluster, Lifecycle { start_seconds, rest_cpu_seconds, relist, restart }) in lifecycles {
        let _ = writeln!(
            text,
            "| {} | {} | {rest_cpu_seconds:.2} s | {} | {:.2} s | {} | {:.2} s |",
            cluster.results.name,
            format_milliseconds(1000.0 * start_seconds),
            format_milliseconds(1000.0 * relist.seconds),
            relist.cpu_seconds,
            format_milliseconds(1000.0 * restart.seconds),
            restart.cpu_seconds,
        );
    }
    if all.full.iter().any(|cluster| cluster.lifecycle.is_some()) {
        text.push_str(
            "\nThe claim is created when the processes start, or when the API server is ready again.\n\
             Work of the controllers while the API server starts is not in these times.\n\
             The controller CPU is from the end of the API server until this claim is Bound.\n\
             The Go controllers list again after a back-off of client-go, which has a random part.\n\
             kube-apiserver keeps no changes across a restart: a watch continues only if no object of any \
             kind was written after its last event, so the controllers list most kinds again in both \
             cases.\n",
        );
    }
    text
}

fn far_section(all: &ScaleResults, iterations: &[ScaleResults]) -> String {
    if all.far.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n## A distant API server\n\n\
         A proxy between the controllers and kube-apiserver delays each direction by half of the round trip, \
         and a new connection by one.\n\
         It does not limit the throughput.\n\
         The clients that create and watch claims connect directly.\n\
         {} claims are created one after the other, then those of the table concurrently.\n\
         With the default rates fewer claims are created, so the latencies of those rows are not comparable; \
         the limits, not the distance, determine them.\n\
         Each distance has a new control plane, and the controllers start without distance.\n\
         Without controllers, the clients write {BIND_WRITES}, for each claim, without distance: it does not \
         limit concurrent writes.\n\n{}",
        far::SEQUENTIAL_CLAIMS,
        target_table(iterations, far_targets),
    );
    let _ = write!(
        text,
        "| round trip | configuration | claims | per second | p50 | p99 | one claim alone, p50 | API writes \
         per claim with its creation | controller CPU per claim, ms | controller memory after, MB |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    );
    for api in &all.far {
        text.push_str(&row(&format!("{} ms", api.round_trip_ms), &api.results));
    }
    text
}

fn row(parameter: &str, results: &ConfigurationResults) -> String {
    let Some(measured) = Measured::new(results) else { return String::new() };
    let has_controllers = results.implementation.is_some();
    let cell = |value: f64, decimals: usize| match has_controllers {
        true => format!("{value:.decimals$}"),
        false => String::new(),
    };
    let Measured { concurrent, sequential, .. } = &measured;
    format!(
        "| {parameter} | {} | {} | {} | {} | {} | {} | {:.2} | {} | {} |\n",
        results.name,
        concurrent.objects,
        format_value(concurrent.per_second),
        format_milliseconds(concurrent.p50),
        format_milliseconds(concurrent.p99),
        format_milliseconds(sequential.p50),
        concurrent.cost.writes,
        cell(measured.cpu(), 2),
        cell(measured.memory(), 0),
    )
}

/// A table of targets with the medians over the iterations, so that each ratio is one of measurements that
/// are minutes apart; nothing if a measurement is missing.
fn target_table(
    iterations: &[ScaleResults],
    targets: fn(&ScaleResults) -> Option<Vec<PerformanceTarget>>,
) -> String {
    let measured: Option<Vec<_>> = iterations.iter().map(targets).collect();
    let medians = measured.map(|measured| PerformanceTarget::medians(&measured)).unwrap_or_default();
    if medians.is_empty() {
        return String::new();
    }
    format!("{TARGET_TABLE_HEADER}{}\n", target_rows(&medians))
}

/// Targets in the largest cluster. `None` if a measurement is missing.
fn full_targets(all: &ScaleResults) -> Option<Vec<PerformanceTarget>> {
    let [cofferdam, upstream, _] = STACKS.map(Stack::name);
    let (ours, life) = in_largest(all, cofferdam)?;
    let (theirs, _) = in_largest(all, upstream)?;
    let (api, _) = in_largest(all, API_ONLY)?;
    Some(vec![
        PerformanceTarget::ratio_at_least(
            "largest cluster, created → Bound, throughput relative to upstream",
            3.0,
            [ours.concurrent, theirs.concurrent],
            Some(api.concurrent),
        ),
        PerformanceTarget::api_share("the same, relative to API only", 50.0, ours.concurrent, api.concurrent),
        PerformanceTarget::at_most(
            "created → Bound, p99 relative to upstream",
            25.0,
            "%",
            100.0 * ours.concurrent.p99 / theirs.concurrent.p99,
        ),
        PerformanceTarget::at_most(
            "controller memory after the load, relative to upstream",
            12.5,
            "%",
            100.0 * ours.memory() / theirs.memory(),
        ),
        PerformanceTarget::at_most("controller CPU in 30 s without work", 0.3, "s", life?.rest_cpu_seconds),
    ])
}

/// Targets at the typical distance. `None` if a measurement is missing.
fn far_targets(all: &ScaleResults) -> Option<Vec<PerformanceTarget>> {
    let [cofferdam, upstream, _] = STACKS.map(Stack::name);
    let ours = at_distance(all, cofferdam, TYPICAL_ROUND_TRIP)?;
    let theirs = at_distance(all, upstream, TYPICAL_ROUND_TRIP)?;
    let api = at_distance(all, API_ONLY, 0)?;
    Some(vec![
        PerformanceTarget::ratio_at_least(
            "20 ms away, created → Bound, throughput relative to upstream without rate limits",
            5.0,
            [ours.concurrent, theirs.concurrent],
            Some(api.concurrent),
        ),
        PerformanceTarget::api_share(
            "the same, relative to API only without distance",
            50.0,
            ours.concurrent,
            api.concurrent,
        ),
        PerformanceTarget::at_most("one claim alone, p50", 110.0, "ms", ours.sequential.p50),
    ])
}

#[expect(clippy::cast_precision_loss, reason = "a number of volumes")]
fn as_float(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        bench::results::{Cost, Recovery},
        implementation::Implementation,
    };

    fn results(name: &str, per_second: f64, megabytes: u64) -> ConfigurationResults {
        let load = |kind, objects, p50| LoadMeasurement {
            kind,
            objects,
            seconds: 1.0,
            per_second,
            p50,
            p99: 300_000.0 / per_second,
            cost: Cost {
                cpu: BTreeMap::from([("controller".to_owned(), 1.5)]),
                memory: BTreeMap::from([
                    ("controller".to_owned(), megabytes * 1_000_000),
                    ("etcd".to_owned(), 7),
                ]),
                writes: 6.0,
                requests: BTreeMap::new(),
                events: 10.0,
                watches: 7.0,
            },
        };
        ConfigurationResults {
            name: name.to_owned(),
            description: String::new(),
            implementation: (name != API_ONLY).then_some(Implementation::Cofferdam),
            controllers: if name == API_ONLY { Vec::new() } else { vec!["controller".to_owned()] },
            loads: vec![load(LoadKind::BindDynamic, 500, 900.0), load(LoadKind::BindSequentially, 10, 178.0)],
        }
    }

    fn fixture() -> ScaleResults {
        let recovery = |seconds| Recovery { seconds, cpu_seconds: 0.5 };
        let full = |volumes, name, per_second, megabytes| FullCluster {
            volumes,
            results: results(name, per_second, megabytes),
            lifecycle: (volumes == 20_000 && name != API_ONLY).then(|| Lifecycle {
                start_seconds: 1.0,
                rest_cpu_seconds: 2.4,
                relist: recovery(2.0),
                restart: recovery(0.015),
            }),
        };
        let far = |round_trip_ms, name, per_second| FarApi {
            round_trip_ms,
            results: results(name, per_second, 50),
        };
        ScaleResults {
            full: vec![
                full(0, "Upstream", 90.0, 143),
                full(0, "Cofferdam", 200.0, 48),
                full(20_000, "Upstream", 31.0, 1_205),
                full(20_000, "Cofferdam", 171.0, 80),
                full(20_000, API_ONLY, 250.0, 0),
            ],
            far: vec![
                far(0, "Upstream", 90.0),
                far(20, "Upstream", 12.4),
                far(20, "Upstream, default rates", 4.0),
                far(0, "Cofferdam", 200.0),
                far(20, "Cofferdam", 159.0),
                far(0, API_ONLY, 250.0),
            ],
        }
    }

    #[test]
    fn the_summary_has_five_lines_about_the_largest_cluster_and_a_distance() {
        let lines = summary(&fixture()).unwrap();
        assert_eq!(
            lines.lines().collect::<Vec<_>>(),
            [
                "- In a cluster with 20,000 volumes, 500 more claims become Bound at 171 per second; with \
                 the Go controllers, without their client rate limits, at 31 per second.",
                "- Their p99 from creation to Bound is 1.75 s; with the Go controllers 9.68 s.",
                "- The controllers then take 80 MB of memory, and 2.40 s of CPU in 30 s without work; the Go \
                 controllers 1,205 MB and 2.40 s.",
                "- With the API server 20 ms away from the controllers, claims become Bound at 159 per \
                 second; with the Go controllers at 12 per second, and at 4 per second with their default \
                 client rate limits.",
                "- At this distance, a claim that is created while no other one is pending takes 178.0 ms \
                 (p50); with the Go controllers 178.0 ms.",
            ]
        );
        let mut without = fixture();
        without.far.retain(|api| api.round_trip_ms == 0);
        assert_eq!(summary(&without), None);
    }

    #[test]
    fn the_charts_have_the_points_of_both_axes() {
        let charts = charts(&fixture());
        let points = |name: &str| {
            let (_, chart) = charts.iter().find(|(other, _)| *other == name).unwrap();
            chart.plots.iter().map(|plot| plot.points.clone()).collect::<Vec<_>>()
        };
        assert_eq!(
            points("throughput"),
            [
                [vec![(0.0, 200.0), (20_000.0, 171.0)], vec![(0.0, 90.0), (20_000.0, 31.0)], vec![]],
                [vec![(0.0, 200.0), (20.0, 159.0)], vec![(0.0, 90.0), (20.0, 12.4)], vec![(20.0, 4.0)]],
            ]
        );
        assert_eq!(points("memory")[0][1], [(0.0, 143.0), (20_000.0, 1_205.0)]);
        assert_eq!(points("p99")[1].len(), 2);
    }

    #[test]
    fn the_tables_have_a_row_for_each_measurement() {
        let all = fixture();
        let iterations = std::slice::from_ref(&all);
        let (full, far) = (full_section(&all, iterations), far_section(&all, iterations));
        assert!(
            full.contains(
                "| 20,000 | Cofferdam | 500 | 171 | 900.0 ms | 1.75 s | 178.0 ms | 6.00 | 1.50 | 80 |\n"
            ),
            "{full}"
        );
        assert!(
            full.contains("| 20,000 | API only | 500 | 250 | 900.0 ms | 1.20 s | 178.0 ms | 6.00 |  |  |\n"),
            "{full}"
        );
        assert!(
            full.contains("| Upstream | 1.00 s | 2.40 s | 2.00 s | 0.50 s | 15.0 ms | 0.50 s |\n"),
            "{full}"
        );
        assert!(full.contains("relative to upstream | ≥ 3 × | 5.52 × | 8.06 × | met |\n"), "{full}");
        assert!(far.contains("| one claim alone, p50 | ≤ 110 ms | 178.00 ms |  | missed |\n"), "{far}");
        assert!(far.contains("| 20 ms | Upstream, default rates | 500 | 4 |"), "{far}");
    }
}
