//! The object of a new VolumeSnapshotContent.

use cofferdam_domain::{
    NodeName, Volume, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContentName, names,
    volume::SecretRef,
};
use serde_json::{Value, json};

/// The VolumeSnapshotContent of a VolumeSnapshot, from which the snapshot is created. The finalizer is part
/// of it: the content must not be deleted without its snapshot.
pub(super) fn new_content(
    name: &VolumeSnapshotContentName,
    snapshot: &VolumeSnapshot,
    class: &VolumeSnapshotClass,
    volume: &Volume,
    secret: Option<&SecretRef>,
    managing_node: Option<&NodeName>,
    has_mode: bool,
) -> Value {
    let mut content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": name, "finalizers": [names::SNAPSHOT_CONTENT_PROTECTION]},
        "spec": {
            "deletionPolicy": class.deletion_policy.as_str(),
            "driver": class.driver,
            "source": {"volumeHandle": volume.csi.as_ref().map(|csi| &csi.handle)},
            "volumeSnapshotClassName": class.name,
            "volumeSnapshotRef": {
                "apiVersion": "snapshot.storage.k8s.io/v1",
                "kind": "VolumeSnapshot",
                "namespace": &*snapshot.key.namespace,
                "name": &*snapshot.key.name,
                "uid": snapshot.meta.uid,
                "resourceVersion": snapshot.meta.resource_version.to_string(),
            },
        },
    });
    if has_mode && let Some(spec) = content.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("sourceVolumeMode".to_owned(), json!(volume.mode.as_str()));
    }
    if let Some(node) = managing_node
        && let Some(metadata) = content.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.insert("labels".to_owned(), json!({names::SNAPSHOT_MANAGED_BY: node}));
    }
    if let Some(secret) = secret
        && let Some(metadata) = content.get_mut("metadata").and_then(Value::as_object_mut)
    {
        let annotations = json!({
            names::SNAPSHOT_SECRET_NAME: &*secret.name, names::SNAPSHOT_SECRET_NAMESPACE: &*secret.namespace,
        });
        metadata.insert("annotations".to_owned(), annotations);
    }
    content
}
