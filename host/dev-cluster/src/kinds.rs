//! Kinds that the simulated components watch in another form than Cofferdam's controllers: pods, nodes,
//! PersistentVolumes, CSINodes and CSIDrivers as [`FullObject`]s, and CSIStorageCapacities. Clusters of dev
//! mode are small enough to store each object in two types.

use std::{collections::BTreeMap, fmt};

use cofferdam_cluster::{
    api::ApiResource,
    decode,
    index::Indexed,
    objects::{DecodeError, Kind, ObjectKey},
};
use cofferdam_domain::{CsiDriver, CsiNode, Node, ObjectMeta, Pod, Quantity, Uid, Volume};
use k8s_openapi::{
    api::{
        core::v1::{self as core, PersistentVolumeSpec, PodSpec},
        storage::v1 as storage,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use serde::{Deserialize, de::DeserializeOwned};

/// An object decoded twice: as the domain type, which has the fields that Cofferdam's controllers use, and in
/// full.
#[derive(Clone, Debug, PartialEq)]
pub struct FullObject<S, F> {
    /// The domain type.
    pub slim: S,
    /// The full API type.
    pub full: F,
}

/// A Pod: the domain type and the full API type.
pub type FullPod = FullObject<Pod, core::Pod>;
/// A Node: the domain type and the full API type.
pub type FullNode = FullObject<Node, core::Node>;
/// A PersistentVolume: the domain type and the full API type.
pub type FullVolume = FullObject<Volume, core::PersistentVolume>;
/// A CSINode: the domain type and the full API type.
pub type FullCsiNode = FullObject<CsiNode, storage::CSINode>;
/// A CSIDriver: the domain type and the full API type.
pub type FullCsiDriver = FullObject<CsiDriver, storage::CSIDriver>;

impl<S, F> Kind for FullObject<S, F>
where
    S: Kind,
    F: Clone + PartialEq + DeserializeOwned + Send + Sync + 'static,
{
    type Key = S::Key;
    const RESOURCE: ApiResource = S::RESOURCE;

    fn decode(json: &str) -> Result<Self, DecodeError> {
        Ok(Self { slim: S::decode(json)?, full: decode::json(json)? })
    }

    fn key(&self) -> &S::Key {
        self.slim.key()
    }

    fn meta(&self) -> &ObjectMeta {
        self.slim.meta()
    }
}

impl<S, F> Indexed for FullObject<S, F>
where
    S: Kind,
    F: Clone + PartialEq + DeserializeOwned + Send + Sync + 'static,
{
    type Index = ();
}

impl FullPod {
    /// `spec`; empty if it is absent, which the API server prevents.
    pub fn spec(&self) -> &PodSpec {
        static NONE: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.full.spec.as_ref().unwrap_or(&NONE)
    }

    /// `spec.volumes`
    pub fn volumes(&self) -> &[core::Volume] {
        self.spec().volumes.as_deref().unwrap_or_default()
    }

    /// `status.phase`; empty if it is absent.
    pub fn phase(&self) -> &str {
        self.full.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
    }

    /// Returns true if the status has a running container.
    pub fn is_running(&self) -> bool {
        let statuses = self.full.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        let running = |status: &core::ContainerStatus| {
            status.state.as_ref().is_some_and(|state| state.running.is_some())
        };
        statuses.into_iter().flatten().any(running)
    }

    /// Name of the claim of a pod's volume; None unless the volume has a `persistentVolumeClaim` or is
    /// generic ephemeral.
    pub fn claim_name(&self, volume: &core::Volume) -> Option<String> {
        if let Some(source) = &volume.persistent_volume_claim {
            return Some(source.claim_name.clone());
        }
        volume.ephemeral.as_ref().map(|_| format!("{}-{}", self.slim.key.name, volume.name))
    }
}

impl FullVolume {
    /// `spec`; empty if it is absent, which the API server prevents.
    pub fn spec(&self) -> &PersistentVolumeSpec {
        static NONE: std::sync::LazyLock<PersistentVolumeSpec> =
            std::sync::LazyLock::new(PersistentVolumeSpec::default);
        self.full.spec.as_ref().unwrap_or(&NONE)
    }
}

impl FullCsiNode {
    /// Maximum number of volumes of a driver on the node; None if the driver is not registered or has no
    /// limit.
    pub fn volume_limit(&self, driver: &str) -> Option<usize> {
        let entry = self.full.spec.drivers.iter().find(|entry| entry.name == driver)?;
        let count = entry.allocatable.as_ref()?.count?;
        usize::try_from(count).ok()
    }
}

/// A CSIStorageCapacity: the capacity of a driver for a class and a topology segment.
#[derive(Clone, Debug, PartialEq)]
pub struct CsiStorageCapacity {
    key: CsiStorageCapacityKey,
    meta: ObjectMeta,
    /// `storageClassName`
    pub storage_class: String,
    /// `nodeTopology`; absent if no node can access the capacity.
    pub node_topology: Option<LabelSelector>,
    /// The largest possible volume: `maximumVolumeSize`, else `capacity`; absent if unknown.
    pub maximum_volume_size: Option<Quantity>,
}

/// Namespace and name of a CSIStorageCapacity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CsiStorageCapacityKey {
    namespace: Box<str>,
    name: Box<str>,
}

impl fmt::Display for CsiStorageCapacityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl ObjectKey for CsiStorageCapacityKey {
    fn from_parts(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    fn parts(&self) -> (Option<&str>, &str) {
        (Some(&self.namespace), &self.name)
    }
}

impl Indexed for CsiStorageCapacity {
    type Index = ();
}

impl Kind for CsiStorageCapacity {
    type Key = CsiStorageCapacityKey;
    const RESOURCE: ApiResource = ApiResource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "CSIStorageCapacity",
        plural: "csistoragecapacities",
        namespaced: true,
    };

    fn decode(json: &str) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire {
            metadata: Meta,
            storage_class_name: String,
            node_topology: Option<LabelSelector>,
            capacity: Option<String>,
            maximum_volume_size: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            name: Box<str>,
            namespace: Box<str>,
            uid: Box<str>,
            resource_version: String,
            deletion_timestamp: Option<String>,
        }
        let wire: Wire = decode::json(json)?;
        let version = wire.metadata.resource_version.parse()?;
        let path = if wire.maximum_volume_size.is_some() { "maximumVolumeSize" } else { "capacity" };
        let largest = wire.maximum_volume_size.or(wire.capacity);
        let largest = largest
            .map(|text| Quantity::parse(&text).map_err(|source| DecodeError::Quantity { path, source }));
        Ok(Self {
            key: CsiStorageCapacityKey { namespace: wire.metadata.namespace, name: wire.metadata.name },
            meta: ObjectMeta {
                uid: Uid::new(wire.metadata.uid),
                resource_version: version,
                deleting: wire.metadata.deletion_timestamp.is_some(),
                ..ObjectMeta::default()
            },
            storage_class: wire.storage_class_name,
            node_topology: wire.node_topology,
            maximum_volume_size: largest.transpose()?,
        })
    }

    fn key(&self) -> &CsiStorageCapacityKey {
        &self.key
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

/// Labels of a node.
pub type Labels = BTreeMap<String, String>;
