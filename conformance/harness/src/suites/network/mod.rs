//! Volumes of a network: a node and a server, each a machine with Debian's kernel.

use anyhow::Result;

use crate::{
    machine::{LinkEnd, Machine, MachineSystem},
    run::SuiteRun,
};

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let system = MachineSystem::prepare(run).await?;
    let [left, right] = LinkEnd::pair(run, "link");
    let (node, server) = tokio::try_join!(
        Machine::start(run, &system, "node", &left, &[]),
        Machine::start(run, &system, "server", &right, &[])
    )?;
    node.shell("ip address add 10.1.0.1/24 dev eth1; ip link set eth1 up").await?;
    server.shell("ip address add 10.1.0.2/24 dev eth1; ip link set eth1 up").await?;
    let text = node.shell("ping -c 1 10.1.0.2; uname -a; free; lsmod; mount; ls -la /opt/programs").await?;
    run.add_note(&text)
}
