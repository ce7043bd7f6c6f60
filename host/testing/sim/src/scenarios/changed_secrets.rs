//! Scenarios of Secrets that cannot be used at first, or change between two calls.

use serde_json::{Value, json};

use super::{
    attach_detach::POD_FORCE_DELETE,
    provisioning::{BOUND, VOLUME},
    secrets::{SECRET, class_with_secrets, with_secret},
};
use crate::{
    ApiFault, FaultKind,
    UserAction::{self, Create, Patch, Settle, Until},
    WaitFor::Event,
    objects::{CLAIM, attributes_class, claim, csi_node, pod, ready_node, secret},
    scenario::Scenario,
};

const FAILED: &str = "a Warning ProvisioningFailed";
const FAILED_THEN_SUCCEEDED: &[&str] = &["a Normal ProvisioningSucceeded", FAILED];

fn request_size(size: &str) -> UserAction {
    Patch(CLAIM, json!({"spec": {"resources": {"requests": {"storage": size}}}}))
}

fn request_attributes_class(name: &str) -> UserAction {
    Patch(CLAIM, json!({"spec": {"volumeAttributesClassName": name}}))
}

/// Sets a key of the Secret `s`.
fn set_secret(key: &str, value: &str) -> UserAction {
    Patch(SECRET, json!({"stringData": {key: value}}))
}

/// Creates the claim `a` of a class whose Secret for this purpose is `s`.
fn claim_with_secret(purpose: &str) -> [UserAction; 3] {
    let class: Value = class_with_secrets(&[(purpose, "s")]);
    [Create(class), Create(claim("a", "gold")), Settle]
}

/// The scenarios of this module.
pub(super) fn scenarios() -> Vec<Scenario> {
    let bound = || Scenario { claims: BOUND, volumes: VOLUME, array_owners: &["a"], ..Scenario::default() };
    let forbidden =
        ApiFault { method: "GET", path_prefix: SECRET, body_contains: "", kind: FaultKind::Forbidden };
    vec![
        Scenario {
            name: "Secret of a modification created late: VolumeModifyFailed, then the volume is modified",
            actions: claim_with_secret("controller-modify")
                .into_iter()
                .chain([
                    Create(attributes_class("fast", "9")),
                    request_attributes_class("fast"),
                    Until(Event("a Warning VolumeModifyFailed")),
                    Create(secret("s", "one")),
                ])
                .collect(),
            resizes: &["a 1Gi/1Gi class=fast/fast"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Normal VolumeModify",
                "a Normal VolumeModifySuccessful",
                "a Warning VolumeModifyFailed",
            ],
            calls: &["create a", "modify a speed=9 with password=one"],
            ..bound()
        },
        Scenario {
            name: "Secret without a key that the driver needs: \
                   the driver's error is reported, and the claim is provisioned after the key is added",
            actions: with_secret([
                Create(claim("a", "gold")),
                Until(Event(FAILED)),
                set_secret("token", "two"),
            ]),
            required_secret_key: Some("token"),
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a with password=one", "create a with password=one with token=two"],
            ..bound()
        },
        Scenario {
            name: "Secret of a listed namespace that the account may not read: \
                   ProvisioningFailed, and the claim is provisioned once it may",
            actions: with_secret([Create(claim("a", "gold"))]),
            api_faults: vec![forbidden; 3],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a with password=one"],
            ..bound()
        },
        Scenario {
            name: "Secret changed between two expansions, modifications and attachments: \
                   each call has the value at its time",
            actions: [
                Create(csi_node("node-1", "id-1")),
                Create(ready_node("node-1")),
                Create(attributes_class("fast", "9")),
                Create(attributes_class("slow", "1")),
                Create(secret("s", "one")),
            ]
            .into_iter()
            .chain(claim_with_secret(""))
            .chain([
                request_size("2Gi"),
                Settle,
                request_attributes_class("fast"),
                Settle,
                Create(pod("p", "a")),
                Settle,
                UserAction::Delete(POD_FORCE_DELETE),
                Settle,
                set_secret("password", "two"),
                request_size("3Gi"),
                Settle,
                request_attributes_class("slow"),
                Settle,
                Create(pod("p", "a")),
                Settle,
                set_secret("password", "three"),
                UserAction::Delete(POD_FORCE_DELETE),
            ])
            .collect(),
            resizes: &["a 3Gi/3Gi allocated=3Gi no-node class=slow/slow"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Normal Resizing",
                "a Normal VolumeModify",
                "a Normal VolumeModifySuccessful",
                "a Normal VolumeResizeSuccessful",
                "p Normal SuccessfulAttachVolume",
            ],
            calls: &[
                "create a with password=one",
                "expand a 2Gi with password=one",
                "modify a speed=9 with password=one",
                "publish a id-1 with password=one",
                "unpublish a id-1 with password=one",
                "expand a 3Gi with password=two",
                "modify a speed=1 with password=two",
                "publish a id-1 with password=two",
                "unpublish a id-1 with password=three",
            ],
            ..bound()
        },
    ]
}
