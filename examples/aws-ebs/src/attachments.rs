//! Attachments of volumes to instances.
//!
//! EC2 knows instances, and `unpublish` gets a node ID. A tag of the volume connects them. It is written
//! before the volume is attached, so that each attachment has one.

use std::collections::BTreeSet;

use cofferdam_guest::abilities::{PublishRequest, Publishing};
use cofferdam_guest::{ConnectionInfo, Result, StorageError, digest};

use crate::ec2::{Action, Ec2, wait_until};
use crate::xml::{Attachment, Done, Volume};
use crate::{EbsDriver, tags};

/// Maximum device names that one call tries. Each may be taken by another call first.
const MAX_DEVICES: usize = 5;
/// The codes for a volume that another call detaches or has detached, and for an instance that does not exist.
const IS_DETACHED: [&str; 4] = [
    "IncorrectState",
    "InvalidAttachment.NotFound",
    "InvalidInstanceID.NotFound",
    "InvalidInstanceID.Malformed",
];

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
            ec2.attach(handle, instance)?;
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
        let tags = volume.tag_set.iter().filter(|tag| is_from(&tag.value));
        let tagged: BTreeSet<_> = tags.filter_map(|tag| tag.key.strip_prefix(tags::NODE_PREFIX)).collect();
        let attached = volume.attachment_set.iter().filter(|found| is_from(volume.node(found)));
        // The listing may lack an attachment, and its tag is older than it.
        let mut instances = tagged.clone();
        instances.extend(attached.map(|found| found.instance_id.as_str()));
        for instance in instances {
            let action = Action::new("DetachVolume").set("VolumeId", &handle).set("InstanceId", instance);
            ec2.send::<Done>(&action, &IS_DETACHED)?;
        }
        wait_until(|| {
            let Some(volume) = ec2.find_volume(&handle)? else { return Ok(Some(())) };
            let is_attached = volume.attachment_set.iter().any(|found| is_from(volume.node(found)));
            Ok((!is_attached).then_some(()))
        })?;
        // A volume has at most 50 tags, and it may visit more instances.
        for instance in tagged {
            let action = Action::new("DeleteTags").set("ResourceId.1", &handle);
            let action = action.set("Tag.1.Key", format!("{}{instance}", tags::NODE_PREFIX));
            ec2.send::<Done>(&action, &[])?;
        }
        Ok(())
    }
}

impl Ec2 {
    /// Attaches a volume with a device name that the instance does not use. EC2 requires one, although Nitro
    /// instances ignore it. Each volume tries another one first, so that concurrent calls rarely choose the
    /// same.
    fn attach(&self, handle: &str, instance: &str) -> Result<()> {
        let attached = self.volumes("attachment.instance-id", instance)?;
        let used: Vec<_> =
            attached.iter().flat_map(|found| &found.attachment_set).map(|found| &found.device).collect();
        let first = usize::from(digest::sha256(handle)[0]);
        let names =
            ('b'..='d').flat_map(|second| ('a'..='z').map(move |third| format!("/dev/xvd{second}{third}")));
        let free = names.cycle().skip(first).take(78).filter(|name| !used.contains(&name));
        let mut last = StorageError::resource_exhausted(format!("{instance} has no free device name"));
        for device in free.take(MAX_DEVICES) {
            let action = Action::new("AttachVolume").set("VolumeId", handle).set("InstanceId", instance);
            // `VolumeInUse` if another call has attached the volume, perhaps to another instance.
            match self.send::<Done>(&action.set("Device", device), &["VolumeInUse"]) {
                Err(error) if error.message.contains("already in use") => {
                    last = StorageError::unavailable(error.message);
                }
                result => return result.map(drop),
            }
        }
        Err(last)
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
