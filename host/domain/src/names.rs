//! Names of Kubernetes, the CSI sidecars and Cofferdam: annotations, finalizers, taints, VolumeAttachments,
//! in-tree plugins, parameters, volume attributes and topology keys. Those of Kubernetes and the sidecars
//! must match exactly.

use sha2::{Digest as _, Sha256};

use crate::ids::{DriverName, NodeName, Uid, VolumeAttachmentName, VolumeHandle};

/// PVC: the claim was bound before. The value is ignored.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// PV and PVC: the PersistentVolume controller, not a user, wrote this object's reference to the other
/// (`claimRef` or `volumeName`), and may remove the reference. The value is ignored.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// PV: name of the plugin or driver that provisioned the volume.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// PV and PVC: CSI driver to which an in-tree plugin is migrated.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// PVC: driver that provisions the volume.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// PVC: legacy form of [`STORAGE_PROVISIONER`]. Both are written.
pub const STORAGE_PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// PVC: node selected by the scheduler, or by the provisioner of a node-local driver.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// PV and PVC: legacy form of the class. Overrides `spec.storageClassName`, even if empty.
pub const CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";
/// PV: the claim's `status.capacity` before an expansion, while NodeExpandVolume is pending.
pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
/// PVC: the last expansion needs no NodeExpandVolume. The value is ignored.
pub const NODE_EXPANSION_NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
/// PV: name of the Secret for ControllerModifyVolume.
pub const MODIFY_SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
/// PV: namespace of the Secret for ControllerModifyVolume.
pub const MODIFY_SECRET_NAMESPACE: &str = "volume.kubernetes.io/controller-modify-secret-namespace";
/// StorageClass: the default class.
pub const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// StorageClass: the default class, legacy form.
pub const DEFAULT_CLASS_BETA: &str = "storageclass.beta.kubernetes.io/is-default-class";
/// PV: name of the Secret for DeleteVolume. Empty means none. Without the annotation, the StorageClass
/// may name a Secret.
pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
/// PV: namespace of the Secret for DeleteVolume.
pub const DELETION_SECRET_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";

/// Finalizer of every PV. It delays the deletion while the PV is Bound.
pub const PV_PROTECTION: &str = "kubernetes.io/pv-protection";
/// Finalizer of every PVC. It delays the deletion while a pod uses the claim.
pub const PVC_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Finalizer of every VolumeAttributesClass. It delays the deletion while a PV or a PVC references the class.
pub const VAC_PROTECTION: &str = "kubernetes.io/vac-protection";
/// Finalizer of a PV with reclaim policy Delete, until the driver's volume is deleted. A new PV has it with
/// any policy; with Retain or Recycle, the provisioner removes it.
pub const PROVISIONER_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// Finalizer of a PVC whose volume is cloned.
pub const CLONING_PROTECTION: &str = "provisioner.storage.kubernetes.io/cloning-protection";
/// Finalizer of a PV that an in-tree plugin provisioned, with reclaim policy Delete: kube-controller-manager
/// removes it after it has deleted the volume.
pub const IN_TREE_FINALIZER: &str = "kubernetes.io/pv-controller";

/// VolumeSnapshotClass: the default class of its driver.
pub const DEFAULT_SNAPSHOT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// VolumeSnapshotContent: a CreateSnapshot call may be in progress. The content and its snapshot are not
/// deleted before the result is known. The value is `yes`.
pub const SNAPSHOT_BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
/// VolumeSnapshotContent: the snapshot controller allows the deletion of the content, because its
/// VolumeSnapshot is being deleted. The value is `yes`.
pub const SNAPSHOT_BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// VolumeSnapshotContent: name and parameters of the CreateSnapshot call that may be in progress, as JSON.
pub const SNAPSHOT_REQUEST: &str = "cofferdam.dev/create-snapshot-request";
/// VolumeSnapshotContent: the driver's id of the group that the snapshot is a member of.
pub const SNAPSHOT_GROUP_HANDLE: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";
/// VolumeSnapshotContent: name of the Secret for CreateSnapshot and DeleteSnapshot.
pub const SNAPSHOT_SECRET_NAME: &str = "snapshot.storage.kubernetes.io/deletion-secret-name";
/// VolumeSnapshotContent: namespace of the Secret for CreateSnapshot and DeleteSnapshot.
pub const SNAPSHOT_SECRET_NAMESPACE: &str = "snapshot.storage.kubernetes.io/deletion-secret-namespace";
/// VolumeSnapshotContent: volumes of another mode than that of the source may be created from the snapshot.
pub const ALLOW_VOLUME_MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";
/// Label of a VolumeSnapshotContent: the name of the node whose process takes and deletes the snapshot, for
/// drivers whose storage is on one node.
pub const SNAPSHOT_MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
/// Value of [`SNAPSHOT_BEING_CREATED`] and [`SNAPSHOT_BEING_DELETED`].
pub const YES: &str = "yes";
/// Finalizer of a VolumeSnapshotContent until its snapshot is deleted or retained.
pub const SNAPSHOT_CONTENT_PROTECTION: &str =
    "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// Finalizer of a VolumeSnapshot whose content has the deletion policy Delete, until the content is deleted.
pub const SNAPSHOT_BOUND_PROTECTION: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
/// Finalizer of every VolumeSnapshot. It delays the deletion while a claim without a volume names the
/// snapshot as its source.
pub const SNAPSHOT_SOURCE_PROTECTION: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// Finalizer of a VolumeSnapshot that is a member of a VolumeGroupSnapshot.
pub const SNAPSHOT_GROUP_PROTECTION: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection";
/// Finalizer of a PVC while a snapshot of its volume is not ready.
pub const SNAPSHOT_CLAIM_PROTECTION: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
/// Finalizer of a VolumeSnapshot while a provisioner creates volumes from it.
pub const RESTORE_PROTECTION: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";

/// VolumeAttachment: the CSI node id, kept for the case that the CSINode is deleted.
pub const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";
/// VolumeAttachment: an operator confirms that the volume is detached although the driver cannot detach it.
/// The value is the operator's reason.
pub const CONFIRM_DETACHED: &str = "cofferdam.dev/confirm-detached";
/// ConfigMap of the intent journal: prefix of [`confirm_no_volume`].
const CONFIRM_NO_VOLUME_PREFIX: &str = "cofferdam.dev/confirm-no-volume.";
/// Prefix of the attacher's finalizer. A VolumeAttachment has the finalizer until the volume is detached from
/// the node. A PV has it from its first attach until it is being deleted and no VolumeAttachment names it.
const ATTACHER_FINALIZER_PREFIX: &str = "external-attacher/";

/// Node: the attach-detach controller, not the kubelet, attaches volumes. The value is ignored.
pub const CONTROLLER_MANAGED_ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Node: key of the taint by which an administrator declares a node shut down. Value and effect are ignored.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
/// Suffix of [`startup_taint`].
const STARTUP_TAINT_SUFFIX: &str = "/agent-not-ready";

/// The annotations of API objects that the controllers read. The cache keeps an object's annotations of these
/// names and no others: users may write as many annotations as fit into an object. An annotation that a user
/// chooses, such as one that the parameters of a StorageClass name, needs a live read.
pub const CACHED_ANNOTATIONS: &[&str] = &[
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    PROVISIONED_BY,
    MIGRATED_TO,
    STORAGE_PROVISIONER,
    STORAGE_PROVISIONER_BETA,
    SELECTED_NODE,
    CLASS_BETA,
    PRE_RESIZE_CAPACITY,
    NODE_EXPANSION_NOT_REQUIRED,
    MODIFY_SECRET_NAME,
    MODIFY_SECRET_NAMESPACE,
    DEFAULT_CLASS,
    DEFAULT_CLASS_BETA,
    DELETION_SECRET_NAME,
    DELETION_SECRET_NAMESPACE,
    DEFAULT_SNAPSHOT_CLASS,
    SNAPSHOT_BEING_CREATED,
    SNAPSHOT_BEING_DELETED,
    SNAPSHOT_REQUEST,
    SNAPSHOT_GROUP_HANDLE,
    SNAPSHOT_SECRET_NAME,
    SNAPSHOT_SECRET_NAMESPACE,
    ALLOW_VOLUME_MODE_CHANGE,
    NODE_ID,
    CONFIRM_DETACHED,
    CONTROLLER_MANAGED_ATTACH,
];

/// Prefix of the names that Kubernetes and Cofferdam give to VolumeAttachments of pods.
const VOLUME_ATTACHMENT_PREFIX: &str = "csi-";

/// Name of the VolumeAttachment of a volume on a node: the SHA-256 of handle, driver and node, concatenated.
pub fn volume_attachment_name(
    driver: &DriverName,
    handle: &VolumeHandle,
    node: &NodeName,
) -> VolumeAttachmentName {
    let digest = sha256_hex([handle.as_str(), driver.as_str(), node.as_str()]);
    VolumeAttachmentName::new(format!("{VOLUME_ATTACHMENT_PREFIX}{digest}"))
}

/// SHA-256 of the concatenated parts in lowercase hexadecimal digits, as in names that Kubernetes generates.
pub fn sha256_hex<const N: usize>(parts: [&str; N]) -> String {
    let mut digest = Sha256::new();
    parts.into_iter().for_each(|part| digest.update(part));
    format!("{:x}", digest.finalize())
}

/// Returns `true` if the name has the form of [`volume_attachment_name`]: `csi-` and 64 lowercase hexadecimal
/// digits. Kubernetes and Cofferdam give such names to VolumeAttachments of pods.
pub fn is_pod_attachment(name: &VolumeAttachmentName) -> bool {
    let digest = name.as_str().strip_prefix(VOLUME_ATTACHMENT_PREFIX).unwrap_or_default();
    digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Name of a volume or snapshot that a driver creates for the object with this UID: the prefix and the UID,
/// or the first `length` characters of the UID without its dashes. Sources: external-provisioner's
/// `makeVolumeName`, csi-snapshotter's `makeSnapshotName`.
pub fn name_with_uid(prefix: &str, length: Option<u8>, uid: &Uid) -> String {
    let uid = uid.to_string();
    let suffix = match length {
        None => uid,
        Some(length) => uid.chars().filter(|c| *c != '-').take(length.into()).collect(),
    };
    format!("{prefix}-{suffix}")
}

/// ConfigMap of the intent journal: annotation by which an operator confirms that the driver has no volume
/// for the intent of the claim with this uid, although its CreateVolume call has no final result. The value
/// is the operator's reason.
pub fn confirm_no_volume(claim: &Uid) -> String {
    format!("{CONFIRM_NO_VOLUME_PREFIX}{claim}")
}

/// Node: key of a driver's start-up taint. Administrators set it on new nodes, so that no pod is scheduled to
/// a node before the driver is registered there. Value and effect are ignored. Many drivers have a taint of
/// this form, such as `ebs.csi.aws.com/agent-not-ready`.
pub fn startup_taint(driver: &DriverName) -> String {
    format!("{driver}{STARTUP_TAINT_SUFFIX}")
}

/// The driver of a [`startup_taint`]; `None` for all other keys.
pub fn driver_of_startup_taint(key: &str) -> Option<DriverName> {
    let driver = key.strip_suffix(STARTUP_TAINT_SUFFIX)?;
    (!driver.is_empty()).then(|| driver.into())
}

/// Finalizer of a driver's VolumeAttachments and their PersistentVolumes.
pub fn attacher_finalizer(driver: &DriverName) -> String {
    format!("{ATTACHER_FINALIZER_PREFIX}{}", sanitize_driver_name(driver.as_str()))
}

/// A driver's name as in the sidecars' finalizers and leases: every character except letters, digits and
/// dashes becomes a dash, and a final dash is followed by `X`.
fn sanitize_driver_name(driver: &str) -> String {
    let sanitize = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    let mut sanitized: String = driver.chars().map(sanitize).collect();
    if sanitized.ends_with('-') {
        sanitized.push('X');
    }
    sanitized
}

/// Prefix of in-tree plugin names.
pub const IN_TREE_PREFIX: &str = "kubernetes.io/";

/// In-tree plugins that Kubernetes has migrated to CSI drivers: the plugin, the field of a PV's `spec` with
/// its source, and the driver. Source: k8s.io/csi-translation-lib.
const MIGRATED_PLUGINS: [(&str, &str, &str); 7] = [
    ("kubernetes.io/aws-ebs", "awsElasticBlockStore", "ebs.csi.aws.com"),
    ("kubernetes.io/azure-disk", "azureDisk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "azureFile", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/gce-pd", "gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("kubernetes.io/portworx-volume", "portworxVolume", "pxd.portworx.com"),
    ("kubernetes.io/vsphere-volume", "vsphereVolume", "csi.vsphere.vmware.com"),
];

/// The CSI driver to which Kubernetes has migrated an in-tree plugin; `None` for all other names.
pub fn migrated_driver(plugin: &str) -> Option<&'static str> {
    MIGRATED_PLUGINS.iter().find(|(name, ..)| *name == plugin).map(|(.., driver)| *driver)
}

/// The CSI driver to which Kubernetes has migrated the in-tree plugin of a volume source, which is given as
/// the field of a PV's `spec`; `None` for all other sources.
pub fn migrated_driver_of_source(field: &str) -> Option<&'static str> {
    MIGRATED_PLUGINS.iter().find(|(_, source, _)| *source == field).map(|(.., driver)| *driver)
}

/// Prefix of the StorageClass parameters that the provisioner evaluates and does not send to the driver. With
/// `--extra-create-metadata`, it sends parameters of its own with this prefix.
pub const RESERVED_PARAMETER_PREFIX: &str = "csi.storage.k8s.io/";
/// Volume attribute with the identity of the process that created the PersistentVolume, unless the driver
/// returns an attribute of this name.
pub const PROVISIONER_IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";
/// Key of the encoded connection info of a driver in the attributes of a PersistentVolume and in
/// `status.attachmentMetadata` of a VolumeAttachment.
pub const CONNECTION_INFO: &str = "cofferdam.dev/connection-info";
/// Topology key whose value on every node is the node's name. It is not a label of the Node.
pub const NODE_TOPOLOGY_KEY: &str = "topology.cofferdam.dev/node";
/// Volume attribute with the kind of content source, `volume` or `snapshot`. Cofferdam's node service never
/// formats a volume that has this attribute.
pub const CONTENT_SOURCE: &str = "cofferdam.dev/content-source";
/// Prefix of Cofferdam's volume attributes. A driver's response must not set them, and controller calls to a
/// driver do not contain them.
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
    fn startup_taints_name_their_driver() {
        let driver = "ebs.csi.aws.com".into();
        let key = startup_taint(&driver);
        assert_eq!(key, "ebs.csi.aws.com/agent-not-ready");
        assert_eq!(driver_of_startup_taint(&key), Some(driver));
        for other in ["/agent-not-ready", "agent-not-ready", "ebs.csi.aws.com/agent-not-ready-2", ""] {
            assert_eq!(driver_of_startup_taint(other), None, "{other}");
        }
    }

    #[test]
    fn migrated_plugins_are_found_by_name_and_by_source() {
        assert_eq!(migrated_driver("kubernetes.io/aws-ebs"), Some("ebs.csi.aws.com"));
        assert_eq!(migrated_driver_of_source("vsphereVolume"), Some("csi.vsphere.vmware.com"));
        for other in ["kubernetes.io/rbd", "kubernetes.io/no-provisioner", "ebs.csi.aws.com", ""] {
            assert_eq!((migrated_driver(other), migrated_driver_of_source(other)), (None, None), "{other}");
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
