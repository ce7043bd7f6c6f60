//! Volumes of a network: a node and a server, each a machine with Debian's kernel.

mod crash_points;
pub(super) mod crashes;
mod fencing;
pub(super) mod local_disk;
mod nfs;
pub(super) mod node;
pub(super) mod node_loss;
mod nvme;
pub(super) mod outage;
pub(super) mod pods;
pub(super) mod sanity;
pub(super) mod speed;
mod writer;

use std::{fs::File, path::PathBuf};

use anyhow::Result;

use self::{node::MachineNode, sanity::MachineSanity};
use super::csi_sanity::SanityCounts;
use crate::{
    backend::BackendFixture,
    machine::{Machine, MachineNetwork, MachineSystem},
    run::SuiteRun,
    seeded_rng::seeded_rng,
};

/// Size of the disk of each machine in bytes.
const DISK_BYTES: u64 = 8 << 30;
/// Addresses of the first server.
const ADDRESSES: [&str; 2] = ["10.1.0.2", "fd00:1::2"];
/// Address of the other server, which goes away and returns.
const AWAY: &str = "10.1.0.3";

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let mut rng = seeded_rng()?;
    let system = MachineSystem::prepare(run).await?;
    let network = MachineNetwork::new(run)?;
    let node_disks = node_disks(run)?;
    let (server_disks, other_disks) =
        ([disk(run, "server", DISK_BYTES)?], [disk(run, "other-server", DISK_BYTES)?]);
    let (mut machine, mut server, other) = tokio::try_join!(
        Machine::start(run, &system, "node", network, 1, &node_disks),
        Machine::start(run, &system, "server", network, 2, &server_disks),
        Machine::start(run, &system, "other-server", network, 3, &other_disks)
    )?;
    let start_other = start_server(&other, nvme::AWAY_TARGET);
    tokio::try_join!(prepare_node(&machine, "nvme_tcp"), start_server(&server, nvme::TARGET), start_other)?;
    let driver = BackendFixture::with_connection_info(run, node::NODE, "nfs", nfs::SANITY_FIELDS)?;
    let manifest = driver.write_manifest(run).await?;
    let node = MachineNode::start(run, &machine, &manifest, &policy()).await?;

    nfs::carry_data(&node, &server).await?;
    nvme::carry_data(&node, &server).await?;
    local_disk::carry_data(&machine, &node).await?;
    for volumes in [nfs::server_volumes(ADDRESSES[0]), nvme::server_volumes(nvme::TARGET)] {
        speed::compare(run, &node, &volumes).await?;
    }
    let away = [nfs::server_volumes(AWAY), nvme::server_volumes(nvme::AWAY_TARGET)];
    let during = [nfs::outage_volumes(), nvme::outage_volumes()];
    nvme::reject_disks(&node, &server).await?;
    let (mut csi_server, socket, _) = driver.start_csi_server(run).await?;
    let expected = SanityCounts { passed: 94, failed: 0, skipped: 8 };
    let sanity =
        MachineSanity { name: "nfs", access_type: "mount", secrets: String::new(), expected, failures: &[] };
    let others = async || {
        let sanity = sanity::run(run, &node, &socket, &sanity);
        tokio::try_join!(nfs::reject(&node), nvme::reject(&node), sanity).map(drop)
    };
    let set_available = async |is_available| other.set_link(is_available).await;
    outage::interrupt(run, &node, set_available, &away, &during, others).await?;
    csi_server.stop().await?;
    fencing::unexport(&node, &server).await?;
    fencing::disconnect(&node, &server).await?;
    nfs::crash(run, &node, &mut rng).await?;
    nvme::crash(run, &node, &server, &mut rng).await?;
    let restarted = [nfs::server_volumes(ADDRESSES[0]), nvme::server_volumes(nvme::TARGET)];
    let restart_server = async || {
        server.lose_power().await?;
        server.power_on().await?;
        start_server(&server, nvme::TARGET).await
    };
    outage::restart(run, &node, &restarted, restart_server).await?;
    nvme::ensure_disconnected(&node).await?;

    let lost = [nfs::lost_volumes(), nvme::lost_volumes()];
    node_loss::prepare(&node, &lost).await?;
    drop(node);
    machine.lose_power().await?;
    machine.power_on().await?;
    prepare_node(&machine, "nvme_tcp").await?;
    let node = MachineNode::start(run, &machine, &manifest, &policy()).await?;
    node_loss::recover(&node, &lost).await?;
    nvme::ensure_disconnected(&node).await
}

/// Creates a blank disk for a machine.
pub(super) fn disk(run: &SuiteRun, name: &str, bytes: u64) -> Result<PathBuf> {
    let path = run.scratch().join(format!("disk-{name}"));
    File::create(&path)?.set_len(bytes)?;
    Ok(path)
}

/// Creates the disks of a node: that of [`prepare_node`], and that of the volumes of [`local_disk`].
pub(super) fn node_disks(run: &SuiteRun) -> Result<[PathBuf; 2]> {
    Ok([disk(run, "node", DISK_BYTES)?, disk(run, "local", local_disk::SIZES[0])?])
}

/// The section `[node]` of the roles' configuration.
fn policy() -> String {
    let kinds = r#"connection-kinds = ["local-device", "nfs", "nvme-tcp"]"#;
    let filesystems = r#"filesystems = ["ext4", "xfs"]"#;
    format!("[node]\n{kinds}\n{filesystems}\n{}{}{}", local_disk::POLICY, nfs::POLICY, nvme::POLICY)
}

/// Starts the servers of all kinds on a machine.
async fn start_server(server: &Machine, target: nvme::Target) -> Result<()> {
    nfs::start_server(server).await?;
    nvme::start_server(server, target).await
}

/// Loads a kernel module, and mounts the node's disk at kubelet's root, which outlives a loss of power.
pub(super) async fn prepare_node(node: &Machine, module: &str) -> Result<()> {
    let script = format!(
        "modprobe {module}
         blkid /dev/vdc >/dev/null || mkfs.ext4 -q /dev/vdc
         mkdir -p {0}; mount /dev/vdc {0}",
        node::ROOT,
    );
    node.shell(&script).await.map(drop)
}
