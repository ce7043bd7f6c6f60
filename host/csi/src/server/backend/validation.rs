//! Validation of request fields against the CSI specification. A violation is `INVALID_ARGUMENT` and names
//! the field. Other codes are `UNIMPLEMENTED` for a call whose capability is not announced, `NOT_FOUND` for
//! an id that no object can have, and `ABORTED` for a page token that is too long.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
};

use cofferdam_backend::checks::{ResponseLimits, printable, total_bytes};
use cofferdam_domain::storage::{
    AccessType, CapacityRange, CsiAccessMode, PageRequest, Parameters, Secret, Secrets, Segments,
    TopologyRequirement, VolumeCapability,
    ability::{ControllerCapability, PluginCapability},
};
use tonic::Status;

use crate::v1::{
    self,
    volume_capability::{AccessType as CsiAccessType, access_mode::Mode},
};

/// CSI's limit for strings in bytes.
const MAX_TEXT_BYTES: usize = 128;
/// CSI's limit for node ids in bytes.
const MAX_NODE_ID_BYTES: usize = 256;
/// CSI's limit for the total size of a map or list in bytes.
const MAX_MAP_BYTES: usize = 4 << 10;
/// Limit for a volume context in bytes: the driver's attributes and the connection info.
const MAX_CONTEXT_BYTES: usize = 256 << 10;
/// Limit for secrets in bytes: Kubernetes's limit for a Secret. CSI's 4 KiB is too small for the keys and
/// certificates of some drivers.
const MAX_SECRETS_BYTES: usize = 1 << 20;
/// Maximum length of a page token in bytes.
const MAX_TOKEN_BYTES: usize = 4 << 10;

/// The announced capabilities of a backend, and the limits of the ids and maps in requests to it.
#[derive(Clone, Debug)]
pub(super) struct RequestValidator {
    pub(super) controller_capabilities: BTreeSet<ControllerCapability>,
    pub(super) plugin_capabilities: BTreeSet<PluginCapability>,
    /// True if volumes can be created from snapshots. CSI has no separate capability for it.
    pub(super) has_restoring: bool,
    /// True if the backend has the feature `volume-mount-group`.
    pub(super) has_mount_groups: bool,
    pub(super) limits: ResponseLimits,
}

pub(super) fn invalid_argument(message: impl Into<String>) -> Status {
    Status::invalid_argument(message)
}

/// A validated id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CheckedId<H> {
    /// An object may have this id.
    Valid(H),
    /// No object can have this id, because responses with such an id are rejected: it contains control
    /// characters, or is a volume's in the form of kubelet's inline volume handles. It is not passed to
    /// backends.
    NonExistent,
}

impl<H> CheckedId<H> {
    /// Returns the id, or `NOT_FOUND` for an id that cannot exist.
    pub(super) fn or_not_found(self, object: impl Display) -> Result<H, Status> {
        match self {
            Self::Valid(id) => Ok(id),
            Self::NonExistent => Err(Status::not_found(format!("the {object} does not exist"))),
        }
    }
}

/// Returns true if an id has the form of kubelet's inline volume handles.
fn is_inline_volume_id(id: &str) -> bool {
    let digest = id.strip_prefix("csi-");
    digest.is_some_and(|digest| digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Returns true for a control character that CSI forbids in names: all but tab and line breaks.
fn is_forbidden_char(c: char) -> bool {
    c.is_control() && !matches!(c, '\t' | '\n' | '\r')
}

fn check_length(field: &str, bytes: usize, max_bytes: usize) -> Result<(), Status> {
    if bytes > max_bytes {
        return Err(invalid_argument(format!("{field} has {bytes} bytes; expected at most {max_bytes}")));
    }
    Ok(())
}

fn check_required(field: &str, text: &str, max_bytes: usize) -> Result<(), Status> {
    if text.is_empty() {
        return Err(invalid_argument(format!("{field} is missing")));
    }
    check_length(field, text.len(), max_bytes)
}

impl RequestValidator {
    /// Returns true if a capability is announced.
    pub(super) fn has_capability(&self, capability: ControllerCapability) -> bool {
        self.controller_capabilities.contains(&capability)
    }

    /// Rejects a call whose capability is not announced.
    pub(super) fn require_capability(&self, capability: ControllerCapability) -> Result<(), Status> {
        match self.has_capability(capability) {
            true => Ok(()),
            false => Err(Status::unimplemented(format!("the driver has no {}", capability.as_str()))),
        }
    }

    /// Validates the id of a volume. An id in the form of kubelet's inline volume handles cannot exist.
    pub(super) fn volume_id<H: From<String>>(&self, field: &str, id: String) -> Result<CheckedId<H>, Status> {
        let is_inline = is_inline_volume_id(&id);
        Ok(match self.object_id(field, id)? {
            CheckedId::Valid(_) if is_inline => CheckedId::NonExistent,
            checked @ (CheckedId::Valid(_) | CheckedId::NonExistent) => checked,
        })
    }

    /// Validates the id of a snapshot or a group.
    pub(super) fn object_id<H: From<String>>(&self, field: &str, id: String) -> Result<CheckedId<H>, Status> {
        check_required(field, &id, self.limits.max_id_bytes)?;
        Ok(if id.contains(char::is_control) { CheckedId::NonExistent } else { CheckedId::Valid(H::from(id)) })
    }

    /// Parses a volume capability without checking that it is supported.
    pub(super) fn parse_capability(
        &self,
        capability: v1::VolumeCapability,
    ) -> Result<VolumeCapability, Status> {
        let mode_number = capability.access_mode.map(|mode| mode.mode).unwrap_or_default();
        let mode = access_mode(mode_number).ok_or_else(|| {
            invalid_argument(format!(
                "volume_capability.access_mode.mode is {mode_number}; expected one of CSI's modes, 1 to 7"
            ))
        })?;
        let access = match capability.access_type {
            None => {
                return Err(invalid_argument(
                    "volume_capability.access_type is missing; expected block or mount",
                ));
            }
            Some(CsiAccessType::Block(_)) => AccessType::Block,
            Some(CsiAccessType::Mount(mount)) => {
                check_length("fs_type", mount.fs_type.len(), MAX_TEXT_BYTES)?;
                check_length("mount_flags", mount.mount_flags.iter().map(String::len).sum(), MAX_MAP_BYTES)?;
                check_length("volume_mount_group", mount.volume_mount_group.len(), MAX_TEXT_BYTES)?;
                let filled = |text: String| (!text.is_empty()).then_some(text);
                AccessType::Filesystem {
                    fs_type: filled(mount.fs_type),
                    mount_flags: mount.mount_flags,
                    mount_group: filled(mount.volume_mount_group),
                }
            }
        };
        Ok(VolumeCapability { access_mode: mode, access_type: access })
    }

    /// Returns a capability that a volume capability requires and the driver does not announce; `None` if the
    /// driver announces all of them.
    pub(super) fn missing_capability(&self, capability: &VolumeCapability) -> Option<&'static str> {
        let is_single_node_writer_mode = matches!(
            capability.access_mode,
            CsiAccessMode::SingleNodeSingleWriter | CsiAccessMode::SingleNodeMultiWriter
        );
        if is_single_node_writer_mode && !self.has_capability(ControllerCapability::SingleNodeMultiWriter) {
            return Some("SINGLE_NODE_MULTI_WRITER");
        }
        let has_mount_group =
            matches!(&capability.access_type, AccessType::Filesystem { mount_group: Some(_), .. });
        (has_mount_group && !self.has_mount_groups).then_some("VOLUME_MOUNT_GROUP")
    }

    /// Parses a volume capability and checks that it is supported.
    pub(super) fn supported_capability(
        &self,
        message: v1::VolumeCapability,
    ) -> Result<VolumeCapability, Status> {
        let capability = self.parse_capability(message)?;
        match self.missing_capability(&capability) {
            None => Ok(capability),
            Some(missing) => Err(invalid_argument(format!(
                "volume_capability needs {missing}, which the driver does not announce"
            ))),
        }
    }

    /// Like [`Self::supported_capability`], for several.
    pub(super) fn supported_capabilities(
        &self,
        messages: Vec<v1::VolumeCapability>,
    ) -> Result<Vec<VolumeCapability>, Status> {
        messages.into_iter().map(|message| self.supported_capability(message)).collect()
    }

    /// Checks the size of a map of parameters, such as those of a StorageClass.
    pub(super) fn parameters(&self, field: &str, map: Parameters) -> Result<Parameters, Status> {
        check_length(field, total_bytes(&map), self.limits.max_map_bytes.max(MAX_MAP_BYTES))?;
        Ok(map)
    }

    /// Validates mutable parameters.
    pub(super) fn mutable_parameters(&self, map: Parameters) -> Result<Parameters, Status> {
        if !map.is_empty() && !self.has_capability(ControllerCapability::ModifyVolume) {
            return Err(invalid_argument(
                "mutable_parameters need MODIFY_VOLUME, which the driver does not announce",
            ));
        }
        self.parameters("mutable_parameters", map)
    }

    fn require_topology(&self, field: &str) -> Result<(), Status> {
        match self.plugin_capabilities.contains(&PluginCapability::AccessibilityConstraints) {
            true => Ok(()),
            false => Err(invalid_argument(format!(
                "{field} needs VOLUME_ACCESSIBILITY_CONSTRAINTS, which the driver does not announce"
            ))),
        }
    }

    /// Validates the topology requirement of a new volume.
    pub(super) fn topology_requirement(
        &self,
        requirement: Option<v1::TopologyRequirement>,
    ) -> Result<Option<TopologyRequirement>, Status> {
        const FIELD: &str = "accessibility_requirements";
        let Some(requirement) = requirement else { return Ok(None) };
        self.require_topology(FIELD)?;
        if requirement.requisite.is_empty() && requirement.preferred.is_empty() {
            return Err(invalid_argument(format!(
                "{FIELD} is empty; expected requisite or preferred topologies"
            )));
        }
        let topologies = |list: Vec<v1::Topology>| {
            list.into_iter().map(|topology| topology_segments(FIELD, topology)).collect::<Result<_, Status>>()
        };
        Ok(Some(TopologyRequirement {
            requisite: topologies(requirement.requisite)?,
            preferred: topologies(requirement.preferred)?,
        }))
    }

    /// Validates the topology of GetCapacity. An empty topology becomes `None`.
    pub(super) fn accessible_topology(
        &self,
        topology: Option<v1::Topology>,
    ) -> Result<Option<Segments>, Status> {
        const FIELD: &str = "accessible_topology";
        let Some(topology) = topology.filter(|requested| !requested.segments.is_empty()) else {
            return Ok(None);
        };
        self.require_topology(FIELD)?;
        topology_segments(FIELD, topology).map(Some)
    }
}

fn access_mode(number: i32) -> Option<CsiAccessMode> {
    match Mode::try_from(number) {
        Ok(Mode::SingleNodeWriter) => Some(CsiAccessMode::SingleNodeWriter),
        Ok(Mode::SingleNodeReaderOnly) => Some(CsiAccessMode::SingleNodeReaderOnly),
        Ok(Mode::MultiNodeReaderOnly) => Some(CsiAccessMode::MultiNodeReaderOnly),
        Ok(Mode::MultiNodeSingleWriter) => Some(CsiAccessMode::MultiNodeSingleWriter),
        Ok(Mode::MultiNodeMultiWriter) => Some(CsiAccessMode::MultiNodeMultiWriter),
        Ok(Mode::SingleNodeSingleWriter) => Some(CsiAccessMode::SingleNodeSingleWriter),
        Ok(Mode::SingleNodeMultiWriter) => Some(CsiAccessMode::SingleNodeMultiWriter),
        Ok(Mode::Unknown) | Err(_) => None,
    }
}

/// Validates a topology. Its keys are case-insensitive and must be unique.
fn topology_segments(field: &str, topology: v1::Topology) -> Result<Segments, Status> {
    let mut lowercase_keys = BTreeSet::new();
    for (key, value) in &topology.segments {
        if key.is_empty() || value.is_empty() {
            return Err(invalid_argument(format!("{field} has a topology with an empty key or value")));
        }
        if !lowercase_keys.insert(key.to_lowercase()) {
            return Err(invalid_argument(format!(
                "{field} has a topology with the duplicate key {:?}",
                printable(key)
            )));
        }
    }
    if topology.segments.is_empty() {
        return Err(invalid_argument(format!("{field} has a topology without segments")));
    }
    check_length(field, total_bytes(&topology.segments), MAX_MAP_BYTES)?;
    Ok(topology.segments)
}

/// Validates the name of a new volume, snapshot or group: its idempotency key.
pub(super) fn check_name(name: String) -> Result<String, Status> {
    check_required("name", &name, MAX_TEXT_BYTES)?;
    if name.contains(is_forbidden_char) {
        return Err(invalid_argument(format!("name {:?} has control characters", printable(&name))));
    }
    Ok(name)
}

/// Validates the id of a node.
pub(super) fn node_id<H: From<String>>(id: String) -> Result<CheckedId<H>, Status> {
    check_required("node_id", &id, MAX_NODE_ID_BYTES)?;
    Ok(if id.contains(char::is_control) { CheckedId::NonExistent } else { CheckedId::Valid(H::from(id)) })
}

/// Checks the size of a volume context.
pub(super) fn check_volume_context(map: &Parameters) -> Result<(), Status> {
    check_length("volume_context", total_bytes(map), MAX_CONTEXT_BYTES)
}

/// Validates the secrets of a call. Errors do not contain them.
pub(super) fn secrets(map: BTreeMap<String, String>) -> Result<Secrets, Status> {
    check_length("secrets", total_bytes(&map), MAX_SECRETS_BYTES)?;
    let is_valid_key = |key: &str| {
        !key.is_empty()
            && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    if !map.keys().all(|key| is_valid_key(key)) {
        return Err(invalid_argument(
            "secrets have a key with other characters than letters, digits, -, _ and .",
        ));
    }
    Ok(map.into_iter().map(|(key, text)| (key, Secret::new(text))).collect())
}

fn optional_bytes(field: &str, bytes: i64) -> Result<Option<u64>, Status> {
    match u64::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => Err(invalid_argument(format!("{field} is {bytes}; expected 0 or more"))),
    }
}

/// Validates a capacity range.
pub(super) fn capacity_range(range: v1::CapacityRange) -> Result<CapacityRange, Status> {
    let required = optional_bytes("capacity_range.required_bytes", range.required_bytes)?;
    let limit = optional_bytes("capacity_range.limit_bytes", range.limit_bytes)?;
    match (required, limit) {
        (None, None) => {
            Err(invalid_argument("capacity_range is empty; expected required_bytes or limit_bytes"))
        }
        (Some(required), Some(limit)) if required > limit => Err(invalid_argument(format!(
            "capacity_range.required_bytes is {required} and limit_bytes is {limit}; expected a \
             limit that is not lower"
        ))),
        (required, limit) => Ok(CapacityRange { required, limit }),
    }
}

/// Validates the page of a listing. A token that is too long is `ABORTED`, because no listing can have
/// returned it: the caller starts over.
pub(super) fn page_request(max_entries: i32, starting_token: String) -> Result<PageRequest, Status> {
    let limit = u32::try_from(max_entries)
        .map_err(|_| invalid_argument(format!("max_entries is {max_entries}; expected 0 or more")))?;
    if starting_token.len() > MAX_TOKEN_BYTES {
        return Err(Status::aborted("starting_token is invalid: start over"));
    }
    Ok(PageRequest {
        starting_token: (!starting_token.is_empty()).then_some(starting_token),
        max_entries: (limit > 0).then_some(limit),
    })
}
