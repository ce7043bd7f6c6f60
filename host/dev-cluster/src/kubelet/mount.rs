//! Mounting: NodeStageVolume once per node, NodePublishVolume for each pod.

use std::collections::BTreeMap;

use cofferdam_cluster::observer::StepResult;
use cofferdam_csi::v1::{
    NodeGetCapabilitiesRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCapability,
    node_service_capability::{Type, rpc},
    volume_capability::{AccessMode as WireMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use cofferdam_domain::{AccessMode, VolumeAttachment, VolumeHandle, VolumeMode, names, volume::SecretRef};
use k8s_openapi::api::core::v1::SecretReference;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    error::{RpcError, VolumeError},
    node_calls,
    paths::{VOL_DATA_FILE, VolumePaths, inline_handle},
    rules::MountState,
    state::{COMPONENT, Key, Kubelet, MountedVolume, Plugin, PodMount, VolumeToMount},
    volume_id::VolumeId,
};
use crate::{client::pod_reference, kinds::FullNode, scheduler::is_reachable_from};

/// The capabilities of a Node service that kubelet uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeCapabilities {
    pub(super) stage_unstage: bool,
    pub(super) expand: bool,
    multi_writer: bool,
    mount_group: bool,
}

impl Kubelet {
    pub(super) async fn node_capabilities(&self, plugin: &Plugin) -> Result<NodeCapabilities, RpcError> {
        let response = node_calls::call_node_service(&plugin.endpoint, async |client| {
            client.node_get_capabilities(NodeGetCapabilitiesRequest {}).await
        });
        let response = response.await?;
        let mut capabilities = NodeCapabilities::default();
        for capability in response.capabilities {
            let Some(Type::Rpc(rpc)) = capability.r#type else { continue };
            match rpc.r#type() {
                rpc::Type::StageUnstageVolume => capabilities.stage_unstage = true,
                rpc::Type::ExpandVolume => capabilities.expand = true,
                rpc::Type::SingleNodeMultiWriter => capabilities.multi_writer = true,
                rpc::Type::VolumeMountGroup => capabilities.mount_group = true,
                rpc::Type::Unknown | rpc::Type::GetVolumeStats | rpc::Type::VolumeCondition => {}
            }
        }
        Ok(capabilities)
    }

    pub(super) fn volume_paths(&self, desired: &VolumeToMount, plugin: &Plugin) -> VolumePaths {
        let inline = desired.pod.volumes().iter().find(|volume| {
            volume.csi.is_some() && inline_handle(&desired.pod.slim.meta.uid, &volume.name) == desired.handle
        });
        let name = desired.volume.as_ref().map(|volume| volume.slim.name.to_string());
        VolumePaths {
            root: plugin.root_dir.path.clone(),
            driver: desired.driver.to_string(),
            handle: desired.handle.clone(),
            name: name.or_else(|| inline.map(|volume| volume.name.clone())).unwrap_or_default(),
            block: desired.volume.as_ref().is_some_and(|volume| volume.slim.mode == VolumeMode::Block),
        }
    }

    /// Checks that the volume is attached, and returns the publish context from its VolumeAttachment; empty
    /// if the volume is not attachable.
    async fn publish_context(
        &self,
        desired: &VolumeToMount,
    ) -> Result<BTreeMap<String, String>, VolumeError> {
        if !desired.attachable {
            return Ok(BTreeMap::new());
        }
        let VolumeId::Persistent(name) = &desired.id else { return Ok(BTreeMap::new()) };
        // Read from the API server: a volume that is being detached must not be mounted.
        let node = self.client.get::<FullNode>(&self.node_name).await?;
        let attached = node.is_some_and(|node| node.slim.volume(name).is_some_and(|entry| entry.attached));
        if !attached {
            return Err(VolumeError::NotInNodeStatus);
        }
        let handle = VolumeHandle::from(desired.handle.as_str());
        let name = names::volume_attachment_name(&desired.driver, &handle, &self.node_name);
        let found = self.client.get::<VolumeAttachment>(&name).await?;
        match found {
            Some(found) if found.attached && !found.meta.deleting => Ok((&found.attachment_metadata).into()),
            Some(_) => Err(VolumeError::NotAttached(name)),
            None => Err(VolumeError::AttachmentNotFound(name)),
        }
    }

    async fn secrets(&self, secret: Option<SecretRef>) -> Result<BTreeMap<String, String>, VolumeError> {
        let Some(secret) = secret else { return Ok(BTreeMap::new()) };
        let found = self.client.secret(&secret).await?;
        Ok(found.iter().map(|(name, secret)| (name.to_owned(), secret.expose().to_owned())).collect())
    }

    pub(super) async fn referenced_secrets(
        &self,
        reference: Option<&SecretReference>,
    ) -> Result<BTreeMap<String, String>, VolumeError> {
        let secret = reference.and_then(|one| {
            let (namespace, name) = (one.namespace.as_deref()?.into(), one.name.as_deref()?.into());
            Some(SecretRef { namespace, name })
        });
        self.secrets(secret).await
    }

    /// Stages a volume on the node, after checks of its node affinity and its attachment. For a driver
    /// without STAGE_UNSTAGE_VOLUME, only creates the staging directory and does not call NodeStageVolume.
    pub(super) async fn stage(&self, desired: &VolumeToMount) -> Result<(), VolumeError> {
        let plugin = self.plugin(&desired.driver)?;
        let paths = self.volume_paths(desired, &plugin);
        let Some(volume) = &desired.volume else { return Ok(()) };
        if self.node().is_some_and(|node| !is_reachable_from(volume, &node)) {
            return Err(VolumeError::NodeAffinity);
        }
        let publish_context = self.publish_context(desired).await?;
        let capabilities = self.node_capabilities(&plugin).await?;
        let files = &plugin.root_dir.files;
        files.make_directory(&paths.staging_path())?;
        if !capabilities.stage_unstage {
            self.update_mounted_volume(desired, &paths, |mounted| {
                (mounted.device_state, mounted.size) = (MountState::Mounted, volume.slim.capacity);
            });
            return Ok(());
        }
        let source = volume.spec().csi.as_ref();
        let secrets =
            self.referenced_secrets(source.and_then(|csi| csi.node_stage_secret_ref.as_ref())).await?;
        if paths.block {
            files.make_directory(
                paths.node_data_file().trim_end_matches(VOL_DATA_FILE).trim_end_matches('/'),
            )?;
        }
        files.write(&paths.node_data_file(), &self.volume_data(desired, &paths))?;
        let request = NodeStageVolumeRequest {
            volume_id: desired.handle.clone(),
            publish_context,
            staging_target_path: paths.staging_path(),
            volume_capability: Some(csi_volume_capability(desired, capabilities)),
            secrets,
            volume_context: volume.slim.csi.as_ref().map(|csi| (&csi.attributes).into()).unwrap_or_default(),
        };
        let started = Instant::now();
        // Before the call: if the pod is deleted during the call, the volume must not count as unmounted.
        let mut previous_state = MountState::NotMounted;
        self.update_mounted_volume(desired, &paths, |mounted| {
            previous_state = std::mem::replace(&mut mounted.device_state, MountState::Uncertain);
            (mounted.stage_attempted, mounted.size) = (true, volume.slim.capacity);
        });
        let response = node_calls::call_node_service(&plugin.endpoint, async |client| {
            client.node_stage_volume(request).await
        })
        .await;
        match response {
            Ok(_) => {
                self.update_mounted_volume(desired, &paths, |mounted| {
                    mounted.device_state = MountState::Mounted
                });
                self.record_call(
                    desired,
                    format!("stages volume {} on {}", paths.name, self.node_name),
                    started,
                );
                Ok(())
            }
            Err(error) => {
                if previous_state == MountState::NotMounted && !node_calls::is_uncertain(&error) {
                    self.update_mounted_volume(desired, &paths, |mounted| {
                        (mounted.device_state, mounted.stage_attempted) = (MountState::NotMounted, false);
                    });
                    if let Err(problem) = paths.node_paths().iter().try_for_each(|path| files.remove(path)) {
                        // The error of the driver takes precedence.
                        tracing::warn!(node = %self.node_name, volume = %desired.id, "{problem}");
                    }
                }
                Err(VolumeError::Stage(error))
            }
        }
    }

    /// Publishes a volume for a pod.
    pub(super) async fn publish(&self, desired: &VolumeToMount) -> Result<(), VolumeError> {
        let plugin = self.plugin(&desired.driver)?;
        let paths = self.volume_paths(desired, &plugin);
        let capabilities = self.node_capabilities(&plugin).await?;
        let publish_context = self.publish_context(desired).await?;
        let pod = &desired.pod.slim.meta.uid;
        let request = NodePublishVolumeRequest {
            volume_id: desired.handle.clone(),
            publish_context,
            staging_target_path: match desired.inline {
                None if capabilities.stage_unstage || paths.block => self.staging_path(desired, &paths),
                None | Some(_) => String::new(),
            },
            target_path: paths.target_path(pod),
            volume_capability: Some(csi_volume_capability(desired, capabilities)),
            readonly: desired.read_only,
            secrets: self.publish_secrets(desired).await?,
            volume_context: self.volume_context(desired)?,
        };
        let files = &plugin.root_dir.files;
        files.make_directory(&paths.target_parent_dir(pod))?;
        if !paths.block {
            let data = format!("{}/{}", paths.target_parent_dir(pod), VOL_DATA_FILE);
            files.write(&data, &self.volume_data(desired, &paths))?;
        }
        let started = Instant::now();
        let pod_mount = |state| PodMount { state, desired: desired.clone(), paths: paths.clone() };
        // Before the call: a pod that is deleted during the call waits for its result.
        let mut is_first = true;
        self.update_mounted_volume(desired, &paths, |mounted| {
            is_first = mounted.pod_mounts.insert(pod.clone(), pod_mount(MountState::Uncertain)).is_none();
        });
        let response = node_calls::call_node_service(&plugin.endpoint, async |client| {
            client.node_publish_volume(request).await
        })
        .await;
        match response {
            Ok(_) => {
                self.update_mounted_volume(desired, &paths, |mounted| {
                    mounted.pod_mounts.insert(pod.clone(), pod_mount(MountState::Mounted));
                });
                self.record_call(
                    desired,
                    format!("publishes volume {} on {}", paths.name, self.node_name),
                    started,
                );
                Ok(())
            }
            Err(error) => {
                if is_first && !node_calls::is_uncertain(&error) {
                    self.update_mounted_volume(desired, &paths, |mounted| {
                        mounted.pod_mounts.remove(pod);
                    });
                    self.remove_pod_paths(&plugin, &paths, pod);
                    // The pod may have been deleted during the call.
                    self.queue.add(Key::Pod(desired.pod.slim.key.clone()));
                }
                Err(error.into())
            }
        }
    }

    async fn publish_secrets(
        &self,
        desired: &VolumeToMount,
    ) -> Result<BTreeMap<String, String>, VolumeError> {
        if let Some(inline) = &desired.inline {
            let namespace: &str = &desired.pod.slim.key.namespace;
            let secret = inline.node_publish_secret_ref.as_ref().map(|reference| SecretRef {
                namespace: namespace.into(),
                name: reference.name.as_str().into(),
            });
            return self.secrets(secret).await;
        }
        let source = desired.volume.as_ref().and_then(|volume| volume.spec().csi.as_ref());
        self.referenced_secrets(source.and_then(|csi| csi.node_publish_secret_ref.as_ref())).await
    }

    /// The volume context for NodePublishVolume, including the pod's information if `podInfoOnMount` of the
    /// CSIDriver is true.
    ///
    /// # Errors
    /// [`VolumeError::UnsupportedMode`]
    fn volume_context(&self, desired: &VolumeToMount) -> Result<BTreeMap<String, String>, VolumeError> {
        let mut context = match (&desired.inline, &desired.volume) {
            (Some(inline), _) => inline.volume_attributes.clone().unwrap_or_default(),
            (None, Some(volume)) => {
                volume.slim.csi.as_ref().map(|csi| (&csi.attributes).into()).unwrap_or_default()
            }
            (None, None) => BTreeMap::new(),
        };
        let driver = self.client.csi_drivers.get(&desired.driver).into_object();
        let spec = driver.as_ref().map(|driver| &driver.full.spec);
        let mode = if desired.inline.is_some() { "Ephemeral" } else { "Persistent" };
        let modes = spec.and_then(|spec| spec.volume_lifecycle_modes.as_deref());
        let modes =
            modes.map_or_else(|| vec!["Persistent"], |modes| modes.iter().map(String::as_str).collect());
        if !modes.contains(&mode) {
            return Err(VolumeError::UnsupportedMode { mode, driver: desired.driver.clone() });
        }
        if spec.and_then(|spec| spec.pod_info_on_mount) == Some(true) {
            let account = desired.pod.spec().service_account_name.clone().unwrap_or_default();
            let slim = &desired.pod.slim;
            for (key, value) in [
                ("pod.name", slim.key.name.to_string()),
                ("pod.namespace", slim.key.namespace.to_string()),
                ("pod.uid", slim.meta.uid.to_string()),
                ("serviceAccount.name", account),
                ("ephemeral", desired.inline.is_some().to_string()),
            ] {
                context.insert(format!("csi.storage.k8s.io/{key}"), value);
            }
        }
        Ok(context)
    }

    /// Content of kubelet's `vol_data.json`.
    fn volume_data(&self, desired: &VolumeToMount, paths: &VolumePaths) -> String {
        let handle = VolumeHandle::from(desired.handle.as_str());
        let mode = if desired.inline.is_some() { "Ephemeral" } else { "Persistent" };
        let attachment = names::volume_attachment_name(&desired.driver, &handle, &self.node_name);
        let data: Value = json!({
            "attachmentID": attachment,
            "driverName": desired.driver,
            "nodeName": self.node_name,
            "specVolID": paths.name,
            "volumeHandle": desired.handle,
            "volumeLifecycleMode": mode,
        });
        data.to_string()
    }

    fn record_call(&self, desired: &VolumeToMount, text: String, started: Instant) {
        let name = pod_reference(&desired.pod.slim.key);
        self.client.record_timed_step(COMPONENT, name, StepResult::Applied, text, Some(started.elapsed()));
    }

    /// The staging path of a volume. If several PersistentVolumes have the same driver and handle, the path
    /// is that of the PersistentVolume that was mounted first. `paths` are those of `desired`.
    pub(super) fn staging_path(&self, desired: &VolumeToMount, paths: &VolumePaths) -> String {
        let mounted_volumes = self.mounted_volumes.lock();
        mounted_volumes
            .get(&desired.id)
            .map_or(paths, |mounted_volumes| &mounted_volumes.paths)
            .staging_path()
    }

    /// Changes the entry of a volume in `mounted_volumes`. Creates the entry if there is none, or replaces it
    /// if the volume is not mounted. The driver, claim and `attachable` of a new entry are those of
    /// `desired`; later mounts do not change these or its paths.
    pub(super) fn update_mounted_volume(
        &self,
        desired: &VolumeToMount,
        paths: &VolumePaths,
        change: impl FnOnce(&mut MountedVolume),
    ) {
        let mut mounted_volumes = self.mounted_volumes.lock();
        if mounted_volumes
            .get(&desired.id)
            .is_some_and(|mounted_volume| !mounted_volume.is_possibly_mounted())
        {
            mounted_volumes.remove(&desired.id);
        }
        let mounted_volume = mounted_volumes.entry(desired.id.clone()).or_insert_with(|| MountedVolume {
            paths: paths.clone(),
            driver: desired.driver.clone(),
            claim: desired.claim.as_ref().map(|claim| claim.key.clone()),
            attachable: desired.attachable,
            device_state: MountState::NotMounted,
            stage_attempted: false,
            pod_mounts: BTreeMap::new(),
            size: None,
            expansion_refused: false,
        });
        change(mounted_volume);
        self.mounted_count.send_replace(mounted_volumes.len());
    }
}

/// The CSI capability of a volume for a pod.
pub(super) fn csi_volume_capability(
    desired: &VolumeToMount,
    capabilities: NodeCapabilities,
) -> VolumeCapability {
    let volume = desired.volume.as_deref();
    // Kubelet uses the first access mode of the PersistentVolume.
    let first = volume.and_then(|volume| volume.spec().access_modes.as_ref()?.first());
    let mode = match (first.and_then(|mode| AccessMode::parse(mode)), capabilities.multi_writer) {
        (None | Some(AccessMode::ReadWriteOnce), true) => Mode::SingleNodeMultiWriter,
        (Some(AccessMode::ReadWriteOncePod), true) => Mode::SingleNodeSingleWriter,
        (None | Some(AccessMode::ReadWriteOnce | AccessMode::ReadWriteOncePod), false) => {
            Mode::SingleNodeWriter
        }
        (Some(AccessMode::ReadOnlyMany), _) => Mode::MultiNodeReaderOnly,
        (Some(AccessMode::ReadWriteMany), _) => Mode::MultiNodeMultiWriter,
    };
    let mode = if desired.inline.is_some() { Mode::SingleNodeWriter } else { mode };
    let access = match volume {
        Some(volume) if volume.slim.mode == VolumeMode::Block => AccessType::Block(BlockVolume {}),
        Some(_) | None => {
            let csi = volume.and_then(|volume| volume.slim.csi.as_ref());
            let inline = desired.inline.as_ref().and_then(|inline| inline.fs_type.clone());
            let security = desired.pod.spec().security_context.as_ref();
            let group = security.and_then(|context| context.fs_group).filter(|_| capabilities.mount_group);
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
