//! Tests of times as texts: known instants in every format, rejected texts, and the limits of the range.

use super::*;
use crate::Finality;

#[test]
fn every_format_is_read_as_it_is_written() {
    #[rustfmt::skip] // one row a case
    let table = [
        (0,               "1970-01-01T00:00:00Z", "19700101T000000Z", "Thu, 01 Jan 1970 00:00:00 GMT"),
        (784_111_777,     "1994-11-06T08:49:37Z", "19941106T084937Z", "Sun, 06 Nov 1994 08:49:37 GMT"),
        (951_782_400,     "2000-02-29T00:00:00Z", "20000229T000000Z", "Tue, 29 Feb 2000 00:00:00 GMT"),
        (4_107_542_399,   "2100-02-28T23:59:59Z", "21000228T235959Z", "Sun, 28 Feb 2100 23:59:59 GMT"),
        (253_402_300_799, "9999-12-31T23:59:59Z", "99991231T235959Z", "Fri, 31 Dec 9999 23:59:59 GMT"),
    ];
    for (seconds, rfc3339, basic, http) in table {
        let time = Duration::from_secs(seconds);
        assert_eq!((to_rfc3339(time), parse_rfc3339(rfc3339)), (rfc3339.to_owned(), Ok(time)));
        assert_eq!((to_iso_basic(time), parse_iso_basic(basic)), (basic.to_owned(), Ok(time)));
        assert_eq!((to_http_date(time), parse_http_date(http)), (http.to_owned(), Ok(time)));
        assert_eq!(to_iso_basic_date(time), basic[..8]);
    }
}

#[test]
fn rfc_3339_has_offsets_and_fractions() {
    #[rustfmt::skip] // one row a case
    let table = [
        ("2026-01-02T03:04:05.678Z",            1_767_323_045_678),
        ("2026-01-02T05:34:05.678+02:30",       1_767_323_045_678),
        ("2026-01-01T19:04:05.678-08:00",       1_767_323_045_678),
        ("2026-01-02t03:04:05.6780000000009z",  1_767_323_045_678),
    ];
    for (text, millis) in table {
        assert_eq!(parse_rfc3339(text), Ok(Duration::from_millis(millis)), "{text}");
    }
    for nanos in [1, 10, 123_456_789, 500_000_000, 999_999_999] {
        let time = Duration::new(7, nanos);
        assert_eq!(parse_rfc3339(&to_rfc3339(time)), Ok(time));
    }
    assert_eq!(to_rfc3339(Duration::from_micros(1_000_120)), "1970-01-01T00:00:01.00012Z");
}

#[test]
fn other_texts_are_rejected() {
    for text in ["", "2026-01-02", "2026-01-02T03:04:05", "2026-02-30T03:04:05Z", "1969-12-31T23:59:59Z", "x"]
    {
        assert!(parse_rfc3339(text).is_err(), "{text}");
    }
    for text in [
        "20260102",
        "20260102T030405",
        "20260102 030405Z",
        "20261302T030405Z",
        "20260102T250405Z",
        "+2260102T030405Z",
        "2026010äT03040Z",
        "19691231T235959Z",
    ] {
        assert!(parse_iso_basic(text).is_err(), "{text}");
    }
    for text in [
        "Mon, 06 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 UTC",
        "Sun, 06 Nov 1994 08:49 GMT",
        "Sun, 06 Nov 1994 08:49:37 x GMT",
        "Sun, 06 nov 1994 08:49:37 GMT",
        "Sun, 6 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
    ] {
        assert!(parse_http_date(text).is_err(), "{text}");
    }
    let error = StorageError::from(parse_iso_basic("now").unwrap_err());
    assert_eq!(error.message, r#"the time is "now"; expected the form 20260102T030405Z from 1970 on"#);
    assert_eq!(error.finality, Finality::Unknown, "the storage may have done what it was asked");
}

#[test]
fn a_time_after_the_year_9999_is_written_as_its_last_second() {
    assert_eq!(to_rfc3339(Duration::MAX), "9999-12-31T23:59:59.999999999Z");
    assert_eq!(to_http_date(Duration::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
}
