//! Capabilities of guests: one module for each import, each with its own policy.

pub(crate) mod ambient;
pub(crate) mod http;
pub(crate) mod lock_file;
pub(crate) mod log;
pub(crate) mod pool;
pub(crate) mod secrets;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod state;
pub(crate) mod workers;

use std::sync::Arc;

use wasmtime::component::{HasData, Linker, ResourceTable};

use self::{secrets::Tenant, workers::Workers};
use crate::{
    bindings::cofferdam::storage as wit, fault_injection::FaultPlan, instance::StoreData, limits::Limits,
};
use cofferdam_backend::{CallContext, Redactor};

/// The capabilities of one call.
#[derive(Debug)]
pub(crate) struct Capabilities {
    context: CallContext,
    /// The guest's handles of secrets.
    handles: ResourceTable,
    log: log::GuestLog,
    session: session::Session,
    http: Arc<http::client::HttpClient>,
    settings: Arc<settings::Settings>,
    state: Arc<state::StateStore>,
    pool: Option<Arc<pool::Pool>>,
    pool_workers: Workers,
    faults: FaultPlan,
}

/// The capabilities that all calls of one backend share.
#[derive(Clone, Debug)]
pub(crate) struct SharedCapabilities {
    pub(crate) session: Arc<session::SessionStore>,
    pub(crate) http: Arc<http::client::HttpClient>,
    pub(crate) settings: Arc<settings::Settings>,
    pub(crate) state: Arc<state::StateStore>,
    /// The backend's directory, when the operator gives it one.
    pub(crate) pool: Option<Arc<pool::Pool>>,
    pub(crate) pool_workers: Workers,
    pub(crate) faults: FaultPlan,
}

impl SharedCapabilities {
    /// The part of it that one call gets.
    pub(crate) fn call_capabilities(&self, limits: &Limits, context: CallContext) -> Capabilities {
        let mut handles = ResourceTable::new();
        handles.set_max_capacity(limits.handles);
        Capabilities {
            context,
            handles,
            log: log::GuestLog::new(limits.log_bytes),
            session: session::Session::new(Arc::clone(&self.session)),
            http: Arc::clone(&self.http),
            settings: Arc::clone(&self.settings),
            state: Arc::clone(&self.state),
            pool: self.pool.clone(),
            pool_workers: self.pool_workers.clone(),
            faults: self.faults.clone(),
        }
    }
}

impl Capabilities {
    /// Logs the number of dropped lines at the end of the call, and returns it.
    pub(crate) fn finish(&self) -> u64 {
        self.log.finish()
    }

    /// Whom the call works for.
    fn tenant(&self) -> Tenant {
        Tenant::from_secrets(&self.context.secrets)
    }

    /// The redactor of the call's secrets.
    pub(crate) fn redactor(&self) -> &Redactor {
        &self.context.redactor
    }
}

/// Accessor of the capabilities in a store, for the generated bindings.
struct CapabilitiesData;

impl HasData for CapabilitiesData {
    type Data<'a> = &'a mut Capabilities;
}

/// Links all imports. The grants were checked before: one linker serves all components, so a component is
/// linked once for all backends.
pub(crate) fn link(linker: &mut Linker<StoreData>) -> wasmtime::Result<()> {
    wit::types::add_to_linker::<StoreData, CapabilitiesData>(linker, StoreData::capabilities)?;
    wit::log::add_to_linker::<StoreData, CapabilitiesData>(linker, StoreData::capabilities)?;
    wit::ambient::add_to_linker::<StoreData, CapabilitiesData>(linker, StoreData::capabilities)?;
    wit::settings::add_to_linker::<StoreData, CapabilitiesData>(linker, StoreData::capabilities)?;
    wit::secrets::add_to_linker::<StoreData, CapabilitiesData>(linker, StoreData::capabilities)?;
    wit::reveal::add_to_linker::<StoreData, CapabilitiesData>(linker, StoreData::capabilities)?;
    wit::session::add_to_linker::<StoreData, CapabilitiesData>(linker, StoreData::capabilities)?;
    wit::http::add_to_linker::<StoreData, CapabilitiesData>(linker, StoreData::capabilities)?;
    wit::state::add_to_linker::<StoreData, CapabilitiesData>(linker, StoreData::capabilities)?;
    wit::pool::add_to_linker::<StoreData, CapabilitiesData>(linker, StoreData::capabilities)
}
