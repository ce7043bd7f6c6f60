//! CSI's Identity and Node services.

mod convert;

use std::{collections::BTreeMap, sync::Arc};

use cofferdam_backend::in_flight::OperationKey;
use cofferdam_csi::{
    server::{OperationLock, OperationLocks},
    v1::{
        self, GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
        GetPluginInfoResponse, NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
        NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
        NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
        NodeServiceCapability, NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
        NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, ProbeRequest,
        ProbeResponse, Topology,
        identity_server::Identity,
        node_server::Node as NodeRpc,
        node_service_capability::{Rpc, Type, rpc},
        volume_usage::Unit,
    },
};
use cofferdam_domain::storage::{Feature, ability::PluginCapability};
use tokio::sync::Mutex;
use tonic::{Request, Response, Status};

use crate::{
    error::NodeError,
    manifest::DriverManifest,
    mounter::Mounter,
    node::{ExpandRequest, NodeVolumes, VolumeStats},
};
use convert::AnyPublishRequest;

/// The node, for NodeGetInfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// CSI's `node_id`: the Node's name.
    pub node_id: String,
    /// Topology segments for the driver's keys.
    pub topology_segments: BTreeMap<String, String>,
}

/// The Identity and Node services of one driver.
#[derive(Debug)]
pub struct NodeService<M> {
    node: Arc<NodeVolumes<M>>,
    manifest: Arc<DriverManifest>,
    identity: Arc<NodeIdentity>,
    locks: OperationLocks,
    /// Volumes with a NodeGetVolumeStats in flight: if storage does not respond, these calls block at most
    /// one thread per volume.
    stats_locks: OperationLocks,
    probe_lock: Arc<Mutex<()>>,
}

impl<M> Clone for NodeService<M> {
    fn clone(&self) -> Self {
        Self {
            node: Arc::clone(&self.node),
            manifest: Arc::clone(&self.manifest),
            identity: Arc::clone(&self.identity),
            locks: self.locks.clone(),
            stats_locks: self.stats_locks.clone(),
            probe_lock: Arc::clone(&self.probe_lock),
        }
    }
}

impl<M: Mounter + 'static> NodeService<M> {
    /// Creates the services of the driver that the manifest describes.
    pub fn new(node: NodeVolumes<M>, manifest: DriverManifest, identity: NodeIdentity) -> Self {
        Self {
            node: Arc::new(node),
            manifest: Arc::new(manifest),
            identity: Arc::new(identity),
            locks: OperationLocks::default(),
            stats_locks: OperationLocks::default(),
            probe_lock: Arc::default(),
        }
    }

    /// Returns the node's volumes.
    pub fn node(&self) -> &NodeVolumes<M> {
        &self.node
    }

    /// Runs an operation on a volume on a blocking thread. It continues if the caller disconnects. The volume
    /// is locked until the operation has finished; until then further operations on the volume fail with
    /// `ABORTED`. NodeGetVolumeStats has a lock of its own.
    async fn run_locked<R: Send + 'static>(
        &self,
        volume: &str,
        operation: impl FnOnce(&NodeVolumes<M>) -> Result<R, NodeError> + Send + 'static,
    ) -> Result<R, Status> {
        let lock = self.locks.try_acquire(OperationKey::Volume(volume.into()))?;
        self.run_blocking(lock, operation).await
    }

    async fn run_blocking<R: Send + 'static>(
        &self,
        lock: OperationLock,
        operation: impl FnOnce(&NodeVolumes<M>) -> Result<R, NodeError> + Send + 'static,
    ) -> Result<R, Status> {
        let node = Arc::clone(&self.node);
        let result = tokio::task::spawn_blocking(move || {
            let outcome = operation(&node);
            drop(lock);
            outcome
        });
        flatten_result(result.await)
    }
}

fn flatten_result<R>(result: Result<Result<R, NodeError>, tokio::task::JoinError>) -> Result<R, Status> {
    match result {
        Ok(done) => done.map_err(|error| convert::status(&error)),
        Err(_) => Err(Status::internal(cofferdam_csi::server::PANIC_RESPONSE)),
    }
}

#[tonic::async_trait]
impl<M: Mounter + 'static> Identity for NodeService<M> {
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
        // Unresponsive storage blocks at most one thread. Further probes wait until their deadline.
        let probe_guard = Arc::clone(&self.probe_lock).lock_owned().await;
        let records_result = tokio::task::spawn_blocking(move || {
            let records_result = node.mounter().records().map(drop);
            drop(probe_guard);
            records_result
        });
        let records_result = records_result.await;
        match records_result {
            Ok(Ok(())) => Ok(Response::new(ProbeResponse { ready: Some(true) })),
            Ok(Err(error)) => Err(Status::failed_precondition(error.to_string())),
            Err(_) => Err(Status::internal(cofferdam_csi::server::PANIC_RESPONSE)),
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
impl<M: Mounter + 'static> NodeRpc for NodeService<M> {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let stage = convert::stage_request(request.into_inner(), self.manifest.has_publishing())?;
        self.run_locked(&stage.volume.clone(), move |node| node.stage(&stage)).await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let NodeUnstageVolumeRequest { volume_id, staging_target_path } = request.into_inner();
        convert::check_volume_id(&volume_id)?;
        self.run_locked(&volume_id.clone(), move |node| node.unstage(&volume_id, &staging_target_path))
            .await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        match convert::publish_request(request.into_inner())? {
            AnyPublishRequest::Staged(publish) => {
                self.run_locked(&publish.volume.clone(), move |node| node.publish(&publish)).await?;
            }
            AnyPublishRequest::Inline(publish) => {
                self.run_locked(&publish.volume.clone(), move |node| node.publish_inline(&publish)).await?;
            }
        }
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let NodeUnpublishVolumeRequest { volume_id, target_path } = request.into_inner();
        convert::check_volume_id(&volume_id)?;
        self.run_locked(&volume_id.clone(), move |node| node.unpublish(&volume_id, &target_path)).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let NodeGetVolumeStatsRequest { volume_id, volume_path, .. } = request.into_inner();
        convert::check_volume_id(&volume_id)?;
        convert::check_required("volume_path", &volume_path)?;
        let lock = self.stats_locks.try_acquire(OperationKey::Volume(volume_id.as_str().into()))?;
        let stats = self.run_blocking(lock, move |node| node.volume_stats(&volume_id, &volume_path)).await?;
        Ok(Response::new(stats_response(&stats)))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        convert::check_volume_id(&request.volume_id)?;
        convert::check_required("volume_path", &request.volume_path)?;
        request.volume_capability.map(convert::volume_capability).transpose()?;
        let (required, limit) = convert::capacity_range(request.capacity_range)?;
        let expand = ExpandRequest {
            volume: request.volume_id,
            volume_path: request.volume_path,
            required,
            limit,
            is_size_published: self.manifest.has_publishing(),
        };
        let size = self.run_locked(&expand.volume.clone(), move |node| node.expand(&expand)).await?;
        Ok(Response::new(NodeExpandVolumeResponse {
            capacity_bytes: convert::to_csi_bytes(size.unwrap_or_default()),
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
            // Access to a volume on one node is controlled by this plugin, whatever the driver supports.
            // Without this capability kubelet maps ReadWriteOnce and ReadWriteOncePod to the same mode, and
            // two pods of a node could not share a volume.
            rpc::Type::SingleNodeMultiWriter,
        ];
        if self.manifest.has_feature(Feature::VolumeMountGroup) {
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
        let NodeIdentity { node_id, topology_segments } = &*self.identity;
        let topology = Topology { segments: topology_segments.clone() };
        Ok(Response::new(NodeGetInfoResponse {
            node_id: node_id.clone(),
            max_volumes_per_node: self.manifest.volumes_per_node().unwrap_or_default().into(),
            accessible_topology: (!topology_segments.is_empty()).then_some(topology),
        }))
    }
}

fn stats_response(stats: &VolumeStats) -> NodeGetVolumeStatsResponse {
    let usage = |unit: Unit, available, total, used| v1::VolumeUsage {
        available: convert::to_csi_bytes(available),
        total: convert::to_csi_bytes(total),
        used: convert::to_csi_bytes(used),
        unit: unit.into(),
    };
    let filesystem_usage = &stats.usage;
    let mut usages =
        vec![usage(Unit::Bytes, filesystem_usage.available, filesystem_usage.total, filesystem_usage.used)];
    if !stats.is_block {
        usages.push(usage(
            Unit::Inodes,
            filesystem_usage.inodes_free,
            filesystem_usage.inodes,
            filesystem_usage.inodes_used,
        ));
    }
    let condition =
        v1::VolumeCondition { abnormal: stats.condition.abnormal, message: stats.condition.message.clone() };
    NodeGetVolumeStatsResponse { usage: usages, volume_condition: Some(condition) }
}
