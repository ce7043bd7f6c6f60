//! The store of a call's instance, and the imports that it is linked with.

use wasmtime::{
    Engine, Store, UpdateDeadline,
    component::{Linker, ResourceTable},
};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::{
    capabilities::{self, Capabilities, HasCapabilities, SharedCapabilities},
    cpu_time::CpuTime,
    limits::{Limits, StoreLimiter},
    wasi::{self, GuestOutput},
};
use cofferdam_backend::{CallContext, Redactor};

/// Maximum random bytes of one WASI call.
const MAX_WASI_RANDOM: u64 = 4_096;

/// Host state of an instance. It is dropped with the call.
pub(crate) struct StoreData {
    wasi: WasiCtx,
    table: ResourceTable,
    capabilities: Capabilities,
    pub(crate) limiter: StoreLimiter,
    pub(crate) output: GuestOutput,
    /// True if the guest was stopped because it exceeded its CPU limit.
    pub(crate) is_cpu_exhausted: bool,
}

impl StoreData {
    /// The redactor of the call's secrets.
    pub(crate) fn redactor(&self) -> &Redactor {
        self.capabilities.redactor()
    }

    /// Returns the number of the call's dropped log lines; logs a warning if there are any.
    pub(crate) fn report_dropped_lines(&self) -> u64 {
        self.capabilities.report_dropped_lines()
    }
}

impl HasCapabilities for StoreData {
    fn capabilities(&mut self) -> &mut Capabilities {
        &mut self.capabilities
    }
}

impl WasiView for StoreData {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// Links all imports of guests.
pub(crate) fn new_linker(engine: &Engine) -> wasmtime::Result<Linker<StoreData>> {
    let mut linker = Linker::new(engine);
    wasi::link(&mut linker)?;
    capabilities::link(&mut linker)?;
    Ok(linker)
}

/// Creates the store of a call, with all its limits.
pub(crate) fn new_store(
    engine: &Engine,
    shared: &SharedCapabilities,
    limits: &Limits,
    context: CallContext,
    cpu_time: CpuTime,
) -> Store<StoreData> {
    let output = GuestOutput::new(limits.log_bytes, context.redactor.lookahead_bytes());
    let mut wasi = WasiCtx::builder();
    wasi.stdout(output.clone()).stderr(output.clone()).max_random_size(MAX_WASI_RANDOM);
    let mut table = ResourceTable::new();
    table.set_max_capacity(limits.handles);
    let data = StoreData {
        wasi: wasi.build(),
        table,
        capabilities: shared.call_capabilities(limits, context),
        limiter: StoreLimiter::new(limits),
        output,
        is_cpu_exhausted: false,
    };
    let mut store = Store::new(engine, data);
    store.limiter(|data| &mut data.limiter);
    store.set_hostcall_fuel(limits.result_bytes);
    store.set_max_component_handles(limits.handles);
    // The guest yields at every tick. A CPU-bound call may then have to wait for the scheduler.
    let budget = limits.cpu_budget();
    store.epoch_deadline_callback(move |mut store| {
        if cpu_time.elapsed_in_slice() > budget {
            store.data_mut().is_cpu_exhausted = true;
            return Ok(UpdateDeadline::Interrupt);
        }
        Ok(UpdateDeadline::Yield(1))
    });
    store.set_epoch_deadline(1);
    store
}
