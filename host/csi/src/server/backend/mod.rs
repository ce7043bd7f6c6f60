//! Any [`Backend`] as a CSI driver: its Identity, Controller and GroupController services.
//!
//! A request is first held against CSI's own rules, so that a backend hears only what its contract allows.
//! What a backend can do decides what is announced; nothing is declared.

mod answers;
mod controller;
mod group;
mod identity;
mod outcome;
mod rules;

use std::{collections::BTreeSet, fmt, sync::Arc};

use cofferdam_backend::{Backend, Call, checks::ResponseLimits, in_flight::OperationKey};
use cofferdam_domain::storage::{
    Ability, Feature, Secrets,
    ability::{ControllerCapability, PluginCapability, controller_capabilities, plugin_capabilities},
};
use tonic::{Request, Status};

use super::{Deadline, Lock, Locks, Server};
use crate::{
    CsiBackend,
    v1::{
        controller_server::ControllerServer, group_controller_server::GroupControllerServer,
        identity_server::IdentityServer,
    },
};
use rules::Rules;

/// A backend as a CSI driver. Clones are the same driver.
#[derive(Clone)]
pub struct BackendServer(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    rules: Rules,
    locks: Locks,
}

impl fmt::Debug for BackendServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendServer")
            .field("driver", &self.0.backend.description().name)
            .finish_non_exhaustive()
    }
}

impl BackendServer {
    /// A backend that is held to CSI's limits: a component.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        let (abilities, description) = (backend.abilities(), backend.description());
        let controller = controller_capabilities(abilities, description);
        let plugin = plugin_capabilities(abilities, description);
        Self::with(backend, controller, plugin, ResponseLimits::CSI_SPEC)
    }

    /// An existing CSI driver, passed on. It announces what that driver announces as far as this program
    /// understands it, and its ids may be as long as that driver makes them.
    pub fn of_driver(driver: Arc<CsiBackend>) -> Self {
        let (controller, plugin) = {
            let (abilities, description) = (driver.abilities(), driver.description());
            let announced: BTreeSet<_> = driver.controller_capabilities().collect();
            let controller = &controller_capabilities(abilities, description) & &announced;
            let announced: BTreeSet<_> = driver.plugin_capabilities().collect();
            (controller, &plugin_capabilities(abilities, description) & &announced)
        };
        Self::with(driver, controller, plugin, ResponseLimits::KUBERNETES_API)
    }

    fn with(
        backend: Arc<dyn Backend>,
        controller: BTreeSet<ControllerCapability>,
        plugin: BTreeSet<PluginCapability>,
        bounds: ResponseLimits,
    ) -> Self {
        let rules = Rules {
            controller,
            plugin,
            restores: backend.abilities().contains(&Ability::Restoring),
            mount_groups: backend.description().has_feature(Feature::VolumeMountGroup),
            bounds,
        };
        Self(Arc::new(Inner { backend, rules, locks: Locks::default() }))
    }

    /// Puts the services that the backend has on a server.
    #[must_use]
    pub fn on(&self, server: Server) -> Server {
        let server = server.with(IdentityServer::new(self.clone()));
        let has = |service| self.0.rules.plugin.contains(&service);
        let server = match has(PluginCapability::ControllerService) {
            true => server.with(ControllerServer::new(self.clone())),
            false => server,
        };
        match has(PluginCapability::GroupControllerService) {
            true => server.with(GroupControllerServer::new(self.clone())),
            false => server,
        }
    }

    fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    fn rules(&self) -> &Rules {
        &self.0.rules
    }

    fn lock(&self, subject: OperationKey) -> Result<Lock, Status> {
        self.0.locks.take(subject)
    }

    /// Takes a request in: its message, and what the backend gets beside the arguments. Secrets are added by
    /// those who have them.
    fn take<T: fmt::Debug>(&self, method: &'static str, request: Request<T>) -> (T, Call) {
        let call = Call::with_deadline(Deadline::left(&request));
        let message = request.into_inner();
        let driver = &self.backend().description().name;
        tracing::trace!(%driver, method, request = ?message, "CSI call");
        (message, call)
    }
}

/// A call with its secrets.
fn with(call: Call, secrets: Secrets) -> Call {
    Call { secrets, ..call }
}

#[cfg(test)]
mod tests;
