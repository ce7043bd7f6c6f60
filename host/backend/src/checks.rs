//! Checks of driver responses: a response that breaks the contract is never passed on.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_domain::{
    VolumeHandle,
    names::RESERVED_ATTRIBUTE_PREFIX,
    storage::{
        Capacity, ConnectionInfo, CreatedVolume, Description, ExpandedVolume, GroupSnapshot, PageRequest,
        Parameters, Segments, Snapshot, SnapshotPage, VolumePage, VolumeStatus,
    },
};
pub use cofferdam_domain::{
    storage::total_bytes,
    text::{one_line, printable},
};

use crate::{ContractViolation, Redactor};

/// Result of a check.
type CheckResult = Result<(), ContractViolation>;

/// CSI's limit for strings, in bytes: ids, names, keys.
const MAX_STRING: usize = 128;

/// Limits for handles, contexts and connection info in responses. Node ids, owners and topology segments have
/// fixed limits of their own. The role `csi-server`, which serves a driver as a CSI controller plugin,
/// derives its limits for requests from these limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseLimits {
    /// Longest id and longest key of a map, in bytes.
    pub max_id_bytes: usize,
    /// Largest map, in bytes of all keys and values.
    pub max_map_bytes: usize,
}

impl ResponseLimits {
    /// The CSI specification's limits. They apply to components.
    pub const CSI_SPEC: Self = Self { max_id_bytes: MAX_STRING, max_map_bytes: 4 << 10 };
    /// Limits for existing CSI drivers. The sidecars check no lengths, and some drivers exceed CSI's limits.
    /// Maps have Kubernetes' limit for an object's annotations, 256 KiB. Ids are repeated in messages and
    /// logs; their limit is that of Linux for paths, 4 KiB.
    pub const KUBERNETES_API: Self = Self { max_id_bytes: 4 << 10, max_map_bytes: 256 << 10 };

    /// Checks a created volume. The volume's capacity is not compared with the request. The caller does that:
    /// a volume that is too small exists, and its handle is needed to delete it.
    ///
    /// # Errors
    /// The first rule that the volume breaks.
    pub fn check_created_volume(self, volume: &CreatedVolume) -> CheckResult {
        self.check_handle(volume.handle.as_str())?;
        volume.capacity.map_or(Ok(()), |bytes| check_size("the volume's size", bytes))?;
        self.check_map("the context", &volume.context)?;
        // The node trusts these keys: only the host may set them.
        if let Some(key) = volume.context.keys().find(|key| key.starts_with(RESERVED_ATTRIBUTE_PREFIX)) {
            return Err(ContractViolation::ReservedKey { key: one_line(key) });
        }
        check_count("the topology", volume.topology.len(), "segments", 0, MAX_TOPOLOGY_SEGMENTS)?;
        volume.topology.iter().try_for_each(check_segments)?;
        volume.connection_info.as_ref().map_or(Ok(()), |info| self.check_connection_info(info))
    }

    /// Checks a volume's status.
    ///
    /// # Errors
    /// The first rule that the status breaks.
    pub fn check_volume_status(self, status: &VolumeStatus) -> CheckResult {
        self.check_created_volume(&status.volume)?;
        check_count(
            "the volume",
            status.published_node_ids.len(),
            "published nodes",
            0,
            MAX_PUBLISHED_NODES,
        )?;
        for node in &status.published_node_ids {
            check_text("the node id", node.as_str(), 1, MAX_NODE_ID)?;
        }
        let Some(owner) = &status.owner else { return Ok(()) };
        check_text("the owner's cluster", owner.cluster_id.as_str(), 0, MAX_OWNER_FIELD)?;
        check_text("the owner's claim", &owner.claim_uid.to_string(), 0, MAX_OWNER_FIELD)?;
        check_text("the owner's volume", owner.pv_name.as_str(), 0, MAX_OWNER_FIELD)
    }

    /// Checks a page of volumes: its entries, their number, and its next token.
    ///
    /// # Errors
    /// The first rule that the page breaks.
    pub fn check_volume_page(self, page: &VolumePage, page_request: &PageRequest) -> CheckResult {
        check_page(page.volumes.len(), page.next_token.as_deref(), page_request)?;
        page.volumes.iter().try_for_each(|volume| self.check_volume_status(volume))
    }

    /// Checks a page of snapshots: its entries, their number, and its next token. If `source` is set, all
    /// snapshots must be of that volume.
    ///
    /// # Errors
    /// The first rule that the page breaks.
    pub fn check_snapshot_page(
        self,
        page: &SnapshotPage,
        page_request: &PageRequest,
        source: Option<&VolumeHandle>,
    ) -> CheckResult {
        check_page(page.snapshots.len(), page.next_token.as_deref(), page_request)?;
        page.snapshots.iter().try_for_each(|snapshot| self.check_snapshot(snapshot))?;
        let Some(source) = source else { return Ok(()) };
        match page.snapshots.iter().find(|snapshot| snapshot.source != *source) {
            Some(foreign) => {
                Err(ContractViolation::ForeignSnapshot { handle: one_line(foreign.handle.as_str()) })
            }
            None => Ok(()),
        }
    }

    /// Checks a snapshot.
    ///
    /// # Errors
    /// The first rule that the snapshot breaks.
    pub fn check_snapshot(self, snapshot: &Snapshot) -> CheckResult {
        self.check_id("the snapshot handle", snapshot.handle.as_str())?;
        self.check_handle(snapshot.source.as_str())?;
        if let Some(group) = &snapshot.group {
            self.check_id("the group's handle", group.as_str())?;
        }
        if let Some(owner) = &snapshot.owner {
            check_text("the owner's cluster", owner.cluster_id.as_str(), 0, MAX_OWNER_FIELD)?;
            check_text("the owner's snapshot", &owner.snapshot_uid.to_string(), 0, MAX_OWNER_FIELD)?;
            check_text("the owner's content", &owner.content_name, 0, MAX_OWNER_FIELD)?;
        }
        check_signed("the snapshot's creation time", snapshot.created_at_ms, "ms", 0)?;
        // An empty snapshot is valid.
        check_signed("the snapshot's size", snapshot.size.unwrap_or_default(), "bytes", 0)
    }

    /// Checks a group snapshot.
    ///
    /// # Errors
    /// The first rule that the group or one of its members breaks.
    pub fn check_group_snapshot(self, group: &GroupSnapshot) -> CheckResult {
        self.check_id("the group's handle", group.handle.as_str())?;
        group.snapshots.iter().try_for_each(|member| self.check_snapshot(member))?;
        let is_foreign = |member: &&Snapshot| member.group.as_ref() != Some(&group.handle);
        if let Some(member) = group.snapshots.iter().find(is_foreign) {
            return Err(ContractViolation::ForeignMember { handle: one_line(member.handle.as_str()) });
        }
        if group.ready && group.snapshots.iter().any(|member| !member.ready) {
            return Err(ContractViolation::MemberNotReady);
        }
        Ok(())
    }

    /// Checks a connection info.
    ///
    /// # Errors
    /// The rule that the connection info breaks.
    pub fn check_connection_info(self, connection_info: &ConnectionInfo) -> CheckResult {
        connection_info
            .validate(self.max_id_bytes, self.max_map_bytes)
            .map_err(|error| ContractViolation::ConnectionInfo(error.to_string()))
    }

    fn check_id(self, field: &'static str, id: &str) -> CheckResult {
        check_text(field, id, 1, self.max_id_bytes)
    }

    fn check_handle(self, handle: &str) -> CheckResult {
        self.check_id("the volume handle", handle)?;
        let is_inline = handle
            .strip_prefix("csi-")
            .is_some_and(|digits| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if is_inline {
            return Err(ContractViolation::InlineHandle { handle: handle.to_owned() });
        }
        Ok(())
    }

    fn check_map(self, map_name: &'static str, map: &Parameters) -> CheckResult {
        let (bytes, max) = (total_bytes(map), self.max_map_bytes);
        if bytes > max {
            return Err(ContractViolation::MapTooLarge { map: map_name, bytes, max });
        }
        let max = self.max_id_bytes;
        match map.keys().find(|key| key.is_empty() || key.len() > max) {
            Some(key) => Err(ContractViolation::KeyLength { map: map_name, bytes: key.len(), max }),
            None => Ok(()),
        }
    }
}

/// CSI's limit for a driver name, in bytes. The name is used as a label value.
const MAX_DRIVER_NAME: usize = 63;
/// Maximum topology keys and maximum features of a description, and maximum keys of a topology segment. No
/// real driver has as many.
const MAX_DESCRIPTION_ITEMS: usize = 64;
/// Maximum topology segments of a volume.
const MAX_TOPOLOGY_SEGMENTS: usize = 1_024;
/// Maximum nodes to which a volume is published: twice the 5,000 nodes of the largest supported cluster.
const MAX_PUBLISHED_NODES: usize = 10_000;
/// CSI's limit for a node id, in bytes.
const MAX_NODE_ID: usize = 256;
/// Longest field of an owner, in bytes: Kubernetes' limit for names.
const MAX_OWNER_FIELD: usize = 253;
/// Longest page token, in bytes.
const MAX_PAGE_TOKEN: usize = 4 << 10;

/// Converts a component's key-value pairs to a map.
///
/// # Errors
/// A key that occurs twice.
pub fn unique_map(
    map_name: &'static str,
    pairs: Vec<(String, String)>,
) -> Result<BTreeMap<String, String>, ContractViolation> {
    let mut map = BTreeMap::new();
    for (key, value) in pairs {
        if map.contains_key(&key) {
            return Err(ContractViolation::DuplicateKey { map: map_name, key: one_line(&key) });
        }
        map.insert(key, value);
    }
    Ok(map)
}

/// Checks that a response describes the requested object.
///
/// # Errors
/// The response describes another object.
pub fn check_same_handle<H: PartialEq + std::fmt::Display>(
    object: &'static str,
    expected: &H,
    found: &H,
) -> CheckResult {
    if expected == found {
        return Ok(());
    }
    Err(ContractViolation::WrongObject { object, expected: one_line(&expected.to_string()) })
}

/// Checks that a group snapshot has exactly one member for each source volume.
///
/// # Errors
/// Missing, duplicate or foreign members.
pub fn check_group_members(group: &GroupSnapshot, sources: &BTreeSet<VolumeHandle>) -> CheckResult {
    let member_sources: BTreeSet<_> = group.snapshots.iter().map(|member| &member.source).collect();
    if member_sources == sources.iter().collect() && group.snapshots.len() == sources.len() {
        return Ok(());
    }
    Err(ContractViolation::GroupMembers)
}

fn check_text(field: &'static str, text: &str, min: usize, max: usize) -> CheckResult {
    if !(min..=max).contains(&text.len()) {
        return Err(ContractViolation::Length { field, bytes: text.len(), min, max });
    }
    if text.chars().any(char::is_control) {
        return Err(ContractViolation::ControlCharacters { field, text: one_line(text) });
    }
    Ok(())
}

fn check_count(
    object: &'static str,
    count: usize,
    elements: &'static str,
    min: usize,
    max: usize,
) -> CheckResult {
    if (min..=max).contains(&count) {
        return Ok(());
    }
    Err(ContractViolation::Count { object, count, elements, min, max })
}

/// Checks that a number fits the signed integers of CSI and Kubernetes.
fn check_signed(field: &'static str, value: u64, unit: &'static str, min: u64) -> CheckResult {
    let max = i64::MAX.unsigned_abs();
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ContractViolation::OutOfRange { field, value: value.into(), unit, min, max })
}

fn check_size(field: &'static str, bytes: u64) -> CheckResult {
    check_signed(field, bytes, "bytes", 1)
}

fn check_segments(segments: &Segments) -> CheckResult {
    check_count("a topology segment", segments.len(), "keys", 1, MAX_DESCRIPTION_ITEMS)?;
    let syntax = |field, text, expected| ContractViolation::Syntax { field, text: one_line(text), expected };
    for (key, value) in segments {
        if !is_qualified_name(key) {
            return Err(syntax("the topology key", key, "a label key"));
        }
        if !value.is_empty() && !is_label_value(value) {
            return Err(syntax("the topology value", value, "a label value"));
        }
    }
    Ok(())
}

fn check_page(count: usize, next_token: Option<&str>, page_request: &PageRequest) -> CheckResult {
    let limit = page_request.max_entries.filter(|limit| *limit > 0);
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    check_count("the page", count, "entries", 0, limit)?;
    let Some(next_token) = next_token else { return Ok(()) };
    if next_token.is_empty() || next_token.len() > MAX_PAGE_TOKEN {
        let field = "the page's next token";
        return Err(ContractViolation::Length {
            field,
            bytes: next_token.len(),
            min: 1,
            max: MAX_PAGE_TOKEN,
        });
    }
    if page_request.starting_token.as_deref() == Some(next_token) {
        return Err(ContractViolation::RepeatedToken);
    }
    Ok(())
}

/// Rejects a map with a secret of the call: maps are stored in the cluster in plain text. A secret of less
/// than 4 bytes counts only if it is the whole key or value. Applies to components only; for an existing CSI
/// driver, a secret in a map is logged as a warning.
///
/// # Errors
/// The first entry with a secret in its key or value.
pub fn check_no_secret_in_map(map_name: &'static str, map: &Parameters, redactor: &Redactor) -> CheckResult {
    match map.iter().find(|(key, value)| redactor.contains_secret(key) || redactor.contains_secret(value)) {
        Some((key, _)) => {
            Err(ContractViolation::SecretInMap { map: map_name, key: one_line(&redactor.redact(key)) })
        }
        None => Ok(()),
    }
}

/// Rejects an id that contains a secret of the call: ids are stored in the cluster in plain text, and logged.
/// Short secrets, such as a user's name, occur in ids by chance and are accepted. Applies to components only;
/// for an existing CSI driver, a secret in an id is logged as a warning.
///
/// # Errors
/// The id contains a secret of 8 bytes or more. The error has the field, not the secret.
pub fn check_no_secret_in_id(field: &'static str, id: &str, redactor: &Redactor) -> CheckResult {
    if redactor.contains_long_secret(id) { Err(ContractViolation::SecretInId { field }) } else { Ok(()) }
}

/// Rejects a description that contains a secret of the call: it is logged, and stored in the cluster. Applies
/// to components only. Check it before [`check_description`], whose errors quote the description.
///
/// # Errors
/// A name, version, topology key or feature that contains a secret of 8 bytes or more.
pub fn check_no_secret_in_description(description: &Description, redactor: &Redactor) -> CheckResult {
    check_no_secret_in_id("the driver name", description.name.as_str(), redactor)?;
    check_no_secret_in_id("the version", &description.version, redactor)?;
    for key in &description.topology_keys {
        check_no_secret_in_id("the topology key", key, redactor)?;
    }
    description.features.iter().try_for_each(|name| check_no_secret_in_id("the feature", name, redactor))
}

/// Checks an expanded volume's size.
///
/// # Errors
/// The size is 0 or does not fit `int64`, the type of sizes in CSI.
pub fn check_expanded_volume(volume: &ExpandedVolume) -> CheckResult {
    check_size("the volume's size", volume.capacity)
}

/// Checks a capacity.
///
/// # Errors
/// A size that does not fit `int64`, the type of sizes in CSI, or a minimum above the maximum.
pub fn check_capacity(capacity: &Capacity) -> CheckResult {
    let (minimum, maximum) = (capacity.minimum_volume_size, capacity.maximum_volume_size);
    check_signed("the available capacity", capacity.available, "bytes", 0)?;
    check_signed("the maximum volume size", maximum.unwrap_or_default(), "bytes", 0)?;
    check_signed("the minimum volume size", minimum.unwrap_or_default(), "bytes", 0)?;
    match (minimum, maximum) {
        (Some(minimum), Some(maximum)) if minimum > maximum => {
            Err(ContractViolation::CapacityBounds { minimum, maximum })
        }
        _ => Ok(()),
    }
}

/// Checks a driver's description.
///
/// # Errors
/// The first rule that the description breaks.
pub fn check_description(description: &Description) -> CheckResult {
    let name = description.name.as_str();
    if name.len() > MAX_DRIVER_NAME || !is_dns_subdomain(name) {
        return Err(ContractViolation::Syntax {
            field: "the driver name",
            text: one_line(name),
            expected: "a DNS subdomain (a-z, 0-9, - and .) of 1 to 63 characters",
        });
    }
    check_text("the version", &description.version, 1, MAX_STRING)?;
    // In CSI, 0 means no maximum.
    if description.volumes_per_node == Some(0) {
        let (field, max) = ("the maximum of a node", u32::MAX.into());
        return Err(ContractViolation::OutOfRange { field, value: 0, unit: "volumes", min: 1, max });
    }
    let keys = &description.topology_keys;
    check_unique("topology keys", "the topology key", keys, is_qualified_name, "a label key")?;
    check_unique("features", "the feature", &description.features, is_dns_label, "a DNS label")
}

fn check_unique(
    elements: &'static str,
    field: &'static str,
    list: &[String],
    is_valid: fn(&str) -> bool,
    expected: &'static str,
) -> CheckResult {
    check_count("the description", list.len(), elements, 0, MAX_DESCRIPTION_ITEMS)?;
    let mut seen = BTreeSet::new();
    for item in list {
        if !is_valid(item) {
            return Err(ContractViolation::Syntax { field, text: one_line(item), expected });
        }
        if !seen.insert(item) {
            return Err(ContractViolation::Duplicate { field, text: item.clone() });
        }
    }
    Ok(())
}

/// Kubernetes' qualified name: `[DNS subdomain/]name`.
fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => prefix.len() <= 253 && is_dns_subdomain(prefix) && is_label_value(name),
        None => is_label_value(key),
    }
}

/// Returns true for 1 to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn is_label_value(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    name.len() <= 63 && name.bytes().all(inner) && has_alphanumeric_ends(name)
}

fn is_dns_subdomain(name: &str) -> bool {
    name.split('.').all(is_dns_label)
}

/// Returns true for 1 to 63 of `a-z`, `0-9` and `-`, with a letter or digit at both ends.
fn is_dns_label(word: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    word.len() <= 63 && word.bytes().all(inner) && has_alphanumeric_ends(word)
}

fn has_alphanumeric_ends(text: &str) -> bool {
    let is_alphanumeric = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    is_alphanumeric(text.bytes().next()) && is_alphanumeric(text.bytes().next_back())
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
