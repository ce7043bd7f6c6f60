//! The scenario table of the roles on kube-apiserver and etcd: what a simulation shows on the embedded API holds on the real one.
//! Once each row as it stands, and once with a process that dies after one of its effects, with the answer lost.

use std::{fmt::Debug, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cofferdam_cluster::connect;
use cofferdam_roles::Role;
use cofferdam_sim::{
    Api as Reached, Ground, Place, Scenario, Simulation, Who,
    ground::{BoxError, Clock, Done, through},
    scenarios,
};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSINode, StorageClass, VolumeAttachment},
};
use kube::{
    Api, Client, Config, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams},
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

const SOON: Duration = Duration::from_secs(60);
const BACKUP: &str = "backup";

pub(super) async fn run(run: &Run) -> Result<()> {
    // What takes finalizers off is our own role.
    let mut plane = ControlPlane::start(run, Options::default()).await?;
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
    let account = Account::in_namespace(run, &plane, &roles, account::WITH_USERS).await?;
    let (asks, asked) = mpsc::channel(1);
    let ground = Arc::new(Kubernetes {
        user: config(&plane.kubeconfig(User::Admin)?).await?,
        process: config(account.kubeconfig()).await?,
        asks,
    });
    tokio::select! {
        played = play_all(run, &client, &ground) => played?,
        stopped = operate(run, &mut plane, asked) => stopped?,
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

async fn play_all(run: &Run, client: &Client, ground: &Arc<Kubernetes>) -> Result<()> {
    let mut chance = chance()?;
    let mut differences = Vec::new();
    let (mut whole, mut deaths) = (0, 0);
    for scenario in scenarios() {
        if let Some(why) = scenario.refused_by(Place::Kubernetes) {
            run.tell(&format!("not played: {}: {why}", scenario.name))?;
            continue;
        }
        say(format_args!("  {}", scenario.name));
        let (found, effects) = play(client, ground, &scenario, None).await?;
        differences.extend(found);
        whole += 1;
        // All that happens is done by the process of another node.
        if effects == 0 && !scenario.nodes.is_empty() {
            continue;
        }
        ensure!(effects > 0, "{} has no effect to die after", scenario.name);
        let n = chance.usize(1..=effects);
        let (found, _) = play(client, ground, &scenario, Some(n)).await?;
        differences.extend(found.into_iter().map(|d| format!("killed after effect {n} of {effects}: {d}")));
        deaths += 1;
    }
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    run.tell(&format!("{whole} scenarios, each once whole, {deaths} of them once more with a death"))
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
    let simulation = Simulation::on(Arc::clone(ground) as Arc<dyn Ground>, &Role::ALL, creates, deletes)
        .map_err(|error| anyhow!(error))?;
    let simulation = scenario.with_driver(simulation);
    let (outcome, effects) = simulation.play(&scenario.user, die_after).await;
    Ok((scenario.differences(&outcome, die_after.is_some()), effects.len()))
}

/// Removes what the scenario before has left.
async fn clean(client: &Client) -> Result<()> {
    let default = || client.clone();
    remove::<VolumeAttachment>(&Api::all(default()), "").await?;
    remove::<CSINode>(&Api::all(default()), "").await?;
    remove::<Node>(&Api::all(default()), "").await?;
    remove::<Pod>(&Api::default_namespaced(default()), "").await?;
    remove::<PersistentVolumeClaim>(&Api::default_namespaced(default()), "").await?;
    remove::<PersistentVolume>(&Api::all(default()), "").await?;
    remove::<StorageClass>(&Api::all(default()), "").await?;
    remove::<ConfigMap>(&Api::default_namespaced(default()), "cofferdam-").await?;
    remove::<Event>(&Api::default_namespaced(default()), "").await
}

/// Removes the objects of a kind whose names begin so, with their finalizers.
async fn remove<K>(api: &Api<K>, prefix: &str) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let what = format!("no {} is left", K::kind(&()));
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
    fn ask(&self, operation: Operation) -> Done<'_> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            self.asks.send((operation, answer)).await?;
            answered.await?.with_context(|| format!("{operation:?}"))?;
            Ok(())
        })
    }
}

impl Ground for Kubernetes {
    fn place(&self) -> Place {
        Place::Kubernetes
    }

    fn clock(&self) -> Clock {
        cofferdam_sim::ground::wall_clock()
    }

    fn connect(&self, who: Who) -> Result<Reached, BoxError> {
        let config = match who {
            Who::User => &self.user,
            Who::Process => &self.process,
        };
        Ok(through(connect::client(config.clone())?))
    }

    fn compact(&self) -> Done<'_> {
        self.ask(Operation::Compact)
    }

    fn backup(&self) -> Done<'_> {
        self.ask(Operation::Backup)
    }

    fn restore(&self) -> Done<'_> {
        self.ask(Operation::Restore)
    }
}
