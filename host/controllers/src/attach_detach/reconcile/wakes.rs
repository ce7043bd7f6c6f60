//! What has to be looked at after a change: each thing that a decision depends on wakes what it is decided for, by the state
//! before and by the state after.

use std::{cmp::Ordering, sync::Arc};

use cofferdam_cluster::{Change, Kind, Table, cache::PodIndex};
use cofferdam_domain::{
    Attachment, AttachmentName, Claim, ClaimKey, CsiDriver, Node, NodeName, NodeVolume, Pod, Uid,
    UniqueVolume, Volume, names,
};

use super::{AttachDetach, Key, Operation, wants};

/// What of a pod matters.
type PodFacts<'a> = (&'a Uid, Option<&'a NodeName>, bool, &'a [Arc<str>], &'a [Arc<str>]);

fn pod_facts(pod: &Pod) -> PodFacts<'_> {
    (&pod.meta.uid, pod.node.as_ref(), pod.terminated, &pod.claims, &pod.ephemeral_claims)
}

/// The volumes of which two lists, both by name, say something else.
fn differing<'a>(old: &'a [NodeVolume], new: &'a [NodeVolume]) -> impl Iterator<Item = &'a UniqueVolume> {
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
    pub(super) fn subscribe(self: &Arc<Self>) {
        let cache = &self.context.cache;
        self.on(&cache.pods, Self::pod_changed);
        self.on(&cache.claims, Self::claim_changed);
        self.on(&cache.volumes, Self::volume_changed);
        self.on(&cache.attachments, Self::attachment_changed);
        self.on(&cache.nodes, Self::node_changed);
        self.on(&cache.csi_drivers, Self::driver_changed);
    }

    fn on<K: Kind>(self: &Arc<Self>, table: &Table<K>, then: fn(&Self, &Change<K>)) {
        let me = Arc::downgrade(self);
        table.subscribe(move |change| {
            if let Some(me) = me.upgrade() {
                then(&me, change);
            }
        });
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        if old.map(pod_facts) == new.map(pod_facts) {
            return;
        }
        // A pod without a node, or that was never more, holds nothing.
        let placed = || [old, new].into_iter().flatten().filter(|pod| pod.node.is_some());
        placed().flat_map(PodIndex::claims_of).for_each(|claim| self.wake_claim(&claim));
        let orphans =
            placed().filter_map(|pod| pod.node.as_ref()).flat_map(|node| self.marks.orphans_on(node));
        orphans.for_each(|orphan| self.volumes.add(Key::Orphan(orphan)));
        // Of a generic ephemeral volume the claim may be somebody else's.
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
            (&claim.meta.uid, claim.phase, &claim.volume, &claim.controller)
        }
        if change.old.as_deref().map(facts) == change.new.as_deref().map(facts) {
            return;
        }
        let named = change.old.iter().filter_map(|old| old.volume.as_ref());
        named.filter_map(|name| self.context.cache.volumes.get(name).known()).for_each(|volume| {
            self.wake_volume(&volume);
        });
        self.wake_claim(&change.key);
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
            self.wake_volume(volume);
            volume.claim_ref.iter().for_each(|reference| self.wake_claim(&reference.key));
        }
        for attachment in self.context.cache.attachments_of_volume(&change.key) {
            self.wake(&attachment);
        }
    }

    fn attachment_changed(&self, change: &Change<Attachment>) {
        if let Some(old) = &change.old
            && change.new.as_ref().is_none_or(|new| new.meta.uid != old.meta.uid)
            && let Some((driver, took)) = self.marks.forget(&old.name)
        {
            self.metrics.took(Operation::Detach, &driver, took, true);
        }
        if let (Some(old), None) = (&change.old, &change.new)
            && self.context.cache.attachments_of_node(&old.node).is_empty()
        {
            self.marks.went(&old.node, None);
        }
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && new.attach_error.is_some()
            && new.attach_error != old.attach_error
            && names::is_made_for_pods(&new.name)
        {
            let took = self.marks.attaching(&new.name, || true);
            self.metrics.took(Operation::Attach, &new.attacher, took, false);
        }
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && new.detach_error.is_some()
            && new.detach_error != old.detach_error
            && let Some(took) = self.marks.detaching(&new.name)
        {
            self.metrics.took(Operation::Detach, &new.attacher, took, false);
        }
        // What it is for never changes: of the same one, the state after leads where the state before did.
        let is_same =
            |old: &&Arc<Attachment>| change.new.as_ref().is_some_and(|new| new.meta.uid == old.meta.uid);
        let old = change.old.as_ref().filter(|old| !is_same(old));
        for attachment in old.into_iter().chain(&change.new) {
            self.wake(attachment);
        }
    }

    fn node_changed(&self, change: &Change<Node>) {
        // Before anybody decides on it. Whatever it has attached waits for what it used last.
        let waits = || !self.context.cache.attachments_of_node(&change.key).is_empty();
        let last = change.old.clone().filter(|_| change.new.is_none() && waits());
        self.marks.went(&change.key, last);
        fn state(node: &Node) -> impl PartialEq {
            (&node.meta.uid, node.managed, node.ready, node.out_of_service)
        }
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        if old.map(state) == new.map(state) {
            if self.marks.has_promised(&change.key) {
                // A write without an answer ends with the version that it depends on.
                self.nodes.add(change.key.clone());
            }
            let [old, new] = [old, new].map(|node| node.map(|node| &*node.volumes).unwrap_or_default());
            if old != new {
                self.nodes.add(change.key.clone());
                self.wake_told(&change.key, old, new);
            }
            return;
        }
        self.nodes.add(change.key.clone());
        for attachment in self.context.cache.attachments_of_node(&change.key) {
            self.wake(&attachment);
        }
        for pod in self.context.cache.pods_on(&change.key) {
            PodIndex::claims_of(&pod).for_each(|claim| self.wake_claim(&claim));
        }
    }

    /// Wakes what a write of a node's list had promised and that is not in it.
    pub(super) fn free(&self, names: impl IntoIterator<Item = AttachmentName>) {
        let there = names.into_iter().filter_map(|name| self.context.cache.attachments.get(&name).known());
        there.for_each(|attachment| self.wake(&attachment));
    }

    /// Wakes the volumes of which a node says something else now.
    fn wake_told(&self, node: &NodeName, old: &[NodeVolume], new: &[NodeVolume]) {
        for name in differing(old, new) {
            let Some((driver, handle)) = name.csi() else { continue };
            let attachment = names::attachment(&driver, &handle, node);
            if let Some(attachment) = self.context.cache.attachments.get(&attachment).known() {
                self.wake(&attachment);
            }
        }
    }

    fn driver_changed(&self, change: &Change<CsiDriver>) {
        let required =
            |driver: &Option<Arc<CsiDriver>>| driver.as_ref().is_none_or(|driver| driver.attach_required);
        let is_gone = change.new.is_none() && !required(&change.old);
        self.marks.replace(&change.key, is_gone);
        // Back after a moment, as it was: whoever looked meanwhile has seen no difference, and looks again.
        if required(&change.old) == required(&change.new) {
            return;
        }
        for handle in self.context.cache.handles_of(&change.key) {
            self.volumes.add(Key::Volume(UniqueVolume::of_csi(&change.key, &handle)));
        }
    }

    fn wake_claim(&self, claim: &ClaimKey) {
        let key = Key::Claim(claim.clone());
        // A pod keeps the volume also where its claim leads to none.
        let volumes = self.context.cache.volumes_of_claim(claim);
        volumes.iter().for_each(|volume| self.wake_volume(volume));
        match wants::bound(&self.context.cache, claim) {
            Ok(_) => {
                if self.marks.has_said(&key) {
                    self.volumes.add(key);
                }
            }
            Err(_) => self.volumes.add(key),
        }
    }

    fn wake_volume(&self, volume: &Volume) {
        if let Some(name) = wants::unique(volume) {
            self.volumes.add(Key::Volume(name));
        }
    }

    /// Wakes whatever is decided on an attachment: its volume, itself where that is unknown, its node.
    fn wake(&self, attachment: &Attachment) {
        let cache = &self.context.cache;
        let named = attachment.volume().and_then(|name| cache.volumes.get(name).known());
        if let Some(volume) = &named {
            self.wake_volume(volume);
        }
        if !names::is_made_for_pods(&attachment.name) {
            return;
        }
        self.nodes.add(attachment.node.clone());
        let is_orphan = wants::unique_of(cache, attachment).is_none();
        let is_there = !cache.attachments.get(&attachment.name).is_absent();
        self.marks
            .orphan(attachment, is_orphan && is_there)
            .into_iter()
            .for_each(|key| self.volumes.add(key));
        if is_orphan {
            self.volumes.add(Key::Orphan(attachment.name.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_compared_by_name() {
        let list = |text: &str| -> Vec<NodeVolume> {
            let of = |name: &str| NodeVolume {
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
            let found: Vec<_> = differing(&before, &after).map(UniqueVolume::as_str).collect();
            assert_eq!(found.join(" "), expected, "{old:?} {new:?}");
        }
    }
}
