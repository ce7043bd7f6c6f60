//! Cofferdam's snapshot roles in a cluster with many VolumeSnapshots: memory of the idle process, and the
//! time until one new snapshot is ready.

use std::time::Instant;

use anyhow::{Context as _, Result};
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
};
use serde_json::json;

use super::{
    configurations::{DRIVER, start_control_plane},
    load::{ClaimLoad, LoadTiming, for_each_user, send},
    measure::{UsageReading, resident_bytes},
    results::ExistingSnapshots,
    snapshots::{GROUP_PATH, NAMESPACE, SnapshotLoad},
};
use crate::{
    account::Account, cofferdam, control_plane::ControlPlane, driver::CsiDriverProcess,
    process::ManagedProcess, run::SuiteRun, snapshot_crds,
};

/// Number of new snapshots, one after the other.
const NEW: usize = 20;

/// Creates VolumeSnapshots in their final state, as those of earlier controllers: `existing` of them.
/// Measures Cofferdam's roles before and after.
///
/// # Errors
/// If a process does not run, the API server rejects an object, or a new snapshot is not ready in time.
pub(super) async fn measure(run: &SuiteRun, existing: usize) -> Result<ExistingSnapshots> {
    let plane = start_control_plane(run).await?;
    let client = plane.client().clone();
    snapshot_crds::install(&client).await?;
    let mut driver = CsiDriverProcess::start(run, DRIVER, &["--attach=false"]).await?;
    let account = Account::new(run, &plane, &["provisioner", "pv-controller"]).await?;
    let mut provisioning = cofferdam::start_with_csi_driver(run, &account, driver.socket()).await?;
    ClaimLoad::new(&client, NAMESPACE, Some(DRIVER)).await?.bind_all(NEW).await?;
    provisioning.stop().await?;

    let load = SnapshotLoad::new(&client).await?;
    let account = Account::new(run, &plane, &["snapshot-controller", "snapshotter"]).await?;
    let (mut process, empty_bytes) = start_idle(run, &plane, &account, &driver).await?;
    process.stop().await?;
    for_each_user(existing, async |number| create_ready(&client, number).await).await?;
    let (mut process, bytes) = start_idle(run, &plane, &account, &driver).await?;
    let started = Instant::now();
    let mut latencies = Vec::new();
    for number in 0..NEW {
        latencies.extend(load.take_numbers("new", number..number + 1).await?.latencies);
    }
    let timing = LoadTiming::new(started.elapsed(), latencies);
    process.stop().await?;
    driver.process.stop().await?;
    drop((load, client));
    plane.stop().await?;
    Ok(ExistingSnapshots {
        existing,
        empty_bytes,
        bytes,
        median_seconds: timing.quantile(50).as_secs_f64(),
        max_seconds: timing.quantile(100).as_secs_f64(),
    })
}

/// Starts Cofferdam's snapshot roles, and returns their resident memory when idle.
async fn start_idle(
    run: &SuiteRun,
    plane: &ControlPlane,
    account: &Account,
    driver: &CsiDriverProcess,
) -> Result<(ManagedProcess, u64)> {
    let process = cofferdam::start_with_csi_driver(run, account, driver.socket()).await?;
    UsageReading::when_idle(plane.client(), &[]).await?;
    let bytes = resident_bytes(&process)?;
    Ok((process, bytes))
}

/// Creates a VolumeSnapshot and its content with the finalizers and statuses of a ready snapshot.
async fn create_ready(client: &Client, number: usize) -> Result<()> {
    let [(_, snapshots), ..] = snapshot_crds::resources();
    let snapshots: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &snapshots);
    let name = format!("existing-{number}");
    let mut snapshot = SnapshotLoad::snapshot("existing", number);
    if let Some(metadata) = snapshot.get_mut("metadata").and_then(|metadata| metadata.as_object_mut()) {
        let finalizers = ["volumesnapshot-as-source-protection", "volumesnapshot-bound-protection"]
            .map(|name| format!("snapshot.storage.kubernetes.io/{name}"));
        metadata.insert("finalizers".to_owned(), json!(finalizers));
    }
    let created = snapshots.create(&PostParams::default(), &serde_json::from_value(snapshot)?).await?;
    let uid = created.metadata.uid.context("a VolumeSnapshot without a uid")?;
    let content = format!("snapcontent-{uid}");
    let object = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {
            "name": content,
            "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
        },
        "spec": {
            "deletionPolicy": "Delete", "driver": DRIVER, "sourceVolumeMode": "Filesystem",
            "source": { "volumeHandle": format!("volume-of-pvc-{uid}") },
            "volumeSnapshotClassName": NAMESPACE,
            "volumeSnapshotRef": { "namespace": NAMESPACE, "name": name, "uid": uid },
        },
    });
    let content_status = json!({ "status": {
        "snapshotHandle": format!("snapshot-of-snapshot-{uid}"), "creationTime": 1_767_225_600_000_000_000_i64,
        "readyToUse": true, "restoreSize": 1 << 30,
    } });
    let snapshot_status = json!({ "status": {
        "boundVolumeSnapshotContentName": content, "readyToUse": true, "restoreSize": "1Gi",
        "creationTime": "2026-01-01T00:00:00Z",
    } });
    let contents = format!("{GROUP_PATH}/volumesnapshotcontents");
    send(client, "POST", &contents, &object).await?;
    send(client, "PATCH", &format!("{contents}/{content}/status"), &content_status).await?;
    let snapshot = format!("{}/{name}/status", SnapshotLoad::snapshots_path());
    send(client, "PATCH", &snapshot, &snapshot_status).await
}
