//! CSI's Identity and Node services, as kubelet calls them.

mod convert;

use std::{collections::BTreeMap, sync::Arc};

use cofferdam_backend::in_flight::OperationKey;
use cofferdam_csi::{
    server::{Lock, Locks},
    v1::{
        self, GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
        GetPluginInfoResponse, NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
        NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
        NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
        NodeServiceCapability, NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
        NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, ProbeRequest,
        ProbeResponse, Topology,
        identity_server::Identity,
        node_server::Node as NodeCalls,
        node_service_capability::{Rpc, Type, rpc},
        volume_usage::Unit,
    },
};
use cofferdam_domain::storage::{Feature, ability::PluginCapability};
use tokio::sync::Mutex;
use tonic::{Request, Response, Status};

use crate::{
    error::NodeError,
    machine::Machine,
    manifest::Manifest,
    node::{Expand, Node, Statistics},
};
use convert::Publication;

/// Which node this is, as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// The node's name.
    pub node: String,
    /// Where it is, for the driver's topology keys.
    pub segments: BTreeMap<String, String>,
}

/// The services of one driver.
#[derive(Debug)]
pub struct NodeService<M> {
    node: Arc<Node<M>>,
    manifest: Arc<Manifest>,
    whereabouts: Arc<Whereabouts>,
    locks: Locks,
    /// Volumes that are being measured: storage that hangs holds one thread, however often it is asked for.
    measured: Locks,
    probe: Arc<Mutex<()>>,
}

impl<M> Clone for NodeService<M> {
    fn clone(&self) -> Self {
        Self {
            node: Arc::clone(&self.node),
            manifest: Arc::clone(&self.manifest),
            whereabouts: Arc::clone(&self.whereabouts),
            locks: self.locks.clone(),
            measured: self.measured.clone(),
            probe: Arc::clone(&self.probe),
        }
    }
}

impl<M: Machine + 'static> NodeService<M> {
    /// The services of the driver that the manifest describes.
    pub fn new(node: Node<M>, manifest: Manifest, whereabouts: Whereabouts) -> Self {
        Self {
            node: Arc::new(node),
            manifest: Arc::new(manifest),
            whereabouts: Arc::new(whereabouts),
            locks: Locks::default(),
            measured: Locks::default(),
            probe: Arc::default(),
        }
    }

    /// What answers them.
    pub fn node(&self) -> &Node<M> {
        &self.node
    }

    /// Does one thing for a volume, on a thread that may wait. It is not cut off when the caller goes away:
    /// the volume stays locked until it has ended, and the same call again hears `ABORTED` until then.
    async fn alone<R: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce(&Node<M>) -> Result<R, NodeError> + Send + 'static,
    ) -> Result<R, Status> {
        let lock = self.locks.take(OperationKey::Volume(volume.into()))?;
        self.with(lock, work).await
    }

    async fn with<R: Send + 'static>(
        &self,
        lock: Lock,
        work: impl FnOnce(&Node<M>) -> Result<R, NodeError> + Send + 'static,
    ) -> Result<R, Status> {
        let node = Arc::clone(&self.node);
        let ended = tokio::task::spawn_blocking(move || {
            let done = work(&node);
            drop(lock);
            done
        });
        finish(ended.await)
    }
}

fn finish<R>(ended: Result<Result<R, NodeError>, tokio::task::JoinError>) -> Result<R, Status> {
    match ended {
        Ok(done) => done.map_err(|error| convert::status(&error)),
        Err(_) => Err(Status::internal("a defect of this program ended the call: its log says more")),
    }
}

#[tonic::async_trait]
impl<M: Machine + 'static> Identity for NodeService<M> {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.manifest.driver().to_string(),
            vendor_version: self.manifest.version().to_owned(),
            manifest: BTreeMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let capabilities = self.manifest.plugin_capabilities();
        let capabilities = capabilities.into_iter().map(plugin_capability).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let node = Arc::clone(&self.node);
        // A disk that hangs holds one thread; who asks meanwhile waits for as long as he likes.
        let turn = Arc::clone(&self.probe).lock_owned().await;
        let read = tokio::task::spawn_blocking(move || {
            let read = node.machine().records().map(drop);
            drop(turn);
            read
        });
        let read = read.await;
        match read {
            Ok(Ok(())) => Ok(Response::new(ProbeResponse { ready: Some(true) })),
            Ok(Err(error)) => Err(Status::failed_precondition(error.to_string())),
            Err(_) => Err(Status::internal("a defect of this program ended the call: its log says more")),
        }
    }
}

fn plugin_capability(capability: PluginCapability) -> v1::PluginCapability {
    use v1::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
    let service = |kind: service::Type| Type::Service(Service { r#type: kind.into() });
    let expansion =
        |kind: volume_expansion::Type| Type::VolumeExpansion(VolumeExpansion { r#type: kind.into() });
    let kind = match capability {
        PluginCapability::ControllerService => service(service::Type::ControllerService),
        PluginCapability::AccessibilityConstraints => service(service::Type::VolumeAccessibilityConstraints),
        PluginCapability::GroupControllerService => service(service::Type::GroupControllerService),
        PluginCapability::OnlineExpansion => expansion(volume_expansion::Type::Online),
        PluginCapability::OfflineExpansion => expansion(volume_expansion::Type::Offline),
    };
    v1::PluginCapability { r#type: Some(kind) }
}

#[tonic::async_trait]
impl<M: Machine + 'static> NodeCalls for NodeService<M> {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let stage = convert::stage(request.into_inner(), self.manifest.publishes())?;
        self.alone(&stage.volume.clone(), move |node| node.stage(&stage)).await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let NodeUnstageVolumeRequest { volume_id, staging_target_path } = request.into_inner();
        convert::volume(&volume_id)?;
        self.alone(&volume_id.clone(), move |node| node.unstage(&volume_id, &staging_target_path)).await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        match convert::publish(request.into_inner())? {
            Publication::Staged(publish) => {
                self.alone(&publish.volume.clone(), move |node| node.publish(&publish)).await?;
            }
            Publication::Inline(publish) => {
                self.alone(&publish.volume.clone(), move |node| node.publish_inline(&publish)).await?;
            }
        }
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let NodeUnpublishVolumeRequest { volume_id, target_path } = request.into_inner();
        convert::volume(&volume_id)?;
        self.alone(&volume_id.clone(), move |node| node.unpublish(&volume_id, &target_path)).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let NodeGetVolumeStatsRequest { volume_id, volume_path, .. } = request.into_inner();
        convert::volume(&volume_id)?;
        convert::required("volume_path", &volume_path)?;
        let lock = self.measured.take(OperationKey::Volume(volume_id.as_str().into()))?;
        let looked = self.with(lock, move |node| node.statistics(&volume_id, &volume_path)).await?;
        Ok(Response::new(statistics(&looked)))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        convert::volume(&request.volume_id)?;
        convert::required("volume_path", &request.volume_path)?;
        request.volume_capability.map(convert::capability).transpose()?;
        let (required, limit) = convert::range(request.capacity_range)?;
        let expand = Expand {
            volume: request.volume_id,
            volume_path: request.volume_path,
            required,
            limit,
            published: self.manifest.publishes(),
        };
        let size = self.alone(&expand.volume.clone(), move |node| node.expand(&expand)).await?;
        Ok(Response::new(NodeExpandVolumeResponse {
            capacity_bytes: convert::signed(size.unwrap_or_default()),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let mut kinds = vec![
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            rpc::Type::VolumeCondition,
            // Who writes on one node is this node's to keep apart, whatever the driver can. Without it
            // kubelet would name one mode for both, and two pods of a node could not share a volume.
            rpc::Type::SingleNodeMultiWriter,
        ];
        if self.manifest.has(Feature::VolumeMountGroup) {
            kinds.push(rpc::Type::VolumeMountGroup);
        }
        let capability =
            |kind: rpc::Type| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) };
        let capabilities = kinds.into_iter().map(capability).collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let Whereabouts { node, segments } = &*self.whereabouts;
        let topology = Topology { segments: segments.clone() };
        Ok(Response::new(NodeGetInfoResponse {
            node_id: node.clone(),
            max_volumes_per_node: self.manifest.volumes_per_node().unwrap_or_default().into(),
            accessible_topology: (!segments.is_empty()).then_some(topology),
        }))
    }
}

fn statistics(found: &Statistics) -> NodeGetVolumeStatsResponse {
    let usage = |unit: Unit, available, total, used| v1::VolumeUsage {
        available: convert::signed(available),
        total: convert::signed(total),
        used: convert::signed(used),
        unit: unit.into(),
    };
    let of = &found.usage;
    let mut all = vec![usage(Unit::Bytes, of.available, of.total, of.used)];
    if !found.block {
        all.push(usage(Unit::Inodes, of.inodes_free, of.inodes, of.inodes_used));
    }
    let condition =
        v1::VolumeCondition { abnormal: found.health.abnormal, message: found.health.message.clone() };
    NodeGetVolumeStatsResponse { usage: all, volume_condition: Some(condition) }
}
