//! The [`Backend`] trait: a storage driver.

use std::{collections::BTreeSet, time::Duration};

use cofferdam_domain::{
    GroupSnapshotHandle, NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, Capacity, CapacityQuery, ConnectionInfo, CreateGroupSnapshot, CreateSnapshot, CreateVolume,
        CreatedVolume, Description, ErrorKind, ExpandVolume, ExpandedVolume, GroupSnapshot, PageRequest,
        Parameters, PublishVolume, Readiness, Secrets, Snapshot, SnapshotPage, StorageError, ValidateVolume,
        Validation, VolumePage, VolumeStatus,
    },
    term::Term,
};
use futures::future::BoxFuture;

/// Options of a call to a storage driver, beside the arguments of the method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Maximum duration of the call. The backend's own limit applies too; the smaller one wins.
    pub deadline: Duration,
    /// The call begins only in this term: it fails if the term has ended before the driver sees the request.
    /// A component that still runs at the end of the term is stopped, and the call fails with an unknown
    /// effect; a CSI driver cannot be stopped.
    pub term: Term,
    /// Secrets for this call. They are added to those that the operator configured for the driver, and
    /// replace configured secrets of the same name.
    pub secrets: Secrets,
}

impl Call {
    /// Options without a term that ends, and without secrets of the call itself: for processes without leader
    /// election, and for calls that change nothing and may be made by a process that does not lead, such as
    /// `probe`. The secrets that the operator configured for the driver are sent all the same.
    pub fn with_deadline(deadline: Duration) -> Self {
        Self { deadline, term: Term::permanent(), secrets: Secrets::default() }
    }
}

/// The pending result of a call.
pub type BackendFuture<'a, T> = BoxFuture<'a, Result<T, StorageError>>;

/// The final `Unimplemented` error of a method whose ability the driver lacks.
pub fn unimplemented<T: Send + 'static>(ability: Ability) -> BackendFuture<'static, T> {
    let error =
        StorageError::with_known_effect(ErrorKind::Unimplemented, format!("the driver has no `{ability}`"));
    Box::pin(std::future::ready(Err(error)))
}

/// A storage driver: a WebAssembly component in the sandbox, or an existing CSI driver.
///
/// Calls are independent and idempotent by name or handle. The
/// [`Finality`](cofferdam_domain::storage::Finality) of an error tells if the call may still have an effect.
/// After an error that is not `Final`, the caller should change the object only by a retry with the same
/// arguments or by the inverse call, such as a delete after a create. Backends reject other calls that the
/// open operation [blocks](crate::in_flight). A method whose ability is not in [`abilities`](Self::abilities)
/// fails with `Unimplemented`. The error is final, except for create methods of existing CSI drivers: an
/// earlier attempt may have reached the driver when it still had the ability.
pub trait Backend: Send + Sync + 'static {
    /// The driver's description of itself. It is read once, when the driver is loaded.
    fn description(&self) -> &Description;

    /// The optional abilities of the driver. Every driver can validate volumes. For creating and deleting
    /// volumes, see [`creates_volumes`](Self::creates_volumes).
    fn abilities(&self) -> &BTreeSet<Ability>;

    /// Returns `true` if the driver creates and deletes volumes (CSI `CREATE_DELETE_VOLUME`): every driver
    /// does, except some existing CSI drivers.
    fn creates_volumes(&self) -> bool {
        true
    }

    /// Returns `true` if volumes may be accessible from some nodes only (CSI
    /// `VOLUME_ACCESSIBILITY_CONSTRAINTS`). A component's description has its topology keys; those of an
    /// existing CSI driver are in CSINode only.
    fn has_topology(&self) -> bool {
        !self.description().topology_keys.is_empty()
    }

    /// Returns `true` if the driver reads [`PublishVolume::node_identities`]. CSI has no such field.
    fn takes_node_identities(&self) -> bool {
        false
    }

    /// Asks the driver if it is ready. CSI `Probe`.
    fn probe(&self, call: Call) -> BackendFuture<'_, Readiness>;

    /// Creates a volume, or returns the existing one of this name. CSI `CreateVolume`.
    ///
    /// A driver without the [ability] for the request's content source must fail with `Unimplemented`: it
    /// must not return an empty volume.
    ///
    /// [ability]: cofferdam_domain::storage::ContentSource::required_ability
    fn create_volume(&self, call: Call, request: CreateVolume) -> BackendFuture<'_, CreatedVolume>;

    /// Deletes a volume. Succeeds if it does not exist. CSI `DeleteVolume`.
    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, ()>;

    /// Checks if a volume supports the given capabilities. CSI `ValidateVolumeCapabilities`.
    fn validate_volume(&self, call: Call, request: ValidateVolume) -> BackendFuture<'_, Validation>;

    /// Makes a volume reachable from a node. CSI `ControllerPublishVolume`.
    fn publish_volume(&self, _call: Call, _request: PublishVolume) -> BackendFuture<'_, ConnectionInfo> {
        unimplemented(Ability::Publishing)
    }

    /// Makes a volume unreachable from a node, or from all nodes if `node` is `None`. CSI
    /// `ControllerUnpublishVolume`.
    fn unpublish_volume(
        &self,
        _call: Call,
        _handle: VolumeHandle,
        _node: Option<NodeId>,
    ) -> BackendFuture<'_, ()> {
        unimplemented(Ability::Publishing)
    }

    /// Expands a volume. CSI `ControllerExpandVolume`.
    fn expand_volume(&self, _call: Call, _request: ExpandVolume) -> BackendFuture<'_, ExpandedVolume> {
        unimplemented(Ability::Expansion)
    }

    /// Changes the given mutable parameters of a volume, all or none of them. CSI `ControllerModifyVolume`.
    fn modify_volume(
        &self,
        _call: Call,
        _handle: VolumeHandle,
        _parameters: Parameters,
    ) -> BackendFuture<'_, ()> {
        unimplemented(Ability::Modification)
    }

    /// Creates a snapshot, or returns the existing one of this name. CSI `CreateSnapshot`.
    fn create_snapshot(&self, _call: Call, _request: CreateSnapshot) -> BackendFuture<'_, Snapshot> {
        unimplemented(Ability::Snapshots)
    }

    /// Deletes a snapshot. Succeeds if it does not exist. CSI `DeleteSnapshot`.
    fn delete_snapshot(&self, _call: Call, _handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        unimplemented(Ability::Snapshots)
    }

    /// Returns a snapshot's properties. CSI `GetSnapshot`, or `ListSnapshots` with the snapshot's id for an
    /// existing CSI driver that has only that.
    fn get_snapshot(&self, _call: Call, _handle: SnapshotHandle) -> BackendFuture<'_, Snapshot> {
        unimplemented(Ability::Snapshots)
    }

    /// Returns one page of the snapshots of the volume `source`, or of all snapshots if `source` is `None`.
    /// CSI `ListSnapshots`.
    fn list_snapshots(
        &self,
        _call: Call,
        _source: Option<VolumeHandle>,
        _page: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        unimplemented(Ability::Snapshots)
    }

    /// Creates snapshots of several volumes at one point in time, or returns the existing group of this name.
    /// CSI `CreateVolumeGroupSnapshot`.
    fn create_group_snapshot(
        &self,
        _call: Call,
        _request: CreateGroupSnapshot,
    ) -> BackendFuture<'_, GroupSnapshot> {
        unimplemented(Ability::GroupSnapshots)
    }

    /// Deletes a group snapshot with its members. The caller passes the handles of all members. Succeeds if
    /// the group does not exist. CSI `DeleteVolumeGroupSnapshot`.
    fn delete_group_snapshot(
        &self,
        _call: Call,
        _handle: GroupSnapshotHandle,
        _snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, ()> {
        unimplemented(Ability::GroupSnapshots)
    }

    /// Returns a group snapshot with its members. The caller passes the handles of all members. CSI
    /// `GetVolumeGroupSnapshot`.
    fn get_group_snapshot(
        &self,
        _call: Call,
        _handle: GroupSnapshotHandle,
        _snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, GroupSnapshot> {
        unimplemented(Ability::GroupSnapshots)
    }

    /// Returns one page of all volumes, each with its status. CSI `ListVolumes`.
    fn list_volumes(&self, _call: Call, _page: PageRequest) -> BackendFuture<'_, VolumePage> {
        unimplemented(Ability::Listing)
    }

    /// Returns a volume with its status. CSI `ControllerGetVolume`.
    fn get_volume(&self, _call: Call, _handle: VolumeHandle) -> BackendFuture<'_, VolumeStatus> {
        unimplemented(Ability::Inspection)
    }

    /// Returns the capacity that is available for new volumes of the given kind. CSI `GetCapacity`.
    fn get_capacity(&self, _call: Call, _query: CapacityQuery) -> BackendFuture<'_, Capacity> {
        unimplemented(Ability::Capacity)
    }
}
