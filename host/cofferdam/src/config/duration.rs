//! Durations in Go's syntax, for manifests written for the Go sidecars. The parser of `kube::core::Duration`
//! panics if a number exceeds the range of its type.

use std::{fmt, str::FromStr, time::Duration};

use cofferdam_domain::text::DurationText;

/// A duration in the syntax of Go's `time.ParseDuration`: `10s`, `1m30s`, `500ms`, `1.5h`. Parsed durations
/// are above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GoDuration(Duration);

/// Text that is not a duration, or one of zero or of more than [`u64::MAX`] nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration: expected one above zero such as 500ms, 10s or 1m30s")]
pub(crate) struct InvalidDuration(String);

/// Units and their nanoseconds.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Digits after the decimal point that are parsed, more than a nanosecond of an hour needs; further ones are
/// ignored.
const FRACTION_DIGITS: usize = 15;

impl GoDuration {
    pub(crate) const fn get(self) -> Duration {
        self.0
    }
}

impl FromStr for GoDuration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        let bad = || InvalidDuration(text.to_owned());
        let mut rest = text.strip_prefix('+').unwrap_or(text);
        let mut nanoseconds: u64 = 0;
        while !rest.is_empty() {
            let (part, tail) = parse_component(rest).ok_or_else(bad)?;
            nanoseconds = nanoseconds.checked_add(part).ok_or_else(bad)?;
            rest = tail;
        }
        if nanoseconds == 0 { Err(bad()) } else { Ok(Self(Duration::from_nanos(nanoseconds))) }
    }
}

/// Parses one number with its unit; returns the nanoseconds and the remaining text.
fn parse_component(text: &str) -> Option<(u64, &str)> {
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => split_digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
    let (unit, tail) = rest.split_at_checked(end)?;
    let (_, scale) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = fraction.get(..fraction.len().min(FRACTION_DIGITS))?;
    let mut part = 0_u128;
    let mut divisor = 1_u128;
    for digit in fraction.bytes() {
        part = part * 10 + u128::from(digit - b'0');
        divisor *= 10;
    }
    let part = u64::try_from(part * u128::from(scale) / divisor).ok()?;
    Some((whole.checked_mul(scale)?.checked_add(part)?, tail))
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        DurationText(self.0).fmt(f)
    }
}

impl<'de> serde::Deserialize<'de> for GoDuration {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = GoDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"500ms\", \"10s\" or \"1m30s\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<GoDuration, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_duration_strings_are_parsed() {
        for (text, nanoseconds) in [
            ("10s", 10_000_000_000),
            ("1m30s", 90_000_000_000),
            ("500ms", 500_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("1h2m3s4ms5us6ns", 3_723_004_005_006),
            ("1µs", 1_000),
            ("1μs", 1_000),
            ("+2s", 2_000_000_000),
            ("0.000000001s", 1),
            ("1s1s", 2_000_000_000),
        ] {
            let expected = GoDuration(Duration::from_nanos(nanoseconds));
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_rejected_with_its_text() {
        let huge = "99999999999999999999s";
        for text in [
            "", "0", "0s", "10", "s", ".s", "-1s", "1 s", "1d", "1S", "1s2", "1e3s", "10m s", "١s", huge,
            "9999999h",
        ] {
            let error = text.parse::<GoDuration>().unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn a_duration_prints_as_it_is_written() {
        for text in ["1ns", "1.5µs", "500ms", "10s", "1m30s", "5m", "1h", "2.25s", "1h0.5s"] {
            let duration: GoDuration = text.parse().unwrap();
            assert_eq!(duration.to_string(), text);
        }
    }
}
