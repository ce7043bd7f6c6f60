//! Validation: pure functions from objects to lists of violated rules.

mod classes;
mod custom;
pub(crate) mod names;
mod rules;
mod storage;
#[cfg(test)]
mod tests;

use serde_json::Value;

use self::rules::{Errors, immutable, required};
use crate::descriptors::{ResourceDescriptor, ResourceKind, Subresource};
use crate::meta::{self, text};
use crate::pods;
use crate::status::FieldError;

/// Maximum size of all annotations of an object, in bytes of keys and values.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Maximum size of all values of a ConfigMap or Secret in bytes, without the keys. The values of a Secret and
/// of `binaryData` count with their length in base64.
const MAX_DATA: usize = 1024 * 1024;

/// Validates a new object.
pub(crate) fn create(resource: &ResourceDescriptor, value: &Value) -> Errors {
    let mut errors = metadata(resource, value);
    match resource.id {
        ResourceKind::PersistentVolumeClaim => storage::claim(value, &mut errors),
        ResourceKind::PersistentVolume => storage::volume(value, &mut errors),
        ResourceKind::VolumeAttachment => storage::attachment(value, &mut errors),
        ResourceKind::StorageClass => classes::storage_class(value, &mut errors),
        ResourceKind::VolumeAttributesClass => classes::attributes_class(value, &mut errors),
        ResourceKind::CsiDriver => classes::csi_driver(value, &mut errors),
        ResourceKind::CsiNode => classes::csi_node(value, &mut errors),
        ResourceKind::CsiStorageCapacity => classes::capacity(value, &mut errors),
        ResourceKind::Lease => lease(value, &mut errors),
        ResourceKind::ConfigMap | ResourceKind::Secret => data(value, &mut errors),
        ResourceKind::Event => event(value, &mut errors),
        ResourceKind::Pod => pod(value, &mut errors),
        ResourceKind::Namespace | ResourceKind::Node | ResourceKind::ServiceAccount => {}
        ResourceKind::VolumeSnapshot
        | ResourceKind::VolumeSnapshotContent
        | ResourceKind::VolumeSnapshotClass => custom::validate(resource.id, None, value, &mut errors),
    }
    errors
}

/// Validates an update.
pub(crate) fn update(
    resource: &ResourceDescriptor,
    subresource: Subresource,
    old: &Value,
    next: &Value,
) -> Errors {
    let mut errors = metadata(resource, next);
    if meta::deleting(old) {
        let before = meta::finalizers(old);
        let added: Vec<&str> =
            meta::finalizers(next).into_iter().filter(|one| !before.contains(one)).collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers \
                 []string{{{}}}",
                added.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(", ")
            );
            errors.push(FieldError::forbidden("metadata.finalizers", &detail));
        }
    }
    if subresource != Subresource::Main {
        if resource.id == ResourceKind::PersistentVolumeClaim {
            storage::claim_status(next, &mut errors);
        } else if resource.id == ResourceKind::VolumeAttachment {
            storage::attachment_status(next, &mut errors);
        } else if resource.is_custom {
            custom::validate_status(resource.id, next, &mut errors);
        }
        return errors;
    }
    match resource.id {
        ResourceKind::PersistentVolumeClaim => storage::claim_update(old, next, &mut errors),
        ResourceKind::PersistentVolume => storage::volume_update(old, next, &mut errors),
        ResourceKind::VolumeAttachment => immutable(old, next, "/spec", "spec", &mut errors),
        ResourceKind::StorageClass => classes::storage_class_update(old, next, &mut errors),
        ResourceKind::VolumeAttributesClass => classes::attributes_class_update(old, next, &mut errors),
        ResourceKind::CsiDriver => classes::csi_driver_update(old, next, &mut errors),
        ResourceKind::CsiNode => classes::csi_node_update(old, next, &mut errors),
        ResourceKind::CsiStorageCapacity => classes::capacity_update(old, next, &mut errors),
        ResourceKind::Lease => lease(next, &mut errors),
        ResourceKind::ConfigMap | ResourceKind::Secret => data_update(resource, old, next, &mut errors),
        ResourceKind::Pod => {
            pod(next, &mut errors);
            pods::validate_pod_update(old, next, &mut errors);
        }
        ResourceKind::Event | ResourceKind::Namespace | ResourceKind::Node | ResourceKind::ServiceAccount => {
        }
        ResourceKind::VolumeSnapshot
        | ResourceKind::VolumeSnapshotContent
        | ResourceKind::VolumeSnapshotClass => custom::validate(resource.id, Some(old), next, &mut errors),
    }
    errors
}

/// Validates the metadata that an update may omit but not change: `uid`, `deletionTimestamp` and
/// `deletionGracePeriodSeconds`.
pub(crate) fn immutable_metadata(old: &Value, next: &Value) -> Errors {
    let mut errors = Vec::new();
    for member in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let pointer = format!("/metadata/{member}");
        if let Some(given) = next.pointer(&pointer)
            && old.pointer(&pointer) != Some(given)
        {
            errors.push(FieldError::invalid(format!("metadata.{member}"), given, "field is immutable"));
        }
    }
    errors
}

fn metadata(resource: &ResourceDescriptor, value: &Value) -> Errors {
    let mut errors = Vec::new();
    let prefix = text(value, "/metadata/generateName");
    // A `generateName` prefix may end with a character that a name must not end with.
    let sample_name =
        prefix.strip_suffix('-').map_or_else(|| prefix.to_owned(), |sample_name| format!("{sample_name}a"));
    if !prefix.is_empty()
        && let Some(problem) = names::object_name(resource.id, &sample_name)
    {
        errors.push(FieldError::invalid("metadata.generateName", &Value::from(prefix), problem));
    }
    let name = meta::name(value);
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else if let Some(problem) = names::object_name(resource.id, name) {
        errors.push(FieldError::invalid("metadata.name", &Value::from(name), problem));
    }
    labels(value, &mut errors);
    owners(value, &mut errors);
    for finalizer in meta::finalizers(value) {
        for problem in names::qualified_name(finalizer) {
            errors.push(FieldError::invalid("metadata.finalizers", &Value::from(finalizer), problem));
        }
    }
    if resource.group.is_empty() {
        let standard = ["kubernetes", "orphan", "foregroundDeletion"];
        for (index, finalizer) in meta::finalizers(value).into_iter().enumerate() {
            if !finalizer.contains('/') && !standard.contains(&finalizer) {
                let detail = "name is neither a standard finalizer name nor is it fully qualified";
                let field = format!("metadata.finalizers[{index}]");
                errors.push(FieldError::invalid(field, &Value::from(finalizer), detail));
            }
        }
    }
    errors
}

fn labels(value: &Value, errors: &mut Errors) {
    let members = |pointer: &str| value.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
    for (key, label) in members("/metadata/labels") {
        for problem in names::qualified_name(key) {
            errors.push(FieldError::invalid("metadata.labels", &Value::from(key.as_str()), problem));
        }
        if let Some(problem) = names::label_value(label.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid("metadata.labels", label, problem));
        }
    }
    let mut size = 0;
    for (key, annotation) in members("/metadata/annotations") {
        size += key.len() + annotation.as_str().map_or(0, str::len);
        for problem in names::qualified_name(&key.to_ascii_lowercase()) {
            errors.push(FieldError::invalid("metadata.annotations", &Value::from(key.as_str()), problem));
        }
    }
    if size > MAX_ANNOTATIONS {
        errors.push(FieldError::too_long("metadata.annotations", MAX_ANNOTATIONS));
    }
}

fn owners(value: &Value, errors: &mut Errors) {
    let field = "metadata.ownerReferences";
    let owners = meta::list(value, "/metadata/ownerReferences");
    let mut controller: Option<String> = None;
    for owner in owners {
        for (member, detail) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if text(owner, &format!("/{member}")).is_empty() {
                errors.push(FieldError::invalid(format!("{field}.{member}"), &Value::from(""), detail));
            }
        }
        let (version, kind) = (text(owner, "/apiVersion"), text(owner, "/kind"));
        if (version, kind) == ("v1", "Event") {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(field, owner, detail));
        }
        if owner.get("controller").and_then(Value::as_bool) == Some(true) {
            let own = format!("{kind}/{}", text(owner, "/name"));
            if let Some(first) = &controller {
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for \
                     {first} and {own}"
                );
                errors.push(FieldError::invalid(field, &Value::from(owners.to_vec()), &detail));
            } else {
                controller = Some(own);
            }
        }
    }
}

fn lease(value: &Value, errors: &mut Errors) {
    for field in ["leaseDurationSeconds", "leaseTransitions"] {
        let found = value.pointer(&format!("/spec/{field}"));
        let least = i64::from(field == "leaseDurationSeconds");
        if let Some(found) = found.filter(|found| found.as_i64().is_some_and(|found| found < least)) {
            let detail =
                if least == 1 { "must be greater than 0" } else { "must be greater than or equal to 0" };
            errors.push(FieldError::invalid(format!("spec.{field}"), found, detail));
        }
    }
}

fn data(value: &Value, errors: &mut Errors) {
    let mut size = 0;
    for member in ["data", "binaryData"] {
        for (key, text) in value.get(member).and_then(Value::as_object).into_iter().flatten() {
            size += text.as_str().map_or(0, str::len);
            if let Some(problem) = names::data_key(key) {
                errors.push(FieldError::invalid(
                    format!("{member}[{key}]"),
                    &Value::from(key.as_str()),
                    problem,
                ));
            }
        }
    }
    let binary = value.get("binaryData").and_then(Value::as_object);
    for key in value.get("data").and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key) {
        if binary.is_some_and(|binary| binary.contains_key(key)) {
            let detail = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(format!("data[{key}]"), &Value::from(key.as_str()), detail));
        }
    }
    if size > MAX_DATA {
        let detail = format!("Too long: may not be more than {MAX_DATA} bytes");
        errors.push(FieldError::invalid("", &Value::from(size), &detail));
    }
}

fn data_update(resource: &ResourceDescriptor, old: &Value, next: &Value, errors: &mut Errors) {
    data(next, errors);
    if resource.id == ResourceKind::Secret {
        immutable(old, next, "/type", "type", errors);
    }
    if old.get("immutable").and_then(Value::as_bool) == Some(true) {
        for field in ["data", "binaryData", "immutable"] {
            if old.get(field) != next.get(field) {
                let detail = "field is immutable when `immutable` is set";
                errors.push(FieldError::forbidden(field, detail));
            }
        }
    }
}

fn event(value: &Value, errors: &mut Errors) {
    let namespace = text(value, "/involvedObject/namespace");
    let event_namespace = meta::namespace(value);
    // Events of cluster-scoped objects are in `default`.
    let is_valid = if namespace.is_empty() {
        event_namespace == "default" || event_namespace == "kube-system"
    } else {
        namespace == event_namespace
    };
    if !is_valid {
        let detail = "does not match event.namespace";
        errors.push(FieldError::invalid("involvedObject.namespace", &Value::from(namespace), detail));
    }
}

fn pod(value: &Value, errors: &mut Errors) {
    let containers = meta::list(value, "/spec/containers");
    if containers.is_empty() {
        errors.push(FieldError::required("spec.containers", ""));
    }
    let mut names = std::collections::BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let field = format!("spec.containers[{index}].name");
        if required(container, "/name", &field, errors) && !names.insert(text(container, "/name")) {
            errors.push(FieldError::duplicate(field, text(container, "/name")));
        }
        required(container, "/image", &format!("spec.containers[{index}].image"), errors);
    }
}
