//! VolumeAttachment, CSINode and CSIDriver.

use std::collections::BTreeMap;

use crate::{
    ids::{DriverName, NodeId, NodeName, ObjectMeta, Uid, VolumeAttachmentName, VolumeName},
    string_map::StringMap,
};

/// `spec.source`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeAttachmentSource {
    /// `persistentVolumeName`
    Volume(VolumeName),
    /// `inlineVolumeSpec`, used for migrated in-tree volumes only.
    Inline,
    /// Neither or both of the two fields are set. The value is the number of fields set, 0 or 2.
    Invalid(usize),
}

/// `status.attachError` or `status.detachError`, without the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeError {
    /// `message`
    pub message: String,
    /// `errorCode`: the gRPC code of a failed ControllerPublishVolume. `None` if the error has another cause,
    /// and for detach errors, which Cofferdam writes without a code.
    pub error_code: Option<i32>,
}

/// A VolumeAttachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeAttachment {
    /// `metadata.name`
    pub name: VolumeAttachmentName,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `spec.attacher`: the driver.
    pub attacher: DriverName,
    /// `spec.source`
    pub source: VolumeAttachmentSource,
    /// `spec.nodeName`: name of the Node.
    pub node: NodeName,
    /// `status.attached`
    pub attached: bool,
    /// `status.attachmentMetadata`
    pub attachment_metadata: StringMap,
    /// `status.attachError`
    pub attach_error: Option<Box<VolumeError>>,
    /// `status.detachError`
    pub detach_error: Option<Box<VolumeError>>,
}

impl VolumeAttachment {
    /// Name of the PersistentVolume; `None` for an inline or invalid `spec.source`.
    pub fn volume(&self) -> Option<&VolumeName> {
        match &self.source {
            VolumeAttachmentSource::Volume(name) => Some(name),
            VolumeAttachmentSource::Inline | VolumeAttachmentSource::Invalid(_) => None,
        }
    }
}

/// A CSINode: the drivers registered on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiNode {
    /// `metadata.name`, equal to the Node's name.
    pub name: NodeName,
    /// Metadata.
    pub meta: ObjectMeta,
    /// Uids of `metadata.ownerReferences`. The kubelet sets that of the Node.
    pub owners: Box<[Uid]>,
    /// `nodeID` by driver, from `spec.drivers`.
    pub node_ids: BTreeMap<DriverName, NodeId>,
    /// `topologyKeys` by driver, from `spec.drivers`.
    pub topology_keys: BTreeMap<DriverName, Vec<String>>,
}

impl CsiNode {
    /// Returns `true` if the driver is registered on the node with a node id.
    pub fn has_driver(&self, driver: &DriverName) -> bool {
        self.node_ids.get(driver).is_some_and(|id| !id.as_str().is_empty())
    }
}

/// A CSIDriver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiDriver {
    /// `metadata.name`
    pub name: DriverName,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `spec.attachRequired`. The default is true.
    pub attach_required: bool,
}
