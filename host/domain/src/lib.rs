//! Domain types shared by all crates: claims, volumes, classes, storage requests and errors.
//!
//! This crate has plain data only. It depends on no client, driver, clock or wire format, so rules over it
//! can be tested with tables.
#![forbid(unsafe_code)]

pub mod claim;
pub mod class;
pub mod dns;
pub mod ids;
pub mod names;
pub mod node;
pub mod parameters;
pub mod pod;
pub mod quantity;
pub mod selector;
pub mod storage;
pub mod string_map;
pub mod term;
pub mod text;
pub mod uid;
pub mod volume;
pub mod volume_attachment;
pub mod volume_snapshot;

pub use claim::{
    Claim, ClaimCondition, ClaimConditionType, ClaimPhase, ModifyState, ModifyVolumeStatus, Progress,
    ResizeState, SourceKey,
};
pub use class::{BindingMode, StorageClass, VolumeAttributesClass};
pub use ids::{
    ClaimKey, ClusterId, DriverName, GroupSnapshotHandle, NodeId, NodeName, ObjectMeta, PodKey,
    ResourceHandle, ResourceVersion, SnapshotHandle, StorageClassName, Uid, UniqueVolumeName,
    VolumeAttachmentName, VolumeAttributesClassName, VolumeHandle, VolumeName, VolumeSnapshotClassName,
    VolumeSnapshotContentName, VolumeSnapshotKey,
};
pub use node::{Node, NodeVolumeStatus};
pub use pod::Pod;
pub use quantity::{Quantity, QuantityError};
pub use selector::{LabelSelector, LabelSelectorRequirement};
pub use string_map::StringMap;
pub use volume::{AccessMode, AccessModes, ClaimRef, ReclaimPolicy, Volume, VolumeMode, VolumePhase};
pub use volume_attachment::{CsiDriver, CsiNode, VolumeAttachment, VolumeAttachmentSource, VolumeError};
pub use volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
