//! Text output of `cofferdam status`.

use cofferdam_cluster::orphan_report::OrphanKind;

use super::summary::{
    ClusterStatus, DriverStatus, JournalSummary, LastError, OrphanCount, ReportedObject, StuckObject,
    WaitingSummary,
};
use crate::{
    style::{Colour, Style, TerminalText},
    table::TextTable,
};

/// Smallest width of the column of labels, so that it is the same for every driver.
const LABEL_WIDTH: usize = 11;
/// Longest reason or message, in characters.
const MAX_MESSAGE_WIDTH: usize = 400;

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

/// Cuts text of the cluster to [`MAX_MESSAGE_WIDTH`].
fn truncate(text: &str) -> TerminalText {
    let mut text = TerminalText::from(text.trim());
    text.truncate(MAX_MESSAGE_WIDTH);
    text
}

fn object_text(object: &ReportedObject) -> String {
    let kind = match object.kind {
        "PersistentVolumeClaim" => "claim",
        "PersistentVolume" => "volume",
        "VolumeAttachment" => "attachment",
        "VolumeSnapshot" => "snapshot",
        "VolumeSnapshotContent" => "snapshot content",
        other => other,
    };
    match &object.namespace {
        Some(namespace) => format!("{kind} {namespace}/{}", object.name),
        None => format!("{kind} {}", object.name),
    }
}

/// Formats the status of all drivers.
pub(super) fn format_status(status: &ClusterStatus, now: jiff::Timestamp, style: Style) -> TerminalText {
    let mut text = TerminalText::default();
    if status.drivers.is_empty() {
        text.push_line(
            "no storage: there is no CSI driver, no claim, no volume, no attachment and no snapshot",
        );
    }
    for (index, driver) in status.drivers.iter().enumerate() {
        if index > 0 {
            text.push_line("");
        }
        write_driver(&mut text, driver, now, style);
    }
    if !status.forbidden.is_empty() {
        let what = status.forbidden.join(", ");
        let line = format!("not shown, because you may not list them: {what}");
        text.push_line("");
        text.push_line(style.paint(Colour::Yellow, line));
    }
    text
}

fn write_driver(text: &mut TerminalText, status: &DriverStatus, now: jiff::Timestamp, style: Style) {
    let title = status.driver.as_deref().unwrap_or("without a CSI driver");
    let mut title = style.paint(Colour::Bold, title);
    title.push("  ");
    title.push(TerminalText::join(driver_facts(status, style), ", "));
    title.trim_end();
    text.push_line(title);
    let mut table = TextTable::without_header().indented("  ").with_min_width(LABEL_WIDTH);
    let mut push = |label: &str, value: TerminalText| table.push([TerminalText::from(label), value]);
    for (what, counts) in [
        ("claims", &status.claims),
        ("volumes", &status.volumes),
        ("attachments", &status.attachments),
        ("snapshots", &status.snapshots),
        ("contents", &status.snapshot_contents),
    ] {
        if !counts.is_empty() {
            let counts = counts
                .iter()
                .map(|(state, count)| style.paint(state_colour(state), format!("{count} {state}")));
            push(what, TerminalText::join(counts, ", "));
        }
    }
    if !status.journals.is_empty() {
        let shows_namespace = status.journals.len() > 1;
        let journals = status.journals.iter().map(|journal| journal_text(journal, shows_namespace));
        push("journal", journals.collect::<Vec<_>>().join(", ").into());
    }
    if !status.waiting.is_empty() {
        let waiting = status.waiting.iter().map(|(operation, WaitingSummary { count, oldest_seconds })| {
            match oldest_seconds {
                Some(seconds) => format!("{count} to {operation} (oldest {})", format_age(*seconds)),
                None => format!("{count} to {operation}"),
            }
        });
        push("waiting", waiting.collect::<Vec<_>>().join(", ").into());
    }
    for (index, StuckObject { object, operation, seconds, reason }) in status.stuck.iter().enumerate() {
        let label = if index == 0 { "stuck" } else { "" };
        let waited = seconds.map(|seconds| format!(" for {}", format_age(seconds))).unwrap_or_default();
        let waits = format!("{}: to {operation}{waited}", object_text(object));
        push(label, TerminalText::join([style.paint(Colour::Red, waits), truncate(reason)], ": "));
    }
    for (index, LastError { object, time, message }) in status.errors.iter().enumerate() {
        let label = if index == 0 { "last errors" } else { "" };
        let ago = format_age(now.duration_since(*time).as_secs().max(0));
        let object = TerminalText::from(format!("{ago} ago, {}", object_text(object)));
        push(label, TerminalText::join([object, truncate(message)], ": "));
    }
    text.push(table.to_text());
}

/// The number of a journal's intents, and the age of the oldest one.
fn journal_text(journal: &JournalSummary, shows_namespace: bool) -> String {
    let JournalSummary { namespace, intents, undecodable, oldest_seconds } = journal;
    let mut text = match intents {
        1 => "1 intent".to_owned(),
        intents => format!("{intents} intents"),
    };
    if shows_namespace {
        text.push_str(&format!(" in {namespace}"));
    }
    let oldest = oldest_seconds.map(|seconds| format!("oldest {}", format_age(seconds)));
    let undecodable = (*undecodable > 0).then(|| format!("{undecodable} not readable by this version"));
    let notes: Vec<String> = oldest.into_iter().chain(undecodable).collect();
    if !notes.is_empty() {
        text.push_str(&format!(" ({})", notes.join(", ")));
    }
    text
}

/// The texts beside a driver's name in its line.
fn driver_facts(status: &DriverStatus, style: Style) -> Vec<TerminalText> {
    let mut facts: Vec<TerminalText> = Vec::new();
    if status.driver.is_none() {
        return facts;
    }
    if !status.installed {
        facts.push("no CSIDriver".into());
    }
    if !status.attach_required {
        facts.push("no attachments".into());
    }
    facts.push(match status.nodes {
        1 => "1 node".into(),
        nodes => format!("{nodes} nodes").into(),
    });
    for OrphanCount { namespace, kind, count } in status.orphans.iter().filter(|orphans| orphans.count > 0) {
        let orphans = match kind {
            OrphanKind::Volume => "orphans",
            OrphanKind::Snapshot => "orphaned snapshots",
        };
        let orphans = format!("{count} {orphans}, see `cofferdam orphans --namespace {namespace}`");
        facts.push(style.paint(Colour::Yellow, orphans));
    }
    facts
}

/// Colour of a state.
fn state_colour(state: &str) -> Colour {
    match state {
        "bound" | "attached" | "available" | "ready" => Colour::Green,
        "lost" | "failed" => Colour::Red,
        "waiting for a pod" => Colour::Default,
        _ => Colour::Yellow,
    }
}
