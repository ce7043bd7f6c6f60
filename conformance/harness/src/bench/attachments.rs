//! The attach load: existing volumes are attached to nodes and detached. No kubelet runs; a volume counts as
//! attached when the status of its VolumeAttachment is `attached: true`.

use std::{collections::HashMap, time::Instant};

use anyhow::{Context as _, Result};
use kube::Client;
use serde_json::{Value, json};

use super::load::{LoadTiming, ObjectObserver, ObjectState, for_each_user, send};

pub(super) const VOLUME_ATTACHMENTS_PATH: &str = "/apis/storage.k8s.io/v1/volumeattachments";
/// Number of nodes that [`AttachmentLoad::new`] creates.
const NODES: usize = 5;

/// A load that creates and deletes one VolumeAttachment per volume.
pub(super) struct AttachmentLoad {
    client: Client,
    driver: String,
    nodes: usize,
    volumes: Vec<String>,
}

impl AttachmentLoad {
    /// Creates the nodes, and returns the load for these volumes.
    ///
    /// # Errors
    /// If the API server rejects a node.
    pub(super) async fn new(client: &Client, driver: &str, volumes: Vec<String>) -> Result<Self> {
        create_nodes(client, &[driver.to_owned()], NODES).await?;
        Ok(Self::on_existing_nodes(client, driver, NODES, volumes))
    }

    /// The load for these volumes on nodes that exist already: `nodes` is their number.
    pub(super) fn on_existing_nodes(
        client: &Client,
        driver: &str,
        nodes: usize,
        volumes: Vec<String>,
    ) -> Self {
        Self { client: client.clone(), driver: driver.to_owned(), nodes, volumes }
    }

    /// Number of VolumeAttachments.
    pub(super) const fn count(&self) -> usize {
        self.volumes.len()
    }

    /// Creates all VolumeAttachments concurrently, and waits until the last volume is attached.
    ///
    /// # Errors
    /// If the API server rejects one, or a volume is not attached in time.
    pub(super) async fn attach_all(&self) -> Result<LoadTiming> {
        self.run(ObjectState::Attached).await
    }

    /// Deletes all VolumeAttachments concurrently, and waits until the last one is removed.
    ///
    /// # Errors
    /// If the API server rejects a deletion, or a VolumeAttachment is not removed in time.
    pub(super) async fn detach_all(&self) -> Result<LoadTiming> {
        self.run(ObjectState::Deleted).await
    }

    /// Creates VolumeAttachments one after the other: each after the volume of the previous one is attached.
    ///
    /// # Errors
    /// As [`attach_all`](Self::attach_all).
    pub(super) async fn attach_sequentially(&self) -> Result<LoadTiming> {
        self.run_sequentially(ObjectState::Attached).await
    }

    /// Deletes VolumeAttachments one after the other: each after the previous one is removed.
    ///
    /// # Errors
    /// As [`detach_all`](Self::detach_all).
    pub(super) async fn detach_sequentially(&self) -> Result<LoadTiming> {
        self.run_sequentially(ObjectState::Deleted).await
    }

    async fn run_sequentially(&self, state: ObjectState) -> Result<LoadTiming> {
        let mut observer = ObjectObserver::start(&self.client, VOLUME_ATTACHMENTS_PATH, state).await?;
        let names: Vec<String> = (0..self.count()).map(attachment_name).collect();
        observer.measure_sequentially(&names, async |number| self.request(state, number).await).await
    }

    /// Creates or deletes the VolumeAttachment with this number, so that it reaches the state.
    async fn request(&self, state: ObjectState, number: usize) -> Result<()> {
        if state == ObjectState::Deleted {
            send(&self.client, "DELETE", &attachment_path(number), &Value::Null).await
        } else {
            send(&self.client, "POST", VOLUME_ATTACHMENTS_PATH, &self.attachment(number)?).await
        }
    }

    async fn run(&self, state: ObjectState) -> Result<LoadTiming> {
        let observer = ObjectObserver::start(&self.client, VOLUME_ATTACHMENTS_PATH, state).await?;
        let started = Instant::now();
        let sent: HashMap<String, Instant> = for_each_user(self.count(), async |number| {
            let sent_at = Instant::now();
            self.request(state, number).await?;
            Ok((attachment_name(number), sent_at))
        })
        .await?
        .into_iter()
        .collect();
        let observed = observer.wait_for_count(self.count()).await?;
        LoadTiming::from_observations(started, &sent, &observed)
    }

    /// Makes the four writes that attach the volume with this number: the client's and those of a controller.
    ///
    /// # Errors
    /// If the API server rejects a write.
    pub(super) async fn write_attach(&self, number: usize) -> Result<()> {
        let volume = format!("/api/v1/persistentvolumes/{}", self.volume(number)?);
        let attachment = attachment_path(number);
        let volume_patch = json!({ "metadata": { "finalizers": [self.finalizer()] } });
        let attachment_patch = json!({ "metadata": {
            "finalizers": [self.finalizer()],
            "annotations": { "csi.alpha.kubernetes.io/node-id": node_name(number, self.nodes) },
        } });
        let metadata = json!({ "node": node_name(number, self.nodes) });
        let status_patch = json!({ "status": { "attached": true, "attachmentMetadata": metadata } });
        for (method, path, body) in [
            ("POST", VOLUME_ATTACHMENTS_PATH, &self.attachment(number)?),
            ("PATCH", &volume, &volume_patch),
            ("PATCH", &attachment, &attachment_patch),
            ("PATCH", &format!("{attachment}/status"), &status_patch),
        ] {
            send(&self.client, method, path, body).await?;
        }
        Ok(())
    }

    /// Makes the two writes that detach the volume with this number: the client's and that of a controller.
    ///
    /// # Errors
    /// If the API server rejects a write.
    pub(super) async fn write_detach(&self, number: usize) -> Result<()> {
        let attachment = attachment_path(number);
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
            "metadata": { "name": attachment_name(number) },
            "spec": {
                "attacher": self.driver,
                "nodeName": node_name(number, self.nodes),
                "source": { "persistentVolumeName": self.volume(number)? },
            },
        }))
    }
}

fn attachment_name(number: usize) -> String {
    format!("attachment-{number}")
}

/// Name of the node for the object of this number; objects are distributed over the nodes in turn.
pub(super) fn node_name(number: usize, node_count: usize) -> String {
    format!("node-{}", number % node_count)
}

/// Creates Nodes with controller-managed attach, and their CSINodes, which list the drivers.
///
/// # Errors
/// If the API server rejects one.
pub(super) async fn create_nodes(client: &Client, drivers: &[String], count: usize) -> Result<()> {
    for name in (0..count).map(|number| node_name(number, count)) {
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

fn attachment_path(number: usize) -> String {
    format!("{VOLUME_ATTACHMENTS_PATH}/{}", attachment_name(number))
}
