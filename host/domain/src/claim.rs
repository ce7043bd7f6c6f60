//! PersistentVolumeClaim, as far as the roles decide on it.

use std::sync::Arc;

use crate::{
    ids::{ClaimKey, ObjectMeta, Uid, VolumeName},
    names,
    quantity::{Quantity, QuantityError},
    selector::LabelSelector,
    volume::{AccessModes, VolumeMode},
};

/// `status.phase` of a PersistentVolumeClaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClaimPhase {
    /// Not bound; also what an absent or unknown value means.
    #[default]
    Pending,
    /// Bound to a volume.
    Bound,
    /// Was bound, and the volume is gone or belongs to another.
    Lost,
}

impl ClaimPhase {
    /// The API's spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Bound => "Bound",
            Self::Lost => "Lost",
        }
    }
}

/// `status.allocatedResourceStatuses.storage`: how far a growth has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResizeState {
    /// The driver is asked, or was and nobody knows the outcome.
    ControllerInProgress,
    /// The driver cannot do it.
    ControllerInfeasible,
    /// The driver has done its part; the node's is to come.
    NodePending,
    /// The node is at it.
    NodeInProgress,
    /// The node cannot do it.
    NodeInfeasible,
}

impl ResizeState {
    /// Every state.
    pub const ALL: [Self; 5] = [
        Self::ControllerInProgress,
        Self::ControllerInfeasible,
        Self::NodePending,
        Self::NodeInProgress,
        Self::NodeInfeasible,
    ];

    /// The API's spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ControllerInProgress => "ControllerResizeInProgress",
            Self::ControllerInfeasible => "ControllerResizeInfeasible",
            Self::NodePending => "NodeResizePending",
            Self::NodeInProgress => "NodeResizeInProgress",
            Self::NodeInfeasible => "NodeResizeInfeasible",
        }
    }

    /// Reads the API's spelling.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// `status.modifyVolumeStatus.status`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModifyState {
    /// Something is missing, such as the class; also what an unknown value means.
    Pending,
    /// The driver is asked, or was and nobody knows the outcome.
    InProgress,
    /// The driver cannot do it.
    Infeasible,
}

impl ModifyState {
    /// The API's spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::InProgress => "InProgress",
            Self::Infeasible => "Infeasible",
        }
    }

    /// Reads the API's spelling.
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

/// Type of a condition that growing or modifying puts on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClaimConditionType {
    /// It grows.
    Resizing,
    /// The node's part is to come.
    FileSystemResizePending,
    /// The driver could not.
    ControllerResizeError,
    /// The node could not.
    NodeResizeError,
    /// It is modified.
    ModifyingVolume,
    /// The driver could not modify it.
    ModifyVolumeError,
}

impl ClaimConditionType {
    /// Those of growing.
    pub const RESIZE_TYPES: [Self; 4] =
        [Self::Resizing, Self::FileSystemResizePending, Self::ControllerResizeError, Self::NodeResizeError];
    /// Those of modifying.
    pub const MODIFY_TYPES: [Self; 2] = [Self::ModifyingVolume, Self::ModifyVolumeError];

    /// The API's spelling.
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

    /// Reads the API's spelling; absent for the conditions of others.
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
    /// Whether `status` is True.
    pub is_true: bool,
    /// `reason`, empty when absent.
    pub reason: Box<str>,
    /// `message`, empty when absent.
    pub message: Box<str>,
}

/// What `status` says of growing and modifying.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// `allocatedResources.storage`: the size that was asked for last.
    pub allocated_resources: Option<Quantity>,
    /// `allocatedResourceStatuses.storage`
    pub resize: Option<ResizeState>,
    /// `modifyVolumeStatus`
    pub modification: Option<ModifyVolumeStatus>,
    /// Those of `conditions` that are about this.
    pub conditions: Vec<ClaimCondition>,
}

impl Progress {
    const NONE: Self =
        Self { allocated_resources: None, resize: None, modification: None, conditions: Vec::new() };

    /// The condition of a type.
    pub fn condition(&self, kind: ClaimConditionType) -> Option<&ClaimCondition> {
        self.conditions.iter().find(|condition| condition.condition_type == kind)
    }

    /// Whether a condition is True.
    pub fn is_condition_true(&self, kind: ClaimConditionType) -> bool {
        self.condition(kind).is_some_and(|condition| condition.is_true)
    }
}

/// `spec.dataSource`, else `spec.dataSourceRef`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSource {
    /// `apiGroup`, empty for the core group.
    pub group: Box<str>,
    /// `kind`
    pub kind: Box<str>,
    /// `name`
    pub name: Box<str>,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Namespace and name.
    pub key: ClaimKey,
    /// Metadata.
    pub meta: ObjectMeta,
    /// Uid of the owner that controls it: the pod whose generic ephemeral volume it is.
    pub controller_uid: Option<Uid>,
    /// `spec.volumeName`
    pub volume: Option<VolumeName>,
    /// `spec.storageClassName`; absent and empty differ.
    pub class: Option<Arc<str>>,
    /// `spec.accessModes`
    pub access_modes: AccessModes,
    /// `spec.volumeMode`
    pub mode: VolumeMode,
    /// `spec.resources.requests.storage`. The API accepts amounts that no volume can have; they stay an error
    /// with their text here, so that the claim can be told.
    pub request: Result<Quantity, Box<QuantityError>>,
    /// `spec.selector`; a selector that is not valid keeps its reason.
    pub selector: Option<Box<Result<LabelSelector, String>>>,
    /// `spec.volumeAttributesClassName`, empty when absent.
    pub attributes_class: Box<str>,
    /// `spec.dataSource` or `spec.dataSourceRef`
    pub source: Option<Box<DataSource>>,
    /// `status.phase`
    pub phase: ClaimPhase,
    /// `status.accessModes`
    pub status_access_modes: AccessModes,
    /// `status.capacity.storage`
    pub status_capacity: Option<Quantity>,
    /// `status.currentVolumeAttributesClassName`
    pub status_attributes_class: Option<Box<str>>,
    /// What the status says of growing and modifying; absent where it says nothing, as of most claims.
    pub progress: Option<Box<Progress>>,
}

impl Claim {
    /// What the status says of growing and modifying.
    pub fn progress(&self) -> &Progress {
        static NONE: Progress = Progress::NONE;
        self.progress.as_deref().unwrap_or(&NONE)
    }

    /// The VolumeAttributesClasses that the claim asks for, has, or is on the way to, each once.
    pub fn attributes_classes(&self) -> impl Iterator<Item = &str> {
        let requested = &*self.attributes_class;
        let has = self.status_attributes_class.as_deref().unwrap_or_default();
        let target =
            self.progress().modification.as_ref().map_or("", |modification| &modification.target_class);
        let has = Some(has).filter(|has| *has != requested);
        let target = Some(target).filter(|to| *to != requested && Some(*to) != has);
        [Some(requested), has, target].into_iter().flatten().filter(|name| !name.is_empty())
    }

    /// The class: legacy annotation, even empty, else `spec.storageClassName`, else empty.
    pub fn class_name(&self) -> &str {
        self.meta.annotation(names::CLASS_BETA).or(self.class.as_deref()).unwrap_or_default()
    }

    /// Whether a class was chosen; an empty one counts: it means "none".
    pub fn has_class(&self) -> bool {
        self.meta.has_annotation(names::CLASS_BETA) || self.class.is_some()
    }

    /// Whether the claim once reached Bound.
    pub fn is_bind_completed(&self) -> bool {
        self.meta.has_annotation(names::BIND_COMPLETED)
    }

    /// Name of the driver that shall provision, from the annotation or, only where that is absent, from its
    /// legacy form.
    pub fn storage_provisioner(&self) -> Option<&str> {
        self.meta
            .annotation(names::STORAGE_PROVISIONER)
            .or_else(|| self.meta.annotation(names::STORAGE_PROVISIONER_BETA))
    }

    /// Node that the scheduler chose, when not empty.
    pub fn selected_node(&self) -> Option<&str> {
        self.meta.annotation(names::SELECTED_NODE).filter(|node| !node.is_empty())
    }
}
