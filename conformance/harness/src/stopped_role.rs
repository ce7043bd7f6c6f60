//! A role that has stopped because another controller does its work.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use http::Request;
use k8s_openapi::api::core::v1::Event;
use kube::{Api, Client, api::ListParams};

use crate::{process::ManagedProcess, wait::until};

const TIMEOUT: Duration = Duration::from_secs(60);
const REASON: &str = "ConflictingController";

/// Returns true if the metrics of a process say that it has stopped the role.
///
/// # Errors
/// If the process does not serve its metrics.
pub(crate) async fn is_stopped(process: &ManagedProcess, role: &str) -> Result<bool> {
    let line = format!("cofferdam_role_stopped{{role=\"{role}\"}} 1");
    Ok(process.metrics_page().await?.contains(&line))
}

/// Checks that an event, the log and `/readyz` of a process name the stopped role.
///
/// # Errors
/// If one of them does not.
pub(crate) async fn ensure_reported(client: &Client, process: &ManagedProcess, role: &str) -> Result<()> {
    let text = format!("another controller does the work of the role {role}");
    let page = process.metrics_client()?.request_text(Request::get("/readyz").body(Vec::new())?).await;
    let error = format!("{:#}", page.err().context("a process with a stopped role is ready")?);
    ensure!(error.contains(&text), "/readyz does not say {text:?}: {error}");
    let log = fs::read_to_string(process.log())?;
    ensure!(log.contains(&text), "{} does not say {text:?}", process.log().display());
    let events: Api<Event> = Api::all(client.clone());
    let reason = ListParams::default().fields(&format!("reason={REASON}"));
    until(&format!("an event {REASON} of the role {role}"), TIMEOUT, async || {
        let events = events.list(&reason).await?.items;
        let mut messages = events.iter().filter_map(|event| event.message.as_deref());
        ensure!(messages.any(|message| message.contains(&text)), "{} events of other roles", events.len());
        Ok(())
    })
    .await
}
