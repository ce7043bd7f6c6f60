//! What provisioning decides. Source: the decision order of external-provisioner ("should this claim be
//! provisioned", "building the request", "result states"), and the intent journal: what was once asked for is
//! asked for again, word for word, until the answer is final, whatever happened to the claim and its class
//! meanwhile.

use std::{collections::BTreeSet, sync::Arc};

use cofferdam_cluster::{Cache, Intent, IntentClass, Lookup};
use cofferdam_domain::{
    AccessMode, AccessModes, BindingMode, Claim, ClusterId, DriverName, NodeName, ReclaimPolicy,
    StorageClass, Uid, Volume, VolumeMode, VolumeName, VolumePhase, names,
    storage::{
        AccessType, CapacityRange, CreateVolume, CreatedVolume, CsiAccessMode, ErrorKind, Finality,
        Parameters, StorageError, TopologyRequirement, VolumeCapability, VolumeOwner,
    },
};

use super::{
    parameters,
    placement::{self, LocalNode},
    topology::{self, TopologyError, TopologyInput},
};
use crate::pv_controller::rules::{self as binding, BindingInput, ClaimBindingVerdict as Binding};

/// What an operator chose, as far as a request depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvisionerOptions {
    /// First part of the volume's name.
    pub prefix: String,
    /// Filesystem type for classes that name none.
    pub default_fs_type: Option<String>,
    /// Whether the names of claim and volume go to the driver as parameters.
    pub extra_create_metadata: bool,
    /// This cluster.
    pub cluster: ClusterId,
    /// Whether binding runs in this process: then no request annotation is needed.
    pub runs_pv_controller: bool,
    /// Drivers that tell one writer on a node from many (CSI `SINGLE_NODE_MULTI_WRITER`).
    pub single_node_multi_writer_drivers: BTreeSet<DriverName>,
    /// Drivers whose volumes have parameters that may change.
    pub modification_drivers: BTreeSet<DriverName>,
    /// Drivers whose volumes may be reachable from some nodes only.
    pub topology_drivers: BTreeSet<DriverName>,
    /// Whether a chosen node is the only place.
    pub strict_topology: bool,
    /// Whether all places are named where no node is chosen and the class allows everything.
    pub immediate_topology: bool,
    /// The node that this process is on, with the drivers whose storage is in it.
    pub local_node: Option<LocalNode>,
}

impl ProvisionerOptions {
    /// The node of this process, where the driver's storage is in it.
    fn local_node_of(&self, driver: &DriverName) -> Option<&LocalNode> {
        self.local_node.as_ref().filter(|local_node| local_node.has_driver(driver))
    }
}

/// The world that a decision about a claim is about.
#[derive(Clone, Copy)]
pub struct ProvisionerInput<'a> {
    /// The cached objects.
    pub cache: &'a Cache,
    /// The claim's recorded intent.
    pub intent: Option<&'a Arc<Intent>>,
    /// Whether a driver is ours.
    pub is_managed_driver: &'a dyn Fn(&DriverName) -> bool,
    /// Class of the claim when its request was last found to be invalid, while that is remembered.
    pub infeasible: Option<&'a Uid>,
    /// What the operator chose.
    pub options: &'a ProvisionerOptions,
}

/// What is to be done for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ProvisionVerdict {
    /// Nothing; the text says why, for people.
    Ignore(&'static str),
    /// Write this intent down, then ask again.
    Record(Box<Intent>),
    /// Send the recorded request, then ask [`created`] what follows.
    Create(Arc<Intent>),
    /// The volume's object exists: the intent has served.
    RemoveIntent,
    /// Nobody has chosen a node: choose this process' own, if it is its turn in the race with the other nodes
    /// and the driver has room for the request.
    SelectNode {
        /// The claim as it was when nobody had chosen: what is written is written on this version of it.
        claim: Arc<Claim>,
        /// This process' node.
        node: NodeName,
        /// What the driver would be asked for; absent where it cannot be: who has taken the claim tells it.
        request: Option<Box<CreateVolume>>,
    },
    /// The claim cannot be provisioned as it stands. `lasting`: only a change helps.
    Reject {
        /// For the event.
        message: String,
        /// Whether trying again soon is of no use.
        permanent: bool,
    },
    /// The nodes do not tell enough yet; for the event.
    WaitForTopology(String),
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
pub fn provision(input: ProvisionerInput<'_>, uid: &Uid) -> ProvisionVerdict {
    let claim = input.cache.claim_by_uid(uid);
    if let Some(intent) = input.intent {
        let name = VolumeName::from(intent.request.name.as_str());
        return match input.cache.volumes.get(&name) {
            // One on another node has nothing to do with what this node's driver may have made.
            Lookup::Found(volume)
                if is_volume_of_claim(&volume, uid)
                    && !placement::is_on_other_node(input.options.local_node.as_ref(), intent, &volume) =>
            {
                ProvisionVerdict::RemoveIntent
            }
            Lookup::Undecodable(_) => ProvisionVerdict::Ignore("its volume's object cannot be read"),
            // Nobody's, or a stranger's: what the driver made or may have made is still to be settled.
            Lookup::Missing | Lookup::Found(_) => ProvisionVerdict::Create(Arc::clone(intent)),
        };
    }
    let Some(claim) = claim else { return ProvisionVerdict::Ignore("the claim is gone") };
    let name = volume_name(&input.options.prefix, uid);
    match input.cache.volumes.get(&name) {
        Lookup::Missing => {}
        Lookup::Found(volume) if !is_volume_of_claim(&volume, uid) && claim.volume.is_none() => {
            let message = format!("a PersistentVolume {name} exists already and is not of this claim");
            return ProvisionVerdict::Reject { message, permanent: true };
        }
        Lookup::Found(_) | Lookup::Undecodable(_) => return ProvisionVerdict::Ignore("its volume exists"),
    }
    let decided = class_to_provision(input, &claim).and_then(|class| {
        if let Some(local_node) = input.options.local_node_of(&class.provisioner)
            && claim.selected_node().is_none()
        {
            return select_local_node(input, local_node, &claim, &class, &name);
        }
        build_request(input, &claim, &class, &name).map(|intent| ProvisionVerdict::Record(Box::new(intent)))
    });
    decided.unwrap_or_else(|verdict| *verdict)
}

/// Whether a claim that no node was chosen for may be this node's.
fn select_local_node(
    input: ProvisionerInput<'_>,
    local_node: &LocalNode,
    claim: &Arc<Claim>,
    class: &StorageClass,
    name: &VolumeName,
) -> Result<ProvisionVerdict, Box<ProvisionVerdict>> {
    let segments = local_node.segments(&class.provisioner, input.cache).map_err(|problem| {
        Box::new(ProvisionVerdict::WaitForTopology(accessibility_error(claim, &problem)))
    })?;
    if placement::requirement(local_node, class, &segments).is_err() {
        return Ok(ProvisionVerdict::Ignore("its class does not allow this node"));
    }
    let request = build_request(input, claim, class, name).ok().map(|intent| Box::new(intent.request));
    Ok(ProvisionVerdict::SelectNode { claim: Arc::clone(claim), node: local_node.node.clone(), request })
}

/// Why a claim, whose volume would be of one node, is not for this one.
fn not_local_reason(local_node: &LocalNode, claim: &Claim, class: &StorageClass) -> Option<&'static str> {
    match claim.selected_node() {
        Some(node) if node == local_node.node.as_str() => None,
        Some(_) => Some("it is another node's"),
        None if class.binding_mode == Some(BindingMode::WaitForFirstConsumer) => {
            Some("the scheduler has not chosen a node yet")
        }
        None if !local_node.immediate_binding => {
            Some("no node was chosen, and this process takes none of these claims")
        }
        None => None,
    }
}

fn is_volume_of_claim(volume: &Volume, claim: &Uid) -> bool {
    volume.claim_ref.as_ref().and_then(|r| r.uid.as_ref()) == Some(claim)
}

/// The class by which the claim is ours to provision now.
fn class_to_provision(
    input: ProvisionerInput<'_>,
    claim: &Claim,
) -> Result<Arc<StorageClass>, Box<ProvisionVerdict>> {
    let ignore = |reason| Err(Box::new(ProvisionVerdict::Ignore(reason)));
    if claim.volume.is_some() || claim.is_bind_completed() {
        return ignore("it has a volume");
    }
    if claim.meta.deleting {
        return ignore("it is being deleted");
    }
    match claim.storage_provisioner() {
        None if !input.options.runs_pv_controller => return ignore("nobody has asked for its volume yet"),
        Some(driver) if !(input.is_managed_driver)(&driver.into()) => {
            return ignore("it is another driver's");
        }
        None | Some(_) => {}
    }
    let class = match input.cache.class(claim.class_name()) {
        Lookup::Found(class) => class,
        Lookup::Undecodable(_) => return ignore("its class cannot be read"),
        Lookup::Missing if input.options.runs_pv_controller => return ignore("its class does not exist"),
        Lookup::Missing => {
            let message = format!("storageclass.storage.k8s.io {:?} not found", claim.class_name());
            return Err(Box::new(ProvisionVerdict::Reject { message, permanent: false }));
        }
    };
    if !(input.is_managed_driver)(&class.provisioner) {
        return ignore("it is another driver's");
    }
    if input.infeasible == Some(&class.meta.uid) {
        return ignore("its request was found invalid a short while ago");
    }
    if let Some(local_node) = input.options.local_node_of(&class.provisioner) {
        // Other nodes' processes decide by what stands in the API, and so does this one, whoever binds.
        if claim.storage_provisioner().is_none() {
            return ignore("nobody has asked for its volume yet");
        }
        return match not_local_reason(local_node, claim, &class) {
            Some(reason) => ignore(reason),
            None => Ok(class),
        };
    }
    if input.options.runs_pv_controller {
        // Without an annotation to wait for, the search for a volume that exists must have come to its end
        // here.
        let binding_input = BindingInput {
            cache: input.cache,
            has_provisioner: input.is_managed_driver,
            is_locked_by_other: &|_| false,
        };
        if !matches!(binding::decide_claim(binding_input, claim), Binding::Provision(..)) {
            return ignore("binding is not at the point where a volume is needed");
        }
    } else if class.binding_mode == Some(BindingMode::WaitForFirstConsumer) && claim.selected_node().is_none()
    {
        return ignore("the scheduler has not chosen a node yet");
    }
    Ok(class)
}

/// The request for a claim, in external-provisioner's order of checks.
fn build_request(
    input: ProvisionerInput<'_>,
    claim: &Claim,
    class: &StorageClass,
    name: &VolumeName,
) -> Result<Intent, Box<ProvisionVerdict>> {
    let options = input.options;
    let reject = |message: String| Box::new(ProvisionVerdict::Reject { message, permanent: true });
    if let Some(source) = &claim.source {
        return Err(match (&*source.group, &*source.kind) {
            ("", "PersistentVolumeClaim") => {
                reject(format!("driver {} does not clone volumes", class.provisioner))
            }
            ("snapshot.storage.k8s.io", "VolumeSnapshot") => {
                reject(format!("driver {} does not restore snapshots", class.provisioner))
            }
            _ => Box::new(ProvisionVerdict::LeaveToPopulator),
        });
    }
    let modifies = options.modification_drivers.contains(&class.provisioner);
    if !claim.attributes_class.is_empty() && !modifies {
        return Err(reject(format!("driver {} does not modify volumes", class.provisioner)));
    }
    if claim.selector.is_some() {
        return Err(reject("claim Selector is not supported".to_owned()));
    }
    let has_topology = options.topology_drivers.contains(&class.provisioner);
    if !class.allowed_topologies.is_empty() && !has_topology {
        let message = format!(
            "StorageClass {} has allowedTopologies: driver {} has no topology; expected none",
            class.name, class.provisioner
        );
        return Err(reject(message));
    }
    let size = match &claim.request {
        Err(error) => return Err(reject(format!("spec.resources.requests.storage: {error}"))),
        Ok(size) if size.is_zero() => {
            return Err(reject(
                "spec.resources.requests.storage is 0: expected more than zero bytes".to_owned(),
            ));
        }
        Ok(size) => size.to_csi_bytes().ok_or_else(|| {
            reject(format!("spec.resources.requests.storage is {size}: expected at most {} bytes", i64::MAX))
        })?,
    };
    let split = parameters::split(class).map_err(|error| reject(error.to_string()))?;
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
    let capabilities =
        capability_modes(claim, options.single_node_multi_writer_drivers.contains(&class.provisioner))
            .map_err(reject)?
            .into_iter();
    let topology = if has_topology { requirement(input, claim, class)? } else { None };
    let mutable_parameters = mutable_parameters(input, claim, class)?;
    Ok(Intent {
        claim: claim.key.clone(),
        claim_uid: claim.meta.uid.clone(),
        driver: class.provisioner.clone(),
        node: match options.local_node_of(&class.provisioner) {
            Some(local_node) => Some(local_node.node.clone()),
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
                .map(|mode| VolumeCapability { access_mode: mode, access_type: access.clone() })
                .collect(),
            parameters,
            mutable_parameters,
            topology,
            owner: Some(VolumeOwner {
                cluster_id: options.cluster.clone(),
                claim_uid: claim.meta.uid.clone(),
                pv_name: name.clone(),
                reclaim_policy: class.reclaim_policy.clone(),
            }),
            source: None,
        },
    })
}

/// What the claim's VolumeAttributesClass adds to the request. A class that is not there yet may come; one of
/// another driver never fits (external-provisioner, sidecars §2.6 row 18).
fn mutable_parameters(
    input: ProvisionerInput<'_>,
    claim: &Claim,
    class: &StorageClass,
) -> Result<Parameters, Box<ProvisionVerdict>> {
    let name = &*claim.attributes_class;
    if name.is_empty() {
        return Ok(Parameters::new());
    }
    let (message, permanent) = match input.cache.attributes_classes.get(&name.into()) {
        Lookup::Found(found) if found.driver == class.provisioner => return Ok(found.parameters.clone()),
        Lookup::Found(found) => {
            let (other, expected) = (&found.driver, &class.provisioner);
            (format!("VolumeAttributesClass {name:?} is of driver {other}: expected one of {expected}"), true)
        }
        Lookup::Undecodable(_) => (format!("VolumeAttributesClass {name:?} cannot be read"), false),
        Lookup::Missing => (format!("volumeattributesclass.storage.k8s.io {name:?} not found"), false),
    };
    Err(Box::new(ProvisionVerdict::Reject { message, permanent }))
}

/// Where the volume must be reachable.
fn requirement(
    input: ProvisionerInput<'_>,
    claim: &Claim,
    class: &StorageClass,
) -> Result<Option<TopologyRequirement>, Box<ProvisionVerdict>> {
    if let Some(local_node) = input.options.local_node_of(&class.provisioner) {
        let segments = local_node.segments(&class.provisioner, input.cache);
        let required = segments.and_then(|segments| {
            placement::requirement(local_node, class, &segments)
                .map_err(|(TopologyError::NodeNotFound(problem) | TopologyError::NotReady(problem))| problem)
        });
        let missing = |problem: String| {
            Box::new(ProvisionVerdict::WaitForTopology(accessibility_error(claim, &problem)))
        };
        return required.map_err(missing);
    }
    let selected = claim.selected_node();
    let topology_input = TopologyInput {
        claim: &claim.key.name,
        allowed: &class.allowed_topologies,
        selected,
        strict: input.options.strict_topology,
        immediate: input.options.immediate_topology,
    };
    let (csi_nodes, nodes) = (input.cache.csi_nodes.list(), input.cache.nodes.list());
    let node_topologies = topology::node_topologies(&class.provisioner, &csi_nodes, &nodes);
    let text = |problem: String| accessibility_error(claim, &problem);
    topology::requirement(topology_input, &node_topologies).map_err(|missing| {
        Box::new(match (missing, selected) {
            (TopologyError::NodeNotFound(problem), Some(node)) => {
                ProvisionVerdict::Reschedule { node: node.into(), message: text(problem) }
            }
            (TopologyError::NodeNotFound(problem) | TopologyError::NotReady(problem), _) => {
                ProvisionVerdict::WaitForTopology(text(problem))
            }
        })
    })
}

fn accessibility_error(claim: &Claim, problem: &str) -> String {
    format!(
        "failed to provision volume with StorageClass {:?}: error generating accessibility requirements: {problem}",
        claim.class_name()
    )
}

/// Each of the claim's modes by itself, as external-provisioner maps them; `finely` for a driver that tells
/// one writer on a node from many. What could never be attached is refused here: ReadWriteOncePod with
/// anything else, and ReadOnlyMany with ReadWriteOnce.
fn capability_modes(claim: &Claim, single_node_multi_writer: bool) -> Result<Vec<CsiAccessMode>, String> {
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
            AccessMode::ReadWriteOnce if single_node_multi_writer => CsiAccessMode::SingleNodeMultiWriter,
            AccessMode::ReadWriteOncePod if single_node_multi_writer => CsiAccessMode::SingleNodeSingleWriter,
            AccessMode::ReadWriteOnce | AccessMode::ReadWriteOncePod => CsiAccessMode::SingleNodeWriter,
            AccessMode::ReadOnlyMany => CsiAccessMode::MultiNodeReaderOnly,
            AccessMode::ReadWriteMany => CsiAccessMode::MultiNodeMultiWriter,
        })
        .collect())
}

/// The access modes that a request was made for, where the claim is gone and cannot be asked.
pub fn modes_of(request: &CreateVolume) -> AccessModes {
    let modes = request.capabilities.iter().map(|capability| match capability.access_mode {
        CsiAccessMode::MultiNodeReaderOnly | CsiAccessMode::SingleNodeReaderOnly => AccessMode::ReadOnlyMany,
        CsiAccessMode::MultiNodeMultiWriter | CsiAccessMode::MultiNodeSingleWriter => {
            AccessMode::ReadWriteMany
        }
        CsiAccessMode::SingleNodeSingleWriter => AccessMode::ReadWriteOncePod,
        CsiAccessMode::SingleNodeWriter | CsiAccessMode::SingleNodeMultiWriter => AccessMode::ReadWriteOnce,
    });
    modes.collect()
}

/// What follows an answer of CreateVolume.
#[derive(Clone, Debug, PartialEq)]
pub enum CreateVerdict {
    /// Write the volume's object: `capacity` bytes.
    Save(CreatedVolume, u64),
    /// Nobody wants the volume any more, or it is not what was asked for: delete it by its id, then drop the
    /// intent. The message, where there is one, is for the claim's event.
    DeleteUnclaimed(CreatedVolume, Option<String>),
    /// It failed for good: drop the intent, tell the claim. `lasting`: only a change helps.
    Failed {
        /// For the event.
        message: String,
        /// Whether trying again soon is of no use.
        permanent: bool,
    },
    /// It failed for good where the scheduler wanted it: drop the intent, take the scheduler's choice back,
    /// tell the claim.
    Reschedule {
        /// The node that was chosen.
        node: NodeName,
        /// For the event.
        message: String,
    },
    /// Nobody knows: the same request again later.
    Retry(String),
}

/// Decides what follows an answer. `cache` is looked at anew: the claim may have gone while the driver
/// worked. `here`: as in [`Options`].
pub fn decide_after_create(
    cache: &Cache,
    local_node: Option<&LocalNode>,
    intent: &Intent,
    answer: Result<CreatedVolume, StorageError>,
) -> CreateVerdict {
    match answer {
        Ok(mut volume) => {
            let is_node_local = local_node.is_some_and(|local_node| local_node.has_driver(&intent.driver));
            if let Some(segments) = placement::segments_of(intent).filter(|_| is_node_local) {
                // Where this process is, the host knows better than the driver, and by it the volume is found
                // again.
                volume.topology = vec![segments.clone()];
            }
            let required = intent.request.capacity.required.unwrap_or_default();
            let capacity = volume.capacity.filter(|bytes| *bytes > 0).unwrap_or(required);
            if capacity < required {
                let message = format!(
                    "created volume capacity {capacity} less than requested capacity {required}; the volume is deleted again"
                );
                CreateVerdict::DeleteUnclaimed(volume, Some(message))
            } else if is_claimed(cache, local_node, intent)
                || (intent.class.reclaim_policy != ReclaimPolicy::Delete
                    && !is_superseded(cache, local_node, intent))
            {
                // With Retain the volume is kept even when its claim is gone: its object shows it as
                // Released.
                CreateVerdict::Save(volume, capacity)
            } else {
                CreateVerdict::DeleteUnclaimed(volume, None)
            }
        }
        Err(error) => {
            let message =
                format!("failed to provision volume with StorageClass {:?}: {error}", intent.class.name);
            match error.finality {
                // Whoever could not be asked knows nothing of an earlier try, which may have been another
                // process'. So does external-provisioner: it goes on in the background for these codes.
                Finality::Final
                    if matches!(
                        error.kind,
                        ErrorKind::Unavailable
                            | ErrorKind::DeadlineExceeded
                            | ErrorKind::Cancelled
                            | ErrorKind::Aborted
                    ) =>
                {
                    CreateVerdict::Retry(message)
                }
                Finality::Final if error.kind == ErrorKind::ResourceExhausted => {
                    match intent.node.as_ref().filter(|node| is_selected(cache, intent, node)) {
                        Some(node) => CreateVerdict::Reschedule { node: node.clone(), message },
                        None => CreateVerdict::Failed { message, permanent: false },
                    }
                }
                Finality::Final => {
                    CreateVerdict::Failed { message, permanent: error.kind == ErrorKind::InvalidArgument }
                }
                Finality::InProgress | Finality::Unknown => CreateVerdict::Retry(message),
            }
        }
    }
}

/// Whether the scheduler's choice is still the node that the request was made for.
fn is_selected(cache: &Cache, intent: &Intent, node: &NodeName) -> bool {
    let claim = cache.claim_by_uid(&intent.claim_uid);
    claim.is_some_and(|claim| claim.selected_node() == Some(node.as_str()))
}

/// Whether another node has, or is to make, the volume of the claim.
fn is_superseded(cache: &Cache, local_node: Option<&LocalNode>, intent: &Intent) -> bool {
    if !local_node.is_some_and(|local_node| local_node.has_driver(&intent.driver)) {
        return false;
    }
    let name = VolumeName::from(intent.request.name.as_str());
    if let Lookup::Found(volume) = cache.volumes.get(&name)
        && is_volume_of_claim(&volume, &intent.claim_uid)
    {
        return placement::is_on_other_node(local_node, intent, &volume);
    }
    let claim = cache.claim_by_uid(&intent.claim_uid);
    claim.is_some_and(|claim| claim.selected_node() != intent.node.as_ref().map(NodeName::as_str))
}

/// Whether the claim still needs the volume that was asked for.
pub fn is_claimed(cache: &Cache, local_node: Option<&LocalNode>, intent: &Intent) -> bool {
    if is_superseded(cache, local_node, intent) {
        return false;
    }
    match cache.claims.get(&intent.claim) {
        Lookup::Found(claim) => {
            let named = claim.volume.as_ref().is_none_or(|name| name.as_str() == intent.request.name);
            claim.meta.uid == intent.claim_uid && !claim.meta.deleting && named
        }
        // Exists: nothing is deleted that it may need.
        Lookup::Undecodable(uid) => uid == intent.claim_uid,
        Lookup::Missing => false,
    }
}

/// The next effect for a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimVerdict {
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
    DeletionFrozen,
}

/// Decides the next step for a volume. `deleted`: whether the driver has said in this run that the volume is
/// gone; `held`: whether deletions are held back. `ours` says whether a driver is ours and, where its storage
/// is in one node, whether the volume is in this one.
pub fn reclaim(
    is_managed_driver: &dyn Fn(&DriverName) -> bool,
    volume: &Volume,
    deleted: bool,
    is_frozen: bool,
) -> ReclaimVerdict {
    let Some(csi) = volume
        .csi
        .as_ref()
        .filter(|csi| is_managed_volume(is_managed_driver, volume) && is_managed_driver(&csi.driver))
    else {
        return ReclaimVerdict::Ignore("it is another driver's, or another node's");
    };
    let finalizer = volume.meta.finalizer_index(names::PROVISIONER_FINALIZER);
    let delete = volume.reclaim_policy == ReclaimPolicy::Delete;
    if let (ReclaimPolicy::Retain | ReclaimPolicy::Recycle, Some(at)) = (&volume.reclaim_policy, finalizer) {
        return ReclaimVerdict::RemoveFinalizer(at);
    }
    if !delete || csi.handle.as_str().is_empty() {
        return ReclaimVerdict::Ignore("it stays when its claim goes");
    }
    let has_claim_uid = volume.claim_ref.as_ref().is_some_and(|r| r.uid.is_some());
    let bound = volume.phase == VolumePhase::Bound;
    if bound && finalizer.is_none() && !volume.meta.deleting {
        return ReclaimVerdict::AddFinalizer;
    }
    // Without a uid it is reserved by name: somebody is rescuing it.
    if volume.phase != VolumePhase::Released
        || !has_claim_uid
        || (volume.meta.deleting && finalizer.is_none())
    {
        return ReclaimVerdict::Ignore("it is in use or already dealt with");
    }
    match (deleted, volume.meta.deleting, finalizer) {
        (false, ..) if is_frozen => ReclaimVerdict::DeletionFrozen,
        (false, ..) => ReclaimVerdict::DeleteVolume,
        (true, false, _) => ReclaimVerdict::DeleteObject,
        (true, true, Some(at)) => ReclaimVerdict::RemoveFinalizer(at),
        (true, true, None) => ReclaimVerdict::Ignore("it goes"),
    }
}

/// Whether we made the volume, or, where nobody is named, whether its driver is ours.
pub(crate) fn is_managed_volume(is_managed_driver: &dyn Fn(&DriverName) -> bool, volume: &Volume) -> bool {
    match volume.meta.annotation(names::PROVISIONED_BY) {
        Some(driver) => is_managed_driver(&driver.into()),
        None => volume.csi.as_ref().is_some_and(|csi| is_managed_driver(&csi.driver)),
    }
}

#[cfg(test)]
mod tests;
