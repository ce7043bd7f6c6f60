//! Ownership of a journal: without leader election, one of several processes sends CreateVolume requests.
//!
//! The annotation [`OWNER`] of the journal's first ConfigMap names the owner. A process takes the journal
//! before its first request, whoever owned it before: in a rolling update the newer process wins. A process
//! that lost the journal takes it back only when it has work and the ConfigMap has not changed for
//! [`STANDSTILL`]. The owner changes the ConfigMap each [`RENEW_INTERVAL`] while it has intents, so a
//! standstill means that it has ended or has nothing to do.
//!
//! Times are those of the process's monotonic clock: no clock of another machine is read.

use std::time::Duration;

use cofferdam_domain::ids::ResourceVersion;
use tokio::time::Instant;

/// Annotation with the owner: the name of a process and a random part, which is new each time that a process
/// takes the journal. No process takes an annotation as its own because of the name of its host.
pub(super) const OWNER: &str = "cofferdam.dev/journal-owner";
/// Annotation with the number of renewals.
pub(super) const RENEWALS: &str = "cofferdam.dev/journal-renewals";
/// Interval of the owner's renewals while the journal has intents.
pub(super) const RENEW_INTERVAL: Duration = Duration::from_secs(20);
/// Interval at which a process reads the ConfigMap of a journal that it has lost. Callers of
/// `Journal::acquire` try again at this interval.
pub const OWNER_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Time without a change of the ConfigMap after which another process may take the journal: three renewals.
const STANDSTILL: Duration = Duration::from_secs(60);

/// The owner of a journal, as this process knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ownership {
    /// This process has not taken the journal yet, or nobody owns it.
    Unclaimed,
    /// This process owns the journal. Reads of versions below `since` are older than this.
    Owned { owner: String, since: ResourceVersion },
    /// Another process has taken the journal from this one.
    Lost(Rival),
}

/// The process that has taken the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rival {
    /// Value of [`OWNER`].
    pub(super) owner: String,
    /// Version of the ConfigMap.
    version: ResourceVersion,
    /// Begin of the time in which this process has had work and has seen no change. `None` without work.
    unchanged_since: Option<Instant>,
}

impl Ownership {
    /// Updates the ownership after a read of the first ConfigMap. `owner` is `None` if the ConfigMap or its
    /// annotation is missing: then any process may take the journal. Returns true if the journal was lost, or
    /// was taken by another rival.
    pub(super) fn observe(&mut self, owner: Option<&str>, version: ResourceVersion) -> bool {
        match (&mut *self, owner) {
            (Self::Unclaimed, _) => false,
            (Self::Owned { since, .. }, _) if version < *since => false,
            (Self::Owned { owner, .. }, Some(found)) if owner == found => false,
            (Self::Owned { .. } | Self::Lost(_), None) => {
                *self = Self::Unclaimed;
                false
            }
            (Self::Lost(rival), Some(found)) if rival.owner == found => {
                if rival.version != version {
                    rival.version = version;
                    rival.unchanged_since = None;
                }
                false
            }
            (Self::Owned { .. } | Self::Lost(_), Some(found)) => {
                *self = Self::Lost(Rival { owner: found.to_owned(), version, unchanged_since: None });
                true
            }
        }
    }

    /// Returns true if this process may take the journal back. Called each [`OWNER_CHECK_INTERVAL`] after
    /// [`Ownership::observe`]. `has_work`: a request of this process waits, or the ConfigMap has intents.
    pub(super) fn may_take_back(&mut self, has_work: bool, now: Instant) -> bool {
        let Self::Lost(rival) = self else { return false };
        if !has_work {
            rival.unchanged_since = None;
            return false;
        }
        let unchanged_since = *rival.unchanged_since.get_or_insert(now);
        now.duration_since(unchanged_since) >= STANDSTILL
    }

    /// The rival's name, if the journal was lost.
    pub(super) fn rival(&self) -> Option<&str> {
        match self {
            Self::Lost(rival) => Some(&rival.owner),
            Self::Unclaimed | Self::Owned { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One step: a read of owner and version, then a decision with or without work, at a second.
    type Step = (u64, Option<&'static str>, u64, bool);

    fn version(number: u64) -> ResourceVersion {
        number.to_string().parse().unwrap()
    }

    /// Seconds at which the process may take the journal back, and the last state's rival.
    fn run(steps: &[Step]) -> (Vec<u64>, Option<String>) {
        let begin = Instant::now();
        let mut ownership = Ownership::Owned { owner: "me-1".to_owned(), since: version(10) };
        let mut taken = Vec::new();
        for &(second, owner, at, has_work) in steps {
            ownership.observe(owner, version(at));
            if ownership.may_take_back(has_work, begin + Duration::from_secs(second)) {
                taken.push(second);
            }
        }
        (taken, ownership.rival().map(str::to_owned))
    }

    #[test]
    fn a_lost_journal_is_taken_back_after_a_minute_without_change() {
        type Case = (&'static str, &'static [Step], &'static [u64], Option<&'static str>);
        #[rustfmt::skip] // one row a case
        let cases: [Case; 10] = [
            ("own writes", &[(0, Some("me-1"), 11, true), (90, Some("me-1"), 12, true)], &[], None),
            ("a read from before the own write", &[(0, Some("other-1"), 9, true)], &[], None),
            ("lost", &[(0, Some("other-1"), 11, true)], &[], Some("other-1")),
            ("the same host name is another process", &[(0, Some("me-2"), 11, true)], &[], Some("me-2")),
            ("the rival stands still for a minute",
                &[(0, Some("o"), 11, true), (59, Some("o"), 11, true), (60, Some("o"), 11, true)],
                &[60], Some("o")),
            ("the rival renews",
                &[(0, Some("o"), 11, true), (50, Some("o"), 12, true), (100, Some("o"), 13, true)],
                &[], Some("o")),
            ("a minute without work does not count",
                &[(0, Some("o"), 11, true), (50, Some("o"), 11, false), (60, Some("o"), 11, true),
                    (119, Some("o"), 11, true), (120, Some("o"), 11, true)], &[120], Some("o")),
            ("two idle processes",
                &[(0, Some("o"), 11, false), (3600, Some("o"), 11, false)], &[], Some("o")),
            ("a second rival",
                &[(0, Some("o"), 11, true), (50, Some("p"), 12, true), (70, Some("p"), 12, true)],
                &[], Some("p")),
            ("the annotation was removed", &[(0, Some("o"), 11, true), (10, None, 12, true)], &[], None),
        ];
        for (name, steps, taken, rival) in cases {
            assert_eq!(run(steps), (taken.to_vec(), rival.map(str::to_owned)), "{name}");
        }
    }
}
