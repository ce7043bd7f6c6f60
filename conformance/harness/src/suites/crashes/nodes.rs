//! Simulated nodes: they write `volumesInUse` and the status of pods, and finish the deletion of pods, in the
//! order of a kubelet. They mount nothing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, Pod},
    storage::v1::CSINode,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::cluster_state::ClusterState;
use crate::retry;

/// Maximum pods per node, as a quantity in the Node status.
const MAX_PODS: &str = "200";

/// A node, and the volumes that its kubelet would have mounted.
pub(super) struct FakeNode {
    client: Client,
    name: String,
    driver: &'static str,
    /// Unique names of the mounted volumes (`kubernetes.io/csi/DRIVER^HANDLE`, as in the Node status), by pod
    /// uid.
    mounted: BTreeMap<String, String>,
    /// `volumesInUse` of the Node status as this simulated node last wrote it.
    volumes_in_use: BTreeSet<String>,
}

impl FakeNode {
    /// Creates the Node, without taints and with the condition Ready, and its CSINode.
    pub(super) async fn new(client: &Client, name: &str, driver: &'static str) -> Result<Self> {
        let nodes: Api<Node> = Api::all(client.clone());
        let object = serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "labels": { "kubernetes.io/hostname": name },
                "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
            },
        }))?;
        nodes.create(&PostParams::default(), &object).await?;
        // The API server taints new nodes; the node lifecycle controller does not run.
        let untainted = Patch::Merge(json!({ "spec": { "taints": null } }));
        nodes.patch(name, &PatchParams::default(), &untainted).await?;
        let resources = json!({ "cpu": "100", "memory": "100Gi", "pods": MAX_PODS });
        let status = Patch::Merge(json!({ "status": {
            "capacity": resources, "allocatable": resources,
            "conditions": [{ "type": "Ready", "status": "True" }],
        } }));
        nodes.patch_status(name, &PatchParams::default(), &status).await?;
        let drivers: CSINode = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": { "drivers": [{ "name": driver, "nodeID": name, "topologyKeys": [] }] },
        }))?;
        Api::all(client.clone()).create(&PostParams::default(), &drivers).await?;
        let (mounted, volumes_in_use) = Default::default();
        Ok(Self { client: client.clone(), name: name.to_owned(), driver, mounted, volumes_in_use })
    }

    pub(super) fn mounted(&self) -> BTreeSet<&String> {
        self.mounted.values().collect()
    }

    /// The next step of a kubelet: unmount for pods that are being deleted, update `volumesInUse`, remove
    /// these pods from the API, mount attached volumes, and run pods. Fails if a volume to mount is one of
    /// `mounted_elsewhere`.
    pub(super) async fn step(
        &mut self,
        state: &ClusterState,
        mounted_elsewhere: &BTreeSet<String>,
    ) -> Result<()> {
        let local_pods: Vec<&Pod> = state.pods.values().filter(|pod| node_name(pod) == self.name).collect();
        let terminating: Vec<&&Pod> =
            local_pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).collect();
        for pod in &terminating {
            self.mounted.remove(pod.metadata.uid.as_deref().unwrap_or_default());
        }
        let mut to_mount = BTreeMap::new();
        for pod in local_pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            if let Some(unique) = state.claim_volume(pod).and_then(|volume| self.unique_volume_name(volume)) {
                to_mount.insert(pod.uid().context("a pod without a uid")?, (*pod, unique));
            }
        }
        let in_use =
            to_mount.values().map(|(_, unique)| unique).chain(self.mounted.values()).cloned().collect();
        self.set_volumes_in_use(in_use).await?;
        for pod in terminating {
            self.finish_deletion(pod).await?;
        }
        let attached = state.volumes_attached(&self.name);
        for (uid, (pod, unique)) in to_mount {
            if !attached.contains(&unique) || self.mounted.contains_key(&uid) {
                continue;
            }
            ensure!(
                !mounted_elsewhere.contains(&unique),
                "{unique} is to be mounted on {}, and is on another node",
                self.name
            );
            self.mounted.insert(uid, unique);
            self.set_running(pod).await?;
        }
        Ok(())
    }

    fn unique_volume_name(&self, volume: &PersistentVolume) -> Option<String> {
        let handle = &volume.spec.as_ref()?.csi.as_ref()?.volume_handle;
        Some(format!("kubernetes.io/csi/{}^{handle}", self.driver))
    }

    async fn set_volumes_in_use(&mut self, used: BTreeSet<String>) -> Result<()> {
        if self.volumes_in_use == used {
            return Ok(());
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        retry::merge_patch_status(&nodes, &self.name, &json!({ "status": { "volumesInUse": used } })).await?;
        self.volumes_in_use = used;
        Ok(())
    }

    async fn set_running(&self, pod: &Pod) -> Result<()> {
        let status = json!({ "status": { "phase": "Running", "containerStatuses": [{
            "name": "none", "image": "none", "imageID": "", "ready": true, "restartCount": 0,
            "state": { "running": {} },
        }] } });
        retry::merge_patch_status(&self.pods(pod), &pod.name_any(), &status).await
    }

    /// Removes a pod that is being deleted: deletes it with the grace period 0, as kubelet does once the
    /// containers have ended.
    async fn finish_deletion(&self, pod: &Pod) -> Result<()> {
        let (pods, name) = (self.pods(pod), pod.name_any());
        retry::request(async |_| match pods.delete(&name, &DeleteParams::default().grace_period(0)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            deleted => deleted.map(drop),
        })
        .await
    }

    fn pods(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default())
    }
}

fn node_name(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}
