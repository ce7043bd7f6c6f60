//! Events in the verdicts of rules.

use cofferdam_cluster::EventType;

/// An event of a verdict. It is emitted after the verdict's effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// Normal or Warning.
    pub kind: EventType,
    /// Reason, as in Kubernetes: `ProvisioningFailed`.
    pub reason: &'static str,
    /// The message.
    pub text: String,
}

impl EventSpec {
    /// A Normal event.
    pub fn normal(reason: &'static str, text: impl Into<String>) -> Self {
        Self { kind: EventType::Normal, reason, text: text.into() }
    }

    /// A Warning event.
    pub fn warning(reason: &'static str, text: impl Into<String>) -> Self {
        Self { kind: EventType::Warning, reason, text: text.into() }
    }
}
