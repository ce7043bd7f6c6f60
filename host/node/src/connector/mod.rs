//! Connectors stage and expand volumes. Each kind of connection info has one. The
//! [`NodePolicy`](crate::NodePolicy) creates them and decides which kinds are allowed.

mod device;
mod directory;
mod image;
mod local_device;
mod nfs;
mod none;
mod nvme;
mod rbd;
mod tmpfs;

use std::collections::BTreeSet;

use cofferdam_domain::storage::{AccessType, CsiAccessMode, Secrets, VolumeCapability};

pub(crate) use directory::DirectoryConnector;
pub(crate) use image::ImageConnector;
pub(crate) use local_device::LocalDeviceConnector;
pub(crate) use nfs::NfsConnector;
pub(crate) use none::NoneConnector;
pub(crate) use nvme::NvmeConnector;
pub(crate) use rbd::RbdConnector;
pub(crate) use tmpfs::{TmpfsConnector, is_tmpfs_mount, tmpfs_source};

use crate::{
    block_device::Device,
    error::{NodeError, StepContext as _},
    file::PathKind,
    filesystem::Filesystem,
    locks::KeyLocks,
    mount_point::MountAttributes,
    mounter::{BindSource, Mounter, PathInfo},
    path::KubeletPath,
    record::VolumeRecord,
};

/// Name of the file in a staging path at which the device of a raw block volume is bound.
pub(crate) const BLOCK_FILE_NAME: &str = "device";

/// State of a NodeStageVolume call.
pub(crate) struct StageContext<'a> {
    pub(crate) mounter: &'a dyn Mounter,
    /// The staging path.
    pub(crate) staging_path: &'a KubeletPath,
    /// The volume's record. Each change is saved at once, before the next effect.
    pub(crate) record: VolumeRecord,
    /// Mount attributes that the policy requires: `nosuid` and `nodev`, unless it allows their omission.
    pub(crate) base_attributes: MountAttributes,
    /// Allowed filesystems on devices.
    pub(crate) filesystems: &'a BTreeSet<Filesystem>,
    /// True if the volume was created from a volume or a snapshot.
    pub(crate) has_content_source: bool,
    /// Locks by NVMe subsystem: one connects or disconnects at a time.
    pub(crate) subsystem_locks: &'a KeyLocks,
    /// Secrets of the request. They are neither recorded nor logged.
    pub(crate) secrets: &'a Secrets,
    /// Returns true for the record of a volume that is mounted, or that has a stage or unstage call in flight.
    pub(crate) is_in_use: &'a dyn Fn(&VolumeRecord) -> Result<bool, NodeError>,
}

impl StageContext<'_> {
    pub(crate) fn access_type(&self) -> &AccessType {
        &self.record.capability.access_type
    }

    pub(crate) fn mount_flags(&self) -> &[String] {
        match &self.record.capability.access_type {
            AccessType::Filesystem { mount_flags, .. } => mount_flags,
            AccessType::Block => &[],
        }
    }

    /// Returns true if the access mode is read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        is_read_only_mode(self.record.capability.access_mode)
    }

    pub(crate) fn save_record(&self) -> Result<(), NodeError> {
        self.mounter.save_record(&self.record).step("save the volume's record")
    }

    /// Records that no format is in progress.
    fn clear_format_in_progress(&mut self) -> Result<(), NodeError> {
        if self.record.format_in_progress {
            self.record.format_in_progress = false;
            self.save_record()?;
        }
        Ok(())
    }

    /// Returns true if something is mounted at a path. A mount that `is_expected` does not accept is an
    /// error.
    pub(crate) fn is_mounted(
        &self,
        path: &KubeletPath,
        is_expected: impl FnOnce(&PathInfo) -> bool,
    ) -> Result<bool, NodeError> {
        let found = self.mounter.inspect(path).step("inspect the staging path")?;
        match found {
            Some(found) if !found.mounts.is_empty() => {
                if is_expected(&found) {
                    Ok(true)
                } else {
                    Err(NodeError::FailedPrecondition(format!("something else is mounted at {path}")))
                }
            }
            Some(_) | None => Ok(false),
        }
    }

    /// Bind-mounts a source at the staging path, unless a mount that `is_expected` accepts is there, and adds
    /// the attributes to the mount.
    pub(crate) fn bind_to_staging_path(
        &self,
        source: &BindSource,
        attributes: MountAttributes,
        is_expected: impl FnOnce(&PathInfo) -> bool,
    ) -> Result<(), NodeError> {
        if !self.is_mounted(self.staging_path, is_expected)? {
            self.mounter.bind(source, self.staging_path).step("bind the volume to its staging path")?;
        }
        restrict(self.mounter, self.staging_path, attributes)
    }
}

/// Stages and expands the volumes of one kind of connection info. A method skips the steps that are already
/// done: an earlier call may have been interrupted at any point.
pub(crate) trait Connector: Send + Sync {
    /// Checks that this kind of volume supports a capability's access type; for an image and a device, also
    /// its access mode and filesystem type. [`Self::stage`] checks the mount flags.
    fn check_capability(&self, capability: &VolumeCapability) -> Result<(), NodeError>;

    /// Checks that the volume's storage exists on this node. A tmpfs, an NFS export, an NVMe namespace, an
    /// RBD image and the kind `none` need no check: no other volume can be staged during this call, so it
    /// must not wait.
    ///
    /// Images and devices also store their identity in the record: no other volume may use them.
    fn identify(&self, mounter: &dyn Mounter, record: &mut VolumeRecord) -> Result<(), NodeError>;

    /// Stages the volume at the staging path.
    fn stage(&self, context: &mut StageContext<'_>) -> Result<(), NodeError>;

    /// Expands the volume that is mounted at `path` to at least `required` bytes, and returns its size in
    /// bytes. `None` requires no minimum. An image, a device, an NVMe namespace and an RBD image are expanded
    /// by the driver: a `required` above their size is an error, and the filesystem grows to the size of the
    /// image or device. A tmpfs grows to `required` unless that is above the policy's maximum, and never
    /// shrinks. A directory, an NFS export and the kind `none` have no size on the node: they return
    /// `required` unchanged.
    fn expand(
        &self,
        mounter: &dyn Mounter,
        record: &VolumeRecord,
        path: &KubeletPath,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError>;
}

/// Returns true if an access mode is read-only.
pub(crate) const fn is_read_only_mode(mode: CsiAccessMode) -> bool {
    match mode {
        CsiAccessMode::SingleNodeReaderOnly | CsiAccessMode::MultiNodeReaderOnly => true,
        CsiAccessMode::SingleNodeWriter
        | CsiAccessMode::MultiNodeSingleWriter
        | CsiAccessMode::MultiNodeMultiWriter
        | CsiAccessMode::SingleNodeSingleWriter
        | CsiAccessMode::SingleNodeMultiWriter => false,
    }
}

/// Rejects block access; `object` names the volume in the error.
pub(crate) fn require_filesystem(object: &str, capability: &VolumeCapability) -> Result<(), NodeError> {
    match capability.access_type {
        AccessType::Filesystem { .. } => Ok(()),
        AccessType::Block => {
            Err(NodeError::Invalid(format!("{object} is not a block device: expected a mounted filesystem")))
        }
    }
}

/// Adds attributes to the top mount at a path, unless they are already set.
pub(crate) fn restrict(
    mounter: &dyn Mounter,
    path: &KubeletPath,
    attributes: MountAttributes,
) -> Result<(), NodeError> {
    let found = mounter.inspect(path).step("inspect a mount")?;
    match found.as_ref().and_then(|found| found.mounts.last()) {
        Some(top) if top.attributes.includes(attributes) => Ok(()),
        Some(_) => mounter.restrict(path, attributes).step("restrict a mount"),
        None => Err(NodeError::FailedPrecondition(format!("nothing is mounted at {path}"))),
    }
}

/// Unstages a volume of any kind, also after an incomplete stage or unstage call. The policy is not checked:
/// an operator must be able to restrict the policy while volumes are staged. `record` is absent if the volume
/// has none. `others` are the readable records of all volumes.
pub(crate) fn unstage(
    mounter: &dyn Mounter,
    subsystem_locks: &KeyLocks,
    path: &KubeletPath,
    record: Option<&VolumeRecord>,
    others: &[VolumeRecord],
) -> Result<(), NodeError> {
    let block_path = path.join(BLOCK_FILE_NAME);
    // Below a mounted filesystem, a file of this name is user data.
    let has_own_block_file = match mounter.inspect(path).step("inspect the staging path")? {
        Some(found) => found.kind == PathKind::Directory && found.mounts.is_empty(),
        None => false,
    };
    if has_own_block_file
        && let Some(found) = mounter.inspect(&block_path).step("inspect the device's file")?
    {
        for _ in &found.mounts {
            mounter.unmount(&block_path).step("unmount the device's file")?;
        }
        mounter.remove_if_empty(&block_path).step("remove the device's file")?;
    }
    while mounter
        .inspect(path)
        .step("inspect the staging path")?
        .is_some_and(|found| !found.mounts.is_empty())
    {
        mounter.unmount(path).step("unmount the staging path")?;
    }
    detach_loop_devices(mounter, record, others)?;
    match record {
        Some(record) => {
            nvme::disconnect(mounter, subsystem_locks, record)?;
            rbd::unmap(mounter, record)
        }
        None => Ok(()),
    }
}

/// Detaches the loop devices of a volume's image, unless the record of another volume has the same image.
fn detach_loop_devices(
    mounter: &dyn Mounter,
    record: Option<&VolumeRecord>,
    others: &[VolumeRecord],
) -> Result<(), NodeError> {
    let Some((record, image)) = record.and_then(|record| Some((record, record.image_id?))) else {
        return Ok(());
    };
    let is_shared = others.iter().any(|other| other.volume != record.volume && other.image_id == Some(image));
    if is_shared {
        return Ok(());
    }
    for found in mounter.loop_devices(image).step("find the volume's loop device")? {
        mounter.detach_loop(&found.device).step("detach the volume's loop device")?;
    }
    Ok(())
}

/// Bind-mounts the device node of a raw block volume on a file in the staging path.
fn bind_device(context: &mut StageContext<'_>, device: &Device) -> Result<(), NodeError> {
    // From now on the content is user data.
    context.clear_format_in_progress()?;
    let path = context.staging_path.join(BLOCK_FILE_NAME);
    if context.mounter.inspect(&path).step("inspect the device's file")?.is_none() {
        context.mounter.make_file(&path).step("create the device's file")?;
    }
    let number = device.number;
    if !context.is_mounted(&path, |found| found.kind == PathKind::Device(number))? {
        let source = BindSource::Device(device.clone());
        context.mounter.bind(&source, &path).step("bind the device to its file")?;
    }
    Ok(())
}
