//! Handling of a detected restore of the cluster from a backup: stop the controllers, and write the restore
//! marker, a ConfigMap that freezes deletions.

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{
    ApiError, Cache, Writer,
    deletion_freeze::{self, RESTORE_MARKER_NAME, RestoreDetected},
    metrics::Metrics,
};
use tokio_util::sync::CancellationToken;

/// Delay between attempts to write the restore marker. No controller starts again before it is written.
const MARKER_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum attempts to write the restore marker after the process was asked to stop. The attempts are
/// limited, because a supervisor such as kubelet kills a process that exceeds its grace period.
const MARKER_ATTEMPTS_AFTER_STOP: usize = 20;

/// Handles a restore that is detected with one cache.
pub(crate) struct RestoreHandler<'a> {
    pub(crate) cache: &'a Arc<Cache>,
    pub(crate) writer: &'a Writer,
    pub(crate) metrics: &'a Metrics,
    /// Namespace of the restore marker.
    pub(crate) namespace: &'a str,
    /// Cancelled when the process is asked to stop.
    pub(crate) stop: &'a CancellationToken,
}

impl RestoreHandler<'_> {
    /// Updates the metric `deletions_frozen` after each change of the restore marker in the cache.
    pub(crate) fn subscribe_metric(&self) {
        let (cache, gauge) = (Arc::downgrade(self.cache), self.metrics.deletions_frozen.clone());
        self.cache.restore_markers.subscribe(move |_| {
            if let Some(cache) = cache.upgrade() {
                gauge.set(i64::from(deletion_freeze::is_frozen(&cache)));
            }
        });
    }

    /// Sets the metric `deletions_frozen` from the cache. The previous cache may have set it to 1, and a
    /// change of the marker may not reset it: the marker may have been deleted before this cache was created,
    /// and a process without the provisioner does not watch it.
    pub(crate) fn update_metric(&self) {
        self.metrics.deletions_frozen.set(i64::from(deletion_freeze::is_frozen(self.cache)));
    }

    /// Waits for a restore until `stop_journals` is cancelled. After a restore, cancels `stop_work`, and
    /// writes the marker. This runs in parallel with the shutdown of the controllers, since other processes
    /// delete volumes too, and since a restore may be detected during the shutdown. Returns true if a restore
    /// was detected before `stop_journals` was cancelled.
    pub(crate) async fn run(&self, stop_work: &CancellationToken, stop_journals: &CancellationToken) -> bool {
        let restored = tokio::select! {
            biased;
            restored = self.cache.restore_detector.wait_reported() => restored,
            () = stop_journals.cancelled() => return false,
        };
        self.metrics.deletions_frozen.set(1);
        stop_work.cancel();
        self.write_marker(&restored).await;
        true
    }

    /// Creates the restore marker. Repeats a failed request until the API server accepts it; after `stop`, at
    /// most [`MARKER_ATTEMPTS_AFTER_STOP`] times. A process that does not lead waits until it does, or until
    /// the leader has created the marker.
    pub(crate) async fn write_marker(&self, restored: &RestoreDetected) {
        tracing::error!("{restored}; deletions are frozen until ConfigMap {RESTORE_MARKER_NAME} is deleted");
        let mut attempts_left = MARKER_ATTEMPTS_AFTER_STOP;
        while let Err(error) = deletion_freeze::create_marker(self.writer, self.namespace, restored).await {
            if matches!(error, ApiError::TermEnded(_)) {
                let exists = deletion_freeze::is_frozen_live(self.writer, self.namespace).await;
                if self.stop.is_cancelled() || exists.is_ok_and(|exists| exists) {
                    return;
                }
                tokio::time::sleep(MARKER_RETRY_DELAY).await;
                continue;
            }
            tracing::error!(
                %error,
                "cannot create ConfigMap {RESTORE_MARKER_NAME}; no controller runs before it exists"
            );
            if self.stop.is_cancelled() {
                attempts_left -= 1;
                if attempts_left == 0 {
                    tracing::error!(
                        "ConfigMap {RESTORE_MARKER_NAME} was not created; create it before the next process \
                         starts, which cannot detect this restore"
                    );
                    return;
                }
            }
            tokio::time::sleep(MARKER_RETRY_DELAY).await;
        }
    }
}
