//! `local-device`: a block device that the node has already.

use cofferdam_domain::storage::{AccessType, VolumeCapability};

use super::{BLOCK, Executor, Job, device};
use crate::{
    error::{NodeError, Step as _},
    machine::{FoundKind, Machine},
    path::Place,
    record::VolumeRecord,
};

/// A device by its stable id.
pub(crate) struct LocalDevice(pub(crate) String);

impl LocalDevice {
    /// Whether the device is staged at this place already: then what holds it is this volume.
    fn is_here(job: &Job<'_>, number: (u32, u32)) -> Result<bool, NodeError> {
        let staged = job.machine.look(job.place).step("look at the staging path")?;
        if staged.is_some_and(|found| found.mounts.last().is_some_and(|top| top.device == number)) {
            return Ok(true);
        }
        let block = job.machine.look(&job.place.join(BLOCK)).step("look at the device's file")?;
        Ok(block.is_some_and(|found| found.kind == FoundKind::Device(number)))
    }
}

impl Executor for LocalDevice {
    fn supports(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        device::supports(capability)
    }

    fn identify(&self, machine: &dyn Machine, record: &mut VolumeRecord) -> Result<(), NodeError> {
        let facts = machine.device(&self.0).step("find the volume's device")?;
        record.device = Some(facts.device.number);
        Ok(())
    }

    fn stage(&self, job: &mut Job<'_>) -> Result<(), NodeError> {
        let facts = job.machine.device(&self.0).step("find the volume's device")?;
        if job.record.device != Some(facts.device.number) {
            return Err(NodeError::Precondition(format!("the device {:?} was replaced meanwhile", self.0)));
        }
        if !facts.held.is_empty() && !Self::is_here(job, facts.device.number)? {
            return Err(NodeError::Precondition(format!(
                "the device {:?} is in use: {}",
                self.0,
                facts.held.join(", ")
            )));
        }
        device::stage(job, &facts.device)
    }

    fn expand(
        &self,
        machine: &dyn Machine,
        record: &VolumeRecord,
        place: &Place,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError> {
        let facts = machine.device(&self.0).step("find the volume's device")?;
        if record.device != Some(facts.device.number) {
            return Err(NodeError::Precondition(format!("the device {:?} was replaced meanwhile", self.0)));
        }
        device::large_enough(facts.size, required)?;
        if matches!(record.capability.access_type, AccessType::Filesystem { .. }) {
            device::grow(machine, &facts.device, place)?;
        }
        Ok(Some(facts.size))
    }
}
