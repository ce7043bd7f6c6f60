//! Binding rules. Source: kube-controller-manager's PersistentVolumeController, `pv_controller.go`.
//!
//! An unbound claim lacks the annotation `bind-completed`; a bound claim has it.
//!
//! Main deviations from upstream:
//! - A volume reserved for the claim has precedence over a free one with a smaller set of access modes.
//! - A claim that is being deleted is not provisioned. It is bound only to a volume that its
//!   `spec.volumeName` names and whose claimRef refers to it.
//! - Sizes are always compared as exact quantities.
//! - If the provisioner runs in the same process and the driver is not node-local, the annotation
//!   `storage-provisioner` is written together with the binding.
//! - Volumes of in-tree plugins do not get the finalizer `kubernetes.io/pv-controller`, because this
//!   controller deletes no volumes. The finalizer is removed as by upstream.

use std::sync::Arc;

use cofferdam_cluster::{Cache, Lookup};
use cofferdam_domain::{
    AccessMode, BindingMode, Claim, ClaimKey, ClaimPhase, ClaimRef, DriverName, ObjectMeta, Quantity,
    ReclaimPolicy, StorageClass, StorageClassName, Volume, VolumeName, VolumePhase, class::default_class,
    names, selector::InvalidRequirement,
};

use crate::events::EventSpec;

/// Input of the binding rules.
#[derive(Clone, Copy)]
pub struct BindingInput<'a> {
    /// The cached objects.
    pub cache: &'a Cache,
    /// Returns true if the driver's provisioner runs in this process and needs no annotation
    /// `storage-provisioner` on the claim: the driver is not node-local.
    pub has_provisioner: &'a dyn Fn(&DriverName) -> bool,
    /// For the decision on a claim: returns true if another claim is reserving or binding this volume at
    /// the moment. Always false for decisions that choose no volume for a claim, or whose choice is not
    /// performed. For the decision on a volume: returns true if any claim is.
    pub is_locked_by_other: &'a dyn Fn(&VolumeName) -> bool,
}

/// Update of a claim's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimStatus {
    /// `phase`
    pub phase: ClaimPhase,
    /// `accessModes`; `None` clears them.
    pub access_modes: Option<Vec<AccessMode>>,
    /// `capacity.storage`
    pub capacity: CapacityWrite,
    /// `currentVolumeAttributesClassName`
    pub attributes_class: AttributesClassWrite,
}

/// Update of `status.capacity`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapacityWrite {
    /// Unchanged: the resizer and kubelet write the capacity of a bound claim.
    Keep,
    /// Removed.
    Clear,
    /// Set to this quantity, in the notation of the PersistentVolume.
    Set(String),
}

/// Update of `status.currentVolumeAttributesClassName`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributesClassWrite {
    /// Unchanged.
    Keep,
    /// Removed.
    Clear,
    /// Set to this class.
    Set(Box<str>),
}

/// Update of the annotation `migrated-to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigratedToWrite {
    /// Unchanged.
    Keep,
    /// Removed.
    Clear,
    /// Set to this driver.
    Set(DriverName),
}

/// A write to a claim or its volume, for the binding or the provisioning of the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimEffect {
    /// Sets `spec.storageClassName` to the default class.
    AssignClass(StorageClassName),
    /// Write 1 of the binding: the volume's claimRef. From then on no other claim can get the volume.
    ReserveVolume {
        /// The volume at the resourceVersion of the decision.
        volume: Arc<Volume>,
        /// True if the volume has no claimRef yet: the write then also sets the annotation
        /// `bound-by-controller`, and the controller may later remove the whole claimRef.
        by_controller: bool,
    },
    /// Write 2 of the binding: the volume's phase.
    MarkVolumeBound(Arc<Volume>),
    /// Write 3 of the binding: the claim's volumeName and annotations.
    BindClaim {
        /// The PersistentVolume.
        volume: VolumeName,
        /// True if the claim's volumeName is empty: the write then also sets the annotation
        /// `bound-by-controller`.
        by_controller: bool,
        /// The driver that the write records in the annotation `storage-provisioner`. Set if the claim lacks
        /// the annotation, and [`BindingInput::has_provisioner`] is true for the driver that the volume's
        /// annotation `provisioned-by` names; else `None`.
        provisioner: Option<DriverName>,
    },
    /// Write 4 of the binding: the claim's status. The same effect sets the phase of an unbound claim to
    /// Pending, and that of a bound claim that has lost its volume to Lost.
    SetStatus(ClaimStatus),
    /// Sets the annotation `storage-provisioner`, which asks this driver's provisioner for a volume.
    SetProvisioner(DriverName),
    /// Updates the annotation `migrated-to`, which follows from the annotation `storage-provisioner`.
    SetMigratedTo(MigratedToWrite),
}

/// The next effect for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimBindingVerdict {
    /// Perform this write, emit the event on the claim, then decide again.
    Apply(ClaimEffect, Option<EventSpec>),
    /// Perform these writes concurrently, then decide again. Each is safe without the other one, and after
    /// it.
    ApplyBoth([ClaimEffect; 2]),
    /// No effect; the text is the reason.
    NoAction(&'static str),
    /// Emit the event and wait for a change of the objects.
    Wait(EventSpec),
    /// No existing volume matches. Notify the driver's provisioner in this process, or wait for a provisioner
    /// that runs in another process or whose driver is node-local. The fields are the class and its driver.
    WaitForProvisioner(StorageClassName, DriverName),
    /// The objects are invalid or contradict each other: emit the event and retry with back-off. The text is
    /// the reason.
    Fail(String, Option<EventSpec>),
}

/// The reason why no volume can be chosen for a claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum BindingError {
    #[error("StorageClass {0} has no volumeBindingMode")]
    NoBindingMode(StorageClassName),
    #[error("spec.selector is invalid: {0}")]
    InvalidSelector(InvalidRequirement),
}

/// Decides the next effect for a claim. Source: `syncClaim`.
pub fn decide_claim(input: BindingInput<'_>, claim: &Claim) -> ClaimBindingVerdict {
    let migrated_to = migrated_to_write(claim.storage_provisioner(), &claim.meta);
    if migrated_to != MigratedToWrite::Keep {
        return ClaimBindingVerdict::Apply(ClaimEffect::SetMigratedTo(migrated_to), None);
    }
    if claim.is_bind_completed() {
        decide_bound_claim(input, claim)
    } else {
        decide_unbound_claim(input, claim)
    }
}

/// Returns the update of an object's annotation `migrated-to`. `provisioner` is the plugin or driver in the
/// object's annotation, `None` without it. Source: `updateMigrationAnnotations`.
fn migrated_to_write(provisioner: Option<&str>, meta: &ObjectMeta) -> MigratedToWrite {
    let Some(provisioner) = provisioner else { return MigratedToWrite::Keep };
    let found = meta.annotation(names::MIGRATED_TO).unwrap_or_default();
    match names::migrated_driver(provisioner) {
        Some(driver) if driver == found => MigratedToWrite::Keep,
        Some(driver) => MigratedToWrite::Set(driver.into()),
        None if found.is_empty() => MigratedToWrite::Keep,
        None => MigratedToWrite::Clear,
    }
}

/// Decides for an unbound claim. Source: `syncUnboundClaim`.
fn decide_unbound_claim(input: BindingInput<'_>, claim: &Claim) -> ClaimBindingVerdict {
    match &claim.volume {
        None => decide_claim_without_volume(input, claim),
        Some(name) => decide_claim_with_volume(input, claim, name),
    }
}

/// Decides for an unbound claim with an empty `spec.volumeName`.
fn decide_claim_without_volume(input: BindingInput<'_>, claim: &Claim) -> ClaimBindingVerdict {
    let delayed = match is_delayed(input.cache, claim) {
        Ok(delayed) => delayed,
        Err(error) => return ClaimBindingVerdict::Fail(error.to_string(), None),
    };
    match find_volume(input, claim, delayed) {
        Err(error) => {
            let message = error.to_string();
            let event = EventSpec::warning("FailedBinding", message.clone());
            return ClaimBindingVerdict::Fail(message, Some(event));
        }
        // A claim that is being deleted gets no new volume.
        Ok(Some(volume)) if !claim.meta.deleting => return bind(input, claim, &volume),
        Ok(_) => {}
    }
    if claim.meta.deleting {
        return reset_to_pending(claim)
            .unwrap_or(ClaimBindingVerdict::NoAction("the claim is being deleted"));
    }
    if !claim.has_class()
        && let Some(class) = default_class(input.cache.classes.list().iter().map(AsRef::as_ref))
    {
        return ClaimBindingVerdict::Apply(ClaimEffect::AssignClass(class.name.clone()), None);
    }
    if let Some(verdict) = reset_to_pending(claim) {
        return verdict;
    }
    if delayed && claim.selected_node().is_none() {
        return ClaimBindingVerdict::Wait(EventSpec::normal(
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding",
        ));
    }
    if claim.class_name().is_empty() {
        return ClaimBindingVerdict::Wait(EventSpec::normal(
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set",
        ));
    }
    request_volume(input, claim)
}

/// Decides on dynamic provisioning for a claim. Source: `provisionClaim`.
fn request_volume(input: BindingInput<'_>, claim: &Claim) -> ClaimBindingVerdict {
    let name = claim.class_name();
    let class = match input.cache.class(name) {
        Lookup::Found(class) => class,
        Lookup::Missing => {
            let text = format!("storageclass.storage.k8s.io {name:?} not found");
            return ClaimBindingVerdict::Wait(EventSpec::warning("ProvisioningFailed", text));
        }
        Lookup::Undecodable(_) => {
            let text = format!("StorageClass {name:?} cannot be decoded");
            return ClaimBindingVerdict::Wait(EventSpec::warning("ProvisioningFailed", text));
        }
    };
    let migrated_driver = names::migrated_driver(class.provisioner.as_str()).map(DriverName::from);
    let is_migrated = migrated_driver.is_some();
    let driver = migrated_driver.unwrap_or_else(|| class.provisioner.clone());
    if driver.as_str().starts_with(names::IN_TREE_PREFIX) {
        let text = format!("no volume plugin matched name: {driver}");
        return ClaimBindingVerdict::Wait(EventSpec::warning("ProvisioningFailed", text));
    }
    // Without an annotation, a provisioner of this process provisions the claim, unless the class names the
    // in-tree plugin that was migrated to the driver. An annotation for another driver must be replaced.
    let satisfied = match claim.storage_provisioner() {
        Some(requested) => requested == driver.as_str(),
        None => !is_migrated && (input.has_provisioner)(&driver),
    };
    if !satisfied {
        return ClaimBindingVerdict::Apply(ClaimEffect::SetProvisioner(driver), None);
    }
    ClaimBindingVerdict::WaitForProvisioner(class.name.clone(), driver)
}

/// Event of a claim that waits for its provisioner. The text is upstream's.
pub fn external_provisioning_event(driver: &DriverName) -> EventSpec {
    EventSpec::normal(
        "ExternalProvisioning",
        format!(
            "Waiting for a volume to be created either by the external provisioner '{driver}' \
             or manually by the system administrator. If volume creation is delayed, please verify that \
             the provisioner is running and correctly registered."
        ),
    )
}

/// Decides for an unbound claim whose `spec.volumeName` is `name`.
fn decide_claim_with_volume(
    input: BindingInput<'_>,
    claim: &Claim,
    name: &VolumeName,
) -> ClaimBindingVerdict {
    let volume = match input.cache.volumes.get(name) {
        Lookup::Found(volume) => volume,
        Lookup::Missing => {
            return reset_to_pending(claim)
                .unwrap_or(ClaimBindingVerdict::NoAction("the requested volume does not exist"));
        }
        Lookup::Undecodable(_) => {
            return ClaimBindingVerdict::NoAction("the requested volume cannot be decoded");
        }
    };
    if volume.is_bound_to(&claim.key, &claim.meta.uid) {
        return bind(input, claim, &volume);
    }
    if volume.claim_ref.is_none() && claim.meta.deleting {
        return reset_to_pending(claim)
            .unwrap_or(ClaimBindingVerdict::NoAction("the claim is being deleted"));
    }
    if volume.claim_ref.is_none() {
        return match mismatch(claim, &volume) {
            None => bind(input, claim, &volume),
            Some(reason) => reset_to_pending(claim).unwrap_or_else(|| {
                let text = format!("Cannot bind to requested volume \"{name}\": {reason}");
                ClaimBindingVerdict::Wait(EventSpec::warning("VolumeMismatch", text))
            }),
        };
    }
    let event =
        EventSpec::warning("FailedBinding", format!("volume \"{name}\" already bound to a different claim."));
    if claim.meta.has_annotation(names::BOUND_BY_CONTROLLER) {
        let text = format!(
            "invalid binding of claim {} to volume {name}: the volume is bound to another claim",
            claim.key
        );
        return ClaimBindingVerdict::Fail(text, Some(event));
    }
    reset_to_pending(claim).unwrap_or(ClaimBindingVerdict::Wait(event))
}

/// Decides for a bound claim. Its volume is verified, never replaced. Source: `syncBoundClaim`.
fn decide_bound_claim(input: BindingInput<'_>, claim: &Claim) -> ClaimBindingVerdict {
    let Some(name) = &claim.volume else {
        let text = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return mark_claim_lost(claim, "ClaimLost", text);
    };
    let volume = match input.cache.volumes.get(name) {
        Lookup::Found(volume) => volume,
        Lookup::Missing => {
            let text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            return mark_claim_lost(claim, "ClaimLost", text);
        }
        Lookup::Undecodable(_) => return ClaimBindingVerdict::NoAction("the volume cannot be decoded"),
    };
    match volume.claim_ref.as_ref().map(|r| r.uid.as_ref()) {
        None => bind(input, claim, &volume),
        Some(Some(uid)) if *uid == claim.meta.uid => bind(input, claim, &volume),
        Some(_) => {
            let text = "Two claims are bound to the same volume, this one is bound incorrectly";
            mark_claim_lost(claim, "ClaimMisbound", text)
        }
    }
}

fn mark_claim_lost(claim: &Claim, reason: &'static str, text: &str) -> ClaimBindingVerdict {
    if claim.phase == ClaimPhase::Lost {
        return ClaimBindingVerdict::NoAction("the claim has lost its volume");
    }
    let status = unbound_status(ClaimPhase::Lost, claim);
    ClaimBindingVerdict::Apply(ClaimEffect::SetStatus(status), Some(EventSpec::warning(reason, text)))
}

/// Returns the write that resets the claim's status to Pending, or `None` if it is Pending already.
fn reset_to_pending(claim: &Claim) -> Option<ClaimBindingVerdict> {
    let status = unbound_status(ClaimPhase::Pending, claim);
    let clean = claim.phase == ClaimPhase::Pending
        && claim.status_access_modes.is_empty()
        && status.capacity == CapacityWrite::Keep
        && status.attributes_class == AttributesClassWrite::Keep;
    (!clean).then_some(ClaimBindingVerdict::Apply(ClaimEffect::SetStatus(status), None))
}

fn unbound_status(phase: ClaimPhase, claim: &Claim) -> ClaimStatus {
    ClaimStatus {
        phase,
        access_modes: None,
        capacity: if claim.status_capacity.is_some() { CapacityWrite::Clear } else { CapacityWrite::Keep },
        attributes_class: match claim.status_attributes_class {
            Some(_) => AttributesClassWrite::Clear,
            None => AttributesClassWrite::Keep,
        },
    }
}

/// Returns the first missing write of the four writes of a binding, or two that do not depend on each other.
/// Source: `bind`.
///
/// The claimRef is written first, so that no other claim can get the volume. After a crash the next process
/// finds the claimRef and continues with the missing writes. Upstream also writes the volume's phase before
/// the claim. Here, both are written at once if the volume keeps the provisioner's finalizer: a volume whose
/// phase is not Bound has no other protection, and the claim would be Lost without it.
fn bind(input: BindingInput<'_>, claim: &Claim, volume: &Arc<Volume>) -> ClaimBindingVerdict {
    let is_bound_to_claim = volume.is_bound_to(&claim.key, &claim.meta.uid);
    let complete = is_bound_to_claim && volume.claim_ref.as_ref().is_some_and(|r| r.uid.is_some());
    if !complete {
        return ClaimBindingVerdict::Apply(
            ClaimEffect::ReserveVolume { volume: Arc::clone(volume), by_controller: !is_bound_to_claim },
            None,
        );
    }
    let mark_bound =
        (volume.phase != VolumePhase::Bound).then(|| ClaimEffect::MarkVolumeBound(Arc::clone(volume)));
    // With another reclaim policy, the provisioner removes its finalizer in every phase.
    let outlives_deletion = volume.reclaim_policy == ReclaimPolicy::Delete
        && !volume.meta.deleting
        && volume.meta.finalizer_index(names::PROVISIONER_FINALIZER).is_some();
    match (mark_bound, bind_claim(input, claim, volume)) {
        (Some(mark_bound), Some(bind_claim)) if outlives_deletion => {
            return ClaimBindingVerdict::ApplyBoth([mark_bound, bind_claim]);
        }
        (Some(effect), _) | (None, Some(effect)) => return ClaimBindingVerdict::Apply(effect, None),
        (None, None) => {}
    }
    let becomes_bound = claim.phase != ClaimPhase::Bound;
    let access_modes = volume.access_mode_list();
    if !becomes_bound && claim.status_access_mode_list() == access_modes {
        return ClaimBindingVerdict::NoAction("the claim is bound");
    }
    let Some(capacity) = volume.capacity_text() else {
        return ClaimBindingVerdict::Fail(
            format!("PersistentVolume {} has no storage capacity", volume.name),
            None,
        );
    };
    let before_resize =
        volume.meta.annotation(names::PRE_RESIZE_CAPACITY).filter(|text| Quantity::parse(text).is_ok());
    let attributes_class = match (claim.phase, volume.attributes_class.as_ref()) {
        (ClaimPhase::Pending, class) if !class.is_empty() => AttributesClassWrite::Set(class.into()),
        (ClaimPhase::Pending, _) if claim.status_attributes_class.is_some() => AttributesClassWrite::Clear,
        (ClaimPhase::Pending | ClaimPhase::Bound | ClaimPhase::Lost, _) => AttributesClassWrite::Keep,
    };
    let status = ClaimStatus {
        phase: ClaimPhase::Bound,
        access_modes: Some(access_modes),
        // The resizer and kubelet write later capacities.
        capacity: if becomes_bound {
            CapacityWrite::Set(before_resize.map_or(capacity, str::to_owned))
        } else {
            CapacityWrite::Keep
        },
        attributes_class,
    };
    ClaimBindingVerdict::Apply(ClaimEffect::SetStatus(status), None)
}

/// Returns write 3 of a binding, or `None` if the claim has the volume and the annotation `bind-completed`.
fn bind_claim(input: BindingInput<'_>, claim: &Claim, volume: &Volume) -> Option<ClaimEffect> {
    let named = claim.volume.as_ref() == Some(&volume.name);
    if named && claim.is_bind_completed() {
        return None;
    }
    let provisioner = volume.provisioned_by().map(DriverName::from);
    let provisioner = provisioner.filter(|driver| (input.has_provisioner)(driver));
    let has_annotation = claim.meta.has_annotation(names::STORAGE_PROVISIONER);
    Some(ClaimEffect::BindClaim {
        volume: volume.name.clone(),
        by_controller: !named,
        provisioner: provisioner.filter(|_| !has_annotation),
    })
}

/// Returns true if binding waits for the scheduler: the class has the mode WaitForFirstConsumer. Returns
/// false if the class is missing or cannot be decoded, and an error if it has no mode. Source:
/// `IsDelayBindingMode`.
fn is_delayed(cache: &Cache, claim: &Claim) -> Result<bool, BindingError> {
    match cache.class(claim.class_name()) {
        Lookup::Missing | Lookup::Undecodable(_) => Ok(false),
        Lookup::Found(class) => match class.binding_mode {
            Some(mode) => Ok(mode == BindingMode::WaitForFirstConsumer),
            None => Err(BindingError::NoBindingMode(class.name.clone())),
        },
    }
}

/// Returns the volume for a claim without volumeName: one that is reserved for the claim and fits it, else
/// the best free one. With `delayed`, a free one is not returned: the scheduler chooses it. Source:
/// `FindMatchingVolume`.
fn find_volume(
    input: BindingInput<'_>,
    claim: &Claim,
    delayed: bool,
) -> Result<Option<Arc<Volume>>, BindingError> {
    let cache = input.cache;
    let selector = match claim.selector.as_deref() {
        None => None,
        Some(Ok(selector)) => Some(selector),
        Some(Err(error)) => return Err(BindingError::InvalidSelector(error.clone())),
    };
    // An invalid request matches no volume.
    let Ok(request) = claim.request.clone() else { return Ok(None) };
    let reserved = cache.volumes_of_claim(&claim.key).into_iter().find(|volume| {
        volume.is_bound_to(&claim.key, &claim.meta.uid)
            && volume.capacity.is_some_and(|capacity| capacity >= request)
            && volume.mode == claim.mode
            && volume.attributes_class == claim.attributes_class
            && volume.access_modes.contains(claim.access_modes)
            && !volume.meta.deleting
    });
    if reserved.is_some() || delayed {
        return Ok(reserved);
    }
    let free_volume_key = (claim.class_name(), claim.mode, &*claim.attributes_class);
    Ok(cache.find_free_volume(free_volume_key, claim.access_modes, request, |volume| {
        selector.is_none_or(|selector| selector.matches(&volume.meta.labels))
            && !(input.is_locked_by_other)(&volume.name)
    }))
}

/// Returns the reason why a free volume that the claim names cannot be bound, or `None` if it can. Texts and
/// their order are those of upstream's `checkVolumeSatisfyClaim`.
fn mismatch(claim: &Claim, volume: &Volume) -> Option<String> {
    let too_small = match (&claim.request, volume.capacity) {
        (Ok(request), Some(capacity)) => capacity < *request,
        (Err(_), _) | (_, None) => true,
    };
    if volume.meta.deleting {
        Some(format!("the volume is marked for deletion \"{}\"", volume.name))
    } else if too_small {
        Some("requested PV is too small".to_owned())
    } else if volume.class.as_ref() != claim.class_name() {
        Some("storageClassName does not match".to_owned())
    } else if volume.attributes_class != claim.attributes_class {
        Some("volumeAttributesClassName does not match".to_owned())
    } else if volume.mode != claim.mode {
        Some("incompatible volumeMode".to_owned())
    } else if !volume.access_modes.contains(claim.access_modes) {
        Some("incompatible accessMode".to_owned())
    } else {
        None
    }
}

/// A write or live read for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeEffect {
    /// Sets `status.phase` and `status.message`. An empty message removes the field.
    SetPhase(VolumePhase, String),
    /// Removes the claimRef, or only its UID if a user reserved the volume.
    Unbind {
        /// True if the whole claimRef is removed.
        whole: bool,
    },
    /// Reads the claim live. The write of the phase Released that follows is accompanied by a check of
    /// whether the cluster was restored from a backup. The provisioner of this process may afterwards
    /// delete the Released volume without live reads of its own.
    RefreshBeforeRelease(ClaimKey),
    /// Updates the annotation and the finalizers of a volume that an in-tree plugin provisioned.
    UpdateMigration {
        /// The annotation `migrated-to`.
        migrated_to: MigratedToWrite,
        /// All finalizers that remain; `None` if they are unchanged.
        finalizers: Option<Vec<Arc<str>>>,
    },
}

/// The next effect for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeBindingVerdict {
    /// Perform this effect, emit the event on the volume, then decide again.
    Apply(VolumeEffect, Option<EventSpec>),
    /// Enqueue the claim, whose reconcile completes the binding.
    EnqueueClaim(ClaimKey),
    /// Volume and claim have different volume modes: emit the first event on the volume and the second on
    /// this claim.
    VolumeModeMismatch(ClaimKey, EventSpec, EventSpec),
    /// No effect; the text is the reason.
    NoAction(&'static str),
}

/// Decides the next effect for a volume. Source: `syncVolume`.
///
/// `refreshed_claim` is the claimRef whose claim was read live earlier in this reconcile, or whose claim a
/// write of this process has removed; `None` without either. It is ignored if the volume's claimRef has
/// changed since.
pub fn decide_volume(
    input: BindingInput<'_>,
    volume: &Volume,
    refreshed_claim: Option<&ClaimRef>,
) -> VolumeBindingVerdict {
    let migrated_to = migrated_to_write(volume.meta.annotation(names::PROVISIONED_BY), &volume.meta);
    let finalizers = remaining_finalizers(volume);
    if migrated_to != MigratedToWrite::Keep || finalizers.is_some() {
        return VolumeBindingVerdict::Apply(VolumeEffect::UpdateMigration { migrated_to, finalizers }, None);
    }
    let Some(claim_ref) = &volume.claim_ref else {
        return set_phase(volume, VolumePhase::Available, "the volume is free");
    };
    let Some(uid) = &claim_ref.uid else {
        return set_phase(volume, VolumePhase::Available, "the volume is reserved by name");
    };
    let is_released = matches!(volume.phase, VolumePhase::Released | VolumePhase::Failed);
    let is_refreshed = refreshed_claim == Some(claim_ref);
    let claim = match input.cache.claims.get(&claim_ref.key) {
        // The claim may be the volume's, or a later one that needs the volume.
        Lookup::Undecodable(_) => return VolumeBindingVerdict::NoAction("the claim cannot be decoded"),
        Lookup::Found(claim) if claim.meta.uid == *uid => Some(claim),
        Lookup::Found(_) | Lookup::Missing if is_refreshed => None,
        Lookup::Missing if is_released => None,
        Lookup::Found(_) | Lookup::Missing => {
            return VolumeBindingVerdict::Apply(
                VolumeEffect::RefreshBeforeRelease(claim_ref.key.clone()),
                None,
            );
        }
    };
    let Some(claim) = claim else {
        return decide_unclaimed_volume(volume, is_released);
    };
    match &claim.volume {
        None if claim.mode != volume.mode => mode_mismatch(volume, &claim),
        None => VolumeBindingVerdict::EnqueueClaim(claim.key.clone()),
        // The reconcile of the claim is writing the phase.
        Some(name) if *name == volume.name && (input.is_locked_by_other)(name) => {
            VolumeBindingVerdict::EnqueueClaim(claim.key.clone())
        }
        Some(name) if *name == volume.name => set_phase(volume, VolumePhase::Bound, "the volume is bound"),
        Some(_) if volume.provisioned_by().is_some() && volume.reclaim_policy == ReclaimPolicy::Delete => {
            decide_unclaimed_volume(volume, is_released)
        }
        Some(_) => {
            let whole = volume.meta.has_annotation(names::BOUND_BY_CONTROLLER);
            VolumeBindingVerdict::Apply(VolumeEffect::Unbind { whole }, None)
        }
    }
}

/// Returns the finalizers of a volume that an in-tree plugin provisioned, without those that have to be
/// removed: the finalizer of the in-tree plugin, if the plugin is migrated to a CSI driver or the volume is
/// not deleted after its claim, and the finalizer of external-provisioner, if the plugin is not migrated.
/// Returns `None` if there are none to remove. Source: `modifyDeletionFinalizers`, which also adds the
/// finalizer of the in-tree plugin.
fn remaining_finalizers(volume: &Volume) -> Option<Vec<Arc<str>>> {
    let plugin = volume.provisioned_by().filter(|plugin| plugin.starts_with(names::IN_TREE_PREFIX))?;
    let is_migrated = names::migrated_driver(plugin).is_some();
    let is_kept = matches!(volume.reclaim_policy, ReclaimPolicy::Retain | ReclaimPolicy::Recycle);
    let is_removed = |finalizer: &str| match finalizer {
        names::IN_TREE_FINALIZER => is_migrated || is_kept,
        names::PROVISIONER_FINALIZER => !is_migrated,
        _ => false,
    };
    let remaining: Vec<Arc<str>> =
        volume.meta.finalizers.iter().filter(|finalizer| !is_removed(finalizer)).cloned().collect();
    (remaining.len() < volume.meta.finalizers.len()).then_some(remaining)
}

fn set_phase(volume: &Volume, phase: VolumePhase, reason: &'static str) -> VolumeBindingVerdict {
    if volume.phase == phase {
        return VolumeBindingVerdict::NoAction(reason);
    }
    VolumeBindingVerdict::Apply(VolumeEffect::SetPhase(phase, String::new()), None)
}

/// Returns the verdict for a volume whose claim has another volume mode.
fn mode_mismatch(volume: &Volume, claim: &Claim) -> VolumeBindingVerdict {
    let (claim_name, volume_name) = (&claim.key.name, &volume.name);
    let on_volume = format!(
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"{claim_name}\" \
         due to incompatible volumeMode."
    );
    let on_claim = format!(
        "Cannot bind PersistentVolume \"{volume_name}\" to requested PersistentVolumeClaim \
         due to incompatible volumeMode."
    );
    VolumeBindingVerdict::VolumeModeMismatch(
        claim.key.clone(),
        EventSpec::warning("VolumeMismatch", on_volume),
        EventSpec::warning("VolumeMismatch", on_claim),
    )
}

/// Decides for a volume whose claim is deleted, or bound to another volume. `is_released` is true if the
/// phase is Released or Failed. Source: `reclaimVolume`.
fn decide_unclaimed_volume(volume: &Volume, is_released: bool) -> VolumeBindingVerdict {
    if !is_released {
        return VolumeBindingVerdict::Apply(
            VolumeEffect::SetPhase(VolumePhase::Released, String::new()),
            None,
        );
    }
    if volume.meta.annotation(names::MIGRATED_TO).is_some_and(|to| !to.is_empty()) {
        return VolumeBindingVerdict::NoAction("the driver reclaims the volume");
    }
    let failed = |reason: &'static str, text: String| {
        if volume.phase == VolumePhase::Failed {
            return VolumeBindingVerdict::NoAction("the reclaim has failed");
        }
        let effect = VolumeEffect::SetPhase(VolumePhase::Failed, text.clone());
        VolumeBindingVerdict::Apply(effect, Some(EventSpec::warning(reason, text)))
    };
    match &volume.reclaim_policy {
        ReclaimPolicy::Retain => VolumeBindingVerdict::NoAction("the volume is released and retained"),
        ReclaimPolicy::Delete if is_deleted_by_provisioner(volume) => {
            VolumeBindingVerdict::NoAction("the driver deletes the volume")
        }
        ReclaimPolicy::Delete => failed("VolumeFailedDelete", missing_deleter_message(volume)),
        ReclaimPolicy::Recycle => {
            failed("VolumeFailedRecycle", "No recycler plugin found for the volume!".to_owned())
        }
        ReclaimPolicy::Other(_) => failed(
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy".to_owned(),
        ),
    }
}

/// Returns the message of a volume that no provisioner deletes. Source: `findDeletablePlugin`, for a
/// kube-controller-manager whose plugins for NFS and local volumes delete nothing. Its plugin for hostPath
/// volumes deletes those below `/tmp`.
fn missing_deleter_message(volume: &Volume) -> String {
    if let Some(plugin) = volume.provisioned_by() {
        return format!("no volume plugin matched name: {plugin}");
    }
    let problem = match volume.in_tree_source {
        Some("hostPath" | "local" | "nfs") => "no deletable volume plugin matched",
        Some(_) | None => "no volume plugin matched",
    };
    format!("error getting deleter volume plugin for volume \"{}\": {problem}", volume.name)
}

/// Returns true if a provisioner, not this controller, deletes the volume. The provisioner deletes it once
/// the phase is Released.
fn is_deleted_by_provisioner(volume: &Volume) -> bool {
    match volume.provisioned_by() {
        Some(by) => !by.starts_with(names::IN_TREE_PREFIX),
        None => volume.csi.is_some(),
    }
}

/// Returns true if the creation, update or deletion of a StorageClass affects unbound claims. The caller then
/// enqueues the unbound claims of the class, and those without a class if the class is now a default.
pub fn is_relevant_class_change(old: Option<&StorageClass>, new: Option<&StorageClass>) -> bool {
    let relevant = |class: &StorageClass| {
        (class.provisioner.clone(), class.binding_mode, class.is_default(), class.meta.uid.clone())
    };
    old.map(relevant) != new.map(relevant)
}

#[cfg(test)]
mod tests;
