//! Kubelet's paths of volumes.

use cofferdam_domain::{Uid, names::sha256_hex};

/// Name of the data file next to a volume, from which a real kubelet unmounts the volume after a restart. The
/// simulated kubelet writes and removes the file, and never reads it.
pub(super) const VOL_DATA_FILE: &str = "vol_data.json";

/// The volume handle of an inline volume. `volume` is its name in the pod.
pub(super) fn inline_handle(pod: &Uid, volume: &str) -> String {
    format!("csi-{}", sha256_hex([&*pod.to_string(), volume]))
}

/// The paths of one volume on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumePaths {
    pub(super) root: String,
    pub(super) driver: String,
    pub(super) handle: String,
    /// Name of the PersistentVolume, or of the pod's volume if it is inline.
    pub(super) name: String,
    pub(super) block: bool,
}

impl VolumePaths {
    fn devices_dir(&self) -> String {
        format!("{}/plugins/kubernetes.io/csi/volumeDevices", self.root)
    }

    /// The staging path.
    pub(super) fn staging_path(&self) -> String {
        if self.block {
            return format!("{}/staging/{}", self.devices_dir(), self.name);
        }
        format!("{}/globalmount", self.global_dir())
    }

    /// The paths on the node to remove after unstaging or a failed staging, innermost first. For a block
    /// volume they include the directory of its target paths, which publishing creates.
    pub(super) fn node_paths(&self) -> Vec<String> {
        if self.block {
            let device_dir = format!("{}/{}", self.devices_dir(), self.name);
            let (publish, data) =
                (format!("{}/publish/{}", self.devices_dir(), self.name), format!("{device_dir}/data"));
            return vec![self.staging_path(), publish, self.node_data_file(), data, device_dir];
        }
        vec![self.staging_path(), self.node_data_file(), self.global_dir()]
    }

    fn global_dir(&self) -> String {
        format!("{}/plugins/kubernetes.io/csi/{}/{}", self.root, self.driver, sha256_hex([&self.handle]))
    }

    /// The `vol_data.json` file of the staged volume.
    pub(super) fn node_data_file(&self) -> String {
        if self.block {
            return format!("{}/{}/data/{VOL_DATA_FILE}", self.devices_dir(), self.name);
        }
        format!("{}/{VOL_DATA_FILE}", self.global_dir())
    }

    /// The target path of the published volume for a pod.
    pub(super) fn target_path(&self, pod: &Uid) -> String {
        if self.block {
            return format!("{}/publish/{}/{pod}", self.devices_dir(), self.name);
        }
        format!("{}/mount", self.target_parent_dir(pod))
    }

    /// The parent directory of the target path: in the pod's directory, or for a block volume one that all
    /// its pods share.
    pub(super) fn target_parent_dir(&self, pod: &Uid) -> String {
        if self.block {
            return format!("{}/publish/{}", self.devices_dir(), self.name);
        }
        format!("{}/pods/{pod}/volumes/kubernetes.io~csi/{}", self.root, self.name)
    }

    /// Directories of a pod that are removed with its last volume, innermost first; empty for a block volume,
    /// which has no directory beneath `pods`.
    pub(super) fn pod_parent_dirs(&self, pod: &Uid) -> Vec<String> {
        if self.block {
            return Vec::new();
        }
        let pod = format!("{}/pods/{pod}", self.root);
        vec![format!("{pod}/volumes/kubernetes.io~csi"), format!("{pod}/volumes"), pod]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_paths_match_kubelets() {
        let mut paths = VolumePaths {
            root: "/var/lib/kubelet".to_owned(),
            driver: "d.example.com".to_owned(),
            handle: "h".to_owned(),
            name: "pv".to_owned(),
            block: false,
        };
        let (pod, csi) = (Uid::new("u"), "/var/lib/kubelet/plugins/kubernetes.io/csi");
        // printf h | sha256sum
        let digest = "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123";
        assert_eq!(paths.staging_path(), format!("{csi}/d.example.com/{digest}/globalmount"));
        assert_eq!(paths.node_data_file(), format!("{csi}/d.example.com/{digest}/vol_data.json"));
        assert_eq!(paths.target_path(&pod), "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount");
        paths.block = true;
        assert_eq!(paths.staging_path(), format!("{csi}/volumeDevices/staging/pv"));
        assert_eq!(paths.target_path(&pod), format!("{csi}/volumeDevices/publish/pv/u"));
        assert_eq!(inline_handle(&pod, "v").len(), 4 + 64);
    }
}
