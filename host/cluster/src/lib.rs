//! Access to the Kubernetes API: watches, decoding, an indexed cache, writes with preconditions, events, work
//! queues and the intent journal.
//!
//! Modules form layers. A module uses only modules of its own row and of the rows above:
//!
//! | layer | content |
//! |---|---|
//! | [`clock`], [`metrics`], [`observer`], [`queue`] | no knowledge of the API |
//! | [`api`] | connections, client, paths, [`ApiError`] |
//! | [`objects`] | kinds, decoding, [`DecodeError`] |
//! | [`index`] | secondary indexes of the cached kinds |
//! | [`store`] | [`ObjectStore`] of one kind, [`Cache`] of all kinds |
//! | [`writer`], [`events`], [`secrets`], [`deletion_freeze`], [`reflector`] | writes, reads and watches |
//! | [`leader_election`] | one active process per Lease |
//! | [`leadership`] | the terms in which controllers may work |
//! | [`campaign`] | leadership by several Leases |
//! | [`journal`] | CreateVolume requests that are written to ConfigMaps before they are sent to a driver |
//!
//! Controllers decide from the cache, and read live only before effects that need the current state. Watches,
//! live reads and the responses of writes update the cache, so a controller never waits for the watch event
//! of its own write. The table in `store/object_store.rs` defines the order of such updates.
#![forbid(unsafe_code)]

pub mod api;
pub mod campaign;
pub mod clock;
pub mod deletion_freeze;
pub mod events;
pub mod index;
pub mod journal;
pub mod leader_election;
pub mod leadership;
pub mod metrics;
pub mod objects;
pub mod observer;
pub mod queue;
pub mod reflector;
pub mod secrets;
pub mod store;
pub mod writer;

pub use api::{ApiError, connect};
pub use clock::{Clock, system_clock};
pub use events::{Event, EventSink, EventType, ObjectReference};
pub use journal::{
    Intent, IntentClass, IntentSecrets, Journal, JournalEntry, JournalError, RequestedSources,
};
pub use objects::{
    DecodeError, Kind, decode,
    managed_fields::field_managers,
    orphan_report::{self, OrphanReport},
};
pub use secrets::{SecretError, SecretNamespaces, SecretReader};
pub use store::{Cache, Change, Lookup, ObjectStore, cache};
pub use writer::{Precondition, Writer};
