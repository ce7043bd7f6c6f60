use super::*;

fn connection_info(kind: &str, version: u32, fields: &[(&str, &str)]) -> ConnectionInfo {
    let fields = fields.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ConnectionInfo { kind: kind.to_owned(), version, fields }
}

#[test]
fn encoding_matches_the_documented_format() {
    let directory = connection_info("directory", 1, &[("path", "vol-1")]);
    assert_eq!(
        encode(&directory),
        r#"{"version":1,"kind":"directory","kindVersion":1,"fields":{"path":"vol-1"}}"#
    );
    assert_eq!(decode(&encode(&directory)), Ok(directory));
}

/// A random valid kind, and fields up to the size limit with characters that JSON escapes.
fn random_connection_info(random: &mut fastrand::Rng) -> ConnectionInfo {
    const KIND: &[u8] = b"abcxyz059";
    let kind: String = (0..random.usize(1..=63))
        .map(|_| KIND.get(random.usize(..KIND.len())).copied().unwrap() as char)
        .collect();
    let text = |random: &mut fastrand::Rng, bytes: usize| {
        let mut text = String::new();
        loop {
            let c = match random.u8(0..6) {
                0 => '\0',
                1 => '"',
                2 => '\\',
                3 => random.char('a'..='z'),
                4 => random.char('\0'..='\u{1f}'),
                _ => random.char(..),
            };
            if text.len() + c.len_utf8() > bytes {
                return text;
            }
            text.push(c);
        }
    };
    let mut fields = BTreeMap::new();
    let mut remaining_bytes: usize = random.usize(0..=4 << 10);
    while remaining_bytes > 1 {
        let limit = remaining_bytes.min(random.usize(1..=128));
        let key = text(random, limit);
        let limit = random.usize(0..=remaining_bytes - key.len());
        let value = text(random, limit);
        remaining_bytes -= key.len() + value.len();
        if key.is_empty() || fields.insert(key, value).is_some() {
            break;
        }
    }
    ConnectionInfo { kind, version: random.u32(..), fields }
}

#[test]
fn random_connection_infos_round_trip() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..2_000 {
        let connection_info = random_connection_info(&mut rng);
        let document = encode(&connection_info);
        assert!(document.len() <= MAX_ENCODED_BYTES, "{} bytes", document.len());
        assert_eq!(decode(&document).as_ref(), Ok(&connection_info));
        assert_eq!(encode(&connection_info), document, "the same every time");
        let published = into_publish_context(connection_info.clone());
        let created = into_volume_context(Parameters::default(), Some(&connection_info), None);
        if connection_info.kind != CSI_KIND {
            assert_eq!(from_contexts(&published, &Parameters::default(), true), Ok(connection_info.clone()));
        }
        assert_eq!(from_contexts(&Parameters::default(), &created, false), Ok(connection_info));
    }
}

#[test]
fn largest_connection_info_fits_the_size_limit() {
    // Short keys with empty values have the largest overhead per byte, and control characters the longest
    // escapes.
    let keys = (0u16..)
        .map(|n| char::from_u32(u32::from(n % 32)).into_iter().chain(char::from_u32(u32::from(n / 32))));
    let mut fields = BTreeMap::new();
    let mut bytes = 0;
    for key in keys.map(String::from_iter) {
        if bytes + key.len() > 4 << 10 {
            break;
        }
        bytes += key.len();
        fields.insert(key, String::new());
    }
    let largest = ConnectionInfo { kind: "k".repeat(63), version: u32::MAX, fields };
    let document = encode(&largest);
    assert!(
        (MAX_ENCODED_BYTES / 2..=MAX_ENCODED_BYTES).contains(&document.len()),
        "{} bytes",
        document.len()
    );
    assert_eq!(decode(&document), Ok(largest));
}

#[test]
fn malformed_connection_infos_are_rejected() {
    let malformed = "malformed connection info: ";
    let large = format!("{{\"version\":1{}}}", " ".repeat(MAX_ENCODED_BYTES));
    let table = [
        ("", malformed, "EOF while parsing"),
        ("directory", malformed, "expected value"),
        ("[1]", malformed, ""),
        ("{}", malformed, "missing field `version`"),
        (r#"{"version":"1"}"#, malformed, "invalid type: string \"1\""),
        (r#"{"version":-1}"#, malformed, "invalid value"),
        (r#"{"version":0}"#, malformed, "its version is 0; expected 1"),
        (r#"{"version":1,"version":1}"#, malformed, "duplicate field `version`"),
        (r#"{"version":1,"kind":"a","kindVersion":1}"#, malformed, "missing field `fields`"),
        (
            r#"{"version":1,"kind":"a","kindVersion":1,"fields":{},"root":"/"}"#,
            malformed,
            "unknown field `root`",
        ),
        (
            r#"{"version":1,"kind":"a","kind":"b","kindVersion":1,"fields":{}}"#,
            malformed,
            "duplicate field `kind`",
        ),
        (r#"{"version":1,"kind":"a","kindVersion":4294967296,"fields":{}}"#, malformed, "invalid value"),
        (
            r#"{"version":1,"kind":"a","kindVersion":1,"fields":{"a":1}}"#,
            malformed,
            "invalid type: integer `1`",
        ),
        (
            r#"{"version":1,"kind":"a","kindVersion":1,"fields":{"a":"1","a":"1"}}"#,
            malformed,
            "the field \"a\" occurs twice",
        ),
        (r#"{"version":1,"kind":"a","kindVersion":1,"fields":{}} {}"#, malformed, "trailing characters"),
        (
            r#"{"version":2,"attachment":{}}"#,
            "",
            "connection info has version 2; this program supports version 1: update it",
        ),
        (r#"{"version":18446744073709551615}"#, "", "connection info has version 18446744073709551615;"),
        (
            r#"{"version":1,"kind":"A","kindVersion":1,"fields":{}}"#,
            "",
            "the connection info's kind is \"A\"; expected up to 63 of a-z, 0-9 and -",
        ),
        (r#"{"version":1,"kind":"","kindVersion":1,"fields":{}}"#, "", "the connection info's kind is \"\";"),
        (
            r#"{"version":1,"kind":"a","kindVersion":1,"fields":{"":"x"}}"#,
            "",
            "the connection info has a key of 0 bytes; expected 1 to 128",
        ),
        (&large, "", "connection info has 49165 bytes; expected at most 49152"),
    ];
    for (document, prefix, expected) in table {
        let error = decode(document).expect_err(document).to_string();
        let found = error.strip_prefix(prefix).unwrap_or_default();
        assert!(error.starts_with(prefix) && found.starts_with(expected), "{document}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
    let fields = [("a".to_owned(), "x".repeat(4 << 10))].into();
    let too_large = encode(&ConnectionInfo { kind: "a".to_owned(), version: 1, fields });
    assert_eq!(
        decode(&too_large).unwrap_err().to_string(),
        "the connection info has 4097 bytes; at most 4096 are allowed"
    );
}

#[test]
fn reserved_keys_are_separated_from_driver_attributes() {
    let expected: Parameters = [("tier".to_owned(), "gold".to_owned())].into();
    let directory = connection_info("directory", 1, &[("path", "a")]);
    let context =
        into_volume_context(expected.clone(), Some(&directory), Some(&ContentSource::Snapshot("s".into())));
    assert_eq!(context.len(), 3);
    assert_eq!(context.get(names::CONTENT_SOURCE).map(String::as_str), Some("snapshot"));
    assert_eq!(driver_attributes(context), expected);
    assert_eq!(into_volume_context(expected.clone(), None, None), expected);
    let cloned = into_volume_context(expected.clone(), None, Some(&ContentSource::Volume("v".into())));
    assert_eq!(cloned.get(names::CONTENT_SOURCE).map(String::as_str), Some("volume"));
    assert_eq!(
        into_publish_context(connection_info("csi", 1, &[("lun", "1")])),
        [("lun".to_owned(), "1".to_owned())].into()
    );
}

#[test]
fn connection_info_in_the_wrong_context_is_rejected() {
    let none = Parameters::default();
    let (published, created) =
        (connection_info("directory", 1, &[("path", "a")]), connection_info("none", 1, &[]));
    let publish = into_publish_context(published.clone());
    let volume = into_volume_context(none.clone(), Some(&created), None);
    let wrong_context = |name| Err(ConnectionInfoError::WrongContext { expected_context: name });
    let missing = |name| Err(ConnectionInfoError::Missing { context: name });
    assert_eq!(from_contexts(&publish, &none, true), Ok(published));
    assert_eq!(from_contexts(&none, &volume, false), Ok(created));
    for (publishes, name) in [(true, "publish_context"), (false, "volume_context")] {
        assert_eq!(from_contexts(&publish, &volume, publishes), wrong_context(name), "in both");
        assert_eq!(from_contexts(&none, &none, publishes), missing(name), "in none");
    }
    assert_eq!(from_contexts(&none, &volume, true), wrong_context("publish_context"));
    assert_eq!(from_contexts(&publish, &none, false), wrong_context("volume_context"));
    let malformed: Parameters = [(names::CONNECTION_INFO.to_owned(), "{}".to_owned())].into();
    assert!(from_contexts(&malformed, &volume, true).is_err(), "it is not passed over");
    assert!(from_contexts(&malformed, &none, true).is_err(), "it has to be a document");
}
