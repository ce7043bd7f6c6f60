//! The intent journal against an API that is slow, lossy, or written by somebody else too.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what cannot be is a failed test")]

mod common;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cofferdam_cluster::{Intent, IntentClass, Journal, JournalError, metrics::Metrics};
use cofferdam_domain::{
    ClaimKey, ReclaimPolicy, Uid,
    storage::{CapacityRange, CreateVolume},
};
use common::{Trouble, Wire, api, call, get};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const PAGE: &str = "/api/v1/namespaces/default/configmaps/cofferdam-intents-drv-0";

fn intent(uid: &str) -> Intent {
    Intent {
        claim: ClaimKey::new("ns", format!("claim-{uid}")),
        uid: uid.into(),
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
        },
    }
}

fn journal(wire: &Wire, metrics: &Metrics) -> Journal {
    Journal::new(wire.writer(), "default".to_owned(), "drv".into(), metrics.clone())
}

/// Runs a journal's loop beside a test, and stops it in good order.
async fn with<T>(journal: &Journal, test: impl Future<Output = T>) -> T {
    let stop = CancellationToken::new();
    let running = journal.clone();
    let token = stop.clone();
    let task = tokio::spawn(async move { running.run(token).await });
    let result = test.await;
    stop.cancel();
    task.await.unwrap();
    result
}

fn entries(page: &Value) -> Vec<String> {
    let data = page.get("data").and_then(Value::as_object);
    data.map(|data| data.keys().cloned().collect()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn an_intent_is_durable_before_it_is_acted_on_and_read_back_word_for_word() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = Wire::new(&api);
    let first = journal(&wire, &metrics);
    first.load().await.unwrap();
    with(&first, async {
        let recorded = first.record(intent("a")).await.unwrap();
        assert_eq!(*recorded, intent("a"));
        assert_eq!(entries(&get(&api, PAGE).await), ["a"]);
    })
    .await;
    let second = journal(&wire, &metrics);
    second.load().await.unwrap();
    assert_eq!(second.uids(), [Uid::from("a")]);
    assert_eq!(*second.get(&"a".into()).unwrap(), intent("a"));
    with(&second, async {
        let mut other = intent("a");
        other.request.name = "another".to_owned();
        let standing = second.record(other).await.unwrap();
        assert_eq!(*standing, intent("a"), "what may have been sent stands");
        second.forget(&"a".into());
        assert!(second.get(&"a".into()).is_none());
    })
    .await;
    assert_eq!(entries(&get(&api, PAGE).await), [""; 0], "what is forgotten goes with the last commit");
}

#[tokio::test(start_paused = true)]
async fn commits_are_shared_while_one_is_on_its_way() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = Wire { delay: Duration::from_millis(10), ..Wire::new(&api) };
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with(&journal, async {
        let recorded = (0..100).map(|n| {
            let journal = journal.clone();
            async move { journal.record(intent(&n.to_string())).await.map(drop) }
        });
        for result in futures::future::join_all(recorded).await {
            result.unwrap();
        }
    })
    .await;
    assert!(metrics.journal_commits() <= 2, "{} commits for 100 intents", metrics.journal_commits());
    assert_eq!(entries(&get(&api, PAGE).await).len(), 100);
}

#[tokio::test(start_paused = true)]
async fn removals_wait_for_company() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = Wire::new(&api);
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with(&journal, async {
        for n in 0..10 {
            journal.record(intent(&n.to_string())).await.unwrap();
            journal.forget(&n.to_string().as_str().into());
        }
        assert_eq!(metrics.journal_commits(), 10, "each removal rides with the next intent");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(metrics.journal_commits(), 11, "and the last one goes by itself");
        assert_eq!(entries(&get(&api, PAGE).await), [""; 0]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_full_journal_says_so_at_once() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = Wire::new(&api);
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with(&journal, async {
        let full = 8 * 400;
        let all = (0..full).map(|n| journal.record(intent(&n.to_string())));
        for result in futures::future::join_all(all).await {
            result.unwrap();
        }
        assert_eq!(journal.record(intent("late")).await, Err(JournalError::Full(full)));
        journal.forget(&"7".into());
        assert_eq!(*journal.record(intent("late")).await.unwrap(), intent("late"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_intent_that_another_process_wrote_meanwhile_wins() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = Wire::new(&api);
    let ours = journal(&wire, &metrics);
    let theirs = journal(&wire, &metrics);
    ours.load().await.unwrap();
    theirs.load().await.unwrap();
    let mut other = intent("a");
    other.class.name = "silver".into();
    with(&theirs, async { theirs.record(other.clone()).await.unwrap() }).await;
    with(&ours, async {
        assert_eq!(*ours.record(intent("a")).await.unwrap(), other);
        ours.record(intent("b")).await.unwrap();
        assert_eq!(ours.adopted().await, [Uid::from("a")]);
    })
    .await;
    assert_eq!(entries(&get(&api, PAGE).await), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn failures_are_told_and_what_was_written_all_the_same_is_found() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = Wire::new(&api);
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with(&journal, async {
        wire.troubles.lock().unwrap().push_back(Trouble::AnswerLost);
        assert!(matches!(journal.record(intent("a")).await, Err(JournalError::Unavailable(_))));
        assert!(journal.get(&"a".into()).is_none());
        wire.troubles.lock().unwrap().push_back(Trouble::Refused(StatusCode::FORBIDDEN));
        let refused = journal.record(intent("b")).await.unwrap_err();
        assert!(matches!(&refused, JournalError::Refused(why) if why.contains("in trouble")), "{refused}");
        journal.record(intent("c")).await.unwrap();
        assert_eq!(*journal.get(&"a".into()).unwrap(), intent("a"), "the lost answer's intent stands");
        assert_eq!(entries(&get(&api, PAGE).await), ["a", "c"]);
        wire.troubles.lock().unwrap().push_back(Trouble::Refused(StatusCode::SERVICE_UNAVAILABLE));
        journal.forget(&"c".into());
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(entries(&get(&api, PAGE).await), ["a"], "a removal is tried until it is done");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_another_process_wrote_anew_is_not_removed() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = Wire::new(&api);
    let (ours, theirs) = (journal(&wire, &metrics), journal(&wire, &metrics));
    let again = Intent { attributes_class: "fast".into(), ..intent("a") };
    ours.load().await.unwrap();
    with(&ours, async { ours.record(intent("a")).await.unwrap() }).await;
    let ours = journal(&wire, &metrics);
    ours.load().await.unwrap();
    assert_eq!(ours.adopted().await, [Uid::from("a")]);
    theirs.load().await.unwrap();
    with(&theirs, async {
        theirs.forget(&"a".into());
        tokio::time::sleep(Duration::from_secs(1)).await;
        theirs.record(again.clone()).await.unwrap();
    })
    .await;
    let late = journal(&wire, &metrics);
    with(&ours, async {
        ours.forget(&"a".into());
        assert_eq!(ours.adopted().await, [Uid::from("a")]);
        assert_eq!(*ours.get(&"a".into()).unwrap(), again);
    })
    .await;
    assert_eq!(entries(&get(&api, PAGE).await), ["a"]);

    // Also where the page was read for something else before.
    late.load().await.unwrap();
    assert_eq!(late.adopted().await, [Uid::from("a")]);
    let (other, third) =
        (journal(&wire, &metrics), Intent { attributes_class: "slow".into(), ..intent("a") });
    other.load().await.unwrap();
    with(&other, async {
        other.forget(&"a".into());
        tokio::time::sleep(Duration::from_secs(1)).await;
        other.record(third.clone()).await.unwrap();
    })
    .await;
    with(&late, async {
        late.record(intent("b")).await.unwrap();
        assert_eq!(late.adopted().await, [Uid::from("a")]);
        assert_eq!(*late.get(&"a".into()).unwrap(), third);
    })
    .await;
    assert_eq!(entries(&get(&api, PAGE).await), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn what_has_become_unreadable_is_neither_replaced_nor_removed() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = Wire::new(&api);
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with(&journal, async {
        journal.record(intent("a")).await.unwrap();
        let newer =
            json!({"data": {"a": "{\"from\": \"a newer build\"}", "b": "{\"from\": \"a newer build\"}"}});
        call(&api, Method::PATCH, PAGE, newer).await;
        journal.forget(&"a".into());
        let refused = journal.record(intent("b")).await.unwrap_err();
        assert!(matches!(&refused, JournalError::Refused(why) if why.contains("cannot read")), "{refused}");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(journal.get(&"a".into()).is_none() && journal.get(&"b".into()).is_none());
    })
    .await;
    let page = get(&api, PAGE).await;
    for entry in ["a", "b"] {
        assert_eq!(page["data"][entry], "{\"from\": \"a newer build\"}", "{entry}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_stays() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = Wire::new(&api);
    let foreign = serde_json::to_string(&Intent { driver: "other".into(), ..intent("x") }).unwrap();
    let page = json!({
        "metadata": {"name": "cofferdam-intents-drv-0"},
        "data": {"n": "{\"from\": \"a newer build\"}", "x": foreign, "y": serde_json::to_string(&intent("z")).unwrap()},
    });
    call(&api, Method::POST, "/api/v1/namespaces/default/configmaps", page).await;
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    assert_eq!(journal.uids(), [""; 0].map(Uid::from));
    with(&journal, async {
        journal.record(intent("a")).await.unwrap();
        let refused = journal.record(intent("n")).await.unwrap_err();
        assert!(matches!(&refused, JournalError::Refused(why) if why.contains("cannot read")), "{refused}");
    })
    .await;
    let page = get(&api, PAGE).await;
    assert_eq!(entries(&page), ["a", "n", "x", "y"]);
    assert_eq!(page["data"]["n"], "{\"from\": \"a newer build\"}", "also by its own claim");
}

#[tokio::test(start_paused = true)]
async fn a_stopped_journal_takes_nothing() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = Wire::new(&api);
    let journal = journal(&wire, &metrics);
    let journal = Arc::new(journal);
    with(&journal, async {}).await;
    assert_eq!(journal.record(intent("a")).await, Err(JournalError::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_missing_is_named() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = Wire::new(&api);
    let journal = Journal::new(wire.writer(), "storage".to_owned(), "drv".into(), metrics);
    journal.load().await.unwrap();
    with(&journal, async {
        let refused = journal.record(intent("a")).await.unwrap_err().to_string();
        assert!(refused.contains("namespace \"storage\" does not exist"), "{refused}");
        let namespace = json!({"metadata": {"name": "storage"}});
        call(&api, Method::POST, "/api/v1/namespaces", namespace).await;
        journal.record(intent("a")).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn each_node_has_a_journal_of_its_own() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = Wire::new(&api);
    let on = |node: &str| {
        Journal::on_node(wire.writer(), "default".to_owned(), "drv".into(), node.into(), metrics.clone())
    };
    let of = |uid: &str, node: &str| Intent { node: Some(node.into()), ..intent(uid) };
    for node in ["n1", "n2"] {
        let journal = on(node);
        journal.load().await.unwrap();
        assert_eq!(journal.uids(), [], "what is on another node is not read");
        with(&journal, async { journal.record(of("a", node)).await.unwrap() }).await;
    }
    for node in ["n1", "n2"] {
        let journal = on(node);
        journal.load().await.unwrap();
        assert_eq!(*journal.get(&"a".into()).unwrap(), of("a", node));
    }
    let central = journal(&wire, &metrics);
    central.load().await.unwrap();
    assert_eq!(central.uids(), []);

    // What is another node's stays, and is not acted on, however it got there.
    let maps = get(&api, "/api/v1/namespaces/default/configmaps").await;
    let map = maps["items"].as_array().unwrap().iter();
    let map = map.clone().find(|map| map["metadata"]["annotations"]["cofferdam.dev/node"] == "n1").unwrap();
    let path = format!("/api/v1/namespaces/default/configmaps/{}", map["metadata"]["name"].as_str().unwrap());
    let stray = json!({"data": {"b": serde_json::to_string(&of("b", "n2")).unwrap()}});
    call(&api, Method::PATCH, &path, stray).await;
    let journal = on("n1");
    journal.load().await.unwrap();
    assert_eq!(journal.uids(), [Uid::from("a")]);
    with(&journal, async {
        let refused = journal.record(of("b", "n1")).await.unwrap_err().to_string();
        assert!(refused.contains("cannot read"), "{refused}");
    })
    .await;
}
