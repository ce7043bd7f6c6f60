//! `cofferdam backend call`: one call, printed.

use std::{
    collections::HashMap,
    future::ready,
    time::{Duration, Instant},
};

use clap::ValueEnum as _;
use cofferdam_backend::{Backend, BackendFuture, Call};
use cofferdam_domain::storage::{
    CapacityQuery, CreateGroupSnapshot, CreateSnapshot, ExpandVolume, PublishVolume, StorageError,
    ValidateVolume,
};
use cofferdam_wasm::{CallUsage, Grant};
use futures::TryFutureExt as _;
use serde_json::Value;

use super::{
    VendorError,
    arguments::Arguments,
    component::Component,
    csi,
    flags::{CallFlags, Format, Function},
};
use crate::{config::GoDuration, failure::Failure};

/// Said when the next call will not find what this one kept.
const FORGOTTEN: &str =
    "its state was empty before this call and ends with it: --state FILE keeps it for the next call\n";

/// Makes the call; the text is what is printed, and the boolean whether the driver answered without an error.
///
/// # Errors
/// [`Failure`], when the call could not be made.
pub(crate) async fn call(
    flags: CallFlags,
    environment: &HashMap<String, String>,
) -> Result<(String, bool), Failure> {
    let deadline = flags
        .timeout
        .parse::<GoDuration>()
        .map_err(|problem| VendorError::Argument(format!("--timeout: {problem}")))?
        .get();
    let name =
        flags.function.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let mut arguments = Arguments::new(name, flags.arguments);
    if csi::is_socket(&flags.component.file) {
        let (backend, secrets) = csi::connect(&flags.component, environment, deadline).await?;
        let prepared = prepare(backend.as_ref(), flags.function, Call { deadline, secrets }, &mut arguments)?;
        arguments.end()?;
        let (outcome, took) = timed(prepared).await;
        return Ok((show(&outcome, took, None, flags.output), outcome.is_ok()));
    }
    let component = Component::open(&flags.component, environment)?;
    let backend = component.load().await?;
    let forgets =
        component.config.state.file.is_none() && backend.interfaces().grants.contains(&Grant::State);
    let call = Call { deadline, secrets: component.secrets };
    let prepared = prepare(backend.as_ref(), flags.function, call, &mut arguments)?;
    arguments.end()?;
    let (outcome, took) = timed(prepared).await;
    let held = outcome.is_ok();
    let mut shown = show(&outcome, took, Some(backend.last_usage()), flags.output);
    if forgets && flags.output == Format::Text {
        shown.push_str(FORGOTTEN);
    }
    Ok((shown, held))
}

/// Makes the call, and says how long it took.
async fn timed(call: Prepared<'_>) -> (Result<Value, StorageError>, Duration) {
    let begun = Instant::now();
    let outcome = call.await;
    (outcome, begun.elapsed())
}

/// What is printed; `usage` is only known of components.
fn show(
    outcome: &Result<Value, StorageError>,
    took: Duration,
    usage: Option<CallUsage>,
    format: Format,
) -> String {
    let error = |error: &StorageError| {
        serde_json::json!({
            "kind": error.kind.as_str(),
            "message": error.message,
            "finality": error.finality,
            "retryAfterMs": error.retry_after_ms,
        })
    };
    match format {
        Format::Json => {
            let mut shown = serde_json::json!({
                "microseconds": u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            });
            let (key, value) = match outcome {
                Ok(answer) => ("answer", answer.clone()),
                Err(failed) => ("error", error(failed)),
            };
            if let Some(object) = shown.as_object_mut() {
                object.insert(key.to_owned(), value);
                if let Some(usage) = usage {
                    let computed = u64::try_from(usage.cpu_time.as_millis()).unwrap_or(u64::MAX);
                    object.insert("memoryBytes".to_owned(), usage.memory_bytes.into());
                    object.insert("computedMilliseconds".to_owned(), computed.into());
                }
            }
            format!("{shown:#}\n")
        }
        Format::Text => {
            let answer = match outcome {
                Ok(Value::Null) => "done".to_owned(),
                Ok(answer) => format!("{answer:#}"),
                Err(failed) => format!("{failed} ({:?})", failed.finality),
            };
            let used = usage.map_or_else(String::new, |usage| {
                format!(", computed {:.1?}, memory {} KiB", usage.cpu_time, usage.memory_bytes.div_ceil(1024))
            });
            format!("{answer}\n\ntook {took:.1?}{used}\n")
        }
    }
}

/// A call that answers in JSON.
type Prepared<'a> = BackendFuture<'a, Value>;

/// An answer as JSON. It is made of texts and numbers only, which always have a form.
fn json<T: serde::Serialize + Send + 'static>(answer: BackendFuture<'_, T>) -> Prepared<'_> {
    Box::pin(answer.map_ok(|answer| serde_json::to_value(answer).unwrap_or_default()))
}

/// Makes a call of the flags. Nothing happens before it is awaited.
fn prepare<'a>(
    backend: &'a dyn Backend,
    function: Function,
    call: Call,
    a: &mut Arguments,
) -> Result<Prepared<'a>, VendorError> {
    Ok(match function {
        Function::Describe => json(Box::pin(ready(Ok(backend.description().clone())))),
        Function::Probe => json(backend.probe(call)),
        Function::Create => json(backend.create_volume(call, a.creation()?)),
        Function::Delete => json(backend.delete_volume(call, a.handle()?.into())),
        Function::Validate => json(backend.validate_volume(call, validation(a)?)),
        Function::CreateFromVolume => {
            let source = a.source()?.into();
            json(backend.clone_volume(call, a.creation()?, source))
        }
        Function::CreateFromSnapshot => {
            let source = a.source()?.into();
            json(backend.restore_snapshot(call, a.creation()?, source))
        }
        Function::Publish => json(backend.publish_volume(call, publication(a)?)),
        Function::Unpublish => {
            let handle = a.handle()?.into();
            json(backend.unpublish_volume(call, handle, a.node_if_any().map(Into::into)))
        }
        Function::Expand => {
            let (handle, capacity) = (a.handle()?.into(), a.capacity());
            let request = ExpandVolume { handle, capacity, capability: a.capability_if_any()? };
            json(backend.expand_volume(call, request))
        }
        Function::Modify => {
            let handle = a.handle()?.into();
            json(backend.modify_volume(call, handle, a.mutable_parameters()?))
        }
        Function::CreateSnapshot => {
            let (name, source) = (a.name()?, a.source()?.into());
            json(backend.create_snapshot(
                call,
                CreateSnapshot { name, source, parameters: a.parameters()?, owner: None },
            ))
        }
        Function::DeleteSnapshot => json(backend.delete_snapshot(call, a.handle()?.into())),
        Function::GetSnapshot => json(backend.get_snapshot(call, a.handle()?.into())),
        Function::ListSnapshots => {
            let source = a.source_if_any()?;
            json(backend.list_snapshots(call, source, a.page()))
        }
        Function::CreateGroup => {
            let (name, sources) = (a.name()?, a.sources());
            let request = CreateGroupSnapshot { name, sources, parameters: a.parameters()?, owner: None };
            json(backend.create_group_snapshot(call, request))
        }
        Function::DeleteGroup => {
            let handle = a.handle()?.into();
            json(backend.delete_group_snapshot(call, handle, a.members()))
        }
        Function::GetGroup => {
            let handle = a.handle()?.into();
            json(backend.get_group_snapshot(call, handle, a.members()))
        }
        Function::ListVolumes => json(backend.list_volumes(call, a.page())),
        Function::GetVolume => json(backend.get_volume(call, a.handle()?.into())),
        Function::Available => json(backend.get_capacity(call, query(a)?)),
    })
}

fn validation(a: &mut Arguments) -> Result<ValidateVolume, VendorError> {
    Ok(ValidateVolume {
        handle: a.handle()?.into(),
        context: a.context()?,
        capabilities: a.capabilities(),
        parameters: a.parameters()?,
        mutable_parameters: a.mutable_parameters()?,
    })
}

fn publication(a: &mut Arguments) -> Result<PublishVolume, VendorError> {
    Ok(PublishVolume {
        handle: a.handle()?.into(),
        node_identities: a.node_identities()?,
        node_id: a.node()?.into(),
        capability: a.capability()?,
        read_only: a.read_only(),
        context: a.context()?,
    })
}

fn query(a: &mut Arguments) -> Result<CapacityQuery, VendorError> {
    let mut places = a.places()?;
    let topology = places.pop();
    if !places.is_empty() {
        return Err(VendorError::Argument("capacity.available takes one --topology".to_owned()));
    }
    Ok(CapacityQuery { capabilities: a.capabilities_if_any(), parameters: a.parameters()?, topology })
}
