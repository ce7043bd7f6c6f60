//! Publishing of volumes to nodes.
//!
//! Ceph does not restrict an image to nodes. An image without data records a publication, so that a volume for one
//! node is published to one node only: images have unique names.

use cofferdam_guest::{
    ConnectionInfo, RbdImage, Result, StorageError,
    abilities::{PublishRequest, Publishing},
    idempotent::{self, Created, ExistingComparison},
};

use crate::{
    CephDriver, MIB, PUBLICATION,
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
        let spec = if capability.mode.is_multi_node() {
            shared(&image.spec(), &node)
        } else {
            exclusive(&image.spec())
        };
        // A node for which a volume is exclusive excludes all others.
        if capability.mode.is_multi_node()
            && let Some(other) = published_to(&ceph, &image.spec())?
        {
            return Err(published_elsewhere(&handle, &other));
        }
        let record =
            Record { uses, source: Some(handle.clone()), node: Some(node.clone()), ..Record::default() };
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
                Ok(Created::AlreadyExists)
            },
        )?;
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
            None => publications(&ceph, &handle)?,
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

/// The records of a volume's publications to any node.
fn publications(ceph: &Ceph, handle: &str) -> Result<Vec<Image>> {
    let images = ceph.images(PUBLICATION)?.into_values();
    let is_of_volume =
        |image: &Image| image.record().is_some_and(|record| record.source.as_deref() == Some(handle));
    Ok(images.filter(is_of_volume).collect())
}

/// The image that records the only publication of a volume.
fn exclusive(volume: &ImageSpec) -> ImageSpec {
    named(&volume.pool, PUBLICATION, &volume.name)
}

/// The image that records one of several publications of a volume.
fn shared(volume: &ImageSpec, node: &str) -> ImageSpec {
    // No image has a `/` in its name, so this name has a digest.
    named(&volume.pool, PUBLICATION, &format!("{}/{node}", volume.name))
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
