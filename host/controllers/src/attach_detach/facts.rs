//! What is decided on, out of the cache and the marks.

use std::collections::{BTreeSet, HashSet};

use cofferdam_cluster::{Cache, Seen};
use cofferdam_domain::{
    Attachment, AttachmentName, DriverName, Node, NodeName, NodeVolume, UniqueVolume, VolumeHandle, names,
};

use super::{
    marks::{Key, Marks},
    rules::{Facts, Held, Machine, MadeFor, Want},
    wants,
};

/// What a run for a volume has seen so far.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Attachments whose nodes were looked at past the cache.
    pub(super) looked: HashSet<AttachmentName>,
    /// Nodes for which the API has refused an effect.
    pub(super) refused: BTreeSet<NodeName>,
}

/// Where facts come from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub(super) cache: &'a Cache,
    pub(super) marks: &'a Marks,
    pub(super) force_on_timeout: bool,
}

impl Sources<'_> {
    /// The facts of a volume, or of an attachment without one; absent where there is nothing that could be decided.
    pub(super) fn facts(&self, key: &Key, run: &Run) -> Option<Facts> {
        match key {
            Key::Volume(name) => {
                let (driver, handle) = name.csi()?;
                Some(self.of_volume(name, driver, handle, run))
            }
            Key::Orphan(name) => {
                let attachment = self.cache.attachments.get(name).known()?;
                self.of_orphan(&attachment, run)
            }
            Key::Claim(_) => None,
        }
    }

    fn of_volume(&self, name: &UniqueVolume, driver: DriverName, handle: VolumeHandle, run: &Run) -> Facts {
        let (wants, keepers) = match self.is_attached(&driver) {
            true => {
                (wants::wants(self.cache, &driver, &handle), wants::keepers(self.cache, &driver, &handle))
            }
            false => Default::default(),
        };
        let mut held = Vec::new();
        for volume in self.cache.volumes_with_handle(&driver, &handle) {
            for attachment in self.cache.attachments_of_volume(&volume.name) {
                let ours = wants::unique_of(self.cache, &attachment).as_ref() == Some(name);
                let made_for = if ours { MadeFor::It } else { MadeFor::Others };
                let wanted = ours && keepers.contains(&attachment.node);
                held.push(self.held(&attachment, Some(name), made_for, wanted, run));
            }
        }
        // What was made for it by way of an object that is no more holds it all the same.
        for orphan in self.marks.orphans_of(name, &driver, &handle) {
            let Some(attachment) = self.cache.attachments.get(&orphan).known() else { continue };
            if attachment.attacher == driver && !held.iter().any(|one: &Held| one.name == orphan) {
                let goes = self.is_orphan(&attachment);
                let made_for = if goes { MadeFor::Nobody } else { MadeFor::Namesake };
                let wanted = goes && keepers.contains(&attachment.node);
                held.push(self.held(&attachment, Some(name), made_for, wanted, run));
            }
        }
        for want in &wants {
            let name = names::attachment(&driver, &handle, &want.node);
            let known = held.iter().any(|one: &Held| one.node == want.node && one.name == name);
            if !known && let Seen::Opaque(_) = self.cache.attachments.get(&name) {
                held.push(Held::unreadable(name, want));
            }
        }
        let registered =
            |want: &&Want| self.cache.csi_nodes.get(&want.node).known().is_some_and(|node| node.has(&driver));
        let unregistered = wants.iter().filter(|want| !registered(want)).map(|want| want.node.clone());
        Facts {
            unregistered: unregistered.collect(),
            driver,
            handle: Some(handle),
            doubt: self.marks.doubted_on(&Key::Volume(name.clone())),
            wants,
            held,
            refused: run.refused.clone(),
            force_on_timeout: self.force_on_timeout,
        }
    }

    fn of_orphan(&self, attachment: &Attachment, run: &Run) -> Option<Facts> {
        if !self.is_orphan(attachment) {
            return None;
        }
        let held = self.orphaned(attachment, run);
        Some(Facts {
            driver: attachment.attacher.clone(),
            handle: None,
            doubt: None,
            wants: Vec::new(),
            held: vec![held],
            unregistered: Vec::new(),
            refused: run.refused.clone(),
            force_on_timeout: self.force_on_timeout,
        })
    }

    /// Whether an attachment was made for pods, and its volume is no more, or another one now. One that cannot be read is there; and
    /// what a driver took over from an in-tree plugin has no name that could be compared.
    pub(super) fn is_orphan(&self, attachment: &Attachment) -> bool {
        let Some(name) = attachment.volume().filter(|_| names::is_made_for_pods(&attachment.name)) else {
            return false;
        };
        match self.cache.volumes.get(name) {
            Seen::Absent => true,
            Seen::Opaque(_) => false,
            Seen::Known(volume) => volume.csi.is_some() && wants::unique_of(self.cache, attachment).is_none(),
        }
    }

    /// Whether volumes of a driver have to be attached. Whose CSIDriver said no until a moment ago is replaced.
    fn is_attached(&self, driver: &DriverName) -> bool {
        wants::is_attached(self.cache, driver) && self.marks.replaced(driver).is_none()
    }

    fn orphaned(&self, attachment: &Attachment, run: &Run) -> Held {
        let wanted = self.is_attached(&attachment.attacher) && wants::is_kept(self.cache, attachment);
        self.held(attachment, None, MadeFor::Nobody, wanted, run)
    }

    /// An attachment as one of its volume.
    pub(super) fn held(
        &self,
        attachment: &Attachment,
        volume: Option<&UniqueVolume>,
        made_for: MadeFor,
        wanted: bool,
        run: &Run,
    ) -> Held {
        let Attachment { name, node, .. } = attachment;
        let machine = wants::machine(self.cache, node);
        let known = self.cache.nodes.get(node).known();
        let told = known.as_ref().and_then(|node| entry(node, attachment, volume));
        let version = known.as_ref().map(|node| node.meta.version).unwrap_or_default();
        let ours = made_for.is_ours();
        let waits = wanted && !attachment.attached && !attachment.meta.deleting;
        let is_there = || !self.cache.attachments.get(name).is_absent();
        let in_use = match machine {
            // What it said last stands: its kubelet may live. Where nobody has heard that, it may use everything.
            Machine::Gone => self
                .marks
                .former(node)
                .is_none_or(|former| entry(&former, attachment, volume).is_some_and(|told| told.in_use)),
            Machine::Unreadable | Machine::Unmanaged | Machine::There { .. } => {
                told.is_some_and(|told| told.in_use)
            }
        };
        Held {
            name: name.clone(),
            uid: attachment.meta.uid.clone(),
            node: node.clone(),
            machine,
            made_for,
            attached: attachment.attached,
            deleting: attachment.meta.deleting,
            attach_error: attachment.attach_error.as_ref().map(|error| error.message.clone()),
            detach_error: attachment.detach_error.as_ref().map(|error| error.message.clone()),
            wanted,
            unwanted_for: if ours { self.marks.unwanted(name, wanted, is_there) } else { Default::default() },
            attaching_for: if waits { self.marks.attaching(name, is_there) } else { Default::default() },
            listed: known.is_some()
                && (told.is_some_and(|told| told.attached) || self.marks.is_promised(node, version, name)),
            in_use,
            leaving: self.marks.leaving(name),
            looked: run.looked.contains(name),
        }
    }

    /// An attachment that was made for pods, with all that is known of its volume.
    pub(super) fn alone(&self, attachment: &Attachment) -> Option<(Held, Option<UniqueVolume>)> {
        let run = Run::default();
        if let Some(name) = wants::unique_of(self.cache, attachment) {
            let (driver, handle) = name.csi()?;
            let wanted = self.is_attached(&driver)
                && wants::keepers(self.cache, &driver, &handle).contains(&attachment.node);
            return Some((self.held(attachment, Some(&name), MadeFor::It, wanted, &run), Some(name)));
        }
        self.is_orphan(attachment).then(|| (self.orphaned(attachment, &run), None))
    }
}

/// What a node says of an attachment's volume.
pub(super) fn entry<'n>(
    node: &'n Node,
    attachment: &Attachment,
    volume: Option<&UniqueVolume>,
) -> Option<&'n NodeVolume> {
    match volume {
        Some(name) => node.volume(name),
        None => node.volumes.iter().find(|one| {
            one.name.csi().is_some_and(|(driver, handle)| {
                driver == attachment.attacher
                    && names::attachment(&driver, &handle, &node.name) == attachment.name
            })
        }),
    }
}
