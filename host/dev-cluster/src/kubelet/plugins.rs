//! Drivers come to kubelet by a socket in its directory of plugins: it asks who is there, writes into the Node and the CSINode what the
//! driver says of the node, and answers whether it uses the driver.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use cofferdam_cluster::{Kind as _, WriteError, queue::Outcome};
use cofferdam_csi::{
    registration::{InfoRequest, PluginInfo, RegistrationStatus},
    v1::{NodeGetInfoRequest, NodeGetInfoResponse},
};
use serde_json::{Value, json};
use tonic::Code;

use super::{Kubelet, Plugin, calls, lock};
use crate::{
    kinds::{CsiNodeObject, NodeObject},
    observer::StepKind,
    world::Patch,
};

/// The only type of plugins here.
const TYPE: &str = "CSIPlugin";
/// Annotation of a Node: how drivers call it.
const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";
/// How often what a driver says of the node is written before the registration has failed, and the first pause; it is multiplied by
/// five each time.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(10);

impl Kubelet {
    /// The handshake with whoever listens on a socket.
    pub(super) async fn register(&self, socket: &Path) -> Outcome {
        let Some(ground) = lock(&self.sockets).get(socket).cloned() else { return Outcome::Done };
        let info = calls::registration(socket, async |client| client.get_info(InfoRequest {}).await);
        let info = match info.await {
            Ok(info) => info.into_inner(),
            Err(status) => {
                tracing::info!(node = %self.name, socket = %socket.display(), "{}", calls::words(&status));
                return Outcome::Retry;
            }
        };
        let endpoint =
            if info.endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(&info.endpoint) };
        let plugin = Plugin { endpoint, ground };
        let registered = match self.validate(&info) {
            Ok(()) => self.take(&info, plugin).await,
            Err(problem) => Err(format!("plugin validation failed with err: {problem}")),
        };
        let status = RegistrationStatus {
            plugin_registered: registered.is_ok(),
            error: registered.as_ref().err().cloned().unwrap_or_default(),
        };
        let told =
            calls::registration(socket, async |client| client.notify_registration_status(status).await);
        let told = told.await.map_err(|status| calls::words(&status));
        match registered.and(told.map(drop)) {
            Ok(()) => {
                tracing::info!(node = %self.name, driver = info.name, "registered");
                self.registered.send_modify(|sockets| {
                    sockets.insert(socket.to_owned());
                });
                self.wake_all();
                Outcome::Done
            }
            Err(problem) => {
                lock(&self.plugins).remove(&info.name.as_str().into());
                let text = format!("does not register driver {}: {problem}", info.name);
                let object = format!("node/{}", self.name);
                self.world.tell(super::COMPONENT, object, StepKind::Fails, text);
                Outcome::Retry
            }
        }
    }

    fn validate(&self, info: &PluginInfo) -> Result<(), String> {
        if info.r#type != TYPE {
            return Err(format!("no handler registered for plugin type: {}", info.r#type));
        }
        let major = |version: &String| {
            version.trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok())
        };
        match info.supported_versions.iter().filter_map(major).max() {
            None => Err("plugin does not specify supported versions".to_owned()),
            Some(0 | 1) => Ok(()),
            Some(version) => Err(format!("version {version} is not supported: expected below 2")),
        }
    }

    /// Asks the driver what the node is to it, and writes that down.
    async fn take(&self, info: &PluginInfo, plugin: Plugin) -> Result<(), String> {
        let endpoint = plugin.endpoint.clone();
        lock(&self.plugins).insert(info.name.as_str().into(), plugin);
        let failed = |problem: String| format!("plugin registration failed with err: {problem}");
        let answer = calls::node(&endpoint, async |client| client.node_get_info(NodeGetInfoRequest {}).await);
        let answer = answer.await.map_err(|status| failed(calls::words(&status)))?;
        if answer.node_id.is_empty() {
            return Err(failed("driver returned an empty node id".to_owned()));
        }
        let mut pause = PAUSE;
        for tries in 1.. {
            // Of several drivers of a node each one changes the same two objects.
            let turn = self.registering.lock().await;
            let written = self.write_down(&info.name, &answer).await;
            drop(turn);
            match written {
                Ok(()) => break,
                Err(problem) if tries == TRIES => return Err(failed(problem)),
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause *= 5;
        }
        Ok(())
    }

    async fn write_down(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), String> {
        let text = |error: WriteError| error.to_string();
        let node = self.world.get::<NodeObject>(&self.name).await.map_err(text)?;
        let node = node.ok_or_else(|| format!("node {} does not exist", self.name))?;
        let topology = info.accessible_topology.clone().unwrap_or_default().segments;
        let node = self.mark_node(driver, &info.node_id, &topology, node).await?;
        let count = i32::try_from(info.max_volumes_per_node).unwrap_or(i32::MAX);
        let entry = json!({
            "name": driver,
            "nodeID": info.node_id,
            "topologyKeys": topology.keys().collect::<Vec<_>>(),
            "allocatable": (count > 0).then(|| json!({"count": count})),
        });
        self.mark_csi_node(driver, entry, &node).await
    }

    /// Node id and labels of the Node.
    async fn mark_node(
        &self,
        driver: &str,
        id: &str,
        topology: &BTreeMap<String, String>,
        node: NodeObject,
    ) -> Result<NodeObject, String> {
        let other = topology
            .iter()
            .find(|(key, value)| node.slim.labels.get(*key).is_some_and(|there| there != *value));
        if let Some((key, value)) = other {
            return Err(format!("detected topology value collision: driver reported {key:?}:{value:?}"));
        }
        let annotations = node.full.metadata.annotations.as_ref();
        let ids = annotations.and_then(|all| all.get(NODE_ID)).map(String::as_str).unwrap_or("{}");
        let mut ids: BTreeMap<String, String> = serde_json::from_str(ids).unwrap_or_default();
        let same = ids.insert(driver.to_owned(), id.to_owned()).as_deref() == Some(id);
        if same && topology.keys().all(|key| node.slim.labels.contains_key(key)) {
            return Ok(node);
        }
        let annotation = json!(ids).to_string();
        let patch = json!({"metadata": {"labels": topology, "annotations": {NODE_ID: annotation}}});
        let written = self.world.patch::<NodeObject>(&node, "/status", Patch::Strategic, patch).await;
        written.map_err(|error| error.to_string())
    }

    /// The driver's entry of the CSINode.
    async fn mark_csi_node(&self, driver: &str, entry: Value, node: &NodeObject) -> Result<(), String> {
        let entry = without_nulls(entry);
        let found = self.world.get::<CsiNodeObject>(&self.name).await.map_err(|error| error.to_string())?;
        let written = match found {
            None => {
                let body = json!({
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "CSINode",
                    "metadata": {"name": self.name, "ownerReferences": [{
                        "apiVersion": "v1", "kind": "Node", "name": self.name, "uid": node.meta().uid,
                    }]},
                    "spec": {"drivers": [entry]},
                });
                self.world.create::<CsiNodeObject>(&body).await.map(drop)
            }
            Some(found) => {
                let others = found.full.spec.drivers.iter().filter(|other| other.name != driver);
                let mut drivers: Vec<Value> = others.map(|other| json!(other)).collect();
                drivers.push(entry);
                if json!(drivers) == json!(found.full.spec.drivers) {
                    return Ok(());
                }
                let patch = json!({"spec": {"drivers": drivers}});
                self.world.patch(&found, "", Patch::Merge, patch).await.map(drop)
            }
        };
        written.map_err(|error| error.to_string())
    }
}

/// Whether a driver's socket has a Node service.
///
/// # Errors
/// Why the driver does not say so.
pub async fn serves_nodes(socket: &Path) -> Result<bool, String> {
    let answer = calls::node(socket, async |client| client.node_get_info(NodeGetInfoRequest {}).await);
    match answer.await {
        Ok(_) => Ok(true),
        Err(status) if status.code() == Code::Unimplemented => Ok(false),
        Err(status) => Err(calls::words(&status)),
    }
}

fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(map) = &mut value {
        map.retain(|_, member| !member.is_null());
    }
    value
}
