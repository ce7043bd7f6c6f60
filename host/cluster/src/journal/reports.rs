//! Reports of a lost journal, for the readiness of the process and as an event on the ConfigMap, and events
//! of other changes that this process has not made.

use std::collections::BTreeMap;

use cofferdam_domain::DriverName;
use tokio::sync::watch;

use super::ownership::JournalLoss;
use crate::events::{Event, EventSink, EventType, ObjectReference};

/// Drivers whose journals this process has lost.
pub type LostJournals = BTreeMap<DriverName, JournalLoss>;

/// `reason` of the event of a loss.
const TAKEN_REASON: &str = "IntentJournalTaken";
/// `reason` of the event of another change.
const CHANGED_REASON: &str = "IntentJournalChanged";

/// The receivers of a journal's reports.
pub struct JournalReports {
    /// Has an entry for the driver from a loss until this process owns the journal again, or no process does.
    /// Has none while the other process has changed nothing for a minute and no request waits.
    pub lost: watch::Sender<LostJournals>,
    /// Gets one event for each loss, and for each change of intents by a client that does not take the
    /// journal.
    pub events: EventSink,
    /// `source.component` of the event.
    pub component: Box<str>,
}

impl JournalReports {
    /// Sets or removes the driver's entry.
    pub(super) fn set_loss(&self, driver: &DriverName, loss: Option<&JournalLoss>) {
        self.lost.send_if_modified(|lost| {
            if lost.get(driver) == loss {
                return false;
            }
            match loss {
                Some(loss) => lost.insert(driver.clone(), loss.clone()),
                None => lost.remove(driver),
            };
            true
        });
    }

    /// Emits the event of a loss on the ConfigMap that names the new owner.
    pub(super) fn emit_loss(&self, config_map: ObjectReference, driver: &DriverName, loss: &JournalLoss) {
        let note = format!(
            "{loss} of driver {driver}; the process that owned it sends no CreateVolume request until the journal \
             has not changed for a minute"
        );
        self.emit(config_map, TAKEN_REASON, note);
    }

    /// Emits the event of a change of intents by another client. `change` names the claims.
    pub(super) fn emit_foreign_change(&self, config_map: ObjectReference, driver: &DriverName, change: &str) {
        let note = format!(
            "another client has changed the intent journal of driver {driver}: {change}; a volume without its \
             intent can leak if this process ends"
        );
        self.emit(config_map, CHANGED_REASON, note);
    }

    fn emit(&self, config_map: ObjectReference, reason: &'static str, note: String) {
        self.events.publish(Event {
            involved_object: config_map,
            event_type: EventType::Warning,
            reason,
            note,
            component: self.component.clone(),
        });
    }
}
