//! Volumes of a network: a node and a server, each a machine with Debian's kernel.

mod deaths;
mod nfs;
mod node;
mod writer;

use std::{env, fs::File};

use anyhow::{Context as _, Result};

use self::node::MachineNode;
use crate::{
    machine::{Machine, MachineNetwork, MachineSystem},
    run::SuiteRun,
    seeded_rng::seeded_rng,
};

/// Deaths of the role `node` with each kind without the variable `ROUNDS`.
const ROUNDS: usize = 3;
/// Size of the disk of each machine in bytes.
const DISK_BYTES: u64 = 512 << 20;

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let rounds = match env::var("ROUNDS") {
        Ok(text) => text.parse().with_context(|| format!("ROUNDS={text:?}: expected a number"))?,
        Err(_) => ROUNDS,
    };
    let mut rng = seeded_rng()?;
    let system = MachineSystem::prepare(run).await?;
    let network = MachineNetwork::new(run)?;
    let disk = |name: &str| {
        let path = run.scratch().join(format!("{name}-disk"));
        File::create(&path)?.set_len(DISK_BYTES)?;
        anyhow::Ok(path)
    };
    let disks = [&[disk("node")?], &[disk("server")?], &[disk("other-server")?]];
    let [node_disks, server_disks, other_disks] = disks;
    let (machine, mut server, other) = tokio::try_join!(
        Machine::start(run, &system, "node", network, 1, node_disks),
        Machine::start(run, &system, "server", network, 2, server_disks),
        Machine::start(run, &system, "other-server", network, 3, other_disks)
    )?;
    tokio::try_join!(prepare_node(&machine), nfs::start_server(&server), nfs::start_server(&other))?;
    let policy = format!("[node]\nconnection-kinds = [\"nfs\"]\n{}", nfs::POLICY);
    let node = MachineNode::start(run, &machine, &policy).await?;
    nfs::carry_data(&node, &server).await?;
    let outage = nfs::Outage::begin(&node, &other).await?;
    outage.use_neighbours(run).await?;
    outage.remove_volume().await?;
    nfs::reject(&node).await?;
    nfs::die(run, &node, rounds, &mut rng).await?;
    outage.end(run).await?;
    nfs::restart_server(run, &node, &mut server).await
}

/// Mounts the node's disk at kubelet's root, which outlives a loss of power.
async fn prepare_node(node: &Machine) -> Result<()> {
    let script = format!(
        "blkid /dev/vdc >/dev/null || mkfs.ext4 -q /dev/vdc
         mkdir -p {0}; mount /dev/vdc {0}",
        node::ROOT
    );
    node.shell(&script).await.map(drop)
}
