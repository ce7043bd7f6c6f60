//! `secrets` and `reveal`: the call's secrets as handles, and their texts for guests with the grant `reveal`.

use std::fmt;

use cofferdam_domain::storage::Secrets;
use sha2::{Digest as _, Sha256};
use wasmtime::component::{HasData, Resource, ResourceTable};

use crate::bindings::{
    SecretHandle,
    cofferdam::storage::{reveal, secrets, types},
};

/// SHA-256 of the names and texts of a call's secrets: equal only for calls with the same secrets. Sessions
/// and connections that were opened with some secrets never serve calls with others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tenant([u8; 32]);

impl Tenant {
    pub(crate) fn from_secrets(secrets: &Secrets) -> Self {
        let mut digest = Sha256::new();
        for text in secrets.iter().flat_map(|(name, secret)| [name, secret.expose()]) {
            // The lengths separate texts whose concatenations are equal.
            digest.update(text.len().to_le_bytes());
            digest.update(text);
        }
        Self(digest.finalize().into())
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[tenant]")
    }
}

/// The `types`, `secrets` and `reveal` imports of one call.
pub(crate) struct SecretsView<'a> {
    pub(crate) secrets: &'a Secrets,
    /// The guest's handles.
    pub(crate) handles: &'a mut ResourceTable,
}

impl HasData for SecretsView<'static> {
    type Data<'a> = SecretsView<'a>;
}

impl types::Host for SecretsView<'_> {}

impl types::HostSecret for SecretsView<'_> {
    fn drop(&mut self, handle: Resource<SecretHandle>) -> wasmtime::Result<()> {
        self.handles.delete(handle)?;
        Ok(())
    }
}

impl secrets::Host for SecretsView<'_> {
    fn names(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(self.secrets.iter().map(|(name, _)| name.to_owned()).collect())
    }

    fn get(&mut self, name: String) -> wasmtime::Result<Option<Resource<SecretHandle>>> {
        let Some(secret) = self.secrets.get(&name) else { return Ok(None) };
        Ok(Some(self.handles.push(SecretHandle { name, secret: secret.clone() })?))
    }
}

impl reveal::Host for SecretsView<'_> {
    fn reveal(&mut self, handle: Resource<SecretHandle>) -> wasmtime::Result<String> {
        Ok(self.handles.get(&handle)?.secret.expose().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::storage::Secret;

    use super::*;

    #[test]
    fn tenant_depends_on_every_secret_name_and_value() {
        let tenant = |pairs: &[(&str, &str)]| {
            Tenant::from_secrets(
                &pairs.iter().map(|(name, text)| ((*name).to_owned(), Secret::new(*text))).collect(),
            )
        };
        let sets: [&[(&str, &str)]; 6] =
            [&[], &[("a", "b")], &[("a", "c")], &[("ab", "")], &[("", "ab")], &[("a", "b"), ("c", "d")]];
        for (n, one) in sets.iter().enumerate() {
            for (m, other) in sets.iter().enumerate() {
                assert_eq!(tenant(one) == tenant(other), n == m, "{one:?} {other:?}");
            }
        }
        assert_eq!(tenant(&[("c", "d"), ("a", "b")]), tenant(&[("a", "b"), ("c", "d")]));
        assert_eq!(format!("{:?}", tenant(&[])), "[tenant]");
    }
}
