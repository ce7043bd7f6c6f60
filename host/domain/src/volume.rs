//! PersistentVolume, as far as the roles decide on it.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{ClaimKey, DriverName, ObjectMeta, Uid, VolumeHandle, VolumeName},
    names,
    quantity::Quantity,
    storage::Segments,
    string_map::StringMap,
};

/// One of Kubernetes' access modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AccessMode {
    /// RWO: read and write on one node.
    ReadWriteOnce,
    /// ROX: read only on many nodes.
    ReadOnlyMany,
    /// RWX: read and write on many nodes.
    ReadWriteMany,
    /// RWOP: read and write by one pod.
    ReadWriteOncePod,
}

impl AccessMode {
    /// Every mode, in the order in which Kubernetes writes sets of them.
    pub const ALL: [Self; 4] =
        [Self::ReadWriteOnce, Self::ReadOnlyMany, Self::ReadWriteMany, Self::ReadWriteOncePod];

    /// The API's spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadOnlyMany => "ReadOnlyMany",
            Self::ReadWriteMany => "ReadWriteMany",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
        }
    }

    /// Reads the API's spelling.
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

    /// Whether every mode of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// How many modes the set has.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether the set has no mode.
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
    /// A mounted filesystem; what an absent value means.
    #[default]
    Filesystem,
    /// A raw device.
    Block,
}

/// `persistentVolumeReclaimPolicy` and a class' `reclaimPolicy`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReclaimPolicy {
    /// The volume goes with its claim.
    Delete,
    /// The volume stays.
    Retain,
    /// The volume is scrubbed and offered again (deprecated).
    Recycle,
    /// A value that Kubernetes does not define.
    #[serde(untagged)]
    Other(String),
}

impl ReclaimPolicy {
    /// Reads the API's spelling; anything unknown is kept as it stands.
    pub fn parse(text: &str) -> Self {
        match text {
            "Delete" => Self::Delete,
            "Retain" => Self::Retain,
            "Recycle" => Self::Recycle,
            other => Self::Other(other.to_owned()),
        }
    }

    /// The API's spelling.
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
    /// Just created; also what an absent or unknown value means.
    #[default]
    Pending,
    /// Free.
    Available,
    /// Its claim exists and names it.
    Bound,
    /// Its claim is gone.
    Released,
    /// Reclaiming it failed.
    Failed,
}

impl VolumePhase {
    /// The API's spelling.
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
    /// The claim's uid; absent when a person reserved the volume by name.
    pub uid: Option<Uid>,
}

/// Where a Secret stands.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// `spec.csi`, as far as the roles use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiVolumeSource {
    /// `driver`
    pub driver: DriverName,
    /// `volumeHandle`
    pub handle: VolumeHandle,
    /// `volumeAttributes`
    pub attributes: StringMap,
    /// `fsType`, when not empty.
    pub fs_type: Option<Arc<str>>,
    /// `readOnly`
    pub read_only: bool,
    /// `controllerPublishSecretRef`
    pub publish_secret: Option<Box<SecretRef>>,
    /// `controllerExpandSecretRef`
    pub expand_secret: Option<Box<SecretRef>>,
}

/// A PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// `metadata.name`
    pub name: VolumeName,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `spec.capacity.storage`; absent makes the volume useless for matching.
    pub capacity: Option<Quantity>,
    /// `spec.accessModes`
    pub access_modes: AccessModes,
    /// `spec.volumeMode`
    pub mode: VolumeMode,
    /// The class: legacy annotation, else `spec.storageClassName`, else empty.
    pub class: Arc<str>,
    /// `spec.volumeAttributesClassName`, empty when absent.
    pub attributes_class: Box<str>,
    /// `spec.persistentVolumeReclaimPolicy`
    pub reclaim_policy: ReclaimPolicy,
    /// `spec.claimRef`
    pub claim_ref: Option<ClaimRef>,
    /// `spec.mountOptions`
    pub mount_options: Vec<String>,
    /// `spec.nodeAffinity.required`: of each term the labels that a node must have with this one value. What
    /// else a term asks for only narrows it.
    pub node_affinity_terms: Box<[StringMap]>,
    /// `spec.csi`; absent for in-tree sources.
    pub csi: Option<CsiVolumeSource>,
    /// The member of `spec` with an in-tree source that has to be attached, or whose plugin a CSI driver took
    /// over.
    pub in_tree_source: Option<&'static str>,
    /// `status.phase`
    pub phase: VolumePhase,
}

impl Volume {
    /// Whether the volume belongs or is reserved to the claim: same place, and the uid absent or equal
    /// (controllers' "PV is (pre-)bound to claim").
    pub fn is_bound_to(&self, key: &ClaimKey, uid: &Uid) -> bool {
        self.claim_ref.as_ref().is_some_and(|r| r.key == *key && r.uid.as_ref().is_none_or(|u| u == uid))
    }

    /// Whether only nodes with all these labels reach the volume.
    pub fn is_only_accessible_from(&self, segments: &Segments) -> bool {
        let requires_segments = |term: &StringMap| {
            segments.iter().all(|(key, value)| term.get(key).is_some_and(|has| has == value))
        };
        !segments.is_empty()
            && !self.node_affinity_terms.is_empty()
            && self.node_affinity_terms.iter().all(requires_segments)
    }

    /// Whether no node with these labels reaches the volume.
    pub fn is_inaccessible_from(&self, segments: &Segments) -> bool {
        let excludes_segments = |term: &StringMap| {
            segments.iter().any(|(key, value)| term.get(key).is_some_and(|has| has != value))
        };
        !self.node_affinity_terms.is_empty() && self.node_affinity_terms.iter().all(excludes_segments)
    }

    /// Value of the annotation that names who made the volume, when not empty.
    pub fn provisioned_by(&self) -> Option<&str> {
        self.meta.annotation(names::PROVISIONED_BY).filter(|by| !by.is_empty())
    }
}
