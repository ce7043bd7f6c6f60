//! Tests of `cofferdam status`: the built binary and an API.
#![expect(clippy::unwrap_used, reason = "tests: a failed step is the failure of the test")]

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
};

use cofferdam_apiserver::{ApiServer, Options, ServeOptions};
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass};
use kube::{Api, Client, api::PostParams};
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

    let nothing = "no storage: there is no CSI driver, no claim, no volume and no attachment\n";
    assert_eq!(run_status(&kubeconfig, &[]).await, (nothing.to_owned(), Some(0)));

    let client = Client::new(api.service(), "default");
    let class = json!({"metadata": {"name": "fast"}, "provisioner": "array.example.com"});
    let class: StorageClass = serde_json::from_value(class).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &class).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client, "default");
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

    for (arguments, line) in [
        (
            ["--driver", "nobody"],
            "driver nobody is not in the cluster: expected a CSIDriver, a class, a volume or a \
             node that names it",
        ),
        (
            ["--stuck-after", "soon"],
            "flag --stuck-after: \"soon\" is not a duration: expected one above zero such as 500ms, 10s or \
             1m30s",
        ),
    ] {
        assert_eq!(run_status(&kubeconfig, &arguments).await, (format!("cofferdam: {line}\n"), Some(1)));
    }
    serving.shutdown().await;
    let (text, code) = run_status(&kubeconfig, &[]).await;
    let api = format!("https://{address}/ (KUBECONFIG={})", kubeconfig.display());
    let start = format!("cofferdam: cannot list csidrivers of the API at {api}: ");
    assert!(text.starts_with(&start) && text.lines().count() == 1, "{text}");
    assert_eq!(code, Some(1));
}
