//! The nodes of dev mode: their objects, the Node services of their drivers on real sockets, and everything that runs on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::{Clock, WriteError, events::EventLoop};
use cofferdam_csi::{
    Address,
    server::{Options as ServerOptions, Server, ServerMetrics, Socket, SocketError, SocketOptions},
    v1::{identity_server::IdentityServer, node_server::NodeServer},
};
use cofferdam_domain::{NodeName, names};
use cofferdam_node::{
    Kind as AttachmentKind, Machine, Manifest, Node, NodeService, Pattern, Policy, Registrar, Roots,
    Whereabouts,
};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    dry::{Disks, DryNode},
    ephemeral::Ephemeral,
    files::{Disk, Files},
    kinds::{Labels, NodeObject},
    kubelet::{Ground, Kubelet, host_address},
    observer::Observer,
    scheduler::Scheduler,
    world::{Patch, World},
};

/// Kubelet's root where mounts are recorded: nothing of it is on the disk.
const ROOT: &str = "/var/lib/kubelet";
/// How long a call may take whose caller names no deadline.
const PATIENCE: Duration = Duration::from_secs(120);
/// Where roots of attachments are that no driver has: nothing is there.
const NOWHERE: &str = "/nonexistent";

/// How mounts are made.
#[derive(Clone, Debug)]
pub enum Mounts {
    /// They are recorded, and checked for kubelet's rules.
    Recorded,
    /// By the kernel, as root, under the operator's policy.
    Real(Box<Policy>),
}

/// A driver of the cluster.
#[derive(Clone, Debug)]
pub struct Driver {
    /// Its name.
    pub name: String,
    /// Who serves kubelet for it.
    pub node: DriverNode,
    /// Whether it is on every node, and not on the first one alone.
    pub everywhere: bool,
}

/// Who serves kubelet for a driver.
#[derive(Clone, Debug)]
pub enum DriverNode {
    /// Our Node service.
    Ours {
        /// What it knows of the driver.
        manifest: Box<Manifest>,
        /// Where the paths of its attachments begin, where it has such ones.
        root: Option<PathBuf>,
    },
    /// The driver itself, on the socket where it listens.
    Own(Address),
}

/// What a cluster is made of.
pub struct Options {
    /// Client of the API, without retries of its own.
    pub client: kube::Client,
    /// The wall clock.
    pub clock: Clock,
    /// Hears of every step.
    pub observer: Arc<dyn Observer>,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// A directory for sockets, and for what is mounted for real: there, and nobody else's.
    pub directory: PathBuf,
    /// The drivers, each of another name.
    pub drivers: Vec<Driver>,
    /// How mounts are made.
    pub mounts: Mounts,
}

/// Why a cluster cannot be made. One line.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    /// The API refuses.
    #[error("node {node}: {source}")]
    Node {
        /// The node.
        node: String,
        /// Why.
        source: WriteError,
    },
    /// A socket cannot be listened on.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The machine is not fit for it.
    #[error("{0}")]
    Machine(String),
    /// What serves the nodes' drivers has ended by itself.
    #[error("a server of the nodes ended before it was told to: {0}")]
    Ended(String),
}

/// One node.
struct Place {
    kubelet: Arc<Kubelet>,
    dry: DryNode,
    sockets: BTreeSet<PathBuf>,
}

/// The nodes, the scheduler, and what else is simulated.
pub struct Nodes {
    world: Arc<World>,
    events: EventLoop,
    scheduler: Arc<Scheduler>,
    ephemeral: Arc<Ephemeral>,
    places: Vec<Place>,
    disks: Disks,
    servers: Vec<Server>,
    registrars: Vec<(Arc<Registrar>, Arc<Kubelet>, PathBuf, Ground)>,
}

/// What shows how far the nodes are, and what is left on them.
#[derive(Clone)]
pub struct View {
    places: Vec<(Arc<Kubelet>, DryNode, BTreeSet<PathBuf>)>,
}

impl View {
    /// Waits until every driver is registered on its nodes.
    pub async fn registered(&self) {
        for (kubelet, _, sockets) in &self.places {
            // The sender lives as long as the kubelet: waiting cannot fail.
            let _ = kubelet.registered().wait_for(|there| sockets.is_subset(there)).await;
        }
    }

    /// Waits until no node has anything mounted for a pod.
    pub async fn empty(&self) {
        for (kubelet, ..) in &self.places {
            kubelet.empty().await;
        }
    }

    /// What is still mounted, attached or written down on the nodes, and which rules were broken, for people.
    pub fn left(&self) -> Vec<String> {
        let of = |(kubelet, dry, _): &(Arc<Kubelet>, DryNode, BTreeSet<PathBuf>)| {
            [kubelet.left(), dry.left(), dry.broken()].concat()
        };
        self.places.iter().flat_map(of).collect()
    }
}

impl Nodes {
    /// Makes the nodes and their sockets; nothing runs yet.
    ///
    /// # Errors
    /// [`DevError`]
    pub async fn new(options: Options) -> Result<Self, DevError> {
        let Options { client, clock, observer, nodes, directory, drivers, mounts } = options;
        let (world, events) = World::new(client, clock, observer);
        let world = Arc::new(world);
        let mut all = Self {
            scheduler: Scheduler::new(Arc::clone(&world)),
            ephemeral: Ephemeral::new(Arc::clone(&world)),
            world,
            events,
            places: Vec::new(),
            disks: Disks::default(),
            servers: Vec::new(),
            registrars: Vec::new(),
        };
        for (number, name) in nodes.into_iter().enumerate() {
            let here: Vec<&Driver> =
                drivers.iter().filter(|driver| driver.everywhere || number == 0).collect();
            all.add(number, NodeName::from(name), &directory, (&here, &mounts)).await?;
        }
        Ok(all)
    }

    /// What shows the nodes while they run.
    pub fn view(&self) -> View {
        let of = |place: &Place| (Arc::clone(&place.kubelet), place.dry.clone(), place.sockets.clone());
        View { places: self.places.iter().map(of).collect() }
    }

    async fn add(
        &mut self,
        number: usize,
        name: NodeName,
        directory: &Path,
        (drivers, mounts): (&[&Driver], &Mounts),
    ) -> Result<(), DevError> {
        let labels = labels(&name, number, drivers);
        create_node(&self.world, &name, number, &labels)
            .await
            .map_err(|source| DevError::Node { node: name.to_string(), source })?;
        let kubelet = Kubelet::new(Arc::clone(&self.world), name.clone(), number);
        let mut place = Place { kubelet, dry: DryNode::new(self.disks.clone()), sockets: BTreeSet::new() };
        // Short names: a socket's path has 107 bytes at most, and drivers have long ones.
        let own = directory.join((number + 1).to_string());
        let registry = own.join("reg");
        make_directory(&registry)?;
        for (index, driver) in drivers.iter().enumerate() {
            let real = real_root(&own);
            let (endpoint, ground) = match &driver.node {
                DriverNode::Own(address) => {
                    make_directory(Path::new(&real))?;
                    (address.clone(), Ground { root: real, files: Arc::new(Disk) })
                }
                DriverNode::Ours { manifest, root } => {
                    let address: Address = own
                        .join(format!("{index}.sock"))
                        .display()
                        .to_string()
                        .parse()
                        .map_err(DevError::Machine)?;
                    let segments = manifest.segments(name.as_str(), &labels).map_err(DevError::Machine)?;
                    let whereabouts = Whereabouts { node: name.to_string(), segments };
                    let socket = Socket::bind(&SocketOptions::new(address.clone())).await?;
                    let records = own.join(format!("{index}.volumes"));
                    let ground = self.serve(
                        &place.dry,
                        socket,
                        manifest,
                        root.as_deref(),
                        whereabouts,
                        mounts,
                        (real, records),
                    )?;
                    (address, ground)
                }
            };
            let registrar = Arc::new(Registrar::new(
                driver.name.clone(),
                endpoint.path().display().to_string(),
                &registry,
            ));
            let socket = registry.join(format!("{}@reg.sock", driver.name));
            // Too long a path would be told when nobody listens any more.
            socket.display().to_string().parse::<Address>().map_err(DevError::Machine)?;
            place.sockets.insert(socket.clone());
            self.registrars.push((registrar, Arc::clone(&place.kubelet), socket, ground));
        }
        self.places.push(place);
        Ok(())
    }

    /// Puts our Node service on its socket.
    #[expect(clippy::too_many_arguments, reason = "what a Node service is made of, used once")]
    fn serve(
        &mut self,
        dry: &DryNode,
        socket: Socket,
        manifest: &Manifest,
        root: Option<&Path>,
        whereabouts: Whereabouts,
        mounts: &Mounts,
        (real, records): (String, PathBuf),
    ) -> Result<Ground, DevError> {
        match mounts {
            Mounts::Recorded => {
                let policy = recorded_policy(root);
                let node = self.node(dry.machine(), ROOT, policy)?;
                self.listen(socket, NodeService::new(node, manifest.clone(), whereabouts), manifest);
                dry.make_directory(ROOT).map_err(DevError::Machine)?;
                Ok(Ground { root: ROOT.to_owned(), files: Arc::new(dry.clone()) })
            }
            Mounts::Real(policy) => {
                make_directory(Path::new(&real))?;
                make_directory(&records)?;
                let policy = with_root(policy, root);
                policy
                    .check()
                    .map_err(|problem| DevError::Machine(format!("the node's policy: {problem}")))?;
                let machine = real_machine(&policy, &records)?;
                let node = self.node(machine, &real, policy)?;
                self.listen(socket, NodeService::new(node, manifest.clone(), whereabouts), manifest);
                Ok(Ground { root: real, files: Arc::new(Disk) })
            }
        }
    }

    fn node<M: Machine>(&self, machine: M, root: &str, policy: Policy) -> Result<Node<M>, DevError> {
        let roots = Roots::new([root.to_owned()]).map_err(DevError::Machine)?;
        Ok(Node::new(machine, roots, policy))
    }

    fn listen<M: Machine + 'static>(&mut self, socket: Socket, service: NodeService<M>, manifest: &Manifest) {
        let options = ServerOptions { driver: manifest.driver().to_string(), patience: PATIENCE };
        let server = Server::new(socket, options, &ServerMetrics::default())
            .with(IdentityServer::new(service.clone()))
            .with(NodeServer::new(service));
        self.servers.push(server);
    }

    /// Runs everything until `stop`, or until something ends by itself; then what is mounted is unmounted, and the sockets go.
    ///
    /// # Errors
    /// What has ended by itself; `stop` is cancelled then.
    pub async fn run(self, stop: CancellationToken) -> Result<(), DevError> {
        let Self { world, events, scheduler, ephemeral, places, servers, registrars, .. } = self;
        let (mut tasks, serving) = (JoinSet::new(), CancellationToken::new());
        for server in servers {
            let served = server.serve(serving.clone());
            tasks.spawn(async move {
                served.await;
                Err(DevError::Ended("a driver's socket is served no more".to_owned()))
            });
        }
        for (registrar, kubelet, socket, ground) in registrars {
            tasks.spawn(serve_registrar(registrar, kubelet, (socket, ground), serving.clone()));
        }
        let following = world.follow(&stop);
        let working = async {
            tokio::select! {
                () = stop.cancelled() => return,
                () = world.synced() => {}
            }
            let kubelets = places.iter().map(|place| place.kubelet.run(stop.clone()));
            tokio::join!(
                scheduler.run(stop.clone()),
                ephemeral.run(stop.clone()),
                futures::future::join_all(kubelets),
            );
        };
        let mut all = pin!(async { tokio::join!(following, working, events.run(stop.clone())) });
        let result = tokio::select! {
            _ = &mut all => Ok(()),
            Some(ended) = tasks.join_next() => {
                stop.cancel();
                all.as_mut().await;
                ended.unwrap_or_else(|broken| Err(DevError::Ended(broken.to_string())))
            }
        };
        futures::future::join_all(places.iter().map(|place| place.kubelet.clear())).await;
        serving.cancel();
        while tasks.join_next().await.is_some() {}
        result
    }
}

/// Serves a registrar, and tells kubelet of its socket as often as it appears: that is what kubelet's eye on its directory is for.
async fn serve_registrar(
    registrar: Arc<Registrar>,
    kubelet: Arc<Kubelet>,
    (socket, ground): (PathBuf, Ground),
    stop: CancellationToken,
) -> Result<(), DevError> {
    let mut state = registrar.state();
    let metrics = ServerMetrics::default();
    let serving = Arc::clone(&registrar).serve(&metrics, stop.clone());
    let telling = async {
        while state.changed().await.is_ok() {
            let waiting = *state.borrow_and_update() == cofferdam_node::Registration::Waiting;
            if waiting {
                kubelet.discover(socket.clone(), ground.clone());
            }
        }
    };
    tokio::select! {
        served = serving => Ok(served?),
        () = telling => Err(DevError::Ended("a driver's registrar has gone".to_owned())),
    }
}

/// Everything is allowed where nothing is done.
fn recorded_policy(root: Option<&Path>) -> Policy {
    // A pattern that means every device is refused, for nobody means it; there are none here.
    let first = ('a'..='z').chain('A'..='Z').chain('0'..='9');
    let patterns = first.filter_map(|first| Pattern::new(format!("{first}*")).ok()).collect();
    let root = root.map_or_else(|| NOWHERE.to_owned(), |root| root.display().to_string());
    Policy {
        attachments: AttachmentKind::ALL.into(),
        directory_root: Some(root.clone()),
        image_root: Some(root),
        stable_ids: patterns,
        tmpfs_most: Some(u64::MAX),
        filesystems: cofferdam_node::Filesystem::ALL.into(),
        inline: cofferdam_node::InlinePolicy { tmpfs_most: Some(1 << 30) },
        ..Policy::default()
    }
}

/// The operator's policy, with the directory that the operator has given the driver.
fn with_root(policy: &Policy, root: Option<&Path>) -> Policy {
    let mut policy = policy.clone();
    if let Some(root) = root {
        let root = Some(root.display().to_string());
        policy.attachments.extend([AttachmentKind::Directory, AttachmentKind::Image]);
        policy.directory_root = policy.directory_root.or_else(|| root.clone());
        policy.image_root = policy.image_root.or(root);
    }
    policy
}

#[cfg(target_os = "linux")]
fn real_machine(policy: &Policy, records: &Path) -> Result<cofferdam_node::Linux, DevError> {
    if !may_mount() {
        return Err(DevError::Machine(
            "this process may not mount: expected root for real mounts".to_owned(),
        ));
    }
    cofferdam_node::Linux::open(policy, records).map_err(DevError::Machine)
}

/// Whether the process has CAP_SYS_ADMIN; where nobody says so it is tried.
#[cfg(target_os = "linux")]
fn may_mount() -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
    capabilities.is_none_or(|capabilities| capabilities & SYS_ADMIN != 0)
}

#[cfg(not(target_os = "linux"))]
fn real_machine(_: &Policy, _: &Path) -> Result<crate::dry::DryMachine, DevError> {
    Err(DevError::Machine("real mounts need Linux".to_owned()))
}

/// Kubelet's root for what is mounted for real.
fn real_root(own: &Path) -> String {
    own.join("kubelet").display().to_string()
}

fn make_directory(path: &Path) -> Result<(), DevError> {
    Disk.make_directory(&path.display().to_string()).map_err(DevError::Machine)
}

/// Labels of a node. Every key of a driver's topology gets a value, for a real node has them from whoever set it up.
fn labels(name: &NodeName, number: usize, drivers: &[&Driver]) -> Labels {
    let zone = format!("zone-{}", number + 1);
    let mut labels: Labels = BTreeMap::from([
        ("kubernetes.io/hostname".to_owned(), name.to_string()),
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("topology.kubernetes.io/region".to_owned(), "dev".to_owned()),
        ("topology.kubernetes.io/zone".to_owned(), zone.clone()),
    ]);
    for driver in drivers {
        if let DriverNode::Ours { manifest, .. } = &driver.node {
            for key in manifest.labels() {
                labels.entry(key.to_owned()).or_insert_with(|| zone.clone());
            }
        }
    }
    labels
}

/// The Node, ready: what kubelet and the node lifecycle controller would come to.
async fn create_node(
    world: &World,
    name: &NodeName,
    number: usize,
    labels: &Labels,
) -> Result<(), WriteError> {
    let now = world.now();
    let body = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {names::MANAGED_ATTACH: "true"},
        },
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": host_address(number)},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated: no container is run",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
            "nodeInfo": {
                "kubeletVersion": concat!("v1.36.0+cofferdam.", env!("CARGO_PKG_VERSION")),
                "kubeProxyVersion": "", "architecture": std::env::consts::ARCH, "operatingSystem": "linux",
                "osImage": "simulated", "kernelVersion": "", "containerRuntimeVersion": "none://", "machineID": "",
                "systemUUID": "", "bootID": "",
            },
        },
    });
    let node = world.create::<NodeObject>(&body).await?;
    // New nodes are not ready, the API says; this one is.
    let patch = json!({"spec": {"taints": null}});
    world.patch::<NodeObject>(&node, "", Patch::Merge, patch).await.map(drop)
}
