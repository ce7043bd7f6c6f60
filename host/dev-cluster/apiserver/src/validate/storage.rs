//! Validation of PersistentVolumeClaim, PersistentVolume and VolumeAttachment.

use serde_json::{Value, json};

use super::names;
use super::rules::{Errors, immutable, required};
use crate::meta::{self, text};
use crate::quantity;
use crate::status::FieldError;

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const READ_WRITE_ONCE_POD: &str = "ReadWriteOncePod";
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// The volume sources, of which exactly one must be set, in the order of validation.
const VOLUME_SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

fn access_modes(value: &Value, missing: &str, errors: &mut Errors) {
    let field = "spec.accessModes";
    let modes = meta::strings(value, "/spec/accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(field, missing));
    }
    for mode in modes.iter().filter(|mode| !ACCESS_MODES.contains(mode)) {
        errors.push(FieldError::not_supported(field, mode, &ACCESS_MODES));
    }
    if modes.contains(&READ_WRITE_ONCE_POD)
        && modes.iter().any(|mode| *mode != READ_WRITE_ONCE_POD && ACCESS_MODES.contains(mode))
    {
        errors.push(FieldError::forbidden(field, "may not use ReadWriteOncePod with other access modes"));
    }
}

fn volume_mode(value: &Value, errors: &mut Errors) {
    let mode = text(value, "/spec/volumeMode");
    if !mode.is_empty() && !VOLUME_MODES.contains(&mode) {
        errors.push(FieldError::not_supported("spec.volumeMode", mode, &VOLUME_MODES));
    }
}

fn class_name(value: &Value, member: &str, errors: &mut Errors) {
    let name = text(value, &format!("/spec/{member}"));
    if !name.is_empty()
        && let Some(problem) = names::subdomain(name)
    {
        errors.push(FieldError::invalid(format!("spec.{member}"), &json!(name), problem));
    }
}

fn check_positive(value: Option<&Value>, field: &str, errors: &mut Errors) {
    match value {
        None => errors.push(FieldError::required(field, "")),
        Some(value) if quantity::parse(value.as_str().unwrap_or_default()).is_none_or(|size| size <= 0) => {
            errors.push(FieldError::invalid(field, value, "must be greater than zero"));
        }
        Some(_) => {}
    }
}

/// Validates a new PersistentVolumeClaim.
pub(super) fn claim(value: &Value, errors: &mut Errors) {
    access_modes(value, "at least 1 access mode is required", errors);
    check_positive(value.pointer("/spec/resources/requests/storage"), "spec.resources[storage]", errors);
    class_name(value, "storageClassName", errors);
    class_name(value, "volumeAttributesClassName", errors);
    volume_mode(value, errors);
    for member in ["dataSource", "dataSourceRef"] {
        if let Some(source) = value.pointer(&format!("/spec/{member}")) {
            required(source, "/name", &format!("spec.{member}.name"), errors);
            if required(source, "/kind", &format!("spec.{member}.kind"), errors)
                && text(source, "/apiGroup").is_empty()
                && text(source, "/kind") != "PersistentVolumeClaim"
            {
                let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
                errors.push(FieldError::invalid(
                    format!("spec.{member}"),
                    &json!(text(source, "/kind")),
                    detail,
                ));
            }
        }
    }
    let source = |member: &str| value.pointer(&format!("/spec/{member}"));
    if let (Some(plain), Some(reference)) = (source("dataSource"), source("dataSourceRef"))
        && ["apiGroup", "kind", "name"].iter().any(|member| plain.get(member) != reference.get(member))
    {
        errors.push(FieldError::invalid("spec", &json!({}), "must match dataSourceRef"));
    }
}

/// Validates the status of a PersistentVolumeClaim: the values of `allocatedResourceStatuses`.
pub(super) fn claim_status(value: &Value, errors: &mut Errors) {
    const STEPS: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let resize_statuses = value.pointer("/status/allocatedResourceStatuses").and_then(Value::as_object);
    for (resource, resize_status) in resize_statuses.into_iter().flatten() {
        // kube-apiserver's message has the resource's name instead of its value.
        if !STEPS.contains(&resize_status.as_str().unwrap_or_default()) {
            errors.push(FieldError::not_supported("status.allocatedResourceStatuses", resource, &STEPS));
        }
    }
}

/// Validates an update of a PersistentVolumeClaim. Its spec is immutable, except that an absent `volumeName`
/// or `storageClassName` can be set, and that the storage request and `volumeAttributesClassName` of a bound
/// claim can be changed.
pub(super) fn claim_update(old: &Value, next: &Value, errors: &mut Errors) {
    claim(next, errors);
    let bound = text(old, "/status/phase") == "Bound";
    let spec = |value: &Value| value.get("spec").cloned().unwrap_or_default();
    let (before, mut after) = (spec(old), spec(next));
    if text(old, "/spec/volumeName").is_empty() {
        meta::copy_member(&mut after, &before, "volumeName");
    }
    if old.pointer("/spec/storageClassName").is_none() {
        meta::copy_member(&mut after, &before, "storageClassName");
    }
    if bound {
        if after.get("volumeAttributesClassName").is_some() {
            meta::copy_member(&mut after, &before, "volumeAttributesClassName");
        }
        meta::edit(&mut after, "resources", |resources| {
            let requests = before.pointer("/resources/requests/storage").cloned();
            if let (Some(Value::Object(map)), Some(storage)) = (resources.get_mut("requests"), requests) {
                map.insert("storage".to_owned(), storage);
            }
        });
    }
    if before != after {
        let detail = "spec is immutable after creation except resources.requests and \
            volumeAttributesClassName for bound claims";
        errors.push(FieldError::forbidden("spec", detail));
    }
    let size = |value: &Value, pointer: &str| quantity::parse(text(value, pointer)).unwrap_or(0);
    let request = "/spec/resources/requests/storage";
    let shrinks = size(next, request) < size(old, request);
    if shrinks && size(next, request) <= size(old, "/status/capacity/storage") {
        let detail = "field can not be less than status.capacity";
        errors.push(FieldError::forbidden("spec.resources.requests.storage", detail));
    }
    let attributes = "/spec/volumeAttributesClassName";
    if bound && !text(old, attributes).is_empty() && text(next, attributes).is_empty() {
        let what = if next.pointer(attributes).is_none() { "nil" } else { "an empty string" };
        let detail = format!("update from non-nil value to {what} is forbidden");
        errors.push(FieldError::forbidden("spec.volumeAttributesClassName", &detail));
    }
}

fn sources(value: &Value) -> Vec<&'static str> {
    let spec = value.get("spec");
    VOLUME_SOURCES.into_iter().filter(|source| spec.is_some_and(|spec| spec.get(*source).is_some())).collect()
}

/// Validates a new PersistentVolume.
pub(super) fn volume(value: &Value, errors: &mut Errors) {
    access_modes(value, "", errors);
    let capacity = value.pointer("/spec/capacity");
    if capacity.is_none() {
        errors.push(FieldError::required("spec.capacity", ""));
    }
    let sizes = capacity.and_then(Value::as_object);
    if sizes.is_none_or(|sizes| sizes.len() != 1 || !sizes.contains_key("storage")) {
        let found = capacity.unwrap_or(&Value::Null);
        errors.push(FieldError::not_supported_value("spec.capacity", found, &["storage"]));
    }
    for (name, size) in sizes.into_iter().flatten() {
        check_positive(Some(size), &format!("spec.capacity[{name}]"), errors);
    }
    let policy = text(value, "/spec/persistentVolumeReclaimPolicy");
    let policies = ["Delete", "Recycle", "Retain"];
    if !policy.is_empty() && !policies.contains(&policy) {
        errors.push(FieldError::not_supported("spec.persistentVolumeReclaimPolicy", policy, &policies));
    }
    node_affinity(value, errors);
    match sources(value).as_slice() {
        [] => errors.push(FieldError::required("spec", "must specify a volume type")),
        [source, more @ ..] => {
            volume_source(value, source, errors);
            for source in more {
                let detail = "may not specify more than 1 volume type";
                errors.push(FieldError::forbidden(format!("spec.{source}"), detail));
            }
        }
    }
    if policy == "Recycle" && text(value, "/spec/hostPath/path") == "/" {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.push(FieldError::forbidden("spec.persistentVolumeReclaimPolicy", detail));
    }
    class_name(value, "storageClassName", errors);
    volume_mode(value, errors);
    class_name(value, "volumeAttributesClassName", errors);
}

fn node_affinity(value: &Value, errors: &mut Errors) {
    let Some(affinity) = value.pointer("/spec/nodeAffinity") else { return };
    let field = "spec.nodeAffinity.required";
    let Some(required) = affinity.get("required") else {
        return errors.push(FieldError::required(field, "must specify required node constraints"));
    };
    let terms = meta::list(required, "/nodeSelectorTerms");
    if terms.is_empty() {
        errors.push(FieldError::required(
            format!("{field}.nodeSelectorTerms"),
            "must have at least one node selector term",
        ));
    }
    for (index, term) in terms.iter().enumerate() {
        for (place, one) in meta::list(term, "/matchExpressions").iter().enumerate() {
            let field = format!("{field}.nodeSelectorTerms[{index}].matchExpressions[{place}]");
            let (operator, count) = (text(one, "/operator"), meta::list(one, "/values").len());
            match operator {
                "In" | "NotIn" if count == 0 => errors.push(FieldError::required(
                    format!("{field}.values"),
                    "must be specified when `operator` is 'In' or 'NotIn'",
                )),
                "In" | "NotIn" => {}
                "Exists" | "DoesNotExist" if count > 0 => errors.push(FieldError::forbidden(
                    format!("{field}.values"),
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                )),
                "Exists" | "DoesNotExist" => {}
                "Gt" | "Lt" if count != 1 => errors.push(FieldError::required(
                    format!("{field}.values"),
                    "must be specified single value when `operator` is 'Lt' or 'Gt'",
                )),
                "Gt" | "Lt" => {}
                other => errors.push(FieldError::invalid(
                    format!("{field}.operator"),
                    &json!(other),
                    "not a valid selector operator",
                )),
            }
            for problem in names::qualified_name(text(one, "/key")) {
                errors.push(FieldError::invalid(format!("{field}.key"), &json!(text(one, "/key")), problem));
            }
        }
    }
}

/// The Secret references of a CSI volume that are validated, in the order of validation.
const SECRET_REFS: [&str; 4] = [
    "controllerPublishSecretRef",
    "controllerExpandSecretRef",
    "nodePublishSecretRef",
    "nodeExpandSecretRef",
];

fn volume_source(value: &Value, source: &str, errors: &mut Errors) {
    let Some(found) = value.pointer(&format!("/spec/{source}")) else { return };
    match source {
        "csi" => {
            driver_name(text(found, "/driver"), "spec.csi.driver", errors);
            required(found, "/volumeHandle", "spec.csi.volumeHandle", errors);
            for member in SECRET_REFS {
                if let Some(reference) = found.get(member) {
                    secret(reference, &format!("spec.csi.{member}"), errors);
                }
            }
        }
        "hostPath" => {
            required(found, "/path", "spec.hostPath.path", errors);
        }
        "nfs" => {
            required(found, "/server", "spec.nfs.server", errors);
            let path = text(found, "/path");
            if required(found, "/path", "spec.nfs.path", errors) && !path.starts_with('/') {
                errors.push(FieldError::invalid("spec.nfs.path", &json!(path), "must be an absolute path"));
            }
        }
        "local" => {
            required(found, "/path", "spec.local.path", errors);
            if value.pointer("/spec/nodeAffinity").is_none() {
                let detail = "Local volume requires node affinity";
                errors.push(FieldError::required("spec.nodeAffinity", detail));
            }
        }
        _ => {}
    }
}

fn secret(reference: &Value, field: &str, errors: &mut Errors) {
    type Rule = fn(&str) -> Option<&'static str>;
    for (member, rule) in [("name", names::subdomain as Rule), ("namespace", names::label as Rule)] {
        let at = format!("{field}.{member}");
        let found = text(reference, &format!("/{member}"));
        if required(reference, &format!("/{member}"), &at, errors)
            && let Some(problem) = rule(found)
        {
            errors.push(FieldError::invalid(at, &json!(found), problem));
        }
    }
}

/// Validates the name of a CSI driver.
pub(super) fn driver_name(name: &str, field: &str, errors: &mut Errors) {
    if name.is_empty() {
        return errors.push(FieldError::required(field, ""));
    }
    if name.len() > 63 {
        errors.push(FieldError::too_long(field, 63));
    }
    if let Some(problem) = names::subdomain(&name.to_ascii_lowercase()) {
        errors.push(FieldError::invalid(field, &json!(name), problem));
    }
}

/// Validates an update of a PersistentVolume.
pub(super) fn volume_update(old: &Value, next: &Value, errors: &mut Errors) {
    volume(next, errors);
    let is_same_source = VOLUME_SOURCES.iter().all(|source| {
        let at = format!("/spec/{source}");
        // The Secret for expansion is mutable.
        let plain = |value: &Value| {
            value.pointer(&at).cloned().map(|mut found| {
                meta::remove(&mut found, "controllerExpandSecretRef");
                found
            })
        };
        plain(old) == plain(next)
    });
    if !is_same_source {
        let field = "spec.persistentvolumesource";
        errors.push(FieldError::forbidden(field, "spec.persistentvolumesource is immutable after creation"));
    }
    immutable(old, next, "/spec/volumeMode", "volumeMode", errors);
    let affinity = "/spec/nodeAffinity";
    if old.pointer(affinity).is_some() && old.pointer(affinity) != next.pointer(affinity) {
        let found = next.pointer(affinity).unwrap_or(&Value::Null);
        let detail = "field is immutable, except for updating from beta label to GA";
        errors.push(FieldError::invalid("nodeAffinity", found, detail));
    }
}

/// Validates a new VolumeAttachment.
pub(super) fn attachment(value: &Value, errors: &mut Errors) {
    driver_name(text(value, "/spec/attacher"), "spec.attacher", errors);
    let source = "spec.source";
    let (volume, inline) = ("/spec/source/persistentVolumeName", "/spec/source/inlineVolumeSpec");
    let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (value.pointer(volume).is_some(), value.pointer(inline).is_some()) {
        (false, false) => errors.push(FieldError::required(source, detail)),
        (true, true) => errors.push(FieldError::forbidden(source, detail)),
        (true, false) if text(value, volume).is_empty() => {
            let detail = "must specify non empty persistentVolumeName";
            errors.push(FieldError::required(format!("{source}.persistentVolumeName"), detail));
        }
        (true, false) | (false, true) => {}
    }
    let node = text(value, "/spec/nodeName");
    if let Some(problem) = names::subdomain(node) {
        errors.push(FieldError::invalid("spec.nodeName", &json!(node), problem));
    }
}

/// Maximum size of attachmentMetadata in bytes of keys and values.
const MAX_METADATA: usize = 256 * 1024;

/// Maximum length in bytes of the message of `attachError` or `detachError`.
const MAX_ERROR: usize = 1024;

/// Validates the status of a VolumeAttachment.
pub(super) fn attachment_status(value: &Value, errors: &mut Errors) {
    let metadata = value.pointer("/status/attachmentMetadata").and_then(Value::as_object);
    let pairs = metadata.into_iter().flatten();
    let size: usize = pairs.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > MAX_METADATA {
        errors.push(FieldError::too_long("status.attachmentMetadata", MAX_METADATA));
    }
    for member in ["attachError", "detachError"] {
        if text(value, &format!("/status/{member}/message")).len() > MAX_ERROR {
            // kube-apiserver's message has this other limit.
            errors.push(FieldError::too_long(format!("status.{member}.message"), MAX_METADATA));
        }
        let code = value.pointer(&format!("/status/{member}/errorCode"));
        if let Some(code) = code.filter(|code| code.as_i64().is_some_and(|code| code < 0)) {
            let detail = "must be between 0 and 2147483647, inclusive";
            errors.push(FieldError::invalid(format!("status.{member}.errorCode"), code, detail));
        }
    }
}
