//! A process with every role that runs once per cluster is killed repeatedly with SIGKILL while simulated
//! users create, expand and delete claims, and create and delete pods. kube-apiserver, kube-scheduler and the
//! upstream controllers that the roles do not replace run, except the node lifecycle controller. The suite
//! simulates the kubelets; no container runs. In the end every user is finished, no pod, claim,
//! PersistentVolume or VolumeAttachment is left, no Node has a volume in its status, and the storage has no
//! volume.

mod nodes;
mod snapshot;
mod users;

use std::{
    cell::Cell,
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::{Api, Client, api::PostParams};

use crate::{
    account::{Account, CLUSTER_ROLES},
    claims::Claims,
    cofferdam::{self, MemoryDriver},
    control_plane::{self, ControlPlane, ControlPlaneOptions, UNREPLACED_CONTROLLERS},
    namespaces, pod,
    process::ManagedProcess,
    run::SuiteRun,
    seeded_rng::seeded_rng,
    sidecar::plain_client,
    wait::until,
};
use nodes::FakeNode;
use snapshot::ClusterSnapshot;
use users::UserWorkload;

const DRIVER: &str = "crashes.conformance.cofferdam.dev";
const NAMESPACE: &str = "crashes";
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const KILLS: usize = 50;
/// Number of users that start before each kill. Each has one claim, and two pods of which the second replaces
/// the first.
const CLAIMS_PER_KILL: usize = 3;
/// Every other kill happens once all users together have made a random number of steps since the previous
/// kill, at most this number. The [`CLAIMS_PER_KILL`] users of a wave make 12 steps.
const MAX_STEPS_BEFORE_KILL: usize = 8;
/// Minimum number of kills that hit a working process: a user has made a step since the previous kill, and
/// some users are not finished. About 25 kills do.
const MIN_KILLS_DURING_WORK: usize = 15;
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit of each wait: for the steps before a kill, from the readiness of the last process until all
/// users are finished, and from then until nothing is left in the API.
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
    let mut cofferdam = CofferdamProcess::start(run, &account, &driver).await?;

    let progress = SharedProgress::default();
    let mut users = UserWorkload::new(&client, NAMESPACE);
    tokio::try_join!(
        run_workload(&client, &mut nodes, &mut users, &progress),
        kill_repeatedly(run, &mut cofferdam, &progress)
    )?;
    let (volumes, claims) = (users.volume_count(), KILLS * CLAIMS_PER_KILL);
    ensure!(volumes == claims, "{volumes} volumes for {claims} claims");
    until("nothing is left in the API", TIMEOUT, async || {
        let remaining = ClusterSnapshot::read(&client).await?.remaining_objects();
        ensure!(remaining.is_empty(), "left: {remaining}");
        Ok(())
    })
    .await?;
    cofferdam.process.stop().await?;
    let stored = driver.volumes(run).await?;
    ensure!(stored.is_empty(), "{} volumes are left at the storage: {stored:?}", stored.len());
    plane.stop().await
}

/// Progress of the users, shared by [`run_workload`] and [`kill_repeatedly`].
#[derive(Debug, Default)]
struct SharedProgress {
    /// Number of users that have to be started by now.
    expected_users: Cell<usize>,
    /// Number of steps made by all users, and number of users that are finished.
    steps_and_finished: Cell<(usize, usize)>,
}

/// Runs nodes and users until all users are finished.
async fn run_workload(
    client: &Client,
    nodes: &mut [FakeNode],
    users: &mut UserWorkload,
    progress: &SharedProgress,
) -> Result<()> {
    while progress.steps_and_finished.get().1 < KILLS * CLAIMS_PER_KILL {
        users.create_until(progress.expected_users.get()).await?;
        let snapshot = ClusterSnapshot::read(client).await?;
        for number in 0..nodes.len() {
            let other_nodes = nodes.iter().enumerate().filter(|(other, _)| *other != number);
            let mounted_elsewhere: BTreeSet<String> =
                other_nodes.flat_map(|(_, node)| node.mounted()).cloned().collect();
            if let Some(node) = nodes.get_mut(number) {
                node.step(&snapshot, &mounted_elsewhere).await?;
            }
        }
        users.step(&snapshot).await?;
        progress.steps_and_finished.set(users.progress());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Starts [`KILLS`] waves of users, and kills the process after the start of each. Then waits until all users
/// are finished.
async fn kill_repeatedly(
    run: &SuiteRun,
    cofferdam: &mut CofferdamProcess,
    progress: &SharedProgress,
) -> Result<()> {
    let mut rng = seeded_rng()?;
    // Duration of a start: every other process is killed around the end of its start, the others after some
    // steps of the users.
    let started = Instant::now();
    cofferdam.process.stop().await?;
    cofferdam.process.restart()?;
    cofferdam.wait_ready().await?;
    let start = started.elapsed();
    let (mut ready, mut in_work, mut steps_before) = (0, 0, 0);
    for kill in 1..=KILLS {
        progress.expected_users.set(kill * CLAIMS_PER_KILL);
        if kill % 2 == 0 {
            let steps = steps_before + rng.usize(1..=MAX_STEPS_BEFORE_KILL);
            until("the users make progress", TIMEOUT, async || {
                let steps_made = progress.steps_and_finished.get().0;
                ensure!(steps_made >= steps, "{steps_made} of {steps} steps");
                Ok(())
            })
            .await?;
        } else {
            let lifetime = start.mul_f64(0.3 + rng.f64() * 1.4);
            tokio::time::sleep(lifetime).await;
        }
        ready += usize::from(cofferdam.is_ready().await);
        let (steps_made, gone) = progress.steps_and_finished.get();
        in_work += usize::from(steps_made > steps_before && gone < kill * CLAIMS_PER_KILL);
        cofferdam.process.kill().await?;
        steps_before = progress.steps_and_finished.get().0;
        cofferdam.process.restart()?;
    }
    let ended = Instant::now();
    let gone = progress.steps_and_finished.get().1;
    run.add_note(&format!("{KILLS} times kill -9: {ready} processes were ready, {in_work} were working"))?;
    ensure!(
        in_work >= MIN_KILLS_DURING_WORK,
        "{in_work} of {KILLS} processes were killed during work: expected at least {MIN_KILLS_DURING_WORK}"
    );
    cofferdam.wait_ready().await?;
    let claims = KILLS * CLAIMS_PER_KILL;
    until("all users are finished", TIMEOUT, async || {
        let (steps_made, gone) = progress.steps_and_finished.get();
        ensure!(gone == claims, "{gone} of {claims} are, after {steps_made} steps");
        Ok(())
    })
    .await?;
    run.add_note(&format!(
        "{claims} claims, each with two pods on different nodes: {gone} finished at the last kill, \
         all {:.1} s later",
        ended.elapsed().as_secs_f64()
    ))
}

/// `cofferdam` with every role that runs once per cluster.
struct CofferdamProcess {
    process: ManagedProcess,
    client: Client,
}

impl CofferdamProcess {
    async fn start(run: &SuiteRun, account: &Account, driver: &MemoryDriver) -> Result<Self> {
        let port = run.free_port()?;
        let spec = cofferdam::command_for(run, account.kubeconfig(), &CLUSTER_ROLES, driver, port)
            .arg(format_args!("--namespace={}", namespaces::COFFERDAM))
            // The orphan scan must not hide leaks from the suite.
            .arg("--orphan-scan-interval=off");
        let mut process = Self { process: ManagedProcess::start(run, spec)?, client: plain_client(port)? };
        process.wait_ready().await?;
        Ok(process)
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let client = &self.client;
        self.process
            .wait_ready(READY_TIMEOUT, async || control_plane::probe_path(client, "/readyz").await)
            .await
    }

    async fn is_ready(&self) -> bool {
        control_plane::probe_path(&self.client, "/readyz").await.is_ok()
    }
}
