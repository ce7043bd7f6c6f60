//! Create, delete and validate.

use std::collections::BTreeMap;

use cofferdam_guest::{
    CreateRequest, Result, StorageError, ValidateRequest, Validation, Volume,
    state::{self, Decision, Store, Versioned, decide},
};

use crate::{
    records::{self, Books, Call, Ledger, Owner, Shape, Snapshot, Source, find, volume_key},
    request::{self, CONDITION, LABEL},
    settings::{MAX_TOTAL, Settings},
    topology::{Place, Wanted},
};

/// Creates a volume or finds it.
pub(crate) fn create<S: Store>(
    call: &Call<'_, S>,
    request: &CreateRequest,
    source: Option<Source>,
) -> Result<Volume> {
    let handle = request::handle("mem", "volume name", &request.name)?;
    let shape = request::shape(request, source, call.settings)?;
    let wanted = call.settings.topology.wanted(request.topology.as_ref())?;
    let owner = request.owner.as_ref().map(Owner::read).transpose()?;
    let key = volume_key(&handle);
    decide(call.store, |_| {
        if let Some(found) = state::read::<records::Volume>(call.store, &key)? {
            return same(&found.value, request, &shape, &wanted)
                .map(|()| Decision::Done(describe(&handle, &found.value)));
        }
        let least = shape.source.as_ref().map(|source| size_of(call.store, source)).transpose()?;
        let size = request::size(request.capacity, least)?;
        let mut books = Books::read(call.store)?;
        let place = choose(call.settings, &wanted, &books.ledger, size)?;
        books.ledger.charge(place, size);
        books.ledger.volumes = books.ledger.volumes.saturating_add(1);
        let record = records::Volume {
            name: request.name.clone(),
            size,
            mutable: shape.mutable.clone(),
            shape: shape.clone(),
            owner: owner.clone(),
            changed_ms: call.now_ms,
            place: place.cloned(),
            nodes: BTreeMap::new(),
        };
        let changes = vec![state::put(&key, &record, None)?, books.change()?];
        Ok(Decision::Commit(changes, describe(&handle, &record)))
    })
}

/// Deletes a volume; one that does not exist is a success.
pub(crate) fn delete<S: Store>(call: &Call<'_, S>, handle: &str) -> Result<()> {
    request::given("volume handle", handle)?;
    decide(call.store, |_| {
        let Some(Versioned { value, version }) = find::<records::Volume>(call.store, handle, volume_key)?
        else {
            return Ok(Decision::Done(()));
        };
        if let Some(node) = value.nodes.keys().next() {
            return Err(StorageError::failed_precondition(format!(
                "the volume {handle:?} is published to {node:?}: unpublish it first"
            )));
        }
        let mut books = Books::read(call.store)?;
        books.ledger.release(value.place.as_ref(), value.size);
        books.ledger.volumes = books.ledger.volumes.saturating_sub(1);
        Ok(Decision::Commit(vec![state::remove(&volume_key(handle), version), books.change()?], ()))
    })
}

/// Tells whether a volume can be used in some ways.
pub(crate) fn validate<S: Store>(call: &Call<'_, S>, request: &ValidateRequest) -> Result<Validation> {
    request::given("volume handle", &request.handle)?;
    // A mode whose feature is switched off is an answer here, not a mistake.
    let uses = request::uses(&request.capabilities, &Settings::default())?;
    let context = request::map("the volume's attributes", &request.context)?;
    let parameters = request::parameters(&request.parameters, &[LABEL, CONDITION])?;
    let mutable = request::mutable(&request.mutable_parameters)?;
    let found = records::volume(call.store, &request.handle)?.value;
    if let Some((key, value)) = stranger(&context_of(&found), &context) {
        return Ok(Validation::Refused(format!("the volume's attribute {key:?} is not {value:?}")));
    }
    let mut given = parameters.iter().filter(|(key, _)| [LABEL, CONDITION].contains(&key.as_str()));
    if let Some((key, value)) = given.find(|(key, value)| found.shape.parameters.get(*key) != Some(*value)) {
        return Ok(Validation::Refused(format!("the volume's parameter {key:?} is not {value:?}")));
    }
    if let Some((key, value)) = mutable.iter().find(|(key, value)| found.mutable.get(*key) != Some(value)) {
        return Ok(Validation::Refused(format!("the volume's mutable parameter {key:?} is not {value:?}")));
    }
    match uses.iter().find(|wanted| !found.shape.uses.contains(wanted)) {
        Some(wanted) => Ok(Validation::Refused(format!(
            "{wanted} is not among the ways the volume was created for: {}",
            found.shape.uses.join(", ")
        ))),
        None => Ok(Validation::Confirmed),
    }
}

/// What a source holds.
fn size_of(store: &impl Store, source: &Source) -> Result<u64> {
    match source {
        Source::Volume(handle) => Ok(records::volume(store, handle)?.value.size),
        Source::Snapshot(handle) => {
            let Some(found) = find::<Snapshot>(store, handle, records::snapshot_key)? else {
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

/// The first place that has room; none for a driver without places.
fn choose<'a>(
    settings: &'a Settings,
    wanted: &Wanted,
    ledger: &Ledger,
    size: u64,
) -> Result<Option<&'a Place>> {
    let candidates = settings.topology.candidates(wanted);
    let places: Vec<_> = if settings.topology.keys.is_empty() {
        vec![None]
    } else {
        candidates.into_iter().map(Some).collect()
    };
    let mut full = Vec::new();
    for place in places {
        match room(settings, ledger, place, size) {
            Ok(()) => return Ok(place),
            Err(why) => full.push(why),
        }
    }
    if full.is_empty() {
        return Err(StorageError::resource_exhausted("none of the driver's places is among those asked for"));
    }
    Err(StorageError::resource_exhausted(format!("{size} bytes do not fit: {}", full.join("; "))))
}

/// Whether so many more bytes fit a place; the error says what is in use there.
pub(crate) fn room(
    settings: &Settings,
    ledger: &Ledger,
    place: Option<&Place>,
    more: u64,
) -> std::result::Result<(), String> {
    let place_has = || place.map_or_else(String::new, |place| format!("{}: ", place.label));
    let fits = |used: u64, of: u64, whose: String| match used.checked_add(more) {
        Some(sum) if sum <= of => Ok(()),
        _ => Err(format!("{whose}{used} of {of} bytes are in use")),
    };
    let used = if settings.is_whole() { ledger.bytes } else { ledger.used(place) };
    fits(used, settings.limit(place), place_has())?;
    fits(ledger.bytes, MAX_TOTAL, String::new())
}

/// Whether the volume of a name is what the same name asks for now.
fn same(found: &records::Volume, request: &CreateRequest, shape: &Shape, wanted: &Wanted) -> Result<()> {
    let differs = if !request.capacity.fits(found.size) {
        Some(format!("a size of {} bytes", found.size))
    } else if found.shape.parameters != shape.parameters {
        Some(format!("the parameters {:?}", found.shape.parameters))
    } else if found.shape.mutable != shape.mutable {
        Some(format!("the mutable parameters {:?}", found.shape.mutable))
    } else if found.shape.uses != shape.uses {
        Some(format!("the capabilities {}", found.shape.uses.join(", ")))
    } else if found.shape.source != shape.source {
        Some(match &found.shape.source {
            None => "no content at the beginning".to_owned(),
            Some(Source::Volume(handle)) => format!("the content of the volume {handle:?}"),
            Some(Source::Snapshot(handle)) => format!("the content of the snapshot {handle:?}"),
        })
    } else if !wanted.allows(found.place.as_ref()) {
        Some(format!("its place in {:?}", found.place.as_ref().map_or("", |place| place.label.as_str())))
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

/// A volume's attributes: what stands in them is fixed when it is created.
pub(crate) fn context_of(record: &records::Volume) -> BTreeMap<String, String> {
    let label = record.shape.parameters.get(LABEL).map(|label| (LABEL, label));
    let source = record.shape.source.as_ref().map(|source| match source {
        Source::Volume(handle) => ("source-volume", handle),
        Source::Snapshot(handle) => ("source-snapshot", handle),
    });
    label.into_iter().chain(source).map(|(key, value)| (key.to_owned(), value.clone())).collect()
}

/// An attribute that a caller knows otherwise. Those that are not ours are other people's.
pub(crate) fn stranger<'a>(
    kept: &BTreeMap<String, String>,
    given: &'a BTreeMap<String, String>,
) -> Option<(&'a String, &'a String)> {
    given.iter().find(|(key, value)| kept.get(*key).is_some_and(|kept| kept != *value))
}

/// A volume as the contract spells it. How a node reaches it is said when it is published.
pub(crate) fn describe(handle: &str, record: &records::Volume) -> Volume {
    Volume {
        context: context_of(record).into_iter().collect(),
        topology: record.place.as_ref().map(Place::segments).into_iter().collect(),
        ..Volume::new(handle, record.size)
    }
}
