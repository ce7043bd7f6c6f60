//! Event handlers: a change of an object enqueues the attachments and volumes whose reconcile depends on it.

use std::sync::Arc;

use cofferdam_cluster::Change;
use cofferdam_domain::{CsiNode, Volume, VolumeAttachment};

use super::{Attacher, ConfirmationError, rules};
use crate::reconcile::subscribe;

impl Attacher {
    pub(super) fn subscribe_to_cache(self: &Arc<Self>) {
        let cache = &self.context.cache;
        subscribe(self, &cache.attachments, Self::attachment_changed);
        subscribe(self, &cache.volumes, Self::volume_changed);
        subscribe(self, &cache.csi_nodes, Self::csi_node_changed);
    }

    fn attachment_changed(&self, change: &Change<VolumeAttachment>) {
        if let Some(old) = &change.old
            && change.new.as_ref().is_none_or(|new| new.meta.uid != old.meta.uid)
        {
            self.clear_force_sync(&old.name);
            self.clear_listings(&old.name);
            self.context.metrics.remove_pending(&old.attacher, &old.name);
            // It may have been the last attachment of a volume that is being deleted.
            old.volume().into_iter().for_each(|volume| self.volumes.add(volume.clone()));
        }
        let Some(new) = &change.new else { return };
        if !new.meta.deleting
            && self.queues.contains_key(&new.attacher)
            && rules::is_confirmation_changed(change.old.as_deref(), new)
        {
            self.emit_confirmation_error(new, &ConfirmationError::NotDeleting);
        }
        if rules::is_relevant_change(change.old.as_deref(), new) {
            self.enqueue(new);
        }
    }

    fn volume_changed(&self, change: &Change<Volume>) {
        let Some(new) = &change.new else { return };
        if new.meta.deleting {
            self.volumes.add(change.key.clone());
        }
        let other = |old: &Arc<Volume>| {
            (&old.meta.uid, old.access_modes, &old.csi) != (&new.meta.uid, new.access_modes, &new.csi)
        };
        if change.old.as_ref().is_none_or(other) {
            let attachments = self.context.cache.attachments_of_volume(&change.key);
            self.enqueue_unfinished(attachments.iter());
        }
    }

    fn csi_node_changed(&self, change: &Change<CsiNode>) {
        let id = |node: &Option<Arc<CsiNode>>, attachment: &VolumeAttachment| {
            node.as_ref().and_then(|node| node.node_ids.get(&attachment.attacher).cloned())
        };
        let attachments = self.context.cache.attachments_of_node(&change.key);
        let other = attachments
            .iter()
            .filter(|attachment| id(&change.old, attachment) != id(&change.new, attachment));
        self.enqueue_unfinished(other);
    }

    /// Enqueues those of the attachments that are not attached yet or are being deleted: their attach or
    /// detach may have waited for another object.
    fn enqueue_unfinished<'a>(&self, attachments: impl Iterator<Item = &'a Arc<VolumeAttachment>>) {
        attachments
            .filter(|attachment| attachment.meta.deleting || !attachment.attached)
            .for_each(|attachment| self.enqueue(attachment));
    }
}
