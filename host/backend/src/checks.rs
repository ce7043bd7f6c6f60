//! Drivers lie: what they return is checked before anybody believes it. An error is the rule that is broken, in words.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_domain::{
    names::OWN_ATTRIBUTE_PREFIX,
    storage::{
        AttachmentRecord, Capacity, CreatedVolume, Description, ExpandedVolume, GroupSnapshot, PageRequest,
        Parameters, Segments, Snapshot, SnapshotPage, VolumePage, VolumeStatus,
    },
};
pub use cofferdam_domain::{storage::weight, text::printable};

use crate::Redactor;

/// CSI's limit for strings, in bytes: ids, names, keys.
const MAX_STRING: usize = 128;

/// How long may be what a backend returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Longest id and longest key of a map, in bytes.
    pub id: usize,
    /// Largest map, in bytes of all keys and values.
    pub map: usize,
}

impl Bounds {
    /// CSI's own limits, to which components are held.
    pub const SPECIFIED: Self = Self { id: MAX_STRING, map: 4 << 10 };
    /// What the API can store, to which existing drivers are held: nothing else ever held them to CSI's limits, and some exceed
    /// them. A map may be as large as Kubernetes lets all annotations of an object be; an id, which is repeated in messages and
    /// logs, as long as the longest path.
    pub const STORABLE: Self = Self { id: 4 << 10, map: 256 << 10 };

    /// Checks a volume. Whether it is as large as was asked for is the caller's to see: a volume that is too small exists, and
    /// only who knows its id can delete it again.
    pub fn created(self, volume: &CreatedVolume) -> Result<(), String> {
        self.handle(volume.handle.as_str())?;
        size(volume.capacity)?;
        self.bounded_map("the context", &volume.context)?;
        // What the host itself writes beside the context, and the node believes, is not the guest's to write.
        if let Some(key) = volume.context.keys().find(|key| key.starts_with(OWN_ATTRIBUTE_PREFIX)) {
            return Err(format!(
                "the context has the key {:?}; keys under {OWN_ATTRIBUTE_PREFIX} are the host's",
                printable(key)
            ));
        }
        if volume.topology.len() > MAX_TOPOLOGY {
            return Err(format!(
                "{} places in the topology; at most {MAX_TOPOLOGY} are allowed",
                volume.topology.len()
            ));
        }
        volume.topology.iter().try_for_each(segments)?;
        volume.attachment.as_ref().map_or(Ok(()), |attachment| self.attachment(attachment))
    }

    /// Checks a volume's state.
    pub fn status(self, status: &VolumeStatus) -> Result<(), String> {
        self.created(&status.volume)?;
        if status.published_nodes.len() > MAX_NODES {
            return Err(format!(
                "a volume is published to {} nodes; at most {MAX_NODES} are allowed",
                status.published_nodes.len()
            ));
        }
        for node in &status.published_nodes {
            text("a node's id", node.as_str(), 1, MAX_NODE_ID)?;
        }
        let Some(owner) = &status.owner else { return Ok(()) };
        text("the owner's cluster", owner.cluster.as_str(), 0, MAX_OWNER)?;
        text("the owner's claim", owner.claim.as_str(), 0, MAX_OWNER)?;
        text("the owner's volume", owner.volume.as_str(), 0, MAX_OWNER)
    }

    /// Checks a part of a listing: what it holds, how much was asked for, and that it gets on.
    pub fn volume_page(self, page: &VolumePage, asked: &PageRequest) -> Result<(), String> {
        progress(page.volumes.len(), page.next.as_deref(), asked)?;
        page.volumes.iter().try_for_each(|volume| self.status(volume))
    }

    /// Checks a part of a listing: what it holds, how much was asked for, and that it gets on.
    pub fn snapshot_page(self, page: &SnapshotPage, asked: &PageRequest) -> Result<(), String> {
        progress(page.snapshots.len(), page.next.as_deref(), asked)?;
        page.snapshots.iter().try_for_each(|snapshot| self.snapshot(snapshot))
    }

    /// Checks a snapshot.
    pub fn snapshot(self, snapshot: &Snapshot) -> Result<(), String> {
        self.id("the snapshot handle", snapshot.handle.as_str())?;
        self.handle(snapshot.source.as_str())?;
        if let Some(group) = &snapshot.group {
            self.id("the group's handle", group.as_str())?;
        }
        if let Some(owner) = &snapshot.owner {
            text("the owner's cluster", owner.cluster.as_str(), 0, MAX_OWNER)?;
            text("the owner's snapshot", owner.snapshot.as_str(), 0, MAX_OWNER)?;
            text("the owner's content", &owner.content, 0, MAX_OWNER)?;
        }
        if i64::try_from(snapshot.created_at_ms).is_err() {
            return Err(format!(
                "the snapshot was cut at {} ms; expected at most {}",
                snapshot.created_at_ms,
                i64::MAX
            ));
        }
        // A snapshot may hold nothing.
        snapshot.size.filter(|size| *size > 0).map_or(Ok(()), |bytes| size(Some(bytes)))
    }

    /// Checks a group snapshot.
    pub fn group_snapshot(self, group: &GroupSnapshot) -> Result<(), String> {
        self.id("the group's handle", group.handle.as_str())?;
        group.snapshots.iter().try_for_each(|member| self.snapshot(member))?;
        let stranger = |member: &&Snapshot| member.group.as_ref() != Some(&group.handle);
        if let Some(member) = group.snapshots.iter().find(stranger) {
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
    pub fn attachment(self, attachment: &AttachmentRecord) -> Result<(), String> {
        attachment.check(self.id, self.map)
    }

    fn id(self, what: &str, id: &str) -> Result<(), String> {
        text(what, id, 1, self.id)
    }

    fn handle(self, handle: &str) -> Result<(), String> {
        self.id("the volume handle", handle)?;
        let inline = handle
            .strip_prefix("csi-")
            .is_some_and(|digits| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if inline {
            return Err(format!("the volume handle {handle} has the shape of an inline volume's"));
        }
        Ok(())
    }

    fn bounded_map(self, what: &str, map: &Parameters) -> Result<(), String> {
        let bytes = weight(map);
        if bytes > self.map {
            return Err(format!("{what} has {bytes} bytes; at most {} are allowed", self.map));
        }
        match map.keys().find(|key| key.is_empty() || key.len() > self.id) {
            Some(key) => Err(format!("{what} has a key of {} bytes; expected 1 to {}", key.len(), self.id)),
            None => Ok(()),
        }
    }
}

/// Longest name of a driver, in bytes; CSI's limit, because it becomes a label.
const MAX_DRIVER: usize = 63;
/// Most topology keys and features: far more than any driver has, few enough to print.
const MAX_LIST: usize = 64;
/// Most places that a volume can be reached from; a node has one.
const MAX_TOPOLOGY: usize = 1_024;
/// Most nodes that a volume is published to: more than Kubernetes has in a cluster.
const MAX_NODES: usize = 10_000;
/// CSI's limit for the id of a node, in bytes.
const MAX_NODE_ID: usize = 256;
/// Longest text of an owner, in bytes: what Kubernetes allows for a name.
const MAX_OWNER: usize = 253;
/// Longest token of a listing, in bytes; it is kept between two calls.
const MAX_TOKEN: usize = 4 << 10;
/// A guest's pairs as a map.
pub fn map(what: &str, pairs: Vec<(String, String)>) -> Result<BTreeMap<String, String>, String> {
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
pub fn created(volume: &CreatedVolume) -> Result<(), String> {
    Bounds::SPECIFIED.created(volume)
}

/// [`Bounds::status`] of a component.
pub fn status(status: &VolumeStatus) -> Result<(), String> {
    Bounds::SPECIFIED.status(status)
}

/// [`Bounds::volume_page`] of a component.
pub fn volume_page(page: &VolumePage, asked: &PageRequest) -> Result<(), String> {
    Bounds::SPECIFIED.volume_page(page, asked)
}

/// [`Bounds::snapshot_page`] of a component.
pub fn snapshot_page(page: &SnapshotPage, asked: &PageRequest) -> Result<(), String> {
    Bounds::SPECIFIED.snapshot_page(page, asked)
}

/// [`Bounds::snapshot`] of a component.
pub fn snapshot(snapshot: &Snapshot) -> Result<(), String> {
    Bounds::SPECIFIED.snapshot(snapshot)
}

/// [`Bounds::group_snapshot`] of a component.
pub fn group_snapshot(group: &GroupSnapshot) -> Result<(), String> {
    Bounds::SPECIFIED.group_snapshot(group)
}

/// [`Bounds::attachment`] of a component.
pub fn attachment(attachment: &AttachmentRecord) -> Result<(), String> {
    Bounds::SPECIFIED.attachment(attachment)
}

fn text(what: &str, text: &str, least: usize, most: usize) -> Result<(), String> {
    if !(least..=most).contains(&text.len()) {
        return Err(format!("{what} has {} bytes; expected {least} to {most}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("{what} {:?} has control characters", printable(text)));
    }
    Ok(())
}

fn size(capacity: Option<u64>) -> Result<(), String> {
    let Some(bytes) = capacity else { return Ok(()) };
    // Sizes travel as signed numbers in CSI and in Kubernetes.
    if i64::try_from(bytes).is_err() || bytes == 0 {
        return Err(format!("the volume has {bytes} bytes; expected 1 to {}", i64::MAX));
    }
    Ok(())
}

fn segments(segments: &Segments) -> Result<(), String> {
    if segments.is_empty() || segments.len() > MAX_LIST {
        return Err(format!("a topology segment has {} keys; expected 1 to {MAX_LIST}", segments.len()));
    }
    for (key, value) in segments {
        if !is_qualified_name(key) {
            return Err(format!("the topology key {:?} is not a label's key", printable(key)));
        }
        if !value.is_empty() && !is_name(value) {
            return Err(format!("the topology value {:?} is not a label's value", printable(value)));
        }
    }
    Ok(())
}

fn progress(found: usize, next: Option<&str>, asked: &PageRequest) -> Result<(), String> {
    let limit =
        asked.limit.filter(|limit| *limit > 0).map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    if let Some(limit) = limit
        && found > limit
    {
        return Err(format!("a page has {found} entries; at most {limit} were asked for"));
    }
    let Some(next) = next else { return Ok(()) };
    if next.is_empty() || next.len() > MAX_TOKEN {
        return Err(format!("a page's end has {} bytes; expected 1 to {MAX_TOKEN}", next.len()));
    }
    if asked.after.as_deref() == Some(next) {
        return Err("a page ends where it began: whoever follows it never comes to an end".to_owned());
    }
    Ok(())
}

/// Refuses pairs that hold a secret of the call: they are stored in the cluster, where everybody reads them.
pub fn no_secret(what: &str, map: &Parameters, redactor: &Redactor) -> Result<(), String> {
    match map.iter().find(|(key, value)| redactor.finds(key) || redactor.finds(value)) {
        Some((key, _)) => Err(format!(
            "{what} holds a secret of the call under the key {:?}",
            printable(&redactor.blot(key))
        )),
        None => Ok(()),
    }
}

/// Refuses an id that holds a secret of the call: it is stored in the cluster, and stands in logs and metrics. Short secrets, such
/// as a user's name, occur in ids by chance.
pub fn no_secret_in(what: &str, id: &str, redactor: &Redactor) -> Result<(), String> {
    if redactor.finds_long(id) { Err(format!("{what} holds a secret of the call")) } else { Ok(()) }
}

/// Checks an expanded volume's size.
pub fn expanded(volume: &ExpandedVolume) -> Result<(), String> {
    size(Some(volume.capacity))
}

/// Checks a capacity: it travels as a signed number.
pub fn capacity(capacity: &Capacity) -> Result<(), String> {
    let fits = |what, bytes: u64| match i64::try_from(bytes) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("{what} is {bytes} bytes; expected at most {}", i64::MAX)),
    };
    fits("the available capacity", capacity.available)?;
    fits("the largest volume", capacity.maximum_volume.unwrap_or_default())?;
    fits("the smallest volume", capacity.minimum_volume.unwrap_or_default())?;
    match (capacity.minimum_volume, capacity.maximum_volume) {
        (Some(smallest), Some(largest)) if smallest > largest => {
            Err(format!("the smallest volume has {smallest} bytes and the largest {largest}"))
        }
        _ => Ok(()),
    }
}

/// Checks what a backend says of itself.
pub fn description(description: &Description) -> Result<(), String> {
    let name = description.name.as_str();
    if name.len() > MAX_DRIVER || !is_subdomain(name) {
        return Err(format!(
            "the driver name is {:?}; expected a DNS subdomain (a-z, 0-9, - and .) of 1 to {MAX_DRIVER} characters",
            printable(name)
        ));
    }
    text("the version", &description.version, 1, MAX_STRING)?;
    unique("topology key", &description.topology_keys, is_qualified_name)?;
    unique("feature", &description.features, is_word)
}

fn unique(what: &str, list: &[String], valid: fn(&str) -> bool) -> Result<(), String> {
    if list.len() > MAX_LIST {
        return Err(format!("{} of {what}s; at most {MAX_LIST} are allowed", list.len()));
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
        Some((prefix, name)) => prefix.len() <= 253 && is_subdomain(prefix) && is_name(name),
        None => is_name(key),
    }
}

/// Up to 63 of letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn is_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    name.len() <= 63 && name.bytes().all(inner) && has_firm_ends(name)
}

fn is_subdomain(name: &str) -> bool {
    name.split('.').all(is_word)
}

/// Up to 63 of `a-z`, `0-9` and `-`, with a letter or digit at both ends.
fn is_word(word: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    word.len() <= 63 && word.bytes().all(inner) && has_firm_ends(word)
}

fn has_firm_ends(text: &str) -> bool {
    let firm = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    firm(text.bytes().next()) && firm(text.bytes().next_back())
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
