//! `cofferdam status`: what each driver's claims, volumes and attachments are doing, what waits and since
//! when, and what went wrong last. It reads the API and nothing else, so it tells the same of every
//! controller and every CSI driver.

mod summary;
mod table;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, io};

use cofferdam_cluster::{Kind as _, OrphanReport};
use cofferdam_controllers::orphans::report::ScanReport;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Event, PersistentVolume, PersistentVolumeClaim},
    storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment},
};
use kube::{Api, Resource, api::ListParams};
use serde::de::DeserializeOwned;

use crate::{
    cli::{ClusterFlags, OutputFormat, StatusFlags},
    client::{self, ClientEnvironment, ClusterConnection, one_line},
    config::{GoDuration, ResolvedConfig},
    error::CommandError,
    logging,
    style::Style,
};
use summary::StatusObjects;

/// Objects of one page of a list.
const LIST_PAGE_SIZE: u32 = 500;

/// Why a cluster's state is not shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    #[error("cannot list {resource} of the API at {api}: {problem}")]
    List { resource: &'static str, api: String, problem: String },
    #[error("flag --stuck-after: {0}")]
    StuckAfter(String),
    #[error(
        "nothing in the cluster speaks of driver {0}: expected a CSIDriver, a class, a volume or a node that names it"
    )]
    UnknownDriver(String),
}

/// Reads the cluster; the text is what is printed.
///
/// # Errors
/// [`Failure`], one line.
pub(crate) async fn run(
    flags: StatusFlags,
    environment: &HashMap<String, String>,
) -> Result<(String, bool), CommandError> {
    let stuck_after: GoDuration =
        flags.stuck_after.parse().map_err(|error| StatusError::StuckAfter(format!("{error}")))?;
    let cluster_flags =
        ClusterFlags { kubeconfig: flags.kubeconfig, context: flags.context, ..ClusterFlags::default() };
    let resolved = ResolvedConfig::for_cluster(&cluster_flags, environment)?;
    let cluster = client::connect(&resolved.configuration, &ClientEnvironment::from_process()).await?;
    let objects = list_objects(&cluster).await?;
    let now = Timestamp::now();
    let mut status = summary::ClusterStatus::from_objects(&objects, now, stuck_after.get());
    if let Some(driver) = flags.driver {
        status.drivers.retain(|status| status.driver.as_ref() == Some(&driver));
        if status.drivers.is_empty() {
            return Err(StatusError::UnknownDriver(driver).into());
        }
    }
    let text = match flags.output {
        OutputFormat::Text => {
            table::format_status(&status, now, Style { colours: logging::is_colour_enabled(&io::stdout()) })
        }
        OutputFormat::Json => format!("{:#}\n", serde_json::json!(status)),
    };
    Ok((text, true))
}

/// Reads everything; what this user may not list is left out and named.
async fn list_objects(cluster: &ClusterConnection) -> Result<StatusObjects, StatusError> {
    let mut forbidden = Vec::new();
    let all = ListParams::default();
    let warnings = ListParams::default().fields("type=Warning");
    let reports = ListParams::default().labels(&format!(
        "{}={}",
        cofferdam_cluster::orphan_report::REPORT_LABEL,
        cofferdam_cluster::orphan_report::REPORT_LABEL_VALUE
    ));
    let mut objects = StatusObjects {
        drivers: list_kind::<CSIDriver>(cluster, "csidrivers", &all, &mut forbidden).await?,
        nodes: list_kind::<CSINode>(cluster, "csinodes", &all, &mut forbidden).await?,
        classes: list_kind::<StorageClass>(cluster, "storageclasses", &all, &mut forbidden).await?,
        claims: list_kind::<PersistentVolumeClaim>(cluster, "persistentvolumeclaims", &all, &mut forbidden)
            .await?,
        volumes: list_kind::<PersistentVolume>(cluster, "persistentvolumes", &all, &mut forbidden).await?,
        attachments: list_kind::<VolumeAttachment>(cluster, "volumeattachments", &all, &mut forbidden)
            .await?,
        events: list_kind::<Event>(cluster, "events", &warnings, &mut forbidden).await?,
        ..StatusObjects::default()
    };
    for map in list_kind::<ConfigMap>(cluster, "configmaps", &reports, &mut forbidden).await? {
        objects.orphans.extend(read_orphan_count(&map));
    }
    objects.forbidden = forbidden;
    Ok(objects)
}

/// Driver and number of orphans of a report; absent where this build cannot read it.
fn read_orphan_count(map: &ConfigMap) -> Option<(String, u64)> {
    let map = OrphanReport::decode(&serde_json::to_string(map).ok()?).ok()?;
    let report = ScanReport::read(&map)?;
    Some((report.driver.to_string(), report.counts.orphan))
}

/// All objects of a kind, page by page.
async fn list_kind<K>(
    cluster: &ClusterConnection,
    resource: &'static str,
    parameters: &ListParams,
    forbidden: &mut Vec<&'static str>,
) -> Result<Vec<K>, StatusError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(cluster.client.clone());
    let mut objects = Vec::new();
    let mut parameters = parameters.clone().limit(LIST_PAGE_SIZE);
    loop {
        let page = match api.list(&parameters).await {
            Ok(page) => page,
            Err(kube::Error::Api(status)) if status.code == 403 => {
                forbidden.push(resource);
                return Ok(Vec::new());
            }
            // The rest of a list that took longer than the API keeps its past: begun anew.
            Err(kube::Error::Api(status)) if status.code == 410 && parameters.continue_token.is_some() => {
                objects.clear();
                parameters.continue_token = None;
                continue;
            }
            Err(error) => {
                return Err(StatusError::List {
                    resource,
                    api: cluster.api_description(),
                    problem: one_line(&error),
                });
            }
        };
        objects.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            None => return Ok(objects),
            Some(token) => parameters = parameters.continue_token(&token),
        }
    }
}
