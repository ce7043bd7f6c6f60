//! Removes the secrets of a call from texts that leave the host.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cofferdam_domain::storage::{Secret, Secrets};

/// What stands in place of a secret.
const BLOT: &str = "[secret]";

/// Blots a call's secrets out of what the guest says. All of them, not only those that were revealed: a storage may repeat to
/// the guest what the host has sent for it. Clones learn together.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    secrets: Secrets,
    /// What the host has made of secrets in this call.
    made: Arc<Mutex<Vec<Secret>>>,
}

/// Most texts that are made of secrets in one call.
const MAX_MADE: usize = 64;

impl Redactor {
    /// For a call with these secrets.
    pub fn new(secrets: Secrets) -> Self {
        Self { secrets, made: Arc::default() }
    }

    /// Takes a text that was made of secrets for one itself. `false` when there are too many of them.
    pub fn learn(&self, text: Secret) -> bool {
        let mut made = self.made();
        if made.contains(&text) {
            return true;
        }
        let room = made.len() < MAX_MADE;
        if room {
            made.push(text);
        }
        room
    }

    fn made(&self) -> MutexGuard<'_, Vec<Secret>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A text without the secrets.
    pub fn blot<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.with_all(|secrets| blotted(text, secrets.iter().copied()))
    }

    /// A text without the secrets, also where it quotes them with escapes.
    pub fn blot_quoted(&self, text: &str) -> String {
        self.with_all(|secrets| {
            let quoted: Vec<_> = secrets.iter().map(|secret| secret.escape_debug().to_string()).collect();
            blotted(text, secrets.iter().copied().chain(quoted.iter().map(String::as_str))).into_owned()
        })
    }

    /// Whether a text is a secret, or holds one that is not so short that it says nothing there.
    pub fn finds(&self, text: &str) -> bool {
        self.with_all(|secrets| {
            secrets.iter().any(|secret| {
                *secret == text && !secret.is_empty() || secret.len() >= TELLING && text.contains(secret)
            })
        })
    }

    /// Whether a text holds a secret that is too long to be in it by chance.
    pub fn finds_long(&self, text: &str) -> bool {
        self.with_all(|secrets| secrets.iter().any(|secret| secret.len() >= LONG && text.contains(secret)))
    }

    /// Bytes of the longest secret.
    pub fn longest(&self) -> usize {
        self.with_all(|secrets| secrets.iter().map(|secret| secret.len()).max().unwrap_or_default())
    }

    /// Those of the call, and what was made of them.
    fn with_all<T>(&self, work: impl FnOnce(&[&str]) -> T) -> T {
        let made = self.made();
        let secrets = self.secrets.iter().map(|(_, secret)| secret).chain(made.iter());
        work(&secrets.map(Secret::expose).collect::<Vec<_>>())
    }
}

/// A text without some others, however they overlap. One pass: what stands in their place is not looked at again.
fn blotted<'a, 'b>(text: &'a str, secrets: impl Iterator<Item = &'b str>) -> Cow<'a, str> {
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
            clean.push_str(BLOT);
        }
        end = end.max(until);
    }
    clean.push_str(text.get(end..).unwrap_or_default());
    Cow::Owned(clean)
}

/// Bytes from which on a part of a text tells a secret: the port `1` of a secret stands in every other address.
const TELLING: usize = 4;

/// Bytes from which on a secret does not occur in other texts by chance.
const LONG: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor(secrets: &[&str]) -> Redactor {
        let named = secrets.iter().enumerate().map(|(n, text)| (n.to_string(), Secret::new(*text)));
        Redactor::new(named.collect())
    }

    #[test]
    fn every_secret_is_blotted_out() {
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
            assert_eq!(redactor(secrets).blot(text), expected, "{text}");
        }
        let knowing = redactor(&["a"]);
        assert!(knowing.learn(Secret::new("YTpi")) && knowing.learn(Secret::new("YTpi")));
        assert_eq!(knowing.clone().blot("Basic YTpi"), "B[secret]sic [secret]");
        assert!(knowing.finds("YTpi") && !redactor(&["a"]).finds("YTpi"));
        assert_eq!((0..100).filter(|n| knowing.learn(Secret::new(n.to_string()))).count(), MAX_MADE - 1);
        assert_eq!(
            redactor(&["pass\"word\\"]).blot_quoted("the key \"pass\\\"word\\\\\""),
            "the key \"[secret]\""
        );
        assert!(redactor(&["pass"]).finds("a pass b") && !redactor(&["", "pass"]).finds("a b"));
        assert!(redactor(&["1"]).finds("1") && !redactor(&["1"]).finds("10.0.0.1"));
    }
}
