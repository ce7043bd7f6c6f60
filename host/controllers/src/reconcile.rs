//! Common parts of reconciles: limits, subscriptions, periodic calls, and the result of a failed request to
//! the API server.

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{
    ApiError, Change, ObjectStore, Writer, index::Indexed, queue::Action, writer::CachedKind,
};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

/// Maximum effects per reconcile. The attach-detach controller adds four for each desired and each actual
/// attachment of the volume. A reconcile that reaches the limit is racing with other writers and is requeued.
pub(crate) const MAX_EFFECTS: usize = 16;

/// Interval after which the event of a lasting problem is repeated: the API server keeps events for an hour.
pub(crate) const EVENT_REPEAT_INTERVAL: Duration = Duration::from_secs(1800);

/// Calls `handler` for every object in `store`, and after every change, as long as the controller exists.
pub(crate) fn subscribe<C, K>(
    controller: &Arc<C>,
    store: &ObjectStore<K>,
    handler: impl Fn(&C, &Change<K>) + Send + Sync + 'static,
) where
    C: Send + Sync + 'static,
    K: Indexed,
{
    store.subscribe_while(controller, handler);
}

/// Calls `callback` once per period, until `stop`. The first call is after one period.
pub(crate) async fn run_periodically(period: Duration, stop: CancellationToken, mut callback: impl FnMut()) {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => callback(),
        }
    }
}

/// Reads an object from the API server into the cache, before a failure is reported whose reason it is: the
/// watches of two kinds are not ordered, so the cache may have an older state of an object than of one that
/// depends on it. The caller decides anew afterwards. An object that cannot be decoded, or that this process
/// may not read, stays as the cache has it.
///
/// # Errors
/// [`ApiError`] of a read that is worth a retry.
pub(crate) async fn refresh_reason<K: CachedKind>(writer: &Writer, key: &K::Key) -> Result<(), ApiError> {
    match writer.get::<K>(key).await {
        Ok(_) | Err(ApiError::InvalidResponse { .. } | ApiError::Refused { .. } | ApiError::NotServed(_)) => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// The result of a reconcile after a failed write, or a failed live read that precedes one. After Conflict,
/// NotFound and AlreadyExists, reads the object `key` live and requeues. Backs off after every other error,
/// and if this read fails.
pub(crate) async fn action_for_write_error<K: CachedKind>(
    writer: &Writer,
    key: &K::Key,
    error: &ApiError,
) -> Action {
    match error {
        ApiError::Conflict(_) | ApiError::NotFound(_) | ApiError::AlreadyExists(_) => {
            match writer.refresh::<K>(key).await {
                Ok(()) => Action::Requeue,
                Err(error) => {
                    tracing::debug!(%error, "cannot refresh an object after a failed write");
                    Action::Backoff
                }
            }
        }
        ApiError::TermEnded(_)
        | ApiError::NotServed(_)
        | ApiError::Refused { .. }
        | ApiError::Unavailable { .. }
        | ApiError::InvalidResponse { .. } => {
            tracing::warn!(%error, "a write failed; retrying");
            Action::Backoff
        }
    }
}
