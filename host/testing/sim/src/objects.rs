//! Builders of the objects that scenarios use.

use serde_json::{Value, json};

/// The CSI driver name of every scenario.
pub const DRIVER: &str = "sim.cofferdam.dev";

/// API path of the claim `a`.
pub(crate) const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";

/// A StorageClass of the scenarios' driver.
pub fn class(name: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": DRIVER, "parameters": {"tier": "fast"},
    })
}

/// A PersistentVolumeClaim of 1 GiB in the namespace `default`.
pub fn claim(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

/// A change of a claim: the scheduler has selected this node for it.
pub(crate) fn selected_node(node: &str) -> Value {
    json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}})
}

/// A static PersistentVolume of the scenarios' driver.
pub fn volume(name: &str, class: &str, size: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
            "csi": {"driver": DRIVER, "volumeHandle": format!("static-{name}")},
        },
    })
}

/// A pod on `node-1` that uses a claim.
pub fn pod(name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": "node-1", "containers": [{"name": "main", "image": "busybox"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

/// A CSINode with the scenarios' driver and its node ID, without topology keys.
pub fn csi_node(name: &str, id: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": id, "topologyKeys": null}]},
    })
}

/// A Node with labels.
pub fn node(name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
}

/// A Ready Node with controller-managed attach.
pub fn ready_node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "status": {"conditions": [ready_condition(true)]},
    })
}

/// The `Ready` condition of a Node: `True`, or `Unknown` as after missed heartbeats.
pub fn ready_condition(ready: bool) -> Value {
    json!({"type": "Ready", "status": if ready { "True" } else { "Unknown" }})
}

/// The unique volume name that `volumesAttached` and `volumesInUse` contain.
pub fn unique_volume_name(handle: &str) -> String {
    format!("kubernetes.io/csi/{DRIVER}^{handle}")
}

/// The CSIDriver object of the scenarios' driver.
pub fn csi_driver(attach_required: bool) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
        "spec": {"attachRequired": attach_required},
    })
}

/// A VolumeAttachment of the scenarios' driver.
pub fn volume_attachment(name: &str, volume: &str, node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
        "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}},
    })
}

/// A VolumeAttributesClass of the scenarios' driver.
pub fn attributes_class(name: &str, speed: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": name},
        "driverName": DRIVER, "parameters": {"speed": speed},
    })
}

/// A Secret of the namespace `default` with the key `password`.
pub fn secret(name: &str, password: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"},
        "stringData": {"password": password},
    })
}

/// The ConfigMap that a process creates in its namespace when it detects that the cluster was restored from a
/// backup. While it exists, no process of this namespace deletes volumes.
pub fn restore_marker() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "cofferdam-restored", "namespace": "default"}, "data": {"detected": "x"},
    })
}

/// Applies a JSON merge patch to an object.
pub fn with(mut object: Value, change: &Value) -> Value {
    fn merge(object: &mut Value, change: &Value) {
        match (object.as_object_mut(), change) {
            (Some(object), Value::Object(change)) => {
                for (key, value) in change {
                    if value.is_null() {
                        object.remove(key);
                    } else {
                        merge(object.entry(key.clone()).or_insert(Value::Null), value);
                    }
                }
            }
            (_, change) => *object = change.clone(),
        }
    }
    merge(&mut object, change);
    object
}

/// Returns true for kinds that administrators create before the cluster is used.
pub(crate) fn is_cluster_setup(object: &Value) -> bool {
    let kinds = ["StorageClass", "VolumeAttributesClass", "CSIDriver", "CSINode", "Node"];
    object.get("kind").and_then(Value::as_str).is_some_and(|kind| kinds.contains(&kind))
}

/// The API path of an object's collection.
pub fn collection_path(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let version = text("/apiVersion");
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let plural = match text("/kind") {
        "StorageClass" => "storageclasses".to_owned(),
        "VolumeAttributesClass" => "volumeattributesclasses".to_owned(),
        "VolumeSnapshotClass" => "volumesnapshotclasses".to_owned(),
        kind => format!("{}s", kind.to_lowercase()),
    };
    match text("/metadata/namespace") {
        "" => format!("{root}/{plural}"),
        namespace => format!("{root}/namespaces/{namespace}/{plural}"),
    }
}
