//! Ownership of a journal: without leader election, one of several processes sends CreateVolume requests.
//!
//! The annotation [`OWNER`] of the journal's first ConfigMap names the owner. A process takes the journal
//! before its first request, whoever owned it before: in a rolling update the newer process wins. It first
//! writes its name to all other ConfigMaps, at the versions that it has read. A put of the older process into
//! any ConfigMap then conflicts, and the older process reads the name of the newer one. An owner announces a
//! further ConfigMap in the first one ([`SHARDS`]) before it creates it. The newer process creates the
//! announced ones that are missing, so that a late create of the older process fails.
//!
//! A process that lost the journal takes it back only when it has work and no ConfigMap has changed for
//! [`STANDSTILL`]. The owner changes the first ConfigMap each [`RENEW_INTERVAL`] while it has intents, and
//! until the next retries of claims whose requests failed. A standstill thus means that it has ended or has
//! nothing to do.
//!
//! Times are those of the process's monotonic clock: no clock of another machine is read.

use std::time::Duration;

use cofferdam_domain::ids::ResourceVersion;
use tokio::time::Instant;

use super::config_map::SHARD_COUNT;

/// Annotation with the owner: the name of a process and a random part, which is new each time that a process
/// takes the journal. No process takes an annotation as its own because of the name of its host.
pub(super) const OWNER: &str = "cofferdam.dev/journal-owner";
/// Annotation with the epoch of the journal: a number that each take sets above those of all ConfigMaps.
pub(super) const EPOCH: &str = "cofferdam.dev/journal-epoch";
/// Annotation with the number of renewals.
pub(super) const RENEWALS: &str = "cofferdam.dev/journal-renewals";
/// Annotation of the first ConfigMap: the number of ConfigMaps that the owner has created, or is about to
/// create.
pub(super) const SHARDS: &str = "cofferdam.dev/journal-shards";
/// Interval of the owner's renewals while the journal has intents.
pub(super) const RENEW_INTERVAL: Duration = Duration::from_secs(20);
/// Time after the longest back-off for which the owner of a journal without intents renews: a retry that is
/// due may be delayed.
pub(super) const RETRY_TOLERANCE: Duration = Duration::from_secs(60);
/// Interval at which a process reads the ConfigMaps of a journal that it has lost. Callers of
/// `Journal::acquire` try again at this interval.
pub const OWNER_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Time without a change of any ConfigMap after which a process that has lost the journal may take it back:
/// three renewals.
const STANDSTILL: Duration = Duration::from_secs(60);

/// Versions of the journal's ConfigMaps.
pub(super) type Versions = [ResourceVersion; SHARD_COUNT];

/// The owner of a journal, as this process knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ownership {
    /// This process has not taken the journal yet, or no process owns it.
    Unclaimed,
    /// This process owns the journal, with this epoch. Reads of a ConfigMap's versions below `since` are
    /// older than this.
    Owned { owner: String, epoch: u64, since: Versions },
    /// Another process has taken the journal from this one.
    Lost(Rival),
}

/// The loss of a journal by its owner. A text with it continues with "of driver".
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum JournalLoss {
    /// The process with this name has taken the journal.
    #[error("process {0} has taken the intent journal")]
    Taken(String),
    /// A ConfigMap has another epoch beside the name of this process.
    #[error("another client has changed the epoch (from {own} to {}) of the intent journal", found.as_deref().unwrap_or("none"))]
    EpochChanged {
        /// The value of the annotation; `None` without one.
        found: Option<String>,
        /// The epoch that this process wrote.
        own: u64,
    },
}

/// The client that has taken the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rival {
    /// The loss of the journal.
    pub(super) loss: JournalLoss,
    /// The value of this process, which the first ConfigMap has until the rival has completed its take.
    former: Option<String>,
    /// Versions of the ConfigMaps.
    versions: Versions,
    /// Time at which this process last saw a change.
    changed_at: Instant,
    /// Begin of the time in which this process has had work and has seen no change. `None` without work.
    unchanged_since: Option<Instant>,
}

/// The owner and the epoch in the annotations of a ConfigMap.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnerAnnotations<'a> {
    /// Value of [`OWNER`]; `None` if the ConfigMap or the annotation is missing.
    pub(super) owner: Option<&'a str>,
    /// Value of [`EPOCH`]; `None` as for `owner`.
    pub(super) epoch: Option<&'a str>,
}

impl Rival {
    fn new(loss: JournalLoss, former: Option<String>) -> Self {
        let versions = Versions::default();
        Self { loss, former, versions, changed_at: Instant::now(), unchanged_since: None }
    }

    /// Notes the version of a ConfigMap. A change shows that the rival works.
    fn observe_version(&mut self, shard: usize, version: ResourceVersion) {
        let Some(known) = self.versions.get_mut(shard).filter(|known| **known != version) else { return };
        *known = version;
        self.changed_at = Instant::now();
        self.unchanged_since = None;
    }
}

impl Ownership {
    /// Updates the ownership after a read of a ConfigMap. In the first ConfigMap, no owner means that any
    /// process may take the journal. In another one it means nothing, because older versions do not write it
    /// there. Another epoch beside this process's name is a loss, too: each take has a name of its own, so
    /// this process has not written it. Returns true if the journal was lost, or was taken by another rival.
    pub(super) fn observe(
        &mut self,
        shard: usize,
        found: OwnerAnnotations<'_>,
        version: ResourceVersion,
    ) -> bool {
        match self {
            Self::Unclaimed => false,
            Self::Owned { owner: own, epoch, since } => {
                let is_old = since.get(shard).is_some_and(|since| version < *since);
                let loss = match found.owner {
                    _ if is_old => return false,
                    None if shard == 0 => {
                        *self = Self::Unclaimed;
                        return false;
                    }
                    None => return false,
                    Some(owner) if owner != own => JournalLoss::Taken(owner.to_owned()),
                    Some(_) if found.epoch.and_then(|text| text.parse().ok()) == Some(*epoch) => {
                        return false;
                    }
                    Some(_) => {
                        JournalLoss::EpochChanged { found: found.epoch.map(str::to_owned), own: *epoch }
                    }
                };
                let mut rival = Rival::new(loss, Some(std::mem::take(own)));
                rival.observe_version(shard, version);
                *self = Self::Lost(rival);
                true
            }
            Self::Lost(rival) => {
                rival.observe_version(shard, version);
                match found.owner {
                    // Only the first ConfigMap has the owner of a completed take.
                    _ if shard != 0 => false,
                    None => {
                        *self = Self::Unclaimed;
                        false
                    }
                    Some(found) if rival.former.as_deref() == Some(found) => false,
                    Some(found) => {
                        let loss = JournalLoss::Taken(found.to_owned());
                        if rival.loss == loss {
                            return false;
                        }
                        *rival = Rival { loss, former: None, unchanged_since: None, ..rival.clone() };
                        true
                    }
                }
            }
        }
    }

    /// Returns true if this process may take the journal back. Called each [`OWNER_CHECK_INTERVAL`] after
    /// [`Ownership::observe`]. `has_work`: a request of this process waits, or a ConfigMap has intents.
    pub(super) fn may_take_back(&mut self, has_work: bool, now: Instant) -> bool {
        let Self::Lost(rival) = self else { return false };
        if !has_work {
            rival.unchanged_since = None;
            return false;
        }
        let unchanged_since = *rival.unchanged_since.get_or_insert(now);
        now.duration_since(unchanged_since) >= STANDSTILL
    }

    /// Returns true if the journal was lost, and the rival has changed nothing for [`STANDSTILL`].
    pub(super) fn is_rival_idle(&self, now: Instant) -> bool {
        matches!(self, Self::Lost(rival) if now.duration_since(rival.changed_at) >= STANDSTILL)
    }

    /// The loss of the journal, or `None`.
    pub(super) fn loss(&self) -> Option<&JournalLoss> {
        match self {
            Self::Lost(rival) => Some(&rival.loss),
            Self::Unclaimed | Self::Owned { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One step: a read of owner and version, then a decision with or without work, at a second.
    type Step = (u64, Option<&'static str>, u64, bool);

    fn named(owner: &str) -> OwnerAnnotations<'_> {
        OwnerAnnotations { owner: Some(owner), epoch: Some("7") }
    }

    fn rival_of(ownership: &Ownership) -> Option<String> {
        match ownership.loss()? {
            JournalLoss::Taken(owner) => Some(owner.clone()),
            other @ JournalLoss::EpochChanged { .. } => panic!("{other}"),
        }
    }

    fn owned_by_me() -> Ownership {
        Ownership::Owned { owner: "me-1".to_owned(), epoch: 7, since: [version(10); SHARD_COUNT] }
    }

    fn version(number: u64) -> ResourceVersion {
        number.to_string().parse().unwrap()
    }

    /// Seconds at which the process may take the journal back, and the last state's rival.
    fn run(steps: &[Step]) -> (Vec<u64>, Option<String>) {
        let begin = Instant::now();
        let mut ownership = owned_by_me();
        let mut taken = Vec::new();
        for &(second, owner, at, has_work) in steps {
            ownership.observe(0, owner.map(named).unwrap_or_default(), version(at));
            if ownership.may_take_back(has_work, begin + Duration::from_secs(second)) {
                taken.push(second);
            }
        }
        (taken, rival_of(&ownership))
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

    #[test]
    fn any_config_map_names_a_new_owner_and_the_first_one_releases_it() {
        let mut ownership = owned_by_me();
        let begin = Instant::now();
        assert!(
            !ownership.observe(3, OwnerAnnotations::default(), version(11)),
            "an older version created the ConfigMap"
        );
        assert!(!ownership.observe(3, named("other-1"), version(9)), "a read from before the own write");
        assert!(ownership.observe(3, named("other-1"), version(12)));
        assert!(!ownership.observe(0, named("me-1"), version(10)), "the take is not complete");
        assert_eq!(rival_of(&ownership).as_deref(), Some("other-1"));
        assert!(!ownership.may_take_back(true, begin));
        assert!(!ownership.observe(5, named("older-1"), version(13)), "a change is no new rival");
        assert!(!ownership.may_take_back(true, begin + STANDSTILL), "the change was at this time");
        assert!(ownership.may_take_back(true, begin + STANDSTILL * 2));
        assert!(!ownership.observe(5, OwnerAnnotations::default(), version(14)));
        assert!(ownership.observe(0, named("third-1"), version(14)));
        assert_eq!(rival_of(&ownership).as_deref(), Some("third-1"));
        assert!(!ownership.observe(0, OwnerAnnotations::default(), version(15)));
        assert_eq!(ownership, Ownership::Unclaimed);
    }

    #[test]
    fn another_epoch_beside_the_own_name_is_a_loss() {
        for (shard, epoch, at, is_lost) in [
            (0, Some("7"), 11, false),
            (0, Some("8"), 11, true),
            (0, Some("6"), 11, true),
            (0, Some("x"), 11, true),
            (0, None, 11, true),
            (3, Some("8"), 11, true),
            (3, Some("8"), 9, false),
        ] {
            let mut ownership = owned_by_me();
            let found = OwnerAnnotations { owner: Some("me-1"), epoch };
            assert_eq!(ownership.observe(shard, found, version(at)), is_lost, "{shard} {epoch:?} {at}");
            let expected = JournalLoss::EpochChanged { found: epoch.map(str::to_owned), own: 7 };
            assert_eq!(ownership.loss(), is_lost.then_some(&expected));
            assert!(!ownership.observe(shard, found, version(at)), "it is reported once");
        }
    }
}
