//! Text output of `cofferdam orphans`.

use std::fmt::Write as _;

use cofferdam_cluster::orphan_report::OrphanKind;
use cofferdam_controllers::orphans::{
    report::{
        CreatedFor, DeletionRequest, DeletionResponse, DeletionResult, ListedCounts, Orphan, ScanReport,
    },
    rules,
};
use jiff::Timestamp;

use super::{error::reporting_role, report::DriverReport, scope::ReportScope};
use crate::{style::TerminalText, table::TextTable};

/// Formats the response to a deletion request, on one line without its end.
pub(super) fn format_response(
    report: &DriverReport,
    request: &DeletionRequest,
    response: &DeletionResponse,
) -> TerminalText {
    let result = match response.result {
        DeletionResult::Deleted => "deleted",
        DeletionResult::Refused => "refused",
    };
    let message = if response.message == result { String::new() } else { format!(": {}", response.message) };
    let DriverReport { driver, kind, .. } = report;
    format!("{kind} {} of {driver}: {result}{message}", request.handle).into()
}

/// Formats the reports of a scope.
pub(super) fn format_reports(reports: &[DriverReport], scope: &ReportScope, now: Timestamp) -> TerminalText {
    let mut text = TerminalText::default();
    if reports.is_empty() {
        text.push_line(format!(
            "no orphan reports {scope}: expected one from a process that runs the role {}{}",
            reporting_role(None),
            scope.hint()
        ));
    }
    for (index, report) in reports.iter().enumerate() {
        if index > 0 {
            text.push_line("");
        }
        write_report(&mut text, report, now);
    }
    text
}

fn write_report(text: &mut TerminalText, driver_report: &DriverReport, now: Timestamp) {
    let DriverReport { driver, kind, .. } = driver_report;
    let namespace = driver_report.namespace();
    let Some(report) = driver_report.scan_report() else {
        let key = &driver_report.config_map.key;
        text.push_line(format!("{driver}: the report in ConfigMap {key} cannot be read by this version"));
        return;
    };
    let about = match kind {
        OrphanKind::Volume => "",
        OrphanKind::Snapshot => ", snapshots",
    };
    text.push_line(format!("driver {driver} in namespace {namespace}{about}"));
    text.push_line(format!("  leak detection: {}", report.leak_detection));
    match report.time {
        Some(time) => text.push_line(format!("  scanned: {}", format_time_and_age(time, now))),
        None => text.push_line("  scanned: never"),
    }
    if let Some(failure) = &report.failure {
        let failed = format_time_and_age(failure.time, now);
        text.push_line(format!("  the scan of {failed} failed: {}", failure.message));
    }
    if report.deletions_frozen {
        text.push_line(format!("  deletions frozen: {}", rules::frozen_message(*kind, namespace)));
    }
    if report.counts.total() > 0 {
        text.push_line(format!("  {kind}s: {}", format_counts(&report.counts)));
    }
    if let Some(DeletionRequest { handle, requested_at, requested_by }) = driver_report.readable_request() {
        let state = if driver_report.is_deleting() { "being deleted" } else { "to be deleted" };
        let requested_at = format_time_and_age(requested_at, now);
        text.push_line(format!("  {state}: {handle}, as {requested_by} asked {requested_at}"));
    } else if let Some(DeletionResponse { request: Some(request), result, message, answered_at }) =
        DeletionResponse::read(&driver_report.config_map)
    {
        let anonymous_response = DeletionResponse { request: None, result, message, answered_at };
        let mut line = TerminalText::from(format!(
            "  last request, answered {}: ",
            format_time_and_age(answered_at, now)
        ));
        line.push(format_response(driver_report, &request, &anonymous_response));
        text.push_line(line);
    }
    write_orphans(text, &report, now);
}

fn format_counts(counts: &ListedCounts) -> String {
    let ListedCounts {
        referenced,
        orphan,
        within_grace_period,
        no_owner,
        other_cluster,
        retained,
        group_member,
    } = *counts;
    let mut text = format!(
        "{referenced} referenced, {orphan} orphan, {within_grace_period} grace period, {} unmanaged",
        counts.unmanaged()
    );
    let reasons = [
        (no_owner, "without an owner"),
        (other_cluster, "of another cluster"),
        (retained, "not to be deleted"),
        (group_member, "in a group"),
    ];
    let reasons: Vec<String> = reasons
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, reason)| format!("{count} {reason}"))
        .collect();
    if !reasons.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(text, " ({})", reasons.join(", "));
    }
    text
}

/// Writes the table of volumes or snapshots.
fn write_orphans(text: &mut TerminalText, report: &ScanReport, now: Timestamp) {
    let row = |state: &str, orphan: &Orphan| {
        let (created_as, created_for) = match &orphan.created_for {
            CreatedFor::Claim { claim, volume } => (volume.to_string(), claim.to_string()),
            CreatedFor::Snapshot { snapshot, content } => (content.to_string(), snapshot.to_string()),
        };
        [
            state.to_owned(),
            orphan.handle.to_string(),
            orphan.bytes.map_or_else(|| "unknown".to_owned(), format_size),
            format_time_and_age(orphan.since, now),
            created_as,
            created_for,
        ]
    };
    let orphans = report.orphans.iter().map(|orphan| row("orphan", orphan));
    let within_grace_period = report.within_grace_period.iter().map(|orphan| row("grace period", orphan));
    let created_for = match report.kind {
        OrphanKind::Volume => "FOR CLAIM",
        OrphanKind::Snapshot => "FOR SNAPSHOT",
    };
    let mut table = TextTable::new(["STATE", "HANDLE", "SIZE", "UNCHANGED SINCE", "CREATED AS", created_for])
        .indented("  ");
    if report.orphans.is_empty() && report.within_grace_period.is_empty() {
        return;
    }
    orphans.chain(within_grace_period).for_each(|row| table.push(row));
    text.push(table.to_text());
    for (more, what) in [
        (report.unlisted_orphans, "orphans".to_owned()),
        (report.unlisted_within_grace_period, format!("{}s within the grace period", report.kind)),
    ] {
        if more > 0 {
            text.push_line(format!("  … and {more} more {what}: the report is full"));
        }
    }
}

/// Formats a time with its age.
fn format_time_and_age(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(time).as_secs().max(0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let ago = match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m"),
        (0, _, _) => format!("{hours}h{minutes}m"),
        (_, _, _) => format!("{days}d{hours}h"),
    };
    let time = Timestamp::from_second(time.as_second()).unwrap_or(time);
    format!("{time} ({ago} ago)")
}

/// Formats bytes in the largest unit with a value of at least one.
fn format_size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let Some((unit, shift)) = units.into_iter().find(|(_, shift)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let (whole, rest) = (bytes >> shift, bytes & ((1 << shift) - 1));
    let tenths = (u128::from(rest) * 10) >> shift;
    if tenths == 0 { format!("{whole} {unit}") } else { format!("{whole}.{tenths} {unit}") }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
