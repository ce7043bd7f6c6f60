//! Tests of node-local drivers, with the built binary: settings that are rejected at the start, and the
//! provisioners of two nodes, each with its own pool, beside a process with the roles `pv-controller` and
//! `protection`.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test fails by panicking, also in what its functions share"
)]

#[path = "common/process.rs"]
mod process;

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use cofferdam_apiserver::{ApiServer, Options, ServeOptions};
use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, PostParams, WatchEvent, WatchParams},
};
use process::Process;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;

const SELECTED_NODE_ANNOTATION: &str = "volume.kubernetes.io/selected-node";
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

fn cofferdam(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    command
        .args(["run", "--namespace", "kube-system", "--compilation-cache"])
        .arg(home.join("cache"))
        .arg("--kubeconfig")
        .arg(home.join("kubeconfig"))
        .args(arguments)
        .env_clear()
        .stdin(Stdio::null());
    command
}

/// Creates the pool of a node, and writes the configuration of its process; returns the path of that file.
fn write_node_config(home: &Path, name: &str) -> PathBuf {
    let pool = home.join(name);
    fs::create_dir_all(pool.join("volumes")).unwrap();
    let text = format!(
        "[backend.pool]\nfile = {:?}\n[backend.pool.settings]\nnode = \"$(node-name)\"\n\
         [backend.pool.pool]\ndirectory = {:?}\n[backend.pool.state]\nfile = {:?}\n",
        home.join("pool.wasm"),
        pool.join("volumes"),
        pool.join("state.db"),
    );
    let file = pool.join("config.toml");
    fs::write(&file, text).unwrap();
    file
}

/// Waits until an object of the kind matches, and returns it. For a deleted object, `matches` gets `None`.
async fn wait_for_object<K>(api: &Api<K>, matches: impl Fn(Option<&Value>) -> bool) -> Value
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    wait_for_selected(api, WatchParams::default(), matches).await
}

async fn wait_for_selected<K>(
    api: &Api<K>,
    params: WatchParams,
    matches: impl Fn(Option<&Value>) -> bool,
) -> Value
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let wait = async {
        let events = api.watch(&params, "0").await.unwrap();
        pin_mut!(events);
        while let Some(event) = events.next().await {
            let (object, deleted) = match event.unwrap() {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(_) | WatchEvent::Error(_) => continue,
            };
            let object = serde_json::to_value(object).unwrap();
            if matches((!deleted).then_some(&object)) {
                return object;
            }
        }
        Value::Null
    };
    tokio::time::timeout(WAIT_TIMEOUT, wait).await.unwrap()
}

/// Number of volumes in a pool. The names of its other files start differently.
fn count_volumes(home: &Path, node: &str) -> usize {
    let entries = fs::read_dir(home.join(node).join("volumes")).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("vol-")).count()
}

#[test]
fn a_node_local_driver_requires_the_node_name() {
    let home = TempDir::new().unwrap();
    fs::write(home.path().join("pool.wasm"), cofferdam_carried::POOL).unwrap();
    let api = "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
        contexts: [{name: x, context: {cluster: x, user: x}}]\n\
        clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: x, user: {}}]\n";
    fs::write(home.path().join("kubeconfig"), api).unwrap();
    let config = write_node_config(home.path(), "n1");
    let named = fs::read_to_string(&config).unwrap().replace("$(node-name)", "n1");
    fs::write(&config, named).unwrap();
    let config = config.to_str().unwrap();
    let run_error = |more: &[&str]| {
        let arguments = [&["--config", config, "--role", "provisioner"][..], more].concat();
        let output = cofferdam(home.path(), &arguments).output().unwrap();
        assert!(!output.status.success());
        let text = String::from_utf8(output.stderr).unwrap();
        text.lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(
        run_error(&[]),
        "cofferdam: backend pool: its storage is on one node (placement `node`): expected that node's name, \
         as in --node-name, and a process on every such node"
    );
    assert_eq!(
        run_error(&["--node-name", "n1", "--role", "attacher"]),
        "cofferdam: driver pool.cofferdam.dev is of one node: expected no role attacher beside it, for its \
         volumes are not attached"
    );
    assert_eq!(
        run_error(&["--node-name", "n1", "--role", "snapshot-controller"]),
        "cofferdam: driver pool.cofferdam.dev is of one node: expected no role snapshot-controller beside it, \
         which runs once in the cluster"
    );
    assert!(run_error(&["--node-deployment"]).contains("expected --node-name"));
    assert!(
        run_error(&["--node-name", "n1", "--leader-election"]).contains("expected no --leader-election"),
        "one node would provision"
    );
    assert!(
        run_error(&["--node-name", "n1", "--node-deployment-max-delay", "1s"])
            .contains("expected at least node-deployment-base-delay")
    );
}

#[tokio::test]
async fn of_two_node_local_provisioners_one_creates_and_deletes_the_volume() {
    let home = TempDir::new().unwrap();
    let home = home.path();
    let api = ApiServer::new(Options::default());
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let serving = api.serve(ServeOptions { addr }).await.unwrap();
    fs::write(home.join("kubeconfig"), serving.kubeconfig()).unwrap();
    fs::write(home.join("pool.wasm"), cofferdam_carried::POOL).unwrap();
    let start = |arguments: &[&str]| Process::start(&mut cofferdam(home, arguments));
    let start_provisioner = |name: &str| {
        let config = write_node_config(home, name);
        let config = config.to_str().unwrap();
        let delays = ["--node-deployment-base-delay", "200ms", "--node-deployment-max-delay", "1s"];
        start(&[&["--config", config, "--role", "provisioner", "--node-name", name], &delays[..]].concat())
    };
    let _nodes = [start_provisioner("n1"), start_provisioner("n2")];
    let _binder = start(&["--role", "pv-controller", "--role", "protection"]);

    let client = Client::new(api.service(), "default");
    let (classes, claims): (Api<StorageClass>, Api<PersistentVolumeClaim>) =
        (Api::all(client.clone()), Api::default_namespaced(client.clone()));
    let volumes: Api<PersistentVolume> = Api::all(client);
    for (name, mode) in [("late", "WaitForFirstConsumer"), ("raced", "Immediate")] {
        let class = json!({
            "metadata": {"name": name}, "provisioner": "pool.cofferdam.dev", "volumeBindingMode": mode,
        });
        classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
    }
    // One claim for each node, selected by the scheduler: then both processes run, and compete for the third.
    for node in ["n1", "n2"] {
        let bound = create_bound_claim(&claims, node, "late", json!({SELECTED_NODE_ANNOTATION: node})).await;
        assert_eq!(bound, node);
    }
    assert_eq!((count_volumes(home, "n1"), count_volumes(home, "n2")), (1, 1));
    let selected_node = create_bound_claim(&claims, "a", "raced", json!({})).await;
    let found = (count_volumes(home, "n1"), count_volumes(home, "n2"));
    assert_eq!(
        found,
        if selected_node == "n1" { (2, 1) } else { (1, 2) },
        "one volume, where the claim says"
    );

    let is_of_claim_a = |volume: &Value| volume["spec"]["claimRef"]["name"] == "a";
    let volume = wait_for_object(&volumes, |volume| volume.is_some_and(is_of_claim_a)).await;
    let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    let expected = json!([{"matchExpressions": [
        {"key": "topology.cofferdam.dev/node", "operator": "In", "values": [selected_node]},
    ]}]);
    assert_eq!(*terms, expected);
    let name = volume["metadata"]["name"].as_str().unwrap();
    claims.delete("a", &DeleteParams::default()).await.unwrap();
    let by_name = WatchParams::default().fields(&format!("metadata.name={name}"));
    wait_for_selected(&volumes, by_name, |volume| volume.is_none()).await;
    assert_eq!(
        (count_volumes(home, "n1"), count_volumes(home, "n2")),
        (1, 1),
        "nothing is left of it, and everything of the others"
    );
    serving.shutdown().await;
}

/// Creates a claim and waits until it is Bound; returns the selected node of the claim.
async fn create_bound_claim(
    claims: &Api<PersistentVolumeClaim>,
    name: &str,
    class: &str,
    annotations: Value,
) -> String {
    let claim = json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Mi"}},
        },
    });
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    let bound = |claim: Option<&Value>| {
        claim.is_some_and(|claim| claim["metadata"]["name"] == name && claim["status"]["phase"] == "Bound")
    };
    let claim = wait_for_object(claims, bound).await;
    claim["metadata"]["annotations"][SELECTED_NODE_ANNOTATION].as_str().unwrap().to_owned()
}
