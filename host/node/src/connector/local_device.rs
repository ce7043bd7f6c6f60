//! Kind `local-device`: an existing block device.

use cofferdam_domain::storage::VolumeCapability;

use super::{Connector, StageContext, device};
use crate::{
    error::{NodeError, StepContext as _},
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
        let object = format!("the device {:?}", self.stable_id);
        device::check_unused(context, &device_info.device, &object, &device_info.users)?;
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
        device::grow_volume(mounter, record, &device_info.device, path)?;
        Ok(Some(device_info.size))
    }
}
