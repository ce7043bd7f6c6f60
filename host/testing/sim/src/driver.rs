//! An array and its driver, scripted: what it holds outlives the processes that call it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_backend::{Backend, Call};
use cofferdam_controllers::rbac::Whereabouts;
use cofferdam_domain::{
    NodeId, Quantity, VolumeHandle, names,
    storage::{
        Ability, AttachmentRecord, CapabilityMode, Capacity, CapacityQuery, CreateVolume, CreatedVolume,
        Description, ErrorKind, ExpandVolume, ExpandedVolume, Feature, Finality, PageRequest, Parameters,
        Placement, PublishVolume, Readiness, Segments, StorageError, ValidateVolume, Validation, VolumePage,
        VolumeStatus,
    },
};
use futures::future::BoxFuture;

use crate::{
    effects::{Busy, Effect, Effects},
    simulation::UserAction,
};

/// What goes wrong with one call.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Nothing happens, and the driver says so.
    Refuse(ErrorKind),
    /// Nothing happens, and nobody knows.
    LostRequest,
    /// It happens, and nobody hears of it.
    LostAnswer,
    /// It takes this long.
    Slow(Duration),
    /// A user does this while the driver is at work; then all is well.
    Meanwhile(UserAction),
    /// A user does this while the driver is at work; then this goes wrong.
    MeanwhileThen(UserAction, Box<Fault>),
    /// The process' watches end and no other one begins, as with a connection that hangs; then this goes wrong.
    Unseen(Box<Fault>),
    /// The volume has this many bytes, whatever was asked for.
    Size(u64),
    /// It happens, and is undone by whoever works on the array itself.
    Undone,
}

impl Fault {
    /// Whether the driver says that nothing happens.
    fn refuses(&self) -> bool {
        match self {
            Self::Refuse(_) => true,
            Self::MeanwhileThen(_, then) | Self::Unseen(then) => then.refuses(),
            Self::LostRequest
            | Self::LostAnswer
            | Self::Slow(_)
            | Self::Meanwhile(_)
            | Self::Size(_)
            | Self::Undone => false,
        }
    }
}

/// By then every watch of a process has ended by itself, and none that began after it is given up as dead yet.
const DEAF_AFTER: Duration = Duration::from_secs(300);

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
    pub published: Vec<NodeId>,
}

/// How the driver lists its volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// With the owners of volumes.
    pub owners: bool,
    /// With the times of their last changes.
    pub times: bool,
    /// At most so many a page, whatever is asked for; 0 for as many as are asked for.
    pub page: usize,
    /// After the last page comes another one, for ever.
    pub endless: bool,
    /// With the nodes that volumes are published to.
    pub nodes: bool,
}

/// What a scenario wants of the driver's publishing.
#[derive(Clone, Debug, Default)]
pub struct Publishing {
    /// The driver has none: its volumes are reachable from everywhere.
    pub none: bool,
    /// What goes wrong with its publish calls, one each.
    pub faults: Vec<Fault>,
    /// What goes wrong with its unpublish calls, one each.
    pub undo_faults: Vec<Fault>,
}

/// What a scenario wants of the driver's growing and modifying.
#[derive(Clone, Debug, Default)]
pub struct Resizing {
    /// The driver can do neither.
    pub none: bool,
    /// The node has a part in growing.
    pub on_node: bool,
    /// What goes wrong with its expand calls, one each.
    pub faults: Vec<Fault>,
    /// What goes wrong with its modify calls, one each.
    pub modify_faults: Vec<Fault>,
}

/// What a scenario wants of the places of the driver's volumes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    /// Topology keys; none where volumes are reachable from everywhere.
    pub keys: &'static [&'static str],
    /// Places without room, such as `zone=a`. The driver looks no further than at the place that is preferred.
    pub full: &'static [&'static str],
    /// Whether the driver tells how much room there is.
    pub tells: bool,
    /// Whether the driver does not tell its keys, as CSI drivers cannot: they stand in CSINodes.
    pub hidden: bool,
}

/// A volume and a node.
type Place = (String, String);

#[derive(Default)]
struct Array {
    volumes: BTreeMap<String, ArrayVolume>,
    create_faults: VecDeque<Fault>,
    delete_faults: VecDeque<Fault>,
    places: Places,
    publishes: bool,
    publish_faults: VecDeque<Fault>,
    unpublish_faults: VecDeque<Fault>,
    published: BTreeMap<Place, PublishVolume>,
    /// Publications that may still take effect, and those that have.
    wanted: BTreeMap<Place, PublishVolume>,
    /// Volumes that no process has created and that were published once: they are listed, too.
    strangers: BTreeSet<String>,
    resizes: bool,
    /// The node has a part in growing.
    on_node: bool,
    expand_faults: VecDeque<Fault>,
    modify_faults: VecDeque<Fault>,
    /// Sizes of volumes that have grown, by their handles.
    sizes: BTreeMap<String, u64>,
    /// Growths and modifications that may still take effect.
    growing: BTreeMap<String, ExpandVolume>,
    modifying: BTreeMap<String, Parameters>,
    /// Volumes that a call changes just now.
    changing: BTreeSet<String>,
    listing: Option<Listing>,
    list_faults: VecDeque<Fault>,
    calls: Vec<String>,
    answered: usize,
    violations: Vec<String>,
    /// Requests that may still take effect: whoever asks again asks the same.
    asked: BTreeMap<String, CreateVolume>,
}

/// The simulation's wall clock.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

/// What a user does, handed to whoever can do it; done when every process has been told of it.
pub(crate) type Users = Arc<dyn Fn(UserAction) -> BoxFuture<'static, ()> + Send + Sync>;

/// The array, shared by all processes of a simulation.
#[derive(Clone)]
pub struct ScriptedDriver {
    array: Arc<Mutex<Array>>,
    users: Users,
    clock: Clock,
}

impl ScriptedDriver {
    pub(crate) fn new(
        create_faults: Vec<Fault>,
        delete_faults: Vec<Fault>,
        users: Users,
        clock: Clock,
    ) -> Self {
        let array = Array {
            create_faults: create_faults.into(),
            delete_faults: delete_faults.into(),
            publishes: true,
            resizes: true,
            ..Array::default()
        };
        Self { array: Arc::new(Mutex::new(array)), users, clock }
    }

    /// Makes the driver list its volumes; the calls meet these faults, one each, in this order.
    pub fn lists(&self, listing: Listing, faults: Vec<Fault>) {
        let mut array = self.lock();
        array.listing = Some(listing);
        array.list_faults = faults.into();
    }

    /// Says what the driver does when it publishes.
    pub fn publishes(&self, publishing: Publishing) {
        let mut array = self.lock();
        array.publishes = !publishing.none;
        array.publish_faults = publishing.faults.into();
        array.unpublish_faults = publishing.undo_faults.into();
    }

    /// Says what the driver does when it grows and modifies volumes.
    pub fn resizes(&self, resizing: Resizing) {
        let mut array = self.lock();
        (array.resizes, array.on_node) = (!resizing.none, resizing.on_node);
        array.expand_faults = resizing.faults.into();
        array.modify_faults = resizing.modify_faults.into();
    }

    /// Says where the driver's volumes can be.
    pub fn places(&self, places: Places) {
        self.lock().places = places;
    }

    /// How a node's driver says where the node is.
    pub(crate) fn whereabouts(&self) -> Whereabouts {
        let places = self.lock().places;
        match places.keys {
            _ if places.hidden => Whereabouts::CsiNode,
            [names::NODE_TOPOLOGY_KEY] => Whereabouts::Name,
            _ => Whereabouts::Labels,
        }
    }

    /// Handles and nodes of what is published.
    pub fn published(&self) -> Vec<(String, String)> {
        self.lock().published.keys().cloned().collect()
    }

    /// Puts a volume into the array, or another in its place, that no process has asked for.
    pub fn plant(&self, volume: ArrayVolume) {
        self.lock().volumes.insert(volume.request.name.clone(), volume);
    }

    /// Takes a volume out of the array, as somebody who works on the array itself.
    pub fn remove(&self, name: &str) {
        self.lock().volumes.remove(name);
    }

    /// Ends what goes wrong with deletions.
    pub fn answers_deletes(&self) {
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
    pub(crate) fn answered(&self) -> usize {
        self.lock().answered
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
            (array.listing, array.publishes, array.resizes, array.places)
        };
        let keys = if places.hidden { &[] } else { places.keys };
        let description = Description {
            name: name.into(),
            version: "1".to_owned(),
            topology_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            // Nor can they tell this.
            placement: match node {
                Some(_) if !places.hidden => Placement::Node,
                Some(_) | None => Placement::Central,
            },
            volumes_per_node: None,
            features: [
                Some(Feature::PublishReadonly),
                listing.filter(|listing| listing.nodes).map(|_| Feature::PublishedNodes),
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
            places.tells.then_some(Ability::Capacity),
        ];
        let abilities = abilities.into_iter().flatten().collect();
        Arc::new(MortalDriver { driver: self.clone(), node, description, abilities, effects })
    }

    fn lock(&self) -> MutexGuard<'_, Array> {
        self.array.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(
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
            return Err(StorageError::last(ErrorKind::AlreadyExists, message));
        }
        let place = preferred(&request).first().copied().map(text_of);
        if place.is_some_and(|place| array.places.full.contains(&place.as_str())) {
            array.asked.remove(&name);
            return Err(StorageError::last(ErrorKind::ResourceExhausted, "there is no room"));
        }
        let now = u64::try_from((self.clock)().as_millisecond()).unwrap_or_default();
        let volume = array.volumes.entry(name).or_insert_with(|| ArrayVolume {
            request,
            size,
            changed_at_ms: now,
            published: Vec::new(),
        });
        Ok(created(volume))
    }

    fn page(&self, listing: Listing, request: &PageRequest) -> VolumePage {
        let array = self.lock();
        let after = request.after.as_deref().unwrap_or_default();
        let asked = request.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let most = if listing.page == 0 { asked } else { asked.min(listing.page) };
        let own = array.volumes.iter().map(|(name, volume)| (name.clone(), status(volume, listing)));
        let strange = array.strangers.iter().map(|handle| (handle.clone(), stranger(handle)));
        let mut all: BTreeMap<String, VolumeStatus> = own.chain(strange).collect();
        for ((handle, node), _) in array.published.iter().filter(|_| listing.nodes) {
            let of = |status: &&mut VolumeStatus| status.volume.handle.as_str() == handle;
            if let Some(status) = all.values_mut().find(of) {
                status.published_nodes.push(node.as_str().into());
            }
        }
        let mut rest = all.into_iter().filter(|(name, _)| name.as_str() > after).peekable();
        let shown: Vec<_> = rest.by_ref().take(most).collect();
        let more = rest.peek().is_some();
        let next = shown.last().filter(|_| more).map(|(name, _)| name.clone());
        VolumePage {
            volumes: shown.into_iter().map(|(_, status)| status).collect(),
            // Every page ends elsewhere than the one before, as a page must.
            next: if listing.endless { next.or_else(|| Some(format!("{after}~"))) } else { next },
        }
    }
}

fn created(volume: &ArrayVolume) -> CreatedVolume {
    CreatedVolume {
        handle: VolumeHandle::from(format!("handle-{}", volume.request.name)),
        capacity: Some(volume.size),
        context: BTreeMap::new(),
        topology: preferred(&volume.request).into_iter().take(1).cloned().collect(),
        attachment: None,
    }
}

/// The places that a request prefers, in their order.
fn preferred(request: &CreateVolume) -> Vec<&Segments> {
    request.topology.iter().flat_map(|topology| &topology.preferred).collect()
}

/// A place as scenarios show it.
fn text_of(place: &Segments) -> String {
    place.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

fn status(volume: &ArrayVolume, listing: Listing) -> VolumeStatus {
    VolumeStatus {
        volume: created(volume),
        owner: volume.request.owner.clone().filter(|_| listing.owners),
        published_nodes: volume.published.clone(),
        condition: None,
        changed_at_ms: listing.times.then_some(volume.changed_at_ms),
    }
}

/// A volume that no process has created.
fn stranger(handle: &str) -> VolumeStatus {
    VolumeStatus {
        volume: CreatedVolume {
            handle: handle.into(),
            capacity: None,
            context: BTreeMap::new(),
            topology: Vec::new(),
            attachment: None,
        },
        owner: None,
        published_nodes: Vec::new(),
        condition: None,
        changed_at_ms: None,
    }
}

impl Array {
    /// The node gets the volume, or the reason why not.
    fn publish(&mut self, request: PublishVolume) -> Result<AttachmentRecord, StorageError> {
        let place = (request.handle.to_string(), request.node.to_string());
        let refuse = |kind, message| Err(StorageError::last(kind, message));
        if self.published.get(&place).is_some_and(|there| *there != request) {
            return refuse(ErrorKind::AlreadyExists, format!("{} is published in another way", place.0));
        }
        let everywhere = match request.capability.mode {
            CapabilityMode::MultiNodeReaderOnly
            | CapabilityMode::MultiNodeSingleWriter
            | CapabilityMode::MultiNodeMultiWriter => true,
            CapabilityMode::SingleNodeWriter
            | CapabilityMode::SingleNodeReaderOnly
            | CapabilityMode::SingleNodeSingleWriter
            | CapabilityMode::SingleNodeMultiWriter => false,
        };
        let elsewhere = |(handle, node): &Place| *handle == place.0 && *node != place.1;
        if !everywhere && self.published.keys().any(elsewhere) {
            return refuse(ErrorKind::FailedPrecondition, format!("{} is on another node", place.0));
        }
        if !place.0.starts_with("handle-") {
            self.strangers.insert(place.0.clone());
        }
        let fields: Parameters = [("path".to_owned(), place.0.clone())].into();
        self.published.insert(place, request);
        Ok(AttachmentRecord { kind: "directory".to_owned(), version: 1, fields })
    }

    /// The volume has at least this size, or exactly that one.
    fn expand(&mut self, request: &ExpandVolume, answer: Option<u64>) -> ExpandedVolume {
        let handle = request.handle.as_str();
        let made = self.volumes.get(handle.strip_prefix("handle-").unwrap_or_default());
        let size = made.map(|volume| volume.size).unwrap_or_default();
        let before = self.sizes.get(handle).copied().unwrap_or(size);
        let size = before.max(request.capacity.required.unwrap_or_default());
        // A wrong answer says nothing of the volume.
        let size = answer.filter(|answer| *answer > size).unwrap_or(size);
        self.sizes.insert(handle.to_owned(), size);
        self.growing.remove(handle);
        ExpandedVolume { capacity: answer.unwrap_or(size), node_expansion: self.on_node }
    }

    fn unpublish(&mut self, handle: &VolumeHandle, node: Option<&NodeId>) {
        let stays =
            |place: &Place| place.0 != handle.as_str() || node.is_some_and(|node| place.1 != node.as_str());
        self.published.retain(|place, _| stays(place));
        self.wanted.retain(|place, _| stays(place));
    }
}

/// How a call of publishing shows.
fn shown(verb: &str, call: &Call, handle: &VolumeHandle, node: &str, more: &str) -> String {
    let secrets: String = call.secrets.iter().map(|(name, _)| format!(" with {name}")).collect();
    format!("{verb} {handle} {node}{more}{secrets}")
}

/// A call that changes a volume: no other may.
struct Changing {
    driver: ScriptedDriver,
    handle: String,
}

impl Changing {
    fn of(driver: &ScriptedDriver, handle: &VolumeHandle) -> Self {
        let mut array = driver.lock();
        if !array.changing.insert(handle.to_string()) {
            array.violations.push(format!("{handle} is changed by two calls at once"));
        }
        Self { driver: driver.clone(), handle: handle.to_string() }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.driver.lock().changing.remove(&self.handle);
    }
}

struct MortalDriver {
    driver: ScriptedDriver,
    /// The node that its storage is in. Names and handles are the same on every node: only the place tells two volumes apart.
    node: Option<&'static str>,
    description: Description,
    abilities: BTreeSet<Ability>,
    effects: Arc<Effects>,
}

/// A call that has not ended yet, whatever its end will be.
struct Begun {
    driver: ScriptedDriver,
    _busy: Busy,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.driver.lock().answered += 1;
    }
}

impl MortalDriver {
    /// How the array calls a volume.
    fn key(&self, name: &str) -> String {
        self.node.map_or_else(|| name.to_owned(), |node| format!("{node}/{name}"))
    }

    fn call(&self) -> Begun {
        Begun { driver: self.driver.clone(), _busy: self.effects.calls() }
    }

    async fn fault(&self, fault: Option<Fault>) -> Result<(bool, Option<u64>), StorageError> {
        match fault {
            None => Ok((false, None)),
            Some(Fault::Refuse(kind)) => Err(StorageError::last(kind, "the array refuses")),
            Some(Fault::LostRequest) => {
                Err(StorageError::unknown(ErrorKind::Unavailable, "the request was lost"))
            }
            Some(Fault::LostAnswer) => Ok((true, None)),
            Some(Fault::Undone) => Ok((false, None)),
            Some(Fault::Slow(time)) => {
                tokio::time::sleep(time).await;
                Ok((false, None))
            }
            Some(Fault::Meanwhile(action)) => {
                (self.driver.users)(action).await;
                Ok((false, None))
            }
            Some(Fault::MeanwhileThen(action, then)) => {
                (self.driver.users)(action).await;
                Box::pin(self.fault(Some(*then))).await
            }
            Some(Fault::Unseen(then)) => {
                self.effects.deafen();
                tokio::time::sleep(DEAF_AFTER).await;
                Box::pin(self.fault(Some(*then))).await
            }
            Some(Fault::Size(bytes)) => Ok((false, Some(bytes))),
        }
    }
}

fn lost() -> StorageError {
    StorageError {
        kind: ErrorKind::DeadlineExceeded,
        message: "the answer was lost".to_owned(),
        retry_after_ms: None,
        finality: Finality::Unknown,
    }
}

impl Backend for MortalDriver {
    fn description(&self) -> &Description {
        &self.description
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        &self.abilities
    }

    fn has_topology(&self) -> bool {
        !self.driver.lock().places.keys.is_empty()
    }

    fn probe(&self, _: Call) -> BoxFuture<'_, Result<Readiness, StorageError>> {
        Box::pin(async { Ok(Readiness::Ready) })
    }

    fn create_volume(
        &self,
        _: Call,
        request: CreateVolume,
    ) -> BoxFuture<'_, Result<CreatedVolume, StorageError>> {
        Box::pin(async move {
            self.effects.gate().await;
            let _call = self.call();
            let wanted: String =
                preferred(&request).into_iter().map(|place| format!(" {}", text_of(place))).collect();
            let attributes = text_of(&request.mutable_parameters);
            let attributes = if attributes.is_empty() { attributes } else { format!(" with {attributes}") };
            let call = format!("create {}{wanted}{attributes}", request.name);
            let key = self.key(&request.name);
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if request.topology.is_some() && array.places.keys.is_empty() {
                    array.violations.push(format!("{} was asked for at a place", request.name));
                }
                if array.asked.get(&key).is_some_and(|before| *before != request) {
                    array.violations.push(format!("{key} was asked for in two ways"));
                }
                array.asked.insert(key.clone(), request.clone());
                let fault = array.create_faults.pop_front();
                if fault.as_ref().is_some_and(Fault::refuses) {
                    array.asked.remove(&key);
                }
                fault
            };
            let (answer_lost, size) = self.fault(fault).await?;
            let answer = self.driver.make(key, request, size);
            self.effects.note(Effect::Call(call)).await;
            if answer_lost { Err(lost()) } else { answer }
        })
    }

    fn delete_volume(&self, _: Call, handle: VolumeHandle) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            self.effects.gate().await;
            let _call = self.call();
            let call = match self.node {
                None => format!("delete {handle}"),
                Some(node) => format!("delete {handle} on {node}"),
            };
            let key = self.key(handle.as_str().strip_prefix("handle-").unwrap_or_default());
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if array.published.keys().any(|(published, _)| published == handle.as_str()) {
                    array.violations.push(format!("{handle} is deleted while it is published"));
                }
                array.delete_faults.pop_front()
            };
            let (answer_lost, _) = self.fault(fault).await?;
            {
                let mut array = self.driver.lock();
                array.volumes.remove(&key);
                array.asked.remove(&key);
            }
            self.effects.note(Effect::Call(call)).await;
            if answer_lost { Err(lost()) } else { Ok(()) }
        })
    }

    fn publish_volume(
        &self,
        call: Call,
        request: PublishVolume,
    ) -> BoxFuture<'_, Result<AttachmentRecord, StorageError>> {
        Box::pin(async move {
            self.effects.gate().await;
            let _call = self.call();
            let place = (request.handle.to_string(), request.node.to_string());
            let how = if request.read_only { " read-only" } else { "" };
            let call = shown("publish", &call, &request.handle, &place.1, how);
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if array.wanted.get(&place).is_some_and(|before| *before != request) {
                    array.violations.push(format!("{} was published in two ways", place.0));
                }
                array.wanted.insert(place.clone(), request.clone());
                let fault = array.publish_faults.pop_front();
                if fault.as_ref().is_some_and(Fault::refuses) {
                    array.wanted.remove(&place);
                }
                fault
            };
            let undone = fault == Some(Fault::Undone);
            let (answer_lost, _) = self.fault(fault).await?;
            let answer = {
                let mut array = self.driver.lock();
                let answer = array.publish(request);
                if answer.is_err() {
                    array.wanted.remove(&place);
                }
                if undone {
                    array.published.remove(&place);
                }
                answer
            };
            self.effects.note(Effect::Call(call)).await;
            if answer_lost { Err(lost()) } else { answer }
        })
    }

    fn unpublish_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        node: Option<NodeId>,
    ) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            self.effects.gate().await;
            let _call = self.call();
            let at = node.as_ref().map_or("everywhere", NodeId::as_str);
            let call = shown("unpublish", &call, &handle, at, "");
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                array.unpublish_faults.pop_front()
            };
            let (answer_lost, _) = self.fault(fault).await?;
            self.driver.lock().unpublish(&handle, node.as_ref());
            self.effects.note(Effect::Call(call)).await;
            if answer_lost { Err(lost()) } else { Ok(()) }
        })
    }

    fn expand_volume(
        &self,
        call: Call,
        request: ExpandVolume,
    ) -> BoxFuture<'_, Result<ExpandedVolume, StorageError>> {
        Box::pin(async move {
            self.effects.gate().await;
            let _call = self.call();
            let _changing = Changing::of(&self.driver, &request.handle);
            let handle = request.handle.to_string();
            let size = Quantity::from_bytes(request.capacity.required.unwrap_or_default()).to_string();
            let on = self.node.map(|node| format!(" on {node}")).unwrap_or_default();
            let call = shown("expand", &call, &request.handle, &size, &on);
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if array.growing.get(&handle).is_some_and(|before| *before != request) {
                    array.violations.push(format!("{handle} was grown in two ways"));
                }
                array.growing.insert(handle.clone(), request.clone());
                let fault = array.expand_faults.pop_front();
                if fault.as_ref().is_some_and(Fault::refuses) {
                    array.growing.remove(&handle);
                }
                fault
            };
            let (answer_lost, size) = self.fault(fault).await?;
            let answer = self.driver.lock().expand(&request, size);
            self.effects.note(Effect::Call(call)).await;
            if answer_lost { Err(lost()) } else { Ok(answer) }
        })
    }

    fn modify_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        parameters: Parameters,
    ) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            self.effects.gate().await;
            let _call = self.call();
            let _changing = Changing::of(&self.driver, &handle);
            let call = shown("modify", &call, &handle, &text_of(&parameters), "");
            let handle = handle.to_string();
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if array.modifying.get(&handle).is_some_and(|before| *before != parameters) {
                    array.violations.push(format!("{handle} was modified in two ways"));
                }
                array.modifying.insert(handle.clone(), parameters);
                let fault = array.modify_faults.pop_front();
                if fault.as_ref().is_some_and(Fault::refuses) {
                    array.modifying.remove(&handle);
                }
                fault
            };
            let (answer_lost, _) = self.fault(fault).await?;
            self.driver.lock().modifying.remove(&handle);
            self.effects.note(Effect::Call(call)).await;
            if answer_lost { Err(lost()) } else { Ok(()) }
        })
    }

    fn list_volumes(&self, _: Call, request: PageRequest) -> BoxFuture<'_, Result<VolumePage, StorageError>> {
        Box::pin(async move {
            self.effects.gate().await;
            let _call = self.call();
            let (listing, fault) = {
                let mut array = self.driver.lock();
                (array.listing.unwrap_or_default(), array.list_faults.pop_front())
            };
            let page = self.driver.page(listing, &request);
            let (answer_lost, _) = self.fault(fault).await?;
            if answer_lost { Err(lost()) } else { Ok(page) }
        })
    }

    fn get_capacity(&self, _: Call, query: CapacityQuery) -> BoxFuture<'_, Result<Capacity, StorageError>> {
        Box::pin(async move {
            self.effects.gate().await;
            let _busy = self.effects.calls();
            let place = query.topology.as_ref().map(text_of).unwrap_or_default();
            let full = self.driver.lock().places.full.contains(&place.as_str());
            let available = if full { 0 } else { 1 << 60 };
            Ok(Capacity { available, maximum_volume: None, minimum_volume: None })
        })
    }

    fn validate_volume(&self, _: Call, _: ValidateVolume) -> BoxFuture<'_, Result<Validation, StorageError>> {
        Box::pin(async { Ok(Validation::Confirmed) })
    }
}
