//! Volume statistics in kubelet's summary API.

use anyhow::{Context as _, Result, ensure};
use http::Request;
use serde_json::Value;

use super::fixture::{
    ContainerVolume, DIRECTORY, IMAGE, MEMORY, MOUNT_PATH, NODE, PodFixture, TIMEOUT, VolumeClass,
};
use crate::wait::until;

/// Bytes that the pod writes.
const WRITTEN_BYTES: u64 = 4 << 20;
/// Classes and the maximum capacity of their volumes in bytes. A directory has the capacity of the node's
/// disk, which is not checked.
const MAX_BYTES_BY_CLASS: [(VolumeClass, Option<u64>); 3] =
    [(MEMORY, Some(64 << 20)), (DIRECTORY, None), (IMAGE, Some(64 << 20))];

pub(super) async fn stats_summary(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("stats").await?;
    let rows = MAX_BYTES_BY_CLASS.map(async |(class, max_bytes)| {
        let name = class.name;
        namespace.create_claim(name, class).await?;
        namespace
            .start_pod(
                name,
                &ContainerVolume::claim(name),
                &format!("dd if=/dev/zero of={MOUNT_PATH}/f bs=1M count=4 2>/dev/null; sync"),
            )
            .await?;
        until(&format!("kubelet has looked at the volume of {name}"), TIMEOUT, async || {
            let volume = volume_stats(fixture, name).await?;
            let number = |field: &str| {
                volume.get(field).and_then(Value::as_u64).with_context(|| format!("no {field}: {volume}"))
            };
            let (capacity, used, free) =
                (number("capacityBytes")?, number("usedBytes")?, number("availableBytes")?);
            ensure!(used >= WRITTEN_BYTES && free > 0 && used + free <= capacity, "{volume}");
            // The filesystem's metadata takes less than half of the volume.
            ensure!(
                max_bytes.is_none_or(|max_bytes| capacity <= max_bytes && capacity > max_bytes / 2),
                "{volume}"
            );
            ensure!(number("inodesUsed")? + number("inodesFree")? <= number("inodes")?, "{volume}");
            Ok(())
        })
        .await?;
        namespace.delete_pod(name).await
    });
    futures::future::try_join_all(rows).await?;
    namespace.delete_claims().await
}

/// The statistics of a pod's volume; pod and claim have the same name.
async fn volume_stats(fixture: &PodFixture<'_>, name: &str) -> Result<Value> {
    let request = Request::get(format!("/api/v1/nodes/{NODE}/proxy/stats/summary")).body(Vec::new())?;
    let summary: Value = serde_json::from_str(&fixture.plane.client().request_text(request).await?)?;
    let pods = summary.get("pods").and_then(Value::as_array).context("no pods")?;
    let volumes = pods.iter().filter_map(|pod| pod.get("volume")?.as_array()).flatten();
    let is_claim = |volume: &&Value| {
        volume.pointer("/pvcRef/name").and_then(Value::as_str) == Some(name)
            && volume.pointer("/pvcRef/namespace").and_then(Value::as_str) == Some("stats")
    };
    volumes.into_iter().find(is_claim).cloned().with_context(|| format!("no volume of the claim {name}"))
}
