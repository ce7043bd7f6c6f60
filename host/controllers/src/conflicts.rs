//! Recognition of another controller that does the work of a role, such as the controllers of
//! kube-controller-manager, which managed clusters cannot switch off.
//!
//! A role names the changes that only its own loop makes, in fields that no tenant may write. Such a change
//! counts if another process has certainly made it while the role was active ([`Change::is_foreign`]), and if
//! the API server records no Cofferdam process as the writer of the field: a second replica does the same
//! work and is not another controller. After [`MAX_CHANGED_OBJECTS`] objects within [`WINDOW`] the role stops
//! for the rest of the process's life.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::{
    Change, ObjectReference, ObjectStore, Writer, api::FIELD_MANAGER, index::Indexed, metrics::Metrics,
};
use tokio::{
    sync::{Mutex, mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    events::{EventRecorder, EventSpec},
    role::Role,
};

/// Time within which changes count together.
const WINDOW: Duration = Duration::from_mins(10);
/// Number of objects whose changes stop the role. A single one could be the repair of an administrator.
const MAX_CHANGED_OBJECTS: usize = 3;
/// Maximum queued changes. Each needs a read of the API server; further ones are dropped.
const QUEUE_CAPACITY: usize = 64;
/// `source.component` of the event.
const COMPONENT: &str = "cofferdam";

/// A path of `fieldsV1` in `metadata.managedFields`.
pub(crate) type FieldPath = &'static [&'static str];

/// The roles of a process that have stopped because another controller does their work, each with a sentence
/// about it.
pub type StoppedRoles = BTreeMap<Role, String>;

/// Stops roles of the process.
pub(crate) struct RoleStops {
    stopped: watch::Sender<StoppedRoles>,
    tokens: HashMap<Role, CancellationToken>,
    metrics: Metrics,
}

impl RoleStops {
    /// The tokens of the roles' controllers are children of `stop`. A role that has stopped earlier in the
    /// life of the process does not start again.
    pub(crate) fn new(
        roles: impl IntoIterator<Item = Role>,
        stopped: watch::Sender<StoppedRoles>,
        stop: &CancellationToken,
        metrics: Metrics,
    ) -> Self {
        let tokens: HashMap<_, _> = roles.into_iter().map(|role| (role, stop.child_token())).collect();
        for (role, token) in &tokens {
            let is_stopped = stopped.borrow().contains_key(role);
            metrics.set_role_stopped(role.as_str(), is_stopped);
            if is_stopped {
                token.cancel();
            }
        }
        Self { stopped, tokens, metrics }
    }

    /// The token that stops the controller of a role; cancelled if the process lacks the role.
    pub(crate) fn token(&self, role: Role) -> CancellationToken {
        self.tokens.get(&role).cloned().unwrap_or_else(|| {
            let token = CancellationToken::new();
            token.cancel();
            token
        })
    }

    fn stop(&self, role: Role, reason: &str) {
        self.stopped.send_modify(|stopped| {
            stopped.insert(role, reason.to_owned());
        });
        self.metrics.set_role_stopped(role.as_str(), true);
        self.token(role).cancel();
    }
}

/// A change that another controller may have made.
struct Candidate {
    object: ObjectReference,
    field: FieldPath,
}

/// Finds changes of another controller for one role.
pub(crate) struct ConflictDetector {
    role: Role,
    writer: Writer,
    events: EventRecorder,
    stops: Arc<RoleStops>,
    candidates: mpsc::Sender<Candidate>,
    queue: Mutex<mpsc::Receiver<Candidate>>,
}

impl ConflictDetector {
    pub(crate) fn new(role: Role, writer: Writer, events: EventRecorder, stops: Arc<RoleStops>) -> Self {
        let (candidates, queue) = mpsc::channel(QUEUE_CAPACITY);
        Self { role, writer, events, stops, candidates, queue: Mutex::new(queue) }
    }

    /// Examines the changes of a kind. `written_field` returns the field that only the role's loop writes, if
    /// the change is one of it.
    pub(crate) fn subscribe<K: Indexed>(
        &self,
        store: &ObjectStore<K>,
        written_field: impl Fn(&Change<K>) -> Option<FieldPath> + Send + Sync + 'static,
    ) {
        let candidates = self.candidates.clone();
        store.subscribe(move |change| {
            if change.is_foreign
                && let (Some(new), Some(field)) = (&change.new, written_field(change))
            {
                // A full queue has enough changes to decide on.
                let _ =
                    candidates.try_send(Candidate { object: ObjectReference::from_object(&**new), field });
            }
        });
    }

    /// Examines changes from now on, until `stop` or until the role stops.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let mut queue = self.queue.lock().await;
        // These changes were made before the role was active.
        while queue.try_recv().is_ok() {}
        let mut changed = ChangedObjects::default();
        loop {
            let candidate = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                candidate = queue.recv() => candidate,
            };
            let Some(candidate) = candidate else { return };
            if !self.is_by_another_controller(&candidate).await {
                continue;
            }
            changed.add(&candidate, Instant::now());
            if let Some(objects) = changed.conflict() {
                self.stop_role(&candidate.object, &objects);
                return;
            }
        }
    }

    /// Returns false for a change by another Cofferdam process, and if the writer cannot be read.
    async fn is_by_another_controller(&self, candidate: &Candidate) -> bool {
        let Candidate { object, field } = candidate;
        let namespace = Some(&*object.namespace).filter(|namespace| !namespace.is_empty());
        match self.writer.read_field_managers(object.resource, namespace, &object.name, field).await {
            Ok(managers) => {
                tracing::debug!(role = %self.role, object = %describe(object), ?managers, "foreign change");
                !managers.iter().any(|manager| manager == FIELD_MANAGER)
            }
            Err(error) => {
                tracing::debug!(role = %self.role, %error, "cannot read the writer of a change");
                false
            }
        }
    }

    fn stop_role(&self, object: &ObjectReference, objects: &str) {
        let role = self.role;
        let reason = format!(
            "another controller does the work of the role {role}: it has changed {objects}. The role has \
             stopped in this process. Disable one of the two controllers, then restart this process"
        );
        tracing::error!(%role, "{reason}");
        self.events.emit_on(
            object.clone(),
            COMPONENT,
            EventSpec::warning("ConflictingController", reason.clone()),
        );
        self.stops.stop(role, &reason);
    }
}

fn describe(object: &ObjectReference) -> String {
    let separator = if object.namespace.is_empty() { "" } else { "/" };
    format!("{} {}{separator}{}", object.resource.kind, object.namespace, object.name)
}

/// Objects that another controller has changed: the last change of each, and its field.
#[derive(Default)]
struct ChangedObjects(BTreeMap<String, (Instant, FieldPath)>);

impl ChangedObjects {
    fn add(&mut self, candidate: &Candidate, now: Instant) {
        self.0.retain(|_, (at, _)| now.duration_since(*at) < WINDOW);
        self.0.insert(describe(&candidate.object), (now, candidate.field));
    }

    /// The list of objects and fields, if there are enough.
    fn conflict(&self) -> Option<String> {
        let listed = self.0.iter().map(|(object, (_, field))| format!("{} of {object}", FieldName(field)));
        (self.0.len() >= MAX_CHANGED_OBJECTS).then(|| listed.collect::<Vec<_>>().join(", "))
    }
}

/// Displays a path of `fieldsV1` as `status.phase`.
struct FieldName(FieldPath);

impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "." };
            write!(f, "{separator}{}", step.strip_prefix("f:").unwrap_or(step))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_cluster::Kind;
    use cofferdam_domain::{Claim, Uid, Volume};

    use super::*;

    const PHASE: FieldPath = &["f:status", "f:phase"];

    fn candidate<K: Kind>(namespace: &str, name: &str) -> Candidate {
        let object = ObjectReference {
            resource: K::RESOURCE,
            namespace: namespace.into(),
            name: name.into(),
            uid: Uid::from("u"),
            resource_version: "1".parse().unwrap(),
        };
        Candidate { object, field: PHASE }
    }

    #[test]
    fn three_objects_within_ten_minutes_are_a_conflict() {
        type Case = (&'static str, &'static [(u64, &'static str)], bool);
        #[rustfmt::skip] // one row a case
        let cases: [Case; 5] = [
            ("two objects", &[(0, "a"), (1, "b")], false),
            ("three changes of two objects", &[(0, "a"), (1, "b"), (2, "a")], false),
            ("three objects", &[(0, "a"), (1, "b"), (599, "c")], true),
            ("the first change is too old", &[(0, "a"), (1, "b"), (600, "c")], false),
            ("the last change of an object counts", &[(0, "a"), (1, "b"), (590, "a"), (600, "c")], true),
        ];
        let begin = Instant::now();
        for (name, changes, is_conflict) in cases {
            let mut changed = ChangedObjects::default();
            for (second, volume) in changes {
                changed.add(&candidate::<Volume>("", volume), begin + Duration::from_secs(*second));
            }
            assert_eq!(changed.conflict().is_some(), is_conflict, "{name}");
        }
    }

    #[test]
    fn the_conflict_names_objects_and_fields() {
        let mut changed = ChangedObjects::default();
        let now = Instant::now();
        [candidate::<Volume>("", "v"), candidate::<Volume>("", "w"), candidate::<Claim>("default", "c")]
            .iter()
            .for_each(|candidate| changed.add(candidate, now));
        let listed = "status.phase of PersistentVolume v, status.phase of PersistentVolume w, \
                      status.phase of PersistentVolumeClaim default/c";
        assert_eq!(changed.conflict().as_deref(), Some(listed));
    }
}
