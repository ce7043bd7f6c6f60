//! Simulations of the scan for orphaned snapshots and of their deletion on request, on paused time. Each run
//! of a simulation starts a new process; the API objects and the snapshots of the simulated storage array
//! remain from run to run.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a missing value fails the test")]

use std::time::Duration;

use cofferdam_controllers::{
    Role,
    orphans::report::{DeletionRequest, DeletionResponse, DeletionResult, LeakDetection, ScanReport},
    provisioner, snapshot_controller, snapshotter,
};
use cofferdam_domain::storage::{CreateSnapshot, ErrorKind, SnapshotOwner};
use cofferdam_sim::{
    DriverFault, Effect, FinalState, ListingBehavior, Simulation, SnapshotBehavior,
    UserAction::{self, Create, Delete, Patch, Settle, Wait},
    objects::{DRIVER, claim, class, restore_marker, volume},
};
use serde_json::{Value, json};

const REPORT_CONFIG_MAP: &str =
    "/api/v1/namespaces/default/configmaps/cofferdam-orphaned-snapshots-sim.cofferdam.dev";
const VOLUME_REPORT: &str = "/api/v1/namespaces/default/configmaps/cofferdam-orphans-sim.cofferdam.dev";
const RESTORE_MARKER: &str = "/api/v1/namespaces/default/configmaps/cofferdam-restored";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const MINUTE: Duration = Duration::from_secs(60);
const ROLES: [Role; 2] = [snapshot_controller::ROLE, snapshotter::ROLE];

fn simulation(roles: &[Role], snapshots: SnapshotBehavior) -> Simulation {
    Simulation::with_long_watches(roles, Vec::new(), Vec::new()).with_snapshots(snapshots).with_orphan_scan()
}

async fn local_owner(simulation: &Simulation) -> SnapshotOwner {
    let namespace = simulation.object("/api/v1/namespaces/kube-system").await.unwrap();
    SnapshotOwner {
        cluster_id: namespace["metadata"]["uid"].as_str().unwrap().into(),
        snapshot_uid: "uid-of-a-lost-snapshot".into(),
        content_name: "snapcontent-lost".to_owned(),
        retain: false,
    }
}

/// Adds a snapshot to the array, which CreateSnapshot calls of no process have created.
fn add_array_snapshot(simulation: &Simulation, name: &str, owner: Option<SnapshotOwner>) {
    simulation.driver().insert_snapshot(CreateSnapshot {
        name: name.to_owned(),
        source: "static-v".into(),
        parameters: Default::default(),
        owner,
    });
}

/// A simulation whose array has the snapshots `lost`, of this cluster, and `unowned`.
async fn simulation_with_orphan(snapshots: SnapshotBehavior) -> Simulation {
    let simulation = simulation(&ROLES, snapshots);
    add_array_snapshot(&simulation, "lost", Some(local_owner(&simulation).await));
    add_array_snapshot(&simulation, "unowned", None);
    simulation
}

async fn report(simulation: &Simulation) -> ScanReport {
    let map = simulation.object(REPORT_CONFIG_MAP).await.unwrap();
    assert_eq!(map["data"]["kind"], "snapshot");
    serde_json::from_str(map["data"]["report"].as_str().unwrap()).unwrap()
}

async fn response(simulation: &Simulation) -> DeletionResponse {
    let map = simulation.object(REPORT_CONFIG_MAP).await.unwrap();
    assert_eq!(map["data"].get("delete"), None, "a completed request is removed");
    serde_json::from_str(map["data"]["response"].as_str().unwrap()).unwrap()
}

fn handles(report: &ScanReport) -> Vec<&str> {
    report.orphans.iter().map(|orphan| orphan.handle.as_str()).collect()
}

/// A deletion request as `cofferdam orphans delete --kind snapshot` writes it, at the simulation's current
/// time plus `after`.
fn request_deletion(simulation: &Simulation, after: Duration, name: &str) -> UserAction {
    let request = DeletionRequest {
        handle: format!("handle-{name}").into(),
        requested_at: simulation.now() + after,
        requested_by: "tester".to_owned(),
    };
    Patch(REPORT_CONFIG_MAP, request.patch())
}

fn array_snapshots(simulation: &Simulation) -> Vec<String> {
    simulation.driver().snapshots().into_keys().collect()
}

/// Requests that the rights of the process's roles do not allow.
fn forbidden(state: &FinalState) -> Vec<&String> {
    state.violations.iter().filter(|violation| violation.starts_with("forbidden")).collect()
}

async fn orphan_events(simulation: &Simulation) -> Vec<String> {
    let events = simulation.object("/api/v1/events").await.unwrap();
    let events = events["items"].as_array().unwrap().iter().map(|event| {
        let text = |pointer: &str| event.pointer(pointer).unwrap().as_str().unwrap();
        format!("{} {}", text("/involvedObject/name"), text("/reason"))
    });
    events.filter(|event| event.contains(" Orphan")).collect()
}

/// A VolumeSnapshotContent of an existing snapshot of this array.
fn content(name: &str, driver: &str, handle: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": name},
        "spec": {
            "deletionPolicy": "Retain", "driver": driver, "source": {"snapshotHandle": handle},
            "volumeSnapshotRef": {"namespace": "default", "name": "imported"},
        },
    })
}

fn snapshot_class() -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": "fast"}, "driver": DRIVER, "deletionPolicy": "Delete",
    })
}

/// Creates a VolumeSnapshot of the claim `source`, which has a static PersistentVolume.
fn take_snapshot() -> Vec<UserAction> {
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": "s", "namespace": "default"},
        "spec": {"volumeSnapshotClassName": "fast", "source": {"persistentVolumeClaimName": "source"}},
    });
    vec![
        Create(class("gold")),
        Create(snapshot_class()),
        Create(volume("v", "gold", "1Gi")),
        Settle,
        Create(claim("source", "gold")),
        Settle,
        Create(snapshot),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_leaked_snapshot_is_reported_once_after_24_hours() {
    for roles in [&Role::ALL[..], &[snapshotter::ROLE]] {
        let simulation = simulation(roles, SnapshotBehavior::default());
        let owner = local_owner(&simulation).await;
        add_array_snapshot(&simulation, "lost", Some(owner.clone()));
        add_array_snapshot(&simulation, "retained", Some(SnapshotOwner { retain: true, ..owner.clone() }));
        let foreign = SnapshotOwner { cluster_id: "another".into(), ..owner };
        add_array_snapshot(&simulation, "foreign", Some(foreign));
        add_array_snapshot(&simulation, "unowned", None);
        let actions = [Create(content("imported", DRIVER, "handle-unowned")), Wait(DAY - 3 * HOUR)];
        let (state, _) = simulation.run(&actions, None).await;
        assert_eq!(forbidden(&state), [""; 0]);
        let recent = report(&simulation).await;
        let counts = |report: &ScanReport| {
            let counts = report.counts;
            (counts.referenced, counts.within_grace_period, counts.orphan, counts.unmanaged())
        };
        assert_eq!(counts(&recent), (1, 1, 0, 2), "{recent:?}");
        assert_eq!(recent.leak_detection, LeakDetection::Owner);
        assert_eq!(orphan_events(&simulation).await, [""; 0]);

        // The next process continues the observation from the report.
        simulation.run(&[Wait(DAY), Settle, Settle], None).await;
        let old = report(&simulation).await;
        assert_eq!(counts(&old), (1, 0, 1, 2), "{old:?}");
        assert_eq!((handles(&old), old.orphaned_bytes), (vec!["handle-lost"], 1 << 30));
        let event = format!("cofferdam-orphaned-snapshots-{DRIVER} OrphanedSnapshots");
        assert_eq!(orphan_events(&simulation).await, [event]);
        let metrics = simulation.metrics();
        for sample in [
            format!("cofferdam_driver_snapshots{{driver_name=\"{DRIVER}\",state=\"orphan\"}} 1"),
            format!("cofferdam_driver_snapshots{{driver_name=\"{DRIVER}\",state=\"unmanaged\"}} 2"),
            format!("cofferdam_orphaned_snapshot_bytes{{driver_name=\"{DRIVER}\"}} {}", 1 << 30),
            format!("cofferdam_snapshot_scan_errors_total{{driver_name=\"{DRIVER}\"}} 0"),
        ] {
            assert!(metrics.lines().any(|line| line == sample), "no {sample} in\n{metrics}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_provisioner_alone_scans_no_snapshots() {
    let simulation = Simulation::with_long_watches(&[provisioner::ROLE], Vec::new(), Vec::new())
        .with_listing(ListingBehavior::default(), Vec::new());
    add_array_snapshot(&simulation, "lost", Some(local_owner(&simulation).await));
    let (state, _) = simulation.run(&[Wait(2 * DAY)], None).await;
    assert_eq!(forbidden(&state), [""; 0]);
    assert!(simulation.object(VOLUME_REPORT).await.is_some());
    assert_eq!(simulation.object(REPORT_CONFIG_MAP).await, None);
    assert!(!simulation.metrics().contains("cofferdam_driver_snapshots{"));
}

#[tokio::test(start_paused = true)]
async fn a_requested_deletion_completes_after_a_crash_at_any_step() {
    let mut effects = 1;
    let mut crashes = 0;
    // The first iteration runs without a crash and counts the effects.
    for crash_after in std::iter::once(None).chain((1..=64).map(Some)) {
        if crash_after.is_some_and(|crash_after| crash_after > effects) {
            break;
        }
        let simulation = simulation_with_orphan(SnapshotBehavior::default()).await;
        let actions = [Wait(DAY + 2 * HOUR), request_deletion(&simulation, DAY + 2 * HOUR, "lost")];
        let (_, log) = simulation.run(&actions, crash_after).await;
        let response = response(&simulation).await;
        let result = (response.result, response.message.as_str());
        assert_eq!(response.result, DeletionResult::Deleted, "crash after {crash_after:?}: {result:?}");
        assert_eq!(array_snapshots(&simulation), ["unowned"], "crash after {crash_after:?}");
        let report = report(&simulation).await;
        assert_eq!((report.counts.orphan, report.orphaned_bytes, report.counts.unmanaged()), (0, 0, 1));
        if crash_after.is_some() {
            crashes += 1;
            continue;
        }
        assert_eq!(response.message, "deleted");
        let events = orphan_events(&simulation).await;
        assert!(events.iter().any(|event| event.ends_with(" OrphanDeleted")), "{events:?}");
        effects = log.len();
        let call = log.iter().position(|effect| *effect == Effect::Call("delete handle-lost".to_owned()));
        let written = Effect::Write(format!("PATCH {REPORT_CONFIG_MAP}"));
        let call = call.unwrap();
        assert_eq!(
            (&log[call - 1], &log[call + 1]),
            (&written, &written),
            "ConfigMap writes before and after the call: {log:?}"
        );
    }
    assert!(crashes >= 4, "only {crashes} crashes");
}

struct RefusedCase {
    name: &'static str,
    before: Vec<UserAction>,
    delete_faults: Vec<DriverFault>,
    message: &'static str,
    calls: usize,
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_no_longer_an_orphan_is_not_deleted() {
    let case =
        |name, before, message| RefusedCase { name, before, delete_faults: Vec::new(), message, calls: 0 };
    let refusals = [
        case(
            "an administrator has imported the snapshot",
            vec![Create(content("saved", DRIVER, "handle-lost"))],
            "VolumeSnapshotContent saved references it",
        ),
        case(
            "the cluster was restored",
            vec![Create(restore_marker())],
            "deletions are frozen while ConfigMap default/cofferdam-restored exists",
        ),
        case(
            "an intent of another process cannot be decoded",
            vec![Create(json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("cofferdam-intents-{DRIVER}-0"), "namespace": "default"},
                "data": {"uid-of-a-claim": "{}"},
            }))],
            "the journal has an intent for it",
        ),
        RefusedCase {
            name: "the driver fails",
            before: Vec::new(),
            delete_faults: vec![DriverFault::Refuse(ErrorKind::FailedPrecondition)],
            message: "DeleteSnapshot failed: FailedPrecondition: injected error",
            calls: 1,
        },
    ];
    for RefusedCase { name, before, delete_faults, message, calls } in refusals {
        let behavior = SnapshotBehavior { delete_faults, ..SnapshotBehavior::default() };
        let simulation = simulation_with_orphan(behavior).await;
        simulation.run(&[Wait(DAY + 2 * HOUR)], None).await;
        assert_eq!(handles(&report(&simulation).await), ["handle-lost"], "{name}");
        let mut actions = before;
        actions.extend([Wait(MINUTE), request_deletion(&simulation, MINUTE, "lost")]);
        simulation.run(&actions, None).await;
        let response = response(&simulation).await;
        assert_eq!(response.result, DeletionResult::Refused, "{name}");
        assert!(response.message.contains(message), "{name}: {}", response.message);
        assert_eq!(array_snapshots(&simulation), ["lost", "unowned"], "{name}");
        assert_eq!(simulation.driver().calls().len(), calls, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_content_of_another_driver_with_the_same_handle_is_no_reference() {
    let simulation = simulation_with_orphan(SnapshotBehavior::default()).await;
    let other = Create(content("other", "other.example.com", "handle-lost"));
    let actions = [other, Wait(DAY + 2 * HOUR), request_deletion(&simulation, DAY + 2 * HOUR, "lost")];
    simulation.run(&actions, None).await;
    assert_eq!(response(&simulation).await.result, DeletionResult::Deleted);
    assert_eq!(array_snapshots(&simulation), ["unowned"]);
    assert!(simulation.object(&format!("{CONTENTS}/other")).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_contents_are_read_before_a_deletion() {
    // The second listing of the next process is for the request. The third is after the write of `deleting`.
    for (listings, suffix) in [(1, ""), (2, "; the driver was called before and may have deleted it")] {
        let simulation = simulation_with_orphan(SnapshotBehavior::default()).await;
        simulation.run(&[Wait(DAY + 2 * HOUR)], None).await;
        let import = Create(content("saved", DRIVER, "handle-lost"));
        let mut list_faults = vec![DriverFault::Slow(Duration::ZERO); listings];
        list_faults.push(DriverFault::StaleWatchesThen(Box::new(DriverFault::ConcurrentAction(import))));
        simulation.driver().set_snapshots(SnapshotBehavior { list_faults, ..SnapshotBehavior::default() });
        simulation.run(&[Wait(MINUTE), request_deletion(&simulation, MINUTE, "lost")], None).await;
        let refused = response(&simulation).await;
        assert_eq!(refused.message, format!("VolumeSnapshotContent saved references it{suffix}"));
        assert_eq!(simulation.driver().calls(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_whose_content_is_being_created_is_no_orphan() {
    // The driver takes the snapshot, but every response is lost for two days.
    let create_faults = vec![DriverFault::LostResponse; 2_000];
    let simulation =
        simulation(&Role::ALL, SnapshotBehavior { create_faults, ..SnapshotBehavior::default() });
    let mut actions = take_snapshot();
    actions.push(Wait(2 * DAY));
    simulation.run(&actions, None).await;
    assert_eq!(simulation.driver().snapshots().len(), 1);
    let found = report(&simulation).await;
    let counts = found.counts;
    assert_eq!((counts.referenced, counts.total()), (1, 1), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_with_a_content_is_no_orphan() {
    let simulation = simulation(&Role::ALL, SnapshotBehavior::default());
    let mut actions = take_snapshot();
    actions.push(Wait(2 * DAY));
    simulation.run(&actions, None).await;
    let found = report(&simulation).await;
    assert_eq!((found.counts.referenced, found.counts.total()), (1, 1), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_cannot_list_snapshots_has_no_leak_detection_and_no_deletion() {
    let unsupported = SnapshotBehavior { unsupported: true, ..SnapshotBehavior::default() };
    let list_faults = vec![DriverFault::Refuse(ErrorKind::Unimplemented); 1_000];
    let unlisted = SnapshotBehavior { list_faults, ..SnapshotBehavior::default() };
    for (behavior, message) in
        [(unsupported, "the driver has no `snapshots`"), (unlisted, "the driver does not list snapshots")]
    {
        let simulation = simulation_with_orphan(behavior).await;
        simulation.run(&[Wait(DAY), request_deletion(&simulation, DAY, "lost")], None).await;
        let found = report(&simulation).await;
        assert_eq!(found.leak_detection.to_string(), format!("none: {message}"));
        assert_eq!((found.counts.total(), found.failure), (0, None));
        let refused = response(&simulation).await;
        assert_eq!((refused.result, refused.message.as_str()), (DeletionResult::Refused, message));
        assert_eq!(simulation.driver().calls(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_vanishes_is_not_reported_as_deleted_by_a_typing_error() {
    let simulation = simulation_with_orphan(SnapshotBehavior::default()).await;
    simulation.run(&[Wait(DAY + 2 * HOUR)], None).await;
    simulation.driver().remove_snapshot("lost");
    simulation.run(&[Wait(MINUTE), request_deletion(&simulation, MINUTE, "lost")], None).await;
    let refused = response(&simulation).await;
    let message = "the driver lists no such snapshot";
    assert_eq!((refused.result, refused.message.as_str()), (DeletionResult::Refused, message));

    // After the start of a deletion, it is deleted.
    let request = DeletionRequest {
        handle: "handle-lost".into(),
        requested_at: simulation.now(),
        requested_by: "tester".to_owned(),
    };
    let started = Patch(REPORT_CONFIG_MAP, json!({"data": {"deleting": json!(request).to_string()}}));
    simulation.run(&[started], None).await;
    let deleted = response(&simulation).await;
    let message = "the driver no longer lists it";
    assert_eq!((deleted.result, deleted.message.as_str()), (DeletionResult::Deleted, message));
    assert_eq!(simulation.driver().calls(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_report_shows_the_deletion_freeze_until_it_ends() {
    let simulation = simulation_with_orphan(SnapshotBehavior::default()).await;
    let short = Duration::from_secs(5);
    simulation.run(&[Wait(DAY + 2 * HOUR), Create(restore_marker()), Wait(short)], None).await;
    let frozen = report(&simulation).await;
    assert!(frozen.deletions_frozen, "{frozen:?}");
    assert_eq!(handles(&frozen), ["handle-lost"]);
    simulation.run(&[Wait(short), Delete(RESTORE_MARKER), Wait(short)], None).await;
    assert!(!report(&simulation).await.deletions_frozen);
}

#[tokio::test(start_paused = true)]
async fn a_class_with_a_list_secret_of_a_content_prevents_the_listing() {
    let simulation = simulation_with_orphan(SnapshotBehavior::default()).await;
    let mut class = snapshot_class();
    class["parameters"] = json!({
        "csi.storage.k8s.io/snapshotter-list-secret-name": "${volumesnapshotcontent.name}",
        "csi.storage.k8s.io/snapshotter-list-secret-namespace": "default",
    });
    simulation.run(&[Create(class), Wait(2 * HOUR)], None).await;
    let found = report(&simulation).await;
    let text = found.leak_detection.to_string();
    assert!(text.starts_with("none: VolumeSnapshotClass fast has invalid tokens"), "{text}");
}
