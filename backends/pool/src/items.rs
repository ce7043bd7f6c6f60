//! Volumes and snapshots. Each has a record in the state and an item in the pool: a directory or an image
//! file. A call that dies at any step is completed by a retry.
//!
//! - Create: write a record in phase `creating` that names a new, unique item. Create the item, which is one
//!   step. Set the phase to `ready`. Because the name is unique, an item under a `creating` record is always
//!   the right one.
//! - Delete: set the phase to `deleting`, remove the item, remove the record.
//!
//! A create that finds a record in phase `creating` continues with the item of that record. A create that
//! finds a record in phase `deleting` finishes the deletion first.
//!
//! Every change of a record names the version of the record that it replaces. If another call has changed the
//! record meanwhile, the change fails with a conflict. If that is the change to `ready`, the create removes
//! the item, unless the current record names that item and is not being deleted.

use std::collections::BTreeMap;

use cofferdam_guest::{
    ErrorKind, Finality, ReclaimPolicy, Result, SnapshotOwner, StorageError,
    pool::{ItemKind, Pool, PoolError},
    state::{self, StateError, Store, Version, Versioned},
};
use serde::{Deserialize, Serialize};

use crate::request::{CONSISTENCY, Consistency, MAX_NAME, VolumeArguments, VolumeKind};

/// State and pool of the node, with the time and a random number of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeStorage<'a, S, P> {
    pub(crate) store: &'a S,
    pub(crate) pool: &'a P,
    /// The time of the call, in milliseconds since the Unix epoch.
    pub(crate) now_ms: u64,
    /// A random number that makes the item name of this call unique.
    pub(crate) random: u64,
}

/// Lifecycle phase of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RecordPhase {
    Creating,
    Ready,
    Deleting,
}

/// The stored record of a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredRecord {
    pub(crate) phase: RecordPhase,
    pub(crate) name: String,
    /// The name of the item in the pool.
    pub(crate) item: String,
    pub(crate) kind: VolumeKind,
    pub(crate) size: u64,
    pub(crate) source: Option<CopySource>,
    pub(crate) arguments: VolumeArguments,
    pub(crate) owner: Option<OwnerRecord>,
    /// Time of the creation or the last expansion, in milliseconds since the Unix epoch. The creation time of
    /// a copy is the start of the call that makes the copy.
    pub(crate) changed_ms: u64,
}

/// The source of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopySource {
    /// The handle of the source volume or snapshot.
    pub(crate) handle: String,
    pub(crate) item: String,
    pub(crate) consistency: Consistency,
}

/// The owner of a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnerRecord {
    pub(crate) cluster: String,
    /// UID of the PersistentVolumeClaim; of a snapshot, UID of the VolumeSnapshot.
    pub(crate) claim: String,
    /// Name of the PersistentVolume; of a snapshot, name of the VolumeSnapshotContent.
    pub(crate) volume: String,
    pub(crate) retain: bool,
}

impl OwnerRecord {
    pub(crate) fn from_volume_owner(owner: &cofferdam_guest::Owner) -> Self {
        Self {
            cluster: owner.cluster_id.clone(),
            claim: owner.claim_uid.clone(),
            volume: owner.pv_name.clone(),
            retain: matches!(owner.reclaim_policy, ReclaimPolicy::Retain),
        }
    }

    pub(crate) fn into_volume_owner(self) -> cofferdam_guest::Owner {
        cofferdam_guest::Owner {
            cluster_id: self.cluster,
            claim_uid: self.claim,
            pv_name: self.volume,
            reclaim_policy: if self.retain { ReclaimPolicy::Retain } else { ReclaimPolicy::Delete },
        }
    }

    /// Converts the owner of a snapshot, which has the same four values under other names.
    pub(crate) fn from_snapshot_owner(owner: &SnapshotOwner) -> Self {
        Self {
            cluster: owner.cluster_id.clone(),
            claim: owner.snapshot_uid.clone(),
            volume: owner.content_name.clone(),
            retain: matches!(owner.reclaim_policy, ReclaimPolicy::Retain),
        }
    }

    pub(crate) fn into_snapshot_owner(self) -> SnapshotOwner {
        SnapshotOwner {
            cluster_id: self.cluster,
            snapshot_uid: self.claim,
            content_name: self.volume,
            reclaim_policy: if self.retain { ReclaimPolicy::Retain } else { ReclaimPolicy::Delete },
        }
    }
}

/// A record in a listing or of a volume's status, or the error of decoding it.
pub(crate) type ListedRecord = std::result::Result<StoredRecord, StorageError>;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Volume,
    Snapshot,
}

impl RecordKind {
    /// Prefix of the record keys.
    pub(crate) const fn key_prefix(self) -> &'static str {
        match self {
            Self::Volume => "volume/",
            Self::Snapshot => "snapshot/",
        }
    }

    pub(crate) fn key(self, handle: &str) -> String {
        format!("{}{handle}", self.key_prefix())
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
        }
    }
}

/// Number of random hexadecimal digits at the end of an item name.
const RANDOM_DIGITS: usize = 16;

/// An error after a write. The call may have taken effect, so the outcome is unknown regardless of the error
/// kind.
fn unknown_outcome(error: impl Into<StorageError>) -> StorageError {
    let error = error.into();
    StorageError::new(error.kind, Finality::Unknown, error.message)
}

impl<S: Store, P: Pool> NodeStorage<'_, S, P> {
    /// A new, unique item name.
    pub(crate) fn new_item(&self, handle: &str) -> String {
        format!("{handle}.{:0RANDOM_DIGITS$x}", self.random)
    }

    /// Reads a record; `None` if there is none. An empty handle and one above the maximum length cannot exist
    /// and are not looked up.
    pub(crate) fn read_record(
        &self,
        record_kind: RecordKind,
        handle: &str,
    ) -> Result<Option<Versioned<StoredRecord>>> {
        if handle.is_empty() || handle.len() > MAX_NAME {
            Ok(None)
        } else {
            state::read(self.store, &record_kind.key(handle))
        }
    }

    /// Reads a record for a listing or a volume's status. A record that cannot be decoded becomes an entry
    /// with the error, so that it does not fail the listing. Errors of the state fail it.
    pub(crate) fn read_for_listing(
        &self,
        record_kind: RecordKind,
        handle: &str,
    ) -> Result<Option<ListedRecord>> {
        match self.read_record(record_kind, handle) {
            Ok(found) => Ok(found.map(|found| Ok(found.value))),
            Err(error) if error.kind == ErrorKind::Internal => Ok(Some(Err(error))),
            Err(error) => Err(error),
        }
    }

    /// Reads the record of a usable volume or snapshot. For a record in phase `creating` the error has the
    /// finality `in-progress`; a record in phase `deleting` counts as not found.
    pub(crate) fn read_ready(
        &self,
        record_kind: RecordKind,
        handle: &str,
    ) -> Result<Versioned<StoredRecord>> {
        match self.read_record(record_kind, handle)? {
            Some(found) if found.value.phase == RecordPhase::Ready => Ok(found),
            Some(found) if found.value.phase == RecordPhase::Creating => Err(StorageError::in_progress(
                format!("the {} {handle:?} is still being created", record_kind.as_str()),
            )),
            Some(_) | None => {
                Err(StorageError::not_found(format!("there is no {} {handle:?}", record_kind.as_str())))
            }
        }
    }

    /// The size of a usable volume or snapshot in bytes. For a directory it is the recorded size. An image is
    /// larger than its record says if a call died during expansion.
    pub(crate) fn actual_size(&self, record: &StoredRecord) -> Result<u64> {
        match record.kind {
            VolumeKind::Directory => Ok(record.size),
            VolumeKind::Image => {
                let item = self.pool.measure(&record.item)?;
                Ok(item.size_bytes.unwrap_or_default().max(record.size))
            }
        }
    }

    /// Creates a volume or snapshot that has no record yet. Fails if the pool already has an item whose name
    /// was generated for the handle.
    pub(crate) fn create(
        &self,
        record_kind: RecordKind,
        handle: &str,
        record: StoredRecord,
    ) -> Result<StoredRecord> {
        if let Some(item) = self.find_unknown_item(record_kind, handle)? {
            return Err(StorageError::failed_precondition(format!(
                "the pool has an item {item:?} without a record in the driver's state: restore the state, or \
                 remove the item"
            )));
        }
        let version = self.write_record(record_kind, handle, &record, None)?;
        self.create_item(record_kind, handle, Versioned { value: record, version })
    }

    /// Finds an item without a record. Another call may be creating or deleting both, so the item is
    /// reported only if it is seen twice without a record.
    fn find_unknown_item(&self, record_kind: RecordKind, handle: &str) -> Result<Option<String>> {
        let Some(first) = self.find_item_without_record(handle)? else { return Ok(None) };
        if self.read_record(record_kind, handle)?.is_some() {
            return Ok(None);
        }
        let second = self.find_item_without_record(handle)?.filter(|second| *second == first);
        Ok(if second.is_some() && self.read_record(record_kind, handle)?.is_none() { second } else { None })
    }

    /// Continues the creation that an earlier call started. If the item is a copy and does not exist yet,
    /// this call copies the current content of the source, and the creation time is that of this call.
    pub(crate) fn resume(
        &self,
        record_kind: RecordKind,
        handle: &str,
        found: Versioned<StoredRecord>,
    ) -> Result<StoredRecord> {
        let Versioned { value: record, version } = found;
        if record.source.is_none() || self.has_item(&record.item)? {
            return self.create_item(record_kind, handle, Versioned { value: record, version });
        }
        let record = StoredRecord { changed_ms: self.now_ms, ..record };
        let version = self.write_record(record_kind, handle, &record, Some(version))?;
        self.create_item(record_kind, handle, Versioned { value: record, version })
    }

    /// Creates the item of a record unless it exists, and sets the phase to `ready`. Removes the record if
    /// the pool rejects the item. If the item is busy or the outcome is unknown, the record remains for a
    /// retry. If another call has changed the record meanwhile, returns the conflict, see
    /// [`remove_superseded_item`](Self::remove_superseded_item).
    fn create_item(
        &self,
        record_kind: RecordKind,
        handle: &str,
        found: Versioned<StoredRecord>,
    ) -> Result<StoredRecord> {
        let Versioned { value: record, version } = found;
        let item = record.item.as_str();
        let created = match (&record.source, record.kind) {
            (Some(source), VolumeKind::Directory) => {
                self.pool.copy(&source.item, item, None, source.consistency.copy_mode())
            }
            (Some(source), VolumeKind::Image) => {
                self.pool.copy(&source.item, item, Some(record.size), source.consistency.copy_mode())
            }
            (None, VolumeKind::Directory) => self.pool.create_directory(item),
            (None, VolumeKind::Image) => self.pool.create_image(item, record.size),
        };
        match created {
            Ok(()) | Err(PoolError::Exists(_)) => {}
            Err(error @ (PoolError::Busy(_) | PoolError::Unknown(_))) => return Err(error.into()),
            // An earlier call created the item. Since then the source was removed or the operator changed a
            // limit.
            Err(_) if self.item_kind(item).map_err(unknown_outcome)?.is_some() => {}
            Err(error) => {
                self.store
                    .commit(&[state::remove(&record_kind.key(handle), version)])
                    .map_err(unknown_outcome)?;
                return Err(create_error(error, &record).without_effect());
            }
        }
        let record = StoredRecord { phase: RecordPhase::Ready, ..record };
        let ready = state::put(&record_kind.key(handle), &record, Some(version)).map_err(unknown_outcome)?;
        match self.store.commit(&[ready]) {
            Ok(_) => Ok(record),
            Err(error @ StateError::Conflict(_)) => {
                self.remove_superseded_item(record_kind, handle, &record.item)?;
                Err(error.into())
            }
            Err(error) => Err(unknown_outcome(error)),
        }
    }

    /// Removes an item created for a record that has been deleted or replaced, or is being deleted: the
    /// concurrent delete ran too early to find the item. Keeps the item if the record names it and is not
    /// being deleted.
    fn remove_superseded_item(&self, record_kind: RecordKind, handle: &str, item: &str) -> Result<()> {
        match self.read_record(record_kind, handle).map_err(unknown_outcome)? {
            Some(found) if found.value.item == item && found.value.phase != RecordPhase::Deleting => Ok(()),
            Some(_) | None => self.remove_item(item),
        }
    }

    /// Deletes a record and its item.
    pub(crate) fn delete(
        &self,
        record_kind: RecordKind,
        handle: &str,
        found: Versioned<StoredRecord>,
    ) -> Result<()> {
        let Versioned { value: record, mut version } = found;
        let item = record.item.clone();
        if record.phase != RecordPhase::Deleting {
            version = self.write_record(
                record_kind,
                handle,
                &StoredRecord { phase: RecordPhase::Deleting, ..record },
                Some(version),
            )?;
        }
        self.remove_item(&item)?;
        self.store
            .commit(&[state::remove(&record_kind.key(handle), version)])
            .map(drop)
            .map_err(unknown_outcome)
    }

    fn remove_item(&self, item: &str) -> Result<()> {
        match self.pool.remove(item) {
            Ok(()) | Err(PoolError::Missing(_)) => Ok(()),
            Err(error @ PoolError::Busy(_)) => Err(error.into()),
            Err(error) => Err(unknown_outcome(error)),
        }
    }

    /// Writes a record in place of the version `replaces`, or as a new record. Returns its version.
    pub(crate) fn write_record(
        &self,
        record_kind: RecordKind,
        handle: &str,
        record: &StoredRecord,
        replaces: Option<Version>,
    ) -> Result<Version> {
        Ok(self.store.commit(&[state::put(&record_kind.key(handle), record, replaces)?])?)
    }

    /// The kind of an item, if it exists.
    fn item_kind(&self, item: &str) -> Result<Option<ItemKind>> {
        Ok(self.scan_for(item)?)
    }

    /// Looks an item up with a scan. `measure` would read the complete content of a directory item.
    fn scan_for(&self, item: &str) -> std::result::Result<Option<ItemKind>, PoolError> {
        let page = self.pool.scan(item, None, 1)?;
        Ok(page.items.into_iter().find(|(name, _)| name == item).map(|(_, kind)| kind))
    }

    /// Returns true if the item exists. For an item that is being created, the error has the finality
    /// `in-progress`.
    fn has_item(&self, item: &str) -> Result<bool> {
        if self.item_kind(item)?.is_some() {
            return Ok(true);
        }
        match self.pool.measure(item) {
            Ok(_) => Ok(true),
            Err(PoolError::Missing(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Finds an item whose name was generated for a handle. The caller checks that the handle has no record.
    fn find_item_without_record(&self, handle: &str) -> Result<Option<String>> {
        let prefix = format!("{handle}.");
        let mut after: Option<String> = None;
        loop {
            let page = self.pool.scan(&prefix, after.as_deref(), u32::MAX)?;
            after = page.items.last().map(|(name, _)| name.clone());
            let is_generated_name = |name: &str| {
                name.strip_prefix(&prefix).is_some_and(|suffix| {
                    suffix.len() == RANDOM_DIGITS && suffix.bytes().all(|byte| byte.is_ascii_hexdigit())
                })
            };
            let found = page.items.into_iter().map(|(name, _)| name).find(|name| is_generated_name(name));
            if found.is_some() || !page.more || after.is_none() {
                return Ok(found);
            }
        }
    }

    /// The condition of a record's item: abnormal or not, and a message. An item that cannot be read is
    /// abnormal and does not fail the listing.
    pub(crate) fn condition(&self, record: &StoredRecord) -> (bool, String) {
        let gone = || (true, "its item is missing from the pool".to_owned());
        let unknown = |error: PoolError| {
            (true, format!("its item cannot be read: {}", StorageError::from(error).message))
        };
        match record.phase {
            RecordPhase::Creating => {
                return (
                    true,
                    "incomplete: the same creation continues, or a deletion removes it".to_owned(),
                );
            }
            RecordPhase::Deleting => return (true, "being deleted: the same deletion continues".to_owned()),
            RecordPhase::Ready => {}
        }
        match (self.scan_for(&record.item), record.kind) {
            (Err(error), _) => unknown(error),
            (Ok(None), _) => gone(),
            (Ok(Some(ItemKind::Directory)), VolumeKind::Directory) => {
                (false, "its item is in the pool".to_owned())
            }
            (Ok(Some(ItemKind::Image)), VolumeKind::Image) => match self.pool.measure(&record.item) {
                Ok(item) if item.size_bytes.unwrap_or_default() < record.size => {
                    let has = item.size_bytes.unwrap_or_default();
                    (true, format!("its image has {has} bytes; expected {}", record.size))
                }
                Ok(_) => (false, "its item is in the pool".to_owned()),
                Err(PoolError::Busy(_)) => (false, "an earlier call is still using its item".to_owned()),
                Err(PoolError::Missing(_)) => gone(),
                Err(error) => unknown(error),
            },
            (Ok(Some(_)), kind) => (true, format!("its item in the pool is no {}", kind.as_str())),
        }
    }

    /// A page of at most `limit` records that satisfy the filter, and the token of the next page. The page
    /// includes incomplete records, and all unreadable records regardless of the filter.
    pub(crate) fn list(
        &self,
        record_kind: RecordKind,
        after: Option<&str>,
        limit: Option<u32>,
        filter: impl Fn(&StoredRecord) -> bool,
    ) -> Result<(BTreeMap<String, ListedRecord>, Option<String>)> {
        let limit = limit
            .filter(|limit| *limit > 0)
            .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let mut after = after.map(|page_token| key_of_token(record_kind, page_token)).transpose()?;
        let mut records = BTreeMap::new();
        loop {
            let left = limit.saturating_sub(records.len());
            let page = self.store.scan(
                record_kind.key_prefix(),
                after.as_deref(),
                u32::try_from(left).unwrap_or(u32::MAX),
            )?;
            for found in page.entries {
                let handle = found.key.strip_prefix(record_kind.key_prefix()).unwrap_or_default().to_owned();
                after = Some(found.key);
                if let Some(listed) = self.read_for_listing(record_kind, &handle)?
                    && listed.as_ref().map_or(true, &filter)
                {
                    records.insert(handle, listed);
                }
            }
            if !page.more || records.len() >= limit.min(MAX_LISTED) {
                return Ok((records, after.filter(|_| page.more).map(|key| format!("{TOKEN_PREFIX}{key}"))));
            }
        }
    }
}

/// The error of a failed item creation, with advice for the operator.
fn create_error(error: PoolError, record: &StoredRecord) -> StorageError {
    let requested = record.source.as_ref().map(|source| source.consistency);
    if let (PoolError::Unsupported(reason), Some(Consistency::Crash)) = (&error, requested) {
        return StorageError::failed_precondition(format!(
            "{reason}; with the parameter {CONSISTENCY:?} set to \"none\", a class accepts copies that are \
             consistent only if nothing writes meanwhile"
        ));
    }
    error.into()
}

/// Prefix of page tokens.
const TOKEN_PREFIX: &str = "after:";
/// Number of records from which a page is not filled further. Each listed volume costs a lookup of its item.
const MAX_LISTED: usize = 1_000;

/// The key after which a page starts.
fn key_of_token(record_kind: RecordKind, token: &str) -> Result<String> {
    let key = token.strip_prefix(TOKEN_PREFIX).filter(|key| key.starts_with(record_kind.key_prefix()));
    key.map(str::to_owned).ok_or_else(|| {
        StorageError::aborted(format!("no listing ended at {token:?}; begin anew")).without_effect()
    })
}
