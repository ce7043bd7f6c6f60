//! What binding decides. Source: the decision tables of Kubernetes' PersistentVolumeController, whose row
//! names (U1 …, B1 …, V1 …) the comments use: U for a claim that never reached Bound, B for one that did, V
//! for a volume.
//!
//! Listed deviations: a volume reserved for the claim wins over a free one of a smaller set of access modes;
//! a claim that is being deleted is neither bound anew nor provisioned; sizes are compared as exact
//! quantities everywhere; where the provisioner runs in the same process, the request annotation is written
//! together with the binding.

use std::sync::Arc;

use cofferdam_cluster::{Cache, Lookup};
use cofferdam_domain::{
    AccessModes, BindingMode, Claim, ClaimKey, ClaimPhase, ClaimRef, DriverName, Quantity, ReclaimPolicy,
    StorageClass, StorageClassName, Volume, VolumeName, VolumePhase, class::default_class, names,
};

use crate::event_spec::EventSpec;

/// The world that a decision is about.
#[derive(Clone, Copy)]
pub struct BindingInput<'a> {
    /// The cached objects.
    pub cache: &'a Cache,
    /// Whether a driver's provisioner runs in this process and needs no request through the API.
    pub has_provisioner: &'a dyn Fn(&DriverName) -> bool,
    /// Whether another claim is about to get a free volume: its write is on the way.
    pub is_locked_by_other: &'a dyn Fn(&VolumeName) -> bool,
}

/// `status` of a claim as binding writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimStatus {
    /// `phase`
    pub phase: ClaimPhase,
    /// `accessModes`; absent clears them.
    pub access_modes: Option<AccessModes>,
    /// `capacity.storage`: what to write, where it is to be written at all.
    pub capacity: CapacityWrite,
    /// `currentVolumeAttributesClassName`, likewise.
    pub attributes_class: AttributesClassWrite,
}

/// What happens to `status.capacity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacityWrite {
    /// It stays: a bound claim's capacity belongs to the resizer.
    Keep,
    /// It goes.
    Clear,
    /// It becomes this.
    Set(Quantity),
}

/// What happens to `status.currentVolumeAttributesClassName`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributesClassWrite {
    /// It stays.
    Keep,
    /// It goes.
    Clear,
    /// It becomes this.
    Set(Box<str>),
}

/// One write for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimEffect {
    /// U3: `spec.storageClassName` of a claim that has none.
    AssignClass(StorageClassName),
    /// Bind write 1: the volume's claimRef; it decides who gets the volume.
    ReserveVolume {
        /// The volume as it was seen.
        volume: Arc<Volume>,
        /// Whether the controller chose it, so that it may undo the choice.
        by_controller: bool,
    },
    /// Bind write 2: the volume's phase.
    MarkVolumeBound(Arc<Volume>),
    /// Bind write 3: the claim's volume and annotations.
    BindClaim {
        /// The volume.
        volume: VolumeName,
        /// Whether the controller chose it.
        by_controller: bool,
        /// The driver, where the claim does not carry its request annotation yet.
        provisioner: Option<DriverName>,
    },
    /// Bind write 4, and the way back to Pending or to Lost.
    SetStatus(ClaimStatus),
    /// The annotation that asks a provisioner elsewhere for a volume.
    RequestProvisioning(DriverName),
}

/// What is to be done for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimBindingVerdict {
    /// This write, then ask again.
    Apply(ClaimEffect, Option<EventSpec>),
    /// Nothing; the text says why, for people.
    NoAction(&'static str),
    /// Nothing before something else changes.
    Wait(EventSpec),
    /// A provisioner is at work, or is to be.
    Provision(StorageClassName, DriverName),
    /// The claim's world is contradictory: try again later.
    Fail(String, Option<EventSpec>),
}

/// Decides the next step for a claim.
pub fn decide_claim(input: BindingInput<'_>, claim: &Claim) -> ClaimBindingVerdict {
    if claim.is_bind_completed() {
        decide_bound_claim(input, claim)
    } else {
        decide_unbound_claim(input, claim)
    }
}

/// A claim that never reached Bound.
fn decide_unbound_claim(input: BindingInput<'_>, claim: &Claim) -> ClaimBindingVerdict {
    match &claim.volume {
        None => decide_claim_without_volume(input, claim),
        Some(name) => decide_claim_with_volume(input, claim, name),
    }
}

/// U1 – U6: the claim names no volume.
fn decide_claim_without_volume(input: BindingInput<'_>, claim: &Claim) -> ClaimBindingVerdict {
    let delayed = match is_delayed(input.cache, claim) {
        Ok(delayed) => delayed,
        Err(message) => return ClaimBindingVerdict::Fail(message, None),
    };
    match find_volume(input, claim, delayed) {
        Err(message) => {
            let event = EventSpec::warning("FailedBinding", message.clone());
            return ClaimBindingVerdict::Fail(message, Some(event));
        }
        // U2. A claim that goes needs no new volume; one that is its own already is only brought to its end.
        Ok(Some(volume)) if !claim.meta.deleting => return bind(input, claim, &volume),
        Ok(_) => {}
    }
    if claim.meta.deleting {
        return reset_to_pending(claim).unwrap_or(ClaimBindingVerdict::NoAction("it is being deleted"));
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
    provision(input, claim)
}

/// U5: the claim wants a new volume.
fn provision(input: BindingInput<'_>, claim: &Claim) -> ClaimBindingVerdict {
    let name = claim.class_name();
    let class = match input.cache.class(name) {
        Lookup::Found(class) => class,
        Lookup::Missing => {
            let text = format!("storageclass.storage.k8s.io {name:?} not found");
            return ClaimBindingVerdict::Wait(EventSpec::warning("ProvisioningFailed", text));
        }
        Lookup::Undecodable(_) => {
            let text = format!("StorageClass {name:?} cannot be read by this version");
            return ClaimBindingVerdict::Wait(EventSpec::warning("ProvisioningFailed", text));
        }
    };
    let driver = &class.provisioner;
    if driver.as_str().starts_with(names::IN_TREE_PREFIX) {
        let text = format!("no volume plugin matched name: {driver}");
        return ClaimBindingVerdict::Wait(EventSpec::warning("ProvisioningFailed", text));
    }
    // In one process no annotation is needed; but one that names another driver would keep ours away for
    // ever.
    let satisfied = match claim.storage_provisioner() {
        Some(asked) => asked == driver.as_str(),
        None => (input.has_provisioner)(driver),
    };
    if !satisfied {
        return ClaimBindingVerdict::Apply(ClaimEffect::RequestProvisioning(driver.clone()), None);
    }
    ClaimBindingVerdict::Provision(class.name.clone(), driver.clone())
}

/// The event of a claim that has waited for its provisioner.
pub fn external_provisioning_event(driver: &DriverName) -> EventSpec {
    EventSpec::normal(
        "ExternalProvisioning",
        format!(
            "Waiting for a volume to be created either by the external provisioner '{driver}' or manually by the system \
             administrator. If volume creation is delayed, please verify that the provisioner is running and correctly \
             registered."
        ),
    )
}

/// U7 – U12: the claim names a volume.
fn decide_claim_with_volume(
    input: BindingInput<'_>,
    claim: &Claim,
    name: &VolumeName,
) -> ClaimBindingVerdict {
    let volume = match input.cache.volumes.get(name) {
        Lookup::Found(volume) => volume,
        Lookup::Missing => {
            return reset_to_pending(claim)
                .unwrap_or(ClaimBindingVerdict::NoAction("the volume that it names does not exist"));
        }
        Lookup::Undecodable(_) => {
            return ClaimBindingVerdict::NoAction("the volume that it names cannot be read");
        }
    };
    if volume.is_bound_to(&claim.key, &claim.meta.uid) {
        return bind(input, claim, &volume);
    }
    if volume.claim_ref.is_none() && claim.meta.deleting {
        return reset_to_pending(claim).unwrap_or(ClaimBindingVerdict::NoAction("it is being deleted"));
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
        let text =
            format!("invalid binding of claim {} to volume {name}: the volume is another claim's", claim.key);
        return ClaimBindingVerdict::Fail(text, Some(event));
    }
    reset_to_pending(claim).unwrap_or(ClaimBindingVerdict::Wait(event))
}

/// B1 – B5: the claim reached Bound once; now the volume is verified, never searched.
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
        Lookup::Undecodable(_) => return ClaimBindingVerdict::NoAction("its volume cannot be read"),
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
        return ClaimBindingVerdict::NoAction("it has lost its volume");
    }
    let status = unbound_status(ClaimPhase::Lost, claim);
    ClaimBindingVerdict::Apply(ClaimEffect::SetStatus(status), Some(EventSpec::warning(reason, text)))
}

/// The write that brings a claim's status back to Pending, where it is not there.
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

/// The four writes of binding, volume first: the first that is missing.
///
/// The volume is the scarce object: from write 1 on nobody else can take it. A process that dies in between
/// finds on its return that the volume is the claim's and goes on with the next write.
fn bind(input: BindingInput<'_>, claim: &Claim, volume: &Arc<Volume>) -> ClaimBindingVerdict {
    let is_bound_to_claim = volume.is_bound_to(&claim.key, &claim.meta.uid);
    let complete = is_bound_to_claim && volume.claim_ref.as_ref().is_some_and(|r| r.uid.is_some());
    if !complete {
        return ClaimBindingVerdict::Apply(
            ClaimEffect::ReserveVolume { volume: Arc::clone(volume), by_controller: !is_bound_to_claim },
            None,
        );
    }
    if volume.phase != VolumePhase::Bound {
        return ClaimBindingVerdict::Apply(ClaimEffect::MarkVolumeBound(Arc::clone(volume)), None);
    }
    let named = claim.volume.as_ref() == Some(&volume.name);
    if !named || !claim.is_bind_completed() {
        let provisioner = volume.provisioned_by().map(DriverName::from);
        let provisioner = provisioner.filter(|driver| (input.has_provisioner)(driver));
        let asked = claim.meta.has_annotation(names::STORAGE_PROVISIONER);
        let effect = ClaimEffect::BindClaim {
            volume: volume.name.clone(),
            by_controller: !named,
            provisioner: provisioner.filter(|_| !asked),
        };
        return ClaimBindingVerdict::Apply(effect, None);
    }
    let becomes_bound = claim.phase != ClaimPhase::Bound;
    if !becomes_bound && claim.status_access_modes == volume.access_modes {
        return ClaimBindingVerdict::NoAction("it is bound");
    }
    let Some(capacity) = volume.capacity else {
        return ClaimBindingVerdict::Fail(
            format!("PersistentVolume {} has no storage capacity", volume.name),
            None,
        );
    };
    let before_resize =
        volume.meta.annotation(names::PRE_RESIZE_CAPACITY).and_then(|text| Quantity::parse(text).ok());
    let attributes_class = match (claim.phase, volume.attributes_class.as_ref()) {
        (ClaimPhase::Pending, class) if !class.is_empty() => AttributesClassWrite::Set(class.into()),
        (ClaimPhase::Pending, _) if claim.status_attributes_class.is_some() => AttributesClassWrite::Clear,
        (ClaimPhase::Pending | ClaimPhase::Bound | ClaimPhase::Lost, _) => AttributesClassWrite::Keep,
    };
    let status = ClaimStatus {
        phase: ClaimPhase::Bound,
        access_modes: Some(volume.access_modes),
        // Later growth belongs to the resizer and kubelet.
        capacity: if becomes_bound {
            CapacityWrite::Set(before_resize.unwrap_or(capacity))
        } else {
            CapacityWrite::Keep
        },
        attributes_class,
    };
    ClaimBindingVerdict::Apply(ClaimEffect::SetStatus(status), None)
}

/// Whether binding waits for the scheduler: the class says WaitForFirstConsumer.
fn is_delayed(cache: &Cache, claim: &Claim) -> Result<bool, String> {
    match cache.class(claim.class_name()) {
        Lookup::Missing | Lookup::Undecodable(_) => Ok(false),
        Lookup::Found(class) => match class.binding_mode {
            Some(mode) => Ok(mode == BindingMode::WaitForFirstConsumer),
            None => Err(format!("StorageClass {} has no volumeBindingMode", class.name)),
        },
    }
}

/// The volume for a claim that names none: one that is reserved for it, else the best free one.
fn find_volume(input: BindingInput<'_>, claim: &Claim, delayed: bool) -> Result<Option<Arc<Volume>>, String> {
    let cache = input.cache;
    let selector = match claim.selector.as_deref() {
        None => None,
        Some(Ok(selector)) => Some(selector),
        Some(Err(reason)) => return Err(format!("the claim's selector cannot be used: {reason}")),
    };
    // An amount that no volume has matches none.
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

/// Why a free volume that the claim names cannot be bound, in Kubernetes' order.
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

/// One write, or one live read, for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeEffect {
    /// `status.phase` and `status.message`.
    SetPhase(VolumePhase, String),
    /// Gives the volume up: the whole claimRef with what the controller wrote, or only its uid where a person
    /// reserved it.
    Unbind {
        /// Whether the whole claimRef goes.
        whole: bool,
    },
    /// Reads the claim past the cache: what follows may end in the loss of data.
    RefreshClaim(ClaimKey),
}

/// What is to be done for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeBindingVerdict {
    /// This effect, then ask again.
    Apply(VolumeEffect, Option<EventSpec>),
    /// Its claim's turn (V5).
    EnqueueClaim(ClaimKey),
    /// Its claim's turn never comes: the modes differ (V4). The notes are the volume's and the claim's.
    VolumeModeMismatch(ClaimKey, EventSpec, EventSpec),
    /// Nothing; the text says why, for people.
    NoAction(&'static str),
}

/// Decides the next step for a volume. `looked_up`: the claim that was read past the cache just now. It says
/// nothing of another one that the volume has come to name meanwhile.
pub fn decide_volume(
    input: BindingInput<'_>,
    volume: &Volume,
    refreshed_claim: Option<&ClaimRef>,
) -> VolumeBindingVerdict {
    let Some(claim_ref) = &volume.claim_ref else {
        return set_phase(volume, VolumePhase::Available, "it is free");
    };
    let Some(uid) = &claim_ref.uid else {
        return set_phase(volume, VolumePhase::Available, "it is reserved by name");
    };
    let is_released = matches!(volume.phase, VolumePhase::Released | VolumePhase::Failed);
    let refreshed_claim = refreshed_claim == Some(claim_ref);
    let claim = match input.cache.claims.get(&claim_ref.key) {
        // Hands off: whether it is this claim or a successor, it may need the volume.
        Lookup::Undecodable(_) => return VolumeBindingVerdict::NoAction("its claim cannot be read"),
        Lookup::Found(claim) if claim.meta.uid == *uid => Some(claim),
        Lookup::Found(_) | Lookup::Missing if refreshed_claim => None,
        Lookup::Found(_) => {
            return VolumeBindingVerdict::Apply(VolumeEffect::RefreshClaim(claim_ref.key.clone()), None);
        }
        Lookup::Missing if is_released => None,
        Lookup::Missing => {
            return VolumeBindingVerdict::Apply(VolumeEffect::RefreshClaim(claim_ref.key.clone()), None);
        }
    };
    let Some(claim) = claim else {
        return decide_released_volume(volume, is_released);
    };
    match &claim.volume {
        None if claim.mode != volume.mode => mode_mismatch(volume, &claim),
        None => VolumeBindingVerdict::EnqueueClaim(claim.key.clone()),
        Some(name) if *name == volume.name => set_phase(volume, VolumePhase::Bound, "it is bound"),
        Some(_) if volume.provisioned_by().is_some() && volume.reclaim_policy == ReclaimPolicy::Delete => {
            decide_released_volume(volume, is_released)
        }
        Some(_) => {
            let whole = volume.meta.has_annotation(names::BOUND_BY_CONTROLLER);
            VolumeBindingVerdict::Apply(VolumeEffect::Unbind { whole }, None)
        }
    }
}

fn set_phase(volume: &Volume, phase: VolumePhase, settled: &'static str) -> VolumeBindingVerdict {
    if volume.phase == phase {
        return VolumeBindingVerdict::NoAction(settled);
    }
    VolumeBindingVerdict::Apply(VolumeEffect::SetPhase(phase, String::new()), None)
}

/// V4
fn mode_mismatch(volume: &Volume, claim: &Claim) -> VolumeBindingVerdict {
    let (claim_name, volume_name) = (&claim.key.name, &volume.name);
    let on_volume = format!(
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"{claim_name}\" due to incompatible volumeMode."
    );
    let on_claim = format!(
        "Cannot bind PersistentVolume \"{volume_name}\" to requested PersistentVolumeClaim due to incompatible volumeMode."
    );
    VolumeBindingVerdict::VolumeModeMismatch(
        claim.key.clone(),
        EventSpec::warning("VolumeMismatch", on_volume),
        EventSpec::warning("VolumeMismatch", on_claim),
    )
}

/// V3 and V7: the volume's claim is gone. `over`: whether the phase says so already.
fn decide_released_volume(volume: &Volume, is_released: bool) -> VolumeBindingVerdict {
    if !is_released {
        return VolumeBindingVerdict::Apply(
            VolumeEffect::SetPhase(VolumePhase::Released, String::new()),
            None,
        );
    }
    if volume.meta.annotation(names::MIGRATED_TO).is_some_and(|to| !to.is_empty()) {
        return VolumeBindingVerdict::NoAction("its driver reclaims it");
    }
    let failed = |reason: &'static str, text: String| {
        if volume.phase == VolumePhase::Failed {
            return VolumeBindingVerdict::NoAction("reclaiming it failed");
        }
        let effect = VolumeEffect::SetPhase(VolumePhase::Failed, text.clone());
        VolumeBindingVerdict::Apply(effect, Some(EventSpec::warning(reason, text)))
    };
    match &volume.reclaim_policy {
        ReclaimPolicy::Retain => VolumeBindingVerdict::NoAction("it is released and stays"),
        ReclaimPolicy::Delete if is_deleted_by_provisioner(volume) => {
            VolumeBindingVerdict::NoAction("its driver deletes it")
        }
        ReclaimPolicy::Delete => failed(
            "VolumeFailedDelete",
            format!(
                "error getting deleter volume plugin for volume \"{}\": no volume plugin matched",
                volume.name
            ),
        ),
        ReclaimPolicy::Recycle => {
            failed("VolumeFailedRecycle", "No recycler plugin found for the volume!".to_owned())
        }
        ReclaimPolicy::Other(_) => failed(
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy".to_owned(),
        ),
    }
}

/// Whether a provisioner, not this controller, deletes the volume: then Released is the signal for it.
fn is_deleted_by_provisioner(volume: &Volume) -> bool {
    match volume.provisioned_by() {
        Some(by) => !by.starts_with(names::IN_TREE_PREFIX),
        None => volume.csi.is_some(),
    }
}

/// Whether the class can give a claim a volume at all: claims of such classes are woken when it changes.
pub fn is_relevant_class_change(old: Option<&StorageClass>, new: Option<&StorageClass>) -> bool {
    let relevant = |class: &StorageClass| {
        (class.provisioner.clone(), class.binding_mode, class.is_default(), class.meta.uid.clone())
    };
    old.map(relevant) != new.map(relevant)
}

#[cfg(test)]
mod tests;
