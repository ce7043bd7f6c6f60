//! Driver for Ceph: a volume is an RBD image. The driver uses the REST API of the Ceph dashboard, and nodes map
//! images with the kernel's RBD client. `docs/ceph.md` is the operator's guide.
//!
//! | setting | meaning | default |
//! |---|---|---|
//! | `url` | URL of the dashboard, such as `https://ceph.example:8443` | |
//! | `user` | user of the dashboard, with the scopes `rbd-image`, `pool` and `monitor` | |
//! | `pool` | pool of volumes whose class names none | |
//! | `pools` | further pools that a class may name, separated by commas | none |
//!
//! | secret | meaning |
//! |---|---|
//! | `password` | password of the user |
//!
//! | class parameter | meaning | default |
//! |---|---|---|
//! | `pool` | pool of the volume | the setting `pool` |
//!
//! The driver needs the grants `deadline`, `http` for the dashboard's origin, `reveal`, `secrets`, `session` and
//! `settings`. The grant `reveal` is for the login: the dashboard expects the password in a body.
//!
//! Ceph 16 has no place for a driver's data, so the driver keeps a record with each image.
#![forbid(unsafe_code)]

mod client;
mod images;
mod listing;
mod nodes;
mod record;
mod request;
mod snapshots;
mod volumes;

use cofferdam_guest::{
    Backend, CreateRequest, Description, Readiness, Result, ValidateRequest, Validation, Volume,
    abilities::{Cloning, Restoring},
};

use crate::client::Ceph;

/// Prefix of the images that are volumes.
const VOLUME: &str = "cofferdam-vol";
/// Prefix of the images that reserve the names of snapshots, and of the RBD snapshots.
const SNAPSHOT: &str = "cofferdam-snap";
/// Prefix of the images that record to which node a volume for one node is published.
const PUBLICATION: &str = "cofferdam-pub";
/// Prefix of the images that record with which nodes a volume is shared.
const SHARED_PUBLICATION: &str = "cofferdam-share";
/// Prefix of the RBD snapshots from which volumes are cloned.
const CLONE: &str = "cofferdam-clone-";
/// Prefix of the images that record expansions.
const EXPANSION: &str = "cofferdam-expand";
const MIB: u64 = 1 << 20;

/// The driver.
#[derive(Debug)]
pub struct CephDriver;

impl Backend for CephDriver {
    fn describe() -> Result<Description> {
        let features = ["online-expansion", "single-node-multi-writer"];
        Ok(Description {
            features: features.map(str::to_owned).to_vec(),
            ..Description::new("ceph.cofferdam.dev", env!("CARGO_PKG_VERSION"))
        })
    }

    /// Reads the monitors if the operator's configuration has the credentials. A probe lacks those of a class.
    fn probe() -> Result<Readiness> {
        let ready = Ceph::new().and_then(|ceph| match cofferdam_guest::secrets::get("password") {
            Some(_) => ceph.monitors().map(drop),
            None => Ok(()),
        });
        Ok(ready.map_or_else(|error| Readiness::NotReady(error.message), |()| Readiness::Ready))
    }

    fn create_volume(request: CreateRequest) -> Result<Volume> {
        volumes::create(&request, None)
    }

    fn delete_volume(handle: String) -> Result<()> {
        volumes::delete(&handle)
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        volumes::validate(&request)
    }
}

impl Cloning for CephDriver {
    fn create_from_volume(request: CreateRequest, source: String) -> Result<Volume> {
        volumes::create(&request, Some(&volumes::Source::Volume(source)))
    }
}

impl Restoring for CephDriver {
    fn create_from_snapshot(request: CreateRequest, source: String) -> Result<Volume> {
        volumes::create(&request, Some(&volumes::Source::Snapshot(source)))
    }
}

cofferdam_guest::export!(
    CephDriver: cloning, restoring, publishing, expansion, snapshots, listing, inspection, capacity
);

#[cfg(test)]
mod tests;
