//! Snapshots, restores and clones in pods: the bytes of a restored volume and of a clone are those of the
//! source when they were taken, after the source was overwritten and deleted.

use anyhow::{Context as _, Result, ensure};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::fixture::{
    ContainerVolume, DIRECTORY, IMAGE, MOUNT_PATH, NODE, PodFixture, TIMEOUT, TestNamespace,
};
use crate::{
    snapshots::{Snapshots, is_ready, text_at},
    wait::until,
};

/// The driver `pool`: directories, whose files are copied, and images, which share blocks with their copies.
pub(super) async fn node_local_bytes(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("snapshots").await?;
    let driver = &fixture.pool.driver;
    let snapshots = &Snapshots::new(fixture.plane.client(), namespace.name(), driver).await?;
    let rows = [DIRECTORY, IMAGE].map(async |class| {
        compare_bytes(namespace, snapshots, class.name, Some(NODE)).await.context(class.name)
    });
    futures::future::try_join_all(rows).await?;
    namespace.delete_claims().await?;
    snapshots.wait_remaining(0, TIMEOUT).await
}

/// A pod writes random data to a volume of the StorageClass. While it runs, a snapshot is taken, and a second
/// claim is cloned from the first. Another pod overwrites the data, and the first claim is deleted. A third
/// claim is restored from the snapshot. Pods then find the data of before in the clone and in the restored
/// volume. Deletes the snapshot at the end. `node` is the node that the content of the snapshot names.
pub(super) async fn compare_bytes(
    namespace: &TestNamespace,
    snapshots: &Snapshots,
    class: &str,
    node: Option<&str>,
) -> Result<()> {
    let [source, clone, restored, snapshot] =
        ["source", "clone", "restored", "snapshot"].map(|name| format!("{class}-{name}"));
    let (read, writer) = (format!("cd {MOUNT_PATH}; md5sum data"), format!("{class}-writer"));
    let write = "dd if=/dev/urandom of=data bs=64k count=16 2>/dev/null; sync; md5sum data";
    let write = format!("cd {MOUNT_PATH}; {write}");
    namespace.create_claim_with_source(&source, class, Value::Null).await?;
    let data = namespace.start_pod(&writer, &ContainerVolume::claim(&source), &write).await?;
    ensure!(data.ends_with("  data"), "the first pod says {data:?}");

    snapshots.create_named(&snapshot, &source).await?;
    wait_ready(snapshots, &snapshot, node).await?;
    let claim = json!({ "kind": "PersistentVolumeClaim", "name": source });
    namespace.create_claim_with_source(&clone, class, claim).await?;
    let cloned = namespace.run_pod(&clone, &ContainerVolume::claim(&clone), &read).await?;
    ensure!(cloned == data, "the clone has {cloned:?}: expected {data:?}");

    let overwriter = format!("{class}-overwriter");
    let new = namespace.run_pod(&overwriter, &ContainerVolume::claim(&source), &write).await?;
    ensure!(new.ends_with("  data") && new != data, "the second pod says {new:?}");
    namespace.delete_pod(&writer).await?;
    namespace.claims().delete(&source, &DeleteParams::default()).await?;
    until(&format!("claim {source} is gone"), TIMEOUT, async || {
        ensure!(namespace.claims().get_opt(&source).await?.is_none(), "it exists");
        Ok(())
    })
    .await?;

    let api_group = "snapshot.storage.k8s.io";
    let source = json!({ "apiGroup": api_group, "kind": "VolumeSnapshot", "name": snapshot });
    namespace.create_claim_with_source(&restored, class, source).await?;
    for (claim, pod) in [(&restored, &restored), (&clone, &format!("{clone}-again"))] {
        let found = namespace.run_pod(pod, &ContainerVolume::claim(claim), &read).await?;
        ensure!(found == data, "claim {claim} has {found:?}: expected {data:?}");
    }
    snapshots.delete_named(&snapshot).await
}

/// Waits until a snapshot is ready, and checks that the label of its content names the node.
async fn wait_ready(snapshots: &Snapshots, name: &str, node: Option<&str>) -> Result<()> {
    let snapshot = until(&format!("snapshot {name} is ready"), TIMEOUT, async || {
        let snapshot = snapshots.list().await?.remove(name).context("it does not exist")?;
        let error = text_at(&snapshot, "/status/error/message");
        ensure!(is_ready(&snapshot), "it is not; an error: {error:?}");
        Ok(snapshot)
    })
    .await?;
    let content = text_at(&snapshot, "/status/boundVolumeSnapshotContentName");
    let content = snapshots.contents().await?.remove(content).with_context(|| content.to_owned())?;
    let found = text_at(&content, "/metadata/labels/snapshot.storage.kubernetes.io~1managed-by");
    ensure!(found == node.unwrap_or_default(), "the content names the node {found:?}: expected {node:?}");
    Ok(())
}
