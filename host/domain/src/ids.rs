//! Names and ids as newtypes, and object metadata.
//!
//! The text is reference-counted, because objects, stores, indexes and queues share names.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::string_map::StringMap;
pub use crate::uid::Uid;

/// Serialization of `Arc<str>`. Serde's own needs its feature `rc`, which would be enabled for all crates.
mod arc_str {
    use super::{Arc, Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        Box::<str>::deserialize(deserializer).map(Arc::from)
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps a name without validation.
            pub fn new(name: impl Into<Arc<str>>) -> Self {
                Self(name.into())
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                arc_str::serialize(&self.0, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                arc_str::deserialize(deserializer).map(Self)
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self(name.into())
            }
        }

        impl From<String> for $name {
            fn from(name: String) -> Self {
                Self(name.into())
            }
        }
    };
}

name!(
    /// Name of a PersistentVolume.
    VolumeName
);
name!(
    /// The driver's id of a volume (`spec.csi.volumeHandle`).
    VolumeHandle
);
name!(
    /// The driver's id of a snapshot.
    SnapshotHandle
);
name!(
    /// The driver's id of a group snapshot.
    GroupSnapshotHandle
);
name!(
    /// The driver's id of a volume or of a snapshot. The two may have the same id.
    ResourceHandle
);

impl From<VolumeHandle> for ResourceHandle {
    fn from(handle: VolumeHandle) -> Self {
        Self(handle.0)
    }
}

impl From<SnapshotHandle> for ResourceHandle {
    fn from(handle: SnapshotHandle) -> Self {
        Self(handle.0)
    }
}
name!(
    /// CSI `node_id` of a node. For Cofferdam's node service, it is the name of the Node.
    NodeId
);
name!(
    /// Name of a Node and of its CSINode.
    NodeName
);
name!(
    /// Name of a VolumeAttachment.
    VolumeAttachmentName
);
name!(
    /// Name of a volume in `status.volumesAttached` and `status.volumesInUse` of a Node. For a CSI volume, it
    /// is `kubernetes.io/csi/<driver>^<handle>`.
    UniqueVolumeName
);
name!(
    /// Name of a CSI driver, as in a PV's `spec.csi.driver`. From a StorageClass' `provisioner`, it may also
    /// name another provisioner, such as `kubernetes.io/no-provisioner`.
    DriverName
);
name!(
    /// Name of a StorageClass.
    StorageClassName
);
name!(
    /// Name of a VolumeAttributesClass.
    VolumeAttributesClassName
);
name!(
    /// Name of a VolumeSnapshotContent.
    VolumeSnapshotContentName
);
name!(
    /// Name of a VolumeSnapshotClass.
    VolumeSnapshotClassName
);
name!(
    /// Id of the cluster: the uid of the namespace `kube-system`.
    ClusterId
);

/// Namespace and name of a PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClaimKey {
    /// `metadata.namespace`
    #[serde(with = "arc_str")]
    pub namespace: Arc<str>,
    /// `metadata.name`
    #[serde(with = "arc_str")]
    pub name: Arc<str>,
}

impl ClaimKey {
    /// A key from namespace and name.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Namespace and name of a Pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodKey {
    /// `metadata.namespace`
    pub namespace: Arc<str>,
    /// `metadata.name`
    pub name: Arc<str>,
}

impl PodKey {
    /// A key from namespace and name.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Namespace and name of a VolumeSnapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeSnapshotKey {
    /// `metadata.namespace`
    pub namespace: Arc<str>,
    /// `metadata.name`
    pub name: Arc<str>,
}

impl VolumeSnapshotKey {
    /// A key from namespace and name.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for VolumeSnapshotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `metadata.resourceVersion`: a decimal number that increases with every write of the resource, as
/// Kubernetes 1.35 and later define it. 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceVersion(pub u64);

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is not a [`ResourceVersion`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metadata.resourceVersion is {0:?}: expected a decimal number of 64 bits")]
pub struct InvalidResourceVersion(pub Box<str>);

impl FromStr for ResourceVersion {
    type Err = InvalidResourceVersion;

    fn from_str(text: &str) -> Result<Self, InvalidResourceVersion> {
        text.parse().map(Self).map_err(|_| InvalidResourceVersion(text.into()))
    }
}

/// `metadata` of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectMeta {
    /// `metadata.uid`
    pub uid: Uid,
    /// `metadata.resourceVersion`
    pub resource_version: ResourceVersion,
    /// True if `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `metadata.creationTimestamp` in milliseconds since the Unix epoch; 0 if absent.
    pub created_ms: i64,
    /// `metadata.finalizers` in order, because a JSON patch removes an element by index.
    pub finalizers: Arc<[Arc<str>]>,
    /// Those entries of `metadata.annotations` that
    /// [`CACHED_ANNOTATIONS`](crate::names::CACHED_ANNOTATIONS) names.
    pub annotations: StringMap,
    /// `metadata.labels` of a PersistentVolume, and the label
    /// [`SNAPSHOT_MANAGED_BY`](crate::names::SNAPSHOT_MANAGED_BY) of a VolumeSnapshotContent. Empty for the
    /// other kinds: their labels are not read, and those of a Node are in
    /// [`Node::labels`](crate::Node::labels).
    pub labels: StringMap,
}

impl ObjectMeta {
    /// Value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key)
    }

    /// Returns `true` if an annotation exists, with any value.
    pub fn has_annotation(&self, key: &str) -> bool {
        self.annotations.contains_key(key)
    }

    /// Index of a finalizer in the list; `None` if the object does not have it.
    pub fn finalizer_index(&self, name: &str) -> Option<usize> {
        self.finalizers.iter().position(|f| &**f == name)
    }
}
