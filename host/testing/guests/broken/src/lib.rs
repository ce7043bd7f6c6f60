//! A driver that can do everything over the `state` import, and breaks one rule of the contract when it is
//! told to.
//!
//! | setting | meaning |
//! |---|---|
//! | `broken-rule` | the id of a case of the conformance suite: what it tests is done wrong, and as little else as possible |
//! | `features` | the features that it names, with blanks between; all when absent |
//! | `topology` | `key=value`: the place where all volumes are; absent for none |
//! | `volumes-per-node` | how many volumes fit a node; absent for any number |
//! | `secret` | the name of a secret that a create must have; absent for none |
//! | `url` | what a create asks over HTTP when it is done; absent for nothing |
//!
//! It proves the suite: a rule that no driver can break is no rule.
#![forbid(unsafe_code)]

mod db;
mod expansion;
mod listing;
mod publishing;
mod request;
mod snapshots;
mod volumes;

use cofferdam_guest::{
    Backend, CreateRequest, Description, Readiness, Result, ValidateRequest, Validation, Volume, ambient,
    settings,
};

/// Everything that the driver can do.
pub(crate) struct BrokenDriver;

cofferdam_guest::export!(
    BrokenDriver: cloning, restoring, publishing, expansion, modification, snapshots, group_snapshots, listing, inspection, capacity
);

const FEATURES: &str = "publish-readonly published-nodes volume-condition online-expansion single-node-multi-writer volume-mount-group";

/// Whether this is the rule that is broken.
pub(crate) fn is_broken(rule: &str) -> bool {
    settings::get("broken-rule").is_some_and(|broken| broken == rule)
}

/// Whether this is the rule that is broken, for things whose name has this label.
pub(crate) fn is_broken_for(rule: &str, name: &str, label: &str) -> bool {
    name.contains(&format!("-{label}-")) && is_broken(rule)
}

/// Whether the driver names a feature.
pub(crate) fn has_feature(feature: &str) -> bool {
    settings::get("features").unwrap_or_else(|| FEATURES.to_owned()).split(' ').any(|named| named == feature)
}

/// The place where all volumes are.
pub(crate) fn topology_segment() -> Option<(String, String)> {
    let place = settings::get("topology")?;
    place.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()))
}

/// How many volumes fit a node.
pub(crate) fn volumes_per_node() -> Option<u32> {
    settings::get("volumes-per-node")?.parse().ok()
}

/// A text that never comes twice.
pub(crate) fn nonce() -> String {
    format!("{:032x}", u128::from_le_bytes(ambient::random::<16>()))
}

/// Computes for a while: long enough for other calls to come in between, and for a deadline to pass.
pub(crate) fn busy_wait() {
    let until = ambient::now() + std::time::Duration::from_millis(100);
    while ambient::now() < until {
        std::hint::spin_loop();
    }
}

impl Backend for BrokenDriver {
    fn describe() -> Result<Description> {
        let name = if is_broken("identity/loads") { "Not A Name" } else { "broken.example" };
        let version = if is_broken("identity/description-is-constant") { nonce() } else { "1".to_owned() };
        let mut description = Description::new(name, version);
        let features = settings::get("features").unwrap_or_else(|| FEATURES.to_owned());
        description.volumes_per_node = volumes_per_node();
        description.topology_keys = topology_segment().into_iter().map(|(key, _)| key).collect();
        description.features =
            features.split(' ').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Ok(description)
    }

    fn probe() -> Result<Readiness> {
        if is_broken("identity/ready") {
            return Ok(Readiness::NotReady("it never is".to_owned()));
        }
        Ok(Readiness::Ready)
    }

    fn create(request: CreateRequest) -> Result<Volume> {
        volumes::create(request, None)
    }

    fn delete(handle: String) -> Result<()> {
        volumes::delete(&handle)
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        volumes::validate(request)
    }
}
