//! Where kubelet keeps volumes.

use cofferdam_domain::{Uid, names::hex_digest};

/// What kubelet writes down beside a volume, so that it can unmount it after a restart.
pub(super) const DATA: &str = "vol_data.json";

/// The handle of a volume that a pod describes by itself.
pub(super) fn inline_handle(pod: &Uid, volume: &str) -> String {
    format!("csi-{}", hex_digest([pod.as_str(), volume]))
}

/// The directories of one volume on a node whose kubelet has this root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Paths {
    pub(super) root: String,
    pub(super) driver: String,
    pub(super) handle: String,
    /// Name of the PersistentVolume, or of the pod's volume where it is inline.
    pub(super) name: String,
    pub(super) block: bool,
}

impl Paths {
    fn devices(&self) -> String {
        format!("{}/plugins/kubernetes.io/csi/volumeDevices", self.root)
    }

    /// Where it is staged.
    pub(super) fn staging(&self) -> String {
        if self.block {
            return format!("{}/staging/{}", self.devices(), self.name);
        }
        format!("{}/globalmount", self.global())
    }

    /// What belongs to the node's part, the innermost first.
    pub(super) fn of_node(&self) -> Vec<String> {
        if self.block {
            let own = format!("{}/{}", self.devices(), self.name);
            let (publish, data) =
                (format!("{}/publish/{}", self.devices(), self.name), format!("{own}/data"));
            return vec![self.staging(), publish, self.data_of_node(), data, own];
        }
        vec![self.staging(), self.data_of_node(), self.global()]
    }

    fn global(&self) -> String {
        format!("{}/plugins/kubernetes.io/csi/{}/{}", self.root, self.driver, hex_digest([&self.handle]))
    }

    /// What is written down of the node's part.
    pub(super) fn data_of_node(&self) -> String {
        if self.block {
            return format!("{}/{}/data/{DATA}", self.devices(), self.name);
        }
        format!("{}/{DATA}", self.global())
    }

    /// Where it is published for a pod.
    pub(super) fn target(&self, pod: &Uid) -> String {
        if self.block {
            return format!("{}/publish/{}/{pod}", self.devices(), self.name);
        }
        format!("{}/mount", self.of_pod(pod))
    }

    /// The directory of its part for a pod.
    pub(super) fn of_pod(&self, pod: &Uid) -> String {
        if self.block {
            return format!("{}/publish/{}", self.devices(), self.name);
        }
        format!("{}/pods/{pod}/volumes/kubernetes.io~csi/{}", self.root, self.name)
    }

    /// Directories of a pod that go with its last volume, the innermost first.
    pub(super) fn of_all_pods(&self, pod: &Uid) -> Vec<String> {
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
    fn volumes_are_where_kubelet_has_them() {
        let mut paths = Paths {
            root: "/var/lib/kubelet".to_owned(),
            driver: "d.example.com".to_owned(),
            handle: "h".to_owned(),
            name: "pv".to_owned(),
            block: false,
        };
        let (pod, csi) = (Uid::new("u"), "/var/lib/kubelet/plugins/kubernetes.io/csi");
        // printf h | sha256sum
        let digest = "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123";
        assert_eq!(paths.staging(), format!("{csi}/d.example.com/{digest}/globalmount"));
        assert_eq!(paths.data_of_node(), format!("{csi}/d.example.com/{digest}/vol_data.json"));
        assert_eq!(paths.target(&pod), "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount");
        paths.block = true;
        assert_eq!(paths.staging(), format!("{csi}/volumeDevices/staging/pv"));
        assert_eq!(paths.target(&pod), format!("{csi}/volumeDevices/publish/pv/u"));
        assert_eq!(inline_handle(&pod, "v").len(), 4 + 64);
    }
}
