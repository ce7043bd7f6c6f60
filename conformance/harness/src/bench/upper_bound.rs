//! The upper bound for the throughput of controllers: the claim loads on an API server without controllers.
//! Besides their own writes, clients make those that every implementation of the controllers has to make to
//! bind, delete or expand a claim. There are no watches.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    load::{ClaimLoad, EXPANDED_SIZE, LoadTiming, VOLUMES_PATH, for_each_user, send},
    measure::UsageReading,
    recorder::LoadRecorder,
    results::{ConfigurationResults, LoadKind},
};
use crate::control_plane::ControlPlane;

/// Provisioning of the volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProvisioningMode {
    Dynamic,
    Static,
}

/// The writes that clients make for each claim that they bind to a new volume.
pub(super) const BIND_WRITES: &str =
    "the claim, its volume, the volume's status, the claim, and the claim's status";

/// Name of the configuration without controllers.
pub(super) const API_ONLY: &str = "API only";
/// Description of [`bind_all`] and [`bind_sequentially`] in the tables.
pub(super) const BIND_DESCRIPTION: &str =
    "five writes per claim, made by the clients; no controllers, no watches";

/// Measures the API server only: clients bind claims concurrently, and then others one after the other.
///
/// # Errors
/// If the API server rejects a write.
pub(super) async fn measure_binding(
    plane: &ControlPlane,
    concurrent: usize,
    sequential: usize,
) -> Result<ConfigurationResults> {
    let client = plane.client();
    let watches = UsageReading::when_idle(client, &[]).await?.watches();
    let mut recorder = LoadRecorder::new(API_ONLY, plane, std::iter::empty(), watches).await?;
    let load = ClaimLoad::new(client, "concurrent", None).await?;
    recorder.begin_load().await?;
    let timing = bind_all(&load, concurrent, ProvisioningMode::Dynamic).await?;
    recorder.end_load(LoadKind::BindDynamic, &timing).await?;
    let load = ClaimLoad::new(client, "alone", None).await?;
    recorder.begin_load().await?;
    let timing = bind_sequentially(&load, sequential).await?;
    recorder.end_load(LoadKind::BindSequentially, &timing).await?;
    Ok(ConfigurationResults {
        name: API_ONLY.to_owned(),
        description: BIND_DESCRIPTION.to_owned(),
        implementation: None,
        controllers: Vec::new(),
        loads: recorder.into_measurements(),
    })
}

/// Creates and binds claims concurrently, with five writes for each claim. In the mode `Dynamic`, these
/// include the creation of the claim's volume.
///
/// # Errors
/// If the API server rejects a write.
pub(super) async fn bind_all(load: &ClaimLoad, count: usize, mode: ProvisioningMode) -> Result<LoadTiming> {
    measure_each(count, async |number| bind_claim(load, number, mode).await).await
}

/// Creates claims and their volumes, and binds them, one claim after the other, with five writes each.
///
/// # Errors
/// If the API server rejects a write.
pub(super) async fn bind_sequentially(load: &ClaimLoad, count: usize) -> Result<LoadTiming> {
    let started = Instant::now();
    let mut latencies = Vec::new();
    for number in 0..count {
        let sent = Instant::now();
        bind_claim(load, number, ProvisioningMode::Dynamic).await?;
        latencies.push(sent.elapsed());
    }
    Ok(LoadTiming::new(started.elapsed(), latencies))
}

/// Deletes claims and their volumes concurrently, with five writes for each pair.
///
/// # Errors
/// If the API server rejects a write.
pub(super) async fn delete_all(load: &ClaimLoad, count: usize) -> Result<LoadTiming> {
    measure_each(count, async |number| {
        let (claim, volume) = (format!("{}/claim-{number}", load.claims_path()), volume_path(load, number));
        let finalizer_patch = json!({ "metadata": { "finalizers": null } });
        for (method, path, body) in [
            ("DELETE", &claim, &Value::Null),
            ("PATCH", &claim, &finalizer_patch),
            ("PATCH", &format!("{volume}/status"), &json!({ "status": { "phase": "Released" } })),
            ("DELETE", &volume, &Value::Null),
            ("PATCH", &volume, &finalizer_patch),
        ] {
            send(load.client(), method, path, body).await?;
        }
        Ok(())
    })
    .await
}

/// Expands claims and their volumes concurrently, with four writes for each pair.
///
/// # Errors
/// If the API server rejects a write.
pub(super) async fn expand_all(load: &ClaimLoad, count: usize) -> Result<LoadTiming> {
    measure_each(count, async |number| {
        let claim = format!("{}/claim-{number}", load.claims_path());
        let in_progress_patch = json!({ "status": {
            "allocatedResources": { "storage": EXPANDED_SIZE },
            "allocatedResourceStatuses": { "storage": "ControllerResizeInProgress" },
        } });
        let finished_patch = json!({ "status": {
            "capacity": { "storage": EXPANDED_SIZE }, "allocatedResourceStatuses": null,
        } });
        for (path, body) in [
            (&claim, &ClaimLoad::expansion_patch()),
            (&format!("{claim}/status"), &in_progress_patch),
            (&volume_path(load, number), &json!({ "spec": { "capacity": { "storage": EXPANDED_SIZE } } })),
            (&format!("{claim}/status"), &finished_patch),
        ] {
            send(load.client(), "PATCH", path, body).await?;
        }
        Ok(())
    })
    .await
}

/// Runs a task for each number below `count`, as many at a time as there are clients, and measures the
/// duration of each task as a latency.
///
/// # Errors
/// The first error.
pub(super) async fn measure_each(
    count: usize,
    work: impl AsyncFn(usize) -> Result<()>,
) -> Result<LoadTiming> {
    let started = Instant::now();
    let times = for_each_user(count, async |number| {
        let sent = Instant::now();
        work(number).await?;
        Ok(sent.elapsed())
    })
    .await?;
    Ok(LoadTiming::new(started.elapsed(), times))
}

/// Path of the PersistentVolume of the claim with this number.
fn volume_path(load: &ClaimLoad, number: usize) -> String {
    format!("{VOLUMES_PATH}/{}-{number}", load.namespace())
}

async fn bind_claim(load: &ClaimLoad, number: usize, mode: ProvisioningMode) -> Result<()> {
    let client = load.client();
    let name = format!("{}-{number}", load.namespace());
    let (claim, volume) = (format!("{}/claim-{number}", load.claims_path()), volume_path(load, number));
    let reference = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": load.namespace(), "name": format!("claim-{number}"),
    });
    let modes = json!(["ReadWriteOnce"]);
    send(client, "POST", &load.claims_path(), &load.claim_object(number)).await?;
    match mode {
        ProvisioningMode::Dynamic => {
            let object = json!({
                "metadata": {
                    "name": name,
                    "annotations": { "pv.kubernetes.io/provisioned-by": "bench.conformance.cofferdam.dev" },
                },
                "spec": {
                    "storageClassName": load.namespace(),
                    "accessModes": modes,
                    "capacity": { "storage": "1Gi" },
                    "volumeMode": load.volume_mode(),
                    "persistentVolumeReclaimPolicy": "Delete",
                    "claimRef": reference,
                    "csi": { "driver": "bench.conformance.cofferdam.dev", "volumeHandle": name },
                },
            });
            send(client, "POST", VOLUMES_PATH, &object).await?;
        }
        ProvisioningMode::Static => {
            let patch = json!({
                "metadata": { "annotations": { "pv.kubernetes.io/bound-by-controller": "yes" } },
                "spec": { "claimRef": reference },
            });
            send(client, "PATCH", &volume, &patch).await?;
        }
    }
    send(client, "PATCH", &format!("{volume}/status"), &json!({ "status": { "phase": "Bound" } })).await?;
    let patch = json!({
        "metadata": { "annotations": {
            "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
        } },
        "spec": { "volumeName": name },
    });
    send(client, "PATCH", &claim, &patch).await?;
    let status = json!({
        "status": { "phase": "Bound", "accessModes": modes, "capacity": { "storage": "1Gi" } },
    });
    send(client, "PATCH", &format!("{claim}/status"), &status).await
}
