//! `image`: a file that the node has already, behind a loop device.

use cofferdam_domain::storage::{AccessType, VolumeCapability};

use super::{Executor, Job, device};
use crate::{
    error::{NodeError, Step as _},
    machine::{Device, Machine},
    path::{Beneath, Place},
    record::VolumeRecord,
};

/// A file beneath the policy's root.
pub(crate) struct Image(pub(crate) Beneath);

impl Image {
    /// The loop device of the file, made where there is none, with the size that the file has now.
    fn attach(&self, job: &Job<'_>) -> Result<Device, NodeError> {
        let (file, size) = job.machine.image(&self.0).step("find the volume's image")?;
        if job.record.image != Some(file) {
            return Err(NodeError::Precondition(format!("the image {} was replaced meanwhile", self.0)));
        }
        let loops = job.machine.loops(file).step("find the volume's loop device")?;
        let found = match <[_; 1]>::try_from(loops) {
            Ok([found]) => found,
            Err(loops) if loops.is_empty() => {
                return job
                    .machine
                    .attach_loop(&self.0, file, job.read_only())
                    .step("attach a loop device to the volume's image");
            }
            Err(loops) => {
                let count = loops.len();
                return Err(NodeError::Precondition(format!(
                    "the image {} has {count} loop devices: expected one",
                    self.0
                )));
            }
        };
        if found.read_only != job.read_only() {
            return Err(NodeError::Precondition(format!(
                "{} of the image {} is {}",
                found.device,
                self.0,
                if found.read_only {
                    "read-only: expected one that can be written"
                } else {
                    "writable: expected a read-only one"
                }
            )));
        }
        if found.size != size {
            job.machine.refresh_loop(&found.device).step("tell the loop device its size")?;
        }
        Ok(found.device)
    }
}

impl Executor for Image {
    fn supports(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        device::supports(capability)
    }

    fn identify(&self, machine: &dyn Machine, record: &mut VolumeRecord) -> Result<(), NodeError> {
        let (file, _) = machine.image(&self.0).step("find the volume's image")?;
        record.image = Some(file);
        Ok(())
    }

    fn stage(&self, job: &mut Job<'_>) -> Result<(), NodeError> {
        let device = self.attach(job)?;
        device::stage(job, &device)
    }

    fn expand(
        &self,
        machine: &dyn Machine,
        record: &VolumeRecord,
        place: &Place,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError> {
        let (file, size) = machine.image(&self.0).step("find the volume's image")?;
        let found = machine.loops(file).step("find the volume's loop device")?;
        let Some(found) = found.first().filter(|_| record.image == Some(file)) else {
            return Err(NodeError::Precondition(format!("the image {} has no loop device", self.0)));
        };
        device::large_enough(size, required)?;
        if found.size != size {
            machine.refresh_loop(&found.device).step("tell the loop device its size")?;
        }
        if matches!(record.capability.access_type, AccessType::Filesystem { .. }) {
            device::grow(machine, &found.device, place)?;
        }
        Ok(Some(size))
    }
}
