//! Removal of a call's secrets from texts that leave the host.

mod search;

use std::{borrow::Cow, collections::VecDeque, ops::Range, sync::Arc};

use cofferdam_domain::{
    storage::{Secret, Secrets},
    text::printable,
};
use parking_lot::Mutex;

use self::search::{MAX_EXPANSION, SearchableText};

/// Text that replaces a secret in a redacted text.
pub const REDACTED: &str = "[secret]";

/// Redacts the secrets of a call in texts of the driver. It redacts all secrets of the call, not only those
/// that the host revealed to a component: the storage system may echo to the component what the host sent.
/// Clones share derived secrets.
///
/// A secret is recognised as it is, percent-encoded (also with `+` for a space), with the escapes of JSON and
/// of string literals, and with control or format characters in place of its spaces. A secret of at least 4
/// bytes is also recognised in hexadecimal and in Base64: in both alphabets, with and without padding and line
/// breaks, alone or as a part of encoded data.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    secrets: Secrets,
    /// Secrets derived from the call's secrets during the call, e.g. encoded credentials and login tokens.
    derived: Arc<Mutex<Vec<Secret>>>,
    /// Credentials that the driver itself has written into requests, the last one at the end.
    written: Arc<Mutex<VecDeque<Secret>>>,
}

/// Maximum derived secrets of one call, and maximum credentials that the driver has written into requests.
pub const MAX_DERIVED_SECRETS: usize = 64;

/// Most bytes of a text that [`Redactor::printable`] redacts, more than [`printable`] shows.
const MAX_PRINTABLE_BYTES: usize = 16 << 10;

/// Minimum length in bytes of a login token. A shorter text is no token, and occurs by chance.
const MIN_TOKEN_BYTES: usize = 8;

impl Redactor {
    /// A redactor for a call with these secrets.
    pub fn new(secrets: Secrets) -> Self {
        Self { secrets, ..Self::default() }
    }

    /// Adds a secret derived from the call's secrets. Returns `false` if it was not added, because the call
    /// has too many ([`MAX_DERIVED_SECRETS`]).
    pub fn add_secret(&self, text: Secret) -> bool {
        let mut derived = self.derived.lock();
        if derived.contains(&text) {
            return true;
        }
        let has_space = derived.len() < MAX_DERIVED_SECRETS;
        if has_space {
            derived.push(text);
        }
        has_space
    }

    /// Adds a token that a storage system gave for the call's secrets. A token of less than 8 bytes is
    /// ignored. Returns `false` if it was not added, because the call has too many derived secrets.
    pub fn add_token(&self, token: &str) -> bool {
        token.len() < MIN_TOKEN_BYTES || self.add_secret(Secret::new(token))
    }

    /// Adds credentials that the driver has written into a request, such as a token or a signature. The
    /// redactor knows the last [`MAX_DERIVED_SECRETS`] different ones: a driver that signs has other ones in
    /// each request. A text of less than 8 bytes is ignored.
    pub fn add_written(&self, credentials: &str) {
        if credentials.len() < MIN_TOKEN_BYTES {
            return;
        }
        let credentials = Secret::new(credentials);
        let mut written = self.written.lock();
        written.retain(|known| *known != credentials);
        if written.len() == MAX_DERIVED_SECRETS {
            written.pop_front();
        }
        written.push_back(credentials);
    }

    /// Replaces the secrets in a text.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redact_start(text, usize::MAX)
    }

    /// Replaces the secrets in the first `max_bytes` of a text, and drops the rest. A secret that starts in
    /// this part and ends after it is replaced, too. The time depends on `max_bytes` and on the lengths of
    /// the secrets, not on the length of the text.
    pub fn redact_start<'a>(&self, text: &'a str, max_bytes: usize) -> Cow<'a, str> {
        let searched = text.floor_char_boundary(max_bytes.saturating_add(self.lookahead_bytes()));
        let (searched, _) = text.split_at_checked(searched).unwrap_or((text, ""));
        let found = self.with_secrets(|secrets| secret_ranges(searched, secrets));
        replace_ranges(searched, found, searched.floor_char_boundary(max_bytes))
    }

    /// Formats a text of the driver for events, logs and errors, without the secrets. Redacts before it
    /// truncates the text ([`printable`]): a truncated secret is not recognised. The driver does not
    /// determine the host's work for a text.
    pub fn printable(&self, text: &str) -> String {
        printable(&self.redact_start(text, MAX_PRINTABLE_BYTES))
    }

    /// Returns `true` if a text equals a secret, or contains one of at least 4 bytes, or one of at least 8
    /// bytes in hexadecimal or Base64.
    pub fn contains_secret(&self, text: &str) -> bool {
        self.with_secrets(|secrets| {
            secrets.iter().any(|secret| *secret == text && !secret.is_empty())
                || contains_any(text, secrets, MIN_SUBSTRING_BYTES)
        })
    }

    /// Returns `true` if a text contains a secret of at least 8 bytes, too long to occur by chance.
    pub fn contains_long_secret(&self, text: &str) -> bool {
        self.with_secrets(|secrets| contains_any(text, secrets, MIN_ID_SECRET_BYTES))
    }

    /// Length in bytes of the longest form in which a secret is recognised; 0 without secrets. If a text is
    /// cut before it is redacted, only secrets that start this many bytes before the cut are recognised.
    pub fn lookahead_bytes(&self) -> usize {
        let longest = |secrets: &[&str]| secrets.iter().map(|secret| secret.len()).max().unwrap_or_default();
        self.with_secrets(longest).saturating_mul(MAX_EXPANSION)
    }

    /// Calls a function with the call's secrets and the derived ones.
    fn with_secrets<T>(&self, work: impl FnOnce(&[&str]) -> T) -> T {
        let (derived, written) = (self.derived.lock(), self.written.lock());
        let derived = derived.iter().chain(written.iter());
        let secrets = self.secrets.iter().map(|(_, secret)| secret).chain(derived);
        work(&secrets.map(Secret::expose).filter(|secret| !secret.is_empty()).collect::<Vec<_>>())
    }
}

fn contains_any(text: &str, secrets: &[&str], min_bytes: usize) -> bool {
    if secrets.is_empty() {
        return false;
    }
    let searchable = SearchableText::new(text);
    secrets.iter().any(|secret| {
        secret.len() >= min_bytes && !searchable.plain(secret).is_empty()
            || secret.len() >= MIN_ID_SECRET_BYTES && searchable.encoded(secret).next().is_some()
    })
}

/// The ranges of a text that contain a secret, sorted, and without overlaps and neighbours.
fn secret_ranges(text: &str, secrets: &[&str]) -> Vec<Range<usize>> {
    if secrets.is_empty() || text.is_empty() {
        return Vec::new();
    }
    let searchable = SearchableText::new(text);
    let mut found = Vec::new();
    for secret in secrets {
        for range in searchable.plain(secret).into_iter().chain(searchable.encoded(secret)) {
            push_range(&mut found, range);
        }
    }
    found.sort_unstable_by_key(|range| range.start);
    let mut merged = Vec::new();
    found.into_iter().for_each(|range| push_range(&mut merged, range));
    merged
}

/// Appends a range, or extends the last one if they overlap or are adjacent.
fn push_range(ranges: &mut Vec<Range<usize>>, range: Range<usize>) {
    match ranges.last_mut() {
        Some(last) if (last.start..=last.end).contains(&range.start) => last.end = last.end.max(range.end),
        Some(_) | None => ranges.push(range),
    }
}

/// Replaces the ranges of a text that start before `end`, and drops what follows `end`.
fn replace_ranges(text: &str, ranges: Vec<Range<usize>>, end: usize) -> Cow<'_, str> {
    let mut ranges = ranges.into_iter().take_while(|range| range.start < end).peekable();
    if ranges.peek().is_none() {
        return Cow::Borrowed(text.get(..end).unwrap_or_default());
    }
    let mut clean = String::with_capacity(end);
    let mut at = 0;
    for range in ranges {
        clean.push_str(text.get(at..range.start).unwrap_or_default());
        clean.push_str(REDACTED);
        at = range.end;
    }
    clean.push_str(text.get(at..end).unwrap_or_default());
    Cow::Owned(clean)
}

/// Minimum length in bytes of a secret that [`Redactor::contains_secret`] searches for within a text. A
/// shorter secret, such as `1`, occurs by chance, e.g. in addresses.
const MIN_SUBSTRING_BYTES: usize = 4;

/// Minimum length in bytes of a secret that does not occur in ids by chance.
const MIN_ID_SECRET_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor(secrets: &[&str]) -> Redactor {
        let named = secrets.iter().enumerate().map(|(n, text)| (n.to_string(), Secret::new(*text)));
        Redactor::new(named.collect())
    }

    #[test]
    fn every_secret_of_the_call_is_redacted() {
        #[rustfmt::skip] // one row a case
        let table: [(&[&str], &str, &str); 8] = [
            (&[],                    "user and password",    "user and password"),
            (&["hunter2"],           "hunter2, hunter2!",    "[secret], [secret]!"),
            (&["ab", "abc"],         "abc ab",               "[secret] [secret]"),
            (&[""],                  "nothing is no secret", "nothing is no secret"),
            (&["pässwörd"],          "(pässwörd)",           "([secret])"),
            (&["aba", "bab"],        "-ababab-aba",          "-[secret]-[secret]"),
            (&["e", "secret"],       "e-secret",             "[secret]-[secret]"),
            (&["ab", "cd"],          "abcd ab",              "[secret] [secret]"),
        ];
        for (secrets, text, expected) in table {
            assert_eq!(redactor(secrets).redact(text), expected, "{text}");
        }
        let knowing = redactor(&["a"]);
        assert!(knowing.add_secret(Secret::new("YTpi")) && knowing.add_secret(Secret::new("YTpi")));
        assert_eq!(knowing.clone().redact("Basic YTpi"), "B[secret]sic [secret]");
        assert!(knowing.contains_secret("YTpi") && !redactor(&["a"]).contains_secret("YTpi"));
        assert_eq!(
            (0..100).filter(|n| knowing.add_secret(Secret::new(n.to_string()))).count(),
            MAX_DERIVED_SECRETS - 1
        );
        assert!(
            redactor(&["pass"]).contains_secret("a pass b")
                && !redactor(&["", "pass"]).contains_secret("a b")
        );
        assert!(redactor(&["1"]).contains_secret("1") && !redactor(&["1"]).contains_secret("10.0.0.1"));
    }

    #[test]
    fn the_last_written_credentials_are_redacted() {
        let redactor = Redactor::default();
        let text = |number: usize| format!("signature-{number}");
        (0..=MAX_DERIVED_SECRETS).for_each(|number| redactor.add_written(&text(number)));
        assert_eq!(redactor.redact(&text(0)), text(0), "the oldest one");
        assert_eq!(redactor.redact(&text(1)), REDACTED);
        // A token that is used again is not the oldest one.
        redactor.add_written(&text(1));
        redactor.add_written("another-token");
        assert_eq!(
            (redactor.redact(&text(1)).as_ref(), redactor.redact("another-token").as_ref()),
            (REDACTED, REDACTED)
        );
        assert_eq!(redactor.redact(&text(2)), text(2));
        redactor.add_written("short");
        assert_eq!(redactor.redact("short"), "short");
    }

    #[test]
    fn encoded_secrets_are_redacted() {
        let secret = "p@ss \"wörd\\\u{7}";
        #[rustfmt::skip] // one row a case
        let table = [
            ("url",                    "a?p=p%40ss%20%22w%C3%B6rd%5C%07&b",         "a?p=[secret]&b"),
            ("url, lower case",        "p%40ss%20%22w%c3%b6rd%5c%07",               "[secret]"),
            ("url, all bytes",         "%70%40%73%73%20%22%77%C3%B6%72%64%5C%07",   "[secret]"),
            ("form",                   "p=p%40ss+%22w%C3%B6rd%5C%07",               "p=[secret]"),
            ("json",                   r#"{"p":"p@ss \"wörd\\\u0007"}"#,            r#"{"p":"[secret]"}"#),
            ("json, ascii",            r#""p\u0040ss \"w\u00f6rd\\\u0007""#,       r#""[secret]""#),
            ("debug",                  r#"Err("p@ss \"wörd\\\u{7}")"#,              r#"Err("[secret]")"#),
            ("literal of C",           r#""p@ss \"w\xc3\xb6rd\\\a""#,              r#""[secret]""#),
            ("hexadecimal",            "0x70407373 70407373202277c3b672645c07;",    "0x70407373 [secret];"),
            ("hexadecimal, capitals",  "70407373202277C3B672645C07",                "[secret]"),
            ("base64",                 "cEBzcyAid8O2cmRcBw==.",                     "[secret]==."),
            ("base64, no padding",     "cEBzcyAid8O2cmRcBw",                        "[secret]"),
            ("base64 in a url",        "p=cEBzcyAid8O2cmRcBw%3D%3D",                "p=[secret]%3D%3D"),
            ("base64 with a line end", "cEBzcyAid8O2\r\ncmRcBw==",                  "[secret]=="),
            ("base64 in json lines",   r#""cEBzcyAid8O2\ncmRcBw==""#,               r#""[secret]==""#),
            // root:SECRET, :SECRET, and ab:SECRET:x
            ("base64 after 2 bytes",   "cm9vdDpwQHNzICJ3w7ZyZFwH",                  "cm9vdD[secret]"),
            ("base64 after 1 byte",    "OnBAc3MgInfDtnJkXAc=",                      "O[secret]="),
            ("base64 after 0 bytes",   "YWI6cEBzcyAid8O2cmRcBzp4",                  "YWI6[secret]p4"),
            ("nothing",                "p%4 %zz \\u12 \\q + p@ss",                "p%4 %zz \\u12 \\q + p@ss"),
        ];
        for (case, text, expected) in table {
            assert_eq!(redactor(&[secret]).redact(text), expected, "{case}");
        }
        // The letters in which the two alphabets differ.
        for (text, expected) in
            [("Pj4+Pz8/", "[secret]"), ("Pj4-Pz8_", "[secret]"), ("Pj4%2BPz8%2F", "[secret]")]
        {
            assert_eq!(redactor(&[">>>???"]).redact(text), expected);
        }
        assert_eq!(redactor(&["😀 smile"]).redact(r"\ud83d\ude00 smile \ud83d"), r"[secret] \ud83d");
    }

    /// [`printable`](cofferdam_domain::text::printable) makes a blank of each of these characters, after the
    /// redaction.
    #[test]
    fn secrets_with_another_character_for_a_blank_are_redacted() {
        let knowing = redactor(&["correct horse battery"]);
        for (text, expected) in [
            ("correct\nhorse\tbattery", "[secret]"),
            ("a\ncorrect\u{200b}horse\u{2028}battery\u{1b}b", "a\n[secret]\u{1b}b"),
            ("correct\r\nhorse battery", "correct\r\nhorse battery"),
        ] {
            assert_eq!(knowing.redact(text), expected, "{text:?}");
        }
        let knowing = redactor(&["-----BEGIN KEY-----\nMIIEvQ==\n-----END KEY-----\n"]);
        let one_line = "the key -----BEGIN KEY----- MIIEvQ== -----END KEY----- is wrong";
        assert_eq!(knowing.redact(one_line), "the key [secret] is wrong");
    }

    #[test]
    fn encoded_secrets_are_rejected_if_they_are_long() {
        let long = redactor(&["hunter2-hunter2"]);
        for text in [
            "aHVudGVyMi1odW50ZXIy",
            "68756E746572322D68756E74657232",
            "hunter2%2Dhunter2",
            "hunter2\\u002dhunter2",
        ] {
            assert!(long.contains_secret(text) && long.contains_long_secret(text), "{text}");
        }
        let short = redactor(&["root"]);
        for (text, in_map) in [("cm9vdA", false), ("726f6f74", false), ("%72oot", true), ("a-root", true)] {
            assert_eq!(
                (short.contains_secret(text), short.contains_long_secret(text)),
                (in_map, false),
                "{text}"
            );
        }
    }

    #[test]
    fn a_secret_across_the_end_of_a_printable_text_leaves_no_part() {
        let knowing = redactor(&["hunter2hunter2"]);
        for padding in 980..1_005 {
            let shown = knowing.printable(&format!("{}hunter2hunter2", "-".repeat(padding)));
            assert!(!shown.contains("hunter"), "{padding}: {shown}");
        }
    }

    #[test]
    fn a_secret_across_the_end_of_the_redacted_part_is_replaced() {
        let knowing = redactor(&["hunter2"]);
        #[rustfmt::skip] // one row a case
        let table = [
            ("abc hunter2 def", 6,  "abc [secret]"),
            ("abc hunter2 def", 4,  "abc "),
            ("abc hunter2 def", 12, "abc [secret] "),
            ("hunter2hunter2hunter2hunter2hunter2hunter2hunter2 xyz", 8, "[secret]"),
            ("äää", 3, "ä"),
        ];
        for (text, max_bytes, expected) in table {
            assert_eq!(knowing.redact_start(text, max_bytes), expected, "{text} {max_bytes}");
        }
    }

    #[test]
    fn tokens_are_redacted_unless_they_are_short() {
        let knowing = redactor(&[]);
        assert!(knowing.add_token("ok") && knowing.add_token("t-0123456789"));
        assert_eq!(knowing.redact("ok: t-0123456789 t-0%3123456789"), "ok: [secret] [secret]");
    }
}
