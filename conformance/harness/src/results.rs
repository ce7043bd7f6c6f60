//! What suites have shown, as a table for a document.

use std::{fmt::Write as _, fs, path::Path, thread};

use anyhow::{Context as _, Result, bail};

use crate::run;

/// The table stands between these two lines of a document.
const BEGIN: &str = "<!-- results -->";
const END: &str = "<!-- end of results -->";

/// What became of the suites so far, in the order in which they ran.
#[derive(Debug, Default)]
pub struct Results {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    suite: String,
    /// Why it failed.
    failed: Option<String>,
    seconds: f64,
    /// What the suite has told of what it saw.
    told: String,
}

impl Results {
    /// One more, which ran in this directory.
    ///
    /// # Errors
    /// When what it told cannot be read.
    pub fn add(&mut self, suite: &str, failed: Option<String>, seconds: f64, directory: &Path) -> Result<()> {
        let path = run::told(directory);
        let told = if path.exists() { fs::read_to_string(path)? } else { String::new() };
        self.rows.push(Row { suite: suite.to_owned(), failed, seconds, told });
        Ok(())
    }

    /// How many passed, and how many did not.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let failed = self.failed().count();
        (self.rows.len() - failed, failed)
    }

    /// The suites that did not pass, and why.
    pub fn failed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rows.iter().filter_map(|row| Some((row.suite.as_str(), row.failed.as_deref()?)))
    }

    /// Puts them into a document, in the place of those that it has.
    ///
    /// # Errors
    /// When the document cannot be read or written, or has no place for them.
    pub fn write(&self, document: &Path, date: &str) -> Result<()> {
        let cannot = || format!("results for {}", document.display());
        let old = fs::read_to_string(document).with_context(cannot)?;
        let new = placed(&old, &self.markdown(date)).with_context(cannot)?;
        fs::write(document, new).with_context(cannot)
    }

    fn markdown(&self, date: &str) -> String {
        let cores = thread::available_parallelism().map_or(0, usize::from);
        let mut text = format!(
            "`make conformance` on {date}, {cores} cores, an unoptimised build; do not edit.\n\n\
             | suite | | seconds | seen |\n|---|---|---:|---|\n"
        );
        for Row { suite, failed, seconds, told } in &self.rows {
            let passed = failed.as_deref().unwrap_or("ok");
            let told = told.lines().map(cell).collect::<Vec<_>>().join("<br>");
            let _ = writeln!(text, "| `{suite}` | {} | {seconds:.0} | {told} |", cell(passed));
        }
        text
    }
}

/// Text that ends no cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn placed(document: &str, results: &str) -> Result<String> {
    let split = document.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, after)) = split else {
        bail!("expected the lines {BEGIN:?} and {END:?}");
    };
    Ok(format!("{before}{BEGIN}\n{results}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_take_the_place_of_those_before() {
        let mut results = Results::default();
        let directory = tempfile::tempdir().unwrap();
        results.add("a", None, 1.4, directory.path()).unwrap();
        fs::write(run::told(directory.path()), "one | two\nthree\n").unwrap();
        results.add("b", Some("FAILED".to_owned()), 2.5, directory.path()).unwrap();
        assert_eq!(results.count(), (1, 1));
        assert_eq!(results.failed().collect::<Vec<_>>(), [("b", "FAILED")]);

        let document = directory.path().join("page.md");
        fs::write(&document, format!("head\n{BEGIN}\nold\n{END}\ntail\n")).unwrap();
        results.write(&document, "2026-01-02").unwrap();
        let text = fs::read_to_string(&document).unwrap();
        assert!(text.starts_with(&format!("head\n{BEGIN}\n`make conformance` on 2026-01-02, ")), "{text}");
        let rows = "| `a` | ok | 1 |  |\n| `b` | FAILED | 2 | one \\| two<br>three |\n";
        assert!(text.ends_with(&format!("{rows}{END}\ntail\n")), "{text}");

        fs::write(&document, "no place").unwrap();
        let error = format!("{:#}", results.write(&document, "2026-01-02").unwrap_err());
        assert!(
            error.ends_with(
                "page.md: expected the lines \"<!-- results -->\" and \"<!-- end of results -->\""
            ),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&document).unwrap(), "no place");
    }
}
