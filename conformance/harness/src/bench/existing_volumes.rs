//! etcd's data of clusters in which claims and volumes exist already.

use std::{io::Write as _, ops::Range, path::PathBuf, time::Instant};

use anyhow::{Context as _, Result};
use http::Request;
use kube::Client;
use serde::Deserialize;
use serde_json::json;

use super::{
    configurations::{DRIVER, start_control_plane_with},
    load::{ClaimLoad, VOLUMES_PATH, for_each_user_in, send},
};
use crate::{control_plane, run::SuiteRun};

/// Namespace of the claims, and name of their StorageClass.
const NAMESPACE: &str = "existing";

/// A cluster with claims that are Bound to as many volumes.
#[derive(Debug)]
pub(super) struct ExistingVolumes {
    /// Number of volumes.
    pub(super) volumes: usize,
    /// Copy of etcd's data.
    pub(super) etcd_data: PathBuf,
}

/// Creates a cluster for each of these numbers of volumes, which have to ascend. Each continues the one
/// before. No controller runs: a client makes the writes, and leaves the objects as controllers do.
///
/// # Errors
/// If a component does not become ready, or the API server rejects an object.
pub(super) async fn create(run: &SuiteRun, volume_counts: &[usize]) -> Result<Vec<ExistingVolumes>> {
    let mut created: Vec<ExistingVolumes> = Vec::new();
    for &volumes in volume_counts {
        let started = Instant::now();
        let last = created.last();
        let plane = start_control_plane_with(run, last.map(|last| last.etcd_data.as_path())).await?;
        let client = plane.client().clone();
        if last.is_none() {
            ClaimLoad::new(&client, NAMESPACE, Some(DRIVER)).await?;
        }
        create_bound(&client, last.map_or(0, |last| last.volumes)..volumes).await?;
        drop(client);
        plane.stop().await?;
        let etcd_data = control_plane::keep_etcd(run, &format!("etcd-{volumes}"))?;
        // Progress: the largest cluster takes a minute.
        let _ = writeln!(
            std::io::stderr(),
            "  a cluster with {volumes} volumes: {:.0} s",
            started.elapsed().as_secs_f64()
        );
        created.push(ExistingVolumes { volumes, etcd_data });
    }
    Ok(created)
}

#[derive(Deserialize)]
struct Created {
    metadata: CreatedMetadata,
}

#[derive(Deserialize)]
struct CreatedMetadata {
    uid: String,
}

/// Creates claims with these numbers and their volumes.
async fn create_bound(client: &Client, numbers: Range<usize>) -> Result<()> {
    for_each_user_in(numbers, async |number| create_pair(client, number).await).await.map(drop)
}

/// Creates a claim and its volume with the fields that they have after csi-provisioner and the binder of
/// kube-controller-manager, or Cofferdam, have finished. The API server adds the finalizers of the
/// protection.
async fn create_pair(client: &Client, number: usize) -> Result<()> {
    let name = format!("claim-{number}");
    let claims = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims");
    let modes = json!(["ReadWriteOnce"]);
    // A provisioned volume has the claim's uid in its name. The uid is not known before the claim exists,
    // which names the volume: this name has the same length.
    let volume = format!("pvc-00000000-0000-0000-0000-{number:012}");
    let claim = json!({
        "metadata": { "name": name, "annotations": {
            "pv.kubernetes.io/bind-completed": "yes",
            "pv.kubernetes.io/bound-by-controller": "yes",
            "volume.beta.kubernetes.io/storage-provisioner": DRIVER,
            "volume.kubernetes.io/storage-provisioner": DRIVER,
        } },
        "spec": {
            "storageClassName": NAMESPACE, "accessModes": modes, "volumeMode": "Filesystem",
            "volumeName": volume, "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let request = Request::post(&claims).header("content-type", "application/json");
    let created: Created =
        client.request(request.body(serde_json::to_vec(&claim)?)?).await.context(claims.clone())?;
    let object = json!({
        "metadata": {
            "name": volume,
            "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
        },
        "spec": {
            "storageClassName": NAMESPACE, "accessModes": modes, "volumeMode": "Filesystem",
            "capacity": { "storage": "1Gi" },
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": name,
                "uid": created.metadata.uid,
            },
            "csi": {
                "driver": DRIVER,
                "volumeHandle": format!("existing-{number}"),
                "volumeAttributes": { "storage.kubernetes.io/csiProvisionerIdentity": DRIVER },
            },
        },
    });
    send(client, "POST", VOLUMES_PATH, &object).await?;
    let bound = json!({ "status": { "phase": "Bound" } });
    send(client, "PATCH", &format!("{VOLUMES_PATH}/{volume}/status"), &bound).await?;
    let bound = json!({
        "status": { "phase": "Bound", "accessModes": modes, "capacity": { "storage": "1Gi" } },
    });
    send(client, "PATCH", &format!("{claims}/{name}/status"), &bound).await
}
