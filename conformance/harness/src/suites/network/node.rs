//! The roles `node`, `registrar` and `liveness` in a machine, and calls to `node` as kubelet makes them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use cofferdam_csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetInfoRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    VolumeCapability,
    node_client::NodeClient,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::timeout};
use tonic::{
    Code, Response, Status,
    transport::{Channel, Endpoint},
};

use crate::{machine::Machine, run::SuiteRun, wait::until};

/// Time limit of a call. kubelet's is two minutes.
const CALL_TIMEOUT: Duration = Duration::from_secs(90);
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Directory of the roles' files in the machine.
const DIRECTORY: &str = "/etc/cofferdam";
/// kubelet's root in the machine.
pub(in crate::suites) const ROOT: &str = "/var/lib/kubelet";
/// The socket in the machine.
pub(in crate::suites) const SOCKET: &str = "/var/lib/kubelet/plugins/network/csi.sock";
/// Name of the machine's Node.
pub(in crate::suites) const NODE: &str = "machine";
/// Port of the roles' HTTP endpoint in the machine.
const HTTP_PORT: u16 = 9000;

/// The roles in a machine. They run until the machine ends.
pub(in crate::suites) struct MachineNode<'a> {
    pub(in crate::suites) machine: &'a Machine,
    /// The CSI socket on this machine.
    socket: PathBuf,
    forward: JoinHandle<()>,
}

impl Drop for MachineNode<'_> {
    fn drop(&mut self) {
        self.forward.abort();
    }
}

impl<'a> MachineNode<'a> {
    /// Starts the roles for the driver of a manifest, with a policy, which is the section `[node]` of their
    /// configuration, and waits until they respond.
    ///
    /// # Errors
    /// If they do not respond. The error contains the end of their log.
    pub(in crate::suites) async fn start(
        run: &SuiteRun,
        machine: &'a Machine,
        manifest: &Path,
        policy: &str,
    ) -> Result<Self> {
        machine
            .shell(&format!("mkdir -p {DIRECTORY} {ROOT}/plugins/network {ROOT}/plugins_registry"))
            .await?;
        machine.write(&format!("{DIRECTORY}/node.toml"), policy).await?;
        machine.write(&format!("{DIRECTORY}/manifest.json"), &std::fs::read_to_string(manifest)?).await?;
        let socket = run.scratch().join("machine-node.sock");
        if socket.exists() {
            std::fs::remove_file(&socket)?;
        }
        let forward = machine.forward(SOCKET.as_ref(), &socket)?;
        let node = Self { machine, socket, forward };
        node.restart().await?;
        Ok(node)
    }

    /// Starts the roles after they have died, and waits until they respond.
    ///
    /// # Errors
    /// If they do not respond. The error contains the end of their log.
    pub(in crate::suites) async fn restart(&self) -> Result<()> {
        let command = format!(
            "cofferdam run --role=node --role=registrar --role=liveness --log=cofferdam=debug,info --config={DIRECTORY}/node.toml \
             --manifest={DIRECTORY}/manifest.json --csi-endpoint={SOCKET} --node-name={NODE} \
             --kubelet-root={ROOT} --plugin-registration-path={ROOT}/plugins_registry \
             --http-endpoint=127.0.0.1:{HTTP_PORT}"
        );
        self.machine.start_program("node", &command).await?;
        let ready = until("the role node responds", READY_TIMEOUT, async || {
            self.is_running().await.map_err(|status| anyhow!("{status}"))
        });
        self.machine.with_log("node", ready).await
    }

    /// The health of the roles, as kubelet probes it.
    ///
    /// # Errors
    /// If they are not healthy.
    pub(in crate::suites) async fn check_health(&self) -> Result<()> {
        self.machine.shell(&format!("timeout 10 wget -q -O - http://127.0.0.1:{HTTP_PORT}/healthz")).await?;
        Ok(())
    }

    /// The machine's uptime in seconds.
    ///
    /// # Errors
    /// If the machine does not respond.
    pub(in crate::suites) async fn uptime(&self) -> Result<f64> {
        Ok(self.machine.shell("cut -d ' ' -f 1 /proc/uptime").await?.parse()?)
    }

    /// A call in a connection of its own.
    async fn call<R>(
        &self,
        call: impl AsyncFnOnce(&mut NodeClient<Channel>) -> Result<Response<R>, Status>,
    ) -> Result<R, Status> {
        let unavailable = |error: String| Status::unavailable(error);
        let endpoint = Endpoint::from_shared(format!("unix:{}", self.socket.display()))
            .map_err(|error| unavailable(error.to_string()))?;
        let answer = async {
            let channel = endpoint.connect().await.map_err(|error| unavailable(error.to_string()))?;
            call(&mut NodeClient::new(channel)).await
        };
        let late = |_| Status::deadline_exceeded(format!("no response within {CALL_TIMEOUT:?}"));
        timeout(CALL_TIMEOUT, answer).await.map_err(late)?.map(Response::into_inner)
    }

    /// Calls NodeGetInfo.
    pub(in crate::suites) async fn is_running(&self) -> Result<(), Status> {
        self.call(async |client| client.node_get_info(NodeGetInfoRequest {}).await).await.map(drop)
    }

    /// Creates the directories that kubelet creates before it stages and publishes a volume.
    pub(in crate::suites) async fn make_directories(&self, volume: &NetworkVolume) -> Result<()> {
        let (staging, target) = (volume.staging_path(), volume.target_path());
        self.machine.shell(&format!("mkdir -p {staging} $(dirname {target})")).await.map(drop)
    }

    /// Stages a volume.
    pub(in crate::suites) async fn stage(&self, volume: &NetworkVolume) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_id: volume.name.clone(),
            publish_context: volume.context(),
            staging_target_path: volume.staging_path(),
            volume_capability: Some(volume.capability()),
            secrets: volume.secrets.iter().cloned().collect(),
            ..NodeStageVolumeRequest::default()
        };
        self.call(async |client| client.node_stage_volume(request).await).await.map(drop)
    }

    /// Publishes a staged volume.
    pub(in crate::suites) async fn publish(&self, volume: &NetworkVolume) -> Result<(), Status> {
        let request = NodePublishVolumeRequest {
            volume_id: volume.name.clone(),
            publish_context: volume.context(),
            staging_target_path: volume.staging_path(),
            target_path: volume.target_path(),
            volume_capability: Some(volume.capability()),
            ..NodePublishVolumeRequest::default()
        };
        self.call(async |client| client.node_publish_volume(request).await).await.map(drop)
    }

    /// Unpublishes a volume.
    pub(in crate::suites) async fn unpublish(&self, volume: &NetworkVolume) -> Result<(), Status> {
        let request =
            NodeUnpublishVolumeRequest { volume_id: volume.name.clone(), target_path: volume.target_path() };
        self.call(async |client| client.node_unpublish_volume(request).await).await.map(drop)
    }

    /// Unstages a volume.
    pub(in crate::suites) async fn unstage(&self, volume: &NetworkVolume) -> Result<(), Status> {
        let request = NodeUnstageVolumeRequest {
            volume_id: volume.name.clone(),
            staging_target_path: volume.staging_path(),
        };
        self.call(async |client| client.node_unstage_volume(request).await).await.map(drop)
    }

    /// Expands a published volume to at least this size in bytes, and returns its size.
    pub(in crate::suites) async fn expand(&self, volume: &NetworkVolume, bytes: i64) -> Result<i64, Status> {
        let request = NodeExpandVolumeRequest {
            volume_id: volume.name.clone(),
            volume_path: volume.target_path(),
            staging_target_path: volume.staging_path(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            volume_capability: Some(volume.capability()),
            ..NodeExpandVolumeRequest::default()
        };
        let answer = self.call(async |client| client.node_expand_volume(request).await).await?;
        Ok(answer.capacity_bytes)
    }

    /// The statistics of a published volume: whether its condition is abnormal.
    pub(in crate::suites) async fn is_abnormal(&self, volume: &NetworkVolume) -> Result<bool, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.name.clone(),
            volume_path: volume.target_path(),
            staging_target_path: volume.staging_path(),
        };
        let answer = self.call(async |client| client.node_get_volume_stats(request).await).await?;
        Ok(answer.volume_condition.is_some_and(|condition| condition.abnormal))
    }

    /// Stages and publishes a volume.
    pub(in crate::suites) async fn attach(&self, volume: &NetworkVolume) -> Result<()> {
        self.make_directories(volume).await?;
        self.stage(volume).await.with_context(|| format!("stage {}", volume.name))?;
        self.publish(volume).await.with_context(|| format!("publish {}", volume.name))
    }

    /// Unpublishes and unstages a volume.
    pub(in crate::suites) async fn detach(&self, volume: &NetworkVolume) -> Result<()> {
        self.unpublish(volume).await.with_context(|| format!("unpublish {}", volume.name))?;
        self.unstage(volume).await.with_context(|| format!("unstage {}", volume.name))
    }

    /// Checks that staging fails with this code and a message that contains each of these texts, and that it
    /// leaves nothing behind.
    ///
    /// # Errors
    /// If it succeeds, fails otherwise, or leaves something behind.
    pub(in crate::suites) async fn ensure_rejected(
        &self,
        volume: &NetworkVolume,
        code: Code,
        texts: &[&str],
    ) -> Result<()> {
        let name = &volume.name;
        self.make_directories(volume).await?;
        let result = self.stage(volume).await;
        let Err(status) = result else { anyhow::bail!("{name} was staged: expected {code:?}") };
        let message = status.message();
        ensure!(
            status.code() == code && texts.iter().all(|text| message.contains(text)),
            "{name}: {:?}: {message}: expected {code:?} with {texts:?}",
            status.code()
        );
        self.ensure_nothing_left(name).await
    }

    /// Checks that each volume is rejected, and runs a further check after each.
    ///
    /// # Errors
    /// With a line for each volume for which a check fails.
    pub(in crate::suites) async fn ensure_all_rejected(
        &self,
        volumes: &[RejectedVolume],
        check: impl AsyncFn() -> Result<()>,
    ) -> Result<()> {
        let mut wrong = Vec::new();
        for RejectedVolume { what, volume, code, texts } in volumes {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let checked = async {
                self.ensure_rejected(volume, *code, &texts).await?;
                check().await
            };
            if let Err(error) = checked.await {
                wrong.push(format!("{what}: {error:#}"));
            }
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }

    /// Checks that nothing is mounted for a volume of this name, and that the role has no record of it.
    ///
    /// # Errors
    /// If something is left.
    pub(in crate::suites) async fn ensure_nothing_left(&self, name: &str) -> Result<()> {
        let left = self
            .machine
            .shell(&format!(
                "grep -F '/{name}/' /proc/self/mountinfo || true
                 grep -l -F '\"{name}\"' {ROOT}/plugins/network/volumes/* 2>/dev/null || true"
            ))
            .await?;
        ensure!(left.is_empty(), "left of {name}: {left}");
        Ok(())
    }
}

/// A volume that the node has to reject.
pub(in crate::suites) struct RejectedVolume {
    /// What is wrong.
    pub(in crate::suites) what: &'static str,
    pub(in crate::suites) volume: NetworkVolume,
    pub(in crate::suites) code: Code,
    /// Texts of the error.
    pub(in crate::suites) texts: Vec<String>,
}

impl RejectedVolume {
    pub(in crate::suites) fn new(
        what: &'static str,
        volume: NetworkVolume,
        code: Code,
        texts: &[&str],
    ) -> Self {
        Self { what, volume, code, texts: texts.iter().map(ToString::to_string).collect() }
    }
}

/// A volume as a driver publishes it to the node.
#[derive(Clone, Debug)]
pub(in crate::suites) struct NetworkVolume {
    /// The volume's handle, which is also part of its paths.
    pub(in crate::suites) name: String,
    kind: &'static str,
    fields: Value,
    access_type: AccessType,
    secrets: Vec<(String, String)>,
}

impl NetworkVolume {
    /// A volume with a filesystem.
    pub(in crate::suites) fn new(name: impl Into<String>, kind: &'static str, fields: Value) -> Self {
        let mount = AccessType::Mount(MountVolume::default());
        Self { name: name.into(), kind, fields, access_type: mount, secrets: Vec::new() }
    }

    /// The same volume with these secrets.
    pub(in crate::suites) fn with_secrets(mut self, secrets: &[(&str, &str)]) -> Self {
        self.secrets = secrets.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self
    }

    /// The same volume with this filesystem and these mount options.
    pub(in crate::suites) fn mounted(mut self, fs_type: &str, mount_flags: &[&str]) -> Self {
        self.access_type = AccessType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: mount_flags.iter().map(ToString::to_string).collect(),
            ..MountVolume::default()
        });
        self
    }

    /// The same volume as a raw block volume.
    pub(in crate::suites) fn raw(mut self) -> Self {
        self.access_type = AccessType::Block(BlockVolume {});
        self
    }

    /// Reports if this is a raw block volume.
    pub(in crate::suites) const fn is_raw(&self) -> bool {
        matches!(self.access_type, AccessType::Block(_))
    }

    /// The filesystem, empty for the default, and the mount options.
    pub(in crate::suites) fn filesystem(&self) -> (&str, &[String]) {
        match &self.access_type {
            AccessType::Mount(mount) => (&mount.fs_type, &mount.mount_flags),
            AccessType::Block(_) => ("", &[]),
        }
    }

    /// The kind of the connection info.
    pub(in crate::suites) const fn kind(&self) -> &'static str {
        self.kind
    }

    /// The fields of the connection info.
    pub(in crate::suites) const fn fields(&self) -> &Value {
        &self.fields
    }

    /// The capability with which kubelet stages and publishes the volume.
    pub(in crate::suites) fn capability(&self) -> VolumeCapability {
        VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
            access_type: Some(self.access_type.clone()),
        }
    }

    /// The context that kubelet passes: the driver's response to `publish`, or the attributes of the volume.
    pub(in crate::suites) fn context(&self) -> BTreeMap<String, String> {
        let info = json!({ "version": 1, "kind": self.kind, "kindVersion": 1, "fields": self.fields });
        [("cofferdam.dev/connection-info".to_owned(), info.to_string())].into()
    }

    /// The path at which kubelet stages the volume.
    pub(in crate::suites) fn staging_path(&self) -> String {
        format!("{ROOT}/plugins/kubernetes.io/csi/network/{}/globalmount", self.name)
    }

    /// The path of the volume in its pod.
    pub(in crate::suites) fn target_path(&self) -> String {
        format!("{ROOT}/pods/pod/volumes/kubernetes.io~csi/{}/mount", self.name)
    }
}
