//! The types of flag values.
//!
//! Sources: Go's packages `flag`, `strconv` and `time`, component-base's `logs/api/v1/pflags.go`, and klog.

use std::borrow::Cow;

use cofferdam_domain::{Quantity, QuantityError};

/// Names of klog's severities, in any case.
const SEVERITIES: [&str; 4] = ["INFO", "WARNING", "ERROR", "FATAL"];

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    /// A boolean of `strconv.ParseBool`. The flag without a value means true; a separate argument is not its
    /// value.
    Bool,
    /// An integer, in decimal or with a prefix such as `0x`.
    Int,
    /// An integer that is not negative.
    Uint,
    /// A floating-point number.
    Float,
    /// A duration of `time.ParseDuration`.
    Duration,
    /// A log level: decimal digits, below 2^31.
    Verbosity,
    /// Log levels of modules.
    ModuleVerbosity,
    /// A severity of klog: a name, or a decimal number of 32 bits.
    Severity,
    /// A line of a source file.
    SourceLine,
    /// A quantity of the Kubernetes API.
    Quantity,
    /// Labels: `KEY:VALUE`, with commas between several. The setting checks keys and values.
    Labels,
    /// Any text.
    Text,
}

impl ValueType {
    pub(super) const fn expected(self) -> &'static str {
        match self {
            Self::Bool => "true or false",
            Self::Int => "a number",
            Self::Uint => "a number that is not negative",
            Self::Float => "a decimal number",
            Self::Duration => "a duration such as 500ms, 10s or 1m30s",
            Self::Verbosity => "a number from 0 to 2147483647",
            Self::ModuleVerbosity => "PATTERN=NUMBER, with commas between several",
            Self::Severity => "INFO, WARNING, ERROR, FATAL or a number",
            Self::SourceLine => "FILE:LINE, such as main.go:42",
            Self::Quantity => "a quantity such as 512 or 64Ki",
            Self::Labels => "KEY:VALUE, with commas between several",
            Self::Text => "a text",
        }
    }

    /// Converts a value to the syntax of the program's settings; `None` if Go rejects the value.
    pub(super) fn normalize(self, text: &str) -> Option<Cow<'_, str>> {
        match self {
            Self::Bool => match text {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => Some("true".into()),
                "0" | "f" | "F" | "false" | "FALSE" | "False" => Some("false".into()),
                _ => None,
            },
            Self::Int => parse_int(text).map(|number| number.to_string().into()),
            Self::Uint => {
                let unsigned = Some(text).filter(|text| !text.starts_with(['+', '-']));
                unsigned.and_then(parse_int).map(|number| number.to_string().into())
            }
            Self::Float => is_float(text).then_some(text.into()),
            Self::Duration => is_duration(text).then_some(text.into()),
            Self::Verbosity => parse_verbosity(text).map(|level| level.to_string().into()),
            Self::ModuleVerbosity => is_module_verbosity(text).then_some(text.into()),
            Self::Severity => is_severity(text).then_some(text.into()),
            Self::SourceLine => is_source_line(text).then_some(text.into()),
            Self::Quantity => is_quantity(text).then_some(text.into()),
            Self::Labels => text.split(',').all(|label| label.contains(':')).then_some(text.into()),
            Self::Text => Some(text.into()),
        }
    }
}

/// Parses an integer like `strconv.ParseInt` with base 0: a sign, a prefix of the base, and underscores
/// between digits.
fn parse_int(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.starts_with(['-', '+']) {
        return None;
    }
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = match lower.split_at_checked(2) {
        Some(("0x", digits)) => (16, digits),
        Some(("0o", digits)) => (8, digits),
        Some(("0b", digits)) => (2, digits),
        Some(_) | None => match lower.strip_prefix('0').filter(|digits| !digits.is_empty()) {
            Some(digits) => (8, digits),
            None => (10, lower.as_str()),
        },
    };
    if digits.is_empty() {
        return None;
    }
    // An underscore may follow the prefix of the base, which counts as a digit.
    let digits = if base == 10 { digits.to_owned() } else { format!("0{digits}") };
    let digits = without_underscores(&digits, |c| c.is_digit(base))?;
    i64::from_str_radix(&digits, base).ok().map(|number| sign * number)
}

/// Removes underscores, each of which must be between two digits.
fn without_underscores(text: &str, is_digit: impl Fn(char) -> bool) -> Option<String> {
    let is_end = |part: Option<char>| part.is_some_and(&is_digit);
    let mut parts = text.split('_').peekable();
    let mut is_first = true;
    while let Some(part) = parts.next() {
        let starts_well = is_first || is_end(part.chars().next());
        let ends_well = parts.peek().is_none() || is_end(part.chars().next_back());
        if !starts_well || !ends_well {
            return None;
        }
        is_first = false;
    }
    Some(text.replace('_', ""))
}

/// Reports if Go parses the text as a floating-point number, which may be infinite or no number. Hexadecimal
/// numbers are an exception.
fn is_float(text: &str) -> bool {
    let Some(text) = without_underscores(text, |c| c.is_ascii_digit()) else { return false };
    let is_too_large = |number: f64| number.is_infinite() && text.contains(|c: char| c.is_ascii_digit());
    text.parse().is_ok_and(|number| !is_too_large(number))
}

/// Parses a log level like `strconv.ParseUint` with base 10 and 31 bits.
fn parse_verbosity(text: &str) -> Option<i32> {
    let is_number = text.chars().all(|c| c.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Reports if component-base parses the text as log levels of modules. It skips empty items.
fn is_module_verbosity(text: &str) -> bool {
    let is_valid = |item: &str| {
        let (pattern, level) = item.split_once('=')?;
        parse_verbosity(level).filter(|_| !pattern.is_empty())
    };
    text.split(',').filter(|item| !item.is_empty()).all(|item| is_valid(item).is_some())
}

fn is_severity(text: &str) -> bool {
    SEVERITIES.iter().any(|name| name.eq_ignore_ascii_case(text)) || text.parse::<i32>().is_ok()
}

/// Reports if klog parses the text as a line of a source file. The empty text is none.
fn is_source_line(text: &str) -> bool {
    let is_valid =
        |(file, line): (&str, &str)| file.contains('.') && line.parse::<i64>().is_ok_and(|line| line > 0);
    text.is_empty() || text.split_once(':').is_some_and(is_valid)
}

/// Reports if the text is a quantity, which may be negative or large.
fn is_quantity(text: &str) -> bool {
    !matches!(Quantity::parse(text), Err(QuantityError::Syntax(_)))
}

/// Reports if Go parses the text as a duration, which may be zero or negative.
fn is_duration(text: &str) -> bool {
    const UNITS: [&str; 8] = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"];
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    while !rest.is_empty() {
        let unit_at = rest.find(|c| !is_number(c)).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(unit_at);
        let has_digit = number.contains(|c: char| c.is_ascii_digit());
        if !has_digit || number.matches('.').count() > 1 {
            return false;
        }
        let number_at = tail.find(is_number).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(number_at);
        if !UNITS.contains(&unit) {
            return false;
        }
        rest = tail;
    }
    !text.is_empty() && text != "+" && text != "-"
}
