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
/// The beginning of the heading of a list, before the suite's name.
const LIST_HEADING: &str = "### Results of `";
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

    /// Replaces the results in a document by those of a run of all suites. `seconds` is the time of the whole run.
    ///
    /// # Errors
    /// If the document cannot be read or written, or has no results section.
    pub fn write(&self, document: &Path, date: &str, seconds: f64) -> Result<()> {
        let cores = thread::available_parallelism().map_or(0, usize::from);
        let heading = format!("`make conformance` on {date}: {seconds:.0} s on {cores} cores; do not edit.");
        let section =
            ResultsSection { heading, results: self.rows.iter().map(SuiteResult::render).collect() };
        replace_section(document, |_| Ok(section.markdown()))
    }

    /// Replaces the results of these suites in a document; those of other suites remain. `order` has the names of all
    /// suites.
    ///
    /// # Errors
    /// If the document cannot be read or written, or has no results of a run of all suites.
    pub fn update(&self, document: &Path, date: &str, order: &[&str]) -> Result<()> {
        let run = match self.rows.len() {
            1 => format!("a run of this suite only, on {date}"),
            count => format!("a run of {count} suites, on {date}"),
        };
        replace_section(document, |old| {
            let mut section = ResultsSection::parse(old)?;
            for result in &self.rows {
                let notes = format!("{run}\n{}", result.notes);
                let new = SuiteResult {
                    suite: result.suite.clone(),
                    failure: result.failure.clone(),
                    notes,
                    ..*result
                };
                section.results.retain(|old| old.suite != result.suite);
                section.results.push(new.render());
            }
            let place = |suite: &str| order.iter().position(|name| *name == suite).unwrap_or(order.len());
            section.results.sort_by_key(|result| place(&result.suite));
            Ok(section.markdown())
        })
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
}

impl SuiteResult {
    fn render(&self) -> RenderedResult {
        let Self { suite, failure, seconds, notes } = self;
        let passed = escape_cell(failure.as_deref().unwrap_or("ok"));
        let list: Vec<String> = notes.lines().map(|note| format!("- {note}")).collect();
        let (cell, list) = if notes.len() > MAX_CELL_LENGTH {
            (format!("[below](#results-of-{suite})"), list)
        } else {
            (notes.lines().map(escape_cell).collect::<Vec<_>>().join("<br>"), Vec::new())
        };
        let row = format!("| `{suite}` | {passed} | {seconds:.0} | {cell} |");
        RenderedResult { suite: suite.clone(), row, list }
    }
}

/// The results in a document.
struct ResultsSection {
    /// The line before the table.
    heading: String,
    results: Vec<RenderedResult>,
}

struct RenderedResult {
    suite: String,
    /// The line of the table.
    row: String,
    /// The lines of the list below the table; none if the table has the notes.
    list: Vec<String>,
}

impl ResultsSection {
    /// Parses what [`markdown`](Self::markdown) returns.
    fn parse(text: &str) -> Result<Self> {
        let mut section = Self { heading: String::new(), results: Vec::new() };
        let mut listed = String::new();
        for line in text.lines() {
            let suite = line.split('`').nth(1).unwrap_or_default();
            if section.heading.is_empty() {
                line.clone_into(&mut section.heading);
            } else if line.starts_with("| `") {
                let (suite, row) = (suite.to_owned(), line.to_owned());
                section.results.push(RenderedResult { suite, row, list: Vec::new() });
            } else if line.starts_with(LIST_HEADING) {
                suite.clone_into(&mut listed);
            } else if line.starts_with("- ") {
                let result = section.results.iter_mut().find(|result| result.suite == listed);
                let result = result.with_context(|| format!("{line:?}: expected it below a suite"))?;
                result.list.push(line.to_owned());
            }
        }
        if section.results.is_empty() {
            bail!("no results: expected those of a run of all suites");
        }
        Ok(section)
    }

    fn markdown(&self) -> String {
        let mut text =
            format!("{}\n\n| suite | result | seconds | notes |\n|---|---|---:|---|\n", self.heading);
        for RenderedResult { row, .. } in &self.results {
            let _ = writeln!(text, "{row}");
        }
        for RenderedResult { suite, list, .. } in self.results.iter().filter(|result| !result.list.is_empty())
        {
            let _ = write!(text, "\n{LIST_HEADING}{suite}`\n\n");
            for line in list {
                let _ = writeln!(text, "{line}");
            }
        }
        text
    }
}

/// Replaces the results section of a document by what a function makes of it.
fn replace_section(document: &Path, change: impl FnOnce(&str) -> Result<String>) -> Result<()> {
    let context = || format!("results for {}", document.display());
    let old = fs::read_to_string(document).with_context(context)?;
    let (before, section, after) =
        split_at_section(&old, RESULTS_BEGIN, RESULTS_END).with_context(context)?;
    let new = change(section).with_context(context)?;
    fs::write(document, format!("{before}{new}{after}")).with_context(context)
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

        let mut some = SuiteResults::default();
        some.add("a", None, 4.0, &directory.path().join("none")).unwrap();
        some.add("new", None, 5.0, directory.path()).unwrap();
        some.update(&document, "2026-01-03", &["new", "a", "b", "c"]).unwrap();
        let updated = fs::read_to_string(&document).unwrap();
        let rows = "| `new` | ok | 5 | [below](#results-of-new) |\n\
                    | `a` | ok | 4 | a run of 2 suites, on 2026-01-03 |\n\
                    | `b` | FAILED | 2 | one \\| two<br>three |\n\
                    | `c` | ok | 1 | [below](#results-of-c) |\n";
        let lists = format!(
            "\n### Results of `new`\n\n- a run of 2 suites, on 2026-01-03\n{list}\n### Results of `c`\n\n{list}"
        );
        assert!(updated.ends_with(&format!("{rows}{lists}{RESULTS_END}\ntail\n")), "{updated}");
        assert!(updated.contains("`make conformance` on 2026-01-02: 3 s on "), "{updated}");
        results.write(&document, "2026-01-02", 3.4).unwrap();
        assert_eq!(fs::read_to_string(&document).unwrap(), text);

        fs::write(&document, format!("{RESULTS_BEGIN}\n{RESULTS_END}\n")).unwrap();
        let error = format!("{:#}", some.update(&document, "2026-01-03", &[]).unwrap_err());
        assert!(error.ends_with("no results: expected those of a run of all suites"), "{error}");
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
