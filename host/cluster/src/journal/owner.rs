//! Taking, renewing and watching the ownership of a journal, by the rules of `ownership.rs`.

use std::collections::BTreeMap;

use cofferdam_domain::ids::ResourceVersion;
use futures::future::try_join_all;
use http::Method;
use serde_json::json;
use tokio::time::Instant;

use super::{
    commit::MAX_COMMIT_ATTEMPTS,
    config_map::{FORMAT, FORMAT_ANNOTATION, JOURNAL_LABEL, JOURNAL_LABEL_VALUE, SHARD_COUNT},
    error::{JournalError, journal_error},
    ownership::{
        EPOCH, OWNER, OWNER_CHECK_INTERVAL, Ownership, RENEW_INTERVAL, RENEWALS, RETRY_TOLERANCE, SHARDS,
        Versions,
    },
    reports::JournalReports,
    shard::ShardContents,
    state::Journal,
};
use crate::{api::ApiError, leader_election::with_random_part};

impl Journal {
    /// Makes this process the owner of the journal, if no other process has taken it from this one. The first
    /// call reads and writes ConfigMaps. Call it before each request of an intent.
    ///
    /// Later calls of the owner read nothing, also before a repeated request. Such a read would cost a
    /// request per retry, and another process could take the journal right after it. Until this process
    /// notices the loss, it repeats only requests that were durable before. They are idempotent by name, and
    /// the reconciler handles a late response as it does after any loss.
    ///
    /// # Errors
    /// [`JournalError::Lost`]: try again after [`OWNER_CHECK_INTERVAL`]. [`JournalError::Unavailable`] and
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
    /// [`JournalError::Lost`]. The journal then knows that this process has work.
    fn is_owned(&self) -> Result<bool, JournalError> {
        let taken = {
            let mut state = self.inner.state.lock();
            match &state.ownership {
                Ownership::Owned { .. } => {
                    state.worked_at = Some(Instant::now());
                    return Ok(true);
                }
                Ownership::Unclaimed => return Ok(false),
                Ownership::Lost(rival) => {
                    let taken = JournalError::Lost(rival.loss.clone());
                    state.last_waited_at = Some(Instant::now());
                    state.is_rival_idle = false;
                    taken
                }
            }
        };
        self.report_ownership();
        Err(taken)
    }

    /// Writes a new owner to all ConfigMaps, after a read of all of them: another process may have written
    /// intents since the last one, and removed some of this process.
    async fn take(&self) -> Result<(), ApiError> {
        let owner = with_random_part(&self.inner.state.lock().identity);
        let mut conflict = None;
        for _ in 0..MAX_COMMIT_ATTEMPTS {
            let reads = (0..SHARD_COUNT).map(|index| self.fetch_shard(index));
            let contents = try_join_all(reads).await?;
            let epoch = self.next_epoch(&contents)?;
            // All of them first: another process may have moved an intent to a ConfigMap before its old one.
            for (index, contents) in contents.iter().enumerate() {
                self.forget_removed_intents(index, contents.as_ref());
            }
            for (index, contents) in contents.into_iter().enumerate() {
                self.apply_shard(index, contents, &mut BTreeMap::new());
            }
            match self.write_owner(&owner, epoch).await {
                Ok(since) => {
                    tracing::info!(driver = %self.inner.driver, owner, epoch, "took the intent journal");
                    self.inner.state.lock().worked_at = Some(Instant::now());
                    self.set_ownership(Ownership::Owned { owner, epoch, since });
                    return Ok(());
                }
                Err(error @ (ApiError::Conflict(_) | ApiError::NotFound(_) | ApiError::AlreadyExists(_))) => {
                    conflict = Some(error);
                }
                Err(error) => {
                    self.invalidate_all();
                    return Err(error);
                }
            }
        }
        self.invalidate_all();
        Err(conflict.unwrap_or_else(|| ApiError::Conflict(self.shard_name(0))))
    }

    /// One more than the highest epoch of the ConfigMaps.
    fn next_epoch(&self, shards: &[Option<ShardContents>]) -> Result<u64, ApiError> {
        let (mut highest, mut highest_index) = (0, 0);
        for (index, contents) in shards.iter().enumerate() {
            let Some(text) = contents.as_ref().and_then(|contents| contents.annotations.get(EPOCH)) else {
                continue;
            };
            match text.parse::<u64>() {
                Ok(epoch) if epoch > highest => (highest, highest_index) = (epoch, index),
                Ok(_) => {}
                // A number that does not fit is above every other one.
                Err(_) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                    (highest, highest_index) = (u64::MAX, index);
                }
                Err(_) => tracing::warn!(
                    config_map = %self.shard_name(index),
                    "annotation {EPOCH} is {text:?}, not a number; it is replaced"
                ),
            }
        }
        highest.checked_add(1).ok_or_else(|| {
            ApiError::invalid_response(
                &self.shard_name(highest_index),
                format!(
                    "annotation {EPOCH} is {highest} or more: expected a number below it, or no annotation"
                ),
            )
        })
    }

    /// Writes the owner and its epoch to all ConfigMaps that exist or are announced, the first one last: it
    /// makes the take effective. Returns the versions; zero for a ConfigMap that is neither.
    async fn write_owner(&self, owner: &str, epoch: u64) -> Result<Versions, ApiError> {
        let (epoch, format) = (epoch.to_string(), FORMAT.to_string());
        let annotations = [(OWNER, owner), (EPOCH, &epoch), (FORMAT_ANNOTATION, &format)];
        // A format that this version does not know stays.
        let annotations_of =
            |index: usize| if self.has_other_format(index) { &annotations[..2] } else { &annotations[..] };
        let announced = self.inner.state.lock().announced_shards;
        let others = (1..SHARD_COUNT).filter(|index| self.has_config_map(*index) || *index < announced);
        let writes = others.map(|index| async move {
            self.write_annotations(index, annotations_of(index)).await.map(|version| (index, version))
        });
        let mut written = try_join_all(writes).await?;
        written.push((0, self.write_annotations(0, annotations_of(0)).await?));
        let mut versions = Versions::default();
        for (index, version) in written {
            if let Some(slot) = versions.get_mut(index) {
                *slot = version;
            }
        }
        Ok(versions)
    }

    /// The annotations of a ConfigMap that this process creates as the owner; empty without ownership.
    pub(super) fn own_annotations(&self) -> BTreeMap<&'static str, String> {
        match &self.inner.state.lock().ownership {
            Ownership::Owned { owner, epoch, .. } => {
                BTreeMap::from([(OWNER, owner.clone()), (EPOCH, epoch.to_string())])
            }
            Ownership::Unclaimed | Ownership::Lost(_) => BTreeMap::new(),
        }
    }

    fn invalidate_all(&self) {
        (0..SHARD_COUNT).for_each(|index| self.invalidate(index));
    }

    /// Announces in the first ConfigMap that the ConfigMap `index` is about to be created. The write fails if
    /// another process has taken the journal.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] also if the first ConfigMap had to be read again.
    pub(super) async fn announce_shard(&self, index: usize) -> Result<(), ApiError> {
        if !self.is_loaded(0) {
            self.read_shard(0, &mut BTreeMap::new()).await?;
            // The batch is checked again for an owner that this read has found.
            return Err(ApiError::Conflict(self.shard_name(0)));
        }
        let count = index.saturating_add(1);
        if self.inner.state.lock().announced_shards >= count {
            return Ok(());
        }
        let written = self.write_annotations(0, &[(SHARDS, &count.to_string())]).await;
        match written {
            Ok(_) => self.inner.state.lock().announced_shards = count,
            Err(_) => self.invalidate(0),
        }
        written.map(drop)
    }

    /// The same journal with receivers of reports.
    #[must_use]
    pub fn with_reports(self, reports: JournalReports) -> Self {
        self.inner.state.lock().reports = Some(reports);
        // A journal before this one, of an earlier cache of the process, may have been lost.
        self.report_ownership();
        self
    }

    fn set_ownership(&self, ownership: Ownership) {
        let mut state = self.inner.state.lock();
        state.has_owned |= matches!(ownership, Ownership::Owned { .. });
        state.is_rival_idle = false;
        state.ownership = ownership;
        drop(state);
        self.report_ownership();
        // The loop of `run` renews, or reads the owner.
        self.inner.changes_pending.notify_one();
    }

    /// Time of the next [`Journal::check_ownership`]; `None` if none is needed. `last` is that of the last
    /// one.
    pub(super) fn next_ownership_check(&self, last: Instant) -> Option<Instant> {
        let state = self.inner.state.lock();
        match &state.ownership {
            Ownership::Unclaimed => None,
            Ownership::Lost(_) => Some(last + OWNER_CHECK_INTERVAL),
            Ownership::Owned { .. } => {
                let retries_until = state.retry_interval_max.saturating_add(RETRY_TOLERANCE);
                // A rival must not take the journal between two retries of claims whose requests fail.
                let is_retrying = state.worked_at.is_some_and(|worked| worked.elapsed() < retries_until);
                let written_at = state.written_at.unwrap_or(last);
                (is_retrying || !state.intents.is_empty()).then(|| last.max(written_at) + RENEW_INTERVAL)
            }
        }
    }

    /// As the owner, renews; after a loss, reads the owner, and takes the journal back if it may. Errors are
    /// logged, and the next check follows.
    pub(super) async fn check_ownership(&self) {
        let is_lost = self.loss().is_some();
        let result = if is_lost { self.check_rival().await } else { self.renew().await };
        if let Err(error) = result {
            tracing::warn!(driver = %self.inner.driver, %error, "cannot check the journal's owner");
        }
    }

    async fn check_rival(&self) -> Result<(), ApiError> {
        let mut contents = vec![self.fetch_shard(0).await?];
        let announced = self.inner.state.lock().announced_shards;
        let others = (1..SHARD_COUNT).filter(|index| self.has_config_map(*index) || *index < announced);
        contents.extend(try_join_all(others.map(|index| self.fetch_shard(index))).await?);
        let has_intents = contents.iter().flatten().any(|contents| !contents.data.is_empty());
        let now = Instant::now();
        let may_take = {
            let mut state = self.inner.state.lock();
            // A waiting caller tries again at each interval.
            let waits = |since: Instant| now.duration_since(since) < OWNER_CHECK_INTERVAL * 2;
            let has_work = has_intents || state.last_waited_at.is_some_and(waits);
            state.is_rival_idle = !has_work && state.ownership.is_rival_idle(now);
            state.ownership.may_take_back(has_work, now)
        };
        self.report_ownership();
        if !may_take {
            return Ok(());
        }
        let _taking = self.inner.taking.lock().await;
        self.take().await
    }

    async fn renew(&self) -> Result<(), ApiError> {
        let _taking = self.inner.taking.lock().await;
        let renewals = {
            let mut state = self.inner.state.lock();
            state.renewals += 1;
            state.renewals
        };
        if !self.is_loaded(0) {
            self.read_shard(0, &mut BTreeMap::new()).await?;
        }
        if self.loss().is_some() || !self.has_config_map(0) {
            return Ok(());
        }
        // Nothing else reads the other ConfigMaps while no intent is written to them.
        for index in (1..SHARD_COUNT).filter(|index| self.has_config_map(*index)) {
            self.read_shard(index, &mut BTreeMap::new()).await?;
        }
        if self.loss().is_some() {
            return Ok(());
        }
        match self.write_annotations(0, &[(RENEWALS, &renewals.to_string())]).await {
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

    /// Writes annotations of a ConfigMap at the version that was read, and creates the ConfigMap if it does
    /// not exist. Returns the new version.
    async fn write_annotations(
        &self,
        index: usize,
        annotations: &[(&str, &str)],
    ) -> Result<ResourceVersion, ApiError> {
        let target = self.shard_name(index);
        let collection = format!("/api/v1/namespaces/{}/configmaps", self.inner.namespace);
        let version = self.inner.state.lock().shards.get(index).and_then(|shard| shard.version);
        let sent = match version {
            Some(version) => {
                let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
                // A person may have removed the label, by which other commands find the ConfigMap.
                let metadata = json!({
                    "resourceVersion": version.to_string(),
                    "labels": {JOURNAL_LABEL: JOURNAL_LABEL_VALUE},
                    "annotations": annotations,
                });
                let (path, body) = (format!("{collection}/{target}"), json!({"metadata": metadata}));
                self.inner.writer.api().send_json_for_version(Method::PATCH, &path, &body, &target).await
            }
            None => {
                let annotations = annotations.iter().map(|(name, value)| (*name, (*value).to_owned()));
                let metadata = self.metadata(&target, &annotations.collect());
                let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
                self.inner.writer.api().send_json_for_version(Method::POST, &collection, &body, &target).await
            }
        };
        if sent.as_ref().is_err_and(ApiError::is_result_unknown) {
            self.note_unknown_write(index, std::iter::empty());
        }
        let response = sent?;
        self.set_written_version(index, response);
        Ok(response)
    }
}
