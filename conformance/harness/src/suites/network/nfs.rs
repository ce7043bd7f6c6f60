//! Kind `nfs`, with the kernel's server on another machine.

use std::pin::pin;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tonic::Code;

use super::{
    ADDRESSES, AWAY,
    crashes::CrashTest,
    node::{MachineNode, NetworkVolume, RejectedVolume},
    node_loss::LostVolumes,
    outage::{OutageVolumes, ServerVolumes},
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

/// Exports a directory to the node, and withdraws it.
pub(super) const EXPORT_FENCED: &str =
    "mkdir -p /disk/srv/fenced; exportfs -o rw,no_root_squash,no_subtree_check,insecure 10.1.0.1:/srv/fenced";
pub(super) const UNEXPORT_FENCED: &str = "exportfs -u 10.1.0.1:/srv/fenced";

/// The policy of the node.
pub(super) const POLICY: &str = r#"
[[node.nfs]]
server = "10.1.0.0/24"
exports = ["/srv/exports/*", "/srv/fenced"]

[[node.nfs]]
server = "fd00:1::/64"
exports = ["/srv/exports/*"]
"#;

/// The connection info of the volumes of csi-sanity.
pub(super) const SANITY_FIELDS: &str = "server=10.1.0.2 path=/srv/exports/two version=4.2";

fn volume(name: &str, server: &str, path: &str, version: &str) -> NetworkVolume {
    let path = format!("/srv/exports/{path}");
    NetworkVolume::new(name, "nfs", json!({ "server": server, "path": path, "version": version }))
}

/// The volume of [`EXPORT_FENCED`].
pub(super) fn fenced_volume() -> NetworkVolume {
    let fields = json!({ "server": ADDRESSES[0], "path": "/srv/fenced", "version": "4.2" });
    NetworkVolume::new("fenced-nfs", "nfs", fields)
}

/// Starts the server after the machine.
pub(super) async fn start_server(server: &Machine) -> Result<()> {
    server.shell(START_SERVER).await.context("start the NFS server").map(drop)
}

/// Volumes of the versions 4 and 3.
pub(super) fn pod_volumes() -> [NetworkVolume; 2] {
    [volume("pod-nfs", ADDRESSES[0], "one", "4.2"), volume("pod-nfs3", ADDRESSES[1], "two", "3")]
}

/// Volumes of every version and address carry data.
pub(super) async fn carry_data(node: &MachineNode<'_>, server: &Machine) -> Result<()> {
    for (version, address) in ["3", "4.1", "4.2"].into_iter().zip(ADDRESSES.into_iter().cycle()) {
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

/// Volumes that the node has to reject.
pub(super) fn rejected_volumes() -> Vec<RejectedVolume> {
    let server = ADDRESSES[0];
    let rows: [(&'static str, NetworkVolume, Code, &[&str]); 14] = [
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
    rows.into_iter()
        .map(|(what, volume, code, texts)| RejectedVolume::new(what, volume, code, texts))
        .collect()
}

/// Checks that the node rejects volumes, and the volumes of servers that do not speak NFS.
pub(super) async fn reject(node: &MachineNode<'_>) -> Result<()> {
    node.ensure_all_rejected(&rejected_volumes(), async || Ok(())).await?;
    for (answer, text) in [("sleep 600", "no response within"), ("yes", "not one of RPC"), ("true", "reset")]
    {
        node.machine
            .shell(&format!("nc -ll -p 2049 -e {answer} </dev/null >/dev/null 2>&1 & echo $! > /run/nc"))
            .await?;
        let mute = volume("mute", "10.1.0.1", "one", "4.2");
        let neighbour = volume("beside-mute", ADDRESSES[0], "one", "4.2");
        node.make_directories(&neighbour).await?;
        let texts = ["10.1.0.1", text];
        let mut rejected = pin!(node.ensure_rejected(&mute, Code::Internal, &texts));
        let mut staged = pin!(node.stage(&neighbour));
        tokio::select! {
            result = &mut staged => {
                result?;
                rejected.await
            }
            result = &mut rejected => {
                ensure!(answer != "sleep 600", "a neighbour was staged after a server without a response was rejected");
                staged.await?;
                result
            }
        }
        .with_context(|| format!("a server that answers by {answer:?}"))?;
        node.unstage(&neighbour).await?;
        node.machine.shell("kill $(cat /run/nc); killall -q sleep yes || true").await?;
    }
    for address in ["FD00:1:0:0::2", "fd00:0001::0:2", "::ffff:10.1.0.2"] {
        let volume = volume("spelling", address, "one", "4.2");
        node.attach(&volume).await.with_context(|| format!("the address {address}"))?;
        node.detach(&volume).await?;
    }
    node.ensure_nothing_left("spelling").await
}

/// The role is killed during calls.
pub(super) async fn crash(run: &SuiteRun, node: &MachineNode<'_>, rng: &mut fastrand::Rng) -> Result<()> {
    let volume = &volume("crashing-nfs", ADDRESSES[0], "two", "4.2");
    CrashTest { node, volume, reset: async || ensure_unmounted(node).await }.run(run, rng).await
}

/// Checks that the node has mounted no export.
async fn ensure_unmounted(node: &MachineNode<'_>) -> Result<()> {
    let mounted = node.machine.shell("grep -E ' nfs4? ' /proc/mounts || true").await?;
    ensure!(mounted.is_empty(), "mounted: {mounted}");
    Ok(())
}

/// Volumes for a node that loses its power.
pub(super) fn lost_volumes() -> LostVolumes {
    LostVolumes {
        kept: volume("kept-nfs", ADDRESSES[0], "one", "4.2"),
        removed: volume("unused-nfs", ADDRESSES[1], "two", "3"),
    }
}

/// Volumes of the server with this address, for an outage.
pub(super) fn server_volumes(address: &str) -> ServerVolumes {
    ServerVolumes {
        kind: "nfs",
        written: volume("written-nfs", address, "away", "4.2"),
        mount_by_hand: format!(
            "mkdir -p /run/by-hand-nfs; mount -t nfs -o vers=4.2,nosharecache {address}:/srv/exports/two /run/by-hand-nfs"
        ),
        unmount_by_hand: "umount /run/by-hand-nfs".to_owned(),
    }
}

/// Volumes during an outage of the server with the address [`AWAY`].
pub(super) fn outage_volumes() -> OutageVolumes {
    OutageVolumes {
        removed: volume("removed-nfs", AWAY, "removed", "4.2"),
        unreachable: (
            volume("new-nfs", AWAY, "one", "4.2"),
            [AWAY, "does not respond"].map(str::to_owned).to_vec(),
        ),
        neighbour: volume("neighbour-nfs", ADDRESSES[0], "one", "4.2"),
    }
}
