//! Storage of one node: volumes are directories and image files in the `pool` import, their records are in the `state` import.
//!
//! | setting | meaning | default |
//! |---|---|---|
//! | `driver-name` | the driver's name | `pool.cofferdam.dev` |
//! | `node` | the name of the node that holds the pool | none: it has to be set |
//!
//! A class may set the parameter `kind`: `directory`, whose size is not enforced, or `image`, a file that is used as a block
//! device. Block volumes are images; others are directories unless the class says otherwise. With `consistency`, classes of
//! volumes and of snapshots say what a copy has to be: `crash`, of one moment, or `none`, right while nothing writes.
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
        Capacity, CapacityReport, CapacityRequest, Cloning, ExpandRequest, Expanded, Expansion, Inspection,
        Listing, Restoring, SnapshotPage, SnapshotRequest, Snapshots, VolumePage,
    },
    ambient, pool, state,
};

use crate::{
    items::{Place, Sort},
    settings::Settings,
};

/// The backend.
#[derive(Debug)]
pub struct Pool;

fn place() -> Place<'static, state::Host, pool::Host> {
    let now_ms = u64::try_from(ambient::now().as_millis()).unwrap_or(u64::MAX);
    let chance = u64::from_le_bytes(ambient::random());
    Place { store: &state::Host, pool: &pool::Host, now_ms, chance }
}

impl Backend for Pool {
    fn describe() -> Result<Description> {
        let name = cofferdam_guest::settings::get(settings::DRIVER_NAME);
        let name = name.unwrap_or_else(|| settings::DEFAULT_DRIVER_NAME.to_owned());
        Ok(Description {
            topology_keys: vec![volumes::NODE_KEY.to_owned()],
            placement: Placement::Node,
            // Who writes on the node, the node keeps apart.
            features: ["volume-condition", "single-node-multi-writer"].map(str::to_owned).into(),
            ..Description::new(name, env!("CARGO_PKG_VERSION"))
        })
    }

    fn probe() -> Result<Readiness> {
        if let Err(message) = Settings::parse(&cofferdam_guest::settings::all()) {
            return Ok(Readiness::NotReady(message));
        }
        match pool::Pool::usage(&pool::Host) {
            Ok(_) => Ok(Readiness::Ready),
            Err(error) => Ok(Readiness::NotReady(cofferdam_guest::StorageError::from(error).message)),
        }
    }

    fn create(request: CreateRequest) -> Result<Volume> {
        volumes::create(&place(), &settings::current()?, &request, None)
    }

    fn delete(handle: String) -> Result<()> {
        volumes::delete(&place(), &handle)
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        volumes::validate(&place(), request)
    }
}

impl Cloning for Pool {
    fn create_from_volume(request: CreateRequest, source: VolumeHandle) -> Result<Volume> {
        volumes::create(&place(), &settings::current()?, &request, Some((Sort::Volume, &source)))
    }
}

impl Restoring for Pool {
    fn create_from_snapshot(request: CreateRequest, source: SnapshotHandle) -> Result<Volume> {
        volumes::create(&place(), &settings::current()?, &request, Some((Sort::Snapshot, &source)))
    }
}

impl Expansion for Pool {
    fn expand(request: ExpandRequest) -> Result<Expanded> {
        volumes::expand(&place(), &request)
    }
}

impl Snapshots for Pool {
    fn create(request: SnapshotRequest) -> Result<Snapshot> {
        snapshots::create(&place(), request)
    }

    fn delete(handle: SnapshotHandle) -> Result<()> {
        snapshots::delete(&place(), &handle)
    }

    fn get(handle: SnapshotHandle) -> Result<Snapshot> {
        snapshots::get(&place(), handle)
    }

    fn list(source: Option<VolumeHandle>, after: Option<String>, limit: Option<u32>) -> Result<SnapshotPage> {
        snapshots::list(&place(), source.as_deref(), after.as_deref(), limit)
    }
}

impl Listing for Pool {
    fn list(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        volumes::list(&place(), &settings::current()?, after.as_deref(), limit)
    }
}

impl Inspection for Pool {
    fn get(handle: VolumeHandle) -> Result<VolumeStatus> {
        volumes::get(&place(), &settings::current()?, &handle)
    }
}

impl Capacity for Pool {
    fn available(request: CapacityRequest) -> Result<CapacityReport> {
        volumes::available(&place(), &settings::current()?, request)
    }
}

cofferdam_guest::export!(Pool: cloning, restoring, snapshots, expansion, listing, inspection, capacity);

#[cfg(test)]
mod tests;
