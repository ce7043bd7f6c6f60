//! What is done with a block device, wherever it comes from.

use cofferdam_domain::storage::{AccessType, CsiAccessMode, VolumeCapability};

use super::{Job, bind_device, restrict};
use crate::{
    error::{NodeError, Step as _},
    machine::{Attributes, Content, Device, Filesystem, Machine},
    options::{MountOptions, Of},
    path::Place,
};

/// Whether a device can be used so: no filesystem here can be written by two nodes.
pub(super) fn supports(capability: &VolumeCapability) -> Result<(), NodeError> {
    let AccessType::Filesystem { fs_type, .. } = &capability.access_type else { return Ok(()) };
    wanted(fs_type.as_deref())?;
    match capability.access_mode {
        CsiAccessMode::MultiNodeMultiWriter | CsiAccessMode::MultiNodeSingleWriter => {
            Err(NodeError::Precondition(
                "a filesystem on a device must not be mounted by several nodes: expected a mode of one node, \
                 or readers only"
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

/// The filesystem that is asked for, where one is.
fn wanted(fs_type: Option<&str>) -> Result<Option<Filesystem>, NodeError> {
    match fs_type.filter(|name| !name.is_empty()) {
        None => Ok(None),
        Some(name) => match Filesystem::of(name) {
            Some(filesystem) => Ok(Some(filesystem)),
            None => {
                let known = Filesystem::ALL.map(Filesystem::as_str).join(" or ");
                Err(NodeError::Invalid(format!("the filesystem type is {name:?}: expected {known}")))
            }
        },
    }
}

/// Makes a device usable at the staging path.
pub(super) fn stage(job: &mut Job<'_>, device: &Device) -> Result<(), NodeError> {
    match job.access() {
        AccessType::Block => bind_device(job, device),
        AccessType::Filesystem { .. } => stage_filesystem(job, device),
    }
}

fn stage_filesystem(job: &mut Job<'_>, device: &Device) -> Result<(), NodeError> {
    let place = job.place;
    let (number, read_only) = (device.number, job.read_only());
    if !job.mounted(place, |found| found.mounts.last().is_some_and(|top| top.device == number))? {
        let filesystem = ready(job, device)?;
        let mut options = MountOptions::read(job.flags(), Of::Device(filesystem), job.least)?;
        options.attributes.read_only |= read_only;
        if filesystem == Filesystem::Xfs && job.cloned {
            // A copy has the uuid of its origin, and xfs refuses to mount the same uuid twice.
            options.data.push(("nouuid".to_owned(), None));
        }
        job.machine
            .mount_device(device, filesystem, &options, place)
            .step("mount the volume's filesystem")?;
    }
    restrict(job.machine, place, Attributes { read_only, ..job.least })?;
    if read_only { Ok(()) } else { grow(job.machine, device, place) }
}

/// Sees to it that the device has a filesystem that can be mounted: formatted only if it is blank and was
/// never anything else.
fn ready(job: &mut Job<'_>, device: &Device) -> Result<Filesystem, NodeError> {
    let asked = match job.access() {
        AccessType::Filesystem { fs_type, .. } => wanted(fs_type.as_deref())?,
        AccessType::Block => None,
    };
    let content = job.machine.probe(device).step("look at what the device holds")?;
    let unfinished = job.record.formatting;
    match content {
        Content::Filesystem(name) => {
            let found = Filesystem::of(&name).filter(|found| asked.is_none_or(|asked| asked == *found));
            let Some(found) = found else {
                let expected = asked.map_or("ext4 or xfs", Filesystem::as_str);
                return Err(NodeError::Precondition(format!(
                    "the volume holds the filesystem {name:?}: expected {expected}"
                )));
            };
            allowed(job, found)?;
            job.formatted()?;
            if !job.read_only() {
                job.machine.check_filesystem(device, found).step("check the volume's filesystem")?;
            }
            Ok(found)
        }
        Content::Unknown if !unfinished => Err(NodeError::Precondition(
            "the volume holds data that is no filesystem: expected a filesystem, or nothing at all; it is not formatted"
                .to_owned(),
        )),
        // Whatever was begun here once, by now it is somebody's.
        Content::Other(what) => Err(NodeError::Precondition(format!(
            "the volume holds {what}: expected a filesystem, or nothing at all; it is not formatted"
        ))),
        Content::Blank | Content::Unknown => {
            let first = job.filesystems.first().copied().unwrap_or(Filesystem::Ext4);
            format(job, device, asked.unwrap_or(first))
        }
    }
}

fn format(job: &mut Job<'_>, device: &Device, filesystem: Filesystem) -> Result<Filesystem, NodeError> {
    let why_not = if job.cloned {
        Some("its content was to come from another volume or a snapshot")
    } else if job.read_only() {
        Some("it is for readers only")
    } else {
        None
    };
    if let Some(why_not) = why_not {
        return Err(NodeError::Precondition(format!(
            "the volume has no filesystem, and gets none: {why_not}"
        )));
    }
    allowed(job, filesystem)?;
    let unfinished = job.record.formatting;
    if !unfinished {
        job.record.formatting = true;
        job.keep()?;
    }
    job.machine.make_filesystem(device, filesystem, unfinished).step("make the volume's filesystem")?;
    job.formatted()?;
    Ok(filesystem)
}

fn allowed(job: &Job<'_>, filesystem: Filesystem) -> Result<(), NodeError> {
    if job.filesystems.contains(&filesystem) {
        return Ok(());
    }
    Err(NodeError::Denied(format!("the filesystem {} is not allowed on this node", filesystem.as_str())))
}

/// Refuses a size that the device does not have: to make it larger is the driver's.
pub(super) fn large_enough(size: u64, required: Option<u64>) -> Result<(), NodeError> {
    match required.filter(|required| *required > size) {
        None => Ok(()),
        Some(required) => Err(NodeError::Range(format!(
            "the volume's device has {size} bytes: expected at least {required}"
        ))),
    }
}

/// Grows the filesystem at a place to the size of its device.
pub(super) fn grow(machine: &dyn Machine, device: &Device, place: &Place) -> Result<(), NodeError> {
    let found = machine.look(place).step("look at the staging path")?;
    let top = found.and_then(|mut found| found.mounts.pop()).filter(|top| top.device == device.number);
    let Some(top) = top else {
        return Err(NodeError::Precondition(format!("the volume is not mounted at {place}")));
    };
    if top.attributes.read_only || top.filesystem_read_only {
        return Ok(());
    }
    match Filesystem::of(&top.fs_type) {
        Some(filesystem) => {
            machine.grow_filesystem(device, filesystem, place).step("grow the volume's filesystem")
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_several_nodes_are_for_readers() {
        let capability = |mode, fs_type: &str| VolumeCapability {
            access_mode: mode,
            access_type: AccessType::Filesystem {
                fs_type: Some(fs_type.to_owned()),
                mount_flags: Vec::new(),
                mount_group: None,
            },
        };
        assert!(supports(&capability(CsiAccessMode::SingleNodeWriter, "")).is_ok());
        assert!(supports(&capability(CsiAccessMode::MultiNodeReaderOnly, "xfs")).is_ok());
        assert!(super::super::reads_only(CsiAccessMode::MultiNodeReaderOnly));
        for (mode, fs_type) in [
            (CsiAccessMode::MultiNodeMultiWriter, "ext4"),
            (CsiAccessMode::MultiNodeSingleWriter, "ext4"),
            (CsiAccessMode::SingleNodeWriter, "btrfs"),
        ] {
            assert!(supports(&capability(mode, fs_type)).is_err(), "{mode:?} {fs_type}");
        }
        let block = VolumeCapability {
            access_mode: CsiAccessMode::MultiNodeMultiWriter,
            access_type: AccessType::Block,
        };
        assert!(supports(&block).is_ok());
    }
}
