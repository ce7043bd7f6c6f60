//! Example driver for an array with a JSON API over HTTP, such as `examples/fake-array`.
//!
//! | setting | meaning |
//! |---|---|
//! | `url` | URL of the array, such as `https://array.example` |
//!
//! | secret | meaning |
//! |---|---|
//! | `user`, `password` | credentials for the array |
//!
//! | class parameter | meaning | default |
//! |---|---|---|
//! | `tier` | storage tier of volumes: `fast` or `cheap` | `cheap` |
//!
//! The driver needs the grants `http` for the array's origin, `secrets`, `session` and `settings`. It never
//! sees the password: the host inserts it into the login request.
#![forbid(unsafe_code)]

mod client;
mod model;
mod nodes;
mod snapshots;
mod volumes;

use cofferdam_guest::{
    Backend, ConnectionInfo, CreateRequest, Description, Readiness, Result, Snapshot, ValidateRequest,
    Validation, Volume, VolumeStatus,
    abilities::{
        Capacity, CapacityReport, CapacityRequest, Cloning, ExpandRequest, ExpandResponse, Expansion,
        Inspection, Listing, PublishRequest, Publishing, Restoring, SnapshotPage, SnapshotRequest, Snapshots,
        VolumePage,
    },
};

use crate::{client::ArrayClient, model::VolumeSource};

/// The driver.
#[derive(Debug)]
pub struct ArrayDriver;

impl Backend for ArrayDriver {
    fn describe() -> Result<Description> {
        let features =
            ["publish-readonly", "published-nodes", "online-expansion", "single-node-multi-writer"];
        Ok(Description {
            features: features.map(str::to_owned).to_vec(),
            ..Description::new("array.example.cofferdam.dev", env!("CARGO_PKG_VERSION"))
        })
    }

    /// Checks the settings only. The array rejects requests without a login, and a probe may lack the secrets
    /// for it: it has only those of the operator's configuration.
    fn probe() -> Result<Readiness> {
        match ArrayClient::new() {
            Ok(_) => Ok(Readiness::Ready),
            Err(error) => Ok(Readiness::NotReady(error.message)),
        }
    }

    fn create_volume(request: CreateRequest) -> Result<Volume> {
        volumes::create(&ArrayClient::new()?, &request, None)
    }

    fn delete_volume(handle: String) -> Result<()> {
        volumes::delete(&ArrayClient::new()?, &handle)
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        volumes::validate(&ArrayClient::new()?, &request)
    }
}

impl Cloning for ArrayDriver {
    fn create_from_volume(request: CreateRequest, source: String) -> Result<Volume> {
        volumes::create(&ArrayClient::new()?, &request, Some(VolumeSource::Volume(source)))
    }
}

impl Restoring for ArrayDriver {
    fn create_from_snapshot(request: CreateRequest, source: String) -> Result<Volume> {
        volumes::create(&ArrayClient::new()?, &request, Some(VolumeSource::Snapshot(source)))
    }
}

impl Expansion for ArrayDriver {
    fn expand(request: ExpandRequest) -> Result<ExpandResponse> {
        volumes::expand(&ArrayClient::new()?, &request)
    }
}

impl Listing for ArrayDriver {
    fn list_volumes(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        volumes::list(&ArrayClient::new()?, after.as_deref(), limit)
    }
}

impl Inspection for ArrayDriver {
    fn get_volume(handle: String) -> Result<VolumeStatus> {
        volumes::get(&ArrayClient::new()?, &handle)
    }
}

impl Capacity for ArrayDriver {
    fn available(request: CapacityRequest) -> Result<CapacityReport> {
        volumes::available(&ArrayClient::new()?, request)
    }
}

impl Publishing for ArrayDriver {
    fn publish(request: PublishRequest) -> Result<ConnectionInfo> {
        nodes::publish(&ArrayClient::new()?, &request)
    }

    fn unpublish(handle: String, node: Option<String>) -> Result<()> {
        nodes::unpublish(&ArrayClient::new()?, &handle, node.as_deref())
    }
}

impl Snapshots for ArrayDriver {
    fn create_snapshot(request: SnapshotRequest) -> Result<Snapshot> {
        snapshots::create(&ArrayClient::new()?, request)
    }

    fn delete_snapshot(handle: String) -> Result<()> {
        snapshots::delete(&ArrayClient::new()?, &handle)
    }

    fn get_snapshot(handle: String) -> Result<Snapshot> {
        snapshots::get(&ArrayClient::new()?, &handle)
    }

    fn list_snapshots(
        source: Option<String>,
        after: Option<String>,
        limit: Option<u32>,
    ) -> Result<SnapshotPage> {
        snapshots::list(&ArrayClient::new()?, source.as_deref(), after.as_deref(), limit)
    }
}

cofferdam_guest::export!(
    ArrayDriver: cloning, restoring, publishing, expansion, snapshots, listing, inspection, capacity
);

#[cfg(test)]
mod tests;
