//! Kubernetes objects that several suites create: a pod with one claim, and a CSIDriver.

use serde_json::{Value, json};

use crate::image;

/// Mount path of the claim.
pub(crate) const MOUNT_PATH: &str = "/volume";

/// A pod with a claim at [`MOUNT_PATH`] that runs a shell script once.
pub(crate) fn with_claim(name: &str, claim: &str, script: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "containers": [{
                "name": "shell",
                "image": image::SHELL_IMAGE,
                "imagePullPolicy": "Never",
                "command": ["sh", "-ec", script],
                "volumeMounts": [{ "name": "volume", "mountPath": MOUNT_PATH }],
            }],
            "volumes": [{ "name": "volume", "persistentVolumeClaim": { "claimName": claim } }],
        },
    })
}

/// The CSIDriver object of a driver with `attachRequired: true`.
pub(crate) fn csi_driver_object(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "attachRequired": true, "podInfoOnMount": false, "volumeLifecycleModes": ["Persistent"] },
    })
}
