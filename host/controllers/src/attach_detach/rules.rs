//! Attach and detach rules. Source: kube-controller-manager's attach-detach controller: `reconciler.go` and
//! `actual_state_of_world.go`.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cofferdam_domain::{
    AccessMode, DriverName, NodeName, Pod, Uid, Volume, VolumeAttachmentName, VolumeHandle,
};

use crate::events::EventSpec;

/// Default time after which a volume that no pod needs any more is detached by force from a NotReady or
/// deleted node that reports it in use (upstream's `maxWaitForUnmountDuration`).
pub const MAX_WAIT_FOR_UNMOUNT: Duration = Duration::from_secs(360);
/// Maximum duration of an attach, or of a detach that a pod waits for, before the pods get an event
/// (upstream's timeout of the CSI attacher).
pub const ATTACH_TIMEOUT: Duration = Duration::from_secs(120);

const FAILED: &str = "FailedAttachVolume";

/// State of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// The Node does not exist.
    Deleted,
    /// The Node cannot be decoded: nothing is attached, and only requested detaches are completed.
    Undecodable,
    /// The node's kubelet attaches volumes: the Node lacks the annotation
    /// `volumes.kubernetes.io/controller-managed-attach-detach`.
    Unmanaged,
    /// This controller attaches the node's volumes.
    Managed {
        /// The condition `Ready` is true.
        ready: bool,
        /// The Node has the taint `node.kubernetes.io/out-of-service`.
        out_of_service: bool,
    },
}

/// A node whose pods use the volume.
#[derive(Clone, Debug)]
pub struct DesiredAttachment {
    /// The node.
    pub node: NodeName,
    /// State of the node.
    pub node_state: NodeState,
    /// The PersistentVolume that the pods use. If they use several with the same handle: the first by name.
    pub volume: Arc<Volume>,
    /// The pods, at least one.
    pub pods: Vec<Arc<Pod>>,
}

impl DesiredAttachment {
    /// Order of the nodes that need the volume: creation time of the oldest pod, then name.
    fn sort_key(&self) -> (i64, &NodeName) {
        let created = self.pods.iter().map(|pod| pod.meta.created_ms).min();
        (created.unwrap_or(i64::MAX), &self.node)
    }
}

/// Progress of a detach. From its start the volume is excluded from the node's `volumesAttached`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachState {
    /// The VolumeAttachment's deletion is not yet requested: the detach can be cancelled.
    Started,
    /// The VolumeAttachment's deletion was requested and may take effect: the detach continues even if a pod
    /// needs the volume again.
    Requested,
}

/// Purpose of a VolumeAttachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentPurpose {
    /// Created for pods, by this controller or by upstream's, and for this volume.
    Pod,
    /// Created for pods, by this controller or by upstream's. Its PersistentVolume is deleted, or deleted and
    /// created again with another source.
    PodOfDeletedVolume,
    /// Has the name that this volume's VolumeAttachment for pods has on a node, but the cache does not show
    /// that it is for this volume: it cannot be decoded, it has another attacher or PersistentVolume, it
    /// names none, or its PersistentVolume cannot be decoded or has no CSI source.
    NameConflict,
    /// For this volume, but created by another client, under another name or for another driver. As every
    /// VolumeAttachment of the volume, it blocks an exclusive volume for other nodes.
    Other,
}

impl AttachmentPurpose {
    /// Returns true if the VolumeAttachment was created for pods. This controller deletes no others.
    pub const fn is_for_pod(self) -> bool {
        matches!(self, Self::Pod | Self::PodOfDeletedVolume)
    }
}

/// A VolumeAttachment of the volume: part of the actual state, attached or not.
#[derive(Clone, Debug)]
pub struct ActualAttachment {
    /// `metadata.name`
    pub name: VolumeAttachmentName,
    /// `metadata.uid`
    pub uid: Uid,
    /// `spec.nodeName`
    pub node: NodeName,
    /// State of the node.
    pub node_state: NodeState,
    /// Purpose of the VolumeAttachment.
    pub purpose: AttachmentPurpose,
    /// `status.attached`
    pub attached: bool,
    /// The VolumeAttachment is being deleted.
    pub deleting: bool,
    /// Message of `status.attachError`.
    pub attach_error: Option<String>,
    /// Message of `status.detachError`.
    pub detach_error: Option<String>,
    /// On the node, a pod that is not terminated names the volume's claim, whatever the claim's phase, or may
    /// use a volume whose PersistentVolume is deleted. False if the VolumeAttachment was not created for
    /// pods, or if the CSIDriver has `attachRequired: false`.
    pub needed_by_pod: bool,
    /// Time since this process found that no pod on the node needs the volume any more. Zero while a pod
    /// needs it, and for a VolumeAttachment that was not created for pods.
    pub unneeded_for: Duration,
    /// Duration of the attach so far, as this process measures it. Zero unless a pod needs the volume, and
    /// the VolumeAttachment is neither attached nor being deleted.
    pub attaching_for: Duration,
    /// Time since this process found the VolumeAttachment being deleted. Zero if it is not being deleted.
    pub deleting_for: Duration,
    /// The volume is in the node's `volumesAttached`, or an update in flight may add it. False if the Node
    /// does not exist or cannot be decoded.
    pub in_volumes_attached: bool,
    /// The volume is in the node's `volumesInUse`. For a deleted Node, the last state counts; true if it is
    /// unknown.
    pub in_use: bool,
    /// Progress of the detach; `None` if none is in progress.
    pub detach_state: Option<DetachState>,
    /// This reconcile has read the Node live after the start of the detach.
    pub node_refreshed: bool,
}

impl ActualAttachment {
    /// Returns the entry of a VolumeAttachment that is not for this volume and has the name of the
    /// VolumeAttachment that `desired_attachment` needs, which therefore cannot be created.
    pub fn name_conflict(name: VolumeAttachmentName, desired_attachment: &DesiredAttachment) -> Self {
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
            needed_by_pod: false,
            unneeded_for: Duration::ZERO,
            attaching_for: Duration::ZERO,
            deleting_for: Duration::ZERO,
            in_volumes_attached: false,
            in_use: false,
            detach_state: None,
            node_refreshed: false,
        }
    }
}

/// Input of the rules.
#[derive(Clone, Debug)]
pub struct ReconcileInput {
    /// The volume's driver.
    pub driver: DriverName,
    /// The volume handle. `None` if the PersistentVolume is deleted, or created again with another source.
    pub handle: Option<VolumeHandle>,
    /// Nodes whose pods use the volume, sorted by name. Empty if the CSIDriver has `attachRequired: false`.
    pub desired: Vec<DesiredAttachment>,
    /// All VolumeAttachments of the PersistentVolumes with this driver and handle, and those that have the
    /// name of such a VolumeAttachment while their own PersistentVolume is deleted or unknown
    /// ([`AttachmentPurpose::PodOfDeletedVolume`] and [`AttachmentPurpose::NameConflict`]). Without a handle,
    /// the one VolumeAttachment of a deleted PersistentVolume.
    pub actual: Vec<ActualAttachment>,
    /// The node of the VolumeAttachment whose create request ended with an unknown result, and the time for
    /// which the request may still take effect. `None` if there is no such request. While it is set, this
    /// controller creates a VolumeAttachment of the volume for no other node.
    pub uncertain: Option<(NodeName, Duration)>,
    /// Desired nodes whose CSINode lacks the driver, does not exist or cannot be decoded.
    pub unregistered: Vec<NodeName>,
    /// Nodes for which the API server has refused an effect in this reconcile. The other nodes continue, but
    /// an exclusive volume is not attached to another node instead.
    pub refused_nodes: BTreeSet<NodeName>,
    /// Time after which a volume is detached by force; `None` if it never is
    /// (`--disable-force-detach-on-timeout`).
    pub force_after: Option<Duration>,
}

/// The reason for detaching a volume that a node may still use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ForceDetachReason {
    /// The node is NotReady, and no pod on it has needed the volume for the force-detach timeout.
    Timeout,
    /// The Node has the taint `node.kubernetes.io/out-of-service`, and no pod on it needs the volume. This is
    /// the reason even if the Node does not report the volume in use.
    OutOfService,
    /// The Node does not exist, and no pod on it has needed the volume for the force-detach timeout.
    NodeGone,
}

impl ForceDetachReason {
    /// Returns the value of the metric label `reason`. `node-gone` has no upstream equivalent.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::OutOfService => "out-of-service",
            Self::NodeGone => "node-gone",
        }
    }
}

/// Decision on a detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachDecision {
    /// Do not detach: the volume is needed, or the VolumeAttachment or the Node is not this controller's to
    /// change, or the Node cannot be decoded, or the VolumeAttachment is already being deleted.
    Keep,
    /// Detach after the node has unmounted the volume, or by force after this time. `None`: not by force.
    Wait(Option<Duration>),
    /// Detach. The reason is set for a force detach: the node may still use the volume.
    Detach(Option<ForceDetachReason>),
}

/// The next effect. A detach has these phases: its conditions are met (see [`decide_detach`]); the
/// reconcile of the Node removes the volume from `volumesAttached` ([`UpdateNodes`](Self::UpdateNodes)); the
/// volume is excluded from later lists ([`StartDetach`](Self::StartDetach)); the conditions are checked again
/// after a live read of the Node ([`RefreshBeforeDetach`](Self::RefreshBeforeDetach)); the VolumeAttachment
/// is deleted ([`Detach`](Self::Detach)).
#[derive(Clone, Debug)]
pub enum AttachDetachStep {
    /// End the reconcile of the volume, and enqueue these Nodes: their own reconcile adds the volume to
    /// `volumesAttached` or removes it. Without Nodes nothing is to do, a condition is not met, or the API
    /// server has refused the effect.
    UpdateNodes(Vec<NodeName>),
    /// Exclude the volume from later lists of the node's `volumesAttached`.
    StartDetach(ActualAttachment),
    /// Include the volume in the node's `volumesAttached` again.
    CancelDetach(ActualAttachment),
    /// Refresh the Node from the API server: kubelet may have started to use the volume before it received
    /// the shorter list. A PersistentVolume that is missing from the cache is refreshed, too.
    RefreshBeforeDetach(ActualAttachment),
    /// Delete the VolumeAttachment. The reason is set for a force detach.
    Detach(ActualAttachment, Option<ForceDetachReason>),
    /// Create a VolumeAttachment for each of these nodes; for an exclusive volume there is only one.
    Attach(Vec<DesiredAttachment>),
}

/// Decides on the detach of a volume. The first condition that is met decides. Conditions 5 to 8 follow
/// upstream's `reconcile`:
/// 1. The VolumeAttachment was not created for pods, or is being deleted: keep.
/// 2. This process has requested the deletion ([`DetachState::Requested`]): detach.
/// 3. A pod on the node needs the volume, and the PersistentVolume exists: keep.
/// 4. The Node is undecodable or not managed: keep.
/// 5. Taint `out-of-service`, and no pod needs the volume: force detach.
/// 6. The volume is not in use: detach.
/// 7. The node is ready, a pod needs the volume, or force detach is off: wait for the unmount.
/// 8. Otherwise force detach after `force_after`, whose default is [`MAX_WAIT_FOR_UNMOUNT`].
pub fn decide_detach(actual_attachment: &ActualAttachment, force_after: Option<Duration>) -> DetachDecision {
    if !actual_attachment.purpose.is_for_pod() || actual_attachment.deleting {
        return DetachDecision::Keep;
    }
    if actual_attachment.detach_state == Some(DetachState::Requested) {
        return DetachDecision::Detach(None);
    }
    if actual_attachment.needed_by_pod && actual_attachment.purpose == AttachmentPurpose::Pod {
        return DetachDecision::Keep;
    }
    let (ready, force) = match actual_attachment.node_state {
        NodeState::Undecodable | NodeState::Unmanaged => return DetachDecision::Keep,
        NodeState::Managed { out_of_service: true, .. } if !actual_attachment.needed_by_pod => {
            return DetachDecision::Detach(Some(ForceDetachReason::OutOfService));
        }
        NodeState::Managed { ready, .. } => (ready, ForceDetachReason::Timeout),
        NodeState::Deleted => (false, ForceDetachReason::NodeGone),
    };
    if !actual_attachment.in_use {
        return DetachDecision::Detach(None);
    }
    // A volume of a deleted PersistentVolume that pods may use is never detached by force.
    let Some(force_after) = force_after.filter(|_| !ready && !actual_attachment.needed_by_pod) else {
        return DetachDecision::Wait(None);
    };
    match force_after.checked_sub(actual_attachment.unneeded_for).filter(|left| !left.is_zero()) {
        Some(left) => DetachDecision::Wait(Some(left)),
        None => DetachDecision::Detach(Some(force)),
    }
}

/// Returns true if the volume belongs in the node's `volumesAttached`: the VolumeAttachment was created for
/// pods, is attached and is not being deleted, and its detach is neither decided nor in progress.
pub fn belongs_in_volumes_attached(
    actual_attachment: &ActualAttachment,
    force_after: Option<Duration>,
) -> bool {
    let is_kept = match decide_detach(actual_attachment, force_after) {
        DetachDecision::Keep | DetachDecision::Wait(_) => true,
        DetachDecision::Detach(_) => false,
    };
    is_kept
        && actual_attachment.purpose.is_for_pod()
        && actual_attachment.attached
        && !actual_attachment.deleting
        && actual_attachment.detach_state.is_none()
}

/// Returns true if a volume can be attached to one node only: it has access modes, but neither ReadOnlyMany
/// nor ReadWriteMany. Source: upstream's `IsMultiAttachAllowed`.
pub fn is_exclusive(volume: &Volume) -> bool {
    let mut shared = [AccessMode::ReadOnlyMany, AccessMode::ReadWriteMany].into_iter();
    !volume.access_modes.is_empty()
        && !shared.any(|mode| volume.access_modes.contains([mode].into_iter().collect()))
}

/// The VolumeAttachments of a volume by node.
struct AttachmentsByNode<'a> {
    for_pods: HashMap<&'a NodeName, &'a ActualAttachment>,
    /// VolumeAttachments of the purpose [`AttachmentPurpose::NameConflict`]: they have the name of the
    /// VolumeAttachment that the node needs.
    name_conflicts: HashMap<&'a NodeName, &'a ActualAttachment>,
    nodes: HashSet<&'a NodeName>,
    /// The volume can be attached to one node only.
    exclusive: bool,
}

impl AttachmentsByNode<'_> {
    /// Returns true if the volume is exclusive and another node has a VolumeAttachment for it, attached or
    /// not.
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
        let of_purpose = |is_purpose: fn(AttachmentPurpose) -> bool| {
            let actual_attachment =
                self.actual.iter().filter(move |actual_attachment| is_purpose(actual_attachment.purpose));
            // With several, the first one counts.
            actual_attachment
                .rev()
                .map(|actual_attachment| (&actual_attachment.node, actual_attachment))
                .collect()
        };
        AttachmentsByNode {
            for_pods: of_purpose(AttachmentPurpose::is_for_pod),
            name_conflicts: of_purpose(|purpose| purpose == AttachmentPurpose::NameConflict),
            nodes: self.actual.iter().map(|actual_attachment| &actual_attachment.node).collect(),
            exclusive: self.desired.iter().any(|desired_attachment| is_exclusive(&desired_attachment.volume)),
        }
    }

    /// Desired nodes whose volumes this controller attaches.
    fn attachable(&self) -> impl Iterator<Item = &DesiredAttachment> {
        self.desired
            .iter()
            .filter(|desired_attachment| matches!(desired_attachment.node_state, NodeState::Managed { .. }))
    }

    /// Returns the next effect. Detaches have precedence over attaches: when a pod moves, the detach releases
    /// the volume for the other node.
    pub fn next_step(&self) -> AttachDetachStep {
        for actual_attachment in self
            .actual
            .iter()
            .filter(|actual_attachment| !self.refused_nodes.contains(&actual_attachment.node))
        {
            let detach = match decide_detach(actual_attachment, self.force_after) {
                DetachDecision::Detach(force)
                    if !actual_attachment.in_volumes_attached
                        || actual_attachment.detach_state == Some(DetachState::Requested) =>
                {
                    Some(force)
                }
                DetachDecision::Detach(_) | DetachDecision::Keep | DetachDecision::Wait(_) => None,
            };
            match (detach, actual_attachment.detach_state) {
                (None, None) => {}
                (None, Some(_)) if actual_attachment.deleting => {}
                (None, Some(_)) => return AttachDetachStep::CancelDetach(actual_attachment.clone()),
                (Some(_), None) => return AttachDetachStep::StartDetach(actual_attachment.clone()),
                (Some(_), Some(DetachState::Started)) if !actual_attachment.node_refreshed => {
                    return AttachDetachStep::RefreshBeforeDetach(actual_attachment.clone());
                }
                (Some(force), Some(_)) => return AttachDetachStep::Detach(actual_attachment.clone(), force),
            }
        }
        let attachments = self.attachments_by_node();
        let is_certain = |desired_attachment: &&DesiredAttachment| {
            self.uncertain.as_ref().is_none_or(|(node, _)| *node == desired_attachment.node)
        };
        let mut free: Vec<&DesiredAttachment> = self
            .attachable()
            .filter(|desired_attachment| attachments.is_free(&desired_attachment.node))
            .filter(is_certain)
            .collect();
        free.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        if attachments.exclusive {
            free.truncate(1);
        }
        free.retain(|desired_attachment| !self.refused_nodes.contains(&desired_attachment.node));
        if free.is_empty() {
            AttachDetachStep::UpdateNodes(self.nodes_to_update().cloned().collect())
        } else {
            AttachDetachStep::Attach(free.into_iter().cloned().collect())
        }
    }

    /// Returns nodes whose `volumesAttached` lacks the volume or has it wrongly. They include Nodes that are
    /// deleted, undecodable or not managed; the reconcile of the Node does not update these.
    pub fn nodes_to_update(&self) -> impl Iterator<Item = &NodeName> {
        let needs_update = |actual_attachment: &&ActualAttachment| {
            actual_attachment.in_volumes_attached
                != belongs_in_volumes_attached(actual_attachment, self.force_after)
        };
        self.actual
            .iter()
            .filter(|actual_attachment| actual_attachment.purpose.is_for_pod())
            .filter(needs_update)
            .map(|actual_attachment| &actual_attachment.node)
    }

    /// Returns the time until the first timer of the input expires: of a force detach, of an attach, of a
    /// detach that a pod waits for, or of a create request whose result is unknown. Returns `None` if no
    /// timer runs.
    pub fn recheck_after(&self) -> Option<Duration> {
        let forced = self.actual.iter().filter_map(|actual_attachment| {
            match decide_detach(actual_attachment, self.force_after) {
                DetachDecision::Wait(left) => left,
                DetachDecision::Keep | DetachDecision::Detach(_) => None,
            }
        });
        let attachments = self.attachments_by_node();
        let attaching = self
            .attachable()
            .filter_map(|desired_attachment| attachments.for_pods.get(&desired_attachment.node))
            .filter(|actual_attachment| !actual_attachment.attached);
        let attaching = attaching
            .filter_map(|actual_attachment| ATTACH_TIMEOUT.checked_sub(actual_attachment.attaching_for));
        let is_detaching = |actual_attachment: &&ActualAttachment| {
            actual_attachment.deleting && actual_attachment.detach_error.is_none() && !self.desired.is_empty()
        };
        let detaching = self
            .actual
            .iter()
            .filter(is_detaching)
            .filter_map(|actual_attachment| ATTACH_TIMEOUT.checked_sub(actual_attachment.deleting_for));
        let uncertain = self.uncertain.iter().map(|(_, left)| *left);
        forced.chain(attaching.chain(detaching).filter(|left| !left.is_zero())).chain(uncertain).min()
    }

    /// Returns events for pods on managed nodes whose volume cannot be attached, or was not attached within
    /// [`ATTACH_TIMEOUT`].
    pub fn failures(&self) -> Vec<(Arc<Pod>, EventSpec)> {
        let attachments = self.attachments_by_node();
        let mut failures = Vec::new();
        for desired_attachment in self.attachable() {
            let volume = &desired_attachment.volume.name;
            match attachments.for_pods.get(&desired_attachment.node) {
                Some(actual_attachment) => {
                    if let Some(problem) = self.problem(actual_attachment) {
                        let text = format!("AttachVolume.Attach failed for volume \"{volume}\" : {problem}");
                        let event = EventSpec::warning(FAILED, text);
                        failures.extend(
                            desired_attachment.pods.iter().map(|pod| (Arc::clone(pod), event.clone())),
                        );
                    }
                }
                None if attachments.is_multi_attach_error(&desired_attachment.node) => {
                    let others = self.actual.iter().filter(|actual| actual.node != desired_attachment.node);
                    let problems: String = others
                        .filter_map(|actual_attachment| self.detach_problem(actual_attachment))
                        .map(|problem| format!("; {problem}"))
                        .collect();
                    for pod in &desired_attachment.pods {
                        let text = format!(
                            "Multi-Attach error for volume \"{volume}\" {}{problems}",
                            self.users(desired_attachment, pod)
                        );
                        failures.push((Arc::clone(pod), EventSpec::warning(FAILED, text)));
                    }
                }
                None => {
                    if let Some(conflict) = attachments.name_conflicts.get(&desired_attachment.node) {
                        let text = format!(
                            "AttachVolume.Attach failed for volume \"{volume}\" : \
                             VolumeAttachment {} exists and is not for this volume",
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

    /// Returns the reason why a desired volume is not attached. If its VolumeAttachment is being deleted,
    /// only a problem of the detach is a reason. Otherwise returns `None` if the volume is attached, or is
    /// being attached without an error or timeout. The timeout text begins with upstream's.
    fn problem(&self, actual_attachment: &ActualAttachment) -> Option<String> {
        if actual_attachment.deleting {
            let problem = self.detach_problem(actual_attachment)?;
            return Some(format!("volume attachment is being deleted: {problem}"));
        }
        if actual_attachment.attached {
            return None;
        }
        if actual_attachment.attach_error.is_some() {
            return actual_attachment.attach_error.clone();
        }
        if actual_attachment.attaching_for < ATTACH_TIMEOUT {
            return None;
        }
        let (driver, node) = (&self.driver, &actual_attachment.node);
        let handle = self.handle.as_ref().map(VolumeHandle::as_str).unwrap_or_default();
        let mut text = format!(
            "timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}"
        );
        if self.unregistered.contains(node) {
            text.push_str(&format!("; the driver is not registered in CSINode {node}"));
        }
        Some(text)
    }

    /// Returns the reason why a VolumeAttachment that is being deleted still exists: the attacher's error, or
    /// that no attacher has responded within [`ATTACH_TIMEOUT`]. `None` before that, and if it is not being
    /// deleted.
    fn detach_problem(&self, actual_attachment: &ActualAttachment) -> Option<String> {
        let ActualAttachment { name, node, .. } = actual_attachment;
        match &actual_attachment.detach_error {
            _ if !actual_attachment.deleting => None,
            Some(error) => {
                Some(format!("VolumeAttachment {name} cannot be detached from node {node}: {error}"))
            }
            None if actual_attachment.deleting_for < ATTACH_TIMEOUT => None,
            None => Some(format!(
                "timed out waiting for external-attacher of {} CSI driver to detach VolumeAttachment {name} \
                 from node {node}",
                self.driver
            )),
        }
    }

    /// Returns the end of the Multi-Attach message, in upstream's text. It names the pods that use the volume
    /// on other nodes with a VolumeAttachment of the volume, and only counts those in other namespaces than
    /// `pod`.
    fn users(&self, desired_attachment: &DesiredAttachment, pod: &Pod) -> String {
        let others = self.desired.iter().filter(|other| other.node != desired_attachment.node);
        let is_attached = |other: &&DesiredAttachment| {
            self.actual.iter().any(|actual_attachment| actual_attachment.node == other.node)
        };
        let (same_namespace, other_namespaces): (Vec<&Arc<Pod>>, Vec<_>) = others
            .filter(is_attached)
            .flat_map(|other| &other.pods)
            .partition(|other| other.key.namespace == pod.key.namespace);
        if same_namespace.is_empty() && other_namespaces.is_empty() {
            return "Volume is already exclusively attached to one node and can't be attached to another"
                .to_owned();
        }
        if same_namespace.is_empty() {
            return format!(
                "Volume is already used by {} pod(s) in different namespaces",
                other_namespaces.len()
            );
        }
        let names: Vec<&str> = same_namespace.iter().map(|pod| &*pod.key.name).collect();
        let mut text = format!("Volume is already used by pod(s) {}", names.join(", "));
        if !other_namespaces.is_empty() {
            text.push_str(&format!(" and {} pod(s) in different namespaces", other_namespaces.len()));
        }
        text
    }
}

/// Event of an attached volume. Upstream's text ends with a blank, too.
pub fn attach_succeeded_event(volume: &Volume) -> EventSpec {
    let text = format!("AttachVolume.Attach succeeded for volume \"{}\" ", volume.name);
    EventSpec::normal("SuccessfulAttachVolume", text)
}

/// Event of a pod that cannot use the volume of its claim.
pub fn unusable_claim_event(problem: &str) -> EventSpec {
    EventSpec::warning(FAILED, format!("AttachVolume.Attach failed: {problem}"))
}

#[cfg(test)]
mod tests;
