//! The commands of `commands.txt`.

use anyhow::{Result, bail};

/// The number of runs of a command on each of the two API servers, and the compared output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RunMode {
    /// Run once, and compare the output.
    Once,
    /// Repeat until both outputs are equal, or the time limit is over. Compare the last outputs.
    UntilEqual,
    /// Run once, and store stdout as a variable for later commands of the same API server. Compare only the
    /// exit code and stderr. The field is the variable's name with the `$`.
    StoreVariable(String),
}

/// A command of `commands.txt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KubectlCommand {
    /// Line number in the file.
    pub(super) line: usize,
    /// The arguments, with one space between them.
    pub(super) arguments: String,
    pub(super) mode: RunMode,
    /// The id of the deviation, if the outputs of the two API servers have to differ. If `None`, what the
    /// mode compares has to be equal.
    pub(super) deviation: Option<String>,
}

/// Parses commands, one per line. Before the arguments there may be `~ID` (an intended difference), `until`
/// (repeat until both outputs are equal) or `$NAME` (store the output); at most one of these. Empty lines and
/// lines that start with `#` are ignored.
pub(super) fn parse(text: &str) -> Result<Vec<KubectlCommand>> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (command, mode, deviation) = if let Some(id) = first.strip_prefix('~') {
            (rest, RunMode::Once, Some(id.to_owned()))
        } else if first == "until" {
            (rest, RunMode::UntilEqual, None)
        } else if first.starts_with('$') {
            (rest, RunMode::StoreVariable(first.to_owned()), None)
        } else {
            (line, RunMode::Once, None)
        };
        if command.split(' ').any(str::is_empty) {
            bail!("line {}: {line:?}: expected words with one space between them", index + 1);
        }
        lines.push(KubectlCommand { line: index + 1, arguments: command.to_owned(), mode, deviation });
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_defines_its_run_mode() {
        let found = parse("# note\n\nget pvc\n~id version\nuntil get pv\n$UID get pv -o name").unwrap();
        let line = |number, command: &str, mode, deviation: Option<&str>| KubectlCommand {
            line: number,
            arguments: command.to_owned(),
            mode,
            deviation: deviation.map(str::to_owned),
        };
        let expected = [
            line(3, "get pvc", RunMode::Once, None),
            line(4, "version", RunMode::Once, Some("id")),
            line(5, "get pv", RunMode::UntilEqual, None),
            line(6, "get pv -o name", RunMode::StoreVariable("$UID".to_owned()), None),
        ];
        assert_eq!(found, expected);
        for wrong in ["~id", "get  pvc", "get pvc "] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
