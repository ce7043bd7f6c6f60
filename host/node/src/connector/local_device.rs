//! Kind `local-device`: an existing block device.

use cofferdam_domain::storage::{AccessType, VolumeCapability};

use super::{BLOCK_FILE_NAME, Connector, StageContext, device};
use crate::{
    error::{NodeError, StepContext as _},
    file::PathKind,
    mounter::Mounter,
    path::KubeletPath,
    record::VolumeRecord,
};

/// Stages the block device with this stable id.
pub(crate) struct LocalDeviceConnector {
    pub(crate) stable_id: String,
    /// True if the device may be a partition.
    pub(crate) allows_partition: bool,
}

impl LocalDeviceConnector {
    /// Returns true if the device is already staged at the staging path. Its current user is then this
    /// volume.
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
}

impl Connector for LocalDeviceConnector {
    fn check_capability(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        device::check_capability(capability)
    }

    fn identify(&self, mounter: &dyn Mounter, record: &mut VolumeRecord) -> Result<(), NodeError> {
        let device_info = mounter.block_device(&self.stable_id).step("find the volume's device")?;
        if device_info.is_partition && !self.allows_partition {
            return Err(NodeError::Denied(format!(
                "the device {:?} is a partition, which is not allowed on this node: expected a pattern with \
                 \"part\" in stable-ids",
                self.stable_id
            )));
        }
        record.device_number = Some(device_info.device.number);
        Ok(())
    }

    fn stage(&self, context: &mut StageContext<'_>) -> Result<(), NodeError> {
        let device_info = context.mounter.block_device(&self.stable_id).step("find the volume's device")?;
        if context.record.device_number != Some(device_info.device.number) {
            return Err(NodeError::FailedPrecondition(format!(
                "the device {:?} was replaced during the call",
                self.stable_id
            )));
        }
        if !device_info.users.is_empty() && !Self::is_staged(context, device_info.device.number)? {
            return Err(NodeError::FailedPrecondition(format!(
                "the device {:?} is in use: {}",
                self.stable_id,
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
        let device_info = mounter.block_device(&self.stable_id).step("find the volume's device")?;
        if record.device_number != Some(device_info.device.number) {
            return Err(NodeError::FailedPrecondition(format!(
                "the device {:?} was replaced during the call",
                self.stable_id
            )));
        }
        device::check_size(device_info.size, required)?;
        if matches!(record.capability.access_type, AccessType::Filesystem { .. }) {
            device::grow_filesystem(mounter, &device_info.device, path)?;
        }
        Ok(Some(device_info.size))
    }
}
