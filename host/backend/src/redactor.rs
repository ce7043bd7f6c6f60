//! Removes the secrets of a call from texts that leave the host.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cofferdam_domain::storage::{Secret, Secrets};

/// What stands in place of a secret.
const PLACEHOLDER: &str = "[secret]";

/// Blots a call's secrets out of what the guest says. All of them, not only those that were revealed: a
/// storage may repeat to the guest what the host has sent for it. Clones learn together.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    secrets: Secrets,
    /// What the host has made of secrets in this call.
    derived: Arc<Mutex<Vec<Secret>>>,
}

/// Most texts that are made of secrets in one call.
const MAX_DERIVED_SECRETS: usize = 64;

impl Redactor {
    /// For a call with these secrets.
    pub fn new(secrets: Secrets) -> Self {
        Self { secrets, derived: Arc::default() }
    }

    /// Takes a text that was made of secrets for one itself. `false` when there are too many of them.
    pub fn add_secret(&self, text: Secret) -> bool {
        let mut made = self.lock_derived();
        if made.contains(&text) {
            return true;
        }
        let room = made.len() < MAX_DERIVED_SECRETS;
        if room {
            made.push(text);
        }
        room
    }

    fn lock_derived(&self) -> MutexGuard<'_, Vec<Secret>> {
        self.derived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A text without the secrets.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.with_secrets(|secrets| redact_all(text, secrets.iter().copied()))
    }

    /// A text without the secrets, also where it quotes them with escapes.
    pub fn redact_escaped(&self, text: &str) -> String {
        self.with_secrets(|secrets| {
            let quoted: Vec<_> = secrets.iter().map(|secret| secret.escape_debug().to_string()).collect();
            redact_all(text, secrets.iter().copied().chain(quoted.iter().map(String::as_str))).into_owned()
        })
    }

    /// Whether a text is a secret, or holds one that is not so short that it says nothing there.
    pub fn contains_secret(&self, text: &str) -> bool {
        self.with_secrets(|secrets| {
            secrets.iter().any(|secret| {
                *secret == text && !secret.is_empty()
                    || secret.len() >= MIN_SUBSTRING_BYTES && text.contains(secret)
            })
        })
    }

    /// Whether a text holds a secret that is too long to be in it by chance.
    pub fn contains_long_secret(&self, text: &str) -> bool {
        self.with_secrets(|secrets| {
            secrets.iter().any(|secret| secret.len() >= MIN_ID_SECRET_BYTES && text.contains(secret))
        })
    }

    /// Bytes of the longest secret.
    pub fn max_secret_bytes(&self) -> usize {
        self.with_secrets(|secrets| secrets.iter().map(|secret| secret.len()).max().unwrap_or_default())
    }

    /// Those of the call, and what was made of them.
    fn with_secrets<T>(&self, work: impl FnOnce(&[&str]) -> T) -> T {
        let made = self.lock_derived();
        let secrets = self.secrets.iter().map(|(_, secret)| secret).chain(made.iter());
        work(&secrets.map(Secret::expose).collect::<Vec<_>>())
    }
}

/// A text without some others, however they overlap. One pass: what stands in their place is not looked at
/// again.
fn redact_all<'a, 'b>(text: &'a str, secrets: impl Iterator<Item = &'b str>) -> Cow<'a, str> {
    let mut found = Vec::new();
    for secret in secrets.filter(|secret| !secret.is_empty()) {
        let mut from = 0;
        while let Some(at) = text.get(from..).and_then(|rest| rest.find(secret)) {
            let begin = from + at;
            found.push((begin, begin + secret.len()));
            // Another one may begin inside of this one.
            from = begin + text.get(begin..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
        }
    }
    if found.is_empty() {
        return Cow::Borrowed(text);
    }
    found.sort_unstable();
    let mut clean = String::with_capacity(text.len());
    let mut end = 0;
    for (begin, until) in found {
        // One that touches the one before is part of the same blot.
        if begin > end || end == 0 {
            clean.push_str(text.get(end..begin).unwrap_or_default());
            clean.push_str(PLACEHOLDER);
        }
        end = end.max(until);
    }
    clean.push_str(text.get(end..).unwrap_or_default());
    Cow::Owned(clean)
}

/// Bytes from which on a part of a text tells a secret: the port `1` of a secret stands in every other
/// address.
const MIN_SUBSTRING_BYTES: usize = 4;

/// Bytes from which on a secret does not occur in other texts by chance.
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
