//! A kubelet without containers: it registers drivers, mounts what the pods of its node want, in kubelet's order and with kubelet's
//! pauses, says of pods that they run, and undoes everything when they go. It calls the real Node service, on its socket.

mod calls;
mod grow;
mod mount;
mod paths;
mod plugins;
mod pods;
mod retries;
pub mod rules;
mod unmount;
mod volume;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_cluster::{
    WriteError,
    queue::{Backoff, Outcome, Queue},
};
use cofferdam_domain::{
    AccessMode, Claim, ClaimKey, ClaimPhase, DriverName, NodeName, PodKey, Quantity, Uid,
    UniqueVolume,
};
use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

pub use self::plugins::serves_nodes;
pub(crate) use self::pods::host_address;

use self::{
    paths::{Paths, inline_handle},
    retries::Retries,
    rules::{Facts, Phase},
};
use crate::{
    files::Files,
    kinds::{NodeObject, PodObject, VolumeObject},
    observer::StepKind,
    scheduler::rules::uses,
    world::{Patch, World, pod_name},
};

/// Kubelet's back-off of operations on volumes and of registrations.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), most: Duration::from_secs(122) };
/// Operations at once; of one volume there is one at a time.
const WORKERS: usize = 32;
/// How kubelet calls itself in events.
const COMPONENT: &str = "kubelet";

/// A volume on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum VolumeId {
    /// Of a PersistentVolume.
    Persistent(UniqueVolume),
    /// Of a pod that describes it by itself: the pod, and the volume's name in it.
    Inline(Uid, Box<str>),
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Persistent(name) => name.fmt(f),
            Self::Inline(pod, name) => write!(f, "{pod}/{name}"),
        }
    }
}

/// What is worked on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    /// The socket on which a driver registers.
    Plugin(PathBuf),
    /// The node's status.
    Node,
    Pod(PodKey),
    Volume(VolumeId),
}

/// A pod's volume, with what it leads to.
#[derive(Clone)]
struct Wanted {
    id: VolumeId,
    pod: Arc<PodObject>,
    driver: DriverName,
    handle: String,
    volume: Option<Arc<VolumeObject>>,
    claim: Option<Arc<Claim>>,
    inline: Option<core::CSIVolumeSource>,
    /// Whether the pod, or the volume, wants it for reading only.
    read_only: bool,
    attachable: bool,
}

/// A volume that is mounted, or may be.
#[derive(Clone)]
struct Held {
    paths: Paths,
    driver: DriverName,
    claim: Option<ClaimKey>,
    attachable: bool,
    device: Phase,
    /// Whether the driver was asked to stage it.
    staged: bool,
    mounts: BTreeMap<Uid, Mounted>,
    /// How large it was when it was mounted, or has grown to since.
    size: Option<Quantity>,
    /// Whether the driver does not grow it while it is in use.
    refused: bool,
}

impl Held {
    /// Whether something of it is mounted, or may be.
    fn is_busy(&self) -> bool {
        self.device != Phase::Absent || !self.mounts.is_empty()
    }
}

/// A mount for a pod.
#[derive(Clone)]
struct Mounted {
    phase: Phase,
    /// What the pod wanted when it was mounted: it keeps that whatever becomes of the claim.
    wanted: Wanted,
    /// Of its own PersistentVolume: several may be of one handle.
    paths: Paths,
}

/// A driver that is registered.
#[derive(Clone)]
struct Plugin {
    endpoint: PathBuf,
    ground: Ground,
}

/// Where the files of a driver's volumes are.
#[derive(Clone)]
pub(crate) struct Ground {
    /// Kubelet's root there.
    pub(crate) root: String,
    /// Its files there.
    pub(crate) files: Arc<dyn Files>,
}

/// The kubelet of one node.
pub(crate) struct Kubelet {
    world: Arc<World>,
    name: NodeName,
    number: usize,
    queue: Queue<Key>,
    plugins: Mutex<HashMap<DriverName, Plugin>>,
    /// Sockets that register drivers, and where the volumes of those are.
    sockets: Mutex<BTreeMap<PathBuf, Ground>>,
    registered: watch::Sender<BTreeSet<PathBuf>>,
    held: Mutex<BTreeMap<VolumeId, Held>>,
    retries: Retries,
    /// How many volumes are held.
    count: watch::Sender<usize>,
    /// Since when a pod waits for its volumes.
    waiting: Mutex<HashMap<PodKey, (Uid, Instant)>>,
    /// Who writes what a driver says of the node.
    registering: tokio::sync::Mutex<()>,
}

impl Kubelet {
    /// The kubelet of a node; it hears of every change from now on.
    pub(crate) fn new(world: Arc<World>, name: NodeName, number: usize) -> Arc<Self> {
        let kubelet = Arc::new(Self {
            queue: Queue::new("dev_kubelet", BACKOFF, &world.metrics),
            world,
            name,
            number,
            plugins: Mutex::default(),
            sockets: Mutex::default(),
            registered: watch::Sender::default(),
            held: Mutex::default(),
            retries: Retries::default(),
            count: watch::Sender::default(),
            waiting: Mutex::default(),
            registering: tokio::sync::Mutex::default(),
        });
        kubelet.subscribe();
        kubelet
    }

    /// Works until `stop`.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let me = Arc::clone(self);
        let work = move |key: Key| {
            let me = Arc::clone(&me);
            async move { me.work(key).await }
        };
        self.queue.run(WORKERS, stop, work).await;
    }

    /// A socket is there that registers a driver; the files of its volumes are on that ground.
    pub(crate) fn discover(&self, socket: PathBuf, ground: Ground) {
        lock(&self.sockets).insert(socket.clone(), ground);
        self.queue.add(Key::Plugin(socket));
    }

    /// The sockets whose drivers are registered, now and later.
    pub(crate) fn registered(&self) -> watch::Receiver<BTreeSet<PathBuf>> {
        self.registered.subscribe()
    }

    /// What is still mounted, for people.
    pub(crate) fn left(&self) -> Vec<String> {
        lock(&self.held).keys().map(|id| format!("{}: {id} is still mounted", self.name)).collect()
    }

    /// Waits until nothing is mounted.
    pub(crate) async fn empty(&self) {
        // The sender lives as long as the kubelet: waiting cannot fail.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    fn subscribe(self: &Arc<Self>) {
        let world = &self.world;
        let me = Arc::downgrade(self);
        world.pods.subscribe(move |change| {
            let Some(me) = me.upgrade() else { return };
            let pods = [&change.old, &change.new];
            for pod in pods.into_iter().flatten().filter(|pod| pod.slim.node.as_ref() == Some(&me.name)) {
                me.wake_pod(pod);
            }
        });
        let me = Arc::downgrade(self);
        world.claims.subscribe(move |change| {
            let Some(me) = me.upgrade() else { return };
            me.pods().iter().filter(|pod| uses(pod, &change.key)).for_each(|pod| me.wake_pod(pod));
        });
        let me = Arc::downgrade(self);
        world.volumes.subscribe(move |change| {
            let Some(me) = me.upgrade() else { return };
            let claim = change.new.as_ref().and_then(|volume| volume.slim.claim_ref.as_ref());
            let Some(claim) = claim.map(|claim| &claim.key) else { return };
            me.pods().iter().filter(|pod| uses(pod, claim)).for_each(|pod| me.wake_pod(pod));
        });
        // They say which volumes are attached.
        let me = Arc::downgrade(self);
        world.csi_drivers.subscribe(move |_| {
            if let Some(me) = me.upgrade() {
                me.wake_all();
            }
        });
        let me = Arc::downgrade(self);
        world.nodes.subscribe(move |change| {
            if let Some(me) = me.upgrade().filter(|me| me.name == change.key) {
                me.wake_all();
            }
        });
    }

    fn wake_pod(&self, pod: &Arc<PodObject>) {
        self.queue.add(Key::Pod(pod.slim.key.clone()));
        // What it waited for may be in use no longer.
        self.queue.add(Key::Node);
        self.wanted_by(pod).into_iter().for_each(|wanted| self.queue.add(Key::Volume(wanted.id)));
        let held: Vec<VolumeId> = lock(&self.held)
            .iter()
            // What is mounted for no pod yet may be what this one does not lead to any more.
            .filter(|(_, held)| held.mounts.is_empty() || held.mounts.contains_key(&pod.slim.meta.uid))
            .map(|(id, _)| id.clone())
            .collect();
        held.into_iter().for_each(|id| self.queue.add(Key::Volume(id)));
    }

    /// Looks at everything anew.
    fn wake_all(&self) {
        self.queue.add(Key::Node);
        self.pods().iter().for_each(|pod| self.wake_pod(pod));
        let held: Vec<VolumeId> = lock(&self.held).keys().cloned().collect();
        held.into_iter().for_each(|id| self.queue.add(Key::Volume(id)));
    }

    /// The pods of the node.
    fn pods(&self) -> Vec<Arc<PodObject>> {
        let mine = |pod: &Arc<PodObject>| pod.slim.node.as_ref() == Some(&self.name);
        self.world.pods.list().into_iter().filter(mine).collect()
    }

    fn node(&self) -> Option<Arc<NodeObject>> {
        self.world.nodes.get(&self.name).known()
    }

    async fn work(&self, key: Key) -> Outcome {
        match key {
            Key::Plugin(socket) => self.register(&socket).await,
            Key::Node => self.report().await,
            Key::Pod(key) => self.pod(&key).await,
            Key::Volume(id) => self.volume(&id).await,
        }
    }

    /// The volumes of a pod that have to be mounted and can be; what keeps another one from it is left to [`Self::lead`].
    fn wanted_by(&self, pod: &Arc<PodObject>) -> Vec<Wanted> {
        if pod.slim.terminated {
            return Vec::new();
        }
        pod.volumes().iter().filter_map(|volume| self.lead(pod, volume).ok().flatten()).collect()
    }

    /// What a pod's volume leads to; absent for volumes that are not simulated, such as `emptyDir`.
    ///
    /// # Errors
    /// Why it leads to nothing yet.
    fn lead(&self, pod: &Arc<PodObject>, volume: &core::Volume) -> Result<Option<Wanted>, String> {
        if let Some(inline) = &volume.csi {
            return Ok(Some(self.inline(pod, volume, inline)));
        }
        let Some(name) = pod.claim_of(volume) else { return Ok(None) };
        let key = ClaimKey::new(pod.slim.key.namespace.clone(), name);
        let claim =
            self.world.claims.get(&key).known().ok_or_else(|| format!("claim {key} does not exist"))?;
        if volume.ephemeral.is_some() && claim.controller.as_ref() != Some(&pod.slim.meta.uid) {
            return Err(format!("PVC {key} was not created for pod {} (pod is not owner)", pod.slim.key));
        }
        let bound = claim.volume.as_ref().filter(|_| claim.phase == ClaimPhase::Bound);
        let bound = bound.ok_or_else(|| format!("claim {key} is not bound"))?;
        let object = self.world.volumes.get(bound).known();
        let object = object.ok_or_else(|| format!("volume {bound} does not exist"))?;
        if !object.slim.is_bound_to(&claim.key, &claim.meta.uid) {
            return Err(format!("volume {bound} belongs to another claim"));
        }
        let Some(csi) = object.slim.csi.clone() else { return Ok(None) };
        Ok(Some(Wanted {
            id: VolumeId::Persistent(UniqueVolume::of_csi(&csi.driver, &csi.handle)),
            pod: Arc::clone(pod),
            read_only: csi.read_only
                || volume.persistent_volume_claim.as_ref().and_then(|source| source.read_only) == Some(true),
            attachable: self.is_attachable(&csi.driver),
            driver: csi.driver,
            handle: csi.handle.to_string(),
            volume: Some(object),
            claim: Some(claim),
            inline: None,
        }))
    }

    fn inline(&self, pod: &Arc<PodObject>, volume: &core::Volume, source: &core::CSIVolumeSource) -> Wanted {
        let uid = pod.slim.meta.uid.clone();
        Wanted {
            handle: inline_handle(&uid, &volume.name),
            id: VolumeId::Inline(uid, volume.name.as_str().into()),
            pod: Arc::clone(pod),
            driver: source.driver.as_str().into(),
            volume: None,
            claim: None,
            inline: Some(source.clone()),
            read_only: source.read_only == Some(true),
            attachable: false,
        }
    }

    /// Volumes of a driver that says nothing of it are attached.
    fn is_attachable(&self, driver: &DriverName) -> bool {
        self.world.csi_drivers.get(driver).known().is_none_or(|driver| driver.slim.attach_required)
    }

    /// The pods of the node that want a volume, and those that have it until they end: a claim that is lost, or a volume that is
    /// removed by force, takes nothing from a container.
    fn wanting(&self, id: &VolumeId) -> Vec<Wanted> {
        let pods = self.pods();
        let all = pods.iter().flat_map(|pod| self.wanted_by(pod));
        let mut all: Vec<Wanted> = all.filter(|wanted| wanted.id == *id).collect();
        let held = lock(&self.held);
        for (uid, mounted) in held.get(id).into_iter().flat_map(|held| &held.mounts) {
            let pod = pods.iter().find(|pod| pod.slim.meta.uid == *uid && !pod.slim.terminated);
            let Some(pod) = pod.filter(|_| !all.iter().any(|wanted| wanted.pod.slim.meta.uid == *uid)) else {
                continue;
            };
            // Without the claim: what is known of it is old.
            all.push(Wanted { pod: Arc::clone(pod), claim: None, ..mounted.wanted.clone() });
        }
        all
    }

    fn facts(&self, id: &VolumeId, wants: &[Wanted]) -> Facts {
        let held = lock(&self.held).get(id).cloned();
        let node = self.node();
        let entry = match id {
            VolumeId::Persistent(name) => node.as_ref().and_then(|node| node.slim.volume(name)),
            VolumeId::Inline(..) => None,
        };
        let first = wants.first();
        let exclusive = first
            .and_then(|wanted| wanted.volume.as_ref())
            .is_some_and(|volume| volume.slim.access_modes.iter().eq([AccessMode::ReadWriteOncePod]));
        Facts {
            wants: wants.iter().map(|wanted| wanted.pod.slim.meta.uid.clone()).collect(),
            device: held.as_ref().map(|held| held.device).unwrap_or_default(),
            mounts: held.as_ref().map_or_else(BTreeMap::new, |held| {
                held.mounts.iter().map(|(pod, mounted)| (pod.clone(), mounted.phase)).collect()
            }),
            inline: matches!(id, VolumeId::Inline(..)),
            attachable: match (&held, first) {
                (Some(held), _) if held.is_busy() => held.attachable,
                // What was reported and never mounted is free again.
                (_, None) => matches!(id, VolumeId::Persistent(_)),
                (_, Some(wanted)) => wanted.attachable,
            },
            attached: entry.is_some_and(|entry| entry.attached),
            reported: entry.is_some_and(|entry| entry.in_use),
            exclusive,
            grows: first.is_some_and(|wanted| grow::is_due(wanted, held.as_ref())),
        }
    }

    fn tell_pod(&self, pod: &PodObject, kind: StepKind, text: &str) {
        self.world.tell(COMPONENT, pod_name(&pod.slim.key), kind, format!("{}: {text}", self.name));
    }

    /// Nothing is left of a volume that nobody wants: it is forgotten.
    fn settle(&self, id: &VolumeId) {
        let mut held = lock(&self.held);
        if held.get(id).is_some_and(|held| !held.is_busy()) {
            held.remove(id);
        }
        if !held.contains_key(id) {
            self.retries.forget(id);
        }
        self.count.send_replace(held.len());
        drop(held);
        self.queue.add(Key::Node);
    }

    /// Says in the node's status which volumes are in use: those that are wanted, and those that are still mounted.
    async fn report(&self) -> Outcome {
        let Some(node) = self.node() else { return Outcome::Done };
        let pods = self.pods();
        let wanted = pods.iter().flat_map(|pod| self.wanted_by(pod)).filter(|wanted| wanted.attachable);
        let mut used: BTreeSet<UniqueVolume> = wanted.filter_map(|wanted| unique(&wanted.id)).collect();
        let busy = |held: &Held| held.attachable && held.is_busy();
        used.extend(lock(&self.held).iter().filter(|(_, held)| busy(held)).filter_map(|(id, _)| unique(id)));
        let said: BTreeSet<UniqueVolume> =
            node.slim.volumes.iter().filter(|one| one.in_use).map(|one| one.name.clone()).collect();
        if used == said {
            return Outcome::Done;
        }
        let list = if used.is_empty() { Value::Null } else { json!(used) };
        let patch = json!({"status": {"volumesInUse": list}});
        match self.world.patch::<NodeObject>(&node, "/status", Patch::Merge, patch).await {
            // What waited for it goes on by the change of the node.
            Ok(_) => Outcome::Done,
            Err(error) => self.failed::<NodeObject>(&self.name, &error).await,
        }
    }

    /// How a run ends whose write has failed.
    async fn failed<K: crate::world::Watched>(&self, key: &K::Key, error: &WriteError) -> Outcome {
        match error {
            WriteError::Conflict(_) | WriteError::NotFound(_) | WriteError::AlreadyExists(_) => {
                match self.world.get::<K>(key).await {
                    Ok(_) => Outcome::Again,
                    Err(_) => Outcome::Retry,
                }
            }
            WriteError::Refused { .. } | WriteError::Unavailable { .. } | WriteError::Answer { .. } => {
                tracing::warn!(%error, node = %self.name, "kubelet tries again");
                Outcome::Retry
            }
        }
    }

    fn plugin(&self, driver: &DriverName) -> Result<Plugin, String> {
        let found = lock(&self.plugins).get(driver).cloned();
        found.ok_or_else(|| format!("driver name {driver} not found in the list of registered CSI drivers"))
    }
}

fn unique(id: &VolumeId) -> Option<UniqueVolume> {
    match id {
        VolumeId::Persistent(name) => Some(name.clone()),
        VolumeId::Inline(..) => None,
    }
}

/// What is behind a lock; a panic while it was held leaves nothing half done that matters.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
