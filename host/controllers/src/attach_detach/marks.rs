//! What the process remembers between two looks: times, and what it is about to do. After a restart all of it begins anew; nothing
//! depends on it that the cluster does not tell.
//!
//! Two things may never cross: a node being told that a volume is attached, and that volume's detachment. Both sides pass through
//! [`Marks`]: who writes a node's list promises first what will stand there, and a detachment that has begun keeps its volume out of
//! every list that is promised after it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_domain::{
    Attachment, AttachmentName, ClaimKey, DriverName, Node, NodeName, ResourceVersion, Uid, UniqueVolume,
    VolumeHandle, names,
};
use tokio::time::Instant;

use super::rules::Leaving;
use crate::act::REPEAT;

/// What is worked on, one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// A volume with all its attachments.
    Volume(UniqueVolume),
    /// An attachment of a volume that nobody knows any more.
    Orphan(AttachmentName),
    /// A claim that pods use and that leads to no volume.
    Claim(ClaimKey),
}

/// For how long a write without an answer may still be carried out: the API server gives up on a request after a minute.
pub(super) const OPEN_FOR: Duration = Duration::from_secs(60);

/// For how long the successor of a CSIDriver is waited for.
const REPLACED_FOR: Duration = Duration::from_secs(10);

/// A write of a node's list that is under way, or whose outcome is open.
struct Promise {
    /// The version that it depends on: once the node is newer, the write is done or will never be.
    version: ResourceVersion,
    names: HashSet<AttachmentName>,
    /// What writes before it have promised that is not in it.
    before: HashSet<AttachmentName>,
    /// When it was sent last, where it was.
    sent: Option<Instant>,
}

impl Promise {
    fn all(self) -> impl Iterator<Item = AttachmentName> {
        self.names.into_iter().chain(self.before)
    }
}

/// What a node's list will have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Promised {
    /// The volumes, in no order.
    pub(super) listed: Vec<UniqueVolume>,
    /// For how long an earlier write has been without an answer, where there is one.
    pub(super) open: Option<Duration>,
    /// What an earlier write has promised that is over now.
    pub(super) freed: Vec<AttachmentName>,
}

/// The creation of an attachment has an open outcome.
struct Doubt {
    name: AttachmentName,
    node: NodeName,
    /// When it was asked for last.
    asked: Instant,
}

#[derive(Default)]
struct State {
    unwanted: HashMap<AttachmentName, Instant>,
    attaching: HashMap<AttachmentName, Instant>,
    leaving: HashMap<AttachmentName, Leaving>,
    /// Deletions that were asked for, with the driver, since when.
    detaching: HashMap<AttachmentName, (DriverName, Instant)>,
    promises: HashMap<NodeName, Promise>,
    /// Attachments that were made for pods, of volumes that nobody knows any more, by driver and node.
    orphans: HashMap<DriverName, BTreeMap<NodeName, BTreeSet<AttachmentName>>>,
    /// Nodes that are gone and have attachments, as they were last.
    former: HashMap<NodeName, Arc<Node>>,
    /// Drivers whose CSIDriver said that nothing has to be attached, and is gone, since when.
    replaced: HashMap<DriverName, Instant>,
    /// Volumes that an orphan has kept from nodes.
    kept_by: HashMap<AttachmentName, BTreeSet<Key>>,
    /// Attachments whose creation has an open outcome.
    doubts: HashMap<Key, Doubt>,
    /// Complaints that stand: to whom, which, as a digest, and when it was said last.
    said: HashMap<Key, HashMap<Uid, (u64, Instant)>>,
    /// Claims that lead to no volume, since when.
    unresolved: HashMap<ClaimKey, Instant>,
}

/// For how long something has been so, as long as there is whom it is about.
fn since(
    times: &mut HashMap<AttachmentName, Instant>,
    name: &AttachmentName,
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
pub(super) struct Marks {
    state: Mutex<State>,
    digest: RandomState,
}

impl Marks {
    /// Notes whether an attachment is wanted; for how long it has not been. Of one that is not there, by `is_there`, nothing is
    /// remembered: nobody would forget it.
    pub(super) fn unwanted(
        &self,
        name: &AttachmentName,
        wanted: bool,
        is_there: impl FnOnce() -> bool,
    ) -> Duration {
        let mut state = self.lock();
        if wanted {
            state.unwanted.remove(name);
            return Duration::ZERO;
        }
        since(&mut state.unwanted, name, is_there)
    }

    /// An attachment that is wanted is not attached yet; for how long. `is_there` as for [`Marks::unwanted`].
    pub(super) fn attaching(&self, name: &AttachmentName, is_there: impl FnOnce() -> bool) -> Duration {
        since(&mut self.lock().attaching, name, is_there)
    }

    /// An attachment is there; how long it took, where that has not been asked before.
    pub(super) fn attached(&self, name: &AttachmentName) -> Option<Duration> {
        self.lock().attaching.remove(name).map(|since| since.elapsed())
    }

    /// How far a detachment is.
    pub(super) fn leaving(&self, name: &AttachmentName) -> Option<Leaving> {
        self.lock().leaving.get(name).copied()
    }

    /// Whether a write that is under way may tell the node of an attachment. `version`: that of the node as it is known.
    pub(super) fn is_promised(
        &self,
        node: &NodeName,
        version: ResourceVersion,
        name: &AttachmentName,
    ) -> bool {
        self.lock().is_promised(node, version, name)
    }

    /// Begins a detachment, unless the node is told of the volume or may be. `listed` looks at the node as it is known by then.
    pub(super) fn begin(
        &self,
        node: &NodeName,
        name: &AttachmentName,
        listed: impl FnOnce() -> (ResourceVersion, bool),
    ) -> bool {
        let mut state = self.lock();
        let (version, listed) = listed();
        let free = !listed && !state.is_promised(node, version, name);
        if free {
            state.leaving.insert(name.clone(), Leaving::Begun);
        }
        free
    }

    /// The deletion of an attachment is asked for.
    pub(super) fn ask(&self, name: &AttachmentName, driver: &DriverName) {
        let mut state = self.lock();
        state.leaving.insert(name.clone(), Leaving::Asked);
        state.detaching.entry(name.clone()).or_insert_with(|| (driver.clone(), Instant::now()));
    }

    /// For how long an attachment has been going since we asked for that.
    pub(super) fn detaching(&self, name: &AttachmentName) -> Option<Duration> {
        self.lock().detaching.get(name).map(|(_, since)| since.elapsed())
    }

    /// A detachment is over: called off, refused, or written down in the cluster.
    pub(super) fn end(&self, name: &AttachmentName) {
        self.lock().leaving.remove(name);
    }

    /// An attachment is gone. Returns its driver and how long it took, where we asked for it.
    pub(super) fn forget(&self, name: &AttachmentName) -> Option<(DriverName, Duration)> {
        let mut state = self.lock();
        state.unwanted.remove(name);
        state.attaching.remove(name);
        state.leaving.remove(name);
        state.detaching.remove(name).map(|(driver, since)| (driver, since.elapsed()))
    }

    /// Promises what a node's list will have: of `names` those that are not about to leave. `is_attached` looks once more: one that
    /// has left since the names were found is no mark any longer.
    pub(super) fn promise(
        &self,
        node: &NodeName,
        version: ResourceVersion,
        names: Vec<(AttachmentName, UniqueVolume)>,
        is_attached: impl Fn(&AttachmentName) -> bool,
    ) -> Promised {
        let mut state = self.lock();
        let stays = |name: &AttachmentName| !state.leaving.contains_key(name) && is_attached(name);
        let kept: Vec<_> = names.into_iter().filter(|(name, _)| stays(name)).collect();
        let names = kept.iter().map(|(name, _)| name.clone()).collect();
        let mut promise = Promise { version, names, before: HashSet::new(), sent: None };
        let mut freed = Vec::new();
        match state.promises.remove(node) {
            Some(open) if open.version >= version => {
                promise.sent = open.sent;
                promise.before.extend(open.all().filter(|name| !promise.names.contains(name)));
            }
            Some(over) => freed.extend(over.all().filter(|name| !promise.names.contains(name))),
            None => {}
        }
        let open = promise.sent.map(|sent| sent.elapsed());
        state.promises.insert(node.clone(), promise);
        Promised { listed: kept.into_iter().map(|(_, name)| name).collect(), open, freed }
    }

    /// What was promised is written now.
    pub(super) fn send(&self, node: &NodeName) {
        if let Some(promise) = self.lock().promises.get_mut(node) {
            promise.sent = Some(Instant::now());
        }
    }

    /// The node has what was promised. Returns what it was promised before and does not have.
    pub(super) fn keep(&self, node: &NodeName) -> HashSet<AttachmentName> {
        self.lock().promises.remove(node).map(|promise| promise.before).unwrap_or_default()
    }

    /// A promise is not kept, and never will be. Returns what it was about.
    pub(super) fn withdraw(&self, node: &NodeName) -> Vec<AttachmentName> {
        self.lock().promises.remove(node).into_iter().flat_map(Promise::all).collect()
    }

    /// Whether a write of a node's list is under way or open.
    pub(super) fn has_promised(&self, node: &NodeName) -> bool {
        self.lock().promises.contains_key(node)
    }

    /// Takes note of whether an attachment is there whose volume nobody knows any more.
    /// Returns what one that is no more has kept from nodes.
    pub(super) fn orphan(
        &self,
        Attachment { name, attacher, node, .. }: &Attachment,
        is: bool,
    ) -> BTreeSet<Key> {
        let mut state = self.lock();
        if is {
            let of_driver = state.orphans.entry(attacher.clone()).or_default();
            of_driver.entry(node.clone()).or_default().insert(name.clone());
            return BTreeSet::new();
        }
        let freed = state.kept_by.remove(name).unwrap_or_default();
        let Some(of_driver) = state.orphans.get_mut(attacher) else { return freed };
        if of_driver.get_mut(node).is_some_and(|names| names.remove(name) && names.is_empty()) {
            of_driver.remove(node);
        }
        if of_driver.is_empty() {
            state.orphans.remove(attacher);
        }
        freed
    }

    /// Those that have the names of a volume's attachments. When they are gone, the volume is looked at again.
    pub(super) fn orphans_of(
        &self,
        volume: &UniqueVolume,
        driver: &DriverName,
        handle: &VolumeHandle,
    ) -> Vec<AttachmentName> {
        let mut state = self.lock();
        let nodes = state.orphans.get(driver).into_iter().flatten();
        let named = nodes.map(|(node, there)| (names::attachment(driver, handle, node), there));
        let found: Vec<_> =
            named.filter(|(name, there)| there.contains(name)).map(|(name, _)| name).collect();
        for name in &found {
            state.kept_by.entry(name.clone()).or_default().insert(Key::Volume(volume.clone()));
        }
        found
    }

    /// Those on a node.
    pub(super) fn orphans_on(&self, node: &NodeName) -> Vec<AttachmentName> {
        let state = self.lock();
        state.orphans.values().filter_map(|nodes| nodes.get(node)).flatten().cloned().collect()
    }

    /// A node is gone, as it was last; or it is there, or nothing is attached to it any more.
    pub(super) fn went(&self, name: &NodeName, last: Option<Arc<Node>>) {
        let mut state = self.lock();
        match last {
            Some(last) => drop(state.former.insert(name.clone(), last)),
            None => drop(state.former.remove(name)),
        }
    }

    /// A node that is gone as it was last, where somebody has seen it.
    pub(super) fn former(&self, name: &NodeName) -> Option<Arc<Node>> {
        self.lock().former.get(name).cloned()
    }

    /// A CSIDriver by which nothing has to be attached is gone; or there is one.
    pub(super) fn replace(&self, driver: &DriverName, gone: bool) {
        let mut state = self.lock();
        match gone {
            true => drop(state.replaced.insert(driver.clone(), Instant::now())),
            false => drop(state.replaced.remove(driver)),
        }
    }

    /// For how long a CSIDriver that is gone still counts: its fields cannot be changed, so who changes one deletes it and makes
    /// another.
    pub(super) fn replaced(&self, driver: &DriverName) -> Option<Duration> {
        let since = *self.lock().replaced.get(driver)?;
        REPLACED_FOR.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    /// The creation of an attachment has an open outcome.
    pub(super) fn doubt(&self, key: &Key, name: &AttachmentName, node: &NodeName) {
        let doubt = Doubt { name: name.clone(), node: node.clone(), asked: Instant::now() };
        self.lock().doubts.insert(key.clone(), doubt);
    }

    /// The attachment whose creation has an open outcome, and for how long it may still be made.
    pub(super) fn doubted(&self, key: &Key) -> Option<(AttachmentName, Duration)> {
        let state = self.lock();
        let doubt = state.doubts.get(key)?;
        Some((doubt.name.clone(), OPEN_FOR.saturating_sub(doubt.asked.elapsed())))
    }

    /// Its node, and for how long.
    pub(super) fn doubted_on(&self, key: &Key) -> Option<(NodeName, Duration)> {
        let state = self.lock();
        let doubt = state.doubts.get(key)?;
        Some((doubt.node.clone(), OPEN_FOR.saturating_sub(doubt.asked.elapsed())))
    }

    /// It is known what became of the creation.
    pub(super) fn settle(&self, key: &Key) {
        self.lock().doubts.remove(key);
    }

    /// Takes note of all complaints that stand for a key; which of them are new, or have not been heard for a while.
    pub(super) fn say(&self, key: &Key, complaints: &[(Uid, &str)]) -> Vec<bool> {
        let mut state = self.lock();
        let before = state.said.remove(key).unwrap_or_default();
        let mut now = HashMap::new();
        let mut new = Vec::new();
        for (uid, text) in complaints {
            let digest = self.digest.hash_one(text);
            let since = before.get(uid).filter(|(said, since)| *said == digest && since.elapsed() < REPEAT);
            new.push(since.is_none());
            now.insert(uid.clone(), (digest, since.map_or_else(Instant::now, |(_, since)| *since)));
        }
        if !now.is_empty() {
            state.said.insert(key.clone(), now);
        }
        new
    }

    /// Whether complaints stand for a key.
    pub(super) fn has_said(&self, key: &Key) -> bool {
        self.lock().said.contains_key(key)
    }

    /// Notes whether a claim leads to a volume; for how long it has not.
    pub(super) fn unresolved(&self, claim: &ClaimKey, resolved: bool) -> Duration {
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
    fn is_promised(&self, node: &NodeName, version: ResourceVersion, name: &AttachmentName) -> bool {
        let open = self.promises.get(node).filter(|promise| promise.version >= version);
        open.is_some_and(|promise| promise.names.contains(name) || promise.before.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ResourceVersion = ResourceVersion(1);

    fn names() -> (NodeName, AttachmentName, Vec<(AttachmentName, UniqueVolume)>) {
        let (node, name) = (NodeName::from("n"), AttachmentName::from("a"));
        (node, name.clone(), vec![(name, "v".into())])
    }

    #[test]
    fn a_node_is_not_told_of_what_is_about_to_leave() {
        let (marks, (node, name, list)) = (Marks::default(), names());
        assert!(!marks.begin(&node, &name, || (ONE, true)), "it is told");
        assert!(marks.begin(&node, &name, || (ONE, false)));
        assert_eq!(marks.leaving(&name), Some(Leaving::Begun));
        let listed = |list: &Vec<_>| marks.promise(&node, ONE, list.clone(), |_| true).listed;
        assert_eq!(listed(&list), []);
        marks.end(&name);
        assert_eq!(listed(&list), ["v".into()]);
    }

    #[test]
    fn nothing_leaves_that_a_node_may_be_told_of() {
        let (marks, (node, name, list)) = (Marks::default(), names());
        marks.promise(&node, ONE, list, |_| true);
        assert!(!marks.begin(&node, &name, || (ONE, false)), "the write is under way");
        // The same again without it: the first one may still arrive.
        marks.promise(&node, ONE, Vec::new(), |_| true);
        assert!(!marks.begin(&node, &name, || (ONE, false)));
        assert!(marks.begin(&node, &name, || (ResourceVersion(2), false)), "it came too late, or is undone");
        marks.end(&name);
        marks.keep(&node);
        assert!(marks.begin(&node, &name, || (ONE, false)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_promised_is_free_once_the_node_is_newer() {
        let (marks, (node, name, list)) = (Marks::default(), names());
        assert_eq!(marks.promise(&node, ONE, list, |_| true).open, None, "nothing was sent yet");
        marks.send(&node);
        tokio::time::advance(Duration::from_secs(7)).await;
        let again = marks.promise(&node, ONE, Vec::new(), |_| true);
        assert_eq!((again.open, again.freed), (Some(Duration::from_secs(7)), Vec::new()));
        let newer = marks.promise(&node, ResourceVersion(2), Vec::new(), |_| true);
        assert_eq!((newer.open, newer.freed), (None, vec![name]));
        assert!(marks.has_promised(&node));
        assert_eq!((marks.withdraw(&node), marks.has_promised(&node)), (Vec::new(), false));
    }

    #[tokio::test(start_paused = true)]
    async fn complaints_are_said_once_and_now_and_then_as_long_as_they_stand() {
        let marks = Marks::default();
        let key = Key::Orphan("a".into());
        let (p, q) = (Uid::from("p"), Uid::from("q"));
        assert_eq!(marks.say(&key, &[(p.clone(), "x")]), [true]);
        assert_eq!(marks.say(&key, &[(p.clone(), "x"), (q, "x")]), [false, true]);
        assert_eq!(marks.say(&key, &[(p.clone(), "y")]), [true]);
        tokio::time::advance(REPEAT / 2).await;
        assert_eq!(marks.say(&key, &[(p.clone(), "y")]), [false]);
        tokio::time::advance(REPEAT / 2).await;
        assert_eq!(marks.say(&key, &[(p.clone(), "y")]), [true], "its event may be gone");
        assert_eq!(marks.say(&key, &[(p.clone(), "y")]), [false]);
        assert!(marks.has_said(&key));
        assert_eq!(marks.say(&key, &[]), [false; 0]);
        assert!(!marks.has_said(&key));
        assert_eq!(marks.say(&key, &[(p, "y")]), [true], "it was over, and is again");
    }

    #[test]
    fn a_node_is_not_told_of_what_has_left_meanwhile() {
        let (marks, (node, name, list)) = (Marks::default(), names());
        // Between the look that found it and the promise it went all its way.
        assert!(marks.begin(&node, &name, || (ONE, false)));
        marks.ask(&name, &"d".into());
        marks.end(&name);
        assert_eq!(marks.promise(&node, ONE, list, |_| false).listed, []);
        assert!(!marks.is_promised(&node, ONE, &name));
    }

    #[tokio::test(start_paused = true)]
    async fn of_what_is_gone_nothing_is_remembered() {
        let (marks, name) = (Marks::default(), AttachmentName::from("a"));
        marks.forget(&name);
        assert_eq!(marks.unwanted(&name, false, || false), Duration::ZERO);
        assert_eq!(marks.attaching(&name, || false), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(marks.unwanted(&name, false, || true), Duration::ZERO, "its successor begins anew");
        assert_eq!(marks.attached(&name), None);
    }

    #[tokio::test(start_paused = true)]
    async fn time_runs_as_long_as_nothing_changes() {
        let marks = Marks::default();
        let name = AttachmentName::from("a");
        assert_eq!(marks.unwanted(&name, false, || true), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(marks.unwanted(&name, false, || true), Duration::from_secs(5));
        marks.unwanted(&name, true, || true);
        assert_eq!(marks.unwanted(&name, false, || true), Duration::ZERO);
        marks.attaching(&name, || true);
        marks.ask(&name, &"d".into());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(marks.attached(&name), Some(Duration::from_secs(2)));
        assert_eq!(marks.attached(&name), None);
        assert_eq!(marks.forget(&name), Some(("d".into(), Duration::from_secs(2))));
        assert_eq!((marks.leaving(&name), marks.forget(&name)), (None, None));
    }
}
