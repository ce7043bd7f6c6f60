//! What provisioning decides. Source: the decision order of external-provisioner ("should this claim be provisioned", "building
//! the request", "result states"), and the intent journal: what was once asked for is asked for again, word for word, until the
//! answer is final, whatever happened to the claim and its class meanwhile.

use std::{collections::BTreeSet, sync::Arc};

use cofferdam_cluster::{Cache, Intent, IntentClass, Seen};
use cofferdam_domain::{
    AccessMode, AccessModes, BindingMode, Claim, ClusterId, DriverName, NodeName, ReclaimPolicy,
    StorageClass, Uid, Volume, VolumeMode, VolumeName, VolumePhase, names,
    storage::{
        AccessType, CapabilityMode, CapacityRange, CreateVolume, CreatedVolume, ErrorKind, Finality, Owner,
        Parameters, StorageError, TopologyRequirement, VolumeCapability,
    },
};

use super::{
    parameters,
    placement::{self, Here},
    topology::{self, Ask, Missing},
};
use crate::pv_controller::rules::{self as binding, ClaimVerdict as Binding, World};

/// What an operator chose, as far as a request depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// First part of the volume's name.
    pub prefix: String,
    /// Filesystem type for classes that name none.
    pub default_fs_type: Option<String>,
    /// Whether the names of claim and volume go to the driver as parameters.
    pub extra_create_metadata: bool,
    /// This cluster.
    pub cluster: ClusterId,
    /// Whether binding runs in this process: then no request annotation is needed.
    pub binder_here: bool,
    /// Drivers that tell one writer on a node from many (CSI `SINGLE_NODE_MULTI_WRITER`).
    pub tell_writers: BTreeSet<DriverName>,
    /// Drivers whose volumes have parameters that may change.
    pub modifying: BTreeSet<DriverName>,
    /// Drivers whose volumes may be reachable from some nodes only.
    pub topology: BTreeSet<DriverName>,
    /// Whether a chosen node is the only place.
    pub strict_topology: bool,
    /// Whether all places are named where no node is chosen and the class allows everything.
    pub immediate_topology: bool,
    /// The node that this process is on, with the drivers whose storage is in it.
    pub here: Option<Here>,
}

impl Options {
    /// The node of this process, where the driver's storage is in it.
    fn here_of(&self, driver: &DriverName) -> Option<&Here> {
        self.here.as_ref().filter(|here| here.has(driver))
    }
}

/// The world that a decision about a claim is about.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The cached objects.
    pub cache: &'a Cache,
    /// The claim's recorded intent.
    pub intent: Option<&'a Arc<Intent>>,
    /// Whether a driver is ours.
    pub ours: &'a dyn Fn(&DriverName) -> bool,
    /// Class of the claim when its request was last found to be invalid, while that is remembered.
    pub infeasible: Option<&'a Uid>,
    /// What the operator chose.
    pub options: &'a Options,
}

/// What is to be done for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimVerdict {
    /// Nothing; the text says why, for people.
    Ignore(&'static str),
    /// Write this intent down, then ask again.
    Record(Box<Intent>),
    /// Send the recorded request, then ask [`created`] what follows.
    Create(Arc<Intent>),
    /// The volume's object exists: the intent has served.
    Forget,
    /// Nobody has chosen a node: choose this process' own, if it is its turn in the race with the other nodes and the driver has
    /// room for the request.
    Take {
        /// The claim as it was when nobody had chosen: what is written is written on this version of it.
        claim: Arc<Claim>,
        /// This process' node.
        node: NodeName,
        /// What the driver would be asked for; absent where it cannot be: who has taken the claim tells it.
        request: Option<Box<CreateVolume>>,
    },
    /// The claim cannot be provisioned as it stands. `lasting`: only a change helps.
    Refuse {
        /// For the event.
        message: String,
        /// Whether trying again soon is of no use.
        lasting: bool,
    },
    /// The nodes do not tell enough yet; for the event.
    AwaitNodes(String),
    /// There is no such node any more: take the scheduler's choice back.
    Reschedule {
        /// The node.
        node: NodeName,
        /// For the event.
        message: String,
    },
    /// Another component makes the volume; for the event.
    LeaveToPopulator,
}

/// Name of the volume for a claim.
pub fn volume_name(prefix: &str, claim: &Uid) -> VolumeName {
    VolumeName::from(format!("{prefix}-{claim}"))
}

/// Decides the next step for the claim of this uid.
pub fn claim(view: View<'_>, uid: &Uid) -> ClaimVerdict {
    let claim = view.cache.claim_by_uid(uid);
    if let Some(intent) = view.intent {
        let name = VolumeName::from(intent.request.name.as_str());
        return match view.cache.volumes.get(&name) {
            // One on another node has nothing to do with what this node's driver may have made.
            Seen::Known(volume)
                if belongs_to(&volume, uid)
                    && !placement::is_elsewhere(view.options.here.as_ref(), intent, &volume) =>
            {
                ClaimVerdict::Forget
            }
            Seen::Opaque(_) => ClaimVerdict::Ignore("its volume's object cannot be read"),
            // Nobody's, or a stranger's: what the driver made or may have made is still to be settled.
            Seen::Absent | Seen::Known(_) => ClaimVerdict::Create(Arc::clone(intent)),
        };
    }
    let Some(claim) = claim else { return ClaimVerdict::Ignore("the claim is gone") };
    let name = volume_name(&view.options.prefix, uid);
    match view.cache.volumes.get(&name) {
        Seen::Absent => {}
        Seen::Known(volume) if !belongs_to(&volume, uid) && claim.volume.is_none() => {
            let message = format!("a PersistentVolume {name} exists already and is not of this claim");
            return ClaimVerdict::Refuse { message, lasting: true };
        }
        Seen::Known(_) | Seen::Opaque(_) => return ClaimVerdict::Ignore("its volume exists"),
    }
    let decided = class_to_provision(view, &claim).and_then(|class| {
        if let Some(here) = view.options.here_of(&class.provisioner)
            && claim.selected_node().is_none()
        {
            return take(view, here, &claim, &class, &name);
        }
        request(view, &claim, &class, &name).map(|intent| ClaimVerdict::Record(Box::new(intent)))
    });
    decided.unwrap_or_else(|verdict| *verdict)
}

/// Whether a claim that no node was chosen for may be this node's.
fn take(
    view: View<'_>,
    here: &Here,
    claim: &Arc<Claim>,
    class: &StorageClass,
    name: &VolumeName,
) -> Result<ClaimVerdict, Box<ClaimVerdict>> {
    let own = here
        .segments(&class.provisioner, view.cache)
        .map_err(|problem| Box::new(ClaimVerdict::AwaitNodes(no_requirement(claim, &problem))))?;
    if placement::requirement(here, class, &own).is_err() {
        return Ok(ClaimVerdict::Ignore("its class does not allow this node"));
    }
    let request = request(view, claim, class, name).ok().map(|intent| Box::new(intent.request));
    Ok(ClaimVerdict::Take { claim: Arc::clone(claim), node: here.node.clone(), request })
}

/// Why a claim, whose volume would be of one node, is not for this one.
fn not_here(here: &Here, claim: &Claim, class: &StorageClass) -> Option<&'static str> {
    match claim.selected_node() {
        Some(node) if node == here.node.as_str() => None,
        Some(_) => Some("it is another node's"),
        None if class.binding_mode == Some(BindingMode::WaitForFirstConsumer) => {
            Some("the scheduler has not chosen a node yet")
        }
        None if !here.immediate => Some("no node was chosen, and this process takes none of these claims"),
        None => None,
    }
}

fn belongs_to(volume: &Volume, claim: &Uid) -> bool {
    volume.claim_ref.as_ref().and_then(|r| r.uid.as_ref()) == Some(claim)
}

/// The class by which the claim is ours to provision now.
fn class_to_provision(view: View<'_>, claim: &Claim) -> Result<Arc<StorageClass>, Box<ClaimVerdict>> {
    let ignore = |reason| Err(Box::new(ClaimVerdict::Ignore(reason)));
    if claim.volume.is_some() || claim.is_bind_completed() {
        return ignore("it has a volume");
    }
    if claim.meta.deleting {
        return ignore("it is being deleted");
    }
    match claim.storage_provisioner() {
        None if !view.options.binder_here => return ignore("nobody has asked for its volume yet"),
        Some(driver) if !(view.ours)(&driver.into()) => return ignore("it is another driver's"),
        None | Some(_) => {}
    }
    let class = match view.cache.class(claim.class_name()) {
        Seen::Known(class) => class,
        Seen::Opaque(_) => return ignore("its class cannot be read"),
        Seen::Absent if view.options.binder_here => return ignore("its class does not exist"),
        Seen::Absent => {
            let message = format!("storageclass.storage.k8s.io {:?} not found", claim.class_name());
            return Err(Box::new(ClaimVerdict::Refuse { message, lasting: false }));
        }
    };
    if !(view.ours)(&class.provisioner) {
        return ignore("it is another driver's");
    }
    if view.infeasible == Some(&class.meta.uid) {
        return ignore("its request was found invalid a short while ago");
    }
    if let Some(here) = view.options.here_of(&class.provisioner) {
        // Other nodes' processes decide by what stands in the API, and so does this one, whoever binds.
        if claim.storage_provisioner().is_none() {
            return ignore("nobody has asked for its volume yet");
        }
        return match not_here(here, claim, &class) {
            Some(reason) => ignore(reason),
            None => Ok(class),
        };
    }
    if view.options.binder_here {
        // Without an annotation to wait for, the search for a volume that exists must have come to its end here.
        let world = World { cache: view.cache, provisions: view.ours, spoken_for: &|_| false };
        if !matches!(binding::claim(world, claim), Binding::Provision(..)) {
            return ignore("binding is not at the point where a volume is needed");
        }
    } else if class.binding_mode == Some(BindingMode::WaitForFirstConsumer) && claim.selected_node().is_none()
    {
        return ignore("the scheduler has not chosen a node yet");
    }
    Ok(class)
}

/// The request for a claim, in external-provisioner's order of checks.
fn request(
    view: View<'_>,
    claim: &Claim,
    class: &StorageClass,
    name: &VolumeName,
) -> Result<Intent, Box<ClaimVerdict>> {
    let options = view.options;
    let refuse = |message: String| Box::new(ClaimVerdict::Refuse { message, lasting: true });
    if let Some(source) = &claim.source {
        return Err(match (&*source.group, &*source.kind) {
            ("", "PersistentVolumeClaim") => {
                refuse(format!("driver {} does not clone volumes", class.provisioner))
            }
            ("snapshot.storage.k8s.io", "VolumeSnapshot") => {
                refuse(format!("driver {} does not restore snapshots", class.provisioner))
            }
            _ => Box::new(ClaimVerdict::LeaveToPopulator),
        });
    }
    let modifies = options.modifying.contains(&class.provisioner);
    if !claim.attributes_class.is_empty() && !modifies {
        return Err(refuse(format!("driver {} does not modify volumes", class.provisioner)));
    }
    if claim.selector.is_some() {
        return Err(refuse("claim Selector is not supported".to_owned()));
    }
    let has_topology = options.topology.contains(&class.provisioner);
    if !class.allowed_topologies.is_empty() && !has_topology {
        let message = format!(
            "StorageClass {} has allowedTopologies: driver {} has no topology; expected none",
            class.name, class.provisioner
        );
        return Err(refuse(message));
    }
    let size = match &claim.request {
        Err(error) => return Err(refuse(format!("spec.resources.requests.storage: {error}"))),
        Ok(size) if size.is_zero() => {
            return Err(refuse(
                "spec.resources.requests.storage is 0: expected more than zero bytes".to_owned(),
            ));
        }
        Ok(size) => size.to_csi_bytes().ok_or_else(|| {
            refuse(format!("spec.resources.requests.storage is {size}: expected at most {} bytes", i64::MAX))
        })?,
    };
    let split = parameters::split(class).map_err(|error| refuse(error.to_string()))?;
    let mut parameters = split.for_driver;
    if options.extra_create_metadata {
        let extra = [
            ("pvc/name", &*claim.key.name),
            ("pvc/namespace", &*claim.key.namespace),
            ("pv/name", name.as_str()),
        ];
        parameters
            .extend(extra.map(|(key, value)| {
                (format!("{}{key}", names::RESERVED_PARAMETER_PREFIX), value.to_owned())
            }));
    }
    let fs_type = split.fs_type.or_else(|| options.default_fs_type.clone());
    let access = match claim.mode {
        VolumeMode::Block => AccessType::Block,
        VolumeMode::Filesystem => {
            AccessType::Filesystem { fs_type, mount_flags: class.mount_options.clone(), mount_group: None }
        }
    };
    let capabilities = capability_modes(claim, options.tell_writers.contains(&class.provisioner))
        .map_err(refuse)?
        .into_iter();
    let topology = if has_topology { requirement(view, claim, class)? } else { None };
    let mutable_parameters = mutable_parameters(view, claim, class)?;
    Ok(Intent {
        claim: claim.key.clone(),
        uid: claim.meta.uid.clone(),
        driver: class.provisioner.clone(),
        node: match options.here_of(&class.provisioner) {
            Some(here) => Some(here.node.clone()),
            None => claim.selected_node().filter(|_| has_topology).map(NodeName::from),
        },
        class: IntentClass {
            name: claim.class_name().into(),
            uid: class.meta.uid.clone(),
            reclaim_policy: class.reclaim_policy.clone(),
            mount_options: class.mount_options.clone(),
        },
        attributes_class: claim.attributes_class.clone(),
        request: CreateVolume {
            name: name.as_str().to_owned(),
            capacity: CapacityRange { required: Some(size), limit: None },
            capabilities: capabilities
                .map(|mode| VolumeCapability { mode, access: access.clone() })
                .collect(),
            parameters,
            mutable_parameters,
            topology,
            owner: Some(Owner {
                cluster: options.cluster.clone(),
                claim: claim.meta.uid.clone(),
                volume: name.clone(),
                reclaim_policy: class.reclaim_policy.clone(),
            }),
        },
    })
}

/// What the claim's VolumeAttributesClass adds to the request. A class that is not there yet may come; one of another driver never
/// fits (external-provisioner, sidecars §2.6 row 18).
fn mutable_parameters(
    view: View<'_>,
    claim: &Claim,
    class: &StorageClass,
) -> Result<Parameters, Box<ClaimVerdict>> {
    let name = &*claim.attributes_class;
    if name.is_empty() {
        return Ok(Parameters::new());
    }
    let (message, lasting) = match view.cache.attributes_classes.get(&name.into()) {
        Seen::Known(found) if found.driver == class.provisioner => return Ok(found.parameters.clone()),
        Seen::Known(found) => {
            let (other, own) = (&found.driver, &class.provisioner);
            (format!("VolumeAttributesClass {name:?} is of driver {other}: expected one of {own}"), true)
        }
        Seen::Opaque(_) => (format!("VolumeAttributesClass {name:?} cannot be read"), false),
        Seen::Absent => (format!("volumeattributesclass.storage.k8s.io {name:?} not found"), false),
    };
    Err(Box::new(ClaimVerdict::Refuse { message, lasting }))
}

/// Where the volume must be reachable.
fn requirement(
    view: View<'_>,
    claim: &Claim,
    class: &StorageClass,
) -> Result<Option<TopologyRequirement>, Box<ClaimVerdict>> {
    if let Some(here) = view.options.here_of(&class.provisioner) {
        let own = here.segments(&class.provisioner, view.cache);
        let required = own.and_then(|own| {
            placement::requirement(here, class, &own)
                .map_err(|(Missing::Node(problem) | Missing::NotYet(problem))| problem)
        });
        let missing = |problem: String| Box::new(ClaimVerdict::AwaitNodes(no_requirement(claim, &problem)));
        return required.map_err(missing);
    }
    let selected = claim.selected_node();
    let ask = Ask {
        claim: &claim.key.name,
        allowed: &class.allowed_topologies,
        selected,
        strict: view.options.strict_topology,
        immediate: view.options.immediate_topology,
    };
    let (csi_nodes, nodes) = (view.cache.csi_nodes.list(), view.cache.nodes.list());
    let places = topology::places(&class.provisioner, &csi_nodes, &nodes);
    let text = |problem: String| no_requirement(claim, &problem);
    topology::requirement(ask, &places).map_err(|missing| {
        Box::new(match (missing, selected) {
            (Missing::Node(problem), Some(node)) => {
                ClaimVerdict::Reschedule { node: node.into(), message: text(problem) }
            }
            (Missing::Node(problem) | Missing::NotYet(problem), _) => ClaimVerdict::AwaitNodes(text(problem)),
        })
    })
}

fn no_requirement(claim: &Claim, problem: &str) -> String {
    format!(
        "failed to provision volume with StorageClass {:?}: error generating accessibility requirements: {problem}",
        claim.class_name()
    )
}

/// Each of the claim's modes by itself, as external-provisioner maps them; `finely` for a driver that tells one writer on a node
/// from many. What could never be attached is refused here:
/// ReadWriteOncePod with anything else, and ReadOnlyMany with ReadWriteOnce.
fn capability_modes(claim: &Claim, finely: bool) -> Result<Vec<CapabilityMode>, String> {
    let modes: Vec<AccessMode> = claim.access_modes.iter().collect();
    let has = |mode| modes.contains(&mode);
    if modes.is_empty() {
        return Err("spec.accessModes is empty: expected at least one".to_owned());
    }
    if has(AccessMode::ReadWriteOncePod) && modes.len() > 1 {
        return Err("spec.accessModes has ReadWriteOncePod beside others: expected it alone".to_owned());
    }
    if has(AccessMode::ReadOnlyMany) && has(AccessMode::ReadWriteOnce) && !has(AccessMode::ReadWriteMany) {
        return Err(
            "spec.accessModes has ReadOnlyMany and ReadWriteOnce: no volume can be attached in both ways; expected one of \
             them, or ReadWriteMany"
                .to_owned(),
        );
    }
    Ok(modes
        .into_iter()
        .map(|mode| match mode {
            AccessMode::ReadWriteOnce if finely => CapabilityMode::SingleNodeMultiWriter,
            AccessMode::ReadWriteOncePod if finely => CapabilityMode::SingleNodeSingleWriter,
            AccessMode::ReadWriteOnce | AccessMode::ReadWriteOncePod => CapabilityMode::SingleNodeWriter,
            AccessMode::ReadOnlyMany => CapabilityMode::MultiNodeReaderOnly,
            AccessMode::ReadWriteMany => CapabilityMode::MultiNodeMultiWriter,
        })
        .collect())
}

/// The access modes that a request was made for, where the claim is gone and cannot be asked.
pub fn modes_of(request: &CreateVolume) -> AccessModes {
    let modes = request.capabilities.iter().map(|capability| match capability.mode {
        CapabilityMode::MultiNodeReaderOnly | CapabilityMode::SingleNodeReaderOnly => {
            AccessMode::ReadOnlyMany
        }
        CapabilityMode::MultiNodeMultiWriter | CapabilityMode::MultiNodeSingleWriter => {
            AccessMode::ReadWriteMany
        }
        CapabilityMode::SingleNodeSingleWriter => AccessMode::ReadWriteOncePod,
        CapabilityMode::SingleNodeWriter | CapabilityMode::SingleNodeMultiWriter => AccessMode::ReadWriteOnce,
    });
    modes.collect()
}

/// What follows an answer of CreateVolume.
#[derive(Clone, Debug, PartialEq)]
pub enum Created {
    /// Write the volume's object: `capacity` bytes.
    Save(CreatedVolume, u64),
    /// Nobody wants the volume any more, or it is not what was asked for: delete it by its id, then drop the intent. The
    /// message, where there is one, is for the claim's event.
    Undo(CreatedVolume, Option<String>),
    /// It failed for good: drop the intent, tell the claim. `lasting`: only a change helps.
    Failed {
        /// For the event.
        message: String,
        /// Whether trying again soon is of no use.
        lasting: bool,
    },
    /// It failed for good where the scheduler wanted it: drop the intent, take the scheduler's choice back, tell the claim.
    Reschedule {
        /// The node that was chosen.
        node: NodeName,
        /// For the event.
        message: String,
    },
    /// Nobody knows: the same request again later.
    Repeat(String),
}

/// Decides what follows an answer. `cache` is looked at anew: the claim may have gone while the driver worked.
/// `here`: as in [`Options`].
pub fn created(
    cache: &Cache,
    here: Option<&Here>,
    intent: &Intent,
    answer: Result<CreatedVolume, StorageError>,
) -> Created {
    match answer {
        Ok(mut volume) => {
            let of_node = here.is_some_and(|here| here.has(&intent.driver));
            if let Some(place) = placement::place_of(intent).filter(|_| of_node) {
                // Where this process is, the host knows better than the driver, and by it the volume is found again.
                volume.topology = vec![place.clone()];
            }
            let required = intent.request.capacity.required.unwrap_or_default();
            let capacity = volume.capacity.filter(|bytes| *bytes > 0).unwrap_or(required);
            if capacity < required {
                let message = format!(
                    "created volume capacity {capacity} less than requested capacity {required}; the volume is deleted again"
                );
                Created::Undo(volume, Some(message))
            } else if is_wanted(cache, here, intent)
                || (intent.class.reclaim_policy != ReclaimPolicy::Delete
                    && !is_superseded(cache, here, intent))
            {
                // With Retain the volume is kept even when its claim is gone: its object shows it as Released.
                Created::Save(volume, capacity)
            } else {
                Created::Undo(volume, None)
            }
        }
        Err(error) => {
            let message =
                format!("failed to provision volume with StorageClass {:?}: {error}", intent.class.name);
            match error.finality {
                // Whoever could not be asked knows nothing of an earlier try, which may have been another process'. So does
                // external-provisioner: it goes on in the background for these codes.
                Finality::Final
                    if matches!(
                        error.kind,
                        ErrorKind::Unavailable
                            | ErrorKind::DeadlineExceeded
                            | ErrorKind::Cancelled
                            | ErrorKind::Aborted
                    ) =>
                {
                    Created::Repeat(message)
                }
                Finality::Final if error.kind == ErrorKind::ResourceExhausted => {
                    match intent.node.as_ref().filter(|node| is_selected(cache, intent, node)) {
                        Some(node) => Created::Reschedule { node: node.clone(), message },
                        None => Created::Failed { message, lasting: false },
                    }
                }
                Finality::Final => {
                    Created::Failed { message, lasting: error.kind == ErrorKind::InvalidArgument }
                }
                Finality::InProgress | Finality::Unknown => Created::Repeat(message),
            }
        }
    }
}

/// Whether the scheduler's choice is still the node that the request was made for.
fn is_selected(cache: &Cache, intent: &Intent, node: &NodeName) -> bool {
    let claim = cache.claim_by_uid(&intent.uid);
    claim.is_some_and(|claim| claim.selected_node() == Some(node.as_str()))
}

/// Whether another node has, or is to make, the volume of the claim.
fn is_superseded(cache: &Cache, here: Option<&Here>, intent: &Intent) -> bool {
    if !here.is_some_and(|here| here.has(&intent.driver)) {
        return false;
    }
    let name = VolumeName::from(intent.request.name.as_str());
    if let Seen::Known(volume) = cache.volumes.get(&name)
        && belongs_to(&volume, &intent.uid)
    {
        return placement::is_elsewhere(here, intent, &volume);
    }
    let claim = cache.claim_by_uid(&intent.uid);
    claim.is_some_and(|claim| claim.selected_node() != intent.node.as_ref().map(NodeName::as_str))
}

/// Whether the claim still needs the volume that was asked for.
pub fn is_wanted(cache: &Cache, here: Option<&Here>, intent: &Intent) -> bool {
    if is_superseded(cache, here, intent) {
        return false;
    }
    match cache.claims.get(&intent.claim) {
        Seen::Known(claim) => {
            let named = claim.volume.as_ref().is_none_or(|name| name.as_str() == intent.request.name);
            claim.meta.uid == intent.uid && !claim.meta.deleting && named
        }
        // Exists: nothing is deleted that it may need.
        Seen::Opaque(uid) => uid == intent.uid,
        Seen::Absent => false,
    }
}

/// The next effect for a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeVerdict {
    /// Nothing; the text says why, for people.
    Ignore(&'static str),
    /// Put our finalizer on: the object must outlive the driver's volume.
    AddFinalizer,
    /// Take our finalizer, at this place of the list, off.
    RemoveFinalizer(usize),
    /// Delete the volume at its driver.
    DeleteVolume,
    /// Delete the volume's object.
    DeleteObject,
    /// Deletions are held back since the cluster was restored.
    Hold,
}

/// Decides the next step for a volume. `deleted`: whether the driver has said in this run that the volume is gone; `held`:
/// whether deletions are held back. `ours` says whether a driver is ours and, where its storage is in one node, whether the volume is
/// in this one.
pub fn volume(
    ours: &dyn Fn(&DriverName) -> bool,
    volume: &Volume,
    deleted: bool,
    held: bool,
) -> VolumeVerdict {
    let Some(csi) = volume.csi.as_ref().filter(|csi| is_ours(ours, volume) && ours(&csi.driver)) else {
        return VolumeVerdict::Ignore("it is another driver's, or another node's");
    };
    let finalizer = volume.meta.finalizer(names::PROVISIONER_FINALIZER);
    let delete = volume.reclaim_policy == ReclaimPolicy::Delete;
    if let (ReclaimPolicy::Retain | ReclaimPolicy::Recycle, Some(at)) = (&volume.reclaim_policy, finalizer) {
        return VolumeVerdict::RemoveFinalizer(at);
    }
    if !delete || csi.handle.as_str().is_empty() {
        return VolumeVerdict::Ignore("it stays when its claim goes");
    }
    let ours_alone = volume.claim_ref.as_ref().is_some_and(|r| r.uid.is_some());
    let bound = volume.phase == VolumePhase::Bound;
    if bound && finalizer.is_none() && !volume.meta.deleting {
        return VolumeVerdict::AddFinalizer;
    }
    // Without a uid it is reserved by name: somebody is rescuing it.
    if volume.phase != VolumePhase::Released || !ours_alone || (volume.meta.deleting && finalizer.is_none()) {
        return VolumeVerdict::Ignore("it is in use or already dealt with");
    }
    match (deleted, volume.meta.deleting, finalizer) {
        (false, ..) if held => VolumeVerdict::Hold,
        (false, ..) => VolumeVerdict::DeleteVolume,
        (true, false, _) => VolumeVerdict::DeleteObject,
        (true, true, Some(at)) => VolumeVerdict::RemoveFinalizer(at),
        (true, true, None) => VolumeVerdict::Ignore("it goes"),
    }
}

/// Whether we made the volume, or, where nobody is named, whether its driver is ours.
pub(crate) fn is_ours(ours: &dyn Fn(&DriverName) -> bool, volume: &Volume) -> bool {
    match volume.meta.annotation(names::PROVISIONED_BY) {
        Some(by) => ours(&by.into()),
        None => volume.csi.as_ref().is_some_and(|csi| ours(&csi.driver)),
    }
}

#[cfg(test)]
mod tests;
