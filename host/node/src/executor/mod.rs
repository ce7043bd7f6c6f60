//! One small module for each kind of attachment. A kind is a value of its own behind [`Executor`]; who may
//! have it is decided where the value is made, in the policy.

mod device;
mod directory;
mod image;
mod local_device;
mod memory;
mod nothing;

use std::collections::BTreeSet;

use cofferdam_domain::storage::{AccessType, CsiAccessMode, VolumeCapability};

pub(crate) use directory::Directory;
pub(crate) use image::Image;
pub(crate) use local_device::LocalDevice;
pub(crate) use memory::{Memory, is_memory, memory_name};
pub(crate) use nothing::Nothing;

use crate::{
    error::{NodeError, Step as _},
    machine::{Attributes, Device, Filesystem, Found, FoundKind, Machine, Source},
    path::Place,
    record::VolumeRecord,
};

/// Name of the file in a staging path on which the device of a raw block volume is.
pub(crate) const BLOCK: &str = "device";

/// One volume that is being staged.
pub(crate) struct Job<'a> {
    pub(crate) machine: &'a dyn Machine,
    /// Where.
    pub(crate) place: &'a Place,
    /// What is known of the volume; every change is kept before the effect that it tells of.
    pub(crate) record: VolumeRecord,
    /// What every mount takes away.
    pub(crate) least: Attributes,
    /// Filesystems that may be on a device.
    pub(crate) filesystems: &'a BTreeSet<Filesystem>,
    /// Whether its content was made of another volume or of a snapshot.
    pub(crate) cloned: bool,
}

impl Job<'_> {
    pub(crate) fn access(&self) -> &AccessType {
        &self.record.capability.access_type
    }

    pub(crate) fn flags(&self) -> &[String] {
        match &self.record.capability.access_type {
            AccessType::Filesystem { mount_flags, .. } => mount_flags,
            AccessType::Block => &[],
        }
    }

    /// Whether nobody may write, anywhere.
    pub(crate) fn read_only(&self) -> bool {
        reads_only(self.record.capability.access_mode)
    }

    pub(crate) fn keep(&self) -> Result<(), NodeError> {
        self.machine.keep(&self.record).step("keep the volume's record")
    }

    /// Notes that a filesystem that was begun is not being made any more.
    fn formatted(&mut self) -> Result<(), NodeError> {
        if self.record.formatting {
            self.record.formatting = false;
            self.keep()?;
        }
        Ok(())
    }

    /// What is staged; a filesystem that is there must be what `is_ours` knows.
    pub(crate) fn mounted(
        &self,
        place: &Place,
        is_ours: impl FnOnce(&Found) -> bool,
    ) -> Result<bool, NodeError> {
        let found = self.machine.look(place).step("look at the staging path")?;
        match found {
            Some(found) if !found.mounts.is_empty() => {
                if is_ours(&found) {
                    Ok(true)
                } else {
                    Err(NodeError::Precondition(format!("something else is mounted at {place}")))
                }
            }
            Some(_) | None => Ok(false),
        }
    }

    /// Binds something to the staging path, and takes away from it what is not allowed.
    pub(crate) fn bind(
        &self,
        source: &Source,
        attributes: Attributes,
        is_ours: impl FnOnce(&Found) -> bool,
    ) -> Result<(), NodeError> {
        if !self.mounted(self.place, is_ours)? {
            self.machine.bind(source, self.place).step("bind the volume to its staging path")?;
        }
        restrict(self.machine, self.place, attributes)
    }
}

/// How one kind of attachment is executed. Every step looks first and is skipped when it was done: a job may
/// have died anywhere.
pub(crate) trait Executor: Send + Sync {
    /// Whether a volume of this kind can be used so.
    fn supports(&self, capability: &VolumeCapability) -> Result<(), NodeError>;

    /// Finds what the volume is on this machine, and writes into the record what nobody else may use
    /// meanwhile.
    fn identify(&self, machine: &dyn Machine, record: &mut VolumeRecord) -> Result<(), NodeError>;

    /// Makes the volume usable at the staging path.
    fn stage(&self, job: &mut Job<'_>) -> Result<(), NodeError>;

    /// Makes a staged volume at least this large, as far as the node can; returns its size in bytes where it
    /// is known.
    fn expand(
        &self,
        machine: &dyn Machine,
        record: &VolumeRecord,
        place: &Place,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError>;
}

/// Whether a mode has no writer.
pub(crate) const fn reads_only(mode: CsiAccessMode) -> bool {
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
pub(crate) fn filesystem_only(what: &str, capability: &VolumeCapability) -> Result<(), NodeError> {
    match capability.access_type {
        AccessType::Filesystem { .. } => Ok(()),
        AccessType::Block => {
            Err(NodeError::Invalid(format!("{what} is no block device: expected a mounted filesystem")))
        }
    }
}

/// Takes away from the top mount of a place what it still has.
pub(crate) fn restrict(
    machine: &dyn Machine,
    place: &Place,
    attributes: Attributes,
) -> Result<(), NodeError> {
    let found = machine.look(place).step("look at a mount")?;
    match found.as_ref().and_then(|found| found.mounts.last()) {
        Some(top) if top.attributes.covers(attributes) => Ok(()),
        Some(_) => machine.restrict(place, attributes).step("restrict a mount"),
        None => Err(NodeError::Precondition(format!("nothing is mounted at {place} any more"))),
    }
}

/// Undoes what was staged, whatever kind it is and however far it came. Nothing is asked of the policy: what
/// was done must be possible to undo after the operator has closed it.
pub(crate) fn unstage(
    machine: &dyn Machine,
    place: &Place,
    record: Option<&VolumeRecord>,
    others: &[VolumeRecord],
) -> Result<(), NodeError> {
    let block = place.join(BLOCK);
    // Beneath a mounted filesystem a file of this name is the user's.
    let block_is_ours = match machine.look(place).step("look at the staging path")? {
        Some(found) => found.kind == FoundKind::Directory && found.mounts.is_empty(),
        None => false,
    };
    if block_is_ours && let Some(found) = machine.look(&block).step("look at the device's file")? {
        for _ in &found.mounts {
            machine.unmount(&block).step("unmount the device's file")?;
        }
        machine.remove_empty(&block).step("remove the device's file")?;
    }
    while machine.look(place).step("look at the staging path")?.is_some_and(|found| !found.mounts.is_empty())
    {
        machine.unmount(place).step("unmount the staging path")?;
    }
    detach(machine, record, others)
}

/// Takes the loop devices from a volume's image, unless somebody else has the same file by now.
fn detach(
    machine: &dyn Machine,
    record: Option<&VolumeRecord>,
    others: &[VolumeRecord],
) -> Result<(), NodeError> {
    let Some((record, image)) = record.and_then(|record| Some((record, record.image?))) else {
        return Ok(());
    };
    let shared = others.iter().any(|other| other.volume != record.volume && other.image == Some(image));
    if shared {
        return Ok(());
    }
    for found in machine.loops(image).step("find the volume's loop device")? {
        machine.detach_loop(&found.device).step("detach the volume's loop device")?;
    }
    Ok(())
}

/// Puts a device's node on a file in the staging path.
fn bind_device(job: &mut Job<'_>, device: &Device) -> Result<(), NodeError> {
    // From now on what it holds is the user's.
    job.formatted()?;
    let place = job.place.join(BLOCK);
    if job.machine.look(&place).step("look at the device's file")?.is_none() {
        job.machine.make_file(&place).step("make the device's file")?;
    }
    let number = device.number;
    if !job.mounted(&place, |found| found.kind == FoundKind::Device(number))? {
        let source = Source::Device(device.clone());
        job.machine.bind(&source, &place).step("bind the device to its file")?;
    }
    Ok(())
}
