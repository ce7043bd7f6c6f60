//! Drivers lie: what they return is checked before anybody believes it. An error is the rule that is broken,
//! in words.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_domain::{
    names::RESERVED_ATTRIBUTE_PREFIX,
    storage::{
        Capacity, ConnectionInfo, CreatedVolume, Description, ExpandedVolume, GroupSnapshot, PageRequest,
        Parameters, Segments, Snapshot, SnapshotPage, VolumePage, VolumeStatus,
    },
};
pub use cofferdam_domain::{storage::total_bytes, text::printable};

use crate::Redactor;

/// CSI's limit for strings, in bytes: ids, names, keys.
const MAX_STRING: usize = 128;

/// How long may be what a backend returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseLimits {
    /// Longest id and longest key of a map, in bytes.
    pub max_id_bytes: usize,
    /// Largest map, in bytes of all keys and values.
    pub max_map_bytes: usize,
}

impl ResponseLimits {
    /// CSI's own limits, to which components are held.
    pub const CSI_SPEC: Self = Self { max_id_bytes: MAX_STRING, max_map_bytes: 4 << 10 };
    /// What the API can store, to which existing drivers are held: nothing else ever held them to CSI's
    /// limits, and some exceed them. A map may be as large as Kubernetes lets all annotations of an object
    /// be; an id, which is repeated in messages and logs, as long as the longest path.
    pub const KUBERNETES_API: Self = Self { max_id_bytes: 4 << 10, max_map_bytes: 256 << 10 };

    /// Checks a volume. Whether it is as large as was asked for is the caller's to see: a volume that is too
    /// small exists, and only who knows its id can delete it again.
    pub fn check_created_volume(self, volume: &CreatedVolume) -> Result<(), String> {
        self.check_handle(volume.handle.as_str())?;
        check_size(volume.capacity)?;
        self.check_map("the context", &volume.context)?;
        // What the host itself writes beside the context, and the node believes, is not the guest's to write.
        if let Some(key) = volume.context.keys().find(|key| key.starts_with(RESERVED_ATTRIBUTE_PREFIX)) {
            return Err(format!(
                "the context has the key {:?}; keys under {RESERVED_ATTRIBUTE_PREFIX} are the host's",
                printable(key)
            ));
        }
        if volume.topology.len() > MAX_TOPOLOGY_SEGMENTS {
            return Err(format!(
                "{} places in the topology; at most {MAX_TOPOLOGY_SEGMENTS} are allowed",
                volume.topology.len()
            ));
        }
        volume.topology.iter().try_for_each(check_segments)?;
        volume.connection_info.as_ref().map_or(Ok(()), |attachment| self.check_connection_info(attachment))
    }

    /// Checks a volume's state.
    pub fn check_volume_status(self, status: &VolumeStatus) -> Result<(), String> {
        self.check_created_volume(&status.volume)?;
        if status.published_node_ids.len() > MAX_PUBLISHED_NODES {
            return Err(format!(
                "a volume is published to {} nodes; at most {MAX_PUBLISHED_NODES} are allowed",
                status.published_node_ids.len()
            ));
        }
        for node in &status.published_node_ids {
            check_text("a node's id", node.as_str(), 1, MAX_NODE_ID)?;
        }
        let Some(owner) = &status.owner else { return Ok(()) };
        check_text("the owner's cluster", owner.cluster_id.as_str(), 0, MAX_OWNER_FIELD)?;
        check_text("the owner's claim", owner.claim_uid.as_str(), 0, MAX_OWNER_FIELD)?;
        check_text("the owner's volume", owner.pv_name.as_str(), 0, MAX_OWNER_FIELD)
    }

    /// Checks a part of a listing: what it holds, how much was asked for, and that it gets on.
    pub fn check_volume_page(self, page: &VolumePage, page_request: &PageRequest) -> Result<(), String> {
        check_page(page.volumes.len(), page.next_token.as_deref(), page_request)?;
        page.volumes.iter().try_for_each(|volume| self.check_volume_status(volume))
    }

    /// Checks a part of a listing: what it holds, how much was asked for, and that it gets on.
    pub fn check_snapshot_page(self, page: &SnapshotPage, page_request: &PageRequest) -> Result<(), String> {
        check_page(page.snapshots.len(), page.next_token.as_deref(), page_request)?;
        page.snapshots.iter().try_for_each(|snapshot| self.check_snapshot(snapshot))
    }

    /// Checks a snapshot.
    pub fn check_snapshot(self, snapshot: &Snapshot) -> Result<(), String> {
        self.check_id("the snapshot handle", snapshot.handle.as_str())?;
        self.check_handle(snapshot.source.as_str())?;
        if let Some(group) = &snapshot.group {
            self.check_id("the group's handle", group.as_str())?;
        }
        if let Some(owner) = &snapshot.owner {
            check_text("the owner's cluster", owner.cluster_id.as_str(), 0, MAX_OWNER_FIELD)?;
            check_text("the owner's snapshot", owner.snapshot_uid.as_str(), 0, MAX_OWNER_FIELD)?;
            check_text("the owner's content", &owner.content_name, 0, MAX_OWNER_FIELD)?;
        }
        if i64::try_from(snapshot.created_at_ms).is_err() {
            return Err(format!(
                "the snapshot was cut at {} ms; expected at most {}",
                snapshot.created_at_ms,
                i64::MAX
            ));
        }
        // A snapshot may hold nothing.
        snapshot.size.filter(|size| *size > 0).map_or(Ok(()), |bytes| check_size(Some(bytes)))
    }

    /// Checks a group snapshot.
    pub fn check_group_snapshot(self, group: &GroupSnapshot) -> Result<(), String> {
        self.check_id("the group's handle", group.handle.as_str())?;
        group.snapshots.iter().try_for_each(|member| self.check_snapshot(member))?;
        let is_foreign = |member: &&Snapshot| member.group.as_ref() != Some(&group.handle);
        if let Some(member) = group.snapshots.iter().find(is_foreign) {
            return Err(format!(
                "the member {:?} does not say that it is the group's",
                printable(member.handle.as_str())
            ));
        }
        if group.ready && group.snapshots.iter().any(|member| !member.ready) {
            return Err("the group is ready and one of its members is not".to_owned());
        }
        Ok(())
    }

    /// Checks an attachment.
    pub fn check_connection_info(self, connection_info: &ConnectionInfo) -> Result<(), String> {
        connection_info.validate(self.max_id_bytes, self.max_map_bytes)
    }

    fn check_id(self, what: &str, id: &str) -> Result<(), String> {
        check_text(what, id, 1, self.max_id_bytes)
    }

    fn check_handle(self, handle: &str) -> Result<(), String> {
        self.check_id("the volume handle", handle)?;
        let inline = handle
            .strip_prefix("csi-")
            .is_some_and(|digits| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if inline {
            return Err(format!("the volume handle {handle} has the shape of an inline volume's"));
        }
        Ok(())
    }

    fn check_map(self, what: &str, map: &Parameters) -> Result<(), String> {
        let bytes = total_bytes(map);
        if bytes > self.max_map_bytes {
            return Err(format!("{what} has {bytes} bytes; at most {} are allowed", self.max_map_bytes));
        }
        match map.keys().find(|key| key.is_empty() || key.len() > self.max_id_bytes) {
            Some(key) => {
                Err(format!("{what} has a key of {} bytes; expected 1 to {}", key.len(), self.max_id_bytes))
            }
            None => Ok(()),
        }
    }
}

/// Longest name of a driver, in bytes; CSI's limit, because it becomes a label.
const MAX_DRIVER_NAME: usize = 63;
/// Most topology keys and features: far more than any driver has, few enough to print.
const MAX_DESCRIPTION_ITEMS: usize = 64;
/// Most places that a volume can be reached from; a node has one.
const MAX_TOPOLOGY_SEGMENTS: usize = 1_024;
/// Most nodes that a volume is published to: more than Kubernetes has in a cluster.
const MAX_PUBLISHED_NODES: usize = 10_000;
/// CSI's limit for the id of a node, in bytes.
const MAX_NODE_ID: usize = 256;
/// Longest text of an owner, in bytes: what Kubernetes allows for a name.
const MAX_OWNER_FIELD: usize = 253;
/// Longest token of a listing, in bytes; it is kept between two calls.
const MAX_PAGE_TOKEN: usize = 4 << 10;
/// A guest's pairs as a map.
pub fn unique_map(what: &str, pairs: Vec<(String, String)>) -> Result<BTreeMap<String, String>, String> {
    let mut map = BTreeMap::new();
    for (key, value) in pairs {
        if map.contains_key(&key) {
            return Err(format!("{what} has the key {:?} twice", printable(&key)));
        }
        map.insert(key, value);
    }
    Ok(map)
}

/// [`Bounds::created`] of a component.
pub fn created_volume(volume: &CreatedVolume) -> Result<(), String> {
    ResponseLimits::CSI_SPEC.check_created_volume(volume)
}

/// [`Bounds::status`] of a component.
pub fn volume_status(status: &VolumeStatus) -> Result<(), String> {
    ResponseLimits::CSI_SPEC.check_volume_status(status)
}

/// [`Bounds::volume_page`] of a component.
pub fn volume_page(page: &VolumePage, page_request: &PageRequest) -> Result<(), String> {
    ResponseLimits::CSI_SPEC.check_volume_page(page, page_request)
}

/// [`Bounds::snapshot_page`] of a component.
pub fn snapshot_page(page: &SnapshotPage, page_request: &PageRequest) -> Result<(), String> {
    ResponseLimits::CSI_SPEC.check_snapshot_page(page, page_request)
}

/// [`Bounds::snapshot`] of a component.
pub fn snapshot(snapshot: &Snapshot) -> Result<(), String> {
    ResponseLimits::CSI_SPEC.check_snapshot(snapshot)
}

/// [`Bounds::group_snapshot`] of a component.
pub fn group_snapshot(group: &GroupSnapshot) -> Result<(), String> {
    ResponseLimits::CSI_SPEC.check_group_snapshot(group)
}

/// [`Bounds::attachment`] of a component.
pub fn connection_info(connection_info: &ConnectionInfo) -> Result<(), String> {
    ResponseLimits::CSI_SPEC.check_connection_info(connection_info)
}

fn check_text(what: &str, text: &str, min: usize, max: usize) -> Result<(), String> {
    if !(min..=max).contains(&text.len()) {
        return Err(format!("{what} has {} bytes; expected {min} to {max}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("{what} {:?} has control characters", printable(text)));
    }
    Ok(())
}

fn check_size(capacity: Option<u64>) -> Result<(), String> {
    let Some(bytes) = capacity else { return Ok(()) };
    // Sizes travel as signed numbers in CSI and in Kubernetes.
    if i64::try_from(bytes).is_err() || bytes == 0 {
        return Err(format!("the volume has {bytes} bytes; expected 1 to {}", i64::MAX));
    }
    Ok(())
}

fn check_segments(segments: &Segments) -> Result<(), String> {
    if segments.is_empty() || segments.len() > MAX_DESCRIPTION_ITEMS {
        return Err(format!(
            "a topology segment has {} keys; expected 1 to {MAX_DESCRIPTION_ITEMS}",
            segments.len()
        ));
    }
    for (key, value) in segments {
        if !is_qualified_name(key) {
            return Err(format!("the topology key {:?} is not a label's key", printable(key)));
        }
        if !value.is_empty() && !is_label_value(value) {
            return Err(format!("the topology value {:?} is not a label's value", printable(value)));
        }
    }
    Ok(())
}

fn check_page(count: usize, next_token: Option<&str>, page_request: &PageRequest) -> Result<(), String> {
    let limit = page_request
        .max_entries
        .filter(|limit| *limit > 0)
        .map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    if let Some(limit) = limit
        && count > limit
    {
        return Err(format!("a page has {count} entries; at most {limit} were asked for"));
    }
    let Some(next_token) = next_token else { return Ok(()) };
    if next_token.is_empty() || next_token.len() > MAX_PAGE_TOKEN {
        return Err(format!("a page's end has {} bytes; expected 1 to {MAX_PAGE_TOKEN}", next_token.len()));
    }
    if page_request.starting_token.as_deref() == Some(next_token) {
        return Err("a page ends where it began: whoever follows it never comes to an end".to_owned());
    }
    Ok(())
}

/// Refuses pairs that hold a secret of the call: they are stored in the cluster, where everybody reads them.
pub fn no_secret_in_map(what: &str, map: &Parameters, redactor: &Redactor) -> Result<(), String> {
    match map.iter().find(|(key, value)| redactor.contains_secret(key) || redactor.contains_secret(value)) {
        Some((key, _)) => Err(format!(
            "{what} holds a secret of the call under the key {:?}",
            printable(&redactor.redact(key))
        )),
        None => Ok(()),
    }
}

/// Refuses an id that holds a secret of the call: it is stored in the cluster, and stands in logs and
/// metrics. Short secrets, such as a user's name, occur in ids by chance.
pub fn no_secret_in_id(what: &str, id: &str, redactor: &Redactor) -> Result<(), String> {
    if redactor.contains_long_secret(id) { Err(format!("{what} holds a secret of the call")) } else { Ok(()) }
}

/// Checks an expanded volume's size.
pub fn expanded_volume(volume: &ExpandedVolume) -> Result<(), String> {
    check_size(Some(volume.capacity))
}

/// Checks a capacity: it travels as a signed number.
pub fn capacity(capacity: &Capacity) -> Result<(), String> {
    let fits = |what, bytes: u64| match i64::try_from(bytes) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("{what} is {bytes} bytes; expected at most {}", i64::MAX)),
    };
    fits("the available capacity", capacity.available)?;
    fits("the largest volume", capacity.maximum_volume_size.unwrap_or_default())?;
    fits("the smallest volume", capacity.minimum_volume_size.unwrap_or_default())?;
    match (capacity.minimum_volume_size, capacity.maximum_volume_size) {
        (Some(smallest), Some(largest)) if smallest > largest => {
            Err(format!("the smallest volume has {smallest} bytes and the largest {largest}"))
        }
        _ => Ok(()),
    }
}

/// Checks what a backend says of itself.
pub fn description(description: &Description) -> Result<(), String> {
    let name = description.name.as_str();
    if name.len() > MAX_DRIVER_NAME || !is_dns_subdomain(name) {
        return Err(format!(
            "the driver name is {:?}; expected a DNS subdomain (a-z, 0-9, - and .) of 1 to {MAX_DRIVER_NAME} characters",
            printable(name)
        ));
    }
    check_text("the version", &description.version, 1, MAX_STRING)?;
    check_unique("topology key", &description.topology_keys, is_qualified_name)?;
    check_unique("feature", &description.features, is_dns_label)
}

fn check_unique(what: &str, list: &[String], valid: fn(&str) -> bool) -> Result<(), String> {
    if list.len() > MAX_DESCRIPTION_ITEMS {
        return Err(format!("{} of {what}s; at most {MAX_DESCRIPTION_ITEMS} are allowed", list.len()));
    }
    let mut seen = BTreeSet::new();
    for item in list {
        if !valid(item) {
            return Err(format!("the {what} {:?} is not valid", printable(item)));
        }
        if !seen.insert(item) {
            return Err(format!("the {what} {item:?} is given twice"));
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

/// Up to 63 of letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn is_label_value(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    name.len() <= 63 && name.bytes().all(inner) && has_alphanumeric_ends(name)
}

fn is_dns_subdomain(name: &str) -> bool {
    name.split('.').all(is_dns_label)
}

/// Up to 63 of `a-z`, `0-9` and `-`, with a letter or digit at both ends.
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
