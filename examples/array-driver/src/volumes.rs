//! Volumes: create, delete, expand, describe.

use cofferdam_guest::{
    AccessMode, AccessType, CapacityRange, CreateRequest, KeyValues, Result, StorageError, ValidateRequest,
    Validation, Volume, VolumeCapability, VolumeStatus,
    abilities::{CapacityReport, CapacityRequest, ExpandRequest, Expanded, VolumePage},
    handle,
    http::Request,
    idempotent::{self, Created, Existing},
    paging,
    parameters::Reader,
    sizes::Sizes,
};

use crate::{
    client::{Client, is_a_name},
    model::{self, NewVolume, Resize, Source, Volumes},
};

/// What parts the ways of use of a volume: nothing that is written out has one.
const BETWEEN: &str = "\n";

/// The array's sizes.
const SIZES: Sizes = Sizes::between(1 << 20, 1 << 44).in_steps_of(1 << 20).by_default(1 << 30);

/// Creates a volume or finds it. The array refuses a second volume of a name, so two calls never make two.
pub(crate) fn create(client: &Client, request: &CreateRequest, source: Option<Source>) -> Result<Volume> {
    check_name(&request.name)?;
    let tier = tier(request.parameters.clone())?;
    Reader::mutable_parameters(request.mutable_parameters.clone()).finish()?;
    let uses = uses(&request.capabilities)?;
    if let Some(why) = refusal(&request.capabilities) {
        return Err(StorageError::invalid_argument(why));
    }
    let name = handle::of("vol", &request.name);
    let found = idempotent::find_or_create(
        || client.find::<model::Volume>(&["volumes", &name]),
        |found| {
            Existing::new("volume", &request.name)
                .same("tier", found.tier.as_str(), tier)
                .same("source", &found.source, &source)
                .same("use", &model::uses(&found.labels), &Some(uses.as_str()))
                .same_cluster(model::cluster(&found.labels), request.owner.as_ref())
                .fits(found.bytes, &request.capacity)
                .check()
        },
        || {
            let bytes = SIZES.choose(&at_least_source(client, &request.capacity, source.as_ref())?)?;
            let labels = model::labels(&uses, request.owner.as_ref());
            let wanted = NewVolume { bytes, tier, source: source.as_ref(), labels };
            make(client, &name, &wanted)
        },
    )?;
    Ok(volume(&found))
}

fn make(client: &Client, name: &str, wanted: &NewVolume<'_>) -> Result<Created<model::Volume>> {
    let url = client.url(&["volumes", name])?;
    let response = client.ask(|| Request::put(&url).header("if-none-match", "*").json(wanted))?;
    if response.status == 412 {
        return Ok(Created::Taken);
    }
    let made = response.ok_or(|response| match response.status {
        404 => Some(StorageError::not_found(format!("the source {:?} does not exist", wanted.source))),
        422 => Some(StorageError::out_of_range(format!("the array refuses: {}", response.text()))),
        _ => None,
    })?;
    made.json().map(Created::New)
}

/// The range for a volume that holds its source.
fn at_least_source(client: &Client, range: &CapacityRange, source: Option<&Source>) -> Result<CapacityRange> {
    let (what, found) = match source {
        None => return Ok(*range),
        Some(Source::Volume(name)) => (name, find(client, name)?.map(|found| found.bytes)),
        Some(Source::Snapshot(name)) => {
            (name, crate::snapshots::find(client, name)?.map(|found| found.bytes))
        }
    };
    let Some(bytes) = found else {
        return Err(StorageError::not_found(format!("the source {what:?} does not exist")));
    };
    match range.required_bytes {
        Some(required) if required < bytes => Err(StorageError::out_of_range(format!(
            "{}: the source {what:?} has {bytes} bytes",
            range.describe()
        ))),
        required => {
            Ok(CapacityRange { required_bytes: required.or(Some(bytes)), limit_bytes: range.limit_bytes })
        }
    }
}

/// Deletes a volume; one that does not exist is a success.
pub(crate) fn delete(client: &Client, handle: &str) -> Result<()> {
    if !is_a_name(handle) {
        return Ok(());
    }
    client.remove(&["volumes", handle], || {
        StorageError::failed_precondition(format!("the volume {handle:?} is published"))
    })
}

/// Tells whether a volume can be used in some ways.
pub(crate) fn validate(client: &Client, request: &ValidateRequest) -> Result<Validation> {
    let wanted = uses(&request.capabilities)?;
    let found = existing(client, &request.handle)?;
    let made_for = model::uses(&found.labels).unwrap_or(&wanted);
    let stranger = wanted.split(BETWEEN).find(|wanted| !made_for.split(BETWEEN).any(|made| made == *wanted));
    let stranger = stranger.map(|wanted| {
        format!("the volume was created for {}, not for {wanted}", made_for.replace(BETWEEN, " and "))
    });
    let refused =
        refusal(&request.capabilities).or(stranger).or_else(|| match tier(request.parameters.clone()) {
            Ok(tier) if request.parameters.is_empty() || tier == found.tier => None,
            Ok(tier) => Some(format!("the volume's tier is {:?}, not {tier:?}", found.tier)),
            Err(error) => Some(error.message),
        });
    let mutable = Reader::mutable_parameters(request.mutable_parameters.clone()).finish();
    let refused = refused.or(mutable.err().map(|error| error.message));
    Ok(refused.map_or(Validation::Confirmed, Validation::Refused))
}

/// Makes a volume as large as required.
pub(crate) fn expand(client: &Client, request: &ExpandRequest) -> Result<Expanded> {
    let found = existing(client, &request.handle)?;
    let capacity_bytes = match SIZES.grow(&request.capacity, found.bytes)? {
        None => found.bytes,
        Some(bytes) => {
            let url = client.url(&["volumes", &request.handle])?;
            let response = client.ask(|| Request::patch(&url).json(&Resize { bytes }))?;
            let grown = response.ok_or(|response| match response.status {
                404 => Some(missing(&request.handle)),
                // Another call has made it larger meanwhile: the same call again finds that.
                422 => Some(StorageError::in_progress(format!("the array refuses: {}", response.text()))),
                _ => None,
            })?;
            grown.json::<model::Volume>()?.bytes
        }
    };
    let block = request.capability.as_ref().is_some_and(|used| matches!(used.access, AccessType::Block));
    Ok(Expanded { capacity_bytes, node_expansion: !block })
}

/// Describes a volume.
pub(crate) fn get(client: &Client, handle: &str) -> Result<VolumeStatus> {
    Ok(status(&existing(client, handle)?))
}

/// A part of all volumes, also of those that somebody else made.
pub(crate) fn list(client: &Client, after: Option<&str>, limit: Option<u32>) -> Result<VolumePage> {
    let after = paging::key(after)?;
    let response = client.ask(|| Ok(page(Request::get(client.url(&["volumes"])?), after, limit)))?;
    let Volumes { volumes, more } = response.ok_or(|_| None)?.json()?;
    let last = volumes.last().filter(|_| more);
    Ok(VolumePage {
        next: last.map(|last| paging::place(&last.name)),
        volumes: volumes.iter().map(status).collect(),
    })
}

/// Asks for a part of a list.
pub(crate) fn page<'a>(request: Request<'a>, after: Option<&str>, limit: Option<u32>) -> Request<'a> {
    let request = match after {
        Some(after) => request.query("after", after),
        None => request,
    };
    match limit.filter(|limit| *limit > 0) {
        Some(limit) => request.query("limit", &limit.to_string()),
        None => request,
    }
}

/// How much room there is; both tiers share it.
pub(crate) fn available(client: &Client, request: CapacityRequest) -> Result<CapacityReport> {
    tier(request.parameters)?;
    let pool: model::Pool =
        client.find(&["pool"])?.ok_or_else(|| StorageError::internal("the array has no pool"))?;
    Ok(CapacityReport {
        available_bytes: pool.free_bytes,
        maximum_volume_bytes: Some(pool.largest_bytes.min(pool.free_bytes)),
        minimum_volume_bytes: Some(1 << 20),
    })
}

fn find(client: &Client, handle: &str) -> Result<Option<model::Volume>> {
    if is_a_name(handle) { client.find(&["volumes", handle]) } else { Ok(None) }
}

/// The volume of a handle.
pub(crate) fn existing(client: &Client, handle: &str) -> Result<model::Volume> {
    find(client, handle)?.ok_or_else(|| missing(handle))
}

pub(crate) fn missing(handle: &str) -> StorageError {
    StorageError::not_found(format!("there is no volume {handle:?}"))
}

fn tier(parameters: KeyValues) -> Result<&'static str> {
    let mut reader = Reader::parameters(parameters);
    let tier = reader.choice("tier", &[("fast", "fast"), ("cheap", "cheap")])?;
    reader.finish()?;
    Ok(tier.unwrap_or("cheap"))
}

/// Checks the name of a volume or a snapshot.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > handle::MAX || name.chars().any(char::is_control) {
        return Err(StorageError::invalid_argument(format!(
            "the name has {} bytes; expected 1 to {} without control characters",
            name.len(),
            handle::MAX
        )));
    }
    Ok(())
}

/// The ways of use, written out and sorted, so that two requests can be compared.
fn uses(capabilities: &[VolumeCapability]) -> Result<String> {
    if capabilities.is_empty() {
        return Err(StorageError::invalid_argument("no volume capability was given; expected at least one"));
    }
    let mut uses: Vec<_> = capabilities.iter().map(VolumeCapability::words).collect();
    uses.sort();
    uses.dedup();
    Ok(uses.join(BETWEEN))
}

/// Why a volume cannot be used in one of these ways.
fn refusal(capabilities: &[VolumeCapability]) -> Option<String> {
    let shared = |capability: &VolumeCapability| {
        matches!(capability.mode, AccessMode::MultiNodeMultiWriter | AccessMode::MultiNodeSingleWriter)
            && matches!(capability.access, AccessType::Filesystem(_))
    };
    capabilities
        .iter()
        .any(shared)
        .then(|| "a filesystem of this array is written on one node; several need a block volume".to_owned())
}

fn volume(found: &model::Volume) -> Volume {
    Volume::new(&found.name, found.bytes)
}

fn status(found: &model::Volume) -> VolumeStatus {
    VolumeStatus {
        volume: volume(found),
        owner: model::owner(&found.labels),
        published_nodes: found.exports.iter().map(|export| export.node.clone()).collect(),
        condition: None,
        changed_at_ms: Some(found.changed_ms),
    }
}
