//! The scheduling load: volumes of pods are attached to their nodes, and detached after the pods are deleted.
//! Neither kube-scheduler nor a kubelet runs: the pods are created with `spec.nodeName`. Both implementations
//! use Cofferdam's attacher: only the attach-detach controllers differ.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use http::Request;
use kube::Client;
use serde_json::{Value, json};

use super::{
    attachments::{self, AttachmentLoad, node_name},
    configurations::{DRIVER, RunningConfiguration, start_control_plane},
    load::{ClaimLoad, LoadTiming, ObjectObserver, ObjectState, VOLUMES_PATH, for_each_user, send},
    measure::UsageReading,
    recorder::LoadRecorder,
    results::{ConfigurationResults, LoadKind},
    upper_bound::{self, ProvisioningMode},
};
use crate::{
    account::Account, cofferdam, control_plane::ControlPlane, driver::CsiDriverProcess,
    implementation::Implementation, process::ManagedProcess, run::SuiteRun,
};

/// Number of Nodes that the pods are distributed to.
const NODES: usize = 20;
const NAMESPACE: &str = "scheduling";
const NODES_PATH: &str = "/api/v1/nodes";
/// Roles that create and attach the volumes.
const PROVISIONING_ROLES: [&str; 3] = ["provisioner", "pv-controller", "attacher"];
const ATTACH_DETACH_CONTROLLER: &str = "persistentvolume-attach-detach-controller";

/// A load that creates and deletes pods in a namespace, each with one claim that is bound already.
pub(super) struct ScheduledPods {
    client: Client,
    path: String,
    nodes: usize,
    /// `kubernetes.io/csi/DRIVER^`: prefix of the names of the driver's volumes in `volumesAttached`.
    driver_prefix: String,
    volumes: Vec<String>,
    attached_names: Vec<String>,
}

impl ScheduledPods {
    /// The load for claims that are bound to these volumes: `claim-0` to the first, and so on.
    ///
    /// # Errors
    /// If a volume does not exist.
    pub(super) async fn new(
        client: &Client,
        namespace: &str,
        driver: &str,
        nodes: usize,
        volumes: Vec<String>,
    ) -> Result<Self> {
        let handles =
            field_by_field(client, VOLUMES_PATH, "/metadata/name", "/spec/csi/volumeHandle").await?;
        let prefix = format!("kubernetes.io/csi/{driver}^");
        let attached_name = |volume: &String| {
            let handle = handles.get(volume).with_context(|| format!("{volume} is not there"))?;
            Ok(format!("{prefix}{handle}"))
        };
        let attached_names = volumes.iter().map(attached_name).collect::<Result<_>>()?;
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        Ok(Self { client: client.clone(), path, nodes, driver_prefix: prefix, volumes, attached_names })
    }

    /// Creates all pods concurrently, and waits until the last volume is in its Node's `volumesAttached`.
    ///
    /// # Errors
    /// If the API server rejects one, or a Node or VolumeAttachment does not have the expected status.
    pub(super) async fn schedule_all(&self) -> Result<LoadTiming> {
        let observer =
            ObjectObserver::start(&self.client, NODES_PATH, ObjectState::InVolumesAttached).await?;
        let started = Instant::now();
        let sent: HashMap<String, Instant> = for_each_user(self.volumes.len(), async |number| {
            let sent_at = Instant::now();
            self.create_pod(number).await?;
            Ok((self.attached_names.get(number).context("no volume")?.clone(), sent_at))
        })
        .await?
        .into_iter()
        .collect();
        let observed = observer.wait_for_each(&sent).await?;
        self.check().await?;
        LoadTiming::from_observations(started, &sent, &observed)
    }

    async fn create_pod(&self, number: usize) -> Result<()> {
        send(&self.client, "POST", &self.path, &pod_object(number, self.nodes)).await
    }

    async fn delete_pod(&self, number: usize) -> Result<()> {
        let delete_options = json!({ "gracePeriodSeconds": 0 });
        send(&self.client, "DELETE", &format!("{}/pod-{number}", self.path), &delete_options).await
    }

    /// Checks that `volumesAttached` of each Node has exactly the volumes of its pods, apart from those of
    /// other drivers, and that each volume is attached.
    async fn check(&self) -> Result<()> {
        let nodes = list_items(&self.client, NODES_PATH).await?;
        for (number, object) in nodes.iter().map(|object| (string_at(object, "/metadata/name"), object)) {
            let reported = object.pointer("/status/volumesAttached").and_then(Value::as_array);
            let reported = reported.into_iter().flatten().map(|volume| string_at(volume, "/name"));
            let mut reported: Vec<&str> =
                reported.filter(|name| name.starts_with(&self.driver_prefix)).collect();
            reported.sort_unstable();
            let expected = self
                .attached_names
                .iter()
                .enumerate()
                .filter(|(index, _)| node_name(*index, self.nodes) == number);
            let mut expected: Vec<&str> = expected.map(|(_, name)| name.as_str()).collect();
            expected.sort_unstable();
            ensure!(reported == expected, "{number} says {reported:?}: expected {expected:?}");
        }
        let attached = list_items(&self.client, attachments::VOLUME_ATTACHMENTS_PATH).await?;
        let attached =
            attached.iter().filter(|object| object.pointer("/status/attached") == Some(&json!(true)));
        let attached: BTreeSet<&str> =
            attached.map(|object| string_at(object, "/spec/source/persistentVolumeName")).collect();
        let unattached = self.volumes.iter().find(|volume| !attached.contains(volume.as_str()));
        ensure!(unattached.is_none(), "{unattached:?} is not attached");
        Ok(())
    }

    /// Deletes all pods concurrently, and waits until the last VolumeAttachment is removed.
    async fn delete_all(&self) -> Result<LoadTiming> {
        let names = field_by_field(
            &self.client,
            attachments::VOLUME_ATTACHMENTS_PATH,
            "/spec/source/persistentVolumeName",
            "/metadata/name",
        )
        .await?;
        let observer =
            ObjectObserver::start(&self.client, attachments::VOLUME_ATTACHMENTS_PATH, ObjectState::Deleted)
                .await?;
        let started = Instant::now();
        let sent: HashMap<String, Instant> = for_each_user(self.volumes.len(), async |number| {
            let sent_at = Instant::now();
            self.delete_pod(number).await?;
            let volume = self.volumes.get(number).context("no volume")?;
            Ok((names.get(volume).with_context(|| format!("{volume} has no attachment"))?.clone(), sent_at))
        })
        .await?
        .into_iter()
        .collect();
        let observed = observer.wait_for_count(self.volumes.len()).await?;
        LoadTiming::from_observations(started, &sent, &observed)
    }
}

/// Measures the load without controllers, whose throughput is the upper bound for controllers: clients create
/// and delete the pods, and make the writes that attach and detach the pods' volumes. The Node status is not
/// updated.
///
/// # Errors
/// If the API server rejects a write.
pub(super) async fn measure_upper_bound(run: &SuiteRun, count: usize) -> Result<ConfigurationResults> {
    let name = "API only, scheduling";
    let plane = start_control_plane(run).await?;
    let client = plane.client().clone();
    let watches = UsageReading::when_idle(&client, &[]).await?.watches();
    let load = ClaimLoad::new(&client, NAMESPACE, Some(DRIVER)).await?;
    upper_bound::bind_all(&load, count, ProvisioningMode::Dynamic).await?;
    attachments::create_nodes(&client, &[DRIVER.to_owned()], NODES).await?;
    let volumes: Vec<String> = (0..count).map(|number| format!("{NAMESPACE}-{number}")).collect();
    let attachments = AttachmentLoad::on_existing_nodes(&client, DRIVER, NODES, volumes.clone());
    let pods = ScheduledPods::new(&client, NAMESPACE, DRIVER, NODES, volumes).await?;

    let mut recorder = LoadRecorder::new(name, &plane, std::iter::empty(), watches).await?;
    recorder.begin_load().await?;
    let timing = upper_bound::measure_each(count, async |number| {
        pods.create_pod(number).await?;
        attachments.write_attach(number).await
    });
    recorder.end_load(LoadKind::SchedulePods, &timing.await?).await?;
    let timing = upper_bound::measure_each(count, async |number| {
        pods.delete_pod(number).await?;
        attachments.write_detach(number).await
    });
    recorder.end_load(LoadKind::DeletePods, &timing.await?).await?;

    let loads = recorder.into_measurements();
    drop((load, pods, attachments, client));
    plane.stop().await?;
    Ok(ConfigurationResults {
        name: name.to_owned(),
        description: "pods, and four writes to attach and two to detach, made by the clients; no \
                controllers, no watches, no Node status updates"
            .to_owned(),
        implementation: None,
        controllers: Vec::new(),
        loads,
    })
}

/// Measures the scheduling load on the attach-detach controller of an implementation.
///
/// # Errors
/// If a process does not run, a volume is not attached to the node of its pod, or a VolumeAttachment is not
/// removed.
pub(super) async fn measure(
    run: &SuiteRun,
    implementation: Implementation,
    count: usize,
) -> Result<ConfigurationResults> {
    let (name, description) = match implementation {
        Implementation::Upstream => (
            "Upstream, scheduling",
            "the attach-detach controller of kube-controller-manager, client rates unlimited; \
             Cofferdam's attacher, the Go driver",
        ),
        Implementation::Cofferdam => (
            "Cofferdam, scheduling",
            "`cofferdam run` with attach-detach; Cofferdam's attacher in a separate process, the Go driver",
        ),
    };
    let mut plane = start_control_plane(run).await?;
    let client = plane.client().clone();
    let watches = UsageReading::when_idle(&client, &[]).await?.watches();
    let driver = CsiDriverProcess::start(run, DRIVER, &["--any-node"]).await?;
    let account = Account::new(run, &plane, &PROVISIONING_ROLES).await?;
    let workers = ["--worker-threads=100"];
    let provisioning =
        cofferdam::start_with_csi_driver_and_flags(run, &account, driver.socket(), &workers).await?;
    let (_, volumes) = ClaimLoad::new(&client, NAMESPACE, Some(DRIVER)).await?.bind_all(count).await?;
    attachments::create_nodes(&client, &[DRIVER.to_owned()], NODES).await?;
    let pods = ScheduledPods::new(&client, NAMESPACE, DRIVER, NODES, volumes).await?;

    let controller = start_controller(run, &mut plane, implementation, &driver).await?;
    let controllers = RunningConfiguration {
        driver_name: DRIVER,
        controllers: vec![controller],
        drivers: vec![provisioning, driver.process],
    };
    let mut recorder = LoadRecorder::new(name, &plane, controllers.processes(), watches).await?;
    recorder.begin_load().await?;
    let timing = pods.schedule_all().await?;
    recorder.end_load(LoadKind::SchedulePods, &timing).await?;
    let timing = pods.delete_all().await?;
    recorder.end_load(LoadKind::DeletePods, &timing).await?;

    let results = ConfigurationResults {
        name: name.to_owned(),
        description: description.to_owned(),
        implementation: Some(implementation),
        controllers: controllers.names(),
        loads: recorder.into_measurements(),
    };
    controllers.stop().await?;
    drop((pods, client));
    plane.stop().await?;
    Ok(results)
}

async fn start_controller(
    run: &SuiteRun,
    plane: &mut ControlPlane,
    implementation: Implementation,
    driver: &CsiDriverProcess,
) -> Result<ManagedProcess> {
    match implementation {
        Implementation::Upstream => {
            plane.start_controller_manager(run, ATTACH_DETACH_CONTROLLER).await?;
            plane.controller_manager.take().context("kube-controller-manager does not run")
        }
        Implementation::Cofferdam => {
            let account = Account::new(run, plane, &["attach-detach"]).await?;
            cofferdam::start_named(run, "cofferdam-attach-detach", &account, driver.socket()).await
        }
    }
}

fn pod_object(number: usize, nodes: usize) -> Value {
    json!({
        "metadata": { "name": format!("pod-{number}") },
        "spec": {
            "nodeName": node_name(number, nodes),
            "containers": [{
                "name": "main", "image": "none",
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }],
            "volumes": [{
                "name": "data", "persistentVolumeClaim": { "claimName": format!("claim-{number}") },
            }],
        },
    })
}

async fn list_items(client: &Client, path: &str) -> Result<Vec<Value>> {
    let list: Value = client.request(Request::get(path).body(Vec::new())?).await?;
    list.pointer("/items").and_then(Value::as_array).cloned().with_context(|| format!("{path} has no items"))
}

/// A map with an entry of each object: the field at the pointer `key` to the field at the pointer `value`.
async fn field_by_field(
    client: &Client,
    path: &str,
    key: &str,
    value: &str,
) -> Result<BTreeMap<String, String>> {
    let objects = list_items(client, path).await?;
    Ok(objects
        .iter()
        .map(|object| (string_at(object, key).to_owned(), string_at(object, value).to_owned()))
        .collect())
}

fn string_at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
