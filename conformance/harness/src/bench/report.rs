//! The Markdown report: the loads `full` and `far` first, then the targets of the other loads, then all
//! measurements.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{
    chain_report,
    format::{format_milliseconds, join},
    iterations::iterations_text,
    load::CONCURRENT_USERS,
    results::{
        BenchmarkEnvironment, BenchmarkReport, BenchmarkResults, ConfigurationResults, LoadKind,
        LoadMeasurement,
    },
    scale_report,
    targets::{
        attach_targets, claim_targets, existing_snapshots_section, expansion_targets, memory_section,
        node_section, scheduling_targets, snapshot_targets, targets_section,
    },
    upper_bound::BIND_WRITES,
};

/// The files of the results: benchmarks.json; and benchmarks.md, its charts and a part of README.md, which
/// are written from it.
pub(super) struct BenchmarkFiles {
    directory: PathBuf,
}

/// Name of the directory of the charts.
const CHARTS: &str = "benchmarks";
/// Lines of README.md around the part that is written.
const README_MARKERS: [&str; 2] = ["<!-- benchmarks -->\n", "<!-- end of benchmarks -->\n"];

impl BenchmarkFiles {
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    fn json(&self) -> PathBuf {
        self.directory.join("benchmarks.json")
    }

    fn markdown(&self) -> PathBuf {
        self.directory.join("benchmarks.md")
    }

    /// Reads benchmarks.json. `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn read(&self) -> Result<Option<BenchmarkReport>> {
        let json = self.json();
        if !json.exists() {
            return Ok(None);
        }
        let context = || json.display().to_string();
        let text = fs::read_to_string(&json).with_context(context)?;
        serde_json::from_str(&text).with_context(context)
    }

    /// Writes all files.
    ///
    /// # Errors
    /// If one cannot be written.
    pub(super) fn write(&self, report: &BenchmarkReport) -> Result<()> {
        // A JSON value sorts the fields by name.
        let json = serde_json::to_string_pretty(&serde_json::to_value(report)?)? + "\n";
        fs::write(self.json(), json).with_context(|| self.json().display().to_string())?;
        self.write_markdown()
    }

    /// Writes the other files from benchmarks.json.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub(super) fn write_markdown(&self) -> Result<()> {
        for (path, text) in self.render()? {
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory)?;
            }
            fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Prints benchmarks.md.
    ///
    /// # Errors
    /// If it cannot be read, or stdout is closed.
    pub(super) fn print_markdown(&self) -> Result<()> {
        Ok(writeln!(io::stdout(), "{}", fs::read_to_string(self.markdown())?)?)
    }

    /// The files that are written from benchmarks.json, with their contents.
    fn render(&self) -> Result<Vec<(PathBuf, String)>> {
        let report = self.read()?.with_context(|| format!("{} is missing", self.json().display()))?;
        let mut files = vec![(self.markdown(), markdown(&report))];
        let Some(scale) = &report.scale else { return Ok(files) };
        for (name, chart) in scale_report::charts(&scale.medians) {
            files.push((self.directory.join(CHARTS).join(format!("{name}.svg")), chart.to_svg()));
        }
        let readme = self.directory.join("../README.md");
        if let Some(lines) = scale_report::summary(&scale.medians).filter(|_| readme.exists()) {
            let text = fs::read_to_string(&readme)?;
            let replaced = replace_between(&text, README_MARKERS, &format!("\n{lines}\n"));
            files.push((readme.clone(), replaced.with_context(|| readme.display().to_string())?));
        }
        Ok(files)
    }
}

/// Replaces the text between the only two markers.
fn replace_between(text: &str, [start, end]: [&str; 2], new: &str) -> Result<String> {
    let parts = text.split_once(start).and_then(|(before, rest)| Some((before, rest.split_once(end)?.1)));
    let (before, after) = parts.with_context(|| format!("expected the lines {start:?} and {end:?}"))?;
    Ok(format!("{before}{start}{new}{end}{after}"))
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

/// The whole report as Markdown.
fn markdown(report: &BenchmarkReport) -> String {
    let all = &report.medians;
    let mut text = "# Cofferdam and upstream side by side\n".to_owned();
    text.extend(report.scale.as_ref().map(|scale| scale_report::section(scale, CHARTS)));
    text.extend(report.chains.as_ref().map(chain_report::section));
    if report.iterations.is_empty() {
        return text;
    }
    text.push_str(&header(report));
    let of = iterations_text(report.iterations.len());
    let _ = write!(
        text,
        "\n## Targets\n\nRatios within one run. {of}.\nThe API server fills the processors of this machine: \
         multiples of the upstream throughput have no target, because API only limits them.\n"
    );
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

fn header(report: &BenchmarkReport) -> String {
    let BenchmarkReport { environment, medians, .. } = report;
    let BenchmarkEnvironment { date, cores, processor, kernel, claims } = environment;
    let mut text = format!(
        "\n## An empty cluster\n\n\
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
    if measured.iter().any(|(results, _)| results.implementation.is_none()) {
        text.extend(api_only_writes(kind).map(|writes| format!("\nAPI only writes {writes}.\n")));
    }
    text.push_str(&requests_table(&measured));
    text
}

/// The writes that clients make for each object if there are no controllers. `None` for loads that are not
/// measured so.
const fn api_only_writes(kind: LoadKind) -> Option<&'static str> {
    Some(match kind {
        LoadKind::BindSequentially | LoadKind::BindDynamic => BIND_WRITES,
        LoadKind::BindStatic => {
            "the claim, the volume's reference to the claim, the volume's status, the claim, and the claim's \
             status"
        }
        LoadKind::DeleteClaims => {
            "the deletion of the claim, its finalizers, the volume's status, the deletion of the volume, and \
             its finalizers"
        }
        LoadKind::Attach => {
            "the VolumeAttachment, the volume's finalizers, the VolumeAttachment's annotations and \
             finalizers, and its status"
        }
        LoadKind::Detach => "the deletion of the VolumeAttachment, and its finalizers",
        LoadKind::Expand => {
            "the claim's request, its status, the volume's capacity, and the claim's status again"
        }
        LoadKind::TakeSnapshotBurst | LoadKind::TakeSnapshots => {
            "the VolumeSnapshot, its finalizers twice and its status twice, the claim's finalizers twice, \
             the content, its annotations twice, and its status"
        }
        LoadKind::DeleteSnapshots => {
            "the deletions of the VolumeSnapshot and of the content, the finalizers of the former twice and \
             of the latter once, and the content's annotations and status"
        }
        LoadKind::SchedulePods => {
            "the pod, the VolumeAttachment, the volume's finalizers, the VolumeAttachment's annotations and \
             finalizers, and its status"
        }
        LoadKind::DeletePods => {
            "the deletion of the pod, the deletion of the VolumeAttachment, and its finalizers"
        }
        LoadKind::RunPods => return None,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_md_is_the_report_of_benchmarks_json() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        for (path, text) in BenchmarkFiles::in_directory(&docs).render().unwrap() {
            let written = fs::read_to_string(&path).unwrap_or_default();
            assert!(written == text, "{}: run `make bench-report`", path.display());
        }
    }

    #[test]
    fn times_are_seconds_from_one_second_on() {
        assert_eq!(format_milliseconds(999.94), "999.9 ms");
        assert_eq!(format_milliseconds(17_200.0), "17.20 s");
    }

    #[test]
    fn only_the_text_between_the_markers_is_replaced() {
        let replaced = replace_between("a\n<b>\nold\n<e>\nz\n", ["<b>\n", "<e>\n"], "new\n");
        assert_eq!(replaced.unwrap(), "a\n<b>\nnew\n<e>\nz\n");
        let error = replace_between("a\n<b>\n", ["<b>\n", "<e>\n"], "").unwrap_err();
        assert_eq!(error.to_string(), "expected the lines \"<b>\\n\" and \"<e>\\n\"");
    }
}
