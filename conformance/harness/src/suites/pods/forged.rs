//! Volumes that somebody wrote who is not the driver: what they wish for stays outside of the pod.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use super::ground::{AT, DIRECTORY, Ground, IMAGE, Room, SOON, Use};
use crate::wait::until;

/// What a forged volume says, and what its pod hears.
struct Row {
    name: &'static str,
    document: Value,
    options: &'static [&'static str],
    hears: &'static str,
}

fn attachment(kind: &str, fields: Value) -> Value {
    json!({ "version": 1, "kind": kind, "kindVersion": 1, "fields": fields })
}

pub(super) async fn volumes(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("forged").await?;
    room.claim("real", IMAGE).await?;
    room.stays("real", &Use::claim("real"), &format!("echo real > {AT}/f; sync")).await?;
    room.claim("plain", DIRECTORY).await?;
    room.says("plain", &Use::claim("plain"), &format!("touch {AT}/f")).await?;
    let (stolen, plain) = (document(room, "real").await?, document(room, "plain").await?);
    let rows = rows(stolen, plain);
    let played = rows.iter().map(|row| play(ground, room, row));
    futures::future::try_join_all(played).await?;
    room.gone("real").await?;
    room.empty().await
}

/// `stolen` is the attachment of an image that is in use, `plain` that of a directory that is not.
fn rows(stolen: Value, plain: Value) -> [Row; 7] {
    [
        Row {
            name: "outside",
            document: attachment("directory", json!({ "path": "../memory" })),
            options: &[],
            hears: "InvalidArgument",
        },
        Row {
            name: "absolute",
            document: attachment("directory", json!({ "path": "/etc" })),
            options: &[],
            hears: "InvalidArgument",
        },
        Row {
            name: "not-there",
            document: attachment("directory", json!({ "path": "nothing" })),
            options: &[],
            hears: "MountDevice failed",
        },
        Row {
            name: "kind",
            document: attachment("tmpfs", json!({ "size": "1048576" })),
            options: &[],
            hears: "PermissionDenied",
        },
        Row {
            name: "later",
            document: json!({ "version": 2, "kind": "directory", "kindVersion": 1, "fields": { "path": "x" } }),
            options: &[],
            hears: "InvalidArgument",
        },
        Row { name: "stolen", document: stolen, options: &[], hears: "FailedPrecondition" },
        Row { name: "option", document: plain, options: &["suid"], hears: "PermissionDenied" },
    ]
}

/// The attachment in the volume of a claim.
async fn document(room: &Room, claim: &str) -> Result<Value> {
    let volume = room.bound(claim).await?.spec.and_then(|spec| spec.csi).context("no CSI volume")?;
    let attributes = volume.volume_attributes.unwrap_or_default();
    let document = attributes.get("cofferdam.dev/attachment").context("the volume has no attachment")?;
    Ok(serde_json::from_str(document)?)
}

async fn play(ground: &Ground<'_>, room: &Room, row: &Row) -> Result<()> {
    let Row { name, document, options, hears } = row;
    let volumes: Api<PersistentVolume> = Api::all(ground.plane.client().clone());
    let volume = json!({
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "64Mi" },
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": { "kind": "PersistentVolumeClaim", "namespace": room.namespace(), "name": name },
            "mountOptions": options,
            "csi": {
                "driver": ground.pool.driver,
                "volumeHandle": format!("forged-{name}"),
                "volumeAttributes": { "cofferdam.dev/attachment": document.to_string() },
            },
        },
    });
    volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
    room.make::<PersistentVolumeClaim>(json!({
        "metadata": { "name": name },
        "spec": {
            "storageClassName": "",
            "volumeName": name,
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "64Mi" } },
        },
    }))
    .await?;
    room.pod(name, &Use::claim(name), "true").await?;
    until(&format!("pod {name} is refused its volume"), SOON, async || {
        let events = room.events(name).await?;
        ensure!(events.contains("FailedMount") && events.contains(hears), "it was told {events:?}");
        Ok(())
    })
    .await?;
    room.gone(name).await?;
    room.claims().delete(name, &DeleteParams::default()).await?;
    volumes.delete(name, &DeleteParams::default()).await?;
    Ok(())
}
