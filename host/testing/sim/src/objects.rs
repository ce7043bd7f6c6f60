//! Objects that scenarios are made of.

use serde_json::{Value, json};

/// Driver of every scenario.
pub const DRIVER: &str = "sim.cofferdam.dev";

/// A class of the scenario's driver.
pub fn class(name: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": DRIVER, "parameters": {"tier": "fast"},
    })
}

/// A claim of 1 GiB in the namespace `default`.
pub fn claim(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

/// A static volume of the scenario's driver.
pub fn volume(name: &str, class: &str, size: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
            "csi": {"driver": DRIVER, "volumeHandle": format!("static-{name}")},
        },
    })
}

/// A pod on a node that uses a claim.
pub fn pod(name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": "node-1", "containers": [{"name": "main", "image": "busybox"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

/// A node, as the scenario's driver calls it.
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

/// A Node that is ready, and whose volumes the controller attaches.
pub fn ready_node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "status": {"conditions": [ready_condition(true)]},
    })
}

/// The condition of a Node that its kubelet is there, or is not heard any more.
pub fn ready_condition(ready: bool) -> Value {
    json!({"type": "Ready", "status": if ready { "True" } else { "Unknown" }})
}

/// The name under which nodes know a volume of the scenario's driver.
pub fn unique_volume_name(handle: &str) -> String {
    format!("kubernetes.io/csi/{DRIVER}^{handle}")
}

/// The CSIDriver of the scenario's driver.
pub fn csi_driver(attach_required: bool) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
        "spec": {"attachRequired": attach_required},
    })
}

/// That a volume of the scenario's driver shall be attached to a node.
pub fn volume_attachment(name: &str, volume: &str, node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
        "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}},
    })
}

/// A VolumeAttributesClass of the scenario's driver.
pub fn attributes_class(name: &str, speed: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": name},
        "driverName": DRIVER, "parameters": {"speed": speed},
    })
}

/// What holds deletions back, as a process leaves it in the namespace of its journal after a restore.
pub fn restore_marker() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "cofferdam-restored", "namespace": "default"}, "data": {"detected": "x"},
    })
}

/// An object with members changed as by a merge patch.
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

/// Whether an object is of a kind that administrators make, and that others only name.
pub(crate) fn is_cluster_setup(object: &Value) -> bool {
    let kinds = ["StorageClass", "VolumeAttributesClass", "CSIDriver", "CSINode", "Node"];
    object.get("kind").and_then(Value::as_str).is_some_and(|kind| kinds.contains(&kind))
}

/// Where an object of a kind lives in the API: the collection's path.
pub fn collection_path(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let version = text("/apiVersion");
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let plural = match text("/kind") {
        "StorageClass" => "storageclasses".to_owned(),
        "VolumeAttributesClass" => "volumeattributesclasses".to_owned(),
        kind => format!("{}s", kind.to_lowercase()),
    };
    match text("/metadata/namespace") {
        "" => format!("{root}/{plural}"),
        namespace => format!("{root}/namespaces/{namespace}/{plural}"),
    }
}
