//! Snapshots: copies of items, which do not need their volume any more.

use cofferdam_guest::{
    Result, Snapshot, StorageError,
    abilities::{SnapshotPage, SnapshotRequest},
    log::{self, Level},
    pool::Pool,
    state::Store,
};

use crate::{
    items::{Owner, Phase, Place, Record, Sort, Source},
    request::{self, Consistency, Shape},
};

/// Cuts a snapshot or finds it.
pub(crate) fn create<S: Store, P: Pool>(
    place: &Place<'_, S, P>,
    request: SnapshotRequest,
) -> Result<Snapshot> {
    let handle = request::handle("snap", &request.name)?;
    let asked = request::snapshot_parameters(request.parameters)?;
    match place.find(Sort::Snapshot, &handle)? {
        Some(found) if found.value.phase == Phase::Removing => place.clear(Sort::Snapshot, &handle, found)?,
        Some(found) => {
            same(&found.value, &request.name, &request.source, asked)?;
            let record = match found.value.phase {
                Phase::Making => place.resume(Sort::Snapshot, &handle, found)?,
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
        item: place.new_item(&handle),
        kind: source.kind,
        size: place.size(&source)?,
        source: Some(Source {
            handle: request.source,
            item: source.item,
            consistency: asked.unwrap_or(Consistency::usual(source.kind)),
        }),
        shape: Shape::default(),
        owner: request.owner.as_ref().map(Owner::of_snapshot),
        changed_ms: place.now_ms,
    };
    let record = place.make(Sort::Snapshot, &handle, record)?;
    Ok(snapshot(handle, record))
}

/// Whether the snapshot of a name is what the same name asks for now.
fn same(found: &Record, name: &str, source: &str, asked: Option<Consistency>) -> Result<()> {
    let of = found.source.as_ref();
    if found.name != name || of.is_none_or(|of| of.handle != source) {
        return Err(StorageError::already_exists(format!(
            "the snapshot {:?} exists, of the volume {:?}",
            found.name,
            of.map_or("", |of| &of.handle)
        )));
    }
    if asked == Some(Consistency::Crash) && of.is_some_and(|of| of.consistency == Consistency::None) {
        return Err(StorageError::already_exists(format!(
            "the snapshot {name:?} exists, and is not of one moment"
        )));
    }
    Ok(())
}

/// Deletes a snapshot; one that does not exist is a success.
pub(crate) fn delete<S: Store, P: Pool>(place: &Place<'_, S, P>, handle: &str) -> Result<()> {
    match place.find(Sort::Snapshot, handle)? {
        Some(found) => place.clear(Sort::Snapshot, handle, found),
        None => Ok(()),
    }
}

/// Describes a snapshot. One that is half made or half removed is not ready.
pub(crate) fn get<S: Store, P: Pool>(place: &Place<'_, S, P>, handle: String) -> Result<Snapshot> {
    match place.find(Sort::Snapshot, &handle)? {
        Some(found) => Ok(snapshot(handle, found.value)),
        None => Err(StorageError::not_found(format!("there is no snapshot {handle:?}"))),
    }
}

/// Lists snapshots, all or those of one volume.
pub(crate) fn list<S: Store, P: Pool>(
    place: &Place<'_, S, P>,
    source: Option<&str>,
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<SnapshotPage> {
    let of_source = |record: &Record| {
        source.is_none_or(|source| record.source.as_ref().is_some_and(|of| of.handle == source))
    };
    let (records, next) = place.list(Sort::Snapshot, after, limit, of_source)?;
    let shown = |(handle, listed)| match listed {
        Ok(record) => Some(snapshot(handle, record)),
        // Without its record nobody knows what it is of, and a snapshot has no condition to say so.
        Err(why) => {
            log::write(
                Level::Warn,
                "a snapshot is left out of a listing",
                &[("handle", &handle), ("why", &why)],
            );
            None
        }
    };
    Ok(SnapshotPage { snapshots: records.into_iter().filter_map(shown).collect(), next })
}

fn snapshot(handle: String, record: Record) -> Snapshot {
    Snapshot {
        handle,
        source: record.source.map(|source| source.handle).unwrap_or_default(),
        size_bytes: Some(record.size),
        created_at_ms: record.changed_ms,
        ready: record.phase == Phase::Ready,
        group: None,
        owner: record.owner.map(Owner::for_snapshot),
    }
}
