//! Deletion: finalizers, grace periods of pods, contents of namespaces, and garbage collection of dependents.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::descriptors::{self, ResourceDescriptor, ResourceKind};
use crate::inner::Inner;
use crate::meta;
use crate::request::{self, Query, Target};
use crate::status::{FieldError, Status};
use crate::store::{self, StoreChange, StoredObject};
use crate::write::MAX_RETRIES;

const FOREGROUND_FINALIZER: &str = "foregroundDeletion";

/// Default grace period of pods in seconds.
const DEFAULT_POD_GRACE_SECONDS: i64 = 30;

/// `propagationPolicy`: the treatment of dependents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Propagation {
    #[default]
    Background,
    Foreground,
    Orphan,
}

/// DeleteOptions of a request. `uid` and `version` are preconditions; `None` if absent.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    dry_run: bool,
    propagation: Propagation,
    grace_period_seconds: Option<i64>,
    uid: Option<String>,
    version: Option<String>,
}

impl DeleteOptions {
    /// Parses the body. An option that the body does not set is taken from the query, except preconditions
    /// and `orphanDependents`.
    pub(crate) fn parse(query: &Query, body: &Value) -> Result<Self, Status> {
        let member = |name: &str| {
            let text = body.get(name).and_then(Value::as_str).unwrap_or_default();
            if text.is_empty() { query.get(name).to_owned() } else { text.to_owned() }
        };
        let mut errors = Vec::new();
        let orphan = body.get("orphanDependents").and_then(Value::as_bool);
        if orphan.is_some() && !member("propagationPolicy").is_empty() {
            let given = Value::from(member("propagationPolicy"));
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid("propagationPolicy", &given, detail));
        }
        let propagation = match member("propagationPolicy").as_str() {
            "" if orphan == Some(true) => Propagation::Orphan,
            "" | "Background" => Propagation::Background,
            "Foreground" => Propagation::Foreground,
            "Orphan" => Propagation::Orphan,
            other => {
                let known = ["Foreground", "Background", "Orphan", "nil"];
                errors.push(FieldError::not_supported("propagationPolicy", other, &known));
                Propagation::Background
            }
        };
        let dry_run = match meta::strings(body, "/dryRun").as_slice() {
            [] => query.dry_run(&mut errors),
            given => request::dry_run(given, &mut errors),
        };
        if !errors.is_empty() {
            return Err(Status::invalid_options("DeleteOptions", &errors));
        }
        let grace = match body.get("gracePeriodSeconds") {
            Some(seconds) => seconds.as_i64(),
            None => query.number("gracePeriodSeconds")?.and_then(|seconds| i64::try_from(seconds).ok()),
        };
        let precondition = |name: &str| {
            let text = meta::text(body, &format!("/preconditions/{name}"));
            (!text.is_empty()).then(|| text.to_owned())
        };
        Ok(Self {
            dry_run,
            propagation,
            grace_period_seconds: grace,
            uid: precondition("uid"),
            version: precondition("resourceVersion"),
        })
    }
}

/// The result of a deletion.
#[derive(Debug)]
pub(crate) enum DeleteOutcome {
    /// The object was removed; this is its last state.
    Removed(Arc<StoredObject>),
    /// The object is terminating until its finalizers, grace period or contents are gone.
    Terminating(Arc<StoredObject>),
}

impl Inner {
    /// Deletes one object.
    pub(crate) fn delete(&self, target: &Target, options: &DeleteOptions) -> Result<DeleteOutcome, Status> {
        let deleted = self.delete_one(target.resource, &target.namespace, target.name(), options)?;
        if options.dry_run {
            return Ok(deleted);
        }
        match &deleted {
            DeleteOutcome::Removed(object) => self.collect_garbage(vec![Arc::clone(object)]),
            DeleteOutcome::Terminating(object) => {
                if object.kind == ResourceKind::Namespace {
                    self.delete_namespace_contents(object.name());
                }
                if meta::finalizers(&object.value).contains(&FOREGROUND_FINALIZER) {
                    self.collect_dependents(object, options.propagation);
                    self.complete_foreground_deletion(
                        object.kind,
                        &target.namespace,
                        target.name(),
                        object.uid(),
                    );
                }
            }
        }
        Ok(deleted)
    }

    fn delete_one(
        &self,
        resource: &'static ResourceDescriptor,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<DeleteOutcome, Status> {
        let key = store::key(namespace, name);
        for _ in 0..MAX_RETRIES {
            let current =
                self.store.get(resource.id, &key).ok_or_else(|| Status::not_found(resource, name))?;
            check_preconditions(resource, &current, options)?;
            if options.propagation == Propagation::Orphan && !options.dry_run {
                self.orphan_dependents(current.uid());
            }
            let next = self.mark_terminating(&current, options);
            if let Some(next) = &next
                && *next == current.value
            {
                return Ok(DeleteOutcome::Terminating(current));
            }
            let is_removed = next.is_none();
            if options.dry_run {
                let marked = next.unwrap_or_else(|| current.value.clone());
                let managed = current.managed_fields.clone();
                let object = StoredObject::transient(resource.id, current.version, marked, managed);
                return Ok(if is_removed {
                    DeleteOutcome::Removed(object)
                } else {
                    DeleteOutcome::Terminating(object)
                });
            }
            let change = match next {
                Some(next) => StoreChange::Put(next, current.managed_fields.clone()),
                None => StoreChange::Remove(self.last_state(&current), current.managed_fields.clone()),
            };
            match self.store.commit(resource.id, &key, Some(current.version), change) {
                Ok(object) if is_removed => return Ok(DeleteOutcome::Removed(object)),
                Ok(object) => return Ok(DeleteOutcome::Terminating(object)),
                Err(_) => {}
            }
        }
        Err(Status::too_many_conflicts(resource, name))
    }

    /// The last state of a deleted object. A pod that was not terminating gets a deletionTimestamp and a
    /// grace period of 0.
    fn last_state(&self, current: &StoredObject) -> Value {
        let mut value = current.value.clone();
        if current.kind == ResourceKind::Pod && !meta::deleting(&value) {
            let now = meta::timestamp((self.now)());
            meta::edit_meta(&mut value, |meta| {
                meta.insert("deletionTimestamp".to_owned(), now);
                meta.insert("deletionGracePeriodSeconds".to_owned(), json!(0));
                if let Some(generation) = meta.get("generation").and_then(Value::as_i64) {
                    meta.insert("generation".to_owned(), json!(generation + 1));
                }
            });
        }
        value
    }

    /// The object with a deletionTimestamp, and in a foreground deletion with dependents with the
    /// foregroundDeletion finalizer. `None` if the object can be removed immediately.
    fn mark_terminating(&self, current: &StoredObject, options: &DeleteOptions) -> Option<Value> {
        let now = (self.now)();
        let mut next = current.value.clone();
        let grace = grace_period_seconds(current, options);
        let foreground = options.propagation == Propagation::Foreground
            && !self.store.dependents(current.uid()).is_empty();
        if foreground && !meta::finalizers(&next).contains(&FOREGROUND_FINALIZER) && !meta::deleting(&next) {
            meta::edit_meta(&mut next, |meta| {
                if let Value::Array(list) = meta.entry("finalizers").or_insert_with(|| json!([])) {
                    list.push(json!(FOREGROUND_FINALIZER));
                }
            });
        }
        if self.is_removable(current.kind, &next) && grace == 0 {
            return None;
        }
        let is_terminating = meta::deleting(&next);
        let is_shorter = next
            .pointer("/metadata/deletionGracePeriodSeconds")
            .and_then(Value::as_i64)
            .is_some_and(|left| grace < left);
        if is_terminating && !is_shorter {
            return Some(next);
        }
        meta::edit_meta(&mut next, |meta| {
            let until = now.checked_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(now);
            meta.insert("deletionTimestamp".to_owned(), meta::timestamp(until));
            if current.kind != ResourceKind::Namespace {
                meta.insert("deletionGracePeriodSeconds".to_owned(), json!(grace));
            }
            if !is_terminating && let Some(generation) = meta.get("generation").and_then(Value::as_i64) {
                meta.insert("generation".to_owned(), json!(generation + 1));
            }
        });
        if current.kind == ResourceKind::Namespace {
            meta::edit(&mut next, "status", |status| status.insert("phase".to_owned(), json!("Terminating")));
        }
        Some(next)
    }

    /// Returns `true` if an object has no finalizers and, for a Namespace, if it is also terminating and
    /// empty. The caller checks the grace period.
    pub(crate) fn is_removable(&self, kind: ResourceKind, value: &Value) -> bool {
        if !meta::finalizers(value).is_empty() {
            return false;
        }
        match kind {
            ResourceKind::Namespace => {
                meta::deleting(value) && self.store.contents(meta::name(value)).is_empty()
            }
            // The kubelet deletes a pod on a node with a grace period of zero.
            ResourceKind::Pod => true,
            ResourceKind::Node
            | ResourceKind::PersistentVolume
            | ResourceKind::PersistentVolumeClaim
            | ResourceKind::Event
            | ResourceKind::Secret
            | ResourceKind::ConfigMap
            | ResourceKind::ServiceAccount
            | ResourceKind::StorageClass
            | ResourceKind::CsiDriver
            | ResourceKind::CsiNode
            | ResourceKind::CsiStorageCapacity
            | ResourceKind::VolumeAttachment
            | ResourceKind::VolumeAttributesClass
            | ResourceKind::Lease
            | ResourceKind::VolumeSnapshot
            | ResourceKind::VolumeSnapshotContent
            | ResourceKind::VolumeSnapshotClass => true,
        }
    }

    /// Garbage collection after removals: deletes dependents that have no other existing owner, owners in
    /// foreground deletion without dependents, and empty terminating namespaces.
    pub(crate) fn collect_garbage(&self, removed: Vec<Arc<StoredObject>>) {
        let mut queue = removed;
        while let Some(object) = queue.pop() {
            queue.extend(self.collect_dependents(&object, Propagation::Background));
            for owner in meta::list(&object.value, "/metadata/ownerReferences") {
                if let Some((kind, key)) = owner_key(owner, meta::namespace(&object.value)) {
                    queue.extend(self.remove_foreground_owner(kind, &key, meta::text(owner, "/uid")));
                }
            }
            let namespace = meta::namespace(&object.value);
            if !namespace.is_empty() {
                queue.extend(self.remove_empty_namespace(namespace));
            }
        }
    }

    fn collect_dependents(&self, owner: &StoredObject, propagation: Propagation) -> Vec<Arc<StoredObject>> {
        let options = DeleteOptions { propagation, ..DeleteOptions::default() };
        let mut removed = Vec::new();
        for dependent in self.store.dependents(owner.uid()) {
            let others = meta::list(&dependent.value, "/metadata/ownerReferences")
                .iter()
                .filter(|reference| meta::text(reference, "/uid") != owner.uid());
            let has_other_owner = others.into_iter().any(|other| self.is_owner_alive(other, &dependent));
            if has_other_owner {
                continue;
            }
            let namespace = meta::namespace(&dependent.value);
            match self.delete_one(dependent.kind.resource(), namespace, dependent.name(), &options) {
                Ok(DeleteOutcome::Removed(object)) => removed.push(object),
                // Terminating objects are removed with their last finalizer. Missing ones were deleted
                // concurrently.
                Ok(DeleteOutcome::Terminating(_)) | Err(_) => {}
            }
        }
        removed
    }

    /// Returns `true` if an owner exists. Owners of kinds that are not served are assumed to exist.
    fn is_owner_alive(&self, owner: &Value, dependent: &StoredObject) -> bool {
        match owner_key(owner, meta::namespace(&dependent.value)) {
            Some((kind, key)) => {
                self.store.get(kind, &key).is_some_and(|found| found.uid() == meta::text(owner, "/uid"))
            }
            None => true,
        }
    }

    fn orphan_dependents(&self, uid: &str) {
        for dependent in self.store.dependents(uid) {
            let mut next = dependent.value.clone();
            meta::edit_meta(&mut next, |meta| {
                if let Some(Value::Array(owners)) = meta.get_mut("ownerReferences") {
                    owners.retain(|owner| meta::text(owner, "/uid") != uid);
                    if owners.is_empty() {
                        meta.remove("ownerReferences");
                    }
                }
            });
            let key = store::key(meta::namespace(&dependent.value), dependent.name());
            // A dependent with a concurrent change is skipped.
            let _ = self.store.commit(
                dependent.kind,
                &key,
                Some(dependent.version),
                StoreChange::Put(next, dependent.managed_fields.clone()),
            );
        }
    }

    fn complete_foreground_deletion(&self, kind: ResourceKind, namespace: &str, name: &str, uid: &str) {
        let removed = self.remove_foreground_owner(kind, &store::key(namespace, name), uid);
        self.collect_garbage(removed.into_iter().collect());
    }

    /// Removes the foregroundDeletion finalizer of a terminating owner without dependents. Returns the owner
    /// if the owner itself was removed because this was its last finalizer.
    fn remove_foreground_owner(&self, kind: ResourceKind, key: &str, uid: &str) -> Option<Arc<StoredObject>> {
        let owner = self.store.get(kind, key)?;
        let is_waiting = meta::deleting(&owner.value)
            && owner.uid() == uid
            && meta::finalizers(&owner.value).contains(&FOREGROUND_FINALIZER);
        if !is_waiting || !self.store.dependents(uid).is_empty() {
            return None;
        }
        let mut next = owner.value.clone();
        meta::edit_meta(&mut next, |meta| {
            if let Some(Value::Array(list)) = meta.get_mut("finalizers") {
                list.retain(|finalizer| finalizer != FOREGROUND_FINALIZER);
                if list.is_empty() {
                    meta.remove("finalizers");
                }
            }
        });
        let is_removed = !meta::has_grace(&owner.value) && self.is_removable(kind, &next);
        let change = if is_removed {
            StoreChange::Remove(owner.value.clone(), owner.managed_fields.clone())
        } else {
            StoreChange::Put(next, owner.managed_fields.clone())
        };
        let written = self.store.commit(kind, key, Some(owner.version), change).ok()?;
        is_removed.then_some(written)
    }

    fn delete_namespace_contents(&self, namespace: &str) {
        let mut removed = Vec::new();
        for object in self.store.contents(namespace) {
            let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
            let deleted = self.delete_one(object.kind.resource(), namespace, object.name(), &options);
            if let Ok(DeleteOutcome::Removed(object)) = deleted {
                removed.push(object);
            }
        }
        removed.extend(self.remove_empty_namespace(namespace));
        self.collect_garbage(removed);
    }

    fn remove_empty_namespace(&self, namespace: &str) -> Option<Arc<StoredObject>> {
        let found = self.store.get(ResourceKind::Namespace, namespace)?;
        if !meta::deleting(&found.value) || !self.is_removable(ResourceKind::Namespace, &found.value) {
            return None;
        }
        let change = StoreChange::Remove(found.value.clone(), found.managed_fields.clone());
        self.store.commit(ResourceKind::Namespace, namespace, Some(found.version), change).ok()
    }
}

fn owner_key(owner: &Value, namespace: &str) -> Option<(ResourceKind, String)> {
    let group = meta::text(owner, "/apiVersion").rsplit_once('/').map_or("", |(group, _)| group);
    let kind = meta::text(owner, "/kind");
    let resource =
        descriptors::RESOURCES.iter().find(|resource| resource.group == group && resource.kind == kind)?;
    let namespace = if resource.namespaced { namespace } else { "" };
    Some((resource.id, store::key(namespace, meta::text(owner, "/name"))))
}

/// Grace period of a deletion in seconds; 0 unless the object is a pod on a node and has not terminated.
fn grace_period_seconds(current: &StoredObject, options: &DeleteOptions) -> i64 {
    let value = &current.value;
    let finished = matches!(meta::text(value, "/status/phase"), "Succeeded" | "Failed");
    if current.kind != ResourceKind::Pod || meta::text(value, "/spec/nodeName").is_empty() || finished {
        return 0;
    }
    let pod_grace = value.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
    options.grace_period_seconds.or(pod_grace).unwrap_or(DEFAULT_POD_GRACE_SECONDS).max(0)
}

fn check_preconditions(
    resource: &ResourceDescriptor,
    current: &StoredObject,
    options: &DeleteOptions,
) -> Result<(), Status> {
    let conflict = |why: String| Err(Status::precondition_failed(resource, current.name(), &why));
    if let Some(uid) = options.uid.as_ref().filter(|uid| *uid != current.uid()) {
        return conflict(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might \
             have been deleted and then recreated",
            current.uid()
        ));
    }
    let version = current.version.to_string();
    if let Some(wanted) = options.version.as_ref().filter(|wanted| **wanted != version) {
        return conflict(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
             ({version}). The object might have been modified"
        ));
    }
    Ok(())
}
