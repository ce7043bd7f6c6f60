//! Kind `nfs`, with the kernel's server on another machine.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tonic::Code;

use super::{
    deaths,
    node::{MachineNode, NetworkVolume},
    writer::Writer,
};
use crate::{machine::Machine, run::SuiteRun};

/// Starts the server. Its disk is `/dev/vdc`: exports, and the server's knowledge of its clients, with which it
/// needs no grace period of 90 seconds after a restart. The disk is the root of all exports, because the root
/// of a machine cannot be exported.
const START_SERVER: &str = r"
modprobe nfsd
mkdir -p /disk /run/rpc_pipefs
blkid /dev/vdc >/dev/null || mkfs.ext4 -q /dev/vdc
mount /dev/vdc /disk
cd /disk
mkdir -p state/nfsdcld state/sm state/v4recovery srv/exports/one srv/exports/two srv/exports/away srv/exports/removed
echo file > srv/exports/file
ln -sfn two srv/exports/link
mount --bind state /var/lib/nfs
touch /etc/exports /var/lib/nfs/etab /var/lib/nfs/rmtab
printf '[exports]\nrootdir=/disk\n' > /etc/nfs.conf
mount -t nfsd nfsd /proc/fs/nfsd
mount -t rpc_pipefs sunrpc /run/rpc_pipefs
nfsdcld -p /run/rpc_pipefs/nfsd
rpcbind
exportfs -o rw,no_root_squash,no_subtree_check,insecure '*:/srv/exports'
rpc.mountd
rpc.nfsd 4
";

/// The policy of the node.
pub(super) const POLICY: &str = r#"
[[node.nfs]]
server = "10.1.0.0/24"
exports = ["/srv/exports/*"]

[[node.nfs]]
server = "fd00:1::/64"
exports = ["/srv/exports/*"]
"#;
/// Addresses of the server.
const ADDRESSES: [&str; 2] = ["10.1.0.2", "fd00:1::2"];
/// Address of the server that goes away and returns.
const AWAY: &str = "10.1.0.3";
/// Time for which a server is away.
const OUTAGE: Duration = Duration::from_secs(60);
/// Time limit of a server that restarts or returns.
const RETURN_TIMEOUT: Duration = Duration::from_secs(120);

fn volume(name: &str, server: &str, path: &str, version: &str) -> NetworkVolume {
    let path = format!("/srv/exports/{path}");
    NetworkVolume::new(name, "nfs", json!({ "server": server, "path": path, "version": version }))
}

/// Starts the server after the machine.
pub(super) async fn start_server(server: &Machine) -> Result<()> {
    server.shell(START_SERVER).await.context("start the NFS server").map(drop)
}

/// Volumes of every version and address carry data.
pub(super) async fn carry_data(node: &MachineNode<'_>, server: &Machine) -> Result<()> {
    for (number, version) in ["3", "4.1", "4.2"].into_iter().enumerate() {
        let address = ADDRESSES[number % ADDRESSES.len()];
        let volume = &volume(&format!("data-{version}"), address, "one", version);
        node.attach(volume).await?;
        let target = volume.target_path();
        node.machine.shell(&format!("echo {version} > {target}/data; sync {target}/data")).await?;
        ensure!(
            server.shell("cat /disk/srv/exports/one/data").await? == version,
            "{address} {version}: other data"
        );
        node.detach(volume).await?;
        node.ensure_nothing_left(&volume.name).await?;
    }
    Ok(())
}

/// Volumes that the node has to reject, with the code and the texts of the error.
pub(super) async fn reject(node: &MachineNode<'_>) -> Result<()> {
    let server = ADDRESSES[0];
    let rows: [(&str, NetworkVolume, Code, &[&str]); 14] = [
        (
            "missing export",
            volume("r-none", server, "none", "4.2"),
            Code::Internal,
            &["10.1.0.2:/srv/exports/none"],
        ),
        (
            "missing export, version 3",
            volume("r-none3", server, "none", "3"),
            Code::Internal,
            &["/srv/exports/none"],
        ),
        ("a file", volume("r-file", server, "file", "4.2"), Code::FailedPrecondition, &["/srv/exports/file"]),
        ("a link", volume("r-link", server, "link", "4.1"), Code::PermissionDenied, &["symbolic links"]),
        (
            "no server",
            volume("r-gone", "10.1.0.9", "one", "4.2"),
            Code::Internal,
            &["10.1.0.9", "does not respond"],
        ),
        (
            "no listener",
            volume("r-refused", "10.1.0.1", "one", "4.2"),
            Code::Internal,
            &["10.1.0.1", "refused"],
        ),
        ("another network", volume("r-net", "10.2.0.2", "one", "4.2"), Code::PermissionDenied, &["10.2.0.2"]),
        (
            "another network, as IPv6",
            volume("r-net6", "::ffff:10.2.0.2", "one", "4.2"),
            Code::PermissionDenied,
            &["10.2.0.2"],
        ),
        ("a port", volume("r-port", "10.1.0.2:2049", "one", "4.2"), Code::InvalidArgument, &["server"]),
        ("a zone", volume("r-zone", "fe80::1%eth1", "one", "4.2"), Code::InvalidArgument, &["server"]),
        ("a parent", volume("r-parent", server, "one/../../state", "4.2"), Code::InvalidArgument, &["path"]),
        ("version 2", volume("r-v2", server, "one", "2"), Code::InvalidArgument, &["version"]),
        (
            "options in the path",
            volume("r-comma", server, "one,vers=3", "4.2"),
            Code::Internal,
            &["one,vers=3"],
        ),
        (
            "an address as option",
            volume("r-addr", server, "one", "4.2").mounted("", &["addr=10.2.0.2"]),
            Code::PermissionDenied,
            &["addr"],
        ),
    ];
    let mut wrong = Vec::new();
    for (what, volume, code, texts) in rows {
        if let Err(error) = node.ensure_rejected(&volume, code, texts).await {
            wrong.push(format!("{what}: {error:#}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (answer, text) in [("sleep 600", "no response within"), ("yes", "not one of RPC"), ("true", "reset")]
    {
        node.machine
            .shell(&format!("nc -ll -p 2049 -e {answer} </dev/null >/dev/null 2>&1 & echo $! > /run/nc"))
            .await?;
        let mute = volume("mute", "10.1.0.1", "one", "4.2");
        let neighbour = volume("beside-mute", ADDRESSES[0], "one", "4.2");
        let others = async {
            node.attach(&neighbour).await?;
            node.detach(&neighbour).await
        };
        let texts = ["10.1.0.1", text];
        let rejected = node.ensure_rejected(&mute, Code::Internal, &texts);
        tokio::try_join!(rejected, others).with_context(|| format!("a server that answers by {answer:?}"))?;
        node.machine.shell("kill $(cat /run/nc); killall -q sleep yes || true").await?;
    }
    for address in ["FD00:1:0:0::2", "fd00:0001::0:2", "::ffff:10.1.0.2"] {
        let volume = volume("spelling", address, "one", "4.2");
        node.attach(&volume).await.with_context(|| format!("the address {address}"))?;
        node.detach(&volume).await?;
    }
    node.ensure_nothing_left("spelling").await
}

/// The role dies `rounds` times during calls.
pub(super) async fn die(
    run: &SuiteRun,
    node: &MachineNode<'_>,
    rounds: usize,
    rng: &mut fastrand::Rng,
) -> Result<()> {
    let volume = &volume("dying-nfs", ADDRESSES[0], "two", "4.2");
    let deaths = deaths::play(node, volume, rounds, rng).await?;
    run.add_note(&format!("nfs: {} deaths: {}", deaths.len(), deaths.join("; ")))
}

/// A server that is away: its link is cut.
pub(super) struct Outage<'a> {
    node: &'a MachineNode<'a>,
    server: &'a Machine,
    began: Instant,
    staged: NetworkVolume,
    removed: NetworkVolume,
    /// Writers of a staged volume, and of a mount made by hand.
    writers: [Writer<'a>; 2],
}

impl<'a> Outage<'a> {
    /// Mounts volumes of the server, starts their writers, and takes the server away.
    pub(super) async fn begin(node: &'a MachineNode<'a>, server: &'a Machine) -> Result<Self> {
        let (staged, removed) =
            (volume("away", AWAY, "away", "4.2"), volume("removed", AWAY, "removed", "4.2"));
        node.attach(&staged).await?;
        node.attach(&removed).await?;
        mount_by_hand(node, AWAY, "away").await?;
        let writers = [
            Writer::start(node.machine, "staged", &staged.target_path()).await?,
            Writer::start(node.machine, "by-hand", "/run/by-hand").await?,
        ];
        server.set_link(false).await?;
        Ok(Self { node, server, began: Instant::now(), staged, removed, writers })
    }

    /// Makes calls while the server is away: those of other volumes and the probes succeed, a new volume of the
    /// server fails, and a call of its volumes that hangs delays no other. Returns the longest time of a
    /// neighbour's stage and publish, and of the same before the outage.
    pub(super) async fn use_neighbours(&self, run: &SuiteRun) -> Result<()> {
        let node = self.node;
        let neighbours = async {
            let mut longest = Duration::ZERO;
            for number in 0..5 {
                let volume = &volume(&format!("neighbour-{number}"), ADDRESSES[0], "one", "4.2");
                let started = Instant::now();
                node.attach(volume).await.context("while a server is away")?;
                longest = longest.max(started.elapsed());
                ensure!(!node.is_abnormal(volume).await?, "the neighbour is abnormal");
                node.check_health().await.context("while a server is away")?;
                node.detach(volume).await.context("while a server is away")?;
            }
            anyhow::Ok(longest)
        };
        let new = volume("new", AWAY, "two", "4.2");
        let rejected = node.ensure_rejected(&new, Code::Internal, &[AWAY, "does not respond"]);
        let (longest, ()) = tokio::try_join!(neighbours, rejected)?;
        node.ensure_nothing_left("new").await?;
        let away = self.began.elapsed();
        run.add_note(&format!(
            "nfs: while a server is away, a neighbour is staged and published within {longest:.1?} (after {away:.0?})"
        ))
    }

    /// Removes a volume while its server is away, and returns how the calls end.
    pub(super) async fn remove_volume(&self) -> Result<()> {
        self.node.detach(&self.removed).await.context("while its server is away")?;
        self.node.ensure_nothing_left(&self.removed.name).await
    }

    /// Returns the server when it has been away for 60 s, and waits until both writers write again.
    pub(super) async fn end(self, run: &SuiteRun) -> Result<()> {
        let Self { node, server, began, staged, writers: [writer, by_hand], .. } = self;
        tokio::time::sleep(OUTAGE.saturating_sub(began.elapsed())).await;
        let returned = writer.uptime().await?;
        server.set_link(true).await?;
        let (after, after_by_hand) = tokio::try_join!(
            writer.wait_confirmed_after(returned, RETURN_TIMEOUT),
            by_hand.wait_confirmed_after(returned, RETURN_TIMEOUT)
        )?;
        let read = async |name: &str| server.shell(&format!("cat /disk/srv/exports/away/log-{name}")).await;
        let count = writer.stop(async || read("staged").await).await?;
        by_hand.stop(async || read("by-hand").await).await?;
        node.machine.shell("umount /run/by-hand").await?;
        node.detach(&staged).await?;
        node.ensure_nothing_left(&staged.name).await?;
        run.add_note(&format!(
            "nfs: a server that was away for {:.0?}: its volume writes {after:.1} s later, a mount by hand \
             {after_by_hand:.1} s later; {count} confirmed writes, none lost",
            began.elapsed()
        ))
    }
}

/// Mounts an export at `/run/by-hand` as a user of the machine does.
async fn mount_by_hand(node: &MachineNode<'_>, server: &str, path: &str) -> Result<()> {
    let script = format!(
        "mkdir -p /run/by-hand; mount -t nfs -o vers=4.2,nosharecache {server}:/srv/exports/{path} /run/by-hand"
    );
    node.machine.shell(&script).await.map(drop)
}

/// The server loses its power while a volume is in use, and starts again.
pub(super) async fn restart_server(
    run: &SuiteRun,
    node: &MachineNode<'_>,
    server: &mut Machine,
) -> Result<()> {
    let volume = &volume("restarted", ADDRESSES[0], "two", "4.2");
    node.attach(volume).await?;
    mount_by_hand(node, ADDRESSES[0], "two").await?;
    let writer = Writer::start(node.machine, "staged", &volume.target_path()).await?;
    let by_hand = Writer::start(node.machine, "by-hand", "/run/by-hand").await?;
    server.lose_power().await?;
    let lost = Instant::now();
    server.power_on().await?;
    start_server(server).await?;
    let away = lost.elapsed();
    let started = writer.uptime().await?;
    let (after, after_by_hand) = tokio::try_join!(
        writer.wait_confirmed_after(started, RETURN_TIMEOUT),
        by_hand.wait_confirmed_after(started, RETURN_TIMEOUT)
    )?;
    let server = &*server;
    let read = async |name: &str| server.shell(&format!("cat /disk/srv/exports/two/log-{name}")).await;
    let count = writer.stop(async || read("staged").await).await?;
    by_hand.stop(async || read("by-hand").await).await?;
    node.machine.shell("umount /run/by-hand").await?;
    node.detach(volume).await?;
    node.ensure_nothing_left(&volume.name).await?;
    run.add_note(&format!(
        "nfs: a server that restarted within {away:.0?}: its volume writes {after:.1} s later, a mount by hand \
         {after_by_hand:.1} s later; {count} confirmed writes, none lost"
    ))
}
