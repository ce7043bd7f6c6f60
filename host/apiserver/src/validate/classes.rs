//! Classes, drivers, nodes' drivers and capacities.

use serde_json::{Value, json};

use super::{Errors, immutable, names, required};
use crate::meta::{self, text};
use crate::status::FieldError;

/// Parameters of one class, keys and values together.
const MAX_PARAMETERS: usize = 256 * 1024;

/// Parameters of one class, counted.
const MAX_PARAMETER_COUNT: usize = 512;

fn one_of(value: &Value, pointer: &str, field: &str, allowed: &[&str], errors: &mut Errors) {
    let found = text(value, pointer);
    if !found.is_empty() && !allowed.contains(&found) {
        errors.push(FieldError::not_supported(field, found, allowed));
    }
}

fn unchanged(old: &Value, next: &Value, member: &str, errors: &mut Errors) {
    let empty = json!({});
    // An empty map and none are the same.
    if old.get(member).unwrap_or(&empty) != next.get(member).unwrap_or(&empty) {
        errors.push(FieldError::forbidden(member, &format!("updates to {member} are forbidden.")));
    }
}

fn parameters(value: &Value, errors: &mut Errors) {
    let Some(map) = value.get("parameters").and_then(Value::as_object) else { return };
    if map.len() > MAX_PARAMETER_COUNT {
        let detail = format!("must have at most {MAX_PARAMETER_COUNT} items");
        errors.push(FieldError::invalid("parameters", &json!(map.len()), &detail));
    }
    if map.keys().any(String::is_empty) {
        errors.push(FieldError::invalid("parameters", &json!(""), "field must not be empty."));
    }
    let size: usize = map.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > MAX_PARAMETERS {
        let detail = format!("must have at most {MAX_PARAMETERS} bytes");
        errors.push(FieldError::invalid("parameters", &json!(size), &detail));
    }
}

/// A new storage class.
pub(super) fn storage_class(value: &Value, errors: &mut Errors) {
    if required(value, "/provisioner", "provisioner", errors)
        && let Some(problem) = names::qualified(&text(value, "/provisioner").to_ascii_lowercase())
    {
        errors.push(FieldError::invalid("provisioner", &json!(text(value, "/provisioner")), problem));
    }
    parameters(value, errors);
    one_of(value, "/reclaimPolicy", "reclaimPolicy", &["Delete", "Retain"], errors);
    one_of(value, "/volumeBindingMode", "volumeBindingMode", &["Immediate", "WaitForFirstConsumer"], errors);
}

/// The successor of a storage class.
pub(super) fn storage_class_update(old: &Value, next: &Value, errors: &mut Errors) {
    storage_class(next, errors);
    unchanged(old, next, "parameters", errors);
    unchanged(old, next, "provisioner", errors);
    unchanged(old, next, "reclaimPolicy", errors);
    immutable(old, next, "/volumeBindingMode", "volumeBindingMode", errors);
}

/// A new class of volume attributes.
pub(super) fn attributes_class(value: &Value, errors: &mut Errors) {
    required(value, "/driverName", "driverName", errors);
    if value.get("parameters").and_then(Value::as_object).is_none_or(serde_json::Map::is_empty) {
        errors.push(FieldError::required("parameters", "must contain at least one key/value pair"));
    }
    parameters(value, errors);
}

/// The successor of a class of volume attributes.
pub(super) fn attributes_class_update(old: &Value, next: &Value, errors: &mut Errors) {
    unchanged(old, next, "driverName", errors);
    unchanged(old, next, "parameters", errors);
}

/// A new driver.
pub(super) fn csi_driver(value: &Value, errors: &mut Errors) {
    for mode in meta::strings(value, "/spec/volumeLifecycleModes") {
        let modes = ["Ephemeral", "Persistent"];
        if !modes.contains(&mode) {
            errors.push(FieldError::not_supported("spec.volumeLifecycleModes", mode, &modes));
        }
    }
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    one_of(value, "/spec/fsGroupPolicy", "spec.fsGroupPolicy", &policies, errors);
}

/// The successor of a driver.
pub(super) fn csi_driver_update(old: &Value, next: &Value, errors: &mut Errors) {
    csi_driver(next, errors);
    // The field's name is misspelt in the real answer, too.
    immutable(old, next, "/spec/attachRequired", "spec.attachedRequired", errors);
    immutable(old, next, "/spec/fsGroupPolicy", "spec.fsGroupPolicy", errors);
    immutable(old, next, "/spec/volumeLifecycleModes", "spec.volumeLifecycleModes", errors);
}

/// The drivers of a node.
pub(super) fn csi_node(value: &Value, errors: &mut Errors) {
    let mut seen = std::collections::BTreeSet::new();
    for (index, driver) in meta::list(value, "/spec/drivers").iter().enumerate() {
        let field = format!("spec.drivers[{index}]");
        if required(driver, "/name", &format!("{field}.name"), errors) && !seen.insert(text(driver, "/name"))
        {
            errors.push(FieldError::duplicate(format!("{field}.name"), text(driver, "/name")));
        }
        required(driver, "/nodeID", &format!("{field}.nodeID"), errors);
        let count = driver.pointer("/allocatable/count");
        if let Some(count) = count.filter(|count| count.as_i64().is_some_and(|count| count < 0)) {
            let detail = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(format!("{field}.allocatable.count"), count, detail));
        }
    }
}

/// The successor of a node's drivers: an entry can come and go, but not change who it is.
pub(super) fn csi_node_update(old: &Value, next: &Value, errors: &mut Errors) {
    csi_node(next, errors);
    let before = meta::list(old, "/spec/drivers");
    for (index, driver) in meta::list(next, "/spec/drivers").iter().enumerate() {
        let same = before.iter().find(|one| text(one, "/name") == text(driver, "/name"));
        if let Some(same) = same {
            for member in ["nodeID", "topologyKeys"] {
                let field = format!("spec.drivers[{index}].{member}");
                immutable(same, driver, &format!("/{member}"), &field, errors);
            }
        }
    }
}

/// A new capacity.
pub(super) fn capacity(value: &Value, errors: &mut Errors) {
    required(value, "/storageClassName", "storageClassName", errors);
}

/// The successor of a capacity.
pub(super) fn capacity_update(old: &Value, next: &Value, errors: &mut Errors) {
    immutable(old, next, "/nodeTopology", "nodeTopology", errors);
    immutable(old, next, "/storageClassName", "storageClassName", errors);
}
