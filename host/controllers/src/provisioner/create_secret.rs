//! The Secret of a CreateVolume call, between its read and the call.

use cofferdam_cluster::Intent;
use cofferdam_domain::{storage::Secrets, volume::SecretRef};

/// The Secret that a reconcile has read for its next CreateVolume call.
#[derive(Default)]
pub(super) struct CreateSecret(Option<(SecretRef, Secrets)>);

impl CreateSecret {
    /// Keeps the secrets of a Secret.
    pub(super) fn set(&mut self, secret: SecretRef, secrets: Secrets) {
        self.0 = Some((secret, secrets));
    }

    /// Returns true if the Secret of the intent was read, or if the intent has none.
    pub(super) fn is_read(&self, intent: &Intent) -> bool {
        let is_same = |needed: &SecretRef| self.0.as_ref().is_some_and(|(read, _)| read == needed);
        intent.secrets.provisioner.as_ref().is_none_or(is_same)
    }

    /// Takes the secrets of one call of the intent; empty if the intent has none. `None` if its Secret was
    /// not read.
    pub(super) fn take(&mut self, intent: &Intent) -> Option<Secrets> {
        if !self.is_read(intent) {
            return None;
        }
        let read = self.0.take().filter(|_| intent.secrets.provisioner.is_some());
        Some(read.map(|(_, secrets)| secrets).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_cluster::IntentSecrets;
    use cofferdam_domain::storage::Secret;

    use super::*;
    use crate::provisioner::mending;

    fn intent(provisioner: Option<SecretRef>) -> Intent {
        let secrets = IntentSecrets { provisioner, ..IntentSecrets::default() };
        Intent { secrets, ..mending::tests::intent("fast") }
    }

    fn secret(name: &str) -> SecretRef {
        SecretRef { namespace: "ns".into(), name: name.into() }
    }

    #[test]
    fn a_secret_is_for_one_call_of_its_intent() {
        let (without, with) = (intent(None), intent(Some(secret("s"))));
        let mut read = CreateSecret::default();
        assert!(read.is_read(&without) && !read.is_read(&with));
        assert_eq!(read.take(&without), Some(Secrets::default()));
        assert_eq!(read.take(&with), None);
        let values: Secrets = [("password".to_owned(), Secret::new("x"))].into_iter().collect();
        read.set(secret("other"), values.clone());
        assert!(!read.is_read(&with), "the Secret of another intent");
        read.set(secret("s"), values.clone());
        assert_eq!(read.take(&with), Some(values));
        assert_eq!(read.take(&with), None, "the next call needs another read");
    }
}
