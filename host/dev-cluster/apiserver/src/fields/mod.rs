//! Field management: field ownership of writes, and server-side apply.
//!
//! The rules are those of sigs.k8s.io/structured-merge-diff. There is no maintained crate for them.

mod conflict;
mod managed;
mod set;
#[cfg(test)]
mod tests;
mod walk;

use std::sync::OnceLock;

use serde_json::Value;

pub(crate) use self::conflict::Conflict;
use self::managed::ManagedFieldsEntry;
pub(crate) use self::managed::{FieldManager, ManagedFields};
use self::set::{FieldSet, TypeRef};
pub(crate) use self::walk::go_format;
use crate::descriptors::{PerKind, ResourceKind, Subresource};
use crate::schema::{self, Struct};

/// Manager of the existing fields when a configuration is applied to an object without managed fields.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The kind and the subresource that a write changes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endpoint {
    pub(crate) kind: ResourceKind,
    pub(crate) subresource: Subresource,
}

impl Endpoint {
    fn schema(self) -> &'static Struct {
        schema::of(self.kind)
    }

    /// Checks the types of the fields of a custom resource. Those of other kinds are checked when a body is
    /// decoded.
    fn check_custom(self, object: &Value) -> Result<(), walk::TypeErrors> {
        if self.kind.resource().is_custom { walk::check_custom(self.schema(), object) } else { Ok(()) }
    }

    fn field_manager(self, manager: &str, applies: bool) -> FieldManager {
        FieldManager {
            is_apply: applies,
            manager: if manager.is_empty() { "unknown".to_owned() } else { manager.to_owned() },
            api_version: self.kind.resource().api_version(),
            subresource: match self.subresource {
                Subresource::Main => "",
                Subresource::Status => "status",
                Subresource::Finalize => "finalize",
            }
            .to_owned(),
        }
    }

    /// Fields that this endpoint does not write and therefore does not track.
    fn ignored_fields(self) -> &'static FieldSet {
        static IGNORED: OnceLock<PerKind<[FieldSet; 3]>> = OnceLock::new();
        let mut kinds = crate::descriptors::RESOURCES.iter();
        let sets = IGNORED.get_or_init(|| {
            PerKind::new(|| {
                let status = kinds.next().is_some_and(|resource| resource.has_status);
                let of =
                    |member: &str| if status { FieldSet::from_path(&[member]) } else { FieldSet::default() };
                [of("status"), of("spec"), of("status")]
            })
        });
        let [main, status, finalize] = sets.get(self.kind);
        match self.subresource {
            Subresource::Main => main,
            Subresource::Status => self.ignored_by_status(status),
            Subresource::Finalize => finalize,
        }
    }

    fn ignored_by_status(self, spec: &'static FieldSet) -> &'static FieldSet {
        static METADATA_AND_SPEC: OnceLock<FieldSet> = OnceLock::new();
        static POD: OnceLock<FieldSet> = OnceLock::new();
        match self.kind {
            ResourceKind::VolumeAttachment
            | ResourceKind::VolumeSnapshot
            | ResourceKind::VolumeSnapshotContent => METADATA_AND_SPEC
                .get_or_init(|| FieldSet::from_path(&["metadata"]).union(FieldSet::from_path(&["spec"]))),
            ResourceKind::Pod => POD.get_or_init(|| {
                FieldSet::from_path(&["spec"])
                    .union(FieldSet::from_path(&["metadata", "deletionTimestamp"]))
                    .union(FieldSet::from_path(&["metadata", "ownerReferences"]))
            }),
            ResourceKind::Namespace
            | ResourceKind::Node
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
            | ResourceKind::VolumeAttributesClass
            | ResourceKind::Lease
            | ResourceKind::VolumeSnapshotClass => spec,
        }
    }
}

/// Fields that are never tracked.
fn stripped_fields() -> &'static FieldSet {
    static STRIPPED: OnceLock<FieldSet> = OnceLock::new();
    STRIPPED.get_or_init(|| {
        let meta = [
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "clusterName",
            "generation",
            "managedFields",
            "resourceVersion",
        ];
        let top = ["apiVersion", "kind", "metadata"].map(|member| FieldSet::from_path(&[member]));
        let meta = meta.map(|member| FieldSet::from_path(&["metadata", member]));
        top.into_iter().chain(meta).fold(FieldSet::default(), FieldSet::union)
    })
}

/// The managed fields before a write: those of the request's object; if it has none or invalid ones, those of
/// the stored object. Empty if the request clears them.
pub(crate) fn initial_managed_fields(sent: Option<&Value>, stored: &ManagedFields) -> ManagedFields {
    let Some(sent) = sent else { return stored.clone() };
    if ManagedFields::is_reset(sent) {
        return ManagedFields::default();
    }
    match ManagedFields::from_value(sent) {
        Some(managed) if !managed.is_empty() => managed,
        Some(_) | None => stored.clone(),
    }
}

/// Removes the changed fields from the entries of all managers except `except`. Drops entries with another
/// apiVersion than the endpoint's.
fn remove_from_managers(
    managed: &ManagedFields,
    except: Option<&FieldManager>,
    endpoint: Endpoint,
    changed: &FieldSet,
) -> Vec<std::sync::Arc<ManagedFieldsEntry>> {
    let version = endpoint.kind.resource().api_version();
    let kept = managed.iter().filter(|entry| entry.manager.api_version == version).map(|entry| {
        let is_excepted = except.is_some_and(|writer| entry.manager.is_same_manager(writer));
        if is_excepted || entry.fields.intersection(changed).is_empty() {
            return std::sync::Arc::clone(entry);
        }
        ManagedFieldsEntry::new(entry.manager.clone(), entry.time.clone(), entry.fields.difference(changed))
    });
    kept.collect()
}

/// The managed fields after a create, an update or a patch. `old` is the empty object for a create. None if a
/// field of a custom resource has another type than its schema, also one that the endpoint does not write.
pub(crate) fn update(
    endpoint: Endpoint,
    managed: &ManagedFields,
    (old, new): (&Value, &Value),
    manager: &str,
    now: &str,
) -> ManagedFields {
    if endpoint.check_custom(new).is_err() {
        return ManagedFields::default();
    }
    let mut changes = walk::compare(endpoint.schema(), old, new);
    changes.ignore(endpoint.ignored_fields());
    if changes.is_same() {
        return ManagedFields::from_entries(managed.iter().cloned().collect());
    }
    let changed = changes.modified.union(changes.added);
    let lost = changed.clone().union(changes.removed);
    let mut entries = remove_from_managers(managed, None, endpoint, &lost);
    let own = changed.difference(stripped_fields());
    if !own.is_empty() {
        let writer = endpoint.field_manager(manager, false);
        let before = entries.iter().position(|entry| entry.manager.is_same_manager(&writer));
        let set = match before {
            Some(at) => own.union(entries.swap_remove(at).fields.clone()),
            None => own,
        };
        entries.push(ManagedFieldsEntry::new(writer, Some(now.to_owned()), set));
    }
    ManagedFields::from_entries(entries).merge_oldest_updaters()
}

/// The result of a server-side apply.
#[derive(Debug)]
pub(crate) struct ApplyResult {
    pub(crate) value: Value,
    pub(crate) managed: ManagedFields,
}

/// Error of a server-side apply.
#[derive(Debug)]
pub(crate) enum ApplyError {
    /// The configuration does not match the type.
    Malformed(walk::TypeErrors),
    /// The object has no managed fields and does not match the type, so its fields get no manager.
    MalformedObject(walk::TypeErrors),
    Conflicts(Vec<Conflict>),
}

/// Applies a configuration to an object. `live` is the empty object if the object does not exist.
pub(crate) fn apply(
    endpoint: Endpoint,
    managed: &ManagedFields,
    (live, config): (&Value, &Value),
    (manager, force): (&str, bool),
    now: &str,
) -> Result<ApplyResult, ApplyError> {
    let shape = endpoint.schema();
    if managed.is_empty() {
        endpoint.check_custom(live).map_err(ApplyError::MalformedObject)?;
    }
    walk::check(shape, config).map_err(ApplyError::Malformed)?;
    let adopted;
    let managed = if managed.is_empty() {
        adopted = update(endpoint, managed, (schema::empty(endpoint.kind), live), BEFORE_FIRST_APPLY, now);
        &adopted
    } else {
        managed
    };
    let writer = endpoint.field_manager(manager, true);
    let before = managed.get(&writer);
    let set = walk::fields_of(shape, config).recursive_difference(endpoint.ignored_fields());
    let merged = walk::merge(shape, live, config);
    let value = prune(shape, merged, managed, &writer, &set);
    let mut changes = walk::compare(shape, live, &value);
    changes.ignore(endpoint.ignored_fields());
    let changed = changes.modified.union(changes.added);
    if !force {
        let conflicts = conflicts(managed, &writer, &changed);
        if !conflicts.is_empty() {
            return Err(ApplyError::Conflicts(conflicts));
        }
    }
    let mut entries = remove_from_managers(managed, Some(&writer), endpoint, &changed.union(changes.removed));
    entries.retain(|entry| !entry.manager.is_same_manager(&writer));
    let time = match before {
        Some(before) if value == *live => before.time.clone(),
        _ if value == *live => None,
        _ => Some(now.to_owned()),
    };
    entries.push(ManagedFieldsEntry::new(writer, time, set.difference(stripped_fields())));
    Ok(ApplyResult { value, managed: ManagedFields::from_entries(entries) })
}

fn conflicts(managed: &ManagedFields, writer: &FieldManager, gained: &FieldSet) -> Vec<Conflict> {
    let mut conflicts = Vec::new();
    let mut others: Vec<_> = managed.iter().filter(|entry| !entry.manager.is_same_manager(writer)).collect();
    others.sort_by_key(|entry| (entry.manager.manager.clone(), entry.manager.is_apply));
    for entry in others {
        for path in entry.fields.intersection(gained).paths() {
            conflicts.push(Conflict { manager: entry.manager.clone(), path });
        }
    }
    conflicts
}

/// Removes fields from the merged object that the manager applied before and omits now, unless another
/// manager owns them.
fn prune(
    shape: &'static Struct,
    merged: Value,
    managed: &ManagedFields,
    writer: &FieldManager,
    set: &FieldSet,
) -> Value {
    let Some(last) = managed.get(writer).map(|entry| &entry.fields).filter(|last| !last.is_empty()) else {
        return merged;
    };
    let named = |set: &FieldSet| set.ensure_named_fields_are_members(TypeRef::Struct(shape));
    let last = named(last);
    let all = named(&walk::fields_of(shape, &merged));
    let pruned = walk::remove(shape, &merged, &last);
    // Fields of other managers are kept,
    let owned = managed
        .iter()
        .filter(|entry| !entry.manager.is_same_manager(writer))
        .fold(set.clone(), |owned, entry| owned.union(entry.fields.clone()));
    let left = named(&walk::fields_of(shape, &pruned));
    let pruned = walk::remove(shape, &merged, &all.difference(&left.union(named(&owned))));
    // and so are fields below a removed path that were never applied.
    let left = named(&walk::fields_of(shape, &pruned));
    walk::remove(shape, &merged, &all.difference(&left).intersection(&last))
}

/// The fields of a configuration that have the same value in the object.
fn unchanged(shape: &Struct, config: &Value, live: &Value) -> FieldSet {
    let changes = walk::compare(shape, config, live);
    let fields = walk::fields_of(shape, config);
    fields.difference(&changes.modified).difference(&changes.added).difference(&changes.removed)
}

/// Removes conflicts with fields of client-side apply that have not changed since.
pub(crate) fn without_client_side_applied(
    kind: ResourceKind,
    conflicts: Vec<Conflict>,
    last_applied: &Value,
    live: &Value,
) -> Vec<Conflict> {
    let own = unchanged(schema::of(kind), last_applied, live).paths();
    conflicts.into_iter().filter(|conflict| !own.contains(&conflict.path)).collect()
}

/// The message of kube-apiserver for conflicts.
pub(crate) fn describe(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            one.manager.describe(),
            one.path
        );
    }
    let mut lines = Vec::new();
    let mut last = None;
    for conflict in conflicts {
        if last != Some(&conflict.manager) {
            lines.push(format!("conflicts with {}:", conflict.manager.describe()));
            last = Some(&conflict.manager);
        }
        lines.push(format!("- {}", conflict.path));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}
