//! Events of the controllers.

use cofferdam_cluster::{Event, EventSink, EventType, Kind, ObjectReference};

/// Type, reason and message of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// Normal or Warning.
    pub kind: EventType,
    /// Reason, such as `ProvisioningFailed`.
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

/// Emits events on objects, as client-go's `EventRecorder`.
#[derive(Clone)]
pub(crate) struct EventRecorder(EventSink);

impl EventRecorder {
    pub(crate) fn new(sink: EventSink) -> Self {
        Self(sink)
    }

    /// Emits an event on an object. `component` is the event's `source.component`.
    pub(crate) fn emit<K: Kind>(&self, object: &K, component: &str, spec: EventSpec) {
        self.emit_on(ObjectReference::from_object(object), component, spec);
    }

    /// As [`EventRecorder::emit`], on an object that is not in the cache.
    pub(crate) fn emit_on(&self, object: ObjectReference, component: &str, spec: EventSpec) {
        let EventSpec { kind: event_type, reason, text } = spec;
        self.0.publish(Event {
            involved_object: object,
            event_type,
            reason,
            note: text,
            component: component.into(),
        });
    }
}
