//! What ends the access of a node that still uses a volume, at the servers of [`super::nfs`] and [`super::nvme`].

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{nfs, node::MachineNode, nvme};
use crate::{machine::Machine, wait::until};

/// Time limit of a reconnection, or of its rejection. The kernel tries every two seconds.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// A file in the volume, or the device of a raw volume, to which a script writes a word.
fn write_word(path: &str, word: &str) -> String {
    format!("echo {word} | dd of={path} conv=fsync,notrunc 2>/dev/null")
}

/// NFS: the node that a server exports to no longer neither writes nor reads.
pub(super) async fn unexport(node: &MachineNode<'_>, server: &Machine) -> Result<()> {
    let volume = &nfs::fenced_volume();
    let file = format!("{}/data", volume.target_path());
    server.shell(nfs::EXPORT_FENCED).await?;
    node.attach(volume).await?;
    node.machine.shell(&write_word(&file, "before")).await?;
    server.shell(nfs::UNEXPORT_FENCED).await?;
    let written = node.machine.shell(&write_word(&file, "after")).await;
    ensure!(written.is_err(), "the node writes after `exportfs -u`");
    server.shell("echo unread > /disk/srv/fenced/unread").await?;
    let read = node.machine.shell(&format!("cat {}/unread", volume.target_path())).await;
    let error = read.err().context("the node reads after `exportfs -u`")?.to_string();
    ensure!(
        error.contains("Permission denied") || error.contains("Stale"),
        "the node reads nothing: {error}"
    );
    let data = server.shell("cat /disk/srv/fenced/data").await?;
    ensure!(data == "before", "the server has {data:?}: expected \"before\"");
    // The same works when the node is allowed again.
    server.shell(nfs::EXPORT_FENCED).await?;
    node.machine.shell(&write_word(&file, "allowed")).await?;
    node.detach(volume).await?;
    node.ensure_nothing_left(&volume.name).await
}

/// NVMe: a host that is no longer allowed reads and writes until its connection ends, and does not connect again.
pub(super) async fn disconnect(node: &MachineNode<'_>, server: &Machine) -> Result<()> {
    let volume = &nvme::fenced_volume();
    let device = volume.target_path();
    let on_server = async |word: &str| {
        let data = server.shell(&format!("head -c {} {}", word.len(), nvme::FENCED_FILE)).await?;
        anyhow::Ok(data == word)
    };
    node.attach(volume).await?;
    server.shell(&nvme::disallow_host()).await?;
    node.machine.shell(&write_word(&device, "masked")).await.context("after the removal of the host")?;
    ensure!(on_server("masked").await?, "a connected host does not write after its removal");

    server.shell(&nvme::end_connections()).await?;
    until("the connections of the node end", RECONNECT_TIMEOUT, async || {
        let live = node.machine.shell("cat /sys/class/nvme/*/state").await?;
        ensure!(!live.lines().any(|state| state == "live"), "the states of its controllers are {live}");
        Ok(())
    })
    .await?;
    let rejections = rejections(server).await?;
    let script =
        format!("({}; echo $? > /run/fenced) </dev/null >/dev/null 2>&1 &", write_word(&device, "fenced"));
    node.machine.shell(&format!("rm -f /run/fenced; {script}")).await?;
    until("the server rejects the host twice", RECONNECT_TIMEOUT, async || {
        let new = self::rejections(server).await? - rejections;
        ensure!(new >= 2, "{new} rejections");
        Ok(())
    })
    .await?;
    ensure!(on_server("masked").await?, "the node writes after the end of its connections");
    ensure!(node.machine.shell("test -e /run/fenced").await.is_err(), "the write has ended");
    // The write was waiting for a connection.
    server.shell(&nvme::allow_host()).await?;
    node.machine.wait_for_file("/run/fenced", RECONNECT_TIMEOUT).await?;
    ensure!(on_server("fenced").await?, "the write is lost");
    node.detach(volume).await?;
    node.ensure_nothing_left(&volume.name).await?;
    nvme::ensure_disconnected(node).await
}

/// The number of connections that the target has rejected because of their host.
async fn rejections(server: &Machine) -> Result<usize> {
    let count = server.shell("dmesg | grep -c 'for subsystem .* not allowed' || true").await?;
    count.parse().with_context(|| format!("{count:?} is not a number"))
}
