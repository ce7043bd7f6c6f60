//! Types of the subject and the rules that roles share: claims, volumes, classes, storage requests and errors.
//!
//! This crate knows neither Kubernetes' wire format nor a client, a driver or a clock. Everything in it is plain data, so
//! that rules over it can be tables.
#![forbid(unsafe_code)]

pub mod attachment;
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

pub use attachment::{Attachment, AttachmentError, AttachmentSource, CsiDriver, CsiNode, Node, NodeVolume};
pub use claim::{
    Claim, ClaimCondition, ClaimPhase, ConditionKind, Modification, ModifyState, Progress, ResizeState,
};
pub use class::{AttributesClass, BindingMode, StorageClass};
pub use ids::{
    AttachmentName, AttributesClassName, ClaimKey, ClassName, ClusterId, DriverName, GroupSnapshotHandle,
    NodeId, NodeName, ObjectMeta, PodKey, ResourceVersion, SnapshotHandle, Uid, UniqueVolume, VolumeHandle,
    VolumeName,
};
pub use pod::Pod;
pub use quantity::{Quantity, QuantityError};
pub use selector::{Requirement, Selector};
pub use string_map::StringMap;
pub use volume::{AccessMode, AccessModes, ClaimRef, ReclaimPolicy, Volume, VolumeMode, VolumePhase};
