//! Builds the input of the rules from the cache and the in-memory state. This starts and removes the timers
//! of the in-memory state, and records which keys an unresolved VolumeAttachment blocks.

use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

use cofferdam_cluster::{Cache, Lookup};
use cofferdam_domain::{
    DriverName, Node, NodeName, NodeVolumeStatus, UniqueVolumeName, VolumeAttachment, VolumeAttachmentName,
    VolumeHandle, names,
};

use super::{
    desired_state,
    rules::{ActualAttachment, AttachmentPurpose, DesiredAttachment, NodeState, ReconcileInput},
    state::{AttachState, Key},
};

/// Facts that one reconcile of a key collects. They are discarded when the reconcile ends.
#[derive(Debug, Default)]
pub(super) struct ReconcileState {
    /// VolumeAttachments whose Node this reconcile has read live since their detach started.
    pub(super) refreshed: HashSet<VolumeAttachmentName>,
    /// Nodes for which the API server has refused to create or delete a VolumeAttachment.
    pub(super) refused_nodes: BTreeSet<NodeName>,
}

/// The sources of a [`ReconcileInput`]: the cached objects, the in-memory state and the settings.
#[derive(Clone, Copy)]
pub(super) struct InputSources<'a> {
    pub(super) cache: &'a Cache,
    pub(super) state: &'a AttachState,
    /// As [`ReconcileInput::force_after`].
    pub(super) force_after: Option<Duration>,
}

impl InputSources<'_> {
    /// Returns the rules' input for the key of a volume or of an unresolved VolumeAttachment
    /// ([`Key::UnresolvedAttachment`]). Returns `None` for the key of a claim, for a volume name that is not
    /// a CSI volume's, and for a VolumeAttachment that is not in the cache, cannot be decoded or is not of a
    /// deleted volume (see [`is_of_deleted_volume`](Self::is_of_deleted_volume)).
    pub(super) fn reconcile_input(
        &self,
        key: &Key,
        reconcile_state: &ReconcileState,
    ) -> Option<ReconcileInput> {
        match key {
            Key::Volume(name) => {
                let (driver, handle) = name.parse_csi()?;
                Some(self.input_of_volume(name, driver, handle, reconcile_state))
            }
            Key::UnresolvedAttachment(name) => {
                let attachment = self.cache.attachments.get(name).into_object()?;
                self.input_of_deleted_volume(&attachment, reconcile_state)
            }
            Key::Claim(_) => None,
        }
    }

    fn input_of_volume(
        &self,
        name: &UniqueVolumeName,
        driver: DriverName,
        handle: VolumeHandle,
        reconcile_state: &ReconcileState,
    ) -> ReconcileInput {
        let (desired, nodes_in_use) = match self.is_attach_required(&driver) {
            true => (
                desired_state::desired_attachments(self.cache, &driver, &handle),
                desired_state::nodes_in_use(self.cache, &driver, &handle),
            ),
            false => Default::default(),
        };
        let mut actual = Vec::new();
        for volume in self.cache.volumes_with_handle(&driver, &handle) {
            for attachment in self.cache.attachments_of_volume(&volume.name) {
                let is_for_pod = desired_state::unique_volume_of_attachment(self.cache, &attachment).as_ref()
                    == Some(name);
                let purpose = if is_for_pod { AttachmentPurpose::Pod } else { AttachmentPurpose::Other };
                let is_needed = is_for_pod && nodes_in_use.contains(&attachment.node);
                actual.push(self.actual_attachment(
                    &attachment,
                    Some(name),
                    purpose,
                    is_needed,
                    reconcile_state,
                ));
            }
        }
        // An unresolved VolumeAttachment with the name that this volume's VolumeAttachment has on the same
        // node blocks the volume, too.
        for attachment_name in self.state.unresolved_attachments_named_for(name, &driver, &handle) {
            let Some(attachment) = self.cache.attachments.get(&attachment_name).into_object() else {
                continue;
            };
            if attachment.attacher == driver
                && !actual.iter().any(|other: &ActualAttachment| other.name == attachment_name)
            {
                let is_of_deleted_volume = self.is_of_deleted_volume(&attachment);
                let purpose = if is_of_deleted_volume {
                    AttachmentPurpose::PodOfDeletedVolume
                } else {
                    AttachmentPurpose::NameConflict
                };
                let is_needed = is_of_deleted_volume && nodes_in_use.contains(&attachment.node);
                actual.push(self.actual_attachment(
                    &attachment,
                    Some(name),
                    purpose,
                    is_needed,
                    reconcile_state,
                ));
            }
        }
        for desired_attachment in &desired {
            let attachment = names::volume_attachment_name(&driver, &handle, &desired_attachment.node);
            self.add_name_conflict(name, attachment, desired_attachment, &mut actual);
        }
        let registered = |desired_attachment: &&DesiredAttachment| {
            self.cache
                .csi_nodes
                .get(&desired_attachment.node)
                .into_object()
                .is_some_and(|node| node.has_driver(&driver))
        };
        let unregistered = desired
            .iter()
            .filter(|desired_attachment| !registered(desired_attachment))
            .map(|desired_attachment| desired_attachment.node.clone());
        ReconcileInput {
            unregistered: unregistered.collect(),
            driver,
            handle: Some(handle),
            uncertain: self.state.uncertain_node(&Key::Volume(name.clone())),
            desired,
            actual,
            refused_nodes: reconcile_state.refused_nodes.clone(),
            force_after: self.force_after,
        }
    }

    /// Adds the VolumeAttachment that has the name of the desired one, if it is not for this volume: the
    /// desired one cannot be created. `actual` has the VolumeAttachments of the volume.
    fn add_name_conflict(
        &self,
        volume: &UniqueVolumeName,
        name: VolumeAttachmentName,
        desired_attachment: &DesiredAttachment,
        actual: &mut Vec<ActualAttachment>,
    ) {
        let is_same =
            |other: &&mut ActualAttachment| other.node == desired_attachment.node && other.name == name;
        let existing = actual.iter_mut().find(is_same);
        if existing.as_ref().is_some_and(|existing| existing.purpose != AttachmentPurpose::Other)
            || self.cache.attachments.get(&name).is_missing()
        {
            return;
        }
        self.state.block(&name, Key::Volume(volume.clone()));
        // It may have been deleted before the key was recorded; the deletion then enqueued nothing.
        if self.cache.attachments.get(&name).is_missing() {
            return;
        }
        match existing {
            Some(existing) => existing.purpose = AttachmentPurpose::NameConflict,
            None => actual.push(ActualAttachment::name_conflict(name, desired_attachment)),
        }
    }

    fn input_of_deleted_volume(
        &self,
        attachment: &VolumeAttachment,
        reconcile_state: &ReconcileState,
    ) -> Option<ReconcileInput> {
        if !self.is_of_deleted_volume(attachment) {
            return None;
        }
        let actual_attachment = self.attachment_of_deleted_volume(attachment, reconcile_state);
        Some(ReconcileInput {
            driver: attachment.attacher.clone(),
            handle: None,
            uncertain: None,
            desired: Vec::new(),
            actual: vec![actual_attachment],
            unregistered: Vec::new(),
            refused_nodes: reconcile_state.refused_nodes.clone(),
            force_after: self.force_after,
        })
    }

    /// Returns true if a VolumeAttachment was created for pods, and its PersistentVolume is deleted or was
    /// created again with another CSI source. Returns false if the VolumeAttachment names no
    /// PersistentVolume, or if its PersistentVolume cannot be decoded or has no CSI source: the name of the
    /// VolumeAttachment cannot be compared with that of such a volume.
    pub(super) fn is_of_deleted_volume(&self, attachment: &VolumeAttachment) -> bool {
        let Some(name) = attachment.volume().filter(|_| names::is_pod_attachment(&attachment.name)) else {
            return false;
        };
        match self.cache.volumes.get(name) {
            Lookup::Missing => true,
            Lookup::Undecodable(_) => false,
            Lookup::Found(volume) => {
                volume.csi.is_some()
                    && desired_state::unique_volume_of_attachment(self.cache, attachment).is_none()
            }
        }
    }

    /// Returns true if volumes of a driver must be attached. Returns false if the driver's CSIDriver has
    /// `attachRequired: false`, or had it and was deleted a few seconds ago: a client may be about to create
    /// the CSIDriver again.
    fn is_attach_required(&self, driver: &DriverName) -> bool {
        desired_state::is_attach_required(self.cache, driver)
            && self.state.csi_driver_grace_left(driver).is_none()
    }

    fn attachment_of_deleted_volume(
        &self,
        attachment: &VolumeAttachment,
        reconcile_state: &ReconcileState,
    ) -> ActualAttachment {
        let is_needed = self.is_attach_required(&attachment.attacher)
            && desired_state::is_possibly_in_use(self.cache, attachment);
        self.actual_attachment(
            attachment,
            None,
            AttachmentPurpose::PodOfDeletedVolume,
            is_needed,
            reconcile_state,
        )
    }

    /// Returns the rules' input for a VolumeAttachment. `volume` is the volume under which the Node reports
    /// it. With `None`, the Node's entry is found by the VolumeAttachment's name. For `needed_by_pod`, see
    /// [`ActualAttachment::needed_by_pod`].
    pub(super) fn actual_attachment(
        &self,
        attachment: &VolumeAttachment,
        volume: Option<&UniqueVolumeName>,
        purpose: AttachmentPurpose,
        needed_by_pod: bool,
        reconcile_state: &ReconcileState,
    ) -> ActualAttachment {
        let VolumeAttachment { name, node, .. } = attachment;
        let node_state = desired_state::node_state(self.cache, node);
        let cached_node = self.cache.nodes.get(node).into_object();
        let node_entry = cached_node.as_ref().and_then(|node| node_volume_entry(node, attachment, volume));
        let version = cached_node.as_ref().map(|node| node.meta.resource_version).unwrap_or_default();
        let is_for_pod = purpose.is_for_pod();
        let is_attaching = needed_by_pod && !attachment.attached && !attachment.meta.deleting;
        let is_there = || !self.cache.attachments.get(name).is_missing();
        let in_use = match node_state {
            // The node's last state counts: its kubelet may still run. If it is unknown, the node may use
            // every volume.
            NodeState::Deleted => self.state.deleted_node(node).is_none_or(|deleted_node| {
                node_volume_entry(&deleted_node, attachment, volume)
                    .is_some_and(|node_entry| node_entry.in_use)
            }),
            NodeState::Undecodable | NodeState::Unmanaged | NodeState::Managed { .. } => {
                node_entry.is_some_and(|node_entry| node_entry.in_use)
            }
        };
        ActualAttachment {
            name: name.clone(),
            uid: attachment.meta.uid.clone(),
            node: node.clone(),
            node_state,
            purpose,
            attached: attachment.attached,
            deleting: attachment.meta.deleting,
            attach_error: attachment.attach_error.as_ref().map(|error| error.message.clone()),
            detach_error: attachment.detach_error.as_ref().map(|error| error.message.clone()),
            needed_by_pod,
            unneeded_for: if is_for_pod {
                self.state.track_unneeded(name, needed_by_pod, is_there)
            } else {
                Default::default()
            },
            attaching_for: if is_attaching {
                self.state.track_attach(name, is_there)
            } else {
                Default::default()
            },
            deleting_for: if attachment.meta.deleting {
                self.state.track_deletion(name, is_there)
            } else {
                Default::default()
            },
            in_volumes_attached: cached_node.is_some()
                && (node_entry.is_some_and(|node_entry| node_entry.attached)
                    || self.state.is_update_pending(node, version, name)),
            in_use,
            detach_state: self.state.detach_state(name),
            node_refreshed: reconcile_state.refreshed.contains(name),
        }
    }

    /// Returns the rules' input for a VolumeAttachment that was created for pods, and the name of its volume.
    /// The name is `None` if the PersistentVolume is deleted or was created again with another CSI source.
    /// Returns `None` for VolumeAttachments that were not created for pods or name no PersistentVolume, and
    /// if the PersistentVolume cannot be decoded or has no CSI source.
    pub(super) fn resolve_attachment(
        &self,
        attachment: &VolumeAttachment,
    ) -> Option<(ActualAttachment, Option<UniqueVolumeName>)> {
        let reconcile_state = ReconcileState::default();
        if let Some(name) = desired_state::unique_volume_of_attachment(self.cache, attachment) {
            let (driver, handle) = name.parse_csi()?;
            let is_needed = self.is_attach_required(&driver)
                && desired_state::nodes_in_use(self.cache, &driver, &handle).contains(&attachment.node);
            return Some((
                self.actual_attachment(
                    attachment,
                    Some(&name),
                    AttachmentPurpose::Pod,
                    is_needed,
                    &reconcile_state,
                ),
                Some(name),
            ));
        }
        self.is_of_deleted_volume(attachment)
            .then(|| (self.attachment_of_deleted_volume(attachment, &reconcile_state), None))
    }
}

/// Returns a Node's status of a volume. Without `volume`, the volume is found by the VolumeAttachment's name.
/// Returns `None` if the volume is neither in `volumesAttached` nor in `volumesInUse`.
pub(super) fn node_volume_entry<'n>(
    node: &'n Node,
    attachment: &VolumeAttachment,
    volume: Option<&UniqueVolumeName>,
) -> Option<&'n NodeVolumeStatus> {
    match volume {
        Some(name) => node.volume(name),
        None => node.volumes.iter().find(|volume_entry| {
            volume_entry.name.parse_csi().is_some_and(|(driver, handle)| {
                driver == attachment.attacher
                    && names::volume_attachment_name(&driver, &handle, &node.name) == attachment.name
            })
        }),
    }
}
