//! Leader election: two candidates, a holder that dies, a slow API server, a Lease that a person edits.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cofferdam_apiserver::ApiServer;
use cofferdam_cluster::{
    Clock,
    api::ApiClient,
    campaign::Campaign,
    journal::LostJournals,
    leader_election::{InvalidLeaseDurations, LeaderElector, LeaseCandidate, LeaseDurations, LeaseLost},
    metrics::Metrics,
};
use cofferdam_domain::term::{BootClock, PermitSource as _};
use common::{FaultyApi, WriteFault, api, call, get};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/storage/leases/driver-example";
const LEASE_DURATION: Duration = Duration::from_secs(15);

fn clock() -> Clock {
    let started = Instant::now();
    Arc::new(move || {
        let passed = i64::try_from(started.elapsed().as_secs()).unwrap();
        jiff::Timestamp::from_second(1_767_225_600 + passed).unwrap()
    })
}

fn candidate(identity: &str) -> LeaseCandidate {
    LeaseCandidate {
        namespace: "storage".to_owned(),
        name: "driver-example".to_owned(),
        identity: identity.to_owned(),
        labels: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
        durations: LeaseDurations::default(),
    }
}

fn elector(wire: &FaultyApi, identity: &str) -> LeaderElector {
    let api = ApiClient::new(wire.client(), Metrics::default());
    LeaderElector::new(api, clock(), Metrics::default(), candidate(identity))
}

async fn api_with_namespace() -> ApiServer {
    let api = api();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "storage"}});
    let (status, _) = call(&api, Method::POST, "/api/v1/namespaces", namespace).await;
    assert_eq!(status, StatusCode::CREATED);
    api
}

async fn lease(api: &ApiServer) -> Value {
    get(api, LEASE).await
}

async fn patch_spec(api: &ApiServer, spec: Value) {
    let (status, _) = call(api, Method::PATCH, LEASE, json!({"spec": spec})).await;
    assert_eq!(status, StatusCode::OK);
}

/// Event messages in the namespace of the Lease.
async fn events(api: &ApiServer) -> Vec<String> {
    let events = get(api, "/api/v1/namespaces/storage/events").await;
    let messages = events["items"].as_array().unwrap().iter();
    messages.map(|event| format!("{} {}", event["reason"], event["message"]).replace('"', "")).collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_candidate_leads_and_the_second_waits() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let (mut first, mut second) = (elector(&wire, "first"), elector(&wire, "second"));
    first.acquire().await.unwrap();
    let acquired = lease(&api).await;
    assert_eq!(acquired["spec"]["holderIdentity"], "first");
    assert_eq!(acquired["spec"]["leaseDurationSeconds"], 15);
    assert_eq!(acquired["spec"]["leaseTransitions"], 0);
    assert_eq!(acquired["metadata"]["labels"]["team"], "a");
    tokio::select! {
        lost = first.renew() => panic!("{lost}"),
        _ = second.acquire() => panic!("two leaders"),
        () = sleep(Duration::from_secs(600)) => {}
    }
    let renewed = lease(&api).await;
    assert_eq!(renewed["spec"]["acquireTime"], acquired["spec"]["acquireTime"]);
    assert_ne!(renewed["spec"]["renewTime"], acquired["spec"]["renewTime"]);
    assert_eq!(renewed["spec"]["leaseTransitions"], 0);
    let version =
        |lease: &Value| lease["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    // Of the API server, by both candidates: one write each 5 s, and the event.
    let writes = version(&renewed) - version(&acquired);
    assert!((115..=121).contains(&writes), "{writes} writes in 600 s");
    assert_eq!(events(&api).await, ["LeaderElection first became leader"]);
}

#[tokio::test(start_paused = true)]
async fn the_second_candidate_takes_the_lease_after_its_duration() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    elector(&wire, "first").acquire().await.unwrap();
    let mut second = elector(&wire, "second");
    let started = Instant::now();
    second.acquire().await.unwrap();
    // The watch, and no retry period, ends the wait.
    let waited = started.elapsed();
    assert!((LEASE_DURATION..LEASE_DURATION + Duration::from_secs(1)).contains(&waited), "{waited:?}");
    let lease = lease(&api).await;
    assert_eq!(lease["spec"]["holderIdentity"], "second");
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_candidate_for_two_leases_takes_both_after_one_duration() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let campaign = |identity: &str| {
        let electors = ["driver-example", "external-attacher-driver-example"].map(|name| {
            let candidate = LeaseCandidate { name: name.to_owned(), ..candidate(identity) };
            let api = ApiClient::new(wire.client(), Metrics::default());
            LeaderElector::new(api, clock(), Metrics::default(), candidate)
        });
        Campaign::new(BTreeSet::new(), electors.into())
    };
    let (first, second) = (campaign("first"), campaign("second"));
    let (mut first_leads, mut second_leads) = (first.leadership(), second.leadership());
    let first = tokio::spawn(first.run(watch::channel(LostJournals::new()).1));
    first_leads.wait_term().await;
    let second = tokio::spawn(second.run(watch::channel(LostJournals::new()).1));
    // The second candidate has waited for longer than a duration when the first one dies.
    sleep(Duration::from_secs(60)).await;
    first.abort();
    let died = Instant::now();
    second_leads.wait_term().await;
    let waited = died.elapsed();
    assert!(waited <= LEASE_DURATION + Duration::from_secs(1), "{waited:?}");
    second.abort();
}

#[tokio::test(start_paused = true)]
async fn an_only_owner_does_not_wait_for_a_holder_that_lives() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let mut first = elector(&wire, "first");
    first.acquire().await.unwrap();
    let mut second = elector(&wire, "second").as_only_owner();
    let started = Instant::now();
    let in_use = tokio::select! {
        lost = first.renew() => panic!("{lost}"),
        acquired = second.acquire() => acquired.unwrap_err(),
    };
    assert_eq!(in_use.to_string(), "lease storage/driver-example: \"first\" renews it");
    assert!(started.elapsed() <= Duration::from_secs(6), "{:?}", started.elapsed());
    // The holder has died, and then a person edits the Lease.
    let edit = async {
        sleep(Duration::from_secs(5)).await;
        let labels = json!({"metadata": {"labels": {"team": "b"}}});
        assert_eq!(call(&api, Method::PATCH, LEASE, labels).await.0, StatusCode::OK);
        patch_spec(&api, json!({"leaseDurationSeconds": 16})).await;
    };
    let (acquired, ()) = tokio::join!(second.acquire(), edit);
    assert_eq!(acquired, Ok(()));
    assert!(started.elapsed() >= LEASE_DURATION, "{:?}", started.elapsed());
    assert_eq!(lease(&api).await["spec"]["holderIdentity"], "second");
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_at_the_next_attempt() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let mut first = elector(&wire, "first");
    first.acquire().await.unwrap();
    first.release().await;
    assert_eq!(lease(&api).await["spec"]["holderIdentity"], "");
    let started = Instant::now();
    elector(&wire, "second").acquire().await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(events(&api).await.contains(&"LeaderElection first stopped leading".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_never_led_releases_nothing() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let (mut first, mut second) = (elector(&wire, "first"), elector(&wire, "second"));
    first.acquire().await.unwrap();
    assert!(timeout(Duration::from_secs(6), second.acquire()).await.is_err());
    let before = lease(&api).await;
    second.release().await;
    assert_eq!(lease(&api).await, before);
    assert_eq!(events(&api).await, ["LeaderElection first became leader"]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_before_another_candidate_can_lead() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let mut first = elector(&wire, "first");
    first.acquire().await.unwrap();
    let started = Instant::now();
    wire.faults.lock().unwrap().extend(vec![WriteFault::Refused(StatusCode::SERVICE_UNAVAILABLE); 100]);
    let lost = first.renew().await;
    assert!(matches!(lost, LeaseLost::NotRenewed { .. }), "{lost}");
    assert!(started.elapsed() <= LeaseDurations::default().renew_deadline, "{:?}", started.elapsed());
    assert!(lost.to_string().contains("storage/driver-example"), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_responses_are_lost_or_late_leads_on() {
    let api = api_with_namespace().await;
    let wire = FaultyApi { delay: Duration::from_secs(2), ..FaultyApi::new(&api) };
    let mut first = elector(&wire, "first");
    wire.faults.lock().unwrap().push_back(WriteFault::ResponseLost);
    first.acquire().await.unwrap();
    wire.faults.lock().unwrap().push_back(WriteFault::ResponseLost);
    let ended = timeout(Duration::from_secs(300), first.renew()).await;
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(lease(&api).await["spec"]["leaseTransitions"], 0);
}

/// With the default durations, renewals that fail for 9 of the 10 s end no term.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_renewals_fail_for_a_while_leads_on() {
    let refused = |status, times| vec![WriteFault::Refused(status); times];
    for faults in [
        refused(StatusCode::SERVICE_UNAVAILABLE, 1),
        refused(StatusCode::CONFLICT, 1),
        refused(StatusCode::TOO_MANY_REQUESTS, 4),
        vec![WriteFault::ResponseLost],
    ] {
        let api = api_with_namespace().await;
        let wire = FaultyApi::new(&api);
        let mut first = elector(&wire, "first");
        first.acquire().await.unwrap();
        // The event of the acquisition is sent.
        sleep(Duration::from_secs(1)).await;
        let text = format!("{faults:?}");
        wire.faults.lock().unwrap().extend(faults);
        let ended = timeout(Duration::from_secs(60), first.renew()).await;
        assert!(ended.is_err(), "{text}: {ended:?}");
        assert!(wire.faults.lock().unwrap().is_empty(), "{text}");
    }
}

/// The standby sees renewals by the change of `renewTime`.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_clock_stands_still_or_goes_back_leads_on() {
    for step in [0, -1, -3_600] {
        let api = api_with_namespace().await;
        let wire = FaultyApi::new(&api);
        let reads = AtomicU64::new(0);
        let clock: Clock = Arc::new(move || {
            let read = i64::try_from(reads.fetch_add(1, Ordering::SeqCst)).unwrap();
            jiff::Timestamp::from_second(1_767_225_600 + read * step).unwrap()
        });
        let client = ApiClient::new(wire.client(), Metrics::default());
        let mut first = LeaderElector::new(client, clock, Metrics::default(), candidate("first"));
        first.acquire().await.unwrap();
        let mut second = elector(&wire, "second");
        tokio::select! {
            lost = first.renew() => panic!("{step}: {lost}"),
            _ = second.acquire() => panic!("{step}: two leaders"),
            () = sleep(Duration::from_secs(120)) => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_created_by_its_holder_while_a_standby_waits() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let (mut first, mut second) = (elector(&wire, "first"), elector(&wire, "second"));
    first.acquire().await.unwrap();
    let delete = async {
        for _ in 0..3 {
            sleep(Duration::from_secs(12)).await;
            call(&api, Method::DELETE, LEASE, Value::Null).await;
        }
        sleep(Duration::from_secs(12)).await;
    };
    tokio::select! {
        lost = first.renew() => panic!("{lost}"),
        _ = second.acquire() => panic!("two leaders"),
        () = delete => {}
    }
    assert_eq!(lease(&api).await["spec"]["holderIdentity"], "first");
    // A stranger holds it for an hour, and a person deletes it.
    patch_spec(&api, json!({"holderIdentity": "stranger", "leaseDurationSeconds": 3600})).await;
    let mut third = elector(&wire, "third");
    assert!(timeout(Duration::from_secs(20), third.acquire()).await.is_err());
    call(&api, Method::DELETE, LEASE, Value::Null).await;
    assert!(timeout(Duration::from_secs(20), third.acquire()).await.is_ok());
    third.release().await;
    assert!(timeout(Duration::from_secs(20), first.acquire()).await.is_ok());
    tokio::select! {
        lost = first.renew() => panic!("{lost}"),
        _ = second.acquire() => panic!("two leaders"),
        () = sleep(Duration::from_secs(12)) => {}
    }
    // The holder dies after the deletion.
    call(&api, Method::DELETE, LEASE, Value::Null).await;
    let deleted = Instant::now();
    second.acquire().await.unwrap();
    assert!(deleted.elapsed() <= LEASE_DURATION, "{:?}", deleted.elapsed());
    assert_eq!(lease(&api).await["spec"]["holderIdentity"], "second");
}

/// The API server is slow meanwhile, refuses requests and loses responses.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_is_deleted_under_load_works_on_without_a_gap() {
    let api = api_with_namespace().await;
    let wire = FaultyApi { delay: Duration::from_millis(200), ..FaultyApi::new(&api) };
    let other_wire = FaultyApi::new(&api);
    let started = Instant::now();
    let campaign = |wire: &FaultyApi, identity: &str| {
        let elector = elector(wire, identity).with_boot_clock(Arc::new(move || started.elapsed()));
        Campaign::new(BTreeSet::new(), vec![elector])
    };
    let (first, second) = (campaign(&wire, "first"), campaign(&other_wire, "second"));
    let (mut first_leads, mut second_leads) = (first.leadership(), second.leadership());
    let first = tokio::spawn(first.run(watch::channel(LostJournals::new()).1));
    let term = first_leads.wait_term().await;
    let second = tokio::spawn(second.run(watch::channel(LostJournals::new()).1));
    let faults = [
        None,
        Some(WriteFault::Refused(StatusCode::TOO_MANY_REQUESTS)),
        None,
        Some(WriteFault::ResponseLost),
        None,
        Some(WriteFault::Refused(StatusCode::CONFLICT)),
    ];
    let delete = async {
        let mut deletions = 0;
        for fault in faults.into_iter().cycle().take(60) {
            // Renewals are 5 s apart: each deletion is at another moment between two.
            sleep(Duration::from_millis(3_700)).await;
            wire.faults.lock().unwrap().extend(fault);
            let (status, _) = call(&api, Method::DELETE, LEASE, Value::Null).await;
            deletions += usize::from(status == StatusCode::OK);
        }
        sleep(Duration::from_secs(12)).await;
        deletions
    };
    let work = async {
        loop {
            assert!(term.term().permit().is_ok(), "at {:?}", started.elapsed());
            sleep(Duration::from_millis(50)).await;
        }
    };
    let deletions = tokio::select! {
        () = work => unreachable!("it does not end"),
        _ = second_leads.wait_term() => panic!("two leaders"),
        deletions = delete => deletions,
    };
    assert!(deletions > 30, "{deletions} deletions");
    assert_eq!(lease(&api).await["spec"]["holderIdentity"], "first");
    first.abort();
    second.abort();
}

/// Calls of the former leader may still run at a driver: the Lease is not released, and ends after its
/// duration.
#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_does_not_release_its_lease() {
    let api = api_with_namespace().await;
    let (wire, other_wire) = (FaultyApi::new(&api), FaultyApi::new(&api));
    let campaign =
        |wire: &FaultyApi, identity: &str| Campaign::new(BTreeSet::new(), vec![elector(wire, identity)]);
    let first = campaign(&wire, "first");
    let mut first_leads = first.leadership();
    let first = tokio::spawn(first.run(watch::channel(LostJournals::new()).1));
    let term = first_leads.wait_term().await;
    sleep(Duration::from_secs(6)).await;
    let renewed = Instant::now();
    let second = campaign(&other_wire, "second");
    let mut second_leads = second.leadership();
    let second = tokio::spawn(second.run(watch::channel(LostJournals::new()).1));
    wire.faults.lock().unwrap().extend(vec![WriteFault::Refused(StatusCode::SERVICE_UNAVAILABLE); 100]);
    // The API server answers again a moment before the end of the term, but after the last attempt.
    sleep(Duration::from_millis(8_950)).await;
    wire.faults.lock().unwrap().clear();
    term.wait_end().await;
    wire.faults.lock().unwrap().extend(vec![WriteFault::Refused(StatusCode::FORBIDDEN); 100]);
    assert_eq!(lease(&api).await["spec"]["holderIdentity"], "first");
    second_leads.wait_term().await;
    assert!(renewed.elapsed() >= LEASE_DURATION - Duration::from_secs(1), "{:?}", renewed.elapsed());
    first.abort();
    second.abort();
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_a_stranger_replaced_stops() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let mut first = elector(&wire, "first");
    first.acquire().await.unwrap();
    patch_spec(&api, json!({"holderIdentity": "stranger", "leaseDurationSeconds": 3600})).await;
    let lost = first.renew().await;
    let lease = "storage/driver-example".to_owned();
    assert_eq!(lost, LeaseLost::Taken { lease, holder: "stranger".to_owned() });
    first.health().check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_edited_lease_is_repaired() {
    for spec in [
        json!({"holderIdentity": null}),
        json!({"holderIdentity": ""}),
        json!({"holderIdentity": "gone", "leaseDurationSeconds": null}),
        json!({"holderIdentity": "gone", "leaseDurationSeconds": 1, "renewTime": null, "acquireTime": null}),
        json!(null),
    ] {
        let api = api_with_namespace().await;
        let wire = FaultyApi::new(&api);
        elector(&wire, "first").acquire().await.unwrap();
        patch_spec(&api, spec.clone()).await;
        let mut second = elector(&wire, "second");
        assert!(timeout(Duration::from_secs(30), second.acquire()).await.is_ok(), "{spec}");
        let lease = lease(&api).await;
        assert_eq!(lease["spec"]["holderIdentity"], "second", "{spec}");
        assert_eq!(lease["spec"]["leaseDurationSeconds"], 15, "{spec}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_is_unhealthy_when_its_lease_has_ended_long_ago() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let mut first = elector(&wire, "first");
    let health = first.health();
    health.check().unwrap();
    first.acquire().await.unwrap();
    sleep(LEASE_DURATION + Duration::from_secs(20)).await;
    health.check().unwrap();
    sleep(Duration::from_secs(1)).await;
    let error = health.check().unwrap_err().to_string();
    assert!(error.starts_with("failed election to renew leadership on lease"), "{error}");
    first.release().await;
    health.check().unwrap();
}

/// The elector loses the Lease with an error that contains `expected`, before its next renewal is due twice.
async fn assert_lost(elector: &mut LeaderElector, expected: &str) {
    let lost = timeout(Duration::from_secs(30), elector.renew()).await.unwrap().to_string();
    assert!(lost.contains("storage/driver-example") && lost.contains(expected), "{lost}");
    elector.health().check().unwrap();
}

const SAME_IDENTITY: &str = "another process with the identity \"same\" holds it";

#[tokio::test(start_paused = true)]
async fn of_two_processes_with_one_identity_one_leads() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let (mut first, mut second) = (elector(&wire, "same"), elector(&wire, "same"));
    first.acquire().await.unwrap();
    tokio::select! {
        lost = first.renew() => panic!("{lost}"),
        _ = second.acquire() => panic!("two leaders"),
        () = sleep(Duration::from_secs(602)) => {}
    }
    // The Lease is deleted, and a process that has not seen it creates it first.
    call(&api, Method::DELETE, LEASE, Value::Null).await;
    elector(&wire, "same").acquire().await.unwrap();
    assert_lost(&mut first, SAME_IDENTITY).await;
    let started = Instant::now();
    elector(&wire, "same").acquire().await.unwrap();
    assert!(started.elapsed() >= LEASE_DURATION, "as from any other holder: {:?}", started.elapsed());
    assert_eq!(lease(&api).await["spec"]["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_response_is_not_the_lease_of_another_process_with_the_identity() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let durations = LeaseDurations { retry_period: Duration::from_secs(2), ..LeaseDurations::default() };
    let candidate = LeaseCandidate { durations, ..candidate("same") };
    let client = ApiClient::new(wire.client(), Metrics::default());
    let mut first = LeaderElector::new(client, clock(), Metrics::default(), candidate);
    let lose_response = || wire.faults.lock().unwrap().push_back(WriteFault::ResponseLost);
    lose_response();
    let started = Instant::now();
    first.acquire().await.unwrap();
    assert!(started.elapsed() < LEASE_DURATION, "its own Lease: {:?}", started.elapsed());
    assert_eq!(lease(&api).await["spec"]["leaseTransitions"], 0);
    let lose_two = async {
        for second in [11, 13] {
            sleep(Duration::from_secs(second)).await;
            lose_response();
        }
        sleep(Duration::from_secs(31)).await;
    };
    tokio::select! {
        lost = first.renew() => panic!("{lost}"),
        () = lose_two => {}
    }
    // The response is lost, and another process with the identity replaces the Lease.
    lose_response();
    let time = "2026-01-01T01:00:00.000000Z";
    let replace = async {
        sleep(Duration::from_secs(3)).await;
        assert!(wire.faults.lock().unwrap().is_empty());
        patch_spec(&api, json!({"acquireTime": time, "renewTime": time})).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = assert_lost(&mut first, SAME_IDENTITY) => {}
        () = replace => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_repairs_or_gives_up_an_edited_lease() {
    for (spec, lost) in [
        (json!({"leaseDurationSeconds": 3600, "leaseTransitions": null}), None),
        (json!({"holderIdentity": ""}), None),
        (json!({"strategy": "OldestEmulationVersion"}), None),
        (json!({"strategy": "example.com/oldest", "preferredHolder": "stranger"}), None),
        (json!({"holderIdentity": "stranger", "leaseDurationSeconds": 1}), Some("\"stranger\" holds it now")),
        (
            json!({"holderIdentity": "stranger", "leaseDurationSeconds": i32::MAX}),
            Some("\"stranger\" holds it"),
        ),
        (json!({"renewTime": null}), Some("another process with the identity \"first\"")),
    ] {
        let api = api_with_namespace().await;
        let wire = FaultyApi::new(&api);
        let mut first = elector(&wire, "first");
        first.acquire().await.unwrap();
        patch_spec(&api, spec.clone()).await;
        match lost {
            Some(expected) => assert_lost(&mut first, expected).await,
            None => {
                let ended = timeout(Duration::from_secs(60), first.renew()).await;
                assert!(ended.is_err(), "{spec}: {ended:?}");
                assert_eq!(lease(&api).await["spec"]["leaseDurationSeconds"], 15, "{spec}");
                assert_eq!(lease(&api).await["spec"]["holderIdentity"], "first", "{spec}");
                for name in ["strategy", "preferredHolder"] {
                    assert_eq!(
                        lease(&api).await["spec"][name],
                        spec[name],
                        "{spec}: it is not this process's"
                    );
                }
            }
        }
    }
}

/// kube-apiserver rejects a negative duration. Another API server may return one.
#[tokio::test(start_paused = true)]
async fn a_negative_duration_is_none() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let read_spec = |fields: Value| *wire.read_spec.lock().unwrap() = Some(fields);
    let mut first = elector(&wire, "first");
    first.acquire().await.unwrap();
    read_spec(json!({"leaseDurationSeconds": -1}));
    let ended = timeout(Duration::from_secs(62), first.renew()).await;
    assert!(ended.is_err(), "its own Lease: {ended:?}");
    read_spec(json!({"leaseDurationSeconds": -1, "holderIdentity": "stranger"}));
    assert_lost(&mut first, "\"stranger\" holds it now").await;
    let started = Instant::now();
    elector(&wire, "second").acquire().await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_leader_creates_a_deleted_lease_unless_another_process_did() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let mut first = elector(&wire, "first");
    first.acquire().await.unwrap();
    call(&api, Method::DELETE, LEASE, Value::Null).await;
    let ended = timeout(Duration::from_secs(62), first.renew()).await;
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(lease(&api).await["spec"]["holderIdentity"], "first");
    call(&api, Method::DELETE, LEASE, Value::Null).await;
    elector(&wire, "second").acquire().await.unwrap();
    assert_lost(&mut first, "\"second\" holds it now").await;
}

/// kube-apiserver rejects a number as the holder. Another API server may return one.
#[tokio::test(start_paused = true)]
async fn an_undecodable_lease_is_reported_and_read_again() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let mut first = elector(&wire, "first");
    first.acquire().await.unwrap();
    *wire.read_spec.lock().unwrap() = Some(json!({"holderIdentity": 5}));
    assert_lost(&mut first, "Lease storage/driver-example").await;

    // Ten minutes of attempts: about one each retry period.
    let gets = || *wire.gets.lock().unwrap();
    let (mut second, before) = (elector(&wire, "second"), gets());
    let waited = timeout(Duration::from_secs(600), second.acquire()).await;
    assert!(waited.is_err() && (50..=120).contains(&(gets() - before)), "{}", gets() - before);
    *wire.read_spec.lock().unwrap() = None;
    assert!(timeout(Duration::from_secs(60), second.acquire()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_candidate_waits_for_permission_and_for_a_stranger() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let mut first = elector(&wire, "first");
    // kube-apiserver answers 401 to a client certificate or a token that has expired.
    for status in [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN] {
        wire.faults.lock().unwrap().extend(vec![WriteFault::Refused(status); 60]);
        let waited = timeout(Duration::from_secs(240), first.acquire()).await;
        assert!(waited.is_err());
        let sent = 60 - wire.faults.lock().unwrap().len();
        assert!((20..=48).contains(&sent), "{sent} requests");
        wire.faults.lock().unwrap().clear();
        assert!(timeout(Duration::from_secs(12), first.acquire()).await.is_ok());
        first.release().await;
    }
    assert!(timeout(Duration::from_secs(12), first.acquire()).await.is_ok());

    wire.faults.lock().unwrap().extend(vec![WriteFault::Refused(StatusCode::FORBIDDEN); 60]);
    assert_lost(&mut first, "in trouble").await;
    wire.faults.lock().unwrap().clear();

    patch_spec(&api, json!({"holderIdentity": "stranger", "leaseDurationSeconds": i32::MAX})).await;
    let mut second = elector(&wire, "second");
    assert!(timeout(Duration::from_secs(86_400), second.acquire()).await.is_err());
    patch_spec(&api, json!({"leaseDurationSeconds": 1})).await;
    assert!(timeout(Duration::from_secs(30), second.acquire()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_candidate_leads_soon_after_an_outage() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let mut first = elector(&wire, "first");
    wire.faults.lock().unwrap().extend(vec![WriteFault::Refused(StatusCode::SERVICE_UNAVAILABLE); 100]);
    assert!(timeout(Duration::from_secs(20), first.acquire()).await.is_err());
    let sent = 100 - wire.faults.lock().unwrap().len();
    assert!((9..=20).contains(&sent), "{sent} requests");
    let acquiring = tokio::spawn(async move { first.acquire().await });
    sleep(Duration::from_secs(20)).await;
    wire.faults.lock().unwrap().clear();
    assert!(timeout(Duration::from_millis(2_200), acquiring).await.is_ok());
}

#[test]
fn durations_that_do_not_fit_are_rejected() {
    let seconds = Duration::from_secs;
    let durations = |lease, renew, retry| LeaseDurations {
        lease_duration: lease,
        renew_deadline: renew,
        retry_period: retry,
    };
    LeaseDurations::default().validate().unwrap();
    let table = [
        (
            durations(Duration::from_millis(999), Duration::from_millis(500), Duration::from_millis(100)),
            "lease duration",
        ),
        (durations(seconds(10), seconds(10), seconds(5)), "more than the renew deadline"),
        (durations(seconds(15), seconds(6), seconds(5)), "more than 1.2 retry periods"),
    ];
    for (durations, expected) in table {
        let error: InvalidLeaseDurations = durations.validate().unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_at_once() {
    let api = api_with_namespace().await;
    let mut holder = elector(&FaultyApi::new(&api), "holder");
    holder.acquire().await.unwrap();
    let mut standby = elector(&FaultyApi::new(&api), "standby");
    let waiting = tokio::spawn(async move { standby.acquire().await });
    sleep(Duration::from_millis(100)).await;
    let released_at = Instant::now();
    holder.release().await;
    waiting.await.unwrap().unwrap();
    // The retry period is at least 5 s.
    assert!(released_at.elapsed() < Duration::from_secs(1), "{:?}", released_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_term_ends_while_the_machine_is_suspended() {
    let api = api_with_namespace().await;
    let seconds = Arc::new(AtomicU64::new(0));
    let boot_clock: BootClock = Arc::new({
        let seconds = Arc::clone(&seconds);
        move || Duration::from_secs(seconds.load(Ordering::SeqCst))
    });
    let mut leader = elector(&FaultyApi::new(&api), "leader").with_boot_clock(boot_clock);
    assert!(leader.term().permit().is_err(), "no term yet");
    leader.acquire().await.unwrap();
    let term = leader.term();
    assert!(term.permit().is_ok());
    let renewing = tokio::spawn(async move { (leader.renew().await, leader) });
    // The first renewal, after which the term ends 10 s later.
    seconds.store(5, Ordering::SeqCst);
    sleep(Duration::from_millis(5_100)).await;
    seconds.store(14, Ordering::SeqCst);
    assert!(term.permit().is_ok(), "a renewal extends the term");
    // The monotonic clock stands still meanwhile, and so do timers.
    seconds.store(3_600, Ordering::SeqCst);
    assert!(term.permit().is_err(), "at once, before any timer");
    let (lost, _) = renewing.await.unwrap();
    assert!(matches!(lost, LeaseLost::NotRenewed { .. }), "{lost}");
}

/// Its calls are dropped when it notices the end of its term, and its timers have not counted the suspension.
#[tokio::test(start_paused = true)]
async fn a_leader_renews_or_ends_its_term_soon_after_a_suspension() {
    for (suspended, is_lost) in [(7, false), (60, true)] {
        let api = api_with_namespace().await;
        let (started, suspension) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let boot_clock: BootClock = Arc::new({
            let suspension = Arc::clone(&suspension);
            move || started.elapsed() + Duration::from_secs(suspension.load(Ordering::SeqCst))
        });
        let mut leader = elector(&FaultyApi::new(&api), "leader").with_boot_clock(boot_clock);
        leader.acquire().await.unwrap();
        let term = leader.term();
        let renewing = tokio::spawn(async move { leader.renew().await });
        sleep(Duration::from_millis(500)).await;
        suspension.store(suspended, Ordering::SeqCst);
        sleep(Duration::from_millis(1_100)).await;
        assert_eq!(renewing.is_finished(), is_lost, "{suspended} s");
        if !is_lost {
            suspension.fetch_add(8, Ordering::SeqCst);
            assert!(term.permit().is_ok(), "it has renewed");
        }
        renewing.abort();
    }
}

/// The renew deadline is longer than the whole seconds of the Lease's duration.
#[tokio::test(start_paused = true)]
async fn a_duration_with_a_fraction_is_rounded_up() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let durations = LeaseDurations {
        lease_duration: Duration::from_millis(15_900),
        renew_deadline: Duration::from_millis(15_500),
        retry_period: Duration::from_secs(5),
    };
    durations.validate().unwrap();
    let candidate = LeaseCandidate { durations, ..candidate("a") };
    let api_client = ApiClient::new(wire.client(), Metrics::default());
    let mut elector = LeaderElector::new(api_client, clock(), Metrics::default(), candidate);
    elector.acquire().await.unwrap();
    assert_eq!(lease(&api).await["spec"]["leaseDurationSeconds"], 16);
}
