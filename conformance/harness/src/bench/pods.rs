//! The load of pods: users who each make a claim and a pod, wait until the pod runs, and delete both. On a real kubelet, with our
//! `node` for everybody: who provisions and who attaches is what differs.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client, api::PostParams};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Figures, Flow, Ground,
    load::{Answered, Sight, State, VOLUMES, send},
    measure::{Reading, memory_of},
    stacks::Whose,
};
use crate::{
    account::Account,
    chain::{Backend, NodeRoles},
    control_plane::{ControlPlane, Options, User},
    node::Node,
    pod,
    process::Process,
    run::Run,
    sidecar,
    wait::until,
};

/// Most pods of a load.
const MOST: usize = 50;
/// How many users there are: more pods at once would be a load of the container runtime.
const AT_ONCE: usize = 5;
const LIMIT: Duration = Duration::from_secs(120);
const NODE: &str = "node-1";
/// How a pod stays until it is deleted.
const STAYS: &str = "trap exit TERM; sleep 3600 & wait";
/// Loops of kube-controller-manager that are nobody else's here, and those that our roles take the place of.
const COMMON: &str = "persistentvolume-attach-detach-controller,node-lifecycle-controller";
const LOOPS: &str = "persistentvolume-binder-controller,persistentvolume-protection-controller,\
                     persistentvolumeclaim-protection-controller";
const ROLES: [&str; 4] = ["provisioner", "pv-controller", "protection", "attacher"];

/// What the roles of a node take.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OfNode {
    /// Resident bytes of `node`, `registrar` and `liveness` in one process, after the load.
    pub(super) memory: u64,
    /// Milliseconds in which half of the calls of NodePublishVolume for a directory were answered, and how many these were.
    pub(super) publish_p50: f64,
    pub(super) publishes: usize,
}

/// What is asked for.
struct Load<'a> {
    client: Client,
    name: &'a str,
    count: usize,
}

impl<'a> Load<'a> {
    /// Makes the namespace and the class.
    async fn new(
        client: &Client,
        name: &'a str,
        driver: &str,
        parameters: Value,
        count: usize,
    ) -> Result<Self> {
        send(client, "POST", "/api/v1/namespaces", &json!({ "metadata": { "name": name } })).await?;
        // A volume of one node comes once the scheduler has chosen that node.
        let binding = if parameters.get("kind").is_some() { "WaitForFirstConsumer" } else { "Immediate" };
        let class = json!({
            "metadata": { "name": name },
            "provisioner": driver,
            "parameters": parameters,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": binding,
        });
        send(client, "POST", "/apis/storage.k8s.io/v1/storageclasses", &class).await?;
        Ok(Self { client: client.clone(), name, count })
    }

    /// From a claim and its pod to the pod that runs; the next one when pod and volume are gone.
    async fn running(&self) -> Result<Answered> {
        let pods = format!("/api/v1/namespaces/{}/pods", self.name);
        let running = Sight::of(&self.client, &pods, State::Phase("Running")).await?;
        let gone = Sight::of(&self.client, VOLUMES, State::Gone).await?;
        let started = Instant::now();
        let (pods, seen, left) = (pods.as_str(), &running, &gone);
        let sent: HashMap<String, Instant> = stream::iter(0..self.count)
            .map(|number| self.one(number, pods, seen, left))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let seen = running.until(self.count).await?;
        Answered::of(started, &sent, &seen)
    }

    async fn one(
        &self,
        number: usize,
        pods: &str,
        running: &Sight,
        gone: &Sight,
    ) -> Result<(String, Instant)> {
        let (name, claim) = (format!("pod-{number}"), format!("claim-{number}"));
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), self.name);
        let object = serde_json::from_value(json!({
            "metadata": { "name": claim },
            "spec": {
                "storageClassName": self.name,
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "64Mi" } },
            },
        }))?;
        let sent = Instant::now();
        let made = claims.create(&PostParams::default(), &object).await?;
        send(&self.client, "POST", pods, &pod::with_claim(&name, &claim, STAYS)).await?;
        until(&format!("{name} runs"), LIMIT, async || running.at(&name).context("it does not")).await?;
        send(&self.client, "DELETE", &format!("{pods}/{name}"), &Value::Null).await?;
        let claims = format!("/api/v1/namespaces/{}/persistentvolumeclaims", self.name);
        send(&self.client, "DELETE", &format!("{claims}/{claim}"), &Value::Null).await?;
        let volume = format!("pvc-{}", made.metadata.uid.context("a claim without a uid")?);
        until(&format!("{volume} is gone"), LIMIT, async || gone.at(&volume).context("it is there")).await?;
        Ok((name, sent))
    }
}

/// What is before the driver, the driver served for it or run in it, and the node.
struct Chain {
    processes: Vec<Process>,
    /// How many of these control.
    controllers: usize,
    node: Node,
    roles: NodeRoles,
}

impl Chain {
    async fn start(run: &Run, plane: &ControlPlane, backend: &Backend, whose: Whose) -> Result<Self> {
        let node = Node::start(run, plane, NODE).await?;
        let (processes, controllers) = match whose {
            Whose::Theirs => {
                let (server, socket, _) = backend.serve(run).await?;
                let kubeconfig = plane.kubeconfig(User::Admin)?;
                let workers = ["--worker-threads=100"];
                let provisioner =
                    sidecar::start(run, "csi-provisioner", &kubeconfig, &socket, &workers).await?;
                let attacher = sidecar::start(run, "csi-attacher", &kubeconfig, &socket, &workers).await?;
                (vec![provisioner, attacher, server], 2)
            }
            Whose::Ours => {
                let account = Account::new(run, plane, &ROLES).await?;
                (vec![backend.control(run, &account, &[]).await?], 1)
            }
        };
        let roles = backend.node(run, NODE, node.root()).await?;
        let path = "/apis/storage.k8s.io/v1/csidrivers";
        send(plane.client(), "POST", path, &pod::attached_driver(backend.driver())).await?;
        Ok(Self { processes, controllers, node, roles })
    }

    /// Ends it, from the controllers down.
    async fn stop(mut self, run: &Run) -> Result<()> {
        self.node.idle(run, LIMIT).await?;
        for process in self.processes.iter_mut().chain([&mut self.roles.process]) {
            process.stop().await?;
        }
        let root = self.node.root().to_owned();
        self.node.stop().await?;
        // A run has one node at a time, and the next one begins as fresh as this one.
        for directory in [root, run.scratch().join("node")] {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("cannot remove {}", directory.display()))?;
        }
        Ok(())
    }
}

/// How many pods there are in a run with so many claims.
pub(super) const fn count(claims: usize) -> usize {
    let count = claims / 8;
    if count > MOST { MOST } else { count }
}

/// Lets a stack bring pods to Running; where it is ours, also what the roles of the node take.
///
/// # Errors
/// When something does not run, or a pod does not.
pub(super) async fn measured(run: &Run, whose: Whose, count: usize) -> Result<(Figures, Option<OfNode>)> {
    let (name, about, loops) = match whose {
        Whose::Theirs => (
            "Go, pods",
            "kube-controller-manager, csi-provisioner and csi-attacher, client rates unlimited, 100 workers, \
             before our `csi-server` with the memory driver; kubelet with our `node` and `registrar`",
            format!("{LOOPS},{COMMON}"),
        ),
        Whose::Ours => (
            "Cofferdam, pods",
            "`cofferdam run` with provisioner, attacher, pv-controller and protection, the memory driver in its process; \
             kube-controller-manager makes attachments; kubelet with our `node` and `registrar`",
            COMMON.to_owned(),
        ),
    };
    let options = Options {
        controllers: Some(loops),
        scheduler: true,
        unlimited: true,
        unaudited: true,
        missed_after: None,
    };
    let plane = ControlPlane::start(run, options).await?;
    let client = plane.client().clone();
    let watches = Reading::at_rest(&client, &[]).await?.watches();
    let backend = Backend::memory(run, NODE)?;
    let chain = Chain::start(run, &plane, &backend, whose).await?;
    let manager = plane.controller_manager.as_ref().context("kube-controller-manager does not run")?;

    let load = Load::new(&client, "pods", backend.driver(), json!({}), count).await?;
    let others = chain.processes.iter().chain([manager, &chain.roles.process]);
    let mut ground = Ground::new(name, &plane, others, watches).await?;
    ground.begin().await?;
    let answered = load.running().await?;
    ground.end(Flow::Pods, &answered).await?;
    let loads = ground.done();
    let of_node = match whose {
        Whose::Theirs => None,
        Whose::Ours => {
            let memory = memory_of(&chain.roles.process)?;
            Some(directories(run, &plane, chain.node.root(), memory, count).await?)
        }
    };

    let controllers = chain.processes.iter().take(chain.controllers).chain([manager]);
    let controllers = controllers.map(|process| process.name().to_owned()).collect();
    drop((load, client));
    chain.stop(run).await?;
    plane.stop().await?;
    let (name, about) = (name.to_owned(), about.to_owned());
    Ok((Figures { name, about, whose: Some(whose), controllers, loads }, of_node))
}

/// Pods with directories of the node: how long a publication takes.
async fn directories(
    run: &Run,
    plane: &ControlPlane,
    root: &Path,
    memory: u64,
    count: usize,
) -> Result<OfNode> {
    let backend = Backend::pool(run, NODE)?;
    let account = Account::new(run, plane, &["provisioner"]).await?;
    let mut provisioner = backend.control(run, &account, &[format!("--node-name={NODE}")]).await?;
    let mut roles = backend.node(run, NODE, root).await?;
    let driver = json!({ "metadata": { "name": backend.driver() }, "spec": { "attachRequired": false } });
    send(plane.client(), "POST", "/apis/storage.k8s.io/v1/csidrivers", &driver).await?;
    let parameters = json!({ "kind": "directory" });
    Load::new(plane.client(), "directories", backend.driver(), parameters, count).await?.running().await?;
    let log = fs::read_to_string(roles.process.log())?;
    roles.process.stop().await?;
    provisioner.stop().await?;
    let answered = Answered::new(Duration::ZERO, publications(&log)?);
    let publishes = answered.each.len();
    ensure!(publishes >= count, "{publishes} publications of directories: expected {count} at least");
    let publish_p50 = answered.quantile(50).as_secs_f64() * 1000.0;
    Ok(OfNode { memory, publish_p50, publishes })
}

/// How long the node took for each NodePublishVolume, as its log has it.
fn publications(log: &str) -> Result<Vec<Duration>> {
    let lines = log.lines().filter(|line| line.contains("/NodePublishVolume\" code=\"OK\""));
    lines.map(|line| took(line).with_context(|| format!("no time in {line:?}"))).collect()
}

/// The time of a line, as Rust prints it.
fn took(line: &str) -> Option<Duration> {
    let text = line.split_once("took=")?.1.split(' ').next()?;
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let factor = match text.get(digits.len()..)? {
        "ns" => 1e-9,
        "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(digits.parse::<f64>().ok()? * factor).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_how_long_publications_took() {
        let log = "a answered method=\"/csi.v1.Node/NodePublishVolume\" code=\"OK\" took=871.5µs\n\
                   b answered method=\"/csi.v1.Node/NodePublishVolume\" code=\"Internal\" took=1s\n\
                   c answered method=\"/csi.v1.Node/NodePublishVolume\" code=\"OK\" took=2ms volume=x\n\
                   d answered method=\"/csi.v1.Node/NodeStageVolume\" code=\"OK\" took=9ms\n";
        let times: Vec<u128> = publications(log).unwrap().iter().map(Duration::as_nanos).collect();
        assert_eq!(times, [871_500, 2_000_000]);
        assert!(publications("NodePublishVolume\" code=\"OK\"").is_ok_and(|times| times.is_empty()));
        assert!(publications("x/NodePublishVolume\" code=\"OK\" took=2h").is_err());
    }
}
