//! Carries out what [`rules`] decides, one effect at a time: of a volume its attachments, of a node its list.

mod wakes;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::{
    Precondition, Seen, WriteError,
    metrics::Metrics,
    queue::{Backoff, Outcome, Queue},
    writer::Part,
};
use cofferdam_domain::{
    Attachment, AttachmentName, ClaimKey, Node, NodeName, Pod, ResourceVersion, UniqueVolume, Volume, names,
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    facts::{Run, Sources, entry},
    marks::{Key, Marks, OPEN_FOR, Promised},
    metrics::{AttachDetachMetrics, Operation},
    pace::Pace,
    rules::{self, Facts, Force, Held, MadeFor, Step, Want},
    wants,
};
use crate::{
    act::{Context, MAX_EFFECTS, REPEAT, Teller},
    lookups::Lookups,
    note::Note,
    role::Role,
};

/// `source.component` of this controller's events.
const COMPONENT: &str = "attachdetach-controller";
/// Kubernetes' back-off of attaching and detaching; `--retry-interval-max` makes it shorter.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), most: Duration::from_secs(122) };
/// A claim that leads to no volume is told to its pods after this time: it, or its volume, may be on its way.
const CLAIM_PATIENCE: Duration = Duration::from_secs(1);
/// Volumes that are worked on at once; each takes one small write.
const WORKERS: usize = 64;
/// Nodes whose lists are written at once.
const NODE_WORKERS: usize = 32;

/// The role.
pub(crate) struct AttachDetach {
    context: Arc<Context>,
    volumes: Queue<Key>,
    nodes: Queue<NodeName>,
    marks: Marks,
    pace: Pace,
    /// Nodes that are read past the cache: all volumes that are about to leave one share a read.
    lookups: Lookups,
    metrics: AttachDetachMetrics,
    backoff: Backoff,
}

impl AttachDetach {
    /// The role, woken by every change from now on.
    pub(crate) fn new(context: Arc<Context>, metrics: &Metrics, own: AttachDetachMetrics) -> Arc<Self> {
        own.begin(&context.cache);
        let backoff = BACKOFF.at_most(context.settings.retry_interval_max);
        let role = Arc::new(Self {
            volumes: Queue::new("attachdetach_volumes", backoff, metrics),
            nodes: Queue::new("attachdetach_nodes", backoff, metrics),
            marks: Marks::default(),
            pace: Pace::default(),
            lookups: Lookups::default(),
            metrics: own,
            backoff,
            context,
        });
        role.subscribe();
        role
    }

    /// Works until `stop`.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let (volumes, nodes) = (Arc::clone(self), Arc::clone(self));
        tokio::join!(
            self.volumes.run(WORKERS, stop.clone(), move |key| {
                let me = Arc::clone(&volumes);
                async move { me.work(&key).await }
            }),
            self.nodes.run(NODE_WORKERS, stop, move |name| {
                let me = Arc::clone(&nodes);
                async move { me.node(&name).await }
            }),
        );
    }

    fn sources(&self) -> Sources<'_> {
        Sources {
            cache: &self.context.cache,
            marks: &self.marks,
            force_on_timeout: self.context.settings.force_detach_on_timeout,
        }
    }

    async fn work(&self, key: &Key) -> Outcome {
        if let Key::Claim(claim) = key {
            return self.claim(claim, key);
        }
        if let Some((name, left)) = self.marks.doubted(key) {
            // Until it is known whether it is there, another may be one too many. Not to be there yet says nothing before its time is
            // over, but who asks again for the same knows.
            if let Err(error) = self.context.writer.refresh::<Attachment>(&name).await {
                tracing::debug!(%error, "reading an attachment failed");
                return Outcome::Retry;
            }
            if left.is_zero() || !self.context.cache.attachments.get(&name).is_absent() {
                self.marks.settle(key);
            }
        }
        let (mut run, mut refused) = (Run::default(), Vec::new());
        let mut done = 0;
        while let Some(facts) = self.sources().facts(key, &run) {
            self.welcome(&facts);
            let step = facts.next();
            if matches!(step, Step::Rest) {
                let rest = self.rest(key, &facts, refused);
                return match rest {
                    rest if run.refused.is_empty() => rest,
                    // The others' time goes on.
                    Outcome::After(left) => {
                        let failures = self.volumes.failures(key).saturating_add(1);
                        Outcome::RetryAfter(left.min(self.backoff.pause(failures)))
                    }
                    Outcome::Done | Outcome::Again | Outcome::Retry | Outcome::RetryAfter(_) => {
                        Outcome::Retry
                    }
                };
            }
            // A volume for many nodes has as many effects.
            if done >= MAX_EFFECTS + 4 * (facts.wants.len() + facts.held.len()) {
                return Outcome::Again;
            }
            done += 1;
            if let Err(outcome) = self.perform(key, step, &mut run, &mut refused).await {
                refused.extend(facts.complaints());
                self.complain(key, &refused);
                return outcome;
            }
        }
        self.complain(key, &[]);
        Outcome::Done
    }

    /// Nothing is to be done now. `complaints`: what was refused in this run.
    fn rest(&self, key: &Key, facts: &Facts, mut complaints: Vec<(Arc<Pod>, Note)>) -> Outcome {
        facts.to_be_told().for_each(|node| self.nodes.add(node.clone()));
        complaints.extend(facts.complaints());
        self.complain(key, &complaints);
        let repeat = (!complaints.is_empty()).then_some(REPEAT);
        let pauses = facts.patience().into_iter().chain(repeat).chain(self.marks.replaced(&facts.driver));
        pauses.min().map_or(Outcome::Done, Outcome::After)
    }

    /// One effect.
    async fn perform(
        &self,
        key: &Key,
        step: Step,
        run: &mut Run,
        refused: &mut Vec<(Arc<Pod>, Note)>,
    ) -> Result<(), Outcome> {
        match step {
            Step::Rest => Ok(()),
            Step::Begin(held) => {
                // A look that was before this counts no more.
                run.looked.remove(&held.name);
                if !self.marks.begin(&held.node, &held.name, || self.told(&held)) {
                    // It was told in this moment.
                    self.nodes.add(held.node);
                    return Err(Outcome::Again);
                }
                Ok(())
            }
            Step::CallOff(held) => {
                self.marks.end(&held.name);
                self.nodes.add(held.node);
                Ok(())
            }
            Step::Look(held) => {
                self.look_for_volume(&held).await?;
                let writer = &self.context.writer;
                let read = |_| async { writer.refresh::<Node>(&held.node).await };
                if let Err(error) = self.lookups.look(held.node.as_str(), read).await {
                    tracing::warn!(%error, "a node cannot be read; nothing leaves it before");
                    return Err(Outcome::Retry);
                }
                run.looked.insert(held.name);
                Ok(())
            }
            Step::Detach(held, force) => self.detach(key, &held, force, run).await,
            Step::Attach(wants) => {
                for want in wants.iter().filter(|want| self.is_wanted(want)) {
                    self.attach(key, want, run, refused).await?;
                }
                Ok(())
            }
        }
    }

    /// Whether a pod that wants a volume is still there: it takes a while to attach one to many nodes.
    fn is_wanted(&self, want: &Want) -> bool {
        let there = |pod: &Arc<Pod>| {
            let now = self.context.cache.pods.get(&pod.key).known();
            now.is_some_and(|now| now.meta.uid == pod.meta.uid && !now.terminated)
        };
        want.pods.iter().any(there)
    }

    /// Looks past the cache whether the object is gone that an attachment was made for: lists of two kinds are of two moments.
    async fn look_for_volume(&self, held: &Held) -> Result<(), Outcome> {
        let cache = &self.context.cache;
        let attachment = cache.attachments.get(&held.name).known();
        let Some(name) = attachment.as_ref().and_then(|one| one.volume()) else { return Ok(()) };
        if held.made_for != MadeFor::Nobody || !cache.volumes.get(name).is_absent() {
            return Ok(());
        }
        if let Err(error) = self.context.writer.refresh::<Volume>(name).await {
            tracing::warn!(%error, "a volume cannot be read; it is not detached before");
            return Err(Outcome::Retry);
        }
        Ok(())
    }

    /// Whether a node is told of an attachment, with the version of the node that says so.
    fn told(&self, held: &Held) -> (ResourceVersion, bool) {
        let cache = &self.context.cache;
        let (Some(node), Some(attachment)) =
            (cache.nodes.get(&held.node).known(), cache.attachments.get(&held.name).known())
        else {
            return Default::default();
        };
        let volume = wants::unique_of(cache, &attachment);
        let told = entry(&node, &attachment, volume.as_ref());
        (node.meta.version, told.is_some_and(|told| told.attached))
    }

    fn teller(&self, name: &AttachmentName) -> Teller {
        let cache = &self.context.cache;
        let attachment = cache.attachments.get(name).known();
        let volume = attachment.and_then(|one| cache.volumes.get(one.volume()?).known());
        match volume {
            Some(volume) => Teller::of_volume(&self.context, Role::AttachDetach, &volume),
            None => Teller::of_nothing(&self.context, Role::AttachDetach),
        }
    }

    async fn detach(
        &self,
        key: &Key,
        held: &Held,
        force: Option<Force>,
        run: &mut Run,
    ) -> Result<(), Outcome> {
        let Held { name, uid, node, .. } = held;
        let driver = match self.context.cache.attachments.get(name) {
            Seen::Known(attachment) => attachment.attacher.clone(),
            Seen::Opaque(_) | Seen::Absent => return Err(Outcome::Again),
        };
        if let Some(force) = force {
            self.metrics.forced(force);
            tracing::warn!(%name, %node, reason = force.as_str(), "a volume leaves a node by force");
        }
        self.marks.ask(name, &driver);
        let precondition = Precondition { uid: Some(uid.clone()), version: None };
        let write = self.context.writer.delete::<Attachment>(name, &precondition);
        let done = self.teller(name).act(&format!("detaches the volume from {node}"), write).await;
        match done {
            Ok(()) => {
                self.marks.end(name);
                Ok(())
            }
            Err(error) => {
                if !is_open(&error) {
                    self.marks.end(name);
                }
                tracing::debug!(?key, %error, "a detachment failed");
                self.go_on(name, node, &error, run).await
            }
        }
    }

    async fn attach(
        &self,
        key: &Key,
        want: &Want,
        run: &mut Run,
        refused: &mut Vec<(Arc<Pod>, Note)>,
    ) -> Result<(), Outcome> {
        let Want { node, volume, pods, .. } = want;
        let Some(csi) = &volume.csi else { return Err(Outcome::Again) };
        let name = names::attachment(&csi.driver, &csi.handle, node);
        let body = json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttachment",
            "metadata": {"name": name},
            "spec": {
                "attacher": csi.driver,
                "nodeName": node,
                "source": {"persistentVolumeName": volume.name},
            },
        });
        let teller = Teller::of_volume(&self.context, Role::AttachDetach, volume);
        let write = self.context.writer.create::<Attachment>(None, &body);
        let error = match teller.act(&format!("attaches the volume to {node}"), write).await {
            Ok(_) => {
                self.marks.settle(key);
                self.marks.attaching(&name, || self.is_there(&name));
                return Ok(());
            }
            Err(error) => error,
        };
        if is_open(&error) {
            self.marks.doubt(key, &name, node);
        } else if let WriteError::Refused { .. } = &error {
            let text = format!("AttachVolume.Attach failed for volume \"{}\" : {error}", volume.name);
            let note = Note::warning("FailedAttachVolume", text);
            refused.extend(pods.iter().map(|pod| (Arc::clone(pod), note.clone())));
        }
        self.go_on(&name, node, &error, run).await
    }

    /// How a run goes on after a write for a node that failed. What was refused had no effect, and is no reason to keep the volume's other
    /// nodes waiting.
    async fn go_on(
        &self,
        name: &AttachmentName,
        node: &NodeName,
        error: &WriteError,
        run: &mut Run,
    ) -> Result<(), Outcome> {
        let outcome = self.context.after_failure::<Attachment>(name, error).await;
        if let WriteError::Refused { .. } = error {
            run.refused.insert(node.clone());
            return Ok(());
        }
        Err(outcome)
    }

    /// Tells pods of volumes that have been attached.
    fn welcome(&self, facts: &Facts) {
        for held in facts.held.iter().filter(|held| held.made_for.is_ours() && held.attached) {
            let Some(took) = self.marks.attached(&held.name) else { continue };
            self.metrics.took(Operation::Attach, &facts.driver, took, true);
            let wants = facts.wants.iter().filter(|want| want.node == held.node);
            for (want, pod) in wants.flat_map(|want| want.pods.iter().map(move |pod| (want, pod))) {
                self.context.note(&**pod, COMPONENT, rules::succeeded(&want.volume));
            }
        }
    }

    /// Tells pods what keeps them waiting, each thing once as long as it does.
    fn complain(&self, key: &Key, complaints: &[(Arc<Pod>, Note)]) {
        let of: Vec<_> =
            complaints.iter().map(|(pod, note)| (pod.meta.uid.clone(), note.text.as_str())).collect();
        let new = self.marks.say(key, &of);
        for ((pod, note), _) in complaints.iter().zip(new).filter(|(_, new)| *new) {
            self.context.note(&**pod, COMPONENT, note.clone());
        }
    }

    /// A claim that pods use, and that leads to no volume.
    fn claim(&self, claim: &ClaimKey, key: &Key) -> Outcome {
        let cache = &self.context.cache;
        let pods = cache.pods_using(claim).into_iter().filter(|pod| {
            let managed = |node| cache.nodes.get(node).known().is_some_and(|node| node.managed);
            !pod.terminated && pod.node.as_ref().is_some_and(managed)
        });
        let bound = wants::bound(cache, claim);
        let problem = |pod: &Pod| match &bound {
            Ok((claim, _)) => wants::uses(pod, claim).err(),
            Err(problem) => Some(problem.clone()),
        };
        let complaints: Vec<_> =
            pods.filter_map(|pod| problem(&pod).map(|problem| (pod, rules::unusable(&problem)))).collect();
        let since = self.marks.unresolved(claim, complaints.is_empty());
        if !complaints.is_empty() && since < CLAIM_PATIENCE {
            return Outcome::After(CLAIM_PATIENCE.saturating_sub(since));
        }
        self.complain(key, &complaints);
        if complaints.is_empty() { Outcome::Done } else { Outcome::After(REPEAT) }
    }

    /// The list of a node.
    async fn node(&self, name: &NodeName) -> Outcome {
        let cache = &self.context.cache;
        for _ in 0..MAX_EFFECTS {
            let node = match cache.nodes.get(name) {
                Seen::Known(node) => node,
                Seen::Opaque(_) => return Outcome::Done,
                Seen::Absent => {
                    self.pace.forget(name);
                    // Nobody can be told any more, whatever was asked for.
                    self.free(self.marks.withdraw(name));
                    return Outcome::Done;
                }
            };
            if !node.managed {
                return Outcome::Done;
            }
            if let Some(left) = self.pace.left(name) {
                return Outcome::After(left);
            }
            let Promised { listed, open, freed } =
                self.marks
                    .promise(name, node.meta.version, self.reported(&node), |one| self.is_attached(one));
            self.free(freed);
            let Some(patch) = list(&node, &listed, &self.foreign(&node, &listed)) else {
                match self.is_over(&node, open).await {
                    Ok(true) => self.free(self.marks.keep(name)),
                    Ok(false) => continue,
                    Err(outcome) => return outcome,
                }
                return Outcome::Done;
            };
            let teller = Teller::of_nothing(&self.context, Role::AttachDetach);
            let text = format!("tells {name} of {} attached volumes", listed.len());
            self.marks.send(name);
            let write = self.context.writer.merge::<Node>(name, Part::Status, node.meta.version, patch);
            let since = Instant::now();
            let written = teller.act(&text, write).await;
            // What conflicts was not written, and is decided anew at once.
            if !matches!(written, Err(WriteError::Conflict(_))) {
                self.pace.wrote(name, since.elapsed());
            }
            let Err(error) = written else {
                self.free(self.marks.keep(name));
                continue;
            };
            if is_open(&error) {
                // It may have been under way until now.
                self.marks.send(name);
            }
            // What is refused says nothing of an earlier write; a conflict says that the node is newer than all of them.
            let refused = matches!(error, WriteError::Refused { .. });
            if !is_open(&error) && (open.is_none() || !refused) {
                self.free(self.marks.withdraw(name));
            }
            return self.context.after_failure::<Node>(name, &error).await;
        }
        Outcome::Again
    }

    /// Whether no write of a node's list is open any more, where the list is as it shall be; false where the node is newer than it
    /// was thought to be.
    async fn is_over(&self, node: &Node, open: Option<Duration>) -> Result<bool, Outcome> {
        let Some(open) = open else { return Ok(true) };
        if let Err(error) = self.context.writer.refresh::<Node>(&node.name).await {
            tracing::debug!(%error, "reading a node failed");
            return Err(Outcome::Retry);
        }
        let now = self.context.cache.nodes.get(&node.name).known();
        if now.is_none_or(|now| now.meta.version != node.meta.version) {
            return Ok(false);
        }
        match OPEN_FOR.checked_sub(open).filter(|left| !left.is_zero()) {
            Some(left) => Err(Outcome::After(left)),
            None => Ok(true),
        }
    }

    /// Entries of CSI volumes in a node's list that are not ours: their attachments were made for pods, and are of in-tree plugins that
    /// a driver took over, or cannot be read.
    fn foreign(&self, node: &Node, listed: &[UniqueVolume]) -> BTreeSet<UniqueVolume> {
        let (sources, listed) = (self.sources(), listed.iter().collect::<HashSet<_>>());
        let told = node.volumes.iter().filter(|one| one.attached && !listed.contains(&one.name));
        let foreign = told.filter(|one| {
            let Some((driver, handle)) = one.name.csi() else { return false };
            match self.context.cache.attachments.get(&names::attachment(&driver, &handle, &node.name)) {
                Seen::Absent => false,
                Seen::Opaque(_) => true,
                Seen::Known(attachment) => !attachment.meta.deleting && sources.alone(&attachment).is_none(),
            }
        });
        foreign.map(|one| one.name.clone()).collect()
    }

    /// Whether there is an attachment of this name.
    fn is_there(&self, name: &AttachmentName) -> bool {
        !self.context.cache.attachments.get(name).is_absent()
    }

    /// Whether an attachment is attached, and nobody has asked for its end.
    fn is_attached(&self, name: &AttachmentName) -> bool {
        let now = self.context.cache.attachments.get(name).known();
        now.is_some_and(|now| now.attached && !now.meta.deleting)
    }

    /// What a node shall be told of.
    fn reported(&self, node: &Node) -> Vec<(AttachmentName, UniqueVolume)> {
        let sources = self.sources();
        let attachments = self.context.cache.attachments_of_node(&node.name);
        let made = attachments.iter().filter(|one| names::is_made_for_pods(&one.name));
        let known = made.filter_map(|one| sources.alone(one).map(|(held, volume)| (one, held, volume)));
        let reported = known.filter(|(_, held, _)| rules::is_reported(held, sources.force_on_timeout));
        let named = reported.filter_map(|(one, held, volume)| {
            // A volume that nobody knows any more keeps the place that it has.
            let listed = || entry(node, one, None).filter(|told| told.attached).map(|told| told.name.clone());
            Some((held.name, volume.or_else(listed)?))
        });
        named.collect()
    }
}

/// Whether the outcome of a write is open.
const fn is_open(error: &WriteError) -> bool {
    matches!(error, WriteError::Unavailable { .. } | WriteError::Answer { .. })
}

/// The patch that makes `status.volumesAttached` of a node what it shall be; absent where it is that. What other plugins have there
/// stays, and what is `foreign`.
fn list(node: &Node, reported: &[UniqueVolume], foreign: &BTreeSet<UniqueVolume>) -> Option<Value> {
    let attached = || node.volumes.iter().filter(|volume| volume.attached);
    let others = attached().filter(|volume| volume.name.csi().is_none() || foreign.contains(&volume.name));
    let mut next: BTreeMap<&UniqueVolume, &str> =
        others.map(|volume| (&volume.name, &*volume.device_path)).collect();
    next.extend(reported.iter().map(|name| (name, "")));
    if next.keys().copied().eq(attached().map(|volume| &volume.name)) {
        return None;
    }
    let entries: Vec<Value> =
        next.iter().map(|(name, device_path)| json!({"name": name, "devicePath": device_path})).collect();
    let list = if entries.is_empty() { Value::Null } else { Value::Array(entries) };
    Some(json!({"status": {"volumesAttached": list}}))
}
