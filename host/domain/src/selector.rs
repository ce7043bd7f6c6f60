//! Label selectors.

use crate::string_map::StringMap;

/// One requirement of a label selector (`matchExpressions`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// The label exists with one of the values.
    In(Box<str>, Vec<Box<str>>),
    /// The label is absent or has none of the values.
    NotIn(Box<str>, Vec<Box<str>>),
    /// The label exists.
    Exists(Box<str>),
    /// The label is absent.
    DoesNotExist(Box<str>),
}

/// A label selector: every requirement must hold. Without requirements it matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// `matchLabels` and `matchExpressions`.
    pub requirements: Vec<Requirement>,
}

impl Selector {
    /// Whether the labels satisfy every requirement.
    pub fn matches(&self, labels: &StringMap) -> bool {
        self.requirements.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels.get(key).is_some_and(|value| is_one(value, values)),
            Requirement::NotIn(key, values) => labels.get(key).is_none_or(|value| !is_one(value, values)),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::DoesNotExist(key) => !labels.contains_key(key),
        })
    }
}

fn is_one(value: &str, values: &[Box<str>]) -> bool {
    values.iter().any(|one| **one == *value)
}
