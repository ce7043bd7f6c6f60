//! The calls for volumes, on their records in the state and their items in the pool; and the available
//! capacity.

use std::collections::BTreeMap;

use cofferdam_guest::{
    Condition, ConnectionInfo, CreateRequest, Result, Segments, StorageError, TopologyRequirement,
    ValidateRequest, Validation, Volume, VolumeStatus,
    abilities::{CapacityReport, CapacityRequest, ExpandRequest, ExpandResponse, VolumePage},
    pool::Pool,
    state::{Store, Versioned},
    to_map,
};

use crate::{
    items::{self, ListedRecord, NodeStorage, OwnerRecord, RecordKind, RecordPhase, StoredRecord},
    request::{self, CONSISTENCY, Consistency, KIND, ParsedRequest, VolumeKind},
    settings::PoolSettings,
};

/// Topology key of the volumes; its value is the setting `node`. The role `node` reports the same key with
/// the name of its node.
pub(crate) const NODE_KEY: &str = "topology.cofferdam.dev/node";
/// Minimum image size in bytes.
const MIN_IMAGE: u64 = 4_096;

/// Kind and handle of a new volume's source; `None` for an empty volume.
pub(crate) type SourceHandle<'a> = Option<(RecordKind, &'a str)>;

/// Creates a volume, or returns the existing one.
pub(crate) fn create<S: Store, P: Pool>(
    storage: &NodeStorage<'_, S, P>,
    settings: &PoolSettings,
    request: &CreateRequest,
    source: SourceHandle<'_>,
) -> Result<Volume> {
    let handle = request::handle_from_name("vol", &request.name)?;
    let parsed = request::parse_request(request)?;
    let source_handle = source.map(|(_, handle)| handle);
    match storage.read_record(RecordKind::Volume, &handle)? {
        Some(found) if found.value.phase == RecordPhase::Deleting => {
            storage.delete(RecordKind::Volume, &handle, found)?
        }
        Some(found) => {
            check_same_arguments(&found.value, request, &parsed, source_handle)?;
            let record = match found.value.phase {
                RecordPhase::Creating => storage.resume(RecordKind::Volume, &handle, found)?,
                RecordPhase::Ready | RecordPhase::Deleting => found.value,
            };
            return Ok(volume(&handle, &record, settings));
        }
        None => {}
    }
    check_topology(request.topology.as_ref(), settings)?;
    let (kind, source_sizes, source) = match source {
        Some((record_kind, source_handle)) => {
            let source = storage.read_ready(record_kind, source_handle)?.value;
            let kind = parsed.kind_of_copy(source.kind)?;
            let consistency = match record_kind {
                RecordKind::Volume => parsed.consistency.unwrap_or(Consistency::default_for(kind)),
                // A snapshot is never written.
                RecordKind::Snapshot => Consistency::None,
            };
            let source_sizes = (source.size, storage.actual_size(&source)?);
            let source =
                items::CopySource { handle: source_handle.to_owned(), item: source.item, consistency };
            (kind, Some(source_sizes), Some(source))
        }
        None => (parsed.kind(), None, None),
    };
    let record = StoredRecord {
        phase: RecordPhase::Creating,
        name: request.name.clone(),
        item: storage.new_item(&handle),
        kind,
        size: request::choose_copy_size(request.capacity, kind, source_sizes)?,
        source,
        arguments: parsed.arguments,
        owner: request.owner.as_ref().map(OwnerRecord::from_volume_owner),
        changed_ms: storage.now_ms,
    };
    let record = storage.create(RecordKind::Volume, &handle, record)?;
    Ok(volume(&handle, &record, settings))
}

/// Deletes a volume. Succeeds if it does not exist.
pub(crate) fn delete<S: Store, P: Pool>(storage: &NodeStorage<'_, S, P>, handle: &str) -> Result<()> {
    match storage.read_record(RecordKind::Volume, handle)? {
        Some(found) => storage.delete(RecordKind::Volume, handle, found),
        None => Ok(()),
    }
}

/// Checks that a volume was created for the capabilities, and has the given `kind` and `consistency`. Unknown
/// parameters and all mutable parameters are an error.
pub(crate) fn validate<S: Store, P: Pool>(
    storage: &NodeStorage<'_, S, P>,
    request: ValidateRequest,
) -> Result<Validation> {
    let capabilities = request::canonical_capabilities(&request.capabilities)?;
    let parameters = to_map(request.parameters);
    request::allowed_kinds(&request.capabilities, &parameters)?;
    request::reject_mutable_parameters(&request.mutable_parameters)?;
    let record = storage.read_ready(RecordKind::Volume, &request.handle)?.value;
    if let Some(mismatch) = parameter_mismatch(&record, &parameters) {
        return Ok(Validation::Refused(mismatch));
    }
    if let Err(refused) = request::check_single_node(&request.capabilities) {
        return Ok(Validation::Refused(refused.to_string()));
    }
    match capabilities.iter().find(|capability| !record.arguments.capabilities.contains(capability)) {
        Some(capability) => Ok(Validation::Refused(format!(
            "{capability} is not among the ways the volume was created for: {}",
            record.arguments.capabilities.join(", ")
        ))),
        None => Ok(Validation::Confirmed),
    }
}

/// Compares the requested `kind` with the volume's, and the requested `consistency` with the parameter at
/// creation, which may be absent. Returns a message on the first difference. Other parameters are not
/// compared.
fn parameter_mismatch(record: &StoredRecord, requested: &BTreeMap<String, String>) -> Option<String> {
    let stored_value = |key: &str| match key {
        KIND => Some(record.kind.as_str()),
        key => record.arguments.parameters.get(key).map(String::as_str),
    };
    let is_different =
        |key: &&str| requested.get(*key).is_some_and(|value| stored_value(key) != Some(value.as_str()));
    let key = [KIND, CONSISTENCY].into_iter().find(is_different)?;
    Some(format!("the volume's parameter {key:?} is not {:?}", requested.get(key).map_or("", String::as_str)))
}

/// Expands a volume. A directory has no enforced size: only its record changes.
pub(crate) fn expand<S: Store, P: Pool>(
    storage: &NodeStorage<'_, S, P>,
    request: &ExpandRequest,
) -> Result<ExpandResponse> {
    let handle = request.handle.as_str();
    let Versioned { value: record, version } = storage.read_ready(RecordKind::Volume, handle)?;
    let node_expansion = record.kind == VolumeKind::Image;
    if request.capacity.required_bytes.is_none() && request.capacity.limit_bytes.is_none() {
        return Err(StorageError::invalid_argument("no size was given; expected one"));
    }
    let current = storage.actual_size(&record)?;
    let size = request::choose_expanded_size(request.capacity, record.kind, current)?.unwrap_or(current);
    if size == record.size {
        return Ok(ExpandResponse { capacity_bytes: size, node_expansion });
    }
    if record.kind == VolumeKind::Image && size > current {
        storage.pool.grow(&record.item, size)?;
    }
    let record = StoredRecord { size, changed_ms: storage.now_ms, ..record };
    storage.write_record(RecordKind::Volume, handle, &record, Some(version)).map_err(|error| {
        // The image may already be expanded. A retry detects that and continues.
        StorageError::new(error.kind, cofferdam_guest::Finality::Unknown, error.message)
    })?;
    Ok(ExpandResponse { capacity_bytes: size, node_expansion })
}

/// Returns a volume and its status.
pub(crate) fn get<S: Store, P: Pool>(
    storage: &NodeStorage<'_, S, P>,
    settings: &PoolSettings,
    handle: &str,
) -> Result<VolumeStatus> {
    match storage.read_for_listing(RecordKind::Volume, handle)? {
        Some(listed) => Ok(status(storage, settings, handle, listed)),
        None => Err(StorageError::not_found(format!("there is no volume {handle:?}"))),
    }
}

/// Lists volumes.
pub(crate) fn list<S: Store, P: Pool>(
    storage: &NodeStorage<'_, S, P>,
    settings: &PoolSettings,
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<VolumePage> {
    let (records, next) = storage.list(RecordKind::Volume, after, limit, |_| true)?;
    let volumes = records.into_iter().map(|(handle, listed)| status(storage, settings, &handle, listed));
    Ok(VolumePage { volumes: volumes.collect(), next })
}

/// Returns the available capacity of the pool: 0 for the topology of another node and for multi-node access
/// modes.
pub(crate) fn available<S: Store, P: Pool>(
    storage: &NodeStorage<'_, S, P>,
    settings: &PoolSettings,
    request: CapacityRequest,
) -> Result<CapacityReport> {
    let kinds = request::allowed_kinds(&request.capabilities, &to_map(request.parameters))?;
    let is_local = request.topology.is_none_or(|segments| is_local_node(&segments, settings));
    if !is_local || request::check_single_node(&request.capabilities).is_err() {
        return Ok(CapacityReport {
            available_bytes: 0,
            maximum_volume_bytes: Some(0),
            minimum_volume_bytes: None,
        });
    }
    let bytes = storage.pool.usage()?.available_bytes;
    let image = kinds.first() == Some(&VolumeKind::Image);
    let minimum = if image { MIN_IMAGE } else { 1 };
    Ok(CapacityReport {
        available_bytes: bytes,
        // Directories have no maximum size because their size is not enforced.
        maximum_volume_bytes: image.then_some(bytes),
        minimum_volume_bytes: Some(minimum),
    })
}

fn status<S: Store, P: Pool>(
    storage: &NodeStorage<'_, S, P>,
    settings: &PoolSettings,
    handle: &str,
    listed: ListedRecord,
) -> VolumeStatus {
    let record = match listed {
        Ok(record) => record,
        Err(error) => {
            return VolumeStatus {
                volume: Volume {
                    capacity_bytes: None,
                    topology: node_segments(settings),
                    ..Volume::new(handle, 0)
                },
                owner: None,
                published_nodes: Vec::new(),
                condition: Some(Condition { abnormal: true, message: error.message }),
                changed_at_ms: None,
            };
        }
    };
    let (abnormal, message) = storage.condition(&record);
    VolumeStatus {
        volume: volume(handle, &record, settings),
        published_nodes: Vec::new(),
        condition: Some(Condition { abnormal, message }),
        changed_at_ms: Some(record.changed_ms),
        owner: record.owner.map(OwnerRecord::into_volume_owner),
    }
}

fn volume(handle: &str, record: &StoredRecord, settings: &PoolSettings) -> Volume {
    let connection_info = match record.kind {
        VolumeKind::Directory => ConnectionInfo::directory(&record.item),
        VolumeKind::Image => ConnectionInfo::image(&record.item),
    };
    Volume {
        topology: node_segments(settings),
        // A node must not use an incomplete volume.
        connection_info: (record.phase == RecordPhase::Ready).then_some(connection_info),
        ..Volume::new(handle, record.size)
    }
}

fn node_segments(settings: &PoolSettings) -> Vec<Segments> {
    vec![vec![(NODE_KEY.to_owned(), settings.node.clone())]]
}

/// Returns true if the segments do not exclude this node.
fn is_local_node(segments: &Segments, settings: &PoolSettings) -> bool {
    segments.iter().all(|(key, value)| key != NODE_KEY || *value == settings.node)
}

fn check_topology(topology: Option<&TopologyRequirement>, settings: &PoolSettings) -> Result<()> {
    let Some(topology) = topology else { return Ok(()) };
    if topology.requisite.is_empty()
        || topology.requisite.iter().any(|segments| is_local_node(segments, settings))
    {
        return Ok(());
    }
    Err(StorageError::resource_exhausted(format!(
        "the volume must be reachable elsewhere; this storage is in the node {:?}",
        settings.node
    )))
}

/// Checks that an existing volume matches a new request with the same name.
fn check_same_arguments(
    found: &StoredRecord,
    request: &CreateRequest,
    parsed: &ParsedRequest,
    source: Option<&str>,
) -> Result<()> {
    let source_handle = found.source.as_ref().map(|source| source.handle.as_str());
    let difference = if found.name != request.name {
        Some("the name of another volume with the same digest".to_owned())
    } else if !request::is_size_in_range(found.size, request.capacity) {
        Some(format!("a size of {} bytes", found.size))
    } else if found.arguments.parameters != parsed.arguments.parameters {
        Some(format!("the parameters {:?}", found.arguments.parameters))
    } else if found.arguments.capabilities != parsed.arguments.capabilities {
        Some(format!("the capabilities {}", found.arguments.capabilities.join(", ")))
    } else if source_handle != source {
        Some(source_handle.map_or("no source".to_owned(), |source| format!("the source {source:?}")))
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
