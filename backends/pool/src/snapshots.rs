//! Snapshots: copies of items, which do not need their volume any more.

use cofferdam_guest::{
    Result, Snapshot, StorageError,
    abilities::{SnapshotPage, SnapshotRequest},
    pool::Pool,
    state::Store,
};

use crate::{
    items::{Phase, Place, Record, Sort},
    request::{self, Shape},
};

/// Cuts a snapshot or finds it.
pub(crate) fn create<S: Store, P: Pool>(
    place: &Place<'_, S, P>,
    request: SnapshotRequest,
) -> Result<Snapshot> {
    let handle = request::handle("snap", &request.name)?;
    request::snapshot_parameters(request.parameters)?;
    match place.find(Sort::Snapshot, &handle)? {
        Some(found) if found.value.phase == Phase::Removing => place.clear(Sort::Snapshot, &handle, found)?,
        Some(found) => {
            if found.value.name != request.name || found.value.source.as_deref() != Some(&request.source) {
                return Err(StorageError::already_exists(format!(
                    "the snapshot {:?} exists, of the volume {:?}",
                    found.value.name,
                    found.value.source.unwrap_or_default()
                )));
            }
            let record = match found.value.phase {
                Phase::Making => place.finish(Sort::Snapshot, &handle, found)?,
                Phase::Ready | Phase::Removing => found.value,
            };
            return Ok(snapshot(handle, record));
        }
        None => {}
    }
    let source = place.ready(Sort::Volume, &request.source)?.value;
    let record = Record {
        phase: Phase::Making,
        name: request.name,
        kind: source.kind,
        size: source.size,
        source: Some(request.source),
        shape: Shape::default(),
        owner: None,
        changed_ms: place.now_ms,
    };
    let record = place.make(Sort::Snapshot, &handle, record)?;
    Ok(snapshot(handle, record))
}

/// Deletes a snapshot; one that does not exist is a success.
pub(crate) fn delete<S: Store, P: Pool>(place: &Place<'_, S, P>, handle: &str) -> Result<()> {
    match place.find(Sort::Snapshot, handle)? {
        Some(found) => place.clear(Sort::Snapshot, handle, found),
        None => Ok(()),
    }
}

/// Describes a snapshot.
pub(crate) fn get<S: Store, P: Pool>(place: &Place<'_, S, P>, handle: String) -> Result<Snapshot> {
    let record = place.ready(Sort::Snapshot, &handle)?.value;
    Ok(snapshot(handle, record))
}

/// Lists snapshots, all or those of one volume.
pub(crate) fn list<S: Store, P: Pool>(
    place: &Place<'_, S, P>,
    source: Option<&str>,
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<SnapshotPage> {
    let of_source = |record: &Record| source.is_none_or(|source| record.source.as_deref() == Some(source));
    let (records, next) = place.list(Sort::Snapshot, after, limit, of_source)?;
    Ok(SnapshotPage {
        snapshots: records.into_iter().map(|(handle, record)| snapshot(handle, record)).collect(),
        next,
    })
}

fn snapshot(handle: String, record: Record) -> Snapshot {
    Snapshot {
        handle,
        source: record.source.unwrap_or_default(),
        size_bytes: Some(record.size),
        created_at_ms: record.changed_ms,
        ready: true,
        group: None,
        owner: None,
    }
}
