//! A campaign of a process for Leases: the process leads while it holds all of them. After the loss of one,
//! it gives the others up and competes again.

use std::{collections::BTreeSet, convert::Infallible, future::pending, time::Duration};

use cofferdam_domain::{DriverName, term::Term};
use futures::future::{join_all, select_all};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    journal::{JournalLoss, LostJournals},
    leader_election::{LeaderElector, LeaderHealth, LeaseInUse},
    leadership::{Leadership, TermSender},
};

/// Time after which requests to release Leases are given up.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a process does not compete after another one has taken a journal of its drivers. Two
/// leaders would otherwise take it from each other without a pause.
const JOURNAL_LOSS_PAUSE: Duration = Duration::from_secs(15);

/// Leases that the process needs together, to work with some of its drivers.
pub struct Campaign {
    drivers: BTreeSet<DriverName>,
    electors: Vec<LeaderElector>,
    terms: TermSender,
    leadership: Leadership,
}

impl Campaign {
    /// A campaign for the Leases of these electors. Every process should have them in the same order. Sends
    /// no request.
    pub fn new(drivers: BTreeSet<DriverName>, electors: Vec<LeaderElector>) -> Self {
        let (terms, leadership) = Leadership::elected();
        Self { drivers, electors, terms, leadership }
    }

    /// The process is the only owner of the drivers' data: it does not wait for another process that works
    /// with them.
    #[must_use]
    pub fn as_only_owner(self) -> Self {
        let electors = self.electors.into_iter().map(LeaderElector::as_only_owner).collect();
        Self { electors, ..self }
    }

    /// True after [`Campaign::as_only_owner`].
    pub fn is_only_owner(&self) -> bool {
        self.electors.iter().any(LeaderElector::is_only_owner)
    }

    /// The drivers with which the process works while it leads.
    pub const fn drivers(&self) -> &BTreeSet<DriverName> {
        &self.drivers
    }

    /// Leadership of this process by each Lease, for health checks.
    pub fn health(&self) -> Vec<LeaderHealth> {
        self.electors.iter().map(LeaderElector::health).collect()
    }

    /// The terms in which this process holds all Leases, once [`Campaign::run`] runs.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Competes for the Leases until the process [resigns](Leadership::resign), then releases those that it
    /// holds. A journal of its drivers that another process takes ends the term: two processes lead, or one
    /// works without leader election.
    ///
    /// A term that ends otherwise releases no Lease: driver calls that were in flight may still run, so
    /// another process begins after the duration of the Leases.
    ///
    /// # Errors
    /// [`LeaseInUse`], for an [only owner](Self::as_only_owner), after the other Leases are released.
    pub async fn run(self, mut lost_journals: watch::Receiver<LostJournals>) -> Result<(), LeaseInUse> {
        let Self { drivers, mut electors, terms, leadership: _ } = self;
        while !terms.is_resigned() {
            let acquired = acquire_all(&mut electors, terms.wait_resigned()).await;
            let mut pause = None;
            if acquired == Ok(electors.len()) {
                let known_losses = lost_journals.borrow_and_update().clone();
                terms
                    .begin(Term::first_to_end(&electors.iter().map(LeaderElector::term).collect::<Vec<_>>()));
                let renewals = electors.iter_mut().map(|elector| Box::pin(elector.renew()));
                tokio::select! {
                    biased;
                    (lost, ..) = select_all(renewals) => {
                        terms.end();
                        tracing::warn!("{lost}; this process stops work, and competes for the lease again");
                        pause = Some(Duration::ZERO);
                    }
                    (driver, loss) = wait_new_loss(&drivers, &known_losses, &mut lost_journals) => {
                        terms.end();
                        tracing::warn!(
                            "{loss} of driver {driver}, which this leader owned; this process stops work, and \
                             competes for the lease again in {} s; expected one namespace of the leases for all \
                             processes with this journal",
                            JOURNAL_LOSS_PAUSE.as_secs(),
                        );
                        pause = Some(JOURNAL_LOSS_PAUSE);
                    }
                    () = terms.wait_resigned() => terms.end(),
                }
            }
            if let Some(pause) = pause {
                electors.iter().for_each(LeaderElector::step_down);
                tokio::select! {
                    () = terms.wait_resigned() => {}
                    () = sleep(pause) => {}
                }
                continue;
            }
            // A part of the Leases is of no use, and another process may need it.
            let release = join_all(electors.iter_mut().map(LeaderElector::release));
            if timeout(RELEASE_TIMEOUT, release).await.is_err() {
                tracing::warn!(
                    "cannot release the leases within {RELEASE_TIMEOUT:?}: they expire after their lease duration"
                );
            }
            acquired?;
        }
        Ok(())
    }
}

/// Waits for the loss of a driver's journal that is not one of `known`: those of earlier terms may still be
/// reported. Each take has another name of the process.
async fn wait_new_loss(
    drivers: &BTreeSet<DriverName>,
    known: &LostJournals,
    lost_journals: &mut watch::Receiver<LostJournals>,
) -> (DriverName, JournalLoss) {
    let is_new = |(driver, loss): &(&DriverName, &JournalLoss)| {
        drivers.contains(*driver) && known.get(driver) != Some(loss)
    };
    loop {
        let loss = lost_journals
            .borrow_and_update()
            .iter()
            .find(is_new)
            .map(|(driver, loss)| (driver.clone(), loss.clone()));
        if let Some(loss) = loss {
            return loss;
        }
        if lost_journals.changed().await.is_err() {
            return pending().await;
        }
    }
}

/// Acquires the Leases one after the other, in the same order in each process. Meanwhile it renews those that
/// it holds, and observes the later ones, so that it waits for the duration of a dead leader's Leases once,
/// and not once for each. Returns their number: fewer than all if one was lost, or if `stop` has completed.
///
/// # Errors
/// [`LeaseInUse`]
async fn acquire_all(
    electors: &mut [LeaderElector],
    stop: impl Future<Output = ()>,
) -> Result<usize, LeaseInUse> {
    tokio::pin!(stop);
    for index in 0..electors.len() {
        let Some((first, later)) = electors.split_at_mut_checked(index + 1) else { return Ok(index) };
        let Some((next, held)) = first.split_last_mut() else { return Ok(index) };
        let renewals: Vec<_> = held.iter_mut().map(|elector| Box::pin(elector.renew())).collect();
        let lost = async {
            match renewals.is_empty() {
                true => pending().await,
                false => select_all(renewals).await.0,
            }
        };
        let observed = async {
            join_all(later.iter_mut().map(LeaderElector::observe_renewals)).await;
            // There is no later one.
            pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            () = &mut stop => return Ok(index),
            never = observed => match never {},
            lost = lost => {
                tracing::warn!("{lost}");
                return Ok(index);
            }
            acquired = next.acquire() => acquired?,
        }
    }
    Ok(electors.len())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn only_a_new_loss_of_a_journal_ends_a_term() {
        let loss = |rival: &str| {
            LostJournals::from([("array.example.com".into(), JournalLoss::Taken(rival.to_owned()))])
        };
        let (sender, mut receiver) = watch::channel(loss("first-1"));
        let (known, drivers) = (loss("first-1"), BTreeSet::from(["array.example.com".into()]));
        assert!(wait_new_loss(&drivers, &known, &mut receiver).now_or_never().is_none());
        sender.send_replace(LostJournals::new());
        assert!(wait_new_loss(&drivers, &known, &mut receiver).now_or_never().is_none());
        sender.send_replace(loss("first-2"));
        let others = BTreeSet::from(["other.example.com".into()]);
        assert!(wait_new_loss(&others, &known, &mut receiver).now_or_never().is_none(), "not its driver");
        let (driver, taken) = wait_new_loss(&drivers, &known, &mut receiver).await;
        assert_eq!((driver.as_str(), taken), ("array.example.com", JournalLoss::Taken("first-2".to_owned())));
        drop(sender);
        assert!(wait_new_loss(&drivers, &loss("first-2"), &mut receiver).now_or_never().is_none());
    }
}
