//! Attachments of volumes to instances.
//!
//! EC2 knows instances, and `unpublish` gets a node ID. A tag of the volume connects them. It is written
//! before the volume is attached, so that each attachment has one.

use cofferdam_guest::abilities::{PublishRequest, Publishing};
use cofferdam_guest::{ConnectionInfo, Result, StorageError, digest};

use crate::ec2::{Action, Ec2, wait_until};
use crate::xml::{Attachment, Done, Volume};
use crate::{EbsDriver, tags};

impl Publishing for EbsDriver {
    fn publish(request: PublishRequest) -> Result<ConnectionInfo> {
        let (ec2, handle) = (Ec2::new()?, request.handle.as_str());
        // `aws:///us-east-1a/i-0abc`; without it, the node ID has to be the ID of the instance.
        let provider_id = request.node_identity("provider-id").and_then(|id| id.rsplit('/').next());
        let instance = provider_id.unwrap_or(&request.node);
        let volume = ec2.volume(handle)?;
        let is_attached = volume.attachment_to(instance)?.is_some();
        let tag = format!("{}{instance}", tags::NODE_PREFIX);
        if tags::get(&volume.tag_set, &tag) != Some(&request.node) {
            let action = Action::new("CreateTags").set("ResourceId.1", handle);
            ec2.send::<Done>(&action.set("Tag.1.Key", tag).set("Tag.1.Value", &request.node), &[])?;
        }
        if !is_attached {
            let action = Action::new("AttachVolume").set("VolumeId", handle).set("InstanceId", instance);
            let action = action.set("Device", ec2.free_device(instance, handle)?);
            // `VolumeInUse` if another call has attached the volume, perhaps to another instance.
            ec2.send::<Done>(&action, &["VolumeInUse"])?;
        }
        wait_until(|| {
            let volume = ec2.volume(handle)?;
            let is_done =
                |found: &Attachment| found.status == "attached" && volume.node(found) == request.node;
            Ok(volume.attachment_to(instance)?.is_some_and(is_done).then_some(()))
        })?;
        // The link that udev makes of the serial number of the NVMe device.
        let serial_number = handle.replace('-', "");
        Ok(ConnectionInfo::local_device(&format!("nvme-Amazon_Elastic_Block_Store_{serial_number}")))
    }

    fn unpublish(handle: String, node: Option<String>) -> Result<()> {
        let ec2 = Ec2::new()?;
        let is_from = |found: &str| node.as_ref().is_none_or(|node| node == found);
        let Some(volume) = ec2.find_volume(&handle)? else { return Ok(()) };
        for attachment in volume.attachment_set.iter().filter(|found| is_from(volume.node(found))) {
            let action = Action::new("DetachVolume").set("VolumeId", &handle);
            let action = action.set("InstanceId", &attachment.instance_id);
            // The codes of a volume that another call is detaching or has detached.
            ec2.send::<Done>(&action, &["IncorrectState", "InvalidAttachment.NotFound"])?;
        }
        wait_until(|| {
            let Some(volume) = ec2.find_volume(&handle)? else { return Ok(Some(())) };
            let is_attached = volume.attachment_set.iter().any(|found| is_from(volume.node(found)));
            Ok((!is_attached).then_some(()))
        })?;
        // A volume has at most 50 tags, and it may visit more instances.
        for tag in
            volume.tag_set.iter().filter(|tag| tag.key.starts_with(tags::NODE_PREFIX) && is_from(&tag.value))
        {
            let action = Action::new("DeleteTags").set("ResourceId.1", &handle).set("Tag.1.Key", &tag.key);
            ec2.send::<Done>(&action, &[])?;
        }
        Ok(())
    }
}

impl Ec2 {
    /// A device name that the instance does not use. EC2 requires one, although Nitro instances ignore it.
    /// Each volume tries another one first, so that concurrent calls rarely choose the same.
    fn free_device(&self, instance: &str, handle: &str) -> Result<String> {
        let attached = self.volumes("attachment.instance-id", instance)?;
        let used: Vec<_> =
            attached.iter().flat_map(|found| &found.attachment_set).map(|found| &found.device).collect();
        let first = usize::from(digest::sha256(handle)[0]);
        let names =
            ('b'..='d').flat_map(|second| ('a'..='z').map(move |third| format!("/dev/xvd{second}{third}")));
        let free = names.cycle().skip(first).take(78).find(|name| !used.contains(&name));
        free.ok_or_else(|| StorageError::resource_exhausted(format!("{instance} has no free device name")))
    }
}

impl Volume {
    /// The node ID of an attachment. It is the ID of the instance if this driver did not attach the volume.
    pub(crate) fn node<'a>(&'a self, attachment: &'a Attachment) -> &'a str {
        let Attachment { instance_id, .. } = attachment;
        tags::get(&self.tag_set, &format!("{}{instance_id}", tags::NODE_PREFIX)).unwrap_or(instance_id)
    }

    /// The attachment to an instance. Fails with `failed-precondition` if the volume is attached to
    /// another.
    fn attachment_to(&self, instance: &str) -> Result<Option<&Attachment>> {
        match self.attachment_set.first() {
            Some(other) if other.instance_id != instance => Err(StorageError::failed_precondition(format!(
                "the volume {:?} is attached to {}",
                self.volume_id, other.instance_id
            ))),
            attachment => Ok(attachment),
        }
    }
}
