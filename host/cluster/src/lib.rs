//! The cluster as the roles see it: watch → decode → cache with indexes; writes with their preconditions;
//! events; work queues; the intent journal.
//!
//! The cache is the only place where roles read. It is fed by one watch per kind and by the answer of every
//! write, so a role never waits for the echo of its own write; [`table`] holds the rules that keep an old
//! echo from undoing a new answer.
#![forbid(unsafe_code)]

pub mod cache;
pub mod connect;
pub mod decode;
pub mod deletion_freeze;
pub mod events;
pub mod journal;
pub mod kind;
pub mod metrics;
pub mod orphan_report;
pub mod queue;
pub mod reflector;
pub mod secrets;
mod small_set;
pub mod store;
pub mod writer;

pub use cache::Cache;
pub use events::{Event, EventSink, EventType, ObjectReference};
pub use journal::{Intent, IntentClass, Journal, JournalError};
pub use kind::{ApiResource, Kind};
pub use orphan_report::OrphanReport;
pub use store::{Change, Lookup, ObjectStore};
pub use writer::{ApiError, Precondition, Writer};

use std::sync::Arc;

/// The wall clock, injected: tests and simulation bring their own.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

/// The machine's wall clock.
pub fn system_clock() -> Clock {
    Arc::new(jiff::Timestamp::now)
}

/// Waits for a moment, or for ever where there is none.
async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
