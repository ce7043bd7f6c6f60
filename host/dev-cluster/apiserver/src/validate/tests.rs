use serde_json::{Value, json};

use super::{create, update};
use crate::descriptors::{ResourceKind, Subresource};

fn merge_patch(base: Value, patch: &Value) -> Value {
    crate::patch::parse(crate::request::PatchType::Merge, patch.to_string().as_bytes())
        .unwrap()
        .apply(ResourceKind::ConfigMap, base)
        .unwrap()
}

fn valid_object(kind: ResourceKind) -> Value {
    let body = match kind {
        ResourceKind::PersistentVolumeClaim => json!({
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                "volumeMode": "Filesystem"},
            "status": {"phase": "Pending"},
        }),
        ResourceKind::PersistentVolume => json!({
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "volumeMode": "Filesystem",
                "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": "d", "volumeHandle": "h"}},
        }),
        ResourceKind::StorageClass => json!({"provisioner": "d.example.com", "parameters": {"a": "b"},
            "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"}),
        ResourceKind::VolumeAttributesClass => json!({"driverName": "d", "parameters": {"a": "b"}}),
        ResourceKind::VolumeAttachment => {
            json!({"spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "p"}}})
        }
        ResourceKind::CsiNode => {
            json!({"spec": {"drivers": [{"name": "d", "nodeID": "1", "topologyKeys": ["k"]}]}})
        }
        ResourceKind::CsiDriver => json!({"spec": {"attachRequired": true, "fsGroupPolicy": "File"}}),
        ResourceKind::Lease => json!({"spec": {"leaseDurationSeconds": 15}}),
        ResourceKind::Namespace
        | ResourceKind::Pod
        | ResourceKind::Node
        | ResourceKind::Event
        | ResourceKind::Secret
        | ResourceKind::ConfigMap
        | ResourceKind::ServiceAccount
        | ResourceKind::CsiStorageCapacity
        | ResourceKind::VolumeSnapshot
        | ResourceKind::VolumeSnapshotContent
        | ResourceKind::VolumeSnapshotClass => panic!("no example of {kind:?}"),
    };
    merge_patch(body, &json!({"metadata": {"name": "x"}}))
}

fn create_errors(kind: ResourceKind, patch: &Value) -> Vec<String> {
    let errors = create(kind.resource(), &merge_patch(valid_object(kind), patch));
    errors.iter().map(ToString::to_string).collect()
}

fn update_errors(kind: ResourceKind, before: &Value, patch: &Value) -> Vec<String> {
    let old = merge_patch(valid_object(kind), before);
    let next = merge_patch(old.clone(), patch);
    update(kind.resource(), Subresource::Main, &old, &next).iter().map(ToString::to_string).collect()
}

#[test]
fn well_formed_objects_pass() {
    for kind in [
        ResourceKind::PersistentVolumeClaim,
        ResourceKind::PersistentVolume,
        ResourceKind::StorageClass,
        ResourceKind::VolumeAttributesClass,
        ResourceKind::VolumeAttachment,
        ResourceKind::CsiNode,
        ResourceKind::CsiDriver,
        ResourceKind::Lease,
    ] {
        assert_eq!(create_errors(kind, &json!({})), Vec::<String>::new(), "{kind:?}");
    }
}

#[test]
fn validation_errors_match_kubernetes() {
    use ResourceKind::{
        CsiDriver, CsiNode, Lease, PersistentVolume as Pv, PersistentVolumeClaim as Pvc, StorageClass,
        VolumeAttachment, VolumeAttributesClass,
    };
    for (kind, patch, expected) in [
        (
            Pvc,
            json!({"metadata": {"name": "Upper"}}),
            "metadata.name: Invalid value: \"Upper\": a lowercase RFC 1123 subdomain must consist of",
        ),
        (
            Pvc,
            json!({"metadata": {"name": null}}),
            "metadata.name: Required value: name or generateName is required",
        ),
        (
            Pvc,
            json!({"metadata": {"labels": {"a b": "c"}}}),
            "metadata.labels: Invalid value: \"a b\": name part must",
        ),
        (
            Pvc,
            json!({"metadata": {"labels": {"a": "-"}}}),
            "metadata.labels: Invalid value: \"-\": a valid label must",
        ),
        (
            Pvc,
            json!({"spec": {"accessModes": []}}),
            "spec.accessModes: Required value: at least 1 access mode is required",
        ),
        (
            Pvc,
            json!({"spec": {"accessModes": ["Some"]}}),
            "spec.accessModes: Unsupported value: \"Some\": supported values: \"ReadOnlyMany\", \
             \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"",
        ),
        (
            Pvc,
            json!({"spec": {"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}}),
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
        ),
        (Pvc, json!({"spec": {"resources": null}}), "spec.resources[storage]: Required value"),
        (
            Pvc,
            json!({"spec": {"resources": {"requests": {"storage": "0"}}}}),
            "spec.resources[storage]: Invalid value: \"0\": must be greater than zero",
        ),
        (
            Pvc,
            json!({"spec": {"volumeMode": "Tape"}}),
            "spec.volumeMode: Unsupported value: \"Tape\": supported values: \"Block\", \"Filesystem\"",
        ),
        (
            Pv,
            json!({"spec": {"capacity": {"storage": "-1"}}}),
            "spec.capacity[storage]: Invalid value: \"-1\": must be greater than zero",
        ),
        (
            Pv,
            json!({"spec": {"nodeAffinity": {"required": {}}}}),
            "spec.nodeAffinity.required.nodeSelectorTerms: Required value",
        ),
        (Pv, json!({"spec": {"csi": null}}), "spec: Required value: must specify a volume type"),
        (
            Pv,
            json!({"spec": {"hostPath": {"path": "/x"}}}),
            "spec.csi: Forbidden: may not specify more than 1 volume type",
        ),
        (Pv, json!({"spec": {"csi": {"volumeHandle": ""}}}), "spec.csi.volumeHandle: Required value"),
        (
            Pv,
            json!({"spec": {"csi": null, "local": {"path": "/x"}}}),
            "spec.nodeAffinity: Required value: Local volume requires node affinity",
        ),
        (
            Pv,
            json!({"spec": {"csi": null, "hostPath": {"path": "/"},
                "persistentVolumeReclaimPolicy": "Recycle"}}),
            "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'",
        ),
        (StorageClass, json!({"provisioner": ""}), "provisioner: Required value"),
        (
            CsiDriver,
            json!({"spec": {"serviceAccountTokenInSecrets": false}}),
            "spec.serviceAccountTokenInSecrets: Invalid value: false: serviceAccountTokenInSecrets is set \
             but no tokenRequests are specified",
        ),
        (StorageClass, json!({"reclaimPolicy": "Recycle"}), "reclaimPolicy: Unsupported value: \"Recycle\""),
        (VolumeAttributesClass, json!({"parameters": null}), "parameters: Required value"),
        (VolumeAttachment, json!({"spec": {"attacher": null}}), "spec.attacher: Required value"),
        (
            VolumeAttachment,
            json!({"spec": {"source": null}}),
            "spec.source: Required value: must specify exactly one of",
        ),
        (
            VolumeAttachment,
            json!({"spec": {"source": {"inlineVolumeSpec": {}}}}),
            "spec.source: Forbidden: must specify exactly one of",
        ),
        (
            VolumeAttachment,
            json!({"spec": {"source": {"persistentVolumeName": ""}}}),
            "spec.source.persistentVolumeName: Required value: must specify non empty",
        ),
        (
            CsiNode,
            json!({"spec": {"drivers": [{"name": "d", "nodeID": "1"}, {"name": "d", "nodeID": "2"}]}}),
            "spec.drivers[1].name: Duplicate value: \"d\"",
        ),
        (
            CsiDriver,
            json!({"spec": {"fsGroupPolicy": "All"}}),
            "spec.fsGroupPolicy: Unsupported value: \"All\"",
        ),
        (
            Lease,
            json!({"spec": {"leaseDurationSeconds": 0}}),
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        ),
    ] {
        let errors = create_errors(kind, &patch);
        let [error] = errors.as_slice() else { panic!("one error expected for {patch}: {errors:?}") };
        assert!(error.starts_with(expected), "{patch}: {error}");
    }
}

fn affinity(value: &str) -> Value {
    let term = json!({"matchExpressions": [{"key": "k", "operator": "In", "values": [value]}]});
    json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}})
}

#[test]
fn immutable_fields_are_rejected_on_update() {
    use ResourceKind::{
        CsiDriver, CsiNode, PersistentVolume as Pv, PersistentVolumeClaim as Pvc, StorageClass,
        VolumeAttachment, VolumeAttributesClass,
    };
    let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        "spec": {"volumeName": "pv", "volumeAttributesClassName": "gold", "storageClassName": "c"}});
    for (kind, before, patch, expected) in [
        (Pvc, json!({}), json!({"spec": {"volumeName": "pv"}}), ""),
        (Pvc, json!({}), json!({"spec": {"storageClassName": "c"}}), ""),
        (Pvc, bound.clone(), json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}), ""),
        (Pvc, bound.clone(), json!({"spec": {"volumeAttributesClassName": "silver"}}), ""),
        (Pvc, bound.clone(), json!({"spec": {"volumeName": "other"}}), "spec: Forbidden: spec is immutable"),
        (
            Pvc,
            bound.clone(),
            json!({"spec": {"storageClassName": "other"}}),
            "spec: Forbidden: spec is immutable",
        ),
        (
            Pvc,
            bound.clone(),
            json!({"spec": {"accessModes": ["ReadOnlyMany"]}}),
            "spec: Forbidden: spec is immutable",
        ),
        (
            Pvc,
            bound.clone(),
            json!({"spec": {"resources": {"requests": {"storage": "1Mi"}}}}),
            "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity",
        ),
        (Pv, json!({}), json!({"spec": {"capacity": {"storage": "2Gi"}, "mountOptions": ["ro"]}}), ""),
        (Pv, json!({}), affinity("a"), ""),
        (Pv, affinity("a"), affinity("b"), "nodeAffinity: Invalid value: {"),
        (
            Pv,
            json!({}),
            json!({"spec": {"csi": {"volumeHandle": "other"}}}),
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation",
        ),
        (
            Pv,
            json!({}),
            json!({"spec": {"volumeMode": "Block"}}),
            "volumeMode: Invalid value: \"Block\": field is immutable",
        ),
        (StorageClass, json!({}), json!({"allowVolumeExpansion": true}), ""),
        (
            StorageClass,
            json!({}),
            json!({"parameters": {"a": "c"}}),
            "parameters: Invalid value: {\"a\":\"c\"}: field is immutable",
        ),
        (
            StorageClass,
            json!({}),
            json!({"provisioner": "e"}),
            "provisioner: Invalid value: \"e\": field is immutable",
        ),
        (
            StorageClass,
            json!({}),
            json!({"volumeBindingMode": "WaitForFirstConsumer"}),
            "volumeBindingMode: Invalid value: \"WaitForFirstConsumer\": field is immutable",
        ),
        (
            VolumeAttributesClass,
            json!({}),
            json!({"driverName": "e"}),
            "driverName: Forbidden: updates to driverName",
        ),
        (VolumeAttachment, json!({}), json!({"spec": {"nodeName": "m"}}), "spec: Invalid value:"),
        (
            CsiNode,
            json!({}),
            json!({"spec": {"drivers": [{"name": "d", "nodeID": "2", "topologyKeys": ["k"]}]}}),
            "spec.drivers: Invalid value: {",
        ),
        (CsiDriver, json!({}), json!({"spec": {"podInfoOnMount": true}}), ""),
        (
            CsiDriver,
            json!({}),
            json!({"spec": {"attachRequired": false}}),
            "spec.attachedRequired: Invalid value: false",
        ),
    ] {
        let errors = update_errors(kind, &before, &patch);
        match errors.as_slice() {
            [] => assert_eq!(expected, "", "{patch} was let through"),
            [error] => assert!(!expected.is_empty() && error.starts_with(expected), "{patch}: {error}"),
            more => panic!("{patch}: {more:?}"),
        }
    }
}

#[test]
fn volume_attachment_status_size_is_limited() {
    let refused = |status: Value| {
        let old = valid_object(ResourceKind::VolumeAttachment);
        let next = merge_patch(old.clone(), &json!({"status": status}));
        let errors = update(ResourceKind::VolumeAttachment.resource(), Subresource::Status, &old, &next);
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let text = |length: usize| "x".repeat(length);
    for fits in [
        json!({"attachmentMetadata": {"k": text(256 * 1024 - 1)}}),
        json!({"attachError": {"message": text(1024), "errorCode": 0},
            "detachError": {"message": text(1024)}}),
    ] {
        assert_eq!(refused(fits), [""; 0]);
    }
    let limit = "Too long: may not be more than 262144 bytes";
    for (status, expected) in [
        (
            json!({"attachmentMetadata": {"k": text(256 * 1024)}}),
            format!("status.attachmentMetadata: {limit}"),
        ),
        (json!({"attachError": {"message": text(1025)}}), format!("status.attachError.message: {limit}")),
        (json!({"detachError": {"message": text(1025)}}), format!("status.detachError.message: {limit}")),
        (
            json!({"attachError": {"errorCode": -1}}),
            "status.attachError.errorCode: Invalid value: -1: must be between 0 and 2147483647, inclusive"
                .to_owned(),
        ),
    ] {
        assert_eq!(refused(status), [expected]);
    }
}
