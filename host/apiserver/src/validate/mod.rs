//! What the API refuses: pure functions from objects to the list of broken rules.

mod classes;
mod names;
mod storage;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::descriptors::{Kind, Resource};
use crate::meta::{self, text};
use crate::status::FieldError;
use crate::write::Part;

/// Annotations of one object, keys and values together.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Data of one ConfigMap or Secret.
const MAX_DATA: usize = 1024 * 1024;

type Errors = Vec<FieldError>;

/// Rules for a new object.
pub(crate) fn create(resource: &Resource, value: &Value) -> Errors {
    let mut errors = metadata(resource, value);
    match resource.id {
        Kind::PersistentVolumeClaim => storage::claim(value, &mut errors),
        Kind::PersistentVolume => storage::volume(value, &mut errors),
        Kind::VolumeAttachment => storage::attachment(value, &mut errors),
        Kind::StorageClass => classes::storage_class(value, &mut errors),
        Kind::VolumeAttributesClass => classes::attributes_class(value, &mut errors),
        Kind::CsiDriver => classes::csi_driver(value, &mut errors),
        Kind::CsiNode => classes::csi_node(value, &mut errors),
        Kind::CsiStorageCapacity => classes::capacity(value, &mut errors),
        Kind::Lease => lease(value, &mut errors),
        Kind::ConfigMap | Kind::Secret => data(value, &mut errors),
        Kind::Event => event(value, &mut errors),
        Kind::Pod => pod(value, &mut errors),
        Kind::Namespace | Kind::Node | Kind::ServiceAccount => {}
    }
    errors
}

/// Rules for the successor of an object.
pub(crate) fn update(resource: &Resource, part: Part, old: &Value, next: &Value) -> Errors {
    let mut errors = metadata(resource, next);
    if meta::deleting(old) {
        let before = meta::finalizers(old);
        let added: Vec<&str> =
            meta::finalizers(next).into_iter().filter(|one| !before.contains(one)).collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
            );
            errors.push(FieldError::forbidden("metadata.finalizers", &detail));
        }
    }
    if part != Part::Main {
        return errors;
    }
    match resource.id {
        Kind::PersistentVolumeClaim => storage::claim_update(old, next, &mut errors),
        Kind::PersistentVolume => storage::volume_update(old, next, &mut errors),
        Kind::VolumeAttachment => immutable(old, next, "/spec", "spec", &mut errors),
        Kind::StorageClass => classes::storage_class_update(old, next, &mut errors),
        Kind::VolumeAttributesClass => classes::attributes_class_update(old, next, &mut errors),
        Kind::CsiDriver => classes::csi_driver_update(old, next, &mut errors),
        Kind::CsiNode => classes::csi_node_update(old, next, &mut errors),
        Kind::CsiStorageCapacity => classes::capacity_update(old, next, &mut errors),
        Kind::Lease => lease(next, &mut errors),
        Kind::ConfigMap | Kind::Secret => data_update(resource, old, next, &mut errors),
        Kind::Event | Kind::Pod | Kind::Namespace | Kind::Node | Kind::ServiceAccount => {}
    }
    errors
}

fn immutable(old: &Value, next: &Value, pointer: &str, field: &str, errors: &mut Errors) {
    let (old, next) = (old.pointer(pointer), next.pointer(pointer));
    if old != next {
        errors.push(FieldError::invalid(field, next.unwrap_or(&Value::Null), "field is immutable"));
    }
}

fn required(value: &Value, pointer: &str, field: &str, errors: &mut Errors) -> bool {
    let absent = text(value, pointer).is_empty();
    if absent {
        errors.push(FieldError::required(field, ""));
    }
    !absent
}

fn metadata(resource: &Resource, value: &Value) -> Errors {
    let mut errors = Vec::new();
    let name = meta::name(value);
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else if let Some(problem) = names::object_name(resource.id, name) {
        errors.push(FieldError::invalid("metadata.name", &Value::from(name), problem));
    }
    let members = |pointer: &str| value.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
    for (key, label) in members("/metadata/labels") {
        if let Some(problem) = names::qualified(key) {
            errors.push(FieldError::invalid("metadata.labels", &Value::from(key.as_str()), problem));
        }
        if let Some(problem) = names::label_value(label.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid("metadata.labels", label, problem));
        }
    }
    let mut size = 0;
    for (key, annotation) in members("/metadata/annotations") {
        size += key.len() + annotation.as_str().map_or(0, str::len);
        if let Some(problem) = names::qualified(&key.to_ascii_lowercase()) {
            errors.push(FieldError::invalid("metadata.annotations", &Value::from(key.as_str()), problem));
        }
    }
    if size > MAX_ANNOTATIONS {
        let detail = format!("may not be more than {MAX_ANNOTATIONS} bytes");
        errors.push(FieldError::invalid("metadata.annotations", &Value::from(size), &detail));
    }
    for finalizer in meta::finalizers(value) {
        if let Some(problem) = names::qualified(finalizer) {
            errors.push(FieldError::invalid("metadata.finalizers", &Value::from(finalizer), problem));
        }
    }
    for (index, owner) in meta::list(value, "/metadata/ownerReferences").iter().enumerate() {
        for member in ["apiVersion", "kind", "name", "uid"] {
            let field = format!("metadata.ownerReferences[{index}].{member}");
            required(owner, &format!("/{member}"), &field, &mut errors);
        }
    }
    errors
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
    if size > MAX_DATA {
        let detail = format!("Too long: may not be more than {MAX_DATA} bytes");
        errors.push(FieldError::invalid("", &Value::from(size), &detail));
    }
}

fn data_update(resource: &Resource, old: &Value, next: &Value, errors: &mut Errors) {
    data(next, errors);
    if resource.id == Kind::Secret {
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
    let own = meta::namespace(value);
    // Events about cluster-wide objects live in `default`.
    let fits = if namespace.is_empty() { own == "default" || own == "kube-system" } else { namespace == own };
    if !fits {
        let detail = "does not match event.namespace";
        errors.push(FieldError::invalid("involvedObject.namespace", &Value::from(namespace), detail));
    }
}

fn pod(value: &Value, errors: &mut Errors) {
    let containers = meta::list(value, "/spec/containers");
    if containers.is_empty() {
        errors.push(FieldError::required("spec.containers", ""));
    }
    let mut seen = std::collections::BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let field = format!("spec.containers[{index}].name");
        if required(container, "/name", &field, errors) && !seen.insert(text(container, "/name")) {
            errors.push(FieldError::duplicate(field, text(container, "/name")));
        }
        required(container, "/image", &format!("spec.containers[{index}].image"), errors);
    }
}
