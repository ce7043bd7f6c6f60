//! Shutdown of the cluster when a part of it fails.

use std::{fs, sync::Arc};

use cofferdam_apiserver::{ApiServer, Options as ApiOptions};
use cofferdam_cluster::observer::NoopStepObserver;
use cofferdam_dev_cluster::{DevCluster, DevClusterOptions, Mounts, NodeDriver, NodeOptions, NodePlugin};
use kube::Client;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

const DRIVER: &str = "own.example.com";

#[tokio::test]
async fn registration_socket_that_cannot_be_bound_stops_the_cluster() {
    let directory = TempDir::new().unwrap();
    let endpoint = format!("unix://{}/own.sock", directory.path().display());
    let nodes = DevCluster::new(DevClusterOptions {
        client: Client::new(ApiServer::new(ApiOptions::default()).service(), "default"),
        clock: cofferdam_cluster::system_clock(),
        observer: Arc::new(NoopStepObserver),
        nodes: vec![NodeOptions::new("node-1")],
        directory: directory.path().to_owned(),
        drivers: vec![NodeDriver {
            name: DRIVER.to_owned(),
            on_every_node: true,
            plugin: NodePlugin::External(endpoint.parse().unwrap()),
        }],
        mounts: Mounts::Recorded,
    })
    .await
    .unwrap();
    let socket = directory.path().join(format!("1/reg/{DRIVER}@reg.sock"));
    fs::create_dir(&socket).unwrap();
    let stop = CancellationToken::new();
    let error = nodes.run(stop.clone()).await.unwrap_err().to_string();
    assert!(error.contains(&*socket.to_string_lossy()), "{error}");
    assert!(stop.is_cancelled(), "all other parts are stopped");
}
