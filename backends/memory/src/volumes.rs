//! Create, delete and validate over a store.
//!
//! Two kinds of keys: one per volume, and the ledger, which holds what all volumes together use. A volume and the ledger are
//! changed in one commit, so the sum is right whenever a call dies, and a create costs the same with one volume or many.

use std::collections::BTreeMap;

use cofferdam_guest::{
    Attachment, CreateRequest, ReclaimPolicy, Result, StorageError, ValidateRequest, Validation, Volume,
    state::{self, StateError, Store, Versioned},
    to_map,
};
use serde::{Deserialize, Serialize};

use crate::{
    request::{self, LABEL, Shape},
    settings::Settings,
};

/// Key of the ledger.
const LEDGER: &str = "ledger";
/// How often a decision is made anew after a foreign write. Every conflict means that another call got on, so the bound is
/// only met when as many calls of other volumes finish within this one's few microseconds.
const ATTEMPTS: usize = 64;

/// What all volumes together use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Ledger {
    bytes: u64,
    volumes: u64,
}

/// A volume as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    name: String,
    size: u64,
    shape: Shape,
    owner: Option<Owner>,
}

/// Who asked for a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    cluster: String,
    claim: String,
    volume: String,
    retain: bool,
}

fn key(handle: &str) -> String {
    format!("volume/{handle}")
}

/// Creates a volume or finds it.
pub(crate) fn create(store: &impl Store, settings: &Settings, request: CreateRequest) -> Result<Volume> {
    let handle = request::handle(&request.name)?;
    let shape = request::shape(&request)?;
    let wanted = request::size(request.capacity);
    let key = key(&handle);
    decide(store, |store| {
        if let Some(found) = state::read::<Record>(store, &key)? {
            return same(&found.value, &request, &shape)
                .map(|()| Decision::Done(volume(&handle, &found.value)));
        }
        let size = wanted.clone()?;
        let ledger = ledger(store)?;
        let charged = charge(ledger.value, size, settings.capacity)?;
        let record = Record {
            name: request.name.clone(),
            size,
            shape: shape.clone(),
            owner: request.owner.as_ref().map(|owner| Owner {
                cluster: owner.cluster_id.clone(),
                claim: owner.claim_uid.clone(),
                volume: owner.pv_name.clone(),
                retain: matches!(owner.reclaim_policy, ReclaimPolicy::Retain),
            }),
        };
        let changes = vec![state::put(&key, &record, None)?, state::put(LEDGER, &charged, ledger.replaces)?];
        Ok(Decision::Commit(changes, volume(&handle, &record)))
    })
}

/// Deletes a volume; one that does not exist is a success.
pub(crate) fn delete(store: &impl Store, handle: &str) -> Result<()> {
    let key = key(handle);
    decide(store, |store| {
        let Some(Versioned { value, version }) = find(store, handle, &key)? else {
            return Ok(Decision::Done(()));
        };
        let ledger = ledger(store)?;
        let released = Ledger {
            bytes: ledger.value.bytes.saturating_sub(value.size),
            volumes: ledger.value.volumes.saturating_sub(1),
        };
        // The last volume takes the ledger with it: nothing is left of a backend that holds nothing.
        let ledger = match ledger.replaces {
            Some(replaced) if released == Ledger::default() => state::remove(LEDGER, replaced),
            replaced => state::put(LEDGER, &released, replaced)?,
        };
        Ok(Decision::Commit(vec![state::remove(&key, version), ledger], ()))
    })
}

/// Tells whether a volume can be used in some ways.
pub(crate) fn validate(store: &impl Store, request: ValidateRequest) -> Result<Validation> {
    let uses = request::uses(&request.capabilities)?;
    let Some(found) = find(store, &request.handle, &key(&request.handle))? else {
        return Err(StorageError::not_found(format!("there is no volume {:?}", request.handle)));
    };
    let kept = context(&found.value);
    for (key, value) in to_map(request.context) {
        if kept.get(&key).is_some_and(|kept| *kept != value) {
            return Ok(Validation::Refused(format!("the volume's attribute {key:?} is not {value:?}")));
        }
    }
    match uses.iter().find(|wanted| !found.value.shape.uses.contains(wanted)) {
        Some(wanted) => Ok(Validation::Refused(format!(
            "{wanted} is not among the ways the volume was created for: {}",
            found.value.shape.uses.join(", ")
        ))),
        None => Ok(Validation::Confirmed),
    }
}

/// The volume of a handle. A handle longer than any of ours is nobody's, and is not worth a key.
fn find(store: &impl Store, handle: &str, key: &str) -> Result<Option<Versioned<Record>>> {
    if handle.len() > request::MAX_HANDLE { Ok(None) } else { state::read(store, key) }
}

/// What a look at the store leads to.
enum Decision<T> {
    /// Nothing is to be written.
    Done(T),
    /// These changes make the answer true.
    Commit(Vec<state::Change>, T),
}

/// Looks, decides and commits, anew as long as others write in between.
fn decide<S: Store, T>(store: &S, mut look: impl FnMut(&S) -> Result<Decision<T>>) -> Result<T> {
    for _ in 0..ATTEMPTS {
        match look(store)? {
            Decision::Done(answer) => return Ok(answer),
            Decision::Commit(changes, answer) => match store.commit(&changes) {
                Ok(_) => return Ok(answer),
                Err(StateError::Conflict(_)) => {}
                Err(
                    error @ (StateError::KeySize(_)
                    | StateError::ValueSize(_)
                    | StateError::BatchSize(_)
                    | StateError::RepeatedKey(_)
                    | StateError::Full(_)
                    | StateError::Unavailable(_)),
                ) => return Err(error.into()),
            },
        }
    }
    Err(StorageError::aborted(format!("{ATTEMPTS} other calls changed the state at the same time"))
        .nothing_happened())
}

/// The ledger with the version that a change of it replaces.
struct Read {
    value: Ledger,
    replaces: Option<state::Version>,
}

fn ledger(store: &impl Store) -> Result<Read> {
    Ok(match state::read::<Ledger>(store, LEDGER)? {
        Some(Versioned { value, version }) => Read { value, replaces: Some(version) },
        None => Read { value: Ledger::default(), replaces: None },
    })
}

fn charge(ledger: Ledger, size: u64, capacity: Option<u64>) -> Result<Ledger> {
    let bytes = ledger.bytes.checked_add(size).filter(|sum| capacity.is_none_or(|capacity| *sum <= capacity));
    match bytes {
        Some(bytes) => Ok(Ledger { bytes, volumes: ledger.volumes.saturating_add(1) }),
        None => Err(StorageError::resource_exhausted(format!(
            "{size} bytes do not fit: {} of {} bytes are in use",
            ledger.bytes,
            capacity.unwrap_or(u64::MAX)
        ))),
    }
}

/// Whether the volume of a name is what the same name asks for now.
fn same(found: &Record, request: &CreateRequest, shape: &Shape) -> Result<()> {
    let differs = if found.name != request.name {
        Some("the name of another volume with the same digest".to_owned())
    } else if !request::fits(found.size, request.capacity) {
        Some(format!("a size of {} bytes", found.size))
    } else if found.shape.parameters != shape.parameters {
        Some(format!("the parameters {:?}", found.shape.parameters))
    } else if found.shape.uses != shape.uses {
        Some(format!("the capabilities {}", found.shape.uses.join(", ")))
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

fn context(record: &Record) -> BTreeMap<String, String> {
    let label = record.shape.parameters.get(LABEL);
    label.map(|label| (LABEL.to_owned(), label.clone())).into_iter().collect()
}

fn volume(handle: &str, record: &Record) -> Volume {
    Volume {
        context: context(record).into_iter().collect(),
        attachment: Some(Attachment::none()),
        ..Volume::new(handle, record.size)
    }
}

#[cfg(test)]
#[path = "volumes_tests.rs"]
mod tests;
