//! The Identity service.

use cofferdam_domain::storage::{Readiness, ability::PluginCapability};
use tonic::{Request, Response, Status};

use super::{BackendServer, grpc_status};
use crate::{
    identity::PROBE_METHOD,
    v1::{
        self,
        identity_server::Identity,
        plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion},
    },
};

const fn plugin_capability(capability: PluginCapability) -> v1::PluginCapability {
    const fn service(service: service::Type) -> Type {
        Type::Service(Service { r#type: service as i32 })
    }
    const fn expansion(expansion: volume_expansion::Type) -> Type {
        Type::VolumeExpansion(VolumeExpansion { r#type: expansion as i32 })
    }
    let r#type = match capability {
        PluginCapability::ControllerService => service(service::Type::ControllerService),
        PluginCapability::AccessibilityConstraints => service(service::Type::VolumeAccessibilityConstraints),
        PluginCapability::GroupControllerService => service(service::Type::GroupControllerService),
        PluginCapability::OnlineExpansion => expansion(volume_expansion::Type::Online),
        PluginCapability::OfflineExpansion => expansion(volume_expansion::Type::Offline),
    };
    v1::PluginCapability { r#type: Some(r#type) }
}

#[tonic::async_trait]
impl Identity for BackendServer {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        let description = self.backend().description();
        Ok(Response::new(v1::GetPluginInfoResponse {
            name: description.name.to_string(),
            vendor_version: description.version.clone(),
            manifest: Default::default(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        let capabilities =
            self.validator().plugin_capabilities.iter().copied().map(plugin_capability).collect();
        Ok(Response::new(v1::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, request: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        let (v1::ProbeRequest {}, call) = self.receive(PROBE_METHOD, request);
        let ready = match grpc_status::read_result(self.backend().probe(call).await)? {
            Readiness::Ready => true,
            Readiness::NotReady(reason) => {
                let driver = &self.backend().description().name;
                tracing::info!(%driver, %reason, "the driver is not ready");
                false
            }
        };
        Ok(Response::new(v1::ProbeResponse { ready: Some(ready) }))
    }
}
