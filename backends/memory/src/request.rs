//! What a CreateVolume asks for, checked: pure functions of the request.

use std::collections::BTreeMap;

use cofferdam_guest::{
    AccessMode, AccessType, CapacityRange, CreateRequest, KeyValues, Result, StorageError, VolumeCapability,
    to_map,
};
use serde::{Deserialize, Serialize};

/// Size when the request leaves it open, as CSI drivers commonly choose.
const DEFAULT_SIZE: u64 = 1 << 30;
/// Largest volume: far above any real one, far below where sums of 10,000 volumes leave a `u64`.
pub(crate) const MAX_SIZE: u64 = 1 << 50;
/// CSI's limit for names and ids, in bytes.
const MAX_NAME: usize = 128;
/// Longest handle that this backend makes, in bytes.
pub(crate) const MAX_HANDLE: usize = MAX_NAME;
/// The only parameter that changes a volume.
pub(crate) const LABEL: &str = "label";
/// Longest label in bytes, as Kubernetes bounds its own.
const MAX_LABEL: usize = 63;
/// What external-provisioner adds to the parameters when it is told to (`--extra-create-metadata`); accepted, not used.
const METADATA: [&str; 3] =
    ["csi.storage.k8s.io/pvc/name", "csi.storage.k8s.io/pvc/namespace", "csi.storage.k8s.io/pv/name"];

/// What makes two requests of one name the same: everything but the size, of which a range is asked, and the owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// The parameters of the class.
    pub(crate) parameters: BTreeMap<String, String>,
    /// Every way of use, written out, sorted.
    pub(crate) uses: Vec<String>,
}

/// Reads a request's shape.
pub(crate) fn shape(request: &CreateRequest) -> Result<Shape> {
    let parameters = parameters(request.parameters.clone())?;
    if let Some((key, _)) = request.mutable_parameters.first() {
        return Err(StorageError::invalid_argument(format!(
            "mutable parameter {key:?}: this driver has none"
        )));
    }
    Ok(Shape { parameters, uses: uses(&request.capabilities)? })
}

fn parameters(pairs: KeyValues) -> Result<BTreeMap<String, String>> {
    let parameters = to_map(pairs);
    for (key, value) in &parameters {
        if key == LABEL {
            if value.len() > MAX_LABEL {
                return Err(StorageError::invalid_argument(format!(
                    "parameter {LABEL:?} has {} bytes; at most {MAX_LABEL} are allowed",
                    value.len()
                )));
            }
        } else if !METADATA.contains(&key.as_str()) {
            return Err(StorageError::invalid_argument(format!(
                "unknown parameter {key:?}; known is {LABEL:?}"
            )));
        }
    }
    Ok(parameters)
}

pub(crate) fn uses(capabilities: &[VolumeCapability]) -> Result<Vec<String>> {
    if capabilities.is_empty() {
        return Err(StorageError::invalid_argument("no volume capability was given; expected at least one"));
    }
    let mut uses: Vec<_> = capabilities.iter().map(describe).collect();
    uses.sort();
    uses.dedup();
    Ok(uses)
}

/// Writes a capability out.
fn describe(capability: &VolumeCapability) -> String {
    let mode = match capability.mode {
        AccessMode::SingleNodeWriter => "single-node-writer",
        AccessMode::SingleNodeReaderOnly => "single-node-reader-only",
        AccessMode::MultiNodeReaderOnly => "multi-node-reader-only",
        AccessMode::MultiNodeSingleWriter => "multi-node-single-writer",
        AccessMode::MultiNodeMultiWriter => "multi-node-multi-writer",
        AccessMode::SingleNodeSingleWriter => "single-node-single-writer",
        AccessMode::SingleNodeMultiWriter => "single-node-multi-writer",
    };
    match &capability.access {
        AccessType::Block => format!("{mode} block"),
        AccessType::Filesystem(access) => format!(
            "{mode} filesystem {:?} {:?} {:?}",
            access.fs_type, access.mount_flags, access.mount_group
        ),
    }
}

/// Checks a volume's name and makes its handle: readable while that fits, the same for the same name.
pub(crate) fn handle(name: &str) -> Result<String> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(StorageError::invalid_argument(format!(
            "volume name {name:?} has {} bytes; expected 1 to {MAX_NAME} without control characters",
            name.len()
        )));
    }
    let readable = format!("mem-{name}");
    if readable.len() <= MAX_NAME {
        return Ok(readable);
    }
    // Two names may share a digest: the volume keeps its name, and a stranger is refused as an existing volume.
    Ok(format!("mem-fnv-{:032x}", fnv1a(name.as_bytes())))
}

/// FNV-1a with 128 bits: offset basis and prime as its authors published them.
fn fnv1a(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// Chooses the size of a new volume.
pub(crate) fn size(range: CapacityRange) -> Result<u64> {
    let refused = |why: &str| {
        let show =
            |bound: Option<u64>| bound.map_or_else(|| "open".to_owned(), |bytes| format!("{bytes} bytes"));
        Err(StorageError::out_of_range(format!(
            "size at least {}, at most {}: {why}",
            show(range.required_bytes),
            show(range.limit_bytes)
        )))
    };
    let limit = range.limit_bytes.unwrap_or(MAX_SIZE);
    let required = range.required_bytes.unwrap_or(DEFAULT_SIZE.min(limit));
    if required == 0 || limit == 0 {
        return refused("a volume has at least 1 byte");
    }
    if required > limit && range.limit_bytes.is_some() {
        return refused("no size is in this range");
    }
    if required > MAX_SIZE {
        return refused("a volume has at most 1 PiB");
    }
    Ok(required)
}

/// Whether a volume of this size is what a range asks for.
pub(crate) fn fits(size: u64, range: CapacityRange) -> bool {
    range.required_bytes.is_none_or(|required| size >= required)
        && range.limit_bytes.is_none_or(|limit| size <= limit)
}
