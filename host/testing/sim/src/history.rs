//! History of a simulation that the invariants depend on.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use tokio::time::Instant;

use crate::{
    action::UserAction,
    api::{claim_names, text},
};

/// Actions of users and processes that the invariants depend on.
#[derive(Default)]
pub(crate) struct History {
    /// Creation times of pods, by name.
    pub(crate) pods_created_at: HashMap<String, Instant>,
    /// Time of the last request of a user to delete a pod of a claim, by node and claim. The pod may still be
    /// terminating. Recorded in paused time only.
    pub(crate) pods_deleted_at: HashMap<(String, String), Instant>,
    /// The last `volumesInUse` of each deleted Node, by its name. Recorded in paused time only.
    pub(crate) volumes_in_use: HashMap<String, Value>,
    /// UIDs of VolumeAttachments whose deletion a process has requested. Repeated requests are not checked
    /// against `volumesInUse` and pods, because a detach that has started is completed.
    pub(crate) detach_requested: HashSet<String>,
}

impl History {
    /// Records an action that a user is about to perform, with the object that it deletes. `deleted` is
    /// `None` for other actions, and in real time.
    pub(crate) fn record(&mut self, action: &UserAction, deleted: Option<&Value>) {
        if let UserAction::Create(object) = action {
            let name = text(object, "/metadata/name");
            match text(object, "/kind") {
                "Pod" => drop(self.pods_created_at.insert(name.to_owned(), Instant::now())),
                "Node" => drop(self.volumes_in_use.remove(name)),
                _ => {}
            }
        }
        let Some(object) = deleted else { return };
        match text(object, "/kind") {
            "Pod" => {
                let node = text(object, "/spec/nodeName");
                for claim in claim_names(object) {
                    self.pods_deleted_at.insert((node.to_owned(), claim.to_owned()), Instant::now());
                }
            }
            "Node" => {
                let in_use = object.pointer("/status/volumesInUse").cloned().unwrap_or_default();
                self.volumes_in_use.insert(text(object, "/metadata/name").to_owned(), in_use);
            }
            _ => {}
        }
    }
}
