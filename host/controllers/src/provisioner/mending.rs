//! The two requests of an intent whose class was mended.
//!
//! An intent has the request that was sent first. While the result of this request is unknown, the claim's
//! class may be mended: the StorageClass or the VolumeAttributesClass is deleted and created again with other
//! parameters, or the mount options of the StorageClass change. The claim itself cannot change: Kubernetes
//! allows no other class and no other size before it is bound. The request that the classes ask for now is
//! then written to the intent, beside the first one, before it is sent. Both have the same name, so the
//! driver creates at most one volume:
//!
//! | result | of the first request | of the mended request |
//! |---|---|---|
//! | the volume | the intent is complete | the intent is complete |
//! | unknown | the mended request is sent next | the first request is sent next |
//! | `AlreadyExists` | as another final error | the first request, which has had an effect, is sent at once |
//! | another final error | the mended request becomes the only one | the first request remains |
//!
//! The intent is removed when the volume is known, or when both results are final errors. A mended request is
//! replaced only after a final error.

use std::sync::Arc;

use cofferdam_cluster::{Intent, IntentClass};
use cofferdam_domain::{
    names,
    storage::{ErrorKind, Finality, StorageError},
};

/// One of the requests of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// [`Intent::request`]
    First,
    /// The request of [`Intent::mended`].
    Mended,
}

/// Returns `intent` with the mended request `desired`, which is what the claim's classes ask for now. `None`
/// if they ask for the same request, if the intent has a mended request already, or if `desired` is for
/// another driver or another name of the volume: two volumes could then be created.
///
/// Only changes by administrators count. Another selected node or other labels of nodes do not:
/// names may be unique per topology segment only.
pub fn with_mended(intent: &Intent, desired: &Intent) -> Option<Intent> {
    let is_same_volume = (&intent.claim_uid, &intent.driver, &intent.request.name)
        == (&desired.claim_uid, &desired.driver, &desired.request.name);
    if intent.mended.is_some() || !is_same_volume {
        return None;
    }
    let is_mended = intent.class != desired.class
        || intent.request.mutable_parameters != desired.request.mutable_parameters;
    // Another class with the same content asks for the same request.
    let with_classes_of_intent = Intent {
        class: IntentClass { uid: intent.class.uid.clone(), ..desired.class.clone() },
        attributes_class: intent.attributes_class.clone(),
        recorded_at: intent.recorded_at,
        ..desired.clone()
    };
    (is_mended && with_classes_of_intent != *intent)
        .then(|| Intent { mended: Some(Box::new(desired.clone())), ..intent.clone() })
}

/// Returns the request that is sent next: both requests alternate, beginning with the mended one. `last` is
/// the digest of the request that was sent last; `None` if this process has sent none. The result is an
/// intent without a mended request.
pub fn next_request(intent: &Arc<Intent>, last: Option<&str>) -> (RequestKind, Arc<Intent>) {
    match &intent.mended {
        None => (RequestKind::First, Arc::clone(intent)),
        Some(mended) if last != Some(request_digest(mended).as_str()) => {
            (RequestKind::Mended, Arc::new((**mended).clone()))
        }
        Some(_) => (RequestKind::First, Arc::new(Intent { mended: None, ..(**intent).clone() })),
    }
}

/// Returns what remains of an intent after a final error of one request: the intent of the other request, or
/// `None` without another request.
pub fn remaining(intent: &Intent, failed: RequestKind) -> Option<Intent> {
    let mended = intent.mended.as_ref()?;
    Some(match failed {
        RequestKind::First => (**mended).clone(),
        RequestKind::Mended => Intent { mended: None, ..intent.clone() },
    })
}

/// Returns true if the error of a request says that a volume of its name exists with other arguments.
pub fn is_already_exists(error: &StorageError) -> bool {
    error.finality == Finality::Final && error.kind == ErrorKind::AlreadyExists
}

/// A digest of what the driver gets: the request, and the StorageClass that it was built from. A class that
/// was created again counts as a change, even with the same parameters: its administrator may have mended
/// what the parameters refer to.
pub fn request_digest(intent: &Intent) -> String {
    // The journal rejects an intent that cannot be encoded.
    let json = serde_json::to_string(&(&intent.class.uid, &intent.request)).unwrap_or_default();
    names::sha256_hex([json.as_str()])
}

#[cfg(test)]
pub(super) mod tests;
