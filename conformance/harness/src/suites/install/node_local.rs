//! A component whose storage is on the node, with its provisioner on the node. Where Kubernetes mounts images
//! as volumes by default, the component is in such a volume, and elsewhere in a ConfigMap.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    Cluster,
    component::{create_config_map, write_manifest},
    helm::{Helm, HelmVersion, write_values},
    images,
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
    let version = cluster.run.peers().kubernetes_version()?;
    let is_in_image = mounts_images(&version)?;
    let (manifest, component) = if is_in_image {
        let manifest = write_manifest(cluster, "pool", cofferdam_carried::POOL).await?;
        let volume = json!({"image": {"reference": images::COMPONENT_IMAGE, "pullPolicy": "Never"}});
        (manifest, json!({"path": images::COMPONENT_FILE, "volume": volume}))
    } else {
        let manifest = create_config_map(cluster, NODE_NAMESPACE, "pool", cofferdam_carried::POOL).await?;
        (manifest, json!({"configMap": {"name": "pool", "key": "pool.wasm"}}))
    };
    let values = write_values(cluster.run, "node-local-values", &values(cluster, &component)?)?;
    let release = ["--namespace", NAMESPACE, "--values", &values, "--set-file", &manifest];
    helm.run(&[&["install", RELEASE, "CHART"], release.as_slice()].concat()).await?;
    cluster.wait_available(&[NODE_NAMESPACE], RELEASE).await?;

    let claims = Claims::with_class(cluster.client(), USERS, RELEASE).await?;
    claims.create(0..1).await?;
    cluster.run_pod(USERS, "claim-0").await?;
    claims.delete(0..1).await?;
    cluster.wait_without_volumes(DRIVER).await?;
    helm.run(&["uninstall", RELEASE, "--namespace", NAMESPACE]).await?;
    cluster.ensure_nothing_left(RELEASE).await?;
    let place = if is_in_image { "an image volume" } else { "a ConfigMap" };
    cluster.run.add_note(&format!("the component of the node is in {place} on Kubernetes {version}"))
}

/// Returns true if this version of Kubernetes, such as `v1.36.3`, mounts images as volumes: the feature gate
/// `ImageVolume` is off by default before 1.35.
fn mounts_images(version: &str) -> Result<bool> {
    let minor = version.strip_prefix("v1.").and_then(|rest| rest.split('.').next());
    let minor = minor.and_then(|minor| minor.parse::<u32>().ok());
    Ok(minor.with_context(|| format!("version {version}: expected v1.MINOR.PATCH"))? >= 35)
}

/// The values, with directories of the run on the node. The namespace of the nodes exists already, because
/// a ConfigMap with the component is in it.
fn values(cluster: &Cluster<'_>, component: &Value) -> Result<Value> {
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
            "component": component,
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

#[cfg(test)]
mod tests {
    use super::mounts_images;

    #[test]
    fn images_are_mounted_since_1_35() {
        let found =
            ["v1.33.10", "v1.34.0", "v1.35.0", "v1.36.3"].map(|version| mounts_images(version).unwrap());
        assert_eq!(found, [false, false, true, true]);
        assert!(mounts_images("1.36").is_err());
    }
}
