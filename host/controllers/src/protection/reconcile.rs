//! Adds and removes protection finalizers as [`rules`] decides, one effect at a time.

use std::{collections::BTreeSet, sync::Arc};

use cofferdam_cluster::{
    ApiError, Cache, Change, Lookup, Writer,
    cache::PodIndex,
    metrics::Metrics,
    queue::{Action, ExponentialBackoff, Queue},
    writer::CachedKind,
};
use cofferdam_domain::{
    Claim, ClaimKey, DriverName, Pod, Volume, VolumeAttributesClass, VolumeAttributesClassName, VolumeName,
    names,
};
use tokio_util::sync::CancellationToken;

use super::rules::{self, FinalizerVerdict};
use crate::{
    controller::Controller,
    live_reads::SingleFlightReads,
    provisioner,
    reconcile::{MAX_EFFECTS, action_for_write_error, subscribe},
    step_recorder::{StepRecorder, StepRecorders},
};

/// Maximum objects of each kind that are reconciled concurrently. Each needs at most one small write, and a
/// claim whose finalizer is removed also a live list of pods.
const WORKERS: usize = 64;

/// Dependencies of the protection controller.
pub(crate) struct ProtectionContext {
    pub(super) cache: Arc<Cache>,
    pub(super) writer: Writer,
    pub(super) recorders: StepRecorders,
    pub(super) backoff: ExponentialBackoff,
    pub(super) queue_metrics: Metrics,
    /// Drivers whose provisioner runs in this process, without node-local drivers.
    pub(super) provisioned_drivers: Arc<BTreeSet<DriverName>>,
}

/// The protection controller.
pub(crate) struct Protection {
    context: ProtectionContext,
    claims: Queue<ClaimKey>,
    volumes: Queue<VolumeName>,
    attributes_classes: Queue<VolumeAttributesClassName>,
    /// Live lists of pods: claims of one namespace share a list.
    pod_reads: SingleFlightReads,
}

impl Controller for Protection {
    type Context = ProtectionContext;

    fn new(context: ProtectionContext) -> Arc<Self> {
        let queue_metrics = &context.queue_metrics;
        Arc::new(Self {
            claims: Queue::new("pvcprotection", context.backoff, queue_metrics),
            volumes: Queue::new("pvprotection", context.backoff, queue_metrics),
            attributes_classes: Queue::new("vacprotection", context.backoff, queue_metrics),
            pod_reads: SingleFlightReads::default(),
            context,
        })
    }

    fn subscribe(self: &Arc<Self>) {
        let cache = &self.context.cache;
        subscribe(self, &cache.claims, |controller: &Self, change: &Change<Claim>| {
            controller.claims.add(change.key.clone());
            if change.old.as_ref().is_none_or(|old| old.attributes_classes().next().is_some()) {
                controller.enqueue_deleting_classes();
            }
        });
        subscribe(self, &cache.volumes, |controller: &Self, change: &Change<Volume>| {
            controller.volumes.add(change.key.clone());
            if change.old.as_ref().is_none_or(|old| !old.attributes_class.is_empty()) {
                controller.enqueue_deleting_classes();
            }
        });
        subscribe(self, &cache.attributes_classes, |controller: &Self, change| {
            controller.attributes_classes.add(change.key.clone());
        });
        subscribe(self, &cache.pods, |controller: &Self, change: &Change<Pod>| {
            for pod in [&change.old, &change.new].into_iter().flatten() {
                PodIndex::claims_of(pod).for_each(|claim| controller.claims.add(claim));
            }
        });
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let (claims, volumes, classes) = (Arc::clone(&self), Arc::clone(&self), Arc::clone(&self));
        tokio::join!(
            self.claims.run(WORKERS, stop.clone(), move |key| {
                let controller = Arc::clone(&claims);
                async move { controller.reconcile_claim(&key).await }
            }),
            self.volumes.run(WORKERS, stop.clone(), move |name| {
                let controller = Arc::clone(&volumes);
                async move { controller.reconcile_volume(&name).await }
            }),
            self.attributes_classes.run(WORKERS, stop, move |name| {
                let controller = Arc::clone(&classes);
                async move { controller.reconcile_attributes_class(&name).await }
            }),
        );
    }
}

impl Protection {
    /// Enqueues the VolumeAttributesClasses that are being deleted: a changed claim or PersistentVolume may
    /// have been the last object that named the class.
    fn enqueue_deleting_classes(&self) {
        let classes = self.context.cache.attributes_classes.list();
        let leaving = classes.iter().filter(|class| class.meta.deleting);
        leaving.for_each(|class| self.attributes_classes.add(class.name.clone()));
    }

    async fn reconcile_claim(&self, key: &ClaimKey) -> Action {
        let mut pods_refreshed_for = None;
        for _ in 0..MAX_EFFECTS {
            let Lookup::Found(claim) = self.context.cache.claims.get(key) else { return Action::Done };
            let recorder = self.context.recorders.of_claim(key);
            let verdict = rules::decide_claim(
                &self.context.cache,
                &claim,
                pods_refreshed_for.as_ref() == Some(&claim.meta.uid),
            );
            if verdict == FinalizerVerdict::RefreshPods {
                pods_refreshed_for = Some(claim.meta.uid.clone());
            }
            match self.perform(&recorder, &*claim, verdict, names::PVC_PROTECTION).await {
                None => return Action::Done,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    return action_for_write_error::<Claim>(&self.context.writer, key, &error).await;
                }
            }
        }
        Action::Requeue
    }

    async fn reconcile_volume(&self, name: &VolumeName) -> Action {
        for _ in 0..MAX_EFFECTS {
            let Lookup::Found(volume) = self.context.cache.volumes.get(name) else { return Action::Done };
            let recorder = self.context.recorders.of_volume(&volume);
            let has_provisioner = |driver: &DriverName| self.context.provisioned_drivers.contains(driver);
            let is_provisioned_here = provisioner::rules::is_managed_volume(&has_provisioner, &volume);
            let verdict = rules::decide_volume(&volume, is_provisioned_here);
            match self.perform(&recorder, &*volume, verdict, names::PV_PROTECTION).await {
                None => return Action::Done,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    return action_for_write_error::<Volume>(&self.context.writer, name, &error).await;
                }
            }
        }
        Action::Requeue
    }

    async fn reconcile_attributes_class(&self, name: &VolumeAttributesClassName) -> Action {
        let cache = &self.context.cache;
        for _ in 0..MAX_EFFECTS {
            let Lookup::Found(class) = cache.attributes_classes.get(name) else { return Action::Done };
            let recorder = self.context.recorders.of_role();
            let verdict = rules::decide_attributes_class(cache, &class);
            match self.perform(&recorder, &*class, verdict, names::VAC_PROTECTION).await {
                None => return Action::Done,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    return action_for_write_error::<VolumeAttributesClass>(
                        &self.context.writer,
                        name,
                        &error,
                    )
                    .await;
                }
            }
        }
        Action::Requeue
    }

    async fn perform<K: CachedKind>(
        &self,
        recorder: &StepRecorder,
        object: &K,
        verdict: FinalizerVerdict,
        finalizer: &str,
    ) -> Option<Result<(), ApiError>> {
        let writer = &self.context.writer;
        match verdict {
            FinalizerVerdict::NoAction(_) => None,
            FinalizerVerdict::RefreshPods => {
                let key = object.key();
                let (namespace, _) = K::key_parts(key);
                let list = |namespace: String| async move { writer.list::<Pod>(&namespace).await };
                Some(self.pod_reads.read_live(namespace.unwrap_or_default(), list).await)
            }
            FinalizerVerdict::Add => {
                let text = format!("adds finalizer {finalizer}");
                Some(recorder.record_effect(&text, writer.add_finalizer(object, finalizer)).await.map(drop))
            }
            FinalizerVerdict::Remove(at) => {
                let text = format!("removes finalizer {finalizer}");
                let key = object.key();
                let write = writer.remove_finalizer::<K>(key, &object.meta().uid, at, finalizer);
                Some(recorder.record_effect(&text, write).await.map(drop))
            }
        }
    }
}
