//! Plugin registration: kubelet reads the driver's information from its registration socket, writes the
//! driver's node information to Node and CSINode, and reports the result to the driver.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use cofferdam_cluster::{ApiError, Kind as _, observer::StepResult, queue::Action};
use cofferdam_csi::{
    registration::{InfoRequest, PluginInfo, RegistrationStatus},
    v1::{NodeGetInfoRequest, NodeGetInfoResponse},
};
use serde_json::{Value, json};
use tonic::Code;

use super::{
    error::{NodeInfoError, PluginInfoError, RegistrationError, RpcError},
    node_calls,
    state::{COMPONENT, Kubelet, Plugin},
};
use crate::{
    client::PatchType,
    kinds::{FullCsiNode, FullNode},
};

/// The plugin type of CSI drivers; kubelet's other types are rejected.
const CSI_PLUGIN_TYPE: &str = "CSIPlugin";
/// Annotation of a Node: a JSON object with the Node's CSI node ID for each driver name.
const NODE_ID_ANNOTATION: &str = "csi.volume.kubernetes.io/nodeid";
/// Attempts to write a driver's node information before the registration fails.
const NODE_UPDATE_ATTEMPTS: u32 = 4;
/// Delay after the first failed attempt; each further delay is five times as long.
const NODE_UPDATE_DELAY: Duration = Duration::from_millis(10);

impl Kubelet {
    /// Registers the driver of a registration socket, and reports the result to the driver. Does nothing if
    /// the socket was not added to this kubelet.
    pub(super) async fn register(&self, socket: &Path) -> Action {
        let Some(root_dir) = self.registration_sockets.lock().get(socket).cloned() else {
            return Action::Done;
        };
        let info =
            node_calls::call_registration(socket, async |client| client.get_info(InfoRequest {}).await);
        let info = match info.await {
            Ok(info) => info.into_inner(),
            Err(error) => {
                tracing::info!(node = %self.node_name, socket = %socket.display(), "{error}");
                return Action::Backoff;
            }
        };
        let endpoint =
            if info.endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(&info.endpoint) };
        let plugin = Plugin { endpoint, root_dir };
        let registered = match validate(&info) {
            Ok(()) => self.register_driver(&info, plugin).await.map_err(RegistrationError::from),
            Err(error) => Err(error.into()),
        };
        let status = RegistrationStatus {
            plugin_registered: registered.is_ok(),
            error: registered.as_ref().err().map(ToString::to_string).unwrap_or_default(),
        };
        let notified = node_calls::call_registration(socket, async |client| {
            client.notify_registration_status(status).await
        });
        let notified = notified.await.map(drop).map_err(RegistrationError::from);
        match registered.and(notified) {
            Ok(()) => {
                tracing::info!(node = %self.node_name, driver = info.name, "registered");
                self.registered.send_modify(|sockets| {
                    sockets.insert(socket.to_owned());
                });
                self.enqueue_all();
                Action::Done
            }
            Err(problem) => {
                self.plugins.lock().remove(&info.name.as_str().into());
                let text = format!("cannot register driver {}: {problem}", info.name);
                let object = format!("node/{}", self.node_name);
                self.client.record_step(COMPONENT, object, StepResult::Failed, text);
                Action::Backoff
            }
        }
    }

    /// Requests the driver's node information and writes it to Node and CSINode.
    async fn register_driver(&self, info: &PluginInfo, plugin: Plugin) -> Result<(), NodeInfoError> {
        let endpoint = plugin.endpoint.clone();
        self.plugins.lock().insert(info.name.as_str().into(), plugin);
        let response = node_calls::call_node_service(&endpoint, async |client| {
            client.node_get_info(NodeGetInfoRequest {}).await
        });
        let response = response.await?;
        if response.node_id.is_empty() {
            return Err(NodeInfoError::EmptyNodeId);
        }
        let mut delay = NODE_UPDATE_DELAY;
        for tries in 1.. {
            // All drivers of a node update the same two objects.
            let guard = self.registration_lock.lock().await;
            let written = self.update_node_objects(&info.name, &response).await;
            drop(guard);
            match written {
                Ok(()) => break,
                Err(error) if tries == NODE_UPDATE_ATTEMPTS => return Err(error),
                Err(_) => tokio::time::sleep(delay).await,
            }
            delay *= 5;
        }
        Ok(())
    }

    async fn update_node_objects(
        &self,
        driver: &str,
        info: &NodeGetInfoResponse,
    ) -> Result<(), NodeInfoError> {
        let node = self.client.get::<FullNode>(&self.node_name).await?;
        let node = node.ok_or_else(|| NodeInfoError::NodeNotFound(self.node_name.clone()))?;
        let topology = info.accessible_topology.clone().unwrap_or_default().segments;
        let node = self.update_node(driver, &info.node_id, &topology, node).await?;
        let count = i32::try_from(info.max_volumes_per_node).unwrap_or(i32::MAX);
        let entry = json!({
            "name": driver,
            "nodeID": info.node_id,
            "topologyKeys": topology.keys().collect::<Vec<_>>(),
            "allocatable": (count > 0).then(|| json!({"count": count})),
        });
        Ok(self.update_csi_node(driver, entry, &node).await?)
    }

    /// Sets the driver's node ID in the Node's annotation, and adds the driver's topology labels to the Node.
    async fn update_node(
        &self,
        driver: &str,
        id: &str,
        topology: &BTreeMap<String, String>,
        node: FullNode,
    ) -> Result<FullNode, NodeInfoError> {
        let conflict = topology
            .iter()
            .find(|(key, value)| node.slim.labels.get(*key).is_some_and(|existing| existing != *value));
        if let Some((key, value)) = conflict {
            return Err(NodeInfoError::TopologyCollision { key: key.clone(), value: value.clone() });
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
        Ok(self.client.patch::<FullNode>(&node, "/status", PatchType::Strategic, patch).await?)
    }

    /// Adds or replaces the driver's entry of the CSINode. Creates the CSINode if it does not exist.
    async fn update_csi_node(&self, driver: &str, entry: Value, node: &FullNode) -> Result<(), ApiError> {
        let entry = without_nulls(entry);
        match self.client.get::<FullCsiNode>(&self.node_name).await? {
            None => {
                let body = json!({
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "CSINode",
                    "metadata": {"name": self.node_name, "ownerReferences": [{
                        "apiVersion": "v1", "kind": "Node", "name": self.node_name, "uid": node.meta().uid,
                    }]},
                    "spec": {"drivers": [entry]},
                });
                self.client.create::<FullCsiNode>(&body).await.map(drop)
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
        }
    }
}

/// Checks the information of a plugin.
fn validate(info: &PluginInfo) -> Result<(), PluginInfoError> {
    if info.r#type != CSI_PLUGIN_TYPE {
        return Err(PluginInfoError::UnknownType(info.r#type.clone()));
    }
    let major = |version: &String| {
        version.trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok())
    };
    match info.supported_versions.iter().filter_map(major).max() {
        None => Err(PluginInfoError::NoVersions),
        Some(0 | 1) => Ok(()),
        Some(version) => Err(PluginInfoError::UnsupportedVersion(version)),
    }
}

/// Returns true if NodeGetInfo succeeds on a driver's socket, and false if it is not implemented.
///
/// # Errors
/// If NodeGetInfo failed for another reason.
pub async fn has_node_service(socket: &Path) -> Result<bool, RpcError> {
    let response = node_calls::call_node_service(socket, async |client| {
        client.node_get_info(NodeGetInfoRequest {}).await
    });
    match response.await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Code::Unimplemented => Ok(false),
        Err(error) => Err(error),
    }
}

fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(map) = &mut value {
        map.retain(|_, member| !member.is_null());
    }
    value
}
