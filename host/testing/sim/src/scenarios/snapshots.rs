//! Scenarios of VolumeSnapshots: the roles snapshot-controller and snapshotter, and volumes that the
//! provisioner creates from snapshots.

use std::time::Duration;

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use super::provisioning::REJECTED_CLAIM;
use crate::{
    ApiFault, DriverFault, EnvironmentKind, FaultKind, SnapshotBehavior,
    UserAction::{self, Create, Delete, Patch, PatchContents, Remove, Settle, Until, Wait},
    WaitFor::{CallsCompleted, Deleted},
    WorkKind,
    objects::{CLAIM, DRIVER, claim, class, volume, with},
    scenario::Scenario,
};

pub(super) const SNAPSHOT: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots/s";
const CONTENT: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/existing";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
const CLASSES: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses";
pub(super) const SNAPSHOT_CLASS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses/fast";
pub(super) const VOLUME: &str = "/api/v1/persistentvolumes/v";
pub(super) const SOURCE: &str = "/api/v1/namespaces/default/persistentvolumeclaims/source";

/// A VolumeSnapshotClass of the scenarios' driver.
pub(super) fn snapshot_class(policy: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": "fast"}, "driver": DRIVER, "deletionPolicy": policy,
        "parameters": {"kind": "incremental"},
    })
}

/// The VolumeSnapshot `s` of the claim `source`.
pub(super) fn snapshot() -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": "s", "namespace": "default"},
        "spec": {
            "volumeSnapshotClassName": "fast", "source": {"persistentVolumeClaimName": "source"},
        },
    })
}

/// The VolumeSnapshot `s` of the content `existing`.
pub(super) fn snapshot_of_content() -> Value {
    let source = json!({"persistentVolumeClaimName": null, "volumeSnapshotContentName": "existing"});
    with(snapshot(), &json!({"spec": {"source": source, "volumeSnapshotClassName": null}}))
}

/// The content `existing` of an existing snapshot, for the VolumeSnapshot `s`.
pub(super) fn content(policy: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "existing"},
        "spec": {
            "deletionPolicy": policy, "driver": DRIVER, "source": {"snapshotHandle": "static-snapshot"},
            "volumeSnapshotRef": {"namespace": "default", "name": "s"},
        },
    })
}

/// The claim `a` with the VolumeSnapshot `s` as its source.
pub(super) fn restored() -> Value {
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    with(claim("a", "gold"), &json!({"spec": {"dataSource": source}}))
}

/// Creates a StorageClass, a VolumeSnapshotClass with the deletion policy, and the claim `source` with a
/// static PersistentVolume; then performs these actions.
pub(super) fn after_source(policy: &str, actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    let setup = [
        Create(class("gold")),
        Create(snapshot_class(policy)),
        Create(volume("v", "gold", "1Gi")),
        Settle,
        Create(claim("source", "gold")),
        Settle,
    ];
    setup.into_iter().chain(actions).collect()
}

/// Time in which a process opens its watches.
const WATCHES_OPEN: UserAction = Wait(Duration::from_secs(1));

/// The first processes get changes of these objects two seconds after [`WATCHES_OPEN`].
fn late_watch(path_prefix: &'static str) -> ApiFault {
    let kind = FaultKind::LateWatch(Duration::from_secs(3));
    ApiFault { method: "GET", path_prefix, body_contains: "", kind }
}

const SOURCE_BOUND: &[&str] = &["source Bound v"];
const SOURCE_VOLUME: &[&str] = &["v Bound source"];
const READY: &[&str] = &["s of-s ready"];
const READY_CONTENT: &[&str] = &["of-s s ready"];
const CREATED: &[&str] = &["s Normal CreatingSnapshot", "s Normal SnapshotCreated", "s Normal SnapshotReady"];
pub(super) const CREATED_AFTER_FAILURE: &[&str] = &[
    "of-s Warning SnapshotCreationFailed",
    "s Normal CreatingSnapshot",
    "s Normal SnapshotCreated",
    "s Normal SnapshotReady",
];
pub(super) const CREATE: &str = "snapshot snapshot-s of static-v";
pub(super) const CREATE_OF_GONE: &str = "snapshot snapshot-gone of static-v";
pub(super) const DELETE: &str = "delete snapshot-gone";

pub(super) const RETRIED: &[(WorkKind, &str)] = &[(WorkKind::Retry, "the failure is retried")];

/// All orders of the elements.
fn permutations<T: Copy>(elements: &[T]) -> Vec<Vec<T>> {
    let Some((first, rest)) = elements.split_first() else { return vec![Vec::new()] };
    let insert_at = |order: &Vec<T>, index: usize| {
        let mut order = order.clone();
        order.insert(index, *first);
        order
    };
    let orders = permutations(rest);
    orders.iter().flat_map(|order| (0..=order.len()).map(move |index| insert_at(order, index))).collect()
}

/// A snapshot and its content, its source claim and the PersistentVolume, deleted in each order: at once, and
/// each after the roles have acted on the last one; of a snapshot that is ready, and of one that is not; and
/// an existing snapshot and its content, which have no source.
pub(super) fn deletion_orders() -> Vec<Scenario> {
    let policies = [
        ("Delete", &[CREATE_OF_GONE, DELETE] as &[_], &[] as &[_], &["delete static-snapshot"] as &[_]),
        ("Retain", &[CREATE_OF_GONE], &["gone"], &[]),
    ];
    let deletions = |order: &[&'static str], settles: bool| {
        let wait = if settles { vec![Settle] } else { Vec::new() };
        order.iter().flat_map(|path| [vec![Delete(path)], wait.clone()].concat()).collect::<Vec<_>>()
    };
    let mut rows = Vec::new();
    for (policy, calls, array_snapshots, calls_of_existing) in policies {
        for settles in [false, true] {
            for order in permutations(&[SNAPSHOT, CONTENTS, SOURCE, VOLUME]) {
                let deletions = deletions(&order, settles);
                rows.push(Scenario {
                    name: "snapshot, content, claim and volume deleted: each is deleted as the policy says",
                    actions: after_source(
                        policy,
                        [Create(snapshot()), Settle].into_iter().chain(deletions.clone()),
                    ),
                    calls,
                    array_snapshots,
                    events: CREATED,
                    ..Scenario::default()
                });
                rows.push(Scenario {
                    name: "the same before the snapshot is ready",
                    actions: after_source(
                        policy,
                        [Create(snapshot()), Until(CallsCompleted(1))].into_iter().chain(deletions),
                    ),
                    snapshotting: SnapshotBehavior { polls_until_ready: 2, ..SnapshotBehavior::default() },
                    array_snapshots,
                    compares_objects_only: true,
                    ..Scenario::default()
                });
            }
            for order in permutations(&[SNAPSHOT, CONTENTS]) {
                let existing = [Create(content(policy)), Create(snapshot_of_content()), Settle];
                rows.push(Scenario {
                    name: "existing snapshot and its content deleted: both are deleted as the policy says",
                    actions: after_source(policy, existing.into_iter().chain(deletions(&order, settles))),
                    claims: SOURCE_BOUND,
                    volumes: SOURCE_VOLUME,
                    calls: calls_of_existing,
                    events: &["s Normal SnapshotCreated", "s Normal SnapshotReady"],
                    ..Scenario::default()
                });
            }
        }
    }
    rows
}

/// A row in which the source stays.
pub(super) fn base() -> Scenario {
    Scenario { claims: SOURCE_BOUND, volumes: SOURCE_VOLUME, ..Scenario::default() }
}

/// A row in which the snapshot is taken.
pub(super) fn taken() -> Scenario {
    Scenario {
        snapshots: READY,
        snapshot_contents: READY_CONTENT,
        array_snapshots: &["s"],
        events: CREATED,
        calls: &[CREATE],
        ..base()
    }
}

/// A driver with these faults of CreateSnapshot.
pub(super) fn failing(create_faults: Vec<DriverFault>) -> SnapshotBehavior {
    SnapshotBehavior { create_faults, ..SnapshotBehavior::default() }
}

/// The scenarios of this module.
#[expect(clippy::too_many_lines, reason = "one table")]
pub(super) fn scenarios() -> Vec<Scenario> {
    let polled = || SnapshotBehavior { polls_until_ready: 2, ..SnapshotBehavior::default() };
    vec![
        Scenario {
            name: "VolumeSnapshot created: the snapshot is created and ready",
            actions: after_source("Delete", [Create(snapshot())]),
            ..taken()
        },
        Scenario {
            name: "snapshot ready at the third call: the driver is asked until then",
            actions: after_source("Delete", [Create(snapshot())]),
            snapshotting: polled(),
            calls: &[CREATE, CREATE, CREATE],
            ..taken()
        },
        Scenario {
            name: "VolumeSnapshot deleted, deletion policy Delete: content and snapshot are deleted",
            actions: after_source("Delete", [Create(snapshot()), Settle, Delete(SNAPSHOT)]),
            events: CREATED,
            calls: &[CREATE_OF_GONE, DELETE],
            ..base()
        },
        Scenario {
            name: "VolumeSnapshot deleted, deletion policy Retain: content and snapshot stay",
            actions: after_source("Retain", [Create(snapshot()), Settle, Delete(SNAPSHOT)]),
            snapshot_contents: &["of-gone s ready"],
            array_snapshots: &["gone"],
            events: CREATED,
            calls: &[CREATE_OF_GONE],
            ..base()
        },
        Scenario {
            name: "VolumeSnapshot deleted before the snapshot is ready: content and snapshot are deleted",
            actions: after_source("Delete", [Create(snapshot())]),
            snapshotting: SnapshotBehavior {
                create_faults: vec![DriverFault::ConcurrentAction(Delete(SNAPSHOT))],
                ..polled()
            },
            events: &["s Normal CreatingSnapshot"],
            // The deletion of the VolumeSnapshot changes the content, so that the first result is not saved.
            calls: &[CREATE_OF_GONE, CREATE_OF_GONE, DELETE],
            ..base()
        },
        // kube-apiserver loses a finalizer that is written while it deletes the object.
        Scenario {
            name: "VolumeSnapshot lost while the snapshot is created: content and snapshot are deleted",
            actions: after_source("Delete", [Create(snapshot())]),
            snapshotting: failing(vec![DriverFault::ConcurrentAction(Remove(SNAPSHOT))]),
            events: &["s Normal CreatingSnapshot"],
            calls: &[CREATE_OF_GONE, CREATE_OF_GONE, DELETE],
            ..base()
        },
        Scenario {
            name: "ready VolumeSnapshot lost: content and snapshot are deleted",
            actions: after_source("Delete", [Create(snapshot()), Settle, Remove(SNAPSHOT)]),
            events: CREATED,
            calls: &[CREATE_OF_GONE, DELETE],
            ..base()
        },
        Scenario {
            name: "VolumeSnapshot lost, deletion policy Retain: content and snapshot stay",
            actions: after_source("Retain", [Create(snapshot()), Settle, Remove(SNAPSHOT)]),
            snapshot_contents: &["of-gone s ready"],
            array_snapshots: &["gone"],
            events: CREATED,
            calls: &[CREATE_OF_GONE],
            ..base()
        },
        Scenario {
            name: "CreateSnapshot response lost: the call is repeated",
            actions: after_source("Delete", [Create(snapshot())]),
            snapshotting: failing(vec![DriverFault::LostResponse]),
            events: CREATED_AFTER_FAILURE,
            calls: &[CREATE, CREATE],
            ..taken()
        },
        // external-snapshotter's issue 1388: the deletion was forgotten.
        Scenario {
            name: "VolumeSnapshot deleted while the CreateSnapshot result is unknown: the call is repeated, and \
                   the snapshot deleted",
            actions: after_source("Delete", [Create(snapshot())]),
            snapshotting: failing(vec![DriverFault::ConcurrentActionThen(
                Delete(SNAPSHOT),
                Box::new(DriverFault::LostResponse),
            )]),
            events: &["of-gone Warning SnapshotCreationFailed", "s Normal CreatingSnapshot"],
            calls: &[CREATE_OF_GONE, CREATE_OF_GONE, DELETE],
            ..base()
        },
        Scenario {
            name: "result of CreateSnapshot unknown, then an error about the attempt: the call is repeated",
            actions: after_source("Delete", [Create(snapshot())]),
            snapshotting: failing(vec![
                DriverFault::ConcurrentActionThen(Delete(SNAPSHOT), Box::new(DriverFault::LostResponse)),
                DriverFault::Refuse(ErrorKind::Internal),
            ]),
            events: &[
                "of-gone Warning SnapshotContentCheckandUpdateFailed",
                "of-gone Warning SnapshotCreationFailed",
                "s Normal CreatingSnapshot",
            ],
            calls: &[CREATE_OF_GONE, CREATE_OF_GONE, CREATE_OF_GONE, DELETE],
            ..base()
        },
        Scenario {
            name: "CreateSnapshot fails again and again: each call waits for the back-off",
            actions: after_source(
                "Delete",
                [Create(snapshot()), Wait(Duration::from_millis(2500)), Delete(SNAPSHOT)],
            ),
            snapshotting: failing(vec![DriverFault::Refuse(ErrorKind::FailedPrecondition); 2]),
            events: &["of-gone Warning SnapshotCreationFailed", "s Normal CreatingSnapshot"],
            // After 1 s, and not yet after 3 s.
            calls: &[CREATE_OF_GONE, CREATE_OF_GONE],
            skipped_on: &[
                (EnvironmentKind::Http, "the back-off is shorter in real time"),
                (EnvironmentKind::Kubernetes, "the back-off is shorter in real time"),
            ],
            ..base()
        },
        // external-snapshotter's pull request 1446: the content was gone before the annotation, and the
        // snapshot stayed.
        Scenario {
            name: "write of the annotation of a deletion late: the snapshot is deleted",
            actions: after_source("Delete", [Create(snapshot()), Settle, Delete(SNAPSHOT)]),
            api_faults: vec![ApiFault {
                method: "PATCH",
                path_prefix: CONTENTS,
                body_contains: "volumesnapshot-being-deleted",
                kind: FaultKind::Delayed(Duration::from_secs(1)),
            }],
            events: &[
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
                "s Warning SnapshotContentObjectDeleteError",
            ],
            calls: &[CREATE_OF_GONE, DELETE],
            ..base()
        },
        Scenario {
            name: "CreateSnapshot fails: it is retried, and the status has no error afterwards",
            actions: after_source("Delete", [Create(snapshot())]),
            snapshotting: failing(vec![DriverFault::Refuse(ErrorKind::Internal)]),
            events: CREATED_AFTER_FAILURE,
            calls: &[CREATE, CREATE],
            ..taken()
        },
        Scenario {
            name: "CreateSnapshot fails with ResourceExhausted: the call is repeated",
            actions: after_source("Delete", [Create(snapshot())]),
            snapshotting: failing(vec![DriverFault::Refuse(ErrorKind::ResourceExhausted)]),
            events: CREATED_AFTER_FAILURE,
            calls: &[CREATE, CREATE],
            ..taken()
        },
        Scenario {
            name: "DeleteSnapshot fails: it is retried until the snapshot is deleted",
            actions: after_source("Delete", [Create(snapshot()), Settle, Delete(SNAPSHOT)]),
            snapshotting: SnapshotBehavior {
                delete_faults: vec![DriverFault::Refuse(ErrorKind::Internal), DriverFault::LostResponse],
                ..SnapshotBehavior::default()
            },
            events: &[
                "of-gone Warning SnapshotDeleteError",
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
            ],
            calls: &[CREATE_OF_GONE, DELETE, DELETE, DELETE],
            ..base()
        },
        Scenario {
            name: "source claim deleted while its snapshot is created: it stays until the snapshot is ready",
            actions: after_source("Delete", [Create(snapshot())]),
            snapshotting: SnapshotBehavior {
                create_faults: vec![DriverFault::ConcurrentAction(Delete(SOURCE))],
                ..polled()
            },
            claims: &[],
            volumes: &["v Released source"],
            calls: &[CREATE, CREATE, CREATE],
            ..taken()
        },
        Scenario {
            name: "snapshot of a claim that is Pending: it is taken once the claim is Bound",
            actions: vec![
                Create(class("gold")),
                Create(snapshot_class("Delete")),
                Create(snapshot()),
                Create(claim("source", "none")),
                Settle,
                Create(volume("v", "none", "1Gi")),
            ],
            events: &[
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
                "s Warning SnapshotContentCreationFailed",
                "source Warning ProvisioningFailed",
            ],
            ..taken()
        },
        Scenario {
            name: "VolumeSnapshotClass created after its VolumeSnapshot: the snapshot is taken",
            actions: after_source(
                "Delete",
                [
                    Delete(SNAPSHOT_CLASS),
                    // Until the caches lack the class, too.
                    Settle,
                    Create(snapshot()),
                    Settle,
                    Create(snapshot_class("Delete")),
                ],
            ),
            events: &[
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
                "s Warning GetSnapshotClassFailed",
            ],
            ..taken()
        },
        Scenario {
            name: "class whose watch is late, new snapshot: no missing class is reported",
            actions: vec![
                WATCHES_OPEN,
                Create(class("gold")),
                Create(snapshot_class("Delete")),
                Create(volume("v", "gold", "1Gi")),
                Wait(Duration::from_millis(300)),
                Create(claim("source", "gold")),
                Wait(Duration::from_millis(300)),
                Create(snapshot()),
            ],
            api_faults: vec![late_watch(CLASSES)],
            // In real time, the claim may be bound later.
            delayed_events: &["s Warning SnapshotContentCreationFailed"],
            ..taken()
        },
        Scenario {
            name: "class whose watch is late, existing snapshot: no missing class is reported",
            actions: vec![
                WATCHES_OPEN,
                Create(snapshot_class("Retain")),
                Create(content("Retain")),
                Create(with(snapshot_of_content(), &json!({"spec": {"volumeSnapshotClassName": "fast"}}))),
            ],
            api_faults: vec![late_watch(CLASSES)],
            snapshots: &["s existing ready"],
            snapshot_contents: &["existing s ready"],
            events: &["s Normal SnapshotCreated", "s Normal SnapshotReady"],
            ..Scenario::default()
        },
        Scenario {
            name: "VolumeSnapshot without a class: the default class of the driver is set",
            actions: vec![
                Create(class("gold")),
                Create(with(
                    snapshot_class("Delete"),
                    &json!({"metadata": {"annotations": {
                        "snapshot.storage.kubernetes.io/is-default-class": "true",
                    }}}),
                )),
                Create(volume("v", "gold", "1Gi")),
                Settle,
                Create(claim("source", "gold")),
                Settle,
                Create(with(snapshot(), &json!({"spec": {"volumeSnapshotClassName": null}}))),
            ],
            ..taken()
        },
        Scenario {
            name: "class of another driver than that of the volume: the snapshot is not taken",
            actions: vec![
                Create(class("gold")),
                Create(with(snapshot_class("Delete"), &json!({"driver": "other.example.com"}))),
                Create(volume("v", "gold", "1Gi")),
                Settle,
                Create(claim("source", "gold")),
                Settle,
                Create(snapshot()),
            ],
            snapshots: &["s"],
            events: &["s Warning SnapshotContentCreationFailed"],
            unsettled: RETRIED,
            ..base()
        },
        Scenario {
            name: "VolumeSnapshot of an existing content: they are bound",
            actions: after_source("Delete", [Create(content("Retain")), Create(snapshot_of_content())]),
            snapshots: &["s existing ready"],
            snapshot_contents: &["existing s ready"],
            events: &["s Normal SnapshotCreated", "s Normal SnapshotReady"],
            ..base()
        },
        Scenario {
            name: "VolumeSnapshot of an existing content, whose watch is late: no missing content is reported",
            actions: vec![WATCHES_OPEN, Create(content("Retain")), Create(snapshot_of_content())],
            api_faults: vec![late_watch(CONTENTS)],
            snapshots: &["s existing ready"],
            snapshot_contents: &["existing s ready"],
            events: &["s Normal SnapshotCreated", "s Normal SnapshotReady"],
            ..Scenario::default()
        },
        Scenario {
            name: "VolumeSnapshot of an existing content deleted, deletion policy Delete: all are deleted",
            actions: after_source(
                "Delete",
                [Create(content("Delete")), Create(snapshot_of_content()), Settle, Delete(SNAPSHOT)],
            ),
            events: &["s Normal SnapshotCreated", "s Normal SnapshotReady"],
            calls: &["delete static-snapshot"],
            ..base()
        },
        Scenario {
            name: "existing content with the annotation of a creation: it is deleted with its VolumeSnapshot",
            actions: after_source(
                "Delete",
                [
                    Create(with(
                        content("Delete"),
                        &json!({"metadata": {"annotations": {
                            "snapshot.storage.kubernetes.io/volumesnapshot-being-created": "yes",
                        }}}),
                    )),
                    Create(snapshot_of_content()),
                    Settle,
                    Delete(SNAPSHOT),
                ],
            ),
            events: &["s Normal SnapshotCreated", "s Normal SnapshotReady"],
            calls: &["delete static-snapshot"],
            ..base()
        },
        Scenario {
            name: "two contents of one snapshot, both VolumeSnapshots deleted: the snapshot is deleted",
            actions: after_source(
                "Delete",
                [
                    Create(content("Delete")),
                    Create(with(
                        content("Delete"),
                        &json!({"metadata": {"name": "copy"}, "spec": {"volumeSnapshotRef": {"name": "t"}}}),
                    )),
                    Create(snapshot_of_content()),
                    Create(with(
                        snapshot_of_content(),
                        &json!({
                            "metadata": {"name": "t"},
                            "spec": {"source": {"volumeSnapshotContentName": "copy"}},
                        }),
                    )),
                    Settle,
                    Delete(SNAPSHOT),
                    Settle,
                    Delete("/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots/t"),
                ],
            ),
            events: &[
                "existing Warning SnapshotDeleteError",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
                "t Normal SnapshotCreated",
                "t Normal SnapshotReady",
            ],
            calls: &["delete static-snapshot", "delete static-snapshot"],
            ..base()
        },
        Scenario {
            name: "content deleted while its VolumeSnapshot exists: the snapshot stays",
            actions: after_source(
                "Delete",
                [Create(content("Delete")), Create(snapshot_of_content()), Settle, Delete(CONTENT)],
            ),
            snapshots: &["s existing ready"],
            snapshot_contents: &["existing s ready"],
            events: &["s Normal SnapshotCreated", "s Normal SnapshotReady"],
            ..base()
        },
        Scenario {
            name: "VolumeSnapshot of a content that does not exist: they are bound once it does",
            actions: after_source(
                "Delete",
                [Create(snapshot_of_content()), Settle, Create(content("Retain"))],
            ),
            snapshots: &["s existing ready"],
            snapshot_contents: &["existing s ready"],
            events: &[
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
                "s Warning SnapshotContentMissing",
            ],
            ..base()
        },
        Scenario {
            name: "claim with a VolumeSnapshot as its dataSource: the volume is created from the snapshot",
            actions: after_source("Delete", [Create(snapshot()), Settle, Create(restored())]),
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
            name: "claim created before its VolumeSnapshot is ready: it waits",
            actions: after_source("Delete", [Create(restored()), Settle, Create(snapshot())]),
            snapshotting: polled(),
            claims: &["a Bound of-a", "source Bound v"],
            volumes: &["of-a Bound a", "v Bound source"],
            array_owners: &["a"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Warning ProvisioningFailed",
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
            ],
            calls: &[CREATE, CREATE, CREATE, "create a from snapshot-s"],
            // Each attempt reads the VolumeSnapshot.
            retries_slowly: true,
            ..taken()
        },
        Scenario {
            name: "VolumeSnapshot deleted during CreateVolume of a restore: it stays until the volume exists",
            actions: after_source("Delete", [Create(snapshot()), Settle, Create(restored())]),
            create_faults: vec![DriverFault::ConcurrentActionThen(
                Delete(SNAPSHOT),
                Box::new(DriverFault::LostRequest),
            )],
            claims: &["a Bound of-a", "source Bound v"],
            volumes: &["of-a Bound a", "v Bound source"],
            array_owners: &["a"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Warning ProvisioningFailed",
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
                "s Warning SnapshotDeletePending",
            ],
            calls: &[CREATE_OF_GONE, "create a from snapshot-gone", "create a from snapshot-gone", DELETE],
            ..base()
        },
        Scenario {
            name: "claim smaller than its snapshot: it is not provisioned",
            actions: after_source(
                "Delete",
                [
                    Create(snapshot()),
                    Settle,
                    Create(with(
                        restored(),
                        &json!({"spec": {"resources": {"requests": {"storage": "1Mi"}}}}),
                    )),
                ],
            ),
            claims: &["a Pending", "source Bound v"],
            events: &[
                "a Warning ProvisioningFailed",
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
            ],
            unsettled: REJECTED_CLAIM,
            retries_slowly: true,
            ..taken()
        },
        Scenario {
            name: "content copied from another cluster without its status: content and snapshot stay",
            actions: after_source(
                "Delete",
                [Create(with(
                    content("Delete"),
                    &json!({"spec": {
                        "source": {"volumeHandle": "static-v", "snapshotHandle": null},
                        "volumeSnapshotClassName": "fast",
                        "volumeSnapshotRef": {"uid": "of-another-cluster"},
                    }}),
                ))],
            ),
            snapshot_contents: &["existing s ready"],
            array_snapshots: &["gone"],
            events: &["existing Warning SnapshotMissing"],
            calls: &[CREATE_OF_GONE],
            // The status of the first answer may conflict with the finalizer of the snapshot-controller.
            races_calls: true,
            ..base()
        },
        Scenario {
            name: "retained content whose deletion policy becomes Delete: content and snapshot stay",
            actions: after_source(
                "Retain",
                [
                    Create(snapshot()),
                    Settle,
                    Delete(SNAPSHOT),
                    Until(Deleted(SNAPSHOT)),
                    PatchContents(json!({"spec": {"deletionPolicy": "Delete"}})),
                ],
            ),
            snapshot_contents: &["of-gone s ready"],
            array_snapshots: &["gone"],
            events: &[
                "of-gone Warning SnapshotMissing",
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
            ],
            calls: &[CREATE_OF_GONE],
            ..base()
        },
        Scenario {
            name: "Secret of the class missing: no snapshot is created, and the VolumeSnapshot can be deleted",
            actions: after_source(
                "Delete",
                [
                    Patch(
                        SNAPSHOT_CLASS,
                        json!({"parameters": {
                            "csi.storage.k8s.io/snapshotter-secret-name": "missing",
                            "csi.storage.k8s.io/snapshotter-secret-namespace": "default",
                        }}),
                    ),
                    Settle,
                    Create(snapshot()),
                    Settle,
                    Delete(SNAPSHOT),
                ],
            ),
            events: &["of-gone Warning SnapshotCreationFailed", "s Normal CreatingSnapshot"],
            retries_slowly: true,
            ..base()
        },
        Scenario {
            name: "claim of a restore and its VolumeSnapshot deleted while the CreateVolume result is unknown: \
                   the volume is created and deleted, then the snapshot",
            actions: after_source("Delete", [Create(snapshot()), Settle, Create(restored())]),
            create_faults: vec![
                DriverFault::ConcurrentActionThen(Delete(CLAIM), Box::new(DriverFault::LostRequest)),
                DriverFault::ConcurrentAction(Delete(SNAPSHOT)),
            ],
            events: &[
                "s Normal CreatingSnapshot",
                "s Normal SnapshotCreated",
                "s Normal SnapshotReady",
                "s Warning SnapshotDeletePending",
            ],
            // The provisioner may remove its finalizer before the snapshot-controller sees the deletion.
            delayed_events: &["s Warning SnapshotDeletePending"],
            calls: &[
                CREATE_OF_GONE,
                "create gone from snapshot-gone",
                "create gone from snapshot-gone",
                "delete gone",
                DELETE,
            ],
            ..base()
        },
    ]
}
