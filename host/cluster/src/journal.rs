//! The intent journal: what a driver was asked for, durable before it is asked.
//!
//! CreateVolume may have an effect that nobody hears of: the process dies, the answer is lost, the claim is
//! deleted meanwhile. So the request is written down first, exactly as it will be sent, in ConfigMaps of the
//! operator's namespace, keyed by the claim's uid. A retry sends the very same request; the entry goes when
//! the PersistentVolume exists or the failure is final.
//!
//! One journal per driver, and per node for drivers whose storage is one node's, so that a driver that hangs
//! fills only its own. Writes are committed in groups: at once when nothing is in flight, otherwise with
//! everything that came meanwhile. Removals wait a moment for company; an intent that another process has
//! written for the claim meanwhile is not the one that was to go, and stays.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_domain::{
    ClaimKey, DriverName, NodeName, ReclaimPolicy, StorageClassName, Uid, VolumeName,
    ids::{InvalidResourceVersion, ResourceVersion},
    storage::CreateVolume,
};
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    metrics::Metrics,
    orphan_report::fnv1a,
    sleep_until,
    writer::{ApiError, Writer},
};

/// What a page is. Versions are compared with those of the same page.
const CONFIG_MAP: &str = "ConfigMap";
/// ConfigMaps per driver. With [`SHARD_ENTRIES`] it bounds how many volumes of one driver can be in an
/// unknown state.
const SHARD_COUNT: usize = 8;
/// Intents per ConfigMap.
const MAX_SHARD_ENTRIES: usize = 400;
/// Bytes per ConfigMap: half of the API's limit of 1 MiB, for escaping can double what JSON within JSON
/// takes.
const MAX_SHARD_BYTES: usize = 512 << 10;
/// How long a removal waits for a commit that goes anyway. Until then a restart finds the entry, sees the
/// volume and drops it.
const FLUSH_DELAY: Duration = Duration::from_millis(100);
/// Pause before a removal is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Tries of one commit against another writer of the same ConfigMap before it is left to the callers'
/// back-off.
const MAX_CONFLICT_RETRIES: usize = 8;

/// Why nothing is recorded for a claim.
const UNDECODABLE_INTENT: &str = "an intent for this claim stands there that this version cannot read";

/// The class of an intent: what the volume's object needs of it, so that it can be written when the class is
/// gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntentClass {
    /// Name, as the claim has it.
    pub name: StorageClassName,
    /// `metadata.uid`
    pub uid: Uid,
    /// `reclaimPolicy`
    pub reclaim_policy: ReclaimPolicy,
    /// `mountOptions`
    pub mount_options: Vec<String>,
}

/// A volume that a driver has been, or is about to be, asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// The claim's place.
    pub claim: ClaimKey,
    /// The claim's uid: the key of the entry.
    pub claim_uid: Uid,
    /// The driver.
    pub driver: DriverName,
    /// The node that the scheduler had chosen, where the driver has topology. Entries written before there
    /// were any do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// The class at the time of the first request.
    pub class: IntentClass,
    /// Name of the VolumeAttributesClass, as the claim had it then; empty for none. Entries written before
    /// there were any do not have it.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub attributes_class: Box<str>,
    /// The request, byte for byte.
    pub request: CreateVolume,
}

/// Why an intent could not be recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The API did not answer; the intent may stand in the journal.
    #[error("the intent journal cannot be reached: {0}")]
    Unavailable(String),
    /// The API refuses the journal's ConfigMap.
    #[error("the intent journal cannot be written: {0}")]
    Refused(String),
    /// As many volumes are in an unknown state as the journal holds: back-pressure, because an intent that
    /// cannot be written down must not be acted on.
    #[error("the intent journal is full: {0} volumes of the driver wait for a final answer")]
    Full(usize),
    /// The process is stopping.
    #[error("the intent journal is closed")]
    Closed,
}

type RecordSender = oneshot::Sender<Result<Arc<Intent>, JournalError>>;
/// A ConfigMap of the journal as it stands in the API.
type ShardContents = (ResourceVersion, HashMap<String, String>);
type RecordReceiver = oneshot::Receiver<Result<Arc<Intent>, JournalError>>;

enum ShardChange {
    Put {
        json: String,
        waiters: Vec<RecordSender>,
    },
    /// Of this intent, and of no other that the claim may have by then.
    Remove(Arc<Intent>),
}

struct JournalEntry {
    intent: Arc<Intent>,
    shard: usize,
    size: usize,
    durable: bool,
}

#[derive(Default)]
struct Shard {
    /// Version of the ConfigMap as last seen; absent when it must be read first.
    version: Option<ResourceVersion>,
    /// The highest version that was seen.
    highest_version: ResourceVersion,
    /// Whether a read showed that there is no ConfigMap.
    config_map_missing: bool,
    entries: usize,
    bytes: usize,
    pending_changes: BTreeMap<Uid, ShardChange>,
}

struct State {
    entries: HashMap<Uid, JournalEntry>,
    shards: Vec<Shard>,
    /// Entries that this build cannot read; nothing may be written in their place.
    undecodable: HashSet<Uid>,
    /// Uids that a read has shown and that nobody here wrote.
    recovered: Vec<Uid>,
    closed: bool,
}

impl State {
    /// Takes an entry out, and its part of its page.
    fn remove_entry(&mut self, uid: &Uid) -> Option<JournalEntry> {
        let entry = self.entries.remove(uid)?;
        if let Some(shard) = self.shards.get_mut(entry.shard) {
            shard.entries = shard.entries.saturating_sub(1);
            shard.bytes = shard.bytes.saturating_sub(entry.size);
        }
        Some(entry)
    }
}

struct Shared {
    state: Mutex<State>,
    changes_pending: Notify,
    intents_recovered: Notify,
    writer: Writer,
    namespace: String,
    driver: DriverName,
    /// Where the driver's storage is, if it is one node's.
    node: Option<NodeName>,
    metrics: Metrics,
}

/// One driver's journal, or one driver's on one node; clones share it.
#[derive(Clone)]
pub struct Journal {
    shared: Arc<Shared>,
}

impl Journal {
    /// A journal for `driver` in ConfigMaps of `namespace`. [`Journal::load`] it before use, and
    /// [`Journal::run`] it.
    pub fn new(writer: Writer, namespace: String, driver: DriverName, metrics: Metrics) -> Self {
        Self::build(writer, namespace, driver, None, metrics)
    }

    /// The same for what `driver` is asked for on this node: each node's process has a journal of its own.
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
            entries: HashMap::new(),
            shards: std::iter::repeat_with(Shard::default).take(SHARD_COUNT).collect(),
            undecodable: HashSet::new(),
            recovered: Vec::new(),
            closed: false,
        };
        let shared = Shared {
            state: Mutex::new(state),
            changes_pending: Notify::new(),
            intents_recovered: Notify::new(),
            writer,
            namespace,
            driver,
            node,
            metrics,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The driver whose journal this is.
    pub fn driver(&self) -> &DriverName {
        &self.shared.driver
    }

    /// Reads every ConfigMap of the journal.
    ///
    /// # Errors
    /// [`WriteError`] of the first read that fails.
    pub async fn load(&self) -> Result<(), ApiError> {
        for shard in 0..SHARD_COUNT {
            self.read_shard(shard, &mut BTreeMap::new()).await?;
        }
        Ok(())
    }

    /// The recorded intent for a claim.
    pub fn get(&self, uid: &Uid) -> Option<Arc<Intent>> {
        self.lock().entries.get(uid).filter(|entry| entry.durable).map(|entry| Arc::clone(&entry.intent))
    }

    /// Uids of every recorded intent.
    pub fn uids(&self) -> Vec<Uid> {
        self.lock().entries.iter().filter(|(_, entry)| entry.durable).map(|(uid, _)| uid.clone()).collect()
    }

    /// Whether something stands here for the claim, or for a volume of this name: also what is not durable
    /// yet, and what this build cannot read.
    pub fn has_entry_for(&self, claim: &Uid, volume: &VolumeName) -> bool {
        let state = self.lock();
        state.entries.contains_key(claim)
            || state.undecodable.contains(claim)
            || state.entries.values().any(|entry| entry.intent.request.name == volume.as_str())
    }

    /// As [`Journal::mentions`], but asks the ConfigMaps themselves, for another process may have written
    /// them. Changes nothing of what this process knows.
    ///
    /// # Errors
    /// [`WriteError`] of the first read that fails.
    pub async fn has_entry_for_live(&self, claim: &Uid, volume: &VolumeName) -> Result<bool, ApiError> {
        for shard in 0..SHARD_COUNT {
            let Some((_, data)) = self.fetch_shard(shard).await? else { continue };
            let has_volume_name = |json: &String| {
                serde_json::from_str::<Intent>(json)
                    .is_ok_and(|intent| intent.request.name == volume.as_str())
            };
            if data.contains_key(claim.as_str()) || data.values().any(has_volume_name) {
                return Ok(true);
            }
        }
        Ok(self.has_entry_for(claim, volume))
    }

    /// Waits until a read has shown intents that another process wrote, and returns their uids.
    pub async fn wait_recovered(&self) -> Vec<Uid> {
        loop {
            let notified = self.shared.intents_recovered.notified();
            let recovered = std::mem::take(&mut self.lock().recovered);
            if !recovered.is_empty() {
                return recovered;
            }
            notified.await;
        }
    }

    /// Makes an intent durable and returns it, or the one that already stands for the claim: that one may
    /// have been sent.
    ///
    /// # Errors
    /// [`JournalError`]; `Full` at once, so that whoever could make room is not kept waiting behind it.
    pub async fn record(&self, intent: Intent) -> Result<Arc<Intent>, JournalError> {
        let json =
            serde_json::to_string(&intent).map_err(|error| JournalError::Refused(error.to_string()))?;
        let size = json.len() + intent.claim_uid.as_str().len();
        if size > MAX_SHARD_BYTES {
            return Err(JournalError::Refused(format!(
                "the request takes {size} bytes, more than the {MAX_SHARD_BYTES} that a journal page holds"
            )));
        }
        let receiver = self.enqueue(&Arc::new(intent), json, size)?;
        receiver.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Drops a claim's intent with one of the next commits.
    pub fn remove(&self, uid: &Uid) {
        let mut state = self.lock();
        let Some(entry) = state.remove_entry(uid) else { return };
        if let Some(shard) = state.shards.get_mut(entry.shard) {
            shard.pending_changes.insert(uid.clone(), ShardChange::Remove(entry.intent));
        }
        drop(state);
        self.shared.changes_pending.notify_one();
    }

    /// Commits until `stop`, and then what is left.
    pub async fn run(&self, stop: CancellationToken) {
        let mut next_commit_at = None;
        loop {
            let changes_pending = self.shared.changes_pending.notified();
            let (puts, removals) = self.pending();
            if puts || (removals && next_commit_at.is_some_and(|due| tokio::time::Instant::now() >= due)) {
                next_commit_at = None;
                if !self.commit().await {
                    next_commit_at = Some(tokio::time::Instant::now() + RETRY_DELAY);
                }
                continue;
            }
            if removals && next_commit_at.is_none() {
                next_commit_at = Some(tokio::time::Instant::now() + FLUSH_DELAY);
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = changes_pending => {}
                () = sleep_until(next_commit_at) => {}
            }
        }
        self.lock().closed = true;
        self.commit().await;
    }

    /// Queues a put and returns where its outcome arrives.
    fn enqueue(
        &self,
        intent: &Arc<Intent>,
        json: String,
        size: usize,
    ) -> Result<RecordReceiver, JournalError> {
        let (sender, receiver) = oneshot::channel();
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.closed {
            return Err(JournalError::Closed);
        }
        if state.undecodable.contains(&intent.claim_uid) {
            return Err(JournalError::Refused(UNDECODABLE_INTENT.to_owned()));
        }
        if let Some(entry) = state.entries.get(&intent.claim_uid) {
            if entry.durable {
                let _ = sender.send(Ok(Arc::clone(&entry.intent)));
                return Ok(receiver);
            }
            let pending =
                state.shards.get_mut(entry.shard).and_then(|s| s.pending_changes.get_mut(&intent.claim_uid));
            return match pending {
                Some(ShardChange::Put { waiters: waiting, .. }) => {
                    waiting.push(sender);
                    Ok(receiver)
                }
                Some(ShardChange::Remove(_)) | None => {
                    Err(JournalError::Unavailable("the claim's intent is on its way".to_owned()))
                }
            };
        }
        let total = state.entries.len();
        let has_room =
            |shard: &Shard| shard.entries < MAX_SHARD_ENTRIES && shard.bytes + size <= MAX_SHARD_BYTES;
        // The page that still has the claim's last entry comes first, or the claim would stand on two.
        let shard_of_claim =
            state.shards.iter().position(|shard| shard.pending_changes.contains_key(&intent.claim_uid));
        let shard_index = shard_of_claim.or_else(|| state.shards.iter().position(has_room));
        let Some((index, shard)) = shard_index.and_then(|at| Some((at, state.shards.get_mut(at)?))) else {
            return Err(JournalError::Full(total));
        };
        shard.entries += 1;
        shard.bytes += size;
        shard
            .pending_changes
            .insert(intent.claim_uid.clone(), ShardChange::Put { json, waiters: vec![sender] });
        let entry = JournalEntry { intent: Arc::clone(intent), shard: index, size, durable: false };
        state.entries.insert(intent.claim_uid.clone(), entry);
        drop(guard);
        self.shared.changes_pending.notify_one();
        Ok(receiver)
    }

    /// Whether puts and whether removals wait.
    fn pending(&self) -> (bool, bool) {
        let state = self.lock();
        let mut changes = state.shards.iter().flat_map(|shard| shard.pending_changes.values());
        let puts = changes.any(|change| matches!(change, ShardChange::Put { .. }));
        (puts, puts || state.shards.iter().any(|shard| !shard.pending_changes.is_empty()))
    }

    /// Commits every shard that has changes; `false` when a removal must be tried again.
    async fn commit(&self) -> bool {
        let mut is_complete = true;
        for index in 0..SHARD_COUNT {
            is_complete &= self.commit_shard(index).await;
        }
        let state = self.lock();
        let entries = state.entries.len();
        drop(state);
        self.shared.metrics.set_journal_entries(entries);
        is_complete
    }

    async fn commit_shard(&self, index: usize) -> bool {
        let mut batch = self.take_changes(index);
        for _ in 0..MAX_CONFLICT_RETRIES {
            if batch.is_empty() {
                return true;
            }
            if !self.is_loaded(index)
                && let Err(error) = self.read_shard(index, &mut batch).await
            {
                return self.requeue_failed(index, batch, &error);
            }
            self.answer_puts_of_recorded(&mut batch);
            if batch.is_empty() {
                return true;
            }
            match self.write_shard(index, &batch).await {
                Ok(()) => {
                    self.complete_puts(batch);
                    return true;
                }
                Err(ApiError::NotFound(_)) if !self.has_config_map(index) => {
                    // Nothing but its namespace can be missing for a ConfigMap that is made.
                    let error = ApiError::Refused {
                        target: self.shard_name(index),
                        code: 404,
                        message: format!("namespace {:?} does not exist", self.shared.namespace),
                    };
                    return self.requeue_failed(index, batch, &error);
                }
                Err(ApiError::Conflict(_) | ApiError::NotFound(_) | ApiError::AlreadyExists(_)) => {
                    self.invalidate(index);
                }
                Err(error) => return self.requeue_failed(index, batch, &error),
            }
        }
        let error = ApiError::Unavailable {
            target: self.shard_name(index),
            message: format!("another process kept writing it through {MAX_CONFLICT_RETRIES} tries"),
        };
        self.requeue_failed(index, batch, &error)
    }

    fn take_changes(&self, index: usize) -> BTreeMap<Uid, ShardChange> {
        self.lock()
            .shards
            .get_mut(index)
            .map(|shard| std::mem::take(&mut shard.pending_changes))
            .unwrap_or_default()
    }

    fn is_loaded(&self, index: usize) -> bool {
        self.lock().shards.get(index).is_some_and(|shard| shard.version.is_some() || shard.config_map_missing)
    }

    fn has_config_map(&self, index: usize) -> bool {
        self.lock().shards.get(index).is_some_and(|shard| shard.version.is_some())
    }

    fn invalidate(&self, index: usize) {
        if let Some(shard) = self.lock().shards.get_mut(index) {
            shard.version = None;
            shard.config_map_missing = false;
        }
    }

    /// A put whose claim another process has written an intent for meanwhile gives way to it.
    fn answer_puts_of_recorded(&self, batch: &mut BTreeMap<Uid, ShardChange>) {
        let state = self.lock();
        batch.retain(|uid, change| match (change, state.entries.get(uid)) {
            (ShardChange::Put { waiters: waiting, .. }, Some(entry)) if entry.durable => {
                for sender in std::mem::take(waiting) {
                    let _ = sender.send(Ok(Arc::clone(&entry.intent)));
                }
                false
            }
            _ => true,
        });
    }

    async fn write_shard(&self, index: usize, batch: &BTreeMap<Uid, ShardChange>) -> Result<(), ApiError> {
        let name = self.shard_name(index);
        let version = self.lock().shards.get(index).and_then(|shard| shard.version);
        let data: serde_json::Map<String, Value> = batch
            .iter()
            .filter_map(|(uid, change)| match (change, version) {
                (ShardChange::Put { json, .. }, _) => Some((uid.as_str().to_owned(), json!(json))),
                (ShardChange::Remove(_), Some(_)) => Some((uid.as_str().to_owned(), Value::Null)),
                // What does not exist needs no removal.
                (ShardChange::Remove(_), None) => None,
            })
            .collect();
        if data.is_empty() {
            return Ok(());
        }
        let collection = format!("/api/v1/namespaces/{}/configmaps", self.shared.namespace);
        let answer = match version {
            Some(version) => {
                let body = json!({"metadata": {"resourceVersion": version.to_string()}, "data": data});
                let path = format!("{collection}/{name}");
                self.shared.writer.send_json_for_version(Method::PATCH, &path, &body, &name).await
            }
            None => {
                let mut metadata = json!({
                    "name": name,
                    "namespace": self.shared.namespace,
                    "labels": {"app.kubernetes.io/managed-by": "cofferdam", "cofferdam.dev/journal": "intents"},
                });
                if let (Some(node), Some(metadata)) = (&self.shared.node, metadata.as_object_mut()) {
                    metadata.insert("annotations".to_owned(), json!({"cofferdam.dev/node": node}));
                }
                let body =
                    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
                self.shared.writer.send_json_for_version(Method::POST, &collection, &body, &name).await
            }
        }?;
        self.shared.metrics.journal_commit();
        if let Some(shard) = self.lock().shards.get_mut(index) {
            // A page that is made anew after it was lost tells of a restore, too.
            self.shared.writer.cache().restore_detector.detect_rollback(
                CONFIG_MAP,
                shard.highest_version,
                answer,
            );
            shard.version = Some(answer);
            shard.highest_version = shard.highest_version.max(answer);
            shard.config_map_missing = false;
        }
        Ok(())
    }

    fn complete_puts(&self, batch: BTreeMap<Uid, ShardChange>) {
        let mut state = self.lock();
        for (uid, change) in batch {
            if let ShardChange::Put { waiters: waiting, .. } = change
                && let Some(entry) = state.entries.get_mut(&uid)
            {
                entry.durable = true;
                for sender in waiting {
                    let _ = sender.send(Ok(Arc::clone(&entry.intent)));
                }
            }
        }
        drop(state);
    }

    /// After a failed commit: puts are answered, removals wait for the next try. Returns whether nothing is
    /// left to try.
    fn requeue_failed(&self, index: usize, batch: BTreeMap<Uid, ShardChange>, error: &ApiError) -> bool {
        let refused = match error {
            ApiError::Refused { .. } => JournalError::Refused(error.to_string()),
            ApiError::Conflict(_)
            | ApiError::NotFound(_)
            | ApiError::AlreadyExists(_)
            | ApiError::Unavailable { .. }
            | ApiError::InvalidResponse { .. } => JournalError::Unavailable(error.to_string()),
        };
        // What was written, if anything, shows in the next read.
        self.invalidate(index);
        let mut is_complete = true;
        let mut state = self.lock();
        for (uid, change) in batch {
            match change {
                ShardChange::Put { waiters: waiting, .. } => {
                    // It may have been found on another page meanwhile.
                    let recorded = state.entries.get(&uid).filter(|entry| entry.durable);
                    let answer = match recorded {
                        Some(entry) => Ok(Arc::clone(&entry.intent)),
                        None => {
                            state.remove_entry(&uid);
                            Err(refused.clone())
                        }
                    };
                    for sender in waiting {
                        let _ = sender.send(answer.clone());
                    }
                }
                removal @ ShardChange::Remove(_) => {
                    is_complete = false;
                    if let Some(shard) = state.shards.get_mut(index) {
                        shard.pending_changes.entry(uid).or_insert(removal);
                    }
                }
            }
        }
        drop(state);
        tracing::warn!(driver = %self.shared.driver, %error, "a commit of the intent journal failed");
        is_complete
    }

    /// The ConfigMap of a shard: its version and entries. Absent where there is none.
    async fn fetch_shard(&self, index: usize) -> Result<Option<ShardContents>, ApiError> {
        #[derive(Deserialize)]
        struct ConfigMap {
            metadata: Meta,
            #[serde(default)]
            data: HashMap<String, String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            resource_version: String,
        }
        let name = self.shard_name(index);
        let path = format!("/api/v1/namespaces/{}/configmaps/{name}", self.shared.namespace);
        let highest_seen =
            self.lock().shards.get(index).map(|shard| shard.highest_version).unwrap_or_default();
        let answer = match self.shared.writer.read(&path, &name).await {
            Ok(answer) => answer,
            Err(ApiError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let unreadable = |message: String| ApiError::InvalidResponse { target: name.clone(), message };
        let map: ConfigMap = serde_json::from_str(&answer).map_err(|error| unreadable(error.to_string()))?;
        let version = map.metadata.resource_version.parse();
        let version = version.map_err(|error: InvalidResourceVersion| unreadable(error.to_string()))?;
        self.shared.writer.cache().restore_detector.detect_rollback(CONFIG_MAP, highest_seen, version);
        Ok(Some((version, map.data)))
    }

    /// Reads a ConfigMap; entries whose removal is part of `batch` are as good as gone, unless another intent
    /// stands there by now: then the removal is dropped.
    async fn read_shard(&self, index: usize, batch: &mut BTreeMap<Uid, ShardChange>) -> Result<(), ApiError> {
        let name = self.shard_name(index);
        let Some((version, data)) = self.fetch_shard(index).await? else {
            if let Some(shard) = self.lock().shards.get_mut(index) {
                shard.config_map_missing = true;
            }
            return Ok(());
        };
        let mut undecodable = Vec::new();
        let intents = data.into_iter().filter_map(|(uid, json)| {
            let intent = serde_json::from_str::<Intent>(&json).map_err(|error| error.to_string());
            match intent.and_then(|intent| self.validate(&uid, intent)) {
                Ok(intent) => Some((json.len() + uid.len(), intent)),
                Err(reason) => {
                    // Never dropped: a newer build may have written it, and a volume may hang on it.
                    tracing::error!(config_map = %name, entry = %uid, %reason, "an intent cannot be read; it stays");
                    undecodable.push(Uid::from(uid));
                    None
                }
            }
        });
        let recorded = intents.filter(|(_, intent)| !has_removal_of(batch, intent)).collect();
        self.recover(index, version, recorded);
        for uid in undecodable {
            self.reject_changes_of_undecodable(uid, index, batch);
        }
        Ok(())
    }

    /// Nothing is written in the place of an intent that cannot be read, and it is not removed.
    fn reject_changes_of_undecodable(&self, uid: Uid, index: usize, batch: &mut BTreeMap<Uid, ShardChange>) {
        let mut state = self.lock();
        let queued = state.shards.get_mut(index).and_then(|shard| shard.pending_changes.remove(&uid));
        for change in batch.remove(&uid).into_iter().chain(queued) {
            if let ShardChange::Put { waiters: waiting, .. } = change {
                for sender in waiting {
                    let _ = sender.send(Err(JournalError::Refused(UNDECODABLE_INTENT.to_owned())));
                }
            }
        }
        // What this process knew of it is as it stands there no more.
        if state.entries.get(&uid).is_some_and(|entry| entry.shard == index) {
            state.remove_entry(&uid);
        }
        state.undecodable.insert(uid);
    }

    fn validate(&self, uid: &str, intent: Intent) -> Result<Intent, String> {
        if intent.claim_uid.as_str() != uid {
            return Err(format!("it is of claim {}, expected {uid}", intent.claim_uid));
        }
        if intent.driver != self.shared.driver {
            return Err(format!("it is of driver {}, expected {}", intent.driver, self.shared.driver));
        }
        if let Some(node) = self.shared.node.as_ref().filter(|node| intent.node.as_ref() != Some(node)) {
            let of = intent.node.as_ref().map_or("none", |node| node.as_str());
            return Err(format!("it is of node {of}, expected {node}"));
        }
        Ok(intent)
    }

    fn recover(&self, index: usize, version: ResourceVersion, intents: Vec<(usize, Intent)>) {
        let mut guard = self.lock();
        let state = &mut *guard;
        if let Some(shard) = state.shards.get_mut(index) {
            shard.version = Some(version);
            shard.highest_version = shard.highest_version.max(version);
            shard.config_map_missing = false;
        }
        for (size, intent) in intents {
            let uid = intent.claim_uid.clone();
            let Some(shard) = state.shards.get_mut(index) else { return };
            match state.entries.get(&uid) {
                None if has_removal_of(&mut shard.pending_changes, &intent) => continue,
                Some(entry) if entry.durable && entry.shard != index => {
                    // The same claim on two pages: one is enough.
                    shard.pending_changes.insert(uid, ShardChange::Remove(Arc::new(intent)));
                    continue;
                }
                Some(entry) if entry.durable && *entry.intent == intent => continue,
                // Another process has written it, or written it anew; it stands here, wherever ours was to be
                // written.
                Some(_) | None => {}
            }
            state.remove_entry(&uid);
            if let Some(shard) = state.shards.get_mut(index) {
                shard.entries += 1;
                shard.bytes += size;
            }
            let entry = JournalEntry { intent: Arc::new(intent), shard: index, size, durable: true };
            state.entries.insert(uid.clone(), entry);
            state.recovered.push(uid);
        }
        drop(guard);
        self.shared.intents_recovered.notify_one();
    }

    fn shard_name(&self, index: usize) -> String {
        let Shared { driver, node, .. } = &*self.shared;
        match node {
            None => format!("cofferdam-intents-{driver}-{index}"),
            // A digest, for both names together can be longer than a name may be. An annotation has the
            // node's name.
            Some(node) => format!("cofferdam-intents-{driver}.{:016x}-{index}", fnv1a(node.as_str())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock can panic half-way through a change.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether one of these changes is the removal of this intent. A removal of another one for the claim is
/// dropped.
fn has_removal_of(changes: &mut BTreeMap<Uid, ShardChange>, intent: &Intent) -> bool {
    let Some(ShardChange::Remove(removed)) = changes.get(&intent.claim_uid) else { return false };
    let is_same = **removed == *intent;
    if !is_same {
        changes.remove(&intent.claim_uid);
    }
    is_same
}
