//! What the process remembers between two looks: times, and what it is about to do. After a restart all of it
//! begins anew; nothing depends on it that the cluster does not tell.
//!
//! Two things may never cross: a node being told that a volume is attached, and that volume's detachment.
//! Both sides pass through
//! [`Marks`]: who writes a node's list promises first what will stand there, and a detachment that has begun keeps its volume out of
//! every list that is promised after it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_domain::{
    ClaimKey, DriverName, Node, NodeName, ResourceVersion, Uid, UniqueVolumeName, VolumeAttachment,
    VolumeAttachmentName, VolumeHandle, names,
};
use tokio::time::Instant;

use super::rules::DetachState;
use crate::context::EVENT_REPEAT_INTERVAL;

/// What is worked on, one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// A volume with all its attachments.
    Volume(UniqueVolumeName),
    /// An attachment of a volume that nobody knows any more.
    WithoutVolume(VolumeAttachmentName),
    /// A claim that pods use and that leads to no volume.
    Claim(ClaimKey),
}

/// For how long a write without an answer may still be carried out: the API server gives up on a request
/// after a minute.
pub(super) const REQUEST_MAY_APPLY: Duration = Duration::from_secs(60);

/// For how long the successor of a CSIDriver is waited for.
const CSI_DRIVER_REPLACE_GRACE: Duration = Duration::from_secs(10);

/// A write of a node's list that is under way, or whose outcome is open.
struct PendingUpdate {
    /// The version that it depends on: once the node is newer, the write is done or will never be.
    version: ResourceVersion,
    names: HashSet<VolumeAttachmentName>,
    /// What writes before it have promised that is not in it.
    before: HashSet<VolumeAttachmentName>,
    /// When it was sent last, where it was.
    sent: Option<Instant>,
}

impl PendingUpdate {
    fn all(self) -> impl Iterator<Item = VolumeAttachmentName> {
        self.names.into_iter().chain(self.before)
    }
}

/// What a node's list will have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PreparedUpdate {
    /// The volumes, in no order.
    pub(super) volumes_attached: Vec<UniqueVolumeName>,
    /// For how long an earlier write has been without an answer, where there is one.
    pub(super) unanswered_for: Option<Duration>,
    /// What an earlier write has promised that is over now.
    pub(super) superseded: Vec<VolumeAttachmentName>,
}

/// The creation of an attachment has an open outcome.
struct UncertainAttach {
    name: VolumeAttachmentName,
    node: NodeName,
    /// When it was asked for last.
    requested_at: Instant,
}

#[derive(Default)]
struct State {
    undesired_since: HashMap<VolumeAttachmentName, Instant>,
    attaching: HashMap<VolumeAttachmentName, Instant>,
    detach_states: HashMap<VolumeAttachmentName, DetachState>,
    /// Deletions that were asked for, with the driver, since when.
    detaching: HashMap<VolumeAttachmentName, (DriverName, Instant)>,
    pending_updates: HashMap<NodeName, PendingUpdate>,
    /// Attachments that were made for pods, of volumes that nobody knows any more, by driver and node.
    without_volume: HashMap<DriverName, BTreeMap<NodeName, BTreeSet<VolumeAttachmentName>>>,
    /// Nodes that are gone and have attachments, as they were last.
    deleted_nodes: HashMap<NodeName, Arc<Node>>,
    /// Drivers whose CSIDriver said that nothing has to be attached, and is gone, since when.
    deleted_csi_drivers: HashMap<DriverName, Instant>,
    /// Volumes that an orphan has kept from nodes.
    blocked_keys: HashMap<VolumeAttachmentName, BTreeSet<Key>>,
    /// Attachments whose creation has an open outcome.
    uncertain: HashMap<Key, UncertainAttach>,
    /// Complaints that stand: to whom, which, as a digest, and when it was said last.
    emitted_failures: HashMap<Key, HashMap<Uid, (u64, Instant)>>,
    /// Claims that lead to no volume, since when.
    unresolved: HashMap<ClaimKey, Instant>,
}

/// For how long something has been so, as long as there is whom it is about.
fn elapsed_since_first(
    times: &mut HashMap<VolumeAttachmentName, Instant>,
    name: &VolumeAttachmentName,
    is_there: impl FnOnce() -> bool,
) -> Duration {
    match times.get(name) {
        Some(since) => since.elapsed(),
        None if is_there() => {
            times.insert(name.clone(), Instant::now());
            Duration::ZERO
        }
        None => Duration::ZERO,
    }
}

/// The memory of the role.
#[derive(Default)]
pub(super) struct AttachState {
    state: Mutex<State>,
    digest: RandomState,
}

impl AttachState {
    /// Notes whether an attachment is wanted; for how long it has not been. Of one that is not there, by
    /// `is_there`, nothing is remembered: nobody would forget it.
    pub(super) fn undesired_for(
        &self,
        name: &VolumeAttachmentName,
        desired: bool,
        is_there: impl FnOnce() -> bool,
    ) -> Duration {
        let mut state = self.lock();
        if desired {
            state.undesired_since.remove(name);
            return Duration::ZERO;
        }
        elapsed_since_first(&mut state.undesired_since, name, is_there)
    }

    /// An attachment that is wanted is not attached yet; for how long. `is_there` as for [`Marks::unwanted`].
    pub(super) fn attaching_for(
        &self,
        name: &VolumeAttachmentName,
        is_there: impl FnOnce() -> bool,
    ) -> Duration {
        elapsed_since_first(&mut self.lock().attaching, name, is_there)
    }

    /// An attachment is there; how long it took, where that has not been asked before.
    pub(super) fn finish_attach(&self, name: &VolumeAttachmentName) -> Option<Duration> {
        self.lock().attaching.remove(name).map(|since| since.elapsed())
    }

    /// How far a detachment is.
    pub(super) fn detach_state(&self, name: &VolumeAttachmentName) -> Option<DetachState> {
        self.lock().detach_states.get(name).copied()
    }

    /// Whether a write that is under way may tell the node of an attachment. `version`: that of the node as
    /// it is known.
    pub(super) fn is_update_pending(
        &self,
        node: &NodeName,
        version: ResourceVersion,
        name: &VolumeAttachmentName,
    ) -> bool {
        self.lock().is_update_pending(node, version, name)
    }

    /// Begins a detachment, unless the node is told of the volume or may be. `listed` looks at the node as it
    /// is known by then.
    pub(super) fn start_detach(
        &self,
        node: &NodeName,
        name: &VolumeAttachmentName,
        listed: impl FnOnce() -> (ResourceVersion, bool),
    ) -> bool {
        let mut state = self.lock();
        let (version, listed) = listed();
        let free = !listed && !state.is_update_pending(node, version, name);
        if free {
            state.detach_states.insert(name.clone(), DetachState::Started);
        }
        free
    }

    /// The deletion of an attachment is asked for.
    pub(super) fn request_detach(&self, name: &VolumeAttachmentName, driver: &DriverName) {
        let mut state = self.lock();
        state.detach_states.insert(name.clone(), DetachState::Requested);
        state.detaching.entry(name.clone()).or_insert_with(|| (driver.clone(), Instant::now()));
    }

    /// For how long an attachment has been going since we asked for that.
    pub(super) fn detaching_for(&self, name: &VolumeAttachmentName) -> Option<Duration> {
        self.lock().detaching.get(name).map(|(_, since)| since.elapsed())
    }

    /// A detachment is over: called off, refused, or written down in the cluster.
    pub(super) fn end_detach(&self, name: &VolumeAttachmentName) {
        self.lock().detach_states.remove(name);
    }

    /// An attachment is gone. Returns its driver and how long it took, where we asked for it.
    pub(super) fn remove(&self, name: &VolumeAttachmentName) -> Option<(DriverName, Duration)> {
        let mut state = self.lock();
        state.undesired_since.remove(name);
        state.attaching.remove(name);
        state.detach_states.remove(name);
        state.detaching.remove(name).map(|(driver, since)| (driver, since.elapsed()))
    }

    /// Promises what a node's list will have: of `names` those that are not about to leave. `is_attached`
    /// looks once more: one that has left since the names were found is no mark any longer.
    pub(super) fn prepare(
        &self,
        node: &NodeName,
        version: ResourceVersion,
        names: Vec<(VolumeAttachmentName, UniqueVolumeName)>,
        is_attached: impl Fn(&VolumeAttachmentName) -> bool,
    ) -> PreparedUpdate {
        let mut state = self.lock();
        let stays =
            |name: &VolumeAttachmentName| !state.detach_states.contains_key(name) && is_attached(name);
        let kept: Vec<_> = names.into_iter().filter(|(name, _)| stays(name)).collect();
        let names = kept.iter().map(|(name, _)| name.clone()).collect();
        let mut update = PendingUpdate { version, names, before: HashSet::new(), sent: None };
        let mut superseded = Vec::new();
        match state.pending_updates.remove(node) {
            Some(open) if open.version >= version => {
                update.sent = open.sent;
                update.before.extend(open.all().filter(|name| !update.names.contains(name)));
            }
            Some(over) => superseded.extend(over.all().filter(|name| !update.names.contains(name))),
            None => {}
        }
        let open = update.sent.map(|sent| sent.elapsed());
        state.pending_updates.insert(node.clone(), update);
        PreparedUpdate {
            volumes_attached: kept.into_iter().map(|(_, name)| name).collect(),
            unanswered_for: open,
            superseded,
        }
    }

    /// What was promised is written now.
    pub(super) fn mark_sent(&self, node: &NodeName) {
        if let Some(update) = self.lock().pending_updates.get_mut(node) {
            update.sent = Some(Instant::now());
        }
    }

    /// The node has what was promised. Returns what it was promised before and does not have.
    pub(super) fn commit(&self, node: &NodeName) -> HashSet<VolumeAttachmentName> {
        self.lock().pending_updates.remove(node).map(|update| update.before).unwrap_or_default()
    }

    /// A promise is not kept, and never will be. Returns what it was about.
    pub(super) fn abort(&self, node: &NodeName) -> Vec<VolumeAttachmentName> {
        self.lock().pending_updates.remove(node).into_iter().flat_map(PendingUpdate::all).collect()
    }

    /// Whether a write of a node's list is under way or open.
    pub(super) fn has_pending_update(&self, node: &NodeName) -> bool {
        self.lock().pending_updates.contains_key(node)
    }

    /// Takes note of whether an attachment is there whose volume nobody knows any more.
    /// Returns what one that is no more has kept from nodes.
    pub(super) fn set_without_volume(
        &self,
        VolumeAttachment { name, attacher, node, .. }: &VolumeAttachment,
        is: bool,
    ) -> BTreeSet<Key> {
        let mut state = self.lock();
        if is {
            let of_driver = state.without_volume.entry(attacher.clone()).or_default();
            of_driver.entry(node.clone()).or_default().insert(name.clone());
            return BTreeSet::new();
        }
        let unblocked = state.blocked_keys.remove(name).unwrap_or_default();
        let Some(of_driver) = state.without_volume.get_mut(attacher) else { return unblocked };
        if of_driver.get_mut(node).is_some_and(|names| names.remove(name) && names.is_empty()) {
            of_driver.remove(node);
        }
        if of_driver.is_empty() {
            state.without_volume.remove(attacher);
        }
        unblocked
    }

    /// Those that have the names of a volume's attachments. When they are gone, the volume is looked at
    /// again.
    pub(super) fn without_volume_named_for(
        &self,
        volume: &UniqueVolumeName,
        driver: &DriverName,
        handle: &VolumeHandle,
    ) -> Vec<VolumeAttachmentName> {
        let mut state = self.lock();
        let nodes = state.without_volume.get(driver).into_iter().flatten();
        let named = nodes.map(|(node, there)| (names::volume_attachment_name(driver, handle, node), there));
        let found: Vec<_> =
            named.filter(|(name, there)| there.contains(name)).map(|(name, _)| name).collect();
        for name in &found {
            state.blocked_keys.entry(name.clone()).or_default().insert(Key::Volume(volume.clone()));
        }
        found
    }

    /// Those on a node.
    pub(super) fn without_volume_on_node(&self, node: &NodeName) -> Vec<VolumeAttachmentName> {
        let state = self.lock();
        state.without_volume.values().filter_map(|nodes| nodes.get(node)).flatten().cloned().collect()
    }

    /// A node is gone, as it was last; or it is there, or nothing is attached to it any more.
    pub(super) fn set_deleted_node(&self, name: &NodeName, last: Option<Arc<Node>>) {
        let mut state = self.lock();
        match last {
            Some(last) => drop(state.deleted_nodes.insert(name.clone(), last)),
            None => drop(state.deleted_nodes.remove(name)),
        }
    }

    /// A node that is gone as it was last, where somebody has seen it.
    pub(super) fn deleted_node(&self, name: &NodeName) -> Option<Arc<Node>> {
        self.lock().deleted_nodes.get(name).cloned()
    }

    /// A CSIDriver by which nothing has to be attached is gone; or there is one.
    pub(super) fn set_csi_driver_deleted(&self, driver: &DriverName, gone: bool) {
        let mut state = self.lock();
        match gone {
            true => drop(state.deleted_csi_drivers.insert(driver.clone(), Instant::now())),
            false => drop(state.deleted_csi_drivers.remove(driver)),
        }
    }

    /// For how long a CSIDriver that is gone still counts: its fields cannot be changed, so who changes one
    /// deletes it and makes another.
    pub(super) fn csi_driver_grace_left(&self, driver: &DriverName) -> Option<Duration> {
        let since = *self.lock().deleted_csi_drivers.get(driver)?;
        CSI_DRIVER_REPLACE_GRACE.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    /// The creation of an attachment has an open outcome.
    pub(super) fn set_uncertain(&self, key: &Key, name: &VolumeAttachmentName, node: &NodeName) {
        let uncertain =
            UncertainAttach { name: name.clone(), node: node.clone(), requested_at: Instant::now() };
        self.lock().uncertain.insert(key.clone(), uncertain);
    }

    /// The attachment whose creation has an open outcome, and for how long it may still be made.
    pub(super) fn uncertain_attachment(&self, key: &Key) -> Option<(VolumeAttachmentName, Duration)> {
        let state = self.lock();
        let uncertain = state.uncertain.get(key)?;
        Some((uncertain.name.clone(), REQUEST_MAY_APPLY.saturating_sub(uncertain.requested_at.elapsed())))
    }

    /// Its node, and for how long.
    pub(super) fn uncertain_node(&self, key: &Key) -> Option<(NodeName, Duration)> {
        let state = self.lock();
        let uncertain = state.uncertain.get(key)?;
        Some((uncertain.node.clone(), REQUEST_MAY_APPLY.saturating_sub(uncertain.requested_at.elapsed())))
    }

    /// It is known what became of the creation.
    pub(super) fn clear_uncertain(&self, key: &Key) {
        self.lock().uncertain.remove(key);
    }

    /// Takes note of all complaints that stand for a key; which of them are new, or have not been heard for a
    /// while.
    pub(super) fn filter_new_failures(&self, key: &Key, failures: &[(Uid, &str)]) -> Vec<bool> {
        let mut state = self.lock();
        let before = state.emitted_failures.remove(key).unwrap_or_default();
        let mut now = HashMap::new();
        let mut new = Vec::new();
        for (uid, text) in failures {
            let digest = self.digest.hash_one(text);
            let since = before
                .get(uid)
                .filter(|(said, since)| *said == digest && since.elapsed() < EVENT_REPEAT_INTERVAL);
            new.push(since.is_none());
            now.insert(uid.clone(), (digest, since.map_or_else(Instant::now, |(_, since)| *since)));
        }
        if !now.is_empty() {
            state.emitted_failures.insert(key.clone(), now);
        }
        new
    }

    /// Whether complaints stand for a key.
    pub(super) fn has_failures(&self, key: &Key) -> bool {
        self.lock().emitted_failures.contains_key(key)
    }

    /// Notes whether a claim leads to a volume; for how long it has not.
    pub(super) fn unresolved_for(&self, claim: &ClaimKey, resolved: bool) -> Duration {
        let mut state = self.lock();
        if resolved {
            state.unresolved.remove(claim);
            return Duration::ZERO;
        }
        state.unresolved.entry(claim.clone()).or_insert_with(Instant::now).elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_update_pending(
        &self,
        node: &NodeName,
        version: ResourceVersion,
        name: &VolumeAttachmentName,
    ) -> bool {
        let open = self.pending_updates.get(node).filter(|update| update.version >= version);
        open.is_some_and(|update| update.names.contains(name) || update.before.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION_1: ResourceVersion = ResourceVersion(1);

    fn node_and_attachment() -> (NodeName, VolumeAttachmentName, Vec<(VolumeAttachmentName, UniqueVolumeName)>)
    {
        let (node, name) = (NodeName::from("n"), VolumeAttachmentName::from("a"));
        (node, name.clone(), vec![(name, "v".into())])
    }

    #[test]
    fn a_started_detach_keeps_its_volume_out_of_volumes_attached() {
        let (state, (node, name, list)) = (AttachState::default(), node_and_attachment());
        assert!(!state.start_detach(&node, &name, || (VERSION_1, true)), "it is told");
        assert!(state.start_detach(&node, &name, || (VERSION_1, false)));
        assert_eq!(state.detach_state(&name), Some(DetachState::Started));
        let listed = |list: &Vec<_>| state.prepare(&node, VERSION_1, list.clone(), |_| true).volumes_attached;
        assert_eq!(listed(&list), []);
        state.end_detach(&name);
        assert_eq!(listed(&list), ["v".into()]);
    }

    #[test]
    fn a_detach_does_not_start_while_an_update_may_list_the_volume() {
        let (state, (node, name, list)) = (AttachState::default(), node_and_attachment());
        state.prepare(&node, VERSION_1, list, |_| true);
        assert!(!state.start_detach(&node, &name, || (VERSION_1, false)), "the write is under way");
        // The same again without it: the first one may still arrive.
        state.prepare(&node, VERSION_1, Vec::new(), |_| true);
        assert!(!state.start_detach(&node, &name, || (VERSION_1, false)));
        assert!(
            state.start_detach(&node, &name, || (ResourceVersion(2), false)),
            "it came too late, or is undone"
        );
        state.end_detach(&name);
        state.commit(&node);
        assert!(state.start_detach(&node, &name, || (VERSION_1, false)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pending_update_is_superseded_once_the_node_is_newer() {
        let (state, (node, name, list)) = (AttachState::default(), node_and_attachment());
        assert_eq!(
            state.prepare(&node, VERSION_1, list, |_| true).unanswered_for,
            None,
            "nothing was sent yet"
        );
        state.mark_sent(&node);
        tokio::time::advance(Duration::from_secs(7)).await;
        let again = state.prepare(&node, VERSION_1, Vec::new(), |_| true);
        assert_eq!((again.unanswered_for, again.superseded), (Some(Duration::from_secs(7)), Vec::new()));
        let newer = state.prepare(&node, ResourceVersion(2), Vec::new(), |_| true);
        assert_eq!((newer.unanswered_for, newer.superseded), (None, vec![name]));
        assert!(state.has_pending_update(&node));
        assert_eq!((state.abort(&node), state.has_pending_update(&node)), (Vec::new(), false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_emitted_once_and_repeated_while_it_persists() {
        let state = AttachState::default();
        let key = Key::WithoutVolume("a".into());
        let (p, q) = (Uid::from("p"), Uid::from("q"));
        assert_eq!(state.filter_new_failures(&key, &[(p.clone(), "x")]), [true]);
        assert_eq!(state.filter_new_failures(&key, &[(p.clone(), "x"), (q, "x")]), [false, true]);
        assert_eq!(state.filter_new_failures(&key, &[(p.clone(), "y")]), [true]);
        tokio::time::advance(EVENT_REPEAT_INTERVAL / 2).await;
        assert_eq!(state.filter_new_failures(&key, &[(p.clone(), "y")]), [false]);
        tokio::time::advance(EVENT_REPEAT_INTERVAL / 2).await;
        assert_eq!(state.filter_new_failures(&key, &[(p.clone(), "y")]), [true], "its event may be gone");
        assert_eq!(state.filter_new_failures(&key, &[(p.clone(), "y")]), [false]);
        assert!(state.has_failures(&key));
        assert_eq!(state.filter_new_failures(&key, &[]), [false; 0]);
        assert!(!state.has_failures(&key));
        assert_eq!(state.filter_new_failures(&key, &[(p, "y")]), [true], "it was over, and is again");
    }

    #[test]
    fn a_volume_detached_meanwhile_is_not_listed() {
        let (state, (node, name, list)) = (AttachState::default(), node_and_attachment());
        // Between the look that found it and the promise it went all its way.
        assert!(state.start_detach(&node, &name, || (VERSION_1, false)));
        state.request_detach(&name, &"d".into());
        state.end_detach(&name);
        assert_eq!(state.prepare(&node, VERSION_1, list, |_| false).volumes_attached, []);
        assert!(!state.is_update_pending(&node, VERSION_1, &name));
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_attachment_leaves_no_timers() {
        let (state, name) = (AttachState::default(), VolumeAttachmentName::from("a"));
        state.remove(&name);
        assert_eq!(state.undesired_for(&name, false, || false), Duration::ZERO);
        assert_eq!(state.attaching_for(&name, || false), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(state.undesired_for(&name, false, || true), Duration::ZERO, "its successor begins anew");
        assert_eq!(state.finish_attach(&name), None);
    }

    #[tokio::test(start_paused = true)]
    async fn timers_run_until_the_state_changes() {
        let state = AttachState::default();
        let name = VolumeAttachmentName::from("a");
        assert_eq!(state.undesired_for(&name, false, || true), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(state.undesired_for(&name, false, || true), Duration::from_secs(5));
        state.undesired_for(&name, true, || true);
        assert_eq!(state.undesired_for(&name, false, || true), Duration::ZERO);
        state.attaching_for(&name, || true);
        state.request_detach(&name, &"d".into());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(state.finish_attach(&name), Some(Duration::from_secs(2)));
        assert_eq!(state.finish_attach(&name), None);
        assert_eq!(state.remove(&name), Some(("d".into(), Duration::from_secs(2))));
        assert_eq!((state.detach_state(&name), state.remove(&name)), (None, None));
    }
}
