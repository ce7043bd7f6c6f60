//! A raw block device in a pod.

use anyhow::{Result, ensure};

use super::ground::{AT, Ground, IMAGE, Use};

/// Bytes of a claim.
const SIZE: u64 = 64 << 20;

pub(super) async fn devices(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("block").await?;
    room.claim_as("device", IMAGE, "Block", "ReadWriteOnce").await?;
    let of = Use::device("device");
    let write =
        format!("test -b {AT}; echo first block | dd of={AT} bs=512 conv=sync,fsync 2>/dev/null; echo wrote");
    let said = room.says("writer", &of, &write).await?;
    ensure!(said == "wrote", "the first pod says {said:?}");
    ground.unstaged(IMAGE, room, "device").await?;
    // The whole device, and not a byte more.
    let read = format!("head -n 1 {AT}; dd if={AT} bs=1M 2>/dev/null | wc -c");
    let said = room.says("reader", &of, &read).await?;
    let expected = format!("first block\n{SIZE}");
    ensure!(said == expected, "the second pod says {said:?}: expected {expected:?}");
    let refused =
        format!("echo x | dd of={AT} bs=512 conv=sync,fsync 2>/dev/null || echo refused; head -n 1 {AT}");
    let said = room.says("only", &of.clone().read_only(), &refused).await?;
    ensure!(said == "refused\nfirst block", "a pod that may only read says {said:?}");
    room.empty().await
}
