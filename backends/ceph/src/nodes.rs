//! Publishing of volumes to nodes.
//!
//! Ceph does not restrict an image to nodes. An image without data records a publication, so that a volume for one
//! node is published to one node only: images have unique names. A volume that several nodes share has one for each.

use std::cell::Cell;

use cofferdam_guest::{
    ConnectionInfo, RbdImage, Result, StorageError,
    abilities::{PublishRequest, Publishing},
    handle,
    idempotent::{self, Created, ExistingComparison},
};

use crate::{
    CephDriver, MIB, PUBLICATION, SHARED_PUBLICATION,
    client::Ceph,
    images::{Image, ImageSpec, named},
    record::Record,
    request::capabilities,
};

impl Publishing for CephDriver {
    fn publish(request: PublishRequest) -> Result<ConnectionInfo> {
        let PublishRequest { handle, node, capability, read_only, .. } = request;
        let ceph = Ceph::new()?;
        let image = ceph.volume(&handle)?;
        let mode = if read_only { "read-only" } else { "read-write" };
        let uses = format!("{mode} {}", capabilities(std::slice::from_ref(&capability))?);
        let is_shared = capability.mode.is_multi_node();
        let spec = if is_shared { shared(&image.spec(), &node) } else { exclusive(&image.spec()) };
        let record =
            Record { uses, source: Some(handle.clone()), node: Some(node.clone()), ..Record::default() };
        let is_new = Cell::new(false);
        idempotent::find_or_create(
            || ceph.image(&spec),
            |found| {
                let kept = found.record().unwrap_or_default();
                if kept.node != record.node {
                    let other = kept.node.unwrap_or_default();
                    return Err(published_elsewhere(&handle, &other));
                }
                ExistingComparison::new("publication to", &node)
                    .equal("use", &kept.uses, &record.uses)
                    .check()
            },
            || {
                ceph.create(&spec, MIB, &record)?;
                is_new.set(true);
                Ok(Created::AlreadyExists)
            },
        )?;
        // An exclusive publication and shared ones exclude each other. Each is recorded before it looks for the other,
        // so that of two at the same time at least one fails. The record of an earlier publication stays: its node may
        // use the volume.
        let other =
            if is_shared { published_to(&ceph, &image.spec())? } else { shared_with(&ceph, &image.spec())? };
        if let Some(other) = other {
            if is_new.get() {
                ceph.delete(&spec)?;
            }
            return Err(published_elsewhere(&handle, &other));
        }
        connection_info(&ceph, &image)
    }

    fn unpublish(handle: String, node: Option<String>) -> Result<()> {
        let ceph = Ceph::new()?;
        let Some(spec) = ceph.spec(&handle) else { return Ok(()) };
        if let Some(found) = ceph.image(&exclusive(&spec))?
            && (node.is_none() || found.record().unwrap_or_default().node == node)
        {
            ceph.delete(&found.spec())?;
        }
        let shared = match &node {
            Some(node) => ceph.image(&shared(&spec, node))?.into_iter().collect(),
            None => shared_publications(&ceph, &spec)?,
        };
        shared.iter().try_for_each(|found| ceph.delete(&found.spec()))
    }
}

/// The node to which a volume for one node is published.
pub(crate) fn published_to(ceph: &Ceph, volume: &ImageSpec) -> Result<Option<String>> {
    let found = ceph.image(&exclusive(volume))?;
    Ok(found.map(|found| found.record().and_then(|record| record.node).unwrap_or_default()))
}

/// The error of a call that a publication to a node forbids.
pub(crate) fn published_elsewhere(handle: &str, node: &str) -> StorageError {
    StorageError::failed_precondition(format!("the volume {handle:?} is published to the node {node:?}"))
}

/// A node with which a volume is shared.
fn shared_with(ceph: &Ceph, volume: &ImageSpec) -> Result<Option<String>> {
    let found = shared_publications(ceph, volume)?.into_iter().next();
    Ok(found.map(|found| found.record().and_then(|record| record.node).unwrap_or_default()))
}

/// The records of a volume's shared publications.
fn shared_publications(ceph: &Ceph, volume: &ImageSpec) -> Result<Vec<Image>> {
    let (handle, prefix) = (volume.to_string(), shared_prefix(volume));
    let images = ceph.images(&prefix)?.into_values();
    let is_of_volume = |image: &Image| {
        image.record().is_some_and(|record| record.source.as_deref() == Some(handle.as_str()))
    };
    Ok(images.filter(is_of_volume).collect())
}

/// The image that records the only publication of a volume.
fn exclusive(volume: &ImageSpec) -> ImageSpec {
    named(&volume.pool, PUBLICATION, &volume.name)
}

/// The image that records one of several publications of a volume.
fn shared(volume: &ImageSpec, node: &str) -> ImageSpec {
    named(&volume.pool, &shared_prefix(volume), node)
}

/// The beginning of the names of the images that record a volume's shared publications: the dashboard lists images by a
/// part of their names.
fn shared_prefix(volume: &ImageSpec) -> String {
    // No image has a `/` in its name, so this name has a digest.
    handle::from_name(SHARED_PUBLICATION, &volume.to_string())
}

/// The connection info of an image.
fn connection_info(ceph: &Ceph, image: &Image) -> Result<ConnectionInfo> {
    let monitors = ceph.monitors()?;
    let addresses: Vec<&str> = monitors.addresses.iter().map(String::as_str).collect();
    let spec = image.spec();
    Ok(ConnectionInfo::rbd(&RbdImage {
        monitors: &addresses,
        cluster_fsid: &monitors.fsid,
        pool: &spec.pool,
        namespace: None,
        image: &spec.name,
        image_id: &image.id,
    }))
}
