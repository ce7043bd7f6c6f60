//! Another controller that does the work of a role: the role stops, the other roles of the process continue.

mod log_collector;

use std::time::Duration;

use cofferdam_controllers::{
    Role, attach_detach, protection, provisioner, pv_controller, snapshot_controller, snapshotter,
};
use cofferdam_domain::names;
use cofferdam_sim::{
    ApiFault, FaultKind, FinalState, Simulation,
    UserAction::{self, Create, Patch, Settle, Wait},
    objects::{claim, class, csi_driver, csi_node, pod, ready_node, volume, volume_attachment, with},
};
use log_collector::LogCollector;
use serde_json::json;

const CONFLICT: &str = "ConflictingController";

async fn run(simulation: &Simulation, actions: impl IntoIterator<Item = UserAction>) -> FinalState {
    let actions: Vec<_> = actions.into_iter().collect();
    let (outcome, _) = simulation.run(&actions, None).await;
    assert_eq!(outcome.violations, [""; 0]);
    outcome
}

fn is_stopped(simulation: &Simulation, role: Role) -> bool {
    let metrics = simulation.metrics();
    let value = |number| format!("cofferdam_role_stopped{{role=\"{role}\"}} {number}\n");
    let (stopped, running) = (metrics.contains(&value(1)), metrics.contains(&value(0)));
    assert!(stopped != running, "{metrics}");
    stopped
}

fn has_conflict_event(outcome: &FinalState) -> bool {
    outcome.events.iter().any(|event| event.contains(CONFLICT))
}

fn all_roles() -> Simulation {
    Simulation::new(&Role::ALL, Vec::new(), Vec::new())
}

/// Three PersistentVolumes that are Available.
fn three_volumes() -> [UserAction; 4] {
    [
        Create(volume("v1", "", "1Gi")),
        Create(volume("v2", "", "1Gi")),
        Create(volume("v3", "", "1Gi")),
        Settle,
    ]
}

fn released(path: &'static str) -> UserAction {
    Patch(path, json!({"status": {"phase": "Released"}}))
}

const V1: &str = "/api/v1/persistentvolumes/v1/status";
const V2: &str = "/api/v1/persistentvolumes/v2/status";
const V3: &str = "/api/v1/persistentvolumes/v3/status";

#[tokio::test(start_paused = true)]
async fn a_foreign_pv_controller_stops_ours() {
    let log = LogCollector::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let simulation = all_roles();
    let later = [Settle, Create(class("gold")), Create(claim("a", "gold")), Settle];
    let changes = [released(V1), released(V2), released(V3)];
    let outcome = run(&simulation, three_volumes().into_iter().chain(changes).chain(later)).await;
    assert!(is_stopped(&simulation, pv_controller::ROLE));
    assert!(!is_stopped(&simulation, attach_detach::ROLE) && !is_stopped(&simulation, provisioner::ROLE));
    assert!(has_conflict_event(&outcome), "{:?}", outcome.events);
    let log = log.text();
    let reason = "another controller does the work of the role pv-controller: it has changed status.phase of \
                  PersistentVolume v1, status.phase of PersistentVolume v2, status.phase of PersistentVolume v3";
    let is_reason = |line: &&str| line.starts_with("ERROR") && line.contains(reason);
    assert_eq!(log.lines().filter(is_reason).count(), 1, "{log}");
    // The provisioner continues. The claim is not bound.
    assert_eq!(
        (&*outcome.claims, &*outcome.array_owners),
        (&["a Pending".to_owned()][..], &["a".to_owned()][..])
    );
}

#[tokio::test(start_paused = true)]
async fn repairs_by_an_administrator_stop_nothing() {
    let minutes = |minutes| Wait(Duration::from_mins(minutes));
    let tables: [&[UserAction]; 3] = [
        &[released(V1), released(V2), released(V1)],
        &[released(V1), minutes(6), released(V2), minutes(6), released(V3)],
        &[
            Patch("/api/v1/persistentvolumes/v1", json!({"metadata": {"annotations": {"a": "b"}}})),
            Patch(
                "/api/v1/persistentvolumes/v2",
                json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
            ),
            Patch("/api/v1/persistentvolumes/v3", json!({"metadata": {"labels": {"a": "b"}}})),
        ],
    ];
    for changes in tables {
        let simulation = all_roles();
        let outcome =
            run(&simulation, three_volumes().into_iter().chain(changes.iter().cloned()).chain([Settle]))
                .await;
        assert!(
            !is_stopped(&simulation, pv_controller::ROLE) && !has_conflict_event(&outcome),
            "{changes:?}"
        );
        // The role has corrected the phases.
        assert_eq!(outcome.volumes, ["v1 Available", "v2 Available", "v3 Available"], "{changes:?}");
    }
}

/// Both controllers may add and remove the finalizers of the role `protection`: nothing is lost.
#[tokio::test(start_paused = true)]
async fn a_foreign_protection_controller_stops_nothing() {
    let finalizers = |finalizers: serde_json::Value| json!({"metadata": {"finalizers": finalizers}});
    let paths = [V1, V2, V3].map(|path| path.trim_end_matches("/status"));
    let removed = paths.map(|path| Patch(path, finalizers(json!(null))));
    let added = paths.map(|path| Patch(path, finalizers(json!(["kubernetes.io/pv-protection"]))));
    let simulation = all_roles();
    let changes = removed.into_iter().chain(added).chain([Settle]);
    let outcome = run(&simulation, three_volumes().into_iter().chain(changes)).await;
    for role in [protection::ROLE, pv_controller::ROLE] {
        assert!(!is_stopped(&simulation, role), "{role}: {:?}", outcome.events);
    }
}

/// kube-scheduler reserves a static volume of a class with WaitForFirstConsumer for the claim of a pod: it
/// writes `claimRef` and the annotation as a PersistentVolume controller does.
#[tokio::test(start_paused = true)]
async fn volumes_reserved_by_the_scheduler_stop_nothing() {
    let delayed = with(class("gold"), &json!({"volumeBindingMode": "WaitForFirstConsumer"}));
    let volumes = ["v1", "v2", "v3"].map(|name| Create(volume(name, "gold", "1Gi")));
    let claims = ["a", "b", "c"].map(|name| Create(claim(name, "gold")));
    let before: Vec<_> = [Create(delayed)].into_iter().chain(volumes).chain(claims).chain([Settle]).collect();
    // Every run gives the claims the same UIDs.
    let first = all_roles();
    run(&first, before.clone()).await;
    let mut reservations = Vec::new();
    for (path, claim) in [(V1, "a"), (V2, "b"), (V3, "c")] {
        let object = format!("/api/v1/namespaces/default/persistentvolumeclaims/{claim}");
        let uid = first.object(&object).await.unwrap().pointer("/metadata/uid").cloned();
        let reference = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": "default", "name": claim, "uid": uid,
        });
        let annotations = json!({names::BOUND_BY_CONTROLLER: "yes"});
        reservations.push(Patch(
            path.trim_end_matches("/status"),
            json!({"metadata": {"annotations": annotations}, "spec": {"claimRef": reference}}),
        ));
    }
    let simulation = all_roles();
    let outcome = run(&simulation, before.into_iter().chain(reservations).chain([Settle])).await;
    assert!(!is_stopped(&simulation, pv_controller::ROLE), "{:?}", outcome.events);
    assert_eq!(outcome.claims, ["a Bound v1", "b Bound v2", "c Bound v3"]);
}

/// The other controller writes immediately before this process, whose write is rejected. The live read after
/// it and the watch deliver the change in either order.
#[tokio::test(start_paused = true)]
async fn foreign_changes_count_that_reject_a_write_of_this_process() {
    let fault = |path| ApiFault {
        method: "PATCH",
        path_prefix: path,
        body_contains: "Available",
        kind: FaultKind::ForeignPhase("Released"),
    };
    let simulation = all_roles().with_api_faults([V1, V2, V3].map(fault).into());
    let outcome = run(&simulation, three_volumes()).await;
    assert!(is_stopped(&simulation, pv_controller::ROLE), "{:?}", outcome.volumes);
    assert!(has_conflict_event(&outcome), "{:?}", outcome.events);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_attach_detach_controller_stops_ours() {
    let nodes = ["n1", "n2", "n3"];
    let objects = nodes.iter().flat_map(|node| [Create(ready_node(node)), Create(csi_node(node, node))]);
    let shared = with(volume("v", "", "1Gi"), &json!({"spec": {"accessModes": ["ReadOnlyMany"]}}));
    let attachments = nodes.map(|node| {
        let name =
            names::volume_attachment_name(&"sim.cofferdam.dev".into(), &"static-v".into(), &node.into());
        Create(volume_attachment(name.as_str(), "v", node))
    });
    let claim = with(claim("a", ""), &json!({"spec": {"accessModes": ["ReadOnlyMany"]}}));
    let placed = with(pod("p", "a"), &json!({"spec": {"nodeName": "n1"}}));
    let before = objects.chain([Create(csi_driver(true)), Create(shared), Create(claim), Settle]);
    let simulation = all_roles();
    let outcome = run(&simulation, before.chain(attachments).chain([Settle, Create(placed), Settle])).await;
    assert!(is_stopped(&simulation, attach_detach::ROLE));
    assert!(!is_stopped(&simulation, pv_controller::ROLE));
    assert!(has_conflict_event(&outcome), "{:?}", outcome.events);
    // The volume is not detached from the nodes without a pod.
    assert_eq!(outcome.attachments.len(), 3, "{:?}", outcome.attachments);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_snapshot_controller_stops_ours() {
    const CONTENTS: [&str; 3] = [
        "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/c1",
        "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/c2",
        "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/c3",
    ];
    let log = LogCollector::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let contents = CONTENTS.map(|path| {
        Create(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": path.rsplit('/').next()},
            "spec": {
                "deletionPolicy": "Retain", "driver": "other.example.com", "source": {"snapshotHandle": "h"},
                "volumeSnapshotRef": {"namespace": "default", "name": "s"},
            },
        }))
    });
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": "late", "namespace": "default"},
        "spec": {"source": {"volumeSnapshotContentName": "c1"}},
    });
    let bound = |path| Patch(path, json!({"spec": {"volumeSnapshotRef": {"uid": "of-the-other"}}}));
    let marked =
        |path| Patch(path, json!({"metadata": {"annotations": {names::SNAPSHOT_BEING_DELETED: "yes"}}}));
    let [c1, c2, c3] = CONTENTS;
    // An administrator marks contents without a VolumeSnapshot, as the event says: this is no conflict.
    let marks = [Settle, marked(c1), marked(c2), marked(c3)];
    let changes = [Settle, bound(c1), bound(c2), bound(c3), Settle, Create(snapshot), Settle];
    let simulation = all_roles();
    let outcome = run(&simulation, contents.into_iter().chain(marks).chain(changes)).await;
    assert!(is_stopped(&simulation, snapshot_controller::ROLE));
    assert!(!is_stopped(&simulation, snapshotter::ROLE) && !is_stopped(&simulation, provisioner::ROLE));
    assert!(has_conflict_event(&outcome), "{:?}", outcome.events);
    let log = log.text();
    let reason = "another controller does the work of the role snapshot-controller: it has changed \
                  spec.volumeSnapshotRef.uid of VolumeSnapshotContent c1, spec.volumeSnapshotRef.uid of \
                  VolumeSnapshotContent c2, spec.volumeSnapshotRef.uid of VolumeSnapshotContent c3";
    let is_reason = |line: &&str| line.starts_with("ERROR") && line.contains(reason);
    assert_eq!(log.lines().filter(is_reason).count(), 1, "{log}");
    // The role does not touch the VolumeSnapshot.
    let late = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots/late";
    let late = simulation.object(late).await.unwrap();
    assert_eq!((late.pointer("/status"), late.pointer("/metadata/finalizers")), (None, None), "{late}");
}

#[tokio::test(start_paused = true)]
async fn a_second_replica_is_not_another_controller() {
    for role in [pv_controller::ROLE, attach_detach::ROLE] {
        let simulation = all_roles().with_replica(&[role]);
        let claims = ["a", "b", "c", "d", "e", "f"].map(|name| Create(claim(name, "gold")));
        let outcome =
            run(&simulation, [Create(class("gold")), Settle].into_iter().chain(claims).chain([Settle])).await;
        assert!(!is_stopped(&simulation, role) && !has_conflict_event(&outcome), "{:?}", outcome.events);
        let volume = simulation.object("/api/v1/persistentvolumes").await.unwrap();
        assert!(volume.to_string().contains("\"manager\":\"cofferdam\""));
    }
}
