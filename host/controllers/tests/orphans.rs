//! Orphans from the array to the report, and from a person's request to the array, on paused time.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "what cannot be is a failed test")]

use std::time::Duration;

use cofferdam_controllers::{
    Role,
    orphans::report::{Answer, LeakDetection, Report, Request, Verdict},
};
use cofferdam_domain::{
    ReclaimPolicy,
    storage::{CapacityRange, CreateVolume, ErrorKind, Owner},
};
use cofferdam_sim::{
    ArrayVolume, Effect, Fault, Listing, Simulation,
    UserAction::{self, Backup, Create, Delete, Patch, Restore, Settle, Wait},
    objects::{DRIVER, claim, class, restore_mark, volume, with},
};
use serde_json::{Value, json};

const MAP: &str = "/api/v1/namespaces/default/configmaps/cofferdam-orphans-sim.cofferdam.dev";
const MARK: &str = "/api/v1/namespaces/default/configmaps/cofferdam-restored";
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const GIB: u64 = 1 << 30;
const FULL: Listing = Listing { owners: true, times: true, page: 2, endless: false, nodes: false };
const UNTIMED: Listing = Listing { times: false, ..FULL };

fn simulation(listing: Listing, list_faults: Vec<Fault>, delete_faults: Vec<Fault>) -> Simulation {
    Simulation::new(&Role::ALL, Vec::new(), delete_faults).listing(listing, list_faults)
}

async fn ours(simulation: &Simulation) -> Owner {
    let namespace = simulation.object("/api/v1/namespaces/kube-system").await.unwrap();
    Owner {
        cluster: namespace["metadata"]["uid"].as_str().unwrap().into(),
        claim: "uid-of-a-lost-claim".into(),
        volume: "pvc-lost".into(),
        reclaim_policy: ReclaimPolicy::Delete,
    }
}

/// A volume that stands in the array and changed last when the simulation began.
fn plant(simulation: &Simulation, name: &str, owner: Option<Owner>) {
    simulation.array().plant(ArrayVolume {
        request: CreateVolume {
            name: name.to_owned(),
            capacity: CapacityRange { required: Some(GIB), limit: None },
            capabilities: Vec::new(),
            parameters: Default::default(),
            mutable_parameters: Default::default(),
            topology: None,
            owner,
        },
        size: GIB,
        changed_at_ms: u64::try_from(simulation.now().as_millisecond()).unwrap(),
        published: Vec::new(),
    });
}

async fn map(simulation: &Simulation) -> Value {
    simulation.object(MAP).await.unwrap()
}

async fn report(simulation: &Simulation) -> Report {
    serde_json::from_str(map(simulation).await["data"]["report"].as_str().unwrap()).unwrap()
}

async fn answer(simulation: &Simulation) -> Answer {
    let map = map(simulation).await;
    assert_eq!(map["data"].get("delete"), None, "an answered request goes");
    serde_json::from_str(map["data"]["answer"].as_str().unwrap()).unwrap()
}

fn handles(report: &Report) -> Vec<&str> {
    report.orphans.iter().map(|orphan| orphan.handle.as_str()).collect()
}

/// Asks as `cofferdam orphans delete` does, at a time from the start of the simulation.
fn ask(simulation: &Simulation, after: Duration, name: &str) -> UserAction {
    let requested_at = simulation.now() + after;
    let request = Request { handle: format!("handle-{name}").into(), requested_at, by: "tester".to_owned() };
    Patch(MAP, request.patch())
}

fn gauge(metrics: &str, name: &str) -> String {
    let (name, verdict) = name.split_once('/').unwrap_or((name, ""));
    let verdict = if verdict.is_empty() { String::new() } else { format!(",verdict=\"{verdict}\"") };
    let labels = format!("{name}{{driver_name=\"{DRIVER}\"{verdict}}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&labels));
    assert!(line.is_some(), "no {labels}in\n{metrics}");
    line.unwrap().to_owned()
}

async fn orphan_events(simulation: &Simulation) -> Vec<String> {
    let events = simulation.object("/api/v1/events").await.unwrap();
    let items = events["items"].as_array().unwrap().iter();
    let ours = items.filter(|event| event["reason"].as_str().unwrap().starts_with("Orphan"));
    ours.map(|event| {
        let part = |pointer: &str| {
            event.pointer(pointer).map_or_else(String::new, |v| v.to_string().replace('"', ""))
        };
        format!(
            "{} {} {} {} x{}",
            part("/involvedObject/kind"),
            part("/involvedObject/name"),
            part("/type"),
            part("/reason"),
            part("/count")
        )
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn a_leaked_volume_is_an_orphan_after_a_day_and_told_once() {
    for listing in [FULL, UNTIMED] {
        let simulation = simulation(listing, Vec::new(), Vec::new());
        let owner = ours(&simulation).await;
        plant(&simulation, "lost", Some(owner.clone()));
        plant(&simulation, "kept", Some(Owner { reclaim_policy: ReclaimPolicy::Retain, ..owner.clone() }));
        plant(&simulation, "foreign", Some(Owner { cluster: "another".into(), ..owner }));
        plant(&simulation, "nobodys", None);
        simulation
            .play(&[Create(class("gold")), Create(claim("a", "gold")), Wait(DAY - 3 * HOUR)], None)
            .await;
        let young = report(&simulation).await;
        assert_eq!((young.counts.known, young.counts.young, young.counts.unknown()), (1, 1, 3), "{young:?}");
        assert_eq!(young.leak_detection, LeakDetection::Owner);
        assert_eq!(handles(&young), [""; 0]);
        assert_eq!(orphan_events(&simulation).await, [""; 0]);

        // A driver that tells no times is watched anew by every process.
        simulation.play(&[Wait(DAY), Settle, Settle], None).await;
        let old = report(&simulation).await;
        assert_eq!((old.counts.known, old.counts.orphan, old.counts.unknown()), (1, 1, 3), "{old:?}");
        assert_eq!(handles(&old), ["handle-lost"]);
        assert_eq!((old.orphaned_bytes, old.more, old.held), (GIB, 0, false));
        let told = format!("ConfigMap cofferdam-orphans-{DRIVER} Warning OrphanedVolumes x1");
        assert_eq!(orphan_events(&simulation).await, [told]);
        let metrics = simulation.metrics();
        assert_eq!(gauge(&metrics, "cofferdam_driver_volumes/orphan"), "1");
        assert_eq!(gauge(&metrics, "cofferdam_orphaned_bytes"), GIB.to_string());
        assert_eq!(gauge(&metrics, "cofferdam_driver_volumes/unknown"), "3");
        let scanned: i64 = gauge(&metrics, "cofferdam_orphan_scan_timestamp_seconds").parse().unwrap();
        assert!(simulation.now().as_second() - scanned <= 3_700, "{scanned}");
    }
}

#[tokio::test(start_paused = true)]
async fn drivers_that_cannot_tell_are_reported_so() {
    let keeps_none = Listing { owners: false, ..FULL };
    let simulation = simulation(keeps_none, Vec::new(), Vec::new());
    plant(&simulation, "lost", Some(ours(&simulation).await));
    simulation.play(&[Wait(DAY), ask(&simulation, DAY, "lost")], None).await;
    let found = report(&simulation).await;
    assert_eq!(found.leak_detection.to_string(), "none: the driver keeps no owners");
    assert_eq!((found.counts.unknown(), found.counts.orphan), (1, 0));
    let refused = answer(&simulation).await;
    assert_eq!(refused.verdict, Verdict::Refused);
    assert_eq!(refused.message, "the driver has kept no owner of it");
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_or_never_ends_leaves_the_old_report() {
    let broken = vec![Fault::Refuse(ErrorKind::Internal)];
    let simulation = simulation(Listing { page: 0, ..FULL }, broken, Vec::new());
    let owner = ours(&simulation).await;
    plant(&simulation, "lost", Some(owner.clone()));
    simulation.play(&[Wait(Duration::from_secs(60))], None).await;
    assert_eq!(report(&simulation).await.failure, None, "the next try came before an hour had passed");
    assert_eq!(gauge(&simulation.metrics(), "cofferdam_orphan_scan_errors_total"), "1");
    simulation.play(&[Wait(DAY)], None).await;
    let before = report(&simulation).await;
    assert_eq!(handles(&before), ["handle-lost"]);
    assert_eq!(gauge(&simulation.metrics(), "cofferdam_orphan_scan_errors_total"), "0");

    simulation.array().lists(Listing { endless: true, ..FULL }, Vec::new());
    simulation.play(&[ask(&simulation, Duration::ZERO, "nowhere")], None).await;
    let after = report(&simulation).await;
    assert_eq!(after.failure.as_ref().unwrap().message, "the listing has not ended after 2000 pages");
    assert_eq!(Report { failure: None, ..after }, before);
    assert!(
        map(&simulation).await["data"].get("delete").is_some(),
        "what cannot be looked up is not answered"
    );
}

async fn leaked(delete_faults: Vec<Fault>) -> Simulation {
    let simulation = simulation(FULL, Vec::new(), delete_faults);
    plant(&simulation, "lost", Some(ours(&simulation).await));
    plant(&simulation, "nobodys", None);
    simulation
}

#[tokio::test(start_paused = true)]
async fn one_orphan_goes_when_a_person_asks_wherever_the_process_dies() {
    let mut effects = 1;
    let mut deaths = 0;
    // The first run, without a death, tells how many effects there are.
    for n in std::iter::once(None).chain((1..).map(Some)).take_while(|n| n.is_none_or(|n| n <= 64)) {
        if n.is_some_and(|n| n > effects) {
            break;
        }
        let simulation = leaked(Vec::new()).await;
        let actions = [Wait(DAY + HOUR), ask(&simulation, DAY + HOUR, "lost")];
        let (_, log) = simulation.play(&actions, n).await;
        let answer = answer(&simulation).await;
        assert_eq!(answer.verdict, Verdict::Deleted, "killed after {n:?}: {}", answer.message);
        assert_eq!(answer.request.unwrap().by, "tester");
        let left: Vec<String> = simulation.array().volumes().into_keys().collect();
        assert_eq!(left, ["nobodys"], "killed after {n:?}");
        let report = report(&simulation).await;
        assert_eq!((report.counts.orphan, report.orphaned_bytes, report.counts.unknown()), (0, 0, 1));
        if n.is_none() {
            assert_eq!(answer.message, "deleted");
            assert_eq!(simulation.array().calls(), ["delete handle-lost"]);
            let events = orphan_events(&simulation).await;
            let told = ["Normal OrphanDeleted x1", "Warning OrphanedVolumes x1"];
            assert!(told.iter().all(|told| events.iter().any(|event| event.ends_with(told))), "{events:?}");
            assert_eq!(gauge(&simulation.metrics(), "cofferdam_driver_volumes/orphan"), "0");
            effects = log.len();
            let call = log
                .iter()
                .position(|effect| *effect == Effect::Call("delete handle-lost".to_owned()))
                .unwrap();
            let written = Effect::Write(format!("PATCH {MAP}"));
            assert_eq!(
                (&log[call - 1], &log[call + 1]),
                (&written, &written),
                "before and after it: {log:?}"
            );
        } else {
            deaths += 1;
        }
    }
    assert!(deaths >= 4, "only {deaths} deaths were died");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_does_not_say_how_it_ended_is_asked_again() {
    let simulation = leaked(vec![Fault::LostRequest, Fault::LostAnswer]).await;
    simulation.play(&[Wait(DAY + HOUR), ask(&simulation, DAY + HOUR, "lost")], None).await;
    assert_eq!(answer(&simulation).await.verdict, Verdict::Deleted);
    assert_eq!(
        simulation.array().calls(),
        ["delete handle-lost"; 2],
        "then the listing shows that it is gone"
    );
}

struct Refusal {
    name: &'static str,
    before: Vec<UserAction>,
    delete_faults: Vec<Fault>,
    says: &'static str,
    calls: usize,
}

fn static_volume() -> Value {
    let csi = json!({"spec": {"csi": {"driver": DRIVER, "volumeHandle": "handle-lost"}}});
    with(volume("saved", "none", "1Gi"), &csi)
}

#[tokio::test(start_paused = true)]
async fn what_is_no_orphan_any_more_stays() {
    let refusals = [
        Refusal {
            name: "a person has imported it",
            before: vec![Create(static_volume())],
            delete_faults: Vec::new(),
            says: "PersistentVolume saved stands for it",
            calls: 0,
        },
        Refusal {
            name: "the cluster was restored",
            before: vec![Create(restore_mark())],
            delete_faults: Vec::new(),
            says: "nothing is deleted while ConfigMap default/cofferdam-restored exists",
            calls: 0,
        },
        Refusal {
            name: "the array says no",
            before: Vec::new(),
            delete_faults: vec![Fault::Refuse(ErrorKind::FailedPrecondition)],
            says: "the driver refuses: FailedPrecondition: the array refuses",
            calls: 1,
        },
    ];
    for Refusal { name, before, delete_faults, says, calls } in refusals {
        let simulation = leaked(delete_faults).await;
        let mut actions = vec![Wait(DAY + HOUR)];
        actions.extend(before);
        actions.push(ask(&simulation, DAY + HOUR, "lost"));
        simulation.play(&actions, None).await;
        let answer = answer(&simulation).await;
        assert_eq!(answer.verdict, Verdict::Refused, "{name}");
        assert!(answer.message.contains(says), "{name}: {}", answer.message);
        assert!(simulation.array().volumes().contains_key("lost"), "{name}");
        assert_eq!(simulation.array().calls().len(), calls, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_comes_while_the_driver_lists_saves_the_volume() {
    let minute = Duration::from_secs(60);
    let asked = "the driver was asked before, and may have deleted it";
    // The second listing of the next process is for the request, and the third comes after its beginning was written down.
    for (listings, told) in [(1, String::new()), (2, format!("; {asked}"))] {
        let simulation = leaked(Vec::new()).await;
        simulation.play(&[Wait(DAY)], None).await;
        assert_eq!(handles(&report(&simulation).await), ["handle-lost"]);
        let mut faults = vec![Fault::Slow(Duration::ZERO); listings];
        faults.push(Fault::Meanwhile(Create(static_volume())));
        simulation.array().lists(FULL, faults);
        simulation.play(&[Wait(minute), ask(&simulation, minute, "lost")], None).await;
        let answer = answer(&simulation).await;
        assert_eq!(answer.message, format!("PersistentVolume saved stands for it{told}"));
        assert_eq!(simulation.array().calls(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_no_watch_has_told_is_read_before_anything_is_deleted() {
    for (unseen, says) in [
        (static_volume(), "PersistentVolume saved stands for it"),
        (restore_mark(), "the cluster was restored from a backup"),
        (written_intent(), "the intent journal has an entry for it"),
    ] {
        let simulation = leaked(Vec::new()).await;
        simulation.play(&[Wait(DAY)], None).await;
        let faults =
            vec![Fault::Slow(Duration::ZERO), Fault::Unseen(Box::new(Fault::Meanwhile(Create(unseen))))];
        simulation.array().lists(FULL, faults);
        let minute = Duration::from_secs(60);
        simulation.play(&[Wait(minute), ask(&simulation, minute, "lost")], None).await;
        let answer = answer(&simulation).await;
        assert!(answer.message.starts_with(says), "{}", answer.message);
        assert_eq!(simulation.array().calls(), [""; 0]);
    }
}

/// A page of the journal that another process has written. It cannot be read, and so it cannot be sure what it is about.
fn written_intent() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("cofferdam-intents-{DRIVER}-0"), "namespace": "default"},
        "data": {"uid-of-a-lost-claim": "{}"},
    })
}

/// What a process leaves behind that died after it had begun.
fn begun(simulation: &Simulation, age: Duration) -> UserAction {
    let requested_at = simulation.now() - age;
    let request = Request { handle: "handle-lost".into(), requested_at, by: "tester".to_owned() };
    Patch(MAP, json!({"data": {"deleting": json!(request).to_string()}}))
}

#[tokio::test(start_paused = true)]
async fn what_was_begun_comes_to_an_end_however_late() {
    enum Then {
        Nothing,
        Gone,
        Imported,
    }
    for (then, verdict, message) in [
        (Then::Nothing, Verdict::Deleted, "deleted"),
        (Then::Gone, Verdict::Deleted, "the driver lists it no more"),
        (
            Then::Imported,
            Verdict::Refused,
            "PersistentVolume saved stands for it; the driver was asked before, and may have deleted it",
        ),
    ] {
        let simulation = leaked(Vec::new()).await;
        simulation.play(&[Wait(DAY)], None).await;
        let mut actions = match then {
            Then::Nothing => Vec::new(),
            Then::Gone => {
                simulation.array().remove("lost");
                Vec::new()
            }
            Then::Imported => vec![Create(static_volume())],
        };
        actions.push(begun(&simulation, DAY));
        simulation.play(&actions, None).await;
        assert_eq!(map(&simulation).await["data"].get("deleting"), None);
        let answer = answer(&simulation).await;
        assert_eq!((answer.verdict, answer.message.as_str()), (verdict, message));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_being_deleted_is_no_orphan_and_another_request_waits() {
    let refusing = vec![Fault::LostRequest; 200];
    let simulation = leaked(refusing).await;
    simulation.play(&[Wait(DAY)], None).await;
    let actions = [begun(&simulation, HOUR), ask(&simulation, DAY, "nobodys"), Wait(3 * HOUR)];
    simulation.play(&actions, None).await;
    let found = report(&simulation).await;
    assert_eq!((found.counts.known, found.counts.orphan), (1, 0), "{found:?}");
    let data = map(&simulation).await["data"].clone();
    assert!(data.get("delete").is_some() && data.get("deleting").is_some(), "{data}");
    assert!(data.get("answer").is_none(), "{data}");

    simulation.array().answers_deletes();
    simulation.play(&[Wait(DAY)], None).await;
    assert_eq!(answer(&simulation).await.request.unwrap().handle.as_str(), "handle-nobodys");
    let left: Vec<String> = simulation.array().volumes().into_keys().collect();
    assert_eq!(left, ["nobodys"]);
}

#[tokio::test(start_paused = true)]
async fn the_age_of_what_only_we_watch_survives_the_process_and_not_a_change() {
    let simulation = simulation(UNTIMED, Vec::new(), Vec::new());
    plant(&simulation, "lost", Some(ours(&simulation).await));
    let start = simulation.now();
    let mut since = Vec::new();
    for _ in 0..3 {
        simulation.play(&[Wait(5 * HOUR)], None).await;
        let young = report(&simulation).await;
        assert_eq!((young.counts.young, young.counts.orphan), (1, 0), "{young:?}");
        since.push(young.young[0].since);
    }
    assert!(since[0] <= start + HOUR && since.iter().all(|at| *at == since[0]), "{since:?}");
    simulation.play(&[Wait(7 * HOUR)], None).await;
    let old = report(&simulation).await;
    assert_eq!((handles(&old), old.orphans[0].since), (vec!["handle-lost"], since[0]));

    let mut changed = simulation.array().volumes()["lost"].clone();
    changed.size *= 2;
    simulation.array().plant(changed);
    simulation.play(&[Wait(5 * HOUR)], None).await;
    let young = report(&simulation).await;
    assert_eq!((young.counts.young, young.counts.orphan), (1, 0), "{young:?}");
    assert!(young.young[0].since > old.orphans[0].since, "{young:?}");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_lists_nothing_has_no_leak_detection_and_no_deletion() {
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new()).scanning();
    plant(&simulation, "lost", Some(ours(&simulation).await));
    simulation.play(&[Wait(DAY), ask(&simulation, DAY, "lost")], None).await;
    let found = report(&simulation).await;
    assert_eq!(found.leak_detection.to_string(), "none: the driver has no `listing`");
    assert_eq!(found.counts.total(), 0);
    let refused = answer(&simulation).await;
    assert_eq!(
        (refused.verdict, refused.message.as_str()),
        (Verdict::Refused, "the driver has no `listing`")
    );
    assert_eq!(simulation.array().calls(), [""; 0]);
    assert!(!simulation.metrics().contains("cofferdam_driver_volumes{"), "zero would be a claim");
}

#[tokio::test(start_paused = true)]
async fn requests_that_nobody_should_carry_out_are_refused() {
    for (name, request, says) in [
        ("old", "", "older than an hour"),
        ("text", "handle-lost", "the request cannot be read"),
        ("young", "", "less than 24 hours ago"),
        ("stranger", "", "no owner"),
        ("typo", "", "the driver lists no such volume"),
    ] {
        let simulation = leaked(Vec::new()).await;
        let (wait, asked, volume) = match name {
            "old" => (DAY + 2 * HOUR, DAY, "lost"),
            "young" => (HOUR, HOUR, "lost"),
            "typo" => (DAY + HOUR, DAY + HOUR, "last"),
            _ => (DAY + HOUR, DAY + HOUR, "nobodys"),
        };
        let asking = if request.is_empty() {
            ask(&simulation, asked, volume)
        } else {
            Patch(MAP, json!({"data": {"delete": request}}))
        };
        simulation.play(&[Wait(wait), asking], None).await;
        let answer = answer(&simulation).await;
        assert_eq!(answer.verdict, Verdict::Refused, "{name}");
        assert!(answer.message.contains(says), "{name}: {}", answer.message);
        assert_eq!(answer.request.is_none(), name == "text", "{name}");
        assert_eq!(simulation.array().calls(), [""; 0], "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn claims_and_intents_speak_for_their_volumes() {
    // The driver made the volume and says for two days that it did not.
    let lost = vec![Fault::LostAnswer; 2_000];
    let simulation = Simulation::new(&Role::ALL, lost, Vec::new()).listing(FULL, Vec::new());
    simulation.play(&[Create(class("gold")), Create(claim("a", "gold")), Wait(2 * DAY)], None).await;
    let found = report(&simulation).await;
    assert_eq!((found.counts.known, found.counts.orphan, found.counts.young), (1, 0, 0), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn the_report_tells_of_a_restore_and_of_its_end() {
    let simulation = leaked(Vec::new()).await;
    simulation.play(&[Wait(DAY + HOUR), Create(restore_mark()), Wait(Duration::from_secs(5))], None).await;
    let held = report(&simulation).await;
    assert!(held.held, "{held:?}");
    assert_eq!(handles(&held), ["handle-lost"]);
    simulation.play(&[Wait(Duration::from_secs(5)), Delete(MARK), Wait(Duration::from_secs(5))], None).await;
    assert!(!report(&simulation).await.held);
    assert_eq!(orphan_events(&simulation).await.len(), 1, "nothing new to tell");
}

#[tokio::test(start_paused = true)]
async fn what_a_restore_makes_look_abandoned_is_shown_and_locked_until_a_person_has_looked() {
    let simulation = simulation(FULL, Vec::new(), Vec::new());
    let user = [
        Create(class("gold")),
        Wait(HOUR),
        Backup,
        Create(claim("a", "gold")),
        Wait(HOUR),
        Restore,
        Wait(DAY),
    ];
    simulation.play(&user, None).await;
    let found = report(&simulation).await;
    assert!(found.held && simulation.object(MARK).await.is_some(), "{found:?}");
    assert_eq!((found.counts.orphan, found.orphans.len()), (1, 1), "{found:?}");
    let handle = found.orphans[0].handle.clone();

    for (before, verdict) in [(Wait(HOUR), Verdict::Refused), (Delete(MARK), Verdict::Deleted)] {
        let requested_at = simulation.now() + HOUR;
        let request = Request { handle: handle.clone(), requested_at, by: "tester".to_owned() };
        simulation.play(&[before, Wait(Duration::from_secs(60)), Patch(MAP, request.patch())], None).await;
        let answer = answer(&simulation).await;
        assert_eq!(answer.verdict, verdict, "{}", answer.message);
        let refused = verdict == Verdict::Refused;
        assert_eq!(
            answer.message.contains("the cluster was restored from a backup"),
            refused,
            "{}",
            answer.message
        );
        assert_eq!(simulation.array().volumes().len(), usize::from(refused));
    }
    assert_eq!(report(&simulation).await.counts.total(), 0);
}
