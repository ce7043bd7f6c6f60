//! The object store: objects by kind and key, one version counter, and a bounded history of changes per kind.
//!
//! Writes are compare-and-swap operations on the version that the caller read, so that they are prepared
//! without the lock. Each version of an object is serialized once, on first use, and readers and watches
//! share the bytes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use tokio::sync::watch;

use crate::descriptors::{PerKind, ResourceKind};
use crate::fields::ManagedFields;
use crate::meta;

/// One version of an object. The value has no `apiVersion` and `kind`, which its kind determines.
#[derive(Debug)]
pub(crate) struct StoredObject {
    pub(crate) kind: ResourceKind,
    pub(crate) version: u64,
    pub(crate) value: Value,
    /// `metadata.managedFields`, which the value does not contain.
    pub(crate) managed_fields: ManagedFields,
    json: OnceLock<Bytes>,
}

impl StoredObject {
    /// Creates an object without adding it to the store, such as the result of a dry run.
    pub(crate) fn transient(
        kind: ResourceKind,
        version: u64,
        value: Value,
        managed: ManagedFields,
    ) -> Arc<Self> {
        Arc::new(Self { kind, version, value, managed_fields: managed, json: OnceLock::new() })
    }

    /// The value with its `apiVersion` and `kind`.
    pub(crate) fn with_type_meta(&self) -> Value {
        let resource = self.kind.resource();
        let mut value = self.value.clone();
        meta::set(&mut value, "apiVersion", Value::String(resource.api_version()));
        meta::set(&mut value, "kind", Value::String(resource.kind.to_owned()));
        value
    }

    /// The object as JSON, with managedFields.
    pub(crate) fn to_response(&self) -> Value {
        let mut value = self.with_type_meta();
        meta::set(&mut value, "metadata", self.metadata());
        value
    }

    /// The object as a list item: without `apiVersion` and `kind`, which only custom resources have.
    pub(crate) fn to_list_item(&self) -> Value {
        if self.kind.resource().is_custom {
            return self.to_response();
        }
        let mut value = self.value.clone();
        meta::set(&mut value, "metadata", self.metadata());
        value
    }

    /// `metadata` as JSON, with managedFields.
    pub(crate) fn metadata(&self) -> Value {
        let mut metadata = self.value.get("metadata").cloned().unwrap_or_default();
        if !self.managed_fields.is_empty() {
            meta::set(&mut metadata, "managedFields", self.managed_fields.to_value());
        }
        metadata
    }

    /// The serialized object, `apiVersion` and `kind` first.
    pub(crate) fn json(&self) -> &Bytes {
        self.json.get_or_init(|| {
            let head = type_meta_prefix(self.kind);
            let mut bytes = Vec::with_capacity(1024);
            bytes.extend_from_slice(head.as_bytes());
            // A map of JSON values always serializes.
            if serde_json::to_writer(
                &mut bytes,
                &SerializedObject { value: &self.value, managed: &self.managed_fields },
            )
            .is_ok()
                && let Some(brace) = bytes.get_mut(head.len())
            {
                *brace = b',';
            }
            Bytes::from(bytes)
        })
    }

    /// The serialized members for list items: without the opening brace, and without `apiVersion` and `kind`
    /// except for custom resources.
    pub(crate) fn list_item_bytes(&self) -> &[u8] {
        let is_custom = self.kind.resource().is_custom;
        let head = if is_custom { 0 } else { type_meta_prefix(self.kind).len() };
        self.json().get(head + 1..).unwrap_or_default()
    }

    /// The name.
    pub(crate) fn name(&self) -> &str {
        meta::name(&self.value)
    }

    /// The uid.
    pub(crate) fn uid(&self) -> &str {
        meta::text(&self.value, "/metadata/uid")
    }
}

/// An object with its managed fields, for serialization.
struct SerializedObject<'a> {
    value: &'a Value,
    managed: &'a ManagedFields,
}

impl Serialize for SerializedObject<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Value::Object(members) = self.value else { return self.value.serialize(serializer) };
        let mut map = serializer.serialize_map(None)?;
        for (name, member) in members {
            let metadata = member.as_object().filter(|_| name == "metadata" && !self.managed.is_empty());
            match metadata {
                Some(metadata) => {
                    map.serialize_entry(name, &SerializedMetadata { metadata, managed: self.managed })?
                }
                None => map.serialize_entry(name, member)?,
            }
        }
        map.end()
    }
}

struct SerializedMetadata<'a> {
    metadata: &'a serde_json::Map<String, Value>,
    managed: &'a ManagedFields,
}

impl Serialize for SerializedMetadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, member) in self.metadata {
            map.serialize_entry(name, member)?;
        }
        map.serialize_entry("managedFields", self.managed)?;
        map.end()
    }
}

fn type_meta_prefix(kind: ResourceKind) -> &'static str {
    static HEADS: OnceLock<PerKind<OnceLock<String>>> = OnceLock::new();
    HEADS.get_or_init(|| PerKind::new(OnceLock::new)).get(kind).get_or_init(|| {
        let resource = kind.resource();
        format!("{{\"apiVersion\":\"{}\",\"kind\":\"{}\"", resource.api_version(), resource.kind)
    })
}

/// The key of an object within its kind, ordered as in etcd: `namespace/name`, or `name`.
pub(crate) fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// The type of a watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchEventType {
    Added,
    Modified,
    Deleted,
}

/// A change of an object in the history of its kind. `previous` is the state before it; `None` for a
/// creation.
#[derive(Debug)]
pub(crate) struct HistoryEvent {
    pub(crate) event_type: WatchEventType,
    pub(crate) key: Arc<str>,
    pub(crate) object: Arc<StoredObject>,
    pub(crate) previous: Option<Arc<StoredObject>>,
    frame: OnceLock<Bytes>,
}

impl HistoryEvent {
    /// The frame with the whole object, for watches to which the event has this type; serialized once. For a
    /// watch with a selector, a Modified event can be Added or Deleted.
    pub(crate) fn frame(&self) -> Bytes {
        self.frame.get_or_init(|| frame(self.event_type, self.object.json())).clone()
    }
}

/// A watch frame: one JSON document and a line feed.
pub(crate) fn frame(event_type: WatchEventType, object: &[u8]) -> Bytes {
    let name = match event_type {
        WatchEventType::Added => "ADDED",
        WatchEventType::Modified => "MODIFIED",
        WatchEventType::Deleted => "DELETED",
    };
    let mut bytes = Vec::with_capacity(object.len() + 40);
    bytes.extend_from_slice(b"{\"type\":\"");
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b"\",\"object\":");
    bytes.extend_from_slice(object);
    bytes.extend_from_slice(b"}\n");
    Bytes::from(bytes)
}

/// A requested change of a key.
#[derive(Debug)]
pub(crate) enum StoreChange {
    Put(Value, ManagedFields),
    /// Removes the object. The value and managed fields are its last state, for the DELETED event.
    Remove(Value, ManagedFields),
}

/// Error of a commit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CommitError {
    /// The key is not at the expected version: another request changed, deleted or created the object.
    Conflict,
    /// The namespace of a new object does not exist.
    NamespaceMissing,
    /// The namespace of a new object is being deleted.
    NamespaceTerminating,
}

/// Error of a read from the history.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HistoryError {
    /// The requested version is compacted. The number is the oldest available version.
    Compacted(u64),
    /// The store was restored from a snapshot after the reader subscribed: the reader's versions are invalid.
    Restored,
}

type Objects = BTreeMap<Arc<str>, Arc<StoredObject>>;

#[derive(Debug)]
struct KindState {
    objects: Objects,
    history: VecDeque<Arc<HistoryEvent>>,
    /// All events above this version are in the history.
    compacted_version: u64,
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    version: u64,
    /// Number of restores. A watch that started in an earlier epoch ends.
    epoch: u64,
    kinds: PerKind<KindState>,
    /// Dependents by the uid of their owner.
    dependents_by_owner: BTreeMap<String, BTreeSet<(ResourceKind, Arc<str>)>>,
}

/// The objects and the version counter of the store at one time, like an etcd backup.
#[derive(Debug, Clone)]
pub struct StateSnapshot {
    version: u64,
    kinds: Arc<Vec<(ResourceKind, Objects)>>,
}

/// The listed objects of a kind, all at one version of the store.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) version: u64,
    pub(crate) objects: Vec<Arc<StoredObject>>,
}

#[derive(Debug)]
pub(crate) struct Store {
    state: Mutex<State>,
    history_limit: usize,
}

impl Store {
    pub(crate) fn new(history: usize) -> Self {
        let kinds = PerKind::new(|| KindState {
            objects: Objects::new(),
            history: VecDeque::new(),
            compacted_version: 0,
            changed: watch::Sender::new(0),
        });
        let state = State { version: 1, epoch: 0, kinds, dependents_by_owner: BTreeMap::new() };
        Self { state: Mutex::new(state), history_limit: history.max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn version(&self) -> u64 {
        self.lock().version
    }

    pub(crate) fn get(&self, kind: ResourceKind, key: &str) -> Option<Arc<StoredObject>> {
        self.lock().kinds.get(kind).objects.get(key).cloned()
    }

    /// The objects of a kind with a key prefix, at the version `at`. They are the current ones if `at` is
    /// `None` or not below the current version.
    pub(crate) fn list(
        &self,
        kind: ResourceKind,
        prefix: &str,
        at: Option<u64>,
    ) -> Result<Listing, HistoryError> {
        let state = self.lock();
        let kind_state = state.kinds.get(kind);
        let collect = |objects: &Objects| -> Vec<Arc<StoredObject>> {
            objects
                .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
                .take_while(|(key, _)| key.starts_with(prefix))
                .map(|(_, object)| Arc::clone(object))
                .collect()
        };
        let Some(at) = at.filter(|at| *at < state.version) else {
            return Ok(Listing { version: state.version, objects: collect(&kind_state.objects) });
        };
        if at < kind_state.compacted_version {
            return Err(HistoryError::Compacted(kind_state.compacted_version));
        }
        if kind_state.history.back().is_none_or(|event| event.object.version <= at) {
            return Ok(Listing { version: at, objects: collect(&kind_state.objects) });
        }
        let mut objects = kind_state.objects.clone();
        for event in kind_state.history.iter().rev().take_while(|event| event.object.version > at) {
            match &event.previous {
                Some(previous) => objects.insert(Arc::clone(&event.key), Arc::clone(previous)),
                None => objects.remove(&event.key),
            };
        }
        Ok(Listing { version: at, objects: collect(&objects) })
    }

    /// Commits a change if the key's object still has the expected version. `expected` is `None` if the
    /// object must not exist.
    pub(crate) fn commit(
        &self,
        kind: ResourceKind,
        key: &str,
        expected: Option<u64>,
        change: StoreChange,
    ) -> Result<Arc<StoredObject>, CommitError> {
        let mut state = self.lock();
        let previous = state.kinds.get(kind).objects.get(key).cloned();
        if previous.as_ref().map(|object| object.version) != expected {
            return Err(CommitError::Conflict);
        }
        if previous.is_none()
            && let Some((namespace, _)) = key.split_once('/')
        {
            match state.kinds.get(ResourceKind::Namespace).objects.get(namespace) {
                None => return Err(CommitError::NamespaceMissing),
                Some(found) if meta::deleting(&found.value) => return Err(CommitError::NamespaceTerminating),
                Some(_) => {}
            }
        }
        Ok(state.write(kind, key, previous, change, self.history_limit))
    }

    /// The events of a kind after a version, and the version up to which they are complete. `epoch` is that
    /// of the reader's [`Self::subscribe`].
    pub(crate) fn events(
        &self,
        kind: ResourceKind,
        after: u64,
        epoch: u64,
    ) -> Result<(Vec<Arc<HistoryEvent>>, u64), HistoryError> {
        let state = self.lock();
        if state.epoch != epoch {
            return Err(HistoryError::Restored);
        }
        let kind_state = state.kinds.get(kind);
        if after < kind_state.compacted_version {
            return Err(HistoryError::Compacted(kind_state.compacted_version));
        }
        let start = kind_state.history.partition_point(|event| event.object.version <= after);
        Ok((kind_state.history.iter().skip(start).cloned().collect(), state.version))
    }

    /// A channel that is notified of changes of a kind, and the current epoch of the history.
    pub(crate) fn subscribe(&self, kind: ResourceKind) -> (watch::Receiver<u64>, u64) {
        let state = self.lock();
        (state.kinds.get(kind).changed.subscribe(), state.epoch)
    }

    /// The objects with this uid in their ownerReferences.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<Arc<StoredObject>> {
        let state = self.lock();
        let Some(keys) = state.dependents_by_owner.get(uid) else { return Vec::new() };
        keys.iter().filter_map(|(kind, key)| state.kinds.get(*kind).objects.get(key).cloned()).collect()
    }

    /// All objects of a namespace.
    pub(crate) fn contents(&self, namespace: &str) -> Vec<Arc<StoredObject>> {
        let prefix = format!("{namespace}/");
        let state = self.lock();
        let mut objects = Vec::new();
        for (kind, table) in state.kinds.iter() {
            if kind.resource().namespaced {
                let range =
                    table.objects.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
                objects.extend(
                    range.take_while(|(key, _)| key.starts_with(&prefix)).map(|(_, object)| object.clone()),
                );
            }
        }
        objects
    }

    /// Drops the history. Reads from the history before the current version are
    /// [`HistoryError::Compacted`] afterwards.
    pub(crate) fn compact(&self) {
        let mut state = self.lock();
        let version = state.version;
        for (_, table) in state.kinds.iter_mut() {
            table.history.clear();
            table.compacted_version = version;
        }
    }

    pub(crate) fn snapshot(&self) -> StateSnapshot {
        let state = self.lock();
        let kinds = state.kinds.iter().map(|(kind, table)| (kind, table.objects.clone())).collect();
        StateSnapshot { version: state.version, kinds: Arc::new(kinds) }
    }

    /// Restores objects and version counter. The history is dropped and open watches end.
    pub(crate) fn restore(&self, snapshot: &StateSnapshot) {
        let mut state = self.lock();
        state.version = snapshot.version;
        state.epoch += 1;
        state.dependents_by_owner.clear();
        let mut owned = Vec::new();
        for (kind, objects) in snapshot.kinds.iter() {
            let table = state.kinds.get_mut(*kind);
            for (key, object) in objects {
                owned.extend(
                    meta::owners(&object.value).map(|uid| (uid.to_owned(), (*kind, Arc::clone(key)))),
                );
            }
            table.objects.clone_from(objects);
            table.history.clear();
            table.compacted_version = snapshot.version;
            table.changed.send_replace(snapshot.version);
        }
        for (uid, dependent) in owned {
            state.dependents_by_owner.entry(uid).or_default().insert(dependent);
        }
    }
}

impl State {
    fn write(
        &mut self,
        kind: ResourceKind,
        key: &str,
        previous: Option<Arc<StoredObject>>,
        change: StoreChange,
        history: usize,
    ) -> Arc<StoredObject> {
        self.version += 1;
        let version = self.version;
        let (mut value, managed, removed) = match change {
            StoreChange::Put(value, managed) => (value, managed, false),
            StoreChange::Remove(value, managed) => (value, managed, true),
        };
        meta::edit_meta(&mut value, |meta| {
            meta.insert("resourceVersion".to_owned(), Value::String(version.to_string()));
        });
        let key: Arc<str> = match self.kinds.get(kind).objects.get_key_value(key) {
            Some((key, _)) => Arc::clone(key),
            None => Arc::from(key),
        };
        if let Some(previous) = &previous {
            for uid in meta::owners(&previous.value) {
                if let Some(dependents) = self.dependents_by_owner.get_mut(uid) {
                    dependents.remove(&(kind, Arc::clone(&key)));
                    if dependents.is_empty() {
                        self.dependents_by_owner.remove(uid);
                    }
                }
            }
        }
        let object = StoredObject::transient(kind, version, value, managed);
        let kind_state = self.kinds.get_mut(kind);
        let event_type = if removed {
            kind_state.objects.remove(&key);
            WatchEventType::Deleted
        } else {
            kind_state.objects.insert(Arc::clone(&key), Arc::clone(&object));
            for uid in meta::owners(&object.value) {
                self.dependents_by_owner.entry(uid.to_owned()).or_default().insert((kind, Arc::clone(&key)));
            }
            if previous.is_some() { WatchEventType::Modified } else { WatchEventType::Added }
        };
        if kind_state.history.len() >= history
            && let Some(oldest) = kind_state.history.pop_front()
        {
            kind_state.compacted_version = oldest.object.version;
        }
        kind_state.history.push_back(Arc::new(HistoryEvent {
            event_type,
            key,
            object: Arc::clone(&object),
            previous,
            frame: OnceLock::new(),
        }));
        kind_state.changed.send_replace(version);
        object
    }
}
