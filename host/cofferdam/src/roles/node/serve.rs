//! The role `node`: CSI's Identity and Node services for kubelet.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use cofferdam_csi::{
    server::{Server, ServerMetrics, ServerOptions, ServerSocket, SocketOptions},
    v1::{identity_server::IdentityServer, node_server::NodeServer},
};
use cofferdam_node::{DriverManifest, KubeletRoots, LinuxMounter, NodeIdentity, NodeService, NodeVolumes};
use k8s_openapi::api::core::v1::Node as NodeObject;

use super::error::{NodeRoleError, required};
use crate::{
    client::{self, ClientEnvironment, one_line},
    config::{Configuration, NodeRole},
    error::CommandError,
};

/// Deadline of calls that carry no deadline: the default of kubelet's calls.
const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Default directory of the node records, beside the socket. The role `node` keeps one file per volume there.
const RECORDS_DIRECTORY: &str = "volumes";

fn setup_error(error: impl std::fmt::Display) -> NodeRoleError {
    NodeRoleError::Setup(error.to_string())
}

/// Binds the socket of the Node service. Returns the server, which the caller runs, and the driver's name.
pub(super) async fn serve_node(
    configuration: &Configuration,
    metrics: &ServerMetrics,
) -> Result<(Server, String), CommandError> {
    let role = NodeRole::Node;
    let manifest = DriverManifest::open(required(&configuration.manifest, role, "manifest")?)
        .map_err(NodeRoleError::from)?;
    let address = required(&configuration.csi_endpoint, role, "csi-endpoint")?.0.clone();
    let name = required(&configuration.node_name, role, "node-name")?.clone();
    let policy = configuration.node.clone();
    policy.validate().map_err(|error| NodeRoleError::Policy(error.to_string()))?;
    let roots = KubeletRoots::new(configuration.kubelet_root.clone())
        .map_err(|error| NodeRoleError::KubeletRoots(error.to_string()))?;
    let configured_roots = [("directory-root", &policy.directory_root), ("image-root", &policy.image_root)];
    let configured_roots = configured_roots.iter().filter_map(|(key, root)| Some((*key, root.as_deref()?)));
    for (key, root) in roots.iter().map(|root| ("kubelet-root", root)).chain(configured_roots) {
        check_directory(key, root)?;
    }
    let default_records =
        || address.path().parent().map(|parent| parent.join(RECORDS_DIRECTORY)).unwrap_or_default();
    let records: PathBuf = configuration.node_records.clone().unwrap_or_else(default_records);
    let host = policy.nvme_host(&name).map_err(|error| NodeRoleError::Policy(error.to_string()))?;
    let mounter = LinuxMounter::open(&policy, &records).map_err(setup_error)?.with_nvme_host(host);
    let labels = read_node_labels(configuration, &manifest, &name).await?;
    let segments = manifest.topology_segments(&name, &labels).map_err(setup_error)?;
    let driver = manifest.driver().to_string();
    let service = NodeService::new(
        NodeVolumes::new(mounter, roots, policy),
        manifest,
        NodeIdentity { node_id: name, topology_segments: segments },
    );
    let socket = ServerSocket::bind(&SocketOptions::new(address)).await.map_err(NodeRoleError::from)?;
    tracing::info!(driver, socket = %socket.path().display(), "serving kubelet");
    let options = ServerOptions { driver: driver.clone(), default_timeout: DEFAULT_CALL_TIMEOUT };
    let server = Server::new(socket, options, metrics)
        .with_service(IdentityServer::new(service.clone()))
        .with_service(NodeServer::new(service));
    Ok((server, driver))
}

/// Checks a root directory at startup: without this check the first volume would fail instead.
fn check_directory(key: &'static str, path: &str) -> Result<(), NodeRoleError> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(NodeRoleError::NotADirectory { key, path: path.to_owned() }),
        Err(source) => Err(NodeRoleError::Directory { key, path: path.to_owned(), source }),
    }
}

/// Reads the labels of the Node, once, if the driver has a topology key other than
/// `topology.cofferdam.dev/node`. Else it sends no request and returns no labels.
async fn read_node_labels(
    configuration: &Configuration,
    manifest: &DriverManifest,
    node: &str,
) -> Result<BTreeMap<String, String>, CommandError> {
    let required_keys: BTreeSet<&str> = manifest.topology_labels().collect();
    if required_keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let cluster = client::connect(configuration, &ClientEnvironment::from_process()).await?;
    let found = kube::Api::<NodeObject>::all(cluster.client).get(node).await;
    let failed =
        |error: kube::Error| NodeRoleError::Labels { node: node.to_owned(), problem: one_line(&error) };
    Ok(found.map_err(failed)?.metadata.labels.unwrap_or_default())
}
