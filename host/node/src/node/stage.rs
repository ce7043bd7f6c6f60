//! NodeStageVolume and NodeUnstageVolume.

use std::collections::BTreeSet;

use super::{NodeVolumes, StageRequest, memory::memory_of};
use crate::{
    connection::NodeConnection,
    connector::{Connector, StageContext, unstage},
    error::{NodeError, StepContext as _},
    file::PathKind,
    mounter::Mounter,
    path::KubeletPath,
    record::VolumeRecord,
};

impl<M: Mounter> NodeVolumes<M> {
    /// Stages a volume at its staging path. The call is idempotent.
    ///
    /// # Errors
    /// [`NodeError`]. The call is then rolled back, because kubelet assumes that a failed call had no effect
    /// and does not unstage. It is not rolled back if the volume was already staged, if something was already
    /// mounted at the staging path, or if that is unknown. If the roll-back fails too, a retry or
    /// [`Self::unstage`] continues.
    pub fn stage(&self, request: &StageRequest) -> Result<(), NodeError> {
        let path = self.roots.resolve("staging_target_path", &request.staging_path)?;
        let _active_guard = self.active_volumes.mark_active(&request.volume);
        // If unknown, assume that the mount existed before.
        let had_mount = self.has_staging_mount(&path).unwrap_or(true);
        let earlier = self.record(&request.volume).unwrap_or_default();
        let result = self.try_stage(request, &path);
        if result.is_err() && !had_mount {
            // The caller needs the first error.
            let _ = self.roll_back_stage(&request.volume, &path, earlier.as_ref());
        }
        result
    }

    /// Returns true if something is mounted at a staging path, or on the device file in it.
    fn has_staging_mount(&self, path: &KubeletPath) -> Result<bool, NodeError> {
        Ok(self.is_mounted(path)?
            || (self.inspect(path)?.is_some()
                && self.is_mounted(&path.join(crate::connector::BLOCK_FILE_NAME))?))
    }

    /// Rolls back a failed call, unless the record says that the volume was staged before, has targets, or
    /// has another staging path. Keeps the record if formatting has started and is not known to have
    /// finished, or if the `earlier` record had the size of the same storage.
    fn roll_back_stage(
        &self,
        volume: &str,
        path: &KubeletPath,
        earlier: Option<&VolumeRecord>,
    ) -> Result<(), NodeError> {
        let Some(record) = self.record(volume)? else { return Ok(()) };
        let records = self.mounter.records().step("read the volumes' records")?.readable;
        if record.is_staged
            || !record.targets.is_empty()
            || record.staging_path.as_ref() != Some(&path.to_string())
        {
            return Ok(());
        }
        unstage(&self.mounter, &self.subsystem_locks, path, Some(&record), &records)?;
        let has_known_size = earlier.is_some_and(|earlier| {
            earlier.size.is_some() && earlier.connection_info == record.connection_info
        });
        // The next attempt must know that the device may hold an interrupted format, and how large it was.
        if record.format_in_progress || has_known_size {
            Ok(())
        } else {
            self.mounter.delete_record(volume).step("delete the volume's record")
        }
    }

    fn try_stage(&self, request: &StageRequest, path: &KubeletPath) -> Result<(), NodeError> {
        let connection = NodeConnection::parse(&request.connection_info)
            .map_err(|error| NodeError::Invalid(error.to_string()))?;
        let connector = self.policy.connector(&connection)?;
        connector.check_capability(&request.capability)?;
        match self.inspect(path)?.map(|found| found.kind) {
            Some(PathKind::Directory) => {}
            Some(PathKind::File(_) | PathKind::Device(_) | PathKind::Other) | None => {
                return Err(NodeError::FailedPrecondition(format!(
                    "the staging path {path} is not a directory: expected one that kubelet created"
                )));
            }
        }
        self.unstage_replaced(request, path)?;
        let record = self.reserve_storage(&*connector, request, path)?;
        self.run_connector(&*connector, request, path, record)
    }

    /// Unstages the volume at the staging path of its record if the request differs from it and nothing of
    /// the volume is mounted. Waits for storage, so other volumes can be staged meanwhile.
    fn unstage_replaced(&self, request: &StageRequest, path: &KubeletPath) -> Result<(), NodeError> {
        let Some(existing) = self.record(&request.volume)? else { return Ok(()) };
        if is_same_request(&existing, request, path) || self.is_live(&existing)? {
            return Ok(());
        }
        let Some(old_path) = &existing.staging_path else { return Ok(()) };
        let old_path = self.roots.resolve("staging_target_path", old_path)?;
        let others = self.mounter.records().step("read the volumes' records")?.readable;
        unstage(&self.mounter, &self.subsystem_locks, &old_path, Some(&existing), &others)
    }

    /// Prepares the record. Resolves the volume's storage, checks that no other volume uses the same image,
    /// device or staging path, and saves the record if it is new or changed.
    fn reserve_storage(
        &self,
        connector: &dyn Connector,
        request: &StageRequest,
        path: &KubeletPath,
    ) -> Result<VolumeRecord, NodeError> {
        // No other volume may reserve storage between reading and saving records.
        let active = self.active_volumes.lock();
        let others = self.mounter.records().step("read the volumes' records")?;
        let others = others.all_or_error().step("read the volumes' records")?;
        let mut record = self.prepare_record(request, path, &others)?;
        let known_image = record.image_id.take();
        connector.identify(&self.mounter, &mut record)?;
        // An image that was put in the place of another one has no interrupted format. A reboot can change the
        // number of its filesystem, and that of a device, whose stable id stays.
        if let (Some(known), Some(found)) = (known_image, record.image_id)
            && known.inode != found.inode
        {
            record.format_in_progress = false;
        }
        self.check_exclusive(&record, &others, &active)?;
        if let Some(size) = memory_of(&record)
            && !self.is_live(&record)?
        {
            self.check_total_memory(&record.volume, size, &others, &active)?;
        }
        let existing = others.iter().find(|other| other.volume == record.volume);
        if existing != Some(&record) {
            self.mounter.save_record(&record).step("save the volume's record")?;
        }
        Ok(record)
    }

    fn run_connector(
        &self,
        connector: &dyn Connector,
        request: &StageRequest,
        path: &KubeletPath,
        record: VolumeRecord,
    ) -> Result<(), NodeError> {
        let mut context = StageContext {
            mounter: &self.mounter,
            staging_path: path,
            record,
            base_attributes: self.policy.base_attributes(),
            filesystems: &self.policy.filesystems,
            has_content_source: request.has_content_source,
            subsystem_locks: &self.subsystem_locks,
            secrets: &request.secrets,
            is_in_use: &|other| self.is_in_use(other, &self.active_volumes.lock()),
        };
        connector.stage(&mut context)?;
        if !context.record.is_staged {
            context.record.is_staged = true;
            context.save_record()?;
        }
        Ok(())
    }

    /// Returns the record to continue with; a new one if the volume has none. With the same staging path,
    /// connection info and capability it is the existing one, reset to "not staged, no targets" if nothing of
    /// the volume is mounted. If one of them differs it is a new one, after the volume is unstaged at its old
    /// staging path; the call fails if something of the volume is mounted. `others` are the records of all
    /// volumes, this one included.
    fn prepare_record(
        &self,
        request: &StageRequest,
        path: &KubeletPath,
        others: &[VolumeRecord],
    ) -> Result<VolumeRecord, NodeError> {
        let staging = path.to_string();
        let new_record = VolumeRecord {
            volume: request.volume.clone(),
            staging_path: Some(staging.clone()),
            connection_info: Some(request.connection_info.clone()),
            capability: request.capability.clone(),
            size: None,
            image_id: None,
            device_number: None,
            format_in_progress: false,
            is_staged: false,
            targets: Default::default(),
        };
        let existing = others.iter().find(|other| other.volume == request.volume);
        let Some(existing) = existing else { return Ok(new_record) };
        let is_live = self.is_live(existing)?;
        if is_same_request(existing, request, path) {
            let record = existing.clone();
            // From before a reboot, or of a call that mounted nothing: if this call fails, nothing is staged.
            return Ok(if is_live {
                record
            } else {
                VolumeRecord { is_staged: false, targets: new_record.targets, ..record }
            });
        }
        let staged_path = existing.staging_path.as_deref().unwrap_or("no staging path");
        if is_live {
            return Err(if existing.staging_path == new_record.staging_path {
                NodeError::AlreadyExists(format!(
                    "the volume is staged at {staged_path} with other arguments"
                ))
            } else {
                NodeError::FailedPrecondition(format!(
                    "the volume is staged at {staged_path}: expected it to be unstaged first"
                ))
            });
        }
        if existing.connection_info != new_record.connection_info {
            return Ok(new_record);
        }
        // The storage is the same, and may still hold the interrupted format, which a retry may overwrite. It must
        // not be smaller than it was.
        let VolumeRecord { format_in_progress, image_id, size, .. } = *existing;
        Ok(VolumeRecord { format_in_progress, image_id, size, ..new_record })
    }

    /// Rejects a staging path, a directory, an export, an image or a device that another volume uses: a volume that is
    /// mounted, or that has a stage or unstage call in flight. The policy may allow shared directories.
    fn check_exclusive(
        &self,
        record: &VolumeRecord,
        others: &[VolumeRecord],
        active: &BTreeSet<String>,
    ) -> Result<(), NodeError> {
        for other in others.iter().filter(|other| other.volume != record.volume) {
            let is_shared = (record.image_id.is_some() && record.image_id == other.image_id)
                || (record.device_number.is_some() && record.device_number == other.device_number)
                || record.staging_path == other.staging_path
                || self.shares_directory(record, other);
            if is_shared && self.is_in_use(other, active)? {
                return Err(NodeError::FailedPrecondition(
                    "another volume of this node uses the same storage or the same staging path".to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// Returns true if a volume is mounted, or has a stage or unstage call in flight.
    fn is_in_use(&self, record: &VolumeRecord, active: &BTreeSet<String>) -> Result<bool, NodeError> {
        Ok(active.contains(&record.volume) || self.is_live(record)?)
    }

    /// Returns true if two volumes have the same directory, image or export, or one lies in that of the other,
    /// although the policy does not allow that.
    fn shares_directory(&self, record: &VolumeRecord, other: &VolumeRecord) -> bool {
        let connection = |record: &VolumeRecord| NodeConnection::parse(record.connection_info.as_ref()?).ok();
        connection(record)
            .zip(connection(other))
            .is_some_and(|(own, other)| self.policy.conflicts(&own, &other))
    }

    /// Unstages a volume. Succeeds if the volume is not staged. No stored data is removed, but the content of
    /// a tmpfs is lost.
    ///
    /// # Errors
    /// [`NodeError::FailedPrecondition`] while the volume is published, its record has another staging path,
    /// or what is mounted at the staging path is also mounted elsewhere below the same kubelet root, for
    /// example a directory that another volume uses, too. [`NodeError::NotFound`] if the record of another
    /// volume has the staging path. [`NodeError::Invalid`] if the path is below no kubelet root.
    /// [`NodeError::Mounter`], for example if the mount is busy or the volume's record is unreadable.
    pub fn unstage(&self, volume: &str, staging_path: &str) -> Result<(), NodeError> {
        let path = self.roots.resolve("staging_target_path", staging_path)?;
        let _active_guard = self.active_volumes.mark_active(volume);
        let others = self.mounter.records().step("read the volumes' records")?.readable;
        let staging = path.to_string();
        let is_other_volume_here = |other: &&VolumeRecord| {
            other.volume != volume && other.staging_path.as_deref() == Some(staging.as_str())
        };
        if others.iter().any(|other| is_other_volume_here(&other)) {
            return Err(NodeError::NotFound(format!("another volume is staged at {path}")));
        }
        // An unreadable record is an error: it may name a loop device.
        let record = self.record(volume)?;
        if let Some(record) = &record {
            if record.staging_path.as_deref() != Some(staging.as_str()) {
                let at = record.staging_path.as_deref().unwrap_or("no staging path");
                return Err(NodeError::FailedPrecondition(format!(
                    "the volume is staged at {at}, not at {path}"
                )));
            }
            if let Some(target) = self.mounted_targets(record)?.first() {
                return Err(NodeError::FailedPrecondition(format!(
                    "the volume is still published at {target}"
                )));
            }
        }
        let block_path = path.join(crate::connector::BLOCK_FILE_NAME);
        for at in [&path, &block_path] {
            let other_mounts = self.other_mounts(at, &path, &others, volume)?;
            if let Some(other) = other_mounts.first() {
                return Err(NodeError::FailedPrecondition(format!(
                    "the mount at {at} is also mounted at {other}"
                )));
            }
        }
        unstage(&self.mounter, &self.subsystem_locks, &path, record.as_ref(), &others)?;
        if record.is_some() {
            self.mounter.delete_record(volume).step("delete the volume's record")?;
        }
        Ok(())
    }

    /// Returns the other paths below the same kubelet root at which the top mount of `at` is also mounted.
    /// Empty if nothing is mounted at `at`, or if `at` is below a mounted staging path. Paths of other volumes
    /// are omitted: the policy may allow them to share a directory.
    fn other_mounts(
        &self,
        at: &KubeletPath,
        staging: &KubeletPath,
        records: &[VolumeRecord],
        volume: &str,
    ) -> Result<Vec<String>, NodeError> {
        // Below a mounted filesystem, a file of this name is user data.
        if at != staging && self.is_mounted(staging)? {
            return Ok(Vec::new());
        }
        if self.inspect(staging)?.is_none() || !self.is_mounted(at)? {
            return Ok(Vec::new());
        }
        let mut paths = self.mounter.mount_refs(at).step("find other mounts of the volume")?;
        let is_of_other_volume = |path: &String| {
            records
                .iter()
                .filter(|record| record.volume != volume)
                .any(|record| record.staging_path.as_ref() == Some(path) || record.targets.contains_key(path))
        };
        paths.retain(|path| !is_of_other_volume(path));
        Ok(paths)
    }
}

/// Returns true if a record has the staging path, connection info and capability of a request.
fn is_same_request(record: &VolumeRecord, request: &StageRequest, path: &KubeletPath) -> bool {
    record.staging_path.as_ref() == Some(&path.to_string())
        && record.connection_info.as_ref() == Some(&request.connection_info)
        && record.capability == request.capability
}
