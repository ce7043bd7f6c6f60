//! Carries out what [`rules`] decides.

use std::sync::Arc;

use cofferdam_cluster::{
    Change, Seen, WriteError,
    cache::PodIndex,
    metrics::Metrics,
    queue::{Outcome, Queue},
    writer::Cached,
};
use cofferdam_domain::{
    AttributesClass, AttributesClassName, Claim, ClaimKey, DriverName, Pod, Volume, VolumeName, names,
};
use tokio_util::sync::CancellationToken;

use super::rules::{self, Verdict};
use crate::{
    act::{Context, MAX_EFFECTS, Teller},
    lookups::Lookups,
    provisioner,
    role::Role,
};

/// Objects of each kind that are worked on at once; each takes one small write.
const WORKERS: usize = 64;

/// The role.
pub(crate) struct Protection {
    context: Arc<Context>,
    claims: Queue<ClaimKey>,
    volumes: Queue<VolumeName>,
    attributes_classes: Queue<AttributesClassName>,
    lookups: Lookups,
}

impl Protection {
    /// The role, woken by every change from now on.
    pub(crate) fn new(context: Arc<Context>, metrics: &Metrics) -> Arc<Self> {
        let backoff = context.settings.api_backoff();
        let role = Arc::new(Self {
            claims: Queue::new("pvcprotection", backoff, metrics),
            volumes: Queue::new("pvprotection", backoff, metrics),
            attributes_classes: Queue::new("vacprotection", backoff, metrics),
            lookups: Lookups::default(),
            context,
        });
        let (claims, me) = (role.claims.clone(), Arc::downgrade(&role));
        role.context.cache.claims.subscribe(move |change: &Change<Claim>| {
            claims.add(change.key.clone());
            if change.old.as_ref().is_none_or(|old| old.attributes_classes().next().is_some()) {
                me.upgrade().iter().for_each(|me| me.look_at_leaving_classes());
            }
        });
        let (volumes, me) = (role.volumes.clone(), Arc::downgrade(&role));
        role.context.cache.volumes.subscribe(move |change: &Change<Volume>| {
            volumes.add(change.key.clone());
            if change.old.as_ref().is_none_or(|old| !old.attributes_class.is_empty()) {
                me.upgrade().iter().for_each(|me| me.look_at_leaving_classes());
            }
        });
        let classes = role.attributes_classes.clone();
        role.context.cache.attributes_classes.subscribe(move |change| classes.add(change.key.clone()));
        let claims = role.claims.clone();
        role.context.cache.pods.subscribe(move |change: &Change<Pod>| {
            for pod in [&change.old, &change.new].into_iter().flatten() {
                PodIndex::claims_of(pod).for_each(|claim| claims.add(claim));
            }
        });
        role
    }

    /// What named one, or could not be read and may have, may have been what kept it.
    fn look_at_leaving_classes(&self) {
        let classes = self.context.cache.attributes_classes.list();
        let leaving = classes.iter().filter(|class| class.meta.deleting);
        leaving.for_each(|class| self.attributes_classes.add(class.name.clone()));
    }

    /// Works until `stop`.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let (claims, volumes, classes) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        tokio::join!(
            self.claims.run(WORKERS, stop.clone(), move |key| {
                let me = Arc::clone(&claims);
                async move { me.claim(&key).await }
            }),
            self.volumes.run(WORKERS, stop.clone(), move |name| {
                let me = Arc::clone(&volumes);
                async move { me.volume(&name).await }
            }),
            self.attributes_classes.run(WORKERS, stop, move |name| {
                let me = Arc::clone(&classes);
                async move { me.attributes_class(&name).await }
            }),
        );
    }

    async fn claim(&self, key: &ClaimKey) -> Outcome {
        let mut looked_up = None;
        for _ in 0..MAX_EFFECTS {
            let Seen::Known(claim) = self.context.cache.claims.get(key) else { return Outcome::Done };
            let teller = Teller::of_claim(&self.context, Role::Protection, key);
            let verdict =
                rules::claim(&self.context.cache, &claim, looked_up.as_ref() == Some(&claim.meta.uid));
            if verdict == Verdict::LookUpPods {
                looked_up = Some(claim.meta.uid.clone());
            }
            match self.perform(&teller, &*claim, verdict, names::PVC_PROTECTION).await {
                None => return Outcome::Done,
                Some(Ok(())) => {}
                Some(Err(error)) => return self.context.after_failure::<Claim>(key, &error).await,
            }
        }
        Outcome::Again
    }

    async fn volume(&self, name: &VolumeName) -> Outcome {
        for _ in 0..MAX_EFFECTS {
            let Seen::Known(volume) = self.context.cache.volumes.get(name) else { return Outcome::Done };
            let teller = Teller::of_volume(&self.context, Role::Protection, &volume);
            let provisions = |driver: &DriverName| self.context.provisions(driver);
            let provisioner_here = provisioner::rules::is_ours(&provisions, &volume);
            let verdict = rules::volume(&volume, provisioner_here);
            match self.perform(&teller, &*volume, verdict, names::PV_PROTECTION).await {
                None => return Outcome::Done,
                Some(Ok(())) => {}
                Some(Err(error)) => return self.context.after_failure::<Volume>(name, &error).await,
            }
        }
        Outcome::Again
    }

    async fn attributes_class(&self, name: &AttributesClassName) -> Outcome {
        let cache = &self.context.cache;
        for _ in 0..MAX_EFFECTS {
            let Seen::Known(class) = cache.attributes_classes.get(name) else { return Outcome::Done };
            let teller = Teller::of_nothing(&self.context, Role::Protection);
            let verdict = rules::attributes_class(cache, &class);
            match self.perform(&teller, &*class, verdict, names::VAC_PROTECTION).await {
                None => return Outcome::Done,
                Some(Ok(())) => {}
                Some(Err(error)) => return self.context.after_failure::<AttributesClass>(name, &error).await,
            }
        }
        Outcome::Again
    }

    async fn perform<K: Cached>(
        &self,
        teller: &Teller,
        object: &K,
        verdict: Verdict,
        finalizer: &str,
    ) -> Option<Result<(), WriteError>> {
        let writer = &self.context.writer;
        match verdict {
            Verdict::Settled(_) => None,
            Verdict::LookUpPods => {
                let key = object.key();
                let (namespace, _) = K::locate(&key);
                let list = |namespace: String| async move { writer.list::<Pod>(&namespace).await };
                Some(self.lookups.look(namespace.unwrap_or_default(), list).await)
            }
            Verdict::Add => {
                let text = format!("puts {finalizer} on");
                Some(teller.act(&text, writer.add_finalizer(object, finalizer)).await.map(drop))
            }
            Verdict::Remove(at) => {
                let text = format!("takes {finalizer} off");
                let key = object.key();
                let write = writer.remove_finalizer::<K>(&key, &object.meta().uid, at, finalizer);
                Some(teller.act(&text, write).await.map(drop))
            }
        }
    }
}
