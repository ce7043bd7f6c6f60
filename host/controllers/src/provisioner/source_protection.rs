//! The finalizer of claims whose volume is cloned: adds it before the intent of a clone is written, and
//! removes it as [`source::decide_source_protection`] decides.

use cofferdam_cluster::{Lookup, queue::Action};
use cofferdam_domain::{Claim, ClaimKey, DriverName, Uid, names};

use super::{
    reconcile::Provisioner,
    source::{self, SourceProtectionVerdict},
};
use crate::reconcile::{MAX_EFFECTS, action_for_write_error};

impl Provisioner {
    /// Adds the finalizer to the source claim of the claim `uid`. Returns `None` after success, else the
    /// action that the reconcile of the claim returns.
    pub(super) async fn protect_source(&self, uid: &Uid, source: &Claim) -> Option<Action> {
        let recorder = self.context.recorders.of_claim(&source.key);
        let write = self.context.writer.add_finalizer(source, names::CLONING_PROTECTION);
        let error =
            recorder.record_effect("adds the finalizer of a claim that is cloned", write).await.err()?;
        let action = action_for_write_error::<Claim>(&self.context.writer, &source.key, &error).await;
        Some(match action {
            // The event names a reason that lasts, such as a missing permission.
            Action::Backoff => {
                let message = format!("cannot protect the source claim {}: {error}", source.key);
                self.backoff_after_failure(uid, message, false)
            }
            other @ (Action::Done | Action::Requeue | Action::RequeueAfter(_) | Action::BackoffFor(_)) => {
                other
            }
        })
    }

    /// Enqueues a claim that is being deleted and has the finalizer.
    pub(super) fn enqueue_protected_source(&self, key: &ClaimKey) {
        let is_protected = |claim: &Claim| {
            claim.meta.deleting && claim.meta.finalizer_index(names::CLONING_PROTECTION).is_some()
        };
        if self.protects_sources
            && self.context.cache.claims.get(key).into_object().is_some_and(|c| is_protected(&c))
        {
            self.sources.add(key.clone());
        }
    }

    /// Reconciles the finalizer of a source claim.
    pub(super) async fn reconcile_source(&self, key: &ClaimKey) -> Action {
        for _ in 0..MAX_EFFECTS {
            let Lookup::Found(claim) = self.context.cache.claims.get(key) else { return Action::Done };
            let recorder = self.context.recorders.of_claim(key);
            let is_managed_driver = |driver: &DriverName| {
                self.context.drivers.contains_key(driver) && self.context.local_node_of(driver).is_none()
            };
            let has_intent = |uid: &Uid| self.has_intent_for(uid);
            let cache = &self.context.cache;
            match source::decide_source_protection(cache, &claim, &is_managed_driver, &has_intent) {
                SourceProtectionVerdict::NoAction => return Action::Done,
                // A change of that claim enqueues this one; the removal of an intent does not.
                SourceProtectionVerdict::Wait(_) => return Action::Backoff,
                SourceProtectionVerdict::Remove(index) => {
                    let finalizer = names::CLONING_PROTECTION;
                    let mut finalizers = [(index, finalizer)];
                    let write =
                        self.context.writer.remove_finalizers::<Claim>(key, &claim.meta.uid, &mut finalizers);
                    let text = "removes the finalizer of a claim that was cloned";
                    if let Err(error) = recorder.record_effect(text, write).await {
                        return action_for_write_error::<Claim>(&self.context.writer, key, &error).await;
                    }
                }
            }
        }
        Action::Requeue
    }
}
