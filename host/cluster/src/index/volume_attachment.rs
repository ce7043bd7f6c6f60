//! Index of VolumeAttachments.

use std::collections::{BTreeSet, HashMap};

use cofferdam_domain::{NodeName, VolumeAttachment, VolumeAttachmentName, VolumeName};

use super::{
    Index, Indexed,
    key_set::{KeySet as _, remove_member},
    small_set::SmallSet,
};

impl Indexed for VolumeAttachment {
    type Index = VolumeAttachmentIndex;
}

/// VolumeAttachments by PersistentVolume and by node. Those with an inline or invalid `spec.source` are only
/// indexed by node.
#[derive(Debug, Default)]
pub struct VolumeAttachmentIndex {
    pub(crate) by_volume: HashMap<VolumeName, SmallSet<VolumeAttachmentName>>,
    pub(crate) by_node: HashMap<NodeName, BTreeSet<VolumeAttachmentName>>,
}

impl Index<VolumeAttachment> for VolumeAttachmentIndex {
    fn insert(&mut self, attachment: &VolumeAttachment) {
        if let Some(volume) = attachment.volume() {
            self.by_volume.entry(volume.clone()).or_default().insert_member(attachment.name.clone());
        }
        self.by_node.entry(attachment.node.clone()).or_default().insert_member(attachment.name.clone());
    }

    fn remove(&mut self, attachment: &VolumeAttachment) {
        if let Some(volume) = attachment.volume() {
            remove_member(&mut self.by_volume, volume, &attachment.name);
        }
        remove_member(&mut self.by_node, &attachment.node, &attachment.name);
    }
}
