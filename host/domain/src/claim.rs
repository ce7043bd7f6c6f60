//! PersistentVolumeClaim.

use std::{fmt, sync::Arc};

use crate::{
    ids::{ClaimKey, ObjectMeta, Uid, VolumeName, VolumeSnapshotKey},
    names,
    quantity::{Quantity, QuantityError},
    selector::{InvalidRequirement, LabelSelector},
    volume::{AccessMode, AccessModes, VolumeMode},
};

/// `status.phase` of a PersistentVolumeClaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClaimPhase {
    /// Not bound. The default for an absent or unknown value.
    #[default]
    Pending,
    /// Bound to a volume.
    Bound,
    /// The bound volume was deleted or is bound to another claim.
    Lost,
}

impl ClaimPhase {
    /// The value in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Bound => "Bound",
            Self::Lost => "Lost",
        }
    }
}

/// `status.allocatedResourceStatuses.storage`: the progress of an expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResizeState {
    /// ControllerExpandVolume is in progress, or its result is unknown.
    ControllerInProgress,
    /// The driver cannot expand the volume.
    ControllerInfeasible,
    /// ControllerExpandVolume succeeded; NodeExpandVolume is pending.
    NodePending,
    /// NodeExpandVolume is in progress.
    NodeInProgress,
    /// The node cannot expand the volume.
    NodeInfeasible,
}

impl ResizeState {
    /// All states.
    pub const ALL: [Self; 5] = [
        Self::ControllerInProgress,
        Self::ControllerInfeasible,
        Self::NodePending,
        Self::NodeInProgress,
        Self::NodeInfeasible,
    ];

    /// The value in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ControllerInProgress => "ControllerResizeInProgress",
            Self::ControllerInfeasible => "ControllerResizeInfeasible",
            Self::NodePending => "NodeResizePending",
            Self::NodeInProgress => "NodeResizeInProgress",
            Self::NodeInfeasible => "NodeResizeInfeasible",
        }
    }

    /// Parses the value in the API. `None` for a value that Kubernetes does not define.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// `status.modifyVolumeStatus.status`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModifyState {
    /// A precondition is missing, such as the class. The default for an unknown value.
    Pending,
    /// ControllerModifyVolume is in progress, or its result is unknown.
    InProgress,
    /// The driver cannot modify the volume.
    Infeasible,
}

impl ModifyState {
    /// The value in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::InProgress => "InProgress",
            Self::Infeasible => "Infeasible",
        }
    }

    /// Parses the value in the API. An unknown value is `Pending`.
    pub fn parse(text: &str) -> Self {
        match text {
            "InProgress" => Self::InProgress,
            "Infeasible" => Self::Infeasible,
            _ => Self::Pending,
        }
    }
}

/// `status.modifyVolumeStatus`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModifyVolumeStatus {
    /// `status`
    pub state: ModifyState,
    /// `targetVolumeAttributesClassName`, empty when absent.
    pub target_class: Box<str>,
}

/// Types of the claim conditions about expansion and modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClaimConditionType {
    /// The volume is being expanded.
    Resizing,
    /// NodeExpandVolume is pending.
    FileSystemResizePending,
    /// ControllerExpandVolume failed.
    ControllerResizeError,
    /// NodeExpandVolume failed.
    NodeResizeError,
    /// The volume is being modified.
    ModifyingVolume,
    /// ControllerModifyVolume failed.
    ModifyVolumeError,
}

impl ClaimConditionType {
    /// Condition types of expansion.
    pub const RESIZE_TYPES: [Self; 4] =
        [Self::Resizing, Self::FileSystemResizePending, Self::ControllerResizeError, Self::NodeResizeError];
    /// Condition types of modification.
    pub const MODIFY_TYPES: [Self; 2] = [Self::ModifyingVolume, Self::ModifyVolumeError];

    /// The value in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Resizing => "Resizing",
            Self::FileSystemResizePending => "FileSystemResizePending",
            Self::ControllerResizeError => "ControllerResizeError",
            Self::NodeResizeError => "NodeResizeError",
            Self::ModifyingVolume => "ModifyingVolume",
            Self::ModifyVolumeError => "ModifyVolumeError",
        }
    }

    /// Parses the value in the API. `None` for all other condition types.
    pub fn parse(text: &str) -> Option<Self> {
        let all = Self::RESIZE_TYPES.into_iter().chain(Self::MODIFY_TYPES);
        all.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// A member of `status.conditions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimCondition {
    /// `type`
    pub condition_type: ClaimConditionType,
    /// True if `status` is True.
    pub is_true: bool,
    /// `reason`, empty when absent.
    pub reason: Box<str>,
    /// `message`, empty when absent.
    pub message: Box<str>,
}

/// The expansion and modification status of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// `allocatedResources.storage`: the size of the last expansion that was started. `None` if it is absent
    /// or not a quantity.
    pub allocated_resources: Option<Quantity>,
    /// `allocatedResourceStatuses.storage`; `None` if it is absent or not a [`ResizeState`].
    pub resize: Option<ResizeState>,
    /// `modifyVolumeStatus`; `None` if it is absent or its `status` is empty.
    pub modification: Option<ModifyVolumeStatus>,
    /// `conditions` with a type of [`ClaimConditionType`]. Other conditions are dropped.
    pub conditions: Vec<ClaimCondition>,
}

impl Progress {
    const NONE: Self =
        Self { allocated_resources: None, resize: None, modification: None, conditions: Vec::new() };

    /// The condition of this type; `None` if the claim has no such condition.
    pub fn condition(&self, kind: ClaimConditionType) -> Option<&ClaimCondition> {
        self.conditions.iter().find(|condition| condition.condition_type == kind)
    }

    /// Returns `true` if the condition of this type has status True.
    pub fn is_condition_true(&self, kind: ClaimConditionType) -> bool {
        self.condition(kind).is_some_and(|condition| condition.is_true)
    }
}

/// The object in `spec.dataSource` or `spec.dataSourceRef`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSource {
    /// `apiGroup`, empty for the core group.
    pub group: Box<str>,
    /// `kind`
    pub kind: Box<str>,
    /// `name`
    pub name: Box<str>,
    /// `namespace` of `spec.dataSourceRef`, if not empty.
    pub namespace: Option<Box<str>>,
}

impl DataSource {
    /// Returns `true` for a PersistentVolumeClaim.
    pub fn is_claim(&self) -> bool {
        self.group.is_empty() && *self.kind == *"PersistentVolumeClaim"
    }

    /// Returns `true` for a VolumeSnapshot.
    pub fn is_snapshot(&self) -> bool {
        *self.group == *"snapshot.storage.k8s.io" && *self.kind == *"VolumeSnapshot"
    }
}

/// Namespace and name of the object from which the content of a claim's volume is taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SourceKey {
    /// A PersistentVolumeClaim, whose volume is cloned.
    Claim(ClaimKey),
    /// A VolumeSnapshot, which is restored.
    Snapshot(VolumeSnapshotKey),
}

impl fmt::Display for SourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(key) => write!(f, "claim {key}"),
            Self::Snapshot(key) => write!(f, "VolumeSnapshot {key}"),
        }
    }
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Namespace and name.
    pub key: ClaimKey,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `uid` of the ownerReference with `controller: true`. For a generic ephemeral volume, it is the pod's.
    pub controller_uid: Option<Uid>,
    /// `spec.volumeName`, if not empty.
    pub volume: Option<VolumeName>,
    /// `spec.storageClassName`. `None` requests the default class; the empty name requests no class.
    pub class: Option<Arc<str>>,
    /// `spec.accessModes`
    pub access_modes: AccessModes,
    /// `spec.volumeMode`
    pub mode: VolumeMode,
    /// `spec.resources.requests.storage`. The error of a missing or invalid amount is kept for an event on
    /// the claim; a missing amount has the error of the empty text.
    pub request: Result<Quantity, Box<QuantityError>>,
    /// `spec.selector`, or the reason why it is invalid; `None` if the claim has no selector.
    pub selector: Option<Box<Result<LabelSelector, InvalidRequirement>>>,
    /// `spec.volumeAttributesClassName`, empty when absent.
    pub attributes_class: Box<str>,
    /// `spec.dataSource`, else `spec.dataSourceRef`; `None` if the claim sets neither.
    pub source: Option<Box<DataSource>>,
    /// `status.phase`
    pub phase: ClaimPhase,
    /// `status.accessModes`
    pub status_access_modes: AccessModes,
    /// `status.accessModes` as it is written, if the list has duplicates or another order than
    /// [`AccessModes::iter`]; else `None`.
    pub status_access_mode_list: Option<Box<[AccessMode]>>,
    /// `status.capacity.storage`; `None` if it is absent or not a quantity.
    pub status_capacity: Option<Quantity>,
    /// `status.currentVolumeAttributesClassName`
    pub status_attributes_class: Option<Box<str>>,
    /// Expansion and modification status; `None` if the claim's status has none.
    pub progress: Option<Box<Progress>>,
}

impl Claim {
    /// The expansion and modification status; empty if the claim's status has none.
    pub fn progress(&self) -> &Progress {
        static NONE: Progress = Progress::NONE;
        self.progress.as_deref().unwrap_or(&NONE)
    }

    /// The requested, current and target VolumeAttributesClasses, without duplicates.
    pub fn attributes_classes(&self) -> impl Iterator<Item = &str> {
        let requested = &*self.attributes_class;
        let has = self.status_attributes_class.as_deref().unwrap_or_default();
        let target =
            self.progress().modification.as_ref().map_or("", |modification| &modification.target_class);
        let has = Some(has).filter(|has| *has != requested);
        let target = Some(target).filter(|to| *to != requested && Some(*to) != has);
        [Some(requested), has, target].into_iter().flatten().filter(|name| !name.is_empty())
    }

    /// The source of this claim's volume. `None` if this claim has no source, or a source of another kind or
    /// namespace.
    pub fn source_key(&self) -> Option<SourceKey> {
        self.source_claim().map(SourceKey::Claim).or_else(|| self.source_snapshot().map(SourceKey::Snapshot))
    }

    /// The claim from whose volume the content of this claim's volume is cloned. `None` if this claim has no
    /// source, or a source of another kind or namespace.
    pub fn source_claim(&self) -> Option<ClaimKey> {
        let source = self.source.as_ref().filter(|source| source.is_claim())?;
        self.is_own_namespace(source).then(|| ClaimKey::new(&*self.key.namespace, &*source.name))
    }

    /// The VolumeSnapshot from which the content of this claim's volume is restored. `None` if this claim has
    /// no source, or a source of another kind or namespace.
    pub fn source_snapshot(&self) -> Option<VolumeSnapshotKey> {
        let source = self.source.as_ref().filter(|source| source.is_snapshot())?;
        self.is_own_namespace(source).then(|| VolumeSnapshotKey::new(&*self.key.namespace, &*source.name))
    }

    fn is_own_namespace(&self, source: &DataSource) -> bool {
        source.namespace.as_ref().is_none_or(|namespace| **namespace == *self.key.namespace)
    }

    /// `status.accessModes` in the order of the list, with duplicates.
    pub fn status_access_mode_list(&self) -> Vec<AccessMode> {
        self.status_access_modes.list(self.status_access_mode_list.as_deref())
    }

    /// The class name: the legacy annotation, even if empty, else `spec.storageClassName`, else empty.
    pub fn class_name(&self) -> &str {
        self.meta.annotation(names::CLASS_BETA).or(self.class.as_deref()).unwrap_or_default()
    }

    /// Returns `true` if the claim sets a class, even the empty one. The default class is for claims that set
    /// none.
    pub fn has_class(&self) -> bool {
        self.meta.has_annotation(names::CLASS_BETA) || self.class.is_some()
    }

    /// Returns `true` if the claim is bound or was bound before.
    pub fn is_bind_completed(&self) -> bool {
        self.meta.has_annotation(names::BIND_COMPLETED)
    }

    /// Name of the provisioning driver: from the annotation, else from its legacy form. `None` if the claim
    /// has neither.
    pub fn storage_provisioner(&self) -> Option<&str> {
        self.meta
            .annotation(names::STORAGE_PROVISIONER)
            .or_else(|| self.meta.annotation(names::STORAGE_PROVISIONER_BETA))
    }

    /// Name of the node that the scheduler selected; `None` if the annotation is absent or empty.
    pub fn selected_node(&self) -> Option<&str> {
        self.meta.annotation(names::SELECTED_NODE).filter(|node| !node.is_empty())
    }
}
