//! Leader election of processes whose component has a `state`, with the built binary.
#![expect(clippy::unwrap_used, reason = "tests: a failed step is the failure of the test")]

#[path = "common/process.rs"]
mod process;

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use cofferdam_apiserver::{ApiServer, Options, ServeOptions};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{Api, Client, api::PostParams};
use process::Process;
use serde_json::json;
use tempfile::TempDir;

const LEASE: &str = "memory-cofferdam-dev";
const NAMESPACE: &str = "storage";
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Starts the provisioner of the memory driver, with its state in a file of this name.
fn start_provisioner(home: &Path, name: &str) -> Process {
    let (component, state) = (home.join("memory.wasm"), home.join(format!("{name}.redb")));
    let text = format!("[backend.memory]\nfile = {component:?}\n[backend.memory.state]\nfile = {state:?}\n");
    let configuration = home.join(format!("{name}.toml"));
    fs::write(&configuration, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    command
        .args(["run", "--role=provisioner", "--leader-election", "--leader-election-lease-duration=3s"])
        .args(["--leader-election-renew-deadline=2s", "--leader-election-retry-period=300ms"])
        .args(["--namespace", NAMESPACE, "--leader-election-namespace", NAMESPACE, "--config"])
        .arg(&configuration)
        .arg("--kubeconfig")
        .arg(home.join("kubeconfig"))
        .arg("--compilation-cache")
        .arg(home.join("cache"))
        .env_clear()
        .stdin(Stdio::null());
    Process::start_with_log(&mut command, home.join(format!("{name}.log")))
}

async fn poll<T>(what: &str, mut value: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = value().await {
            return value;
        }
        assert!(started.elapsed() < TIMEOUT, "{what}: expected within {TIMEOUT:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// Waits for a holder that is not `former`, and returns it.
async fn wait_holder(leases: &Api<Lease>, former: &str) -> String {
    poll("a holder of the Lease", async || {
        let holder = leases.get_opt(LEASE).await.unwrap()?.spec?.holder_identity?;
        (!holder.is_empty() && holder != former).then_some(holder)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_with_a_state_does_not_wait_for_one_that_works() {
    let home = TempDir::new().unwrap();
    let home = home.path();
    let api = ApiServer::new(Options::default());
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let serving = api.serve(ServeOptions { addr }).await.unwrap();
    fs::write(home.join("kubeconfig"), serving.kubeconfig()).unwrap();
    fs::write(home.join("memory.wasm"), cofferdam_carried::MEMORY).unwrap();
    let client = Client::new(api.service(), "default");
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);

    let mut owner = start_provisioner(home, "owner");
    let holder = wait_holder(&leases, "").await;
    let mut other = start_provisioner(home, "other");
    assert_eq!(other.wait().await.code(), Some(1));
    let log = other.log();
    let error = format!(
        "cofferdam: lease {NAMESPACE}/{LEASE}: {holder:?} renews it; the `state` or `pool` of the \
         components of memory.cofferdam.dev has one owner: expected one replica, with strategy Recreate"
    );
    assert_eq!(log.lines().last(), Some(error.as_str()), "{log}");

    // The Lease of a dead process is not in use.
    owner.end_with("KILL").await;
    let mut successor = start_provisioner(home, "successor");
    wait_holder(&leases, &holder).await;
    assert!(successor.is_running());
    serving.shutdown().await;
}
