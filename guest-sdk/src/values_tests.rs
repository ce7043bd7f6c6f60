//! Tests of settings and parameters read by serde: every form of a value, and the message of every error.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::*;
use crate::{mock::MockHost, parameters::ByteSize};

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Everything {
    text: String,
    letter: char,
    small: i8,
    large: Option<u64>,
    share: f32,
    enabled: bool,
    tier: Tier,
    size: Option<ByteSize>,
    ports: Vec<u16>,
    tiers: BTreeSet<Tier>,
    range: Option<(u8, u8)>,
    labels: BTreeMap<String, String>,
    weights: Option<BTreeMap<Tier, u8>>,
    array: Option<Array>,
    #[serde(rename = "labels.prefix")]
    dotted: String,
    pool: Pool,
}

#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Tier {
    #[default]
    #[serde(alias = "default")]
    Cheap,
    VeryFast,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Array {
    url: String,
    zones: Option<Vec<String>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
struct Pool(String);

fn read<T: DeserializeOwned>(pairs: &[(&str, &str)]) -> Result<T> {
    let pairs = pairs.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
    from_pairs(KeyKind::SETTING, pairs.collect())
}

fn message<T: DeserializeOwned + std::fmt::Debug>(pairs: &[(&str, &str)]) -> String {
    read::<T>(pairs).unwrap_err().message
}

#[test]
fn every_form_of_a_value_is_read() {
    let pairs = [
        ("text", "a, b"),
        ("letter", "ä"),
        ("small", "-128"),
        ("large", "18446744073709551615"),
        ("share", "0.5"),
        ("enabled", "true"),
        ("tier", "very-fast"),
        ("size", "2Gi"),
        ("ports", "80, 443 ,8080"),
        ("tiers", "very-fast,default"),
        ("range", "1,9"),
        ("labels.a", "1"),
        ("labels.topology.kubernetes.io/zone", "2"),
        ("labels.prefix", "3"),
        ("weights.cheap", "4"),
        ("array.url", "https://array"),
        ("array.zones", "x,y"),
        ("pool", "p"),
    ];
    let text = |text: &str| text.to_owned();
    let expected = Everything {
        text: text("a, b"),
        letter: 'ä',
        small: i8::MIN,
        large: Some(u64::MAX),
        share: 0.5,
        enabled: true,
        tier: Tier::VeryFast,
        size: Some(ByteSize(2 << 30)),
        ports: vec![80, 443, 8080],
        tiers: BTreeSet::from([Tier::Cheap, Tier::VeryFast]),
        range: Some((1, 9)),
        labels: BTreeMap::from([(text("a"), text("1")), (text("topology.kubernetes.io/zone"), text("2"))]),
        weights: Some(BTreeMap::from([(Tier::Cheap, 4)])),
        array: Some(Array { url: text("https://array"), zones: Some(vec![text("x"), text("y")]) }),
        dotted: text("3"),
        pool: Pool(text("p")),
    };
    assert_eq!(read(&pairs), Ok(expected));
    assert_eq!(read(&[]), Ok(Everything::default()));
    assert_eq!(read::<Everything>(&[("ports", " ")]).unwrap().ports, [0_u16; 0]);
    let all: BTreeMap<String, u8> = read(&[("a", "1"), ("b.c", "2")]).unwrap();
    assert_eq!(all, BTreeMap::from([("a".to_owned(), 1), ("b.c".to_owned(), 2)]));
}

#[test]
fn an_invalid_value_is_named_with_its_key_and_the_expected_form() {
    #[rustfmt::skip] // one row a case
    let table = [
        ("letter",        "ab",        "a character"),
        ("small",         "128",       "a whole number from -128 to 127"),
        ("large",         "-1",        "a whole number from 0 to 18446744073709551615"),
        ("large",         "",          "a whole number from 0 to 18446744073709551615"),
        ("small",         "+5",        "a whole number from -128 to 127"),
        ("large",         "+5",        "a whole number from 0 to 18446744073709551615"),
        ("share",         "inf",       "a number from -3.4028235e38 to 3.4028235e38"),
        ("share",         "1e39",      "a number from -3.4028235e38 to 3.4028235e38"),
        ("share",         "+0.5",      "a number from -3.4028235e38 to 3.4028235e38"),
        ("enabled",       "yes",       r#""true" or "false""#),
        ("tier",          "fast",      r#""cheap", "default" or "very-fast""#),
        ("size",          "1GB",       "bytes such as 1073741824 or 500Gi"),
        ("ports",         "80,x",      "values separated by commas, each a whole number from 0 to 65535"),
        ("ports",         "80,,81",    "values separated by commas"),
        ("range",         "1,2,3",     "2 values separated by commas"),
        ("labels",        "a=1",       r#"keys such as "labels.NAME""#),
        ("array",         "https://a", r#"keys such as "array.url""#),
        ("weights.cheap", "x",         "a whole number from 0 to 255"),
        ("weights.fast",  "1",         r#""cheap", "default" or "very-fast""#),
    ];
    for (key, text, expected) in table {
        let shown = if key == "weights.fast" { "fast" } else { text };
        assert_eq!(
            message::<Everything>(&[(key, text)]),
            format!("the setting {key:?} is {shown:?}; expected {expected}")
        );
    }
}

#[test]
fn unknown_and_missing_keys_are_named() {
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are tested")]
    struct Settings {
        url: String,
        array: Option<Array>,
    }
    #[derive(Debug, Deserialize)]
    struct Nothing {}

    #[rustfmt::skip] // one row a case
    let table: [(&[(&str, &str)], &str); 7] = [
        (&[],                               r#"the setting "url" is missing"#),
        (&[("url", "u"), ("array.zones", "z")], r#"the setting "array.url" is missing"#),
        (&[("ulr", "u")],                   r#"unknown setting "ulr"; known are "array" and "url""#),
        (&[("url.a", "u")],                 r#"unknown setting "url.a"; known are "array" and "url""#),
        (&[("url", "u"), ("url.a", "u")],   r#"unknown setting "url.a"; known are "array" and "url""#),
        (&[("url", "u"), ("array.ulr", "")],
         r#"unknown setting "array.ulr"; known are "array.url" and "array.zones""#),
        (&[("array.", "")],                 r#"unknown setting "array."; known are "array" and "url""#),
    ];
    for (pairs, expected) in table {
        assert_eq!(message::<Settings>(pairs), expected);
    }
    assert_eq!(message::<Nothing>(&[("a", "")]), r#"unknown setting "a"; there is none"#);
    assert_eq!(message::<Array>(&[("u", "")]), r#"unknown setting "u"; known are "url" and "zones""#);
}

#[test]
fn a_type_explains_why_it_rejects_a_text() {
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are tested")]
    struct Settings {
        address: std::net::IpAddr,
    }
    assert_eq!(
        message::<Settings>(&[("address", "x")]),
        r#"the setting "address" is "x": invalid IP address syntax"#
    );
    assert_eq!(message::<u8>(&[]), "the settings are not u8");
}

#[test]
fn an_error_is_final_unless_the_call_has_changed_something() {
    use crate::http::{Method, Request, Response};

    let host = MockHost::new().on(Method::Post, "http://a/", |_| Ok(Response::new(200))).install();
    let error = |changes: bool| {
        host.call(|| {
            if changes {
                Request::post("http://a/").send().unwrap();
            }
            read::<Array>(&[]).unwrap_err()
        })
    };
    assert_eq!((error(false).kind, error(false).finality), (ErrorKind::FailedPrecondition, Finality::Final));
    assert_eq!(error(true).finality, Finality::Unknown);
}

#[test]
fn a_struct_with_flattened_fields_is_refused() {
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are tested")]
    struct Flattened {
        #[serde(flatten)]
        array: Array,
    }
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are tested")]
    struct Outer {
        inner: Flattened,
    }
    let expected = "the settings cannot be read: struct Flattened has a field with the attribute `flatten`, \
                    which is not supported";
    assert_eq!(message::<Flattened>(&[("url", "u")]), expected);
    assert_eq!(message::<Flattened>(&[]), expected);
    assert_eq!(message::<Outer>(&[("inner.url", "u")]), expected);
}
