//! What a call asks for, checked: pure functions of the request.

use std::collections::BTreeMap;

use cofferdam_guest::{
    AccessType, CapacityRange, CreateRequest, KeyValues, Result, StorageError, VolumeCapability,
    pool::CopyMode, sizes::Sizes, to_map,
};
use serde::{Deserialize, Serialize};

/// Size when the request leaves it open, as CSI drivers commonly choose.
const DEFAULT_SIZE: u64 = 1 << 30;
/// Largest volume: far above any disk, far below where sums leave a `u64`.
const MAX_SIZE: u64 = 1 << 50;
/// What an image's size is a multiple of.
const BLOCK: u64 = 4_096;
/// CSI's limit for names and ids, in bytes.
pub(crate) const MAX_NAME: usize = 128;
/// The parameter that chooses what a volume is.
pub(crate) const KIND: &str = "kind";
/// The parameter that chooses what a copy has to be.
pub(crate) const CONSISTENCY: &str = "consistency";
/// What external-provisioner adds to the parameters when it is told to (`--extra-create-metadata`); accepted,
/// not used.
const METADATA_KEYS: [&str; 3] =
    ["csi.storage.k8s.io/pvc/name", "csi.storage.k8s.io/pvc/namespace", "csi.storage.k8s.io/pv/name"];
/// The same for snapshots.
const SNAPSHOT_METADATA_KEYS: [&str; 3] = [
    "csi.storage.k8s.io/volumesnapshot/name",
    "csi.storage.k8s.io/volumesnapshot/namespace",
    "csi.storage.k8s.io/volumesnapshotcontent/name",
];

/// What a volume is in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum VolumeKind {
    /// A directory, whose size is not enforced.
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

/// What a copy has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Consistency {
    /// What a loss of power at one moment would have left.
    Crash,
    /// Right while nothing writes to the source.
    None,
}

impl Consistency {
    pub(crate) const fn copy_mode(self) -> CopyMode {
        match self {
            Self::Crash => CopyMode::OneMoment,
            Self::None => CopyMode::AsRead,
        }
    }

    /// What a copy of a kind is when its class leaves it open. Nothing can give a directory more.
    pub(crate) const fn default_for(kind: VolumeKind) -> Self {
        match kind {
            VolumeKind::Directory => Self::None,
            VolumeKind::Image => Self::Crash,
        }
    }
}

/// What makes two requests of one name the same: everything but the size, of which a range is asked, and the
/// owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeArguments {
    /// The parameters of the class.
    pub(crate) parameters: BTreeMap<String, String>,
    /// Every way of use, written out, sorted.
    pub(crate) capabilities: Vec<String>,
}

/// A request's shape and the kinds that fit it, the default first.
#[derive(Clone, Debug)]
pub(crate) struct ParsedRequest {
    pub(crate) arguments: VolumeArguments,
    /// What a copy has to be, if the class says it.
    pub(crate) consistency: Option<Consistency>,
    kinds: Vec<VolumeKind>,
}

/// Reads a request.
pub(crate) fn parse_request(request: &CreateRequest) -> Result<ParsedRequest> {
    reject_mutable_parameters(&request.mutable_parameters)?;
    let parameters = to_map(request.parameters.clone());
    let capabilities = canonical_capabilities(&request.capabilities)?;
    check_single_node(&request.capabilities).map_err(StorageError::invalid_argument)?;
    let kinds = allowed_kinds(&request.capabilities, &parameters)?;
    let consistency = parse_consistency(&parameters)?;
    Ok(ParsedRequest { arguments: VolumeArguments { parameters, capabilities }, consistency, kinds })
}

/// Refuses parameters that may change: there are none.
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
    /// The kind of a new volume.
    pub(crate) fn kind(&self) -> VolumeKind {
        self.kinds.first().copied().unwrap_or(VolumeKind::Directory)
    }

    /// The kind of a copy, which is its source's.
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

/// The kinds that a request can mean, the default first.
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

/// Reads the parameters of a class of snapshots: what a snapshot has to be.
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

/// Every way of use, written out.
pub(crate) fn canonical_capabilities(capabilities: &[VolumeCapability]) -> Result<Vec<String>> {
    if capabilities.is_empty() {
        return Err(StorageError::invalid_argument("no volume capability was given; expected at least one"));
    }
    let mut lines: Vec<_> = capabilities.iter().map(canonical_capability).collect();
    lines.sort();
    lines.dedup();
    Ok(lines)
}

/// Refuses what storage of one node cannot be.
pub(crate) fn check_single_node(capabilities: &[VolumeCapability]) -> std::result::Result<(), String> {
    match capabilities.iter().map(|capability| capability.mode).find(|mode| mode.is_multi_node()) {
        Some(mode) => Err(format!("access mode {}: this storage is in one node only", mode.as_str())),
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

/// Checks a name and makes its handle, which is the item's name in the pool too: readable while that fits,
/// the same for the same name.
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
    // Two names may share a digest: the record keeps the name, and a stranger is refused as an existing
    // volume.
    Ok(format!("{digest}{:032x}", fnv1a(name.as_bytes())))
}

/// FNV-1a with 128 bits: offset basis and prime as its authors published them.
fn fnv1a(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// Chooses the size of a volume that is at least `least` bytes large, which is the size of what it is a copy
/// of.
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

/// The same for a copy of something that says it has so many bytes, and really has so many. A copy has no
/// fewer than those; who asks for no fewer than the source says it has is not to blame for the difference.
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

/// The size that a volume shall grow to; `None` when it is large enough.
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

/// Whether a volume of this size is what a range asks for.
pub(crate) fn is_size_in_range(size: u64, range: CapacityRange) -> bool {
    range.required_bytes.is_none_or(|required| size >= required)
        && range.limit_bytes.is_none_or(|limit| size <= limit)
}
