//! An array and its driver, scripted: what it holds outlives the processes that call it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_backend::{Backend, Call, unimplemented};
use cofferdam_controllers::rbac::NodeTopologySource;
use cofferdam_domain::{
    NodeId, Quantity, VolumeHandle, names,
    storage::{
        Ability, Capacity, CapacityQuery, ConnectionInfo, CreateVolume, CreatedVolume, CsiAccessMode,
        Description, ErrorKind, ExpandVolume, ExpandedVolume, Feature, Finality, PageRequest, Parameters,
        Placement, PublishVolume, Readiness, Segments, StorageError, ValidateVolume, Validation, VolumePage,
        VolumeStatus,
    },
};
use futures::future::BoxFuture;

use crate::{
    effects::{ActivityGuard, Effect, Effects},
    simulation::UserAction,
};

/// What goes wrong with one call.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverFault {
    /// Nothing happens, and the driver says so.
    Refuse(ErrorKind),
    /// Nothing happens, and nobody knows.
    LostRequest,
    /// It happens, and nobody hears of it.
    LostResponse,
    /// It takes this long.
    Slow(Duration),
    /// A user does this while the driver is at work; then all is well.
    ConcurrentAction(UserAction),
    /// A user does this while the driver is at work; then this goes wrong.
    ConcurrentActionThen(UserAction, Box<DriverFault>),
    /// The process' watches end and no other one begins, as with a connection that hangs; then this goes
    /// wrong.
    StaleWatchesThen(Box<DriverFault>),
    /// The volume has this many bytes, whatever was asked for.
    WrongSize(u64),
    /// It happens, and is undone by whoever works on the array itself.
    Reverted,
}

impl DriverFault {
    /// Whether the driver says that nothing happens.
    fn is_refusal(&self) -> bool {
        match self {
            Self::Refuse(_) => true,
            Self::ConcurrentActionThen(_, then) | Self::StaleWatchesThen(then) => then.is_refusal(),
            Self::LostRequest
            | Self::LostResponse
            | Self::Slow(_)
            | Self::ConcurrentAction(_)
            | Self::WrongSize(_)
            | Self::Reverted => false,
        }
    }
}

/// By then every watch of a process has ended by itself, and none that began after it is given up as dead
/// yet.
const WATCH_EXPIRY: Duration = Duration::from_secs(300);

/// A volume of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayVolume {
    /// The request that made it.
    pub request: CreateVolume,
    /// Its size in bytes.
    pub size: u64,
    /// When it was created or changed last, in milliseconds since the Unix epoch.
    pub changed_at_ms: u64,
    /// Nodes that it is published to.
    pub published_nodes: Vec<NodeId>,
}

/// How the driver lists its volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListingBehavior {
    /// With the owners of volumes.
    pub owners: bool,
    /// With the times of their last changes.
    pub change_times: bool,
    /// At most so many a page, whatever is asked for; 0 for as many as are asked for.
    pub page_size: usize,
    /// After the last page comes another one, for ever.
    pub endless: bool,
    /// With the nodes that volumes are published to.
    pub published_nodes: bool,
}

/// What a scenario wants of the driver's publishing.
#[derive(Clone, Debug, Default)]
pub struct PublishingBehavior {
    /// The driver has none: its volumes are reachable from everywhere.
    pub unsupported: bool,
    /// What goes wrong with its publish calls, one each.
    pub publish_faults: Vec<DriverFault>,
    /// What goes wrong with its unpublish calls, one each.
    pub unpublish_faults: Vec<DriverFault>,
}

/// What a scenario wants of the driver's growing and modifying.
#[derive(Clone, Debug, Default)]
pub struct ResizingBehavior {
    /// The driver can do neither.
    pub unsupported: bool,
    /// The node has a part in growing.
    pub node_expansion_required: bool,
    /// What goes wrong with its expand calls, one each.
    pub expand_faults: Vec<DriverFault>,
    /// What goes wrong with its modify calls, one each.
    pub modify_faults: Vec<DriverFault>,
}

/// What a scenario wants of the places of the driver's volumes.
#[derive(Clone, Copy, Debug, Default)]
pub struct TopologyBehavior {
    /// Topology keys; none where volumes are reachable from everywhere.
    pub keys: &'static [&'static str],
    /// Places without room, such as `zone=a`. The driver looks no further than at the place that is
    /// preferred.
    pub full_segments: &'static [&'static str],
    /// Whether the driver tells how much room there is.
    pub reports_capacity: bool,
    /// Whether the driver does not tell its keys, as CSI drivers cannot: they stand in CSINodes.
    pub keys_only_in_csi_node: bool,
}

/// A volume and a node.
type VolumeOnNode = (String, String);

#[derive(Default)]
struct Array {
    volumes: BTreeMap<String, ArrayVolume>,
    create_faults: VecDeque<DriverFault>,
    delete_faults: VecDeque<DriverFault>,
    topology: TopologyBehavior,
    supports_publish: bool,
    publish_faults: VecDeque<DriverFault>,
    unpublish_faults: VecDeque<DriverFault>,
    published: BTreeMap<VolumeOnNode, PublishVolume>,
    /// Publications that may still take effect, and those that have.
    publish_requests: BTreeMap<VolumeOnNode, PublishVolume>,
    /// Volumes that no process has created and that were published once: they are listed, too.
    unmanaged: BTreeSet<String>,
    supports_resize: bool,
    /// The node has a part in growing.
    node_expansion_required: bool,
    expand_faults: VecDeque<DriverFault>,
    modify_faults: VecDeque<DriverFault>,
    /// Sizes of volumes that have grown, by their handles.
    sizes: BTreeMap<String, u64>,
    /// Growths and modifications that may still take effect.
    pending_expansions: BTreeMap<String, ExpandVolume>,
    pending_modifications: BTreeMap<String, Parameters>,
    /// Volumes that a call changes just now.
    changes_in_progress: BTreeSet<String>,
    listing: Option<ListingBehavior>,
    list_faults: VecDeque<DriverFault>,
    calls: Vec<String>,
    completed_calls: usize,
    violations: Vec<String>,
    /// Requests that may still take effect: whoever asks again asks the same.
    pending_creates: BTreeMap<String, CreateVolume>,
}

/// The simulation's wall clock.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

/// What a user does, handed to whoever can do it; done when every process has been told of it.
pub(crate) type UserActionHandler = Arc<dyn Fn(UserAction) -> BoxFuture<'static, ()> + Send + Sync>;

/// The array, shared by all processes of a simulation.
#[derive(Clone)]
pub struct ScriptedDriver {
    array: Arc<Mutex<Array>>,
    user_actions: UserActionHandler,
    clock: Clock,
}

impl ScriptedDriver {
    pub(crate) fn new(
        create_faults: Vec<DriverFault>,
        delete_faults: Vec<DriverFault>,
        user_actions: UserActionHandler,
        clock: Clock,
    ) -> Self {
        let array = Array {
            create_faults: create_faults.into(),
            delete_faults: delete_faults.into(),
            supports_publish: true,
            supports_resize: true,
            ..Array::default()
        };
        Self { array: Arc::new(Mutex::new(array)), user_actions, clock }
    }

    /// Makes the driver list its volumes; the calls meet these faults, one each, in this order.
    pub fn set_listing(&self, listing: ListingBehavior, faults: Vec<DriverFault>) {
        let mut array = self.lock();
        array.listing = Some(listing);
        array.list_faults = faults.into();
    }

    /// Says what the driver does when it publishes.
    pub fn set_publishing(&self, publishing: PublishingBehavior) {
        let mut array = self.lock();
        array.supports_publish = !publishing.unsupported;
        array.publish_faults = publishing.publish_faults.into();
        array.unpublish_faults = publishing.unpublish_faults.into();
    }

    /// Says what the driver does when it grows and modifies volumes.
    pub fn set_resizing(&self, resizing: ResizingBehavior) {
        let mut array = self.lock();
        (array.supports_resize, array.node_expansion_required) =
            (!resizing.unsupported, resizing.node_expansion_required);
        array.expand_faults = resizing.expand_faults.into();
        array.modify_faults = resizing.modify_faults.into();
    }

    /// Says where the driver's volumes can be.
    pub fn set_topology(&self, topology: TopologyBehavior) {
        self.lock().topology = topology;
    }

    /// How a node's driver says where the node is.
    pub(crate) fn topology_source(&self) -> NodeTopologySource {
        let places = self.lock().topology;
        match places.keys {
            _ if places.keys_only_in_csi_node => NodeTopologySource::CsiNode,
            [names::NODE_TOPOLOGY_KEY] => NodeTopologySource::Name,
            _ => NodeTopologySource::Labels,
        }
    }

    /// Handles and nodes of what is published.
    pub fn published(&self) -> Vec<(String, String)> {
        self.lock().published.keys().cloned().collect()
    }

    /// Puts a volume into the array, or another in its place, that no process has asked for.
    pub fn insert(&self, volume: ArrayVolume) {
        self.lock().volumes.insert(volume.request.name.clone(), volume);
    }

    /// Takes a volume out of the array, as somebody who works on the array itself.
    pub fn remove(&self, name: &str) {
        self.lock().volumes.remove(name);
    }

    /// Ends what goes wrong with deletions.
    pub fn clear_delete_faults(&self) {
        self.lock().delete_faults.clear();
    }

    /// Volumes by name.
    pub fn volumes(&self) -> BTreeMap<String, ArrayVolume> {
        self.lock().volumes.clone()
    }

    /// Every call that reached the driver.
    pub fn calls(&self) -> Vec<String> {
        self.lock().calls.clone()
    }

    /// How many calls have come to an end, listings included.
    pub(crate) fn completed_calls(&self) -> usize {
        self.lock().completed_calls
    }

    /// Breaches of the contract: the same name with other arguments before the last answer was final.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// The driver as one process sees it.
    pub(crate) fn for_process(
        &self,
        name: &str,
        node: Option<&'static str>,
        effects: Arc<Effects>,
    ) -> Arc<dyn Backend> {
        let (listing, publishes, resizes, places) = {
            let array = self.lock();
            (array.listing, array.supports_publish, array.supports_resize, array.topology)
        };
        let keys = if places.keys_only_in_csi_node { &[] } else { places.keys };
        let description = Description {
            name: name.into(),
            version: "1".to_owned(),
            topology_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            // Nor can they tell this.
            placement: match node {
                Some(_) if !places.keys_only_in_csi_node => Placement::Node,
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
            listing.map(|_| Ability::Listing),
            (publishes && node.is_none()).then_some(Ability::Publishing),
            resizes.then_some(Ability::Expansion),
            resizes.then_some(Ability::Modification),
            places.reports_capacity.then_some(Ability::Capacity),
        ];
        let abilities = abilities.into_iter().flatten().collect();
        Arc::new(CrashingBackend { driver: self.clone(), node, description, abilities, effects })
    }

    fn lock(&self) -> MutexGuard<'_, Array> {
        self.array.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn create(
        &self,
        name: String,
        request: CreateVolume,
        size: Option<u64>,
    ) -> Result<CreatedVolume, StorageError> {
        let mut array = self.lock();
        let size = size.or(request.capacity.required).unwrap_or_default();
        if let Some(there) = array.volumes.get(&name)
            && there.request != request
        {
            let message = format!("{name} was asked for with other arguments");
            array.violations.push(message.clone());
            return Err(StorageError::final_outcome(ErrorKind::AlreadyExists, message));
        }
        let segments = preferred_segments(&request).first().copied().map(format_segments);
        if segments.is_some_and(|segments| array.topology.full_segments.contains(&segments.as_str())) {
            array.pending_creates.remove(&name);
            return Err(StorageError::final_outcome(ErrorKind::ResourceExhausted, "there is no room"));
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
            // Every page ends elsewhere than the one before, as a page must.
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

/// The places that a request prefers, in their order.
fn preferred_segments(request: &CreateVolume) -> Vec<&Segments> {
    request.topology.iter().flat_map(|topology| &topology.preferred).collect()
}

/// A place as scenarios show it.
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

/// A volume that no process has created.
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
    /// The node gets the volume, or the reason why not.
    fn publish(&mut self, request: PublishVolume) -> Result<ConnectionInfo, StorageError> {
        let publication = (request.handle.to_string(), request.node_id.to_string());
        let refuse = |kind, message| Err(StorageError::final_outcome(kind, message));
        if self.published.get(&publication).is_some_and(|there| *there != request) {
            return refuse(
                ErrorKind::AlreadyExists,
                format!("{} is published in another way", publication.0),
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

    /// The volume has at least this size, or exactly that one.
    fn expand(&mut self, request: &ExpandVolume, reported_size: Option<u64>) -> ExpandedVolume {
        let handle = request.handle.as_str();
        let volume = self.volumes.get(handle.strip_prefix("handle-").unwrap_or_default());
        let size = volume.map(|volume| volume.size).unwrap_or_default();
        let before = self.sizes.get(handle).copied().unwrap_or(size);
        let size = before.max(request.capacity.required.unwrap_or_default());
        // A wrong answer says nothing of the volume.
        let size = reported_size.filter(|reported_size| *reported_size > size).unwrap_or(size);
        self.sizes.insert(handle.to_owned(), size);
        self.pending_expansions.remove(handle);
        ExpandedVolume {
            capacity: reported_size.unwrap_or(size),
            node_expansion_required: self.node_expansion_required,
        }
    }

    fn unpublish(&mut self, handle: &VolumeHandle, node: Option<&NodeId>) {
        let is_kept = |place: &VolumeOnNode| {
            place.0 != handle.as_str() || node.is_some_and(|node| place.1 != node.as_str())
        };
        self.published.retain(|place, _| is_kept(place));
        self.publish_requests.retain(|place, _| is_kept(place));
    }
}

/// How a call of publishing shows.
fn format_call(verb: &str, call: &Call, handle: &VolumeHandle, node: &str, suffix: &str) -> String {
    let secrets: String = call.secrets.iter().map(|(name, _)| format!(" with {name}")).collect();
    format!("{verb} {handle} {node}{suffix}{secrets}")
}

/// A call that changes a volume: no other may.
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

struct CrashingBackend {
    driver: ScriptedDriver,
    /// The node that its storage is in. Names and handles are the same on every node: only the place tells
    /// two volumes apart.
    node: Option<&'static str>,
    description: Description,
    abilities: BTreeSet<Ability>,
    effects: Arc<Effects>,
}

/// A call that has not ended yet, whatever its end will be.
struct DriverCallGuard {
    driver: ScriptedDriver,
    _busy: ActivityGuard,
}

impl Drop for DriverCallGuard {
    fn drop(&mut self) {
        self.driver.lock().completed_calls += 1;
    }
}

impl CrashingBackend {
    /// How the array calls a volume.
    fn array_key(&self, name: &str) -> String {
        self.node.map_or_else(|| name.to_owned(), |node| format!("{node}/{name}"))
    }

    fn start_call(&self) -> DriverCallGuard {
        DriverCallGuard { driver: self.driver.clone(), _busy: self.effects.start_call() }
    }

    async fn inject(&self, fault: Option<DriverFault>) -> Result<(bool, Option<u64>), StorageError> {
        match fault {
            None => Ok((false, None)),
            Some(DriverFault::Refuse(kind)) => Err(StorageError::final_outcome(kind, "the array refuses")),
            Some(DriverFault::LostRequest) => {
                Err(StorageError::unknown_outcome(ErrorKind::Unavailable, "the request was lost"))
            }
            Some(DriverFault::LostResponse) => Ok((true, None)),
            Some(DriverFault::Reverted) => Ok((false, None)),
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
        message: "the answer was lost".to_owned(),
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

    fn probe(&self, _: Call) -> BoxFuture<'_, Result<Readiness, StorageError>> {
        Box::pin(async { Ok(Readiness::Ready) })
    }

    fn create_volume(
        &self,
        _: Call,
        request: CreateVolume,
    ) -> BoxFuture<'_, Result<CreatedVolume, StorageError>> {
        if let Some(source) = &request.source {
            return unimplemented(source.required_ability());
        }
        Box::pin(async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let topology: String = preferred_segments(&request)
                .into_iter()
                .map(|place| format!(" {}", format_segments(place)))
                .collect();
            let attributes = format_segments(&request.mutable_parameters);
            let attributes = if attributes.is_empty() { attributes } else { format!(" with {attributes}") };
            let call = format!("create {}{topology}{attributes}", request.name);
            let key = self.array_key(&request.name);
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if request.topology.is_some() && array.topology.keys.is_empty() {
                    array.violations.push(format!("{} was asked for at a place", request.name));
                }
                if array.pending_creates.get(&key).is_some_and(|before| *before != request) {
                    array.violations.push(format!("{key} was asked for in two ways"));
                }
                array.pending_creates.insert(key.clone(), request.clone());
                let fault = array.create_faults.pop_front();
                if fault.as_ref().is_some_and(DriverFault::is_refusal) {
                    array.pending_creates.remove(&key);
                }
                fault
            };
            let (answer_lost, size) = self.inject(fault).await?;
            let answer = self.driver.create(key, request, size);
            self.effects.record(Effect::Call(call)).await;
            if answer_lost { Err(lost_response()) } else { answer }
        })
    }

    fn delete_volume(&self, _: Call, handle: VolumeHandle) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let call = match self.node {
                None => format!("delete {handle}"),
                Some(node) => format!("delete {handle} on {node}"),
            };
            let key = self.array_key(handle.as_str().strip_prefix("handle-").unwrap_or_default());
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if array.published.keys().any(|(published, _)| published == handle.as_str()) {
                    array.violations.push(format!("{handle} is deleted while it is published"));
                }
                array.delete_faults.pop_front()
            };
            let (answer_lost, _) = self.inject(fault).await?;
            {
                let mut array = self.driver.lock();
                array.volumes.remove(&key);
                array.pending_creates.remove(&key);
            }
            self.effects.record(Effect::Call(call)).await;
            if answer_lost { Err(lost_response()) } else { Ok(()) }
        })
    }

    fn publish_volume(
        &self,
        call: Call,
        request: PublishVolume,
    ) -> BoxFuture<'_, Result<ConnectionInfo, StorageError>> {
        Box::pin(async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let publication = (request.handle.to_string(), request.node_id.to_string());
            let mode = if request.read_only { " read-only" } else { "" };
            let call = format_call("publish", &call, &request.handle, &publication.1, mode);
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if array.publish_requests.get(&publication).is_some_and(|before| *before != request) {
                    array.violations.push(format!("{} was published in two ways", publication.0));
                }
                array.publish_requests.insert(publication.clone(), request.clone());
                let fault = array.publish_faults.pop_front();
                if fault.as_ref().is_some_and(DriverFault::is_refusal) {
                    array.publish_requests.remove(&publication);
                }
                fault
            };
            let is_reverted = fault == Some(DriverFault::Reverted);
            let (answer_lost, _) = self.inject(fault).await?;
            let answer = {
                let mut array = self.driver.lock();
                let answer = array.publish(request);
                if answer.is_err() {
                    array.publish_requests.remove(&publication);
                }
                if is_reverted {
                    array.published.remove(&publication);
                }
                answer
            };
            self.effects.record(Effect::Call(call)).await;
            if answer_lost { Err(lost_response()) } else { answer }
        })
    }

    fn unpublish_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        node: Option<NodeId>,
    ) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let node_text = node.as_ref().map_or("everywhere", NodeId::as_str);
            let call = format_call("unpublish", &call, &handle, node_text, "");
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                array.unpublish_faults.pop_front()
            };
            let (answer_lost, _) = self.inject(fault).await?;
            self.driver.lock().unpublish(&handle, node.as_ref());
            self.effects.record(Effect::Call(call)).await;
            if answer_lost { Err(lost_response()) } else { Ok(()) }
        })
    }

    fn expand_volume(
        &self,
        call: Call,
        request: ExpandVolume,
    ) -> BoxFuture<'_, Result<ExpandedVolume, StorageError>> {
        Box::pin(async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let _changing = ChangeGuard::start(&self.driver, &request.handle);
            let handle = request.handle.to_string();
            let size = Quantity::from_bytes(request.capacity.required.unwrap_or_default()).to_string();
            let on = self.node.map(|node| format!(" on {node}")).unwrap_or_default();
            let call = format_call("expand", &call, &request.handle, &size, &on);
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if array.pending_expansions.get(&handle).is_some_and(|before| *before != request) {
                    array.violations.push(format!("{handle} was grown in two ways"));
                }
                array.pending_expansions.insert(handle.clone(), request.clone());
                let fault = array.expand_faults.pop_front();
                if fault.as_ref().is_some_and(DriverFault::is_refusal) {
                    array.pending_expansions.remove(&handle);
                }
                fault
            };
            let (answer_lost, size) = self.inject(fault).await?;
            let answer = self.driver.lock().expand(&request, size);
            self.effects.record(Effect::Call(call)).await;
            if answer_lost { Err(lost_response()) } else { Ok(answer) }
        })
    }

    fn modify_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        parameters: Parameters,
    ) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            self.effects.wait_if_crashed().await;
            let _call = self.start_call();
            let _changing = ChangeGuard::start(&self.driver, &handle);
            let call = format_call("modify", &call, &handle, &format_segments(&parameters), "");
            let handle = handle.to_string();
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if array.pending_modifications.get(&handle).is_some_and(|before| *before != parameters) {
                    array.violations.push(format!("{handle} was modified in two ways"));
                }
                array.pending_modifications.insert(handle.clone(), parameters);
                let fault = array.modify_faults.pop_front();
                if fault.as_ref().is_some_and(DriverFault::is_refusal) {
                    array.pending_modifications.remove(&handle);
                }
                fault
            };
            let (answer_lost, _) = self.inject(fault).await?;
            self.driver.lock().pending_modifications.remove(&handle);
            self.effects.record(Effect::Call(call)).await;
            if answer_lost { Err(lost_response()) } else { Ok(()) }
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
            let (answer_lost, _) = self.inject(fault).await?;
            if answer_lost { Err(lost_response()) } else { Ok(page) }
        })
    }

    fn get_capacity(&self, _: Call, query: CapacityQuery) -> BoxFuture<'_, Result<Capacity, StorageError>> {
        Box::pin(async move {
            self.effects.wait_if_crashed().await;
            let _busy = self.effects.start_call();
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
