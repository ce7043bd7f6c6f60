//! A component's exports, and the call of each function of the contract.

use std::collections::BTreeSet;

use cofferdam_domain::storage::Ability;
use futures::future::BoxFuture;
use wasmtime::{
    Store,
    component::{Instance, InstancePre},
};

use crate::{
    bindings::{
        cofferdam::storage::types as wit,
        exports::cofferdam::storage::{
            capacity, cloning, expansion, group_snapshots, identity, inspection, listing, modification,
            publishing, restoring, snapshots, volumes,
        },
    },
    instance::StoreData,
};

type Pairs = Vec<(String, String)>;

/// A fresh instance, for one call.
pub(crate) struct GuestInstance<'a> {
    pub(crate) store: &'a mut Store<StoreData>,
    pub(crate) instance: Instance,
    pub(crate) exports: &'a Exports,
}

/// The result of a guest function. The outer error ended the call, such as a trap or an exceeded limit; the
/// inner error was returned by the guest.
pub(crate) type GuestResult<T> = wasmtime::Result<Result<T, wit::StorageError>>;

/// One function of a guest with its arguments.
pub(crate) type GuestFunction<T> =
    Box<dyn for<'a> FnOnce(GuestInstance<'a>) -> BoxFuture<'a, GuestResult<T>> + Send>;

/// An export whose type differs from the contract's.
#[derive(Debug, thiserror::Error)]
#[error("export `{interface}`: {error:#}")]
pub(crate) struct ExportMismatch {
    /// The interface, without package and version.
    interface: String,
    /// The difference.
    error: wasmtime::Error,
}

/// Indices of a component's exported interfaces; `None` for an interface that the component does not export.
#[derive(Clone)]
pub(crate) struct Exports {
    identity: Option<identity::GuestIndices>,
    volumes: Option<volumes::GuestIndices>,
    cloning: Option<cloning::GuestIndices>,
    restoring: Option<restoring::GuestIndices>,
    publishing: Option<publishing::GuestIndices>,
    expansion: Option<expansion::GuestIndices>,
    modification: Option<modification::GuestIndices>,
    snapshots: Option<snapshots::GuestIndices>,
    group_snapshots: Option<group_snapshots::GuestIndices>,
    listing: Option<listing::GuestIndices>,
    inspection: Option<inspection::GuestIndices>,
    capacity: Option<capacity::GuestIndices>,
}

impl Exports {
    /// Finds the mandatory exports and those of the abilities. An interface that lacks a function of the
    /// contract is an error; [`check_types`] checks the types of the functions.
    pub(crate) fn find(
        pre: &InstancePre<StoreData>,
        abilities: &BTreeSet<Ability>,
    ) -> wasmtime::Result<Self> {
        /// Finds an interface if the component has the ability.
        macro_rules! find {
            ($module:ident, $ability:ident) => {
                if abilities.contains(&Ability::$ability) {
                    Some($module::GuestIndices::new(pre)?)
                } else {
                    None
                }
            };
        }
        Ok(Self {
            identity: Some(identity::GuestIndices::new(pre)?),
            volumes: Some(volumes::GuestIndices::new(pre)?),
            cloning: find!(cloning, Cloning),
            restoring: find!(restoring, Restoring),
            publishing: find!(publishing, Publishing),
            expansion: find!(expansion, Expansion),
            modification: find!(modification, Modification),
            snapshots: find!(snapshots, Snapshots),
            group_snapshots: find!(group_snapshots, GroupSnapshots),
            listing: find!(listing, Listing),
            inspection: find!(inspection, Inspection),
            capacity: find!(capacity, Capacity),
        })
    }
}

/// Checks the types of all exports. wasmtime checks an interface at its first call only, but a component with
/// a wrong type must be rejected when it is loaded.
pub(crate) fn check_types() -> GuestFunction<Result<(), ExportMismatch>> {
    Box::new(|fresh| {
        Box::pin(async move {
            /// Loads each interface.
            macro_rules! load {
                ($($interface:ident),*) => {
                    $(if let Some(indices) = &fresh.exports.$interface
                        && let Err(error) = indices.load(&mut *fresh.store, &fresh.instance)
                    {
                        let interface = stringify!($interface).replace('_', "-");
                        return Ok(Ok(Err(ExportMismatch { interface, error })));
                    })*
                };
            }
            load!(
                identity,
                volumes,
                cloning,
                restoring,
                publishing,
                expansion,
                modification,
                snapshots,
                group_snapshots,
                listing,
                inspection,
                capacity
            );
            Ok(Ok(Ok(())))
        })
    })
}

/// Defines a [`GuestFunction`] for each function of the contract.
macro_rules! functions {
    ($(
        $(#[$doc:meta])*
        $name:ident($($arg:ident: $type:ty),*) -> $response:ty
            = $interface:ident.$call:ident($($pass:expr),*);
    )*) => {
        $(
            $(#[$doc])*
            pub(crate) fn $name($($arg: $type),*) -> GuestFunction<$response> {
                Box::new(move |fresh| {
                    Box::pin(async move {
                        let interface = stringify!($interface);
                        let absent = || wasmtime::Error::msg(format!("{interface} is not exported"));
                        let indices = fresh.exports.$interface.as_ref().ok_or_else(absent)?;
                        let guest = indices.load(&mut *fresh.store, &fresh.instance)?;
                        guest.$call(fresh.store, $($pass),*).await
                    })
                })
            }
        )*
    };
}

functions! {
    /// `identity.describe`
    describe() -> identity::Description
        = identity.call_describe();
    /// `identity.probe`
    probe() -> identity::Readiness
        = identity.call_probe();
    /// `volumes.create`
    create(request: wit::CreateRequest) -> wit::Volume
        = volumes.call_create(&request);
    /// `volumes.delete`
    delete(handle: String) -> ()
        = volumes.call_delete(&handle);
    /// `volumes.validate`
    validate(request: volumes::ValidateRequest) -> volumes::Validation
        = volumes.call_validate(&request);
    /// `cloning.create-from-volume`
    create_from_volume(request: wit::CreateRequest, source: String) -> wit::Volume
        = cloning.call_create_from_volume(&request, &source);
    /// `restoring.create-from-snapshot`
    create_from_snapshot(request: wit::CreateRequest, source: String) -> wit::Volume
        = restoring.call_create_from_snapshot(&request, &source);
    /// `publishing.publish`
    publish(request: publishing::PublishRequest) -> wit::ConnectionInfo
        = publishing.call_publish(&request);
    /// `publishing.unpublish`
    unpublish(handle: String, node: Option<String>) -> ()
        = publishing.call_unpublish(&handle, node.as_deref());
    /// `expansion.expand`
    expand(request: expansion::ExpandRequest) -> expansion::ExpandResponse
        = expansion.call_expand(&request);
    /// `modification.modify`
    modify(handle: String, parameters: Pairs) -> ()
        = modification.call_modify(&handle, &parameters);
    /// `snapshots.create`
    create_snapshot(request: snapshots::SnapshotRequest) -> wit::Snapshot
        = snapshots.call_create(&request);
    /// `snapshots.delete`
    delete_snapshot(handle: String) -> ()
        = snapshots.call_delete(&handle);
    /// `snapshots.get`
    get_snapshot(handle: String) -> wit::Snapshot
        = snapshots.call_get(&handle);
    /// `snapshots.list`
    list_snapshots(
        source: Option<String>, after: Option<String>, limit: Option<u32>
    ) -> snapshots::SnapshotPage
        = snapshots.call_list(source.as_ref(), after.as_deref(), limit);
    /// `group-snapshots.create`
    create_group(request: group_snapshots::GroupRequest) -> group_snapshots::GroupSnapshot
        = group_snapshots.call_create(&request);
    /// `group-snapshots.delete`
    delete_group(handle: String, snapshots: Vec<String>) -> ()
        = group_snapshots.call_delete(&handle, &snapshots);
    /// `group-snapshots.get`
    get_group(handle: String, snapshots: Vec<String>) -> group_snapshots::GroupSnapshot
        = group_snapshots.call_get(&handle, &snapshots);
    /// `listing.list`
    list_volumes(after: Option<String>, limit: Option<u32>) -> listing::VolumePage
        = listing.call_list(after.as_deref(), limit);
    /// `inspection.get`
    get_volume(handle: String) -> wit::VolumeStatus
        = inspection.call_get(&handle);
    /// `capacity.available`
    available(request: capacity::CapacityRequest) -> capacity::CapacityReport
        = capacity.call_available(&request);
}
