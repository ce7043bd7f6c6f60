//! The report as text, written during a run or at its end.

use std::fmt::Write as _;

use super::{CaseOutcome, CaseReport, SuiteReport, rerun_command};
use crate::context::NAME_PREFIX;

const GREEN: &str = "\u{1b}[32m";
const RED: &str = "\u{1b}[31m";
const DIM: &str = "\u{1b}[2m";
const BOLD: &str = "\u{1b}[1m";

/// Writes a report as text, piece by piece. The pieces are a report in the order of [`start`](Self::start),
/// [`driver`](Self::driver) if the component was loaded, [`case`](Self::case) for each case, and
/// [`finish`](Self::finish).
#[derive(Debug, Default)]
pub struct TextReport {
    text: String,
    has_colour: bool,
    command: String,
    seed: u64,
    /// Interface of the current group of cases.
    interface: &'static str,
    /// Number of cases in the group.
    group_size: usize,
    /// Names of the group's skipped cases, by reason, in order.
    skipped: Vec<(String, Vec<&'static str>)>,
    /// Ids of failed cases, by [`cause_key`], each group in order.
    failures: Vec<(String, Vec<&'static str>)>,
}

impl TextReport {
    /// An empty report, with ANSI colours if `colour` is true.
    pub fn new(colour: bool) -> Self {
        Self { has_colour: colour, ..Self::default() }
    }

    /// Returns what was written since the last call.
    #[must_use]
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Writes the seed, with which a killed run can be repeated.
    pub fn start(&mut self, report: &SuiteReport) {
        self.command.clone_from(&report.command);
        self.seed = report.seed;
        self.line(format_args!("seed          {}", report.seed));
    }

    /// Writes the description of the driver, or the source of a component that could not be loaded.
    pub fn driver(&mut self, report: &SuiteReport) {
        let join = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        match &report.driver {
            Some(driver) => {
                let name = self.paint(BOLD, &driver.name);
                self.line(format_args!("{name} {}  ({})", driver.version, report.source));
                self.line(format_args!("  digest      {}", driver.digest));
                self.line(format_args!("  interfaces  {}", join(&driver.abilities)));
                self.line(format_args!("  features    {}", join(&driver.features)));
            }
            None => self.line(format_args!("{}", report.source)),
        }
    }

    /// Writes a case that passed or failed. A skipped case is written at the end of its interface or topic.
    ///
    /// A failure whose result equals that of an earlier one, except for the names of the run, has no details but
    /// the expectation.
    pub fn case(&mut self, entry: &CaseReport) {
        let interface = entry.case.interface();
        if interface != self.interface {
            self.finish_group();
            self.interface = interface;
            let title = self.paint(BOLD, interface);
            self.line(format_args!("\n{title}"));
        }
        self.group_size += 1;
        let name = case_name(entry);
        match &entry.outcome {
            CaseOutcome::Passed => {
                let mark = self.paint(GREEN, "passed ");
                self.line(format_args!("  {mark} {name}"));
            }
            CaseOutcome::Skipped(skip_reason) => {
                match self.skipped.iter_mut().find(|(reason, _)| reason == skip_reason) {
                    Some((_, names)) => names.push(name),
                    None => self.skipped.push((skip_reason.clone(), vec![name])),
                }
            }
            CaseOutcome::Failed { expected, found, calls } => {
                let mark = self.paint(RED, "FAILED ");
                match self.record_failure(entry.case.id, found) {
                    Some(first) => {
                        self.line(format_args!("  {mark} {name}  as {first}"));
                        self.line(format_args!("            expected  {expected}"));
                    }
                    None => {
                        self.line(format_args!("  {mark} {name}"));
                        self.failure_details(entry, expected, found, calls);
                    }
                }
            }
        }
    }

    /// Writes the totals, repeated failures and leftovers.
    pub fn finish(&mut self, report: &SuiteReport) {
        self.finish_group();
        for (_, ids) in std::mem::take(&mut self.failures) {
            if ids.len() > 1 {
                let count = ids.len();
                self.line(format_args!("\n{count} cases failed with the same result: {}", ids.join(", ")));
            }
        }
        let (passed, failed, skipped) = report.totals();
        let colour = if report.is_passed() { GREEN } else { RED };
        let totals = self.paint(colour, &format!("{passed} passed, {failed} failed, {skipped} skipped"));
        let note = match (report.is_interrupted, passed + failed) {
            (true, _) => ": the run was interrupted",
            (false, 0) => ": no case ran; expected at least one",
            (false, _) => "",
        };
        self.line(format_args!("\n{totals}{note}"));
        match report.keeps_owners {
            Some(true) => {
                self.line(format_args!("leak detection: yes, the driver stores the owners of volumes"));
            }
            Some(false) => {
                self.line(format_args!(
                    "leak detection: no, the driver does not store the owners of volumes"
                ));
            }
            None => self.line(format_args!("leak detection: unknown, the case listing/owner did not run")),
        }
        for leftover in &report.leftovers {
            self.line(format_args!("leftover: {leftover}"));
        }
    }

    fn failure_details(&mut self, entry: &CaseReport, expected: &str, found: &str, calls: &[String]) {
        self.line(format_args!("            rule      {} ({})", entry.case.rule, entry.case.source));
        for (number, call) in calls.iter().enumerate() {
            let title = if number == 0 { "called" } else { "" };
            self.line(format_args!("            {title:8}  {call}"));
        }
        self.line(format_args!("            expected  {expected}"));
        self.line(format_args!("            found     {found}"));
        if let Some(hint) = hint(expected, found) {
            self.line(format_args!("            hint      {hint}"));
        }
        self.rerun_line(entry.case.id);
    }

    fn rerun_line(&mut self, case: &str) {
        let rerun = rerun_command(&self.command, self.seed, Some(case));
        self.line(format_args!("            rerun     {rerun}"));
    }

    /// Records a failed case. Returns the id of the first case that failed with the same result.
    fn record_failure(&mut self, id: &'static str, found: &str) -> Option<&'static str> {
        let key = cause_key(found);
        match self.failures.iter_mut().find(|(known, _)| *known == key) {
            Some((_, ids)) => {
                ids.push(id);
                ids.first().copied()
            }
            None => {
                self.failures.push((key, vec![id]));
                None
            }
        }
    }

    /// Writes the skipped cases of an interface or topic, one line per reason.
    fn finish_group(&mut self) {
        for (reason, names) in std::mem::take(&mut self.skipped) {
            let names = if names.len() == self.group_size {
                format!("all {}", names.len())
            } else {
                names.join(", ")
            };
            let line = self.paint(DIM, &format!("skipped {names}: {reason}"));
            self.line(format_args!("  {line}"));
        }
        self.group_size = 0;
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.has_colour { format!("{colour}{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a text cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// Returns the flag of the run that may be the cause of a failure, in place of the driver.
fn hint(expected: &str, found: &str) -> Option<&'static str> {
    if !expected.ends_with(": success") {
        return None;
    }
    let (kind, _) = found.split_once(' ')?;
    match kind {
        "OutOfRange" => Some("the storage may not support this size: set one that it supports with --size"),
        "NotFound" if expected.starts_with("publish") => {
            Some("the storage may not know these nodes: name two that it knows with --node")
        }
        _ => None,
    }
}

/// The id of a case after `/`.
fn case_name(entry: &CaseReport) -> &'static str {
    entry.case.id.split_once('/').map_or(entry.case.id, |(_, name)| name)
}

/// The result of a failed case without the names of the run, which differ between cases with the same cause.
fn cause_key(found: &str) -> String {
    let is_name = |word: &&str| word.contains(NAME_PREFIX);
    let words = found.split(' ').map(|word| if is_name(&word) { "#" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cases;

    fn failed(index: usize, found: &str) -> CaseReport {
        let outcome =
            CaseOutcome::Failed { expected: "e".to_owned(), found: found.to_owned(), calls: Vec::new() };
        CaseReport::new(cases().nth(index).unwrap(), outcome, Duration::ZERO)
    }

    #[test]
    fn a_report_in_which_no_case_ran_says_so() {
        let mut report = SuiteReport::new("array.wasm".to_owned(), 1, "cofferdam backend test".to_owned());
        assert!(report.to_text(false).contains("\n0 passed, 0 failed, 0 skipped: no case ran"));
        let case = cases().next().unwrap();
        report.entries.push(CaseReport::new(case, CaseOutcome::Passed, Duration::ZERO));
        assert!(report.to_text(false).contains("\n1 passed, 0 failed, 0 skipped\n"));
        report.is_interrupted = true;
        assert!(report.to_text(false).contains("\n1 passed, 0 failed, 0 skipped: the run was interrupted\n"));
        assert!(!report.is_passed());
    }

    #[test]
    fn hints_name_the_flag_that_the_storage_may_need() {
        let size = "OutOfRange (final): expected a multiple of 1 GiB";
        let node = "NotFound (final): no instance \"cofferdam-test-1\"";
        let table = [
            ("create: success", size, Some("--size")),
            ("create a volume that is too large: OutOfRange, final; or success", size, None),
            ("publish to the first node: success", node, Some("--node")),
            ("delete: success", node, None),
            ("create: success", "Internal (final): OutOfRange", None),
        ];
        for (expected, found, flag) in table {
            let found_hint = hint(expected, found);
            assert_eq!(found_hint.is_some(), flag.is_some(), "{expected}: {found_hint:?}");
            assert!(
                flag.is_none_or(|flag| found_hint.unwrap().ends_with(flag)),
                "{expected}: {found_hint:?}"
            );
        }
    }

    #[test]
    fn failures_with_the_same_result_are_grouped() {
        let mut report = SuiteReport::new("array.wasm".to_owned(), 1, "cofferdam backend test".to_owned());
        let trap = "Internal (outcome unknown): the volume cofferdam-test-00000001-a-7 has no zone";
        report.entries = vec![
            failed(0, trap),
            failed(1, &trap.replace("a-7", "b-9")),
            failed(2, "success: 1 byte"),
            failed(3, "success: 2 bytes"),
        ];
        let text = report.to_text(false);
        let ids: Vec<_> = cases().take(4).map(|case| case.id).collect();
        assert!(text.contains(&format!("  as {}\n", ids[0])), "{text}");
        assert_eq!(text.matches("found     ").count(), 3, "{text}");
        assert_eq!(text.matches("rerun     ").count(), 3, "{text}");
        let grouped = format!("\n2 cases failed with the same result: {}, {}\n", ids[0], ids[1]);
        assert!(text.contains(&grouped), "{text}");
    }
}
