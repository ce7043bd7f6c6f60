//! Conversion of backend responses to CSI messages.

use cofferdam_backend::checks::total_bytes;
use cofferdam_domain::storage::{
    Capacity, ContentSource, CreatedVolume, GroupSnapshot, Segments, Snapshot, SnapshotPage, VolumePage,
    VolumeStatus, ability::ControllerCapability, connection_info,
};

use super::validation::RequestValidator;
use crate::v1;

/// CSI's limit for maps, in bytes.
const MAX_MAP_BYTES: usize = 4 << 10;

/// Converts a number of bytes. Response checks have rejected values that do not fit.
fn to_csi_bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Converts an optional number of bytes; 0 if unknown.
fn optional_csi_bytes(bytes: Option<u64>) -> i64 {
    to_csi_bytes(bytes.unwrap_or_default())
}

fn timestamp(milliseconds: u64) -> prost_types::Timestamp {
    // Less than 10⁹, which fits.
    let nanos = i32::try_from(milliseconds % 1_000).unwrap_or_default() * 1_000_000;
    prost_types::Timestamp { seconds: to_csi_bytes(milliseconds / 1_000), nanos }
}

fn topology(segments: Segments) -> v1::Topology {
    v1::Topology { segments }
}

/// Converts a volume. Its context includes the connection info and the kind of the content source.
pub(super) fn volume(volume: CreatedVolume, source: Option<v1::VolumeContentSource>) -> v1::Volume {
    let content_source =
        source.as_ref().and_then(|source| source.r#type.as_ref()).map(|source| match source {
            v1::volume_content_source::Type::Volume(source) => {
                ContentSource::Volume(source.volume_id.as_str().into())
            }
            v1::volume_content_source::Type::Snapshot(source) => {
                ContentSource::Snapshot(source.snapshot_id.as_str().into())
            }
        });
    let volume_context = connection_info::into_volume_context(
        volume.context,
        volume.connection_info.as_ref(),
        content_source.as_ref(),
    );
    if total_bytes(&volume_context) > MAX_MAP_BYTES {
        let bytes = total_bytes(&volume_context);
        tracing::warn!(volume = %volume.handle, bytes, "the volume context is larger than CSI's 4 KiB");
    }
    v1::Volume {
        capacity_bytes: optional_csi_bytes(volume.capacity),
        volume_id: volume.handle.to_string(),
        volume_context,
        content_source: source,
        accessible_topology: volume.topology.into_iter().map(topology).collect(),
    }
}

/// A volume, its published nodes, and its condition if the driver announces VOLUME_CONDITION.
struct VolumeWithStatus {
    volume: v1::Volume,
    nodes: Vec<String>,
    condition: Option<v1::VolumeCondition>,
}

fn volume_with_status(status: VolumeStatus, validator: &RequestValidator) -> VolumeWithStatus {
    let condition =
        status.condition.filter(|_| validator.has_capability(ControllerCapability::VolumeCondition));
    VolumeWithStatus {
        volume: volume(status.volume, None),
        nodes: status.published_node_ids.iter().map(ToString::to_string).collect(),
        condition: condition.map(|condition| v1::VolumeCondition {
            abnormal: condition.abnormal,
            message: condition.message,
        }),
    }
}

/// Converts the status of a volume.
pub(super) fn volume_status(
    status: VolumeStatus,
    validator: &RequestValidator,
) -> v1::ControllerGetVolumeResponse {
    let VolumeWithStatus { volume, nodes, condition } = volume_with_status(status, validator);
    let status = v1::controller_get_volume_response::VolumeStatus {
        published_node_ids: nodes,
        volume_condition: condition,
    };
    v1::ControllerGetVolumeResponse { volume: Some(volume), status: Some(status) }
}

/// Converts a page of volumes.
pub(super) fn volume_page(page: VolumePage, validator: &RequestValidator) -> v1::ListVolumesResponse {
    use v1::list_volumes_response::{Entry, VolumeStatus};
    let entry = |status| {
        let VolumeWithStatus { volume, nodes, condition } = volume_with_status(status, validator);
        let nodes = if validator.has_capability(ControllerCapability::ListVolumesPublishedNodes) {
            nodes
        } else {
            Vec::new()
        };
        let status = VolumeStatus { published_node_ids: nodes, volume_condition: condition };
        Entry { volume: Some(volume), status: Some(status) }
    };
    v1::ListVolumesResponse {
        entries: page.volumes.into_iter().map(entry).collect(),
        next_token: page.next_token.unwrap_or_default(),
    }
}

/// Converts a capacity.
pub(super) fn capacity(capacity: Capacity) -> v1::GetCapacityResponse {
    v1::GetCapacityResponse {
        available_capacity: to_csi_bytes(capacity.available),
        maximum_volume_size: capacity.maximum_volume_size.map(to_csi_bytes),
        minimum_volume_size: capacity.minimum_volume_size.map(to_csi_bytes),
    }
}

/// Converts a snapshot.
pub(super) fn snapshot(snapshot: Snapshot) -> v1::Snapshot {
    v1::Snapshot {
        size_bytes: optional_csi_bytes(snapshot.size),
        snapshot_id: snapshot.handle.to_string(),
        source_volume_id: snapshot.source.to_string(),
        creation_time: Some(timestamp(snapshot.created_at_ms)),
        ready_to_use: snapshot.ready,
        group_snapshot_id: snapshot.group.map(|group| group.to_string()).unwrap_or_default(),
    }
}

/// Converts a page of snapshots.
pub(super) fn snapshot_page(page: SnapshotPage) -> v1::ListSnapshotsResponse {
    let entry =
        |entry_snapshot| v1::list_snapshots_response::Entry { snapshot: Some(snapshot(entry_snapshot)) };
    v1::ListSnapshotsResponse {
        entries: page.snapshots.into_iter().map(entry).collect(),
        next_token: page.next_token.unwrap_or_default(),
    }
}

/// Converts a group snapshot.
pub(super) fn group_snapshot(group: GroupSnapshot) -> v1::VolumeGroupSnapshot {
    v1::VolumeGroupSnapshot {
        group_snapshot_id: group.handle.to_string(),
        snapshots: group.snapshots.into_iter().map(snapshot).collect(),
        creation_time: Some(timestamp(group.created_at_ms)),
        ready_to_use: group.ready,
    }
}
