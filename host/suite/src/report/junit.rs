//! JUnit's XML: a suite for each interface, a case for each rule.

use std::{fmt::Write as _, time::Duration};

use super::{Entry, Report, Verdict};

/// Text as it may stand in XML: characters that XML 1.0 does not know become a replacement.
fn escaped(text: &str) -> String {
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

pub(super) fn write(report: &Report) -> String {
    let (_, failed, skipped) = report.totals();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a text cannot fail.
    let _ = writeln!(
        xml,
        "<testsuites name=\"{}\" tests=\"{}\" failures=\"{failed}\" skipped=\"{skipped}\" time=\"{}\">",
        escaped(&report.source),
        report.entries.len(),
        seconds(report.entries.iter().map(|entry| entry.took).sum()),
    );
    for group in report.entries.chunk_by(|left, right| left.case.interface() == right.case.interface()) {
        suite(&mut xml, group, report);
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn suite(xml: &mut String, group: &[Entry], report: &Report) {
    let name = group.first().map_or("", |entry| entry.case.interface());
    let count = |wanted: fn(&Verdict) -> bool| group.iter().filter(|entry| wanted(&entry.verdict)).count();
    let failed = count(|verdict| matches!(verdict, Verdict::Failed { .. }));
    let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
    let tests = group.len();
    let _ = writeln!(
        xml,
        "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failed}\" skipped=\"{skipped}\">"
    );
    for entry in group {
        let (id, time) = (escaped(entry.case.id), seconds(entry.took));
        let open = format!("    <testcase classname=\"cofferdam.{name}\" name=\"{id}\" time=\"{time}\"");
        let _ = match &entry.verdict {
            Verdict::Passed => writeln!(xml, "{open}/>"),
            Verdict::Skipped(why) => {
                writeln!(xml, "{open}><skipped message=\"{}\"/></testcase>", escaped(why))
            }
            Verdict::Failed { expected, found, calls } => writeln!(
                xml,
                "{open}><failure message=\"{}\">expected: {}\nfound: {}\nsource: {}\ncalled:\n{}\nagain: {}</failure></testcase>",
                escaped(entry.case.rule),
                escaped(expected),
                escaped(found),
                escaped(entry.case.source),
                escaped(&calls.join("\n")),
                escaped(&report.rerun(Some(entry.case.id))),
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
    fn what_xml_does_not_know_is_replaced() {
        assert_eq!(escaped("a<b & \"c\" \u{1b}[0m"), "a&lt;b &amp; &quot;c&quot; \u{fffd}[0m");
    }
}
