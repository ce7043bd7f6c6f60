//! The figures for people: what is aimed at first, then everything.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    thread,
};

use anyhow::Result;

use super::{Figures, Flow, Measured, Results, Whose, held::Held, load::USERS, pods::OfNode};

/// The loads and what they are called.
const FLOWS: [(Flow, &str); 10] = [
    (Flow::Bound, "Claims created → Bound"),
    (Flow::Gone, "Claims deleted → volumes gone"),
    (Flow::Static, "Claims created → Bound to volumes that were made before"),
    (Flow::Alone, "One claim alone → Bound, the next one when it is"),
    (Flow::Attached, "VolumeAttachments created → attached"),
    (Flow::Detached, "VolumeAttachments deleted → gone"),
    (Flow::Grown, "Claims grown → their capacity says so"),
    (Flow::Placed, "Pods placed on 20 nodes → their volumes in `volumesAttached`"),
    (Flow::Left, "Pods deleted → their VolumeAttachments gone"),
    (
        Flow::Pods,
        "Pods: created with a new claim → Running, by 5 users, each the next when pod and volume are gone",
    ),
];

/// The head of a table of what is aimed at.
const HEAD: &str = "| | wanted | measured | the API alone | |\n|---|---:|---:|---:|---|\n";

/// A figure and what it should be.
struct Aim {
    what: &'static str,
    wanted: f64,
    /// Whether more is better.
    least: bool,
    unit: &'static str,
    measured: f64,
    /// What the API alone would reach: nobody can do better here.
    possible: Option<f64>,
}

impl Aim {
    const fn least(what: &'static str, wanted: f64, unit: &'static str, measured: f64) -> Self {
        Self { what, wanted, least: true, unit, measured, possible: None }
    }

    const fn most(what: &'static str, wanted: f64, unit: &'static str, measured: f64) -> Self {
        Self { what, wanted, least: false, unit, measured, possible: None }
    }

    /// How much faster than Go's stack: the API alone is the most that there can be.
    fn faster(
        what: &'static str,
        wanted: f64,
        [ours, theirs]: [&Measured; 2],
        nobody: Option<&Measured>,
    ) -> Self {
        let ratio = |measured: &Measured| measured.per_second / theirs.per_second;
        Self { possible: nobody.map(ratio), ..Self::least(what, wanted, "×", ratio(ours)) }
    }

    fn met(&self) -> bool {
        if self.least { self.measured >= self.wanted } else { self.measured <= self.wanted }
    }
}

/// Everything in Markdown.
pub(super) fn markdown(all: &Results, claims: usize, rounds: usize) -> String {
    let mut text = head(all, claims);
    let of = match rounds {
        1 => "every figure is of one round".to_owned(),
        rounds => format!(
            "every figure is the median of {rounds} rounds, in each of which all stacks had their turn"
        ),
    };
    let _ = write!(text, "\n## What is aimed at\n\nRatios of this one run: {of}.\n");
    text.push_str(&aimed(&all.claims, aims));
    text.push_str(&aimed(&all.attachments, attaching));
    text.push_str(&aimed(&all.growth, growing));
    text.push_str(&aimed(&all.placed, placing));
    text.extend(all.node.as_ref().map(of_node));
    text.extend(all.held.as_ref().map(of_held));
    for (flow, title) in FLOWS {
        text.push_str(&section(&everything(all), flow, title));
    }
    text
}

/// All stacks, in the order in which they were measured.
fn everything(all: &Results) -> Vec<Figures> {
    let Results { claims, attachments, growth, placed, pods, node: _, held: _ } = all;
    [claims.as_slice(), attachments, growth, placed, pods].concat()
}

/// Ours, theirs and nobody's figures, if there are some of nobody's: what is to be reached by them.
type Aims = fn(&Figures, &Figures, Option<&Figures>) -> Option<Vec<Aim>>;

/// What some stacks were to reach, each of ours by theirs and by what the API alone reaches.
fn aimed(all: &[Figures], aims: Aims) -> String {
    let mut text = String::new();
    let theirs = all.iter().find(|figures| figures.whose == Some(Whose::Theirs));
    let nobody = all.iter().find(|figures| figures.whose.is_none());
    for ours in all.iter().filter(|figures| figures.whose == Some(Whose::Ours)) {
        let _ = write!(text, "\n### {}\n\n{HEAD}", ours.name);
        let aims = theirs.and_then(|theirs| aims(ours, theirs, nobody)).unwrap_or_default();
        text.push_str(&rows(&aims));
    }
    text
}

/// Bytes as megabytes.
fn megabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "fewer bytes than a float has digits")]
    let bytes = bytes as f64;
    bytes / 1_000_000.0
}

/// Of everything at rest.
fn of_held(held: &Held) -> String {
    let Held { objects, drivers, nodes, ours, theirs } = held;
    let aim = Aim::most("memory of all roles in one process", 60.0, "MB", megabytes(*ours));
    let each = list(theirs.iter().map(|(name, bytes)| format!("{name} {:.0}", megabytes(*bytes))));
    format!(
        "\n### All roles at rest\n\n{HEAD}{}\nWith {objects} volumes, claims, attachments and pods, {nodes} nodes and {drivers} drivers on \
         sockets. Theirs, {} processes, take {:.0} MB for the same: {each}.\n",
        rows(&[aim]),
        1 + 3 * drivers,
        megabytes(theirs.values().sum()),
    )
}

/// Of the roles of a node.
fn of_node(node: &OfNode) -> String {
    let memory = megabytes(node.memory);
    let aims = [
        Aim::most(
            "memory of `node`, `registrar` and `liveness` in one process after the pods",
            12.0,
            "MB",
            memory,
        ),
        Aim::most("`NodePublishVolume` of a directory, p50", 2.0, "ms", node.publish_p50),
    ];
    format!("\n### On a node\n\n{HEAD}{}", rows(&aims))
}

fn rows(aims: &[Aim]) -> String {
    let mut text = String::new();
    for aim in aims {
        let (sign, word) = (if aim.least { "≥" } else { "≤" }, if aim.met() { "met" } else { "**missed**" });
        let Aim { what, wanted, unit, measured, possible, .. } = aim;
        let possible = possible.map(|possible| format!("{possible:.2} {unit}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "| {what} | {sign} {wanted} {unit} | {measured:.2} {unit} | {possible} | {word} |"
        );
    }
    text
}

/// Prints it.
///
/// # Errors
/// When nobody takes it.
pub(super) fn print(text: &str) -> Result<()> {
    Ok(writeln!(io::stdout(), "{text}")?)
}

fn head(all: &Results, claims: usize) -> String {
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d");
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("an unknown processor", |(_, name)| name);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut text = format!(
        "# Side by side\n\nMade by `make bench-peers CLAIMS={claims}` on {date}; do not edit. {cores} cores of {processor}, Linux {}; \
         etcd, API, controllers and load share them, etcd writes to memory. {claims} claims, or half as many attachments, by {USERS} users at once. \
         Each stack has a fresh control plane of its own (priority and fairness off, as many requests as come). \
         All figures: [benchmarks.json](benchmarks.json).\n\n| stack | is |\n|---|---|\n",
        kernel.trim(),
    );
    for figures in everything(all) {
        let _ = writeln!(text, "| {} | {} |", figures.name, figures.about);
    }
    text
}

/// Of claims.
fn aims(ours: &Figures, theirs: &Figures, nobody: Option<&Figures>) -> Option<Vec<Aim>> {
    let nobody = nobody?;
    let (bound, gone, made) = (ours.of(Flow::Bound)?, ours.of(Flow::Gone)?, ours.of(Flow::Static)?);
    let peer = theirs.of(Flow::Bound)?;
    let ratio = |ours: &Measured, theirs: &Measured| ours.per_second / theirs.per_second;
    let memory = |figures: &Figures, measured: &Measured| {
        #[expect(clippy::cast_precision_loss, reason = "fewer bytes than a float has digits")]
        let bytes = measured.cost.memory.iter().map(|(name, bytes)| (name.clone(), *bytes as f64)).collect();
        sum(figures, &bytes)
    };
    Some(vec![
        Aim::faster("created → Bound, throughput by Go's", 3.0, [bound, peer], nobody.of(Flow::Bound)),
        Aim::least(
            "created → Bound, throughput by the API's alone",
            65.0,
            "%",
            100.0 * ratio(bound, nobody.of(Flow::Bound)?),
        ),
        Aim::most("created → Bound, p99 by Go's", 25.0, "%", 100.0 * bound.p99 / peer.p99),
        Aim::faster(
            "deleted → gone, throughput by Go's",
            3.0,
            [gone, theirs.of(Flow::Gone)?],
            nobody.of(Flow::Gone),
        ),
        Aim::faster(
            "made before → Bound, throughput by Go's",
            5.0,
            [made, theirs.of(Flow::Static)?],
            nobody.of(Flow::Static),
        ),
        // The user's own is no work of ours.
        Aim::most("writes of the API for a claim, without the user's own", 5.5, "", bound.cost.writes - 1.0),
        Aim::most(
            "CPU of controllers for a claim, by Go's",
            20.0,
            "%",
            100.0 * cpu(ours, bound) / cpu(theirs, peer),
        ),
        Aim::most(
            "memory of controllers after the claims, by Go's",
            12.5,
            "%",
            100.0 * memory(ours, bound) / memory(theirs, peer),
        ),
        Aim::most("one claim alone, p50", 20.0, "ms", ours.of(Flow::Alone)?.p50),
    ])
}

/// How fast one load of a stack is by the same of another.
fn faster(
    what: &'static str,
    wanted: f64,
    flow: Flow,
    [ours, theirs]: [&Figures; 2],
    nobody: Option<&Figures>,
) -> Option<Aim> {
    let nobody = nobody.and_then(|nobody| nobody.of(flow));
    Some(Aim::faster(what, wanted, [ours.of(flow)?, theirs.of(flow)?], nobody))
}

/// Of attachments.
fn attaching(ours: &Figures, theirs: &Figures, nobody: Option<&Figures>) -> Option<Vec<Aim>> {
    let both = [ours, theirs];
    Some(vec![
        faster("created → attached, throughput by Go's", 2.5, Flow::Attached, both, nobody)?,
        faster("deleted → gone, throughput by Go's", 2.5, Flow::Detached, both, nobody)?,
    ])
}

/// Of claims that grow.
fn growing(ours: &Figures, theirs: &Figures, nobody: Option<&Figures>) -> Option<Vec<Aim>> {
    Some(vec![faster(
        "larger request → capacity, throughput by Go's",
        2.5,
        Flow::Grown,
        [ours, theirs],
        nobody,
    )?])
}

/// Of pods that are placed.
fn placing(ours: &Figures, theirs: &Figures, nobody: Option<&Figures>) -> Option<Vec<Aim>> {
    let share = |flow| Some(100.0 * cpu(ours, ours.of(flow)?) / cpu(theirs, theirs.of(flow)?));
    let what = "pods placed → `volumesAttached`, throughput by kube-controller-manager's";
    Some(vec![
        faster(what, 3.0, Flow::Placed, [ours, theirs], nobody)?,
        Aim::most("CPU of the controller for a pod placed, by theirs", 33.3, "%", share(Flow::Placed)?),
    ])
}

/// CPU of a stack's controllers for one object.
fn cpu(figures: &Figures, measured: &Measured) -> f64 {
    sum(figures, &measured.cost.cpu)
}

/// What the controllers of a stack take together.
fn sum(figures: &Figures, by_process: &BTreeMap<String, f64>) -> f64 {
    figures.controllers.iter().filter_map(|name| by_process.get(name)).sum()
}

fn section(all: &[Figures], flow: Flow, title: &str) -> String {
    let mut text = format!(
        "\n## {title}\n\n| stack | per second | p50 | p99 | API writes | watch events | watches | CPU each, ms | memory after, MB |\n\
         |---|---:|---:|---:|---:|---:|---:|---|---|\n"
    );
    let rows = || all.iter().filter_map(|figures| Some((figures, figures.of(flow)?)));
    if rows().next().is_none() {
        return String::new();
    }
    for (figures, measured) in rows() {
        let cost = &measured.cost;
        let cpu = list(cost.cpu.iter().map(|(name, each)| format!("{name} {each:.2}")));
        let memory = list(cost.memory.iter().map(|(name, bytes)| format!("{name} {}", bytes / 1_000_000)));
        let _ = writeln!(
            text,
            "| {} | {:.0} | {} | {} | {:.2} | {:.1} | {:.0} | {cpu} | {memory} |",
            figures.name,
            measured.per_second,
            time(measured.p50),
            time(measured.p99),
            cost.writes,
            cost.events,
            cost.watches,
        );
    }
    text.push_str("\nRequests for each, the user's own among them:\n\n");
    for (figures, measured) in rows() {
        let requests = measured.cost.requests.iter().map(|(name, each)| format!("{name} {each:.2}"));
        let _ = writeln!(text, "- {}: {}", figures.name, list(requests));
    }
    text
}

fn list(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// Milliseconds for people.
fn time(milliseconds: f64) -> String {
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
    fn an_aim_is_met_at_its_bound() {
        assert!(Aim::least("", 3.0, "×", 3.0).met());
        assert!(!Aim::least("", 3.0, "×", 2.99).met());
        assert!(Aim::most("", 20.0, "ms", 20.0).met());
        assert!(!Aim::most("", 20.0, "ms", 20.1).met());
        assert_eq!(time(999.94), "999.9 ms");
        assert_eq!(time(17_200.0), "17.20 s");
    }
}
