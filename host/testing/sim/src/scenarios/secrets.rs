//! Scenarios of the Secrets that StorageClasses and PersistentVolumes name.

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use super::{
    attach_detach::POD_FORCE_DELETE,
    provisioning::{BOUND, CLASS, REJECTED_CLAIM, STUCK_EVENT, SUCCEEDED, VOLUME},
};
use crate::{
    DriverFault,
    UserAction::{self, Create, Delete, Patch, Settle, Until},
    WaitFor::Event,
    WorkKind,
    objects::{CLAIM, attributes_class, claim, class, csi_node, pod, ready_node, secret, volume, with},
    scenario::Scenario,
};

/// API path of the Secret `s`.
pub(super) const SECRET: &str = "/api/v1/namespaces/default/secrets/s";
const FAILED: &str = "a Warning ProvisioningFailed";
const FAILED_THEN_SUCCEEDED: &[&str] = &["a Normal ProvisioningSucceeded", FAILED];
const CREATED: &[&str] = &["create a with password=one"];

/// The StorageClass `gold` with a Secret of the namespace `default` for each purpose, such as `provisioner`.
pub(super) fn class_with_secrets(secrets: &[(&str, &str)]) -> Value {
    let pairs = secrets.iter().flat_map(|(purpose, name)| {
        let prefix = match *purpose {
            "" => "csi.storage.k8s.io/secret".to_owned(),
            purpose => format!("csi.storage.k8s.io/{purpose}-secret"),
        };
        [(format!("{prefix}-name"), json!(name)), (format!("{prefix}-namespace"), json!("${pvc.namespace}"))]
    });
    let parameters: serde_json::Map<String, Value> = pairs.collect();
    with(class("gold"), &json!({"allowVolumeExpansion": true, "parameters": parameters}))
}

/// The class `gold`, whose Secret for CreateVolume and DeleteVolume is `s`.
fn gold() -> UserAction {
    Create(class_with_secrets(&[("provisioner", "s")]))
}

/// Creates the class `gold` and its Secret, then performs further actions.
pub(super) fn with_secret(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    [gold(), Create(secret("s", "one"))].into_iter().chain(actions).collect()
}

fn bound() -> Scenario {
    Scenario {
        claims: BOUND,
        volumes: VOLUME,
        array_owners: &["a"],
        events: SUCCEEDED,
        calls: CREATED,
        ..Scenario::default()
    }
}

/// A released static volume of the class `gold`, whose PersistentVolume has these annotations; its claim is
/// deleted.
fn deleted_static_volume(annotations: Value) -> Vec<UserAction> {
    let released = with(
        volume("v", "gold", "1Gi"),
        &json!({
            "metadata": {"annotations": annotations},
            "spec": {"persistentVolumeReclaimPolicy": "Delete"},
        }),
    );
    with_secret([
        Create(secret("other", "two")),
        Create(released),
        Settle,
        Create(claim("a", "gold")),
        Settle,
        Delete(CLAIM),
    ])
}

fn deletion_annotations(name: &str, namespace: &str) -> Value {
    json!({
        "volume.kubernetes.io/provisioner-deletion-secret-name": name,
        "volume.kubernetes.io/provisioner-deletion-secret-namespace": namespace,
    })
}

/// The user changes the value of the Secret `s` during the call, then the response of the call is lost.
fn secret_changed_in_lost_call() -> DriverFault {
    let changed = Patch(SECRET, json!({"stringData": {"password": "two"}}));
    DriverFault::ConcurrentActionThen(changed, Box::new(DriverFault::LostResponse))
}

/// The user deletes the object during the call, then the response of the call is lost.
fn deleted_in_lost_call(path: &'static str) -> DriverFault {
    DriverFault::ConcurrentActionThen(Delete(path), Box::new(DriverFault::LostResponse))
}

/// The scenarios of this module.
pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = calls();
    all.extend(failures());
    all.extend(open_creations());
    all.extend(deletions());
    all
}

fn calls() -> Vec<Scenario> {
    let purposes = [
        ("provisioner", "create"),
        ("controller-publish", "publish"),
        ("controller-expand", "expand"),
        ("controller-modify", "modify"),
        ("node-stage", "stage"),
    ];
    let secrets = purposes.map(|(_, name)| Create(secret(name, name)));
    let use_volume = [
        Create(class_with_secrets(&purposes)),
        Create(attributes_class("fast", "9")),
        Create(csi_node("node-1", "id-1")),
        Create(ready_node("node-1")),
        Create(claim("a", "gold")),
        Settle,
        Patch(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})),
        Settle,
        Patch(CLAIM, json!({"spec": {"volumeAttributesClassName": "fast"}})),
        Settle,
        Create(pod("p", "a")),
        Settle,
        Delete(POD_FORCE_DELETE),
        Settle,
        Delete(CLAIM),
    ];
    vec![
        Scenario {
            name: "class with a Secret for each purpose: each call has the Secret of its purpose only",
            actions: secrets.into_iter().chain(use_volume).collect(),
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Normal Resizing",
                "a Normal VolumeModify",
                "a Normal VolumeModifySuccessful",
                "a Normal VolumeResizeSuccessful",
                "p Normal SuccessfulAttachVolume",
            ],
            calls: &[
                "create gone with password=create",
                "expand gone 2Gi with password=expand",
                "modify gone speed=9 with password=modify",
                "publish gone id-1 with password=publish",
                "unpublish gone id-1 with password=publish",
                "delete gone with password=create",
            ],
            ..Scenario::default()
        },
        Scenario {
            name: "class without a Secret for modifications: ControllerModifyVolume has that of expansions",
            actions: vec![
                Create(secret("s", "one")),
                Create(class_with_secrets(&[("controller-expand", "s")])),
                Create(attributes_class("fast", "9")),
                Create(claim("a", "gold")),
                Settle,
                Patch(CLAIM, json!({"spec": {"volumeAttributesClassName": "fast"}})),
            ],
            resizes: &["a 1Gi/1Gi class=fast/fast"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Normal VolumeModify",
                "a Normal VolumeModifySuccessful",
            ],
            calls: &["create a", "modify a speed=9 with password=one"],
            ..bound()
        },
        Scenario {
            name: "default Secret, named by an annotation of the claim: every call has it",
            actions: vec![
                Create(class_with_secrets(&[("", "${pvc.annotations['example.com/secret']}")])),
                Create(secret("s", "one")),
                Create(with(
                    claim("a", "gold"),
                    &json!({"metadata": {"annotations": {"example.com/secret": "s"}}}),
                )),
                Settle,
                Patch(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})),
                Settle,
                Delete(CLAIM),
            ],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Normal Resizing",
                "a Normal VolumeResizeSuccessful",
            ],
            calls: &[
                "create gone with password=one",
                "expand gone 2Gi with password=one",
                "delete gone with password=one",
            ],
            ..Scenario::default()
        },
    ]
}

fn failures() -> Vec<Scenario> {
    let failed = || Scenario { events: FAILED_THEN_SUCCEEDED, ..bound() };
    vec![
        Scenario {
            name: "Secret created after its claim: the claim is provisioned",
            actions: vec![
                gold(),
                Create(claim("a", "gold")),
                Until(Event(FAILED)),
                Create(secret("s", "one")),
            ],
            ..failed()
        },
        Scenario {
            name: "claim deleted while its Secret is missing: no intent remains, the driver is not called",
            actions: vec![gold(), Create(claim("a", "gold")), Until(Event(FAILED)), Delete(CLAIM)],
            events: &[FAILED],
            ..Scenario::default()
        },
        Scenario {
            name: "Secret with a value that is not UTF-8: the claim is provisioned after it is corrected",
            actions: vec![
                gold(),
                Create(with(secret("s", "one"), &json!({"stringData": null, "data": {"password": "/w=="}}))),
                Create(claim("a", "gold")),
                Until(Event(FAILED)),
                Patch(SECRET, json!({"stringData": {"password": "one"}})),
            ],
            ..failed()
        },
        Scenario {
            name: "Secret of Helm: the claim is provisioned after it is replaced by one for drivers",
            actions: vec![
                gold(),
                Create(with(secret("s", "release"), &json!({"type": "helm.sh/release.v1"}))),
                Create(claim("a", "gold")),
                Until(Event(FAILED)),
                Delete(SECRET),
                Create(secret("s", "one")),
            ],
            ..failed()
        },
        Scenario {
            name: "Secret of a namespace that is not listed: the claim stays Pending, and no request is sent",
            actions: vec![
                Create(with(
                    class_with_secrets(&[("provisioner", "s")]),
                    &json!({"parameters": {
                        "csi.storage.k8s.io/provisioner-secret-namespace": "kube-system",
                    }}),
                )),
                Create(claim("a", "gold")),
            ],
            claims: &["a Pending"],
            events: &[FAILED],
            unsettled: REJECTED_CLAIM,
            ..Scenario::default()
        },
        Scenario {
            name: "Secret template with an unknown token: \
                   the claim is provisioned after the class is replaced",
            actions: vec![
                Create(secret("s", "one")),
                Create(class_with_secrets(&[("provisioner", "${pvc.uid}")])),
                Create(claim("a", "gold")),
                Until(Event(FAILED)),
                Delete(CLASS),
                gold(),
            ],
            ..failed()
        },
        Scenario {
            name: "Secret template with an annotation that the claim lacks: \
                   the claim is provisioned after it is annotated",
            actions: vec![
                Create(secret("s", "one")),
                Create(class_with_secrets(&[("provisioner", "${pvc.annotations['secret']}")])),
                Create(claim("a", "gold")),
                Until(Event(FAILED)),
                Patch(CLAIM, json!({"metadata": {"annotations": {"secret": "s"}}})),
            ],
            ..failed()
        },
        Scenario {
            name: "class with the current and the deprecated key of a Secret: the claim stays Pending",
            actions: vec![
                Create(secret("s", "one")),
                Create(with(
                    class_with_secrets(&[("provisioner", "s")]),
                    &json!({"parameters": {
                        "csiProvisionerSecretName": "s", "csiProvisionerSecretNamespace": "default",
                    }}),
                )),
                Create(claim("a", "gold")),
            ],
            claims: &["a Pending"],
            events: &[FAILED],
            unsettled: REJECTED_CLAIM,
            ..Scenario::default()
        },
    ]
}

fn open_creations() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "Secret changed while the CreateVolume result is unknown: \
                   the repeated call has the new value",
            actions: with_secret([Create(claim("a", "gold"))]),
            create_faults: vec![secret_changed_in_lost_call()],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a with password=one", "create a with password=two"],
            ..bound()
        },
        Scenario {
            name: "Secret deleted while the CreateVolume result is unknown: \
                   the call is repeated after the Secret is created again",
            actions: with_secret([
                Create(claim("a", "gold")),
                Until(Event("a Warning VolumeCreationStuck")),
                Create(secret("s", "two")),
            ]),
            create_faults: vec![deleted_in_lost_call(SECRET)],
            events: &["a Normal ProvisioningSucceeded", FAILED, "a Warning VolumeCreationStuck"],
            calls: &["create a with password=one", "create a with password=two"],
            ..bound()
        },
        Scenario {
            name: "class of a Secret deleted while the CreateVolume result is unknown: \
                   the call is repeated with the Secret of the intent",
            actions: with_secret([Create(claim("a", "gold"))]),
            create_faults: vec![deleted_in_lost_call(CLASS)],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a with password=one", "create a with password=one"],
            ..bound()
        },
        Scenario {
            name: "claim deleted while the CreateVolume result is unknown: \
                   the call is repeated and the volume deleted, both with the Secret",
            actions: with_secret([Create(claim("a", "gold"))]),
            create_faults: vec![deleted_in_lost_call(CLAIM)],
            calls: &[
                "create gone with password=one",
                "create gone with password=one",
                "delete gone with password=one",
            ],
            ..Scenario::default()
        },
        Scenario {
            name: "claim and Secret deleted during CreateVolume: the volume is deleted without the Secret",
            // A process that crashes in the call needs the Secret to repeat it: until then, its intent is
            // stuck.
            actions: with_secret([
                Create(claim("a", "gold")),
                Until(Event(STUCK_EVENT)),
                Create(secret("s", "two")),
            ]),
            create_faults: vec![DriverFault::ConcurrentActionThen(
                Delete(SECRET),
                Box::new(DriverFault::ConcurrentAction(Delete(CLAIM))),
            )],
            delayed_events: &[STUCK_EVENT],
            calls: &["create gone with password=one", "delete gone"],
            ..Scenario::default()
        },
    ]
}

fn deletions() -> Vec<Scenario> {
    let deleted = || Scenario::default();
    vec![
        Scenario {
            name: "Secret deleted before the claim: the volume is deleted without it",
            actions: with_secret([Create(claim("a", "gold")), Settle, Delete(SECRET), Delete(CLAIM)]),
            events: SUCCEEDED,
            delayed_events: &[STUCK_EVENT],
            calls: &["create gone with password=one", "delete gone"],
            ..deleted()
        },
        Scenario {
            name: "Secret that cannot be used when the volume is deleted: \
                   VolumeFailedDelete, and the volume is deleted after the Secret is corrected",
            actions: with_secret([
                Create(claim("a", "gold")),
                Settle,
                Patch(SECRET, json!({"data": {"password": "/w=="}})),
                Delete(CLAIM),
                Until(Event("volume Warning VolumeFailedDelete")),
                Patch(SECRET, json!({"data": {"password": "dHdv"}})),
            ]),
            events: &["a Normal ProvisioningSucceeded", "volume Warning VolumeFailedDelete"],
            calls: &["create gone with password=one", "delete gone with password=two"],
            ..deleted()
        },
        Scenario {
            name: "DeleteVolume fails once: it is retried with the Secret",
            actions: with_secret([Create(claim("a", "gold")), Settle, Delete(CLAIM)]),
            delete_faults: vec![DriverFault::Refuse(ErrorKind::Internal)],
            events: &["a Normal ProvisioningSucceeded", "volume Warning VolumeFailedDelete"],
            calls: &[
                "create gone with password=one",
                "delete gone with password=one",
                "delete gone with password=one",
            ],
            ..deleted()
        },
        Scenario {
            name: "deletion annotations: the volume is deleted with their Secret",
            actions: deleted_static_volume(deletion_annotations("other", "default")),
            calls: &["delete static-v with password=two"],
            ..deleted()
        },
        Scenario {
            name: "empty deletion annotations: the volume is deleted without a Secret",
            actions: deleted_static_volume(deletion_annotations("", "")),
            calls: &["delete static-v"],
            ..deleted()
        },
        Scenario {
            name: "no deletion annotations: the volume is deleted with the Secret of its class",
            actions: deleted_static_volume(json!({})),
            calls: &["delete static-v with password=one"],
            ..deleted()
        },
        Scenario {
            name: "deletion annotation with a Secret of a namespace that is not listed: \
                   the volume is kept, with VolumeFailedDelete",
            actions: deleted_static_volume(deletion_annotations("s", "kube-system")),
            volumes: &["v Released a"],
            events: &["v Warning VolumeFailedDelete"],
            unsettled: &[(WorkKind::Retry, "the deletion is retried")],
            ..deleted()
        },
    ]
}
