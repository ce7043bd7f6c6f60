//! Attaching and detaching.

use std::time::Duration;

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use super::{CLAIM, Scenario};
use crate::{
    DriverFault, EnvironmentKind, PublishingBehavior,
    UserAction::{self, Create, Delete, Patch, Settle, Until, Wait},
    WaitFor::CallsCompleted,
    objects::{claim, csi_node, volume, volume_attachment, with},
};

const ATTACHMENT: &str = "/apis/storage.k8s.io/v1/volumeattachments/a";
const ATTACHMENT_STATUS: &str = "/apis/storage.k8s.io/v1/volumeattachments/a/status";
const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/n";
const VOLUME: &str = "/api/v1/persistentvolumes/v";
const SECRET: &str = "/api/v1/namespaces/default/secrets/s";

const ATTACHED: &[&str] = &["a attached directory"];
const PUBLISHED: &[&str] = &["static-v id"];
const AVAILABLE: &[&str] = &["v Available"];

/// A volume and a node.
fn setup() -> Vec<UserAction> {
    vec![Create(volume("v", "none", "1Gi")), Create(csi_node("n", "id"))]
}

fn after_setup(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    setup().into_iter().chain(actions).collect()
}

/// An attachment of the volume to the node.
fn attach() -> UserAction {
    Create(volume_attachment("a", "v", "n"))
}

fn volume_with_modes(modes: &[&str]) -> Value {
    with(volume("v", "none", "1Gi"), &json!({"spec": {"accessModes": modes}}))
}

fn publish_faults(publish_faults: Vec<DriverFault>) -> PublishingBehavior {
    PublishingBehavior { publish_faults, ..PublishingBehavior::default() }
}

fn unpublish_faults(unpublish_faults: Vec<DriverFault>) -> PublishingBehavior {
    PublishingBehavior { unpublish_faults, ..PublishingBehavior::default() }
}

/// The CSINode's entry of the driver.
fn register_driver(id: &str) -> UserAction {
    Patch(CSI_NODE, json!({"spec": csi_node("n", id).get("spec")}))
}

fn unregister_driver() -> UserAction {
    Patch(CSI_NODE, json!({"spec": {"drivers": []}}))
}

const LISTING_INTERVAL: &[(EnvironmentKind, &str)] = &[
    (EnvironmentKind::Http, "the driver's listing is compared once a minute of real time"),
    (EnvironmentKind::Kubernetes, "the driver's listing is compared once a minute of real time"),
];

/// The next look after a conflict asks the driver once more, which is no harm.
const FINALIZER_RACE: &[(EnvironmentKind, &str)] = &[
    (
        EnvironmentKind::Http,
        "attacher and provisioner take their finalizers off at once, and one of the two sees a conflict",
    ),
    (
        EnvironmentKind::Kubernetes,
        "attacher and provisioner take their finalizers off at once, and one of the two sees a conflict",
    ),
];

/// The rows.
#[expect(clippy::too_many_lines, reason = "one table")]
pub(super) fn scenarios() -> Vec<Scenario> {
    let base = || Scenario { volumes: AVAILABLE, ..Scenario::default() };
    let attached = || Scenario {
        attachments: ATTACHED,
        published: PUBLISHED,
        calls: &["publish static-v id"],
        ..base()
    };
    let detached = || Scenario { calls: &["publish static-v id", "unpublish static-v id"], ..base() };
    vec![
        Scenario { name: "a volume is attached", actions: after_setup([attach()]), ..attached() },
        Scenario {
            name: "and detached",
            actions: after_setup([attach(), Settle, Delete(ATTACHMENT)]),
            ..detached()
        },
        Scenario {
            name: "the answer of publish is lost",
            actions: after_setup([attach()]),
            publishing: publish_faults(vec![DriverFault::LostResponse]),
            calls: &["publish static-v id", "publish static-v id"],
            ..attached()
        },
        Scenario {
            name: "the node has no room, and then has",
            actions: after_setup([attach()]),
            publishing: publish_faults(vec![DriverFault::Refuse(ErrorKind::ResourceExhausted)]),
            calls: &["publish static-v id", "publish static-v id"],
            ..attached()
        },
        Scenario {
            name: "the answer of publish is lost and the attachment deleted",
            actions: after_setup([attach()]),
            publishing: publish_faults(vec![DriverFault::ConcurrentActionThen(
                Delete(ATTACHMENT),
                Box::new(DriverFault::LostResponse),
            )]),
            ..detached()
        },
        Scenario {
            name: "the attachment is deleted while the driver publishes",
            actions: after_setup([attach()]),
            publishing: publish_faults(vec![DriverFault::ConcurrentAction(Delete(ATTACHMENT))]),
            ..detached()
        },
        Scenario {
            name: "unpublish fails once, and its answer is lost once",
            actions: after_setup([attach(), Settle, Delete(ATTACHMENT)]),
            publishing: unpublish_faults(vec![
                DriverFault::Refuse(ErrorKind::Internal),
                DriverFault::LostResponse,
            ]),
            calls: &[
                "publish static-v id",
                "unpublish static-v id",
                "unpublish static-v id",
                "unpublish static-v id",
            ],
            ..base()
        },
        Scenario {
            name: "another one holds the attachment after it is detached",
            actions: after_setup([
                Create(with(
                    volume_attachment("a", "v", "n"),
                    &json!({"metadata": {"finalizers": ["example.com/x"]}}),
                )),
                Settle,
                Delete(ATTACHMENT),
            ]),
            attachments: &["a detached"],
            ..detached()
        },
        Scenario {
            name: "the node has vanished: its name on the attachment is enough to detach",
            actions: after_setup([attach(), Settle, Delete(CSI_NODE), Settle, Delete(ATTACHMENT)]),
            ..detached()
        },
        Scenario {
            name: "the node is registered late",
            actions: vec![
                Create(volume("v", "none", "1Gi")),
                attach(),
                Settle,
                Create(csi_node("n", "other")),
                Settle,
                unregister_driver(),
                register_driver("id"),
            ],
            published: &["static-v other"],
            calls: &["publish static-v other"],
            ..attached()
        },
        Scenario {
            name: "the volume comes late",
            actions: vec![Create(csi_node("n", "id")), attach(), Settle, Create(volume("v", "none", "1Gi"))],
            ..attached()
        },
        Scenario {
            name: "a volume that never comes: the attachment says so",
            actions: vec![Create(csi_node("n", "id")), attach()],
            attachments: &["a detached attachError"],
            ..Scenario::default()
        },
        Scenario {
            name: "and can be deleted",
            actions: vec![Create(csi_node("n", "id")), attach(), Settle, Delete(ATTACHMENT)],
            ..Scenario::default()
        },
        Scenario {
            name: "a driver whose volumes are reachable from everywhere",
            actions: after_setup([attach()]),
            publishing: PublishingBehavior { unsupported: true, ..PublishingBehavior::default() },
            attachments: &["a attached"],
            ..base()
        },
        Scenario {
            name: "a volume's object stays as long as attachments name it",
            actions: after_setup([attach(), Settle, Delete(VOLUME), Settle, Delete(ATTACHMENT)]),
            volumes: &[],
            ..detached()
        },
        Scenario {
            name: "a volume that is being deleted is not attached",
            actions: vec![
                Create(with(
                    volume("v", "none", "1Gi"),
                    &json!({"metadata": {"finalizers": ["example.com/x"]}}),
                )),
                Create(csi_node("n", "id")),
                Settle,
                Delete(VOLUME),
                attach(),
            ],
            attachments: &["a detached attachError"],
            ..base()
        },
        Scenario {
            name: "a volume for many nodes",
            actions: vec![
                Create(volume_with_modes(&["ReadWriteMany"])),
                Create(csi_node("n", "id")),
                Create(csi_node("m", "id-m")),
                attach(),
                Settle,
                Create(volume_attachment("b", "v", "m")),
            ],
            attachments: &["a attached directory", "b attached directory"],
            published: &["static-v id", "static-v id-m"],
            calls: &["publish static-v id", "publish static-v id-m"],
            ..base()
        },
        Scenario {
            name: "a volume for one node waits for it to leave the other",
            actions: after_setup([
                Create(csi_node("m", "id-m")),
                attach(),
                Settle,
                Create(volume_attachment("b", "v", "m")),
                Until(CallsCompleted(2)),
                Delete(ATTACHMENT),
            ]),
            attachments: &["b attached directory"],
            published: &["static-v id-m"],
            calls: &[
                "publish static-v id",
                "publish static-v id-m",
                "unpublish static-v id",
                "publish static-v id-m",
            ],
            ..base()
        },
        Scenario {
            name: "two attachments of one volume to one node: it stays until both are gone",
            actions: after_setup([
                attach(),
                Settle,
                Create(volume_attachment("b", "v", "n")),
                Settle,
                Delete(ATTACHMENT),
            ]),
            attachments: &["b attached directory"],
            published: PUBLISHED,
            calls: &["publish static-v id", "publish static-v id"],
            ..base()
        },
        Scenario {
            name: "a volume for reading only",
            actions: vec![
                Create(with(
                    volume_with_modes(&["ReadOnlyMany"]),
                    &json!({"spec": {"csi": {"readOnly": true}}}),
                )),
                Create(csi_node("n", "id")),
                attach(),
            ],
            calls: &["publish static-v id read-only"],
            ..attached()
        },
        Scenario {
            name: "access modes that exclude each other",
            actions: vec![
                Create(volume_with_modes(&["ReadWriteOnce", "ReadOnlyMany"])),
                Create(csi_node("n", "id")),
                attach(),
            ],
            attachments: &["a detached attachError"],
            ..base()
        },
        Scenario {
            name: "an inline volume",
            actions: after_setup([Create(with(
                volume_attachment("a", "v", "n"),
                &json!({"spec": {"source": {
                    "persistentVolumeName": null,
                    "inlineVolumeSpec": {
                        "accessModes": ["ReadWriteOnce"],
                        "csi": {"driver": "sim.cofferdam.dev", "volumeHandle": "static-v"},
                    },
                }}}),
            ))]),
            attachments: &["a detached attachError"],
            ..base()
        },
        Scenario {
            name: "the node gets another name while the answer is out",
            actions: after_setup([
                attach(),
                Until(CallsCompleted(1)),
                unregister_driver(),
                register_driver("new"),
            ]),
            // Twice, so that a process which takes another's place does not attach it before the name
            // changes.
            publishing: publish_faults(vec![DriverFault::LostResponse, DriverFault::LostResponse]),
            published: &["static-v new"],
            calls: &[
                "publish static-v id",
                "unpublish static-v id",
                "publish static-v new",
                "publish static-v new",
            ],
            ..attached()
        },
        Scenario {
            name: "somebody says that it is not attached",
            actions: after_setup([
                attach(),
                Settle,
                Patch(ATTACHMENT_STATUS, json!({"status": {"attached": false}})),
            ]),
            calls: &["publish static-v id", "publish static-v id"],
            ..attached()
        },
        Scenario {
            name: "the array loses it: the driver's listing tells",
            actions: after_setup([attach()]),
            publishing: publish_faults(vec![DriverFault::Reverted]),
            lists_published_nodes: true,
            calls: &["publish static-v id", "publish static-v id"],
            skipped_on: LISTING_INTERVAL,
            ..attached()
        },
        Scenario {
            name: "the Secret that a volume names",
            actions: vec![
                Create(with(
                    volume("v", "none", "1Gi"),
                    &json!({"spec": {"csi": {"controllerPublishSecretRef": {"namespace": "default", "name": "s"}}}}),
                )),
                Create(csi_node("n", "id")),
                attach(),
                Wait(Duration::from_secs(3)),
                Create(json!({
                    "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "default", "name": "s"},
                    "data": {"password": "aHVudGVyMg=="},
                })),
                Settle,
                Delete(SECRET),
                Delete(ATTACHMENT),
            ],
            calls: &["publish static-v id with password", "unpublish static-v id"],
            ..base()
        },
        Scenario {
            name: "a volume is not deleted as long as it is attached",
            actions: vec![
                Create(with(
                    volume("v", "none", "1Gi"),
                    &json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
                )),
                Create(csi_node("n", "id")),
                Settle,
                Create(claim("a", "none")),
                attach(),
                Settle,
                Delete(CLAIM),
                Settle,
                Delete(ATTACHMENT),
            ],
            volumes: &[],
            events: &["v Warning VolumeFailedDelete"],
            calls: &["publish static-v id", "unpublish static-v id", "delete static-v"],
            skipped_on: FINALIZER_RACE,
            ..base()
        },
    ]
}
