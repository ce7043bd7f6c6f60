//! Points in time as texts. A time is a [`Duration`] since the Unix epoch, as [`ambient::now`] returns it.
//!
//! [`ambient::now`]: crate::ambient::now
//!
//! | format | example | written by | read by |
//! |---|---|---|---|
//! | RFC 3339 | `2026-01-02T03:04:05.678Z` | [`to_rfc3339`] | [`parse_rfc3339`] |
//! | ISO 8601, basic | `20260102T030405Z` | [`to_iso_basic`] | [`parse_iso_basic`] |
//! | ISO 8601, basic, date only | `20260102` | [`to_iso_basic_date`] | |
//! | HTTP date (IMF-fixdate of RFC 9110) | `Fri, 02 Jan 2026 03:04:05 GMT` | [`to_http_date`] | [`parse_http_date`] |
//!
//! AWS Signature Version 4 uses the basic formats, and Azure's Shared Key the HTTP date. The functions that
//! write round down to the precision of the format. They write the time of 9999-12-31T23:59:59.999999999Z for
//! any later time, because the formats have four digits for the year.
//!
//! ```
//! use cofferdam_guest::{ambient, mock::MockHost, time};
//!
//! let _host = MockHost::new().start_time(1_767_323_045_678).install();
//! let now = ambient::now();
//! assert_eq!(time::to_rfc3339(now), "2026-01-02T03:04:05.678Z");
//! assert_eq!(time::to_iso_basic(now), "20260102T030405Z");
//! assert_eq!(time::to_iso_basic_date(now), "20260102");
//! assert_eq!(time::to_http_date(now), "Fri, 02 Jan 2026 03:04:05 GMT");
//! assert_eq!(time::parse_rfc3339("2026-01-02T05:04:05.678+02:00").unwrap(), now);
//! ```

use std::{fmt, time::Duration};

use ::time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time, format_description::well_known::Rfc3339};

use crate::{Result, StorageError};

/// The last time of the year 9999, in nanoseconds since the Unix epoch.
const MAX_NANOS: u128 = 253_402_300_799_999_999_999;
/// Three letters for each month and each day of the week, from Monday on.
const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
const WEEKDAYS: &str = "MonTueWedThuFriSatSun";

/// A text that is not a time in the expected format, or a time before 1970.
///
/// As a [`StorageError`] it is [`internal`](StorageError::internal) with an unknown outcome, because the text
/// is usually part of a response of the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseTimeError {
    text: String,
    expected: &'static str,
}

impl fmt::Display for ParseTimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the time is {:?}; expected {} from 1970 on", self.text, self.expected)
    }
}

impl std::error::Error for ParseTimeError {}

impl From<ParseTimeError> for StorageError {
    fn from(error: ParseTimeError) -> Self {
        Self::internal(error.to_string())
    }
}

/// Writes a time in the format of RFC 3339, in UTC. The fraction has up to nine digits and no trailing zeros.
///
/// ```
/// use std::time::Duration;
///
/// use cofferdam_guest::time;
///
/// assert_eq!(time::to_rfc3339(Duration::from_millis(1_500)), "1970-01-01T00:00:01.5Z");
/// assert_eq!(time::to_rfc3339(Duration::ZERO), "1970-01-01T00:00:00Z");
/// ```
pub fn to_rfc3339(time: Duration) -> String {
    let time = utc(time);
    let (date, clock) = (time.date(), time.time());
    let mut fraction = String::new();
    if clock.nanosecond() > 0 {
        let digits = format!(".{:09}", clock.nanosecond());
        fraction.push_str(digits.trim_end_matches('0'));
    }
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    let (hour, minute, second) = (clock.hour(), clock.minute(), clock.second());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Reads a time in the format of RFC 3339, with any offset and any number of fractional digits. Digits below
/// a nanosecond are dropped.
///
/// ```
/// use std::time::Duration;
///
/// use cofferdam_guest::time;
///
/// assert_eq!(time::parse_rfc3339("1970-01-01T01:00:00.25+01:00").unwrap(), Duration::from_millis(250));
/// assert_eq!(
///     time::parse_rfc3339("yesterday").unwrap_err().to_string(),
///     r#"the time is "yesterday"; expected RFC 3339 such as 2026-01-02T03:04:05Z from 1970 on"#
/// );
/// ```
///
/// # Errors
///
/// The text has another format, has no offset, or is before 1970.
pub fn parse_rfc3339(text: &str) -> Result<Duration, ParseTimeError> {
    let time = OffsetDateTime::parse(text, &Rfc3339).ok();
    time.and_then(since_epoch).ok_or_else(|| error(text, "RFC 3339 such as 2026-01-02T03:04:05Z"))
}

/// Writes a time in the basic format of ISO 8601, in UTC and without a fraction.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(cofferdam_guest::time::to_iso_basic(Duration::from_secs(86_399)), "19700101T235959Z");
/// ```
pub fn to_iso_basic(time: Duration) -> String {
    let clock = utc(time).time();
    let (hour, minute, second) = (clock.hour(), clock.minute(), clock.second());
    format!("{}T{hour:02}{minute:02}{second:02}Z", to_iso_basic_date(time))
}

/// Reads a time in the basic format of ISO 8601: in UTC, to the second.
///
/// ```
/// use std::time::Duration;
///
/// use cofferdam_guest::time;
///
/// assert_eq!(time::parse_iso_basic("19700101T235959Z").unwrap(), Duration::from_secs(86_399));
/// assert!(time::parse_iso_basic("19700101").is_err());
/// ```
///
/// # Errors
///
/// The text has another format or is before 1970.
pub fn parse_iso_basic(text: &str) -> Result<Duration, ParseTimeError> {
    let parse = || {
        let clock = text.get(9..)?.strip_suffix('Z').filter(|_| text.get(8..9) == Some("T"))?;
        let [year, month, day] = digits(text.get(..8)?, [4, 2, 2])?;
        let [hour, minute, second] = digits(clock, [2, 2, 2])?;
        from_parts(year, Month::try_from(u8::try_from(month).ok()?).ok()?, day, [hour, minute, second])
    };
    parse().ok_or_else(|| error(text, "the form 20260102T030405Z"))
}

/// Writes the UTC date of a time in the basic format of ISO 8601.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(cofferdam_guest::time::to_iso_basic_date(Duration::from_secs(86_400)), "19700102");
/// ```
pub fn to_iso_basic_date(time: Duration) -> String {
    let date = utc(time).date();
    format!("{:04}{:02}{:02}", date.year(), u8::from(date.month()), date.day())
}

/// Writes a time as HTTP headers have it: the IMF-fixdate of RFC 9110, which also is the form of RFC 1123.
///
/// ```
/// use std::time::Duration;
///
/// use cofferdam_guest::time;
///
/// assert_eq!(time::to_http_date(Duration::from_secs(784_111_777)), "Sun, 06 Nov 1994 08:49:37 GMT");
/// ```
pub fn to_http_date(time: Duration) -> String {
    let time = utc(time);
    let (date, clock) = (time.date(), time.time());
    let weekday = letters(WEEKDAYS, date.weekday().number_days_from_monday());
    let month = letters(MONTHS, u8::from(date.month()).saturating_sub(1));
    let (day, year) = (date.day(), date.year());
    let (hour, minute, second) = (clock.hour(), clock.minute(), clock.second());
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Reads a time as HTTP headers have it: the IMF-fixdate of RFC 9110. The two obsolete forms of RFC 9110 are
/// not read.
///
/// ```
/// use std::time::Duration;
///
/// use cofferdam_guest::time;
///
/// let time = time::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
/// assert_eq!(time, Duration::from_secs(784_111_777));
/// ```
///
/// # Errors
///
/// The text has another format, is before 1970, or the date is not on its day of the week.
pub fn parse_http_date(text: &str) -> Result<Duration, ParseTimeError> {
    let parse = || {
        let (weekday, rest) = text.split_once(", ")?;
        let mut words = rest.strip_suffix(" GMT")?.split(' ');
        let [day] = digits(words.next()?, [2])?;
        let name = words.next()?;
        let [year] = digits(words.next()?, [4])?;
        let clock = words.next().filter(|_| words.next().is_none())?;
        let (hour, clock) = clock.split_once(':')?;
        let (minute, second) = clock.split_once(':')?;
        let ([hour], [minute], [second]) = (digits(hour, [2])?, digits(minute, [2])?, digits(second, [2])?);
        let month = (1..=12).find(|month| letters(MONTHS, month - 1) == name)?;
        let time = from_parts(year, Month::try_from(month).ok()?, day, [hour, minute, second])?;
        let expected = utc(time).weekday().number_days_from_monday();
        (weekday == letters(WEEKDAYS, expected)).then_some(time)
    };
    parse().ok_or_else(|| error(text, "the form Sun, 06 Nov 1994 08:49:37 GMT"))
}

/// Serde's functions for a field in the format of RFC 3339, for `#[serde(with = "...")]`.
///
/// ```
/// use std::time::Duration;
///
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Deserialize, Serialize)]
/// struct Snapshot {
///     #[serde(with = "cofferdam_guest::time::rfc3339")]
///     created: Duration,
/// }
///
/// let snapshot: Snapshot = serde_json::from_str(r#"{"created": "1970-01-01T00:00:07Z"}"#).unwrap();
/// assert_eq!(snapshot.created, Duration::from_secs(7));
/// assert_eq!(serde_json::to_string(&snapshot).unwrap(), r#"{"created":"1970-01-01T00:00:07Z"}"#);
/// ```
pub mod rfc3339 {
    use std::{borrow::Cow, time::Duration};

    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    /// Writes a time.
    ///
    /// # Errors
    ///
    /// The serializer does not accept a text.
    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::to_rfc3339(*time))
    }

    /// Reads a time.
    ///
    /// # Errors
    ///
    /// The value is not the text of a time.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        super::parse_rfc3339(&Cow::<str>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// The time in UTC, at most the last nanosecond of the year 9999.
fn utc(time: Duration) -> OffsetDateTime {
    let nanos = i128::try_from(time.as_nanos().min(MAX_NANOS)).unwrap_or_default();
    OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// `None` if the time is before 1970.
fn since_epoch(time: OffsetDateTime) -> Option<Duration> {
    let seconds = u64::try_from(time.unix_timestamp()).ok()?;
    Some(Duration::new(seconds, time.nanosecond()))
}

/// The time of a date and of hour, minute and second in UTC. `None` if a part is out of its range.
fn from_parts(year: u16, month: Month, day: u16, clock: [u16; 3]) -> Option<Duration> {
    let part = |number: u16| u8::try_from(number).ok();
    let [hour, minute, second] = clock;
    let date = Date::from_calendar_date(i32::from(year), month, part(day)?).ok()?;
    let clock = Time::from_hms(part(hour)?, part(minute)?, part(second)?).ok()?;
    since_epoch(PrimitiveDateTime::new(date, clock).assume_utc())
}

/// Numbers of these many digits each. `None` if the text has another character or another length.
fn digits<const N: usize>(mut text: &str, lengths: [usize; N]) -> Option<[u16; N]> {
    let mut numbers = [0; N];
    for (number, length) in numbers.iter_mut().zip(lengths) {
        let (digits, rest) = text.split_at_checked(length)?;
        *number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
        text = rest;
    }
    text.is_empty().then_some(numbers)
}

/// The three letters at a position of [`MONTHS`] or [`WEEKDAYS`].
fn letters(names: &'static str, position: u8) -> &'static str {
    let start = usize::from(position).saturating_mul(3);
    names.get(start..start.saturating_add(3)).unwrap_or_default()
}

fn error(text: &str, expected: &'static str) -> ParseTimeError {
    ParseTimeError { text: text.to_owned(), expected }
}

#[cfg(test)]
#[path = "time_tests.rs"]
mod tests;
