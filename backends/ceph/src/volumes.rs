//! Volumes: create, delete, validate, expand, read and list; and the free capacity.

use std::time::Duration;

use cofferdam_guest::{
    AccessType, CreateRequest, KeyValues, Result, StorageError, ValidateRequest, Validation, Volume,
    VolumeStatus,
    abilities::{
        Capacity, CapacityReport, CapacityRequest, ExpandRequest, ExpandResponse, Expansion, Inspection,
        Listing, VolumePage,
    },
    ambient,
    idempotent::{self, Created, ExistingComparison},
    paging,
    parameters::ParameterReader,
    sizes::Sizes,
};

use crate::{
    CLONE, CephDriver, EXPANSION, MIB, VOLUME,
    client::Ceph,
    images::{Image, ImageSpec, named},
    nodes,
    record::Record,
    request::{capabilities, check_name},
    snapshots,
};

/// Ceph supports any number of bytes.
const MAX_BYTES: u64 = 1 << 50;
const SIZES: Sizes = Sizes::between(MIB, MAX_BYTES).in_steps_of(MIB).by_default(1 << 30);

/// The time after which an interrupted expansion no longer prevents one to another size.
const EXPANSION_TIMEOUT: Duration = Duration::from_secs(60);

/// The source of a volume's content, by its handle.
#[derive(Debug)]
pub(crate) enum Source {
    Volume(String),
    Snapshot(String),
}

impl Source {
    fn to_text(&self) -> String {
        match self {
            Self::Volume(handle) => format!("volume {handle}"),
            Self::Snapshot(handle) => format!("snapshot {handle}"),
        }
    }

    /// The RBD snapshot from which an image is cloned.
    fn snapshot(&self, spec: &ImageSpec) -> String {
        match self {
            Self::Volume(_) => clone_snapshot(spec),
            Self::Snapshot(handle) => handle.split('/').next_back().unwrap_or_default().to_owned(),
        }
    }
}

/// Creates a volume, or returns the existing one.
pub(crate) fn create(request: &CreateRequest, source: Option<&Source>) -> Result<Volume> {
    let ceph = Ceph::new()?;
    check_name(&request.name)?;
    ParameterReader::mutable_parameters(request.mutable_parameters.clone()).finish()?;
    let pool = read_pool(&ceph, request.parameters.clone())?;
    let uses = capabilities(&request.capabilities)?;
    let spec = named(&pool, VOLUME, &request.name);
    let source_text = source.map(Source::to_text);
    let record = |bytes| {
        let record = Record { uses: uses.clone(), bytes, source: source_text.clone(), ..Record::default() };
        record.with_owner(request.owner.as_ref())
    };
    let created = idempotent::find_or_create(
        || {
            let Some(found) = ceph.find_named(VOLUME, &request.name)? else { return Ok(None) };
            let parent = source.map(|source| source.snapshot(&spec));
            complete(&ceph, found, &spec, parent, || Ok(record(SIZES.choose(&request.capacity)?)))
        },
        |found| {
            let spec_found = found.spec();
            let kept = found.record().unwrap_or_default();
            ExistingComparison::new("volume", &request.name)
                .equal("pool", &spec_found.pool, &pool)
                .equal("use", &kept.uses, &uses)
                .equal("source", &kept.source, &source_text)
                .same_cluster(kept.cluster(), request.owner.as_ref())
                .size_within(found.size.max(kept.bytes), &request.capacity)
                .check()
        },
        || {
            match source {
                None => {
                    let bytes = SIZES.choose(&request.capacity)?;
                    ceph.create(&spec, bytes, &record(bytes))?;
                }
                Some(source) => {
                    let snapshot = source.snapshot(&spec);
                    let (image, minimum) = prepare(&ceph, source, &snapshot)?;
                    let sizes = Sizes::between(minimum, MAX_BYTES).in_steps_of(MIB);
                    let bytes = sizes.choose(&request.capacity)?;
                    if image.snapshot(&snapshot).is_none() {
                        ceph.take_snapshot(&image.spec(), &snapshot)?;
                    }
                    ceph.protect(&image.spec(), &snapshot)?;
                    ceph.clone_image(&image.spec(), &snapshot, &spec, &record(bytes))?;
                }
            }
            // The dashboard merges concurrent creations of a name, whatever their arguments: compare the result.
            Ok(Created::AlreadyExists)
        },
    )?;
    // A clone has the size of its source.
    let wanted = created.record().map_or(0, |record| record.bytes);
    let bytes = if created.size < wanted { ceph.expand(&spec, wanted)? } else { created.size };
    Ok(Volume::new(spec.to_string(), bytes))
}

/// Adds the record to an image of which the dashboard has created only the image: one without snapshots that has
/// the requested source, or else the requested size. Other images remain as they are.
fn complete(
    ceph: &Ceph,
    found: Image,
    spec: &ImageSpec,
    parent: Option<String>,
    record: impl FnOnce() -> Result<Record>,
) -> Result<Option<Image>> {
    if found.record().is_some() || found.spec() != *spec || !found.snapshots.is_empty() {
        return Ok(Some(found));
    }
    let record = record()?;
    let has_source = found.parent.as_ref().map(|parent| &parent.snap_name) == parent.as_ref();
    if has_source && (parent.is_some() || found.size == record.bytes) {
        ceph.set_record(spec, &record)?;
        return ceph.image(spec);
    }
    Ok(Some(found))
}

/// The RBD snapshot from which the volume with this image is cloned.
fn clone_snapshot(spec: &ImageSpec) -> String {
    format!("{CLONE}{}", spec.name)
}

/// Finds the image that a new volume is cloned from, and the size of the RBD snapshot.
fn prepare(ceph: &Ceph, source: &Source, snapshot: &str) -> Result<(Image, u64)> {
    let (image, taken) = match source {
        Source::Volume(handle) => {
            let image = ceph.volume(handle)?;
            let size = image.size;
            (image, Some(size))
        }
        Source::Snapshot(handle) => (snapshots::read_snapshot(ceph, handle)?.1, None),
    };
    let bytes = image.snapshot(snapshot).map(|snapshot| snapshot.size).or(taken);
    let missing = || StorageError::not_found(format!("{} has no snapshot {snapshot:?}", image.spec()));
    bytes.ok_or_else(missing).map(|bytes| (image, bytes))
}

/// Deletes a volume. Succeeds if it does not exist. The dashboard deletes an image together with its snapshots,
/// so the driver looks for them first.
pub(crate) fn delete(handle: &str) -> Result<()> {
    let ceph = Ceph::new()?;
    let Some(image) = ceph.find(handle)? else { return Ok(()) };
    let spec = image.spec();
    if !spec.name.starts_with(VOLUME) {
        return Err(StorageError::failed_precondition(format!(
            "the image {handle:?} is no volume of this driver; delete it with Ceph's tools"
        )));
    }
    if let Some(node) = nodes::published_to(&ceph, &spec)? {
        return Err(nodes::published_elsewhere(handle, &node));
    }
    if let Some(kept) = image.snapshots.iter().find(|snapshot| !snapshot.name.starts_with(CLONE)) {
        return Err(StorageError::failed_precondition(format!(
            "the volume {handle:?} has the snapshot {:?}; delete its snapshots first",
            kept.name
        )));
    }
    for snapshot in &image.snapshots {
        ceph.delete_snapshot(&spec, snapshot)?;
    }
    ceph.delete(&spec)?;
    if ceph.image(&expansion(&spec))?.is_some() {
        ceph.delete(&expansion(&spec))?;
    }
    // The snapshot of another volume from which this one was cloned. If the call ends here, it is deleted with
    // that volume.
    if let Some(parent) = image.parent
        && parent.snap_name == clone_snapshot(&spec)
        && let Some(source) = ceph.image(&parent.spec)?
        && let Some(snapshot) = source.snapshot(&parent.snap_name)
    {
        ceph.delete_snapshot(&source.spec(), snapshot)?;
    }
    Ok(())
}

/// Confirms the capabilities and the pool that a volume was created with. An image of another program is
/// confirmed for every supported capability.
pub(crate) fn validate(request: &ValidateRequest) -> Result<Validation> {
    let ceph = Ceph::new()?;
    let uses = capabilities(&request.capabilities)?;
    let image = ceph.volume(&request.handle)?;
    let spec = image.spec();
    let pool = match read_pool(&ceph, request.parameters.clone()) {
        Ok(pool) if request.parameters.is_empty() || pool == spec.pool => Ok(()),
        Ok(pool) => Err(format!("the volume is in the pool {:?}, not in {pool:?}", spec.pool)),
        Err(error) => Err(error.message),
    };
    let kept = image.record().map_or_else(|| uses.clone(), |record| record.uses);
    let missing = uses.lines().find(|line| !kept.lines().any(|kept| kept == *line));
    let uses = missing
        .map(|line| format!("the volume was created for {}, not for {line}", kept.replace('\n', " and ")));
    let mutable = ParameterReader::mutable_parameters(request.mutable_parameters.clone()).finish();
    let refused = uses.or(pool.err()).or(mutable.err().map(|error| error.message));
    Ok(refused.map_or(Validation::Confirmed, Validation::Refused))
}

/// The image that records the expansion of a volume.
fn expansion(volume: &ImageSpec) -> ImageSpec {
    named(&volume.pool, EXPANSION, &volume.name)
}

/// Expands a volume while an image without data records the new size. The dashboard also shrinks images: of two
/// expansions at the same time, the smaller one would cut the larger one. A repeated call with the same size continues
/// an interrupted one.
fn expand_alone(ceph: &Ceph, volume: &Image, bytes: u64) -> Result<u64> {
    let (spec, lock) = (volume.spec(), expansion(&volume.spec()));
    ceph.create(&lock, MIB, &Record { bytes, source: Some(spec.to_string()), ..Record::default() })?;
    let found = ceph.image(&lock)?;
    if found.as_ref().and_then(Image::record).is_none_or(|record| record.bytes != bytes) {
        if found.is_some_and(|found| is_abandoned(&found)) {
            ceph.delete(&lock)?;
        }
        return Err(StorageError::in_progress(format!(
            "another call expands the volume {:?}",
            spec.to_string()
        )));
    }
    let current = ceph.volume(&spec.to_string())?.size;
    let size = if current < bytes { ceph.expand(&spec, bytes)? } else { current };
    ceph.delete(&lock)?;
    Ok(size)
}

/// Removes the record of an expansion that has reached its size.
fn remove_expansion(ceph: &Ceph, volume: &Image) -> Result<()> {
    match ceph.image(&expansion(&volume.spec()))? {
        Some(found) if found.record().is_some_and(|record| record.bytes <= volume.size) => {
            ceph.delete(&found.spec())
        }
        Some(_) | None => Ok(()),
    }
}

fn is_abandoned(found: &Image) -> bool {
    let age = ambient::now().saturating_sub(Duration::from_millis(found.created_ms()));
    age > EXPANSION_TIMEOUT
}

impl Expansion for CephDriver {
    fn expand(request: ExpandRequest) -> Result<ExpandResponse> {
        let ceph = Ceph::new()?;
        let image = ceph.volume(&request.handle)?;
        let capacity_bytes = match SIZES.grow(&request.capacity, image.size)? {
            Some(bytes) => expand_alone(&ceph, &image, bytes)?,
            None => {
                remove_expansion(&ceph, &image)?;
                image.size
            }
        };
        let access = request.capability.as_ref().map(|capability| &capability.access);
        let is_block = matches!(access, Some(AccessType::Block));
        Ok(ExpandResponse { capacity_bytes, node_expansion: !is_block })
    }
}

impl Listing for CephDriver {
    fn list_volumes(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        paging::key_of_token(after.as_deref())?;
        let images = Ceph::new()?.images(VOLUME)?;
        let page = paging::page(images, |(handle, _)| handle, after.as_deref(), limit)?;
        let volumes = page.items.iter().map(|(_, image)| status(image)).collect();
        Ok(VolumePage { volumes, next: page.next })
    }
}

impl Inspection for CephDriver {
    fn get_volume(handle: String) -> Result<VolumeStatus> {
        Ok(status(&Ceph::new()?.volume(&handle)?))
    }
}

impl Capacity for CephDriver {
    /// Images are thin: a volume may be larger than the free capacity.
    fn available(request: CapacityRequest) -> Result<CapacityReport> {
        let ceph = Ceph::new()?;
        let pool = read_pool(&ceph, request.parameters)?;
        Ok(CapacityReport {
            available_bytes: ceph.free_bytes(&pool)?,
            maximum_volume_bytes: Some(MAX_BYTES),
            minimum_volume_bytes: Some(MIB),
        })
    }
}

/// The pool of a class.
fn read_pool(ceph: &Ceph, parameters: KeyValues) -> Result<String> {
    let mut reader = ParameterReader::parameters(parameters);
    let pool = reader.text("pool");
    reader.finish()?;
    let pool = pool.unwrap_or_else(|| ceph.pool.clone());
    if ceph.pools().contains(&pool) {
        return Ok(pool);
    }
    Err(StorageError::invalid_argument(format!(
        "the pool {pool:?} of the class is not in the driver's settings; they have {:?}",
        ceph.pools()
    )))
}

fn status(image: &Image) -> VolumeStatus {
    VolumeStatus {
        volume: Volume::new(image.spec().to_string(), image.size),
        owner: image.record().and_then(Record::owner),
        published_nodes: Vec::new(),
        condition: None,
        changed_at_ms: Some(image.created_ms()),
    }
}
