//! The campaign of a process for its Leases: the process leads while it holds all of them. After the loss of
//! one, it gives the others up and competes again.

use std::{future::pending, time::Duration};

use cofferdam_domain::term::Term;
use futures::future::{join_all, select_all};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    leader_election::{LeaderElector, LeaderHealth},
    leadership::{Leadership, TermSender},
};

/// Time after which requests to release Leases are given up.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The Leases of a process.
pub struct Campaign {
    electors: Vec<LeaderElector>,
    terms: TermSender,
    leadership: Leadership,
}

impl Campaign {
    /// A campaign for the Leases of these electors. Every process should have them in the same order. Sends
    /// no request.
    pub fn new(electors: Vec<LeaderElector>) -> Self {
        let (terms, leadership) = Leadership::elected();
        Self { electors, terms, leadership }
    }

    /// Leadership of this process by each Lease, for health checks.
    pub fn health(&self) -> Vec<LeaderHealth> {
        self.electors.iter().map(LeaderElector::health).collect()
    }

    /// The terms in which this process holds all Leases, once [`Campaign::lead`] runs.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Competes for the Leases until `work` has ended, then releases those that it holds. `work` works in the
    /// terms of [`Campaign::leadership`].
    pub async fn lead<T>(self, work: impl Future<Output = T>) -> T {
        let work_ended = CancellationToken::new();
        let guarded_work = async {
            let result = work.await;
            work_ended.cancel();
            result
        };
        tokio::join!(guarded_work, self.compete(&work_ended)).0
    }

    async fn compete(self, work_ended: &CancellationToken) {
        let Self { mut electors, terms, leadership: _ } = self;
        while !work_ended.is_cancelled() {
            let held = acquire_all(&mut electors, work_ended).await;
            if held == electors.len() {
                terms
                    .begin(Term::first_to_end(&electors.iter().map(LeaderElector::term).collect::<Vec<_>>()));
                let renewals = electors.iter_mut().map(|elector| Box::pin(elector.renew()));
                tokio::select! {
                    biased;
                    (lost, ..) = select_all(renewals) => {
                        terms.end();
                        tracing::warn!("{lost}; this process stops work, and competes for the lease again");
                    }
                    () = work_ended.cancelled() => terms.end(),
                }
            }
            // A part of the Leases is of no use, and another process may need it.
            let release = join_all(electors.iter_mut().map(LeaderElector::release));
            if timeout(RELEASE_TIMEOUT, release).await.is_err() {
                tracing::warn!(
                    "cannot release the leases within {RELEASE_TIMEOUT:?}: they expire after their lease duration"
                );
            }
        }
    }
}

/// Acquires the Leases one after the other, in the same order in each process, and renews those that it holds
/// meanwhile. Returns their number: fewer than all if one was lost, or if `stop` was cancelled.
async fn acquire_all(electors: &mut [LeaderElector], stop: &CancellationToken) -> usize {
    for index in 0..electors.len() {
        let Some((next, held)) = electors.get_mut(..=index).and_then(<[_]>::split_last_mut) else {
            return index;
        };
        let renewals: Vec<_> = held.iter_mut().map(|elector| Box::pin(elector.renew())).collect();
        let lost = async {
            match renewals.is_empty() {
                true => pending().await,
                false => select_all(renewals).await.0,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return index,
            lost = lost => {
                tracing::warn!("{lost}");
                return index;
            }
            () = next.acquire() => {}
        }
    }
    electors.len()
}
