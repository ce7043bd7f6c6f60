//! What goes to a terminal: colours or none, and nothing that it would act on.

/// A way to write text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    /// As it is.
    Default,
    /// For what is on the side.
    Dim,
    /// For what a person did.
    Bold,
    /// It is where it shall be.
    Green,
    /// It waits.
    Yellow,
    /// It failed.
    Red,
    /// It changed.
    Cyan,
}

/// Whether colours are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    /// Off for pipes, files and `NO_COLOR`.
    pub(crate) colours: bool,
}

impl Style {
    /// The text in this colour.
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

/// Text that a driver or a person has made, without what a terminal would act on.
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
