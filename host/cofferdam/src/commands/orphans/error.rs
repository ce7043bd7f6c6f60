//! Errors of `cofferdam orphans`.

use cofferdam_cluster::orphan_report::OrphanKind;
use jiff::Timestamp;

use super::scope::ReportScope;
use crate::{config::GoDuration, error::CommandError};

/// An error of an `orphans` command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrphansError {
    #[error("cannot list the reports of the API at {api}: {problem}")]
    List { api: String, problem: String },
    #[error("cannot read the reports: {0}")]
    Read(String),
    #[error("cannot request the deletion: {0}")]
    RequestDeletion(String),
    #[error(
        "driver {driver} has no orphan report{about} {scope}: expected one from a process that runs the role \
         {role} with it{hint}",
        about = kind.map_or_else(String::new, |kind| format!(" of {kind}s")),
        role = reporting_role(*kind),
        hint = scope.hint()
    )]
    NoReport { driver: String, kind: Option<OrphanKind>, scope: ReportScope },
    #[error("flag --timeout: {0}")]
    Timeout(String),
    #[error(
        "driver {driver} already has a request to delete {handle}, from {requested_by} since {since}: \
         expected it to finish first"
    )]
    RequestPending { driver: String, handle: String, requested_by: String, since: Timestamp },
    #[error("driver {0} has a request that this version cannot read: expected it to finish first")]
    UnreadableRequest(String),
    #[error(
        "no response within {limit}: the request remains, and is refused if it has not started after an \
         hour; `cofferdam orphans --namespace {namespace} --driver {driver}` shows its result. Expected a \
         process to run the role {} with the driver",
        reporting_role(Some(*kind))
    )]
    ResponseTimeout { driver: String, kind: OrphanKind, namespace: String, limit: GoDuration },
    #[error(
        "the request was withdrawn, or a later one was completed: `cofferdam orphans --namespace {namespace} \
         --driver {driver}` shows what remains"
    )]
    RequestReplaced { driver: String, namespace: String },
}

/// The role that reports orphans of a kind, or of any.
pub(super) const fn reporting_role(kind: Option<OrphanKind>) -> &'static str {
    match kind {
        Some(OrphanKind::Volume) => "provisioner",
        Some(OrphanKind::Snapshot) => "snapshotter",
        None => "provisioner or snapshotter",
    }
}

impl From<OrphansError> for CommandError {
    fn from(error: OrphansError) -> Self {
        match error {
            OrphansError::Timeout(_) => Self::Usage(Box::new(error)),
            OrphansError::List { .. }
            | OrphansError::Read(_)
            | OrphansError::RequestDeletion(_)
            | OrphansError::NoReport { .. }
            | OrphansError::RequestPending { .. }
            | OrphansError::UnreadableRequest(_)
            | OrphansError::ResponseTimeout { .. }
            | OrphansError::RequestReplaced { .. } => Self::Other(Box::new(error)),
        }
    }
}
