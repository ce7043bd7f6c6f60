//! Strategies of kinds, as in kube-apiserver: defaults, initial status, and what each endpoint may change.
//! Also the admission plugins that volumes and their pods need.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::base64;
use crate::descriptors::{ResourceDescriptor, ResourceKind, Subresource};
use crate::inner::Inner;
use crate::meta::{self, text};
use crate::pods;
use crate::quantity;
use crate::status::Status;

/// Annotations that mark a StorageClass as default if one of them is `true`.
const DEFAULT_CLASS_ANNOTATIONS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

/// Legacy annotation of a claim: the name of its StorageClass.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// Sets the API's defaults, and moves the `stringData` of a Secret to `data`.
pub(crate) fn set_defaults(kind: ResourceKind, value: &mut Value) {
    match kind {
        ResourceKind::PersistentVolumeClaim => {
            meta::edit(value, "spec", |spec| meta::set_default(spec, "volumeMode", "Filesystem"));
            meta::edit(value, "status", |status| meta::set_default(status, "phase", "Pending"));
        }
        ResourceKind::PersistentVolume => {
            meta::edit(value, "spec", |spec| {
                meta::set_default(spec, "volumeMode", "Filesystem");
                meta::set_default(spec, "persistentVolumeReclaimPolicy", "Retain");
                if let Some(Value::Object(path)) = spec.get_mut("hostPath") {
                    path.entry("type").or_insert(json!(""));
                }
            });
            meta::edit(value, "status", |status| meta::set_default(status, "phase", "Pending"));
        }
        ResourceKind::StorageClass => {
            if let Value::Object(class) = value {
                meta::set_default(class, "reclaimPolicy", "Delete");
                meta::set_default(class, "volumeBindingMode", "Immediate");
            }
        }
        ResourceKind::CsiDriver => meta::edit(value, "spec", set_csi_driver_defaults),
        ResourceKind::Secret => encode_string_data(value),
        ResourceKind::Pod => meta::edit(value, "spec", pods::set_pod_defaults),
        ResourceKind::Namespace => {
            let name = meta::name(value).to_owned();
            if !name.is_empty() {
                meta::edit_meta(value, |meta| {
                    if let Value::Object(labels) = meta.entry("labels").or_insert_with(|| json!({})) {
                        labels.insert("kubernetes.io/metadata.name".to_owned(), json!(name));
                    }
                });
            }
        }
        ResourceKind::Node
        | ResourceKind::Event
        | ResourceKind::ConfigMap
        | ResourceKind::ServiceAccount
        | ResourceKind::CsiNode
        | ResourceKind::CsiStorageCapacity
        | ResourceKind::VolumeAttachment
        | ResourceKind::VolumeAttributesClass
        | ResourceKind::Lease
        | ResourceKind::VolumeSnapshot
        | ResourceKind::VolumeSnapshotContent
        | ResourceKind::VolumeSnapshotClass => {}
    }
}

/// Drops an unsupported `dataSource` of a claim if there is no `dataSourceRef`. If only one of the two fields
/// is set, copies it to the other, unless `dataSourceRef` has a namespace.
fn normalize_data_source(spec: &mut Map<String, Value>) {
    let known = |source: &Value| {
        matches!(
            (text(source, "/apiGroup"), text(source, "/kind")),
            ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
        )
    };
    if spec.get("dataSource").is_some_and(|source| !known(source)) && spec.get("dataSourceRef").is_none() {
        spec.remove("dataSource");
    }
    let crosses =
        spec.get("dataSourceRef").is_some_and(|reference| !text(reference, "/namespace").is_empty());
    if crosses {
        return;
    }
    if let Some(source) = spec.get("dataSource").cloned() {
        spec.entry("dataSourceRef").or_insert(source);
    } else if let Some(reference) = spec.get("dataSourceRef").cloned() {
        spec.insert("dataSource".to_owned(), reference);
    }
}

fn set_csi_driver_defaults(spec: &mut Map<String, Value>) {
    spec.entry("attachRequired").or_insert(json!(true));
    for flag in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
        spec.entry(flag).or_insert(json!(false));
    }
    meta::set_default(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    spec.entry("volumeLifecycleModes").or_insert(json!(["Persistent"]));
}

/// Moves `stringData`, which is write-only, to `data`.
fn encode_string_data(value: &mut Value) {
    if let Some(Value::Object(plain)) = meta::remove(value, "stringData") {
        meta::edit(value, "data", |data| {
            for (key, text) in plain {
                let text = text.as_str().unwrap_or_default();
                data.insert(key, json!(base64::encode(text.as_bytes())));
            }
        });
    }
    if let Value::Object(map) = value {
        meta::set_default(map, "type", "Opaque");
    }
}

/// Prepares a new object: normalizes its spec and sets its initial status.
pub(crate) fn prepare_create(kind: ResourceKind, value: &mut Value, now: Timestamp) {
    match kind {
        ResourceKind::PersistentVolumeClaim => {
            meta::edit(value, "spec", normalize_data_source);
            meta::set(value, "status", json!({"phase": "Pending"}));
        }
        ResourceKind::PersistentVolume => {
            let status = json!({"phase": "Pending", "lastPhaseTransitionTime": meta::timestamp(now)});
            meta::set(value, "status", status);
        }
        ResourceKind::Namespace => {
            meta::edit(value, "spec", |spec| {
                spec.entry("finalizers").or_insert(json!(["kubernetes"]));
            });
            meta::set(value, "status", json!({"phase": "Active"}));
        }
        ResourceKind::Pod => {
            let status = json!({"phase": "Pending", "qosClass": pods::qos_class(value)});
            meta::set(value, "status", status);
        }
        ResourceKind::VolumeAttachment => meta::set(value, "status", json!({"attached": false})),
        ResourceKind::VolumeSnapshot | ResourceKind::VolumeSnapshotContent => {
            meta::remove(value, "status");
        }
        // Nodes are created with their status.
        ResourceKind::Node
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
        | ResourceKind::VolumeSnapshotClass => {}
    }
}

/// Prepares an update: restores the parts of the object that the endpoint does not change. As kube-apiserver,
/// increases `metadata.generation` of kinds that have one if the spec changes, or any field outside metadata
/// and status of a custom resource. Sets `lastPhaseTransitionTime` of a PersistentVolume.
pub(crate) fn prepare_update(
    resource: &ResourceDescriptor,
    subresource: Subresource,
    old: &Value,
    next: &mut Value,
    now: Timestamp,
) {
    match subresource {
        Subresource::Main => {
            if resource.has_status {
                meta::copy_member(next, old, "status");
            }
            if resource.id == ResourceKind::Namespace {
                meta::copy_member(next, old, "spec");
            }
            // The generation of a CSIDriver starts with its first change.
            let has_generation = resource.has_generation || resource.id == ResourceKind::CsiDriver;
            let is_changed = if resource.is_custom {
                is_changed_outside_metadata(old, next)
            } else {
                next.get("spec") != old.get("spec")
            };
            if has_generation && is_changed {
                meta::edit_meta(next, |meta| {
                    let generation = meta.get("generation").and_then(Value::as_i64).unwrap_or(0);
                    meta.insert("generation".to_owned(), json!(generation + 1));
                });
            }
        }
        Subresource::Status => {
            meta::copy_member(next, old, "spec");
            if resource.id == ResourceKind::VolumeAttachment || resource.is_custom {
                // The status subresource of these kinds does not change metadata.
                meta::copy_member(next, old, "metadata");
            }
            if resource.id == ResourceKind::PersistentVolume {
                set_phase_transition_time(old, next, now);
            }
        }
        Subresource::Finalize => {
            meta::copy_member(next, old, "status");
            meta::copy_member(next, old, "metadata");
        }
    }
}

/// Returns `true` if a field outside `metadata` differs.
fn is_changed_outside_metadata(old: &Value, next: &Value) -> bool {
    fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
        value.as_object().into_iter().flatten().filter(|(name, _)| *name != "metadata")
    }
    !fields(old).eq(fields(next))
}

/// Sets `lastPhaseTransitionTime` on a change of the phase, unless the writer sets it. Without a change, a
/// writer that omits it keeps the stored time.
fn set_phase_transition_time(old: &Value, next: &mut Value, now: Timestamp) {
    const TIME: &str = "lastPhaseTransitionTime";
    let changed = text(old, "/status/phase") != text(next, "/status/phase");
    let previous = old.pointer("/status/lastPhaseTransitionTime").cloned();
    meta::edit(next, "status", |status| {
        let sent = status.get(TIME).cloned();
        if changed && (sent.is_none() || sent == previous) {
            status.insert(TIME.to_owned(), meta::timestamp(now));
        } else if !changed
            && sent.is_none()
            && let Some(previous) = previous
        {
            status.insert(TIME.to_owned(), previous);
        }
    });
}

fn add_finalizer(value: &mut Value, finalizer: &str) {
    if meta::finalizers(value).contains(&finalizer) {
        return;
    }
    meta::edit_meta(value, |meta| {
        if let Value::Array(list) = meta.entry("finalizers").or_insert_with(|| json!([])) {
            list.push(json!(finalizer));
        }
    });
}

impl Inner {
    /// Admission of a new object: `DefaultStorageClass`, `StorageObjectInUseProtection`,
    /// `TaintNodesByCondition`, `DefaultTolerationSeconds` and `Priority`.
    pub(crate) fn admit_create(&self, kind: ResourceKind, value: &mut Value) -> Result<(), Status> {
        match kind {
            ResourceKind::PersistentVolumeClaim => {
                self.set_default_class(value);
                add_finalizer(value, "kubernetes.io/pvc-protection");
            }
            ResourceKind::PersistentVolume => add_finalizer(value, "kubernetes.io/pv-protection"),
            ResourceKind::VolumeAttributesClass => add_finalizer(value, "kubernetes.io/vac-protection"),
            ResourceKind::Node => meta::edit(value, "spec", |spec| {
                let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
                if let Value::Array(taints) = spec.entry("taints").or_insert_with(|| json!([])) {
                    taints.push(taint);
                }
            }),
            ResourceKind::Pod => meta::edit(value, "spec", |spec| {
                spec.entry("priority").or_insert(json!(0));
                spec.entry("preemptionPolicy").or_insert(json!("PreemptLowerPriority"));
                if let Value::Array(tolerations) = spec.entry("tolerations").or_insert_with(|| json!([])) {
                    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
                        if !tolerations.iter().any(|one| text(one, "/key") == key) {
                            tolerations.push(json!({
                                "key": key, "operator": "Exists", "effect": "NoExecute",
                                    "tolerationSeconds": 300,
                            }));
                        }
                    }
                }
            }),
            ResourceKind::Namespace
            | ResourceKind::Event
            | ResourceKind::Secret
            | ResourceKind::ConfigMap
            | ResourceKind::ServiceAccount
            | ResourceKind::StorageClass
            | ResourceKind::CsiDriver
            | ResourceKind::CsiNode
            | ResourceKind::CsiStorageCapacity
            | ResourceKind::VolumeAttachment
            | ResourceKind::Lease
            | ResourceKind::VolumeSnapshot
            | ResourceKind::VolumeSnapshotContent
            | ResourceKind::VolumeSnapshotClass => {}
        }
        Ok(())
    }

    /// Sets the newest default class on a claim without a class; the first by name if several have the same
    /// age.
    fn set_default_class(&self, claim: &mut Value) {
        let annotated = claim
            .pointer("/metadata/annotations")
            .is_some_and(|annotations| annotations.get(CLASS_ANNOTATION).is_some());
        if annotated || claim.pointer("/spec/storageClassName").is_some() {
            return;
        }
        let Ok(classes) = self.store.list(ResourceKind::StorageClass, "", None) else { return };
        let is_default = |class: &Value| {
            let annotations = class.pointer("/metadata/annotations");
            DEFAULT_CLASS_ANNOTATIONS
                .iter()
                .any(|key| annotations.and_then(|all| all.get(key)?.as_str()) == Some("true"))
        };
        let newest = classes.objects.iter().filter(|class| is_default(&class.value)).max_by(|a, b| {
            let created = |class: &Value| text(class, "/metadata/creationTimestamp").to_owned();
            created(&a.value).cmp(&created(&b.value)).then_with(|| b.name().cmp(a.name()))
        });
        if let Some(class) = newest {
            meta::edit(claim, "spec", |spec| {
                spec.insert("storageClassName".to_owned(), json!(class.name()));
            });
        }
    }

    /// Admission of an update: `PersistentVolumeClaimResize`.
    pub(crate) fn admit_update(&self, kind: ResourceKind, old: &Value, next: &Value) -> Result<(), Status> {
        if kind != ResourceKind::PersistentVolumeClaim {
            return Ok(());
        }
        let size = |claim: &Value| quantity::parse(text(claim, "/spec/resources/requests/storage"));
        let (Some(before), Some(after)) = (size(old), size(next)) else { return Ok(()) };
        if after <= before {
            return Ok(());
        }
        let refuse = |why: &str| Err(Status::forbidden(kind.resource(), meta::name(old), why));
        if text(old, "/status/phase") != "Bound" {
            return refuse("Only bound persistent volume claims can be expanded");
        }
        let annotated = next
            .pointer("/metadata/annotations")
            .and_then(|annotations| annotations.get(CLASS_ANNOTATION)?.as_str());
        let class = annotated.unwrap_or_else(|| text(next, "/spec/storageClassName"));
        let expandable = self.store.get(ResourceKind::StorageClass, class).is_some_and(|class| {
            class.value.pointer("/allowVolumeExpansion").and_then(Value::as_bool) == Some(true)
        });
        if !expandable {
            return refuse(
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the \
                 pvc must support resize",
            );
        }
        Ok(())
    }
}
