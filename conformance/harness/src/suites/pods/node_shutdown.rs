//! Non-graceful node shutdown: a node loses its power. Without the out-of-service taint, its volumes stay
//! attached to it. Once it has the taint, the StatefulSet's pods are created again, and run on another node
//! with their data. When the first node comes back, it has no volumes and no pods.
//!
//! Both nodes use the Go driver with Cofferdam's roles, without sidecars and without the upstream controllers
//! that the roles replace.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Namespace, Node as NodeObject, Pod},
    storage::v1::{CSIDriver, StorageClass, VolumeAttachment},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{
    fixture::{MOUNT_PATH, RUN_UNTIL_TERMINATED, TIMEOUT, TestNamespace},
    snapshots,
};
use crate::{
    account::{Account, CLUSTER_ROLES},
    cofferdam,
    control_plane::{ControlPlane, ControlPlaneOptions, UNREPLACED_CONTROLLERS},
    driver::CsiDriverProcess,
    image,
    node::KubeletNode,
    pod,
    process::ManagedProcess,
    run::SuiteRun,
    snapshot_crds,
    snapshots::Snapshots,
    wait::until,
};

const DRIVER: &str = "go.conformance.cofferdam.dev";
const FIRST_NODE: &str = "node-1";
const SECOND_NODE: &str = "node-2";
/// The StorageClass, with immediate binding.
const CLASS: &str = "reached";
const SET_NAME: &str = "set";
/// Pods of the StatefulSet. The suite force-deletes the first before it sets the out-of-service taint, and
/// Kubernetes deletes the second afterwards.
const PODS: [&str; 2] = ["set-0", "set-1"];
/// Node monitor grace period: the time without a heartbeat of a node after which the node lifecycle
/// controller sets its condition Ready to Unknown.
const NODE_MONITOR_GRACE: Duration = Duration::from_secs(15);
/// Time limit until a pod has printed what is expected on either node, and until a pod waits on the second
/// node for its volume. The pod garbage collector, which deletes the pods of the first node, runs every 20 s.
const RESCHEDULE_TIMEOUT: Duration = Duration::from_secs(300);

pub(in crate::suites) async fn run(run: &SuiteRun) -> Result<()> {
    let mut fixture = TwoNodeFixture::new(run).await?;
    fixture.cordon(SECOND_NODE).await?;
    fixture.compare_snapshot_bytes().await.context("snapshots, restores and clones")?;
    let namespace = fixture.create_stateful_set().await?;
    for pod in PODS {
        fixture.wait_log(&namespace, pod, FIRST_NODE).await?;
    }
    fixture.uncordon(SECOND_NODE).await?;

    fixture.first.lose_power().await?;
    let [registrar, _] = &mut fixture.registrars;
    registrar.kill().await?;
    fixture.wait_ready_condition(FIRST_NODE, "Unknown").await?;
    fixture.check_no_detach_without_taint(&namespace).await?;

    let tainted = Instant::now();
    let taint = "node.kubernetes.io/out-of-service";
    fixture.taint(json!([{ "key": taint, "value": "nodeshutdown", "effect": "NoExecute" }])).await?;
    let both = format!("{FIRST_NODE}\n{SECOND_NODE}");
    let mut seconds_per_pod = Vec::new();
    for pod in PODS {
        fixture.wait_log(&namespace, pod, &both).await?;
        seconds_per_pod.push(tainted.elapsed().as_secs_f64());
    }
    let [waiting_pod, evicted_pod] = seconds_per_pod.as_slice() else {
        bail!("{seconds_per_pod:?}: expected the times of two pods")
    };
    run.add_note(&format!(
        "out-of-service taint: the waiting pod ran with its data after {waiting_pod:.1} s, the other one \
         after {evicted_pod:.1} s"
    ))?;
    fixture.check_attached_to(SECOND_NODE).await?;
    fixture.check_node_return(&namespace).await?;
    fixture.stop(&namespace).await
}

/// A cluster with two nodes, the Go driver, whose volumes both nodes can use, and Cofferdam's roles.
struct TwoNodeFixture<'a> {
    run: &'a SuiteRun,
    plane: ControlPlane,
    first: KubeletNode,
    second: KubeletNode,
    driver: CsiDriverProcess,
    roles: ManagedProcess,
    /// The registrars of the first and of the second node.
    registrars: [ManagedProcess; 2],
}

impl<'a> TwoNodeFixture<'a> {
    async fn new(run: &'a SuiteRun) -> Result<Self> {
        let options = ControlPlaneOptions {
            controllers: Some(UNREPLACED_CONTROLLERS.to_owned()),
            has_scheduler: true,
            node_monitor_grace: Some(NODE_MONITOR_GRACE),
            ..ControlPlaneOptions::default()
        };
        let plane = ControlPlane::start(run, options).await?;
        let first = KubeletNode::start(run, &plane, FIRST_NODE).await?;
        let second = KubeletNode::start_numbered(run, &plane, SECOND_NODE, 1).await?;
        let socket = run.scratch().join("node-2.sock");
        let arguments = [
            format!("--directory={}", run.scratch().join("volumes").display()),
            format!("--other-node={SECOND_NODE}={}", socket.display()),
        ];
        let driver = CsiDriverProcess::start(run, DRIVER, &arguments.each_ref().map(String::as_str)).await?;
        let registrars = [
            cofferdam::start_registrar(run, FIRST_NODE, driver.socket(), first.root()).await?,
            cofferdam::start_registrar(run, SECOND_NODE, &socket, second.root()).await?,
        ];
        snapshot_crds::install(plane.client()).await?;
        let roles = [CLUSTER_ROLES.as_slice(), &["snapshot-controller", "snapshotter"]].concat();
        let account = Account::with_name(run, &plane, "cofferdam", &roles, &[]).await?;
        let roles = cofferdam::start_with_csi_driver(run, &account, driver.socket()).await?;
        let object: CSIDriver = serde_json::from_value(pod::csi_driver_object(DRIVER))?;
        Api::all(plane.client().clone()).create(&PostParams::default(), &object).await?;
        Ok(Self { run, plane, first, second, driver, roles, registrars })
    }

    fn nodes(&self) -> Api<NodeObject> {
        Api::all(self.plane.client().clone())
    }

    /// Pods of the first node find the bytes of before in a clone and in a restored volume.
    async fn compare_snapshot_bytes(&self) -> Result<()> {
        let client = self.plane.client();
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": { "name": CLASS }, "provisioner": DRIVER, "volumeBindingMode": "Immediate",
        }))?;
        Api::all(client.clone()).create(&PostParams::default(), &class).await?;
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": "snapshots" } }))?;
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        let namespace = TestNamespace::existing(client.clone(), "snapshots");
        let snapshots = Snapshots::new(client, namespace.name(), DRIVER).await?;
        snapshots::compare_bytes(&namespace, &snapshots, CLASS, None).await?;
        namespace.delete_claims().await?;
        snapshots.wait_remaining(0, TIMEOUT).await
    }

    /// Creates a namespace and a StatefulSet. Each pod appends its node's
    /// name to a file in its volume, and prints the file. Does not wait for the pods.
    async fn create_stateful_set(&self) -> Result<TestNamespace> {
        let client = self.plane.client().clone();
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": "shutdown" } }))?;
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        let test_namespace = TestNamespace::existing(client, "shutdown");
        test_namespace.create::<StatefulSet>(stateful_set_object()).await?;
        Ok(test_namespace)
    }

    async fn cordon(&self, node: &str) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
        self.nodes().patch(node, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn uncordon(&self, node: &str) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "unschedulable": null } }));
        self.nodes().patch(node, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Replaces the taints of the first node. The node lifecycle controller restores its own.
    async fn taint(&self, taints: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
        self.nodes().patch(FIRST_NODE, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until the node's condition Ready has this status.
    async fn wait_ready_condition(&self, node: &str, expected: &str) -> Result<()> {
        until(&format!("{node} is Ready: {expected}"), TIMEOUT, async || {
            let conditions = self.nodes().get(node).await?.status.and_then(|status| status.conditions);
            let ready = conditions.unwrap_or_default().into_iter().find(|one| one.type_ == "Ready");
            let now = ready.context("no condition Ready")?.status;
            ensure!(now == expected, "it is {now}");
            Ok(())
        })
        .await
    }

    /// Waits until the log of the existing pod of this name is exactly `expected` and the line `done`.
    /// `expected` has the content of the volume's file: a line with the node's name for each pod of this name
    /// so far.
    async fn wait_log(&self, namespace: &TestNamespace, pod: &str, expected: &str) -> Result<()> {
        until(&format!("{pod} says {expected:?}"), RESCHEDULE_TIMEOUT, async || {
            let pods: Api<Pod> = namespace.pods();
            let node = pods.get(pod).await?.spec.and_then(|spec| spec.node_name).unwrap_or_default();
            let events = namespace.event_text(pod).await?;
            let log = pods.logs(pod, &LogParams::default()).await;
            let log = log.with_context(|| format!("no log of it on {node:?}: {events}"))?;
            ensure!(log.trim() == format!("{expected}\ndone"), "on {node:?} it says {log:?}: {events}");
            Ok(())
        })
        .await
    }

    /// Force-deletes the first pod, and checks that its successor waits on the second node with a
    /// Multi-Attach error. Without the taint the first node may still write, so the volumes of both pods stay
    /// attached to it.
    async fn check_no_detach_without_taint(&self, namespace: &TestNamespace) -> Result<()> {
        let [pod, _] = PODS;
        namespace.pods().delete(pod, &DeleteParams::default().grace_period(0)).await?;
        until(&format!("the next {pod} has to wait"), RESCHEDULE_TIMEOUT, async || {
            let node = namespace.pods().get(pod).await?.spec.and_then(|spec| spec.node_name);
            let events = namespace.event_text(pod).await?;
            let is_waiting = node.as_deref() == Some(SECOND_NODE) && events.contains("Multi-Attach error");
            ensure!(is_waiting, "on {node:?} it was told {events:?}");
            Ok(())
        })
        .await?;
        self.check_attached_to(FIRST_NODE).await
    }

    /// Checks that there is one VolumeAttachment for each pod of the set, that all name this node, and that
    /// the driver has published the volumes to this node only. Does not check the status of the
    /// VolumeAttachments.
    async fn check_attached_to(&self, node: &str) -> Result<()> {
        let all: Api<VolumeAttachment> = Api::all(self.plane.client().clone());
        let all = all.list(&ListParams::default()).await?.items;
        let attached: Vec<&str> = all.iter().map(|attachment| attachment.spec.node_name.as_str()).collect();
        let (published, expected) = (self.driver.published_nodes().await?, [node; PODS.len()]);
        ensure!(
            attached == expected && published == expected,
            "attached to {attached:?}, published to {published:?}: expected {expected:?}"
        );
        Ok(())
    }

    /// Restarts the first node and its registrar, and removes the taint. Checks that the node becomes Ready
    /// without volumes and without mounts or containers of pods, and that the pods on the second node keep
    /// their volumes.
    async fn check_node_return(&mut self, namespace: &TestNamespace) -> Result<()> {
        self.first.power_on(self.run, &self.plane).await?;
        let [registrar, _] = &mut self.registrars;
        registrar.restart()?;
        self.taint(json!([])).await?;
        self.wait_ready_condition(FIRST_NODE, "True").await?;
        until("the node that is back has no volume", TIMEOUT, async || {
            let status = self.nodes().get(FIRST_NODE).await?.status.context("no status")?;
            let (attached, in_use) = (status.volumes_attached, status.volumes_in_use);
            let has_no_volumes = attached.as_deref().unwrap_or_default().is_empty()
                && in_use.as_deref().unwrap_or_default().is_empty();
            ensure!(has_no_volumes, "attached {attached:?}, in use {in_use:?}");
            Ok(())
        })
        .await?;
        self.first.wait_without_pods(self.run, TIMEOUT).await?;
        // The running pods keep their volumes.
        for pod in PODS {
            self.wait_log(namespace, pod, &format!("{FIRST_NODE}\n{SECOND_NODE}")).await?;
        }
        self.check_attached_to(SECOND_NODE).await
    }

    async fn stop(mut self, namespace: &TestNamespace) -> Result<()> {
        namespace.stateful_sets().delete(SET_NAME, &DeleteParams::default()).await?;
        for pod in PODS {
            namespace.wait_pod_deleted(pod).await?;
        }
        namespace.delete_claims().await?;
        self.second.wait_idle(self.run, TIMEOUT).await?;
        let remaining = self.driver.volumes().await?;
        ensure!(remaining.is_empty(), "the storage has {remaining:?}");
        self.roles.stop().await?;
        for registrar in &mut self.registrars {
            registrar.stop().await?;
        }
        self.driver.process.stop().await?;
        self.second.stop().await?;
        self.first.stop().await?;
        self.plane.stop().await
    }
}

fn stateful_set_object() -> Value {
    let script = format!("cd {MOUNT_PATH}; echo $NODE >> f; sync; cat f; {RUN_UNTIL_TERMINATED}");
    json!({
        "metadata": { "name": SET_NAME },
        "spec": {
            "serviceName": SET_NAME,
            "replicas": PODS.len(),
            "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": { "app": SET_NAME } },
            "template": {
                "metadata": { "labels": { "app": SET_NAME } },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "shell",
                        "image": image::SHELL_IMAGE,
                        "imagePullPolicy": "Never",
                        "command": ["sh", "-ec", script],
                        "env": [{
                            "name": "NODE",
                            "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } },
                        }],
                        "volumeMounts": [{ "name": "data", "mountPath": MOUNT_PATH }],
                    }],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": {
                    "storageClassName": CLASS,
                    "accessModes": ["ReadWriteOnce"],
                    "resources": { "requests": { "storage": "1Gi" } },
                },
            }],
        },
    })
}
