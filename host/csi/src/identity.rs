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
    status::{Exhausted, Failure, Fault},
    v1,
    wire::{Method, Wire},
};

pub(crate) const PROBE: &str = "/csi.v1.Identity/Probe";
const INFO: &str = "/csi.v1.Identity/GetPluginInfo";
const PLUGIN: &str = "/csi.v1.Identity/GetPluginCapabilities";
const CONTROLLER: &str = "/csi.v1.Controller/ControllerGetCapabilities";
const NODE: &str = "/csi.v1.Node/NodeGetCapabilities";
const GROUP: &str = "/csi.v1.GroupController/GroupControllerGetCapabilities";

/// The version of a driver that names none, which CSI does not allow and the sidecars do.
const NO_VERSION: &str = "unknown";

/// What a driver says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) description: Description,
    pub(crate) abilities: BTreeSet<Ability>,
    pub(crate) plugin: BTreeSet<PluginCapability>,
    pub(crate) controller: BTreeSet<ControllerCapability>,
    /// Volumes grow on their nodes, and the controller has no part in it.
    pub(crate) grows_on_node: bool,
}

impl Identity {
    /// Whether its controller service has a capability.
    pub(crate) fn can(&self, capability: ControllerCapability) -> bool {
        self.controller.contains(&capability)
    }
}

/// Why a driver that was connected is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// The connection broke: another one may do.
    Broken(String),
    /// It is not ready.
    NotReady(String),
    /// It refused a question.
    Refused(&'static str, StorageError),
    /// What it says cannot be true.
    Untrue(String),
}

/// Asks a driver.
pub(crate) struct Questions<'a> {
    pub(crate) wire: &'a Wire,
    /// How long one answer may take.
    pub(crate) patience: Duration,
    pub(crate) metrics: &'a BackendMetrics,
}

impl Questions<'_> {
    /// Whether the driver is ready. No word on it means that it is; a driver that has not answered in time is
    /// not.
    ///
    /// # Errors
    /// [`Unfit`]
    pub(crate) async fn probe(&self, name: Option<&DriverName>) -> Result<(), Unfit> {
        let method: Method<_, v1::ProbeResponse> =
            |wire, request| Box::pin(async { wire.identity().probe(request).await });
        match self.ask(PROBE, v1::ProbeRequest {}, method, &self.metrics.call_metrics(name)).await {
            Ok(answer) if answer.ready.unwrap_or(true) => Ok(()),
            Ok(_) => Err(Unfit::NotReady("Probe says so".to_owned())),
            Err(Fault::Deadline(_) | Fault::Said(Code::DeadlineExceeded, _)) => {
                Err(Unfit::NotReady("Probe is not answered in time".to_owned()))
            }
            Err(fault) => Err(unfit(PROBE, fault)),
        }
    }

    /// Everything that a driver says of itself.
    ///
    /// # Errors
    /// [`Unfit`]
    pub(crate) async fn identity(&self) -> Result<Identity, Unfit> {
        let method: Method<_, v1::GetPluginInfoResponse> =
            |wire, request| Box::pin(async { wire.identity().get_plugin_info(request).await });
        let unnamed = self.metrics.call_metrics(None);
        let info = self.ask(INFO, v1::GetPluginInfoRequest {}, method, &unnamed).await;
        let info = info.map_err(|fault| unfit(INFO, fault))?;
        let name = DriverName::from(info.name.as_str());
        let version =
            if info.vendor_version.is_empty() { NO_VERSION.to_owned() } else { info.vendor_version };
        let mut description = Description {
            name,
            version,
            topology_keys: Vec::new(),
            placement: Placement::Central,
            volumes_per_node: None,
            features: Vec::new(),
        };
        checks::description(&description).map_err(Unfit::Untrue)?;
        let calls = self.metrics.call_metrics(Some(&description.name));
        let plugin = self.plugin(&calls).await?;
        let controller = if plugin.contains(&PluginCapability::ControllerService) {
            self.controller(&calls).await?
        } else {
            BTreeSet::new()
        };
        let groups =
            plugin.contains(&PluginCapability::GroupControllerService) && self.groups(&calls).await?;
        let grows_on_node = plugin.contains(&PluginCapability::ControllerService)
            && !controller.contains(&ControllerCapability::ExpandVolume)
            && self.grows_on_node(&calls).await?;
        description.features =
            features(&plugin, &controller).into_iter().map(|feature| feature.to_string()).collect();
        let mut abilities = abilities(&controller, groups);
        abilities.extend(grows_on_node.then_some(Ability::Expansion));
        Ok(Identity { description, abilities, plugin, controller, grows_on_node })
    }

    async fn plugin(&self, calls: &CallMetrics) -> Result<BTreeSet<PluginCapability>, Unfit> {
        let method: Method<_, v1::GetPluginCapabilitiesResponse> =
            |wire, request| Box::pin(async { wire.identity().get_plugin_capabilities(request).await });
        let answer = self.ask(PLUGIN, v1::GetPluginCapabilitiesRequest {}, method, calls).await;
        let answer = answer.map_err(|fault| unfit(PLUGIN, fault))?;
        Ok(answer.capabilities.iter().filter_map(plugin_capability).collect())
    }

    async fn controller(&self, calls: &CallMetrics) -> Result<BTreeSet<ControllerCapability>, Unfit> {
        let method: Method<_, v1::ControllerGetCapabilitiesResponse> =
            |wire, request| Box::pin(async { wire.controller().controller_get_capabilities(request).await });
        let answer = self.ask(CONTROLLER, v1::ControllerGetCapabilitiesRequest {}, method, calls).await;
        let answer = answer.map_err(|fault| unfit(CONTROLLER, fault))?;
        Ok(answer.capabilities.iter().filter_map(controller_capability).collect())
    }

    async fn groups(&self, calls: &CallMetrics) -> Result<bool, Unfit> {
        use v1::group_controller_service_capability::{Type, rpc};
        let method: Method<_, v1::GroupControllerGetCapabilitiesResponse> = |wire, request| {
            Box::pin(async { wire.group_controller().group_controller_get_capabilities(request).await })
        };
        let answer = self.ask(GROUP, v1::GroupControllerGetCapabilitiesRequest {}, method, calls).await;
        let answer = answer.map_err(|fault| unfit(GROUP, fault))?;
        let found = answer.capabilities.iter().filter_map(|capability| capability.r#type.as_ref());
        Ok(found
            .into_iter()
            .any(|Type::Rpc(found)| found.r#type() == rpc::Type::CreateDeleteGetVolumeGroupSnapshot))
    }

    /// Whether the node service behind this socket expands volumes, as external-resizer asks it. Most
    /// controllers' sockets have no node service, which is a no. One that cannot answer now is asked again:
    /// what it says first counts for as long as this process runs.
    async fn grows_on_node(&self, calls: &CallMetrics) -> Result<bool, Unfit> {
        use v1::node_service_capability::{Type, rpc};
        let method: Method<_, v1::NodeGetCapabilitiesResponse> =
            |wire, request| Box::pin(async { wire.node().node_get_capabilities(request).await });
        let answer = match self.ask(NODE, v1::NodeGetCapabilitiesRequest {}, method, calls).await {
            Ok(answer) => answer,
            Err(Fault::Broken(reason)) => return Err(Unfit::Broken(reason)),
            Err(Fault::Said(Code::Unavailable | Code::DeadlineExceeded, reason)) => {
                return Err(Unfit::Broken(format!("{NODE} failed: {reason}")));
            }
            Err(Fault::Deadline(after)) => {
                return Err(Unfit::Broken(format!("{NODE} had no answer within {after:?}")));
            }
            Err(Fault::Said(..) | Fault::Unreadable(_)) => return Ok(false),
        };
        let found = answer.capabilities.iter().filter_map(|capability| capability.r#type.as_ref());
        Ok(found.into_iter().any(|Type::Rpc(found)| found.r#type() == rpc::Type::ExpandVolume))
    }

    async fn ask<Q: std::fmt::Debug, R: std::fmt::Debug>(
        &self,
        path: &'static str,
        request: Q,
        method: Method<Q, R>,
        calls: &CallMetrics,
    ) -> Result<R, Fault> {
        let begun = Instant::now();
        let answer = self.wire.clone().call(request, begun + self.patience, method).await;
        let failed = answer.as_ref().err().map(|fault| {
            let failure = Failure::Fault(fault.clone());
            let label = failure.label();
            (failure.into_error(Exhausted::Final, &Redactor::default()).kind.as_str(), label)
        });
        let (code, outcome) = failed.unwrap_or(("OK", "ok"));
        calls.observe(path, code, outcome, begun.elapsed());
        answer
    }
}

fn unfit(method: &'static str, fault: Fault) -> Unfit {
    match fault {
        Fault::Broken(reason) => Unfit::Broken(reason),
        fault @ (Fault::Said(..) | Fault::Unreadable(_) | Fault::Deadline(_)) => {
            let failure = Failure::Fault(fault);
            Unfit::Refused(method, failure.into_error(Exhausted::Final, &Redactor::default()))
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

fn abilities(controller: &BTreeSet<ControllerCapability>, groups: bool) -> BTreeSet<Ability> {
    use ControllerCapability as Csi;
    let can = |capability| controller.contains(&capability);
    #[rustfmt::skip] // one row an ability
    let rows = [
        (Ability::Cloning,        can(Csi::CloneVolume)),
        (Ability::Restoring,      can(Csi::CreateDeleteSnapshot)),
        (Ability::Publishing,     can(Csi::PublishUnpublishVolume)),
        (Ability::Expansion,      can(Csi::ExpandVolume)),
        (Ability::Modification,   can(Csi::ModifyVolume)),
        (Ability::Snapshots,      can(Csi::CreateDeleteSnapshot)),
        (Ability::GroupSnapshots, groups),
        (Ability::Listing,        can(Csi::ListVolumes)),
        (Ability::Inspection,     can(Csi::GetVolume)),
        (Ability::Capacity,       can(Csi::GetCapacity)),
    ];
    rows.into_iter().filter(|(_, can)| *can).map(|(ability, _)| ability).collect()
}

/// What is a feature here. `volume-mount-group` is the node service's to say, and it is not asked.
fn features(
    plugin: &BTreeSet<PluginCapability>,
    controller: &BTreeSet<ControllerCapability>,
) -> Vec<Feature> {
    use ControllerCapability as Csi;
    let can = |capability| controller.contains(&capability);
    #[rustfmt::skip] // one row a feature
    let rows = [
        (Feature::PublishReadonly,       can(Csi::PublishReadonly)),
        (Feature::PublishedNodes,        can(Csi::ListVolumesPublishedNodes)),
        (Feature::VolumeCondition,       can(Csi::VolumeCondition)),
        (Feature::OnlineExpansion,       plugin.contains(&PluginCapability::OnlineExpansion)),
        (Feature::SingleNodeMultiWriter, can(Csi::SingleNodeMultiWriter)),
    ];
    rows.into_iter().filter(|(_, has)| *has).map(|(feature, _)| feature).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced_is_what_can_be_done() {
        use v1::controller_service_capability::{Rpc, Type};
        let announced: BTreeSet<_> = (-1..=20)
            .filter_map(|number| {
                let r#type = Some(Type::Rpc(Rpc { r#type: number }));
                controller_capability(&v1::ControllerServiceCapability { r#type })
            })
            .collect();
        let numbers: Vec<_> = announced.iter().map(|capability| *capability as i32).collect();
        assert_eq!(numbers, (1..=15).collect::<Vec<_>>(), "numbers that nobody knows are left out");
        assert_eq!(abilities(&announced, true), Ability::ALL.into());
        assert_eq!(abilities(&BTreeSet::new(), false), BTreeSet::new());
        let plugin = [PluginCapability::OnlineExpansion].into();
        assert_eq!(features(&plugin, &announced).len(), Feature::ALL.len() - 1);
    }

    #[test]
    fn snapshots_can_be_restored() {
        let announced = [ControllerCapability::CreateDeleteSnapshot].into();
        assert_eq!(abilities(&announced, false), [Ability::Restoring, Ability::Snapshots].into());
    }
}
