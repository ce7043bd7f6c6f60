//! Publish and unpublish: which nodes may use a volume, and how.

use std::collections::BTreeMap;

use cofferdam_guest::{
    AccessMode, AccessType, Attachment, Result, StorageError,
    abilities::PublishRequest,
    handle,
    state::{self, Change, Decision, Store, Versioned, decide},
};

use crate::{
    records::{Call, Node, Publication, Volume, find, node_key, volume, volume_key},
    request, volumes,
};

/// Nodes that one commit takes a volume from: each is a change, and the volume is one.
const NODES_AT_ONCE: usize = 15;

/// Makes a volume reachable from a node.
pub(crate) fn publish<S: Store>(call: &Call<'_, S>, request: &PublishRequest) -> Result<Attachment> {
    request::given("volume handle", &request.handle)?;
    request::given("node", &request.node)?;
    request::text("the node", &request.node, request::MAX_NODE)?;
    let using = request::using(&request.capability, call.settings)?;
    let context = request::map("the volume's attributes", &request.context)?;
    if request.read_only && !call.settings.features.publish_readonly {
        return Err(StorageError::invalid_argument(
            "publishing for reading only needs the feature `publish-readonly`, which is switched off",
        ));
    }
    let publication = publication(request, &using);
    decide(call.store, |_| {
        let Versioned { value: mut found, version } = volume(call.store, &request.handle)?;
        if let Some((key, value)) = volumes::stranger(&volumes::context_of(&found), &context) {
            return Err(StorageError::invalid_argument(format!(
                "the volume's attribute {key:?} is not {value:?}"
            )));
        }
        if call.settings.nodes.as_ref().is_some_and(|nodes| !nodes.contains(&request.node)) {
            return Err(StorageError::not_found(format!("there is no node {:?}", request.node)));
        }
        covered(&found, request, &using)?;
        let attachment = attachment(&request.capability.access, found.size);
        if is_published(&found, request, &publication)? {
            return Ok(Decision::Done(attachment));
        }
        let node = take_a_place(call, &request.node)?;
        found.nodes.insert(request.node.clone(), publication.clone());
        found.changed_ms = call.now_ms;
        let changes = vec![state::put(&volume_key(&request.handle), &found, Some(version))?, node];
        Ok(Decision::Commit(changes, attachment))
    })
}

fn publication(request: &PublishRequest, using: &str) -> Publication {
    let (shared, sole_writer) = match request.capability.mode {
        AccessMode::SingleNodeWriter
        | AccessMode::SingleNodeReaderOnly
        | AccessMode::SingleNodeSingleWriter
        | AccessMode::SingleNodeMultiWriter => (false, false),
        AccessMode::MultiNodeReaderOnly | AccessMode::MultiNodeMultiWriter => (true, false),
        AccessMode::MultiNodeSingleWriter => (true, !request.read_only),
    };
    Publication {
        // What was written out has spaces, and so never is its own handle.
        using: handle::of("use", using),
        shared,
        sole_writer,
        read_only: request.read_only,
    }
}

/// Refuses a use that the volume was not created for. What can be used from many nodes can be used from one; the filesystem
/// and its options are the node's to know.
fn covered(found: &Volume, request: &PublishRequest, using: &str) -> Result<()> {
    let mode = request.capability.mode;
    let kind = request.capability.access.as_str();
    let covers = |kept: &String| {
        request::kind_of(kept) == kind && (!mode.is_multi_node() || request::mode_of(kept) == mode.as_str())
    };
    if found.shape.uses.iter().any(covers) {
        return Ok(());
    }
    Err(StorageError::invalid_argument(format!(
        "{using} is not among the ways the volume was created for: {}",
        found.shape.uses.join(", ")
    )))
}

/// Whether a volume is published like this already; an error when it is published in a way that excludes this one.
fn is_published(found: &Volume, request: &PublishRequest, publication: &Publication) -> Result<bool> {
    if let Some(present) = found.nodes.get(&request.node) {
        if present == publication {
            return Ok(true);
        }
        return Err(StorageError::already_exists(format!(
            "the volume {:?} is published to {:?} in another way",
            request.handle, request.node
        )));
    }
    let excludes = |other: &Publication| {
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

/// Counts a volume on a node, unless the node is full.
fn take_a_place<S: Store>(call: &Call<'_, S>, node: &str) -> Result<Change> {
    let key = node_key(node);
    let found = state::read::<Node>(call.store, &key)?;
    let (volumes, version) = found.map_or((0, None), |found| (found.value.volumes, Some(found.version)));
    match call.settings.volumes_per_node {
        Some(most) if volumes >= u64::from(most) => Err(StorageError::resource_exhausted(format!(
            "{volumes} volumes are published to {node:?}; at most {most} are allowed"
        ))),
        _ => state::put(&key, &Node { volumes: volumes.saturating_add(1) }, version),
    }
}

/// How a node reaches a volume: its content is the node's memory.
fn attachment(access: &AccessType, size: u64) -> Attachment {
    match access {
        AccessType::Block => Attachment::none(),
        AccessType::Filesystem(_) => Attachment {
            kind: "tmpfs".to_owned(),
            version: 1,
            fields: vec![("size".to_owned(), size.to_string())],
        },
    }
}

/// Makes a volume unreachable from a node, or from all. Many nodes take several commits; what is left when a call dies is
/// still published, and the next call goes on with it.
pub(crate) fn unpublish<S: Store>(call: &Call<'_, S>, handle: &str, node: Option<&str>) -> Result<()> {
    request::given("volume handle", handle)?;
    node.map_or(Ok(()), |node| request::given("node", node))?;
    loop {
        let left = decide(call.store, |_| {
            let Some(Versioned { value: mut found, version }) =
                find::<Volume>(call.store, handle, volume_key)?
            else {
                return Ok(Decision::Done(0));
            };
            let leaving: Vec<String> = match node {
                Some(node) => found.nodes.keys().filter(|known| *known == node).cloned().collect(),
                None => found.nodes.keys().take(NODES_AT_ONCE).cloned().collect(),
            };
            if leaving.is_empty() {
                return Ok(Decision::Done(0));
            }
            let mut changes = Vec::with_capacity(leaving.len() + 1);
            for node in &leaving {
                found.nodes.remove(node);
                changes.extend(give_a_place_back(call.store, node)?);
            }
            found.changed_ms = call.now_ms;
            changes.push(state::put(&volume_key(handle), &found, Some(version))?);
            Ok(Decision::Commit(changes, if node.is_some() { 0 } else { found.nodes.len() }))
        })?;
        if left == 0 {
            return Ok(());
        }
    }
}

fn give_a_place_back(store: &impl Store, node: &str) -> Result<Option<Change>> {
    let key = node_key(node);
    let Some(Versioned { value, version }) = state::read::<Node>(store, &key)? else { return Ok(None) };
    let volumes = value.volumes.saturating_sub(1);
    if volumes == 0 {
        return Ok(Some(state::remove(&key, version)));
    }
    state::put(&key, &Node { volumes }, Some(version)).map(Some)
}

/// The nodes that a volume is published to.
pub(crate) fn nodes(nodes: &BTreeMap<String, Publication>) -> Vec<String> {
    nodes.keys().cloned().collect()
}
