//! The loop that commits changes and checks the ownership.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{commit::PendingKind, state::Journal};
use crate::clock::sleep_until;

/// Delay of removals, to join another commit. If the process crashes within this time, the intent is still in
/// its ConfigMap, and the next process handles it again.
const FLUSH_DELAY: Duration = Duration::from_millis(500);
/// Delay before a failed removal is retried, unless a put causes a commit earlier.
const RETRY_DELAY: Duration = Duration::from_secs(1);

impl Journal {
    /// Commits changes until `stop`, then commits the remaining ones.
    pub async fn run(&self, stop: CancellationToken) {
        let (mut next_commit_at, mut last_check) = (None, Instant::now());
        loop {
            let changes_pending = self.inner.changes_pending.notified();
            let pending = self.pending_kind();
            let is_due = next_commit_at.is_some_and(|due| Instant::now() >= due);
            if pending == PendingKind::Puts || (pending == PendingKind::RemovalsOnly && is_due) {
                next_commit_at = None;
                if !self.commit().await {
                    next_commit_at = Some(Instant::now() + RETRY_DELAY);
                }
                continue;
            }
            if pending == PendingKind::RemovalsOnly && next_commit_at.is_none() {
                next_commit_at = Some(Instant::now() + FLUSH_DELAY);
            }
            let next_check = self.next_ownership_check(last_check);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = changes_pending => {}
                () = sleep_until(next_commit_at) => {}
                () = sleep_until(next_check) => {
                    last_check = Instant::now();
                    self.check_ownership().await;
                }
            }
        }
        self.inner.state.lock().closed = true;
        self.commit().await;
    }
}
