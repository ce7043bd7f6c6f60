//! The intent journal: writes create requests durably before they are sent to a driver.
//!
//! The result of a CreateVolume call can be lost: the process crashes, the response does not arrive, or the
//! claim is deleted in the meantime. Therefore an intent with the exact request is first written to one of
//! several ConfigMaps (shards) in the process's namespace, keyed by the claim's uid. A retry sends the
//! identical request. The intent is removed when the PersistentVolume exists, when the driver's error is
//! final and shows that no volume was created, when the created volume was deleted because no claim needs it,
//! when the claim is deleted and another PersistentVolume refers to the created volume, or when an operator
//! confirms that the driver has no volume of this name.
//!
//! While the result of the request is unknown, its claim or class may be mended. The intent then has a second
//! request ([`Intent::mended`]), which [`Journal::replace`] writes before it is sent.
//!
//! Each driver has a journal, and node-local drivers have one per node, so that a hanging driver fills only
//! its own. Writes are committed in groups: immediately if no commit is in flight, otherwise together with
//! all others that arrive until it ends. Removals are delayed for a short time to join a commit. A removal
//! applies only to the intent that it names; one that another process wrote for the same claim is kept.
//!
//! One process owns a journal and sends its requests; `journal/ownership.rs` has the rules.

mod ownership;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cofferdam_domain::{
    ClaimKey, DriverName, NodeName, ReclaimPolicy, StorageClassName, Uid, VolumeName, ids::ResourceVersion,
    names, storage::CreateVolume, volume::SecretRef,
};
use http::Method;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use ownership::OWNER_CHECK_INTERVAL;
use ownership::{OWNER, Ownership, RENEW_INTERVAL, RENEWALS};

use crate::{
    api::{ApiError, ApiResource},
    clock::sleep_until,
    events::ObjectReference,
    leader_election::with_random_part,
    metrics::Metrics,
    objects::orphan_report::fnv1a,
    writer::Writer,
};

/// Label of the journal's ConfigMaps.
pub const JOURNAL_LABEL: &str = "cofferdam.dev/journal";
/// Value of [`JOURNAL_LABEL`].
pub const JOURNAL_LABEL_VALUE: &str = "intents";
/// Prefix of the ConfigMaps' names. The driver's name and the number of the shard follow, and between them
/// the digest of a node's name.
const NAME_PREFIX: &str = "cofferdam-intents-";
/// Hexadecimal digits of the digest of a node's name.
const NODE_DIGEST_LENGTH: usize = 16;
/// Annotation of the ConfigMaps of a node's journal: the node's name.
const NODE_ANNOTATION: &str = "cofferdam.dev/node";
/// Kind of a shard.
const CONFIG_MAP: ApiResource =
    ApiResource { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", namespaced: true };
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

/// The Secrets that the StorageClass names, resolved for the claim: references, never values. They are part
/// of the intent, because the class and the claim's annotations may change before the PersistentVolume is
/// created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IntentSecrets {
    /// The Secret of CreateVolume and DeleteVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioner: Option<SecretRef>,
    /// `controllerPublishSecretRef` of the PersistentVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_publish: Option<SecretRef>,
    /// `nodeStageSecretRef` of the PersistentVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_stage: Option<SecretRef>,
    /// `nodePublishSecretRef` of the PersistentVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_publish: Option<SecretRef>,
    /// `controllerExpandSecretRef` of the PersistentVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_expand: Option<SecretRef>,
    /// `nodeExpandSecretRef` of the PersistentVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_expand: Option<SecretRef>,
    /// The Secret of ControllerModifyVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_modify: Option<SecretRef>,
}

impl IntentSecrets {
    /// Returns `true` if the class names no Secret.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
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
    /// The Secrets of the StorageClass. Empty for a class without Secrets, and in intents of older versions.
    #[serde(default, skip_serializing_if = "IntentSecrets::is_empty")]
    pub secrets: IntentSecrets,
    /// The exact request.
    pub request: CreateVolume,
    /// Time at which the intent was written. `None` in intents of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_at: Option<Timestamp>,
    /// The intent of the claim's mended request, which was built from the claim and its class while the
    /// result of `request` was unknown. The driver may have received both requests. It has the same claim,
    /// driver and name of the volume, and no mended request of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mended: Option<Box<Self>>,
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
    /// Another process, with this name, has taken the journal. It sends the driver's requests.
    #[error("process {0} has taken the intent journal")]
    Taken(String),
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
    /// The mended request is for another claim, driver or volume, or is mended itself.
    #[error("mended is not for the same claim, driver and volume name, or has a field `mended`")]
    Mended,
}

/// An intent's entry in its ConfigMap, from a live read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// The ConfigMap.
    pub config_map: ObjectReference,
    /// Value of the annotation [`names::confirm_no_volume`] of the claim: the reason why an operator confirms
    /// that the driver has no volume for the intent. `None` without the annotation.
    pub confirmation: Option<String>,
}

type WriteSender = oneshot::Sender<Result<Arc<Intent>, JournalError>>;
type WriteReceiver = oneshot::Receiver<Result<Arc<Intent>, JournalError>>;

/// A shard's ConfigMap.
struct ShardContents {
    version: ResourceVersion,
    uid: Uid,
    annotations: HashMap<String, String>,
    data: HashMap<String, String>,
}

enum ShardChange {
    Put {
        json: String,
        waiters: Vec<WriteSender>,
    },
    /// Replaces a durable intent.
    Replace(Replacement),
    /// Removes this intent only, not another one of the same claim.
    Remove(Arc<Intent>),
}

/// A pending replacement. The replaced intent stays the claim's intent until the commit.
struct Replacement {
    json: String,
    current: Arc<Intent>,
    new: Arc<Intent>,
    /// [`TrackedIntent::size`] of the replaced intent.
    current_size: usize,
    waiter: WriteSender,
}

/// An intent in memory, with its place in the ConfigMaps.
struct TrackedIntent {
    intent: Arc<Intent>,
    /// Time at which this process wrote or read the intent.
    seen_at: Instant,
    shard: usize,
    /// Bytes of the key and the JSON.
    size: usize,
    /// True if the shard's ConfigMap has the intent. Only then may its request be sent.
    durable: bool,
    /// True if a read returned the intent: another process may have written it and sent its request. Stays
    /// true when the intent is replaced.
    recovered: bool,
}

impl TrackedIntent {
    /// Time since the intent was written, or since this process read an intent of an older version.
    fn age(&self, now: Timestamp) -> Duration {
        match self.intent.recorded_at {
            Some(recorded_at) => now.duration_since(recorded_at).try_into().unwrap_or_default(),
            None => self.seen_at.elapsed(),
        }
    }
}

/// The kinds of changes that are pending in all shards together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PendingKind {
    /// No change is pending.
    None,
    /// Only removals, of intents or annotations, are pending: they wait for a put to share its commit, at
    /// most for [`FLUSH_DELAY`], or for [`RETRY_DELAY`] after a failure.
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
    /// Claim uids whose annotation [`names::confirm_no_volume`] the next commit removes.
    used_confirmations: BTreeSet<Uid>,
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
    ownership: Ownership,
    /// Name of this process, the first part of its name as the owner.
    identity: String,
    /// Time of the last call of [`Journal::acquire`] that waits for another process.
    waiting_since: Option<Instant>,
    /// Time of this process's last write of the first ConfigMap.
    written_at: Option<Instant>,
    renewals: u64,
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

    /// Restores the size of an intent after a failed replacement.
    fn restore_size(&mut self, uid: &Uid, replacement: &Replacement) {
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

struct Inner {
    state: Mutex<State>,
    changes_pending: Notify,
    intents_recovered: Notify,
    /// Held while a task takes the journal.
    taking: tokio::sync::Mutex<()>,
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
            ownership: Ownership::Unclaimed,
            identity: "cofferdam".to_owned(),
            waiting_since: None,
            written_at: None,
            renewals: 0,
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

    /// Name of the process that has taken the journal from this one, or `None`.
    pub fn taken_by(&self) -> Option<String> {
        self.inner.state.lock().ownership.rival().map(str::to_owned)
    }

    /// Makes this process the owner of the journal, if no other process has taken it from this one. The first
    /// call reads and writes ConfigMaps. Call it before each request of an intent.
    ///
    /// # Errors
    /// [`JournalError::Taken`]: try again after [`OWNER_CHECK_INTERVAL`]. [`JournalError::Unavailable`] and
    /// [`JournalError::Refused`] of the reads and the write.
    pub async fn acquire(&self) -> Result<(), JournalError> {
        if self.is_owned()? {
            return Ok(());
        }
        let _taking = self.inner.taking.lock().await;
        if self.is_owned()? {
            return Ok(());
        }
        self.take().await.map_err(|error| journal_error(&error))
    }

    /// Returns true if this process owns the journal, and false if no process does.
    ///
    /// # Errors
    /// [`JournalError::Taken`]. The journal then knows that this process has work.
    fn is_owned(&self) -> Result<bool, JournalError> {
        let mut state = self.inner.state.lock();
        match &state.ownership {
            Ownership::Owned { .. } => Ok(true),
            Ownership::Unclaimed => Ok(false),
            Ownership::Lost(rival) => {
                let taken = JournalError::Taken(rival.owner.clone());
                state.waiting_since = Some(Instant::now());
                Err(taken)
            }
        }
    }

    /// Writes a new owner, after a read of all shards: another process may have written intents since the
    /// last one, and removed some of this process.
    async fn take(&self) -> Result<(), ApiError> {
        let owner = with_random_part(&self.inner.state.lock().identity);
        let mut conflict = None;
        for _ in 0..MAX_COMMIT_ATTEMPTS {
            for index in 0..SHARD_COUNT {
                let contents = self.fetch_shard(index).await?;
                self.forget_removed_intents(index, contents.as_ref());
                self.apply_shard(index, contents, &mut BTreeMap::new());
            }
            match self.write_annotation(OWNER, &owner).await {
                Ok(since) => {
                    tracing::info!(driver = %self.inner.driver, owner, "took the intent journal");
                    self.set_ownership(Ownership::Owned { owner, since });
                    return Ok(());
                }
                Err(error @ (ApiError::Conflict(_) | ApiError::NotFound(_) | ApiError::AlreadyExists(_))) => {
                    conflict = Some(error);
                }
                Err(error) => {
                    self.invalidate(0);
                    return Err(error);
                }
            }
        }
        self.invalidate(0);
        Err(conflict.unwrap_or_else(|| ApiError::Conflict(self.shard_name(0))))
    }

    /// Removes durable intents from memory that another process has removed from the shard's ConfigMap.
    fn forget_removed_intents(&self, index: usize, contents: Option<&ShardContents>) {
        let mut state = self.inner.state.lock();
        let highest = state.shards.get(index).map(|shard| shard.highest_version).unwrap_or_default();
        if contents.is_some_and(|contents| contents.version < highest) {
            return;
        }
        let is_stored = |uid: &Uid| contents.is_some_and(|contents| contents.data.contains_key(uid.as_str()));
        let removed: Vec<Uid> = state
            .intents
            .iter()
            .filter(|(uid, tracked)| tracked.durable && tracked.shard == index && !is_stored(uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in removed {
            state.remove_intent(&uid);
        }
    }

    fn set_ownership(&self, ownership: Ownership) {
        let mut state = self.inner.state.lock();
        state.ownership = ownership;
        drop(state);
        self.report_ownership();
        // The loop of `run` renews, or reads the owner.
        self.inner.changes_pending.notify_one();
    }

    fn report_ownership(&self) {
        let state = self.inner.state.lock();
        self.inner.metrics.set_journal_owned(&self.inner.driver, state.ownership.rival().is_none());
    }

    /// Time of the next [`Journal::check_ownership`]; `None` if none is needed. `last` is that of the last
    /// one.
    fn next_ownership_check(&self, last: Instant) -> Option<Instant> {
        let state = self.inner.state.lock();
        match &state.ownership {
            Ownership::Unclaimed => None,
            Ownership::Lost(_) => Some(last + OWNER_CHECK_INTERVAL),
            Ownership::Owned { .. } => {
                let written_at = state.written_at.unwrap_or(last);
                (!state.intents.is_empty()).then(|| last.max(written_at) + RENEW_INTERVAL)
            }
        }
    }

    /// As the owner, renews; after a loss, reads the owner, and takes the journal back if it may. Errors are
    /// logged, and the next check follows.
    async fn check_ownership(&self) {
        let is_lost = self.taken_by().is_some();
        let result = if is_lost { self.check_rival().await } else { self.renew().await };
        if let Err(error) = result {
            tracing::warn!(driver = %self.inner.driver, %error, "cannot check the journal's owner");
        }
    }

    async fn check_rival(&self) -> Result<(), ApiError> {
        let contents = self.fetch_shard(0).await?;
        let has_intents = contents.is_some_and(|contents| !contents.data.is_empty());
        let now = Instant::now();
        let may_take = {
            let mut state = self.inner.state.lock();
            // A waiting caller tries again at each interval.
            let waits = |since: Instant| now.duration_since(since) < OWNER_CHECK_INTERVAL * 2;
            let has_work = has_intents || state.waiting_since.is_some_and(waits);
            state.ownership.may_take_back(has_work, now)
        };
        if !may_take {
            return Ok(());
        }
        let _taking = self.inner.taking.lock().await;
        self.take().await
    }

    async fn renew(&self) -> Result<(), ApiError> {
        let renewals = {
            let mut state = self.inner.state.lock();
            state.renewals += 1;
            state.renewals
        };
        if !self.is_loaded(0) {
            self.read_shard(0, &mut BTreeMap::new()).await?;
        }
        if self.taken_by().is_some() || !self.has_config_map(0) {
            return Ok(());
        }
        match self.write_annotation(RENEWALS, &renewals.to_string()).await {
            Ok(_) => Ok(()),
            Err(ApiError::Conflict(_) | ApiError::NotFound(_)) => {
                self.invalidate(0);
                self.read_shard(0, &mut BTreeMap::new()).await
            }
            Err(error) => {
                self.invalidate(0);
                Err(error)
            }
        }
    }

    /// Writes an annotation of the first ConfigMap at the version that was read, and creates it if it does
    /// not exist. Returns the new version.
    async fn write_annotation(&self, name: &str, value: &str) -> Result<ResourceVersion, ApiError> {
        let target = self.shard_name(0);
        let collection = format!("/api/v1/namespaces/{}/configmaps", self.inner.namespace);
        let version = self.inner.state.lock().shards.first().and_then(|shard| shard.version);
        let response = match version {
            Some(version) => {
                let metadata = json!({"resourceVersion": version.to_string(), "annotations": {name: value}});
                let (path, body) = (format!("{collection}/{target}"), json!({"metadata": metadata}));
                self.inner.writer.api().send_json_for_version(Method::PATCH, &path, &body, &target).await
            }
            None => {
                let mut metadata = self.metadata(&target);
                if let Some(metadata) = metadata.as_object_mut()
                    && let Some(annotations) =
                        metadata.entry("annotations").or_insert_with(|| json!({})).as_object_mut()
                {
                    annotations.insert(name.to_owned(), json!(value));
                }
                let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
                self.inner.writer.api().send_json_for_version(Method::POST, &collection, &body, &target).await
            }
        }?;
        self.set_written_version(0, response);
        Ok(response)
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

    /// Reads the ConfigMap of a claim's intent. `None` if there is no intent, or no ConfigMap.
    ///
    /// # Errors
    /// [`ApiError`] of the read.
    pub async fn read_entry(&self, uid: &Uid) -> Result<Option<JournalEntry>, ApiError> {
        let shard = self.inner.state.lock().intents.get(uid).map(|tracked| tracked.shard);
        let Some(index) = shard else { return Ok(None) };
        let Some(mut contents) = self.fetch_shard(index).await? else { return Ok(None) };
        let config_map = ObjectReference {
            resource: CONFIG_MAP,
            namespace: self.inner.namespace.as_str().into(),
            name: self.shard_name(index).into(),
            uid: contents.uid,
            resource_version: contents.version,
        };
        let confirmation = contents.annotations.remove(&names::confirm_no_volume(uid));
        Ok(Some(JournalEntry { config_map, confirmation }))
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
            let Some(ShardContents { data, .. }) = self.fetch_shard(shard).await? else { continue };
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
        let (json, size) = encode(&intent)?;
        let receiver = self.enqueue(&Arc::new(intent), json, size)?;
        receiver.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Replaces the claim's durable intent `current` and returns the new one once it is durable. Until then
    /// [`Journal::get`] returns `current`.
    ///
    /// # Errors
    /// [`JournalError`]. [`JournalError::Unavailable`] if the claim's intent is no longer `current`, e.g.
    /// because another process has replaced it.
    pub async fn replace(&self, current: &Intent, new: Intent) -> Result<Arc<Intent>, JournalError> {
        let (json, size) = encode(&new)?;
        let receiver = self.enqueue_replacement(current, Arc::new(new), json, size)?;
        receiver.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Removes a claim's intent: from memory at once, and from its ConfigMap with a later commit.
    pub fn remove(&self, uid: &Uid) {
        self.remove_intent(uid, false);
    }

    /// As [`Journal::remove`], and also removes the annotation [`names::confirm_no_volume`], by which an
    /// operator requested the removal: it must not apply to a later intent of the claim.
    pub fn remove_confirmed(&self, uid: &Uid) {
        self.remove_intent(uid, true);
    }

    fn remove_intent(&self, uid: &Uid, is_confirmed: bool) {
        let mut state = self.inner.state.lock();
        let Some(tracked) = state.remove_intent(uid) else { return };
        if let Some(shard) = state.shards.get_mut(tracked.shard) {
            shard.pending_changes.insert(uid.clone(), ShardChange::Remove(tracked.intent));
            if is_confirmed {
                shard.used_confirmations.insert(uid.clone());
            }
        }
        drop(state);
        self.inner.changes_pending.notify_one();
    }

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
                Some(ShardChange::Replace(_) | ShardChange::Remove(_)) | None => Err(
                    JournalError::Unavailable("the claim has an intent that is being committed".to_owned()),
                ),
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
        let tracked = TrackedIntent {
            intent: Arc::clone(intent),
            seen_at: Instant::now(),
            shard: index,
            size,
            durable: false,
            recovered: false,
        };
        state.intents.insert(intent.claim_uid.clone(), tracked);
        drop(guard);
        self.inner.changes_pending.notify_one();
        Ok(receiver)
    }

    /// Queues a replacement and returns the receiver of its result.
    fn enqueue_replacement(
        &self,
        current: &Intent,
        new: Arc<Intent>,
        json: String,
        size: usize,
    ) -> Result<WriteReceiver, JournalError> {
        let (waiter, receiver) = oneshot::channel();
        let mut guard = self.inner.state.lock();
        let state = &mut *guard;
        if state.closed {
            return Err(JournalError::Closed);
        }
        let total = state.intents.len();
        let tracked = state.intents.get_mut(&current.claim_uid);
        let Some(tracked) = tracked.filter(|tracked| tracked.durable && *tracked.intent == *current) else {
            return Err(replaced_meanwhile());
        };
        let Some(shard) = state.shards.get_mut(tracked.shard) else { return Err(replaced_meanwhile()) };
        if shard.pending_changes.contains_key(&current.claim_uid) {
            return Err(replaced_meanwhile());
        }
        let bytes = shard.bytes.saturating_sub(tracked.size).saturating_add(size);
        if size > tracked.size && bytes > MAX_SHARD_BYTES {
            return Err(JournalError::Full(total));
        }
        shard.bytes = bytes;
        let current_size = std::mem::replace(&mut tracked.size, size);
        let current = Arc::clone(&tracked.intent);
        let replacement = Replacement { json, current, new, current_size, waiter };
        let uid = replacement.current.claim_uid.clone();
        shard.pending_changes.insert(uid, ShardChange::Replace(replacement));
        drop(guard);
        self.inner.changes_pending.notify_one();
        Ok(receiver)
    }

    fn pending_kind(&self) -> PendingKind {
        let state = self.inner.state.lock();
        let mut pending = PendingKind::None;
        for change in state.shards.iter().flat_map(|shard| shard.pending_changes.values()) {
            match change {
                ShardChange::Put { .. } | ShardChange::Replace(_) => return PendingKind::Puts,
                ShardChange::Remove(_) => pending = PendingKind::RemovalsOnly,
            }
        }
        if state.shards.iter().any(|shard| !shard.used_confirmations.is_empty()) {
            pending = PendingKind::RemovalsOnly;
        }
        pending
    }

    /// Commits all shards with changes. Returns `false` if a removal must be retried.
    async fn commit(&self) -> bool {
        let mut is_complete = true;
        for index in 0..SHARD_COUNT {
            is_complete &= self.commit_shard(index).await;
        }
        is_complete
    }

    async fn commit_shard(&self, index: usize) -> bool {
        let mut batch = self.take_changes(index);
        for _ in 0..MAX_COMMIT_ATTEMPTS {
            if batch.is_empty() && !self.has_used_confirmations(index) {
                return true;
            }
            if !self.is_loaded(index)
                && let Err(error) = self.read_shard(index, &mut batch).await
            {
                return self.requeue_failed(index, batch, &error);
            }
            self.answer_puts_of_durable_intents(&mut batch);
            self.reject_puts_if_taken(&mut batch);
            self.reject_outdated_replacements(&mut batch);
            if batch.is_empty() && !self.has_used_confirmations(index) {
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

    fn has_used_confirmations(&self, index: usize) -> bool {
        let state = self.inner.state.lock();
        state.shards.get(index).is_some_and(|shard| !shard.used_confirmations.is_empty())
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

    /// Answers replacements of intents that another process has replaced or removed.
    fn reject_outdated_replacements(&self, batch: &mut BTreeMap<Uid, ShardChange>) {
        let state = self.inner.state.lock();
        let is_outdated = |uid: &Uid, change: &mut ShardChange| match change {
            ShardChange::Replace(replacement) => {
                let tracked = state.intents.get(uid);
                tracked.is_none_or(|tracked| *tracked.intent != *replacement.current)
            }
            ShardChange::Put { .. } | ShardChange::Remove(_) => false,
        };
        for (_, change) in batch.extract_if(.., is_outdated) {
            if let ShardChange::Replace(replacement) = change {
                let _ = replacement.waiter.send(Err(replaced_meanwhile()));
            }
        }
    }

    /// Rejects puts and replacements after another process has taken the journal. Removals remain: they apply
    /// only to the intent that they name.
    fn reject_puts_if_taken(&self, batch: &mut BTreeMap<Uid, ShardChange>) {
        let mut state = self.inner.state.lock();
        let Some(owner) = state.ownership.rival().map(str::to_owned) else { return };
        let is_new_request = |_: &Uid, change: &mut ShardChange| !matches!(change, ShardChange::Remove(_));
        for (uid, change) in batch.extract_if(.., is_new_request) {
            let taken = || Err(JournalError::Taken(owner.clone()));
            match change {
                ShardChange::Put { waiters, .. } => {
                    state.remove_intent(&uid);
                    for waiter in waiters {
                        let _ = waiter.send(taken());
                    }
                }
                ShardChange::Replace(replacement) => {
                    let _ = replacement.waiter.send(taken());
                }
                ShardChange::Remove(_) => {}
            }
        }
    }

    async fn write_shard(&self, index: usize, batch: &BTreeMap<Uid, ShardChange>) -> Result<(), ApiError> {
        let name = self.shard_name(index);
        let (version, used_confirmations) = {
            let state = self.inner.state.lock();
            let shard = state.shards.get(index);
            let used = shard.map(|shard| shard.used_confirmations.clone()).unwrap_or_default();
            (shard.and_then(|shard| shard.version), used)
        };
        let data: serde_json::Map<String, Value> = batch
            .iter()
            .filter_map(|(uid, change)| match (change, version) {
                (ShardChange::Put { json, .. } | ShardChange::Replace(Replacement { json, .. }), _) => {
                    Some((uid.as_str().to_owned(), json!(json)))
                }
                (ShardChange::Remove(_), Some(_)) => Some((uid.as_str().to_owned(), Value::Null)),
                // The ConfigMap does not exist, so there is nothing to remove.
                (ShardChange::Remove(_), None) => None,
            })
            .collect();
        if data.is_empty() && (version.is_none() || used_confirmations.is_empty()) {
            // Without a ConfigMap there is no annotation either.
            if let Some(shard) = self.inner.state.lock().shards.get_mut(index) {
                shard.used_confirmations.retain(|uid| !used_confirmations.contains(uid));
            }
            return Ok(());
        }
        let collection = format!("/api/v1/namespaces/{}/configmaps", self.inner.namespace);
        let response = match version {
            Some(version) => {
                let mut metadata = json!({"resourceVersion": version.to_string()});
                if let Some(metadata) = metadata.as_object_mut().filter(|_| !used_confirmations.is_empty()) {
                    let removed = used_confirmations.iter().map(|uid| (names::confirm_no_volume(uid), None));
                    let removed: BTreeMap<String, Option<Value>> = removed.collect();
                    metadata.insert("annotations".to_owned(), json!(removed));
                }
                let body = json!({"metadata": metadata, "data": data});
                let path = format!("{collection}/{name}");
                self.inner.writer.api().send_json_for_version(Method::PATCH, &path, &body, &name).await
            }
            None => {
                let metadata = self.metadata(&name);
                let body =
                    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
                self.inner.writer.api().send_json_for_version(Method::POST, &collection, &body, &name).await
            }
        }?;
        self.inner.metrics.journal_commit();
        self.set_written_version(index, response);
        if let Some(shard) = self.inner.state.lock().shards.get_mut(index) {
            shard.used_confirmations.retain(|uid| !used_confirmations.contains(uid));
        }
        Ok(())
    }

    /// Records the version of a write of a shard.
    fn set_written_version(&self, index: usize, version: ResourceVersion) {
        let mut state = self.inner.state.lock();
        if index == 0 {
            state.written_at = Some(Instant::now());
        }
        if let Some(shard) = state.shards.get_mut(index) {
            // A recreated shard can reveal a restore, too.
            self.inner.writer.cache().restore_detector.report_if_older(
                CONFIG_MAP.kind,
                shard.highest_version,
                version,
            );
            shard.version = Some(version);
            shard.highest_version = shard.highest_version.max(version);
            shard.config_map_missing = false;
        }
    }

    /// Metadata of a new ConfigMap.
    fn metadata(&self, name: &str) -> Value {
        let mut metadata = json!({
            "name": name,
            "namespace": self.inner.namespace,
            "labels": {
                "app.kubernetes.io/managed-by": "cofferdam",
                JOURNAL_LABEL: JOURNAL_LABEL_VALUE,
            },
        });
        if let (Some(node), Some(metadata)) = (&self.inner.node, metadata.as_object_mut()) {
            metadata.insert("annotations".to_owned(), json!({NODE_ANNOTATION: node}));
        }
        metadata
    }

    fn complete_puts(&self, batch: BTreeMap<Uid, ShardChange>) {
        let mut state = self.inner.state.lock();
        for (uid, change) in batch {
            let Some(tracked) = state.intents.get_mut(&uid) else { continue };
            match change {
                ShardChange::Put { waiters: waiting, .. } => {
                    tracked.durable = true;
                    for sender in waiting {
                        let _ = sender.send(Ok(Arc::clone(&tracked.intent)));
                    }
                }
                ShardChange::Replace(Replacement { new, waiter, .. }) => {
                    tracked.intent = Arc::clone(&new);
                    let _ = waiter.send(Ok(new));
                }
                ShardChange::Remove(_) => {}
            }
        }
        drop(state);
    }

    /// After a failed commit, answers the puts with the error and requeues the removals. Returns `true` if
    /// there is no removal to retry.
    fn requeue_failed(&self, index: usize, batch: BTreeMap<Uid, ShardChange>, error: &ApiError) -> bool {
        let error_for_puts = journal_error(error);
        // The write may have taken effect, so read the shard again.
        self.invalidate(index);
        let mut is_complete = !self.has_used_confirmations(index);
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
                ShardChange::Replace(replacement) => {
                    state.restore_size(&uid, &replacement);
                    let _ = replacement.waiter.send(Err(error_for_puts.clone()));
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
            #[serde(default)]
            uid: Box<str>,
            #[serde(default)]
            annotations: Option<HashMap<String, String>>,
        }
        let name = self.shard_name(index);
        let path = format!("/api/v1/namespaces/{}/configmaps/{name}", self.inner.namespace);
        let highest_seen =
            self.inner.state.lock().shards.get(index).map(|shard| shard.highest_version).unwrap_or_default();
        let response = match self.inner.writer.api().read(&path, &name).await {
            Ok(response) => response,
            Err(ApiError::NotFound(_)) => {
                if index == 0 {
                    self.observe_owner(None, highest_seen);
                }
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let map: ConfigMap =
            serde_json::from_str(&response).map_err(|error| ApiError::invalid_response(&name, error))?;
        let version = map.metadata.resource_version.parse();
        let version = version.map_err(|error| ApiError::invalid_response(&name, error))?;
        self.inner.writer.cache().restore_detector.report_if_older(CONFIG_MAP.kind, highest_seen, version);
        let Meta { uid, annotations, .. } = map.metadata;
        let annotations = annotations.unwrap_or_default();
        if index == 0 {
            self.observe_owner(annotations.get(OWNER).map(String::as_str), version);
        }
        Ok(Some(ShardContents { version, uid: Uid::from(&*uid), annotations, data: map.data }))
    }

    /// Updates the ownership after a read of the first ConfigMap, and logs a loss once.
    fn observe_owner(&self, owner: Option<&str>, version: ResourceVersion) {
        if self.inner.state.lock().ownership.observe(owner, version) {
            tracing::warn!(
                driver = %self.inner.driver,
                owner,
                "another process has taken the intent journal; this process sends no \
                 CreateVolume request until the other one has changed nothing for a minute"
            );
        }
        self.report_ownership();
    }

    /// Reads a shard. Intents with a removal in `batch` are ignored. A removal of another intent than the one
    /// in the ConfigMap is dropped.
    async fn read_shard(&self, index: usize, batch: &mut BTreeMap<Uid, ShardChange>) -> Result<(), ApiError> {
        let contents = self.fetch_shard(index).await?;
        self.apply_shard(index, contents, batch);
        Ok(())
    }

    /// As [`Journal::read_shard`], after the read. `None` if the ConfigMap does not exist.
    fn apply_shard(
        &self,
        index: usize,
        contents: Option<ShardContents>,
        batch: &mut BTreeMap<Uid, ShardChange>,
    ) {
        let name = self.shard_name(index);
        let Some(ShardContents { version, data, .. }) = contents else {
            if let Some(shard) = self.inner.state.lock().shards.get_mut(index) {
                shard.version = None;
                shard.config_map_missing = true;
            }
            return;
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
    }

    /// Rejects changes of an undecodable intent, which must be neither overwritten nor removed.
    fn reject_changes_of_undecodable(&self, uid: Uid, index: usize, batch: &mut BTreeMap<Uid, ShardChange>) {
        let mut state = self.inner.state.lock();
        let queued = state.shards.get_mut(index).and_then(|shard| shard.pending_changes.remove(&uid));
        for change in batch.remove(&uid).into_iter().chain(queued) {
            let waiting = match change {
                ShardChange::Put { waiters, .. } => waiters,
                ShardChange::Replace(replacement) => vec![replacement.waiter],
                ShardChange::Remove(_) => Vec::new(),
            };
            for sender in waiting {
                let _ = sender.send(Err(JournalError::Refused(UNDECODABLE_INTENT.to_owned())));
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
        if intent.mended.as_ref().is_some_and(|mended| !is_mended_request_of(&intent, mended)) {
            return Err(InvalidIntent::Mended);
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
            let tracked = TrackedIntent {
                intent: Arc::new(intent),
                seen_at: Instant::now(),
                shard: index,
                size,
                durable: true,
                recovered: true,
            };
            state.intents.insert(uid.clone(), tracked);
            state.recovered.push(uid);
        }
        drop(guard);
        self.inner.intents_recovered.notify_one();
    }

    fn shard_name(&self, index: usize) -> String {
        let Inner { driver, node, .. } = &*self.inner;
        match node {
            None => format!("{NAME_PREFIX}{driver}-{index}"),
            // A digest, because both names together can exceed the length limit. The node's name is in an
            // annotation.
            Some(node) => format!("{NAME_PREFIX}{driver}.{}-{index}", node_digest(node.as_str())),
        }
    }
}

fn node_digest(node: &str) -> String {
    format!("{:0NODE_DIGEST_LENGTH$x}", fnv1a(node))
}

/// Returns the driver of a ConfigMap with the label of journals, by its name. `None` if the name is not
/// that of a journal's ConfigMap. `annotations` are those of the ConfigMap: they have the node of a node's
/// journal.
pub fn driver_of_config_map(name: &str, annotations: &BTreeMap<String, String>) -> Option<DriverName> {
    let (journal, shard) = name.strip_prefix(NAME_PREFIX)?.rsplit_once('-')?;
    shard.parse::<usize>().ok().filter(|shard| *shard < SHARD_COUNT)?;
    let driver = match annotations.get(NODE_ANNOTATION) {
        Some(node) => journal.strip_suffix(&format!(".{}", node_digest(node)))?,
        None => journal,
    };
    (!driver.is_empty()).then(|| driver.into())
}

/// The JSON of an intent, and its size in a ConfigMap with its key.
fn encode(intent: &Intent) -> Result<(String, usize), JournalError> {
    let json = serde_json::to_string(intent).map_err(|error| JournalError::Refused(error.to_string()))?;
    let size = json.len() + intent.claim_uid.as_str().len();
    if size > MAX_SHARD_BYTES {
        return Err(JournalError::Refused(format!(
            "the request has {size} bytes: a journal shard holds at most {MAX_SHARD_BYTES}"
        )));
    }
    Ok((json, size))
}

/// Returns true if `mended` may be the mended request of `intent`.
fn is_mended_request_of(intent: &Intent, mended: &Intent) -> bool {
    (&intent.claim_uid, &intent.driver, &intent.request.name)
        == (&mended.claim_uid, &mended.driver, &mended.request.name)
        && mended.mended.is_none()
}

fn replaced_meanwhile() -> JournalError {
    JournalError::Unavailable("the claim's intent was changed or removed meanwhile".to_owned())
}

/// The error of a put whose read or write failed.
fn journal_error(error: &ApiError) -> JournalError {
    match error {
        ApiError::Refused { .. } => JournalError::Refused(error.to_string()),
        ApiError::Conflict(_)
        | ApiError::NotFound(_)
        | ApiError::AlreadyExists(_)
        | ApiError::Unavailable { .. }
        | ApiError::InvalidResponse { .. } => JournalError::Unavailable(error.to_string()),
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
