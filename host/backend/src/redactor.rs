//! Removal of a call's secrets from texts that leave the host.

use std::{borrow::Cow, sync::Arc};

use cofferdam_domain::storage::{Secret, Secrets};
use parking_lot::Mutex;

/// Text that replaces a secret in a redacted text.
const PLACEHOLDER: &str = "[secret]";

/// Redacts the secrets of a call in texts of the driver. It redacts all secrets of the call, not only those
/// that the host revealed to a component: the storage system may echo to the component what the host sent.
/// Clones share derived secrets.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    secrets: Secrets,
    /// Secrets derived from the call's secrets during the call, e.g. encoded credentials.
    derived: Arc<Mutex<Vec<Secret>>>,
}

/// Maximum derived secrets of one call.
const MAX_DERIVED_SECRETS: usize = 64;

impl Redactor {
    /// A redactor for a call with these secrets.
    pub fn new(secrets: Secrets) -> Self {
        Self { secrets, derived: Arc::default() }
    }

    /// Adds a secret derived from the call's secrets. Returns `false` if it was not added, because the call
    /// has too many.
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

    /// Replaces the secrets in a text.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.with_secrets(|secrets| redact_all(text, secrets.iter().copied()))
    }

    /// Replaces the secrets in a text, also in the escaped form that `Debug` gives to quoted strings.
    pub fn redact_escaped(&self, text: &str) -> String {
        self.with_secrets(|secrets| {
            let quoted: Vec<_> = secrets.iter().map(|secret| secret.escape_debug().to_string()).collect();
            redact_all(text, secrets.iter().copied().chain(quoted.iter().map(String::as_str))).into_owned()
        })
    }

    /// Returns `true` if a text equals a secret, or contains one of at least 4 bytes.
    pub fn contains_secret(&self, text: &str) -> bool {
        self.with_secrets(|secrets| {
            secrets.iter().any(|secret| {
                *secret == text && !secret.is_empty()
                    || secret.len() >= MIN_SUBSTRING_BYTES && text.contains(secret)
            })
        })
    }

    /// Returns `true` if a text contains a secret of at least 8 bytes, too long to occur by chance.
    pub fn contains_long_secret(&self, text: &str) -> bool {
        self.with_secrets(|secrets| {
            secrets.iter().any(|secret| secret.len() >= MIN_ID_SECRET_BYTES && text.contains(secret))
        })
    }

    /// Length of the longest secret in bytes; 0 without secrets.
    pub fn max_secret_bytes(&self) -> usize {
        self.with_secrets(|secrets| secrets.iter().map(|secret| secret.len()).max().unwrap_or_default())
    }

    /// Calls a function with the call's secrets and the derived ones.
    fn with_secrets<T>(&self, work: impl FnOnce(&[&str]) -> T) -> T {
        let derived = self.derived.lock();
        let secrets = self.secrets.iter().map(|(_, secret)| secret).chain(derived.iter());
        work(&secrets.map(Secret::expose).collect::<Vec<_>>())
    }
}

/// Replaces secrets in a text in one pass, also where they overlap. Placeholders are not searched again.
fn redact_all<'a, 'b>(text: &'a str, secrets: impl Iterator<Item = &'b str>) -> Cow<'a, str> {
    let mut found = Vec::new();
    for secret in secrets.filter(|secret| !secret.is_empty()) {
        let mut from = 0;
        while let Some(at) = text.get(from..).and_then(|rest| rest.find(secret)) {
            let start = from + at;
            found.push((start, start + secret.len()));
            // Another secret may start inside of this one.
            from = start + text.get(start..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
        }
    }
    if found.is_empty() {
        return Cow::Borrowed(text);
    }
    found.sort_unstable();
    let mut clean = String::with_capacity(text.len());
    let mut end = 0;
    for (start, until) in found {
        // Adjacent and overlapping secrets share a placeholder.
        if start > end || end == 0 {
            clean.push_str(text.get(end..start).unwrap_or_default());
            clean.push_str(PLACEHOLDER);
        }
        end = end.max(until);
    }
    clean.push_str(text.get(end..).unwrap_or_default());
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
        assert_eq!(
            redactor(&["pass\"word\\"]).redact_escaped("the key \"pass\\\"word\\\\\""),
            "the key \"[secret]\""
        );
        assert!(
            redactor(&["pass"]).contains_secret("a pass b")
                && !redactor(&["", "pass"]).contains_secret("a b")
        );
        assert!(redactor(&["1"]).contains_secret("1") && !redactor(&["1"]).contains_secret("10.0.0.1"));
    }
}
