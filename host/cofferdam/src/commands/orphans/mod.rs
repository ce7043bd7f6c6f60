//! `cofferdam orphans`: volumes that drivers hold and nothing in the cluster stands for, shown and deleted one at a time.
//!
//! It talks to the cluster only. What is shown is what the process that owns the driver has reported; a deletion is a request
//! to it, which it looks into by itself.

mod table;

use std::{collections::HashMap, time::Duration};

use cofferdam_cluster::{Kind as _, OrphanReport, orphan_report};
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
    cli::{
        ClusterFlags, ConnectionFlags, DeleteFlags, ListFlags, OrphansCommand, OrphansFlags, OutputFormat,
    },
    client::{self, Cluster, Surroundings, one_line},
    commands::dev::wait::{self, Wish},
    commands::run,
    config::{GoDuration, Loaded},
    failure::Failure,
    style::plain,
};

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrphansError {
    #[error("cannot list the reports of the API at {api}: {problem}")]
    List { api: String, problem: String },
    #[error("cannot read the reports: {0}")]
    Read(String),
    #[error("cannot ask for the deletion: {0}")]
    Ask(String),
    #[error("no process reports about driver {0}: expected one that runs the role provisioner with it")]
    NoReport(String),
    #[error(
        "driver {driver} has reports in the namespaces {namespaces}: expected --namespace with one of them"
    )]
    TwoReports { driver: String, namespaces: String },
    #[error("flag --timeout: {0}")]
    Timeout(String),
    #[error(
        "driver {driver} is asked to delete {handle} by {by} since {since}: expected that to be answered first"
    )]
    Busy { driver: String, handle: String, by: String, since: Timestamp },
    #[error("driver {0} has a request that this version cannot read: expected that to be answered first")]
    Unreadable(String),
    #[error(
        "no answer within {limit}: the request stands, and is refused when it is an hour old and not begun; `cofferdam orphans \
         --driver {driver}` tells what became of it. Expected a process to run the role provisioner with the driver"
    )]
    Unanswered { driver: String, limit: GoDuration },
    #[error(
        "the request was taken back, or another one was answered after it: `cofferdam orphans --driver {0}` shows what is left"
    )]
    Lost(String),
}

/// Carries a command out; the text is what is printed, and the boolean whether it held.
///
/// # Errors
/// [`Failure`], one line.
pub(crate) async fn run(
    flags: OrphansFlags,
    environment: &HashMap<String, String>,
) -> Result<(String, bool), Failure> {
    match flags.command {
        None => Ok((list(&flags.list, environment).await?, true)),
        Some(OrphansCommand::List(flags)) => Ok((list(&flags, environment).await?, true)),
        Some(OrphansCommand::Delete(flags)) => delete(&flags, environment).await,
    }
}

/// The cluster, and the namespace where somebody has said one.
async fn connect(
    flags: &ConnectionFlags,
    environment: &HashMap<String, String>,
) -> Result<(Cluster, Option<String>), Failure> {
    let ConnectionFlags { kubeconfig, context, namespace } = flags.clone();
    let flags = ClusterFlags { kubeconfig, context, namespace, ..ClusterFlags::default() };
    let loaded = Loaded::for_cluster(&flags, environment)?;
    let given = loaded.configuration.namespace.as_ref().map(|label| label.0.clone());
    Ok((client::connect(&loaded.configuration, &Surroundings::of_process()).await?, given))
}

/// A report where it stands.
struct Found {
    map: OrphanReport,
    driver: String,
}

impl Found {
    fn of(map: &ConfigMap) -> Result<Self, OrphansError> {
        let json = serde_json::to_string(map).map_err(|error| OrphansError::Read(error.to_string()))?;
        let map = OrphanReport::decode(&json).map_err(OrphansError::Read)?;
        let driver = map.data_value("driver").unwrap_or_default().to_owned();
        Ok(Self { map, driver })
    }

    /// The request that waits or is being carried out.
    fn pending(&self) -> Option<Result<DeletionRequest, String>> {
        self.map.data_value(DELETING).or(self.map.data_value(DELETE)).map(DeletionRequest::parse)
    }
}

/// Every report, of one driver or of all, by driver.
async fn find(
    cluster: &Cluster,
    namespace: Option<&str>,
    driver: Option<&str>,
) -> Result<Vec<Found>, OrphansError> {
    let parameters = ListParams::default().labels(&format!(
        "{}={}",
        orphan_report::REPORT_LABEL,
        orphan_report::REPORT_LABEL_VALUE
    ));
    let within = |namespace: &str| Api::<ConfigMap>::namespaced(cluster.client.clone(), namespace);
    let listed = match namespace {
        Some(namespace) => within(namespace).list(&parameters).await,
        None => match Api::<ConfigMap>::all(cluster.client.clone()).list(&parameters).await {
            // Who may not look everywhere may still look where the context points to.
            Err(kube::Error::Api(status)) if status.code == 403 => {
                within(&cluster.namespace).list(&parameters).await
            }
            listed => listed,
        },
    };
    let maps =
        listed.map_err(|error| OrphansError::List { api: cluster.place(), problem: one_line(&error) })?;
    let mut found = maps.items.iter().map(Found::of).collect::<Result<Vec<_>, _>>()?;
    found.retain(|found| driver.is_none_or(|driver| driver == found.driver));
    found.sort_by(|a, b| (&a.driver, &a.map.key).cmp(&(&b.driver, &b.map.key)));
    Ok(found)
}

async fn list(flags: &ListFlags, environment: &HashMap<String, String>) -> Result<String, Failure> {
    let (cluster, namespace) = connect(&flags.connection, environment).await?;
    let found = find(&cluster, namespace.as_deref(), flags.driver.as_deref()).await?;
    if let Some(driver) = flags.driver.as_ref().filter(|_| found.is_empty()) {
        return Err(OrphansError::NoReport(driver.clone()).into());
    }
    Ok(match flags.output {
        OutputFormat::Text => table::text(&found, Timestamp::now()),
        OutputFormat::Json => {
            format!("{:#}\n", json!({"drivers": found.iter().map(to_json).collect::<Vec<_>>()}))
        }
    })
}

fn to_json(found: &Found) -> serde_json::Value {
    let request = found.pending().and_then(Result::ok);
    json!({
        "driver": found.driver,
        "namespace": found.map.key.namespace,
        "configMap": found.map.key.name,
        "report": ScanReport::read(&found.map),
        "request": request,
        "deleting": found.map.data_value(DELETING).is_some(),
        "answer": DeletionResponse::read(&found.map),
    })
}

async fn delete(
    flags: &DeleteFlags,
    environment: &HashMap<String, String>,
) -> Result<(String, bool), Failure> {
    let limit: GoDuration =
        flags.timeout.parse().map_err(|error| OrphansError::Timeout(format!("{error}")))?;
    let (cluster, namespace) = connect(&flags.connection, environment).await?;
    let driver = &flags.driver;
    let mut found = find(&cluster, namespace.as_deref(), Some(driver)).await?;
    if found.len() > 1 {
        let namespaces: Vec<&str> = found.iter().map(|found| &*found.map.key.namespace).collect();
        let namespaces = namespaces.join(", ");
        return Err(OrphansError::TwoReports { driver: driver.clone(), namespaces }.into());
    }
    let found = found.pop().ok_or_else(|| OrphansError::NoReport(driver.clone()))?;
    let api: Api<ConfigMap> = Api::namespaced(cluster.client, &found.map.key.namespace);
    let by = format!("{}@{}", environment.get("USER").map_or("unknown", String::as_str), run::identity());
    let request = ask(&api, &found, &VolumeHandle::from(flags.handle.as_str()), by).await?;
    let answer = answered(&api, &found, &request, limit.get()).await?;
    let held = answer.result == DeletionResult::Deleted;
    let text = match flags.output {
        OutputFormat::Json => format!("{:#}\n", json!(answer)),
        OutputFormat::Text => table::answer(&DriverName::from(driver.as_str()), &request, &answer),
    };
    Ok((text, held))
}

/// Places a request, or finds the one that asks for the same.
async fn ask(
    api: &Api<ConfigMap>,
    found: &Found,
    handle: &VolumeHandle,
    by: String,
) -> Result<DeletionRequest, OrphansError> {
    let driver = &found.driver;
    match found.pending() {
        Some(Ok(pending)) if pending.handle == *handle => return Ok(pending),
        Some(Ok(DeletionRequest { handle, requested_at, requested_by: by })) => {
            return Err(OrphansError::Busy {
                driver: driver.clone(),
                handle: plain(handle.as_str()),
                by: plain(&by),
                since: requested_at,
            });
        }
        Some(Err(_)) => return Err(OrphansError::Unreadable(driver.clone())),
        None => {}
    }
    let request =
        DeletionRequest { handle: handle.clone(), requested_at: Timestamp::now(), requested_by: by };
    let mut patch = request.patch();
    if let Some(patch) = patch.as_object_mut() {
        // Two people who ask at the same time do not write over each other.
        let version = json!({"resourceVersion": found.map.meta.resource_version.to_string()});
        patch.insert("metadata".to_owned(), version);
    }
    let patched = api.patch(&found.map.key.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map_err(|error| {
        let moved = matches!(&error, kube::Error::Api(status) if status.code == 409);
        let told =
            if moved { "the report has changed this moment: ask again".to_owned() } else { one_line(&error) };
        OrphansError::Ask(told)
    })?;
    Ok(request)
}

/// Waits for the answer to a request.
async fn answered(
    api: &Api<ConfigMap>,
    found: &Found,
    request: &DeletionRequest,
    limit: Duration,
) -> Result<DeletionResponse, OrphansError> {
    let driver = &found.driver;
    let now = |map: Option<&ConfigMap>| {
        let found = Found::of(map?).ok()?;
        let answer =
            DeletionResponse::read(&found.map).filter(|answer| answer.request.as_ref() == Some(request));
        let waits = [DELETE, DELETING].iter().any(|key| {
            found.map.data_value(key).and_then(|text| DeletionRequest::parse(text).ok()).as_ref()
                == Some(request)
        });
        Some((answer, waits))
    };
    let wish = Wish {
        expected: "answered",
        holds: &|map| now(map).is_none_or(|(_, waits)| !waits),
        state: &|_| "unanswered".to_owned(),
        limit,
    };
    let map = wait::until(api, &found.map.key.name, &wish)
        .await
        .map_err(|_| OrphansError::Unanswered { driver: driver.clone(), limit: limit.into() })?;
    now(map.as_ref()).and_then(|(answer, _)| answer).ok_or_else(|| OrphansError::Lost(driver.clone()))
}
