//! The load of pods that are placed on nodes: their volumes are attached there, and detached when they have gone. No kubelet runs,
//! and who attaches is our attacher for everybody: what is compared is who decides.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use http::Request;
use kube::Client;
use serde_json::{Value, json};

use super::{
    Figures, Flow, Ground,
    attachments::{self, Attachments, node},
    ceiling::{self, Volumes},
    load::{Answered, Load, Sight, State, VOLUMES, each, send},
    measure::Reading,
    stacks::{Controllers, DRIVER, Whose},
    start,
};
use crate::{
    account::Account, cofferdam, control_plane::ControlPlane, driver::Driver, process::Process, run::Run,
};

/// How many nodes the pods are placed on.
const NODES: usize = 20;
const NAMESPACE: &str = "placed";
const ALL_NODES: &str = "/api/v1/nodes";
/// Who makes the volumes, and attaches them.
const MAKERS: [&str; 3] = ["provisioner", "pv-controller", "attacher"];
const LOOP: &str = "persistentvolume-attach-detach-controller";

/// Pods of a namespace with a claim each, and the names that their volumes have in a node's status and in the API.
pub(super) struct Pods {
    client: Client,
    path: String,
    nodes: usize,
    /// What a driver's volumes in a node's status begin with.
    prefix: String,
    volumes: Vec<String>,
    on_nodes: Vec<String>,
}

impl Pods {
    /// Of claims that are Bound to these volumes of a driver, spread over nodes.
    ///
    /// # Errors
    /// When a volume is not there.
    pub(super) async fn new(
        client: &Client,
        namespace: &str,
        driver: &str,
        nodes: usize,
        volumes: Vec<String>,
    ) -> Result<Self> {
        let handles = by_name(client, VOLUMES, "/metadata/name", "/spec/csi/volumeHandle").await?;
        let prefix = format!("kubernetes.io/csi/{driver}^");
        let on_node = |volume: &String| {
            let handle = handles.get(volume).with_context(|| format!("{volume} is not there"))?;
            Ok(format!("{prefix}{handle}"))
        };
        let on_nodes = volumes.iter().map(on_node).collect::<Result<_>>()?;
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        Ok(Self { client: client.clone(), path, nodes, prefix, volumes, on_nodes })
    }

    /// Pods on all nodes, by all users at once, until the last volume is on its node.
    ///
    /// # Errors
    /// When the API refuses one, or a volume is not where it should be.
    pub(super) async fn placed(&self) -> Result<Answered> {
        let sight = Sight::of(&self.client, ALL_NODES, State::OnNode).await?;
        let started = Instant::now();
        let sent: HashMap<String, Instant> = each(self.volumes.len(), async |number| {
            let at = Instant::now();
            self.place(number).await?;
            Ok((self.on_nodes.get(number).context("no volume")?.clone(), at))
        })
        .await?
        .into_iter()
        .collect();
        let seen = sight.until_each(&sent).await?;
        self.check().await?;
        Answered::of(started, &sent, &seen)
    }

    async fn place(&self, number: usize) -> Result<()> {
        send(&self.client, "POST", &self.path, &pod(number, self.nodes)).await
    }

    async fn delete(&self, number: usize) -> Result<()> {
        let now = json!({ "gracePeriodSeconds": 0 });
        send(&self.client, "DELETE", &format!("{}/pod-{number}", self.path), &now).await
    }

    /// Whether each node says what it should, and each attachment is there.
    async fn check(&self) -> Result<()> {
        let nodes = items(&self.client, ALL_NODES).await?;
        for (number, object) in nodes.iter().map(|object| (text(object, "/metadata/name"), object)) {
            let said = object.pointer("/status/volumesAttached").and_then(Value::as_array);
            let said = said.into_iter().flatten().map(|volume| text(volume, "/name"));
            let mut said: Vec<&str> = said.filter(|name| name.starts_with(&self.prefix)).collect();
            said.sort_unstable();
            let expected =
                self.on_nodes.iter().enumerate().filter(|(index, _)| node(*index, self.nodes) == number);
            let mut expected: Vec<&str> = expected.map(|(_, name)| name.as_str()).collect();
            expected.sort_unstable();
            ensure!(said == expected, "{number} says {said:?}: expected {expected:?}");
        }
        let attached = items(&self.client, attachments::PATH).await?;
        let attached =
            attached.iter().filter(|object| object.pointer("/status/attached") == Some(&json!(true)));
        let attached: BTreeSet<&str> =
            attached.map(|object| text(object, "/spec/source/persistentVolumeName")).collect();
        let left = self.volumes.iter().find(|volume| !attached.contains(volume.as_str()));
        ensure!(left.is_none(), "{left:?} is not attached");
        Ok(())
    }

    /// The pods go, all at once, until the last attachment has gone.
    async fn left(&self) -> Result<Answered> {
        let names =
            by_name(&self.client, attachments::PATH, "/spec/source/persistentVolumeName", "/metadata/name")
                .await?;
        let sight = Sight::of(&self.client, attachments::PATH, State::Gone).await?;
        let started = Instant::now();
        let sent: HashMap<String, Instant> = each(self.volumes.len(), async |number| {
            let at = Instant::now();
            self.delete(number).await?;
            let volume = self.volumes.get(number).context("no volume")?;
            Ok((names.get(volume).with_context(|| format!("{volume} has no attachment"))?.clone(), at))
        })
        .await?
        .into_iter()
        .collect();
        let seen = sight.until(self.volumes.len()).await?;
        Answered::of(started, &sent, &seen)
    }
}

/// The same pods, and what has to be written so that their volumes are attached, by the users themselves; nobody tells the nodes.
///
/// # Errors
/// When the API refuses a write.
pub(super) async fn unanswered(run: &Run, count: usize) -> Result<Figures> {
    let name = "API alone, placed";
    let plane = start(run).await?;
    let client = plane.client().clone();
    let watches = Reading::at_rest(&client, &[]).await?.watches();
    let load = Load::new(&client, NAMESPACE, Some(DRIVER)).await?;
    ceiling::bound(&load, count, Volumes::Provisioned).await?;
    attachments::nodes(&client, &[DRIVER.to_owned()], NODES).await?;
    let volumes: Vec<String> = (0..count).map(|number| format!("{NAMESPACE}-{number}")).collect();
    let attachments = Attachments::on_nodes(&client, DRIVER, NODES, volumes.clone());
    let pods = Pods::new(&client, NAMESPACE, DRIVER, NODES, volumes).await?;

    let mut ground = Ground::new(name, &plane, std::iter::empty(), watches).await?;
    ground.begin().await?;
    let answered = ceiling::timed(count, async |number| {
        pods.place(number).await?;
        attachments.written(number).await
    });
    ground.end(Flow::Placed, &answered.await?).await?;
    let answered = ceiling::timed(count, async |number| {
        pods.delete(number).await?;
        attachments.unwritten(number).await
    });
    ground.end(Flow::Left, &answered.await?).await?;

    let loads = ground.done();
    drop((load, pods, attachments, client));
    plane.stop().await?;
    Ok(Figures {
        name: name.to_owned(),
        about: "pods, and four writes to attach and two to detach, by the users themselves; no controller, nobody watches, \
                no node is told"
            .to_owned(),
        whose: None,
        controllers: Vec::new(),
        loads,
    })
}

/// Lets a controller follow so many pods.
///
/// # Errors
/// When something does not run, a volume is not attached where it should be, or an attachment stays.
pub(super) async fn measured(run: &Run, whose: Whose, count: usize) -> Result<Figures> {
    let (name, about) = match whose {
        Whose::Theirs => (
            "Go, placed",
            "the attach-detach loop of kube-controller-manager, client rates unlimited; our attacher, the Go driver",
        ),
        Whose::Ours => (
            "Cofferdam, placed",
            "`cofferdam run` with attach-detach; our attacher in a process of its own, the Go driver",
        ),
    };
    let mut plane = start(run).await?;
    let client = plane.client().clone();
    let watches = Reading::at_rest(&client, &[]).await?.watches();
    let driver = Driver::start(run, DRIVER, &["--any-node"]).await?;
    let account = Account::new(run, &plane, &MAKERS).await?;
    let workers = ["--worker-threads=100"];
    let makers = cofferdam::start_before_with(run, &account, driver.socket(), &workers).await?;
    let (_, volumes) = Load::new(&client, NAMESPACE, Some(DRIVER)).await?.bound(count).await?;
    attachments::nodes(&client, &[DRIVER.to_owned()], NODES).await?;
    let pods = Pods::new(&client, NAMESPACE, DRIVER, NODES, volumes).await?;

    let controller = controller(run, &mut plane, whose, &driver).await?;
    let controllers =
        Controllers { driver: DRIVER, controllers: vec![controller], storage: vec![makers, driver.process] };
    let mut ground = Ground::new(name, &plane, controllers.processes(), watches).await?;
    ground.begin().await?;
    let answered = pods.placed().await?;
    ground.end(Flow::Placed, &answered).await?;
    let answered = pods.left().await?;
    ground.end(Flow::Left, &answered).await?;

    let figures = Figures {
        name: name.to_owned(),
        about: about.to_owned(),
        whose: Some(whose),
        controllers: controllers.names(),
        loads: ground.done(),
    };
    controllers.stop().await?;
    drop((pods, client));
    plane.stop().await?;
    Ok(figures)
}

async fn controller(run: &Run, plane: &mut ControlPlane, whose: Whose, driver: &Driver) -> Result<Process> {
    match whose {
        Whose::Theirs => {
            plane.start_controller_manager(run, LOOP).await?;
            plane.controller_manager.take().context("kube-controller-manager does not run")
        }
        Whose::Ours => {
            let account = Account::new(run, plane, &["attach-detach"]).await?;
            cofferdam::start_beside(run, "cofferdam-attach-detach", &account, driver.socket()).await
        }
    }
}

fn pod(number: usize, nodes: usize) -> Value {
    json!({
        "metadata": { "name": format!("pod-{number}") },
        "spec": {
            "nodeName": node(number, nodes),
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

async fn items(client: &Client, path: &str) -> Result<Vec<Value>> {
    let list: Value = client.request(Request::get(path).body(Vec::new())?).await?;
    list.pointer("/items").and_then(Value::as_array).cloned().with_context(|| format!("{path} has no items"))
}

/// One field of all objects by another.
async fn by_name(client: &Client, path: &str, key: &str, value: &str) -> Result<BTreeMap<String, String>> {
    let objects = items(client, path).await?;
    Ok(objects.iter().map(|object| (text(object, key).to_owned(), text(object, value).to_owned())).collect())
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
