//! The default backend of dev mode, and the reference of the whole contract: volumes that exist as entries of the `state`
//! import and hold no data.
//!
//! Settings, parameters and the grammar of injected failures stand in `docs/backends.md`.
#![forbid(unsafe_code)]

mod capacity;
mod expansion;
#[cfg(test)]
mod fake;
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
mod volumes;

use cofferdam_guest::{
    Attachment, Backend, CreateRequest, Description, KeyValues, Readiness, Result, Snapshot, SnapshotHandle,
    StorageError, ValidateRequest, Validation, Volume, VolumeHandle, VolumeStatus,
    abilities::{
        Capacity, CapacityReport, CapacityRequest, Cloning, ExpandRequest, Expanded, Expansion, GroupRequest,
        GroupSnapshot, GroupSnapshots, Inspection, Listing, Modification, PublishRequest, Publishing,
        Restoring, SnapshotPage, SnapshotRequest, Snapshots, VolumePage,
    },
    ambient, state,
};

use crate::{
    records::{Call, Source},
    settings::Settings,
};

/// The backend.
#[derive(Debug)]
pub struct Memory;

/// Answers a call with what the operator has chosen: settings, waits, failures.
fn answer<T>(method: &str, work: impl FnOnce(&Call<'_, state::Host>) -> Result<T>) -> Result<T> {
    let settings = settings::current()?;
    let now_ms = ambient::now().as_millis().try_into().unwrap_or(u64::MAX);
    let call = Call { store: &state::Host, settings: &settings, now_ms };
    faults::around(&call, method, || work(&call))
}

impl Backend for Memory {
    fn describe() -> Result<Description> {
        let all = cofferdam_guest::settings::all();
        let name = all.get(settings::DRIVER_NAME).map_or(settings::DEFAULT_DRIVER_NAME, String::as_str);
        // A mistake in the settings is told by `probe` and by every call; the name is needed to tell it.
        let settings = Settings::parse(&all).unwrap_or_default();
        Ok(Description {
            topology_keys: settings.topology.keys,
            volumes_per_node: settings.volumes_per_node,
            features: settings.features.names(),
            ..Description::new(name, env!("CARGO_PKG_VERSION"))
        })
    }

    fn probe() -> Result<Readiness> {
        match Settings::parse(&cofferdam_guest::settings::all()) {
            Ok(_) => Ok(Readiness::Ready),
            Err(message) => Ok(Readiness::NotReady(message)),
        }
    }

    fn create(request: CreateRequest) -> Result<Volume> {
        answer("create", |call| volumes::create(call, &request, None))
    }

    fn delete(handle: String) -> Result<()> {
        answer("delete", |call| volumes::delete(call, &handle))
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        answer("validate", |call| volumes::validate(call, &request))
    }
}

/// Refuses a source that was not given.
fn given(source: String) -> Result<String> {
    if source.is_empty() { Err(StorageError::invalid_argument("no source was given")) } else { Ok(source) }
}

impl Cloning for Memory {
    fn create_from_volume(request: CreateRequest, source: VolumeHandle) -> Result<Volume> {
        answer("create-from-volume", |call| {
            volumes::create(call, &request, Some(Source::Volume(given(source)?)))
        })
    }
}

impl Restoring for Memory {
    fn create_from_snapshot(request: CreateRequest, source: SnapshotHandle) -> Result<Volume> {
        answer("create-from-snapshot", |call| {
            volumes::create(call, &request, Some(Source::Snapshot(given(source)?)))
        })
    }
}

impl Publishing for Memory {
    fn publish(request: PublishRequest) -> Result<Attachment> {
        answer("publish", |call| publishing::publish(call, &request))
    }

    fn unpublish(handle: VolumeHandle, node: Option<String>) -> Result<()> {
        answer("unpublish", |call| publishing::unpublish(call, &handle, node.as_deref()))
    }
}

impl Expansion for Memory {
    fn expand(request: ExpandRequest) -> Result<Expanded> {
        answer("expand", |call| expansion::expand(call, &request))
    }
}

impl Modification for Memory {
    fn modify(handle: VolumeHandle, parameters: KeyValues) -> Result<()> {
        answer("modify", |call| modification::modify(call, &handle, &parameters))
    }
}

impl Snapshots for Memory {
    fn create(request: SnapshotRequest) -> Result<Snapshot> {
        answer("create-snapshot", |call| snapshots::create(call, &request))
    }

    fn delete(handle: SnapshotHandle) -> Result<()> {
        answer("delete-snapshot", |call| snapshots::delete(call, &handle))
    }

    fn get(handle: SnapshotHandle) -> Result<Snapshot> {
        answer("get-snapshot", |call| snapshots::get(call, &handle))
    }

    fn list(source: Option<VolumeHandle>, after: Option<String>, limit: Option<u32>) -> Result<SnapshotPage> {
        answer("list-snapshots", |call| snapshots::list(call, source.as_deref(), after.as_deref(), limit))
    }
}

impl GroupSnapshots for Memory {
    fn create(request: GroupRequest) -> Result<GroupSnapshot> {
        answer("create-group-snapshot", |call| groups::create(call, &request))
    }

    fn delete(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<()> {
        answer("delete-group-snapshot", |call| groups::delete(call, &handle, &snapshots))
    }

    fn get(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<GroupSnapshot> {
        answer("get-group-snapshot", |call| groups::get(call, &handle, &snapshots))
    }
}

impl Listing for Memory {
    fn list(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        answer("list", |call| listing::list(call, after.as_deref(), limit))
    }
}

impl Inspection for Memory {
    fn get(handle: VolumeHandle) -> Result<VolumeStatus> {
        answer("get", |call| listing::get(call, &handle))
    }
}

impl Capacity for Memory {
    fn available(request: CapacityRequest) -> Result<CapacityReport> {
        answer("available", |call| capacity::available(call, &request))
    }
}

cofferdam_guest::export!(
    Memory: cloning, restoring, publishing, expansion, modification, snapshots, group_snapshots, listing, inspection, capacity
);
