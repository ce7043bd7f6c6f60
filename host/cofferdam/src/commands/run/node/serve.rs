//! The role `node`: CSI's services for kubelet, on this machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use cofferdam_csi::{
    server::{Options, Server, ServerMetrics, Socket, SocketOptions},
    v1::{identity_server::IdentityServer, node_server::NodeServer},
};
use cofferdam_node::{Linux, Manifest, Node, NodeService, Roots, Whereabouts};
use k8s_openapi::api::core::v1::Node as NodeObject;

use super::{NodeFailure, NodeRole, needed};
use crate::{
    client::{self, Surroundings, one_line},
    config::Configuration,
    failure::Failure,
};

/// How long a call may take whose caller names no deadline: what kubelet gives its own.
const PATIENCE: Duration = Duration::from_secs(120);
/// Where the node's records are, beside its socket.
const RECORDS: &str = "volumes";

/// The Node service on its socket, and the driver's name.
pub(super) async fn serve_node(
    configuration: &Configuration,
    metrics: &ServerMetrics,
) -> Result<(Server, String), Failure> {
    let need = NodeRole::Node;
    let manifest =
        Manifest::open(needed(&configuration.manifest, need, "manifest")?).map_err(NodeFailure::from)?;
    let address = needed(&configuration.csi_endpoint, need, "csi-endpoint")?.0.clone();
    let name = needed(&configuration.node_name, need, "node-name")?.clone();
    let policy = configuration.node.clone();
    policy.check().map_err(NodeFailure::Policy)?;
    let roots = Roots::new(configuration.kubelet_root.clone()).map_err(NodeFailure::Machine)?;
    let named = [("directory-root", &policy.directory_root), ("image-root", &policy.image_root)];
    let named = named.iter().filter_map(|(key, root)| Some((*key, root.as_deref()?)));
    for (key, root) in roots.iter().map(|root| ("kubelet-root", root)).chain(named) {
        is_directory(key, root).map_err(NodeFailure::Machine)?;
    }
    let beside = || address.path().parent().map(|parent| parent.join(RECORDS)).unwrap_or_default();
    let records: PathBuf = configuration.node_records.clone().unwrap_or_else(beside);
    let machine = Linux::open(&policy, &records).map_err(NodeFailure::Machine)?;
    let labels = labels(configuration, &manifest, &name).await?;
    let segments = manifest.segments(&name, &labels).map_err(NodeFailure::Machine)?;
    let driver = manifest.driver().to_string();
    let service =
        NodeService::new(Node::new(machine, roots, policy), manifest, Whereabouts { node: name, segments });
    let socket = Socket::bind(&SocketOptions::new(address)).await.map_err(NodeFailure::from)?;
    tracing::info!(driver, socket = %socket.path().display(), "serving kubelet");
    let options = Options { driver: driver.clone(), patience: PATIENCE };
    let server = Server::new(socket, options, metrics)
        .with(IdentityServer::new(service.clone()))
        .with(NodeServer::new(service));
    Ok((server, driver))
}

/// A root that is not there would be told with the first volume only.
fn is_directory(key: &str, root: &str) -> Result<(), String> {
    match std::fs::metadata(root) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(format!("{key}: {root} is not a directory")),
        Err(error) => Err(format!("{key}: {root}: {error}; expected a directory")),
    }
}

/// The labels of the Node, where the driver's topology needs them: only then is the API asked, once.
async fn labels(
    configuration: &Configuration,
    manifest: &Manifest,
    node: &str,
) -> Result<BTreeMap<String, String>, Failure> {
    let wanted: BTreeSet<&str> = manifest.labels().collect();
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let cluster = client::connect(configuration, &Surroundings::of_process()).await?;
    let found = kube::Api::<NodeObject>::all(cluster.client).get(node).await;
    let failed =
        |error: kube::Error| NodeFailure::Labels { node: node.to_owned(), problem: one_line(&error) };
    Ok(found.map_err(failed)?.metadata.labels.unwrap_or_default())
}
