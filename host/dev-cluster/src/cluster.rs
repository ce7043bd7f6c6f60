//! The nodes of dev mode: their objects, the Node services of their drivers on real sockets, and everything
//! that runs on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::{ApiError, Clock, events::EventLoop};
use cofferdam_csi::{
    Address,
    server::{Server, ServerMetrics, ServerOptions, ServerSocket, SocketError, SocketOptions},
    v1::{identity_server::IdentityServer, node_server::NodeServer},
};
use cofferdam_domain::{NodeName, names};
use cofferdam_node::{
    ConnectionKind as AttachmentKind, DriverManifest, KubeletRoots, Mounter, NodeIdentity, NodePolicy,
    NodeService, NodeVolumes, Registrar, StableIdPattern,
};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    client::{ClusterClient, PatchType},
    ephemeral_volume::EphemeralVolumeController,
    fake_host::{FakeHost, SharedDisks},
    files::{Files, LocalFiles},
    kinds::{Labels, NodeObject},
    kubelet::{Kubelet, RootDir, host_address},
    observer::ClusterStepObserver,
    scheduler::Scheduler,
};

/// Kubelet's root where mounts are recorded: nothing of it is on the disk.
const RECORDED_KUBELET_ROOT: &str = "/var/lib/kubelet";
/// How long a call may take whose caller names no deadline.
const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Where roots of attachments are that no driver has: nothing is there.
const NONEXISTENT_ROOT: &str = "/nonexistent";

/// How mounts are made.
#[derive(Clone, Debug)]
pub enum Mounts {
    /// They are recorded, and checked for kubelet's rules.
    Recorded,
    /// By the kernel, as root, under the operator's policy.
    Real(Box<NodePolicy>),
}

/// A driver of the cluster.
#[derive(Clone, Debug)]
pub struct NodeDriver {
    /// Its name.
    pub name: String,
    /// Who serves kubelet for it.
    pub plugin: NodePlugin,
    /// Whether it is on every node, and not on the first one alone.
    pub on_every_node: bool,
}

/// Who serves kubelet for a driver.
#[derive(Clone, Debug)]
pub enum NodePlugin {
    /// Our Node service.
    BuiltIn {
        /// What it knows of the driver.
        manifest: Box<DriverManifest>,
        /// Where the paths of its attachments begin, where it has such ones.
        root: Option<PathBuf>,
    },
    /// The driver itself, on the socket where it listens.
    External(Address),
}

/// What a cluster is made of.
pub struct DevClusterOptions {
    /// Client of the API, without retries of its own.
    pub client: kube::Client,
    /// The wall clock.
    pub clock: Clock,
    /// Hears of every step.
    pub observer: Arc<dyn ClusterStepObserver>,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// A directory for sockets, and for what is mounted for real: there, and nobody else's.
    pub directory: PathBuf,
    /// The drivers, each of another name.
    pub drivers: Vec<NodeDriver>,
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
        source: ApiError,
    },
    /// A socket cannot be listened on.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The machine is not fit for it.
    #[error("{0}")]
    Setup(String),
    /// What serves the nodes' drivers has ended by itself.
    #[error("a server of the nodes ended before it was told to: {0}")]
    ServerEnded(String),
}

/// One node.
struct SimulatedNode {
    kubelet: Arc<Kubelet>,
    host: FakeHost,
    registration_sockets: BTreeSet<PathBuf>,
}

/// The nodes, the scheduler, and what else is simulated.
pub struct DevCluster {
    client: Arc<ClusterClient>,
    events: EventLoop,
    scheduler: Arc<Scheduler>,
    ephemeral: Arc<EphemeralVolumeController>,
    nodes: Vec<SimulatedNode>,
    disks: SharedDisks,
    servers: Vec<Server>,
    registrars: Vec<(Arc<Registrar>, Arc<Kubelet>, PathBuf, RootDir)>,
}

/// What shows how far the nodes are, and what is left on them.
#[derive(Clone)]
pub struct NodesView {
    nodes: Vec<(Arc<Kubelet>, FakeHost, BTreeSet<PathBuf>)>,
}

impl NodesView {
    /// Waits until every driver is registered on its nodes.
    pub async fn wait_until_registered(&self) {
        for (kubelet, _, sockets) in &self.nodes {
            // The sender lives as long as the kubelet: waiting cannot fail.
            let _ = kubelet.registered_sockets().wait_for(|there| sockets.is_subset(there)).await;
        }
    }

    /// Waits until no node has anything mounted for a pod.
    pub async fn wait_until_unmounted(&self) {
        for (kubelet, ..) in &self.nodes {
            kubelet.wait_until_unmounted().await;
        }
    }

    /// What is still mounted, attached or written down on the nodes, and which rules were broken, for people.
    pub fn leftovers(&self) -> Vec<String> {
        let leftovers_of = |(kubelet, dry, _): &(Arc<Kubelet>, FakeHost, BTreeSet<PathBuf>)| {
            [kubelet.leftovers(), dry.leftovers(), dry.violations()].concat()
        };
        self.nodes.iter().flat_map(leftovers_of).collect()
    }
}

impl DevCluster {
    /// Makes the nodes and their sockets; nothing runs yet.
    ///
    /// # Errors
    /// [`DevError`]
    pub async fn new(options: DevClusterOptions) -> Result<Self, DevError> {
        let DevClusterOptions { client, clock, observer, nodes, directory, drivers, mounts } = options;
        let (cluster_client, events) = ClusterClient::new(client, clock, observer);
        let cluster_client = Arc::new(cluster_client);
        let mut cluster = Self {
            scheduler: Scheduler::new(Arc::clone(&cluster_client)),
            ephemeral: EphemeralVolumeController::new(Arc::clone(&cluster_client)),
            client: cluster_client,
            events,
            nodes: Vec::new(),
            disks: SharedDisks::default(),
            servers: Vec::new(),
            registrars: Vec::new(),
        };
        for (number, name) in nodes.into_iter().enumerate() {
            let node_drivers: Vec<&NodeDriver> =
                drivers.iter().filter(|driver| driver.on_every_node || number == 0).collect();
            cluster.add_node(number, NodeName::from(name), &directory, (&node_drivers, &mounts)).await?;
        }
        Ok(cluster)
    }

    /// What shows the nodes while they run.
    pub fn view(&self) -> NodesView {
        let view_of = |place: &SimulatedNode| {
            (Arc::clone(&place.kubelet), place.host.clone(), place.registration_sockets.clone())
        };
        NodesView { nodes: self.nodes.iter().map(view_of).collect() }
    }

    async fn add_node(
        &mut self,
        number: usize,
        name: NodeName,
        directory: &Path,
        (drivers, mounts): (&[&NodeDriver], &Mounts),
    ) -> Result<(), DevError> {
        let labels = node_labels(&name, number, drivers);
        create_node(&self.client, &name, number, &labels)
            .await
            .map_err(|source| DevError::Node { node: name.to_string(), source })?;
        let kubelet = Kubelet::new(Arc::clone(&self.client), name.clone(), number);
        let mut node = SimulatedNode {
            kubelet,
            host: FakeHost::new(self.disks.clone()),
            registration_sockets: BTreeSet::new(),
        };
        // Short names: a socket's path has 107 bytes at most, and drivers have long ones.
        let node_dir = directory.join((number + 1).to_string());
        let registry = node_dir.join("reg");
        make_directory(&registry)?;
        for (index, driver) in drivers.iter().enumerate() {
            let kubelet_root = kubelet_root(&node_dir);
            let (endpoint, root_dir) = match &driver.plugin {
                NodePlugin::External(address) => {
                    make_directory(Path::new(&kubelet_root))?;
                    (address.clone(), RootDir { path: kubelet_root, files: Arc::new(LocalFiles) })
                }
                NodePlugin::BuiltIn { manifest, root } => {
                    let address: Address = node_dir
                        .join(format!("{index}.sock"))
                        .display()
                        .to_string()
                        .parse()
                        .map_err(setup_error)?;
                    let segments = manifest.topology_segments(name.as_str(), &labels).map_err(setup_error)?;
                    let topology = NodeIdentity { node_id: name.to_string(), topology_segments: segments };
                    let socket = ServerSocket::bind(&SocketOptions::new(address.clone())).await?;
                    let records = node_dir.join(format!("{index}.volumes"));
                    let root_dir = self.serve(
                        &node.host,
                        socket,
                        manifest,
                        root.as_deref(),
                        topology,
                        mounts,
                        (kubelet_root, records),
                    )?;
                    (address, root_dir)
                }
            };
            let registrar = Arc::new(Registrar::new(
                driver.name.clone(),
                endpoint.path().display().to_string(),
                &registry,
            ));
            let socket = registry.join(format!("{}@reg.sock", driver.name));
            // Too long a path would be told when nobody listens any more.
            socket.display().to_string().parse::<Address>().map_err(setup_error)?;
            node.registration_sockets.insert(socket.clone());
            self.registrars.push((registrar, Arc::clone(&node.kubelet), socket, root_dir));
        }
        self.nodes.push(node);
        Ok(())
    }

    /// Puts our Node service on its socket.
    #[expect(clippy::too_many_arguments, reason = "what a Node service is made of, used once")]
    fn serve(
        &mut self,
        host: &FakeHost,
        socket: ServerSocket,
        manifest: &DriverManifest,
        root: Option<&Path>,
        topology: NodeIdentity,
        mounts: &Mounts,
        (real, records): (String, PathBuf),
    ) -> Result<RootDir, DevError> {
        match mounts {
            Mounts::Recorded => {
                let policy = allow_all_policy(root);
                let node = self.new_node(host.mounter(), RECORDED_KUBELET_ROOT, policy)?;
                self.add_server(socket, NodeService::new(node, manifest.clone(), topology), manifest);
                host.make_directory(RECORDED_KUBELET_ROOT).map_err(DevError::Setup)?;
                Ok(RootDir { path: RECORDED_KUBELET_ROOT.to_owned(), files: Arc::new(host.clone()) })
            }
            Mounts::Real(policy) => {
                make_directory(Path::new(&real))?;
                make_directory(&records)?;
                let policy = with_root(policy, root);
                policy
                    .validate()
                    .map_err(|problem| DevError::Setup(format!("the node's policy: {problem}")))?;
                let mounter = real_mounter(&policy, &records)?;
                let node = self.new_node(mounter, &real, policy)?;
                self.add_server(socket, NodeService::new(node, manifest.clone(), topology), manifest);
                Ok(RootDir { path: real, files: Arc::new(LocalFiles) })
            }
        }
    }

    fn new_node<M: Mounter>(
        &self,
        mounter: M,
        root: &str,
        policy: NodePolicy,
    ) -> Result<NodeVolumes<M>, DevError> {
        let roots = KubeletRoots::new([root.to_owned()]).map_err(setup_error)?;
        Ok(NodeVolumes::new(mounter, roots, policy))
    }

    fn add_server<M: Mounter + 'static>(
        &mut self,
        socket: ServerSocket,
        service: NodeService<M>,
        manifest: &DriverManifest,
    ) {
        let options =
            ServerOptions { driver: manifest.driver().to_string(), default_timeout: DEFAULT_CALL_TIMEOUT };
        let server = Server::new(socket, options, &ServerMetrics::default())
            .with_service(IdentityServer::new(service.clone()))
            .with_service(NodeServer::new(service));
        self.servers.push(server);
    }

    /// Runs everything until `stop`, or until something ends by itself; then what is mounted is unmounted,
    /// and the sockets go.
    ///
    /// # Errors
    /// What has ended by itself; `stop` is cancelled then.
    pub async fn run(self, stop: CancellationToken) -> Result<(), DevError> {
        let Self { client: world, events, scheduler, ephemeral, nodes: places, servers, registrars, .. } =
            self;
        let (mut tasks, servers_stop) = (JoinSet::new(), CancellationToken::new());
        for server in servers {
            let server_task = server.serve(servers_stop.clone());
            tasks.spawn(async move {
                server_task.await;
                Err(DevError::ServerEnded("a driver's socket is served no more".to_owned()))
            });
        }
        for (registrar, kubelet, socket, ground) in registrars {
            tasks.spawn(serve_registrar(registrar, kubelet, (socket, ground), servers_stop.clone()));
        }
        let reflectors = world.run_reflectors(&stop);
        let controllers = async {
            tokio::select! {
                () = stop.cancelled() => return,
                () = world.wait_until_synced() => {}
            }
            let kubelets = places.iter().map(|place| place.kubelet.run(stop.clone()));
            tokio::join!(
                scheduler.run(stop.clone()),
                ephemeral.run(stop.clone()),
                futures::future::join_all(kubelets),
            );
        };
        let mut all = pin!(async { tokio::join!(reflectors, controllers, events.run(stop.clone())) });
        let result = tokio::select! {
            _ = &mut all => Ok(()),
            Some(ended) = tasks.join_next() => {
                stop.cancel();
                all.as_mut().await;
                ended.unwrap_or_else(|broken| Err(DevError::ServerEnded(broken.to_string())))
            }
        };
        futures::future::join_all(places.iter().map(|place| place.kubelet.unmount_all())).await;
        servers_stop.cancel();
        while tasks.join_next().await.is_some() {}
        result
    }
}

/// Serves a registrar, and tells kubelet of its socket as often as it appears: that is what kubelet's eye on
/// its directory is for.
async fn serve_registrar(
    registrar: Arc<Registrar>,
    kubelet: Arc<Kubelet>,
    (socket, root_dir): (PathBuf, RootDir),
    stop: CancellationToken,
) -> Result<(), DevError> {
    let mut state = registrar.state();
    let metrics = ServerMetrics::default();
    let serving = Arc::clone(&registrar).serve(&metrics, stop.clone());
    let discovery = async {
        while state.changed().await.is_ok() {
            let is_waiting = *state.borrow_and_update() == cofferdam_node::RegistrationState::Pending;
            if is_waiting {
                kubelet.add_registration_socket(socket.clone(), root_dir.clone());
            }
        }
    };
    tokio::select! {
        served = serving => Ok(served?),
        () = discovery => Err(DevError::ServerEnded("a driver's registrar has gone".to_owned())),
    }
}

/// Everything is allowed where nothing is done.
fn allow_all_policy(root: Option<&Path>) -> NodePolicy {
    // A pattern that means every device is refused, for nobody means it; there are none here.
    let first_char = ('a'..='z').chain('A'..='Z').chain('0'..='9');
    let patterns =
        first_char.filter_map(|first_char| StableIdPattern::new(format!("{first_char}*")).ok()).collect();
    let root = root.map_or_else(|| NONEXISTENT_ROOT.to_owned(), |root| root.display().to_string());
    NodePolicy {
        connection_kinds: AttachmentKind::ALL.into(),
        directory_root: Some(root.clone()),
        image_root: Some(root),
        stable_ids: patterns,
        tmpfs_max_bytes: Some(u64::MAX),
        filesystems: cofferdam_node::Filesystem::ALL.into(),
        inline: cofferdam_node::InlinePolicy { tmpfs_max_bytes: Some(1 << 30) },
        ..NodePolicy::default()
    }
}

/// The operator's policy, with the directory that the operator has given the driver.
fn with_root(policy: &NodePolicy, root: Option<&Path>) -> NodePolicy {
    let mut policy = policy.clone();
    if let Some(root) = root {
        let root = Some(root.display().to_string());
        policy.connection_kinds.extend([AttachmentKind::Directory, AttachmentKind::Image]);
        policy.directory_root = policy.directory_root.or_else(|| root.clone());
        policy.image_root = policy.image_root.or(root);
    }
    policy
}

fn setup_error(error: impl std::fmt::Display) -> DevError {
    DevError::Setup(error.to_string())
}

#[cfg(target_os = "linux")]
fn real_mounter(policy: &NodePolicy, records: &Path) -> Result<cofferdam_node::LinuxMounter, DevError> {
    if !can_mount() {
        return Err(DevError::Setup("this process may not mount: expected root for real mounts".to_owned()));
    }
    cofferdam_node::LinuxMounter::open(policy, records).map_err(setup_error)
}

/// Whether the process has CAP_SYS_ADMIN; where nobody says so it is tried.
#[cfg(target_os = "linux")]
fn can_mount() -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
    capabilities.is_none_or(|capabilities| capabilities & SYS_ADMIN != 0)
}

#[cfg(not(target_os = "linux"))]
fn real_machine(_: &NodePolicy, _: &Path) -> Result<crate::fake_host::FakeMounter, DevError> {
    Err(DevError::Setup("real mounts need Linux".to_owned()))
}

/// Kubelet's root for what is mounted for real.
fn kubelet_root(node_dir: &Path) -> String {
    node_dir.join("kubelet").display().to_string()
}

fn make_directory(path: &Path) -> Result<(), DevError> {
    LocalFiles.make_directory(&path.display().to_string()).map_err(DevError::Setup)
}

/// Labels of a node. Every key of a driver's topology gets a value, for a real node has them from whoever set
/// it up.
fn node_labels(name: &NodeName, number: usize, drivers: &[&NodeDriver]) -> Labels {
    let zone = format!("zone-{}", number + 1);
    let mut labels: Labels = BTreeMap::from([
        ("kubernetes.io/hostname".to_owned(), name.to_string()),
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("topology.kubernetes.io/region".to_owned(), "dev".to_owned()),
        ("topology.kubernetes.io/zone".to_owned(), zone.clone()),
    ]);
    for driver in drivers {
        if let NodePlugin::BuiltIn { manifest, .. } = &driver.plugin {
            for key in manifest.topology_labels() {
                labels.entry(key.to_owned()).or_insert_with(|| zone.clone());
            }
        }
    }
    labels
}

/// The Node, ready: what kubelet and the node lifecycle controller would come to.
async fn create_node(
    client: &ClusterClient,
    name: &NodeName,
    number: usize,
    labels: &Labels,
) -> Result<(), ApiError> {
    let now = client.now();
    let body = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {names::CONTROLLER_MANAGED_ATTACH: "true"},
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
    let node = client.create::<NodeObject>(&body).await?;
    // New nodes are not ready, the API says; this one is.
    let patch = json!({"spec": {"taints": null}});
    client.patch::<NodeObject>(&node, "", PatchType::Merge, patch).await.map(drop)
}
