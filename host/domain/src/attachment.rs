//! VolumeAttachment, CSINode and Node, as far as the roles decide on them.

use std::collections::BTreeMap;

use crate::{
    ids::{AttachmentName, DriverName, NodeName, NodeObject, ObjectMeta, VolumeName},
    storage::Parameters,
};

/// `spec.source`: which volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachmentSource {
    /// `persistentVolumeName`
    Volume(VolumeName),
    /// `inlineVolumeSpec`, which only volumes of in-tree plugins have that a driver took over.
    Inline,
    /// Not exactly one of the two; the number of those that are there.
    Unclear(usize),
}

/// `status.attachError` and `status.detachError`; when it was is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentError {
    /// `message`
    pub message: String,
    /// `errorCode`: the gRPC code of the driver's answer, where it was the driver that failed.
    pub code: Option<i32>,
}

/// A VolumeAttachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// `metadata.name`
    pub name: AttachmentName,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `spec.attacher`: the driver.
    pub attacher: DriverName,
    /// `spec.source`
    pub source: AttachmentSource,
    /// `spec.nodeName`: name of the Node.
    pub node: NodeObject,
    /// `status.attached`
    pub attached: bool,
    /// `status.attachmentMetadata`
    pub metadata: Parameters,
    /// `status.attachError`
    pub attach_error: Option<AttachmentError>,
    /// `status.detachError`
    pub detach_error: Option<AttachmentError>,
}

impl Attachment {
    /// The volume that it names, where it names one and nothing else.
    pub fn volume(&self) -> Option<&VolumeName> {
        match &self.source {
            AttachmentSource::Volume(name) => Some(name),
            AttachmentSource::Inline | AttachmentSource::Unclear(_) => None,
        }
    }
}

/// A CSINode: how drivers call a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiNode {
    /// `metadata.name`, which is the Node's.
    pub name: NodeObject,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `spec.drivers`: the `nodeID` of each.
    pub ids: BTreeMap<DriverName, NodeName>,
    /// `spec.drivers`: the `topologyKeys` of each.
    pub topology_keys: BTreeMap<DriverName, Vec<String>>,
}

/// A Node: the labels tell its places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`
    pub name: NodeObject,
    /// Metadata without annotations and labels: a cluster has thousands of nodes.
    pub meta: ObjectMeta,
    /// `metadata.labels`
    pub labels: BTreeMap<String, String>,
}
