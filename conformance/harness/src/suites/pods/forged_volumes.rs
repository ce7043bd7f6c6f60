//! Forged PersistentVolumes. Their connection info (the volume attribute `cofferdam.dev/connection-info`,
//! which tells the role `node` what to mount) is invented, or was returned by the driver for another volume.
//! One also has a forbidden mount option. The role `node` fails the NodeStageVolume calls of these volumes,
//! and their pods do not start.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use super::fixture::{ContainerVolume, DIRECTORY, IMAGE, MOUNT_PATH, PodFixture, TIMEOUT, TestNamespace};
use crate::wait::until;

/// A forged volume, and a text that the events of its pod have to contain besides `FailedMount`.
struct ForgedVolume {
    name: &'static str,
    connection_info: Value,
    options: &'static [&'static str],
    expected_event: &'static str,
}

fn connection_info(kind: &str, fields: Value) -> Value {
    json!({ "version": 1, "kind": kind, "kindVersion": 1, "fields": fields })
}

pub(super) async fn reject_forged_volumes(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("forged").await?;
    namespace.create_claim("real", IMAGE).await?;
    namespace
        .start_pod("real", &ContainerVolume::claim("real"), &format!("echo real > {MOUNT_PATH}/f; sync"))
        .await?;
    namespace.create_claim("plain", DIRECTORY).await?;
    namespace.run_pod("plain", &ContainerVolume::claim("plain"), &format!("touch {MOUNT_PATH}/f")).await?;
    let (in_use, unused) =
        (read_connection_info(namespace, "real").await?, read_connection_info(namespace, "plain").await?);
    let rows = forged_volumes(in_use, unused);
    let checks = rows.iter().map(|row| check_rejected(fixture, namespace, row));
    futures::future::try_join_all(checks).await?;
    namespace.delete_pod("real").await?;
    namespace.delete_claims().await
}

/// `in_use` is the connection info of an image in use, `unused` that of an unused directory.
fn forged_volumes(in_use: Value, unused: Value) -> [ForgedVolume; 7] {
    [
        ForgedVolume {
            name: "outside",
            connection_info: connection_info("directory", json!({ "path": "../memory" })),
            options: &[],
            expected_event: "InvalidArgument",
        },
        ForgedVolume {
            name: "absolute",
            connection_info: connection_info("directory", json!({ "path": "/etc" })),
            options: &[],
            expected_event: "InvalidArgument",
        },
        ForgedVolume {
            name: "not-there",
            connection_info: connection_info("directory", json!({ "path": "nothing" })),
            options: &[],
            expected_event: "MountDevice failed",
        },
        ForgedVolume {
            name: "kind",
            connection_info: connection_info("tmpfs", json!({ "size": "1048576" })),
            options: &[],
            expected_event: "PermissionDenied",
        },
        ForgedVolume {
            name: "later",
            connection_info: json!({
                "version": 2, "kind": "directory", "kindVersion": 1, "fields": { "path": "x" },
            }),
            options: &[],
            expected_event: "InvalidArgument",
        },
        ForgedVolume {
            name: "stolen",
            connection_info: in_use,
            options: &[],
            expected_event: "FailedPrecondition",
        },
        ForgedVolume {
            name: "option",
            connection_info: unused,
            options: &["suid"],
            expected_event: "PermissionDenied",
        },
    ]
}

/// The connection info of a claim's volume.
async fn read_connection_info(namespace: &TestNamespace, claim: &str) -> Result<Value> {
    let volume =
        namespace.wait_bound(claim).await?.spec.and_then(|spec| spec.csi).context("no CSI volume")?;
    let attributes = volume.volume_attributes.unwrap_or_default();
    let document =
        attributes.get("cofferdam.dev/connection-info").context("the volume has no connection info")?;
    Ok(serde_json::from_str(document)?)
}

async fn check_rejected(
    fixture: &PodFixture<'_>,
    namespace: &TestNamespace,
    row: &ForgedVolume,
) -> Result<()> {
    let ForgedVolume { name, connection_info, options, expected_event } = row;
    let volumes: Api<PersistentVolume> = Api::all(fixture.plane.client().clone());
    let volume = json!({
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "64Mi" },
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": { "kind": "PersistentVolumeClaim", "namespace": namespace.name(), "name": name },
            "mountOptions": options,
            "csi": {
                "driver": fixture.pool.driver,
                "volumeHandle": format!("forged-{name}"),
                "volumeAttributes": { "cofferdam.dev/connection-info": connection_info.to_string() },
            },
        },
    });
    volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
    namespace
        .create::<PersistentVolumeClaim>(json!({
            "metadata": { "name": name },
            "spec": {
                "storageClassName": "",
                "volumeName": name,
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "64Mi" } },
            },
        }))
        .await?;
    namespace.create_pod(name, &ContainerVolume::claim(name), "true").await?;
    until(&format!("pod {name} is refused its volume"), TIMEOUT, async || {
        let events = namespace.event_text(name).await?;
        ensure!(events.contains("FailedMount") && events.contains(expected_event), "it was told {events:?}");
        Ok(())
    })
    .await?;
    namespace.delete_pod(name).await?;
    namespace.claims().delete(name, &DeleteParams::default()).await?;
    volumes.delete(name, &DeleteParams::default()).await?;
    Ok(())
}
