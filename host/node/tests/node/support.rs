//! Fixtures: volumes, paths and nodes.

use cofferdam_domain::storage::{
    AccessType, ConnectionInfo, CsiAccessMode, ErrorKind, Secret, Secrets, VolumeCapability,
};
use cofferdam_fake_host::FakeHost;
use cofferdam_node::{
    ConnectionKind, DeviceContent, ExpandRequest, Filesystem, InlinePolicy, KubeletPath, KubeletRoots,
    NfsRule, NodeError, NodePolicy, NodeVolumes, NvmeNamespace, NvmeRule, PublishInlineRequest,
    PublishRequest, RbdFields, RbdImage, RbdRule, StableIdPattern, StageRequest,
};

use crate::fault_injection::FaultyMounter;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const ROOT: &str = "/var/lib/kubelet";

/// A policy that allows all kinds.
pub(crate) fn policy() -> NodePolicy {
    NodePolicy {
        connection_kinds: ConnectionKind::ALL.into(),
        directory_root: Some("/srv/directories".to_owned()),
        image_root: Some("/srv/images".to_owned()),
        stable_ids: vec![StableIdPattern::new("wwn-*").unwrap()],
        nfs: vec![
            nfs_rule("10.0.0.0/8", &[], "/srv/volumes/*"),
            nfs_rule("nas.example.com", &["10.0.0.0/8"], "/srv/volumes/*"),
        ],
        nvme_tcp: vec![
            NvmeRule::new(&["10.0.0.0/8".to_owned()], &[4420], &["nqn.2024-01.com.example:*".to_owned()])
                .unwrap(),
        ],
        rbd: vec![
            RbdRule::new(&["10.0.0.0/8".to_owned()], &[6789], &[FSID.to_owned()], &["volumes".to_owned()])
                .unwrap(),
        ],
        tmpfs_max_bytes: Some(64 * MIB),
        filesystems: Filesystem::ALL.into(),
        inline: InlinePolicy { tmpfs_max_bytes: Some(MIB) },
        ..NodePolicy::default()
    }
}

fn nfs_rule(server: &str, addresses: &[&str], export: &str) -> NfsRule {
    let addresses: Vec<String> = addresses.iter().map(|text| (*text).to_owned()).collect();
    NfsRule::new(server, &addresses, &[export.to_owned()]).unwrap()
}

pub(crate) fn roots() -> KubeletRoots {
    KubeletRoots::new([ROOT.to_owned()]).unwrap()
}

/// A node with a directory, a blank disk image, disk images with content, a device, an NFS export, two NVMe
/// namespaces of one subsystem, and two RBD images.
pub(crate) fn test_node() -> NodeVolumes<FaultyMounter> {
    let host = FakeHost::isolated();
    for directory in ["/srv/directories/one", &format!("{ROOT}/pods")] {
        host.create_directories(directory).unwrap();
    }
    for (image, content) in [
        ("blank", DeviceContent::Blank),
        ("raw", DeviceContent::Other("data".to_owned())),
        ("xfs", DeviceContent::Filesystem("xfs".to_owned())),
    ] {
        host.add_image(&format!("/srv/images/{image}"), 16 * MIB, content).unwrap();
    }
    host.add_export("10.0.0.5:/srv/volumes/one");
    host.add_name("nas.example.com", &["192.0.2.1".parse().unwrap(), "10.0.0.5".parse().unwrap()]);
    host.add_disk("wwn-blank", 32 * MIB, DeviceContent::Blank, Vec::new());
    for (name, namespace) in [("nvme-blank", nvme_namespace(1)), ("nvme-raw", nvme_namespace(2))] {
        host.add_namespace(name, &parse_namespace(&namespace), 16 * MIB, DeviceContent::Blank);
    }
    for (name, image) in [("rbd-blank", rbd_image(1)), ("rbd-raw", rbd_image(2))] {
        host.add_rbd_image(name, &parse_image(&image), 16 * MIB, DeviceContent::Blank);
    }
    NodeVolumes::new(FaultyMounter::new(host), roots(), policy())
}

/// The same node after a process restart, with a policy.
pub(crate) fn restart(node: NodeVolumes<FaultyMounter>, policy: NodePolicy) -> NodeVolumes<FaultyMounter> {
    NodeVolumes::new(node.mounter().restarted(), roots(), policy)
}

pub(crate) fn connection_info(kind: &str, fields: &[(&str, &str)]) -> ConnectionInfo {
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    ConnectionInfo { kind: kind.to_owned(), version: 1, fields }
}

pub(crate) fn nfs_export(server: &str, path: &str) -> ConnectionInfo {
    connection_info("nfs", &[("server", server), ("path", path), ("version", "4.2")])
}

/// A namespace of the subsystem `one` with two portals. The NGUID has this digit in each place.
pub(crate) fn nvme_namespace(digit: u8) -> ConnectionInfo {
    let nguid = digit.to_string().repeat(32);
    let portals = "10.0.0.8:4420,10.0.0.9:4420";
    connection_info(
        "nvme-tcp",
        &[("portals", portals), ("nqn", "nqn.2024-01.com.example:one"), ("nguid", &nguid)],
    )
}

pub(crate) fn parse_namespace(connection: &ConnectionInfo) -> NvmeNamespace {
    let field = |name: &str| connection.fields.get(name).map(String::as_str);
    NvmeNamespace::parse(field("portals").unwrap(), field("nqn").unwrap(), field("nguid"), field("uuid"))
        .unwrap()
}

/// The fsid of the Ceph cluster.
pub(crate) const FSID: &str = "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10";

/// The image `image-NUMBER` of the cluster.
pub(crate) fn rbd_image(number: u8) -> ConnectionInfo {
    let (image, id) = (format!("image-{number}"), format!("10ab{number}"));
    let monitors = ("monitors", "10.0.0.3:6789");
    let fields =
        [monitors, ("cluster-fsid", FSID), ("pool", "volumes"), ("image", &image), ("image-id", &id)];
    connection_info("rbd", &fields)
}

pub(crate) fn parse_image(connection: &ConnectionInfo) -> RbdImage {
    let field = |name: &str| connection.fields.get(name).map(String::as_str);
    let fields = RbdFields {
        monitors: field("monitors").unwrap(),
        cluster_fsid: field("cluster-fsid").unwrap(),
        pool: field("pool").unwrap(),
        namespace: field("namespace"),
        image: field("image").unwrap(),
        image_id: field("image-id").unwrap(),
    };
    RbdImage::parse(fields).unwrap()
}

/// The user of the Ceph cluster.
pub(crate) fn ceph_secrets(key: &str) -> Secrets {
    let secrets = [("userID", "csi"), ("userKey", key)];
    secrets.into_iter().map(|(name, text)| (name.to_owned(), Secret::new(text))).collect()
}

pub(crate) fn filesystem_capability(mode: CsiAccessMode) -> VolumeCapability {
    VolumeCapability {
        access_mode: mode,
        access_type: AccessType::Filesystem { fs_type: None, mount_flags: Vec::new(), mount_group: None },
    }
}

pub(crate) fn mount_capability(fs_type: &str, flags: &[&str], group: &str) -> VolumeCapability {
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

pub(crate) fn block_capability() -> VolumeCapability {
    VolumeCapability { access_mode: CsiAccessMode::SingleNodeWriter, access_type: AccessType::Block }
}

pub(crate) fn single_writer() -> VolumeCapability {
    filesystem_capability(CsiAccessMode::SingleNodeWriter)
}

pub(crate) fn staging_path(volume: &str) -> String {
    format!("{ROOT}/plugins/kubernetes.io/csi/volumeDevices/staging/{volume}")
}

pub(crate) fn target_path(name: &str) -> String {
    format!("{ROOT}/pods/{name}")
}

pub(crate) fn kubelet_path(path: &str) -> KubeletPath {
    roots().resolve("path", path).unwrap()
}

pub(crate) fn stage_request(
    volume: &str,
    connection_info: ConnectionInfo,
    capability: VolumeCapability,
) -> StageRequest {
    StageRequest {
        volume: volume.to_owned(),
        staging_path: staging_path(volume),
        capability,
        connection_info,
        has_content_source: false,
        secrets: ceph_secrets("AQAA"),
    }
}

pub(crate) fn publish_request(volume: &str, name: &str, capability: VolumeCapability) -> PublishRequest {
    PublishRequest {
        volume: volume.to_owned(),
        staging_path: staging_path(volume),
        target_path: target_path(name),
        capability,
        read_only: false,
    }
}

pub(crate) fn inline_request(name: &str, size: Option<u64>) -> PublishInlineRequest {
    PublishInlineRequest {
        volume: format!("csi-{}", "a".repeat(64)),
        target_path: target_path(name),
        capability: single_writer(),
        read_only: false,
        size,
    }
}

/// Stages a volume for a single writer. The error is its kind and message.
pub(crate) fn stage_single_writer(
    node: &NodeVolumes<FaultyMounter>,
    volume: &str,
    connection: ConnectionInfo,
) -> Result<(), (ErrorKind, String)> {
    make_directory_and_stage(node, &stage_request(volume, connection, single_writer()))
        .map_err(|error| (error.kind(), error.to_string()))
}

pub(crate) fn unstage(node: &NodeVolumes<FaultyMounter>, volume: &str) {
    node.unstage(volume, &staging_path(volume)).unwrap();
}

/// Expands the volume `v` at its staging path.
pub(crate) fn expand(node: &NodeVolumes<FaultyMounter>, required: u64) -> Result<Option<u64>, String> {
    let request = ExpandRequest {
        volume: "v".to_owned(),
        volume_path: staging_path("v"),
        required: Some(required),
        limit: None,
        is_size_published: true,
    };
    node.expand(&request).map_err(|error| error.to_string())
}

/// Creates the staging directory and stages, like kubelet.
pub(crate) fn make_directory_and_stage(
    node: &NodeVolumes<FaultyMounter>,
    request: &StageRequest,
) -> Result<(), NodeError> {
    node.mounter().host().create_directories(&request.staging_path).unwrap();
    node.stage(request)
}

/// Volumes of every kind of connection info, with their capabilities. Images and devices occur as filesystem
/// and as raw block volumes; two volumes name the same device, so only one of them can be staged at a time.
pub(crate) fn volume_kinds() -> Vec<(&'static str, ConnectionInfo, VolumeCapability)> {
    vec![
        (
            "directory",
            connection_info("directory", &[("path", "one")]),
            mount_capability("ext4", &["noexec"], ""),
        ),
        (
            "image",
            connection_info("image", &[("path", "blank")]),
            mount_capability("ext4", &["noatime,discard"], "2000"),
        ),
        ("image-block", connection_info("image", &[("path", "raw")]), block_capability()),
        ("memory", connection_info("tmpfs", &[("size", "1048576")]), mount_capability("", &[], "2000")),
        (
            "device",
            connection_info("local-device", &[("stable-id", "wwn-blank")]),
            mount_capability("xfs", &[], ""),
        ),
        ("device-block", connection_info("local-device", &[("stable-id", "wwn-blank")]), block_capability()),
        (
            "nfs",
            nfs_export("nas.example.com", "/srv/volumes/one"),
            mount_capability("", &["nconnect=4"], "2000"),
        ),
        ("nvme", nvme_namespace(1), mount_capability("xfs", &["noatime"], "2000")),
        ("nvme-block", nvme_namespace(2), block_capability()),
        ("rbd", rbd_image(1), mount_capability("ext4", &["discard"], "2000")),
        ("rbd-block", rbd_image(2), block_capability()),
        ("none", connection_info("none", &[]), mount_capability("", &[], "2000")),
        ("xfs", connection_info("image", &[("path", "xfs")]), single_writer()),
    ]
}
