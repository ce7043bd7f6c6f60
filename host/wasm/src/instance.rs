//! One store: what a call's instance lives in.

use wasmtime::{Store, UpdateDeadline, component::ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::{
    call::Parts,
    capabilities::{Capabilities, Context},
    effort::Effort,
    limits::Meter,
    wasi::Output,
};
use cofferdam_backend::Redactor;

/// Most random bytes that WASI gives at once.
const MAX_WASI_RANDOM: u64 = 4_096;

/// What the host keeps beside a guest. Born and dropped with the call.
pub(crate) struct Host {
    wasi: WasiCtx,
    table: ResourceTable,
    capabilities: Capabilities,
    pub(crate) meter: Meter,
    pub(crate) output: Output,
    /// Whether the guest was stopped because it computed too long.
    pub(crate) out_of_time: bool,
}

impl Host {
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

impl WasiView for Host {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// Makes the only kind of store that there is: every limit is set here.
pub(crate) fn store(parts: &Parts, context: Context, effort: Effort) -> Store<Host> {
    let Parts { engine, shared, limits, .. } = parts;
    let output = Output::new(limits.log_bytes, context.redactor.longest());
    let mut wasi = WasiCtx::builder();
    wasi.stdout(output.clone()).stderr(output.clone()).max_random_size(MAX_WASI_RANDOM);
    let mut table = ResourceTable::new();
    table.set_max_capacity(limits.handles);
    let host = Host {
        wasi: wasi.build(),
        table,
        capabilities: shared.for_call(limits, context),
        meter: Meter::new(limits),
        output,
        out_of_time: false,
    };
    let mut store = Store::new(engine, host);
    store.limiter(|host| &mut host.meter);
    store.set_hostcall_fuel(limits.result_bytes);
    store.set_max_component_handles(limits.handles);
    // Every tick gives the thread back; who computes on after that may have to take turns for it.
    let budget = limits.computing();
    store.epoch_deadline_callback(move |mut store| {
        if effort.until_now() > budget {
            store.data_mut().out_of_time = true;
            return Ok(UpdateDeadline::Interrupt);
        }
        Ok(UpdateDeadline::Yield(1))
    });
    store.set_epoch_deadline(1);
    store
}
