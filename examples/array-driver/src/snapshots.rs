//! Snapshots. The array cuts them at once, so they are ready when they exist.

use cofferdam_guest::{
    Result, Snapshot, StorageError,
    abilities::{SnapshotPage, SnapshotRequest},
    handle,
    http::Request,
    idempotent::{self, Created, Existing},
    paging,
    parameters::Reader,
};

use crate::{
    client::{Client, is_a_name},
    model::{self, NewSnapshot, SnapshotList},
    volumes,
};

/// Cuts a snapshot or finds it.
pub(crate) fn create(client: &Client, request: SnapshotRequest) -> Result<Snapshot> {
    volumes::check_name(&request.name)?;
    Reader::parameters(request.parameters).finish()?;
    let name = handle::of("snap", &request.name);
    let url = client.url(&["snapshots", &name])?;
    let found = idempotent::find_or_create(
        || find(client, &name),
        |found| {
            let existing = Existing::new("snapshot", &request.name);
            existing.same("source", &found.volume, &request.source).check()
        },
        || {
            let wanted = NewSnapshot { volume: &request.source };
            let response = client.ask(|| Request::put(&url).header("if-none-match", "*").json(&wanted))?;
            if response.status == 412 {
                return Ok(Created::Taken);
            }
            let made = response
                .ok_or(|response| (response.status == 404).then(|| volumes::missing(&request.source)))?;
            made.json().map(Created::New)
        },
    )?;
    Ok(snapshot(found))
}

/// Deletes a snapshot; one that does not exist is a success. Volumes that were made of it keep their content.
pub(crate) fn delete(client: &Client, handle: &str) -> Result<()> {
    if !is_a_name(handle) {
        return Ok(());
    }
    client.remove(&["snapshots", handle], || {
        StorageError::failed_precondition(format!("the snapshot {handle:?} is in use"))
    })
}

/// Describes a snapshot.
pub(crate) fn get(client: &Client, handle: &str) -> Result<Snapshot> {
    match find(client, handle)? {
        Some(found) => Ok(snapshot(found)),
        None => Err(StorageError::not_found(format!("there is no snapshot {handle:?}"))),
    }
}

/// A part of the snapshots.
pub(crate) fn list(
    client: &Client,
    source: Option<&str>,
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<SnapshotPage> {
    let after = paging::key(after)?;
    let response = client.ask(|| {
        let request = Request::get(client.url(&["snapshots"])?);
        let request = match source {
            Some(source) => request.query("volume", source),
            None => request,
        };
        Ok(volumes::page(request, after, limit))
    })?;
    let SnapshotList { snapshots, more } = response.ok_or(|_| None)?.json()?;
    let last = snapshots.last().filter(|_| more);
    Ok(SnapshotPage {
        next: last.map(|last| paging::place(&last.name)),
        snapshots: snapshots.into_iter().map(snapshot).collect(),
    })
}

/// The snapshot of a handle.
pub(crate) fn find(client: &Client, handle: &str) -> Result<Option<model::Snapshot>> {
    if is_a_name(handle) { client.find(&["snapshots", handle]) } else { Ok(None) }
}

fn snapshot(found: model::Snapshot) -> Snapshot {
    Snapshot {
        handle: found.name,
        source: found.volume,
        size_bytes: Some(found.bytes),
        created_at_ms: found.created_ms,
        ready: true,
        group: None,
        owner: None,
    }
}
