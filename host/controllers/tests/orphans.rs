//! Simulations of the scan for orphaned volumes and of their deletion on request, on paused time. Each run of
//! a simulation starts a new process; the API objects and the volumes of the simulated storage array remain
//! from run to run.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a missing value fails the test")]

use std::time::Duration;

use cofferdam_controllers::{
    Role,
    orphans::report::{DeletionRequest, DeletionResponse, DeletionResult, LeakDetection, ScanReport},
};
use cofferdam_domain::{
    ReclaimPolicy,
    storage::{CapacityRange, CreateVolume, ErrorKind, VolumeOwner},
};
use cofferdam_sim::{
    ArrayVolume, DriverFault, Effect, ListingBehavior, Simulation,
    UserAction::{self, Backup, Create, Delete, Patch, Restore, Settle, Wait},
    objects::{DRIVER, claim, class, restore_marker, volume, with},
};
use serde_json::{Value, json};

const REPORT_CONFIG_MAP: &str = "/api/v1/namespaces/default/configmaps/cofferdam-orphans-sim.cofferdam.dev";
const RESTORE_MARKER: &str = "/api/v1/namespaces/default/configmaps/cofferdam-restored";
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const GIB: u64 = 1 << 30;
const FULL: ListingBehavior = ListingBehavior {
    owners: true,
    change_times: true,
    page_size: 2,
    endless: false,
    published_nodes: false,
};
const UNTIMED: ListingBehavior = ListingBehavior { change_times: false, ..FULL };

fn simulation(
    listing: ListingBehavior,
    list_faults: Vec<DriverFault>,
    delete_faults: Vec<DriverFault>,
) -> Simulation {
    Simulation::with_long_watches(&Role::ALL, Vec::new(), delete_faults).with_listing(listing, list_faults)
}

async fn local_owner(simulation: &Simulation) -> VolumeOwner {
    let namespace = simulation.object("/api/v1/namespaces/kube-system").await.unwrap();
    VolumeOwner {
        cluster_id: namespace["metadata"]["uid"].as_str().unwrap().into(),
        claim_uid: "uid-of-a-lost-claim".into(),
        pv_name: "pvc-lost".into(),
        reclaim_policy: ReclaimPolicy::Delete,
    }
}

/// Adds a volume to the array, with the current time of the simulation as the time of its last change.
fn add_array_volume(simulation: &Simulation, name: &str, owner: Option<VolumeOwner>) {
    simulation.driver().insert(ArrayVolume {
        request: CreateVolume {
            name: name.to_owned(),
            capacity: CapacityRange { required: Some(GIB), limit: None },
            capabilities: Vec::new(),
            parameters: Default::default(),
            mutable_parameters: Default::default(),
            topology: None,
            owner,
            source: None,
        },
        size: GIB,
        changed_at_ms: u64::try_from(simulation.now().as_millisecond()).unwrap(),
        published_nodes: Vec::new(),
    });
}

async fn map(simulation: &Simulation) -> Value {
    simulation.object(REPORT_CONFIG_MAP).await.unwrap()
}

async fn report(simulation: &Simulation) -> ScanReport {
    serde_json::from_str(map(simulation).await["data"]["report"].as_str().unwrap()).unwrap()
}

async fn response(simulation: &Simulation) -> DeletionResponse {
    let map = map(simulation).await;
    assert_eq!(map["data"].get("delete"), None, "a completed request is removed");
    serde_json::from_str(map["data"]["response"].as_str().unwrap()).unwrap()
}

fn handles(report: &ScanReport) -> Vec<&str> {
    report.orphans.iter().map(|orphan| orphan.handle.as_str()).collect()
}

/// A deletion request as `cofferdam orphans delete` writes it. Its time is the simulation's current time plus
/// `after`.
fn request_deletion(simulation: &Simulation, after: Duration, name: &str) -> UserAction {
    let requested_at = simulation.now() + after;
    let request = DeletionRequest {
        handle: format!("handle-{name}").into(),
        requested_at,
        requested_by: "tester".to_owned(),
    };
    Patch(REPORT_CONFIG_MAP, request.patch())
}

fn gauge(metrics: &str, name: &str) -> String {
    let (name, state) = name.split_once('/').unwrap_or((name, ""));
    let state = if state.is_empty() { String::new() } else { format!(",state=\"{state}\"") };
    let labels = format!("{name}{{driver_name=\"{DRIVER}\"{state}}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&labels));
    assert!(line.is_some(), "no {labels}in\n{metrics}");
    line.unwrap().to_owned()
}

async fn orphan_events(simulation: &Simulation) -> Vec<String> {
    let events = simulation.object("/api/v1/events").await.unwrap();
    let items = events["items"].as_array().unwrap().iter();
    let matching = items.filter(|event| event["reason"].as_str().unwrap().starts_with("Orphan"));
    matching
        .map(|event| {
            let field = |pointer: &str| {
                event.pointer(pointer).map_or_else(String::new, |v| v.to_string().replace('"', ""))
            };
            format!(
                "{} {} {} {} x{}",
                field("/involvedObject/kind"),
                field("/involvedObject/name"),
                field("/type"),
                field("/reason"),
                field("/count")
            )
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_leaked_volume_is_reported_once_after_24_hours() {
    for listing in [FULL, UNTIMED] {
        let simulation = simulation(listing, Vec::new(), Vec::new());
        let owner = local_owner(&simulation).await;
        add_array_volume(&simulation, "lost", Some(owner.clone()));
        add_array_volume(
            &simulation,
            "retained",
            Some(VolumeOwner { reclaim_policy: ReclaimPolicy::Retain, ..owner.clone() }),
        );
        add_array_volume(&simulation, "foreign", Some(VolumeOwner { cluster_id: "another".into(), ..owner }));
        add_array_volume(&simulation, "unowned", None);
        simulation
            .run(&[Create(class("gold")), Create(claim("a", "gold")), Wait(DAY - 3 * HOUR)], None)
            .await;
        let recent = report(&simulation).await;
        assert_eq!(
            (recent.counts.referenced, recent.counts.within_grace_period, recent.counts.unmanaged()),
            (1, 1, 3),
            "{recent:?}"
        );
        assert_eq!(recent.leak_detection, LeakDetection::Owner);
        assert_eq!(handles(&recent), [""; 0]);
        assert_eq!(orphan_events(&simulation).await, [""; 0]);

        // Each process starts to observe a driver without change times from the report of its predecessor.
        simulation.run(&[Wait(DAY), Settle, Settle], None).await;
        let old = report(&simulation).await;
        assert_eq!((old.counts.referenced, old.counts.orphan, old.counts.unmanaged()), (1, 1, 3), "{old:?}");
        assert_eq!(handles(&old), ["handle-lost"]);
        assert_eq!((old.orphaned_bytes, old.unlisted_orphans, old.deletions_frozen), (GIB, 0, false));
        let event = format!("ConfigMap cofferdam-orphans-{DRIVER} Warning OrphanedVolumes x1");
        assert_eq!(orphan_events(&simulation).await, [event]);
        let metrics = simulation.metrics();
        assert_eq!(gauge(&metrics, "cofferdam_driver_volumes/orphan"), "1");
        assert_eq!(gauge(&metrics, "cofferdam_orphaned_bytes"), GIB.to_string());
        assert_eq!(gauge(&metrics, "cofferdam_driver_volumes/unmanaged"), "3");
        let scanned: i64 = gauge(&metrics, "cofferdam_orphan_scan_timestamp_seconds").parse().unwrap();
        assert!(simulation.now().as_second() - scanned <= 3_700, "{scanned}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_without_owners_reports_no_leak_detection() {
    let without_owners = ListingBehavior { owners: false, ..FULL };
    let simulation = simulation(without_owners, Vec::new(), Vec::new());
    add_array_volume(&simulation, "lost", Some(local_owner(&simulation).await));
    simulation.run(&[Wait(DAY), request_deletion(&simulation, DAY, "lost")], None).await;
    let found = report(&simulation).await;
    assert_eq!(found.leak_detection.to_string(), "none: the driver reports no owners");
    assert_eq!((found.counts.unmanaged(), found.counts.orphan), (1, 0));
    let refused = response(&simulation).await;
    assert_eq!(refused.result, DeletionResult::Refused);
    assert_eq!(refused.message, "the driver reports no owner for it");
}

#[tokio::test(start_paused = true)]
async fn a_failed_or_endless_listing_keeps_the_previous_report() {
    let broken = vec![DriverFault::Refuse(ErrorKind::Internal)];
    let simulation = simulation(ListingBehavior { page_size: 0, ..FULL }, broken, Vec::new());
    let owner = local_owner(&simulation).await;
    add_array_volume(&simulation, "lost", Some(owner.clone()));
    simulation.run(&[Wait(Duration::from_secs(60))], None).await;
    assert_eq!(report(&simulation).await.failure, None, "the scan is retried within an hour");
    assert_eq!(gauge(&simulation.metrics(), "cofferdam_orphan_scan_errors_total"), "1");
    simulation.run(&[Wait(DAY)], None).await;
    let before = report(&simulation).await;
    assert_eq!(handles(&before), ["handle-lost"]);
    assert_eq!(gauge(&simulation.metrics(), "cofferdam_orphan_scan_errors_total"), "0");

    simulation.driver().set_listing(ListingBehavior { endless: true, ..FULL }, Vec::new());
    simulation.run(&[request_deletion(&simulation, Duration::ZERO, "nowhere")], None).await;
    let after = report(&simulation).await;
    assert_eq!(after.failure.as_ref().unwrap().message, "the listing has not ended after 2000 pages");
    assert_eq!(ScanReport { failure: None, ..after }, before);
    assert!(
        map(&simulation).await["data"].get("delete").is_some(),
        "a request stays pending while the volume cannot be read"
    );
}

async fn simulation_with_orphan(delete_faults: Vec<DriverFault>) -> Simulation {
    let simulation = simulation(FULL, Vec::new(), delete_faults);
    add_array_volume(&simulation, "lost", Some(local_owner(&simulation).await));
    add_array_volume(&simulation, "unowned", None);
    simulation
}

#[tokio::test(start_paused = true)]
async fn a_requested_deletion_completes_after_a_crash_at_any_step() {
    for listing in [FULL, UNTIMED] {
        deletion_completes_after_a_crash_at_any_step(listing).await;
    }
}

async fn deletion_completes_after_a_crash_at_any_step(listing: ListingBehavior) {
    let mut effects = 1;
    let mut crashes = 0;
    // The first iteration runs without a crash and counts the effects.
    for crash_after in std::iter::once(None)
        .chain((1..).map(Some))
        .take_while(|crash_after| crash_after.is_none_or(|crash_after| crash_after <= 64))
    {
        if crash_after.is_some_and(|crash_after| crash_after > effects) {
            break;
        }
        let simulation = simulation_with_orphan(Vec::new()).await;
        simulation.driver().set_listing(listing, Vec::new());
        let wait = DAY + 2 * HOUR;
        let actions = [Wait(wait), request_deletion(&simulation, wait, "lost")];
        let (_, log) = simulation.run(&actions, crash_after).await;
        let response = response(&simulation).await;
        assert_eq!(
            response.result,
            DeletionResult::Deleted,
            "crash after {crash_after:?}: {}",
            response.message
        );
        assert_eq!(response.request.unwrap().requested_by, "tester");
        let remaining: Vec<String> = simulation.driver().volumes().into_keys().collect();
        assert_eq!(remaining, ["unowned"], "crash after {crash_after:?}");
        let report = report(&simulation).await;
        assert_eq!((report.counts.orphan, report.orphaned_bytes, report.counts.unmanaged()), (0, 0, 1));
        if crash_after.is_none() {
            assert_eq!(response.message, "deleted");
            assert_eq!(simulation.driver().calls(), ["delete handle-lost"]);
            let events = orphan_events(&simulation).await;
            let expected_events = ["Normal OrphanDeleted x1", "Warning OrphanedVolumes x1"];
            assert!(
                expected_events.iter().all(|expected| events.iter().any(|event| event.ends_with(expected))),
                "{events:?}"
            );
            assert_eq!(gauge(&simulation.metrics(), "cofferdam_driver_volumes/orphan"), "0");
            effects = log.len();
            let call = log
                .iter()
                .position(|effect| *effect == Effect::Call("delete handle-lost".to_owned()))
                .unwrap();
            let written = Effect::Write(format!("PATCH {REPORT_CONFIG_MAP}"));
            assert_eq!(
                (&log[call - 1], &log[call + 1]),
                (&written, &written),
                "ConfigMap writes before and after the call: {log:?}"
            );
        } else {
            crashes += 1;
        }
    }
    assert!(crashes >= 4, "only {crashes} crashes");
}

#[tokio::test(start_paused = true)]
async fn delete_volume_without_a_response_is_retried() {
    let simulation = simulation_with_orphan(vec![DriverFault::LostRequest, DriverFault::LostResponse]).await;
    simulation.run(&[Wait(DAY + HOUR), request_deletion(&simulation, DAY + HOUR, "lost")], None).await;
    assert_eq!(response(&simulation).await.result, DeletionResult::Deleted);
    assert_eq!(
        simulation.driver().calls(),
        ["delete handle-lost"; 2],
        "after the second call the listing no longer contains the volume"
    );
}

struct RefusedCase {
    name: &'static str,
    before: Vec<UserAction>,
    delete_faults: Vec<DriverFault>,
    message: &'static str,
    calls: usize,
}

fn static_volume() -> Value {
    let csi = json!({"spec": {"csi": {"driver": DRIVER, "volumeHandle": "handle-lost"}}});
    with(volume("saved", "none", "1Gi"), &csi)
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_no_longer_an_orphan_is_not_deleted() {
    let refusals = [
        RefusedCase {
            name: "an operator has imported the volume",
            before: vec![Create(static_volume())],
            delete_faults: Vec::new(),
            message: "PersistentVolume saved references it",
            calls: 0,
        },
        RefusedCase {
            name: "the cluster was restored",
            before: vec![Create(restore_marker())],
            delete_faults: Vec::new(),
            message: "deletions are frozen while ConfigMap default/cofferdam-restored exists",
            calls: 0,
        },
        RefusedCase {
            name: "the driver fails",
            before: Vec::new(),
            delete_faults: vec![DriverFault::Refuse(ErrorKind::FailedPrecondition)],
            message: "DeleteVolume failed: FailedPrecondition: injected error",
            calls: 1,
        },
    ];
    for RefusedCase { name, before, delete_faults, message, calls } in refusals {
        let simulation = simulation_with_orphan(delete_faults).await;
        let mut actions = vec![Wait(DAY + HOUR)];
        actions.extend(before);
        actions.push(request_deletion(&simulation, DAY + HOUR, "lost"));
        simulation.run(&actions, None).await;
        let response = response(&simulation).await;
        assert_eq!(response.result, DeletionResult::Refused, "{name}");
        assert!(response.message.contains(message), "{name}: {}", response.message);
        assert!(simulation.driver().volumes().contains_key("lost"), "{name}");
        assert_eq!(simulation.driver().calls().len(), calls, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pv_created_during_the_listing_prevents_deletion() {
    let minute = Duration::from_secs(60);
    let started_message = "the driver was called before and may have deleted it";
    // The second listing of the next process is for the request. The third is after the write of `deleting`.
    for (listings, suffix) in [(1, String::new()), (2, format!("; {started_message}"))] {
        let simulation = simulation_with_orphan(Vec::new()).await;
        simulation.run(&[Wait(DAY)], None).await;
        assert_eq!(handles(&report(&simulation).await), ["handle-lost"]);
        let mut faults = vec![DriverFault::Slow(Duration::ZERO); listings];
        faults.push(DriverFault::ConcurrentAction(Create(static_volume())));
        simulation.driver().set_listing(FULL, faults);
        simulation.run(&[Wait(minute), request_deletion(&simulation, minute, "lost")], None).await;
        let response = response(&simulation).await;
        assert_eq!(response.message, format!("PersistentVolume saved references it{suffix}"));
        assert_eq!(simulation.driver().calls(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn live_reads_prevent_deletion_when_the_cache_is_stale() {
    for (unwatched_object, message) in [
        (static_volume(), "PersistentVolume saved references it"),
        (restore_marker(), "the cluster was restored from a backup"),
        (unreadable_intent_config_map(), "the journal has an intent for it"),
    ] {
        let simulation = simulation_with_orphan(Vec::new()).await;
        simulation.run(&[Wait(DAY)], None).await;
        let faults = vec![
            DriverFault::Slow(Duration::ZERO),
            DriverFault::StaleWatchesThen(Box::new(DriverFault::ConcurrentAction(Create(unwatched_object)))),
        ];
        simulation.driver().set_listing(FULL, faults);
        let minute = Duration::from_secs(60);
        simulation.run(&[Wait(minute), request_deletion(&simulation, minute, "lost")], None).await;
        let response = response(&simulation).await;
        assert!(response.message.starts_with(message), "{}", response.message);
        assert_eq!(simulation.driver().calls(), [""; 0]);
    }
}

/// The claim may be the one that the volume was created for.
#[tokio::test(start_paused = true)]
async fn an_undecodable_claim_prevents_deletion() {
    let simulation = simulation_with_orphan(Vec::new()).await;
    simulation.run(&[Wait(DAY)], None).await;
    let minute = Duration::from_secs(60);
    let actions = [
        Create(claim("odd", "none")),
        Patch(
            "/api/v1/namespaces/default/persistentvolumeclaims/odd/status",
            json!({"status": {"accessModes": ["Odd"]}}),
        ),
        Wait(minute),
        request_deletion(&simulation, minute, "lost"),
    ];
    simulation.run(&actions, None).await;
    let response = response(&simulation).await;
    let message = "PersistentVolumeClaim default/odd cannot be decoded and may need it";
    assert_eq!((response.result, &*response.message), (DeletionResult::Refused, message));
    assert_eq!(simulation.driver().calls(), [""; 0]);
}

/// A ConfigMap of the intent journal, written by another process. Its intent for the claim of the volume
/// `lost` cannot be decoded, and counts as a reference to the volume.
fn unreadable_intent_config_map() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("cofferdam-intents-{DRIVER}-0"), "namespace": "default"},
        "data": {"uid-of-a-lost-claim": "{}"},
    })
}

/// Adds to the report ConfigMap the entry `deleting` of a process that crashed after it started the deletion.
/// `age` is the time since the request.
fn started_deletion(simulation: &Simulation, age: Duration) -> UserAction {
    let requested_at = simulation.now() - age;
    let request =
        DeletionRequest { handle: "handle-lost".into(), requested_at, requested_by: "tester".to_owned() };
    Patch(REPORT_CONFIG_MAP, json!({"data": {"deleting": json!(request).to_string()}}))
}

#[tokio::test(start_paused = true)]
async fn a_started_deletion_completes_after_the_request_has_expired() {
    enum ChangeAfterStart {
        Unchanged,
        VolumeRemoved,
        VolumeImported,
    }
    for (change, result, message) in [
        (ChangeAfterStart::Unchanged, DeletionResult::Deleted, "deleted"),
        (ChangeAfterStart::VolumeRemoved, DeletionResult::Deleted, "the driver no longer lists it"),
        (
            ChangeAfterStart::VolumeImported,
            DeletionResult::Refused,
            "PersistentVolume saved references it; the driver was called before and may have deleted it",
        ),
    ] {
        let simulation = simulation_with_orphan(Vec::new()).await;
        simulation.run(&[Wait(DAY)], None).await;
        let mut actions = match change {
            ChangeAfterStart::Unchanged => Vec::new(),
            ChangeAfterStart::VolumeRemoved => {
                simulation.driver().remove("lost");
                Vec::new()
            }
            ChangeAfterStart::VolumeImported => vec![Create(static_volume())],
        };
        actions.push(started_deletion(&simulation, DAY));
        simulation.run(&actions, None).await;
        assert_eq!(map(&simulation).await["data"].get("deleting"), None);
        let response = response(&simulation).await;
        assert_eq!((response.result, response.message.as_str()), (result, message));
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_being_deleted_is_no_orphan_and_other_requests_wait() {
    let lost_requests = vec![DriverFault::LostRequest; 200];
    let simulation = simulation_with_orphan(lost_requests).await;
    simulation.run(&[Wait(DAY)], None).await;
    let actions =
        [started_deletion(&simulation, HOUR), request_deletion(&simulation, DAY, "unowned"), Wait(3 * HOUR)];
    simulation.run(&actions, None).await;
    let found = report(&simulation).await;
    assert_eq!((found.counts.referenced, found.counts.orphan), (1, 0), "{found:?}");
    let data = map(&simulation).await["data"].clone();
    assert!(data.get("delete").is_some() && data.get("deleting").is_some(), "{data}");
    assert!(data.get("response").is_none(), "{data}");

    simulation.driver().clear_delete_faults();
    simulation.run(&[Wait(DAY)], None).await;
    assert_eq!(response(&simulation).await.request.unwrap().handle.as_str(), "handle-unowned");
    let remaining: Vec<String> = simulation.driver().volumes().into_keys().collect();
    assert_eq!(remaining, ["unowned"]);
}

#[tokio::test(start_paused = true)]
async fn observed_age_survives_a_restart_and_resets_on_change() {
    let simulation = simulation(UNTIMED, Vec::new(), Vec::new());
    add_array_volume(&simulation, "lost", Some(local_owner(&simulation).await));
    let start = simulation.now();
    let mut since = Vec::new();
    for _ in 0..3 {
        simulation.run(&[Wait(5 * HOUR)], None).await;
        let recent = report(&simulation).await;
        assert_eq!((recent.counts.within_grace_period, recent.counts.orphan), (1, 0), "{recent:?}");
        since.push(recent.within_grace_period[0].since);
    }
    assert!(since[0] <= start + HOUR && since.iter().all(|at| *at == since[0]), "{since:?}");
    simulation.run(&[Wait(7 * HOUR)], None).await;
    let old = report(&simulation).await;
    assert_eq!((handles(&old), old.orphans[0].since), (vec!["handle-lost"], since[0]));

    let mut changed = simulation.driver().volumes()["lost"].clone();
    changed.size *= 2;
    simulation.driver().insert(changed);
    simulation.run(&[Wait(5 * HOUR)], None).await;
    let recent = report(&simulation).await;
    assert_eq!((recent.counts.within_grace_period, recent.counts.orphan), (1, 0), "{recent:?}");
    assert!(recent.within_grace_period[0].since > old.orphans[0].since, "{recent:?}");
}

#[tokio::test(start_paused = true)]
async fn a_driver_without_listing_has_no_leak_detection_and_no_deletion() {
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new()).with_orphan_scan();
    add_array_volume(&simulation, "lost", Some(local_owner(&simulation).await));
    simulation.run(&[Wait(DAY), request_deletion(&simulation, DAY, "lost")], None).await;
    let found = report(&simulation).await;
    assert_eq!(found.leak_detection.to_string(), "none: the driver has no `listing`");
    assert_eq!(found.counts.total(), 0);
    let refused = response(&simulation).await;
    assert_eq!(
        (refused.result, refused.message.as_str()),
        (DeletionResult::Refused, "the driver has no `listing`")
    );
    assert_eq!(simulation.driver().calls(), [""; 0]);
    assert!(!simulation.metrics().contains("cofferdam_driver_volumes{"), "no sample without a listing");
}

#[tokio::test(start_paused = true)]
async fn invalid_deletion_requests_are_refused() {
    for (name, request, message) in [
        ("old", "", "older than 1 hour"),
        ("text", "handle-lost", "the request cannot be decoded"),
        ("young", "", "less than 24 hours ago"),
        ("no owner", "", "no owner"),
        ("typo", "", "the driver lists no such volume"),
    ] {
        let simulation = simulation_with_orphan(Vec::new()).await;
        let (wait, requested_after, volume) = match name {
            "old" => (DAY + 2 * HOUR, DAY, "lost"),
            "young" => (HOUR, HOUR, "lost"),
            "typo" => (DAY + HOUR, DAY + HOUR, "last"),
            _ => (DAY + HOUR, DAY + HOUR, "unowned"),
        };
        let request_action = if request.is_empty() {
            request_deletion(&simulation, requested_after, volume)
        } else {
            Patch(REPORT_CONFIG_MAP, json!({"data": {"delete": request}}))
        };
        simulation.run(&[Wait(wait), request_action], None).await;
        let response = response(&simulation).await;
        assert_eq!(response.result, DeletionResult::Refused, "{name}");
        assert!(response.message.contains(message), "{name}: {}", response.message);
        assert_eq!(response.request.is_none(), name == "text", "{name}");
        assert_eq!(simulation.driver().calls(), [""; 0], "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_with_a_claim_or_intent_are_not_orphans() {
    // The driver creates the volume, but every response is lost for two days.
    let lost = vec![DriverFault::LostResponse; 2_000];
    let simulation = Simulation::new(&Role::ALL, lost, Vec::new()).with_listing(FULL, Vec::new());
    simulation.run(&[Create(class("gold")), Create(claim("a", "gold")), Wait(2 * DAY)], None).await;
    let found = report(&simulation).await;
    assert_eq!(
        (found.counts.referenced, found.counts.orphan, found.counts.within_grace_period),
        (1, 0, 0),
        "{found:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_report_shows_the_deletion_freeze_until_it_ends() {
    let simulation = simulation_with_orphan(Vec::new()).await;
    simulation.run(&[Wait(DAY + HOUR), Create(restore_marker()), Wait(Duration::from_secs(5))], None).await;
    let frozen = report(&simulation).await;
    assert!(frozen.deletions_frozen, "{frozen:?}");
    assert_eq!(handles(&frozen), ["handle-lost"]);
    simulation
        .run(&[Wait(Duration::from_secs(5)), Delete(RESTORE_MARKER), Wait(Duration::from_secs(5))], None)
        .await;
    assert!(!report(&simulation).await.deletions_frozen);
    assert_eq!(orphan_events(&simulation).await.len(), 1, "no event without a new orphan");
}

#[tokio::test(start_paused = true)]
async fn orphans_after_a_restore_are_frozen_until_the_marker_is_deleted() {
    let simulation = simulation(FULL, Vec::new(), Vec::new());
    let actions = [
        Create(class("gold")),
        Wait(HOUR),
        Backup,
        Create(claim("a", "gold")),
        Wait(HOUR),
        Restore,
        Wait(DAY),
    ];
    simulation.run(&actions, None).await;
    let found = report(&simulation).await;
    assert!(found.deletions_frozen && simulation.object(RESTORE_MARKER).await.is_some(), "{found:?}");
    assert_eq!((found.counts.orphan, found.orphans.len()), (1, 1), "{found:?}");
    let handle = found.orphans[0].handle.clone();

    for (before, result) in
        [(Wait(HOUR), DeletionResult::Refused), (Delete(RESTORE_MARKER), DeletionResult::Deleted)]
    {
        let requested_at = simulation.now() + HOUR;
        let request =
            DeletionRequest { handle: handle.clone(), requested_at, requested_by: "tester".to_owned() };
        simulation
            .run(&[before, Wait(Duration::from_secs(60)), Patch(REPORT_CONFIG_MAP, request.patch())], None)
            .await;
        let response = response(&simulation).await;
        assert_eq!(response.result, result, "{}", response.message);
        let refused = result == DeletionResult::Refused;
        assert_eq!(
            response.message.contains("the cluster was restored from a backup"),
            refused,
            "{}",
            response.message
        );
        assert_eq!(simulation.driver().volumes().len(), usize::from(refused));
    }
    assert_eq!(report(&simulation).await.counts.total(), 0);
}
