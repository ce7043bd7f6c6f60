//! Detection of a cluster that was restored from a backup.

use cofferdam_domain::ids::ResourceVersion;
use tokio::sync::watch as channel;

/// A resourceVersion below one that was observed before: the cluster was restored from a backup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} objects are at version {found}, expected at least {highest_seen}: the cluster was restored")]
pub struct RestoreDetected {
    /// Kind of the objects.
    pub kind: &'static str,
    /// Highest version that was observed before: of the kind, or of one ConfigMap of the intent journal.
    pub highest_seen: ResourceVersion,
    /// Version in the response.
    pub found: ResourceVersion,
}

impl RestoreDetected {
    /// Compares `found`, the version of a response, with `highest_seen`, the highest version of the kind or
    /// of the journal's ConfigMap that was observed before the request was sent.
    ///
    /// # Errors
    /// [`RestoreDetected`] if the response is older.
    pub fn check_version(
        kind: &'static str,
        highest_seen: ResourceVersion,
        found: ResourceVersion,
    ) -> Result<(), Self> {
        if found < highest_seen { Err(Self { kind, highest_seen, found }) } else { Ok(()) }
    }
}

/// Keeps the first detected restore of the cached cluster.
#[derive(Debug, Default)]
pub struct RestoreDetector(channel::Sender<Option<RestoreDetected>>);

impl RestoreDetector {
    /// Reports a restore if `found` is lower than `highest_seen`, as [`RestoreDetected::check_version`].
    pub fn report_if_older(&self, kind: &'static str, highest_seen: ResourceVersion, found: ResourceVersion) {
        if let Err(restored) = RestoreDetected::check_version(kind, highest_seen, found) {
            self.report(restored);
        }
    }

    /// Reports a restore. Only the first report is kept.
    pub fn report(&self, restored: RestoreDetected) {
        self.0.send_if_modified(|reported| {
            let is_first = reported.is_none();
            reported.get_or_insert(restored);
            is_first
        });
    }

    /// The first reported restore; `None` if none was reported to this cache.
    pub fn reported(&self) -> Option<RestoreDetected> {
        self.0.borrow().clone()
    }

    /// Waits for the first report; returns at once if there is one.
    pub async fn wait_reported(&self) -> RestoreDetected {
        let mut reported = self.0.subscribe();
        match reported.wait_for(Option::is_some).await.ok().and_then(|reported| reported.clone()) {
            Some(restored) => restored,
            None => std::future::pending().await,
        }
    }
}
