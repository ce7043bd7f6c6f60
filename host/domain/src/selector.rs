//! Label selectors.

use crate::string_map::StringMap;

/// One requirement of a label selector (`matchExpressions`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelSelectorRequirement {
    /// The label exists with one of the values.
    In(Box<str>, Vec<Box<str>>),
    /// The label is absent or has none of the values.
    NotIn(Box<str>, Vec<Box<str>>),
    /// The label exists.
    Exists(Box<str>),
    /// The label is absent.
    DoesNotExist(Box<str>),
}

/// A requirement of a label selector that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "selector on {key:?} has operator {operator:?} with {values} values: expected In or NotIn with values, \
     Exists or DoesNotExist without"
)]
pub struct InvalidRequirement {
    /// `key`
    pub key: Box<str>,
    /// `operator`
    pub operator: Box<str>,
    /// Number of values.
    pub values: usize,
}

/// A label selector. All requirements must be satisfied; without requirements it matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// `matchLabels` and `matchExpressions`.
    pub requirements: Vec<LabelSelectorRequirement>,
}

impl LabelSelector {
    /// Returns `true` if the labels satisfy every requirement.
    pub fn matches(&self, labels: &StringMap) -> bool {
        self.requirements.iter().all(|requirement| match requirement {
            LabelSelectorRequirement::In(key, values) => {
                labels.get(key).is_some_and(|value| is_one_of(value, values))
            }
            LabelSelectorRequirement::NotIn(key, values) => {
                labels.get(key).is_none_or(|value| !is_one_of(value, values))
            }
            LabelSelectorRequirement::Exists(key) => labels.contains_key(key),
            LabelSelectorRequirement::DoesNotExist(key) => !labels.contains_key(key),
        })
    }
}

fn is_one_of(value: &str, values: &[Box<str>]) -> bool {
    values.iter().any(|one| **one == *value)
}
