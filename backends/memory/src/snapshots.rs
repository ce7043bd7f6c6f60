//! Snapshots of single volumes.

use cofferdam_guest::{
    Result, StorageError,
    abilities::{SnapshotPage, SnapshotRequest},
    state::{self, Decision, Store, Versioned, decide},
};

use crate::{
    listing::{self, StatePager},
    records::{
        self, MemoryCall, MemoryOwner, MemorySnapshot, SNAPSHOT_PREFIX, VersionedStorageUsage, read_entry,
        snapshot_key,
    },
    request::{self, LABEL},
};

/// Maximum state pages that one page of a listing reads, at most 1 MiB each.
const MAX_SCANS: usize = 16;

/// Creates a snapshot, or returns the existing one.
pub(crate) fn create<S: Store>(
    call: &MemoryCall<'_, S>,
    request: &SnapshotRequest,
) -> Result<cofferdam_guest::Snapshot> {
    let handle = request::handle_from_name("snap", "snapshot name", &request.name)?;
    request::require_id("source volume", &request.source)?;
    request::parse_parameters(&request.parameters, &[LABEL])?;
    decide(call.store, |_| {
        if let Some(found) = read_entry::<MemorySnapshot>(call.store, &handle, snapshot_key)? {
            if found.value.source != request.source {
                return Err(StorageError::already_exists(format!(
                    "the snapshot {:?} exists, of the volume {:?}",
                    found.value.name, found.value.source
                )));
            }
            return count_poll(&handle, found);
        }
        let source = records::read_volume(call.store, &request.source)?.value;
        let mut usage = VersionedStorageUsage::read(call.store)?;
        usage.usage.add_snapshots(1, call.settings)?;
        let record = MemorySnapshot {
            name: request.name.clone(),
            source: request.source.clone(),
            size: source.size,
            created_ms: call.now_ms,
            polls_left: call.settings.snapshot_ready_after,
            group: None,
            owner: request.owner.as_ref().map(MemoryOwner::from_snapshot_owner).transpose()?,
        };
        let changes = vec![state::put(&snapshot_key(&handle), &record, None)?, usage.to_change()?];
        Ok(Decision::Commit(changes, describe(&handle, &record)))
    })
}

/// Counts a create or get request for an existing snapshot that is not ready yet. It becomes ready after as
/// many requests as the setting `snapshot-ready-after` says.
fn count_poll(handle: &str, found: Versioned<MemorySnapshot>) -> Result<Decision<cofferdam_guest::Snapshot>> {
    let Versioned { value: mut record, version } = found;
    if record.polls_left == 0 {
        return Ok(Decision::Done(describe(handle, &record)));
    }
    record.polls_left = record.polls_left.saturating_sub(1);
    let change = state::put(&snapshot_key(handle), &record, Some(version))?;
    Ok(Decision::Commit(vec![change], describe(handle, &record)))
}

/// Deletes a snapshot. Succeeds if it does not exist.
pub(crate) fn delete<S: Store>(call: &MemoryCall<'_, S>, handle: &str) -> Result<()> {
    request::require_id("snapshot handle", handle)?;
    decide(call.store, |_| {
        let Some(found) = read_entry::<MemorySnapshot>(call.store, handle, snapshot_key)? else {
            return Ok(Decision::Done(()));
        };
        if let Some(group) = &found.value.group {
            return Err(StorageError::invalid_argument(format!(
                "the snapshot {handle:?} is a member of the group {group:?} and goes with it only"
            )));
        }
        let mut usage = VersionedStorageUsage::read(call.store)?;
        usage.usage.snapshots = usage.usage.snapshots.saturating_sub(1);
        Ok(Decision::Commit(
            vec![state::remove(&snapshot_key(handle), found.version), usage.to_change()?],
            (),
        ))
    })
}

/// Returns a snapshot. If it is not ready yet, counts the request, see [`count_poll`].
pub(crate) fn get<S: Store>(call: &MemoryCall<'_, S>, handle: &str) -> Result<cofferdam_guest::Snapshot> {
    request::require_id("snapshot handle", handle)?;
    decide(call.store, |_| match read_entry::<MemorySnapshot>(call.store, handle, snapshot_key)? {
        Some(found) => count_poll(handle, found),
        None => Err(StorageError::not_found(format!("there is no snapshot {handle:?}"))),
    })
}

/// Lists all snapshots, or the snapshots of one volume.
pub(crate) fn list<S: Store>(
    call: &MemoryCall<'_, S>,
    source: Option<&str>,
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<SnapshotPage> {
    // A token of one volume's listing is invalid for another volume.
    let scope = format!("{SNAPSHOT_PREFIX}{}", source.unwrap_or_default());
    let mut pages = StatePager::new(SNAPSHOT_PREFIX, &scope, after, limit)?;
    let mut snapshots = Vec::new();
    for _ in 0..MAX_SCANS {
        for found in pages.next(call.store, snapshots.len())? {
            let record: MemorySnapshot = records::decode_entry(&found)?;
            if source.is_none_or(|source| record.source == source) {
                snapshots.push(describe(listing::handle(&found, SNAPSHOT_PREFIX), &record));
            }
        }
        if pages.is_complete(snapshots.len()) {
            break;
        }
    }
    Ok(SnapshotPage { snapshots, next: pages.token() })
}

/// Converts a record to the contract's snapshot.
pub(crate) fn describe(handle: &str, record: &MemorySnapshot) -> cofferdam_guest::Snapshot {
    cofferdam_guest::Snapshot {
        handle: handle.to_owned(),
        source: record.source.clone(),
        size_bytes: Some(record.size),
        created_at_ms: record.created_ms,
        ready: record.polls_left == 0,
        group: record.group.clone(),
        owner: record.owner.as_ref().map(MemoryOwner::to_snapshot_owner),
    }
}
