//! The requests for events, counted at the API server.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{
    Event, EventSink, EventType, Kind as _, ObjectReference, OrphanReport, metrics::Metrics,
};
use common::{FaultyApi, api, get};
use tokio_util::sync::CancellationToken;

/// The errors of many arrays contain an id of the request, so that no two are equal.
#[tokio::test(start_paused = true)]
async fn different_texts_about_one_object_are_limited() {
    let api = api();
    let writer = FaultyApi::new(&api).writer();
    let clock = Arc::new(|| jiff::Timestamp::from_second(1_767_225_600).unwrap());
    let (sink, events) = EventSink::new(&writer, clock, Metrics::default());
    let failure = |object: &str, request: u32| Event {
        involved_object: ObjectReference {
            resource: OrphanReport::RESOURCE,
            namespace: "default".into(),
            name: object.into(),
            uid: object.into(),
            resource_version: Default::default(),
        },
        event_type: EventType::Warning,
        reason: "ProvisioningFailed",
        note: format!("request {request} failed"),
        component: "provisioner".into(),
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn(events.run(stop.clone()));
    for request in 0..100 {
        sink.publish(failure("noisy", request));
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    sink.publish(failure("quiet", 100));
    stop.cancel();
    running.await.unwrap();

    let list = get(&api, "/api/v1/namespaces/default/events").await;
    let notes_of = |object: &str| -> Vec<&str> {
        let events = list["items"].as_array().unwrap().iter();
        let of_object = events.filter(|event| event["involvedObject"]["name"] == object);
        of_object.map(|event| event["message"].as_str().unwrap()).collect()
    };
    assert_eq!(notes_of("noisy").len(), 25, "{list}");
    assert_eq!(notes_of("quiet"), ["request 100 failed"]);
}
