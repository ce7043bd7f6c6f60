//! Sanitizes text from drivers and other programs.

/// Maximum length of a message in bytes, without the `…` of a truncated one. The API server limits event
/// messages to 1,024 bytes.
const MAX_MESSAGE_BYTES: usize = 1_000;

/// Replaces control characters with spaces, and truncates a text of more than 1,000 bytes at a character
/// boundary.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(MAX_MESSAGE_BYTES));
    for c in text.chars() {
        if shown.len() + c.len_utf8() > MAX_MESSAGE_BYTES {
            shown.push('…');
            break;
        }
        shown.push(if c.is_control() { ' ' } else { c });
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_is_one_line_without_control_characters() {
        assert_eq!(printable("a\u{1b}[31m\nb\u{7f}é"), "a [31m b é");
        let long = printable(&"é".repeat(1 << 20));
        assert!(long.len() <= MAX_MESSAGE_BYTES + '…'.len_utf8() && long.ends_with("é…"));
    }
}
