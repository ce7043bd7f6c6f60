//! kubelet and containerd in a machine. Pods have the machine's network, so it needs no network plugin.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use super::Machine;
use crate::{
    control_plane::{ApiUser, ControlPlane},
    kubeconfig,
    node::{ensure_ready, mount_disk, write_images},
    node_files::{KubeletOptions, NodePaths},
    process,
    run::SuiteRun,
    wait::until,
};

/// Time limit of each start. containerd takes three seconds in a machine, and kubelet six.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Programs of a node, which `make peers` builds. Debian's runc is in every machine.
const PEERS: [&str; 4] = ["kubelet", "containerd", "containerd-shim-runc-v2", "ctr"];
/// Directory of a node's files on its disk. containerd needs another filesystem than the overlay of the machine's root.
const NODE_DIRECTORY: &str = "node";
/// The same directory in the machine.
const DIRECTORY: &str = "/disk/node";
/// Subnet of pods, which is unused: pods have the network of their machine.
const SUBNET: &str = "10.89.0.0/24";
/// Ports of kubelet in the machine.
const PORTS: [u16; 2] = [10250, 10248];

/// A node in a machine. Its processes run until the machine ends.
#[derive(Debug)]
pub(crate) struct MachineKubelet<'a> {
    machine: &'a Machine,
    name: String,
    paths: NodePaths,
}

impl<'a> MachineKubelet<'a> {
    /// The programs of a node, for the disk of the programs.
    ///
    /// # Errors
    /// If a program has not been built.
    pub(crate) fn programs(run: &SuiteRun) -> Result<Vec<PathBuf>> {
        PEERS.iter().map(|name| run.peers().program(name)).collect()
    }

    /// Writes a filesystem with the images of the harness, and those of further archives, to the disk of a machine.
    /// containerd unpacks them on this machine, because an emulated one takes minutes.
    ///
    /// # Errors
    /// If the disk cannot be mounted, or containerd rejects an archive.
    pub(crate) async fn write_disk(run: &SuiteRun, disk: &Path, archives: &[&Path]) -> Result<()> {
        let mounted = run.scratch().join("machine-disk");
        mount_disk("mkfs.ext4", disk, fs::metadata(disk)?.len(), &mounted).await?;
        let paths = NodePaths {
            suffix: "-machine".to_owned(),
            directory: mounted.join(NODE_DIRECTORY),
            root: mounted.join("unused"),
            state: run.scratch().join("containerd-machine"),
            subnet: SUBNET.to_owned(),
        };
        write_images(run, &paths, archives).await?;
        process::run_to_completion("umount", &[&mounted.display().to_string()]).await?;
        Ok(())
    }

    /// Starts a node of this name on a machine with [`programs`](Self::programs) and, as its first further disk, one
    /// of [`write_disk`](Self::write_disk), with kubelet's root at `root`, and waits until it is Ready. The control
    /// plane serves pods.
    ///
    /// # Errors
    /// If it does not become Ready. The error contains the end of the log of containerd or kubelet.
    pub(crate) async fn start(
        run: &SuiteRun,
        plane: &ControlPlane,
        machine: &'a Machine,
        name: &str,
        root: &str,
    ) -> Result<Self> {
        let paths = NodePaths {
            suffix: String::new(),
            directory: DIRECTORY.into(),
            root: root.into(),
            state: "/run/containerd".into(),
            subnet: SUBNET.to_owned(),
        };
        let node = Self { machine, name: name.to_owned(), paths };
        node.write_files(plane).await?;
        node.start_containerd().await?;
        node.start_kubelet(plane).await?;
        run.add_note(&format!("kubelet is ready in the machine {name}"))?;
        Ok(node)
    }

    async fn write_files(&self, plane: &ControlPlane) -> Result<()> {
        // kubelet maps a raw block volume to a loop device.
        let root = self.paths.root.display();
        self.machine
            .shell(&format!(
                "modprobe loop; mkdir -p /disk; mount /dev/vdc /disk
                 mkdir -p {DIRECTORY}/cni {DIRECTORY}/root {root}; mount --bind {DIRECTORY}/root {root}
                 mount --make-shared {root}
                 mount -t cgroup2 cgroup2 /sys/fs/cgroup; hostname {}",
                self.name
            ))
            .await?;
        let authority = format!("{DIRECTORY}/ca.crt");
        let options = KubeletOptions {
            ports: PORTS,
            client_authority: authority.as_ref(),
            cgroup: "/".as_ref(),
            has_disk: true,
            is_slow: true,
        };
        let address = plane.pod_address().context("the control plane serves no pods")?;
        let kubeconfig = plane.kubeconfig(ApiUser::Node(&self.name))?;
        let (kubeconfig, _) = kubeconfig::redirect(&kubeconfig, "machine", address)?;
        for (path, text) in [
            ("containerd.toml", self.paths.containerd_config()),
            ("cni/10-conformance.conflist", self.paths.cni_config().to_string()),
            ("kubelet.json", self.paths.kubelet_config(&options).to_string()),
            ("kubeconfig", fs::read_to_string(kubeconfig)?),
            ("ca.crt", plane.authority().pem()),
            ("resolv.conf", String::new()),
        ] {
            self.machine.write(&format!("{DIRECTORY}/{path}"), &text).await?;
        }
        Ok(())
    }

    async fn start_containerd(&self) -> Result<()> {
        let command = format!("containerd --config={DIRECTORY}/containerd.toml");
        self.machine.start_program("containerd", &command).await?;
        let ready = until("containerd responds", READY_TIMEOUT, async || self.ctr("version").await.map(drop));
        self.machine.with_log("containerd", ready).await
    }

    async fn start_kubelet(&self, plane: &ControlPlane) -> Result<()> {
        let command = format!(
            "kubelet --config={DIRECTORY}/kubelet.json --kubeconfig={DIRECTORY}/kubeconfig --root-dir={} \
             --cert-dir={DIRECTORY}/pki --hostname-override={}",
            self.paths.root.display(),
            self.name
        );
        self.machine.start_program("kubelet", &command).await?;
        let ready = until("the node is Ready", READY_TIMEOUT, async || {
            ensure_ready(plane.client(), &self.name).await
        });
        self.machine.with_log("kubelet", ready).await
    }

    async fn ctr(&self, arguments: &str) -> Result<String> {
        let socket = self.paths.socket();
        self.machine.shell(&format!("ctr --address {socket} --namespace k8s.io {arguments}")).await
    }

    /// Waits until no mount or container of a pod is left.
    ///
    /// # Errors
    /// If one is left after `limit`.
    pub(crate) async fn wait_without_pods(&self, limit: Duration) -> Result<()> {
        until("nothing of a pod is left in the machine", limit, async || {
            let pods = self.paths.root.join("pods").display().to_string();
            let mounted =
                self.machine.shell(&format!("grep -F ' {pods}/' /proc/self/mountinfo || true")).await?;
            ensure!(mounted.is_empty(), "mounted: {mounted}");
            let tasks = self.ctr("tasks list --quiet").await?;
            ensure!(tasks.is_empty(), "containers: {tasks}");
            Ok(())
        })
        .await
    }
}
