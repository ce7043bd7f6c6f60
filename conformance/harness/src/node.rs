//! A real node: containerd, runc, CNI and kubelet.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Api;
use serde_json::{Value, json};

use crate::{
    control_plane::{ControlPlane, User},
    image,
    peers::{CNI_PLUGINS, RUNC},
    process::{self, Process, Spec},
    run::Run,
    wait::until,
};

const READY: Duration = Duration::from_secs(90);
/// containerd puts the sockets of its shims here whatever it is told; the directory is the run's own.
const STATE: &str = "/run/containerd";
const SOCKET: &str = "/run/containerd/containerd.sock";
/// Bytes of a disk of its root.
const DISK: u64 = 1 << 30;
/// The directory of kubelet, below the scratch directory.
const ROOT: &str = "kubelet";

/// A node of a control plane. A run has one.
#[derive(Debug)]
pub struct Node {
    name: String,
    root: PathBuf,
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
        Self::with(run, plane, name, false).await
    }

    /// The same with kubelet's root on a disk. Of memory kubelet has no statistics, and then of no pod and no volume either.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn on_disk(run: &Run, plane: &ControlPlane, name: &str) -> Result<Self> {
        Self::with(run, plane, name, true).await
    }

    async fn with(run: &Run, plane: &ControlPlane, name: &str, on_disk: bool) -> Result<Self> {
        let directory = run.scratch().join("node");
        fs::create_dir_all(directory.join("cni"))?;
        fs::write(directory.join("cni/10-conformance.conflist"), network(&directory).to_string())?;
        let containerd = containerd(run, &directory).await?;
        let root = run.scratch().join(ROOT);
        if on_disk {
            disk(run, &root).await?;
        }
        let spec = kubelet(run, plane, name, &directory, &root, on_disk)?;
        let kubelet = Process::start(run, spec)?;
        let mut node = Self { name: name.to_owned(), root, on_disk, containerd, kubelet };
        node.ready(plane).await?;
        Ok(node)
    }

    /// The directory that kubelet keeps plugins' sockets and pods' volumes in.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
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

    /// Waits until nothing of a pod is mounted or runs any more.
    ///
    /// # Errors
    /// When something is after `limit`, with what it is.
    pub async fn idle(&self, run: &Run, limit: Duration) -> Result<()> {
        until("nothing of a pod is left on the node", limit, async || {
            let mounts = fs::read_to_string("/proc/self/mountinfo")?;
            let pods = self.root.join("pods").display().to_string();
            let left = mounts
                .lines()
                .find(|line| line.contains(&pods) || line.contains(STATE) || line.contains("/netns/"));
            ensure!(left.is_none(), "mounted: {}", left.unwrap_or_default());
            let tasks = ctr(run, &["tasks", "list", "--quiet"]).await?;
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
            process::output("umount", &[&self.root.display().to_string()]).await?;
        }
        Ok(())
    }
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

async fn ctr(run: &Run, arguments: &[&str]) -> Result<String> {
    let mut all = vec!["--address", SOCKET, "--namespace", "k8s.io"];
    all.extend(arguments);
    process::output(run.peers().program("ctr")?, &all).await
}

async fn containerd(run: &Run, directory: &Path) -> Result<Process> {
    let configuration = directory.join("containerd.toml");
    fs::write(
        &configuration,
        format!(
            r#"version = 3
root = "{root}"
state = "{STATE}"

[grpc]
  address = "{SOCKET}"

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
            opt = directory.join("opt").display(),
            cni = directory.join("cni").display(),
            pause = image::PAUSE,
        ),
    )?;
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", run.peers().directory().display());
    let spec = Spec::new("containerd", run.peers().program("containerd")?)
        .arg(format_args!("--config={}", configuration.display()))
        .env("PATH", path);
    let mut process = Process::start(run, spec)?;
    process.ready(READY, async || ctr(run, &["version"]).await.map(|_| ())).await?;
    let images = directory.join("images");
    fs::create_dir_all(&images)?;
    let archive = image::archive(&images).await?.display().to_string();
    ctr(run, &["images", "import", &archive]).await?;
    Ok(process)
}

fn network(directory: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "conformance",
        "plugins": [{
            "type": "ptp",
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": directory.join("addresses"),
                "ranges": [[{ "subnet": "10.88.0.0/24" }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
}

fn kubelet(
    run: &Run,
    plane: &ControlPlane,
    name: &str,
    directory: &Path,
    root: &Path,
    on_disk: bool,
) -> Result<Spec> {
    let resolver = directory.join("resolv.conf");
    fs::write(&resolver, "")?;
    let configuration = directory.join("kubelet.json");
    let text = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "port": run.port()?,
        "healthzPort": run.port()?,
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
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
    Ok(Spec::new("kubelet", run.peers().program("kubelet")?)
        .arg(format_args!("--config={}", configuration.display()))
        .arg(format_args!("--kubeconfig={}", plane.kubeconfig(User::Node(name))?.display()))
        .arg(format_args!("--root-dir={}", root.display()))
        .arg(format_args!("--cert-dir={}", directory.join("pki").display()))
        .arg(format_args!("--hostname-override={name}")))
}
