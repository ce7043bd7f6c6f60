//! `local-device`: a block device that the node has already.

use cofferdam_domain::storage::{AccessType, VolumeCapability};

use super::{BLOCK_FILE_NAME, Connector, StageContext, device};
use crate::{
    error::{NodeError, StepContext as _},
    mounter::{Mounter, PathKind},
    path::KubeletPath,
    record::VolumeRecord,
};

/// A device by its stable id.
pub(crate) struct LocalDeviceConnector(pub(crate) String);

impl LocalDeviceConnector {
    /// Whether the device is staged at this place already: then what holds it is this volume.
    fn is_staged(context: &StageContext<'_>, number: (u32, u32)) -> Result<bool, NodeError> {
        let staged = context.mounter.inspect(context.staging_path).step("look at the staging path")?;
        if staged.is_some_and(|found| found.mounts.last().is_some_and(|top| top.device == number)) {
            return Ok(true);
        }
        let block = context
            .mounter
            .inspect(&context.staging_path.join(BLOCK_FILE_NAME))
            .step("look at the device's file")?;
        Ok(block.is_some_and(|found| found.kind == PathKind::Device(number)))
    }
}

impl Connector for LocalDeviceConnector {
    fn check_capability(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        device::check_capability(capability)
    }

    fn identify(&self, mounter: &dyn Mounter, record: &mut VolumeRecord) -> Result<(), NodeError> {
        let device_info = mounter.block_device(&self.0).step("find the volume's device")?;
        record.device_number = Some(device_info.device.number);
        Ok(())
    }

    fn stage(&self, context: &mut StageContext<'_>) -> Result<(), NodeError> {
        let device_info = context.mounter.block_device(&self.0).step("find the volume's device")?;
        if context.record.device_number != Some(device_info.device.number) {
            return Err(NodeError::FailedPrecondition(format!(
                "the device {:?} was replaced meanwhile",
                self.0
            )));
        }
        if !device_info.users.is_empty() && !Self::is_staged(context, device_info.device.number)? {
            return Err(NodeError::FailedPrecondition(format!(
                "the device {:?} is in use: {}",
                self.0,
                device_info.users.join(", ")
            )));
        }
        device::stage(context, &device_info.device)
    }

    fn expand(
        &self,
        mounter: &dyn Mounter,
        record: &VolumeRecord,
        path: &KubeletPath,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError> {
        let device_info = mounter.block_device(&self.0).step("find the volume's device")?;
        if record.device_number != Some(device_info.device.number) {
            return Err(NodeError::FailedPrecondition(format!(
                "the device {:?} was replaced meanwhile",
                self.0
            )));
        }
        device::check_size(device_info.size, required)?;
        if matches!(record.capability.access_type, AccessType::Filesystem { .. }) {
            device::grow_filesystem(mounter, &device_info.device, path)?;
        }
        Ok(Some(device_info.size))
    }
}
