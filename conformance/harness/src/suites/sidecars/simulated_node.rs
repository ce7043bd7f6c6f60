//! A Node and its CSINode without kubelet.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::{core::v1::Node, storage::v1::CSINode};
use kube::{Api, Client};
use serde_json::json;

use crate::retry;

/// Adds a driver to the CSINode of the node `name`, with its ID of the node. Creates the Node if it does not
/// exist, with the driver's topology as labels. Other drivers are removed from the CSINode.
///
/// # Errors
/// If a request fails.
pub(super) async fn register(
    client: &Client,
    name: &str,
    driver: &str,
    id: &str,
    topology: &BTreeMap<String, String>,
) -> Result<()> {
    let nodes = Api::<Node>::all(client.clone());
    if nodes.get_opt(name).await?.is_none() {
        let node = json!({ "metadata": { "name": name, "labels": topology } });
        retry::create(&nodes, &serde_json::from_value(node)?).await?;
    }
    let csi_nodes = Api::<CSINode>::all(client.clone());
    if csi_nodes.get_opt(name).await?.is_some() {
        retry::delete(&csi_nodes, name).await?;
    }
    let keys: Vec<&String> = topology.keys().collect();
    let entry = json!({ "name": driver, "nodeID": id, "topologyKeys": keys });
    let csi_node = json!({ "metadata": { "name": name }, "spec": { "drivers": [entry] } });
    retry::create(&csi_nodes, &serde_json::from_value(csi_node)?).await
}
