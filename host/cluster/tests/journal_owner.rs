//! The owner of a journal: two processes without leader election.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod common;

use std::{sync::Arc, time::Duration};

use cofferdam_apiserver::ApiServer;
use cofferdam_cluster::{
    EventSink, Intent, Journal, JournalError,
    journal::{JournalLoss, JournalReports, LostJournals},
    metrics::Metrics,
};
use cofferdam_domain::Uid;
use common::{
    FaultyApi, WriteFault, api, call, get,
    journal::{SHARD_PATH, intent, intent_keys, journal, with_running},
};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// The time after which a process takes back a journal whose owner stands still, with its checks.
const TAKEN_BACK: Duration = Duration::from_secs(90);

#[tokio::test(start_paused = true)]
async fn a_newer_process_takes_the_journal_and_the_older_one_waits() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    // Equal names: a process does not take the owner for itself because of its host name.
    let named = || journal(&wire, &metrics).with_identity("host");
    let (older, newer) = (named(), named());
    older.load().await.unwrap();
    newer.load().await.unwrap();
    with_running(&older, async {
        older.acquire().await.unwrap();
        older.write(intent("a")).await.unwrap();
        let stop = CancellationToken::new();
        let (runner, token) = (newer.clone(), stop.clone());
        let task = tokio::spawn(async move { runner.run(token).await });
        newer.acquire().await.unwrap();
        assert_eq!(*newer.get(&"a".into()).unwrap(), intent("a"), "the request of the older one is known");
        assert!(newer.is_recovered(&"a".into()));
        let refused = older.write(intent("b")).await.unwrap_err();
        assert!(
            matches!(&refused, JournalError::Lost(JournalLoss::Taken(owner)) if owner.starts_with("host-")),
            "{refused}"
        );
        assert_eq!(older.acquire().await, Err(refused.clone()));
        assert!(older.loss().is_some() && newer.loss().is_none());

        newer.write(intent("c")).await.unwrap();

        // The newer one renews while it has an intent.
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert_eq!(older.acquire().await, Err(refused.clone()));
        }

        // The newer one has ended: its intent is work, without a request of the older one.
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        drop(stop);
        tokio::time::sleep(TAKEN_BACK).await;
        older.acquire().await.unwrap();
        assert!(older.loss().is_none());
        assert_eq!(older.wait_recovered().await, [Uid::from("c")]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn idle_processes_do_not_write() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let (older, newer) = (journal(&wire, &metrics), journal(&wire, &metrics));
    with_running(&older, async {
        older.acquire().await.unwrap();
        with_running(&newer, async {
            newer.acquire().await.unwrap();
            assert!(older.write(intent("a")).await.is_err());
            // The newer one may be between two retries of a claim.
            tokio::time::sleep(Duration::from_secs(7 * 60)).await;
            let before = get(&api, SHARD_PATH).await;
            tokio::time::sleep(Duration::from_secs(3600)).await;
            assert_eq!(get(&api, SHARD_PATH).await, before);
            assert!(older.loss().is_some());

            // Work after an idle hour does not prove a standstill of an hour.
            assert!(older.acquire().await.is_err());
            tokio::time::sleep(Duration::from_secs(15)).await;
            assert!(older.acquire().await.is_err());
        })
        .await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_waits_takes_the_journal_of_an_idle_owner_after_a_minute() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let (older, newer) = (journal(&wire, &metrics), journal(&wire, &metrics));
    with_running(&older, async {
        older.acquire().await.unwrap();
        newer.acquire().await.unwrap();
        assert!(older.write(intent("a")).await.is_err());
        let begin = tokio::time::Instant::now();
        while older.acquire().await.is_err() {
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        assert!((Duration::from_secs(60)..=TAKEN_BACK).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_loss_to_an_idle_process_is_reported_again_when_a_request_waits() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let lost = tokio::sync::watch::Sender::new(LostJournals::new());
    let (events, _loop) = EventSink::new(&wire.writer(), Arc::new(jiff::Timestamp::now), metrics.clone());
    let reports = JournalReports { lost: lost.clone(), events, component: "a".into() };
    let (older, newer) = (journal(&wire, &metrics).with_reports(reports), journal(&wire, &metrics));
    let is_reported = || !lost.borrow().is_empty();
    with_running(&older, async {
        older.acquire().await.unwrap();
        newer.acquire().await.unwrap();
        assert!(older.write(intent("a")).await.is_err());
        assert!(is_reported());
        tokio::time::sleep(Duration::from_secs(55)).await;
        assert!(is_reported(), "it may work");
        tokio::time::sleep(TAKEN_BACK).await;
        assert!(!is_reported(), "it has ended or has nothing to do");
        assert!(older.acquire().await.is_err());
        assert!(is_reported(), "a request waits");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_put_needs_the_journal_again_after_its_config_map_was_deleted() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    with_running(&journal, async {
        journal.acquire().await.unwrap();
        call(&api, Method::DELETE, SHARD_PATH, Value::Null).await;
        let refused = journal.write(intent("a")).await.unwrap_err();
        assert!(matches!(&refused, JournalError::Unavailable(text) if text.contains("owns")), "{refused}");
        journal.acquire().await.unwrap();
        journal.write(intent("a")).await.unwrap();
        let map = get(&api, SHARD_PATH).await;
        assert!(map["metadata"]["annotations"]["cofferdam.dev/journal-owner"].is_string(), "{map}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_result_of_a_take_is_not_ownership() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    wire.faults.lock().unwrap().push_back(WriteFault::ResponseLost);
    assert!(matches!(journal.acquire().await, Err(JournalError::Unavailable(_))));
    let owner = |map: &Value| map["metadata"]["annotations"]["cofferdam.dev/journal-owner"].clone();
    let lost = owner(&get(&api, SHARD_PATH).await);
    journal.acquire().await.unwrap();
    assert_ne!(owner(&get(&api, SHARD_PATH).await), lost, "each attempt has a random part of its own");
    assert_eq!(journal.loss(), None);
}

/// The ConfigMap with a number.
fn shard_path(index: usize) -> String {
    SHARD_PATH.replace("-0", &format!("-{index}"))
}

/// Writes as many intents as two ConfigMaps take, so that the journal has a second one.
async fn fill_two_shards(journal: &Journal) {
    let all = (0..500).map(|n| journal.write(intent(&n.to_string())));
    for written in futures::future::join_all(all).await {
        written.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_put_into_any_config_map_notices_the_new_owner() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let (older, newer) = (journal(&wire, &metrics), journal(&wire, &metrics).with_identity("newer"));
    with_running(&older, async {
        older.acquire().await.unwrap();
        fill_two_shards(&older).await;
        newer.acquire().await.unwrap();
        // The first ConfigMap is full, so the put belongs to the second one, whose content the older process
        // knows.
        let refused = older.write(intent("late")).await;
        assert!(
            matches!(&refused, Err(JournalError::Lost(JournalLoss::Taken(owner))) if owner.starts_with("newer-")),
            "{refused:?}"
        );
        assert!(newer.get(&"499".into()).is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_older_process_creates_no_config_map_after_a_take() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let (older, newer) = (journal(&wire, &metrics), journal(&wire, &metrics));
    with_running(&older, async {
        older.acquire().await.unwrap();
        let all = (0..400).map(|n| older.write(intent(&n.to_string())));
        for written in futures::future::join_all(all).await {
            written.unwrap();
        }
        newer.acquire().await.unwrap();
        let refused = older.write(intent("late")).await;
        assert!(matches!(&refused, Err(JournalError::Lost(_))), "{refused:?}");
        assert_eq!(get(&api, &shard_path(1)).await["code"], 404);
    })
    .await;
}

/// The older process has announced a ConfigMap in the first one, and its create is still in flight.
#[tokio::test(start_paused = true)]
async fn an_announced_config_map_is_created_with_the_new_owner() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let (older, newer) = (journal(&wire, &metrics), journal(&wire, &metrics));
    older.acquire().await.unwrap();
    let annotations = json!({"annotations": {"cofferdam.dev/journal-shards": "3"}});
    let (status, _) = call(&api, Method::PATCH, SHARD_PATH, json!({"metadata": annotations})).await;
    assert_eq!(status, StatusCode::OK);
    newer.acquire().await.unwrap();
    let owner = |map: &Value| map["metadata"]["annotations"]["cofferdam.dev/journal-owner"].clone();
    let first = owner(&get(&api, SHARD_PATH).await);
    for index in [1, 2] {
        let map = get(&api, &shard_path(index)).await;
        assert_eq!(owner(&map), first, "{index}");
        assert_eq!(map["metadata"]["labels"]["cofferdam.dev/journal"], "intents");
    }
    assert_eq!(get(&api, &shard_path(3)).await["code"], 404);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_take_leaves_the_journal_to_the_older_process() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let older = journal(&wire, &metrics).with_identity("older");
    with_running(&older, async {
        older.acquire().await.unwrap();
        fill_two_shards(&older).await;
        // The newer process has crashed between its write of the second ConfigMap and that of the first one.
        let fence = json!({"metadata": {"annotations": {"cofferdam.dev/journal-owner": "newer-1"}}});
        call(&api, Method::PATCH, &shard_path(1), fence).await;
        let taken = Err(JournalError::Lost(JournalLoss::Taken("newer-1".to_owned())));
        assert_eq!(older.write(intent("late")).await, taken);
        let begin = tokio::time::Instant::now();
        while older.acquire().await.is_err() {
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        assert!(begin.elapsed() <= TAKEN_BACK, "{:?}", begin.elapsed());
        older.write(intent("late")).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn intents_of_any_config_map_are_work() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let (older, newer) = (journal(&wire, &metrics), journal(&wire, &metrics));
    with_running(&older, async {
        older.acquire().await.unwrap();
        fill_two_shards(&older).await;
        newer.acquire().await.unwrap();
        assert!(older.write(intent("late")).await.is_err());
        call(&api, Method::PATCH, SHARD_PATH, json!({"data": null})).await;
        tokio::time::sleep(TAKEN_BACK).await;
        assert_eq!(older.loss(), None, "the newer one has stopped, and left intents");
    })
    .await;
}

/// Each claim's request fails finally, so that its intent is removed, and is retried after five minutes.
#[tokio::test(start_paused = true)]
async fn a_process_whose_claims_fail_keeps_the_journal_between_retries() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let (older, newer) = (journal(&wire, &metrics), journal(&wire, &metrics));
    with_running(&older, async {
        older.acquire().await.unwrap();
        with_running(&newer, async {
            newer.acquire().await.unwrap();
            assert!(older.write(intent("a")).await.is_err());
            for _ in 0..3 {
                newer.acquire().await.unwrap();
                newer.write(intent("failing")).await.unwrap();
                newer.remove(&intent("failing"));
                for _ in 0..30 {
                    tokio::time::sleep(Duration::from_secs(10)).await;
                    let _ = older.acquire().await;
                }
                assert_eq!(newer.loss(), None);
            }
        })
        .await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_once_until_it_ends() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let now: jiff::Timestamp = "2026-06-03T12:00:00Z".parse().unwrap();
    let (events, event_loop) = EventSink::new(&wire.writer(), Arc::new(move || now), metrics.clone());
    tokio::spawn(event_loop.run(CancellationToken::new()));
    let lost = tokio::sync::watch::Sender::new(LostJournals::new());
    let reports = JournalReports { lost: lost.clone(), events, component: "drv_older".into() };
    let older = journal(&wire, &metrics).with_reports(reports);
    let newer = journal(&wire, &metrics).with_identity("newer");
    let event_messages = async || {
        let events = get(&api, "/api/v1/namespaces/default/events").await;
        let events = events["items"].as_array().unwrap().iter();
        let of_map = events.filter(|event| event["involvedObject"]["name"] == "cofferdam-intents-drv-0");
        of_map.map(|event| event["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    with_running(&older, async {
        older.acquire().await.unwrap();
        newer.acquire().await.unwrap();
        assert!(lost.borrow().is_empty());
        assert!(older.write(intent("a")).await.is_err());
        let owner = newer_owner(&get(&api, SHARD_PATH).await);
        assert_eq!(*lost.borrow(), LostJournals::from([("drv".into(), JournalLoss::Taken(owner.clone()))]));
        tokio::time::sleep(Duration::from_secs(600)).await;
        let messages = event_messages().await;
        let expected = format!("process {owner} has taken the intent journal of driver drv; ");
        assert!(messages.len() == 1 && messages[0].starts_with(&expected), "{messages:?}");
        while older.acquire().await.is_err() {
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        assert!(lost.borrow().is_empty(), "it is owned again");
        newer.acquire().await.unwrap();
        assert_eq!(event_messages().await.len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_journal_without_owner_is_not_lost() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let (older, newer) = (journal(&wire, &metrics), journal(&wire, &metrics));
    with_running(&older, async {
        older.acquire().await.unwrap();
        newer.acquire().await.unwrap();
        assert!(older.write(intent("a")).await.is_err());
        assert!(older.loss().is_some());
        call(&api, Method::DELETE, SHARD_PATH, Value::Null).await;
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!(older.loss(), None);
        older.acquire().await.unwrap();
    })
    .await;
}

fn newer_owner(map: &Value) -> String {
    map["metadata"]["annotations"]["cofferdam.dev/journal-owner"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn each_take_has_a_higher_epoch() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let take = async || journal(&wire, &metrics).acquire().await;
    let epoch = async |index| {
        let map = get(&api, &shard_path(index)).await;
        map["metadata"]["annotations"]["cofferdam.dev/journal-epoch"].as_str().map(str::to_owned)
    };
    let annotate = async |index, epoch: &str| {
        let body = json!({"metadata": {"annotations": {"cofferdam.dev/journal-epoch": epoch}}});
        call(&api, Method::PATCH, &shard_path(index), body).await;
    };
    take().await.unwrap();
    assert_eq!(epoch(0).await.unwrap(), "1");
    let second = journal(&wire, &metrics);
    with_running(&second, async {
        second.acquire().await.unwrap();
        fill_two_shards(&second).await;
    })
    .await;
    assert_eq!(epoch(0).await.unwrap(), "2");
    take().await.unwrap();
    assert_eq!((epoch(0).await.unwrap(), epoch(1).await.unwrap()), ("3".to_owned(), "3".to_owned()));
    // An edit by hand cannot make a later take look older.
    for (index, edited, expected) in [(1, "40", "41"), (0, "5", "42"), (0, "-1", "43"), (1, "x", "44")] {
        annotate(index, edited).await;
        take().await.unwrap();
        assert_eq!(epoch(0).await.unwrap(), expected, "{edited}");
    }
    for future in [u64::MAX.to_string(), "99999999999999999999".to_owned()] {
        annotate(1, &future).await;
        let error = take().await.unwrap_err().to_string();
        assert!(
            error.contains("cofferdam.dev/journal-epoch") && error.contains("or no annotation"),
            "{error}"
        );
    }
    annotate(1, "0").await;
    take().await.unwrap();
    assert_eq!(epoch(0).await.unwrap(), "45");
}

#[tokio::test(start_paused = true)]
async fn intents_of_another_format_are_kept_and_new_ones_go_elsewhere() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let first = journal(&wire, &metrics);
    with_running(&first, async {
        first.acquire().await.unwrap();
        first.write(intent("a")).await.unwrap();
    })
    .await;
    let format = "cofferdam.dev/journal-format";
    assert_eq!(get(&api, SHARD_PATH).await["metadata"]["annotations"][format], "1");
    let annotate = async |index: usize, value: &str| {
        let body = json!({"metadata": {"annotations": {format: value}}});
        call(&api, Method::PATCH, &shard_path(index), body).await;
    };
    annotate(0, "2").await;
    let before = get(&api, SHARD_PATH).await["data"].clone();

    let second = journal(&wire, &metrics);
    second.load().await.unwrap();
    with_running(&second, async {
        second.acquire().await.unwrap();
        assert!(second.get(&"a".into()).is_none());
        assert!(second.has_intent_for(&"a".into(), &"other".into()), "its volume may exist");
        let refused = second.write(intent("a")).await.unwrap_err();
        assert!(matches!(refused, JournalError::Refused(_)), "{refused}");
        second.write(intent("b")).await.unwrap();
        second.remove(&intent("a"));
    })
    .await;
    let map = get(&api, SHARD_PATH).await;
    assert_eq!((&map["data"], &map["metadata"]["annotations"][format]), (&before, &json!("2")));
    assert!(get(&api, &shard_path(1)).await["data"]["b"].is_string());

    for index in 2..8 {
        let name = shard_path(index).rsplit('/').next().unwrap().to_owned();
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        call(&api, Method::POST, "/api/v1/namespaces/default/configmaps", body).await;
    }
    for index in 1..8 {
        annotate(index, "next").await;
    }
    let third = journal(&wire, &metrics);
    third.load().await.unwrap();
    with_running(&third, async {
        third.acquire().await.unwrap();
        let refused = third.write(intent("c")).await.unwrap_err();
        assert!(matches!(&refused, JournalError::Refused(text) if text.contains("format")), "{refused}");
    })
    .await;
}

/// A journal with the receivers of its reports.
fn reporting_journal(wire: &FaultyApi) -> (Journal, tokio::sync::watch::Receiver<LostJournals>) {
    let metrics = Metrics::default();
    let (events, event_loop) =
        EventSink::new(&wire.writer(), Arc::new(jiff::Timestamp::now), metrics.clone());
    tokio::spawn(event_loop.run(CancellationToken::new()));
    let (lost, receiver) = tokio::sync::watch::channel(LostJournals::new());
    let reports = JournalReports { lost, events, component: "drv".into() };
    (journal(wire, &metrics).with_reports(reports), receiver)
}

/// Runs a test with a journal that this process owns, and whose writes take this time.
async fn with_owned_journal(delay: Duration, test: impl AsyncFnOnce(&ApiServer, &FaultyApi, &Journal)) {
    let api = api();
    let wire = FaultyApi { delay, ..FaultyApi::new(&api) };
    let (journal, _lost) = reporting_journal(&wire);
    with_running(&journal, async {
        journal.acquire().await.unwrap();
        test(&api, &wire, &journal).await;
    })
    .await;
}

/// Messages of the events with this reason.
async fn event_messages(api: &ApiServer, reason: &str) -> Vec<String> {
    tokio::time::sleep(Duration::from_secs(5)).await;
    let events = get(api, "/api/v1/namespaces/default/events").await;
    let events = events["items"].as_array().unwrap().iter().filter(|event| event["reason"] == reason);
    events.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_edited_epoch_is_a_loss() {
    let api = api();
    let wire = FaultyApi::new(&api);
    let (journal, lost) = reporting_journal(&wire);
    with_running(&journal, async {
        journal.acquire().await.unwrap();
        journal.write(intent("a")).await.unwrap();
        let edit = json!({"metadata": {"annotations": {"cofferdam.dev/journal-epoch": "9"}}});
        call(&api, Method::PATCH, SHARD_PATH, edit).await;
        let refused = journal.write(intent("b")).await.unwrap_err();
        let loss = JournalLoss::EpochChanged { found: Some("9".to_owned()), own: 1 };
        assert_eq!(refused, JournalError::Lost(loss.clone()));
        assert_eq!(*lost.borrow(), LostJournals::from([("drv".into(), loss)]));
        let messages = event_messages(&api, "IntentJournalTaken").await;
        let expected =
            "another client has changed the epoch (from 1 to 9) of the intent journal of driver drv; ";
        assert!(messages.len() == 1 && messages[0].starts_with(expected), "{messages:?}");

        // No process works with the journal, so this one takes it back, above the edited epoch.
        while journal.acquire().await.is_err() {
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        let map = get(&api, SHARD_PATH).await;
        assert_eq!(map["metadata"]["annotations"]["cofferdam.dev/journal-epoch"], "10");
        assert!(lost.borrow().is_empty());
        assert!(journal.get(&"a".into()).is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_foreign_change_of_intents_is_reported_once() {
    let api = api();
    let wire = FaultyApi::new(&api);
    let (journal, lost) = reporting_journal(&wire);
    let change = async |body: Value| call(&api, Method::PATCH, SHARD_PATH, body).await;
    let changed = async || event_messages(&api, "IntentJournalChanged").await;
    with_running(&journal, async {
        journal.acquire().await.unwrap();
        for uid in ["a", "b", "c"] {
            journal.write(intent(uid)).await.unwrap();
        }
        journal.write(intent("own")).await.unwrap();
        change(json!({"metadata": {"labels": {"team": "storage"}}})).await;
        journal.remove(&intent("c"));
        journal.write(intent("d")).await.unwrap();
        assert!(changed().await.is_empty(), "no intent has changed, and the removal is of this process");

        let stored = get(&api, SHARD_PATH).await["data"]["b"].as_str().unwrap().replace("pvc-b", "pvc-x");
        change(json!({"data": {"a": null, "b": stored, "z": "{}"}})).await;
        journal.write(intent("e")).await.unwrap();
        let expected = "another client has changed the intent journal of driver drv: removed 1 (claim uids a), \
             replaced 1 (claim uids b), added 1 (claim uids z); a volume without its intent can leak if this \
             process ends";
        assert_eq!(changed().await, [expected]);
        change(json!({"metadata": {"labels": {"team": "network"}}})).await;
        journal.write(intent("f")).await.unwrap();
        assert_eq!(changed().await.len(), 1);
        assert!(lost.borrow().is_empty() && journal.loss().is_none(), "it is no loss");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_own_write_whose_response_is_lost_is_no_foreign_change() {
    with_owned_journal(Duration::ZERO, async |api, wire, journal| {
        wire.faults.lock().unwrap().push_back(WriteFault::ResponseLost);
        assert!(journal.write(intent("a")).await.is_err());
        journal.write(intent("b")).await.unwrap();
        assert!(event_messages(api, "IntentJournalChanged").await.is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_config_map_of_the_owner_has_its_epoch_from_its_creation() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    with_running(&journal, async {
        journal.acquire().await.unwrap();
        fill_two_shards(&journal).await;
        let annotations =
            async |index| get(&api, &shard_path(index)).await["metadata"]["annotations"].clone();
        let (first, second) = (annotations(0).await, annotations(1).await);
        for name in ["cofferdam.dev/journal-owner", "cofferdam.dev/journal-epoch"] {
            assert!(first[name].is_string() && first[name] == second[name], "{name}: {first} {second}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_own_write_that_takes_effect_late_is_no_foreign_change() {
    with_owned_journal(Duration::ZERO, async |api, wire, journal| {
        wire.faults.lock().unwrap().push_back(WriteFault::Late(Duration::from_secs(20)));
        assert!(journal.write(intent("a")).await.is_err());
        tokio::time::sleep(Duration::from_secs(25)).await;
        journal.write(intent("b")).await.unwrap();
        assert_eq!(intent_keys(&get(api, SHARD_PATH).await), ["a", "b"]);
        assert!(event_messages(api, "IntentJournalChanged").await.is_empty());
    })
    .await;
}

/// An intent of the claim `a` that differs from `intent("a")`.
fn other_intent() -> Intent {
    Intent { attributes_class: "fast".into(), ..intent("a") }
}

/// Another client writes an annotation of the first ConfigMap, so that the next commit conflicts.
async fn annotate(api: &ApiServer) {
    call(api, Method::PATCH, SHARD_PATH, json!({"metadata": {"annotations": {"a": "b"}}})).await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_intent_does_not_return_when_a_conflict_delays_the_next_one() {
    with_owned_journal(Duration::ZERO, async |api, _, journal| {
        journal.write(intent("a")).await.unwrap();
        annotate(api).await;
        journal.remove(&intent("a"));
        assert_eq!(*journal.write(other_intent()).await.unwrap(), other_intent());
        assert!(event_messages(api, "IntentJournalChanged").await.is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_intent_does_not_return_when_the_next_one_is_rejected() {
    with_owned_journal(Duration::ZERO, async |api, wire, journal| {
        journal.write(intent("a")).await.unwrap();
        journal.remove(&intent("a"));
        wire.faults.lock().unwrap().push_back(WriteFault::Refused(StatusCode::FORBIDDEN));
        assert!(journal.write(other_intent()).await.is_err());
        annotate(api).await;
        journal.write(intent("b")).await.unwrap();
        assert_eq!(intent_keys(&get(api, SHARD_PATH).await), ["b"]);
        assert!(journal.get(&"a".into()).is_none());
        assert!(event_messages(api, "IntentJournalChanged").await.is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_removal_whose_commit_fails_is_not_lost_with_the_next_intent() {
    with_owned_journal(Duration::from_millis(50), async |api, wire, journal| {
        journal.write(intent("a")).await.unwrap();
        wire.faults.lock().unwrap().push_back(WriteFault::Refused(StatusCode::FORBIDDEN));
        journal.remove(&intent("a"));
        // This commit has the removal and is rejected while the next intent of the claim waits.
        let first = tokio::spawn({
            let journal = journal.clone();
            async move { journal.write(intent("b")).await }
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(*journal.write(other_intent()).await.unwrap(), other_intent());
        assert!(first.await.unwrap().is_err());
        assert!(event_messages(api, "IntentJournalChanged").await.is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_intent_that_another_process_moved_to_an_earlier_config_map_is_kept() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let older = journal(&wire, &metrics);
    let newer = journal(&wire, &metrics);
    with_running(&older, async {
        older.acquire().await.unwrap();
        fill_two_shards(&older).await;
        let moved = Uid::from(&*intent_keys(&get(&api, &shard_path(1)).await)[0]);
        let in_first = Uid::from(&*intent_keys(&get(&api, &shard_path(0)).await)[0]);
        let rewritten = Intent { attributes_class: "fast".into(), ..intent(&moved.to_string()) };
        with_running(&newer, async {
            newer.acquire().await.unwrap();
            newer.remove(&intent(&in_first.to_string()));
            newer.remove(&intent(&moved.to_string()));
            tokio::time::sleep(Duration::from_secs(5)).await;
            newer.write(rewritten.clone()).await.unwrap();
        })
        .await;
        tokio::time::sleep(TAKEN_BACK).await;
        older.acquire().await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(older.get(&moved).as_deref(), Some(&rewritten));
        let stored = intent_keys(&get(&api, &shard_path(0)).await);
        assert!(stored.contains(&moved.to_string()), "{stored:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_late_call_removes_no_intent_that_another_process_has_written() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let (older, newer) = (journal(&wire, &metrics), journal(&wire, &metrics));
    with_running(&older, async {
        older.acquire().await.unwrap();
        older.write(intent("a")).await.unwrap();
        with_running(&newer, async {
            newer.acquire().await.unwrap();
            newer.remove(&intent("a"));
            newer.write(other_intent()).await.unwrap();
        })
        .await;
        // The older process notices the loss when it renews.
        tokio::time::sleep(TAKEN_BACK * 2).await;
        older.acquire().await.unwrap();
        // The older process's call for the first intent returns only now.
        assert_eq!(older.record_unneeded(&intent("a"), &"v".into()).await, Ok(None));
        older.remove(&intent("a"));
        assert!(!older.remove_confirmed(&intent("a")));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(older.get(&"a".into()).as_deref(), Some(&other_intent()));
        assert_eq!(intent_keys(&get(&api, SHARD_PATH).await), ["a"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_for_one_of_two_requests_removes_the_intent() {
    let api = api();
    let wire = FaultyApi::new(&api);
    let (journal, _lost) = reporting_journal(&wire);
    let mended = Intent { mended: Some(Box::new(other_intent())), ..intent("a") };
    with_running(&journal, async {
        journal.acquire().await.unwrap();
        let unneeded = other_intent().with_unneeded(&"v".into());
        for (written, known) in [
            (&mended, &intent("a")),
            (&mended, &other_intent()),
            (&mended, &unneeded),
            (&unneeded, &mended),
            (&other_intent(), &mended),
        ] {
            journal.write(written.clone()).await.unwrap();
            assert!(journal.remove_confirmed(known), "{known:?}");
            assert!(journal.get(&"a".into()).is_none(), "{known:?}");
        }
        journal.write(mended.clone()).await.unwrap();
        let recorded = journal.record_unneeded(&other_intent(), &"v".into()).await.unwrap();
        assert_eq!(recorded.as_deref(), Some(&unneeded));
        assert_eq!(journal.get(&"a".into()), recorded);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_intent_goes_to_the_config_map_from_which_the_earlier_one_is_being_removed() {
    with_owned_journal(Duration::from_millis(50), async |api, _, journal| {
        fill_two_shards(journal).await;
        let keys = async |index| intent_keys(&get(api, &shard_path(index)).await);
        let (in_first, in_second) = (keys(0).await[0].clone(), keys(1).await[0].clone());
        let rewritten = Intent { attributes_class: "fast".into(), ..intent(&in_second) };
        // The first ConfigMap gets room.
        journal.remove(&intent(&in_first));
        tokio::time::sleep(Duration::from_secs(5)).await;
        journal.remove(&intent(&in_second));
        // The removal has been sent.
        tokio::time::sleep(Duration::from_millis(510)).await;
        assert!(keys(1).await.contains(&in_second));
        assert_eq!(*journal.write(rewritten.clone()).await.unwrap(), rewritten);
        assert!(keys(1).await.contains(&in_second));
        assert!(!keys(0).await.contains(&in_second), "it has the place of {in_first}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_intent_goes_to_the_config_map_of_an_uncertain_write() {
    with_owned_journal(Duration::ZERO, async |api, wire, journal| {
        fill_two_shards(journal).await;
        wire.faults.lock().unwrap().push_back(WriteFault::ResponseLost);
        assert!(journal.write(intent("a")).await.is_err());
        let keys = async |index| intent_keys(&get(api, &shard_path(index)).await);
        assert!(keys(1).await.contains(&"a".to_owned()));
        // The first ConfigMap gets room.
        journal.remove(&intent(&keys(0).await[0]));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(*journal.write(other_intent()).await.unwrap(), intent("a"), "its request may be sent");
        assert!(!keys(0).await.contains(&"a".to_owned()));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_intent_that_another_client_writes_over_a_removed_one_is_reported() {
    with_owned_journal(Duration::ZERO, async |api, _, journal| {
        journal.write(intent("a")).await.unwrap();
        let foreign = serde_json::to_string(&other_intent()).unwrap();
        call(api, Method::PATCH, SHARD_PATH, json!({"data": {"a": foreign}})).await;
        journal.remove(&intent("a"));
        assert_eq!(*journal.write(intent("a")).await.unwrap(), other_intent(), "it takes precedence");
        assert_eq!(event_messages(api, "IntentJournalChanged").await.len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_lost_the_journal_removes_no_intent_of_the_owner() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let older = journal(&wire, &metrics);
    let (newer, _lost) = reporting_journal(&wire);
    with_running(&older, async {
        older.acquire().await.unwrap();
        older.write(intent("a")).await.unwrap();
        with_running(&newer, async {
            newer.acquire().await.unwrap();
            older.remove(&intent("a"));
            tokio::time::sleep(Duration::from_secs(5)).await;
            newer.write(intent("b")).await.unwrap();
            assert!(newer.get(&"a".into()).is_some());
            assert_eq!(intent_keys(&get(&api, SHARD_PATH).await), ["a", "b"]);
            assert!(event_messages(&api, "IntentJournalChanged").await.is_empty());
        })
        .await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_before_a_new_config_map_is_no_deletion() {
    with_owned_journal(Duration::ZERO, async |api, wire, journal| {
        wire.faults.lock().unwrap().push_back(WriteFault::Refused(StatusCode::FORBIDDEN));
        assert!(journal.write(intent("a")).await.is_err());
        fill_two_shards(journal).await;
        assert!(event_messages(api, "IntentJournalChanged").await.is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_config_map_and_a_change_elsewhere_are_reported() {
    with_owned_journal(Duration::ZERO, async |api, _, journal| {
        fill_two_shards(journal).await;
        // No write of an intent follows: the renewal finds the changes.
        let second = get(api, &shard_path(1)).await;
        let removed = intent_keys(&second)[0].clone();
        call(api, Method::PATCH, &shard_path(1), json!({"data": {removed.as_str(): null}})).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        let messages = event_messages(api, "IntentJournalChanged").await;
        let expected = format!("removed 1 (claim uids {removed})");
        assert!(messages.len() == 1 && messages[0].contains(&expected), "{messages:?}");

        call(api, Method::DELETE, &shard_path(1), Value::Null).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        let messages = event_messages(api, "IntentJournalChanged").await;
        let expected = format!("removed {} (claim uids ", intent_keys(&second).len() - 1);
        assert!(messages.iter().any(|message| message.contains(&expected)), "{messages:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_owner_restores_the_label_of_its_config_maps() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    with_running(&journal, async {
        journal.acquire().await.unwrap();
        journal.write(intent("a")).await.unwrap();
        let edit = json!({"metadata": {"labels": {"cofferdam.dev/journal": null}}});
        call(&api, Method::PATCH, SHARD_PATH, edit).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let map = get(&api, SHARD_PATH).await;
        assert_eq!(map["metadata"]["labels"]["cofferdam.dev/journal"], "intents");
    })
    .await;
}
