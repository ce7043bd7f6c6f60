//! What is attached, what is detached, and when. Source: kube-controller-manager's attach-detach controller.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cofferdam_domain::{
    AccessMode, DriverName, NodeName, Pod, Uid, Volume, VolumeAttachmentName, VolumeHandle,
};

use crate::event_spec::EventSpec;

/// How long a node that is not ready keeps a volume that it says it uses (`maxWaitForUnmountDuration`).
pub const MAX_WAIT_FOR_UNMOUNT: Duration = Duration::from_secs(360);
/// How long an attachment may take before its pods are told (kubelet's and Kubernetes' own wait for CSI).
pub const ATTACH_TIMEOUT: Duration = Duration::from_secs(120);

const FAILED: &str = "FailedAttachVolume";

/// What is known of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// There is no such Node.
    Deleted,
    /// There is, and it cannot be decoded: hands off.
    Undecodable,
    /// Its kubelet attaches by itself.
    Unmanaged,
    /// It is ours to attach to.
    Managed {
        /// Its condition `Ready` is true.
        ready: bool,
        /// A person says that it is down for good.
        out_of_service: bool,
    },
}

/// A node whose pods use the volume.
#[derive(Clone, Debug)]
pub struct DesiredAttachment {
    /// Which node.
    pub node: NodeName,
    /// What is known of it.
    pub node_state: NodeState,
    /// The object by which they use it.
    pub volume: Arc<Volume>,
    /// The pods, at least one.
    pub pods: Vec<Arc<Pod>>,
}

impl DesiredAttachment {
    /// Since when it is wanted there, and by whom first: the order of those who want it.
    fn sort_key(&self) -> (i64, &NodeName) {
        let created = self.pods.iter().map(|pod| pod.meta.created_ms).min();
        (created.unwrap_or(i64::MAX), &self.node)
    }
}

/// How far a detachment is that has begun: the node is no longer told of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachState {
    /// Nothing was asked of the API: it may be called off.
    Started,
    /// The object's deletion was asked for, with an open outcome: it is carried through.
    Requested,
}

/// What a VolumeAttachment was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentPurpose {
    /// For pods, by us or by Kubernetes, and for this volume.
    Pod,
    /// For pods, by way of an object that is no more, or is another volume now.
    PodOfReplacedVolume,
    /// Something else, and it has the name that one for pods on its node gets.
    NameConflict,
    /// Something else: it only holds the volume.
    Other,
}

impl AttachmentPurpose {
    /// Whether it was made for pods: others are nobody's business here.
    pub const fn is_for_pod(self) -> bool {
        matches!(self, Self::Pod | Self::PodOfReplacedVolume)
    }
}

/// A VolumeAttachment of the volume.
#[derive(Clone, Debug)]
pub struct AttachedVolume {
    /// Its name.
    pub name: VolumeAttachmentName,
    /// Its uid.
    pub uid: Uid,
    /// The node that it is for.
    pub node: NodeName,
    /// What is known of that.
    pub node_state: NodeState,
    /// What it was made for.
    pub purpose: AttachmentPurpose,
    /// `status.attached`
    pub attached: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Message of `status.attachError`.
    pub attach_error: Option<String>,
    /// Message of `status.detachError`.
    pub detach_error: Option<String>,
    /// Whether a pod on the node names the volume's claim, whatever the claim has come to.
    pub desired: bool,
    /// For how long no pod there has.
    pub undesired_for: Duration,
    /// For how long it has not been attached, though wanted.
    pub attaching_for: Duration,
    /// Whether the node is told that it is attached, or may be by a write that is under way.
    pub in_volumes_attached: bool,
    /// Whether the node says that it uses the volume; of one that is gone, whether it may.
    pub in_use: bool,
    /// How far its detachment is.
    pub detach_state: Option<DetachState>,
    /// Whether the node was looked at past the cache since that began.
    pub node_refreshed: bool,
}

impl AttachedVolume {
    /// One of this name that cannot be read.
    pub fn undecodable(name: VolumeAttachmentName, desired_attachment: &DesiredAttachment) -> Self {
        Self {
            name,
            uid: Uid::from(""),
            node: desired_attachment.node.clone(),
            node_state: desired_attachment.node_state,
            purpose: AttachmentPurpose::NameConflict,
            attached: false,
            deleting: false,
            attach_error: None,
            detach_error: None,
            desired: false,
            undesired_for: Duration::ZERO,
            attaching_for: Duration::ZERO,
            in_volumes_attached: false,
            in_use: false,
            detach_state: None,
            node_refreshed: false,
        }
    }
}

/// Everything that is decided on.
#[derive(Clone, Debug)]
pub struct ReconcileInput {
    /// The driver.
    pub driver: DriverName,
    /// Its volume; absent where nobody knows any more which one it was.
    pub handle: Option<VolumeHandle>,
    /// Nodes whose pods use it, by name.
    pub desired: Vec<DesiredAttachment>,
    /// Its VolumeAttachments, whoever's.
    pub actual: Vec<AttachedVolume>,
    /// The node that an attachment was asked for, without an answer, and for how long it may still be made:
    /// no other node gets one before.
    pub uncertain: Option<(NodeName, Duration)>,
    /// Nodes among those that want it whose CSINode does not name the driver.
    pub unregistered: Vec<NodeName>,
    /// Nodes for which the API has refused an effect in this run: the others have their turn.
    pub refused_nodes: BTreeSet<NodeName>,
    /// Whether volumes leave nodes by force when their time is over.
    pub force_on_timeout: bool,
}

/// Why a volume leaves a node that may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ForceDetachReason {
    /// The node is not ready, and its time is over.
    Timeout,
    /// A person says that it is down for good.
    OutOfService,
    /// There is no such Node any more.
    NodeGone,
}

impl ForceDetachReason {
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
pub enum DetachDecision {
    /// No.
    Keep,
    /// Once the node has unmounted it, or after this time.
    Wait(Option<Duration>),
    /// Yes; why, where the node may still use it.
    Detach(Option<ForceDetachReason>),
}

/// The next effect.
#[derive(Clone, Debug)]
pub enum AttachDetachStep {
    /// Nothing.
    Wait,
    /// The node may no longer be told of the volume.
    Start(AttachedVolume),
    /// It may be told again.
    Cancel(AttachedVolume),
    /// The node has to be looked at past the cache.
    RefreshNode(AttachedVolume),
    /// The attachment is deleted.
    Detach(AttachedVolume, Option<ForceDetachReason>),
    /// Attachments are made: one, or for a volume that many nodes may have all that are wanted.
    Attach(Vec<DesiredAttachment>),
}

/// Whether a volume leaves a node, and why not.
pub fn detach_decision(attached_volume: &AttachedVolume, force_on_timeout: bool) -> DetachDecision {
    if !attached_volume.purpose.is_for_pod() || attached_volume.deleting {
        return DetachDecision::Keep;
    }
    if attached_volume.detach_state == Some(DetachState::Requested) {
        return DetachDecision::Detach(None);
    }
    if attached_volume.desired && attached_volume.purpose == AttachmentPurpose::Pod {
        return DetachDecision::Keep;
    }
    let (ready, force) = match attached_volume.node_state {
        NodeState::Undecodable | NodeState::Unmanaged => return DetachDecision::Keep,
        NodeState::Managed { out_of_service: true, .. } if !attached_volume.desired => {
            return DetachDecision::Detach(Some(ForceDetachReason::OutOfService));
        }
        NodeState::Managed { ready, .. } => (ready, ForceDetachReason::Timeout),
        NodeState::Deleted => (false, ForceDetachReason::NodeGone),
    };
    match attached_volume.in_use {
        false => DetachDecision::Detach(None),
        // Only what no pod wants is taken by force.
        true if ready || attached_volume.desired || !force_on_timeout => DetachDecision::Wait(None),
        true => match MAX_WAIT_FOR_UNMOUNT
            .checked_sub(attached_volume.undesired_for)
            .filter(|left| !left.is_zero())
        {
            Some(left) => DetachDecision::Wait(Some(left)),
            None => DetachDecision::Detach(Some(force)),
        },
    }
}

/// Whether a node shall be told that a volume is attached to it.
pub fn is_reported_as_attached(attached_volume: &AttachedVolume, force_on_timeout: bool) -> bool {
    let stays = match detach_decision(attached_volume, force_on_timeout) {
        DetachDecision::Keep | DetachDecision::Wait(_) => true,
        DetachDecision::Detach(_) => false,
    };
    stays
        && attached_volume.purpose.is_for_pod()
        && attached_volume.attached
        && !attached_volume.deleting
        && attached_volume.detach_state.is_none()
}

/// Whether a volume may be attached to one node only.
pub fn is_exclusive(volume: &Volume) -> bool {
    let mut shared = [AccessMode::ReadOnlyMany, AccessMode::ReadWriteMany].into_iter();
    !volume.access_modes.is_empty()
        && !shared.any(|mode| volume.access_modes.contains([mode].into_iter().collect()))
}

/// The attachments of a volume by their nodes.
struct AttachmentsByNode<'a> {
    for_pods: HashMap<&'a NodeName, &'a AttachedVolume>,
    /// Those that have the name of the one that their node wants, and are not it.
    name_conflicts: HashMap<&'a NodeName, &'a AttachedVolume>,
    nodes: HashSet<&'a NodeName>,
    /// Whether the volume may be on one node only.
    exclusive: bool,
}

impl AttachmentsByNode<'_> {
    /// Whether an attachment elsewhere keeps the volume from a node. One whose outcome is open does, too.
    fn is_multi_attach_error(&self, node: &NodeName) -> bool {
        self.exclusive && self.nodes.len() > usize::from(self.nodes.contains(node))
    }

    fn is_free(&self, node: &NodeName) -> bool {
        !self.for_pods.contains_key(node)
            && !self.name_conflicts.contains_key(node)
            && !self.is_multi_attach_error(node)
    }
}

impl ReconcileInput {
    fn attachments_by_node(&self) -> AttachmentsByNode<'_> {
        let is = |made_for: fn(AttachmentPurpose) -> bool| {
            let attached_volume =
                self.actual.iter().filter(move |attached_volume| made_for(attached_volume.purpose));
            // Of two the first one counts.
            attached_volume.rev().map(|attached_volume| (&attached_volume.node, attached_volume)).collect()
        };
        AttachmentsByNode {
            for_pods: is(AttachmentPurpose::is_for_pod),
            name_conflicts: is(|made_for| made_for == AttachmentPurpose::NameConflict),
            nodes: self.actual.iter().map(|attached_volume| &attached_volume.node).collect(),
            exclusive: self.desired.iter().any(|desired_attachment| is_exclusive(&desired_attachment.volume)),
        }
    }

    /// Wants of nodes that are ours to attach to.
    fn attachable(&self) -> impl Iterator<Item = &DesiredAttachment> {
        self.desired
            .iter()
            .filter(|desired_attachment| matches!(desired_attachment.node_state, NodeState::Managed { .. }))
    }

    /// The next effect. Detaching comes first: a pod that moves frees its volume for where it went.
    pub fn next(&self) -> AttachDetachStep {
        for attached_volume in
            self.actual.iter().filter(|attached_volume| !self.refused_nodes.contains(&attached_volume.node))
        {
            let goes = match detach_decision(attached_volume, self.force_on_timeout) {
                DetachDecision::Detach(force)
                    if !attached_volume.in_volumes_attached
                        || attached_volume.detach_state == Some(DetachState::Requested) =>
                {
                    Some(force)
                }
                DetachDecision::Detach(_) | DetachDecision::Keep | DetachDecision::Wait(_) => None,
            };
            match (goes, attached_volume.detach_state) {
                (None, None) => {}
                (None, Some(_)) if attached_volume.deleting => {}
                (None, Some(_)) => return AttachDetachStep::Cancel(attached_volume.clone()),
                (Some(_), None) => return AttachDetachStep::Start(attached_volume.clone()),
                (Some(_), Some(DetachState::Started)) if !attached_volume.node_refreshed => {
                    return AttachDetachStep::RefreshNode(attached_volume.clone());
                }
                (Some(force), Some(_)) => return AttachDetachStep::Detach(attached_volume.clone(), force),
            }
        }
        let attachments = self.attachments_by_node();
        let asked = |desired_attachment: &&DesiredAttachment| {
            self.uncertain.as_ref().is_none_or(|(node, _)| *node == desired_attachment.node)
        };
        let mut free: Vec<&DesiredAttachment> = self
            .attachable()
            .filter(|desired_attachment| attachments.is_free(&desired_attachment.node))
            .filter(asked)
            .collect();
        free.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        if attachments.exclusive {
            free.truncate(1);
        }
        free.retain(|desired_attachment| !self.refused_nodes.contains(&desired_attachment.node));
        if free.is_empty() {
            AttachDetachStep::Wait
        } else {
            AttachDetachStep::Attach(free.into_iter().cloned().collect())
        }
    }

    /// Nodes that must no longer be told of the volume before it can leave them.
    pub fn nodes_to_update(&self) -> impl Iterator<Item = &NodeName> {
        let needs_update = |attached_volume: &&AttachedVolume| {
            attached_volume.in_volumes_attached
                != is_reported_as_attached(attached_volume, self.force_on_timeout)
        };
        self.actual
            .iter()
            .filter(|attached_volume| attached_volume.purpose.is_for_pod())
            .filter(needs_update)
            .map(|attached_volume| &attached_volume.node)
    }

    /// When to look again, without a change of anything.
    pub fn recheck_after(&self) -> Option<Duration> {
        let forced = self.actual.iter().filter_map(|attached_volume| {
            match detach_decision(attached_volume, self.force_on_timeout) {
                DetachDecision::Wait(left) => left,
                DetachDecision::Keep | DetachDecision::Detach(_) => None,
            }
        });
        let attachments = self.attachments_by_node();
        let attaching = self
            .attachable()
            .filter_map(|desired_attachment| attachments.for_pods.get(&desired_attachment.node))
            .filter(|attached_volume| !attached_volume.attached);
        let attaching =
            attaching.filter_map(|attached_volume| ATTACH_TIMEOUT.checked_sub(attached_volume.attaching_for));
        let uncertain = self.uncertain.iter().map(|(_, left)| *left);
        forced.chain(attaching.filter(|left| !left.is_zero())).chain(uncertain).min()
    }

    /// What keeps pods waiting.
    pub fn failures(&self) -> Vec<(Arc<Pod>, EventSpec)> {
        let attachments = self.attachments_by_node();
        let mut failures = Vec::new();
        for desired_attachment in self.attachable() {
            let volume = &desired_attachment.volume.name;
            match attachments.for_pods.get(&desired_attachment.node) {
                Some(attached_volume) => {
                    if let Some(problem) = self.problem(attached_volume) {
                        let text = format!("AttachVolume.Attach failed for volume \"{volume}\" : {problem}");
                        let event = EventSpec::warning(FAILED, text);
                        failures.extend(
                            desired_attachment.pods.iter().map(|pod| (Arc::clone(pod), event.clone())),
                        );
                    }
                }
                None if attachments.is_multi_attach_error(&desired_attachment.node) => {
                    for pod in &desired_attachment.pods {
                        let text = format!(
                            "Multi-Attach error for volume \"{volume}\" {}",
                            self.users(desired_attachment, pod)
                        );
                        failures.push((Arc::clone(pod), EventSpec::warning(FAILED, text)));
                    }
                }
                None => {
                    if let Some(conflict) = attachments.name_conflicts.get(&desired_attachment.node) {
                        let text = format!(
                            "AttachVolume.Attach failed for volume \"{volume}\" : VolumeAttachment {} is there, and not for it",
                            conflict.name
                        );
                        let event = EventSpec::warning(FAILED, text);
                        failures.extend(
                            desired_attachment.pods.iter().map(|pod| (Arc::clone(pod), event.clone())),
                        );
                    }
                }
            }
        }
        failures
    }

    /// Why an attachment is not there although it is wanted.
    fn problem(&self, attached_volume: &AttachedVolume) -> Option<String> {
        if attached_volume.deleting {
            let error = attached_volume.detach_error.as_ref()?;
            return Some(format!("volume attachment is being deleted: {error}"));
        }
        if attached_volume.attached {
            return None;
        }
        if attached_volume.attach_error.is_some() {
            return attached_volume.attach_error.clone();
        }
        if attached_volume.attaching_for < ATTACH_TIMEOUT {
            return None;
        }
        let (driver, node) = (&self.driver, &attached_volume.node);
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
    fn users(&self, desired_attachment: &DesiredAttachment, pod: &Pod) -> String {
        let others = self.desired.iter().filter(|other| other.node != desired_attachment.node);
        let is_attached = |other: &&DesiredAttachment| {
            self.actual.iter().any(|attached_volume| attached_volume.node == other.node)
        };
        let (near, far): (Vec<&Arc<Pod>>, Vec<_>) = others
            .filter(is_attached)
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
pub fn attach_succeeded_event(volume: &Volume) -> EventSpec {
    let text = format!("AttachVolume.Attach succeeded for volume \"{}\" ", volume.name);
    EventSpec::normal("SuccessfulAttachVolume", text)
}

/// The event of a pod whose claim has no volume that could be attached.
pub fn unusable_claim_event(problem: &str) -> EventSpec {
    EventSpec::warning(FAILED, format!("AttachVolume.Attach failed: {problem}"))
}

#[cfg(test)]
mod tests;
