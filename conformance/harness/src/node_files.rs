//! Directories and configuration files of a node: of this machine, or of an emulated one.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{
    image,
    peers::{CNI_PLUGINS, RUNC},
};

/// Directories and addresses of a node.
#[derive(Clone, Debug)]
pub(crate) struct NodePaths {
    /// Suffix of the names of directories and logs; empty for the first node.
    pub(crate) suffix: String,
    /// Files of containerd and CNI, and kubelet's configuration.
    pub(crate) directory: PathBuf,
    /// kubelet's root: plugins and pods.
    pub(crate) root: PathBuf,
    /// State of containerd that a reboot removes.
    pub(crate) state: PathBuf,
    /// Subnet of the pods.
    pub(crate) subnet: String,
}

/// Options of kubelet.
pub(crate) struct KubeletOptions<'a> {
    /// Ports of kubelet's API and of its health.
    pub(crate) ports: [u16; 2],
    /// Certificate of the authority of kubelet's clients.
    pub(crate) client_authority: &'a Path,
    /// Parent of the pods' cgroups.
    pub(crate) cgroup: &'a Path,
    /// True if kubelet's root is on a disk.
    pub(crate) has_disk: bool,
    /// True in an emulated machine, which gets a fraction of a processor.
    pub(crate) is_slow: bool,
}

impl NodePaths {
    /// containerd's socket.
    pub(crate) fn socket(&self) -> String {
        self.state.join("containerd.sock").display().to_string()
    }

    /// The resolver's configuration of pods.
    pub(crate) fn resolver(&self) -> PathBuf {
        self.directory.join("resolv.conf")
    }

    /// containerd's configuration.
    pub(crate) fn containerd_config(&self) -> String {
        let directory = &self.directory;
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
            state = self.state.display(),
            socket = self.socket(),
            opt = directory.join("opt").display(),
            cni = directory.join("cni").display(),
            pause = image::PAUSE_IMAGE,
        )
    }

    /// The network of the pods.
    pub(crate) fn cni_config(&self) -> Value {
        json!({
            "cniVersion": "1.0.0",
            "name": "conformance",
            "plugins": [{
                "type": "ptp",
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": self.directory.join("addresses"),
                    "ranges": [[{ "subnet": self.subnet }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        })
    }

    /// kubelet's configuration.
    pub(crate) fn kubelet_config(&self, options: &KubeletOptions<'_>) -> Value {
        let directory = &self.directory;
        let [port, health_port] = options.ports;
        let (status_period, lease_seconds) = if options.is_slow { ("4s", 40) } else { ("1s", 8) };
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "port": port,
            "healthzPort": health_port,
            "containerRuntimeEndpoint": format!("unix://{}", self.socket()),
            // kube-apiserver connects to the node's address, so kubelet listens on all. Clients need a
            // certificate.
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": false },
                "x509": { "clientCAFile": options.client_authority },
            },
            "authorization": { "mode": "AlwaysAllow" },
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": options.cgroup,
            "failCgroupV1": false,
            // Mounts and detaches wait for `volumesInUse` of the Node status.
            "nodeStatusUpdateFrequency": status_period,
            // kubelet renews its lease four times within this duration.
            "nodeLeaseDurationSeconds": lease_seconds,
            "volumeStatsAggPeriod": "1s",
            "cgroupsPerQOS": false,
            "enforceNodeAllocatable": [],
            "failSwapOn": false,
            "makeIPTablesUtilChains": false,
            "localStorageCapacityIsolation": options.has_disk,
            "evictionHard": {
                "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
                "imagefs.available": "0%", "imagefs.inodesFree": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "resolvConf": self.resolver(),
            "volumePluginDir": directory.join("volume-plugins"),
            "podLogsDir": directory.join("pod-logs"),
        })
    }
}
