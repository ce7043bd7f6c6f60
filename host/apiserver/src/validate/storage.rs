//! Claims, volumes and attachments.

use serde_json::{Value, json};

use super::{Errors, immutable, names, required};
use crate::meta::{self, text};
use crate::quantity;
use crate::status::FieldError;

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const SINGLE: &str = "ReadWriteOncePod";
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// The members of a volume's spec of which exactly one says where the data is.
const SOURCES: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "csi",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "glusterfs",
    "hostPath",
    "iscsi",
    "local",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

fn access_modes(value: &Value, errors: &mut Errors) {
    let field = "spec.accessModes";
    let modes = meta::strings(value, "/spec/accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(field, "at least 1 access mode is required"));
    }
    for mode in modes.iter().filter(|mode| !ACCESS_MODES.contains(mode)) {
        errors.push(FieldError::not_supported(field, mode, &ACCESS_MODES));
    }
    if modes.contains(&SINGLE) && modes.len() > 1 {
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

fn positive(value: Option<&Value>, field: &str, errors: &mut Errors) {
    match value {
        None => errors.push(FieldError::required(field, "")),
        Some(value) if quantity::parse(value.as_str().unwrap_or_default()).is_none_or(|size| size <= 0) => {
            errors.push(FieldError::invalid(field, value, "must be greater than zero"));
        }
        Some(_) => {}
    }
}

/// A new claim.
pub(super) fn claim(value: &Value, errors: &mut Errors) {
    access_modes(value, errors);
    positive(value.pointer("/spec/resources/requests/storage"), "spec.resources[storage]", errors);
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
}

/// The successor of a claim: its spec is immutable but for a few steps.
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
        let detail = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
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
    SOURCES.into_iter().filter(|source| spec.is_some_and(|spec| spec.get(*source).is_some())).collect()
}

/// A new volume.
pub(super) fn volume(value: &Value, errors: &mut Errors) {
    access_modes(value, errors);
    match value.pointer("/spec/capacity").and_then(Value::as_object) {
        None => errors.push(FieldError::required("spec.capacity", "")),
        Some(capacity) => {
            for name in capacity.keys().filter(|name| *name != "storage") {
                errors.push(FieldError::not_supported("spec.capacity", name, &["storage"]));
            }
            positive(capacity.get("storage"), "spec.capacity[storage]", errors);
        }
    }
    match sources(value).as_slice() {
        [] => errors.push(FieldError::required("spec", "must specify a volume type")),
        [_] => {}
        [_, more @ ..] => {
            for source in more {
                let detail = "may not specify more than 1 volume type";
                errors.push(FieldError::forbidden(format!("spec.{source}"), detail));
            }
        }
    }
    volume_source(value, errors);
    class_name(value, "storageClassName", errors);
    class_name(value, "volumeAttributesClassName", errors);
    volume_mode(value, errors);
    let policy = text(value, "/spec/persistentVolumeReclaimPolicy");
    let policies = ["Delete", "Recycle", "Retain"];
    if !policy.is_empty() && !policies.contains(&policy) {
        errors.push(FieldError::not_supported("spec.persistentVolumeReclaimPolicy", policy, &policies));
    }
    if policy == "Recycle" && text(value, "/spec/hostPath/path") == "/" {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.push(FieldError::forbidden("spec.persistentVolumeReclaimPolicy", detail));
    }
}

fn volume_source(value: &Value, errors: &mut Errors) {
    if let Some(csi) = value.pointer("/spec/csi") {
        required(csi, "/driver", "spec.csi.driver", errors);
        required(csi, "/volumeHandle", "spec.csi.volumeHandle", errors);
        for (member, reference) in csi.as_object().into_iter().flatten() {
            if member.ends_with("SecretRef") {
                required(reference, "/name", &format!("spec.csi.{member}.name"), errors);
                required(reference, "/namespace", &format!("spec.csi.{member}.namespace"), errors);
            }
        }
    }
    if let Some(path) = value.pointer("/spec/hostPath") {
        required(path, "/path", "spec.hostPath.path", errors);
    }
    if let Some(nfs) = value.pointer("/spec/nfs") {
        required(nfs, "/server", "spec.nfs.server", errors);
        required(nfs, "/path", "spec.nfs.path", errors);
    }
    if let Some(local) = value.pointer("/spec/local") {
        required(local, "/path", "spec.local.path", errors);
        if value.pointer("/spec/nodeAffinity/required").is_none() {
            let detail = "Local volume requires node affinity";
            errors.push(FieldError::required("spec.nodeAffinity", detail));
        }
    }
}

/// The successor of a volume.
pub(super) fn volume_update(old: &Value, next: &Value, errors: &mut Errors) {
    volume(next, errors);
    let same = SOURCES.iter().all(|source| {
        let at = format!("/spec/{source}");
        // The secret that expands a volume may be added and changed later.
        let plain = |value: &Value| {
            value.pointer(&at).cloned().map(|mut found| {
                meta::remove(&mut found, "controllerExpandSecretRef");
                found
            })
        };
        plain(old) == plain(next)
    });
    if !same {
        let field = "spec.persistentvolumesource";
        errors.push(FieldError::forbidden(field, "spec.persistentvolumesource is immutable after creation"));
    }
    immutable(old, next, "/spec/volumeMode", "spec.volumeMode", errors);
    let affinity = "/spec/nodeAffinity";
    if old.pointer(affinity).is_some() && old.pointer(affinity) != next.pointer(affinity) {
        let found = next.pointer(affinity).unwrap_or(&Value::Null);
        let detail = "field is immutable, except for updating from beta label to GA";
        errors.push(FieldError::invalid("spec.nodeAffinity", found, detail));
    }
}

/// A new attachment.
pub(super) fn attachment(value: &Value, errors: &mut Errors) {
    required(value, "/spec/attacher", "spec.attacher", errors);
    required(value, "/spec/nodeName", "spec.nodeName", errors);
    let named = !text(value, "/spec/source/persistentVolumeName").is_empty();
    let inline = value.pointer("/spec/source/inlineVolumeSpec").is_some();
    if named == inline {
        let detail = if named {
            "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
        } else {
            "must specify one of inlineVolumeSpec and persistentVolumeName"
        };
        errors.push(FieldError::required("spec.source", detail));
    }
}
