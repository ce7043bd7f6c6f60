//! CSI's rules for the parts that requests are made of. A broken one is `INVALID_ARGUMENT`, in words that
//! name the field.

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
    volume_capability::{AccessType as CsiAccess, access_mode::Mode},
};

/// CSI's limit for texts, in bytes.
const TEXT: usize = 128;
/// CSI's limit for the id of a node, in bytes.
const NODE_ID: usize = 256;
/// CSI's limit for maps and lists, in bytes.
const MAP: usize = 4 << 10;
/// Limit for the attributes that a volume comes back with: the driver's own, and the document of its
/// attachment.
const CONTEXT: usize = 256 << 10;
/// Limit for secrets: Kubernetes' own for a Secret. CSI's 4 KiB would leave out the keys and certificates
/// that drivers are given.
const SECRETS: usize = 1 << 20;
/// Longest place in a listing that a backend names.
const TOKEN: usize = 4 << 10;

/// What a backend offers, and how long its ids may be.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) controller: BTreeSet<ControllerCapability>,
    pub(super) plugin: BTreeSet<PluginCapability>,
    /// Whether volumes can be made of snapshots; CSI has no capability of its own for it.
    pub(super) restores: bool,
    /// Whether the group of a mounted volume can be set.
    pub(super) mount_groups: bool,
    pub(super) bounds: ResponseLimits,
}

pub(super) fn invalid(message: impl Into<String>) -> Status {
    Status::invalid_argument(message)
}

/// An id, as far as something can have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Id<H> {
    /// Something may have it.
    Possible(H),
    /// Nothing has it: no backend can return it. Kept from backends, which are promised never to see it.
    Impossible,
}

impl<H> Id<H> {
    /// The id, or that what it should be does not exist.
    pub(super) fn existing(self, what: impl Display) -> Result<H, Status> {
        match self {
            Self::Possible(id) => Ok(id),
            Self::Impossible => Err(Status::not_found(format!("the {what} does not exist"))),
        }
    }
}

/// The shape of the ids that kubelet gives to inline volumes.
fn is_inline(id: &str) -> bool {
    let digits = id.strip_prefix("csi-");
    digits.is_some_and(|digits| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// What CSI does not allow in names: control characters other than the usual white space.
fn is_banned(c: char) -> bool {
    c.is_control() && !matches!(c, '\t' | '\n' | '\r')
}

fn bounded(field: &str, bytes: usize, most: usize) -> Result<(), Status> {
    if bytes > most {
        return Err(invalid(format!("{field} has {bytes} bytes; expected at most {most}")));
    }
    Ok(())
}

fn required(field: &str, text: &str, most: usize) -> Result<(), Status> {
    if text.is_empty() {
        return Err(invalid(format!("{field} is missing")));
    }
    bounded(field, text.len(), most)
}

impl Rules {
    /// Whether the controller has a capability.
    pub(super) fn can(&self, capability: ControllerCapability) -> bool {
        self.controller.contains(&capability)
    }

    /// Refuses a call that is not announced.
    pub(super) fn offers(&self, capability: ControllerCapability) -> Result<(), Status> {
        match self.can(capability) {
            true => Ok(()),
            false => Err(Status::unimplemented(format!("the driver has no {}", capability.as_str()))),
        }
    }

    /// The id of a volume.
    pub(super) fn volume<H: From<String>>(&self, field: &str, id: String) -> Result<Id<H>, Status> {
        let inline = is_inline(&id);
        Ok(match self.id(field, id)? {
            Id::Possible(_) if inline => Id::Impossible,
            found @ (Id::Possible(_) | Id::Impossible) => found,
        })
    }

    /// The id of a snapshot or a group.
    pub(super) fn id<H: From<String>>(&self, field: &str, id: String) -> Result<Id<H>, Status> {
        required(field, &id, self.bounds.max_id_bytes)?;
        Ok(if id.contains(char::is_control) { Id::Impossible } else { Id::Possible(H::from(id)) })
    }

    /// How a volume is used, for a call that asks whether it can be.
    pub(super) fn question(&self, asked: v1::VolumeCapability) -> Result<VolumeCapability, Status> {
        let number = asked.access_mode.map(|mode| mode.mode).unwrap_or_default();
        let mode = mode(number).ok_or_else(|| {
            invalid(format!(
                "volume_capability.access_mode.mode is {number}; expected one of CSI's modes, 1 to 7"
            ))
        })?;
        let access = match asked.access_type {
            None => return Err(invalid("volume_capability.access_type is missing; expected block or mount")),
            Some(CsiAccess::Block(_)) => AccessType::Block,
            Some(CsiAccess::Mount(mount)) => {
                bounded("fs_type", mount.fs_type.len(), TEXT)?;
                bounded("mount_flags", mount.mount_flags.iter().map(String::len).sum(), MAP)?;
                bounded("volume_mount_group", mount.volume_mount_group.len(), TEXT)?;
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

    /// What a way of use needs and the driver has not announced.
    pub(super) fn lacking(&self, capability: &VolumeCapability) -> Option<&'static str> {
        let fine = matches!(
            capability.access_mode,
            CsiAccessMode::SingleNodeSingleWriter | CsiAccessMode::SingleNodeMultiWriter
        );
        if fine && !self.can(ControllerCapability::SingleNodeMultiWriter) {
            return Some("SINGLE_NODE_MULTI_WRITER");
        }
        let grouped = matches!(&capability.access_type, AccessType::Filesystem { mount_group: Some(_), .. });
        (grouped && !self.mount_groups).then_some("VOLUME_MOUNT_GROUP")
    }

    /// How a volume shall be used.
    pub(super) fn capability(&self, asked: v1::VolumeCapability) -> Result<VolumeCapability, Status> {
        let capability = self.question(asked)?;
        match self.lacking(&capability) {
            None => Ok(capability),
            Some(lacking) => {
                Err(invalid(format!("volume_capability needs {lacking}, which the driver does not announce")))
            }
        }
    }

    /// All ways in which a volume shall be used.
    pub(super) fn capabilities(
        &self,
        asked: Vec<v1::VolumeCapability>,
    ) -> Result<Vec<VolumeCapability>, Status> {
        asked.into_iter().map(|one| self.capability(one)).collect()
    }

    /// The parameters of a class.
    pub(super) fn parameters(&self, field: &str, map: Parameters) -> Result<Parameters, Status> {
        bounded(field, total_bytes(&map), self.bounds.max_map_bytes.max(MAP))?;
        Ok(map)
    }

    /// The parameters that can be changed later.
    pub(super) fn mutable(&self, map: Parameters) -> Result<Parameters, Status> {
        if !map.is_empty() && !self.can(ControllerCapability::ModifyVolume) {
            return Err(invalid("mutable_parameters need MODIFY_VOLUME, which the driver does not announce"));
        }
        self.parameters("mutable_parameters", map)
    }

    fn knows_topology(&self, field: &str) -> Result<(), Status> {
        match self.plugin.contains(&PluginCapability::AccessibilityConstraints) {
            true => Ok(()),
            false => Err(invalid(format!(
                "{field} needs VOLUME_ACCESSIBILITY_CONSTRAINTS, which the driver does not announce"
            ))),
        }
    }

    /// Where a volume shall be reachable.
    pub(super) fn requirement(
        &self,
        asked: Option<v1::TopologyRequirement>,
    ) -> Result<Option<TopologyRequirement>, Status> {
        const FIELD: &str = "accessibility_requirements";
        let Some(asked) = asked else { return Ok(None) };
        self.knows_topology(FIELD)?;
        if asked.requisite.is_empty() && asked.preferred.is_empty() {
            return Err(invalid(format!("{FIELD} has no place; expected requisite or preferred ones")));
        }
        let places = |list: Vec<v1::Topology>| {
            list.into_iter().map(|place| segments(FIELD, place)).collect::<Result<_, Status>>()
        };
        Ok(Some(TopologyRequirement {
            requisite: places(asked.requisite)?,
            preferred: places(asked.preferred)?,
        }))
    }

    /// Where volumes would have to be reachable.
    pub(super) fn place(&self, asked: Option<v1::Topology>) -> Result<Option<Segments>, Status> {
        const FIELD: &str = "accessible_topology";
        let Some(asked) = asked.filter(|place| !place.segments.is_empty()) else { return Ok(None) };
        self.knows_topology(FIELD)?;
        segments(FIELD, asked).map(Some)
    }
}

fn mode(number: i32) -> Option<CsiAccessMode> {
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

/// One place: its keys mean the same in whatever case they are written, and each stands once.
fn segments(field: &str, place: v1::Topology) -> Result<Segments, Status> {
    let mut seen = BTreeSet::new();
    for (key, value) in &place.segments {
        if key.is_empty() || value.is_empty() {
            return Err(invalid(format!("{field} has a place with an empty key or value")));
        }
        if !seen.insert(key.to_lowercase()) {
            return Err(invalid(format!("{field} has the key {:?} twice in one place", printable(key))));
        }
    }
    if place.segments.is_empty() {
        return Err(invalid(format!("{field} has a place without keys")));
    }
    bounded(field, total_bytes(&place.segments), MAP)?;
    Ok(place.segments)
}

/// The name of a new volume, snapshot or group: it is the key of idempotency.
pub(super) fn name(name: String) -> Result<String, Status> {
    required("name", &name, TEXT)?;
    if name.contains(is_banned) {
        return Err(invalid(format!("name {:?} has control characters", printable(&name))));
    }
    Ok(name)
}

/// The id of a node.
pub(super) fn node<H: From<String>>(id: String) -> Result<Id<H>, Status> {
    required("node_id", &id, NODE_ID)?;
    Ok(if id.contains(char::is_control) { Id::Impossible } else { Id::Possible(H::from(id)) })
}

/// The attributes of a volume that come back with a call.
pub(super) fn context(map: &Parameters) -> Result<(), Status> {
    bounded("volume_context", total_bytes(map), CONTEXT)
}

/// The secrets of a call. What is wrong with them is said without them.
pub(super) fn secrets(map: BTreeMap<String, String>) -> Result<Secrets, Status> {
    bounded("secrets", total_bytes(&map), SECRETS)?;
    let plain = |key: &str| {
        !key.is_empty()
            && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    if !map.keys().all(|key| plain(key)) {
        return Err(invalid("secrets have a key with other characters than letters, digits, -, _ and ."));
    }
    Ok(map.into_iter().map(|(key, text)| (key, Secret::new(text))).collect())
}

fn bytes(field: &str, bytes: i64) -> Result<Option<u64>, Status> {
    match u64::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => Err(invalid(format!("{field} is {bytes}; expected 0 or more"))),
    }
}

/// How large a volume shall be.
pub(super) fn capacity(range: v1::CapacityRange) -> Result<CapacityRange, Status> {
    let required = bytes("capacity_range.required_bytes", range.required_bytes)?;
    let limit = bytes("capacity_range.limit_bytes", range.limit_bytes)?;
    match (required, limit) {
        (None, None) => Err(invalid("capacity_range is empty; expected required_bytes or limit_bytes")),
        (Some(required), Some(limit)) if required > limit => Err(invalid(format!(
            "capacity_range.required_bytes is {required}, and limit_bytes {limit}; expected no more than the limit"
        ))),
        (required, limit) => Ok(CapacityRange { required, limit }),
    }
}

/// A part of a listing. A place that no listing can have returned is `ABORTED`, so that the caller begins
/// anew.
pub(super) fn page(max_entries: i32, starting_token: String) -> Result<PageRequest, Status> {
    let limit = u32::try_from(max_entries)
        .map_err(|_| invalid(format!("max_entries is {max_entries}; expected 0 or more")))?;
    if starting_token.len() > TOKEN {
        return Err(Status::aborted("starting_token is no place in the listing: begin anew"));
    }
    Ok(PageRequest {
        starting_token: (!starting_token.is_empty()).then_some(starting_token),
        max_entries: (limit > 0).then_some(limit),
    })
}
