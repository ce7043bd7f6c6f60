//! The report card for people.

use std::fmt::Write as _;

use super::{Entry, Report, Verdict};

const GREEN: &str = "\u{1b}[32m";
const RED: &str = "\u{1b}[31m";
const DIM: &str = "\u{1b}[2m";
const BOLD: &str = "\u{1b}[1m";

struct Paper {
    text: String,
    colour: bool,
}

impl Paper {
    fn painted(&self, colour: &str, text: &str) -> String {
        if self.colour { format!("{colour}{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a text cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

pub(super) fn write(report: &Report, colour: bool) -> String {
    let mut paper = Paper { text: String::new(), colour };
    head(&mut paper, report);
    for group in report.entries.chunk_by(|left, right| left.case.interface() == right.case.interface()) {
        let title = paper.painted(BOLD, group.first().map_or("", |entry| entry.case.interface()));
        paper.line(format_args!("\n{title}"));
        for entry in group {
            line(&mut paper, entry, report);
        }
        skipped(&mut paper, group);
    }
    foot(&mut paper, report);
    paper.text
}

fn head(paper: &mut Paper, report: &Report) {
    let list = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    match &report.driver {
        Some(driver) => {
            let name = paper.painted(BOLD, &driver.name);
            paper.line(format_args!("{name} {}  ({})", driver.version, report.source));
            paper.line(format_args!("  digest    {}", driver.digest));
            paper.line(format_args!("  can       {}", list(&driver.abilities)));
            paper.line(format_args!("  features  {}", list(&driver.features)));
        }
        None => paper.line(format_args!("{}", report.source)),
    }
    paper.line(format_args!("  seed      {}", report.seed));
}

/// The cases of an interface that were not tried, reason by reason.
fn skipped(paper: &mut Paper, group: &[Entry]) {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for entry in group {
        let Verdict::Skipped(why) = &entry.verdict else { continue };
        match reasons.iter_mut().find(|(reason, _)| reason == why) {
            Some((_, names)) => names.push(name(entry)),
            None => reasons.push((why, vec![name(entry)])),
        }
    }
    for (why, names) in reasons {
        let names =
            if names.len() == group.len() { format!("all {}", names.len()) } else { names.join(", ") };
        let line = paper.painted(DIM, &format!("skipped {names}: {why}"));
        paper.line(format_args!("  {line}"));
    }
}

/// What a case is called within its interface.
fn name(entry: &Entry) -> &'static str {
    entry.case.id.split_once('/').map_or(entry.case.id, |(_, name)| name)
}

fn line(paper: &mut Paper, entry: &Entry, report: &Report) {
    let name = name(entry);
    match &entry.verdict {
        Verdict::Passed => {
            let mark = paper.painted(GREEN, "passed ");
            paper.line(format_args!("  {mark} {name}"));
        }
        // They come together at the end of their interface.
        Verdict::Skipped(_) => {}
        Verdict::Failed { expected, found, calls } => {
            let mark = paper.painted(RED, "FAILED ");
            paper.line(format_args!("  {mark} {name}"));
            paper.line(format_args!("            rule      {} ({})", entry.case.rule, entry.case.source));
            for (number, call) in calls.iter().enumerate() {
                let title = if number == 0 { "called" } else { "" };
                paper.line(format_args!("            {title:8}  {call}"));
            }
            paper.line(format_args!("            expected  {expected}"));
            paper.line(format_args!("            found     {found}"));
            paper.line(format_args!("            again     {}", report.rerun(Some(entry.case.id))));
        }
    }
}

fn foot(paper: &mut Paper, report: &Report) {
    let (passed, failed, skipped) = report.totals();
    let colour = if report.passed() { GREEN } else { RED };
    let totals = paper.painted(colour, &format!("{passed} passed, {failed} failed, {skipped} skipped"));
    paper.line(format_args!("\n{totals}"));
    match report.keeps_owners {
        Some(true) => paper.line(format_args!("leak detection: yes, the driver keeps who owns a volume")),
        Some(false) => {
            paper.line(format_args!("leak detection: none, the driver does not keep who owns a volume"))
        }
        None => paper
            .line(format_args!("leak detection: not seen, no case asked who owns a volume (listing/owner)")),
    }
    for left in &report.left {
        paper.line(format_args!("left behind: {left}"));
    }
}
