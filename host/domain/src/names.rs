//! Annotations, finalizers and parameters that Kubernetes and its sidecars share; each must match byte for
//! byte.

use sha2::{Digest as _, Sha256};

use crate::ids::{DriverName, NodeName, VolumeAttachmentName, VolumeHandle};

/// PVC: the claim once reached Bound; only presence counts.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// PV and PVC: this side of the pointer was written by the controller and may be undone by it; only presence
/// counts.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// PV: name of the plugin or driver that made the volume.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// PV and PVC: CSI driver that took over from an in-tree plugin.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// PVC: driver that shall provision.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// PVC: as [`STORAGE_PROVISIONER`], still written beside it.
pub const STORAGE_PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// PVC: node that the scheduler chose.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// PV and PVC: class, legacy form; wins over `spec.storageClassName` when present, even empty.
pub const CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";
/// PV: capacity before a resize that has not reached the claim yet.
pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
/// PVC: `true` where the node has no part in the last growth.
pub const NODE_EXPANSION_NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
/// PV: name of the secret that ControllerModifyVolume gets.
pub const MODIFY_SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
/// PV: namespace of the secret that ControllerModifyVolume gets.
pub const MODIFY_SECRET_NAMESPACE: &str = "volume.kubernetes.io/controller-modify-secret-namespace";
/// StorageClass: the default class.
pub const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// StorageClass: the default class, legacy form.
pub const DEFAULT_CLASS_BETA: &str = "storageclass.beta.kubernetes.io/is-default-class";
/// PV: name of the secret that DeleteVolume gets; empty means none, absent means ask the class.
pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
/// PV: namespace of the secret that DeleteVolume gets.
pub const DELETION_SECRET_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";

/// Finalizer of a PV while it is Bound.
pub const PV_PROTECTION: &str = "kubernetes.io/pv-protection";
/// Finalizer of a PVC while a pod uses it.
pub const PVC_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Finalizer of a VolumeAttributesClass while a PV or a PVC names it.
pub const VAC_PROTECTION: &str = "kubernetes.io/vac-protection";
/// Finalizer of a PV until the driver's volume is deleted.
pub const PROVISIONER_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// VolumeAttachment: the node, as its CSI node service calls it; it outlives the CSINode.
pub const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";
/// Prefix of the finalizer that keeps a VolumeAttachment and its PV until the driver has let go of the node.
const ATTACHER_FINALIZER_PREFIX: &str = "external-attacher/";

/// Node: volumes are attached to it by the controller and not by its kubelet; only presence counts.
pub const CONTROLLER_MANAGED_ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Node: key of the taint by which a person says that it is down for good, whatever the value and effect.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
/// Prefix of the VolumeAttachments that Kubernetes makes for pods.
const VOLUME_ATTACHMENT_PREFIX: &str = "csi-";

/// Name of the VolumeAttachment of a volume on a node: handle, driver and node one after the other, as
/// SHA-256.
pub fn volume_attachment_name(
    driver: &DriverName,
    handle: &VolumeHandle,
    node: &NodeName,
) -> VolumeAttachmentName {
    let digest = sha256_hex([handle.as_str(), driver.as_str(), node.as_str()]);
    VolumeAttachmentName::new(format!("{VOLUME_ATTACHMENT_PREFIX}{digest}"))
}

/// SHA-256 of some parts one after the other, in small hexadecimal digits: what Kubernetes makes names of.
pub fn sha256_hex<const N: usize>(parts: [&str; N]) -> String {
    let mut digest = Sha256::new();
    parts.into_iter().for_each(|part| digest.update(part));
    let digits =
        |byte: u8| [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0'));
    digest.finalize().into_iter().flat_map(digits).collect()
}

/// Whether a VolumeAttachment was made for pods, by Kubernetes or by us: nobody else names them so.
pub fn is_pod_attachment(name: &VolumeAttachmentName) -> bool {
    let digest = name.as_str().strip_prefix(VOLUME_ATTACHMENT_PREFIX).unwrap_or_default();
    digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Finalizer of a driver's VolumeAttachments, and of the PVs that they name.
pub fn attacher_finalizer(driver: &DriverName) -> String {
    format!("{ATTACHER_FINALIZER_PREFIX}{}", sanitize_driver_name(driver.as_str()))
}

/// A driver's name as the sidecars spell it in finalizers and leases: what is neither letter, digit nor dash
/// becomes a dash, and after a dash at the end comes an `X`.
fn sanitize_driver_name(driver: &str) -> String {
    let sanitize = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    let mut sanitized: String = driver.chars().map(sanitize).collect();
    if sanitized.ends_with('-') {
        sanitized.push('X');
    }
    sanitized
}

/// Prefix of in-tree plugins' names.
pub const IN_TREE_PREFIX: &str = "kubernetes.io/";

/// Prefix of the class parameters that are read by the provisioner and never reach the driver.
pub const RESERVED_PARAMETER_PREFIX: &str = "csi.storage.k8s.io/";
/// Volume attribute that names the process which provisioned the volume.
pub const PROVISIONER_IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";
/// Key under which an attachment of ours travels to the node, in volume attributes and in attachment
/// metadata.
pub const CONNECTION_INFO: &str = "cofferdam.dev/connection-info";
/// Topology key whose value is the name of the node. The host knows it without asking anybody.
pub const NODE_TOPOLOGY_KEY: &str = "topology.cofferdam.dev/node";
/// Key of the volume attribute that says what the volume's content was made of, `volume` or `snapshot`. A
/// node never formats such a volume.
pub const CONTENT_SOURCE: &str = "cofferdam.dev/content-source";
/// Prefix of the volume attributes that are ours: drivers neither set nor see them.
pub const RESERVED_ATTRIBUTE_PREFIX: &str = "cofferdam.dev/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attacher_finalizers_match_external_attacher() {
        #[rustfmt::skip] // one row a driver
        let table = [
            ("d.example.com", "external-attacher/d-example-com"),
            ("Disk-1",        "external-attacher/Disk-1"),
            ("a_b",           "external-attacher/a-b"),
            ("ends.",         "external-attacher/ends-X"),
            ("",              "external-attacher/"),
        ];
        for (driver, finalizer) in table {
            assert_eq!(attacher_finalizer(&driver.into()), finalizer);
        }
    }

    #[test]
    fn volume_attachment_names_match_kubernetes() {
        let name = volume_attachment_name(&"d.example.com".into(), &"handle-1".into(), &"node-1".into());
        // printf handle-1d.example.comnode-1 | sha256sum
        let digest = "b7f29d167cefa1a883c19fab49603673493a2b29c3c043d56ff3884d844c827b";
        assert_eq!(name.as_str(), format!("csi-{digest}"));
        assert!(is_pod_attachment(&name));
        for other in ["a", "csi-", "csi-b7f2", &digest.to_uppercase(), digest] {
            assert!(!is_pod_attachment(&other.into()), "{other}");
        }
    }
}
