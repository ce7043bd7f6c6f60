//! The simulated part of dev mode's cluster: the scheduler, the ephemeral volume controller, and the nodes.
//! Each node has a Node object, a simulated kubelet, and on real sockets a registration service for each of
//! its drivers and a Node service for each driver without its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::{ApiError, Clock, events::EventLoop, observer::StepObserver};
use cofferdam_csi::{
    Address,
    server::{Server, ServerMetrics, ServerOptions, ServerSocket, SocketError, SocketOptions},
    v1::{identity_server::IdentityServer, node_server::NodeServer},
};
use cofferdam_domain::{NodeName, Uid, VolumeName, names};
use cofferdam_fake_host::{FakeHost, FakeMounter, SharedDisks};
use cofferdam_node::{
    ConnectionKind, DriverManifest, KubeletRoots, Mounter, NodeIdentity, NodePolicy, NodeService,
    NodeVolumes, Registrar, StableIdPattern,
};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    client::{ClusterClient, PatchType},
    ephemeral_volume::EphemeralVolumeController,
    files::{FileError, Files, LocalFiles},
    kinds::{FullNode, Labels},
    kubelet::{Kubelet, RootDir, host_address},
    scheduler::Scheduler,
};

/// Kubelet's root directory for the volumes of a driver with Cofferdam's Node service if mounts are
/// recorded. The directory exists in the fake host only.
const RECORDED_KUBELET_ROOT: &str = "/var/lib/kubelet";
/// Timeout of calls to Cofferdam's Node services without a gRPC deadline.
const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Root of directories and images in the policy for recorded mounts if the driver has no root; the directory
/// does not exist.
const NONEXISTENT_ROOT: &str = "/nonexistent";

/// Mounts by Cofferdam's Node services: recorded in memory, or made by the kernel. A driver with its own Node
/// service mounts its volumes itself.
#[derive(Clone, Debug)]
pub enum Mounts {
    /// Mounts are recorded in memory by a fake host, which also records violated rules.
    Recorded,
    /// The kernel mounts the volumes that this policy allows. If a [`NodePlugin::BuiltIn`] has a `root`,
    /// directories and images are allowed, too: beneath the root that the policy sets for them, else beneath
    /// the driver's `root`. Real mounts need Linux and CAP_SYS_ADMIN.
    Real(Box<NodePolicy>),
}

/// A driver of the cluster.
#[derive(Clone, Debug)]
pub struct NodeDriver {
    /// The driver's name.
    pub name: String,
    /// The node plugin.
    pub plugin: NodePlugin,
    /// True if the driver is on every node, false if it is on the first node only.
    pub on_every_node: bool,
}

/// A node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeOptions {
    /// Name of the Node.
    pub name: String,
    /// `spec.providerID` of the Node.
    pub provider_id: Option<String>,
    /// Labels of the Node, in addition to those that the cluster sets, or in place of them.
    pub labels: BTreeMap<String, String>,
}

impl NodeOptions {
    /// A node without labels of its own.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

/// The node plugin of a driver.
#[derive(Clone, Debug)]
pub enum NodePlugin {
    /// Cofferdam's Node service. The cluster runs one for the driver on each of the driver's nodes.
    BuiltIn {
        /// Description of the driver, as `cofferdam backend inspect --output manifest` prints it.
        manifest: Box<DriverManifest>,
        /// For a driver that stores its volumes in a directory of this machine (a pool): that directory. It
        /// contains the directories and images that the driver's connection info names. `None` for other
        /// drivers.
        root: Option<PathBuf>,
    },
    /// The driver's own Node service, which listens on this socket. The cluster does not run it.
    External(Address),
}

/// Options of a [`DevCluster`].
pub struct DevClusterOptions {
    /// Client of the API server. It must not repeat failed requests: the simulated components do that.
    pub client: kube::Client,
    /// The wall clock.
    pub clock: Clock,
    /// Observer that receives the steps of the simulated components.
    pub observer: Arc<dyn StepObserver>,
    /// The nodes. The first one has all drivers.
    pub nodes: Vec<NodeOptions>,
    /// A directory for sockets, volume records, and kubelet's files and mounts on this machine. Only this
    /// cluster uses it.
    pub directory: PathBuf,
    /// The drivers; names are unique.
    pub drivers: Vec<NodeDriver>,
    /// Recorded or real mounts.
    pub mounts: Mounts,
}

/// A cluster could not be created, or one of its servers failed while it ran. The message has one line.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    /// The Node could not be created, or its not-ready taint could not be removed.
    #[error("node {node}: {source}")]
    Node {
        /// The node.
        node: String,
        /// The error.
        source: ApiError,
    },
    /// The server of a driver's Node service or registration socket could not listen on its socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A directory could not be created.
    #[error(transparent)]
    File(#[from] FileError),
    /// A node could not be set up for another reason, which the text names: for example, a socket path is too
    /// long, the policy is not valid, or real mounts are not possible.
    #[error("{0}")]
    Setup(String),
    /// The server of a driver's Node service or registration socket ended by itself or panicked.
    #[error("a server of the nodes stopped unexpectedly: {0}")]
    ServerEnded(String),
}

/// One node.
struct SimulatedNode {
    kubelet: Arc<Kubelet>,
    host: FakeHost,
    registration_sockets: BTreeSet<PathBuf>,
}

/// The simulated nodes, scheduler and ephemeral volume controller. They run during [`Self::run`].
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

/// A view of the nodes: the drivers' registrations, the mounts and files that remain, and violated rules.
#[derive(Clone)]
pub struct NodesView {
    nodes: Vec<(Arc<Kubelet>, FakeHost, BTreeSet<PathBuf>)>,
}

impl NodesView {
    /// Waits until kubelet has registered every driver at least once on each of the driver's nodes.
    pub async fn wait_until_registered(&self) {
        for (kubelet, _, sockets) in &self.nodes {
            // The kubelet owns the sender, so waiting cannot fail.
            let _ = kubelet.registered_sockets().wait_for(|registered| sockets.is_subset(registered)).await;
        }
    }

    /// Waits until no volume is or may be mounted on any node, and no kubelet has a step left for a volume
    /// that was unmounted.
    pub async fn wait_until_unmounted(&self) {
        for (kubelet, ..) in &self.nodes {
            kubelet.wait_until_unmounted().await;
        }
    }

    /// The path on this machine at which a node has published a PersistentVolume for a pod. `None` if no node
    /// has, and if the node's mounts are recorded.
    pub fn published_path(&self, pod: &Uid, volume: &VolumeName) -> Option<PathBuf> {
        self.nodes.iter().find_map(|(kubelet, ..)| kubelet.published_path(pod, volume))
    }

    /// Describes remains on the nodes: volumes that a kubelet did not unmount, and mounts, loop devices and
    /// files of the fake hosts. The rules that were violated on the fake hosts follow. Files and mounts on
    /// this machine are not listed.
    pub fn leftovers(&self) -> Vec<String> {
        let leftovers_of = |(kubelet, host, _): &(Arc<Kubelet>, FakeHost, BTreeSet<PathBuf>)| {
            [kubelet.leftovers(), host.leftovers(), host.violations()].concat()
        };
        self.nodes.iter().flat_map(leftovers_of).collect()
    }
}

impl DevCluster {
    /// Creates the Node objects, the nodes' directories, and the sockets of Cofferdam's Node services.
    /// The sockets are not served, and no simulated component runs, before [`Self::run`].
    ///
    /// # Errors
    /// [`DevError`], except [`DevError::ServerEnded`].
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
        for (number, node) in nodes.into_iter().enumerate() {
            let node_drivers: Vec<&NodeDriver> =
                drivers.iter().filter(|driver| driver.on_every_node || number == 0).collect();
            cluster.add_node(number, node, &directory, (&node_drivers, &mounts)).await?;
        }
        Ok(cluster)
    }

    /// A view of the nodes that can be used while the cluster runs.
    pub fn view(&self) -> NodesView {
        let view_of = |node: &SimulatedNode| {
            (Arc::clone(&node.kubelet), node.host.clone(), node.registration_sockets.clone())
        };
        NodesView { nodes: self.nodes.iter().map(view_of).collect() }
    }

    async fn add_node(
        &mut self,
        number: usize,
        node: NodeOptions,
        directory: &Path,
        (drivers, mounts): (&[&NodeDriver], &Mounts),
    ) -> Result<(), DevError> {
        let labels = node_labels(&node, number, drivers);
        let name = NodeName::from(node.name);
        create_node(&self.client, &name, number, (node.provider_id.as_deref(), &labels))
            .await
            .map_err(|source| DevError::Node { node: name.to_string(), source })?;
        let kubelet = Kubelet::new(Arc::clone(&self.client), name.clone(), number);
        let mut node = SimulatedNode {
            kubelet,
            host: FakeHost::new(self.disks.clone()),
            registration_sockets: BTreeSet::new(),
        };
        // Short names: a socket path is limited to 107 bytes, and driver names are long.
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
            // Check the length of the path here, where the error can be reported.
            socket.display().to_string().parse::<Address>().map_err(setup_error)?;
            node.registration_sockets.insert(socket.clone());
            self.registrars.push((registrar, Arc::clone(&node.kubelet), socket, root_dir));
        }
        self.nodes.push(node);
        Ok(())
    }

    /// Adds a server with Cofferdam's Node service on a socket. Returns kubelet's root directory for the
    /// driver.
    #[expect(clippy::too_many_arguments, reason = "the parts of a Node service, used once")]
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
                let node = self.new_node(FakeMounter::new(host), RECORDED_KUBELET_ROOT, policy)?;
                self.add_server(socket, NodeService::new(node, manifest.clone(), topology), manifest);
                host.make_directory(RECORDED_KUBELET_ROOT)?;
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

    /// Runs the cluster until `stop`, or until a server of a node stops by itself. Then unmounts all volumes,
    /// logs the volumes that cannot be unmounted, and removes the sockets.
    ///
    /// # Errors
    /// [`DevError`] of the server that stopped by itself; `stop` is cancelled in this case.
    pub async fn run(self, stop: CancellationToken) -> Result<(), DevError> {
        let Self { client, events, scheduler, ephemeral, nodes, servers, registrars, .. } = self;
        let (mut tasks, servers_stop) = (JoinSet::new(), CancellationToken::new());
        for server in servers {
            let server_task = server.serve(servers_stop.clone());
            tasks.spawn(async move {
                server_task.await;
                Err(DevError::ServerEnded("the server of a driver's socket".to_owned()))
            });
        }
        for (registrar, kubelet, socket, root_dir) in registrars {
            tasks.spawn(serve_registrar(registrar, kubelet, (socket, root_dir), servers_stop.clone()));
        }
        let reflectors = client.run_reflectors(&stop);
        let controllers = async {
            tokio::select! {
                () = stop.cancelled() => return,
                () = client.wait_until_synced() => {}
            }
            let kubelets = nodes.iter().map(|node| node.kubelet.run(stop.clone()));
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
        futures::future::join_all(nodes.iter().map(|node| node.kubelet.unmount_all())).await;
        servers_stop.cancel();
        while tasks.join_next().await.is_some() {}
        result
    }
}

/// Serves a driver's registration socket. Reports the socket to kubelet each time that the registrar creates
/// it, in place of kubelet's plugin watcher.
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
        () = discovery => Err(DevError::ServerEnded("the registrar of a driver".to_owned())),
    }
}

/// The policy for recorded mounts. It allows all kinds of connections, filesystems and sizes, all devices
/// whose stable ID starts with a letter or a digit, directories and images beneath the driver's root, and
/// inline tmpfs volumes of up to 1 GiB.
fn allow_all_policy(root: Option<&Path>) -> NodePolicy {
    // A pattern that matches every device is rejected as a likely mistake, so use one per first character.
    let first_char = ('a'..='z').chain('A'..='Z').chain('0'..='9');
    let patterns =
        first_char.filter_map(|first_char| StableIdPattern::new(format!("{first_char}*")).ok()).collect();
    let root = root.map_or_else(|| NONEXISTENT_ROOT.to_owned(), |root| root.display().to_string());
    NodePolicy {
        connection_kinds: ConnectionKind::ALL.into(),
        directory_root: Some(root.clone()),
        image_root: Some(root),
        stable_ids: patterns,
        tmpfs_max_bytes: Some(u64::MAX),
        filesystems: cofferdam_node::Filesystem::ALL.into(),
        inline: cofferdam_node::InlinePolicy { tmpfs_max_bytes: Some(1 << 30) },
        ..NodePolicy::default()
    }
}

/// Allows directories and images beneath the driver's root, in addition to the operator's policy. Roots that
/// the policy sets take precedence.
fn with_root(policy: &NodePolicy, root: Option<&Path>) -> NodePolicy {
    let mut policy = policy.clone();
    if let Some(root) = root {
        let root = Some(root.display().to_string());
        policy.connection_kinds.extend([ConnectionKind::Directory, ConnectionKind::Image]);
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
        return Err(DevError::Setup("real mounts need CAP_SYS_ADMIN: run as root".to_owned()));
    }
    cofferdam_node::LinuxMounter::open(policy, records).map_err(setup_error)
}

/// Returns true if the process has CAP_SYS_ADMIN, or if that is unknown.
#[cfg(target_os = "linux")]
fn can_mount() -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
    capabilities.is_none_or(|capabilities| capabilities & SYS_ADMIN != 0)
}

#[cfg(not(target_os = "linux"))]
fn real_mounter(_: &NodePolicy, _: &Path) -> Result<FakeMounter, DevError> {
    Err(DevError::Setup("real mounts need Linux".to_owned()))
}

/// Kubelet's root directory on this machine, for real mounts and for drivers with their own Node service.
fn kubelet_root(node_dir: &Path) -> String {
    node_dir.join("kubelet").display().to_string()
}

fn make_directory(path: &Path) -> Result<(), DevError> {
    Ok(LocalFiles.make_directory(&path.display().to_string())?)
}

/// Labels of a node: those of its options, and the hostname, OS, region and zone. The node's zone is also the
/// value of each topology label of a driver with Cofferdam's Node service, as an administrator would set it.
fn node_labels(node: &NodeOptions, number: usize, drivers: &[&NodeDriver]) -> Labels {
    let mut labels: Labels = BTreeMap::from([
        ("kubernetes.io/hostname".to_owned(), node.name.clone()),
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("topology.kubernetes.io/region".to_owned(), "dev".to_owned()),
    ]);
    labels.extend(node.labels.clone());
    let default_zone = || format!("zone-{}", number + 1);
    let zone = labels.entry("topology.kubernetes.io/zone".to_owned()).or_insert_with(default_zone).clone();
    for driver in drivers {
        if let NodePlugin::BuiltIn { manifest, .. } = &driver.plugin {
            for key in manifest.topology_labels() {
                labels.entry(key.to_owned()).or_insert_with(|| zone.clone());
            }
        }
    }
    labels
}

/// Creates a Ready Node with fields that kubelet sets. Then removes the not-ready taint, as the node
/// lifecycle controller does for a Ready Node.
async fn create_node(
    client: &ClusterClient,
    name: &NodeName,
    number: usize,
    (provider_id, labels): (Option<&str>, &Labels),
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
        "spec": provider_id.map_or_else(|| json!({}), |id| json!({"providerID": id})),
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": host_address(number)},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady",
                "message": "simulated: no container is run",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
            "nodeInfo": {
                "kubeletVersion": concat!("v1.36.0+cofferdam.", env!("CARGO_PKG_VERSION")),
                "kubeProxyVersion": "", "architecture": std::env::consts::ARCH, "operatingSystem": "linux",
                "osImage": "simulated", "kernelVersion": "", "containerRuntimeVersion": "none://",
                "machineID": "", "systemUUID": "", "bootID": "",
            },
        },
    });
    let node = client.create::<FullNode>(&body).await?;
    // kube-apiserver adds the not-ready taint to new nodes.
    let patch = json!({"spec": {"taints": null}});
    client.patch::<FullNode>(&node, "", PatchType::Merge, patch).await.map(drop)
}
