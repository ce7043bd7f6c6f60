//! A node: kubelet, containerd, runc and CNI. Each node of a run has a container runtime of its own.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{core::v1::Node as NodeObject, storage::v1::CSINode};
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    control_plane::{ApiUser, ControlPlane},
    image,
    node_files::{KubeletOptions, NodePaths},
    process::{self, CommandSpec, ManagedProcess},
    run::SuiteRun,
    wait::until,
};

const READY_TIMEOUT: Duration = Duration::from_secs(180);
/// State directory of the first node's containerd; further nodes append a suffix. Every containerd creates
/// the sockets of its shims below this directory. It is in the tmpfs of the run.
const CONTAINERD_STATE: &str = "/run/containerd";
/// kubelet's default root. In a run, `/var/lib` is in memory.
const DEFAULT_KUBELET_ROOT: &str = "/var/lib/kubelet";
/// Size of the disk of kubelet's root in bytes.
const DISK_BYTES: u64 = 1 << 30;

/// Runs `ctr` for the containers of a node's kubelet.
async fn ctr(run: &SuiteRun, paths: &NodePaths, arguments: &[&str]) -> Result<String> {
    let socket = paths.socket();
    let mut all = vec!["--address", &socket, "--namespace", "k8s.io"];
    all.extend(arguments);
    process::run_to_completion(run.peers().program("ctr")?, &all).await
}

/// The paths of the node `number` of a run.
fn node_paths(run: &SuiteRun, number: u8) -> NodePaths {
    let suffix = if number == 0 { String::new() } else { format!("-{number}") };
    NodePaths {
        directory: run.scratch().join(format!("node{suffix}")),
        root: run.scratch().join(format!("kubelet{suffix}")),
        state: format!("{CONTAINERD_STATE}{suffix}").into(),
        subnet: format!("10.88.{number}.0/24"),
        suffix,
    }
}

/// A running node: kubelet and containerd, which are processes of this machine.
#[derive(Debug)]
pub struct KubeletNode {
    name: String,
    paths: NodePaths,
    has_disk: bool,
    /// The container runtime.
    pub containerd: ManagedProcess,
    /// The kubelet.
    pub kubelet: ManagedProcess,
}

impl KubeletNode {
    /// Starts a node of this name, and waits until it is Ready.
    ///
    /// # Errors
    /// If it does not become Ready. The error contains the end of the log of kubelet or containerd.
    pub async fn start(run: &SuiteRun, plane: &ControlPlane, name: &str) -> Result<Self> {
        Self::start_with(run, plane, name, 0, false).await
    }

    /// As [`start`](Self::start), for another node of the run. `number` is above 0 and unique.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_numbered(
        run: &SuiteRun,
        plane: &ControlPlane,
        name: &str,
        number: u8,
    ) -> Result<Self> {
        Self::start_with(run, plane, name, number, false).await
    }

    /// As [`start`](Self::start), with kubelet's root on an ext4 disk. On a tmpfs kubelet has no statistics
    /// of its root, and so none of pods and volumes.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_on_disk(run: &SuiteRun, plane: &ControlPlane, name: &str) -> Result<Self> {
        Self::start_with(run, plane, name, 0, true).await
    }

    /// As [`start`](Self::start), with kubelet's default root, `/var/lib/kubelet`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_at_default_root(run: &SuiteRun, plane: &ControlPlane, name: &str) -> Result<Self> {
        let paths = NodePaths { root: DEFAULT_KUBELET_ROOT.into(), ..node_paths(run, 0) };
        Self::start_in(run, plane, name, paths, false).await
    }

    async fn start_with(
        run: &SuiteRun,
        plane: &ControlPlane,
        name: &str,
        number: u8,
        has_disk: bool,
    ) -> Result<Self> {
        Self::start_in(run, plane, name, node_paths(run, number), has_disk).await
    }

    async fn start_in(
        run: &SuiteRun,
        plane: &ControlPlane,
        name: &str,
        paths: NodePaths,
        has_disk: bool,
    ) -> Result<Self> {
        fs::create_dir_all(paths.directory.join("cni"))?;
        fs::write(paths.directory.join("cni/10-conformance.conflist"), paths.cni_config().to_string())?;
        let containerd = start_containerd(run, &paths).await?;
        if has_disk {
            mount_disk("mkfs.ext4", &run.scratch().join("disk"), DISK_BYTES, &paths.root).await?;
        }
        let spec = kubelet_command(run, plane, name, &paths, has_disk)?;
        let kubelet = ManagedProcess::start(run, spec)?;
        let mut node = Self { name: name.to_owned(), paths, has_disk, containerd, kubelet };
        node.wait_ready(plane).await?;
        Ok(node)
    }

    /// Imports the images of an archive, in the format of Docker or OCI.
    ///
    /// # Errors
    /// If containerd rejects the archive.
    pub(crate) async fn import_images(&self, run: &SuiteRun, archive: &Path) -> Result<()> {
        ctr(run, &self.paths, &["images", "import", &archive.display().to_string()]).await?;
        Ok(())
    }

    /// Removes an image from containerd. Its containers continue.
    pub(crate) async fn remove_image(&self, run: &SuiteRun, image: &str) -> Result<()> {
        ctr(run, &self.paths, &["images", "rm", "--sync", image]).await?;
        Ok(())
    }

    /// kubelet's root directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.paths.root
    }

    /// Path of containerd's socket.
    pub(crate) fn socket(&self) -> String {
        self.paths.socket()
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until the node is Ready.
    ///
    /// # Errors
    /// If it does not become Ready. The error contains the end of kubelet's log.
    pub async fn wait_ready(&mut self, plane: &ControlPlane) -> Result<()> {
        let name = &self.name;
        self.kubelet.wait_ready(READY_TIMEOUT, async || ensure_ready(plane.client(), name).await).await
    }

    /// Waits until no mount or container of a pod is left on this node, and no pod network on any node of the
    /// run.
    ///
    /// # Errors
    /// If a mount or container is left after `limit`, or a pod network after another `limit`.
    pub async fn wait_idle(&self, run: &SuiteRun, limit: Duration) -> Result<()> {
        self.wait_without_pods(run, limit).await?;
        until("no network of a pod is left", limit, async || {
            let mounts = fs::read_to_string("/proc/self/mountinfo")?;
            let mounted = mounts.lines().find(|line| line.contains("/netns/"));
            ensure!(mounted.is_none(), "mounted: {}", mounted.unwrap_or_default());
            Ok(())
        })
        .await
    }

    /// Waits until no mount or container of a pod is left on this node. Ignores pod networks, whose mounts do
    /// not name their node.
    ///
    /// # Errors
    /// If a mount or container is left after `limit`.
    pub async fn wait_without_pods(&self, run: &SuiteRun, limit: Duration) -> Result<()> {
        until("nothing of a pod is left on the node", limit, async || {
            let mounts = fs::read_to_string("/proc/self/mountinfo")?;
            let own = [self.root().join("pods"), self.paths.state.clone()];
            let at = |line: &&str| {
                line.split(' ').nth(4).is_some_and(|at| own.iter().any(|own| Path::new(at).starts_with(own)))
            };
            let mounted = mounts.lines().find(at);
            ensure!(mounted.is_none(), "mounted: {}", mounted.unwrap_or_default());
            let tasks = ctr(run, &self.paths, &["tasks", "list", "--quiet"]).await?;
            ensure!(tasks.trim().is_empty(), "containers: {}", tasks.trim());
            Ok(())
        })
        .await
    }

    /// Stops kubelet and containerd, and unmounts the disk of [`start_on_disk`](Self::start_on_disk).
    /// Remaining containers end with the run.
    ///
    /// # Errors
    /// If kubelet or containerd has ended by itself or had to be killed, or the disk cannot be unmounted.
    pub async fn stop(mut self) -> Result<()> {
        self.kubelet.stop().await?;
        self.containerd.stop().await?;
        if self.has_disk {
            process::run_to_completion("umount", &[&self.root().display().to_string()]).await?;
        }
        Ok(())
    }

    /// Simulates a loss of power: kills kubelet, the container runtime and every container, and removes the
    /// mounts.
    ///
    /// # Errors
    /// If kubelet or containerd had exited before, a process of a container does not end, or a mount cannot
    /// be removed.
    pub async fn lose_power(&mut self) -> Result<()> {
        self.kubelet.kill().await?;
        self.containerd.kill().await?;
        let socket = self.paths.socket();
        let mut containers = BTreeSet::new();
        loop {
            let found = containerd_descendants(&list_processes()?, &socket);
            let started: Vec<u32> = found.difference(&containers).copied().collect();
            if started.is_empty() {
                break;
            }
            // Stopped processes start no others: when none is new, all are known.
            signal_all(&started, Signal::STOP);
            containers.extend(started);
        }
        let networks: BTreeSet<String> = containers.iter().filter_map(|id| network_namespace(*id)).collect();
        signal_all(&containers, Signal::KILL);
        until("its containers have ended", READY_TIMEOUT, async || {
            let remaining = list_processes()?.into_iter().find(|one| containers.contains(&one.id));
            ensure!(remaining.is_none(), "{remaining:?} runs");
            Ok(())
        })
        .await?;
        self.unmount(&networks).await
    }

    /// Restarts the node after [`lose_power`](Self::lose_power), and waits until it is Ready. Does not mount
    /// the disk of [`start_on_disk`](Self::start_on_disk) again.
    ///
    /// # Errors
    /// If it does not become Ready. The error contains the end of the log of kubelet or containerd.
    pub async fn power_on(&mut self, run: &SuiteRun, plane: &ControlPlane) -> Result<()> {
        // A reboot removes containerd's state of containers.
        for entry in fs::read_dir(&self.paths.state)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("io.containerd.")) {
                fs::remove_dir_all(&path)?;
            }
        }
        self.containerd.restart()?;
        let paths = &self.paths;
        self.containerd
            .wait_ready(READY_TIMEOUT, async || ctr(run, paths, &["version"]).await.map(|_| ()))
            .await?;
        self.kubelet.restart()?;
        self.wait_ready(plane).await
    }

    /// Lazily unmounts everything at or below kubelet's root and containerd's state directory, and the bind
    /// mounts of these network namespaces, which have names such as `net:[4026531840]`.
    async fn unmount(&self, networks: &BTreeSet<String>) -> Result<()> {
        let table = fs::read_to_string("/proc/self/mountinfo")?;
        // In reverse order of mounting.
        for line in table.lines().rev() {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, _, _, root, at, ..] = words.as_slice() else { continue };
            let inside =
                [&self.paths.root, &self.paths.state].iter().any(|own| Path::new(at).starts_with(own));
            if inside || networks.contains(*root) {
                process::run_to_completion("umount", &["--lazy", at]).await?;
            }
        }
        Ok(())
    }
}

/// A process of the run's PID namespace.
#[derive(Debug)]
struct ProcessInfo {
    id: u32,
    parent: u32,
    arguments: String,
}

/// The process IDs of the shims of the containerd with this socket, and of their descendants.
fn containerd_descendants(all: &[ProcessInfo], socket: &str) -> BTreeSet<u32> {
    let is_shim =
        |one: &ProcessInfo| one.arguments.contains("containerd-shim") && one.arguments.contains(socket);
    let mut found: BTreeSet<u32> = all.iter().filter(|one| is_shim(one)).map(|one| one.id).collect();
    loop {
        let children: Vec<u32> = all
            .iter()
            .filter(|one| found.contains(&one.parent) && !found.contains(&one.id))
            .map(|one| one.id)
            .collect();
        if children.is_empty() {
            return found;
        }
        found.extend(children);
    }
}

/// Signals processes, and ignores those that have exited.
fn signal_all<'a>(ids: impl IntoIterator<Item = &'a u32>, signal: Signal) {
    for id in ids {
        if let Some(id) = Pid::from_raw(id.cast_signed()) {
            let _ = kill_process(id, signal);
        }
    }
}

/// All processes of the run's PID namespace.
fn list_processes() -> Result<Vec<ProcessInfo>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // The process has exited meanwhile.
        let Ok(status) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Ok(arguments) = fs::read(entry.path().join("cmdline")) else { continue };
        let parent = status.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        let parent = parent.with_context(|| format!("/proc/{id}/stat has no parent: {status}"))?;
        all.push(ProcessInfo {
            id,
            parent,
            arguments: String::from_utf8_lossy(&arguments).replace('\0', " "),
        });
    }
    Ok(all)
}

/// The network namespace of a process, such as `net:[4026531840]`, as in mountinfo. `None` if it has exited.
fn network_namespace(id: u32) -> Option<String> {
    Some(fs::read_link(format!("/proc/{id}/ns/net")).ok()?.to_str()?.to_owned())
}

/// Creates a sparse file of `bytes` with a file system by the program `mkfs`, and mounts it at a directory.
/// The loop device is detached on unmount.
///
/// # Errors
/// If the file or the directory cannot be created, or a program fails.
pub(crate) async fn mount_disk(mkfs: &str, disk: &Path, bytes: u64, directory: &Path) -> Result<()> {
    fs::File::create(disk)?.set_len(bytes)?;
    fs::create_dir_all(directory)?;
    let (disk, mounted) = (disk.display().to_string(), directory.display().to_string());
    process::run_to_completion(mkfs, &["-q", &disk]).await?;
    process::run_to_completion("mount", &["-o", "loop", &disk, &mounted]).await?;
    Ok(())
}

async fn start_containerd(run: &SuiteRun, paths: &NodePaths) -> Result<ManagedProcess> {
    let directory = &paths.directory;
    let configuration = directory.join("containerd.toml");
    fs::write(&configuration, paths.containerd_config())?;
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", run.peers().directory().display());
    let spec = CommandSpec::new(format!("containerd{}", paths.suffix), run.peers().program("containerd")?)
        .arg(format_args!("--config={}", configuration.display()))
        .env("PATH", path);
    let mut process = ManagedProcess::start(run, spec)?;
    process.wait_ready(READY_TIMEOUT, async || ctr(run, paths, &["version"]).await.map(|_| ())).await?;
    let images = directory.join("images");
    fs::create_dir_all(&images)?;
    let archive = image::write_archive(&images).await?.display().to_string();
    ctr(run, paths, &["images", "import", &archive]).await?;
    Ok(process)
}

/// Writes the images of the harness and of further archives to the directory of a node that does not run.
///
/// # Errors
/// If containerd does not become ready, or rejects an archive.
pub(crate) async fn write_images(run: &SuiteRun, paths: &NodePaths, archives: &[&Path]) -> Result<()> {
    fs::create_dir_all(&paths.directory)?;
    let mut containerd = start_containerd(run, paths).await?;
    for archive in archives {
        ctr(run, paths, &["images", "import", &archive.display().to_string()]).await?;
    }
    containerd.stop().await
}

fn kubelet_command(
    run: &SuiteRun,
    plane: &ControlPlane,
    name: &str,
    paths: &NodePaths,
    has_disk: bool,
) -> Result<CommandSpec> {
    let directory = &paths.directory;
    fs::write(paths.resolver(), "")?;
    let configuration = directory.join("kubelet.json");
    let options = KubeletOptions {
        ports: [run.free_port()?, run.free_port()?],
        client_authority: &plane.authority().file(),
        // The run's name, by which leftovers of a killed run are found.
        cgroup: &Path::new("/").join(run.scratch().file_name().unwrap_or_default()),
        has_disk,
        is_slow: false,
    };
    fs::write(&configuration, paths.kubelet_config(&options).to_string())?;
    Ok(CommandSpec::new(format!("kubelet{}", paths.suffix), run.peers().program("kubelet")?)
        .arg(format_args!("--config={}", configuration.display()))
        .arg(format_args!("--kubeconfig={}", plane.kubeconfig(ApiUser::Node(name))?.display()))
        .arg(format_args!("--root-dir={}", paths.root.display()))
        .arg(format_args!("--cert-dir={}", directory.join("pki").display()))
        .arg(format_args!("--hostname-override={name}")))
}

/// Checks that a node is Ready.
///
/// # Errors
/// If it is not, or the request fails.
pub(crate) async fn ensure_ready(client: &Client, name: &str) -> Result<()> {
    let node = Api::<NodeObject>::all(client.clone()).get(name).await?;
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    let ready = ready.context("it has no condition Ready")?;
    ensure!(ready.status == "True", "{}", ready.message.unwrap_or_default());
    Ok(())
}

/// Checks that kubelet has registered a driver on a node.
///
/// # Errors
/// If the CSINode has no such driver, or the request fails.
pub(crate) async fn ensure_registered(client: &Client, node: &str, driver: &str) -> Result<()> {
    let drivers = Api::<CSINode>::all(client.clone()).get(node).await?.spec.drivers;
    ensure!(drivers.iter().any(|registered| registered.name == driver), "CSINode has {drivers:?}");
    Ok(())
}
