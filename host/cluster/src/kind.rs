//! What a kind needs to be watched, cached and written: where its objects live and how they decode.

use std::{fmt, hash::Hash};

use cofferdam_domain::{
    ClaimKey, DriverName, NodeName, ObjectMeta, PodKey, StorageClassName, VolumeAttachmentName,
    VolumeAttributesClassName, VolumeName, ids::ResourceVersion,
};

/// Where a kind lives in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ApiResource {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// Version, such as `v1`.
    pub version: &'static str,
    /// Kind, such as `PersistentVolume`.
    pub kind: &'static str,
    /// Path segment, such as `persistentvolumes`.
    pub plural: &'static str,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
}

impl ApiResource {
    /// `group/version`, or the version alone for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Path of the collection, in one namespace or in all of them.
    pub fn collection_path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", self.group) };
        match namespace {
            Some(namespace) if self.namespaced => {
                format!("{root}/{}/namespaces/{namespace}/{}", self.version, self.plural)
            }
            _ => format!("{root}/{}/{}", self.version, self.plural),
        }
    }
}

/// What an object is found by: its name, and its namespace where its kind has one.
pub trait ObjectKey: Clone + Eq + Ord + Hash + fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// The key that belongs to a namespace (empty for cluster-scoped kinds) and a name.
    fn from_parts(namespace: &str, name: &str) -> Self;

    /// Namespace, for kinds that have one, and name.
    fn parts(&self) -> (Option<&str>, &str);
}

/// Keys of kinds without a namespace.
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
names!(VolumeAttachmentName, VolumeAttributesClassName, StorageClassName, DriverName, NodeName, VolumeName);

impl ObjectKey for Box<str> {
    fn from_parts(_: &str, name: &str) -> Self {
        name.into()
    }

    fn parts(&self) -> (Option<&str>, &str) {
        (None, self)
    }
}

/// Keys of kinds with one.
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
namespaced!(ClaimKey, PodKey, crate::orphan_report::OrphanReportKey);

/// A domain type that mirrors one Kubernetes kind.
pub trait Kind: Clone + Send + Sync + 'static {
    /// Namespace and name, or the name.
    type Key: ObjectKey;
    /// What the cache finds objects by, beside their key.
    type Index: Index<Self>;
    /// Where the kind lives.
    const RESOURCE: ApiResource;
    /// Whether clusters may be without the kind: then there are no objects of it, and it is looked for again
    /// now and then.
    const OPTIONAL: bool = false;

    /// Reads one object; fields that the roles do not use are skipped.
    ///
    /// # Errors
    /// A sentence for people that names the field and the value.
    fn decode(json: &str) -> Result<Self, String>;

    /// The key that belongs to a namespace (empty for cluster-scoped kinds) and a name.
    fn key_from_parts(namespace: &str, name: &str) -> Self::Key {
        Self::Key::from_parts(namespace, name)
    }

    /// Namespace, for kinds that have one, and name of a key.
    fn key_parts(key: &Self::Key) -> (Option<&str>, &str) {
        key.parts()
    }

    /// The object's key.
    fn key(&self) -> Self::Key;

    /// The object's metadata.
    fn meta(&self) -> &ObjectMeta;

    /// The object's version.
    fn resource_version(&self) -> ResourceVersion {
        self.meta().resource_version
    }
}

/// An index over the objects of a kind; it follows every change of the table that owns it.
pub trait Index<K>: Default + Send + Sync + 'static {
    /// Adds an object.
    fn insert(&mut self, object: &K);
    /// Removes an object that was added before, as it was then.
    fn remove(&mut self, object: &K);
}

impl<K> Index<K> for () {
    fn insert(&mut self, _: &K) {}
    fn remove(&mut self, _: &K) {}
}
