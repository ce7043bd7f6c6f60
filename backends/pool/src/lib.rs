//! Node-local storage. Volumes are directories and image files in the `pool` import. Snapshots are copies of
//! them. The records of both are in the `state` import.
//!
//! | setting | meaning | default |
//! |---|---|---|
//! | `driver-name` | the driver's name | `pool.cofferdam.dev` |
//! | `node` | the name of the node with the pool | none, required |
//!
//! A class may set the parameter `kind`:
//!
//! - `directory`: the size is not enforced.
//! - `image`: a file that is used as a block device.
//!
//! Block volumes are always images. Other volumes are directories by default. A copy has the kind of its
//! source.
//!
//! Classes of volumes and of snapshots may set the parameter `consistency` of copies:
//!
//! - `crash`: the copy is crash-consistent. The default for images; impossible for directories.
//! - `none`: the copy is consistent only if the source is not written during the copy. The default for
//!   directories.
//!
//! A volume from a snapshot needs no such consistency, because nothing writes to a snapshot.
#![forbid(unsafe_code)]

mod items;
mod request;
mod settings;
mod snapshots;
mod volumes;

use cofferdam_guest::{
    Backend, CreateRequest, Description, Placement, Readiness, Result, Snapshot, SnapshotHandle,
    ValidateRequest, Validation, Volume, VolumeHandle, VolumeStatus,
    abilities::{
        Capacity, CapacityReport, CapacityRequest, Cloning, ExpandRequest, ExpandResponse, Expansion,
        Inspection, Listing, Restoring, SnapshotPage, SnapshotRequest, Snapshots, VolumePage,
    },
    ambient, pool, state,
};

use crate::{
    items::{NodeStorage, RecordKind},
    settings::PoolSettings,
};

/// The driver that this crate exports to the host.
#[derive(Debug)]
pub struct PoolBackend;

fn storage() -> NodeStorage<'static, state::HostStore, pool::HostPool> {
    let now_ms = u64::try_from(ambient::now().as_millis()).unwrap_or(u64::MAX);
    let random = u64::from_le_bytes(ambient::random());
    NodeStorage { store: &state::HostStore, pool: &pool::HostPool, now_ms, random }
}

impl Backend for PoolBackend {
    fn describe() -> Result<Description> {
        let name = cofferdam_guest::settings::get(settings::DRIVER_NAME);
        let name = name.unwrap_or_else(|| settings::DEFAULT_DRIVER_NAME.to_owned());
        Ok(Description {
            topology_keys: vec![volumes::NODE_KEY.to_owned()],
            placement: Placement::Node,
            // The node enforces `SINGLE_NODE_SINGLE_WRITER`.
            features: ["volume-condition", "single-node-multi-writer"].map(str::to_owned).into(),
            ..Description::new(name, env!("CARGO_PKG_VERSION"))
        })
    }

    fn probe() -> Result<Readiness> {
        if let Err(error) = PoolSettings::parse(&cofferdam_guest::settings::all()) {
            return Ok(Readiness::NotReady(error.to_string()));
        }
        match pool::Pool::usage(&pool::HostPool) {
            Ok(_) => Ok(Readiness::Ready),
            Err(error) => Ok(Readiness::NotReady(cofferdam_guest::StorageError::from(error).message)),
        }
    }

    fn create_volume(request: CreateRequest) -> Result<Volume> {
        volumes::create(&storage(), &settings::current()?, &request, None)
    }

    fn delete_volume(handle: String) -> Result<()> {
        volumes::delete(&storage(), &handle)
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        volumes::validate(&storage(), request)
    }
}

impl Cloning for PoolBackend {
    fn create_from_volume(request: CreateRequest, source: VolumeHandle) -> Result<Volume> {
        volumes::create(&storage(), &settings::current()?, &request, Some((RecordKind::Volume, &source)))
    }
}

impl Restoring for PoolBackend {
    fn create_from_snapshot(request: CreateRequest, source: SnapshotHandle) -> Result<Volume> {
        volumes::create(&storage(), &settings::current()?, &request, Some((RecordKind::Snapshot, &source)))
    }
}

impl Expansion for PoolBackend {
    fn expand(request: ExpandRequest) -> Result<ExpandResponse> {
        volumes::expand(&storage(), &request)
    }
}

impl Snapshots for PoolBackend {
    fn create_snapshot(request: SnapshotRequest) -> Result<Snapshot> {
        snapshots::create(&storage(), request)
    }

    fn delete_snapshot(handle: SnapshotHandle) -> Result<()> {
        snapshots::delete(&storage(), &handle)
    }

    fn get_snapshot(handle: SnapshotHandle) -> Result<Snapshot> {
        snapshots::get(&storage(), handle)
    }

    fn list_snapshots(
        source: Option<VolumeHandle>,
        after: Option<String>,
        limit: Option<u32>,
    ) -> Result<SnapshotPage> {
        snapshots::list(&storage(), source.as_deref(), after.as_deref(), limit)
    }
}

impl Listing for PoolBackend {
    fn list_volumes(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        volumes::list(&storage(), &settings::current()?, after.as_deref(), limit)
    }
}

impl Inspection for PoolBackend {
    fn get_volume(handle: VolumeHandle) -> Result<VolumeStatus> {
        volumes::get(&storage(), &settings::current()?, &handle)
    }
}

impl Capacity for PoolBackend {
    fn available(request: CapacityRequest) -> Result<CapacityReport> {
        volumes::available(&storage(), &settings::current()?, request)
    }
}

cofferdam_guest::export!(
    PoolBackend: cloning,
    restoring,
    snapshots,
    expansion,
    listing,
    inspection,
    capacity
);

#[cfg(test)]
mod tests;
