//! Who owns which field of an object: what every write records, and server-side apply.
//!
//! The rules are those of Kubernetes' structured merge. There is no maintained crate for them.

mod managed;
mod set;
#[cfg(test)]
mod tests;
mod walk;

use std::sync::OnceLock;

use serde_json::Value;

use self::managed::Entry;
pub(crate) use self::managed::{Managed, Writer};
use self::set::{Set, Shape};
pub(crate) use self::walk::go;
use crate::descriptors::{Kind, PerKind};
use crate::schema::{self, Struct};
use crate::write::Part;

/// Who owns what nobody owned when the first configuration is applied.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// A field that another manager owns and the configuration would change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) with: Writer,
    pub(crate) path: String,
}

/// Where a write happens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endpoint {
    pub(crate) kind: Kind,
    pub(crate) part: Part,
}

impl Endpoint {
    fn shape(self) -> &'static Struct {
        schema::of(self.kind)
    }

    fn writer(self, manager: &str, applies: bool) -> Writer {
        Writer {
            applies,
            manager: if manager.is_empty() { "unknown".to_owned() } else { manager.to_owned() },
            api_version: self.kind.resource().api_version(),
            subresource: match self.part {
                Part::Main => "",
                Part::Status => "status",
                Part::Finalize => "finalize",
            }
            .to_owned(),
        }
    }

    /// What this endpoint does not write, so nobody comes to own it here.
    fn ignored(self) -> &'static Set {
        static IGNORED: OnceLock<PerKind<[Set; 3]>> = OnceLock::new();
        let mut kinds = crate::descriptors::RESOURCES.iter();
        let sets = IGNORED.get_or_init(|| {
            PerKind::new(|| {
                let status = kinds.next().is_some_and(|resource| resource.status);
                let of = |member: &str| if status { Set::of_path(&[member]) } else { Set::default() };
                [of("status"), of("spec"), of("status")]
            })
        });
        let [main, status, finalize] = sets.of(self.kind);
        match self.part {
            Part::Main => main,
            Part::Status => self.ignored_by_status(status),
            Part::Finalize => finalize,
        }
    }

    fn ignored_by_status(self, spec: &'static Set) -> &'static Set {
        static ATTACHMENT: OnceLock<Set> = OnceLock::new();
        static POD: OnceLock<Set> = OnceLock::new();
        match self.kind {
            Kind::VolumeAttachment => {
                ATTACHMENT.get_or_init(|| Set::of_path(&["metadata"]).union(Set::of_path(&["spec"])))
            }
            Kind::Pod => POD.get_or_init(|| {
                Set::of_path(&["spec"])
                    .union(Set::of_path(&["metadata", "deletionTimestamp"]))
                    .union(Set::of_path(&["metadata", "ownerReferences"]))
            }),
            Kind::Namespace
            | Kind::Node
            | Kind::PersistentVolume
            | Kind::PersistentVolumeClaim
            | Kind::Event
            | Kind::Secret
            | Kind::ConfigMap
            | Kind::ServiceAccount
            | Kind::StorageClass
            | Kind::CsiDriver
            | Kind::CsiNode
            | Kind::CsiStorageCapacity
            | Kind::VolumeAttributesClass
            | Kind::Lease => spec,
        }
    }
}

/// Nobody owns these.
fn stripped() -> &'static Set {
    static STRIPPED: OnceLock<Set> = OnceLock::new();
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
        let top = ["apiVersion", "kind", "metadata"].map(|member| Set::of_path(&[member]));
        let meta = meta.map(|member| Set::of_path(&["metadata", member]));
        top.into_iter().chain(meta).fold(Set::default(), Set::union)
    })
}

/// What managed fields a write starts from: those in the request's object, or else those of the stored one.
pub(crate) fn start(sent: Option<&Value>, stored: &Managed) -> Managed {
    let Some(sent) = sent else { return stored.clone() };
    if Managed::is_reset(sent) {
        return Managed::default();
    }
    match Managed::from_value(sent) {
        Some(managed) if !managed.is_empty() => managed,
        Some(_) | None => stored.clone(),
    }
}

/// Takes the fields that a writer changed away from everybody else.
fn disown(
    managed: &Managed,
    except: Option<&Writer>,
    endpoint: Endpoint,
    lost: &Set,
) -> Vec<std::sync::Arc<Entry>> {
    let version = endpoint.kind.resource().api_version();
    let kept = managed.iter().filter(|entry| entry.writer.api_version == version).map(|entry| {
        let own = except.is_some_and(|writer| entry.writer.is(writer));
        if own || entry.set.intersection(lost).is_empty() {
            return std::sync::Arc::clone(entry);
        }
        Entry::new(entry.writer.clone(), entry.time.clone(), entry.set.difference(lost))
    });
    kept.collect()
}

/// The managed fields after a create, an update or a patch. `old` is the empty object for a create.
pub(crate) fn update(
    endpoint: Endpoint,
    managed: &Managed,
    (old, new): (&Value, &Value),
    manager: &str,
    now: &str,
) -> Managed {
    let mut changes = walk::compare(endpoint.shape(), old, new);
    changes.ignore(endpoint.ignored());
    if changes.is_same() {
        return Managed::from_entries(managed.iter().cloned().collect());
    }
    let gained = changes.modified.union(changes.added);
    let lost = gained.clone().union(changes.removed);
    let mut entries = disown(managed, None, endpoint, &lost);
    let own = gained.difference(stripped());
    if !own.is_empty() {
        let writer = endpoint.writer(manager, false);
        let before = entries.iter().position(|entry| entry.writer.is(&writer));
        let set = match before {
            Some(at) => own.union(entries.swap_remove(at).set.clone()),
            None => own,
        };
        entries.push(Entry::new(writer, Some(now.to_owned()), set));
    }
    Managed::from_entries(entries).capped()
}

/// What a configuration makes of an object.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) value: Value,
    pub(crate) managed: Managed,
}

/// Why a configuration does not apply.
#[derive(Debug)]
pub(crate) enum ApplyError {
    /// It does not fit the type.
    Malformed(String),
    Conflicts(Vec<Conflict>),
}

/// Applies a configuration to an object (the empty one when it does not exist yet).
pub(crate) fn apply(
    endpoint: Endpoint,
    managed: &Managed,
    (live, config): (&Value, &Value),
    (manager, force): (&str, bool),
    now: &str,
) -> Result<Applied, ApplyError> {
    let shape = endpoint.shape();
    walk::check(shape, config).map_err(ApplyError::Malformed)?;
    let adopted;
    let managed = if managed.is_empty() {
        adopted = update(endpoint, managed, (schema::empty(endpoint.kind), live), BEFORE_FIRST_APPLY, now);
        &adopted
    } else {
        managed
    };
    let writer = endpoint.writer(manager, true);
    let before = managed.get(&writer);
    let set = walk::fields_of(shape, config).without(endpoint.ignored());
    let merged = walk::merge(shape, live, config);
    let value = prune(shape, merged, managed, &writer, &set);
    let mut changes = walk::compare(shape, live, &value);
    changes.ignore(endpoint.ignored());
    let gained = changes.modified.union(changes.added);
    if !force {
        let conflicts = conflicts(managed, &writer, &gained);
        if !conflicts.is_empty() {
            return Err(ApplyError::Conflicts(conflicts));
        }
    }
    let mut entries = disown(managed, Some(&writer), endpoint, &gained.union(changes.removed));
    entries.retain(|entry| !entry.writer.is(&writer));
    let time = match before {
        Some(before) if value == *live => before.time.clone(),
        _ if value == *live => None,
        _ => Some(now.to_owned()),
    };
    entries.push(Entry::new(writer, time, set.difference(stripped())));
    Ok(Applied { value, managed: Managed::from_entries(entries) })
}

fn conflicts(managed: &Managed, writer: &Writer, gained: &Set) -> Vec<Conflict> {
    let mut conflicts = Vec::new();
    let mut others: Vec<_> = managed.iter().filter(|entry| !entry.writer.is(writer)).collect();
    others.sort_by_key(|entry| (entry.writer.manager.clone(), entry.writer.applies));
    for entry in others {
        for path in entry.set.intersection(gained).paths() {
            conflicts.push(Conflict { with: entry.writer.clone(), path });
        }
    }
    conflicts
}

/// Removes what the manager applied last time, does not apply this time, and nobody else owns.
fn prune(shape: &'static Struct, merged: Value, managed: &Managed, writer: &Writer, set: &Set) -> Value {
    let Some(last) = managed.get(writer).map(|entry| &entry.set).filter(|last| !last.is_empty()) else {
        return merged;
    };
    let named = |set: &Set| set.with_named_fields(Shape::Struct(shape));
    let last = named(last);
    let all = named(&walk::fields_of(shape, &merged));
    let pruned = walk::remove(shape, &merged, &last);
    // What somebody owns comes back,
    let owned = managed
        .iter()
        .filter(|entry| !entry.writer.is(writer))
        .fold(set.clone(), |owned, entry| owned.union(entry.set.clone()));
    let left = named(&walk::fields_of(shape, &pruned));
    let pruned = walk::remove(shape, &merged, &all.difference(&left.union(named(&owned))));
    // and so does what was below a removed place but was never applied.
    let left = named(&walk::fields_of(shape, &pruned));
    walk::remove(shape, &merged, &all.difference(&left).intersection(&last))
}

/// The fields of a configuration that an object still has as the configuration says.
fn unchanged(shape: &Struct, config: &Value, live: &Value) -> Set {
    let changes = walk::compare(shape, config, live);
    let fields = walk::fields_of(shape, config);
    fields.difference(&changes.modified).difference(&changes.added).difference(&changes.removed)
}

/// The conflicts that are not about a field which client-side apply wrote and nobody changed since.
pub(crate) fn not_from_client(
    kind: Kind,
    conflicts: Vec<Conflict>,
    last_applied: &Value,
    live: &Value,
) -> Vec<Conflict> {
    let own = unchanged(schema::of(kind), last_applied, live).paths();
    conflicts.into_iter().filter(|conflict| !own.contains(&conflict.path)).collect()
}

/// The conflicts in the words of the API.
pub(crate) fn describe(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", one.with.describe(), one.path);
    }
    let mut lines = Vec::new();
    let mut last = None;
    for conflict in conflicts {
        if last != Some(&conflict.with) {
            lines.push(format!("conflicts with {}:", conflict.with.describe()));
            last = Some(&conflict.with);
        }
        lines.push(format!("- {}", conflict.path));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}
