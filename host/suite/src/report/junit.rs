//! JUnit XML: a test suite per interface or topic, a test case per rule. Each test suite has the seed as a
//! property. An interrupted run is a failed test case of its own.

use std::{fmt::Write as _, time::Duration};

use super::{CaseOutcome, CaseReport, SuiteReport};

/// Escapes text for XML 1.0. Control characters other than line feed and tab, and other characters that XML
/// 1.0 does not allow, become U+FFFD.
fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The test suite of an interrupted run.
const INTERRUPTED: &str = "  <testsuite name=\"run\" tests=\"1\" failures=\"1\" skipped=\"0\">
    <testcase classname=\"cofferdam.run\" name=\"run/complete\" time=\"0.000\"><failure \
message=\"the run was interrupted\"/></testcase>
  </testsuite>
";

pub(super) fn write(report: &SuiteReport) -> String {
    let (_, failed, skipped) = report.totals();
    let interrupts = usize::from(report.is_interrupted);
    let failures = failed + interrupts;
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a text cannot fail.
    let _ = writeln!(
        xml,
        "<testsuites name=\"{}\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\" \
         time=\"{}\">",
        escape_xml(&report.source),
        report.entries.len() + interrupts,
        seconds(report.entries.iter().map(|entry| entry.elapsed).sum()),
    );
    for group in report.entries.chunk_by(|left, right| left.case.interface() == right.case.interface()) {
        write_suite(&mut xml, group, report);
    }
    if report.is_interrupted {
        xml.push_str(INTERRUPTED);
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn write_suite(xml: &mut String, group: &[CaseReport], report: &SuiteReport) {
    let name = group.first().map_or("", |entry| entry.case.interface());
    let count = |is_counted: fn(&CaseOutcome) -> bool| {
        group.iter().filter(|entry| is_counted(&entry.outcome)).count()
    };
    let failed = count(|outcome| matches!(outcome, CaseOutcome::Failed { .. }));
    let skipped = count(|outcome| matches!(outcome, CaseOutcome::Skipped(_)));
    let tests = group.len();
    let _ = writeln!(
        xml,
        "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failed}\" skipped=\"{skipped}\">\n    \
         <properties><property name=\"seed\" value=\"{}\"/></properties>",
        report.seed
    );
    for entry in group {
        let (id, time) = (escape_xml(entry.case.id), seconds(entry.elapsed));
        let open = format!("    <testcase classname=\"cofferdam.{name}\" name=\"{id}\" time=\"{time}\"");
        let _ = match &entry.outcome {
            CaseOutcome::Passed => writeln!(xml, "{open}/>"),
            CaseOutcome::Skipped(reason) => {
                writeln!(xml, "{open}><skipped message=\"{}\"/></testcase>", escape_xml(reason))
            }
            CaseOutcome::Failed { expected, found, calls } => writeln!(
                xml,
                "{open}><failure message=\"{}\">expected: {}\nfound: {}\nsource: {}\ncalled:\n{}\nrerun: \
                 {}</failure></testcase>",
                escape_xml(entry.case.rule),
                escape_xml(expected),
                escape_xml(found),
                escape_xml(entry.case.source),
                escape_xml(&calls.join("\n")),
                escape_xml(&report.rerun_command(Some(entry.case.id))),
            ),
        };
    }
    xml.push_str("  </testsuite>\n");
}

fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_unknown_to_xml_are_replaced() {
        assert_eq!(escape_xml("a<b & \"c\" \u{1b}[0m"), "a&lt;b &amp; &quot;c&quot; \u{fffd}[0m");
    }
}
