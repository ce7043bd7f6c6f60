//! Provisioning rules. Source: external-provisioner 6.3 and sig-storage-lib-external-provisioner:
//! `shouldProvision`, `prepareProvision` and the provisioning states.
//!
//! The intent journal is an addition. An intent contains a claim's `CreateVolume` request, and is stored
//! before the first call. The provisioner repeats the request unchanged until its result is final or the
//! claim's PersistentVolume exists. If the claim or its class is mended meanwhile, the intent also gets the
//! mended request, see [`mending`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cofferdam_cluster::{Cache, Intent, IntentClass, IntentSecrets, Lookup};
use cofferdam_domain::{
    AccessMode, AccessModes, BindingMode, Claim, ClaimKey, ClusterId, DriverName, NodeName, ReclaimPolicy,
    SourceKey, StorageClass, Uid, Volume, VolumeHandle, VolumeMode, VolumeName, VolumePhase,
    VolumeSnapshotKey, names,
    storage::{
        AccessType, CapacityRange, ContentSource, CreateVolume, CreatedVolume, CsiAccessMode, ErrorKind,
        Finality, Parameters, StorageError, TopologyRequirement, VolumeCapability, VolumeOwner,
    },
};

use super::{
    mending, parameters, placement,
    secret_references::{self, TokenValues},
    source::{self, FoundSource, SourceObject, snapshot::LiveSnapshot},
    topology::{self, TopologyError, TopologyInput},
};
use crate::{
    node_local::LocalNode,
    pv_controller::rules::{self as binding, BindingInput, ClaimBindingVerdict as Binding},
};

/// Options of the provisioner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvisionerOptions {
    /// Prefix of PersistentVolume names (`--volume-name-prefix`).
    pub prefix: String,
    /// Number of characters of the claim's UID in the names of PersistentVolumes
    /// (`--volume-name-uuid-length`). `None` is the whole UID with its dashes.
    pub uuid_length: Option<u8>,
    /// Filesystem type if the parameters of the StorageClass set none (`--default-fstype`). With `None`, the
    /// request has none either.
    pub default_fs_type: Option<String>,
    /// Send the claim's name and namespace and the PersistentVolume's name to the driver as parameters
    /// (`--extra-create-metadata`).
    pub extra_create_metadata: bool,
    /// Set `spec.csi.readOnly` of the PersistentVolume of a claim whose only access mode is ReadOnlyMany
    /// (`--controller-publish-readonly`).
    pub controller_publish_read_only: bool,
    /// Apply the VolumeAttributesClass of claims (feature gate `VolumeAttributesClass`).
    pub volume_attributes_class: bool,
    /// ID of this cluster. The request contains it, in the owner of the volume.
    pub cluster: ClusterId,
    /// The role pv-controller runs in this process: claims need no annotation `storage-provisioner`, except
    /// those of node-local drivers.
    pub runs_pv_controller: bool,
    /// Drivers that distinguish a single writer on one node from several writers on one node
    /// (`SINGLE_NODE_MULTI_WRITER`).
    pub single_node_multi_writer_drivers: BTreeSet<DriverName>,
    /// Drivers that create and delete volumes (`CREATE_DELETE_VOLUME`).
    pub create_drivers: BTreeSet<DriverName>,
    /// Drivers that clone volumes (`CLONE_VOLUME`).
    pub cloning_drivers: BTreeSet<DriverName>,
    /// Drivers that create volumes from snapshots (`CREATE_DELETE_SNAPSHOT`).
    pub restoring_drivers: BTreeSet<DriverName>,
    /// Reject a claim whose volumeMode is not that of its snapshot (`--prevent-volume-mode-conversion`).
    pub prevent_volume_mode_conversion: bool,
    /// Drivers that modify volumes (`MODIFY_VOLUME`).
    pub modification_drivers: BTreeSet<DriverName>,
    /// Drivers with topology (`VOLUME_ACCESSIBILITY_CONSTRAINTS`).
    pub topology_drivers: BTreeSet<DriverName>,
    /// Request only the segments of a selected node (`--strict-topology`).
    pub strict_topology: bool,
    /// Request the segments of all nodes if no node is selected and the class has no `allowedTopologies`
    /// (`--immediate-topology`).
    pub immediate_topology: bool,
    /// The node of this process and its node-local drivers, perhaps none. `None` without `--node-name`.
    pub local_node: Option<LocalNode>,
}

impl ProvisionerOptions {
    /// Returns the node of this process if the driver is node-local, else `None`.
    fn local_node_of(&self, driver: &DriverName) -> Option<&LocalNode> {
        self.local_node.as_ref().filter(|local_node| local_node.has_driver(driver))
    }
}

/// Input of [`decide_provisioning`].
#[derive(Clone, Copy)]
pub struct ProvisionerInput<'a> {
    /// The cached objects.
    pub cache: &'a Cache,
    /// The claim's intent in the journal. `None` if no request of the claim is pending.
    pub intent: Option<&'a Arc<Intent>>,
    /// Returns true for drivers that run in this process, node-local or not.
    pub is_managed_driver: &'a dyn Fn(&DriverName) -> bool,
    /// UID of the StorageClass with which the driver rejected the claim's request as invalid. `None` if the
    /// driver rejected none, or once `--retry-interval-max` has passed since.
    pub infeasible: Option<&'a Uid>,
    /// Digest of the claim's request that this process sent last, see [`mending::request_digest`]. `None` if
    /// it has sent none.
    pub last_request: Option<&'a str>,
    /// All annotations of the claim, as a live read returned them. `None` before the read.
    pub annotations: Option<&'a BTreeMap<String, String>>,
    /// The claim's VolumeSnapshot and its content, as a live read returned them. `None` before the read.
    pub live_snapshot: Option<&'a LiveSnapshot>,
    /// Options of the provisioner.
    pub options: &'a ProvisionerOptions,
}

/// The next effect for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ProvisionVerdict {
    /// No effect; the text is the reason.
    NoAction(&'static str),
    /// Read the annotations of this claim live, then decide again: the class names a Secret with an
    /// annotation that the cache does not have.
    ReadAnnotations(ClaimKey),
    /// Write this intent to the journal, then decide again.
    WriteIntent(Box<Intent>),
    /// Replace the intent in the journal by this one, which also has the mended request, then decide again.
    WriteMended(Box<Intent>),
    /// Call `CreateVolume` with the next request of the intent, see [`mending::next_request`], then see
    /// [`decide_after_create`].
    Create(Arc<Intent>),
    /// Delete the volume of this handle, which the intent names as unneeded, then remove the intent.
    DeleteUnneeded(VolumeHandle),
    /// The claim's PersistentVolume exists: emit the event of a provisioned claim, and remove the intent.
    RemoveIntent,
    /// For a claim of a node-local driver: write the node of this process to the annotation `selected-node`.
    /// The processes of several nodes compete with this write. Each process attempts it only after a delay of
    /// its own, and not while its driver reports too little capacity for the request.
    SelectNode {
        /// The claim without a selected node. The write requires its resourceVersion.
        claim: Arc<Claim>,
        /// The node of this process.
        node: NodeName,
        /// The request whose capacity is checked. `None` if no request can be built: the write is then
        /// attempted without the check, and the reason is reported once the node is selected.
        request: Option<Box<CreateVolume>>,
    },
    /// The claim cannot be provisioned now: emit the event and retry later.
    Reject {
        /// Event message.
        message: String,
        /// True if the same request is retried only after `--retry-interval-max`, or when the claim, one of
        /// its classes or its PersistentVolume changes. False if it is retried with back-off.
        permanent: bool,
    },
    /// Topology information is missing, or the class does not allow the selected node: emit the event, and
    /// retry with back-off or when a CSINode or a Node changes. The text is the event message.
    WaitForTopology(String),
    /// The cache has no decodable CSINode of the selected node: if a live read finds no CSINode, remove
    /// `selected-node`, so that the scheduler selects another node.
    Reschedule {
        /// The selected node.
        node: NodeName,
        /// Event message.
        message: String,
    },
    /// A volume populator provisions the volume: emit an event, and do nothing else.
    LeaveToPopulator,
    /// Read this VolumeSnapshot and its content live, then decide again: it is the source of the volume.
    ReadSnapshot(VolumeSnapshotKey),
    /// The source of the volume's content cannot be used now: emit the event, and retry with back-off or when
    /// the source changes.
    WaitForSource {
        /// The source.
        source: SourceKey,
        /// Event message.
        message: String,
    },
    /// Add the finalizer to this source, then decide again.
    ProtectSource(SourceObject),
    /// The source of the volume's content is not on the selected node: remove `selected-node`, so that the
    /// scheduler selects another node.
    LeaveNode {
        /// The selected node.
        node: NodeName,
        /// Event message.
        message: String,
    },
}

/// Returns true if the claim is new, or if a field has changed that provisioning depends on. Users can make
/// every other change of a claim as often as they like, without an effect on its volume.
pub fn is_relevant_change(old: Option<&Claim>, new: &Claim) -> bool {
    const ANNOTATIONS: [&str; 3] =
        [names::STORAGE_PROVISIONER, names::STORAGE_PROVISIONER_BETA, names::MIGRATED_TO];
    old.is_none_or(|old| {
        (&old.meta.uid, old.meta.deleting) != (&new.meta.uid, new.meta.deleting)
            || (&old.volume, old.is_bind_completed()) != (&new.volume, new.is_bind_completed())
            || (old.class_name(), old.has_class()) != (new.class_name(), new.has_class())
            || (&old.request, old.access_modes, old.mode) != (&new.request, new.access_modes, new.mode)
            || (&old.selector, &old.source) != (&new.selector, &new.source)
            || old.attributes_class != new.attributes_class
            || old.selected_node() != new.selected_node()
            || ANNOTATIONS.iter().any(|name| old.meta.annotation(name) != new.meta.annotation(name))
    })
}

/// Returns the name of the PersistentVolume that is provisioned for the claim with this UID.
pub fn volume_name(prefix: &str, uuid_length: Option<u8>, claim: &Uid) -> VolumeName {
    VolumeName::from(names::name_with_uid(prefix, uuid_length, claim))
}

/// Decides the next effect for the claim with this UID.
pub fn decide_provisioning(input: ProvisionerInput<'_>, uid: &Uid) -> ProvisionVerdict {
    let claim = input.cache.claim_by_uid(uid);
    if let Some(handle) = input.intent.and_then(|intent| intent.unneeded.clone()) {
        return ProvisionVerdict::DeleteUnneeded(handle);
    }
    if let Some(intent) = input.intent {
        let name = VolumeName::from(intent.request.name.as_str());
        return match input.cache.volumes.get(&name) {
            // A PersistentVolume on another node does not account for the volume that this node's driver may
            // have created.
            Lookup::Found(volume)
                if is_volume_of_claim(&volume, uid)
                    && !placement::is_on_other_node(input.options.local_node.as_ref(), intent, &volume) =>
            {
                ProvisionVerdict::RemoveIntent
            }
            Lookup::Undecodable(_) => ProvisionVerdict::NoAction("the PersistentVolume cannot be decoded"),
            // The volume that the driver created, or may have created, has no PersistentVolume yet.
            Lookup::Missing => decide_mended(input, intent, claim.as_deref())
                .unwrap_or_else(|| ProvisionVerdict::Create(Arc::clone(intent))),
            Lookup::Found(_) => ProvisionVerdict::Create(Arc::clone(intent)),
        };
    }
    let Some(claim) = claim else { return ProvisionVerdict::NoAction("the claim is deleted") };
    let name = volume_name(&input.options.prefix, input.options.uuid_length, uid);
    match input.cache.volumes.get(&name) {
        Lookup::Missing => {}
        Lookup::Found(volume) if !is_volume_of_claim(&volume, uid) && claim.volume.is_none() => {
            let message = format!("PersistentVolume {name} exists and belongs to another claim");
            return ProvisionVerdict::Reject { message, permanent: true };
        }
        Lookup::Found(_) | Lookup::Undecodable(_) => {
            return ProvisionVerdict::NoAction("the PersistentVolume exists");
        }
    }
    let decided = class_to_provision(input, &claim).and_then(|class| {
        if let Some(local_node) = input.options.local_node_of(&class.provisioner)
            && claim.selected_node().is_none()
        {
            return select_local_node(input, local_node, &claim, &class, &name);
        }
        build_request(input, &claim, &class, &name, None)
            .map(|intent| ProvisionVerdict::WriteIntent(Box::new(intent)))
    });
    decided.unwrap_or_else(|verdict| *verdict)
}

/// Decides whether the claim's mended request is written to the intent. `None` if there is none, or if the
/// mended request was sent last: the first one is repeated before the mended one is sent again after a final
/// error.
fn decide_mended(
    input: ProvisionerInput<'_>,
    intent: &Intent,
    claim: Option<&Claim>,
) -> Option<ProvisionVerdict> {
    let claim = claim?;
    let class = class_to_provision(input, claim).ok()?;
    let is_node_local = input.options.local_node_of(&class.provisioner).is_some();
    if is_node_local && claim.selected_node().is_none() {
        return None;
    }
    let name = volume_name(&input.options.prefix, input.options.uuid_length, &claim.meta.uid);
    let desired = match build_request(input, claim, &class, &name, Some(intent)) {
        Ok(desired) => desired,
        Err(verdict) => return matches!(*verdict, ProvisionVerdict::ReadAnnotations(_)).then_some(*verdict),
    };
    let mended = mending::with_mended(intent, &desired)?;
    (input.last_request != Some(mending::request_digest(&desired).as_str()))
        .then(|| ProvisionVerdict::WriteMended(Box::new(mended)))
}

/// Decides on a claim of a node-local driver without a selected node. No node is selected for a claim that a
/// volume populator provisions: the populator selects the node of its own claim.
fn select_local_node(
    input: ProvisionerInput<'_>,
    local_node: &LocalNode,
    claim: &Arc<Claim>,
    class: &StorageClass,
    name: &VolumeName,
) -> Result<ProvisionVerdict, Box<ProvisionVerdict>> {
    let segments = local_node.segments(&class.provisioner, input.cache).map_err(|error| {
        Box::new(ProvisionVerdict::WaitForTopology(accessibility_error(claim, &error.to_string())))
    })?;
    if placement::requirement(local_node, class, &segments).is_err() {
        return Ok(ProvisionVerdict::NoAction("the class does not allow this node"));
    }
    let request = match build_request(input, claim, class, name, None) {
        Ok(intent) => Some(Box::new(intent.request)),
        // The claim is provisioned on the node of its source.
        Err(verdict) if matches!(*verdict, ProvisionVerdict::LeaveNode { .. }) => {
            return Ok(ProvisionVerdict::NoAction("the source is not on this node"));
        }
        Err(verdict)
            if matches!(
                *verdict,
                ProvisionVerdict::ReadAnnotations(_)
                    | ProvisionVerdict::ReadSnapshot(_)
                    | ProvisionVerdict::LeaveToPopulator
                    | ProvisionVerdict::WaitForSource { .. }
            ) =>
        {
            return Err(verdict);
        }
        Err(_) => None,
    };
    Ok(ProvisionVerdict::SelectNode { claim: Arc::clone(claim), node: local_node.node.clone(), request })
}

/// Returns the reason why this process does not provision a claim of a node-local driver. `None` if the claim
/// has the node of this process as its selected node, or if no node is selected and this process competes to
/// select its own node.
fn not_local_reason(local_node: &LocalNode, claim: &Claim, class: &StorageClass) -> Option<&'static str> {
    match claim.selected_node() {
        Some(node) if node == local_node.node.as_str() => None,
        Some(_) => Some("another node is selected"),
        None if class.binding_mode == Some(BindingMode::WaitForFirstConsumer) => {
            Some("waiting for the scheduler to select a node")
        }
        None if !local_node.immediate_binding => Some("no node is selected, and immediate binding is off"),
        None => None,
    }
}

fn is_volume_of_claim(volume: &Volume, claim: &Uid) -> bool {
    volume.claim_ref.as_ref().and_then(|r| r.uid.as_ref()) == Some(claim)
}

/// Returns the claim's StorageClass if this process is to provision the claim now, or has to select a node
/// for the claim before; else the verdict for the claim. Source: sig-storage-lib's `shouldProvision`.
fn class_to_provision(
    input: ProvisionerInput<'_>,
    claim: &Claim,
) -> Result<Arc<StorageClass>, Box<ProvisionVerdict>> {
    let no_action = |reason| Err(Box::new(ProvisionVerdict::NoAction(reason)));
    if claim.volume.is_some() || claim.is_bind_completed() {
        return no_action("the claim has a volume");
    }
    if claim.meta.deleting {
        return no_action("the claim is being deleted");
    }
    match claim.storage_provisioner() {
        None if !input.options.runs_pv_controller => {
            return no_action("waiting for the annotation storage-provisioner");
        }
        Some(driver) if !(input.is_managed_driver)(&driver.into()) && !is_migrated(input, claim) => {
            return no_action("the driver is not managed by this process");
        }
        None | Some(_) => {}
    }
    let class = match input.cache.class(claim.class_name()) {
        Lookup::Found(class) => class,
        Lookup::Undecodable(_) => return no_action("the class cannot be decoded"),
        Lookup::Missing if input.options.runs_pv_controller => return no_action("the class does not exist"),
        Lookup::Missing => {
            let message = format!("storageclass.storage.k8s.io {:?} not found", claim.class_name());
            return Err(Box::new(ProvisionVerdict::Reject { message, permanent: false }));
        }
    };
    if !(input.is_managed_driver)(&class.provisioner) {
        let driver = names::migrated_driver(class.provisioner.as_str()).map(DriverName::from);
        let Some(driver) = driver.filter(|driver| (input.is_managed_driver)(driver)) else {
            return no_action("the driver is not managed by this process");
        };
        if let Some(reason) = not_requested_reason(input, claim, &class) {
            return no_action(reason);
        }
        let message = format!(
            "StorageClass {} has the in-tree provisioner {}, whose parameters this version of Cofferdam does \
             not translate; expected a StorageClass with the provisioner {driver}",
            class.name, class.provisioner
        );
        return Err(Box::new(ProvisionVerdict::Reject { message, permanent: true }));
    }
    if input.infeasible == Some(&class.meta.uid) {
        return no_action("the request was infeasible; waiting for the slow retry");
    }
    if let Some(local_node) = input.options.local_node_of(&class.provisioner) {
        // The annotation is required even if pv-controller runs in this process: processes of other nodes use
        // it, too.
        if claim.storage_provisioner().is_none() {
            return no_action("waiting for the annotation storage-provisioner");
        }
        return match not_local_reason(local_node, claim, &class) {
            Some(reason) => no_action(reason),
            None => Ok(class),
        };
    }
    match not_requested_reason(input, claim, &class) {
        Some(reason) => no_action(reason),
        None => Ok(class),
    }
}

/// Returns the reason why no volume is requested for a claim of this class now; `None` if one is requested.
fn not_requested_reason(
    input: ProvisionerInput<'_>,
    claim: &Claim,
    class: &StorageClass,
) -> Option<&'static str> {
    if input.options.runs_pv_controller {
        // There is no annotation to wait for, so the binding rules must have found that no existing volume
        // matches.
        let binding_input = BindingInput {
            cache: input.cache,
            has_provisioner: input.is_managed_driver,
            is_locked_by_other: &|_| false,
        };
        let verdict = binding::decide_claim(binding_input, claim);
        return (!matches!(verdict, Binding::WaitForProvisioner(..)))
            .then_some("waiting for the binding rules to request a volume");
    }
    let is_delayed = class.binding_mode == Some(BindingMode::WaitForFirstConsumer);
    (is_delayed && claim.selected_node().is_none()).then_some("waiting for the scheduler to select a node")
}

/// Returns true if the claim's annotation `migrated-to` names a driver of this process: the claim requested a
/// volume from an in-tree plugin.
fn is_migrated(input: ProvisionerInput<'_>, claim: &Claim) -> bool {
    claim.meta.annotation(names::MIGRATED_TO).is_some_and(|driver| (input.is_managed_driver)(&driver.into()))
}

/// Builds the intent of a claim, with the `CreateVolume` request. The order of the checks is
/// external-provisioner's. The request of a claim with a `recorded` intent keeps the content source of the
/// intent: another one would be another volume.
fn build_request(
    input: ProvisionerInput<'_>,
    claim: &Claim,
    class: &StorageClass,
    name: &VolumeName,
    recorded: Option<&Intent>,
) -> Result<Intent, Box<ProvisionVerdict>> {
    let options = input.options;
    let reject = |message: String| Box::new(ProvisionVerdict::Reject { message, permanent: true });
    if recorded.is_none() {
        check_source_kind(options, claim, class)?;
    }
    // Before the intent is written: an intent of a driver without the capability was therefore written when
    // the driver had it, and its request may have been sent.
    if !options.create_drivers.contains(&class.provisioner) {
        return Err(reject(format!(
            "driver {} does not create volumes: it has no CREATE_DELETE_VOLUME",
            class.provisioner
        )));
    }
    let attributes_class = match options.volume_attributes_class {
        true => claim.attributes_class.clone(),
        false => Box::default(),
    };
    let modifies = options.modification_drivers.contains(&class.provisioner);
    if !attributes_class.is_empty() && !modifies {
        return Err(reject(format!("driver {} does not support modification", class.provisioner)));
    }
    if claim.selector.is_some() {
        return Err(reject("claim Selector is not supported".to_owned()));
    }
    let has_topology = options.topology_drivers.contains(&class.provisioner);
    if !class.allowed_topologies.is_empty() && !has_topology {
        let message = format!(
            "StorageClass {} has allowedTopologies, but driver {} does not support topology; expected none",
            class.name, class.provisioner
        );
        return Err(reject(message));
    }
    let size = match &claim.request {
        Err(error) => return Err(reject(format!("spec.resources.requests.storage: {error}"))),
        Ok(size) if size.is_zero() => {
            return Err(reject(
                "spec.resources.requests.storage is 0; expected more than zero bytes".to_owned(),
            ));
        }
        Ok(size) => size.bytes_within_int64().ok_or_else(|| {
            reject(format!("spec.resources.requests.storage is {size}; expected at most {} bytes", i64::MAX))
        })?,
    };
    let (source, unprotected) = match recorded {
        Some(intent) => (intent.request.source.clone(), None),
        None => match find_source(input, claim, class)? {
            Some(FoundSource { content, unprotected }) => (Some(content), unprotected),
            None => (None, None),
        },
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
            .map_err(|error| reject(error.to_string()))?
            .into_iter();
    let topology = if has_topology { requirement(input, claim, class)? } else { None };
    let secrets = class_secrets(input, claim, class, name)?;
    let mutable_parameters = mutable_parameters(input, &attributes_class, class)?;
    if let Some(source) = unprotected {
        return Err(Box::new(ProvisionVerdict::ProtectSource(source)));
    }
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
        attributes_class,
        secrets,
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
            source,
        },
        recorded_at: None,
        unneeded: None,
        mended: None,
    })
}

/// Checks that this process provisions volumes with a source of this kind.
///
/// # Errors
/// [`ProvisionVerdict::LeaveToPopulator`] for an unknown kind, else [`ProvisionVerdict::Reject`].
fn check_source_kind(
    options: &ProvisionerOptions,
    claim: &Claim,
    class: &StorageClass,
) -> Result<(), Box<ProvisionVerdict>> {
    let Some(data_source) = &claim.source else { return Ok(()) };
    let driver = &class.provisioner;
    if !data_source.is_claim() && !data_source.is_snapshot() {
        return Err(Box::new(ProvisionVerdict::LeaveToPopulator));
    }
    let message = match claim.source_key() {
        None => format!(
            "spec.dataSourceRef.namespace is {:?}; expected none, or the namespace of the claim",
            data_source.namespace.as_deref().unwrap_or_default()
        ),
        Some(SourceKey::Claim(_)) if !options.cloning_drivers.contains(driver) => {
            format!("driver {driver} does not clone volumes: it has no CLONE_VOLUME")
        }
        Some(SourceKey::Snapshot(_)) if !options.restoring_drivers.contains(driver) => {
            format!("driver {driver} does not restore snapshots: it has no CREATE_DELETE_SNAPSHOT")
        }
        Some(SourceKey::Claim(_) | SourceKey::Snapshot(_)) => return Ok(()),
    };
    Err(Box::new(ProvisionVerdict::Reject { message, permanent: true }))
}

/// Returns the content source of the claim's volume; `None` without a source.
fn find_source(
    input: ProvisionerInput<'_>,
    claim: &Claim,
    class: &StorageClass,
) -> Result<Option<FoundSource>, Box<ProvisionVerdict>> {
    let Some(key) = claim.source_key() else { return Ok(None) };
    let failed = |reason: String| {
        let class = claim.class_name();
        format!(
            "failed to provision volume with StorageClass {class:?}: cannot use {key} as the source: {reason}"
        )
    };
    let wait = |reason: String| {
        Box::new(ProvisionVerdict::WaitForSource { source: key.clone(), message: failed(reason) })
    };
    match &key {
        SourceKey::Claim(source) => {
            let source = source::claim::find_source_volume(input.cache, claim, source, class)
                .map_err(|error| wait(error.to_string()))?;
            let local_node = input.options.local_node_of(&class.provisioner);
            if let Some(local_node) = local_node
                && !local_node.has_volume(&source.volume, input.cache)
            {
                let node = local_node.node.clone();
                let message = failed(format!("its volume is not on the selected node {node}"));
                return Err(Box::new(ProvisionVerdict::LeaveNode { node, message }));
            }
            let is_protected = source.claim.meta.finalizer_index(names::CLONING_PROTECTION).is_some();
            let unprotected = (local_node.is_none() && !is_protected)
                .then(|| SourceObject::Claim(Arc::clone(&source.claim)));
            Ok(Some(FoundSource { content: ContentSource::Volume(source.handle), unprotected }))
        }
        SourceKey::Snapshot(snapshot) => {
            let Some(live) = input.live_snapshot else {
                return Err(Box::new(ProvisionVerdict::ReadSnapshot(snapshot.clone())));
            };
            let local_node = input.options.local_node_of(&class.provisioner);
            // Once the label names the node of a snapshot, only that node waits for it and reports on it.
            if let Some(local_node) = local_node
                && live.node_of(&class.provisioner).is_some_and(|node| node != local_node.node.as_str())
            {
                let node = local_node.node.clone();
                let message = failed(format!("its snapshot is not on the selected node {node}"));
                return Err(Box::new(ProvisionVerdict::LeaveNode { node, message }));
            }
            let prevents = input.options.prevent_volume_mode_conversion;
            let checked = source::snapshot::check_snapshot(input.cache, claim, class, live, prevents);
            let found = checked.map_err(|error| wait(error.to_string()))?;
            if local_node.is_none() {
                return Ok(Some(found));
            }
            if live.node_of(&class.provisioner).is_none() {
                let label = names::SNAPSHOT_MANAGED_BY;
                return Err(wait(format!("its VolumeSnapshotContent has no label {label} with its node")));
            }
            // The account of a node has no permission to write the finalizer. It needs none:
            // snapshot-controller keeps a VolumeSnapshot that a claim without a volume names, and the
            // snapshotter of the node a snapshot that an intent names.
            Ok(Some(FoundSource { unprotected: None, ..found }))
        }
    }
}

/// Returns the Secrets that the class names for the claim. Invalid parameters are retried with back-off,
/// since an annotation of the claim may correct them. Source: external-provisioner's `prepareProvision`.
fn class_secrets(
    input: ProvisionerInput<'_>,
    claim: &Claim,
    class: &StorageClass,
    volume: &VolumeName,
) -> Result<IntentSecrets, Box<ProvisionVerdict>> {
    let none = BTreeMap::new();
    let annotations = match input.annotations {
        Some(annotations) => annotations,
        None if secret_references::uses_annotations(class) => {
            return Err(Box::new(ProvisionVerdict::ReadAnnotations(claim.key.clone())));
        }
        None => &none,
    };
    secret_references::resolve(class, TokenValues { volume, claim: &claim.key, annotations }).map_err(
        |error| {
            let message =
                format!("failed to provision volume with StorageClass {:?}: {error}", claim.class_name());
            Box::new(ProvisionVerdict::Reject { message, permanent: false })
        },
    )
}

/// Returns the parameters of the claim's VolumeAttributesClass; empty without a name. A missing or
/// undecodable class is retried with back-off; a class of another driver is a permanent error. Source:
/// external-provisioner's `prepareProvision`.
fn mutable_parameters(
    input: ProvisionerInput<'_>,
    name: &str,
    class: &StorageClass,
) -> Result<Parameters, Box<ProvisionVerdict>> {
    if name.is_empty() {
        return Ok(Parameters::new());
    }
    let (message, permanent) = match input.cache.attributes_classes.get(&name.into()) {
        Lookup::Found(found) if found.driver == class.provisioner => return Ok(found.parameters.clone()),
        Lookup::Found(found) => {
            let (other, expected) = (&found.driver, &class.provisioner);
            (format!("VolumeAttributesClass {name:?} has driver {other}; expected {expected}"), true)
        }
        Lookup::Undecodable(_) => (format!("VolumeAttributesClass {name:?} cannot be decoded"), false),
        Lookup::Missing => (format!("volumeattributesclass.storage.k8s.io {name:?} not found"), false),
    };
    Err(Box::new(ProvisionVerdict::Reject { message, permanent }))
}

/// Returns the topology requirement of the request.
fn requirement(
    input: ProvisionerInput<'_>,
    claim: &Claim,
    class: &StorageClass,
) -> Result<Option<TopologyRequirement>, Box<ProvisionVerdict>> {
    if let Some(local_node) = input.options.local_node_of(&class.provisioner) {
        let segments = local_node.segments(&class.provisioner, input.cache);
        let required = segments.map_err(|error| error.to_string()).and_then(|segments| {
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
        "failed to provision volume with StorageClass {:?}: \
         error generating accessibility requirements: {problem}",
        claim.class_name()
    )
}

/// Access modes of a claim whose volume could never be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum UnattachableModes {
    #[error("spec.accessModes is empty; expected at least one mode")]
    Empty,
    #[error("spec.accessModes combines ReadWriteOncePod with other modes; expected ReadWriteOncePod alone")]
    ReadWriteOncePodWithOthers,
    #[error(
        "spec.accessModes has ReadOnlyMany and ReadWriteOnce, which no attachment can combine; \
         expected one of them, or ReadWriteMany"
    )]
    ReadOnlyManyWithReadWriteOnce,
}

/// Maps each access mode of the claim to an access mode of CSI, as external-provisioner does.
///
/// # Errors
/// The claim has no mode, or its combination of modes could never be attached: ReadWriteOncePod with other
/// modes, or ReadOnlyMany with ReadWriteOnce but without ReadWriteMany.
fn capability_modes(
    claim: &Claim,
    single_node_multi_writer: bool,
) -> Result<Vec<CsiAccessMode>, UnattachableModes> {
    let modes: Vec<AccessMode> = claim.access_modes.iter().collect();
    let has = |mode| modes.contains(&mode);
    if modes.is_empty() {
        return Err(UnattachableModes::Empty);
    }
    if has(AccessMode::ReadWriteOncePod) && modes.len() > 1 {
        return Err(UnattachableModes::ReadWriteOncePodWithOthers);
    }
    if has(AccessMode::ReadOnlyMany) && has(AccessMode::ReadWriteOnce) && !has(AccessMode::ReadWriteMany) {
        return Err(UnattachableModes::ReadOnlyManyWithReadWriteOnce);
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

/// Returns the access modes of a request, for a PersistentVolume whose claim is deleted or cannot be decoded.
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

/// The next effect after a response of `CreateVolume`.
#[derive(Clone, Debug, PartialEq)]
pub enum CreateVerdict {
    /// Create the PersistentVolume with this capacity in bytes.
    Save(CreatedVolume, u64),
    /// Delete the volume, then remove the intent: no claim needs the volume, or it is too small. The message
    /// is for the claim's event; `None` if no claim needs the volume.
    DeleteUnneeded(CreatedVolume, Option<String>),
    /// Remove the request from the intent, or the intent if it has no other, and emit the event: the error is
    /// final.
    Failed {
        /// Event message.
        message: String,
        /// True if the request is repeated only after `--retry-interval-max`, or with another StorageClass.
        permanent: bool,
    },
    /// As [`Failed`](Self::Failed), and remove the annotation `selected-node` if the intent has no other
    /// request: the driver has no capacity on the node.
    Reschedule {
        /// The selected node.
        node: NodeName,
        /// Event message.
        message: String,
    },
    /// Emit the event and repeat the same request later: this call, or an earlier one, may still take effect.
    /// The text is the event message.
    Retry(String),
}

/// Decides on a response of `CreateVolume`. The cache is read again, because the claim may have been deleted
/// during the call. `local_node` is that of [`ProvisionerOptions`]. `is_recovered` is true if another process
/// wrote the intent, and so may have sent its request. Source: external-provisioner's `Provision` and
/// `checkError`.
pub fn decide_after_create(
    cache: &Cache,
    local_node: Option<&LocalNode>,
    intent: &Intent,
    is_recovered: bool,
    response: Result<CreatedVolume, StorageError>,
) -> CreateVerdict {
    match response {
        Ok(mut volume) => {
            let is_node_local = local_node.is_some_and(|local_node| local_node.has_driver(&intent.driver));
            if let Some(segments) = placement::segments_of(intent).filter(|_| is_node_local) {
                // The segments of the request are exact, whatever the driver returns. They later show the
                // volume's node.
                volume.topology = vec![segments.clone()];
            }
            let required = intent.request.capacity.required.unwrap_or_default();
            let capacity = volume.capacity.filter(|bytes| *bytes > 0).unwrap_or(required);
            if capacity < required {
                let message = format!(
                    "created volume capacity {capacity} less than requested capacity {required}; \
                     deleting the volume"
                );
                CreateVerdict::DeleteUnneeded(volume, Some(message))
            } else if is_needed(cache, local_node, intent)
                || (intent.class.reclaim_policy != ReclaimPolicy::Delete
                    && !is_superseded(cache, local_node, intent))
            {
                // With Retain, the volume is kept without its claim: its PersistentVolume becomes Released.
                CreateVerdict::Save(volume, capacity)
            } else {
                CreateVerdict::DeleteUnneeded(volume, None)
            }
        }
        Err(error) => {
            let message =
                format!("failed to provision volume with StorageClass {:?}: {error}", intent.class.name);
            match error.finality {
                // The error says nothing about the call of the other process, which may have created the
                // volume.
                Finality::Final if is_recovered && error.kind.is_inconclusive() => {
                    CreateVerdict::Retry(message)
                }
                // A driver that could not process the call knows nothing about an earlier call.
                // external-provisioner treats these codes in the same way (`ProvisioningInBackground`).
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

/// Returns true if the node of the request is still selected.
fn is_selected(cache: &Cache, intent: &Intent, node: &NodeName) -> bool {
    let claim = cache.claim_by_uid(&intent.claim_uid);
    claim.is_some_and(|claim| claim.selected_node() == Some(node.as_str()))
}

/// Returns true if the driver is node-local and the claim does not get its volume from the node of the
/// intent: the claim's PersistentVolume is on another node, or, without a PersistentVolume, the node of the
/// intent is no longer selected. Returns false if the cache has neither the PersistentVolume nor the claim.
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

/// Returns true if the claim still needs the requested volume. A claim that cannot be decoded needs it.
pub fn is_needed(cache: &Cache, local_node: Option<&LocalNode>, intent: &Intent) -> bool {
    if is_superseded(cache, local_node, intent) {
        return false;
    }
    match cache.claims.get(&intent.claim) {
        Lookup::Found(claim) => {
            let named = claim.volume.as_ref().is_none_or(|name| name.as_str() == intent.request.name);
            claim.meta.uid == intent.claim_uid && !claim.meta.deleting && named
        }
        // The claim exists and may need the volume.
        Lookup::Undecodable(uid) => uid == intent.claim_uid,
        Lookup::Missing => false,
    }
}

/// The next effect for a PersistentVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimVerdict {
    /// No effect; the text is the reason.
    NoAction(&'static str),
    /// Add the provisioner's finalizer: the PersistentVolume must outlive the driver's volume.
    AddFinalizer,
    /// Remove the provisioner's finalizer, which has this index in the list.
    RemoveFinalizer(usize),
    /// Call `DeleteVolume`.
    DeleteVolume,
    /// Delete the PersistentVolume, which does not have the provisioner's finalizer.
    DeleteObject,
    /// Delete the PersistentVolume and remove the provisioner's finalizer, which has this index in the list.
    /// The two writes do not depend on each other: whichever is second removes the object.
    DeleteObjectAndFinalizer(usize),
    /// Wait: deletions are frozen after a restore of the cluster.
    DeletionFrozen,
    /// Emit the event of a released volume that this version cannot delete: it has an in-tree source, and its
    /// plugin is migrated to a driver of this process.
    InTreeSource,
}

/// Decides the next effect for a volume. Source: external-provisioner's `syncVolume` and `shouldDelete`.
///
/// `is_managed_driver` returns true for drivers of this process; for a node-local driver, only if the volume
/// is accessible only from the node of this process. `deleted` is true if `DeleteVolume` has succeeded in
/// this reconcile, and `is_frozen` while deletions are frozen after a restore of the cluster.
pub fn decide_reclaim(
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
        return decide_in_tree_reclaim(is_managed_driver, volume);
    };
    let finalizer = volume.meta.finalizer_index(names::PROVISIONER_FINALIZER);
    let delete = volume.reclaim_policy == ReclaimPolicy::Delete;
    if let (ReclaimPolicy::Retain | ReclaimPolicy::Recycle, Some(at)) = (&volume.reclaim_policy, finalizer) {
        return ReclaimVerdict::RemoveFinalizer(at);
    }
    if !delete || csi.handle.as_str().is_empty() {
        return ReclaimVerdict::NoAction("the volume is retained");
    }
    let has_claim_uid = volume.claim_ref.as_ref().is_some_and(|r| r.uid.is_some());
    let bound = volume.phase == VolumePhase::Bound;
    if bound && finalizer.is_none() && !volume.meta.deleting {
        return ReclaimVerdict::AddFinalizer;
    }
    // A claimRef without UID is a reservation by name: an operator is recovering the volume.
    if volume.phase != VolumePhase::Released
        || !has_claim_uid
        || (volume.meta.deleting && finalizer.is_none())
    {
        return ReclaimVerdict::NoAction("the volume is in use or reclaimed");
    }
    match (deleted, volume.meta.deleting, finalizer) {
        (false, ..) if is_frozen => ReclaimVerdict::DeletionFrozen,
        (false, ..) => ReclaimVerdict::DeleteVolume,
        (true, false, Some(at)) => ReclaimVerdict::DeleteObjectAndFinalizer(at),
        (true, false, None) => ReclaimVerdict::DeleteObject,
        (true, true, Some(at)) => ReclaimVerdict::RemoveFinalizer(at),
        (true, true, None) => ReclaimVerdict::NoAction("the PersistentVolume is being deleted"),
    }
}

/// Decides for a volume without a CSI source of a driver of this process. csi-provisioner translates and
/// deletes volumes whose in-tree plugin is migrated to its driver; this version only reports them.
fn decide_in_tree_reclaim(
    is_managed_driver: &dyn Fn(&DriverName) -> bool,
    volume: &Volume,
) -> ReclaimVerdict {
    let not_managed = ReclaimVerdict::NoAction("the volume is not managed by this process");
    // Without these annotations, the volume is not deleted by a provisioner.
    let is_provisioned = volume.provisioned_by().is_some() || volume.meta.has_annotation(names::MIGRATED_TO);
    let Some(driver) = volume.migrated_driver().filter(|_| is_provisioned) else { return not_managed };
    if !is_managed_driver(&driver.into()) {
        return not_managed;
    }
    let has_claim_uid = volume.claim_ref.as_ref().is_some_and(|r| r.uid.is_some());
    match (&volume.reclaim_policy, volume.meta.finalizer_index(names::PROVISIONER_FINALIZER)) {
        (ReclaimPolicy::Retain | ReclaimPolicy::Recycle, Some(at)) => ReclaimVerdict::RemoveFinalizer(at),
        (ReclaimPolicy::Delete, _) if volume.phase == VolumePhase::Released && has_claim_uid => {
            ReclaimVerdict::InTreeSource
        }
        _ => ReclaimVerdict::NoAction("the volume has an in-tree source"),
    }
}

/// Returns true if `is_managed_driver` is true for the driver that provisioned a CSI volume: the one that the
/// annotation `provisioned-by` or `migrated-to` names, or, without `provisioned-by`, the driver of the CSI
/// source. Source: sig-storage-lib's `shouldDelete`.
pub(crate) fn is_managed_volume(is_managed_driver: &dyn Fn(&DriverName) -> bool, volume: &Volume) -> bool {
    let Some(csi) = &volume.csi else { return false };
    let is_managed = |driver: &str| is_managed_driver(&driver.into());
    match volume.meta.annotation(names::PROVISIONED_BY) {
        Some(driver) => {
            is_managed(driver) || volume.meta.annotation(names::MIGRATED_TO).is_some_and(is_managed)
        }
        None => is_managed_driver(&csi.driver),
    }
}

#[cfg(test)]
mod tests;
