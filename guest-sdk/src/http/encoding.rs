//! Percent-encoding of path segments, query parameters and form bodies.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode, utf8_percent_encode};

/// Percent-encoding set: every character except the unreserved characters of RFC 3986.
const ESCAPED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes every character except the unreserved ones of RFC 3986: a-z, A-Z, 0-9, `-`, `.`, `_` and
/// `~`. [`url`](super::url), [`query`](super::Request::query) and [`form`](super::Request::form) encode
/// themselves; this function is for the canonical requests of signatures.
///
/// ```
/// assert_eq!(cofferdam_guest::http::encode("a b/ä"), "a%20b%2F%C3%A4");
/// ```
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, &ESCAPED).to_string()
}

/// Decodes a percent-encoded text, the inverse of [`encode`]. A `+` is a plus sign. Invalid UTF-8 is replaced.
///
/// ```
/// assert_eq!(cofferdam_guest::http::decode("a%20b%2F%C3%A4+"), "a b/ä+");
/// ```
pub fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Adds a query parameter to a URL.
pub(super) fn push_query(url: &mut String, key: &str, value: &str) {
    url.push(if url.contains('?') { '&' } else { '?' });
    push_pair(url, key, value);
}

/// Encodes pairs in the form of a query and of `application/x-www-form-urlencoded`.
pub(super) fn encode_pairs<K: AsRef<str>, V: AsRef<str>>(pairs: &[(K, V)]) -> String {
    let mut text = String::new();
    for (key, value) in pairs {
        if !text.is_empty() {
            text.push('&');
        }
        push_pair(&mut text, key.as_ref(), value.as_ref());
    }
    text
}

fn push_pair(text: &mut String, key: &str, value: &str) {
    text.extend(utf8_percent_encode(key, &ESCAPED));
    text.push('=');
    text.extend(utf8_percent_encode(value, &ESCAPED));
}

/// Sorts the pairs of a query by their encoded forms. The escapes become canonical without a change of the
/// bytes they stand for, which need not be UTF-8.
pub(super) fn canonical_query(text: &str) -> String {
    let encode = |text: &str| {
        let bytes: Vec<u8> = percent_decode_str(text).collect();
        percent_encode(&bytes, &ESCAPED).to_string()
    };
    let mut pairs: Vec<_> = split_query(text).map(|(key, value)| (encode(key), encode(value))).collect();
    pairs.sort_unstable();
    let pairs: Vec<_> = pairs.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join("&")
}

/// The encoded pairs of a query.
fn split_query(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Decodes the pairs of a query. A `+` is a plus sign, as in RFC 3986. Invalid UTF-8 is replaced.
pub(crate) fn decode_query(text: &str) -> Vec<(String, String)> {
    split_query(text).map(|(key, value)| (decode(key), decode(value))).collect()
}

/// Decodes the pairs of a body of `application/x-www-form-urlencoded`, where a `+` is a space.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn decode_form(text: &str) -> Vec<(String, String)> {
    decode_query(&text.replace('+', "%20"))
}
