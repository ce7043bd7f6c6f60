//! ControllerPublishVolume and ControllerUnpublishVolume.

use std::collections::BTreeMap;

use cofferdam_guest::{
    AccessMode, AccessType, ConnectionInfo, Result, StorageError,
    abilities::PublishRequest,
    handle,
    state::{self, Change, Decision, Store, Versioned, decide},
};

use crate::{
    records::{
        MemoryCall, MemoryNode, MemoryPublication, MemoryVolume, node_key, read_entry, read_volume,
        volume_key,
    },
    request, values, volumes,
};

/// Maximum nodes that one commit unpublishes. Each node is one change; the volume is one more.
const NODES_PER_COMMIT: usize = 15;

/// Publishes a volume to a node.
pub(crate) fn publish<S: Store>(
    call: &MemoryCall<'_, S>,
    request: &PublishRequest,
) -> Result<ConnectionInfo> {
    request::require_id("volume handle", &request.handle)?;
    request::require_id("node", &request.node)?;
    values::check_text("the node", &request.node, values::MAX_NODE_ID)?;
    let capability = request::canonical_capability(&request.capability, call.settings)?;
    let context = values::parse_pairs("the volume's attributes", &request.context)?;
    if request.read_only && !call.settings.features.publish_readonly {
        return Err(StorageError::invalid_argument(
            "publishing for reading only needs the feature `publish-readonly`, which is switched off",
        ));
    }
    let publication = memory_publication(request, &capability);
    decide(call.store, |_| {
        let Versioned { value: mut volume, version } = read_volume(call.store, &request.handle)?;
        if let Some((key, value)) =
            volumes::conflicting_attribute(&volumes::volume_context(&volume), &context)
        {
            return Err(StorageError::invalid_argument(format!(
                "the volume's attribute {key:?} is not {value:?}"
            )));
        }
        if call.settings.nodes.as_ref().is_some_and(|nodes| !nodes.contains(&request.node)) {
            return Err(StorageError::not_found(format!("there is no node {:?}", request.node)));
        }
        check_capability(&volume, request, &capability)?;
        let info = connection_info(&request.capability.access, volume.size);
        if is_published(&volume, request, &publication)? {
            return Ok(Decision::Done(info));
        }
        let node = add_volume_to_node(call, &request.node)?;
        volume.nodes.insert(request.node.clone(), publication.clone());
        volume.changed_ms = call.now_ms;
        let changes = vec![state::put(&volume_key(&request.handle), &volume, Some(version))?, node];
        Ok(Decision::Commit(changes, info))
    })
}

fn memory_publication(request: &PublishRequest, capability: &str) -> MemoryPublication {
    let (shared, sole_writer) = match request.capability.mode {
        AccessMode::SingleNodeWriter
        | AccessMode::SingleNodeReaderOnly
        | AccessMode::SingleNodeSingleWriter
        | AccessMode::SingleNodeMultiWriter => (false, false),
        AccessMode::MultiNodeReaderOnly | AccessMode::MultiNodeMultiWriter => (true, false),
        AccessMode::MultiNodeSingleWriter => (true, !request.read_only),
    };
    MemoryPublication {
        // The capability string contains spaces, so `from_name` always returns a digest.
        capability: handle::from_name("use", capability),
        shared,
        sole_writer,
        read_only: request.read_only,
    }
}

/// Rejects an access type or a multi-node access mode that the volume was not created for. Every single-node
/// access mode is accepted. Filesystem and mount options are checked by the node.
fn check_capability(found: &MemoryVolume, request: &PublishRequest, capability: &str) -> Result<()> {
    let mode = request.capability.mode;
    let kind = request.capability.access.as_str();
    let covers = |stored: &String| {
        values::access_type_of(stored) == kind
            && (!mode.is_multi_node() || values::access_mode_of(stored) == mode.as_str())
    };
    if found.arguments.capabilities.iter().any(covers) {
        return Ok(());
    }
    Err(StorageError::invalid_argument(format!(
        "{capability} is not among the ways the volume was created for: {}",
        found.arguments.capabilities.join(", ")
    )))
}

/// Returns true if the volume is already published in this way, and an error if an existing publication
/// conflicts.
fn is_published(
    found: &MemoryVolume,
    request: &PublishRequest,
    publication: &MemoryPublication,
) -> Result<bool> {
    if let Some(present) = found.nodes.get(&request.node) {
        if present == publication {
            return Ok(true);
        }
        return Err(StorageError::already_exists(format!(
            "the volume {:?} is published to {:?} in another way",
            request.handle, request.node
        )));
    }
    let excludes = |other: &MemoryPublication| {
        !publication.shared || !other.shared || (publication.sole_writer && other.sole_writer)
    };
    match found.nodes.iter().find(|(_, other)| excludes(other)) {
        Some((node, _)) => Err(StorageError::failed_precondition(format!(
            "the volume {:?} is published to {node:?}, and cannot be used on {:?} at the same time",
            request.handle, request.node
        ))),
        None => Ok(false),
    }
}

/// Returns the change that adds a volume to the count of a node. Fails if the node has reached its limit.
fn add_volume_to_node<S: Store>(call: &MemoryCall<'_, S>, node: &str) -> Result<Change> {
    let key = node_key(node);
    let found = state::read::<MemoryNode>(call.store, &key)?;
    let (volumes, version) = found.map_or((0, None), |found| (found.value.volumes, Some(found.version)));
    match call.settings.volumes_per_node {
        Some(limit) if volumes >= u64::from(limit) => Err(StorageError::resource_exhausted(format!(
            "{volumes} volumes are published to {node:?}; at most {limit} are allowed"
        ))),
        _ => state::put(&key, &MemoryNode { volumes: volumes.saturating_add(1) }, version),
    }
}

/// The connection info of a volume: a filesystem is a tmpfs on the node; for a block volume, the node has
/// nothing to do.
fn connection_info(access: &AccessType, size: u64) -> ConnectionInfo {
    match access {
        AccessType::Block => ConnectionInfo::none(),
        AccessType::Filesystem(_) => ConnectionInfo {
            kind: "tmpfs".to_owned(),
            version: 1,
            fields: vec![("size".to_owned(), size.to_string())],
        },
    }
}

/// Unpublishes a volume from one node, or from all nodes if `node` is `None`. Succeeds if the volume does not
/// exist or is not published. Many nodes take several commits. If the call dies in between, the volume
/// remains published to the other nodes, and the next call continues.
pub(crate) fn unpublish<S: Store>(call: &MemoryCall<'_, S>, handle: &str, node: Option<&str>) -> Result<()> {
    request::require_id("volume handle", handle)?;
    node.map_or(Ok(()), |node| request::require_id("node", node))?;
    loop {
        let remaining = decide(call.store, |_| {
            let Some(Versioned { value: mut volume, version }) =
                read_entry::<MemoryVolume>(call.store, handle, volume_key)?
            else {
                return Ok(Decision::Done(0));
            };
            let unpublished: Vec<String> = match node {
                Some(node) => volume.nodes.keys().filter(|known| *known == node).cloned().collect(),
                None => volume.nodes.keys().take(NODES_PER_COMMIT).cloned().collect(),
            };
            if unpublished.is_empty() {
                return Ok(Decision::Done(0));
            }
            let mut changes = Vec::with_capacity(unpublished.len() + 1);
            for node in &unpublished {
                volume.nodes.remove(node);
                changes.extend(remove_volume_from_node(call.store, node)?);
            }
            volume.changed_ms = call.now_ms;
            changes.push(state::put(&volume_key(handle), &volume, Some(version))?);
            Ok(Decision::Commit(changes, if node.is_some() { 0 } else { volume.nodes.len() }))
        })?;
        if remaining == 0 {
            return Ok(());
        }
    }
}

fn remove_volume_from_node(store: &impl Store, node: &str) -> Result<Option<Change>> {
    let key = node_key(node);
    let Some(Versioned { value, version }) = state::read::<MemoryNode>(store, &key)? else { return Ok(None) };
    let volumes = value.volumes.saturating_sub(1);
    if volumes == 0 {
        return Ok(Some(state::remove(&key, version)));
    }
    state::put(&key, &MemoryNode { volumes }, Some(version)).map(Some)
}

/// The nodes that a volume is published to.
pub(crate) fn published_nodes(nodes: &BTreeMap<String, MemoryPublication>) -> Vec<String> {
    nodes.keys().cloned().collect()
}
