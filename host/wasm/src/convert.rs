//! Conversions between the WIT types that guests use and the host's domain types.

use cofferdam_domain::{
    DriverName, GroupSnapshotHandle, NodeId, ReclaimPolicy, SnapshotHandle, VolumeHandle,
    storage::{
        AccessType, Capacity, CapacityQuery, CapacityRange, ConnectionInfo, CreateGroupSnapshot,
        CreateSnapshot, CreateVolume, CreatedVolume, CsiAccessMode, Description, ErrorKind, ExpandVolume,
        Finality, GroupSnapshot, Parameters, Placement, PublishVolume, Readiness, Segments, Snapshot,
        SnapshotOwner, SnapshotPage, StorageError, TopologyRequirement, ValidateVolume, Validation,
        VolumeCapability, VolumeCondition, VolumeOwner, VolumePage, VolumeStatus,
    },
};

use crate::bindings::{
    cofferdam::storage::types as wit,
    exports::cofferdam::storage::{
        capacity, expansion, group_snapshots, identity, listing, publishing, snapshots, volumes,
    },
};
use cofferdam_backend::{ContractViolation, Redactor, checks};

type Pairs = Vec<(String, String)>;

/// Converts a request to the guest's type.
pub(crate) fn create_request(request: CreateVolume) -> wit::CreateRequest {
    wit::CreateRequest {
        name: request.name,
        capacity: capacity_range(request.capacity),
        capabilities: request.capabilities.into_iter().map(capability).collect(),
        parameters: pairs(request.parameters),
        mutable_parameters: pairs(request.mutable_parameters),
        topology: request.topology.map(topology),
        owner: request.owner.map(owner),
    }
}

/// Converts a request to the guest's type.
pub(crate) fn validate_request(request: ValidateVolume) -> volumes::ValidateRequest {
    volumes::ValidateRequest {
        handle: request.handle.as_str().to_owned(),
        context: pairs(request.context),
        capabilities: request.capabilities.into_iter().map(capability).collect(),
        parameters: pairs(request.parameters),
        mutable_parameters: pairs(request.mutable_parameters),
    }
}

fn capability(capability: VolumeCapability) -> wit::VolumeCapability {
    wit::VolumeCapability {
        mode: match capability.access_mode {
            CsiAccessMode::SingleNodeWriter => wit::AccessMode::SingleNodeWriter,
            CsiAccessMode::SingleNodeReaderOnly => wit::AccessMode::SingleNodeReaderOnly,
            CsiAccessMode::MultiNodeReaderOnly => wit::AccessMode::MultiNodeReaderOnly,
            CsiAccessMode::MultiNodeSingleWriter => wit::AccessMode::MultiNodeSingleWriter,
            CsiAccessMode::MultiNodeMultiWriter => wit::AccessMode::MultiNodeMultiWriter,
            CsiAccessMode::SingleNodeSingleWriter => wit::AccessMode::SingleNodeSingleWriter,
            CsiAccessMode::SingleNodeMultiWriter => wit::AccessMode::SingleNodeMultiWriter,
        },
        access: match capability.access_type {
            AccessType::Block => wit::AccessType::Block,
            AccessType::Filesystem { fs_type, mount_flags, mount_group } => {
                wit::AccessType::Filesystem(wit::FilesystemAccess { fs_type, mount_flags, mount_group })
            }
        },
    }
}

fn topology(requirement: TopologyRequirement) -> wit::TopologyRequirement {
    let to_segments = |places: Vec<Segments>| places.into_iter().map(pairs).collect();
    wit::TopologyRequirement {
        requisite: to_segments(requirement.requisite),
        preferred: to_segments(requirement.preferred),
    }
}

fn owner(owner: VolumeOwner) -> wit::Owner {
    wit::Owner {
        cluster_id: owner.cluster_id.as_str().to_owned(),
        claim_uid: owner.claim_uid.to_string(),
        pv_name: owner.pv_name.as_str().to_owned(),
        reclaim_policy: match owner.reclaim_policy {
            // Kubernetes' Recycle keeps the volume; a volume with an unknown policy must not be deleted.
            ReclaimPolicy::Retain | ReclaimPolicy::Recycle | ReclaimPolicy::Other(_) => {
                wit::ReclaimPolicy::Retain
            }
            ReclaimPolicy::Delete => wit::ReclaimPolicy::Delete,
        },
    }
}

fn snapshot_owner(owner: SnapshotOwner) -> wit::SnapshotOwner {
    wit::SnapshotOwner {
        cluster_id: owner.cluster_id.as_str().to_owned(),
        snapshot_uid: owner.snapshot_uid.to_string(),
        content_name: owner.content_name,
        reclaim_policy: if owner.retain { wit::ReclaimPolicy::Retain } else { wit::ReclaimPolicy::Delete },
    }
}

fn from_snapshot_owner(owner: wit::SnapshotOwner) -> SnapshotOwner {
    SnapshotOwner {
        cluster_id: owner.cluster_id.into(),
        snapshot_uid: owner.snapshot_uid.into(),
        content_name: owner.content_name,
        retain: owner.reclaim_policy == wit::ReclaimPolicy::Retain,
    }
}

/// Converts a request to the guest's type.
pub(crate) fn publish_request(request: PublishVolume) -> publishing::PublishRequest {
    publishing::PublishRequest {
        handle: request.handle.as_str().to_owned(),
        node: request.node_id.as_str().to_owned(),
        node_identities: pairs(request.node_identities),
        capability: capability(request.capability),
        read_only: request.read_only,
        context: pairs(request.context),
    }
}

/// Converts a request to the guest's type.
pub(crate) fn expand_request(request: ExpandVolume) -> expansion::ExpandRequest {
    expansion::ExpandRequest {
        handle: request.handle.as_str().to_owned(),
        capacity: capacity_range(request.capacity),
        capability: request.capability.map(capability),
    }
}

/// Converts a request to the guest's type.
pub(crate) fn create_snapshot_request(request: CreateSnapshot) -> snapshots::SnapshotRequest {
    snapshots::SnapshotRequest {
        name: request.name,
        source: request.source.as_str().to_owned(),
        parameters: pairs(request.parameters),
        owner: request.owner.map(snapshot_owner),
    }
}

/// Converts a request to the guest's type.
pub(crate) fn create_group_snapshot_request(request: CreateGroupSnapshot) -> group_snapshots::GroupRequest {
    group_snapshots::GroupRequest {
        name: request.name,
        sources: request.sources.iter().map(|source| source.as_str().to_owned()).collect(),
        parameters: pairs(request.parameters),
        owner: request.owner.map(snapshot_owner),
    }
}

/// Converts a request to the guest's type.
pub(crate) fn capacity_request(query: CapacityQuery) -> capacity::CapacityRequest {
    capacity::CapacityRequest {
        capabilities: query.capabilities.into_iter().map(capability).collect(),
        parameters: pairs(query.parameters),
        topology: query.topology.map(pairs),
    }
}

/// Converts parameters to the guest's type.
pub(crate) fn pairs(map: Parameters) -> Pairs {
    map.into_iter().collect()
}

fn capacity_range(range: CapacityRange) -> wit::CapacityRange {
    wit::CapacityRange { required_bytes: range.required, limit_bytes: range.limit }
}

/// Converts a volume. The error is the rule of the contract that it breaks.
pub(crate) fn created_volume(volume: wit::Volume) -> Result<CreatedVolume, ContractViolation> {
    let topology =
        volume.topology.into_iter().map(|segments| checks::unique_map("a topology segment", segments));
    Ok(CreatedVolume {
        handle: VolumeHandle::new(volume.handle),
        capacity: volume.capacity_bytes,
        context: checks::unique_map("the context", volume.context)?,
        topology: topology.collect::<Result<_, _>>()?,
        connection_info: volume.connection_info.map(connection_info).transpose()?,
    })
}

/// Converts connection info. The error is the rule of the contract that it breaks.
pub(crate) fn connection_info(
    connection_info: wit::ConnectionInfo,
) -> Result<ConnectionInfo, ContractViolation> {
    Ok(ConnectionInfo {
        kind: connection_info.kind,
        version: connection_info.version,
        fields: checks::unique_map("the connection info", connection_info.fields)?,
    })
}

/// Converts a volume's status. The error is the rule of the contract that it breaks.
pub(crate) fn volume_status(
    status: wit::VolumeStatus,
    redactor: &Redactor,
) -> Result<VolumeStatus, ContractViolation> {
    Ok(VolumeStatus {
        volume: created_volume(status.volume)?,
        owner: status.owner.map(|owner| VolumeOwner {
            cluster_id: owner.cluster_id.into(),
            claim_uid: owner.claim_uid.into(),
            pv_name: owner.pv_name.into(),
            reclaim_policy: match owner.reclaim_policy {
                wit::ReclaimPolicy::Delete => ReclaimPolicy::Delete,
                wit::ReclaimPolicy::Retain => ReclaimPolicy::Retain,
            },
        }),
        published_node_ids: status.published_nodes.into_iter().map(NodeId::from).collect(),
        condition: status.condition.map(|condition| VolumeCondition {
            abnormal: condition.abnormal,
            message: redactor.printable(&condition.message),
        }),
        changed_at_ms: status.changed_at_ms,
    })
}

/// Converts a page of volumes. The error is the rule of the contract that it breaks.
pub(crate) fn volume_page(
    page: listing::VolumePage,
    redactor: &Redactor,
) -> Result<VolumePage, ContractViolation> {
    let volumes =
        page.volumes.into_iter().map(|found| volume_status(found, redactor)).collect::<Result<_, _>>()?;
    Ok(VolumePage { volumes, next_token: page.next })
}

/// Converts a snapshot to the host's type.
pub(crate) fn snapshot(snapshot: wit::Snapshot) -> Snapshot {
    Snapshot {
        handle: SnapshotHandle::from(snapshot.handle),
        source: VolumeHandle::from(snapshot.source),
        size: snapshot.size_bytes,
        created_at_ms: snapshot.created_at_ms,
        ready: snapshot.ready,
        group: snapshot.group.map(GroupSnapshotHandle::from),
        owner: snapshot.owner.map(from_snapshot_owner),
    }
}

/// Converts a page of snapshots to the host's type.
pub(crate) fn snapshot_page(page: snapshots::SnapshotPage) -> SnapshotPage {
    SnapshotPage { snapshots: page.snapshots.into_iter().map(snapshot).collect(), next_token: page.next }
}

/// Converts a group snapshot to the host's type.
pub(crate) fn group_snapshot(group: group_snapshots::GroupSnapshot) -> GroupSnapshot {
    GroupSnapshot {
        handle: GroupSnapshotHandle::from(group.handle),
        snapshots: group.snapshots.into_iter().map(snapshot).collect(),
        created_at_ms: group.created_at_ms,
        ready: group.ready,
    }
}

/// Converts a capacity report to the host's type.
pub(crate) fn capacity(report: capacity::CapacityReport) -> Capacity {
    Capacity {
        available: report.available_bytes,
        maximum_volume_size: report.maximum_volume_bytes,
        minimum_volume_size: report.minimum_volume_bytes,
    }
}

pub(crate) fn validation(validation: volumes::Validation, redactor: &Redactor) -> Validation {
    match validation {
        volumes::Validation::Confirmed => Validation::Confirmed,
        volumes::Validation::Refused(message) => Validation::Refused(redactor.printable(&message)),
    }
}

pub(crate) fn readiness(readiness: identity::Readiness, redactor: &Redactor) -> Readiness {
    match readiness {
        identity::Readiness::Ready => Readiness::Ready,
        identity::Readiness::NotReady(message) => Readiness::NotReady(redactor.printable(&message)),
    }
}

pub(crate) fn description(description: identity::Description) -> Description {
    Description {
        name: DriverName::new(description.name),
        version: description.version,
        topology_keys: description.topology_keys,
        placement: match description.placement {
            identity::Placement::Central => Placement::Central,
            identity::Placement::Node => Placement::Node,
        },
        volumes_per_node: description.volumes_per_node,
        features: description.features,
    }
}

pub(crate) fn storage_error(error: wit::StorageError, redactor: &Redactor) -> StorageError {
    StorageError {
        kind: match error.kind {
            wit::ErrorKind::InvalidArgument => ErrorKind::InvalidArgument,
            wit::ErrorKind::NotFound => ErrorKind::NotFound,
            wit::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
            wit::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            wit::ErrorKind::Unauthenticated => ErrorKind::Unauthenticated,
            wit::ErrorKind::ResourceExhausted => ErrorKind::ResourceExhausted,
            wit::ErrorKind::FailedPrecondition => ErrorKind::FailedPrecondition,
            wit::ErrorKind::Aborted => ErrorKind::Aborted,
            wit::ErrorKind::OutOfRange => ErrorKind::OutOfRange,
            wit::ErrorKind::Unimplemented => ErrorKind::Unimplemented,
            wit::ErrorKind::Internal => ErrorKind::Internal,
            wit::ErrorKind::Unavailable => ErrorKind::Unavailable,
            wit::ErrorKind::DeadlineExceeded => ErrorKind::DeadlineExceeded,
            wit::ErrorKind::Cancelled => ErrorKind::Cancelled,
            wit::ErrorKind::DataLoss => ErrorKind::DataLoss,
            wit::ErrorKind::Unknown => ErrorKind::Unknown,
        },
        message: redactor.printable(&error.message),
        retry_after_ms: error.retry_after_ms,
        finality: match error.finality {
            wit::Finality::Final => Finality::Final,
            wit::Finality::InProgress => Finality::InProgress,
            wit::Finality::Unknown => Finality::Unknown,
        },
    }
}
