//! A real node: containerd, runc, CNI and kubelet. A run may have several, each with a container runtime of its own.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Api;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    control_plane::{ControlPlane, User},
    image,
    peers::{CNI_PLUGINS, RUNC},
    process::{self, Process, Spec},
    run::Run,
    wait::until,
};

const READY: Duration = Duration::from_secs(180);
/// containerd puts the sockets of its shims here whatever it is told; the directory is the run's own.
const STATE: &str = "/run/containerd";
/// Bytes of a disk of its root.
const DISK: u64 = 1 << 30;

/// Where a node of the machine has its things.
#[derive(Clone, Debug)]
struct Place {
    /// What names of directories and logs end with: nothing for the first node.
    suffix: String,
    /// containerd, CNI and kubelet's configuration.
    directory: PathBuf,
    /// kubelet's plugins and pods.
    root: PathBuf,
    /// What of containerd does not outlive the machine.
    state: PathBuf,
    /// Addresses of its pods.
    subnet: String,
}

impl Place {
    fn new(run: &Run, number: u8) -> Self {
        let suffix = if number == 0 { String::new() } else { format!("-{number}") };
        Self {
            directory: run.scratch().join(format!("node{suffix}")),
            root: run.scratch().join(format!("kubelet{suffix}")),
            state: format!("{STATE}{suffix}").into(),
            subnet: format!("10.88.{number}.0/24"),
            suffix,
        }
    }

    fn socket(&self) -> String {
        self.state.join("containerd.sock").display().to_string()
    }

    async fn ctr(&self, run: &Run, arguments: &[&str]) -> Result<String> {
        let socket = self.socket();
        let mut all = vec!["--address", &socket, "--namespace", "k8s.io"];
        all.extend(arguments);
        process::output(run.peers().program("ctr")?, &all).await
    }
}

/// A node of a control plane.
#[derive(Debug)]
pub struct Node {
    name: String,
    place: Place,
    on_disk: bool,
    /// The container runtime.
    pub containerd: Process,
    /// The kubelet.
    pub kubelet: Process,
}

impl Node {
    /// Starts a node of this name, and waits until it is Ready.
    ///
    /// # Errors
    /// When it does not become Ready, with the end of a log.
    pub async fn start(run: &Run, plane: &ControlPlane, name: &str) -> Result<Self> {
        Self::with(run, plane, name, 0, false).await
    }

    /// The same for a further node, with a number above 0 that no other has.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn another(run: &Run, plane: &ControlPlane, name: &str, number: u8) -> Result<Self> {
        Self::with(run, plane, name, number, false).await
    }

    /// The same with kubelet's root on a disk. Of memory kubelet has no statistics, and then of no pod and no volume either.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn on_disk(run: &Run, plane: &ControlPlane, name: &str) -> Result<Self> {
        Self::with(run, plane, name, 0, true).await
    }

    async fn with(run: &Run, plane: &ControlPlane, name: &str, number: u8, on_disk: bool) -> Result<Self> {
        let place = Place::new(run, number);
        fs::create_dir_all(place.directory.join("cni"))?;
        fs::write(place.directory.join("cni/10-conformance.conflist"), network(&place).to_string())?;
        let containerd = containerd(run, &place).await?;
        if on_disk {
            disk(run, &place.root).await?;
        }
        let spec = kubelet(run, plane, name, &place, on_disk)?;
        let kubelet = Process::start(run, spec)?;
        let mut node = Self { name: name.to_owned(), place, on_disk, containerd, kubelet };
        node.ready(plane).await?;
        Ok(node)
    }

    /// The directory that kubelet keeps plugins' sockets and pods' volumes in.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.place.root
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until the node is Ready.
    ///
    /// # Errors
    /// When it is not, with the end of kubelet's log.
    pub async fn ready(&mut self, plane: &ControlPlane) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(plane.client().clone());
        let name = &self.name;
        self.kubelet
            .ready(READY, async || {
                let node = nodes.get(name).await?;
                let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
                let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
                let ready = ready.context("it has no condition Ready")?;
                ensure!(ready.status == "True", "{}", ready.message.unwrap_or_default());
                Ok(())
            })
            .await
    }

    /// Waits until nothing of a pod is mounted or runs any more, of this node or, where it is only a network, of any.
    ///
    /// # Errors
    /// When something is after `limit`, with what it is.
    pub async fn idle(&self, run: &Run, limit: Duration) -> Result<()> {
        self.without_pods(run, limit).await?;
        until("no network of a pod is left", limit, async || {
            let mounts = fs::read_to_string("/proc/self/mountinfo")?;
            let left = mounts.lines().find(|line| line.contains("/netns/"));
            ensure!(left.is_none(), "mounted: {}", left.unwrap_or_default());
            Ok(())
        })
        .await
    }

    /// The same without a look at networks, which do not say whose they are.
    ///
    /// # Errors
    /// As [`idle`](Self::idle).
    pub async fn without_pods(&self, run: &Run, limit: Duration) -> Result<()> {
        until("nothing of a pod is left on the node", limit, async || {
            let mounts = fs::read_to_string("/proc/self/mountinfo")?;
            let own = [self.root().join("pods"), self.place.state.clone()];
            let at = |line: &&str| {
                line.split(' ').nth(4).is_some_and(|at| own.iter().any(|own| Path::new(at).starts_with(own)))
            };
            let left = mounts.lines().find(at);
            ensure!(left.is_none(), "mounted: {}", left.unwrap_or_default());
            let tasks = self.place.ctr(run, &["tasks", "list", "--quiet"]).await?;
            ensure!(tasks.trim().is_empty(), "containers: {}", tasks.trim());
            Ok(())
        })
        .await
    }

    /// Ends kubelet and containerd. What pods have left goes with the run.
    ///
    /// # Errors
    /// When one has ended by itself, or had to be killed.
    pub async fn stop(mut self) -> Result<()> {
        self.kubelet.stop().await?;
        self.containerd.stop().await?;
        if self.on_disk {
            process::output("umount", &[&self.root().display().to_string()]).await?;
        }
        Ok(())
    }

    /// Takes its power away: kubelet, the container runtime and every container end at once, nobody says good-bye to the API, and
    /// what was mounted is not any more.
    ///
    /// # Errors
    /// When one of them had ended before, or something stays.
    pub async fn lose_power(&mut self) -> Result<()> {
        self.kubelet.kill().await?;
        self.containerd.kill().await?;
        let socket = self.place.socket();
        let mut containers = BTreeSet::new();
        loop {
            let found = below_shims(&running()?, &socket);
            let new: Vec<u32> = found.difference(&containers).copied().collect();
            if new.is_empty() {
                break;
            }
            // Who stands still starts nobody: when no look finds more, all are known.
            signal(&new, Signal::STOP);
            containers.extend(new);
        }
        let networks: BTreeSet<String> = containers.iter().filter_map(|id| network_of(*id)).collect();
        signal(&containers, Signal::KILL);
        until("its containers have ended", READY, async || {
            let left = running()?.into_iter().find(|one| containers.contains(&one.id));
            ensure!(left.is_none(), "{left:?} runs");
            Ok(())
        })
        .await?;
        self.unmount(&networks).await
    }

    /// Gives it its power back after [`lose_power`](Self::lose_power), and waits until it is Ready.
    ///
    /// # Errors
    /// When it is not, with the end of a log.
    pub async fn power_on(&mut self, run: &Run, plane: &ControlPlane) -> Result<()> {
        // What a machine that starts does not have: what containerd knew of its containers.
        for entry in fs::read_dir(&self.place.state)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("io.containerd.")) {
                fs::remove_dir_all(&path)?;
            }
        }
        self.containerd.again()?;
        let place = &self.place;
        self.containerd.ready(READY, async || place.ctr(run, &["version"]).await.map(|_| ())).await?;
        self.kubelet.again()?;
        self.ready(plane).await
    }

    /// Unmounts what is mounted below the node's directories, and the networks of its pods.
    async fn unmount(&self, networks: &BTreeSet<String>) -> Result<()> {
        let table = fs::read_to_string("/proc/self/mountinfo")?;
        // What was mounted last goes first.
        for line in table.lines().rev() {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, _, _, root, at, ..] = words.as_slice() else { continue };
            let inside =
                [&self.place.root, &self.place.state].iter().any(|own| Path::new(at).starts_with(own));
            if inside || networks.contains(*root) {
                process::output("umount", &["--lazy", at]).await?;
            }
        }
        Ok(())
    }
}

/// A process of the run.
#[derive(Debug)]
struct Running {
    id: u32,
    parent: u32,
    arguments: String,
}

/// The shims that serve this containerd, and whoever descends from them.
fn below_shims(all: &[Running], socket: &str) -> BTreeSet<u32> {
    let shim = |one: &Running| one.arguments.contains("containerd-shim") && one.arguments.contains(socket);
    let mut found: BTreeSet<u32> = all.iter().filter(|one| shim(one)).map(|one| one.id).collect();
    loop {
        let more: Vec<u32> = all
            .iter()
            .filter(|one| found.contains(&one.parent) && !found.contains(&one.id))
            .map(|one| one.id)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Signals processes; one that has ended meanwhile needs none.
fn signal<'a>(ids: impl IntoIterator<Item = &'a u32>, signal: Signal) {
    for id in ids {
        if let Some(id) = Pid::from_raw(id.cast_signed()) {
            let _ = kill_process(id, signal);
        }
    }
}

/// All processes of the run's namespace.
fn running() -> Result<Vec<Running>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Who ends while we look is not there.
        let Ok(status) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Ok(arguments) = fs::read(entry.path().join("cmdline")) else { continue };
        let parent = status.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        let parent = parent.with_context(|| format!("/proc/{id}/stat has no parent: {status}"))?;
        all.push(Running { id, parent, arguments: String::from_utf8_lossy(&arguments).replace('\0', " ") });
    }
    Ok(all)
}

/// The network of a process, as the table of mounts calls it.
fn network_of(id: u32) -> Option<String> {
    Some(fs::read_link(format!("/proc/{id}/ns/net")).ok()?.to_str()?.to_owned())
}

/// A disk of a file, mounted as kubelet's root. Its loop device goes when it is unmounted.
async fn disk(run: &Run, root: &Path) -> Result<()> {
    let disk = run.scratch().join("disk");
    fs::File::create(&disk)?.set_len(DISK)?;
    fs::create_dir_all(root)?;
    let (disk, mounted) = (disk.display().to_string(), root.display().to_string());
    process::output("mkfs.ext4", &["-q", &disk]).await?;
    process::output("mount", &["-o", "loop", &disk, &mounted]).await?;
    Ok(())
}

async fn containerd(run: &Run, place: &Place) -> Result<Process> {
    let directory = &place.directory;
    let configuration = directory.join("containerd.toml");
    fs::write(
        &configuration,
        format!(
            r#"version = 3
root = "{root}"
state = "{state}"

[grpc]
  address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{opt}"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
  # Where the machine is a container itself, nobody may lower a score.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{CNI_PLUGINS}"]
    conf_dir = "{cni}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{RUNC}"
      SystemdCgroup = false
"#,
            root = directory.join("containerd").display(),
            state = place.state.display(),
            socket = place.socket(),
            opt = directory.join("opt").display(),
            cni = directory.join("cni").display(),
            pause = image::PAUSE,
        ),
    )?;
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", run.peers().directory().display());
    let spec = Spec::new(format!("containerd{}", place.suffix), run.peers().program("containerd")?)
        .arg(format_args!("--config={}", configuration.display()))
        .env("PATH", path);
    let mut process = Process::start(run, spec)?;
    process.ready(READY, async || place.ctr(run, &["version"]).await.map(|_| ())).await?;
    let images = directory.join("images");
    fs::create_dir_all(&images)?;
    let archive = image::archive(&images).await?.display().to_string();
    place.ctr(run, &["images", "import", &archive]).await?;
    Ok(process)
}

fn network(place: &Place) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "conformance",
        "plugins": [{
            "type": "ptp",
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": place.directory.join("addresses"),
                "ranges": [[{ "subnet": place.subnet }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
}

fn kubelet(run: &Run, plane: &ControlPlane, name: &str, place: &Place, on_disk: bool) -> Result<Spec> {
    let directory = &place.directory;
    let resolver = directory.join("resolv.conf");
    fs::write(&resolver, "")?;
    let configuration = directory.join("kubelet.json");
    let text = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "port": run.port()?,
        "healthzPort": run.port()?,
        "containerRuntimeEndpoint": format!("unix://{}", place.socket()),
        // The API reaches kubelet by the node's address, so it listens on all; who may ask, a certificate says.
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": false },
            "x509": { "clientCAFile": plane.authority().file() },
        },
        "authorization": { "mode": "AlwaysAllow" },
        "cgroupDriver": "cgroupfs",
        // A name by which what a killed run leaves is found.
        "cgroupRoot": Path::new("/").join(run.scratch().file_name().unwrap_or_default()),
        "failCgroupV1": false,
        // A volume is mounted once the API has heard that it is in use, and detached once it has heard that it is not.
        "nodeStatusUpdateFrequency": "1s",
        // A quarter of it is how often a node says that it lives.
        "nodeLeaseDurationSeconds": 8,
        "volumeStatsAggPeriod": "1s",
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        "localStorageCapacityIsolation": on_disk,
        "evictionHard": {
            "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "resolvConf": resolver,
        "volumePluginDir": directory.join("volume-plugins"),
        "podLogsDir": directory.join("pod-logs"),
    });
    fs::write(&configuration, text.to_string())?;
    Ok(Spec::new(format!("kubelet{}", place.suffix), run.peers().program("kubelet")?)
        .arg(format_args!("--config={}", configuration.display()))
        .arg(format_args!("--kubeconfig={}", plane.kubeconfig(User::Node(name))?.display()))
        .arg(format_args!("--root-dir={}", place.root.display()))
        .arg(format_args!("--cert-dir={}", directory.join("pki").display()))
        .arg(format_args!("--hostname-override={name}")))
}
