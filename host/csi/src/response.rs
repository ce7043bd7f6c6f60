//! Conversion and checks of a driver's responses. The error of a conversion is the rule of CSI that the
//! response breaks.

use cofferdam_backend::{
    ContractViolation, Redactor,
    checks::{self, ResponseLimits},
};
use cofferdam_domain::{
    VolumeHandle, names,
    storage::{
        Capacity, CreatedVolume, ExpandedVolume, GroupSnapshot, PageRequest, Segments, Snapshot,
        SnapshotPage, Validation, VolumeCondition, VolumePage, VolumeStatus, connection_info,
    },
};

use crate::v1;

/// Limits of drivers' responses; see [`ResponseLimits::KUBERNETES_API`].
pub(crate) const RESPONSE_LIMITS: ResponseLimits = ResponseLimits::KUBERNETES_API;

/// A number of bytes; `None` for 0, which means unknown in CSI.
fn optional_bytes(field: &'static str, bytes: i64) -> Result<Option<u64>, ContractViolation> {
    match u64::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => Err(out_of_range(field, bytes.into(), "bytes")),
    }
}

fn bytes_or_zero(field: &'static str, bytes: i64) -> Result<u64, ContractViolation> {
    optional_bytes(field, bytes).map(Option::unwrap_or_default)
}

fn out_of_range(field: &'static str, value: i128, unit: &'static str) -> ContractViolation {
    ContractViolation::OutOfRange { field, value, unit, min: 0, max: i64::MAX.unsigned_abs() }
}

fn unix_millis(time: prost_types::Timestamp) -> Result<u64, ContractViolation> {
    let millis = i128::from(time.seconds) * 1_000 + i128::from(time.nanos / 1_000_000);
    u64::try_from(millis).map_err(|_| out_of_range("the creation time", millis, "ms"))
}

fn missing(object: &'static str, field: &'static str) -> ContractViolation {
    ContractViolation::Missing { object, field }
}

/// `None` for an empty text.
fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Converts and checks the volume of a response. Connection info in the volume context becomes a field of its
/// own.
pub(crate) fn volume(volume: Option<v1::Volume>) -> Result<CreatedVolume, ContractViolation> {
    let volume = volume.ok_or_else(|| missing("the response", "volume"))?;
    let topology = volume.accessible_topology.into_iter().map(|entry| entry.segments);
    // The driver may be a Cofferdam csi-server, which encodes the connection info in the context.
    let mut context = volume.volume_context;
    // A csi-server also sets the content source's kind. The caller knows the source from its own request.
    context.remove(names::CONTENT_SOURCE);
    let connection_info =
        context.remove(names::CONNECTION_INFO).map(|document| connection_info::decode(&document));
    let created = CreatedVolume {
        capacity: optional_bytes("the volume's size", volume.capacity_bytes)?,
        handle: volume.volume_id.into(),
        context,
        // The sidecars ignore a topology segment without keys.
        topology: topology.filter(|segments: &Segments| !segments.is_empty()).collect(),
        connection_info: connection_info
            .transpose()
            .map_err(|error| ContractViolation::ConnectionInfo(error.to_string()))?,
    };
    RESPONSE_LIMITS.check_created_volume(&created).map(|()| created)
}

/// True if the driver confirms the requested content source.
pub(crate) fn has_content_source(volume: Option<&v1::Volume>, requested: &v1::VolumeContentSource) -> bool {
    volume.and_then(|volume| volume.content_source.as_ref()) == Some(requested)
}

/// Converts the response of ValidateVolumeCapabilities: `Confirmed` if the driver confirms every requested
/// capability, else `Refused`.
pub(crate) fn validation(
    response: v1::ValidateVolumeCapabilitiesResponse,
    requested: &[v1::VolumeCapability],
    redactor: &Redactor,
) -> Validation {
    let Some(confirmed) = response.confirmed else {
        let message = non_empty(redactor.printable(&response.message));
        return Validation::Refused(message.unwrap_or_else(|| "the driver gives no reason".to_owned()));
    };
    match requested.iter().find(|capability| !confirmed.volume_capabilities.contains(capability)) {
        None => Validation::Confirmed,
        Some(_) => Validation::Refused("the driver confirms other capabilities only".to_owned()),
    }
}

/// Converts and checks the response of ControllerExpandVolume. A size below `required` is a violation.
pub(crate) fn expanded_volume(
    response: v1::ControllerExpandVolumeResponse,
    required: Option<u64>,
) -> Result<ExpandedVolume, ContractViolation> {
    let capacity = bytes_or_zero("the volume's size", response.capacity_bytes)?;
    let expanded = ExpandedVolume { capacity, node_expansion_required: response.node_expansion_required };
    checks::check_expanded_volume(&expanded)?;
    match required.filter(|required| capacity < *required) {
        Some(required) => Err(ContractViolation::NotExpanded { bytes: capacity, required }),
        None => Ok(expanded),
    }
}

fn unchecked_snapshot(snapshot: v1::Snapshot) -> Result<Snapshot, ContractViolation> {
    Ok(Snapshot {
        size: optional_bytes("the snapshot's size", snapshot.size_bytes)?,
        // CSI requires the time, and drivers without it work with csi-snapshotter.
        created_at_ms: snapshot.creation_time.map(unix_millis).transpose()?.unwrap_or_default(),
        handle: snapshot.snapshot_id.into(),
        source: snapshot.source_volume_id.into(),
        ready: snapshot.ready_to_use,
        group: non_empty(snapshot.group_snapshot_id).map(Into::into),
        owner: None,
    })
}

/// Converts and checks the snapshot of a response.
pub(crate) fn snapshot(response: Option<v1::Snapshot>) -> Result<Snapshot, ContractViolation> {
    let snapshot = unchecked_snapshot(response.ok_or_else(|| missing("the response", "snapshot"))?)?;
    RESPONSE_LIMITS.check_snapshot(&snapshot).map(|()| snapshot)
}

/// Converts and checks the response of ListSnapshots. If `source` is set, all snapshots must be of that
/// volume.
pub(crate) fn snapshot_page(
    response: v1::ListSnapshotsResponse,
    request: &PageRequest,
    source: Option<&VolumeHandle>,
) -> Result<SnapshotPage, ContractViolation> {
    let entries = response.entries.into_iter();
    let snapshots = entries
        .map(|entry| unchecked_snapshot(entry.snapshot.ok_or_else(|| missing("the entry", "snapshot"))?));
    let page = SnapshotPage {
        snapshots: snapshots.collect::<Result<_, _>>()?,
        next_token: non_empty(response.next_token),
    };
    RESPONSE_LIMITS.check_snapshot_page(&page, request, source).map(|()| page)
}

/// Converts and checks the group snapshot of a response, with its members. A member without a group id
/// belongs to the group of the response.
pub(crate) fn group_snapshot(
    response: Option<v1::VolumeGroupSnapshot>,
) -> Result<GroupSnapshot, ContractViolation> {
    let group = response.ok_or_else(|| missing("the response", "group snapshot"))?;
    let handle = group.group_snapshot_id;
    let member = |mut member: v1::Snapshot| {
        if member.group_snapshot_id.is_empty() {
            member.group_snapshot_id.clone_from(&handle);
        }
        unchecked_snapshot(member)
    };
    let group_snapshot = GroupSnapshot {
        snapshots: group.snapshots.into_iter().map(member).collect::<Result<_, _>>()?,
        created_at_ms: unix_millis(
            group.creation_time.ok_or_else(|| missing("the group", "creation time"))?,
        )?,
        ready: group.ready_to_use,
        handle: handle.into(),
    };
    RESPONSE_LIMITS.check_group_snapshot(&group_snapshot).map(|()| group_snapshot)
}

fn checked_volume_status(
    volume_response: Option<v1::Volume>,
    nodes: Vec<String>,
    condition: Option<v1::VolumeCondition>,
) -> Result<VolumeStatus, ContractViolation> {
    let condition = condition.map(|condition| VolumeCondition {
        abnormal: condition.abnormal,
        message: checks::printable(&condition.message),
    });
    let status = VolumeStatus {
        volume: volume(volume_response)?,
        owner: None,
        // csi-driver-host-path reports an empty node id for a volume that is published to no node.
        published_node_ids: nodes.into_iter().filter(|node| !node.is_empty()).map(Into::into).collect(),
        condition,
        changed_at_ms: None,
    };
    RESPONSE_LIMITS.check_volume_status(&status).map(|()| status)
}

/// Converts and checks the response of ControllerGetVolume.
pub(crate) fn volume_status(
    response: v1::ControllerGetVolumeResponse,
) -> Result<VolumeStatus, ContractViolation> {
    let state = response.status.unwrap_or_default();
    checked_volume_status(response.volume, state.published_node_ids, state.volume_condition)
}

/// Converts and checks the response of ListVolumes.
pub(crate) fn volume_page(
    response: v1::ListVolumesResponse,
    request: &PageRequest,
) -> Result<VolumePage, ContractViolation> {
    let entry = |entry: v1::list_volumes_response::Entry| {
        let state = entry.status.unwrap_or_default();
        checked_volume_status(entry.volume, state.published_node_ids, state.volume_condition)
    };
    let volumes = response.entries.into_iter().map(entry).collect::<Result<_, _>>()?;
    let page = VolumePage { volumes, next_token: non_empty(response.next_token) };
    RESPONSE_LIMITS.check_volume_page(&page, request).map(|()| page)
}

/// Converts and checks the response of GetCapacity.
pub(crate) fn capacity(response: &v1::GetCapacityResponse) -> Result<Capacity, ContractViolation> {
    let capacity = Capacity {
        available: bytes_or_zero("the available capacity", response.available_capacity)?,
        maximum_volume_size: response
            .maximum_volume_size
            .map(|size| bytes_or_zero("the maximum volume size", size))
            .transpose()?,
        minimum_volume_size: response
            .minimum_volume_size
            .map(|size| bytes_or_zero("the minimum volume size", size))
            .transpose()?,
    };
    checks::check_capacity(&capacity).map(|()| capacity)
}
