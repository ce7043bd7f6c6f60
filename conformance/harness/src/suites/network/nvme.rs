//! Kind `nvme-tcp`, with the kernel's target on another machine.

use std::ops::RangeInclusive;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tonic::Code;

use super::{
    ADDRESSES, AWAY,
    crashes::CrashTest,
    node::{MachineNode, NODE, NetworkVolume, RejectedVolume},
    node_loss::LostVolumes,
    outage::{OutageVolumes, ServerVolumes},
};
use crate::{machine::Machine, run::SuiteRun};

/// A target. Linux does not connect two targets that have a subsystem of the same name.
#[derive(Clone, Copy)]
pub(super) struct Target {
    /// The number that its names contain.
    number: u8,
    addresses: [&'static str; 2],
}

/// The target of most tests.
pub(super) const TARGET: Target = Target { number: 2, addresses: ADDRESSES };
/// The target that goes away.
pub(super) const AWAY_TARGET: Target = Target { number: 3, addresses: [AWAY, "fd00:1::3"] };

impl Target {
    /// The subsystem of the tests' namespaces, which only the node's host NQN may use.
    fn subsystem(self) -> String {
        format!("nqn.2024-01.com.example:volumes-{}", self.number)
    }

    /// A subsystem that any host may use.
    fn open_subsystem(self) -> String {
        format!("nqn.2024-01.com.example:open-{}", self.number)
    }

    /// A subsystem that no host may use.
    fn masked_subsystem(self) -> String {
        format!("nqn.2024-01.com.example:masked-{}", self.number)
    }

    /// The UUID of a namespace.
    fn uuid(self, namespace: u8) -> String {
        format!("00000000-0000-4000-800{}-0000000000{namespace:02}", self.number)
    }

    /// The NGUID of a namespace.
    fn nguid(self, namespace: u8) -> String {
        format!("1000000000004000800{}00000000{namespace:04}", self.number)
    }

    /// A volume by its UUID and the target's IPv4 address.
    fn volume(self, name: &str, namespace: u8) -> NetworkVolume {
        volume(name, &self.subsystem(), self.addresses[0], ("uuid", &self.uuid(namespace)))
    }
}

/// Numbers of the namespaces of [`Target::subsystem`].
const NAMESPACES: RangeInclusive<u8> = 1..=6;
/// Number of a namespace of [`Target::open_subsystem`].
const OPEN_NAMESPACE: u8 = 8;
/// Number of another one, which has the identifiers of the last namespace of [`NAMESPACES`].
const TWIN: u8 = 7;
/// Size of a namespace in MiB before its growth. xfs needs 300.
const MEBIBYTES: u32 = 320;

/// The policy of the node.
pub(super) const POLICY: &str = r#"
[[node.nvme-tcp]]
networks = ["10.1.0.0/24", "fd00:1::/64"]
subsystems = ["nqn.2024-01.com.example:*"]
"#;

/// Starts the target. Namespaces are files of the disk of the NFS server.
pub(super) async fn start_server(server: &Machine, target: Target) -> Result<()> {
    let (subsystem, open, masked) = (target.subsystem(), target.open_subsystem(), target.masked_subsystem());
    let mut script = format!(
        "modprobe nvmet_tcp; mount -t configfs configfs /sys/kernel/config; mkdir -p /disk/nvme
         cd /sys/kernel/config/nvmet
         mkdir hosts/{host} subsystems/{subsystem} subsystems/{open} subsystems/{masked}
         ln -s $PWD/hosts/{host} subsystems/{subsystem}/allowed_hosts/{host}
         echo 1 > subsystems/{open}/attr_allow_any_host\n",
        host = host_nqn()
    );
    let open_namespaces = [OPEN_NAMESPACE, TWIN].map(|number| (&open, number));
    for (subsystem, number) in NAMESPACES.map(|number| (&subsystem, number)).chain(open_namespaces) {
        let identifier = if number == TWIN { *NAMESPACES.end() } else { number };
        script += &format!(
            "test -e /disk/nvme/{number} || truncate -s {MEBIBYTES}M /disk/nvme/{number}
             mkdir subsystems/{subsystem}/namespaces/{number}
             echo -n /disk/nvme/{number} > subsystems/{subsystem}/namespaces/{number}/device_path
             echo {} > subsystems/{subsystem}/namespaces/{number}/device_uuid
             echo {} > subsystems/{subsystem}/namespaces/{number}/device_nguid
             echo 1 > subsystems/{subsystem}/namespaces/{number}/enable\n",
            target.uuid(identifier),
            target.nguid(identifier)
        );
    }
    for (number, (family, address)) in ["ipv4", "ipv6"].into_iter().zip(target.addresses).enumerate() {
        script += &format!(
            "mkdir ports/{number}
             echo tcp > ports/{number}/addr_trtype; echo {family} > ports/{number}/addr_adrfam
             echo {address} > ports/{number}/addr_traddr; echo 4420 > ports/{number}/addr_trsvcid
             for name in {subsystem} {open} {masked}; do
               ln -s $PWD/subsystems/$name ports/{number}/subsystems/$name
             done\n"
        );
    }
    server.shell(&script).await.context("start the NVMe target").map(drop)
}

fn host_nqn() -> String {
    format!("nqn.2026-11.dev.cofferdam:{NODE}")
}

fn volume(name: &str, nqn: &str, portals: &str, (key, value): (&str, &str)) -> NetworkVolume {
    let mut fields = json!({ "portals": portals, "nqn": nqn });
    if let Some(fields) = fields.as_object_mut() {
        fields.insert(key.to_owned(), Value::from(value));
    }
    NetworkVolume::new(name, "nvme-tcp", fields)
}

/// Checks that the node has no connection with its own host NQN to [`TARGET`].
pub(super) async fn ensure_disconnected(node: &MachineNode<'_>) -> Result<()> {
    let [v4, v6] = TARGET.addresses;
    let script = format!(
        "for file in $(grep -l -x {} /sys/class/nvme/*/hostnqn 2>/dev/null); do
           grep -E 'traddr=({v4}|{v6}),' $(dirname $file)/address || true
         done",
        host_nqn()
    );
    let left = node.machine.shell(&script).await?;
    ensure!(left.is_empty(), "connected: {left}");
    Ok(())
}

/// Volumes with a filesystem and a raw one.
pub(super) fn pod_volumes() -> [NetworkVolume; 2] {
    [TARGET.volume("pod-nvme", 1).mounted("ext4", &["noatime"]), TARGET.volume("pod-raw", 3).raw()]
}

/// Volumes with each filesystem and a raw one carry data, grow while they are used, and share a connection.
pub(super) async fn carry_data(node: &MachineNode<'_>, server: &Machine) -> Result<()> {
    let v6 = format!("[{}]:4420", ADDRESSES[1]);
    let ext4 = TARGET.volume("nvme-ext4", 1).mounted("ext4", &["noatime"]);
    let xfs = volume("nvme-xfs", &TARGET.subsystem(), &v6, ("nguid", &TARGET.nguid(2))).mounted("xfs", &[]);
    let raw = TARGET.volume("nvme-raw", 3).raw();
    for volume in [&ext4, &xfs, &raw] {
        node.attach(volume).await?;
    }
    for volume in [&ext4, &xfs] {
        let target = volume.target_path();
        node.machine.shell(&format!("echo data > {target}/data; sync {target}/data")).await?;
    }
    node.machine.shell(&format!("echo data | dd of={} conv=fsync 2>/dev/null", raw.target_path())).await?;
    ensure!(server.shell("head -c 4 /disk/nvme/3").await? == "data", "the raw volume has other data");

    for (volume, number) in [(&ext4, 1), (&xfs, 2), (&raw, 3)] {
        grow(node, server, volume, number).await.with_context(|| format!("grow {}", volume.name))?;
    }
    node.detach(&ext4).await?;
    for (volume, number) in [(&ext4, 1), (&xfs, 2)] {
        // The disk of a volume that is staged again is not formatted.
        if number == 1 {
            node.attach(volume).await?;
        }
        let data = node.machine.shell(&format!("cat {}/data", volume.target_path())).await?;
        ensure!(data == "data", "{} has other data: {data}", volume.name);
        node.detach(volume).await?;
        node.ensure_nothing_left(&volume.name).await?;
    }
    node.detach(&raw).await?;
    node.ensure_nothing_left(&raw.name).await?;
    ensure_disconnected(node).await
}

/// Doubles a namespace and then its published volume.
async fn grow(node: &MachineNode<'_>, server: &Machine, volume: &NetworkVolume, number: u8) -> Result<()> {
    let bytes = i64::from(2 * MEBIBYTES) << 20;
    server
        .shell(&format!(
            "truncate -s {bytes} /disk/nvme/{number}
             echo 1 > /sys/kernel/config/nvmet/subsystems/{}/namespaces/{number}/revalidate_size",
            TARGET.subsystem()
        ))
        .await?;
    let size = node.expand(volume, bytes).await?;
    ensure!(size >= bytes, "the volume has {size} bytes: expected {bytes}");
    let target = volume.target_path();
    let kibibytes = format!(
        "if [ -b {target} ]; then blockdev --getsize64 {target}; else df -k {target} | awk 'END {{ print $2 * 1024 }}'; fi"
    );
    let seen: i64 = node.machine.shell(&kibibytes).await?.parse()?;
    // A filesystem keeps a part for itself.
    ensure!(seen > bytes / 10 * 8, "the pod sees {seen} bytes: expected {bytes}");
    Ok(())
}

/// What is wrong, subsystem, portals, UUID, code, texts of the error.
type RejectedNamespace<'a> = (&'static str, &'a str, &'a str, &'a str, Code, &'a [&'a str]);

/// Volumes that the node has to reject.
pub(super) fn rejected_volumes() -> Vec<RejectedVolume> {
    let (known, missing) = (&TARGET.uuid(4), &TARGET.uuid(99));
    let [address, _] = TARGET.addresses;
    let (nqn, masked) = (TARGET.subsystem(), TARGET.masked_subsystem());
    let unknown = "nqn.2024-01.com.example:none";
    let denied = "nqn.2024-02.com.example:volumes";
    let with_options = format!("{nqn},hostnqn=x");
    let rows: [RejectedNamespace<'_>; 11] = [
        ("unknown subsystem", unknown, address, known, Code::Internal, &[unknown]),
        ("masked", &masked, address, known, Code::Internal, &[&masked, "allowed"]),
        ("no namespace", &nqn, address, missing, Code::FailedPrecondition, &[missing, &nqn]),
        ("another subsystem", denied, address, known, Code::PermissionDenied, &[denied]),
        ("another network", &nqn, "10.2.0.2", known, Code::PermissionDenied, &["10.2.0.2"]),
        ("the same as IPv6", &nqn, "[::ffff:10.2.0.2]", known, Code::PermissionDenied, &["10.2.0.2"]),
        ("one portal of two", &nqn, "10.1.0.2,10.2.0.2", known, Code::PermissionDenied, &["10.2.0.2"]),
        ("another port", &nqn, "10.1.0.2:22", known, Code::PermissionDenied, &["22"]),
        ("options in the NQN", &with_options, address, known, Code::InvalidArgument, &["nqn"]),
        ("no server", &nqn, "10.1.0.9", known, Code::Internal, &["10.1.0.9"]),
        ("no listener", &nqn, "10.1.0.1", known, Code::Internal, &["10.1.0.1", "refused"]),
    ];
    let numbered = rows.into_iter().enumerate();
    numbered
        .map(|(number, (what, nqn, portals, identifier, code, texts))| {
            let volume = volume(&format!("rejected-nvme-{number}"), nqn, portals, ("uuid", identifier));
            RejectedVolume::new(what, volume, code, texts)
        })
        .collect()
}

/// Checks that the node rejects volumes, and that of a server that accepts connections and is silent.
pub(super) async fn reject(node: &MachineNode<'_>) -> Result<()> {
    node.ensure_all_rejected(&rejected_volumes(), async || ensure_disconnected(node).await).await?;
    node.machine
        .shell("nc -ll -p 4420 -e tail -f /dev/null </dev/null >/dev/null 2>&1 & echo $! > /run/nc-nvme")
        .await?;
    let silent = volume("silent-nvme", &TARGET.subsystem(), "10.1.0.1", ("uuid", &TARGET.uuid(4)));
    node.ensure_rejected(&silent, Code::Internal, &["10.1.0.1", "no response within"]).await?;
    node.machine.shell("kill $(cat /run/nc-nvme)").await.map(drop)
}

/// Disks that the node has to reject: one of two with the same identifier, one with a filesystem of another kind, and
/// one with content that is no filesystem.
pub(super) async fn reject_disks(node: &MachineNode<'_>, server: &Machine) -> Result<()> {
    write_other_content(server).await?;
    let by_hand = server_volumes(TARGET);
    node.machine.shell(&by_hand.mount_by_hand).await?;
    node.ensure_all_rejected(&rejected_disks(), async || ensure_disconnected(node).await).await?;
    node.machine.shell(&by_hand.unmount_by_hand).await?;
    ensure_other_content(server).await
}

/// Volumes whose disks the node has to reject after [`write_other_content`], while the other subsystem is connected
/// by hand.
pub(super) fn rejected_disks() -> Vec<RejectedVolume> {
    let twin = *NAMESPACES.end();
    let uuid = TARGET.uuid(twin);
    [
        ("one of two disks", "twin", twin, uuid.as_str()),
        ("another filesystem", "other-filesystem", 4, "xfs"),
        ("other content", "other-content", 5, "blank"),
    ]
    .into_iter()
    .map(|(what, name, namespace, text)| {
        let volume = TARGET.volume(name, namespace).mounted("ext4", &[]);
        RejectedVolume::new(what, volume, Code::FailedPrecondition, &[text])
    })
    .collect()
}

/// Writes another filesystem to a disk, and other content to another one.
pub(super) async fn write_other_content(server: &Machine) -> Result<()> {
    let script = "mkfs.xfs -q -f /disk/nvme/4
                  echo text | dd of=/disk/nvme/5 conv=notrunc bs=1M seek=1 2>/dev/null";
    server.shell(script).await.map(drop)
}

/// Checks that the disks have the content of [`write_other_content`].
pub(super) async fn ensure_other_content(server: &Machine) -> Result<()> {
    let script = "blkid -o value -s TYPE /disk/nvme/4
                  dd if=/disk/nvme/5 bs=1M skip=1 count=1 2>/dev/null | head -c 4";
    let content = server.shell(script).await?;
    ensure!(content == "xfs\ntext", "a disk was formatted: {content:?}");
    Ok(())
}

/// The role is killed during calls. Each life of the volume begins with a blank disk.
pub(super) async fn crash(
    run: &SuiteRun,
    node: &MachineNode<'_>,
    server: &Machine,
    rng: &mut fastrand::Rng,
) -> Result<()> {
    let volume = &TARGET.volume("crashing-nvme", 3).mounted("ext4", &[]);
    let blank = format!(
        "truncate -s 0 /disk/nvme/3; truncate -s {MEBIBYTES}M /disk/nvme/3
         echo 1 > /sys/kernel/config/nvmet/subsystems/{}/namespaces/3/revalidate_size",
        TARGET.subsystem()
    );
    server.shell(&blank).await?;
    let reset = async || {
        ensure_disconnected(node).await?;
        server.shell(&blank).await.map(drop)
    };
    CrashTest { node, volume, reset }.run(run, rng).await
}

/// A raw volume of [`TARGET`].
pub(super) fn fenced_volume() -> NetworkVolume {
    TARGET.volume("fenced-nvme", 3).raw()
}

/// The file of [`fenced_volume`] on the server.
pub(super) const FENCED_FILE: &str = "/disk/nvme/3";

/// A script of the server that removes the node's host from the allowed ones of [`TARGET`].
pub(super) fn disallow_host() -> String {
    format!("rm /sys/kernel/config/nvmet/subsystems/{}/allowed_hosts/{}", TARGET.subsystem(), host_nqn())
}

/// A script of the server that undoes [`disallow_host`].
pub(super) fn allow_host() -> String {
    format!(
        "cd /sys/kernel/config/nvmet; ln -s $PWD/hosts/{host} subsystems/{}/allowed_hosts/{host}",
        TARGET.subsystem(),
        host = host_nqn()
    )
}

/// A script of the server that ends all connections to the subsystem of [`TARGET`]; hosts can connect again.
pub(super) fn end_connections() -> String {
    format!(
        "cd /sys/kernel/config/nvmet
         for port in ports/*; do
           rm $port/subsystems/{subsystem}; ln -s $PWD/subsystems/{subsystem} $port/subsystems/{subsystem}
         done",
        subsystem = TARGET.subsystem()
    )
}

/// Volumes for a node that loses its power.
pub(super) fn lost_volumes() -> LostVolumes {
    LostVolumes {
        kept: TARGET.volume("kept-nvme", 1).mounted("ext4", &[]),
        removed: TARGET.volume("unused-nvme", 2).mounted("xfs", &[]),
    }
}

/// Volumes of a target, for an outage.
pub(super) fn server_volumes(target: Target) -> ServerVolumes {
    // As nvme-cli connects, with the node's own times of reconnection, and as the in-tree code of Kubernetes mounts.
    let mount = format!(
        "echo transport=tcp,traddr={address},trsvcid=4420,nqn={open},hostnqn=nqn.2024-01.com.example:hand,\
         reconnect_delay=2,ctrl_loss_tmo=600 > /dev/nvme-fabrics
         while ! file=$(grep -l -x {uuid} /sys/block/nvme*/uuid | grep -v 'nvme[0-9]*c'); do usleep 50000; done
         disk=/dev/$(basename $(dirname $file)); mkdir -p /run/by-hand-nvme-tcp
         if blkid $disk >/dev/null; then e2fsck -p $disk >/dev/null; else mkfs.ext4 -q $disk; fi
         mount $disk /run/by-hand-nvme-tcp",
        address = target.addresses[0],
        open = target.open_subsystem(),
        uuid = target.uuid(OPEN_NAMESPACE)
    );
    let unmount = format!(
        "umount /run/by-hand-nvme-tcp
         for file in $(grep -l -x {} /sys/class/nvme/*/subsysnqn); do
           echo 1 > $(dirname $file)/delete_controller
         done",
        target.open_subsystem()
    );
    ServerVolumes {
        kind: "nvme-tcp",
        written: target.volume("written-nvme", 1).mounted("ext4", &[]),
        mount_by_hand: mount,
        unmount_by_hand: unmount,
    }
}

/// Volumes during an outage of [`AWAY_TARGET`].
pub(super) fn outage_volumes() -> OutageVolumes {
    let [address, _] = AWAY_TARGET.addresses;
    let identifier = AWAY_TARGET.uuid(OPEN_NAMESPACE);
    let new = volume("new-nvme", &AWAY_TARGET.masked_subsystem(), address, ("uuid", &identifier));
    OutageVolumes {
        removed: AWAY_TARGET.volume("removed-nvme", 2).mounted("ext4", &[]),
        unreachable: (new, [AWAY, "respond"].map(str::to_owned).to_vec()),
        neighbour: TARGET.volume("neighbour-nvme", 1).mounted("ext4", &[]),
    }
}
