//! Reports intents that have not been completed for a long time, and removes an intent when an operator
//! confirms that the driver has no volume for it.
//!
//! The operator's confirmation is an annotation of the journal's ConfigMap, and not of the claim: tenants may
//! write annotations of their claims, and an intent is often the only reference to a volume. The ConfigMap is
//! not watched. It is read after each failed attempt to complete a stuck intent.
//!
//! If CreateVolume returns the volume, the confirmation must contain its handle. Otherwise a confirmation
//! that was written before the volume was known would leak it. The driver's listing contradicts no such
//! confirmation.

use std::fmt;

use cofferdam_cluster::{Intent, JournalEntry, deletion_freeze, observer::StepResult, queue::Action};
use cofferdam_domain::{
    ReclaimPolicy, VolumeHandle, names,
    storage::{Ability, Secrets, VolumeStatus},
};

use super::reconcile::Provisioner;
use crate::{
    drivers::ManagedDriver,
    events::EventSpec,
    listing::{ListingError, VolumePages},
    step_recorder::StepRecorder,
};

/// The reason why a confirmation that the driver has no volume has no effect: the message of an event.
#[derive(Debug, thiserror::Error)]
enum ConfirmationError {
    #[error("it is empty; expected the reason why the driver certainly has no volume of this name")]
    NoReason,
    #[error(
        "it does not contain the word {0}, the handle of the volume that the driver has returned; expected the \
         handle, and the reason why the volume may be forgotten"
    )]
    OtherVolume(VolumeHandle),
    #[error("deletions are frozen since the cluster was restored from a backup")]
    Frozen,
    #[error("the driver answers that a volume of this name exists with other arguments")]
    AlreadyExists,
    #[error("the driver lists the volume {0}, which was created for this intent")]
    Listed(VolumeHandle),
    #[error("the driver's volumes cannot be listed: {0}")]
    Listing(#[from] ListingError),
}

/// The reason why an intent is not completed.
#[derive(Debug)]
pub(super) enum StuckCause {
    /// CreateVolume has no final result, or could not be called: the error.
    NoResult(String),
    /// CreateVolume has returned the volume.
    Created {
        /// The volume's handle.
        handle: VolumeHandle,
        /// The reason why the volume has no PersistentVolume and is not deleted.
        message: String,
    },
}

impl StuckCause {
    fn message(&self) -> &str {
        match self {
            Self::NoResult(message) | Self::Created { message, .. } => message,
        }
    }
}

/// Returns true if a volume that the driver lists is one that the intent has requested: by its owner, or
/// because its handle contains the name. CSI drivers report no owners, but many build handles from names.
fn is_volume_of(intent: &Intent, status: &VolumeStatus) -> bool {
    let name = intent.request.name.as_str();
    let has_owner = status
        .owner
        .as_ref()
        .is_some_and(|owner| owner.claim_uid == intent.claim_uid || owner.pv_name.as_str() == name);
    has_owner || (!name.is_empty() && status.volume.handle.as_str().contains(name))
}

/// Returns true if a word of the text is the handle, or the whole text is.
fn names_handle(text: &str, handle: &VolumeHandle) -> bool {
    const PUNCTUATION: [char; 12] = [',', ';', '.', ':', '!', '?', '"', '\'', '`', '(', ')', '…'];
    let handle = handle.as_str();
    let is_handle = |word: &str| word == handle || word.trim_matches(PUNCTUATION) == handle;
    is_handle(text.trim()) || text.split_whitespace().any(is_handle)
}

/// Text of the event and log line of an intent that is removed because of a confirmation.
fn confirmed_text(intent: &Intent, cause: &StuckCause, reason: &str) -> String {
    let (driver, name) = (&intent.driver, &intent.request.name);
    match cause {
        StuckCause::NoResult(error) => format!(
            "an operator confirmed that {driver} has no volume {name} ({reason:?}): its intent is removed \
             although CreateVolume has no final result: {error}"
        ),
        StuckCause::Created { handle, message } => format!(
            "an operator confirmed that volume {handle} of {driver} may be forgotten ({reason:?}): the intent \
             of {name} is removed; delete the volume in the storage system if it exists: {message}"
        ),
    }
}

impl Provisioner {
    /// Emits an event about an intent that is stuck after a failed attempt to complete it, on its claim or,
    /// if the claim is deleted, on the journal's ConfigMap. Removes the intent if an operator has confirmed
    /// that the driver has no volume for it, unless the driver says otherwise. Returns the next action if the
    /// intent was removed.
    pub(super) async fn report_if_stuck(
        &self,
        driver: &ManagedDriver,
        intent: &Intent,
        cause: &StuckCause,
        recorder: &StepRecorder,
    ) -> Option<Action> {
        // 1. Check the age of the intent. A completed intent is no longer in the journal.
        let uid = &intent.claim_uid;
        let stuck_after = self.context.stuck_after;
        driver.journal.age(uid, (self.context.clock)()).filter(|age| *age >= stuck_after)?;

        // 2. Read the ConfigMap, which may have a confirmation, and emit the event.
        let entry = match driver.journal.read_entry(uid).await {
            Ok(entry) => entry?,
            Err(error) => {
                recorder.record(StepResult::Failed, error.to_string(), None);
                return None;
            }
        };
        let event = EventSpec::warning("VolumeCreationStuck", self.stuck_text(intent, &entry, cause));
        self.emit_about_intent(driver, intent, &entry, event);

        // 3. Remove the intent if an operator has confirmed that there is no volume.
        let reason = entry.confirmation.as_deref()?;
        let (name, annotation) = (&intent.request.name, names::confirm_no_volume(uid));
        if let Err(error) = self.check_confirmation(driver, intent, cause, reason).await {
            let text = format!("the annotation {annotation} for volume {name} has no effect: {error}");
            recorder.record(StepResult::Failed, text.clone(), None);
            let event = EventSpec::warning("NoVolumeNotConfirmed", text);
            self.emit_about_intent(driver, intent, &entry, event);
            return None;
        }
        if !driver.journal.remove_confirmed(intent) {
            // Another process has written another intent, about which the operator has not decided.
            return None;
        }
        let text = confirmed_text(intent, cause, reason);
        tracing::warn!(claim = %intent.claim, "{text}");
        recorder.record(StepResult::Applied, "removes the intent, as an operator has confirmed", None);
        self.emit_about_intent(driver, intent, &entry, EventSpec::warning("NoVolumeConfirmed", text));
        if self.context.cache.claim_by_uid(uid).is_none() {
            self.call_backoff.remove(uid);
        }
        // A claim that still exists gets a new intent after the back-off.
        Some(Action::Requeue)
    }

    fn stuck_text(&self, intent: &Intent, entry: &JournalEntry, cause: &StuckCause) -> String {
        let (driver, name, claim) = (&intent.driver, &intent.request.name, &intent.claim);
        let since: &dyn fmt::Display = match &intent.recorded_at {
            Some(recorded_at) => &recorded_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            None => &"an earlier version",
        };
        let problem = match cause {
            StuckCause::NoResult(_) => format!(
                "{driver} may have created volume {name}: CreateVolume has had no final result since {since}"
            ),
            StuckCause::Created { handle, .. } => format!(
                "{driver} has created volume {name} with the handle {handle}: it has no PersistentVolume, and \
                 is not deleted, since {since}"
            ),
        };
        let deleted = match self.context.cache.claim_by_uid(&intent.claim_uid) {
            Some(_) => String::new(),
            None => match (&intent.class.reclaim_policy, cause) {
                (ReclaimPolicy::Delete, StuckCause::NoResult(_)) => {
                    format!("; claim {claim} is deleted, and the volume is deleted once it is known")
                }
                _ => format!("; claim {claim} is deleted"),
            },
        };
        let (config_map, message) = (&entry.config_map, cause.message());
        format!(
            "{problem}{deleted}; its intent is the key {} of ConfigMap {}/{}: {message}",
            intent.claim_uid, config_map.namespace, config_map.name
        )
    }

    /// Emits an event on the intent's claim or, if the claim is deleted, on the journal's ConfigMap.
    fn emit_about_intent(
        &self,
        driver: &ManagedDriver,
        intent: &Intent,
        entry: &JournalEntry,
        event: EventSpec,
    ) {
        match self.context.cache.claim_by_uid(&intent.claim_uid) {
            Some(claim) => self.context.events.emit(&*claim, &driver.component, event),
            None => self.context.events.emit_on(entry.config_map.clone(), &driver.component, event),
        }
    }

    /// Checks that nothing contradicts an operator's confirmation: the restore marker, the result of the last
    /// calls, and the driver's listing if it has one. For a volume that the driver has returned, checks that
    /// the operator means this volume.
    async fn check_confirmation(
        &self,
        driver: &ManagedDriver,
        intent: &Intent,
        cause: &StuckCause,
        reason: &str,
    ) -> Result<(), ConfirmationError> {
        if reason.trim().is_empty() {
            return Err(ConfirmationError::NoReason);
        }
        if deletion_freeze::is_frozen(&self.context.cache) {
            return Err(ConfirmationError::Frozen);
        }
        if let StuckCause::Created { handle, .. } = cause {
            return names_handle(reason, handle)
                .then_some(())
                .ok_or_else(|| ConfirmationError::OtherVolume(handle.clone()));
        }
        if self.call_backoff.has_existing_volume(&intent.claim_uid) {
            return Err(ConfirmationError::AlreadyExists);
        }
        if !driver.backend.abilities().contains(&Ability::Listing) {
            return Ok(());
        }
        let mut pages = VolumePages::new(
            &*driver.backend,
            self.context.calls.call(&self.context.term, Secrets::default()),
        );
        while let Some(page) = pages.next().await? {
            if let Some(found) = page.into_iter().find(|status| is_volume_of(intent, status)) {
                return Err(ConfirmationError::Listed(found.volume.handle));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::{
        VolumeName,
        storage::{CreatedVolume, VolumeOwner},
    };

    use super::*;
    use crate::provisioner::mending::tests::intent;

    #[test]
    fn a_confirmation_names_the_handle_as_a_word() {
        for (text, expected) in [
            ("vol-1", true),
            ("forget vol-1, it was deleted by hand", true),
            ("deleted \"vol-1\".", true),
            ("vol-12 was deleted", false),
            ("pool/vol-1 was deleted", false),
            ("", false),
        ] {
            assert_eq!(names_handle(text, &"vol-1".into()), expected, "{text:?}");
        }
        assert!(names_handle(" a b ", &"a b".into()));
    }

    #[test]
    fn listed_volumes_of_an_intent_are_found_by_owner_or_handle() {
        let intent = intent("fast");
        let owner = |claim: &str, volume: &str| {
            Some(VolumeOwner {
                cluster_id: "cluster".into(),
                claim_uid: claim.into(),
                pv_name: VolumeName::from(volume),
                reclaim_policy: ReclaimPolicy::Delete,
            })
        };
        for (handle, owner, expected) in [
            ("vol-1", None, false),
            ("vol-1", owner("other", "pvc-other"), false),
            ("vol-1", owner("1234", "renamed"), true),
            ("vol-1", owner("other", "pvc-1234"), true),
            ("pvc-1234", None, true),
            ("pool/pvc-1234@node", None, true),
            ("pvc-123", None, false),
        ] {
            let status = VolumeStatus {
                volume: CreatedVolume {
                    handle: handle.into(),
                    capacity: None,
                    context: Default::default(),
                    topology: Vec::new(),
                    connection_info: None,
                },
                owner: owner.clone(),
                published_node_ids: Vec::new(),
                condition: None,
                changed_at_ms: None,
            };
            assert_eq!(is_volume_of(&intent, &status), expected, "{handle} {owner:?}");
        }
    }
}
