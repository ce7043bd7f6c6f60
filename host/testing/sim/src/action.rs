//! Actions of users and administrators, and waits between them.

use std::time::Duration;

use serde_json::Value;

/// An action of a user or an administrator, or a wait between two actions.
#[derive(Clone, Debug, PartialEq)]
pub enum UserAction {
    /// Creates an object.
    Create(Value),
    /// Creates an object as this field manager.
    CreateAs(&'static str, Value),
    /// Deletes the object at this path.
    Delete(&'static str),
    /// Removes the object at this path with its finalizers, as kube-apiserver does if a finalizer is written
    /// while it deletes the object: no watch shows a deletion timestamp.
    Remove(&'static str),
    /// Merge-patches the object at this path.
    Patch(&'static str, Value),
    /// Merge-patches every VolumeSnapshotContent. Its name may contain a random UID.
    PatchContents(Value),
    /// Writes the claim at the second path to `claimRef` of the volume of the claim at the first path, as a
    /// volume populator does.
    RepointVolume(&'static str, &'static str),
    /// Annotates the ConfigMaps of the intent journal: an operator confirms for each intent that the driver
    /// has no volume.
    ConfirmNoVolume,
    /// As [`ConfirmNoVolume`](Self::ConfirmNoVolume), with the handle of each intent's volume: the operator
    /// confirms that the volume may be forgotten.
    ConfirmCreatedVolume,
    /// The storage array is repaired: create calls fail in no tier
    /// ([`Scenario::failing_tiers`](crate::Scenario::failing_tiers)), and unpublish calls have no fault.
    Repair,
    /// An administrator of the storage array deletes all of its snapshots.
    RemoveSnapshots,
    /// Saves the state of the cluster, but not that of the storage array.
    Backup,
    /// Restores the state of the cluster that the last [`Backup`](Self::Backup) saved.
    Restore,
    /// Compacts the history, so that every watch expires (410 Gone).
    Compact,
    /// Waits until all processes are idle: an hour in paused time.
    Settle,
    /// Waits for this time. In real time, the processes of a row that waits for minutes have shorter timeouts
    /// ([`Scenario::elapses_timeouts`](crate::Scenario::elapses_timeouts)), and the wait is at most 4
    /// seconds.
    Wait(Duration),
    /// Waits until the condition is met, or until all processes are idle although it is not met.
    Until(WaitFor),
    /// Waits until the volume is published, in the form of
    /// [`FinalState::published`](crate::FinalState::published), even if all processes are idle before.
    AwaitPublished(&'static str),
}

/// A condition to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// At least this many driver calls have ended since the start of the simulation. Failed calls and
    /// ListVolumes calls count. Probe, ValidateVolumeCapabilities and GetCapacity calls do not.
    CallsCompleted(usize),
    /// The event exists, in the form of [`FinalState::events`](crate::FinalState::events).
    Event(&'static str),
    /// At least this many API requests of the processes had a fault.
    FaultsApplied(usize),
    /// The object at this path does not exist.
    Deleted(&'static str),
}
