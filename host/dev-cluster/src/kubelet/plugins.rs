//! Drivers come to kubelet by a socket in its directory of plugins: it asks who is there, writes into the
//! Node and the CSINode what the driver says of the node, and answers whether it uses the driver.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use cofferdam_cluster::{ApiError, Kind as _, queue::Action};
use cofferdam_csi::{
    registration::{InfoRequest, PluginInfo, RegistrationStatus},
    v1::{NodeGetInfoRequest, NodeGetInfoResponse},
};
use serde_json::{Value, json};
use tonic::Code;

use super::{Kubelet, Plugin, lock, node_calls};
use crate::{
    client::PatchType,
    kinds::{CsiNodeObject, NodeObject},
    observer::ClusterStepResult,
};

/// The only type of plugins here.
const CSI_PLUGIN_TYPE: &str = "CSIPlugin";
/// Annotation of a Node: how drivers call it.
const NODE_ID_ANNOTATION: &str = "csi.volume.kubernetes.io/nodeid";
/// How often what a driver says of the node is written before the registration has failed, and the first
/// pause; it is multiplied by five each time.
const NODE_UPDATE_ATTEMPTS: u32 = 4;
const NODE_UPDATE_DELAY: Duration = Duration::from_millis(10);

impl Kubelet {
    /// The handshake with whoever listens on a socket.
    pub(super) async fn register(&self, socket: &Path) -> Action {
        let Some(root_dir) = lock(&self.registration_sockets).get(socket).cloned() else {
            return Action::Done;
        };
        let info =
            node_calls::call_registration(socket, async |client| client.get_info(InfoRequest {}).await);
        let info = match info.await {
            Ok(info) => info.into_inner(),
            Err(status) => {
                tracing::info!(node = %self.node_name, socket = %socket.display(), "{}", node_calls::format_status(&status));
                return Action::Backoff;
            }
        };
        let endpoint =
            if info.endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(&info.endpoint) };
        let plugin = Plugin { endpoint, root_dir };
        let registered = match self.validate(&info) {
            Ok(()) => self.register_driver(&info, plugin).await,
            Err(problem) => Err(format!("plugin validation failed with err: {problem}")),
        };
        let status = RegistrationStatus {
            plugin_registered: registered.is_ok(),
            error: registered.as_ref().err().cloned().unwrap_or_default(),
        };
        let notified = node_calls::call_registration(socket, async |client| {
            client.notify_registration_status(status).await
        });
        let notified = notified.await.map_err(|status| node_calls::format_status(&status));
        match registered.and(notified.map(drop)) {
            Ok(()) => {
                tracing::info!(node = %self.node_name, driver = info.name, "registered");
                self.registered.send_modify(|sockets| {
                    sockets.insert(socket.to_owned());
                });
                self.enqueue_all();
                Action::Done
            }
            Err(problem) => {
                lock(&self.plugins).remove(&info.name.as_str().into());
                let text = format!("does not register driver {}: {problem}", info.name);
                let object = format!("node/{}", self.node_name);
                self.client.record_step(super::COMPONENT, object, ClusterStepResult::Failed, text);
                Action::Backoff
            }
        }
    }

    fn validate(&self, info: &PluginInfo) -> Result<(), String> {
        if info.r#type != CSI_PLUGIN_TYPE {
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
    async fn register_driver(&self, info: &PluginInfo, plugin: Plugin) -> Result<(), String> {
        let endpoint = plugin.endpoint.clone();
        lock(&self.plugins).insert(info.name.as_str().into(), plugin);
        let registration_failed = |problem: String| format!("plugin registration failed with err: {problem}");
        let answer = node_calls::call_node_service(&endpoint, async |client| {
            client.node_get_info(NodeGetInfoRequest {}).await
        });
        let answer =
            answer.await.map_err(|status| registration_failed(node_calls::format_status(&status)))?;
        if answer.node_id.is_empty() {
            return Err(registration_failed("driver returned an empty node id".to_owned()));
        }
        let mut pause = NODE_UPDATE_DELAY;
        for tries in 1.. {
            // Of several drivers of a node each one changes the same two objects.
            let guard = self.registration_lock.lock().await;
            let written = self.update_node_objects(&info.name, &answer).await;
            drop(guard);
            match written {
                Ok(()) => break,
                Err(problem) if tries == NODE_UPDATE_ATTEMPTS => return Err(registration_failed(problem)),
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause *= 5;
        }
        Ok(())
    }

    async fn update_node_objects(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), String> {
        let text = |error: ApiError| error.to_string();
        let node = self.client.get::<NodeObject>(&self.node_name).await.map_err(text)?;
        let node = node.ok_or_else(|| format!("node {} does not exist", self.node_name))?;
        let topology = info.accessible_topology.clone().unwrap_or_default().segments;
        let node = self.update_node(driver, &info.node_id, &topology, node).await?;
        let count = i32::try_from(info.max_volumes_per_node).unwrap_or(i32::MAX);
        let entry = json!({
            "name": driver,
            "nodeID": info.node_id,
            "topologyKeys": topology.keys().collect::<Vec<_>>(),
            "allocatable": (count > 0).then(|| json!({"count": count})),
        });
        self.update_csi_node(driver, entry, &node).await
    }

    /// Node id and labels of the Node.
    async fn update_node(
        &self,
        driver: &str,
        id: &str,
        topology: &BTreeMap<String, String>,
        node: NodeObject,
    ) -> Result<NodeObject, String> {
        let conflict = topology
            .iter()
            .find(|(key, value)| node.slim.labels.get(*key).is_some_and(|there| there != *value));
        if let Some((key, value)) = conflict {
            return Err(format!("detected topology value collision: driver reported {key:?}:{value:?}"));
        }
        let annotations = node.full.metadata.annotations.as_ref();
        let ids = annotations.and_then(|all| all.get(NODE_ID_ANNOTATION)).map(String::as_str).unwrap_or("{}");
        let mut ids: BTreeMap<String, String> = serde_json::from_str(ids).unwrap_or_default();
        let is_unchanged = ids.insert(driver.to_owned(), id.to_owned()).as_deref() == Some(id);
        if is_unchanged && topology.keys().all(|key| node.slim.labels.contains_key(key)) {
            return Ok(node);
        }
        let annotation = json!(ids).to_string();
        let patch =
            json!({"metadata": {"labels": topology, "annotations": {NODE_ID_ANNOTATION: annotation}}});
        let written = self.client.patch::<NodeObject>(&node, "/status", PatchType::Strategic, patch).await;
        written.map_err(|error| error.to_string())
    }

    /// The driver's entry of the CSINode.
    async fn update_csi_node(&self, driver: &str, entry: Value, node: &NodeObject) -> Result<(), String> {
        let entry = without_nulls(entry);
        let found =
            self.client.get::<CsiNodeObject>(&self.node_name).await.map_err(|error| error.to_string())?;
        let written = match found {
            None => {
                let body = json!({
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "CSINode",
                    "metadata": {"name": self.node_name, "ownerReferences": [{
                        "apiVersion": "v1", "kind": "Node", "name": self.node_name, "uid": node.meta().uid,
                    }]},
                    "spec": {"drivers": [entry]},
                });
                self.client.create::<CsiNodeObject>(&body).await.map(drop)
            }
            Some(found) => {
                let others = found.full.spec.drivers.iter().filter(|other| other.name != driver);
                let mut drivers: Vec<Value> = others.map(|other| json!(other)).collect();
                drivers.push(entry);
                if json!(drivers) == json!(found.full.spec.drivers) {
                    return Ok(());
                }
                let patch = json!({"spec": {"drivers": drivers}});
                self.client.patch(&found, "", PatchType::Merge, patch).await.map(drop)
            }
        };
        written.map_err(|error| error.to_string())
    }
}

/// Whether a driver's socket has a Node service.
///
/// # Errors
/// Why the driver does not say so.
pub async fn has_node_service(socket: &Path) -> Result<bool, String> {
    let answer = node_calls::call_node_service(socket, async |client| {
        client.node_get_info(NodeGetInfoRequest {}).await
    });
    match answer.await {
        Ok(_) => Ok(true),
        Err(status) if status.code() == Code::Unimplemented => Ok(false),
        Err(status) => Err(node_calls::format_status(&status)),
    }
}

fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(map) = &mut value {
        map.retain(|_, member| !member.is_null());
    }
    value
}
