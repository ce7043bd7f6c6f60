//! One call: a fresh instance in a task of its own, under every limit, with a typed end.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::time::{Instant, timeout_at};
use wasmtime::{
    Store,
    component::{Instance, InstancePre},
};
use wasmtime_wasi::I32Exit;

use crate::{
    bindings::{
        cofferdam::storage::types as wit,
        exports::cofferdam::storage::{identity, volumes},
    },
    capabilities::Shared,
    checks::printable,
    convert,
    engine::Inner,
    instance::{self, Host},
    limits::Limits,
    outcome::Failure,
};

/// Everything that calls of one backend share.
pub(crate) struct Parts {
    pub(crate) engine: wasmtime::Engine,
    pub(crate) pre: InstancePre<Host>,
    pub(crate) identity: identity::GuestIndices,
    pub(crate) volumes: volumes::GuestIndices,
    pub(crate) shared: Shared,
    pub(crate) limits: Limits,
}

/// A fresh instance, for one call.
pub(crate) struct Fresh<'a> {
    store: &'a mut Store<Host>,
    instance: Instance,
    parts: &'a Parts,
}

/// What a guest's function answers.
type Answer<T> = wasmtime::Result<Result<T, wit::StorageError>>;

/// One function of a guest with its arguments.
pub(crate) type Function<T> = Box<dyn for<'a> FnOnce(Fresh<'a>) -> BoxFuture<'a, Answer<T>> + Send>;

/// How a call ended.
pub(crate) struct End<T> {
    pub(crate) answer: Result<T, Failure>,
    /// Most memory that the guest had at once, in bytes; absent when there was no guest.
    pub(crate) memory: Option<usize>,
}

impl<T> End<T> {
    pub(crate) fn without_guest(failure: Failure) -> Self {
        Self { answer: Err(failure), memory: None }
    }
}

/// `identity.describe`
pub(crate) fn describe() -> Function<identity::Description> {
    Box::new(|fresh| {
        Box::pin(async move {
            let guest = fresh.parts.identity.load(&mut *fresh.store, &fresh.instance)?;
            guest.call_describe(fresh.store).await
        })
    })
}

/// `identity.probe`
pub(crate) fn probe() -> Function<identity::Readiness> {
    Box::new(|fresh| {
        Box::pin(async move {
            let guest = fresh.parts.identity.load(&mut *fresh.store, &fresh.instance)?;
            guest.call_probe(fresh.store).await
        })
    })
}

/// `volumes.create`
pub(crate) fn create(request: wit::CreateRequest) -> Function<wit::Volume> {
    Box::new(move |fresh| {
        Box::pin(async move {
            let guest = fresh.parts.volumes.load(&mut *fresh.store, &fresh.instance)?;
            guest.call_create(fresh.store, &request).await
        })
    })
}

/// `volumes.delete`
pub(crate) fn delete(handle: String) -> Function<()> {
    Box::new(move |fresh| {
        Box::pin(async move {
            let guest = fresh.parts.volumes.load(&mut *fresh.store, &fresh.instance)?;
            guest.call_delete(fresh.store, &handle).await
        })
    })
}

/// `volumes.validate`
pub(crate) fn validate(request: volumes::ValidateRequest) -> Function<volumes::Validation> {
    Box::new(move |fresh| {
        Box::pin(async move {
            let guest = fresh.parts.volumes.load(&mut *fresh.store, &fresh.instance)?;
            guest.call_validate(fresh.store, &request).await
        })
    })
}

/// Runs a call in a task on the guests' threads: a panic ends the task and nothing else.
pub(crate) async fn spawn<T: Send + 'static>(
    inner: &Inner,
    parts: Arc<Parts>,
    deadline: Instant,
    method: &'static str,
    function: Function<T>,
) -> End<T> {
    let task = inner.guests().spawn(async move { run(&parts, deadline, method, function).await });
    task.await.unwrap_or_else(|error| {
        tracing::error!(method, %error, "the host failed while it ran a guest");
        End::without_guest(Failure::Panic)
    })
}

/// Runs a call here. The store dies with the call, whatever happened: after a trap nothing in it can be trusted.
pub(crate) async fn run<T>(
    parts: &Parts,
    deadline: Instant,
    method: &'static str,
    function: Function<T>,
) -> End<T> {
    let begun = Instant::now();
    let mut store = instance::store(&parts.engine, &parts.shared, &parts.limits);
    let outcome = timeout_at(deadline, async {
        let instance = parts.pre.instantiate_async(&mut store).await?;
        function(Fresh { store: &mut store, instance, parts }).await
    })
    .await;
    let answer = match outcome {
        Ok(Ok(Ok(value))) => Ok(value),
        Ok(Ok(Err(error))) => Err(Failure::Storage(convert::error(error))),
        Ok(Err(error)) => Err(classify(&error, store.data(), &parts.limits)),
        Err(_) => Err(Failure::Deadline(deadline.saturating_duration_since(begun))),
    };
    let host = store.data();
    host.finish();
    report(method, answer.as_ref().err(), host);
    End { answer, memory: Some(host.meter.peak()) }
}

/// Why wasmtime ended a call. The limits leave their mark in the store, which is surer than reading the error.
fn classify(error: &wasmtime::Error, host: &Host, limits: &Limits) -> Failure {
    /// What the library says when a value is larger than `set_hostcall_fuel` allows; it has no type for it.
    const FUEL: &str = "fuel allocated for hostcalls has been exhausted";
    if host.out_of_time {
        Failure::Cpu(std::time::Duration::from_millis(limits.cpu_ms))
    } else if host.meter.refused() {
        Failure::Memory(limits.memory_bytes)
    } else if error.downcast_ref::<I32Exit>().is_some() {
        Failure::Exit
    } else if error.chain().any(|cause| cause.to_string().contains(FUEL)) {
        Failure::ResultTooLarge(limits.result_bytes)
    } else {
        // The chain begins with the backtrace, which has many lines; its end is the reason.
        let reason = error.chain().last().map(ToString::to_string).unwrap_or_default();
        tracing::debug!(error = format!("{error:?}"), "trap");
        Failure::Trap(printable(reason.strip_prefix("wasm trap: ").unwrap_or(&reason)))
    }
}

/// Logs what a guest printed: it is the only place where a trap says why.
fn report(method: &'static str, failure: Option<&Failure>, host: &Host) {
    let printed = host.output.text();
    let (output, lost) = printed.unwrap_or_default();
    match failure {
        Some(Failure::Storage(_)) | None => {
            if !output.is_empty() {
                tracing::debug!(method, output, lost, "a guest printed");
            }
        }
        Some(failure) => {
            tracing::warn!(method, outcome = failure.label(), ?failure, output, lost, "a guest failed");
        }
    }
}
