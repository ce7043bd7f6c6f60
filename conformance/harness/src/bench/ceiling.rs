//! What the API can do: the writes that every controller has to make for a claim, by the users themselves, one after another for
//! each claim, and nobody who watches.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use super::load::{Answered, LARGER, Load, VOLUMES, each, send};

/// Whether volumes are made for the claims, or are there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Volumes {
    Provisioned,
    Premade,
}

/// Claims, each brought to Bound in five writes.
///
/// # Errors
/// When the API refuses one.
pub(super) async fn bound(load: &Load, count: usize, volumes: Volumes) -> Result<Answered> {
    timed(count, async |number| bind(load, number, volumes).await).await
}

/// Claims, each brought to Bound in five writes, the next when that is done.
///
/// # Errors
/// When the API refuses one.
pub(super) async fn one_by_one(load: &Load, count: usize) -> Result<Answered> {
    let started = Instant::now();
    let mut each = Vec::new();
    for number in 0..count {
        let sent = Instant::now();
        bind(load, number, Volumes::Provisioned).await?;
        each.push(sent.elapsed());
    }
    Ok(Answered::new(started.elapsed(), each))
}

/// The same claims with their volumes taken away in five writes each.
///
/// # Errors
/// When the API refuses one.
pub(super) async fn gone(load: &Load, count: usize) -> Result<Answered> {
    timed(count, async |number| {
        let (claim, volume) = (format!("{}/claim-{number}", load.claims()), volume(load, number));
        let released = json!({ "metadata": { "finalizers": null } });
        for (method, path, body) in [
            ("DELETE", &claim, &Value::Null),
            ("PATCH", &claim, &released),
            ("PATCH", &format!("{volume}/status"), &json!({ "status": { "phase": "Released" } })),
            ("DELETE", &volume, &Value::Null),
            ("PATCH", &volume, &released),
        ] {
            send(load.client(), method, path, body).await?;
        }
        Ok(())
    })
    .await
}

/// Bound claims, each grown in four writes.
///
/// # Errors
/// When the API refuses one.
pub(super) async fn grown(load: &Load, count: usize) -> Result<Answered> {
    timed(count, async |number| {
        let claim = format!("{}/claim-{number}", load.claims());
        let begun = json!({ "status": {
            "allocatedResources": { "storage": LARGER },
            "allocatedResourceStatuses": { "storage": "ControllerResizeInProgress" },
        } });
        let done = json!({ "status": {
            "capacity": { "storage": LARGER }, "allocatedResourceStatuses": null,
        } });
        for (path, body) in [
            (&claim, &Load::larger()),
            (&format!("{claim}/status"), &begun),
            (&volume(load, number), &json!({ "spec": { "capacity": { "storage": LARGER } } })),
            (&format!("{claim}/status"), &done),
        ] {
            send(load.client(), "PATCH", path, body).await?;
        }
        Ok(())
    })
    .await
}

/// Does something for each number by all users at once, and tells how long each took.
///
/// # Errors
/// The first that comes.
pub(super) async fn timed(count: usize, work: impl AsyncFn(usize) -> Result<()>) -> Result<Answered> {
    let started = Instant::now();
    let times = each(count, async |number| {
        let sent = Instant::now();
        work(number).await?;
        Ok(sent.elapsed())
    })
    .await?;
    Ok(Answered::new(started.elapsed(), times))
}

/// The path of a claim's volume.
fn volume(load: &Load, number: usize) -> String {
    format!("{VOLUMES}/{}-{number}", load.namespace())
}

async fn bind(load: &Load, number: usize, volumes: Volumes) -> Result<()> {
    let client = load.client();
    let name = format!("{}-{number}", load.namespace());
    let (claim, volume) = (format!("{}/claim-{number}", load.claims()), volume(load, number));
    let reference = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": load.namespace(), "name": format!("claim-{number}"),
    });
    let modes = json!(["ReadWriteOnce"]);
    send(client, "POST", &load.claims(), &load.claim(number)).await?;
    match volumes {
        Volumes::Provisioned => {
            let object = json!({
                "metadata": {
                    "name": name,
                    "annotations": { "pv.kubernetes.io/provisioned-by": "bench.conformance.cofferdam.dev" },
                },
                "spec": {
                    "storageClassName": load.namespace(),
                    "accessModes": modes,
                    "capacity": { "storage": "1Gi" },
                    "volumeMode": load.mode(),
                    "persistentVolumeReclaimPolicy": "Delete",
                    "claimRef": reference,
                    "csi": { "driver": "bench.conformance.cofferdam.dev", "volumeHandle": name },
                },
            });
            send(client, "POST", VOLUMES, &object).await?;
        }
        Volumes::Premade => {
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
