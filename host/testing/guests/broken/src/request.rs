//! Validation of requests.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_guest::{
    AccessMode, AccessType, CapacityRange, KeyValues, Result, StorageError, VolumeCapability, to_map,
};

use crate::{db::BrokenDriverState, is_broken, is_broken_for};

/// Default size of a volume in bytes.
const DEFAULT_SIZE: u64 = 1 << 20;
/// Maximum size of a volume in bytes.
pub(crate) const MAX_SIZE: u64 = 1 << 50;
/// CSI's limit for names, in bytes.
const MAX_NAME: usize = 128;

/// FNV-1a, 128 bits.
pub(crate) fn digest(text: &str) -> String {
    let hash = text.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    format!("{hash:032x}")
}

/// Rejects an invalid name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_invalid = name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control);
    let is_broken_rule = (name.len() < 2 && is_broken("volumes/short-name"))
        || (!name.is_ascii() && is_broken("volumes/unicode-names"));
    if (is_invalid && !is_broken("volumes/bad-names")) || is_broken_rule {
        return Err(StorageError::invalid_argument(format!("the name {name:?} is not valid")));
    }
    Ok(())
}

/// The handle of a name.
pub(crate) fn volume_handle(name: &str) -> String {
    let mut name = name.to_owned();
    if name.len() == MAX_NAME && is_broken("volumes/long-names") {
        name.truncate(100);
    }
    if is_broken("volumes/similar-names") {
        name = name.to_lowercase();
    }
    format!("v-{}", digest(&name))
}

/// Parses the parameters of a StorageClass. Only `label` is known.
pub(crate) fn parse_parameters(pairs: KeyValues) -> Result<BTreeMap<String, String>> {
    let parameters = to_map(pairs);
    if parameters.len() > 100 && is_broken("limits/many-parameters") {
        return Err(StorageError::permission_denied("too many parameters to count"));
    }
    if parameters.values().any(|value| value.len() > 1_000) && is_broken("limits/large-parameters") {
        return Err(StorageError::permission_denied("too large a parameter"));
    }
    match parameters.keys().find(|key| *key != "label") {
        Some(key) if !is_broken("volumes/unknown-parameter") => {
            Err(StorageError::invalid_argument(format!("the parameter {key:?} is not known")))
        }
        _ => Ok(parameters),
    }
}

/// Parses mutable parameters. Only `iops` is known. If the rule `rule` is broken, others are accepted, too.
pub(crate) fn parse_mutable_parameters(pairs: KeyValues, rule: &str) -> Result<BTreeMap<String, String>> {
    let parameters = to_map(pairs);
    match parameters.keys().find(|key| *key != "iops") {
        Some(key) if !is_broken(rule) => {
            Err(StorageError::invalid_argument(format!("the mutable parameter {key:?} is not known")))
        }
        _ => Ok(parameters),
    }
}

/// Each capability as text. If the rule `rule` is broken, a request without capabilities is accepted.
pub(crate) fn format_capabilities(capabilities: &[VolumeCapability], rule: &str) -> Result<BTreeSet<String>> {
    if capabilities.is_empty() && !is_broken(rule) {
        return Err(StorageError::invalid_argument("there is no way of use"));
    }
    capabilities.iter().map(format_capability).collect()
}

/// A capability as text.
pub(crate) fn format_capability(capability: &VolumeCapability) -> Result<String> {
    let mode = capability.mode;
    let is_single_node_mode =
        matches!(mode, AccessMode::SingleNodeSingleWriter | AccessMode::SingleNodeMultiWriter);
    if is_single_node_mode && is_broken("features/single-node-multi-writer") {
        return Err(StorageError::invalid_argument(format!("{mode:?} is not known")));
    }
    let access = match &capability.access {
        AccessType::Block => "block".to_owned(),
        AccessType::Filesystem(access) => {
            if access.mount_group.is_some() && is_broken("features/volume-mount-group") {
                return Err(StorageError::invalid_argument("there are no groups"));
            }
            format!("{:?} {:?} {:?}", access.fs_type, access.mount_flags, access.mount_group)
        }
    };
    Ok(format!("{mode:?} {access}"))
}

/// Returns true for multi-node access modes.
pub(crate) fn is_multi_node(capability: &VolumeCapability) -> bool {
    matches!(
        capability.mode,
        AccessMode::MultiNodeReaderOnly
            | AccessMode::MultiNodeSingleWriter
            | AccessMode::MultiNodeMultiWriter
    )
}

/// The size of a new volume in bytes, without regard to its content source.
pub(crate) fn choose_size(name: &str, range: CapacityRange) -> Result<u64> {
    let limit = range.limit_bytes.unwrap_or(MAX_SIZE);
    let required = range.required_bytes.unwrap_or(DEFAULT_SIZE.min(limit));
    if is_broken_for("volumes/size-in-range", name, "ranged") {
        return Ok(required.saturating_mul(8));
    }
    if required == 0 && is_broken("volumes/no-size") {
        return Ok(DEFAULT_SIZE);
    }
    if required > limit && range.limit_bytes.is_some() && is_broken("volumes/empty-range") {
        return Ok(required);
    }
    if required > MAX_SIZE && is_broken("volumes/absurd-size") {
        return Ok(MAX_SIZE);
    }
    if required == 0 || required > limit || required > MAX_SIZE {
        return Err(StorageError::out_of_range(format!(
            "no volume has a size of {required} to {limit} bytes"
        )));
    }
    Ok(required)
}

/// The size of a content source in bytes. 0 without a content source, and for a missing one if the rule
/// `cloning/missing-source` or `restoring/missing-source` is broken.
pub(crate) fn source_size(db: &BrokenDriverState, origin: Option<&str>) -> Result<u64> {
    let Some(origin) = origin else { return Ok(0) };
    let volume = db.volumes.get(origin).map(|volume| volume.size);
    let snapshot = db.snapshots.get(origin).map(|snapshot| snapshot.size);
    let rule = if origin.starts_with("s-") || origin.contains("-ghost-snapshot-") {
        "restoring/missing-source"
    } else {
        "cloning/missing-source"
    };
    match volume.or(snapshot) {
        Some(size) => Ok(size),
        None if is_broken(rule) => Ok(0),
        None => Err(StorageError::not_found(format!("there is no source {origin:?}"))),
    }
}
