//! Rules of VolumeSnapshots. Source: external-snapshotter's snapshot-controller 8.7, `syncSnapshot` and
//! `syncContent`.
//!
//! A VolumeSnapshot with a claim as its source gets a VolumeSnapshotContent, from which the role
//! `snapshotter` creates the snapshot. A VolumeSnapshot with a content as its source is bound to it. The
//! deletion of a VolumeSnapshot marks its content; with the deletion policy Delete, it deletes the content,
//! too, and the VolumeSnapshot stays until the content is gone.

use std::sync::Arc;

use cofferdam_cluster::{Cache, Lookup};
use cofferdam_domain::{
    Claim, ClaimKey, ClaimPhase, SourceKey, Volume, VolumeName, VolumePhase, VolumeSnapshot,
    VolumeSnapshotClass, VolumeSnapshotClassName, VolumeSnapshotContent, VolumeSnapshotContentName, names,
    volume_snapshot::{DeletionPolicy, SnapshotContentSource, VolumeSnapshotSource, VolumeSnapshotStatus},
};

use super::status::copied_status;

/// Reason of a failure before the content exists.
pub(super) const CREATION_FAILED: &str = "SnapshotContentCreationFailed";
/// Reason of a failure to find the class.
const NO_CLASS: &str = "GetSnapshotClassFailed";
/// Reason of a failure to find the default class.
const NO_DEFAULT_CLASS: &str = "SetDefaultSnapshotClassFailed";

/// The next effect for a VolumeSnapshot.
#[derive(Clone, Debug, PartialEq)]
pub enum SnapshotVerdict {
    /// No effect; the text is the reason.
    NoAction(&'static str),
    /// Set `spec.volumeSnapshotClassName` to the default class of the driver.
    SetClass(VolumeSnapshotClassName),
    /// Add these finalizers to the VolumeSnapshot.
    AddFinalizers(Vec<&'static str>),
    /// Add the finalizer to the claim, whose volume is the source.
    AddClaimFinalizer(Arc<Claim>),
    /// Create the content of the VolumeSnapshot.
    CreateContent {
        /// The class.
        class: Arc<VolumeSnapshotClass>,
        /// The PersistentVolume of the source claim.
        volume: Arc<Volume>,
    },
    /// Write the uid of the VolumeSnapshot, and its class, to the existing content that is its source.
    BindContent(Arc<VolumeSnapshotContent>),
    /// Write this status. The events are emitted after the write.
    UpdateStatus {
        /// The status.
        status: VolumeSnapshotStatus,
        /// The status names a creation time for the first time.
        is_created: bool,
        /// The snapshot is ready for the first time.
        is_ready: bool,
    },
    /// Write the annotation to the content that the VolumeSnapshot is being deleted.
    MarkContent(Arc<VolumeSnapshotContent>),
    /// Delete the content.
    DeleteContent(Arc<VolumeSnapshotContent>),
    /// Remove finalizers.
    RemoveFinalizers {
        /// The finalizers, each by index and name.
        finalizers: Vec<(usize, &'static str)>,
        /// The content that the VolumeSnapshot may have, whose cached state, if any, is not bound to it. It
        /// is read from the API server before: without its VolumeSnapshot, a content with the deletion policy
        /// Delete is never deleted.
        unbound_content: Option<VolumeSnapshotContentName>,
    },
    /// Emit the event with the reason why the VolumeSnapshot is not deleted yet, and retry with back-off.
    DeletePending(String),
    /// Write the error to the status, emit the event unless the status has the same error, and retry with
    /// back-off. Before, the dependency is read from the API server.
    Fail(SnapshotFailure),
}

/// A failure that is written to the status of a VolumeSnapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFailure {
    /// Reason of the event.
    pub reason: &'static str,
    /// Message of the event and of the status.
    pub message: String,
    /// The object whose state is the reason. The cache may have an older state of it than the
    /// VolumeSnapshot's: the watches of two kinds are not ordered.
    pub dependency: Option<Dependency>,
}

/// An object that a VolumeSnapshot depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dependency {
    /// The class.
    Class(VolumeSnapshotClassName),
    /// The source claim.
    Claim(ClaimKey),
    /// The PersistentVolume of the source claim.
    Volume(VolumeName),
    /// The content.
    Content(VolumeSnapshotContentName),
}

impl SnapshotFailure {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), dependency: None }
    }

    fn of(dependency: Dependency, reason: &'static str, message: impl Into<String>) -> Self {
        Self { dependency: Some(dependency), ..Self::new(reason, message) }
    }

    /// Returns true if the failure is written with `readyToUse` false. Those of the class leave it as it is.
    pub fn resets_ready(&self) -> bool {
        ![NO_CLASS, NO_DEFAULT_CLASS].contains(&self.reason)
    }
}

/// Name of the VolumeSnapshotContent that is created for a VolumeSnapshot.
pub fn content_name(snapshot: &VolumeSnapshot) -> VolumeSnapshotContentName {
    VolumeSnapshotContentName::from(format!("snapcontent-{}", snapshot.meta.uid))
}

/// Decides the next effect for a VolumeSnapshot.
pub fn decide_snapshot(cache: &Cache, snapshot: &VolumeSnapshot) -> SnapshotVerdict {
    if snapshot.is_group_member() {
        return match snapshot.meta.deleting {
            false => SnapshotVerdict::NoAction("the VolumeSnapshot is a member of a VolumeGroupSnapshot"),
            true => SnapshotVerdict::DeletePending(
                "the VolumeSnapshot is a member of a VolumeGroupSnapshot, which this program leaves alone"
                    .to_owned(),
            ),
        };
    }
    if snapshot.meta.deleting {
        return decide_deletion(cache, snapshot);
    }
    decide_live(cache, snapshot).unwrap_or_else(SnapshotVerdict::Fail)
}

fn decide_live(cache: &Cache, snapshot: &VolumeSnapshot) -> Result<SnapshotVerdict, SnapshotFailure> {
    // 1. The class.
    let class = match (&snapshot.class, &snapshot.source) {
        (Some(name), _) => Some(find_class(cache, name)?),
        (None, VolumeSnapshotSource::Claim(name)) if !snapshot.is_ready() => {
            let volume = source_volume(cache, &claim_key(snapshot, name), NO_DEFAULT_CLASS)?;
            return default_class(cache, &volume).map(SnapshotVerdict::SetClass);
        }
        (None, _) => None,
    };

    // 2. The source.
    if let VolumeSnapshotSource::Invalid(count) = snapshot.source {
        let message = format!("spec.source has {count} sources; expected exactly one");
        return Err(SnapshotFailure::new("SnapshotValidationError", message));
    }

    // 3. The finalizers.
    let content = find_content(cache, snapshot);
    let missing = missing_finalizers(snapshot, content.as_deref());
    if !missing.is_empty() {
        return Ok(SnapshotVerdict::AddFinalizers(missing));
    }

    // 4. A ready VolumeSnapshot stays as it is while its content refers to it.
    if snapshot.is_ready()
        && let Some(name) = snapshot.bound_content()
    {
        return match cache.snapshot_contents.get(name) {
            Lookup::Found(content) if content.is_bound_to(snapshot) => {
                Ok(SnapshotVerdict::NoAction("the snapshot is ready"))
            }
            Lookup::Found(_) => {
                let message = format!("VolumeSnapshotContent {name} is not bound to the VolumeSnapshot");
                let dependency = Dependency::Content(name.clone());
                Err(SnapshotFailure::of(dependency, "SnapshotMisbound", message))
            }
            Lookup::Undecodable(_) => Ok(SnapshotVerdict::NoAction("the content cannot be decoded")),
            Lookup::Missing => Err(content_missing(snapshot, name)),
        };
    }

    // 5. The content: an existing one, or a new one.
    match &snapshot.source {
        VolumeSnapshotSource::Content(name) => decide_existing(cache, snapshot, name),
        VolumeSnapshotSource::Claim(claim) => match cache.snapshot_contents.get(&content_name(snapshot)) {
            Lookup::Found(content) => decide_dynamic(snapshot, &content),
            Lookup::Undecodable(_) => Ok(SnapshotVerdict::NoAction("the content cannot be decoded")),
            Lookup::Missing if snapshot.is_taken() => Err(content_missing(snapshot, &content_name(snapshot))),
            Lookup::Missing => decide_new(cache, &claim_key(snapshot, claim), class),
        },
        VolumeSnapshotSource::Invalid(_) => Ok(SnapshotVerdict::NoAction("the source is invalid")),
    }
}

/// The failure of a snapshot that was taken, and whose content does not exist.
fn content_missing(snapshot: &VolumeSnapshot, name: &VolumeSnapshotContentName) -> SnapshotFailure {
    let consequence = match snapshot.source {
        VolumeSnapshotSource::Claim(_) => {
            ": the snapshot is not taken again, because it would have the present data; expected a new \
             VolumeSnapshot"
        }
        VolumeSnapshotSource::Content(_) | VolumeSnapshotSource::Invalid(_) => "",
    };
    let message = format!("VolumeSnapshotContent {name} is missing{consequence}");
    SnapshotFailure::of(Dependency::Content(name.clone()), "SnapshotContentMissing", message)
}

fn claim_key(snapshot: &VolumeSnapshot, claim: &str) -> ClaimKey {
    ClaimKey::new(&*snapshot.key.namespace, claim)
}

fn find_class(
    cache: &Cache,
    name: &VolumeSnapshotClassName,
) -> Result<Arc<VolumeSnapshotClass>, SnapshotFailure> {
    let problem = match cache.snapshot_classes.get(name) {
        Lookup::Found(class) => return Ok(class),
        Lookup::Undecodable(_) => "cannot be decoded",
        Lookup::Missing => "does not exist",
    };
    let message = format!("VolumeSnapshotClass {name} {problem}");
    Err(SnapshotFailure::of(Dependency::Class(name.clone()), NO_CLASS, message))
}

/// The default class of the driver of a volume.
fn default_class(cache: &Cache, volume: &Volume) -> Result<VolumeSnapshotClassName, SnapshotFailure> {
    let driver = volume.csi.as_ref().map(|csi| &csi.driver);
    let classes = cache.snapshot_classes.list();
    let is_default = |class: &&Arc<VolumeSnapshotClass>| class.is_default() && Some(&class.driver) == driver;
    let mut defaults: Vec<_> = classes.iter().filter(is_default).map(|class| class.name.clone()).collect();
    defaults.sort();
    let driver = driver.map(ToString::to_string).unwrap_or_default();
    match defaults.as_slice() {
        [class] => Ok(class.clone()),
        [] => Err(SnapshotFailure::new(
            NO_DEFAULT_CLASS,
            format!(
                "driver {driver} has no default VolumeSnapshotClass; expected one, or spec.volumeSnapshotClassName"
            ),
        )),
        several => {
            let names = several.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            Err(SnapshotFailure::new(
                NO_DEFAULT_CLASS,
                format!("driver {driver} has several default VolumeSnapshotClasses: {names}; expected one"),
            ))
        }
    }
}

/// The PersistentVolume of a source claim, which is bound to it and has a CSI driver.
///
/// # Errors
/// A failure with this reason.
fn source_volume(
    cache: &Cache,
    key: &ClaimKey,
    reason: &'static str,
) -> Result<Arc<Volume>, SnapshotFailure> {
    let claim = find_claim(cache, key, reason)?;
    let claim_failed = |message| Err(SnapshotFailure::of(Dependency::Claim(key.clone()), reason, message));
    let name = match (claim.phase, &claim.volume) {
        (ClaimPhase::Bound, Some(name)) => name,
        (ClaimPhase::Bound | ClaimPhase::Pending, _) => {
            return claim_failed(format!("claim {key} is Pending; expected Bound"));
        }
        (ClaimPhase::Lost, _) => return claim_failed(format!("claim {key} is Lost; expected Bound")),
    };
    let volume_failed = |message| Err(SnapshotFailure::of(Dependency::Volume(name.clone()), reason, message));
    let volume = match cache.volumes.get(name) {
        Lookup::Found(volume) => volume,
        Lookup::Undecodable(_) => {
            return volume_failed(format!("PersistentVolume {name} cannot be decoded"));
        }
        Lookup::Missing => {
            return volume_failed(format!("PersistentVolume {name} of claim {key} does not exist"));
        }
    };
    let has_uid = volume.claim_ref.as_ref().is_some_and(|claim_ref| claim_ref.uid.is_some());
    if !has_uid || !volume.is_bound_to(key, &claim.meta.uid) || volume.phase != VolumePhase::Bound {
        return volume_failed(format!("PersistentVolume {name} is not bound to claim {key}"));
    }
    if volume.csi.is_none() {
        let message = format!("PersistentVolume {name} of claim {key} has no CSI driver; expected one");
        return volume_failed(message);
    }
    Ok(volume)
}

fn find_claim(cache: &Cache, key: &ClaimKey, reason: &'static str) -> Result<Arc<Claim>, SnapshotFailure> {
    let problem = match cache.claims.get(key) {
        Lookup::Found(claim) => return Ok(claim),
        Lookup::Undecodable(_) => "cannot be decoded",
        Lookup::Missing => "does not exist",
    };
    let dependency = Dependency::Claim(key.clone());
    Err(SnapshotFailure::of(dependency, reason, format!("claim {key} {problem}")))
}

/// The name of the content of a VolumeSnapshot: its source, or the one that is created for it. The status is
/// not used: a user who may write it could hide the content from the deletion.
pub(super) fn expected_content_name(snapshot: &VolumeSnapshot) -> VolumeSnapshotContentName {
    match &snapshot.source {
        VolumeSnapshotSource::Content(name) => name.clone(),
        VolumeSnapshotSource::Claim(_) | VolumeSnapshotSource::Invalid(_) => content_name(snapshot),
    }
}

/// The content of a VolumeSnapshot. `None` if it does not refer to the VolumeSnapshot.
fn find_content(cache: &Cache, snapshot: &VolumeSnapshot) -> Option<Arc<VolumeSnapshotContent>> {
    let content = cache.snapshot_contents.get(&expected_content_name(snapshot)).into_object()?;
    content.is_bound_to(snapshot).then_some(content)
}

/// The finalizers that a VolumeSnapshot lacks. That of the content is added only for a content that is
/// deleted with the VolumeSnapshot.
fn missing_finalizers(
    snapshot: &VolumeSnapshot,
    content: Option<&VolumeSnapshotContent>,
) -> Vec<&'static str> {
    let is_deleted_too = content.is_some_and(|content| content.deletion_policy == DeletionPolicy::Delete);
    let wanted =
        [(names::SNAPSHOT_SOURCE_PROTECTION, true), (names::SNAPSHOT_BOUND_PROTECTION, is_deleted_too)];
    let is_missing = |(name, is_wanted): &(&'static str, bool)| {
        *is_wanted && snapshot.meta.finalizer_index(name).is_none()
    };
    wanted.into_iter().filter(is_missing).map(|(name, _)| name).collect()
}

/// Decides on a VolumeSnapshot whose source is an existing content.
fn decide_existing(
    cache: &Cache,
    snapshot: &VolumeSnapshot,
    name: &VolumeSnapshotContentName,
) -> Result<SnapshotVerdict, SnapshotFailure> {
    let failed = |reason, message| SnapshotFailure::of(Dependency::Content(name.clone()), reason, message);
    let content = match cache.snapshot_contents.get(name) {
        Lookup::Found(content) => content,
        Lookup::Undecodable(_) => return Ok(SnapshotVerdict::NoAction("the content cannot be decoded")),
        Lookup::Missing => {
            let message = format!("VolumeSnapshotContent {name} does not exist");
            return Err(failed("SnapshotContentMissing", message));
        }
    };
    if !matches!(content.source, SnapshotContentSource::Snapshot(_)) {
        let message = format!(
            "VolumeSnapshotContent {name} has no spec.source.snapshotHandle; expected an existing snapshot"
        );
        return Err(failed("SnapshotContentMismatch", message));
    }
    let is_other = content.snapshot.uid.as_ref().is_some_and(|uid| *uid != snapshot.meta.uid);
    if content.snapshot.key != snapshot.key || is_other {
        let message = format!(
            "spec.volumeSnapshotRef of VolumeSnapshotContent {name} is {}{}; expected this VolumeSnapshot",
            content.snapshot.key,
            if is_other { " with another uid" } else { "" }
        );
        return Err(failed("SnapshotContentMisbound", message));
    }
    if content.snapshot.uid.is_none() {
        return Ok(SnapshotVerdict::BindContent(content));
    }
    Ok(copy_status(snapshot, &content))
}

/// Decides on a VolumeSnapshot whose content was created for it.
fn decide_dynamic(
    snapshot: &VolumeSnapshot,
    content: &VolumeSnapshotContent,
) -> Result<SnapshotVerdict, SnapshotFailure> {
    let name = &content.name;
    let failed = |reason, message| SnapshotFailure::of(Dependency::Content(name.clone()), reason, message);
    if !matches!(content.source, SnapshotContentSource::Volume(_)) {
        let message = format!(
            "VolumeSnapshotContent {name} has no spec.source.volumeHandle; expected the volume of the claim"
        );
        return Err(failed("SnapshotContentMismatch", message));
    }
    if !content.is_bound_to(snapshot) {
        let message = format!(
            "spec.volumeSnapshotRef of VolumeSnapshotContent {name} is {}; expected this VolumeSnapshot",
            content.snapshot.key
        );
        return Err(failed("SnapshotContentMisbound", message));
    }
    Ok(copy_status(snapshot, content))
}

fn copy_status(snapshot: &VolumeSnapshot, content: &VolumeSnapshotContent) -> SnapshotVerdict {
    let status = copied_status(content);
    if snapshot.status.as_ref() == Some(&status) {
        return SnapshotVerdict::NoAction("the status is that of the content");
    }
    let had_time = snapshot.status.as_ref().is_some_and(|status| status.creation_time.is_some());
    SnapshotVerdict::UpdateStatus {
        is_created: status.creation_time.is_some() && !had_time,
        is_ready: status.ready == Some(true) && !snapshot.is_ready(),
        status,
    }
}

/// Decides on a VolumeSnapshot without a content.
fn decide_new(
    cache: &Cache,
    key: &ClaimKey,
    class: Option<Arc<VolumeSnapshotClass>>,
) -> Result<SnapshotVerdict, SnapshotFailure> {
    let Some(class) = class else {
        return Ok(SnapshotVerdict::NoAction("the class is not set"));
    };
    let claim = find_claim(cache, key, CREATION_FAILED)?;
    if claim.meta.deleting {
        return Err(SnapshotFailure::new(CREATION_FAILED, format!("claim {key} is being deleted")));
    }
    let volume = source_volume(cache, key, CREATION_FAILED)?;
    let driver = volume.csi.as_ref().map(|csi| &csi.driver);
    if driver != Some(&class.driver) {
        let found = driver.map(ToString::to_string).unwrap_or_default();
        let message = format!(
            "VolumeSnapshotClass {} has the driver {}; expected {found}, the driver of PersistentVolume {}",
            class.name, class.driver, volume.name
        );
        return Err(SnapshotFailure::new(CREATION_FAILED, message));
    }
    if claim.meta.finalizer_index(names::SNAPSHOT_CLAIM_PROTECTION).is_none() {
        return Ok(SnapshotVerdict::AddClaimFinalizer(claim));
    }
    Ok(SnapshotVerdict::CreateContent { class, volume })
}

/// Decides on a VolumeSnapshot that is being deleted.
fn decide_deletion(cache: &Cache, snapshot: &VolumeSnapshot) -> SnapshotVerdict {
    let finalizers: Vec<_> = [names::SNAPSHOT_SOURCE_PROTECTION, names::SNAPSHOT_BOUND_PROTECTION]
        .into_iter()
        .filter_map(|name| Some((snapshot.meta.finalizer_index(name)?, name)))
        .collect();
    if finalizers.is_empty() {
        return SnapshotVerdict::NoAction("the finalizers of this role are removed");
    }
    let content = find_content(cache, snapshot);
    let is_protected = snapshot.meta.finalizer_index(names::RESTORE_PROTECTION).is_some();
    if content.is_some()
        && let Some(claim) = claim_to_restore(cache, snapshot)
    {
        return SnapshotVerdict::DeletePending(restore_pending(&claim, is_protected));
    }
    // The request for a volume whose claim is deleted may still be in progress.
    if is_protected {
        let text = format!(
            "a provisioner may be creating a volume from the snapshot: waiting until it removes the \
             finalizer {}",
            names::RESTORE_PROTECTION
        );
        return SnapshotVerdict::DeletePending(text);
    }
    if let Some(content) = content {
        if !content.meta.has_annotation(names::SNAPSHOT_BEING_DELETED) {
            return SnapshotVerdict::MarkContent(content);
        }
        if content.deletion_policy == DeletionPolicy::Delete {
            if !content.meta.deleting {
                return SnapshotVerdict::DeleteContent(content);
            }
            let source = names::SNAPSHOT_SOURCE_PROTECTION;
            return match snapshot.meta.finalizer_index(source) {
                Some(index) if finalizers.len() > 1 => SnapshotVerdict::RemoveFinalizers {
                    finalizers: vec![(index, source)],
                    unbound_content: None,
                },
                Some(_) | None => SnapshotVerdict::NoAction("waiting for the deletion of the content"),
            };
        }
    }
    let name = expected_content_name(snapshot);
    let unbound_content = match cache.snapshot_contents.get(&name) {
        Lookup::Found(content) if content.is_bound_to(snapshot) => None,
        Lookup::Undecodable(_) => return SnapshotVerdict::NoAction("the content cannot be decoded"),
        Lookup::Found(_) | Lookup::Missing => Some(name),
    };
    SnapshotVerdict::RemoveFinalizers { finalizers, unbound_content }
}

/// A claim without a volume that names the VolumeSnapshot as its source.
///
/// It counts also if no provisioner has protected the VolumeSnapshot: one that may not write the finalizer
/// creates the volume without it.
fn claim_to_restore(cache: &Cache, snapshot: &VolumeSnapshot) -> Option<ClaimKey> {
    let claims = cache.claims_with_source(&SourceKey::Snapshot(snapshot.key.clone()));
    let waiting = claims.iter().find(|claim| claim.phase == ClaimPhase::Pending && !claim.meta.deleting);
    waiting.map(|claim| claim.key.clone())
}

/// The reason why a VolumeSnapshot with a claim to restore is not deleted. A provisioner refuses a
/// VolumeSnapshot that is being deleted, unless it has protected it before: both wait for the user.
fn restore_pending(claim: &ClaimKey, is_protected: bool) -> String {
    let end = match is_protected {
        true => "waiting until it has a volume or is deleted",
        false => {
            "provisioners refuse a VolumeSnapshot that is being deleted, so delete the claim unless its \
             volume is being created"
        }
    };
    format!("claim {claim} has no volume yet and names the VolumeSnapshot as its source: {end}")
}

/// Returns the index of the finalizer of a claim if it can be removed: no snapshot of the claim's volume is
/// being created.
pub fn removable_claim_finalizer(cache: &Cache, claim: &Claim) -> Option<usize> {
    let index = claim.meta.finalizer_index(names::SNAPSHOT_CLAIM_PROTECTION)?;
    if !cache.snapshots.is_served() || !cache.snapshot_contents.is_served() {
        return None;
    }
    let snapshots = cache.snapshots_of_claim(&claim.key);
    let is_used = snapshots.iter().any(|snapshot| {
        let may_be_taken = !snapshot.meta.deleting && !snapshot.is_taken();
        !snapshot.is_ready() && (may_be_taken || find_content(cache, snapshot).is_some())
    });
    (!is_used).then_some(index)
}

/// The next effect for a VolumeSnapshotContent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentVerdict {
    /// No effect; the text is the reason.
    NoAction(&'static str),
    /// Emit the event of an invalid source.
    Invalid(u8),
    /// Add the finalizer.
    AddFinalizer,
    /// Emit an event, unless the VolumeSnapshot exists after all: without it, nobody deletes the content, or
    /// allows its deletion.
    SnapshotMissing,
    /// Write the annotation that the VolumeSnapshot is being deleted, unless it exists after all, or somebody
    /// else has written the source or the deletion policy of the content.
    MarkAbandoned,
    /// Delete the content, under the same conditions.
    DeleteAbandoned,
}

/// Decides the next effect for a VolumeSnapshotContent itself. All others are those of its VolumeSnapshot.
///
/// kube-apiserver loses a finalizer that is written while it deletes the object: it reads the finalizers
/// before, and compares only the uid. A VolumeSnapshot can then be gone although its content exists. Such a
/// content with the deletion policy Delete is deleted as if the VolumeSnapshot were being deleted, if its
/// snapshot is still being created, or `has_disappeared`: this process has seen that the VolumeSnapshot
/// disappeared. Any other content may be a copy from another cluster; external-snapshotter keeps all of them.
/// The caller checks who has written the content: a copy without its status looks as if its snapshot were
/// being created, and a content that was kept when its VolumeSnapshot was deleted may get the deletion policy
/// Delete later.
pub fn decide_content(
    cache: &Cache,
    content: &VolumeSnapshotContent,
    has_disappeared: bool,
) -> ContentVerdict {
    if let SnapshotContentSource::Invalid(count) = content.source {
        return ContentVerdict::Invalid(count);
    }
    // A content that was copied from another cluster refers to no VolumeSnapshot of this one.
    if content.snapshot.uid.is_none() {
        return ContentVerdict::NoAction("the content is not bound");
    }
    if !content.meta.deleting && content.meta.finalizer_index(names::SNAPSHOT_CONTENT_PROTECTION).is_none() {
        return ContentVerdict::AddFinalizer;
    }
    let is_gone = match cache.snapshots.get(&content.snapshot.key) {
        Lookup::Found(snapshot) => !content.is_bound_to(&snapshot),
        Lookup::Undecodable(_) => false,
        Lookup::Missing => cache.snapshots.is_served(),
    };
    if !is_gone || content.is_group_member() {
        return ContentVerdict::NoAction("the VolumeSnapshot decides");
    }
    let is_marked = content.meta.has_annotation(names::SNAPSHOT_BEING_DELETED);
    let is_created_for_it = matches!(content.source, SnapshotContentSource::Volume(_));
    if is_created_for_it && content.deletion_policy == DeletionPolicy::Delete {
        let is_being_created =
            content.handle().is_none() || content.meta.has_annotation(names::SNAPSHOT_BEING_CREATED);
        if !is_marked && (is_being_created || has_disappeared) {
            return ContentVerdict::MarkAbandoned;
        }
        if is_marked && !content.meta.deleting {
            return ContentVerdict::DeleteAbandoned;
        }
    }
    let is_protected = content.meta.finalizer_index(names::SNAPSHOT_CONTENT_PROTECTION).is_some();
    let is_kept = match content.meta.deleting {
        true => is_protected,
        // With the deletion policy Retain, this is the usual state after the deletion of the VolumeSnapshot.
        false => content.deletion_policy == DeletionPolicy::Delete,
    };
    if is_kept && !is_marked {
        return ContentVerdict::SnapshotMissing;
    }
    ContentVerdict::NoAction("nothing is left to do without the VolumeSnapshot")
}

#[cfg(test)]
mod tests;
