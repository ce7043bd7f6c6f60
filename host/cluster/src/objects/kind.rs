//! Kubernetes kinds as domain types.

use cofferdam_domain::{ObjectMeta, ids::ResourceVersion};

use super::{DecodeError, ObjectKey};
use crate::api::ApiResource;

/// A domain type that mirrors one Kubernetes kind.
pub trait Kind: Clone + PartialEq + Send + Sync + 'static {
    /// Namespace and name; the name alone for cluster-scoped kinds and for the restore marker.
    type Key: ObjectKey;
    /// The API resource.
    const RESOURCE: ApiResource;
    /// True if the API server may lack the kind. The store is then empty, and the reflector lists again after
    /// a delay.
    const OPTIONAL: bool = false;

    /// Decodes one object. Fields that the controllers do not use are skipped.
    ///
    /// # Errors
    /// [`DecodeError`] of the first problem.
    fn decode(json: &str) -> Result<Self, DecodeError>;

    /// The key of a namespace (empty for cluster-scoped kinds) and a name.
    fn key_from_parts(namespace: &str, name: &str) -> Self::Key {
        Self::Key::from_parts(namespace, name)
    }

    /// Namespace (`None` if the key has none) and name of a key.
    fn key_parts(key: &Self::Key) -> (Option<&str>, &str) {
        key.parts()
    }

    /// The object's key.
    fn key(&self) -> &Self::Key;

    /// The object's metadata.
    fn meta(&self) -> &ObjectMeta;

    /// `metadata.resourceVersion`
    fn resource_version(&self) -> ResourceVersion {
        self.meta().resource_version
    }
}
