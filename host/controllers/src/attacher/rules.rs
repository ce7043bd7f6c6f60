//! Attach and detach rules. Source: external-attacher 4.12, `csi_handler.go` and `trivial_handler.go`.
//!
//! The finalizers on the PersistentVolume and the VolumeAttachment are written before the volume is
//! published. A VolumeAttachment that fails a check before that (see [`AttachmentError`]) gets no finalizer,
//! so it stays deletable. Without the capability `PUBLISH_UNPUBLISH_VOLUME` no finalizer is written.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use cofferdam_cluster::{Cache, Lookup};
use cofferdam_domain::{
    AccessMode, DriverName, Node, NodeId, NodeName, ReclaimPolicy, Volume, VolumeAttachment,
    VolumeAttachmentSource, VolumeHandle, VolumeMode, VolumeName, VolumePhase, names,
    storage::{
        AccessType, CsiAccessMode, PROVIDER_ID, Parameters, PublishVolume, VolumeCapability, connection_info,
    },
    volume::{CsiVolumeSource, SecretRef},
};

/// Capabilities of a driver that the decisions depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishAbilities {
    /// The driver publishes volumes (`PUBLISH_UNPUBLISH_VOLUME`). The attacher does not call a driver without
    /// this capability.
    pub publishes: bool,
    /// Volumes can be published read-only (`PUBLISH_READONLY`).
    pub read_only: bool,
    /// The driver distinguishes one writer per node from several (`SINGLE_NODE_MULTI_WRITER`).
    pub single_node_multi_writer: bool,
}

/// Input of [`decide_attachment`].
#[derive(Clone, Copy, Debug)]
pub struct AttacherInput<'a> {
    /// The cached objects.
    pub cache: &'a Cache,
    /// Capabilities of the VolumeAttachment's driver.
    pub abilities: PublishAbilities,
    /// Filesystem type of volumes that have none (`--default-fstype`).
    pub default_fs_type: Option<&'a str>,
    /// `ListVolumes` contradicts the VolumeAttachment's status.
    pub force_sync: bool,
    /// Nodes that the volume was unpublished from in this reconcile.
    pub unpublished_from: &'a [NodeId],
    /// The detach failed in this reconcile, but there is proof that the volume is detached: by the driver's
    /// ListVolumes, or by an operator (see [`check_confirmation`]).
    pub is_detach_proven: bool,
}

/// The next effect for a VolumeAttachment.
#[derive(Clone, Debug, PartialEq)]
pub enum AttachmentVerdict {
    /// No effect; the text is the reason.
    NoAction(&'static str),
    /// Add the attacher's finalizer to the PersistentVolume. It keeps the volume handle readable until the
    /// detach.
    AddVolumeFinalizer(Arc<Volume>),
    /// Write the attacher's finalizer and the node ID annotation to the VolumeAttachment.
    RecordNodeId(NodeId),
    /// Call `ControllerPublishVolume`, then write `status.attached` and the publish context.
    Publish(Box<PublishVolume>),
    /// Set `status.attached` without a driver call: the driver does not publish volumes.
    MarkAttached,
    /// Call `ControllerUnpublishVolume`.
    Unpublish(Unpublish),
    /// Remove the attacher's finalizer, which has this index in the list, from the VolumeAttachment.
    RemoveFinalizer(usize),
    /// Clear `status.attached` of a VolumeAttachment that is being deleted: no call of
    /// `ControllerUnpublishVolume` is left, and the attacher's finalizer is removed.
    MarkDetached,
    /// Write this message to `status.attachError`, or to `status.detachError` of a VolumeAttachment that is
    /// being deleted. Then retry with back-off.
    Fail(String),
}

/// Parameters of a `ControllerUnpublishVolume` call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpublish {
    /// The volume.
    pub handle: VolumeHandle,
    /// The driver's ID of the node.
    pub node: NodeId,
    /// The CSINode has another node ID now. NotFound and InvalidArgument of the driver then count as success.
    pub former: bool,
}

/// The reason why a VolumeAttachment cannot be attached or detached: the message of `status.attachError` or
/// `status.detachError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachmentError {
    /// `spec.source` has only `inlineVolumeSpec`.
    #[error(
        "spec.source is an inlineVolumeSpec: volumes of in-tree plugins are not supported; \
         expected persistentVolumeName"
    )]
    InlineSource,
    /// The number of members of `spec.source` is not one.
    #[error("spec.source has {0} members; expected one, persistentVolumeName")]
    InvalidSource(usize),
    /// The PersistentVolume does not exist.
    #[error("PersistentVolume {0} does not exist")]
    VolumeMissing(VolumeName),
    /// The cached PersistentVolume cannot be decoded.
    #[error("PersistentVolume {0} cannot be decoded")]
    VolumeUndecodable(VolumeName),
    /// The PersistentVolume has a deletion timestamp.
    #[error("PersistentVolume {0} is marked for deletion")]
    VolumeDeleting(VolumeName),
    /// The PersistentVolume has no `spec.csi`.
    #[error("PersistentVolume {volume} has no spec.csi; expected a volume of driver {expected}")]
    NotCsi {
        /// The PersistentVolume.
        volume: VolumeName,
        /// `spec.attacher` of the VolumeAttachment.
        expected: DriverName,
    },
    /// The PersistentVolume belongs to another driver.
    #[error("PersistentVolume {volume} has driver {found}; expected {expected}")]
    OtherDriver {
        /// The PersistentVolume.
        volume: VolumeName,
        /// `spec.csi.driver`.
        found: DriverName,
        /// `spec.attacher` of the VolumeAttachment.
        expected: DriverName,
    },
    /// The VolumeAttachment is being deleted, but its volume cannot be determined. Reported only while the
    /// VolumeAttachment has the attacher's finalizer.
    #[error(
        "{source}: the volume to detach is unknown; \
         verify that it is detached, then remove the finalizer {finalizer}"
    )]
    UnknownVolume {
        /// The cause.
        source: Box<AttachmentError>,
        /// The attacher's finalizer of this driver.
        finalizer: String,
    },
    /// The CSINode does not exist.
    #[error("CSINode {0} does not exist")]
    CsiNodeMissing(NodeName),
    /// The cached CSINode cannot be decoded.
    #[error("CSINode {0} cannot be decoded")]
    CsiNodeUndecodable(NodeName),
    /// The CSINode has no node ID of the driver, or an empty one.
    #[error("driver {driver} is not registered in CSINode {node}")]
    DriverNotRegistered {
        /// The node.
        node: NodeName,
        /// The driver.
        driver: DriverName,
    },
    /// A volume cannot be detached because neither the CSINode nor the VolumeAttachment has the node ID.
    #[error(
        "neither CSINode {node} nor the annotation {} has the node ID of driver {driver}",
        names::NODE_ID
    )]
    UnknownNodeId {
        /// The node.
        node: NodeName,
        /// The driver.
        driver: DriverName,
    },
    /// The access modes of the PersistentVolume have no CSI equivalent.
    #[error(transparent)]
    AccessModes(#[from] AccessModesError),
}

/// Access modes of a PersistentVolume that have no CSI equivalent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PersistentVolume {volume}: spec.accessModes {problem}")]
pub struct AccessModesError {
    volume: VolumeName,
    problem: &'static str,
}

/// Decides the next effect for a VolumeAttachment of one of this process's drivers. Source:
/// external-attacher's `SyncNewOrUpdatedVolumeAttachment`.
pub fn decide_attachment(input: AttacherInput<'_>, attachment: &VolumeAttachment) -> AttachmentVerdict {
    if attachment.meta.deleting { decide_detach(input, attachment) } else { decide_attach(input, attachment) }
}

fn decide_attach(input: AttacherInput<'_>, attachment: &VolumeAttachment) -> AttachmentVerdict {
    if !input.abilities.publishes {
        return if attachment.attached {
            AttachmentVerdict::NoAction("the volume is attached")
        } else {
            AttachmentVerdict::MarkAttached
        };
    }
    if attachment.attached && !input.force_sync {
        return AttachmentVerdict::NoAction("the volume is attached");
    }
    next_attach_step(input, attachment).unwrap_or_else(|error| AttachmentVerdict::Fail(error.to_string()))
}

fn next_attach_step(
    input: AttacherInput<'_>,
    attachment: &VolumeAttachment,
) -> Result<AttachmentVerdict, AttachmentError> {
    let (volume, csi) = volume_of(input.cache, attachment)?;
    if volume.meta.deleting {
        return Err(AttachmentError::VolumeDeleting(volume.name.clone()));
    }
    let capability =
        capability(&volume, &csi, input.abilities.single_node_multi_writer, input.default_fs_type)?;
    let node = node_id(input.cache, attachment)?;
    let recorded = recorded_node_id(attachment);
    let finalizer = names::attacher_finalizer(&attachment.attacher);
    let has_finalizer = attachment.meta.finalizer_index(&finalizer).is_some();
    if let Some(former) = recorded.as_ref().filter(|former| has_finalizer && **former != node)
        && !input.unpublished_from.contains(former)
    {
        // A publish call with the former node ID may have taken effect. The annotation, its only record, is
        // overwritten next.
        let (handle, node) = (csi.handle, former.clone());
        return Ok(AttachmentVerdict::Unpublish(Unpublish { handle, node, former: true }));
    }
    if volume.meta.finalizer_index(&finalizer).is_none() {
        return Ok(AttachmentVerdict::AddVolumeFinalizer(volume));
    }
    if !has_finalizer || recorded.as_ref() != Some(&node) {
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

fn decide_detach(input: AttacherInput<'_>, attachment: &VolumeAttachment) -> AttachmentVerdict {
    let finalizer = names::attacher_finalizer(&attachment.attacher);
    let finalizer_at = attachment.meta.finalizer_index(&finalizer);
    if !input.abilities.publishes {
        return finalizer_at.map_or(
            AttachmentVerdict::NoAction("the VolumeAttachment is being deleted"),
            AttachmentVerdict::RemoveFinalizer,
        );
    }
    if input.is_detach_proven {
        return match finalizer_at {
            Some(at) => AttachmentVerdict::RemoveFinalizer(at),
            None if attachment.attached => AttachmentVerdict::MarkDetached,
            None => AttachmentVerdict::NoAction("the volume is detached"),
        };
    }
    // Without the attacher's finalizer the VolumeAttachment exists only because of other finalizers. If its
    // status is still attached, a process may have died between the removal of the finalizer and the status
    // update.
    if finalizer_at.is_none() && !attachment.attached && !input.force_sync {
        return AttachmentVerdict::NoAction("the VolumeAttachment is being deleted");
    }
    match next_unpublish(input, attachment) {
        Ok(Some(unpublish)) => AttachmentVerdict::Unpublish(unpublish),
        Ok(None) => match finalizer_at {
            Some(at) => AttachmentVerdict::RemoveFinalizer(at),
            None if attachment.attached => AttachmentVerdict::MarkDetached,
            None => AttachmentVerdict::NoAction("the volume is detached"),
        },
        Err(error) if finalizer_at.is_some() => AttachmentVerdict::Fail(error.to_string()),
        Err(_) => AttachmentVerdict::NoAction("the finalizer is not set"),
    }
}

/// The reason why the annotation `confirm-detached` has no effect: the message of an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfirmationError {
    /// The VolumeAttachment is not being deleted.
    #[error(
        "the annotation {} has no effect: the VolumeAttachment is not being deleted; \
         set it after the deletion",
        names::CONFIRM_DETACHED
    )]
    NotDeleting,
    /// The annotation has no value.
    #[error(
        "the annotation {} has no effect: it is empty; \
         expected the reason why the volume is certainly detached",
        names::CONFIRM_DETACHED
    )]
    NoReason,
    /// The Node exists and is in service: kubelet and pods may still write to the volume.
    #[error(
        "the annotation {} has no effect: Node {node} exists without the taint {}; \
         expected the taint, or that the Node is deleted",
        names::CONFIRM_DETACHED,
        names::OUT_OF_SERVICE_TAINT
    )]
    NodeInService {
        /// The node.
        node: NodeName,
    },
}

/// Checks an operator's annotation `confirm-detached`, which ends a detach that the driver cannot complete.
/// `node` is the Node from a live read, `None` if it does not exist. Returns the operator's reason; `None`
/// without the annotation.
///
/// # Errors
/// The annotation has no effect.
pub fn check_confirmation<'a>(
    attachment: &'a VolumeAttachment,
    node: Option<&Node>,
) -> Result<Option<&'a str>, ConfirmationError> {
    let Some(reason) = attachment.meta.annotation(names::CONFIRM_DETACHED) else { return Ok(None) };
    if !attachment.meta.deleting {
        return Err(ConfirmationError::NotDeleting);
    }
    if reason.trim().is_empty() {
        return Err(ConfirmationError::NoReason);
    }
    match node {
        Some(node) if !node.out_of_service => {
            Err(ConfirmationError::NodeInService { node: node.name.clone() })
        }
        Some(_) | None => Ok(Some(reason)),
    }
}

/// Returns the next unpublish call; `None` if all were made, or if another VolumeAttachment uses the volume
/// on this node.
fn next_unpublish(
    input: AttacherInput<'_>,
    attachment: &VolumeAttachment,
) -> Result<Option<Unpublish>, AttachmentError> {
    let (_, csi) = volume_of(input.cache, attachment).map_err(|error| AttachmentError::UnknownVolume {
        source: Box::new(error),
        finalizer: names::attacher_finalizer(&attachment.attacher),
    })?;
    if is_used_by_other_attachment(input.cache, attachment, &csi) {
        return Ok(None);
    }
    let now = node_id(input.cache, attachment).ok();
    let recorded = recorded_node_id(attachment);
    if now.is_none() && recorded.is_none() {
        return Err(AttachmentError::UnknownNodeId {
            node: attachment.node.clone(),
            driver: attachment.attacher.clone(),
        });
    }
    let is_unpublished = |node: &NodeId| input.unpublished_from.contains(node);
    if let Some(former) = recorded.as_ref().filter(|former| now.as_ref().is_some_and(|now| now != *former))
        && !is_unpublished(former)
    {
        return Ok(Some(Unpublish { handle: csi.handle, node: former.clone(), former: true }));
    }
    Ok(now.or(recorded).filter(|node| !is_unpublished(node)).map(|node| Unpublish {
        handle: csi.handle,
        node,
        former: false,
    }))
}

/// Returns true if another VolumeAttachment needs the volume on the same node. The volume then stays
/// published.
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

/// Returns the PersistentVolume of a VolumeAttachment and its CSI source.
///
/// # Errors
/// `spec.source` does not name a PersistentVolume alone, or the PersistentVolume is missing, cannot be
/// decoded, has no `spec.csi` or belongs to another driver.
pub fn volume_of(
    cache: &Cache,
    attachment: &VolumeAttachment,
) -> Result<(Arc<Volume>, CsiVolumeSource), AttachmentError> {
    let name = match &attachment.source {
        VolumeAttachmentSource::Volume(name) => name,
        VolumeAttachmentSource::Inline => return Err(AttachmentError::InlineSource),
        VolumeAttachmentSource::Invalid(members) => return Err(AttachmentError::InvalidSource(*members)),
    };
    let volume = match cache.volumes.get(name) {
        Lookup::Found(volume) => volume,
        Lookup::Undecodable(_) => return Err(AttachmentError::VolumeUndecodable(name.clone())),
        Lookup::Missing => return Err(AttachmentError::VolumeMissing(name.clone())),
    };
    let driver = &attachment.attacher;
    match volume.csi.clone() {
        Some(csi) if csi.driver == *driver => Ok((volume, csi)),
        Some(csi) => Err(AttachmentError::OtherDriver {
            volume: name.clone(),
            found: csi.driver,
            expected: driver.clone(),
        }),
        None => Err(AttachmentError::NotCsi { volume: name.clone(), expected: driver.clone() }),
    }
}

/// Returns the Secret of `ControllerPublishVolume` and `ControllerUnpublishVolume`. Returns `None` if the
/// PersistentVolume has no `controllerPublishSecretRef`, or if [`volume_of`] fails.
pub fn publish_secret(cache: &Cache, attachment: &VolumeAttachment) -> Option<SecretRef> {
    volume_of(cache, attachment).ok().and_then(|(_, csi)| csi.publish_secret).map(|secret| *secret)
}

/// Returns the node ID that the driver registered in the CSINode.
///
/// # Errors
/// The CSINode is missing, cannot be decoded, or has no ID for the driver.
pub fn node_id(cache: &Cache, attachment: &VolumeAttachment) -> Result<NodeId, AttachmentError> {
    let VolumeAttachment { node, attacher, .. } = attachment;
    let csi_node = match cache.csi_nodes.get(node) {
        Lookup::Found(csi_node) => csi_node,
        Lookup::Undecodable(_) => return Err(AttachmentError::CsiNodeUndecodable(node.clone())),
        Lookup::Missing => return Err(AttachmentError::CsiNodeMissing(node.clone())),
    };
    let id = csi_node.node_ids.get(attacher).filter(|id| !id.as_str().is_empty());
    id.cloned()
        .ok_or_else(|| AttachmentError::DriverNotRegistered { node: node.clone(), driver: attacher.clone() })
}

/// The identities of a Node for drivers that take them.
pub fn node_identities(node: &Node) -> Parameters {
    let provider_id = node.provider_id.iter().map(|id| (PROVIDER_ID.to_owned(), id.to_string()));
    provider_id.collect()
}

/// The node ID in the VolumeAttachment's annotation. It is written before the volume is published with this
/// ID.
fn recorded_node_id(attachment: &VolumeAttachment) -> Option<NodeId> {
    attachment.meta.annotation(names::NODE_ID).filter(|id| !id.is_empty()).map(NodeId::from)
}

/// Returns the CSI capability of a volume: its access type, and all access modes of the PersistentVolume
/// combined into one, as external-attacher and external-resizer do (csi-lib-utils
/// `accessmodes.ToCSIAccessMode`).
///
/// # Errors
/// The access modes have no CSI equivalent.
pub fn capability(
    volume: &Volume,
    csi: &CsiVolumeSource,
    single_node_multi_writer: bool,
    default_fs_type: Option<&str>,
) -> Result<VolumeCapability, AccessModesError> {
    let mode = capability_mode(volume, single_node_multi_writer)
        .map_err(|problem| AccessModesError { volume: volume.name.clone(), problem })?;
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

fn capability_mode(volume: &Volume, single_node_multi_writer: bool) -> Result<CsiAccessMode, &'static str> {
    let has = |mode| volume.access_modes.contains([mode].into_iter().collect());
    if has(AccessMode::ReadWriteOncePod) {
        return match (volume.access_modes.len(), single_node_multi_writer) {
            (1, true) => Ok(CsiAccessMode::SingleNodeSingleWriter),
            (1, false) => Ok(CsiAccessMode::SingleNodeWriter),
            _ => Err("combines ReadWriteOncePod with other modes; expected ReadWriteOncePod alone"),
        };
    }
    if has(AccessMode::ReadWriteMany) {
        return Ok(CsiAccessMode::MultiNodeMultiWriter);
    }
    match (has(AccessMode::ReadOnlyMany), has(AccessMode::ReadWriteOnce)) {
        (true, true) => Err("has ReadOnlyMany and ReadWriteOnce; expected one of them, or ReadWriteMany"),
        (true, false) => Ok(CsiAccessMode::MultiNodeReaderOnly),
        (false, true) if single_node_multi_writer => Ok(CsiAccessMode::SingleNodeMultiWriter),
        (false, true) => Ok(CsiAccessMode::SingleNodeWriter),
        (false, false) => Err("is empty; expected at least one mode"),
    }
}

/// Returns true if a change of a VolumeAttachment requires a reconcile: it is new or was created again, its
/// deletion was requested, an operator confirmed its detach, or it has lost `status.attached` and is not
/// being deleted. The attacher's own writes require none: otherwise writing an error would end the back-off
/// that the error started. Source: external-attacher's `shouldEnqueueVAChange`.
pub fn is_relevant_change(old: Option<&VolumeAttachment>, new: &VolumeAttachment) -> bool {
    old.is_none_or(|old| {
        old.meta.uid != new.meta.uid
            || old.meta.deleting != new.meta.deleting
            || is_confirmation_changed(Some(old), new)
            || (old.attached && !new.attached && !new.meta.deleting)
    })
}

/// Returns true if the annotation `confirm-detached` was added, or its value has changed.
pub fn is_confirmation_changed(old: Option<&VolumeAttachment>, new: &VolumeAttachment) -> bool {
    let confirmation = new.meta.annotation(names::CONFIRM_DETACHED);
    confirmation.is_some() && confirmation != old.and_then(|old| old.meta.annotation(names::CONFIRM_DETACHED))
}

/// Returns the index of the attacher's finalizer in a PersistentVolume if it can be removed: the
/// PersistentVolume belongs to one of this process's drivers and is being deleted, and no VolumeAttachment of
/// any driver names the PersistentVolume. Returns `None` also if the PersistentVolume has no such finalizer.
/// A detach does not remove the finalizer, because the next attach would add it again. Source:
/// external-attacher's `SyncNewOrUpdatedPersistentVolume`.
///
/// `is_provisioned_here` is as in [`decide_volume`](crate::protection::rules::decide_volume): the provisioner
/// removes the finalizer together with its own.
pub fn removable_volume_finalizer(
    cache: &Cache,
    is_managed_driver: &dyn Fn(&DriverName) -> bool,
    volume: &Volume,
    is_provisioned_here: bool,
) -> Option<usize> {
    volume.csi.as_ref().filter(|csi| is_managed_driver(&csi.driver) && volume.meta.deleting)?;
    let is_reclaimed_here = is_provisioned_here
        && volume.phase == VolumePhase::Released
        && volume.reclaim_policy == ReclaimPolicy::Delete
        && volume.meta.finalizer_index(names::PROVISIONER_FINALIZER).is_some();
    if is_reclaimed_here { None } else { unused_volume_finalizer(cache, volume) }
}

/// Returns the index of the attacher's finalizer of the volume's driver in the list of the PersistentVolume.
/// Returns `None` without the finalizer, and if a VolumeAttachment names the PersistentVolume.
pub fn unused_volume_finalizer(cache: &Cache, volume: &Volume) -> Option<usize> {
    let csi = volume.csi.as_ref()?;
    let at = volume.meta.finalizer_index(&names::attacher_finalizer(&csi.driver))?;
    cache.attachments_of_volume(&volume.name).is_empty().then_some(at)
}

/// Driver's IDs of the nodes that each volume is published to, from ListVolumes.
pub type PublishedNodesByVolume = HashMap<VolumeHandle, HashSet<NodeId>>;

/// Returns true if `ListVolumes` contradicts a VolumeAttachment: the VolumeAttachment is attached and not
/// being deleted, and the volume is not published to its node; or the VolumeAttachment is being deleted and
/// has lost the attacher's finalizer, and the volume is still published to its node, where no other
/// VolumeAttachment needs it. There is no contradiction while the node's ID is unknown. A volume missing from
/// the list is no contradiction: publishing it would not restore it, and an incomplete list would cause every
/// volume to be published again. Source: external-attacher's `ReconcileVA`.
pub fn is_out_of_sync(
    cache: &Cache,
    published_nodes: &PublishedNodesByVolume,
    attachment: &VolumeAttachment,
) -> bool {
    let Ok((_, csi)) = volume_of(cache, attachment) else { return false };
    let Some(nodes) = published_nodes.get(&csi.handle) else { return false };
    let finalizer = names::attacher_finalizer(&attachment.attacher);
    // A driver that is registering again has no node ID in the CSINode for a moment.
    let now = node_id(cache, attachment).ok();
    if !attachment.meta.deleting {
        return attachment.attached && now.is_some_and(|node| !nodes.contains(&node));
    }
    let published = now.or_else(|| recorded_node_id(attachment)).is_some_and(|node| nodes.contains(&node));
    published
        && attachment.meta.finalizer_index(&finalizer).is_none()
        && !is_used_by_other_attachment(cache, attachment, &csi)
}

/// Returns true if the detach of a VolumeAttachment has failed, and `ListVolumes` shows the volume published
/// to other nodes only or to none. Returns false if the volume is missing from the list, or if the node's ID
/// is unknown.
pub fn is_listed_as_detached(
    cache: &Cache,
    published_nodes: &PublishedNodesByVolume,
    attachment: &VolumeAttachment,
) -> bool {
    if !attachment.meta.deleting || attachment.detach_error.is_none() {
        return false;
    }
    let Ok((_, csi)) = volume_of(cache, attachment) else { return false };
    let Some(nodes) = published_nodes.get(&csi.handle) else { return false };
    let ids = [node_id(cache, attachment).ok(), recorded_node_id(attachment)];
    let mut ids = ids.iter().flatten().peekable();
    ids.peek().is_some() && !ids.any(|id| nodes.contains(id))
}

#[cfg(test)]
mod tests;
