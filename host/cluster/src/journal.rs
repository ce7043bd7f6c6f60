//! The intent journal: writes create requests durably before they are sent to a driver.
//!
//! The result of a CreateVolume call can be lost: the process crashes, the response does not arrive, or the
//! claim is deleted in the meantime. Therefore an intent with the exact request is first written to one of
//! several ConfigMaps (shards) in the process's namespace, keyed by the claim's uid. A retry sends the
//! identical request. The intent is removed when the PersistentVolume exists, when the driver's error is
//! final and shows that no volume was created, when the created volume was deleted because no claim needs it,
//! or when the claim is deleted and another PersistentVolume refers to the created volume.
//!
//! Each driver has a journal, and node-local drivers have one per node, so that a hanging driver fills only
//! its own. Writes are committed in groups: immediately if no commit is in flight, otherwise together with
//! all others that arrive until it ends. Removals are delayed for a short time to join a commit. A removal
//! applies only to the intent that it names; one that another process wrote for the same claim is kept.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cofferdam_domain::{
    ClaimKey, DriverName, NodeName, ReclaimPolicy, StorageClassName, Uid, VolumeName, ids::ResourceVersion,
    storage::CreateVolume,
};
use http::Method;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    api::ApiError, clock::sleep_until, metrics::Metrics, objects::orphan_report::fnv1a, writer::Writer,
};

/// Kind of a shard, as reported with a detected restore. Versions are compared per shard.
const CONFIG_MAP: &str = "ConfigMap";
/// ConfigMaps per journal. With [`MAX_SHARD_INTENTS`] it limits the number of a journal's volumes whose state
/// is unknown.
const SHARD_COUNT: usize = 8;
/// Number of decodable intents at which a ConfigMap takes no new one.
const MAX_SHARD_INTENTS: usize = 400;
/// Bytes of decodable intents, including the new one, above which a ConfigMap takes no new one: half of the
/// API server's limit of 1 MiB. Undecodable intents do not count towards either limit, and a new intent of
/// a claim whose removal is pending in the ConfigMap is not checked.
const MAX_SHARD_BYTES: usize = 512 << 10;
/// Delay of removals, to join another commit. If the process crashes within this time, the intent is still in
/// its ConfigMap, and the next process handles it again.
const FLUSH_DELAY: Duration = Duration::from_millis(100);
/// Delay before a failed removal is retried, unless a put causes a commit earlier.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Attempts of a shard's commit with conflicting writers, before puts get the error and removals are delayed.
const MAX_COMMIT_ATTEMPTS: usize = 8;

/// Error for a claim with an undecodable intent.
const UNDECODABLE_INTENT: &str = "the journal has an intent for this claim that this version cannot decode";

/// The fields of the StorageClass that the PersistentVolume needs. They are part of the intent, because the
/// class may be deleted before the PersistentVolume is created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntentClass {
    /// Name of the class, as in the claim.
    pub name: StorageClassName,
    /// `metadata.uid`
    pub uid: Uid,
    /// `reclaimPolicy`
    pub reclaim_policy: ReclaimPolicy,
    /// `mountOptions`
    pub mount_options: Vec<String>,
}

/// A CreateVolume request of a claim. The request is sent only after the intent is durable. Once the intent
/// is durable, the request may have been sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// Namespace and name of the claim.
    pub claim: ClaimKey,
    /// Uid of the claim: the key of the intent.
    pub claim_uid: Uid,
    /// The driver.
    pub driver: DriverName,
    /// The node of a node-local driver, or the claim's selected node if the driver has topology. `None` if
    /// neither applies, and in intents of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// The StorageClass at the time of the first request.
    pub class: IntentClass,
    /// Name of the claim's VolumeAttributesClass at that time; empty for none, and in intents of older
    /// versions.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub attributes_class: Box<str>,
    /// The exact request.
    pub request: CreateVolume,
}

/// The reason why an intent could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// A read or the write of the ConfigMap failed, the result of the write is unknown, or another put for
    /// the claim is being committed. The intent may be durable.
    #[error("the intent journal is unavailable: {0}")]
    Unavailable(String),
    /// The API server rejected a request for the ConfigMap, the CreateVolume request is too large or cannot
    /// be encoded, or the claim has an undecodable intent.
    #[error("the intent journal cannot be written: {0}")]
    Refused(String),
    /// No shard has room for the intent. The number is that of the journal's intents, whose volumes have an
    /// unknown state. The request must not be sent, because its intent is not durable.
    #[error("the intent journal is full: {0} volumes of the driver have an unknown state")]
    Full(usize),
    /// The journal has stopped, or the intent was removed before its commit ended.
    #[error("the intent journal is closed")]
    Closed,
}

/// The reason why this build cannot use an intent of a ConfigMap.
#[derive(Debug, thiserror::Error)]
enum InvalidIntent {
    /// The JSON is not an [`Intent`].
    #[error("malformed intent: {0}")]
    Json(#[from] serde_json::Error),
    /// The intent has the key of another claim.
    #[error("claim_uid is {found}: expected {expected}")]
    ClaimUid { found: Uid, expected: Uid },
    /// The intent belongs to another driver.
    #[error("driver is {found}: expected {expected}")]
    Driver { found: DriverName, expected: DriverName },
    /// The intent belongs to another node, or names none.
    #[error("node is {}: expected {expected}", .found.as_ref().map_or("absent", |node| node.as_str()))]
    Node { found: Option<NodeName>, expected: NodeName },
}

type WriteSender = oneshot::Sender<Result<Arc<Intent>, JournalError>>;
/// Version and data of a shard's ConfigMap.
type ShardContents = (ResourceVersion, HashMap<String, String>);
type WriteReceiver = oneshot::Receiver<Result<Arc<Intent>, JournalError>>;

enum ShardChange {
    Put {
        json: String,
        waiters: Vec<WriteSender>,
    },
    /// Removes this intent only, not another one of the same claim.
    Remove(Arc<Intent>),
}

/// An intent in memory, with its place in the ConfigMaps.
struct TrackedIntent {
    intent: Arc<Intent>,
    shard: usize,
    /// Bytes of the key and the JSON.
    size: usize,
    /// True if the shard's ConfigMap has the intent. Only then may its request be sent.
    durable: bool,
}

/// The kinds of changes that are pending in all shards together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PendingKind {
    /// No change is pending.
    None,
    /// Only removals are pending: they wait for a put to share its commit, at most for [`FLUSH_DELAY`], or
    /// for [`RETRY_DELAY`] after a failure.
    RemovalsOnly,
    /// A put is pending: it is committed immediately.
    Puts,
}

#[derive(Default)]
struct Shard {
    /// Last observed version of the ConfigMap; `None` if the ConfigMap does not exist or must be read first.
    version: Option<ResourceVersion>,
    /// Highest observed version. A lower one in a response reveals a restore.
    highest_version: ResourceVersion,
    /// True if a read returned that the ConfigMap does not exist.
    config_map_missing: bool,
    /// Number of decodable intents, including those that are not yet durable.
    intent_count: usize,
    /// Bytes of the keys and the JSON of these intents.
    bytes: usize,
    pending_changes: BTreeMap<Uid, ShardChange>,
}

struct State {
    /// Intents by claim uid.
    intents: HashMap<Uid, TrackedIntent>,
    shards: Vec<Shard>,
    /// Claim uids of undecodable intents. These intents are neither overwritten nor removed.
    undecodable: HashSet<Uid>,
    /// Claim uids of intents that a read returned and that were not known to be durable with this content,
    /// until [`Journal::wait_recovered`] takes them.
    recovered: Vec<Uid>,
    closed: bool,
}

impl State {
    /// Removes an intent and subtracts it from the counts of its shard.
    fn remove_intent(&mut self, uid: &Uid) -> Option<TrackedIntent> {
        let tracked = self.intents.remove(uid)?;
        if let Some(shard) = self.shards.get_mut(tracked.shard) {
            shard.intent_count = shard.intent_count.saturating_sub(1);
            shard.bytes = shard.bytes.saturating_sub(tracked.size);
        }
        Some(tracked)
    }
}

struct Inner {
    state: Mutex<State>,
    changes_pending: Notify,
    intents_recovered: Notify,
    writer: Writer,
    namespace: String,
    driver: DriverName,
    /// The node of a node-local driver.
    node: Option<NodeName>,
    metrics: Metrics,
}

/// The journal of a driver, or of a node-local driver on one node. Clones share it.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
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
            closed: false,
        };
        let inner = Inner {
            state: Mutex::new(state),
            changes_pending: Notify::new(),
            intents_recovered: Notify::new(),
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

    /// Reads every ConfigMap of the journal.
    ///
    /// # Errors
    /// [`ApiError`] of the first failed read.
    pub async fn load(&self) -> Result<(), ApiError> {
        for shard in 0..SHARD_COUNT {
            self.read_shard(shard, &mut BTreeMap::new()).await?;
        }
        Ok(())
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

    /// Returns `true` if there is an intent for the claim or for a volume of this name. Includes intents that
    /// are not yet durable, and undecodable intents for the claim.
    pub fn has_intent_for(&self, claim: &Uid, volume: &VolumeName) -> bool {
        let state = self.inner.state.lock();
        state.intents.contains_key(claim)
            || state.undecodable.contains(claim)
            || state.intents.values().any(|tracked| tracked.intent.request.name == volume.as_str())
    }

    /// As [`Journal::has_intent_for`], but also reads the ConfigMaps, which another process may have written.
    /// The intents in memory are not changed.
    ///
    /// # Errors
    /// [`ApiError`] of the first failed read.
    pub async fn has_intent_for_live(&self, claim: &Uid, volume: &VolumeName) -> Result<bool, ApiError> {
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
        Ok(self.has_intent_for(claim, volume))
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

    /// Writes an intent and returns it once it is durable. If the claim has a durable intent, returns that
    /// one, because its request may have been sent.
    ///
    /// # Errors
    /// [`JournalError`]. [`JournalError::Full`] is returned immediately, so that callers can remove other
    /// intents.
    pub async fn write(&self, intent: Intent) -> Result<Arc<Intent>, JournalError> {
        let json =
            serde_json::to_string(&intent).map_err(|error| JournalError::Refused(error.to_string()))?;
        let size = json.len() + intent.claim_uid.as_str().len();
        if size > MAX_SHARD_BYTES {
            return Err(JournalError::Refused(format!(
                "the request has {size} bytes: a journal shard holds at most {MAX_SHARD_BYTES}"
            )));
        }
        let receiver = self.enqueue(&Arc::new(intent), json, size)?;
        receiver.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Removes a claim's intent: from memory at once, and from its ConfigMap with a later commit.
    pub fn remove(&self, uid: &Uid) {
        let mut state = self.inner.state.lock();
        let Some(tracked) = state.remove_intent(uid) else { return };
        if let Some(shard) = state.shards.get_mut(tracked.shard) {
            shard.pending_changes.insert(uid.clone(), ShardChange::Remove(tracked.intent));
        }
        drop(state);
        self.inner.changes_pending.notify_one();
    }

    /// Commits changes until `stop`, then commits the remaining ones.
    pub async fn run(&self, stop: CancellationToken) {
        let mut next_commit_at = None;
        loop {
            let changes_pending = self.inner.changes_pending.notified();
            let pending = self.pending_kind();
            let is_due = next_commit_at.is_some_and(|due| tokio::time::Instant::now() >= due);
            if pending == PendingKind::Puts || (pending == PendingKind::RemovalsOnly && is_due) {
                next_commit_at = None;
                if !self.commit().await {
                    next_commit_at = Some(tokio::time::Instant::now() + RETRY_DELAY);
                }
                continue;
            }
            if pending == PendingKind::RemovalsOnly && next_commit_at.is_none() {
                next_commit_at = Some(tokio::time::Instant::now() + FLUSH_DELAY);
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = changes_pending => {}
                () = sleep_until(next_commit_at) => {}
            }
        }
        self.inner.state.lock().closed = true;
        self.commit().await;
    }

    /// Queues a put and returns the receiver of its result.
    fn enqueue(
        &self,
        intent: &Arc<Intent>,
        json: String,
        size: usize,
    ) -> Result<WriteReceiver, JournalError> {
        let (sender, receiver) = oneshot::channel();
        let mut guard = self.inner.state.lock();
        let state = &mut *guard;
        if state.closed {
            return Err(JournalError::Closed);
        }
        if state.undecodable.contains(&intent.claim_uid) {
            return Err(JournalError::Refused(UNDECODABLE_INTENT.to_owned()));
        }
        if let Some(tracked) = state.intents.get(&intent.claim_uid) {
            if tracked.durable {
                let _ = sender.send(Ok(Arc::clone(&tracked.intent)));
                return Ok(receiver);
            }
            let pending = state
                .shards
                .get_mut(tracked.shard)
                .and_then(|s| s.pending_changes.get_mut(&intent.claim_uid));
            return match pending {
                Some(ShardChange::Put { waiters: waiting, .. }) => {
                    waiting.push(sender);
                    Ok(receiver)
                }
                Some(ShardChange::Remove(_)) | None => Err(JournalError::Unavailable(
                    "the claim has an intent that is being committed".to_owned(),
                )),
            };
        }
        let total = state.intents.len();
        let has_room =
            |shard: &Shard| shard.intent_count < MAX_SHARD_INTENTS && shard.bytes + size <= MAX_SHARD_BYTES;
        // Prefer the shard with a pending change of the claim, so that the claim is not in two shards.
        let shard_of_claim =
            state.shards.iter().position(|shard| shard.pending_changes.contains_key(&intent.claim_uid));
        let shard_index = shard_of_claim.or_else(|| state.shards.iter().position(has_room));
        let Some((index, shard)) = shard_index.and_then(|at| Some((at, state.shards.get_mut(at)?))) else {
            return Err(JournalError::Full(total));
        };
        shard.intent_count += 1;
        shard.bytes += size;
        shard
            .pending_changes
            .insert(intent.claim_uid.clone(), ShardChange::Put { json, waiters: vec![sender] });
        let tracked = TrackedIntent { intent: Arc::clone(intent), shard: index, size, durable: false };
        state.intents.insert(intent.claim_uid.clone(), tracked);
        drop(guard);
        self.inner.changes_pending.notify_one();
        Ok(receiver)
    }

    fn pending_kind(&self) -> PendingKind {
        let state = self.inner.state.lock();
        let mut pending = PendingKind::None;
        for change in state.shards.iter().flat_map(|shard| shard.pending_changes.values()) {
            match change {
                ShardChange::Put { .. } => return PendingKind::Puts,
                ShardChange::Remove(_) => pending = PendingKind::RemovalsOnly,
            }
        }
        pending
    }

    /// Commits all shards with changes. Returns `false` if a removal must be retried.
    async fn commit(&self) -> bool {
        let mut is_complete = true;
        for index in 0..SHARD_COUNT {
            is_complete &= self.commit_shard(index).await;
        }
        let state = self.inner.state.lock();
        let intents = state.intents.len();
        drop(state);
        self.inner.metrics.set_journal_intents(intents);
        is_complete
    }

    async fn commit_shard(&self, index: usize) -> bool {
        let mut batch = self.take_changes(index);
        for _ in 0..MAX_COMMIT_ATTEMPTS {
            if batch.is_empty() {
                return true;
            }
            if !self.is_loaded(index)
                && let Err(error) = self.read_shard(index, &mut batch).await
            {
                return self.requeue_failed(index, batch, &error);
            }
            self.answer_puts_of_durable_intents(&mut batch);
            if batch.is_empty() {
                return true;
            }
            match self.write_shard(index, &batch).await {
                Ok(()) => {
                    self.complete_puts(batch);
                    return true;
                }
                Err(ApiError::NotFound(_)) if !self.has_config_map(index) => {
                    // A create returns NotFound only for a missing namespace.
                    let error = ApiError::Refused {
                        target: self.shard_name(index),
                        code: 404,
                        message: format!("namespace {:?} does not exist", self.inner.namespace),
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
            message: format!("conflicts with another writer in {MAX_COMMIT_ATTEMPTS} attempts"),
        };
        self.requeue_failed(index, batch, &error)
    }

    fn take_changes(&self, index: usize) -> BTreeMap<Uid, ShardChange> {
        self.inner
            .state
            .lock()
            .shards
            .get_mut(index)
            .map(|shard| std::mem::take(&mut shard.pending_changes))
            .unwrap_or_default()
    }

    fn is_loaded(&self, index: usize) -> bool {
        self.inner
            .state
            .lock()
            .shards
            .get(index)
            .is_some_and(|shard| shard.version.is_some() || shard.config_map_missing)
    }

    fn has_config_map(&self, index: usize) -> bool {
        self.inner.state.lock().shards.get(index).is_some_and(|shard| shard.version.is_some())
    }

    fn invalidate(&self, index: usize) {
        if let Some(shard) = self.inner.state.lock().shards.get_mut(index) {
            shard.version = None;
            shard.config_map_missing = false;
        }
    }

    /// Answers puts of claims that have a durable intent by now: one that a read found, for example because
    /// another process has written it.
    fn answer_puts_of_durable_intents(&self, batch: &mut BTreeMap<Uid, ShardChange>) {
        let state = self.inner.state.lock();
        batch.retain(|uid, change| match (change, state.intents.get(uid)) {
            (ShardChange::Put { waiters: waiting, .. }, Some(tracked)) if tracked.durable => {
                for sender in std::mem::take(waiting) {
                    let _ = sender.send(Ok(Arc::clone(&tracked.intent)));
                }
                false
            }
            _ => true,
        });
    }

    async fn write_shard(&self, index: usize, batch: &BTreeMap<Uid, ShardChange>) -> Result<(), ApiError> {
        let name = self.shard_name(index);
        let version = self.inner.state.lock().shards.get(index).and_then(|shard| shard.version);
        let data: serde_json::Map<String, Value> = batch
            .iter()
            .filter_map(|(uid, change)| match (change, version) {
                (ShardChange::Put { json, .. }, _) => Some((uid.as_str().to_owned(), json!(json))),
                (ShardChange::Remove(_), Some(_)) => Some((uid.as_str().to_owned(), Value::Null)),
                // The ConfigMap does not exist, so there is nothing to remove.
                (ShardChange::Remove(_), None) => None,
            })
            .collect();
        if data.is_empty() {
            return Ok(());
        }
        let collection = format!("/api/v1/namespaces/{}/configmaps", self.inner.namespace);
        let response = match version {
            Some(version) => {
                let body = json!({"metadata": {"resourceVersion": version.to_string()}, "data": data});
                let path = format!("{collection}/{name}");
                self.inner.writer.api().send_json_for_version(Method::PATCH, &path, &body, &name).await
            }
            None => {
                let mut metadata = json!({
                    "name": name,
                    "namespace": self.inner.namespace,
                    "labels": {
                        "app.kubernetes.io/managed-by": "cofferdam",
                        "cofferdam.dev/journal": "intents",
                    },
                });
                if let (Some(node), Some(metadata)) = (&self.inner.node, metadata.as_object_mut()) {
                    metadata.insert("annotations".to_owned(), json!({"cofferdam.dev/node": node}));
                }
                let body =
                    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
                self.inner.writer.api().send_json_for_version(Method::POST, &collection, &body, &name).await
            }
        }?;
        self.inner.metrics.journal_commit();
        if let Some(shard) = self.inner.state.lock().shards.get_mut(index) {
            // A recreated shard can reveal a restore, too.
            self.inner.writer.cache().restore_detector.report_if_older(
                CONFIG_MAP,
                shard.highest_version,
                response,
            );
            shard.version = Some(response);
            shard.highest_version = shard.highest_version.max(response);
            shard.config_map_missing = false;
        }
        Ok(())
    }

    fn complete_puts(&self, batch: BTreeMap<Uid, ShardChange>) {
        let mut state = self.inner.state.lock();
        for (uid, change) in batch {
            if let ShardChange::Put { waiters: waiting, .. } = change
                && let Some(tracked) = state.intents.get_mut(&uid)
            {
                tracked.durable = true;
                for sender in waiting {
                    let _ = sender.send(Ok(Arc::clone(&tracked.intent)));
                }
            }
        }
        drop(state);
    }

    /// After a failed commit, answers the puts with the error and requeues the removals. Returns `true` if
    /// there is no removal to retry.
    fn requeue_failed(&self, index: usize, batch: BTreeMap<Uid, ShardChange>, error: &ApiError) -> bool {
        let error_for_puts = match error {
            ApiError::Refused { .. } => JournalError::Refused(error.to_string()),
            ApiError::Conflict(_)
            | ApiError::NotFound(_)
            | ApiError::AlreadyExists(_)
            | ApiError::Unavailable { .. }
            | ApiError::InvalidResponse { .. } => JournalError::Unavailable(error.to_string()),
        };
        // The write may have taken effect, so read the shard again.
        self.invalidate(index);
        let mut is_complete = true;
        let mut state = self.inner.state.lock();
        for (uid, change) in batch {
            match change {
                ShardChange::Put { waiters: waiting, .. } => {
                    // The intent may have been found in another shard.
                    let durable = state.intents.get(&uid).filter(|tracked| tracked.durable);
                    let result = match durable {
                        Some(tracked) => Ok(Arc::clone(&tracked.intent)),
                        None => {
                            state.remove_intent(&uid);
                            Err(error_for_puts.clone())
                        }
                    };
                    for sender in waiting {
                        let _ = sender.send(result.clone());
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
        tracing::warn!(driver = %self.inner.driver, %error, "a commit of the intent journal failed");
        is_complete
    }

    /// Reads the ConfigMap of a shard. Returns `None` if it does not exist.
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
        let path = format!("/api/v1/namespaces/{}/configmaps/{name}", self.inner.namespace);
        let highest_seen =
            self.inner.state.lock().shards.get(index).map(|shard| shard.highest_version).unwrap_or_default();
        let response = match self.inner.writer.api().read(&path, &name).await {
            Ok(response) => response,
            Err(ApiError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let map: ConfigMap =
            serde_json::from_str(&response).map_err(|error| ApiError::invalid_response(&name, error))?;
        let version = map.metadata.resource_version.parse();
        let version = version.map_err(|error| ApiError::invalid_response(&name, error))?;
        self.inner.writer.cache().restore_detector.report_if_older(CONFIG_MAP, highest_seen, version);
        Ok(Some((version, map.data)))
    }

    /// Reads a shard. Intents with a removal in `batch` are ignored. A removal of another intent than the one
    /// in the ConfigMap is dropped.
    async fn read_shard(&self, index: usize, batch: &mut BTreeMap<Uid, ShardChange>) -> Result<(), ApiError> {
        let name = self.shard_name(index);
        let Some((version, data)) = self.fetch_shard(index).await? else {
            if let Some(shard) = self.inner.state.lock().shards.get_mut(index) {
                shard.config_map_missing = true;
            }
            return Ok(());
        };
        let mut undecodable = Vec::new();
        let intents = data.into_iter().filter_map(|(uid, json)| {
            let intent = serde_json::from_str::<Intent>(&json).map_err(InvalidIntent::from);
            match intent.and_then(|intent| self.validate(&uid, intent)) {
                Ok(intent) => Some((json.len() + uid.len(), intent)),
                Err(reason) => {
                    // Kept, because a newer version may have written it and a volume may depend on it.
                    tracing::error!(
                        config_map = %name,
                        claim_uid = %uid,
                        %reason,
                        "undecodable intent; it is kept"
                    );
                    undecodable.push(Uid::from(uid));
                    None
                }
            }
        });
        let intents = intents.filter(|(_, intent)| !retain_removal_of(batch, intent)).collect();
        self.merge_intents(index, version, intents);
        for uid in undecodable {
            self.reject_changes_of_undecodable(uid, index, batch);
        }
        Ok(())
    }

    /// Rejects changes of an undecodable intent, which must be neither overwritten nor removed.
    fn reject_changes_of_undecodable(&self, uid: Uid, index: usize, batch: &mut BTreeMap<Uid, ShardChange>) {
        let mut state = self.inner.state.lock();
        let queued = state.shards.get_mut(index).and_then(|shard| shard.pending_changes.remove(&uid));
        for change in batch.remove(&uid).into_iter().chain(queued) {
            if let ShardChange::Put { waiters: waiting, .. } = change {
                for sender in waiting {
                    let _ = sender.send(Err(JournalError::Refused(UNDECODABLE_INTENT.to_owned())));
                }
            }
        }
        // The intent in the ConfigMap is no longer the one of this process.
        if state.intents.get(&uid).is_some_and(|tracked| tracked.shard == index) {
            state.remove_intent(&uid);
        }
        state.undecodable.insert(uid);
    }

    fn validate(&self, uid: &str, intent: Intent) -> Result<Intent, InvalidIntent> {
        if intent.claim_uid.as_str() != uid {
            return Err(InvalidIntent::ClaimUid { found: intent.claim_uid, expected: uid.into() });
        }
        if intent.driver != self.inner.driver {
            return Err(InvalidIntent::Driver { found: intent.driver, expected: self.inner.driver.clone() });
        }
        match &self.inner.node {
            Some(expected) if intent.node.as_ref() != Some(expected) => {
                Err(InvalidIntent::Node { found: intent.node, expected: expected.clone() })
            }
            Some(_) | None => Ok(intent),
        }
    }

    fn merge_intents(&self, index: usize, version: ResourceVersion, intents: Vec<(usize, Intent)>) {
        let mut guard = self.inner.state.lock();
        let state = &mut *guard;
        if let Some(shard) = state.shards.get_mut(index) {
            shard.version = Some(version);
            shard.highest_version = shard.highest_version.max(version);
            shard.config_map_missing = false;
        }
        for (size, intent) in intents {
            let uid = intent.claim_uid.clone();
            let Some(shard) = state.shards.get_mut(index) else { return };
            match state.intents.get(&uid) {
                None if retain_removal_of(&mut shard.pending_changes, &intent) => continue,
                Some(tracked) if tracked.durable && tracked.shard != index => {
                    // The claim is in two shards; remove one intent.
                    shard.pending_changes.insert(uid, ShardChange::Remove(Arc::new(intent)));
                    continue;
                }
                Some(tracked) if tracked.durable && *tracked.intent == intent => continue,
                // Another process wrote or replaced the intent. It takes precedence over a pending put.
                Some(_) | None => {}
            }
            state.remove_intent(&uid);
            if let Some(shard) = state.shards.get_mut(index) {
                shard.intent_count += 1;
                shard.bytes += size;
            }
            let tracked = TrackedIntent { intent: Arc::new(intent), shard: index, size, durable: true };
            state.intents.insert(uid.clone(), tracked);
            state.recovered.push(uid);
        }
        drop(guard);
        self.inner.intents_recovered.notify_one();
    }

    fn shard_name(&self, index: usize) -> String {
        let Inner { driver, node, .. } = &*self.inner;
        match node {
            None => format!("cofferdam-intents-{driver}-{index}"),
            // A digest, because both names together can exceed the length limit. The node's name is in an
            // annotation.
            Some(node) => format!("cofferdam-intents-{driver}.{:016x}-{index}", fnv1a(node.as_str())),
        }
    }
}

/// Drops a pending removal of another intent of the claim. Returns `true` if a removal of this intent is
/// pending.
fn retain_removal_of(changes: &mut BTreeMap<Uid, ShardChange>, intent: &Intent) -> bool {
    let Some(ShardChange::Remove(removed)) = changes.get(&intent.claim_uid) else { return false };
    let is_same = **removed == *intent;
    if !is_same {
        changes.remove(&intent.claim_uid);
    }
    is_same
}
