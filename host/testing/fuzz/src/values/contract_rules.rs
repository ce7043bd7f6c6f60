//! The rules of `wit/` for the values that a guest returns, written from its documentation and not from the
//! host's checks.

use std::collections::HashSet;

use cofferdam_domain::storage::PageRequest;
use cofferdam_wasm::fuzzing::contract::{
    CapacityReport, ConnectionInfo, Description, GroupSnapshot, Owner, Snapshot, SnapshotOwner, Volume,
    VolumeStatus,
};

type Pairs = [(String, String)];

const MAX_SIGNED: u64 = (1 << 63) - 1;

/// A size of a volume: 1 to 2^63 - 1.
pub(super) fn is_size(bytes: u64) -> bool {
    bytes != 0 && bytes <= MAX_SIGNED
}

/// A created volume.
pub(super) fn volume(volume: &Volume) -> bool {
    is_volume_handle(&volume.handle)
        && volume.capacity_bytes.is_none_or(is_size)
        && is_map(&volume.context)
        && !volume.context.iter().any(|(key, _)| key.starts_with("cofferdam.dev/"))
        && volume.topology.len() <= 1_024
        && volume.topology.iter().all(|segments| is_segments(segments))
        && volume.connection_info.as_ref().is_none_or(connection_info)
}

/// The status of a volume.
pub(super) fn status(status: &VolumeStatus) -> bool {
    let is_owner = |owner: &Owner| {
        [&owner.cluster_id, &owner.claim_uid, &owner.pv_name].into_iter().all(|text| is_text(text, 0, 253))
    };
    volume(&status.volume)
        && status.owner.as_ref().is_none_or(is_owner)
        && status.published_nodes.len() <= 10_000
        && status.published_nodes.iter().all(|node| is_text(node, 1, 256))
}

/// A page of a listing, without its entries.
pub(super) fn page(entries: usize, next: Option<&str>, request: &PageRequest) -> bool {
    let is_next = |next: &str| {
        !next.is_empty() && next.len() <= 4_096 && Some(next) != request.starting_token.as_deref()
    };
    let limit = request.max_entries.filter(|limit| *limit != 0);
    limit.is_none_or(|limit| entries <= limit as usize) && next.is_none_or(is_next)
}

/// Connection info.
pub(super) fn connection_info(info: &ConnectionInfo) -> bool {
    let is_word = |c: char| matches!(c, 'a'..='z' | '0'..='9');
    let kind = &info.kind;
    (1..=63).contains(&kind.len())
        && kind.chars().all(|c| is_word(c) || c == '-')
        && kind.starts_with(is_word)
        && kind.ends_with(is_word)
        && is_map(&info.fields)
}

/// A snapshot.
pub(super) fn snapshot(snapshot: &Snapshot) -> bool {
    let is_owner = |owner: &SnapshotOwner| {
        let texts = [&owner.cluster_id, &owner.snapshot_uid, &owner.content_name];
        texts.into_iter().all(|text| is_text(text, 0, 253))
    };
    is_text(&snapshot.handle, 1, 128)
        && is_volume_handle(&snapshot.source)
        && snapshot.size_bytes.is_none_or(|bytes| bytes <= MAX_SIGNED)
        && snapshot.created_at_ms <= MAX_SIGNED
        && snapshot.group.as_ref().is_none_or(|group| is_text(group, 1, 128))
        && snapshot.owner.as_ref().is_none_or(is_owner)
}

/// A group snapshot.
pub(super) fn group(group: &GroupSnapshot) -> bool {
    is_text(&group.handle, 1, 128)
        && group.snapshots.iter().all(|member| {
            snapshot(member) && member.group.as_ref() == Some(&group.handle) && (member.ready || !group.ready)
        })
}

/// A capacity.
pub(super) fn capacity(report: &CapacityReport) -> bool {
    let (minimum, maximum) = (report.minimum_volume_bytes, report.maximum_volume_bytes);
    [Some(report.available_bytes), minimum, maximum].into_iter().flatten().all(|bytes| bytes <= MAX_SIGNED)
        && minimum.is_none_or(|minimum| maximum.is_none_or(|maximum| minimum <= maximum))
}

/// A description.
pub(super) fn description(description: &Description) -> bool {
    let is_list = |list: &[String], is_item: fn(&str) -> bool| {
        list.len() <= 64
            && list.iter().all(|item| is_item(item))
            && list.iter().collect::<HashSet<_>>().len() == list.len()
    };
    description.name.len() <= 63
        && is_dns_subdomain(&description.name)
        && is_text(&description.version, 1, 128)
        && is_list(&description.topology_keys, is_label_key)
        && is_list(&description.features, is_dns_label)
        && description.volumes_per_node != Some(0)
}

/// A text of a length in bytes, without control characters.
fn is_text(text: &str, min: usize, max: usize) -> bool {
    text.len() >= min && text.len() <= max && text.chars().all(|c| !c.is_control())
}

fn is_volume_handle(handle: &str) -> bool {
    let is_inline = handle.len() == 68
        && handle.starts_with("csi-")
        && handle.chars().skip(4).all(|c| c.is_ascii_hexdigit());
    is_text(handle, 1, 128) && !is_inline
}

/// Unique keys of 1 to 128 bytes, with values, of at most 4 KiB in total.
fn is_map(pairs: &Pairs) -> bool {
    has_unique_keys(pairs)
        && pairs.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() <= 4_096
        && pairs.iter().all(|(key, _)| (1..=128).contains(&key.len()))
}

fn has_unique_keys(pairs: &Pairs) -> bool {
    pairs.iter().map(|(key, _)| key).collect::<HashSet<_>>().len() == pairs.len()
}

fn is_segments(segments: &Pairs) -> bool {
    (1..=64).contains(&segments.len())
        && has_unique_keys(segments)
        && segments
            .iter()
            .all(|(key, value)| is_label_key(key) && (value.is_empty() || is_label_value(value)))
}

/// A key of a Kubernetes label: a name, or a DNS subdomain with a name.
fn is_label_key(key: &str) -> bool {
    match key.find('/') {
        None => is_label_value(key),
        Some(slash) => {
            let (prefix, name) = key.split_at(slash);
            prefix.len() <= 253 && is_dns_subdomain(prefix) && name.get(1..).is_some_and(is_label_value)
        }
    }
}

fn is_label_value(value: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    (1..=63).contains(&value.len())
        && value.chars().all(|c| is_end(c) || "-_.".contains(c))
        && value.starts_with(is_end)
        && value.ends_with(is_end)
}

fn is_dns_subdomain(name: &str) -> bool {
    name.split('.').all(is_dns_label)
}

fn is_dns_label(label: &str) -> bool {
    is_label_value(label) && !label.contains(|c: char| c.is_ascii_uppercase() || c == '_' || c == '.')
}
