//! A pod with one claim, for those who want many.

use serde_json::{Value, json};

use crate::image;

/// Where the claim is mounted.
pub(crate) const MOUNT_PATH: &str = "/volume";

/// A pod that runs a script with a claim at [`AT`], and does not start again.
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

/// The object that tells Kubernetes that a driver's volumes are attached before they are mounted.
pub(crate) fn csi_driver_object(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "attachRequired": true, "podInfoOnMount": false, "volumeLifecycleModes": ["Persistent"] },
    })
}
