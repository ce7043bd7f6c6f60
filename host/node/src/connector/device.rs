//! Staging of block devices, for kinds `image`, `local-device`, `nvme-tcp` and `rbd`.

use cofferdam_domain::storage::{AccessType, CsiAccessMode, VolumeCapability};

use super::{BLOCK_FILE_NAME, StageContext, bind_device, restrict};
use crate::{
    block_device::{Device, DeviceContent},
    error::{NodeError, StepContext as _},
    file::PathKind,
    filesystem::Filesystem,
    mount_options::{MountOptions, MountType},
    mount_point::MountAttributes,
    mounter::Mounter,
    path::KubeletPath,
    record::VolumeRecord,
};

/// Rejects an unknown filesystem type, and a filesystem with a multi-node access mode that allows writing:
/// ext4 and xfs are not cluster filesystems. Raw block access is accepted with every access mode.
pub(super) fn check_capability(capability: &VolumeCapability) -> Result<(), NodeError> {
    let AccessType::Filesystem { fs_type, .. } = &capability.access_type else { return Ok(()) };
    parse_fs_type(fs_type.as_deref())?;
    match capability.access_mode {
        CsiAccessMode::MultiNodeMultiWriter | CsiAccessMode::MultiNodeSingleWriter => {
            Err(NodeError::FailedPrecondition(
                "a filesystem on a block device must not be mounted by several nodes: expected a \
                 single-node or read-only access mode"
                    .to_owned(),
            ))
        }
        CsiAccessMode::SingleNodeWriter
        | CsiAccessMode::SingleNodeReaderOnly
        | CsiAccessMode::MultiNodeReaderOnly
        | CsiAccessMode::SingleNodeSingleWriter
        | CsiAccessMode::SingleNodeMultiWriter => Ok(()),
    }
}

/// Parses the requested filesystem type; `None` if the request names none.
fn parse_fs_type(fs_type: Option<&str>) -> Result<Option<Filesystem>, NodeError> {
    match fs_type.filter(|name| !name.is_empty()) {
        None => Ok(None),
        Some(name) => match Filesystem::from_name(name) {
            Some(filesystem) => Ok(Some(filesystem)),
            None => {
                let known = Filesystem::ALL.map(Filesystem::as_str).join(" or ");
                Err(NodeError::Invalid(format!("the filesystem type is {name:?}: expected {known}")))
            }
        },
    }
}

/// Rejects a device that has users, unless it is staged at the staging path: its current user is then this
/// volume. `object` names the device in the error.
pub(super) fn check_unused(
    context: &StageContext<'_>,
    device: &Device,
    object: &str,
    users: &[String],
) -> Result<(), NodeError> {
    if users.is_empty() || is_staged(context, device.number)? {
        return Ok(());
    }
    Err(NodeError::FailedPrecondition(format!("{object} is in use: {}", users.join(", "))))
}

/// Returns true if the device is already staged at the staging path.
fn is_staged(context: &StageContext<'_>, number: (u32, u32)) -> Result<bool, NodeError> {
    let staged = context.mounter.inspect(context.staging_path).step("inspect the staging path")?;
    if staged.is_some_and(|found| found.mounts.last().is_some_and(|top| top.device == number)) {
        return Ok(true);
    }
    let block = context
        .mounter
        .inspect(&context.staging_path.join(BLOCK_FILE_NAME))
        .step("inspect the device's file")?;
    Ok(block.is_some_and(|found| found.kind == PathKind::Device(number)))
}

/// Stages a device at the staging path.
pub(super) fn stage(context: &mut StageContext<'_>, device: &Device) -> Result<(), NodeError> {
    match context.access_type() {
        AccessType::Block => bind_device(context, device),
        AccessType::Filesystem { .. } => stage_filesystem(context, device),
    }
}

fn stage_filesystem(context: &mut StageContext<'_>, device: &Device) -> Result<(), NodeError> {
    let path = context.staging_path;
    let (number, read_only) = (device.number, context.is_read_only());
    if !context.is_mounted(path, |found| found.mounts.last().is_some_and(|top| top.device == number))? {
        let filesystem = ensure_filesystem(context, device)?;
        let mut options = MountOptions::from_flags(
            context.mount_flags(),
            MountType::Device(filesystem),
            context.base_attributes,
        )?;
        options.attributes.read_only |= read_only;
        if filesystem == Filesystem::Xfs && context.has_content_source {
            // A clone has the UUID of its source, and xfs refuses to mount a UUID twice.
            options.data.push(("nouuid".to_owned(), None));
        }
        if is_shared_for_reading(context) {
            let option = match filesystem {
                Filesystem::Ext4 => "noload",
                Filesystem::Xfs => "norecovery",
            };
            options.data.push((option.to_owned(), None));
        }
        context
            .mounter
            .mount_device(device, filesystem, &options, path)
            .step("mount the volume's filesystem")?;
    }
    restrict(context.mounter, path, MountAttributes { read_only, ..context.base_attributes })?;
    if read_only { Ok(()) } else { grow_filesystem(context.mounter, device, path) }
}

/// Returns true if several nodes may mount the filesystem for reading. None of them may replay its journal, which
/// writes to the device.
fn is_shared_for_reading(context: &StageContext<'_>) -> bool {
    context.record.capability.access_mode == CsiAccessMode::MultiNodeReaderOnly
}

/// Returns the device's filesystem. Checks an existing one, unless the access mode is read-only. Creates one
/// if the device is blank, or if an earlier format was interrupted and left data without a known signature.
/// Never formats a volume with a read-only access mode or with a content source.
fn ensure_filesystem(context: &mut StageContext<'_>, device: &Device) -> Result<Filesystem, NodeError> {
    let requested = match context.access_type() {
        AccessType::Filesystem { fs_type, .. } => parse_fs_type(fs_type.as_deref())?,
        AccessType::Block => None,
    };
    let content = context.mounter.device_content(device).step("probe the device's content")?;
    let is_retry = context.record.format_in_progress;
    match content {
        DeviceContent::Filesystem(name) => {
            let found = Filesystem::from_name(&name)
                .filter(|found| requested.is_none_or(|requested| requested == *found));
            let Some(found) = found else {
                let expected = requested.map_or("ext4 or xfs", Filesystem::as_str);
                return Err(NodeError::FailedPrecondition(format!(
                    "the volume has a {name:?} filesystem: expected {expected}"
                )));
            };
            check_filesystem_allowed(context, found)?;
            context.clear_format_in_progress()?;
            if !context.is_read_only() {
                context.mounter.check_filesystem(device, found).step("check the volume's filesystem")?;
            }
            Ok(found)
        }
        DeviceContent::Unknown if !is_retry => Err(NodeError::FailedPrecondition(
            "the volume has data but no filesystem: expected a filesystem or a blank device; it is not \
             formatted"
                .to_owned(),
        )),
        // Even after an interrupted format: a known signature is user data.
        DeviceContent::Other(what) => Err(NodeError::FailedPrecondition(format!(
            "the volume has {what}: expected a filesystem or a blank device; it is not formatted"
        ))),
        DeviceContent::Blank | DeviceContent::Unknown => {
            let first = context.filesystems.first().copied().unwrap_or(Filesystem::Ext4);
            format(context, device, requested.unwrap_or(first))
        }
    }
}

fn format(
    context: &mut StageContext<'_>,
    device: &Device,
    filesystem: Filesystem,
) -> Result<Filesystem, NodeError> {
    let rejection_reason = if context.has_content_source {
        Some("it was created from another volume or a snapshot")
    } else if context.is_read_only() {
        Some("its access mode is read-only")
    } else {
        None
    };
    if let Some(rejection_reason) = rejection_reason {
        return Err(NodeError::FailedPrecondition(format!(
            "the volume has no filesystem and is not formatted: {rejection_reason}"
        )));
    }
    check_filesystem_allowed(context, filesystem)?;
    let is_retry = context.record.format_in_progress;
    if !is_retry {
        context.record.format_in_progress = true;
        context.save_record()?;
    }
    context.mounter.make_filesystem(device, filesystem, is_retry).step("create the volume's filesystem")?;
    context.clear_format_in_progress()?;
    Ok(filesystem)
}

fn check_filesystem_allowed(context: &StageContext<'_>, filesystem: Filesystem) -> Result<(), NodeError> {
    if context.filesystems.contains(&filesystem) {
        return Ok(());
    }
    Err(NodeError::Denied(format!("the filesystem {} is not allowed on this node", filesystem.as_str())))
}

/// Rejects a device of the network that is smaller than it was: the kernel accepts that without an error, and
/// the end of the filesystem is lost.
fn check_not_shrunk(record: &VolumeRecord, device: &Device, size: u64) -> Result<(), NodeError> {
    match record.size.filter(|recorded| *recorded > size) {
        None => Ok(()),
        Some(recorded) => Err(NodeError::FailedPrecondition(format!(
            "the volume's device {device} has {size} bytes: expected the {recorded} that it had; the end of \
             the volume is lost"
        ))),
    }
}

/// Records the size of a device of the network, which must not be smaller than before.
pub(super) fn record_size(
    context: &mut StageContext<'_>,
    device: &Device,
    size: u64,
) -> Result<(), NodeError> {
    check_not_shrunk(&context.record, device, size)?;
    if context.record.size != Some(size) {
        context.record.size = Some(size);
        context.save_record()?;
    }
    Ok(())
}

/// Rejects a required size that is larger than the device: only the driver can expand the device.
pub(super) fn check_size(size: u64, required: Option<u64>) -> Result<(), NodeError> {
    match required.filter(|required| *required > size) {
        None => Ok(()),
        Some(required) => Err(NodeError::OutOfRange(format!(
            "the volume's device has {size} bytes: expected at least {required}"
        ))),
    }
}

/// Checks and records the size of a device of the network that is to be expanded.
pub(super) fn check_new_size(
    mounter: &dyn Mounter,
    record: &VolumeRecord,
    device: &Device,
    size: u64,
    required: Option<u64>,
) -> Result<(), NodeError> {
    check_not_shrunk(record, device, size)?;
    check_size(size, required)?;
    if record.size != Some(size) {
        let new_record = VolumeRecord { size: Some(size), ..record.clone() };
        mounter.save_record(&new_record).step("save the volume's record")?;
    }
    Ok(())
}

/// Expands the filesystem of a volume, which is mounted at a path, to the size of its device. Does nothing for a raw
/// volume.
pub(super) fn grow_volume(
    mounter: &dyn Mounter,
    record: &VolumeRecord,
    device: &Device,
    path: &KubeletPath,
) -> Result<(), NodeError> {
    match record.capability.access_type {
        AccessType::Filesystem { .. } => grow_filesystem(mounter, device, path),
        AccessType::Block => Ok(()),
    }
}

/// Expands the filesystem at a path to the size of its device. A filesystem that is mounted read-only, or is
/// neither ext4 nor xfs, stays unchanged.
fn grow_filesystem(mounter: &dyn Mounter, device: &Device, path: &KubeletPath) -> Result<(), NodeError> {
    let found = mounter.inspect(path).step("inspect the staging path")?;
    let top = found.and_then(|mut found| found.mounts.pop()).filter(|top| top.device == device.number);
    let Some(top) = top else {
        return Err(NodeError::FailedPrecondition(format!("the volume is not mounted at {path}")));
    };
    if top.attributes.read_only || top.filesystem_read_only {
        return Ok(());
    }
    match Filesystem::from_name(&top.fs_type) {
        Some(filesystem) => {
            mounter.grow_filesystem(device, filesystem, path).step("expand the volume's filesystem")
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multi_node_filesystem_modes_must_be_read_only() {
        let capability = |mode, fs_type: &str| VolumeCapability {
            access_mode: mode,
            access_type: AccessType::Filesystem {
                fs_type: Some(fs_type.to_owned()),
                mount_flags: Vec::new(),
                mount_group: None,
            },
        };
        assert!(check_capability(&capability(CsiAccessMode::SingleNodeWriter, "")).is_ok());
        assert!(check_capability(&capability(CsiAccessMode::MultiNodeReaderOnly, "xfs")).is_ok());
        assert!(super::super::is_read_only_mode(CsiAccessMode::MultiNodeReaderOnly));
        for (mode, fs_type) in [
            (CsiAccessMode::MultiNodeMultiWriter, "ext4"),
            (CsiAccessMode::MultiNodeSingleWriter, "ext4"),
            (CsiAccessMode::SingleNodeWriter, "btrfs"),
        ] {
            assert!(check_capability(&capability(mode, fs_type)).is_err(), "{mode:?} {fs_type}");
        }
        let block = VolumeCapability {
            access_mode: CsiAccessMode::MultiNodeMultiWriter,
            access_type: AccessType::Block,
        };
        assert!(check_capability(&block).is_ok());
    }
}
