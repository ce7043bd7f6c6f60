//! Volumes: create, delete, validate, expand, get, list; and the available capacity.

use cofferdam_guest::{
    AccessMode, AccessType, CapacityRange, CreateRequest, KeyValues, Result, StorageError, ValidateRequest,
    Validation, Volume, VolumeCapability, VolumeStatus,
    abilities::{CapacityReport, CapacityRequest, ExpandRequest, ExpandResponse, VolumePage},
    handle,
    http::Request,
    idempotent::{self, Created, ExistingComparison},
    paging,
    parameters::ParameterReader,
    sizes::Sizes,
};

use crate::{
    client::{ArrayClient, is_array_name},
    model::{self, NewVolume, Resize, VolumeList, VolumeSource},
};

/// Separator of capability strings. No capability string contains it.
const CAPABILITY_SEPARATOR: &str = "\n";

/// The sizes of the volumes that the driver creates: 1 MiB to 16 TiB in steps of 1 MiB, by default 1 GiB. The
/// array itself supports any number of bytes up to 16 TiB.
const SIZES: Sizes = Sizes::between(1 << 20, 1 << 44).in_steps_of(1 << 20).by_default(1 << 30);

/// Creates a volume, or returns the existing one. The array rejects a second volume of the same name, so
/// concurrent calls create only one.
pub(crate) fn create(
    client: &ArrayClient,
    request: &CreateRequest,
    source: Option<VolumeSource>,
) -> Result<Volume> {
    check_name(&request.name)?;
    let tier = parse_tier(request.parameters.clone())?;
    ParameterReader::mutable_parameters(request.mutable_parameters.clone()).finish()?;
    let capabilities = canonical_capabilities(&request.capabilities)?;
    if let Some(reason) = unsupported_capability(&request.capabilities) {
        return Err(StorageError::invalid_argument(reason));
    }
    let name = handle::from_name("vol", &request.name);
    let found = idempotent::find_or_create(
        || client.get_if_exists::<model::Volume>(&["volumes", &name]),
        |found| {
            ExistingComparison::new("volume", &request.name)
                .equal("tier", found.tier.as_str(), tier)
                .equal("source", &found.source, &source)
                .equal("use", &model::capabilities(&found.labels), &Some(capabilities.as_str()))
                .same_cluster(model::cluster(&found.labels), request.owner.as_ref())
                .size_within(found.bytes, &request.capacity)
                .check()
        },
        || {
            let bytes = SIZES.choose(&range_with_source(client, &request.capacity, source.as_ref())?)?;
            let labels = model::labels(&capabilities, request.owner.as_ref());
            let new_volume = NewVolume { bytes, tier, source: source.as_ref(), labels };
            put_volume(client, &name, &new_volume)
        },
    )?;
    Ok(volume(&found))
}

fn put_volume(
    client: &ArrayClient,
    name: &str,
    new_volume: &NewVolume<'_>,
) -> Result<Created<model::Volume>> {
    let url = client.url(&["volumes", name])?;
    let response = client.send(|| Request::put(&url).header("if-none-match", "*").json(new_volume))?;
    if response.status == 412 {
        return Ok(Created::AlreadyExists);
    }
    let made = response.ok_or(|response| match response.status {
        404 => Some(StorageError::not_found(format!("the source {:?} does not exist", new_volume.source))),
        422 => Some(StorageError::out_of_range(format!("the array refuses: {}", response.text()))),
        _ => None,
    })?;
    made.json().map(Created::New)
}

/// The size range of a volume that must be at least as large as its source. Fails if the source does not
/// exist or is larger than requested.
fn range_with_source(
    client: &ArrayClient,
    range: &CapacityRange,
    source: Option<&VolumeSource>,
) -> Result<CapacityRange> {
    let (source_handle, found) = match source {
        None => return Ok(*range),
        Some(VolumeSource::Volume(name)) => (name, client.volume(name)?.map(|found| found.bytes)),
        Some(VolumeSource::Snapshot(name)) => (name, client.snapshot(name)?.map(|found| found.bytes)),
    };
    let Some(bytes) = found else {
        return Err(StorageError::not_found(format!("the source {source_handle:?} does not exist")));
    };
    match range.required_bytes {
        Some(required) if required < bytes => Err(StorageError::out_of_range(format!(
            "{}: the source {source_handle:?} has {bytes} bytes",
            range.describe()
        ))),
        required => {
            Ok(CapacityRange { required_bytes: required.or(Some(bytes)), limit_bytes: range.limit_bytes })
        }
    }
}

/// Deletes a volume. Succeeds if it does not exist.
pub(crate) fn delete(client: &ArrayClient, handle: &str) -> Result<()> {
    if !is_array_name(handle) {
        return Ok(());
    }
    client.delete_if_exists(&["volumes", handle], || {
        StorageError::failed_precondition(format!("the volume {handle:?} is published"))
    })
}

/// Checks that a volume was created for the capabilities and has the given parameters. A volume that this
/// driver did not create is confirmed for every supported capability.
pub(crate) fn validate(client: &ArrayClient, request: &ValidateRequest) -> Result<Validation> {
    let requested = canonical_capabilities(&request.capabilities)?;
    let found = get_volume(client, &request.handle)?;
    let created_for = model::capabilities(&found.labels).unwrap_or(&requested);
    let missing_capability = requested
        .split(CAPABILITY_SEPARATOR)
        .find(|requested| !created_for.split(CAPABILITY_SEPARATOR).any(|made| made == *requested));
    let missing_capability = missing_capability.map(|requested| {
        format!(
            "the volume was created for {}, not for {requested}",
            created_for.replace(CAPABILITY_SEPARATOR, " and ")
        )
    });
    let refused = unsupported_capability(&request.capabilities).or(missing_capability).or_else(|| {
        match parse_tier(request.parameters.clone()) {
            Ok(tier) if request.parameters.is_empty() || tier == found.tier => None,
            Ok(tier) => Some(format!("the volume's tier is {:?}, not {tier:?}", found.tier)),
            Err(error) => Some(error.message),
        }
    });
    let mutable = ParameterReader::mutable_parameters(request.mutable_parameters.clone()).finish();
    let refused = refused.or(mutable.err().map(|error| error.message));
    Ok(refused.map_or(Validation::Confirmed, Validation::Refused))
}

/// Expands a volume to at least the required size.
pub(crate) fn expand(client: &ArrayClient, request: &ExpandRequest) -> Result<ExpandResponse> {
    let found = get_volume(client, &request.handle)?;
    let capacity_bytes = match SIZES.grow(&request.capacity, found.bytes)? {
        None => found.bytes,
        Some(bytes) => {
            let url = client.url(&["volumes", &request.handle])?;
            let response = client.send(|| Request::patch(&url).json(&Resize { bytes }))?;
            let grown = response.ok_or(|response| match response.status {
                404 => Some(volume_not_found(&request.handle)),
                // Another call has expanded the volume in the meantime. A retry detects that.
                422 => Some(StorageError::in_progress(format!("the array refuses: {}", response.text()))),
                _ => None,
            })?;
            grown.json::<model::Volume>()?.bytes
        }
    };
    let block =
        request.capability.as_ref().is_some_and(|capability| matches!(capability.access, AccessType::Block));
    Ok(ExpandResponse { capacity_bytes, node_expansion: !block })
}

/// Returns a volume and its status.
pub(crate) fn get(client: &ArrayClient, handle: &str) -> Result<VolumeStatus> {
    Ok(status(&get_volume(client, handle)?))
}

/// Lists a page of all volumes, including volumes that this driver did not create.
pub(crate) fn list(client: &ArrayClient, after: Option<&str>, limit: Option<u32>) -> Result<VolumePage> {
    let after = paging::key_of_token(after)?;
    let response =
        client.send(|| Ok(with_page_query(Request::get(client.url(&["volumes"])?), after, limit)))?;
    let VolumeList { volumes, more } = response.ok_or(|_| None)?.json()?;
    let last = volumes.last().filter(|_| more);
    Ok(VolumePage {
        next: last.map(|last| paging::token(&last.name)),
        volumes: volumes.iter().map(status).collect(),
    })
}

/// Adds the page parameters to a request.
pub(crate) fn with_page_query<'a>(
    request: Request<'a>,
    after: Option<&str>,
    limit: Option<u32>,
) -> Request<'a> {
    let request = match after {
        Some(after) => request.query("after", after),
        None => request,
    };
    match limit.filter(|limit| *limit > 0) {
        Some(limit) => request.query("limit", &limit.to_string()),
        None => request,
    }
}

/// Returns the free capacity, which both tiers share, and the minimum and maximum size of a volume.
pub(crate) fn available(client: &ArrayClient, request: CapacityRequest) -> Result<CapacityReport> {
    parse_tier(request.parameters)?;
    let pool: model::ArrayPool =
        client.get_if_exists(&["pool"])?.ok_or_else(|| StorageError::internal("the array has no pool"))?;
    Ok(CapacityReport {
        available_bytes: pool.free_bytes,
        maximum_volume_bytes: Some(pool.max_volume_bytes.min(pool.free_bytes)),
        minimum_volume_bytes: Some(1 << 20),
    })
}

/// Reads a volume. Fails with `not_found` if it does not exist.
pub(crate) fn get_volume(client: &ArrayClient, handle: &str) -> Result<model::Volume> {
    client.volume(handle)?.ok_or_else(|| volume_not_found(handle))
}

pub(crate) fn volume_not_found(handle: &str) -> StorageError {
    StorageError::not_found(format!("there is no volume {handle:?}"))
}

fn parse_tier(parameters: KeyValues) -> Result<&'static str> {
    let mut reader = ParameterReader::parameters(parameters);
    let tier = reader.choice("tier", &[("fast", "fast"), ("cheap", "cheap")])?;
    reader.finish()?;
    Ok(tier.unwrap_or("cheap"))
}

/// Checks the name of a volume or snapshot.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > handle::MAX_LENGTH || name.chars().any(char::is_control) {
        return Err(StorageError::invalid_argument(format!(
            "the name has {} bytes; expected 1 to {} without control characters",
            name.len(),
            handle::MAX_LENGTH
        )));
    }
    Ok(())
}

/// The capability strings, sorted and joined, so that requests can be compared. Fails with `invalid_argument`
/// if there is no capability.
fn canonical_capabilities(capabilities: &[VolumeCapability]) -> Result<String> {
    if capabilities.is_empty() {
        return Err(StorageError::invalid_argument("no volume capability was given; expected at least one"));
    }
    let mut lines: Vec<_> = capabilities.iter().map(VolumeCapability::canonical_string).collect();
    lines.sort();
    lines.dedup();
    Ok(lines.join(CAPABILITY_SEPARATOR))
}

/// The reason that no volume of the array supports one of the capabilities; `None` if all are supported.
fn unsupported_capability(capabilities: &[VolumeCapability]) -> Option<String> {
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
