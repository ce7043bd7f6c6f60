//! The pod load: clients create a claim and a pod, wait until the pod runs, and delete both. It runs on a
//! real kubelet with Cofferdam's `node`. The configurations differ in the provisioner, the attacher, the
//! controllers that bind and protect claims, and the process that runs the driver.

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
use serde_json::{Value, json};

use super::{
    load::{LoadTiming, ObjectObserver, ObjectState, VOLUMES_PATH, send},
    measure::{UsageReading, resident_bytes},
    recorder::LoadRecorder,
    results::{ConfigurationResults, LoadKind, NodeRoleUsage},
};
use crate::{
    account::Account,
    backend::{BackendFixture, NodeRoles},
    control_plane::{ApiUser, BINDER_CONTROLLERS, ControlPlane, ControlPlaneOptions},
    implementation::Implementation,
    node::KubeletNode,
    pod,
    process::ManagedProcess,
    run::SuiteRun,
    sidecar,
    wait::until,
};

/// Maximum pods of a load.
const MAX_PODS: usize = 50;
/// Concurrent clients. More pods at the same time would measure the container runtime.
const CONCURRENT_USERS: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(120);
const NODE: &str = "node-1";
/// Shell script that runs until the pod is deleted.
const RUN_UNTIL_TERMINATED: &str = "trap exit TERM; sleep 3600 & wait";
/// Controllers of kube-controller-manager in both configurations.
const COMMON_CONTROLLERS: &str = "persistentvolume-attach-detach-controller,node-lifecycle-controller";
const ROLES: [&str; 4] = ["provisioner", "pv-controller", "protection", "attacher"];

/// Pods in one namespace, each with a claim of its own.
struct PodLoad<'a> {
    client: Client,
    name: &'a str,
    count: usize,
}

impl<'a> PodLoad<'a> {
    /// Creates the namespace and the StorageClass, both with the name `name`. `count` is the number of pods.
    async fn new(
        client: &Client,
        name: &'a str,
        driver: &str,
        parameters: Value,
        count: usize,
    ) -> Result<Self> {
        send(client, "POST", "/api/v1/namespaces", &json!({ "metadata": { "name": name } })).await?;
        // Node-local volumes, whose class has the parameter `kind`, require a node selected by the scheduler.
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

    /// Each client creates a claim and a pod, waits until the pod runs, deletes both, and waits until the
    /// volume is removed. The latency is from the creation of the claim until the pod runs.
    async fn run_pods(&self) -> Result<LoadTiming> {
        let pods = format!("/api/v1/namespaces/{}/pods", self.name);
        let running = ObjectObserver::start(&self.client, &pods, ObjectState::Phase("Running")).await?;
        let deletions = ObjectObserver::start(&self.client, VOLUMES_PATH, ObjectState::Deleted).await?;
        let started = Instant::now();
        let (pods, observer, deleted) = (pods.as_str(), &running, &deletions);
        let sent: HashMap<String, Instant> = stream::iter(0..self.count)
            .map(|number| self.run_pod(number, pods, observer, deleted))
            .buffer_unordered(CONCURRENT_USERS)
            .try_collect()
            .await?;
        let observer = running.wait_for_count(self.count).await?;
        LoadTiming::from_observations(started, &sent, &observer)
    }

    async fn run_pod(
        &self,
        number: usize,
        pods: &str,
        running: &ObjectObserver,
        deletions: &ObjectObserver,
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
        let created = claims.create(&PostParams::default(), &object).await?;
        send(&self.client, "POST", pods, &pod::with_claim(&name, &claim, RUN_UNTIL_TERMINATED)).await?;
        until(&format!("{name} runs"), TIMEOUT, async || running.observed_at(&name).context("it does not"))
            .await?;
        send(&self.client, "DELETE", &format!("{pods}/{name}"), &Value::Null).await?;
        let claims = format!("/api/v1/namespaces/{}/persistentvolumeclaims", self.name);
        send(&self.client, "DELETE", &format!("{claims}/{claim}"), &Value::Null).await?;
        let volume = format!("pvc-{}", created.metadata.uid.context("a claim without a uid")?);
        until(&format!("{volume} is gone"), TIMEOUT, async || {
            deletions.observed_at(&volume).context("it is there")
        })
        .await?;
        Ok((name, sent))
    }
}

/// Running processes of a configuration of the pod load: the controllers except kube-controller-manager, the
/// driver if it has a process of its own, and the node.
struct PodConfiguration {
    processes: Vec<ManagedProcess>,
    /// Number of controllers; they come first in `processes`.
    controller_count: usize,
    node: KubeletNode,
    roles: NodeRoles,
}

impl PodConfiguration {
    async fn start(
        run: &SuiteRun,
        plane: &ControlPlane,
        backend: &BackendFixture,
        implementation: Implementation,
    ) -> Result<Self> {
        let node = KubeletNode::start(run, plane, NODE).await?;
        let (processes, controllers) = match implementation {
            Implementation::Upstream => {
                let (server, socket, _) = backend.start_csi_server(run).await?;
                let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
                let workers = ["--worker-threads=100"];
                let provisioner =
                    sidecar::start(run, "csi-provisioner", &kubeconfig, &socket, &workers).await?;
                let attacher = sidecar::start(run, "csi-attacher", &kubeconfig, &socket, &workers).await?;
                (vec![provisioner, attacher, server], 2)
            }
            Implementation::Cofferdam => {
                let account = Account::new(run, plane, &ROLES).await?;
                (vec![backend.start_roles(run, &account, &[]).await?], 1)
            }
        };
        let roles = backend.start_node_roles(run, NODE, node.root()).await?;
        let path = "/apis/storage.k8s.io/v1/csidrivers";
        send(plane.client(), "POST", path, &pod::csi_driver_object(backend.driver())).await?;
        Ok(Self { processes, controller_count: controllers, node, roles })
    }

    /// Waits until the node is idle, stops all processes, and removes the node's directories.
    async fn stop(mut self, run: &SuiteRun) -> Result<()> {
        self.node.wait_idle(run, TIMEOUT).await?;
        for process in self.processes.iter_mut().chain([&mut self.roles.process]) {
            process.stop().await?;
        }
        let root = self.node.root().to_owned();
        self.node.stop().await?;
        // The next node starts with empty directories.
        for directory in [root, run.scratch().join("node")] {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("cannot remove {}", directory.display()))?;
        }
        Ok(())
    }
}

/// Number of pods in a run with this number of claims.
pub(super) const fn pod_count(claims: usize) -> usize {
    let count = claims / 8;
    if count > MAX_PODS { MAX_PODS } else { count }
}

/// Measures the pod load on an implementation. The second result is the usage of the node roles, which is
/// measured together with Cofferdam; `None` for upstream.
///
/// # Errors
/// If a process does not run, or a pod does not run or is not removed in time.
pub(super) async fn measure(
    run: &SuiteRun,
    implementation: Implementation,
    count: usize,
) -> Result<(ConfigurationResults, Option<NodeRoleUsage>)> {
    let (name, description, loops) = match implementation {
        Implementation::Upstream => (
            "Upstream, pods",
            "kube-controller-manager, csi-provisioner and csi-attacher, client rates unlimited, 100 workers, \
             calling Cofferdam's `csi-server` with the memory driver; kubelet with Cofferdam's `node` and \
             `registrar`",
            format!("{BINDER_CONTROLLERS},{COMMON_CONTROLLERS}"),
        ),
        Implementation::Cofferdam => (
            "Cofferdam, pods",
            "`cofferdam run` with provisioner, attacher, pv-controller and protection, the memory driver in \
             the same process; kube-controller-manager creates VolumeAttachments; kubelet with Cofferdam's \
             `node` and `registrar`",
            COMMON_CONTROLLERS.to_owned(),
        ),
    };
    let options = ControlPlaneOptions {
        controllers: Some(loops),
        has_scheduler: true,
        is_unlimited: true,
        is_unaudited: true,
        node_monitor_grace: None,
        has_audited_bodies: false,
        serves_pods: false,
        etcd_data: None,
    };
    let plane = ControlPlane::start(run, options).await?;
    let client = plane.client().clone();
    let watches = UsageReading::when_idle(&client, &[]).await?.watches();
    let backend = BackendFixture::memory(run, NODE)?;
    let configuration = PodConfiguration::start(run, &plane, &backend, implementation).await?;
    let manager = plane.controller_manager.as_ref().context("kube-controller-manager does not run")?;

    let load = PodLoad::new(&client, "pods", backend.driver(), json!({}), count).await?;
    let others = configuration.processes.iter().chain([manager, &configuration.roles.process]);
    let mut recorder = LoadRecorder::new(name, &plane, others, watches).await?;
    recorder.begin_load().await?;
    let timing = load.run_pods().await?;
    recorder.end_load(LoadKind::RunPods, &timing).await?;
    let loads = recorder.into_measurements();
    let node_usage = match implementation {
        Implementation::Upstream => None,
        Implementation::Cofferdam => {
            let memory = resident_bytes(&configuration.roles.process)?;
            Some(measure_publish(run, &plane, configuration.node.root(), memory, count).await?)
        }
    };

    let controllers = configuration.processes.iter().take(configuration.controller_count).chain([manager]);
    let controllers = controllers.map(|process| process.name().to_owned()).collect();
    drop((load, client));
    configuration.stop(run).await?;
    plane.stop().await?;
    let (name, description) = (name.to_owned(), description.to_owned());
    Ok((
        ConfigurationResults { name, description, implementation: Some(implementation), controllers, loads },
        node_usage,
    ))
}

/// Measures NodePublishVolume for volumes of the driver `pool` that are directories, in a load of `count`
/// pods. `memory` is the memory of the memory driver's node roles in bytes, which the result contains, too.
async fn measure_publish(
    run: &SuiteRun,
    plane: &ControlPlane,
    root: &Path,
    memory: u64,
    count: usize,
) -> Result<NodeRoleUsage> {
    let backend = BackendFixture::pool(run, NODE)?;
    let account = Account::new(run, plane, &["provisioner"]).await?;
    let mut provisioner = backend.start_roles(run, &account, &[format!("--node-name={NODE}")]).await?;
    let mut roles = backend.start_node_roles(run, NODE, root).await?;
    let driver = json!({ "metadata": { "name": backend.driver() }, "spec": { "attachRequired": false } });
    send(plane.client(), "POST", "/apis/storage.k8s.io/v1/csidrivers", &driver).await?;
    let parameters = json!({ "kind": "directory" });
    PodLoad::new(plane.client(), "directories", backend.driver(), parameters, count)
        .await?
        .run_pods()
        .await?;
    let log = fs::read_to_string(roles.process.log())?;
    roles.process.stop().await?;
    provisioner.stop().await?;
    let timing = LoadTiming::new(Duration::ZERO, publish_latencies(&log)?);
    let publishes = timing.latencies.len();
    ensure!(publishes >= count, "{publishes} publications of directories: expected {count} at least");
    let publish_p50 = timing.quantile(50).as_secs_f64() * 1000.0;
    Ok(NodeRoleUsage { resident_bytes: memory, publish_p50, publishes })
}

/// Latencies of successful NodePublishVolume calls, from the log of the node roles.
fn publish_latencies(log: &str) -> Result<Vec<Duration>> {
    let lines = log.lines().filter(|line| line.contains("/NodePublishVolume\" code=\"OK\""));
    lines.map(|line| log_duration(line).with_context(|| format!("no time in {line:?}"))).collect()
}

/// The field `elapsed` of a log line, a duration in Rust's debug format.
fn log_duration(line: &str) -> Option<Duration> {
    let text = line.split_once("elapsed=")?.1.split(' ').next()?;
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
    fn publish_latencies_are_read_from_the_log() {
        let log = "a CSI call finished method=\"/csi.v1.Node/NodePublishVolume\" code=\"OK\" elapsed=871.5µs\n\
                   b CSI call finished method=\"/csi.v1.Node/NodePublishVolume\" code=\"Internal\" elapsed=1s\n\
                   c CSI call finished method=\"/csi.v1.Node/NodePublishVolume\" code=\"OK\" elapsed=2ms volume=x\n\
                   d CSI call finished method=\"/csi.v1.Node/NodeStageVolume\" code=\"OK\" elapsed=9ms\n";
        let times: Vec<u128> = publish_latencies(log).unwrap().iter().map(Duration::as_nanos).collect();
        assert_eq!(times, [871_500, 2_000_000]);
        assert!(publish_latencies("NodePublishVolume\" code=\"OK\"").is_ok_and(|times| times.is_empty()));
        assert!(publish_latencies("x/NodePublishVolume\" code=\"OK\" elapsed=2h").is_err());
    }
}
