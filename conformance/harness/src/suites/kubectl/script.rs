//! The commands, as `commands.txt` has them.

use anyhow::{Result, bail};

/// How a command is played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Once, and compared.
    Once,
    /// Until both answer the same.
    Until,
    /// Once, and what it prints is known by this name below.
    Variable(String),
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Where it stands.
    pub(super) number: usize,
    /// The arguments, with one space between them.
    pub(super) command: String,
    pub(super) mode: Mode,
    /// The difference that is kept.
    pub(super) kept: Option<String>,
}

/// Reads commands.
pub(super) fn lines(text: &str) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (command, mode, kept) = if let Some(id) = first.strip_prefix('~') {
            (rest, Mode::Once, Some(id.to_owned()))
        } else if first == "until" {
            (rest, Mode::Until, None)
        } else if first.starts_with('$') {
            (rest, Mode::Variable(first.to_owned()), None)
        } else {
            (line, Mode::Once, None)
        };
        if command.split(' ').any(str::is_empty) {
            bail!("line {}: {line:?}: expected words with one space between them", index + 1);
        }
        lines.push(Line { number: index + 1, command: command.to_owned(), mode, kept });
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_it_is_played() {
        let found = lines("# note\n\nget pvc\n~id version\nuntil get pv\n$UID get pv -o name").unwrap();
        let line = |number, command: &str, mode, kept: Option<&str>| Line {
            number,
            command: command.to_owned(),
            mode,
            kept: kept.map(str::to_owned),
        };
        let expected = [
            line(3, "get pvc", Mode::Once, None),
            line(4, "version", Mode::Once, Some("id")),
            line(5, "get pv", Mode::Until, None),
            line(6, "get pv -o name", Mode::Variable("$UID".to_owned()), None),
        ];
        assert_eq!(found, expected);
        for wrong in ["~id", "get  pvc", "get pvc "] {
            assert!(lines(wrong).is_err(), "{wrong:?}");
        }
    }
}
