//! The report as text.

use std::fmt::Write as _;

use super::{CaseOutcome, CaseReport, SuiteReport};

const GREEN: &str = "\u{1b}[32m";
const RED: &str = "\u{1b}[31m";
const DIM: &str = "\u{1b}[2m";
const BOLD: &str = "\u{1b}[1m";

struct TextWriter {
    text: String,
    has_colour: bool,
}

impl TextWriter {
    fn paint(&self, colour: &str, text: &str) -> String {
        if self.has_colour { format!("{colour}{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a text cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

pub(super) fn write(report: &SuiteReport, colour: bool) -> String {
    let mut writer = TextWriter { text: String::new(), has_colour: colour };
    write_header(&mut writer, report);
    for group in report.entries.chunk_by(|left, right| left.case.interface() == right.case.interface()) {
        let title = writer.paint(BOLD, group.first().map_or("", |entry| entry.case.interface()));
        writer.line(format_args!("\n{title}"));
        for entry in group {
            write_case(&mut writer, entry, report);
        }
        write_skipped(&mut writer, group);
    }
    write_footer(&mut writer, report);
    writer.text
}

fn write_header(writer: &mut TextWriter, report: &SuiteReport) {
    let join = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    match &report.driver {
        Some(driver) => {
            let name = writer.paint(BOLD, &driver.name);
            writer.line(format_args!("{name} {}  ({})", driver.version, report.source));
            writer.line(format_args!("  digest      {}", driver.digest));
            writer.line(format_args!("  interfaces  {}", join(&driver.abilities)));
            writer.line(format_args!("  features    {}", join(&driver.features)));
        }
        None => writer.line(format_args!("{}", report.source)),
    }
    writer.line(format_args!("  seed        {}", report.seed));
}

/// Writes the skipped cases of an interface or topic, one line per reason.
fn write_skipped(writer: &mut TextWriter, group: &[CaseReport]) {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for entry in group {
        let CaseOutcome::Skipped(skip_reason) = &entry.outcome else { continue };
        match reasons.iter_mut().find(|(reason, _)| reason == skip_reason) {
            Some((_, names)) => names.push(case_name(entry)),
            None => reasons.push((skip_reason, vec![case_name(entry)])),
        }
    }
    for (skip_reason, names) in reasons {
        let names =
            if names.len() == group.len() { format!("all {}", names.len()) } else { names.join(", ") };
        let line = writer.paint(DIM, &format!("skipped {names}: {skip_reason}"));
        writer.line(format_args!("  {line}"));
    }
}

/// The id of a case after `/`.
fn case_name(entry: &CaseReport) -> &'static str {
    entry.case.id.split_once('/').map_or(entry.case.id, |(_, name)| name)
}

fn write_case(writer: &mut TextWriter, entry: &CaseReport, report: &SuiteReport) {
    let name = case_name(entry);
    match &entry.outcome {
        CaseOutcome::Passed => {
            let mark = writer.paint(GREEN, "passed ");
            writer.line(format_args!("  {mark} {name}"));
        }
        // Listed at the end of the interface.
        CaseOutcome::Skipped(_) => {}
        CaseOutcome::Failed { expected, found, calls } => {
            let mark = writer.paint(RED, "FAILED ");
            writer.line(format_args!("  {mark} {name}"));
            writer.line(format_args!("            rule      {} ({})", entry.case.rule, entry.case.source));
            for (number, call) in calls.iter().enumerate() {
                let title = if number == 0 { "called" } else { "" };
                writer.line(format_args!("            {title:8}  {call}"));
            }
            writer.line(format_args!("            expected  {expected}"));
            writer.line(format_args!("            found     {found}"));
            writer.line(format_args!("            rerun     {}", report.rerun_command(Some(entry.case.id))));
        }
    }
}

fn write_footer(writer: &mut TextWriter, report: &SuiteReport) {
    let (passed, failed, skipped) = report.totals();
    let colour = if report.is_passed() { GREEN } else { RED };
    let totals = writer.paint(colour, &format!("{passed} passed, {failed} failed, {skipped} skipped"));
    let note = if passed + failed == 0 { ": no case ran; expected at least one" } else { "" };
    writer.line(format_args!("\n{totals}{note}"));
    match report.keeps_owners {
        Some(true) => {
            writer.line(format_args!("leak detection: yes, the driver stores the owners of volumes"))
        }
        Some(false) => {
            writer.line(format_args!("leak detection: no, the driver does not store the owners of volumes"))
        }
        None => writer.line(format_args!("leak detection: unknown, the case listing/owner did not run")),
    }
    for leftover in &report.leftovers {
        writer.line(format_args!("leftover: {leftover}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_in_which_no_case_ran_says_so() {
        let mut report = SuiteReport::new("array.wasm".to_owned(), 1, "cofferdam backend test".to_owned());
        assert!(write(&report, false).contains("\n0 passed, 0 failed, 0 skipped: no case ran"));
        let case = crate::cases().next().unwrap();
        report.entries.push(CaseReport::new(case, CaseOutcome::Passed, std::time::Duration::ZERO));
        assert!(write(&report, false).contains("\n1 passed, 0 failed, 0 skipped\n"));
    }
}
