//! Reads the Secrets of driver calls: live, before each call.

use std::sync::Arc;

use cofferdam_cluster::{Intent, Lookup, SecretError, observer::StepResult, queue::Action};
use cofferdam_domain::{Volume, storage::Secrets, volume::SecretRef};

use super::{
    create_secret::CreateSecret,
    reconcile::Provisioner,
    secret_references::{self, SecretReferenceError},
    stuck::StuckCause,
};
use crate::drivers::ManagedDriver;

/// The reason why the Secret of a deletion is not known or cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeletionSecretError {
    /// The class, which decides about the Secret, cannot be decoded.
    #[error("StorageClass {0} cannot be decoded: it may name a Secret")]
    Class(Arc<str>),
    /// The parameters of the class are invalid.
    #[error("cannot determine the Secret of the volume: {0}")]
    Reference(#[from] SecretReferenceError),
    /// The Secret exists, or may exist, and cannot be used.
    #[error(transparent)]
    Read(#[from] SecretError),
}

impl Provisioner {
    /// Reads the Secret of the intent's CreateVolume call. Returns `None` after success, and the claim is
    /// then decided again, since it may have changed meanwhile; else the action that the reconcile returns.
    /// As in external-provisioner, a failure neither starts nor ends a request.
    ///
    /// `recorded` is the driver whose journal has the intent: without its Secret, the request of the intent
    /// is not sent, and the intent may be stuck. `None` for a request that is not written yet, or if the
    /// intent has another request that can be sent.
    pub(super) async fn read_create_secret(
        &self,
        intent: &Intent,
        create_secret: &mut CreateSecret,
        recorded: Option<&ManagedDriver>,
    ) -> Option<Action> {
        let secret = intent.secrets.provisioner.clone()?;
        match self.context.secrets.read(&secret).await {
            Ok(secrets) => {
                create_secret.set(secret, secrets);
                None
            }
            Err(error) => {
                let class = &intent.class.name;
                let message = format!("failed to provision volume with StorageClass {class:?}: {error}");
                let recorder = self.context.recorders.of_claim(&intent.claim);
                recorder.record(StepResult::Failed, message.clone(), None);
                let action = self.backoff_after_failure(&intent.claim_uid, message.clone(), false);
                let Some(driver) = recorded else { return Some(action) };
                let cause = StuckCause::NoResult(message);
                Some(self.report_if_stuck(driver, intent, &cause, &recorder).await.unwrap_or(action))
            }
        }
    }

    /// Reads the Secret with which the volume of a PersistentVolume is deleted, see
    /// [`secret_references::deletion_secret`].
    ///
    /// # Errors
    /// [`DeletionSecretError`]
    pub(super) async fn read_secret_of(&self, volume: &Volume) -> Result<Secrets, DeletionSecretError> {
        let class = match self.context.cache.class(&volume.class) {
            Lookup::Found(class) => Some(class),
            Lookup::Missing => None,
            // Needed only if the annotations do not decide.
            Lookup::Undecodable(_) if secret_references::has_deletion_annotations(volume) => None,
            Lookup::Undecodable(_) => return Err(DeletionSecretError::Class(Arc::clone(&volume.class))),
        };
        let secret = secret_references::deletion_secret(volume, class.as_deref())?;
        Ok(self.read_delete_secret(secret.as_ref(), volume.name.as_str()).await?)
    }

    /// Reads the Secret of a DeleteVolume call. Without a Secret, or if it does not exist, returns no
    /// secrets: it may have been deleted together with the claim, and the volume would stay forever. A driver
    /// that needs the Secret rejects the call.
    ///
    /// # Errors
    /// The Secret exists, or may exist, and cannot be used.
    pub(super) async fn read_delete_secret(
        &self,
        secret: Option<&SecretRef>,
        volume: &str,
    ) -> Result<Secrets, SecretError> {
        let Some(secret) = secret else { return Ok(Secrets::default()) };
        let secrets = self.context.secrets.read_if_exists(secret).await?;
        if secrets.is_none() {
            tracing::warn!(volume, "Secret {secret} not found; deleting the volume without it");
        }
        Ok(secrets.unwrap_or_default())
    }
}
