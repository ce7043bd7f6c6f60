//! `cofferdam orphans`: lists volumes and snapshots of drivers that no object in the cluster refers to, and
//! deletes them one at a time.
//!
//! The command uses the API only. The list comes from the reports of provisioners and snapshotters. A
//! deletion is a request to the one of the driver, which checks the volume or snapshot again.

mod error;
pub(crate) mod report;
pub(crate) mod scope;
mod table;

use std::{collections::HashMap, time::Duration};

use cofferdam_cluster::orphan_report::OrphanKind;
use cofferdam_controllers::orphans::report::{
    DELETE, DELETING, DeletionRequest, DeletionResponse, DeletionResult,
};
use cofferdam_domain::ResourceHandle;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    cli::{DeleteFlags, ListFlags, OrphansCommand, OrphansFlags, OutputFormat, ReportFlags},
    client::{self, ClientEnvironment, ClusterConnection, one_line},
    config::{GoDuration, ResolvedConfig},
    error::CommandError,
    host_name::host_name,
    style::TerminalText,
    wait::{self, Expectation},
};
use error::OrphansError;
use report::{DriverReport, PendingRequest};
use scope::ReportScope;

/// Runs a command; returns the text to print, and `false` if a deletion was refused.
///
/// # Errors
/// [`CommandError`], one line.
pub(crate) async fn run(
    flags: OrphansFlags,
    environment: &HashMap<String, String>,
) -> Result<(TerminalText, bool), CommandError> {
    match flags.command {
        None => Ok((list(&flags.list, environment).await?, true)),
        Some(OrphansCommand::List(flags)) => Ok((list(&flags, environment).await?, true)),
        Some(OrphansCommand::Delete(flags)) => delete(&flags, environment).await,
    }
}

/// Connects to the cluster. The namespace of the connection is that of `--namespace`, if it is set.
pub(crate) async fn connect(
    flags: &ReportFlags,
    environment: &HashMap<String, String>,
) -> Result<ClusterConnection, CommandError> {
    let values = flags.connection.values.clone().with("namespace", flags.namespace.clone());
    let resolved = ResolvedConfig::for_cluster(&values, environment)?;
    Ok(client::connect(&resolved.configuration, &ClientEnvironment::from_process()).await?)
}

/// Lists the reports of one driver or of all, sorted by driver, namespace and kind.
async fn find_reports(
    cluster: &ClusterConnection,
    scope: &ReportScope,
    driver: Option<&str>,
) -> Result<Vec<DriverReport>, OrphansError> {
    let maps =
        scope.api(cluster.client.clone()).list(&report::list_parameters()).await.map_err(|error| {
            OrphansError::List { api: cluster.api_description(), problem: one_line(&error) }
        })?;
    let mut reports = Vec::new();
    for map in &maps.items {
        let report = DriverReport::from_config_map(map)?;
        reports.extend(report.filter(|report| driver.is_none_or(|driver| driver == report.driver.as_str())));
    }
    reports.sort_by(|a, b| (&a.driver, a.namespace(), a.kind).cmp(&(&b.driver, b.namespace(), b.kind)));
    Ok(reports)
}

fn no_report_error(driver: &str, kind: Option<OrphanKind>, scope: &ReportScope) -> OrphansError {
    OrphansError::NoReport { driver: driver.to_owned(), kind, scope: scope.clone() }
}

async fn list(
    flags: &ListFlags,
    environment: &HashMap<String, String>,
) -> Result<TerminalText, CommandError> {
    let cluster = connect(&flags.reports.reports, environment).await?;
    let scope = ReportScope::from_flags(&flags.reports, &cluster);
    let reports = find_reports(&cluster, &scope, flags.driver.as_deref()).await?;
    if let Some(driver) = flags.driver.as_ref().filter(|_| reports.is_empty()) {
        return Err(no_report_error(driver, None, &scope).into());
    }
    Ok(match flags.output {
        OutputFormat::Text => table::format_reports(&reports, &scope, Timestamp::now()),
        OutputFormat::Json => {
            TerminalText::from_json(&json!({"drivers": reports.iter().map(to_json).collect::<Vec<_>>()}))
        }
    })
}

fn to_json(report: &DriverReport) -> serde_json::Value {
    let request = report.readable_request();
    json!({
        "driver": report.driver,
        "kind": report.kind,
        "namespace": report.namespace(),
        "configMap": report.config_map.key.name,
        "report": report.scan_report(),
        "request": request,
        "deleting": report.is_deleting(),
        "response": DeletionResponse::read(&report.config_map),
    })
}

async fn delete(
    flags: &DeleteFlags,
    environment: &HashMap<String, String>,
) -> Result<(TerminalText, bool), CommandError> {
    let limit: GoDuration =
        flags.timeout.parse().map_err(|error| OrphansError::Timeout(format!("{error}")))?;
    let cluster = connect(&flags.reports, environment).await?;
    // A request goes to the process of one namespace. Whoever answers it there is believed.
    let scope = ReportScope::Namespace(cluster.namespace.clone());
    let kind = OrphanKind::from(flags.kind);
    let reports = find_reports(&cluster, &scope, Some(&flags.driver)).await?;
    // The name of the ConfigMap follows from the kind and the driver: there is at most one.
    let report = reports.into_iter().find(|report| report.kind == kind);
    let report = report.ok_or_else(|| no_report_error(&flags.driver, Some(kind), &scope))?;
    let api = scope.api(cluster.client);
    let requested_by =
        format!("{}@{}", environment.get("USER").map_or("unknown", String::as_str), host_name());
    let request =
        request_deletion(&api, &report, &ResourceHandle::from(flags.handle.as_str()), requested_by).await?;
    let response = wait_for_response(&api, &report, &request, limit.get()).await?;
    let success = response.result == DeletionResult::Deleted;
    let text = match flags.output {
        OutputFormat::Json => TerminalText::from_json(&json!(response)),
        OutputFormat::Text => {
            let mut text = TerminalText::default();
            text.push_line(table::format_response(&report, &request, &response));
            text
        }
    };
    Ok((text, success))
}

/// Writes a request, or returns a pending request for the same handle. A pending request for another handle,
/// or one that this version cannot read, is an error.
async fn request_deletion(
    api: &Api<ConfigMap>,
    report: &DriverReport,
    handle: &ResourceHandle,
    requested_by: String,
) -> Result<DeletionRequest, OrphansError> {
    let driver = || report.driver.to_string();
    match report.pending_request() {
        Some(PendingRequest::Known(pending)) if pending.handle == *handle => return Ok(pending),
        Some(PendingRequest::Known(DeletionRequest { handle, requested_at, requested_by })) => {
            return Err(OrphansError::RequestPending {
                driver: driver(),
                handle: handle.to_string(),
                requested_by,
                since: requested_at,
            });
        }
        Some(PendingRequest::Unreadable) => {
            return Err(OrphansError::UnreadableRequest(driver()));
        }
        None => {}
    }
    let request = DeletionRequest { handle: handle.clone(), requested_at: Timestamp::now(), requested_by };
    let mut patch = request.patch();
    if let Some(patch) = patch.as_object_mut() {
        // The resource version keeps concurrent requests from overwriting each other.
        let version = json!({"resourceVersion": report.config_map.meta.resource_version.to_string()});
        patch.insert("metadata".to_owned(), version);
    }
    let patched =
        api.patch(&report.config_map.key.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map_err(|error| {
        let is_conflict = matches!(&error, kube::Error::Api(status) if status.code == 409);
        let message = if is_conflict {
            "the report changed concurrently: try again".to_owned()
        } else {
            one_line(&error)
        };
        OrphansError::RequestDeletion(message)
    })?;
    Ok(request)
}

/// Waits for the response to a request, at most for `limit`. Also fails if the request is gone and the
/// ConfigMap has no response to it: the request was withdrawn, or the response to a later request replaced
/// the response to this one.
async fn wait_for_response(
    api: &Api<ConfigMap>,
    report: &DriverReport,
    request: &DeletionRequest,
    limit: Duration,
) -> Result<DeletionResponse, OrphansError> {
    let driver = || report.driver.to_string();
    let namespace = || report.namespace().to_owned();
    let read_state = |map: Option<&ConfigMap>| {
        let report = DriverReport::from_config_map(map?).ok()??;
        let response = DeletionResponse::read(&report.config_map)
            .filter(|response| response.request.as_ref() == Some(request));
        let is_pending = [DELETE, DELETING].iter().any(|key| {
            report.config_map.data_value(key).and_then(|text| DeletionRequest::parse(text).ok()).as_ref()
                == Some(request)
        });
        Some((response, is_pending))
    };
    let expectation = Expectation {
        expected: "completed",
        is_met: &|map| read_state(map).is_none_or(|(_, is_pending)| !is_pending),
        describe: &|_| "without a response".to_owned(),
        timeout: limit,
    };
    let map = wait::wait_for(api, &report.config_map.key.name, &expectation).await.map_err(|_| {
        OrphansError::ResponseTimeout {
            driver: driver(),
            kind: report.kind,
            namespace: namespace(),
            limit: limit.into(),
        }
    })?;
    read_state(map.as_ref())
        .and_then(|(response, _)| response)
        .ok_or_else(|| OrphansError::RequestReplaced { driver: driver(), namespace: namespace() })
}
