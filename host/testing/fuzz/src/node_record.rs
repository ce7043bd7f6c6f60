//! Records of volumes on a node's disk. An earlier or later version, another policy or a damaged disk may have
//! written them.

use std::path::Path;

use cofferdam_domain::{
    storage::{ConnectionInfo, Secrets},
    text::printable,
};
use cofferdam_fake_host::{FakeHost, FakeMounter};
use cofferdam_node::{
    ConnectionKind, DeviceContent, ExpandRequest, KubeletRoots, MountOptions, Mounter as _, MounterError,
    NodeConnection, NodeError, NodePolicy, NodeVolumes, PublishRequest, StageRequest, VolumeRecord, fuzzing,
};

use crate::message::assert_printable;

/// Most bytes of a record.
const MAX_RECORD_BYTES: usize = 1 << 20;
/// Most bytes of a message: a printable text, its ellipsis, and the words before it.
const MAX_MESSAGE_BYTES: usize = 1_100;
const ROOT: &str = "/var/lib/kubelet";
const STAGING_PATH: &str = "/var/lib/kubelet/plugins/staging";
const TARGET_PATH: &str = "/var/lib/kubelet/pods/a";
const TMPFS_BYTES: u64 = 1 << 20;

/// The input is the text of a record.
///
/// - A text is a record, or an error of one line.
/// - A record that is saved is read back the same, and has one encoding.
/// - Whatever the record says, a node whose policy denies everything stages, publishes and expands nothing,
///   and one whose policy allows a tmpfs mounts no other storage.
pub fn node_record(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let path = Path::new("0.json");
    let record = match fuzzing::decode_record(path, text) {
        Ok(record) => record,
        Err(error) => return assert_printable(&error.to_string(), MAX_MESSAGE_BYTES),
    };
    match fuzzing::encode_record(&record) {
        Ok(encoded) => {
            assert!(encoded.len() <= MAX_RECORD_BYTES);
            let again = fuzzing::decode_record(path, &String::from_utf8_lossy(&encoded));
            assert_eq!(again.as_ref(), Ok(&record));
            assert_eq!(again.and_then(|again| fuzzing::encode_record(&again)).as_ref(), Ok(&encoded));
        }
        Err(error) => {
            assert!(matches!(error, MounterError::FailedPrecondition(_)), "{error}");
            assert_printable(&error.to_string(), MAX_MESSAGE_BYTES);
        }
    }
    check_policy(&record);
}

/// Acts on the volume of a record under policies that deny its connection info.
fn check_policy(record: &VolumeRecord) {
    let Ok(roots) = KubeletRoots::new([ROOT.to_owned()]) else { return };
    for is_mounted in [false, true] {
        let node = TestNode::new(record, &roots, NodePolicy::default());
        if is_mounted {
            node.mount_staged(&roots);
        }
        for connection_info in record.connection_info.iter().chain([&tmpfs()]) {
            let result = node.volumes.stage(&node.stage_request(connection_info));
            assert!(matches!(result, Err(NodeError::Denied(_) | NodeError::Invalid(_))), "{result:?}");
            let published = node.publish();
            assert!(is_mounted || published.is_err(), "nothing is published");
            let expanded = node.expand();
            assert!(expanded.is_err(), "{expanded:?}");
            assert!(is_mounted || node.host.leftover_mounts().is_empty());
            node.check_mounts();
        }
        assert_eq!(node.host.violations(), [""; 0]);
    }

    let allows_tmpfs = NodePolicy {
        connection_kinds: [ConnectionKind::Tmpfs].into(),
        tmpfs_max_bytes: Some(TMPFS_BYTES),
        tmpfs_total_bytes: Some(TMPFS_BYTES),
        ..NodePolicy::default()
    };
    let node = TestNode::new(record, &roots, allows_tmpfs);
    for connection_info in record.connection_info.iter().chain([&tmpfs()]) {
        check_message(node.volumes.stage(&node.stage_request(connection_info)));
        check_message(node.publish());
        check_message(node.expand());
        node.check_mounts();
    }
    assert_eq!(node.host.violations(), [""; 0]);
}

fn check_message<T>(result: Result<T, NodeError>) {
    if let Err(error) = result {
        assert_printable(&printable(&error.to_string()), MAX_MESSAGE_BYTES);
    }
}

/// Connection info of the tmpfs that the policy allows.
fn tmpfs() -> ConnectionInfo {
    let fields = [("size".to_owned(), TMPFS_BYTES.to_string())].into();
    ConnectionInfo { kind: ConnectionKind::Tmpfs.to_string(), version: 1, fields }
}

/// A node with storage of every kind, and the record of one volume.
struct TestNode<'a> {
    host: FakeHost,
    volumes: NodeVolumes<FakeMounter>,
    record: &'a VolumeRecord,
    staging_path: String,
}

impl<'a> TestNode<'a> {
    fn new(record: &'a VolumeRecord, roots: &KubeletRoots, policy: NodePolicy) -> Self {
        let host = FakeHost::isolated();
        if let Some(Ok(connection)) = record.connection_info.as_ref().map(NodeConnection::parse) {
            add_storage(&host, &connection);
        }
        let mounter = FakeMounter::new(&host);
        // In memory: an error is impossible.
        let _ = mounter.save_record(record);
        // kubelet has created the directory.
        let is_valid = |path: &&String| roots.resolve("path", path).is_ok();
        let staging_path = record.staging_path.as_ref().filter(is_valid).cloned();
        let staging_path = staging_path.unwrap_or_else(|| STAGING_PATH.to_owned());
        for directory in [staging_path.as_str(), "/var/lib/kubelet/pods"] {
            let _ = host.create_directories(directory);
        }
        Self { host, volumes: NodeVolumes::new(mounter, roots.clone(), policy), record, staging_path }
    }

    fn stage_request(&self, connection_info: &ConnectionInfo) -> StageRequest {
        StageRequest {
            volume: self.record.volume.clone(),
            staging_path: self.staging_path.clone(),
            capability: self.record.capability.clone(),
            connection_info: connection_info.clone(),
            has_content_source: false,
            secrets: Secrets::default(),
        }
    }

    /// Mounts a tmpfs at the staging path, as an earlier policy allowed.
    fn mount_staged(&self, roots: &KubeletRoots) {
        if let Ok(path) = roots.resolve("staging_target_path", &self.staging_path) {
            let options = MountOptions::default();
            let _ = self.volumes.mounter().mount_tmpfs("earlier", TMPFS_BYTES, &options, &path);
        }
    }

    fn publish(&self) -> Result<(), NodeError> {
        let target_path = self.record.targets.keys().next().cloned();
        self.volumes.publish(&PublishRequest {
            volume: self.record.volume.clone(),
            staging_path: self.staging_path.clone(),
            target_path: target_path.unwrap_or_else(|| TARGET_PATH.to_owned()),
            capability: self.record.capability.clone(),
            read_only: false,
        })
    }

    fn expand(&self) -> Result<Option<u64>, NodeError> {
        self.volumes.expand(&ExpandRequest {
            volume: self.record.volume.clone(),
            volume_path: self.staging_path.clone(),
            required: Some(TMPFS_BYTES),
            limit: None,
            is_size_published: true,
        })
    }

    /// Every mount is a tmpfs, and nothing else is attached, connected or mapped.
    fn check_mounts(&self) {
        for leftover in self.host.leftover_mounts() {
            let mounts = leftover.strip_suffix(" is mounted").map(|path| self.host.mounts_at(path));
            let is_tmpfs = mounts.is_some_and(|mounts| mounts.iter().all(|mount| mount.fs_type == "tmpfs"));
            assert!(is_tmpfs, "{leftover}");
        }
    }
}

/// Adds the storage that connection info names.
fn add_storage(host: &FakeHost, connection: &NodeConnection) {
    const SIZE: u64 = 1 << 24;
    match connection {
        NodeConnection::LocalDevice { stable_id } => {
            host.add_disk(stable_id, SIZE, DeviceContent::Blank, Vec::new());
        }
        NodeConnection::Nfs(export) => host.add_export(&format!("{}:{}", export.server, export.path())),
        NodeConnection::NvmeTcp(namespace) => {
            host.add_namespace("namespace", namespace, SIZE, DeviceContent::Blank);
            for portal in &namespace.portals {
                host.connect_controller(namespace.nqn.as_str(), *portal);
            }
        }
        NodeConnection::Rbd(image) => host.add_rbd_image("image", image, SIZE, DeviceContent::Blank),
        // The policy has no root for paths.
        NodeConnection::Directory { .. } | NodeConnection::Image { .. } => {}
        NodeConnection::Tmpfs { .. } | NodeConnection::None => {}
    }
}
