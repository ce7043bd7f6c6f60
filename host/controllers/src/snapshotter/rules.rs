//! Rules of VolumeSnapshotContents. Source: csi-snapshotter 8.7, `syncContent`.
//!
//! The annotation `volumesnapshot-being-created` is the intent: it is written before the first CreateSnapshot
//! call, together with the request, and removed once the snapshot is ready, or the call has failed without
//! effect. While it exists, the content is not deleted, and the call is repeated until the result is known. A
//! snapshot that is not ready is requested again by its name.

use std::sync::Arc;

use cofferdam_cluster::{Cache, Lookup};
use cofferdam_domain::{
    ClusterId, DriverName, SnapshotHandle, Uid, VolumeHandle, VolumeSnapshotClass, VolumeSnapshotClassName,
    VolumeSnapshotContent, VolumeSnapshotContentName, names,
    names::RESERVED_PARAMETER_PREFIX,
    storage::{CreateSnapshot, ErrorKind, Finality, Parameters, Snapshot, SnapshotOwner, StorageError},
    volume::SecretRef,
    volume_snapshot::{DeletionPolicy, SnapshotContentSource, SnapshotContentStatus},
};

use super::settings::SnapshotSettings;
use crate::snapshot_controller::secret_references::{SnapshotParameterError, driver_parameters, list_secret};

/// The next effect for a VolumeSnapshotContent.
#[derive(Clone, Debug, PartialEq)]
pub enum SnapshotterVerdict {
    /// No effect; the text is the reason.
    NoAction(&'static str),
    /// Write the annotations that CreateSnapshot may have been called with this request.
    MarkCreating(Box<CreateSnapshot>),
    /// Call CreateSnapshot, then see [`decide_after_create`].
    Create(Box<CreateSnapshot>),
    /// Read the status of an existing snapshot from the driver.
    ReadStatus(SnapshotHandle),
    /// Remove the annotations: the result of CreateSnapshot is known.
    UnmarkCreating,
    /// Write the handle of an existing snapshot to the status, which is to be deleted before its first read.
    RecordHandle(SnapshotHandle),
    /// Call DeleteSnapshot, then remove the handle from the status.
    Delete(SnapshotHandle),
    /// Remove the finalizer, which has this index in the list.
    RemoveFinalizer(usize),
    /// Wait: deletions are frozen after a restore of the cluster.
    DeletionFrozen,
    /// Write the error to the status, emit the event unless the status has the same error, and retry with
    /// back-off. Before, the class that is the reason is read from the API server.
    Fail(ContentError),
    /// Emit the event of a failed deletion, and retry with back-off.
    FailDeletion(String),
}

/// Decides the next effect for a content of a driver of this process. `is_frozen` while deletions are frozen
/// after a restore of the cluster. `is_answered` if the driver has returned a snapshot in this run.
pub fn decide_content(
    cache: &Cache,
    content: &VolumeSnapshotContent,
    settings: &SnapshotSettings,
    cluster: &ClusterId,
    is_frozen: bool,
    is_answered: bool,
) -> SnapshotterVerdict {
    let is_creating = is_being_created(content);
    let is_from_volume = matches!(content.source, SnapshotContentSource::Volume(_));
    if is_creating && (!is_from_volume || content.is_group_member()) {
        // This role creates no such snapshot: the annotations were copied from another content.
        return SnapshotterVerdict::UnmarkCreating;
    }
    let is_deleting = is_deleting(content);
    if is_deleting && !is_creating {
        return decide_deletion(cache, content, is_frozen);
    }
    match &content.source {
        SnapshotContentSource::Invalid(_) => SnapshotterVerdict::NoAction("the source is invalid"),
        SnapshotContentSource::Snapshot(_) if content.is_ready() => {
            SnapshotterVerdict::NoAction("the snapshot is ready")
        }
        SnapshotContentSource::Snapshot(handle) => SnapshotterVerdict::ReadStatus(handle.clone()),
        SnapshotContentSource::Volume(_) if content.is_group_member() => {
            SnapshotterVerdict::NoAction("the snapshot is a member of a group")
        }
        // A call of an earlier process may still run: after a deletion, it would create the snapshot again.
        SnapshotContentSource::Volume(_)
            if is_creating && (content.is_ready() || is_deleting && is_answered && is_known(content)) =>
        {
            SnapshotterVerdict::UnmarkCreating
        }
        SnapshotContentSource::Volume(_) if content.is_ready() => {
            SnapshotterVerdict::NoAction("the snapshot is ready")
        }
        SnapshotContentSource::Volume(volume) => {
            let request = match recorded_request(content) {
                Some(request) if is_creating => request,
                Some(_) | None => class_request(cache, content, settings),
            };
            let request = request.and_then(|request| create_request(content, volume, request, cluster));
            match request {
                Ok(request) if !is_creating => SnapshotterVerdict::MarkCreating(Box::new(request)),
                Ok(request) => SnapshotterVerdict::Create(Box::new(request)),
                // The handle is enough for the deletion.
                Err(_) if is_creating && is_deleting && is_known(content) => {
                    SnapshotterVerdict::UnmarkCreating
                }
                Err(error) => SnapshotterVerdict::Fail(error),
            }
        }
    }
}

fn is_being_created(content: &VolumeSnapshotContent) -> bool {
    content.meta.has_annotation(names::SNAPSHOT_BEING_CREATED)
}

/// Returns true if the handle of the snapshot is known.
pub fn is_known(content: &VolumeSnapshotContent) -> bool {
    content.status.as_ref().is_some_and(|status| status.handle.is_some())
}

/// Returns true if a change of a content needs a new decision at once, also during the back-off. Changes of
/// the status and of the annotations of a creation are those of this role. Source: csi-snapshotter's
/// `ShouldEnqueueContentChange`.
pub fn needs_decision(old: &VolumeSnapshotContent, new: &VolumeSnapshotContent) -> bool {
    old.meta.uid != new.meta.uid
        || old.meta.deleting != new.meta.deleting
        || old.snapshot != new.snapshot
        || old.deletion_policy != new.deletion_policy
        || old.driver != new.driver
        || old.class != new.class
        || old.source != new.source
        || foreign_annotations(old).ne(foreign_annotations(new))
}

/// The annotations of a content other than those of a creation.
fn foreign_annotations(content: &VolumeSnapshotContent) -> impl Iterator<Item = (&str, &str)> {
    let is_own = |name: &str| [names::SNAPSHOT_BEING_CREATED, names::SNAPSHOT_REQUEST].contains(&name);
    content.meta.annotations.iter().filter(move |(name, _)| !is_own(name))
}

fn decide_deletion(cache: &Cache, content: &VolumeSnapshotContent, is_frozen: bool) -> SnapshotterVerdict {
    let Some(index) = content.meta.finalizer_index(names::SNAPSHOT_CONTENT_PROTECTION) else {
        return SnapshotterVerdict::NoAction("the finalizer of this role is removed");
    };
    if content.deletion_policy == DeletionPolicy::Retain || content.is_group_member() {
        return SnapshotterVerdict::RemoveFinalizer(index);
    }
    let status = content.status.as_ref();
    let Some(handle) = status.and_then(|status| status.handle.as_ref()) else {
        // After the deletion, the status has neither handle nor readiness. An error may be left.
        let is_deleted = status.is_some_and(|status| status.ready.is_none());
        return match &content.source {
            SnapshotContentSource::Snapshot(handle) if !is_deleted => {
                SnapshotterVerdict::RecordHandle(handle.clone())
            }
            SnapshotContentSource::Snapshot(_)
            | SnapshotContentSource::Volume(_)
            | SnapshotContentSource::Invalid(_) => SnapshotterVerdict::RemoveFinalizer(index),
        };
    };
    if is_frozen {
        return SnapshotterVerdict::DeletionFrozen;
    }
    if let Some(other) = cache.snapshot_contents.undecodable_key() {
        return SnapshotterVerdict::FailDeletion(undecodable(&other, handle));
    }
    let contents = cache.contents_with_handle(&content.driver, handle);
    match contents.iter().find(|other| keeps_snapshot(other, content)) {
        None => SnapshotterVerdict::Delete(handle.clone()),
        Some(other) => SnapshotterVerdict::FailDeletion(kept_by(&other.name, handle)),
    }
}

/// The snapshot in a response, compared with that of a content's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotIdentity {
    /// The status has no handle, or this one.
    Known,
    /// The status has another handle, of a snapshot that was never ready. The driver takes a snapshot by its
    /// name, so that the first one is gone: it was deleted at the storage.
    Recreated,
    /// The status has the handle of a snapshot that was ready. It may have been restored, and stays.
    Foreign,
}

/// Compares the snapshot in a response with that of a content's status. csi-snapshotter keeps the first handle
/// and writes the readiness of the other snapshot, so that a content may be ready without a snapshot.
pub fn compare_with_status(status: Option<&SnapshotContentStatus>, snapshot: &Snapshot) -> SnapshotIdentity {
    let Some(status) = status else { return SnapshotIdentity::Known };
    match &status.handle {
        Some(handle) if *handle != snapshot.handle => match status.ready {
            Some(true) => SnapshotIdentity::Foreign,
            Some(false) | None => SnapshotIdentity::Recreated,
        },
        Some(_) | None => SnapshotIdentity::Known,
    }
}

/// Returns true if a content with the same snapshot as `content` keeps it.
pub fn keeps_snapshot(other: &VolumeSnapshotContent, content: &VolumeSnapshotContent) -> bool {
    let is_deleted_too =
        other.deletion_policy == DeletionPolicy::Delete && is_deleting(other) && !is_being_created(other);
    other.name != content.name && !is_deleted_too
}

/// The reason why a snapshot is not deleted: another content refers to it.
pub fn kept_by(other: &VolumeSnapshotContentName, handle: &SnapshotHandle) -> String {
    format!("VolumeSnapshotContent {other} refers to the same snapshot {handle}: it is not deleted")
}

/// The reason why a snapshot is not deleted: this content may refer to it.
pub fn undecodable(other: &VolumeSnapshotContentName, handle: &SnapshotHandle) -> String {
    format!(
        "VolumeSnapshotContent {other} cannot be decoded and may refer to snapshot {handle}: it is not deleted"
    )
}

/// Returns true if a content is being deleted and may be: its existing snapshot is unbound, or its
/// VolumeSnapshot is being deleted, too. Source: csi-snapshotter's `shouldDelete`.
pub fn is_deleting(content: &VolumeSnapshotContent) -> bool {
    let is_existing = matches!(content.source, SnapshotContentSource::Snapshot(_));
    let is_unbound = is_existing && content.snapshot.uid.is_none();
    content.meta.deleting && (is_unbound || content.meta.has_annotation(names::SNAPSHOT_BEING_DELETED))
}

/// The part of a CreateSnapshot request that depends on the class and on settings, which may change before
/// the call is repeated. It is the value of the annotation [`names::SNAPSHOT_REQUEST`].
#[derive(serde::Deserialize, serde::Serialize)]
struct RecordedRequest {
    name: String,
    parameters: Parameters,
}

/// The reason why the driver cannot be called for a content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// The content has no class.
    #[error("spec.volumeSnapshotClassName is absent; expected a VolumeSnapshotClass")]
    NoClass,
    /// The class does not exist.
    #[error("VolumeSnapshotClass {0} does not exist")]
    ClassMissing(VolumeSnapshotClassName),
    /// The class cannot be decoded.
    #[error("VolumeSnapshotClass {0} cannot be decoded")]
    ClassUndecodable(VolumeSnapshotClassName),
    /// The class is for another driver.
    #[error("VolumeSnapshotClass {class} has the driver {found}; expected {expected}")]
    ClassOfOther {
        /// The class.
        class: VolumeSnapshotClassName,
        /// Driver of the class.
        found: DriverName,
        /// Driver of the content.
        expected: DriverName,
    },
    /// The parameters of the class cannot be used.
    #[error(transparent)]
    Parameters(#[from] SnapshotParameterError),
    /// The content is not bound.
    #[error("spec.volumeSnapshotRef.uid is empty; expected the uid of a VolumeSnapshot")]
    NoUid,
    /// The recorded request cannot be read.
    #[error(
        "the annotation {name} is {0}; expected name and parameters as JSON",
        name = names::SNAPSHOT_REQUEST
    )]
    Request(String),
    /// Only one of the annotations of the Secret has a value.
    #[error(
        "only one of the annotations {} and {} has a value; expected both or neither",
        names::SNAPSHOT_SECRET_NAME,
        names::SNAPSHOT_SECRET_NAMESPACE
    )]
    HalfSecret,
}

impl ContentError {
    /// The class that is missing, cannot be decoded, or is for another driver.
    pub fn class(&self) -> Option<&VolumeSnapshotClassName> {
        match self {
            Self::ClassMissing(class) | Self::ClassUndecodable(class) | Self::ClassOfOther { class, .. } => {
                Some(class)
            }
            Self::NoClass | Self::Parameters(_) | Self::NoUid | Self::Request(_) | Self::HalfSecret => None,
        }
    }
}

/// The value of the annotation that records a request.
pub fn request_annotation(request: &CreateSnapshot) -> String {
    let (name, parameters) = (&request.name, &request.parameters);
    serde_json::json!({"name": name, "parameters": parameters}).to_string()
}

/// The request that the annotation records; `None` without the annotation.
fn recorded_request(content: &VolumeSnapshotContent) -> Option<Result<RecordedRequest, ContentError>> {
    let text = content.meta.annotation(names::SNAPSHOT_REQUEST)?;
    Some(serde_json::from_str(text).map_err(|error| ContentError::Request(error.to_string())))
}

/// The request of a content with a class; else the reason why there is none.
fn class_request(
    cache: &Cache,
    content: &VolumeSnapshotContent,
    settings: &SnapshotSettings,
) -> Result<RecordedRequest, ContentError> {
    let class = find_class(cache, content)?;
    let mut parameters = driver_parameters(&class)?;
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
    let uid = snapshot_uid(content)?;
    let name = names::name_with_uid(&settings.name_prefix, settings.name_uuid_length, uid);
    Ok(RecordedRequest { name, parameters })
}

fn snapshot_uid(content: &VolumeSnapshotContent) -> Result<&Uid, ContentError> {
    content.snapshot.uid.as_ref().ok_or(ContentError::NoUid)
}

/// Builds the request of a content; else the reason why there is none.
fn create_request(
    content: &VolumeSnapshotContent,
    volume: &VolumeHandle,
    RecordedRequest { name, parameters }: RecordedRequest,
    cluster: &ClusterId,
) -> Result<CreateSnapshot, ContentError> {
    let uid = snapshot_uid(content)?;
    Ok(CreateSnapshot {
        name,
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

/// The class of a content.
///
/// # Errors
/// The class is missing, cannot be decoded, or is for another driver.
pub fn find_class(
    cache: &Cache,
    content: &VolumeSnapshotContent,
) -> Result<Arc<VolumeSnapshotClass>, ContentError> {
    let name = content.class.as_ref().ok_or(ContentError::NoClass)?;
    let class = match cache.snapshot_classes.get(name) {
        Lookup::Found(class) => class,
        Lookup::Undecodable(_) => return Err(ContentError::ClassUndecodable(name.clone())),
        Lookup::Missing => return Err(ContentError::ClassMissing(name.clone())),
    };
    if class.driver != content.driver {
        let (found, expected) = (class.driver.clone(), content.driver.clone());
        return Err(ContentError::ClassOfOther { class: name.clone(), found, expected });
    }
    Ok(class)
}

/// The Secret of CreateSnapshot and DeleteSnapshot, from the annotations of a content. `None` without them.
///
/// # Errors
/// Only one of the annotations has a value.
pub fn secret_of(content: &VolumeSnapshotContent) -> Result<Option<SecretRef>, ContentError> {
    let value = |name: &str| content.meta.annotation(name).unwrap_or_default();
    let (name, namespace) = (value(names::SNAPSHOT_SECRET_NAME), value(names::SNAPSHOT_SECRET_NAMESPACE));
    match (name.is_empty(), namespace.is_empty()) {
        (true, true) => Ok(None),
        (false, false) => Ok(Some(SecretRef { namespace: namespace.into(), name: name.into() })),
        (true, false) | (false, true) => Err(ContentError::HalfSecret),
    }
}

/// The Secret of a read of the content's snapshot, from the class. `None` without a class, and if the class
/// names none.
///
/// # Errors
/// The class, or what it says of the Secret, cannot be used.
pub fn list_secret_of(
    cache: &Cache,
    content: &VolumeSnapshotContent,
) -> Result<Option<SecretRef>, ContentError> {
    if content.class.is_none() {
        return Ok(None);
    }
    let class = find_class(cache, content)?;
    Ok(list_secret(&class, &content.name)?)
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

/// Decides on a response of CreateSnapshot. `is_recovered` if another process may have sent the request
/// before: an error about this attempt does not reveal the result of its call. `is_released` if the handle of
/// the snapshot is known and its deletion waits for an answer: every answer of the driver is final then.
/// Source: csi-snapshotter's `isCSIFinalError`.
pub fn decide_after_create(
    request: &CreateSnapshot,
    response: Result<Snapshot, StorageError>,
    is_recovered: bool,
    is_released: bool,
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
            let may_run = matches!(
                error.kind,
                ErrorKind::Unavailable
                    | ErrorKind::DeadlineExceeded
                    | ErrorKind::Cancelled
                    | ErrorKind::Aborted
            );
            let is_in_doubt =
                error.finality != Finality::Final || (is_recovered && error.kind.is_inconclusive());
            let is_final = !may_run && (is_released || !is_in_doubt);
            CreatedVerdict::Fail { message: error.to_string(), is_final }
        }
    }
}

#[cfg(test)]
mod tests;
