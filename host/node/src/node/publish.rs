//! NodePublishVolume and NodeUnpublishVolume.

use cofferdam_domain::storage::{AccessType, CsiAccessMode, VolumeCapability};

use super::{NodeVolumes, PublishInlineRequest, PublishRequest};
use crate::{
    connector::{is_read_only_mode, is_tmpfs_mount, require_filesystem, restrict, tmpfs_source},
    error::{NodeError, StepContext as _},
    file::PathKind,
    mount_options::{MountOptions, MountType},
    mount_point::MountAttributes,
    mounter::{BindSource, Mounter, PathInfo},
    path::KubeletPath,
    record::{TargetRecord, VolumeRecord},
};

/// Returns true if an access mode allows several target paths on one node.
const fn can_have_many_targets(mode: CsiAccessMode) -> bool {
    match mode {
        CsiAccessMode::MultiNodeReaderOnly
        | CsiAccessMode::MultiNodeSingleWriter
        | CsiAccessMode::MultiNodeMultiWriter
        | CsiAccessMode::SingleNodeMultiWriter => true,
        CsiAccessMode::SingleNodeWriter
        | CsiAccessMode::SingleNodeReaderOnly
        | CsiAccessMode::SingleNodeSingleWriter => false,
    }
}

/// Parses the `volume_mount_group` of a capability; `None` if it is empty or the access type is block.
fn mount_group(capability: &VolumeCapability) -> Result<Option<u32>, NodeError> {
    let name = match &capability.access_type {
        AccessType::Filesystem { mount_group, .. } => mount_group.as_deref().filter(|name| !name.is_empty()),
        AccessType::Block => None,
    };
    let invalid =
        |name| NodeError::Invalid(format!("volume_mount_group is {name:?}: expected the number of a group"));
    // The kernel interprets the highest number as "no change".
    let number = |name: &str| name.parse::<u32>().ok().filter(|group| *group != u32::MAX);
    name.map(|name| number(name).ok_or_else(|| invalid(name))).transpose()
}

impl<M: Mounter> NodeVolumes<M> {
    /// Publishes a staged volume at a target path. The call is idempotent.
    ///
    /// # Errors
    /// [`NodeError`]. The call is then rolled back, because kubelet assumes that a failed call had no effect
    /// and does not unpublish. It is not rolled back if something was already mounted at the target path, or
    /// if that is unknown. If the roll-back fails too, a retry or [`Self::unpublish`] continues.
    pub fn publish(&self, request: &PublishRequest) -> Result<(), NodeError> {
        let target = self.roots.resolve("target_path", &request.target_path)?;
        self.publish_or_roll_back(&request.volume, &target, || self.try_publish(request, &target))
    }

    /// Runs `publish`. If it fails and the volume's record has the target, from this call or an earlier one,
    /// unpublishes the target, unless something was already mounted there or that is unknown.
    fn publish_or_roll_back(
        &self,
        volume: &str,
        target: &KubeletPath,
        publish: impl FnOnce() -> Result<(), NodeError>,
    ) -> Result<(), NodeError> {
        // If unknown, assume that the mount existed before.
        let had_mount = self.is_mounted(target).unwrap_or(true);
        let result = publish();
        if result.is_err() && !had_mount {
            let has_target = |record: VolumeRecord| record.targets.contains_key(&target.to_string());
            if self.record(volume).is_ok_and(|record| record.is_some_and(has_target)) {
                // The caller needs the first error.
                let _ = self.unpublish(volume, &target.to_string());
            }
        }
        result
    }

    fn try_publish(&self, request: &PublishRequest, target: &KubeletPath) -> Result<(), NodeError> {
        let staging = self.roots.resolve("staging_target_path", &request.staging_path)?;
        let group = mount_group(&request.capability)?;
        let not_staged = || NodeError::FailedPrecondition(format!("the volume is not staged at {staging}"));
        let record =
            self.record(&request.volume)?.filter(|record| record.is_staged).ok_or_else(not_staged)?;
        if record.staging_path.as_deref() != Some(staging.to_string().as_str()) {
            return Err(not_staged());
        }
        let (source, staged) = self.staged_mount(&record)?.ok_or_else(not_staged)?;
        let is_block = matches!(record.capability.access_type, AccessType::Block);
        if is_block != matches!(request.capability.access_type, AccessType::Block) {
            return Err(NodeError::AlreadyExists(
                "the volume is staged with the other type of access".to_owned(),
            ));
        }
        let read_only = request.read_only
            || is_read_only_mode(request.capability.access_mode)
            || is_read_only_mode(record.capability.access_mode);
        let target_record =
            TargetRecord { capability: request.capability.clone(), read_only: request.read_only };
        let record = self.add_target_record(record, target, target_record)?;
        self.make_target(target, is_block)?;
        self.bind_target(&source, &staged, target)?;
        if read_only {
            restrict(&self.mounter, target, MountAttributes { read_only, ..MountAttributes::default() })?;
        }
        // Volumes that are staged read-only, as kind `none` always is, get no group.
        let is_writable = staged.mounts.last().is_some_and(|top| !top.attributes.read_only) && !read_only;
        if let Some(group) = group.filter(|_| is_writable && !is_block) {
            self.ensure_mount_group(target, group)?;
        }
        tracing::debug!(volume = record.volume, %target, "published");
        Ok(())
    }

    /// Applies CSI's rules for a second NodePublishVolume, rejects a target path of another volume, and saves
    /// the target in the record.
    fn add_target_record(
        &self,
        mut record: VolumeRecord,
        target: &KubeletPath,
        target_record: TargetRecord,
    ) -> Result<VolumeRecord, NodeError> {
        let path = target.to_string();
        if record.targets.get(&path) == Some(&target_record) {
            return Ok(record);
        }
        let mounted = self.mounted_targets(&record)?;
        if record.targets.contains_key(&path) && mounted.contains(&path) {
            return Err(NodeError::AlreadyExists(format!(
                "the volume is published at {target} with other arguments"
            )));
        }
        if let Some(other) = mounted.iter().find(|other| **other != path)
            && !can_have_many_targets(target_record.capability.access_mode)
        {
            return Err(NodeError::FailedPrecondition(format!(
                "the volume is published at {other}, and its access mode allows one target"
            )));
        }
        self.check_target_unused(&record.volume, target)?;
        record.targets.insert(path, target_record);
        self.mounter.save_record(&record).step("save the volume's record")?;
        Ok(record)
    }

    /// Rejects a target path that the record of another volume has. Unreadable records are not considered.
    fn check_target_unused(&self, volume: &str, target: &KubeletPath) -> Result<(), NodeError> {
        let path = target.to_string();
        let others = self.mounter.records().step("read the volumes' records")?.readable;
        let is_used = others.iter().any(|other| other.volume != volume && other.targets.contains_key(&path));
        if is_used {
            return Err(NodeError::FailedPrecondition(format!("another volume is published at {target}")));
        }
        Ok(())
    }

    fn make_target(&self, target: &KubeletPath, is_block: bool) -> Result<(), NodeError> {
        match self.inspect(target)? {
            None if is_block => self.mounter.make_file(target).step("create the target's file"),
            None => self.mounter.make_directory(target).step("create the target's directory"),
            Some(found) => match found.kind {
                PathKind::Directory if !is_block => Ok(()),
                PathKind::File(_) | PathKind::Device(_) if is_block => Ok(()),
                PathKind::Directory | PathKind::File(_) | PathKind::Device(_) | PathKind::Other => {
                    let expected = if is_block { "a file" } else { "a directory" };
                    Err(NodeError::FailedPrecondition(format!(
                        "{target} has another file type: expected {expected}"
                    )))
                }
            },
        }
    }

    fn bind_target(
        &self,
        source: &KubeletPath,
        staged: &PathInfo,
        target: &KubeletPath,
    ) -> Result<(), NodeError> {
        let existing = self.inspect(target)?.filter(|found| !found.mounts.is_empty());
        match existing {
            None => self
                .mounter
                .bind(&BindSource::KubeletPath(source.clone()), target)
                .step("bind the volume to its target"),
            Some(existing) if existing.id == staged.id && existing.kind == staged.kind => Ok(()),
            Some(_) => Err(NodeError::FailedPrecondition(format!("something else is mounted at {target}"))),
        }
    }

    /// Makes a group the owner of the volume's files, with write access, unless the directory at the path
    /// shows that an earlier run has finished.
    fn ensure_mount_group(&self, path: &KubeletPath, group: u32) -> Result<(), NodeError> {
        if self.mounter.mount_group(path).step("look at the volume's group")? == Some(group) {
            return Ok(());
        }
        self.mounter.set_mount_group(path, group).step("give the volume to its group")
    }

    /// Publishes an inline volume, which is always a tmpfs.
    ///
    /// # Errors
    /// [`NodeError::Denied`] unless the policy allows inline volumes of this size, and every mount option is
    /// an allowed one. Any other [`NodeError`]. The call is rolled back like [`Self::publish`].
    pub fn publish_inline(&self, request: &PublishInlineRequest) -> Result<(), NodeError> {
        let target = self.roots.resolve("target_path", &request.target_path)?;
        let _active_guard = self.active_volumes.mark_active(&request.volume);
        self.publish_or_roll_back(&request.volume, &target, || self.try_publish_inline(request, &target))
    }

    fn try_publish_inline(
        &self,
        request: &PublishInlineRequest,
        target: &KubeletPath,
    ) -> Result<(), NodeError> {
        let Some(max_size) = self.policy.inline.tmpfs_max_bytes else {
            return Err(NodeError::Denied("inline volumes are not allowed on this node".to_owned()));
        };
        let size = request.size.unwrap_or(max_size);
        if size == 0 || size > max_size {
            return Err(NodeError::Denied(format!(
                "an inline volume of {size} bytes is not allowed on this node: expected 1 to {max_size}"
            )));
        }
        require_filesystem("an inline volume", &request.capability)?;
        let group = mount_group(&request.capability)?;
        let flags = match &request.capability.access_type {
            AccessType::Filesystem { mount_flags, .. } => mount_flags.as_slice(),
            AccessType::Block => &[],
        };
        let options = MountOptions::from_flags(flags, MountType::Tmpfs, self.policy.base_attributes())?;
        self.save_inline_record(request, size, target)?;
        self.make_target(target, false)?;
        let name = tmpfs_source(&request.volume);
        match self.inspect(target)?.filter(|found| !found.mounts.is_empty()) {
            None => {
                self.mounter.mount_tmpfs(&name, size, &options, target).step("mount the volume's tmpfs")?
            }
            Some(found) if is_tmpfs_mount(&found, &name) => {}
            Some(_) => {
                return Err(NodeError::FailedPrecondition(format!("something else is mounted at {target}")));
            }
        }
        if let Some(group) = group {
            self.ensure_mount_group(target, group)?;
        }
        let read_only = request.read_only || is_read_only_mode(request.capability.access_mode);
        restrict(&self.mounter, target, MountAttributes { read_only, ..options.attributes })
    }

    fn save_inline_record(
        &self,
        request: &PublishInlineRequest,
        size: u64,
        target: &KubeletPath,
    ) -> Result<(), NodeError> {
        let path = target.to_string();
        let target_record =
            TargetRecord { capability: request.capability.clone(), read_only: request.read_only };
        let new_record = VolumeRecord {
            volume: request.volume.clone(),
            staging_path: None,
            connection_info: None,
            capability: request.capability.clone(),
            size: Some(size),
            image_id: None,
            device_number: None,
            format_in_progress: false,
            is_staged: false,
            targets: [(path.clone(), target_record)].into(),
        };
        match self.record(&request.volume)? {
            Some(existing) if existing == new_record => return Ok(()),
            Some(existing) => {
                if let Some(mounted_path) = self.mounted_targets(&existing)?.first() {
                    return Err(if *mounted_path == path {
                        NodeError::AlreadyExists(format!(
                            "the volume is published at {target} with other arguments"
                        ))
                    } else {
                        NodeError::FailedPrecondition(format!(
                            "the inline volume is published at {mounted_path}"
                        ))
                    });
                }
            }
            None => {}
        }
        self.check_target_unused(&request.volume, target)?;
        // No other volume may take memory between reading and saving records.
        let active = self.active_volumes.lock();
        let records = self.mounter.records().step("read the volumes' records")?.readable;
        self.check_total_memory(&request.volume, size, &records, &active)?;
        self.mounter.save_record(&new_record).step("save the volume's record")
    }

    /// Unpublishes a volume and removes the target path, also if the volume's record is absent, is unreadable
    /// or does not have the path. Succeeds if nothing exists there. No stored data is removed, but the
    /// content of an inline volume is lost.
    ///
    /// # Errors
    /// [`NodeError::NotFound`] if the path belongs to another volume or is a staging path.
    /// [`NodeError::FailedPrecondition`] unless the target path is an empty file or an empty directory after
    /// the unmount. [`NodeError::Invalid`] if the path is below no kubelet root. [`NodeError::Mounter`], for
    /// example if the mount is busy.
    pub fn unpublish(&self, volume: &str, target_path: &str) -> Result<(), NodeError> {
        let target = self.roots.resolve("target_path", target_path)?;
        let path = target.to_string();
        let records = self.mounter.records().step("read the volumes' records")?.readable;
        let has_path = |record: &VolumeRecord| {
            record.targets.contains_key(&path) || record.staging_path.as_deref() == Some(path.as_str())
        };
        // Unmounting does not need the record. An unreadable record is kept for an operator.
        let own_record = self.record(volume).unwrap_or_else(|error| {
            tracing::warn!(volume, %error, "unpublishing a volume with an unreadable record");
            None
        });
        if records.iter().any(|record| record.volume != volume && has_path(record))
            || own_record.as_ref().is_some_and(|record| record.staging_path.as_deref() == Some(path.as_str()))
        {
            return Err(NodeError::NotFound(format!("the volume is not published at {target}")));
        }
        self.remove_target(&target)?;
        let Some(mut record) = own_record else { return Ok(()) };
        if record.targets.remove(&path).is_none() {
            return Ok(());
        }
        if record.staging_path.is_none() && record.targets.is_empty() {
            self.mounter.delete_record(volume).step("delete the volume's record")
        } else {
            self.mounter.save_record(&record).step("save the volume's record")
        }
    }
}
