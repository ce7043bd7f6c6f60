//! A scripted storage array and its driver. The array outlives the processes that call it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use cofferdam_backend::{Backend, BackendFuture, Call, CallSpec};
use cofferdam_controllers::rbac::NodeTopologySource;
use cofferdam_domain::{
    NodeId, Quantity, SnapshotHandle, VolumeHandle, names,
    storage::{
        Ability, AccessType, Capacity, CapacityQuery, CapacityRange, ConnectionInfo, ContentSource,
        CreateSnapshot, CreateVolume, CreatedVolume, CsiAccessMode, Description, ErrorKind, ExpandVolume,
        ExpandedVolume, Feature, Finality, PageRequest, Parameters, Placement, PublishVolume, Readiness,
        Secret, Secrets, Segments, Snapshot, SnapshotPage, StorageError, ValidateVolume, Validation,
        VolumePage, VolumeStatus,
    },
};
use futures::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    action::UserAction,
    array_port::ArrayPort,
    effects::{ActivityGuard, Effect, Effects},
    secret_values::without_marker,
};

/// A fault of one driver call.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverFault {
    /// The call fails with a final error of this kind and has no effect.
    Refuse(ErrorKind),
    /// The call has no effect; the caller gets an error with unknown outcome.
    LostRequest,
    /// The call takes effect; the caller gets an error with unknown outcome.
    LostResponse,
    /// The call takes this long and then has no other fault.
    Slow(Duration),
    /// The user acts during the call, which then has no other fault.
    ConcurrentAction(UserAction),
    /// The user acts during the call, then the other fault applies.
    ConcurrentActionThen(UserAction, Box<DriverFault>),
    /// The process's open watches expire and new ones hang, as with a stuck connection; then the other fault
    /// applies.
    StaleWatchesThen(Box<DriverFault>),
    /// The response to a create or expand call has this size in bytes, whatever was requested. A created
    /// volume has the size, too; an expanded volume only if the size is larger than the requested one and the
    /// volume's former one. Other calls, and create calls for an existing volume, have no fault.
    WrongSize(u64),
    /// The response to a call that creates a snapshot names another source volume. Other calls have no fault.
    WrongSource,
    /// The publish call succeeds, but the array unpublishes the volume at once, as by an action of its
    /// administrator. Other calls have no fault.
    Reverted,
}

impl DriverFault {
    /// Returns true if the fault is a final error that excludes that an earlier attempt has had an effect.
    fn is_conclusive_refusal(&self) -> bool {
        match self {
            Self::Refuse(kind) => !kind.is_inconclusive(),
            Self::ConcurrentActionThen(_, then) | Self::StaleWatchesThen(then) => {
                then.is_conclusive_refusal()
            }
            Self::LostRequest
            | Self::LostResponse
            | Self::Slow(_)
            | Self::ConcurrentAction(_)
            | Self::WrongSize(_)
            | Self::WrongSource
            | Self::Reverted => false,
        }
    }

    /// Returns true if the fault is a final error that the driver reports.
    fn is_refusal(&self) -> bool {
        match self {
            Self::Refuse(_) => true,
            Self::ConcurrentActionThen(_, then) | Self::StaleWatchesThen(then) => then.is_refusal(),
            Self::LostRequest
            | Self::LostResponse
            | Self::Slow(_)
            | Self::ConcurrentAction(_)
            | Self::WrongSize(_)
            | Self::WrongSource
            | Self::Reverted => false,
        }
    }
}

/// Delay of [`DriverFault::StaleWatchesThen`]. Every earlier watch has expired after it, and the process has
/// not yet abandoned the watches that hang.
const WATCH_EXPIRY: Duration = Duration::from_secs(300);

/// A volume of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayVolume {
    /// The request that created the volume.
    pub request: CreateVolume,
    /// Size at creation, in bytes.
    pub size: u64,
    /// Time of creation, in milliseconds since the Unix epoch. Later calls of the driver do not change it.
    pub changed_at_ms: u64,
    /// Nodes that ListVolumes returns for the volume, in addition to those of publish calls. Publish calls do
    /// not change this list.
    pub published_nodes: Vec<NodeId>,
}

/// ListVolumes behavior of the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListingBehavior {
    /// Entries contain the owners of volumes.
    pub owners: bool,
    /// Entries contain [`ArrayVolume::changed_at_ms`].
    pub change_times: bool,
    /// Maximum number of entries of a page, if the request allows more; 0 for the limit of the request only.
    pub page_size: usize,
    /// The last page is followed by another one, without end.
    pub endless: bool,
    /// The driver has the capability LIST_VOLUMES_PUBLISHED_NODES, and entries contain the nodes of publish
    /// calls.
    pub published_nodes: bool,
}

/// ControllerPublishVolume behavior of the driver.
#[derive(Clone, Debug, Default)]
pub struct PublishingBehavior {
    /// The driver does not publish volumes: they are reachable from every node.
    pub unsupported: bool,
    /// The driver takes the node's identities, as components do.
    pub takes_node_identities: bool,
    /// Faults of publish calls: one for each call, in order. Later calls have no fault.
    pub publish_faults: Vec<DriverFault>,
    /// Faults of unpublish calls: one for each call, in order. Later calls have no fault.
    pub unpublish_faults: Vec<DriverFault>,
}

/// Expand and modify behavior of the driver.
#[derive(Clone, Debug, Default)]
pub struct ResizingBehavior {
    /// The driver supports neither expansion nor modification.
    pub unsupported: bool,
    /// Expansion also requires a node expansion.
    pub node_expansion_required: bool,
    /// Expand calls fail with a final `Internal` while the volume is published to no node.
    pub expands_published_only: bool,
    /// Faults of expand calls: one for each call, in order. Later calls have no fault.
    pub expand_faults: Vec<DriverFault>,
    /// Faults of modify calls: one for each call, in order. Later calls have no fault.
    pub modify_faults: Vec<DriverFault>,
}

/// Snapshot behavior of the driver.
#[derive(Clone, Debug, Default)]
pub struct SnapshotBehavior {
    /// The driver takes no snapshots.
    pub unsupported: bool,
    /// Number of create calls of a snapshot after which it is ready, beyond the first one.
    pub polls_until_ready: usize,
    /// Every snapshot has a handle of its own, also if another one had its name before.
    pub has_unique_handles: bool,
    /// Faults of create calls: one for each call, in order. Later calls have no fault.
    pub create_faults: Vec<DriverFault>,
    /// Faults of delete calls: one for each call, in order. Later calls have no fault.
    pub delete_faults: Vec<DriverFault>,
    /// Faults of list calls: one for each call, in order. Later calls have no fault.
    pub list_faults: Vec<DriverFault>,
}

impl SnapshotBehavior {
    /// Returns true if no number of calls is enough.
    pub(crate) const fn is_never_ready(&self) -> bool {
        self.polls_until_ready == usize::MAX
    }
}

/// A snapshot of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySnapshot {
    /// The handle.
    pub handle: SnapshotHandle,
    /// The request that created the snapshot.
    pub request: CreateSnapshot,
    /// Size of the source, in bytes.
    size: u64,
    /// Number of create calls so far.
    calls: usize,
}

/// Topology behavior of the driver.
#[derive(Clone, Copy, Debug, Default)]
pub struct TopologyBehavior {
    /// Topology keys; empty if volumes are reachable from every node.
    pub keys: &'static [&'static str],
    /// Topology segments without capacity, such as `zone=a`. The driver considers only the first preferred
    /// topology.
    pub full_segments: &'static [&'static str],
    /// The driver supports GetCapacity.
    pub reports_capacity: bool,
    /// The topology keys are only in CSINodes, and the driver's description has neither them nor its
    /// placement, as with CSI drivers, which cannot report them.
    pub keys_only_in_csi_node: bool,
}

/// A volume handle and a node ID.
type VolumeOnNode = (String, String);

#[derive(Default)]
struct Array {
    /// The driver does not have CREATE_DELETE_VOLUME.
    lacks_create_delete: bool,
    volumes: BTreeMap<String, ArrayVolume>,
    create_faults: VecDeque<DriverFault>,
    delete_faults: VecDeque<DriverFault>,
    topology: TopologyBehavior,
    supports_publish: bool,
    takes_node_identities: bool,
    publish_faults: VecDeque<DriverFault>,
    unpublish_faults: VecDeque<DriverFault>,
    /// Publish requests that have taken effect, without mount options.
    published: BTreeMap<VolumeOnNode, PublishVolume>,
    /// Publish requests that have taken effect or still may, without mount options.
    publish_requests: BTreeMap<VolumeOnNode, PublishVolume>,
    /// Handles of volumes that were published although no create call created them. They stay after unpublish
    /// calls; ListVolumes returns them, too.
    unmanaged: BTreeSet<String>,
    supports_resize: bool,
    /// Expansion also requires a node expansion.
    node_expansion_required: bool,
    expands_published_only: bool,
    expand_faults: VecDeque<DriverFault>,
    modify_faults: VecDeque<DriverFault>,
    /// Sizes of expanded volumes, by handle.
    sizes: BTreeMap<String, u64>,
    /// Sizes of expand requests that may still take effect, by handle.
    pending_expansions: BTreeMap<String, CapacityRange>,
    /// Parameters of modify requests that may still take effect, by handle.
    pending_modifications: BTreeMap<String, Parameters>,
    /// Handles of the volumes with an expand or modify call in progress.
    changes_in_progress: BTreeSet<String>,
    supports_snapshots: bool,
    has_unique_snapshot_handles: bool,
    /// Number of snapshots that were created so far.
    created_snapshots: usize,
    /// Snapshots by name.
    snapshots: BTreeMap<String, ArraySnapshot>,
    polls_until_ready: usize,
    snapshot_faults: VecDeque<DriverFault>,
    snapshot_delete_faults: VecDeque<DriverFault>,
    snapshot_list_faults: VecDeque<DriverFault>,
    /// Create requests of snapshots that have taken effect or still may, by the array's key.
    pending_snapshots: BTreeSet<String>,
    listing: Option<ListingBehavior>,
    list_faults: VecDeque<DriverFault>,
    calls: Vec<String>,
    completed_calls: usize,
    violations: Vec<String>,
    /// Create requests that have taken effect or still may, by the key of `volumes`. They stay until an error
    /// that shows that they had no effect, or until a deletion. If there are several, with different
    /// arguments, all must be in the intent journal.
    pending_creates: BTreeMap<String, Vec<CreateVolume>>,
    /// Values of the parameter `tier` for which create calls without a fault fail with a final `Internal`.
    failing_tiers: &'static [&'static str],
    /// Key without which create calls fail with a final `Unauthenticated`.
    required_secret_key: Option<&'static str>,
}

/// The simulation's wall clock.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

/// Performs a user action. Completes when every process has seen the change.
pub(crate) type UserActionHandler = Arc<dyn Fn(UserAction) -> BoxFuture<'static, ()> + Send + Sync>;

/// Reads the requests that the intent journals contain now.
pub(crate) type JournalReader = Arc<dyn Fn() -> BoxFuture<'static, Vec<CreateVolume>> + Send + Sync>;

/// The scripted array with its driver, shared by all processes of a simulation.
#[derive(Clone)]
pub struct ScriptedDriver {
    array: Arc<Mutex<Array>>,
    user_actions: UserActionHandler,
    journal: JournalReader,
    clock: Clock,
}

impl ScriptedDriver {
    pub(crate) fn new(
        create_faults: Vec<DriverFault>,
        delete_faults: Vec<DriverFault>,
        user_actions: UserActionHandler,
        journal: JournalReader,
        clock: Clock,
    ) -> Self {
        let array = Array {
            create_faults: create_faults.into(),
            delete_faults: delete_faults.into(),
            supports_publish: true,
            takes_node_identities: false,
            supports_resize: true,
            supports_snapshots: true,
            has_unique_snapshot_handles: false,
            created_snapshots: 0,
            ..Array::default()
        };
        Self { array: Arc::new(Mutex::new(array)), user_actions, journal, clock }
    }

    /// Enables ListVolumes. Each call has the next of `faults`; further calls have no fault.
    pub fn set_listing(&self, listing: ListingBehavior, faults: Vec<DriverFault>) {
        let mut array = self.lock();
        array.listing = Some(listing);
        array.list_faults = faults.into();
    }

    /// Sets the publish behavior.
    pub fn set_publishing(&self, publishing: PublishingBehavior) {
        let mut array = self.lock();
        array.supports_publish = !publishing.unsupported;
        array.takes_node_identities = publishing.takes_node_identities;
        array.publish_faults = publishing.publish_faults.into();
        array.unpublish_faults = publishing.unpublish_faults.into();
    }

    /// Sets whether the driver has CREATE_DELETE_VOLUME. Processes that are running do not notice a change.
    pub fn set_create_delete(&self, has_create_delete: bool) {
        self.lock().lacks_create_delete = !has_create_delete;
    }

    /// Sets the values of the parameter `tier` for which create calls without a fault fail with a final
    /// `Internal`.
    pub fn set_failing_tiers(&self, tiers: &'static [&'static str]) {
        self.lock().failing_tiers = tiers;
    }

    /// Repairs the array: create calls fail in no tier, and unpublish calls have no fault.
    pub fn repair(&self) {
        let mut array = self.lock();
        array.failing_tiers = &[];
        array.unpublish_faults.clear();
    }

    /// Sets the key that the secrets of create calls need: without it, a call fails with a final
    /// `Unauthenticated`.
    pub fn set_required_secret_key(&self, key: Option<&'static str>) {
        self.lock().required_secret_key = key;
    }

    /// Sets the expand and modify behavior.
    pub fn set_resizing(&self, resizing: ResizingBehavior) {
        let mut array = self.lock();
        array.expands_published_only = resizing.expands_published_only;
        (array.supports_resize, array.node_expansion_required) =
            (!resizing.unsupported, resizing.node_expansion_required);
        array.expand_faults = resizing.expand_faults.into();
        array.modify_faults = resizing.modify_faults.into();
    }

    /// Sets the snapshot behavior.
    pub fn set_snapshots(&self, snapshots: SnapshotBehavior) {
        let mut array = self.lock();
        array.supports_snapshots = !snapshots.unsupported;
        array.has_unique_snapshot_handles = snapshots.has_unique_handles;
        array.polls_until_ready = snapshots.polls_until_ready;
        array.snapshot_faults = snapshots.create_faults.into();
        array.snapshot_delete_faults = snapshots.delete_faults.into();
        array.snapshot_list_faults = snapshots.list_faults.into();
    }

    /// Adds a snapshot to the array that is ready, as one of a lost response.
    pub fn insert_snapshot(&self, request: CreateSnapshot) {
        let mut array = self.lock();
        let calls = array.polls_until_ready + 1;
        let handle = array.new_snapshot_handle(&request.name);
        array.snapshots.insert(request.name.clone(), ArraySnapshot { handle, request, size: 1 << 30, calls });
    }

    /// Removes a snapshot from the array.
    pub fn remove_snapshot(&self, name: &str) {
        self.lock().snapshots.remove(name);
    }

    /// Removes all snapshots from the array.
    pub(crate) fn remove_snapshots(&self) {
        self.lock().snapshots.clear();
    }

    /// The snapshots of the array, by name, or by `node/name` if the driver is node-local.
    pub fn snapshots(&self) -> BTreeMap<String, ArraySnapshot> {
        self.lock().snapshots.clone()
    }

    /// Snapshots whose create requests have taken effect or still may, and that are not deleted: by name, or
    /// by `node/name` if the driver is node-local.
    pub fn pending_snapshots(&self) -> BTreeSet<String> {
        self.lock().pending_snapshots.clone()
    }

    /// Sets the topology behavior.
    pub fn set_topology(&self, topology: TopologyBehavior) {
        self.lock().topology = topology;
    }

    /// Where the process of a node takes the topology of its node from.
    pub(crate) fn topology_source(&self) -> NodeTopologySource {
        let topology = self.lock().topology;
        match topology.keys {
            _ if topology.keys_only_in_csi_node => NodeTopologySource::CsiNode,
            [names::NODE_TOPOLOGY_KEY] => NodeTopologySource::Name,
            _ => NodeTopologySource::Labels,
        }
    }

    /// Handle and node ID of each publication.
    pub fn published(&self) -> Vec<(String, String)> {
        self.lock().published.keys().cloned().collect()
    }

    /// Adds or replaces a volume of the array without a request of a process.
    pub fn insert(&self, volume: ArrayVolume) {
        self.lock().volumes.insert(volume.request.name.clone(), volume);
    }

    /// Removes a volume from the array without a request of a process.
    pub fn remove(&self, name: &str) {
        self.lock().volumes.remove(name);
    }

    /// Removes the remaining faults of delete calls.
    pub fn clear_delete_faults(&self) {
        self.lock().delete_faults.clear();
    }

    /// Volumes of the array, by name, or by `node/name` if the driver is node-local.
    pub fn volumes(&self) -> BTreeMap<String, ArrayVolume> {
        self.lock().volumes.clone()
    }

    /// Every create, delete, publish, unpublish, expand and modify call of the processes, in order, such as
    /// `create pvc-UID`, with the volume's name, or `delete handle-pvc-UID`. A create call of a clone names
    /// its source: `create pvc-UID from handle-pvc-UID`. Calls with a fault are included, also those with a
    /// lost request. A create call shows its parameter `tier` if it is not `fast`. A call with secrets ends
    /// with ` with key=value` for each.
    pub fn calls(&self) -> Vec<String> {
        self.lock().calls.clone()
    }

    /// Number of calls that have ended, including failed calls and ListVolumes, without Probe,
    /// ValidateVolumeCapabilities and GetCapacity.
    pub(crate) fn completed_calls(&self) -> usize {
        self.lock().completed_calls
    }

    /// Descriptions of the calls by which simulated processes break the rules of CSI for callers. For
    /// example, a process requests a volume by the name of an earlier request and with other arguments,
    /// although that request has created the volume or may still create it and is no longer in the intent
    /// journal.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// The driver for one process. `node` is the node of its storage if the driver is node-local.
    pub(crate) fn for_process(
        &self,
        name: &str,
        node: Option<&'static str>,
        effects: Arc<Effects>,
    ) -> Arc<dyn Backend> {
        let snapshots = self.lock().supports_snapshots;
        let (listing, publishes, resizes, topology, creates_volumes) = {
            let array = self.lock();
            let creates_volumes = !array.lacks_create_delete;
            (array.listing, array.supports_publish, array.supports_resize, array.topology, creates_volumes)
        };
        let keys = if topology.keys_only_in_csi_node { &[] } else { topology.keys };
        let description = Description {
            name: name.into(),
            version: "1".to_owned(),
            topology_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            // CSI drivers cannot report their placement either.
            placement: match node {
                Some(_) if !topology.keys_only_in_csi_node => Placement::Node,
                Some(_) | None => Placement::Central,
            },
            volumes_per_node: None,
            features: [
                Some(Feature::PublishReadonly),
                listing.filter(|listing| listing.published_nodes).map(|_| Feature::PublishedNodes),
            ]
            .into_iter()
            .flatten()
            .map(|feature| feature.to_string())
            .collect(),
        };
        let abilities = [
            Some(Ability::Cloning),
            snapshots.then_some(Ability::Snapshots),
            snapshots.then_some(Ability::Restoring),
            listing.map(|_| Ability::Listing),
            (publishes && node.is_none()).then_some(Ability::Publishing),
            resizes.then_some(Ability::Expansion),
            resizes.then_some(Ability::Modification),
            topology.reports_capacity.then_some(Ability::Capacity),
        ];
        let abilities = abilities.into_iter().flatten().collect();
        let port = ArrayPort::new(&description.name, MAX_CALL_DURATION, MAX_CALLS);
        Arc::new(CrashingBackend {
            driver: self.clone(),
            node,
            description,
            abilities,
            creates_volumes,
            port,
            effects,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Array> {
        self.array.lock()
    }

    /// Creates the volume `name`. `source` is the array's key of the volume that it is cloned from.
    fn create(
        &self,
        name: String,
        request: CreateVolume,
        source: Option<&str>,
        size: Option<u64>,
    ) -> Result<CreatedVolume, StorageError> {
        let mut array = self.lock();
        let size = size.or(request.capacity.required).unwrap_or_default();
        if let Some(existing) = array.volumes.get(&name)
            && existing.request != request
        {
            let message = format!("{name} was requested with other arguments");
            array.remove_pending(&name, &request);
            return Err(StorageError::with_known_effect(ErrorKind::AlreadyExists, message));
        }
        if source.is_some_and(|source| !array.volumes.contains_key(source))
            && !array.volumes.contains_key(&name)
        {
            array.remove_pending(&name, &request);
            return Err(StorageError::with_known_effect(ErrorKind::NotFound, "no such source volume"));
        }
        let segments = preferred_segments(&request).first().copied().map(format_segments);
        if segments.is_some_and(|segments| array.topology.full_segments.contains(&segments.as_str())) {
            array.remove_pending(&name, &request);
            return Err(StorageError::with_known_effect(ErrorKind::ResourceExhausted, "no capacity"));
        }
        let now = u64::try_from((self.clock)().as_millisecond()).unwrap_or_default();
        let volume = array.volumes.entry(name).or_insert_with(|| ArrayVolume {
            request,
            size,
            changed_at_ms: now,
            published_nodes: Vec::new(),
        });
        Ok(created_volume(volume))
    }

    /// The error of a create call whose snapshot does not exist, unless the volume exists.
    fn missing_snapshot(
        &self,
        key: &str,
        snapshot_key: &str,
        request: &CreateVolume,
    ) -> Option<StorageError> {
        let Some(ContentSource::Snapshot(handle)) = &request.source else { return None };
        let mut array = self.lock();
        let is_static = !handle.as_str().starts_with("handle-");
        if is_static || array.snapshot(snapshot_key, handle).is_some() || array.volumes.contains_key(key) {
            return None;
        }
        array.remove_pending(key, request);
        Some(StorageError::with_known_effect(ErrorKind::NotFound, "no such snapshot"))
    }

    /// Creates the snapshot with this key of the array. `source` is the key of its volume; `None` for a
    /// static volume, which the array does not have.
    fn create_snapshot(
        &self,
        key: String,
        source: Option<&str>,
        request: CreateSnapshot,
    ) -> Result<Snapshot, StorageError> {
        let mut array = self.lock();
        let size = source.and_then(|source| array.volumes.get(source)).map(|volume| volume.size);
        let exists = array.snapshots.contains_key(&key);
        if source.is_some() && size.is_none() && !exists {
            array.pending_snapshots.remove(&key);
            return Err(StorageError::with_known_effect(ErrorKind::NotFound, "no such source volume"));
        }
        let mut snapshot = match array.snapshots.remove(&key) {
            Some(snapshot) => snapshot,
            None => {
                let handle = array.new_snapshot_handle(&request.name);
                ArraySnapshot { handle, request, size: size.unwrap_or(1 << 30), calls: 0 }
            }
        };
        snapshot.calls += 1;
        let status = array.status_of(&snapshot);
        array.snapshots.insert(key, snapshot);
        Ok(status)
    }

    fn list_page(&self, listing: ListingBehavior, request: &PageRequest) -> VolumePage {
        let array = self.lock();
        let after = request.starting_token.as_deref().unwrap_or_default();
        let requested_limit =
            request.max_entries.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let page_size =
            if listing.page_size == 0 { requested_limit } else { requested_limit.min(listing.page_size) };
        let volumes =
            array.volumes.iter().map(|(name, volume)| (name.clone(), volume_status(volume, listing)));
        let unmanaged = array.unmanaged.iter().map(|handle| (handle.clone(), unmanaged_status(handle)));
        let mut all: BTreeMap<String, VolumeStatus> = volumes.chain(unmanaged).collect();
        for ((handle, node), _) in array.published.iter().filter(|_| listing.published_nodes) {
            let of = |status: &&mut VolumeStatus| status.volume.handle.as_str() == handle;
            if let Some(status) = all.values_mut().find(of) {
                status.published_node_ids.push(node.as_str().into());
            }
        }
        let mut remaining = all.into_iter().filter(|(name, _)| name.as_str() > after).peekable();
        let entries: Vec<_> = remaining.by_ref().take(page_size).collect();
        let has_more = remaining.peek().is_some();
        let next = entries.last().filter(|_| has_more).map(|(name, _)| name.clone());
        VolumePage {
            volumes: entries.into_iter().map(|(_, status)| status).collect(),
            // Every page token differs from the previous one.
            next_token: if listing.endless { next.or_else(|| Some(format!("{after}~"))) } else { next },
        }
    }
}

fn created_volume(volume: &ArrayVolume) -> CreatedVolume {
    CreatedVolume {
        handle: VolumeHandle::from(format!("handle-{}", volume.request.name)),
        capacity: Some(volume.size),
        context: BTreeMap::new(),
        topology: preferred_segments(&volume.request).into_iter().take(1).cloned().collect(),
        connection_info: None,
    }
}

/// The preferred topologies of a request, in order.
fn preferred_segments(request: &CreateVolume) -> Vec<&Segments> {
    request.topology.iter().flat_map(|topology| &topology.preferred).collect()
}

/// The name of a snapshot of the array; empty for another snapshot.
pub(super) fn snapshot_name(handle: &str) -> &str {
    let name = handle.strip_prefix("handle-").unwrap_or_default();
    name.split_once('.').map_or(name, |(name, _)| name)
}

/// The volume that a request clones.
fn source_volume(request: &CreateVolume) -> Option<&VolumeHandle> {
    match &request.source {
        Some(ContentSource::Volume(handle)) => Some(handle),
        Some(ContentSource::Snapshot(_)) | None => None,
    }
}

/// A topology segment, or mutable parameters, in the form of the scenario table: `key=value,key=value`.
fn format_segments(segments: &Segments) -> String {
    segments.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

fn volume_status(volume: &ArrayVolume, listing: ListingBehavior) -> VolumeStatus {
    VolumeStatus {
        volume: created_volume(volume),
        owner: volume.request.owner.clone().filter(|_| listing.owners),
        published_node_ids: volume.published_nodes.clone(),
        condition: None,
        changed_at_ms: listing.change_times.then_some(volume.changed_at_ms),
    }
}

/// The status of a volume that was published although no process created it.
fn unmanaged_status(handle: &str) -> VolumeStatus {
    VolumeStatus {
        volume: CreatedVolume {
            handle: handle.into(),
            capacity: None,
            context: BTreeMap::new(),
            topology: Vec::new(),
            connection_info: None,
        },
        owner: None,
        published_node_ids: Vec::new(),
        condition: None,
        changed_at_ms: None,
    }
}

impl Array {
    /// Adds a create request, and returns the requests of this name that have taken effect or still may.
    fn add_pending(&mut self, key: &str, request: &CreateVolume) -> Vec<CreateVolume> {
        let pending = self.pending_creates.entry(key.to_owned()).or_default();
        if !pending.contains(request) {
            pending.push(request.clone());
        }
        pending.clone()
    }

    /// Removes a create request that had no effect.
    fn remove_pending(&mut self, key: &str, request: &CreateVolume) {
        if let Some(pending) = self.pending_creates.get_mut(key) {
            pending.retain(|pending| pending != request);
        }
    }

    /// The handle of the next snapshot, which has this name.
    fn new_snapshot_handle(&mut self, name: &str) -> SnapshotHandle {
        self.created_snapshots += 1;
        let number = self.created_snapshots;
        let suffix = if self.has_unique_snapshot_handles { format!(".{number}") } else { String::new() };
        format!("handle-{name}{suffix}").into()
    }

    /// The snapshot with this key, if it has this handle.
    fn snapshot(&self, key: &str, handle: &SnapshotHandle) -> Option<&ArraySnapshot> {
        self.snapshots.get(key).filter(|snapshot| snapshot.handle == *handle)
    }

    /// The status that the driver returns for a snapshot.
    fn status_of(&self, snapshot: &ArraySnapshot) -> Snapshot {
        Snapshot {
            handle: snapshot.handle.clone(),
            source: snapshot.request.source.clone(),
            size: Some(snapshot.size),
            created_at_ms: 1_700_000_000_000,
            ready: snapshot.calls > self.polls_until_ready,
            group: None,
            owner: snapshot.request.owner.clone(),
        }
    }

    /// The name of a volume that is requested from this snapshot, and that does not exist yet.
    fn restore_in_progress(&self, handle: &SnapshotHandle) -> Option<&str> {
        let source = ContentSource::Snapshot(handle.clone());
        let pending = self.pending_creates.iter().filter(|(key, _)| !self.volumes.contains_key(*key));
        let mut requests = pending.flat_map(|(_, requests)| requests);
        requests.find(|request| request.source.as_ref() == Some(&source)).map(|request| request.name.as_str())
    }

    /// The name of a volume that is requested as a clone of this volume, and that does not exist yet.
    fn clone_in_progress(&self, handle: &VolumeHandle) -> Option<&str> {
        let has_source = |request: &&CreateVolume| source_volume(request) == Some(handle);
        let pending = self.pending_creates.iter().filter(|(key, _)| !self.volumes.contains_key(*key));
        let mut requests = pending.flat_map(|(_, requests)| requests);
        requests.find(has_source).map(|request| request.name.as_str())
    }

    /// Returns true if create calls with this request fail.
    fn is_failing(&self, request: &CreateVolume) -> bool {
        request.parameters.get("tier").is_some_and(|tier| self.failing_tiers.contains(&tier.as_str()))
    }

    /// Publishes a volume to a node. `request` has no mount options.
    fn publish(&mut self, request: PublishVolume) -> Result<ConnectionInfo, StorageError> {
        let publication = (request.handle.to_string(), request.node_id.to_string());
        let refuse = |kind, message| Err(StorageError::with_known_effect(kind, message));
        if self.published.get(&publication).is_some_and(|existing| *existing != request) {
            return refuse(
                ErrorKind::AlreadyExists,
                format!("{} is published with other arguments", publication.0),
            );
        }
        let is_multi_node = match request.capability.access_mode {
            CsiAccessMode::MultiNodeReaderOnly
            | CsiAccessMode::MultiNodeSingleWriter
            | CsiAccessMode::MultiNodeMultiWriter => true,
            CsiAccessMode::SingleNodeWriter
            | CsiAccessMode::SingleNodeReaderOnly
            | CsiAccessMode::SingleNodeSingleWriter
            | CsiAccessMode::SingleNodeMultiWriter => false,
        };
        let is_on_another_node =
            |(handle, node): &VolumeOnNode| *handle == publication.0 && *node != publication.1;
        if !is_multi_node && self.published.keys().any(is_on_another_node) {
            return refuse(ErrorKind::FailedPrecondition, format!("{} is on another node", publication.0));
        }
        if !publication.0.starts_with("handle-") {
            self.unmanaged.insert(publication.0.clone());
        }
        let fields: Parameters = [("path".to_owned(), publication.0.clone())].into();
        self.published.insert(publication, request);
        Ok(ConnectionInfo { kind: "directory".to_owned(), version: 1, fields })
    }

    /// Expands a volume. `reported_size` replaces the size in the response.
    fn expand(
        &mut self,
        request: &ExpandVolume,
        reported_size: Option<u64>,
    ) -> Result<ExpandedVolume, StorageError> {
        let handle = request.handle.as_str();
        let is_published = self.published.keys().any(|(published, _)| published == handle);
        if self.expands_published_only && !is_published {
            self.pending_expansions.remove(handle);
            let message = format!("{handle} is published to no node");
            return Err(StorageError::with_known_effect(ErrorKind::Internal, message));
        }
        let volume = self.volumes.get(handle.strip_prefix("handle-").unwrap_or_default());
        let size = volume.map(|volume| volume.size).unwrap_or_default();
        let before = self.sizes.get(handle).copied().unwrap_or(size);
        let size = before.max(request.capacity.required.unwrap_or_default());
        // A reported size that is too small does not change the volume.
        let size = reported_size.filter(|reported_size| *reported_size > size).unwrap_or(size);
        self.sizes.insert(handle.to_owned(), size);
        self.pending_expansions.remove(handle);
        Ok(ExpandedVolume {
            capacity: reported_size.unwrap_or(size),
            node_expansion_required: self.node_expansion_required,
        })
    }

    fn unpublish(&mut self, handle: &VolumeHandle, node: Option<&NodeId>) {
        let is_retained = |publication: &VolumeOnNode| {
            publication.0 != handle.as_str() || node.is_some_and(|node| publication.1 != node.as_str())
        };
        self.published.retain(|publication, _| is_retained(publication));
        self.publish_requests.retain(|publication, _| is_retained(publication));
    }
}

/// A call in the form of [`ScriptedDriver::calls`].
fn format_call(verb: &str, call: &Call, handle: &VolumeHandle, node: &str, suffix: &str) -> String {
    format!("{verb} {handle} {node}{suffix}{}", format_secrets(&call.secrets))
}

/// The secrets of a call as ` with key=value` each, without the marker of
/// [`secret_values`](crate::secret_values). Secrets of scenarios are no secrets.
fn format_secrets(secrets: &Secrets) -> String {
    let shown = |value: &Secret| without_marker(value.expose()).to_owned();
    secrets.iter().map(|(key, value)| format!(" with {key}={}", shown(value))).collect()
}

/// The secrets of a call as the driver's errors quote them.
fn quote_secrets(secrets: &Secrets) -> String {
    secrets.iter().map(|(key, value)| format!(" with {key}={}", value.expose())).collect()
}

/// An expand or modify call in progress. The start of a second expand or modify call for the same volume is
/// recorded as a violation.
struct ChangeGuard {
    driver: ScriptedDriver,
    handle: String,
}

impl ChangeGuard {
    fn start(driver: &ScriptedDriver, handle: &VolumeHandle) -> Self {
        let mut array = driver.lock();
        if !array.changes_in_progress.insert(handle.to_string()) {
            array.violations.push(format!("{handle} is changed by two calls at once"));
        }
        Self { driver: driver.clone(), handle: handle.to_string() }
    }
}

impl Drop for ChangeGuard {
    fn drop(&mut self) {
        self.driver.lock().changes_in_progress.remove(&self.handle);
    }
}

/// The port's maximum duration of a call. The simulation does not enforce it.
const MAX_CALL_DURATION: Duration = Duration::from_secs(3600);
/// More calls than any simulation has at a time.
const MAX_CALLS: usize = 10_000;

/// The request without mount options, which users may change between two attempts.
fn without_mount_flags(mut request: PublishVolume) -> PublishVolume {
    if let AccessType::Filesystem { mount_flags, .. } = &mut request.capability.access_type {
        mount_flags.clear();
    }
    request
}

struct CrashingBackend {
    driver: ScriptedDriver,
    /// The node of the driver's storage; `None` for a central driver. Volumes of two nodes may have the same
    /// name and handle: the node is part of the array's key, and the topology distinguishes the volumes.
    node: Option<&'static str>,
    description: Description,
    abilities: BTreeSet<Ability>,
    creates_volumes: bool,
    /// The port, which has the operations of this process in flight.
    port: ArrayPort,
    effects: Arc<Effects>,
}

/// A call in progress, which counts as completed when the guard is dropped.
struct DriverCallGuard {
    driver: ScriptedDriver,
    _activity: ActivityGuard,
}

impl Drop for DriverCallGuard {
    fn drop(&mut self) {
        self.driver.lock().completed_calls += 1;
    }
}

impl CrashingBackend {
    /// The array's key of a volume: its name, or `node/name` if the driver is node-local.
    fn array_key(&self, name: &str) -> String {
        self.node.map_or_else(|| name.to_owned(), |node| format!("{node}/{name}"))
    }

    /// The array's key of the volume with this handle.
    fn volume_key(&self, handle: &VolumeHandle) -> String {
        self.array_key(handle.as_str().strip_prefix("handle-").unwrap_or_default())
    }

    /// The array's key of the snapshot with this handle.
    fn snapshot_key(&self, handle: &SnapshotHandle) -> String {
        self.array_key(snapshot_name(handle.as_str()))
    }

    /// The array's key of the snapshot that is the source of a volume; empty without one.
    fn source_snapshot_key(&self, request: &CreateVolume) -> String {
        match &request.source {
            Some(ContentSource::Snapshot(handle)) => self.snapshot_key(handle),
            Some(ContentSource::Volume(_)) | None => String::new(),
        }
    }

    /// The end of the text of a call: the node of a node-local driver, and the secrets.
    fn call_suffix(&self, secrets: &str) -> String {
        let node = self.node.map(|node| format!(" on {node}")).unwrap_or_default();
        format!("{node}{secrets}")
    }

    fn start_call(&self) -> DriverCallGuard {
        if self.effects.has_term_ended() {
            self.driver.lock().violations.push("a driver call begins after the end of the term".to_owned());
        }
        DriverCallGuard { driver: self.driver.clone(), _activity: self.effects.start_call() }
    }

    /// Runs a call through the port, as the backends of a real process do.
    fn run<'a, R: Send + 'static>(
        &'a self,
        call: Call,
        spec: CallSpec<R, R>,
        request: impl Future<Output = Result<R, StorageError>> + Send + 'a,
    ) -> BackendFuture<'a, R> {
        self.port.run(call, spec, |context| async move {
            // The errors of the driver quote the secrets of the call, which the port has to redact.
            let quoted = quote_secrets(&context.secrets);
            let quote =
                |error: StorageError| StorageError { message: format!("{}{quoted}", error.message), ..error };
            request.await.map_err(quote)
        })
    }

    async fn inject(&self, fault: Option<DriverFault>) -> Result<(bool, Option<u64>), StorageError> {
        match fault {
            None => Ok((false, None)),
            Some(DriverFault::Refuse(kind)) => Err(StorageError::with_known_effect(kind, "injected error")),
            Some(DriverFault::LostRequest) => {
                Err(StorageError::with_unknown_effect(ErrorKind::Unavailable, "the request was lost"))
            }
            Some(DriverFault::LostResponse) => Ok((true, None)),
            Some(DriverFault::Reverted | DriverFault::WrongSource) => Ok((false, None)),
            Some(DriverFault::Slow(time)) => {
                tokio::time::sleep(time).await;
                Ok((false, None))
            }
            Some(DriverFault::ConcurrentAction(action)) => {
                (self.driver.user_actions)(action).await;
                Ok((false, None))
            }
            Some(DriverFault::ConcurrentActionThen(action, then)) => {
                (self.driver.user_actions)(action).await;
                Box::pin(self.inject(Some(*then))).await
            }
            Some(DriverFault::StaleWatchesThen(then)) => {
                self.effects.block_watches();
                tokio::time::sleep(WATCH_EXPIRY).await;
                Box::pin(self.inject(Some(*then))).await
            }
            Some(DriverFault::WrongSize(bytes)) => Ok((false, Some(bytes))),
        }
    }
}

fn lost_response() -> StorageError {
    StorageError {
        kind: ErrorKind::DeadlineExceeded,
        message: "the response was lost".to_owned(),
        retry_after_ms: None,
        finality: Finality::Unknown,
    }
}

impl Backend for CrashingBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        &self.abilities
    }

    fn has_topology(&self) -> bool {
        !self.driver.lock().topology.keys.is_empty()
    }

    fn takes_node_identities(&self) -> bool {
        self.driver.lock().takes_node_identities
    }

    fn creates_volumes(&self) -> bool {
        self.creates_volumes
    }

    fn probe(&self, _: Call) -> BoxFuture<'_, Result<Readiness, StorageError>> {
        Box::pin(async { Ok(Readiness::Ready) })
    }

    fn create_volume(&self, call: Call, request: CreateVolume) -> BackendFuture<'_, CreatedVolume> {
        if !self.creates_volumes {
            // As in the crate `cofferdam-csi`: an earlier process may have sent the request.
            let message = "no CREATE_DELETE_VOLUME";
            let error = StorageError::with_unknown_effect(ErrorKind::Unimplemented, message);
            return Box::pin(std::future::ready(Err(error)));
        }
        let spec = CallSpec::create_volume(&request, |created, _| Ok(created));
        let secrets = format_secrets(&call.secrets);
        let keys: BTreeSet<String> = call.secrets.iter().map(|(key, _)| key.to_owned()).collect();
        self.run(call, spec, async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let topology: String = preferred_segments(&request)
                .into_iter()
                .map(|segments| format!(" {}", format_segments(segments)))
                .collect();
            let attributes = format_segments(&request.mutable_parameters);
            let attributes = if attributes.is_empty() { attributes } else { format!(" with {attributes}") };
            let tier = request.parameters.get("tier").filter(|tier| *tier != "fast");
            let tier = tier.map(|tier| format!(" tier={tier}")).unwrap_or_default();
            let source = match &request.source {
                None => String::new(),
                Some(ContentSource::Volume(handle)) => format!(" from {handle}"),
                Some(ContentSource::Snapshot(handle)) => format!(" from {handle}"),
            };
            let call = format!("create {}{source}{topology}{attributes}{tier}{secrets}", request.name);
            let key = self.array_key(&request.name);
            let (fault, pending) = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if request.topology.is_some() && array.topology.keys.is_empty() {
                    array.violations.push(format!("{} was requested with a topology", request.name));
                }
                let is_repeat =
                    array.pending_creates.get(&key).is_some_and(|pending| pending.contains(&request));
                let pending = array.add_pending(&key, &request);
                let failing = || Some(DriverFault::Refuse(ErrorKind::Internal));
                let is_failing = array.is_failing(&request);
                let lacks_key = array.required_secret_key.is_some_and(|key| !keys.contains(key));
                let unauthenticated = || Some(DriverFault::Refuse(ErrorKind::Unauthenticated));
                let fault = array.create_faults.pop_front();
                let fault = fault.or_else(|| lacks_key.then(unauthenticated).flatten());
                let fault = fault.or_else(|| is_failing.then(failing).flatten());
                // An error about the attempt does not reveal the result of an earlier one.
                let is_conclusive = fault.as_ref().is_some_and(|fault| fault.is_conclusive_refusal());
                if fault.as_ref().is_some_and(DriverFault::is_refusal) && (is_conclusive || !is_repeat) {
                    array.remove_pending(&key, &request);
                }
                (fault, pending)
            };
            if pending.len() > 1 {
                let journal = (self.driver.journal)().await;
                if let Some(missing) = pending.iter().find(|pending| !journal.contains(*pending)) {
                    let (parameters, name) = (format_segments(&missing.parameters), &missing.name);
                    let text = format!("the request of {name} with {parameters} is not in the journal");
                    self.driver.lock().violations.push(text);
                }
            }
            let (response_lost, size) = self.inject(fault).await?;
            // The array does not have the volumes of static PersistentVolumes.
            let source = source_volume(&request).filter(|handle| handle.as_str().starts_with("handle-"));
            let source = source.map(|handle| self.volume_key(handle));
            let snapshot_key = self.source_snapshot_key(&request);
            let response = match self.driver.missing_snapshot(&key, &snapshot_key, &request) {
                Some(error) => Err(error),
                None => self.driver.create(key, request, source.as_deref(), size),
            };
            self.effects.record(Effect::Call(call)).await;
            if response_lost { Err(lost_response()) } else { response }
        })
    }

    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, ()> {
        if !self.creates_volumes {
            let message = "no CREATE_DELETE_VOLUME";
            let error = StorageError::with_known_effect(ErrorKind::Unimplemented, message);
            return Box::pin(std::future::ready(Err(error)));
        }
        let secrets = format_secrets(&call.secrets);
        self.run(call, CallSpec::delete_volume(&handle), async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let call = format!("delete {handle}{}", self.call_suffix(&secrets));
            let key = self.volume_key(&handle);
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if let Some(clone) = array.clone_in_progress(&handle).map(str::to_owned) {
                    array.violations.push(format!("{handle} is deleted while {clone} is cloned from it"));
                }
                if array.published.keys().any(|(published, _)| published == handle.as_str()) {
                    array.violations.push(format!("{handle} is deleted while it is published"));
                }
                array.delete_faults.pop_front()
            };
            let (response_lost, _) = self.inject(fault).await?;
            {
                let mut array = self.driver.lock();
                array.volumes.remove(&key);
                array.pending_creates.remove(&key);
            }
            self.effects.record(Effect::Call(call)).await;
            if response_lost { Err(lost_response()) } else { Ok(()) }
        })
    }

    fn create_snapshot(&self, call: Call, request: CreateSnapshot) -> BackendFuture<'_, Snapshot> {
        let spec = CallSpec::create_snapshot(&request, |created, _| Ok(created));
        let secrets = format_secrets(&call.secrets);
        self.run(call, spec, async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let suffix = self.call_suffix(&secrets);
            let call = format!("snapshot {} of {}{suffix}", request.name, request.source);
            let key = self.array_key(&request.name);
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                let fault = array.snapshot_faults.pop_front();
                let is_refused = fault.as_ref().is_some_and(|fault| fault.is_conclusive_refusal());
                if is_refused {
                    array.pending_snapshots.remove(&key);
                } else {
                    array.pending_snapshots.insert(key.clone());
                }
                fault
            };
            let is_of_other_source = fault == Some(DriverFault::WrongSource);
            let (response_lost, size) = self.inject(fault).await?;
            let is_static = !request.source.as_str().starts_with("handle-");
            let source = (!is_static).then(|| self.volume_key(&request.source));
            let mut response = self.driver.create_snapshot(key, source.as_deref(), request);
            if let Ok(snapshot) = &mut response {
                snapshot.size = size.or(snapshot.size);
                if is_of_other_source {
                    snapshot.source = "another".into();
                }
            }
            self.effects.record(Effect::Call(call)).await;
            if response_lost { Err(lost_response()) } else { response }
        })
    }

    fn delete_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        let secrets = format_secrets(&call.secrets);
        self.run(call, CallSpec::delete_snapshot(&handle), async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let call = format!("delete {handle}{}", self.call_suffix(&secrets));
            let key = self.snapshot_key(&handle);
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if let Some(restored) = array.restore_in_progress(&handle).map(str::to_owned) {
                    array
                        .violations
                        .push(format!("{handle} is deleted while {restored} is restored from it"));
                }
                array.snapshot_delete_faults.pop_front()
            };
            let (response_lost, _) = self.inject(fault).await?;
            {
                let mut array = self.driver.lock();
                if array.snapshot(&key, &handle).is_some() {
                    array.snapshots.remove(&key);
                }
                array.pending_snapshots.remove(&key);
            }
            self.effects.record(Effect::Call(call)).await;
            if response_lost { Err(lost_response()) } else { Ok(()) }
        })
    }

    fn get_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, Snapshot> {
        self.run(call, CallSpec::get_snapshot(|found, _| Ok(found)), async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let array = self.driver.lock();
            // A static snapshot is one of a static volume.
            let is_static = !handle.as_str().starts_with("handle-");
            match array.snapshot(&self.snapshot_key(&handle), &handle) {
                Some(snapshot) => Ok(array.status_of(snapshot)),
                None if is_static => Ok(Snapshot {
                    handle: handle.clone(),
                    source: "static".into(),
                    size: Some(1 << 30),
                    created_at_ms: 0,
                    ready: true,
                    group: None,
                    owner: None,
                }),
                None => Err(StorageError::with_known_effect(ErrorKind::NotFound, "no such snapshot")),
            }
        })
    }

    /// Lists the snapshots of all volumes, at most two on a page.
    fn list_snapshots(
        &self,
        call: Call,
        _: Option<VolumeHandle>,
        request: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        self.run(call, CallSpec::list_snapshots(|page, _| Ok(page)), async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let fault = self.driver.lock().snapshot_list_faults.pop_front();
            let page = {
                let array = self.driver.lock();
                let after = request.starting_token.unwrap_or_default();
                let mut rest = array.snapshots.iter().filter(|(name, _)| **name > after).peekable();
                let entries: Vec<_> = rest.by_ref().take(2).collect();
                let next_token = entries.last().filter(|_| rest.peek().is_some());
                SnapshotPage {
                    next_token: next_token.map(|(name, _)| (*name).clone()),
                    snapshots: entries.iter().map(|(_, snapshot)| array.status_of(snapshot)).collect(),
                }
            };
            let (response_lost, _) = self.inject(fault).await?;
            if response_lost { Err(lost_response()) } else { Ok(page) }
        })
    }

    fn publish_volume(&self, call: Call, request: PublishVolume) -> BackendFuture<'_, ConnectionInfo> {
        let spec = CallSpec::publish_volume(&request, |connection_info, _| Ok(connection_info));
        let request = without_mount_flags(request);
        let publication = (request.handle.to_string(), request.node_id.to_string());
        let mode = if request.read_only { " read-only" } else { "" };
        let identities = request.node_identities.iter().map(|(kind, name)| format!(" {kind}={name}"));
        let suffix = format!("{mode}{}", identities.collect::<String>());
        let text = format_call("publish", &call, &request.handle, &publication.1, &suffix);
        self.run(call, spec, async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(text.clone());
                if array.publish_requests.get(&publication).is_some_and(|before| *before != request) {
                    array
                        .violations
                        .push(format!("{} was published with two sets of arguments", publication.0));
                }
                array.publish_requests.insert(publication.clone(), request.clone());
                let fault = array.publish_faults.pop_front();
                if fault.as_ref().is_some_and(DriverFault::is_refusal) {
                    array.publish_requests.remove(&publication);
                }
                fault
            };
            let is_reverted = fault == Some(DriverFault::Reverted);
            let (response_lost, _) = self.inject(fault).await?;
            let response = {
                let mut array = self.driver.lock();
                let response = array.publish(request);
                if response.is_err() {
                    array.publish_requests.remove(&publication);
                }
                if is_reverted {
                    array.published.remove(&publication);
                }
                response
            };
            self.effects.record(Effect::Call(text)).await;
            if response_lost { Err(lost_response()) } else { response }
        })
    }

    fn unpublish_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        node: Option<NodeId>,
    ) -> BackendFuture<'_, ()> {
        let node_text = node.as_ref().map_or("everywhere", NodeId::as_str);
        let text = format_call("unpublish", &call, &handle, node_text, "");
        let spec = CallSpec::unpublish_volume(&handle, node.as_ref());
        self.run(call, spec, async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(text.clone());
                array.unpublish_faults.pop_front()
            };
            let (response_lost, _) = self.inject(fault).await?;
            self.driver.lock().unpublish(&handle, node.as_ref());
            self.effects.record(Effect::Call(text)).await;
            if response_lost { Err(lost_response()) } else { Ok(()) }
        })
    }

    fn expand_volume(&self, call: Call, request: ExpandVolume) -> BackendFuture<'_, ExpandedVolume> {
        let size = Quantity::from_bytes(request.capacity.required.unwrap_or_default()).to_string();
        let on = self.node.map(|node| format!(" on {node}")).unwrap_or_default();
        let text = format_call("expand", &call, &request.handle, &size, &on);
        let spec = CallSpec::expand_volume(&request, |expanded, _| Ok(expanded));
        self.run(call, spec, async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let _changing = ChangeGuard::start(&self.driver, &request.handle);
            let handle = request.handle.to_string();
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(text.clone());
                if array.pending_expansions.get(&handle).is_some_and(|before| *before != request.capacity) {
                    array.violations.push(format!("{handle} was expanded with two sizes"));
                }
                array.pending_expansions.insert(handle.clone(), request.capacity);
                let fault = array.expand_faults.pop_front();
                if fault.as_ref().is_some_and(DriverFault::is_refusal) {
                    array.pending_expansions.remove(&handle);
                }
                fault
            };
            let (response_lost, size) = self.inject(fault).await?;
            let response = self.driver.lock().expand(&request, size);
            self.effects.record(Effect::Call(text)).await;
            if response_lost { Err(lost_response()) } else { response }
        })
    }

    fn modify_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        parameters: Parameters,
    ) -> BackendFuture<'_, ()> {
        let text = format_call("modify", &call, &handle, &format_segments(&parameters), "");
        let spec = CallSpec::modify_volume(&handle, &parameters);
        self.run(call, spec, async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let _changing = ChangeGuard::start(&self.driver, &handle);
            let handle = handle.to_string();
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(text.clone());
                if array.pending_modifications.get(&handle).is_some_and(|before| *before != parameters) {
                    array.violations.push(format!("{handle} was modified with two sets of arguments"));
                }
                array.pending_modifications.insert(handle.clone(), parameters);
                let fault = array.modify_faults.pop_front();
                if fault.as_ref().is_some_and(DriverFault::is_refusal) {
                    array.pending_modifications.remove(&handle);
                }
                fault
            };
            let (response_lost, _) = self.inject(fault).await?;
            self.driver.lock().pending_modifications.remove(&handle);
            self.effects.record(Effect::Call(text)).await;
            if response_lost { Err(lost_response()) } else { Ok(()) }
        })
    }

    fn list_volumes(&self, _: Call, request: PageRequest) -> BoxFuture<'_, Result<VolumePage, StorageError>> {
        Box::pin(async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let (listing, fault) = {
                let mut array = self.driver.lock();
                (array.listing.unwrap_or_default(), array.list_faults.pop_front())
            };
            let page = self.driver.list_page(listing, &request);
            let (response_lost, _) = self.inject(fault).await?;
            if response_lost { Err(lost_response()) } else { Ok(page) }
        })
    }

    fn get_capacity(&self, _: Call, query: CapacityQuery) -> BoxFuture<'_, Result<Capacity, StorageError>> {
        Box::pin(async move {
            self.effects.wait_if_crashed().await;
            let _activity = self.effects.start_call();
            let segments = query.topology.as_ref().map(format_segments).unwrap_or_default();
            let full = self.driver.lock().topology.full_segments.contains(&segments.as_str());
            let available = if full { 0 } else { 1 << 60 };
            Ok(Capacity { available, maximum_volume_size: None, minimum_volume_size: None })
        })
    }

    fn validate_volume(&self, _: Call, _: ValidateVolume) -> BoxFuture<'_, Result<Validation, StorageError>> {
        Box::pin(async { Ok(Validation::Confirmed) })
    }
}
