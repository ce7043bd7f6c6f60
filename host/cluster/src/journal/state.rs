//! State of a journal in memory, and its queries.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use cofferdam_domain::{
    ClaimKey, DriverName, NodeName, Uid, VolumeName, ids::ResourceVersion, storage::ContentSource,
};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::{
    config_map::SHARD_COUNT,
    error::JournalError,
    intent::{Intent, MAX_SHARD_BYTES, MAX_SHARD_INTENTS},
    ownership::{JournalLoss, Ownership},
    reports::JournalReports,
};
use crate::{metrics::Metrics, writer::Writer};

/// Longest back-off of a claim: the default of the flag `--retry-interval-max`.
const DEFAULT_RETRY_INTERVAL_MAX: Duration = Duration::from_secs(300);

pub(super) type WriteSender = oneshot::Sender<Result<Arc<Intent>, JournalError>>;
pub(super) type WriteReceiver = oneshot::Receiver<Result<Arc<Intent>, JournalError>>;

pub(super) enum ShardChange {
    Put {
        json: String,
        waiters: Vec<WriteSender>,
        /// An earlier intent of the claim whose removal was not committed: the put overwrites it.
        removed: Option<Arc<Intent>>,
    },
    /// Replaces a durable intent.
    Replace(Replacement),
    /// Removes this intent only, not another one of the same claim.
    Remove(Arc<Intent>),
}

impl ShardChange {
    /// The intent that the change removes or overwrites, if this process has removed it.
    pub(super) const fn removed(&self) -> Option<&Arc<Intent>> {
        match self {
            Self::Remove(removed) => Some(removed),
            Self::Put { removed, .. } => removed.as_ref(),
            Self::Replace(_) => None,
        }
    }
}

/// A pending replacement. The replaced intent stays the claim's intent until the commit.
pub(super) struct Replacement {
    pub(super) json: String,
    pub(super) current: Arc<Intent>,
    pub(super) new: Arc<Intent>,
    /// [`TrackedIntent::size`] of the replaced intent.
    pub(super) current_size: usize,
    pub(super) waiter: WriteSender,
}

/// An intent in memory, with its place in the ConfigMaps.
pub(super) struct TrackedIntent {
    pub(super) intent: Arc<Intent>,
    /// Time at which this process wrote or read the intent.
    pub(super) seen_at: Instant,
    pub(super) shard: usize,
    /// Bytes of the key and the JSON.
    pub(super) size: usize,
    /// True if the shard's ConfigMap has the intent. Only then may its request be sent.
    pub(super) durable: bool,
    /// True if a read returned the intent: another process may have written it and sent its request. Stays
    /// true when the intent is replaced.
    pub(super) recovered: bool,
    /// True if a removal of the intent from its ConfigMap by another client was reported.
    pub(super) is_removal_reported: bool,
}

impl TrackedIntent {
    /// Time since the intent was written, or since this process read an intent of an older version.
    pub(super) fn age(&self, now: Timestamp) -> Duration {
        match self.intent.recorded_at {
            Some(recorded_at) => now.duration_since(recorded_at).try_into().unwrap_or_default(),
            None => self.seen_at.elapsed(),
        }
    }
}

/// Maximum number of intents in a journal.
const INTENTS_LIMIT: usize = MAX_SHARD_INTENTS * SHARD_COUNT;
/// Maximum number of bytes in a journal.
const BYTES_LIMIT: usize = MAX_SHARD_BYTES * SHARD_COUNT;

/// The part of a journal that some intents use.
#[derive(Default)]
struct Usage {
    intents: usize,
    /// Bytes of the keys and the JSON.
    bytes: usize,
}

impl Usage {
    /// Adds an intent of this size.
    fn add(&mut self, size: usize) {
        self.intents += 1;
        self.bytes = self.bytes.saturating_add(size);
    }
}

/// The share of a namespace: half of what the other namespaces leave of the limit.
fn share_of(limit: usize, others: usize) -> usize {
    limit.saturating_sub(others) / 2
}

#[derive(Default)]
pub(super) struct Shard {
    /// Last observed version of the ConfigMap; `None` if the ConfigMap does not exist or must be read first.
    pub(super) version: Option<ResourceVersion>,
    /// Highest observed version. A lower one in a response reveals a restore.
    pub(super) highest_version: ResourceVersion,
    /// True if a read returned that the ConfigMap does not exist.
    pub(super) config_map_missing: bool,
    /// Claim uids of the last writes whose results are unknown, and the time of the last one: the API server
    /// may still apply them.
    pub(super) unknown_writes: Option<(BTreeSet<Uid>, Instant)>,
    /// True if the ConfigMap has a format that this version does not know: it takes no new intent.
    pub(super) is_other_format: bool,
    /// Number of decodable intents, including those that are not yet durable.
    pub(super) intent_count: usize,
    /// Bytes of the keys and the JSON of these intents.
    pub(super) bytes: usize,
    pub(super) pending_changes: BTreeMap<Uid, ShardChange>,
    /// Claim uids whose intents the current commit removes or overwrites.
    pub(super) committing_removals: BTreeSet<Uid>,
    /// Claim uids whose annotation [`confirm_no_volume`](cofferdam_domain::names::confirm_no_volume) the next
    /// commit removes.
    pub(super) used_confirmations: BTreeSet<Uid>,
}

impl Shard {
    /// Returns `true` if the ConfigMap may have an intent of the claim that this process does not know as its
    /// intent: a change is pending or being committed, or its result is unknown.
    pub(super) fn may_have(&self, uid: &Uid) -> bool {
        let is_unknown = || self.unknown_writes.as_ref().is_some_and(|(uids, _)| uids.contains(uid));
        self.pending_changes.contains_key(uid) || self.committing_removals.contains(uid) || is_unknown()
    }

    /// The intent of the claim that a pending change removes or overwrites, if this process has removed it.
    pub(super) fn pending_removal(&self, uid: &Uid) -> Option<Arc<Intent>> {
        self.pending_changes.get(uid)?.removed().cloned()
    }
}

pub(super) struct State {
    /// Intents by claim uid.
    pub(super) intents: HashMap<Uid, TrackedIntent>,
    pub(super) shards: Vec<Shard>,
    /// Claim uids of undecodable intents. These intents are neither overwritten nor removed.
    pub(super) undecodable: HashSet<Uid>,
    /// Claim uids of intents that a read returned and that were not known to be durable with this content,
    /// until [`Journal::wait_recovered`] takes them.
    pub(super) recovered: Vec<Uid>,
    pub(super) ownership: Ownership,
    /// Name of this process, the first part of its name as the owner.
    pub(super) identity: String,
    /// True once this process has owned the journal.
    pub(super) has_owned: bool,
    /// Time of the last call of [`Journal::acquire`] that waits for another process.
    pub(super) last_waited_at: Option<Instant>,
    /// True if the process that has taken the journal has changed nothing for a minute, and no request of
    /// this process waits for it: the loss is not reported meanwhile.
    pub(super) is_rival_idle: bool,
    /// Time of this process's last write of the first ConfigMap.
    pub(super) written_at: Option<Instant>,
    pub(super) renewals: u64,
    /// Time of the last successful call of [`Journal::acquire`].
    pub(super) worked_at: Option<Instant>,
    /// The longest back-off of a claim whose request failed.
    pub(super) retry_interval_max: Duration,
    /// Receivers of reports.
    pub(super) reports: Option<JournalReports>,
    /// Number of ConfigMaps that the first one announces.
    pub(super) announced_shards: usize,
    pub(super) closed: bool,
}

impl State {
    /// Returns `true` if there is an intent for the claim, durable or not, decodable or not.
    fn has_intent_for_claim(&self, claim: &Uid) -> bool {
        self.intents.contains_key(claim) || self.undecodable.contains(claim)
    }

    /// Removes an intent and subtracts it from the counts of its shard.
    pub(super) fn remove_intent(&mut self, uid: &Uid) -> Option<TrackedIntent> {
        let tracked = self.intents.remove(uid)?;
        if let Some(shard) = self.shards.get_mut(tracked.shard) {
            shard.intent_count = shard.intent_count.saturating_sub(1);
            shard.bytes = shard.bytes.saturating_sub(tracked.size);
        }
        Some(tracked)
    }

    /// Queues the removal of an intent again after a failed commit. A put that was queued meanwhile overwrites
    /// the intent.
    pub(super) fn requeue_removal(&mut self, index: usize, uid: Uid, intent: Arc<Intent>) {
        let Some(shard) = self.shards.get_mut(index) else { return };
        match shard.pending_changes.entry(uid) {
            Entry::Vacant(vacant) => {
                vacant.insert(ShardChange::Remove(intent));
            }
            Entry::Occupied(mut occupied) => {
                if let ShardChange::Put { removed, .. } = occupied.get_mut() {
                    removed.get_or_insert(intent);
                }
            }
        }
    }

    /// Checks that a new intent of this size is within the share of its namespace: half of what the intents
    /// of other namespaces leave free. A tenant whose requests have an unknown result therefore does not stop
    /// those of others, and two such tenants do not either.
    ///
    /// # Errors
    /// [`JournalError::NamespaceFull`], or [`JournalError::Full`] for a namespace without intents.
    pub(super) fn check_share(&self, intent: &Intent, size: usize) -> Result<(), JournalError> {
        let namespace = &intent.claim.namespace;
        let (mut own, mut others) = (Usage::default(), Usage::default());
        for tracked in self.intents.values() {
            let is_own = tracked.intent.claim.namespace == *namespace;
            if is_own { &mut own } else { &mut others }.add(tracked.size);
        }
        if own.intents < share_of(INTENTS_LIMIT, others.intents)
            && own.bytes.saturating_add(size) <= share_of(BYTES_LIMIT, others.bytes)
        {
            return Ok(());
        }
        Err(match own.intents {
            0 => JournalError::Full(self.intents.len()),
            volumes => JournalError::NamespaceFull { namespace: (**namespace).into(), volumes },
        })
    }

    /// The largest part of its share that a namespace uses, from 0 to 1. At 1 each new intent of the
    /// namespace is rejected, and near it a large one.
    pub(super) fn fullest_share(&self) -> f64 {
        let (mut all, mut usage) = (Usage::default(), HashMap::<&str, Usage>::new());
        for tracked in self.intents.values() {
            all.add(tracked.size);
            usage.entry(&tracked.intent.claim.namespace).or_default().add(tracked.size);
        }
        let part = |limit, own: usize, all: usize| match share_of(limit, all - own) {
            0 => 1.0,
            share => (own as f64 / share as f64).min(1.0),
        };
        let parts = usage.values().map(|own| {
            part(INTENTS_LIMIT, own.intents, all.intents).max(part(BYTES_LIMIT, own.bytes, all.bytes))
        });
        parts.fold(0.0, f64::max)
    }

    /// Restores the size of an intent after a failed replacement.
    pub(super) fn restore_size(&mut self, uid: &Uid, replacement: &Replacement) {
        let Some(tracked) = self.intents.get_mut(uid) else { return };
        if *tracked.intent != *replacement.current {
            return;
        }
        let size = std::mem::replace(&mut tracked.size, replacement.current_size);
        if let Some(shard) = self.shards.get_mut(tracked.shard) {
            shard.bytes = shard.bytes.saturating_sub(size).saturating_add(replacement.current_size);
        }
    }
}

pub(super) struct Inner {
    pub(super) state: Mutex<State>,
    pub(super) changes_pending: Notify,
    pub(super) intents_recovered: Notify,
    /// Held while a task takes the journal.
    pub(super) taking: tokio::sync::Mutex<()>,
    pub(super) writer: Writer,
    pub(super) namespace: String,
    pub(super) driver: DriverName,
    /// The node of a node-local driver.
    pub(super) node: Option<NodeName>,
    pub(super) metrics: Metrics,
}

/// The journal of a driver, or of a node-local driver on one node. Clones share it.
#[derive(Clone)]
pub struct Journal {
    pub(super) inner: Arc<Inner>,
}

impl Journal {
    /// A journal for `driver` in ConfigMaps of `namespace`. Call [`Journal::load`] before use, and
    /// [`Journal::run`] to commit.
    pub fn new(writer: Writer, namespace: String, driver: DriverName, metrics: Metrics) -> Self {
        Self::build(writer, namespace, driver, None, metrics)
    }

    /// As [`Journal::new`], for a node-local driver on `node`.
    pub fn for_node(
        writer: Writer,
        namespace: String,
        driver: DriverName,
        node: NodeName,
        metrics: Metrics,
    ) -> Self {
        Self::build(writer, namespace, driver, Some(node), metrics)
    }

    fn build(
        writer: Writer,
        namespace: String,
        driver: DriverName,
        node: Option<NodeName>,
        metrics: Metrics,
    ) -> Self {
        let state = State {
            intents: HashMap::new(),
            shards: std::iter::repeat_with(Shard::default).take(SHARD_COUNT).collect(),
            undecodable: HashSet::new(),
            recovered: Vec::new(),
            ownership: Ownership::Unclaimed,
            identity: "cofferdam".to_owned(),
            has_owned: false,
            last_waited_at: None,
            is_rival_idle: false,
            written_at: None,
            renewals: 0,
            worked_at: None,
            retry_interval_max: DEFAULT_RETRY_INTERVAL_MAX,
            reports: None,
            announced_shards: 0,
            closed: false,
        };
        let inner = Inner {
            state: Mutex::new(state),
            changes_pending: Notify::new(),
            intents_recovered: Notify::new(),
            taking: tokio::sync::Mutex::default(),
            writer,
            namespace,
            driver,
            node,
            metrics,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The driver.
    pub fn driver(&self) -> &DriverName {
        &self.inner.driver
    }

    /// The same journal with the name of this process: host name or pod name. Other processes log it.
    #[must_use]
    pub fn with_identity(self, identity: &str) -> Self {
        identity.clone_into(&mut self.inner.state.lock().identity);
        self
    }

    /// The same journal with the longest back-off of a claim whose request failed. The owner keeps the
    /// journal for this time after its last request.
    #[must_use]
    pub fn with_retry_interval_max(self, retry_interval_max: Duration) -> Self {
        self.inner.state.lock().retry_interval_max = retry_interval_max;
        self
    }

    /// The loss of the journal by this process, or `None`.
    pub fn loss(&self) -> Option<JournalLoss> {
        self.inner.state.lock().ownership.loss().cloned()
    }

    /// The durable intent for the claim with this uid. `None` if there is none, or if it is not yet durable.
    pub fn get(&self, uid: &Uid) -> Option<Arc<Intent>> {
        self.inner
            .state
            .lock()
            .intents
            .get(uid)
            .filter(|tracked| tracked.durable)
            .map(|tracked| Arc::clone(&tracked.intent))
    }

    /// Returns `true` if a read returned the claim's durable intent. Another process may then have written it
    /// and sent its request. `false` if this process wrote the intent, or if there is none.
    pub fn is_recovered(&self, uid: &Uid) -> bool {
        let state = self.inner.state.lock();
        state.intents.get(uid).is_some_and(|tracked| tracked.durable && tracked.recovered)
    }

    /// Claim uids of all durable intents.
    pub fn uids(&self) -> Vec<Uid> {
        self.inner
            .state
            .lock()
            .intents
            .iter()
            .filter(|(_, tracked)| tracked.durable)
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    /// Number of intents, including those that are not yet durable and undecodable ones.
    pub fn intent_count(&self) -> usize {
        let state = self.inner.state.lock();
        let undecodable = state.undecodable.iter().filter(|uid| !state.intents.contains_key(*uid));
        state.intents.len().saturating_add(undecodable.count())
    }

    /// The largest part of its share of the journal that a namespace uses, from 0 to 1. At 1 its new intents
    /// are rejected. Includes intents that are not yet durable.
    pub fn fullest_share(&self) -> f64 {
        self.inner.state.lock().fullest_share()
    }

    /// Time since the claim's durable intent was written; for an intent of an older version, since this
    /// process read it. `None` if there is no durable intent.
    pub fn age(&self, uid: &Uid, now: Timestamp) -> Option<Duration> {
        let state = self.inner.state.lock();
        state.intents.get(uid).filter(|tracked| tracked.durable).map(|tracked| tracked.age(now))
    }

    /// As [`Journal::age`], of all durable intents.
    pub fn ages(&self, now: Timestamp) -> Vec<Duration> {
        let state = self.inner.state.lock();
        state.intents.values().filter(|tracked| tracked.durable).map(|tracked| tracked.age(now)).collect()
    }

    /// Returns `true` if there is an intent for the claim or for a volume of this name. Includes intents that
    /// are not yet durable, and undecodable intents for the claim.
    pub fn has_intent_for(&self, claim: &Uid, volume: &VolumeName) -> bool {
        let state = self.inner.state.lock();
        state.has_intent_for_claim(claim)
            || state.intents.values().any(|tracked| tracked.intent.request.name == volume.as_str())
    }

    /// Returns `true` if there is an intent for the claim. Includes intents that are not yet durable, and
    /// undecodable ones.
    pub fn has_intent_for_claim(&self, claim: &Uid) -> bool {
        self.inner.state.lock().has_intent_for_claim(claim)
    }

    /// The claim of an intent whose volume has this content source. Includes intents that are not yet
    /// durable. `None` if there is no such intent.
    pub fn claim_with_source(&self, source: &ContentSource) -> Option<ClaimKey> {
        let state = self.inner.state.lock();
        let has_source = |intent: &Intent| intent.request.source.as_ref() == Some(source);
        let mut intents = state.intents.values().map(|tracked| &tracked.intent);
        let found =
            intents.find(|intent| has_source(intent) || intent.mended.as_deref().is_some_and(has_source));
        found.map(|intent| intent.claim.clone())
    }

    /// Waits until a read returns intents that were not known to be durable, such as those of another
    /// process. Returns the uids of their claims.
    pub async fn wait_recovered(&self) -> Vec<Uid> {
        loop {
            let notified = self.inner.intents_recovered.notified();
            let recovered = std::mem::take(&mut self.inner.state.lock().recovered);
            if !recovered.is_empty() {
                return recovered;
            }
            notified.await;
        }
    }
}
