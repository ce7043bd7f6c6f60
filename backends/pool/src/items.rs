//! Volumes and snapshots as records beside items: made and removed so that a death at any step is mended by the same call.
//!
//! A record is written first, as `making`; then the item is made, which is one step; then the record says `ready`. An item that
//! exists under a record that is `making` is therefore the right one. A removal marks the record, removes the item, removes the
//! record. Records and items have the same name.

use std::collections::BTreeMap;

use cofferdam_guest::{
    Result, StorageError,
    pool::{ItemKind, Pool, PoolError},
    state::{self, Store, Version, Versioned},
};
use serde::{Deserialize, Serialize};

use crate::request::{Kind, MAX_NAME, Shape};

/// The two stores of the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a, S, P> {
    pub(crate) store: &'a S,
    pub(crate) pool: &'a P,
    /// The time of the call, in milliseconds since the Unix epoch.
    pub(crate) now_ms: u64,
}

/// How far a record's item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    Making,
    Ready,
    Removing,
}

/// A volume or a snapshot as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) phase: Phase,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    /// What it is a copy of: the handle of a volume or snapshot.
    pub(crate) source: Option<String>,
    pub(crate) shape: Shape,
    pub(crate) owner: Option<Owner>,
    pub(crate) changed_ms: u64,
}

/// Who asked for a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pub(crate) cluster: String,
    pub(crate) claim: String,
    pub(crate) volume: String,
    pub(crate) retain: bool,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Volume,
    Snapshot,
}

impl Sort {
    /// How keys of the state begin.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Volume => "volume/",
            Self::Snapshot => "snapshot/",
        }
    }

    pub(crate) fn key(self, handle: &str) -> String {
        format!("{}{handle}", self.prefix())
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
        }
    }
}

/// An error after something was written: it may have an effect, whatever its kind says.
fn open(error: impl Into<StorageError>) -> StorageError {
    let error = error.into();
    StorageError::new(error.kind, cofferdam_guest::Finality::Unknown, error.message)
}

impl<S: Store, P: Pool> Place<'_, S, P> {
    /// Reads a record. A handle longer than any of ours is nobody's, and is not worth a key.
    pub(crate) fn find(&self, sort: Sort, handle: &str) -> Result<Option<Versioned<Record>>> {
        if handle.is_empty() || handle.len() > MAX_NAME {
            Ok(None)
        } else {
            state::read(self.store, &sort.key(handle))
        }
    }

    /// Reads the record of something that can be used.
    pub(crate) fn ready(&self, sort: Sort, handle: &str) -> Result<Versioned<Record>> {
        match self.find(sort, handle)? {
            Some(found) if found.value.phase == Phase::Ready => Ok(found),
            Some(found) if found.value.phase == Phase::Making => Err(StorageError::in_progress(format!(
                "the {} {handle:?} is still being made",
                sort.as_str()
            ))),
            Some(_) | None => {
                Err(StorageError::not_found(format!("there is no {} {handle:?}", sort.as_str())))
            }
        }
    }

    /// Makes something of which there is no record.
    pub(crate) fn make(&self, sort: Sort, handle: &str, record: Record) -> Result<Record> {
        if self.is_strange(sort, handle)? {
            return Err(StorageError::failed_precondition(format!(
                "the pool has an item {handle:?} that this driver's state does not know: restore the state, or remove the item"
            )));
        }
        let version = self.write(sort, handle, &record, None)?;
        self.finish(sort, handle, Versioned { value: record, version })
    }

    /// Whether there is an item without a record. Another process may be making or removing both right now, so that it is seen
    /// twice or it is not so.
    fn is_strange(&self, sort: Sort, handle: &str) -> Result<bool> {
        for _ in 0..2 {
            if self.exists(handle)?.is_none() || self.find(sort, handle)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes the item of a record unless it is there, and says so in the record. When it cannot be made, the record goes.
    pub(crate) fn finish(&self, sort: Sort, handle: &str, found: Versioned<Record>) -> Result<Record> {
        let Versioned { value: record, version } = found;
        let made = match (&record.source, record.kind) {
            (Some(source), Kind::Directory) => self.pool.copy(source, handle, None),
            (Some(source), Kind::Image) => self.pool.copy(source, handle, Some(record.size)),
            (None, Kind::Directory) => self.pool.create_directory(handle),
            (None, Kind::Image) => self.pool.create_image(handle, record.size),
        };
        let failure = match made {
            Ok(()) | Err(PoolError::Exists(_)) => None,
            Err(error @ PoolError::Busy(_)) => return Err(error.into()),
            // The copy was made by an earlier call, and its source has gone since.
            Err(PoolError::Missing(_)) if self.exists(handle).map_err(open)?.is_some() => None,
            Err(
                error @ (PoolError::Missing(_)
                | PoolError::InvalidName(_)
                | PoolError::WrongKind(_)
                | PoolError::InvalidSize(_)
                | PoolError::NoSpace(_)
                | PoolError::Failed(_)),
            ) => Some(error),
        };
        if let Some(error) = failure {
            self.store.commit(&[state::remove(&sort.key(handle), version)]).map_err(open)?;
            return Err(StorageError::from(error).nothing_happened());
        }
        let record = Record { phase: Phase::Ready, ..record };
        self.write(sort, handle, &record, Some(version)).map_err(open)?;
        Ok(record)
    }

    /// Removes something with its item.
    pub(crate) fn clear(&self, sort: Sort, handle: &str, found: Versioned<Record>) -> Result<()> {
        let Versioned { value: record, mut version } = found;
        if record.phase != Phase::Removing {
            version =
                self.write(sort, handle, &Record { phase: Phase::Removing, ..record }, Some(version))?;
        }
        match self.pool.remove(handle) {
            Ok(()) | Err(PoolError::Missing(_)) => {}
            Err(error @ PoolError::Busy(_)) => return Err(error.into()),
            Err(
                error @ (PoolError::Exists(_)
                | PoolError::InvalidName(_)
                | PoolError::WrongKind(_)
                | PoolError::InvalidSize(_)
                | PoolError::NoSpace(_)
                | PoolError::Failed(_)),
            ) => return Err(open(error)),
        }
        self.store.commit(&[state::remove(&sort.key(handle), version)]).map(drop).map_err(open)
    }

    /// Writes a record.
    pub(crate) fn write(
        &self,
        sort: Sort,
        handle: &str,
        record: &Record,
        replaces: Option<Version>,
    ) -> Result<Version> {
        Ok(self.store.commit(&[state::put(&sort.key(handle), record, replaces)?])?)
    }

    /// The kind of an item, if there is one. A listing of one costs the same for a large directory as for a small one.
    pub(crate) fn exists(&self, item: &str) -> Result<Option<ItemKind>> {
        let page = self.pool.scan(item, None, 1)?;
        Ok(page.items.into_iter().find(|(name, _)| name == item).map(|(_, kind)| kind))
    }

    /// What is wrong with the item of a record.
    pub(crate) fn trouble(&self, handle: &str, record: &Record) -> Result<Option<String>> {
        Ok(match (self.exists(handle)?, record.kind) {
            (Some(ItemKind::Directory), Kind::Directory) => None,
            (Some(ItemKind::Image), Kind::Image) => {
                let size = self.pool.measure(handle)?.size_bytes.unwrap_or_default();
                (size < record.size).then(|| format!("its image has {size} bytes; expected {}", record.size))
            }
            (Some(_), _) => Some(format!("its item in the pool is no {}", record.kind.as_str())),
            (None, _) => Some("its item is missing from the pool".to_owned()),
        })
    }

    /// A part of all records: those that can be used, at most `limit` of them, and where the next part begins.
    pub(crate) fn list(
        &self,
        sort: Sort,
        after: Option<&str>,
        limit: Option<u32>,
        keep: impl Fn(&Record) -> bool,
    ) -> Result<(BTreeMap<String, Record>, Option<String>)> {
        let limit = limit
            .filter(|limit| *limit > 0)
            .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let mut after = after.map(|place| token(sort, place)).transpose()?;
        let mut records = BTreeMap::new();
        loop {
            let left = limit.saturating_sub(records.len());
            let page =
                self.store.scan(sort.prefix(), after.as_deref(), u32::try_from(left).unwrap_or(u32::MAX))?;
            for found in page.entries {
                let handle = found.key.strip_prefix(sort.prefix()).unwrap_or_default().to_owned();
                after = Some(found.key);
                if let Some(read) = self.find(sort, &handle)?
                    && read.value.phase == Phase::Ready
                    && keep(&read.value)
                {
                    records.insert(handle, read.value);
                }
            }
            if !page.more || records.len() >= limit.min(MAX_LISTED) {
                return Ok((records, after.filter(|_| page.more).map(|key| format!("{AFTER}{key}"))));
            }
        }
    }
}

/// How the place of a next part begins.
const AFTER: &str = "after:";
/// Most records of one part: each costs a look at its item.
const MAX_LISTED: usize = 1_000;

/// The key after which a part begins.
fn token(sort: Sort, place: &str) -> Result<String> {
    let key = place.strip_prefix(AFTER).filter(|key| key.starts_with(sort.prefix()));
    key.map(str::to_owned).ok_or_else(|| {
        StorageError::aborted(format!("no listing ended at {place:?}; begin anew")).nothing_happened()
    })
}
