//! One store: what a call's instance lives in.

use wasmtime::{Store, UpdateDeadline, component::ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::{
    call::SharedState,
    capabilities::{CallContext, Capabilities},
    cpu_time::CpuTime,
    limits::StoreLimiter,
    wasi::GuestOutput,
};
use cofferdam_backend::Redactor;

/// Most random bytes that WASI gives at once.
const MAX_WASI_RANDOM: u64 = 4_096;

/// What the host keeps beside a guest. Born and dropped with the call.
pub(crate) struct StoreData {
    wasi: WasiCtx,
    table: ResourceTable,
    capabilities: Capabilities,
    pub(crate) limiter: StoreLimiter,
    pub(crate) output: GuestOutput,
    /// Whether the guest was stopped because it computed too long.
    pub(crate) is_cpu_exhausted: bool,
}

impl StoreData {
    pub(crate) fn capabilities(&mut self) -> &mut Capabilities {
        &mut self.capabilities
    }

    /// Blots the call's secrets out.
    pub(crate) fn redactor(&self) -> &Redactor {
        self.capabilities.redactor()
    }

    /// Ends the call's log; returns how many lines it has lost.
    pub(crate) fn finish(&self) -> u64 {
        self.capabilities.finish()
    }
}

impl WasiView for StoreData {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// Makes the only kind of store that there is: every limit is set here.
pub(crate) fn new_store(
    shared_state: &SharedState,
    context: CallContext,
    cpu_time: CpuTime,
) -> Store<StoreData> {
    let SharedState { engine, capabilities: shared, limits, .. } = shared_state;
    let output = GuestOutput::new(limits.log_bytes, context.redactor.max_secret_bytes());
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
    // Every tick gives the thread back; who computes on after that may have to take turns for it.
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
