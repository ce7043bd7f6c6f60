//! Step 1 of the guide: its commands list classes with Secrets, and objects of in-tree plugins.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    core::v1::PersistentVolume,
    storage::v1::{CSIDriver, StorageClass},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;

use crate::{control_plane::ControlPlane, run::SuiteRun, wait::until};

use super::{
    description::DriverDescription,
    guide::{ACCOUNT, ClusterLists},
};
use crate::suites::sidecars::users::TIMEOUT;

/// Name of the class and of the volume of an in-tree plugin.
const IN_TREE: &str = ACCOUNT;

/// Checks that the commands list a class and a volume of an in-tree plugin while they exist, and none
/// afterwards.
pub(super) async fn check_lists(
    run: &SuiteRun,
    plane: &ControlPlane,
    description: &DriverDescription,
) -> Result<()> {
    let client = plane.client();
    let classes = Api::<StorageClass>::all(client.clone());
    let volumes = Api::<PersistentVolume>::all(client.clone());
    let class = json!({ "metadata": { "name": IN_TREE }, "provisioner": "kubernetes.io/aws-ebs" });
    let volume = json!({
        "metadata": { "name": IN_TREE },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": { "storage": "1Gi" },
            "awsElasticBlockStore": { "volumeID": "vol-00000000000000000" },
        },
    });
    classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
    volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
    ensure_lists(run, plane, description, &[IN_TREE]).await?;

    classes.delete(IN_TREE, &DeleteParams::default()).await?;
    volumes.delete(IN_TREE, &DeleteParams::default()).await?;
    until("the in-tree volume is deleted", TIMEOUT, async || {
        ensure!(volumes.get_opt(IN_TREE).await?.is_none(), "it exists");
        Ok(())
    })
    .await?;
    ensure_lists(run, plane, description, &[]).await
}

/// Checks what the commands list if the class and the volume of an in-tree plugin have these names.
pub(super) async fn ensure_lists(
    run: &SuiteRun,
    plane: &ControlPlane,
    description: &DriverDescription,
    in_tree: &[&str],
) -> Result<()> {
    let in_tree: BTreeSet<_> = in_tree.iter().map(|name| (*name).to_owned()).collect();
    let has_secrets = !description.secret_namespaces.is_empty();
    let expected = ClusterLists {
        secret_classes: has_secrets.then(|| description.class.clone()).into_iter().collect(),
        in_tree_classes: in_tree.clone(),
        in_tree_volumes: in_tree,
        capacities: capacities(plane.client()).await?.into_iter().collect(),
    };
    let lists = ClusterLists::read(run, plane).await?;
    ensure!(lists == expected, "the commands of step 1 list {lists:?}: expected {expected:?}");
    Ok(())
}

/// `storageCapacity` of each CSIDriver.
async fn capacities(client: &Client) -> Result<Vec<(String, String)>> {
    let drivers = Api::<CSIDriver>::all(client.clone()).list(&ListParams::default()).await?;
    let capacity = |driver: &CSIDriver| {
        let capacity = driver.spec.storage_capacity.context("no storageCapacity: expected its default")?;
        Ok((driver.name_any(), capacity.to_string()))
    };
    drivers.iter().map(capacity).collect()
}
