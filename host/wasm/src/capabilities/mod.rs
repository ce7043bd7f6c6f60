//! What a guest may ask of the host: one module per import, each with its own policy.

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

use cofferdam_domain::storage::Secrets;
use tokio::time::Instant;
use wasmtime::component::{HasData, Linker, ResourceTable};

use self::{secrets::Tenant, workers::Workers};
use crate::{
    bindings::cofferdam::storage as wit, fault_injection::FaultPlan, instance::StoreData, limits::Limits,
};
use cofferdam_backend::{Redactor, in_flight::OperationPermit};

/// What one call brings with it.
#[derive(Debug)]
pub(crate) struct CallContext {
    /// When the call has to be over.
    pub(crate) deadline: Instant,
    /// Its secrets.
    pub(crate) secrets: Secrets,
    /// Knows them, and what is made of them on the way.
    pub(crate) redactor: Redactor,
    /// Keeps its volume to it. What the call begins outside of the sandbox holds a clone until it has ended.
    pub(crate) operation_permit: Option<Arc<OperationPermit>>,
}

/// What one call can reach.
#[derive(Debug)]
pub(crate) struct Capabilities {
    context: CallContext,
    redactor: Redactor,
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

/// What all calls of one backend share.
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
            redactor: context.redactor.clone(),
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
    /// Says how many lines the log has lost, when the call is over, and returns it.
    pub(crate) fn finish(&self) -> u64 {
        self.log.finish()
    }

    /// Whom the call works for.
    fn tenant(&self) -> Tenant {
        Tenant::from_secrets(&self.context.secrets)
    }

    /// Blots the call's secrets out.
    pub(crate) fn redactor(&self) -> &Redactor {
        &self.redactor
    }
}

/// How the generated code finds the capabilities in a store.
struct CapabilitiesData;

impl HasData for CapabilitiesData {
    type Data<'a> = &'a mut Capabilities;
}

/// Links everything that exists. What a component may import of it was judged before: a linker is the same
/// for all, so that one component is linked once whoever uses it.
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
