//! Scenarios of the attacher: VolumeAttachments that a user creates and deletes. The attach-detach controller
//! creates none here.

use std::time::Duration;

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use crate::{
    DriverFault, PublishingBehavior,
    UserAction::{self, AwaitPublished, Create, Delete, Patch, Settle, Until, Wait},
    WaitFor::{CallsCompleted, Deleted},
    WorkKind,
    objects::{CLAIM, claim, csi_node, ready_node, volume, volume_attachment, with},
    scenario::Scenario,
};

const ATTACHMENT: &str = "/apis/storage.k8s.io/v1/volumeattachments/a";
const ATTACHMENT_STATUS: &str = "/apis/storage.k8s.io/v1/volumeattachments/a/status";
const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/n";
const VOLUME: &str = "/api/v1/persistentvolumes/v";
const SECRET: &str = "/api/v1/namespaces/default/secrets/s";

const ATTACHED: &[&str] = &["a attached directory"];
const PUBLISHED: &[&str] = &["static-v id"];
const AVAILABLE: &[&str] = &["v Available"];

/// Creates the PersistentVolume `v` and the CSINode `n`.
fn setup() -> Vec<UserAction> {
    vec![Create(volume("v", "none", "1Gi")), Create(csi_node("n", "id"))]
}

fn after_setup(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    setup().into_iter().chain(actions).collect()
}

/// Creates a VolumeAttachment of the volume and the node.
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

/// Sets the driver with this node ID as the only driver of the CSINode.
fn register_driver(id: &str) -> UserAction {
    Patch(CSI_NODE, json!({"spec": csi_node("n", id).get("spec")}))
}

fn unregister_driver() -> UserAction {
    Patch(CSI_NODE, json!({"spec": {"drivers": []}}))
}

pub(super) const FAILED_ATTACH: &[(WorkKind, &str)] =
    &[(WorkKind::Retry, "the attacher retries an attach that fails, without a call that cannot succeed")];

/// The scenarios of this module.
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
        Scenario {
            name: "VolumeAttachment created: the volume is published and status.attached is true",
            actions: after_setup([attach()]),
            ..attached()
        },
        Scenario {
            name: "VolumeAttachment deleted: the volume is unpublished and the finalizer removed",
            actions: after_setup([attach(), Settle, Delete(ATTACHMENT)]),
            ..detached()
        },
        Scenario {
            name: "ControllerPublishVolume response lost: the call is repeated",
            actions: after_setup([attach()]),
            publishing: publish_faults(vec![DriverFault::LostResponse]),
            calls: &["publish static-v id", "publish static-v id"],
            ..attached()
        },
        Scenario {
            name: "ControllerPublishVolume fails once with ResourceExhausted: it is retried",
            actions: after_setup([attach()]),
            publishing: publish_faults(vec![DriverFault::Refuse(ErrorKind::ResourceExhausted)]),
            calls: &["publish static-v id", "publish static-v id"],
            ..attached()
        },
        Scenario {
            name: "VolumeAttachment deleted and ControllerPublishVolume response lost: \
                  the volume is unpublished",
            actions: after_setup([attach()]),
            publishing: publish_faults(vec![DriverFault::ConcurrentActionThen(
                Delete(ATTACHMENT),
                Box::new(DriverFault::LostResponse),
            )]),
            ..detached()
        },
        Scenario {
            name: "VolumeAttachment deleted during ControllerPublishVolume: the volume is unpublished",
            actions: after_setup([attach()]),
            publishing: publish_faults(vec![DriverFault::ConcurrentAction(Delete(ATTACHMENT))]),
            ..detached()
        },
        Scenario {
            name: "ControllerUnpublishVolume fails once and loses one response: it is retried",
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
            name: "finalizer removed by a user during ControllerUnpublishVolume, whose result is unknown: \
                  the volume can be published to the node again",
            actions: after_setup([
                attach(),
                Settle,
                Delete(ATTACHMENT),
                Until(CallsCompleted(2)),
                Until(Deleted(ATTACHMENT)),
                attach(),
            ]),
            publishing: unpublish_faults(vec![DriverFault::ConcurrentActionThen(
                Patch(ATTACHMENT, json!({"metadata": {"finalizers": null}})),
                Box::new(DriverFault::LostRequest),
            )]),
            calls: &["publish static-v id", "unpublish static-v id", "publish static-v id"],
            ..attached()
        },
        Scenario {
            name: "VolumeAttachment with a foreign finalizer: it stays after detach with attached false",
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
            name: "CSINode deleted: the node ID annotation of the VolumeAttachment is used to detach",
            actions: after_setup([attach(), Settle, Delete(CSI_NODE), Settle, Delete(ATTACHMENT)]),
            ..detached()
        },
        Scenario {
            name: "driver registered in the CSINode after the VolumeAttachment was created: \
                  the volume is attached",
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
            name: "PersistentVolume created after its VolumeAttachment: the volume is attached",
            actions: vec![Create(csi_node("n", "id")), attach(), Settle, Create(volume("v", "none", "1Gi"))],
            ..attached()
        },
        Scenario {
            name: "VolumeAttachment without a PersistentVolume: attachError is set",
            actions: vec![Create(csi_node("n", "id")), attach()],
            attachments: &["a detached attachError"],
            unsettled: FAILED_ATTACH,
            ..Scenario::default()
        },
        Scenario {
            name: "VolumeAttachment without a PersistentVolume: it can be deleted",
            actions: vec![Create(csi_node("n", "id")), attach(), Settle, Delete(ATTACHMENT)],
            ..Scenario::default()
        },
        Scenario {
            name: "driver without PUBLISH_UNPUBLISH_VOLUME: attached is set without a call",
            actions: after_setup([attach()]),
            publishing: PublishingBehavior { unsupported: true, ..PublishingBehavior::default() },
            attachments: &["a attached"],
            ..base()
        },
        Scenario {
            name: "driver that takes node identities: the publish call has spec.providerID of the Node",
            actions: after_setup([
                Create(with(ready_node("n"), &json!({"spec": {"providerID": "cloud:///zone/i-1"}}))),
                attach(),
            ]),
            publishing: PublishingBehavior { takes_node_identities: true, ..PublishingBehavior::default() },
            calls: &["publish static-v id provider-id=cloud:///zone/i-1"],
            ..attached()
        },
        Scenario {
            name: "driver that takes node identities, of a Node that does not exist: it gets none",
            actions: after_setup([attach()]),
            publishing: PublishingBehavior { takes_node_identities: true, ..PublishingBehavior::default() },
            ..attached()
        },
        Scenario {
            name: "PersistentVolume deleted while a VolumeAttachment names it: \
                  it keeps its finalizer until detach",
            actions: after_setup([attach(), Settle, Delete(VOLUME), Settle, Delete(ATTACHMENT)]),
            volumes: &[],
            ..detached()
        },
        Scenario {
            name: "terminating PersistentVolume: it is not attached",
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
            unsettled: FAILED_ATTACH,
            ..base()
        },
        Scenario {
            name: "ReadWriteMany volume: it is attached to two nodes",
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
            name: "ReadWriteOnce volume: the second attach succeeds after the detach from the first node",
            actions: after_setup([
                Create(csi_node("m", "id-m")),
                attach(),
                Settle,
                Create(volume_attachment("b", "v", "m")),
            ]),
            // During the second call, so that in real time the detach precedes its retry.
            publishing: publish_faults(vec![
                DriverFault::Slow(Duration::ZERO),
                DriverFault::ConcurrentActionThen(
                    Delete(ATTACHMENT),
                    Box::new(DriverFault::Refuse(ErrorKind::FailedPrecondition)),
                ),
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
            name: "two VolumeAttachments of one volume and node: \
                  it is unpublished only after both are deleted",
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
            name: "read-only volume: it is published read-only",
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
            name: "access modes that exclude each other: attachError is set",
            actions: vec![
                Create(volume_with_modes(&["ReadWriteOnce", "ReadOnlyMany"])),
                Create(csi_node("n", "id")),
                attach(),
            ],
            attachments: &["a detached attachError"],
            unsettled: FAILED_ATTACH,
            ..base()
        },
        Scenario {
            name: "VolumeAttachment with an inlineVolumeSpec: attachError is set",
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
            unsettled: FAILED_ATTACH,
            ..base()
        },
        Scenario {
            name: "node ID changed while the publish result is unknown: \
                  unpublished from the old ID, published to the new",
            actions: after_setup([attach(), Until(CallsCompleted(1)), register_driver("new")]),
            // The driver's entry is removed during the first call, so that in real time the retry cannot
            // precede the new node ID. The second fault shows that a repeated call has the new ID.
            publishing: publish_faults(vec![
                DriverFault::ConcurrentActionThen(unregister_driver(), Box::new(DriverFault::LostResponse)),
                DriverFault::LostResponse,
            ]),
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
            name: "status.attached set to false by a user: the volume is published again",
            actions: after_setup([
                attach(),
                Settle,
                Patch(ATTACHMENT_STATUS, json!({"status": {"attached": false}})),
            ]),
            calls: &["publish static-v id", "publish static-v id"],
            ..attached()
        },
        Scenario {
            name: "volume unpublished on the storage system: \
                  ListVolumes reports it and it is published again",
            actions: after_setup([attach(), AwaitPublished("static-v id")]),
            publishing: publish_faults(vec![DriverFault::Reverted]),
            lists_published_nodes: true,
            calls: &["publish static-v id", "publish static-v id"],
            ..attached()
        },
        Scenario {
            name: "publish Secret created late and deleted early: attach waits for it, detach does not",
            actions: vec![
                Create(with(
                    volume("v", "none", "1Gi"),
                    &json!({"spec": {"csi": {
                        "controllerPublishSecretRef": {"namespace": "default", "name": "s"},
                    }}}),
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
            calls: &["publish static-v id with password=hunter2", "unpublish static-v id"],
            ..base()
        },
        Scenario {
            name: "PersistentVolume with reclaim policy Delete: the volume is deleted only after detach",
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
            // Attacher and provisioner remove their finalizers concurrently: the role that gets a conflict
            // repeats its driver call, which is harmless.
            races_calls: true,
            ..base()
        },
    ]
}
