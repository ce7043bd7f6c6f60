//! The load of attachments: volumes that are there are attached to nodes, and detached again. No node runs: an attachment is what
//! its object says.

use std::{collections::HashMap, time::Instant};

use anyhow::{Context as _, Result};
use kube::Client;
use serde_json::{Value, json};

use super::load::{Answered, Sight, State, each, send};

pub(super) const PATH: &str = "/apis/storage.k8s.io/v1/volumeattachments";
/// How many nodes the volumes are spread over.
const NODES: usize = 5;

/// One attachment for each of some volumes.
pub(super) struct Attachments {
    client: Client,
    driver: String,
    nodes: usize,
    volumes: Vec<String>,
}

impl Attachments {
    /// Makes the nodes.
    ///
    /// # Errors
    /// When the API refuses one.
    pub(super) async fn new(client: &Client, driver: &str, volumes: Vec<String>) -> Result<Self> {
        nodes(client, &[driver.to_owned()], NODES).await?;
        Ok(Self::on_nodes(client, driver, NODES, volumes))
    }

    /// On so many nodes, which are there.
    pub(super) fn on_nodes(client: &Client, driver: &str, nodes: usize, volumes: Vec<String>) -> Self {
        Self { client: client.clone(), driver: driver.to_owned(), nodes, volumes }
    }

    /// How many there are.
    pub(super) const fn count(&self) -> usize {
        self.volumes.len()
    }

    /// All of them by all users at once, until the last volume is attached.
    ///
    /// # Errors
    /// When the API refuses one, or they are not attached.
    pub(super) async fn attached(&self) -> Result<Answered> {
        self.answered(State::Attached).await
    }

    /// They are deleted by all users at once, until the last one is gone.
    ///
    /// # Errors
    /// When the API refuses it, or they do not go.
    pub(super) async fn detached(&self) -> Result<Answered> {
        self.answered(State::Gone).await
    }

    async fn answered(&self, state: State) -> Result<Answered> {
        let sight = Sight::of(&self.client, PATH, state).await?;
        let started = Instant::now();
        let sent: HashMap<String, Instant> = each(self.count(), async |number| {
            let at = Instant::now();
            if state == State::Gone {
                send(&self.client, "DELETE", &path(number), &Value::Null).await?;
            } else {
                send(&self.client, "POST", PATH, &self.attachment(number)?).await?;
            }
            Ok((name(number), at))
        })
        .await?
        .into_iter()
        .collect();
        let seen = sight.until(self.count()).await?;
        Answered::of(started, &sent, &seen)
    }

    /// The four writes that it takes to attach a volume, by the users themselves.
    ///
    /// # Errors
    /// When the API refuses one.
    pub(super) async fn written(&self, number: usize) -> Result<()> {
        let volume = format!("/api/v1/persistentvolumes/{}", self.volume(number)?);
        let attachment = path(number);
        let kept = json!({ "metadata": { "finalizers": [self.finalizer()] } });
        let claimed = json!({ "metadata": {
            "finalizers": [self.finalizer()],
            "annotations": { "csi.alpha.kubernetes.io/node-id": node(number, self.nodes) },
        } });
        let attached = json!({ "status": { "attached": true, "attachmentMetadata": { "node": node(number, self.nodes) } } });
        for (method, path, body) in [
            ("POST", PATH, &self.attachment(number)?),
            ("PATCH", &volume, &kept),
            ("PATCH", &attachment, &claimed),
            ("PATCH", &format!("{attachment}/status"), &attached),
        ] {
            send(&self.client, method, path, body).await?;
        }
        Ok(())
    }

    /// The two writes that it takes to let a volume go again.
    ///
    /// # Errors
    /// When the API refuses one.
    pub(super) async fn unwritten(&self, number: usize) -> Result<()> {
        let attachment = path(number);
        send(&self.client, "DELETE", &attachment, &Value::Null).await?;
        send(&self.client, "PATCH", &attachment, &json!({ "metadata": { "finalizers": null } })).await
    }

    fn finalizer(&self) -> String {
        format!("external-attacher/{}", self.driver.replace('.', "-"))
    }

    fn volume(&self, number: usize) -> Result<&str> {
        self.volumes.get(number).map(String::as_str).context("no volume")
    }

    fn attachment(&self, number: usize) -> Result<Value> {
        Ok(json!({
            "metadata": { "name": name(number) },
            "spec": {
                "attacher": self.driver,
                "nodeName": node(number, self.nodes),
                "source": { "persistentVolumeName": self.volume(number)? },
            },
        }))
    }
}

fn name(number: usize) -> String {
    format!("attachment-{number}")
}

/// The node of an object of the load, of so many.
pub(super) fn node(number: usize, of: usize) -> String {
    format!("node-{}", number % of)
}

/// Makes nodes on which the drivers are, and whose volumes a controller attaches.
///
/// # Errors
/// When the API refuses one.
pub(super) async fn nodes(client: &Client, drivers: &[String], count: usize) -> Result<()> {
    for name in (0..count).map(|number| node(number, count)) {
        let annotations = json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true" });
        let object = json!({ "metadata": { "name": name, "annotations": annotations } });
        send(client, "POST", "/api/v1/nodes", &object).await?;
        let driver = |driver| json!({ "name": driver, "nodeID": name, "topologyKeys": null });
        let drivers: Vec<Value> = drivers.iter().map(driver).collect();
        let object = json!({ "metadata": { "name": name }, "spec": { "drivers": drivers } });
        send(client, "POST", "/apis/storage.k8s.io/v1/csinodes", &object).await?;
    }
    Ok(())
}

fn path(number: usize) -> String {
    format!("{PATH}/{}", name(number))
}
