//! Runs one call in a new instance, under all limits, and classifies its failures.

use std::{
    future::{pending, poll_fn},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use cofferdam_domain::{
    storage::Secrets,
    term::{Permit, PermitSource as _, Term},
};
use tokio::{
    runtime::Handle,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at},
};
use wasmtime_wasi::I32Exit;

use crate::{
    capabilities::{SharedCapabilities, pool::config::PoolConfig, state::StateConfig},
    component::CompiledComponent,
    convert,
    cpu_scheduler::CpuScheduler,
    cpu_time::CpuTime,
    exports::{GuestFunction, GuestInstance},
    failure::{CallFailure, GuestLimit, task_failure},
    fault_injection::INJECTED_FAULT,
    instance::{self, StoreData},
    instance_pool::{InstancePermit, InstanceQuota},
    limits::{ExceededLimit, Limits},
    usage::CallUsage,
};
use cofferdam_backend::{CallContext, checks::printable};

/// Period of the checks whether the term of a waiting guest has ended. Short beside the 5 s between the
/// default renew deadline, which ends a term, and the Lease's duration, after which another process may lead.
const TERM_CHECK_PERIOD: Duration = Duration::from_millis(100);

/// The component, imports and limits that all calls of one backend share. A backend and its
/// `WasmBackend::second_process` have the same shared state, but each its own circuit breaker and limit of
/// concurrent calls.
pub(crate) struct SharedState {
    pub(crate) engine: wasmtime::Engine,
    pub(crate) compiled: Arc<CompiledComponent>,
    pub(crate) capabilities: SharedCapabilities,
    pub(crate) limits: Limits,
    /// Secrets that the operator configured for every call.
    pub(crate) secrets: Secrets,
    /// True if calls may have further secrets of their caller.
    pub(crate) class_secrets: bool,
    /// The configuration of the `state` import, and of the pool.
    pub(crate) state_config: StateConfig,
    pub(crate) pool_config: Option<PoolConfig>,
    /// The backend's share of the instance slots.
    pub(crate) instance_quota: Arc<InstanceQuota>,
    /// Scheduler of CPU-bound calls.
    pub(crate) cpu_scheduler: CpuScheduler,
}

/// The result of a call.
pub(crate) struct CallOutcome<T> {
    pub(crate) result: Result<T, CallFailure>,
    /// Resources that the guest used; absent if the call was not started or the host panicked.
    pub(crate) usage: Option<CallUsage>,
}

impl<T> CallOutcome<T> {
    pub(crate) fn not_started(failure: CallFailure) -> Self {
        Self { result: Err(failure), usage: None }
    }
}

impl SharedState {
    /// Waits for the instance slots of a call, until the deadline. The caller holds the permit until the call
    /// has ended.
    pub(crate) async fn acquire_instance(
        &self,
        deadline: Instant,
    ) -> Result<InstancePermit<'_>, CallFailure> {
        let permit =
            timeout_at(deadline, self.instance_quota.acquire(self.compiled.required_instances)).await;
        permit.map_err(|_| CallFailure::PoolExhausted)
    }
}

/// Runs a call in a task on the guests' threads. A panic of the host fails only this call.
pub(crate) async fn spawn<T: Send + 'static>(
    permit: Permit,
    guest_runtime: &Handle,
    shared_state: Arc<SharedState>,
    context: CallContext,
    method: &'static str,
    function: GuestFunction<T>,
) -> CallOutcome<T> {
    let task = guest_runtime.spawn(run(permit, shared_state, context, method, function));
    task.await.unwrap_or_else(|error| {
        let error = task_failure(&error);
        tracing::error!(method, error, "the host failed while it ran a guest");
        CallOutcome::not_started(CallFailure::Panic)
    })
}

/// Runs a call in the current task. CPU-bound calls continue on the threads for them.
pub(crate) async fn run<T: Send + 'static>(
    _: Permit,
    shared_state: Arc<SharedState>,
    context: CallContext,
    method: &'static str,
    function: GuestFunction<T>,
) -> CallOutcome<T> {
    let (cpu_scheduler, cpu_time) = (shared_state.cpu_scheduler.clone(), CpuTime::default());
    let call = {
        let cpu_time = cpu_time.clone();
        async move { run_isolated(&shared_state, context, method, function, cpu_time).await }
    };
    cpu_scheduler.run(&cpu_time, Box::pin(call)).await
}

/// Runs a call in its own store, until its deadline or the end of its term. The store is dropped with the
/// call: after a trap its state is undefined, and so is that of a guest that was stopped.
async fn run_isolated<T>(
    shared_state: &SharedState,
    context: CallContext,
    method: &'static str,
    function: GuestFunction<T>,
    cpu_time: CpuTime,
) -> CallOutcome<T> {
    let started = Instant::now();
    let (deadline, term) = (context.deadline, context.term.clone());
    let SharedState { engine, capabilities, limits, .. } = shared_state;
    let mut store = instance::new_store(engine, capabilities, limits, context, cpu_time.clone());
    let guest_call = async {
        let instance = shared_state.compiled.pre.instantiate_async(&mut store).await?;
        function(GuestInstance { store: &mut store, instance, exports: &shared_state.compiled.exports }).await
    };
    let outcome = tokio::select! {
        // The guest last: a call that has waited until its deadline or the end of its term must not start or
        // continue. A guest that computes yields at every tick of the epoch clock, so it is stopped here, too.
        biased;
        () = sleep_until(deadline) => {
            Err(deadline_failure(deadline.saturating_duration_since(started), limits))
        }
        () = wait_term_end(&term) => Err(CallFailure::Stopped),
        answer = guest_call => Ok(answer),
    };
    let answer = match outcome {
        Ok(Ok(Ok(value))) => Ok(value),
        Ok(Ok(Err(error))) => {
            Err(CallFailure::Storage(convert::storage_error(error, store.data().redactor())))
        }
        Ok(Err(error)) => Err(with_panic(classify(&error, store.data(), limits), store.data())),
        Err(stopped) => Err(stopped),
    };
    let host = store.data();
    let dropped_lines = host.report_dropped_lines();
    log_guest_output(method, answer.as_ref().err(), host);
    let usage = CallUsage {
        memory_bytes: host.limiter.peak_memory(),
        cpu_time: cpu_time.elapsed_in_slice(),
        dropped_log_lines: dropped_lines,
    };
    CallOutcome { result: answer, usage: Some(usage) }
}

/// Waits for the end of a term. Checks the term at every poll, and at least once in [`TERM_CHECK_PERIOD`]: a
/// term may end by its clock alone, which no timer follows while the machine is suspended.
async fn wait_term_end(term: &Term) {
    if *term == Term::permanent() {
        return pending().await;
    }
    let mut checks = interval(TERM_CHECK_PERIOD);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    poll_fn(|context| {
        if term.permit().is_err() {
            return Poll::Ready(());
        }
        // Registers the task for the next check.
        while checks.poll_tick(context).is_ready() {}
        Poll::Pending
    })
    .await;
}

/// Classifies a passed deadline by the time between the call's start and the deadline. A short deadline of
/// the caller, or a long wait for CPU time before the start, is not the guest's fault.
fn deadline_failure(elapsed: Duration, limits: &Limits) -> CallFailure {
    /// Longer than any measured guest computes without waiting for its storage, and well below the second
    /// that callers give a probe.
    const MIN_GUEST_TIME: Duration = Duration::from_millis(500);
    if elapsed < MIN_GUEST_TIME.min(limits.deadline()) {
        CallFailure::CallerDeadline(elapsed)
    } else {
        CallFailure::Deadline(elapsed)
    }
}

/// Classifies the error with which wasmtime ended a call. Exceeded limits are read from the store where it
/// records them, which is more reliable than the error's text.
fn classify(error: &wasmtime::Error, host: &StoreData, limits: &Limits) -> CallFailure {
    if host.is_cpu_exhausted {
        return CallFailure::Cpu(Duration::from_millis(limits.cpu_ms));
    }
    if error.downcast_ref::<I32Exit>().is_some() {
        return CallFailure::Exit;
    }
    if let Some(failure) = error.chain().find_map(|cause| limit_from_error(&cause.to_string(), limits)) {
        return failure;
    }
    match host.limiter.exceeded_limit() {
        Some(ExceededLimit::Memory) => return CallFailure::Memory(limits.memory_bytes),
        Some(ExceededLimit::TableElements) => {
            return CallFailure::LimitExceeded(GuestLimit {
                noun: "elements of a table",
                max: limits.table_elements,
                limit_name: "table-elements",
            });
        }
        None => {}
    }
    // The chain starts with the backtrace; its end is the reason.
    let reason = error.chain().last().map(ToString::to_string).unwrap_or_default();
    tracing::debug!(error = %host.redactor().redact(&format!("{error:?}")), "trap");
    CallFailure::Trap(printable(
        &host.redactor().redact(reason.strip_prefix("wasm trap: ").unwrap_or(&reason)),
    ))
}

/// Adds the panic that the guest printed to a trap: a panic is a trap of the instruction `unreachable`, and
/// only the output has its message.
fn with_panic(failure: CallFailure, host: &StoreData) -> CallFailure {
    let CallFailure::Trap(reason) = &failure else { return failure };
    let printed = host.output.redacted_text(host.redactor());
    match printed.and_then(|(output, _)| panic_message(&output)) {
        Some(panic) if reason.contains("unreachable") => CallFailure::Trap(panic),
        Some(_) | None => failure,
    }
}

/// Maximum length of a panic's message in an error, in characters.
const MAX_PANIC_CHARS: usize = 200;

/// The message of a panic in a guest's output, in one line, with its place in the source: of Rust, Go, and C's
/// `assert`. `None` for other output.
fn panic_message(output: &str) -> Option<String> {
    let lines: Vec<&str> = output.lines().map(str::trim).collect();
    // The panic that ended the call is the last one.
    let (index, message) = lines.iter().enumerate().rev().find_map(|(index, line)| {
        let place = line.split_once("' panicked at ").or_else(|| line.split_once(") panicked at "));
        let is_panic = line.starts_with("panic: ") || line.starts_with("Assertion failed: ");
        match place {
            Some((_, place)) => Some((index, format!("panicked at {place}"))),
            None => is_panic.then(|| (index, (*line).to_owned())),
        }
    })?;
    // Rust prints the message in the next line.
    let message = match message.strip_suffix(':') {
        Some(place) => format!("{place}: {}", lines.get(index + 1).copied().unwrap_or_default()),
        None => message,
    };
    Some(printable(&message.chars().take(MAX_PANIC_CHARS).collect::<String>()))
}

/// Maps an error message to the limit that was exceeded; `None` for any other message. wasmtime reports these
/// limits by message only.
fn limit_from_error(message: &str, limits: &Limits) -> Option<CallFailure> {
    if message.contains("fuel allocated for hostcalls has been exhausted") {
        return Some(CallFailure::ResultTooLarge(limits.result_bytes));
    }
    #[rustfmt::skip] // one row a limit
    let table = [
        ("instance count too high",           "instances", limits.instances, "instances"),
        ("memory count too high",             "memories",  limits.memories,  "memories"),
        ("table count too high",              "tables",    limits.tables,    "tables"),
        ("store handle limit exceeded",       "handles",   limits.handles,   "handles"),
        ("resource table has no free keys",   "handles",   limits.handles,   "handles"),
    ];
    let (_, what, most, limit) = table.into_iter().find(|(words, ..)| message.contains(words))?;
    Some(CallFailure::LimitExceeded(GuestLimit { noun: what, max: most, limit_name: limit }))
}

/// Logs the guest's standard output and error: often only they explain a trap. Warns of a failure that is not
/// an error which the guest returned.
fn log_guest_output(method: &'static str, failure: Option<&CallFailure>, host: &StoreData) {
    let printed = host.output.redacted_text(host.redactor());
    let (output, dropped_bytes) = printed.unwrap_or_default();
    match failure {
        Some(CallFailure::Storage(_)) | None => {
            if !output.is_empty() {
                tracing::debug!(method, output, dropped_bytes, "a guest printed");
            }
        }
        // Injected faults need no attention.
        Some(CallFailure::Trap(reason)) if reason == INJECTED_FAULT => {
            tracing::debug!(method, "a call was ended")
        }
        // The backend has not failed.
        Some(CallFailure::Stopped) => {
            tracing::info!(method, output, dropped_bytes, "stopped a guest: the term of its call has ended");
        }
        Some(failure) => {
            tracing::warn!(
                method,
                outcome = failure.label(),
                ?failure,
                output,
                dropped_bytes,
                "a guest failed"
            );
        }
    }
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
