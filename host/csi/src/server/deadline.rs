//! Deadlines of calls.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;
use tonic::{Request, Status};

/// gRPC's timeout header: 1 to 8 digits and a unit.
const GRPC_TIMEOUT: &str = "grpc-timeout";
/// Maximum timeout, to avoid overflow. Longer than any backend's limit.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The deadline of a request. The server adds it to the request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Instant);

impl Deadline {
    /// Reads the deadline from the headers; without one it is `default_timeout` from now.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the header is malformed.
    pub(super) fn from_headers(headers: &HeaderMap, default_timeout: Duration) -> Result<Self, Status> {
        let timeout = match headers.get(GRPC_TIMEOUT) {
            None => default_timeout,
            Some(value) => parse_timeout(value).ok_or_else(|| {
                Status::invalid_argument(format!(
                    "{GRPC_TIMEOUT} is {value:?}; expected up to 8 digits and a unit of HMSmun"
                ))
            })?,
        };
        Ok(Self(Instant::now() + timeout.min(MAX_TIMEOUT)))
    }

    /// Returns the remaining time; zero for a request that did not pass a [`Server`](super::Server).
    pub fn remaining<T>(request: &Request<T>) -> Duration {
        let deadline = request.extensions().get::<Self>();
        deadline.map_or(Duration::ZERO, |deadline| deadline.0.saturating_duration_since(Instant::now()))
    }

    /// Returns the deadline.
    pub fn instant(self) -> Instant {
        self.0
    }
}

fn parse_timeout(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number.saturating_mul(3_600))),
        "M" => Some(Duration::from_secs(number.saturating_mul(60))),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn grpc_timeout_header_is_parsed() {
        const SECOND: Duration = Duration::from_secs(1);
        #[rustfmt::skip] // one row a header
        let table = [
            (None,              Some(60 * SECOND)),
            (Some("1H"),        Some(3_600 * SECOND)),
            (Some("2M"),        Some(120 * SECOND)),
            (Some("120S"),      Some(120 * SECOND)),
            (Some("1500m"),     Some(Duration::from_millis(1_500))),
            (Some("9u"),        Some(Duration::from_micros(9))),
            (Some("99999999n"), Some(Duration::from_nanos(99_999_999))),
            (Some("0m"),        Some(Duration::ZERO)),
            (Some("99999999H"), Some(MAX_TIMEOUT)),
            (Some("999999999S"), None),
            (Some("S"),         None),
            (Some(""),          None),
            (Some("5"),         None),
            (Some("-5S"),       None),
            (Some("+5S"),       None),
            (Some("5s"),        None),
            (Some("5 S"),       None),
        ];
        for (header, expected) in table {
            let mut headers = HeaderMap::new();
            headers.extend(
                header.map(|text| {
                    (http::HeaderName::from_static(GRPC_TIMEOUT), HeaderValue::from_static(text))
                }),
            );
            let deadline = Deadline::from_headers(&headers, 60 * SECOND);
            match expected {
                Some(timeout) => {
                    assert_eq!(deadline.unwrap().instant() - Instant::now(), timeout, "{header:?}")
                }
                None => assert_eq!(deadline.unwrap_err().code(), tonic::Code::InvalidArgument, "{header:?}"),
            }
        }
        let mut invalid_headers = HeaderMap::new();
        invalid_headers.insert(GRPC_TIMEOUT, HeaderValue::from_bytes(b"\xffS").unwrap());
        assert!(Deadline::from_headers(&invalid_headers, SECOND).is_err());
    }
}
