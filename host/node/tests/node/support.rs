//! Volumes, paths and a node to try them on.

use cofferdam_domain::storage::{AccessType, ConnectionInfo, CsiAccessMode, VolumeCapability};
use cofferdam_node::{
    Content, Filesystem, InlinePolicy, Kind, Node, NodeError, Pattern, Place, Policy, Publish, PublishInline,
    Roots, Stage,
};

use crate::model::{Disk, Model};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const ROOT: &str = "/var/lib/kubelet";

/// Everything that the operator allows in these tests.
pub(crate) fn policy() -> Policy {
    Policy {
        attachments: Kind::ALL.into(),
        directory_root: Some("/srv/directories".to_owned()),
        image_root: Some("/srv/images".to_owned()),
        stable_ids: vec![Pattern::new("wwn-*").unwrap()],
        tmpfs_most: Some(64 * MIB),
        filesystems: Filesystem::ALL.into(),
        inline: InlinePolicy { tmpfs_most: Some(MIB) },
        ..Policy::default()
    }
}

pub(crate) fn roots() -> Roots {
    Roots::new([ROOT.to_owned()]).unwrap()
}

/// A node with a directory, a blank image, one that holds data, and a device.
pub(crate) fn node() -> Node<Model> {
    let model = Model::default();
    model.directory_at("/srv/directories/one");
    model.image_at("/srv/images/blank", Disk::new(Content::Blank, 16 * MIB));
    model.image_at("/srv/images/raw", Disk::new(Content::Other("data".to_owned()), 16 * MIB));
    model.image_at("/srv/images/xfs", Disk::new(Content::Filesystem("xfs".to_owned()), 16 * MIB));
    model.device_at("wwn-blank", Disk::new(Content::Blank, 32 * MIB));
    model.directory_at(&format!("{ROOT}/staging"));
    model.directory_at(&format!("{ROOT}/pods"));
    Node::new(model, roots(), policy())
}

/// The same machine after the process has died, or with another policy.
pub(crate) fn again(node: Node<Model>, policy: Policy) -> Node<Model> {
    let model = Model::default();
    *model.state() = node.machine().state().clone();
    model.live(None, false);
    Node::new(model, roots(), policy)
}

pub(crate) fn attachment(kind: &str, fields: &[(&str, &str)]) -> ConnectionInfo {
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    ConnectionInfo { kind: kind.to_owned(), version: 1, fields }
}

pub(crate) fn filesystem(mode: CsiAccessMode) -> VolumeCapability {
    VolumeCapability {
        access_mode: mode,
        access_type: AccessType::Filesystem { fs_type: None, mount_flags: Vec::new(), mount_group: None },
    }
}

pub(crate) fn with(fs_type: &str, flags: &[&str], group: &str) -> VolumeCapability {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    VolumeCapability {
        access_mode: CsiAccessMode::SingleNodeWriter,
        access_type: AccessType::Filesystem {
            fs_type: text(fs_type),
            mount_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            mount_group: text(group),
        },
    }
}

pub(crate) fn block() -> VolumeCapability {
    VolumeCapability { access_mode: CsiAccessMode::SingleNodeWriter, access_type: AccessType::Block }
}

pub(crate) fn writer() -> VolumeCapability {
    filesystem(CsiAccessMode::SingleNodeWriter)
}

pub(crate) fn staging(volume: &str) -> String {
    format!("{ROOT}/staging/{volume}")
}

pub(crate) fn target(name: &str) -> String {
    format!("{ROOT}/pods/{name}")
}

pub(crate) fn place(path: &str) -> Place {
    roots().place("path", path).unwrap()
}

pub(crate) fn stage(volume: &str, attachment: ConnectionInfo, capability: VolumeCapability) -> Stage {
    Stage { volume: volume.to_owned(), staging_path: staging(volume), capability, attachment, cloned: false }
}

pub(crate) fn publish(volume: &str, name: &str, capability: VolumeCapability) -> Publish {
    Publish {
        volume: volume.to_owned(),
        staging_path: staging(volume),
        target_path: target(name),
        capability,
        read_only: false,
    }
}

pub(crate) fn inline(name: &str, size: Option<u64>) -> PublishInline {
    PublishInline {
        volume: format!("csi-{}", "a".repeat(64)),
        target_path: target(name),
        capability: writer(),
        read_only: false,
        size,
    }
}

/// Stages as kubelet does: it makes the directory first.
pub(crate) fn do_stage(node: &Node<Model>, request: &Stage) -> Result<(), NodeError> {
    node.machine().directory_at(&request.staging_path);
    node.stage(request)
}

/// A volume of every sort, with how it is used.
pub(crate) fn sorts() -> Vec<(&'static str, ConnectionInfo, VolumeCapability)> {
    vec![
        ("directory", attachment("directory", &[("path", "one")]), with("ext4", &["noexec"], "")),
        ("image", attachment("image", &[("path", "blank")]), with("ext4", &["noatime,discard"], "2000")),
        ("image-block", attachment("image", &[("path", "raw")]), block()),
        ("memory", attachment("tmpfs", &[("size", "1048576")]), with("", &[], "2000")),
        ("device", attachment("local-device", &[("stable-id", "wwn-blank")]), with("xfs", &[], "")),
        ("device-block", attachment("local-device", &[("stable-id", "wwn-blank")]), block()),
        ("none", attachment("none", &[]), with("", &[], "2000")),
        ("xfs", attachment("image", &[("path", "xfs")]), writer()),
    ]
}
