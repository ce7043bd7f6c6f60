//! Events as verdicts carry them.

use cofferdam_cluster::EventType;

/// An event that belongs to a verdict: sent after its effect, or at once where there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// Normal or Warning.
    pub kind: EventType,
    /// Reason, as Kubernetes spells it.
    pub reason: &'static str,
    /// Text for people.
    pub text: String,
}

impl EventSpec {
    /// Something expected.
    pub fn normal(reason: &'static str, text: impl Into<String>) -> Self {
        Self { kind: EventType::Normal, reason, text: text.into() }
    }

    /// Something that a person may have to look at.
    pub fn warning(reason: &'static str, text: impl Into<String>) -> Self {
        Self { kind: EventType::Warning, reason, text: text.into() }
    }
}
