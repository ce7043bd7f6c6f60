//! `secrets` and `reveal`: the call's secrets as handles, and what stands in them for those who may see it.

use std::borrow::Cow;

use cofferdam_domain::storage::{Secret, Secrets};
use wasmtime::component::Resource;

use super::Capabilities;
use crate::bindings::cofferdam::storage::{reveal, secrets, types};

/// What is behind a guest's handle.
#[derive(Clone, Debug)]
#[expect(unreachable_pub, reason = "the generated bindings export it again")]
pub struct Handle(pub(crate) Secret);

/// What stands in place of a secret.
const BLOT: &str = "[secret]";

/// Blots a call's secrets out of what the guest says. All of them, not only those that were revealed: a storage may repeat to
/// the guest what the host has sent for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Redactor {
    secrets: Secrets,
}

impl Redactor {
    pub(crate) fn new(secrets: Secrets) -> Self {
        Self { secrets }
    }

    /// A text without the secrets.
    pub(crate) fn blot<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut found: Vec<&str> = self
            .secrets
            .iter()
            .map(|(_, secret)| secret.expose())
            .filter(|secret| is_in(secret, text))
            .collect();
        if found.is_empty() {
            return Cow::Borrowed(text);
        }
        // The longest first: one secret may be a part of another.
        found.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Cow::Owned(found.into_iter().fold(text.to_owned(), |text, secret| text.replace(secret, BLOT)))
    }

    /// Whether a text holds a secret.
    pub(crate) fn finds(&self, text: &str) -> bool {
        self.secrets.iter().any(|(_, secret)| is_in(secret.expose(), text))
    }
}

fn is_in(secret: &str, text: &str) -> bool {
    !secret.is_empty() && text.contains(secret)
}

impl types::Host for Capabilities {}

impl types::HostSecret for Capabilities {
    fn drop(&mut self, handle: Resource<Handle>) -> wasmtime::Result<()> {
        self.handles.delete(handle)?;
        Ok(())
    }
}

impl secrets::Host for Capabilities {
    fn names(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(self.context.secrets.iter().map(|(name, _)| name.to_owned()).collect())
    }

    fn get(&mut self, name: String) -> wasmtime::Result<Option<Resource<Handle>>> {
        let Some(secret) = self.context.secrets.get(&name) else { return Ok(None) };
        Ok(Some(self.handles.push(Handle(secret.clone()))?))
    }
}

impl reveal::Host for Capabilities {
    fn reveal(&mut self, handle: Resource<Handle>) -> wasmtime::Result<String> {
        Ok(self.handles.get(&handle)?.0.expose().to_owned())
    }
}

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
        let table: [(&[&str], &str, &str); 5] = [
            (&[],                    "user and password",    "user and password"),
            (&["hunter2"],           "hunter2, hunter2!",    "[secret], [secret]!"),
            (&["ab", "abc"],         "abc ab",               "[secret] [secret]"),
            (&[""],                  "nothing is no secret", "nothing is no secret"),
            (&["pässwörd"],          "(pässwörd)",           "([secret])"),
        ];
        for (secrets, text, expected) in table {
            assert_eq!(redactor(secrets).blot(text), expected, "{text}");
        }
        assert!(redactor(&["x"]).finds("axb") && !redactor(&["", "x"]).finds("ab"));
    }
}
