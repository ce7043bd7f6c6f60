//! Objects of the API server, listed one kind after the other.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Api, Client, Resource, ResourceExt as _, api::ListParams};
use serde::de::DeserializeOwned;

use crate::retry;

/// Objects by name.
pub(super) struct ClusterState {
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) pods: BTreeMap<String, Pod>,
    pub(super) claims: BTreeMap<String, PersistentVolumeClaim>,
    pub(super) volumes: BTreeMap<String, PersistentVolume>,
    pub(super) attachments: BTreeMap<String, VolumeAttachment>,
}

impl ClusterState {
    /// Reads the objects, Nodes first.
    pub(super) async fn read(client: &Client) -> Result<Self> {
        Ok(Self {
            nodes: list_by_name(client).await?,
            attachments: list_by_name(client).await?,
            volumes: list_by_name(client).await?,
            claims: list_by_name(client).await?,
            pods: list_by_name(client).await?,
        })
    }

    /// The PersistentVolume of a pod's first claim. `None` if the pod has no claim, or the claim is not
    /// Bound.
    pub(super) fn claim_volume(&self, pod: &Pod) -> Option<&PersistentVolume> {
        let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
        let claim = volumes.iter().find_map(|volume| volume.persistent_volume_claim.as_ref())?;
        let claim = self.claims.get(&claim.claim_name)?;
        if claim.status.as_ref()?.phase.as_deref() != Some("Bound") {
            return None;
        }
        self.volumes.get(claim.spec.as_ref()?.volume_name.as_ref()?)
    }

    /// `volumesAttached` of a Node.
    pub(super) fn volumes_attached(&self, node: &str) -> BTreeSet<String> {
        let status = self.nodes.get(node).and_then(|node| node.status.as_ref());
        let attached = status.and_then(|status| status.volumes_attached.as_ref());
        attached.into_iter().flatten().map(|volume| volume.name.clone()).collect()
    }

    /// Numbers of pods, claims, volumes and VolumeAttachments, and of entries in `volumesAttached` and
    /// `volumesInUse` of all Nodes, as a text. Leaves out those that are 0: the text is empty if all are.
    pub(super) fn remaining_objects(&self) -> String {
        let attached: usize = self.nodes.keys().map(|node| self.volumes_attached(node).len()).sum();
        let used = self.nodes.values().filter_map(|node| node.status.as_ref()?.volumes_in_use.as_ref());
        let used: usize = used.map(Vec::len).sum();
        let counts = [
            ("pods", self.pods.len()),
            ("claims", self.claims.len()),
            ("volumes", self.volumes.len()),
            ("attachments", self.attachments.len()),
            ("volumes that nodes were told of", attached),
            ("volumes that nodes use", used),
        ];
        let nonzero = counts.into_iter().filter(|(_, count)| *count > 0);
        nonzero.map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
    }
}

async fn list_by_name<K>(client: &Client) -> Result<BTreeMap<String, K>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let all: Api<K> = Api::all(client.clone());
    let items = retry::request(async |_| all.list(&ListParams::default()).await).await?.items;
    Ok(items.into_iter().map(|object| (object.name_any(), object)).collect())
}
