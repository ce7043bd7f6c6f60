//! Identity of volumes on a node.

use std::fmt;

use cofferdam_domain::{Uid, UniqueVolumeName};

/// Identity of a volume on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum VolumeId {
    /// The volume of a PersistentVolume, by driver and handle. PersistentVolumes with the same driver and
    /// handle have the same ID.
    Persistent(UniqueVolumeName),
    /// An inline CSI volume: the pod's UID and the volume's name in the pod.
    Inline(Uid, Box<str>),
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Persistent(name) => name.fmt(f),
            Self::Inline(pod, name) => write!(f, "{pod}/{name}"),
        }
    }
}
