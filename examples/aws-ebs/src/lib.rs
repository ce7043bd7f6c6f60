//! Example driver for a cloud: volumes of AWS EBS, by the EC2 Query API. The README lists its settings,
//! secrets, parameters and gaps.
#![forbid(unsafe_code)]

mod attachments;
mod ec2;
mod sign;
mod snapshots;
mod tags;
mod volumes;
mod xml;

use cofferdam_guest::{Backend, CreateRequest, Description, Readiness, Result};
use cofferdam_guest::{ValidateRequest, Validation, Volume};

use crate::ec2::Ec2;

/// The topology key of volumes: each is reachable from one zone. Clouds label their Nodes with it.
const ZONE_KEY: &str = "topology.kubernetes.io/zone";

/// The driver.
#[derive(Debug)]
pub struct EbsDriver;

impl Backend for EbsDriver {
    fn describe() -> Result<Description> {
        let features = ["online-expansion", "published-nodes", "single-node-multi-writer"];
        Ok(Description {
            topology_keys: vec![ZONE_KEY.to_owned()],
            features: features.map(str::to_owned).to_vec(),
            ..Description::new("ebs.example.cofferdam.dev", env!("CARGO_PKG_VERSION"))
        })
    }

    /// Checks the settings only: a probe has no secret of a class.
    fn probe() -> Result<Readiness> {
        Ok(Ec2::new().map_or_else(|error| Readiness::NotReady(error.message), |_| Readiness::Ready))
    }

    fn create_volume(request: CreateRequest) -> Result<Volume> {
        volumes::create(&request, None)
    }

    fn delete_volume(handle: String) -> Result<()> {
        volumes::delete(&handle)
    }

    /// Every volume has all capabilities that EBS supports.
    fn validate(request: ValidateRequest) -> Result<Validation> {
        volumes::capabilities(&request.capabilities)?;
        Ec2::new()?.volume(&request.handle)?;
        Ok(Validation::Confirmed)
    }
}

cofferdam_guest::export!(EbsDriver: restoring, publishing, expansion, modification, snapshots, listing);

#[cfg(test)]
mod tests;
