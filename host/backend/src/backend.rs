//! The trait behind which every driver stands.

use std::{collections::BTreeSet, time::Duration};

use cofferdam_domain::{
    GroupSnapshotHandle, NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, Capacity, CapacityQuery, ConnectionInfo, CreateGroupSnapshot, CreateSnapshot, CreateVolume,
        CreatedVolume, Description, ErrorKind, ExpandVolume, ExpandedVolume, GroupSnapshot, PageRequest,
        Parameters, PublishVolume, Readiness, Secrets, Snapshot, SnapshotPage, StorageError, ValidateVolume,
        Validation, VolumePage, VolumeStatus,
    },
};
use futures::future::BoxFuture;

/// What a caller gives a call beside its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// How long the call may take; the smallest of this and the backend's own limit wins.
    pub deadline: Duration,
    /// The secrets that the class names for this call.
    pub secrets: Secrets,
}

impl Call {
    /// A call without secrets.
    pub fn with_deadline(deadline: Duration) -> Self {
        Self { deadline, secrets: Secrets::default() }
    }
}

/// What a call answers, some time.
pub type BackendFuture<'a, T> = BoxFuture<'a, Result<T, StorageError>>;

fn unimplemented<T: Send + 'static>(ability: Ability) -> BackendFuture<'static, T> {
    let error =
        StorageError::final_outcome(ErrorKind::Unimplemented, format!("the driver has no `{ability}`"));
    Box::pin(std::future::ready(Err(error)))
}

/// A storage driver. Roles cannot tell whether it is a component in the sandbox or something else.
///
/// Every call stands alone and is idempotent by name or handle. A failed call says by its
/// [`Finality`](cofferdam_domain::storage::Finality) whether it may still have an effect; after anything but
/// `Final` only the same call with the same arguments, or the one that undoes it, may follow. What a driver
/// cannot do by its [`abilities`](Self::abilities) is `Unimplemented`, finally.
pub trait Backend: Send + Sync + 'static {
    /// What the driver says of itself; asked once, when it is loaded.
    fn description(&self) -> &Description;

    /// What it can do beside creating, deleting and validating.
    fn abilities(&self) -> &BTreeSet<Ability>;

    /// Whether its volumes may be reachable from some nodes only. CSI `VOLUME_ACCESSIBILITY_CONSTRAINTS`:
    /// such a driver does not tell its topology keys, they stand in CSINode.
    fn has_topology(&self) -> bool {
        !self.description().topology_keys.is_empty()
    }

    /// Whether the driver is ready. CSI `Probe`.
    fn probe(&self, call: Call) -> BackendFuture<'_, Readiness>;

    /// Creates a volume, or finds the one of this name. CSI `CreateVolume`.
    fn create_volume(&self, call: Call, request: CreateVolume) -> BackendFuture<'_, CreatedVolume>;

    /// Deletes a volume; one that does not exist is a success. CSI `DeleteVolume`.
    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, ()>;

    /// Tells whether a volume can be used in some ways. CSI `ValidateVolumeCapabilities`.
    fn validate_volume(&self, call: Call, request: ValidateVolume) -> BackendFuture<'_, Validation>;

    /// Creates a volume with the content of another one. CSI `CreateVolume` with a volume as its source.
    fn clone_volume(
        &self,
        _call: Call,
        _request: CreateVolume,
        _source: VolumeHandle,
    ) -> BackendFuture<'_, CreatedVolume> {
        unimplemented(Ability::Cloning)
    }

    /// Creates a volume with the content of a snapshot. CSI `CreateVolume` with a snapshot as its source.
    fn restore_snapshot(
        &self,
        _call: Call,
        _request: CreateVolume,
        _source: SnapshotHandle,
    ) -> BackendFuture<'_, CreatedVolume> {
        unimplemented(Ability::Restoring)
    }

    /// Makes a volume reachable from a node. CSI `ControllerPublishVolume`.
    fn publish_volume(&self, _call: Call, _request: PublishVolume) -> BackendFuture<'_, ConnectionInfo> {
        unimplemented(Ability::Publishing)
    }

    /// Makes a volume unreachable from a node, or from all when none is given. CSI
    /// `ControllerUnpublishVolume`.
    fn unpublish_volume(
        &self,
        _call: Call,
        _handle: VolumeHandle,
        _node: Option<NodeId>,
    ) -> BackendFuture<'_, ()> {
        unimplemented(Ability::Publishing)
    }

    /// Makes a volume larger. CSI `ControllerExpandVolume`.
    fn expand_volume(&self, _call: Call, _request: ExpandVolume) -> BackendFuture<'_, ExpandedVolume> {
        unimplemented(Ability::Expansion)
    }

    /// Changes a volume's mutable parameters, all or none. CSI `ControllerModifyVolume`.
    fn modify_volume(
        &self,
        _call: Call,
        _handle: VolumeHandle,
        _parameters: Parameters,
    ) -> BackendFuture<'_, ()> {
        unimplemented(Ability::Modification)
    }

    /// Cuts a snapshot, or finds the one of this name. CSI `CreateSnapshot`.
    fn create_snapshot(&self, _call: Call, _request: CreateSnapshot) -> BackendFuture<'_, Snapshot> {
        unimplemented(Ability::Snapshots)
    }

    /// Deletes a snapshot; one that does not exist is a success. CSI `DeleteSnapshot`.
    fn delete_snapshot(&self, _call: Call, _handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        unimplemented(Ability::Snapshots)
    }

    /// Describes a snapshot. CSI `GetSnapshot`.
    fn get_snapshot(&self, _call: Call, _handle: SnapshotHandle) -> BackendFuture<'_, Snapshot> {
        unimplemented(Ability::Snapshots)
    }

    /// Lists snapshots, all or those of one volume. CSI `ListSnapshots`.
    fn list_snapshots(
        &self,
        _call: Call,
        _source: Option<VolumeHandle>,
        _page: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        unimplemented(Ability::Snapshots)
    }

    /// Cuts snapshots of several volumes at one moment. CSI `CreateVolumeGroupSnapshot`.
    fn create_group_snapshot(
        &self,
        _call: Call,
        _request: CreateGroupSnapshot,
    ) -> BackendFuture<'_, GroupSnapshot> {
        unimplemented(Ability::GroupSnapshots)
    }

    /// Deletes a group with its members; one that does not exist is a success. CSI
    /// `DeleteVolumeGroupSnapshot`.
    fn delete_group_snapshot(
        &self,
        _call: Call,
        _handle: GroupSnapshotHandle,
        _snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, ()> {
        unimplemented(Ability::GroupSnapshots)
    }

    /// Describes a group. CSI `GetVolumeGroupSnapshot`.
    fn get_group_snapshot(
        &self,
        _call: Call,
        _handle: GroupSnapshotHandle,
        _snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, GroupSnapshot> {
        unimplemented(Ability::GroupSnapshots)
    }

    /// Lists volumes. CSI `ListVolumes`.
    fn list_volumes(&self, _call: Call, _page: PageRequest) -> BackendFuture<'_, VolumePage> {
        unimplemented(Ability::Listing)
    }

    /// Describes a volume. CSI `ControllerGetVolume`.
    fn get_volume(&self, _call: Call, _handle: VolumeHandle) -> BackendFuture<'_, VolumeStatus> {
        unimplemented(Ability::Inspection)
    }

    /// Tells the room for more volumes. CSI `GetCapacity`.
    fn get_capacity(&self, _call: Call, _query: CapacityQuery) -> BackendFuture<'_, Capacity> {
        unimplemented(Ability::Capacity)
    }
}
