//! Keys of Kubernetes objects.

use std::{fmt, hash::Hash};

use cofferdam_domain::{
    ClaimKey, DriverName, NodeName, PodKey, StorageClassName, VolumeAttachmentName,
    VolumeAttributesClassName, VolumeName, VolumeSnapshotClassName, VolumeSnapshotContentName,
    VolumeSnapshotKey,
};

/// Identifies an object of its kind: the name, and the namespace of namespaced kinds. The restore marker is a
/// namespaced object in one known namespace, so its key (`Box<str>`) is the name alone.
pub trait ObjectKey: Clone + Eq + Ord + Hash + fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// The key of a namespace (empty for cluster-scoped kinds) and a name. A key without a namespace ignores
    /// `namespace`.
    fn from_parts(namespace: &str, name: &str) -> Self;

    /// Namespace (`None` if the key has none) and name.
    fn parts(&self) -> (Option<&str>, &str);
}

/// Implements [`ObjectKey`] for cluster-scoped kinds.
macro_rules! names {
    ($($name:ty),+) => {$(
        impl ObjectKey for $name {
            fn from_parts(_: &str, name: &str) -> Self {
                name.into()
            }

            fn parts(&self) -> (Option<&str>, &str) {
                (None, self.as_str())
            }
        }
    )+};
}
names!(
    VolumeAttachmentName,
    VolumeAttributesClassName,
    VolumeSnapshotClassName,
    VolumeSnapshotContentName,
    StorageClassName,
    DriverName,
    NodeName,
    VolumeName
);

impl ObjectKey for Box<str> {
    fn from_parts(_: &str, name: &str) -> Self {
        name.into()
    }

    fn parts(&self) -> (Option<&str>, &str) {
        (None, self)
    }
}

/// Implements [`ObjectKey`] for namespaced kinds.
macro_rules! namespaced {
    ($($key:ty),+) => {$(
        impl ObjectKey for $key {
            fn from_parts(namespace: &str, name: &str) -> Self {
                Self { namespace: namespace.into(), name: name.into() }
            }

            fn parts(&self) -> (Option<&str>, &str) {
                (Some(&self.namespace), &self.name)
            }
        }
    )+};
}
namespaced!(ClaimKey, PodKey, VolumeSnapshotKey);
