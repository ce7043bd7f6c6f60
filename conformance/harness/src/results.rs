//! Results of suites, as a table in a document, with lists of long notes below it.

use std::{fmt::Write as _, fs, path::Path, thread};

use anyhow::{Context as _, Result, bail};

use crate::run;

/// The line of a document before the results; [`RESULTS_END`] is the line after them.
const RESULTS_BEGIN: &str = "<!-- results -->";
const RESULTS_END: &str = "<!-- end of results -->";
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
        let new = replace_section(&old, &self.markdown(date, seconds)).with_context(context)?;
        fs::write(document, new).with_context(context)
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

fn replace_section(document: &str, results: &str) -> Result<String> {
    let split = document
        .split_once(RESULTS_BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(RESULTS_END)?.1)));
    let Some((before, after)) = split else {
        bail!("expected the lines {RESULTS_BEGIN:?} and {RESULTS_END:?}");
    };
    Ok(format!("{before}{RESULTS_BEGIN}\n{results}{RESULTS_END}{after}"))
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
}
