//! Volumes over a store and a pool.

use std::collections::BTreeMap;

use cofferdam_guest::{
    Attachment, Condition, CreateRequest, Result, Segments, StorageError, TopologyRequirement,
    ValidateRequest, Validation, Volume, VolumeStatus,
    abilities::{CapacityReport, CapacityRequest, ExpandRequest, Expanded, VolumePage},
    pool::Pool,
    state::{Store, Versioned},
    to_map,
};

use crate::{
    items::{self, Listed, Owner, Phase, Place, Record, Sort},
    request::{self, CONSISTENCY, Consistency, KIND, Kind, Wanted},
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
                Phase::Making => place.resume(Sort::Volume, &handle, found)?,
                Phase::Ready | Phase::Removing => found.value,
            };
            return Ok(volume(&handle, &record, settings));
        }
        None => {}
    }
    reachable(request.topology.as_ref(), settings)?;
    let (kind, least, source) = match source {
        Some((sort, of)) => {
            let source = place.ready(sort, of)?.value;
            let kind = wanted.kind_of_copy(source.kind)?;
            let consistency = match sort {
                Sort::Volume => wanted.consistency.unwrap_or(Consistency::usual(kind)),
                // Nothing writes to a snapshot.
                Sort::Snapshot => Consistency::None,
            };
            let least = (source.size, place.size(&source)?);
            let source = items::Source { handle: of.to_owned(), item: source.item, consistency };
            (kind, Some(least), Some(source))
        }
        None => (wanted.kind(), None, None),
    };
    let record = Record {
        phase: Phase::Making,
        name: request.name.clone(),
        item: place.new_item(&handle),
        kind,
        size: request::size_of_copy(request.capacity, kind, least)?,
        source,
        shape: wanted.shape,
        owner: request.owner.as_ref().map(Owner::of_volume),
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
    let parameters = to_map(request.parameters);
    request::kinds(&request.capabilities, &parameters)?;
    request::no_mutable(&request.mutable_parameters)?;
    let record = place.ready(Sort::Volume, &request.handle)?.value;
    if let Some(differs) = differs(&record, &parameters) {
        return Ok(Validation::Refused(differs));
    }
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

/// Which of the parameters that were given the volume has not.
fn differs(record: &Record, given: &BTreeMap<String, String>) -> Option<String> {
    let has = |key: &str| match key {
        KIND => Some(record.kind.as_str()),
        key => record.shape.parameters.get(key).map(String::as_str),
    };
    let differs = |key: &&str| given.get(*key).is_some_and(|value| has(key) != Some(value.as_str()));
    let key = [KIND, CONSISTENCY].into_iter().find(differs)?;
    Some(format!("the volume's parameter {key:?} is not {:?}", given.get(key).map_or("", String::as_str)))
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
    let now = place.size(&record)?;
    let size = request::grown(request.capacity, record.kind, now)?.unwrap_or(now);
    if size == record.size {
        return Ok(Expanded { capacity_bytes: size, node_expansion });
    }
    if record.kind == Kind::Image && size > now {
        place.pool.grow(&record.item, size)?;
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
    match place.look(Sort::Volume, handle)? {
        Some(listed) => Ok(status(place, settings, handle, listed)),
        None => Err(StorageError::not_found(format!("there is no volume {handle:?}"))),
    }
}

/// Lists volumes.
pub(crate) fn list<S: Store, P: Pool>(
    place: &Place<'_, S, P>,
    settings: &Settings,
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<VolumePage> {
    let (records, next) = place.list(Sort::Volume, after, limit, |_| true)?;
    let volumes = records.into_iter().map(|(handle, listed)| status(place, settings, &handle, listed));
    Ok(VolumePage { volumes: volumes.collect(), next })
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
    listed: Listed,
) -> VolumeStatus {
    let record = match listed {
        Ok(record) => record,
        Err(message) => {
            return VolumeStatus {
                volume: Volume { capacity_bytes: None, topology: here(settings), ..Volume::new(handle, 0) },
                owner: None,
                published_nodes: Vec::new(),
                condition: Some(Condition { abnormal: true, message }),
                changed_at_ms: None,
            };
        }
    };
    let (abnormal, message) = place.condition(&record);
    VolumeStatus {
        volume: volume(handle, &record, settings),
        published_nodes: Vec::new(),
        condition: Some(Condition { abnormal, message }),
        changed_at_ms: Some(record.changed_ms),
        owner: record.owner.map(Owner::for_volume),
    }
}

fn volume(handle: &str, record: &Record, settings: &Settings) -> Volume {
    let attachment = match record.kind {
        Kind::Directory => Attachment::directory(&record.item),
        Kind::Image => Attachment::image(&record.item),
    };
    Volume {
        topology: here(settings),
        // What is half made or half removed is nothing that a node may use.
        attachment: (record.phase == Phase::Ready).then_some(attachment),
        ..Volume::new(handle, record.size)
    }
}

fn here(settings: &Settings) -> Vec<Segments> {
    vec![vec![(NODE_KEY.to_owned(), settings.node.clone())]]
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
    let of = found.source.as_ref().map(|source| source.handle.as_str());
    let differs = if found.name != request.name {
        Some("the name of another volume with the same digest".to_owned())
    } else if !request::fits(found.size, request.capacity) {
        Some(format!("a size of {} bytes", found.size))
    } else if found.shape.parameters != wanted.shape.parameters {
        Some(format!("the parameters {:?}", found.shape.parameters))
    } else if found.shape.uses != wanted.shape.uses {
        Some(format!("the capabilities {}", found.shape.uses.join(", ")))
    } else if of != source {
        Some(of.map_or("no source".to_owned(), |source| format!("the source {source:?}")))
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
