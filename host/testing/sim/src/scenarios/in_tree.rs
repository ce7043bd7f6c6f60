//! Scenarios of classes and volumes of in-tree plugins: they are reported, not translated.

use serde_json::{Value, json};

use super::provisioning::REJECTED_CLAIM;
use crate::{
    UserAction::{Create, Delete, Patch, Settle},
    objects::{CLAIM, DRIVER, claim, class, volume, with},
    scenario::Scenario,
};

/// The PersistentVolume `v` of an in-tree plugin that is migrated to the scenarios' driver.
fn migrated_volume() -> Value {
    with(
        volume("v", "none", "1Gi"),
        &json!({
            "metadata": {"annotations": {"pv.kubernetes.io/migrated-to": DRIVER}},
            "spec": {
                "csi": null, "awsElasticBlockStore": {"volumeID": "vol-1"},
                "persistentVolumeReclaimPolicy": "Delete",
            },
        }),
    )
}

/// The scenarios of this module.
pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "class of a migrated in-tree plugin: its CSI driver is asked for a volume",
            actions: vec![
                Create(with(class("gp2"), &json!({"provisioner": "kubernetes.io/aws-ebs"}))),
                Create(claim("a", "gp2")),
            ],
            claims: &["a Pending"],
            events: &["a Normal ExternalProvisioning"],
            ..Scenario::default()
        },
        Scenario {
            name: "class of an in-tree plugin that the driver of this provisioner has replaced: \
                   ProvisioningFailed, and the driver is not called",
            actions: vec![
                Create(with(class("gp2"), &json!({"provisioner": "kubernetes.io/aws-ebs"}))),
                Create(claim("a", "gp2")),
            ],
            driver_name: Some("ebs.csi.aws.com"),
            claims: &["a Pending"],
            events: &["a Warning ProvisioningFailed"],
            unsettled: REJECTED_CLAIM,
            ..Scenario::default()
        },
        Scenario {
            name: "claim of a migrated in-tree volume deleted: VolumeFailedDelete on the PersistentVolume",
            actions: vec![
                Create(migrated_volume()),
                Settle,
                Create(claim("a", "none")),
                Settle,
                Delete(CLAIM),
            ],
            volumes: &["v Released a"],
            events: &["v Warning VolumeFailedDelete"],
            ..Scenario::default()
        },
        Scenario {
            name: "migrated in-tree volume expanded: VolumeResizeFailed on the claim",
            actions: vec![
                Create(with(class("none"), &json!({"allowVolumeExpansion": true}))),
                Create(migrated_volume()),
                Settle,
                Create(claim("a", "none")),
                Settle,
                Patch(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})),
            ],
            claims: &["a Bound v"],
            volumes: &["v Bound a"],
            events: &["a Warning VolumeResizeFailed"],
            ..Scenario::default()
        },
    ]
}
