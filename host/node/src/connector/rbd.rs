//! Kind `rbd`: an image of a Ceph cluster.

use cofferdam_domain::storage::VolumeCapability;

use super::{Connector, StageContext, device};
use crate::{
    connection::NodeConnection,
    error::{NodeError, StepContext as _},
    mounter::Mounter,
    path::KubeletPath,
    rbd::{CephUser, RbdDevice, RbdImage, key_name, removable_devices, select_device, wrong_device},
    record::VolumeRecord,
};

/// Maps this image, and stages its device.
pub(crate) struct RbdConnector(pub(crate) RbdImage);

impl RbdConnector {
    /// Returns the image's device; `None` if it is not mapped.
    fn find_device(&self, mounter: &dyn Mounter) -> Result<Option<RbdDevice>, NodeError> {
        let devices = mounter.rbd_devices().step("list the mapped images")?;
        let found = select_device(&devices, &self.0)
            .map_err(|error| NodeError::FailedPrecondition(error.to_string()))?;
        Ok(found.cloned())
    }

    /// Maps the image, unless it is mapped. The kernel maps by names, so the result is compared with the
    /// cluster's fsid and the image's id; a wrong one is unmapped by the roll-back of the call.
    fn map(&self, context: &StageContext<'_>) -> Result<RbdDevice, NodeError> {
        let mounter = context.mounter;
        if let Some(device) = self.find_device(mounter)? {
            return Ok(device);
        }
        let user = CephUser::from_secrets(context.secrets);
        let user = user.map_err(|error| NodeError::FailedPrecondition(error.to_string()))?;
        let volume = context.record.volume.as_str();
        mounter.rbd_map(&self.0, &user, &key_name(volume)).step("map the volume's image")?;
        if let Some(device) = self.find_device(mounter)? {
            return Ok(device);
        }
        let devices = mounter.rbd_devices().step("list the mapped images")?;
        let found = wrong_device(&devices, &self.0, volume).map_or("no device".to_owned(), |device| {
            format!("an image with id {} of the cluster {}", device.image_id, device.cluster_fsid)
        });
        Err(NodeError::FailedPrecondition(format!("the kernel has mapped {found}: expected {}", self.0)))
    }

    fn mapped_device(&self, mounter: &dyn Mounter) -> Result<RbdDevice, NodeError> {
        let device = self.find_device(mounter)?;
        device.ok_or_else(|| NodeError::FailedPrecondition(format!("{} is not mapped", self.0)))
    }
}

impl Connector for RbdConnector {
    fn check_capability(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        device::check_capability(capability)
    }

    fn identify(&self, _: &dyn Mounter, _: &mut VolumeRecord) -> Result<(), NodeError> {
        Ok(())
    }

    fn stage(&self, context: &mut StageContext<'_>) -> Result<(), NodeError> {
        let mounter = context.mounter;
        // 1. Map the image.
        let mapped = self.map(context)?;
        // 2. Hold the device, so that it cannot be unmapped, and its name stays that of this image.
        let _hold = mounter.hold_device(&mapped.device).step("open the volume's device")?;
        if self.mapped_device(mounter)?.device != mapped.device {
            return Err(NodeError::FailedPrecondition(format!(
                "{} was replaced during the call",
                mapped.device
            )));
        }
        // 3. Check that nothing else uses it.
        let users =
            mounter.device_users(&mapped.device, true).step("find the users of the volume's device")?;
        device::check_unused(context, &mapped.device, &self.0.to_string(), &users)?;
        // 4. Record its size.
        device::record_size(context, &mapped.device, mapped.size)?;
        // 5. Mount it, or bind its node.
        device::stage(context, &mapped.device)
    }

    fn expand(
        &self,
        mounter: &dyn Mounter,
        record: &VolumeRecord,
        path: &KubeletPath,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError> {
        let mut mapped = self.mapped_device(mounter)?;
        if let Some(required) = required.filter(|required| *required > mapped.size) {
            mounter.rbd_refresh(&mapped, required).step("read the size of the volume's device")?;
            mapped = self.mapped_device(mounter)?;
        }
        device::check_new_size(mounter, record, &mapped.device, mapped.size, required)?;
        device::grow_volume(mounter, record, &mapped.device, path)?;
        Ok(Some(mapped.size))
    }
}

/// Returns the image in a volume's record; `None` if the volume is of another kind.
fn recorded_image(record: &VolumeRecord) -> Option<RbdImage> {
    match NodeConnection::parse(record.connection_info.as_ref()?) {
        Ok(NodeConnection::Rbd(image)) => Some(image),
        Ok(_) | Err(_) => None,
    }
}

/// Unmaps a volume's image. Keeps a device that has users: the kernel refuses to unmap only one that is open, and the
/// node of another process's raw volume may be mounted and not open.
pub(super) fn unmap(mounter: &dyn Mounter, record: &VolumeRecord) -> Result<(), NodeError> {
    let Some(image) = recorded_image(record) else { return Ok(()) };
    let records = mounter.records().step("read the volumes' records")?.readable;
    let others: Vec<RbdImage> =
        records.iter().filter(|other| other.volume != record.volume).filter_map(recorded_image).collect();
    let devices = mounter.rbd_devices().step("list the mapped images")?;
    let removable = removable_devices(&devices, &image, &record.volume, &others);
    // A device that cannot be unmapped does not keep another one.
    let errors = removable.into_iter().filter_map(|device| unmap_unused(mounter, device).err()).collect();
    NodeError::ensure_none(errors, "unmap the volume's images")
}

/// Unmaps a device without users.
fn unmap_unused(mounter: &dyn Mounter, device: &RbdDevice) -> Result<(), NodeError> {
    let users = mounter.device_users(&device.device, false).step("find the users of the volume's device")?;
    if users.is_empty() { mounter.rbd_unmap(device).step("unmap the volume's image") } else { Ok(()) }
}
