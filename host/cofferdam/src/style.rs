//! Text for terminals: colours, and escaping of control characters.

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
    pub(crate) fn paint(self, colour: Colour, text: &str) -> String {
        let code = match colour {
            Colour::Default => return text.to_owned(),
            Colour::Dim => "2",
            Colour::Bold => "1",
            Colour::Green => "32",
            Colour::Yellow => "33",
            Colour::Red => "31",
            Colour::Cyan => "36",
        };
        if self.colours && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Escapes control characters in text from drivers and users, which a terminal would interpret.
pub(crate) fn escape_control_chars(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, c| {
        if c.is_control() {
            escaped.extend(c.escape_unicode())
        } else {
            escaped.push(c)
        }
        escaped
    })
}
