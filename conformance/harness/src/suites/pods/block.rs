//! A raw block device in a pod: it has the size of the claim, keeps its data for the next pod, and cannot be
//! written by a pod that uses it read-only.

use anyhow::{Result, ensure};

use super::fixture::{ContainerVolume, IMAGE, MOUNT_PATH, PodFixture};

/// Size of the claim in bytes.
const DEVICE_BYTES: u64 = 64 << 20;

pub(super) async fn block_device(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("block").await?;
    namespace.create_claim_with_modes("device", IMAGE, "Block", "ReadWriteOnce").await?;
    let of = ContainerVolume::block_device("device");
    let write = format!(
        "test -b {MOUNT_PATH}; echo first block | dd of={MOUNT_PATH} bs=512 conv=sync,fsync 2>/dev/null; \
         echo wrote"
    );
    let output = namespace.run_pod("writer", &of, &write).await?;
    ensure!(output == "wrote", "the first pod says {output:?}");
    fixture.wait_unstaged(IMAGE, namespace, "device").await?;
    // Reads the whole device: it must have exactly the size of the claim.
    let read = format!("head -n 1 {MOUNT_PATH}; dd if={MOUNT_PATH} bs=1M 2>/dev/null | wc -c");
    let output = namespace.run_pod("reader", &of, &read).await?;
    let expected = format!("first block\n{DEVICE_BYTES}");
    ensure!(output == expected, "the second pod says {output:?}: expected {expected:?}");
    let write_script = format!(
        "echo x | dd of={MOUNT_PATH} bs=512 conv=sync,fsync 2>/dev/null || echo refused; head -n 1 \
         {MOUNT_PATH}"
    );
    let output = namespace.run_pod("only", &of.clone().read_only(), &write_script).await?;
    ensure!(output == "refused\nfirst block", "a pod that may only read says {output:?}");
    namespace.delete_claims().await
}
