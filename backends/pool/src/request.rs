//! Validation of requests, and the choice of handles and sizes: pure functions.

use std::{collections::BTreeMap, fmt};

use cofferdam_guest::{
    AccessMode, AccessType, CapacityRange, CreateRequest, KeyValues, Result, StorageError, VolumeCapability,
    pool::CopyMode, sizes::Sizes, to_map,
};
use serde::{Deserialize, Serialize};

/// Size in bytes of a volume without a source whose request has no required size, as in many CSI drivers. A
/// smaller limit of the request takes its place.
const DEFAULT_SIZE: u64 = 1 << 30;
/// Maximum volume size: far above any disk, and small enough that sums fit into a `u64`.
const MAX_SIZE: u64 = 1 << 50;
/// Image sizes are multiples of this number of bytes.
const BLOCK: u64 = 4_096;
/// CSI's limit for names and ids, in bytes.
pub(crate) const MAX_NAME: usize = 128;
/// Parameter for the kind of a volume.
pub(crate) const KIND: &str = "kind";
/// Parameter for the consistency of copies.
pub(crate) const CONSISTENCY: &str = "consistency";
/// Parameters that external-provisioner adds with `--extra-create-metadata`. They are accepted, and must be
/// equal in repeated requests for a volume. Nothing else uses them.
const METADATA_KEYS: [&str; 3] =
    ["csi.storage.k8s.io/pvc/name", "csi.storage.k8s.io/pvc/namespace", "csi.storage.k8s.io/pv/name"];
/// Parameters that external-snapshotter adds with `--extra-create-metadata`. They are accepted and not used.
const SNAPSHOT_METADATA_KEYS: [&str; 3] = [
    "csi.storage.k8s.io/volumesnapshot/name",
    "csi.storage.k8s.io/volumesnapshot/namespace",
    "csi.storage.k8s.io/volumesnapshotcontent/name",
];

/// The kind of the item of a volume or a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum VolumeKind {
    /// A directory. Its size is not enforced.
    Directory,
    /// A file that is used as a block device.
    Image,
}

impl VolumeKind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Image => "image",
        }
    }
}

/// Required consistency of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Consistency {
    /// Crash-consistent: the content at one point in time, as after a power loss.
    Crash,
    /// Consistent only if the source is not written during the copy.
    None,
}

impl Consistency {
    pub(crate) const fn copy_mode(self) -> CopyMode {
        match self {
            Self::Crash => CopyMode::PointInTime,
            Self::None => CopyMode::NotAtomic,
        }
    }

    /// The default for a kind. Directories support no other value.
    pub(crate) const fn default_for(kind: VolumeKind) -> Self {
        match kind {
            VolumeKind::Directory => Self::None,
            VolumeKind::Image => Self::Crash,
        }
    }
}

/// Arguments of a volume that must be equal in repeated requests for a name; empty for snapshots. The name
/// and the source are compared separately, and the volume's size must be in the requested range. The topology
/// and the owner are not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeArguments {
    /// The class parameters.
    pub(crate) parameters: BTreeMap<String, String>,
    /// All capability strings, sorted.
    pub(crate) capabilities: Vec<String>,
}

/// Parsed arguments and the allowed kinds, the default first.
#[derive(Clone, Debug)]
pub(crate) struct ParsedRequest {
    pub(crate) arguments: VolumeArguments,
    /// The parameter `consistency`, if the class sets it.
    pub(crate) consistency: Option<Consistency>,
    kinds: Vec<VolumeKind>,
}

/// Checks and parses a request to create a volume.
pub(crate) fn parse_request(request: &CreateRequest) -> Result<ParsedRequest> {
    reject_mutable_parameters(&request.mutable_parameters)?;
    let parameters = to_map(request.parameters.clone());
    let capabilities = canonical_capabilities(&request.capabilities)?;
    check_single_node(&request.capabilities)
        .map_err(|error| StorageError::invalid_argument(error.to_string()))?;
    let kinds = allowed_kinds(&request.capabilities, &parameters)?;
    let consistency = parse_consistency(&parameters)?;
    Ok(ParsedRequest { arguments: VolumeArguments { parameters, capabilities }, consistency, kinds })
}

/// Rejects mutable parameters; the driver has none.
pub(crate) fn reject_mutable_parameters(parameters: &KeyValues) -> Result<()> {
    match parameters.first() {
        Some((key, _)) => {
            Err(StorageError::invalid_argument(format!("mutable parameter {key:?}: this driver has none")))
        }
        None => Ok(()),
    }
}

fn parse_consistency(parameters: &BTreeMap<String, String>) -> Result<Option<Consistency>> {
    match parameters.get(CONSISTENCY).map(String::as_str) {
        Some("crash") => Ok(Some(Consistency::Crash)),
        Some("none") => Ok(Some(Consistency::None)),
        Some(other) => Err(StorageError::invalid_argument(format!(
            "parameter {CONSISTENCY:?} is {other:?}; expected \"crash\" or \"none\""
        ))),
        None => Ok(None),
    }
}

impl ParsedRequest {
    /// The kind of a new volume without a source.
    pub(crate) fn kind(&self) -> VolumeKind {
        self.kinds.first().copied().unwrap_or(VolumeKind::Directory)
    }

    /// The kind of a copy, which is the kind of its source.
    pub(crate) fn kind_of_copy(&self, source: VolumeKind) -> Result<VolumeKind> {
        if self.kinds.contains(&source) {
            return Ok(source);
        }
        let source = source.as_str();
        Err(StorageError::invalid_argument(format!(
            "the source is of kind {source}, and so is a copy; expected a volume of kind {}",
            self.kind().as_str()
        )))
    }
}

/// The kinds that a request allows, the default first.
pub(crate) fn allowed_kinds(
    capabilities: &[VolumeCapability],
    parameters: &BTreeMap<String, String>,
) -> Result<Vec<VolumeKind>> {
    let known = |key: &str| [KIND, CONSISTENCY].contains(&key) || METADATA_KEYS.contains(&key);
    if let Some(key) = parameters.keys().find(|key| !known(key)) {
        return Err(StorageError::invalid_argument(format!(
            "unknown parameter {key:?}; known are {KIND:?} and {CONSISTENCY:?}"
        )));
    }
    parse_consistency(parameters)?;
    let block = capabilities.iter().any(|capability| matches!(capability.access, AccessType::Block));
    match parameters.get(KIND).map(String::as_str) {
        Some("image") => Ok(vec![VolumeKind::Image]),
        Some("directory") if block => Err(StorageError::invalid_argument(format!(
            "parameter {KIND:?} is \"directory\"; a block volume is of kind \"image\""
        ))),
        Some("directory") => Ok(vec![VolumeKind::Directory]),
        Some(other) => Err(StorageError::invalid_argument(format!(
            "parameter {KIND:?} is {other:?}; expected \"directory\" or \"image\""
        ))),
        None if block => Ok(vec![VolumeKind::Image]),
        None => Ok(vec![VolumeKind::Directory, VolumeKind::Image]),
    }
}

/// Parses the parameters of a snapshot class and returns the consistency.
pub(crate) fn parse_snapshot_parameters(parameters: KeyValues) -> Result<Option<Consistency>> {
    let parameters = to_map(parameters);
    let known = |key: &str| key == CONSISTENCY || SNAPSHOT_METADATA_KEYS.contains(&key);
    match parameters.keys().find(|key| !known(key)) {
        Some(key) => Err(StorageError::invalid_argument(format!(
            "unknown parameter {key:?}; of snapshots, {CONSISTENCY:?} is known"
        ))),
        None => parse_consistency(&parameters),
    }
}

/// The canonical strings of capabilities, sorted and without duplicates.
pub(crate) fn canonical_capabilities(capabilities: &[VolumeCapability]) -> Result<Vec<String>> {
    if capabilities.is_empty() {
        return Err(StorageError::invalid_argument("no volume capability was given; expected at least one"));
    }
    let mut lines: Vec<_> = capabilities.iter().map(canonical_capability).collect();
    lines.sort();
    lines.dedup();
    Ok(lines)
}

/// An access mode for several nodes, which node-local storage does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MultiNodeMode(AccessMode);

impl fmt::Display for MultiNodeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "access mode {}: this storage is in one node only", self.0.as_str())
    }
}

/// Rejects capabilities that node-local storage does not support.
pub(crate) fn check_single_node(capabilities: &[VolumeCapability]) -> std::result::Result<(), MultiNodeMode> {
    match capabilities.iter().map(|capability| capability.mode).find(|mode| mode.is_multi_node()) {
        Some(mode) => Err(MultiNodeMode(mode)),
        None => Ok(()),
    }
}

fn canonical_capability(capability: &VolumeCapability) -> String {
    let mode = capability.mode.as_str();
    match &capability.access {
        AccessType::Block => format!("{mode} block"),
        AccessType::Filesystem(access) => {
            format!(
                "{mode} filesystem {:?} {:?} {:?}",
                access.fs_type, access.mount_flags, access.mount_group
            )
        }
    }
}

/// Checks a name and returns its deterministic handle, a prefix of the item names in the pool. The handle
/// contains the name if that is short enough, has only letters, digits, `-`, `_` and `.`, and does not look
/// like a digest. Otherwise it contains a digest of the name.
pub(crate) fn handle_from_name(prefix: &str, name: &str) -> Result<String> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(StorageError::invalid_argument(format!(
            "the name {name:?} has {} bytes; expected 1 to {MAX_NAME} without control characters",
            name.len()
        )));
    }
    let readable = format!("{prefix}-{name}");
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let digest = format!("{prefix}-fnv-");
    if readable.len() <= MAX_NAME && readable.bytes().all(is_allowed) && !readable.starts_with(&digest) {
        return Ok(readable);
    }
    // Digests may collide. The record contains the name, so a colliding request fails with `already_exists`.
    Ok(format!("{digest}{:032x}", fnv1a(name.as_bytes())))
}

/// FNV-1a with 128 bits, with the published offset basis and prime.
fn fnv1a(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// Chooses the size of a volume, at least `source_size` for a copy.
pub(crate) fn choose_size(range: CapacityRange, kind: VolumeKind, source_size: Option<u64>) -> Result<u64> {
    let out_of_range = |reason: &str| {
        let show =
            |bound: Option<u64>| bound.map_or_else(|| "open".to_owned(), |bytes| format!("{bytes} bytes"));
        Err(StorageError::out_of_range(format!(
            "size at least {}, at most {}: {reason}",
            show(range.required_bytes),
            show(range.limit_bytes)
        )))
    };
    let limit = range.limit_bytes.unwrap_or(MAX_SIZE);
    let required = range.required_bytes.unwrap_or(source_size.unwrap_or(DEFAULT_SIZE.min(limit)));
    if required == 0 || limit == 0 {
        return out_of_range("a volume has at least 1 byte");
    }
    if required > limit && range.limit_bytes.is_some() {
        return out_of_range("no size is in this range");
    }
    if source_size.is_some_and(|source_size| required < source_size) {
        return out_of_range(&format!("the source has {} bytes", source_size.unwrap_or_default()));
    }
    if required > MAX_SIZE {
        return out_of_range("a volume has at most 1 PiB");
    }
    let size = match kind {
        VolumeKind::Directory => required,
        VolumeKind::Image => required.next_multiple_of(BLOCK),
    };
    if size > limit { out_of_range("an image is a multiple of 4096 bytes") } else { Ok(size) }
}

/// Chooses the size of a volume, which is a copy if it has a `source`: the recorded and the actual size of
/// the source, in bytes. A request for at least the recorded size is valid, and its result is raised to the
/// actual size.
pub(crate) fn choose_copy_size(
    range: CapacityRange,
    kind: VolumeKind,
    source: Option<(u64, u64)>,
) -> Result<u64> {
    let Some((recorded, actual)) = source else { return choose_size(range, kind, None) };
    let size = choose_size(range, kind, Some(recorded))?.max(actual);
    if is_size_in_range(size, range) {
        return Ok(size);
    }
    Err(StorageError::out_of_range(format!("{}: the source has {actual} bytes", range.describe())))
}

/// The size to which a volume must be expanded, or `None` if it is large enough.
pub(crate) fn choose_expanded_size(
    range: CapacityRange,
    kind: VolumeKind,
    current: u64,
) -> Result<Option<u64>> {
    let sizes = Sizes::between(1, MAX_SIZE);
    match kind {
        VolumeKind::Directory => sizes.grow(&range, current),
        VolumeKind::Image => sizes.in_steps_of(BLOCK).grow(&range, current),
    }
}

/// Returns true if a size satisfies the range.
pub(crate) fn is_size_in_range(size: u64, range: CapacityRange) -> bool {
    range.required_bytes.is_none_or(|required| size >= required)
        && range.limit_bytes.is_none_or(|limit| size <= limit)
}
