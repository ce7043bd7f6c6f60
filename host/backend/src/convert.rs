//! Between the contract's types and the house's.

use cofferdam_domain::{
    DriverName, ReclaimPolicy, VolumeHandle,
    storage::{
        AccessType, AttachmentRecord, CapabilityMode, CreateVolume, CreatedVolume, Description, ErrorKind,
        Finality, Owner, Parameters, Placement, Readiness, Segments, StorageError, TopologyRequirement,
        ValidateVolume, Validation, VolumeCapability,
    },
};

use crate::{
    bindings::{
        cofferdam::storage::types as wit,
        exports::cofferdam::storage::{identity, volumes},
    },
    checks::{self, printable},
};

type Pairs = Vec<(String, String)>;

fn pairs(map: Parameters) -> Pairs {
    map.into_iter().collect()
}

/// A request as the guest reads it.
pub(crate) fn create_request(request: CreateVolume) -> wit::CreateRequest {
    wit::CreateRequest {
        name: request.name,
        capacity: wit::CapacityRange {
            required_bytes: request.capacity.required,
            limit_bytes: request.capacity.limit,
        },
        capabilities: request.capabilities.into_iter().map(capability).collect(),
        parameters: pairs(request.parameters),
        mutable_parameters: Pairs::new(),
        topology: request.topology.map(topology),
        owner: request.owner.map(owner),
    }
}

/// A request as the guest reads it.
pub(crate) fn validate_request(request: ValidateVolume) -> volumes::ValidateRequest {
    volumes::ValidateRequest {
        handle: request.handle.as_str().to_owned(),
        context: pairs(request.context),
        capabilities: request.capabilities.into_iter().map(capability).collect(),
        parameters: pairs(request.parameters),
        mutable_parameters: Pairs::new(),
    }
}

fn capability(capability: VolumeCapability) -> wit::VolumeCapability {
    wit::VolumeCapability {
        mode: match capability.mode {
            CapabilityMode::SingleNodeWriter => wit::AccessMode::SingleNodeWriter,
            CapabilityMode::SingleNodeReaderOnly => wit::AccessMode::SingleNodeReaderOnly,
            CapabilityMode::MultiNodeReaderOnly => wit::AccessMode::MultiNodeReaderOnly,
            CapabilityMode::MultiNodeSingleWriter => wit::AccessMode::MultiNodeSingleWriter,
            CapabilityMode::MultiNodeMultiWriter => wit::AccessMode::MultiNodeMultiWriter,
            CapabilityMode::SingleNodeSingleWriter => wit::AccessMode::SingleNodeSingleWriter,
            CapabilityMode::SingleNodeMultiWriter => wit::AccessMode::SingleNodeMultiWriter,
        },
        access: match capability.access {
            AccessType::Block => wit::AccessType::Block,
            AccessType::Filesystem { fs_type, mount_flags, mount_group } => {
                wit::AccessType::Filesystem(wit::FilesystemAccess { fs_type, mount_flags, mount_group })
            }
        },
    }
}

fn topology(requirement: TopologyRequirement) -> wit::TopologyRequirement {
    let segments = |places: Vec<Segments>| places.into_iter().map(pairs).collect();
    wit::TopologyRequirement {
        requisite: segments(requirement.requisite),
        preferred: segments(requirement.preferred),
    }
}

fn owner(owner: Owner) -> wit::Owner {
    wit::Owner {
        cluster_id: owner.cluster.as_str().to_owned(),
        claim_uid: owner.claim.as_str().to_owned(),
        pv_name: owner.volume.as_str().to_owned(),
        reclaim_policy: match owner.reclaim_policy {
            // Kubernetes' Recycle ends with an empty volume that stays; what nobody knows must not be deleted.
            ReclaimPolicy::Retain | ReclaimPolicy::Recycle | ReclaimPolicy::Other(_) => {
                wit::ReclaimPolicy::Retain
            }
            ReclaimPolicy::Delete => wit::ReclaimPolicy::Delete,
        },
    }
}

/// A volume as the house reads it; the error says which rule of the contract it breaks.
pub(crate) fn created(volume: wit::Volume) -> Result<CreatedVolume, String> {
    let topology = volume.topology.into_iter().map(|segments| checks::map("a topology segment", segments));
    let attachment = |attachment: wit::Attachment| {
        Ok::<_, String>(AttachmentRecord {
            kind: attachment.kind,
            version: attachment.version,
            fields: checks::map("the attachment", attachment.fields)?,
        })
    };
    Ok(CreatedVolume {
        handle: VolumeHandle::new(volume.handle),
        capacity: volume.capacity_bytes,
        context: checks::map("the context", volume.context)?,
        topology: topology.collect::<Result<_, _>>()?,
        attachment: volume.attachment.map(attachment).transpose()?,
    })
}

pub(crate) fn validation(validation: volumes::Validation) -> Validation {
    match validation {
        volumes::Validation::Confirmed => Validation::Confirmed,
        volumes::Validation::Refused(message) => Validation::Refused(printable(&message)),
    }
}

pub(crate) fn readiness(readiness: identity::Readiness) -> Readiness {
    match readiness {
        identity::Readiness::Ready => Readiness::Ready,
        identity::Readiness::NotReady(message) => Readiness::NotReady(printable(&message)),
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

pub(crate) fn error(error: wit::StorageError) -> StorageError {
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
        message: printable(&error.message),
        retry_after_ms: error.retry_after_ms,
        finality: match error.finality {
            wit::Finality::Final => Finality::Final,
            wit::Finality::InProgress => Finality::InProgress,
            wit::Finality::Unknown => Finality::Unknown,
        },
    }
}
