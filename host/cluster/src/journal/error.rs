//! Errors of the journal.

use super::ownership::JournalLoss;
use crate::api::ApiError;

/// The reason why an intent could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// A read or the write of the ConfigMap failed, the result of the write is unknown, or another put for
    /// the claim is being committed. The intent may be durable.
    #[error("the intent journal is unavailable: {0}")]
    Unavailable(String),
    /// The API server rejected a request for the ConfigMap, the CreateVolume request is too large or cannot
    /// be encoded, or the claim has an undecodable intent.
    #[error("the intent journal cannot be written: {0}")]
    Refused(String),
    /// No shard has room for the intent. The number is that of the journal's intents, whose volumes have an
    /// unknown state. The request must not be sent, because its intent is not durable.
    #[error("the intent journal is full: {0} volumes of the driver have an unknown state")]
    Full(usize),
    /// The namespace has its share of the journal: half of what the intents of other namespaces leave free.
    #[error(
        "the share of namespace {namespace} of the intent journal is full: {volumes} volumes of its claims have \
         an unknown state"
    )]
    NamespaceFull {
        /// The namespace of the claims.
        namespace: Box<str>,
        /// Number of its intents.
        volumes: usize,
    },
    /// This process has lost the journal: another one sends the driver's requests.
    #[error("{0}")]
    Lost(JournalLoss),
    /// The journal has stopped, or the intent was removed before its commit ended.
    #[error("the intent journal is closed")]
    Closed,
}

pub(super) fn replaced_meanwhile() -> JournalError {
    JournalError::Unavailable("the claim's intent was changed or removed meanwhile".to_owned())
}

/// The error of a put whose read or write failed.
pub(super) fn journal_error(error: &ApiError) -> JournalError {
    match error {
        ApiError::Refused { .. } => JournalError::Refused(error.to_string()),
        ApiError::Conflict(_)
        | ApiError::NotFound(_)
        | ApiError::NotServed(_)
        | ApiError::AlreadyExists(_)
        | ApiError::TermEnded(_)
        | ApiError::Unavailable { .. }
        | ApiError::InvalidResponse { .. } => JournalError::Unavailable(error.to_string()),
    }
}
