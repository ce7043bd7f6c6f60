//! A process with every role that runs once per cluster is killed repeatedly with SIGKILL while simulated
//! users create, expand and delete claims, and create and delete pods. kube-apiserver, kube-scheduler and the
//! upstream controllers that the roles do not replace run, except the node lifecycle controller. The suite
//! simulates the kubelets; no container runs. In the end every user is finished, no pod, claim,
//! PersistentVolume or VolumeAttachment is left, no Node has a volume in its status, and the storage has no
//! volume.

mod cluster_state;
mod kills;
mod nodes;
pub(super) mod snapshots;
mod users;

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::{Api, Client, api::PostParams};

use crate::{
    account::{Account, CLUSTER_ROLES},
    claims::Claims,
    cofferdam::{self, MemoryDriver},
    control_plane::{ControlPlane, ControlPlaneOptions, UNREPLACED_CONTROLLERS},
    namespaces, pod,
    run::SuiteRun,
    wait::until,
};
use cluster_state::ClusterState;
use kills::{KilledProcess, SharedProgress, USERS, kill_repeatedly};
use nodes::FakeNode;
use users::UserWorkload;

const DRIVER: &str = "crashes.conformance.cofferdam.dev";
const NAMESPACE: &str = "crashes";
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Time from the end of the last user until nothing is left in the API.
const TIMEOUT: Duration = Duration::from_secs(240);
/// Pause between two steps of all nodes and users.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let controllers = format!("{UNREPLACED_CONTROLLERS},-node-lifecycle-controller");
    let options = ControlPlaneOptions {
        controllers: Some(controllers),
        has_scheduler: true,
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(run, options).await?;
    let client = plane.client().clone();
    let driver = MemoryDriver::new(run, DRIVER)?;
    let object: CSIDriver = serde_json::from_value(pod::csi_driver_object(DRIVER))?;
    Api::all(client.clone()).create(&PostParams::default(), &object).await?;
    // Creates the namespace and the StorageClass.
    Claims::new(&client, NAMESPACE, DRIVER).await?;
    let mut nodes = Vec::new();
    for name in NODES {
        nodes.push(FakeNode::new(&client, name, DRIVER).await?);
    }
    let account = Account::new(run, &plane, &CLUSTER_ROLES).await?;
    let port = run.free_port()?;
    let spec = cofferdam::command_for(run, account.kubeconfig(), &CLUSTER_ROLES, &driver, port)
        .arg(format_args!("--namespace={}", namespaces::COFFERDAM))
        // The orphan scan must not hide leaks from the suite.
        .arg("--orphan-scan-interval=off");
    let mut cofferdam = KilledProcess::start(run, spec, port).await?;

    let progress = SharedProgress::default();
    let mut users = UserWorkload::new(&client, NAMESPACE);
    tokio::try_join!(
        run_workload(&client, &mut nodes, &mut users, &progress),
        kill_repeatedly(run, &mut cofferdam, &progress, "claims, each with two pods on different nodes")
    )?;
    let volumes = users.volume_count();
    ensure!(volumes == USERS, "{volumes} volumes for {USERS} claims");
    until("nothing is left in the API", TIMEOUT, async || {
        let remaining = ClusterState::read(&client).await?.remaining_objects();
        ensure!(remaining.is_empty(), "left: {remaining}");
        Ok(())
    })
    .await?;
    cofferdam.process.stop().await?;
    let stored = driver.volumes(run).await?;
    ensure!(stored.is_empty(), "{} volumes are left at the storage: {stored:?}", stored.len());
    plane.stop().await
}

/// Runs nodes and users until all users are finished.
async fn run_workload(
    client: &Client,
    nodes: &mut [FakeNode],
    users: &mut UserWorkload,
    progress: &SharedProgress,
) -> Result<()> {
    while progress.steps_and_finished.get().1 < USERS {
        users.create_until(progress.expected_users.get()).await?;
        let state = ClusterState::read(client).await?;
        for number in 0..nodes.len() {
            let other_nodes = nodes.iter().enumerate().filter(|(other, _)| *other != number);
            let mounted_elsewhere: BTreeSet<String> =
                other_nodes.flat_map(|(_, node)| node.mounted()).cloned().collect();
            if let Some(node) = nodes.get_mut(number) {
                node.step(&state, &mounted_elsewhere).await?;
            }
        }
        users.step(&state).await?;
        progress.steps_and_finished.set(users.progress());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
