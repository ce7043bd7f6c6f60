//! `cofferdam backend call`: calls one function of a driver and prints the response.

use std::{
    collections::HashMap,
    future::ready,
    time::{Duration, Instant},
};

use clap::ValueEnum as _;
use cofferdam_backend::{Backend, BackendFuture, Call};
use cofferdam_domain::storage::{
    CapacityQuery, ContentSource, CreateGroupSnapshot, CreateSnapshot, CreateVolume, ExpandVolume,
    PublishVolume, StorageError, ValidateVolume,
};
use cofferdam_wasm::{CallUsage, Grant};
use futures::TryFutureExt as _;
use serde_json::Value;

use super::{arguments::Arguments, component::ConfiguredComponent, csi, error::BackendCommandError};
use crate::{
    cli::backend::{CallFlags, CallFormat, ContractFunction},
    config::GoDuration,
    error::CommandError,
    style::TerminalText,
};

/// Printed by text output if the component has the grant `state` and no file for the state is configured.
const STATE_NOT_KEPT_NOTE: &str =
    "the state was empty before this call and is now discarded: --state FILE keeps it for the next call";

/// Calls a function of the driver. Returns the text to print, and `true` if the driver returned no error.
///
/// # Errors
/// [`CommandError`] if a flag or the configuration is invalid, or if the driver cannot be loaded or connected
/// to.
pub(crate) async fn call(
    flags: CallFlags,
    environment: &HashMap<String, String>,
) -> Result<(TerminalText, bool), CommandError> {
    let deadline = flags
        .timeout
        .parse::<GoDuration>()
        .map_err(|problem| BackendCommandError::Argument(format!("--timeout: {problem}")))?
        .get();
    let name =
        flags.function.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let mut arguments = Arguments::new(name, flags.arguments);
    if csi::is_socket(&flags.component.file) {
        let (backend, secrets) = csi::connect(&flags.component, environment, deadline).await?;
        let prepared = prepare_call(
            backend.as_ref(),
            flags.function,
            Call { secrets, ..Call::with_deadline(deadline) },
            &mut arguments,
        )?;
        arguments.reject_unused()?;
        let (outcome, duration) = call_timed(prepared).await;
        return Ok((format_outcome(&outcome, duration, None, flags.output), outcome.is_ok()));
    }
    let component = ConfiguredComponent::open(&flags.component, environment)?;
    let backend = component.load().await?;
    let loses_state =
        component.config.state.file.is_none() && backend.interfaces().grants.contains(&Grant::State);
    let call = Call { secrets: component.secrets, ..Call::with_deadline(deadline) };
    let prepared = prepare_call(backend.as_ref(), flags.function, call, &mut arguments)?;
    arguments.reject_unused()?;
    let (outcome, duration) = call_timed(prepared).await;
    let success = outcome.is_ok();
    let mut output = format_outcome(&outcome, duration, Some(backend.last_usage()), flags.output);
    if loses_state && flags.output == CallFormat::Text {
        output.push_line(STATE_NOT_KEPT_NOTE);
    }
    Ok((output, success))
}

/// Runs the call and measures its duration.
async fn call_timed(call: PreparedCall<'_>) -> (Result<Value, StorageError>, Duration) {
    let started = Instant::now();
    let outcome = call.await;
    (outcome, started.elapsed())
}

/// Formats the outcome; `usage` is `None` for CSI drivers, whose CPU time and memory are not measured.
fn format_outcome(
    outcome: &Result<Value, StorageError>,
    duration: Duration,
    usage: Option<CallUsage>,
    format: CallFormat,
) -> TerminalText {
    let error = |error: &StorageError| {
        serde_json::json!({
            "kind": error.kind.as_str(),
            "message": error.message,
            "finality": error.finality,
            "retryAfterMs": error.retry_after_ms,
        })
    };
    match format {
        CallFormat::Json => {
            let mut output = serde_json::json!({
                "microseconds": u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            });
            let (key, value) = match outcome {
                Ok(response) => ("response", response.clone()),
                Err(failed) => ("error", error(failed)),
            };
            if let Some(object) = output.as_object_mut() {
                object.insert(key.to_owned(), value);
                if let Some(usage) = usage {
                    let cpu_ms = u64::try_from(usage.cpu_time.as_millis()).unwrap_or(u64::MAX);
                    object.insert("memoryBytes".to_owned(), usage.memory_bytes.into());
                    object.insert("cpuMilliseconds".to_owned(), cpu_ms.into());
                }
            }
            TerminalText::from_json(&output)
        }
        CallFormat::Text => {
            let mut text = TerminalText::default();
            match outcome {
                Ok(Value::Null) => text.push_line("done"),
                Ok(response) => text.push(TerminalText::from_json(response)),
                Err(failed) => text.push_line(format!("{failed} ({:?})", failed.finality)),
            }
            let usage_text = usage.map_or_else(String::new, |usage| {
                format!(", cpu {:.1?}, memory {} KiB", usage.cpu_time, usage.memory_bytes.div_ceil(1024))
            });
            text.push_line("");
            text.push_line(format!("took {duration:.1?}{usage_text}"));
            text
        }
    }
}

/// A call whose response is converted to JSON.
type PreparedCall<'a> = BackendFuture<'a, Value>;

/// Converts the response to JSON. Responses consist of strings and numbers, which always can be encoded.
fn to_json<T: serde::Serialize + Send + 'static>(response: BackendFuture<'_, T>) -> PreparedCall<'_> {
    Box::pin(response.map_ok(|response| serde_json::to_value(response).unwrap_or_default()))
}

/// Prepares a call from the flags. The call starts when it is awaited.
fn prepare_call<'a>(
    backend: &'a dyn Backend,
    function: ContractFunction,
    call: Call,
    a: &mut Arguments,
) -> Result<PreparedCall<'a>, BackendCommandError> {
    Ok(match function {
        ContractFunction::Describe => to_json(Box::pin(ready(Ok(backend.description().clone())))),
        ContractFunction::Probe => to_json(backend.probe(call)),
        ContractFunction::Create => to_json(backend.create_volume(call, a.create_request()?)),
        ContractFunction::Delete => to_json(backend.delete_volume(call, a.handle()?.into())),
        ContractFunction::Validate => to_json(backend.validate_volume(call, validate_request(a)?)),
        ContractFunction::CreateFromVolume => {
            let source = Some(ContentSource::Volume(a.source()?.into()));
            to_json(backend.create_volume(call, CreateVolume { source, ..a.create_request()? }))
        }
        ContractFunction::CreateFromSnapshot => {
            let source = Some(ContentSource::Snapshot(a.source()?.into()));
            to_json(backend.create_volume(call, CreateVolume { source, ..a.create_request()? }))
        }
        ContractFunction::Publish => to_json(backend.publish_volume(call, publish_request(a)?)),
        ContractFunction::Unpublish => {
            let handle = a.handle()?.into();
            to_json(backend.unpublish_volume(call, handle, a.optional_node().map(Into::into)))
        }
        ContractFunction::Expand => {
            let (handle, capacity) = (a.handle()?.into(), a.capacity());
            let request = ExpandVolume { handle, capacity, capability: a.optional_capability()? };
            to_json(backend.expand_volume(call, request))
        }
        ContractFunction::Modify => {
            let handle = a.handle()?.into();
            to_json(backend.modify_volume(call, handle, a.mutable_parameters()?))
        }
        ContractFunction::CreateSnapshot => {
            let (name, source) = (a.name()?, a.source()?.into());
            let (parameters, owner) = (a.parameters()?, a.snapshot_owner());
            to_json(backend.create_snapshot(call, CreateSnapshot { name, source, parameters, owner }))
        }
        ContractFunction::DeleteSnapshot => to_json(backend.delete_snapshot(call, a.handle()?.into())),
        ContractFunction::GetSnapshot => to_json(backend.get_snapshot(call, a.handle()?.into())),
        ContractFunction::ListSnapshots => {
            let source = a.optional_source()?;
            to_json(backend.list_snapshots(call, source, a.page()))
        }
        ContractFunction::CreateGroup => {
            let (name, sources) = (a.name()?, a.sources());
            let (parameters, owner) = (a.parameters()?, a.snapshot_owner());
            let request = CreateGroupSnapshot { name, sources, parameters, owner };
            to_json(backend.create_group_snapshot(call, request))
        }
        ContractFunction::DeleteGroup => {
            let handle = a.handle()?.into();
            to_json(backend.delete_group_snapshot(call, handle, a.members()))
        }
        ContractFunction::GetGroup => {
            let handle = a.handle()?.into();
            to_json(backend.get_group_snapshot(call, handle, a.members()))
        }
        ContractFunction::ListVolumes => to_json(backend.list_volumes(call, a.page())),
        ContractFunction::GetVolume => to_json(backend.get_volume(call, a.handle()?.into())),
        ContractFunction::GetCapacity => to_json(backend.get_capacity(call, capacity_query(a)?)),
    })
}

fn validate_request(a: &mut Arguments) -> Result<ValidateVolume, BackendCommandError> {
    Ok(ValidateVolume {
        handle: a.handle()?.into(),
        context: a.context()?,
        capabilities: a.capabilities(),
        parameters: a.parameters()?,
        mutable_parameters: a.mutable_parameters()?,
    })
}

fn publish_request(a: &mut Arguments) -> Result<PublishVolume, BackendCommandError> {
    Ok(PublishVolume {
        handle: a.handle()?.into(),
        node_identities: a.node_identities()?,
        node_id: a.node()?.into(),
        capability: a.capability()?,
        read_only: a.read_only(),
        context: a.context()?,
    })
}

fn capacity_query(a: &mut Arguments) -> Result<CapacityQuery, BackendCommandError> {
    let mut topologies = a.topologies()?;
    let topology = topologies.pop();
    if !topologies.is_empty() {
        return Err(BackendCommandError::Argument("capacity.available takes one --topology".to_owned()));
    }
    Ok(CapacityQuery { capabilities: a.optional_capabilities(), parameters: a.parameters()?, topology })
}
