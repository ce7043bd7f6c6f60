//! Health checks of the node roles.

use std::{sync::Arc, time::Duration};

use cofferdam_node::{LivenessProbe, Registrar};
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::telemetry::{HealthCheck, HealthChecks, Unhealthy};

/// The result of a Probe answers all requests of this time after it. Anyone who reaches the port can request
/// `/healthz`, and each Probe opens a connection to the driver.
const PROBE_MAX_AGE: Duration = Duration::from_secs(1);

/// The checks of `/healthz`. A field is `None` if the process does not have the role.
#[derive(Clone, Debug, Default)]
pub(super) struct HealthProbe {
    /// The driver on its socket, for the role `liveness`.
    pub(super) driver: Option<Arc<LivenessProbe>>,
    /// The registrar, for the role `registrar`.
    pub(super) registrar: Option<Arc<Registrar>>,
}

impl HealthProbe {
    /// Converts the checks to those of the telemetry servers.
    pub(super) fn into_health_checks(self) -> HealthChecks {
        HealthChecks {
            driver: self.driver.map(|driver| cached(probe_check(driver))),
            registration: self.registrar.map(registration_check),
        }
    }
}

fn registration_check(registrar: Arc<Registrar>) -> HealthCheck {
    Arc::new(move || {
        let checked = registrar.check_health().map_err(|error| Unhealthy(error.to_string()));
        std::future::ready(checked).boxed()
    })
}

fn probe_check(driver: Arc<LivenessProbe>) -> HealthCheck {
    Arc::new(move || {
        let driver = Arc::clone(&driver);
        async move { driver.check().await.map_err(|error| Unhealthy(error.to_string())) }.boxed()
    })
}

/// A running or finished check: its result, and the time of the result.
type SharedCheck = Shared<BoxFuture<'static, (Result<(), Unhealthy>, Instant)>>;

/// Limits a check: at most one runs at a time, and its result is the result of every request that waits for
/// it or comes within [`PROBE_MAX_AGE`]. The check runs in a task of its own, so a client that disconnects
/// does not cancel it for the others.
fn cached(check: HealthCheck) -> HealthCheck {
    let latest: Arc<Mutex<Option<SharedCheck>>> = Arc::default();
    Arc::new(move || {
        let (latest, check) = (Arc::clone(&latest), Arc::clone(&check));
        async move {
            loop {
                let (result, finished_at) = running_or_recent(&latest, &check).await;
                // Without this, a result that no earlier request has read could be of any age.
                if is_recent(finished_at) {
                    return result;
                }
            }
        }
        .boxed()
    })
}

/// Returns the latest check if it is running or its result is recent; else starts one.
fn running_or_recent(latest: &Mutex<Option<SharedCheck>>, check: &HealthCheck) -> SharedCheck {
    let mut latest = latest.lock();
    if let Some(current) = latest.as_ref()
        && current.peek().is_none_or(|(_, finished_at)| is_recent(*finished_at))
    {
        return current.clone();
    }
    let running = check();
    let task = tokio::spawn(async move { (running.await, Instant::now()) });
    let started = async move {
        task.await.unwrap_or_else(|panicked| {
            tracing::error!(%panicked, "a health check panicked");
            (Err(Unhealthy("the health check panicked".to_owned())), Instant::now())
        })
    };
    let started = started.boxed().shared();
    *latest = Some(started.clone());
    started
}

fn is_recent(finished_at: Instant) -> bool {
    finished_at.elapsed() < PROBE_MAX_AGE
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use tokio::time::sleep;

    use super::*;

    /// A check of 3 s that fails with the number of checks so far.
    fn counting_check() -> (HealthCheck, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let check: HealthCheck = Arc::new(move || {
            let number = counter.fetch_add(1, Ordering::Relaxed) + 1;
            async move {
                sleep(Duration::from_secs(3)).await;
                Err(Unhealthy(number.to_string()))
            }
            .boxed()
        });
        (check, count)
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_and_frequent_requests_share_one_probe() {
        let (check, count) = counting_check();
        let check = cached(check);
        let first = Err(Unhealthy("1".to_owned()));
        let results = join_all((0..100).map(|_| check())).await;
        assert!(results.iter().all(|result| *result == first), "{results:?}");
        sleep(PROBE_MAX_AGE / 2).await;
        assert_eq!((check().await, count.load(Ordering::Relaxed)), (first, 1));
        sleep(PROBE_MAX_AGE / 2).await;
        assert_eq!((check().await, count.load(Ordering::Relaxed)), (Err(Unhealthy("2".to_owned())), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_survives_its_request_and_expires_unread() {
        let (check, count) = counting_check();
        let check = cached(check);
        let mut disconnected = check();
        assert!(futures::poll!(&mut disconnected).is_pending());
        drop(disconnected);
        assert_eq!(check().await, Err(Unhealthy("1".to_owned())), "the probe was not cancelled");

        sleep(PROBE_MAX_AGE).await;
        let mut disconnected = check();
        assert!(futures::poll!(&mut disconnected).is_pending());
        drop(disconnected);
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(check().await, Err(Unhealthy("3".to_owned())), "an hour-old result is not reported");
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }
}
