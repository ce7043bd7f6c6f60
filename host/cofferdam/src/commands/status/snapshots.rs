//! States of VolumeSnapshots and VolumeSnapshotContents for [`super::summary`].

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::metadata::{DELETE, by_name, finalizers_text, timestamp_or_epoch};
use crate::snapshot_kinds::{SnapshotFailure, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

/// Objects of the kinds of snapshots.
#[derive(Debug, Default)]
pub(super) struct SnapshotObjects {
    pub(super) snapshots: Vec<VolumeSnapshot>,
    pub(super) contents: Vec<VolumeSnapshotContent>,
    pub(super) classes: Vec<VolumeSnapshotClass>,
}

/// State of a VolumeSnapshot or VolumeSnapshotContent.
pub(super) struct SnapshotState {
    /// Name of the state.
    pub(super) state: &'static str,
    /// The waiting operation, if there is one.
    pub(super) operation: Option<SnapshotOperation>,
    /// `status.error` with its time.
    pub(super) error: Option<(Timestamp, String)>,
}

/// A waiting operation.
pub(super) struct SnapshotOperation {
    pub(super) operation: &'static str,
    /// Start of the operation.
    pub(super) since: Timestamp,
    /// Reason, from the object or from related objects.
    pub(super) reason: Option<String>,
}

/// The objects to which VolumeSnapshots and contents refer.
pub(super) struct SnapshotLookup<'a> {
    /// Resources that the user may not list.
    forbidden: &'a [&'static str],
    contents: HashMap<&'a str, &'a VolumeSnapshotContent>,
    classes: HashMap<&'a str, &'a VolumeSnapshotClass>,
    /// Claims by namespace and name.
    claims: HashMap<(&'a str, &'a str), &'a PersistentVolumeClaim>,
    /// VolumeSnapshots by UID.
    snapshots: HashMap<&'a str, &'a VolumeSnapshot>,
}

/// The reason of a deletion without a newer failure: the finalizers, and the error that the status has. The
/// call with this error may be repeated still.
fn deletion_reason(metadata: &ObjectMeta, error: Option<String>) -> Option<String> {
    match (finalizers_text(metadata), error) {
        (Some(finalizers), Some(error)) => Some(format!("{finalizers}; last error: {error}")),
        (finalizers, error) => finalizers.or(error),
    }
}

impl<'a> SnapshotLookup<'a> {
    pub(super) fn new(
        kinds: &'a SnapshotObjects,
        claims: &'a [PersistentVolumeClaim],
        forbidden: &'a [&'static str],
    ) -> Self {
        let claims = claims.iter().filter_map(|claim| {
            let ObjectMeta { namespace, name, .. } = &claim.metadata;
            Some(((namespace.as_deref()?, name.as_deref()?), claim))
        });
        let snapshots = kinds.snapshots.iter();
        Self {
            forbidden,
            contents: by_name(&kinds.contents, |content| &content.metadata),
            classes: by_name(&kinds.classes, |class| &class.metadata),
            claims: claims.collect(),
            snapshots: snapshots.filter_map(|one| Some((one.metadata.uid.as_deref()?, one))).collect(),
        }
    }

    /// The source claim of a VolumeSnapshot. `None` if its source is a content, or if the claim was not
    /// listed.
    pub(super) fn claim_of(&self, snapshot: &VolumeSnapshot) -> Option<&'a PersistentVolumeClaim> {
        let claim = snapshot.spec.source.persistent_volume_claim_name.as_deref()?;
        self.claims.get(&(snapshot.metadata.namespace.as_deref()?, claim)).copied()
    }

    /// The content of a VolumeSnapshot: the bound one, or else the one that is its source.
    fn content_name(snapshot: &VolumeSnapshot) -> Option<&str> {
        let bound = snapshot.status.bound_volume_snapshot_content_name.as_deref();
        bound.or(snapshot.spec.source.volume_snapshot_content_name.as_deref())
    }

    fn content_of(&self, snapshot: &VolumeSnapshot) -> Option<&'a VolumeSnapshotContent> {
        self.contents.get(Self::content_name(snapshot)?).copied()
    }

    /// The driver of a VolumeSnapshot: that of its content, or else of its class.
    pub(super) fn driver_of(&self, snapshot: &VolumeSnapshot) -> Option<String> {
        let content = self.content_of(snapshot).map(|content| content.spec.driver.clone());
        let class = || {
            let name = snapshot.spec.volume_snapshot_class_name.as_deref()?;
            Some(self.classes.get(name)?.driver.clone())
        };
        content.or_else(class)
    }

    /// State of a VolumeSnapshot with the source `claim`.
    pub(super) fn snapshot_state(
        &self,
        snapshot: &VolumeSnapshot,
        claim: Option<&PersistentVolumeClaim>,
    ) -> SnapshotState {
        let error = failure(snapshot.status.error.as_ref());
        let content_error =
            self.content_of(snapshot).and_then(|content| failure(content.status.error.as_ref()));
        let message = error.as_ref().or(content_error.as_ref()).map(|(_, message)| message.clone());
        let (state, operation) = if let Some(since) = &snapshot.metadata.deletion_timestamp {
            let failed_since = content_error.filter(|(time, _)| *time >= since.0);
            let reason = failed_since
                .map(|(_, message)| message)
                .or_else(|| deletion_reason(&snapshot.metadata, message));
            ("deleting", Some(SnapshotOperation { operation: DELETE, since: since.0, reason }))
        } else if snapshot.status.ready_to_use == Some(true) {
            ("ready", None)
        } else {
            let since = timestamp_or_epoch(snapshot.metadata.creation_timestamp.as_ref());
            let reason = message.or_else(|| self.missing_prerequisite(snapshot, claim));
            ("pending", Some(SnapshotOperation { operation: "snapshot", since, reason }))
        };
        SnapshotState { state, operation, error }
    }

    /// State of a VolumeSnapshotContent. Without a VolumeSnapshot that refers to it, it is `released`.
    pub(super) fn content_state(&self, content: &VolumeSnapshotContent) -> SnapshotState {
        let error = failure(content.status.error.as_ref());
        let (state, operation) = if let Some(since) = &content.metadata.deletion_timestamp {
            let message = error.as_ref().map(|(_, message)| message.clone());
            let reason = deletion_reason(&content.metadata, message);
            ("deleting", Some(SnapshotOperation { operation: DELETE, since: since.0, reason }))
        } else if self.is_released(content) {
            ("released", None)
        } else if content.status.ready_to_use == Some(true) {
            ("ready", None)
        } else {
            // Its VolumeSnapshot is the waiting operation.
            ("pending", None)
        };
        SnapshotState { state, operation, error }
    }

    /// Reports if the VolumeSnapshot of a content is deleted.
    fn is_released(&self, content: &VolumeSnapshotContent) -> bool {
        let uid = content.spec.volume_snapshot_ref.uid.as_deref().filter(|uid| !uid.is_empty());
        self.can_list("volumesnapshots") && uid.is_some_and(|uid| !self.snapshots.contains_key(uid))
    }

    fn can_list(&self, resource: &str) -> bool {
        !self.forbidden.contains(&resource)
    }

    /// The missing or unsuitable object that delays a VolumeSnapshot.
    fn missing_prerequisite(
        &self,
        snapshot: &VolumeSnapshot,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Option<String> {
        if let Some(content) = Self::content_name(snapshot).filter(|name| !self.contents.contains_key(name)) {
            return self
                .can_list("volumesnapshotcontents")
                .then(|| format!("VolumeSnapshotContent {content} does not exist"));
        }
        if let Some(class) = snapshot.spec.volume_snapshot_class_name.as_deref()
            && !self.classes.contains_key(class)
            && self.can_list("volumesnapshotclasses")
        {
            return Some(format!("VolumeSnapshotClass {class} does not exist"));
        }
        let name = snapshot.spec.source.persistent_volume_claim_name.as_deref()?;
        let phase = claim.and_then(|claim| claim.status.as_ref()?.phase.as_deref());
        match (claim, phase) {
            (Some(_), Some("Bound")) => None,
            (Some(_), _) => Some(format!("PersistentVolumeClaim {name} is not Bound")),
            (None, _) => self
                .can_list("persistentvolumeclaims")
                .then(|| format!("PersistentVolumeClaim {name} does not exist")),
        }
    }
}

/// Time and message of `status.error`; `None` without a message.
fn failure(error: Option<&SnapshotFailure>) -> Option<(Timestamp, String)> {
    let error = error?;
    let message = error.message.clone().filter(|message| !message.is_empty())?;
    Some((timestamp_or_epoch(error.time.as_ref()), message))
}
