//! Kind `local-device` on a virtual disk, which grows while its filesystem is used.

use anyhow::{Result, ensure};
use serde_json::json;
use tonic::Code;

use super::node::{MachineNode, NetworkVolume};
use crate::machine::Machine;

/// The stable id of the disk, as udev names a virtio disk by its serial number.
const STABLE_ID: &str = "virtio-conformance";
/// The disk in the machine.
const DEVICE: &str = "vdd";
/// The disk's number among those of the machine.
const DISK: usize = 1;
/// Size of the disk in bytes before and after its growth.
pub(super) const SIZES: [u64; 2] = [512 << 20, 1 << 30];

/// The policy of the node.
pub(in crate::suites) const POLICY: &str = "stable-ids = [\"virtio-conformance\"]\n";

fn volume(name: &str, id: &str) -> NetworkVolume {
    NetworkVolume::new(name, "local-device", json!({ "stable-id": id }))
}

/// A volume on the disk.
pub(in crate::suites) fn disk_volume(name: &str) -> NetworkVolume {
    volume(name, STABLE_ID)
}

/// Gives the disk its stable id.
pub(in crate::suites) async fn name_disk(machine: &Machine) -> Result<()> {
    let script = format!("mkdir -p /dev/disk/by-id; ln -sfn ../../{DEVICE} /dev/disk/by-id/{STABLE_ID}");
    machine.shell(&script).await.map(drop)
}

/// Formats, mounts and grows the disk with each filesystem.
pub(super) async fn carry_data(machine: &Machine, node: &MachineNode<'_>) -> Result<()> {
    name_disk(machine).await?;
    for fs_type in ["ext4", "xfs"] {
        machine.resize_disk(DISK, SIZES[0]).await?;
        machine
            .shell(&format!(
                "blkdiscard -z /dev/{DEVICE} || dd if=/dev/zero of=/dev/{DEVICE} bs=1M 2>/dev/null || true"
            ))
            .await?;
        let volume = disk_volume(&format!("local-{fs_type}")).mounted(fs_type, &[]);
        node.attach(&volume).await?;
        let target = volume.target_path();
        machine.shell(&format!("echo {fs_type} > {target}/data; sync {target}/data")).await?;
        machine.resize_disk(DISK, SIZES[1]).await?;
        let size = node.expand(&volume, i64::try_from(SIZES[1])?).await?;
        ensure!(u64::try_from(size)? == SIZES[1], "{fs_type}: {size} bytes");
        let kibibytes: u64 =
            machine.shell(&format!("df -k {target} | awk 'END {{ print $2 }}'")).await?.parse()?;
        ensure!(kibibytes * 1024 > SIZES[1] / 10 * 8, "{fs_type}: the pod sees {kibibytes} KiB");
        node.detach(&volume).await?;
        node.ensure_nothing_left(&volume.name).await?;
    }
    let other = volume("local-other", "virtio-other");
    node.ensure_rejected(&other, Code::PermissionDenied, &["virtio-other"]).await
}
