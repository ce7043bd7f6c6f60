//! Text output of `cofferdam status`.

use std::fmt::Write as _;

use super::summary::{ClusterStatus, DriverStatus, LastError, ReportedObject, StuckObject, WaitingSummary};
use crate::{
    style::{Colour, Style, escape_control_chars},
    table::TextTable,
};

/// Smallest width of the column of labels, so that it is the same for every driver.
const LABEL_WIDTH: usize = 11;
/// Longest reason or message, in characters.
const MAX_MESSAGE_WIDTH: usize = 160;

/// Formats an age with at most two units.
fn format_age(seconds: i64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

/// Escapes control characters in text of the cluster, also line breaks, and cuts it to [`MAX_MESSAGE_WIDTH`].
fn truncate(text: &str) -> String {
    let text = escape_control_chars(text.trim());
    if text.chars().count() <= MAX_MESSAGE_WIDTH {
        text
    } else {
        text.chars().take(MAX_MESSAGE_WIDTH - 1).chain(['…']).collect()
    }
}

fn object_text(object: &ReportedObject) -> String {
    let kind = match object.kind {
        "PersistentVolumeClaim" => "claim",
        "PersistentVolume" => "volume",
        "VolumeAttachment" => "attachment",
        other => other,
    };
    let name = escape_control_chars(&object.name);
    match &object.namespace {
        Some(namespace) => format!("{kind} {}/{name}", escape_control_chars(namespace)),
        None => format!("{kind} {name}"),
    }
}

/// Formats the status of all drivers.
pub(super) fn format_status(status: &ClusterStatus, now: jiff::Timestamp, style: Style) -> String {
    let mut text = String::new();
    if status.drivers.is_empty() {
        text.push_str("no storage: there is no CSI driver, no claim, no volume and no attachment\n");
    }
    for (index, driver) in status.drivers.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        write_driver(&mut text, driver, now, style);
    }
    if !status.forbidden.is_empty() {
        let what = status.forbidden.join(", ");
        let line = format!("not shown, because you may not list them: {what}");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{}", style.paint(Colour::Yellow, &line));
    }
    text
}

fn write_driver(text: &mut String, status: &DriverStatus, now: jiff::Timestamp, style: Style) {
    let title = match &status.driver {
        Some(driver) => escape_control_chars(driver),
        None => "without a CSI driver".to_owned(),
    };
    let mut facts = Vec::new();
    if status.driver.is_some() {
        facts.push(if status.installed { "" } else { "no CSIDriver" }.to_owned());
        facts.push(if status.attach_required { "" } else { "no attachments" }.to_owned());
        facts.push(match status.nodes {
            1 => "1 node".to_owned(),
            nodes => format!("{nodes} nodes"),
        });
        facts.extend(status.orphans.filter(|orphans| *orphans > 0).map(|orphans| {
            style.paint(Colour::Yellow, &format!("{orphans} orphans, see `cofferdam orphans`"))
        }));
    }
    facts.retain(|fact| !fact.is_empty());
    let title = format!("{}  {}", style.paint(Colour::Bold, &title), facts.join(", "));
    let mut table = TextTable::without_header().indented("  ").with_min_width(LABEL_WIDTH);
    let mut push = |label: &str, value: String| table.push([label.to_owned(), value]);
    for (what, counts) in
        [("claims", &status.claims), ("volumes", &status.volumes), ("attachments", &status.attachments)]
    {
        if !counts.is_empty() {
            let counts: Vec<String> = counts
                .iter()
                .map(|(state, count)| style.paint(state_colour(state), &format!("{count} {state}")))
                .collect();
            push(what, counts.join(", "));
        }
    }
    if !status.waiting.is_empty() {
        let waiting = status.waiting.iter().map(|(operation, WaitingSummary { count, oldest_seconds })| {
            match oldest_seconds {
                Some(seconds) => format!("{count} to {operation} (oldest {})", format_age(*seconds)),
                None => format!("{count} to {operation}"),
            }
        });
        push("waiting", waiting.collect::<Vec<_>>().join(", "));
    }
    for (index, StuckObject { object, operation, seconds, reason }) in status.stuck.iter().enumerate() {
        let label = if index == 0 { "stuck" } else { "" };
        let waited = seconds.map(|seconds| format!(" for {}", format_age(seconds))).unwrap_or_default();
        let waits = format!("{}: to {operation}{waited}", object_text(object));
        push(label, format!("{}: {}", style.paint(Colour::Red, &waits), truncate(reason)));
    }
    for (index, LastError { object, time, message }) in status.errors.iter().enumerate() {
        let label = if index == 0 { "last errors" } else { "" };
        let ago = format_age(now.duration_since(*time).as_secs().max(0));
        push(label, format!("{ago} ago, {}: {}", object_text(object), truncate(message)));
    }
    // Writing to a string cannot fail.
    let _ = write!(text, "{}\n{table}", title.trim_end());
}

/// Colour of a state.
fn state_colour(state: &str) -> Colour {
    match state {
        "bound" | "attached" | "available" => Colour::Green,
        "lost" | "failed" => Colour::Red,
        "waiting for a pod" => Colour::Default,
        _ => Colour::Yellow,
    }
}
