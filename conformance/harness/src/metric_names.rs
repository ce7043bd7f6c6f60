//! The metrics of upstream programs, compared with those of Cofferdam's roles that replace them.
//!
//! Dashboards and alerts select metrics by name and labels. Every metric that an upstream program had when
//! it ended must be one of Cofferdam's, with at least the same labels, or a row of the table of missing
//! metrics in `docs/metrics.md`. Each row must occur upstream. A metric that nothing has counted yet is in
//! no scrape of Cofferdam. [`WITHOUT_SAMPLES`] lists these metrics, which have the labels of the page's
//! tables. Every other metric of these tables must have samples in a scrape.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    process::ManagedProcess,
    run::{self, SuiteRun},
};

/// The versions of Kubernetes whose metrics the page lists.
const DESCRIBED_KUBERNETES: &str = "v1.36.";
/// The page with the table of missing metrics.
const PAGE: &str = include_str!("../../../docs/metrics.md");
/// Heading of the table's section.
const HEADING: &str = "## Metrics that Cofferdam lacks";

/// Name of Cofferdam's processes in the suites that run the roles under their own names.
pub(crate) const COFFERDAM: &str = "cofferdam";
/// The suites that [`compare`] metrics.
const SUITES: [&str; 3] = ["interop", "replacement", "snapshots"];
/// File of a suite with the metrics of all compared processes of Cofferdam. [`compare`] writes it when they
/// have ended, so the file is complete. Suites of different lanes run at the same time.
const COMPARED_FILE: &str = "cofferdam.compared-metrics";
/// Metrics of the page's tables of which no compared process of [`SUITES`] has samples.
const WITHOUT_SAMPLES: [&str; 9] = [
    // The driver rejects no call, and few time out.
    "controller_persistentvolumeclaim_provision_failed_total",
    "controller_persistentvolume_delete_failed_total",
    // Nodes stay Ready, and unmount their volumes.
    "attach_detach_controller_attachdetach_controller_forced_detaches",
    // No driver has a pool.
    "cofferdam_backend_pool_operations_total",
    "cofferdam_backend_pool_items",
    "cofferdam_backend_pool_bytes",
    // Processes with other names have the roles `csi-server`, `node` and `registrar`.
    "cofferdam_csi_server_operations_seconds",
    "cofferdam_csi_server_operations_in_flight",
    // Every object can be decoded.
    "cofferdam_undecodable_objects_total",
];

/// Label names of each metric, without the suffixes of a histogram's samples. `None`: a metric without
/// samples.
type Metrics = BTreeMap<String, Option<BTreeSet<String>>>;

/// An upstream program, and the metrics that concern the role that replaces it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpstreamProgram {
    /// Name of the program, and of its process in the harness.
    pub(crate) name: &'static str,
    /// Name of the process of Cofferdam that replaces it.
    pub(crate) replacement: &'static str,
    /// Prefixes of the metrics. Others are of parts that Cofferdam does not replace, or of the Go runtime.
    pub(crate) prefixes: &'static [&'static str],
}

/// Prefixes of a sidecar's metrics.
pub(crate) const SIDECAR_PREFIXES: &[&str] =
    &["controller_", "csi_", "leader_election_", "process_", "rest_client_", "workqueue_"];

/// Compares the saved metrics of the upstream programs with those of the processes that replace them, on the
/// version of Kubernetes that the page describes. Metrics of kube-controller-manager differ between versions.
/// All processes must have ended.
///
/// # Errors
/// If a metric or a label is missing in Cofferdam and in the table, or the table has one that no upstream
/// program has. If a metric of [`WITHOUT_SAMPLES`] has samples. If all [`SUITES`] have run, and another
/// metric of the page has none. Also if a program has no saved metrics.
pub(crate) fn compare(run: &SuiteRun, programs: &[UpstreamProgram]) -> Result<()> {
    let kubernetes = run.peers().kubernetes_version()?;
    if !kubernetes.starts_with(DESCRIBED_KUBERNETES) {
        return run.add_note(&format!("metrics are not compared on Kubernetes {kubernetes}"));
    }
    let mut replacements = BTreeMap::new();
    for program in programs {
        replacements.insert(program.replacement, saved_metrics(run, program.replacement)?);
    }
    let pages: String = replacements.values().map(String::as_str).collect();
    fs::write(run.directory().join(COMPARED_FILE), pages)?;
    let (documented, missing) = split_page(PAGE)?;
    let documented = documented_metrics(documented);
    let scrapes = scrapes_of_suites(run)?;
    let is_complete = scrapes.len() == SUITES.len();
    let mut problems = sample_problems(&documented, &WITHOUT_SAMPLES, &scrapes, is_complete);
    let missing_rows = missing_rows(missing)?;
    let mut compared = 0;
    for program in programs {
        let mut cofferdam = replacements.get(program.replacement).map(|page| parse(page)).unwrap_or_default();
        for (name, labels) in &documented {
            if WITHOUT_SAMPLES.contains(&name.as_str()) {
                cofferdam.entry(name.clone()).or_default().get_or_insert_with(|| labels.clone());
            }
        }
        let upstream = parse(&saved_metrics(run, program.name)?);
        let is_relevant = |name: &str| program.prefixes.iter().any(|prefix| name.starts_with(prefix));
        let rows = missing_rows.iter().filter(|(name, metric)| name == program.name && is_relevant(metric));
        let rows: BTreeSet<&str> = rows.map(|(_, metric)| metric.as_str()).collect();
        let relevant: Metrics = upstream.into_iter().filter(|(name, _)| is_relevant(name)).collect();
        compared += relevant.len();
        problems.extend(differences(program.name, &relevant, &cofferdam, &rows));
    }
    ensure!(problems.is_empty(), "metrics differ from docs/metrics.md:\n  {}", problems.join("\n  "));
    run.add_note(&format!(
        "{compared} metrics of upstream programs are Cofferdam's, or documented as missing"
    ))
}

/// Cofferdam's metrics of this suite, and of the other [`SUITES`] that this harness has run before. Excludes
/// suites that failed, in which metrics may lack samples.
fn scrapes_of_suites(run: &SuiteRun) -> Result<Vec<Metrics>> {
    let mut scrapes = Vec::new();
    for suite in SUITES {
        let directory = run.directory().with_file_name(suite);
        let path = directory.join(COMPARED_FILE);
        if path.exists() && !run::failure_file(&directory).exists() {
            scrapes.push(parse(&fs::read_to_string(&path)?));
        }
    }
    Ok(scrapes)
}

/// The listed metrics that a scrape has samples of. If the scrapes are complete, also the documented metrics
/// that are not listed, and that no scrape has samples of.
fn sample_problems(
    documented: &[(String, BTreeSet<String>)],
    listed: &[&str],
    scrapes: &[Metrics],
    is_complete: bool,
) -> Vec<String> {
    let has_samples = |name: &str| scrapes.iter().any(|scrape| scrape.get(name).is_some_and(Option::is_some));
    // A call that a busy machine lets time out is no reason to change the list.
    let stale = listed.iter().filter(|name| !name.ends_with("_failed_total") && has_samples(name));
    let stale = stale.map(|name| format!("{name} is in WITHOUT_SAMPLES, but Cofferdam has samples of it"));
    let names = documented.iter().map(|(name, _)| name.as_str()).filter(|_| is_complete);
    let unsampled = names.filter(|name| !listed.contains(name) && !has_samples(name));
    let unsampled = unsampled
        .map(|name| format!("{name} is documented, but Cofferdam has no samples of it in {SUITES:?}"));
    stale.chain(unsampled).collect()
}

/// The differences of one program. A row is a metric's name, or `name{label}` for a missing label.
fn differences(program: &str, upstream: &Metrics, cofferdam: &Metrics, rows: &BTreeSet<&str>) -> Vec<String> {
    let mut found: BTreeSet<String> = BTreeSet::new();
    for (name, labels) in upstream {
        let Some(labels) = labels else { continue };
        match cofferdam.get(name) {
            None => {
                found.insert(name.clone());
            }
            Some(None) => {}
            Some(Some(ours)) => {
                found.extend(labels.difference(ours).map(|label| format!("{name}{{{label}}}")));
            }
        }
    }
    let unlisted = found.iter().filter(|metric| !rows.contains(metric.as_str()));
    let unlisted = unlisted.map(|metric| format!("{program}: {metric} is neither Cofferdam's nor listed"));
    let stale = rows.iter().filter(|row| !found.contains(**row));
    let stale = stale.map(|row| format!("{program}: {row} is listed, but is not missing"));
    unlisted.chain(stale).collect()
}

/// The page before the table of missing metrics, and from there.
fn split_page(page: &str) -> Result<(&str, &str)> {
    page.split_once(HEADING).with_context(|| format!("docs/metrics.md: no {HEADING}"))
}

/// The metrics of the page's tables and their labels.
fn documented_metrics(page: &str) -> Vec<(String, BTreeSet<String>)> {
    let mut metrics = Vec::new();
    let mut is_table_of_metrics = false;
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, names, labels, ..] = cells.as_slice() else { continue };
        match *names {
            "metric" => is_table_of_metrics = *labels == "labels",
            names if names.starts_with('`') => {
                let labels = || quoted(labels).map(str::to_owned).collect();
                let names = quoted(names).filter(|_| is_table_of_metrics);
                metrics.extend(names.map(|name| (name.to_owned(), labels())));
            }
            rule if rule.starts_with("---") => {}
            _ => is_table_of_metrics = false,
        }
    }
    metrics
}

/// The texts in backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The rows of the table: program and metric. A row may name several metrics.
fn missing_rows(section: &str) -> Result<Vec<(String, String)>> {
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut rows = Vec::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, programs, metrics, ..] = cells.as_slice() else { continue };
        for program in programs.split(", ") {
            let metrics = metrics.split(", ").map(|metric| metric.trim_matches('`').to_owned());
            rows.extend(metrics.map(|metric| (program.trim_matches('`').to_owned(), metric)));
        }
    }
    ensure!(!rows.is_empty(), "docs/metrics.md: {HEADING}: no rows");
    Ok(rows)
}

/// The pages that a process has saved, one after the other.
fn saved_metrics(run: &SuiteRun, process: &str) -> Result<String> {
    let path = ManagedProcess::metrics_file(&run.log(process));
    fs::read_to_string(&path).with_context(|| format!("no metrics in {}", path.display()))
}

/// Parses pages in the text format of Prometheus or of OpenMetrics.
fn parse(text: &str) -> Metrics {
    let mut metrics = Metrics::new();
    let mut histograms = BTreeSet::new();
    let is_open_metrics = text.contains("\n# EOF");
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|family| family.split_once(' ')) {
            if matches!(kind, "histogram" | "summary") {
                histograms.insert(name.to_owned());
            }
            // OpenMetrics declares counters without the suffix of their samples.
            let is_open_metrics_counter = kind == "counter" && is_open_metrics && !name.ends_with("_total");
            let name = if is_open_metrics_counter { format!("{name}_total") } else { name.to_owned() };
            metrics.entry(name).or_default();
            continue;
        }
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        let end = line.find(['{', ' ']).unwrap_or(line.len());
        let (sample, rest) = line.split_at(end);
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|suffix| sample.strip_suffix(suffix))
            .find(|family| histograms.contains(*family))
            .unwrap_or(sample);
        let labels = metrics.entry(family.to_owned()).or_default().get_or_insert_default();
        labels.extend(label_names(rest).filter(|label| label != "le" && label != "quantile"));
    }
    metrics
}

/// The label names of a sample after its name: `{a="x",b="y"} 1`.
fn label_names(text: &str) -> impl Iterator<Item = String> {
    let mut rest = text.strip_prefix('{').unwrap_or_default();
    std::iter::from_fn(move || {
        let (name, value) = rest.split_once("=\"")?;
        // The value ends at a quote without a backslash.
        let mut escaped = false;
        let end = value.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })?;
        rest = value.get(end + 1..).unwrap_or_default().trim_start_matches(',');
        Some(name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_both_formats_are_parsed() {
        let text = "# TYPE a counter\na_total{x=\"1\",y=\"a\\\"},z=\\\\\"} 1\n# TYPE b histogram\n\
                    b_bucket{le=\"1\",x=\"1\"} 1\nb_sum{x=\"1\"} 1\nb_count{x=\"1\"} 1\n\
                    # TYPE c gauge\nc_count 1\n# TYPE d counter\n# EOF\n";
        let parsed: Vec<String> =
            parse(text).into_iter().map(|(name, labels)| format!("{name} {labels:?}")).collect();
        assert_eq!(
            parsed,
            ["a_total Some({\"x\", \"y\"})", "b Some({\"x\"})", "c None", "c_count Some({})", "d_total None"]
        );
        let prometheus: Vec<String> =
            parse("# TYPE a_total counter\n# TYPE b counter\n").into_keys().collect();
        assert_eq!(prometheus, ["a_total", "b"]);
    }

    #[test]
    fn missing_metrics_labels_and_stale_rows_are_differences() {
        let metrics = |rows: &[(&str, &[&str])]| -> Metrics {
            let labels = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
            rows.iter().map(|(name, names)| ((*name).to_owned(), labels(names))).collect()
        };
        let upstream = metrics(&[("a", &["x", "y"]), ("b", &[]), ("c", &[])]);
        let cofferdam = metrics(&[("a", &["x", "z"]), ("d", &[])]);
        let rows = BTreeSet::from(["c", "d"]);
        assert_eq!(
            differences("p", &upstream, &cofferdam, &rows),
            [
                "p: a{y} is neither Cofferdam's nor listed",
                "p: b is neither Cofferdam's nor listed",
                "p: d is listed, but is not missing"
            ]
        );
        assert_eq!(differences("p", &upstream, &cofferdam, &BTreeSet::from(["a{y}", "b", "c"])), [""; 0]);
    }

    #[test]
    fn the_tables_of_metrics_are_documented_metrics() {
        let page = "`no_metric` in prose\n| metric | labels | meaning |\n|---|---|---|\n| `a`, `b` | `x`, `y` | `c` |\n\
                    | `d` | | none |\n\n| outcome | labels | why |\n|---|---|---|\n| `ok` | `z` | w |\n";
        let found: Vec<String> =
            documented_metrics(page).iter().map(|(name, labels)| format!("{name} {labels:?}")).collect();
        assert_eq!(found, ["a {\"x\", \"y\"}", "b {\"x\", \"y\"}", "d {}"]);
        let (page, _) = split_page(PAGE).unwrap();
        assert!(documented_metrics(page).len() > 50);
    }

    #[test]
    fn documented_metrics_have_samples_or_are_listed() {
        let documented = ["a", "b", "c", "d"].map(|name| (name.to_owned(), BTreeSet::new()));
        let scrapes = ["# TYPE a gauge\na 1\n# TYPE c gauge\n", "b 1\n"].map(parse);
        let problems = |listed: &[&str], is_complete| {
            let problems = sample_problems(&documented, listed, &scrapes, is_complete);
            problems.iter().map(|text| text.split(", ").next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(problems(&["c", "d"], true), [""; 0]);
        assert_eq!(problems(&["d"], true), ["c is documented"]);
        assert_eq!(problems(&["d"], false), [""; 0]);
        assert_eq!(problems(&["b", "c", "d"], false), ["b is in WITHOUT_SAMPLES"]);
    }

    #[test]
    fn the_metrics_without_samples_are_documented() {
        let (page, _) = split_page(PAGE).unwrap();
        let documented: BTreeSet<String> =
            documented_metrics(page).into_iter().map(|(name, _)| name).collect();
        for name in WITHOUT_SAMPLES {
            assert!(documented.contains(name), "{name}");
        }
    }

    #[test]
    fn the_page_has_rows() {
        let rows = split_page(PAGE).and_then(|(_, section)| missing_rows(section));
        assert!(rows.is_ok_and(|rows| rows.iter().all(|(_, metric)| !metric.contains('`'))));
        assert!(missing_rows("no table\n").is_err());
    }
}
