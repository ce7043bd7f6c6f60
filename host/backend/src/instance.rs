//! One store: what a call's instance lives in.

use std::time::Duration;

use wasmtime::{Store, UpdateDeadline, component::ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::{
    call::Parts,
    capabilities::{Capabilities, Context, secrets::Redactor},
    limits::{Meter, TICK},
    wasi::Output,
};

/// Most random bytes that WASI gives at once.
const MAX_WASI_RANDOM: u64 = 4_096;

/// Ticks that a call may see before it takes turns: the one that was under way when it began.
const FREE_TICKS: u64 = 1;

/// What the host keeps beside a guest. Born and dropped with the call.
pub(crate) struct Host {
    wasi: WasiCtx,
    table: ResourceTable,
    capabilities: Capabilities,
    pub(crate) meter: Meter,
    pub(crate) output: Output,
    /// Ticks seen while the guest computed.
    ticks: u64,
    /// Whether the guest was stopped because it computed too long.
    pub(crate) out_of_time: bool,
}

impl Host {
    pub(crate) fn capabilities(&mut self) -> &mut Capabilities {
        &mut self.capabilities
    }

    /// Time that the guest computed, to the whole tick.
    pub(crate) fn computed(&self) -> Duration {
        TICK.saturating_mul(u32::try_from(self.ticks).unwrap_or(u32::MAX))
    }

    /// Blots the call's secrets out.
    pub(crate) fn redactor(&self) -> &Redactor {
        self.capabilities.redactor()
    }

    /// Ends the call's log.
    pub(crate) fn finish(&self) {
        self.capabilities.finish();
    }
}

impl WasiView for Host {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// Makes the only kind of store that there is: every limit is set here.
pub(crate) fn store(parts: &Parts, context: Context) -> Store<Host> {
    let Parts { engine, shared, limits, lane, .. } = parts;
    let output = Output::new(limits.log_bytes);
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
        ticks: 0,
        out_of_time: false,
    };
    let mut store = Store::new(engine, host);
    store.limiter(|host| &mut host.meter);
    store.set_hostcall_fuel(limits.result_bytes);
    store.set_max_component_handles(limits.handles);
    // The callback runs while guest code runs only, so it counts computing and not waiting. Every tick gives the thread back;
    // whoever computes on after that takes turns.
    let budget = limits.cpu_ticks();
    let lane = lane.clone();
    store.epoch_deadline_callback(move |mut store| {
        let host = store.data_mut();
        host.ticks = host.ticks.saturating_add(1);
        if host.ticks > budget {
            host.out_of_time = true;
            return Ok(UpdateDeadline::Interrupt);
        }
        if host.ticks <= FREE_TICKS {
            return Ok(UpdateDeadline::Yield(1));
        }
        let lane = lane.clone();
        Ok(UpdateDeadline::YieldCustom(1, Box::pin(async move { lane.turn().await })))
    });
    store.set_epoch_deadline(1);
    store
}
