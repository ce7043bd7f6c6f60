//! What binding decides. Source: the decision tables of Kubernetes' PersistentVolumeController, whose row names (U1 …, B1 …,
//! V1 …) the comments use: U for a claim that never reached Bound, B for one that did, V for a volume.
//!
//! Listed deviations: a volume reserved for the claim wins over a free one of a smaller set of access modes; a claim that is
//! being deleted is neither bound anew nor provisioned; sizes are compared as exact quantities everywhere; where the
//! provisioner runs in the same process, the request annotation is written together with the binding.

use std::sync::Arc;

use cofferdam_cluster::{Cache, Seen};
use cofferdam_domain::{
    AccessModes, BindingMode, Claim, ClaimKey, ClaimPhase, ClaimRef, ClassName, DriverName, Quantity,
    ReclaimPolicy, StorageClass, Volume, VolumeName, VolumePhase, class::default_class, names,
};

use crate::note::Note;

/// The world that a decision is about.
#[derive(Clone, Copy)]
pub struct World<'a> {
    /// The cached objects.
    pub cache: &'a Cache,
    /// Whether a driver's provisioner runs in this process and needs no request through the API.
    pub provisions: &'a dyn Fn(&DriverName) -> bool,
    /// Whether another claim is about to get a free volume: its write is on the way.
    pub spoken_for: &'a dyn Fn(&VolumeName) -> bool,
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
    AssignClass(ClassName),
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
pub enum ClaimVerdict {
    /// This write, then ask again.
    Do(ClaimEffect, Option<Note>),
    /// Nothing; the text says why, for people.
    Settled(&'static str),
    /// Nothing before something else changes.
    Wait(Note),
    /// A provisioner is at work, or is to be.
    Provision(ClassName, DriverName),
    /// The claim's world is contradictory: try again later.
    Fail(String, Option<Note>),
}

/// Decides the next step for a claim.
pub fn claim(world: World<'_>, claim: &Claim) -> ClaimVerdict {
    if claim.is_bind_completed() { completed(world, claim) } else { unbound(world, claim) }
}

/// A claim that never reached Bound.
fn unbound(world: World<'_>, claim: &Claim) -> ClaimVerdict {
    match &claim.volume {
        None => unchosen(world, claim),
        Some(name) => chosen(world, claim, name),
    }
}

/// U1 – U6: the claim names no volume.
fn unchosen(world: World<'_>, claim: &Claim) -> ClaimVerdict {
    let delayed = match is_delayed(world.cache, claim) {
        Ok(delayed) => delayed,
        Err(message) => return ClaimVerdict::Fail(message, None),
    };
    match find_volume(world, claim, delayed) {
        Err(message) => {
            let note = Note::warning("FailedBinding", message.clone());
            return ClaimVerdict::Fail(message, Some(note));
        }
        // U2. A claim that goes needs no new volume; one that is its own already is only brought to its end.
        Ok(Some(volume)) if !claim.meta.deleting => return bind(world, claim, &volume),
        Ok(_) => {}
    }
    if claim.meta.deleting {
        return pending(claim).unwrap_or(ClaimVerdict::Settled("it is being deleted"));
    }
    if !claim.has_class()
        && let Some(class) = default_class(world.cache.classes.list().iter().map(AsRef::as_ref))
    {
        return ClaimVerdict::Do(ClaimEffect::AssignClass(class.name.clone()), None);
    }
    if let Some(verdict) = pending(claim) {
        return verdict;
    }
    if delayed && claim.selected_node().is_none() {
        return ClaimVerdict::Wait(Note::normal(
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding",
        ));
    }
    if claim.class_name().is_empty() {
        return ClaimVerdict::Wait(Note::normal(
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set",
        ));
    }
    provision(world, claim)
}

/// U5: the claim wants a new volume.
fn provision(world: World<'_>, claim: &Claim) -> ClaimVerdict {
    let name = claim.class_name();
    let class = match world.cache.class(name) {
        Seen::Known(class) => class,
        Seen::Absent => {
            let text = format!("storageclass.storage.k8s.io {name:?} not found");
            return ClaimVerdict::Wait(Note::warning("ProvisioningFailed", text));
        }
        Seen::Opaque(_) => {
            let text = format!("StorageClass {name:?} cannot be read by this version");
            return ClaimVerdict::Wait(Note::warning("ProvisioningFailed", text));
        }
    };
    let driver = &class.provisioner;
    if driver.as_str().starts_with(names::IN_TREE_PREFIX) {
        let text = format!("no volume plugin matched name: {driver}");
        return ClaimVerdict::Wait(Note::warning("ProvisioningFailed", text));
    }
    // In one process no annotation is needed; but one that names another driver would keep ours away for ever.
    let satisfied = match claim.storage_provisioner() {
        Some(asked) => asked == driver.as_str(),
        None => (world.provisions)(driver),
    };
    if !satisfied {
        return ClaimVerdict::Do(ClaimEffect::RequestProvisioning(driver.clone()), None);
    }
    ClaimVerdict::Provision(class.name.clone(), driver.clone())
}

/// The event of a claim that has waited for its provisioner.
pub fn waiting_for(driver: &DriverName) -> Note {
    Note::normal(
        "ExternalProvisioning",
        format!(
            "Waiting for a volume to be created either by the external provisioner '{driver}' or manually by the system \
             administrator. If volume creation is delayed, please verify that the provisioner is running and correctly \
             registered."
        ),
    )
}

/// U7 – U12: the claim names a volume.
fn chosen(world: World<'_>, claim: &Claim, name: &VolumeName) -> ClaimVerdict {
    let volume = match world.cache.volumes.get(name) {
        Seen::Known(volume) => volume,
        Seen::Absent => {
            return pending(claim)
                .unwrap_or(ClaimVerdict::Settled("the volume that it names does not exist"));
        }
        Seen::Opaque(_) => return ClaimVerdict::Settled("the volume that it names cannot be read"),
    };
    if volume.is_bound_to(&claim.key, &claim.meta.uid) {
        return bind(world, claim, &volume);
    }
    if volume.claim_ref.is_none() && claim.meta.deleting {
        return pending(claim).unwrap_or(ClaimVerdict::Settled("it is being deleted"));
    }
    if volume.claim_ref.is_none() {
        return match mismatch(claim, &volume) {
            None => bind(world, claim, &volume),
            Some(reason) => pending(claim).unwrap_or_else(|| {
                let text = format!("Cannot bind to requested volume \"{name}\": {reason}");
                ClaimVerdict::Wait(Note::warning("VolumeMismatch", text))
            }),
        };
    }
    let note =
        Note::warning("FailedBinding", format!("volume \"{name}\" already bound to a different claim."));
    if claim.meta.has_annotation(names::BOUND_BY_CONTROLLER) {
        let text =
            format!("invalid binding of claim {} to volume {name}: the volume is another claim's", claim.key);
        return ClaimVerdict::Fail(text, Some(note));
    }
    pending(claim).unwrap_or(ClaimVerdict::Wait(note))
}

/// B1 – B5: the claim reached Bound once; now the volume is verified, never searched.
fn completed(world: World<'_>, claim: &Claim) -> ClaimVerdict {
    let Some(name) = &claim.volume else {
        let text = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return lost(claim, "ClaimLost", text);
    };
    let volume = match world.cache.volumes.get(name) {
        Seen::Known(volume) => volume,
        Seen::Absent => {
            let text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            return lost(claim, "ClaimLost", text);
        }
        Seen::Opaque(_) => return ClaimVerdict::Settled("its volume cannot be read"),
    };
    match volume.claim_ref.as_ref().map(|r| r.uid.as_ref()) {
        None => bind(world, claim, &volume),
        Some(Some(uid)) if *uid == claim.meta.uid => bind(world, claim, &volume),
        Some(_) => {
            let text = "Two claims are bound to the same volume, this one is bound incorrectly";
            lost(claim, "ClaimMisbound", text)
        }
    }
}

fn lost(claim: &Claim, reason: &'static str, text: &str) -> ClaimVerdict {
    if claim.phase == ClaimPhase::Lost {
        return ClaimVerdict::Settled("it has lost its volume");
    }
    let status = unbound_status(ClaimPhase::Lost, claim);
    ClaimVerdict::Do(ClaimEffect::SetStatus(status), Some(Note::warning(reason, text)))
}

/// The write that brings a claim's status back to Pending, where it is not there.
fn pending(claim: &Claim) -> Option<ClaimVerdict> {
    let status = unbound_status(ClaimPhase::Pending, claim);
    let clean = claim.phase == ClaimPhase::Pending
        && claim.status_access_modes.is_empty()
        && status.capacity == CapacityWrite::Keep
        && status.attributes_class == AttributesClassWrite::Keep;
    (!clean).then_some(ClaimVerdict::Do(ClaimEffect::SetStatus(status), None))
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
/// The volume is the scarce object: from write 1 on nobody else can take it. A process that dies in between finds on its return
/// that the volume is the claim's and goes on with the next write.
fn bind(world: World<'_>, claim: &Claim, volume: &Arc<Volume>) -> ClaimVerdict {
    let ours = volume.is_bound_to(&claim.key, &claim.meta.uid);
    let complete = ours && volume.claim_ref.as_ref().is_some_and(|r| r.uid.is_some());
    if !complete {
        return ClaimVerdict::Do(
            ClaimEffect::ReserveVolume { volume: Arc::clone(volume), by_controller: !ours },
            None,
        );
    }
    if volume.phase != VolumePhase::Bound {
        return ClaimVerdict::Do(ClaimEffect::MarkVolumeBound(Arc::clone(volume)), None);
    }
    let named = claim.volume.as_ref() == Some(&volume.name);
    if !named || !claim.is_bind_completed() {
        let provisioner = volume.provisioned_by().map(DriverName::from);
        let provisioner = provisioner.filter(|driver| (world.provisions)(driver));
        let asked = claim.meta.has_annotation(names::STORAGE_PROVISIONER);
        let effect = ClaimEffect::BindClaim {
            volume: volume.name.clone(),
            by_controller: !named,
            provisioner: provisioner.filter(|_| !asked),
        };
        return ClaimVerdict::Do(effect, None);
    }
    let becomes_bound = claim.phase != ClaimPhase::Bound;
    if !becomes_bound && claim.status_access_modes == volume.access_modes {
        return ClaimVerdict::Settled("it is bound");
    }
    let Some(capacity) = volume.capacity else {
        return ClaimVerdict::Fail(format!("PersistentVolume {} has no storage capacity", volume.name), None);
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
    ClaimVerdict::Do(ClaimEffect::SetStatus(status), None)
}

/// Whether binding waits for the scheduler: the class says WaitForFirstConsumer.
fn is_delayed(cache: &Cache, claim: &Claim) -> Result<bool, String> {
    match cache.class(claim.class_name()) {
        Seen::Absent | Seen::Opaque(_) => Ok(false),
        Seen::Known(class) => match class.binding_mode {
            Some(mode) => Ok(mode == BindingMode::WaitForFirstConsumer),
            None => Err(format!("StorageClass {} has no volumeBindingMode", class.name)),
        },
    }
}

/// The volume for a claim that names none: one that is reserved for it, else the best free one.
fn find_volume(world: World<'_>, claim: &Claim, delayed: bool) -> Result<Option<Arc<Volume>>, String> {
    let cache = world.cache;
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
    let shelf = (claim.class_name(), claim.mode, &*claim.attributes_class);
    Ok(cache.find_free_volume(shelf, claim.access_modes, request, |volume| {
        selector.is_none_or(|selector| selector.matches(&volume.meta.labels))
            && !(world.spoken_for)(&volume.name)
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
    /// Gives the volume up: the whole claimRef with what the controller wrote, or only its uid where a person reserved it.
    Unbind {
        /// Whether the whole claimRef goes.
        whole: bool,
    },
    /// Reads the claim past the cache: what follows may end in the loss of data.
    LookUpClaim(ClaimKey),
}

/// What is to be done for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeVerdict {
    /// This effect, then ask again.
    Do(VolumeEffect, Option<Note>),
    /// Its claim's turn (V5).
    WakeClaim(ClaimKey),
    /// Its claim's turn never comes: the modes differ (V4). The notes are the volume's and the claim's.
    Mismatch(ClaimKey, Note, Note),
    /// Nothing; the text says why, for people.
    Settled(&'static str),
}

/// Decides the next step for a volume. `looked_up`: the claim that was read past the cache just now. It says nothing of another one
/// that the volume has come to name meanwhile.
pub fn volume(world: World<'_>, volume: &Volume, looked_up: Option<&ClaimRef>) -> VolumeVerdict {
    let Some(claim_ref) = &volume.claim_ref else {
        return phase(volume, VolumePhase::Available, "it is free");
    };
    let Some(uid) = &claim_ref.uid else {
        return phase(volume, VolumePhase::Available, "it is reserved by name");
    };
    let over = matches!(volume.phase, VolumePhase::Released | VolumePhase::Failed);
    let looked_up = looked_up == Some(claim_ref);
    let claim = match world.cache.claims.get(&claim_ref.key) {
        // Hands off: whether it is this claim or a successor, it may need the volume.
        Seen::Opaque(_) => return VolumeVerdict::Settled("its claim cannot be read"),
        Seen::Known(claim) if claim.meta.uid == *uid => Some(claim),
        Seen::Known(_) | Seen::Absent if looked_up => None,
        Seen::Known(_) => {
            return VolumeVerdict::Do(VolumeEffect::LookUpClaim(claim_ref.key.clone()), None);
        }
        Seen::Absent if over => None,
        Seen::Absent => {
            return VolumeVerdict::Do(VolumeEffect::LookUpClaim(claim_ref.key.clone()), None);
        }
    };
    let Some(claim) = claim else {
        return released(volume, over);
    };
    match &claim.volume {
        None if claim.mode != volume.mode => mode_mismatch(volume, &claim),
        None => VolumeVerdict::WakeClaim(claim.key.clone()),
        Some(name) if *name == volume.name => phase(volume, VolumePhase::Bound, "it is bound"),
        Some(_) if volume.provisioned_by().is_some() && volume.reclaim_policy == ReclaimPolicy::Delete => {
            released(volume, over)
        }
        Some(_) => {
            let whole = volume.meta.has_annotation(names::BOUND_BY_CONTROLLER);
            VolumeVerdict::Do(VolumeEffect::Unbind { whole }, None)
        }
    }
}

fn phase(volume: &Volume, phase: VolumePhase, settled: &'static str) -> VolumeVerdict {
    if volume.phase == phase {
        return VolumeVerdict::Settled(settled);
    }
    VolumeVerdict::Do(VolumeEffect::SetPhase(phase, String::new()), None)
}

/// V4
fn mode_mismatch(volume: &Volume, claim: &Claim) -> VolumeVerdict {
    let (claim_name, volume_name) = (&claim.key.name, &volume.name);
    let on_volume = format!(
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"{claim_name}\" due to incompatible volumeMode."
    );
    let on_claim = format!(
        "Cannot bind PersistentVolume \"{volume_name}\" to requested PersistentVolumeClaim due to incompatible volumeMode."
    );
    VolumeVerdict::Mismatch(
        claim.key.clone(),
        Note::warning("VolumeMismatch", on_volume),
        Note::warning("VolumeMismatch", on_claim),
    )
}

/// V3 and V7: the volume's claim is gone. `over`: whether the phase says so already.
fn released(volume: &Volume, over: bool) -> VolumeVerdict {
    if !over {
        return VolumeVerdict::Do(VolumeEffect::SetPhase(VolumePhase::Released, String::new()), None);
    }
    if volume.meta.annotation(names::MIGRATED_TO).is_some_and(|to| !to.is_empty()) {
        return VolumeVerdict::Settled("its driver reclaims it");
    }
    let failed = |reason: &'static str, text: String| {
        if volume.phase == VolumePhase::Failed {
            return VolumeVerdict::Settled("reclaiming it failed");
        }
        let effect = VolumeEffect::SetPhase(VolumePhase::Failed, text.clone());
        VolumeVerdict::Do(effect, Some(Note::warning(reason, text)))
    };
    match &volume.reclaim_policy {
        ReclaimPolicy::Retain => VolumeVerdict::Settled("it is released and stays"),
        ReclaimPolicy::Delete if deletes_elsewhere(volume) => VolumeVerdict::Settled("its driver deletes it"),
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
fn deletes_elsewhere(volume: &Volume) -> bool {
    match volume.provisioned_by() {
        Some(by) => !by.starts_with(names::IN_TREE_PREFIX),
        None => volume.csi.is_some(),
    }
}

/// Whether the class can give a claim a volume at all: claims of such classes are woken when it changes.
pub fn wakes(old: Option<&StorageClass>, new: Option<&StorageClass>) -> bool {
    let relevant = |class: &StorageClass| {
        (class.provisioner.clone(), class.binding_mode, class.is_default(), class.meta.uid.clone())
    };
    old.map(relevant) != new.map(relevant)
}

#[cfg(test)]
mod tests;
