//! One small module for each kind of attachment. A kind is a value of its own behind [`Executor`]; who may
//! have it is decided where the value is made, in the policy.

mod device;
mod directory;
mod image;
mod local_device;
mod none;
mod tmpfs;

use std::collections::BTreeSet;

use cofferdam_domain::storage::{AccessType, CsiAccessMode, VolumeCapability};

pub(crate) use directory::DirectoryConnector;
pub(crate) use image::ImageConnector;
pub(crate) use local_device::LocalDeviceConnector;
pub(crate) use none::NoneConnector;
pub(crate) use tmpfs::{TmpfsConnector, is_tmpfs_mount, tmpfs_source};

use crate::{
    error::{NodeError, StepContext as _},
    mounter::{BindSource, Device, Filesystem, MountAttributes, Mounter, PathInfo, PathKind},
    path::KubeletPath,
    record::VolumeRecord,
};

/// Name of the file in a staging path on which the device of a raw block volume is.
pub(crate) const BLOCK_FILE_NAME: &str = "device";

/// One volume that is being staged.
pub(crate) struct StageContext<'a> {
    pub(crate) mounter: &'a dyn Mounter,
    /// Where.
    pub(crate) staging_path: &'a KubeletPath,
    /// What is known of the volume; every change is kept before the effect that it tells of.
    pub(crate) record: VolumeRecord,
    /// What every mount takes away.
    pub(crate) base_attributes: MountAttributes,
    /// Filesystems that may be on a device.
    pub(crate) filesystems: &'a BTreeSet<Filesystem>,
    /// Whether its content was made of another volume or of a snapshot.
    pub(crate) has_content_source: bool,
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

    /// Whether nobody may write, anywhere.
    pub(crate) fn is_read_only(&self) -> bool {
        is_read_only_mode(self.record.capability.access_mode)
    }

    pub(crate) fn save_record(&self) -> Result<(), NodeError> {
        self.mounter.save_record(&self.record).step("keep the volume's record")
    }

    /// Notes that a filesystem that was begun is not being made any more.
    fn clear_format_in_progress(&mut self) -> Result<(), NodeError> {
        if self.record.format_in_progress {
            self.record.format_in_progress = false;
            self.save_record()?;
        }
        Ok(())
    }

    /// What is staged; a filesystem that is there must be what `is_ours` knows.
    pub(crate) fn is_mounted(
        &self,
        path: &KubeletPath,
        is_expected: impl FnOnce(&PathInfo) -> bool,
    ) -> Result<bool, NodeError> {
        let found = self.mounter.inspect(path).step("look at the staging path")?;
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

    /// Binds something to the staging path, and takes away from it what is not allowed.
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

/// How one kind of attachment is executed. Every step looks first and is skipped when it was done: a job may
/// have died anywhere.
pub(crate) trait Connector: Send + Sync {
    /// Whether a volume of this kind can be used so.
    fn check_capability(&self, capability: &VolumeCapability) -> Result<(), NodeError>;

    /// Finds what the volume is on this machine, and writes into the record what nobody else may use
    /// meanwhile.
    fn identify(&self, mounter: &dyn Mounter, record: &mut VolumeRecord) -> Result<(), NodeError>;

    /// Makes the volume usable at the staging path.
    fn stage(&self, context: &mut StageContext<'_>) -> Result<(), NodeError>;

    /// Makes a staged volume at least this large, as far as the node can; returns its size in bytes where it
    /// is known.
    fn expand(
        &self,
        mounter: &dyn Mounter,
        record: &VolumeRecord,
        path: &KubeletPath,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError>;
}

/// Whether a mode has no writer.
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

/// Refuses a raw device of what is none.
pub(crate) fn require_filesystem(object: &str, capability: &VolumeCapability) -> Result<(), NodeError> {
    match capability.access_type {
        AccessType::Filesystem { .. } => Ok(()),
        AccessType::Block => {
            Err(NodeError::Invalid(format!("{object} is no block device: expected a mounted filesystem")))
        }
    }
}

/// Takes away from the top mount of a place what it still has.
pub(crate) fn restrict(
    mounter: &dyn Mounter,
    path: &KubeletPath,
    attributes: MountAttributes,
) -> Result<(), NodeError> {
    let found = mounter.inspect(path).step("look at a mount")?;
    match found.as_ref().and_then(|found| found.mounts.last()) {
        Some(top) if top.attributes.includes(attributes) => Ok(()),
        Some(_) => mounter.restrict(path, attributes).step("restrict a mount"),
        None => Err(NodeError::FailedPrecondition(format!("nothing is mounted at {path} any more"))),
    }
}

/// Undoes what was staged, whatever kind it is and however far it came. Nothing is asked of the policy: what
/// was done must be possible to undo after the operator has closed it.
pub(crate) fn unstage(
    mounter: &dyn Mounter,
    path: &KubeletPath,
    record: Option<&VolumeRecord>,
    others: &[VolumeRecord],
) -> Result<(), NodeError> {
    let block_path = path.join(BLOCK_FILE_NAME);
    // Beneath a mounted filesystem a file of this name is the user's.
    let has_own_block_file = match mounter.inspect(path).step("look at the staging path")? {
        Some(found) => found.kind == PathKind::Directory && found.mounts.is_empty(),
        None => false,
    };
    if has_own_block_file
        && let Some(found) = mounter.inspect(&block_path).step("look at the device's file")?
    {
        for _ in &found.mounts {
            mounter.unmount(&block_path).step("unmount the device's file")?;
        }
        mounter.remove_if_empty(&block_path).step("remove the device's file")?;
    }
    while mounter
        .inspect(path)
        .step("look at the staging path")?
        .is_some_and(|found| !found.mounts.is_empty())
    {
        mounter.unmount(path).step("unmount the staging path")?;
    }
    detach_loop_devices(mounter, record, others)
}

/// Takes the loop devices from a volume's image, unless somebody else has the same file by now.
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

/// Puts a device's node on a file in the staging path.
fn bind_device(context: &mut StageContext<'_>, device: &Device) -> Result<(), NodeError> {
    // From now on what it holds is the user's.
    context.clear_format_in_progress()?;
    let path = context.staging_path.join(BLOCK_FILE_NAME);
    if context.mounter.inspect(&path).step("look at the device's file")?.is_none() {
        context.mounter.make_file(&path).step("make the device's file")?;
    }
    let number = device.number;
    if !context.is_mounted(&path, |found| found.kind == PathKind::Device(number))? {
        let source = BindSource::Device(device.clone());
        context.mounter.bind(&source, &path).step("bind the device to its file")?;
    }
    Ok(())
}
