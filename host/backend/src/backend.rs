//! The trait behind which every driver stands.

use std::time::Duration;

use cofferdam_domain::{
    VolumeHandle,
    storage::{
        CreateVolume, CreatedVolume, Description, Readiness, StorageError, ValidateVolume, Validation,
    },
};
use futures::future::BoxFuture;

/// What a caller allows a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// How long the call may take; the smallest of this and the backend's own limit wins.
    pub deadline: Duration,
}

/// A storage driver. Roles cannot tell whether it is a component in the sandbox or something else.
///
/// Every call stands alone and is idempotent by name or handle. A failed call says by its
/// [`Finality`](cofferdam_domain::storage::Finality) whether it may still have an effect; after anything but `Final` only the
/// same call with the same arguments, or the one that undoes it, may follow.
pub trait Backend: Send + Sync + 'static {
    /// What the driver says of itself; asked once, when it is loaded.
    fn description(&self) -> &Description;

    /// Whether the driver is ready. CSI `Probe`.
    fn probe(&self, call: Call) -> BoxFuture<'_, Result<Readiness, StorageError>>;

    /// Creates a volume, or finds the one of this name. CSI `CreateVolume`.
    fn create_volume(
        &self,
        call: Call,
        request: CreateVolume,
    ) -> BoxFuture<'_, Result<CreatedVolume, StorageError>>;

    /// Deletes a volume; one that does not exist is a success. CSI `DeleteVolume`.
    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BoxFuture<'_, Result<(), StorageError>>;

    /// Tells whether a volume can be used in some ways. CSI `ValidateVolumeCapabilities`.
    fn validate_volume(
        &self,
        call: Call,
        request: ValidateVolume,
    ) -> BoxFuture<'_, Result<Validation, StorageError>>;
}
