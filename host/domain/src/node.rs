//! Node, and the status of its volumes.

use std::collections::BTreeMap;

use crate::ids::{DriverName, NodeName, ObjectMeta, UniqueVolumeName, VolumeHandle};

/// Prefix of the [`UniqueVolumeName`] of CSI volumes.
const CSI_PLUGIN_PREFIX: &str = "kubernetes.io/csi/";

impl UniqueVolumeName {
    /// The unique name of a CSI volume.
    pub fn from_csi(driver: &DriverName, handle: &VolumeHandle) -> Self {
        Self::new(format!("{CSI_PLUGIN_PREFIX}{driver}^{handle}"))
    }

    /// Driver and handle; `None` for volumes of other plugins. Driver names contain no `^`; handles may.
    pub fn parse_csi(&self) -> Option<(DriverName, VolumeHandle)> {
        let (driver, handle) = self.as_str().strip_prefix(CSI_PLUGIN_PREFIX)?.split_once('^')?;
        Some((driver.into(), handle.into()))
    }
}

/// The status of a volume on a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVolumeStatus {
    /// The volume.
    pub name: UniqueVolumeName,
    /// True if the volume is in `status.volumesAttached`, so that the kubelet may mount it.
    pub attached: bool,
    /// `devicePath` of the entry in `status.volumesAttached`; empty if there is none, as for CSI volumes.
    pub device_path: Box<str>,
    /// True if the volume is in `status.volumesInUse`: the kubelet has mounted it or may mount it.
    pub in_use: bool,
}

/// A Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`
    pub name: NodeName,
    /// Metadata without annotations and labels.
    pub meta: ObjectMeta,
    /// `metadata.labels`
    pub labels: BTreeMap<String, String>,
    /// `spec.providerID`: the node's ID at the cloud provider, such as `aws:///us-east-1a/i-0abc`.
    pub provider_id: Option<Box<str>>,
    /// True if the attach-detach controller, not the kubelet, attaches volumes
    /// (`volumes.kubernetes.io/controller-managed-attach-detach`).
    pub controller_managed: bool,
    /// True if the condition `Ready` has status True.
    pub ready: bool,
    /// True if the taint `node.kubernetes.io/out-of-service` is set.
    pub out_of_service: bool,
    /// Drivers whose [start-up taint](crate::names::startup_taint) is set, sorted.
    pub startup_taints: Box<[DriverName]>,
    /// `status.volumesAttached` and `status.volumesInUse`, sorted by name.
    pub volumes: Box<[NodeVolumeStatus]>,
}

impl Node {
    /// The status of a volume; `None` if it is neither in `volumesAttached` nor in `volumesInUse`.
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
