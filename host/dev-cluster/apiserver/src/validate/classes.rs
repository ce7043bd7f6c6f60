//! Validation of StorageClass, VolumeAttributesClass, CSIDriver, CSINode and CSIStorageCapacity.

use serde_json::{Value, json};

use super::names;
use super::rules::{Errors, immutable, required};
use crate::meta::{self, text};
use crate::status::FieldError;

/// Maximum size of a class' parameters in bytes of keys and values.
const MAX_PARAMETERS: usize = 256 * 1024;

/// Maximum number of a class' parameters.
const MAX_PARAMETER_COUNT: usize = 512;

fn check_one_of(value: &Value, pointer: &str, field: &str, allowed: &[&str], errors: &mut Errors) {
    let found = text(value, pointer);
    if !found.is_empty() && !allowed.contains(&found) {
        errors.push(FieldError::not_supported(field, found, allowed));
    }
}

fn check_unchanged(old: &Value, next: &Value, member: &str, errors: &mut Errors) {
    let empty = json!({});
    // An empty map equals an absent one.
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
        errors.push(FieldError::invalid("parameters", &json!(""), "field can not be empty."));
    }
    let size: usize = map.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > MAX_PARAMETERS {
        let detail = format!("must have at most {MAX_PARAMETERS} bytes");
        errors.push(FieldError::invalid("parameters", &json!(size), &detail));
    }
}

/// Validates a new StorageClass.
pub(super) fn storage_class(value: &Value, errors: &mut Errors) {
    provisioner(value, "provisioner", errors);
    parameters(value, errors);
    check_one_of(value, "/reclaimPolicy", "reclaimPolicy", &["Delete", "Retain"], errors);
    check_one_of(
        value,
        "/volumeBindingMode",
        "volumeBindingMode",
        &["Immediate", "WaitForFirstConsumer"],
        errors,
    );
    for (index, term) in meta::list(value, "/allowedTopologies").iter().enumerate() {
        for (place, one) in meta::list(term, "/matchLabelExpressions").iter().enumerate() {
            let field = format!("allowedTopologies[{index}].matchLabelExpressions[{place}]");
            if meta::list(one, "/values").is_empty() {
                errors.push(FieldError::required(format!("{field}.values"), ""));
            }
            for problem in names::qualified_name(text(one, "/key")) {
                errors.push(FieldError::invalid(format!("{field}.key"), &json!(text(one, "/key")), problem));
            }
        }
    }
}

/// Validates the name of a provisioner or driver. Upper-case letters are converted first.
fn provisioner(value: &Value, member: &str, errors: &mut Errors) {
    if required(value, &format!("/{member}"), member, errors) {
        let name = text(value, &format!("/{member}")).to_ascii_lowercase();
        for problem in names::qualified_name(&name) {
            errors.push(FieldError::invalid(member, &json!(name), problem));
        }
    }
}

/// Validates an update of a StorageClass.
pub(super) fn storage_class_update(old: &Value, next: &Value, errors: &mut Errors) {
    storage_class(next, errors);
    for member in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        immutable(old, next, &format!("/{member}"), member, errors);
    }
}

/// Validates a new VolumeAttributesClass.
pub(super) fn attributes_class(value: &Value, errors: &mut Errors) {
    provisioner(value, "driverName", errors);
    if value.get("parameters").and_then(Value::as_object).is_none_or(serde_json::Map::is_empty) {
        errors.push(FieldError::required("parameters", "must contain at least one key/value pair"));
    }
    parameters(value, errors);
}

/// Validates an update of a VolumeAttributesClass.
pub(super) fn attributes_class_update(old: &Value, next: &Value, errors: &mut Errors) {
    check_unchanged(old, next, "driverName", errors);
    check_unchanged(old, next, "parameters", errors);
}

/// Validates a new CSIDriver.
pub(super) fn csi_driver(value: &Value, errors: &mut Errors) {
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    check_one_of(value, "/spec/fsGroupPolicy", "spec.fsGroupPolicy", &policies, errors);
    let mut audiences = std::collections::BTreeSet::new();
    for (index, request) in meta::list(value, "/spec/tokenRequests").iter().enumerate() {
        let field = format!("spec.tokenRequests[{index}]");
        let audience = text(request, "/audience");
        if !audiences.insert(audience) {
            errors.push(FieldError::duplicate(format!("{field}.audience"), audience));
        }
        let seconds = request.get("expirationSeconds");
        if let Some(found) = seconds.filter(|seconds| seconds.as_i64().is_some_and(|seconds| seconds < 600)) {
            let detail = "may not specify a duration less than 10 minutes";
            errors.push(FieldError::invalid(format!("{field}.expirationSeconds"), found, detail));
        }
    }
    for mode in meta::strings(value, "/spec/volumeLifecycleModes") {
        let modes = ["Persistent", "Ephemeral"];
        if !modes.contains(&mode) {
            errors.push(FieldError::not_supported("spec.volumeLifecycleModes", mode, &modes));
        }
    }
    let period = value.pointer("/spec/nodeAllocatableUpdatePeriodSeconds");
    if let Some(found) = period.filter(|period| period.as_i64().is_some_and(|period| period < 10)) {
        let detail = "must be greater than or equal to 10 seconds";
        errors.push(FieldError::invalid("spec.nodeAllocatableUpdatePeriodSeconds", found, detail));
    }
    let given = value.pointer("/spec/serviceAccountTokenInSecrets");
    if let Some(found) = given.filter(|_| meta::list(value, "/spec/tokenRequests").is_empty()) {
        let detail = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.push(FieldError::invalid("spec.serviceAccountTokenInSecrets", found, detail));
    }
}

/// Validates an update of a CSIDriver.
pub(super) fn csi_driver_update(old: &Value, next: &Value, errors: &mut Errors) {
    csi_driver(next, errors);
    // kube-apiserver's message has this misspelled field name, too.
    immutable(old, next, "/spec/attachRequired", "spec.attachedRequired", errors);
    immutable(old, next, "/spec/volumeLifecycleModes", "spec.volumeLifecycleModes", errors);
}

/// Validates a CSINode.
pub(super) fn csi_node(value: &Value, errors: &mut Errors) {
    let mut names = std::collections::BTreeSet::new();
    for (index, driver) in meta::list(value, "/spec/drivers").iter().enumerate() {
        let field = format!("spec.drivers[{index}]");
        super::storage::driver_name(text(driver, "/name"), &format!("{field}.name"), errors);
        let name = text(driver, "/name");
        if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(format!("{field}.name"), name));
        }
        required(driver, "/nodeID", &format!("{field}.nodeID"), errors);
        let count = driver.pointer("/allocatable/count");
        if let Some(count) = count.filter(|count| count.as_i64().is_some_and(|count| count < 0)) {
            let detail = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(format!("{field}.allocatable.count"), count, detail));
        }
        topology_keys(driver, &field, errors);
    }
}

fn topology_keys(driver: &Value, field: &str, errors: &mut Errors) {
    let mut keys = std::collections::BTreeSet::new();
    for key in meta::list(driver, "/topologyKeys").iter().filter_map(Value::as_str) {
        if key.is_empty() && keys.is_empty() {
            errors.push(FieldError::required(field, ""));
        }
        if !keys.insert(key) {
            errors.push(FieldError::duplicate(field, key));
            continue;
        }
        for problem in names::qualified_name(key) {
            errors.push(FieldError::invalid(field, &json!(key), problem));
        }
    }
}

/// Validates an update of a CSINode: entries can be added and removed, but `nodeID` and `topologyKeys` of an
/// entry cannot be changed.
pub(super) fn csi_node_update(old: &Value, next: &Value, errors: &mut Errors) {
    csi_node(next, errors);
    let before = meta::list(old, "/spec/drivers");
    for driver in meta::list(next, "/spec/drivers") {
        let same = before.iter().find(|one| text(one, "/name") == text(driver, "/name"));
        if same.is_some_and(|same| {
            ["nodeID", "topologyKeys"].iter().any(|member| same.get(member) != driver.get(member))
        }) {
            errors.push(FieldError::invalid("spec.drivers", driver, "field is immutable"));
        }
    }
}

/// Validates a new CSIStorageCapacity.
pub(super) fn capacity(value: &Value, errors: &mut Errors) {
    for (key, label) in
        value.pointer("/nodeTopology/matchLabels").and_then(Value::as_object).into_iter().flatten()
    {
        for problem in names::qualified_name(key) {
            errors.push(FieldError::invalid("nodeTopology.matchLabels", &json!(key), problem));
        }
        if let Some(problem) = names::label_value(label.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid("nodeTopology.matchLabels", label, problem));
        }
    }
    let class = text(value, "/storageClassName");
    if let Some(problem) = names::subdomain(class) {
        errors.push(FieldError::invalid("storageClassName", &json!(class), problem));
    }
    for member in ["capacity", "maximumVolumeSize"] {
        let size = value.get(member);
        let below = |size: &Value| {
            crate::quantity::parse(size.as_str().unwrap_or_default()).is_some_and(|size| size < 0)
        };
        if let Some(found) = size.filter(|size| below(size)) {
            errors.push(FieldError::invalid(member, found, "must be greater than or equal to 0"));
        }
    }
}

/// Validates an update of a CSIStorageCapacity.
pub(super) fn capacity_update(old: &Value, next: &Value, errors: &mut Errors) {
    capacity(next, errors);
    immutable(old, next, "/nodeTopology", "nodeTopology", errors);
    immutable(old, next, "/storageClassName", "storageClassName", errors);
}
