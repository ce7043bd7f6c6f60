//! The served kinds: one table for routing, discovery, and the differences between their write requests.

/// A served kind. Its number is its index in [`RESOURCES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ResourceKind {
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
    VolumeSnapshot,
    VolumeSnapshotContent,
    VolumeSnapshotClass,
}

/// Number of kinds.
pub(crate) const COUNT: usize = 19;

/// Properties of a kind.
#[derive(Debug)]
pub(crate) struct ResourceDescriptor {
    pub(crate) id: ResourceKind,
    /// API group; empty for the core group.
    pub(crate) group: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) singular: &'static str,
    pub(crate) short_names: &'static [&'static str],
    pub(crate) namespaced: bool,
    /// True if the kind has a `status` subresource.
    pub(crate) has_status: bool,
    /// True if `metadata.generation` is 1 at creation and increases with each change of the spec. False for a
    /// CSIDriver, whose generation is 1 after the first change. A deletion that sets `deletionTimestamp`
    /// increases the generation, too, if the object has one.
    pub(crate) has_generation: bool,
    /// True for a custom resource. Unlike the built-in kinds, kube-apiserver validates it by the schema of
    /// its definition, not by a Go type.
    pub(crate) is_custom: bool,
    /// True if an update may omit the resourceVersion.
    pub(crate) allow_unconditional_update: bool,
    /// True if a PUT creates a missing object.
    pub(crate) allow_create_on_update: bool,
}

/// The endpoint of a write: the object itself or one of its subresources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subresource {
    Main,
    Status,
    /// `namespaces/finalize`.
    Finalize,
}

/// Name of the subresource `pods/binding`.
pub(crate) const BINDING: &str = "binding";

/// The version of all groups.
pub(crate) const VERSION: &str = "v1";

const fn resource(
    id: ResourceKind,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
) -> ResourceDescriptor {
    ResourceDescriptor {
        id,
        group: "",
        kind,
        plural,
        singular,
        short_names: &[],
        namespaced: false,
        has_status: false,
        has_generation: false,
        is_custom: false,
        allow_unconditional_update: true,
        allow_create_on_update: false,
    }
}

const fn storage_resource(
    id: ResourceKind,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
) -> ResourceDescriptor {
    ResourceDescriptor { group: "storage.k8s.io", ..resource(id, kind, plural, singular) }
}

const fn snapshot_resource(
    id: ResourceKind,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
) -> ResourceDescriptor {
    ResourceDescriptor {
        group: "snapshot.storage.k8s.io",
        has_generation: true,
        is_custom: true,
        allow_unconditional_update: false,
        ..resource(id, kind, plural, singular)
    }
}

/// All kinds, in the order of [`ResourceKind`].
pub(crate) static RESOURCES: [ResourceDescriptor; COUNT] = [
    ResourceDescriptor {
        short_names: &["ns"],
        has_status: true,
        ..resource(ResourceKind::Namespace, "Namespace", "namespaces", "namespace")
    },
    ResourceDescriptor {
        short_names: &["po"],
        namespaced: true,
        has_status: true,
        has_generation: true,
        ..resource(ResourceKind::Pod, "Pod", "pods", "pod")
    },
    ResourceDescriptor {
        short_names: &["no"],
        has_status: true,
        ..resource(ResourceKind::Node, "Node", "nodes", "node")
    },
    ResourceDescriptor {
        short_names: &["pv"],
        has_status: true,
        ..resource(
            ResourceKind::PersistentVolume,
            "PersistentVolume",
            "persistentvolumes",
            "persistentvolume",
        )
    },
    ResourceDescriptor {
        short_names: &["pvc"],
        namespaced: true,
        has_status: true,
        ..resource(
            ResourceKind::PersistentVolumeClaim,
            "PersistentVolumeClaim",
            "persistentvolumeclaims",
            "persistentvolumeclaim",
        )
    },
    ResourceDescriptor {
        short_names: &["ev"],
        namespaced: true,
        allow_create_on_update: true,
        ..resource(ResourceKind::Event, "Event", "events", "event")
    },
    ResourceDescriptor { namespaced: true, ..resource(ResourceKind::Secret, "Secret", "secrets", "secret") },
    ResourceDescriptor {
        short_names: &["cm"],
        namespaced: true,
        ..resource(ResourceKind::ConfigMap, "ConfigMap", "configmaps", "configmap")
    },
    ResourceDescriptor {
        short_names: &["sa"],
        namespaced: true,
        ..resource(ResourceKind::ServiceAccount, "ServiceAccount", "serviceaccounts", "serviceaccount")
    },
    ResourceDescriptor {
        short_names: &["sc"],
        ..storage_resource(ResourceKind::StorageClass, "StorageClass", "storageclasses", "storageclass")
    },
    ResourceDescriptor {
        allow_unconditional_update: false,
        ..storage_resource(ResourceKind::CsiDriver, "CSIDriver", "csidrivers", "csidriver")
    },
    ResourceDescriptor {
        allow_unconditional_update: false,
        ..storage_resource(ResourceKind::CsiNode, "CSINode", "csinodes", "csinode")
    },
    ResourceDescriptor {
        namespaced: true,
        allow_unconditional_update: false,
        ..storage_resource(
            ResourceKind::CsiStorageCapacity,
            "CSIStorageCapacity",
            "csistoragecapacities",
            "csistoragecapacity",
        )
    },
    ResourceDescriptor {
        has_status: true,
        allow_unconditional_update: false,
        ..storage_resource(
            ResourceKind::VolumeAttachment,
            "VolumeAttachment",
            "volumeattachments",
            "volumeattachment",
        )
    },
    ResourceDescriptor {
        short_names: &["vac"],
        ..storage_resource(
            ResourceKind::VolumeAttributesClass,
            "VolumeAttributesClass",
            "volumeattributesclasses",
            "volumeattributesclass",
        )
    },
    ResourceDescriptor {
        group: "coordination.k8s.io",
        namespaced: true,
        allow_unconditional_update: false,
        allow_create_on_update: true,
        ..resource(ResourceKind::Lease, "Lease", "leases", "lease")
    },
    ResourceDescriptor {
        short_names: &["vs"],
        namespaced: true,
        has_status: true,
        ..snapshot_resource(
            ResourceKind::VolumeSnapshot,
            "VolumeSnapshot",
            "volumesnapshots",
            "volumesnapshot",
        )
    },
    ResourceDescriptor {
        short_names: &["vsc", "vscs"],
        has_status: true,
        ..snapshot_resource(
            ResourceKind::VolumeSnapshotContent,
            "VolumeSnapshotContent",
            "volumesnapshotcontents",
            "volumesnapshotcontent",
        )
    },
    ResourceDescriptor {
        short_names: &["vsclass", "vsclasses"],
        ..snapshot_resource(
            ResourceKind::VolumeSnapshotClass,
            "VolumeSnapshotClass",
            "volumesnapshotclasses",
            "volumesnapshotclass",
        )
    },
];

/// The named groups, in the order of discovery.
pub(crate) const GROUPS: [&str; 3] = ["storage.k8s.io", "coordination.k8s.io", "snapshot.storage.k8s.io"];

impl ResourceDescriptor {
    /// Name of the resource in messages: `persistentvolumes`, `storageclasses.storage.k8s.io`.
    pub(crate) fn qualified_resource(&self) -> String {
        self.in_group(self.plural)
    }

    /// Name of the kind in messages: `PersistentVolume`, `StorageClass.storage.k8s.io`.
    pub(crate) fn qualified_kind(&self) -> String {
        self.in_group(self.kind)
    }

    fn in_group(&self, word: &str) -> String {
        if self.group.is_empty() { word.to_owned() } else { format!("{word}.{}", self.group) }
    }

    /// `apiVersion`: `v1`, `storage.k8s.io/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { VERSION.to_owned() } else { format!("{}/{VERSION}", self.group) }
    }

    /// URL path of the group and version.
    pub(crate) fn root(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{VERSION}")
        } else {
            format!("/apis/{}/{VERSION}", self.group)
        }
    }
}

impl ResourceKind {
    /// The descriptor of this kind.
    #[expect(clippy::indexing_slicing, reason = "a kind is an index of an array of exactly COUNT entries")]
    pub(crate) fn resource(self) -> &'static ResourceDescriptor {
        &RESOURCES[self as usize]
    }
}

/// Finds a resource by group and plural name.
pub(crate) fn find(group: &str, plural: &str) -> Option<&'static ResourceDescriptor> {
    RESOURCES.iter().find(|resource| resource.group == group && resource.plural == plural)
}

/// Returns `true` if the kinds of a group are custom resources.
pub(crate) fn is_custom_group(group: &str) -> bool {
    RESOURCES.iter().any(|resource| resource.is_custom && resource.group == group)
}

/// One value for each [`ResourceKind`].
#[derive(Debug)]
pub(crate) struct PerKind<T>([T; COUNT]);

impl<T> PerKind<T> {
    pub(crate) fn new(make: impl FnMut() -> T) -> Self {
        let mut make = make;
        Self(std::array::from_fn(|_| make()))
    }

    #[expect(clippy::indexing_slicing, reason = "a kind is an index of an array of exactly COUNT entries")]
    pub(crate) fn get(&self, kind: ResourceKind) -> &T {
        &self.0[kind as usize]
    }

    #[expect(clippy::indexing_slicing, reason = "a kind is an index of an array of exactly COUNT entries")]
    pub(crate) fn get_mut(&mut self, kind: ResourceKind) -> &mut T {
        &mut self.0[kind as usize]
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (ResourceKind, &mut T)> {
        RESOURCES.iter().map(|resource| resource.id).zip(self.0.iter_mut())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ResourceKind, &T)> {
        RESOURCES.iter().map(|resource| resource.id).zip(self.0.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::RESOURCES;

    #[test]
    fn resources_are_in_the_order_of_their_kinds() {
        for (index, resource) in RESOURCES.iter().enumerate() {
            assert_eq!(resource.id as usize, index, "{}", resource.kind);
        }
    }
}
