//! Snapshots. Each is a copy of a volume's item, a directory or an image file, and remains if the volume is
//! deleted.

use cofferdam_guest::{
    Result, Snapshot, StorageError,
    abilities::{SnapshotPage, SnapshotRequest},
    log::{self, Level},
    pool::Pool,
    state::Store,
};

use crate::{
    items::{CopySource, ListedRecord, NodeStorage, OwnerRecord, RecordKind, RecordPhase, StoredRecord},
    request::{self, Consistency, VolumeArguments},
};

/// Creates a snapshot, or returns the existing one.
pub(crate) fn create<S: Store, P: Pool>(
    storage: &NodeStorage<'_, S, P>,
    request: SnapshotRequest,
) -> Result<Snapshot> {
    let handle = request::handle_from_name("snap", &request.name)?;
    let consistency = request::parse_snapshot_parameters(request.parameters)?;
    match storage.read_record(RecordKind::Snapshot, &handle)? {
        Some(found) if found.value.phase == RecordPhase::Deleting => {
            storage.delete(RecordKind::Snapshot, &handle, found)?
        }
        Some(found) => {
            check_same_arguments(&found.value, &request.name, &request.source, consistency)?;
            let record = match found.value.phase {
                RecordPhase::Creating => storage.resume(RecordKind::Snapshot, &handle, found)?,
                RecordPhase::Ready | RecordPhase::Deleting => found.value,
            };
            return Ok(snapshot(handle, record));
        }
        None => {}
    }
    let source = storage.read_ready(RecordKind::Volume, &request.source)?.value;
    let record = StoredRecord {
        phase: RecordPhase::Creating,
        name: request.name,
        item: storage.new_item(&handle),
        kind: source.kind,
        size: storage.actual_size(&source)?,
        source: Some(CopySource {
            handle: request.source,
            item: source.item,
            consistency: consistency.unwrap_or(Consistency::default_for(source.kind)),
        }),
        arguments: VolumeArguments::default(),
        owner: request.owner.as_ref().map(OwnerRecord::from_snapshot_owner),
        changed_ms: storage.now_ms,
    };
    let record = storage.create(RecordKind::Snapshot, &handle, record)?;
    Ok(snapshot(handle, record))
}

/// Checks that an existing snapshot matches a new request with the same name.
fn check_same_arguments(
    found: &StoredRecord,
    name: &str,
    source: &str,
    requested: Option<Consistency>,
) -> Result<()> {
    let of = found.source.as_ref();
    if found.name != name || of.is_none_or(|of| of.handle != source) {
        return Err(StorageError::already_exists(format!(
            "the snapshot {:?} exists, of the volume {:?}",
            found.name,
            of.map_or("", |of| &of.handle)
        )));
    }
    if requested == Some(Consistency::Crash) && of.is_some_and(|of| of.consistency == Consistency::None) {
        return Err(StorageError::already_exists(format!(
            "the snapshot {name:?} exists, and is not of one moment"
        )));
    }
    Ok(())
}

/// Deletes a snapshot. Succeeds if it does not exist.
pub(crate) fn delete<S: Store, P: Pool>(storage: &NodeStorage<'_, S, P>, handle: &str) -> Result<()> {
    match storage.read_record(RecordKind::Snapshot, handle)? {
        Some(found) => storage.delete(RecordKind::Snapshot, handle, found),
        None => Ok(()),
    }
}

/// Returns a snapshot. An incomplete snapshot is not ready.
pub(crate) fn get<S: Store, P: Pool>(storage: &NodeStorage<'_, S, P>, handle: String) -> Result<Snapshot> {
    match storage.read_record(RecordKind::Snapshot, &handle)? {
        Some(found) => Ok(snapshot(handle, found.value)),
        None => Err(StorageError::not_found(format!("there is no snapshot {handle:?}"))),
    }
}

/// Lists all snapshots, or the snapshots of one volume. Omits snapshots with an unreadable record, with a
/// warning in the log.
pub(crate) fn list<S: Store, P: Pool>(
    storage: &NodeStorage<'_, S, P>,
    source: Option<&str>,
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<SnapshotPage> {
    let of_source = |record: &StoredRecord| {
        source.is_none_or(|source| record.source.as_ref().is_some_and(|of| of.handle == source))
    };
    let (records, next) = storage.list(RecordKind::Snapshot, after, limit, of_source)?;
    let shown = |(handle, listed): (String, ListedRecord)| match listed {
        Ok(record) => Some(snapshot(handle, record)),
        // The source is unknown without the record, and a snapshot has no condition that could report it.
        Err(error) => {
            log::write(
                Level::Warn,
                "a snapshot is omitted from a listing",
                &[("handle", &handle), ("error", &error.message)],
            );
            None
        }
    };
    Ok(SnapshotPage { snapshots: records.into_iter().filter_map(shown).collect(), next })
}

fn snapshot(handle: String, record: StoredRecord) -> Snapshot {
    Snapshot {
        handle,
        source: record.source.map(|source| source.handle).unwrap_or_default(),
        size_bytes: Some(record.size),
        created_at_ms: record.changed_ms,
        ready: record.phase == RecordPhase::Ready,
        group: None,
        owner: record.owner.map(OwnerRecord::into_snapshot_owner),
    }
}
