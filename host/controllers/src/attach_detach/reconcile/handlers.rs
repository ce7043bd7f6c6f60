//! Event handlers: a change of an object enqueues the keys whose reconcile depends on it, both by its old and
//! by its new state. The handlers also update the in-memory state and the metrics.

use std::{cmp::Ordering, sync::Arc};

use cofferdam_cluster::{Change, cache::PodIndex};
use cofferdam_domain::{
    Claim, ClaimKey, CsiDriver, Node, NodeName, NodeVolumeStatus, Pod, Uid, UniqueVolumeName, Volume,
    VolumeAttachment, VolumeAttachmentName, names,
};

use super::{AttachDetach, Key, VolumeOperation, desired_state};
use crate::reconcile::subscribe;

/// Fields of a pod whose changes enqueue keys: UID, node, terminated, claims, and claims of generic ephemeral
/// volumes.
type RelevantPodFields<'a> = (&'a Uid, Option<&'a NodeName>, bool, &'a [Arc<str>], &'a [Arc<str>]);

fn relevant_pod_fields(pod: &Pod) -> RelevantPodFields<'_> {
    (&pod.meta.uid, pod.node.as_ref(), pod.terminated, &pod.claims, &pod.ephemeral_claims)
}

/// Volumes whose status differs between two lists, which are sorted by name.
fn changed_volumes<'a>(
    old: &'a [NodeVolumeStatus],
    new: &'a [NodeVolumeStatus],
) -> impl Iterator<Item = &'a UniqueVolumeName> {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    std::iter::from_fn(move || {
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return None,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(before), Some(after)) => before.name.cmp(&after.name),
            };
            let before = old.next_if(|_| order.is_le());
            let after = new.next_if(|_| order.is_ge());
            if before != after {
                return before.or(after).map(|volume| &volume.name);
            }
        }
    })
}

impl AttachDetach {
    pub(super) fn subscribe_to_cache(self: &Arc<Self>) {
        let cache = &self.context.cache;
        subscribe(self, &cache.pods, Self::pod_changed);
        subscribe(self, &cache.claims, Self::claim_changed);
        subscribe(self, &cache.volumes, Self::volume_changed);
        subscribe(self, &cache.attachments, Self::attachment_changed);
        subscribe(self, &cache.nodes, Self::node_changed);
        subscribe(self, &cache.csi_drivers, Self::driver_changed);
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        if old.map(relevant_pod_fields) == new.map(relevant_pod_fields) {
            return;
        }
        // A pod without a node uses no volume.
        let placed = || [old, new].into_iter().flatten().filter(|pod| pod.node.is_some());
        placed().flat_map(PodIndex::claims_of).for_each(|claim| self.enqueue_claim(&claim));
        let attachments = placed()
            .filter_map(|pod| pod.node.as_ref())
            .flat_map(|node| self.state.unresolved_attachments_on_node(node));
        attachments.for_each(|name| self.volumes.add(Key::UnresolvedAttachment(name)));
        // The claim of a generic ephemeral volume may belong to another owner.
        for pod in new.into_iter().filter(|pod| pod.node.is_some()) {
            let claims = pod.ephemeral_claims.iter();
            claims.for_each(|name| {
                let key = ClaimKey::new(pod.key.namespace.clone(), name.clone());
                self.volumes.add(Key::Claim(key));
            });
        }
    }

    fn claim_changed(&self, change: &Change<Claim>) {
        fn facts(claim: &Claim) -> impl PartialEq {
            (&claim.meta.uid, claim.phase, &claim.volume, &claim.controller_uid)
        }
        if change.old.as_deref().map(facts) == change.new.as_deref().map(facts) {
            return;
        }
        let named = change.old.iter().filter_map(|old| old.volume.as_ref());
        named.filter_map(|name| self.context.cache.volumes.get(name).into_object()).for_each(|volume| {
            self.enqueue_volume(&volume);
        });
        self.enqueue_claim(&change.key);
        self.volumes.add(Key::Claim(change.key.clone()));
    }

    fn volume_changed(&self, change: &Change<Volume>) {
        fn facts(volume: &Volume) -> impl PartialEq {
            let csi = volume.csi.as_ref().map(|csi| (&csi.driver, &csi.handle));
            (&volume.meta.uid, csi, volume.access_modes, &volume.claim_ref)
        }
        if change.old.as_deref().map(facts) == change.new.as_deref().map(facts) {
            return;
        }
        for volume in [&change.old, &change.new].into_iter().flatten() {
            self.enqueue_volume(volume);
            volume.claim_ref.iter().for_each(|reference| self.enqueue_claim(&reference.key));
        }
        for attachment in self.context.cache.attachments_of_volume(&change.key) {
            self.enqueue_attachment(&attachment);
        }
    }

    fn attachment_changed(&self, change: &Change<VolumeAttachment>) {
        if let Some(old) = &change.old
            && change.new.as_ref().is_none_or(|new| new.meta.uid != old.meta.uid)
            && let Some((driver, took)) = self.state.remove(&old.name)
        {
            self.context.metrics.observe_operation(VolumeOperation::Detach, &driver, took, true);
        }
        if let (Some(old), None) = (&change.old, &change.new)
            && self.context.cache.attachments_of_node(&old.node).is_empty()
        {
            self.state.set_deleted_node(&old.node, None);
        }
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && new.attach_error.is_some()
            && new.attach_error != old.attach_error
            && names::is_pod_attachment(&new.name)
        {
            let took = self.state.track_attach(&new.name, || true);
            self.context.metrics.observe_operation(VolumeOperation::Attach, &new.attacher, took, false);
        }
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && new.detach_error.is_some()
            && new.detach_error != old.detach_error
            && let Some(took) = self.state.detaching_for(&new.name)
        {
            self.context.metrics.observe_operation(VolumeOperation::Detach, &new.attacher, took, false);
        }
        // The volume and node of an attachment are immutable: the new state leads to the same keys as the old
        // one.
        let is_same = |old: &&Arc<VolumeAttachment>| {
            change.new.as_ref().is_some_and(|new| new.meta.uid == old.meta.uid)
        };
        let old = change.old.as_ref().filter(|old| !is_same(old));
        for attachment in old.into_iter().chain(&change.new) {
            self.enqueue_attachment(attachment);
        }
    }

    fn node_changed(&self, change: &Change<Node>) {
        // First: the decisions below need the volumes that a deleted Node was using.
        let waits = || !self.context.cache.attachments_of_node(&change.key).is_empty();
        let last = change.old.clone().filter(|_| change.new.is_none() && waits());
        self.state.set_deleted_node(&change.key, last);
        fn state(node: &Node) -> impl PartialEq {
            (&node.meta.uid, node.controller_managed, node.ready, node.out_of_service)
        }
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        if old.map(state) == new.map(state) {
            if self.state.has_pending_update(&change.key) {
                // An update without a response cannot take effect on a newer version.
                self.nodes.add(change.key.clone());
            }
            let [old, new] = [old, new].map(|node| node.map(|node| &*node.volumes).unwrap_or_default());
            if old != new {
                self.nodes.add(change.key.clone());
                self.enqueue_changed_volumes(&change.key, old, new);
            }
            return;
        }
        self.nodes.add(change.key.clone());
        for attachment in self.context.cache.attachments_of_node(&change.key) {
            self.enqueue_attachment(&attachment);
        }
        for pod in self.context.cache.pods_on_node(&change.key) {
            PodIndex::claims_of(&pod).for_each(|claim| self.enqueue_claim(&claim));
        }
    }

    /// Enqueues the attachments of these names, except those that no longer exist or cannot be decoded.
    pub(super) fn enqueue_attachments(&self, names: impl IntoIterator<Item = VolumeAttachmentName>) {
        let there =
            names.into_iter().filter_map(|name| self.context.cache.attachments.get(&name).into_object());
        there.for_each(|attachment| self.enqueue_attachment(&attachment));
    }

    /// Enqueues the volumes whose status on a Node has changed, if they have a VolumeAttachment for the Node.
    fn enqueue_changed_volumes(&self, node: &NodeName, old: &[NodeVolumeStatus], new: &[NodeVolumeStatus]) {
        for name in changed_volumes(old, new) {
            let Some((driver, handle)) = name.parse_csi() else { continue };
            let attachment = names::volume_attachment_name(&driver, &handle, node);
            if let Some(attachment) = self.context.cache.attachments.get(&attachment).into_object() {
                self.enqueue_attachment(&attachment);
            }
        }
    }

    fn driver_changed(&self, change: &Change<CsiDriver>) {
        let required =
            |driver: &Option<Arc<CsiDriver>>| driver.as_ref().is_none_or(|driver| driver.attach_required);
        let is_gone = change.new.is_none() && !required(&change.old);
        self.state.set_csi_driver_deleted(&change.key, is_gone);
        // Nothing is attached within the grace period after the deletion of a CSIDriver with
        // `attachRequired: false`: `is_gone` starts the period, and the reconciles take it into account.
        if required(&change.old) == required(&change.new) {
            return;
        }
        for handle in self.context.cache.handles_of_driver(&change.key) {
            self.volumes.add(Key::Volume(UniqueVolumeName::from_csi(&change.key, &handle)));
        }
    }

    fn enqueue_claim(&self, claim: &ClaimKey) {
        let key = Key::Claim(claim.clone());
        // By `spec.claimRef`: a pod keeps a volume attached even if its claim is no longer bound to the
        // volume.
        let volumes = self.context.cache.volumes_of_claim(claim);
        volumes.iter().for_each(|volume| self.enqueue_volume(volume));
        match desired_state::bound_claim_and_volume(&self.context.cache, claim) {
            Ok(_) => {
                if self.state.has_failures(&key) {
                    self.volumes.add(key);
                }
            }
            Err(_) => self.volumes.add(key),
        }
    }

    fn enqueue_volume(&self, volume: &Volume) {
        if let Some(name) = desired_state::unique_volume(volume) {
            self.volumes.add(Key::Volume(name));
        }
    }

    /// Enqueues the volume of the VolumeAttachment's PersistentVolume. If the VolumeAttachment has the form
    /// of name that is used for pods (`names::is_pod_attachment`), also enqueues its Node and the keys that
    /// it no longer blocks. If the cache does not show its volume either, also enqueues the VolumeAttachment
    /// itself.
    fn enqueue_attachment(&self, attachment: &VolumeAttachment) {
        let cache = &self.context.cache;
        let named = attachment.volume().and_then(|name| cache.volumes.get(name).into_object());
        if let Some(volume) = &named {
            self.enqueue_volume(volume);
        }
        if !names::is_pod_attachment(&attachment.name) {
            return;
        }
        self.nodes.add(attachment.node.clone());
        let is_unresolved = desired_state::unique_volume_of_attachment(cache, attachment).is_none();
        let is_there = !cache.attachments.get(&attachment.name).is_missing();
        self.state
            .set_unresolved_attachment(attachment, is_unresolved && is_there)
            .into_iter()
            .for_each(|key| self.volumes.add(key));
        if is_unresolved {
            self.volumes.add(Key::UnresolvedAttachment(attachment.name.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_volumes_compares_node_volumes_by_name() {
        let list = |text: &str| -> Vec<NodeVolumeStatus> {
            let of = |name: &str| NodeVolumeStatus {
                name: name.to_lowercase().into(),
                attached: true,
                device_path: Box::default(),
                in_use: name.chars().all(char::is_uppercase),
            };
            text.split_whitespace().map(of).collect()
        };
        for (old, new, expected) in [
            ("", "", ""),
            ("a b", "a b", ""),
            ("", "a b", "a b"),
            ("a b", "", "a b"),
            ("a b c", "a B c", "b"),
            ("b c e", "a c D f", "a b d e f"),
        ] {
            let (before, after) = (list(old), list(new));
            let found: Vec<_> = changed_volumes(&before, &after).map(UniqueVolumeName::as_str).collect();
            assert_eq!(found.join(" "), expected, "{old:?} {new:?}");
        }
    }
}
