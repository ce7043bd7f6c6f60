//! Publishing of volumes to nodes.

use cofferdam_guest::{
    AccessMode, ConnectionInfo, Result, StorageError, abilities::PublishRequest, http::Request,
    idempotent::ExistingComparison,
};

use crate::{
    client::{ArrayClient, is_array_name},
    model::{self, NewExport},
    volumes,
};

/// Publishes a volume to a node. The node finds the device by its world-wide name.
pub(crate) fn publish(client: &ArrayClient, request: &PublishRequest) -> Result<ConnectionInfo> {
    if !is_array_name(&request.handle) {
        return Err(volumes::volume_not_found(&request.handle));
    }
    let mode = request.capability.mode;
    let requested =
        NewExport { read_only: request.read_only || is_read_only_mode(mode), exclusive: is_exclusive(mode) };
    let url = client.url(&["volumes", &request.handle, "exports", &request.node])?;
    let response = client.send(|| Request::put(&url).header("if-none-match", "*").json(&requested))?;
    let found = if response.status == 412 {
        existing_export(client, request, &requested)?
    } else {
        let made = response.ok_or(|response| match response.status {
            404 => Some(volumes::volume_not_found(&request.handle)),
            409 => Some(StorageError::failed_precondition(format!(
                "the volume {:?} is published to another node",
                request.handle
            ))),
            _ => None,
        })?;
        made.json::<model::Volume>()?
    };
    Ok(ConnectionInfo::local_device(&found.wwn))
}

/// Returns the volume if it is already published to the node in the requested way. Fails with
/// `already_exists` if it is published in another way, and with `in_progress` if it is no longer published.
fn existing_export(
    client: &ArrayClient,
    request: &PublishRequest,
    requested: &NewExport,
) -> Result<model::Volume> {
    let found = volumes::get_volume(client, &request.handle)?;
    let Some(export) = found.exports.iter().find(|export| export.node == request.node) else {
        // The export existed a moment ago.
        return Err(StorageError::in_progress(format!(
            "the volume {:?} is being unpublished",
            request.handle
        )));
    };
    ExistingComparison::new("export to", &request.node)
        .equal("read-only", &export.read_only, &requested.read_only)
        .equal("exclusive", &export.exclusive, &requested.exclusive)
        .check()?;
    Ok(found)
}

/// Unpublishes a volume from one node or from all nodes.
pub(crate) fn unpublish(client: &ArrayClient, handle: &str, node: Option<&str>) -> Result<()> {
    if !is_array_name(handle) {
        return Ok(());
    }
    let in_use = || StorageError::failed_precondition(format!("the volume {handle:?} is in use"));
    match node {
        Some(node) => client.delete_if_exists(&["volumes", handle, "exports", node], in_use),
        None => client.delete_if_exists(&["volumes", handle, "exports"], in_use),
    }
}

fn is_read_only_mode(mode: AccessMode) -> bool {
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
