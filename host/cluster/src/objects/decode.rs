//! Decodes the API server's JSON into domain types. Only the fields that the controllers use are parsed.
//!
//! Kubernetes validates its own kinds. An object that cannot be decoded therefore comes from a newer API
//! version, an aggregated API server or a bug. Such an object never fails the list of a reflector: the cache
//! keeps it as an [`UndecodableObject`], or ignores it if its metadata cannot be decoded either or its
//! resourceVersion is not a number.

use cofferdam_domain::{Uid, ids::ResourceVersion};
use serde::{Deserialize, de::DeserializeOwned};

use super::{DecodeError, Kind, error, meta::Meta};

/// Identity of an object that cannot be decoded, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndecodableObject<Key> {
    /// The object's key.
    pub key: Key,
    /// `metadata.uid`; empty if absent.
    pub uid: Uid,
    /// `metadata.resourceVersion`; 0 if absent.
    pub resource_version: ResourceVersion,
    /// The first problem, such as a field that cannot be decoded.
    pub reason: DecodeError,
}

/// A decoded object, or the identity of one that cannot be decoded.
pub type DecodeResult<K> = Result<K, UndecodableObject<<K as Kind>::Key>>;

/// Decodes one object. The inner error keeps the identity of an object with readable metadata.
///
/// # Errors
/// [`DecodeError`] if the metadata cannot be decoded either, or its resourceVersion is not a number.
pub fn object<K: Kind>(json: &str) -> Result<DecodeResult<K>, DecodeError> {
    #[derive(Deserialize)]
    struct Head {
        metadata: Meta,
    }
    let reason = match K::decode(json) {
        Ok(object) if object.resource_version() != ResourceVersion::default() => return Ok(Ok(object)),
        Ok(_) => DecodeError::NoResourceVersion,
        Err(reason) => reason,
    };
    let Ok(Head { metadata }) = serde_json::from_str(json) else {
        return Err(DecodeError::Metadata { kind: K::RESOURCE.kind, source: Box::new(reason) });
    };
    let resource_version = metadata.resource_version()?;
    Ok(Err(UndecodableObject {
        key: K::key_from_parts(&metadata.namespace(), &metadata.name()),
        uid: metadata.uid(),
        resource_version,
        reason,
    }))
}

/// Parses JSON into a `T`, for kinds that other crates define.
///
/// # Errors
/// [`DecodeError::Json`] with the field's path.
pub fn json<T: DeserializeOwned>(json: &str) -> Result<T, DecodeError> {
    error::parse_json(json)
}
