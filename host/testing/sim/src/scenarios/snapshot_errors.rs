//! Scenarios of VolumeSnapshots that refer to the wrong objects, and of drivers with wrong answers.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    provisioning::REJECTED_CLAIM,
    snapshots::{
        CREATE, CREATE_OF_GONE, CREATED_AFTER_FAILURE, DELETE, RETRIED, SNAPSHOT, SNAPSHOT_CLASS, SOURCE,
        VOLUME, after_source, base, content, failing, restored, snapshot, snapshot_class,
        snapshot_of_content, taken,
    },
};
use crate::{
    DriverFault, EnvironmentKind, SnapshotBehavior,
    UserAction::{self, Create, CreateAs, Delete, Patch, Remove, RemoveSnapshots, Settle, Until},
    WaitFor::{CallsCompleted, Deleted, Event},
    objects::{CLAIM, claim, class, volume, with},
    scenario::{Scenario, in_real_time},
};

const CONTENT_STATUS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/existing/status";

const REMOVED_VOLUME: &[(EnvironmentKind, &str)] =
    &in_real_time("the finalizer of the volume may be added again before its deletion");

/// The content `existing` of a driver that no process has, with the status of a snapshot that is ready.
fn content_of_other_driver() -> Vec<UserAction> {
    let status = json!({"status": {
        "snapshotHandle": "other-snapshot", "creationTime": 1_700_000_000_000_000_000_i64,
        "readyToUse": true, "restoreSize": 1_073_741_824,
    }});
    vec![
        Create(with(content("Retain"), &json!({"spec": {"driver": "other.example.com"}}))),
        Patch(CONTENT_STATUS, status),
    ]
}

/// A content of this cluster, as a snapshot controller writes it for a VolumeSnapshot with the uid `lost`.
fn written_content() -> Value {
    with(
        content("Delete"),
        &json!({
            "metadata": {"name": "snapcontent-lost", "finalizers": [
                "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection",
            ]},
            "spec": {
                "source": {"volumeHandle": "static-v", "snapshotHandle": null},
                "volumeSnapshotClassName": "fast", "volumeSnapshotRef": {"uid": "lost"},
            },
        }),
    )
}

/// The scenarios of this module.
#[expect(clippy::too_many_lines, reason = "one table")]
pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "snapshot of a claim that does not exist: it is taken once the claim is Bound",
            actions: vec![
                Create(class("gold")),
                Create(snapshot_class("Delete")),
                Create(volume("v", "gold", "1Gi")),
                Settle,
                Create(snapshot()),
                Settle,
                Create(claim("source", "gold")),
            ],
            events: &[
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
                "s Warning SnapshotContentCreationFailed",
            ],
            ..taken()
        },
        Scenario {
            name: "snapshot of a claim that is Lost: it is not taken",
            actions: after_source(
                "Delete",
                [Remove(VOLUME), Until(Deleted(VOLUME)), Settle, Create(snapshot())],
            ),
            claims: &["source Lost v"],
            volumes: &[],
            snapshots: &["s"],
            events: &["s Warning SnapshotContentCreationFailed", "source Warning ClaimLost"],
            unsettled: RETRIED,
            skipped_on: REMOVED_VOLUME,
            ..base()
        },
        Scenario {
            name: "snapshot of a claim that is being deleted: it is not taken",
            actions: after_source(
                "Delete",
                [
                    Patch(SOURCE, json!({"metadata": {"finalizers": ["example.com/hold"]}})),
                    Delete(SOURCE),
                    Settle,
                    Create(snapshot()),
                ],
            ),
            snapshots: &["s"],
            events: &["s Warning SnapshotContentCreationFailed"],
            unsettled: RETRIED,
            ..base()
        },
        Scenario {
            name: "VolumeSnapshot of a content for another VolumeSnapshot: they are not bound",
            actions: after_source(
                "Delete",
                [
                    Create(with(
                        content("Retain"),
                        &json!({"spec": {"volumeSnapshotRef": {"name": "other"}}}),
                    )),
                    Create(snapshot_of_content()),
                ],
            ),
            snapshots: &["s"],
            snapshot_contents: &["existing other ready"],
            events: &["s Warning SnapshotContentMisbound"],
            unsettled: RETRIED,
            ..base()
        },
        Scenario {
            name: "claim of a snapshot of another driver: it is not provisioned",
            actions: after_source(
                "Delete",
                content_of_other_driver().into_iter().chain([
                    Create(snapshot_of_content()),
                    Settle,
                    Create(restored()),
                ]),
            ),
            claims: &["a Pending", "source Bound v"],
            snapshots: &["s existing ready"],
            snapshot_contents: &["existing s ready"],
            events: &["a Warning ProvisioningFailed", "s Normal SnapshotCreated", "s Normal SnapshotReady"],
            unsettled: REJECTED_CLAIM,
            retries_slowly: true,
            ..base()
        },
        Scenario {
            name: "claim of a VolumeSnapshot that is being deleted: it is not provisioned",
            actions: after_source(
                "Delete",
                [
                    Create(with(snapshot(), &json!({"metadata": {"finalizers": ["example.com/hold"]}}))),
                    Settle,
                    Delete(SNAPSHOT),
                    Settle,
                    Create(restored()),
                ],
            ),
            claims: &["a Pending", "source Bound v"],
            // As in external-snapshotter, a foreign finalizer keeps the VolumeSnapshot only.
            snapshot_contents: &[],
            array_snapshots: &[],
            events: &[
                "a Warning ProvisioningFailed",
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
            ],
            calls: &[CREATE, "delete snapshot-s"],
            unsettled: REJECTED_CLAIM,
            retries_slowly: true,
            ..taken()
        },
        Scenario {
            name: "class deleted while the CreateSnapshot result is unknown: the same request is repeated, and \
                   the VolumeSnapshot is ready once the class exists",
            actions: after_source("Delete", [Create(snapshot()), Settle, Create(snapshot_class("Delete"))]),
            snapshotting: failing(vec![DriverFault::ConcurrentActionThen(
                Delete(SNAPSHOT_CLASS),
                Box::new(DriverFault::LostResponse),
            )]),
            events: &[
                "of-s Warning SnapshotCreationFailed",
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
                "s Warning GetSnapshotClassFailed",
            ],
            calls: &[CREATE, CREATE],
            ..taken()
        },
        Scenario {
            name: "driver answers with a snapshot of another volume: the call is repeated",
            actions: after_source("Delete", [Create(snapshot())]),
            snapshotting: failing(vec![DriverFault::WrongSource]),
            events: CREATED_AFTER_FAILURE,
            calls: &[CREATE, CREATE],
            ..taken()
        },
        Scenario {
            name: "driver answers with size 0: the snapshot is ready, and a claim of any size is restored",
            actions: after_source("Delete", [Create(snapshot()), Settle, Create(restored())]),
            snapshotting: failing(vec![DriverFault::WrongSize(0)]),
            claims: &["a Bound of-a", "source Bound v"],
            volumes: &["of-a Bound a", "v Bound source"],
            array_owners: &["a"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
            ],
            calls: &[CREATE, "create a from snapshot-s"],
            ..taken()
        },
        Scenario {
            name: "snapshot that is never ready: it is deleted with its VolumeSnapshot",
            actions: after_source("Delete", [Create(snapshot()), Until(CallsCompleted(3)), Delete(SNAPSHOT)]),
            snapshotting: SnapshotBehavior { polls_until_ready: usize::MAX, ..SnapshotBehavior::default() },
            events: &["s Normal CreatingSnapshot", "s Normal SnapshotCreated"],
            calls: &[CREATE_OF_GONE, CREATE_OF_GONE, CREATE_OF_GONE, CREATE_OF_GONE, DELETE],
            repeats_calls: true,
            ..base()
        },
        Scenario {
            name: "snapshot deleted at the driver before it is ready: another one takes its place",
            actions: after_source("Delete", [Create(snapshot()), Until(CallsCompleted(1)), RemoveSnapshots]),
            snapshotting: SnapshotBehavior {
                polls_until_ready: 2,
                has_unique_handles: true,
                ..SnapshotBehavior::default()
            },
            calls: &[CREATE, CREATE, CREATE, CREATE],
            repeats_calls: true,
            ..taken()
        },
        Scenario {
            name: "snapshot deleted at the driver: a restore fails, and content and VolumeSnapshot can be deleted",
            actions: after_source(
                "Delete",
                [
                    Create(snapshot()),
                    Settle,
                    RemoveSnapshots,
                    Create(restored()),
                    Until(Event("a Warning ProvisioningFailed")),
                    Delete(CLAIM),
                    Until(Deleted(CLAIM)),
                    Delete(SNAPSHOT),
                ],
            ),
            events: &[
                "a Warning ProvisioningFailed",
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
            ],
            calls: &[CREATE_OF_GONE, "create gone from snapshot-gone", DELETE],
            repeats_calls: true,
            // The provisioner may remove its finalizer after the deletion of the VolumeSnapshot.
            delayed_events: &["s Warning SnapshotDeletePending"],
            ..base()
        },
        Scenario {
            name: "content of upstream's snapshot-controller whose VolumeSnapshot was lost: it is deleted",
            actions: after_source("Delete", [CreateAs("snapshot-controller", written_content())]),
            // A content whose snapshot is complete when a process starts may be a copy, and is kept.
            snapshotting: failing(vec![DriverFault::Slow(Duration::from_secs(1))]),
            // The mark changes the content, so that the first result is not saved.
            calls: &[CREATE_OF_GONE, CREATE_OF_GONE, DELETE],
            races_calls: true,
            ..base()
        },
        Scenario {
            name: "content of an administrator whose VolumeSnapshot was lost: it stays",
            actions: after_source("Delete", [Create(written_content())]),
            snapshot_contents: &["of-gone s ready"],
            array_snapshots: &["gone"],
            events: &["of-gone Warning SnapshotMissing"],
            calls: &[CREATE_OF_GONE],
            races_calls: true,
            ..base()
        },
    ]
}
