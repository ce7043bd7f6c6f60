//! What a backend may be able to do beside [`Backend`](crate::Backend): one trait for each optional interface of the contract.
//! Implement those that the storage can do, and name them in [`export!`](crate::export): what is exported is the ability.

pub use crate::bindings::{
    capacity::exports::cofferdam::storage::capacity::{CapacityReport, CapacityRequest},
    expansion::exports::cofferdam::storage::expansion::{ExpandRequest, Expanded},
    group_snapshots::exports::cofferdam::storage::group_snapshots::{GroupRequest, GroupSnapshot},
    listing::exports::cofferdam::storage::listing::VolumePage,
    publishing::exports::cofferdam::storage::publishing::PublishRequest,
    snapshots::exports::cofferdam::storage::snapshots::{SnapshotPage, SnapshotRequest},
};
use crate::{
    Attachment, CreateRequest, KeyValues, Result, Snapshot, SnapshotHandle, Volume, VolumeHandle,
    VolumeStatus, backend::Component, bindings,
};

/// Volumes with the content of another volume.
pub trait Cloning {
    /// Creates a volume with the content of another one, or finds the one that the same call has created before.
    ///
    /// # Errors
    ///
    /// [`not_found`](crate::StorageError::not_found) for a source that does not exist, [`out_of_range`](crate::StorageError::out_of_range)
    /// for a size below its own, [`already_exists`](crate::StorageError::already_exists) when the name exists with other arguments.
    fn create_from_volume(request: CreateRequest, source: VolumeHandle) -> Result<Volume>;
}

impl<B: Cloning> bindings::cloning::exports::cofferdam::storage::cloning::Guest for Component<B> {
    fn create_from_volume(request: CreateRequest, source: VolumeHandle) -> Result<Volume> {
        <B as Cloning>::create_from_volume(request, source)
    }
}

/// Volumes with the content of a snapshot.
pub trait Restoring {
    /// Creates a volume with the content of a snapshot, or finds the one that the same call has created before.
    ///
    /// # Errors
    ///
    /// [`not_found`](crate::StorageError::not_found) for a snapshot that does not exist,
    /// [`out_of_range`](crate::StorageError::out_of_range) for a size below its own,
    /// [`already_exists`](crate::StorageError::already_exists) when the name exists with other arguments.
    fn create_from_snapshot(request: CreateRequest, source: SnapshotHandle) -> Result<Volume>;
}

impl<B: Restoring> bindings::restoring::exports::cofferdam::storage::restoring::Guest for Component<B> {
    fn create_from_snapshot(request: CreateRequest, source: SnapshotHandle) -> Result<Volume> {
        <B as Restoring>::create_from_snapshot(request, source)
    }
}

/// Volumes that have to be made reachable for each node.
pub trait Publishing {
    /// Makes a volume reachable from a node; what is published alike already is a success.
    ///
    /// # Errors
    ///
    /// [`not_found`](crate::StorageError::not_found) for a volume or node that does not exist,
    /// [`already_exists`](crate::StorageError::already_exists) when it is published there in another way,
    /// [`failed_precondition`](crate::StorageError::failed_precondition) when it is published elsewhere and cannot be in two places.
    fn publish(request: PublishRequest) -> Result<Attachment>;

    /// Makes a volume unreachable from a node, or from every node when none is given; what is not published, or does not exist
    /// any more, is a success.
    ///
    /// # Errors
    ///
    /// Whatever went wrong.
    fn unpublish(handle: VolumeHandle, node: Option<String>) -> Result<()>;
}

impl<B: Publishing> bindings::publishing::exports::cofferdam::storage::publishing::Guest for Component<B> {
    fn publish(request: PublishRequest) -> Result<Attachment> {
        <B as Publishing>::publish(request)
    }

    fn unpublish(handle: VolumeHandle, node: Option<String>) -> Result<()> {
        <B as Publishing>::unpublish(handle, node)
    }
}

/// Volumes that grow.
pub trait Expansion {
    /// Makes a volume at least as large as required; one that is large enough is a success with its size.
    ///
    /// # Errors
    ///
    /// [`not_found`](crate::StorageError::not_found) for a volume that does not exist,
    /// [`out_of_range`](crate::StorageError::out_of_range) for a size that it cannot have,
    /// [`failed_precondition`](crate::StorageError::failed_precondition) for one in use without the feature `online-expansion`.
    fn expand(request: ExpandRequest) -> Result<Expanded>;
}

impl<B: Expansion> bindings::expansion::exports::cofferdam::storage::expansion::Guest for Component<B> {
    fn expand(request: ExpandRequest) -> Result<Expanded> {
        <B as Expansion>::expand(request)
    }
}

/// Volumes whose parameters change while they live.
pub trait Modification {
    /// Gives a volume these parameters, all or none.
    ///
    /// # Errors
    ///
    /// [`invalid_argument`](crate::StorageError::invalid_argument) for a parameter that does not exist: nothing is changed then.
    fn modify(handle: VolumeHandle, parameters: KeyValues) -> Result<()>;
}

impl<B: Modification> bindings::modification::exports::cofferdam::storage::modification::Guest
    for Component<B>
{
    fn modify(handle: VolumeHandle, parameters: KeyValues) -> Result<()> {
        <B as Modification>::modify(handle, parameters)
    }
}

/// Snapshots of volumes.
pub trait Snapshots {
    /// Cuts a snapshot, or finds the one that the same call has cut before.
    ///
    /// # Errors
    ///
    /// [`already_exists`](crate::StorageError::already_exists) when the name exists with another source,
    /// [`not_found`](crate::StorageError::not_found) for a source that does not exist.
    fn create(request: SnapshotRequest) -> Result<Snapshot>;

    /// Deletes a snapshot; one that does not exist is a success.
    ///
    /// # Errors
    ///
    /// [`invalid_argument`](crate::StorageError::invalid_argument) for a member of a group,
    /// [`failed_precondition`](crate::StorageError::failed_precondition) for one in use.
    fn delete(handle: SnapshotHandle) -> Result<()>;

    /// Describes a snapshot.
    ///
    /// # Errors
    ///
    /// [`not_found`](crate::StorageError::not_found) for one that does not exist.
    fn get(handle: SnapshotHandle) -> Result<Snapshot>;

    /// Lists the snapshots, or those of one volume, from the beginning or from where an earlier part ended.
    ///
    /// # Errors
    ///
    /// [`aborted`](crate::StorageError::aborted) for a place that no listing returned.
    fn list(source: Option<VolumeHandle>, after: Option<String>, limit: Option<u32>) -> Result<SnapshotPage>;
}

impl<B: Snapshots> bindings::snapshots::exports::cofferdam::storage::snapshots::Guest for Component<B> {
    fn create(request: SnapshotRequest) -> Result<Snapshot> {
        <B as Snapshots>::create(request)
    }

    fn delete(handle: SnapshotHandle) -> Result<()> {
        <B as Snapshots>::delete(handle)
    }

    fn get(handle: SnapshotHandle) -> Result<Snapshot> {
        <B as Snapshots>::get(handle)
    }

    fn list(source: Option<VolumeHandle>, after: Option<String>, limit: Option<u32>) -> Result<SnapshotPage> {
        <B as Snapshots>::list(source, after, limit)
    }
}

/// Snapshots of several volumes at one moment.
pub trait GroupSnapshots {
    /// Cuts snapshots of all volumes at one moment, or finds the group that the same call has cut before.
    ///
    /// # Errors
    ///
    /// [`already_exists`](crate::StorageError::already_exists) when the name exists with other sources.
    fn create(request: GroupRequest) -> Result<GroupSnapshot>;

    /// Deletes a group with its members; one that does not exist is a success.
    ///
    /// # Errors
    ///
    /// [`invalid_argument`](crate::StorageError::invalid_argument) for members that are not the group's.
    fn delete(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<()>;

    /// Describes a group.
    ///
    /// # Errors
    ///
    /// [`not_found`](crate::StorageError::not_found) for a group that does not exist,
    /// [`invalid_argument`](crate::StorageError::invalid_argument) for members that are not its own.
    fn get(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<GroupSnapshot>;
}

impl<B: GroupSnapshots> bindings::group_snapshots::exports::cofferdam::storage::group_snapshots::Guest
    for Component<B>
{
    fn create(request: GroupRequest) -> Result<GroupSnapshot> {
        <B as GroupSnapshots>::create(request)
    }

    fn delete(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<()> {
        <B as GroupSnapshots>::delete(handle, snapshots)
    }

    fn get(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<GroupSnapshot> {
        <B as GroupSnapshots>::get(handle, snapshots)
    }
}

/// All volumes.
pub trait Listing {
    /// Lists the volumes from the beginning or from where an earlier part ended.
    ///
    /// # Errors
    ///
    /// [`aborted`](crate::StorageError::aborted) for a place that no listing returned.
    fn list(after: Option<String>, limit: Option<u32>) -> Result<VolumePage>;
}

impl<B: Listing> bindings::listing::exports::cofferdam::storage::listing::Guest for Component<B> {
    fn list(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        <B as Listing>::list(after, limit)
    }
}

/// One volume.
pub trait Inspection {
    /// Describes a volume.
    ///
    /// # Errors
    ///
    /// [`not_found`](crate::StorageError::not_found) for one that does not exist.
    fn get(handle: VolumeHandle) -> Result<VolumeStatus>;
}

impl<B: Inspection> bindings::inspection::exports::cofferdam::storage::inspection::Guest for Component<B> {
    fn get(handle: VolumeHandle) -> Result<VolumeStatus> {
        <B as Inspection>::get(handle)
    }
}

/// Room for more volumes.
pub trait Capacity {
    /// How much room there is for such volumes.
    ///
    /// # Errors
    ///
    /// Whatever went wrong.
    fn available(request: CapacityRequest) -> Result<CapacityReport>;
}

impl<B: Capacity> bindings::capacity::exports::cofferdam::storage::capacity::Guest for Component<B> {
    fn available(request: CapacityRequest) -> Result<CapacityReport> {
        <B as Capacity>::available(request)
    }
}
