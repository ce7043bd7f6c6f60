//! Who a driver is and what it can do, asked once a connection as the sidecars ask it.

use std::{collections::BTreeSet, time::Duration};

use cofferdam_backend::{BackendMetrics, CallMetrics, Redactor, checks};
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

pub(crate) const PROBE_METHOD: &str = "/csi.v1.Identity/Probe";
const PLUGIN_INFO_METHOD: &str = "/csi.v1.Identity/GetPluginInfo";
const PLUGIN_CAPABILITIES_METHOD: &str = "/csi.v1.Identity/GetPluginCapabilities";
const CONTROLLER_CAPABILITIES_METHOD: &str = "/csi.v1.Controller/ControllerGetCapabilities";
const NODE_CAPABILITIES_METHOD: &str = "/csi.v1.Node/NodeGetCapabilities";
const GROUP_CAPABILITIES_METHOD: &str = "/csi.v1.GroupController/GroupControllerGetCapabilities";

/// The version of a driver that names none, which CSI does not allow and the sidecars do.
const UNKNOWN_VERSION: &str = "unknown";

/// What a driver says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CsiIdentity {
    pub(crate) description: Description,
    pub(crate) abilities: BTreeSet<Ability>,
    pub(crate) plugin_capabilities: BTreeSet<PluginCapability>,
    pub(crate) controller_capabilities: BTreeSet<ControllerCapability>,
    /// Volumes grow on their nodes, and the controller has no part in it.
    pub(crate) has_node_only_expansion: bool,
}

impl CsiIdentity {
    /// Whether its controller service has a capability.
    pub(crate) fn has_capability(&self, capability: ControllerCapability) -> bool {
        self.controller_capabilities.contains(&capability)
    }
}

/// Why a driver that was connected is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdentityError {
    /// The connection broke: another one may do.
    ConnectionLost(String),
    /// It is not ready.
    NotReady(String),
    /// It refused a question.
    CallFailed(&'static str, StorageError),
    /// What it says cannot be true.
    InvalidResponse(String),
}

/// Asks a driver.
pub(crate) struct IdentityQuery<'a> {
    pub(crate) connection: &'a GrpcConnection,
    /// How long one answer may take.
    pub(crate) timeout: Duration,
    pub(crate) metrics: &'a BackendMetrics,
}

impl IdentityQuery<'_> {
    /// Whether the driver is ready. No word on it means that it is; a driver that has not answered in time is
    /// not.
    ///
    /// # Errors
    /// [`Unfit`]
    pub(crate) async fn probe(&self, name: Option<&DriverName>) -> Result<(), IdentityError> {
        let method: GrpcMethod<_, v1::ProbeResponse> =
            |wire, request| Box::pin(async { wire.identity().probe(request).await });
        match self.call(PROBE_METHOD, v1::ProbeRequest {}, method, &self.metrics.call_metrics(name)).await {
            Ok(answer) if answer.ready.unwrap_or(true) => Ok(()),
            Ok(_) => Err(IdentityError::NotReady("Probe says so".to_owned())),
            Err(RpcError::DeadlineExceeded(_) | RpcError::Status(Code::DeadlineExceeded, _)) => {
                Err(IdentityError::NotReady("Probe is not answered in time".to_owned()))
            }
            Err(fault) => Err(identity_error(PROBE_METHOD, fault)),
        }
    }

    /// Everything that a driver says of itself.
    ///
    /// # Errors
    /// [`Unfit`]
    pub(crate) async fn fetch_identity(&self) -> Result<CsiIdentity, IdentityError> {
        let method: GrpcMethod<_, v1::GetPluginInfoResponse> =
            |wire, request| Box::pin(async { wire.identity().get_plugin_info(request).await });
        let unnamed_driver_metrics = self.metrics.call_metrics(None);
        let info =
            self.call(PLUGIN_INFO_METHOD, v1::GetPluginInfoRequest {}, method, &unnamed_driver_metrics).await;
        let info = info.map_err(|fault| identity_error(PLUGIN_INFO_METHOD, fault))?;
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
        checks::description(&description)
            .map_err(|violation| IdentityError::InvalidResponse(violation.to_string()))?;
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
        let method: GrpcMethod<_, v1::GetPluginCapabilitiesResponse> =
            |wire, request| Box::pin(async { wire.identity().get_plugin_capabilities(request).await });
        let answer =
            self.call(PLUGIN_CAPABILITIES_METHOD, v1::GetPluginCapabilitiesRequest {}, method, calls).await;
        let answer = answer.map_err(|fault| identity_error(PLUGIN_CAPABILITIES_METHOD, fault))?;
        Ok(answer.capabilities.iter().filter_map(plugin_capability).collect())
    }

    async fn controller_capabilities(
        &self,
        calls: &CallMetrics,
    ) -> Result<BTreeSet<ControllerCapability>, IdentityError> {
        let method: GrpcMethod<_, v1::ControllerGetCapabilitiesResponse> =
            |wire, request| Box::pin(async { wire.controller().controller_get_capabilities(request).await });
        let answer = self
            .call(CONTROLLER_CAPABILITIES_METHOD, v1::ControllerGetCapabilitiesRequest {}, method, calls)
            .await;
        let answer = answer.map_err(|fault| identity_error(CONTROLLER_CAPABILITIES_METHOD, fault))?;
        Ok(answer.capabilities.iter().filter_map(controller_capability).collect())
    }

    async fn has_group_snapshots(&self, calls: &CallMetrics) -> Result<bool, IdentityError> {
        use v1::group_controller_service_capability::{Type, rpc};
        let method: GrpcMethod<_, v1::GroupControllerGetCapabilitiesResponse> = |wire, request| {
            Box::pin(async { wire.group_controller().group_controller_get_capabilities(request).await })
        };
        let answer = self
            .call(GROUP_CAPABILITIES_METHOD, v1::GroupControllerGetCapabilitiesRequest {}, method, calls)
            .await;
        let answer = answer.map_err(|fault| identity_error(GROUP_CAPABILITIES_METHOD, fault))?;
        let capabilities = answer.capabilities.iter().filter_map(|capability| capability.r#type.as_ref());
        Ok(capabilities.into_iter().any(|Type::Rpc(capabilities)| {
            capabilities.r#type() == rpc::Type::CreateDeleteGetVolumeGroupSnapshot
        }))
    }

    /// Whether the node service behind this socket expands volumes, as external-resizer asks it. Most
    /// controllers' sockets have no node service, which is a no. One that cannot answer now is asked again:
    /// what it says first counts for as long as this process runs.
    async fn has_node_expansion(&self, calls: &CallMetrics) -> Result<bool, IdentityError> {
        use v1::node_service_capability::{Type, rpc};
        let method: GrpcMethod<_, v1::NodeGetCapabilitiesResponse> =
            |wire, request| Box::pin(async { wire.node().node_get_capabilities(request).await });
        let answer =
            match self.call(NODE_CAPABILITIES_METHOD, v1::NodeGetCapabilitiesRequest {}, method, calls).await
            {
                Ok(answer) => answer,
                Err(RpcError::ConnectionLost(reason)) => return Err(IdentityError::ConnectionLost(reason)),
                Err(RpcError::Status(Code::Unavailable | Code::DeadlineExceeded, reason)) => {
                    return Err(IdentityError::ConnectionLost(format!(
                        "{NODE_CAPABILITIES_METHOD} failed: {reason}"
                    )));
                }
                Err(RpcError::DeadlineExceeded(after)) => {
                    return Err(IdentityError::ConnectionLost(format!(
                        "{NODE_CAPABILITIES_METHOD} had no answer within {after:?}"
                    )));
                }
                Err(RpcError::Status(..) | RpcError::MalformedResponse(_)) => return Ok(false),
            };
        let capabilities = answer.capabilities.iter().filter_map(|capability| capability.r#type.as_ref());
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
        let answer = self.connection.clone().call(request, started + self.timeout, method).await;
        let failure_labels = answer.as_ref().err().map(|fault| {
            let failure = CsiCallFailure::Rpc(fault.clone());
            let label = failure.label();
            (failure.into_error(ResourceExhaustedMeaning::Final, &Redactor::default()).kind.as_str(), label)
        });
        let (code, outcome) = failure_labels.unwrap_or(("OK", "ok"));
        calls.observe(path, code, outcome, started.elapsed());
        answer
    }
}

fn identity_error(method: &'static str, fault: RpcError) -> IdentityError {
    match fault {
        RpcError::ConnectionLost(reason) => IdentityError::ConnectionLost(reason),
        fault @ (RpcError::Status(..) | RpcError::MalformedResponse(_) | RpcError::DeadlineExceeded(_)) => {
            let failure = CsiCallFailure::Rpc(fault);
            IdentityError::CallFailed(
                method,
                failure.into_error(ResourceExhaustedMeaning::Final, &Redactor::default()),
            )
        }
    }
}

/// A plugin capability; those that mean nothing here, or are newer than this program, are left out.
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
    use ControllerCapability as Csi;
    let has = |capability| controller.contains(&capability);
    #[rustfmt::skip] // one row an ability
    let rows = [
        (Ability::Cloning,        has(Csi::CloneVolume)),
        (Ability::Restoring,      has(Csi::CreateDeleteSnapshot)),
        (Ability::Publishing,     has(Csi::PublishUnpublishVolume)),
        (Ability::Expansion,      has(Csi::ExpandVolume)),
        (Ability::Modification,   has(Csi::ModifyVolume)),
        (Ability::Snapshots,      has(Csi::CreateDeleteSnapshot)),
        (Ability::GroupSnapshots, has_group_snapshots),
        (Ability::Listing,        has(Csi::ListVolumes)),
        (Ability::Inspection,     has(Csi::GetVolume)),
        (Ability::Capacity,       has(Csi::GetCapacity)),
    ];
    rows.into_iter().filter(|(_, has)| *has).map(|(ability, _)| ability).collect()
}

/// What is a feature here. `volume-mount-group` is the node service's to say, and it is not asked.
fn features(
    plugin: &BTreeSet<PluginCapability>,
    controller: &BTreeSet<ControllerCapability>,
) -> Vec<Feature> {
    use ControllerCapability as Csi;
    let has_controller = |capability| controller.contains(&capability);
    #[rustfmt::skip] // one row a feature
    let rows = [
        (Feature::PublishReadonly,       has_controller(Csi::PublishReadonly)),
        (Feature::PublishedNodes,        has_controller(Csi::ListVolumesPublishedNodes)),
        (Feature::VolumeCondition,       has_controller(Csi::VolumeCondition)),
        (Feature::OnlineExpansion,       plugin.contains(&PluginCapability::OnlineExpansion)),
        (Feature::SingleNodeMultiWriter, has_controller(Csi::SingleNodeMultiWriter)),
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
        assert_eq!(numbers, (1..=15).collect::<Vec<_>>(), "numbers that nobody knows are left out");
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
