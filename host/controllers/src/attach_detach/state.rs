//! In-memory state of the attach-detach controller: timers, progress of detaches, requests in flight or with
//! an unknown result, VolumeAttachments whose volume is unknown, deleted Nodes and CSIDrivers, and emitted
//! failures.
//!
//! The state is not persisted. It is empty after a restart, and then every decision is made from cluster
//! objects alone: the force-detach timers start again, and a deleted Node whose status was not observed
//! counts as using its volumes.
//!
//! Invariant: this controller does not add a volume to a Node's `status.volumesAttached` while a detach of
//! the volume from the Node is in progress. To ensure it,
//! - a writer of `volumesAttached` registers the list with [`AttachState::prepare`] before it sends the
//!   update, and
//! - [`AttachState::start_detach`] excludes the volume from every list prepared until the detach ends, and
//!   fails while the list has the volume or an earlier update may still add it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use cofferdam_domain::{
    ClaimKey, DriverName, Node, NodeName, ResourceVersion, Uid, UniqueVolumeName, VolumeAttachment,
    VolumeAttachmentName, VolumeHandle, names,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::rules::DetachState;
use crate::reconcile::EVENT_REPEAT_INTERVAL;

/// Work queue key. The queue runs at most one reconcile per key at a time; keys are reconciled concurrently.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// A volume with its VolumeAttachments.
    Volume(UniqueVolumeName),
    /// A VolumeAttachment for pods whose volume is not known from the cache: its PersistentVolume is deleted,
    /// cannot be decoded, has no CSI source or has another driver or handle, or the VolumeAttachment names no
    /// PersistentVolume (`inlineVolumeSpec`).
    UnresolvedAttachment(VolumeAttachmentName),
    /// A claim. Each pod on a managed node that cannot use the claim's volume gets an event.
    Claim(ClaimKey),
}

/// Default time for which a request without a response may still take effect: kube-apiserver's default
/// request timeout.
pub(super) const REQUEST_MAY_APPLY: Duration = Duration::from_secs(60);

/// Time for which no volume of a driver is attached after the deletion of its CSIDriver with
/// `attachRequired: false`: a client may create the CSIDriver again.
const CSI_DRIVER_REPLACE_GRACE: Duration = Duration::from_secs(10);

/// An update of `volumesAttached` that is prepared, is in flight, or has an unknown result.
struct PendingUpdate {
    /// The resourceVersion that the update requires. Once the Node is newer, the update has succeeded or will
    /// fail.
    version: ResourceVersion,
    names: HashSet<VolumeAttachmentName>,
    /// VolumeAttachments of earlier pending updates that this update lacks.
    before: HashSet<VolumeAttachmentName>,
    /// Time at which the last request of this update, or of an earlier pending one, was sent, or at which
    /// that request ended with an unknown result. `None` before the first request.
    sent: Option<Instant>,
}

impl PendingUpdate {
    fn all(self) -> impl Iterator<Item = VolumeAttachmentName> {
        self.names.into_iter().chain(self.before)
    }
}

/// A prepared update of `volumesAttached`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PreparedUpdate {
    /// The CSI volumes that this controller reports as attached, in no order.
    pub(super) volumes_attached: Vec<UniqueVolumeName>,
    /// Time since the last request of an earlier update that may still take effect was sent, or since that
    /// request ended with an unknown result. `None` if there is no such update.
    pub(super) unanswered_for: Option<Duration>,
    /// VolumeAttachments that are in earlier updates but not in this one. Empty unless the earlier updates
    /// require an older version of the Node and therefore can no longer take effect.
    pub(super) superseded: Vec<VolumeAttachmentName>,
}

/// The creation of a VolumeAttachment whose result is unknown.
struct UncertainAttach {
    name: VolumeAttachmentName,
    node: NodeName,
    /// Time at which the request ended without a known result.
    requested_at: Instant,
}

#[derive(Default)]
struct State {
    unneeded_since: HashMap<VolumeAttachmentName, Instant>,
    attaching: HashMap<VolumeAttachmentName, Instant>,
    deleting: HashMap<VolumeAttachmentName, Instant>,
    detach_states: HashMap<VolumeAttachmentName, DetachState>,
    /// Driver of each VolumeAttachment whose deletion this process requested, and time of the first request.
    detaching: HashMap<VolumeAttachmentName, (DriverName, Instant)>,
    pending_updates: HashMap<NodeName, PendingUpdate>,
    /// VolumeAttachments for pods whose volume is not known from the cache, by driver and node.
    unresolved_attachments: HashMap<DriverName, BTreeMap<NodeName, BTreeSet<VolumeAttachmentName>>>,
    /// Last state of deleted nodes that have VolumeAttachments.
    deleted_nodes: HashMap<NodeName, Arc<Node>>,
    /// Deletion time of CSIDrivers with `attachRequired: false`.
    deleted_csi_drivers: HashMap<DriverName, Instant>,
    /// Keys that an unresolved VolumeAttachment blocks.
    blocked_keys: HashMap<VolumeAttachmentName, BTreeSet<Key>>,
    /// Creations whose result is unknown.
    uncertain: HashMap<Key, UncertainAttach>,
    /// Failures of the last reconcile of each key, by pod UID: digest of the text, and time of the last
    /// event.
    emitted_failures: HashMap<Key, HashMap<Uid, (u64, Instant)>>,
    /// Claims whose volume a pod on a managed node cannot use, with the time when this was first found.
    unusable_claims: HashMap<ClaimKey, Instant>,
}

/// Returns the time since the first call for this name. The timer starts only if `is_there` returns true.
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

/// In-memory state of the controller.
pub(super) struct AttachState {
    state: Mutex<State>,
    digest: RandomState,
    request_may_apply: Duration,
}

impl AttachState {
    /// Creates an empty state. A request without a response may still take effect for `request_may_apply`.
    pub(super) fn new(request_may_apply: Duration) -> Self {
        Self { state: Mutex::default(), digest: RandomState::new(), request_may_apply }
    }

    /// Returns the time for which no pod has needed the volume of an attachment. Starts the timer with the
    /// first call, and removes it while a pod needs the volume. No timer is started if `is_there` returns
    /// false: the timer of a VolumeAttachment that does not exist would never be removed.
    pub(super) fn track_unneeded(
        &self,
        name: &VolumeAttachmentName,
        needed_by_pod: bool,
        is_there: impl FnOnce() -> bool,
    ) -> Duration {
        let mut state = self.state.lock();
        if needed_by_pod {
            state.unneeded_since.remove(name);
            return Duration::ZERO;
        }
        elapsed_since_first(&mut state.unneeded_since, name, is_there)
    }

    /// Returns the duration of an attach so far, from the first call on. `is_there` as for
    /// [`track_unneeded`](Self::track_unneeded).
    pub(super) fn track_attach(
        &self,
        name: &VolumeAttachmentName,
        is_there: impl FnOnce() -> bool,
    ) -> Duration {
        elapsed_since_first(&mut self.state.lock().attaching, name, is_there)
    }

    /// Ends an attach. Returns its duration, or `None` if it has already ended or was never observed.
    pub(super) fn finish_attach(&self, name: &VolumeAttachmentName) -> Option<Duration> {
        self.state.lock().attaching.remove(name).map(|since| since.elapsed())
    }

    /// Returns the time for which a VolumeAttachment has been being deleted, from the first call on.
    /// `is_there` as for [`track_unneeded`](Self::track_unneeded).
    pub(super) fn track_deletion(
        &self,
        name: &VolumeAttachmentName,
        is_there: impl FnOnce() -> bool,
    ) -> Duration {
        elapsed_since_first(&mut self.state.lock().deleting, name, is_there)
    }

    /// Returns the progress of a detach; `None` if none is in progress.
    pub(super) fn detach_state(&self, name: &VolumeAttachmentName) -> Option<DetachState> {
        self.state.lock().detach_states.get(name).copied()
    }

    /// Returns true if a pending update may add the volume to the Node's `volumesAttached`. `version` is that
    /// of the cached Node.
    pub(super) fn is_update_pending(
        &self,
        node: &NodeName,
        version: ResourceVersion,
        name: &VolumeAttachmentName,
    ) -> bool {
        self.state.lock().is_update_pending(node, version, name)
    }

    /// Starts a detach and returns true, unless the volume is in the Node's `volumesAttached` or a pending
    /// update may add it. `listed` is called under the lock. It returns the version of the cached Node, and
    /// whether the Node's `volumesAttached` has the volume.
    pub(super) fn start_detach(
        &self,
        node: &NodeName,
        name: &VolumeAttachmentName,
        listed: impl FnOnce() -> (ResourceVersion, bool),
    ) -> bool {
        let mut state = self.state.lock();
        let (version, listed) = listed();
        let can_start = !listed && !state.is_update_pending(node, version, name);
        if can_start {
            state.detach_states.insert(name.clone(), DetachState::Started);
        }
        can_start
    }

    /// Records that the deletion of a VolumeAttachment is requested.
    pub(super) fn request_detach(&self, name: &VolumeAttachmentName, driver: &DriverName) {
        let mut state = self.state.lock();
        state.detach_states.insert(name.clone(), DetachState::Requested);
        state.detaching.entry(name.clone()).or_insert_with(|| (driver.clone(), Instant::now()));
    }

    /// Returns the time since this process first requested the deletion of the VolumeAttachment; `None` if it
    /// has not.
    pub(super) fn detaching_for(&self, name: &VolumeAttachmentName) -> Option<Duration> {
        self.state.lock().detaching.get(name).map(|(_, since)| since.elapsed())
    }

    /// Ends a detach that was cancelled, or whose delete request was answered. Its duration is measured until
    /// [`remove`](Self::remove).
    pub(super) fn clear_detach_state(&self, name: &VolumeAttachmentName) {
        self.state.lock().detach_states.remove(name);
    }

    /// Removes a deleted VolumeAttachment. Returns its driver and the duration of its detach, or `None` if
    /// this process has not requested the deletion.
    pub(super) fn remove(&self, name: &VolumeAttachmentName) -> Option<(DriverName, Duration)> {
        let mut state = self.state.lock();
        state.unneeded_since.remove(name);
        state.attaching.remove(name);
        state.deleting.remove(name);
        state.detach_states.remove(name);
        state.detaching.remove(name).map(|(driver, since)| (driver, since.elapsed()))
    }

    /// Prepares an update of a node's list: all `names` without a detach in progress for which `is_attached`
    /// returns true. `is_attached` is called under the lock, because a detach may have completed meanwhile.
    pub(super) fn prepare(
        &self,
        node: &NodeName,
        version: ResourceVersion,
        names: Vec<(VolumeAttachmentName, UniqueVolumeName)>,
        is_attached: impl Fn(&VolumeAttachmentName) -> bool,
    ) -> PreparedUpdate {
        let mut state = self.state.lock();
        let is_listed =
            |name: &VolumeAttachmentName| !state.detach_states.contains_key(name) && is_attached(name);
        let listed: Vec<_> = names.into_iter().filter(|(name, _)| is_listed(name)).collect();
        let names = listed.iter().map(|(name, _)| name.clone()).collect();
        let mut update = PendingUpdate { version, names, before: HashSet::new(), sent: None };
        let mut superseded = Vec::new();
        match state.pending_updates.remove(node) {
            Some(pending) if pending.version >= version => {
                update.sent = pending.sent;
                update.before.extend(pending.all().filter(|name| !update.names.contains(name)));
            }
            Some(past) => superseded.extend(past.all().filter(|name| !update.names.contains(name))),
            None => {}
        }
        let unanswered_for = update.sent.map(|sent| sent.elapsed());
        state.pending_updates.insert(node.clone(), update);
        PreparedUpdate {
            volumes_attached: listed.into_iter().map(|(_, name)| name).collect(),
            unanswered_for,
            superseded,
        }
    }

    /// Records that the prepared update is sent, or that its request has ended with an unknown result.
    pub(super) fn mark_sent(&self, node: &NodeName) {
        if let Some(update) = self.state.lock().pending_updates.get_mut(node) {
            update.sent = Some(Instant::now());
        }
    }

    /// Ends a pending update that succeeded, or that was not sent because the Node already has the desired
    /// list.
    /// Returns VolumeAttachments of earlier updates that the list lacks.
    pub(super) fn commit(&self, node: &NodeName) -> HashSet<VolumeAttachmentName> {
        self.state.lock().pending_updates.remove(node).map(|update| update.before).unwrap_or_default()
    }

    /// Ends a pending update that can no longer take effect, and the earlier ones of the node. Returns their
    /// VolumeAttachments.
    pub(super) fn abort(&self, node: &NodeName) -> Vec<VolumeAttachmentName> {
        self.state.lock().pending_updates.remove(node).into_iter().flat_map(PendingUpdate::all).collect()
    }

    /// Returns true if an update of the node's list is pending.
    pub(super) fn has_pending_update(&self, node: &NodeName) -> bool {
        self.state.lock().pending_updates.contains_key(node)
    }

    /// Stores whether a VolumeAttachment exists and its volume is not known from the cache. Returns the keys
    /// that the VolumeAttachment no longer blocks.
    pub(super) fn set_unresolved_attachment(
        &self,
        VolumeAttachment { name, attacher, node, .. }: &VolumeAttachment,
        is_unresolved: bool,
    ) -> BTreeSet<Key> {
        let mut state = self.state.lock();
        if is_unresolved {
            let of_driver = state.unresolved_attachments.entry(attacher.clone()).or_default();
            of_driver.entry(node.clone()).or_default().insert(name.clone());
            return BTreeSet::new();
        }
        let unblocked = state.blocked_keys.remove(name).unwrap_or_default();
        let Some(of_driver) = state.unresolved_attachments.get_mut(attacher) else { return unblocked };
        if of_driver.get_mut(node).is_some_and(|names| names.remove(name) && names.is_empty()) {
            of_driver.remove(node);
        }
        if of_driver.is_empty() {
            state.unresolved_attachments.remove(attacher);
        }
        unblocked
    }

    /// Returns unresolved VolumeAttachments that have the names of the volume's VolumeAttachments. The volume
    /// is recorded as blocked by them: [`set_unresolved_attachment`](Self::set_unresolved_attachment) returns
    /// its key when one of them is deleted or resolved.
    pub(super) fn unresolved_attachments_named_for(
        &self,
        volume: &UniqueVolumeName,
        driver: &DriverName,
        handle: &VolumeHandle,
    ) -> Vec<VolumeAttachmentName> {
        let mut state = self.state.lock();
        let nodes = state.unresolved_attachments.get(driver).into_iter().flatten();
        let named =
            nodes.map(|(node, present)| (names::volume_attachment_name(driver, handle, node), present));
        let found: Vec<_> =
            named.filter(|(name, present)| present.contains(name)).map(|(name, _)| name).collect();
        for name in &found {
            state.blocked_keys.entry(name.clone()).or_default().insert(Key::Volume(volume.clone()));
        }
        found
    }

    /// Records that a VolumeAttachment blocks a key until it is deleted or its volume is known.
    pub(super) fn block(&self, name: &VolumeAttachmentName, key: Key) {
        self.state.lock().blocked_keys.entry(name.clone()).or_default().insert(key);
    }

    /// Returns the unresolved VolumeAttachments of a node.
    pub(super) fn unresolved_attachments_on_node(&self, node: &NodeName) -> Vec<VolumeAttachmentName> {
        let state = self.state.lock();
        state.unresolved_attachments.values().filter_map(|nodes| nodes.get(node)).flatten().cloned().collect()
    }

    /// Stores the last state of a deleted node. `None` removes it.
    pub(super) fn set_deleted_node(&self, name: &NodeName, last: Option<Arc<Node>>) {
        let mut state = self.state.lock();
        match last {
            Some(last) => drop(state.deleted_nodes.insert(name.clone(), last)),
            None => drop(state.deleted_nodes.remove(name)),
        }
    }

    /// Returns the last state of a deleted node, if it is known.
    pub(super) fn deleted_node(&self, name: &NodeName) -> Option<Arc<Node>> {
        self.state.lock().deleted_nodes.get(name).cloned()
    }

    /// Records whether a CSIDriver with `attachRequired: false` is deleted.
    pub(super) fn set_csi_driver_deleted(&self, driver: &DriverName, deleted: bool) {
        let mut state = self.state.lock();
        match deleted {
            true => drop(state.deleted_csi_drivers.insert(driver.clone(), Instant::now())),
            false => drop(state.deleted_csi_drivers.remove(driver)),
        }
    }

    /// Returns the remaining time for which no volume of a driver is attached after the deletion of its
    /// CSIDriver with `attachRequired: false`; `None` if no such CSIDriver was deleted, if it exists again,
    /// or if the time is over. A client can change immutable fields of a CSIDriver only by deleting it and
    /// creating it again.
    pub(super) fn csi_driver_grace_left(&self, driver: &DriverName) -> Option<Duration> {
        let since = *self.state.lock().deleted_csi_drivers.get(driver)?;
        CSI_DRIVER_REPLACE_GRACE.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    /// Records that the request to create the VolumeAttachment `name` ended with an unknown result: an
    /// uncertain creation, at most one per key.
    pub(super) fn set_uncertain(&self, key: &Key, name: &VolumeAttachmentName, node: &NodeName) {
        let uncertain =
            UncertainAttach { name: name.clone(), node: node.clone(), requested_at: Instant::now() };
        self.state.lock().uncertain.insert(key.clone(), uncertain);
    }

    /// Returns the VolumeAttachment of the key's uncertain creation, and the time for which the request may
    /// still take effect; zero if this time is over. `None` without an uncertain creation.
    pub(super) fn uncertain_attachment(&self, key: &Key) -> Option<(VolumeAttachmentName, Duration)> {
        let state = self.state.lock();
        let uncertain = state.uncertain.get(key)?;
        Some((uncertain.name.clone(), self.time_to_apply(uncertain)))
    }

    /// Returns the node of the key's uncertain creation, and the time for which the request may still take
    /// effect; zero if this time is over. `None` without an uncertain creation.
    pub(super) fn uncertain_node(&self, key: &Key) -> Option<(NodeName, Duration)> {
        let state = self.state.lock();
        let uncertain = state.uncertain.get(key)?;
        Some((uncertain.node.clone(), self.time_to_apply(uncertain)))
    }

    fn time_to_apply(&self, uncertain: &UncertainAttach) -> Duration {
        self.request_may_apply.saturating_sub(uncertain.requested_at.elapsed())
    }

    /// Ends the key's uncertain creation, if there is one: the result of the request is known.
    pub(super) fn clear_uncertain(&self, key: &Key) {
        self.state.lock().uncertain.remove(key);
    }

    /// Records the current failures of a key, as pod UID and text. Returns for each failure whether it has to
    /// be emitted as an event: the failure is new, or was last emitted at least [`EVENT_REPEAT_INTERVAL`]
    /// ago.
    pub(super) fn filter_new_failures(&self, key: &Key, failures: &[(Uid, &str)]) -> Vec<bool> {
        let mut state = self.state.lock();
        let before = state.emitted_failures.remove(key).unwrap_or_default();
        let mut now = HashMap::new();
        let mut new = Vec::new();
        for (uid, text) in failures {
            let digest = self.digest.hash_one(text);
            let since = before
                .get(uid)
                .filter(|(emitted, since)| *emitted == digest && since.elapsed() < EVENT_REPEAT_INTERVAL);
            new.push(since.is_none());
            now.insert(uid.clone(), (digest, since.map_or_else(Instant::now, |(_, since)| *since)));
        }
        if !now.is_empty() {
            state.emitted_failures.insert(key.clone(), now);
        }
        new
    }

    /// Returns true if the last call of [`filter_new_failures`](Self::filter_new_failures) for the key had
    /// failures.
    pub(super) fn has_failures(&self, key: &Key) -> bool {
        self.state.lock().emitted_failures.contains_key(key)
    }

    /// Returns the time for which pods have been unable to use a claim's volume, from the first such call on.
    /// `usable` removes the timer.
    pub(super) fn track_unusable_claim(&self, claim: &ClaimKey, usable: bool) -> Duration {
        let mut state = self.state.lock();
        if usable {
            state.unusable_claims.remove(claim);
            return Duration::ZERO;
        }
        state.unusable_claims.entry(claim.clone()).or_insert_with(Instant::now).elapsed()
    }
}

impl State {
    fn is_update_pending(
        &self,
        node: &NodeName,
        version: ResourceVersion,
        name: &VolumeAttachmentName,
    ) -> bool {
        let pending = self.pending_updates.get(node).filter(|update| update.version >= version);
        pending.is_some_and(|update| update.names.contains(name) || update.before.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION_1: ResourceVersion = ResourceVersion(1);

    type NamedVolumes = Vec<(VolumeAttachmentName, UniqueVolumeName)>;

    fn node_and_attachment() -> (NodeName, VolumeAttachmentName, NamedVolumes) {
        let (node, name) = (NodeName::from("n"), VolumeAttachmentName::from("a"));
        (node, name.clone(), vec![(name, "v".into())])
    }

    #[test]
    fn a_started_detach_keeps_its_volume_out_of_volumes_attached() {
        let (state, (node, name, list)) = (AttachState::new(REQUEST_MAY_APPLY), node_and_attachment());
        assert!(!state.start_detach(&node, &name, || (VERSION_1, true)), "the volume is in the node's list");
        assert!(state.start_detach(&node, &name, || (VERSION_1, false)));
        assert_eq!(state.detach_state(&name), Some(DetachState::Started));
        let listed = |list: &Vec<_>| state.prepare(&node, VERSION_1, list.clone(), |_| true).volumes_attached;
        assert_eq!(listed(&list), []);
        state.clear_detach_state(&name);
        assert_eq!(listed(&list), ["v".into()]);
    }

    #[test]
    fn a_detach_does_not_start_while_an_update_may_list_the_volume() {
        let (state, (node, name, list)) = (AttachState::new(REQUEST_MAY_APPLY), node_and_attachment());
        state.prepare(&node, VERSION_1, list, |_| true);
        assert!(!state.start_detach(&node, &name, || (VERSION_1, false)), "an update is pending");
        // An update without the volume: the first update may still take effect.
        state.prepare(&node, VERSION_1, Vec::new(), |_| true);
        assert!(!state.start_detach(&node, &name, || (VERSION_1, false)));
        assert!(
            state.start_detach(&node, &name, || (ResourceVersion(2), false)),
            "the Node is newer than the pending update"
        );
        state.clear_detach_state(&name);
        state.commit(&node);
        assert!(state.start_detach(&node, &name, || (VERSION_1, false)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pending_update_is_superseded_once_the_node_is_newer() {
        let (state, (node, name, list)) = (AttachState::new(REQUEST_MAY_APPLY), node_and_attachment());
        assert_eq!(
            state.prepare(&node, VERSION_1, list, |_| true).unanswered_for,
            None,
            "no request was sent"
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
        let state = AttachState::new(REQUEST_MAY_APPLY);
        let key = Key::UnresolvedAttachment("a".into());
        let (p, q) = (Uid::from("p"), Uid::from("q"));
        assert_eq!(state.filter_new_failures(&key, &[(p.clone(), "x")]), [true]);
        assert_eq!(state.filter_new_failures(&key, &[(p.clone(), "x"), (q, "x")]), [false, true]);
        assert_eq!(state.filter_new_failures(&key, &[(p.clone(), "y")]), [true]);
        tokio::time::advance(EVENT_REPEAT_INTERVAL / 2).await;
        assert_eq!(state.filter_new_failures(&key, &[(p.clone(), "y")]), [false]);
        tokio::time::advance(EVENT_REPEAT_INTERVAL / 2).await;
        assert_eq!(state.filter_new_failures(&key, &[(p.clone(), "y")]), [true], "the event is repeated");
        assert_eq!(state.filter_new_failures(&key, &[(p.clone(), "y")]), [false]);
        assert!(state.has_failures(&key));
        assert_eq!(state.filter_new_failures(&key, &[]), [false; 0]);
        assert!(!state.has_failures(&key));
        assert_eq!(state.filter_new_failures(&key, &[(p, "y")]), [true], "a new occurrence");
    }

    #[test]
    fn a_volume_detached_meanwhile_is_not_listed() {
        let (state, (node, name, list)) = (AttachState::new(REQUEST_MAY_APPLY), node_and_attachment());
        // The detach completed after the names were collected.
        assert!(state.start_detach(&node, &name, || (VERSION_1, false)));
        state.request_detach(&name, &"d".into());
        state.clear_detach_state(&name);
        assert_eq!(state.prepare(&node, VERSION_1, list, |_| false).volumes_attached, []);
        assert!(!state.is_update_pending(&node, VERSION_1, &name));
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_attachment_leaves_no_timers() {
        let (state, name) = (AttachState::new(REQUEST_MAY_APPLY), VolumeAttachmentName::from("a"));
        state.remove(&name);
        assert_eq!(state.track_unneeded(&name, false, || false), Duration::ZERO);
        assert_eq!(state.track_attach(&name, || false), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(state.track_unneeded(&name, false, || true), Duration::ZERO, "a new VolumeAttachment");
        assert_eq!(state.finish_attach(&name), None);
    }

    #[tokio::test(start_paused = true)]
    async fn timers_run_until_the_state_changes() {
        let state = AttachState::new(REQUEST_MAY_APPLY);
        let name = VolumeAttachmentName::from("a");
        assert_eq!(state.track_unneeded(&name, false, || true), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(state.track_unneeded(&name, false, || true), Duration::from_secs(5));
        state.track_unneeded(&name, true, || true);
        assert_eq!(state.track_unneeded(&name, false, || true), Duration::ZERO);
        state.track_attach(&name, || true);
        state.request_detach(&name, &"d".into());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(state.finish_attach(&name), Some(Duration::from_secs(2)));
        assert_eq!(state.finish_attach(&name), None);
        assert_eq!(state.remove(&name), Some(("d".into(), Duration::from_secs(2))));
        assert_eq!((state.detach_state(&name), state.remove(&name)), (None, None));
    }
}
