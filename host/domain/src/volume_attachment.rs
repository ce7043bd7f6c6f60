//! VolumeAttachment, CSINode and Node, as far as the roles decide on them.

use std::collections::BTreeMap;

use crate::{
    ids::{
        DriverName, NodeId, NodeName, ObjectMeta, UniqueVolumeName, VolumeAttachmentName, VolumeHandle,
        VolumeName,
    },
    string_map::StringMap,
};

/// `spec.source`: which volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeAttachmentSource {
    /// `persistentVolumeName`
    Volume(VolumeName),
    /// `inlineVolumeSpec`, which only volumes of in-tree plugins have that a driver took over.
    Inline,
    /// Not exactly one of the two; the number of those that are there.
    Invalid(usize),
}

/// `status.attachError` and `status.detachError`; when it was is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeError {
    /// `message`
    pub message: String,
    /// `errorCode`: the gRPC code of the driver's answer, where it was the driver that failed.
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
    /// The volume that it names, where it names one and nothing else.
    pub fn volume(&self) -> Option<&VolumeName> {
        match &self.source {
            VolumeAttachmentSource::Volume(name) => Some(name),
            VolumeAttachmentSource::Inline | VolumeAttachmentSource::Invalid(_) => None,
        }
    }
}

/// A CSINode: how drivers call a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiNode {
    /// `metadata.name`, which is the Node's.
    pub name: NodeName,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `spec.drivers`: the `nodeID` of each.
    pub node_ids: BTreeMap<DriverName, NodeId>,
    /// `spec.drivers`: the `topologyKeys` of each.
    pub topology_keys: BTreeMap<DriverName, Vec<String>>,
}

impl CsiNode {
    /// Whether the driver is registered on the node.
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
    /// `spec.attachRequired`; the API's default is true.
    pub attach_required: bool,
}

/// First part of the [`UniqueVolume`] of every CSI volume.
const CSI_PLUGIN_PREFIX: &str = "kubernetes.io/csi/";

impl UniqueVolumeName {
    /// The name of a CSI driver's volume.
    pub fn from_csi(driver: &DriverName, handle: &VolumeHandle) -> Self {
        Self::new(format!("{CSI_PLUGIN_PREFIX}{driver}^{handle}"))
    }

    /// Driver and handle; absent for volumes of other plugins. A driver's name has no `^`, a handle may.
    pub fn parse_csi(&self) -> Option<(DriverName, VolumeHandle)> {
        let (driver, handle) = self.as_str().strip_prefix(CSI_PLUGIN_PREFIX)?.split_once('^')?;
        Some((driver.into(), handle.into()))
    }
}

/// What a Node's status says of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVolumeStatus {
    /// Which volume.
    pub name: UniqueVolumeName,
    /// Whether it is in `status.volumesAttached`: kubelet may mount it.
    pub attached: bool,
    /// `devicePath` there; empty for CSI volumes.
    pub device_path: Box<str>,
    /// Whether it is in `status.volumesInUse`: kubelet mounts it, or is about to.
    pub in_use: bool,
}

/// A Node: where it is, and what it says of volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`
    pub name: NodeName,
    /// Metadata without annotations and labels: a cluster has thousands of nodes.
    pub meta: ObjectMeta,
    /// `metadata.labels`
    pub labels: BTreeMap<String, String>,
    /// Whether volumes are attached to it by the controller
    /// (`volumes.kubernetes.io/controller-managed-attach-detach`), not by its kubelet.
    pub controller_managed: bool,
    /// Whether the condition `Ready` is true.
    pub ready: bool,
    /// Whether it has the taint `node.kubernetes.io/out-of-service`.
    pub out_of_service: bool,
    /// `status.volumesAttached` and `status.volumesInUse`, by name.
    pub volumes: Box<[NodeVolumeStatus]>,
}

impl Node {
    /// What the status says of a volume.
    pub fn volume(&self, name: &UniqueVolumeName) -> Option<&NodeVolumeStatus> {
        let index = self.volumes.binary_search_by(|volume| volume.name.cmp(name)).ok()?;
        self.volumes.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_volume_names_round_trip() {
        let name = UniqueVolumeName::from_csi(&"d.example.com".into(), &"a^b".into());
        assert_eq!(name.as_str(), "kubernetes.io/csi/d.example.com^a^b");
        assert_eq!(name.parse_csi(), Some(("d.example.com".into(), "a^b".into())));
        for other in ["kubernetes.io/iscsi/x", "kubernetes.io/csi/d", ""] {
            assert_eq!(UniqueVolumeName::from(other).parse_csi(), None, "{other}");
        }
    }
}
