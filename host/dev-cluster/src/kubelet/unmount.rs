//! The way back: NodeUnpublishVolume for each pod, NodeUnstageVolume when no pod has the volume any more.

use cofferdam_csi::v1::{NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};
use cofferdam_domain::Uid;
use tokio::time::Instant;

use super::{
    Held, Key, Kubelet, Phase, Plugin, VolumeId, calls, lock,
    paths::{DATA, Paths},
};
use crate::{observer::StepKind, world::pod_name};

impl Kubelet {
    /// Unmounts everything, as far as it goes: the node ends.
    pub(crate) async fn clear(&self) {
        let held: Vec<(VolumeId, Held)> =
            lock(&self.held).iter().map(|(id, held)| (id.clone(), held.clone())).collect();
        for (id, held) in held {
            let mut cleared = Ok(());
            for pod in held.mounts.keys() {
                cleared = cleared.and(self.unpublish(&id, pod).await);
            }
            if cleared.is_ok() {
                cleared = self.unstage(&id).await;
            }
            if let Err(problem) = cleared {
                tracing::warn!(node = %self.name, volume = %id, "left on the node: {problem}");
                continue;
            }
            let mut held = lock(&self.held);
            held.remove(&id);
            self.count.send_replace(held.len());
        }
    }

    fn holding(&self, id: &VolumeId) -> Option<Held> {
        lock(&self.held).get(id).cloned()
    }

    /// Unmounts a volume for a pod.
    pub(super) async fn unpublish(&self, id: &VolumeId, pod: &Uid) -> Result<(), String> {
        let Some(held) = self.holding(id) else { return Ok(()) };
        let Some(mounted) = held.mounts.get(pod) else { return Ok(()) };
        let plugin = self.plugin(&held.driver)?;
        let request = NodeUnpublishVolumeRequest {
            volume_id: mounted.paths.handle.clone(),
            target_path: mounted.paths.target(pod),
        };
        let started = Instant::now();
        calls::node(&plugin.endpoint, async |client| client.node_unpublish_volume(request).await)
            .await
            .map_err(|status| format!("UnmountVolume.TearDown failed: {}", calls::words(&status)))?;
        let text = format!("unpublishes volume {} on {}", mounted.paths.name, self.name);
        let took = Some(started.elapsed());
        self.world.told(super::COMPONENT, pod_name(&mounted.wanted.pod.slim.key), StepKind::Acts, text, took);
        if let Some(held) = lock(&self.held).get_mut(id) {
            held.mounts.remove(pod);
        }
        self.clear_pod(&plugin, &mounted.paths, pod);
        self.queue.add(Key::Pod(mounted.wanted.pod.slim.key.clone()));
        Ok(())
    }

    /// Removes what was made for a volume of a pod. What another volume of it needs stays.
    pub(super) fn clear_pod(&self, plugin: &Plugin, paths: &Paths, pod: &Uid) {
        let files = &plugin.ground.files;
        let own = paths.of_pod(pod);
        let mut all = vec![paths.target(pod)];
        if !paths.block {
            all.push(format!("{own}/{DATA}"));
        }
        all.push(own);
        all.extend(paths.of_all_pods(pod));
        for path in all {
            if let Err(problem) = files.remove(&path) {
                tracing::debug!(node = %self.name, "{problem}");
                return;
            }
        }
    }

    /// Unmounts a volume for the node.
    pub(super) async fn unstage(&self, id: &VolumeId) -> Result<(), String> {
        let Some(held) = self.holding(id) else { return Ok(()) };
        let plugin = self.plugin(&held.driver)?;
        if held.staged {
            let request = NodeUnstageVolumeRequest {
                volume_id: held.paths.handle.clone(),
                staging_target_path: held.paths.staging(),
            };
            let started = Instant::now();
            calls::node(&plugin.endpoint, async |client| client.node_unstage_volume(request).await)
                .await
                .map_err(|status| format!("UnmountDevice failed: {}", calls::words(&status)))?;
            let text = format!("unstages volume {} on {}", held.paths.name, self.name);
            let object = held.claim.as_ref().map_or_else(|| id.to_string(), ToString::to_string);
            self.world.told(super::COMPONENT, object, StepKind::Acts, text, Some(started.elapsed()));
        }
        held.paths.of_node().iter().try_for_each(|path| plugin.ground.files.remove(path))?;
        if let Some(held) = lock(&self.held).get_mut(id) {
            (held.device, held.staged) = (Phase::Absent, false);
        }
        Ok(())
    }
}
