//! The intent journal: writes create requests durably before they are sent to a driver.
//!
//! The result of a CreateVolume call can be lost: the process crashes, the response does not arrive, or the
//! claim is deleted in the meantime. Therefore an intent with the exact request is first written to one of
//! several ConfigMaps (shards) in the process's namespace, keyed by the claim's uid. A retry sends the
//! identical request. The intent is removed when the PersistentVolume exists, when the driver's error is
//! final and shows that no volume was created, when the created volume was deleted because no claim needs it,
//! when the claim is deleted and another PersistentVolume refers to the created volume, or when an operator
//! confirms that the driver has no volume of this name.
//!
//! While the result of the request is unknown, its claim or class may be mended. The intent then has a second
//! request ([`Intent::mended`]), which [`Journal::replace`] writes before it is sent.
//!
//! Each driver has a journal, and node-local drivers have one per node, so that a hanging driver fills only
//! its own. Writes are committed in groups: immediately if no commit is in flight, otherwise together with
//! all others that arrive until it ends. Removals are delayed for a short time to join a commit. A removal
//! applies only to the intent that it names; one that another process wrote for the same claim is kept.
//!
//! One process owns a journal and sends its requests; `journal/ownership.rs` has the rules.

mod commit;
mod config_map;
mod error;
mod foreign_change;
mod intent;
mod owner;
mod ownership;
mod reports;
mod run;
mod shard;
mod state;

pub use config_map::{
    JOURNAL_LABEL, JOURNAL_LABEL_VALUE, NAME_PREFIX, NODE_ANNOTATION, driver_of_config_map,
};
pub use error::JournalError;
pub use intent::{Intent, IntentClass, IntentSecrets};
pub use ownership::{JournalLoss, OWNER_CHECK_INTERVAL};
pub use reports::{JournalReports, LostJournals};
pub use shard::{JournalEntry, RequestedSources};
pub use state::Journal;
