//! What attaching decides. Source: external-attacher's handler of VolumeAttachments and PersistentVolumes. What keeps an object
//! until the driver has let go stands before the driver is asked, and an attachment that cannot be made stays free of it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use cofferdam_cluster::{Cache, Seen};
use cofferdam_domain::{
    AccessMode, Attachment, AttachmentSource, DriverName, NodeId, Volume, VolumeHandle, VolumeMode, names,
    storage::{AccessType, CapabilityMode, PublishVolume, VolumeCapability, attachment},
    volume::{CsiSource, SecretRef},
};

/// What a driver can do, as far as decisions depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Able {
    /// Volumes are published to nodes; without it they are reachable from everywhere.
    pub publishes: bool,
    /// Volumes can be published for reading only.
    pub read_only: bool,
    /// It tells one writer on a node from many (CSI `SINGLE_NODE_MULTI_WRITER`).
    pub tells_writers: bool,
}

/// The world that a decision about an attachment is about.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The cached objects.
    pub cache: &'a Cache,
    /// What the attachment's driver can do.
    pub able: Able,
    /// Filesystem type for volumes that name none.
    pub default_fs_type: Option<&'a str>,
    /// Whether the driver's listing contradicts the attachment's status.
    pub forced: bool,
    /// Nodes that the volume was unpublished from in this run.
    pub gone_from: &'a [NodeId],
}

/// The next effect for an attachment.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Nothing; the text says why, for people.
    Settled(&'static str),
    /// Put our finalizer on the volume's object: without it nobody could tell later what to detach.
    ProtectVolume(Arc<Volume>),
    /// Put our finalizer and the driver's name of the node on the attachment.
    Claim(NodeId),
    /// Publish the volume, then write down how the node reaches it.
    Publish(Box<PublishVolume>),
    /// Say that it is attached: the driver has nothing to do for it.
    MarkAttached,
    /// Unpublish the volume.
    Unpublish(Unpublish),
    /// Take our finalizer, at this place of the list, off the attachment.
    Release(usize),
    /// Say that it is no longer attached.
    MarkDetached,
    /// It cannot be done as things stand; for the attachment's status.
    Refuse(String),
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
pub fn attachment(view: View<'_>, attachment: &Attachment) -> Verdict {
    if attachment.meta.deleting { detach(view, attachment) } else { attach(view, attachment) }
}

fn attach(view: View<'_>, attachment: &Attachment) -> Verdict {
    if !view.able.publishes {
        return if attachment.attached { Verdict::Settled("it is attached") } else { Verdict::MarkAttached };
    }
    if attachment.attached && !view.forced {
        return Verdict::Settled("it is attached");
    }
    try_attach(view, attachment).unwrap_or_else(Verdict::Refuse)
}

fn try_attach(view: View<'_>, attachment: &Attachment) -> Result<Verdict, String> {
    let (volume, csi) = volume_of(view.cache, attachment)?;
    if volume.meta.deleting {
        return Err(format!("PersistentVolume {} is marked for deletion", volume.name));
    }
    let capability = capability(&volume, &csi, view.able.tells_writers, view.default_fs_type)?;
    let node = node_id(view.cache, attachment)?;
    let recorded = recorded(attachment);
    let finalizer = names::attacher_finalizer(&attachment.attacher);
    let claimed = attachment.meta.finalizer(&finalizer).is_some();
    if let Some(former) = recorded.as_ref().filter(|former| claimed && **former != node)
        && !view.gone_from.contains(former)
    {
        // What was asked for under the former name may have happened, and would be forgotten with that name.
        let (handle, node) = (csi.handle, former.clone());
        return Ok(Verdict::Unpublish(Unpublish { handle, node, former: true }));
    }
    if volume.meta.finalizer(&finalizer).is_none() {
        return Ok(Verdict::ProtectVolume(volume));
    }
    if !claimed || recorded.as_ref() != Some(&node) {
        return Ok(Verdict::Claim(node));
    }
    Ok(Verdict::Publish(Box::new(PublishVolume {
        handle: csi.handle,
        node,
        node_identities: Default::default(),
        capability,
        read_only: csi.read_only && view.able.read_only,
        context: attachment::attributes((&csi.attributes).into()),
    })))
}

fn detach(view: View<'_>, attachment: &Attachment) -> Verdict {
    let finalizer = names::attacher_finalizer(&attachment.attacher);
    let claimed = attachment.meta.finalizer(&finalizer);
    if !view.able.publishes {
        return claimed.map_or(Verdict::Settled("it goes"), Verdict::Release);
    }
    // Without our finalizer it is only looked at while others hold it: a process may have died before it said that it is done.
    if claimed.is_none() && !attachment.attached && !view.forced {
        return Verdict::Settled("it goes");
    }
    match next_unpublish(view, attachment) {
        Ok(Some(unpublish)) => Verdict::Unpublish(unpublish),
        Ok(None) => match claimed {
            Some(at) => Verdict::Release(at),
            None if attachment.attached => Verdict::MarkDetached,
            None => Verdict::Settled("it is detached"),
        },
        Err(message) if claimed.is_some() => Verdict::Refuse(message),
        Err(_) => Verdict::Settled("nobody holds it for us"),
    }
}

/// From where the volume is to be unpublished next; nothing when it is not to be, or no longer.
fn next_unpublish(view: View<'_>, attachment: &Attachment) -> Result<Option<Unpublish>, String> {
    let (_, csi) = volume_of(view.cache, attachment).map_err(|message| {
        let finalizer = names::attacher_finalizer(&attachment.attacher);
        format!("{message}: nobody can tell what to detach; once it is known to be detached, take the finalizer {finalizer} off")
    })?;
    if is_wanted_by_another(view.cache, attachment, &csi) {
        return Ok(None);
    }
    let now = node_id(view.cache, attachment).ok();
    let recorded = recorded(attachment);
    if now.is_none() && recorded.is_none() {
        return Err(format!(
            "neither CSINode {} nor the annotation {} says how driver {} calls the node",
            attachment.node,
            names::NODE_ID,
            attachment.attacher
        ));
    }
    let has_gone = |node: &NodeId| view.gone_from.contains(node);
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
fn is_wanted_by_another(cache: &Cache, attachment: &Attachment, csi: &CsiSource) -> bool {
    let finalizer = names::attacher_finalizer(&attachment.attacher);
    cache.attachments_of_node(&attachment.node).iter().any(|other| {
        other.name != attachment.name
            && other.attacher == attachment.attacher
            && !other.meta.deleting
            && (other.attached || other.meta.finalizer(&finalizer).is_some())
            && volume_of(cache, other).is_ok_and(|(_, theirs)| theirs.handle == csi.handle)
    })
}

/// The volume that an attachment names, of the driver that it names.
///
/// # Errors
/// A sentence for people.
pub fn volume_of(cache: &Cache, attachment: &Attachment) -> Result<(Arc<Volume>, CsiSource), String> {
    let name = match &attachment.source {
        AttachmentSource::Volume(name) => name,
        AttachmentSource::Inline => {
            return Err("spec.source is an inlineVolumeSpec: this version attaches no volumes of in-tree plugins; expected \
                        persistentVolumeName"
                .to_owned());
        }
        AttachmentSource::Unclear(members) => {
            return Err(format!("spec.source has {members} members: expected one, persistentVolumeName"));
        }
    };
    let volume = match cache.volumes.get(name) {
        Seen::Known(volume) => volume,
        Seen::Opaque(_) => return Err(format!("PersistentVolume {name} cannot be read")),
        Seen::Absent => return Err(format!("PersistentVolume {name} does not exist")),
    };
    let driver = &attachment.attacher;
    match volume.csi.clone() {
        Some(csi) if csi.driver == *driver => Ok((volume, csi)),
        Some(csi) => Err(format!("PersistentVolume {name} is of driver {}: expected {driver}", csi.driver)),
        None => Err(format!("PersistentVolume {name} has no spec.csi: expected one of driver {driver}")),
    }
}

/// The Secret that a volume is published with.
pub fn secret_of(cache: &Cache, attachment: &Attachment) -> Option<SecretRef> {
    volume_of(cache, attachment).ok().and_then(|(_, csi)| csi.publish_secret).map(|secret| *secret)
}

/// How the driver calls the node, as its node service said when it was registered.
///
/// # Errors
/// A sentence for people.
pub fn node_id(cache: &Cache, attachment: &Attachment) -> Result<NodeId, String> {
    let Attachment { node, attacher, .. } = attachment;
    let known = match cache.csi_nodes.get(node) {
        Seen::Known(known) => known,
        Seen::Opaque(_) => return Err(format!("CSINode {node} cannot be read")),
        Seen::Absent => return Err(format!("CSINode {node} does not exist")),
    };
    let id = known.ids.get(attacher).filter(|id| !id.as_str().is_empty());
    id.cloned().ok_or_else(|| {
        format!("CSINode {node} does not name driver {attacher}: expected it registered there")
    })
}

/// How the driver called the node when the volume was published.
fn recorded(attachment: &Attachment) -> Option<NodeId> {
    attachment.meta.annotation(names::NODE_ID).filter(|id| !id.is_empty()).map(NodeId::from)
}

/// The volume's ways of use, folded into one as external-attacher and external-resizer do.
///
/// # Errors
/// A sentence for people.
pub fn capability(
    volume: &Volume,
    csi: &CsiSource,
    tells_writers: bool,
    default_fs_type: Option<&str>,
) -> Result<VolumeCapability, String> {
    let mode = mode(volume, tells_writers)
        .map_err(|problem| format!("PersistentVolume {}: spec.accessModes {problem}", volume.name))?;
    let access = match volume.mode {
        VolumeMode::Block => AccessType::Block,
        VolumeMode::Filesystem => AccessType::Filesystem {
            fs_type: csi.fs_type.as_deref().or(default_fs_type).map(str::to_owned),
            mount_flags: volume.mount_options.clone(),
            mount_group: None,
        },
    };
    Ok(VolumeCapability { mode, access })
}

fn mode(volume: &Volume, finely: bool) -> Result<CapabilityMode, &'static str> {
    let has = |mode| volume.access_modes.contains([mode].into_iter().collect());
    if has(AccessMode::ReadWriteOncePod) {
        return match (volume.access_modes.len(), finely) {
            (1, true) => Ok(CapabilityMode::SingleNodeSingleWriter),
            (1, false) => Ok(CapabilityMode::SingleNodeWriter),
            _ => Err("has ReadWriteOncePod beside others: expected it alone"),
        };
    }
    if has(AccessMode::ReadWriteMany) {
        return Ok(CapabilityMode::MultiNodeMultiWriter);
    }
    match (has(AccessMode::ReadOnlyMany), has(AccessMode::ReadWriteOnce)) {
        (true, true) => Err("has ReadOnlyMany and ReadWriteOnce: expected one of them, or ReadWriteMany"),
        (true, false) => Ok(CapabilityMode::MultiNodeReaderOnly),
        (false, true) if finely => Ok(CapabilityMode::SingleNodeMultiWriter),
        (false, true) => Ok(CapabilityMode::SingleNodeWriter),
        (false, false) => Err("is empty: expected at least one"),
    }
}

/// Whether a change of an attachment is a reason to look at it. What we write ourselves is none: else the back-off after an error
/// would end with the writing of that error.
pub fn matters(old: Option<&Attachment>, new: &Attachment) -> bool {
    old.is_none_or(|old| {
        old.meta.uid != new.meta.uid
            || old.meta.deleting != new.meta.deleting
            || (old.attached && !new.attached && !new.meta.deleting)
    })
}

/// The finalizer's place in the list of a volume that it may be taken off: the volume is being deleted, and no attachment names it,
/// whoever's. It outlives detaching, because the next attachment would need it again.
pub fn volume(cache: &Cache, ours: &dyn Fn(&DriverName) -> bool, volume: &Volume) -> Option<usize> {
    let csi = volume.csi.as_ref().filter(|csi| ours(&csi.driver) && volume.meta.deleting)?;
    let at = volume.meta.finalizer(&names::attacher_finalizer(&csi.driver))?;
    cache.attachments_of_volume(&volume.name).is_empty().then_some(at)
}

/// Where a driver's listing says that volumes are published.
pub type Listed = HashMap<VolumeHandle, HashSet<NodeId>>;

/// Whether a listing contradicts an attachment. A volume that is not in the list at all proves nothing: to publish it again would
/// not bring it back, and a list that is not complete would have everything published again.
pub fn contradicts(cache: &Cache, listed: &Listed, attachment: &Attachment) -> bool {
    let Ok((_, csi)) = volume_of(cache, attachment) else { return false };
    let Some(nodes) = listed.get(&csi.handle) else { return false };
    let finalizer = names::attacher_finalizer(&attachment.attacher);
    // A node whose driver is being registered anew has no name for a while.
    let now = node_id(cache, attachment).ok();
    if !attachment.meta.deleting {
        return attachment.attached && now.is_some_and(|node| !nodes.contains(&node));
    }
    let published = now.or_else(|| recorded(attachment)).is_some_and(|node| nodes.contains(&node));
    published
        && attachment.meta.finalizer(&finalizer).is_none()
        && !is_wanted_by_another(cache, attachment, &csi)
}

#[cfg(test)]
mod tests;
