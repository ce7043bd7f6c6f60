//! The cluster as the roles see it: watch → decode → cache with indexes; writes with their preconditions; events; work
//! queues; the intent journal.
//!
//! The cache is the only place where roles read. It is fed by one watch per kind and by the answer of every write, so a role
//! never waits for the echo of its own write; [`table`] holds the rules that keep an old echo from undoing a new answer.
#![forbid(unsafe_code)]

pub mod cache;
pub mod connect;
pub mod decode;
pub mod events;
pub mod hold;
pub mod journal;
pub mod kind;
mod members;
pub mod metrics;
pub mod orphans;
pub mod queue;
pub mod secrets;
pub mod table;
pub mod watch;
pub mod writer;

pub use cache::Cache;
pub use events::{Event, EventSink, EventType, Subject};
pub use journal::{Intent, IntentClass, Journal, JournalError};
pub use kind::{Kind, Resource};
pub use orphans::OrphanReport;
pub use table::{Change, Seen, Table};
pub use writer::{Precondition, WriteError, Writer};

use std::sync::Arc;

/// The wall clock, injected: tests and simulation bring their own.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

/// The machine's wall clock.
pub fn system_clock() -> Clock {
    Arc::new(jiff::Timestamp::now)
}

/// Waits for a moment, or for ever where there is none.
async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
