//! Intents: the content of the journal, and its JSON.

use cofferdam_domain::{
    ClaimKey, DriverName, NodeName, ReclaimPolicy, StorageClassName, Uid, VolumeHandle,
    storage::CreateVolume, volume::SecretRef,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::JournalError;

/// Bytes of decodable intents, including the new one, above which a ConfigMap takes no new one: half of the
/// API server's limit of 1 MiB. Undecodable intents do not count towards either limit, and a new intent of
/// a claim whose earlier intent may still be in the ConfigMap is not checked.
pub(super) const MAX_SHARD_BYTES: usize = 512 << 10;
/// Number of decodable intents at which a ConfigMap takes no new one.
pub(super) const MAX_SHARD_INTENTS: usize = 400;

/// The fields of the StorageClass that the PersistentVolume needs. They are part of the intent, because the
/// class may be deleted before the PersistentVolume is created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntentClass {
    /// Name of the class, as in the claim.
    pub name: StorageClassName,
    /// `metadata.uid`
    pub uid: Uid,
    /// `reclaimPolicy`
    pub reclaim_policy: ReclaimPolicy,
    /// `mountOptions`
    pub mount_options: Vec<String>,
}

/// The Secrets that the StorageClass names, resolved for the claim: references, never values. They are part
/// of the intent, because the class and the claim's annotations may change before the PersistentVolume is
/// created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IntentSecrets {
    /// The Secret of CreateVolume and DeleteVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioner: Option<SecretRef>,
    /// `controllerPublishSecretRef` of the PersistentVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_publish: Option<SecretRef>,
    /// `nodeStageSecretRef` of the PersistentVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_stage: Option<SecretRef>,
    /// `nodePublishSecretRef` of the PersistentVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_publish: Option<SecretRef>,
    /// `controllerExpandSecretRef` of the PersistentVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_expand: Option<SecretRef>,
    /// `nodeExpandSecretRef` of the PersistentVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_expand: Option<SecretRef>,
    /// The Secret of ControllerModifyVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_modify: Option<SecretRef>,
}

impl IntentSecrets {
    /// Returns `true` if the class names no Secret.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A CreateVolume request of a claim. The request is sent only after the intent is durable. Once the intent
/// is durable, the request may have been sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// Namespace and name of the claim.
    pub claim: ClaimKey,
    /// Uid of the claim: the key of the intent.
    pub claim_uid: Uid,
    /// The driver.
    pub driver: DriverName,
    /// The node of a node-local driver, or the claim's selected node if the driver has topology. `None` if
    /// neither applies, and in intents of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// The StorageClass at the time of the first request.
    pub class: IntentClass,
    /// Name of the claim's VolumeAttributesClass at that time; empty for none, and in intents of older
    /// versions.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub attributes_class: Box<str>,
    /// The Secrets of the StorageClass. Empty for a class without Secrets, and in intents of older versions.
    #[serde(default, skip_serializing_if = "IntentSecrets::is_empty")]
    pub secrets: IntentSecrets,
    /// The exact request.
    pub request: CreateVolume,
    /// Time at which the intent was written. `None` in intents of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_at: Option<Timestamp>,
    /// The volume that the driver has created for the request and that is to be deleted, because its claim
    /// does not need it or has another one. The handle is written before DeleteVolume is called: the request
    /// is not repeated any more, and another process deletes the volume. `None` before that, and in intents
    /// of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unneeded: Option<VolumeHandle>,
    /// The intent of the claim's mended request, which was built from the claim and its class while the
    /// result of `request` was unknown. The driver may have received both requests. It has the same claim,
    /// driver and name of the volume, and no mended request of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mended: Option<Box<Self>>,
}

impl Intent {
    /// The intent with the volume that is to be deleted, and without another request.
    #[must_use]
    pub fn with_unneeded(&self, handle: &VolumeHandle) -> Self {
        Self { unneeded: Some(handle.clone()), mended: None, ..self.clone() }
    }

    /// Returns `true` if the intents have a common request. One may have one of two requests of the other, or name
    /// its volume as unneeded.
    pub(super) fn shares_request_with(&self, other: &Self) -> bool {
        self.requests().any(|own| other.requests().any(|request| own.is_same_request(request)))
    }

    /// The intent, and that of its mended request.
    pub(super) fn requests(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.mended.as_deref())
    }

    /// Compares everything that does not change after an intent is written.
    fn is_same_request(&self, other: &Self) -> bool {
        let Self {
            claim,
            claim_uid,
            driver,
            node,
            class,
            attributes_class,
            secrets,
            request,
            recorded_at,
            unneeded: _,
            mended: _,
        } = self;
        (claim, claim_uid, driver, node) == (&other.claim, &other.claim_uid, &other.driver, &other.node)
            && (class, attributes_class) == (&other.class, &other.attributes_class)
            && (secrets, request, recorded_at) == (&other.secrets, &other.request, &other.recorded_at)
    }
}

/// The reason why this build cannot use an intent of a ConfigMap.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidIntent {
    /// The JSON is not an [`Intent`].
    #[error("malformed intent: {0}")]
    Json(#[from] serde_json::Error),
    /// The intent has the key of another claim.
    #[error("claim_uid is {found}: expected {expected}")]
    ClaimUid { found: Uid, expected: Uid },
    /// The intent belongs to another driver.
    #[error("driver is {found}: expected {expected}")]
    Driver { found: DriverName, expected: DriverName },
    /// The intent belongs to another node, or names none.
    #[error("node is {}: expected {expected}", .found.as_ref().map_or("absent", |node| node.as_str()))]
    Node { found: Option<NodeName>, expected: NodeName },
    /// The mended request is for another claim, driver or volume, or is mended itself.
    #[error("mended is not for the same claim, driver and volume name, or has a field `mended`")]
    Mended,
}

/// The JSON of an intent, and its size in a ConfigMap with its key.
pub(super) fn encode(intent: &Intent) -> Result<(String, usize), JournalError> {
    let json = serde_json::to_string(intent).map_err(|error| JournalError::Refused(error.to_string()))?;
    let size = json.len() + intent.claim_uid.to_string().len();
    if size > MAX_SHARD_BYTES {
        return Err(JournalError::Refused(format!(
            "the request has {size} bytes: a journal shard holds at most {MAX_SHARD_BYTES}"
        )));
    }
    Ok((json, size))
}

/// Returns true if `mended` may be the mended request of `intent`.
fn is_mended_request_of(intent: &Intent, mended: &Intent) -> bool {
    (&intent.claim_uid, &intent.driver, &intent.request.name)
        == (&mended.claim_uid, &mended.driver, &mended.request.name)
        && mended.mended.is_none()
}

/// Checks that this build can use an intent with the key `uid` of a journal of the driver, and of the node of
/// a node-local driver.
pub(super) fn validate(
    uid: &str,
    intent: Intent,
    driver: &DriverName,
    node: Option<&NodeName>,
) -> Result<Intent, InvalidIntent> {
    if intent.claim_uid != Uid::from(uid) {
        return Err(InvalidIntent::ClaimUid { found: intent.claim_uid, expected: uid.into() });
    }
    if intent.driver != *driver {
        return Err(InvalidIntent::Driver { found: intent.driver, expected: driver.clone() });
    }
    if intent.mended.as_ref().is_some_and(|mended| !is_mended_request_of(&intent, mended)) {
        return Err(InvalidIntent::Mended);
    }
    match node {
        Some(expected) if intent.node.as_ref() != Some(expected) => {
            Err(InvalidIntent::Node { found: intent.node, expected: expected.clone() })
        }
        Some(_) | None => Ok(intent),
    }
}
