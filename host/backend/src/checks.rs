//! Drivers lie: what they return is checked before anybody believes it. An error is the rule that is broken, in words.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_domain::storage::{
    AttachmentRecord, Capacity, CreatedVolume, Description, ExpandedVolume, GroupSnapshot, PageRequest,
    Parameters, Segments, Snapshot, SnapshotPage, VolumePage, VolumeStatus,
};

use crate::capabilities::secrets::Redactor;

/// CSI's limit for strings, in bytes: ids, names, keys.
const MAX_STRING: usize = 128;
/// CSI's limit for maps, in bytes of all keys and values.
const MAX_MAP: usize = 4 << 10;
/// Prefix of the volume attributes that the host writes.
const HOST_PREFIX: &str = "cofferdam.dev/";
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
/// Longest message that is passed on, in bytes; events hold 1,024.
const MAX_MESSAGE: usize = 1_000;

/// A guest's text as it may be shown: one line, without control characters, cut at a character's border.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(MAX_MESSAGE));
    for c in text.chars() {
        if shown.len() + c.len_utf8() > MAX_MESSAGE {
            shown.push('…');
            break;
        }
        shown.push(if c.is_control() { ' ' } else { c });
    }
    shown
}

/// A guest's pairs as a map.
pub(crate) fn map(what: &str, pairs: Vec<(String, String)>) -> Result<BTreeMap<String, String>, String> {
    let mut map = BTreeMap::new();
    for (key, value) in pairs {
        if map.contains_key(&key) {
            return Err(format!("{what} has the key {:?} twice", printable(&key)));
        }
        map.insert(key, value);
    }
    Ok(map)
}

/// Checks a volume that a guest returned. Whether it is as large as was asked for is the caller's to see: a volume that is too
/// small exists, and only who knows its id can delete it again.
pub fn created(volume: &CreatedVolume) -> Result<(), String> {
    handle(volume.handle.as_str())?;
    size(volume.capacity)?;
    bounded_map("the context", &volume.context)?;
    // What the host itself writes beside the context, and the node believes, is not the guest's to write.
    if let Some(key) = volume.context.keys().find(|key| key.starts_with(HOST_PREFIX)) {
        return Err(format!(
            "the context has the key {:?}; keys under {HOST_PREFIX} are the host's",
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
    volume.attachment.as_ref().map_or(Ok(()), attachment)
}

fn id(what: &str, id: &str) -> Result<(), String> {
    text(what, id, 1, MAX_STRING)
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

fn handle(handle: &str) -> Result<(), String> {
    id("the volume handle", handle)?;
    let inline = handle
        .strip_prefix("csi-")
        .is_some_and(|digits| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if inline {
        return Err(format!("the volume handle {handle} has the shape of an inline volume's"));
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

fn bounded_map(what: &str, map: &Parameters) -> Result<(), String> {
    let bytes: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_MAP {
        return Err(format!("{what} has {bytes} bytes; at most {MAX_MAP} are allowed"));
    }
    match map.keys().find(|key| key.is_empty() || key.len() > MAX_STRING) {
        Some(key) => Err(format!("{what} has a key of {} bytes; expected 1 to {MAX_STRING}", key.len())),
        None => Ok(()),
    }
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

/// Checks what a guest said of a volume's state.
pub fn status(status: &VolumeStatus) -> Result<(), String> {
    created(&status.volume)?;
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
pub fn volume_page(page: &VolumePage, asked: &PageRequest) -> Result<(), String> {
    progress(page.volumes.len(), page.next.as_deref(), asked)?;
    page.volumes.iter().try_for_each(status)
}

/// Checks a part of a listing: what it holds, how much was asked for, and that it gets on.
pub fn snapshot_page(page: &SnapshotPage, asked: &PageRequest) -> Result<(), String> {
    progress(page.snapshots.len(), page.next.as_deref(), asked)?;
    page.snapshots.iter().try_for_each(snapshot)
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

/// Checks a snapshot that a guest returned.
pub fn snapshot(snapshot: &Snapshot) -> Result<(), String> {
    id("the snapshot handle", snapshot.handle.as_str())?;
    handle(snapshot.source.as_str())?;
    if let Some(group) = &snapshot.group {
        id("the group's handle", group.as_str())?;
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

/// Checks a group snapshot that a guest returned.
pub fn group_snapshot(group: &GroupSnapshot) -> Result<(), String> {
    id("the group's handle", group.handle.as_str())?;
    group.snapshots.iter().try_for_each(snapshot)?;
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

/// Checks an attachment that a guest returned.
pub fn attachment(attachment: &AttachmentRecord) -> Result<(), String> {
    if !is_word(&attachment.kind) {
        return Err(format!(
            "the attachment's kind is {:?}; expected up to 63 of a-z, 0-9 and -",
            printable(&attachment.kind)
        ));
    }
    bounded_map("the attachment", &attachment.fields)
}

/// Refuses pairs that hold a secret of the call: they are stored in the cluster, where everybody reads them.
pub(crate) fn no_secret(what: &str, map: &Parameters, redactor: &Redactor) -> Result<(), String> {
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
pub(crate) fn no_secret_in(what: &str, id: &str, redactor: &Redactor) -> Result<(), String> {
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
