//! What attaching decides. Source: external-attacher's handler of VolumeAttachments and PersistentVolumes.
//! What keeps an object until the driver has let go stands before the driver is asked, and an attachment that
//! cannot be made stays free of it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use cofferdam_cluster::{Cache, Lookup};
use cofferdam_domain::{
    AccessMode, DriverName, NodeId, Volume, VolumeAttachment, VolumeAttachmentSource, VolumeHandle,
    VolumeMode, names,
    storage::{AccessType, CsiAccessMode, PublishVolume, VolumeCapability, connection_info},
    volume::{CsiVolumeSource, SecretRef},
};

/// What a driver can do, as far as decisions depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishAbilities {
    /// Volumes are published to nodes; without it they are reachable from everywhere.
    pub publishes: bool,
    /// Volumes can be published for reading only.
    pub read_only: bool,
    /// It tells one writer on a node from many (CSI `SINGLE_NODE_MULTI_WRITER`).
    pub single_node_multi_writer: bool,
}

/// The world that a decision about an attachment is about.
#[derive(Clone, Copy, Debug)]
pub struct AttacherInput<'a> {
    /// The cached objects.
    pub cache: &'a Cache,
    /// What the attachment's driver can do.
    pub abilities: PublishAbilities,
    /// Filesystem type for volumes that name none.
    pub default_fs_type: Option<&'a str>,
    /// Whether the driver's listing contradicts the attachment's status.
    pub force_sync: bool,
    /// Nodes that the volume was unpublished from in this run.
    pub unpublished_from: &'a [NodeId],
}

/// The next effect for an attachment.
#[derive(Clone, Debug, PartialEq)]
pub enum AttachmentVerdict {
    /// Nothing; the text says why, for people.
    NoAction(&'static str),
    /// Put our finalizer on the volume's object: without it nobody could tell later what to detach.
    AddVolumeFinalizer(Arc<Volume>),
    /// Put our finalizer and the driver's name of the node on the attachment.
    RecordNodeId(NodeId),
    /// Publish the volume, then write down how the node reaches it.
    Publish(Box<PublishVolume>),
    /// Say that it is attached: the driver has nothing to do for it.
    MarkAttached,
    /// Unpublish the volume.
    Unpublish(Unpublish),
    /// Take our finalizer, at this place of the list, off the attachment.
    RemoveFinalizer(usize),
    /// Say that it is no longer attached.
    MarkDetached,
    /// It cannot be done as things stand; for the attachment's status.
    Fail(String),
}

/// What is to be unpublished from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpublish {
    /// The volume.
    pub handle: VolumeHandle,
    /// The node.
    pub node: NodeId,
    /// Whether the node has another name by now: that the driver does not know the former one is a success.
    pub former: bool,
}

/// Decides the next step for an attachment of one of our drivers.
pub fn decide_attachment(input: AttacherInput<'_>, attachment: &VolumeAttachment) -> AttachmentVerdict {
    if attachment.meta.deleting { detach(input, attachment) } else { attach(input, attachment) }
}

fn attach(input: AttacherInput<'_>, attachment: &VolumeAttachment) -> AttachmentVerdict {
    if !input.abilities.publishes {
        return if attachment.attached {
            AttachmentVerdict::NoAction("it is attached")
        } else {
            AttachmentVerdict::MarkAttached
        };
    }
    if attachment.attached && !input.force_sync {
        return AttachmentVerdict::NoAction("it is attached");
    }
    try_attach(input, attachment).unwrap_or_else(AttachmentVerdict::Fail)
}

fn try_attach(input: AttacherInput<'_>, attachment: &VolumeAttachment) -> Result<AttachmentVerdict, String> {
    let (volume, csi) = volume_of(input.cache, attachment)?;
    if volume.meta.deleting {
        return Err(format!("PersistentVolume {} is marked for deletion", volume.name));
    }
    let capability =
        capability(&volume, &csi, input.abilities.single_node_multi_writer, input.default_fs_type)?;
    let node = node_id(input.cache, attachment)?;
    let recorded = recorded_node_id(attachment);
    let finalizer = names::attacher_finalizer(&attachment.attacher);
    let claimed = attachment.meta.finalizer_index(&finalizer).is_some();
    if let Some(former) = recorded.as_ref().filter(|former| claimed && **former != node)
        && !input.unpublished_from.contains(former)
    {
        // What was asked for under the former name may have happened, and would be forgotten with that name.
        let (handle, node) = (csi.handle, former.clone());
        return Ok(AttachmentVerdict::Unpublish(Unpublish { handle, node, former: true }));
    }
    if volume.meta.finalizer_index(&finalizer).is_none() {
        return Ok(AttachmentVerdict::AddVolumeFinalizer(volume));
    }
    if !claimed || recorded.as_ref() != Some(&node) {
        return Ok(AttachmentVerdict::RecordNodeId(node));
    }
    Ok(AttachmentVerdict::Publish(Box::new(PublishVolume {
        handle: csi.handle,
        node_id: node,
        node_identities: Default::default(),
        capability,
        read_only: csi.read_only && input.abilities.read_only,
        context: connection_info::driver_attributes((&csi.attributes).into()),
    })))
}

fn detach(input: AttacherInput<'_>, attachment: &VolumeAttachment) -> AttachmentVerdict {
    let finalizer = names::attacher_finalizer(&attachment.attacher);
    let claimed = attachment.meta.finalizer_index(&finalizer);
    if !input.abilities.publishes {
        return claimed.map_or(AttachmentVerdict::NoAction("it goes"), AttachmentVerdict::RemoveFinalizer);
    }
    // Without our finalizer it is only looked at while others hold it: a process may have died before it said
    // that it is done.
    if claimed.is_none() && !attachment.attached && !input.force_sync {
        return AttachmentVerdict::NoAction("it goes");
    }
    match next_unpublish(input, attachment) {
        Ok(Some(unpublish)) => AttachmentVerdict::Unpublish(unpublish),
        Ok(None) => match claimed {
            Some(at) => AttachmentVerdict::RemoveFinalizer(at),
            None if attachment.attached => AttachmentVerdict::MarkDetached,
            None => AttachmentVerdict::NoAction("it is detached"),
        },
        Err(message) if claimed.is_some() => AttachmentVerdict::Fail(message),
        Err(_) => AttachmentVerdict::NoAction("nobody holds it for us"),
    }
}

/// From where the volume is to be unpublished next; nothing when it is not to be, or no longer.
fn next_unpublish(
    input: AttacherInput<'_>,
    attachment: &VolumeAttachment,
) -> Result<Option<Unpublish>, String> {
    let (_, csi) = volume_of(input.cache, attachment).map_err(|message| {
        let finalizer = names::attacher_finalizer(&attachment.attacher);
        format!("{message}: nobody can tell what to detach; once it is known to be detached, take the finalizer {finalizer} off")
    })?;
    if is_used_by_other_attachment(input.cache, attachment, &csi) {
        return Ok(None);
    }
    let now = node_id(input.cache, attachment).ok();
    let recorded = recorded_node_id(attachment);
    if now.is_none() && recorded.is_none() {
        return Err(format!(
            "neither CSINode {} nor the annotation {} says how driver {} calls the node",
            attachment.node,
            names::NODE_ID,
            attachment.attacher
        ));
    }
    let has_gone = |node: &NodeId| input.unpublished_from.contains(node);
    if let Some(former) = recorded.as_ref().filter(|former| now.as_ref().is_some_and(|now| now != *former))
        && !has_gone(former)
    {
        return Ok(Some(Unpublish { handle: csi.handle, node: former.clone(), former: true }));
    }
    Ok(now.or(recorded).filter(|node| !has_gone(node)).map(|node| Unpublish {
        handle: csi.handle,
        node,
        former: false,
    }))
}

/// Whether another attachment wants the same volume on the same node: then it stays published for that one.
fn is_used_by_other_attachment(cache: &Cache, attachment: &VolumeAttachment, csi: &CsiVolumeSource) -> bool {
    let finalizer = names::attacher_finalizer(&attachment.attacher);
    cache.attachments_of_node(&attachment.node).iter().any(|other| {
        other.name != attachment.name
            && other.attacher == attachment.attacher
            && !other.meta.deleting
            && (other.attached || other.meta.finalizer_index(&finalizer).is_some())
            && volume_of(cache, other).is_ok_and(|(_, theirs)| theirs.handle == csi.handle)
    })
}

/// The volume that an attachment names, of the driver that it names.
///
/// # Errors
/// A sentence for people.
pub fn volume_of(
    cache: &Cache,
    attachment: &VolumeAttachment,
) -> Result<(Arc<Volume>, CsiVolumeSource), String> {
    let name = match &attachment.source {
        VolumeAttachmentSource::Volume(name) => name,
        VolumeAttachmentSource::Inline => {
            return Err("spec.source is an inlineVolumeSpec: this version attaches no volumes of in-tree plugins; expected \
                        persistentVolumeName"
                .to_owned());
        }
        VolumeAttachmentSource::Invalid(members) => {
            return Err(format!("spec.source has {members} members: expected one, persistentVolumeName"));
        }
    };
    let volume = match cache.volumes.get(name) {
        Lookup::Found(volume) => volume,
        Lookup::Undecodable(_) => return Err(format!("PersistentVolume {name} cannot be read")),
        Lookup::Missing => return Err(format!("PersistentVolume {name} does not exist")),
    };
    let driver = &attachment.attacher;
    match volume.csi.clone() {
        Some(csi) if csi.driver == *driver => Ok((volume, csi)),
        Some(csi) => Err(format!("PersistentVolume {name} is of driver {}: expected {driver}", csi.driver)),
        None => Err(format!("PersistentVolume {name} has no spec.csi: expected one of driver {driver}")),
    }
}

/// The Secret that a volume is published with.
pub fn publish_secret(cache: &Cache, attachment: &VolumeAttachment) -> Option<SecretRef> {
    volume_of(cache, attachment).ok().and_then(|(_, csi)| csi.publish_secret).map(|secret| *secret)
}

/// How the driver calls the node, as its node service said when it was registered.
///
/// # Errors
/// A sentence for people.
pub fn node_id(cache: &Cache, attachment: &VolumeAttachment) -> Result<NodeId, String> {
    let VolumeAttachment { node, attacher, .. } = attachment;
    let known = match cache.csi_nodes.get(node) {
        Lookup::Found(known) => known,
        Lookup::Undecodable(_) => return Err(format!("CSINode {node} cannot be read")),
        Lookup::Missing => return Err(format!("CSINode {node} does not exist")),
    };
    let id = known.node_ids.get(attacher).filter(|id| !id.as_str().is_empty());
    id.cloned().ok_or_else(|| {
        format!("CSINode {node} does not name driver {attacher}: expected it registered there")
    })
}

/// How the driver called the node when the volume was published.
fn recorded_node_id(attachment: &VolumeAttachment) -> Option<NodeId> {
    attachment.meta.annotation(names::NODE_ID).filter(|id| !id.is_empty()).map(NodeId::from)
}

/// The volume's ways of use, folded into one as external-attacher and external-resizer do.
///
/// # Errors
/// A sentence for people.
pub fn capability(
    volume: &Volume,
    csi: &CsiVolumeSource,
    single_node_multi_writer: bool,
    default_fs_type: Option<&str>,
) -> Result<VolumeCapability, String> {
    let mode = capability_mode(volume, single_node_multi_writer)
        .map_err(|problem| format!("PersistentVolume {}: spec.accessModes {problem}", volume.name))?;
    let access = match volume.mode {
        VolumeMode::Block => AccessType::Block,
        VolumeMode::Filesystem => AccessType::Filesystem {
            fs_type: csi.fs_type.as_deref().or(default_fs_type).map(str::to_owned),
            mount_flags: volume.mount_options.clone(),
            mount_group: None,
        },
    };
    Ok(VolumeCapability { access_mode: mode, access_type: access })
}

fn capability_mode(volume: &Volume, finely: bool) -> Result<CsiAccessMode, &'static str> {
    let has = |mode| volume.access_modes.contains([mode].into_iter().collect());
    if has(AccessMode::ReadWriteOncePod) {
        return match (volume.access_modes.len(), finely) {
            (1, true) => Ok(CsiAccessMode::SingleNodeSingleWriter),
            (1, false) => Ok(CsiAccessMode::SingleNodeWriter),
            _ => Err("has ReadWriteOncePod beside others: expected it alone"),
        };
    }
    if has(AccessMode::ReadWriteMany) {
        return Ok(CsiAccessMode::MultiNodeMultiWriter);
    }
    match (has(AccessMode::ReadOnlyMany), has(AccessMode::ReadWriteOnce)) {
        (true, true) => Err("has ReadOnlyMany and ReadWriteOnce: expected one of them, or ReadWriteMany"),
        (true, false) => Ok(CsiAccessMode::MultiNodeReaderOnly),
        (false, true) if finely => Ok(CsiAccessMode::SingleNodeMultiWriter),
        (false, true) => Ok(CsiAccessMode::SingleNodeWriter),
        (false, false) => Err("is empty: expected at least one"),
    }
}

/// Whether a change of an attachment is a reason to look at it. What we write ourselves is none: else the
/// back-off after an error would end with the writing of that error.
pub fn is_relevant_change(old: Option<&VolumeAttachment>, new: &VolumeAttachment) -> bool {
    old.is_none_or(|old| {
        old.meta.uid != new.meta.uid
            || old.meta.deleting != new.meta.deleting
            || (old.attached && !new.attached && !new.meta.deleting)
    })
}

/// The finalizer's place in the list of a volume that it may be taken off: the volume is being deleted, and
/// no attachment names it, whoever's. It outlives detaching, because the next attachment would need it again.
pub fn removable_volume_finalizer(
    cache: &Cache,
    is_managed_driver: &dyn Fn(&DriverName) -> bool,
    volume: &Volume,
) -> Option<usize> {
    let csi = volume.csi.as_ref().filter(|csi| is_managed_driver(&csi.driver) && volume.meta.deleting)?;
    let at = volume.meta.finalizer_index(&names::attacher_finalizer(&csi.driver))?;
    cache.attachments_of_volume(&volume.name).is_empty().then_some(at)
}

/// Where a driver's listing says that volumes are published.
pub type PublishedNodesByVolume = HashMap<VolumeHandle, HashSet<NodeId>>;

/// Whether a listing contradicts an attachment. A volume that is not in the list at all proves nothing: to
/// publish it again would not bring it back, and a list that is not complete would have everything published
/// again.
pub fn is_out_of_sync(
    cache: &Cache,
    published_nodes: &PublishedNodesByVolume,
    attachment: &VolumeAttachment,
) -> bool {
    let Ok((_, csi)) = volume_of(cache, attachment) else { return false };
    let Some(nodes) = published_nodes.get(&csi.handle) else { return false };
    let finalizer = names::attacher_finalizer(&attachment.attacher);
    // A node whose driver is being registered anew has no name for a while.
    let now = node_id(cache, attachment).ok();
    if !attachment.meta.deleting {
        return attachment.attached && now.is_some_and(|node| !nodes.contains(&node));
    }
    let published = now.or_else(|| recorded_node_id(attachment)).is_some_and(|node| nodes.contains(&node));
    published
        && attachment.meta.finalizer_index(&finalizer).is_none()
        && !is_used_by_other_attachment(cache, attachment, &csi)
}

#[cfg(test)]
mod tests;
