//! Identity: one newtype per thing that has a name, and the part of an object's metadata that every kind
//! shares.
//!
//! Text is counted, not copied: a name stands in its object, in the table, in each index and in each queue.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::string_map::StringMap;

/// How counted text is written and read: serde knows it only with a feature that every crate would have.
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
            /// Wraps a name as it stands in the API or on the wire; it is not validated here.
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
    /// `metadata.uid`: the identity of one object over its life; a re-created object of the same name has
    /// another.
    Uid
);
name!(
    /// Name of a PersistentVolume.
    VolumeName
);
name!(
    /// The id that the driver gave to a volume (`spec.csi.volumeHandle`).
    VolumeHandle
);
name!(
    /// The id that the driver gave to a snapshot.
    SnapshotHandle
);
name!(
    /// The id that the driver gave to a group snapshot.
    GroupSnapshotHandle
);
name!(
    /// A node, by the id that its CSI node service gives: for our own node service, the name of the Node.
    NodeId
);
name!(
    /// Name of a Node, which is that of its CSINode, too.
    NodeName
);
name!(
    /// Name of a VolumeAttachment.
    VolumeAttachmentName
);
name!(
    /// A volume as `status.volumesAttached` and `status.volumesInUse` of a Node name it:
    /// `kubernetes.io/csi/<driver>^<handle>`.
    UniqueVolumeName
);
name!(
    /// A driver's name, as a StorageClass' `provisioner` and a PV's `spec.csi.driver` spell it.
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
    /// Identity of the cluster: the uid of the namespace `kube-system`.
    ClusterId
);

/// A PersistentVolumeClaim's place: namespace and name.
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
    /// A claim's place from its two parts.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Pod's place: namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodKey {
    /// `metadata.namespace`
    pub namespace: Arc<str>,
    /// `metadata.name`
    pub name: Arc<str>,
}

impl PodKey {
    /// A pod's place from its two parts.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `metadata.resourceVersion`, comparable as Kubernetes 1.35 and later define it: a decimal number that grows
/// with every write of the resource. 0 means that no version is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceVersion(pub u64);

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is no [`ResourceVersion`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metadata.resourceVersion is {0:?}: expected a decimal number of 64 bits")]
pub struct InvalidResourceVersion(pub Box<str>);

impl FromStr for ResourceVersion {
    type Err = InvalidResourceVersion;

    fn from_str(text: &str) -> Result<Self, InvalidResourceVersion> {
        text.parse().map(Self).map_err(|_| InvalidResourceVersion(text.into()))
    }
}

/// The metadata that the roles decide on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectMeta {
    /// `metadata.uid`
    pub uid: Uid,
    /// `metadata.resourceVersion`
    pub resource_version: ResourceVersion,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `metadata.creationTimestamp` in milliseconds since the Unix epoch; 0 when absent.
    pub created_ms: i64,
    /// `metadata.finalizers`, in order: a JSON patch removes a member by its index.
    pub finalizers: Box<[Arc<str>]>,
    /// `metadata.annotations` without `kubectl.kubernetes.io/last-applied-configuration`.
    pub annotations: StringMap,
    /// `metadata.labels`
    pub labels: StringMap,
}

impl Default for Uid {
    fn default() -> Self {
        Self::new("")
    }
}

impl ObjectMeta {
    /// Value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key)
    }

    /// Whether an annotation is present, whatever its value.
    pub fn has_annotation(&self, key: &str) -> bool {
        self.annotations.contains_key(key)
    }

    /// Index of a finalizer in the list.
    pub fn finalizer_index(&self, name: &str) -> Option<usize> {
        self.finalizers.iter().position(|f| &**f == name)
    }
}
