//! Volumes over a store and a pool.

use cofferdam_guest::{
    Attachment, Condition, CreateRequest, ReclaimPolicy, Result, Segments, StorageError, TopologyRequirement,
    ValidateRequest, Validation, Volume, VolumeStatus,
    abilities::{CapacityReport, CapacityRequest, ExpandRequest, Expanded, VolumePage},
    pool::Pool,
    state::{Store, Versioned},
    to_map,
};

use crate::{
    items::{Owner, Phase, Place, Record, Sort},
    request::{self, Kind, Wanted},
    settings::Settings,
};

/// Topology key whose value is the node's name; the host fills it.
pub(crate) const NODE_KEY: &str = "topology.cofferdam.dev/node";
/// Smallest image, in bytes.
const MIN_IMAGE: u64 = 4_096;

/// What a new volume holds.
pub(crate) type Source<'a> = Option<(Sort, &'a str)>;

/// Creates a volume or finds it.
pub(crate) fn create<S: Store, P: Pool>(
    place: &Place<'_, S, P>,
    settings: &Settings,
    request: &CreateRequest,
    source: Source<'_>,
) -> Result<Volume> {
    let handle = request::handle("vol", &request.name)?;
    let wanted = request::wanted(request)?;
    let of = source.map(|(_, handle)| handle);
    match place.find(Sort::Volume, &handle)? {
        Some(found) if found.value.phase == Phase::Removing => place.clear(Sort::Volume, &handle, found)?,
        Some(found) => {
            same(&found.value, request, &wanted, of)?;
            let record = match found.value.phase {
                Phase::Making => place.finish(Sort::Volume, &handle, found)?,
                Phase::Ready | Phase::Removing => found.value,
            };
            return Ok(volume(&handle, &record, settings));
        }
        None => {}
    }
    reachable(request.topology.as_ref(), settings)?;
    let (kind, least) = match source {
        Some((sort, handle)) => {
            let source = place.ready(sort, handle)?.value;
            (wanted.kind_of_copy(source.kind)?, Some(source.size))
        }
        None => (wanted.kind(), None),
    };
    let record = Record {
        phase: Phase::Making,
        name: request.name.clone(),
        kind,
        size: request::size(request.capacity, kind, least)?,
        source: of.map(str::to_owned),
        shape: wanted.shape,
        owner: request.owner.as_ref().map(|owner| Owner {
            cluster: owner.cluster_id.clone(),
            claim: owner.claim_uid.clone(),
            volume: owner.pv_name.clone(),
            retain: matches!(owner.reclaim_policy, ReclaimPolicy::Retain),
        }),
        changed_ms: place.now_ms,
    };
    let record = place.make(Sort::Volume, &handle, record)?;
    Ok(volume(&handle, &record, settings))
}

/// Deletes a volume; one that does not exist is a success.
pub(crate) fn delete<S: Store, P: Pool>(place: &Place<'_, S, P>, handle: &str) -> Result<()> {
    match place.find(Sort::Volume, handle)? {
        Some(found) => place.clear(Sort::Volume, handle, found),
        None => Ok(()),
    }
}

/// Tells whether a volume can be used in some ways.
pub(crate) fn validate<S: Store, P: Pool>(
    place: &Place<'_, S, P>,
    request: ValidateRequest,
) -> Result<Validation> {
    let uses = request::uses(&request.capabilities)?;
    let record = place.ready(Sort::Volume, &request.handle)?.value;
    if let Err(refused) = request::single_node(&request.capabilities) {
        return Ok(Validation::Refused(refused));
    }
    match uses.iter().find(|wanted| !record.shape.uses.contains(wanted)) {
        Some(wanted) => Ok(Validation::Refused(format!(
            "{wanted} is not among the ways the volume was created for: {}",
            record.shape.uses.join(", ")
        ))),
        None => Ok(Validation::Confirmed),
    }
}

/// Makes a volume larger.
pub(crate) fn expand<S: Store, P: Pool>(
    place: &Place<'_, S, P>,
    request: &ExpandRequest,
) -> Result<Expanded> {
    let handle = request.handle.as_str();
    let Versioned { value: record, version } = place.ready(Sort::Volume, handle)?;
    let node_expansion = record.kind == Kind::Image;
    if request.capacity.required_bytes.is_none() && request.capacity.limit_bytes.is_none() {
        return Err(StorageError::invalid_argument("no size was given; expected one"));
    }
    if request.capacity.required_bytes.is_none_or(|required| record.size >= required) {
        return Ok(Expanded { capacity_bytes: record.size, node_expansion });
    }
    let size = request::size(request.capacity, record.kind, Some(record.size))?;
    if record.kind == Kind::Image {
        place.pool.grow(handle, size)?;
    }
    let record = Record { size, changed_ms: place.now_ms, ..record };
    place.write(Sort::Volume, handle, &record, Some(version)).map_err(|error| {
        // An image may be large already; the same call finds that and goes on.
        StorageError::new(error.kind, cofferdam_guest::Finality::Unknown, error.message)
    })?;
    Ok(Expanded { capacity_bytes: size, node_expansion })
}

/// Describes a volume.
pub(crate) fn get<S: Store, P: Pool>(
    place: &Place<'_, S, P>,
    settings: &Settings,
    handle: &str,
) -> Result<VolumeStatus> {
    let record = place.ready(Sort::Volume, handle)?.value;
    status(place, settings, handle, record)
}

/// Lists volumes.
pub(crate) fn list<S: Store, P: Pool>(
    place: &Place<'_, S, P>,
    settings: &Settings,
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<VolumePage> {
    let (records, next) = place.list(Sort::Volume, after, limit, |_| true)?;
    let volumes = records.into_iter().map(|(handle, record)| status(place, settings, &handle, record));
    Ok(VolumePage { volumes: volumes.collect::<Result<_>>()?, next })
}

/// Tells the room for more volumes.
pub(crate) fn available<S: Store, P: Pool>(
    place: &Place<'_, S, P>,
    settings: &Settings,
    request: CapacityRequest,
) -> Result<CapacityReport> {
    let kinds = request::kinds(&request.capabilities, &to_map(request.parameters))?;
    let here = request.topology.is_none_or(|segments| is_here(&segments, settings));
    if !here || request::single_node(&request.capabilities).is_err() {
        return Ok(CapacityReport {
            available_bytes: 0,
            maximum_volume_bytes: Some(0),
            minimum_volume_bytes: None,
        });
    }
    let bytes = place.pool.usage()?.available_bytes;
    let image = kinds.first() == Some(&Kind::Image);
    let minimum = if image { MIN_IMAGE } else { 1 };
    Ok(CapacityReport {
        available_bytes: bytes,
        // The size of a directory is not enforced: none is too large.
        maximum_volume_bytes: image.then_some(bytes),
        minimum_volume_bytes: Some(minimum),
    })
}

fn status<S: Store, P: Pool>(
    place: &Place<'_, S, P>,
    settings: &Settings,
    handle: &str,
    record: Record,
) -> Result<VolumeStatus> {
    let trouble = place.trouble(handle, &record)?;
    Ok(VolumeStatus {
        volume: volume(handle, &record, settings),
        published_nodes: Vec::new(),
        condition: Some(Condition {
            abnormal: trouble.is_some(),
            message: trouble.unwrap_or_else(|| "its item is in the pool".to_owned()),
        }),
        changed_at_ms: Some(record.changed_ms),
        owner: record.owner.map(|owner| cofferdam_guest::Owner {
            cluster_id: owner.cluster,
            claim_uid: owner.claim,
            pv_name: owner.volume,
            reclaim_policy: if owner.retain { ReclaimPolicy::Retain } else { ReclaimPolicy::Delete },
        }),
    })
}

fn volume(handle: &str, record: &Record, settings: &Settings) -> Volume {
    Volume {
        topology: vec![vec![(NODE_KEY.to_owned(), settings.node.clone())]],
        attachment: Some(Attachment {
            kind: record.kind.as_str().to_owned(),
            version: 1,
            fields: vec![("path".to_owned(), handle.to_owned())],
        }),
        ..Volume::new(handle, record.size)
    }
}

/// Whether a place is this node.
fn is_here(segments: &Segments, settings: &Settings) -> bool {
    segments.iter().all(|(key, value)| key != NODE_KEY || *value == settings.node)
}

fn reachable(topology: Option<&TopologyRequirement>, settings: &Settings) -> Result<()> {
    let Some(topology) = topology else { return Ok(()) };
    if topology.requisite.is_empty() || topology.requisite.iter().any(|place| is_here(place, settings)) {
        return Ok(());
    }
    Err(StorageError::resource_exhausted(format!(
        "the volume must be reachable elsewhere; this storage is in the node {:?}",
        settings.node
    )))
}

/// Whether the volume of a name is what the same name asks for now.
fn same(found: &Record, request: &CreateRequest, wanted: &Wanted, source: Option<&str>) -> Result<()> {
    let differs = if found.name != request.name {
        Some("the name of another volume with the same digest".to_owned())
    } else if !request::fits(found.size, request.capacity) {
        Some(format!("a size of {} bytes", found.size))
    } else if found.shape.parameters != wanted.shape.parameters {
        Some(format!("the parameters {:?}", found.shape.parameters))
    } else if found.shape.uses != wanted.shape.uses {
        Some(format!("the capabilities {}", found.shape.uses.join(", ")))
    } else if found.source.as_deref() != source {
        Some(found.source.as_ref().map_or("no source".to_owned(), |source| format!("the source {source:?}")))
    } else {
        None
    };
    match differs {
        Some(has) => {
            Err(StorageError::already_exists(format!("the volume {:?} exists, with {has}", request.name)))
        }
        None => Ok(()),
    }
}
