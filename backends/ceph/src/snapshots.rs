//! Snapshots: an RBD snapshot of the volume, and an image without data that reserves the name among all volumes
//! and keeps the record. Both have the same name. The image is created first and deleted last.

use std::collections::BTreeMap;

use cofferdam_guest::{
    Result, Snapshot, StorageError,
    abilities::{SnapshotPage, SnapshotRequest, Snapshots},
    idempotent::{self, Created, ExistingComparison},
    paging,
    parameters::ParameterReader,
};

use crate::{
    CephDriver, MIB, SNAPSHOT, VOLUME,
    client::Ceph,
    images::{Image, named},
    record::Record,
    request::check_name,
};

impl Snapshots for CephDriver {
    fn create_snapshot(request: SnapshotRequest) -> Result<Snapshot> {
        let SnapshotRequest { name, source, parameters, owner } = request;
        let ceph = Ceph::new()?;
        check_name(&name)?;
        ParameterReader::parameters(parameters).finish()?;
        let record = Record { source: Some(source.clone()), ..Record::default() };
        let record = record.with_snapshot_owner(owner);
        let marker = idempotent::find_or_create(
            || {
                let Some(found) = ceph.find_named(SNAPSHOT, &name)? else { return Ok(None) };
                if found.record().is_none() {
                    // The dashboard has created the image, and not its record.
                    ceph.set_record(&found.spec(), &record)?;
                    return ceph.image(&found.spec());
                }
                Ok(Some(found))
            },
            |found| {
                let kept = found.record().unwrap_or_default().source;
                ExistingComparison::new("snapshot", &name).equal("source", &kept, &record.source).check()
            },
            || {
                let image = ceph.volume(&source)?;
                ceph.create(&named(&image.spec().pool, SNAPSHOT, &name), MIB, &record)?;
                Ok(Created::AlreadyExists)
            },
        )?;
        let image = ceph.volume(&source)?;
        if image.snapshot(&marker.name).is_none() {
            ceph.take_snapshot(&image.spec(), &marker.name)?;
        }
        let image = ceph.volume(&source)?;
        snapshot(&marker, &image).ok_or_else(|| {
            StorageError::in_progress(format!("the snapshot {:?} is being deleted", marker.name))
        })
    }

    fn delete_snapshot(handle: String) -> Result<()> {
        let ceph = Ceph::new()?;
        let Some(marker) = find_marker(&ceph, &handle)? else { return Ok(()) };
        let source = marker.record().and_then(|record| record.source).unwrap_or_default();
        if let Some(image) = ceph.find(&source)?
            && let Some(snapshot) = image.snapshot(&marker.name)
        {
            ceph.delete_snapshot(&image.spec(), snapshot)?;
        }
        ceph.delete(&marker.spec())
    }

    fn get_snapshot(handle: String) -> Result<Snapshot> {
        let (marker, image) = read_snapshot(&Ceph::new()?, &handle)?;
        snapshot(&marker, &image).ok_or_else(|| snapshot_not_found(&handle))
    }

    fn list_snapshots(
        source: Option<String>,
        after: Option<String>,
        limit: Option<u32>,
    ) -> Result<SnapshotPage> {
        paging::key_of_token(after.as_deref())?;
        let ceph = Ceph::new()?;
        let found = match source {
            Some(source) => snapshots_of(&ceph, &source)?,
            None => all_snapshots(&ceph)?,
        };
        let page = paging::page(found, |snapshot| &snapshot.handle, after.as_deref(), limit)?;
        Ok(SnapshotPage { snapshots: page.items, next: page.next })
    }
}

fn snapshots_of(ceph: &Ceph, source: &str) -> Result<Vec<Snapshot>> {
    let Some(image) = ceph.find(source)? else { return Ok(Vec::new()) };
    let mut snapshots = Vec::new();
    for name in image.snapshots.iter().map(|snapshot| &snapshot.name) {
        let marker = find_marker(ceph, &format!("{}/{name}", image.spec().pool))?;
        snapshots.extend(marker.and_then(|marker| snapshot(&marker, &image)));
    }
    Ok(snapshots)
}

fn all_snapshots(ceph: &Ceph) -> Result<Vec<Snapshot>> {
    // A volume that is older than its snapshot is listed after it.
    let markers: BTreeMap<String, Image> = ceph.images(SNAPSHOT)?;
    let volumes = ceph.images(VOLUME)?;
    let found =
        markers.values().filter_map(|marker| snapshot(marker, volumes.get(&marker.record()?.source?)?));
    Ok(found.collect())
}

/// Reads the image that reserves the name of a snapshot, and the image of its volume.
pub(crate) fn read_snapshot(ceph: &Ceph, handle: &str) -> Result<(Image, Image)> {
    let marker = find_marker(ceph, handle)?.ok_or_else(|| snapshot_not_found(handle))?;
    let source = marker.record().and_then(|record| record.source).unwrap_or_default();
    let image = ceph.find(&source)?.ok_or_else(|| snapshot_not_found(handle))?;
    Ok((marker, image))
}

fn find_marker(ceph: &Ceph, handle: &str) -> Result<Option<Image>> {
    Ok(ceph.find(handle)?.filter(|marker| marker.name.starts_with(SNAPSHOT)))
}

fn snapshot_not_found(handle: &str) -> StorageError {
    StorageError::not_found(format!("there is no snapshot {handle:?}"))
}

/// The snapshot of a volume. `None` if the volume does not have it.
fn snapshot(marker: &Image, image: &Image) -> Option<Snapshot> {
    let record = marker.record()?;
    let found = image.snapshot(&marker.name)?;
    Some(Snapshot {
        handle: marker.spec().to_string(),
        source: record.source.clone()?,
        owner: record.snapshot_owner(),
        size_bytes: Some(found.size),
        created_at_ms: found.created_ms(),
        ready: true,
        group: None,
    })
}
