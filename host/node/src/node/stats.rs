//! NodeGetVolumeStats and NodeExpandVolume.

use cofferdam_domain::storage::{AccessType, VolumeCondition};

use super::{NodeVolumes, memory::memory_of};
use crate::{
    connection::NodeConnection,
    connector::is_read_only_mode,
    error::{NodeError, StepContext as _},
    file::PathKind,
    filesystem::FilesystemUsage,
    mounter::{Mounter, PathInfo},
    path::KubeletPath,
    record::VolumeRecord,
};

/// Result of NodeGetVolumeStats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStats {
    /// The usage. For a raw block volume, only the total size.
    pub usage: FilesystemUsage,
    /// True if the volume is a raw block volume.
    pub is_block: bool,
    /// The volume's condition.
    pub condition: VolumeCondition,
}

/// Arguments of NodeExpandVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandRequest {
    /// The volume's handle.
    pub volume: String,
    /// The staging path or a target path.
    pub volume_path: String,
    /// Minimum size in bytes, if requested.
    pub required: Option<u64>,
    /// Maximum size in bytes, if requested.
    pub limit: Option<u64>,
    /// True if each ControllerPublishVolume returns the connection info, and with it the current size. A
    /// tmpfs can be expanded only then.
    pub is_size_published: bool,
}

impl<M: Mounter> NodeVolumes<M> {
    /// Finds a volume's record, and checks that the path belongs to it.
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

    /// Returns the usage and condition of a volume at its staging path or at a target path.
    ///
    /// # Errors
    /// [`NodeError::NotFound`] if the volume has no record, the record does not have the path, or nothing is
    /// mounted there.
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

    /// Expands a volume on this node: a filesystem to the size of its device, a tmpfs to the required size if
    /// it is smaller. A filesystem that is mounted read-only stays unchanged. Returns the size in bytes of
    /// the device or tmpfs. Kinds `directory`, `nfs` and `none` have no size on the node: returns the required
    /// size.
    ///
    /// # Errors
    /// [`NodeError::OutOfRange`] if the device is smaller than required, a tmpfs would exceed the policy's
    /// maximum, or the size after the expansion is above the limit; the volume then stays expanded.
    /// [`NodeError::FailedPrecondition`] for an inline volume, a volume that is not staged, a tmpfs unless
    /// `is_size_published`, and an image or device that was replaced. [`NodeError::NotFound`] as for
    /// [`Self::volume_stats`] without a record or with another path. [`NodeError::Invalid`] if the required
    /// size is above the limit. [`NodeError::Denied`] if the policy no longer allows the connection info.
    pub fn expand(&self, request: &ExpandRequest) -> Result<Option<u64>, NodeError> {
        let (record, _) = self.find_record(&request.volume, &request.volume_path)?;
        if let (Some(required), Some(limit)) = (request.required, request.limit)
            && required > limit
        {
            return Err(NodeError::Invalid(format!(
                "capacity_range has required_bytes {required} and limit_bytes {limit}: expected a \
                 limit that is not lower"
            )));
        }
        let Some(connection) = &record.connection_info else {
            return Err(NodeError::FailedPrecondition("an inline volume cannot be expanded".to_owned()));
        };
        let connection =
            NodeConnection::parse(connection).map_err(|error| NodeError::Invalid(error.to_string()))?;
        if matches!(connection, NodeConnection::Tmpfs { .. }) && !request.is_size_published {
            return Err(NodeError::FailedPrecondition(
                "a tmpfs whose size is in the volume context cannot be expanded: the next \
                 NodeStageVolume would create it with the old size"
                    .to_owned(),
            ));
        }
        let connector = self.policy.connector(&connection)?;
        let (path, _) = self.staged_mount(&record)?.ok_or_else(|| {
            NodeError::FailedPrecondition("the volume is not staged on this node".to_owned())
        })?;
        // A tmpfs records its new size: no other volume may take memory meanwhile.
        let memory = memory_of(&record).zip(request.required).filter(|(size, required)| required > size);
        let active = memory.map(|(_, required)| (required, self.active_volumes.lock()));
        if let Some((required, active)) = &active {
            let records = self.mounter.records().step("read the volumes' records")?.readable;
            self.check_total_memory(&record.volume, *required, &records, active)?;
        }
        let size = connector.expand(&self.mounter, &record, &path, request.required)?;
        drop(active);
        match size.zip(request.limit).filter(|(size, limit)| size > limit) {
            Some((size, limit)) => Err(NodeError::OutOfRange(format!(
                "the volume has {size} bytes: expected a limit of at least that, not {limit}"
            ))),
            None => Ok(size),
        }
    }
}

/// Derives the condition of a volume from its mount: abnormal if the filesystem is read-only, although
/// neither the access mode, nor the mount flag `ro`, nor kind `none` requires that. A raw block volume is
/// never abnormal.
fn volume_condition(record: &VolumeRecord, found: &PathInfo) -> VolumeCondition {
    let is_remounted_read_only = found.mounts.last().is_some_and(|top| top.filesystem_read_only)
        && !is_read_only_mode(record.capability.access_mode);
    let is_requested_read_only = match &record.capability.access_type {
        AccessType::Filesystem { mount_flags, .. } => {
            mount_flags.iter().any(|flags| flags.split(',').any(|flag| flag == "ro"))
        }
        AccessType::Block => true,
    };
    // Kind `none` is always mounted read-only.
    let is_always_read_only = record.connection_info.as_ref().is_some_and(|info| info.kind == "none");
    if is_remounted_read_only && !is_requested_read_only && !is_always_read_only {
        return VolumeCondition {
            abnormal: true,
            message: "the filesystem was remounted read-only: its storage may have failed".to_owned(),
        };
    }
    VolumeCondition { abnormal: false, message: "mounted".to_owned() }
}
