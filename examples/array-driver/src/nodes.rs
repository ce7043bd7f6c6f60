//! Which nodes reach a volume.

use cofferdam_guest::{
    AccessMode, Attachment, Result, StorageError, abilities::PublishRequest, http::Request,
    idempotent::Existing,
};

use crate::{
    client::{Client, is_a_name},
    model::{self, NewExport},
    volumes,
};

/// Makes a volume reachable from a node. The node finds its device by its world-wide name.
pub(crate) fn publish(client: &Client, request: &PublishRequest) -> Result<Attachment> {
    if !is_a_name(&request.handle) {
        return Err(volumes::missing(&request.handle));
    }
    let mode = request.capability.mode;
    let wanted =
        NewExport { read_only: request.read_only || is_for_readers(mode), exclusive: is_exclusive(mode) };
    let url = client.url(&["volumes", &request.handle, "exports", &request.node])?;
    let response = client.ask(|| Request::put(&url).header("if-none-match", "*").json(&wanted))?;
    let found = if response.status == 412 {
        published_alike(client, request, &wanted)?
    } else {
        let made = response.ok_or(|response| match response.status {
            404 => Some(volumes::missing(&request.handle)),
            409 => Some(StorageError::failed_precondition(format!(
                "the volume {:?} is published to another node",
                request.handle
            ))),
            _ => None,
        })?;
        made.json::<model::Volume>()?
    };
    Ok(Attachment::local_device(&found.wwn))
}

/// The volume, when it is published to the node already in the way that is asked for.
fn published_alike(client: &Client, request: &PublishRequest, wanted: &NewExport) -> Result<model::Volume> {
    let found = volumes::existing(client, &request.handle)?;
    let Some(export) = found.exports.iter().find(|export| export.node == request.node) else {
        // It was, a moment ago.
        return Err(StorageError::in_progress(format!(
            "the volume {:?} is being unpublished",
            request.handle
        )));
    };
    Existing::new("export to", &request.node)
        .same("read-only", &export.read_only, &wanted.read_only)
        .same("exclusive", &export.exclusive, &wanted.exclusive)
        .check()?;
    Ok(found)
}

/// Makes a volume unreachable from a node, or from all.
pub(crate) fn unpublish(client: &Client, handle: &str, node: Option<&str>) -> Result<()> {
    if !is_a_name(handle) {
        return Ok(());
    }
    let in_use = || StorageError::failed_precondition(format!("the volume {handle:?} is in use"));
    match node {
        Some(node) => client.remove(&["volumes", handle, "exports", node], in_use),
        None => client.remove(&["volumes", handle, "exports"], in_use),
    }
}

fn is_for_readers(mode: AccessMode) -> bool {
    matches!(mode, AccessMode::SingleNodeReaderOnly | AccessMode::MultiNodeReaderOnly)
}

fn is_exclusive(mode: AccessMode) -> bool {
    match mode {
        AccessMode::SingleNodeWriter
        | AccessMode::SingleNodeReaderOnly
        | AccessMode::SingleNodeSingleWriter
        | AccessMode::SingleNodeMultiWriter => true,
        AccessMode::MultiNodeReaderOnly
        | AccessMode::MultiNodeSingleWriter
        | AccessMode::MultiNodeMultiWriter => false,
    }
}
