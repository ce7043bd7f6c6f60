//! The intent journal: commits with a slow or lossy API server and with concurrent writers, a full, a stopped
//! and a node's journal, undecodable intents, and a missing namespace.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod common;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cofferdam_cluster::{Intent, IntentClass, Journal, JournalError, metrics::Metrics};
use cofferdam_domain::{
    ClaimKey, ReclaimPolicy, Uid,
    storage::{CapacityRange, CreateVolume},
};
use common::{FaultyApi, WriteFault, api, call, get};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const SHARD_PATH: &str = "/api/v1/namespaces/default/configmaps/cofferdam-intents-drv-0";

fn intent(uid: &str) -> Intent {
    Intent {
        claim: ClaimKey::new("ns", format!("claim-{uid}")),
        claim_uid: uid.into(),
        driver: "drv".into(),
        node: None,
        class: IntentClass {
            name: "gold".into(),
            uid: "class".into(),
            reclaim_policy: ReclaimPolicy::Delete,
            mount_options: Vec::new(),
        },
        attributes_class: "".into(),
        request: CreateVolume {
            name: format!("pvc-{uid}"),
            capacity: CapacityRange { required: Some(1), limit: None },
            capabilities: Vec::new(),
            parameters: Default::default(),
            mutable_parameters: BTreeMap::new(),
            topology: None,
            owner: None,
            source: None,
        },
    }
}

fn journal(wire: &FaultyApi, metrics: &Metrics) -> Journal {
    Journal::new(wire.writer(), "default".to_owned(), "drv".into(), metrics.clone())
}

/// Runs a journal during a test, and stops it gracefully.
async fn with_running<T>(journal: &Journal, test: impl Future<Output = T>) -> T {
    let stop = CancellationToken::new();
    let runner = journal.clone();
    let token = stop.clone();
    let task = tokio::spawn(async move { runner.run(token).await });
    let result = test.await;
    stop.cancel();
    task.await.unwrap();
    result
}

fn intent_keys(page: &Value) -> Vec<String> {
    let data = page.get("data").and_then(Value::as_object);
    data.map(|data| data.keys().cloned().collect()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_written_intent_is_durable_and_survives_a_restart() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let first = journal(&wire, &metrics);
    first.load().await.unwrap();
    with_running(&first, async {
        let written = first.write(intent("a")).await.unwrap();
        assert_eq!(*written, intent("a"));
        assert_eq!(intent_keys(&get(&api, SHARD_PATH).await), ["a"]);
    })
    .await;
    let second = journal(&wire, &metrics);
    second.load().await.unwrap();
    assert_eq!(second.uids(), [Uid::from("a")]);
    assert_eq!(*second.get(&"a".into()).unwrap(), intent("a"));
    with_running(&second, async {
        let mut other = intent("a");
        other.request.name = "another".to_owned();
        let existing = second.write(other).await.unwrap();
        assert_eq!(*existing, intent("a"), "an intent that may have been sent is kept");
        second.remove(&"a".into());
        assert!(second.get(&"a".into()).is_none());
    })
    .await;
    assert_eq!(intent_keys(&get(&api, SHARD_PATH).await), [""; 0], "removals are part of the last commit");
}

#[tokio::test(start_paused = true)]
async fn concurrent_intents_share_a_commit() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi { delay: Duration::from_millis(10), ..FaultyApi::new(&api) };
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with_running(&journal, async {
        let written = (0..100).map(|n| {
            let journal = journal.clone();
            async move { journal.write(intent(&n.to_string())).await.map(drop) }
        });
        for result in futures::future::join_all(written).await {
            result.unwrap();
        }
    })
    .await;
    assert!(metrics.journal_commits() <= 2, "{} commits for 100 intents", metrics.journal_commits());
    assert_eq!(intent_keys(&get(&api, SHARD_PATH).await).len(), 100);
}

#[tokio::test(start_paused = true)]
async fn removals_are_committed_with_the_next_intent_or_after_a_delay() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with_running(&journal, async {
        for n in 0..10 {
            journal.write(intent(&n.to_string())).await.unwrap();
            journal.remove(&n.to_string().as_str().into());
        }
        assert_eq!(metrics.journal_commits(), 10, "each removal is committed with the next intent");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(metrics.journal_commits(), 11, "the last removal is committed alone");
        assert_eq!(intent_keys(&get(&api, SHARD_PATH).await), [""; 0]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_full_journal_rejects_intents_immediately() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with_running(&journal, async {
        let full = 8 * 400;
        let all = (0..full).map(|n| journal.write(intent(&n.to_string())));
        for result in futures::future::join_all(all).await {
            result.unwrap();
        }
        assert_eq!(journal.write(intent("late")).await, Err(JournalError::Full(full)));
        journal.remove(&"7".into());
        assert_eq!(*journal.write(intent("late")).await.unwrap(), intent("late"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_intent_of_another_process_takes_precedence() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let first = journal(&wire, &metrics);
    let second = journal(&wire, &metrics);
    first.load().await.unwrap();
    second.load().await.unwrap();
    let mut other = intent("a");
    other.class.name = "silver".into();
    with_running(&second, async { second.write(other.clone()).await.unwrap() }).await;
    with_running(&first, async {
        assert_eq!(*first.write(intent("a")).await.unwrap(), other);
        first.write(intent("b")).await.unwrap();
        assert_eq!(first.wait_recovered().await, [Uid::from("a")]);
    })
    .await;
    assert_eq!(intent_keys(&get(&api, SHARD_PATH).await), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn failed_commits_are_reported_and_written_intents_recovered() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with_running(&journal, async {
        wire.faults.lock().unwrap().push_back(WriteFault::ResponseLost);
        assert!(matches!(journal.write(intent("a")).await, Err(JournalError::Unavailable(_))));
        assert!(journal.get(&"a".into()).is_none());
        wire.faults.lock().unwrap().push_back(WriteFault::Refused(StatusCode::FORBIDDEN));
        let refused = journal.write(intent("b")).await.unwrap_err();
        assert!(matches!(&refused, JournalError::Refused(why) if why.contains("in trouble")), "{refused}");
        journal.write(intent("c")).await.unwrap();
        assert_eq!(
            *journal.get(&"a".into()).unwrap(),
            intent("a"),
            "the intent of the lost response is durable"
        );
        assert_eq!(intent_keys(&get(&api, SHARD_PATH).await), ["a", "c"]);
        wire.faults.lock().unwrap().push_back(WriteFault::Refused(StatusCode::SERVICE_UNAVAILABLE));
        journal.remove(&"c".into());
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(
            intent_keys(&get(&api, SHARD_PATH).await),
            ["a"],
            "a removal is retried until it succeeds"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_intent_rewritten_by_another_process_is_not_removed() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let (first, second) = (journal(&wire, &metrics), journal(&wire, &metrics));
    let rewritten = Intent { attributes_class: "fast".into(), ..intent("a") };
    first.load().await.unwrap();
    with_running(&first, async { first.write(intent("a")).await.unwrap() }).await;
    let first = journal(&wire, &metrics);
    first.load().await.unwrap();
    assert_eq!(first.wait_recovered().await, [Uid::from("a")]);
    second.load().await.unwrap();
    with_running(&second, async {
        second.remove(&"a".into());
        tokio::time::sleep(Duration::from_secs(1)).await;
        second.write(rewritten.clone()).await.unwrap();
    })
    .await;
    let late = journal(&wire, &metrics);
    with_running(&first, async {
        first.remove(&"a".into());
        assert_eq!(first.wait_recovered().await, [Uid::from("a")]);
        assert_eq!(*first.get(&"a".into()).unwrap(), rewritten);
    })
    .await;
    assert_eq!(intent_keys(&get(&api, SHARD_PATH).await), ["a"]);

    // `late` has read the shard when `other` rewrites the intent, and finds the rewritten one.
    late.load().await.unwrap();
    assert_eq!(late.wait_recovered().await, [Uid::from("a")]);
    let (other, third) =
        (journal(&wire, &metrics), Intent { attributes_class: "slow".into(), ..intent("a") });
    other.load().await.unwrap();
    with_running(&other, async {
        other.remove(&"a".into());
        tokio::time::sleep(Duration::from_secs(1)).await;
        other.write(third.clone()).await.unwrap();
    })
    .await;
    with_running(&late, async {
        late.write(intent("b")).await.unwrap();
        assert_eq!(late.wait_recovered().await, [Uid::from("a")]);
        assert_eq!(*late.get(&"a".into()).unwrap(), third);
    })
    .await;
    assert_eq!(intent_keys(&get(&api, SHARD_PATH).await), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn an_intent_that_became_undecodable_is_kept() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with_running(&journal, async {
        journal.write(intent("a")).await.unwrap();
        let newer =
            json!({"data": {"a": "{\"from\": \"a newer build\"}", "b": "{\"from\": \"a newer build\"}"}});
        call(&api, Method::PATCH, SHARD_PATH, newer).await;
        journal.remove(&"a".into());
        let refused = journal.write(intent("b")).await.unwrap_err();
        assert!(matches!(&refused, JournalError::Refused(why) if why.contains("cannot decode")), "{refused}");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(journal.get(&"a".into()).is_none() && journal.get(&"b".into()).is_none());
    })
    .await;
    let page = get(&api, SHARD_PATH).await;
    for key in ["a", "b"] {
        assert_eq!(page["data"][key], "{\"from\": \"a newer build\"}", "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn undecodable_intents_are_kept() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let foreign = serde_json::to_string(&Intent { driver: "other".into(), ..intent("x") }).unwrap();
    let page = json!({
        "metadata": {"name": "cofferdam-intents-drv-0"},
        "data": {"n": "{\"from\": \"a newer build\"}", "x": foreign,
            "y": serde_json::to_string(&intent("z")).unwrap()},
    });
    call(&api, Method::POST, "/api/v1/namespaces/default/configmaps", page).await;
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    assert_eq!(journal.uids(), [""; 0].map(Uid::from));
    with_running(&journal, async {
        journal.write(intent("a")).await.unwrap();
        let refused = journal.write(intent("n")).await.unwrap_err();
        assert!(matches!(&refused, JournalError::Refused(why) if why.contains("cannot decode")), "{refused}");
    })
    .await;
    let page = get(&api, SHARD_PATH).await;
    assert_eq!(intent_keys(&page), ["a", "n", "x", "y"]);
    assert_eq!(page["data"]["n"], "{\"from\": \"a newer build\"}", "not even by its own claim");
}

#[tokio::test(start_paused = true)]
async fn a_stopped_journal_rejects_intents() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    let journal = Arc::new(journal);
    with_running(&journal, async {}).await;
    assert_eq!(journal.write(intent("a")).await, Err(JournalError::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_missing_namespace_is_reported_by_name() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = Journal::new(wire.writer(), "storage".to_owned(), "drv".into(), metrics);
    journal.load().await.unwrap();
    with_running(&journal, async {
        let refused = journal.write(intent("a")).await.unwrap_err().to_string();
        assert!(refused.contains("namespace \"storage\" does not exist"), "{refused}");
        let namespace = json!({"metadata": {"name": "storage"}});
        call(&api, Method::POST, "/api/v1/namespaces", namespace).await;
        journal.write(intent("a")).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn each_node_has_its_own_journal() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal_of = |node: &str| {
        Journal::for_node(wire.writer(), "default".to_owned(), "drv".into(), node.into(), metrics.clone())
    };
    let intent_of = |uid: &str, node: &str| Intent { node: Some(node.into()), ..intent(uid) };
    for node in ["n1", "n2"] {
        let journal = journal_of(node);
        journal.load().await.unwrap();
        assert_eq!(journal.uids(), [], "intents of other nodes are not loaded");
        with_running(&journal, async { journal.write(intent_of("a", node)).await.unwrap() }).await;
    }
    for node in ["n1", "n2"] {
        let journal = journal_of(node);
        journal.load().await.unwrap();
        assert_eq!(*journal.get(&"a".into()).unwrap(), intent_of("a", node));
    }
    let central = journal(&wire, &metrics);
    central.load().await.unwrap();
    assert_eq!(central.uids(), []);

    // An intent of another node is kept and ignored.
    let maps = get(&api, "/api/v1/namespaces/default/configmaps").await;
    let map = maps["items"].as_array().unwrap().iter();
    let map = map.clone().find(|map| map["metadata"]["annotations"]["cofferdam.dev/node"] == "n1").unwrap();
    let path = format!("/api/v1/namespaces/default/configmaps/{}", map["metadata"]["name"].as_str().unwrap());
    let foreign = json!({"data": {"b": serde_json::to_string(&intent_of("b", "n2")).unwrap()}});
    call(&api, Method::PATCH, &path, foreign).await;
    let journal = journal_of("n1");
    journal.load().await.unwrap();
    assert_eq!(journal.uids(), [Uid::from("a")]);
    with_running(&journal, async {
        let refused = journal.write(intent_of("b", "n1")).await.unwrap_err().to_string();
        assert!(refused.contains("cannot decode"), "{refused}");
    })
    .await;
}
