//! Text for terminals: colours, and escaping of control and format characters.

use cofferdam_domain::text::{escape_control_and_format, is_control_or_format};
use serde_json::Value;

/// Colour or weight of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    /// Unchanged.
    Default,
    /// For secondary text.
    Dim,
    /// For titles and for actions of a user.
    Bold,
    /// For completed work and healthy states.
    Green,
    /// For waiting work and for notices.
    Yellow,
    /// For failures.
    Red,
    /// For changes of objects.
    Cyan,
}

/// Style of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    /// Enables colours; off for pipes, files and `NO_COLOR`.
    pub(crate) colours: bool,
}

impl Style {
    /// Returns the text in a colour.
    pub(crate) fn paint(self, colour: Colour, text: impl Into<TerminalText>) -> TerminalText {
        let text = text.into();
        let code = match colour {
            Colour::Default => return text,
            Colour::Dim => "2",
            Colour::Bold => "1",
            Colour::Green => "32",
            Colour::Yellow => "33",
            Colour::Red => "31",
            Colour::Cyan => "36",
        };
        let is_painted = self.colours && !text.0.is_empty();
        if is_painted { TerminalText(format!("\x1b[{code}m{}\x1b[0m", text.0)) } else { text }
    }
}

/// Text that a terminal shows without interpreting it.
///
/// Names, messages and handles come from users, drivers and other programs. Every text that becomes a
/// `TerminalText` is escaped ([`escape_control_and_format`]), so the only control characters in it are the
/// ends of lines of [`Self::push_line`] and the colours of [`Style::paint`]. Commands print this type only,
/// and tables contain no other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TerminalText(String);

impl<T: AsRef<str>> From<T> for TerminalText {
    /// Escapes a text of one line, also its line breaks.
    fn from(text: T) -> Self {
        Self(escape_control_and_format(text.as_ref()))
    }
}

impl TerminalText {
    /// Escapes a text of several lines. Its line feeds remain, so it must have values of others only where a
    /// line feed in them cannot be mistaken for the program's.
    pub(crate) fn from_lines(text: &str) -> Self {
        let mut lines = Self::default();
        for line in text.split_inclusive('\n') {
            match line.strip_suffix('\n') {
                Some(line) => lines.push_line(line),
                None => lines.push(line),
            }
        }
        lines
    }

    /// Like [`Self::from_lines`], for the output of a program part that adds colours itself: ANSI colours and
    /// weights (`ESC [ number m`) remain too.
    pub(crate) fn from_coloured_lines(text: &str) -> Self {
        let mut parts = text.split("\x1b[");
        let mut lines = Self::from_lines(parts.next().unwrap_or_default());
        for part in parts {
            let code = part.split_once('m').filter(|(code, _)| code.bytes().all(|b| b.is_ascii_digit()));
            match code {
                Some((code, rest)) => {
                    lines.0.push_str("\x1b[");
                    lines.0.push_str(code);
                    lines.0.push('m');
                    lines.push(Self::from_lines(rest));
                }
                None => {
                    lines.push("\x1b[");
                    lines.push(Self::from_lines(part));
                }
            }
        }
        lines
    }

    /// Formats indented JSON with a line feed at its end. Control and format characters are escapes of JSON,
    /// so a program reads the original values.
    pub(crate) fn from_json(value: &Value) -> Self {
        let json = format!("{value:#}");
        let mut escaped = String::with_capacity(json.len() + 1);
        let mut buffer = [0; 2];
        for c in json.chars() {
            // Outside of strings, JSON's only control characters are those of its indentation.
            if c != '\n' && is_control_or_format(c) {
                escaped.extend(c.encode_utf16(&mut buffer).iter().map(|unit| format!("\\u{unit:04x}")));
            } else {
                escaped.push(c);
            }
        }
        escaped.push('\n');
        Self(escaped)
    }

    /// Returns the text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Number of characters, including those of colours.
    pub(crate) fn width(&self) -> usize {
        self.0.chars().count()
    }

    /// Appends a text.
    pub(crate) fn push(&mut self, text: impl Into<Self>) {
        self.0.push_str(&text.into().0);
    }

    /// Appends a line.
    pub(crate) fn push_line(&mut self, line: impl Into<Self>) {
        self.push(line);
        self.0.push('\n');
    }

    /// Appends spaces up to a width.
    pub(crate) fn pad_to(&mut self, width: usize) {
        self.0.extend(std::iter::repeat_n(' ', width.saturating_sub(self.width())));
    }

    /// Removes white space at the end.
    pub(crate) fn trim_end(&mut self) {
        self.0.truncate(self.0.trim_end().len());
    }

    /// Cuts a text without colours to a number of characters, of which `…` is the last one.
    pub(crate) fn truncate(&mut self, max_width: usize) {
        if self.width() > max_width {
            self.0 = self.0.chars().take(max_width.saturating_sub(1)).chain(['…']).collect();
        }
    }

    /// Joins texts with a separator.
    pub(crate) fn join(texts: impl IntoIterator<Item = Self>, separator: &str) -> Self {
        let mut joined = Self::default();
        for (index, text) in texts.into_iter().enumerate() {
            if index > 0 {
                joined.push(separator);
            }
            joined.push(text);
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_colours_and_ends_of_lines_are_control_characters() {
        let mut text = TerminalText::from("a\u{1b}[2J\u{9b}1m\u{202e}b\n");
        assert_eq!(text.as_str(), "a\\u{1b}[2J\\u{9b}1m\\u{202e}b\\u{a}");
        text = TerminalText::default();
        text.push_line(Style { colours: true }.paint(Colour::Red, "x\u{1b}[0m"));
        assert_eq!(text.as_str(), "\u{1b}[31mx\\u{1b}[0m\u{1b}[0m\n");
        assert_eq!(Style { colours: false }.paint(Colour::Red, "x").as_str(), "x");
        let lines = "a\tb\n\n  c\u{2066}";
        assert_eq!(TerminalText::from_lines(lines).as_str(), "a\\u{9}b\n\n  c\\u{2066}");
        let coloured = "\u{1b}[1mok\u{1b}[0m\n\u{1b}]52;c;x\u{7}\u{1b}[2Jm\u{1b}";
        assert_eq!(
            TerminalText::from_coloured_lines(coloured).as_str(),
            "\u{1b}[1mok\u{1b}[0m\n\\u{1b}]52;c;x\\u{7}\\u{1b}[2Jm\\u{1b}"
        );
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = json!({"a\u{202e}": ["\u{1b}[2J\u{9b}\n\u{7f}", "\u{e0041}é", 1]});
        let text = TerminalText::from_json(&value);
        assert!(!text.as_str().chars().any(|c| c != '\n' && is_control_or_format(c)), "{text:?}");
        assert!(text.as_str().contains("é") && text.as_str().ends_with("}\n"), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(text.as_str()).unwrap(), value);
    }

    #[test]
    fn texts_are_padded_cut_and_joined() {
        let mut text = TerminalText::from("äb");
        text.pad_to(4);
        assert_eq!(text.as_str(), "äb  ");
        text.trim_end();
        text.truncate(2);
        assert_eq!(text.as_str(), "äb");
        text.push("cd");
        text.truncate(3);
        assert_eq!(text.as_str(), "äb…");
        assert_eq!(TerminalText::join(["a", "b"].map(TerminalText::from), ", ").as_str(), "a, b");
    }
}
