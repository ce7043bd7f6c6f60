//! Reference counts of VolumeAttributesClasses.

use std::collections::HashMap;

/// Number of references to each VolumeAttributesClass from the cached objects of one kind. The empty name,
/// which most objects have, means no class.
#[derive(Debug, Default)]
pub(crate) struct ReferenceCounts(HashMap<Box<str>, usize>);

impl ReferenceCounts {
    /// Returns `true` if an object references the class.
    pub(crate) fn contains(&self, class: &str) -> bool {
        self.0.contains_key(class)
    }

    pub(super) fn increment(&mut self, class: &str) {
        if !class.is_empty() {
            *self.0.entry(class.into()).or_default() += 1;
        }
    }

    pub(super) fn decrement(&mut self, class: &str) {
        let Some(count) = self.0.get_mut(class) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.0.remove(class);
        }
    }
}
