//! The driver's readiness, identity and capabilities, queried on each new connection.

use std::{collections::BTreeSet, time::Duration};

use cofferdam_backend::{
    BackendMetrics, CallMetrics, Redactor,
    checks::{self, printable},
};
use cofferdam_domain::{
    DriverName,
    storage::{
        Ability, Description, Feature, Placement, StorageError,
        ability::{ControllerCapability, PluginCapability},
    },
};
use tokio::time::Instant;
use tonic::Code;

use crate::{
    grpc::{GrpcConnection, GrpcMethod},
    status::{CsiCallFailure, ResourceExhaustedMeaning, RpcError},
    v1,
};

/// gRPC path of Probe.
pub const PROBE_METHOD: &str = "/csi.v1.Identity/Probe";
const PLUGIN_INFO_METHOD: &str = "/csi.v1.Identity/GetPluginInfo";
const PLUGIN_CAPABILITIES_METHOD: &str = "/csi.v1.Identity/GetPluginCapabilities";
const CONTROLLER_CAPABILITIES_METHOD: &str = "/csi.v1.Controller/ControllerGetCapabilities";
const NODE_CAPABILITIES_METHOD: &str = "/csi.v1.Node/NodeGetCapabilities";
const GROUP_CAPABILITIES_METHOD: &str = "/csi.v1.GroupController/GroupControllerGetCapabilities";

/// Version of a driver that reports none. CSI requires one; the sidecars do not.
const UNKNOWN_VERSION: &str = "unknown";

/// The driver's description and capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CsiIdentity {
    pub(crate) description: Description,
    pub(crate) abilities: BTreeSet<Ability>,
    pub(crate) plugin_capabilities: BTreeSet<PluginCapability>,
    pub(crate) controller_capabilities: BTreeSet<ControllerCapability>,
    /// True if volumes are expanded by the node service alone.
    pub(crate) has_node_only_expansion: bool,
}

impl CsiIdentity {
    /// Returns true if the controller service has a capability.
    pub(crate) fn has_capability(&self, capability: ControllerCapability) -> bool {
        self.controller_capabilities.contains(&capability)
    }
}

/// A failed identification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdentityError {
    /// The connection could not be established or was lost, or NodeGetCapabilities failed temporarily. A new
    /// connection may succeed.
    ConnectionLost(String),
    /// Probe returned false or timed out.
    NotReady(String),
    /// The driver returned an error or a malformed response, or the call timed out: the call's gRPC path and
    /// the error.
    CallFailed(&'static str, StorageError),
    /// The driver's description is invalid; the text is the violated rule.
    InvalidResponse(String),
}

/// Identity queries on one connection.
pub(crate) struct IdentityQuery<'a> {
    pub(crate) connection: &'a GrpcConnection,
    /// Timeout of one call.
    pub(crate) timeout: Duration,
    pub(crate) metrics: &'a BackendMetrics,
}

impl IdentityQuery<'_> {
    /// Probes the driver; `name` is for the metrics. As CSI specifies, a response without `ready` means
    /// ready. A timeout means not ready.
    ///
    /// # Errors
    /// [`IdentityError`]
    pub(crate) async fn probe(&self, name: Option<&DriverName>) -> Result<(), IdentityError> {
        let method: GrpcMethod<_, v1::ProbeResponse> =
            |connection, request| Box::pin(async { connection.identity().probe(request).await });
        match self.call(PROBE_METHOD, v1::ProbeRequest {}, method, &self.metrics.call_metrics(name)).await {
            Ok(response) if response.ready.unwrap_or(true) => Ok(()),
            Ok(_) => Err(IdentityError::NotReady("Probe returned false".to_owned())),
            Err(RpcError::DeadlineExceeded(_) | RpcError::Status(Code::DeadlineExceeded, _)) => {
                Err(IdentityError::NotReady("Probe timed out".to_owned()))
            }
            Err(error) => Err(identity_error(PROBE_METHOD, error)),
        }
    }

    /// Queries the description and all capabilities.
    ///
    /// # Errors
    /// [`IdentityError`]
    pub(crate) async fn fetch_identity(&self) -> Result<CsiIdentity, IdentityError> {
        let method: GrpcMethod<_, v1::GetPluginInfoResponse> =
            |connection, request| Box::pin(async { connection.identity().get_plugin_info(request).await });
        let unnamed_driver_metrics = self.metrics.call_metrics(None);
        let info =
            self.call(PLUGIN_INFO_METHOD, v1::GetPluginInfoRequest {}, method, &unnamed_driver_metrics).await;
        let info = info.map_err(|error| identity_error(PLUGIN_INFO_METHOD, error))?;
        let name = DriverName::from(info.name.as_str());
        let version =
            if info.vendor_version.is_empty() { UNKNOWN_VERSION.to_owned() } else { info.vendor_version };
        let mut description = Description {
            name,
            version,
            topology_keys: Vec::new(),
            placement: Placement::Central,
            volumes_per_node: None,
            features: Vec::new(),
        };
        checks::check_description(&description)
            .map_err(|violation| IdentityError::InvalidResponse(printable(&violation.to_string())))?;
        let calls = self.metrics.call_metrics(Some(&description.name));
        let plugin_capabilities = self.plugin_capabilities(&calls).await?;
        let controller_capabilities = if plugin_capabilities.contains(&PluginCapability::ControllerService) {
            self.controller_capabilities(&calls).await?
        } else {
            BTreeSet::new()
        };
        let has_group_snapshots = plugin_capabilities.contains(&PluginCapability::GroupControllerService)
            && self.has_group_snapshots(&calls).await?;
        let has_node_only_expansion = plugin_capabilities.contains(&PluginCapability::ControllerService)
            && !controller_capabilities.contains(&ControllerCapability::ExpandVolume)
            && self.has_node_expansion(&calls).await?;
        description.features = features(&plugin_capabilities, &controller_capabilities)
            .into_iter()
            .map(|feature| feature.to_string())
            .collect();
        let mut abilities = abilities(&controller_capabilities, has_group_snapshots);
        abilities.extend(has_node_only_expansion.then_some(Ability::Expansion));
        Ok(CsiIdentity {
            description,
            abilities,
            plugin_capabilities,
            controller_capabilities,
            has_node_only_expansion,
        })
    }

    async fn plugin_capabilities(
        &self,
        calls: &CallMetrics,
    ) -> Result<BTreeSet<PluginCapability>, IdentityError> {
        let method: GrpcMethod<_, v1::GetPluginCapabilitiesResponse> = |connection, request| {
            Box::pin(async { connection.identity().get_plugin_capabilities(request).await })
        };
        let response =
            self.call(PLUGIN_CAPABILITIES_METHOD, v1::GetPluginCapabilitiesRequest {}, method, calls).await;
        let response = response.map_err(|error| identity_error(PLUGIN_CAPABILITIES_METHOD, error))?;
        Ok(response.capabilities.iter().filter_map(plugin_capability).collect())
    }

    async fn controller_capabilities(
        &self,
        calls: &CallMetrics,
    ) -> Result<BTreeSet<ControllerCapability>, IdentityError> {
        let method: GrpcMethod<_, v1::ControllerGetCapabilitiesResponse> = |connection, request| {
            Box::pin(async { connection.controller().controller_get_capabilities(request).await })
        };
        let response = self
            .call(CONTROLLER_CAPABILITIES_METHOD, v1::ControllerGetCapabilitiesRequest {}, method, calls)
            .await;
        let response = response.map_err(|error| identity_error(CONTROLLER_CAPABILITIES_METHOD, error))?;
        Ok(response.capabilities.iter().filter_map(controller_capability).collect())
    }

    async fn has_group_snapshots(&self, calls: &CallMetrics) -> Result<bool, IdentityError> {
        use v1::group_controller_service_capability::{Type, rpc};
        let method: GrpcMethod<_, v1::GroupControllerGetCapabilitiesResponse> = |connection, request| {
            Box::pin(async { connection.group_controller().group_controller_get_capabilities(request).await })
        };
        let response = self
            .call(GROUP_CAPABILITIES_METHOD, v1::GroupControllerGetCapabilitiesRequest {}, method, calls)
            .await;
        let response = response.map_err(|error| identity_error(GROUP_CAPABILITIES_METHOD, error))?;
        let capabilities = response.capabilities.iter().filter_map(|capability| capability.r#type.as_ref());
        Ok(capabilities.into_iter().any(|Type::Rpc(capabilities)| {
            capabilities.r#type() == rpc::Type::CreateDeleteGetVolumeGroupSnapshot
        }))
    }

    /// Returns true if the node service on this socket supports expansion, as external-resizer checks it.
    /// Most controller sockets have no node service; then the result is false, as after any other permanent
    /// error. A transient failure fails the session, because the result is used until this process restarts.
    async fn has_node_expansion(&self, calls: &CallMetrics) -> Result<bool, IdentityError> {
        use v1::node_service_capability::{Type, rpc};
        let method: GrpcMethod<_, v1::NodeGetCapabilitiesResponse> =
            |connection, request| Box::pin(async { connection.node().node_get_capabilities(request).await });
        let response =
            match self.call(NODE_CAPABILITIES_METHOD, v1::NodeGetCapabilitiesRequest {}, method, calls).await
            {
                Ok(response) => response,
                Err(RpcError::ConnectionLost(reason)) => return Err(IdentityError::ConnectionLost(reason)),
                Err(RpcError::Status(Code::Unavailable | Code::DeadlineExceeded, reason)) => {
                    return Err(IdentityError::ConnectionLost(format!(
                        "{NODE_CAPABILITIES_METHOD} failed: {reason}"
                    )));
                }
                Err(RpcError::DeadlineExceeded(after)) => {
                    return Err(IdentityError::ConnectionLost(format!(
                        "{NODE_CAPABILITIES_METHOD} had no response within {after:?}"
                    )));
                }
                Err(RpcError::Status(..) | RpcError::MalformedResponse(_)) => return Ok(false),
            };
        let capabilities = response.capabilities.iter().filter_map(|capability| capability.r#type.as_ref());
        Ok(capabilities
            .into_iter()
            .any(|Type::Rpc(capabilities)| capabilities.r#type() == rpc::Type::ExpandVolume))
    }

    async fn call<Q: std::fmt::Debug, R: std::fmt::Debug>(
        &self,
        path: &'static str,
        request: Q,
        method: GrpcMethod<Q, R>,
        calls: &CallMetrics,
    ) -> Result<R, RpcError> {
        let started = Instant::now();
        let response = self.connection.clone().call(request, started + self.timeout, method).await;
        let failure_labels = response.as_ref().err().map(|error| {
            let failure = CsiCallFailure::Rpc(error.clone());
            let label = failure.label();
            (failure.into_error(ResourceExhaustedMeaning::Final, &Redactor::default()).kind.as_str(), label)
        });
        let (code, outcome) = failure_labels.unwrap_or(("OK", "ok"));
        calls.observe(path, code, outcome, started.elapsed());
        response
    }
}

fn identity_error(method: &'static str, error: RpcError) -> IdentityError {
    match error {
        RpcError::ConnectionLost(reason) => IdentityError::ConnectionLost(reason),
        error @ (RpcError::Status(..) | RpcError::MalformedResponse(_) | RpcError::DeadlineExceeded(_)) => {
            let failure = CsiCallFailure::Rpc(error);
            IdentityError::CallFailed(
                method,
                failure.into_error(ResourceExhaustedMeaning::Final, &Redactor::default()),
            )
        }
    }
}

/// Converts a plugin capability. Unknown and unused capabilities are dropped.
fn plugin_capability(capability: &v1::PluginCapability) -> Option<PluginCapability> {
    use v1::plugin_capability::{Type, service, volume_expansion};
    match capability.r#type.as_ref()? {
        Type::Service(service) => match service.r#type() {
            service::Type::ControllerService => Some(PluginCapability::ControllerService),
            service::Type::VolumeAccessibilityConstraints => Some(PluginCapability::AccessibilityConstraints),
            service::Type::GroupControllerService => Some(PluginCapability::GroupControllerService),
            service::Type::Unknown | service::Type::SnapshotMetadataService => None,
        },
        Type::VolumeExpansion(expansion) => match expansion.r#type() {
            volume_expansion::Type::Online => Some(PluginCapability::OnlineExpansion),
            volume_expansion::Type::Offline => Some(PluginCapability::OfflineExpansion),
            volume_expansion::Type::Unknown => None,
        },
    }
}

fn controller_capability(capability: &v1::ControllerServiceCapability) -> Option<ControllerCapability> {
    use v1::controller_service_capability::{Type, rpc::Type as Rpc};
    let Type::Rpc(rpc) = capability.r#type.as_ref()?;
    Some(match rpc.r#type() {
        Rpc::Unknown => return None,
        Rpc::CreateDeleteVolume => ControllerCapability::CreateDeleteVolume,
        Rpc::PublishUnpublishVolume => ControllerCapability::PublishUnpublishVolume,
        Rpc::ListVolumes => ControllerCapability::ListVolumes,
        Rpc::GetCapacity => ControllerCapability::GetCapacity,
        Rpc::CreateDeleteSnapshot => ControllerCapability::CreateDeleteSnapshot,
        Rpc::ListSnapshots => ControllerCapability::ListSnapshots,
        Rpc::CloneVolume => ControllerCapability::CloneVolume,
        Rpc::PublishReadonly => ControllerCapability::PublishReadonly,
        Rpc::ExpandVolume => ControllerCapability::ExpandVolume,
        Rpc::ListVolumesPublishedNodes => ControllerCapability::ListVolumesPublishedNodes,
        Rpc::VolumeCondition => ControllerCapability::VolumeCondition,
        Rpc::GetVolume => ControllerCapability::GetVolume,
        Rpc::SingleNodeMultiWriter => ControllerCapability::SingleNodeMultiWriter,
        Rpc::ModifyVolume => ControllerCapability::ModifyVolume,
        Rpc::GetSnapshot => ControllerCapability::GetSnapshot,
    })
}

fn abilities(controller: &BTreeSet<ControllerCapability>, has_group_snapshots: bool) -> BTreeSet<Ability> {
    let has = |capability| controller.contains(&capability);
    #[rustfmt::skip] // one row an ability
    let rows = [
        (Ability::Cloning,        has(ControllerCapability::CloneVolume)),
        (Ability::Restoring,      has(ControllerCapability::CreateDeleteSnapshot)),
        (Ability::Publishing,     has(ControllerCapability::PublishUnpublishVolume)),
        (Ability::Expansion,      has(ControllerCapability::ExpandVolume)),
        (Ability::Modification,   has(ControllerCapability::ModifyVolume)),
        (Ability::Snapshots,      has(ControllerCapability::CreateDeleteSnapshot)),
        (Ability::GroupSnapshots, has_group_snapshots),
        (Ability::Listing,        has(ControllerCapability::ListVolumes)),
        (Ability::Inspection,     has(ControllerCapability::GetVolume)),
        (Ability::Capacity,       has(ControllerCapability::GetCapacity)),
    ];
    rows.into_iter().filter(|(_, has)| *has).map(|(ability, _)| ability).collect()
}

/// Derives the driver's features from its capabilities. `volume-mount-group` is never among them: it belongs
/// to the node service, which is not queried for it.
fn features(
    plugin: &BTreeSet<PluginCapability>,
    controller: &BTreeSet<ControllerCapability>,
) -> Vec<Feature> {
    let has_controller = |capability| controller.contains(&capability);
    #[rustfmt::skip] // one row a feature
    let rows = [
        (Feature::PublishReadonly,       has_controller(ControllerCapability::PublishReadonly)),
        (Feature::PublishedNodes,        has_controller(ControllerCapability::ListVolumesPublishedNodes)),
        (Feature::VolumeCondition,       has_controller(ControllerCapability::VolumeCondition)),
        (Feature::OnlineExpansion,       plugin.contains(&PluginCapability::OnlineExpansion)),
        (Feature::SingleNodeMultiWriter, has_controller(ControllerCapability::SingleNodeMultiWriter)),
    ];
    rows.into_iter().filter(|(_, has)| *has).map(|(feature, _)| feature).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csi_capabilities_map_to_abilities_and_features() {
        use v1::controller_service_capability::{Rpc, Type};
        let capabilities: BTreeSet<_> = (-1..=20)
            .filter_map(|number| {
                let r#type = Some(Type::Rpc(Rpc { r#type: number }));
                controller_capability(&v1::ControllerServiceCapability { r#type })
            })
            .collect();
        let numbers: Vec<_> = capabilities.iter().map(|capability| *capability as i32).collect();
        assert_eq!(numbers, (1..=15).collect::<Vec<_>>(), "unknown numbers are dropped");
        assert_eq!(abilities(&capabilities, true), Ability::ALL.into());
        assert_eq!(abilities(&BTreeSet::new(), false), BTreeSet::new());
        let plugin = [PluginCapability::OnlineExpansion].into();
        assert_eq!(features(&plugin, &capabilities).len(), Feature::ALL.len() - 1);
    }

    #[test]
    fn create_delete_snapshot_implies_restoring() {
        let capabilities = [ControllerCapability::CreateDeleteSnapshot].into();
        assert_eq!(abilities(&capabilities, false), [Ability::Restoring, Ability::Snapshots].into());
    }
}
