//! Secrets of StorageClasses: the references that a PersistentVolume gets, and a search for a value of a
//! Secret in everything that the processes write.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod log_collector;

use cofferdam_controllers::Role;
use cofferdam_domain::storage::ErrorKind;
use cofferdam_sim::{
    DriverFault, PublishingBehavior, ResizingBehavior, Simulation,
    UserAction::{self, Create, Delete, Patch, Settle, Until},
    WaitFor::{CallsCompleted, Event},
    has_secret_value,
    objects::{attributes_class, claim, class, csi_node, pod, ready_node, secret, with},
};
use log_collector::LogCollector;
use serde_json::{Value, json};

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";
/// The planted value. The simulation appends a marker.
const VALUE: &str = "planted-value-of-a-secret";

/// A class whose calls all have the Secret `s`.
fn class_with_default_secret() -> Value {
    with(
        class("gold"),
        &json!({"allowVolumeExpansion": true, "parameters": {
            "csi.storage.k8s.io/secret-name": "s",
            "csi.storage.k8s.io/secret-namespace": "${pvc.namespace}",
        }}),
    )
}

/// Everything that the processes of a simulation wrote: objects except Secrets, events, log lines, metrics.
async fn written_text(simulation: &Simulation, log: &LogCollector) -> String {
    let mut text = simulation.metrics();
    for path in [
        "/api/v1/persistentvolumes",
        "/api/v1/persistentvolumeclaims",
        "/api/v1/namespaces/default/configmaps",
        "/api/v1/events",
        "/api/v1/nodes",
        "/apis/storage.k8s.io/v1/volumeattachments",
    ] {
        text.push_str(&simulation.object(path).await.unwrap().to_string());
    }
    text.push_str(&log.text());
    text
}

/// Runs actions after the creation of the Secret, the class, a node and the claim. Returns what the processes
/// wrote, and the calls of the driver.
async fn run(simulation: Simulation, actions: Vec<UserAction>) -> (String, Vec<String>) {
    // The simulation's own subscriber gets no log lines meanwhile. They are a part of the written text.
    let log = LogCollector::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let setup = [
        Create(secret("s", VALUE)),
        Create(class_with_default_secret()),
        Create(attributes_class("fast", "9")),
        Create(csi_node("node-1", "id-1")),
        Create(ready_node("node-1")),
        Create(claim("a", "gold")),
    ];
    let actions: Vec<_> = setup.into_iter().chain(actions).collect();
    let (outcome, _) = simulation.run(&actions, None).await;
    assert_eq!(outcome.violations, [""; 0]);
    (written_text(&simulation, &log).await, simulation.driver().calls())
}

fn refusals(count: usize) -> Vec<DriverFault> {
    vec![DriverFault::Refuse(ErrorKind::Internal); count]
}

/// Checks that the processes wrote no value of the Secret, although the driver quoted it in errors. Cut text
/// may have a value without its marker.
fn assert_not_leaked((text, calls): &(String, Vec<String>)) {
    assert!(calls.iter().all(|call| call.ends_with(&format!(" with password={VALUE}"))), "{calls:?}");
    assert!(text.contains("with password=[secret]"), "the errors of the driver were written redacted");
    let has_value = |line: &&str| has_secret_value(line) || line.contains(VALUE);
    assert_eq!(text.lines().filter(has_value).collect::<Vec<_>>(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn no_value_of_a_secret_is_written_anywhere() {
    // A volume that is used, with one error of each call.
    let publishing = PublishingBehavior {
        publish_faults: refusals(1),
        unpublish_faults: refusals(1),
        ..PublishingBehavior::default()
    };
    let resizing = ResizingBehavior {
        expand_faults: refusals(1),
        modify_faults: refusals(1),
        ..ResizingBehavior::default()
    };
    let simulation = Simulation::new(&Role::ALL, refusals(1), refusals(2))
        .with_publishing(publishing, false)
        .with_resizing(resizing);
    let pod_path = "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0";
    let used = vec![
        Settle,
        Patch(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})),
        Settle,
        Patch(CLAIM, json!({"spec": {"volumeAttributesClassName": "fast"}})),
        Settle,
        Create(pod("p", "a")),
        Settle,
        Delete(pod_path),
        Settle,
        Delete(CLAIM),
    ];
    let written = run(simulation, used).await;
    assert_eq!(written.1.len(), 13, "six calls and seven refusals: {:?}", written.1);
    assert_not_leaked(&written);

    // Calls that fail for ever: their errors stay in status fields.
    let publishing = PublishingBehavior { publish_faults: refusals(1_000), ..PublishingBehavior::default() };
    let resizing = ResizingBehavior {
        expand_faults: refusals(1_000),
        modify_faults: vec![DriverFault::LostResponse; 1_000],
        ..ResizingBehavior::default()
    };
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new())
        .with_publishing(publishing, false)
        .with_resizing(resizing);
    let failing = vec![
        Settle,
        Create(pod("p", "a")),
        Until(Event("p Warning FailedAttachVolume")),
        Patch(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})),
        Until(Event("a Warning VolumeResizeFailed")),
    ];
    let written = run(simulation, failing).await;
    assert!(written.0.contains("attachError"), "the error is in the VolumeAttachment");
    assert_not_leaked(&written);
}

#[tokio::test(start_paused = true)]
async fn an_intent_has_references_to_secrets_and_no_values() {
    let lost = vec![DriverFault::LostResponse; 1_000];
    let simulation = Simulation::new(&Role::ALL, lost, Vec::new());
    let written = run(simulation, vec![Until(CallsCompleted(3))]).await;
    assert_not_leaked(&written);
    let reference = r#"\"provisioner\":{\"namespace\":\"default\",\"name\":\"s\"}"#;
    assert!(written.0.contains(reference), "the intent is in a ConfigMap");
}

#[tokio::test(start_paused = true)]
async fn a_persistent_volume_has_the_references_of_its_class() {
    let purposes = [
        "provisioner",
        "controller-publish",
        "node-stage",
        "node-publish",
        "controller-expand",
        "node-expand",
        "controller-modify",
    ];
    let pairs = purposes.into_iter().flat_map(|purpose| {
        let key = |part: &str| format!("csi.storage.k8s.io/{purpose}-secret-{part}");
        [(key("name"), json!(purpose)), (key("namespace"), json!("default"))]
    });
    let parameters: serde_json::Map<String, Value> = pairs.collect();
    for (parameters, modify, fields) in [
        (
            parameters,
            true,
            vec!["controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand"],
        ),
        (serde_json::Map::new(), false, Vec::new()),
    ] {
        let deletion = if modify { ["provisioner", "default"] } else { ["", ""] };
        let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
        let actions = [
            Create(secret("provisioner", "x")),
            Create(with(class("gold"), &json!({"parameters": parameters}))),
            Create(claim("a", "gold")),
        ];
        simulation.run(&actions, None).await;
        let volumes = simulation.object("/api/v1/persistentvolumes").await.unwrap();
        let volume = &volumes["items"][0];
        let annotation =
            |name: &str| volume["metadata"]["annotations"][format!("volume.kubernetes.io/{name}")].as_str();
        let deletion_annotations =
            ["provisioner-deletion-secret-name", "provisioner-deletion-secret-namespace"].map(annotation);
        assert_eq!(deletion_annotations, deletion.map(Some));
        let modify_annotations =
            ["controller-modify-secret-name", "controller-modify-secret-namespace"].map(annotation);
        assert_eq!(modify_annotations, ["controller-modify", "default"].map(|text| modify.then_some(text)));
        let source = volume["spec"]["csi"].as_object().unwrap();
        let references: Vec<_> = source.keys().filter(|key| key.ends_with("SecretRef")).collect();
        assert_eq!(references.len(), fields.len(), "{source:?}");
        for (field, name) in fields.iter().zip(&purposes[1..]) {
            assert_eq!(
                source[&format!("{field}SecretRef")],
                json!({"namespace": "default", "name": name}),
                "{field}"
            );
        }
    }
}

/// A class whose calls of this purpose have the Secret `s`.
fn class_with_secret(purpose: &str) -> Value {
    let key = |part: &str| format!("csi.storage.k8s.io/{purpose}-secret-{part}");
    let parameters: serde_json::Map<String, Value> =
        [(key("name"), json!("s")), (key("namespace"), json!("default"))].into_iter().collect();
    with(class("gold"), &json!({"allowVolumeExpansion": true, "parameters": parameters}))
}

fn resize(spec: Value) -> [UserAction; 2] {
    [Settle, Patch(CLAIM, json!({"spec": spec}))]
}

#[tokio::test(start_paused = true)]
async fn a_missing_secret_is_read_again_with_backoff() {
    let rows = [
        ("provisioner", Vec::new()),
        ("controller-publish", vec![Settle, Create(pod("p", "a"))]),
        ("controller-expand", resize(json!({"resources": {"requests": {"storage": "2Gi"}}})).into()),
        ("controller-modify", resize(json!({"volumeAttributesClassName": "fast"})).into()),
    ];
    for (purpose, actions) in rows {
        let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
        let setup = [
            Create(class_with_secret(purpose)),
            Create(attributes_class("fast", "9")),
            Create(csi_node("node-1", "id-1")),
            Create(ready_node("node-1")),
            Create(claim("a", "gold")),
        ];
        // In paused time, the end of a run waits for an hour.
        simulation.run(&setup.into_iter().chain(actions).collect::<Vec<_>>(), None).await;
        let metrics = simulation.metrics();
        let is_missing = |line: &&str| {
            line.starts_with("rest_client_requests_total{")
                && line.contains("method=\"get\"")
                && line.contains("code=\"404\"")
        };
        let count = metrics.lines().find(is_missing).and_then(|line| line.rsplit_once(' ')?.1.parse().ok());
        // The back-off grows from one second to five minutes. The ConfigMaps of the journal are missing, too.
        let reads: usize = count.unwrap();
        assert!((10..40).contains(&reads), "{purpose}: {reads} reads of missing objects");
        let calls = simulation.driver().calls();
        assert!(calls.iter().all(|call| call.starts_with("create ")), "{purpose}: {calls:?}");
        assert_eq!(calls.is_empty(), purpose == "provisioner", "{purpose}: {calls:?}");
    }
}

/// A missing Secret has no `detachError`: the volume is detached without it.
#[tokio::test(start_paused = true)]
async fn attach_and_detach_errors_name_the_secret() {
    let setup = || {
        vec![
            Create(class_with_secret("controller-publish")),
            Create(csi_node("node-1", "id-1")),
            Create(ready_node("node-1")),
            Create(claim("a", "gold")),
            Settle,
        ]
    };
    let not_utf8 = json!({"data": {"password": "/w=="}});
    let corrupt_after_attach = vec![
        Create(secret("s", "one")),
        Create(pod("p", "a")),
        Settle,
        Patch("/api/v1/namespaces/default/secrets/s", not_utf8),
        Delete("/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0"),
    ];
    let rows = [
        (vec![Create(pod("p", "a"))], "attachError", "Secret default/s does not exist"),
        (corrupt_after_attach, "detachError", "default/s"),
    ];
    for (actions, field, expected) in rows {
        let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
        simulation.run(&setup().into_iter().chain(actions).collect::<Vec<_>>(), None).await;
        let attachments = simulation.object("/apis/storage.k8s.io/v1/volumeattachments").await.unwrap();
        let message = attachments["items"][0]["status"][field]["message"].as_str().unwrap_or_default();
        assert!(message.contains(expected), "{field}: {message:?}");
    }
}
