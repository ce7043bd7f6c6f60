//! Volumes of a network in pods. kubelet and the role `node` run in a machine, the servers in another one, and the
//! control plane on this machine.
//!
//! The volumes are PersistentVolumes that an administrator has made: their attributes are the connection info, so no
//! role of a controller takes part.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::{
    core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSIDriver, CSINode},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    DISK_BYTES, disk, nfs,
    node::{self, MachineNode, NODE, NetworkVolume, RejectedVolume},
    nvme, policy, start_server,
};
use crate::{
    backend::BackendFixture,
    control_plane::{ControlPlane, ControlPlaneOptions},
    machine::{Machine, MachineKubelet, MachineNetwork, MachineSystem},
    node::ensure_registered,
    pod::{self, MOUNT_PATH},
    run::SuiteRun,
    wait::until,
};

/// Time limit of a wait. A pod takes ten seconds in a machine, and kubelet starts them one after another.
const TIMEOUT: Duration = Duration::from_secs(240);
const NAMESPACE: &str = "default";
/// Rejected volumes whose errors are looked for in kubelet's events: one of each class. The suite `network` has all; a
/// pod takes seconds in a machine.
const REPORTED: [(&str, &str); 9] = [
    ("nfs", "a file"),
    ("nfs", "no server"),
    ("nfs", "another network, as IPv6"),
    ("nfs", "a parent"),
    ("nfs", "an address as option"),
    ("nvme-tcp", "masked"),
    ("nvme-tcp", "another network"),
    ("nvme-tcp", "one of two disks"),
    ("nvme-tcp", "another filesystem"),
];

pub(in crate::suites) async fn run(run: &SuiteRun) -> Result<()> {
    let system = MachineSystem::prepare_with(run, &MachineKubelet::programs(run)?).await?;
    let network = MachineNetwork::new(run)?;
    let [node_disk, server_disk] =
        [disk(run, "node", DISK_BYTES)?, disk(run, "server", DISK_BYTES)?].map(|disk| [disk]);
    MachineKubelet::write_disk(run, &node_disk[0], &[]).await?;
    let options = ControlPlaneOptions {
        controllers: Some("*".to_owned()),
        serves_pods: true,
        ..ControlPlaneOptions::default()
    };
    let start_node = async {
        let machine = Machine::start(run, &system, "node", network, 1, &node_disk).await?;
        machine.shell("modprobe nvme_tcp").await?;
        anyhow::Ok(machine)
    };
    let start_server = async {
        let server = Machine::start(run, &system, "server", network, 2, &server_disk).await?;
        start_server(&server, nvme::TARGET).await?;
        anyhow::Ok(server)
    };
    let (plane, machine, server) =
        tokio::try_join!(ControlPlane::start(run, options), start_node, start_server)?;
    let kubelet = MachineKubelet::start(run, &plane, &machine, NODE, node::ROOT).await?;
    let driver = BackendFixture::with_connection_info(run, NODE, "nfs", nfs::SANITY_FIELDS)?;
    let manifest = driver.write_manifest(run).await?;
    let driver = withdraw_publishing(&manifest)?;
    let roles = MachineNode::start(run, &machine, &manifest, &policy()).await?;
    let cluster = Cluster { client: plane.client().clone(), driver };
    cluster.create_driver().await?;

    let volumes: Vec<NetworkVolume> = nfs::pod_volumes().into_iter().chain(nvme::pod_volumes()).collect();
    try_join_all(volumes.iter().map(|volume| cluster.carry_data(volume))).await?;
    nvme::write_other_content(&server).await?;
    // Linux drops the disk that it sees later of two with one identifier.
    until("the subsystem is disconnected", TIMEOUT, async || nvme::ensure_disconnected(&roles).await).await?;
    let by_hand = nvme::server_volumes(nvme::TARGET);
    machine.shell(&by_hand.mount_by_hand).await?;
    let rejected: Vec<RejectedVolume> =
        [nfs::rejected_volumes(), nvme::rejected_volumes(), nvme::rejected_disks()]
            .into_iter()
            .flatten()
            .filter(|one| REPORTED.contains(&(one.volume.kind(), one.what)))
            .collect();
    ensure!(rejected.len() == REPORTED.len(), "{} rejected volumes of {REPORTED:?}", rejected.len());
    cluster.report_errors(&rejected).await?;
    machine.shell(&by_hand.unmount_by_hand).await?;
    kubelet.wait_without_pods(TIMEOUT).await?;
    nvme::ensure_other_content(&server).await?;
    for name in volumes.iter().chain(rejected.iter().map(|one| &one.volume)).map(|volume| &volume.name) {
        // kubelet does not wait for a call of a deleted pod's volume: a call to an unreachable server takes seconds.
        until("nothing of the volume is left", TIMEOUT, async || roles.ensure_nothing_left(name).await)
            .await?;
    }
    nvme::ensure_disconnected(&roles).await?;
    run.add_note(&format!(
        "data of {} volumes in pods; {} rejected volumes in kubelet's events",
        volumes.len(),
        rejected.len()
    ))?;
    plane.stop().await
}

/// Removes the ability to publish from a manifest, so that volumes have their connection info in their attributes.
/// Returns the driver's name.
fn withdraw_publishing(manifest: &Path) -> Result<String> {
    let mut object: Value = serde_json::from_slice(&fs::read(manifest)?)?;
    let abilities = object.get_mut("abilities").and_then(Value::as_array_mut).context("no abilities")?;
    abilities.retain(|ability| ability != "publishing");
    fs::write(manifest, object.to_string())?;
    let name = object.get("driver").and_then(Value::as_str).context("a manifest without a driver")?;
    Ok(name.to_owned())
}

/// Returns a description of the expected error, unless a warning of the pod has its code and texts.
fn missing_error(rejected: &RejectedVolume, warnings: &[(String, String)]) -> Option<String> {
    let RejectedVolume { what, volume, code, texts } = rejected;
    let code = format!("code = {code:?} ");
    let of_pod = warnings.iter().filter(|(pod, _)| *pod == volume.name);
    let messages: Vec<&String> = of_pod.map(|(_, message)| message).collect();
    let has_error =
        |message: &&String| message.contains(&code) && texts.iter().all(|text| message.contains(text));
    (!messages.iter().any(has_error))
        .then(|| format!("{what}: expected {code:?} with {texts:?}, the events are {messages:?}"))
}

/// The cluster of the suite.
struct Cluster {
    client: Client,
    /// The driver's name.
    driver: String,
}

impl Cluster {
    /// Creates the CSIDriver, and waits until kubelet has registered the driver.
    async fn create_driver(&self) -> Result<()> {
        let object = json!({ "metadata": { "name": self.driver }, "spec": { "attachRequired": false } });
        self.create::<CSIDriver>(Api::all(self.client.clone()), object).await?;
        until("kubelet has registered the driver", TIMEOUT, async || {
            Api::<CSINode>::all(self.client.clone()).get(NODE).await?;
            ensure_registered(&self.client, NODE, &self.driver).await
        })
        .await
    }

    /// A pod writes to a volume, and after its end another one reads.
    async fn carry_data(&self, volume: &NetworkVolume) -> Result<()> {
        self.create_claim(volume).await?;
        let is_raw = volume.is_raw();
        let (write, read) = if is_raw {
            (
                format!("echo data | dd of={MOUNT_PATH} conv=fsync"),
                format!("head -c 4 {MOUNT_PATH} | grep -x data"),
            )
        } else {
            (format!("echo data > {MOUNT_PATH}/file; sync"), format!("grep -x data {MOUNT_PATH}/file"))
        };
        for (name, script) in [("write", write), ("read", read)] {
            let pod = &format!("{}-{name}", volume.name);
            self.create_pod(pod, volume, &script).await?;
            self.wait_succeeded(pod).await.with_context(|| pod.clone())?;
            self.delete_pods(&[pod]).await?;
        }
        self.delete_claim(volume).await
    }

    /// An event of the pod of every rejected volume has the code and the texts of the error.
    async fn report_errors(&self, rejected: &[RejectedVolume]) -> Result<()> {
        try_join_all(rejected.iter().map(async |one| {
            self.create_claim(&one.volume).await?;
            self.create_pod(&one.volume.name, &one.volume, "true").await
        }))
        .await?;
        until("every pod has an event with the error", TIMEOUT, async || {
            let warnings = self.warnings("").await?;
            let missing = rejected.iter().filter_map(|one| missing_error(one, &warnings));
            let missing: Vec<String> = missing.collect();
            ensure!(missing.is_empty(), "{}", missing.join("\n"));
            Ok(())
        })
        .await?;
        let names: Vec<&str> = rejected.iter().map(|one| one.volume.name.as_str()).collect();
        self.delete_pods(&names).await?;
        try_join_all(rejected.iter().map(|one| self.delete_claim(&one.volume))).await.map(drop)
    }

    /// The warnings of a pod, or of all pods if the name is empty: name of the pod and message.
    async fn warnings(&self, pod: &str) -> Result<Vec<(String, String)>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let selector = if pod.is_empty() {
            "involvedObject.kind=Pod,type=Warning".to_owned()
        } else {
            format!("involvedObject.kind=Pod,involvedObject.name={pod},type=Warning")
        };
        let events = events.list(&ListParams::default().fields(&selector)).await?.items.into_iter();
        let warning = |event: Event| Some((event.involved_object.name?, event.message?));
        Ok(events.filter_map(warning).collect())
    }

    /// Creates a PersistentVolume with this connection info, and a claim that is bound to it.
    async fn create_claim(&self, volume: &NetworkVolume) -> Result<()> {
        let name = &volume.name;
        let (fs_type, mount_options) = volume.filesystem();
        let mode = if volume.is_raw() { "Block" } else { "Filesystem" };
        let capacity = json!({ "storage": "320Mi" });
        let object = json!({
            "metadata": { "name": name },
            "spec": {
                "capacity": capacity,
                "accessModes": ["ReadWriteOnce"],
                "volumeMode": mode,
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "mountOptions": mount_options,
                "claimRef": { "namespace": NAMESPACE, "name": name },
                "csi": {
                    "driver": self.driver,
                    "volumeHandle": name,
                    "fsType": fs_type,
                    "volumeAttributes": volume.context(),
                },
            },
        });
        self.create::<PersistentVolume>(Api::all(self.client.clone()), object).await?;
        let object = json!({
            "metadata": { "name": name },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "volumeMode": mode,
                "storageClassName": "",
                "volumeName": name,
                "resources": { "requests": capacity },
            },
        });
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), NAMESPACE);
        self.create(claims.clone(), object).await?;
        // kubelet looks for a claim that is not bound after minutes only.
        until("the claim is Bound", TIMEOUT, async || {
            let phase = claims.get(name).await?.status.and_then(|status| status.phase).unwrap_or_default();
            ensure!(phase == "Bound", "it is {phase}");
            Ok(())
        })
        .await
    }

    async fn delete_claim(&self, volume: &NetworkVolume) -> Result<()> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), NAMESPACE);
        claims.delete(&volume.name, &DeleteParams::default()).await?;
        Api::<PersistentVolume>::all(self.client.clone())
            .delete(&volume.name, &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Creates a pod in the machine that runs a script with a volume.
    async fn create_pod(&self, name: &str, volume: &NetworkVolume, script: &str) -> Result<()> {
        let object = if volume.is_raw() {
            pod::with_device(name, &volume.name, script)
        } else {
            pod::with_claim(name, &volume.name, script)
        };
        // The cluster has no scheduler.
        let object = pod::on_machine(object, ("nodeName", json!(NODE)));
        self.create::<Pod>(self.pods(), object).await
    }

    async fn wait_succeeded(&self, name: &str) -> Result<()> {
        until("the pod has succeeded", TIMEOUT, async || {
            let status = self.pods().get(name).await?.status.context("no status")?;
            let phase = status.phase.unwrap_or_default();
            ensure!(phase == "Succeeded", "it is {phase}: {:?}", self.warnings(name).await?);
            Ok(())
        })
        .await
    }

    /// Deletes pods, and waits until they are gone.
    async fn delete_pods(&self, names: &[&str]) -> Result<()> {
        for name in names {
            self.pods().delete(name, &DeleteParams::default()).await?;
        }
        until("the pods are gone", TIMEOUT, async || {
            let pods = self.pods().list(&ListParams::default()).await?.items.into_iter();
            let left: Vec<String> = pods
                .filter_map(|pod| pod.metadata.name)
                .filter(|name| names.contains(&name.as_str()))
                .collect();
            ensure!(left.is_empty(), "{left:?} exist");
            Ok(())
        })
        .await
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn create<K>(&self, api: Api<K>, object: Value) -> Result<()>
    where
        K: Clone + std::fmt::Debug + DeserializeOwned + Resource + Serialize,
    {
        api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }
}
