//! The imports of guests: one module for each, with its own policy. `secrets` implements `types` and `reveal`
//! too. `lock_file` and `workers` are helpers of the others.
//!
//! The module of each import but `ambient` defines a `…View`: what its import needs during one call.

pub(crate) mod ambient;
pub(crate) mod deadline;
pub(crate) mod http;
pub(crate) mod lock_file;
pub(crate) mod log;
pub(crate) mod pool;
pub(crate) mod secrets;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod sign;
pub(crate) mod state;
pub(crate) mod workers;

use std::sync::Arc;

use wasmtime::component::{Linker, ResourceTable};

use self::{
    ambient::Ambient,
    deadline::DeadlineView,
    http::{HttpView, client::HttpClient, connect::SystemResolver, policy::OriginPolicy},
    log::{GuestLog, LogView},
    pool::{PoolView, store::Pool},
    secrets::SecretsView,
    session::{Session, SessionStore, SessionView},
    settings::{Settings, SettingsView},
    sign::SignView,
    state::{RetryLock, StateStore, StateView},
    workers::Workers,
};
use crate::{bindings::cofferdam::storage as wit, fault_injection::FaultPlan, limits::Limits};
use cofferdam_backend::{CallContext, Redactor};

/// The data of the imports during one call.
#[derive(Debug)]
pub(crate) struct Capabilities {
    context: CallContext,
    /// The guest's handles of secrets.
    handles: ResourceTable,
    log: GuestLog,
    session: Session,
    state_retry_lock: RetryLock,
    shared: SharedCapabilities,
}

/// The data of the imports that all calls of one backend share.
#[derive(Clone, Debug)]
pub(crate) struct SharedCapabilities {
    pub(crate) session: Arc<SessionStore>,
    pub(crate) http: Arc<HttpClient>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) state: Arc<StateStore>,
    /// The backend's pool; `None` if none is configured.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) pool_workers: Workers,
    pub(crate) faults: FaultPlan,
}

impl SharedCapabilities {
    /// Capabilities with settings and no other configuration: no origins, no pool, and the state in memory.
    pub(crate) fn unconfigured(settings: Settings, limits: &Limits) -> Self {
        Self {
            session: Arc::new(SessionStore::new(limits)),
            http: Arc::new(HttpClient::new(OriginPolicy::default(), limits, Arc::new(SystemResolver))),
            settings: Arc::new(settings),
            state: Arc::new(StateStore::in_memory(limits.state_bytes)),
            pool: None,
            pool_workers: Workers::default(),
            faults: FaultPlan::default(),
        }
    }

    /// The capabilities of one call.
    pub(crate) fn call_capabilities(&self, limits: &Limits, context: CallContext) -> Capabilities {
        let mut handles = ResourceTable::new();
        handles.set_max_capacity(limits.handles);
        Capabilities {
            context,
            handles,
            log: GuestLog::new(limits.log_bytes),
            session: Session::new(Arc::clone(&self.session)),
            state_retry_lock: RetryLock::default(),
            shared: self.clone(),
        }
    }
}

impl Capabilities {
    /// Returns the number of the call's log lines that were dropped; logs a warning if there are any.
    pub(crate) fn report_dropped_lines(&self) -> u64 {
        self.log.report_dropped_lines()
    }

    /// The redactor of the call's secrets.
    pub(crate) fn redactor(&self) -> &Redactor {
        &self.context.redactor
    }

    fn log(&mut self) -> LogView<'_> {
        LogView { log: &mut self.log, redactor: &self.context.redactor }
    }

    fn settings(&mut self) -> SettingsView<'_> {
        SettingsView(&self.shared.settings)
    }

    fn secrets(&mut self) -> SecretsView<'_> {
        SecretsView { secrets: &self.context.secrets, handles: &mut self.handles }
    }

    fn deadline(&self) -> DeadlineView {
        DeadlineView { deadline: self.context.deadline }
    }

    fn sign(&self) -> SignView<'_> {
        SignView { handles: &self.handles }
    }

    fn session(&mut self) -> SessionView<'_> {
        SessionView {
            session: &mut self.session,
            secrets: &self.context.secrets,
            redactor: &self.context.redactor,
        }
    }

    fn http(&mut self) -> HttpView<'_> {
        HttpView {
            context: &self.context,
            handles: &mut self.handles,
            client: &self.shared.http,
            faults: &self.shared.faults,
        }
    }

    fn state(&mut self) -> StateView<'_> {
        StateView {
            context: &self.context,
            store: &self.shared.state,
            retry_lock: &mut self.state_retry_lock,
            faults: &self.shared.faults,
        }
    }

    fn pool(&mut self) -> PoolView<'_> {
        PoolView {
            context: &self.context,
            pool: self.shared.pool.as_ref(),
            workers: &self.shared.pool_workers,
            faults: &self.shared.faults,
        }
    }
}

/// Data of a store that contains the capabilities of a call.
pub(crate) trait HasCapabilities: Send + 'static {
    /// The capabilities of the call.
    fn capabilities(&mut self) -> &mut Capabilities;
}

/// Links all imports, granted or not: one linker serves all components, so a component is linked once for all
/// backends. `Engine::load` checks the grants before any code of the component runs. `Engine::describe` does
/// not check them; it configures only the settings.
pub(crate) fn link<T: HasCapabilities>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    wit::types::add_to_linker::<T, SecretsView<'static>>(linker, |data| data.capabilities().secrets())?;
    wit::log::add_to_linker::<T, LogView<'static>>(linker, |data| data.capabilities().log())?;
    wit::ambient::add_to_linker::<T, Ambient>(linker, |_| Ambient)?;
    wit::deadline::add_to_linker::<T, DeadlineView>(linker, |data| data.capabilities().deadline())?;
    wit::settings::add_to_linker::<T, SettingsView<'static>>(linker, |data| data.capabilities().settings())?;
    wit::secrets::add_to_linker::<T, SecretsView<'static>>(linker, |data| data.capabilities().secrets())?;
    wit::reveal::add_to_linker::<T, SecretsView<'static>>(linker, |data| data.capabilities().secrets())?;
    wit::sign::add_to_linker::<T, SignView<'static>>(linker, |data| data.capabilities().sign())?;
    wit::session::add_to_linker::<T, SessionView<'static>>(linker, |data| data.capabilities().session())?;
    wit::http::add_to_linker::<T, HttpView<'static>>(linker, |data| data.capabilities().http())?;
    wit::state::add_to_linker::<T, StateView<'static>>(linker, |data| data.capabilities().state())?;
    wit::pool::add_to_linker::<T, PoolView<'static>>(linker, |data| data.capabilities().pool())
}
