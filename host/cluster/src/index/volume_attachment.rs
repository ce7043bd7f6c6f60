//! Index of VolumeAttachments.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use cofferdam_domain::{NodeName, VolumeAttachment, VolumeName};

use super::{
    Index, Indexed,
    key_set::{KeySet as _, remove_member},
    object_table::ByKey,
    secondary_index::{SecondaryIndex, secondary_key},
};

impl Indexed for VolumeAttachment {
    type Index = VolumeAttachmentIndex;
}

secondary_key! {
    /// `spec.source.persistentVolumeName`
    AttachedVolume(attachment: VolumeAttachment) -> &'a VolumeName { attachment.volume() }
}

/// VolumeAttachments by PersistentVolume and by node. Those with an inline or invalid `spec.source` are only
/// indexed by node.
#[derive(Debug, Default)]
pub struct VolumeAttachmentIndex {
    pub(crate) by_volume: SecondaryIndex<AttachedVolume>,
    pub(crate) by_node: HashMap<NodeName, BTreeSet<ByKey<VolumeAttachment>>>,
}

impl Index<VolumeAttachment> for VolumeAttachmentIndex {
    fn insert(&mut self, attachment: &Arc<VolumeAttachment>) {
        self.by_volume.insert(attachment);
        let node = attachment.node.clone();
        self.by_node.entry(node).or_default().insert_member(ByKey(Arc::clone(attachment)));
    }

    fn remove(&mut self, attachment: &Arc<VolumeAttachment>) {
        self.by_volume.remove(attachment);
        remove_member(&mut self.by_node, &attachment.node, &ByKey(Arc::clone(attachment)));
    }
}
