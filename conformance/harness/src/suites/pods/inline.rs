//! CSI inline volumes of the driver `memory`. The role `node` publishes sizes within the node's policy, and
//! rejects larger ones, unknown attributes, and the attribute `cofferdam.dev/connection-info`, with which a
//! pod could otherwise choose what is mounted.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::fixture::{ContainerVolume, MOUNT_PATH, PodFixture, TIMEOUT};
use crate::{backend::MAX_INLINE_BYTES, wait::until};

/// Names of pods, sizes in the volume's attributes (empty: no attribute), and expected sizes in bytes.
const ALLOWED_SIZES: [(&str, &str, u64); 2] = [("some", "8Mi", 8 << 20), ("most", "", MAX_INLINE_BYTES)];

pub(super) async fn inline_volumes(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("inline").await?;
    let driver = fixture.memory.driver.as_str();
    let allowed = ALLOWED_SIZES.map(async |(name, size, bytes)| {
        let attributes = if size.is_empty() { json!({}) } else { json!({ "size": size }) };
        let blocks = bytes >> 20;
        // One MiB more than the volume has.
        let script = format!(
            "cd {MOUNT_PATH}; stat -f -c '%b %S' .; dd if=/dev/zero of=f bs=1M count={} 2>/dev/null || echo \
             full; stat -c %s f",
            blocks + 1
        );
        let output = namespace.run_pod(name, &ContainerVolume::inline(driver, attributes), &script).await?;
        let expected = format!("{} 4096\nfull\n{bytes}", bytes / 4096);
        ensure!(output == expected, "{name}: the pod says {output:?}: expected {expected:?}");
        anyhow::Ok(())
    });
    let rejected: [(&str, Value, &str); 3] = [
        ("too-much", json!({ "size": "1Gi" }), "is not allowed on this node"),
        ("a-path", json!({ "size": "8Mi", "path": "x" }), "InvalidArgument"),
        ("connection-info", json!({ "cofferdam.dev/connection-info": "{}" }), "InvalidArgument"),
    ];
    let rejected = rejected.map(async |(name, attributes, expected_event)| {
        namespace.create_pod(name, &ContainerVolume::inline(driver, attributes), "true").await?;
        until(&format!("pod {name} is refused its volume"), TIMEOUT, async || {
            let events = namespace.event_text(name).await?;
            ensure!(
                events.contains("FailedMount") && events.contains(expected_event),
                "it was told {events:?}"
            );
            Ok(())
        })
        .await?;
        namespace.delete_pod(name).await
    });
    futures::try_join!(futures::future::try_join_all(allowed), futures::future::try_join_all(rejected))?;
    until("inline volumes are gone", TIMEOUT, async || {
        let remaining = fixture.memory.volume_records()?.into_iter().find(|record| record.contains("\"csi-"));
        ensure!(remaining.is_none(), "{}", remaining.unwrap_or_default());
        Ok(())
    })
    .await
}
