//! Results of suites in documents: a table with lists of long notes below it, and a row of the table of
//! Kubernetes versions.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, thread};

use anyhow::{Context as _, Result, bail};

use crate::run;

/// The line of a document before the results; [`RESULTS_END`] is the line after them.
const RESULTS_BEGIN: &str = "<!-- results -->";
const RESULTS_END: &str = "<!-- end of results -->";
/// The line of a document before the table of Kubernetes versions; [`VERSIONS_END`] is the line after it.
const VERSIONS_BEGIN: &str = "<!-- versions -->";
const VERSIONS_END: &str = "<!-- end of versions -->";
/// Maximum length of a suite's notes in the table, in bytes. Longer notes are a list below it.
const MAX_CELL_LENGTH: usize = 250;

/// Results of suites, in the order of [`add`](Self::add).
#[derive(Debug, Default)]
pub struct SuiteResults {
    rows: Vec<SuiteResult>,
}

#[derive(Debug)]
struct SuiteResult {
    suite: String,
    /// The reason of the failure, or `None` if the suite passed.
    failure: Option<String>,
    seconds: f64,
    /// Lines that the suite added with [`add_note`](run::SuiteRun::add_note).
    notes: String,
}

impl SuiteResults {
    /// Adds the result of a suite that ran in `directory`.
    ///
    /// # Errors
    /// If the suite's notes cannot be read.
    pub fn add(
        &mut self,
        suite: &str,
        failure: Option<String>,
        seconds: f64,
        directory: &Path,
    ) -> Result<()> {
        let path = run::notes_file(directory);
        let notes = if path.exists() { fs::read_to_string(path)? } else { String::new() };
        self.rows.push(SuiteResult { suite: suite.to_owned(), failure, seconds, notes });
        Ok(())
    }

    /// Numbers of suites that passed and failed.
    #[must_use]
    pub fn totals(&self) -> (usize, usize) {
        let failed = self.failures().count();
        (self.rows.len() - failed, failed)
    }

    /// The suites that failed, with the reasons.
    pub fn failures(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rows.iter().filter_map(|row| Some((row.suite.as_str(), row.failure.as_deref()?)))
    }

    /// Replaces the results in a document. `seconds` is the time of the whole run.
    ///
    /// # Errors
    /// If the document cannot be read or written, or has no results section.
    pub fn write(&self, document: &Path, date: &str, seconds: f64) -> Result<()> {
        let context = || format!("results for {}", document.display());
        let old = fs::read_to_string(document).with_context(context)?;
        let (before, _, after) = split_at_section(&old, RESULTS_BEGIN, RESULTS_END).with_context(context)?;
        let new = format!("{before}{}{after}", self.markdown(date, seconds));
        fs::write(document, new).with_context(context)
    }

    /// Writes the row of a version of Kubernetes, such as `v1.36.3`, in the table of versions of a document.
    /// The suites are the columns. Rows of other minor versions remain.
    ///
    /// # Errors
    /// If the document cannot be read or written, has no table of versions, or one of other suites.
    pub fn write_version(&self, document: &Path, version: &str, date: &str) -> Result<()> {
        let context = || format!("results for {}", document.display());
        let old = fs::read_to_string(document).with_context(context)?;
        let (before, section, after) =
            split_at_section(&old, VERSIONS_BEGIN, VERSIONS_END).with_context(context)?;
        let columns: String = self.rows.iter().map(|row| format!(" `{}` |", row.suite)).collect();
        let header = format!("| Kubernetes | date |{columns}");
        let minor = |row: &str| {
            let version = row.trim_start_matches(['|', ' ', 'v']).split([' ', '|']).next()?;
            version.split('.').nth(1)?.parse::<u32>().ok()
        };
        let cells: String = self
            .rows
            .iter()
            .map(|row| format!(" {} |", escape_cell(row.failure.as_deref().unwrap_or("ok"))))
            .collect();
        let row = format!("| {} | {date} |{cells}", version.trim_start_matches('v'));
        let mut rows: BTreeMap<_, _> = BTreeMap::new();
        let old_header = section.lines().find(|line| line.starts_with('|'));
        if let Some(old_header) = old_header.filter(|old_header| *old_header != header) {
            bail!("{}: the table of versions has {old_header:?}: expected {header:?}", document.display());
        }
        rows.extend(section.lines().filter_map(|row| Some((minor(row)?, row.to_owned()))));
        rows.insert(
            minor(&row).with_context(|| format!("version {version:?}: expected v1.MINOR.PATCH"))?,
            row,
        );
        let ruler = "|---".repeat(self.rows.len() + 2);
        let rows: Vec<String> = rows.into_values().collect();
        let table = format!("\n{header}\n{ruler}|\n{}\n\n", rows.join("\n"));
        fs::write(document, format!("{before}{table}{after}")).with_context(context)
    }

    fn markdown(&self, date: &str, seconds: f64) -> String {
        let cores = thread::available_parallelism().map_or(0, usize::from);
        let mut text = format!(
            "`make conformance` on {date}: {seconds:.0} s on {cores} cores; do not edit.\n\n\
             | suite | result | seconds | notes |\n|---|---|---:|---|\n"
        );
        let mut lists = String::new();
        for SuiteResult { suite, failure: failed, seconds, notes } in &self.rows {
            let passed = failed.as_deref().unwrap_or("ok");
            let cell = if notes.len() > MAX_CELL_LENGTH {
                let _ = write!(lists, "\n### Results of `{suite}`\n\n");
                for note in notes.lines() {
                    let _ = writeln!(lists, "- {note}");
                }
                format!("[below](#results-of-{suite})")
            } else {
                notes.lines().map(escape_cell).collect::<Vec<_>>().join("<br>")
            };
            let _ = writeln!(text, "| `{suite}` | {} | {seconds:.0} | {cell} |", escape_cell(passed));
        }
        text + &lists
    }
}

/// Escapes text for a table cell.
fn escape_cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// The parts of a document before, in and after the section between two lines, which belong to the outer
/// parts.
fn split_at_section<'a>(document: &'a str, begin: &str, end: &str) -> Result<(&'a str, &'a str, &'a str)> {
    let begin_line = format!("{begin}\n");
    let begin_at = document.find(&begin_line).map(|at| at + begin_line.len());
    let end_at = begin_at.and_then(|at| document.get(at..)?.find(end).map(|length| at + length));
    let parts = begin_at.zip(end_at).and_then(|(begin_at, end_at)| {
        Some((document.get(..begin_at)?, document.get(begin_at..end_at)?, document.get(end_at..)?))
    });
    match parts {
        Some(parts) => Ok(parts),
        None => bail!("expected the lines {begin:?} and {end:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_replace_those_of_the_previous_run() {
        let mut results = SuiteResults::default();
        let directory = tempfile::tempdir().unwrap();
        results.add("a", None, 1.4, directory.path()).unwrap();
        fs::write(run::notes_file(directory.path()), "one | two\nthree\n").unwrap();
        results.add("b", Some("FAILED".to_owned()), 2.5, directory.path()).unwrap();
        assert_eq!(results.totals(), (1, 1));
        assert_eq!(results.failures().collect::<Vec<_>>(), [("b", "FAILED")]);

        let document = directory.path().join("page.md");
        fs::write(&document, format!("head\n{RESULTS_BEGIN}\nold\n{RESULTS_END}\ntail\n")).unwrap();
        results.write(&document, "2026-01-02", 3.4).unwrap();
        let text = fs::read_to_string(&document).unwrap();
        assert!(
            text.starts_with(&format!("head\n{RESULTS_BEGIN}\n`make conformance` on 2026-01-02: 3 s on ")),
            "{text}"
        );
        let rows = "| `a` | ok | 1 |  |\n| `b` | FAILED | 2 | one \\| two<br>three |\n";
        assert!(text.ends_with(&format!("{rows}{RESULTS_END}\ntail\n")), "{text}");

        let long = "a note that is long\n".repeat(20);
        fs::write(run::notes_file(directory.path()), &long).unwrap();
        results.add("c", None, 1.0, directory.path()).unwrap();
        results.write(&document, "2026-01-02", 3.4).unwrap();
        let text = fs::read_to_string(&document).unwrap();
        let list = "- a note that is long\n".repeat(20);
        let expected = format!(
            "| `c` | ok | 1 | [below](#results-of-c) |\n\n### Results of `c`\n\n{list}{RESULTS_END}\ntail\n"
        );
        assert!(text.ends_with(&expected), "{text}");

        fs::write(&document, "no section").unwrap();
        let error = format!("{:#}", results.write(&document, "2026-01-02", 3.4).unwrap_err());
        assert!(
            error.ends_with(
                "page.md: expected the lines \"<!-- results -->\" and \"<!-- end of results -->\""
            ),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&document).unwrap(), "no section");
    }

    #[test]
    fn the_row_of_a_version_replaces_that_of_its_minor_version() {
        let directory = tempfile::tempdir().unwrap();
        let document = directory.path().join("page.md");
        fs::write(&document, format!("head\n{VERSIONS_BEGIN}\n{VERSIONS_END}\ntail\n")).unwrap();
        let mut results = SuiteResults::default();
        results.add("a", None, 1.4, directory.path()).unwrap();
        results.add("b", Some("FAILED: x | y".to_owned()), 1.4, directory.path()).unwrap();
        for (version, date) in
            [("v1.36.3", "2026-01-02"), ("v1.33.1", "2026-01-03"), ("v1.36.4", "2026-01-04")]
        {
            results.write_version(&document, version, date).unwrap();
        }
        let expected = format!(
            "head\n{VERSIONS_BEGIN}\n\n| Kubernetes | date | `a` | `b` |\n|---|---|---|---|\n\
             | 1.33.1 | 2026-01-03 | ok | FAILED: x \\| y |\n| 1.36.4 | 2026-01-04 | ok | FAILED: x \\| y |\n\n\
             {VERSIONS_END}\ntail\n"
        );
        assert_eq!(fs::read_to_string(&document).unwrap(), expected);

        let mut other = SuiteResults::default();
        other.add("a", None, 1.4, directory.path()).unwrap();
        let error = other.write_version(&document, "v1.37.2", "2026-01-05").unwrap_err().to_string();
        assert!(error.contains("expected \"| Kubernetes | date | `a` |\""), "{error}");
        assert_eq!(fs::read_to_string(&document).unwrap(), expected);
        let error = results.write_version(&document, "next", "2026-01-05").unwrap_err().to_string();
        assert_eq!(error, "version \"next\": expected v1.MINOR.PATCH");
    }
}
