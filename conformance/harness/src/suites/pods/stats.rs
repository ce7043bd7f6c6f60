//! What kubelet knows of a volume's size, at its summary API.

use anyhow::{Context as _, Result, ensure};
use http::Request;
use serde_json::Value;

use super::ground::{AT, Class, DIRECTORY, Ground, IMAGE, MEMORY, NODE, SOON, Use};
use crate::wait::until;

/// Bytes that the pod writes.
const WRITTEN: u64 = 4 << 20;
/// A class, and the most that its volume may hold: of a directory it is whatever the node has.
const ROWS: [(Class, Option<u64>); 3] =
    [(MEMORY, Some(64 << 20)), (DIRECTORY, None), (IMAGE, Some(64 << 20))];

pub(super) async fn summary(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("stats").await?;
    let rows = ROWS.map(async |(class, most)| {
        let name = class.name;
        room.claim(name, class).await?;
        room.stays(
            name,
            &Use::claim(name),
            &format!("dd if=/dev/zero of={AT}/f bs=1M count=4 2>/dev/null; sync"),
        )
        .await?;
        until(&format!("kubelet has looked at the volume of {name}"), SOON, async || {
            let volume = volume(ground, name).await?;
            let number = |field: &str| {
                volume.get(field).and_then(Value::as_u64).with_context(|| format!("no {field}: {volume}"))
            };
            let (capacity, used, free) =
                (number("capacityBytes")?, number("usedBytes")?, number("availableBytes")?);
            ensure!(used >= WRITTEN && free > 0 && used + free <= capacity, "{volume}");
            // A filesystem keeps a part for itself.
            ensure!(most.is_none_or(|most| capacity <= most && capacity > most / 2), "{volume}");
            ensure!(number("inodesUsed")? + number("inodesFree")? <= number("inodes")?, "{volume}");
            Ok(())
        })
        .await?;
        room.gone(name).await
    });
    futures::future::try_join_all(rows).await?;
    room.empty().await
}

/// What the summary says of the volume of a pod that is called as its claim.
async fn volume(ground: &Ground<'_>, name: &str) -> Result<Value> {
    let request = Request::get(format!("/api/v1/nodes/{NODE}/proxy/stats/summary")).body(Vec::new())?;
    let summary: Value = serde_json::from_str(&ground.plane.client().request_text(request).await?)?;
    let pods = summary.get("pods").and_then(Value::as_array).context("no pods")?;
    let volumes = pods.iter().filter_map(|pod| pod.get("volume")?.as_array()).flatten();
    let of = |volume: &&Value| {
        volume.pointer("/pvcRef/name").and_then(Value::as_str) == Some(name)
            && volume.pointer("/pvcRef/namespace").and_then(Value::as_str) == Some("stats")
    };
    volumes.into_iter().find(of).cloned().with_context(|| format!("no volume of the claim {name}"))
}
