//! A component whose storage is on the node, with its provisioner on the node.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    Cluster,
    component::create_config_map,
    helm::{Helm, HelmVersion, write_values},
};
use crate::claims::Claims;

const RELEASE: &str = "pool";
const DRIVER: &str = "pool.cofferdam.dev";
/// Namespaces of the release.
const NAMESPACE: &str = "local-storage";
const NODE_NAMESPACE: &str = "local-storage-node";
/// Namespace of the claim and the pod.
const USERS: &str = "local-users";

pub(super) async fn install(cluster: &Cluster<'_>) -> Result<()> {
    let helm = Helm::new(cluster.run, cluster.plane, HelmVersion::Four)?;
    cluster.create_namespace(NAMESPACE, "restricted").await?;
    cluster.create_namespace(NODE_NAMESPACE, "privileged").await?;
    let manifest = create_config_map(cluster, NODE_NAMESPACE, "pool", cofferdam_carried::POOL).await?;
    let values = write_values(cluster.run, "node-local-values", &values(cluster)?)?;
    let release = ["--namespace", NAMESPACE, "--values", &values, "--set-file", &manifest];
    helm.run(&[&["install", RELEASE, "CHART"], release.as_slice()].concat()).await?;
    cluster.wait_available(&[NODE_NAMESPACE], RELEASE).await?;

    let claims = Claims::with_class(cluster.client(), USERS, RELEASE).await?;
    claims.create(0..1).await?;
    cluster.run_pod(USERS, "claim-0").await?;
    claims.delete(0..1).await?;
    cluster.wait_without_volumes(DRIVER).await?;
    helm.run(&["uninstall", RELEASE, "--namespace", NAMESPACE]).await?;
    cluster.ensure_nothing_left(RELEASE).await
}

/// The values, with directories of the run on the node. The namespace of the nodes exists already, because
/// the component is in it.
fn values(cluster: &Cluster<'_>) -> Result<Value> {
    let pool = cluster.run.scratch().join("pool");
    let state = cluster.run.scratch().join("pool-state");
    std::fs::create_dir_all(&pool)?;
    std::fs::create_dir_all(&state)?;
    let mut values = cluster.values()?;
    let fields = values.as_object_mut().context("values")?;
    fields.insert(
        "driver".to_owned(),
        json!({
            "name": DRIVER,
            "component": {"configMap": {"name": "pool", "key": "pool.wasm"}},
            "settings": {"node": "$(node-name)"},
            "pool": {"directory": pool},
            "state": {"file": state.join("state.db")},
        }),
    );
    let policy = json!({"connection-kinds": ["directory"], "directory-root": pool});
    fields.insert("node".to_owned(), json!({"settings": {"node": policy}, "createNamespace": false}));
    // A volume is on the node of its first pod.
    fields.insert("storageClasses".to_owned(), json!([{"name": RELEASE}]));
    Ok(values)
}
