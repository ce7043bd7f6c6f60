//! A node loses its power. Once somebody has said that it is out of service, its pods run on another one, with their data; and the
//! node finds nothing to do when it comes back.
//!
//! The storage is a CSI driver in Go that both nodes reach, served by all roles of ours: no sidecar runs, and of
//! kube-controller-manager nothing that is a role of ours.

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

use super::ground::{AT, Room, SOON, STAYS};
use crate::{
    account::{ALL, Account},
    cofferdam,
    control_plane::{BUT_OURS, ControlPlane, Options},
    driver::Driver,
    image,
    node::Node,
    pod,
    process::Process,
    run::Run,
    wait::until,
};

const DRIVER: &str = "go.conformance.cofferdam.dev";
const FIRST: &str = "node-1";
const SECOND: &str = "node-2";
const SET: &str = "set";
/// The first is taken away by somebody before the node is out of service, the second by Kubernetes afterwards.
const PODS: [&str; 2] = ["set-0", "set-1"];
/// How long nothing is heard of a kubelet until its node is not ready.
const GRACE: Duration = Duration::from_secs(15);
/// How long it may take until the pod runs elsewhere: kube-controller-manager looks each 20 s for pods of a node out of service.
const LONG: Duration = Duration::from_secs(300);

pub(in crate::suites) async fn run(run: &Run) -> Result<()> {
    let mut stage = Stage::new(run).await?;
    let room = stage.set().await?;
    for pod in PODS {
        stage.says(&room, pod, FIRST).await?;
    }
    stage.uncordon(SECOND).await?;

    stage.first.lose_power().await?;
    let [registrar, _] = &mut stage.registrars;
    registrar.kill().await?;
    stage.waits(FIRST, "Unknown").await?;
    stage.stays_without_the_word(&room).await?;

    let tainted = Instant::now();
    stage.taint(json!([{ "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" }])).await?;
    let both = format!("{FIRST}\n{SECOND}");
    let mut after = Vec::new();
    for pod in PODS {
        stage.says(&room, pod, &both).await?;
        after.push(tainted.elapsed().as_secs_f64());
    }
    let [waited, left] = after.as_slice() else { bail!("{after:?}: expected the times of two pods") };
    run.tell(&format!(
        "a node out of service: with its data, a pod that had waited for its volume ran after {waited:.1} s, one that was still \
         there after {left:.1} s"
    ))?;
    stage.are_on(SECOND).await?;
    stage.back(&room).await?;
    stage.end(&room).await
}

/// Two nodes that reach one storage.
struct Stage<'a> {
    run: &'a Run,
    plane: ControlPlane,
    first: Node,
    second: Node,
    driver: Driver,
    roles: Process,
    /// What tells kubelet of the driver, on each node.
    registrars: [Process; 2],
}

impl<'a> Stage<'a> {
    async fn new(run: &'a Run) -> Result<Self> {
        let options = Options {
            controllers: Some(BUT_OURS.to_owned()),
            scheduler: true,
            missed_after: Some(GRACE),
            ..Options::default()
        };
        let plane = ControlPlane::start(run, options).await?;
        let first = Node::start(run, &plane, FIRST).await?;
        let second = Node::another(run, &plane, SECOND, 1).await?;
        let socket = run.scratch().join("node-2.sock");
        let arguments = [
            format!("--directory={}", run.scratch().join("volumes").display()),
            format!("--other-node={SECOND}={}", socket.display()),
        ];
        let driver = Driver::start(run, DRIVER, &arguments.each_ref().map(String::as_str)).await?;
        let registrars = [
            cofferdam::registrar(run, FIRST, driver.socket(), first.root()).await?,
            cofferdam::registrar(run, SECOND, &socket, second.root()).await?,
        ];
        let account = Account::new(run, &plane, &ALL).await?;
        let roles = cofferdam::start_before(run, &account, driver.socket()).await?;
        let object: CSIDriver = serde_json::from_value(pod::attached_driver(DRIVER))?;
        Api::all(plane.client().clone()).create(&PostParams::default(), &object).await?;
        Ok(Self { run, plane, first, second, driver, roles, registrars })
    }

    fn nodes(&self) -> Api<NodeObject> {
        Api::all(self.plane.client().clone())
    }

    /// Makes a set of pods, which can only be on the first node. Each of its pods adds the name of its node to what is there.
    async fn set(&self) -> Result<Room> {
        let client = self.plane.client().clone();
        let cordon = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
        self.nodes().patch(SECOND, &PatchParams::default(), &cordon).await?;
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": "shutdown" } }))?;
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": { "name": "reached" }, "provisioner": DRIVER, "volumeBindingMode": "Immediate",
        }))?;
        Api::all(client.clone()).create(&PostParams::default(), &class).await?;
        let room = Room::of(client, "shutdown");
        room.make::<StatefulSet>(set()).await?;
        Ok(room)
    }

    async fn uncordon(&self, node: &str) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "unschedulable": null } }));
        self.nodes().patch(node, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Sets what taints the first node; those of Kubernetes' own are its business and come back.
    async fn taint(&self, taints: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
        self.nodes().patch(FIRST, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until a node's condition Ready is this.
    async fn waits(&self, node: &str, expected: &str) -> Result<()> {
        until(&format!("{node} is Ready: {expected}"), SOON, async || {
            let conditions = self.nodes().get(node).await?.status.and_then(|status| status.conditions);
            let ready = conditions.unwrap_or_default().into_iter().find(|one| one.type_ == "Ready");
            let now = ready.context("no condition Ready")?.status;
            ensure!(now == expected, "it is {now}");
            Ok(())
        })
        .await
    }

    /// Waits until a pod of the set runs and says what it found and wrote.
    async fn says(&self, room: &Room, pod: &str, expected: &str) -> Result<()> {
        until(&format!("{pod} says {expected:?}"), LONG, async || {
            let pods: Api<Pod> = room.pods();
            let node = pods.get(pod).await?.spec.and_then(|spec| spec.node_name).unwrap_or_default();
            let events = room.events(pod).await?;
            let said = pods.logs(pod, &LogParams::default()).await;
            let said = said.with_context(|| format!("no log of it on {node:?}: {events}"))?;
            ensure!(said.trim() == format!("{expected}\ndone"), "on {node:?} it says {said:?}: {events}");
            Ok(())
        })
        .await
    }

    /// A pod is deleted with force, and its next one waits on the other node: nobody has said that the node which is not heard does
    /// not write any more, so its volumes stay where they are.
    async fn stays_without_the_word(&self, room: &Room) -> Result<()> {
        let [pod, _] = PODS;
        room.pods().delete(pod, &DeleteParams::default().grace_period(0)).await?;
        until(&format!("the next {pod} has to wait"), LONG, async || {
            let node = room.pods().get(pod).await?.spec.and_then(|spec| spec.node_name);
            let events = room.events(pod).await?;
            let waits = node.as_deref() == Some(SECOND) && events.contains("Multi-Attach error");
            ensure!(waits, "on {node:?} it was told {events:?}");
            Ok(())
        })
        .await?;
        self.are_on(FIRST).await
    }

    /// Looks that every volume is on this node and on no other, for the API and for the driver.
    async fn are_on(&self, node: &str) -> Result<()> {
        let all: Api<VolumeAttachment> = Api::all(self.plane.client().clone());
        let all = all.list(&ListParams::default()).await?.items;
        let attached: Vec<&str> = all.iter().map(|attachment| attachment.spec.node_name.as_str()).collect();
        let (published, expected) = (self.driver.published().await?, [node; PODS.len()]);
        ensure!(
            attached == expected && published == expected,
            "attached to {attached:?}, published to {published:?}: expected {expected:?}"
        );
        Ok(())
    }

    /// The first node comes back: nobody tells it of a volume, and it has none.
    async fn back(&mut self, room: &Room) -> Result<()> {
        self.first.power_on(self.run, &self.plane).await?;
        let [registrar, _] = &mut self.registrars;
        registrar.again()?;
        self.taint(json!([])).await?;
        self.waits(FIRST, "True").await?;
        until("the node that is back has no volume", SOON, async || {
            let status = self.nodes().get(FIRST).await?.status.context("no status")?;
            let (attached, used) = (status.volumes_attached, status.volumes_in_use);
            let none = attached.as_deref().unwrap_or_default().is_empty()
                && used.as_deref().unwrap_or_default().is_empty();
            ensure!(none, "attached {attached:?}, in use {used:?}");
            Ok(())
        })
        .await?;
        self.first.without_pods(self.run, SOON).await?;
        // Who came back has taken nothing from who runs.
        for pod in PODS {
            self.says(room, pod, &format!("{FIRST}\n{SECOND}")).await?;
        }
        self.are_on(SECOND).await
    }

    async fn end(mut self, room: &Room) -> Result<()> {
        room.sets().delete(SET, &DeleteParams::default()).await?;
        for pod in PODS {
            room.pod_is_gone(pod).await?;
        }
        room.empty().await?;
        self.second.idle(self.run, SOON).await?;
        let left = self.driver.volumes().await?;
        ensure!(left.is_empty(), "the storage has {left:?}");
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

fn set() -> Value {
    let script = format!("cd {AT}; echo $NODE >> f; sync; cat f; {STAYS}");
    json!({
        "metadata": { "name": SET },
        "spec": {
            "serviceName": SET,
            "replicas": PODS.len(),
            "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": { "app": SET } },
            "template": {
                "metadata": { "labels": { "app": SET } },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "shell",
                        "image": image::SHELL,
                        "imagePullPolicy": "Never",
                        "command": ["sh", "-ec", script],
                        "env": [{ "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
                        "volumeMounts": [{ "name": "data", "mountPath": AT }],
                    }],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": {
                    "storageClassName": "reached",
                    "accessModes": ["ReadWriteOnce"],
                    "resources": { "requests": { "storage": "1Gi" } },
                },
            }],
        },
    })
}
