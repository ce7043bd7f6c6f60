//! Attaching and detaching.

use std::time::Duration;

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use super::{CLAIM, Scenario};
use crate::{
    Fault, Place, Publishing,
    Sign::Called,
    UserAction::{self, Create, Delete, Patch, Settle, Until, Wait},
    objects::{attachment, claim, csi_node, volume, with},
};

const ATTACHMENT: &str = "/apis/storage.k8s.io/v1/volumeattachments/a";
const STATUS: &str = "/apis/storage.k8s.io/v1/volumeattachments/a/status";
const NODE: &str = "/apis/storage.k8s.io/v1/csinodes/n";
const VOLUME: &str = "/api/v1/persistentvolumes/v";
const SECRET: &str = "/api/v1/namespaces/default/secrets/s";

const ATTACHED: &[&str] = &["a attached directory"];
const THERE: &[&str] = &["static-v id"];
const AVAILABLE: &[&str] = &["v Available"];

/// A volume and a node.
fn ground() -> Vec<UserAction> {
    vec![Create(volume("v", "none", "1Gi")), Create(csi_node("n", "id"))]
}

fn on_ground(more: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    ground().into_iter().chain(more).collect()
}

/// An attachment of the volume to the node.
fn attach() -> UserAction {
    Create(attachment("a", "v", "n"))
}

fn shared(modes: &[&str]) -> Value {
    with(volume("v", "none", "1Gi"), &json!({"spec": {"accessModes": modes}}))
}

fn publishing(faults: Vec<Fault>) -> Publishing {
    Publishing { faults, ..Publishing::default() }
}

fn unpublishing(undo_faults: Vec<Fault>) -> Publishing {
    Publishing { undo_faults, ..Publishing::default() }
}

/// The CSINode's entry of the driver.
fn registered(id: &str) -> UserAction {
    Patch(NODE, json!({"spec": csi_node("n", id).get("spec")}))
}

fn unregistered() -> UserAction {
    Patch(NODE, json!({"spec": {"drivers": []}}))
}

const LATE: &[(Place, &str)] = &[
    (Place::Http, "the driver's listing is compared once a minute of real time"),
    (Place::Kubernetes, "the driver's listing is compared once a minute of real time"),
];

/// The next look after a conflict asks the driver once more, which is no harm.
const TOGETHER: &[(Place, &str)] = &[
    (
        Place::Http,
        "attacher and provisioner take their finalizers off at once, and one of the two sees a conflict",
    ),
    (
        Place::Kubernetes,
        "attacher and provisioner take their finalizers off at once, and one of the two sees a conflict",
    ),
];

/// The rows.
#[expect(clippy::too_many_lines, reason = "one table")]
pub(super) fn scenarios() -> Vec<Scenario> {
    let base = || Scenario { volumes: AVAILABLE, ..Scenario::default() };
    let attached =
        || Scenario { attachments: ATTACHED, published: THERE, calls: &["publish static-v id"], ..base() };
    let detached = || Scenario { calls: &["publish static-v id", "unpublish static-v id"], ..base() };
    vec![
        Scenario { name: "a volume is attached", user: on_ground([attach()]), ..attached() },
        Scenario {
            name: "and detached",
            user: on_ground([attach(), Settle, Delete(ATTACHMENT)]),
            ..detached()
        },
        Scenario {
            name: "the answer of publish is lost",
            user: on_ground([attach()]),
            publishing: publishing(vec![Fault::LostAnswer]),
            calls: &["publish static-v id", "publish static-v id"],
            ..attached()
        },
        Scenario {
            name: "the node has no room, and then has",
            user: on_ground([attach()]),
            publishing: publishing(vec![Fault::Refuse(ErrorKind::ResourceExhausted)]),
            calls: &["publish static-v id", "publish static-v id"],
            ..attached()
        },
        Scenario {
            name: "the answer of publish is lost and the attachment deleted",
            user: on_ground([attach()]),
            publishing: publishing(vec![Fault::MeanwhileThen(
                Delete(ATTACHMENT),
                Box::new(Fault::LostAnswer),
            )]),
            ..detached()
        },
        Scenario {
            name: "the attachment is deleted while the driver publishes",
            user: on_ground([attach()]),
            publishing: publishing(vec![Fault::Meanwhile(Delete(ATTACHMENT))]),
            ..detached()
        },
        Scenario {
            name: "unpublish fails once, and its answer is lost once",
            user: on_ground([attach(), Settle, Delete(ATTACHMENT)]),
            publishing: unpublishing(vec![Fault::Refuse(ErrorKind::Internal), Fault::LostAnswer]),
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
            user: on_ground([
                Create(with(
                    attachment("a", "v", "n"),
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
            user: on_ground([attach(), Settle, Delete(NODE), Settle, Delete(ATTACHMENT)]),
            ..detached()
        },
        Scenario {
            name: "the node is registered late",
            user: vec![
                Create(volume("v", "none", "1Gi")),
                attach(),
                Settle,
                Create(csi_node("n", "other")),
                Settle,
                unregistered(),
                registered("id"),
            ],
            published: &["static-v other"],
            calls: &["publish static-v other"],
            ..attached()
        },
        Scenario {
            name: "the volume comes late",
            user: vec![Create(csi_node("n", "id")), attach(), Settle, Create(volume("v", "none", "1Gi"))],
            ..attached()
        },
        Scenario {
            name: "a volume that never comes: the attachment says so",
            user: vec![Create(csi_node("n", "id")), attach()],
            attachments: &["a detached attachError"],
            ..Scenario::default()
        },
        Scenario {
            name: "and can be deleted",
            user: vec![Create(csi_node("n", "id")), attach(), Settle, Delete(ATTACHMENT)],
            ..Scenario::default()
        },
        Scenario {
            name: "a driver whose volumes are reachable from everywhere",
            user: on_ground([attach()]),
            publishing: Publishing { none: true, ..Publishing::default() },
            attachments: &["a attached"],
            ..base()
        },
        Scenario {
            name: "a volume's object stays as long as attachments name it",
            user: on_ground([attach(), Settle, Delete(VOLUME), Settle, Delete(ATTACHMENT)]),
            volumes: &[],
            ..detached()
        },
        Scenario {
            name: "a volume that is being deleted is not attached",
            user: vec![
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
            user: vec![
                Create(shared(&["ReadWriteMany"])),
                Create(csi_node("n", "id")),
                Create(csi_node("m", "id-m")),
                attach(),
                Settle,
                Create(attachment("b", "v", "m")),
            ],
            attachments: &["a attached directory", "b attached directory"],
            published: &["static-v id", "static-v id-m"],
            calls: &["publish static-v id", "publish static-v id-m"],
            ..base()
        },
        Scenario {
            name: "a volume for one node waits for it to leave the other",
            user: on_ground([
                Create(csi_node("m", "id-m")),
                attach(),
                Settle,
                Create(attachment("b", "v", "m")),
                Until(Called(2)),
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
            user: on_ground([
                attach(),
                Settle,
                Create(attachment("b", "v", "n")),
                Settle,
                Delete(ATTACHMENT),
            ]),
            attachments: &["b attached directory"],
            published: THERE,
            calls: &["publish static-v id", "publish static-v id"],
            ..base()
        },
        Scenario {
            name: "a volume for reading only",
            user: vec![
                Create(with(shared(&["ReadOnlyMany"]), &json!({"spec": {"csi": {"readOnly": true}}}))),
                Create(csi_node("n", "id")),
                attach(),
            ],
            calls: &["publish static-v id read-only"],
            ..attached()
        },
        Scenario {
            name: "access modes that exclude each other",
            user: vec![
                Create(shared(&["ReadWriteOnce", "ReadOnlyMany"])),
                Create(csi_node("n", "id")),
                attach(),
            ],
            attachments: &["a detached attachError"],
            ..base()
        },
        Scenario {
            name: "an inline volume",
            user: on_ground([Create(with(
                attachment("a", "v", "n"),
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
            user: on_ground([attach(), Until(Called(1)), unregistered(), registered("new")]),
            // Twice, so that a process which takes another's place does not attach it before the name changes.
            publishing: publishing(vec![Fault::LostAnswer, Fault::LostAnswer]),
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
            user: on_ground([attach(), Settle, Patch(STATUS, json!({"status": {"attached": false}}))]),
            calls: &["publish static-v id", "publish static-v id"],
            ..attached()
        },
        Scenario {
            name: "the array loses it: the driver's listing tells",
            user: on_ground([attach()]),
            publishing: publishing(vec![Fault::Undone]),
            told: true,
            calls: &["publish static-v id", "publish static-v id"],
            not_on: LATE,
            ..attached()
        },
        Scenario {
            name: "the Secret that a volume names",
            user: vec![
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
            user: vec![
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
            not_on: TOGETHER,
            ..base()
        },
    ]
}
