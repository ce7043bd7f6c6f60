//! The way of a volume to a pod: NodeStageVolume once for the node, NodePublishVolume for each pod.

use std::collections::BTreeMap;

use cofferdam_csi::v1::{
    NodeGetCapabilitiesRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCapability,
    node_service_capability::{Type, rpc},
    volume_capability::{AccessMode as WireMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use cofferdam_domain::{AccessMode, Attachment, VolumeHandle, VolumeMode, names, volume::SecretRef};
use k8s_openapi::api::core::v1::SecretReference;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Held, Key, Kubelet, Mounted, Phase, Plugin, Wanted, calls, lock, paths::Paths};
use crate::{kinds::NodeObject, observer::StepKind, scheduler::reaches, world::pod_name};

/// What a Node service can do, as far as kubelet asks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Abilities {
    pub(super) stages: bool,
    pub(super) expands: bool,
    multi_writer: bool,
    mount_group: bool,
}

impl Kubelet {
    pub(super) async fn abilities(&self, plugin: &Plugin) -> Result<Abilities, String> {
        let answer = calls::node(&plugin.endpoint, async |client| {
            client.node_get_capabilities(NodeGetCapabilitiesRequest {}).await
        });
        let answer = answer.await.map_err(|status| calls::words(&status))?;
        let mut abilities = Abilities::default();
        for capability in answer.capabilities {
            let Some(Type::Rpc(rpc)) = capability.r#type else { continue };
            match rpc.r#type() {
                rpc::Type::StageUnstageVolume => abilities.stages = true,
                rpc::Type::ExpandVolume => abilities.expands = true,
                rpc::Type::SingleNodeMultiWriter => abilities.multi_writer = true,
                rpc::Type::VolumeMountGroup => abilities.mount_group = true,
                rpc::Type::Unknown | rpc::Type::GetVolumeStats | rpc::Type::VolumeCondition => {}
            }
        }
        Ok(abilities)
    }

    pub(super) fn paths(&self, wanted: &Wanted, plugin: &Plugin) -> Paths {
        let inline = wanted.pod.volumes().iter().find(|volume| {
            volume.csi.is_some()
                && super::inline_handle(&wanted.pod.slim.meta.uid, &volume.name) == wanted.handle
        });
        let name = wanted.volume.as_ref().map(|volume| volume.slim.name.to_string());
        Paths {
            root: plugin.ground.root.clone(),
            driver: wanted.driver.to_string(),
            handle: wanted.handle.clone(),
            name: name.or_else(|| inline.map(|volume| volume.name.clone())).unwrap_or_default(),
            block: wanted.volume.as_ref().is_some_and(|volume| volume.slim.mode == VolumeMode::Block),
        }
    }

    /// What the attacher has left for the node; checked as kubelet does before it mounts.
    async fn publish_context(&self, wanted: &Wanted) -> Result<BTreeMap<String, String>, String> {
        if !wanted.attachable {
            return Ok(BTreeMap::new());
        }
        let super::VolumeId::Persistent(name) = &wanted.id else { return Ok(BTreeMap::new()) };
        // Past the cache: what is taken from the node in this moment must not be mounted.
        let node = self.world.get::<NodeObject>(&self.name).await.map_err(|error| error.to_string())?;
        let attached = node.is_some_and(|node| node.slim.volume(name).is_some_and(|entry| entry.attached));
        if !attached {
            return Err("Volume not attached according to node status".to_owned());
        }
        let handle = VolumeHandle::from(wanted.handle.as_str());
        let name = names::attachment(&wanted.driver, &handle, &self.name);
        let found = self.world.get::<Attachment>(&name).await.map_err(|error| error.to_string())?;
        match found {
            Some(found) if found.attached && !found.meta.deleting => Ok((&found.metadata).into()),
            Some(_) => Err(format!("VolumeAttachment {name} is not attached")),
            None => Err(format!("VolumeAttachment {name} does not exist")),
        }
    }

    async fn secrets(&self, secret: Option<SecretRef>) -> Result<BTreeMap<String, String>, String> {
        let Some(secret) = secret else { return Ok(BTreeMap::new()) };
        let found = self.world.secret(&secret).await.map_err(|error| error.to_string())?;
        Ok(found.iter().map(|(name, secret)| (name.to_owned(), secret.expose().to_owned())).collect())
    }

    pub(super) async fn secrets_of(
        &self,
        reference: Option<&SecretReference>,
    ) -> Result<BTreeMap<String, String>, String> {
        let secret = reference.and_then(|one| {
            let (namespace, name) = (one.namespace.as_deref()?.into(), one.name.as_deref()?.into());
            Some(SecretRef { namespace, name })
        });
        self.secrets(secret).await
    }

    /// Mounts a volume for the node.
    pub(super) async fn stage(&self, wanted: &Wanted) -> Result<(), String> {
        let plugin = self.plugin(&wanted.driver)?;
        let paths = self.paths(wanted, &plugin);
        let Some(volume) = &wanted.volume else { return Ok(()) };
        if self.node().is_some_and(|node| !reaches(volume, &node)) {
            return Err(
                "no matching NodeSelectorTerms: the volume cannot be reached from this node".to_owned()
            );
        }
        let publish_context = self.publish_context(wanted).await?;
        let abilities = self.abilities(&plugin).await?;
        let files = &plugin.ground.files;
        files.make_directory(&paths.staging())?;
        if !abilities.stages {
            self.remember(wanted, &paths, |held| {
                (held.device, held.size) = (Phase::Done, volume.slim.capacity);
            });
            return Ok(());
        }
        let source = volume.spec().csi.as_ref();
        let secrets = self.secrets_of(source.and_then(|csi| csi.node_stage_secret_ref.as_ref())).await?;
        if paths.block {
            files.make_directory(
                paths.data_of_node().trim_end_matches(super::paths::DATA).trim_end_matches('/'),
            )?;
        }
        files.write(&paths.data_of_node(), &self.data(wanted, &paths))?;
        let request = NodeStageVolumeRequest {
            volume_id: wanted.handle.clone(),
            publish_context,
            staging_target_path: paths.staging(),
            volume_capability: Some(capability(wanted, abilities)),
            secrets,
            volume_context: volume.slim.csi.as_ref().map(|csi| (&csi.attributes).into()).unwrap_or_default(),
        };
        let started = Instant::now();
        // Before the call: a pod that goes meanwhile must not take the volume from the node beneath the driver.
        let mut before = Phase::Absent;
        self.remember(wanted, &paths, |held| {
            before = std::mem::replace(&mut held.device, Phase::Uncertain);
            (held.staged, held.size) = (true, volume.slim.capacity);
        });
        let answer =
            calls::node(&plugin.endpoint, async |client| client.node_stage_volume(request).await).await;
        match answer {
            Ok(_) => {
                self.remember(wanted, &paths, |held| held.device = Phase::Done);
                self.told(wanted, format!("stages volume {} on {}", paths.name, self.name), started);
                Ok(())
            }
            Err(status) => {
                if before == Phase::Absent && !calls::is_uncertain(&status) {
                    self.remember(wanted, &paths, |held| {
                        (held.device, held.staged) = (Phase::Absent, false);
                    });
                    if let Err(problem) = paths.of_node().iter().try_for_each(|path| files.remove(path)) {
                        // What the driver says is what counts.
                        tracing::warn!(node = %self.name, volume = %wanted.id, "{problem}");
                    }
                }
                Err(format!("MountVolume.MountDevice failed: {}", calls::words(&status)))
            }
        }
    }

    /// Mounts a volume for a pod.
    pub(super) async fn publish(&self, wanted: &Wanted) -> Result<(), String> {
        let plugin = self.plugin(&wanted.driver)?;
        let paths = self.paths(wanted, &plugin);
        let abilities = self.abilities(&plugin).await?;
        let publish_context = self.publish_context(wanted).await?;
        let pod = &wanted.pod.slim.meta.uid;
        let request = NodePublishVolumeRequest {
            volume_id: wanted.handle.clone(),
            publish_context,
            staging_target_path: match wanted.inline {
                None if abilities.stages || paths.block => self.staging(wanted, &paths),
                None | Some(_) => String::new(),
            },
            target_path: paths.target(pod),
            volume_capability: Some(capability(wanted, abilities)),
            readonly: wanted.read_only,
            secrets: self.publish_secrets(wanted).await?,
            volume_context: self.volume_context(wanted)?,
        };
        let files = &plugin.ground.files;
        files.make_directory(&paths.of_pod(pod))?;
        if !paths.block {
            let data = format!("{}/{}", paths.of_pod(pod), super::paths::DATA);
            files.write(&data, &self.data(wanted, &paths))?;
        }
        let started = Instant::now();
        let mounted = |phase| Mounted { phase, wanted: wanted.clone(), paths: paths.clone() };
        // Before the call: a pod that is deleted meanwhile stays until it is known what became of it.
        let mut is_first = true;
        self.remember(wanted, &paths, |held| {
            is_first = held.mounts.insert(pod.clone(), mounted(Phase::Uncertain)).is_none();
        });
        let answer =
            calls::node(&plugin.endpoint, async |client| client.node_publish_volume(request).await).await;
        match answer {
            Ok(_) => {
                self.remember(wanted, &paths, |held| {
                    held.mounts.insert(pod.clone(), mounted(Phase::Done));
                });
                self.told(wanted, format!("publishes volume {} on {}", paths.name, self.name), started);
                Ok(())
            }
            Err(status) => {
                if is_first && !calls::is_uncertain(&status) {
                    self.remember(wanted, &paths, |held| {
                        held.mounts.remove(pod);
                    });
                    self.clear_pod(&plugin, &paths, pod);
                    // It may have been deleted meanwhile.
                    self.queue.add(Key::Pod(wanted.pod.slim.key.clone()));
                }
                Err(calls::words(&status))
            }
        }
    }

    async fn publish_secrets(&self, wanted: &Wanted) -> Result<BTreeMap<String, String>, String> {
        if let Some(inline) = &wanted.inline {
            let namespace: &str = &wanted.pod.slim.key.namespace;
            let secret = inline.node_publish_secret_ref.as_ref().map(|reference| SecretRef {
                namespace: namespace.into(),
                name: reference.name.as_str().into(),
            });
            return self.secrets(secret).await;
        }
        let source = wanted.volume.as_ref().and_then(|volume| volume.spec().csi.as_ref());
        self.secrets_of(source.and_then(|csi| csi.node_publish_secret_ref.as_ref())).await
    }

    /// What the volume says of itself, and of the pod where the driver asks for it.
    fn volume_context(&self, wanted: &Wanted) -> Result<BTreeMap<String, String>, String> {
        let mut context = match (&wanted.inline, &wanted.volume) {
            (Some(inline), _) => inline.volume_attributes.clone().unwrap_or_default(),
            (None, Some(volume)) => {
                volume.slim.csi.as_ref().map(|csi| (&csi.attributes).into()).unwrap_or_default()
            }
            (None, None) => BTreeMap::new(),
        };
        let driver = self.world.csi_drivers.get(&wanted.driver).known();
        let spec = driver.as_ref().map(|driver| &driver.full.spec);
        let mode = if wanted.inline.is_some() { "Ephemeral" } else { "Persistent" };
        let modes = spec.and_then(|spec| spec.volume_lifecycle_modes.as_deref());
        let modes =
            modes.map_or_else(|| vec!["Persistent"], |modes| modes.iter().map(String::as_str).collect());
        if !modes.contains(&mode) {
            return Err(format!("volume mode {mode:?} not supported by driver {}", wanted.driver));
        }
        if spec.and_then(|spec| spec.pod_info_on_mount) == Some(true) {
            let account = wanted.pod.spec().service_account_name.clone().unwrap_or_default();
            let slim = &wanted.pod.slim;
            for (key, value) in [
                ("pod.name", slim.key.name.to_string()),
                ("pod.namespace", slim.key.namespace.to_string()),
                ("pod.uid", slim.meta.uid.to_string()),
                ("serviceAccount.name", account),
                ("ephemeral", wanted.inline.is_some().to_string()),
            ] {
                context.insert(format!("csi.storage.k8s.io/{key}"), value);
            }
        }
        Ok(context)
    }

    /// What kubelet writes down of a volume.
    fn data(&self, wanted: &Wanted, paths: &Paths) -> String {
        let handle = VolumeHandle::from(wanted.handle.as_str());
        let mode = if wanted.inline.is_some() { "Ephemeral" } else { "Persistent" };
        let attachment = names::attachment(&wanted.driver, &handle, &self.name);
        let data: Value = json!({
            "attachmentID": attachment,
            "driverName": wanted.driver,
            "nodeName": self.name,
            "specVolID": paths.name,
            "volumeHandle": wanted.handle,
            "volumeLifecycleMode": mode,
        });
        data.to_string()
    }

    fn told(&self, wanted: &Wanted, text: String, started: Instant) {
        let name = pod_name(&wanted.pod.slim.key);
        self.world.told(super::COMPONENT, name, StepKind::Acts, text, Some(started.elapsed()));
    }

    /// Where a volume is staged: another PersistentVolume of the same handle may have come first.
    pub(super) fn staging(&self, wanted: &Wanted, paths: &Paths) -> String {
        let held = lock(&self.held);
        held.get(&wanted.id).map_or(paths, |held| &held.paths).staging()
    }

    /// Changes what is held of a volume. What it is held as stands from the first mount on.
    pub(super) fn remember(&self, wanted: &Wanted, paths: &Paths, change: impl FnOnce(&mut Held)) {
        let mut all = lock(&self.held);
        if all.get(&wanted.id).is_some_and(|held| !held.is_busy()) {
            all.remove(&wanted.id);
        }
        let held = all.entry(wanted.id.clone()).or_insert_with(|| Held {
            paths: paths.clone(),
            driver: wanted.driver.clone(),
            claim: wanted.claim.as_ref().map(|claim| claim.key.clone()),
            attachable: wanted.attachable,
            device: Phase::Absent,
            staged: false,
            mounts: BTreeMap::new(),
            size: None,
            refused: false,
        });
        change(held);
        self.count.send_replace(all.len());
    }
}

/// How the volume is used, in CSI's words.
pub(super) fn capability(wanted: &Wanted, abilities: Abilities) -> VolumeCapability {
    let volume = wanted.volume.as_deref();
    // The first one that is written there, as kubelet takes it.
    let first = volume.and_then(|volume| volume.spec().access_modes.as_ref()?.first());
    let mode = match (first.and_then(|mode| AccessMode::parse(mode)), abilities.multi_writer) {
        (None | Some(AccessMode::ReadWriteOnce), true) => Mode::SingleNodeMultiWriter,
        (Some(AccessMode::ReadWriteOncePod), true) => Mode::SingleNodeSingleWriter,
        (None | Some(AccessMode::ReadWriteOnce | AccessMode::ReadWriteOncePod), false) => {
            Mode::SingleNodeWriter
        }
        (Some(AccessMode::ReadOnlyMany), _) => Mode::MultiNodeReaderOnly,
        (Some(AccessMode::ReadWriteMany), _) => Mode::MultiNodeMultiWriter,
    };
    let mode = if wanted.inline.is_some() { Mode::SingleNodeWriter } else { mode };
    let access = match volume {
        Some(volume) if volume.slim.mode == VolumeMode::Block => AccessType::Block(BlockVolume {}),
        Some(_) | None => {
            let csi = volume.and_then(|volume| volume.slim.csi.as_ref());
            let inline = wanted.inline.as_ref().and_then(|inline| inline.fs_type.clone());
            let security = wanted.pod.spec().security_context.as_ref();
            let group = security.and_then(|context| context.fs_group).filter(|_| abilities.mount_group);
            AccessType::Mount(MountVolume {
                fs_type: inline
                    .or_else(|| csi.and_then(|csi| csi.fs_type.as_deref().map(str::to_owned)))
                    .unwrap_or_default(),
                mount_flags: volume.map(|volume| volume.slim.mount_options.clone()).unwrap_or_default(),
                volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
            })
        }
    };
    VolumeCapability { access_mode: Some(WireMode { mode: mode.into() }), access_type: Some(access) }
}
