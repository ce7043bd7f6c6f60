//! Text output of `cofferdam orphans`.

use std::fmt::Write as _;

use cofferdam_controllers::orphans::{
    report::{DeletionRequest, DeletionResponse, DeletionResult, Orphan, ScanReport, VolumeCounts},
    rules,
};
use cofferdam_domain::DriverName;
use jiff::Timestamp;

use super::report::DriverReport;
use crate::{style::escape_control_chars, table::TextTable};

/// Formats the response to a deletion request.
pub(super) fn format_response(
    driver: &DriverName,
    request: &DeletionRequest,
    response: &DeletionResponse,
) -> String {
    let result = match response.result {
        DeletionResult::Deleted => "deleted",
        DeletionResult::Refused => "refused",
    };
    let message = if response.message == result {
        String::new()
    } else {
        format!(": {}", escape_control_chars(&response.message))
    };
    format!("volume {} of {driver}: {result}{message}\n", escape_control_chars(request.handle.as_str()))
}

/// Formats all reports.
pub(super) fn format_reports(reports: &[DriverReport], now: Timestamp) -> String {
    if reports.is_empty() {
        return "no process reports about a driver: expected one that runs the role provisioner\n".to_owned();
    }
    let mut text = String::new();
    for (index, reports) in reports.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        write_report(&mut text, reports, now);
    }
    text
}

fn write_report(text: &mut String, report_entry: &DriverReport, now: Timestamp) {
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    let Some(report) = ScanReport::read(&report_entry.config_map) else {
        line(format!(
            "{}: the report in ConfigMap {} cannot be read by this version",
            escape_control_chars(&report_entry.driver),
            report_entry.config_map.key
        ));
        return;
    };
    line(format!("driver {}", escape_control_chars(&report_entry.driver)));
    line(format!("  leak detection: {}", report.leak_detection));
    match report.time {
        Some(time) => line(format!("  scanned: {}", format_time_and_age(time, now))),
        None => line("  scanned: never".to_owned()),
    }
    if let Some(failure) = &report.failure {
        line(format!(
            "  the scan of {} failed: {}",
            format_time_and_age(failure.time, now),
            escape_control_chars(&failure.message)
        ));
    }
    if report.deletions_frozen {
        line(format!(
            "  deletions frozen: {}",
            rules::frozen_message(&report_entry.config_map.key.namespace)
        ));
    }
    if report.counts.total() > 0 {
        line(format!("  volumes: {}", format_counts(&report.counts)));
    }
    if let Some(request) = report_entry.readable_request() {
        let state = if report_entry.is_deleting() { "being deleted" } else { "to be deleted" };
        let (handle, by) =
            (escape_control_chars(request.handle.as_str()), escape_control_chars(&request.requested_by));
        line(format!(
            "  {state}: {handle}, as {by} asked {}",
            format_time_and_age(request.requested_at, now)
        ));
    } else if let Some(DeletionResponse { request: Some(request), result, message, answered_at }) =
        DeletionResponse::read(&report_entry.config_map)
    {
        let anonymous_response = DeletionResponse { request: None, result, message, answered_at };
        let response_text = format_response(&report.driver, &request, &anonymous_response);
        line(format!(
            "  last request, answered {}: {}",
            format_time_and_age(answered_at, now),
            response_text.trim_end()
        ));
    }
    write_volumes(text, &report, now);
}

fn format_counts(counts: &VolumeCounts) -> String {
    let VolumeCounts { referenced, orphan, within_grace_period, no_owner, other_cluster, retained } = *counts;
    let mut text = format!(
        "{referenced} referenced, {orphan} orphan, {within_grace_period} grace period, {} unmanaged",
        counts.unmanaged()
    );
    let reasons = [
        (no_owner, "without an owner"),
        (other_cluster, "of another cluster"),
        (retained, "not to be deleted"),
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

/// Writes the table of volumes.
fn write_volumes(text: &mut String, report: &ScanReport, now: Timestamp) {
    let row = |state: &str, orphan: &Orphan| {
        [
            state.to_owned(),
            escape_control_chars(orphan.handle.as_str()),
            orphan.bytes.map_or_else(|| "unknown".to_owned(), format_size),
            format_time_and_age(orphan.since, now),
            escape_control_chars(orphan.volume.as_str()),
            escape_control_chars(orphan.claim.as_str()),
        ]
    };
    let orphans = report.orphans.iter().map(|orphan| row("orphan", orphan));
    let within_grace_period = report.within_grace_period.iter().map(|orphan| row("grace period", orphan));
    let mut table = TextTable::new(["STATE", "HANDLE", "SIZE", "UNCHANGED SINCE", "CREATED AS", "FOR CLAIM"])
        .indented("  ");
    if report.orphans.is_empty() && report.within_grace_period.is_empty() {
        return;
    }
    orphans.chain(within_grace_period).for_each(|row| table.push(row));
    text.push_str(&table.to_string());
    for (more, what) in [
        (report.unlisted_orphans, "orphans"),
        (report.unlisted_within_grace_period, "volumes within the grace period"),
    ] {
        if more > 0 {
            let _ = writeln!(text, "  … and {more} more {what}: the report is full");
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
