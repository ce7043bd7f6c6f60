//! Targets of the loads on a machine whose processors the API server fills, and their tables.
//!
//! A share of the throughput that the API server reaches without controllers, and the cost of an object, have
//! targets. A multiple of the upstream throughput has none: the API server limits it.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    format::join,
    iterations::median,
    results::{
        ConfigurationResults, ExistingSnapshots, LoadKind, LoadMeasurement, NodeRoleUsage, ResidentMemory,
    },
};
use crate::implementation::Implementation;

/// Header of a table of targets.
pub(super) const TARGET_TABLE_HEADER: &str =
    "| metric | target | measured | API only | result |\n|---|---:|---:|---:|---|\n";

/// Target for the share of the throughput that the API server reaches without controllers, in percent.
const API_SHARE: f64 = 65.0;

/// A measured value and its target.
#[derive(Clone, Debug)]
pub(super) struct PerformanceTarget {
    metric: &'static str,
    /// `None` for a figure without a target.
    target: Option<f64>,
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
    pub(super) const fn at_least(
        metric: &'static str,
        target: f64,
        unit: &'static str,
        measurement: f64,
    ) -> Self {
        Self { target: Some(target), is_minimum: true, ..Self::figure(metric, unit, measurement) }
    }

    pub(super) const fn at_most(
        metric: &'static str,
        target: f64,
        unit: &'static str,
        measurement: f64,
    ) -> Self {
        Self { target: Some(target), ..Self::figure(metric, unit, measurement) }
    }

    /// A measured value without a target.
    pub(super) const fn figure(metric: &'static str, unit: &'static str, measurement: f64) -> Self {
        Self { metric, target: None, is_minimum: false, unit, measured: measurement, upper_bound: None }
    }

    /// Cofferdam's throughput divided by upstream's. `api_only` is the load on the API server without
    /// controllers, whose throughput is the upper bound for controllers; `None` if not measured.
    pub(super) fn throughput_ratio(
        metric: &'static str,
        [cofferdam, upstream]: [&LoadMeasurement; 2],
        api_only: Option<&LoadMeasurement>,
    ) -> Self {
        let ratio = |measurement: &LoadMeasurement| measurement.per_second / upstream.per_second;
        Self { upper_bound: api_only.map(ratio), ..Self::figure(metric, "×", ratio(cofferdam)) }
    }

    /// As [`throughput_ratio`](Self::throughput_ratio), with a minimum.
    pub(super) fn ratio_at_least(
        metric: &'static str,
        target: f64,
        measured: [&LoadMeasurement; 2],
        api_only: Option<&LoadMeasurement>,
    ) -> Self {
        let ratio = Self::throughput_ratio(metric, measured, api_only);
        Self { target: Some(target), is_minimum: true, ..ratio }
    }

    /// At least this share of the throughput that the API server reaches without controllers.
    pub(super) fn api_share(
        metric: &'static str,
        target: f64,
        cofferdam: &LoadMeasurement,
        api_only: &LoadMeasurement,
    ) -> Self {
        let share = 100.0 * cofferdam.per_second / api_only.per_second;
        Self::at_least(metric, target, "%", share)
    }

    /// The medians of values that were measured several times. Each slice has the same targets.
    pub(super) fn medians(measured: &[Vec<Self>]) -> Vec<Self> {
        let Some(first) = measured.first() else { return Vec::new() };
        let median_of = |index: usize, value: fn(&Self) -> Option<f64>| {
            let values: Option<Vec<f64>> =
                measured.iter().map(|targets| targets.get(index).and_then(value)).collect();
            values.map(median)
        };
        let targets = first.iter().enumerate().map(|(index, target)| Self {
            measured: median_of(index, |target| Some(target.measured)).unwrap_or(target.measured),
            upper_bound: median_of(index, |target| target.upper_bound),
            ..target.clone()
        });
        targets.collect()
    }

    /// `None` without a target.
    fn is_met(&self) -> Option<bool> {
        let target = self.target?;
        Some(if self.is_minimum { self.measured >= target } else { self.measured <= target })
    }
}

/// Converts bytes to megabytes.
fn megabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "fewer bytes than a float has digits")]
    let bytes = bytes as f64;
    megabytes_of(bytes)
}

/// Converts a sum or median of bytes to megabytes.
pub(super) fn megabytes_of(bytes: f64) -> f64 {
    bytes / 1_000_000.0
}

/// The section of idle memory: the target for Cofferdam, and the memory of the upstream processes.
pub(super) fn memory_section(memory: &ResidentMemory) -> String {
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
pub(super) fn existing_snapshots_section(found: &ExistingSnapshots) -> String {
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
pub(super) fn node_section(node: &NodeRoleUsage) -> String {
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

pub(super) fn target_rows(targets: &[PerformanceTarget]) -> String {
    let mut text = String::new();
    for target in targets {
        let PerformanceTarget { metric, target: wanted, is_minimum, unit, measured, upper_bound } = target;
        let sign = if *is_minimum { "≥" } else { "≤" };
        let wanted = wanted.map(|wanted| format!("{sign} {wanted} {unit}")).unwrap_or_default();
        let possible = upper_bound.map(|possible| format!("{possible:.2} {unit}")).unwrap_or_default();
        let verdict = target.is_met().map_or("", |is_met| if is_met { "met" } else { "missed" });
        let _ = writeln!(text, "| {metric} | {wanted} | {measured:.2} {unit} | {possible} | {verdict} |");
    }
    text
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
pub(super) fn targets_section(all: &[ConfigurationResults], targets: TargetsFn) -> String {
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

/// Targets of the claim load. `None` if a measurement that a target needs is missing.
pub(super) fn claim_targets(
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
    let (api_bound, api_deleted, api_static) = (
        api_only.load(LoadKind::BindDynamic)?,
        api_only.load(LoadKind::DeleteClaims)?,
        api_only.load(LoadKind::BindStatic)?,
    );
    Some(vec![
        PerformanceTarget::api_share(
            "created → Bound, throughput relative to API only",
            API_SHARE,
            bound,
            api_bound,
        ),
        PerformanceTarget::api_share(
            "deleted → removed, throughput relative to API only",
            API_SHARE,
            deleted,
            api_deleted,
        ),
        PerformanceTarget::api_share(
            "static volume → Bound, throughput relative to API only",
            API_SHARE,
            bind_static,
            api_static,
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
            "sequential claims, p50",
            20.0,
            "ms",
            cofferdam.load(LoadKind::BindSequentially)?.p50,
        ),
        PerformanceTarget::throughput_ratio(
            "created → Bound, throughput relative to upstream",
            [bound, peer],
            Some(api_bound),
        ),
        PerformanceTarget::figure(
            "created → Bound, p99 relative to upstream",
            "%",
            100.0 * bound.p99 / peer.p99,
        ),
        PerformanceTarget::throughput_ratio(
            "deleted → removed, throughput relative to upstream",
            [deleted, upstream.load(LoadKind::DeleteClaims)?],
            Some(api_deleted),
        ),
        PerformanceTarget::throughput_ratio(
            "static volume → Bound, throughput relative to upstream",
            [bind_static, upstream.load(LoadKind::BindStatic)?],
            Some(api_static),
        ),
        PerformanceTarget::figure(
            "controller memory after the load, relative to upstream",
            "%",
            100.0 * controller_memory(cofferdam, bound) / controller_memory(upstream, peer),
        ),
    ])
}

/// The throughput of a load of this kind: relative to the API server without controllers, with a target, if
/// that was measured, and relative to upstream. `None` if Cofferdam or upstream has no measurement of it.
fn throughput_targets(
    [of_api, of_upstream]: [&'static str; 2],
    kind: LoadKind,
    [cofferdam, upstream]: [&ConfigurationResults; 2],
    api_only: Option<&ConfigurationResults>,
) -> Option<Vec<PerformanceTarget>> {
    let (cofferdam, upstream) = (cofferdam.load(kind)?, upstream.load(kind)?);
    let api_only = api_only.and_then(|api_only| api_only.load(kind));
    let share = api_only.map(|api_only| PerformanceTarget::api_share(of_api, API_SHARE, cofferdam, api_only));
    let ratio = PerformanceTarget::throughput_ratio(of_upstream, [cofferdam, upstream], api_only);
    Some(share.into_iter().chain([ratio]).collect())
}

/// Targets of the loads that attach and detach. `None` if a measurement that a target needs is missing.
pub(super) fn attach_targets(
    cofferdam: &ConfigurationResults,
    upstream: &ConfigurationResults,
    api_only: Option<&ConfigurationResults>,
) -> Option<Vec<PerformanceTarget>> {
    let both = [cofferdam, upstream];
    let attach = [
        "created → attached, throughput relative to API only",
        "created → attached, throughput relative to upstream",
    ];
    let detach = [
        "deleted → removed, throughput relative to API only",
        "deleted → removed, throughput relative to upstream",
    ];
    let mut targets = throughput_targets(attach, LoadKind::Attach, both, api_only)?;
    targets.extend(throughput_targets(detach, LoadKind::Detach, both, api_only)?);
    Some(targets)
}

/// Targets of the load that expands claims. `None` if a measurement that a target needs is missing.
pub(super) fn expansion_targets(
    cofferdam: &ConfigurationResults,
    upstream: &ConfigurationResults,
    api_only: Option<&ConfigurationResults>,
) -> Option<Vec<PerformanceTarget>> {
    let metrics = [
        "larger request → capacity, throughput relative to API only",
        "larger request → capacity, throughput relative to upstream",
    ];
    throughput_targets(metrics, LoadKind::Expand, [cofferdam, upstream], api_only)
}

/// Targets of the snapshot loads. `upstream` is the first configuration, with default rates, for which only
/// the burst is measured. `None` if a measurement that a target needs is missing.
pub(super) fn snapshot_targets(
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
        PerformanceTarget::api_share(
            "created → ready, throughput relative to API only",
            70.0,
            taken,
            possible,
        ),
        PerformanceTarget::throughput_ratio(
            "created → ready, throughput relative to upstream's burst at default rates",
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
pub(super) fn scheduling_targets(
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
    let metrics = [
        "pod scheduled → `volumesAttached`, throughput relative to API only",
        "pod scheduled → `volumesAttached`, throughput relative to upstream",
    ];
    let mut targets = throughput_targets(metrics, LoadKind::SchedulePods, [cofferdam, upstream], api_only)?;
    targets.push(PerformanceTarget::at_most(
        "controller CPU per pod, relative to upstream",
        33.3,
        "%",
        share(LoadKind::SchedulePods)?,
    ));
    Some(targets)
}

/// CPU milliseconds per object of the load, summed over the controllers of a configuration.
pub(super) fn controller_cpu(results: &ConfigurationResults, measurement: &LoadMeasurement) -> f64 {
    controller_sum(results, &measurement.cost.cpu)
}

/// Sum of the values in `by_process` of the controllers of a configuration.
fn controller_sum(results: &ConfigurationResults, by_process: &BTreeMap<String, f64>) -> f64 {
    results.controllers.iter().filter_map(|name| by_process.get(name)).sum()
}

/// Bytes of the controllers of a configuration after the load.
pub(super) fn controller_memory(results: &ConfigurationResults, measurement: &LoadMeasurement) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "fewer bytes than a float has digits")]
    let bytes = measurement.cost.memory.iter().map(|(name, bytes)| (name.clone(), *bytes as f64)).collect();
    controller_sum(results, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_at_its_limit_and_a_figure_has_none() {
        assert_eq!(PerformanceTarget::at_least("", 3.0, "×", 3.0).is_met(), Some(true));
        assert_eq!(PerformanceTarget::at_least("", 3.0, "×", 2.99).is_met(), Some(false));
        assert_eq!(PerformanceTarget::at_most("", 20.0, "ms", 20.0).is_met(), Some(true));
        assert_eq!(PerformanceTarget::at_most("", 20.0, "ms", 20.1).is_met(), Some(false));
        let figure = PerformanceTarget::figure("memory", "MB", 80.0);
        assert_eq!(figure.is_met(), None);
        assert_eq!(target_rows(&[figure]), "| memory |  | 80.00 MB |  |  |\n");
    }
}
