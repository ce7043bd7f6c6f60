//! Leader election: two candidates, a holder that dies, a slow API server, a Lease that a person edits.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod common;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cofferdam_apiserver::ApiServer;
use cofferdam_cluster::{
    Clock,
    api::ApiClient,
    leader_election::{InvalidLeaseDurations, LeaderElector, LeaseCandidate, LeaseDurations, LeaseLost},
    metrics::Metrics,
};
use common::{FaultyApi, WriteFault, api, call, get};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

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
    first.acquire().await;
    let acquired = lease(&api).await;
    assert_eq!(acquired["spec"]["holderIdentity"], "first");
    assert_eq!(acquired["spec"]["leaseDurationSeconds"], 15);
    assert_eq!(acquired["spec"]["leaseTransitions"], 0);
    assert_eq!(acquired["metadata"]["labels"]["team"], "a");
    tokio::select! {
        lost = first.renew() => panic!("{lost}"),
        () = second.acquire() => panic!("two leaders"),
        () = sleep(Duration::from_secs(600)) => {}
    }
    let renewed = lease(&api).await;
    assert_eq!(renewed["spec"]["acquireTime"], acquired["spec"]["acquireTime"]);
    assert_ne!(renewed["spec"]["renewTime"], acquired["spec"]["renewTime"]);
    assert_eq!(renewed["spec"]["leaseTransitions"], 0);
    assert_eq!(events(&api).await, ["LeaderElection first became leader"]);
}

#[tokio::test(start_paused = true)]
async fn the_second_candidate_takes_the_lease_after_its_duration() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    elector(&wire, "first").acquire().await;
    let mut second = elector(&wire, "second");
    let started = Instant::now();
    second.acquire().await;
    assert!(started.elapsed() >= LEASE_DURATION, "{:?}", started.elapsed());
    assert!(started.elapsed() < LEASE_DURATION + Duration::from_secs(12), "{:?}", started.elapsed());
    let lease = lease(&api).await;
    assert_eq!(lease["spec"]["holderIdentity"], "second");
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_at_the_next_attempt() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let mut first = elector(&wire, "first");
    first.acquire().await;
    first.release().await;
    assert_eq!(lease(&api).await["spec"]["holderIdentity"], "");
    let started = Instant::now();
    elector(&wire, "second").acquire().await;
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(events(&api).await.contains(&"LeaderElection first stopped leading".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_before_another_candidate_can_lead() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let mut first = elector(&wire, "first");
    first.acquire().await;
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
    first.acquire().await;
    wire.faults.lock().unwrap().push_back(WriteFault::ResponseLost);
    let ended = timeout(Duration::from_secs(300), first.renew()).await;
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(lease(&api).await["spec"]["leaseTransitions"], 0);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_a_stranger_replaced_stops() {
    let api = api_with_namespace().await;
    let wire = FaultyApi::new(&api);
    let mut first = elector(&wire, "first");
    first.acquire().await;
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
        elector(&wire, "first").acquire().await;
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
    first.acquire().await;
    sleep(LEASE_DURATION + Duration::from_secs(20)).await;
    health.check().unwrap();
    sleep(Duration::from_secs(1)).await;
    let error = health.check().unwrap_err().to_string();
    assert!(error.starts_with("failed election to renew leadership on lease"), "{error}");
    first.release().await;
    health.check().unwrap();
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
