//! Kind `image`: an existing file, attached as a loop device.

use cofferdam_domain::storage::VolumeCapability;

use super::{Connector, StageContext, device};
use crate::{
    block_device::Device,
    error::{NodeError, StepContext as _},
    mounter::Mounter,
    path::{KubeletPath, RootedPath},
    record::VolumeRecord,
};

/// Stages the image at this path, which is below the policy's root.
pub(crate) struct ImageConnector(pub(crate) RootedPath);

impl ImageConnector {
    /// Returns the file's loop device. Attaches one if there is none, or updates the existing one's size to
    /// that of the file. Fails if there are several, or if the existing one is writable for a read-only
    /// access mode or the reverse.
    fn attach_loop_device(&self, context: &StageContext<'_>) -> Result<Device, NodeError> {
        let (file, size) = context.mounter.image_file(&self.0).step("find the volume's image")?;
        if context.record.image_id != Some(file) {
            return Err(NodeError::FailedPrecondition(format!(
                "the image {} was replaced during the call",
                self.0
            )));
        }
        let loop_devices = context.mounter.loop_devices(file).step("find the volume's loop device")?;
        let loop_device = match <[_; 1]>::try_from(loop_devices) {
            Ok([loop_device]) => loop_device,
            Err(loop_devices) if loop_devices.is_empty() => {
                return context
                    .mounter
                    .attach_loop(&self.0, file, context.is_read_only())
                    .step("attach a loop device to the volume's image");
            }
            Err(loop_devices) => {
                let count = loop_devices.len();
                return Err(NodeError::FailedPrecondition(format!(
                    "the image {} has {count} loop devices: expected one",
                    self.0
                )));
            }
        };
        if loop_device.read_only != context.is_read_only() {
            return Err(NodeError::FailedPrecondition(format!(
                "{} of the image {} is {}",
                loop_device.device,
                self.0,
                if loop_device.read_only {
                    "read-only: expected a writable one"
                } else {
                    "writable: expected a read-only one"
                }
            )));
        }
        if loop_device.size != size {
            context.mounter.refresh_loop_size(&loop_device.device).step("update the loop device's size")?;
        }
        Ok(loop_device.device)
    }
}

impl Connector for ImageConnector {
    fn check_capability(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        device::check_capability(capability)
    }

    fn identify(&self, mounter: &dyn Mounter, record: &mut VolumeRecord) -> Result<(), NodeError> {
        let (file, _) = mounter.image_file(&self.0).step("find the volume's image")?;
        record.image_id = Some(file);
        Ok(())
    }

    fn stage(&self, context: &mut StageContext<'_>) -> Result<(), NodeError> {
        let device = self.attach_loop_device(context)?;
        device::stage(context, &device)
    }

    fn expand(
        &self,
        mounter: &dyn Mounter,
        record: &VolumeRecord,
        path: &KubeletPath,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError> {
        let (file, size) = mounter.image_file(&self.0).step("find the volume's image")?;
        let loop_device = mounter.loop_devices(file).step("find the volume's loop device")?;
        let Some(loop_device) = loop_device.first().filter(|_| record.image_id == Some(file)) else {
            return Err(NodeError::FailedPrecondition(format!("the image {} has no loop device", self.0)));
        };
        device::check_size(size, required)?;
        if loop_device.size != size {
            mounter.refresh_loop_size(&loop_device.device).step("update the loop device's size")?;
        }
        device::grow_volume(mounter, record, &loop_device.device, path)?;
        Ok(Some(size))
    }
}
