//! Optional behaviours of drivers.

use std::fmt;

/// An optional behaviour of a driver, declared by name in its description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// Volumes can be published read-only.
    PublishReadonly,
    /// ListVolumes and ControllerGetVolume return the nodes to which a volume is published.
    PublishedNodes,
    /// ListVolumes and ControllerGetVolume return the volume's condition (CSI `VolumeCondition`).
    VolumeCondition,
    /// Published volumes can be expanded (CSI `VolumeExpansion.ONLINE`).
    OnlineExpansion,
    /// The access modes SINGLE_NODE_SINGLE_WRITER and SINGLE_NODE_MULTI_WRITER are supported.
    SingleNodeMultiWriter,
    /// Volumes can be created with a `volume_mount_group`, and Cofferdam's node service reports
    /// VOLUME_MOUNT_GROUP for the driver.
    VolumeMountGroup,
}

impl Feature {
    /// All features.
    pub const ALL: [Self; 6] = [
        Self::PublishReadonly,
        Self::PublishedNodes,
        Self::VolumeCondition,
        Self::OnlineExpansion,
        Self::SingleNodeMultiWriter,
        Self::VolumeMountGroup,
    ];

    /// Name in the driver's description.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PublishReadonly => "publish-readonly",
            Self::PublishedNodes => "published-nodes",
            Self::VolumeCondition => "volume-condition",
            Self::OnlineExpansion => "online-expansion",
            Self::SingleNodeMultiWriter => "single-node-multi-writer",
            Self::VolumeMountGroup => "volume-mount-group",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
