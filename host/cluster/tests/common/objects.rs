//! Objects as a cluster has them in large numbers: bound, attached, used by pods, with snapshots.

use serde_json::{Value, json};

const DRIVER: &str = "array.example.com";
const CREATED: &str = "2026-01-01T00:00:00Z";

fn uid(kind: &str, number: usize) -> String {
    format!("{number:08x}-8b0c-4b1d-{kind}-{number:012x}")
}

fn volume_name(number: usize) -> String {
    format!("pvc-{}", uid("90c1", number))
}

pub(crate) fn claim(number: usize) -> Value {
    json!({
        "metadata": {
            "name": format!("data-shop-{number}"), "namespace": "shop", "uid": uid("90c1", number),
            "resourceVersion": "123456", "creationTimestamp": CREATED,
            "labels": {"app": "shop", "apps.kubernetes.io/pod-index": number.to_string()},
            "annotations": {
                "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
                "volume.beta.kubernetes.io/storage-provisioner": DRIVER,
                "volume.kubernetes.io/storage-provisioner": DRIVER,
            },
            "finalizers": ["kubernetes.io/pvc-protection"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "fast", "volumeMode": "Filesystem", "volumeName": volume_name(number),
        },
        "status": {
            "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
        },
    })
}

pub(crate) fn volume(number: usize) -> Value {
    json!({
        "metadata": {
            "name": volume_name(number), "uid": uid("70f2", number),
            "resourceVersion": "123456", "creationTimestamp": CREATED,
            "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
            "finalizers": [
                "external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection",
                "external-attacher/array-example-com",
            ],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop",
                "name": format!("data-shop-{number}"), "uid": uid("90c1", number), "resourceVersion": "123450",
            },
            "csi": {
                "driver": DRIVER, "fsType": "ext4", "volumeHandle": format!("volume-of-{}", volume_name(number)),
                "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": "1767225600-array"},
            },
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "fast", "volumeMode": "Filesystem",
        },
        "status": {"phase": "Bound", "lastPhaseTransitionTime": CREATED},
    })
}

fn node(number: usize) -> String {
    format!("node-{}", number % 100)
}

pub(crate) fn attachment(number: usize) -> Value {
    json!({
        "metadata": {
            "name": format!("csi-{number:064x}"), "uid": uid("a77a", number),
            "resourceVersion": "123456", "creationTimestamp": CREATED,
            "annotations": {"csi.alpha.kubernetes.io/node-id": node(number)},
            "finalizers": ["external-attacher/array-example-com"],
        },
        "spec": {
            "attacher": DRIVER, "nodeName": node(number),
            "source": {"persistentVolumeName": volume_name(number)},
        },
        "status": {"attached": true},
    })
}

pub(crate) fn pod(number: usize) -> Value {
    json!({
        "metadata": {
            "name": format!("shop-{number}"), "namespace": "shop", "uid": uid("9d0d", number),
            "resourceVersion": "123456", "creationTimestamp": CREATED,
            "labels": {"app": "shop", "apps.kubernetes.io/pod-index": number.to_string()},
        },
        "spec": {
            "nodeName": node(number),
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": format!("data-shop-{number}")}},
                {"name": "token", "projected": {"sources": []}},
            ],
        },
        "status": {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]},
    })
}

pub(crate) fn snapshot(number: usize) -> Value {
    let uid = uid("9a57", number);
    json!({
        "metadata": {
            "name": format!("existing-{number}"), "namespace": "shop", "uid": uid,
            "resourceVersion": "123456", "creationTimestamp": CREATED,
            "finalizers": [
                "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection",
                "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection",
            ],
        },
        "spec": {
            "source": {"persistentVolumeClaimName": format!("data-{}", number / 7)},
            "volumeSnapshotClassName": "fast",
        },
        "status": {
            "boundVolumeSnapshotContentName": format!("snapcontent-{uid}"), "readyToUse": true,
            "restoreSize": "1Gi", "creationTime": CREATED,
        },
    })
}

pub(crate) fn content(number: usize) -> Value {
    let uid_of_snapshot = uid("9a57", number);
    json!({
        "metadata": {
            "name": format!("snapcontent-{uid_of_snapshot}"), "uid": uid("a1b2", number),
            "resourceVersion": "123457", "creationTimestamp": CREATED,
            "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
        },
        "spec": {
            "deletionPolicy": "Delete", "driver": DRIVER, "sourceVolumeMode": "Filesystem",
            "source": {"volumeHandle": format!("volume-of-pvc-{uid_of_snapshot}")},
            "volumeSnapshotClassName": "fast",
            "volumeSnapshotRef": {
                "namespace": "shop", "name": format!("existing-{number}"), "uid": uid_of_snapshot,
            },
        },
        "status": {
            "snapshotHandle": format!("snapshot-of-{uid_of_snapshot}"), "readyToUse": true,
            "creationTime": 1_767_225_600_000_000_000_i64, "restoreSize": 1 << 30,
        },
    })
}
