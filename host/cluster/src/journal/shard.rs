//! Reads of a journal's ConfigMaps (shards), and their merge into memory.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use cofferdam_domain::{ClaimKey, Uid, VolumeName, ids::ResourceVersion, names, storage::ContentSource};
use futures::future::try_join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    config_map::{
        CONFIG_MAP, FORMAT, FORMAT_ANNOTATION, JOURNAL_LABEL, JOURNAL_LABEL_VALUE, NODE_ANNOTATION,
        SHARD_COUNT, shard_name,
    },
    error::JournalError,
    foreign_change::ForeignChange,
    intent::{Intent, InvalidIntent, validate},
    ownership::{EPOCH, OWNER, OwnerAnnotations, Ownership, SHARDS},
    state::{Journal, ShardChange, TrackedIntent},
};
use crate::{api::ApiError, events::ObjectReference};

/// Error for a claim with an undecodable intent.
pub(super) const UNDECODABLE_INTENT: &str =
    "the journal has an intent for this claim that this version cannot decode";

/// Error for an intent without a ConfigMap of this version's format.
pub(super) const OTHER_FORMAT: &str = "the journal's ConfigMaps have a format that this version cannot write";

/// Time in which the API server may apply a write whose result is unknown: twice the timeout of a request.
const LATE_WRITE_PERIOD: Duration = Duration::from_secs(60);

/// An intent's entry in its ConfigMap, from a live read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// The ConfigMap.
    pub config_map: ObjectReference,
    /// Value of the annotation [`names::confirm_no_volume`] of the claim: the reason why an operator confirms
    /// that the driver has no volume for the intent. `None` without the annotation.
    pub confirmation: Option<String>,
}

/// The sources of the volumes that a journal's intents request.
#[derive(Clone, Debug, Default)]
pub struct RequestedSources {
    claims: HashMap<ContentSource, ClaimKey>,
    /// Uid of the claim of an intent that cannot be decoded, if there is one: its volume may have any source.
    pub undecodable: Option<Uid>,
}

impl RequestedSources {
    /// A claim whose volume has this source; `None` if there is none.
    pub fn claim_with_source(&self, source: &ContentSource) -> Option<&ClaimKey> {
        self.claims.get(source)
    }

    fn add(&mut self, intent: &Intent) {
        for source in intent.requests().filter_map(|request| request.request.source.as_ref()) {
            self.claims.insert(source.clone(), intent.claim.clone());
        }
    }
}

/// A shard's ConfigMap.
pub(super) struct ShardContents {
    pub(super) version: ResourceVersion,
    pub(super) uid: Uid,
    pub(super) annotations: HashMap<String, String>,
    pub(super) data: HashMap<String, String>,
}

impl Journal {
    /// Reads every ConfigMap of the journal.
    ///
    /// # Errors
    /// [`ApiError`] of the first failed read.
    pub async fn load(&self) -> Result<(), ApiError> {
        let reads = (0..SHARD_COUNT).map(|index| self.fetch_shard(index));
        for (index, contents) in try_join_all(reads).await?.into_iter().enumerate() {
            self.apply_shard(index, contents, &mut BTreeMap::new());
        }
        Ok(())
    }

    /// Reads the ConfigMap of a claim's intent. `None` if there is no intent, or no ConfigMap.
    ///
    /// # Errors
    /// [`ApiError`] of the read.
    pub async fn read_entry(&self, uid: &Uid) -> Result<Option<JournalEntry>, ApiError> {
        let shard = self.inner.state.lock().intents.get(uid).map(|tracked| tracked.shard);
        let Some(index) = shard else { return Ok(None) };
        let Some(mut contents) = self.fetch_shard(index).await? else { return Ok(None) };
        let config_map = self.reference(index, contents.uid.clone(), contents.version);
        let confirmation = contents.annotations.remove(&names::confirm_no_volume(uid));
        Ok(Some(JournalEntry { config_map, confirmation }))
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
            if data.contains_key(&claim.to_string()) || data.values().any(has_volume_name) {
                return Ok(true);
            }
        }
        Ok(self.has_intent_for(claim, volume))
    }

    /// Reads the sources of the volumes that the intents request, from the ConfigMaps, which another process
    /// may have written, and from memory.
    ///
    /// # Errors
    /// [`ApiError`] of the first failed read.
    pub async fn sources_live(&self) -> Result<RequestedSources, ApiError> {
        let shards = try_join_all((0..SHARD_COUNT).map(|shard| self.fetch_shard(shard))).await?;
        let mut requested = RequestedSources::default();
        for (uid, json) in shards.into_iter().flatten().flat_map(|shard| shard.data) {
            match serde_json::from_str::<Intent>(&json) {
                Ok(intent) => requested.add(&intent),
                Err(_) => requested.undecodable = Some(uid.into()),
            }
        }
        let state = self.inner.state.lock();
        state.intents.values().for_each(|tracked| requested.add(&tracked.intent));
        Ok(requested)
    }

    /// Reads the ConfigMap of a shard. Returns `None` if it does not exist.
    pub(super) async fn fetch_shard(&self, index: usize) -> Result<Option<ShardContents>, ApiError> {
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
                self.observe_owner(index, OwnerAnnotations::default(), highest_seen);
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
            let announced = annotations.get(SHARDS).and_then(|count| count.parse::<usize>().ok());
            self.inner.state.lock().announced_shards = announced.unwrap_or_default();
        }
        let contents = ShardContents { version, uid: Uid::from(&*uid), annotations, data: map.data };
        let annotation = |name| contents.annotations.get(name).map(String::as_str);
        let found = OwnerAnnotations { owner: annotation(OWNER), epoch: annotation(EPOCH) };
        if self.observe_owner(index, found, version) {
            self.emit_loss(index, &contents);
        }
        Ok(Some(contents))
    }

    /// Updates the ownership after a read of a ConfigMap, and logs a loss once. Returns true if the journal
    /// was lost.
    fn observe_owner(&self, index: usize, found: OwnerAnnotations<'_>, version: ResourceVersion) -> bool {
        let (is_lost, loss) = {
            let mut state = self.inner.state.lock();
            let is_lost = state.ownership.observe(index, found, version);
            state.is_rival_idle &= !is_lost;
            (is_lost, state.ownership.loss().cloned())
        };
        if let Some(loss) = loss.filter(|_| is_lost) {
            tracing::warn!(
                "{loss} of driver {}; this process sends no CreateVolume request until the journal has not \
                 changed for a minute",
                self.inner.driver
            );
        }
        self.report_ownership();
        is_lost
    }

    /// Emits the event of a loss on the ConfigMap that names the new owner.
    fn emit_loss(&self, index: usize, contents: &ShardContents) {
        let config_map = self.reference(index, contents.uid.clone(), contents.version);
        let state = self.inner.state.lock();
        if let (Some(reports), Some(loss)) = (&state.reports, state.ownership.loss()) {
            reports.emit_loss(config_map, &self.inner.driver, loss);
        }
    }

    /// The ConfigMap as the object of events.
    fn reference(&self, index: usize, uid: Uid, resource_version: ResourceVersion) -> ObjectReference {
        ObjectReference {
            resource: CONFIG_MAP,
            namespace: self.inner.namespace.as_str().into(),
            name: self.shard_name(index).into(),
            uid,
            resource_version,
        }
    }

    pub(super) fn report_ownership(&self) {
        let state = self.inner.state.lock();
        let loss = state.ownership.loss().filter(|_| !state.is_rival_idle);
        self.inner.metrics.set_journal_owned(&self.inner.driver, loss.is_none());
        if let Some(reports) = &state.reports {
            reports.set_loss(&self.inner.driver, loss);
        }
    }

    /// Reads a shard. Intents with a removal in `batch` are ignored. A removal of another intent than the one
    /// in the ConfigMap is dropped. The owner reports a change that does not take the journal: no other
    /// process writes its ConfigMaps.
    pub(super) async fn read_shard(
        &self,
        index: usize,
        batch: &mut BTreeMap<Uid, ShardChange>,
    ) -> Result<(), ApiError> {
        let was_owner = matches!(self.inner.state.lock().ownership, Ownership::Owned { .. });
        let contents = self.fetch_shard(index).await?;
        if was_owner && self.loss().is_none() {
            self.report_foreign_change(index, contents.as_ref(), batch);
        }
        self.apply_shard(index, contents, batch);
        Ok(())
    }

    fn report_foreign_change(
        &self,
        index: usize,
        contents: Option<&ShardContents>,
        batch: &BTreeMap<Uid, ShardChange>,
    ) {
        let mut state = self.inner.state.lock();
        let Some(shard) = state.shards.get(index) else { return };
        let highest_version = shard.highest_version;
        let own_writes = shard.unknown_writes.as_ref().filter(|(_, at)| at.elapsed() < LATE_WRITE_PERIOD);
        let has_own_writes = own_writes.is_some();
        let is_unchanged = match contents {
            Some(contents) => contents.version <= highest_version,
            // It has not been created yet.
            None => highest_version == ResourceVersion::default(),
        };
        if is_unchanged {
            return;
        }
        let own_writes = own_writes.map(|(uids, _)| uids.clone()).unwrap_or_default();
        let data = contents.map(|contents| &contents.data);
        let change = ForeignChange::find(&mut state, index, data, batch, &own_writes);
        let (driver, config_map) = (&self.inner.driver, self.shard_name(index));
        if change.is_empty() {
            if contents.is_none() {
                tracing::warn!(%driver, config_map, "another client has deleted a ConfigMap of the intent journal");
            } else if !has_own_writes {
                tracing::info!(%driver, config_map, "another client has changed metadata of the intent journal");
            }
            return;
        }
        tracing::warn!(%driver, config_map, %change, "another client has changed the intent journal");
        if let Some(reports) = &state.reports {
            // A ConfigMap that is gone has no uid any more.
            let uid = contents.map(|contents| contents.uid.clone()).unwrap_or_else(|| "".into());
            let version = contents.map_or(highest_version, |contents| contents.version);
            reports.emit_foreign_change(self.reference(index, uid, version), driver, &change.to_string());
        }
    }

    /// Notes that the API server may still apply a write of these claims' intents.
    pub(super) fn note_unknown_write<'a>(&self, index: usize, uids: impl Iterator<Item = &'a Uid>) {
        if let Some(shard) = self.inner.state.lock().shards.get_mut(index) {
            let (known, at) = shard.unknown_writes.get_or_insert_with(|| (BTreeSet::new(), Instant::now()));
            if at.elapsed() >= LATE_WRITE_PERIOD {
                known.clear();
            }
            known.extend(uids.cloned());
            *at = Instant::now();
        }
    }

    /// As [`Journal::read_shard`], after the read. `None` if the ConfigMap does not exist.
    pub(super) fn apply_shard(
        &self,
        index: usize,
        contents: Option<ShardContents>,
        batch: &mut BTreeMap<Uid, ShardChange>,
    ) {
        let name = self.shard_name(index);
        let Some(contents) = contents else {
            if let Some(shard) = self.inner.state.lock().shards.get_mut(index) {
                shard.version = None;
                shard.config_map_missing = true;
                shard.is_other_format = false;
            }
            return;
        };
        let is_other_format = self.is_other_format(&name, &contents);
        if let Some(shard) = self.inner.state.lock().shards.get_mut(index) {
            shard.is_other_format = is_other_format;
        }
        let ShardContents { version, data, .. } = contents;
        if is_other_format {
            self.merge_intents(index, version, Vec::new());
            for uid in data.into_keys() {
                self.reject_changes_of_undecodable(Uid::from(uid), index, batch);
            }
            return;
        }
        let mut undecodable = Vec::new();
        let intents = data.into_iter().filter_map(|(uid, json)| {
            let intent = serde_json::from_str::<Intent>(&json).map_err(InvalidIntent::from);
            match intent
                .and_then(|intent| validate(&uid, intent, &self.inner.driver, self.inner.node.as_ref()))
            {
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

    /// Returns `true` if a newer version has written the ConfigMap in a format that this version does not
    /// know, and logs it.
    fn is_other_format(&self, name: &str, contents: &ShardContents) -> bool {
        let Some(format) = contents.annotations.get(FORMAT_ANNOTATION) else { return false };
        let is_other = format.parse() != Ok(FORMAT);
        if is_other {
            tracing::error!(
                config_map = name,
                intents = contents.data.len(),
                "annotation {FORMAT_ANNOTATION} is {format:?}: this version reads format {FORMAT}; the \
                 intents are kept, and a version that reads this format completes them"
            );
        }
        is_other
    }

    /// Rejects new intents for the shard if its ConfigMap has another format.
    pub(super) fn reject_puts_of_other_format(&self, index: usize, batch: &mut BTreeMap<Uid, ShardChange>) {
        if !self.has_other_format(index) {
            return;
        }
        let mut state = self.inner.state.lock();
        let is_put = |_: &Uid, change: &mut ShardChange| matches!(change, ShardChange::Put { .. });
        for (uid, change) in batch.extract_if(.., is_put) {
            state.remove_intent(&uid);
            if let ShardChange::Put { waiters, .. } = change {
                for waiter in waiters {
                    let _ = waiter.send(Err(JournalError::Unavailable(OTHER_FORMAT.to_owned())));
                }
            }
        }
    }

    /// Rejects changes of an undecodable intent, which must be neither overwritten nor removed.
    pub(super) fn reject_changes_of_undecodable(
        &self,
        uid: Uid,
        index: usize,
        batch: &mut BTreeMap<Uid, ShardChange>,
    ) {
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

    pub(super) fn merge_intents(
        &self,
        index: usize,
        version: ResourceVersion,
        intents: Vec<(usize, Intent)>,
    ) {
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
                tracked
                    if tracked.is_none_or(|tracked| !tracked.durable)
                        && retain_removal_of(&mut shard.pending_changes, &intent) =>
                {
                    continue;
                }
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
                is_removal_reported: false,
            };
            state.intents.insert(uid.clone(), tracked);
            state.recovered.push(uid);
        }
        drop(guard);
        self.inner.intents_recovered.notify_one();
    }

    /// Removes durable intents from memory that another process has removed from the shard's ConfigMap.
    pub(super) fn forget_removed_intents(&self, index: usize, contents: Option<&ShardContents>) {
        let mut state = self.inner.state.lock();
        let highest = state.shards.get(index).map(|shard| shard.highest_version).unwrap_or_default();
        if contents.is_some_and(|contents| contents.version < highest) {
            return;
        }
        let is_stored =
            |uid: &Uid| contents.is_some_and(|contents| contents.data.contains_key(&uid.to_string()));
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

    pub(super) fn is_loaded(&self, index: usize) -> bool {
        self.inner
            .state
            .lock()
            .shards
            .get(index)
            .is_some_and(|shard| shard.version.is_some() || shard.config_map_missing)
    }

    pub(super) fn has_config_map(&self, index: usize) -> bool {
        self.inner.state.lock().shards.get(index).is_some_and(|shard| shard.version.is_some())
    }

    /// Returns `true` if the shard's ConfigMap has a format that this version does not know.
    pub(super) fn has_other_format(&self, index: usize) -> bool {
        self.inner.state.lock().shards.get(index).is_some_and(|shard| shard.is_other_format)
    }

    pub(super) fn invalidate(&self, index: usize) {
        if let Some(shard) = self.inner.state.lock().shards.get_mut(index) {
            shard.version = None;
            shard.config_map_missing = false;
        }
    }

    /// Records the version of a write of a shard.
    pub(super) fn set_written_version(&self, index: usize, version: ResourceVersion) {
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
    pub(super) fn metadata(&self, name: &str, annotations: &BTreeMap<&str, String>) -> Value {
        let mut annotations = annotations.clone();
        annotations.insert(FORMAT_ANNOTATION, FORMAT.to_string());
        if let Some(node) = &self.inner.node {
            annotations.insert(NODE_ANNOTATION, node.as_str().to_owned());
        }
        json!({
            "name": name,
            "namespace": self.inner.namespace,
            "labels": {
                "app.kubernetes.io/managed-by": "cofferdam",
                JOURNAL_LABEL: JOURNAL_LABEL_VALUE,
            },
            "annotations": annotations,
        })
    }

    pub(super) fn shard_name(&self, index: usize) -> String {
        shard_name(&self.inner.driver, self.inner.node.as_ref(), index)
    }
}

/// Drops a pending removal of another intent of the claim. Returns `true` if a removal of this intent is
/// pending, or a put that overwrites it.
fn retain_removal_of(changes: &mut BTreeMap<Uid, ShardChange>, intent: &Intent) -> bool {
    let Some(change) = changes.get_mut(&intent.claim_uid) else { return false };
    if change.removed().is_some_and(|removed| **removed == *intent) {
        return true;
    }
    match change {
        ShardChange::Put { removed, .. } => *removed = None,
        ShardChange::Remove(_) => {
            changes.remove(&intent.claim_uid);
        }
        ShardChange::Replace(_) => {}
    }
    false
}
