//! `cofferdam orphans`: lists volumes of drivers that no object in the cluster refers to, and deletes them
//! one at a time.
//!
//! The command uses the API only. The list comes from the reports of the provisioners. A deletion is a
//! request to the provisioner of the driver, which checks the volume again.

mod error;
mod report;
mod table;

use std::{collections::HashMap, time::Duration};

use cofferdam_cluster::orphan_report;
use cofferdam_controllers::orphans::report::{
    DELETE, DELETING, DeletionRequest, DeletionResponse, DeletionResult, ScanReport,
};
use cofferdam_domain::{DriverName, VolumeHandle};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    cli::{DeleteFlags, ListFlags, OrphansCommand, OrphansFlags, OutputFormat, ReportFlags},
    client::{self, ClientEnvironment, ClusterConnection, one_line},
    commands::run,
    config::{GoDuration, ResolvedConfig},
    error::CommandError,
    style::escape_control_chars,
    wait::{self, Expectation},
};
use error::OrphansError;
use report::{DriverReport, PendingRequest};

/// Runs a command; returns the text to print, and `false` if a deletion was refused.
///
/// # Errors
/// [`CommandError`], one line.
pub(crate) async fn run(
    flags: OrphansFlags,
    environment: &HashMap<String, String>,
) -> Result<(String, bool), CommandError> {
    match flags.command {
        None => Ok((list(&flags.list, environment).await?, true)),
        Some(OrphansCommand::List(flags)) => Ok((list(&flags, environment).await?, true)),
        Some(OrphansCommand::Delete(flags)) => delete(&flags, environment).await,
    }
}

/// Connects to the cluster; returns the connection, and the namespace if it is configured.
async fn connect(
    flags: &ReportFlags,
    environment: &HashMap<String, String>,
) -> Result<(ClusterConnection, Option<String>), CommandError> {
    let values = flags.connection.values.clone().with("namespace", flags.namespace.clone());
    let resolved = ResolvedConfig::for_cluster(&values, environment)?;
    let namespace_flag = resolved.configuration.namespace.as_ref().map(|label| label.0.clone());
    Ok((client::connect(&resolved.configuration, &ClientEnvironment::from_process()).await?, namespace_flag))
}

/// Lists the reports of one driver or of all, sorted by driver. Without a namespace it lists all namespaces,
/// or only the connection's if that is forbidden.
async fn find_reports(
    cluster: &ClusterConnection,
    namespace: Option<&str>,
    driver: Option<&str>,
) -> Result<Vec<DriverReport>, OrphansError> {
    let parameters = ListParams::default().labels(&format!(
        "{}={}",
        orphan_report::REPORT_LABEL,
        orphan_report::REPORT_LABEL_VALUE
    ));
    let namespaced_api = |namespace: &str| Api::<ConfigMap>::namespaced(cluster.client.clone(), namespace);
    let listed = match namespace {
        Some(namespace) => namespaced_api(namespace).list(&parameters).await,
        None => match Api::<ConfigMap>::all(cluster.client.clone()).list(&parameters).await {
            // A user without cluster-wide access may have access to the namespace of the context.
            Err(kube::Error::Api(status)) if status.code == 403 => {
                namespaced_api(&cluster.namespace).list(&parameters).await
            }
            listed => listed,
        },
    };
    let maps = listed
        .map_err(|error| OrphansError::List { api: cluster.api_description(), problem: one_line(&error) })?;
    let mut reports = maps.items.iter().map(DriverReport::from_config_map).collect::<Result<Vec<_>, _>>()?;
    reports.retain(|reports| driver.is_none_or(|driver| driver == reports.driver));
    reports.sort_by(|a, b| (&a.driver, &a.config_map.key).cmp(&(&b.driver, &b.config_map.key)));
    Ok(reports)
}

async fn list(flags: &ListFlags, environment: &HashMap<String, String>) -> Result<String, CommandError> {
    let (cluster, namespace) = connect(&flags.reports, environment).await?;
    let reports = find_reports(&cluster, namespace.as_deref(), flags.driver.as_deref()).await?;
    if let Some(driver) = flags.driver.as_ref().filter(|_| reports.is_empty()) {
        return Err(OrphansError::NoReport(driver.clone()).into());
    }
    Ok(match flags.output {
        OutputFormat::Text => table::format_reports(&reports, Timestamp::now()),
        OutputFormat::Json => {
            format!("{:#}\n", json!({"drivers": reports.iter().map(to_json).collect::<Vec<_>>()}))
        }
    })
}

fn to_json(report: &DriverReport) -> serde_json::Value {
    let request = report.readable_request();
    json!({
        "driver": report.driver,
        "namespace": report.config_map.key.namespace,
        "configMap": report.config_map.key.name,
        "report": ScanReport::read(&report.config_map),
        "request": request,
        "deleting": report.is_deleting(),
        "response": DeletionResponse::read(&report.config_map),
    })
}

async fn delete(
    flags: &DeleteFlags,
    environment: &HashMap<String, String>,
) -> Result<(String, bool), CommandError> {
    let limit: GoDuration =
        flags.timeout.parse().map_err(|error| OrphansError::Timeout(format!("{error}")))?;
    let (cluster, namespace) = connect(&flags.reports, environment).await?;
    let driver = &flags.driver;
    let mut reports = find_reports(&cluster, namespace.as_deref(), Some(driver)).await?;
    if reports.len() > 1 {
        let namespaces: Vec<&str> =
            reports.iter().map(|reports| &*reports.config_map.key.namespace).collect();
        let namespaces = namespaces.join(", ");
        return Err(OrphansError::MultipleReports { driver: driver.clone(), namespaces }.into());
    }
    let reports = reports.pop().ok_or_else(|| OrphansError::NoReport(driver.clone()))?;
    let api: Api<ConfigMap> = Api::namespaced(cluster.client, &reports.config_map.key.namespace);
    let requested_by =
        format!("{}@{}", environment.get("USER").map_or("unknown", String::as_str), run::process_identity());
    let request =
        request_deletion(&api, &reports, &VolumeHandle::from(flags.handle.as_str()), requested_by).await?;
    let response = wait_for_response(&api, &reports, &request, limit.get()).await?;
    let success = response.result == DeletionResult::Deleted;
    let text = match flags.output {
        OutputFormat::Json => format!("{:#}\n", json!(response)),
        OutputFormat::Text => table::format_response(&DriverName::from(driver.as_str()), &request, &response),
    };
    Ok((text, success))
}

/// Writes a request, or returns a pending request for the same volume. A pending request for another volume,
/// or one that this version cannot read, is an error.
async fn request_deletion(
    api: &Api<ConfigMap>,
    report: &DriverReport,
    handle: &VolumeHandle,
    requested_by: String,
) -> Result<DeletionRequest, OrphansError> {
    let driver = &report.driver;
    match report.pending_request() {
        Some(PendingRequest::Known(pending)) if pending.handle == *handle => return Ok(pending),
        Some(PendingRequest::Known(DeletionRequest { handle, requested_at, requested_by })) => {
            return Err(OrphansError::RequestPending {
                driver: driver.clone(),
                handle: escape_control_chars(handle.as_str()),
                requested_by: escape_control_chars(&requested_by),
                since: requested_at,
            });
        }
        Some(PendingRequest::Unreadable) => {
            return Err(OrphansError::UnreadableRequest(driver.clone()));
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
    let driver = &report.driver;
    let read_state = |map: Option<&ConfigMap>| {
        let report = DriverReport::from_config_map(map?).ok()?;
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
    let map = wait::wait_for(api, &report.config_map.key.name, &expectation)
        .await
        .map_err(|_| OrphansError::ResponseTimeout { driver: driver.clone(), limit: limit.into() })?;
    read_state(map.as_ref())
        .and_then(|(response, _)| response)
        .ok_or_else(|| OrphansError::RequestReplaced(driver.clone()))
}
