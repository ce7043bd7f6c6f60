//! Creation, deletion and validation of volumes.

use std::{collections::BTreeMap, fmt};

use cofferdam_guest::{
    CreateRequest, Result, StorageError, ValidateRequest, Validation, Volume,
    state::{self, Decision, Store, Versioned, decide},
};

use crate::{
    records::{
        self, MemoryCall, MemoryOwner, MemorySnapshot, MemorySource, StorageUsage, VersionedStorageUsage,
        VolumeArguments, read_entry, volume_key,
    },
    request::{self, CONDITION, LABEL},
    settings::{MAX_TOTAL, MemorySettings},
    topology::{RequestedTopology, TopologySegment},
    values,
};

/// Creates a volume, or returns the existing one.
pub(crate) fn create<S: Store>(
    call: &MemoryCall<'_, S>,
    request: &CreateRequest,
    source: Option<MemorySource>,
) -> Result<Volume> {
    let handle = request::handle_from_name("mem", "volume name", &request.name)?;
    let arguments = request::parse_volume_arguments(request, source, call.settings)?;
    let topology = call.settings.topology.parse_requirement(request.topology.as_ref())?;
    let owner = request.owner.as_ref().map(MemoryOwner::from_volume_owner).transpose()?;
    let key = volume_key(&handle);
    decide(call.store, |_| {
        if let Some(found) = state::read::<records::MemoryVolume>(call.store, &key)? {
            return check_same_arguments(&found.value, request, &arguments, &topology)
                .map(|()| Decision::Done(describe(&handle, &found.value)));
        }
        let source_bytes =
            arguments.source.as_ref().map(|source| source_size(call.store, source)).transpose()?;
        let size = request::choose_size(request.capacity, source_bytes)?;
        let mut usage = VersionedStorageUsage::read(call.store)?;
        let segment = choose_segment(call.settings, &topology, &usage.usage, size)?;
        usage.usage.add_bytes(segment, size);
        usage.usage.volumes = usage.usage.volumes.saturating_add(1);
        let record = records::MemoryVolume {
            name: request.name.clone(),
            size,
            mutable: arguments.mutable.clone(),
            arguments: arguments.clone(),
            owner: owner.clone(),
            changed_ms: call.now_ms,
            segment: segment.cloned(),
            nodes: BTreeMap::new(),
        };
        let changes = vec![state::put(&key, &record, None)?, usage.to_change()?];
        Ok(Decision::Commit(changes, describe(&handle, &record)))
    })
}

/// Deletes a volume. Succeeds if it does not exist.
pub(crate) fn delete<S: Store>(call: &MemoryCall<'_, S>, handle: &str) -> Result<()> {
    request::require_id("volume handle", handle)?;
    decide(call.store, |_| {
        let Some(Versioned { value, version }) =
            read_entry::<records::MemoryVolume>(call.store, handle, volume_key)?
        else {
            return Ok(Decision::Done(()));
        };
        if let Some(node) = value.nodes.keys().next() {
            return Err(StorageError::failed_precondition(format!(
                "the volume {handle:?} is published to {node:?}: unpublish it first"
            )));
        }
        let mut usage = VersionedStorageUsage::read(call.store)?;
        usage.usage.remove_bytes(value.segment.as_ref(), value.size);
        usage.usage.volumes = usage.usage.volumes.saturating_sub(1);
        Ok(Decision::Commit(vec![state::remove(&volume_key(handle), version), usage.to_change()?], ()))
    })
}

/// Checks that a volume was created for the capabilities, and has the given volume attributes and parameters.
/// Returns the first difference as `Refused`.
pub(crate) fn validate<S: Store>(call: &MemoryCall<'_, S>, request: &ValidateRequest) -> Result<Validation> {
    request::require_id("volume handle", &request.handle)?;
    // A mode whose feature is disabled is no error here: the result says whether the volume has it.
    let capabilities = request::canonical_capabilities(&request.capabilities, &MemorySettings::default())?;
    let context = values::parse_pairs("the volume's attributes", &request.context)?;
    let parameters = request::parse_parameters(&request.parameters, &[LABEL, CONDITION])?;
    let mutable = request::parse_mutable_parameters(&request.mutable_parameters)?;
    let found = records::read_volume(call.store, &request.handle)?.value;
    if let Some((key, value)) = conflicting_attribute(&volume_context(&found), &context) {
        return Ok(Validation::Refused(format!("the volume's attribute {key:?} is not {value:?}")));
    }
    let mut class_parameters =
        parameters.iter().filter(|(key, _)| [LABEL, CONDITION].contains(&key.as_str()));
    if let Some((key, value)) =
        class_parameters.find(|(key, value)| found.arguments.parameters.get(*key) != Some(*value))
    {
        return Ok(Validation::Refused(format!("the volume's parameter {key:?} is not {value:?}")));
    }
    if let Some((key, value)) = mutable.iter().find(|(key, value)| found.mutable.get(*key) != Some(value)) {
        return Ok(Validation::Refused(format!("the volume's mutable parameter {key:?} is not {value:?}")));
    }
    match capabilities.iter().find(|capability| !found.arguments.capabilities.contains(capability)) {
        Some(capability) => Ok(Validation::Refused(format!(
            "{capability} is not among the ways the volume was created for: {}",
            found.arguments.capabilities.join(", ")
        ))),
        None => Ok(Validation::Confirmed),
    }
}

/// The size of a content source in bytes. Fails if the source does not exist or is not ready.
fn source_size(store: &impl Store, source: &MemorySource) -> Result<u64> {
    match source {
        MemorySource::Volume(handle) => Ok(records::read_volume(store, handle)?.value.size),
        MemorySource::Snapshot(handle) => {
            let Some(found) = read_entry::<MemorySnapshot>(store, handle, records::snapshot_key)? else {
                return Err(StorageError::not_found(format!("there is no snapshot {handle:?}")));
            };
            if found.value.polls_left > 0 {
                return Err(StorageError::failed_precondition(format!(
                    "the snapshot {handle:?} is not ready yet"
                )));
            }
            Ok(found.value.size)
        }
    }
}

/// The first candidate segment with enough capacity; `None` without topology.
fn choose_segment<'a>(
    settings: &'a MemorySettings,
    requested: &RequestedTopology,
    usage: &StorageUsage,
    size: u64,
) -> Result<Option<&'a TopologySegment>> {
    let candidates = settings.topology.candidates(requested);
    let segments: Vec<_> = if settings.topology.keys.is_empty() {
        vec![None]
    } else {
        candidates.into_iter().map(Some).collect()
    };
    let mut reasons = Vec::new();
    for segment in segments {
        match check_capacity(settings, usage, segment, size) {
            Ok(()) => return Ok(segment),
            Err(exceeded) => reasons.push(exceeded.to_string()),
        }
    }
    if reasons.is_empty() {
        return Err(StorageError::resource_exhausted(
            "no topology segment of the driver is in the request's topology",
        ));
    }
    Err(StorageError::resource_exhausted(format!("{size} bytes do not fit: {}", reasons.join("; "))))
}

/// A limit that leaves too little space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CapacityExceeded {
    /// Label of the segment that the limit applies to; `None` for the whole storage.
    segment: Option<String>,
    used: u64,
    limit: u64,
}

impl fmt::Display for CapacityExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(segment) = &self.segment {
            write!(f, "{segment}: ")?;
        }
        write!(f, "{} of {} bytes are in use", self.used, self.limit)
    }
}

/// Checks that additional bytes fit into a segment, or into the whole storage without topology, and that the
/// total remains within [`MAX_TOTAL`].
pub(crate) fn check_capacity(
    settings: &MemorySettings,
    usage: &StorageUsage,
    segment: Option<&TopologySegment>,
    additional: u64,
) -> std::result::Result<(), CapacityExceeded> {
    let check_limit = |used: u64, limit: u64, segment: Option<&TopologySegment>| {
        let exceeded = || CapacityExceeded { segment: segment.map(|s| s.label.clone()), used, limit };
        used.checked_add(additional).filter(|sum| *sum <= limit).map(drop).ok_or_else(exceeded)
    };
    let used = if settings.is_total_capacity() { usage.bytes } else { usage.used_bytes(segment) };
    check_limit(used, settings.capacity_limit(segment), segment)?;
    check_limit(usage.bytes, MAX_TOTAL, None)
}

/// Checks that an existing volume matches a new request with the same name.
fn check_same_arguments(
    found: &records::MemoryVolume,
    request: &CreateRequest,
    arguments: &VolumeArguments,
    topology: &RequestedTopology,
) -> Result<()> {
    let difference = if !request.capacity.contains(found.size) {
        Some(format!("a size of {} bytes", found.size))
    } else if found.arguments.parameters != arguments.parameters {
        Some(format!("the parameters {:?}", found.arguments.parameters))
    } else if found.arguments.mutable != arguments.mutable {
        Some(format!("the mutable parameters {:?}", found.arguments.mutable))
    } else if found.arguments.capabilities != arguments.capabilities {
        Some(format!("the capabilities {}", found.arguments.capabilities.join(", ")))
    } else if found.arguments.source != arguments.source {
        Some(match &found.arguments.source {
            None => "no content at the beginning".to_owned(),
            Some(MemorySource::Volume(handle)) => format!("the content of the volume {handle:?}"),
            Some(MemorySource::Snapshot(handle)) => format!("the content of the snapshot {handle:?}"),
        })
    } else if !topology.is_satisfied_by(found.segment.as_ref()) {
        Some(format!(
            "its topology segment in {:?}",
            found.segment.as_ref().map_or("", |segment| segment.label.as_str())
        ))
    } else {
        None
    };
    match difference {
        Some(difference) => Err(StorageError::already_exists(format!(
            "the volume {:?} exists, with {difference}",
            request.name
        ))),
        None => Ok(()),
    }
}

/// The volume context. It is fixed at creation.
pub(crate) fn volume_context(record: &records::MemoryVolume) -> BTreeMap<String, String> {
    let label = record.arguments.parameters.get(LABEL).map(|label| (LABEL, label));
    let source = record.arguments.source.as_ref().map(|source| match source {
        MemorySource::Volume(handle) => ("source-volume", handle),
        MemorySource::Snapshot(handle) => ("source-snapshot", handle),
    });
    label.into_iter().chain(source).map(|(key, value)| (key.to_owned(), value.clone())).collect()
}

/// The first requested attribute whose stored value is different, if any. Attributes that are not stored are
/// ignored.
pub(crate) fn conflicting_attribute<'a>(
    stored: &BTreeMap<String, String>,
    requested: &'a BTreeMap<String, String>,
) -> Option<(&'a String, &'a String)> {
    requested.iter().find(|(key, value)| stored.get(*key).is_some_and(|stored| stored != *value))
}

/// Converts a record to the contract's volume. Publish returns the connection info.
pub(crate) fn describe(handle: &str, record: &records::MemoryVolume) -> Volume {
    Volume {
        context: volume_context(record).into_iter().collect(),
        topology: record.segment.as_ref().map(TopologySegment::to_segments).into_iter().collect(),
        ..Volume::new(handle, record.size)
    }
}
