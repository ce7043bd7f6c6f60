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
pub(crate) const BOUNDS: ResponseLimits = ResponseLimits::KUBERNETES_API;

/// A number of bytes; 0 is how CSI says that nobody knows.
fn size(what: &str, bytes: i64) -> Result<Option<u64>, String> {
    match u64::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => Err(format!("{what} is {bytes} bytes; expected 0 or more")),
    }
}

fn count(what: &str, bytes: i64) -> Result<u64, String> {
    size(what, bytes).map(Option::unwrap_or_default)
}

fn milliseconds(what: &str, time: Option<prost_types::Timestamp>) -> Result<u64, String> {
    let time = time.ok_or_else(|| format!("{what} has no creation time"))?;
    let millis = i128::from(time.seconds) * 1_000 + i128::from(time.nanos / 1_000_000);
    let wrong = || format!("{what} was cut {} s after 1970; expected a time since then", time.seconds);
    u64::try_from(millis).map_err(|_| wrong())
}

/// Absent instead of empty.
fn filled(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// A volume.
pub(crate) fn volume(volume: Option<v1::Volume>) -> Result<CreatedVolume, String> {
    let volume = volume.ok_or("it has no volume")?;
    let places = volume.accessible_topology.into_iter().map(|place| place.segments);
    // Behind the socket may be a server of ours, which tells the attachment so.
    let mut context = volume.volume_context;
    // So it tells what the volume was made of; but who asked for it knows that, and takes nobody's word for
    // it.
    context.remove(names::CONTENT_SOURCE);
    let connection_info =
        context.remove(names::CONNECTION_INFO).map(|document| connection_info::decode(&document));
    let created = CreatedVolume {
        capacity: size("the volume's capacity", volume.capacity_bytes)?,
        handle: volume.volume_id.into(),
        context,
        // A place without keys says nothing, and the sidecars leave it out.
        topology: places.filter(|segments: &Segments| !segments.is_empty()).collect(),
        connection_info: connection_info.transpose().map_err(|error| error.to_string())?,
    };
    BOUNDS.check_created_volume(&created).map(|()| created)
}

/// Whether a volume was filled from where it should be.
pub(crate) fn is_from(volume: Option<&v1::Volume>, asked: &v1::VolumeContentSource) -> bool {
    volume.and_then(|volume| volume.content_source.as_ref()) == Some(asked)
}

/// Whether every capability that was asked for was confirmed.
pub(crate) fn validation(
    answer: v1::ValidateVolumeCapabilitiesResponse,
    asked: &[v1::VolumeCapability],
) -> Validation {
    let Some(confirmed) = answer.confirmed else {
        let message = filled(checks::printable(&answer.message));
        return Validation::Refused(message.unwrap_or_else(|| "the driver gives no reason".to_owned()));
    };
    match asked.iter().find(|capability| !confirmed.volume_capabilities.contains(capability)) {
        None => Validation::Confirmed,
        Some(_) => Validation::Refused("the driver confirms other capabilities only".to_owned()),
    }
}

/// A grown volume, which is at least as large as it should be.
pub(crate) fn expanded(
    answer: v1::ControllerExpandVolumeResponse,
    required: Option<u64>,
) -> Result<ExpandedVolume, String> {
    let capacity = count("the volume's capacity", answer.capacity_bytes)?;
    let expanded = ExpandedVolume { capacity, node_expansion_required: answer.node_expansion_required };
    checks::expanded_volume(&expanded)?;
    match required.filter(|required| capacity < *required) {
        Some(required) => Err(format!("the volume has {capacity} bytes; {required} were asked for")),
        None => Ok(expanded),
    }
}

fn bare_snapshot(snapshot: v1::Snapshot) -> Result<Snapshot, String> {
    Ok(Snapshot {
        size: size("the snapshot's size", snapshot.size_bytes)?,
        created_at_ms: milliseconds("the snapshot", snapshot.creation_time)?,
        handle: snapshot.snapshot_id.into(),
        source: snapshot.source_volume_id.into(),
        ready: snapshot.ready_to_use,
        group: filled(snapshot.group_snapshot_id).map(Into::into),
        owner: None,
    })
}

/// A snapshot.
pub(crate) fn snapshot(answer: Option<v1::Snapshot>) -> Result<Snapshot, String> {
    let snapshot = bare_snapshot(answer.ok_or("it has no snapshot")?)?;
    BOUNDS.check_snapshot(&snapshot).map(|()| snapshot)
}

/// A part of the snapshots.
pub(crate) fn snapshot_page(
    answer: v1::ListSnapshotsResponse,
    asked: &PageRequest,
) -> Result<SnapshotPage, String> {
    let entries = answer.entries.into_iter();
    let snapshots = entries.map(|entry| bare_snapshot(entry.snapshot.ok_or("an entry has no snapshot")?));
    let page = SnapshotPage {
        snapshots: snapshots.collect::<Result<_, _>>()?,
        next_token: filled(answer.next_token),
    };
    BOUNDS.check_snapshot_page(&page, asked).map(|()| page)
}

/// A group with its members. A member that does not say whose it is belongs to the group that it came with.
pub(crate) fn group(answer: Option<v1::VolumeGroupSnapshot>) -> Result<GroupSnapshot, String> {
    let group = answer.ok_or("it has no group snapshot")?;
    let handle = group.group_snapshot_id;
    let member = |mut member: v1::Snapshot| {
        if member.group_snapshot_id.is_empty() {
            member.group_snapshot_id.clone_from(&handle);
        }
        bare_snapshot(member)
    };
    let found = GroupSnapshot {
        snapshots: group.snapshots.into_iter().map(member).collect::<Result<_, _>>()?,
        created_at_ms: milliseconds("the group", group.creation_time)?,
        ready: group.ready_to_use,
        handle: handle.into(),
    };
    BOUNDS.check_group_snapshot(&found).map(|()| found)
}

fn status(
    found: Option<v1::Volume>,
    nodes: Vec<String>,
    condition: Option<v1::VolumeCondition>,
) -> Result<VolumeStatus, String> {
    let condition = condition.map(|condition| VolumeCondition {
        abnormal: condition.abnormal,
        message: checks::printable(&condition.message),
    });
    let status = VolumeStatus {
        volume: volume(found)?,
        owner: None,
        published_node_ids: nodes.into_iter().map(Into::into).collect(),
        condition,
        changed_at_ms: None,
    };
    BOUNDS.check_volume_status(&status).map(|()| status)
}

/// One volume's state.
pub(crate) fn volume_status(answer: v1::ControllerGetVolumeResponse) -> Result<VolumeStatus, String> {
    let state = answer.status.unwrap_or_default();
    status(answer.volume, state.published_node_ids, state.volume_condition)
}

/// A part of the volumes.
pub(crate) fn volume_page(
    answer: v1::ListVolumesResponse,
    asked: &PageRequest,
) -> Result<VolumePage, String> {
    let entry = |entry: v1::list_volumes_response::Entry| {
        let state = entry.status.unwrap_or_default();
        status(entry.volume, state.published_node_ids, state.volume_condition)
    };
    let volumes = answer.entries.into_iter().map(entry).collect::<Result<_, _>>()?;
    let page = VolumePage { volumes, next_token: filled(answer.next_token) };
    BOUNDS.check_volume_page(&page, asked).map(|()| page)
}

/// The room for more volumes.
pub(crate) fn capacity(answer: &v1::GetCapacityResponse) -> Result<Capacity, String> {
    let capacity = Capacity {
        available: count("the available capacity", answer.available_capacity)?,
        maximum_volume_size: answer
            .maximum_volume_size
            .map(|size| count("the largest volume", size))
            .transpose()?,
        minimum_volume_size: answer
            .minimum_volume_size
            .map(|size| count("the smallest volume", size))
            .transpose()?,
    };
    checks::capacity(&capacity).map(|()| capacity)
}
