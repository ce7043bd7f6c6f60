//! What requests ask for, checked: pure functions of the request.

use std::collections::BTreeMap;

use cofferdam_guest::{
    AccessMode, AccessType, CapacityRange, CreateRequest, KeyValues, Result, StorageError, VolumeCapability,
};

use crate::{
    records::{Shape, Source},
    settings::{Condition, Settings},
};

/// Size when the request leaves it open, as CSI drivers commonly choose.
const DEFAULT_SIZE: u64 = 1 << 30;
/// Largest volume: far above any real one, far below where sums of 10,000 volumes leave a `u64`.
pub(crate) const MAX_SIZE: u64 = 1 << 50;
/// CSI's limit for names, ids and other texts, in bytes.
const MAX_NAME: usize = 128;
/// Longest handle that this backend makes, in bytes.
pub(crate) const MAX_HANDLE: usize = MAX_NAME;
/// CSI's limit for the id of a node, in bytes.
pub(crate) const MAX_NODE: usize = 256;
/// Longest name of an object in Kubernetes, in bytes.
pub(crate) const MAX_OBJECT_NAME: usize = 253;
/// CSI's limit for maps, and for mount flags, in bytes.
const MAX_MAP: usize = 4 << 10;
/// Most bytes of all ways of use of one volume, written out; beside the rest they fit in one value of the state.
const MAX_USES: usize = 16 << 10;
/// A text that a volume carries: in its context as a parameter of the class, and changeable as a mutable parameter.
pub(crate) const LABEL: &str = "label";
/// The condition that a volume pretends to have.
pub(crate) const CONDITION: &str = "condition";
/// Operations per second: kept, and nothing else.
const IOPS: &str = "iops";
/// Longest label in bytes, as Kubernetes bounds its own.
const MAX_LABEL: usize = 63;
/// What stands in a way of use that needs a filesystem.
pub(crate) const FILESYSTEM: &str = " filesystem ";
/// What stands in a way of use as a raw device.
pub(crate) const BLOCK: &str = " block";
/// What external-provisioner and external-snapshotter add to the parameters when they are told to
/// (`--extra-create-metadata`); accepted, not used.
const METADATA: [&str; 9] = [
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

/// Reads a request's shape.
pub(crate) fn shape(request: &CreateRequest, source: Option<Source>, settings: &Settings) -> Result<Shape> {
    Ok(Shape {
        parameters: parameters(&request.parameters, &[LABEL, CONDITION])?,
        mutable: mutable(&request.mutable_parameters)?,
        uses: uses(&request.capabilities, settings)?,
        source,
    })
}

/// Reads pairs; a key that occurs twice, and more than CSI allows, is refused.
pub(crate) fn map(what: &str, pairs: &KeyValues) -> Result<BTreeMap<String, String>> {
    let bytes: usize = pairs.iter().map(|(key, value)| key.len().saturating_add(value.len())).sum();
    if bytes > MAX_MAP {
        return Err(StorageError::invalid_argument(format!(
            "{what} have {bytes} bytes; at most {MAX_MAP} are allowed"
        )));
    }
    let mut map = BTreeMap::new();
    for (key, value) in pairs {
        if map.insert(key.clone(), value.clone()).is_some() {
            return Err(StorageError::invalid_argument(format!("{what} have the key {key:?} twice")));
        }
    }
    Ok(map)
}

/// Reads the parameters of a class.
pub(crate) fn parameters(pairs: &KeyValues, known: &[&str]) -> Result<BTreeMap<String, String>> {
    let parameters = map("the parameters", pairs)?;
    for (key, value) in &parameters {
        if METADATA.contains(&key.as_str()) {
            continue;
        }
        match (key.as_str(), known.contains(&key.as_str())) {
            (LABEL, true) => label(value)?,
            (CONDITION, true) => {
                Condition::parse(value).map_err(|expected| {
                    StorageError::invalid_argument(format!(
                        "parameter {CONDITION:?} is {value:?}; {expected}"
                    ))
                })?;
            }
            _ => return Err(unknown("parameter", key, known)),
        }
    }
    Ok(parameters)
}

/// Reads mutable parameters.
pub(crate) fn mutable(pairs: &KeyValues) -> Result<BTreeMap<String, String>> {
    let parameters = map("the mutable parameters", pairs)?;
    for (key, value) in &parameters {
        match key.as_str() {
            LABEL => label(value)?,
            IOPS => {
                let valid = value.parse::<u32>().is_ok_and(|iops| (1..=1_000_000).contains(&iops));
                if !valid {
                    return Err(StorageError::invalid_argument(format!(
                        "mutable parameter {IOPS:?} is {value:?}; expected a number from 1 to 1000000"
                    )));
                }
            }
            _ => return Err(unknown("mutable parameter", key, &[IOPS, LABEL])),
        }
    }
    Ok(parameters)
}

fn label(value: &str) -> Result<()> {
    if value.len() <= MAX_LABEL {
        return Ok(());
    }
    Err(StorageError::invalid_argument(format!(
        "parameter {LABEL:?} has {} bytes; at most {MAX_LABEL} are allowed",
        value.len()
    )))
}

fn unknown(what: &str, key: &str, known: &[&str]) -> StorageError {
    let known: Vec<_> = known.iter().map(|known| format!("{known:?}")).collect();
    StorageError::invalid_argument(format!("unknown {what} {key:?}; known: {}", known.join(", ")))
}

/// Writes ways of use out, sorted.
pub(crate) fn uses(capabilities: &[VolumeCapability], settings: &Settings) -> Result<Vec<String>> {
    if capabilities.is_empty() {
        return Err(StorageError::invalid_argument("no volume capability was given; expected at least one"));
    }
    let mut uses =
        capabilities.iter().map(|capability| using(capability, settings)).collect::<Result<Vec<_>>>()?;
    uses.sort();
    uses.dedup();
    let bytes: usize = uses.iter().map(String::len).sum();
    if bytes > MAX_USES {
        return Err(StorageError::invalid_argument(format!(
            "the volume capabilities have {bytes} bytes; at most {MAX_USES} are allowed"
        )));
    }
    Ok(uses)
}

/// Writes a capability out.
pub(crate) fn using(capability: &VolumeCapability, settings: &Settings) -> Result<String> {
    let fine =
        matches!(capability.mode, AccessMode::SingleNodeSingleWriter | AccessMode::SingleNodeMultiWriter);
    if fine && !settings.features.single_node_multi_writer {
        return Err(StorageError::invalid_argument(format!(
            "the access mode {} needs the feature `single-node-multi-writer`, which is switched off",
            mode(capability.mode)
        )));
    }
    let mode = mode(capability.mode);
    match &capability.access {
        AccessType::Block => Ok(format!("{mode}{BLOCK}")),
        AccessType::Filesystem(access) => {
            let flags: usize = access.mount_flags.iter().map(String::len).sum();
            if flags > MAX_MAP {
                return Err(StorageError::invalid_argument(format!(
                    "the mount flags have {flags} bytes; at most {MAX_MAP} are allowed"
                )));
            }
            for (what, value) in
                [("the filesystem type", &access.fs_type), ("the mount group", &access.mount_group)]
            {
                value.as_ref().map_or(Ok(()), |value| text(what, value, MAX_NAME))?;
            }
            Ok(format!(
                "{mode}{FILESYSTEM}{:?} {:?} {:?}",
                access.fs_type, access.mount_flags, access.mount_group
            ))
        }
    }
}

/// A mode as the contract spells it.
pub(crate) const fn mode(mode: AccessMode) -> &'static str {
    match mode {
        AccessMode::SingleNodeWriter => "single-node-writer",
        AccessMode::SingleNodeReaderOnly => "single-node-reader-only",
        AccessMode::MultiNodeReaderOnly => "multi-node-reader-only",
        AccessMode::MultiNodeSingleWriter => "multi-node-single-writer",
        AccessMode::MultiNodeMultiWriter => "multi-node-multi-writer",
        AccessMode::SingleNodeSingleWriter => "single-node-single-writer",
        AccessMode::SingleNodeMultiWriter => "single-node-multi-writer",
    }
}

/// Refuses a text that is too long or has control characters.
pub(crate) fn text(what: &str, text: &str, most: usize) -> Result<()> {
    if text.len() > most || text.chars().any(char::is_control) {
        return Err(StorageError::invalid_argument(format!(
            "{what} {text:?} has {} bytes; expected at most {most} without control characters",
            text.len()
        )));
    }
    Ok(())
}

/// Refuses an id that was not given.
pub(crate) fn given(what: &str, id: &str) -> Result<()> {
    if id.is_empty() {
        return Err(StorageError::invalid_argument(format!("no {what} was given")));
    }
    Ok(())
}

/// Checks a name and makes a handle of it: readable while that fits, the same for the same name.
pub(crate) fn handle(prefix: &str, what: &str, name: &str) -> Result<String> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(StorageError::invalid_argument(format!(
            "{what} {name:?} has {} bytes; expected 1 to {MAX_NAME} without control characters",
            name.len()
        )));
    }
    let readable = format!("{prefix}-{name}");
    if readable.len() <= MAX_HANDLE {
        return Ok(readable);
    }
    // Two names may share a digest: what is kept knows its name, and a stranger is refused as existing already.
    Ok(format!("{prefix}-fnv-{:032x}", fnv1a(name.as_bytes())))
}

/// FNV-1a with 128 bits: offset basis and prime as its authors published them.
pub(crate) fn fnv1a(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// The lower half of [`fnv1a`].
pub(crate) fn short_digest(bytes: &[u8]) -> u64 {
    u64::try_from(fnv1a(bytes) & u128::from(u64::MAX)).unwrap_or_default()
}

fn refused<T>(range: CapacityRange, why: &str) -> Result<T> {
    let show = |bound: Option<u64>| bound.map_or_else(|| "open".to_owned(), |bytes| format!("{bytes} bytes"));
    Err(StorageError::out_of_range(format!(
        "size at least {}, at most {}: {why}",
        show(range.required_bytes),
        show(range.limit_bytes)
    )))
}

/// Chooses the size of a new volume. What it is made of has `least` bytes.
pub(crate) fn size(range: CapacityRange, least: Option<u64>) -> Result<u64> {
    let limit = range.limit_bytes.unwrap_or(MAX_SIZE);
    let required = range.required_bytes.unwrap_or_else(|| least.unwrap_or(DEFAULT_SIZE.min(limit)));
    if required == 0 || limit == 0 {
        return refused(range, "a volume has at least 1 byte");
    }
    if required > limit && range.limit_bytes.is_some() {
        return refused(range, "no size is in this range");
    }
    if required > MAX_SIZE {
        return refused(range, "a volume has at most 1 PiB");
    }
    match least {
        Some(least) if required < least => refused(range, &format!("its source has {least} bytes")),
        _ => Ok(required),
    }
}

/// Chooses the size of a volume that shall grow from `now`; as large as now when that is enough.
pub(crate) fn grown(range: CapacityRange, now: u64) -> Result<u64> {
    if range.required_bytes.is_none() && range.limit_bytes.is_none() {
        return Err(StorageError::invalid_argument("no size was given; expected a bound at least"));
    }
    let size = range.required_bytes.unwrap_or_default().max(now);
    if range.limit_bytes.is_some_and(|limit| size > limit) {
        return refused(
            range,
            &format!("no size is in this range that is not below the present {now} bytes"),
        );
    }
    if size > MAX_SIZE {
        return refused(range, "a volume has at most 1 PiB");
    }
    Ok(size)
}

/// Whether a volume of this size is what a range asks for.
pub(crate) fn fits(size: u64, range: CapacityRange) -> bool {
    range.required_bytes.is_none_or(|required| size >= required)
        && range.limit_bytes.is_none_or(|limit| size <= limit)
}
