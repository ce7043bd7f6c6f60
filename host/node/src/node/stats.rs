//! NodeGetVolumeStats and NodeExpandVolume.

use cofferdam_domain::storage::AccessType;

use super::NodeVolumes;
use crate::{
    connection::NodeConnection,
    connector::is_read_only_mode,
    error::{NodeError, StepContext as _},
    mounter::{FilesystemUsage, Mounter, PathInfo, PathKind},
    path::KubeletPath,
    record::VolumeRecord,
};

/// Whether a volume can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVolumeCondition {
    /// Whether something is wrong with it.
    pub abnormal: bool,
    /// What, for people.
    pub message: String,
}

/// Answer of NodeGetVolumeStats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStats {
    /// How full it is; a raw device has its size alone.
    pub usage: FilesystemUsage,
    /// Whether it is a raw device.
    pub is_block: bool,
    /// Whether it can be used.
    pub condition: NodeVolumeCondition,
}

/// Arguments of NodeExpandVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandRequest {
    /// The volume's handle.
    pub volume: String,
    /// Where it is staged or published.
    pub volume_path: String,
    /// At least this many bytes, where the caller says it.
    pub required: Option<u64>,
    /// At most this many bytes, where the caller says it.
    pub limit: Option<u64>,
    /// Whether the driver says each time it publishes the volume how it is reached, and so how large it has
    /// become.
    pub is_size_published: bool,
}

impl<M: Mounter> NodeVolumes<M> {
    /// The record of a volume, and one of its own paths.
    fn find_record(&self, volume: &str, path: &str) -> Result<(VolumeRecord, KubeletPath), NodeError> {
        let not_found = || NodeError::NotFound("the volume is not on this node".to_owned());
        let record = self.record(volume)?.ok_or_else(not_found)?;
        let not_at_path = || NodeError::NotFound(format!("the volume is not at {path:?}"));
        let kubelet_path = self.roots.resolve("volume_path", path).map_err(|_| not_at_path())?;
        let path_text = kubelet_path.to_string();
        let is_own_path = record.targets.contains_key(&path_text)
            || record.staging_path.as_deref() == Some(path_text.as_str());
        if is_own_path { Ok((record, kubelet_path)) } else { Err(not_at_path()) }
    }

    /// How full a volume is, and whether it can be used.
    ///
    /// # Errors
    /// [`NodeError::Missing`] for a volume that is not at the path.
    pub fn volume_stats(&self, volume: &str, path: &str) -> Result<VolumeStats, NodeError> {
        let (record, kubelet_path) = self.find_record(volume, path)?;
        let is_block = matches!(record.capability.access_type, AccessType::Block);
        let staged = record.staging_path.as_deref() == Some(kubelet_path.to_string().as_str());
        let mount_path = if is_block && staged {
            kubelet_path.join(crate::connector::BLOCK_FILE_NAME)
        } else {
            kubelet_path.clone()
        };
        let found = self.inspect(&mount_path)?.filter(|found| !found.mounts.is_empty());
        let Some(found) = found else {
            return Err(NodeError::NotFound(format!("nothing is mounted at {mount_path}")));
        };
        let condition = volume_condition(&record, &found);
        let usage = if let PathKind::Device(number) = found.kind {
            let total = self.mounter.device_size(number).step("measure the volume's device")?;
            FilesystemUsage { total, ..FilesystemUsage::default() }
        } else {
            self.mounter.usage(&mount_path).step("measure the volume's filesystem")?
        };
        Ok(VolumeStats { usage, is_block, condition })
    }

    /// Makes a volume on this node as large as its storage has become; returns its size in bytes where it is
    /// known.
    ///
    /// # Errors
    /// [`NodeError::Range`] when its storage is smaller than what is asked for.
    pub fn expand(&self, request: &ExpandRequest) -> Result<Option<u64>, NodeError> {
        let (record, _) = self.find_record(&request.volume, &request.volume_path)?;
        if let (Some(required), Some(limit)) = (request.required, request.limit)
            && required > limit
        {
            return Err(NodeError::Invalid(format!(
                "capacity_range asks for {required} to {limit} bytes: expected the first not above the second"
            )));
        }
        let Some(connection) = &record.connection_info else {
            return Err(NodeError::FailedPrecondition("an inline volume does not grow".to_owned()));
        };
        let connection = NodeConnection::parse(connection).map_err(NodeError::Invalid)?;
        if matches!(connection, NodeConnection::Tmpfs { .. }) && !request.is_size_published {
            return Err(NodeError::FailedPrecondition(
                "memory whose size was said once, when the volume was created, does not grow: it would be small again when \
                 it is staged the next time"
                    .to_owned(),
            ));
        }
        let connector = self.policy.connector(connection)?;
        let (path, _) = self.staged_mount(&record)?.ok_or_else(|| {
            NodeError::FailedPrecondition("the volume is not staged on this node".to_owned())
        })?;
        let size = connector.expand(&self.mounter, &record, &path, request.required)?;
        match size.zip(request.limit).filter(|(size, limit)| size > limit) {
            Some((size, limit)) => Err(NodeError::OutOfRange(format!(
                "the volume has {size} bytes already: expected a limit of at least that, not {limit}"
            ))),
            None => Ok(size),
        }
    }
}

/// What a mount tells of its volume.
fn volume_condition(record: &VolumeRecord, found: &PathInfo) -> NodeVolumeCondition {
    let is_remounted_read_only = found.mounts.last().is_some_and(|top| top.filesystem_read_only)
        && !is_read_only_mode(record.capability.access_mode);
    let is_requested_read_only = match &record.capability.access_type {
        AccessType::Filesystem { mount_flags, .. } => {
            mount_flags.iter().any(|flags| flags.split(',').any(|flag| flag == "ro"))
        }
        AccessType::Block => true,
    };
    // `none` is read-only by nature.
    let is_always_read_only =
        record.connection_info.as_ref().is_some_and(|attachment| attachment.kind == "none");
    if is_remounted_read_only && !is_requested_read_only && !is_always_read_only {
        return NodeVolumeCondition {
            abnormal: true,
            message: "the filesystem has become read-only: its storage may have failed".to_owned(),
        };
    }
    NodeVolumeCondition { abnormal: false, message: "mounted".to_owned() }
}
