//! The scenario table of the roles on kube-apiserver and etcd: what a simulation shows on the embedded API holds on the real one.
//! Once each row as it stands, and once with a process that dies after one of its effects, with the answer lost.

use std::{cell::RefCell, fmt::Debug, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cofferdam_cluster::connect;
use cofferdam_controllers::Role;
use cofferdam_sim::{
    ApiTransport as Reached, EnvironmentKind, Scenario, Simulation, TestCluster, TestUser, scenarios,
    skipped_count,
    test_cluster::{BoxError, Clock, ClusterFuture, client_transport},
};
use futures::future::try_join_all;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod},
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
    account::{self, Account},
    chance::chance,
    control_plane::{ControlPlane, Options, User},
    run::Run,
    say,
    wait::until,
};

const SOON: Duration = Duration::from_secs(180);
const BACKUP: &str = "backup";
/// How many clusters play at once. Most of a row is waiting for silence: a second processor would wait beside the first.
const CLUSTERS: usize = 3;

pub(super) async fn run(run: &Run) -> Result<()> {
    let mut chance = chance()?;
    let rows: Vec<Row> =
        scenarios().into_iter().map(|scenario| Row { scenario, chance: chance.fork() }).collect();
    let (rows, tally) = (RefCell::new(rows.into_iter()), RefCell::new(Tally::default()));
    let clusters = (1..=CLUSTERS).map(|n| cluster(run, run.part(&n.to_string()), &rows, &tally));
    try_join_all(clusters).await?;
    let Tally { whole, deaths, unplayed: skipped, differences } = tally.into_inner();
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    let expected = skipped_count(EnvironmentKind::Kubernetes);
    ensure!(
        skipped == expected && whole > 0,
        "{skipped} scenarios were not played and {whole} were: expected {expected} that cannot be"
    );
    run.tell(&format!("{whole} scenarios, each once whole, {deaths} of them once more with a death"))
}

/// A scenario and what decides where it dies: the same, whichever cluster plays it and when.
struct Row {
    scenario: Scenario,
    chance: fastrand::Rng,
}

/// What has been played.
#[derive(Default)]
struct Tally {
    whole: usize,
    deaths: usize,
    unplayed: usize,
    differences: Vec<String>,
}

/// A cluster that plays what nobody has played yet.
async fn cluster(
    run: &Run,
    part: Result<Run>,
    rows: &RefCell<impl Iterator<Item = Row>>,
    tally: &RefCell<Tally>,
) -> Result<()> {
    let part = part?;
    // What takes finalizers off is our own role.
    let mut plane = ControlPlane::start(&part, Options::default()).await?;
    let client = plane.client().clone();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    until("the namespaces of every cluster are there", SOON, async || {
        for name in ["default", "kube-system"] {
            namespaces.get(name).await?;
        }
        Ok(())
    })
    .await?;
    let roles = Role::ALL.map(Role::as_str);
    let account = Account::in_namespace(&part, &plane, &roles, account::WITH_USERS).await?;
    let (asks, asked) = mpsc::channel(1);
    let ground = Arc::new(Kubernetes {
        user: config(&plane.kubeconfig(User::Admin)?).await?,
        process: config(account.kubeconfig()).await?,
        asks,
    });
    let plays = async {
        let next = || rows.borrow_mut().next();
        while let Some(row) = next() {
            play_row(run, &client, &ground, row, tally).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        played = plays => played?,
        stopped = operate(&part, &mut plane, asked) => stopped?,
    }
    drop((namespaces, client, ground));
    plane.stop().await
}

async fn config(kubeconfig: &Path) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
    config.default_retry = false;
    Ok(config)
}

/// Plays a row as it stands, and once more with a death.
async fn play_row(
    run: &Run,
    client: &Client,
    ground: &Arc<Kubernetes>,
    Row { scenario, mut chance }: Row,
    tally: &RefCell<Tally>,
) -> Result<()> {
    if let Some(why) = scenario.skip_reason(EnvironmentKind::Kubernetes) {
        tally.borrow_mut().unplayed += 1;
        return run.tell(&format!("not played: {}: {why}", scenario.name));
    }
    say(format_args!("  {}", scenario.name));
    let (found, effects) = play(client, ground, &scenario, None).await?;
    {
        let mut tally = tally.borrow_mut();
        tally.differences.extend(found);
        tally.whole += 1;
    }
    // All that happens is done by the process of another node.
    if effects == 0 && !scenario.storage_nodes.is_empty() {
        return Ok(());
    }
    ensure!(effects > 0, "{} has no effect to die after", scenario.name);
    let n = chance.usize(1..=effects);
    let (found, _) = play(client, ground, &scenario, Some(n)).await?;
    let mut tally = tally.borrow_mut();
    tally.differences.extend(found.into_iter().map(|d| format!("killed after effect {n} of {effects}: {d}")));
    tally.deaths += 1;
    Ok(())
}

/// Plays one on a clean cluster; what came out otherwise than it should, and how many effects there were.
async fn play(
    client: &Client,
    ground: &Arc<Kubernetes>,
    scenario: &Scenario,
    die_after: Option<usize>,
) -> Result<(Vec<String>, usize)> {
    clean(client).await?;
    let (creates, deletes) = (scenario.create_faults.clone(), scenario.delete_faults.clone());
    let simulation =
        Simulation::on_cluster(Arc::clone(ground) as Arc<dyn TestCluster>, &Role::ALL, creates, deletes)
            .map_err(|error| anyhow!(error))?;
    let simulation = scenario.configure(simulation);
    let (outcome, effects) = simulation.run(&scenario.actions, die_after).await;
    Ok((scenario.differences(&outcome, die_after.is_some()), effects.len()))
}

/// Removes what the scenario before has left.
async fn clean(client: &Client) -> Result<()> {
    let default = || client.clone();
    remove::<VolumeAttachment>(&Api::all(default()), "").await?;
    remove::<CSINode>(&Api::all(default()), "").await?;
    remove::<CSIDriver>(&Api::all(default()), "").await?;
    remove::<Node>(&Api::all(default()), "").await?;
    remove::<Pod>(&Api::default_namespaced(default()), "").await?;
    remove::<PersistentVolumeClaim>(&Api::default_namespaced(default()), "").await?;
    remove::<PersistentVolume>(&Api::all(default()), "").await?;
    remove::<StorageClass>(&Api::all(default()), "").await?;
    // The library's own type of it is not the one of v1 yet.
    let kind = GroupVersionKind::gvk("storage.k8s.io", "v1", "VolumeAttributesClass");
    let kind = ApiResource::from_gvk_with_plural(&kind, "volumeattributesclasses");
    remove_all::<DynamicObject>("VolumeAttributesClass", &Api::all_with(default(), &kind), "").await?;
    remove::<ConfigMap>(&Api::default_namespaced(default()), "cofferdam-").await?;
    remove::<Event>(&Api::default_namespaced(default()), "").await
}

/// Removes the objects of a kind whose names begin so, with their finalizers.
async fn remove<K>(api: &Api<K>, prefix: &str) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    remove_all(&K::kind(&()), api, prefix).await
}

async fn remove_all<K>(kind: &str, api: &Api<K>, prefix: &str) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let what = format!("no {kind} is left");
    until(&what, SOON, async || {
        let mut items = api.list(&ListParams::default()).await?.items;
        items.retain(|item| item.meta().name.as_deref().is_some_and(|name| name.starts_with(prefix)));
        for item in &items {
            let name = item.meta().name.as_deref().unwrap_or_default();
            if item.meta().finalizers.is_some() {
                let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
                api.patch(name, &PatchParams::default(), &free).await?;
            }
            match api.delete(name, &DeleteParams::default().grace_period(0)).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                deleted => drop(deleted?),
            }
        }
        ensure!(items.is_empty(), "{} were there", items.len());
        Ok(())
    })
    .await
}

/// What happens to the cluster as a whole.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Compact,
    Backup,
    Restore,
}

type Asked = (Operation, oneshot::Sender<Result<()>>);

/// Does what scenarios ask for; the control plane is the suite's.
async fn operate(run: &Run, plane: &mut ControlPlane, mut asked: mpsc::Receiver<Asked>) -> Result<()> {
    while let Some((operation, answer)) = asked.recv().await {
        let done = match operation {
            Operation::Compact => plane.compact().await,
            Operation::Backup => plane.snapshot_etcd(run, BACKUP).await,
            Operation::Restore => plane.restore(run, BACKUP).await,
        };
        // A scenario that has given up is no reason to stop.
        let _ = answer.send(done);
    }
    bail!("nobody plays any more")
}

/// kube-apiserver as a ground.
struct Kubernetes {
    user: Config,
    /// Of an account that may do what all roles need.
    process: Config,
    asks: mpsc::Sender<Asked>,
}

impl Kubernetes {
    fn ask(&self, operation: Operation) -> ClusterFuture<'_> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            self.asks.send((operation, answer)).await?;
            answered.await?.with_context(|| format!("{operation:?}"))?;
            Ok(())
        })
    }
}

impl TestCluster for Kubernetes {
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
        self.ask(Operation::Compact)
    }

    fn backup(&self) -> ClusterFuture<'_> {
        self.ask(Operation::Backup)
    }

    fn restore(&self) -> ClusterFuture<'_> {
        self.ask(Operation::Restore)
    }
}
