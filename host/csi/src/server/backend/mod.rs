//! Serves any [`Backend`] as a CSI driver: the Identity, Controller and GroupController services.
//!
//! Requests are validated against the CSI specification before they reach the backend. The announced
//! capabilities are derived from the backend's abilities.

mod controller;
mod group;
mod grpc_status;
mod identity;
mod responses;
mod validation;

use std::{collections::BTreeSet, fmt, sync::Arc};

use cofferdam_backend::{Backend, Call, checks::ResponseLimits, in_flight::OperationKey};
use cofferdam_domain::storage::{
    Ability, Feature, Secrets,
    ability::{ControllerCapability, PluginCapability, controller_capabilities, plugin_capabilities},
};
use tonic::{Request, Status};

use super::{Deadline, OperationLock, OperationLocks, Server};
use crate::{
    CsiBackend,
    v1::{
        controller_server::ControllerServer, group_controller_server::GroupControllerServer,
        identity_server::IdentityServer,
    },
};
use validation::RequestValidator;

/// A backend served as a CSI driver. Clones share it.
#[derive(Clone)]
pub struct BackendServer(Arc<BackendServerInner>);

struct BackendServerInner {
    backend: Arc<dyn Backend>,
    validator: RequestValidator,
    locks: OperationLocks,
}

impl fmt::Debug for BackendServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendServer")
            .field("driver", &self.0.backend.description().name)
            .finish_non_exhaustive()
    }
}

impl BackendServer {
    /// Serves a sandboxed driver (a WebAssembly component). Requests with longer ids or larger parameters
    /// than CSI allows are rejected.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        let (abilities, description) = (backend.abilities(), backend.description());
        let controller = controller_capabilities(abilities, description);
        let plugin = plugin_capabilities(abilities, description);
        Self::from_parts(backend, controller, plugin, ResponseLimits::CSI_SPEC)
    }

    /// Serves an existing CSI driver. Announces those of its capabilities that this program supports. Ids and
    /// parameters in requests may be larger than CSI allows, up to the limits of the Kubernetes API.
    pub fn from_csi_driver(driver: Arc<CsiBackend>) -> Self {
        let (controller, plugin) = {
            let (abilities, description) = (driver.abilities(), driver.description());
            let driver_capabilities: BTreeSet<_> = driver.controller_capabilities().collect();
            let controller = &controller_capabilities(abilities, description) & &driver_capabilities;
            let driver_capabilities: BTreeSet<_> = driver.plugin_capabilities().collect();
            (controller, &plugin_capabilities(abilities, description) & &driver_capabilities)
        };
        Self::from_parts(driver, controller, plugin, ResponseLimits::KUBERNETES_API)
    }

    fn from_parts(
        backend: Arc<dyn Backend>,
        controller: BTreeSet<ControllerCapability>,
        plugin: BTreeSet<PluginCapability>,
        bounds: ResponseLimits,
    ) -> Self {
        let validator = RequestValidator {
            controller_capabilities: controller,
            plugin_capabilities: plugin,
            has_restoring: backend.abilities().contains(&Ability::Restoring),
            has_mount_groups: backend.description().has_feature(Feature::VolumeMountGroup),
            limits: bounds,
        };
        Self(Arc::new(BackendServerInner { backend, validator, locks: OperationLocks::default() }))
    }

    /// Adds the services that the backend supports to a server.
    #[must_use]
    pub fn register_on(&self, server: Server) -> Server {
        let server = server.with_service(IdentityServer::new(self.clone()));
        let has_capability = |service| self.0.validator.plugin_capabilities.contains(&service);
        let server = match has_capability(PluginCapability::ControllerService) {
            true => server.with_service(ControllerServer::new(self.clone())),
            false => server,
        };
        match has_capability(PluginCapability::GroupControllerService) {
            true => server.with_service(GroupControllerServer::new(self.clone())),
            false => server,
        }
    }

    fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    fn validator(&self) -> &RequestValidator {
        &self.0.validator
    }

    fn lock(&self, key: OperationKey) -> Result<OperationLock, Status> {
        self.0.locks.try_acquire(key)
    }

    /// Splits a request into its message and a [`Call`] with the deadline. The call has no secrets: each
    /// method whose message has secrets adds them.
    fn receive<T: fmt::Debug>(&self, method: &'static str, request: Request<T>) -> (T, Call) {
        let call = Call::with_deadline(Deadline::remaining(&request));
        let message = request.into_inner();
        let driver = &self.backend().description().name;
        tracing::trace!(%driver, method, request = ?message, "CSI call");
        (message, call)
    }
}

/// Sets the secrets of a call.
fn with_secrets(call: Call, secrets: Secrets) -> Call {
    Call { secrets, ..call }
}

#[cfg(test)]
mod tests;
