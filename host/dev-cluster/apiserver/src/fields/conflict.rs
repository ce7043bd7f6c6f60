//! Conflicts of server-side apply.

use super::managed::FieldManager;

/// A field of another manager that the configuration would change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) manager: FieldManager,
    pub(crate) path: String,
}
