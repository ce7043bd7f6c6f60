//! The driver's volumes on a machine with Debian's kernel, whose RBD client maps them: csi-sanity, growth, a
//! forged volume, crashes of the role `node`, an outage and a restart of the cluster, and a node that loses its power.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use cofferdam_csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest,
    controller_client::ControllerClient,
};
use serde_json::Value;
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};

use super::{NAME, NODE_USER};
use crate::{
    backend::{inspect_component, start_and_wait},
    ceph::CephCluster,
    machine::{Machine, MachineNetwork, MachineSystem},
    process::{CommandSpec, ManagedProcess},
    run::SuiteRun,
    seeded_rng::seeded_rng,
    suites::{
        csi_sanity::SanityCounts,
        network::{
            self,
            crashes::CrashTest,
            local_disk,
            node::{MachineNode, NODE, NetworkVolume},
            node_loss::{self, LostVolumes},
            outage::{self, OutageVolumes, ServerVolumes},
            sanity::{self, MachineSanity},
            speed,
        },
    },
};

/// Size of a volume in bytes before its growth. xfs needs 300 MiB.
const SIZE: i64 = 320 << 20;
/// The test of csi-sanity that fails: Ceph has no list of the nodes.
const UNKNOWN_NODE: &str = "should fail when the node does not exist";
const CONNECTION_INFO: &str = "cofferdam.dev/connection-info";

/// Runs everything with volumes that the driver creates.
pub(super) async fn use_volumes(run: &SuiteRun, cluster: &mut CephCluster, config: &Path) -> Result<()> {
    let system = MachineSystem::prepare(run).await?;
    let disks = network::node_disks(run)?;
    let mut machine = Machine::start(run, &system, "node", MachineNetwork::new(run)?, 1, &disks).await?;
    network::prepare_node(&machine, "rbd").await?;
    local_disk::name_disk(&machine).await?;
    let manifest = write_manifest(run, config).await?;
    let policy = policy(cluster)?;
    let node = MachineNode::start(run, &machine, &manifest, &policy).await?;
    let (mut csi_server, socket) = start_csi_server(run, config).await?;
    let (user, key) = (NODE_USER.trim_start_matches("client."), cluster.node_key().await?);
    let driver = Driver { socket: socket.clone(), secrets: [("userID", user), ("userKey", key.trim())] };

    for (fs_type, name) in [("ext4", "ext4"), ("xfs", "xfs"), ("", "raw")] {
        carry_data(&node, &driver, name, fs_type).await.with_context(|| name.to_owned())?;
    }
    reject(&node, &driver).await?;
    crash(run, &node, cluster, &driver).await?;

    let secrets = format!("NodeStageVolumeSecret:\n  userID: {user}\n  userKey: {}\n", key.trim());
    for (access_type, expected) in [
        ("mount", SanityCounts { passed: 78, failed: 1, skipped: 23 }),
        ("block", SanityCounts { passed: 78, failed: 1, skipped: 23 }),
    ] {
        let name = format!("rbd-{access_type}");
        let sanity = MachineSanity {
            name: &name,
            access_type,
            secrets: secrets.clone(),
            expected,
            failures: &[UNKNOWN_NODE],
        };
        sanity::run(run, &node, &socket, &sanity).await?;
        ensure_unmapped(&node).await?;
    }

    interrupt_and_restart(run, &node, cluster, &driver).await?;
    let lost = [LostVolumes {
        kept: driver.create("kept").await?.mounted("ext4", &[]),
        removed: driver.create("unused").await?.mounted("xfs", &[]),
    }];
    node_loss::prepare(&node, &lost).await?;
    drop(node);
    machine.lose_power().await?;
    machine.power_on().await?;
    network::prepare_node(&machine, "rbd").await?;
    let node = MachineNode::start(run, &machine, &manifest, &policy).await?;
    node_loss::recover(&node, &lost).await?;
    ensure_unmapped(&node).await?;
    for LostVolumes { kept, removed } in &lost {
        driver.delete(&kept.name).await?;
        driver.delete(&removed.name).await?;
    }
    let leaked = machine
        .shell(&format!(
            "grep -r -l -F {} /run /var/lib/kubelet /sys/bus/rbd/devices 2>/dev/null || true",
            key.trim()
        ))
        .await?;
    ensure!(leaked.is_empty(), "the key is in {leaked}");
    csi_server.stop().await
}

/// The section `[node]` of the roles' configuration.
fn policy(cluster: &CephCluster) -> Result<String> {
    let monitor = cluster.monitor();
    let (address, port) = monitor.rsplit_once(':').context("a monitor without a port")?;
    Ok(format!(
        "[node]\nconnection-kinds = [\"local-device\", \"rbd\"]\nfilesystems = [\"ext4\", \"xfs\"]\n{}\n\
         [[node.rbd]]\nnetworks = [\"{address}/32\"]\nports = [{port}]\ncluster-fsids = [\"{}\"]\n\
         pools = [\"rbd\", \"rbd-other\"]\n",
        local_disk::POLICY,
        cluster.fsid()
    ))
}

async fn write_manifest(run: &SuiteRun, config: &Path) -> Result<PathBuf> {
    let manifest = run.scratch().join("manifest.json");
    let text = inspect_component(run, &run.scratch().join("ceph.wasm"), config, NAME).await?;
    fs::write(&manifest, text)?;
    Ok(manifest)
}

async fn start_csi_server(run: &SuiteRun, config: &Path) -> Result<(ManagedProcess, PathBuf)> {
    let socket = run.scratch().join("controller.sock");
    let spec = CommandSpec::new("csi-server", run.program())
        .args(["run", "--role=csi-server"])
        .arg(format_args!("--config={}", config.display()))
        .arg(format_args!("--csi-socket={}", socket.display()));
    Ok((start_and_wait(run, spec, "/readyz").await?.0, socket))
}

/// The driver behind the role `csi-server`.
struct Driver<'a> {
    socket: PathBuf,
    /// Secrets of NodeStageVolume.
    secrets: [(&'a str, &'a str); 2],
}

impl Driver<'_> {
    async fn client(&self) -> Result<ControllerClient<Channel>> {
        let endpoint = Endpoint::from_shared(format!("unix:{}", self.socket.display()))?;
        Ok(ControllerClient::new(endpoint.connect().await?))
    }

    /// Creates a volume and publishes it to the node. The result has the connection info that the driver
    /// returned.
    async fn create(&self, name: &str) -> Result<NetworkVolume> {
        let mut client = self.client().await?;
        let capability = NetworkVolume::new("", "rbd", Value::Null).capability();
        let created = client
            .create_volume(CreateVolumeRequest {
                name: format!("pvc-{name}"),
                capacity_range: Some(CapacityRange { required_bytes: SIZE, limit_bytes: 0 }),
                volume_capabilities: vec![capability.clone()],
                ..CreateVolumeRequest::default()
            })
            .await?;
        let volume = created.into_inner().volume.context("a response without a volume")?;
        let published = client
            .controller_publish_volume(ControllerPublishVolumeRequest {
                volume_id: volume.volume_id.clone(),
                node_id: NODE.to_owned(),
                volume_capability: Some(capability),
                volume_context: volume.volume_context,
                ..ControllerPublishVolumeRequest::default()
            })
            .await?;
        let context = published.into_inner().publish_context;
        let info = context.get(CONNECTION_INFO).context("no connection info")?;
        let info: Value = serde_json::from_str(info)?;
        let fields = info.get("fields").context("connection info without fields")?.clone();
        Ok(NetworkVolume::new(volume.volume_id, "rbd", fields).with_secrets(&self.secrets))
    }

    /// Expands a volume to twice its size.
    async fn expand(&self, handle: &str) -> Result<()> {
        let request = ControllerExpandVolumeRequest {
            volume_id: handle.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: 2 * SIZE, limit_bytes: 0 }),
            ..ControllerExpandVolumeRequest::default()
        };
        self.client().await?.controller_expand_volume(request).await?;
        Ok(())
    }

    /// Unpublishes and deletes a volume.
    async fn delete(&self, handle: &str) -> Result<()> {
        let mut client = self.client().await?;
        let request = ControllerUnpublishVolumeRequest {
            volume_id: handle.to_owned(),
            node_id: NODE.to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        client.controller_unpublish_volume(request).await?;
        let request = DeleteVolumeRequest { volume_id: handle.to_owned(), ..DeleteVolumeRequest::default() };
        client.delete_volume(request).await?;
        Ok(())
    }
}

/// A volume carries data, grows while it is used, and has its data after it is staged again. `fs_type` is empty for
/// a raw volume.
async fn carry_data(node: &MachineNode<'_>, driver: &Driver<'_>, name: &str, fs_type: &str) -> Result<()> {
    let volume = driver.create(name).await?;
    let volume = if fs_type.is_empty() { volume.raw() } else { volume.mounted(fs_type, &[]) };
    let target = volume.target_path();
    let file = if fs_type.is_empty() { target.clone() } else { format!("{target}/data") };
    node.attach(&volume).await?;
    node.machine.shell(&format!("echo {name} | dd of={file} conv=fsync,notrunc 2>/dev/null")).await?;
    driver.expand(&volume.name).await?;
    let size = node.expand(&volume, 2 * SIZE).await?;
    ensure!(size == 2 * SIZE, "the volume has {size} bytes: expected {}", 2 * SIZE);
    node.detach(&volume).await?;
    ensure_unmapped(node).await?;
    node.attach(&volume).await?;
    let data = node.machine.shell(&format!("head -c {} {file}", name.len())).await?;
    ensure!(data == name, "the volume has other data: {data:?}");
    node.detach(&volume).await?;
    node.ensure_nothing_left(&volume.name).await?;
    ensure_unmapped(node).await?;
    driver.delete(&volume.name).await
}

/// Forged connection info, and secrets that Ceph rejects.
async fn reject(node: &MachineNode<'_>, driver: &Driver<'_>) -> Result<()> {
    let volume = driver.create("forged").await?;
    let forged = |field: &str, value: &str| {
        let mut fields = volume.fields().clone();
        if let Some(fields) = fields.as_object_mut() {
            fields.insert(field.to_owned(), Value::from(value));
        }
        NetworkVolume::new("forged", "rbd", fields).with_secrets(&driver.secrets)
    };
    let other = "00000000-0000-4000-8000-000000000000";
    let rows: [(&str, NetworkVolume, Code, &[&str]); 8] = [
        ("another monitor", forged("monitors", "10.99.0.2:6789"), Code::PermissionDenied, &["10.99.0.2"]),
        ("another cluster", forged("cluster-fsid", other), Code::PermissionDenied, &[other]),
        ("another pool", forged("pool", "other"), Code::PermissionDenied, &["other"]),
        ("options in the pool", forged("pool", "rbd name=admin"), Code::InvalidArgument, &["pool"]),
        ("a snapshot", forged("image", "image@snapshot"), Code::InvalidArgument, &["image"]),
        ("another image", forged("image", "missing"), Code::Internal, &["missing"]),
        (
            "another image of this name",
            forged("image-id", "10226b8b4567"),
            Code::FailedPrecondition,
            &["10226b8b4567"],
        ),
        (
            "another key",
            forged("pool", "rbd").with_secrets(&[
                ("userID", "cofferdam-node"),
                ("userKey", "AQAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAA=="),
            ]),
            Code::Internal,
            &["cofferdam-node"],
        ),
    ];
    let mut wrong = Vec::new();
    for (what, forged, code, texts) in rows {
        let checked = async {
            node.ensure_rejected(&forged, code, texts).await?;
            ensure_unmapped(node).await
        };
        if let Err(error) = checked.await {
            wrong.push(format!("{what}: {error:#}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    driver.delete(&volume.name).await
}

/// The role is killed during calls. Each life of the volume begins with a blank image.
async fn crash(
    run: &SuiteRun,
    node: &MachineNode<'_>,
    cluster: &CephCluster,
    driver: &Driver<'_>,
) -> Result<()> {
    let volume = &driver.create("crashing").await?.mounted("ext4", &[]);
    let size = format!("{SIZE}B");
    let reset = async || {
        ensure_unmapped(node).await?;
        for size in ["0", &size] {
            cluster.rbd(&["resize", "--no-progress", "--allow-shrink", "--size", size, &volume.name]).await?;
        }
        Ok(())
    };
    CrashTest { node, volume, reset }.run(run, &mut seeded_rng()?).await?;
    driver.delete(&volume.name).await
}

/// Compares the time of staging, and interrupts and restarts the cluster while pods write.
async fn interrupt_and_restart(
    run: &SuiteRun,
    node: &MachineNode<'_>,
    cluster: &mut CephCluster,
    driver: &Driver<'_>,
) -> Result<()> {
    let by_hand = driver.create("by-hand").await?;
    let volumes = [ServerVolumes {
        kind: "rbd",
        written: driver.create("written").await?.mounted("ext4", &[]),
        mount_by_hand: mount_by_hand(cluster, driver, &by_hand)?,
        unmount_by_hand: format!(
            "umount /run/by-hand-rbd\n{}\necho $id > /sys/bus/rbd/remove_single_major",
            find_mapping(&by_hand)?
        ),
    }];
    speed::compare(run, node, &volumes[0]).await?;
    let during = OutageVolumes {
        removed: driver.create("removed").await?.mounted("ext4", &[]),
        unreachable: (
            driver.create("unreachable").await?,
            vec![cluster.monitor(), "no response within".to_owned()],
        ),
        neighbour: local_disk::disk_volume("neighbour").mounted("ext4", &[]),
    };
    let set_available = async |is_available| cluster.set_available(is_available).await;
    let others = async || Ok(());
    outage::interrupt(run, node, set_available, &volumes, std::slice::from_ref(&during), others).await?;
    outage::restart(run, node, &volumes, async || cluster.restart_daemons().await).await?;
    ensure_unmapped(node).await?;
    cluster.wait_for_dashboard().await?;
    for volume in [&by_hand, &volumes[0].written, &during.removed, &during.unreachable.0] {
        driver.delete(&volume.name).await?;
    }
    Ok(())
}

/// A script that maps and mounts an image as an administrator does, in a connection of its own.
fn mount_by_hand(cluster: &CephCluster, driver: &Driver<'_>, volume: &NetworkVolume) -> Result<String> {
    let [(_, user), (_, key)] = driver.secrets;
    Ok(format!(
        "echo '{monitor} name={user},secret={key},noshare {pool} {image} -' > /sys/bus/rbd/add_single_major
         {find}
         disk=/dev/rbd$id; mkdir -p /run/by-hand-rbd
         if blkid $disk >/dev/null; then e2fsck -p $disk >/dev/null; else mkfs.ext4 -q $disk; fi
         mount $disk /run/by-hand-rbd",
        monitor = cluster.monitor(),
        pool = field(volume, "pool")?,
        image = field(volume, "image")?,
        find = find_mapping(volume)?
    ))
}

/// A script that sets `id` to the number of a mapped image.
fn find_mapping(volume: &NetworkVolume) -> Result<String> {
    let image = field(volume, "image")?;
    Ok(format!("id=$(basename $(dirname $(grep -l -x {image} /sys/bus/rbd/devices/*/name)))"))
}

/// A field of a volume's connection info.
fn field<'a>(volume: &'a NetworkVolume, name: &str) -> Result<&'a str> {
    volume.fields().get(name).and_then(Value::as_str).with_context(|| format!("no field {name}"))
}

/// Checks that no image is mapped.
async fn ensure_unmapped(node: &MachineNode<'_>) -> Result<()> {
    let mapped = node.machine.shell("ls /sys/bus/rbd/devices").await?;
    ensure!(mapped.is_empty(), "mapped: {mapped}");
    Ok(())
}
