//! How the nodes end when nobody stops them.

use std::{fs, sync::Arc};

use cofferdam_apiserver::{ApiServer, Options as ApiOptions};
use cofferdam_dev_cluster::{Driver, DriverNode, Mounts, Nodes, Options, Silent};
use kube::Client;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

const DRIVER: &str = "own.example.com";

#[tokio::test]
async fn a_driver_that_can_never_be_registered_ends_the_nodes_and_says_why() {
    let directory = TempDir::new().unwrap();
    let own = format!("unix://{}/own.sock", directory.path().display());
    let nodes = Nodes::new(Options {
        client: Client::new(ApiServer::new(ApiOptions::default()).service(), "default"),
        clock: cofferdam_cluster::system_clock(),
        observer: Arc::new(Silent),
        nodes: vec!["node-1".to_owned()],
        directory: directory.path().to_owned(),
        drivers: vec![Driver {
            name: DRIVER.to_owned(),
            everywhere: true,
            node: DriverNode::Own(own.parse().unwrap()),
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
    assert!(stop.is_cancelled(), "everything else is over, too");
}
