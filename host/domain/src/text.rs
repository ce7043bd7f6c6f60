//! Formats messages, and sanitizes text from drivers, API objects and other programs.

use std::{fmt, time::Duration};

/// Maximum length of a message in bytes, without the `…` of a truncated one. The API server limits event
/// messages to 1,024 bytes.
const MAX_MESSAGE_BYTES: usize = 1_000;

/// Returns true for characters that control how other text is shown: Unicode's general categories `Cc`
/// (control), `Cf` (format), `Zl` and `Zp` (separators of lines and of paragraphs). A terminal executes some
/// of them, such as ESC or the one-byte CSI U+009B; others change the direction of text (U+202E) or are
/// invisible (U+200B).
pub fn is_control_or_format(c: char) -> bool {
    // `Cf`, `Zl` and `Zp` of Unicode 16.0.
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{600}'..='\u{605}'
                | '\u{61c}'
                | '\u{6dd}'
                | '\u{70f}'
                | '\u{890}'..='\u{891}'
                | '\u{8e2}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{2064}'
                | '\u{2066}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{110bd}'
                | '\u{110cd}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0001}'
                | '\u{e0020}'..='\u{e007f}'
        )
}

/// Formats a duration for messages: in Go's format without units that are zero, such as `5m` or `1m30s`.
#[derive(Clone, Copy, Debug)]
pub struct DurationText(pub Duration);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let nanoseconds = self.0.subsec_nanos();
        if seconds == 0 {
            return match nanoseconds {
                0 => f.write_str("0s"),
                1..1_000 => write!(f, "{nanoseconds}ns"),
                1_000..1_000_000 => write!(f, "{}µs", f64::from(nanoseconds) / 1e3),
                1_000_000.. => write!(f, "{}ms", f64::from(nanoseconds) / 1e6),
            };
        }
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        if nanoseconds > 0 {
            let fraction = format!("{nanoseconds:09}");
            write!(f, "{seconds}.{}s", fraction.trim_end_matches('0'))?;
        } else if seconds > 0 {
            write!(f, "{seconds}s")?;
        }
        Ok(())
    }
}

/// Formats text for events, logs and errors: replaces control and format characters
/// ([`is_control_or_format`]) with spaces, and truncates a text of more than 1,000 bytes at a character
/// boundary. Redact secrets before: a truncated one is not recognised.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(MAX_MESSAGE_BYTES));
    for c in text.chars() {
        if shown.len() + c.len_utf8() > MAX_MESSAGE_BYTES {
            shown.push('…');
            break;
        }
        shown.push(shown_char(c));
    }
    shown
}

/// Replaces control and format characters ([`is_control_or_format`]) with spaces. The text keeps its length,
/// so that its secrets can still be redacted before it is shown ([`printable`]).
pub fn one_line(text: &str) -> String {
    text.chars().map(shown_char).collect()
}

fn shown_char(c: char) -> char {
    if is_control_or_format(c) { ' ' } else { c }
}

/// Formats text for terminals: escapes control and format characters ([`is_control_or_format`]) as `\u{1b}`.
/// The text keeps its length otherwise. Unlike [`printable`], two different names never look the same.
pub fn escape_control_and_format(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, c| {
        if is_control_or_format(c) {
            escaped.extend(c.escape_unicode());
        } else {
            escaped.push(c);
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_largest_units() {
        for (milliseconds, expected) in [
            (0, "0s"),
            (500, "500ms"),
            (30_000, "30s"),
            (90_500, "1m30.5s"),
            (300_000, "5m"),
            (3_600_000, "1h"),
        ] {
            assert_eq!(DurationText(Duration::from_millis(milliseconds)).to_string(), expected);
        }
    }

    /// ESC, a C1 control, an override of the direction, an isolate, invisible characters and separators.
    const HIDDEN: [char; 10] = [
        '\u{1b}',
        '\u{9b}',
        '\u{202e}',
        '\u{2066}',
        '\u{200b}',
        '\u{ad}',
        '\u{feff}',
        '\u{2028}',
        '\u{2029}',
        '\u{e0041}',
    ];

    #[test]
    fn printable_text_is_one_line_without_control_and_format_characters() {
        assert_eq!(printable("a\u{1b}[31m\nb\u{7f}é"), "a [31m b é");
        for hidden in HIDDEN {
            assert_eq!(printable(&format!("a{hidden}b")), "a b", "{hidden:?}");
        }
        let long = printable(&"é".repeat(1 << 20));
        assert!(long.len() <= MAX_MESSAGE_BYTES + '…'.len_utf8() && long.ends_with("é…"));
    }

    #[test]
    fn escaped_text_shows_control_and_format_characters() {
        assert_eq!(escape_control_and_format("a\u{1b}[2J\nb é"), "a\\u{1b}[2J\\u{a}b é");
        for hidden in HIDDEN {
            assert_eq!(escape_control_and_format(&hidden.to_string()), hidden.escape_unicode().to_string());
        }
        let visible = "Größe 2 TiB, naïve कि 値 👍🏽 \u{a0}";
        assert_eq!(escape_control_and_format(visible), visible);
    }

    /// The standard library's table of characters that cannot be shown includes these categories.
    #[test]
    fn no_control_or_format_character_is_printable_in_debug_output() {
        for c in ('\0'..=char::MAX).filter(|c| is_control_or_format(*c)) {
            assert!(c.escape_debug().next() == Some('\\'), "{c:?}");
        }
    }
}
