//! Recognition of another controller that does the work of a role, such as the controllers of
//! kube-controller-manager, which managed clusters cannot switch off.
//!
//! A role names the changes that only its own loop makes, in fields that no tenant may write. Such a change
//! counts if another process has certainly made it while the role was active
//! ([`ObjectStore::subscribe_foreign`]), and if the API server records no Cofferdam process as the writer of
//! the field: a second replica does the same work and is not another controller. After
//! [`MAX_CHANGED_OBJECTS`] objects within [`WINDOW`] the role stops for the rest of the process's life.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use cofferdam_cluster::{
    Change, ObjectReference, ObjectStore, api::FIELD_MANAGER, field_managers, index::Indexed,
    metrics::Metrics,
};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    events::{EventRecorder, EventSpec},
    role::Role,
};

/// Time within which changes count together.
const WINDOW: Duration = Duration::from_mins(10);
/// Number of objects whose changes stop the role. A single one could be the repair of an administrator.
const MAX_CHANGED_OBJECTS: usize = 3;
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

/// Finds changes of another controller for one role.
pub(crate) struct ConflictDetector {
    role: Role,
    events: EventRecorder,
    stops: Arc<RoleStops>,
    /// `None` before the role is active and after it has stopped.
    changed: Mutex<Option<ChangedObjects>>,
}

impl ConflictDetector {
    pub(crate) fn new(role: Role, events: EventRecorder, stops: Arc<RoleStops>) -> Self {
        Self { role, events, stops, changed: Mutex::default() }
    }

    /// Examines the changes of a kind. `written_field` returns the field that only the role's loop writes, if
    /// the change is one of it.
    pub(crate) fn subscribe<K: Indexed>(
        self: &Arc<Self>,
        store: &ObjectStore<K>,
        written_field: impl Fn(&Change<K>) -> Option<FieldPath> + Send + Sync + 'static,
    ) {
        store.subscribe_foreign(self, move |detector, change, json| {
            if let (Some(new), Some(field)) = (&change.new, written_field(change))
                && let object = serde_json::from_str(json).unwrap_or_default()
                && !field_managers(&object, field).contains(&FIELD_MANAGER)
            {
                detector.add(ObjectReference::from_object(&**new), field);
            }
        });
    }

    /// The role is active: changes count from now on.
    pub(crate) fn activate(&self) {
        let is_stopped = self.stops.token(self.role).is_cancelled();
        *self.changed.lock() = (!is_stopped).then(ChangedObjects::default);
    }

    fn add(&self, object: ObjectReference, field: FieldPath) {
        let mut changed = self.changed.lock();
        let Some(objects) = changed.as_mut() else { return };
        objects.add(&object, field, Instant::now());
        if let Some(list) = objects.conflict() {
            *changed = None;
            drop(changed);
            self.stop_role(object, &list);
        }
    }

    fn stop_role(&self, object: ObjectReference, objects: &str) {
        let role = self.role;
        let reason = format!(
            "another controller does the work of the role {role}: it has changed {objects}. The role has \
             stopped in this process. Disable one of the two controllers, then restart this process"
        );
        tracing::error!(%role, "{reason}");
        self.events.emit_on(object, COMPONENT, EventSpec::warning("ConflictingController", reason.clone()));
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
    fn add(&mut self, object: &ObjectReference, field: FieldPath, now: Instant) {
        self.0.retain(|_, (at, _)| now.duration_since(*at) < WINDOW);
        self.0.insert(describe(object), (now, field));
    }

    /// The list of objects and fields, if there are enough.
    fn conflict(&self) -> Option<String> {
        let listed = self.0.iter().map(|(object, (_, field))| format!("{} of {object}", FieldName(field)));
        (self.0.len() >= MAX_CHANGED_OBJECTS).then(|| listed.collect::<Vec<_>>().join(", "))
    }
}

/// Displays a path of `fieldsV1` as `status.phase`; an element of a list is its value.
struct FieldName(FieldPath);

impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "." };
            let name = step.strip_prefix("f:").or_else(|| step.strip_prefix("v:")).unwrap_or(step);
            write!(f, "{separator}{name}")?;
        }
        Ok(())
    }
}

/// A change from one object to another, both as JSON.
#[cfg(test)]
pub(crate) fn foreign_change<K: cofferdam_cluster::Kind>(
    old: Option<&serde_json::Value>,
    new: Option<&serde_json::Value>,
) -> Change<K> {
    let read = |json: &serde_json::Value| {
        Arc::new(cofferdam_cluster::decode::object::<K>(&json.to_string()).unwrap().unwrap())
    };
    let (old, new) = (old.map(read), new.map(read));
    let key = old.as_ref().or(new.as_ref()).unwrap().key().clone();
    Change { key, old, new }
}

#[cfg(test)]
mod tests {
    use cofferdam_cluster::Kind;
    use cofferdam_domain::{Claim, Uid, Volume};

    use super::*;

    const PHASE: FieldPath = &["f:status", "f:phase"];

    fn object<K: Kind>(namespace: &str, name: &str) -> ObjectReference {
        ObjectReference {
            resource: K::RESOURCE,
            namespace: namespace.into(),
            name: name.into(),
            uid: Uid::from("u"),
            resource_version: "1".parse().unwrap(),
        }
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
                changed.add(&object::<Volume>("", volume), PHASE, begin + Duration::from_secs(*second));
            }
            assert_eq!(changed.conflict().is_some(), is_conflict, "{name}");
        }
    }

    /// A detector of the PersistentVolume controller that counts all phases of PersistentVolumes in the
    /// store.
    fn detector(store: &ObjectStore<Volume>) -> (Arc<ConflictDetector>, watch::Receiver<StoppedRoles>) {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no API server"))
        });
        let client = kube::Client::new(service, "default");
        let writer = cofferdam_cluster::Writer::new(client, Arc::default(), Metrics::default());
        let clock: cofferdam_cluster::Clock = Arc::new(|| jiff::Timestamp::UNIX_EPOCH);
        let (sink, _) = cofferdam_cluster::EventSink::new(&writer, clock, Metrics::default());
        let (stopped, receiver) = watch::channel(StoppedRoles::new());
        let role = crate::pv_controller::ROLE;
        let stops = RoleStops::new([role], stopped, &CancellationToken::new(), Metrics::default());
        let detector = Arc::new(ConflictDetector::new(role, EventRecorder::new(sink), Arc::new(stops)));
        detector.subscribe(store, |change| {
            let (old, new) = (change.old.as_ref()?, change.new.as_ref()?);
            (old.phase != new.phase).then_some(PHASE)
        });
        (detector, receiver)
    }

    /// A watch event of a PersistentVolume whose phase this field manager wrote last.
    fn watch_event(store: &ObjectStore<Volume>, name: &str, version: u64, phase: &str, manager: &str) {
        let fields = serde_json::json!({"f:status": {"f:phase": {}}});
        let json = serde_json::json!({
            "metadata": {
                "name": name, "uid": name, "resourceVersion": version.to_string(),
                "managedFields": [{"manager": manager, "fieldsV1": fields}],
            },
            "spec": {},
            "status": {"phase": phase},
        });
        let json = json.to_string();
        store.apply_watch_event(cofferdam_cluster::decode::object(&json).unwrap(), &json);
    }

    #[tokio::test]
    async fn only_new_writes_of_an_active_role_count() {
        const FOREIGN: &str = "kube-controller-manager";
        type Event = (&'static str, &'static str);
        // Events of three PersistentVolumes that are Available: phase and manager of each.
        #[rustfmt::skip] // one row a case
        let cases: [(&str, Event, bool, bool); 4] = [
            ("new phase", ("Released", FOREIGN), true, true),
            ("new phase before the role is active", ("Released", FOREIGN), false, false),
            ("a field that the other controller wrote long ago", ("Available", FOREIGN), true, false),
            ("new phase of a replica", ("Released", FIELD_MANAGER), true, false),
        ];
        for (name, (phase, manager), is_active, is_stopped) in cases {
            let store = ObjectStore::default();
            let (detector, stopped) = detector(&store);
            let volumes = ["v", "w", "x"];
            volumes.iter().for_each(|volume| watch_event(&store, volume, 1, "Available", FOREIGN));
            if is_active {
                detector.activate();
            }
            volumes.iter().for_each(|volume| watch_event(&store, volume, 2, phase, manager));
            detector.activate();
            assert_eq!(!stopped.borrow().is_empty(), is_stopped, "{name}");
        }
    }

    #[test]
    fn the_conflict_names_objects_and_fields() {
        let mut changed = ChangedObjects::default();
        let now = Instant::now();
        [object::<Volume>("", "v"), object::<Volume>("", "w"), object::<Claim>("default", "c")]
            .iter()
            .for_each(|object| changed.add(object, PHASE, now));
        let listed = "status.phase of PersistentVolume v, status.phase of PersistentVolume w, \
                      status.phase of PersistentVolumeClaim default/c";
        assert_eq!(changed.conflict().as_deref(), Some(listed));
    }
}
