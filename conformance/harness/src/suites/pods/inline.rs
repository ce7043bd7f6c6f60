//! Volumes that a pod describes by itself: memory, within what the node's operator allows.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::ground::{AT, Ground, SOON, Use};
use crate::{chain::INLINE_MOST, wait::until};

/// Attributes, and the bytes that the pod gets.
const GRANTED: [(&str, &str, u64); 2] = [("some", "8Mi", 8 << 20), ("most", "", INLINE_MOST)];

pub(super) async fn volumes(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("inline").await?;
    let driver = ground.memory.driver.as_str();
    let granted = GRANTED.map(async |(name, size, bytes)| {
        let attributes = if size.is_empty() { json!({}) } else { json!({ "size": size }) };
        let blocks = bytes >> 20;
        // One more than fits.
        let script = format!(
            "cd {AT}; stat -f -c '%b %S' .; dd if=/dev/zero of=f bs=1M count={} 2>/dev/null || echo full; stat -c %s f",
            blocks + 1
        );
        let said = room.says(name, &Use::inline(driver, attributes), &script).await?;
        let expected = format!("{} 4096\nfull\n{bytes}", bytes / 4096);
        ensure!(said == expected, "{name}: the pod says {said:?}: expected {expected:?}");
        anyhow::Ok(())
    });
    let refused: [(&str, Value, &str); 3] = [
        ("too-much", json!({ "size": "1Gi" }), "is not allowed on this node"),
        ("a-path", json!({ "size": "8Mi", "path": "x" }), "InvalidArgument"),
        ("an-attachment", json!({ "cofferdam.dev/attachment": "{}" }), "InvalidArgument"),
    ];
    let refused = refused.map(async |(name, attributes, words)| {
        room.pod(name, &Use::inline(driver, attributes), "true").await?;
        until(&format!("pod {name} is refused its volume"), SOON, async || {
            let events = room.events(name).await?;
            ensure!(events.contains("FailedMount") && events.contains(words), "it was told {events:?}");
            Ok(())
        })
        .await?;
        room.gone(name).await
    });
    futures::try_join!(futures::future::try_join_all(granted), futures::future::try_join_all(refused))?;
    until("inline volumes are gone", SOON, async || {
        let left = ground.memory.records()?.into_iter().find(|record| record.contains("\"csi-"));
        ensure!(left.is_none(), "{}", left.unwrap_or_default());
        Ok(())
    })
    .await
}
