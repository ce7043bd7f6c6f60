//! The syntax of Go's command lines.
//!
//! Sources: Go's package `flag`, and `github.com/spf13/pflag`, which csi-provisioner uses.

use super::{flags::SidecarFlag, program::GoPackage, value::ValueType};

/// Arguments that are no command line of the sidecar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SyntaxError {
    #[error("flag provided but not defined: --{name}: expected a flag of {program}, as --help lists them")]
    UnknownFlag { name: String, program: &'static str },
    /// The argument without its value, which may be a secret.
    #[error("bad flag syntax: {0}: expected --NAME or --NAME=VALUE")]
    BadSyntax(String),
    #[error("flag needs an argument: --{flag}: expected {expected}")]
    MissingValue { flag: &'static str, expected: &'static str },
    #[error("invalid value {value:?} for flag --{flag}: expected {expected}")]
    InvalidValue { flag: &'static str, value: String, expected: &'static str },
}

/// An argument up to its first `=`. The rest may be a secret.
pub(super) fn without_value(argument: &str) -> &str {
    argument.split_once('=').map_or(argument, |(name, _)| name)
}

/// A flag of the command line, with its value in the syntax of the program's settings.
#[derive(Clone, Debug)]
pub(super) struct GivenFlag {
    pub(super) flag: &'static SidecarFlag,
    pub(super) value: String,
}

/// A parsed command line.
#[derive(Clone, Debug, Default)]
pub(super) struct GivenFlags {
    /// The flags, in order.
    pub(super) flags: Vec<GivenFlag>,
    /// Arguments that are no flags, and with package `flag` also all arguments after the first of them. The
    /// sidecars ignore them.
    pub(super) ignored: Vec<String>,
    /// True with `-h` or `--help`.
    pub(super) help: bool,
}

/// Parses a command line. One and two dashes mean the same, as in package `flag`; pflag accepts one dash for
/// `-v` only, so manifests of csi-provisioner have two.
///
/// # Errors
/// [`SyntaxError`]
pub(super) fn parse(
    arguments: impl IntoIterator<Item = String>,
    package: GoPackage,
    program: &'static str,
    find: impl Fn(&str) -> Option<&'static SidecarFlag>,
) -> Result<GivenFlags, SyntaxError> {
    let mut given = GivenFlags::default();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let name = match argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) {
            Some("") if argument == "--" => {
                given.ignored.extend(arguments);
                break;
            }
            Some(name) if !name.is_empty() => name,
            _ => {
                given.ignored.push(argument);
                if package == GoPackage::Flag {
                    given.ignored.extend(arguments);
                    break;
                }
                continue;
            }
        };
        if name.starts_with(['-', '=']) {
            return Err(SyntaxError::BadSyntax(without_value(&argument).to_owned()));
        }
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (name, None),
        };
        if matches!(name, "h" | "help") {
            given.help = true;
            return Ok(given);
        }
        let (flag, value) = match find(name) {
            Some(flag) => (flag, value),
            None => shorthand(&argument, package, &find)
                .ok_or_else(|| SyntaxError::UnknownFlag { name: name.to_owned(), program })?,
        };
        let value = match (value, flag.value) {
            (Some(value), _) => value,
            (None, ValueType::Bool) => "true".to_owned(),
            (None, kind) => arguments
                .next()
                .ok_or(SyntaxError::MissingValue { flag: flag.name, expected: kind.expected() })?,
        };
        let Some(normalized) = flag.value.normalize(&value) else {
            let expected = flag.value.expected();
            return Err(SyntaxError::InvalidValue { flag: flag.name, value, expected });
        };
        given.flags.push(GivenFlag { flag, value: normalized.into_owned() });
    }
    Ok(given)
}

/// Parses `-v5`, which is `-v=5` in pflag: a flag of one letter, with its value.
fn shorthand(
    argument: &str,
    package: GoPackage,
    find: impl Fn(&str) -> Option<&'static SidecarFlag>,
) -> Option<(&'static SidecarFlag, Option<String>)> {
    let text = argument.strip_prefix('-').filter(|text| !text.starts_with('-'))?;
    let (name, value) = text.split_at_checked(1).filter(|_| package == GoPackage::Pflag)?;
    Some((find(name)?, Some(value.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sidecar::flags::FlagEffect;

    static FLAGS: [SidecarFlag; 10] = [
        flag("leader-election", ValueType::Bool),
        flag("timeout", ValueType::Duration),
        flag("v", ValueType::Verbosity),
        flag("threads", ValueType::Uint),
        flag("qps", ValueType::Float),
        flag("vmodule", ValueType::ModuleVerbosity),
        flag("stderrthreshold", ValueType::Severity),
        flag("log_backtrace_at", ValueType::SourceLine),
        flag("buffer", ValueType::Quantity),
        flag("csi-address", ValueType::Text),
    ];

    const fn flag(name: &'static str, value: ValueType) -> SidecarFlag {
        SidecarFlag { name, sidecars: &[], value, default: "", effect: FlagEffect::Ignored("") }
    }

    fn parse_text(text: &str, package: GoPackage) -> Result<GivenFlags, SyntaxError> {
        let find = |name: &str| FLAGS.iter().find(|flag| flag.name == name);
        parse(text.split(' ').map(str::to_owned), package, "csi-x", find)
    }

    fn parsed(text: &str, package: GoPackage) -> String {
        match parse_text(text, package) {
            Ok(given) => {
                let flags = given.flags.iter().map(|given| format!("{}={}", given.flag.name, given.value));
                let ignored = given.ignored.iter().map(|argument| format!("[{argument}]"));
                let help = given.help.then(|| "help".to_owned());
                flags.chain(ignored).chain(help).collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn dashes_values_and_booleans_are_parsed_as_in_go() {
        let table = [
            ("--timeout=10s -timeout 1m --csi-address /s", "timeout=10s timeout=1m csi-address=/s"),
            ("--leader-election -leader-election=F", "leader-election=true leader-election=false"),
            ("-v 5 --v=007 --v=2147483647", "v=5 v=7 v=2147483647"),
            ("--threads=0x_2 --threads=1_0 --threads=0_7", "threads=2 threads=10 threads=7"),
            ("--qps=1_0.5 --qps=inf --qps=NaN", "qps=1_0.5 qps=inf qps=NaN"),
            ("--vmodule=a=1,b*=2, --vmodule=", "vmodule=a=1,b*=2, vmodule="),
            ("--stderrthreshold=fatal --stderrthreshold=-1", "stderrthreshold=fatal stderrthreshold=-1"),
            ("--buffer=64Ki --buffer=-1", "buffer=64Ki buffer=-1"),
            ("--log_backtrace_at=a.go:1 --log_backtrace_at=", "log_backtrace_at=a.go:1 log_backtrace_at="),
            ("--csi-address=a=b --csi-address=", "csi-address=a=b csi-address="),
            ("--timeout=0 --timeout -1s", "timeout=0 timeout=-1s"),
            ("--v=1 -- --v=2 x", "v=1 [--v=2] [x]"),
            ("--v=1 -h --unknown", "v=1 help"),
        ];
        for (text, expected) in table {
            assert_eq!(parsed(text, GoPackage::Flag), expected, "{text}");
            assert_eq!(parsed(text, GoPackage::Pflag), expected, "{text}");
        }
    }

    #[test]
    fn the_first_other_argument_ends_the_flags_of_package_flag_only() {
        let text = "--leader-election true --v=3";
        assert_eq!(parsed(text, GoPackage::Flag), "leader-election=true [true] [--v=3]");
        assert_eq!(parsed(text, GoPackage::Pflag), "leader-election=true v=3 [true]");
        assert_eq!(parsed("-v5", GoPackage::Pflag), "v=5");
        assert!(parse_text("-v5", GoPackage::Flag).is_err());
    }

    #[test]
    fn an_invalid_argument_is_rejected_by_name_value_and_expectation() {
        let table = [
            ("--tiemout=1s", "flag provided but not defined: --tiemout: expected a flag of csi-x"),
            ("---v", "bad flag syntax: ---v: expected --NAME or --NAME=VALUE"),
            ("--=1", "bad flag syntax: --: expected"),
            ("--timeout", "flag needs an argument: --timeout: expected a duration such as 500ms"),
            ("--timeout=10", "invalid value \"10\" for flag --timeout: expected a duration"),
            ("--timeout=1d", "invalid value \"1d\" for flag --timeout"),
            ("--timeout=1.2.3s", "invalid value \"1.2.3s\" for flag --timeout"),
            ("--v=-1", "invalid value \"-1\" for flag --v: expected a number from 0 to 2147483647"),
            ("--v=+1", "invalid value \"+1\" for flag --v"),
            ("--v=0x2", "invalid value \"0x2\" for flag --v"),
            ("--v=1_0", "invalid value \"1_0\" for flag --v"),
            ("--v=2147483648", "invalid value \"2147483648\" for flag --v"),
            ("--v=", "invalid value \"\" for flag --v"),
            (
                "--threads=-1",
                "invalid value \"-1\" for flag --threads: expected a number that is not negative",
            ),
            ("--threads=+1", "invalid value \"+1\" for flag --threads"),
            ("--threads=_1", "invalid value \"_1\" for flag --threads"),
            ("--threads=1_", "invalid value \"1_\" for flag --threads"),
            ("--threads=1__0", "invalid value \"1__0\" for flag --threads"),
            ("--threads=-+5", "invalid value \"-+5\" for flag --threads"),
            ("--threads=+-5", "invalid value \"+-5\" for flag --threads"),
            ("--threads=0x", "invalid value \"0x\" for flag --threads"),
            ("--qps=1__0", "invalid value \"1__0\" for flag --qps: expected a decimal number"),
            ("--qps=1_.5", "invalid value \"1_.5\" for flag --qps"),
            ("--qps=1e400", "invalid value \"1e400\" for flag --qps"),
            ("--vmodule=a", "invalid value \"a\" for flag --vmodule: expected PATTERN=NUMBER, with commas"),
            ("--vmodule=a=1=2", "invalid value \"a=1=2\" for flag --vmodule"),
            ("--vmodule==1", "invalid value \"=1\" for flag --vmodule"),
            ("--vmodule=a=1,b=x", "invalid value \"a=1,b=x\" for flag --vmodule"),
            (
                "--stderrthreshold=loud",
                "invalid value \"loud\" for flag --stderrthreshold: expected INFO, WARNING, ERROR, FATAL",
            ),
            ("--stderrthreshold=", "invalid value \"\" for flag --stderrthreshold"),
            (
                "--log_backtrace_at=a.go",
                "invalid value \"a.go\" for flag --log_backtrace_at: expected FILE:LINE, such as",
            ),
            ("--log_backtrace_at=a:1", "invalid value \"a:1\" for flag --log_backtrace_at"),
            ("--log_backtrace_at=a.go:0", "invalid value \"a.go:0\" for flag --log_backtrace_at"),
            ("--log_backtrace_at=a.go:1:2", "invalid value \"a.go:1:2\" for flag --log_backtrace_at"),
            (
                "--buffer=many",
                "invalid value \"many\" for flag --buffer: expected a quantity such as 512 or 64Ki",
            ),
            ("--buffer=", "invalid value \"\" for flag --buffer"),
            ("--v=9z", "invalid value \"9z\" for flag --v"),
            ("--v=99999999999999999999", "invalid value \"99999999999999999999\" for flag --v"),
            (
                "--leader-election=yes",
                "invalid value \"yes\" for flag --leader-election: expected true or false",
            ),
        ];
        for (text, expected) in table {
            let error = parse_text(text, GoPackage::Flag).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
