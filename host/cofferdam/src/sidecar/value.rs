//! The types of flag values.
//!
//! Source: Go's packages `flag`, `strconv` and `time`.

use std::borrow::Cow;

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
                parse_int(text).filter(|number| *number >= 0).map(|number| number.to_string().into())
            }
            Self::Float => text.parse::<f64>().is_ok().then_some(text.into()),
            Self::Duration => is_duration(text).then_some(text.into()),
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
    let is_digit = |c: char| c.is_digit(base) || c == '_';
    let digits: String = if digits.chars().all(is_digit) { digits.replace('_', "") } else { return None };
    i64::from_str_radix(&digits, base).ok().map(|number| sign * number)
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
