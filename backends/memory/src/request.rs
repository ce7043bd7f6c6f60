//! Validation of requests, and the choice of handles and sizes: pure functions.

use std::collections::BTreeMap;

use cofferdam_guest::{
    AccessMode, AccessType, CapacityRange, CreateRequest, KeyValues, Result, StorageError, VolumeCapability,
    handle, sizes::Sizes,
};

use crate::{
    records::{MemorySource, VolumeArguments},
    settings::{ConditionSetting, MemorySettings},
    values::{MAX_MAP_BYTES, MAX_NAME, check_text, parse_pairs},
};

/// Maximum volume size, 1 PiB: far above any real volume.
pub(crate) const MAX_SIZE: u64 = 1 << 50;
/// Supported sizes. The default is 1 GiB, as in many CSI drivers.
const SIZES: Sizes = Sizes::between(1, MAX_SIZE).by_default(1 << 30);
/// Maximum bytes of all capability strings of a volume. With the other fields they fit into one state value.
const MAX_CAPABILITIES_BYTES: usize = 16 << 10;
/// Parameter for a label of a volume. As a parameter of a StorageClass it is part of the volume context. As a
/// mutable parameter it can be changed. Classes of snapshots and group snapshots may have it too; repeated
/// requests for a group must have the same label.
pub(crate) const LABEL: &str = "label";
/// Parameter of a StorageClass for the simulated condition of a volume. It overrides the operator's setting.
pub(crate) const CONDITION: &str = "condition";
/// Mutable parameter for I/O operations per second. Stored without any effect.
const IOPS: &str = "iops";
/// Maximum length of a label in bytes, as in Kubernetes.
const MAX_LABEL: usize = 63;
/// Parameters that external-provisioner and external-snapshotter add with `--extra-create-metadata`. They are
/// accepted, and must be equal in repeated requests for a volume. Nothing else uses them.
const METADATA_KEYS: [&str; 9] = [
    "csi.storage.k8s.io/pvc/name",
    "csi.storage.k8s.io/pvc/namespace",
    "csi.storage.k8s.io/pv/name",
    "csi.storage.k8s.io/volumesnapshot/name",
    "csi.storage.k8s.io/volumesnapshot/namespace",
    "csi.storage.k8s.io/volumesnapshotcontent/name",
    "csi.storage.k8s.io/volumegroupsnapshot/name",
    "csi.storage.k8s.io/volumegroupsnapshot/namespace",
    "csi.storage.k8s.io/volumegroupsnapshotcontent/name",
];

/// Checks and parses the arguments of a request to create a volume.
pub(crate) fn parse_volume_arguments(
    request: &CreateRequest,
    source: Option<MemorySource>,
    settings: &MemorySettings,
) -> Result<VolumeArguments> {
    Ok(VolumeArguments {
        parameters: parse_parameters(&request.parameters, &[LABEL, CONDITION])?,
        mutable: parse_mutable_parameters(&request.mutable_parameters)?,
        capabilities: canonical_capabilities(&request.capabilities, settings)?,
        source,
    })
}

/// Parses class parameters.
pub(crate) fn parse_parameters(pairs: &KeyValues, known: &[&str]) -> Result<BTreeMap<String, String>> {
    let parameters = parse_pairs("the parameters", pairs)?;
    for (key, value) in &parameters {
        if METADATA_KEYS.contains(&key.as_str()) {
            continue;
        }
        match (key.as_str(), known.contains(&key.as_str())) {
            (LABEL, true) => check_label(value)?,
            (CONDITION, true) => {
                ConditionSetting::parse(value).map_err(|expected| {
                    StorageError::invalid_argument(format!(
                        "parameter {CONDITION:?} is {value:?}; {expected}"
                    ))
                })?;
            }
            _ => return Err(unknown_key_error("parameter", key, known)),
        }
    }
    Ok(parameters)
}

/// Parses mutable parameters.
pub(crate) fn parse_mutable_parameters(pairs: &KeyValues) -> Result<BTreeMap<String, String>> {
    let parameters = parse_pairs("the mutable parameters", pairs)?;
    for (key, value) in &parameters {
        match key.as_str() {
            LABEL => check_label(value)?,
            IOPS => {
                let valid = value.parse::<u32>().is_ok_and(|iops| (1..=1_000_000).contains(&iops));
                if !valid {
                    return Err(StorageError::invalid_argument(format!(
                        "mutable parameter {IOPS:?} is {value:?}; expected a number from 1 to 1000000"
                    )));
                }
            }
            _ => return Err(unknown_key_error("mutable parameter", key, &[IOPS, LABEL])),
        }
    }
    Ok(parameters)
}

fn check_label(value: &str) -> Result<()> {
    if value.len() <= MAX_LABEL {
        return Ok(());
    }
    Err(StorageError::invalid_argument(format!(
        "parameter {LABEL:?} has {} bytes; at most {MAX_LABEL} are allowed",
        value.len()
    )))
}

fn unknown_key_error(what: &str, key: &str, known: &[&str]) -> StorageError {
    let known: Vec<_> = known.iter().map(|known| format!("{known:?}")).collect();
    StorageError::invalid_argument(format!("unknown {what} {key:?}; known: {}", known.join(", ")))
}

/// Checks capabilities. Returns their canonical strings, sorted and without duplicates.
pub(crate) fn canonical_capabilities(
    capabilities: &[VolumeCapability],
    settings: &MemorySettings,
) -> Result<Vec<String>> {
    if capabilities.is_empty() {
        return Err(StorageError::invalid_argument("no volume capability was given; expected at least one"));
    }
    let mut lines = capabilities
        .iter()
        .map(|capability| canonical_capability(capability, settings))
        .collect::<Result<Vec<_>>>()?;
    lines.sort();
    lines.dedup();
    let bytes: usize = lines.iter().map(String::len).sum();
    if bytes > MAX_CAPABILITIES_BYTES {
        return Err(StorageError::invalid_argument(format!(
            "the volume capabilities have {bytes} bytes; at most {MAX_CAPABILITIES_BYTES} are allowed"
        )));
    }
    Ok(lines)
}

/// Checks a capability and returns its canonical string.
pub(crate) fn canonical_capability(
    capability: &VolumeCapability,
    settings: &MemorySettings,
) -> Result<String> {
    let needs_feature =
        matches!(capability.mode, AccessMode::SingleNodeSingleWriter | AccessMode::SingleNodeMultiWriter);
    if needs_feature && !settings.features.single_node_multi_writer {
        return Err(StorageError::invalid_argument(format!(
            "the access mode {} needs the feature `single-node-multi-writer`, which is switched off",
            capability.mode.as_str()
        )));
    }
    if let AccessType::Filesystem(access) = &capability.access {
        let flags: usize = access.mount_flags.iter().map(String::len).sum();
        if flags > MAX_MAP_BYTES {
            return Err(StorageError::invalid_argument(format!(
                "the mount flags have {flags} bytes; at most {MAX_MAP_BYTES} are allowed"
            )));
        }
        for (what, value) in
            [("the filesystem type", &access.fs_type), ("the mount group", &access.mount_group)]
        {
            value.as_ref().map_or(Ok(()), |value| check_text(what, value, MAX_NAME))?;
        }
    }
    Ok(capability.canonical_string())
}

/// Rejects an empty id.
pub(crate) fn require_id(what: &str, id: &str) -> Result<()> {
    if id.is_empty() {
        return Err(StorageError::invalid_argument(format!("no {what} was given")));
    }
    Ok(())
}

/// Checks a name and returns its handle.
pub(crate) fn handle_from_name(prefix: &str, what: &str, name: &str) -> Result<String> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(StorageError::invalid_argument(format!(
            "{what} {name:?} has {} bytes; expected 1 to {MAX_NAME} without control characters",
            name.len()
        )));
    }
    Ok(handle::from_name(prefix, name))
}

fn out_of_range<T>(range: CapacityRange, reason: &str) -> Result<T> {
    Err(StorageError::out_of_range(format!("{}: {reason}", range.describe())))
}

/// Chooses the size of a new volume, at least `source_size`.
pub(crate) fn choose_size(range: CapacityRange, source_size: Option<u64>) -> Result<u64> {
    if range.required_bytes == Some(0) || range.limit_bytes == Some(0) {
        return out_of_range(range, "a volume has at least 1 byte");
    }
    match source_size {
        Some(source_size) if range.required_bytes.is_some_and(|required| required < source_size) => {
            out_of_range(range, &format!("expected at least {source_size} bytes, the size of its source"))
        }
        _ => SIZES.choose(&CapacityRange { required_bytes: range.required_bytes.or(source_size), ..range }),
    }
}

/// Chooses the size of an expanded volume. Returns `now` if that is large enough.
pub(crate) fn choose_expanded_size(range: CapacityRange, now: u64) -> Result<u64> {
    if range.required_bytes.is_none() && range.limit_bytes.is_none() {
        return Err(StorageError::invalid_argument("no size was given; expected a bound at least"));
    }
    Ok(SIZES.grow(&range, now)?.unwrap_or(now))
}
