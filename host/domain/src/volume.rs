//! PersistentVolume.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{ClaimKey, DriverName, ObjectMeta, Uid, VolumeHandle, VolumeName},
    names,
    parameters::Segments,
    quantity::Quantity,
    string_map::StringMap,
};

/// A Kubernetes access mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AccessMode {
    /// RWO: read-write on one node.
    ReadWriteOnce,
    /// ROX: read-only on many nodes.
    ReadOnlyMany,
    /// RWX: read-write on many nodes.
    ReadWriteMany,
    /// RWOP: read-write by one pod.
    ReadWriteOncePod,
}

impl AccessMode {
    /// All modes, in Kubernetes' order.
    pub const ALL: [Self; 4] =
        [Self::ReadWriteOnce, Self::ReadOnlyMany, Self::ReadWriteMany, Self::ReadWriteOncePod];

    /// The value in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadOnlyMany => "ReadOnlyMany",
            Self::ReadWriteMany => "ReadWriteMany",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
        }
    }

    /// Parses the value in the API. `None` for a value that Kubernetes does not define.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of access modes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccessModes(u8);

impl AccessModes {
    /// The modes of the set, in Kubernetes' order.
    pub fn iter(self) -> impl Iterator<Item = AccessMode> {
        AccessMode::ALL.into_iter().filter(move |mode| self.0 & mode.bit() != 0)
    }

    /// Returns `true` if every mode of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The list that this set was read from: `list`, or without it the modes of [`iter`](Self::iter).
    pub fn list(self, list: Option<&[AccessMode]>) -> Vec<AccessMode> {
        list.map_or_else(|| self.iter().collect(), <[AccessMode]>::to_vec)
    }

    /// Number of modes.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns `true` if the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<AccessMode> for AccessModes {
    fn from_iter<T: IntoIterator<Item = AccessMode>>(modes: T) -> Self {
        Self(modes.into_iter().fold(0, |set, mode| set | mode.bit()))
    }
}

impl fmt::Debug for AccessModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// `volumeMode`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VolumeMode {
    /// A mounted filesystem. The default.
    #[default]
    Filesystem,
    /// A raw device.
    Block,
}

impl VolumeMode {
    /// The value in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Filesystem => "Filesystem",
            Self::Block => "Block",
        }
    }
}

/// `persistentVolumeReclaimPolicy` of a volume and `reclaimPolicy` of a class.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReclaimPolicy {
    /// The volume is deleted after its claim.
    Delete,
    /// The volume is retained.
    Retain,
    /// The volume is scrubbed and made available again (deprecated).
    Recycle,
    /// A value that Kubernetes does not define.
    #[serde(untagged)]
    Other(String),
}

impl ReclaimPolicy {
    /// Parses the value in the API. Unknown values are kept.
    pub fn parse(text: &str) -> Self {
        match text {
            "Delete" => Self::Delete,
            "Retain" => Self::Retain,
            "Recycle" => Self::Recycle,
            other => Self::Other(other.to_owned()),
        }
    }

    /// The value in the API.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Delete => "Delete",
            Self::Retain => "Retain",
            Self::Recycle => "Recycle",
            Self::Other(other) => other,
        }
    }
}

/// `status.phase` of a PersistentVolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VolumePhase {
    /// Just created. The default for an absent or unknown value.
    #[default]
    Pending,
    /// Not bound.
    Available,
    /// Bound to a claim.
    Bound,
    /// The bound claim was deleted, and the volume is not reclaimed yet.
    Released,
    /// The deletion or scrubbing of a Released volume failed.
    Failed,
}

impl VolumePhase {
    /// The value in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Available => "Available",
            Self::Bound => "Bound",
            Self::Released => "Released",
            Self::Failed => "Failed",
        }
    }
}

/// `spec.claimRef`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    /// Namespace and name.
    pub key: ClaimKey,
    /// The claim's uid; `None` if the volume was reserved by name.
    pub uid: Option<Uid>,
}

/// Reference to a Secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRef {
    /// `namespace`
    pub namespace: Box<str>,
    /// `name`
    pub name: Box<str>,
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `spec.csi`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiVolumeSource {
    /// `driver`
    pub driver: DriverName,
    /// `volumeHandle`
    pub handle: VolumeHandle,
    /// `volumeAttributes`
    pub attributes: StringMap,
    /// `fsType`, if not empty.
    pub fs_type: Option<Arc<str>>,
    /// `readOnly`
    pub read_only: bool,
    /// `controllerPublishSecretRef`
    pub publish_secret: Option<Box<SecretRef>>,
    /// `controllerExpandSecretRef`
    pub expand_secret: Option<Box<SecretRef>>,
}

/// Fields of a PersistentVolume's `spec` with an in-tree source that must be attached, also after the
/// migration to a CSI driver.
const ATTACHABLE_IN_TREE_SOURCES: [&str; 8] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cinder",
    "fc",
    "gcePersistentDisk",
    "iscsi",
    "portworxVolume",
    "vsphereVolume",
];

/// A PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// `metadata.name`
    pub name: VolumeName,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `spec.capacity.storage`. A volume without it is bound to no claim.
    pub capacity: Option<Quantity>,
    /// `spec.accessModes`
    pub access_modes: AccessModes,
    /// `spec.volumeMode`
    pub mode: VolumeMode,
    /// The class name: the legacy annotation, else `spec.storageClassName`, else empty.
    pub class: Arc<str>,
    /// `spec.volumeAttributesClassName`, empty if absent.
    pub attributes_class: Box<str>,
    /// `spec.persistentVolumeReclaimPolicy`
    pub reclaim_policy: ReclaimPolicy,
    /// `spec.claimRef`
    pub claim_ref: Option<ClaimRef>,
    /// `spec.mountOptions`
    pub mount_options: Vec<String>,
    /// `spec.nodeAffinity.required`: for each term, the labels that must have one given value. Other
    /// requirements of a term are dropped; they only restrict it further.
    pub node_affinity_terms: Box<[StringMap]>,
    /// `spec.csi`; `None` if the PersistentVolume has another volume source.
    pub csi: Option<CsiVolumeSource>,
    /// Name of the `spec` field with an in-tree source, such as `awsElasticBlockStore`; `None` for CSI
    /// volumes, and for sources that Kubernetes does not define.
    pub in_tree_source: Option<&'static str>,
    /// The notation of fields that other fields of this struct do not keep; `None` if they keep it.
    pub notation: Option<Box<VolumeNotation>>,
    /// `status.phase`
    pub phase: VolumePhase,
}

/// Fields of a PersistentVolume as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeNotation {
    /// `spec.capacity.storage`, if its text is not that of the [`Quantity`].
    pub capacity: Option<Box<str>>,
    /// `spec.accessModes`, if the list has duplicates or another order than [`AccessModes::iter`].
    pub access_modes: Option<Box<[AccessMode]>>,
}

impl Volume {
    /// Returns `true` if the volume is bound or pre-bound to the claim: the claimRef has the claim's
    /// namespace and name, and no uid or the claim's uid (kube-controller-manager's IsVolumeBoundToClaim).
    pub fn is_bound_to(&self, key: &ClaimKey, uid: &Uid) -> bool {
        self.claim_ref.as_ref().is_some_and(|r| r.key == *key && r.uid.as_ref().is_none_or(|u| u == uid))
    }

    /// Returns `true` if the volume is accessible only from nodes with all these labels: every term of its
    /// node affinity requires them. `false` without labels or terms.
    pub fn is_only_accessible_from(&self, segments: &Segments) -> bool {
        let requires_segments = |term: &StringMap| {
            segments.iter().all(|(key, value)| term.get(key).is_some_and(|has| has == value))
        };
        !segments.is_empty()
            && !self.node_affinity_terms.is_empty()
            && self.node_affinity_terms.iter().all(requires_segments)
    }

    /// Returns `true` if the volume is inaccessible from every node with these labels: every term of its node
    /// affinity requires another value for one of them. `false` without terms.
    pub fn is_inaccessible_from(&self, segments: &Segments) -> bool {
        let excludes_segments = |term: &StringMap| {
            segments.iter().any(|(key, value)| term.get(key).is_some_and(|has| has != value))
        };
        !self.node_affinity_terms.is_empty() && self.node_affinity_terms.iter().all(excludes_segments)
    }

    /// `spec.accessModes` in the order of the list, with duplicates.
    pub fn access_mode_list(&self) -> Vec<AccessMode> {
        self.access_modes.list(self.notation.as_ref().and_then(|notation| notation.access_modes.as_deref()))
    }

    /// `spec.capacity.storage` as it is written; `None` if the volume has no capacity.
    pub fn capacity_text(&self) -> Option<String> {
        let text = self.notation.as_ref().and_then(|notation| notation.capacity.as_deref());
        text.map(str::to_owned).or_else(|| self.capacity.map(|capacity| capacity.to_string()))
    }

    /// The `spec` field with the volume's in-tree source, if the source must be attached; `None` for all
    /// other sources.
    pub fn attachable_in_tree_source(&self) -> Option<&'static str> {
        self.in_tree_source.filter(|source| ATTACHABLE_IN_TREE_SOURCES.contains(source))
    }

    /// The CSI driver to which the volume's in-tree plugin is migrated: by the annotations `migrated-to` and
    /// `provisioned-by`, else by the source. `None` for volumes with `spec.csi`, and for those of other
    /// plugins.
    pub fn migrated_driver(&self) -> Option<&str> {
        if self.csi.is_some() {
            return None;
        }
        let migrated_to = self.meta.annotation(names::MIGRATED_TO).filter(|driver| !driver.is_empty());
        migrated_to
            .or_else(|| self.provisioned_by().and_then(names::migrated_driver))
            .or_else(|| self.in_tree_source.and_then(names::migrated_driver_of_source))
    }

    /// Value of the `provisioned-by` annotation, if not empty.
    pub fn provisioned_by(&self) -> Option<&str> {
        self.meta.annotation(names::PROVISIONED_BY).filter(|by| !by.is_empty())
    }
}
