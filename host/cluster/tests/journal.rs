//! The intent journal: commits with a slow or lossy API server and with concurrent writers, a full, a stopped
//! and a node's journal, undecodable intents, and a missing namespace.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod common;

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{Intent, IntentSecrets, Journal, JournalError, journal, metrics::Metrics};
use cofferdam_domain::{
    ClaimKey, Uid,
    storage::{
        AccessType, ContentSource, CreateVolume, CsiAccessMode, Parameters, Segments, TopologyRequirement,
        VolumeCapability,
    },
    volume::SecretRef,
};
use common::{
    FaultyApi, WriteFault, api, call, get,
    journal::{SHARD_PATH, intent, intent_keys, journal, with_running},
};
use http::{Method, StatusCode};
use serde_json::{Value, json};

#[test]
fn an_intent_without_secrets_is_that_of_older_versions() {
    let secret = SecretRef { namespace: "ns".into(), name: "s".into() };
    let secrets = IntentSecrets { node_stage: Some(secret), ..IntentSecrets::default() };
    for (intent, expected) in [
        (intent("a"), None),
        (Intent { secrets, ..intent("a") }, Some(json!({"node_stage": {"namespace": "ns", "name": "s"}}))),
    ] {
        let encoded = serde_json::to_value(&intent).unwrap();
        assert_eq!(encoded.get("secrets").cloned(), expected);
        assert_eq!(serde_json::from_value::<Intent>(encoded).unwrap(), intent);
    }
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
        assert!(!first.is_recovered(&"a".into()), "no other process can have sent its request");
        assert_eq!(intent_keys(&get(&api, SHARD_PATH).await), ["a"]);
    })
    .await;
    let second = journal(&wire, &metrics);
    second.load().await.unwrap();
    assert_eq!(second.uids(), [Uid::from("a")]);
    assert_eq!(*second.get(&"a".into()).unwrap(), intent("a"));
    assert!(second.is_recovered(&"a".into()), "the first process may have sent its request");
    with_running(&second, async {
        let mut other = intent("a");
        other.request.name = "another".to_owned();
        let existing = second.write(other).await.unwrap();
        assert_eq!(*existing, intent("a"), "an intent that may have been sent is kept");
        second.remove(&intent("a"));
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
            journal.remove(&intent(&n.to_string()));
        }
        assert_eq!(metrics.journal_commits(), 10, "each removal is committed with the next intent");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(metrics.journal_commits(), 11, "the last removal is committed alone");
        assert_eq!(intent_keys(&get(&api, SHARD_PATH).await), [""; 0]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_removal_delays_no_intent_that_follows_shortly_after() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi { delay: Duration::from_millis(50), ..FaultyApi::new(&api) };
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with_running(&journal, async {
        for pause in [0, 10, 110, 400] {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let (uid, started) = (pause.to_string(), tokio::time::Instant::now());
            journal.write(intent(&uid)).await.unwrap();
            assert_eq!(started.elapsed(), wire.delay, "{pause} ms after a removal");
            journal.remove(&intent(&uid));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn namespaces_share_the_journal() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with_running(&journal, async {
        let full = 8 * 400;
        let in_namespace = |namespace: usize, uid: &str| {
            let name = format!("claim-{uid}");
            Intent { claim: ClaimKey::new(namespace.to_string(), name), ..intent(uid) }
        };
        // Each namespace takes half of what the others leave.
        let (mut written, mut namespace) = (0, 0);
        while written < full - 1 {
            let share = (full - written) / 2;
            let uids = (written..written + share).map(|n| n.to_string()).collect::<Vec<_>>();
            let all = uids.iter().map(|uid| journal.write(in_namespace(namespace, uid)));
            for result in futures::future::join_all(all).await {
                result.unwrap();
            }
            let error =
                JournalError::NamespaceFull { namespace: namespace.to_string().into(), volumes: share };
            assert_eq!(journal.write(in_namespace(namespace, "late")).await, Err(error));
            assert_eq!(journal.fullest_share(), 1.0);
            (written, namespace) = (written + share, namespace + 1);
        }
        assert_eq!(written, full - 1);
        journal.remove(&in_namespace(namespace - 1, &(written - 1).to_string()));
        let late = in_namespace(namespace - 1, "late");
        assert_eq!(*journal.write(late.clone()).await.unwrap(), late);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn namespaces_share_the_bytes_of_the_journal() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    // Two in each ConfigMap of 512 KiB.
    let large = |namespace: &str, number: usize| {
        let uid = format!("{namespace}-{number}");
        let mut intent = Intent { claim: ClaimKey::new(namespace, uid.as_str()), ..intent(&uid) };
        intent.request.parameters.insert("padding".to_owned(), "x".repeat(250 << 10));
        intent
    };
    with_running(&journal, async {
        assert_eq!(journal.fullest_share(), 0.0);
        for number in 0..8 {
            journal.write(large("flood", number)).await.unwrap();
        }
        let share = journal.fullest_share();
        assert!(share > 0.9 && share < 1.0, "{share}: 2,000 of 2,048 KiB");
        let error = JournalError::NamespaceFull { namespace: "flood".into(), volumes: 8 };
        assert_eq!(journal.write(large("flood", 8)).await, Err(error));
        for number in 0..4 {
            journal.write(large("other", number)).await.unwrap();
        }
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
        assert!(first.is_recovered(&"a".into()) && !first.is_recovered(&"b".into()));
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
        journal.remove(&intent("c"));
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
        second.remove(&intent("a"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        second.write(rewritten.clone()).await.unwrap();
    })
    .await;
    let late = journal(&wire, &metrics);
    with_running(&first, async {
        first.remove(&intent("a"));
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
        other.remove(&rewritten);
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
        journal.remove(&intent("a"));
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
    let annotations = [("cofferdam.dev/node".to_owned(), "n1".to_owned())].into();
    let driver = journal::driver_of_config_map(map["metadata"]["name"].as_str().unwrap(), &annotations);
    assert_eq!(driver, Some("drv".into()));
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

#[test]
fn the_driver_of_a_config_map_follows_from_its_name() {
    let of = |name: &str, node: Option<&str>| {
        let annotations = node.map(|node| ("cofferdam.dev/node".to_owned(), node.to_owned()));
        let driver = journal::driver_of_config_map(name, &annotations.into_iter().collect());
        driver.map(|driver| driver.to_string())
    };
    let some = |driver: &str| Some(driver.to_owned());
    assert_eq!(of("cofferdam-intents-a.b-c.d-0", None), some("a.b-c.d"));
    assert_eq!(of("cofferdam-intents-drv-7", None), some("drv"));
    for other in ["cofferdam-intents-drv-8", "cofferdam-intents-drv", "cofferdam-intents--0", "drv-0", ""] {
        assert_eq!(of(other, None), None, "{other}");
    }
    assert_eq!(of("cofferdam-intents-drv.0000000000000000-0", Some("n1")), None, "another node");
}

/// The intent of the claim `a` with a mended request.
fn mended() -> Intent {
    let mut request = intent("a");
    request.class.uid = "new-class".into();
    request.request.capacity.required = Some(2);
    Intent { mended: Some(Box::new(request)), ..intent("a") }
}

#[tokio::test(start_paused = true)]
async fn a_mended_request_is_durable_and_survives_a_restart() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi { delay: Duration::from_millis(10), ..FaultyApi::new(&api) };
    let first = journal(&wire, &metrics);
    first.load().await.unwrap();
    with_running(&first, async {
        first.write(intent("a")).await.unwrap();
        let current = intent("a");
        let replace = first.replace(&current, mended());
        let read = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            first.get(&"a".into()).unwrap()
        };
        let (replaced, meanwhile) = tokio::join!(replace, read);
        assert_eq!((*replaced.unwrap()).clone(), mended());
        assert_eq!(*meanwhile, intent("a"), "the request is not durable before the end of the commit");
        assert_eq!(*first.get(&"a".into()).unwrap(), mended());
    })
    .await;
    assert_eq!(intent_keys(&get(&api, SHARD_PATH).await), ["a"]);
    let second = journal(&wire, &metrics);
    second.load().await.unwrap();
    with_running(&second, async {
        assert_eq!(*second.get(&"a".into()).unwrap(), mended());
        second.replace(&mended(), intent("a")).await.unwrap();
        assert!(second.is_recovered(&"a".into()), "the first process may have sent the first request");
        assert!(matches!(second.replace(&mended(), intent("a")).await, Err(JournalError::Unavailable(_))));
        second.remove(&intent("a"));
        assert!(matches!(second.replace(&intent("a"), mended()).await, Err(JournalError::Unavailable(_))));
    })
    .await;
    assert_eq!(intent_keys(&get(&api, SHARD_PATH).await), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_replacement_keeps_what_the_config_map_has() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with_running(&journal, async {
        journal.write(intent("a")).await.unwrap();
        let fail = |fault| wire.faults.lock().unwrap().push_back(fault);
        fail(WriteFault::Refused(StatusCode::FORBIDDEN));
        assert!(matches!(journal.replace(&intent("a"), mended()).await, Err(JournalError::Refused(_))));
        assert_eq!(*journal.get(&"a".into()).unwrap(), intent("a"));
        fail(WriteFault::ResponseLost);
        assert!(matches!(journal.replace(&intent("a"), mended()).await, Err(JournalError::Unavailable(_))));
        // The next commit reads the ConfigMap, and finds the mended request, which must not be lost.
        assert!(matches!(journal.replace(&intent("a"), mended()).await, Err(JournalError::Unavailable(_))));
        assert_eq!(*journal.get(&"a".into()).unwrap(), mended());
        assert!(journal.wait_recovered().await.contains(&"a".into()));
    })
    .await;
    let stored = get(&api, SHARD_PATH).await["data"]["a"].as_str().unwrap().to_owned();
    assert_eq!(serde_json::from_str::<Intent>(&stored).unwrap(), mended());
}

#[tokio::test(start_paused = true)]
async fn a_replacement_yields_to_an_intent_of_another_process() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let (first, second) = (journal(&wire, &metrics), journal(&wire, &metrics));
    first.load().await.unwrap();
    with_running(&first, async {
        first.write(intent("a")).await.unwrap();
        second.load().await.unwrap();
        let other = Intent { attributes_class: "fast".into(), ..intent("a") };
        with_running(&second, async { second.replace(&intent("a"), other.clone()).await.unwrap() }).await;
        assert!(matches!(first.replace(&intent("a"), mended()).await, Err(JournalError::Unavailable(_))));
        assert_eq!(*first.get(&"a".into()).unwrap(), other);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_mended_request_counts_towards_the_size_limits() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    let padded = |uid: &str, bytes: usize| {
        let mut intent = intent(uid);
        intent.request.parameters.insert("padding".to_owned(), "x".repeat(bytes));
        intent
    };
    let limit = 512 << 10;
    with_running(&journal, async {
        journal.write(intent("a")).await.unwrap();
        journal.write(padded("b", limit - 1_500)).await.unwrap();
        assert_eq!(
            journal.replace(&intent("a"), mended_with(padded("a", 2_000))).await,
            Err(JournalError::Full(2))
        );
        let too_large = journal.replace(&intent("a"), mended_with(padded("a", limit))).await;
        assert!(matches!(too_large, Err(JournalError::Refused(_))), "{too_large:?}");
        assert_eq!(*journal.get(&"a".into()).unwrap(), intent("a"));
        journal.remove(&padded("b", limit - 1_500));
        journal.replace(&intent("a"), mended_with(padded("a", 2_000))).await.unwrap();
    })
    .await;
}

fn mended_with(request: Intent) -> Intent {
    Intent { mended: Some(Box::new(request)), ..intent("a") }
}

#[tokio::test(start_paused = true)]
async fn intents_of_older_versions_are_read_and_contradictory_ones_are_kept() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let older = serde_json::to_value(intent("a")).unwrap();
    assert!(older.get("mended").is_none() && older.get("recorded_at").is_none(), "{older}");
    let contradictory = |change: fn(&mut Intent)| {
        let mut request = intent("b");
        change(&mut request);
        serde_json::to_string(&Intent { mended: Some(Box::new(request)), ..intent("b") }).unwrap()
    };
    let changes: [fn(&mut Intent); 4] = [
        |request| request.claim_uid = "other".into(),
        |request| request.driver = "other".into(),
        |request| request.request.name = "other".to_owned(),
        |request| request.mended = Some(Box::new(intent("b"))),
    ];
    for change in changes {
        let data = json!({"a": older.to_string(), "b": contradictory(change)});
        let page = json!({"metadata": {"name": "cofferdam-intents-drv-0"}, "data": data});
        call(&api, Method::POST, "/api/v1/namespaces/default/configmaps", page).await;
        let journal = journal(&wire, &metrics);
        journal.load().await.unwrap();
        assert_eq!(journal.uids(), [Uid::from("a")]);
        assert_eq!(journal.intent_count(), 2, "an undecodable intent counts");
        call(&api, Method::DELETE, SHARD_PATH, Value::Null).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_age_of_an_intent_survives_a_restart() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let at = |time: &str| time.parse::<jiff::Timestamp>().unwrap();
    let (recorded, now) = (at("2026-06-03T12:00:00Z"), at("2026-06-03T12:20:00Z"));
    let first = journal(&wire, &metrics);
    first.load().await.unwrap();
    with_running(&first, async {
        first.write(Intent { recorded_at: Some(recorded), ..intent("a") }).await.unwrap();
        first.write(intent("old")).await.unwrap();
    })
    .await;
    let second = journal(&wire, &metrics);
    second.load().await.unwrap();
    tokio::time::advance(Duration::from_secs(5)).await;
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    assert_eq!(second.age(&"a".into(), now), Some(minutes(20)));
    assert_eq!(second.age(&"a".into(), at("2026-06-03T11:00:00Z")), Some(minutes(0)), "a clock was set back");
    assert_eq!(second.age(&"old".into(), now), Some(Duration::from_secs(5)), "since it was read");
    assert_eq!(second.ages(now).into_iter().max(), Some(minutes(20)));
    assert_eq!(second.age(&"b".into(), now), None);
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_is_removed_with_its_intent() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let journal = journal(&wire, &metrics);
    journal.load().await.unwrap();
    with_running(&journal, async {
        for uid in ["a", "b"] {
            journal.write(intent(uid)).await.unwrap();
            let annotations = json!({format!("cofferdam.dev/confirm-no-volume.{uid}"): "the array is gone"});
            call(&api, Method::PATCH, SHARD_PATH, json!({"metadata": {"annotations": annotations}})).await;
        }
        let entry = journal.read_entry(&"a".into()).await.unwrap().unwrap();
        let shard = get(&api, SHARD_PATH).await;
        assert_eq!(entry.confirmation.as_deref(), Some("the array is gone"));
        assert_eq!(*entry.config_map.name, *"cofferdam-intents-drv-0");
        assert_eq!(entry.config_map.uid.to_string(), shard["metadata"]["uid"]);
        journal.remove_confirmed(&intent("a"));
        journal.write(intent("a")).await.unwrap();
        let entry = journal.read_entry(&"a".into()).await.unwrap().unwrap();
        assert_eq!(entry.confirmation, None, "it does not apply to the next intent of the claim");
        journal.remove_confirmed(&intent("a"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(journal.read_entry(&"a".into()).await.unwrap(), None);
    })
    .await;
    let shard = get(&api, SHARD_PATH).await;
    assert_eq!(intent_keys(&shard), ["b"]);
    let annotations = &shard["metadata"]["annotations"];
    let expected = json!({"cofferdam.dev/confirm-no-volume.b": "the array is gone", "cofferdam.dev/journal-format": "1"});
    assert_eq!(annotations, &expected);
}

/// An intent with every field, as versions without `unneeded` write it. A change of this text is a new format
/// of the journal, which those versions cannot read during an upgrade.
const FORMAT_1: &str = include_str!("fixtures/intent-format-1.json");

#[tokio::test(start_paused = true)]
async fn older_versions_read_intents_of_this_version_and_the_reverse() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let node = Segments::from([("example/node".to_owned(), "node-1".to_owned())]);
    let mut written = Intent { node: Some("node-1".into()), attributes_class: "fast".into(), ..intent("a") };
    written.secrets.provisioner = Some(SecretRef { namespace: "arrays".into(), name: "login".into() });
    written.class.mount_options = vec!["noatime".to_owned()];
    written.request.capabilities = vec![VolumeCapability {
        access_mode: CsiAccessMode::SingleNodeWriter,
        access_type: AccessType::Filesystem {
            fs_type: Some("xfs".to_owned()),
            mount_flags: Vec::new(),
            mount_group: None,
        },
    }];
    written.request.parameters = Parameters::from([("tier".to_owned(), "gold".to_owned())]);
    written.request.topology =
        Some(TopologyRequirement { requisite: vec![node.clone()], preferred: vec![node] });
    written.request.source = Some(ContentSource::Volume("other".into()));
    written.recorded_at = Some("2026-01-02T03:04:05Z".parse().unwrap());
    written.mended = Some(Box::new(intent("a")));
    let writer = journal(&wire, &metrics);
    with_running(&writer, async {
        writer.load().await.unwrap();
        writer.write(written.clone()).await.unwrap();
    })
    .await;
    assert_eq!(get(&api, SHARD_PATH).await["data"]["a"], FORMAT_1.trim_end());

    let reader = journal(&wire, &metrics);
    reader.load().await.unwrap();
    assert_eq!(*reader.get(&"a".into()).unwrap(), written);
}

#[tokio::test(start_paused = true)]
async fn the_sources_of_another_process_are_read_live() {
    let (api, metrics) = (api(), Metrics::default());
    let wire = FaultyApi::new(&api);
    let from = |uid: &str, source: ContentSource| {
        let intent = intent(uid);
        let request = CreateVolume { source: Some(source), ..intent.request };
        Intent { request, ..intent }
    };
    let (snapshot, volume) = (ContentSource::Snapshot("h".into()), ContentSource::Volume("h".into()));
    let mended = Box::new(from("a", snapshot.clone()));
    let mended = serde_json::to_string(&Intent { mended: Some(mended), ..intent("a") }).unwrap();
    let path = "/api/v1/namespaces/default/configmaps";
    let page = json!({"metadata": {"name": "cofferdam-intents-drv-0"}, "data": {"a": mended}});
    call(&api, Method::POST, path, page).await;
    let journal = journal(&wire, &metrics);
    assert_eq!(journal.claim_with_source(&snapshot), None, "the journal is not loaded");
    let sources = journal.sources_live().await.unwrap();
    assert_eq!(sources.claim_with_source(&snapshot), Some(&intent("a").claim));
    assert_eq!((sources.claim_with_source(&volume), &sources.undecodable), (None, &None));

    let page = json!({"metadata": {"name": "cofferdam-intents-drv-1"}, "data": {"b": "{}"}});
    call(&api, Method::POST, path, page).await;
    assert_eq!(journal.sources_live().await.unwrap().undecodable, Some("b".into()));
}
