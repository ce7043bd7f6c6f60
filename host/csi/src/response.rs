//! CSI's answers as the house's, checked: an error is the rule that an answer breaks, in words.

use cofferdam_backend::checks::{self, ResponseLimits};
use cofferdam_domain::{
    names,
    storage::{
        Capacity, CreatedVolume, ExpandedVolume, GroupSnapshot, PageRequest, Segments, Snapshot,
        SnapshotPage, Validation, VolumeCondition, VolumePage, VolumeStatus, connection_info,
    },
};

use crate::v1;

/// How long ids and maps of a driver may be: the sidecars look at no length.
pub(crate) const RESPONSE_LIMITS: ResponseLimits = ResponseLimits::KUBERNETES_API;

/// A number of bytes; 0 is how CSI says that nobody knows.
fn optional_bytes(field: &str, bytes: i64) -> Result<Option<u64>, String> {
    match u64::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => Err(format!("{field} is {bytes} bytes; expected 0 or more")),
    }
}

fn bytes_or_zero(field: &str, bytes: i64) -> Result<u64, String> {
    optional_bytes(field, bytes).map(Option::unwrap_or_default)
}

fn unix_millis(object: &str, time: Option<prost_types::Timestamp>) -> Result<u64, String> {
    let time = time.ok_or_else(|| format!("{object} has no creation time"))?;
    let millis = i128::from(time.seconds) * 1_000 + i128::from(time.nanos / 1_000_000);
    let out_of_range =
        || format!("{object} was cut {} s after 1970; expected a time since then", time.seconds);
    u64::try_from(millis).map_err(|_| out_of_range())
}

/// Absent instead of empty.
fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// A volume.
pub(crate) fn volume(volume: Option<v1::Volume>) -> Result<CreatedVolume, String> {
    let volume = volume.ok_or("it has no volume")?;
    let topology = volume.accessible_topology.into_iter().map(|entry| entry.segments);
    // Behind the socket may be a server of ours, which tells the attachment so.
    let mut context = volume.volume_context;
    // So it tells what the volume was made of; but who asked for it knows that, and takes nobody's word for
    // it.
    context.remove(names::CONTENT_SOURCE);
    let connection_info =
        context.remove(names::CONNECTION_INFO).map(|document| connection_info::decode(&document));
    let created = CreatedVolume {
        capacity: optional_bytes("the volume's capacity", volume.capacity_bytes)?,
        handle: volume.volume_id.into(),
        context,
        // A place without keys says nothing, and the sidecars leave it out.
        topology: topology.filter(|segments: &Segments| !segments.is_empty()).collect(),
        connection_info: connection_info.transpose().map_err(|error| error.to_string())?,
    };
    RESPONSE_LIMITS.check_created_volume(&created).map(|()| created)
}

/// Whether a volume was filled from where it should be.
pub(crate) fn has_content_source(volume: Option<&v1::Volume>, requested: &v1::VolumeContentSource) -> bool {
    volume.and_then(|volume| volume.content_source.as_ref()) == Some(requested)
}

/// Whether every capability that was asked for was confirmed.
pub(crate) fn validation(
    answer: v1::ValidateVolumeCapabilitiesResponse,
    requested: &[v1::VolumeCapability],
) -> Validation {
    let Some(confirmed) = answer.confirmed else {
        let message = non_empty(checks::printable(&answer.message));
        return Validation::Refused(message.unwrap_or_else(|| "the driver gives no reason".to_owned()));
    };
    match requested.iter().find(|capability| !confirmed.volume_capabilities.contains(capability)) {
        None => Validation::Confirmed,
        Some(_) => Validation::Refused("the driver confirms other capabilities only".to_owned()),
    }
}

/// A grown volume, which is at least as large as it should be.
pub(crate) fn expanded_volume(
    answer: v1::ControllerExpandVolumeResponse,
    required: Option<u64>,
) -> Result<ExpandedVolume, String> {
    let capacity = bytes_or_zero("the volume's capacity", answer.capacity_bytes)?;
    let expanded = ExpandedVolume { capacity, node_expansion_required: answer.node_expansion_required };
    checks::expanded_volume(&expanded)?;
    match required.filter(|required| capacity < *required) {
        Some(required) => Err(format!("the volume has {capacity} bytes; {required} were asked for")),
        None => Ok(expanded),
    }
}

fn unchecked_snapshot(snapshot: v1::Snapshot) -> Result<Snapshot, String> {
    Ok(Snapshot {
        size: optional_bytes("the snapshot's size", snapshot.size_bytes)?,
        created_at_ms: unix_millis("the snapshot", snapshot.creation_time)?,
        handle: snapshot.snapshot_id.into(),
        source: snapshot.source_volume_id.into(),
        ready: snapshot.ready_to_use,
        group: non_empty(snapshot.group_snapshot_id).map(Into::into),
        owner: None,
    })
}

/// A snapshot.
pub(crate) fn snapshot(answer: Option<v1::Snapshot>) -> Result<Snapshot, String> {
    let snapshot = unchecked_snapshot(answer.ok_or("it has no snapshot")?)?;
    RESPONSE_LIMITS.check_snapshot(&snapshot).map(|()| snapshot)
}

/// A part of the snapshots.
pub(crate) fn snapshot_page(
    answer: v1::ListSnapshotsResponse,
    request: &PageRequest,
) -> Result<SnapshotPage, String> {
    let entries = answer.entries.into_iter();
    let snapshots =
        entries.map(|entry| unchecked_snapshot(entry.snapshot.ok_or("an entry has no snapshot")?));
    let page = SnapshotPage {
        snapshots: snapshots.collect::<Result<_, _>>()?,
        next_token: non_empty(answer.next_token),
    };
    RESPONSE_LIMITS.check_snapshot_page(&page, request).map(|()| page)
}

/// A group with its members. A member that does not say whose it is belongs to the group that it came with.
pub(crate) fn group_snapshot(answer: Option<v1::VolumeGroupSnapshot>) -> Result<GroupSnapshot, String> {
    let group = answer.ok_or("it has no group snapshot")?;
    let handle = group.group_snapshot_id;
    let member = |mut member: v1::Snapshot| {
        if member.group_snapshot_id.is_empty() {
            member.group_snapshot_id.clone_from(&handle);
        }
        unchecked_snapshot(member)
    };
    let group_snapshot = GroupSnapshot {
        snapshots: group.snapshots.into_iter().map(member).collect::<Result<_, _>>()?,
        created_at_ms: unix_millis("the group", group.creation_time)?,
        ready: group.ready_to_use,
        handle: handle.into(),
    };
    RESPONSE_LIMITS.check_group_snapshot(&group_snapshot).map(|()| group_snapshot)
}

fn checked_volume_status(
    volume_response: Option<v1::Volume>,
    nodes: Vec<String>,
    condition: Option<v1::VolumeCondition>,
) -> Result<VolumeStatus, String> {
    let condition = condition.map(|condition| VolumeCondition {
        abnormal: condition.abnormal,
        message: checks::printable(&condition.message),
    });
    let status = VolumeStatus {
        volume: volume(volume_response)?,
        owner: None,
        published_node_ids: nodes.into_iter().map(Into::into).collect(),
        condition,
        changed_at_ms: None,
    };
    RESPONSE_LIMITS.check_volume_status(&status).map(|()| status)
}

/// One volume's state.
pub(crate) fn volume_status(answer: v1::ControllerGetVolumeResponse) -> Result<VolumeStatus, String> {
    let state = answer.status.unwrap_or_default();
    checked_volume_status(answer.volume, state.published_node_ids, state.volume_condition)
}

/// A part of the volumes.
pub(crate) fn volume_page(
    answer: v1::ListVolumesResponse,
    request: &PageRequest,
) -> Result<VolumePage, String> {
    let entry = |entry: v1::list_volumes_response::Entry| {
        let state = entry.status.unwrap_or_default();
        checked_volume_status(entry.volume, state.published_node_ids, state.volume_condition)
    };
    let volumes = answer.entries.into_iter().map(entry).collect::<Result<_, _>>()?;
    let page = VolumePage { volumes, next_token: non_empty(answer.next_token) };
    RESPONSE_LIMITS.check_volume_page(&page, request).map(|()| page)
}

/// The room for more volumes.
pub(crate) fn capacity(answer: &v1::GetCapacityResponse) -> Result<Capacity, String> {
    let capacity = Capacity {
        available: bytes_or_zero("the available capacity", answer.available_capacity)?,
        maximum_volume_size: answer
            .maximum_volume_size
            .map(|size| bytes_or_zero("the largest volume", size))
            .transpose()?,
        minimum_volume_size: answer
            .minimum_volume_size
            .map(|size| bytes_or_zero("the smallest volume", size))
            .transpose()?,
    };
    checks::capacity(&capacity).map(|()| capacity)
}
