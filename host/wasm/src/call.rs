//! One call: a fresh instance in a task of its own, under every limit, with a typed end.

use std::{sync::Arc, time::Duration};

use cofferdam_domain::storage::Secrets;
use futures::future::BoxFuture;
use tokio::time::{Instant, sleep_until, timeout_at};
use wasmtime::{Store, component::Instance};
use wasmtime_wasi::I32Exit;

use crate::{
    bindings::cofferdam::storage::types as wit,
    capabilities::{Context, Shared},
    convert,
    effort::Effort,
    engine::Inner,
    exports::Exports,
    instance::{self, Host},
    lane::Lane,
    limits::{Limits, Refused},
    loader::Compiled,
    outcome::{Bounded, Failure},
    slots::{Share, Taken},
    testing::ENDED,
    usage::Usage,
};
use cofferdam_backend::checks::printable;

/// Everything that calls of one backend share.
pub(crate) struct Parts {
    pub(crate) engine: wasmtime::Engine,
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) shared: Shared,
    pub(crate) limits: Limits,
    /// What the operator gives every call.
    pub(crate) secrets: Secrets,
    /// Where its instances live, among those of all backends.
    pub(crate) slots: Share,
    /// Where calls that compute for long take turns.
    pub(crate) lane: Lane,
}

/// A fresh instance, for one call.
pub(crate) struct Fresh<'a> {
    pub(crate) store: &'a mut Store<Host>,
    pub(crate) instance: Instance,
    pub(crate) exports: &'a Exports,
}

/// What a guest's function answers.
pub(crate) type Answer<T> = wasmtime::Result<Result<T, wit::StorageError>>;

/// One function of a guest with its arguments.
pub(crate) type Function<T> = Box<dyn for<'a> FnOnce(Fresh<'a>) -> BoxFuture<'a, Answer<T>> + Send>;

/// How a call ended.
pub(crate) struct End<T> {
    pub(crate) answer: Result<T, Failure>,
    /// What the guest used; absent when there was no guest.
    pub(crate) usage: Option<Usage>,
}

impl<T> End<T> {
    pub(crate) fn without_guest(failure: Failure) -> Self {
        Self { answer: Err(failure), usage: None }
    }
}

impl Parts {
    /// Waits for the slots of a call, which its caller holds until the call is over.
    pub(crate) async fn room(&self, deadline: Instant) -> Result<Taken<'_>, Failure> {
        let taken = timeout_at(deadline, self.slots.take(self.compiled.slots)).await;
        taken.map_err(|_| Failure::Crowded)
    }
}

/// Runs a call in a task on the guests' threads: a panic ends the task and nothing else.
pub(crate) async fn spawn<T: Send + 'static>(
    inner: &Inner,
    parts: Arc<Parts>,
    context: Context,
    method: &'static str,
    function: Function<T>,
) -> End<T> {
    let task = inner.guests().spawn(run(parts, context, method, function));
    task.await.unwrap_or_else(|error| {
        tracing::error!(method, %error, "the host failed while it ran a guest");
        End::without_guest(Failure::Panic)
    })
}

/// Runs a call here, or where calls run that compute for long.
pub(crate) async fn run<T: Send + 'static>(
    parts: Arc<Parts>,
    context: Context,
    method: &'static str,
    function: Function<T>,
) -> End<T> {
    let (lane, effort) = (parts.lane.clone(), Effort::default());
    let call = {
        let effort = effort.clone();
        async move { alone(&parts, context, method, function, effort).await }
    };
    lane.pace(&effort, Box::pin(call)).await
}

/// The call itself. The store dies with it, whatever happened: after a trap nothing in it can be trusted.
async fn alone<T>(
    parts: &Parts,
    context: Context,
    method: &'static str,
    function: Function<T>,
    effort: Effort,
) -> End<T> {
    let begun = Instant::now();
    let deadline = context.deadline;
    let mut store = instance::store(parts, context, effort.clone());
    let work = async {
        let instance = parts.compiled.pre.instantiate_async(&mut store).await?;
        function(Fresh { store: &mut store, instance, exports: &parts.compiled.exports }).await
    };
    let outcome = tokio::select! {
        // First, because a call that has waited for its turn until now must not run any more.
        biased;
        () = sleep_until(deadline) => None,
        answer = work => Some(answer),
    };
    let answer = match outcome {
        Some(Ok(Ok(value))) => Ok(value),
        Some(Ok(Err(error))) => Err(Failure::Storage(convert::error(error, store.data().redactor()))),
        Some(Err(error)) => Err(classify(&error, store.data(), &parts.limits)),
        None => Err(timed_out(deadline.saturating_duration_since(begun), &parts.limits)),
    };
    let host = store.data();
    let lost_lines = host.finish();
    report(method, answer.as_ref().err(), host);
    let usage = Usage { memory_bytes: host.meter.peak(), computed: effort.until_now(), lost_lines };
    End { answer, usage: Some(usage) }
}

/// What a passed deadline says. A caller in a hurry, or a call that waited long for its turn, is not the guest's fault.
fn timed_out(ran: Duration, limits: &Limits) -> Failure {
    /// Longer than any guest computes without waiting for its storage, and well below the second that callers give a probe.
    const PATIENCE: Duration = Duration::from_millis(500);
    if ran < PATIENCE.min(limits.deadline()) { Failure::Hurried(ran) } else { Failure::Deadline(ran) }
}

/// Why wasmtime ended a call. The limits leave their mark in the store, which is surer than reading the error.
fn classify(error: &wasmtime::Error, host: &Host, limits: &Limits) -> Failure {
    if host.out_of_time {
        return Failure::Cpu(Duration::from_millis(limits.cpu_ms));
    }
    if error.downcast_ref::<I32Exit>().is_some() {
        return Failure::Exit;
    }
    if let Some(failure) = error.chain().find_map(|cause| spoken(&cause.to_string(), limits)) {
        return failure;
    }
    match host.meter.refused() {
        Some(Refused::Memory) => return Failure::Memory(limits.memory_bytes),
        Some(Refused::TableElements) => {
            return Failure::Exhausted(Bounded {
                what: "elements of a table",
                most: limits.table_elements,
                limit: "table-elements",
            });
        }
        None => {}
    }
    // The chain begins with the backtrace, which has many lines; its end is the reason.
    let reason = error.chain().last().map(ToString::to_string).unwrap_or_default();
    tracing::debug!(error = %host.redactor().blot(&format!("{error:?}")), "trap");
    Failure::Trap(printable(&host.redactor().blot(reason.strip_prefix("wasm trap: ").unwrap_or(&reason))))
}

/// The limits for whose excess the library has words but no types.
fn spoken(cause: &str, limits: &Limits) -> Option<Failure> {
    if cause.contains("fuel allocated for hostcalls has been exhausted") {
        return Some(Failure::ResultTooLarge(limits.result_bytes));
    }
    #[rustfmt::skip] // one row a limit
    let table = [
        ("instance count too high",           "instances", limits.instances, "instances"),
        ("memory count too high",             "memories",  limits.memories,  "memories"),
        ("table count too high",              "tables",    limits.tables,    "tables"),
        ("store handle limit exceeded",       "handles",   limits.handles,   "handles"),
        ("resource table has no free keys",   "handles",   limits.handles,   "handles"),
    ];
    let (_, what, most, limit) = table.into_iter().find(|(words, ..)| cause.contains(words))?;
    Some(Failure::Exhausted(Bounded { what, most, limit }))
}

/// Logs what a guest printed: it is the only place where a trap says why.
fn report(method: &'static str, failure: Option<&Failure>, host: &Host) {
    let printed = host.output.text(|text| host.redactor().blot(text).into_owned());
    let (output, lost) = printed.unwrap_or_default();
    match failure {
        Some(Failure::Storage(_)) | None => {
            if !output.is_empty() {
                tracing::debug!(method, output, lost, "a guest printed");
            }
        }
        // Nobody needs to look at what was done on purpose.
        Some(Failure::Trap(reason)) if reason == ENDED => tracing::debug!(method, "a call was ended"),
        Some(failure) => {
            tracing::warn!(method, outcome = failure.label(), ?failure, output, lost, "a guest failed");
        }
    }
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
