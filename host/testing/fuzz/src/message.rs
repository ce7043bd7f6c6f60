//! Properties of messages that quote untrusted text.

use cofferdam_domain::text::is_control_or_format;

/// Asserts that a message can be shown: it has one line without control and format characters, is not empty,
/// and is not longer than `max_bytes`.
pub(crate) fn assert_printable(message: &str, max_bytes: usize) {
    assert!(!message.is_empty(), "an empty message");
    assert!(message.len() <= max_bytes, "{} bytes, expected at most {max_bytes}: {message}", message.len());
    let hidden = message.chars().find(|c| is_control_or_format(*c));
    assert_eq!(hidden, None, "a control or format character in {message:?}");
}
