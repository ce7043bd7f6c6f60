//! The scenarios of the roles on kube-apiserver and etcd, except those that are skipped on Kubernetes. The
//! roles run within the suite's process, with a scripted driver. Each scenario runs once without a crash, and
//! random ones once more with a crash: the first simulated process is killed after one of its effects (an API
//! write or a driver call), does not get the response, and is replaced. A scenario runs only without a crash
//! if the first process has no effect, because the process of another node does all the work. At the end of
//! each run, new processes must find nothing to do: no write except of Events, and no driver call, until they
//! are idle.

use std::{cell::RefCell, fmt::Debug, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cofferdam_cluster::connect;
use cofferdam_controllers::Role;
use cofferdam_sim::{
    ApiTransport as Reached, EnvironmentKind, Scenario, Simulation, TestCluster, TestUser,
    polled_snapshots_in_real_time, scenarios, skipped_count,
    test_cluster::{BoxError, Clock, ClusterFuture, client_transport},
};
use futures::future::try_join_all;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret},
    storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment},
};
use kube::{
    Api, Client, Config, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
    config::Kubeconfig,
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use crate::{
    account::Account,
    control_plane::{ApiUser, ControlPlane, ControlPlaneOptions},
    namespaces, print_status,
    run::SuiteRun,
    seeded_rng::seeded_rng,
    snapshot_crds,
    wait::until,
};

const TIMEOUT: Duration = Duration::from_secs(180);
const BACKUP_NAME: &str = "backup";
/// Control planes that run scenarios at the same time. A scenario mostly waits until the cluster is quiet:
/// one control plane uses about 15 % of a processor. Each has an etcd of its own, because scenarios use the
/// same names, restart the API and restore etcd.
const PARALLEL_CLUSTERS: usize = 6;
/// Scenarios that run once more with a crash, chosen anew in each run: `make test` crashes every scenario
/// after each of its effects.
const CRASHED_SCENARIOS: usize = 100;

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let mut rng = seeded_rng()?;
    let mut rows: Vec<ScenarioRun> = scenarios()
        .into_iter()
        .chain(polled_snapshots_in_real_time(EnvironmentKind::Kubernetes))
        .enumerate()
        .map(|(row, scenario)| ScenarioRun { row, scenario, rng: rng.fork(), is_crashed: false })
        .collect();
    let runs = |row: &&mut ScenarioRun| row.scenario.skip_reason(EnvironmentKind::Kubernetes).is_none();
    for row in rng.choose_multiple(rows.iter_mut().filter(runs), CRASHED_SCENARIOS) {
        row.is_crashed = true;
    }
    let (rows, summary) = (RefCell::new(rows.into_iter()), RefCell::new(ScenarioSummary::default()));
    let clusters =
        (1..=PARALLEL_CLUSTERS).map(|n| run_cluster(run, run.subdirectory(&n.to_string()), &rows, &summary));
    try_join_all(clusters).await?;
    let ScenarioSummary { completed, crashed, skipped, mut differences } = summary.into_inner();
    // In the order of the table, whichever control plane ran a row. The sort is stable.
    differences.sort_by_key(|(row, _)| *row);
    let differences: Vec<String> = differences.into_iter().map(|(_, difference)| difference).collect();
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    let expected = skipped_count(EnvironmentKind::Kubernetes);
    ensure!(
        skipped == expected && completed > 0,
        "{skipped} scenarios skipped and {completed} run: expected {expected} skipped"
    );
    // Those of node-local drivers may have no effect to crash after.
    ensure!(crashed > CRASHED_SCENARIOS / 2, "only {crashed} of {CRASHED_SCENARIOS} scenarios crashed");
    run.add_note(&format!("{completed} scenarios, {crashed} of them once more with a crash"))
}

/// A scenario and its random generator. The generators are forked from the suite's seeded one in the order of
/// the scenarios' table: the numbers of a scenario do not depend on the cluster that runs it.
struct ScenarioRun {
    /// Position of the scenario in the table, from 0.
    row: usize,
    scenario: Scenario,
    rng: fastrand::Rng,
    /// True if the scenario also runs with a crash.
    is_crashed: bool,
}

/// Numbers of scenarios, and the differences between their results and the expected ones.
#[derive(Default)]
struct ScenarioSummary {
    /// Scenarios that ran without a crash.
    completed: usize,
    /// Those of them that also ran with a crash.
    crashed: usize,
    /// Scenarios that are skipped on Kubernetes.
    skipped: usize,
    /// Differences of all runs, each with the position of its scenario.
    differences: Vec<(usize, String)>,
}

/// Starts a control plane, and runs scenarios on it until none is left in `rows`, from which all clusters
/// take.
async fn run_cluster(
    run: &SuiteRun,
    child_run: Result<SuiteRun>,
    rows: &RefCell<impl Iterator<Item = ScenarioRun>>,
    summary: &RefCell<ScenarioSummary>,
) -> Result<()> {
    let child_run = child_run?;
    // The role `protection` removes finalizers: no upstream controller runs.
    let mut plane = ControlPlane::start(&child_run, ControlPlaneOptions::default()).await?;
    let client = plane.client().clone();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    until("the system namespaces exist", TIMEOUT, async || {
        for name in ["default", "kube-system"] {
            namespaces.get(name).await?;
        }
        Ok(())
    })
    .await?;
    snapshot_crds::install(&client).await?;
    let roles = Role::ALL.map(Role::as_str);
    let account = Account::in_namespace(&child_run, &plane, &roles, namespaces::SCENARIOS).await?;
    let (operations, requests) = mpsc::channel(1);
    let cluster = Arc::new(KubernetesCluster {
        user: config(&plane.kubeconfig(ApiUser::Admin)?).await?,
        process: config(account.kubeconfig()).await?,
        operations,
    });
    let scenarios = async {
        let next = || rows.borrow_mut().next();
        while let Some(row) = next() {
            run_with_and_without_crash(run, &client, &cluster, row, summary).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        finished = scenarios => finished?,
        stopped = serve_operations(&child_run, &mut plane, requests) => stopped?,
    }
    drop((namespaces, client, cluster));
    plane.stop().await
}

async fn config(kubeconfig: &Path) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
    config.default_retry = false;
    Ok(config)
}

/// Runs a scenario without a crash, and then perhaps with a crash of the first simulated process after a
/// random one of its effects. The second run is left out if this process has no effect, because the process
/// of another node does all the work. A scenario that is skipped on Kubernetes is not run, only counted and
/// noted.
async fn run_with_and_without_crash(
    run: &SuiteRun,
    client: &Client,
    cluster: &Arc<KubernetesCluster>,
    ScenarioRun { row, scenario, mut rng, is_crashed }: ScenarioRun,
    summary: &RefCell<ScenarioSummary>,
) -> Result<()> {
    if let Some(why) = scenario.skip_reason(EnvironmentKind::Kubernetes) {
        summary.borrow_mut().skipped += 1;
        return run.add_note(&format!("skipped: {}: {why}", scenario.name));
    }
    print_status(format_args!("  {}", scenario.name));
    let (differences, effects) = run_scenario(client, cluster, &scenario, None).await?;
    {
        let mut summary = summary.borrow_mut();
        summary.differences.extend(differences.into_iter().map(|difference| (row, difference)));
        summary.completed += 1;
    }
    // All effects are those of a process on another node: the first process has none after which to crash.
    if effects == 0 && !scenario.storage_nodes.is_empty() {
        return Ok(());
    }
    ensure!(effects > 0, "{} has no effect after which to crash", scenario.name);
    if !is_crashed {
        return Ok(());
    }
    let n = rng.usize(1..=effects);
    let (differences, _) = run_scenario(client, cluster, &scenario, Some(n)).await?;
    let mut summary = summary.borrow_mut();
    summary
        .differences
        .extend(differences.into_iter().map(|d| (row, format!("killed after effect {n} of {effects}: {d}"))));
    summary.crashed += 1;
    Ok(())
}

/// Deletes the objects of the previous run, and runs a scenario. `crash_after` is the number of the effect,
/// from 1, after which the first process is killed; `None` for a run without a crash. Returns the differences
/// from the expected result, and the number of effects of the first process.
async fn run_scenario(
    client: &Client,
    cluster: &Arc<KubernetesCluster>,
    scenario: &Scenario,
    crash_after: Option<usize>,
) -> Result<(Vec<String>, usize)> {
    delete_all_objects(client).await?;
    let (creates, deletes) = (scenario.create_faults.clone(), scenario.delete_faults.clone());
    let simulation =
        Simulation::on_cluster(Arc::clone(cluster) as Arc<dyn TestCluster>, &Role::ALL, creates, deletes)
            .map_err(|error| anyhow!(error))?;
    let simulation = scenario.configure(simulation);
    let (outcome, effects) = simulation.run(&scenario.actions, crash_after).await;
    Ok((scenario.real_time_differences(outcome, crash_after.is_some()), effects.len()))
}

/// Deletes the objects of the previous run: all objects of the kinds below in the cluster or in the namespace
/// `default`, but of ConfigMaps only those whose names start with `cofferdam-`.
async fn delete_all_objects(client: &Client) -> Result<()> {
    let default = || client.clone();
    for (kind, resource) in snapshot_crds::resources() {
        let api = match kind {
            "VolumeSnapshot" => Api::default_namespaced_with(default(), &resource),
            _ => Api::all_with(default(), &resource),
        };
        delete_objects_of_kind::<DynamicObject>(kind, &api, "").await?;
    }
    delete_objects::<VolumeAttachment>(&Api::all(default()), "").await?;
    delete_objects::<CSINode>(&Api::all(default()), "").await?;
    delete_objects::<CSIDriver>(&Api::all(default()), "").await?;
    delete_objects::<Node>(&Api::all(default()), "").await?;
    delete_objects::<Pod>(&Api::default_namespaced(default()), "").await?;
    delete_objects::<PersistentVolumeClaim>(&Api::default_namespaced(default()), "").await?;
    delete_objects::<PersistentVolume>(&Api::all(default()), "").await?;
    delete_objects::<StorageClass>(&Api::all(default()), "").await?;
    // k8s-openapi does not have the v1 type yet.
    let kind = GroupVersionKind::gvk("storage.k8s.io", "v1", "VolumeAttributesClass");
    let kind = ApiResource::from_gvk_with_plural(&kind, "volumeattributesclasses");
    delete_objects_of_kind::<DynamicObject>("VolumeAttributesClass", &Api::all_with(default(), &kind), "")
        .await?;
    delete_objects::<ConfigMap>(&Api::default_namespaced(default()), "cofferdam-").await?;
    delete_objects::<Secret>(&Api::default_namespaced(default()), "").await?;
    delete_objects::<Event>(&Api::default_namespaced(default()), "").await
}

/// Deletes the objects of a kind whose names start with `prefix`, and their finalizers. Waits until none is
/// left.
async fn delete_objects<K>(api: &Api<K>, prefix: &str) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    delete_objects_of_kind(&K::kind(&()), api, prefix).await
}

async fn delete_objects_of_kind<K>(kind: &str, api: &Api<K>, prefix: &str) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let what = format!("every {kind} is deleted");
    until(&what, TIMEOUT, async || {
        let mut items = api.list(&ListParams::default()).await?.items;
        items.retain(|item| item.meta().name.as_deref().is_some_and(|name| name.starts_with(prefix)));
        for item in &items {
            let name = item.meta().name.as_deref().unwrap_or_default();
            if item.meta().finalizers.is_some() {
                let no_finalizers = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
                api.patch(name, &PatchParams::default(), &no_finalizers).await?;
            }
            match api.delete(name, &DeleteParams::default().grace_period(0)).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                deleted => drop(deleted?),
            }
        }
        ensure!(items.is_empty(), "{} existed", items.len());
        Ok(())
    })
    .await
}

/// An operation on the whole cluster.
#[derive(Clone, Copy, Debug)]
enum ClusterOperation {
    Compact,
    Backup,
    Restore,
}

type ClusterOperationRequest = (ClusterOperation, oneshot::Sender<Result<()>>);

/// Performs the operations that scenarios request. Fails when no scenario can request one any more.
async fn serve_operations(
    run: &SuiteRun,
    plane: &mut ControlPlane,
    mut requests: mpsc::Receiver<ClusterOperationRequest>,
) -> Result<()> {
    while let Some((operation, answer)) = requests.recv().await {
        let result = match operation {
            ClusterOperation::Compact => plane.compact().await,
            ClusterOperation::Backup => plane.snapshot_etcd(run, BACKUP_NAME).await,
            ClusterOperation::Restore => plane.restore(run, BACKUP_NAME).await,
        };
        // The scenario may have been cancelled.
        let _ = answer.send(result);
    }
    bail!("no scenario is left")
}

/// A control plane with kube-apiserver, as a test cluster.
struct KubernetesCluster {
    /// Client configuration of the administrator, who also acts as the user of the scenarios.
    user: Config,
    /// Client configuration of an account with the rights of all roles.
    process: Config,
    operations: mpsc::Sender<ClusterOperationRequest>,
}

impl KubernetesCluster {
    fn perform(&self, operation: ClusterOperation) -> ClusterFuture<'_> {
        Box::pin(async move {
            let (sender, response) = oneshot::channel();
            self.operations.send((operation, sender)).await?;
            response.await?.with_context(|| format!("{operation:?}"))?;
            Ok(())
        })
    }
}

impl TestCluster for KubernetesCluster {
    fn environment(&self) -> EnvironmentKind {
        EnvironmentKind::Kubernetes
    }

    fn clock(&self) -> Clock {
        cofferdam_sim::test_cluster::wall_clock()
    }

    fn connect(&self, who: TestUser) -> Result<Reached, BoxError> {
        let config = match who {
            TestUser::Admin => &self.user,
            TestUser::Process => &self.process,
        };
        Ok(client_transport(connect::client(config.clone())?))
    }

    fn compact(&self) -> ClusterFuture<'_> {
        self.perform(ClusterOperation::Compact)
    }

    fn backup(&self) -> ClusterFuture<'_> {
        self.perform(ClusterOperation::Backup)
    }

    fn restore(&self) -> ClusterFuture<'_> {
        self.perform(ClusterOperation::Restore)
    }
}
