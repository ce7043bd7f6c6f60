//! Tests of `cofferdam status`: the built binary and an API.
#![expect(clippy::unwrap_used, reason = "tests: a failed step is the failure of the test")]

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
};

use cofferdam_apiserver::{ApiServer, Options, ServeOptions};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, PostParams},
};
use serde_json::{Value, json};

/// Number of claims: one more than a page of a list has.
const CLAIMS: usize = 501;

async fn run_status(kubeconfig: &std::path::Path, arguments: &[&str]) -> (String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    command.arg("status").args(arguments).env_clear().env("KUBECONFIG", kubeconfig).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    (String::from_utf8([output.stdout, output.stderr].concat()).unwrap(), output.status.code())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_reads_lists_page_by_page_and_reports_errors() {
    let scratch = tempfile::TempDir::new().unwrap();
    let api = ApiServer::new(Options::default());
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let serving = api.serve(ServeOptions { addr }).await.unwrap();
    let kubeconfig = scratch.path().join("kubeconfig");
    std::fs::write(&kubeconfig, serving.kubeconfig()).unwrap();
    let address = serving.local_addr();

    let nothing = "no storage: there is no CSI driver, no claim, no volume, no attachment and no snapshot\n";
    assert_eq!(run_status(&kubeconfig, &[]).await, (nothing.to_owned(), Some(0)));

    let client = Client::new(api.service(), "default");
    let class = json!({"metadata": {"name": "fast"}, "provisioner": "array.example.com"});
    let class: StorageClass = serde_json::from_value(class).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &class).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    for number in 0..CLAIMS {
        let claim = json!({
            "metadata": {"name": format!("c{number}")},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                     "resources": {"requests": {"storage": "1Gi"}}},
        });
        claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    }

    let (text, code) = run_status(&kubeconfig, &["--driver", "array.example.com", "-o", "json"]).await;
    assert_eq!(code, Some(0), "{text}");
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status["drivers"][0]["claims"], json!({"pending": CLAIMS}), "{text}");
    assert_eq!(status["drivers"][0]["waiting"]["provision"]["count"], CLAIMS);
    let (text, _) = run_status(&kubeconfig, &["--stuck-after", "1ns"]).await;
    assert!(text.contains("claim default/c7: to provision for "), "{text}");
    assert!(!text.contains("snapshots"), "{text}");

    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "s"},
        "spec": {"volumeSnapshotClassName": "missing", "source": {"persistentVolumeClaimName": "c7"}},
    });
    let kind = ApiResource {
        group: "snapshot.storage.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "snapshot.storage.k8s.io/v1".to_owned(),
        kind: "VolumeSnapshot".to_owned(),
        plural: "volumesnapshots".to_owned(),
    };
    let snapshots: Api<DynamicObject> = Api::namespaced_with(client, "default", &kind);
    snapshots.create(&PostParams::default(), &serde_json::from_value(snapshot).unwrap()).await.unwrap();
    let (text, _) = run_status(&kubeconfig, &["--stuck-after", "1ns"]).await;
    assert!(text.contains("\n  snapshots    1 pending\n"), "{text}");
    let stuck = "snapshot default/s: to snapshot for ";
    let reason = ": VolumeSnapshotClass missing does not exist\n";
    assert!(text.contains(stuck) && text.contains(reason), "{text}");

    for (arguments, code, line) in [
        (
            ["--driver", "nobody"],
            1,
            "driver nobody is not in the cluster: expected a CSIDriver, a class, a volume or a \
             node that names it",
        ),
        (
            ["--stuck-after", "soon"],
            2,
            "flag --stuck-after: \"soon\" is not a duration: expected one above zero such as 500ms, 10s or \
             1m30s",
        ),
    ] {
        assert_eq!(run_status(&kubeconfig, &arguments).await, (format!("cofferdam: {line}\n"), Some(code)));
    }
    serving.shutdown().await;
    let (text, code) = run_status(&kubeconfig, &[]).await;
    let api = format!("https://{address}/ (KUBECONFIG={})", kubeconfig.display());
    let start = format!("cofferdam: cannot list csidrivers of the API at {api}: ");
    assert!(text.starts_with(&start) && text.lines().count() == 1, "{text}");
    assert_eq!(code, Some(1));
}

/// Every user who can write ConfigMaps in a namespace can write a report there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_are_counted_from_the_reports_of_one_namespace_unless_requested() {
    let scratch = tempfile::TempDir::new().unwrap();
    let api = ApiServer::new(Options::default());
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let serving = api.serve(ServeOptions { addr }).await.unwrap();
    let kubeconfig = scratch.path().join("kubeconfig");
    std::fs::write(&kubeconfig, serving.kubeconfig()).unwrap();
    let client = Client::new(api.service(), "default");
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "storage"}})).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let driver = "array.example.com";
    // (namespace, name, orphans); a process writes only ConfigMaps of the last name
    for (namespace, name, orphans) in [
        ("storage", "another-name", 9),
        ("storage", "cofferdam-orphans-array.example.com", 2),
        ("default", "cofferdam-orphans-array.example.com", 0),
    ] {
        let report = json!({
            "driver": driver, "time": null, "leakDetection": {"kind": "owner"}, "deletionsFrozen": false,
            "counts": {"orphan": orphans}, "orphanedBytes": 0, "orphans": [], "unlistedOrphans": 0,
            "failure": null,
        });
        let map: ConfigMap = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"cofferdam.dev/orphans": "report"}},
            "data": {"driver": driver, "report": report.to_string()},
        }))
        .unwrap();
        Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &map).await.unwrap();
    }
    let (in_default, in_storage) = (
        json!({"namespace": "default", "kind": "volume", "count": 0}),
        json!({"namespace": "storage", "kind": "volume", "count": 2}),
    );
    for (flags, expected) in [
        (&[][..], json!([in_default])),
        (&["--namespace", "storage"], json!([in_storage])),
        (&["--namespace", "kube-system"], Value::Null),
        (&["--all-namespaces"], json!([in_default, in_storage])),
        (&["-A"], json!([in_default, in_storage])),
    ] {
        let (text, code) = run_status(&kubeconfig, &[&["-o", "json"], flags].concat()).await;
        assert_eq!(code, Some(0), "{text}");
        let status: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status["drivers"][0]["orphans"], expected, "{flags:?}");
    }
    let (text, _) = run_status(&kubeconfig, &["-A"]).await;
    assert!(text.contains("2 orphans, see `cofferdam orphans --namespace storage`\n"), "{text}");
    assert_eq!(run_status(&kubeconfig, &["-A", "--namespace", "storage"]).await.1, Some(2));
    serving.shutdown().await;
}
