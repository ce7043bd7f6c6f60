//! Texts of values in the reports.

pub(super) fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// Formats milliseconds.
pub(super) fn format_milliseconds(milliseconds: f64) -> String {
    if milliseconds < 1000.0 {
        format!("{milliseconds:.1} ms")
    } else {
        format!("{:.2} s", milliseconds / 1000.0)
    }
}
