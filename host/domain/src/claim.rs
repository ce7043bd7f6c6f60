//! PersistentVolumeClaim, as far as the roles decide on it.

use crate::{
    ids::{ClaimKey, ObjectMeta, VolumeName},
    names,
    quantity::{Quantity, QuantityError},
    selector::Selector,
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
    /// `spec.volumeName`
    pub volume: Option<VolumeName>,
    /// `spec.storageClassName`; absent and empty differ.
    pub class: Option<Box<str>>,
    /// `spec.accessModes`
    pub access_modes: AccessModes,
    /// `spec.volumeMode`
    pub mode: VolumeMode,
    /// `spec.resources.requests.storage`. The API accepts amounts that no volume can have; they stay an error with their
    /// text here, so that the claim can be told.
    pub request: Result<Quantity, QuantityError>,
    /// `spec.selector`; a selector that is not valid keeps its reason.
    pub selector: Option<Result<Selector, String>>,
    /// `spec.volumeAttributesClassName`, empty when absent.
    pub attributes_class: Box<str>,
    /// `spec.dataSource` or `spec.dataSourceRef`
    pub source: Option<DataSource>,
    /// `status.phase`
    pub phase: ClaimPhase,
    /// `status.accessModes`
    pub status_access_modes: AccessModes,
    /// `status.capacity.storage`
    pub status_capacity: Option<Quantity>,
    /// `status.currentVolumeAttributesClassName`
    pub status_attributes_class: Option<Box<str>>,
}

impl Claim {
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

    /// Name of the driver that shall provision, from the annotation or, only where that is absent, from its legacy form.
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
