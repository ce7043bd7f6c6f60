//! Changes of cached objects.

use std::sync::Arc;

use crate::objects::Kind;

/// A change of one object.
#[derive(Clone)]
pub struct Change<K: Kind> {
    /// The object's key.
    pub key: K::Key,
    /// The cached object before the change; `None` if it was missing or undecodable.
    pub old: Option<Arc<K>>,
    /// The cached object after the change; `None` if it was removed.
    pub new: Option<Arc<K>>,
}
