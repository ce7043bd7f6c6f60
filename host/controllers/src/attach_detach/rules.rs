//! What is attached, what is detached, and when. Source: kube-controller-manager's attach-detach controller.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cofferdam_domain::{AccessMode, AttachmentName, DriverName, NodeName, Pod, Uid, Volume, VolumeHandle};

use crate::note::Note;

/// How long a node that is not ready keeps a volume that it says it uses (`maxWaitForUnmountDuration`).
pub const FORCE_AFTER: Duration = Duration::from_secs(360);
/// How long an attachment may take before its pods are told (kubelet's and Kubernetes' own wait for CSI).
pub const ATTACH_PATIENCE: Duration = Duration::from_secs(120);

const FAILED: &str = "FailedAttachVolume";

/// What is known of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// There is no such Node.
    Gone,
    /// There is, and it cannot be decoded: hands off.
    Unreadable,
    /// Its kubelet attaches by itself.
    Unmanaged,
    /// It is ours to attach to.
    There {
        /// Its condition `Ready` is true.
        ready: bool,
        /// A person says that it is down for good.
        out_of_service: bool,
    },
}

/// A node whose pods use the volume.
#[derive(Clone, Debug)]
pub struct Want {
    /// Which node.
    pub node: NodeName,
    /// What is known of it.
    pub machine: Machine,
    /// The object by which they use it.
    pub volume: Arc<Volume>,
    /// The pods, at least one.
    pub pods: Vec<Arc<Pod>>,
}

impl Want {
    /// Since when it is wanted there, and by whom first: the order of those who want it.
    fn order(&self) -> (i64, &NodeName) {
        let created = self.pods.iter().map(|pod| pod.meta.created_ms).min();
        (created.unwrap_or(i64::MAX), &self.node)
    }
}

/// How far a detachment is that has begun: the node is no longer told of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Nothing was asked of the API: it may be called off.
    Begun,
    /// The object's deletion was asked for, with an open outcome: it is carried through.
    Asked,
}

/// What a VolumeAttachment was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadeFor {
    /// For pods, by us or by Kubernetes, and for this volume.
    It,
    /// For pods, by way of an object that is no more, or is another volume now.
    Nobody,
    /// Something else, and it has the name that one for pods on its node gets.
    Namesake,
    /// Something else: it only holds the volume.
    Others,
}

impl MadeFor {
    /// Whether it was made for pods: others are nobody's business here.
    pub const fn is_ours(self) -> bool {
        matches!(self, Self::It | Self::Nobody)
    }
}

/// A VolumeAttachment of the volume.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its name.
    pub name: AttachmentName,
    /// Its uid.
    pub uid: Uid,
    /// The node that it is for.
    pub node: NodeName,
    /// What is known of that.
    pub machine: Machine,
    /// What it was made for.
    pub made_for: MadeFor,
    /// `status.attached`
    pub attached: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Message of `status.attachError`.
    pub attach_error: Option<String>,
    /// Message of `status.detachError`.
    pub detach_error: Option<String>,
    /// Whether a pod on the node names the volume's claim, whatever the claim has come to.
    pub wanted: bool,
    /// For how long no pod there has.
    pub unwanted_for: Duration,
    /// For how long it has not been attached, though wanted.
    pub attaching_for: Duration,
    /// Whether the node is told that it is attached, or may be by a write that is under way.
    pub listed: bool,
    /// Whether the node says that it uses the volume; of one that is gone, whether it may.
    pub in_use: bool,
    /// How far its detachment is.
    pub leaving: Option<Leaving>,
    /// Whether the node was looked at past the cache since that began.
    pub looked: bool,
}

impl Held {
    /// One of this name that cannot be read.
    pub fn unreadable(name: AttachmentName, want: &Want) -> Self {
        Self {
            name,
            uid: Uid::from(""),
            node: want.node.clone(),
            machine: want.machine,
            made_for: MadeFor::Namesake,
            attached: false,
            deleting: false,
            attach_error: None,
            detach_error: None,
            wanted: false,
            unwanted_for: Duration::ZERO,
            attaching_for: Duration::ZERO,
            listed: false,
            in_use: false,
            leaving: None,
            looked: false,
        }
    }
}

/// Everything that is decided on.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The driver.
    pub driver: DriverName,
    /// Its volume; absent where nobody knows any more which one it was.
    pub handle: Option<VolumeHandle>,
    /// Nodes whose pods use it, by name.
    pub wants: Vec<Want>,
    /// Its VolumeAttachments, whoever's.
    pub held: Vec<Held>,
    /// The node that an attachment was asked for, without an answer, and for how long it may still be made: no other node gets one
    /// before.
    pub doubt: Option<(NodeName, Duration)>,
    /// Nodes among those that want it whose CSINode does not name the driver.
    pub unregistered: Vec<NodeName>,
    /// Nodes for which the API has refused an effect in this run: the others have their turn.
    pub refused: BTreeSet<NodeName>,
    /// Whether volumes leave nodes by force when their time is over.
    pub force_on_timeout: bool,
}

/// Why a volume leaves a node that may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Force {
    /// The node is not ready, and its time is over.
    Timeout,
    /// A person says that it is down for good.
    OutOfService,
    /// There is no such Node any more.
    NodeGone,
}

impl Force {
    /// Kubernetes' name of the reason in metrics; the last one is ours.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::OutOfService => "out-of-service",
            Self::NodeGone => "node-gone",
        }
    }
}

/// Whether a volume leaves a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// No.
    Stays,
    /// Once the node has unmounted it, or after this time.
    Waits(Option<Duration>),
    /// Yes; why, where the node may still use it.
    Goes(Option<Force>),
}

/// The next effect.
#[derive(Clone, Debug)]
pub enum Step {
    /// Nothing.
    Rest,
    /// The node may no longer be told of the volume.
    Begin(Held),
    /// It may be told again.
    CallOff(Held),
    /// The node has to be looked at past the cache.
    Look(Held),
    /// The attachment is deleted.
    Detach(Held, Option<Force>),
    /// Attachments are made: one, or for a volume that many nodes may have all that are wanted.
    Attach(Vec<Want>),
}

/// Whether a volume leaves a node, and why not.
pub fn leave(held: &Held, force_on_timeout: bool) -> Leave {
    if !held.made_for.is_ours() || held.deleting {
        return Leave::Stays;
    }
    if held.leaving == Some(Leaving::Asked) {
        return Leave::Goes(None);
    }
    if held.wanted && held.made_for == MadeFor::It {
        return Leave::Stays;
    }
    let (ready, force) = match held.machine {
        Machine::Unreadable | Machine::Unmanaged => return Leave::Stays,
        Machine::There { out_of_service: true, .. } if !held.wanted => {
            return Leave::Goes(Some(Force::OutOfService));
        }
        Machine::There { ready, .. } => (ready, Force::Timeout),
        Machine::Gone => (false, Force::NodeGone),
    };
    match held.in_use {
        false => Leave::Goes(None),
        // Only what no pod wants is taken by force.
        true if ready || held.wanted || !force_on_timeout => Leave::Waits(None),
        true => match FORCE_AFTER.checked_sub(held.unwanted_for).filter(|left| !left.is_zero()) {
            Some(left) => Leave::Waits(Some(left)),
            None => Leave::Goes(Some(force)),
        },
    }
}

/// Whether a node shall be told that a volume is attached to it.
pub fn is_reported(held: &Held, force_on_timeout: bool) -> bool {
    let stays = match leave(held, force_on_timeout) {
        Leave::Stays | Leave::Waits(_) => true,
        Leave::Goes(_) => false,
    };
    stays && held.made_for.is_ours() && held.attached && !held.deleting && held.leaving.is_none()
}

/// Whether a volume may be attached to one node only.
pub fn is_exclusive(volume: &Volume) -> bool {
    let mut shared = [AccessMode::ReadOnlyMany, AccessMode::ReadWriteMany].into_iter();
    !volume.access_modes.is_empty()
        && !shared.any(|mode| volume.access_modes.contains([mode].into_iter().collect()))
}

/// The attachments of a volume by their nodes.
struct Holders<'a> {
    own: HashMap<&'a NodeName, &'a Held>,
    /// Those that have the name of the one that their node wants, and are not it.
    namesakes: HashMap<&'a NodeName, &'a Held>,
    nodes: HashSet<&'a NodeName>,
    /// Whether the volume may be on one node only.
    exclusive: bool,
}

impl Holders<'_> {
    /// Whether an attachment elsewhere keeps the volume from a node. One whose outcome is open does, too.
    fn keep_from(&self, node: &NodeName) -> bool {
        self.exclusive && self.nodes.len() > usize::from(self.nodes.contains(node))
    }

    fn is_free(&self, node: &NodeName) -> bool {
        !self.own.contains_key(node) && !self.namesakes.contains_key(node) && !self.keep_from(node)
    }
}

impl Facts {
    fn holders(&self) -> Holders<'_> {
        let is = |made_for: fn(MadeFor) -> bool| {
            let held = self.held.iter().filter(move |held| made_for(held.made_for));
            // Of two the first one counts.
            held.rev().map(|held| (&held.node, held)).collect()
        };
        Holders {
            own: is(MadeFor::is_ours),
            namesakes: is(|made_for| made_for == MadeFor::Namesake),
            nodes: self.held.iter().map(|held| &held.node).collect(),
            exclusive: self.wants.iter().any(|want| is_exclusive(&want.volume)),
        }
    }

    /// Wants of nodes that are ours to attach to.
    fn attachable(&self) -> impl Iterator<Item = &Want> {
        self.wants.iter().filter(|want| matches!(want.machine, Machine::There { .. }))
    }

    /// The next effect. Detaching comes first: a pod that moves frees its volume for where it went.
    pub fn next(&self) -> Step {
        for held in self.held.iter().filter(|held| !self.refused.contains(&held.node)) {
            let goes = match leave(held, self.force_on_timeout) {
                Leave::Goes(force) if !held.listed || held.leaving == Some(Leaving::Asked) => Some(force),
                Leave::Goes(_) | Leave::Stays | Leave::Waits(_) => None,
            };
            match (goes, held.leaving) {
                (None, None) => {}
                (None, Some(_)) if held.deleting => {}
                (None, Some(_)) => return Step::CallOff(held.clone()),
                (Some(_), None) => return Step::Begin(held.clone()),
                (Some(_), Some(Leaving::Begun)) if !held.looked => return Step::Look(held.clone()),
                (Some(force), Some(_)) => return Step::Detach(held.clone(), force),
            }
        }
        let holders = self.holders();
        let asked = |want: &&Want| self.doubt.as_ref().is_none_or(|(node, _)| *node == want.node);
        let mut free: Vec<&Want> =
            self.attachable().filter(|want| holders.is_free(&want.node)).filter(asked).collect();
        free.sort_by(|a, b| a.order().cmp(&b.order()));
        if holders.exclusive {
            free.truncate(1);
        }
        free.retain(|want| !self.refused.contains(&want.node));
        if free.is_empty() { Step::Rest } else { Step::Attach(free.into_iter().cloned().collect()) }
    }

    /// Nodes that must no longer be told of the volume before it can leave them.
    pub fn to_be_told(&self) -> impl Iterator<Item = &NodeName> {
        let told = |held: &&Held| held.listed != is_reported(held, self.force_on_timeout);
        self.held.iter().filter(|held| held.made_for.is_ours()).filter(told).map(|held| &held.node)
    }

    /// When to look again, without a change of anything.
    pub fn patience(&self) -> Option<Duration> {
        let forced = self.held.iter().filter_map(|held| match leave(held, self.force_on_timeout) {
            Leave::Waits(left) => left,
            Leave::Stays | Leave::Goes(_) => None,
        });
        let holders = self.holders();
        let attaching =
            self.attachable().filter_map(|want| holders.own.get(&want.node)).filter(|held| !held.attached);
        let attaching = attaching.filter_map(|held| ATTACH_PATIENCE.checked_sub(held.attaching_for));
        let doubt = self.doubt.iter().map(|(_, left)| *left);
        forced.chain(attaching.filter(|left| !left.is_zero())).chain(doubt).min()
    }

    /// What keeps pods waiting.
    pub fn complaints(&self) -> Vec<(Arc<Pod>, Note)> {
        let holders = self.holders();
        let mut complaints = Vec::new();
        for want in self.attachable() {
            let volume = &want.volume.name;
            match holders.own.get(&want.node) {
                Some(held) => {
                    if let Some(problem) = self.problem(held) {
                        let text = format!("AttachVolume.Attach failed for volume \"{volume}\" : {problem}");
                        let note = Note::warning(FAILED, text);
                        complaints.extend(want.pods.iter().map(|pod| (Arc::clone(pod), note.clone())));
                    }
                }
                None if holders.keep_from(&want.node) => {
                    for pod in &want.pods {
                        let text =
                            format!("Multi-Attach error for volume \"{volume}\" {}", self.users(want, pod));
                        complaints.push((Arc::clone(pod), Note::warning(FAILED, text)));
                    }
                }
                None => {
                    if let Some(namesake) = holders.namesakes.get(&want.node) {
                        let text = format!(
                            "AttachVolume.Attach failed for volume \"{volume}\" : VolumeAttachment {} is there, and not for it",
                            namesake.name
                        );
                        let note = Note::warning(FAILED, text);
                        complaints.extend(want.pods.iter().map(|pod| (Arc::clone(pod), note.clone())));
                    }
                }
            }
        }
        complaints
    }

    /// Why an attachment is not there although it is wanted.
    fn problem(&self, held: &Held) -> Option<String> {
        if held.deleting {
            let error = held.detach_error.as_ref()?;
            return Some(format!("volume attachment is being deleted: {error}"));
        }
        if held.attached {
            return None;
        }
        if held.attach_error.is_some() {
            return held.attach_error.clone();
        }
        if held.attaching_for < ATTACH_PATIENCE {
            return None;
        }
        let (driver, node) = (&self.driver, &held.node);
        let handle = self.handle.as_ref().map(VolumeHandle::as_str).unwrap_or_default();
        let mut text = format!(
            "timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}"
        );
        if self.unregistered.contains(node) {
            text.push_str(&format!("; CSINode {node} does not name the driver"));
        }
        Some(text)
    }

    /// Who has the volume that a pod waits for. Names of other namespaces are none of its business.
    fn users(&self, want: &Want, pod: &Pod) -> String {
        let others = self.wants.iter().filter(|other| other.node != want.node);
        let holds = |other: &&Want| self.held.iter().any(|held| held.node == other.node);
        let (near, far): (Vec<&Arc<Pod>>, Vec<_>) = others
            .filter(holds)
            .flat_map(|other| &other.pods)
            .partition(|other| other.key.namespace == pod.key.namespace);
        if near.is_empty() && far.is_empty() {
            return "Volume is already exclusively attached to one node and can't be attached to another"
                .to_owned();
        }
        if near.is_empty() {
            return format!("Volume is already used by {} pod(s) in different namespaces", far.len());
        }
        let names: Vec<&str> = near.iter().map(|pod| &*pod.key.name).collect();
        let mut text = format!("Volume is already used by pod(s) {}", names.join(", "));
        if !far.is_empty() {
            text.push_str(&format!(" and {} pod(s) in different namespaces", far.len()));
        }
        text
    }
}

/// The event of a volume that has been attached. Kubernetes ends it with a blank, too.
pub fn succeeded(volume: &Volume) -> Note {
    let text = format!("AttachVolume.Attach succeeded for volume \"{}\" ", volume.name);
    Note::normal("SuccessfulAttachVolume", text)
}

/// The event of a pod whose claim has no volume that could be attached.
pub fn unusable(problem: &str) -> Note {
    Note::warning(FAILED, format!("AttachVolume.Attach failed: {problem}"))
}

#[cfg(test)]
mod tests;
