//! Default backend of `cofferdam dev`, and reference implementation of the complete driver contract. Volumes
//! are entries of the `state` import and contain no data.
//!
//! `docs/backends.md` describes the settings, the parameters and the syntax of injected faults.
#![forbid(unsafe_code)]

mod capacity;
mod expansion;
#[cfg(test)]
mod fake;
mod fault_rules;
mod faults;
mod groups;
mod listing;
mod modification;
mod publishing;
mod records;
mod request;
mod settings;
mod snapshots;
#[cfg(test)]
mod tests;
mod topology;
mod values;
mod volumes;

use cofferdam_guest::{
    Backend, ConnectionInfo, CreateRequest, Description, KeyValues, Readiness, Result, Snapshot,
    SnapshotHandle, StorageError, ValidateRequest, Validation, Volume, VolumeHandle, VolumeStatus,
    abilities::{
        Capacity, CapacityReport, CapacityRequest, Cloning, ExpandRequest, ExpandResponse, Expansion,
        GroupRequest, GroupSnapshot, GroupSnapshots, Inspection, Listing, Modification, PublishRequest,
        Publishing, Restoring, SnapshotPage, SnapshotRequest, Snapshots, VolumePage,
    },
    ambient, state,
};

use crate::{
    records::{MemoryCall, MemorySource},
    settings::MemorySettings,
};

/// The driver that this crate exports to the host.
#[derive(Debug)]
pub struct MemoryBackend;

/// Handles a call with the configured settings, latency and faults.
fn handle_call<T>(
    method: &str,
    handler: impl FnOnce(&MemoryCall<'_, state::HostStore>) -> Result<T>,
) -> Result<T> {
    let settings = settings::current()?;
    let now_ms = ambient::now().as_millis().try_into().unwrap_or(u64::MAX);
    let call = MemoryCall { store: &state::HostStore, settings: &settings, now_ms };
    faults::run_with_faults(&call, method, || handler(&call))
}

impl Backend for MemoryBackend {
    fn describe() -> Result<Description> {
        let all = cofferdam_guest::settings::all();
        let name = all.get(settings::DRIVER_NAME).map_or(settings::DEFAULT_DRIVER_NAME, String::as_str);
        // `probe` and every other call report invalid settings, and the driver's name is needed for that.
        let settings = MemorySettings::parse(&all).unwrap_or_default();
        Ok(Description {
            topology_keys: settings.topology.keys,
            volumes_per_node: settings.volumes_per_node,
            features: settings.features.names(),
            ..Description::new(name, env!("CARGO_PKG_VERSION"))
        })
    }

    fn probe() -> Result<Readiness> {
        match MemorySettings::parse(&cofferdam_guest::settings::all()) {
            Ok(_) => Ok(Readiness::Ready),
            Err(error) => Ok(Readiness::NotReady(error.to_string())),
        }
    }

    fn create_volume(request: CreateRequest) -> Result<Volume> {
        handle_call("create", |call| volumes::create(call, &request, None))
    }

    fn delete_volume(handle: String) -> Result<()> {
        handle_call("delete", |call| volumes::delete(call, &handle))
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        handle_call("validate", |call| volumes::validate(call, &request))
    }
}

/// Rejects an empty source.
fn require_source(source: String) -> Result<String> {
    if source.is_empty() { Err(StorageError::invalid_argument("no source was given")) } else { Ok(source) }
}

impl Cloning for MemoryBackend {
    fn create_from_volume(request: CreateRequest, source: VolumeHandle) -> Result<Volume> {
        handle_call("create-from-volume", |call| {
            volumes::create(call, &request, Some(MemorySource::Volume(require_source(source)?)))
        })
    }
}

impl Restoring for MemoryBackend {
    fn create_from_snapshot(request: CreateRequest, source: SnapshotHandle) -> Result<Volume> {
        handle_call("create-from-snapshot", |call| {
            volumes::create(call, &request, Some(MemorySource::Snapshot(require_source(source)?)))
        })
    }
}

impl Publishing for MemoryBackend {
    fn publish(request: PublishRequest) -> Result<ConnectionInfo> {
        handle_call("publish", |call| publishing::publish(call, &request))
    }

    fn unpublish(handle: VolumeHandle, node: Option<String>) -> Result<()> {
        handle_call("unpublish", |call| publishing::unpublish(call, &handle, node.as_deref()))
    }
}

impl Expansion for MemoryBackend {
    fn expand(request: ExpandRequest) -> Result<ExpandResponse> {
        handle_call("expand", |call| expansion::expand(call, &request))
    }
}

impl Modification for MemoryBackend {
    fn modify(handle: VolumeHandle, parameters: KeyValues) -> Result<()> {
        handle_call("modify", |call| modification::modify(call, &handle, &parameters))
    }
}

impl Snapshots for MemoryBackend {
    fn create_snapshot(request: SnapshotRequest) -> Result<Snapshot> {
        handle_call("create-snapshot", |call| snapshots::create(call, &request))
    }

    fn delete_snapshot(handle: SnapshotHandle) -> Result<()> {
        handle_call("delete-snapshot", |call| snapshots::delete(call, &handle))
    }

    fn get_snapshot(handle: SnapshotHandle) -> Result<Snapshot> {
        handle_call("get-snapshot", |call| snapshots::get(call, &handle))
    }

    fn list_snapshots(
        source: Option<VolumeHandle>,
        after: Option<String>,
        limit: Option<u32>,
    ) -> Result<SnapshotPage> {
        handle_call("list-snapshots", |call| {
            snapshots::list(call, source.as_deref(), after.as_deref(), limit)
        })
    }
}

impl GroupSnapshots for MemoryBackend {
    fn create_group_snapshot(request: GroupRequest) -> Result<GroupSnapshot> {
        handle_call("create-group-snapshot", |call| groups::create(call, &request))
    }

    fn delete_group_snapshot(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<()> {
        handle_call("delete-group-snapshot", |call| groups::delete(call, &handle, &snapshots))
    }

    fn get_group_snapshot(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<GroupSnapshot> {
        handle_call("get-group-snapshot", |call| groups::get(call, &handle, &snapshots))
    }
}

impl Listing for MemoryBackend {
    fn list_volumes(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        handle_call("list", |call| listing::list(call, after.as_deref(), limit))
    }
}

impl Inspection for MemoryBackend {
    fn get_volume(handle: VolumeHandle) -> Result<VolumeStatus> {
        handle_call("get", |call| listing::get(call, &handle))
    }
}

impl Capacity for MemoryBackend {
    fn available(request: CapacityRequest) -> Result<CapacityReport> {
        handle_call("available", |call| capacity::available(call, &request))
    }
}

cofferdam_guest::export!(
    MemoryBackend: cloning,
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
