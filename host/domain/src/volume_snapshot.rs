//! VolumeSnapshot, VolumeSnapshotContent and VolumeSnapshotClass.

use std::sync::Arc;

use crate::{
    ids::{
        DriverName, ObjectMeta, SnapshotHandle, Uid, VolumeHandle, VolumeSnapshotClassName,
        VolumeSnapshotContentName, VolumeSnapshotKey,
    },
    names,
    parameters::Parameters,
    quantity::Quantity,
    volume::VolumeMode,
};

/// `deletionPolicy`: what the deletion of a VolumeSnapshot means for its content and the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeletionPolicy {
    /// The VolumeSnapshotContent and the driver's snapshot are deleted, too.
    Delete,
    /// Both are kept.
    Retain,
}

impl DeletionPolicy {
    /// The value in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "Delete",
            Self::Retain => "Retain",
        }
    }
}

/// `spec.source` of a VolumeSnapshot. The API server accepts exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSnapshotSource {
    /// A snapshot of the volume of this claim, in the namespace of the VolumeSnapshot.
    Claim(Arc<str>),
    /// The existing snapshot of this VolumeSnapshotContent.
    Content(VolumeSnapshotContentName),
    /// This number of sources, which is not 1.
    Invalid(u8),
}

/// `spec.source` of a VolumeSnapshotContent. The API server accepts exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotContentSource {
    /// A snapshot of this volume.
    Volume(VolumeHandle),
    /// This existing snapshot.
    Snapshot(SnapshotHandle),
    /// This number of sources, which is not 1.
    Invalid(u8),
}

/// `status.error`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotError {
    /// `message`
    pub message: Box<str>,
    /// `time`, as it is written; `None` if absent.
    pub time: Option<Box<str>>,
}

/// `status` of a VolumeSnapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeSnapshotStatus {
    /// `boundVolumeSnapshotContentName`, if not empty.
    pub content: Option<VolumeSnapshotContentName>,
    /// `creationTime`, as it is written.
    pub creation_time: Option<Box<str>>,
    /// `readyToUse`
    pub ready: Option<bool>,
    /// `restoreSize`: the minimum size of a volume from the snapshot. `None` if it is absent, or not a
    /// quantity.
    pub restore_size: Option<Quantity>,
    /// `error`
    pub error: Option<Box<SnapshotError>>,
    /// True if `volumeGroupSnapshotName` is set.
    pub in_group: bool,
}

/// A VolumeSnapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSnapshot {
    /// Namespace and name.
    pub key: VolumeSnapshotKey,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `spec.source`
    pub source: VolumeSnapshotSource,
    /// `spec.volumeSnapshotClassName`
    pub class: Option<VolumeSnapshotClassName>,
    /// `status`; `None` if absent.
    pub status: Option<VolumeSnapshotStatus>,
}

impl VolumeSnapshot {
    /// Name of the VolumeSnapshotContent that the status names.
    pub fn bound_content(&self) -> Option<&VolumeSnapshotContentName> {
        self.status.as_ref()?.content.as_ref()
    }

    /// Returns `true` if `status.readyToUse` is true.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ready == Some(true))
    }

    /// Returns `true` if the driver has taken the snapshot: the status has its time.
    pub fn is_taken(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.creation_time.is_some())
    }

    /// Returns `true` for a member of a VolumeGroupSnapshot.
    pub fn is_group_member(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.in_group)
            || self.meta.finalizer_index(names::SNAPSHOT_GROUP_PROTECTION).is_some()
    }
}

/// `spec.volumeSnapshotRef` of a VolumeSnapshotContent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSnapshotRef {
    /// Namespace and name.
    pub key: VolumeSnapshotKey,
    /// `uid`, if not empty. A content without it is not bound.
    pub uid: Option<Uid>,
}

/// `status` of a VolumeSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotContentStatus {
    /// `snapshotHandle`, if not empty.
    pub handle: Option<SnapshotHandle>,
    /// `creationTime` in nanoseconds since the Unix epoch.
    pub creation_time: Option<i64>,
    /// `readyToUse`
    pub ready: Option<bool>,
    /// `restoreSize` in bytes.
    pub restore_size: Option<i64>,
    /// `error`
    pub error: Option<Box<SnapshotError>>,
    /// True if `volumeGroupSnapshotHandle` is set.
    pub in_group: bool,
}

/// A VolumeSnapshotContent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSnapshotContent {
    /// `metadata.name`
    pub name: VolumeSnapshotContentName,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `spec.volumeSnapshotRef`
    pub snapshot: VolumeSnapshotRef,
    /// `spec.deletionPolicy`
    pub deletion_policy: DeletionPolicy,
    /// `spec.driver`
    pub driver: DriverName,
    /// `spec.volumeSnapshotClassName`
    pub class: Option<VolumeSnapshotClassName>,
    /// `spec.source`
    pub source: SnapshotContentSource,
    /// `spec.sourceVolumeMode`; `None` if it is absent, or not a mode.
    pub source_volume_mode: Option<VolumeMode>,
    /// `status`; `None` if absent.
    pub status: Option<SnapshotContentStatus>,
}

impl VolumeSnapshotContent {
    /// Returns `true` if the content is bound to this VolumeSnapshot: namespace, name and uid are its own.
    pub fn is_bound_to(&self, snapshot: &VolumeSnapshot) -> bool {
        self.snapshot.key == snapshot.key && self.snapshot.uid.as_ref() == Some(&snapshot.meta.uid)
    }

    /// The driver's id of the snapshot: from the status, else from `spec.source`. `None` if it is not known.
    pub fn handle(&self) -> Option<&SnapshotHandle> {
        let status = self.status.as_ref().and_then(|status| status.handle.as_ref());
        status.or(match &self.source {
            SnapshotContentSource::Snapshot(handle) => Some(handle),
            SnapshotContentSource::Volume(_) | SnapshotContentSource::Invalid(_) => None,
        })
    }

    /// The node whose process takes and deletes the snapshot, by the label
    /// [`SNAPSHOT_MANAGED_BY`](names::SNAPSHOT_MANAGED_BY). `None` without the label, or if it is empty.
    pub fn managing_node(&self) -> Option<&str> {
        self.meta.labels.get(names::SNAPSHOT_MANAGED_BY).filter(|node| !node.is_empty())
    }

    /// Returns `true` if `status.readyToUse` is true.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ready == Some(true))
    }

    /// Returns `true` for a member of a VolumeGroupSnapshot.
    pub fn is_group_member(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.in_group)
            || self.meta.has_annotation(names::SNAPSHOT_GROUP_HANDLE)
    }

    /// Returns `true` if the annotation allows volumes of another mode than that of the source.
    pub fn allows_mode_change(&self) -> bool {
        // As Go's strconv.ParseBool, with which external-provisioner reads the annotation.
        let value = self.meta.annotation(names::ALLOW_VOLUME_MODE_CHANGE);
        value.is_some_and(|value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"))
    }
}

/// A VolumeSnapshotClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSnapshotClass {
    /// `metadata.name`
    pub name: VolumeSnapshotClassName,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `driver`
    pub driver: DriverName,
    /// `deletionPolicy`
    pub deletion_policy: DeletionPolicy,
    /// `parameters`, including those with the prefix `csi.storage.k8s.io/`.
    pub parameters: Parameters,
}

impl VolumeSnapshotClass {
    /// Returns `true` if the class is the default class of its driver.
    pub fn is_default(&self) -> bool {
        self.meta.annotation(names::DEFAULT_SNAPSHOT_CLASS) == Some("true")
    }
}
