//! Snapshots. The array creates them immediately, so every existing snapshot is ready.

use cofferdam_guest::{
    Result, Snapshot, StorageError,
    abilities::{SnapshotPage, SnapshotRequest},
    handle,
    http::Request,
    idempotent::{self, Created, ExistingComparison},
    paging,
    parameters::ParameterReader,
};

use crate::{
    client::{ArrayClient, is_array_name},
    model::{self, NewSnapshot, SnapshotList},
    volumes,
};

/// Creates a snapshot, or returns the existing one.
pub(crate) fn create(client: &ArrayClient, request: SnapshotRequest) -> Result<Snapshot> {
    volumes::check_name(&request.name)?;
    ParameterReader::parameters(request.parameters).finish()?;
    let name = handle::from_name("snap", &request.name);
    let url = client.url(&["snapshots", &name])?;
    let found = idempotent::find_or_create(
        || client.snapshot(&name),
        |found| {
            let existing = ExistingComparison::new("snapshot", &request.name);
            existing.equal("source", &found.volume, &request.source).check()
        },
        || {
            let new_snapshot = NewSnapshot { volume: &request.source };
            let response =
                client.send(|| Request::put(&url).header("if-none-match", "*").json(&new_snapshot))?;
            if response.status == 412 {
                return Ok(Created::AlreadyExists);
            }
            let made = response.ok_or(|response| {
                (response.status == 404).then(|| volumes::volume_not_found(&request.source))
            })?;
            made.json().map(Created::New)
        },
    )?;
    Ok(snapshot(found))
}

/// Deletes a snapshot. Succeeds if it does not exist. Volumes created from it keep their content.
pub(crate) fn delete(client: &ArrayClient, handle: &str) -> Result<()> {
    if !is_array_name(handle) {
        return Ok(());
    }
    client.delete_if_exists(&["snapshots", handle], || {
        StorageError::failed_precondition(format!("the snapshot {handle:?} is in use"))
    })
}

/// Returns a snapshot.
pub(crate) fn get(client: &ArrayClient, handle: &str) -> Result<Snapshot> {
    match client.snapshot(handle)? {
        Some(found) => Ok(snapshot(found)),
        None => Err(StorageError::not_found(format!("there is no snapshot {handle:?}"))),
    }
}

/// Lists a page of the snapshots.
pub(crate) fn list(
    client: &ArrayClient,
    source: Option<&str>,
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<SnapshotPage> {
    let after = paging::key_of_token(after)?;
    let response = client.send(|| {
        let request = Request::get(client.url(&["snapshots"])?);
        let request = match source {
            Some(source) => request.query("volume", source),
            None => request,
        };
        Ok(volumes::with_page_query(request, after, limit))
    })?;
    let SnapshotList { snapshots, more } = response.ok_or(|_| None)?.json()?;
    let last = snapshots.last().filter(|_| more);
    Ok(SnapshotPage {
        next: last.map(|last| paging::token(&last.name)),
        snapshots: snapshots.into_iter().map(snapshot).collect(),
    })
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
