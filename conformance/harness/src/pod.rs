//! Kubernetes objects that several suites create: a pod with one claim, and a CSIDriver.

use serde_json::{Value, json};

use crate::image;

/// Mount path of the claim.
pub(crate) const MOUNT_PATH: &str = "/volume";

/// A pod with a claim at [`MOUNT_PATH`] that runs a shell script once.
pub(crate) fn with_claim(name: &str, claim: &str, script: &str) -> Value {
    let mount = json!([{ "name": "volume", "mountPath": MOUNT_PATH }]);
    with_volume(name, claim, script, ("volumeMounts", mount))
}

/// As [`with_claim`], with a raw block volume as the device [`MOUNT_PATH`].
pub(crate) fn with_device(name: &str, claim: &str, script: &str) -> Value {
    let device = json!([{ "name": "volume", "devicePath": MOUNT_PATH }]);
    with_volume(name, claim, script, ("volumeDevices", device))
}

/// A pod whose container has the volume of a claim in this field.
fn with_volume(name: &str, claim: &str, script: &str, (field, value): (&str, Value)) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "containers": [{
                "name": "shell",
                "image": image::SHELL_IMAGE,
                "imagePullPolicy": "Never",
                "command": ["sh", "-ec", script],
                field: value,
            }],
            "volumes": [{ "name": "volume", "persistentVolumeClaim": { "claimName": claim } }],
        },
    })
}

/// The same pod on a node without a network plugin, which a field of its spec names.
pub(crate) fn on_machine(mut pod: Value, (field, value): (&str, Value)) -> Value {
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert(field.to_owned(), value);
        spec.insert("hostNetwork".to_owned(), json!(true));
        spec.insert("automountServiceAccountToken".to_owned(), json!(false));
    }
    pod
}

/// The CSIDriver object of a driver with `attachRequired: true`.
pub(crate) fn csi_driver_object(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "attachRequired": true, "podInfoOnMount": false, "volumeLifecycleModes": ["Persistent"] },
    })
}
