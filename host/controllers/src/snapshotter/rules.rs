//! Rules of VolumeSnapshotContents. Source: csi-snapshotter 8.7, `syncContent`.
//!
//! The annotation `volumesnapshot-being-created` is the intent: it is written before the first CreateSnapshot
//! call, and removed after a final result. While it exists, the content is not deleted, and the call is
//! repeated until the result is known. A snapshot that is not ready is requested again by its name, without
//! the annotation: its handle is in the status.

use cofferdam_cluster::{Cache, Lookup};
use cofferdam_domain::{
    ClusterId, SnapshotHandle, VolumeHandle, VolumeSnapshotClass, VolumeSnapshotContent, names,
    names::RESERVED_PARAMETER_PREFIX,
    storage::{CreateSnapshot, ErrorKind, Finality, Snapshot, SnapshotOwner, StorageError},
    volume::SecretRef,
    volume_snapshot::{DeletionPolicy, SnapshotContentSource},
};

use super::settings::SnapshotSettings;
use crate::snapshot_controller::secret_references::{driver_parameters, list_secret};

/// The next effect for a VolumeSnapshotContent.
#[derive(Clone, Debug, PartialEq)]
pub enum SnapshotterVerdict {
    /// No effect; the text is the reason.
    NoAction(&'static str),
    /// Write the annotation that CreateSnapshot may have been called.
    MarkCreating,
    /// Call CreateSnapshot, then see [`decide_after_create`].
    Create(Box<CreateSnapshot>),
    /// Read the status of an existing snapshot from the driver.
    ReadStatus(SnapshotHandle),
    /// Remove the annotation: the result of CreateSnapshot is known.
    UnmarkCreating,
    /// Call DeleteSnapshot, then remove the handle from the status.
    Delete(SnapshotHandle),
    /// Remove the finalizer, which has this index in the list.
    RemoveFinalizer(usize),
    /// Wait: deletions are frozen after a restore of the cluster.
    DeletionFrozen,
    /// Write the error to the status, emit the event unless the status has the same error, and retry with
    /// back-off.
    Fail(String),
    /// Emit the event of a failed deletion, and retry with back-off.
    FailDeletion(String),
}

/// Decides the next effect for a content of a driver of this process. `is_frozen` while deletions are frozen
/// after a restore of the cluster.
pub fn decide_content(
    cache: &Cache,
    content: &VolumeSnapshotContent,
    settings: &SnapshotSettings,
    cluster: &ClusterId,
    is_frozen: bool,
) -> SnapshotterVerdict {
    let is_creating = content.meta.has_annotation(names::SNAPSHOT_BEING_CREATED);
    if content.meta.deleting && !is_creating {
        return decide_deletion(cache, content, is_frozen);
    }
    // A repeated call for a snapshot whose handle is known cannot leave another one behind.
    let is_known = content.status.as_ref().is_some_and(|status| status.handle.is_some());
    match &content.source {
        SnapshotContentSource::Invalid(_) => SnapshotterVerdict::NoAction("the source is invalid"),
        SnapshotContentSource::Snapshot(_) if content.is_ready() => {
            SnapshotterVerdict::NoAction("the snapshot is ready")
        }
        SnapshotContentSource::Snapshot(handle) => SnapshotterVerdict::ReadStatus(handle.clone()),
        SnapshotContentSource::Volume(_) if is_known && is_creating => SnapshotterVerdict::UnmarkCreating,
        SnapshotContentSource::Volume(_) if content.is_ready() => {
            SnapshotterVerdict::NoAction("the snapshot is ready")
        }
        SnapshotContentSource::Volume(volume) => {
            match create_request(cache, content, volume, settings, cluster) {
                Ok(_) if !is_creating && !is_known => SnapshotterVerdict::MarkCreating,
                Ok(request) => SnapshotterVerdict::Create(Box::new(request)),
                Err(message) => SnapshotterVerdict::Fail(message),
            }
        }
    }
}

fn decide_deletion(cache: &Cache, content: &VolumeSnapshotContent, is_frozen: bool) -> SnapshotterVerdict {
    let Some(index) = content.meta.finalizer_index(names::SNAPSHOT_CONTENT_PROTECTION) else {
        return SnapshotterVerdict::NoAction("the finalizer of this role is removed");
    };
    let is_unbound = content.snapshot.uid.is_none();
    if !is_unbound && !content.meta.has_annotation(names::SNAPSHOT_BEING_DELETED) {
        return SnapshotterVerdict::NoAction("the VolumeSnapshot is not being deleted");
    }
    let handle = content.status.as_ref().and_then(|status| status.handle.as_ref());
    match handle.filter(|_| content.deletion_policy == DeletionPolicy::Delete) {
        None => SnapshotterVerdict::RemoveFinalizer(index),
        Some(_) if is_frozen => SnapshotterVerdict::DeletionFrozen,
        Some(handle) => {
            let contents = cache.contents_with_handle(&content.driver, handle);
            match contents.iter().find(|other| **other != content.name) {
                None => SnapshotterVerdict::Delete(handle.clone()),
                Some(other) => SnapshotterVerdict::FailDeletion(format!(
                    "VolumeSnapshotContent {other} refers to the same snapshot {handle}: it is not deleted"
                )),
            }
        }
    }
}

/// Builds the request of a content; else the reason why there is none.
fn create_request(
    cache: &Cache,
    content: &VolumeSnapshotContent,
    volume: &VolumeHandle,
    settings: &SnapshotSettings,
    cluster: &ClusterId,
) -> Result<CreateSnapshot, String> {
    let class = find_class(cache, content)?;
    let Some(uid) = &content.snapshot.uid else {
        return Err("spec.volumeSnapshotRef.uid is empty; expected the uid of a VolumeSnapshot".to_owned());
    };
    let mut parameters = driver_parameters(&class).map_err(|error| error.to_string())?;
    if settings.extra_create_metadata {
        let extra = [
            ("volumesnapshot/name", &*content.snapshot.key.name),
            ("volumesnapshot/namespace", &*content.snapshot.key.namespace),
            ("volumesnapshotcontent/name", content.name.as_str()),
        ];
        parameters.extend(
            extra.map(|(key, value)| (format!("{RESERVED_PARAMETER_PREFIX}{key}"), value.to_owned())),
        );
    }
    Ok(CreateSnapshot {
        name: names::name_with_uid(&settings.name_prefix, settings.name_uuid_length, uid),
        source: volume.clone(),
        parameters,
        owner: Some(SnapshotOwner {
            cluster_id: cluster.clone(),
            snapshot_uid: uid.clone(),
            content_name: content.name.to_string(),
            retain: content.deletion_policy == DeletionPolicy::Retain,
        }),
    })
}

fn find_class(
    cache: &Cache,
    content: &VolumeSnapshotContent,
) -> Result<std::sync::Arc<VolumeSnapshotClass>, String> {
    let Some(name) = &content.class else {
        return Err("spec.volumeSnapshotClassName is absent; expected a VolumeSnapshotClass".to_owned());
    };
    let class = match cache.snapshot_classes.get(name) {
        Lookup::Found(class) => class,
        Lookup::Undecodable(_) => return Err(format!("VolumeSnapshotClass {name} cannot be decoded")),
        Lookup::Missing => return Err(format!("VolumeSnapshotClass {name} does not exist")),
    };
    if class.driver != content.driver {
        let (found, expected) = (&class.driver, &content.driver);
        return Err(format!("VolumeSnapshotClass {name} has the driver {found}; expected {expected}"));
    }
    Ok(class)
}

/// The Secret of CreateSnapshot and DeleteSnapshot, from the annotations of a content. `None` without them.
///
/// # Errors
/// Only one of the annotations has a value.
pub fn secret_of(content: &VolumeSnapshotContent) -> Result<Option<SecretRef>, String> {
    let value = |name: &str| content.meta.annotation(name).unwrap_or_default();
    let (name, namespace) = (value(names::SNAPSHOT_SECRET_NAME), value(names::SNAPSHOT_SECRET_NAMESPACE));
    match (name.is_empty(), namespace.is_empty()) {
        (true, true) => Ok(None),
        (false, false) => Ok(Some(SecretRef { namespace: namespace.into(), name: name.into() })),
        (true, false) | (false, true) => Err(format!(
            "only one of the annotations {} and {} has a value; expected both or neither",
            names::SNAPSHOT_SECRET_NAME,
            names::SNAPSHOT_SECRET_NAMESPACE
        )),
    }
}

/// The Secret of a read of the content's snapshot, from the class. `None` without a class, and if the class
/// names none.
///
/// # Errors
/// The class, or what it says of the Secret, cannot be used.
pub fn list_secret_of(cache: &Cache, content: &VolumeSnapshotContent) -> Result<Option<SecretRef>, String> {
    if content.class.is_none() {
        return Ok(None);
    }
    let class = find_class(cache, content)?;
    list_secret(&class, &content.name).map_err(|error| error.to_string())
}

/// The next effect after a response of CreateSnapshot.
#[derive(Clone, Debug, PartialEq)]
pub enum CreatedVerdict {
    /// Write the snapshot to the status; the annotation is then removed.
    Save(Snapshot),
    /// Write the error to the status and retry. The annotation is removed if `is_final`.
    Fail {
        /// The message.
        message: String,
        /// The call has had no effect.
        is_final: bool,
    },
}

/// Decides on a response of CreateSnapshot. Source: csi-snapshotter's `isCSIFinalError`.
pub fn decide_after_create(
    request: &CreateSnapshot,
    response: Result<Snapshot, StorageError>,
) -> CreatedVerdict {
    match response {
        Ok(snapshot) if snapshot.source != request.source => CreatedVerdict::Fail {
            message: format!(
                "the driver returned a snapshot of volume {}; expected volume {}",
                snapshot.source, request.source
            ),
            // A snapshot exists, and its deletion needs the result of the request.
            is_final: false,
        },
        Ok(snapshot) => CreatedVerdict::Save(snapshot),
        Err(error) => {
            let is_in_doubt = matches!(
                error.kind,
                ErrorKind::Unavailable
                    | ErrorKind::DeadlineExceeded
                    | ErrorKind::Cancelled
                    | ErrorKind::Aborted
                    | ErrorKind::ResourceExhausted
            );
            let is_final = error.finality == Finality::Final && !is_in_doubt;
            CreatedVerdict::Fail { message: error.to_string(), is_final }
        }
    }
}

#[cfg(test)]
mod tests;
