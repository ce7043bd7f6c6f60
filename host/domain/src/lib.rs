//! Types of the subject and the rules that roles share: claims, volumes, classes, storage requests and
//! errors.
//!
//! This crate knows neither Kubernetes' wire format nor a client, a driver or a clock. Everything in it is
//! plain data, so that rules over it can be tables.
#![forbid(unsafe_code)]

pub mod claim;
pub mod class;
pub mod ids;
pub mod names;
pub mod pod;
pub mod quantity;
pub mod selector;
pub mod storage;
pub mod string_map;
pub mod text;
pub mod volume;
pub mod volume_attachment;

pub use claim::{
    Claim, ClaimCondition, ClaimConditionType, ClaimPhase, ModifyState, ModifyVolumeStatus, Progress,
    ResizeState,
};
pub use class::{BindingMode, StorageClass, VolumeAttributesClass};
pub use ids::{
    ClaimKey, ClusterId, DriverName, GroupSnapshotHandle, NodeId, NodeName, ObjectMeta, PodKey,
    ResourceVersion, SnapshotHandle, StorageClassName, Uid, UniqueVolumeName, VolumeAttachmentName,
    VolumeAttributesClassName, VolumeHandle, VolumeName,
};
pub use pod::Pod;
pub use quantity::{Quantity, QuantityError};
pub use selector::{LabelSelector, LabelSelectorRequirement};
pub use string_map::StringMap;
pub use volume::{AccessMode, AccessModes, ClaimRef, ReclaimPolicy, Volume, VolumeMode, VolumePhase};
pub use volume_attachment::{
    CsiDriver, CsiNode, Node, NodeVolumeStatus, VolumeAttachment, VolumeAttachmentSource, VolumeError,
};
