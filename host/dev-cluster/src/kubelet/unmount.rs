//! Unmounting: NodeUnpublishVolume for each pod, and NodeUnstageVolume once no pod uses the volume.

use cofferdam_cluster::observer::StepResult;
use cofferdam_csi::v1::{NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};
use cofferdam_domain::Uid;
use tokio::time::Instant;

use super::{
    error::VolumeError,
    node_calls,
    paths::{VOL_DATA_FILE, VolumePaths},
    rules::MountState,
    state::{COMPONENT, Key, Kubelet, MountedVolume, Plugin},
    volume_id::VolumeId,
};
use crate::client::pod_reference;

impl Kubelet {
    /// Unmounts all volumes at shutdown. Errors are logged.
    pub(crate) async fn unmount_all(&self) {
        let mounted_volumes: Vec<(VolumeId, MountedVolume)> = self
            .mounted_volumes
            .lock()
            .iter()
            .map(|(id, mounted_volumes)| (id.clone(), mounted_volumes.clone()))
            .collect();
        for (id, mounted_volumes) in mounted_volumes {
            let mut result = Ok(());
            for pod in mounted_volumes.pod_mounts.keys() {
                result = result.and(self.unpublish(&id, pod).await);
            }
            if result.is_ok() {
                result = self.unstage(&id).await;
            }
            if let Err(problem) = result {
                tracing::warn!(node = %self.node_name, volume = %id, "cannot unmount: {problem}");
                continue;
            }
            let mut mounted_volumes = self.mounted_volumes.lock();
            mounted_volumes.remove(&id);
            self.mounted_count.send_replace(mounted_volumes.len());
        }
    }

    fn mounted_volume(&self, id: &VolumeId) -> Option<MountedVolume> {
        self.mounted_volumes.lock().get(id).cloned()
    }

    /// Unpublishes a volume for a pod.
    pub(super) async fn unpublish(&self, id: &VolumeId, pod: &Uid) -> Result<(), VolumeError> {
        let Some(mounted_volume) = self.mounted_volume(id) else { return Ok(()) };
        let Some(pod_mount) = mounted_volume.pod_mounts.get(pod) else { return Ok(()) };
        let plugin = self.plugin(&mounted_volume.driver)?;
        let request = NodeUnpublishVolumeRequest {
            volume_id: pod_mount.paths.handle.clone(),
            target_path: pod_mount.paths.target_path(pod),
        };
        let started = Instant::now();
        node_calls::call_node_service(&plugin.endpoint, async |client| {
            client.node_unpublish_volume(request).await
        })
        .await
        .map_err(VolumeError::Unpublish)?;
        let text = format!("unpublishes volume {} on {}", pod_mount.paths.name, self.node_name);
        let duration = Some(started.elapsed());
        self.client.record_timed_step(
            COMPONENT,
            pod_reference(&pod_mount.desired.pod.slim.key),
            StepResult::Applied,
            text,
            duration,
        );
        if let Some(mounted_volume) = self.mounted_volumes.lock().get_mut(id) {
            mounted_volume.pod_mounts.remove(pod);
        }
        self.remove_pod_paths(&plugin, &pod_mount.paths, pod);
        self.queue.add(Key::Pod(pod_mount.desired.pod.slim.key.clone()));
        Ok(())
    }

    /// Removes the paths of a volume of a pod. Directories that other volumes use remain. An error is logged,
    /// and the rest of the paths remains.
    pub(super) fn remove_pod_paths(&self, plugin: &Plugin, paths: &VolumePaths, pod: &Uid) {
        let files = &plugin.root_dir.files;
        let target_parent_dir = paths.target_parent_dir(pod);
        let mut created_paths = vec![paths.target_path(pod)];
        if !paths.block {
            created_paths.push(format!("{target_parent_dir}/{VOL_DATA_FILE}"));
        }
        created_paths.push(target_parent_dir);
        created_paths.extend(paths.pod_parent_dirs(pod));
        for path in created_paths {
            if let Err(problem) = files.remove(&path) {
                tracing::debug!(node = %self.node_name, "{problem}");
                return;
            }
        }
    }

    /// Unstages a volume from the node and removes its staging paths. NodeUnstageVolume is called only if
    /// NodeStageVolume may have taken effect.
    pub(super) async fn unstage(&self, id: &VolumeId) -> Result<(), VolumeError> {
        let Some(mounted_volume) = self.mounted_volume(id) else { return Ok(()) };
        let plugin = self.plugin(&mounted_volume.driver)?;
        if mounted_volume.stage_attempted {
            let request = NodeUnstageVolumeRequest {
                volume_id: mounted_volume.paths.handle.clone(),
                staging_target_path: mounted_volume.paths.staging_path(),
            };
            let started = Instant::now();
            node_calls::call_node_service(&plugin.endpoint, async |client| {
                client.node_unstage_volume(request).await
            })
            .await
            .map_err(VolumeError::Unstage)?;
            let text = format!("unstages volume {} on {}", mounted_volume.paths.name, self.node_name);
            let object = mounted_volume.claim.as_ref().map_or_else(|| id.to_string(), ToString::to_string);
            self.client.record_timed_step(
                COMPONENT,
                object,
                StepResult::Applied,
                text,
                Some(started.elapsed()),
            );
        }
        mounted_volume.paths.node_paths().iter().try_for_each(|path| plugin.root_dir.files.remove(path))?;
        if let Some(mounted_volume) = self.mounted_volumes.lock().get_mut(id) {
            (mounted_volume.device_state, mounted_volume.stage_attempted) = (MountState::NotMounted, false);
        }
        Ok(())
    }
}
