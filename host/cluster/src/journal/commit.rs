//! Changes of the journal, and their group commit.

use std::{collections::BTreeMap, sync::Arc};

use cofferdam_domain::{Uid, VolumeHandle, names};
use http::Method;
use serde_json::{Value, json};
use tokio::{sync::oneshot, time::Instant};

use super::{
    config_map::SHARD_COUNT,
    error::{JournalError, journal_error, replaced_meanwhile},
    intent::{Intent, MAX_SHARD_BYTES, MAX_SHARD_INTENTS, encode},
    ownership::Ownership,
    shard::{OTHER_FORMAT, UNDECODABLE_INTENT},
    state::{Journal, Replacement, Shard, ShardChange, TrackedIntent, WriteReceiver},
};
use crate::api::ApiError;

/// Attempts of a shard's commit with conflicting writers, before puts get the error and removals are delayed.
pub(super) const MAX_COMMIT_ATTEMPTS: usize = 8;

/// The kinds of changes that are pending in all shards together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PendingKind {
    /// No change is pending.
    None,
    /// Only removals, of intents or annotations, are pending: they wait for a put to share its commit, at
    /// most for `FLUSH_DELAY`, or for `RETRY_DELAY` after a failure.
    RemovalsOnly,
    /// A put is pending: it is committed immediately.
    Puts,
}

impl Journal {
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

    /// Writes to the claim's durable intent that its volume `handle` is to be deleted, and returns the new intent.
    /// `None` if the claim has no durable intent with a request of `intent`: another process has removed it, or
    /// has written another one after this process had lost the journal.
    ///
    /// # Errors
    /// As [`Journal::replace`].
    pub async fn record_unneeded(
        &self,
        intent: &Intent,
        handle: &VolumeHandle,
    ) -> Result<Option<Arc<Intent>>, JournalError> {
        let current = self.get(&intent.claim_uid).filter(|current| current.shares_request_with(intent));
        let Some(current) = current else { return Ok(None) };
        self.replace(&current, intent.with_unneeded(handle)).await.map(Some)
    }

    /// Removes an intent: from memory at once, and from its ConfigMap with a later commit. `intent` may have one
    /// of its requests only, or name its volume as unneeded. An intent of the claim without a request of `intent`
    /// is kept: another process wrote it after this one had lost the journal, and may have sent its request.
    pub fn remove(&self, intent: &Intent) {
        self.remove_intent(intent, false);
    }

    /// As [`Journal::remove`], and also removes the annotation [`names::confirm_no_volume`], by which an
    /// operator requested the removal: it must not apply to a later intent of the claim. Returns `false` if the
    /// intent is kept.
    pub fn remove_confirmed(&self, intent: &Intent) -> bool {
        self.remove_intent(intent, true)
    }

    /// Returns `false` if the claim has no intent with a request of `intent`.
    fn remove_intent(&self, intent: &Intent, is_confirmed: bool) -> bool {
        let mut state = self.inner.state.lock();
        let uid = &intent.claim_uid;
        if !state.intents.get(uid).is_some_and(|tracked| tracked.intent.shares_request_with(intent)) {
            return false;
        }
        let Some(tracked) = state.remove_intent(uid) else { return false };
        if let Some(shard) = state.shards.get_mut(tracked.shard) {
            // A pending put has not written its intent: the earlier one is still in the ConfigMap.
            let removed = shard.pending_removal(uid).unwrap_or(tracked.intent);
            shard.pending_changes.insert(uid.clone(), ShardChange::Remove(removed));
            if is_confirmed {
                shard.used_confirmations.insert(uid.clone());
            }
        }
        drop(state);
        self.inner.changes_pending.notify_one();
        true
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
        state.check_share(intent, size)?;
        if state.shards.iter().all(|shard| shard.is_other_format) {
            return Err(JournalError::Refused(OTHER_FORMAT.to_owned()));
        }
        let has_room = |shard: &Shard| {
            !shard.is_other_format
                && shard.intent_count < MAX_SHARD_INTENTS
                && shard.bytes + size <= MAX_SHARD_BYTES
        };
        // A claim is not in two shards, also not after an uncertain write of one of them.
        let shard_of_claim = state.shards.iter().position(|shard| shard.may_have(&intent.claim_uid));
        let shard_index = shard_of_claim.or_else(|| state.shards.iter().position(has_room));
        let Some((index, shard)) = shard_index.and_then(|at| Some((at, state.shards.get_mut(at)?))) else {
            return Err(JournalError::Full(total));
        };
        shard.intent_count += 1;
        shard.bytes += size;
        let removed = shard.pending_removal(&intent.claim_uid);
        let put = ShardChange::Put { json, waiters: vec![sender], removed };
        shard.pending_changes.insert(intent.claim_uid.clone(), put);
        let tracked = TrackedIntent {
            intent: Arc::clone(intent),
            seen_at: Instant::now(),
            shard: index,
            size,
            durable: false,
            recovered: false,
            is_removal_reported: false,
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

    pub(super) fn pending_kind(&self) -> PendingKind {
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
    pub(super) async fn commit(&self) -> bool {
        // A take reads and writes the same ConfigMaps.
        let _taking = self.inner.taking.lock().await;
        let mut is_complete = true;
        for index in 0..SHARD_COUNT {
            is_complete &= self.commit_shard(index).await;
            if let Some(shard) = self.inner.state.lock().shards.get_mut(index) {
                shard.committing_removals.clear();
            }
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
            self.answer_puts_of_durable_intents(index, &mut batch);
            self.reject_changes_if_lost(&mut batch);
            self.reject_puts_of_other_format(index, &mut batch);
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
                Err(error) => {
                    if error.is_result_unknown() {
                        self.note_unknown_write(index, batch.keys());
                    }
                    return self.requeue_failed(index, batch, &error);
                }
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
        let mut state = self.inner.state.lock();
        let Some(shard) = state.shards.get_mut(index) else { return BTreeMap::new() };
        let changes = std::mem::take(&mut shard.pending_changes);
        let removals = changes.iter().filter(|(_, change)| change.removed().is_some());
        shard.committing_removals = removals.map(|(uid, _)| uid.clone()).collect();
        changes
    }

    /// Answers puts of claims that have a durable intent by now: one that a read found, for example because
    /// another process has written it. An intent that such a put would have overwritten in this shard is
    /// removed.
    fn answer_puts_of_durable_intents(&self, index: usize, batch: &mut BTreeMap<Uid, ShardChange>) {
        let state = self.inner.state.lock();
        batch.retain(|uid, change| {
            let tracked = state.intents.get(uid).filter(|tracked| tracked.durable);
            let (ShardChange::Put { waiters, removed, .. }, Some(tracked)) = (&mut *change, tracked) else {
                return true;
            };
            for sender in std::mem::take(waiters) {
                let _ = sender.send(Ok(Arc::clone(&tracked.intent)));
            }
            let removed = removed.take().filter(|_| tracked.shard != index);
            let has_removal = removed.is_some();
            if let Some(removed) = removed {
                *change = ShardChange::Remove(removed);
            }
            has_removal
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

    /// Rejects puts and replacements after this process has lost the journal, or after its first ConfigMap or
    /// the owner in it was removed. Drops removals after a loss: the process that has taken the journal has
    /// read the intents, and completes them.
    fn reject_changes_if_lost(&self, batch: &mut BTreeMap<Uid, ShardChange>) {
        let mut state = self.inner.state.lock();
        let error = match &state.ownership {
            Ownership::Lost(rival) => JournalError::Lost(rival.loss.clone()),
            Ownership::Unclaimed if state.has_owned => {
                JournalError::Unavailable("no process owns the intent journal any more".to_owned())
            }
            Ownership::Unclaimed | Ownership::Owned { .. } => return,
        };
        let is_lost = matches!(error, JournalError::Lost(_));
        if is_lost {
            state.shards.iter_mut().for_each(|shard| shard.used_confirmations.clear());
        }
        let is_rejected =
            |_: &Uid, change: &mut ShardChange| is_lost || !matches!(change, ShardChange::Remove(_));
        let mut removals = Vec::new();
        for (uid, change) in batch.extract_if(.., is_rejected) {
            let lost = || Err(error.clone());
            match change {
                ShardChange::Put { waiters, removed, .. } => {
                    state.remove_intent(&uid);
                    for waiter in waiters {
                        let _ = waiter.send(lost());
                    }
                    removals.extend(removed.filter(|_| !is_lost).map(|removed| (uid, removed)));
                }
                ShardChange::Replace(replacement) => {
                    let _ = replacement.waiter.send(lost());
                }
                ShardChange::Remove(_) => {}
            }
        }
        batch.extend(removals.into_iter().map(|(uid, removed)| (uid, ShardChange::Remove(removed))));
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
                    Some((uid.to_string(), json!(json)))
                }
                (ShardChange::Remove(_), Some(_)) => Some((uid.to_string(), Value::Null)),
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
                if index > 0 {
                    self.announce_shard(index).await?;
                }
                let metadata = self.metadata(&name, &self.own_annotations());
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
                ShardChange::Put { waiters: waiting, removed, .. } => {
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
                    if let Some(removed) = removed {
                        is_complete = false;
                        state.requeue_removal(index, uid, removed);
                    }
                }
                ShardChange::Replace(replacement) => {
                    state.restore_size(&uid, &replacement);
                    let _ = replacement.waiter.send(Err(error_for_puts.clone()));
                }
                ShardChange::Remove(removed) => {
                    is_complete = false;
                    state.requeue_removal(index, uid, removed);
                }
            }
        }
        drop(state);
        tracing::warn!(driver = %self.inner.driver, %error, "a commit of the intent journal failed");
        is_complete
    }
}
