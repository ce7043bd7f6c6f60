//! Carries out what [`rules`] decides, one effect at a time.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_backend::Call;
use cofferdam_cluster::{
    Change, Seen, WriteError,
    metrics::Metrics,
    queue::{Outcome, Queue},
    secrets,
    writer::Part,
};
use cofferdam_domain::{
    Attachment, AttachmentName, CsiNode, DriverName, NodeId, Volume, VolumeName, names,
    storage::{
        Ability, ErrorKind, Feature, PublishVolume, Secrets, StorageError, attachment::into_publish_context,
    },
};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    lanes::{Lane, Lanes},
    metrics::AttacherMetrics,
    object,
    rules::{self, Able, Unpublish, Verdict, View},
    turns::{Key, Turns},
};
use crate::{
    act::{Context, Driver, MAX_EFFECTS, Teller, every},
    observer::StepKind,
    role::Role,
};

/// The role.
pub(crate) struct Attacher {
    pub(super) context: Arc<Context>,
    lanes: HashMap<DriverName, Lanes>,
    volumes: Queue<VolumeName>,
    turns: Turns,
    /// Attachments whose status their driver's listing contradicts.
    forced: Mutex<HashSet<AttachmentName>>,
    metrics: AttacherMetrics,
}

/// How a run of an attachment ends.
enum End {
    /// It is where it shall be, or not ours any more.
    Settled,
    /// Another attachment's call for the volume runs: it is woken after it.
    Parked,
    /// It comes again.
    Later(Outcome),
}

/// A call that failed, or that could not be made.
struct Failure {
    message: String,
    code: Option<i32>,
    wish: Option<Duration>,
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        let wish = error.retry_after_ms.map(Duration::from_millis);
        Self { message: error.to_string(), code: Some(error.kind.code()), wish }
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { message, code: None, wish: None }
    }
}

/// The turn at a volume; it ends when this is dropped.
struct Held<'a> {
    attacher: &'a Attacher,
    key: Key,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.attacher.wake(self.attacher.turns.end(&self.key));
    }
}

/// A run of an attachment; at its end a turn that was kept for it and that it did not need goes on to the next.
struct Visit<'a> {
    attacher: &'a Attacher,
    name: &'a AttachmentName,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.attacher.wake(self.attacher.turns.pass(self.name));
    }
}

/// What a run knows beside the cache.
#[derive(Default)]
struct Run<'a> {
    gone_from: Vec<NodeId>,
    secrets: Option<Secrets>,
    turn: Option<Held<'a>>,
}

impl Attacher {
    /// The role, woken by every change from now on.
    pub(crate) fn new(context: Arc<Context>, metrics: &Metrics, own: AttacherMetrics) -> Arc<Self> {
        let backoff = context.settings.backoff();
        own.begin(context.drivers.keys());
        let role = Arc::new(Self {
            lanes: context.drivers.keys().map(|name| (name.clone(), Lanes::new(backoff, metrics))).collect(),
            volumes: Queue::new("attacher_volumes", backoff, metrics),
            turns: Turns::default(),
            forced: Mutex::default(),
            metrics: own,
            context,
        });
        let cache = Arc::clone(&role.context.cache);
        let me = Arc::downgrade(&role);
        cache.attachments.subscribe(move |change| {
            if let Some(me) = me.upgrade() {
                me.attachment_changed(change);
            }
        });
        let me = Arc::downgrade(&role);
        cache.volumes.subscribe(move |change| {
            if let Some(me) = me.upgrade() {
                me.volume_changed(change);
            }
        });
        let me = Arc::downgrade(&role);
        cache.csi_nodes.subscribe(move |change| {
            if let Some(me) = me.upgrade() {
                me.node_changed(change);
            }
        });
        role
    }

    /// Works until `stop`.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let workers = self.context.settings.attacher_worker_threads;
        let lanes = self.lanes.iter().flat_map(|(driver, lanes)| {
            Lane::ALL.map(|lane| {
                let (me, driver) = (Arc::clone(self), driver.clone());
                lanes.queue(lane).run(workers, stop.clone(), move |name| {
                    let (me, driver) = (Arc::clone(&me), driver.clone());
                    async move { me.attachment(&driver, lane, &name).await }
                })
            })
        });
        let volumes = Arc::clone(self);
        let volumes = self.volumes.run(workers, stop.clone(), move |name| {
            let me = Arc::clone(&volumes);
            async move { me.volume(&name).await }
        });
        let told = self.context.drivers.iter().filter(|(_, driver)| Self::is_told(driver));
        let compared = told.map(|(name, driver)| self.compare_always(name, driver, stop.clone()));
        tokio::join!(
            futures::future::join_all(lanes),
            volumes,
            futures::future::join_all(compared),
            self.remind(stop.clone()),
        );
    }

    /// Looks at everything now and then (`--resync`).
    async fn remind(&self, stop: CancellationToken) {
        every(self.context.settings.resync, stop, || {
            for attachment in self.context.cache.attachments.list() {
                if let Some(lanes) = self.lanes.get(&attachment.attacher) {
                    lanes.queue(Lane::of(&attachment)).wake(attachment.name.clone());
                }
            }
            let volumes = self.context.cache.volumes.list();
            volumes.iter().filter(|volume| volume.meta.deleting).for_each(|volume| {
                self.volumes.wake(volume.name.clone());
            });
        })
        .await;
    }

    fn attachment_changed(&self, change: &Change<Attachment>) {
        if let Some(old) = &change.old
            && change.new.as_ref().is_none_or(|new| new.meta.uid != old.meta.uid)
        {
            self.unforce(&old.name);
            self.metrics.settled(&old.attacher, &old.name);
            // It may have been the last that kept the volume's object.
            old.volume().into_iter().for_each(|volume| self.volumes.add(volume.clone()));
        }
        if let Some(new) = &change.new
            && rules::matters(change.old.as_deref(), new)
        {
            self.add(new);
        }
    }

    fn volume_changed(&self, change: &Change<Volume>) {
        let Some(new) = &change.new else { return };
        if new.meta.deleting {
            self.volumes.add(change.key.clone());
        }
        let other = |old: &Arc<Volume>| {
            (&old.meta.uid, old.access_modes, &old.csi) != (&new.meta.uid, new.access_modes, &new.csi)
        };
        if change.old.as_ref().is_none_or(other) {
            let attachments = self.context.cache.attachments_of_volume(&change.key);
            self.add_unsettled(attachments.iter());
        }
    }

    fn node_changed(&self, change: &Change<CsiNode>) {
        let id = |node: &Option<Arc<CsiNode>>, attachment: &Attachment| {
            node.as_ref().and_then(|node| node.ids.get(&attachment.attacher).cloned())
        };
        let attachments = self.context.cache.attachments_of_node(&change.key);
        let other = attachments.iter().filter(|one| id(&change.old, one) != id(&change.new, one));
        self.add_unsettled(other);
    }

    /// Looks again at attachments that may have waited for a change of something else.
    fn add_unsettled<'a>(&self, attachments: impl Iterator<Item = &'a Arc<Attachment>>) {
        attachments.filter(|one| one.meta.deleting || !one.attached).for_each(|one| self.add(one));
    }

    fn add(&self, attachment: &Attachment) {
        if let Some(lanes) = self.lanes.get(&attachment.attacher) {
            let lane = Lane::of(attachment);
            self.metrics.waits(&attachment.attacher, lane, &attachment.name);
            lanes.queue(lane).add(attachment.name.clone());
        }
    }

    /// Has an attachment looked at against its status.
    pub(super) fn force(&self, attachment: &Attachment) {
        self.forced().insert(attachment.name.clone());
        self.add(attachment);
    }

    /// Takes the word of the status again.
    pub(super) fn unforce(&self, name: &AttachmentName) {
        self.forced().remove(name);
    }

    fn forced(&self) -> MutexGuard<'_, HashSet<AttachmentName>> {
        self.forced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whose turn it is; one that is gone gives it to the next.
    fn wake(&self, mut next: Option<AttachmentName>) {
        while let Some(name) = next {
            match self.context.cache.attachments.get(&name) {
                Seen::Known(attachment) if self.lanes.contains_key(&attachment.attacher) => {
                    self.add(&attachment);
                    return;
                }
                Seen::Known(_) | Seen::Opaque(_) | Seen::Absent => next = self.turns.pass(&name),
            }
        }
    }

    async fn attachment(&self, driver: &DriverName, lane: Lane, name: &AttachmentName) -> Outcome {
        let _visit = Visit { attacher: self, name };
        let Some(backend) = self.context.drivers.get(driver) else { return Outcome::Done };
        match self.work(driver, backend, lane, name).await {
            End::Settled => {
                // In the other lane it may not be.
                let here = |attachment: &Arc<Attachment>| Lane::of(attachment) == lane;
                if self.context.cache.attachments.get(name).known().is_none_or(|one| here(&one)) {
                    self.metrics.settled(driver, name);
                }
                Outcome::Done
            }
            // The turn wakes it. What failed before stays counted: that it waits is no success.
            End::Parked => Outcome::After(self.context.settings.resync),
            End::Later(outcome) => outcome,
        }
    }

    async fn work(&self, name: &DriverName, driver: &Driver, lane: Lane, key: &AttachmentName) -> End {
        let mut run = Run::default();
        for _ in 0..MAX_EFFECTS {
            let Seen::Known(attachment) = self.context.cache.attachments.get(key) else {
                return End::Settled;
            };
            if attachment.attacher != *name || Lane::of(&attachment) != lane {
                return End::Settled;
            }
            let verdict = self.verdict(driver, &attachment, &run);
            if let Verdict::Settled(_) = verdict {
                self.unforce(key);
                return End::Settled;
            }
            match self.perform(driver, &attachment, verdict, &mut run).await {
                Ok(()) => {}
                Err(end) => return end,
            }
        }
        End::Later(Outcome::Again)
    }

    fn verdict(&self, driver: &Driver, attachment: &Attachment, run: &Run<'_>) -> Verdict {
        let description = driver.backend.description();
        let able = Able {
            publishes: driver.backend.abilities().contains(&Ability::Publishing),
            read_only: description.has(Feature::PublishReadonly),
            tells_writers: description.has(Feature::SingleNodeMultiWriter),
        };
        let view = View {
            cache: &self.context.cache,
            able,
            default_fs_type: self.context.settings.default_fs_type.as_deref(),
            forced: self.forced().contains(&attachment.name),
            gone_from: &run.gone_from,
        };
        rules::attachment(view, attachment)
    }

    /// One effect.
    async fn perform<'a>(
        &'a self,
        driver: &Driver,
        attachment: &Attachment,
        verdict: Verdict,
        run: &mut Run<'a>,
    ) -> Result<(), End> {
        let teller = self.teller(attachment);
        let (writer, key) = (&self.context.writer, &attachment.name);
        let finalizer = names::attacher_finalizer(&attachment.attacher);
        let version = attachment.meta.version;
        let written = match verdict {
            Verdict::Settled(_) => return Ok(()),
            Verdict::Refuse(message) => return Err(self.fail(attachment, message.into()).await),
            Verdict::ProtectVolume(volume) => {
                let write = writer.add_finalizer(&*volume, &finalizer);
                return match teller.act("protects the volume's object", write).await {
                    Ok(_) => Ok(()),
                    Err(error) => {
                        Err(End::Later(self.context.after_failure::<Volume>(&volume.name, &error).await))
                    }
                };
            }
            Verdict::Claim(node) => {
                self.read_secrets(attachment, run).await?;
                let mut finalizers: Vec<&str> =
                    attachment.meta.finalizers.iter().map(AsRef::as_ref).collect();
                if !finalizers.contains(&finalizer.as_str()) {
                    finalizers.push(&finalizer);
                }
                let annotations = json!({names::NODE_ID: node});
                let patch = json!({"metadata": {"finalizers": finalizers, "annotations": annotations}});
                let write = writer.merge::<Attachment>(key, Part::Object, version, patch);
                teller.act("writes down what it attaches", write).await
            }
            Verdict::Publish(request) => {
                if self.read_anew(attachment, run).await? {
                    return Ok(());
                }
                return self.publish(driver, attachment, *request, run, &teller).await;
            }
            Verdict::MarkAttached => {
                let patch = object::attached(attachment, &Default::default());
                let write = writer.merge::<Attachment>(key, Part::Status, version, patch);
                teller.act("is attached: the driver needs nothing for it", write).await
            }
            Verdict::Unpublish(unpublish) => {
                if self.read_anew(attachment, run).await? {
                    return Ok(());
                }
                return self.unpublish(driver, attachment, unpublish, run, &teller).await;
            }
            Verdict::Release(at) => {
                let write = writer.remove_finalizer::<Attachment>(key, &attachment.meta.uid, at, &finalizer);
                teller.act("releases the attachment", write).await
            }
            Verdict::MarkDetached => {
                let write = writer.merge::<Attachment>(key, Part::Status, version, object::detached());
                teller.act("is detached", write).await
            }
        };
        match written {
            Ok(_) => Ok(()),
            Err(error) => Err(self.badly_written(attachment, &error).await),
        }
    }

    /// How a run ends after a write of the attachment that failed. What the API refuses for good its owner has to know.
    async fn badly_written(&self, attachment: &Attachment, error: &WriteError) -> End {
        match error {
            WriteError::Refused { .. } => self.fail(attachment, error.to_string().into()).await,
            WriteError::Conflict(_)
            | WriteError::NotFound(_)
            | WriteError::AlreadyExists(_)
            | WriteError::Unavailable { .. }
            | WriteError::Answer { .. } => {
                End::Later(self.context.after_failure::<Attachment>(&attachment.name, error).await)
            }
        }
    }

    fn take_turn<'a>(
        &'a self,
        attachment: &Attachment,
        handle: &cofferdam_domain::VolumeHandle,
        run: &mut Run<'a>,
    ) -> Result<(), End> {
        if run.turn.is_none() {
            let key = (attachment.attacher.clone(), handle.clone());
            if !self.turns.take(&key, &attachment.name) {
                return Err(End::Parked);
            }
            run.turn = Some(Held { attacher: self, key });
        }
        Ok(())
    }

    async fn publish<'a>(
        &'a self,
        driver: &Driver,
        attachment: &Attachment,
        request: PublishVolume,
        run: &mut Run<'a>,
        teller: &Teller,
    ) -> Result<(), End> {
        self.take_turn(attachment, &request.handle, run)?;
        let call = self.call(run);
        let text = format!("{} publishes the volume to {}", attachment.attacher, request.node);
        let started = Instant::now();
        let answer = driver.backend.publish_volume(call, request).await;
        let record = match answer {
            Ok(record) => record,
            Err(error) => return Err(self.fail(attachment, error.into()).await),
        };
        teller.tell(StepKind::Acts, text, Some(started.elapsed()));
        let patch = object::attached(attachment, &into_publish_context(record));
        let (key, version) = (&attachment.name, attachment.meta.version);
        let write = self.context.writer.merge::<Attachment>(key, Part::Status, version, patch);
        match teller.act("is attached", write).await {
            Ok(_) => {
                self.unforce(key);
                Ok(())
            }
            Err(error) => Err(self.badly_written(attachment, &error).await),
        }
    }

    async fn unpublish<'a>(
        &'a self,
        driver: &Driver,
        attachment: &Attachment,
        unpublish: Unpublish,
        run: &mut Run<'a>,
        teller: &Teller,
    ) -> Result<(), End> {
        let Unpublish { handle, node, former } = unpublish;
        self.take_turn(attachment, &handle, run)?;
        let call = self.call(run);
        let started = Instant::now();
        match driver.backend.unpublish_volume(call, handle, Some(node.clone())).await {
            Ok(()) => {
                let text = format!("{} unpublishes the volume from {node}", attachment.attacher);
                teller.tell(StepKind::Acts, text, Some(started.elapsed()));
            }
            Err(error)
                if former && matches!(error.kind, ErrorKind::NotFound | ErrorKind::InvalidArgument) =>
            {
                let text = format!("{} does not know the node's former name {node}", attachment.attacher);
                teller.tell(StepKind::Acts, text, Some(started.elapsed()));
            }
            Err(error) => return Err(self.fail(attachment, error.into()).await),
        }
        run.gone_from.push(node);
        Ok(())
    }

    fn call(&self, run: &Run<'_>) -> Call {
        Call { deadline: self.context.settings.timeout, secrets: run.secrets.clone().unwrap_or_default() }
    }

    /// Reads the Secret that the volume names, once in a run. To detach it is not needed: a Secret that went first would keep the
    /// volume attached for ever, and the driver says whether it can do without.
    async fn read_secrets(&self, attachment: &Attachment, run: &mut Run<'_>) -> Result<(), End> {
        if run.secrets.is_some() {
            return Ok(());
        }
        let Some(reference) = rules::secret_of(&self.context.cache, attachment) else { return Ok(()) };
        match secrets::read(&self.context.writer, &reference).await {
            Ok(secrets) => run.secrets = Some(secrets),
            Err(WriteError::NotFound(_)) if attachment.meta.deleting => {
                tracing::warn!(attachment = %attachment.name, "Secret {reference} is gone; the driver is asked without it");
                run.secrets = Some(Secrets::default());
            }
            Err(error) => return Err(self.fail(attachment, error.to_string().into()).await),
        }
        Ok(())
    }

    /// Reads the Secret, if that was not done yet; whether it was asked of the API. Then the world has gone on meanwhile, and what
    /// was decided before is decided again: nothing may come between a decision and the driver's turn.
    async fn read_anew(&self, attachment: &Attachment, run: &mut Run<'_>) -> Result<bool, End> {
        let had = run.secrets.is_some();
        self.read_secrets(attachment, run).await?;
        Ok(run.secrets.is_some() && !had)
    }

    /// Writes the failure into the status, and chooses when to try again.
    async fn fail(&self, attachment: &Attachment, failure: Failure) -> End {
        let Failure { message, code, wish } = failure;
        let key = &attachment.name;
        let teller = self.teller(attachment);
        teller.tell(StepKind::Fails, message.clone(), None);
        let deleting = attachment.meta.deleting;
        let patch = object::failed(deleting, self.context.now(), &message, code);
        // As it is by now: other writes of this run may have come between.
        let current = self.context.cache.attachments.get(key).known();
        // Said once is enough: its time is since when it is so.
        let news = |current: &Arc<Attachment>| {
            current.meta.uid == attachment.meta.uid && !object::says(current, &message, code)
        };
        if let Some(current) = current.filter(news) {
            let write =
                self.context.writer.merge::<Attachment>(key, Part::Status, current.meta.version, patch);
            if let Err(error) = write.await {
                // Told or not, it is tried again in time; what has changed is seen then.
                self.context.after_failure::<Attachment>(key, &error).await;
            }
        }
        End::Later(self.later(attachment, wish))
    }

    /// A back-off that is no shorter than what the driver wishes.
    fn later(&self, attachment: &Attachment, wish: Option<Duration>) -> Outcome {
        let (Some(wish), Some(lanes)) = (wish, self.lanes.get(&attachment.attacher)) else {
            return Outcome::Retry;
        };
        let failures = lanes.queue(Lane::of(attachment)).failures(&attachment.name);
        self.context.settings.retry_as_wished(wish, failures)
    }

    fn teller(&self, attachment: &Attachment) -> Teller {
        let name = attachment.volume();
        let volume = name.and_then(|name| self.context.cache.volumes.get(name).known());
        Teller::of_attachment(&self.context, name, volume.as_deref())
    }

    /// Lets go of a volume's object.
    async fn volume(&self, name: &VolumeName) -> Outcome {
        let Seen::Known(volume) = self.context.cache.volumes.get(name) else { return Outcome::Done };
        let ours = |driver: &DriverName| self.lanes.contains_key(driver);
        let (Some(at), Some(csi)) = (rules::volume(&self.context.cache, &ours, &volume), &volume.csi) else {
            return Outcome::Done;
        };
        let finalizer = names::attacher_finalizer(&csi.driver);
        let teller = Teller::of_volume(&self.context, Role::Attacher, &volume);
        let write = self.context.writer.remove_finalizer::<Volume>(name, &volume.meta.uid, at, &finalizer);
        match teller.act("releases the volume's object", write).await {
            Ok(_) => Outcome::Done,
            Err(error) => self.context.after_failure::<Volume>(name, &error).await,
        }
    }
}
