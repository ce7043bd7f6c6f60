//! The kinds that are served: one table that drives routing, discovery and columns.

/// A kind that the server stores. Its number is its place in [`RESOURCES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Namespace,
    Pod,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Event,
    Secret,
    ConfigMap,
    ServiceAccount,
    StorageClass,
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    VolumeAttachment,
    VolumeAttributesClass,
    Lease,
}

/// How many kinds there are.
pub(crate) const COUNT: usize = 16;

/// What the server knows of a kind without looking at an object.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) id: Kind,
    /// API group; empty for the core group.
    pub(crate) group: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) singular: &'static str,
    pub(crate) short: &'static [&'static str],
    pub(crate) namespaced: bool,
    /// `/status` is an endpoint of its own.
    pub(crate) status: bool,
    /// `metadata.generation` counts changes of the spec.
    pub(crate) generation: bool,
    /// An update may leave out the resourceVersion.
    pub(crate) unconditional: bool,
    /// A PUT to a name that does not exist creates it.
    pub(crate) create_on_update: bool,
}

/// Every group has one version here.
pub(crate) const VERSION: &str = "v1";

const fn resource(id: Kind, kind: &'static str, plural: &'static str, singular: &'static str) -> Resource {
    Resource {
        id,
        group: "",
        kind,
        plural,
        singular,
        short: &[],
        namespaced: false,
        status: false,
        generation: false,
        unconditional: true,
        create_on_update: false,
    }
}

const fn storage(id: Kind, kind: &'static str, plural: &'static str, singular: &'static str) -> Resource {
    Resource { group: "storage.k8s.io", ..resource(id, kind, plural, singular) }
}

/// All kinds, in the order of [`Kind`].
pub(crate) static RESOURCES: [Resource; COUNT] = [
    Resource {
        short: &["ns"],
        status: true,
        ..resource(Kind::Namespace, "Namespace", "namespaces", "namespace")
    },
    Resource {
        short: &["po"],
        namespaced: true,
        status: true,
        generation: true,
        ..resource(Kind::Pod, "Pod", "pods", "pod")
    },
    Resource { short: &["no"], status: true, ..resource(Kind::Node, "Node", "nodes", "node") },
    Resource {
        short: &["pv"],
        status: true,
        ..resource(Kind::PersistentVolume, "PersistentVolume", "persistentvolumes", "persistentvolume")
    },
    Resource {
        short: &["pvc"],
        namespaced: true,
        status: true,
        ..resource(
            Kind::PersistentVolumeClaim,
            "PersistentVolumeClaim",
            "persistentvolumeclaims",
            "persistentvolumeclaim",
        )
    },
    Resource {
        short: &["ev"],
        namespaced: true,
        create_on_update: true,
        ..resource(Kind::Event, "Event", "events", "event")
    },
    Resource { namespaced: true, ..resource(Kind::Secret, "Secret", "secrets", "secret") },
    Resource {
        short: &["cm"],
        namespaced: true,
        ..resource(Kind::ConfigMap, "ConfigMap", "configmaps", "configmap")
    },
    Resource {
        short: &["sa"],
        namespaced: true,
        ..resource(Kind::ServiceAccount, "ServiceAccount", "serviceaccounts", "serviceaccount")
    },
    Resource {
        short: &["sc"],
        ..storage(Kind::StorageClass, "StorageClass", "storageclasses", "storageclass")
    },
    Resource { unconditional: false, ..storage(Kind::CsiDriver, "CSIDriver", "csidrivers", "csidriver") },
    Resource { unconditional: false, ..storage(Kind::CsiNode, "CSINode", "csinodes", "csinode") },
    Resource {
        namespaced: true,
        unconditional: false,
        ..storage(
            Kind::CsiStorageCapacity,
            "CSIStorageCapacity",
            "csistoragecapacities",
            "csistoragecapacity",
        )
    },
    Resource {
        status: true,
        unconditional: false,
        ..storage(Kind::VolumeAttachment, "VolumeAttachment", "volumeattachments", "volumeattachment")
    },
    Resource {
        short: &["vac"],
        ..storage(
            Kind::VolumeAttributesClass,
            "VolumeAttributesClass",
            "volumeattributesclasses",
            "volumeattributesclass",
        )
    },
    Resource {
        group: "coordination.k8s.io",
        namespaced: true,
        unconditional: false,
        create_on_update: true,
        ..resource(Kind::Lease, "Lease", "leases", "lease")
    },
];

/// The named groups, in the order in which discovery shows them.
pub(crate) const GROUPS: [&str; 2] = ["storage.k8s.io", "coordination.k8s.io"];

impl Resource {
    /// `persistentvolumes`, `storageclasses.storage.k8s.io`: how messages name a resource.
    pub(crate) fn qualified(&self) -> String {
        self.in_group(self.plural)
    }

    /// `PersistentVolume`, `StorageClass.storage.k8s.io`.
    pub(crate) fn qualified_kind(&self) -> String {
        self.in_group(self.kind)
    }

    fn in_group(&self, word: &str) -> String {
        if self.group.is_empty() { word.to_owned() } else { format!("{word}.{}", self.group) }
    }

    /// `v1`, `storage.k8s.io/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { VERSION.to_owned() } else { format!("{}/{VERSION}", self.group) }
    }

    /// The URL path under which the group and version live.
    pub(crate) fn root(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{VERSION}")
        } else {
            format!("/apis/{}/{VERSION}", self.group)
        }
    }
}

impl Kind {
    /// The descriptor of this kind.
    #[expect(clippy::indexing_slicing, reason = "a kind is an index of an array of exactly COUNT entries")]
    pub(crate) fn resource(self) -> &'static Resource {
        &RESOURCES[self as usize]
    }
}

/// The resource with this plural name in a group.
pub(crate) fn find(group: &str, plural: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|resource| resource.group == group && resource.plural == plural)
}

/// A value for every kind.
#[derive(Debug)]
pub(crate) struct PerKind<T>([T; COUNT]);

impl<T> PerKind<T> {
    pub(crate) fn new(make: impl FnMut() -> T) -> Self {
        let mut make = make;
        Self(std::array::from_fn(|_| make()))
    }

    #[expect(clippy::indexing_slicing, reason = "a kind is an index of an array of exactly COUNT entries")]
    pub(crate) fn of(&self, kind: Kind) -> &T {
        &self.0[kind as usize]
    }

    #[expect(clippy::indexing_slicing, reason = "a kind is an index of an array of exactly COUNT entries")]
    pub(crate) fn of_mut(&mut self, kind: Kind) -> &mut T {
        &mut self.0[kind as usize]
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Kind, &mut T)> {
        RESOURCES.iter().map(|resource| resource.id).zip(self.0.iter_mut())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Kind, &T)> {
        RESOURCES.iter().map(|resource| resource.id).zip(self.0.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::RESOURCES;

    #[test]
    fn the_table_stands_in_the_order_of_the_kinds() {
        for (index, resource) in RESOURCES.iter().enumerate() {
            assert_eq!(resource.id as usize, index, "{}", resource.kind);
        }
    }
}
