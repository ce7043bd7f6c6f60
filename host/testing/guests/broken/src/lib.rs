//! A driver that exports every optional interface and stores its volumes in the `state` import of the host. A
//! setting makes it break one rule of the contract.
//!
//! | setting | meaning |
//! |---|---|
//! | `broken-rule` | the id of the conformance case whose rule it breaks, with few side effects |
//! | `features` | features of its description, separated by blanks (default: all) |
//! | `topology` | `key=value`: topology segment of all volumes (default: none) |
//! | `volumes-per-node` | maximum volumes per node (default: no limit) |
//! | `secret` | name of a secret that a create requires (default: none) |
//! | `url` | URL that a create calls at its end (default: none) |
//! | `connection-kind` and `connection-fields` | connection info of all volumes; fields are `key=value`, separated by blanks (default: kind `none`) |
//! | `nodes` | the nodes that exist, separated by blanks (default: every node) |
//! | `undeletable` | part of the names of volumes and snapshots whose deletes fail (default: none) |
//!
//! This driver tests the conformance suite: each case must fail if its rule is broken.
#![forbid(unsafe_code)]

mod db;
mod expansion;
mod listing;
mod publishing;
mod request;
mod snapshots;
mod volumes;

use cofferdam_guest::{
    Backend, CreateRequest, Description, Readiness, Result, StorageError, ValidateRequest, Validation,
    Volume, ambient, settings,
};

/// The driver that this component exports.
pub(crate) struct BrokenDriver;

cofferdam_guest::export!(
    BrokenDriver: cloning,
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

const FEATURES: &str = "publish-readonly published-nodes volume-condition online-expansion \
     single-node-multi-writer volume-mount-group";

/// Returns true if the setting `broken-rule` names this rule.
pub(crate) fn is_broken(rule: &str) -> bool {
    settings::get("broken-rule").is_some_and(|broken| broken == rule)
}

/// Returns true if the setting `broken-rule` names this rule and the name contains `-label-`. The conformance
/// suite puts such labels into the names of its volumes and snapshots.
pub(crate) fn is_broken_for(rule: &str, name: &str, label: &str) -> bool {
    name.contains(&format!("-{label}-")) && is_broken(rule)
}

/// Returns true if the description has a feature.
pub(crate) fn has_feature(feature: &str) -> bool {
    settings::get("features").unwrap_or_else(|| FEATURES.to_owned()).split(' ').any(|named| named == feature)
}

/// Topology segment of all volumes, if the setting `topology` has one.
pub(crate) fn topology_segment() -> Option<(String, String)> {
    let place = settings::get("topology")?;
    place.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()))
}

/// Maximum volumes per node; `None` for no limit.
pub(crate) fn volumes_per_node() -> Option<u32> {
    settings::get("volumes-per-node")?.parse().ok()
}

/// Rejects the delete of a volume or snapshot if its name contains the setting `undeletable`.
pub(crate) fn check_deletable(handle: &str, name: &str) -> Result<()> {
    match settings::get("undeletable") {
        Some(part) if name.contains(&part) => {
            Err(StorageError::failed_precondition(format!("{handle} cannot be deleted")))
        }
        _ => Ok(()),
    }
}

/// A random text of 32 hexadecimal digits.
pub(crate) fn nonce() -> String {
    format!("{:032x}", u128::from_le_bytes(ambient::random::<16>()))
}

/// Computes for 100 ms, long enough for concurrent calls to interleave.
pub(crate) fn busy_wait() {
    let until = ambient::now() + std::time::Duration::from_millis(100);
    while ambient::now() < until {
        std::hint::spin_loop();
    }
}

/// Computes until the host stops the call at its deadline. A wait of a fixed time could end before the
/// deadline of a call that started late on a busy machine.
pub(crate) fn compute_until_stopped() -> ! {
    loop {
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

    fn create_volume(request: CreateRequest) -> Result<Volume> {
        volumes::create(request, None)
    }

    fn delete_volume(handle: String) -> Result<()> {
        volumes::delete(&handle)
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        volumes::validate(request)
    }
}
